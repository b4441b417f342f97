"""Blockwise attention is dot-product attention: the same numbers in every corner, in linear memory, by any workers."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import pickle
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, assert_close, assert_same_bits, forks, in_child, normal
from hypothesis import given
from hypothesis import strategies as st
from test_dot_product import BAD, BIAS_SHAPES, OPTIONS, SHAPES, SOME_HIDDEN, VAST, arrays, zeros

from attention_np import blockwise, dot_product, gradcheck, masks, rules, softmax
from attention_np._blockwise import blas, kernels, plain, workers
from attention_np._blockwise.problem import SIDES
from attention_np.blockwise import Partial, merge, merge_backward

BLOCK_SIZES = [None, 1, 3, 7, 4, 5, (2, 5), (3, 1)]
every_block_size = pytest.mark.parametrize("block_size", BLOCK_SIZES, ids=str)


class Results:
    """All that an op gives, for one cotangent and one tangent."""

    def __init__(self, op: Any, inputs: dict[str, Array], seed: int = 5, d_output: Any = None, **options: Any) -> None:
        self.output, self.cache = op.forward(**inputs, **options)
        if d_output is None:
            d_output = normal(seed, *self.output.shape).astype(self.output.dtype)
        self.gradients = {k: g for k, g in op.backward(d_output, self.cache)._asdict().items() if g is not None}
        tangents = {k: normal(i, *x.shape).astype(x.dtype) for i, (k, x) in enumerate(inputs.items())}
        self.jvp = op.jvp(self.cache, **tangents)

    def items(self) -> Iterator[tuple[str, Array]]:
        yield from {"output": self.output, "jvp": self.jvp, **self.gradients}.items()


def assert_alike(actual: Array, expected: Array, tolerance: float, name: str = "") -> None:
    """Agreement relative to the largest entry, or to one where the entries are what is left of terms that cancel."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), name
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=name)
    if actual.dtype.kind != "c":
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
    scale = max(np.abs(expected[finite]).max(initial=0), 1)
    error = np.abs(actual[finite] - expected[finite]).max(initial=0)
    assert error <= tolerance * scale, f"{name} differs by {error / scale:.1e}"


def assert_same_as_dot_product(
    inputs: dict[str, Array], block_size: Any = None, tolerance: float = 1e-14, d_output: Any = None, **options: Any
) -> None:
    ours = Results(blockwise, inputs, d_output=d_output, block_size=block_size, **options)
    mask = options.pop("mask", None)
    if isinstance(mask, rules.Rule):
        mask = mask.mask(max(inputs["query"].shape[:-1], default=1), inputs["key"].shape[-2])
    theirs = Results(dot_product, inputs, d_output=d_output, mask=mask, **options)
    expected = dict(theirs.items())
    for name, array in ours.items():
        assert_alike(array, expected[name], tolerance, name)
    np.testing.assert_array_equal((ours.output == 0).all(-1), (theirs.output == 0).all(-1))
    nothing = ours.cache.logsumexp == -np.inf
    if nothing.shape == inputs["query"].shape[:-1]:
        assert (ours.gradients["query"][nothing] == 0).all()
    np.testing.assert_allclose(
        ours.cache.logsumexp, theirs.cache.softmax.logsumexp[..., 0], rtol=100 * tolerance, atol=100 * tolerance
    )


# The same numbers


@pytest.mark.parametrize("shapes", SHAPES)
@every_block_size
def test_all_shapes_give_what_dot_product_gives(shapes: str, block_size: Any) -> None:
    assert_same_as_dot_product(arrays(shapes), block_size)


@pytest.mark.parametrize("shape", BIAS_SHAPES, ids=str)
@every_block_size
def test_a_bias_of_any_shape_that_broadcasts_and_its_gradient(shape: tuple[int, ...], block_size: Any) -> None:
    assert_same_as_dot_product({**arrays("a batch"), "bias": normal(1, *shape)}, block_size)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@every_block_size
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_every_option(options: dict[str, Any], block_size: Any, has_bias: bool) -> None:
    bias = {"bias": normal(1, 4, 5)} if has_bias else {}
    assert_same_as_dot_product({**arrays("a batch"), **bias}, block_size, **options)


RULES = {
    "causal": rules.causal(),
    "causal, last with last": rules.causal(offset=1),
    "window": rules.sliding_window(left=1),
    "window, ahead": rules.sliding_window(left=0, right=2),
    "padding": rules.padding([5, 2]),
    "padding of everything": rules.padding([3, 0]),
    "packed": rules.packed([0, 0, 1, 1], [0, 0, 1, 1, 2]),
    "packed, in a batch": rules.packed([[0, 0, 1, 1], [2, 1, 1, 0]], [[0, 0, 1, 1, 2], [0, 2, 1, 2, 1]]),
    "whole": rules.whole(SOME_HIDDEN),
    "both": rules.padding([5, 2]) & rules.causal(),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@every_block_size
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.4, "rng": 3}], ids=str)
def test_a_rule_gives_what_its_mask_gives(rule: rules.Rule, block_size: Any, options: dict[str, Any]) -> None:
    inputs = {**arrays("a batch"), "bias": normal(1, 4, 5)}
    ours = Results(blockwise, inputs, mask=rule, block_size=block_size, **options)
    expected = dict(Results(dot_product, inputs, mask=rule.mask(4, 5), **options).items())
    for name, array in ours.items():
        assert_alike(array, expected[name], 1e-14, name)


