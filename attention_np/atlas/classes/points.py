"""Deformable attention of the detection transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain
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
            made["visible"] = shown[..., None]
        points = np.asarray(a.reference_points)[:, None, :, :, None, :]  # (b, 1, n, levels, 1, 2 or 4)
        spread = (
            1 / np.array(shapes, float)[:, None, ::-1] if points.shape[-1] == 2 else points[..., 2:] * 0.5 / m.n_points
        )
        x = a.hidden_states if a.position_embeddings is None else a.hidden_states + np.asarray(a.position_embeddings)
        made |= {"heads": m.n_heads, "shapes": shapes, "reference": points[..., :2], "spread": spread}
        return recipes.sampled(x, a.encoder_hidden_states, **made)


def by_level(m: Mirror, a: Arguments) -> Any:
    """RT-DETR 2 and D-FINE: around a box for each query, so many points as each level has, of softmax together.

    A level that has fewer than another has points of no weight in the recipe.
    """
    projected = m.has("value_proj")  # which D-FINE has not
    names = ("n_points_list", "n_points_scale", "method") if projected else OF_DFINE
    counts, scales, method = (getattr(m, name) for name in names)
    box, shapes = np.asarray(a.reference_points), tuple((int(x), int(y)) for x, y in a.spatial_shapes_list)
    if method != "default":
        raise UnknownLayer(f"{m._about} looks at the nearest pixels, which no recipe does ({method})")
    if not projected and m.ms_deformable_attn_core != "2b06dfb832":
        raise UnknownLayer(f"{m._about} has a ms_deformable_attn_core that is not known")
    if box.shape[2:] != (1, 4) or len(shapes) != len(counts) or (a.attention_mask is not None and not projected):
        raise UnknownLayer(f"{m._about} is known with a box (b, n, 1, 4) for each query, {len(counts)} levels, no mask")
    index = np.full((len(counts), max(counts)), sum(counts))  # of the points of a head, and one behind them
    for level, (last, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        index[level, :count] = np.arange(last - count, last)

    def filled(x: Any, width: int, value: float) -> Any:
        apart = x.reshape(*x.shape[:-1], m.n_heads, sum(counts), width)
        behind = np.full((*apart.shape[:-2], 1, width), value, apart.dtype)
        return chain.concatenate([apart, behind], axis=-2)[..., index.ravel(), :].reshape(*x.shape[:-1], -1)

    (w_offset, b_offset), (w_weight, b_weight) = affine(m.sampling_offsets), affine(m.attention_weights)
    made: dict[str, Any] = {"w_offset": filled(w_offset, 2, 0.0), "b_offset": filled(b_offset, 2, 0.0)}
    made |= {"w_weight": filled(w_weight, 1, 0.0), "b_weight": filled(b_weight, 1, -np.inf)}
    for name in ("value", "output"):
        made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, f"{name}_proj")) if projected else (None, None)
    box = box[:, None, :, :, None, :]  # (b, 1, n, 1, 1, 4)
    scale = np.append(np.asarray(scales, float), 0.0)[index][..., None] * m.offset_scale  # (levels, points, 1)
    made |= {
        "heads": m.n_heads,
        "shapes": shapes,
        "reference": box[..., :2],
        "spread": box[..., 2:] * scale.astype(a.hidden_states.dtype),
    }
    if a.attention_mask is not None:
        made["visible"] = np.asarray(a.attention_mask).astype(bool)[..., None]
    added = projected and a.position_embeddings is not None
    x = a.hidden_states + np.asarray(a.position_embeddings) if added else a.hidden_states
    return recipes.sampled(x, a.encoder_hidden_states, **made)


by_level.recipe = recipes.sampled  # type: ignore[attr-defined]
OF_DFINE = ("num_points_list", "num_points_scale", "decoder_method")
PROJECTIONS = {
    "value": "value_proj",
    "offset": "sampling_offsets",
    "weight": "attention_weights",
    "output": "output_proj",
}

READINGS = {
    "5006fb64ba 67bdedce89": by_level,
    "b0458e3e1b 1240312697 46178edfb4": Sampled(),  # Deformable DETR, Grounding DINO, OmDet-Turbo
    "4ba5fa082c b4fd1b2aa0": Sampled(true_hides=True),  # OneFormer, Mask2Former
}
PARTS = {"f3ffe467ee": lambda m: None}  # what samples, as attention_np.deformable does
FUNCTIONS = {
    "2b06dfb832": None,  # what samples by levels
    "cdee83ad70": "multi_scale_deformable_attention",
}
