"""The thresholds of sparsemax and entmax: what is taken from the scores of a row so that its weights sum to one.

A threshold is found by the size of one weight, the *anchor*: by the largest weight of a row, or by the smallest one
that is not zero. All others are made of the anchor and of gaps between scores, which are differences of numbers as they
are given. So nothing large is ever taken from something large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arrays import Array
from attention_np._lib.tails import log1p, modulus

STEPS = 64  # of Newton's method, which comes down to the root and took at most 11 of them in random rows


def largest_of_sparsemax(gaps: Array) -> Array:
    """The largest weight of each row, (..., 1), of scores less the largest of their row, (..., m).

    The rows are sorted. A score is inside as long as what the larger ones exceed it by is less than one in total.
    """
    inside = gaps.real > sparsemax_threshold(gaps.real)  # (..., m)
    total = np.where(inside, gaps, 0).sum(axis=-1, keepdims=True)
    number = np.maximum(inside.sum(axis=-1, keepdims=True), 1).astype(gaps.dtype)
    largest: Array = (1 - total) / number  # (..., 1) (weightings.5)
    return largest


def sparsemax_threshold(gaps: Array) -> Array:
    """What each row of real `gaps` must be above, (..., 1)."""
    descending = -np.sort(-gaps, axis=-1)  # (..., m)
    total = descending.cumsum(axis=-1)
    number = np.arange(1, gaps.shape[-1] + 1).astype(gaps.dtype)
    inside = total - number * descending < 1  # (..., m) (weightings.4)
    last = np.maximum(inside.sum(axis=-1, keepdims=True), 1) - 1
    threshold: Array = (np.take_along_axis(total, last, axis=-1) - 1) / number[last]
    return threshold


def logarithms_of_entmax(gaps: Array, excess: float) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The logarithms of the weights, (..., m), and which weights are not zero; the logarithms of the others are zero.

    `gaps` are scores less the largest of their row; those that are hidden are minus infinity. `excess` is alpha less
    one. For complex gaps it is the analytic continuation.
    """
    real = np.maximum(gaps.real, -2 / excess)  # from -1 / excess on downwards all weights are zero
    if excess <= 1:  # by the largest weight, which that of sparsemax is near
        anchor = np.log(_largest_of_square_roots(real) if excess == 0.5 else largest_of_sparsemax(real))
    else:  # by the smallest, which is at most what the others would leave if it were zero
        smallest = _smallest_inside(real, excess)
        gaps, real = gaps - smallest, real - smallest
        number = np.maximum((real == 0).sum(axis=-1, keepdims=True), 1).astype(real.dtype)
        anchor = np.log(_left_over(real, excess) / number)
    anchor = _to_sum_one(anchor, real, excess)
    if gaps.dtype.kind == "c":
        anchor = _to_sum_one(anchor.astype(gaps.dtype), gaps, excess)
    return _logarithms(anchor, gaps, excess)


def _to_sum_one(anchor: Array, gaps: Array, excess: float) -> Array:
    """The logarithm of the anchor of each row, (..., 1), by Newton's method from one that is near.

    The sum of the weights is a convex function of the anchor. So the first step may go too far, and all others come
    down to where the sum is one, without ever passing it: a later step upwards is rounding, and is left out.
    """
    is_real, eps = gaps.dtype.kind != "c", np.finfo(gaps.dtype).eps
    enough = 16 * eps if is_real else np.sqrt(eps)  # a complex one starts at the root of the real parts
    is_top = np.arange(gaps.shape[-1]) == gaps.real.argmax(axis=-1, keepdims=True)  # one of the largest weights
    goes_on = np.ones(anchor.shape, np.bool_)  # (..., 1): each row by itself, so that none depends on another
    for number in range(STEPS):
        logarithms, inside = _logarithms(anchor, gaps, excess)
        surplus = np.where(is_top, np.expm1(logarithms), np.where(inside, np.exp(logarithms), 0))
        if excess <= 1:
            of_slopes = excess * anchor + (1 - excess) * logarithms  # (..., m) (weightings.59)
        else:  # where that would be a small difference of large numbers
            of_slopes = logarithms - _rise(anchor, gaps, excess)  # (..., m) (weightings.59)
        slopes = np.where(inside, np.exp(of_slopes), 0)
        step = _log1p(-surplus.sum(axis=-1, keepdims=True) / slopes.sum(axis=-1, keepdims=True))
        step = np.minimum(step, 0) if is_real and number else step
        anchor = np.where(goes_on, anchor + step, anchor)
        goes_on &= modulus(step) > enough  # which NaN is not
        if not goes_on.any():
            break
    return anchor