lengths = st.integers(0, 9)
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@given(
    *(lengths, lengths, lengths, lengths, batches),
    st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_any_sizes_in_any_blocks(
    n: int, m: int, d_k: int, d_v: int, batch: tuple[int, ...], size: float, rows: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    inputs = {
        "query": size * rng.standard_normal((*batch, n, d_k)),
        "key": rng.standard_normal((*batch, m, d_k)),
        "value": rng.standard_normal((*batch, m, d_v)),
        "bias": rng.standard_normal((n, m)),
    }
    mask = rng.random((*batch, n, m)) < rng.random()
    tolerance = 1e-14 * max(size, 1)
    assert_same_as_dot_product(inputs, (rows, columns), tolerance, mask=mask, dropout_p=0.3, rng=seed)
    del inputs["bias"]
    assert_same_as_dot_product(inputs, (rows, columns), tolerance, is_causal=True)


LARGE = {"query": normal(0, 2, 1100, 16), "key": normal(1, 1, 1300, 16), "value": normal(2, 2, 1300, 8)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"mask": rules.sliding_window(left=100, right=30)},
        {"mask": rules.packed(np.arange(1100) // 300, np.arange(1300) // 300)},
        {"mask": np.random.default_rng(0).random((1100, 1300)) < 0.01},
        {"bias": normal(4, 1300), "is_causal": True},
        {"bias": normal(4, 1100, 1300)},
        {"bias": normal(4, 2, 1, 1300), "dropout_p": 0.2, "rng": 1},
        {"scale": 40.0},
        {"scale": -40.0},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_many_tiles_give_what_dot_product_gives(options: dict[str, Any]) -> None:
    assert min(min(SIDES)) < 1100
    options = dict(options)
    inputs = {**LARGE, **({"bias": options.pop("bias")} if "bias" in options else {})}
    assert_same_as_dot_product(inputs, tolerance=4e-13 if "scale" in options else 1e-14, **options)


@pytest.mark.parametrize("size", [1e-30, 1.0, 20.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"mask": np.random.default_rng(1).random((60, 50)) < 0.5}]
)
def test_scores_of_any_size(size: float, dtype: Any, options: dict[str, Any]) -> None:
    eps = np.finfo(dtype).eps
    inputs = {"query": size * normal(0, 60, 8), "key": normal(1, 50, 8), "value": normal(2, 50, 8)}
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    assert_same_as_dot_product(inputs, 16, 20 * eps * max(size, 1), **options)


@pytest.fixture
def kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way of :mod:`attention_np._blockwise.plain` is an error."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the plain way was taken")

    monkeypatch.setattr(plain, "attend", refuse)
    monkeypatch.setattr(plain, "differentiate", refuse)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("scale", [None, 1e3])
@pytest.mark.parametrize("bias", [None, np.where(SOME_HIDDEN, normal(1, 4, 5), -np.inf)], ids=["no bias", "bias"])
@pytest.mark.parametrize("options", [{}, {"mask": SOME_HIDDEN}, {"is_causal": True}, {"dropout_p": 0.4, "rng": 1}])
def test_what_is_finite_goes_through_the_kernels(
    dtype: Any, scale: float | None, bias: Array | None, options: dict[str, Any]
) -> None:
    x = {name: array.astype(dtype) for name, array in arrays("a batch").items()}
    bias = None if bias is None else bias.astype(dtype)
    output, cache = blockwise.forward(**x, scale=scale, bias=bias, **options, block_size=2)
    blockwise.backward(output, cache)


@pytest.mark.usefixtures("kernels_only")
def test_a_row_whose_sum_leaves_the_range_without_a_shift_is_shifted() -> None:
    query, key, value = (x.astype(np.float32) for x in (100 * normal(0, 9, 4), normal(1, 8, 4), normal(2, 8, 3)))
    for bias in (None, np.float32(3e4), np.float32(-3e4)):
        output, cache = blockwise.forward(query, key, value, bias=bias, block_size=3)
        assert np.abs(query @ key.T / 2).max() > 128
        assert_close(output, dot_product.forward(query, key, value)[0], 2e-2 if bias else 2e-5)
        blockwise.backward(output, cache)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("scale", [None, 30.0])
def test_either_exponential_serves(vectorised: bool, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_is_vectorised", lambda *_: vectorised)
    kernels._exponential.cache_clear()
    try:
        assert_same_as_dot_product(batch_of(), 3, 1e-13, mask=a_mask(), scale=scale)
        used = kernels._exponential(np.dtype(np.float32))
    finally:
        kernels._exponential.cache_clear()
    assert used.function is (np.exp2 if vectorised else np.exp)


@pytest.mark.parametrize("options", [{}, {"mask": SOME_HIDDEN}, {"is_causal": True}, {"scale": 3.0}])
@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_gradients_are_numerical_ones(options: dict[str, Any], method: str) -> None:
    inputs = {**arrays("a batch"), "bias": normal(1, 4, 5)}
    gradcheck.check_op(blockwise, inputs, method=method, block_size=(3, 2), **options).raise_if_failed()
    del inputs["bias"]
    gradcheck.check_op(blockwise, inputs, method=method, block_size=(3, 2), **options).raise_if_failed()


def test_the_gradient_of_the_log_sum_exp() -> None:
    inputs = {**arrays(), "bias": normal(1, 4, 5)}

    def forward(query: Array, key: Array, value: Array, bias: Array) -> Array:
        output, cache = blockwise.forward(query, key, value, bias=bias, mask=SOME_HIDDEN, block_size=2)
        return np.concatenate([output, np.where(np.isinf(cache.logsumexp), 0, cache.logsumexp)[:, None]], axis=1)

    for complex_d in (False, True):

        def backward(d: Array, query: Array, key: Array, value: Array, bias: Array, cast: bool = complex_d) -> Any:
            _, cache = blockwise.forward(query, key, value, bias=bias, mask=SOME_HIDDEN, block_size=2)
            d = d + 0j if cast else d  # the plain way
            found = blockwise.backward(d[:, :-1], cache, d_logsumexp=d[:, -1])
            return tuple(gradient.real for gradient in found)

        gradcheck.check(forward, backward, inputs).raise_if_failed()


def test_the_cache_holds_what_a_reader_looks_for() -> None:
    x = arrays("a batch")
    output, cache = blockwise.forward(**x, mask=SOME_HIDDEN, dropout_p=0.5, rng=3)
    assert all(getattr(cache, name) is array for name, array in x.items())
    np.testing.assert_array_equal(cache.mask.mask(4, 5), SOME_HIDDEN)
    assert cache.bias is None
    assert cache.scale == 1 / np.sqrt(3)
    assert cache.logsumexp.shape == (2, 4)
    assert (cache.logsumexp[:, 1] == -np.inf).all()
    assert_same_bits(cache.output, output)
    assert cache.dropout_p == 0.5
    assert blockwise.forward(**x)[1].dropout_key is None


def test_a_caller_who_changes_the_output_does_not_change_the_gradients() -> None:
    for x in (arrays("a batch"), arrays("a query without an axis")):
        output, cache = blockwise.forward(**x)
        d_output = normal(4, *output.shape)
        expected = blockwise.backward(d_output, cache)
        output[:] = np.nan
        for one, other in zip(blockwise.backward(d_output, cache)[:3], expected, strict=False):
            assert_same_bits(one, other)


# What is not finite, and what is not there

POISONS = [np.nan, np.inf, -np.inf]
every_poison = pytest.mark.parametrize("poison", POISONS)
some_blocks = pytest.mark.parametrize("block_size", [None, 2, (3, 4)], ids=str)


def poisoned(inputs: dict[str, Array], poison: float, **where: Any) -> dict[str, Array]:
    inputs = {name: x.copy() for name, x in inputs.items()}
    for name, place in where.items():
        inputs[name][place] = poison
    return inputs


def batch_of(n: int = 6, m: int = 7) -> dict[str, Array]:
    return {"query": normal(0, 2, n, 3), "key": normal(1, 2, m, 3), "value": normal(2, 2, m, 4)}


def a_mask(n: int = 6, m: int = 7) -> Array:
    mask = np.random.default_rng(5).random((n, m)) < 0.7
    mask[:, 0] = True
    mask[:, 3] = False
    mask[2] = False
    return mask


@every_poison
@some_blocks
@pytest.mark.parametrize("where", [{"key": 3}, {"value": 3}, {"key": 3, "value": 3}, {"query": 2}], ids=str)
@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.4, "rng": 1}], ids=["plain", "dropout"])
def test_what_is_hidden_contributes_nothing_whatever_it_holds(
    poison: float, block_size: Any, where: dict[str, int], options: dict[str, Any]
) -> None:
    clean = {**batch_of(), "bias": normal(3, 6, 7)}
    bad = poisoned(clean, poison, **{name: (..., i, slice(None)) for name, i in where.items()})
    bad["bias"][:, 3] = bad["bias"][2] = poison
    expected = dict(Results(blockwise, clean, mask=a_mask(), block_size=block_size, **options).items())
    for name, array in Results(blockwise, bad, mask=a_mask(), block_size=block_size, **options).items():
        assert np.isfinite(array).all()
        assert_alike(array, expected[name], 1e-14, name)
    assert_same_as_dot_product(bad, block_size, mask=a_mask(), **options)


@every_poison
@some_blocks
@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
@pytest.mark.parametrize("has_mask", [False, True], ids=["no mask", "mask"])
def test_what_is_not_finite_on_a_pair_that_attends_flows_as_in_dot_product(
    poison: float, block_size: Any, name: str, has_mask: bool
) -> None:
    inputs = {**batch_of(), "bias": normal(3, 6, 7)}
    for place in ((1, 1), (4, slice(None))):
        if name == "value" and np.isinf(poison):
            place = (1, 1)
        where = place if name == "bias" else (0, *place)
        bad = poisoned(inputs, poison, **{name: where})
        options = {"mask": a_mask()} if has_mask else {}
        ours = Results(blockwise, bad, block_size=block_size, **options)
        theirs = dict(Results(dot_product, bad, **options).items())
        for result, array in ours.items():
            expected = theirs[result]
            np.testing.assert_array_equal(np.isfinite(array), np.isfinite(expected), err_msg=result)
            finite = np.isfinite(expected)
            assert_alike(array[finite], expected[finite], 1e-14, result)


@every_poison
@some_blocks
def test_a_query_without_an_incoming_gradient_contributes_nothing_to_any_other(poison: float, block_size: Any) -> None:
    clean = batch_of()
    d_output = normal(3, 2, 6, 4)
    d_output[1] = d_output[0, 2] = 0
    bad = poisoned(clean, poison, query=(0, 2, slice(None)))
    for name in ("query", "key", "value"):
        bad = poisoned(bad, poison, **{name: 1})
    for options in ({}, {"is_causal": True}):
        ours = [blockwise.forward(**x, block_size=block_size, **options) for x in (bad, clean)]
        found, expected = (blockwise.backward(d_output, cache) for _, cache in ours)
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert_alike(one, other, 1e-14)
            assert (one[1] == 0).all()
        assert (found.query[0, 2] == 0).all()
        assert_alike(ours[0][0][0, [0, 1, 3, 4, 5]], ours[1][0][0, [0, 1, 3, 4, 5]], 1e-14)


@some_blocks
@pytest.mark.parametrize("columns", [[1], [1, 6], [0, 1, 2, 3, 4, 5, 6]], ids=str)
def test_plus_infinities_in_a_bias_share_the_weights_of_their_row(block_size: Any, columns: list[int]) -> None:
    for mask in (None, a_mask(), rules.causal(offset=2)):
        bias = normal(3, 6, 7)
        bias[[0, 4, 5], [[j] for j in columns]] = np.inf
        inputs = {**batch_of(), "bias": bias}
        assert_same_as_dot_product(inputs, block_size, mask=mask)
        assert_same_as_dot_product(inputs, block_size, mask=mask, dropout_p=0.3, rng=2)
    spread = {**batch_of(), "bias": np.where(np.arange(7) == 2, np.inf, 0.3)}
    assert_same_as_dot_product(spread, block_size)
    assert_same_as_dot_product({**batch_of(), "bias": np.array(np.inf)}, block_size)


def test_where_a_row_is_at_a_limit_nothing_moves_in_any_tile() -> None:
    bias = normal(3, 600, 1100)
    bias[5, 3] = np.inf
    results = Results(
        blockwise, {"query": normal(0, 600, 3), "key": normal(1, 1100, 3), "value": normal(2, 1100, 2)} | {"bias": bias}
    )
    assert (results.gradients["bias"][5] == 0).all()
    assert (results.gradients["query"][5] == 0).all()
    assert (results.gradients["bias"] != 0).sum() == 599 * 1100


def test_the_log_sum_exp_is_right_where_there_is_no_output_to_tell() -> None:
    bias = normal(3, 4, 5)
    bias[1, 2], bias[2, 3] = np.inf, np.nan
    inputs = {"query": normal(0, 4, 3), "key": normal(1, 5, 3), "value": np.zeros((5, 0)), "bias": bias}
    assert_same_as_dot_product(inputs)
    _, cache = blockwise.forward(**inputs)
    np.testing.assert_array_equal(np.isnan(cache.logsumexp), [False, False, True, False])
    np.testing.assert_array_equal(cache.logsumexp == np.inf, [False, True, False, False])


