"""The layouts in which others keep the parameters of multi-head attention, and how each is read.

What is read has the names of the fields of :class:`attention_np.multi_head.Parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_floating, as_integer
from attention_np._lib.arrays import Array


def _projections(query: str, key: str, value: str, output: str, **others: str) -> dict[str, str]:
    return {"w_query": query, "w_key": key, "w_value": value, "w_output": output, **others}


PLAIN = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = "query_key_value"  # of each head its query, key and value
LAYOUTS = {  # what the arrays are called in the attention layers of Hugging Face's models
    "llama": _projections(*PLAIN),
    "gemma2": _projections(*PLAIN),
    "qwen3": _projections(*PLAIN, query_gain="q_norm.weight", key_gain="k_norm.weight"),
    "gpt_oss": _projections(*PLAIN, sink="sinks"),
    "bloom": _projections("query", "key", "value", "dense"),
    "t5": _projections("q", "k", "v", "o"),
    "bert": _projections("self.query", "self.key", "self.value", "output.dense"),
}
BESIDE = {  # arrays of a layer that are no parameters of its attention
    "relative_attention_bias.weight",
    "rotary_emb.inv_freq",
    "output.LayerNorm.weight",
    "output.LayerNorm.bias",
}


def of_fused(
    names: tuple[str, str], weights: tuple[Any, Any], biases: tuple[Any, Any], is_transposed: bool = False
) -> dict[str, Any]:
    """The parameters of a projection of query, key and value in one, and of that of the output, with these `names`."""
    name = f"{names[0]}_weight"
    w_in = as_floating(name, weights[0])
    w_in = w_in.T if is_transposed else w_in
    d_model = len(w_in) if w_in.ndim else 0
    if w_in.shape != (d_model, 3 * d_model):
        shape = "(3 * d_model, d_model)" if is_transposed else "(d_model, 3 * d_model)"
        raise ValueError(f"{name} must have the shape {shape} ({name}.shape={np.shape(weights[0])})")
    w_out = _shaped(f"{names[1]}_weight", weights[1], (d_model, d_model))
    parameters = dict(zip(("w_query", "w_key", "w_value"), np.split(w_in, 3, axis=1), strict=True))
    parameters["w_output"] = w_out.T if is_transposed else w_out
    if biases[0] is not None:
        b_in = _shaped(f"{names[0]}_bias", biases[0], (3 * d_model,))
        parameters |= zip(("b_query", "b_key", "b_value"), np.split(b_in, 3), strict=True)
    if biases[1] is not None:
        parameters["b_output"] = _shaped(f"{names[1]}_bias", biases[1], (d_model,))
    return parameters


def of_layer(arrays: Mapping[str, npt.ArrayLike], layout: str, num_heads: int | None) -> dict[str, Any]:
    """The parameters of an attention layer of Hugging Face's, whose arrays have the names of `layout`."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    names = LAYOUTS[layout]
    unread = {name: as_floating(name, x) for name, x in arrays.items() if name not in BESIDE}
    if layout == "bloom" and FUSED + ".weight" in unread:
        unread = _unfused(unread, num_heads)
    linear = {name: unread.pop(f"{of}.weight", None) for name, of in names.items() if name.startswith("w_")}
    biases = {f"b_{name[2:]}": unread.pop(f"{names[name]}.bias", None) for name in linear}
    others = {name: unread.pop(of, None) for name, of in names.items() if name not in linear}
    missing = [f"{names[name]}.weight" for name, x in linear.items() if x is None]
    missing += [names[name] for name, x in others.items() if x is None]
    if missing or unread:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unread)} besides"
        raise ValueError(f"a layer of the layout {layout} {what} (its arrays: {', '.join(arrays)})")
    return {name: x.T for name, x in linear.items() if x is not None} | biases | others


def _unfused(arrays: dict[str, Array], num_heads: int | None) -> dict[str, Array]:
    """`arrays` with the three parts of a fused projection, which has query, key and value of each head in turn."""
    if num_heads is None:
        raise ValueError("num_heads is needed for the layout bloom, whose projections stand head by head")
    heads, parts = as_integer("num_heads", num_heads, least=1), dict(arrays)
    for kind in ("weight", "bias"):
        fused = parts.pop(f"{FUSED}.{kind}", None)
        if fused is None:
            continue
        if fused.ndim < 1 or fused.shape[0] % (3 * heads):
            raise ValueError(
                f"num_heads={heads} must divide a third of {FUSED}.{kind} ({FUSED}.{kind}.shape={fused.shape})"
            )
        by_head = fused.reshape(heads, 3, -1, *fused.shape[1:])  # (heads, 3, d, ...)
        for i, name in enumerate(("query", "key", "value")):
            parts[f"{name}.{kind}"] = by_head[:, i].reshape(-1, *fused.shape[1:])
    return parts


def _shaped(name: str, array: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    result = as_floating(name, array)
    if result.shape != shape:
        raise ValueError(f"{name} must have the shape {shape} ({name}.shape={result.shape})")
    return result
