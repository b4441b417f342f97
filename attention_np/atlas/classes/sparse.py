"""Long texts: tokens that see their neighbours and a few tokens of the whole, as masks over all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.dense import BERT, OUT, weights


def big_bird(m: Mirror, a: Arguments) -> Any:
    """Neighbouring blocks, the first and the last; in evaluation each random block is the first one once more."""
    (b, n, _), size = a.hidden_states.shape, m.block_size
    to_mask, rows = np.asarray(a.to_mask, dtype=float), np.asarray(a.from_mask, dtype=float)
    blocks, last = np.arange(n) // size, n // size - 1
    for mask, blocked in ((rows, a.from_blocked_mask), (to_mask, a.to_blocked_mask)):
        if last < 3 or not np.isin(mask, (0, 1)).all() or not np.array_equal(mask.ravel(), np.ravel(blocked)):
            raise UnknownLayer(f"{m._about} is known with four blocks at least, and one mask of zeros and ones")
    row, column = blocks[:, None], blocks
    between = (row > 0) & (row < last)
    seen = ~between | (abs(row - column) <= 1) | (column == 0) | (column == last)
    shown = np.broadcast_to(to_mask, (b, 1, n, n)).copy()
    for i in range(2, last - 1):
        shown[:, :, i * size : (i + 1) * size, (i - 1) * size : (i + 2) * size] = np.asarray(a.band_mask)[:, :, i - 2]
    bias = np.log1p(m.num_random_blocks * (between & (column == 0))) - 10000.0 * (1.0 - shown)
    made = weights(m, *BERT.split()) | {"d": m.attention_head_size, "mask": seen, "bias": bias}
    return recipes.multi_head(a.hidden_states, **made) * rows[:, 0]


def longformer(m: Mirror, a: Arguments) -> Any:
    """A window of neighbours and the global tokens, which see all by projections of their own."""
    mask, n = np.asarray(a.attention_mask), np.arange(a.hidden_states.shape[1])
    everywhere = np.asarray(a.is_index_global_attn).astype(bool) if a.is_global_attn else np.zeros(mask.shape, bool)
    hidden = np.asarray(a.is_index_masked).astype(bool)
    near = (abs(n[:, None] - n) <= m.one_sided_attn_window_size) & (mask == 0)[:, None]
    near = (near | everywhere[:, None]) & ~hidden[..., None]
    if (everywhere & (mask == 0)).any() or not (near.any(axis=-1) | hidden).all():
        raise UnknownLayer(f"{m._about} is known with a mask that is not 0 at global tokens, where each token sees one")
    made = weights(m, *BERT.split()) | {"d": m.head_dim, "mask": near[:, None]}
    if not a.is_global_attn:
        return recipes.multi_head(a.hidden_states, **made)
    for name in ("query", "key", "value"):
        made[f"w_all_{name}"], made[f"b_all_{name}"] = affine(getattr(m, f"{name}_global"))
    made |= {"everywhere": everywhere[..., None], "shown": ~hidden[:, None, None]}
    return recipes.global_tokens(a.hidden_states, **made)


def pegasus_x(m: Mirror, a: Arguments) -> Any:
    """A block of tokens and the global tokens."""
    x, others = a.token_hidden_states, a.global_hidden_states
    n, count = x.shape[1], others.shape[1]
    block = np.concatenate([np.full(count, -1), np.arange(n) // m.block_size])
    hidden = np.pad(np.asarray(a.attention_mask), [(0, 0), (count, 0)])[:, None, None]
    made = weights(m, *OUT.split()) | {"d": m.head_dim, "scale": m.scaling, "bias": hidden}
    made |= {"mask": (block == -1) | (block[count:, None] == block), "memory": chain.concatenate([others, x], axis=1)}
    return recipes.multi_head(x, **made)


for _reading, _recipe in (
    (big_bird, recipes.multi_head), (pegasus_x, recipes.multi_head), (longformer, recipes.global_tokens),
):  # fmt: skip
    _reading.recipe = _recipe  # type: ignore[attr-defined]
READINGS = {"60731eaa54": big_bird, "c21f3d09fc": longformer, "e9a0135811": pegasus_x}
