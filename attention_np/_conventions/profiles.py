"""What the attention of known libraries does, axis by axis; an axis that a library does not have is left out.

PyTorch, JAX, ONNX and transformers have been asked as anybody's attention is, by ``tests/peers/test_conventions.py``;
flash-attention, xFormers and cuDNN say it in their documentation, and there is nothing to run them on.
"""

from __future__ import annotations

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
    "ONNX": _with("sink", "logsumexp"),
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
    "JAX": _with("softcap", "sink", "logsumexp", layout="batch, queries, heads", empty_row="mean"),
}  # fmt: skip
