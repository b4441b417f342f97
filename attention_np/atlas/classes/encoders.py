"""Encoders of text and sound whose attention is BERT's with something of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror
from attention_np.atlas._parts import rotation
from attention_np.atlas.classes.dense import BERT, OUT, SIZE, Dense, given


def of_canine(m: Mirror, a: Arguments) -> Any:
    """A mask (b, n, m) is 0 where it hides; any other is added."""
    if a.attention_mask is None or a.attention_mask.ndim != 3:
        return a.attention_mask
    lowest = np.finfo(m.query.weight.dtype).min
    return ((1.0 - a.attention_mask.astype(float)) * lowest)[:, None]


def of_pages(m: Mirror, a: Arguments) -> Any:
    """LayoutLMv2: what is added for distances in the text and on the page."""
    line = a.rel_pos if m.has_relative_attention_bias else None
    page = a.rel_2d_pos if m.has_spatial_attention_bias else None
    return page if line is None else line if page is None else line + page


def sinusoids(m: Mirror, a: Arguments) -> tuple[Any, Any]:
    """Cos and sin of RoFormer, whose sines come first."""
    sin, cos = np.split(np.asarray(a.sinusoidal_pos)[:, 0], 2, axis=-1)
    return cos, sin


def clvp_angles(m: Mirror, a: Arguments) -> tuple[Any, Any]:
    """Cos and sin of CLVP's angles, at the positions."""
    angles = np.asarray(a.rotary_pos_emb)[0][np.asarray(a.position_ids)]
    return np.cos(angles), np.sin(angles)


TEXT: dict[str, Any] = {"inline": True, "scale": None, **SIZE}
PAGE: dict[str, Any] = {"mask": None, "position_bias": of_pages, "filled": lambda m, a: a.attention_mask.astype(bool)}

READINGS = {
    "569298cbfa": Dense("query key value dense", norm_sum="LayerNorm", **SIZE),  # ALBERT
    "5cfd279b37": Dense("query key value dense", norm_sum="layer_norm", **TEXT),  # TVP
    "0cc6d566fd": Dense(BERT, x="from_tensor", memory="to_tensor", mask=None, position_bias=of_canine, **TEXT),
    "0380172b5f": Dense(BERT, x="query_tensor", memory="key_tensor", x_value="value_tensor", **SIZE),  # MobileBERT
    "f3d9144da3": Dense(OUT, memory="key_value_states", turn=None, inline=True, refused="attn_prompt"),  # MVP
    "e50ff9a4b2": Dense(
        "query_proj key_proj value_proj out_proj", memory="key_value_states", turn=None, inline=True, scale=None
    ),  # ProphetNet, not of n-grams
    "774dede1b7": Dense(
        OUT, positions=clvp_angles, turn_if=given("rotary_pos_emb"), turn_value=lambda m: True, inline=True,
        scale="scale",
    ),  # CLVP
    "67b2f37037": Dense(
        BERT, size="attention_head_size", memory="encoder_hidden_states", turn=rotation("neighbours", half=True),
        positions=sinusoids, turn_if=lambda m, a: a.encoder_hidden_states is None and a.sinusoidal_pos is not None,
        turn_value=lambda m: bool(m.rotary_value), inline=True, scale=None,
    ),  # RoFormer
    "0c5152fdfc": Dense(norms="q_norm k_norm"),  # Perception encoder
}  # fmt: skip
FUNCTIONS = {
    "13bdda6962": rotation(),
    "561ab751ba": rotation("neighbours", doubled=True),
}
