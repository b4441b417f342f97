"""The cases of dot_product with a bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.dot_product import of_dot_product
from attention_np.known_answers.examples.example import Array, Draws, Example

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case with a bias."""

    def case(name: str, description: str, *tags: str, **changes: Any) -> Example:
        return of_dot_product(name, description, "bias", *tags, **changes)

    distance = np.arange(6.0) - np.arange(6.0)[:, None]  # (6, 6), j - i
    slopes = np.array([0.5, 0.25])[:, None, None]

    def with_infinities(draws: Draws, _: Any) -> Array:
        bias = draws(2, 4, 6)
        bias[0, 1, [0, 4]] = -np.inf
        bias[1, 2, 1:] = -np.inf
        return bias

    def empty(draws: Draws, _: Any) -> Array:
        bias = draws(4, 6)
        bias[2] = -np.inf
        return bias

    def at_limit(draws: Draws, _: Any) -> Array:
        bias = draws(4, 6)
        bias[0, 3] = bias[2, 1] = bias[2, 5] = np.inf
        bias[3, :2] = -np.inf, np.inf
        return bias

    return [
        case("bias-of-each-pair", "A bias of the shape of the scores.", bias=lambda draws, _: draws(2, 4, 6)),
        case(
            "bias-of-each-key",
            "A bias of the keys: its gradient is summed over queries and batch.",
            "broadcast",
            bias=lambda draws, _: draws(6),
        ),
        case(
            "bias-of-each-head",
            "A bias of each head and query, the same for all keys: softmax does not see it, and its gradient is zero.",
            "broadcast",
            leading=(2, 3),
            bias=lambda draws, _: draws(3, 4, 1),
        ),
        case(
            "alibi",
            "A causal bias that falls with distance, with a slope for each of 2 heads (ALiBi).",
            "broadcast",
            "causal",
            n=6,
            leading=(2, 2),
            is_causal=True,
            bias=slopes * distance,
        ),
        case(
            "bias-and-mask",
            "A bias and a mask.",
            "mask",
            bias=lambda draws, _: draws(4, 6),
            mask=lambda draws, _: draws.mask(2, 4, 6),
        ),
        case("large-bias", "A bias of up to about 200.", "large scores", bias=lambda draws, _: 64 * draws(2, 4, 6)),
        case("bias-minus-infinity", "Minus infinity in the bias hides a pair as a mask does.", bias=with_infinities),
        case(
            "bias-empty-row", "A row of the bias is minus infinity: zeros, and zero gradient.", "empty row", bias=empty
        ),
        case(
            "bias-plus-infinity",
            "Plus infinity takes all the weight of its query, in equal shares; such a row has no gradient to scores.",
            "infinite scores",
            bias=at_limit,
        ),
    ]
