"""The cases of dot_product with what stands between scores and weights: biases, softcap, sink."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_np import biases, masks
from attention_np.known_answers.examples.dot_product import of_dot_product
from attention_np.known_answers.examples.example import Array, Draws, Example

__all__ = ["examples"]

LOWEST = -65504.0  # of float16: with a negative score, minus infinity there


def examples() -> list[Example]:
    """Every case of what stands between scores and weights."""
    return [*_biased(), *_of_today(), *_weighed()]


def _biased() -> list[Example]:
    """Every case with a bias as an array."""
    case = of_dot_product
    distance = np.arange(6.0) - np.arange(6.0)[:, None]  # (6, 6), j - i
    slopes = np.array([0.5, 0.25])[:, None, None]

    def with_infinities(draws: Draws) -> Array:
        bias = draws(2, 4, 6)
        bias[0, 1, [0, 4]] = -np.inf
        bias[1, 2, 1:] = -np.inf
        return bias

    def empty(draws: Draws) -> Array:
        bias = draws(4, 6)
        bias[2] = -np.inf
        return bias

    def at_limit(draws: Draws) -> Array:
        bias = draws(4, 6)
        bias[0, 3] = bias[2, 1] = bias[2, 5] = np.inf
        bias[3, :2] = -np.inf, np.inf
        return bias

    return [
        case("bias-of-each-pair", "A bias of the shape of the scores.", bias=lambda draws: draws(2, 4, 6)),
        case(
            "bias-of-each-key",
            "A bias of the keys: its gradient is summed over queries and batch.",
            "broadcast",
            bias=lambda draws: draws(6),
        ),
        case(
            "bias-of-each-head",
            "A bias of each head and query, the same for all keys: softmax does not see it, and its gradient is zero.",
            "broadcast",
            leading=(2, 3),
            bias=lambda draws: draws(3, 4, 1),
        ),
        case(
            "alibi",
            "A causal bias that falls with distance, with a slope for each of 2 heads (ALiBi).",
            "broadcast",
            n=6,
            leading=(2, 2),
            is_causal=True,
            bias=slopes * distance,
        ),
        case(
            "bias-and-mask",
            "A bias and a mask.",
            bias=lambda draws: draws(4, 6),
            mask=lambda draws: draws.mask(2, 4, 6),
        ),
        case("large-bias", "A bias of up to about 200.", "large scores", bias=lambda draws: 64 * draws(2, 4, 6)),
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


def _of_today() -> list[Example]:
    """Softcaps, sinks, biases by position, and the numbers that kernels have gone wrong with."""
    case = partial(of_dot_product, leading=(2, 2), n=6)
    some = masks.causal(6) & (np.arange(6) != 2)[:, None]  # the third query sees nothing
    hidden = ~masks.causal(6)
    hidden[3] = True
    return [
        case("softcap", "Scores are 1.5 tanh(s / 1.5): most are bent.", softcap=1.5, scale=1.0),
        case(
            "softcap-saturated",
            "Scores up to about twenty times the softcap, where tanh is flat and its slope a small difference.",
            "large scores",
            softcap=2.0,
            query=lambda x: 16 * x,
        ),
        case(
            "softcap-before-mask",
            "A mask is not capped: what it hides has no weight, whatever the softcap.",
            softcap=0.5,
            mask=masks.sliding_window(6, left=2),
        ),
        case("sink", "A sink for each head: one more logit, without a value.", sink=lambda draws: draws(2)),
        case(
            "softmax-off-by-one", "A sink of zero: exp(s) over one more than their sum.", "broadcast", sink=np.zeros(1)
        ),
        case(
            "sink-and-no-key",
            "The third query sees no key: its output is zero, its log-sum-exp the sink. Softmax is not scaled for it.",
            scale=0.3,
            sink=lambda draws: draws(2),
            mask=some,
        ),
        case(
            "sink-far-ahead",
            "The sink is about 30 above the scores: the weights are what it leaves.",
            "large scores",
            sink=np.array([30.0, 25.0]),
        ),
        case(
            "alibi-slopes", "ALiBi of both directions, with the gradient of its slopes.", slopes=np.array([0.5, 0.25])
        ),
        case(
            "alibi-of-four-heads",
            "The slopes of four heads, causal, more keys than queries.",
            leading=(2, 4),
            m=9,
            is_causal=True,
            slopes=biases.alibi_slopes(4),
        ),
        case(
            "t5-table",
            "A learned number for each of 8 buckets of distances and each head, of keys before and behind.",
            n=9,
            m=11,
            max_distance=7,
            table=lambda draws: draws(8, 2),
        ),
        case(
            "t5-table-causal",
            "Buckets of the keys before alone, some of them empty.",
            n=9,
            m=9,
            is_causal=True,
            bidirectional=False,
            table=lambda draws: draws(8, 2),
        ),
        case(
            "shaw-embedding",
            "Each query meets a vector for the distance, too, up to two to each side.",
            embedding=lambda draws: draws(5, 5),
        ),
        case(
            "table-by-index",
            "A learned number for each of 9 rows and each head; some rows are looked up often, the last never.",
            index=lambda draws: np.floor(8 * draws.rng.random((6, 6)) ** 2),
            table=lambda draws: draws(9, 2),
        ),
        case(
            "products-of-queries-by-index",
            "Each query meets the vector of its own head that an index says.",
            scale=0.4,
            index=lambda draws: np.floor(5 * draws.rng.random((6, 6))),
            embedding=lambda draws: draws(2, 5, 5),
        ),
        case(
            "products-of-keys-by-index",
            "Each key meets the vector that an index says, and the scale counts.",
            scale=0.4,
            of="key",
            softcap=2.0,
            index=lambda draws: np.floor(5 * draws.rng.random((6, 6))),
            embedding=lambda draws: draws(5, 5),
        ),
        case(
            "scale-of-each-query",
            "A scale of each query and head, of which one is zero and some are negative, with its gradient.",
            mask=lambda draws: draws.mask(2, 2, 6, 6),
            scale=lambda draws: draws(2, 6, 1) * (np.arange(6) != 2)[:, None],
        ),
        case(
            "biases-of-all-kinds",
            "Three biases in a list, and a scale of each head, which those of products count.",
            of="key",
            softcap=1.5,
            index=lambda draws: np.floor(4 * draws.rng.random((6, 6))),
            bias=lambda draws: draws(6),
            table=lambda draws: draws(5),
            embedding=lambda draws: draws(4, 5),
            scale=lambda draws: draws(2, 1, 1),
        ),
        case(
            "forgetting-gates",
            "Between a key and a later query lies the product of the gates on the way.",
            is_causal=True,
            log_f=lambda draws: -np.log1p(np.exp(draws(2, 2, 6))),
        ),
        case(
            "whole-pipeline",
            "Scale, softcap, bias, mask, sink, in this order.",
            scale=0.7,
            softcap=2.0,
            max_distance=4,
            table=lambda draws: draws(8, 2),
            mask=lambda draws: draws.mask(2, 2, 6, 6),
            sink=lambda draws: draws(2),
        ),
        case(
            "log-sum-exp-far-below-zero",
            "Scores near -120: the exponential of the log-sum-exp is zero in float32, whose least is near -88.7.",
            "large scores",
            query=lambda x: np.abs(x) + 3,
            key=lambda x: -4 * np.abs(x) - 8,
        ),
        case(
            "lowest-number-as-mask",
            "The lowest number of float16 hides what a mask would, and all of the fourth row, which is no empty row.",
            "large scores",
            bias=np.where(hidden, LOWEST, 0.0),
        ),
        case(
            "outliers",
            "As activations are, not as Gaussians: two features are large in every token, and the first token draws "
            "most of the weight.",
            "large scores",
            leading=(2, 2),
            n=16,
            m=16,
            d_k=8,
            d_v=8,
            is_causal=True,
            query=lambda x: x + 6 * (np.arange(8) == 3) + 3 * (np.arange(8) == 5),
            key=lambda x: x + 5 * ((np.arange(8) == 3) * (1 + (np.arange(16) == 0))[:, None]),
            value=lambda x: x * np.where(np.arange(16) == 0, 1 / 16, 1)[:, None] * np.where(np.arange(8) == 3, 8, 1),
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


def _weighed() -> list[Example]:
    """Weights that are not by softmax, each with something else of the pipeline. No score is near a kink."""
    case = partial(of_dot_product, leading=(2, 2), n=6)
    window = masks.sliding_window(6, left=2) & (np.arange(6) != 3)[:, None]  # the fourth query sees nothing
    return [
        case(
            "weights-by-sigmoid",
            "Each weight is the sigmoid of its score, with a bias of minus the logarithm of the number of keys.",
            weights_by={"kind": "sigmoid"},
            bias=np.full((1, 1), -np.log(6.0)),
        ),
        case(
            "weights-by-silu",
            "Each weight is the silu of its score, which may be negative, causal.",
            weights_by={"kind": "silu"},
            is_causal=True,
        ),
        case(
            "weights-by-sparsemax",
            "Sparsemax: most keys have no weight, and neither they nor their values have a gradient from that query.",
            weights_by={"kind": "sparsemax"},
            scale=1.0,
            mask=lambda draws: draws.mask(2, 2, 6, 6),
        ),
        case(
            "weights-by-entmax",
            "Entmax with alpha 1.5 of bent scores; a query sees nothing.",
            "empty row",
            weights_by={"kind": "entmax", "alpha": 1.5},
            softcap=2.0,
            mask=window,
        ),
        case(
            "weights-by-softpick",
            "Softpick: scores below zero have no weight, and a gradient all the same; a query sees nothing.",
            "empty row",
            weights_by={"kind": "softpick"},
            mask=window,
            bias=lambda draws: draws(2, 6, 6),
        ),
        case(
            "weights-by-stick-breaking",
            "Stick-breaking over the keys before, from the nearest one: the first query sees none.",
            "empty row",
            weights_by={"kind": "stick_breaking"},
            mask=masks.causal(6, offset=-1),
        ),
    ]
