"""Scores by distances: Transformer-XL and the conformers that have it, and Shaw's vectors of distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.dense import Dense, weights
from attention_np.atlas.recipes._steps import in_heads, joined, turned


class TransformerXL:
    """A reading of projections q, k, v, o and of distances, u and v, and the argument that is the distances.

    `size`: the attribute that is the features of a head.
    """

    recipe = staticmethod(recipes.transformer_xl)

    def __init__(self, projections: str, names: str, distances: str, size: str = "head_dim") -> None:
        self.projections, self.names, self.distances, self.size = projections.split(), names.split(), distances, size

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        w_distance, b_distance = affine(getattr(m, self.names[0]))
        u, v = (getattr(m, name) for name in self.names[1:])
        n, distances = a.hidden_states.shape[-2], getattr(a, self.distances)
        if b_distance is not None or distances is None or distances.shape[-2] != 2 * n - 1:
            raise UnknownLayer(f"{m._about} is known with {self.distances} of all {2 * n - 1} distances alone")
        made = {"w_distance": w_distance, "u": u, "v": v, "d": getattr(m, self.size)} | self.scores(m, a)
        return recipes.transformer_xl(a.hidden_states, np.asarray(distances), **weights(m, *self.projections), **made)

    def scores(self, m: Mirror, a: Arguments) -> dict[str, Any]:
        """Scale, mask and bias: here those that the attention function makes of the mask."""
        n = a.hidden_states.shape[-2]
        made = m.function("interface")(m, a.attention_mask, scaling=m.scaling, shape=(n, n))
        return dict(made)


class Hidden(TransformerXL):
    """The same with a boolean mask, which hides distances, `lowest` in place of these, or the keys."""

    def __init__(self, *names: str, lowest: bool) -> None:
        super().__init__(*names)
        self.lowest = lowest

    def scores(self, m: Mirror, a: Arguments) -> dict[str, Any]:
        """Scale and mask."""
        groups = m.get("num_key_value_groups", 1)
        if a.attention_mask is None:
            return {"groups": groups}
        mask = np.asarray(a.attention_mask) != 0
        mask = mask[:, None] if mask.ndim == 3 else mask
        lowest = float(np.finfo(a.hidden_states.dtype).min) if self.lowest else None
        return {"mask": mask, "lowest": lowest, "groups": groups}


def of_keys(m: Mirror, a: Arguments) -> Any:
    """A vector for each distance, within a window, that a query meets as it does a key (biases.6)."""
    if m.position_embeddings_type != "relative_key":
        return None
    n = np.arange(a.hidden_states.shape[-2])
    left = m.left_max_position_embeddings
    return biases.products(
        m.distance_embedding.weight, np.clip(n - n[:, None], -left, m.right_max_position_embeddings) + left
    )


LINEAR = "linear_q linear_k linear_v linear_out"
SHAW = Dense(LINEAR, size="head_size", turn=None, x_value="unturned", position_bias=of_keys)
FAR = TransformerXL(LINEAR, "linear_pos pos_bias_u pos_bias_v", "relative_position_embeddings", "head_size")


def conformer(m: Mirror, a: Arguments) -> Any:
    """Conformers: as in Transformer-XL, with Shaw's distances, or with tokens turned before they are projected."""
    x, d = a.hidden_states, m.head_size
    if m.position_embeddings_type == "relative":
        return FAR(m, a)
    if m.position_embeddings_type == "rotary":
        cos, sin = np.asarray(a.relative_position_embeddings)[:, : x.shape[1], 0, 0]
        a = Arguments(a._given | {"hidden_states": joined(turned(in_heads(x, d), cos, sin)), "unturned": x})
    return SHAW(m, a)


conformer.recipe = recipes.transformer_xl  # type: ignore[attr-defined]
PARAKEET = "q_proj k_proj v_proj o_proj", "relative_k_proj bias_u bias_v", "position_embeddings"

READINGS = {
    "d4c246521d": Hidden(*PARAKEET, lowest=True),  # Parakeet
    "1b4ed8a86c": Hidden(*PARAKEET, lowest=False),  # Nemotron
    "de9aa582b6": Hidden(LINEAR, "linear_pos pos_bias_u pos_bias_v", "pos_emb", lowest=False),  # FastSpeech 2
    "355959dd2d ffac2e9b44": conformer,  # wav2vec 2.0 and SeamlessM4T
    "f12d429edc": SHAW,  # SeamlessM4T 2
}
FUNCTIONS = {"ace9330bd0 9d17f8c917": None}  # the same distances, in the attention of conformers
