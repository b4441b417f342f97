r"""Cross-entropy: how much a softmax of scores is surprised by a target.

.. math::

    y_i = \sum_j t_{ij} \Big( \log \sum_l e^{s_{il}} - s_{ij} \Big), \qquad
    \frac{\partial y_i}{\partial s_{il}} = a_{il} \sum_j t_{ij} - t_{il}, \qquad
    \frac{\partial y_i}{\partial t_{ij}} = \log \sum_l e^{s_{il}} - s_{ij}

where a is the softmax of the row. The derivation is ``derivations/cross_entropy.md`` of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_array, as_floating, as_mask
from attention_np._lib.arrays import Array, precision, quiet
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("scores", "target")  # may carry any leading axes: for gradcheck
OP = passes.Op(has_products=True)


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`; None for a target of indices."""

    scores: Array
    target: Array | None


class Places(NamedTuple):
    """What of each row of scores counts."""

    visible: Array  # (..., m), of bool: neither masked out nor minus infinity
    top: Array  # (..., m), of bool: the place of the largest score of those
    at_limit: Array  # (..., 1), of bool: the rows in which that is plus infinity

    @property
    def depends(self) -> Array:
        """Where the loss depends on the scores, (..., m)."""
        depends: Array = self.visible & ~self.at_limit
        return depends


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    scores: Array  # (..., m)
    target: Array | None  # (..., m); None for indices
    places: Places
    shares: Array  # (..., m): the target, or one at the index; zero where a score is hidden
    losses: Array  # (..., m): log-sum-exp less the score, what the loss is of a target that is this entry alone
    weights: Array  # (..., m)
    output_shape: tuple[int, ...]

    @property
    def chosen(self) -> Array:
        """One at each index, and else zero, if the target is of indices."""
        return self.shares

    def in_range(self) -> Cache:
        """With its differences made again, of inputs that are widened: the dtype may not reach from score to score."""
        shares = self.shares if self.target is None else np.where(self.places.visible, self.target, 0)
        return self._replace(shares=shares, losses=surprise(self.scores, self.places)[0])


def forward(scores: npt.ArrayLike, target: npt.ArrayLike, *, mask: npt.ArrayLike | None = None) -> tuple[Array, Cache]:
    r"""Cross-entropy of the softmax of each row of `scores` with its target, in nats.

    Parameters
    ----------
    scores : array_like of float, (..., m)
        Of any size. Minus infinity hides an entry, as the mask does.
    target : array_like of float, (..., m), or of int, (...,)
        How much each entry counts: a distribution, or any numbers. Or of each row the index of the one entry that
        counts, from 0. The leading axes of scores and target broadcast together.
    mask : array_like of bool, optional
        True where an entry takes part; broadcasts to the scores, (..., m). A hidden entry counts in neither sum: its
        target is as zero, so that a row whose only target is hidden has the loss 0, as an empty row has.

    Returns
    -------
    output : ndarray, (...,)
        A loss for each row.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If `scores` is not of floating-point numbers or `target` of these or integers, or one is a masked array, or
        `mask` is not boolean.
    ValueError
        If shapes do not fit together, or an index is negative or not below m.

    Notes
    -----
    :math:`\sum_j t_{ij} (\ell_i - s_{ij})`, where :math:`\ell_i` is the log-sum-exp of the row. A target that is
    exactly zero contributes nothing. Each :math:`\ell_i - s_{ij}` keeps its digits, those of a loss of 1e-20 too: it is
    how far the score is below the largest, plus ``log1p`` of the sum of the other exponentials.

    A row with plus infinity among its scores is the limit, as in :mod:`attention_np.softmax`: the weights are shared
    among c such entries, each of which has the loss log c, and any other an infinite one. The scores of the row have
    gradients of zero, since no finite step changes that.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import cross_entropy
    >>> scores = np.log(np.array([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0]]))
    >>> output, cache = cross_entropy.forward(scores, np.array([2, 0]))
    >>> print(np.exp(-output))
    [0.625 0.25 ]
    >>> print(cross_entropy.backward(np.ones(2), cache).scores)
    [[ 0.125  0.25  -0.375]
     [-0.75   0.25   0.5  ]]
    >>> print(cross_entropy.forward(scores[0], np.array([0.5, 0.5, 0.0]))[0].round(4))
    1.7329
    """
    scores = as_floating("scores", scores)
    if scores.ndim < 1:
        raise ValueError(f"scores must have at least one axis, (..., m) (scores.shape={scores.shape})")
    array = as_array("target", target)
    index = array if array.dtype.kind in "iu" else None
    numbers = as_floating("target", array) if index is None else None
    shape = _shape(scores, array, index is not None)
    mask = None if mask is None else as_mask(mask, shape)
    compute, chosen = precision(scores, numbers).compute, None
    with quiet():
        places = _places(scores.astype(compute, copy=False), mask)
    if index is not None:
        _check_indices(index, scores)
        chosen = (places.visible & (index[..., None] == np.arange(shape[-1]))).astype(compute)  # (..., m)
    return measure(scores, numbers, chosen=chosen, places=places)


