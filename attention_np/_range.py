"""Sums of products that leave the range of the floating-point numbers on their way, though what goes in is finite.

The product of two numbers, or a part of a sum, can be too large for the dtype where the result is not: the scale of
the scores is less than one, terms cancel, weights sum to one. Each function here is called only after the plain
arithmetic gave something that is not finite. It works on numbers with an exponent of its own beside each (a power of
two, so that nothing is rounded by it), and changes only what had left the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._arrays import Array, transposed

__all__ = [
    "all_finite",
    "clipped_scores",
    "excess",
    "finite_or_scaled",
    "infinite_to_nan",
    "product_in_range",
    "scores_and_tops",
    "scores_in_range",
    "times_power_of_two",
]

LEAST = -(2**20)  # the exponent of zero: less than that of any number
ROOM = 40  # for the number of terms of a sum, and the multipliers of dropout: a power of two


class _Scaled(NamedTuple):
    """The numbers ``mantissa * 2**exponent``, whose range is that of the exponent."""

    mantissa: Array
    exponent: Array

    def plus(self, other: _Scaled) -> _Scaled:
        exponent = np.maximum(self.exponent, other.exponent)
        parts = [times_power_of_two(x.mantissa, x.exponent - exponent) for x in (self, other)]
        return _normalised(parts[0] + parts[1], exponent)

    def value(self) -> Array:
        """As plain numbers: infinite where they do not fit."""
        return times_power_of_two(self.mantissa, self.exponent)


def times_power_of_two(array: Array, exponent: Any) -> Array:
    """``array * 2**exponent``, also where ``2**exponent`` alone does not fit."""
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    if array.dtype.kind != "c":
        scaled: Array = np.ldexp(array, exponent)
        return scaled
    result = np.empty(np.broadcast_shapes(array.shape, np.shape(exponent)), array.dtype)
    result.real, result.imag = np.ldexp(array.real, exponent), np.ldexp(array.imag, exponent)
    return result


def _magnitude(array: Array) -> Array:
    """The larger of the absolute values of the real and the imaginary part."""
    return np.maximum(np.abs(array.real), np.abs(array.imag)) if array.dtype.kind == "c" else np.abs(array)


def _exponent(array: Array, axis: int | tuple[int, ...]) -> Array:
    """The exponent of the largest finite number along `axis`, which stays as an axis of length one."""
    size = _magnitude(array)
    largest = np.where(np.isfinite(size), size, 0).max(axis=axis, keepdims=True, initial=0)
    exponent: Array = np.frexp(largest)[1]
    return exponent


def _normalised(mantissa: Array, exponent: Array) -> _Scaled:
    size = np.frexp(_magnitude(mantissa))[1]
    return _Scaled(times_power_of_two(mantissa, -size), np.where(mantissa == 0, LEAST, exponent + size))


def all_finite(array: Array, axis: int) -> npt.NDArray[np.bool_]:
    """Whether all along `axis` is finite; the axis stays, of length one."""
    finite: npt.NDArray[np.bool_] = np.all(np.isfinite(array), axis=axis, keepdims=True)
    return finite


def product_in_range(a: Array, b: Array) -> Array:
    """``a @ b`` without a partial sum that is out of range: infinite only where the sum itself is."""
    rows, columns = _exponent(a, -1), _exponent(b, -2)  # (..., n, 1), (..., 1, d)
    products = times_power_of_two(a, -rows) @ times_power_of_two(b, -columns)
    return times_power_of_two(products, rows + columns)


def excess(a: Array, b: Array, factor: Any = 1) -> int:
    """A k for which no sum of products of entries of ``2**-k * a`` and of `b`, times `factor`, overflows.

    It is zero where they are far from that.
    """
    if not np.where(np.isfinite(a), a, 0).any():
        return 0
    exponent = int(_exponent(a.ravel(), -1)[0]) + int(_exponent(b.ravel(), -1)[0]) + max(int(np.frexp(factor)[1]), 0)
    return max(exponent + ROOM - int(np.finfo(a.dtype).maxexp), 0)


def finite_or_scaled(plain: Sequence[Array | None], small: Sequence[Array | None], exponent: int) -> list[Any]:
    """Each of `plain`, and where it is not finite, that of `small` times ``2**exponent``; None stays None."""
    return [
        x if x is None or y is None else _where_finite(x, times_power_of_two(y, exponent))
        for x, y in zip(plain, small, strict=True)
    ]


def _where_finite(x: Array, otherwise: Array) -> Array:
    return np.where(np.isfinite(x), x, otherwise).astype(x.dtype, copy=False)


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

    `plain` is what arithmetic gives for it without the bias; what is finite stays as it is to the last bit.

    A row whose largest score is out of range is given less that score, which the softmax of the row does not see.
    Where `q` or `k` is not finite itself, see :func:`infinite_to_nan`; where `bias` is not, it has its way.
    """
    return scores_and_tops(plain, q, k, scale, bias, pairs)[0]


