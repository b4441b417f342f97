"""The public conformance cases of ONNX's operator LinearAttention, read from the package that states them."""

import importlib
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close

from attention_np import linear_attention

reason = "the cases of ONNX need its package, with operator set 27: pip install 'onnx>=1.23'"
onnx = pytest.importorskip("onnx", minversion="1.23", reason=reason)
node_cases = pytest.importorskip("onnx.backend.test.case.node", reason=reason)
importlib.import_module("onnx.backend.test.case.node.linear_attention")  # collects its cases alone; all take long

CASES = {
    case.name: case
    for case in node_cases._NodeTestCases
    if [node.op_type for node in case.model.graph.node] == ["LinearAttention"]  # not written out, nor of other tests
}


def options_of(case: Any) -> dict[str, Any]:
    (node,) = case.model.graph.node
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {"update_rule": b"gated_delta", "scale": 0.0, **given}


def in_heads(x: Array, heads: int) -> Array:
    """(batch, n, heads * features) as (batch, heads, n, features)."""
    return np.moveaxis(x.reshape(*x.shape[:2], heads, -1), 1, 2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_case_has_these_outputs_and_states(name: str, chunk_size: int | None) -> None:
    case = CASES[name]
    (node,), options = case.model.graph.node, options_of(case)
    assert node.op_type == "LinearAttention"
    delta = options["update_rule"] in (b"delta", b"gated_delta")
    heads, groups = options["kv_num_heads"], options["q_num_heads"] // options["kv_num_heads"]
    ((given, expected),) = case.data_sets
    names = ("query", "key", "value", "past_state", "decay", "beta")
    present = [of_input for of_input, name in zip(names, node.input, strict=False) if name]
    x = dict(zip(present, given, strict=True))

    # a head of keys and values serves several of queries: an axis of its own, which broadcasts
    arrays: dict[str, Any] = {"query": in_heads(x["query"], heads * groups)}
    n, d_k = arrays["query"].shape[-2:]
    arrays["query"] = arrays["query"].reshape(-1, heads, groups, n, d_k)
    for of_tokens, ours in (("key", "key"), ("value", "value"), ("decay", "log_decay"), ("beta", "beta")):
        if of_tokens in x and (of_tokens != "beta" or delta):
            of_heads = heads if x[of_tokens].shape[-1] % heads == 0 else 1  # one beta may serve all heads
            arrays[ours] = in_heads(x[of_tokens], of_heads)[:, :, None]
    if "beta" in arrays:
        arrays["beta"] = arrays["beta"][..., 0]
    if "past_state" in x:
        arrays["initial_state"] = x["past_state"][:, :, None]
    output, cache = linear_attention.forward(**arrays, scale=options["scale"] or None, chunk_size=chunk_size)
    back = np.moveaxis(output.reshape(len(output), heads * groups, n, -1), 2, 1)
    digits = 8 * float(np.finfo(expected[0].dtype).eps)
    assert back.dtype == expected[0].dtype
    assert_close(back.reshape(expected[0].shape).astype(float), expected[0].astype(float), digits)
    assert_close(cache.final_state[:, :, 0].astype(float), expected[1].astype(float), digits)


def test_there_are_cases_of_every_rule() -> None:
    rules = {options_of(case)["update_rule"] for case in CASES.values()}
    assert rules == {b"linear", b"gated", b"delta", b"gated_delta"}
