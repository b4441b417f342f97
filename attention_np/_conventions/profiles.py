"""What the attention of known libraries does, axis by axis; an axis that a library does not have is left out.

PyTorch, JAX, ONNX and transformers have been asked as anybody's attention is, by ``tests/peers/test_conventions.py``;
flash-attention, xFormers and cuDNN say it in their documentation, and there is nothing to run them on.
"""

from __future__ import annotations

from attention_np._conventions.families import FAMILIES

OURS = {
    "layout": "batch, heads, queries",
    "scale": "1/sqrt(d_k)",
    "given scale": "multiplies",
    "heads": "consecutive",
    "mask": "true attends",
    "causal": "top-left",
    "window": "inclusive",
    "window's right": "inclusive",
    "window's alignment": "top-left",
    "bias": "added",
    "softcap": "before mask and bias",
    "sink": "as it is",
    "logsumexp": "natural",
    "empty row": "zero",
    "dropout": "divided by 1 - p",
}


def _with(*without: str, **others: str) -> dict[str, str]:
    changed = {name.replace("_s_", "'s ").replace("_", " "): value for name, value in others.items()}
    return {axis: value for axis, value in {**OURS, **changed}.items() if axis not in without}


PROFILES: dict[str, dict[str, str]] = {
    "attention_np": OURS,
    # torch.nn.functional.scaled_dot_product_attention: a boolean mask, or numbers that are added
    "PyTorch": _with("window", "window's right", "window's alignment", "softcap", "sink", "logsumexp"),
    # flash_attn_func: "aligned to the bottom right corner", "between ... inclusive", "the output will be zero"
    "flash-attention": _with(
        "mask", "bias", layout="batch, queries, heads", causal="bottom-right", window_s_alignment="bottom-right"
    ),
    # the operator Attention, by the reference evaluator of the package onnx
    "ONNX": _with("sink", "logsumexp", "dropout"),
    # attention layers, eager: masks are the lowest number of the dtype, aligned as a cache of keys is
    "transformers": _with(
        "logsumexp", "window's right", causal="bottom-right", window="exclusive",
        window_s_alignment="bottom-right", empty_row="mean",
    ),
    # memory_efficient_attention: LowerTriangularMask, LocalAttentionFromBottomRightMask, a bias as a tensor
    "xFormers": _with(
        "mask", "softcap", "sink", "empty row", layout="batch, queries, heads", window_s_alignment="bottom-right"
    ),
    # the graph's sdpa: use_causal_mask, diagonal_band_left_bound, which counts its own key, alignment TOP_LEFT
    "cuDNN": _with("mask", "softcap", "sink", window="exclusive", empty_row="mean"),
    # jax.nn.dot_product_attention
    "JAX": _with("softcap", "sink", "logsumexp", "dropout", layout="batch, queries, heads", empty_row="mean"),
}  # fmt: skip


def _of(op: str, *without: str, **others: str) -> dict[str, str]:
    """A profile of another op: ours, but for what is said."""
    named = {name.replace("_s_", "'s ").replace("_", " "): value for name, value in others.items()}
    ours = {axis: values[0] for axis, values in FAMILIES[op].axes.items()}
    return {axis: named.get(axis, value) for axis, value in ours.items() if axis not in without}


OF_FAMILIES: dict[str, dict[str, dict[str, str]]] = {
    "rotary": {
        "attention_np": _of("rotary"),
        # all of transformers: apply_rotary_pos_emb, as most have it, and YaRN of modeling_rope_utils
        "Llama": _of("rotary"),
        # the same with truncate=False
        "gpt-oss": _of("rotary", yarn_s_range="between pairs"),
        "GPT-J": _of(
            "rotary", "yarn's range", "yarn's amplitude", pairing="interleaved", layout="batch, queries, heads"
        ),
        # apply_rotary_pos_emb_interleave
        "DeepSeek-V3": _of("rotary", "slice", pairing="interleaved, given back in halves"),
    },
    "linear_attention": {
        "attention_np": _of("linear_attention"),
        # torch_recurrent_gated_delta_rule of Qwen3-Next
        "Qwen3-Next": _of("linear_attention", layout="batch, queries, heads"),
    },
}
