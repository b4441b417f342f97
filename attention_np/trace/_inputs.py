"""Tokens and small numbers to trace an op on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_integer
from attention_np._lib.text import tokenise

MOST_FEATURES = 64


def as_tokens(tokens: str | Sequence[str]) -> tuple[str, ...]:
    """The words of a sentence, of which each Chinese character is one; or `tokens` as they are."""
    if isinstance(tokens, str):
        words = tuple(tokenise(tokens))
        if not words:
            raise ValueError(f"the sentence has no words: {tokens!r}")
        return words
    words = tuple(tokens)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"tokens must be a sentence or a list of words, not of {type(word).__name__}")
    if not words:
        raise ValueError("tokens must hold at least one word")
    return words


def as_width(name: str, width: int) -> int:
    """`width` as a number of features that can be written down."""
    width = as_integer(name, width, least=1)
    if width > MOST_FEATURES:
        raise ValueError(f"{name} must be at most {MOST_FEATURES}, to be written down, not {width}")
    return width


def small_numbers(
    seed: int, role: str, names: Sequence[str], width: int, step: float = 0.5, largest: float = 2.0
) -> npt.NDArray[np.float64]:
    """A row of `width` multiples of `step` for each name: the same for the same name, seed and role, everywhere.

    They come from a hash and not from a generator, whose streams may differ between versions of NumPy.
    """
    steps = round(largest / step)
    rows: list[Any] = []
    for name in names:
        digest = hashlib.shake_128(f"{seed}/{role}/{name}".encode()).digest(2 * width)
        rows.append(np.frombuffer(digest, "<u2").astype(np.int64) % (2 * steps + 1) - steps)
    return np.array(rows, dtype=np.float64).reshape(len(names), width) * step


def loss_gradient(seed: int, names: Sequence[str], width: int) -> npt.NDArray[np.float64]:
    """The gradient of a loss with respect to the output: whole numbers that are small."""
    places = [f"{place} {name}" for place, name in enumerate(names)]  # equal tokens need not have equal gradients
    return small_numbers(seed, "loss", places, width, step=1.0, largest=1.0)


def numbered(count: int) -> list[str]:
    """Names for that many rows, which have no other."""
    return [str(number) for number in range(1, count + 1)]
