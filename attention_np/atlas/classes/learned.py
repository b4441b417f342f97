"""Decoders that learn something about scores and outputs beside projections: Doge, Dory, DiffLlama, Inkling, JetMoE."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import eager
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import Norm, affine
from attention_np.atlas.classes.compressed import check_choice, plain
from attention_np.atlas.classes.decoders import QKVO, Own
from attention_np.atlas.classes.dense import options_of, weights
from attention_np.atlas.recipes._steps import activated, in_heads
from attention_np.atlas.recipes.states import softplus


def doge(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Doge: values say how much each head of keys is looked at, and only the largest of these are."""
    x, lowest = a.hidden_states, np.finfo(a.hidden_states.dtype).min
    shown = activated(m.A * softplus(m.dt_proj(m.v_proj(x))), "exp").swapaxes(-1, -2)[..., None, :]  # (b, h, 1, m)
    bias = chain.where(np.zeros(shape, bool), 0.0, shown)  # (b, h, n, m)
    if mask is not None:
        mask = np.asarray(mask)[..., : shape[1]]
        bias = chain.where(~mask if mask.dtype.kind == "b" else mask != 0, lowest, bias)
    if shape[1] > m.keep_window_size:
        numbers = plain(bias)
        check_choice(m, np.where(numbers > lowest, numbers, -np.inf), m.keep_window_size)
        chosen = np.argsort(-numbers, axis=-1, kind="stable")[..., : m.keep_window_size]
        kept = np.zeros(numbers.shape, bool)
        np.put_along_axis(kept, chosen, True, axis=-1)
        bias = chain.where(kept, bias, lowest)
    if m.config._attn_implementation == "sdpa" and (plain(bias) <= lowest).all(axis=-1).any():
        raise UnknownLayer(f"{m._about} has a query that sees no key, whose gradients differ between sdpa's kernels")
    groups = m.num_key_value_groups
    bias = bias[..., np.repeat(np.arange(bias.shape[-3]), groups), :, :]
    return {"scale": m.scaling, "bias": bias, "groups": groups}


