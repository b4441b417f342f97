"""Corners of blockwise attention that only an error in one line of it would show."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np import blockwise, dot_product, masks, rules
from attention_np._blockwise import kernels, plain, scratch
from attention_np._blockwise.columns import interleaved, with_column, with_counters

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
@pytest.mark.parametrize("at_once", [plain.PAIRS_AT_ONCE, 9, 1])
def test_rows_of_which_the_log_sum_exp_is_too_large_have_the_same_gradients(
    options: dict[str, Any], batch: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is added to all scores changes no gradient, that of the log-sum-exp by the scores included."""
    monkeypatch.setattr(plain, "PAIRS_AT_ONCE", at_once)
    query, key, bias = whole_numbers(*batch, 5, 3, seed=0), whole_numbers(9, 3, seed=1), whole_numbers(5, 9, seed=2)
    rng = np.random.default_rng(4)
    value, d_output = rng.standard_normal((*batch, 9, 2)), rng.standard_normal((*batch, 5, 2))
    d_logsumexp = rng.standard_normal((*batch, 5))
    d_logsumexp[..., 1], d_logsumexp[..., 2] = 0, 1
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
        smaller = scratch.array("scores", (2, 4), np.dtype(float))
        assert scratch.array("scores", (3, 4), np.dtype(float)) is again
        assert scratch.array("scores", (2, 4), np.dtype(float)) is smaller
    with scratch.own():
        assert np.shares_memory(again, scratch.array("scores", (2, 2), np.dtype(float)))


