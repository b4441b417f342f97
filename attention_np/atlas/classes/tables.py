"""Scores with a learned number for each pair of places: T5, windows of Swin, pictures of SAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import biases
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.dense import Dense, thirds


class Windowed(Dense):
    """A reading with a bias by places in a window, and a mask (windows, n, n) that counts the windows of a sample."""

    def __init__(self, projections: str, bias: Callable[[Mirror], Any], **options: Any) -> None:
        super().__init__(projections, turn=None, is_causal=False, **options)
        self.bias = bias

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        if mask is not None:
            mask = np.asarray(mask)
            if mask.ndim != 3:
                raise UnknownLayer(f"{m._about} takes a mask (windows, n, n), not {mask.shape}")
            mask = np.tile(mask, (a.hidden_states.shape[0] // len(mask), 1, 1))[:, None]
        made = super()._scores(m, a, mask, shape)
        own = self.bias(m)
        made["bias"] = own if made["bias"] is None else [own, made["bias"]]
        return made


def of_window(m: Mirror) -> Any:
    """The bias of Swin: a row of a table for each difference of two places (biases.9)."""
    area = int(np.prod(m.window_size)) if m.has("window_size") else m.window_area
    return biases.table(m.relative_position_bias_table, np.asarray(m.relative_position_index).reshape(area, area))


def of_distance(m: Mirror, a: Arguments) -> Any:
    """The bias of T5: what the caller hands on, the module's own, or none."""
    if a.position_bias is not None:
        return np.asarray(a.position_bias)
    if not m.has_relative_attention_bias:
        return None
    table = m.relative_attention_bias.weight
    if table.shape[0] != m.relative_attention_num_buckets:
        raise UnknownLayer(f"{m._about} has {table.shape[0]} buckets, and counts {m.relative_attention_num_buckets}")
    return biases.t5(table, bidirectional=not m.is_decoder, max_distance=m.relative_attention_max_distance)


class Picture:
    """A reading of SAM's attention over a picture: rows and columns of pixels have learned vectors for queries."""

    recipe = staticmethod(recipes.multi_head)

    def __init__(self, scale: str | None) -> None:
        self.scale = scale

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, (b, height, width, features)."""
        batch, height, width, features = a.hidden_states.shape
        (w, b), (w_output, b_output) = affine(m.qkv), affine(m.proj)
        made = {f"{kind}_{name}": x for kind, whole in (("w", w), ("b", b)) for name, x in named(m, whole)}
        d = made["w_query"].shape[-1] // m.num_attention_heads
        scale = getattr(m, self.scale) if self.scale else d**-0.5
        bias = None
        if m.use_rel_pos:
            row, column = np.divmod(np.arange(height * width), width)
            bias = [
                biases.products(embedding(m, name, size) / scale, place[:, None] - place + size - 1)
                for name, size, place in (("rel_pos_h", height, row), ("rel_pos_w", width, column))
            ]
        x = a.hidden_states.reshape(batch, height * width, features)
        output = recipes.multi_head(x, **made, w_output=w_output, b_output=b_output, d=d, scale=scale, bias=bias)
        return output.reshape(batch, height, width, -1)


def named(m: Mirror, whole: Any) -> Any:
    """Queries, keys and values, by their names."""
    return zip(("query", "key", "value"), thirds(m, whole), strict=True)


def embedding(m: Mirror, name: str, size: int) -> Any:
    """The vectors of the differences of `size` places, which the module would interpolate if it had other ones."""
    vectors = getattr(m, name)
    if vectors.shape[0] != 2 * size - 1:
        raise UnknownLayer(f"{m._about} has {vectors.shape[0]} rows of {name}, not the {2 * size - 1} of the picture")
    return vectors


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
    "3ba362d88b": Picture("scale"),  # SAM
    "38d79270c9": Picture(None),
}
PARTS = {"48c43dbc10": of_window}