@some_blocks
def test_minus_infinity_in_a_bias_is_as_masked_out(block_size: Any) -> None:
    hidden = np.where(a_mask(), normal(3, 6, 7), -np.inf)
    assert_same_as_dot_product({**batch_of(), "bias": hidden}, block_size)
    gradient = Results(blockwise, {**batch_of(), "bias": hidden}, block_size=block_size).gradients["bias"]
    assert (gradient[~a_mask()] == 0).all()
    for poison in POISONS:
        bad = poisoned({**batch_of(), "bias": hidden}, poison, key=(..., 3, slice(None)), query=(..., 2, slice(None)))
        assert_same_as_dot_product(bad, block_size)
    assert_same_as_dot_product({**batch_of(), "bias": np.array(-np.inf)}, block_size)


@pytest.mark.parametrize("poison", [*POISONS, 1e308, 1e-308, 5e-324])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex128])
def test_nothing_warns_or_raises_whatever_arrays_hold_and_however_numpy_is_set(poison: float, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        plain_inputs = {name: x.astype(dtype) for name, x in batch_of().items()}
        cases = [
            {n: x.astype(dtype) for n, x in poisoned(batch_of(), poison, **{name: (..., 2, slice(1, 3))}).items()}
            for name in plain_inputs
        ]
    for inputs in (*cases, plain_inputs):
        for options in ({}, {"mask": a_mask()}, {"is_causal": True, "bias": inputs["value"][0, 1:, :1]}):
            with np.errstate(all="raise"):
                output, cache = blockwise.forward(**inputs, **options, block_size=3)
                blockwise.backward(output, cache)
                blockwise.jvp(cache, **inputs)
                merge((output, cache.logsumexp), (output, cache.logsumexp))


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 3), (5, 3), (5, 2)),
        ((4, 3), (0, 3), (0, 2)),
        ((4, 3), (5, 3), (5, 0)),
        ((4, 0), (5, 0), (5, 2)),
        ((0, 4, 3), (0, 5, 3), (0, 5, 2)),
        ((2, 0, 3), (2, 0, 3), (2, 0, 2)),
        ((0, 0), (0, 0), (0, 0)),
        ((3,), (0, 3), (0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": np.array(True)}, {"dropout_p": 0.5, "rng": 0}])
def test_zero_lengths_give_results_of_the_right_shape(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any]
) -> None:
    inputs = {name: normal(i, *s) for i, (name, s) in enumerate(zip(("query", "key", "value"), shapes, strict=True))}
    inputs["bias"] = np.array(0.5)
    assert_same_as_dot_product(inputs, **options)


# Dtypes


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.longdouble, np.complex64])
@pytest.mark.parametrize("options", [{}, {"mask": SOME_HIDDEN}, {"dropout_p": 0.3, "rng": 1, "bias": normal(1, 4, 5)}])
def test_every_dtype_is_that_of_dot_product(dtype: Any, options: dict[str, Any]) -> None:
    inputs = {name: x.astype(dtype) for name, x in arrays("a batch").items()}
    options = {name: x.astype(dtype) if name == "bias" else x for name, x in options.items()}
    inputs |= {"bias": options.pop("bias")} if "bias" in options else {}
    eps = {np.float16: 1e-3, ml_dtypes.bfloat16: 1e-2, np.longdouble: 1e-18}.get(dtype, 1e-6)
    ours = Results(blockwise, inputs, block_size=2, **options)
    theirs = dict(Results(dot_product, inputs, **options).items())
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        wide = np.clongdouble if array.dtype.kind == "c" else np.longdouble
        assert_alike(array.astype(wide), theirs[name].astype(wide), 4 * eps, name)


def test_arrays_of_the_other_byte_order_give_results_in_the_native_one() -> None:
    inputs = {name: x.astype(">f4") for name, x in arrays("a batch").items()}
    expected = Results(blockwise, {name: x.astype("=f4") for name, x in inputs.items()})
    results = Results(blockwise, inputs)
    assert_same_bits(results.output, expected.output)
    assert results.output.dtype.isnative


def test_mixed_dtypes_follow_those_of_dot_product() -> None:
    x = arrays("a batch")
    for dtypes in ((np.float32, np.float64, np.float32), (np.float16, np.float32, np.float16)):
        inputs = {name: array.astype(d) for (name, array), d in zip(x.items(), dtypes, strict=True)}
        d_output = normal(3, 2, 4, 2)
        ours, theirs = (op.forward(**inputs) for op in (blockwise, dot_product))
        assert ours[0].dtype == theirs[0].dtype
        for d in (d_output, d_output.astype(np.float32), d_output + 1j):
            pairs = zip(blockwise.backward(d, ours[1])[:3], dot_product.backward(d, theirs[1])[:3], strict=True)
            for one, other in pairs:
                assert_alike(one, other, 3e-3 if one.dtype == np.float16 else 1e-6)


def test_complex_input_continues_the_function_analytically() -> None:
    inputs = {name: x + 0.3j * normal(7, *x.shape) for name, x in {**arrays(), "bias": normal(1, 4, 5)}.items()}
    for options in ({}, {"mask": SOME_HIDDEN}, {"is_causal": True}):
        assert_same_as_dot_product(inputs, 2, **options)


# Dropout


@every_block_size
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_draws_are_those_of_dot_product(block_size: Any, p: float) -> None:
    n, m = 11, 21
    x = {"query": np.zeros((2, n, 1)), "key": np.zeros((2, m, 1)), "value": np.broadcast_to(np.eye(m), (2, m, m))}
    output, _ = blockwise.forward(**x, dropout_p=p, rng=3, block_size=block_size)
    expected = dot_product.forward(**x, dropout_p=p, rng=3)[1].dropout
    np.testing.assert_array_equal(output != 0, expected != 0)


def test_the_draws_follow_the_rows_of_the_scores_where_values_have_more_axes() -> None:
    inputs = arrays("values with axes of their own before a batch")
    assert_same_as_dot_product(inputs, 2, dropout_p=0.5, rng=3)


def test_a_generator_is_advanced_by_one_integer() -> None:
    used, expected = np.random.default_rng(3), np.random.default_rng(3)
    blockwise.forward(**arrays(), dropout_p=0.5, rng=used)
    expected.integers(2**63)
    assert used.bit_generator.state == expected.bit_generator.state


# Memory


