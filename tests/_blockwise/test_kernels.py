"""What the kernels do with a tile: when they serve, in which precision, in whose memory, how they round."""

import re
import sys
import threading
from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, Array, Patch, assert_close, each, normal

from attention_np import blockwise, dot_product
from attention_np._blockwise import kernels, plain
from attention_np._lib import arrays as _lib_arrays

from .calls import a_mask, arrays, assert_same_as_dot_product, batch_of


@pytest.fixture
def kernels_only(monkeypatch: Patch) -> None:
    """The slow way of :mod:`attention_np._blockwise.plain` is an error."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the plain way was taken")

    monkeypatch.setattr(plain, "attend", refuse)
    monkeypatch.setattr(plain, "differentiate", refuse)


@pytest.mark.usefixtures("kernels_only")
@each("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@each("scale", [None, 1e3])
@each("bias", [None, np.where(SOME_HIDDEN, normal(1, 4, 5), -np.inf)])
@each("options", [{}, {"mask": SOME_HIDDEN}, {"is_causal": True}, {"dropout_p": 0.4, "rng": 1}])
def test_what_is_finite_goes_through_the_kernels(
    dtype: Any, scale: float | None, bias: Array | None, options: dict[str, Any]
) -> None:
    x = {name: array.astype(dtype) for name, array in arrays("a batch").items()}
    bias = None if bias is None else bias.astype(dtype)
    output, cache = blockwise.forward(**x, scale=scale, bias=bias, **options, block_size=2)
    blockwise.backward(output, cache)


def test_the_caller_leaves_products_to_the_workers(monkeypatch: Patch) -> None:
    """A thread of BLAS goes on turning after a product that it shared, for as long as a pass takes."""
    callers, sum_of_squares = [], _lib_arrays.sum_of_squares

    def seen(array: Array) -> Any:
        callers.append(threading.current_thread())
        return sum_of_squares(array)

    for module in (_lib_arrays, kernels):
        monkeypatch.setattr(module, "sum_of_squares", seen)
    query = normal(0, 3, 512, 64)
    output, cache = blockwise.forward(query, query, query)
    blockwise.backward(output, cache)
    assert callers
    assert threading.current_thread() not in callers


@pytest.mark.usefixtures("kernels_only")
@each("bias", [None, np.float32(3e4), np.float32(-3e4)])
def test_a_row_whose_sum_leaves_the_range_without_a_shift_is_shifted(bias: Any) -> None:
    query, key, value = (x.astype(np.float32) for x in (100 * normal(0, 9, 4), normal(1, 8, 4), normal(2, 8, 3)))
    output, cache = blockwise.forward(query, key, value, bias=bias, block_size=3)
    assert np.abs(query @ key.T / 2).max() > 128
    assert_close(output, dot_product.forward(query, key, value)[0], 2e-2 if bias else 2e-5)
    blockwise.backward(output, cache)


@each("vectorised", [False, True])
@each("scale", [None, 30.0])
def test_either_exponential_serves(vectorised: bool, scale: float | None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(kernels, "_is_vectorised", lambda *_: vectorised)
    kernels._exponential.cache_clear()
    try:
        assert_same_as_dot_product(batch_of(), 3, 1e-13, mask=a_mask(), scale=scale)
        used = kernels._exponential(np.dtype(np.float32))
    finally:
        kernels._exponential.cache_clear()
    assert used.function is (np.exp2 if vectorised else np.exp)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("of_rows", [False, True], ids=["", "log-sum-exp"])
def test_every_pass_computes_in_the_precision_of_the_arrays(dtype: Any, of_rows: bool, monkeypatch: Patch) -> None:
    seen = set()

    def watched(function: Any) -> Any:
        def watching(tiles: Any, *rest: Any) -> Any:
            found = function(tiles, *rest)
            first = tiles[0] if isinstance(tiles, list) else tiles
            seen.add((first[0] if isinstance(first, tuple) else first).dtype)
            results = found[0] if isinstance(found, list) else found
            seen.update(x.dtype for x in results if x is not None)
            return found

        return watching

    monkeypatch.setattr(kernels, "attend", watched(kernels.attend))
    monkeypatch.setattr(kernels, "differentiate", watched(kernels.differentiate))
    monkeypatch.setattr(plain, "jvp", watched(plain.jvp))
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


def second_derivatives(op: Any, along: dict[str, Any], **given: Any) -> list[Array]:
    output, cache = op.forward(**given)
    product = op.double_backward(op.Gradients(**along), normal(7, *output.shape).astype(output.dtype), cache)
    return [product[0], *(x for x in product[1] if x is not None)]


@pytest.mark.parametrize("hidden", [1.0, np.nan])
def test_double_backward_goes_through_blocks_twice(hidden: float, monkeypatch: Patch) -> None:
    """From what forward kept of each row; from whole rows where something is not finite."""
    shapes = {"query": (7, 2), "key": (8, 2), "value": (8, 3), "bias": (7, 8), "sink": ()}
    arrays, along = ({name: normal(i + k, *x) for i, (name, x) in enumerate(shapes.items())} for k in (0, 5))
    mask = np.tril(np.ones((7, 8), bool)) & (np.arange(8) != 5) & (np.arange(7) != 2)[:, None]
    options = {"mask": mask, "softcap": 1.5, "dropout_p": 0.3, "rng": 1}
    whole: list[Any] = []
    of_rows = plain.whole_rows_twice
    monkeypatch.setattr(plain, "whole_rows_twice", lambda *given: whole.append(given) or of_rows(*given))
    arrays["key"][5] = hidden
    expected = second_derivatives(dot_product, along, **arrays, **options)
    found = second_derivatives(blockwise, along, **arrays, **options, block_size=(2, 3))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1e-13)
    assert bool(whole) == bool(np.isnan(hidden))


@each("dtype", [np.float32, np.float64])
@each("size", [1, -1, 30])
def test_double_backward_in_blocks_of_products_that_are_scaled_and_no_more(size: int, dtype: Any) -> None:
    """With and without shifts; in single precision over so many keys that the queries are scaled, not the products."""
    shapes = {"query": (5, 4), "key": (140, 4), "value": (140, 3)}
    given = {name: normal(i, *shape).astype(dtype) for i, (name, shape) in enumerate(shapes.items())}
    along = {name: normal(i + 5, *shape).astype(dtype) for i, (name, shape) in enumerate(shapes.items())}
    along |= {"bias": None, "sink": None}
    wide = [{name: x if x is None else x.astype(np.float64) for name, x in some.items()} for some in (along, given)]
    largest = np.abs(size / 2 * given["query"] @ given["key"].T).max()  # score: a weight has the rounding of its score
    expected = second_derivatives(dot_product, wide[0], **wide[1], scale=size / 2)
    found = second_derivatives(blockwise, along, **given, scale=size / 2, block_size=(2, 60))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert_close(one, other, float(8 * largest * np.finfo(dtype).eps))


def test_only_the_rows_that_need_it_are_done_whole(monkeypatch: Patch) -> None:
    query, key, value = normal(0, 6, 2), normal(1, 5, 2), normal(2, 5, 3)
    query[2] *= 1e20
    bias = np.zeros((6, 5))
    bias[4, 1] = np.nan
    bias[5] = -np.inf
    _, cache = blockwise.forward(query, key, value, bias=bias, block_size=8)
    rows = []
    whole = plain.differentiate_whole_rows

    def watched(tiles: Any) -> Any:
        for _, cotangent in tiles:
            rows.extend(np.flatnonzero(cotangent.d_output.any(axis=-1)))
        return whole(tiles)

    monkeypatch.setattr(plain, "differentiate_whole_rows", watched)
    blockwise.backward(np.ones((6, 3)), cache)
    assert rows == [2, 4]


@pytest.mark.usefixtures("kernels_only")
@each("size", [-250, -60, 60, 250])
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


def test_a_function_is_vectorised_if_numpy_runs_more_than_the_baseline(monkeypatch: Patch) -> None:
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


def output_and_gradients(op: Any, query: Array, key: Array, value: Array, d_output: Array) -> list[Array]:
    output, cache = op.forward(query, key, value)
    gradients = op.backward(d_output, cache)
    return [output, gradients.query, gradients.key, gradients.value]


@pytest.mark.parametrize(
    ("n", "score_scale"),
    [
        (64, 4),
        (256, 16),
        (512, 4),
        *(
            pytest.param(n, s, marks=pytest.mark.long)
            for n, s in [(64, 16), (256, 1), (256, 4), (512, 1), (512, 16), (512, 64)]
        ),
    ],
)
def test_blocks_round_hardly_more_than_whole_rows(n: int, score_scale: int) -> None:
    arrays = [normal(i, 8, n, 64).astype(np.float32) for i in range(4)]
    arrays[0] *= np.float32(score_scale)
    exact = output_and_gradients(dot_product, *(x.astype(np.float64) for x in arrays))
    errors = [
        [np.sqrt(np.mean(np.abs(x - y).mean(axis=(1, 2)) ** 2)) for x, y in zip(found, exact, strict=True)]
        for found in (output_and_gradients(op, *arrays) for op in (blockwise, dot_product))
    ]
    assert np.max(np.divide(*errors)) < 1.25  # by processor and BLAS up to 1.18, in what is summed over queries
