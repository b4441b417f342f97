"""Rows of an array that are taken by their numbers, or in windows, and what is put there added up.

Each of the two is the other's backward.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from attention_np._lib.arrays import Array

Numbers = npt.NDArray[np.int64]


def gathered(x: Array, index: Numbers) -> Array:
    """The rows of `x`, (..., size, d), whose numbers `index`, (..., t), has: (..., t, d). Leading axes broadcast."""
    if index.ndim == 1:
        return x[..., index, :]
    leading = np.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    size, d = x.shape[-2:]
    flat = np.broadcast_to(x, (*leading, size, d)).reshape(prod(leading) * size, d)
    taken: Array = flat[_of_all(index, leading, size)]
    return taken


def scattered(rows: Array, index: Numbers, size: int) -> Array:
    """The sums of those of the `rows`, (..., t, d), that have the same number in `index`, (..., t): (..., size, d).

    Each sum is that of pairs, of pairs of pairs and so on, whose rounding grows with the logarithm of their number. A
    row that is not finite has its way in its own sum alone.
    """
    *leading, _, d = rows.shape
    if index.ndim > 1:
        flat = rows.reshape(prod(rows.shape[:-1]), d)
        numbers = _of_all(index, tuple(leading), size).ravel()
        return scattered(flat, numbers, prod(leading) * size).reshape(*leading, size, d)
    order = index.argsort(kind="stable")
    index, rows = index[order], rows[..., order, :]  # runs of the same number
    begins = np.flatnonzero(np.append(True, index[1:] != index[:-1])[: len(index)])
    lengths = np.diff(begins, append=len(index))
    place = np.arange(len(index)) - np.repeat(begins, lengths)
    behind, step = np.repeat(lengths, lengths) - place, 1
    while step < lengths.max(initial=0):  # the second of a run to the first, and so on; then the third to the first
        first = np.flatnonzero((place % (2 * step) == 0) & (behind > step))
        rows[..., first, :] = rows[..., first, :] + rows[..., first + step, :]
        step *= 2
    holds = np.full(size, len(index))
    holds[index[begins]] = begins
    zero = np.zeros((*leading, 1, d), rows.dtype)
    return np.concatenate([rows, zero], axis=-2)[..., holds, :]


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