def _logarithms(anchor: Array, gaps: Array, excess: float) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The logarithms of weights, of that of the anchor and of what scores are above it, (..., m) (weightings.58)."""
    if excess <= 1:  # no score is above it
        ratios = excess * gaps * np.exp(-excess * anchor)  # (..., m)
        inside = ratios.real > -1
        return np.where(inside, anchor + _log1p(np.where(inside, ratios, 0)) / excess, 0), inside
    inside = gaps.real >= 0  # none is below it, and the powers may be too large for the dtype, or too small
    of_anchor, of_gap = excess * anchor, np.log(np.where(inside, excess * gaps, 0))
    top = np.where(of_anchor.real > of_gap.real, of_anchor, of_gap)
    low = np.where(of_anchor.real > of_gap.real, of_gap, of_anchor)
    return np.where(inside, top + _log1p(np.exp(low - top)), 0) / excess, inside


def _largest_of_square_roots(gaps: Array) -> Array:
    """The largest weight of each row, (..., 1), where alpha is 1.5: a quadratic equation in its root."""
    halves = -np.sort(-gaps, axis=-1) / 2  # (..., m)
    number = np.arange(1, gaps.shape[-1] + 1).astype(gaps.dtype)
    mean = halves.cumsum(axis=-1) / number  # of the largest ones, as many as there are
    spread = (halves * halves).cumsum(axis=-1) - number * mean * mean
    root = np.sqrt(np.maximum(1 - spread, 0) / number) - mean  # (..., m) (weightings.22)
    last = np.maximum((halves + root > 0).sum(axis=-1, keepdims=True), 1) - 1  # (weightings.21)
    largest: Array = np.take_along_axis(root, last, axis=-1) ** 2
    return largest


def _rise(anchor: Array, gaps: Array, excess: float) -> Array:
    """How far `excess` times the logarithms of weights are above that of the smallest weight, (..., m)."""
    above = np.log(np.where(gaps.real >= 0, excess * gaps, 0)) - excess * anchor
    right = above.real > 0
    rise: Array = np.where(right, above, 0) + _log1p(np.exp(np.where(right, -above, above)))
    return rise


def _left_over(above: Array, excess: float) -> Array:
    """What the weights of scores leave of one, (..., 1), if their threshold is what they are `above`."""
    inside = above > 0
    logarithms = np.log(np.where(inside, excess * above, 1)) / excess
    is_top = np.arange(above.shape[-1]) == above.argmax(axis=-1, keepdims=True)
    # One less the largest weight, which may be nearly one, with all its digits
    lacking = np.where(is_top, np.where(inside, -np.expm1(logarithms), 1), np.where(inside, -np.exp(logarithms), 0))
    left: Array = lacking.sum(axis=-1, keepdims=True)
    return left


def _smallest_inside(gaps: Array, excess: float) -> Array:
    """The smallest of the `gaps` whose weight is not zero, (..., 1).

    Sorted, they are halved until it is found: what the weights of all others would be if its own were zero leaves
    something of one (weightings.20).
    """
    descending = -np.sort(-gaps, axis=-1)  # (..., m)
    low = np.zeros((*gaps.shape[:-1], 1), int)
    high = np.full_like(low, gaps.shape[-1] - 1)
    while (low < high).any():
        middle = (low + high + 1) // 2
        is_inside = _left_over(descending - np.take_along_axis(descending, middle, axis=-1), excess) > 0
        low, high = np.where(is_inside, middle, low), np.where(is_inside, high, middle - 1)
    smallest: Array = np.take_along_axis(descending, low, axis=-1)
    return smallest


def _log1p(x: Any) -> Any:
    return log1p(x) if x.dtype.kind == "c" else np.log1p(x)
