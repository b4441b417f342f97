"""Attention of heads in forward mode, and its gradients' gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from attention_np.known_answers.examples.example import Example
from attention_np.known_answers.examples.kernel.drawn import CoarseDraws, of_attention

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case with tangents."""
    case = partial(_with_tangents, n=9, d_k=32)
    return [
        case("plain", "Two heads, the tangent of the output and the products of the Hessian.", heads=2),
        case("causal", "Causal.", n=17, is_causal=True),
        case("groups", "4 heads over 2, causal, aligned bottom-right.", heads=4, key_heads=2, m=12, is_causal=True,
             alignment="bottom-right"),
        case("window", "A window of 3 keys before and 2 behind.", n=17, window=(3, 2)),
        case("packed", "Two samples of other lengths.", batch=2, m=12, key_lengths=(12, 7)),
    ]  # fmt: skip


def _with_tangents(name: str, description: str, **changes: Any) -> Example:
    example = of_attention(f"kernel-tangents-{name}", description, **changes)
    draws = CoarseDraws("attention", f"{example.name}, tangents")
    tangents = {f"v_{x}": draws(*example.inputs[x].shape) for x in ("query", "key", "value")}
    return replace(example, inputs=example.inputs | tangents)
