"""Products that know which terms take part: what the ops need where arrays hold NaN or infinity, or huge numbers.

A pair that is masked out, and an entry of a gradient that is exactly zero, contribute nothing to a sum, whatever they
meet there. IEEE arithmetic alone does not give that, because ``0 * nan`` is ``nan``. Each function here does the plain
product first and looks again only where the result is not finite, so that finite arrays pay next to nothing; of dual
numbers, whose product is a sum of terms, it then looks at each term. A sum that is within the range of the dtype is
found even where its terms or partial sums are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np._lib.arrays import Array, is_finite, transposed
from attention_np._lib.dual import multilinear, times
from attention_np._lib.second_look import all_finite, product_in_range

FEW = 8  # rows, of which the products of all parts together are few numbers
TERMS = 128  # of a sum that are added up in one product, whose rounding grows with the root of their number


def long_product(a: Array, b: Array) -> Array:
    """``a @ b``, a part of the terms of its sums at a time: a tenth slower for a thousand terms, half the error."""
    result: Array
    if a.shape[-1] <= TERMS:
        result = a @ b
        return result
    done = TERMS
    is_plain = type(a) is type(b) is np.ndarray
    if is_plain and a.shape[-2] <= FEW and b.shape[-1] > 1:  # as of one token: all parts in one call, the same bits
        done = a.shape[-1] // TERMS * TERMS
        parts = a[..., :done].reshape(*a.shape[:-1], -1, TERMS).swapaxes(-2, -3)  # (..., p, n, t)
        result = np.add.reduce(parts @ b[..., :done, :].reshape(*b.shape[:-2], -1, TERMS, b.shape[-1]), axis=-3)
    else:
        result = a[..., :TERMS] @ b[..., :TERMS, :]
    for start in range(done, a.shape[-1], TERMS):
        part = slice(start, start + TERMS)
        result += a[..., part] @ b[..., part, :]
    return result


def product(a: Array, b: Array, pairs: Array | None = None, *, mean: bool = False) -> Array:
    """``a @ b``, in which a term ``a[i, j] * b[j, k]`` takes part only where ``pairs[i, j]``.

    Parameters
    ----------
    a : ndarray, (..., n, m)
        Zero wherever a pair is excluded, unless it is NaN there.
    b : ndarray, (..., m, d)
    pairs : ndarray of bool that broadcasts to `a`, optional
        Which pairs (i, j) take part; by default all.
    mean : bool, optional
        The rows of `a` are weights that sum to one, so that rounding alone can carry the result out of range.
    """
    result = long_product(a, b)
    # An excluded pair has a zero in `a`, and zero times a finite number is zero.
    return result if is_finite(result) else _product_of_pairs(a, b, pairs, mean=mean)


@multilinear
def _product_of_pairs(a: Array, b: Array, pairs: Array | None, *, mean: bool = False) -> Array:
    if pairs is None:
        return _mended(long_product(a, b), a, b, mean)
    a = np.where(pairs, a, 0)  # (..., n, m)
    pairs = np.broadcast_to(pairs, a.shape)
    spoiled = ~np.isfinite(b)  # (..., m, d)
    finite = np.where(spoiled, 0, b)
    result = _mended(long_product(a, finite), a, finite, mean)
    used = np.logical_and(spoiled.any(axis=-1), pairs.any(axis=-2))  # (..., m)
    for j in np.flatnonzero(used.any(axis=tuple(range(used.ndim - 1)))):
        terms = a[..., :, j, None] * b[..., None, j, :]  # (..., n, d)
        result += np.where(pairs[..., :, j, None] & spoiled[..., None, j, :], terms, 0)
    return result


def _mended(result: Array, a: Array, b: Array, mean: bool = False) -> Array:
    """`result`, which is ``a @ b``, without the overflow of terms and partial sums of finite rows and columns."""
    finite = all_finite(a, -1) & all_finite(b, -2)  # (..., n, d)
    overflown = finite & ~np.isfinite(result)
    if not overflown.any():
        return result
    in_range = product_in_range(a, b)
    if mean and in_range.dtype.kind != "c":
        most = np.finfo(in_range.dtype).max
        in_range = np.clip(in_range, -most, most)
    return np.where(overflown, in_range, result)


def backward_product(d_rows: Array, x: Array, factor: Any = 1) -> Array:
    """``d_rows @ x * factor`` for a gradient `d_rows`, of which an entry that is exactly zero takes no part."""
    result = long_product(d_rows, x)
    result *= factor
    return result if is_finite(result) else _product_of_flows(d_rows, x, factor)


@multilinear
def _product_of_flows(d_rows: Array, x: Array, factor: Any) -> Array:
    result: Array = product(d_rows, x, d_rows != 0) * factor
    return result


@multilinear
def pair_products(a: Array, b: Array, pairs: Array | None = None) -> Array:
    """The product of row i of `a` with row j of `b`, for each pair (i, j): ``a @ b^T``, and zero outside `pairs`."""
    products: Array = apart(a, b) @ transposed(b)
    return products if pairs is None else np.where(pairs, products, 0)


def apart(a: Array, b: Array) -> Array:
    """`a`, or a copy if it may be the memory of `b`.

    The product of an array with itself NumPy takes in another way, which rounds otherwise. It must not matter whether
    queries and keys are one array, or have been sent to another process as two.
    """
    return a.copy() if np.may_share_memory(a, b) else a


def backward_times(d_array: Array, factor: Array) -> Array:
    """``d_array * factor`` for a gradient, of which an entry that is exactly zero stays so, whatever the factor."""
    result: Array = d_array * factor
    return result if is_finite(result) else _times(d_array, factor)


_times = multilinear(times)


def pairs_that_flow(mask: Array | None, d_output: Array) -> Array | None:
    """The pairs (i, j) of `mask` through which a gradient flows: query i has an incoming gradient at all, or one moves.

    None where that is all of them. `d_output` is (..., n, d_v), the result broadcasts to (..., n, m).
    """
    if type(d_output) is np.ndarray and d_output.size and d_output.all():  # as is mostly so, and told at once
        return mask
    live: Array = (d_output != 0).any(axis=-1, keepdims=True)  # (..., n, 1)
    if live.all():
        return mask
    return live if mask is None else mask & live
