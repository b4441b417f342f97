"""Llama and the decoders of its kind, and those before: heads turned by position, grouped, normed, gated."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.dense import (
    OUT,
    Dense,
    a_head,
    given,
    grouped,
    not_shared,
    of_each_head,
    own_causal,
    own_scale,
    refuse_config,
    thirds,
)


def bigcode(m: Mirror, w: Any) -> Any:
    """GPTBigCode: one head of keys and values behind all of queries, or those of each head together."""
    if m.is_cross_attention:
        raise UnknownLayer(f"{m._about} is not known as cross attention")
    if m.multi_query:
        return grouped(lambda m: (m.embed_dim, m.kv_dim))(m, w)
    return of_each_head()(m, w)


def codegen(m: Mirror, w: Any) -> Any:
    """CodeGen: in parts for machines, of each its queries, values and keys."""
    if w is None:
        return None, None, None
    if w.shape[-1] != 3 * m.embed_dim:
        raise UnknownLayer(f"{m._about} has {w.shape[-1]} features of queries, keys and values, not 3 * {m.embed_dim}")
    apart = w.reshape(*w.shape[:-1], m.mp_num, 3, -1)
    return tuple(apart[..., i, :].reshape(*w.shape[:-1], -1) for i in (0, 2, 1))


def beam_gate(m: Mirror) -> tuple[Any, Any]:
    """Beam: each head's gate has a bias of its own."""
    w, b = affine(m.gate_proj)
    of_heads = m.gate_bias[np.repeat(np.arange(m.gate_bias.shape[0]), m.head_dim)]
    return w, of_heads if b is None else b + of_heads


def growth(m: Mirror, a: Arguments) -> Any:
    """Queries far behind grow by the logarithm of their position (Ministral 3): a factor of each, (b, 1, n, 1)."""
    parameters = m.config.rope_parameters
    beta, length = parameters["llama_4_scaling_beta"], parameters["original_max_position_embeddings"]
    return (1 + beta * np.log(1 + np.floor(np.asarray(a.position_ids) / length)))[:, None, :, None]


