"""What keeps the rows of a softmax accurate, and apart: weights that are constants, limits, and the range of the dtype.

The formulas stand in :mod:`attention_np.softmax`, whose cache is meant here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array, is_finite
from attention_np._lib.wide import widened


def limits(scores: Array, largest: Array) -> tuple[Array, Array]:
    """Scores with the same weights, and what to take from them, where the largest of a row is infinite or NaN."""
    at_infinity = np.where(scores.real == np.inf, 0, -np.inf).astype(scores.dtype)
    scores = np.where(largest.real == np.inf, at_infinity, scores)
    return scores, np.where(np.isfinite(largest), largest, 0)


Place: TypeAlias = tuple[Array, Array] | None  # the rows that have a weight above a half, and where in each it is


def entry_at(place: Place, vector: Array, axis: int) -> Array | int:
    """The entry of each row of `vector` at its `heaviest` weight, if that is more than a half; else zero.

    Any number may be taken from a whole row. This one keeps full relative accuracy where that weight is nearly one, and
    the deviations from the mean are the small differences of large numbers; elsewhere it could as well make the numbers
    larger.
    """
    if place is None:
        return 0
    rows = vector.swapaxes(axis, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    entries = np.zeros_like(flat[:, :1])
    entries[place[0], 0] = flat[place]
    by_row: Array = entries.reshape(*rows.shape[:-1], 1).swapaxes(axis, -1)
    return by_row


def above_mean(vector: Array, weights: Array, axis: int, place: Place) -> Array:
    """How far each entry of `vector` is above the weighted mean of its row, the `heaviest` of whose weights is known.

    The mean is a product of rows, which needs no memory for its terms, and rounds a little more.
    """
    above: Array = vector - entry_at(place, vector, axis)  # (..., m) (softmax.85)
    if axis == above.ndim - 1:
        above -= (weights[..., None, :] @ above[..., None])[..., 0]  # in place: fresh memory takes longer
    else:
        above -= (weights * above).sum(axis=axis, keepdims=True)
    return above


def heaviest(weights: Array, axis: int) -> Place:
    """Which rows have a weight of more than a half, and where; None if that is so in no row."""
    if weights.real.max() <= 0.5:  # in half the time that it takes to find them
        return None
    flat = np.flatnonzero(weights.real.swapaxes(axis, -1) > 0.5)
    return flat // weights.shape[axis], flat % weights.shape[axis]


def where_weights_depend(formula: Callable[..., Array], cache: Any, *vectors: Array) -> Array:
    """`formula` of `vectors` and the weights; what is not finite is looked at twice.

    It is zero where no weight depends on the scores, or a vector is all zero, whatever the others hold, and has no
    overflow on the way.
    """
    weights, axis = cache.weights, cache.axis
    result = formula(*vectors, weights, axis)
    if is_finite(result) and is_finite(cache.logsumexp):
        return result
    dependent = depends(cache)  # (..., m)
    if is_finite(result) and not at_limit(cache).any():
        return np.where(dependent, result, 0)  # rows with nothing to attend to: zero, which weights made of either sign
    for vector in vectors:
        dependent = dependent & (vector != 0).any(axis=axis, keepdims=True)
    weights, *inside = [np.where(dependent, x, 0) for x in (weights, *vectors)]
    result = formula(*inside, weights, axis)  # (softmax.63)
    finite = [np.isfinite(vector) for vector in inside]
    overflowed = (np.logical_and.reduce(finite) & ~np.isfinite(result)).any(axis=axis, keepdims=True)  # (..., 1)
    if overflowed.any():
        wide = [widened(vector) for vector in inside]
        shifted, other = (np.asarray(formula(*wide, weights, axis, shift)) for shift in (True, False))
        in_range = np.where(np.logical_and.reduce(finite).all(axis=axis, keepdims=True), shifted, other)
        result = np.where(overflowed, in_range, result)
    return np.where(dependent, result, 0)


def depends(cache: Any) -> Array:
    """Where a weight depends on the scores: they take part, and their row is not at a limit."""
    entries: Array = (cache.scores.real != -np.inf) & ~at_limit(cache)  # (..., m)
    return entries if cache.mask is None else entries & cache.mask


def at_limit(cache: Any) -> Array:
    """The rows of which some weights are not zero and yet do not depend on the scores, (..., 1)."""
    limits: Array = cache.logsumexp.real == np.inf
    return limits


def with_column(array: Array, column: Any, sink: Array | None) -> Array:
    """`array`, (..., n, m), with one more entry in each row where there is a sink, which is a score without a value."""
    if sink is None:
        return array
    return np.concatenate([array, np.broadcast_to(column, (*array.shape[:-1], 1))], axis=-1)  # (..., n, m + 1)


def without_column(array: Array, sink: Array | None) -> tuple[Array, Array | None]:
    """What :func:`with_column` put together: the entries of the keys, (..., n, m), and that of the sink, (..., n)."""
    return (array, None) if sink is None else (array[..., :-1], array[..., -1])


def of_scores_and_sink(scores: Array, sink: Array, mask: Array | None, tops: Array | None) -> Array:
    """The rows of a softmax of `scores`, (..., n, m), of which `mask` says which take part, and of a sink, (...).

    `tops` is what the rows are less, from :func:`attention_np._lib.second_look.scores_and_tops`.
    """
    column = sink[..., None, None]  # (..., 1, 1)
    if tops is not None:  # a row beyond the range of the dtype, on one side of any sink or the other
        column = np.where(tops == np.inf, -np.inf, column)
        scores = np.where((tops == -np.inf) & (column.real != -np.inf), -np.inf, scores)
    return with_column(scores if mask is None else np.where(mask, scores, -np.inf), column, sink)
