"""The cases of dot_product with what stands between scores and weights today: softcap, sink, biases by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases, masks
from attention_np.known_answers.examples.dot_product import of_dot_product
from attention_np.known_answers.examples.example import Array, Draws, Example

__all__ = ["examples"]

LOWEST = -65504.0  # of float16: with a negative score, minus infinity there


def examples() -> list[Example]:
    """Every case of the score pipeline, and the numbers that kernels have gone wrong with."""

    def case(name: str, description: str, *tags: str, **changes: Any) -> Example:
        return of_dot_product(name, description, *tags, **{"leading": (2, 2), "n": 6, **changes})

    def log_gates(draws: Draws, _: Any) -> Array:
        return -np.log1p(np.exp(draws(2, 2, 6)))

    some = masks.causal(6) & (np.arange(6) != 2)[:, None]  # the third query sees nothing
    hidden = ~masks.causal(6)
    hidden[3] = True
    return [
        case("softcap", "Scores are 1.5 tanh(s / 1.5): most are bent.", "softcap", softcap=1.5, scale=1.0),
        case(
            "softcap-saturated",
            "Scores up to about twenty times the softcap, where tanh is flat and its slope a small difference.",
            "softcap",
            "large scores",
            softcap=2.0,
            query=lambda _, x: 16 * x,
        ),
        case(
            "softcap-before-mask",
            "A mask is not capped: what it hides has no weight, whatever the softcap.",
            "softcap",
            "mask",
            softcap=0.5,
            mask=masks.sliding_window(6, left=2),
        ),
        case("sink", "A sink for each head: one more logit, without a value.", "sink", sink=lambda draws, _: draws(2)),
        case(
            "softmax-off-by-one",
            "A sink of zero: exp(s) over one more than their sum.",
            "sink",
            "broadcast",
            sink=np.zeros(1),
        ),
        case(
            "sink-and-no-key",
            "The third query sees no key: its output is zero, its log-sum-exp the sink. Softmax is not scaled for it.",
            "sink",
            "mask",
            scale=0.3,
            sink=lambda draws, _: draws(2),
            mask=some,
        ),
        case(
            "sink-far-ahead",
            "The sink is about 30 above the scores: the weights are what it leaves.",
            "sink",
            "large scores",
            sink=np.array([30.0, 25.0]),
        ),
        case(
            "alibi-slopes",
            "ALiBi of both directions, with the gradient of its slopes.",
            "position bias",
            slopes=np.array([0.5, 0.25]),
        ),
        case(
            "alibi-of-four-heads",
            "The slopes of four heads, causal, more keys than queries.",
            "position bias",
            "causal",
            leading=(2, 4),
            m=9,
            is_causal=True,
            slopes=biases.alibi_slopes(4),
        ),
        case(
            "t5-table",
            "A learned number for each of 8 buckets of distances and each head, of keys before and behind.",
            "position bias",
            n=9,
            m=11,
            max_distance=7,
            table=lambda draws, _: draws(8, 2),
        ),
        case(
            "t5-table-causal",
            "Buckets of the keys before alone, some of them empty.",
            "position bias",
            "causal",
            n=9,
            m=9,
            is_causal=True,
            bidirectional=False,
            table=lambda draws, _: draws(8, 2),
        ),
        case(
            "shaw-embedding",
            "Each query meets a vector for the distance, too, up to two to each side.",
            "position bias",
            embedding=lambda draws, _: draws(5, 5),
        ),
        case(
            "forgetting-gates",
            "Between a key and a later query lies the product of the gates on the way.",
            "position bias",
            "causal",
            is_causal=True,
            log_f=log_gates,
        ),
        case(
            "whole-pipeline",
            "Scale, softcap, bias, mask, sink, in this order.",
            "softcap",
            "sink",
            "position bias",
            "mask",
            scale=0.7,
            softcap=2.0,
            max_distance=4,
            table=lambda draws, _: draws(8, 2),
            mask=lambda draws, _: draws.mask(2, 2, 6, 6),
            sink=lambda draws, _: draws(2),
        ),
        case(
            "log-sum-exp-far-below-zero",
            "Scores near -120: the exponential of the log-sum-exp is zero in float32, whose least is near -88.7.",
            "large scores",
            query=lambda _, x: np.abs(x) + 3,
            key=lambda _, x: -4 * np.abs(x) - 8,
        ),
        case(
            "lowest-number-as-mask",
            "The lowest number of float16 hides what a mask would, and all of the fourth row, which is no empty row.",
            "bias",
            "large scores",
            bias=np.where(hidden, LOWEST, 0.0),
        ),
        case(
            "outliers",
            "As activations are, not as Gaussians: two features are large in every token, and the first token draws "
            "most of the weight.",
            "causal",
            "large scores",
            leading=(2, 2),
            n=16,
            m=16,
            d_k=8,
            d_v=8,
            is_causal=True,
            query=lambda _, x: x + 6 * (np.arange(8) == 3) + 3 * (np.arange(8) == 5),
            key=lambda _, x: x + 5 * ((np.arange(8) == 3) * (1 + (np.arange(16) == 0))[:, None]),
            value=lambda _, x: x * np.where(np.arange(16) == 0, 1 / 16, 1)[:, None] * np.where(np.arange(8) == 3, 8, 1),
        ),
        of_dot_product(
            "values-narrower-than-keys",
            "Keys of 192 features and values of 128, as in multi-head latent attention.",
            "tile",
            n=5,
            m=7,
            d_k=192,
            d_v=128,
            leading=(),
        ),
    ]
