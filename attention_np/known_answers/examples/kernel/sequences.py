"""Attention of sequences that are packed, in pages, or seen in parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.known_answers.examples.example import Array, Example
from attention_np.known_answers.examples.kernel.drawn import CoarseDraws, of_attention, of_kernel, of_packed

__all__ = ["examples"]

LAST = "bottom-right"


def examples() -> list[Example]:
    """Every case of packed, paged, selected and merged keys."""
    return [*_packed(), *_paged(), *_selected(), *_merged()]


def _packed() -> list[Example]:
    case = of_packed
    return [
        case("kernel-packed", "Sequences of 5, 17 and 10 tokens.", (0, 5, 22, 32), heads=2),
        case("kernel-packed-causal", "Sequences of 1, 30, 0 and 9 tokens, causal, 4 heads over 2.", (0, 1, 31, 31, 40),
             heads=4, key_heads=2, is_causal=True),
        case("kernel-packed-cross", "More keys than queries in each, causal, aligned bottom-right in each.", (0, 3, 12),
             (0, 9, 33), heads=2, is_causal=True, alignment=LAST),
        case("kernel-packed-decoding", "One query each over 7, 33 and 1 keys, as in decoding a batch.", (0, 1, 2, 3),
             (0, 7, 40, 41), heads=4, key_heads=2),
        case("kernel-packed-window-sink", "A window, a sink and a softcap in packed sequences of 65 and 31 tokens.",
             (0, 65, 96), heads=2, d_k=32, is_causal=True, window=(16, 0), softcap=5.0, query=lambda x: 2 * x,
             sink=np.array([0.0, 1.5])),
        case("kernel-packed-logsumexp-gradient", "The log-sum-exp has a gradient, (h, t) of the whole row.", (0, 5, 22),
             heads=3, d_logsumexp=lambda draws: draws(3, 22)),
    ]  # fmt: skip


def _paged() -> list[Example]:
    """Pages hold numbers that no sample has a right to: they are large, so that a leak shows."""
    case = of_attention

    def stale(count: int, size: int, *used: tuple[int, int]) -> Any:
        """What puts 64 into each slot but the first so many of the pages that are used."""
        slots = np.zeros((count, size), np.bool_)
        for page, filled in used:
            slots[page, :filled] = True
        return lambda x: np.where(slots[:, None, :, None], x, 64.0)

    of_two = stale(6, 8, (4, 8), (1, 3), (0, 8), (5, 8), (2, 1))
    shared = stale(5, 8, (3, 8), (0, 5), (1, 7))
    return [
        case("kernel-paged", "One query each over 11 and 17 keys, in pages of 8 in no order; other slots are stale.",
             batch=2, heads=4, n=1, key=lambda draws: of_two(draws(6, 2, 8, 64)),
             value=lambda draws: of_two(draws(6, 2, 8, 64)), block_table=((4, 1, -1), (0, 5, 2)), key_lengths=(11, 17)),
        case("kernel-paged-shared-prefix",
             "Two samples begin with the same page, causal, 4 queries each at their end: its gradient is of both.",
             batch=2, heads=2, n=4, key=lambda draws: shared(draws(5, 1, 8, 64)),
             value=lambda draws: shared(draws(5, 1, 8, 64)), block_table=((3, 0), (3, 1)), key_lengths=(13, 15),
             is_causal=True, alignment=LAST),
    ]  # fmt: skip


def _selected() -> list[Example]:
    case = of_attention
    draws = CoarseDraws("attention", "kernel-selected, indices")
    top = [sorted(np.argsort(draws(i + 1), kind="stable")[:6].tolist()) for i in range(24)]
    causal = tuple(tuple(row + [-1] * (6 - len(row))) for row in top)
    latent: dict[str, Any] = {"value": None, "value_width": 48, "d_v": 48, "heads": 4, "key_heads": 1}
    return [
        case("kernel-selected", "Each query is told 6 of the keys before it, or all where there are fewer, and -1 "
             "for the rest: the last key has no gradient of theirs.", "scatter at -1", n=24, indices=causal, **latent),
        case("kernel-selected-often",
             "All queries are told the same keys, which are values, too: their gradients are sums over all.",
             "selected keys in common", n=16, m=40, indices=((3, 8, 21, 39),) * 16, **latent),
        case("kernel-selected-empty", "Some queries are told no key, and some one key twice, which counts once.",
             "empty row", "scatter at -1", n=6, m=12, heads=2, key_heads=1,
             indices=((-1, -1, -1), (4, -1, 4), (11, 0, 5), (-1, 7, -1), (-1, -1, -1), (2, 3, 11))),
        case("kernel-selected-sink", "Selected keys and a sink.", "sink that is ignored",
             "gradients of masks and sinks", n=8, m=20, sink=np.array([0.0, 1.0, 2.0, 4.0]),
             indices=tuple(tuple((5 * i + j) % 20 for j in range(i % 4 + 1)) + (-1,) * (3 - i % 4) for i in range(8)),
             **latent),
    ]  # fmt: skip


def _merged() -> list[Example]:
    case = of_attention
    return [
        case("kernel-part-first",
             "20 queries over the first 10 of 20 keys, causal: a part, with a gradient of its log-sum-exp.", n=20, m=10,
             heads=2, is_causal=True, d_logsumexp=lambda draws: draws(1, 2, 20)),
        case("kernel-part-second", "20 queries over the last 10 of 20 keys, causal: the first ten see none.",
             "empty row", n=20, m=10, heads=2, is_causal=True, offset=-10, d_logsumexp=lambda draws: draws(1, 2, 20)),
        case("kernel-parts-of-keys", "16 queries over 64 keys, of which the later ones have the larger scores: a "
             "part that goes back by its own output and log-sum-exp, and not by those of all keys, is wrong.",
             "statistics of a part", n=16, m=64, key=lambda x: x * (1 + (np.arange(64) >= 32)[:, None])),
        _of_merge("kernel-merge-2", "Outputs and log-sum-exps over two parts of the keys.", 2),
        _of_merge("kernel-merge-4", "Four parts, and a gradient of the log-sum-exp.", 4, with_logsumexp=True),
        _of_merge("kernel-merge-far-apart",
                  "Log-sum-exps from -120 to 90: in parts without a maximum, exponentials leave float32.", 3,
                  "large scores", with_logsumexp=True,
                  logsumexps=lambda x: x + np.array([-120.0, 0.0, 90.0])[:, None, None, None]),
        _of_merge("kernel-merge-empty-part",
                  "The second part had no key for the first five queries: minus infinity, and zeros.", 2, "empty row",
                  with_logsumexp=True, logsumexps=lambda x: np.where(_without_keys(x), -np.inf, x),
                  outputs=lambda x: np.where(_without_keys(x[..., 0])[..., None], 0, x)),
    ]  # fmt: skip


def _without_keys(
    x: Array,
) -> Array:
    """The first five queries of the second part, (parts, batch, heads, n)."""
    hidden = np.zeros(x.shape, np.bool_)
    hidden[1, ..., :5] = True
    return hidden


def _of_merge(
    name: str, description: str, parts: int, *tags: str, with_logsumexp: bool = False, **changes: Any
) -> Example:
    draws = CoarseDraws("merge", name)
    inputs = {"outputs": draws(parts, 1, 2, 16, 64), "logsumexps": 2 * draws(parts, 1, 2, 16)}
    inputs["d_output"] = draws(1, 2, 16, 64)
    inputs |= {"d_logsumexp": draws(1, 2, 16)} if with_logsumexp else {}
    return of_kernel(draws, description, tags, inputs, changes)
