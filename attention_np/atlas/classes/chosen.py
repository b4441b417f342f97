"""Attention to the blocks of keys that an indexer chooses: Qwen4 and MiniMax M3."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, rotation
from attention_np.atlas.classes.compressed import check_choice, plain
from attention_np.atlas.classes.decoders import QKVO, Own
from attention_np.atlas.recipes._steps import in_heads, turned


def shown_by(mask: Any) -> Any:
    """Who sees whom by a mask of booleans, or of zeros and what hides."""
    return mask if mask.dtype.kind == "b" else mask == 0


def largest(m: Mirror, scores: Any, k: int) -> Any:
    """True at the k largest scores of each row; a tie at their border is refused."""
    check_choice(m, scores, k)
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, np.argsort(-scores, axis=-1, kind="stable")[..., :k], True, axis=-1)
    return chosen


def qwen4(m: Mirror, a: Arguments) -> dict[str, Any]:
    """Qwen4: of the blocks of what a query sees it looks at those whose mean key is the nearest, and at the rest."""
    index, x, mask = m.indexer, a.hidden_states, np.asarray(a.attention_mask)
    cos, sin = (np.broadcast_to(y, (len(x), *np.shape(y)[1:]))[:, -x.shape[1] :] for y in a.position_embeddings)
    shown, d, size = shown_by(mask), index.index_head_dim, index.compress_ratio
    made = plain(index.index_qk_proj(x))
    query, keys = made[..., : index.index_n_heads * d], made[..., index.index_n_heads * d :]  # (b, n, h * d), (b, n, d)
    query = plain(turned(index.q_layernorm(in_heads(query, d)), cos[:, None], sin[:, None]))  # (b, h, n, d)
    selected = np.zeros(shown.shape, bool)
    for b, _, i in np.ndindex(shown.shape[:3]):
        seen = np.flatnonzero(shown[b, 0, i])
        blocks = seen[: len(seen) // size * size].reshape(-1, size)
        selected[b, 0, i, seen[blocks.size :]] = True
        if len(blocks):
            key = index.k_layernorm(keys[b, blocks].mean(axis=1))
            key = plain(turned(key, cos[b, blocks[:, 0]], sin[b, blocks[:, 0]]))  # (blocks, d)
            scores = np.maximum(query[b, :, i] @ key.T, 0.0).sum(axis=0)
            selected[b, 0, i, blocks[largest(m, scores, index.block_topk)]] = True
    lowest = False if mask.dtype.kind == "b" else np.finfo(mask.dtype).min
    return {"attention_mask": np.where(selected, mask, lowest), "position_embeddings": (cos, sin)}


def minimax(m: Mirror, a: Arguments) -> dict[str, Any]:
    """MiniMax M3: each head of keys has blocks of its own, by their largest scores, and the last few before a query."""
    if not m.has("indexer"):
        return {}
    index, x, n = m.indexer, a.hidden_states, a.hidden_states.shape[1]
    places = np.broadcast_to(np.arange(n) if a.position_ids is None else np.asarray(a.position_ids), (len(x), n))
    if index.local_blocks > index.topk_blocks:
        raise UnknownLayer(f"{m._about} is not known with more blocks before a query than it looks at")
    cos, sin = (np.asarray(y)[:, None, :, : index.head_dim] for y in a.position_embeddings)
    query = plain(turned(index.q_norm(in_heads(index.q_proj(x), index.head_dim)), cos, sin))  # (b, h, n, d)
    key = plain(turned(index.k_norm(in_heads(index.k_proj(x), index.head_dim)), cos, sin))  # (b, 1, n, d)
    blocks = -(-n // index.block_size)
    later = np.arange(n) > places[:, None, :, None]  # (b, 1, n, n)
    scores = np.full((*query.shape[:3], blocks * index.block_size), -np.inf)
    scores[..., :n] = np.where(later, -np.inf, query @ key.swapaxes(-1, -2))
    scores = scores.reshape(*query.shape[:3], blocks, index.block_size).max(axis=-1)  # (b, h, n, blocks)
    back = (places // index.block_size)[:, None, :, None] - np.arange(blocks)
    local = (back >= 0) & (back < index.local_blocks)
    boosted = np.where(local, scores.max() + 1.0, scores)
    chosen = largest(m, boosted, min(index.topk_blocks, blocks)) & (boosted > -np.inf)
    kept = np.repeat(chosen, index.block_size, axis=-1)[..., :n]
    kept = np.repeat(kept, m.config.num_attention_heads // kept.shape[1], axis=1)
    shown = ~later if a.attention_mask is None else shown_by(np.asarray(a.attention_mask))
    return {"attention_mask": np.where(kept & shown, 0.0, np.finfo(x.dtype).min)}


READINGS = {
    "b29f598d1d": Own(QKVO, norms="q_norm k_norm", gate="query", before=qwen4),
    "60a9760f7c": Own(QKVO, norms="q_norm k_norm", before=minimax),
}
PARTS = {"9256377eed": Norm(epsilon="eps", less_one=True), "91f62899e1 aa1343db00": lambda m: None}
FUNCTIONS = {"ba5b6d583f": rotation(), "ecdae08c5e": rotation(axis=-3)}
