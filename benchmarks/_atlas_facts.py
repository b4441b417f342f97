"""What the table of the atlas says of a class beside its errors: mechanisms, and sizes of a default configuration."""

from __future__ import annotations

import inspect
from typing import Any

from attention_np import deformable, dot_product, indexer, layer_norm, linear_attention, rms_norm, short_conv
from attention_np.atlas._layer import plain
from attention_np.atlas._source import CACHES

LINES = {"turned(": "rotary", "_latent": "latent", "differential": "two maps"}
OPS = {
    linear_attention: "state",
    short_conv: "short convolution",
    indexer: "indexer",
    deformable: "samples",
    rms_norm: "norm",
    layer_norm: "norm",
}
HEADS = "num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads"
KEY_HEADS = ("num_key_value_heads",)
FEATURES = "qk_head_dim", "head_dim", "d_kv"
WIDTHS = "hidden_size", "n_embd", "d_model", "dim"


def facts(made: Any, layer: Any, arguments: dict[str, Any], constructor: Any) -> dict[str, Any]:
    """Of a class that is whole."""
    about = {"mechanisms": mechanisms(layer, arguments)}
    return about | sizes(type(made), getattr(made, "config", None), constructor)


def mechanisms(layer: Any, arguments: dict[str, Any]) -> str:
    """What a layer computes with, by the steps of its forward and the lines of its recipe."""
    names = {word for text, word in LINES.items() if text in str(layer)}
    names |= {"gate"} if "w_gate" in str(layer) and "latent" not in names else set()
    _, cache = layer.forward(**plain(arguments))
    for step in cache.chain.steps:
        names |= {OPS[step.op]} if step.op in OPS else set()
        if step.op is linear_attention:
            names |= {
                word for key, word in {"log_decay": "decay", "beta": "delta rule"}.items() if key in step.arguments
            }
        if step.op is dot_product:
            names.add("dot product")
            names |= {word for word in ("softcap", "sink") if getattr(step.cache, word) is not None}
            names |= {"bias"} if any(hasattr(x, "array") for x in tuple_of(step.arguments.get("bias"))) else set()
    return ", ".join(sorted(names))


def tuple_of(x: Any) -> tuple[Any, ...]:
    """What a list of biases holds; one bias is a list of one."""
    return tuple(x) if isinstance(x, list) else (x,)


def sizes(kind: Any, config: Any, constructor: Any) -> dict[str, Any]:
    """Heads, their features, and numbers that a cache keeps of a token, as the default configuration has them."""
    import torch

    try:
        default = type(config)()
        heads, keys, d, width = (first(names, default) for names in (HEADS, KEY_HEADS, FEATURES, WIDTHS))
        arguments = constructor(kind, default)
        with torch.device("meta"):
            made = kind(**arguments)
    except Exception:  # no configuration of its own, or one that has no default, or another one for each layer
        return {}
    if d is None and isinstance(heads, int) and isinstance(width, int) and width % heads == 0:
        d = width // heads
    about = {name: x for name, x in (("heads", heads), ("key_heads", keys), ("d", d)) if isinstance(x, int)}
    sized = any(type(x) is int and name not in LAYER for name, x in arguments.items())  # by the runner, not the default
    if CACHES & set(inspect.signature(kind.forward).parameters) and not sized:
        rows = [x.shape[0] for name, x in made.named_parameters() if name in KEPT]
        about |= {"kept": sum(rows)} if rows else {}
    return about


LAYER = "layer_idx", "layer_id", "layer_number", "layer_index", "block_idx"
KEPT = (
    "k_proj.weight",
    "v_proj.weight",
    "kv_a_proj_with_mqa.weight",
)  # what makes the rows that a cache keeps of a token


def first(names: tuple[str, ...], config: Any) -> Any:
    """The first of these fields that a configuration has."""
    return next((x for name in names if (x := getattr(config, name, None)) is not None), None)
