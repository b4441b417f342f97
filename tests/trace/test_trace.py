"""A trace is an op's page, carried out on a sentence and held against the op."""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, each, leaves, relative_error

from attention_np import cases, dot_product, masks, multi_head, trace
from attention_np.trace import _pages

from .traced import OPS, SENTENCE, every_op

both_kinds = each("is_causal", [True], long=[False])


@both_kinds
@every_op
def test_the_steps_are_the_arrays_of_the_op(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal)
    found, module = {step.name: step.array for step in steps.steps if step.name}, cases.OPS[op]
    inputs = {name: found[name] for name in signature(module.forward).parameters if name in found}
    options: dict[str, Any] = {"mask": masks.causal(6)} if is_causal else {}
    if op == "multi_head":
        assert np.array_equal(found["query"], found["key"])  # self-attention
        inputs["parameters"] = multi_head.Parameters(*(found[name] for name in multi_head.Parameters._fields[:8]))
        options["num_heads"] = 2
        assert np.array_equal(steps["dL/dX"].array, found["d_query"] + found["d_key"] + found["d_value"])
    output, cache = module.forward(**inputs, **options)
    intermediate = {name: getattr(cache, name) for name in ("weights", "hidden", "combined") if hasattr(cache, name)}
    gradients = leaves(module.backward(found["d_output"], cache))
    expected = {"output": output, **intermediate, **{f"d_{path.rpartition('.')[2]}": x for path, x in gradients}}
    assert {"d_query", "d_value", "weights"} <= expected.keys() & found.keys()
    for name in (expected.keys() & found.keys()) - {"d_b_key"}:  # which is zero but for rounding
        assert found[name].shape == expected[name].shape, name
        assert relative_error(found[name], expected[name]) < 1e-14, name
    if op != "multi_head":
        assert np.array_equal(np.isinf(found["scores"]), ~masks.causal(6) & is_causal)


@both_kinds
@every_op
def test_every_step_but_the_given_ones_names_an_equation_and_no_step_comes_twice(op: str, is_causal: bool) -> None:
    steps = OPS[op](SENTENCE, is_causal=is_causal).steps
    assert all(bool(step.tags) == bool(step.formula) == (step.part != "given") for step in steps)
    assert len({step.symbol for step in steps}) == len(steps)
    assert all(len(step.axes) == step.array.ndim for step in steps)
    assert [step.part for step in steps] == sorted(
        (step.part for step in steps), key=["given", "forward", "backward"].index
    )


@each("op", cases.OPS)
@each("sentence", ["I love AI"], long=["我爱自然语言处理"])
def test_a_trace_of_any_op_ends_with_its_output_and_gradients_and_agrees_with_it(op: str, sentence: str) -> None:
    steps = trace.of(op, sentence)
    inputs = {step.name for step in steps.steps if step.part == "given" and step.name != "d_output"} - {""}
    assert {"output", "d_output", *(f"d_{name}" for name in inputs)} <= {step.name for step in steps.steps}
    assert 0 < steps.error < 1e-13


def test_a_wrong_equation_of_the_page_shows_in_the_check(tmp_path: Path, monkeypatch: Patch) -> None:
    page = (_pages.PAGES / "dot_product.md").read_text(encoding="utf-8")
    right, wrong = r"{\partial L}{\partial A} = G V^\top", r"{\partial L}{\partial A} = - G V^\top"
    assert page.count(right) == 1
    (tmp_path / "dot_product.md").write_text(page.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(_pages, "PAGES", tmp_path)
    assert trace.dot_product(SENTENCE).error > 0.1


def test_a_wrong_gradient_shows_in_the_check(monkeypatch: Patch) -> None:
    right = dot_product.backward
    monkeypatch.setattr(dot_product, "backward", lambda *given: right(*given)._replace(key=-right(*given).key))
    assert trace.dot_product(SENTENCE).error > 1e-3


def test_an_unknown_symbol_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(KeyError, match="'X' is not among the symbols of this trace: Q, K, V, B, S, A"):
        OPS["dot_product"](SENTENCE, is_causal=False)["X"]


@each(
    ("given", "options", "error", "reason"),
    [
        ("", {}, ValueError, "the sentence has no words: ''"),
        ([], {}, ValueError, "tokens must hold at least one word"),
        ([1, 2], {}, TypeError, "tokens must be a sentence or a list of words, not of int"),
        ("a b", {"d": 0}, ValueError, "d must be at least 1, not 0"),
        ("a b", {"d": 65}, ValueError, "d must be at most 64, to be written down, not 65"),
        ("a b", {"num_heads": 3}, ValueError, "num_heads=3 must divide d=4"),
        ("a b", {"is_causal": 1}, TypeError, "is_causal must be True or False, not 1"),
        ("a b", {"seed": 0.5}, TypeError, "seed must be an integer, not float"),
    ],
)
def test_what_cannot_be_traced_is_refused_in_a_sentence(
    given: Any, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        trace.multi_head(given, **options)
