"""The rules of the forward error analysis: how each step takes the errors of what comes in to those of what comes out.

They are derived in ``docs/known-answers.md`` of the repository; :math:`u`, the unit roundoff of the dtype, and
:math:`v`, that of sums, are the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.known_answers.formats import Format

__all__ = ["FUNCTION", "SCALING", "Analysis", "Computed", "Head", "exact"]

Array = npt.NDArray[Any]

SCALING = 6  # roundings of a score besides those of its sum: the scale, its square root for both factors, the bias
EXPONENT = 3  # roundings of the argument of exp: a difference, times log2(e), itself rounded
FUNCTION = 4  # what exp, log, tanh and a division may be off by, together with the rounding of the result
RESCALING = 2  # roundings for each term of a sum over keys that is rescaled block by block
OTHERS = 10  # the remaining roundings of such a sum


class Computed(NamedTuple):
    """An array, and the largest error that each of its entries may have where it is computed."""

    value: Array
    error: Array

    @property
    def size(self) -> Array:
        """The largest magnitude that each entry may have."""
        return np.abs(self.value) + self.error

    def map(self, function: Callable[[Array], Array]) -> Computed:
        """With both parts moved about by `function`, which computes nothing."""
        return Computed(function(self.value), function(self.error))

    @property
    def transposed(self) -> Computed:
        """The transpose of each matrix."""
        return self.map(lambda x: x.swapaxes(-1, -2))


class Weights(NamedTuple):
    forward: Computed
    backward: Computed  # as they may be computed again from the log-sum-exp
    logsumexp: Computed
    moves: Array  # (..., n, m): where a weight depends on its score
    takes_part: Array  # (..., n, m): where it is not simply zero


class Analysis:
    """The rules, for one format."""

    def __init__(self, form: Format) -> None:
        self.u, self.v, self.underflow = form.unit, form.accumulation_unit, form.underflow

    def gamma(self, roundings: int) -> float:
        """The relative error of so many roundings in a row, in the precision of sums."""
        return roundings * self.v / (1 - roundings * self.v)

    def rounded(self, x: Computed) -> Computed:
        """`x` rounded to the dtype; a zero that nothing disturbs stays what it is."""
        return Computed(x.value, x.error + np.where(x.size > 0, self.u * x.size + self.underflow, 0))

    def off(self, x: Computed, roundings: int) -> Computed:
        """`x` after so many more roundings in the precision of sums."""
        return Computed(x.value, x.error + self.gamma(roundings) * x.size)

    def times(self, a: Computed, b: Computed) -> Computed:
        """The product, entry by entry."""
        error = a.error * np.abs(b.value) + np.abs(a.value) * b.error + a.error * b.error
        return self.off(Computed(a.value * b.value, error), 1)

    def minus(self, a: Computed, b: Computed) -> Computed:
        """The difference."""
        return self.off(Computed(a.value - b.value, a.error + b.error), 1)

    def product(self, a: Computed, b: Computed, roundings: int) -> Computed:
        """The product of matrices, by sums with so many roundings for each term."""
        error = a.error @ np.abs(b.value) + np.abs(a.value) @ b.error + a.error @ b.error
        return Computed(a.value @ b.value, error + self.gamma(roundings) * (a.size @ b.size))

    def summed(self, x: Computed, axis: int) -> Computed:
        """The sum along an axis."""
        error = x.error.sum(axis=axis) + self.gamma(x.value.shape[axis]) * x.size.sum(axis=axis)
        return Computed(x.value.sum(axis=axis), error)

    def sum_to(self, x: Computed, shape: tuple[int, ...]) -> Computed:
        """The sum over the axes along which `shape` was broadcast: each term may be rounded to the dtype first."""
        if x.value.shape == shape:
            return x
        terms = prod(x.value.shape) // max(prod(shape), 1)
        x = self.rounded(x)
        error = _sum_to(x.error, shape) + self.gamma(terms) * _sum_to(x.size, shape)
        return Computed(_sum_to(x.value, shape), error)

    def linear(self, x: Computed, w: Array, b: Array | None = None) -> Computed:
        """``x @ w + b``."""
        y = self.product(x, exact(w), w.shape[0] + 1)
        if b is not None:
            y = self.off(Computed(y.value + b, y.error), 1)
            y = Computed(y.value, y.error + self.gamma(1) * np.abs(b))
        return y

    def linear_backward(self, d_y: Computed, x: Computed, w: Array) -> tuple[Computed, Computed, Computed]:
        """The gradients with respect to x, w and b."""
        rows = d_y.map(lambda a: a.reshape(-1, a.shape[-1]))
        x_rows = x.map(lambda a: a.reshape(-1, a.shape[-1]))
        count = len(rows.value)
        leading = prod(x.value.shape[:-2])
        d_w = self.product(x_rows.transposed, rows, count)
        d_b = self.summed(rows, axis=0)
        if leading > 1:  # each sample's part may be rounded to the dtype, and then summed
            parts = np.abs(x_rows.value).T @ rows.size
            d_w = Computed(d_w.value, d_w.error + self.u * parts)
            d_b = Computed(d_b.value, d_b.error + self.u * rows.size.sum(axis=0))
        return self.product(d_y, exact(w.T), w.shape[1]), d_w, d_b

    def weights(self, scores: Computed, visible: Array) -> Weights:
        """Softmax of each row, over the visible pairs; scores may hold infinities, which are exact."""
        value = np.where(visible, scores.value, -np.inf)
        error = np.where(np.isfinite(value), scores.error, 0)
        m = value.shape[-1]
        largest = value.max(axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, 0)
        moves = np.isfinite(value) & np.isfinite(largest)
        limit = (value == np.inf) / np.maximum((value == np.inf).sum(axis=-1, keepdims=True), 1)
        exponentials = np.where(moves, np.exp(value - shift), 0)
        total = exponentials.sum(axis=-1, keepdims=True)
        weights = np.where(moves, exponentials / np.where(total > 0, total, 1), limit)
        logsumexp = shift + np.log(np.where(total > 0, total, 1))  # (..., n, 1)

        of_exponent = np.where(moves, error + EXPONENT * self.v * np.abs(value - shift), 0)
        of_sum = np.log1p((weights * np.expm1(of_exponent)).sum(axis=-1, keepdims=True))
        of_sum += self.gamma(RESCALING * m + OTHERS)
        of_logsumexp = of_sum + self.gamma(FUNCTION) * (np.abs(logsumexp) + np.abs(shift))
        relative = of_exponent + of_sum + self.gamma(FUNCTION)
        again = relative + FUNCTION * self.v * (np.abs(np.where(moves, value, 0)) + np.abs(logsumexp))
        takes_part = moves | (limit > 0)
        forward, backward = (
            Computed(weights, np.where(takes_part, np.minimum(weights * np.expm1(x) + self.underflow, 1), 0))
            for x in (relative, again)
        )
        heaviest: Array = largest[..., 0]
        finite = np.isfinite(heaviest)
        return Weights(
            forward,
            backward,
            Computed(np.where(finite, logsumexp[..., 0], 0), np.where(finite, of_logsumexp[..., 0], 0)),
            moves,
            takes_part,
        )

    def weights_backward(self, weights: Computed, d_weights: Computed, mean: Computed, moves: Array) -> Computed:
        """Of the scores, from the gradient of the weights and its weighted mean, (..., n, 1)."""
        d_scores = self.times(weights, self.minus(d_weights, mean))
        return self.rounded(d_scores.map(lambda x: np.where(moves, x, 0)))

    def attend(self, scores: Computed, visible: Array, value: Computed, d_output: Computed) -> Head:
        """From the scores to the output, and from the gradient of that to those of scores and values."""
        n, m = scores.value.shape[-2:]
        d_v = value.value.shape[-1]
        terms = RESCALING * m + OTHERS
        weights = self.weights(scores, visible)
        output = self.product(self.rounded(weights.forward), value, terms)
        again = self.rounded(weights.backward)

        live: Array = np.any(d_output.size > 0, axis=-1, keepdims=True)  # (..., n, 1)
        d_value = self.product(again.map(lambda x: np.where(live, x, 0)).transposed, d_output, n + FUNCTION)
        flows = live & weights.takes_part
        d_weights = self.rounded(self.product(d_output, value.transposed, d_v))
        d_weights = d_weights.map(lambda x: np.where(flows, x, 0))
        # The mean is sum_j A_ij dA_ij or sum_b dO_ib O_ib: the errors of both, for either may be computed.
        by_pairs = self.summed(self.times(again, d_weights), axis=-1)
        by_output = self.summed(self.times(d_output, self.rounded(output)), axis=-1)
        mean = Computed(by_pairs.value, np.where(live[..., 0], by_pairs.error + by_output.error, 0))
        mean = mean.map(lambda x: x[..., None])
        d_scores = self.weights_backward(again, d_weights, mean, weights.moves & flows)
        return Head(output, weights.logsumexp, d_scores, d_value)


class Head(NamedTuple):
    """What attention computes from scores and values, and from the gradient of its output."""

    output: Computed
    logsumexp: Computed
    d_scores: Computed
    d_value: Computed


def exact(x: Array) -> Computed:
    """An array without error."""
    return Computed(x, np.zeros_like(x))


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    added = array.ndim - len(shape)
    stretched = tuple(axis + added for axis, size in enumerate(shape) if size == 1)
    summed: Array = array.sum(axis=(*range(added), *stretched)).reshape(shape)
    return summed
