"""Columns beside those of the operands of a product, with which it also adds up or subtracts, at hardly any cost.

They say where a sum rounds, too. A product adds its terms one after the other, and each time it rounds in proportion to
what it has so far: short sums round little, and so do those that stay small on their way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np._lib.arrays import Array, transposed

COUNTERS = 4  # sums of a quarter of the weights each


def by_features(array: Array) -> Array:
    """`array` (..., d), each feature by itself in memory: a product that takes it transposed reads it in order."""
    return transposed(np.ascontiguousarray(transposed(array)))


def with_column(array: Array, column: Any, at: int) -> Array:
    """`array` (..., d) with one more column, `at` this place."""
    wider = np.empty((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
    wider[..., :at], wider[..., at + 1 :] = array[..., :at], array[..., at:]
    wider[..., at : at + 1] = column  # (blockwise.66, blockwise.67)
    return wider


def with_counters(value: Array) -> Array:
    """Values (..., m, d_v) and columns with which a product counts the weights, each those of every fourth key."""
    counters = np.eye(COUNTERS, dtype=value.dtype)[np.arange(value.shape[-2]) % COUNTERS]  # (m, 4) (blockwise.70)
    return np.concatenate([value, np.broadcast_to(counters, (*value.shape[:-1], COUNTERS))], axis=-1)  # (blockwise.69)
