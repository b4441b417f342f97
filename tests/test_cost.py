"""The cost of attention, held against what the code does: its NumPy calls are counted, and its memory is measured."""

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import Array, Patch, each, normal

from attention_np import blockwise, chain, cost, dot_product, indexer, latent, linear
from attention_np._blockwise import problem, scratch
from attention_np._lib.counting import Counted, Tally
from attention_np.cost import Sizes

BLOCKS = (problem.BLOCK, problem.BLOCK_OF_A_RULE)
OPTIONS = ({}, {"is_causal": True}, {"dropout": True}, {"is_causal": True, "dropout": True})


@contextmanager
def counting(monkeypatch: Patch) -> Iterator[Tally]:
    """Count the calls on arrays that are made meanwhile."""
    tally = Tally()
    with monkeypatch.context() as patch:
        patch.setattr(Counted, "tally", property(lambda _: tally, lambda *_: None), raising=False)
        patch.setattr(np, "asarray", np.asanyarray)  # ops take arrays by it, and a subclass would be lost
        for name in ("empty", "zeros", "full"):
            make = getattr(np, name)
            patch.setattr(np, name, lambda *args, _make=make, **kwargs: _make(*args, **kwargs).view(Counted))
        yield tally


def arrays(sizes: Sizes, op: Any) -> list[Array]:
    rng = np.random.default_rng(0)
    m, d_v = sizes.m or sizes.n, sizes.d_v or sizes.d_k
    shapes = ((sizes.n, sizes.d_k), (m, sizes.d_k), (m, d_v), (sizes.n, d_v))
    query, *others = (rng.standard_normal((sizes.batch, sizes.heads, *shape)) for shape in shapes)
    factor = 3 if op is dot_product else 1  # its backward does less where no weight is above a half
    return [x.astype(sizes.dtype) for x in (factor * query, *others)]


def options_of(sizes: Sizes) -> dict[str, Any]:
    return {"is_causal": sizes.is_causal} | ({"dropout_p": 0.1, "rng": 0} if sizes.dropout else {})


def counted(op: Any, sizes: Sizes, monkeypatch: Patch, **how: Any) -> list[Tally]:
    """The tallies of forward and backward."""
    *inputs, d_output = (array.view(Counted) for array in arrays(sizes, op))
    scratch._spare.clear()
    with counting(monkeypatch) as forward:
        _, cache = op.forward(*inputs, **options_of(sizes), **how)
    with counting(monkeypatch) as backward:
        op.backward(d_output, cache, **how)
    return [forward, backward]


def measured_peaks(op: Any, sizes: Sizes, **how: Any) -> list[int]:
    """The peaks of forward and backward, in bytes, as NumPy reports its arrays."""
    op.forward(*(np.ones((1, 2), np.float32),) * 3)  # what is imported and cached on first use is not counted
    *inputs, d_output = arrays(sizes, op)
    scratch._spare.clear()
    tracemalloc.start()
    try:
        output, cache = op.forward(*inputs, **options_of(sizes), **how)
        forward = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        gradients = op.backward(d_output, cache, **how)
        backward = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del output, gradients  # they are there until now
    return [forward, backward]


@each("options", OPTIONS)
@each("dtype", [np.float32, np.float64])
def test_the_plain_cost_is_that_of_the_numpy_calls(
    options: dict[str, bool], dtype: npt.DTypeLike, monkeypatch: Patch
) -> None:
    sizes = Sizes(n=192, m=224, d_k=3, d_v=2, heads=2, dtype=dtype, **options)
    costs = cost.dot_product(sizes)
    bits = 4 * 2 * 192 * 224 if sizes.dropout else 0  # a generator writes them forward, which is no call of NumPy's
    unseen = (bits, 0)
    for found, expected, missed in zip(counted(dot_product, sizes, monkeypatch), costs[:2], unseen, strict=True):
        assert found.product_flops == expected.product_flops
        # Few features, so that what grows with n alone, and is not counted or not in full, is within a twentieth.
        assert found.other_flops == pytest.approx(expected.other_flops, rel=0.05)
        assert found.bytes_moved + missed == pytest.approx(expected.bytes_moved, rel=0.02)


