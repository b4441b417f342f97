"""Pictures of SAM, SegGPT and ViTDet."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.dense import thirds


def sam(relative: str, heads: str, scale: str | None = "scale", x: str = "hidden_states") -> Any:
    """Pictures with decomposed places, as in SAM and ViTDet."""

    def reading(m: Mirror, a: Arguments) -> Any:
        picture = getattr(a, x)
        w, b = affine(m.qkv)
        made = dict(zip(("w_query", "w_key", "w_value"), thirds(m, w), strict=True))
        made |= dict(zip(("b_query", "b_key", "b_value"), thirds(m, b), strict=True))
        made["w_output"], made["b_output"] = affine(m.proj)
        if getattr(m, relative):
            made["rows"] = resampled(m.rel_pos_h, 2 * picture.shape[1] - 1)
            made["columns"] = resampled(m.rel_pos_w, 2 * picture.shape[2] - 1)
        d = made["w_query"].shape[-1] // getattr(m, heads)
        return recipes.decomposed_places(picture, **made, d=d, scale=getattr(m, scale) if scale else None)

    reading.recipe = recipes.decomposed_places  # type: ignore[attr-defined]
    return reading


def resampled(table: Any, size: int) -> Any:
    """Rows of a table as many as are wanted, in between linearly, as `torch.nn.functional.interpolate` has it."""
    rows = table.shape[0]
    if rows == size:
        return table
    places = np.clip((np.arange(size) + 0.5) * rows / size - 0.5, 0, rows - 1)
    below = np.minimum(places.astype(int), rows - 1)
    matrix = np.zeros((size, rows))
    matrix[np.arange(size), below] += 1 - (places - below)
    matrix[np.arange(size), np.minimum(below + 1, rows - 1)] += places - below
    return matrix @ table


READINGS = {
    "3ba362d88b": sam("use_rel_pos", "num_attention_heads"),  # SAM
    "38d79270c9": sam("use_rel_pos", "num_attention_heads", None),
    "e8905a0909": sam("use_relative_position_embeddings", "num_attention_heads"),  # SegGPT
    "5c4ad5c171": sam("use_relative_position_embeddings", "num_heads", x="hidden_state"),  # ViTDet
}

FUNCTIONS = {
    "aecbae9af3": None,  # decomposed places
}
