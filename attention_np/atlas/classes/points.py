"""Deformable attention of the detection transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine


class Sampled:
    """A reading of deformable attention; `true_hides` tells what a mask of pixels means."""

    recipe = staticmethod(recipes.sampled)

    def __init__(self, *, true_hides: bool = False) -> None:
        self.true_hides = true_hides

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        made: dict[str, Any] = {}
        for name, part in PROJECTIONS.items():
            made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, part))
        shapes = tuple((int(height), int(width)) for height, width in a.spatial_shapes_list)
        if len(shapes) != m.n_levels:
            raise UnknownLayer(f"{m._about} has {m.n_levels} levels, not {len(shapes)}")
        if a.spatial_shapes is not None and not np.array_equal(shapes, a.spatial_shapes):
            raise UnknownLayer("spatial_shapes and spatial_shapes_list are not the same")
        if a.attention_mask is not None:
            shown = np.asarray(a.attention_mask).astype(bool) != self.true_hides
            made["visible"] = shown[..., None].astype(float)
        points = np.asarray(a.reference_points)[:, None, :, :, None, :]  # (b, 1, n, levels, 1, 2 or 4)
        spread = (
            1 / np.array(shapes, float)[:, None, ::-1] if points.shape[-1] == 2 else points[..., 2:] * 0.5 / m.n_points
        )
        x = a.hidden_states if a.position_embeddings is None else a.hidden_states + np.asarray(a.position_embeddings)
        made |= {"heads": m.n_heads, "shapes": shapes, "reference": points[..., :2], "spread": spread}
        return recipes.sampled(x, a.encoder_hidden_states, **made)


PROJECTIONS = {
    "value": "value_proj",
    "offset": "sampling_offsets",
    "weight": "attention_weights",
    "output": "output_proj",
}

READINGS = {
    "b0458e3e1b 1240312697 46178edfb4": Sampled(),  # Deformable DETR, Grounding DINO, OmDet-Turbo
    "4ba5fa082c b4fd1b2aa0": Sampled(true_hides=True),  # OneFormer, Mask2Former
}
PARTS = {"f3ffe467ee": lambda m: None}  # what samples, as attention_np.deformable does
FUNCTIONS = {"cdee83ad70": "multi_scale_deformable_attention"}
