"""The node cases that ONNX publishes for Attention and RotaryEmbedding: every one, as our options say it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers import Array

from attention_np import dot_product, masks, rotary

onnx = pytest.importorskip("onnx", reason="ONNX's own cases need onnx: pip install attention-np[peers]")

ATTENTION, ROTARY = 85, 8  # how many there are at least
ROUNDINGS = 8  # theirs are computed in the dtype throughout, and are off by so many of its last bits
OF_BLOCK = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Any]]:
    """Those of each operator, without the ones that spell it out in others."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, list[Any]] = {"Attention": [], "RotaryEmbedding": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators
        everything = collect_testcases(None)
    for case in everything:
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
    if query.ndim == 3:  # heads side by side
        heads, few = attributes["q_num_heads"], attributes["kv_num_heads"]
        query, key, value = (
            x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2) for x, count in ((query, heads), (key, few), (value, few))
        )
    if "past_key" in inputs:  # a cache: keys and values one behind the other
        key, value = np.concatenate([inputs["past_key"], key], 2), np.concatenate([inputs["past_value"], value], 2)
    present = {"present_key": key, "present_value": value}
    (n, m), group = (query.shape[2], key.shape[2]), query.shape[1] // key.shape[1]
    key, value = (x.repeat(group, axis=1) for x in (key, value))

    past = inputs["past_key"].shape[2] if "past_key" in inputs else 0
    offsets = np.atleast_1d(past)  # where the first query stands among the keys
    mask = np.ones((1, 1, n, m), np.bool_)
    if "nonpad_kv_seqlen" in inputs:
        offsets = inputs["nonpad_kv_seqlen"] - n
        mask = masks.padding(inputs["nonpad_kv_seqlen"], m, heads=True)
    distances = np.arange(m) - np.arange(n)[:, None] - offsets[:, None, None, None]  # (batch, 1, n, m)
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if attributes.get("is_causal"):
        mask = mask & (distances <= 0)
    mask = mask & ((left < 0) | (distances >= -left)) & ((right < 0) | (distances <= right))
    bias = None
    if "attn_mask" in inputs:  # what it lacks at the end is hidden
        given = inputs["attn_mask"]
        beyond = [(0, 0)] * (given.ndim - 1) + [(0, m - given.shape[-1])]
        if given.dtype == np.bool_:
            mask = mask & np.pad(given, beyond)
        else:
            bias = np.pad(given, beyond, constant_values=-np.inf)
    softcap = attributes.get("softcap") or None
    options = {"mask": mask, "bias": bias, "scale": attributes.get("scale"), "softcap": softcap}
    output, cache = dot_product.forward(query, key, value, **options)
    if inputs["Q"].ndim == 3:
        output = output.swapaxes(1, 2).reshape(*inputs["Q"].shape[:2], -1)
    shape = cache.scores.shape
    hidden = np.where(np.broadcast_to(mask, shape), cache.scores, cache.scores.dtype.type(-np.inf))
    mode = attributes.get("qk_matmul_output_mode", 0)
    products = dot_product.forward(query, key, value, scale=attributes.get("scale"), softcap=softcap)[1].scores
    return {"Y": output, "qk_matmul_output": {2: hidden, 3: cache.weights}.get(mode, products), **present}


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
        heads = x if x.ndim == 4 else x.reshape(*x.shape[:2], attributes["num_heads"], -1).swapaxes(1, 2)
        width, interleaved = attributes.get("rotary_embedding_dim") or None, bool(attributes.get("interleaved"))
        angles = rotary.Angles.of(heads.shape[-1], width=width, interleaved=interleaved)
        turned = rotary.turn(x=heads, cos=cos[:, None], sin=sin[:, None], first=angles.first, second=angles.second)[0]
        found = turned if x.ndim == 4 else turned.swapaxes(1, 2).reshape(x.shape)
        assert close(found, outputs["output"]), case.name