@each("options", [{"is_causal": True}], long=[{}])
@each("dtype", [np.float32, np.float64])
@each(("n", "m"), [(700, 700), (300, 800), (900, 400)])
def test_the_blockwise_products_are_those_of_the_kernels(
    n: int, m: int, options: dict[str, bool], dtype: npt.DTypeLike, monkeypatch: Patch
) -> None:
    sizes = Sizes(n=n, m=m, dtype=dtype, **options)
    costs = cost.blockwise(sizes)
    for found, expected in zip(counted(blockwise, sizes, monkeypatch, workers=1), costs[:2], strict=True):
        # Columns more sum or subtract: 4 of 132 forward, 8 of 328 backward. The products are counted without.
        assert expected.product_flops <= found.product_flops <= 1.032 * expected.product_flops


@pytest.mark.parametrize("options", [{}, {"dropout": True}])
def test_the_blockwise_steps_are_those_of_the_kernels(options: dict[str, bool], monkeypatch: Patch) -> None:
    sizes = Sizes(n=1024, d_k=4, **options)
    costs = cost.blockwise(sizes)
    for found, expected in zip(counted(blockwise, sizes, monkeypatch, workers=1), costs[:2], strict=True):
        assert found.product_flops + found.other_flops == pytest.approx(expected.flops, rel=0.03)


@each("options", [{}, {"is_causal": True}])
def test_small_heads_cost_blockwise_what_they_cost_as_a_whole(options: dict[str, bool], monkeypatch: Patch) -> None:
    sizes = Sizes(n=150, m=200, d_k=8, d_v=24, heads=8, **options)
    costs = cost.blockwise(sizes)
    for found, expected in zip(counted(blockwise, sizes, monkeypatch), costs[:2], strict=True):
        assert found.product_flops == expected.product_flops
        # Backward does less where no weight is above a half, and with a mask a look at all pairs more.
        assert 0.8 * expected.other_flops < found.other_flops < 1.08 * expected.other_flops
    for found, expected in zip(measured_peaks(blockwise, sizes), costs[:2], strict=True):
        assert 0.8 * expected.peak_bytes < found <= expected.peak_bytes  # the same
    large = replace(sizes, n=1000)
    assert cost.blockwise(large) == cost.blockwise(large, block_size=BLOCKS[sizes.is_causal])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere NumPy may not write into temporary operands")
@each("options", OPTIONS)
@each("dtype", [np.float16, np.float32], long=[np.float64])
def test_the_plain_peak_is_what_is_measured(options: dict[str, bool], dtype: npt.DTypeLike) -> None:
    sizes = Sizes(n=512, m=640, d_k=16, d_v=8, heads=2, dtype=dtype, **options)
    costs = cost.dot_product(sizes)
    for found, expected in zip(measured_peaks(dot_product, sizes), costs[:2], strict=True):
        assert found == pytest.approx(expected.peak_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("dtype", "workers", "options"),
    [
        pytest.param(np.float32, 1, {}, marks=pytest.mark.long),
        (np.float32, 2, {"is_causal": True}),
        pytest.param(np.float64, 2, {}, marks=pytest.mark.long),
        pytest.param(np.float16, 1, {"is_causal": True}, marks=pytest.mark.long),
        pytest.param(np.float32, 1, {"is_causal": True, "dropout": True}, marks=pytest.mark.long),
    ],
)
def test_the_blockwise_peak_is_a_close_upper_bound(
    dtype: npt.DTypeLike, workers: int, options: dict[str, bool]
) -> None:
    sizes = Sizes(n=2048, d_k=32, d_v=48, heads=4 if "dropout" in options else 8, dtype=dtype, **options)
    costs = cost.blockwise(sizes, workers=workers)
    for found, expected in zip(measured_peaks(blockwise, sizes, workers=workers), costs[:2], strict=True):
        assert found <= expected.peak_bytes <= found / 0.6


