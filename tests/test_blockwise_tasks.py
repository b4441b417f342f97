"""How a call of blockwise attention is cut into tasks: enough of them, none too large, and the same bits wherever."""

from __future__ import annotations

import tracemalloc
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import assert_same_bits, normal

from attention_np import blockwise
from attention_np._blockwise.problem import Problem, grouped

Array = npt.NDArray[Any]


def problem(n: int, m: int, heads: int) -> Problem:
    query, key, value = (np.broadcast_to(np.float32(0), (heads, size, 64)) for size in (n, m, m))
    options = {"bias": None, "rule": None, "scale": 0.125, "dropout_p": 0.0, "dropout_key": None, "block_size": None}
    return Problem(query=query, key=key, value=value, dtype=np.dtype(np.float32), **options)


@pytest.mark.parametrize(
    ("n", "m", "heads"),
    [(1, 4096, 32), (4096, 1, 32), (1, 65536, 8), (16, 16, 4096), (512, 512, 16), (2048, 2048, 8), (1, 2**20, 8)],
)
def test_there_are_tasks_for_eight_cores_however_few_queries_or_keys_there_are(n: int, m: int, heads: int) -> None:
    call = problem(n, m, heads)
    for places in (call.strips(), call.squares()):
        groups = list(grouped(places))
        assert len(groups) >= 8
        assert [place for group in groups for place in group] == places


@pytest.mark.parametrize(("n", "m", "heads"), [(1, 2**20, 1), (2**20, 1, 1), (1, 4096, 256), (16, 16, 2**15)])
def test_no_task_gives_more_than_some_megabytes_of_gradients(n: int, m: int, heads: int) -> None:
    for group in grouped(problem(n, m, heads).squares()):
        rows = sum(place.rows.stop - place.rows.start for place in group)
        columns = sum(place.columns.stop - place.columns.start for place in group)
        assert 4 * 64 * (rows + 2 * columns) <= 8 * 2**20


@pytest.mark.parametrize(("n", "m"), [(1, 100_000), (100_000, 1)])
def test_the_memory_of_few_queries_or_keys_is_that_of_a_few_tasks(n: int, m: int) -> None:
    query, key, value, d_output = (normal(i, s, 32).astype(np.float32) for i, s in enumerate((n, m, m, n)))
    results = 4 * 32 * (2 * n + n + 2 * m)  # output, its copy, gradients
    tracemalloc.start()
    try:
        _, cache = blockwise.forward(query, key, value, workers=1)
        gradients = blockwise.backward(d_output, cache, workers=1)
        assert tracemalloc.get_traced_memory()[1] < results + 10 * 2**20
    finally:
        tracemalloc.stop()
    assert gradients.key.shape == key.shape


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "negative scale": {"scale": -0.3},
    "out of the range of unshifted exponentials": {"scale": 30.0},
    "dropout": {"dropout_p": 0.2, "rng": 1},
    "bias": {"bias": normal(9, 1, 700)},
}


def results(query: Array, key: Array, value: Array, d_output: Array, **options: Any) -> list[Array]:
    how = {name: options.pop(name) for name in ("executor", "workers") if name in options}
    output, cache = blockwise.forward(query, key, value, **options, **how)
    gradients = blockwise.backward(d_output, cache, **how)
    tangent = blockwise.jvp(cache, query=key, key=query, value=value, **how)
    return [output, cache.logsumexp, tangent, *(x for x in gradients if x is not None)]


@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_one_array_for_all_gives_the_bits_of_four_copies_here_and_in_another_process(name: str, with_nan: bool) -> None:
    x = normal(0, 2, 700, 16)
    if with_nan:
        x[0, 3, 0] = np.nan
    expected = results(*(x.copy() for _ in range(4)), **OPTIONS[name], workers=1)
    here = results(x, x, x, x, **OPTIONS[name], workers=1)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        elsewhere = results(x, x, x, x, **OPTIONS[name], executor=pool)
    for found in (here, elsewhere):
        for array, other in zip(found, expected, strict=True):
            assert_same_bits(array, other)


def test_sums_over_tasks_raise_no_warning_in_any_thread() -> None:
    query, key = normal(0, 8, 600, 8), normal(1, 600, 8)
    d_output = np.ones((8, 600, 8))
    d_output[0, 3], d_output[1:, 5] = np.inf, -np.inf
    _, cache = blockwise.forward(query, key, key, workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            gradients = blockwise.backward(d_output, cache, workers=2)
    assert np.isnan(gradients.value).any()