def peak_of(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_linear() -> None:
    n = 2500
    x = {name: normal(i, n, 8) for i, name in enumerate(("query", "key", "value"))}
    d_output = normal(3, n, 8)
    for options in ({}, {"is_causal": True}, {"bias": normal(4, n), "dropout_p": 0.1, "rng": 0}):

        def both(options: dict[str, Any] = options) -> None:
            _, cache = blockwise.forward(**x, **options, workers=1)
            blockwise.backward(d_output, cache, workers=1)

        assert peak_of(both) < 14 * 2**20  # the scores take 48 MiB


def test_a_hidden_nan_does_not_take_quadratic_memory() -> None:
    n = 3000
    x = {name: normal(i, n, 4) for i, name in enumerate(("query", "key", "value"))}
    x["value"][-5:] = np.nan

    def both() -> None:
        output, cache = blockwise.forward(**x, mask=rules.padding(n - 5), workers=1)
        assert np.isfinite(output).all()
        assert np.isfinite(blockwise.backward(output, cache, workers=1).key).all()

    assert peak_of(both) < 34 * 2**20  # the scores take 69 MiB, and this way needs a few blocks at once


@pytest.fixture
def mapped(tmp_path: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for i, name in enumerate(("query", "key", "value")):
        file = np.memmap(tmp_path / name, np.float32, "w+", offset=128, shape=(3, 1400, 16))
        file[:] = normal(i, 3, 1400, 16)
        file.flush()
        found[name] = np.memmap(tmp_path / name, np.float32, "r", offset=128, shape=(3, 1400, 16))
    return found


def test_mapped_files_give_what_arrays_give(mapped: dict[str, Array]) -> None:
    one, other = (Results(blockwise, x) for x in (mapped, {name: np.array(x) for name, x in mapped.items()}))
    for (name, array), (_, expected) in zip(one.items(), other.items(), strict=True):
        assert type(array) is np.ndarray, name
        assert_same_bits(array, expected)


def test_a_mapped_file_is_never_read_whole(tmp_path: Path) -> None:
    n = 400_000
    key = np.memmap(tmp_path / "key", np.float32, "w+", shape=(n, 16))
    key[::1000] = 1
    query = normal(0, 3, 16).astype(np.float32)
    assert key.nbytes > 25 * 10**6
    assert peak_of(lambda: blockwise.forward(query, key, key, workers=1)) < 4 * 2**20


def test_a_part_of_a_mapped_file_travels_by_name(mapped: dict[str, Array]) -> None:
    tasks: list[Any] = []

    class Spy(Executor):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            payload = pickle.dumps(args)
            tasks.append(len(payload))
            future: Future[Any] = Future()
            future.set_result(function(*pickle.loads(payload)))  # noqa: S301
            return future

    views: list[Callable[[Array], Array]] = [lambda x: x, lambda x: x[:, ::2, 1:9]]
    views.append(lambda x: np.broadcast_to(x[:, :1], x.shape))
    for view in views:
        x = {name: view(array) for name, array in mapped.items()}
        del tasks[:]
        output, cache = blockwise.forward(**x, executor=Spy())
        assert tasks
        assert max(tasks) < 3000
        expected, _ = blockwise.forward(**{name: np.array(array) for name, array in x.items()})
        assert_same_bits(output, expected)
        blockwise.backward(output, cache, executor=Spy())
    del tasks[:]
    private = {name: np.memmap(x.filename, x.dtype, "c", x.offset, x.shape) for name, x in mapped.items()}
    expected, _ = blockwise.forward(**private)
    private["value"][:, 1::7] = 0.5  # of that the few rows that are compared may tell nothing
    output, _ = blockwise.forward(**private, executor=Spy())
    assert min(tasks) > 10_000
    assert (output != expected).all()
    assert_same_bits(output, blockwise.forward(**private)[0])


class Meddling(Executor):
    """Changes something after a task has been packed and before it is unpacked."""

    def __init__(self, change: Callable[[], Any]) -> None:
        self.change = change

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        payload = pickle.dumps(args)
        self.change()
        future: Future[Any] = Future()
        own, task = pickle.loads(payload)  # noqa: S301
        try:
            future.set_result(function(own, task))
        except OSError as error:
            future.set_exception(error)
        return future


Change = Callable[[bytes], bytes] | None  # of what a file holds; None: there is no file


def replace(path: Path, change: Change) -> None:
    """Put another file in the place of one, which stays as it is for those who have mapped it."""
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (None, r"it cannot be opened \(.*No such file"),
        (lambda content: content[:200], r"it cannot be opened \("),
        (lambda content: content[:0], r"it cannot be opened \("),
        (lambda content: content[::-1], "it holds other numbers"),
    ],
    ids=["no file", "too short", "empty", "other numbers"],
)
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_worker_that_does_not_find_the_file_of_the_caller_says_so(
    mapped: dict[str, Array], name: str, change: Change, problem: str
) -> None:
    path = Path(mapped[name].filename)
    message = f"^the file {re.escape(str(path))}, of which a part was sent to a worker by its name, .*{problem}"
    message += r".*, or pass a copy in memory, np\.array\(\.\.\.\), which is sent itself$"
    inputs = {other: x if other == name else np.array(x) for other, x in mapped.items()}
    with pytest.raises(OSError, match=message):
        blockwise.forward(**inputs, executor=Meddling(functools.cache(lambda: replace(path, change))))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content[:-1], "it cannot be opened"),
        (lambda content: bytes(4) + content[4:], "it holds other numbers"),
        (lambda content: content[:-4] + bytes(4), "it holds other numbers"),
    ],
    ids=["too short by a byte", "another first row", "another last row"],
)
def test_the_ends_of_a_part_of_a_file_are_compared(tmp_path: Path, change: Change, problem: str) -> None:
    key = np.memmap(tmp_path / "key", np.float32, "w+", shape=(100, 2))
    key[:] = normal(0, 100, 2)
    key.flush()
    with pytest.raises(OSError, match=problem):
        blockwise.forward(
            normal(1, 3, 2), key, normal(2, 100, 2), executor=Meddling(lambda: replace(tmp_path / "key", change))
        )


def test_a_file_that_a_worker_does_not_find_does_not_break_a_pool_of_processes(mapped: dict[str, Array]) -> None:
    class Late(Executor):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            payload = pickle.dumps(args)
            Path(mapped["key"].filename).unlink(missing_ok=True)
            return pool.submit(call_pickled, function, payload)

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(OSError, match="it cannot be opened"):
            blockwise.forward(**mapped, executor=Late())
        assert pool.submit(abs, -3).result() == 3


def call_pickled(function: Any, payload: bytes) -> Any:
    return function(*pickle.loads(payload))  # noqa: S301


@pytest.mark.parametrize("change", [None, lambda content: content[:500], lambda content: content[::-1]])
def test_what_is_mapped_of_a_file_that_has_lost_its_name_is_sent_itself(
    mapped: dict[str, Array], change: Change
) -> None:
    expected, _ = blockwise.forward(**{name: np.array(x) for name, x in mapped.items()})
    for x in mapped.values():
        replace(Path(x.filename), change)
    assert_same_bits(blockwise.forward(**mapped, executor=Meddling(lambda: None))[0], expected)


