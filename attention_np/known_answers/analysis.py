"""The rules of the forward error analysis: how each step takes the errors of what comes in to those of what comes out.

They are derived in ``docs/known-answers.md`` of the repository; :math:`u`, the unit roundoff of the dtype, and
:math:`v`, that of sums, are the same there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.around import activated, hats
from attention_np.known_answers.by_position import frequencies
from attention_np.known_answers.formats import FORMATS, Format
from attention_np.known_answers.program import SCALING, Head, Tangents, sum_to
from attention_np.known_answers.weighed import weighed

EXPONENT = 3  # roundings of the argument of exp: a difference, times log2(e), itself rounded
FUNCTION = 4  # what exp, log, tanh and a division may be off by, together with the rounding of the result
FREQUENCY = 16  # roundings of an angle: of a power, whose exponent is times the logarithm of its base, and a product
SCALED_FREQUENCY = 4 * FREQUENCY  # a blend of two frequencies, by a share that is a difference of logarithms
RESCALING = 2  # roundings for each term of a sum over keys that is rescaled block by block
MOVED = 2  # times the largest error of a score: of its own, and of a threshold or a denominator made of all
OTHERS = 10  # the remaining roundings of such a sum


@dataclass(frozen=True)
class Computed:
    """An array, and the largest error that each of its entries may have where it is computed."""

    value: Array
    error: Array

    @property
    def size(self) -> Array:
        """The largest magnitude that each entry may have."""
        return np.abs(self.value) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.value.shape

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Computed:
        return Computed(self.value[index], self.error[index])

    def swapaxes(self, one: int, other: int) -> Computed:
        """As of an array."""
        return Computed(self.value.swapaxes(one, other), self.error.swapaxes(one, other))


class Weights(NamedTuple):
    """The softmax of the rows of scores."""

    forward: Computed
    backward: Computed  # as they may be computed again from the log-sum-exp
    logsumexp: Computed
    moves: Array  # (..., n, m): where a weight depends on its score
    takes_part: Array  # (..., n, m): where it is not simply zero


class Attended(NamedTuple):
    """What attention has computed when the gradient has come back to its weights."""

    weights: Weights
    output: Computed
    again: Computed  # the weights of the backward pass, rounded
    live: Array  # (..., n, 1): rows whose gradient is not zero
    moves: Array  # (..., n, m): where the gradient of a score is not simply zero
    d_weights: Computed
    mean: Computed  # (..., n, 1): of d_weights


class Analysis:
    """The rules, for one format."""

    def __init__(self, form: Format) -> None:
        steps = FORMATS[form.steps] if form.steps else form
        self.form, self.u, self.v, self.underflow = form, steps.unit, form.accumulation_unit, steps.underflow

    def map(self, x: Computed, function: Callable[[Array], Array]) -> Computed:
        """With both parts moved about by `function`, which computes nothing."""
        return Computed(function(x.value), function(x.error))

    def gamma(self, roundings: int) -> float:
        """The relative error of so many roundings in a row, in the precision of sums."""
        return roundings * self.v / (1 - roundings * self.v)

    def rounded(self, x: Computed) -> Computed:
        """`x` rounded to the dtype; a zero that nothing disturbs stays what it is."""
        return Computed(x.value, x.error + np.where(x.size > 0, self.u * x.size + self.underflow, 0))

    def factor(self, x: Computed, name: str | None = None) -> Computed:
        """`x`, rounded, as a factor of a product in eight bits: weights are rounded once more, gradients to `name`."""
        if not self.form.steps:
            return x
        form = FORMATS[name] if name else self.form
        return Computed(x.value, x.error + np.where(x.size > 0, form.unit * x.size + 2.0 ** (form.least - 1), 0))

    def off(self, x: Computed, roundings: int) -> Computed:
        """`x` after so many more roundings in the precision of sums."""
        return Computed(x.value, x.error + self.gamma(roundings) * x.size)

    def times(self, a: Computed, b: Computed) -> Computed:
        """The product, entry by entry."""
        error = a.error * np.abs(b.value) + np.abs(a.value) * b.error + a.error * b.error
        return self.off(Computed(a.value * b.value, error), 1)

    def plus(self, a: Computed, b: Computed) -> Computed:
        """The sum."""
        return self.off(Computed(a.value + b.value, a.error + b.error), 1)

    def minus(self, a: Computed, b: Computed) -> Computed:
        """The difference."""
        return self.off(Computed(a.value - b.value, a.error + b.error), 1)

    def over(self, x: Computed, divisor: float) -> Computed:
        """A quotient by a number of the options, or of entries."""
        return self.off(Computed(x.value / divisor, x.error / divisor), 1)

    def number(self, x: Any) -> Computed:
        """Numbers of the options, rounded to the precision of sums."""
        return self.off(exact(np.asarray(x, np.float64)), 1)

    def put(self, x: Computed, features: Array, part: Computed) -> Computed:
        """`x` with other numbers in some of its features."""
        result = Computed(x.value.copy(), x.error.copy())
        result.value[..., features], result.error[..., features] = part.value, part.error
        return result

    def inverse_root(self, x: Computed) -> Computed:
        """One over the square root. The error of x counts by the largest slope near x."""
        nearest = np.maximum(x.value - x.error, x.value / 2)  # no error is as large as half of what it is of
        return self.off(Computed(x.value**-0.5, x.error / 2 * nearest**-1.5), FUNCTION)

    def waves(
        self, positions: Computed, base: float, width: int, scaling: Mapping[str, Any] | None
    ) -> tuple[Computed, Computed]:
        """Cosine and sine: of a frequency that is a power, times a position, each rounded."""
        turns, plain, amplitude = frequencies(base, width, scaling, math, float)
        roundings, others = (FREQUENCY, FUNCTION) if scaling is None else (SCALED_FREQUENCY, 2 * FUNCTION)
        error = self.gamma(roundings) * np.abs(positions.value[..., None] * np.array(plain))
        angles = positions.value[..., None] * np.array(turns)
        cos, sin = (
            self.off(Computed(amplitude * wave(angles), amplitude * error), others) for wave in (np.cos, np.sin)
        )
        return self.rounded(cos), self.rounded(sin)

    def either(self, *ways: Computed) -> Computed:
        """What may be computed in several ways, of which the first is as good as another for the value."""
        return Computed(ways[0].value, np.maximum.reduce([way.error for way in ways]))

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
        error = sum_to(x.error, shape) + self.gamma(terms) * sum_to(x.size, shape)
        return Computed(sum_to(x.value, shape), error)

    def zeros(self, shape: tuple[int, ...]) -> Computed:
        """An array of them."""
        return exact(np.zeros(shape))

    def where(self, some: Array, x: Computed, other: float = 0) -> Computed:
        """`x` there, and `other` elsewhere."""
        return Computed(np.where(some, x.value, other), np.where(some, x.error, 0))

    def in_any_form(self, *forms: Callable[[], dict[str, Computed]]) -> dict[str, Computed]:
        """What is the same in several forms, with the errors of the worst."""
        ways = [form() for form in forms]
        return {name: self.either(*(way[name] for way in ways)) for name in ways[0]}

    def joined(self, rows: list[Computed]) -> Computed:
        """Rows, each (..., 1, d), below each other."""
        return Computed(
            *(np.concatenate(parts, axis=-2) for parts in zip(*((x.value, x.error) for x in rows), strict=True))
        )

    def exp(self, x: Computed, roundings: int) -> Computed:
        """Of a number that may be a part of a sum with so many roundings; of minus infinity it is zero, exactly."""
        value = np.exp(x.value)
        exponent = x.error + (EXPONENT + roundings) * self.v * np.where(np.isfinite(x.value), np.abs(x.value), 0)
        return Computed(value, value * np.expm1(exponent + self.gamma(FUNCTION)))

    def activation(self, x: Computed, kind: str) -> tuple[Computed, Computed]:
        """An activation of each entry, and its slope.

        A function of exponentials is off by some roundings of x times its slope, and by some of what it is a difference
        or a product of: of one, and of x where that is a factor. That of relu, and its slope, are exact.
        """
        pairs = [activated(kind, number, math) for number in x.value.ravel().tolist()]
        value, slope = (np.array(part, np.float64).reshape(x.shape) for part in (*zip(*pairs, strict=True),))
        if kind in ("relu", "relu_squared"):
            return self.off(exact(value), kind != "relu"), self.off(exact(slope), kind != "relu")
        size = np.abs(x.value)
        off = self.gamma(2 * FUNCTION) * (1 + size)
        of_value, of_slope = (
            (0, np.abs(slope))
            if kind in ("exp", "elu_plus_one")
            else (1 + size if "elu" in kind or kind == "silu" else 1, 1 + size)
        )
        return Computed(value, off * (np.abs(value) + of_value)), Computed(slope, off * (np.abs(slope) + of_slope))

    def weighed(
        self, scores: Computed, visible: Array, d_output: Computed, by: Mapping[str, Any]
    ) -> tuple[Computed, Computed]:
        """The weights of each row, and the gradient of the scores.

        Each is off by some roundings for each of its sums, of what the scores and the threshold round to, and by the
        errors that scores and gradient come with.
        """
        results = [np.zeros(scores.shape) for _ in range(5)]
        shown = visible & (scores.value != -np.inf)
        for i in np.ndindex(*scores.shape[:-1]):
            row, *of_row = (x[i][shown[i]].tolist() for x in (scores.value, d_output.value, d_output.error))
            at, by_error = (weighed(by, row, d, _Floats, 60) for d in of_row)
            for array, part in zip(results, (*at, by_error.d_scores_off), strict=True):
                array[i][shown[i]] = part
        weights, d_scores, weights_off, d_scores_off, of_error = results
        of_scores = np.where(shown, scores.error / (1 + np.abs(scores.value)), 0)
        moved = MOVED * of_scores.max(axis=-1, keepdims=True, initial=0)  # (..., 1), relative as roundings are
        off = self.gamma(RESCALING * scores.shape[-1] + OTHERS) + moved
        error = (off + self.u) * d_scores_off + of_error
        return Computed(weights, off * weights_off), self.rounded(Computed(d_scores, error))

    def hats(self, x: Computed, size: int) -> tuple[Computed, Computed]:
        """How near locations from 0 to 1 are to each of `size` pixels, and the slopes of that, away from kinks."""
        height, slope = hats(x.value * size - 0.5, size)
        error = self.gamma(3) * (np.abs(x.value) * size + 1)[..., None] + np.zeros_like(height)
        return Computed(height, np.where(height > 0, error, 0)), exact(slope.astype(np.float64))

    def tanh(self, x: Computed) -> Computed:
        """The error of x counts by the largest slope near x, which is 1 / cosh^2."""
        nearest = np.maximum(np.abs(x.value) - x.error, 0)
        return self.off(Computed(np.tanh(x.value), x.error / np.cosh(nearest) ** 2), FUNCTION)

    def tanh_slope(self, y: Computed) -> Computed:
        """The derivative of tanh where it is `y`."""
        return self.minus(exact(np.ones(())), self.times(y, y))

    def linear(self, x: Computed, w: Computed, b: Computed | None = None) -> Computed:
        """``x @ w + b``."""
        y = self.product(x, w, w.shape[0] + 1)
        if b is not None:
            y = self.off(Computed(y.value + b.value, y.error), 1)
            y = Computed(y.value, y.error + self.gamma(1) * np.abs(b.value))
        return y

    def linear_backward(self, d_y: Computed, x: Computed, w: Computed) -> tuple[Computed, Computed, Computed]:
        """The gradients with respect to x, w and b."""
        rows = self.map(d_y, lambda a: a.reshape(-1, a.shape[-1]))
        x_rows = self.map(x, lambda a: a.reshape(-1, a.shape[-1]))
        count = len(rows.value)
        leading = prod(x.value.shape[:-2])
        d_w = self.product(x_rows.swapaxes(0, 1), rows, count)
        d_b = self.summed(rows, axis=0)
        if leading > 1:  # each sample's part may be rounded to the dtype, and then summed
            parts = np.abs(x_rows.value).T @ rows.size
            d_w = Computed(d_w.value, d_w.error + self.u * parts)
            d_b = Computed(d_b.value, d_b.error + self.u * rows.size.sum(axis=0))
        return self.product(d_y, w.swapaxes(0, 1), w.shape[1]), d_w, d_b

    def scale(self, scale: float | None, d_k: int) -> Computed:
        """What the scores are multiplied by."""
        return exact(np.float64(d_k**-0.5 if scale is None else scale))

    def scores(
        self,
        query: Computed,
        key: Computed,
        scale: Computed,
        bias: Computed | None,
        visible: Array,
        softcap: float | None = None,
    ) -> Computed:
        """Of all pairs."""
        del visible
        query, key = self.rounded_operand(query), self.rounded_operand(key)
        products = self.product(query, key.swapaxes(-1, -2), query.shape[-1] + SCALING)
        scores = scaled = Computed(products.value * scale.value, np.abs(products.error * scale.value))
        if softcap is not None:
            scores = self.times(self.tanh(self.over(scores, softcap)), self.number(softcap))
        if bias is not None:
            size = np.abs(np.where(np.isfinite(bias.value), bias.value, 0))
            error = scores.error + bias.error
            scores = Computed(scores.value + bias.value, error + self.gamma(2) * (scores.size + size + bias.error))
        return self.rounded_scores(scores, scaled, bias)

    def rounded_operand(self, x: Computed) -> Computed:
        """A query or a key of scores: as it is, but for kernels that round it."""
        return x

    def rounded_scores(self, scores: Computed, products: Computed, bias: Computed | None) -> Computed:
        """Scores, of scaled products and a bias: as they are, but for kernels that round them."""
        del products, bias
        return scores

    def softmax(self, scores: Computed, visible: Array, d_output: Computed) -> tuple[Computed, Computed, Computed]:
        """The weights of each row, its log-sum-exp, and the gradient of the scores."""
        weights = self.weights(self.map(scores, lambda x: np.where(visible, x, 0)), visible)
        output = self.rounded(weights.forward)
        moves = weights.moves & (d_output.value != 0).any(axis=-1, keepdims=True)
        d_weights = self.map(d_output, lambda x: np.where(moves, x, 0))
        d_scores = self.weights_backward(output, d_weights, self.mean_of(output, d_weights), moves)
        return weights.forward, weights.logsumexp, d_scores

    def softmax_tangent(
        self, scores: Computed, visible: Array, d_output: Computed, scores_tangent: Computed
    ) -> tuple[Computed, Computed]:
        """The tangents of the weights of each row and of the gradient of the scores, from that of the scores."""
        weights = self.weights(self.map(scores, lambda x: np.where(visible, x, 0)), visible)
        output, moves = self.rounded(weights.forward), weights.moves
        d_weights, scores_tangent = (self.map(x, lambda a: np.where(moves, a, 0)) for x in (d_output, scores_tangent))
        weights_tangent = self.weights_tangent(output, scores_tangent, moves)
        nothing = exact(np.zeros_like(d_weights.value))
        operands = output, d_weights, self.mean_of(output, d_weights), moves, scores_tangent, weights_tangent, nothing
        return weights_tangent, self.weights_backward_tangent(*operands)

    def weights_tangent(self, weights: Computed, scores_tangent: Computed, moves: Array) -> Computed:
        """The tangent of the weights: as the gradient of scores, for the Jacobian of softmax is symmetric."""
        return self.weights_backward(weights, scores_tangent, self.mean_of(weights, scores_tangent), moves)

    def weights_backward_tangent(
        self,
        weights: Computed,
        d_weights: Computed,
        mean: Computed,
        moves: Array,
        scores_tangent: Computed,
        weights_tangent: Computed,
        d_weights_tangent: Computed,
        *mean_tangents: Computed,
    ) -> Computed:
        """The tangent of the gradient of the scores, computed forward over backward or backward twice.

        How the mean of `d_weights` moves, (..., n, 1), may come from what is here, or be one of `mean_tangents`.
        """
        above, mean_score = self.minus(d_weights, mean), self.mean_of(weights, scores_tangent)
        above_tangent = self.minus(scores_tangent, mean_score)
        product = self.plus(self.times(above_tangent, above), d_weights_tangent)
        by_weights = self.plus(self.times(weights_tangent, d_weights), self.times(weights, d_weights_tangent))
        mean_tangent = self.either(
            self.mean_of(weights, product), self.summed(by_weights, axis=-1)[..., None], *mean_tangents
        )
        # Backward twice, the weights have a gradient of their own and one through the mean of d_weights.
        whole = self.minus(self.times(scores_tangent, above), self.times(mean_score, d_weights))
        whole = self.plus(whole, d_weights_tangent)
        d_scores_tangent = self.either(
            self.times(weights, self.minus(product, mean_tangent)),
            self.plus(
                self.times(weights_tangent, above), self.times(weights, self.minus(d_weights_tangent, mean_tangent))
            ),
            self.times(weights, self.minus(whole, self.mean_of(weights, whole))),
        )
        return self.rounded(self.map(d_scores_tangent, lambda x: np.where(moves, x, 0)))

    def mean_of(self, weights: Computed, x: Computed) -> Computed:
        """The weighted mean of each row, (..., n, 1)."""
        return self.summed(self.times(weights, x), axis=-1)[..., None]

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
        return self.rounded(self.map(d_scores, lambda x: np.where(moves, x, 0)))

    def attend(
        self,
        scores: Computed,
        visible: Array,
        value: Computed,
        d_output: Computed,
        kept: Computed | None = None,
        d_logsumexp: Computed | None = None,
    ) -> Head:
        """From the scores to the output, and from the gradients of that and of the log-sum-exp to scores and values.

        What is `kept` of the weights, (..., n, m), is what dropout multiplies them by.
        """
        at = self.attended(scores, visible, value, d_output, kept, d_logsumexp)
        d_scores = self.weights_backward(at.again, at.d_weights, at.mean, at.moves)
        if d_logsumexp is not None:  # which a kernel takes from the mean, or adds when that is taken away
            of_rows = self.map(d_logsumexp, lambda x: x[..., None])
            d_scores = self.either(
                self.weights_backward(at.again, at.d_weights, self.minus(at.mean, of_rows), at.moves),
                self.weights_backward(at.again, self.plus(at.d_weights, of_rows), at.mean, at.moves),
                self.rounded(self.plus(d_scores, self.rounded(self.times(at.again, of_rows)))),
            )
            d_scores = self.map(d_scores, lambda x: np.where(at.moves, x, 0))
        again = at.again if kept is None else self.rounded(self.times(at.again, kept))
        d_scores = self.factor(d_scores, self.form.gradients)
        return Head(at.output, at.weights.logsumexp, d_scores, self.d_value(at, self.factor(again), d_output))

    def attended(
        self,
        scores: Computed,
        visible: Array,
        value: Computed,
        d_output: Computed,
        kept: Computed | None = None,
        d_logsumexp: Computed | None = None,
    ) -> Attended:
        """What there is before the gradient goes on from the weights to the scores."""
        weights = self.weights(scores, visible)
        forward = weights.forward if kept is None else self.times(weights.forward, kept)
        longer, terms = self.rounded(forward), RESCALING * scores.shape[-1] + OTHERS
        factors, output = self.factor(longer), self.product(longer, value, terms)
        again = self.rounded(weights.backward)
        live: Array = np.any(d_output.size > 0, axis=-1, keepdims=True)  # (..., n, 1)
        live = live if d_logsumexp is None else live | (d_logsumexp.size > 0)[..., None]
        flows = live & weights.takes_part
        d_weights = self.d_weights(d_output, value, flows)
        d_weights = d_weights if kept is None else self.times(d_weights, kept)
        # The mean is sum_j A_ij dA_ij or sum_b dO_ib O_ib: the errors of both, for either may be computed.
        by_pairs, by_output = self.mean_of(again, d_weights), self.mean_of(d_output, self.rounded(output))
        # An output of weights in eight bits is off by what each pair is off, and so is the mean.
        of_factors = ((factors.error - longer.error) * d_weights.size).sum(axis=-1, keepdims=True)
        mean = Computed(by_pairs.value, np.where(live, by_pairs.error + by_output.error + of_factors, 0))
        output = output if factors is longer else self.product(factors, value, terms)
        return Attended(weights, output, again, live, weights.moves & flows, d_weights, mean)

    def d_weights(self, d_output: Computed, value: Computed, flows: Array) -> Computed:
        """The gradient of the weights, where it flows."""
        d_weights = self.rounded(self.product(d_output, value.swapaxes(-1, -2), value.shape[-1]))
        return self.map(d_weights, lambda x: np.where(flows, x, 0))

    def d_value(self, at: Attended, weights: Computed, d_output: Computed) -> Computed:
        """The gradient of the values, of `weights` or of their tangent."""
        flowing = self.map(weights, lambda x: np.where(at.live, x, 0))
        return self.product(flowing.swapaxes(-1, -2), d_output, d_output.shape[-2] + FUNCTION)

    def attend_tangent(
        self,
        scores: Computed,
        visible: Array,
        value: Computed,
        d_output: Computed,
        scores_tangent: Computed,
        value_tangent: Computed,
    ) -> Tangents:
        """The tangents of the results of :meth:`attend`, from those of the scores and the values."""
        at = self.attended(scores, visible, value, d_output)
        terms = RESCALING * scores.shape[-1] + OTHERS
        scores_tangent = self.map(scores_tangent, lambda x: np.where(at.weights.moves, x, 0))
        weights_tangent = self.weights_tangent(at.again, scores_tangent, at.weights.moves)
        # The mean of the scores' movement is taken from them, or, as in kernels of one pass, from the output they make.
        weighted = self.rounded(self.times(at.again, scores_tangent))
        of_weights = self.either(
            self.product(weights_tangent, value, terms),
            self.minus(
                self.product(weighted, value, terms),
                self.times(self.mean_of(at.again, scores_tangent), self.rounded(at.output)),
            ),
        )
        output = self.plus(self.rounded(of_weights), self.rounded(self.product(at.again, value_tangent, terms)))
        d_weights_tangent = self.d_weights(d_output, value_tangent, at.live & at.weights.takes_part)
        by_output = self.mean_of(d_output, self.rounded(output))
        operands = (
            at.again,
            at.d_weights,
            at.mean,
            at.moves,
            scores_tangent,
            weights_tangent,
            d_weights_tangent,
            by_output,
        )
        return Tangents(output, self.weights_backward_tangent(*operands), self.d_value(at, weights_tangent, d_output))


class _Floats:
    """The functions of :mod:`attention_np.known_answers.weighed`, of Python's floats."""

    mpf, exp = float, math.exp


def exact(x: Array) -> Computed:
    """An array without error."""
    return Computed(x, np.zeros_like(x))
