"""BERT, BART, Whisper, wav2vec 2.0, ESM: encoders of text, sound and proteins, and their decoders."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np.atlas._mirror import Mirror
from attention_np.atlas.classes.dense import BERT, OUT, SIZE, Dense, of_tokens, own_causal, thirds
from attention_np.atlas.recipes._steps import activated


def timesfm_factor(m: Mirror) -> Any:
    """TimesFM: softplus of a parameter, so that zeros make 1 / sqrt(d)."""
    return activated(m.scaling, "softplus") * (1.442695041 / m.head_dim**0.5)


READINGS = {
    "e9b486a2aa a613115d47 48ebf23c95": Dense(OUT, memory="key_value_states", turn=None),  # BART, wav2vec 2.0
    "2130e75b58": Dense(OUT, memory="encoder_hidden_states", turn=None),  # SeamlessM4T
    "c23aa7a294": Dense(memory="encoder_hidden_states", turn=None),  # Canary
    "b7ef8d2265": Dense(BERT, memory="encoder_hidden_states", **SIZE),
    "331b94fb41 b748c69ba0": Dense(BERT, **SIZE),
    "ea3c043364": Dense(BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", **SIZE),  # Q-Former
    "7b750488d9 69a9f1742f": Dense(BERT, inline=True, scale=None, **SIZE),  # FLAVA, ViLT
    "d8897a6312 0b544f0bef": Dense(  # BigBird, whole, and the text of BLIP
        BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", inline=True, scale=None, **SIZE
    ),
    "b619c16d13": Dense(OUT, turn=None, heads="num_heads", mask=None, packed="cu_seqlens"),
    "2882bb53c8": Dense(OUT, turn=None),  # Qwen2-Audio: queries are scaled before
    "34e5214b65": Dense(OUT, memory="key_value_states", turn=None),  # Whisper
    "55844d48fd": Dense(BERT, position_bias=lambda m, a: a.position_bias, **SIZE),  # LayoutLMv3
    "880fd42563": Dense(memory="cross_attention_states", turn=None),  # Dia
    "9a56ff59d4": Dense("q_lin k_lin v_lin out_lin", **SIZE),  # DistilBERT
    "0d8b253b24": Dense(norms="q_norm k_norm", of_all_heads=True),  # ESM C
    "afe7b8558e": Dense(norms="q_norm k_norm", gate="gate_proj"),  # ESMFold 2 atoms
    "c925d145f3": Dense(mask="attention_bias", turn=None, gate="gate_proj"),  # ESMFold 2 diffusion
    "acf1c423cd": Dense(OUT, memory="encoder_hidden_states", turn=None, norm_output="inner_attn_ln"),  # Kosmos-2
    "8ce7bf5952": Dense(OUT, memory="encoder_hidden_states", turn=None),
    "6aed5b1b6e": Dense(),  # LASR
    "458a09e6f3": Dense(OUT, memory="key_value_states", turn=None, inline=True),  # LED decoder
    "4e7ff912ad": Dense(BERT, memory="context", inline=True, scale=None, **SIZE),  # LXMERT
    "fdee6b47b8 50226add2b 9ba4f63f8f": Dense(BERT, memory="encoder_hidden_states", inline=True, scale=None, **SIZE),
    "5e730adef4": Dense("Wqkv Wo", layout=thirds, scale=lambda m, _: m.head_dim**-0.5),  # ModernBERT
    "fa510bf34f": Dense(
        "q k v o", inline=True, scale=None, position_bias=lambda m, a: a.position_bias, **SIZE
    ),  # MPNet
    "88d5db1206": Dense(norms="q_norm k_norm"),
    "2d3b198864": Dense(OUT, memory="key_value_states", turn=None),  # NLLB
    "de7473e778": Dense(OUT, memory="key_value_states", turn=None, inline=True, refused="position_bias"),
    "5b4633c310": Dense(turn=None, scale=1.0, query_factor=timesfm_factor),  # TimesFM
    "9c3e3c02f2": Dense(norms="q_norm k_norm", norm_last=True, scale=1.0, query_factor=timesfm_factor),
    "b59de0317b": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "57e08cbe6a": Dense(
        "q_lin k_lin v_lin out_lin", heads="n_heads", x="input", memory="kv", mask=None, turn=None, inline=True,
        scale=None, filled=lambda m, a: of_tokens(np.asarray(a.mask) == 0)
    ),  # XLM
    "48d12d52b2": Dense(
        BERT, size="attention_head_size", memory="encoder_hidden_states", cross_mask="encoder_attention_mask",
        scale=lambda m, _: m.scaling * m.attention_head_size**-0.5,
        turn_if=lambda m, _: m.position_embedding_type == "rotary"
    ),  # ESM
    "c2419d1aea": Dense(
        "att_proj out_proj", layout=thirds, turn=None, inline=True, scale=None,
        visible=lambda m, shape: own_causal(m, shape) if m.is_causal else None
    ),  # Bark
}  # fmt: skip