def test_a_file_is_found_by_workers_in_another_folder(
    mapped: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = {name: np.memmap(name, x.dtype, "r", x.offset, x.shape) for name, x in mapped.items()}
    (tmp_path / "folder").mkdir()
    expected, _ = blockwise.forward(**mapped)
    output, _ = blockwise.forward(**relative, executor=Meddling(lambda: monkeypatch.chdir(tmp_path / "folder")))
    assert_same_bits(output, expected)


@pytest.mark.parametrize("name", ["query", "value"])
def test_forward_mode_takes_no_memory_for_what_is_left_out(name: str) -> None:
    m = 200_000
    x = {"query": normal(0, 1, 16), "key": normal(1, m, 16), "value": normal(2, m, 1)}
    _, cache = blockwise.forward(**x)
    assert x["key"].nbytes > 25 * 10**6
    assert peak_of(lambda: blockwise.jvp(cache, **{name: x[name]}, workers=1)) < 15 * 2**20


def test_forward_mode_along_the_values_alone_does_not_move_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    x = batch_of()
    _, cache = blockwise.forward(**x)
    expected = dot_product.jvp(dot_product.forward(**x)[1], value=x["value"])

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the scores were moved")

    monkeypatch.setattr(softmax, "times_jacobian", refuse)
    assert_close(blockwise.jvp(cache, value=x["value"]), expected, 1e-14)
    with pytest.raises(AssertionError, match="the scores were moved"):
        blockwise.jvp(cache, query=x["query"])


@pytest.mark.parametrize("count", range(5))
@pytest.mark.parametrize("batch", [(), (2,)])
def test_forward_mode_along_some_of_the_arrays(count: int, batch: tuple[int, ...]) -> None:
    x = {"query": normal(0, 3, 4), "key": normal(1, *batch, 5, 4), "value": normal(2, 2, 1, 5, 2), "bias": normal(3, 5)}
    caches = [op.forward(**x, mask=SOME_HIDDEN[:3], dropout_p=0.3, rng=1)[1] for op in (blockwise, dot_product)]
    for names in itertools.combinations(x, count):
        tangents = {name: normal(4, *x[name].shape) for name in names}
        ours, theirs = (op.jvp(cache, **tangents) for op, cache in zip((blockwise, dot_product), caches, strict=True))
        assert_alike(ours, theirs, 1e-14, str(names))


def test_inputs_are_not_written_to_and_results_do_not_alias_them() -> None:
    inputs = {**batch_of(), "bias": normal(3, 6, 7)}
    copies = {name: x.copy() for name, x in inputs.items()}
    for x in inputs.values():
        x.setflags(write=False)
    results = Results(blockwise, inputs, mask=a_mask(), dropout_p=0.2, rng=0)
    for name, x in inputs.items():
        assert_same_bits(x, copies[name])
        assert not any(np.shares_memory(array, x) for _, array in results.items())


# What a rule hides costs nothing


class Counting(rules.Rule):
    """Another rule, and a count of the pairs in the blocks that it does not rule out."""

    def __init__(self, rule: rules.Rule) -> None:
        self.rule, self.pairs, self.asked = rule, 0, 0

    def block(self, rows: slice, columns: slice) -> Any:
        self.asked += 1
        answer = self.rule.block(rows, columns)
        self.pairs += (answer is not False) * (rows.stop - rows.start) * (columns.stop - columns.start)
        return answer

    def columns(self, rows: slice, columns: slice) -> slice:
        return self.rule.columns(rows, columns)


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (rules.causal(), 0.55),
        (rules.sliding_window(left=100), 0.1),
        (rules.packed(np.arange(8192) // 512), 0.13),
        (rules.padding(1000), 0.13),
        (rules.padding(0), 0.0),
    ],
    ids=["causal", "window", "packed", "padding", "nothing"],
)
def test_blocks_that_a_rule_hides_are_not_computed(rule: rules.Rule, share: float) -> None:
    n = 8192
    x = normal(0, n, 1).astype(np.float32)
    counting = Counting(rule)
    _, cache = blockwise.forward(x, x, x, mask=counting, workers=1)
    assert counting.pairs <= share * n * n
    counting.pairs = 0
    blockwise.backward(x, cache, workers=1)
    assert counting.pairs <= share * n * n


def test_a_window_asks_and_reads_only_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    n, sizes = 8192, []
    attend = kernels.attend
    monkeypatch.setattr(
        kernels, "attend", lambda tiles: (sizes.extend(tile.n - tile.m for tile in tiles), attend(tiles))[1]
    )
    counting = Counting(rules.sliding_window(left=100))
    x = normal(0, n, 1).astype(np.float32)
    _, cache = blockwise.forward(x, x, x, mask=counting, block_size=64, workers=1)
    assert len(sizes) > 1
    assert min(sizes) >= -100  # a task holds the keys of its own queries, and the window before them
    assert n // 64 <= counting.asked <= 4 * n // 64
    blockwise.backward(x, cache, workers=1)
    assert counting.asked <= 9 * n // 64


# Workers


def some_problem() -> tuple[dict[str, Array], dict[str, Any]]:
    inputs = {
        "query": normal(0, 3, 1100, 16),
        "key": normal(1, 1, 1200, 16),
        "value": normal(2, 1, 1200, 8),
        "bias": normal(3, 1200),
    }
    mask = rules.sliding_window(left=700) & rules.padding([1200, 900, 0])
    return inputs, {"mask": mask, "dropout_p": 0.2, "rng": 3}


@functools.cache
def expected_bits() -> list[Array]:
    return all_results(workers=1)


def all_results(**how: Any) -> list[Array]:
    inputs, options = some_problem()
    output, cache = blockwise.forward(**inputs, **options, **how)
    gradients = blockwise.backward(normal(4, *output.shape), cache, **how)
    moved = blockwise.jvp(cache, query=inputs["query"], **how)
    return [output, cache.logsumexp, *gradients, moved]


def assert_expected_bits(**how: Any) -> None:
    for array, expected in zip(all_results(**how), expected_bits(), strict=True):
        assert_same_bits(array, expected)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_bits_do_not_depend_on_the_number_of_workers(count: int) -> None:
    assert_expected_bits(workers=count)


def test_the_bits_do_not_depend_on_the_executor() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert_expected_bits(executor=pool)
        assert_expected_bits(executor=pool, workers=1)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert_expected_bits(executor=pool)


@pytest.mark.filterwarnings("default")
def test_the_bits_do_not_depend_on_a_cluster() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_expected_bits(executor=client.get_executor())


def test_a_rule_may_itself_use_attention() -> None:
    x = normal(0, 600, 3)

    class Inner(rules.Rule):
        def block(self, rows: slice, columns: slice) -> Array:
            output, cache = blockwise.forward(x, x[:, ::-1], x, workers=1)
            gradient = blockwise.backward(output, cache, workers=1).key
            return np.add.outer(gradient[rows, 0], gradient[columns, 1]) > -0.1

    inputs = {"query": x, "key": x, "value": x}
    inner = Results(blockwise, inputs, mask=Inner(), block_size=(200, 300))
    known = rules.whole(Inner().block(slice(0, 600), slice(0, 600)))
    expected = Results(blockwise, inputs, mask=known, block_size=(200, 300))
    for (name, array), (_, other) in zip(inner.items(), expected.items(), strict=True):
        assert_alike(array, other, 1e-14, name)


class Failing(rules.Rule):
    """Fails at the third block that is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def block(self, rows: slice, columns: slice) -> bool:
        del rows, columns
        self.asked += 1
        if self.asked >= 3:
            raise RuntimeError("no third block")
        return True


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_in_a_task_is_raised_and_leaves_no_task_behind(count: int) -> None:
    x = normal(0, 8, 600, 4)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no third block"):
        blockwise.forward(x, x, x, mask=Failing(), workers=count)
    assert threading.active_count() == before


def test_no_more_results_wait_than_a_few_for_each_worker() -> None:
    alive, most = 0, 0

    class Eager(Executor):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            future: Future[Any] = Future()
            future.set_result(function(*args))
            get = future.result

            def result(timeout: float | None = None) -> Any:
                nonlocal alive
                alive -= 1
                return get(timeout)

            future.result = result  # type: ignore[method-assign]
            return future

    x = normal(0, 40, 512, 2)
    blockwise.forward(x, x, x, executor=Eager(), workers=2)
    assert alive == 0
    assert most == 5  # two for each worker, and the one that is due


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"workers": 0}, ValueError, "^workers must be at least 1, not 0"),
        ({"workers": 1.5}, TypeError, "^workers must be an integer"),
        ({"executor": 3}, TypeError, r"^executor must be a concurrent\.futures\.Executor, not int"),
        ({"block_size": 0}, ValueError, "^block_size must be at least 1, not 0"),
        ({"block_size": (0, 1)}, ValueError, "^block_size must be at least 1, not 0"),
        ({"block_size": (1, 0)}, ValueError, "^block_size must be at least 1, not 0"),
        ({"block_size": (1, 2, 3)}, ValueError, r"^block_size must be one number, or one of queries and one of keys"),
        ({"block_size": "a"}, TypeError, "^block_size must be an integer, not str"),
        ({"mask": rules.packed([0, 1])}, ValueError, "^there are segments of 2 queries and 2 keys, but 4 queries"),
        ({"mask": rules.padding([6])}, ValueError, "^lengths must be from 0 to m=5, not 6"),
        ({"mask": rules.padding([1, 2])}, ValueError, "^mask must broadcast to the scores"),
        ({"mask": rules.whole(np.ones((4, 4), bool))}, ValueError, "^mask must broadcast to 4 queries and 5 keys"),
    ],
)
def test_options_that_cannot_be_used_are_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        blockwise.forward(**arrays(), **changed)


@pytest.mark.parametrize("n", [4, VAST])
@pytest.mark.parametrize(("changed", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_as_by_dot_product(
    changed: dict[str, Any], error: type[Exception], message: str, n: int
) -> None:
    good = {"query": zeros(n, 3), "key": zeros(5, 3), "value": zeros(5, 2)}
    with pytest.raises(error, match=message.replace("{n}", str(n))):
        blockwise.forward(**{**good, **changed})


def test_vectors_that_do_not_fit_are_refused() -> None:
    output, cache = blockwise.forward(**arrays())
    with pytest.raises(ValueError, match=r"d_output must have the shape \(4, 2\)"):
        blockwise.backward(np.zeros((1, 2)), cache)
    with pytest.raises(ValueError, match=r"d_logsumexp must have the shape \(4,\)"):
        blockwise.backward(output, cache, d_logsumexp=np.zeros((4, 1)))
    with pytest.raises(ValueError, match=r"^the tangent of key must have the shape \(5, 3\)"):
        blockwise.jvp(cache, key=np.zeros((1, 3)))
    with pytest.raises(ValueError, match="tangent was given for bias, but forward was called without bias"):
        blockwise.jvp(cache, bias=np.zeros((4, 5)))
    for other in (None, (), softmax.forward(np.zeros(3))[1], dot_product.forward(**arrays())[1]):
        with pytest.raises(TypeError, match=re.escape("cache must be the one that blockwise.forward returned, not")):
            blockwise.backward(output, other)  # type: ignore[arg-type]


# BLAS


class FakeController:
    """As threadpoolctl's, of one library that has eight threads."""

    threads = 8
    limited = 0

    def limit(self, *, limits: int, user_api: str) -> FakeController:
        assert user_api == "blas"
        assert self.threads == 8
        self.threads, self.limited = limits, self.limited + 1
        return self

    def __enter__(self) -> None:
        assert self.threads == 1

    def __exit__(self, *_: object) -> None:
        assert self.threads == 1
        self.threads = 8


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> FakeController:
    fake = FakeController()
    monkeypatch.setattr(blas, "controller", lambda: fake)
    return fake


def test_blas_is_held_while_it_lasts_and_let_go_after(controller: FakeController) -> None:
    seen: list[int] = []

    class Looking(rules.Rule):
        def block(self, rows: slice, columns: slice) -> bool:
            del rows, columns
            seen.append(controller.threads)
            return True

    x = normal(0, 600, 3)
    for count in (1, 2):
        blockwise.forward(x, x, x, mask=Looking(), workers=count)
    assert set(seen) == {1}
    assert (controller.threads, controller.limited) == (8, 2)


def test_an_error_inside_lets_blas_go(controller: FakeController) -> None:
    x = normal(0, 8, 600, 4)
    for count in (1, 2):
        with pytest.raises(RuntimeError, match="no third block"):
            blockwise.forward(x, x, x, mask=Failing(), workers=count)
        assert controller.threads == 8


def test_nested_and_concurrent_calls_hold_blas_once(controller: FakeController) -> None:
    barrier = threading.Barrier(3)

    class Nested(rules.Rule):
        def block(self, rows: slice, columns: slice) -> bool:
            del rows, columns
            blockwise.forward(**arrays())
            assert controller.threads == 1
            barrier.wait(30)  # until all are inside
            for _ in range(1000):  # when the first leaves, a moment passes until another thread holds BLAS
                if controller.threads == 1:
                    return True
                time.sleep(0.01)
            raise AssertionError("BLAS was let go before the last call returned")

    def call(_: int) -> None:
        blockwise.forward(**arrays(), mask=Nested(), workers=1)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(3)))
    assert controller.threads == 8
    assert controller.limited <= 2  # by the first call, and for those that outlast it


def test_real_blas_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]

    before, seen = threads(), []
    attend = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda tiles: (seen.append(threads()), attend(tiles))[1])
    x = normal(0, 4, 600, 3)
    blockwise.forward(x, x, x, workers=2)
    assert seen
    assert all(count == 1 for counts in seen for count in counts)
    assert threads() == before


