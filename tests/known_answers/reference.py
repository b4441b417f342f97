"""Attention as kernels have it, by the ops of the package and its masks, which the answers have no part in."""

from itertools import accumulate
from typing import Any

import numpy as np
from helpers import Array

from attention_np import blockwise, dot_product, masks


def attention(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """What :func:`known_answers.verify` takes, in the dtype of the queries, or in float32 of a shorter one."""
    if "kept" in inputs:
        raise NotImplementedError  # the ops draw which weights are kept
    if inputs["query"].ndim == 3:  # packed, and no samples
        of_one = attention({name: x if name == "sink" else x[None] for name, x in inputs.items()}, options)
        return {name: x if name == "d_sink" else x[0] for name, x in of_one.items()}
    of = {name: x if x.dtype == np.bool_ else wide(x) for name, x in dequantised(inputs).items()}
    tangents = {name[2:]: of.pop(name) for name in inputs if name.startswith("v_")}
    query, key = of["query"], of["key"]
    few, group = key.shape[-3], query.shape[-3] // key.shape[-3]
    value = of["value"] if "value" in of else key[..., : options["value_width"]]
    taken = paged(key, options), paged(value, options)

    def grouped(x: Array) -> Array:  # (..., h, a, b) or (..., 1, a, b) to (..., few, group, a, b)
        return x.reshape(*x.shape[:-3], few, group, *x.shape[-2:]) if x.shape[-3] > 1 else x[..., None, :, :]

    def ungrouped(x: Array, rank: int) -> Array:
        return x.reshape(*x.shape[:-rank], -1, *x.shape[len(x.shape) - rank + 2 :])

    n, m = query.shape[-2], taken[0].shape[-2]
    mask = grouped(visible(options, n, m) & of.get("mask", np.True_))
    if "block_table" in options:
        there = np.repeat(np.array(options["block_table"]) >= 0, key.shape[-2], axis=-1)
        mask = mask & there[:, None, None, None, :]
    arrays = {"query": grouped(query), "key": taken[0][..., None, :, :], "value": taken[1][..., None, :, :]}
    arrays |= {"bias": grouped(np.broadcast_to(of["bias"], (*query.shape[:-1], m)))} if "bias" in of else {}
    arrays |= {"sink": np.broadcast_to(of["sink"], query.shape[:-2]).reshape(-1, few, group)} if "sink" in of else {}
    if "slopes" in of:
        distance = -np.abs(np.arange(m) - np.arange(n)[:, None]).astype(query.dtype)
        each = of["slopes"][:, None, None] * distance
        arrays["bias"] = grouped(np.broadcast_to(each, (*query.shape[:-1], m)))
    given = {name: options[name] for name in ("scale", "softcap") if name in options}
    d_output = grouped(of["d_output"])
    output, cache = blockwise.forward(**arrays, mask=mask, **given)
    lse = {"d_logsumexp": of["d_logsumexp"].reshape(cache.logsumexp.shape)} if "d_logsumexp" in of else {}
    gradients = blockwise.backward(d_output, cache, **lse)._asdict()
    found = {
        "output": ungrouped(output, 4),
        "logsumexp": ungrouped(cache.logsumexp, 3),
        "d_query": ungrouped(gradients["query"], 4),
        "d_key": unpaged(gradients["key"][..., 0, :, :], key.shape, options),
        "d_value": unpaged(gradients["value"][..., 0, :, :], value.shape, options),
    }
    if "value" not in of:
        found["d_key"][..., : options["value_width"]] += found.pop("d_value")
    d_bias = ungrouped(gradients["bias"], 4) if gradients.get("bias") is not None else None
    if "slopes" in of:
        found["d_slopes"] = (d_bias * distance).sum(axis=(0, 2, 3))
    elif d_bias is not None:
        found["d_bias"] = summed_to(d_bias, of["bias"].shape)
    if "sink" in of:
        found["d_sink"] = summed_to(ungrouped(gradients["sink"][..., None, None], 4)[..., 0, 0], of["sink"].shape)
    if tangents:
        moving = {name: grouped(x) if name == "query" else x[..., None, :, :] for name, x in tangents.items()}
        _, cache = dot_product.forward(**arrays, mask=mask, **given)
        along = dot_product.Gradients(**dict.fromkeys(dot_product.Gradients._fields) | moving)
        d_d_output, products = dot_product.double_backward(along, d_output, cache)
        found |= {"d_d_output": ungrouped(d_d_output, 4), "hvp_query": ungrouped(products.query, 4)}
        found |= {f"hvp_{name}": getattr(products, name)[..., 0, :, :] for name in ("key", "value")}
    return found


def wide(x: Array) -> Array:
    return x.astype(x.dtype if x.dtype in (np.float32, np.float64) else np.float32)


def dequantised(inputs: dict[str, Array]) -> dict[str, Array]:
    scales = {name.removesuffix("_descale"): x for name, x in inputs.items() if name.endswith("_descale")}
    blocks = {name: np.ones(np.array(inputs[name].shape) // x.shape, np.float32) for name, x in scales.items()}
    whole = {name: wide(inputs[name]) * np.kron(x, blocks[name]) for name, x in scales.items()}
    return {name: x for name, x in inputs.items() if not name.endswith("_descale")} | whole


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    leading = x.ndim - len(shape)
    axes = (*range(leading), *(i + leading for i, size in enumerate(shape) if size == 1))
    return x.sum(axis=axes).reshape(shape)


def visible(options: dict[str, Any], n: int, m: int) -> Array:
    """(batch or 1, 1, n, m)."""
    if "cu_seqlens_q" in options:
        starts = (np.diff(options[f"cu_seqlens_{x}"]) for x in "qk")
        of_query, of_key = (np.repeat(np.arange(len(x)), x) for x in starts)
        whole = masks.packed(of_query, of_key)
        for i, j in enumerate(of_query):
            first, stop = options["cu_seqlens_k"][j : j + 2]
            start, end = options["cu_seqlens_q"][j : j + 2]
            of_one = {name: x for name, x in options.items() if not name.startswith("cu_")}
            whole[i, first:stop] &= visible(of_one, end - start, stop - first)[0, 0, i - start]
        return whole[None, None]
    lengths = np.array(options.get("key_lengths", [m]))
    mask = masks.padding(lengths, m, heads=True)
    if "is_causal" in options or "window" in options:
        last = options.get("alignment") == "bottom-right"
        offsets = [options.get("offset", 0) + (int(x) - n if last else 0) for x in lengths]
        left, right = options.get("window", (None, None))
        each = []
        for offset in offsets:
            one = masks.causal(n, m, offset=offset) if options.get("is_causal") else np.ones((n, m), np.bool_)
            far = np.arange(m) - np.arange(n)[:, None] - offset
            one = one if left is None else one & (far >= -left)
            each.append(one if right is None else one & (far <= right))
        mask = mask & np.array(each)[:, None]
    if "indices" in options:
        chosen = masks.selected(np.array(options["indices"]), m)
        mask = mask & (chosen if chosen.ndim == 2 else chosen[:, None])
    return np.broadcast_to(mask, (*mask.shape[:-2], n, m))


def paged(x: Array, options: dict[str, Any]) -> Array:
    if "block_table" not in options:
        return x
    pages = x[np.array(options["block_table"])]  # (batch, blocks, h, size, d)
    whole: Array = pages.swapaxes(1, 2).reshape(len(pages), x.shape[1], -1, x.shape[-1])
    return whole


def unpaged(d_x: Array, shape: tuple[int, ...], options: dict[str, Any]) -> Array:
    if "block_table" not in options:
        return d_x.reshape(shape)
    total, table = np.zeros(shape, d_x.dtype), np.array(options["block_table"])
    parts = d_x.reshape(*d_x.shape[:2], table.shape[1], -1, d_x.shape[-1]).swapaxes(1, 2)
    np.add.at(total, table[table >= 0], parts[table >= 0])
    return total


def merge(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """The same of outputs over parts of the keys, one after the other."""
    del options
    of = {name: wide(x) for name, x in inputs.items()}
    parts = [blockwise.Partial(*part) for part in zip(of["outputs"], of["logsumexps"], strict=True)]
    whole = list(accumulate(parts, blockwise.merge))
    d_whole = blockwise.Partial(of["d_output"], of.get("d_logsumexp", np.zeros_like(whole[-1].logsumexp)))
    d_parts = []
    for first, second in zip(whole[-2::-1], parts[:0:-1], strict=True):
        d_whole, d_part = blockwise.merge_backward(d_whole, first, second)
        d_parts.append(d_part)
    d_outputs, d_logsumexps = (np.array(x) for x in zip(*[d_whole, *d_parts[::-1]], strict=True))
    found = {"output": whole[-1].output, "logsumexp": whole[-1].logsumexp}
    return found | {"d_outputs": d_outputs, "d_logsumexps": d_logsumexps}
