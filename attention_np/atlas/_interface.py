"""What `eager_attention_forward` and the other attention functions of transformers do with masks, biases and groups.

Each is a function of the module's mirror that returns options of a recipe: mask, bias, scale, groups, softcap, sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import biases, chain, masks
from attention_np.atlas._mirror import Mirror, UnknownLayer

Interface = Callable[..., dict[str, Any]]


def eager(
    *, groups: bool | None = False, takes: tuple[str, ...] = (), sinks: str | None = None, masked: bool = True
) -> Interface:
    """`eager_attention_forward`: a mask of any kind is added to the scores; what it does not take, it ignores.

    `groups`: whether it repeats heads of keys, None if the module says so; `takes`: further arguments that it knows, of
    "softcap" and "position_bias"; `sinks`: the module's attribute that is a logit for each head; `masked`: whether it
    takes a mask.
    """

    def options(m: Mirror, mask: Any, *, scaling: Any = None, shape: Any = None, **given: Any) -> dict[str, Any]:
        biases = [given["position_bias"]] if "position_bias" in takes and given.get("position_bias") is not None else []
        if mask is not None and masked:
            mask = np.asarray(mask)
            biases.append(mask if mask.dtype.kind == "f" else mask.astype(float))
        made: dict[str, Any] = {"scale": scaling, "bias": biases if len(biases) > 1 else next(iter(biases), None)}
        if groups is not False:
            made["groups"] = m.num_key_value_groups if groups else m.get("num_key_value_groups", 1)
        if "softcap" in takes and given.get("softcap") is not None:
            if not given["softcap"]:
                raise UnknownLayer(f"{m._about} has a softcap of zero")
            made["softcap"] = given["softcap"]
        if sinks and m.has(sinks):
            made["sink"] = getattr(m, sinks)
        return made

    return options


def sdpa(m: Mirror, mask: Any, *, scaling: Any = None, shape: tuple[int, int], **given: Any) -> dict[str, Any]:
    """`sdpa_attention_forward`: a boolean mask hides, another is added; without, causal if the module says so."""
    if given.get("softcap") is not None:
        raise UnknownLayer(f"{m._about} has a softcap, which sdpa refuses")
    is_causal = given.get("is_causal")
    causal = (m.get("is_causal", True) if is_causal is None else is_causal) and mask is None and shape[0] > 1
    visible = masks.causal(*shape) if causal else None
    mask = None if mask is None else np.asarray(mask)
    bias = given.get("position_bias")
    if mask is not None and mask.dtype.kind == "b":
        visible = mask
    elif mask is not None:
        if mask.dtype.kind != "f":
            raise UnknownLayer("sdpa takes a mask of booleans or floats")
        if (mask.max(axis=-1, initial=-np.inf) <= np.finfo(np.float16).min).any():
            raise UnknownLayer(
                f"{m._about} has a query that sees no key, whose gradients differ between sdpa's kernels"
            )
        bias = mask if bias is None else [bias, mask]
    if visible is not None and isinstance(bias, biases.Bias):  # hides as well, where each query sees a key
        if not visible.any(axis=-1).all():
            raise UnknownLayer(f"{m._about} is not known with a learned bias where a query sees no key")
    elif visible is not None and bias is not None and not isinstance(bias, list):
        bias, visible = chain.where(visible, bias, np.finfo(bias.dtype).min), None
    groups = m.get("num_key_value_groups", 1)
    return {"scale": scaling, "bias": bias, "mask": visible, "groups": max(groups, 1)}


def filled(hidden: Any, scale: Any, m: Mirror) -> dict[str, Any]:
    """Options for scores that are filled with the lowest number where `hidden`: no gradient goes through these.

    A query all of whose keys are hidden has even weights, whatever its products are: its scale is zero.
    """
    if hidden is None:
        return {}
    hidden = np.asarray(hidden)
    dtype = next(iter(m._values.values())).dtype
    made: dict[str, Any] = {"bias": np.where(hidden, np.finfo(dtype).min, 0.0).astype(dtype)}
    everywhere = hidden.all(axis=-1, keepdims=True)
    if everywhere.any():
        if scale is None:
            raise UnknownLayer("a query whose keys are all hidden")
        made["scale"] = np.where(everywhere, 0.0, scale)
    return made