def dory(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Dory: each feature of a query has a factor, behind the turn; keys of an earlier loop are refused."""
    if a.shared_kv_states is not None and m.layer_idx in a.shared_kv_states:
        raise UnknownLayer(f"{m._about} is not known with keys of an earlier loop")
    factor = (m.sqk * m.sqk_scale).reshape(-1, 1, m.head_dim)
    made: dict[str, Any] = m.function("interface")(m, mask, scaling=m.scaling, shape=shape)
    return made | {"query_factor": factor * factor, "norm_gated": True}


def dory_gate(m: Mirror) -> tuple[Any, Any]:
    """What opens the output has a factor of each feature, too."""
    (w, b), factor = affine(m.gate_proj), m.s_gate * m.s_gate_scale
    return w * (factor * factor), None if b is None else b * (factor * factor)


def diffllama(m: Mirror, a: Arguments) -> Any:
    """DiffLlama."""
    x, made = a.hidden_states, weights(m, *QKVO.split())
    made |= m.function("interface")(m, a.attention_mask, scaling=m.scaling, shape=(x.shape[-2], x.shape[-2]))
    made |= m.function("apply_rotary_pos_emb")(*(np.asarray(y) for y in a.position_embeddings))
    made |= {"query_1": m.lambda_q1, "key_1": m.lambda_k1, "query_2": m.lambda_q2, "key_2": m.lambda_k2}
    epsilon = options_of(m.groupnorm, x)["epsilon"]
    return recipes.differential(x, **made, d=m.head_dim, first=m.lambda_init, epsilon=epsilon)


def inkling(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Inkling: each query has a bias for each distance, and grows with the logarithm of its position."""
    places, logits, growth = np.arange(shape[0]), m.rel_logits_proj, np.ones((shape[0], 1))
    if not m.is_sliding and m.config.log_scaling_n_floor is not None:
        far = np.maximum((places + 1) / m.config.log_scaling_n_floor, 1.0)
        growth += m.config.log_scaling_alpha * np.log(far)[:, None]
    distance = places[:, None] - places
    bias = in_heads(m.r_proj(a.hidden_states), logits.proj.shape[0]) @ logits.proj  # (b, h, n, distances)
    bias = bias[..., places[:, None], np.clip(distance, 0, logits.rel_extent - 1)] * growth  # (b, h, n, m)
    bias = chain.where((distance >= 0) & (distance < logits.rel_extent), bias, 0.0)
    made: dict[str, Any] = m.function("interface")(m, mask, scaling=m.scaling * growth, shape=shape, position_bias=bias)
    taps_key, taps_value = (part.conv1d.weight[:, 0, :].swapaxes(0, 1) for part in (m.k_sconv, m.v_sconv))
    visible = 1.0 if a.conv_mask is None else np.asarray(a.conv_mask)[:, :, None].astype(float)
    return made | {"taps_key": taps_key, "taps_value": taps_value, "visible": visible}


def neomme(m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """NeoMME: values may be added to, and outputs lose what they have of their own values."""
    made: dict[str, Any] = m.function("interface")(m, mask, scaling=m.scaling, shape=shape)
    made["w_output"], made["b_output"] = affine(m.output_projection.o_proj)
    return made | {"value_added": a.value_embeds, "strength": m.exclusive_self_attention.alpha}


def zaya(m: Mirror, a: Arguments) -> Any:
    """ZAYA."""
    given, part = a.attention_mask or {}, m.qkv_proj
    x = a.hidden_states if given.get("conv") is None else a.hidden_states * np.asarray(given["conv"])[:, :, None]
    made: dict[str, Any] = m.function("interface")(
        m, given.get("causal"), scaling=m.scaling, shape=(x.shape[-2], x.shape[-2])
    )
    made |= m.function("apply_rotary_pos_emb")(*(np.asarray(y) for y in a.position_embeddings))
    made.pop("groups", None)
    names = {"query": part.q_proj, "key": part.k_proj, "now": part.v_proj_current, "before": part.v_proj_delayed}
    for name, projection in (names | {"output": m.o_proj}).items():
        made[f"w_{name}"], made[f"b_{name}"] = affine(projection)
    w, d = part.conv_qk_grouped.weight, part.head_dim  # (h * d, d, width)
    made["w_mixed"] = w.reshape(-1, d, d, w.shape[-1]).swapaxes(0, 3).swapaxes(1, 3)  # (width, h, d_in, d_out)
    made |= {"taps": part.conv_qk_depthwise.weight[:, 0, :].swapaxes(0, 1), "b_taps": part.conv_qk_depthwise.bias}
    return recipes.compressed_convolutional(x, **made, b_mixed=part.conv_qk_grouped.bias, temperature=m.qk_norm.temp)


zaya.recipe = recipes.compressed_convolutional  # type: ignore[attr-defined]


def jetmoe(m: Mirror, a: Arguments) -> Any:
    """JetMoE."""
    x, experts, (w, none) = a.hidden_states, m.experts, affine(m.kv_proj)
    check_choice(m, plain(experts.router.layer(x)), m.top_k)
    w_router, b_router = affine(experts.router.layer)
    if none is not None or b_router is not None or experts.top_k != m.top_k or experts.router.top_k != m.top_k:
        raise UnknownLayer(f"{m._about} is no JetMoE as its configuration makes it")
    made = m.function("interface")(m, a.attention_mask, scaling=m.scaling, shape=(x.shape[-2], x.shape[-2]))
    made |= m.function("apply_rotary_pos_emb")(*(np.asarray(y) for y in a.position_embeddings))
    if made.pop("groups", 1) != 1:
        raise UnknownLayer(f"{m._about} has groups of heads")
    half, of_experts = w.shape[-1] // 2, (experts.input_linear.weight, experts.output_linear.weight)
    w_query, w_output = (y.swapaxes(-1, -2) for y in of_experts)
    return recipes.mixture(
        x, w_router, w_query, w[:, :half], w[:, half:], w_output, experts.bias, d=m.head_dim, top=m.top_k, **made
    )


jetmoe.recipe = recipes.mixture  # type: ignore[attr-defined]
diffllama.recipe = recipes.differential  # type: ignore[attr-defined]
NORMS: dict[str, Any] = {"norms": "q_norm k_norm"}

READINGS = {
    "7b96f58a77": Own(QKVO, scores=doge, **NORMS),
    "d52ecebc08": Own(QKVO, scores=dory, norm_output="attn_sub_norm", gate=dory_gate, **NORMS),
    "3aa9ee13d2": diffllama,
    "1b34a670c9": jetmoe,
    "fc3853c9c2": zaya,
    "1a6b37c571": Own(
        "q_proj k_proj v_proj -", scores=neomme, gate=lambda m: affine(m.output_projection.gate_proj), **NORMS
    ),
    "9d8aec2cee": Own(QKVO, scores=inkling, turn=None, **NORMS),
}
# Parts of Inkling, NeoMME, ZAYA and JetMoE: what they hold is read
HELD = (
    "bd84f62c91", "1f418ffb9d", "26d8ecff56", "b1b3da05c6", "3b0240b9ee", "7877a0b7bb", "b45085f5d8", "8050c352db",
    "c6e42f1649",
)  # fmt: skip
PARTS = {"7f62a2b6ad": Norm("unit", "eps"), **dict.fromkeys(HELD, lambda m: None)}  # of Dory
FUNCTIONS = {"6d05754634": eager(groups=True, takes=("position_bias",))}
