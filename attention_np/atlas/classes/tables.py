"""Scores with a learned number for each pair of places: T5, and the windows of Swin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import biases
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import of_embedding
from attention_np.atlas.classes.dense import Dense, weights


class Windowed(Dense):
    """A reading with a bias by places in a window, and a mask (windows, n, n) that counts the windows of a sample."""

    def __init__(self, projections: str, bias: Callable[[Mirror], Any], **options: Any) -> None:
        super().__init__(projections, turn=None, is_causal=False, **options)
        self.bias = bias

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        made = super()._scores(m, a, of_windows(m, a), shape)
        own = self.bias(m)
        made["bias"] = own if made["bias"] is None else [own, made["bias"]]
        return made


def of_windows(m: Mirror, a: Arguments) -> Any:
    """The mask of each window of a sample, (windows, n, n), for all windows, (b, 1, n, n)."""
    if a.attention_mask is None:
        return None
    mask = np.asarray(a.attention_mask)
    if mask.ndim != 3:
        raise UnknownLayer(f"{m._about} takes a mask (windows, n, n), not {mask.shape}")
    return np.tile(mask, (a.hidden_states.shape[0] // len(mask), 1, 1))[:, None]


def of_window(m: Mirror) -> Any:
    """The bias of Swin: a row of a table for each difference of two places (biases.4)."""
    area = int(np.prod(m.window_size)) if m.has("window_size") else m.window_area
    places = np.asarray(m.relative_position_index)
    if places.size != area**2:
        raise UnknownLayer(f"{m._about} has places for {places.size} pairs, not {area} * {area}")
    return biases.table(m.relative_position_bias_table, places.reshape(area, area))


def of_distance(m: Mirror, a: Arguments, bidirectional: bool | None = None) -> Any:
    """The bias of T5: what the caller hands on, the module's own, or none."""
    if a.position_bias is not None:
        return np.asarray(a.position_bias)
    if not m.has_relative_attention_bias:
        return None
    table = of_embedding(m.relative_attention_bias, slice(None))
    if table.shape[0] != m.relative_attention_num_buckets:
        raise UnknownLayer(f"{m._about} has {table.shape[0]} buckets, and counts {m.relative_attention_num_buckets}")
    both = not m.is_decoder if bidirectional is None else bidirectional
    return biases.t5(table, bidirectional=both, max_distance=m.relative_attention_max_distance)


def cosine_windowed(m: Mirror, a: Arguments) -> Any:
    """Swin 2: a small network makes the table of coordinates; its module adds the mask twice."""
    table = m.continuous_position_bias_mlp(np.asarray(m.relative_coords_table)).reshape(-1, m.num_attention_heads)
    area = int(np.prod(m.window_size))
    mask = of_windows(m, a)
    return recipes.cosine_windowed(
        a.hidden_states,
        **{name: x for name, x in weights(m, "query", "key", "value", "-").items() if "output" not in name},
        log_scale=m.logit_scale,
        table=table,
        d=m.attention_head_size,
        places=np.asarray(m.relative_position_index).reshape(area, area),
        bias=None if mask is None else 2.0 * mask,
    )


T5: dict[str, Any] = {"size": "key_value_proj_dim", "turn": None, "position_bias": of_distance}
CLAP: dict[str, Any] = {
    "size": "attention_head_size",
    "scale": lambda m, a: m.attention_head_size**-0.5,
    "inline": True,
}

READINGS = {
    "3018093c97": Dense("q k v o", memory="key_value_states", mask="mask", **T5),
    "68e0275306": Dense("q k v o", memory="encoder_hidden_states", **T5),  # UMT5
    "0a0590381b": Windowed("q_proj k_proj v_proj o_proj", lambda m: m.relative_position_bias()),  # Swin
    "51ac60be9a": Windowed("query key value -", of_window, **CLAP),
    "c2f27d0dbe": cosine_windowed,  # Swin 2
}
PARTS = {"48c43dbc10": of_window}