@passes.forward
def measure(scores: Array, target: Array | None, chosen: Any, places: Places) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked; `chosen` is one at each index, and else zero."""
    shares = chosen if target is None else np.where(places.visible, target, 0)  # (..., m) (cross-entropy.14)
    losses, weights = surprise(scores, places)  # (..., m)
    output = backward_times(shares, losses).sum(axis=-1)  # (...,) (cross-entropy.4)
    cache = Cache(
        scores=scores,
        target=target,
        places=places,
        shares=shares,
        losses=losses,
        weights=weights,
        output_shape=output.shape,
    )
    return output, cache, ()


def surprise(scores: Array, places: Places) -> tuple[Array, Array]:
    """Log-sum-exp less each score, (..., m), and the weights, (..., m); both zero where a score is hidden."""
    visible, top, at_limit = places
    if at_limit.any():  # scores with the same weights, which do not move
        scores = np.where(at_limit, np.where(scores.real == np.inf, 0, -np.inf).astype(scores.dtype), scores)
    largest = np.where(top, scores, 0).sum(axis=-1, keepdims=True)  # (..., 1) (cross-entropy.19)
    gaps = np.where(visible, largest - scores, np.inf)  # (..., m) (cross-entropy.20)
    exponentials = np.exp(-gaps)  # (..., m)
    # That of the largest is 1: to leave it out of the sum keeps the digits that to take it away would lose.
    others = np.where(top, 0, exponentials).sum(axis=-1, keepdims=True)  # (..., 1) (cross-entropy.1, cross-entropy.20)
    losses = np.where(visible, gaps + np.log1p(others), 0)  # (..., m) (cross-entropy.21)
    weights = exponentials / (1 + others)  # (..., m) (cross-entropy.2, cross-entropy.21)
    return losses, weights


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to the scores and the target, from that of the output, (...,)."""
    d_rows = d_output[..., None]  # (..., 1)
    slopes = _slopes(cache)
    # forward was output = the sum of shares * losses
    d_scores = np.where(cache.places.depends, backward_times(d_rows, slopes), 0)  # (..., m) (cross-entropy.7)
    d_target = None
    if cache.target is not None:
        # (..., m) (cross-entropy.9)
        d_target = np.where(cache.places.visible, backward_times(d_rows, cache.losses), 0)
    return Gradients(scores=d_scores, target=d_target), (slopes,)


def _slopes(cache: Cache) -> Array:
    """How much the loss of a row grows with each of its scores, (..., m)."""
    top, shares, weights = cache.places.top, cache.shares, cache.weights
    total = shares.sum(axis=-1, keepdims=True)  # (..., 1) (cross-entropy.7)
    slopes = backward_times(total, weights) - shares  # (..., m) (cross-entropy.7)
    # The slope of a weight near one is what the others have, whose digits such a weight has lost.
    other_weights = np.where(top, 0, weights).sum(axis=-1, keepdims=True)  # (..., 1)
    other_shares = np.where(top, 0, shares).sum(axis=-1, keepdims=True)  # (..., 1)
    of_top = other_shares - total * other_weights  # (..., 1) (cross-entropy.23)
    return np.where(top & (other_weights.real < 0.5), of_top, slopes)


@passes.jvp
def jvp(cache: Cache, *, scores: Tangent = None, target: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: the tangent of the output, (...,), from those of the inputs."""
    slopes = _slopes(cache)
    d_output = backward_times(np.where(cache.places.depends, scores, 0), slopes).sum(axis=-1)  # (cross-entropy.11)
    if target is not None:
        by_target = backward_times(np.where(cache.places.visible, target, 0), cache.losses)  # (..., m)
        d_output = d_output + by_target.sum(axis=-1)  # (...,) (cross-entropy.11)
    return d_output, (slopes, d_output)


double_backward = passes.second_derivative(measure, backward)


def _places(scores: Array, mask: Array | None) -> Places:
    visible = scores.real != -np.inf
    visible = visible if mask is None else visible & mask  # (..., m)
    shown = np.where(visible, scores.real, -np.inf)
    m = shown.shape[-1]
    place = shown.argmax(axis=-1)[..., None] if m else np.zeros((*shown.shape[:-1], 1), int)  # (..., 1), of a NaN first
    top = visible & (np.arange(m) == place)
    at_limit = np.take_along_axis(shown, place, axis=-1) == np.inf if m else place != 0
    return Places(visible, top, at_limit)


def _shape(scores: Array, target: Array, is_index: bool) -> tuple[int, ...]:
    """(..., m), of the rows of both together."""
    shapes = f"(scores.shape={scores.shape}, target.shape={target.shape})"
    if not is_index and target.shape[-1:] != scores.shape[-1:]:
        has = f"{target.shape[-1]} entries" if target.ndim else "no axis"
        raise ValueError(f"target has {has} but a row of scores has {scores.shape[-1]} {shapes}")
    try:
        rows = np.broadcast_shapes(scores.shape[:-1], target.shape if is_index else target.shape[:-1])
    except ValueError:
        what = "and a target of integers, which are indices," if is_index else "and target"
        raise ValueError(f"the leading axes of scores {what} do not broadcast together {shapes}") from None
    return (*rows, scores.shape[-1])


def _check_indices(index: Array, scores: Array) -> None:
    m = scores.shape[-1]
    wrong = np.argwhere((index < 0) | (index >= m))
    if not len(wrong):
        return
    place: Any = tuple(wrong[0].tolist())
    name = f"target[{', '.join(map(str, place))}]" if place else "target"
    raise ValueError(
        f"{name} is {index[place]}, but an index of {m} scores must be at least 0 and less than {m}: a row that does "
        f"not count is hidden by a mask (scores.shape={scores.shape}, target.shape={index.shape})"
    )
