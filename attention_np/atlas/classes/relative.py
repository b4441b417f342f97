"""Scores by distances: Transformer-XL and the conformers that have it, and Shaw's vectors of distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases, chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import filled
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine, of_identity
from attention_np.atlas.classes.dense import Dense, of_each_head, options_of, weights
from attention_np.atlas.recipes._steps import in_heads, joined, turned


class TransformerXL:
    """A reading of projections q, k, v, o and of distances, u and v, and the argument that is the distances.

    `size`: the attribute that is the features of a head.
    """

    recipe = staticmethod(recipes.relative_positions)

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
        return recipes.relative_positions(
            a.hidden_states, np.asarray(distances), **weights(m, *self.projections), **made
        )

    def scores(self, m: Mirror, a: Arguments) -> dict[str, Any]:
        """Scale, mask and bias: here those that the attention function makes of the mask."""
        n = a.hidden_states.shape[-2]
        made = m.function("interface")(m, a.attention_mask, scaling=m.scaling, shape=(n, n))
        return dict(made)


class Hidden(TransformerXL):
    """The same with a boolean mask, which hides keys, or the distances alone."""

    def __init__(self, *names: str, keys: bool) -> None:
        super().__init__(*names)
        self.keys = keys

    def scores(self, m: Mirror, a: Arguments) -> dict[str, Any]:
        """Scale, mask and groups."""
        scale = m.dim_key**-0.5 if m.has("dim_key") else m.scaling
        made = {"groups": m.get("num_key_value_groups", 1), "scale": scale}
        if a.attention_mask is None:
            return made
        mask = np.asarray(a.attention_mask) != 0
        return made | {"mask" if self.keys else "shown": mask[:, None] if mask.ndim == 3 else mask}


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


conformer.recipe = recipes.relative_positions  # type: ignore[attr-defined]


def flat(weight: Any) -> Any:
    """A parameter (d_in, h, d) as a matrix (d_in, h * d)."""
    return weight.reshape(weight.shape[0], -1)


def shifted(m: Mirror, n: int, keys: int, rows: int, stride: int = 1) -> Any:
    """The row of the distances of each pair, the farthest ahead of the query last, as XLNet and Funnel shift them."""
    if rows < stride * n + keys:
        raise UnknownLayer(f"{m._about} has {rows} distances, fewer than {stride * n + keys}")
    return stride * (n - np.arange(n)[:, None]) + np.arange(keys)


def xlnet(m: Mirror, a: Arguments) -> Any:
    """The stream of tokens, which knows nothing of the other one; sequences stand along the first axis."""
    if a.mems is not None and a.mems.ndim > 1:
        raise UnknownLayer("the layer is the full pass: it takes no mems of earlier tokens")
    x, distances = a.h.swapaxes(0, 1), np.asarray(a.r).swapaxes(0, 1)
    made: dict[str, Any] = {f"w_{name}": flat(getattr(m, name[0])) for name in ("query", "key", "value")}
    made |= {"w_distance": flat(m.r), "w_output": flat(m.o).swapaxes(0, 1), "u": m.r_w_bias, "v": m.r_r_bias}
    if a.seg_mat is not None:
        alike = np.moveaxis(np.asarray(a.seg_mat), 2, 0)[:, None]
        made |= {"segments": m.seg_embed.swapaxes(0, 1), "s": m.r_s_bias, "alike": alike}
    if a.attn_mask_h is not None:
        made["bias"] = -1e30 * np.moveaxis(np.asarray(a.attn_mask_h, dtype=float), (2, 3), (0, 1))
    n, own = x.shape[1], options_of(m.layer_norm, x)
    made |= {"gain": own["gain"], "b_norm": own["b"], "epsilon": own["epsilon"], "d": m.d_head, "scale": m.scale}
    places = shifted(m, n, n, distances.shape[1])
    return recipes.relative_positions(x, distances, **made, places=places).swapaxes(0, 1)


def funnel(m: Mirror, a: Arguments) -> Any:
    """Queries may be fewer than keys: pooled."""
    positions, alike, mask, cls_mask = a.attention_inputs
    if m.config.attention_type != "relative_shift":
        raise UnknownLayer(f"{m._about} is known with attention_type relative_shift alone")
    n, keys, d = a.query.shape[1], a.key.shape[1], m.config.d_head
    made = weights(m, "q_head", "k_head", "v_head", "post_proj")
    made |= {
        "kept": cls_mask,
        "w_distance": flat(m.r_kernel),
        "u": m.r_w_bias,
        "v": m.r_r_bias,
        "scale": m.scale,
        "d": d,
    }
    distances = np.asarray(positions[m.block_index][int(n != keys)])
    if alike is not None:
        alike = np.stack([~alike, alike], axis=-1).astype(float)[:, None]
        made |= {"segments": m.seg_embed.swapaxes(0, 1), "s": m.r_s_bias, "alike": alike}
    if mask is not None:
        made["bias"] = -1e6 * (1 - np.asarray(mask, dtype=float)[:, None, None])
    own = options_of(m.layer_norm, a.query)
    made |= {"gain": own["gain"], "b_norm": own["b"], "epsilon": own["epsilon"], "memory": a.key, "x_value": a.value}
    places = shifted(m, n, keys, distances.shape[-2], 1 + (n != keys))
    return recipes.relative_positions(a.query, distances, **made, places=places)


def granite(m: Mirror, a: Arguments) -> Any:
    """Blocks of tokens, each for itself, with Shaw's distances; norms first."""
    n, c, own = a.hidden_states.shape[1], m.context_size, options_of(m.pre_norm, a.hidden_states)
    w_both, none = affine(m.to_kv)
    made = {"w_query": affine(m.to_q)[0], "w_key": w_both[:, : w_both.shape[1] // 2]}
    made |= {"w_value": w_both[:, w_both.shape[1] // 2 :], "d": m.dim_head, "scale": m.scale}
    made["w_output"], made["b_output"] = affine(m.to_out)
    block, place = np.divmod(np.arange(n), c)
    far = biases.products(m.rel_pos_emb.weight, np.asarray(a.attention_dists)[place[:, None], place])
    made |= {"bias": far, "mask": block[:, None] == block, "epsilon": own["epsilon"]}
    if none is not None or m.to_q.bias is not None:
        raise UnknownLayer(f"{m._about} has a b where none is known")
    return recipes.pre_norm(a.hidden_states, own["gain"], own["b"], **made)


def granite5(m: Mirror, a: Arguments) -> Any:
    """Blocks of tokens, the last one filled with zeros, with Shaw's distances."""
    x, c = a.hidden_states, m.context_size
    b, n, _ = x.shape
    x = chain.concatenate([x, np.zeros((b, -n % c, x.shape[-1]))], axis=1)
    block, place = np.divmod(np.arange(x.shape[1]), c)
    shown = np.arange(x.shape[1]) < n
    if a.attention_mask is not None:
        shown = np.pad(np.asarray(a.attention_mask).astype(bool), [(0, 0), (0, -n % c)])[:, None, None]
    made = weights(m, "q_proj", "k_proj", "v_proj", "o_proj") | {"d": m.head_dim, "scale": m.scaling}
    made |= {"places": np.asarray(a.position_embeddings)[place[:, None], place], "mask": block[:, None] == block}
    shown = np.broadcast_to(shown, (*np.shape(shown)[:-1], x.shape[1]))
    return recipes.relative_positions(x, m.rel_pos_emb.weight, **made, shown=shown)[:, :n]


class DeBERTa:
    """A reading of disentangled attention; `fused`: DeBERTa's first version, with one projection."""

    recipe = staticmethod(recipes.disentangled)

    def __init__(self, *, fused: bool = False, hides: bool = False) -> None:
        self.fused, self.hides = fused, hides

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        x, kinds = a.hidden_states, m.pos_att_type
        if a.query_states is not None or m.get("head_logits_proj") is not None:
            raise UnknownLayer(f"{m._about} is not known with query_states or talking heads")
        n, d = x.shape[1], m.attention_head_size
        made: dict[str, Any] = {"d": d}
        if self.fused:
            parts = of_each_head("attention_head_size")(m, affine(m.in_proj)[0])
            made |= dict(zip(("w_query", "w_key", "w_value"), parts, strict=True))
            made |= {"b_query": m.q_bias, "b_value": m.v_bias}
            factor = 1 + len(kinds)
        else:
            made |= weights(m, "query_proj", "key_proj", "value_proj", "-")
            factor = 1 + ("c2p" in kinds) + ("p2c" in kinds)
        scale = (d * factor) ** -0.5
        hidden = ~np.asarray(a.attention_mask).astype(bool)
        hiding = {"mask": ~hidden, "scale": scale} if self.hides else {"scale": scale} | filled(hidden, scale, m)
        table, far = a.rel_embeddings, a.relative_pos
        if m.relative_attention and not (self.fused and (table is None or far is None)):
            span = min(n, m.max_relative_positions) if self.fused else m.pos_ebd_size
            first = m.max_relative_positions - span if self.fused else 0
            far = self.distances(m, far, n)
            made["distances"] = np.asarray(table)[first : first + 2 * span]
            made["of_key"] = np.clip(far + span, 0, 2 * span - 1)
            made["of_query"] = np.clip(span - far, 0, 2 * span - 1).swapaxes(0, 1)
            shared = not self.fused and m.share_att_key
            names = ("pos_proj", "pos_q_proj") if self.fused else ("pos_key_proj", "pos_query_proj")
            names = ("key_proj", "query_proj") if shared else names
            for kind, name, part in zip(("c2p", "p2c"), ("far_key", "far_query"), names, strict=True):
                if kind in kinds:
                    made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, part))
        return recipes.disentangled(x, **{"distances": None} | made | hiding)

    def distances(self, m: Mirror, given: Any, n: int) -> Any:
        """How far each query is ahead of each key, (n, n)."""
        if given is None:
            if m.position_buckets > 0 and m.max_relative_positions > 0:
                raise UnknownLayer(f"{m._about} is known in buckets with relative_pos alone")
            return np.arange(n)[:, None] - np.arange(n)
        if np.size(given) != n * n:
            raise UnknownLayer(f"{m._about} is known with one relative_pos for all samples alone")
        return np.asarray(given).reshape(n, n).astype(int)


for _reading, _recipe in (
    (xlnet, recipes.relative_positions),
    (funnel, recipes.relative_positions),
    (granite, recipes.pre_norm),
    (granite5, recipes.relative_positions),
):
    _reading.recipe = _recipe  # type: ignore[attr-defined]

PARAKEET = "q_proj k_proj v_proj o_proj", "relative_k_proj bias_u bias_v", "position_embeddings"

READINGS = {
    "d4c246521d": Hidden(*PARAKEET, keys=False),  # Parakeet
    "1b4ed8a86c": Hidden(*PARAKEET, keys=True),  # Nemotron
    "de9aa582b6": Hidden(LINEAR, "linear_pos pos_bias_u pos_bias_v", "pos_emb", keys=True),  # FastSpeech 2
    "355959dd2d ffac2e9b44": conformer,  # wav2vec 2.0 and SeamlessM4T
    "f12d429edc": SHAW,  # SeamlessM4T 2
    "d7c96d701c": xlnet,
    "4ab81808cf": funnel,
    "511ca2237f": granite,
    "623184c85f": granite5,
    "d49543108d": DeBERTa(fused=True),
    "e2faa56de2": DeBERTa(),
    "3c34793167": DeBERTa(hides=True),  # SEW-D
}
PARTS = {"c06a428b5c": of_identity}  # a dropout that drops nothing
FUNCTIONS = {
    "ace9330bd0 9d17f8c917": None,  # the same distances, in the attention of conformers
    "979a3a212d": None,  # of Funnel
    "c49cfc8a82 a1ba9380c2 829f193088 fa8a73ba24 430cbee42c da6c8c38ab 67e7b0f99c": None,  # of DeBERTa
    "02ec80ce91 9f4e5c6bec 0bc96e0a4c": None,
}
