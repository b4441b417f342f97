"""Encoders of text and sound whose attention is BERT's with something of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases, chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import filled
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine, of_identity, rotation
from attention_np.atlas.classes.dense import BERT, OUT, SIZE, Dense, given, options_of, thirds, weights


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


def perceiver(m: Mirror, a: Arguments) -> Any:
    """The latents, and what they read if it is another sequence, are normalised first."""
    x, own = a.hidden_states, options_of(m.layernorm1, a.hidden_states)
    made = weights(m, *BERT.split()) | {"d": m.qk_channels_per_head, "d_value": m.v_channels_per_head}
    made |= {"epsilon": own["epsilon"], "bias": a.attention_mask if a.inputs is None else a.inputs_mask}
    if a.inputs is not None and m.layernorm2._about.compute is not of_identity:
        other = options_of(m.layernorm2, a.inputs)
        if other["epsilon"] != own["epsilon"]:
            raise UnknownLayer(f"{m._about} has norms of different epsilon")
        made |= {"memory_gain": other["gain"], "memory_b": other["b"]}
    return recipes.pre_norm(x, own["gain"], own["b"], memory=a.inputs, **made)


def lilt(m: Mirror, a: Arguments) -> Any:
    """The stream of the text."""
    made = weights(m, *BERT.split()) | {"d": m.attention_head_size, "bias": a.attention_mask}
    for name in ("layout_query", "layout_key"):
        made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, name))
    made["d_layout"] = m.attention_head_size // m.channel_shrink_ratio
    return recipes.with_layout(a.hidden_states, a.layout_inputs, **made)


def bros(m: Mirror, a: Arguments) -> Any:
    """Vectors of pairs of boxes, (n, n, b, d)."""
    (b, n, _), d = a.hidden_states.shape, m.attention_head_size
    boxes = np.moveaxis(np.asarray(a.bbox_pos_emb).reshape(n, n, b, d), 2, 0)[:, None]
    memory = a.encoder_hidden_states
    mask = a.attention_mask if memory is None else a.encoder_attention_mask
    return recipes.with_boxes(a.hidden_states, boxes, **weights(m, *BERT.split()), d=d, bias=mask, memory=memory)


def luke(m: Mirror, a: Arguments) -> Any:
    """The words, which also see entities."""
    x, entities, mask = a.word_hidden_states, a.entity_hidden_states, a.attention_mask
    made = {name: w for name, w in weights(m, *BERT.split()).items() if w is not None} | {"d": m.attention_head_size}
    if mask is not None:
        made["bias"] = mask[..., : x.shape[1], :]
    if entities is None or not m.use_entity_aware_attention:
        memory = None if entities is None else chain.concatenate([x, entities], axis=1)
        return recipes.multi_head(x, memory=memory, **made)
    made["w_entity"], made["b_entity"] = affine(m.w2e_query)
    return recipes.entity_aware(x, entities, **made)


def wavlm(m: Mirror, a: Arguments) -> Any:
    """Distances in buckets, or what another layer made of them, (b * h, n, n)."""
    n, heads = a.hidden_states.shape[1], m.num_heads
    if a.position_bias is None:
        buckets = biases.t5(np.arange(float(m.num_buckets)), max_distance=m.max_distance)
        rows = buckets.block(slice(0, n), slice(0, n), np.empty((n, 1))).astype(int)  # the bucket of each pair
        distances = m.rel_attn_embed.weight[rows].swapaxes(0, 2).swapaxes(1, 2)  # (h, n, n)
    else:
        distances = np.asarray(a.position_bias).reshape(-1, heads, n, n)
    made = weights(m, *OUT.split()) | {"d": m.head_dim, "factor": m.gru_rel_pos_const[0]}
    made["w_gates"], made["b_gates"] = affine(m.gru_rel_pos_linear)
    if a.attention_mask is not None:
        made["mask"] = (np.asarray(a.attention_mask) == 1)[:, None, None]
    return recipes.gated_distances(a.hidden_states, distances, **made)


def fun_asr(m: Mirror, a: Arguments) -> Any:
    """Values of neighbours are added where the module has a memory."""
    if not m.has("fsmn"):
        return HERE(m, a)
    x, conv = a.hidden_states, m.fsmn.conv
    if tuple(m.fsmn.pad.padding) != ((conv.weight.shape[2] - 1) // 2, conv.weight.shape[2] // 2) or m.fsmn.pad.value:
        raise UnknownLayer(f"{m._about} has a memory of other neighbours")
    if a.input_features_mask is None:
        raise UnknownLayer(f"{m._about} with a memory needs input_features_mask")
    made = HERE._weights(m) | HERE._scores(m, a, a.attention_mask, (x.shape[1], x.shape[1]))
    made |= {"d": m.head_dim, "taps": conv.weight[:, 0, :].swapaxes(0, 1)}
    made["visible"] = np.asarray(a.input_features_mask).astype(float)[..., None]
    return recipes.with_memory(x, **{name: value for name, value in made.items() if name != "groups"})


HERE = Dense(turn=None)


def patchtsmixer(m: Mirror, a: Arguments) -> Any:
    """A softmax over the features of each token."""
    if m.attn_softmax.dim != -1:
        raise UnknownLayer(f"{m._about} weighs along another axis")
    return recipes.gated_features(a.inputs, *affine(m.attn_layer))


def of_pointwise(conv: Mirror) -> tuple[Any, Any]:
    """The matrix (d_in, d_out) and b of a convolution of one tap; in groups of features it is block diagonal."""
    groups, (out, each, taps) = conv.groups, conv.weight.shape
    if taps != 1 or tuple(conv.stride) != (1,) or tuple(conv.padding) != (0,):
        raise UnknownLayer(f"{conv._about} is no projection of each token")
    blocks = conv.weight.reshape(groups, out // groups, each).swapaxes(1, 2)[:, :, None]
    return (blocks * np.eye(groups)[:, None, :, None]).reshape(groups * each, out), conv.bias


def squeezebert(m: Mirror, a: Arguments) -> Any:
    """BERT with features before tokens, and projections in groups."""
    made: dict[str, Any] = {"d": m.attention_head_size, "bias": a.attention_mask}
    for name in ("query", "key", "value"):
        made[f"w_{name}"], made[f"b_{name}"] = of_pointwise(getattr(m, name))
    if m.softmax.dim != -1:
        raise UnknownLayer(f"{m._about} weighs along another axis")
    return recipes.multi_head(a.hidden_states.swapaxes(1, 2), **made).swapaxes(1, 2)


def fsmt(m: Mirror, a: Arguments) -> Any:
    """BART with tokens along the first axis; a boolean mask of keys, and one that is added."""
    x, key = a.query.swapaxes(0, 1), a.key
    memory = key.swapaxes(0, 1) if m.encoder_decoder_attention else None
    made = weights(m, *OUT.split()) | {"d": m.head_dim, "scale": m.scaling, "bias": a.attn_mask}
    if a.layer_state is not None:
        raise UnknownLayer("the layer is the full pass: it takes no cache of earlier tokens")
    if a.key_padding_mask is not None and a.key_padding_mask.ndim:
        hidden = a.key_padding_mask.astype(bool)[:, None, None]  # whatever is added to these is written over
        if a.attn_mask is not None and (hidden | np.isneginf(a.attn_mask)).all(axis=-1).any():
            raise UnknownLayer(f"{m._about} is not known where a query sees no key")
        made |= filled(hidden, m.scaling, m)
        made["bias"] = made["bias"] if a.attn_mask is None else [made["bias"], np.where(hidden, 0, a.attn_mask)]
    return recipes.multi_head(x, memory=memory, **made).swapaxes(0, 1)


def layoutlmv2(m: Mirror, a: Arguments) -> Any:
    """Queries, keys and values of one projection, or of three."""
    return (FAST if m.fast_qkv else SLOW)(m, a)


TEXT: dict[str, Any] = {"inline": True, "scale": None, **SIZE}
PAGE: dict[str, Any] = {"mask": None, "position_bias": of_pages, "filled": lambda m, a: a.attention_mask.astype(bool)}
FAST = Dense(
    "qkv_linear -",
    layout=lambda m, w: (m.q_bias.reshape(-1), None, m.v_bias.reshape(-1)) if w is None else thirds(m, w),
    **PAGE,
    **TEXT,
)
SLOW = Dense(BERT, **PAGE, **TEXT)
for _reading, _recipe in (
    (perceiver, recipes.pre_norm),
    (lilt, recipes.with_layout),
    (bros, recipes.with_boxes),
    (luke, recipes.entity_aware),
    (wavlm, recipes.gated_distances),
    (fun_asr, recipes.with_memory),
    (patchtsmixer, recipes.gated_features),
    *((reading, recipes.multi_head) for reading in (squeezebert, fsmt, layoutlmv2)),
):
    _reading.recipe = _recipe  # type: ignore[attr-defined]

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
    "909c1887e6": perceiver,
    "50e39ea8e5": lilt,
    "fa84bf82b8": bros,
    "5eb26a089c": luke,
    "e1fc9de203": wavlm,
    "531ab270e1": fun_asr,
    "b13d94f400": patchtsmixer,
    "49c5b51d81": squeezebert,
    "3a357aef85": fsmt,
    "4018df2a79": layoutlmv2,
}  # fmt: skip
FUNCTIONS = {
    "13bdda6962": rotation(),
    "561ab751ba": rotation("neighbours", doubled=True),
}
PARTS = {"c5181e26c1 2e741e541e": lambda m: None}  # the memory of Fun-ASR, a product of matrices
