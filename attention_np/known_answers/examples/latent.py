"""The cases of latent attention. Their answers are those of both forms, with bounds that either keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Draws, Example, Shape, case_of, filled

__all__ = ["examples"]

WIDTHS = (4, 2, 6, 3)  # of queries without and with positions, latents, and values


def _case(
    name: str,
    description: str,
    *tags: str,
    heads: int = 2,
    positions: tuple[int, int] = (3, 5),
    leading: Shape = (2,),
    of_latents: Shape | None = None,
    rotary: bool = True,
    more: dict[str, Shape] | None = None,
    **changes: Any,
) -> Example:
    draws, (d_n, d_r, r, d_v), (n, m) = Draws("latent", name), WIDTHS, positions
    of_latents = leading if of_latents is None else of_latents
    shapes = {
        "query": (*leading, heads, n, d_n),
        "query_rotary": (*leading, heads, n, d_r),
        "latent": (*of_latents, m, r),
        "key_rotary": (*of_latents, m, d_r),
        "w_key": (heads, r, d_n),
        "w_value": (heads, r, d_v),
        "d_output": (*leading, heads, n, d_v),
        **(more or {}),
    }
    inputs = {key: draws(*shape) for key, shape in shapes.items() if rotary or "rotary" not in key}
    return case_of(draws, description, tags, inputs, changes)


def examples() -> list[Example]:
    """Every case of latent."""
    hidden = np.array([[False] * 5, [True] * 5, [False, False, True, False, False]])  # (n, m): one query sees nothing
    padded = np.arange(5) == 4
    bias: dict[str, Shape] = {"bias": (2, 3, 5)}
    return [
        _case("plain", "Two heads of 3 queries over 5 latents, in a batch of 2."),
        _case("without-positions", "No part of queries and keys carries the position.", rotary=False),
        _case("causal", "4 tokens attend to themselves and those before.", positions=(4, 4), is_causal=True),
        _case("one-query", "Decoding: one query of four heads, over 7 latents.", heads=4, positions=(1, 7), leading=()),
        _case("mask", "A mask, and a query that it lets see nothing.", "empty row", mask=~hidden),
        _case("scale", "A scale that is given, as DeepSeek's with the square of YaRN's amplitude.", scale=0.875),
        _case("shared-latents", "Latents that the samples of a batch share.", "broadcast", of_latents=()),
        _case("biased", "Scores that are capped, and a bias of each head.", more=bias, softcap=2.0),
        _case(
            "sink",
            "One more logit of each head, and a query that sees nothing else.",
            more={"sink": (2,)},
            mask=~hidden,
        ),
        _case("large-scores", "Queries eight times as large.", "large scores", query=lambda x: 8 * x),
        _case(
            "nan-behind-the-mask",
            "The last latent and its rotary key hold NaN, and nobody sees them.",
            "hidden non-finite",
            mask=~padded,
            latent=filled(padded[:, None], np.nan),
            key_rotary=filled(padded[:, None], np.nan),
        ),
    ]
