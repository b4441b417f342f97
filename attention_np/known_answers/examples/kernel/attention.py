"""Attention of heads: widths, groups, alignments, windows, and what is added to scores, one by one and together."""

from __future__ import annotations

from attention_np.known_answers.examples.example import Example
from attention_np.known_answers.examples.kernel.drawn import of_attention

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case of whole sequences."""
    case = of_attention
    return [
        case("kernel-d64", "Two samples, two heads of 64 features, no option.", batch=2, heads=2),
        case("kernel-d128", "Heads of 128 features.", heads=2, d_k=128),
        case("kernel-d256", "Heads of 256 features.", d_k=256),
        case("kernel-causal-64", "64 queries and keys, causal: one tile of 64.", n=64, is_causal=True),
        case("kernel-causal-65", "65: one more than a tile of 64.", n=65, is_causal=True),
        case("kernel-causal-127", "127: one less than a tile of 128.", n=127, is_causal=True),
        case(
            "kernel-causal-more-keys",
            "17 queries over 33 keys, aligned top-left: the last 16 keys are seen by none.",
            n=17,
            m=33,
            is_causal=True,
        ),
        case(
            "kernel-causal-bottom-right",
            "17 queries over 33 keys, aligned bottom-right: the last query sees all keys.",
            n=17,
            m=33,
            is_causal=True,
            alignment="bottom-right",
        ),
        case(
            "kernel-groups-of-4",
            "8 heads of queries over 2 of keys and values: those that follow one another share one.",
            heads=8,
            key_heads=2,
            is_causal=True,
        ),
        case(
            "kernel-one-query",
            "One query of each of 8 heads over 129 keys of two, as in decoding.",
            n=1,
            m=129,
            heads=8,
            key_heads=2,
        ),
    ]