def test_memory_that_is_kept_is_no_more_than_was_asked_for() -> None:
    with scratch.own():
        for n in range(1, 200):
            scratch.array("some", (200 - n, 2), np.dtype(np.float32))
        kept = scratch._of.taken[-1]
        assert kept.buffers["some"].nbytes == 199 * 2 * 4
        assert len(kept.views) <= 64


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
    "queries of many features whose squares are zero": (
        {"query": np.full((1, 64), 1e-163), "key": np.full((4, 64), 1e153), "value": np.arange(1.0, 5.0)[:, None]},
        np.ones((1, 1)),
        {"scale": -1.13e11},
    ),
    "values that only just count, beside small weights": (
        {"query": np.full((4, 1), -22), "key": np.ones((4, 1)), "value": np.array([[1, 4e-31]] * 4)},
        np.ones((4, 2)),
        {"scale": 1.0},
    ),
    "the smallest values, beside small weights": (
        {"query": np.full((4, 1), -21), "key": np.ones((4, 1)), "value": np.array([[1, 2.0**-126]] * 4)},
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


@pytest.fixture
def used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory whose numbers are not set is not zero."""
    empty = np.empty

    def filled(*args: Any, **options: Any) -> Any:
        array = empty(*args, **options)
        if array.dtype.kind in "fu":
            array.fill(np.nan if array.dtype.kind == "f" else 255)  # bytes that are not numbers, either
        return array

    monkeypatch.setattr(np, "empty", filled)


@pytest.mark.usefixtures("used_memory")
@pytest.mark.parametrize(
    "options",
    [{}, {"mask": rules.padding([4, 0])}, {"mask": rules.padding(0)}, {"is_causal": True}, {"bias": normal(9, 3, 4)}],
    ids=["plain", "some padding", "all padding", "causal", "bias"],
)
@pytest.mark.parametrize("shapes", [((2, 3, 2), (2, 4, 2)), ((3, 2), (2, 4, 2)), ((2, 3, 2), (4, 2))], ids=str)
def test_nothing_depends_on_what_memory_held(
    options: dict[str, Any], shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    query, key = (normal(i, *shape) for i, shape in enumerate(shapes))
    output, cache = blockwise.forward(query, key, key, **options, block_size=2)
    mask = options.get("mask")
    given = {**options, "mask": mask.mask(3, 4) if mask is not None else None}
    expected, other = dot_product.forward(query, key, key, **given)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-14)
    found, wanted = blockwise.backward(output, cache), dot_product.backward(output, other)
    for name in ("query", "key", "value"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-14, err_msg=name)


@pytest.mark.usefixtures("used_memory")
@pytest.mark.parametrize("leading", [(), (2,), (0,)])
@pytest.mark.parametrize(("n", "m"), [(3, 0), (0, 4), (3, 4), (0, 0)])
def test_what_nothing_is_added_to_is_zero(leading: tuple[int, ...], n: int, m: int) -> None:
    query, key, value = np.ones((n, 2)), np.ones((m, 2)), np.ones((*leading, m, 5))
    output, cache = blockwise.forward(query, key, value)
    found = blockwise.backward(output, cache)
    if not output.size or not m:
        assert (output == 0).all()
        for gradient in found[:3]:
            assert (gradient == 0).all()
    assert np.isfinite(found.query).all()


def test_a_query_that_attends_to_nothing_has_a_sum_of_zero() -> None:
    query, key = normal(0, 3, 2), normal(1, 4, 2)
    for mask in (rules.padding(0), np.zeros((3, 4), bool)):
        _, cache = blockwise.forward(query, key, key, mask=mask)
        for found, expected in ((cache.logsumexp, -np.inf), (cache.total, 0), (cache.shift, 0)):
            np.testing.assert_array_equal(found, np.full(3, expected))


@pytest.mark.parametrize("value_of_one", [np.nan, np.inf, 1e200])
def test_beside_values_that_are_done_plainly_the_log_sum_exp_alone_is_known(value_of_one: float) -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 2)
    value[1] = value_of_one
    _, cache = blockwise.forward(query, key, value)
    assert np.isnan(cache.total).all()
    np.testing.assert_array_equal(cache.shift, 0)
    np.testing.assert_allclose(cache.logsumexp, dot_product.forward(query, key, value)[1].softmax.logsumexp[:, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("of_rows", [False, True], ids=["", "log-sum-exp"])
def test_every_pass_computes_in_the_precision_of_the_arrays(
    dtype: Any, of_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(function: Any) -> Any:
        def watching(tiles: Any, *rest: Any) -> Any:
            found = function(tiles, *rest)
            first = tiles[0] if isinstance(tiles, list) else tiles
            seen.add((first[0] if isinstance(first, tuple) else first).dtype)
            results = found[0] if isinstance(found, list) else [found]
            seen.update(x.dtype for x in results if x is not None)
            return found

        return watching

    monkeypatch.setattr(kernels, "attend", watched(kernels.attend))
    monkeypatch.setattr(kernels, "differentiate", watched(kernels.differentiate))
    monkeypatch.setattr(plain, "push_forward", watched(plain.push_forward))
    query, key, value, bias = (normal(i, *s).astype(dtype) for i, s in enumerate([(4, 2), (5, 2), (5, 3), (4, 5)]))
    for size in (1, 1000):  # with shifts, too
        output, cache = blockwise.forward(dtype(size) * query, key, value, bias=bias)
        assert {x.dtype for x in (cache.scale, cache.logsumexp, cache.shift, cache.total, cache.output)} == {
            np.dtype(dtype)
        }
        blockwise.backward(output, cache, d_logsumexp=cache.logsumexp if of_rows else None)
        blockwise.jvp(cache, query=query, bias=bias)
        blockwise.jvp(cache, value=value)
        _, cache = blockwise.forward(dtype(size) * query, key, value)
        blockwise.backward(output, cache, d_logsumexp=cache.logsumexp if of_rows else None)
    assert seen == {np.dtype(dtype)}


def test_the_columns_beside_others_are_of_their_dtype() -> None:
    array = normal(0, 2, 3, 8).astype(np.float32)
    for found in (with_column(array, 1), with_counters(array), interleaved(array, np.ones(2))):
        assert found.dtype == np.float32


def test_complex_gradients_of_the_log_sum_exp_alone() -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 5)
    _, cache = blockwise.forward(query, key, value, mask=SHUT[:3, :4])
    given = normal(3, 3)
    expected = blockwise.backward(np.zeros((3, 5)), cache, d_logsumexp=given)
    found = blockwise.backward(np.zeros((3, 5)), cache, d_logsumexp=1j * given)
    assert expected.query.any()
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, 1j * other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_complex_tangents_move_the_output_in_both_parts(name: str) -> None:
    x = {"query": normal(0, 3, 2), "key": normal(1, 4, 2), "value": normal(2, 4, 5), "bias": normal(3, 3, 4)}
    _, cache = blockwise.forward(**x)
    moved = blockwise.jvp(cache, **{name: (1 + 2j) * x[name]})
    np.testing.assert_allclose(moved, (1 + 2j) * blockwise.jvp(cache, **{name: x[name]}), rtol=0, atol=1e-14)


def test_forward_mode_along_values_that_are_not_finite_ends() -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 5)
    _, cache = blockwise.forward(query, key, value)
    moved = np.ones((4, 5))
    moved[0, 1] = np.nan
    np.testing.assert_array_equal(np.isnan(blockwise.jvp(cache, value=moved)), np.arange(5) == np.full((3, 1), 1))


@pytest.mark.parametrize("name", ["query", "key"])
def test_forward_mode_is_linear_where_the_scale_alone_is_large(name: str) -> None:
    inputs = {
        "query": 2.0**-400 * normal(0, 3, 2),
        "key": 2.0**-400 * normal(1, 4, 2),
        "value": 2.0**-500 * normal(2, 4, 5),
    }
    _, cache = blockwise.forward(**inputs, scale=2.0**800)
    small = normal(3, *inputs[name].shape)
    expected = blockwise.jvp(cache, **{name: small})
    found = blockwise.jvp(cache, **{name: np.ldexp(small, 800)})
    np.testing.assert_allclose(np.ldexp(found, -400), np.ldexp(expected, 400), rtol=1e-13)


def test_only_the_rows_that_need_it_are_done_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = normal(0, 6, 2), normal(1, 5, 2), normal(2, 5, 3)
    query[2] *= 1e20
    bias = np.zeros((6, 5))
    bias[4, 1] = np.nan
    bias[5] = -np.inf
    _, cache = blockwise.forward(query, key, value, bias=bias)
    rows = []
    whole = plain.differentiate_whole_rows

    def watched(tile: Any, given: Any) -> Any:
        rows.extend(np.flatnonzero(given.d_output.any(axis=-1)))
        return whole(tile, given)

    monkeypatch.setattr(plain, "differentiate_whole_rows", watched)
    blockwise.backward(np.ones((6, 3)), cache)
    assert rows == [2, 4]


@pytest.fixture
def kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way is an error."""
    for name in ("attend", "differentiate", "differentiate_whole_rows"):
        monkeypatch.setattr(plain, name, None)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("size", [-250, -60, 60, 250])
def test_values_and_gradients_of_any_usual_size_go_through_the_kernels(size: int) -> None:
    query, key, value = normal(0, 6, 2), normal(1, 5, 2), np.ldexp(np.abs(normal(2, 5, 3)), size)
    given = np.ldexp(np.abs(normal(3, 6, 3)), -size)
    given[2] = 0
    given[3] *= 1e-240 if size > 0 else 1.0
    for sign in (1, -1):
        output, cache = blockwise.forward(query, key, sign * value)
        found = blockwise.backward(sign * given, cache)
        expected, other = dot_product.forward(query, key, sign * value)
        np.testing.assert_allclose(output, expected, rtol=1e-13)
        for one, two in zip(found[:3], dot_product.backward(sign * given, other)[:3], strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-13 * np.abs(two).max())


def test_scores_of_minus_infinity_are_noticed_beside_queries_that_are_not_numbers() -> None:
    query, key = np.array([[np.inf, 1.0], [np.nan, 1.0]]), np.array([[-1.0, 0.0], [1.0, 0.0]])
    inputs = {"query": query, "key": key, "value": np.ones((2, 1))}
    for mask in (np.eye(2, dtype=bool), np.tri(2, dtype=bool)):
        output, cache = blockwise.forward(**inputs, mask=mask, block_size=(1, 2))
        np.testing.assert_array_equal(output, dot_product.forward(**inputs, mask=mask)[0])
        assert np.isnan(cache.logsumexp).all()


@pytest.mark.parametrize("block_size", [None, 2000])
def test_many_tiles_in_blocks_that_are_larger_than_they_are(block_size: int | None) -> None:
    inputs = {"query": normal(0, 1100, 4), "key": normal(1, 1300, 4), "value": normal(2, 1300, 4)}
    output, cache = blockwise.forward(**inputs, block_size=block_size)
    expected = dot_product.backward(output, dot_product.forward(**inputs)[1])
    for one, other in zip(blockwise.backward(output, cache)[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


class Introspected:
    """As ``numpy.lib.introspect``, on a machine where some functions use more than its baseline."""

    @staticmethod
    def opt_func_info(func_name: str) -> dict[str, dict[str, dict[str, str]]]:
        found = {
            "exp2": {"ff": {"current": "AVX512_SKX", "available": "AVX512_SKX baseline(SSE SSE2)"}},
            "exp": {"dd": {"current": "baseline(SSE SSE2 SSE3)", "available": "baseline(SSE SSE2 SSE3)"}},
        }
        found["exp2"]["dd"] = {"available": "nothing"}
        return {name: what for name, what in found.items() if re.search(func_name, name)}


def test_a_function_is_vectorised_if_numpy_runs_more_than_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy.lib.introspect", Introspected)  # type: ignore[arg-type]
    monkeypatch.setattr(np.lib, "introspect", Introspected, raising=False)
    found = [
        (name, dtype)
        for name in ("exp", "exp2", "xp2", "log2")
        for dtype in "fdg"
        if kernels._is_vectorised(name, np.dtype(dtype))
    ]
    assert found == [("exp2", "f")]
    monkeypatch.delattr(np.lib, "introspect")
    monkeypatch.setitem(sys.modules, "numpy.lib.introspect", None)  # type: ignore[arg-type]
    assert not kernels._is_vectorised("exp2", np.dtype("f"))


@pytest.mark.parametrize("shared", ["query", "key", "value", "bias", "query key bias", ""])
@pytest.mark.parametrize("n", [3, 600])
def test_gradients_whose_terms_do_not_fit_are_summed_over_what_heads_share(shared: str, n: int) -> None:
    sizes = {"query": (n, 2), "key": (4, 2), "value": (4, 3), "bias": (n, 4)}
    units = {"query": 1e-200, "key": 1e-200, "value": 1e250, "bias": 1.0}
    inputs = {
        name: units[name] * normal(i, *(() if name in shared else (2,)), *size)
        for i, (name, size) in enumerate(sizes.items())
    }
    given = 1e100 * normal(5, 2, n, 3)
    for bias in (inputs.pop("bias"), None):
        found, expected = (
            op.backward(given, op.forward(**inputs, bias=bias, scale=1e100)[1]) for op in (blockwise, dot_product)
        )
        for name, given_to in {**inputs, **({} if bias is None else {"bias": bias})}.items():
            one, other = getattr(found, name), getattr(expected, name)
            assert one.shape == given_to.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(other).max(), err_msg=name)


def test_what_cannot_run_tasks_is_refused_by_every_pass() -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 5)
    output, cache = blockwise.forward(query, key, value)
    for how, error in (({"executor": 3}, TypeError), ({"workers": 0}, ValueError)):
        for use in (
            lambda how=how: blockwise.forward(query, key, value, **how),
            lambda how=how: blockwise.backward(output, cache, **how),
            lambda how=how: blockwise.jvp(cache, query=query, **how),
        ):
            with pytest.raises(error, match=r"^executor must be|^workers must be"):
                use()