@each(
    "sizes",
    [Sizes(n=1, m=50_000), Sizes(n=20_000, m=16), Sizes(n=2048, d_k=1, d_v=1)],
    long=[Sizes(n=16, m=20_000, dtype=np.float64), Sizes(n=16, heads=1000, d_k=8), Sizes(n=8, heads=1000)],
)
def test_the_blockwise_peak_is_an_upper_bound_for_few_queries_keys_and_features(sizes: Sizes) -> None:
    costs = cost.blockwise(sizes)
    for found, expected in zip(measured_peaks(blockwise, sizes, workers=1), costs[:2], strict=True):
        assert found <= expected.peak_bytes


def test_a_block_size_may_be_one_number() -> None:
    sizes = Sizes(n=1000)
    assert cost.blockwise(sizes, block_size=64) == cost.blockwise(sizes, block_size=(64, 64))
    with pytest.raises(ValueError, match=r"^block_size must be one number, or one of queries and one of keys, not "):
        cost.blockwise(sizes, block_size=(1, 2, 3))  # type: ignore[arg-type]


def test_a_pass_that_reads_keys_for_twice_as_many_queries_moves_them_half_as_often() -> None:
    sizes = Sizes(n=4096)
    small, large = (cost.blockwise(sizes, block_size=(rows, 256)) for rows in (128, 256))
    for passed, copies in (("forward", 4), ("backward", 4)):
        once = 4 * 4096 * 64 * copies  # queries and outputs, or more of them, which move once
        moved = [getattr(costs, passed).bytes_moved - once for costs in (small, large)]
        assert moved[0] > 1.9 * moved[1]


def test_the_longest_length_is_the_last_that_fits() -> None:
    sizes, memory = Sizes(n=1, heads=4, d_k=16), 2**28
    for algorithm in (cost.dot_product, cost.blockwise):
        for backward, name in ((True, "memory"), (False, "forward_memory")):
            n = cost.longest(algorithm, memory, sizes, backward=backward)
            assert getattr(algorithm(replace(sizes, n=n)), name) <= memory
            assert getattr(algorithm(replace(sizes, n=n + 1)), name) > memory


def test_nothing_fits_in_no_memory() -> None:
    assert cost.longest(cost.dot_product, 0, Sizes(n=1)) == 0


@each(
    ("many", "error", "message"),
    [
        ((np.inf, np.nan, -1, -0.5), ValueError, r"^memory must be a finite number of bytes, at least 0, not "),
        (("8", None, True, 1j), TypeError, r"^memory must be a number of bytes, not "),
    ],
)
def test_memory_that_is_no_size_has_no_longest_length(many: Any, error: type[Exception], message: str) -> None:
    for memory in many:
        with pytest.raises(error, match=message):
            cost.longest(cost.dot_product, memory, Sizes(n=1))


