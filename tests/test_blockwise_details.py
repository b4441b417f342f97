"""Corners of blockwise attention that only an error in one line of it would show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np import blockwise, dot_product, masks, rules
from attention_np._blockwise import kernels, scratch

FAR = 2.0**48  # scores of that size are multiples of 2**-4

SHUT = np.random.default_rng(5).random((5, 9)) < 0.7
SHUT[:, 2] = True


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(float)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"mask": SHUT},
        {"mask": rules.causal(offset=2)},
        {"mask": masks.causal(5, 9, offset=1)},
        {"dropout_p": 0.4, "rng": 3},
    ],
    ids=str,
)
def test_rows_of_which_the_log_sum_exp_is_too_large_have_the_same_gradients(
    options: dict[str, Any], batch: tuple[int, ...]
) -> None:
    """A number that is added to all scores changes no gradient, that of the log-sum-exp by the scores included."""
    query, key, bias = whole_numbers(*batch, 5, 3, seed=0), whole_numbers(9, 3, seed=1), whole_numbers(5, 9, seed=2)
    rng = np.random.default_rng(4)
    value, d_output = rng.standard_normal((*batch, 9, 2)), rng.standard_normal((*batch, 5, 2))
    d_logsumexp = rng.standard_normal((*batch, 5))
    d_logsumexp[..., 1] = 0
    d_output[..., [1, 3], :] = 0
    for of_rows in (None, d_logsumexp):
        found = []
        for added in (0.0, FAR):
            _, cache = blockwise.forward(query, key, value, bias=bias + added, scale=1.0, block_size=2, **options)
            assert (cache.logsumexp > 2.0**46).all() == (added == FAR)  # and so too coarse to have weights from
            found.append(blockwise.backward(d_output, cache, d_logsumexp=of_rows))
        for name in ("query", "key", "value", "bias"):
            near, far = (getattr(gradients, name) for gradients in found)
            np.testing.assert_allclose(far, near, rtol=0, atol=1e-13, err_msg=name)
        assert (found[1].query[..., 1, :] == 0).all()
        assert found[1].query[..., 3, :].any() == (of_rows is not None)


def test_a_row_at_plus_infinity_has_no_gradient_of_its_log_sum_exp() -> None:
    query, key, value = whole_numbers(4, 3, seed=0), whole_numbers(6, 3, seed=1), whole_numbers(6, 2, seed=2)
    bias = np.zeros((4, 6))
    bias[1, [2, 4]] = np.inf
    _, cache = blockwise.forward(query, key, value, bias=bias)
    assert cache.logsumexp[1] == np.inf
    found = blockwise.backward(np.zeros((4, 2)), cache, d_logsumexp=np.array([0.0, 1.0, 0.0, 0.0]))
    for gradient in found:
        np.testing.assert_array_equal(gradient, 0)
    others = blockwise.backward(np.zeros((4, 2)), cache, d_logsumexp=np.array([1.0, 1.0, 1.0, 1.0])).bias
    np.testing.assert_array_equal(others[1], 0)
    np.testing.assert_allclose(others[[0, 2, 3]].sum(axis=1), 1, rtol=1e-14)


@pytest.mark.parametrize("wide", ["query", "key", "value", "bias"])
@pytest.mark.parametrize(("narrow_dtype", "wide_dtype"), [("float32", "float64"), ("float16", "float32")])
def test_one_array_of_a_wider_dtype_makes_the_results_wide_as_in_dot_product(
    wide: str, narrow_dtype: str, wide_dtype: str
) -> None:
    shapes = {"query": (3, 2), "key": (4, 2), "value": (4, 5), "bias": (3, 4)}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(narrow_dtype) for name, shape in shapes.items()}
    arrays[wide] = arrays[wide].astype(wide_dtype)
    (ours, cache), (theirs, other) = (op.forward(**arrays) for op in (blockwise, dot_product))
    assert ours.dtype == theirs.dtype == wide_dtype
    tolerance = 20 * float(np.finfo(wide_dtype).eps)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    for name, tangent in arrays.items():
        moved, expected = (op.jvp(c, **{name: tangent}) for op, c in ((blockwise, cache), (dot_product, other)))
        assert moved.dtype == expected.dtype == wide_dtype
        np.testing.assert_allclose(moved, expected, rtol=0, atol=tolerance)
    found, expected = blockwise.backward(ours, cache), dot_product.backward(theirs, other)
    for name, array in arrays.items():
        gradient = getattr(found, name)
        assert gradient.dtype == getattr(expected, name).dtype == array.dtype
        own = 20 * float(np.finfo(array.dtype).eps)
        np.testing.assert_allclose(gradient, getattr(expected, name), rtol=0, atol=own)


@pytest.mark.parametrize(
    ("answer", "what"),
    [(1, "1"), (None, "None"), ([True], r"\[True\]"), (np.ones((4, 5), int), "an array of int64")],
    ids=["one", "none", "a list", "integers"],
)
def test_of_a_rule_that_answers_something_else_it_is_said_what(answer: Any, what: str) -> None:
    class Wrong(rules.Rule):
        def block(self, rows: slice, columns: slice) -> Any:
            del rows, columns
            return answer

        def __repr__(self) -> str:
            return "Wrong()"

    sentence = "^the block of a rule must be True, False or an array of booleans, not "
    sentence += rf"{what} \(Wrong\(\) from query 0 and key 0 on\)$"
    with pytest.raises(TypeError, match=sentence):
        blockwise.forward(np.ones((4, 2)), np.ones((5, 2)), np.ones((5, 2)), mask=Wrong())


def test_what_is_wrong_with_the_gradient_of_a_merge_is_said_of_it() -> None:
    part = blockwise.Partial(np.zeros((3, 2)), np.zeros(3))
    for d_merged, sentence in (
        ((np.zeros((3, 2)), np.zeros((3, 1))), r"^the logsumexp of d_merged must have one number for each row"),
        ((np.zeros((3, 2), int), np.zeros(3)), r"^the output of d_merged must hold floating-point numbers, not int64"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            blockwise.merge_backward(d_merged, part, part)


@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_forward_mode_is_linear_however_large_the_tangents(name: str, sign: float) -> None:
    rng = np.random.default_rng(0)
    inputs = {"query": rng.standard_normal((3, 2)), "key": rng.standard_normal((4, 2))}
    inputs["value"] = 2.0**-900 * rng.standard_normal((4, 5))
    _, cache = blockwise.forward(**inputs)
    small = rng.standard_normal(inputs[name].shape)
    expected = blockwise.jvp(cache, **{name: small})
    assert expected.any()
    found = blockwise.jvp(cache, **{name: sign * np.ldexp(small, 1020)})
    np.testing.assert_allclose(found, sign * np.ldexp(expected, 1020), rtol=1e-13)


def test_the_backward_pass_is_linear_however_large_the_gradients_of_both_results() -> None:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((3, 2)), 2.0**-200 * rng.standard_normal((4, 2))
    _, cache = blockwise.forward(query, key, 2.0**510 * rng.standard_normal((4, 5)), scale=2.0**190)
    d_output, d_logsumexp = rng.standard_normal((3, 5)), 2.0**500 * rng.standard_normal(3)
    small, none = (blockwise.backward(d_output, cache, d_logsumexp=x).query for x in (d_logsumexp, None))
    assert not np.allclose(small, none, rtol=1e-6, atol=0)
    large = blockwise.backward(np.ldexp(d_output, 520), cache, d_logsumexp=np.ldexp(d_logsumexp, 520)).query
    np.testing.assert_allclose(large, np.ldexp(small, 520), rtol=1e-13)


def test_the_cache_of_another_op_is_refused_by_name() -> None:
    output, cache = dot_product.forward(np.ones((3, 2)), np.ones((4, 2)), np.ones((4, 2)))
    with pytest.raises(TypeError, match=r"^cache must be the one that blockwise.forward returned"):
        blockwise.jvp(cache, query=np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^cache must be the one that blockwise.forward returned"):
        blockwise.backward(output, cache)


def test_memory_that_is_in_use_is_not_given_out_again() -> None:
    with scratch.own():
        outer = scratch.array("scores", (3, 4), np.dtype(float))
        with scratch.own():
            assert not np.shares_memory(outer, scratch.array("scores", (3, 4), np.dtype(float)))
        assert scratch.array("scores", (3, 4), np.dtype(float)) is outer
    with scratch.own():
        again = scratch.array("scores", (3, 4), np.dtype(float))
    with scratch.own():
        assert np.shares_memory(again, scratch.array("scores", (2, 2), np.dtype(float)))


def test_attention_between_two_steps_of_attention_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, d_output = (normal(seed, 2, 9, 4) for seed in range(4))
    expected, cache = blockwise.forward(query, key, value)
    gradients = blockwise.backward(d_output, cache)
    exponential, inside = kernels._exponential(np.dtype(float)), []

    def interrupted(x: Any, out: Any) -> Any:
        """As the handler of a signal might do it."""
        if not inside:
            inside.append(True)
            _, other = blockwise.forward(-query, -key + 1, value)
            blockwise.backward(-d_output, other)
            inside.clear()
        return exponential.function(x, out=out)

    monkeypatch.setattr(kernels, "_exponential", lambda _: exponential._replace(function=interrupted))
    output, cache = blockwise.forward(query, key, value)
    np.testing.assert_array_equal(output, expected)
    for found, wanted in zip(blockwise.backward(d_output, cache)[:3], gradients[:3], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_rules_that_call_themselves_equal_are_asked_one_by_one() -> None:
    @dataclass(frozen=True)
    class Padded(rules.Rule):
        lengths: Any = field(compare=False)
        leading = (3,)

        def at(self, index: tuple[int, ...]) -> rules.Rule:
            return Padded(self.lengths[index])

        def within(self, rows: slice, columns: slice) -> rules.Rule:
            assert (rows.start, columns.start) == (0, 0)
            return self

        def block(self, rows: slice, columns: slice) -> Any:
            del rows
            return np.arange(columns.start, columns.stop)[None] < self.lengths

    query, key, value = (normal(seed, 3, 8, 2) for seed in range(3))
    lengths = np.array([2, 5, 8])
    output, _ = blockwise.forward(query, key, value, mask=Padded(lengths))
    mask = np.arange(8) < lengths[:, None, None]
    np.testing.assert_allclose(output, dot_product.forward(query, key, value, mask=mask)[0], rtol=0, atol=1e-15)


TINY = {
    "queries whose squares are zero": (
        {"query": np.full((3, 1), 1e-163), "key": np.full((4, 1), 1e153), "value": np.arange(1.0, 5.0)[:, None]},
        np.ones((3, 1)),
        {"scale": -1e13},
    ),
    "values, beside small weights": (
        {"query": np.full((4, 1), -21), "key": np.ones((4, 1)), "value": np.array([[1, 1e-35]] * 4)},
        np.ones((4, 2)),
        {"scale": 1.0},
    ),
    "gradients, beside large weights": (
        {"query": np.full((4, 1), 21), "key": np.ones((4, 1)), "value": np.ones((4, 1))},
        np.array([[1], [1], [1], [1e-36]]),
        {"scale": 1.0, "is_causal": True},
    ),
}


@pytest.mark.parametrize("case", TINY)
def test_tiny_numbers_count_beside_others(case: str) -> None:
    arrays, d_output, options = TINY[case]
    dtype: Any = np.float64 if "squares" in case else np.float32
    arrays, d_output = {name: x.astype(dtype) for name, x in arrays.items()}, d_output.astype(dtype)
    found, expected = [], []
    for op, into in ((blockwise, found), (dot_product, expected)):
        output, cache = op.forward(**arrays, **options)
        into += [output, op.backward(d_output, cache).value]
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6)
