"""Results of finite numbers whose intermediates leave the range of the floating-point numbers.

The product of two numbers, or a part of a sum, can be too large for the dtype, or too small, where the result is not:
the scale of the scores is less than one, terms cancel, weights sum to one. An op looks once, at its results
(:func:`left_range`), and then works them out again with numbers whose range has no end (:mod:`attention_np._lib.wide`).
Scores, of which a softmax sees the differences alone, are changed only where they had left the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arrays import SEVERAL, Array, sum_of_squares, transposed
from attention_np._lib.dual import dual, is_dual, parts_of, value_of, velocity_or_zero
from attention_np._lib.wide import LEAST, Wide, magnitude, times_power_of_two, widened

LEAST_USUAL = {np.dtype(x): np.finfo(x).tiny / np.finfo(x).eps for x in "fd"}  # what is beside it loses no digit
ROOM = 40  # for the number of terms of a sum, and the multipliers of dropout: a power of two


def left_range(results: Iterable[Array | None], arrays: Iterable[Any]) -> bool:
    """Whether what is between `arrays` and `results`, products of some of them, may have left the range of the dtype.

    That is so if some result is not finite, or hardly a normal number at its largest, and the sizes of `arrays` can be
    the reason. None among either is skipped.
    """
    return not are_usual(results) and may_leave_range(arrays)


def are_usual(results: Iterable[Array | None]) -> bool:
    """Whether all results are finite, and the largest of each so large that what is beside it loses no digit."""
    different = {id(x): x for x in _parts(results)}  # of a gradient that nothing was summed in there is one array
    return all(map(_is_usual, different.values()))


def may_leave_range(arrays: Iterable[Any]) -> bool:
    """Whether products of some of `arrays` can be so large, or so small, that the dtype does not hold them."""
    factors = [np.asarray(x) for x in _parts(arrays)]
    exponents = [_exponent(x) for x in factors]
    limits = [np.finfo(x.dtype) for x in factors]
    largest, least = min(x.maxexp for x in limits) - ROOM, max(x.minexp + x.nmant for x in limits)
    return bool(sum(x for x in exponents if x > 0) > largest or sum(x for x in exponents if x < 0) < least)


def _parts(arrays: Iterable[Any]) -> list[Any]:
    """The arrays, those in tuples and lists too, without None, and of dual numbers both parts."""
    parts = []
    for array in arrays:
        if type(array) is np.ndarray:
            parts.append(array)
        elif array is not None:
            parts += _parts(array) if isinstance(array, SEVERAL) else parts_of(array)
    return parts


def in_range(function: Callable[..., Any], *arrays: Array | None) -> Any:
    """``function(*arrays)``, a tuple of arrays; where it may have left the range, of arrays that are `widened`."""
    results = function(*arrays)
    return function(*(widened(x) for x in arrays)) if left_range(results, arrays) else results


def _is_usual(array: Array) -> bool:
    """Whether all is finite, and the largest of it so large that what is beside it loses no digit that counts."""
    least = LEAST_USUAL.get(array.dtype)
    if least is not None and type(array) is np.ndarray and least < sum_of_squares(array) < np.inf:
        return True  # for so is its largest number
    if isinstance(array, Wide) or not array.size:
        return True
    if array.dtype.itemsize == 2:  # computed in float32
        return bool(np.isfinite(array).all())
    limits = np.finfo(array.dtype)
    return bool(limits.tiny / limits.eps < magnitude(array).max() < np.inf)


def _exponent(array: Array) -> int:
    """The exponent of the largest finite number."""
    size = magnitude(array)
    return int(np.frexp(np.where(np.isfinite(size), size, 0).max(initial=0))[1])


def all_finite(array: Array, axis: int) -> npt.NDArray[np.bool_]:
    """Whether all along `axis` is finite; the axis stays, of length one."""
    finite: npt.NDArray[np.bool_] = np.all(np.isfinite(array), axis=axis, keepdims=True)
    return finite


def product_in_range(a: Array, b: Array) -> Array:
    """``a @ b`` without a partial sum that is out of range: infinite only where the sum itself is, but for rounding."""
    return np.asarray(widened(a) @ b)


def infinite_to_nan(scores: Array, pairs: Array | None) -> Array:
    """`scores` that came out of products, with NaN in each row (over the last axis) whose largest entry is infinite.

    Which of two infinite products is the larger is lost, so the softmax of such a row is not defined. An infinity
    that the caller puts into a bias is different: it states a limit, and :mod:`attention_np.softmax` takes it.
    """
    if np.isfinite(scores).all():
        return scores
    largest = _largest(scores.real, pairs)  # (..., n, 1)
    return np.where(np.isinf(largest) & (scores.real == largest), np.nan, scores)


def scores_in_range(plain: Array, q: Array, k: Array, scale: Any, bias: Array | None, pairs: Array | None) -> Array:
    """``scale * q @ k^T + bias`` for a softmax over the last axis, (..., n, m), where some of that is not finite.

    `plain` is what arithmetic gives for it without the bias; what is finite stays as it is to the last bit. `q` and `k`
    may be :func:`widened`.

    A row whose largest score is out of range is given less that score, which the softmax of the row does not see.
    Where `q` or `k` is not finite itself, see :func:`infinite_to_nan`; where `bias` is not, it has its way.
    """
    return scores_and_tops(plain, q, k, scale, bias, pairs)[0]


def scores_and_tops(
    plain: Array, q: Array, k: Array, scale: Any, bias: Array | None, pairs: Array | None
) -> tuple[Array, Array | None]:
    """As :func:`scores_in_range`, and what is missing in each row: the infinity that its largest score is, or zero.

    The latter is (..., n, 1), or None if nothing is missing. Velocities are what arithmetic gives: where they are out
    of range, what is worked out of them shows it, and is looked at twice as a whole.
    """
    if any(map(is_dual, (plain, q, k, bias))):
        scores, tops = scores_and_tops(value_of(plain), value_of(q), value_of(k), scale, value_of(bias), pairs)
        return dual(scores, velocity_or_zero(plain if bias is None else plain + bias)), tops
    scores, products, finite = _clipped_scores(plain, q, k, scale, bias, lambda scores: infinite_to_nan(scores, pairs))
    if products is None:
        return scores, None
    beyond = finite & (magnitude(scores) == np.finfo(scores.dtype).max)
    largest = _largest(scores.real, pairs)
    out_of_range = (beyond & (scores.real == largest)).any(axis=-1, keepdims=True)  # (..., n, 1)
    if not out_of_range.any():
        return scores, None
    less = _less_largest(products, finite if pairs is None else finite & pairs)
    scores = np.where(out_of_range & finite, less.astype(scores.dtype), scores)
    return scores, np.where(out_of_range, np.copysign(np.inf, largest), 0)


def clipped_scores(plain: Array, q: Array, k: Array, scale: Any, bias: Array | None) -> Array:
    """As :func:`scores_in_range` for some of the keys alone, and rows whose largest score of all keys is in range."""
    if any(map(is_dual, (plain, q, k, bias))):
        scores = clipped_scores(value_of(plain), value_of(q), value_of(k), scale, value_of(bias))
        return dual(scores, velocity_or_zero(plain if bias is None else plain + bias))
    return _clipped_scores(plain, q, k, scale, bias, lambda scores: scores)[0]


def sum_in_range(one: Array, other: Array, axis: int) -> Array:
    """``one + other`` for a softmax over `axis`, which sees no shift of a row.

    A row with a sum that does not fit is given less its largest sum, and with the least number where that does not fit
    either. What is finite in both stays finite, and what is not has its way.
    """
    if is_dual(one) or is_dual(other):
        return dual(sum_in_range(value_of(one), value_of(other), axis), velocity_or_zero(one + other))
    total = one + other
    finite = np.isfinite(one) & np.isfinite(other)
    lost = (finite & ~np.isfinite(total)).any(axis=axis, keepdims=True)
    if not lost.any():
        return total
    sums, pairs = (x.swapaxes(axis, -1) for x in (Wide.of(one) + other, finite))
    less = np.asarray(_less_largest(sums, pairs)).swapaxes(axis, -1)
    return np.where(lost & finite, _within(less), total)


def _clipped_scores(
    plain: Array, q: Array, k: Array, scale: Any, bias: Array | None, settle: Callable[[Array], Array]
) -> tuple[Array, Wide | None, Array]:
    """Scores of which those that do not fit are the largest number, the same with exponents, and where both count.

    `settle` is given the scores before the bias. No exponents are needed where nothing finite has left the range.
    """
    total = plain if bias is None else plain + bias
    added = np.True_ if bias is None else np.isfinite(bias)
    lost = added & ~np.isfinite(total)  # (..., n, m)
    finite = all_finite(q, -1) & transposed(all_finite(k, -1))  # (..., n, m)
    if not lost.any() and np.isfinite(plain).all():
        return total, None, finite  # minus infinity in the bias, as a mask
    lost = finite & (lost | ~np.isfinite(plain))
    if not lost.any():
        scores = settle(plain)
        return (scores if bias is None else scores + bias), None, finite

    products = Wide.of(q) @ transposed(widened(k)) * scale
    scores = settle(np.where(lost, _clipped(products), plain))
    if bias is not None:
        products = products + bias
        finite = finite & added
        scores = np.where(lost & finite, _clipped(products), scores + bias)
    return scores, products, finite


def _less_largest(scores: Wide, pairs: Array) -> Array:
    """`scores`, of which `pairs` count, less the largest of each row."""
    mantissa, exponent = scores.mantissa, scores.exponent
    positive = pairs & (mantissa.real > 0)
    above = np.where(positive, exponent, LEAST).max(axis=-1, keepdims=True)
    below = np.where(pairs, exponent, -LEAST).min(axis=-1, keepdims=True)
    common = np.where(positive.any(axis=-1, keepdims=True), above, below)  # the exponent of the largest, (..., n, 1)
    aligned = times_power_of_two(mantissa, np.clip(exponent - common, LEAST, -LEAST))
    top = np.where(pairs, aligned.real, -np.inf).argmax(axis=-1, keepdims=True)
    return times_power_of_two(aligned - np.take_along_axis(aligned, top, axis=-1), common)


def _largest(scores: Array, pairs: Array | None) -> Array:
    """The largest of each row of real `scores` among `pairs`; minus infinity if there is none."""
    counted = scores if pairs is None else np.where(pairs, scores, -np.inf)
    largest: Array = counted.max(axis=-1, keepdims=True, initial=-np.inf)
    return largest


def _clipped(numbers: Wide) -> Array:
    """`numbers` in their dtype, with its largest number in the place of infinity."""
    return _within(np.asarray(numbers))


def _within(array: Array) -> Array:
    """`array`, which is written to, with the largest number of its dtype in the place of infinity."""
    most = np.finfo(array.dtype).max
    if array.dtype.kind != "c":
        return np.clip(array, -most, most)
    array.real, array.imag = np.clip(array.real, -most, most), np.clip(array.imag, -most, most)
    return array
