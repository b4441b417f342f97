"""Linear attention in the shapes of kernels, and what stands beside it: short convolutions, an indexer's loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Example
from attention_np.known_answers.examples.kernel.drawn import CoarseDraws, of_kernel

__all__ = ["examples"]


def examples() -> list[Example]:
    """Every case of states."""
    return [*_of_states(), *_of_convolutions(), *_of_losses()]


def _of_states() -> list[Example]:
    case = _of_linear_attention
    overflow, strong = "decay that overflows", "gradient of a strong decay"
    tiny = -27.625  # the logarithm of 1e-12, in eight bits

    def strongly(x: Array) -> Any:
        """Every third decay is 1e-12, every seventh zero."""
        t = np.arange(x.shape[-2])[:, None]
        return np.where(t % 7 == 5, -np.inf, np.where(t % 3 == 1, tiny, x))

    return [
        case("kernel-linear", "No decay, heads of 64 by 64.", n=20, heads=2, d_v=64),
        case("kernel-ssd", "A decay of each head and token, 64 by 128, 70 tokens: two chunks of 64.", n=70, decays=1),
        case("kernel-gla", "A decay of each feature, 64 by 128.", n=33, decays=64),
        case("kernel-gated-delta",
             "Decay and delta rule, 64 by 128, 130 tokens: three chunks of 64, states in and out.", n=130, decays=1,
             delta=True),
        case("kernel-kda-heads",
             "A decay of each feature of 3 heads in 2 samples, and the delta rule: none is that of another head.",
             "decay of another head", n=17, batch=2, heads=3, d_k=32, d_v=32, decays=32, delta=True),
        case("kernel-gated-delta-tiny-decays",
             "Decays of 1e-12: the inverse of their product leaves float32 within a few tokens.", overflow, n=40,
             decays=1, delta=True, d_k=32, log_decay=lambda x: np.where(np.arange(40)[:, None] % 3 == 1, tiny, x)),
        case("kernel-kda-tiny-decays", "The same of each feature.", overflow, n=20, decays=32, delta=True, d_k=32,
             d_v=32, log_decay=lambda x: np.where(np.arange(20)[:, None] % 3 == 1, tiny, x)),
        case("kernel-decays-to-zero", "Decays of 1e-12 and of zero: at those nothing is left of the state.", overflow,
             "hidden non-finite", n=24, decays=1, d_k=32, d_v=32, log_decay=strongly),
        case("kernel-gated-delta-strong-decay", "Decays of e^-4 to e^-12: the gradient of the decay is a small "
             "difference, and that of the first is of the first state alone.", strong, n=40, decays=1, delta=True,
             d_k=32, log_decay=lambda x: 4 * x - 4),
        case("kernel-one-token", "A step of decoding, 64 by 128, 4 heads.", n=1, heads=4, decays=1, delta=True),
        case("kernel-delta-alike-keys",
             "Keys that are all alike, of length one: each token rewrites what the last wrote.", n=24, delta=True,
             d_k=32, d_v=32, key=lambda x: np.broadcast_to((np.arange(32) < 16) / 4.0, x.shape).copy()),
        case("kernel-rwkv-7", "A decay of each feature, a probe and a response.", n=17, decays=32, probe=True, d_k=32),
    ]  # fmt: skip


def _of_linear_attention(
    name: str,
    description: str,
    *tags: str,
    n: int,
    batch: int = 1,
    heads: int = 1,
    d_k: int = 64,
    d_v: int = 128,
    decays: int = 0,
    delta: bool = False,
    probe: bool = False,
    **changes: Any,
) -> Example:
    draws, leading = CoarseDraws("linear_attention", name), (batch, heads)
    inputs = {"query": draws(*leading, n, d_k), "key": draws(*leading, n, d_k) / 8, "value": draws(*leading, n, d_v)}
    if decays:
        inputs["log_decay"] = -np.abs(draws(*leading, n, decays)) / 2
    if delta:
        inputs["beta"] = draws.uniform(*leading, n)
    if probe:
        inputs |= {x: draws(*leading, n, d_k) / 8 for x in ("probe", "response")}
    inputs["initial_state"] = draws(*leading, d_k, d_v)
    inputs |= {"d_output": draws(*leading, n, d_v), "d_final_state": draws(*leading, d_k, d_v)}
    return of_kernel(draws, description, tags, inputs, changes)


def _of_convolutions() -> list[Example]:
    case, shorter = _of_short_conv, "convolution of few tokens"
    return [
        case("kernel-width-4", "20 tokens of 64 features, a kernel of 4, states in and out, 2 samples.", n=20, batch=2),
        case("kernel-one-token", "One token, a kernel of 4: two of the three that came before stay.", shorter, n=1),
        case("kernel-two-tokens", "Two tokens, a kernel of 4: one of those before stays.", shorter, n=2, batch=2),
        case("kernel-three-tokens", "Three tokens, a kernel of 4: just as many as the state has.", n=3),
        case("kernel-two-tokens-no-state", "Two tokens, a kernel of 4, nothing before.", shorter, n=2, state=False),
        case("kernel-packed", "Sequences of 1, 2 and 6 tokens in a row.", n=9, segments=(0, 1, 1, *[2] * 6)),
    ]  # fmt: skip


def _of_short_conv(
    name: str, description: str, *tags: str, n: int, batch: int = 1, state: bool = True, **changes: Any
) -> Example:
    draws = CoarseDraws("short_conv", name)
    inputs = {"x": draws(batch, n, 64), "w": draws(4, 64), "b": draws(64)}
    inputs |= {"initial_state": draws(batch, 3, 64)} if state else {}
    inputs |= {"d_output": draws(batch, n, 64), "d_final_state": draws(batch, 3, 64)}
    return of_kernel(draws, description, tags, inputs, changes)


def _of_losses() -> list[Example]:
    draws = CoarseDraws("cross_entropy", "kernel-indexer-far-below")
    shares = np.array([4.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]) / 8
    inputs = {
        "scores": 4 * draws(1, 12, 8) - 120 * (np.arange(8) == 1),
        "target": np.broadcast_to(shares, (1, 12, 8)).copy(),
        "d_output": draws(1, 12),
    }
    return [
        of_kernel(draws, "The loss of an indexer whose weights are far below what its target asks for, near e^-120: "
                  "their gradient is all of the target's share.", ("large scores", "loss that is clipped"), inputs, {}),
    ]  # fmt: skip