def test_real_blas_is_held_for_every_thread_until_the_last_call_returns() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> set[int]:
        libraries = threadpoolctl.threadpool_info()
        return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(2):
        pass  # whatever set a limit before must not stand in the way
    before, seen = threads(), []
    first_is_in, second_is_in, first_has_left = threading.Event(), threading.Event(), threading.Event()

    class First(rules.Rule):
        def block(self, rows: slice, columns: slice) -> bool:
            del rows, columns
            seen.append(threads())
            first_is_in.set()
            return second_is_in.wait(30)

    class Second(rules.Rule):
        def block(self, rows: slice, columns: slice) -> bool:
            del rows, columns
            second_is_in.set()
            assert first_has_left.wait(30)
            seen.append(threads())
            return True

    def call(rule: rules.Rule) -> None:
        blockwise.forward(**arrays(), mask=rule, workers=1)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(call, First())
        assert first_is_in.wait(30)
        second = pool.submit(call, Second())
        first.result()
        first_has_left.set()
        second.result()
    assert seen == [{1}, {1}]
    assert threads() == before
    with threadpoolctl.threadpool_limits(1):  # and who sets a limit afterwards is heard
        assert threads() == {1}
    assert threads() == before


class Meeting(rules.Rule):
    """Does something in a call, while it lasts."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def block(self, rows: slice, columns: slice) -> bool:
        del rows, columns
        self.act()
        return True

    def attend(self) -> None:
        blockwise.forward(**arrays(), mask=self, workers=1)


@forks
def test_a_child_that_is_forked_in_a_call_has_all_threads_of_blas(controller: FakeController) -> None:
    def act() -> None:
        assert controller.threads == 1
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1

    Meeting(act).attend()
    assert controller.threads == 8
    assert in_child(lambda: controller.threads) == 8


def keepers() -> list[bool]:
    """Of the threads that do nothing but see to BLAS, whether the process may end without them."""
    return [thread.daemon for thread in threading.enumerate() if thread.name == "attention_np_blas"]


@forks
def test_a_child_that_another_thread_forks_during_a_call_has_all_threads_of_blas(controller: FakeController) -> None:
    is_in, has_forked, first_has_left = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Meeting(lambda: (is_in.set(), has_forked.wait(30))).attend)
        assert is_in.wait(30)
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1
        is_in.clear()
        second = pool.submit(Meeting(lambda: (is_in.set(), first_has_left.wait(30))).attend)
        assert is_in.wait(30)
        has_forked.set()
        first.result()  # another thread holds BLAS for the second
        assert keepers() == [True]
        assert in_child(lambda: controller.threads) == 8
        assert controller.threads == 1
        first_has_left.set()
        second.result()
    assert controller.threads == 8


@forks
def test_a_child_does_not_wait_for_a_blas_that_another_thread_has_locked(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "SECONDS_TO_LET_GO", 0.1)
    monkeypatch.setattr(FakeController, "__exit__", lambda *_: is_free.wait(30))
    is_in, is_free = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Meeting(lambda: (is_in.set(), is_free.wait(30))).attend)
        assert is_in.wait(30)
        start = time.monotonic()
        assert in_child(lambda: controller.threads + 10 * (keepers() == [True])) == 11
        assert time.monotonic() - start < 15
        is_free.set()
        call.result()


@forks
def test_real_blas_has_its_threads_in_a_child_and_a_call_there_gives_them_back() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def most() -> int:
        libraries = threadpoolctl.threadpool_info()
        return int(max(library["num_threads"] for library in libraries if library["user_api"] == "blas"))

    def after_a_call() -> int:
        before = most()
        blockwise.forward(**arrays())
        return most() if before == most() else 0

    found: list[int] = []
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        expected = most()
        Meeting(lambda: found.append(in_child(after_a_call))).attend()
        with ThreadPoolExecutor(1) as pool:
            Meeting(lambda: found.append(pool.submit(in_child, after_a_call).result())).attend()
        assert most() == expected
    assert set(found) == {expected}


def test_without_threadpoolctl_one_worker_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "controller", lambda: None)
    assert workers.as_workers(None, None) == 1
    assert workers.as_workers(None, 3) == 3
    monkeypatch.setattr(workers, "_usable_cores", lambda: 5)
    assert workers.as_workers(None, None) == 1
    monkeypatch.setattr(blas, "controller", FakeController)
    assert workers.as_workers(None, None) == 5
    monkeypatch.setattr(blas, "controller", lambda: None)
    for array, expected in zip(all_results(workers=2), expected_bits(), strict=True):
        assert_alike(array, expected, 1e-14)  # not to the bit: how BLAS shares out a product is its own affair


# Merging


def partials(splits: list[int], masked: bool = False, **options: Any) -> list[Partial]:
    inputs = batch_of(6, 12)
    mask = np.random.default_rng(0).random((6, 12)) < 0.3 if masked else np.ones((6, 12), bool)
    mask[2] = not masked
    found = []
    for keys in map(slice, [0, *splits], [*splits, 12]):
        x = {**inputs, "key": inputs["key"][:, keys], "value": inputs["value"][:, keys]}
        output, cache = blockwise.forward(**x, mask=mask[:, keys], **options)
        found.append(Partial(output, cache.logsumexp))
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_parts_of_the_keys_merge_into_all_of_them_in_any_order(masked: bool, scale: float) -> None:
    (whole,) = partials([], masked, scale=scale)
    for splits in ([5], [0, 5], [3, 3, 7], [1, 2, 11]):
        parts = partials(splits, masked, scale=scale)
        for order in (parts, parts[::-1]):
            left = functools.reduce(merge, order)
            right = functools.reduce(lambda a, b: merge(b, a), order[::-1])
            for merged in (left, right):
                assert_close(merged.output, whole.output, 2e-15)
                np.testing.assert_allclose(merged.logsumexp, whole.logsumexp, rtol=1e-14, atol=1e-14)
    assert masked == bool((whole.logsumexp == -np.inf).any())


def test_attention_over_no_keys_changes_nothing_and_no_nan_comes_of_it() -> None:
    (whole,) = partials([], True)
    nothing = Partial(np.zeros_like(whole.output), np.full_like(whole.logsumexp, -np.inf))
    for merged in (merge(whole, nothing), merge(nothing, whole)):
        assert_same_bits(merged.output, whole.output)
        assert_same_bits(merged.logsumexp, whole.logsumexp)
    both = merge(nothing, nothing)
    assert (both.output == 0).all()
    assert (both.logsumexp == -np.inf).all()
    garbage = Partial(np.full_like(whole.output, np.nan), nothing.logsumexp)
    assert_same_bits(merge(whole, garbage).output, whole.output)
    d = Partial(normal(0, *whole.output.shape), normal(1, *whole.logsumexp.shape))
    d_whole, d_nothing = merge_backward(d, whole, nothing)
    assert (d_nothing.output == 0).all()
    assert (d_nothing.logsumexp == 0).all()
    empty = whole.logsumexp == -np.inf
    assert_same_bits(d_whole.output, np.where(empty[..., None], 0, d.output))
    assert_same_bits(d_whole.logsumexp, np.where(empty, 0, d.logsumexp))
    assert all(np.isfinite(x).all() for part in merge_backward(d, nothing, nothing) for x in part)


def test_a_part_at_plus_infinity_takes_all() -> None:
    one, other = partials([5])
    limit = Partial(one.output, np.full_like(one.logsumexp, np.inf))
    for merged in (merge(limit, other), merge(other, limit)):
        assert_same_bits(merged.output, one.output)
        assert (merged.logsumexp == np.inf).all()
    assert np.isnan(merge(limit, limit).output).all()


def test_the_gradient_of_merging_is_the_numerical_one() -> None:
    one, other = partials([5])
    inputs = {"o1": one.output, "l1": one.logsumexp, "o2": other.output, "l2": other.logsumexp}

    def forward(o1: Array, l1: Array, o2: Array, l2: Array) -> Array:
        merged = merge((o1, l1), (o2, l2))
        return np.concatenate([merged.output, merged.logsumexp[..., None]], axis=-1)

    def backward(d: Array, o1: Array, l1: Array, o2: Array, l2: Array) -> tuple[Array, ...]:
        first, second = merge_backward((d[..., :-1], d[..., -1]), (o1, l1), (o2, l2))
        return (*first, *second)

    for method in ("complex-step", "central"):
        gradcheck.check(forward, backward, inputs, method=method).raise_if_failed()


def test_gradients_flow_through_a_merge_to_the_keys_of_each_part() -> None:
    inputs = batch_of(6, 12)
    output, cache = blockwise.forward(**inputs)
    d_output = normal(3, *output.shape)
    whole = blockwise.backward(d_output, cache)
    caches = [
        blockwise.forward(inputs["query"], inputs["key"][:, keys], inputs["value"][:, keys])[1]
        for keys in (slice(0, 5), slice(5, 12))
    ]
    parts = [Partial(c.output, c.logsumexp) for c in caches]
    d_parts = merge_backward((d_output, np.zeros(cache.logsumexp.shape)), *parts)
    found = [blockwise.backward(d.output, c, d_logsumexp=d.logsumexp) for d, c in zip(d_parts, caches, strict=True)]
    assert_close(found[0].query + found[1].query, whole.query, 1e-14)
    assert_close(np.concatenate([found[0].key, found[1].key], axis=1), whole.key, 1e-14)
    assert_close(np.concatenate([found[0].value, found[1].value], axis=1), whole.value, 1e-14)


@pytest.mark.parametrize(
    "use", [merge, functools.partial(merge_backward, (np.zeros((3, 2)), np.zeros(3)))], ids=["merge", "merge_backward"]
)
def test_parts_that_do_not_fit_are_refused(use: Callable[[Any, Any], Any]) -> None:
    part = Partial(np.zeros((3, 2)), np.zeros(3))
    long, whole = (np.zeros((3, 2)), np.zeros((3, 1))), (np.zeros((3, 2), int), np.zeros(3))
    for name, swap in (("first", False), ("second", True)):
        for bad, error, message in (
            (long, ValueError, f"^the logsumexp of {name} must have one number for each row"),
            (whole, TypeError, f"^the output of {name} must hold floating-point numbers, not int64"),
        ):
            with pytest.raises(error, match=message):
                use(*((part, bad) if swap else (bad, part)))
    with pytest.raises(ValueError, match=r"^the outputs of first and second must have one shape"):
        use(part, (np.zeros((1, 2)), np.zeros(1)))


def test_the_gradients_of_a_merge_are_complex_in_the_precision_of_each_part() -> None:
    one, other = ([x.astype(dtype) for x in part] for part, dtype in zip(partials([5]), ("F", "D"), strict=True))
    for d in (one, other):
        found = merge_backward((d[0], d[1]), (one[0], one[1]), (other[0], other[1]))
        assert [x.dtype.char for part in found for x in part] == list("FFDD")
    assert [x.dtype.char for x in merge((one[0], one[1]), (other[0], other[1]))] == list("DD")


def test_the_gradient_of_a_merge_must_have_its_shape() -> None:
    part = Partial(np.zeros((3, 2)), np.zeros(3))
    for rows, width in ((3, 1), (1, 2), (4, 2)):
        with pytest.raises(
            ValueError, match=r"^d_merged must have the shape of what was merged \(the output of d_merged"
        ):
            merge_backward((np.zeros((rows, width)), np.zeros(rows)), part, part)


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("of_logsumexp", ["half", "single"])
def test_half_precision_merges_in_single_and_comes_back_as_it_was(half: Any, of_logsumexp: str) -> None:
    dtypes = Partial(np.dtype(half), np.dtype(half if of_logsumexp == "half" else np.float32))
    parts = [Partial(*(x.astype(dtype) for x, dtype in zip(p, dtypes, strict=True))) for p in partials([5])]
    wide = [Partial(*(x.astype(np.float32) for x in part)) for part in parts]
    merged, expected = merge(*parts), merge(*wide)
    d = Partial(normal(0, *parts[0].output.shape).astype(half), normal(1, *parts[0].logsumexp.shape).astype(half))
    d_wide = Partial(*(x.astype(np.float32) for x in d))
    found = [merged, *merge_backward(d, *parts)]
    for part, single in zip(found, [expected, *merge_backward(d_wide, *wide)], strict=True):
        for x, y, dtype in zip(part, single, dtypes, strict=True):
            assert x.dtype == dtype
            assert y.dtype == np.float32
            np.testing.assert_array_equal(x.astype(np.float32), y.astype(dtype).astype(np.float32))


def test_masks_given_whole_and_as_rules_are_one() -> None:
    x = batch_of(20, 30)
    for rule, mask in (
        (rules.causal(offset=4), masks.causal(20, 30, offset=4)),
        (rules.padding([30, 11]), masks.padding([30, 11], 30)),
    ):
        one, other = Results(blockwise, x, mask=rule), Results(blockwise, x, mask=mask)
        for (_, array), (_, expected) in zip(one.items(), other.items(), strict=True):
            assert_alike(array, expected, 1e-15)


def test_products_may_leave_the_range_where_the_scores_do_not() -> None:
    inputs = {"query": np.full((3, 2), 1e160), "key": np.full((4, 2), 1e155), "value": normal(0, 4, 3)}
    inputs["key"][1:] *= [[1.0, 1.0], [0.5, 1.5], [1.0, 1.2]]
    options = {"scale": 1e-315 * 0.7}
    cache = dot_product.forward(**inputs, **options)[1]
    assert np.isfinite(cache.scores).all()
    assert_same_as_dot_product(inputs, tolerance=1e-6, **options)  # so small a scale has few digits left


# What passes between forward and backward


@pytest.mark.parametrize("n", [700, 2048, 4096])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_few_rows_with_large_scores_do_not_spoil_the_gradients_of_others(n: int, workers: int) -> None:
    query, key, value = (normal(seed, n, 4).astype(np.float32) for seed in range(3))
    query[600] *= 40  # its row needs a shift, and others that are worked on beside it do not
    _, cache = blockwise.forward(query, key, value, workers=workers)
    given = normal(3, n, 4).astype(np.float32)
    expected = dot_product.backward(given, dot_product.forward(query, key, value)[1])
    for found, wanted in zip(blockwise.backward(given, cache, workers=workers)[:3], expected[:3], strict=True):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_the_gradient_of_the_logsumexp_counts_once_where_values_share_it() -> None:
    query, key, value = normal(0, 3, 4), normal(1, 5, 4), normal(2, 2, 1, 5, 2)
    output, cache = blockwise.forward(query, key, value)
    given = normal(3, 3)
    found = blockwise.backward(np.zeros(output.shape), cache, d_logsumexp=given).query
    expected = blockwise.backward(np.zeros((3, 2)), blockwise.forward(query, key, value[0, 0])[1], d_logsumexp=given)
    np.testing.assert_allclose(found, expected.query, rtol=1e-13)


def test_a_wider_gradient_of_the_output_is_taken_with_the_same_weights() -> None:
    inputs = {name: (3 * normal(seed, 64, 8)).astype(np.float32) for seed, name in enumerate(("query", "key", "value"))}
    bias = 3 * normal(3, 64, 64).astype(np.float32)
    _, cache = blockwise.forward(**inputs, bias=bias)
    given = normal(4, 64, 8)
    narrow = blockwise.backward(given.astype(np.float32), cache)
    for wide in (given, given.astype(np.longdouble)):
        for found, expected in zip(blockwise.backward(wide, cache), narrow, strict=True):
            assert found is not None
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_weight_of_zero_counts_for_nothing_beside_huge_values(dtype: Any, sign: int) -> None:
    key, value = np.array([[0.0], [-2000.0]], dtype), np.array([[1.0], [sign * np.finfo(dtype).max / 4]], dtype)
    output, cache = blockwise.forward(np.ones((1, 1), dtype), key, value, scale=1.0)
    assert output == 1
    assert blockwise.backward(np.ones((1, 1), dtype), cache).query == 0


def test_a_bias_at_the_end_of_the_range_is_one_score_among_others() -> None:
    least = np.finfo(np.float32).min
    ones = np.ones((3, 1), np.float32)
    _, cache = blockwise.forward(ones[:1], 0 * ones, ones, bias=np.full((1, 3), least))
    assert cache.logsumexp == least
    bias = np.full((4, 300), least)
    bias[:, 0] = -3e38
    value = normal(0, 300, 2).astype(np.float32)
    output, _ = blockwise.forward(np.zeros((4, 2), np.float32), np.zeros((300, 2), np.float32), value, bias=bias)
    np.testing.assert_array_equal(output, np.broadcast_to(value[0], (4, 2)))


def test_scores_of_minus_infinity_that_attend_are_not_hidden() -> None:
    inputs = {"query": np.array([[-np.inf], [1.0]]), "key": np.array([[1.0], [2.0]]), "value": np.array([[1.0], [5.0]])}
    np.testing.assert_array_equal(blockwise.forward(**inputs)[0], dot_product.forward(**inputs)[0])


def test_values_near_the_smallest_numbers_keep_their_digits() -> None:
    inputs = {"query": np.full((4, 1), -20, np.float32), "key": np.ones((8, 1), np.float32)}
    inputs["value"] = (1e-34 * np.random.default_rng(0).random((8, 2))).astype(np.float32)
    np.testing.assert_allclose(
        blockwise.forward(**inputs, scale=1.0)[0], inputs["value"][None].mean(axis=1).repeat(4, 0), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (1, TypeError),
        (None, TypeError),
        (0.5, TypeError),
        (np.ones((4, 5), int), TypeError),
        (np.ones(5, bool), ValueError),
        (np.ones((3, 5), bool), ValueError),
    ],
    ids=["one", "none", "half", "integers", "one axis", "three rows"],
)
def test_a_rule_that_answers_something_else_is_refused(answer: Any, error: type[Exception]) -> None:
    class Wrong(rules.Rule):
        def block(self, rows: slice, columns: slice) -> Any:
            del rows, columns
            return answer

    with pytest.raises(error, match=r"^the block of a rule must"):
        blockwise.forward(**arrays(), mask=Wrong())


# Rows whose log-sum-exp does not say their weights


def assert_as_dot_product(
    inputs: dict[str, Array], tolerance: float, d_output: Array | None = None, sums: float = 1.0, **options: Any
) -> None:
    """That all results agree, relative to the largest entry or to `sums`, the size of the terms of their sums."""
    block_size = options.pop("block_size", None)
    ours = Results(blockwise, inputs, d_output=d_output, block_size=block_size, **options)
    expected = dict(Results(dot_product, inputs, d_output=d_output, **options).items())
    for name, array in ours.items():
        finite = np.isfinite(expected[name])
        np.testing.assert_array_equal(np.isfinite(array), finite, err_msg=name)
        size = max(np.abs(expected[name][finite]).max(initial=0), sums)
        assert (np.abs(array[finite] - expected[name][finite]) <= tolerance * size).all(), name


@pytest.mark.parametrize("bad", ["query", "key", "value"])
@pytest.mark.parametrize("poison", POISONS)
@some_blocks
@pytest.mark.parametrize("has_mask", [False, True], ids=["no mask", "mask"])
def test_a_row_of_which_everything_is_dropped_has_no_gradient_whatever_it_holds(
    bad: str, poison: float, block_size: Any, has_mask: bool
) -> None:
    mask = np.random.default_rng(0).random((6, 7)) < 0.6 if has_mask else None
    inputs = poisoned(batch_of(), poison, **{bad: (0, 3, 1)})
    options = {"mask": mask, "dropout_p": 0.9, "rng": 1}
    dropout = dot_product.forward(**inputs, **options)[1].dropout
    assert ((dropout[0] == 0) | ~(np.True_ if mask is None else mask)).all(axis=-1).any()
    assert_as_dot_product(inputs, 1e-13, block_size=block_size, **options)


@some_blocks
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_weight_of_nothing_beside_a_bad_value_spoils_the_output_and_no_gradient_of_a_score(
    block_size: Any, poison: float
) -> None:
    query, key, value = np.ones((3, 2)), normal(1, 6, 2), normal(2, 6, 2)
    key[4, 0], value[4, 1] = -np.inf, poison  # a score of minus infinity, and so a weight of zero
    inputs = {"query": query, "key": key, "value": value}
    output, cache = blockwise.forward(**inputs, block_size=block_size)
    assert np.isnan(output[:, 1]).all()
    assert np.isfinite(blockwise.backward(np.ones((3, 2)), cache).query).all()
    assert_as_dot_product(inputs, 1e-13, block_size=block_size)


def out_of_range(dtype: Any, size: float) -> dict[str, Array]:
    """Arrays of which some scores are about as large as the largest number to the power of 2 * `size`."""
    large = np.ldexp(dtype(1), int(np.finfo(dtype).maxexp * size))
    inputs = {name: x.astype(dtype) for name, x in batch_of().items()}
    inputs["query"] = np.abs(inputs["query"])
    inputs["query"][:, [1, 4]] *= large
    inputs["key"][:, [2, 3, 5]] *= large
    inputs["key"][:, 5] = np.abs(inputs["key"][:, 5])
    return inputs


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("size", [0.6, 0.95])
@pytest.mark.parametrize("hidden", [[], [5], [1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.3, "rng": 1}], ids=["plain", "dropout"])
@some_blocks
def test_scores_that_do_not_fit_have_the_weights_of_dot_product(
    dtype: Any, size: float, hidden: list[int], dropout: dict[str, Any], block_size: Any
) -> None:
    inputs = out_of_range(dtype, size)
    mask = ~np.isin(np.arange(7), hidden)
    eps = np.finfo(dtype).eps
    terms = float(np.abs(inputs["key"]).max())
    output, cache = blockwise.forward(**inputs, mask=mask)
    assert np.isfinite(output).all()
    assert np.isfinite(cache.logsumexp).sum() == 8
    assert_as_dot_product(inputs, 200 * eps, sums=10 * terms, block_size=block_size, mask=mask, **dropout)


def test_a_log_sum_exp_that_does_not_fit_is_infinite_or_if_it_is_too_small_not_a_number() -> None:
    query, key, value = np.array([[1e200], [-1e200], [1.0]]), np.array([[1e200], [2e200]]), np.array([[1.0], [2.0]])
    output, cache = blockwise.forward(query, key, value)
    np.testing.assert_array_equal(output, [[2], [1], [2]])
    np.testing.assert_array_equal(cache.logsumexp, [np.inf, np.nan, 2e200])
    merged = merge((output[:1], cache.logsumexp[:1]), (np.full((1, 1), 5.0), np.array([1e300])))
    np.testing.assert_array_equal(merged.output, [[2]])
    found = blockwise.backward(np.ones((3, 1)), cache, d_logsumexp=np.ones(3))
    np.testing.assert_array_equal(found.query, [[2e200], [1e200], [2e200]])
    np.testing.assert_array_equal(found.key, [[-1e200], [1e200 + 1]])


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [(np.float32, 1.0), (np.float64, 1.0), (np.float32, 1e-25), (np.float64, 1e-300)],
    ids=["single", "double", "single, plain", "double, plain"],
)
@pytest.mark.parametrize("size", [1.0, 1e3, 1e8, 1e16, 1e30])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_weights_sum_to_one_in_the_backward_pass_however_large_the_scores_are(
    dtype: Any, unit: float, size: float, has_bias: bool
) -> None:
    inputs = {"query": size * normal(0, 40, 8), "key": normal(1, 450, 8).repeat(2, axis=0), "value": normal(2, 900, 3)}
    inputs |= {"bias": np.zeros((1, 900))} if has_bias else {}
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    d_output = np.full((40, 3), unit, dtype)
    d_value = blockwise.backward(d_output, blockwise.forward(**inputs)[1]).value
    np.testing.assert_allclose(d_value.sum(axis=0), d_output.sum(axis=0), rtol=0.02)


@pytest.mark.parametrize("bias", [None, np.zeros((1, 3))], ids=["no bias", "bias"])
def test_gradients_of_which_the_terms_do_not_fit_are_those_of_dot_product(bias: Array | None) -> None:
    inputs = {"query": 1e-200 * normal(0, 4, 2), "key": 1e-200 * normal(1, 3, 2), "value": 1e250 * normal(2, 3, 2)}
    inputs |= {} if bias is None else {"bias": bias}
    d_output = 1e100 * normal(3, 4, 2)
    _, cache = blockwise.forward(**inputs, scale=1e100)
    found = blockwise.backward(d_output, cache, d_logsumexp=np.ones(4))
    expected = dot_product.backward(d_output, dot_product.forward(**inputs, scale=1e100)[1])
    for name in ("query", "key", "value"):
        assert np.isfinite(getattr(expected, name)).all()
        assert_close(getattr(found, name), getattr(expected, name), 1e-12)
    if bias is not None:
        np.testing.assert_array_equal(found.bias, expected.bias)


@pytest.mark.parametrize("name", ["query", "key"])
def test_tangents_may_move_the_scores_out_of_range_where_they_do_not_move_the_output_there(name: str) -> None:
    inputs = {"query": np.zeros((1, 2)), "key": np.zeros((3, 2)), "value": 1e-60 * normal(2, 3, 2)}
    other = "key" if name == "query" else "query"
    inputs[other] = 1e150 * normal(0, *inputs[other].shape)
    moving = {name: 1e200 * normal(1, *inputs[name].shape)}
    ours, theirs = (op.jvp(op.forward(**inputs)[1], **moving) for op in (blockwise, dot_product))
    assert np.isfinite(theirs).all()
    assert_close(ours, theirs, 1e-13)


def test_no_head_gives_gradients_of_zero_to_what_all_heads_share() -> None:
    output, cache = blockwise.forward(np.ones((3, 2)), np.ones((4, 2)), np.ones((0, 4, 2)))
    for gradient in blockwise.backward(output, cache)[:3]:
        assert (gradient == 0).all()


def test_rows_that_are_done_whole_add_to_what_the_others_give() -> None:
    inputs = {"query": normal(0, 600, 4), "key": normal(1, 4096, 4), "value": normal(2, 4096, 2)}
    inputs["query"][550] *= 1e40  # tiles of some queries and all keys begin elsewhere than those of some keys
    for count in (1, 2):
        _, cache = blockwise.forward(**inputs, workers=count)
        assert cache.logsumexp[550] > 1e39
        given = normal(3, 600, 2)
        found = blockwise.backward(given, cache, workers=count)
        expected = dot_product.backward(given, dot_product.forward(**inputs)[1])
        for gradient, other in zip(found[:3], expected[:3], strict=True):
            assert_close(gradient, other, 1e-12)


@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@some_blocks
def test_a_product_that_leaves_the_range_downwards_is_not_lost_beside_others(has_bias: bool, block_size: Any) -> None:
    key, value = np.array([[-2e154], [-1e154], [-1.5e154]]), normal(0, 3, 2)
    inputs, scale = {"query": np.full((1, 1), 1e154), "key": key, "value": value}, 1e-308
    if has_bias:
        inputs, scale = inputs | {"bias": np.array([[1e308, -0.9e308, 0.0]])}, 1.0
    _, cache = dot_product.forward(**inputs, scale=scale)
    assert has_bias or (cache.weights > 0.1).all()
    assert_same_as_dot_product(inputs, block_size, scale=scale)


@pytest.mark.parametrize("bias", [None, np.zeros(2)], ids=["no bias", "bias"])
def test_scores_of_minus_infinity_that_attend_are_not_forgotten_in_a_block_of_hidden_keys(bias: Array | None) -> None:
    query, key, mask = np.array([[np.inf, 1.0], [1.0, 1.0]]), np.array([[-1.0, 0.0], [1.0, 0.0]]), np.tri(2, dtype=bool)
    output, cache = blockwise.forward(query, key, np.ones((2, 1)), mask=mask, bias=bias, block_size=(2, 1))
    np.testing.assert_array_equal(np.isnan(output), [[True], [False]])
    np.testing.assert_array_equal(np.isnan(cache.logsumexp), [True, False])
