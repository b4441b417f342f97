"""The arrays of a case that a kernel can run: (b, h, n, d), of numbers that every format has."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Draws, Example, case_of
from attention_np.known_answers.formats import DTYPES
from attention_np.known_answers.signatures import SIGNATURES

__all__ = ["CoarseDraws", "FineDraws", "of_attention", "of_kernel", "of_packed"]

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


class FineDraws(CoarseDraws):
    """The same with 53 bits, which no shorter format has."""

    def __call__(self, *shape: int) -> Array:
        """An array of them."""
        coarse = super().__call__(*shape)
        rest = (self.bits.random_raw(coarse.size) >> np.uint64(11)).reshape(shape) * 2.0**-53
        numbers: Array = coarse + rest / IN_ALL
        return numbers


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
    fine: bool = False,
    **changes: Any,
) -> Example:
    """A case on (batch, heads, n, d_k) queries over (batch, key_heads, m, d_k) keys; `fine` of wide formats alone."""
    draws = (FineDraws if fine else CoarseDraws)("attention", name)
    m, d_v, key_heads = n if m is None else m, d_k if d_v is None else d_v, heads if key_heads is None else key_heads
    shapes = {
        "query": (batch, heads, n, d_k),
        "key": (batch, key_heads, m, d_k),
        "value": (batch, key_heads, m, d_v),
        "d_output": (batch, heads, n, d_v),
    }
    inputs = {array: draws(*shape) for array, shape in shapes.items()}
    if "block_table" in changes:
        del inputs["key"], inputs["value"]  # in pages, which the changes draw
    return _of_heads(draws, description, tags, inputs, changes, DTYPES[:2] if fine else DTYPES)


def of_packed(
    name: str,
    description: str,
    ends: tuple[int, ...],
    key_ends: tuple[int, ...] | None = None,
    *,
    d_k: int = 64,
    heads: int = 1,
    key_heads: int | None = None,
    **changes: Any,
) -> Example:
    """A case on (heads, t, d_k), where sequences end at `ends`, and those of keys at `key_ends`."""
    draws, key_ends = CoarseDraws("attention", name), key_ends or ends
    few = key_heads or heads
    shapes = {
        "query": (heads, ends[-1], d_k),
        "key": (few, key_ends[-1], d_k),
        "value": (few, key_ends[-1], d_k),
        "d_output": (heads, ends[-1], d_k),
    }
    inputs = {array: draws(*shape) for array, shape in shapes.items()}
    changes |= {"cu_seqlens_q": ends, "cu_seqlens_k": key_ends}
    return _of_heads(draws, description, (), inputs, changes, DTYPES)


def _of_heads(
    draws: Draws,
    description: str,
    tags: tuple[str, ...],
    inputs: Mapping[str, Array],
    changes: Mapping[str, Any],
    dtypes: tuple[str, ...],
) -> Example:
    example = of_kernel(draws, description, tags, inputs, changes)
    grouped = example.inputs["key"].shape[-3] < example.inputs["query"].shape[-3]
    special = (*tags, *["grouped heads"] * grouped, *["all digits"] * (dtypes != DTYPES))
    return replace(example, special=special, dtypes=dtypes)


def of_kernel(
    draws: Draws,
    description: str,
    tags: tuple[str, ...],
    inputs: Mapping[str, Array],
    changes: Mapping[str, Any],
) -> Example:
    """The case, with what kernels hold in float32 in that format."""
    example = case_of(draws, description, tags, inputs, changes)
    if not isinstance(draws, FineDraws):
        example = replace(example, inputs={name: of_bits(x, 8) for name, x in example.inputs.items()})
    return replace(example, in_float32=SIGNATURES[draws.op].in_float32)


def of_bits(x: Array, bits: int) -> Array:
    """The nearest numbers of so many bits: with 8 those that bfloat16 has."""
    if x.dtype == np.bool_:
        return x
    fraction, exponent = np.frexp(x)
    rounded: Array = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return rounded