def scores_and_tops(
    plain: Array, q: Array, k: Array, scale: Any, bias: Array | None, pairs: Array | None
) -> tuple[Array, Array | None]:
    """As :func:`scores_in_range`, and what is missing in each row: the infinity that its largest score is, or zero.

    The latter is (..., n, 1), or None if nothing is missing.
    """
    scores, products, given = _clipped_scores(plain, q, k, scale, bias, lambda found: infinite_to_nan(found, pairs))
    if products is None:
        return scores, None
    beyond = given & (_magnitude(scores) == np.finfo(scores.dtype).max)
    largest = _largest(scores.real, pairs)
    out_of_range = (beyond & (scores.real == largest)).any(axis=-1, keepdims=True)  # (..., n, 1)
    if not out_of_range.any():
        return scores, None
    less = _less_largest(products, given if pairs is None else given & pairs)
    return np.where(out_of_range & given, less, scores), np.where(out_of_range, np.copysign(np.inf, largest), 0)


def clipped_scores(plain: Array, q: Array, k: Array, scale: Any, bias: Array | None) -> Array:
    """As :func:`scores_in_range` for some of the keys alone, and rows whose largest score of all keys is in range."""
    return _clipped_scores(plain, q, k, scale, bias, lambda found: found)[0]


def _clipped_scores(
    plain: Array, q: Array, k: Array, scale: Any, bias: Array | None, settle: Callable[[Array], Array]
) -> tuple[Array, _Scaled | None, Array]:
    """Scores of which those that do not fit are the largest number, the same with exponents, and where both count.

    `settle` is given the scores before the bias. No exponents are needed where nothing finite has left the range.
    """
    total = plain if bias is None else plain + bias
    added = np.True_ if bias is None else np.isfinite(bias)
    lost = added & ~np.isfinite(total)  # (..., n, m)
    given = all_finite(q, -1) & transposed(all_finite(k, -1))  # (..., n, m)
    if not lost.any() and np.isfinite(plain).all():
        return total, None, given  # minus infinity in the bias, as a mask
    lost = given & (lost | ~np.isfinite(plain))
    if not lost.any():
        scores = settle(plain)
        return (scores if bias is None else scores + bias), None, given

    products = _scaled_products(q, k, scale)
    scores = settle(np.where(lost, _clipped(products.value()), plain))
    if bias is not None:
        products = products.plus(_normalised(*np.broadcast_arrays(bias, products.exponent * 0)))
        given = given & added
        scores = np.where(lost & given, _clipped(products.value()), scores + bias)
    return scores, products, given


def _scaled_products(q: Array, k: Array, scale: Any) -> _Scaled:
    rows, columns = _exponent(q, -1), _exponent(k, -1)  # (..., n, 1), (..., m, 1)
    factor, exponent = np.frexp(np.asarray(scale, np.finfo(q.dtype).dtype))
    products = times_power_of_two(q, -rows) @ transposed(times_power_of_two(k, -columns)) * factor
    return _normalised(products, rows + transposed(columns) + exponent)


def _less_largest(scores: _Scaled, pairs: Array) -> Array:
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


def _clipped(array: Array) -> Array:
    """`array` with the largest number of its dtype in the place of infinity."""
    most = np.finfo(array.dtype).max
    if array.dtype.kind != "c":
        clipped: Array = np.clip(array, -most, most)
        return clipped
    result: Array = array.copy()
    result.real, result.imag = np.clip(array.real, -most, most), np.clip(array.imag, -most, most)
    return result
