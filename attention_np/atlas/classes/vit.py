"""ViT, CLIP, DETR, SAM and Qwen2-VL: pictures and video, and what looks for objects in them."""

from __future__ import annotations

from typing import Any

from attention_np import chain
from attention_np.atlas.classes.dense import BERT, DETR, OUT, SIZE, VISION, Dense, given, grouped, thirds

SAM: dict[str, Any] = {
    "x": "query",
    "memory": "key",
    "x_value": "value",
    "turn": None,
    "mask": None,
    "refused": "attention_similarity",
    "is_causal": "is_causal",
}
READINGS = {
    "febe1d6347 c20218ac53 2fe823830e": Dense(turn=None),  # ViT, Jamba
    "8e397cea22": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "c92d86bde1 5e5234f6e9": Dense(OUT, turn=None, scale="scale"),  # CLIP, OWL-ViT
    "2fb25d73f2 a032cc2b44": Dense(**DETR),
    "7a5e9c799b": Dense(memory="key_value_states", added_key="encoder_position_embeddings", **DETR),
    "95c8c861c8": Dense("qkv proj", layout=thirds, heads="num_heads", **VISION),  # Qwen2-VL vision
    "c08139e6ca": Dense(OUT, **VISION),
    "06817728fe": Dense("qkv proj", layout=thirds, heads="num_heads", **VISION, norms="q_norm k_norm"),
    "9712ce02eb": Dense("q_proj k_proj v_proj proj", **VISION),
    "a2788d36c4": Dense(OUT, turn=None, mask=None, packed="cu_seqlens"),
    "469c90c01e ab67b02651": Dense(
        "qkv projection", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale"
    ),  # BLIP-2
    "63243ed152": Dense(
        "qkv projection", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True
    ),
    "4b75344560": Dense(BERT, mask=None, is_causal="is_causal", **SIZE),  # DPT
    "7235e435e2": Dense(
        "query key value out_proj", x="queries", memory="keys", x_value="values", inline=True, scale=None, **SIZE
    ),  # Grounding DINO
    "368e5f2ca0": Dense(x="query", memory="key", x_value="value", turn=None, is_causal="is_causal"),  # SAM 3
    "0d970d36b9": Dense(
        "q_proj k_proj v_proj projection_layer", turn=None, norms="q_norm k_norm", of_all_heads=True, scale="scale"
    ),  # InternVL
    "9b4a2b12df": Dense(OUT, turn=None, mask=None, packed="cu_seqlens", scale="scale"),
    "573668fe86": Dense("qkv proj", layout=grouped(lambda m: (m.q_dim, m.kv_dim)), **VISION),
    "7ba78441cb": Dense(BERT, inline=True, scale=None, **SIZE),  # GIT
    "bb3560e1c8 c3d7663abc": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "a41589cfde": Dense("qkv proj", layout=thirds, heads="num_heads", turn=None, mask=None, packed="cu_seqlens"),
    "8cccb301dc": Dense(OUT, memory="encoder_hidden_states", turn=None, inline=True, scale="scale"),  # GroupViT
    "e6f5217f60": Dense(
        "q_proj k_proj v_proj projection_layer", turn=None, norms="q_norm k_norm", scale="scale", is_causal="is_causal"
    ),  # Janus
    "47952370ab": Dense(
        OUT, norms="q_norm k_norm", mask=None, refused="attention_mask", packed="cu_seqlens",
        turn="apply_rotary_pos_emb_vision"
    ),
    "da63ececc4": Dense(
        memory="encoder_hidden_states", cross_mask="encoder_attention_mask", turn_if=given()
    ),  # LightGlue
    "e30b313791": Dense(**SAM),  # SAM 2
    "7fff3fbce9": Dense(OUT, heads="num_attention_heads", **SAM),  # SAM
    "b649796a0c": Dense("qkv proj", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True),
    "0a67cb8e06": Dense("qkv -", layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale", inline=True),
    "d7a6a95d92": Dense(OUT, turn="apply_rotary_pos_emb_vision", scale="scale", is_causal="is_causal"),  # MLCD
    "46a7043177": Dense(BERT, inline=True, mask=None, scale=None, **SIZE),  # MobileViT
    "9546371272": Dense(memory="encoder_hidden_states", turn=None, is_causal="is_causal"),
    "67bf904712": Dense(OUT, turn=None),
    "614af7727a": Dense("query key value output", size="key_value_proj_dim", turn=None),  # Pix2Struct
    "4a177c013c": Dense("query key value output", turn=None),  # Kosmos-2.5
    "29afec1d95": Dense(turn_axis=0),  # Pixtral
    "2a03076d07": Dense("q k v proj", heads="num_heads", **VISION),
    "d4b5e6b5a7": Dense(turn=None, packed="cu_seqlens"),  # RADIO
    "99b4d0477c": Dense(OUT, turn="apply_rotary_pos_emb_vision", scale="scale"),
    "920a8a78a3": Dense(
        BERT, memory="encoder_hidden_states", cross_mask="encoder_attention_mask", inline=True, scale=None, **SIZE
    ),  # SuperGlue
    "f94726e82a": Dense(BERT, mask=None, is_causal="is_causal", **SIZE),  # VideoMAE
    "4e17e5446b": Dense(turn=None, softcap="attn_logit_softcapping"),  # VideoPrism
    "3eb7cef300": Dense(
        "q_proj k_proj v_proj -", x="queries", memory="keys", x_value="values", turn=None, scale="scale",
        is_causal="is_causal"
    ),  # V-JEPA 2
    "8df1919499": Dense(OUT, turn=None, scale="scale", is_causal="is_causal"),
    "e069435d31": Dense(
        "q_proj k_proj v_proj proj", x="queries", memory="keys", x_value="values", turn=None, mask=None, scale="scale"
    ),  # X-CLIP
    "88f150ce09": Dense(),  # DINOv3
    "af86740eb0": Dense(norms="q_norm k_norm"),  # Sapiens 2
    "7a32e8405d": Dense(
        x="latents", memory=lambda m, a: chain.concatenate([a.context, a.latents], axis=-2), turn=None,
        is_causal="is_causal"
    ),  # Idefics 2
}  # fmt: skip
