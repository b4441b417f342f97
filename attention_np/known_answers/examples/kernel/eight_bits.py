"""Attention of arrays of eight bits, with the scales that they are to be multiplied by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Example, Shape
from attention_np.known_answers.examples.kernel.drawn import CoarseDraws, of_attention, of_bits
from attention_np.known_answers.formats import DESCALE, EIGHT_BITS, FORMATS

__all__ = ["examples"]

FULL = 64.0  # the deviation of the numbers, so that none of five deviations is beyond 448
ALL = ("query", "key", "value", "d_output")


def examples() -> list[Example]:
    """Every case."""
    case, pages, last = _case, (6, 2, 8, 64), "bottom-right"
    return [
        case("per-tensor", "One scale of each array.", ALL, (1, 1, 1, 1), heads=2),
        case("per-head", "Scales of each sample and head of keys, which its heads of queries share, causal.", ALL,
             (2, 2, 1, 1), batch=2, heads=4, key_heads=2, n=20, is_causal=True),
        case("per-block", "A scale of every 16 tokens.", ALL, (1, 2, 2, 1), heads=2, n=32),
        case("softcap-window", "A softcap and a window; the gradient comes in bfloat16.", ALL[:3], (1, 1, 1, 1), n=33,
             softcap=4.0, is_causal=True, window=(12, 0)),
        case("cache", "Queries in a half format, one each over keys of eight bits in pages, with a scale of each head.",
             ALL[1:3], (1, 2, 1, 1), "float16", "bfloat16", batch=2, heads=4, n=1, key=lambda draws: draws(*pages),
             value=lambda draws: draws(*pages), block_table=((4, 1, -1), (0, 5, 2)), key_lengths=(11, 17)),
        case("cache-blocks", "The same in one piece, with a scale of each token and of 128 of its 256 features.",
             ALL[1:3], (1, 1, 20, 2), "bfloat16", heads=2, key_heads=1, n=4, m=20, d_k=256, is_causal=True,
             alignment=last),
    ]  # fmt: skip


def _case(name: str, description: str, arrays: tuple[str, ...], scales: Shape, *dtypes: str, **changes: Any) -> Example:
    """Numbers and scales have so few bits that their products are exact in bfloat16."""
    example = of_attention(f"kernel-eight-bits-{name}", description, **changes)
    draws = CoarseDraws("attention", f"{example.name}, descales")
    inputs = example.inputs | {x + DESCALE: _descales(draws, scales) for x in arrays}
    example = replace(example, inputs=inputs, dtypes=dtypes or (EIGHT_BITS,))
    bits = {x: FORMATS[example.format_of(x, example.dtypes[0])].precision for x in arrays}
    return replace(example, inputs=inputs | {x: of_bits(FULL * inputs[x], bits[x]) for x in arrays})


def _descales(draws: CoarseDraws, shape: Shape) -> Array:
    """Eighths from 8 to 15, times one of two powers of two."""
    eighths, halves = (np.floor(count * draws.uniform(*shape)) for count in (8, 2))
    found: Array = (8 + eighths) / 16 / 2**halves / FULL
    return found