@each("algorithm", [cost.dot_product, cost.blockwise])
@each("nothing", [{"heads": 0}, {"batch": 0}])
def test_what_costs_nothing_has_no_longest_length(algorithm: Any, nothing: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^there is no longest n, as any fits in 17179869184 bytes \(batch="):
        cost.longest(algorithm, 2**34, Sizes(n=1, **nothing))


def test_a_cost_of_few_bytes_a_query_ends_within_memory() -> None:
    sizes = Sizes(n=1, m=0, d_k=0, d_v=1, dtype=np.float16)
    n = cost.longest(cost.dot_product, 2**34, sizes)
    assert cost.dot_product(replace(sizes, n=n)).memory <= 2**34 < cost.dot_product(replace(sizes, n=n + 1)).memory
    assert cost.longest(cost.blockwise, np.float64(2**34), Sizes(n=1)) > 0
    assert cost.longest(cost.blockwise, 2**70, Sizes(n=1)) > 2**50


def test_memory_grows_with_the_square_of_the_length_in_one_algorithm_and_with_the_length_in_the_other() -> None:
    plain, linear = (
        [algorithm(Sizes(n=n)).memory for n in (2**14, 2**15)] for algorithm in (cost.dot_product, cost.blockwise)
    )
    assert plain[1] == pytest.approx(4 * plain[0], rel=0.05)
    assert linear[1] < 2 * linear[0]


@each(("n", "m", "rows"), [(7, 7, 1), (7, 7, 3), (8, 8, 4), (5, 9, 2), (9, 5, 2), (3, 2, 8), (0, 4, 2)])
def test_the_causal_pairs_are_those_of_the_blocks_that_are_not_hidden(n: int, m: int, rows: int) -> None:
    pairs = sum((min(i + rows, n) - i) * min(m, min(i + rows, n)) for i in range(0, n, rows))
    costs = cost.blockwise(Sizes(n, m, d_k=1, d_v=1, is_causal=True), block_size=(rows, 4))
    assert costs.forward.product_flops == 4 * pairs


@each(
    ("wrong", "kind", "message"),
    [
        ({"n": -1}, ValueError, "n must be at least 0, not -1"),
        ({"n": 1, "heads": 1.5}, TypeError, "heads must be an integer, not float"),
        ({"n": 1, "dtype": int}, TypeError, "dtype must be one of real floating-point numbers, not int64"),
        ({"n": 1, "dtype": complex}, TypeError, "dtype must be one of real floating-point numbers, not complex128"),
        ({"n": 1, "is_causal": 1}, TypeError, "is_causal must be True or False, not 1"),
    ],
)
def test_sizes_that_are_none_are_refused(wrong: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        Sizes(**wrong)


def test_blocks_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        cost.blockwise(Sizes(8), block_size=(0, 4))
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        cost.blockwise(Sizes(8), workers=0)


def test_a_chain_costs_what_its_steps_do() -> None:
    sizes = cost.Sizes(n=50, m=70, d_k=16, d_v=24, dtype=np.float64)
    query, key, value, w = normal(0, 50, 16), normal(1, 70, 16), normal(2, 70, 24), normal(3, 24, 8)
    alone = cost.dot_product(sizes)

    def layer(query: Any, key: Any, value: Any, w: Any) -> Any:
        return chain.apply(linear, chain.apply(dot_product, query, key, value), w)

    costs = cost.chain(layer, {"query": query, "key": key, "value": value, "w": w})
    assert costs.forward.product_flops == alone.forward.product_flops + 2 * 50 * 24 * 8
    assert costs.backward.product_flops == alone.backward.product_flops + 4 * 50 * 24 * 8
    assert costs.forward.bytes_moved >= alone.forward.bytes_moved
    assert costs.input_bytes == alone.input_bytes + w.nbytes
    assert costs.output_bytes == 8 * 50 * 8
    assert 0.8 < costs.forward.peak_bytes / alone.forward.peak_bytes < 1.5
    assert 0.8 < costs.backward.peak_bytes / alone.backward.peak_bytes < 1.5


def test_a_chain_with_blocks_is_not_counted() -> None:
    layer = lambda x: chain.apply(blockwise, x, x, x)  # noqa: E731
    with pytest.raises(ValueError, match=r"step 1 is blockwise, whose cost depends on its blocks: see cost\.blockwise"):
        cost.chain(layer, {"x": normal(0, 5, 4)})
    with pytest.raises(ValueError, match="has one output, not a tuple"):
        cost.chain(lambda x: (x, x + 1), {"x": normal(0, 5, 4)})


@each(("n", "m"), [(1, 64), (5, 7)])
def test_latent_attention_and_an_indexer_are_counted_as_their_pages_count_them(n: int, m: int) -> None:
    h, r, d_n, d_r, d_v = 4, 16, 8, 3, 6
    shapes = {"query": (h, n, d_n), "query_rotary": (h, n, d_r), "latent": (m, r), "key_rotary": (m, d_r)}
    arrays = {name: np.ones(shape) for name, shape in (shapes | {"w_key": (h, r, d_n), "w_value": (h, r, d_v)}).items()}
    plain = m * r * (d_n + d_v) + n * m * (d_n + d_r + d_v)  # (latent.35)
    absorbed = n * r * (d_n + d_v) + n * m * (r + d_r + r)  # (latent.36)
    for form, multiplications in ((False, plain), (True, absorbed)):
        found = cost.chain(lambda form=form, **given: chain.apply(latent, **given, absorbed=form), arrays)
        assert found.forward.product_flops == 2 * h * multiplications
    given = {"query": np.ones((h, n, d_n)), "key": np.ones((m, d_n)), "weights": np.ones((h, n))}
    found = cost.chain(lambda **given: chain.apply(indexer, **given), given)
    assert found.forward.product_flops == 2 * h * n * m * d_n
