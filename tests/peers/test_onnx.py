"""The node cases that ONNX publishes for Attention and RotaryEmbedding: every one, as our options say it."""

import importlib
from typing import Any

import numpy as np
import pytest
from helpers import Array

from attention_np import dot_product, masks, rotary
from attention_np.multi_head import combine_heads, split_heads

onnx = pytest.importorskip("onnx", reason="ONNX's own cases need onnx: pip install attention-np[peers]")

ATTENTION, ROTARY = 85, 8  # how many there are at least
ROUNDINGS = 8  # theirs are computed in the dtype throughout, and are off by so many of its last bits
OF_BLOCK = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Any]]:
    """Those of each operator, without the ones that spell it out in others."""
    for module in ("attention", "rotaryembedding"):  # collects its cases alone; all take long
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    found: dict[str, list[Any]] = {"Attention": [], "RotaryEmbedding": []}
    for case in importlib.import_module("onnx.backend.test.case.node")._NodeTestCases:
        (node, *rest) = case.model.graph.node
        if not rest and node.op_type in found:
            found[node.op_type].append(case)
    return found


def read(case: Any) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array]]:
    """The attributes of a case, its inputs and its outputs, by the operator's names."""
    node = case.model.graph.node[0]
    (inputs, outputs), *_ = case.data_sets
    attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    given = [
        dict(zip([x for x in names if x], arrays, strict=True))
        for names, arrays in ((node.input, inputs), (node.output, outputs))
    ]
    return attributes, *given


def close(found: Array, expected: Array) -> bool:
    """Both may be NaN, and zero must be zero."""
    a, b = (np.asarray(x).astype(np.float64) for x in (found, expected))
    scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    return bool(
        (np.isclose(a, b, rtol=0, atol=ROUNDINGS * OF_BLOCK[expected.dtype.name] * scale, equal_nan=True)).all()
    )


def attention(attributes: dict[str, Any], inputs: dict[str, Array]) -> dict[str, Array]:
    """ONNX's Attention by :mod:`attention_np.dot_product`."""
    query, key, value = (inputs[name] for name in ("Q", "K", "V"))
    if query.ndim == 3:
        heads, few = attributes["q_num_heads"], attributes["kv_num_heads"]
        query, key, value = (split_heads(x, count) for x, count in ((query, heads), (key, few), (value, few)))
    past = 0
    if "past_key" in inputs:  # a cache: keys and values one behind the other
        past = inputs["past_key"].shape[2]
        key, value = np.concatenate([inputs["past_key"], key], 2), np.concatenate([inputs["past_value"], value], 2)
    present = {"present_key": key, "present_value": value}
    (batch, heads, n), m, few = query.shape[:3], key.shape[2], key.shape[1]

    offsets = [past]  # where the first query stands among the keys
    mask = np.ones((1, 1, n, m), np.bool_)
    if "nonpad_kv_seqlen" in inputs:
        offsets = [int(length) - n for length in inputs["nonpad_kv_seqlen"]]
        mask = masks.padding(inputs["nonpad_kv_seqlen"], m, heads=True)
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if attributes.get("is_causal"):
        mask = mask & np.stack([masks.causal(n, m, offset=offset) for offset in offsets])[:, None]
    if left >= 0 or right >= 0:
        sides = {"left": None if left < 0 else left, "right": None if right < 0 else right}
        mask = mask & np.stack([masks.sliding_window(offset + n, m, **sides)[-n:] for offset in offsets])[:, None]
    bias = None
    if "attn_mask" in inputs:  # what it lacks at the end is hidden
        given = inputs["attn_mask"]
        beyond = [(0, 0)] * (given.ndim - 1) + [(0, m - given.shape[-1])]
        if given.dtype == np.bool_:
            mask = mask & np.pad(given, beyond)
        else:
            bias = np.pad(given, beyond, constant_values=-np.inf)

    def in_groups(x: Array | None) -> Array | None:
        """A head of keys and values serves several of queries: an axis of its own, which broadcasts."""
        if x is None or x.ndim < 3:
            return x
        return x[..., :, None, :, :] if x.shape[-3] < heads else x.reshape(*x.shape[:-3], few, -1, *x.shape[-2:])

    softcap, scale = attributes.get("softcap") or None, attributes.get("scale")
    arrays = [in_groups(x) for x in (query, key, value)]
    options = {"bias": in_groups(bias), "mask": in_groups(mask), "scale": scale, "softcap": softcap}
    output, cache = dot_product.forward(*arrays, **options)
    output, scores, weights = (x.reshape(batch, heads, n, -1) for x in (output, cache.scores, cache.weights))
    _, without = dot_product.forward(*arrays, scale=scale, softcap=softcap)
    raw, capped = (x.reshape(scores.shape) for x in (products_of(without), without.scores))
    hidden = np.where(np.broadcast_to(mask, scores.shape), scores, scores.dtype.type(-np.inf))
    of_mode = {0: raw, 1: capped, 2: hidden, 3: weights}
    y = combine_heads(output) if inputs["Q"].ndim == 3 else output
    return {"Y": y, "qk_matmul_output": of_mode[attributes.get("qk_matmul_output_mode", 0)], **present}


def products_of(cache: dot_product.Cache) -> Array:
    """The scaled products, before a softcap if there is one, without a bias."""
    return cache.scores if cache.uncapped is None else cache.uncapped


def test_every_case_of_attention_holds(cases: dict[str, list[Any]]) -> None:
    assert len(cases["Attention"]) >= ATTENTION
    for case in cases["Attention"]:
        attributes, inputs, outputs = read(case)
        found = attention(attributes, inputs)
        for name, expected in outputs.items():
            assert found[name].shape == expected.shape, (case.name, name)
            assert close(found[name], expected), (case.name, name)


def test_every_case_of_rotary_embedding_holds(cases: dict[str, list[Any]]) -> None:
    """Theirs takes cosines and sines as they are given, and these are no angles' in the cases."""
    assert len(cases["RotaryEmbedding"]) >= ROTARY
    for case in cases["RotaryEmbedding"]:
        attributes, inputs, outputs = read(case)
        x, cos, sin = (inputs[name] for name in ("input", "cos_cache", "sin_cache"))
        if "position_ids" in inputs:
            cos, sin = cos[inputs["position_ids"]], sin[inputs["position_ids"]]
        heads = x if x.ndim == 4 else split_heads(x, attributes["num_heads"])
        width, interleaved = attributes.get("rotary_embedding_dim") or None, bool(attributes.get("interleaved"))
        angles = rotary.Angles.of(heads.shape[-1], width=width, interleaved=interleaved)
        turned = rotary.turn(x=heads, cos=cos[:, None], sin=sin[:, None], first=angles.first, second=angles.second)[0]
        found = turned if x.ndim == 4 else combine_heads(turned)
        assert close(found, outputs["output"]), case.name
