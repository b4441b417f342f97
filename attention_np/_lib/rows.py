"""Rows of an array that are taken by their numbers, or in windows, and what is put there added up.

Each of the two is the other's backward.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from attention_np._lib.arrays import Array
from attention_np._lib.dual import dual, is_dual, parts_of
from attention_np._lib.wide import LEAST, Wide, is_wide, times_power_of_two

Numbers = npt.NDArray[np.int64]
TERMS = 2**12  # that are added up one after the other, at most: the rounding of a sum grows with the root of them


def gathered(x: Array, index: Numbers) -> Array:
    """The rows of `x`, (..., size, d), whose numbers `index`, (..., t), has: (..., t, d). Leading axes broadcast."""
    if index.ndim == 1:
        return x[..., index, :]
    leading = np.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    size, d = x.shape[-2:]
    flat = np.broadcast_to(x, (*leading, size, d)).reshape(prod(leading) * size, d)
    taken: Array = flat[_of_all(index, leading, size)]
    return taken


def scattered(rows: Array, index: npt.NDArray[Any], size: int) -> Array:
    """The sums of those of the `rows`, (..., t, d), that have the same number in `index`, (..., t): (..., size, d).

    They are summed in float64 at least. A row that is not finite has its way in its own sum alone.
    """
    if is_dual(rows):
        return dual(*(scattered(part, index, size) for part in parts_of(rows)))
    if is_wide(rows):
        return _scattered_in_range(rows, index, size)
    if rows.dtype.kind == "c":
        sums: Array = scattered(rows.real, index, size) + 1j * scattered(rows.imag, index, size)
        return sums
    *leading, t, d = rows.shape
    total = np.zeros((*leading, size * d), np.promote_types(rows.dtype, np.float64))
    length, index = max(TERMS, size * d), np.broadcast_to(index, (*leading, t))
    for one in np.ndindex(*leading):
        place = index[one] if d == 1 else (d * index[one].astype(np.int64)[:, None] + np.arange(d)).ravel()
        entries = rows[one].ravel()
        for start in range(0, t * d, length):
            part = slice(start, start + length)
            if total.dtype == np.float64:
                total[one] += np.bincount(place[part], entries[part], minlength=size * d)
            else:  # which has more digits than `bincount`
                of_part = np.zeros(size * d, total.dtype)
                np.add.at(of_part, place[part], entries[part])
                total[one] += of_part
    return total.astype(rows.dtype, copy=False).reshape(*leading, size, d)


def _scattered_in_range(rows: Any, index: npt.NDArray[Any], size: int) -> Array:
    """The same of numbers whose range has no end: each sum is of numbers as they are beside the largest of them."""
    *leading, t, d = rows.shape
    index, top = np.broadcast_to(index, (*leading, t)), np.full((*leading, size, d), LEAST)
    for one in np.ndindex(*leading):
        np.maximum.at(top[one], index[one], rows.exponent[one])
    beside = times_power_of_two(rows.mantissa, rows.exponent - gathered(top, index))
    return cast(Array, Wide(scattered(beside, index, size), top, rows.dtype))


def windows_of(x: Array, width: int, stride: int) -> Array:
    """Whole windows of `width` rows of `x`, (..., n, d), one every `stride` rows: a view, (..., windows, width, d)."""
    if x.shape[-2] < width:
        return np.broadcast_to(x[..., :0, None, :], (*x.shape[:-2], 0, width, x.shape[-1]))
    windows: Array = sliding_window_view(x, width, axis=-2)[..., ::stride, :, :].swapaxes(-1, -2)
    return windows


def summed_over_windows(d_windows: Array, n: int, stride: int) -> Array:
    """The sums of what the windows, (..., windows, width, d), hold of each of n rows: (..., n, d).

    A row is in ``ceil(width / stride)`` windows at most: so many terms are added up, one after the other.
    """
    *leading, windows, width, d = d_windows.shape
    stride = stride if windows > 1 else width
    overlap = -(-width // stride)

    def filled_up(x: Array, axis: int, size: int) -> Array:
        """`x` with zeros behind it."""
        zeros = list(x.shape)
        zeros[axis] = max(size - x.shape[axis], 0)
        return np.concatenate([x, np.zeros(zeros, x.dtype)], axis=axis)

    blocks = filled_up(d_windows[..., :stride, :], -2, stride)  # (..., windows, stride, d): a block for each stride
    blocks = filled_up(blocks, -3, windows + overlap - 1)
    for place in range(1, overlap):
        part = d_windows[..., place * stride : (place + 1) * stride, :]
        held = (..., slice(place, place + windows), slice(0, part.shape[-2]), slice(None))
        blocks[held] = blocks[held] + part
    return filled_up(blocks.reshape(*leading, (windows + overlap - 1) * stride, d), -2, n)[..., :n, :]


def _of_all(index: Numbers, leading: tuple[int, ...], size: int) -> Any:
    """The numbers of rows of arrays of `size` rows each that lie below each other, one for each of the leading axes."""
    before = size * np.arange(prod(leading)).reshape(*leading, 1)
    return np.broadcast_to(index, (*leading, index.shape[-1])) + before
