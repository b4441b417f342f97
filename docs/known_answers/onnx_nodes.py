"""Cases as node tests of ONNX: Attention-25, LinearAttention-27 and CausalConvWithState-27, in its own layout of files.

Their tests hold the forward pass alone, to tolerances of the runner's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers import KnownAnswer

OPSETS = {"Attention": 25, "LinearAttention": 27, "CausalConvWithState": 27}
DTYPES = ("float32", "float16", "bfloat16")
WITHOUT = {
    "hidden non-finite",
    "infinite scores",
    "zero d_output",
    "tangents",
    "eight bits",
}  # what theirs do otherwise, or not at all


class Node(NamedTuple):
    """A case as a node of ONNX; an input that it does not have is None."""

    op: str
    attributes: dict[str, Any]
    inputs: dict[str, Array | None]
    outputs: dict[str, Array]


def node_of(case: KnownAnswer) -> Node | None:
    """A case as ONNX has it, or None if it cannot say it."""
    make = {
        "dot_product": _attention,
        "attention": _attention,
        "linear_attention": _linear_attention,
        "short_conv": _convolution,
    }.get(case.op)
    if make is None or case.dtype not in DTYPES or WITHOUT & {*case.tags}:
        return None
    return make(case)


def _attention(case: KnownAnswer) -> Node | None:
    inputs = {name: x for name, x in case.inputs.items() if not name.startswith("d_")}
    options = dict(case.options)
    query, key = inputs["query"], inputs["key"]
    plain = inputs.keys() <= {"query", "key", "value", "mask", "bias"} and not {"mask", "bias"} <= inputs.keys()
    if not plain or options.keys() - {"scale", "softcap", "is_causal", "window"} or query.ndim != 4 or key.ndim != 4:
        return None
    if query.shape[0] != key.shape[0] or query.shape[1] % key.shape[1]:
        return None
    left, right = options.pop("window", None) or (None, None)
    attributes = {"is_causal": int(options.pop("is_causal", False)), **options}
    attributes |= {f"{x}_window_size": n for x, n in (("left", left), ("right", right)) if n is not None}
    added = inputs.get("mask", inputs.get("bias"))
    if added is not None:  # a shorter last axis would be filled up there
        added = np.array(np.broadcast_to(added, (*added.shape[:-2], *query.shape[-2:-1], key.shape[-2])))
    arrays = {"Q": query, "K": key, "V": inputs["value"], "attn_mask": added}
    return Node("Attention", attributes, arrays, {"Y": case.answers["output"]})


def _linear_attention(case: KnownAnswer) -> Node | None:
    inputs = {name: x for name, x in case.inputs.items() if not name.startswith("d_")}
    rules = {(): "linear", ("log_decay",): "gated", ("beta",): "delta", ("log_decay", "beta"): "gated_delta"}
    rule = rules.get(tuple(x for x in ("log_decay", "beta") if x in inputs))
    if inputs.keys() - {"query", "key", "value", "log_decay", "beta", "initial_state"} or inputs["query"].ndim not in (
        3,
        4,
    ):
        return None
    four = {name: x[:, None] if inputs["query"].ndim == 3 else x for name, x in inputs.items()}  # (b, h, n, d)
    if len({x.shape[:2] for x in four.values()}) > 1:
        return None

    def packed(name: str) -> Array | None:
        """As (b, n, h d)."""
        x = four.get(name)
        if x is None:
            return None
        x = np.moveaxis(x[..., None] if name == "beta" else x, 1, 2)
        return np.ascontiguousarray(x.reshape(*x.shape[:2], -1))

    heads = four["query"].shape[1]
    attributes = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule, **case.options}
    arrays = {
        **{name: packed(name) for name in ("query", "key", "value")},
        "past_state": four.get("initial_state"),
        "decay": packed("log_decay"),
        "beta": packed("beta"),
    }
    output, state = case.answers["output"], case.answers["final_state"]
    output, state = (x[:, None] if inputs["query"].ndim == 3 else x for x in (output, state))
    output = np.ascontiguousarray(np.moveaxis(output, 1, 2).reshape(len(output), output.shape[2], -1))
    return Node("LinearAttention", attributes, arrays, {"output": output, "present_state": state})


def _convolution(case: KnownAnswer) -> Node | None:
    x, w = case.inputs["x"], case.inputs["w"]
    if case.options or x.ndim != 3:
        return None

    def channels_first(a: Array | None) -> Array | None:
        return None if a is None else np.ascontiguousarray(a.swapaxes(1, 2))

    arrays = {
        "input": channels_first(x),
        "weight": np.ascontiguousarray(w.T[:, None]),
        "bias": case.inputs.get("b"),
        "past_state": channels_first(case.inputs.get("initial_state")),
    }
    outputs = {"output": case.answers["output"], "present_state": case.answers["final_state"]}
    return Node("CausalConvWithState", {}, arrays, {name: a.swapaxes(1, 2).copy() for name, a in outputs.items()})


def files(cases: Iterable[KnownAnswer]) -> dict[str, bytes]:
    """Models and their data, by their paths: a folder for each test, as the package onnx has them."""
    found: dict[str, bytes] = {}
    for case in cases:
        node = node_of(case)
        if node is not None:
            folder = f"onnx/test_{node.op.lower()}_{case.name.replace('/', '_').replace('-', '_')}"
            found |= {f"{folder}/{name}": content for name, content in _test(node, case.name).items()}
    return found


def _test(node: Node, name: str) -> dict[str, bytes]:
    from onnx import helper, numpy_helper

    given = {x: array for x, array in node.inputs.items() if array is not None}
    last = max(i for i, x in enumerate(node.inputs) if x in given)
    names = [x if x in given else "" for x in list(node.inputs)[: last + 1]]
    made = helper.make_node(node.op, names, list(node.outputs), **node.attributes)
    tensors = {x: numpy_helper.from_array(array, x) for x, array in (given | node.outputs).items()}
    about = {x: helper.make_tensor_value_info(x, tensor.data_type, tensor.dims) for x, tensor in tensors.items()}
    graph = helper.make_graph([made], name, [about[x] for x in given], [about[x] for x in node.outputs])
    opset = helper.make_opsetid("", OPSETS[node.op])
    model = helper.make_model_gen_version(graph, opset_imports=[opset], producer_name="attention_np")
    data = {f"input_{i}": tensors[x] for i, x in enumerate(given)}
    data |= {f"output_{i}": tensors[x] for i, x in enumerate(node.outputs)}
    return {"model.onnx": model.SerializeToString(deterministic=True)} | {
        f"test_data_set_0/{x}.pb": tensor.SerializeToString(deterministic=True) for x, tensor in data.items()
    }
