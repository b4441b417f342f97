"""Attention to the blocks of keys that an indexer chooses: Qwen4, MiniMax M3 and GLM-5 Next."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import indexer, masks, softmax
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, rotation
from attention_np.atlas.classes.compressed import Compressed, check_choice, plain
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


class Pooled(Compressed):
    """A reading of latent attention of GLM-5 Next: the mask says which tokens there are, and an indexer all else."""

    def _selected(self, m: Mirror, a: Arguments) -> Any:
        x = a.hidden_states
        chosen = pooled(m, plain(x), np.asarray(a.attention_mask)) if m.has("indexer") else a.prev_topk_indices
        selected = masks.selected(np.where(chosen < x.shape[1], chosen, -1), x.shape[1])[:, None]
        if m.config._attn_implementation == "sdpa":
            return selected
        return np.where(selected, 0.0, np.finfo(x.dtype).min)


def pooled(m: Mirror, x: Any, there: Any) -> Any:
    """The tokens (b, n, k) of the blocks whose pooled key is the nearest, and the rest behind the last block; or -1."""
    index, (b, n), size = m.indexer, x.shape[:2], m.indexer.index_kpool
    if there.dtype.kind != "b":
        raise UnknownLayer(f"{m._about} takes a mask of booleans")
    rows, first = np.arange(b)[:, None, None], np.where(there.any(axis=-1), there.argmax(axis=-1), n)
    tokens = first[:, None, None] + np.arange(-(-n // size) * size).reshape(1, -1, size)  # (b, blocks, size)
    inside = there[rows, np.minimum(tokens, n - 1)] & (tokens < n)
    kept = inside.all(axis=-1).any(axis=0)  # blocks that are whole in any sample
    tokens, inside = np.where(inside, tokens, -1)[:, kept], inside[:, kept]
    gate = plain(x @ index.index_kpool_compress_gate.swapaxes(0, 1))[rows, tokens] + plain(
        index.index_kpool_compress_ape
    )
    weights, _ = softmax.forward(gate, axis=2, mask=inside[..., None])
    keys = (weights * plain(index.k_norm(index.wk(x)))[rows, tokens]).sum(axis=2)  # (b, blocks, d)
    query = plain(in_heads(index.wq_b(m.q_a_layernorm(m.q_a_proj(x))), index.head_dim))  # (b, h, n, d)
    shares = plain(index.weights_proj(x)).swapaxes(1, 2) * index.n_heads**-0.5
    scores, _ = indexer.forward(query, keys, shares, scale=index.softmax_scale)  # (b, n, blocks)
    seen = np.tril(np.ones((n, n), bool)) & there[:, None]  # (b, n, n)
    shown = np.take_along_axis(seen, np.maximum(tokens[:, None, :, -1], 0), axis=-1) & inside.all(axis=-1)[:, None]
    nearest = largest(m, np.where(shown, scores, -np.inf), min(index.index_topk // size, scores.shape[-1])) & shown
    chosen = np.where(nearest[..., None], tokens[:, None], -1).reshape(b, n, -1)
    if index.index_kpool_always_select_tail:
        count = seen.sum(axis=-1)[..., None]  # (b, n, 1)
        rest = first[:, None, None] + count - count % size + np.arange(size - 1)
        shown = (np.arange(size - 1) < count % size) & (rest < n)
        shown &= np.take_along_axis(seen, np.minimum(rest, n - 1), axis=-1)
        chosen = np.concatenate([chosen, np.where(shown, rest, -1)], axis=-1)
    return np.where(there[..., None], chosen, -1)


READINGS = {
    "016dfc15c9": Pooled(chosen=True),
    "b29f598d1d": Own(QKVO, norms="q_norm k_norm", gate="query", before=qwen4),
    "60a9760f7c": Own(QKVO, norms="q_norm k_norm", before=minimax),
}
PARTS = {"9256377eed": Norm(epsilon="eps", less_one=True), "91f62899e1 aa1343db00 89e80bc74f": lambda m: None}
FUNCTIONS = {"ba5b6d583f": rotation(), "ecdae08c5e": rotation(axis=-3)}