READINGS = {
    "63250adb2d 9f4eb9bb0a f37f16b520 b6594dfd91 49a30bd320 bb856258f9": Dense(),  # Llama, Mistral, Qwen2
    "78c0dd7b35 79cfacf8b3 ff1fe6e28c 44f518459c 6d67d3f803": Dense(),  # Mllama, GLM-4V, GLM-ASR, Mimi
    "aef315fb0c aaa7ce3efc 11df914c07 0b97017cc7": Dense(norms="q_norm k_norm"),  # Qwen3, Gemma 3
    "b3ac900c12": Dense(norms="q_norm k_norm", norm_if=lambda m, _: m.use_qk_norm),  # GLM-4
    "8b9e182b60": Dense(
        norms="q_norm k_norm", turn_if=lambda m, _: m.sliding_window is None or m.is_sliding
    ),  # EXAONE 4
    "7ffefe853c": Dense(OUT, norms="q_layernorm k_layernorm"),  # LFM2
    "5cf0507ba8": Dense(norms="q_norm k_norm", of_all_heads=True),  # OLMo 2
    "cfa776d14b": Dense(norms="query_layernorm key_layernorm", norm_last=True),  # HunYuan
    "f983a6f780": Dense(softcap="attn_logit_softcapping"),  # Gemma 2
    "a1fef84c93": Dense(turn_if=lambda m, _: m.sliding_window is not None),  # Cohere 2
    "286651543c": Dense(norms="q_norm k_norm", gate="gate_proj", turn_if=lambda m, _: m.is_local_attention),  # AFMoE
    "04f587f7fd": Dense(norm_output="attn_sub_norm"),  # BitNet
    "debfe602d8": Dense(  # Phi-3
        "qkv_proj o_proj",
        layout=grouped(lambda m: (m.config.num_attention_heads * m.head_dim, m.num_key_value_heads * m.head_dim)),
    ),
    "c8a051bfe3": Dense(turn_if=lambda m, _: m.sliding_window is not None or m.force_rope),  # Cohere 2 MoE
    "ce20bd8136 c188a7f5bf 8ef3e08b1e": Dense(turn_if=given()),  # Granite
    "cafe922eaf": Dense("Wq Wk Wv dense", x="q", memory="k", x_value="v", turn=None),  # CTRL
    "814ac11779": Dense(norms="q_norm k_norm", norm_value="v_norm"),  # EmbeddingGemma 2
    "cb6e95dcb2": Dense("query_key_value dense", layout=of_each_head("head_size"), size="head_size"),  # GPT-NeoX
    "d65f066238": Dense(
        "query_key_value dense", layout=of_each_head("head_size"), size="head_size", inline=True,
        scale=lambda m, _: 1.0 / float(m.norm_factor)
    ),
    "c3a5200fac": Dense(),  # GPT-OSS: a sink
    "5af3616c16": Dense(norms="q_norm k_norm", turn_if=lambda m, _: m.sliding_window is not None),  # Flint
    "3088014d13": Dense(OUT),  # GPT-J
    "83229d81e9": Dense("qkv_proj out_proj", layout=codegen),  # CodeGen
    "071d7382f8": Dense(OUT, turn=None, inline=True, scale=1.0, visible=own_causal),  # GPT-Neo
    "daa0f96019": Dense(gate="gate_proj"),  # HRM
    "e74b13ccd0": Dense(norms="q_norm k_norm"),  # Chameleon
    "af478fa1f4": Dense(
        norms="q_norm k_norm", gate=lambda m: a_head("g_proj")(m) if m.gate_per_head else affine(m.g_proj),
        gate_kind="softplus"
    ),  # Laguna
    "397e4ede17": Dense(scale=lambda m, _: m.scaling * m.key_multiplier),  # Falcon-H1
    "de4b1a5ae8": Dense(
        norms="q_norm k_norm", turn_if=given(), gate=beam_gate, scale=own_scale("attention_scaling")
    ),  # Beam
    "ec1a0e70c6": Dense("c_attn c_proj", layout=bigcode, turn=None),
    "77c6a501aa": Dense(norms="q_norm k_norm", gate="query"),  # Qwen3-Next
    "757b88c5db": Dense(scale=lambda m, a: m.scaling * growth(m, a)),  # Ministral 3
    "ee7c483ccc": Dense(norms="q_norm k_norm", memory="cross_attention_states", turn=None),  # Mllama
    "64c6d131ad 0997869f42 82877df6ab": Dense(turn=None),  # Mllama vision, Phi-4 audio, Zamba
    "37296f3e2d": Dense("q_proj k_proj v_proj Wo"),
    "6861406660": Dense(
        norms="q_norm k_norm", norm_if=lambda m, _: m.qk_norm_type in ("olmo", "qwen3"),
        of_all_heads=lambda m: m.qk_norm_type == "olmo"
    ),  # Molmo 2
    "8a043b6e8a": Dense(
        "Wqkv out_proj", layout=thirds, heads="n_heads", turn=None, mask=None, clip="clip_qkv", inline=True,
        scale="softmax_scale", position_bias=lambda m, a: a.position_bias, filled=lambda m, a: a.attention_mask
    ),  # MPT
    "ccc28f751a": Dense(
        norms="qk_norm qk_norm", turn_if=given(), gate="gate_proj", scale=lambda m, _: m.scaling * m.qk_scale_factor
    ),  # Muse
    "aa55ad10fa": Dense(
        norms="qk_norm qk_norm", turn_if=given(), gate="gate_proj", norm_output="o_norm", norm_each=True,
        scale=lambda m, _: m.scaling * m.qk_scale_factor
    ),
    "a37f769213": Dense(norms="q_norm k_norm", norm_last=True),  # nanochat
    "cc382e082b": Dense(clip=lambda m: m.config.clip_qkv),  # OLMo
    "3bbfe08b30": Dense(norms="q_norm k_norm", of_all_heads=True),  # OLMo 3
    "4a456c64a2": Dense(norms="q_norm k_norm", of_all_heads=True, turn_if=given()),
    "fb81369755": Dense(norms="q_norm k_norm", of_all_heads=True, clip=lambda m: m.config.clip_qkv),  # OLMoE
    "52ceee54c5": Dense(scale=lambda m, _: m.scaling**2),
    "04834f8d4c": Dense(OUT, turn=None),  # OPT
    "d29e168732": Dense(norms="q_layernorm k_layernorm", norm_if=lambda m, _: m.qk_layernorm),  # StableLM
    "b9b2293067": Dense(positions=lambda m, a: m.rotary_emb(None, a.position_ids)),  # RecurrentGemma
    "c29b47d402 8e3dd47e6c e8450d8cb9": Dense(),  # Seed-OSS, StarCoder 2
    "af3c3de0e1": Dense(turn_if=lambda m, _: bool(m.use_rope)),  # SmolLM 3
    "39924e61a0": Dense(norms="q_norm k_norm", gate=a_head("g_proj")),  # Step 3
    "653f458cf2": Dense(norms="q_norm k_norm", gate=a_head("g_proj"), gate_if="g_proj"),  # LFM 3
    "0096f43264 9eeceb1906": Dense(OUT, memory="key_value_states", turn=None, inline=True),  # TrOCR, XGLM
    "af459c8d13": Dense(turn_if=lambda m, _: refuse_config(m, "use_shared_attention_adapter") or m.config.use_mem_rope),
    "c8ab0aa67a": Dense("c_attn c_proj", layout=thirds, turn=None, refused="encoder_hidden_states"),  # GPT-2
    "4126c971b9": Dense(norms="q_norm k_norm", norm_value="v_norm", values_of_keys=True, is_causal="is_causal"),
    "b23c4fe723": Dense(norms="q_norm k_norm", norm_value="v_norm", values_of_keys=True, turn_if=not_shared()),
}  # fmt: skip
