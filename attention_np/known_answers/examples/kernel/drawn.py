"""The arrays of a case that a kernel can run: (b, h, n, d), of numbers that every format has."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Draws, Example, case_of
from attention_np.known_answers.signatures import SIGNATURES

__all__ = ["CoarseDraws", "of_attention", "of_kernel"]

IN_ALL = 32  # of which numbers are whole parts: with five digits at most before the point, they have eight bits


class CoarseDraws(Draws):
    """Nearly normal numbers of eight bits: exact in bfloat16, so all formats have the same, and soon compressed.

    They are sums of the bytes of a bit generator. NumPy promises its stream, and not that of normal numbers.
    """

    def __init__(self, op: str, name: str) -> None:
        super().__init__(op, name)
        self.bits = np.random.PCG64(zlib.crc32(f"{op}/{name}".encode()))

    def __call__(self, *shape: int) -> Array:
        """An array of them."""
        numbers: Array = np.rint(self.normal(prod(shape)) * IN_ALL).reshape(shape) / IN_ALL
        return numbers

    def normal(self, count: int) -> Array:
        """So many sums of eight bytes, less their mean, over their deviation: never beyond five."""
        octets = self.bits.random_raw(count).astype("<u8").view(np.uint8).reshape(count, 8)
        numbers: Array = (octets.sum(axis=1) - 1020.0) / 209
        return numbers

    def uniform(self, *shape: int) -> Array:
        """From 0 to 1, in whole parts of 256."""
        numbers: Array = (self.bits.random_raw(prod(shape)) >> np.uint64(56)).astype(np.float64).reshape(shape) / 256
        return numbers

    def mask(self, *shape: int) -> Array:
        """About half are true, and one in each row for certain."""
        seen: Array = self.uniform(*shape) < 0.5
        seen[..., 0] |= ~seen.any(axis=-1)
        return seen


def of_attention(
    name: str,
    description: str,
    *tags: str,
    n: int = 16,
    m: int | None = None,
    d_k: int = 64,
    d_v: int | None = None,
    batch: int = 1,
    heads: int = 1,
    key_heads: int | None = None,
    **changes: Any,
) -> Example:
    """A case on (batch, heads, n, d_k) queries over (batch, key_heads, m, d_k) keys."""
    draws = CoarseDraws("attention", name)
    m, d_v, key_heads = n if m is None else m, d_k if d_v is None else d_v, heads if key_heads is None else key_heads
    shapes = {
        "query": (batch, heads, n, d_k),
        "key": (batch, key_heads, m, d_k),
        "value": (batch, key_heads, m, d_v),
        "d_output": (batch, heads, n, d_v),
    }
    inputs = {array: draws(*shape) for array, shape in shapes.items()}
    tags = (*tags, "grouped heads") if key_heads < heads else tags
    return of_kernel(draws, description, tags, inputs, changes)


def of_kernel(
    draws: Draws,
    description: str,
    tags: tuple[str, ...],
    inputs: Mapping[str, Array],
    changes: Mapping[str, Any],
) -> Example:
    """The case, with what kernels hold in float32 in that format."""
    example = case_of(draws, description, tags, inputs, changes)
    return replace(example, in_float32=SIGNATURES[draws.op].in_float32)
