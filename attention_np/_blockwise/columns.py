"""Columns beside those of the operands of a product, with which it also adds up or subtracts, at hardly any cost.

They say where a sum rounds, too. A product adds its terms one after the other, and each time it rounds in proportion to
what it has so far: short sums round little, and so do those that stay small on their way.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array, transposed

COUNTERS = 4  # sums of a quarter of the weights each
FEATURES, PARTS = 8, 8  # features to one column of delta, and columns at most
WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def by_features(array: Array) -> Array:
    """`array` (..., d), each feature by itself in memory: a product that takes it transposed reads it in order."""
    return transposed(np.ascontiguousarray(transposed(array)))


def with_column(array: Array, column: Any) -> Array:
    """`array` (..., d) and one more column."""
    wider = np.empty((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
    wider[..., :-1], wider[..., -1:] = array, column  # (blockwise.66, blockwise.67)
    return wider


def with_counters(value: Array) -> Array:
    """Values (..., m, d_v) and columns with which a product counts the weights, each those of every fourth key."""
    counters = np.eye(COUNTERS, dtype=value.dtype)[np.arange(value.shape[-2]) % COUNTERS]  # (m, 4) (blockwise.70)
    return np.concatenate([value, np.broadcast_to(counters, (*value.shape[:-1], COUNTERS))], axis=-1)  # (blockwise.69)


def delta_parts(d_output: Array, output: Array, are_many: bool) -> Array:
    """Delta (..., n, p) as sums over parts of the features (blockwise.71), whose number suits :func:`interleaved`.

    Many are found in a wider format, and the last one makes up for the rounding of the others.
    """
    dtype, features = d_output.dtype, d_output.shape[-1]
    if not are_many:
        whole: Array = np.einsum("...b,...b->...", d_output, output)[..., None]  # (blockwise.10)
        return whole
    parts = number_of_parts(features)
    by_part = (array.reshape(*array.shape[:-1], parts, features // parts) for array in (d_output, output))
    wide: Array = np.einsum("...b,...b->...", *by_part, dtype=WIDER.get(dtype))  # (blockwise.10, blockwise.71)
    rounded = wide.astype(dtype)
    rounded[..., -1] += (wide - rounded).sum(axis=-1)
    return rounded


def number_of_parts(features: int) -> int:
    """How many columns :func:`delta_parts` makes, where they are many."""
    return max(1, gcd(features, FEATURES * PARTS) // FEATURES)


def interleaved(array: Array, columns: Array, *, is_by_features: bool = False) -> Array:
    """`array` (..., d) in as many parts as there are `columns` (..., p), each with its column in the middle.

    Where the product of a part is nearly what its column subtracts, the sum comes back to zero in each part, and in the
    middle is still only as large as half a part makes it. In memory as :func:`by_features` has it, if asked.
    """
    *leading, rows, features = array.shape
    parts = columns.shape[-1]
    half = features // parts // 2
    sizes = (features + parts, rows) if is_by_features else (rows, features + parts)
    wider = np.empty((*leading, *sizes), array.dtype)
    wider = transposed(wider) if is_by_features else wider
    into, array = (x.reshape(*leading, rows, parts, -1) for x in (wider, array))
    into[..., :half], into[..., half], into[..., half + 1 :] = array[..., :half], columns, array[..., half:]
    return wider
