"""Blockwise attention is dot-product attention: the same numbers in every corner, in linear memory."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from _blockwise.calls import a_mask, arrays, assert_same_as_dot_product, batch_of, results
from helpers import (
    ALL,
    BIAS_SHAPES,
    OPTIONS,
    SHAPES,
    SOME_HIDDEN,
    Array,
    Patch,
    Shape,
    assert_alike,
    assert_close,
    assert_same_bits,
    each,
    normal,
    peak_of,
)
from hypothesis import given
from hypothesis import strategies as st

from attention_np import blockwise, dot_product, masks, rules, softmax
from attention_np._blockwise import kernels, plain
from attention_np._blockwise.problem import SIDES
from attention_np.blockwise import merge

POISONS = [np.nan, np.inf, -np.inf]
every_block_size = each("block_size", [None, 3], long=[1, (2, 5)])


OF_BATCH = arrays("a batch")
SOME = {shapes: (arrays(shapes), {}) for shapes in SHAPES}
SOME |= {f"bias {shape}": (OF_BATCH | {"bias": normal(1, *shape)}, {}) for shape in BIAS_SHAPES}
SOME |= {name: (OF_BATCH, options) for name, options in OPTIONS.items()}
SOME |= {f"{name}, bias": (OF_BATCH | {"bias": normal(1, 4, 5)}, options) for name, options in OPTIONS.items()}
PIPELINE: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 0.7},
    "softcap, causal": {"softcap": 50.0, "is_causal": True, "mask": SOME_HIDDEN},
    "softcap, negative scale, dropout": {"softcap": 2.0, "scale": -3.0, "dropout_p": 0.4, "rng": 3},
}
for size, sink in {"of all": normal(6), "of each": normal(6, 2), "large": np.array([300.0, -300.0])}.items():
    for name, options in {
        "": {},
        ", scale of zero": {"scale": 0.0},
        "mask": {"mask": SOME_HIDDEN},
        **PIPELINE,
    }.items():
        SOME[f"sink {size}, {name}"] = OF_BATCH | {"sink": sink}, options
        SOME[f"sink {size}, {name}, bias"] = OF_BATCH | {"sink": sink, "bias": normal(1, 4, 5)}, options
SOME |= {name: (OF_BATCH, options) for name, options in PIPELINE.items()}
of_rows = arrays("values with axes of their own before a batch")  # whose draws are those of the rows of the scores
SOME["dropout of values with axes of their own"] = of_rows, {"dropout_p": 0.5, "rng": 3}


@each("name", SOME)
@each("block_size", [3], long=[None, 1, (2, 5)])  # the tests of every op leave it as it is
def test_all_shapes_biases_and_options_give_what_dot_product_gives(name: str, block_size: Any) -> None:
    inputs, options = SOME[name]
    assert_same_as_dot_product(inputs, block_size, **options)


RULES = {
    "causal": rules.causal(),
    "causal, last with last": rules.causal(offset=1),
    "window": rules.sliding_window(left=1),
    "window, ahead": rules.sliding_window(left=0, right=2),
    "padding": rules.padding([5, 2]),
    "padding of everything": rules.padding([3, 0]),
    "packed": rules.packed([0, 0, 1, 1], [0, 0, 1, 1, 2]),
    "packed, in a batch": rules.packed([[0, 0, 1, 1], [2, 1, 1, 0]], [[0, 0, 1, 1, 2], [0, 2, 1, 2, 1]]),
    "selected": rules.selected([[3, 0], [-1, -1], [4, -1], [1, 1]]),
    "selected blocks, in a batch": rules.selected([[[1], [0], [-1], [0]], [[0], [1], [1], [-1]]], block_size=3),
    "whole": rules.whole(SOME_HIDDEN),
    "both": rules.padding([5, 2]) & rules.causal(),
}


@each("name", RULES)
@every_block_size
@each("options", [{}, {"is_causal": True, "dropout_p": 0.4, "rng": 3}])
def test_a_rule_gives_what_its_mask_gives(name: str, block_size: Any, options: dict[str, Any]) -> None:
    rule = RULES[name]
    inputs = {**OF_BATCH, "bias": normal(1, 4, 5)}
    ours = results(blockwise, inputs, mask=rule, block_size=block_size, **options)
    expected = dict(results(dot_product, inputs, mask=rule.mask(4, 5), **options).items())
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
    n: int, m: int, d_k: int, d_v: int, batch: Shape, size: float, rows: int, columns: int, seed: int
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


LARGE = {"query": normal(0, 600, 16), "key": normal(1, 1, 1100, 16), "value": normal(2, 2, 1100, 8)}


@each(
    "options",
    [
        {},
        {"mask": rules.sliding_window(left=100, right=30)},
        {"bias": normal(4, 1, 1, 1100), "dropout_p": 0.2, "rng": 1},
        {"scale": 40.0},
    ],
    long=[
        {"block_size": 2000},
        {"is_causal": True},
        {"mask": rules.packed(np.arange(600) // 150, np.arange(1100) // 300)},
        {"mask": np.random.default_rng(0).random((600, 1100)) < 0.01},
        {"bias": normal(4, 1100), "is_causal": True},
        {"bias": normal(4, 600, 1100)},
        {"scale": -40.0},
    ],
)
def test_many_tiles_give_what_dot_product_gives(options: dict[str, Any]) -> None:
    assert min(min(SIDES)) < 600
    options = dict(options)
    inputs = {**LARGE, **({"bias": options.pop("bias")} if "bias" in options else {})}
    assert_same_as_dot_product(inputs, tolerance=4e-13 if "scale" in options else 1e-14, **options)


@each("size", [1e-30, 1.0, 20.0, 1e3, 1e6])
@each("dtype", [np.float32, np.float64])
@each("options", [{}, {"is_causal": True}, {"mask": np.random.default_rng(1).random((60, 50)) < 0.5}])
def test_scores_of_any_size(size: float, dtype: Any, options: dict[str, Any]) -> None:
    eps = np.finfo(dtype).eps
    inputs = {"query": size * normal(0, 60, 8), "key": normal(1, 50, 8), "value": normal(2, 50, 8)}
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    assert_same_as_dot_product(inputs, 16, 20 * eps * max(size, 1), **options)


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


some_blocks = each("block_size", [2], long=[None, (3, 4)])


BLOCKS = (None, 2, (3, 4)) if ALL else (2,)  # a test that tries them is marked: again


def assert_as_dot_product(
    inputs: dict[str, Array], tolerance: float, sums: float = 1.0, block_sizes: Any = BLOCKS, **options: Any
) -> None:
    """That all results agree where they are finite, relative to the largest or to `sums`, their terms' size."""
    expected = dict(results(dot_product, inputs, **options).items())
    for block_size in block_sizes:
        for name, array in results(blockwise, inputs, block_size=block_size, **options).items():
            finite = np.isfinite(expected[name])
            np.testing.assert_array_equal(np.isfinite(array), finite, err_msg=name)
            size = max(np.abs(expected[name][finite]).max(initial=0), sums)
            assert (np.abs(array[finite] - expected[name][finite]) <= tolerance * size).all(), name


@each("options", [{}, {"mask": a_mask(), "is_causal": True, "dropout_p": 0.4, "rng": 1}], long=[{"mask": a_mask()}])
@each("name", ["query", "key", "value", "bias"])
@pytest.mark.again
def test_what_is_not_finite_flows_or_is_hidden_as_in_dot_product(name: str, options: dict[str, Any]) -> None:
    clean = {**batch_of(), "bias": normal(3, 2, 6, 7)}
    for poison in POISONS:
        for one, other in (((1, 1), (4, slice(None))), ((3, slice(None)), (2, slice(None)))):  # of each sample its own
            bad = {**clean, name: clean[name].copy()}
            if name == "value" and np.isinf(poison):  # infinity less infinity depends on what is summed first
                one, other = (one[0], 1), (other[0], 1)
            bad[name][0][one], bad[name][-1][other] = poison, poison
            assert_as_dot_product(bad, 1e-13, **options)


@some_blocks
def test_infinities_in_a_bias_take_all_or_nothing_in_any_block(block_size: Any) -> None:
    for columns in ([1], [1, 6], [0, 1, 2, 3, 4, 5, 6]):
        bias = normal(3, 6, 7)
        bias[[0, 4, 5], [[j] for j in columns]] = np.inf
        bias[1] = -np.inf
        for mask in (None, a_mask(), rules.causal(offset=2)):
            assert_same_as_dot_product({**batch_of(), "bias": bias}, block_size, mask=mask)
            assert_same_as_dot_product({**batch_of(), "bias": bias}, block_size, mask=mask, dropout_p=0.3, rng=2)
    for bias in (np.where(np.arange(7) == 2, np.inf, 0.3), np.array(np.inf), np.array(-np.inf)):
        assert_same_as_dot_product({**batch_of(), "bias": bias}, block_size)


def test_where_a_row_is_at_a_limit_nothing_moves_in_any_tile() -> None:
    bias = normal(3, 600, 1100)
    bias[5, 3] = np.inf
    found = results(
        blockwise, {"query": normal(0, 600, 3), "key": normal(1, 1100, 3), "value": normal(2, 1100, 2)} | {"bias": bias}
    )
    assert (found.gradients["bias"][5] == 0).all()
    assert (found.gradients["query"][5] == 0).all()
    assert (found.gradients["bias"] != 0).sum() == 599 * 1100


def test_the_log_sum_exp_is_right_where_there_is_no_output_to_tell() -> None:
    bias = normal(3, 4, 5)
    bias[1, 2], bias[2, 3] = np.inf, np.nan
    inputs = {"query": normal(0, 4, 3), "key": normal(1, 5, 3), "value": np.zeros((5, 0)), "bias": bias}
    assert_same_as_dot_product(inputs)
    _, cache = blockwise.forward(**inputs)
    np.testing.assert_array_equal(np.isnan(cache.logsumexp), [False, False, True, False])
    np.testing.assert_array_equal(cache.logsumexp == np.inf, [False, True, False, False])


def test_memory_is_linear() -> None:
    n = 2000
    x = {name: normal(i, n, 8) for i, name in enumerate(("query", "key", "value"))}
    d_output = normal(3, n, 8)
    for options in ({}, {"is_causal": True, "bias": normal(4, n), "dropout_p": 0.1, "rng": 0}):

        def both(options: dict[str, Any] = options) -> None:
            _, cache = blockwise.forward(**x, **options, workers=1)
            blockwise.backward(d_output, cache, workers=1)

        assert peak_of(both) < 14 * 2**20  # the scores take 30 MiB


def test_a_hidden_nan_does_not_take_quadratic_memory() -> None:
    n = 3000
    x = {name: normal(i, n, 4) for i, name in enumerate(("query", "key", "value"))}
    x["value"][-5:] = np.nan

    def both() -> None:
        output, cache = blockwise.forward(**x, mask=rules.padding(n - 5), workers=1)
        assert np.isfinite(output).all()
        assert np.isfinite(blockwise.backward(output, cache, workers=1).key).all()

    assert peak_of(both) < 34 * 2**20  # the scores take 69 MiB, and this way needs a few blocks at once


@each("name", ["query", "value"])
def test_forward_mode_takes_no_memory_for_what_is_left_out(name: str) -> None:
    m = 200_000
    x = {"query": normal(0, 1, 16), "key": normal(1, m, 16), "value": normal(2, m, 1)}
    _, cache = blockwise.forward(**x)
    assert x["key"].nbytes > 25 * 10**6
    assert peak_of(lambda: blockwise.jvp(cache, **{name: x[name]}, workers=1)) < 15 * 2**20


def test_forward_mode_along_the_values_alone_does_not_move_the_scores(monkeypatch: Patch) -> None:
    x = batch_of()
    _, cache = blockwise.forward(**x)
    expected = dot_product.jvp(dot_product.forward(**x)[1], value=x["value"])

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the scores were moved")

    monkeypatch.setattr(softmax, "times_jacobian", refuse)
    assert_close(blockwise.jvp(cache, value=x["value"]), expected, 1e-14)
    with pytest.raises(AssertionError, match="the scores were moved"):
        blockwise.jvp(cache, query=x["query"])


@each("count", range(5))
@each("batch", [(), (2,)])
def test_forward_mode_along_some_of_the_arrays(count: int, batch: Shape) -> None:
    x = {"query": normal(0, 3, 4), "key": normal(1, *batch, 5, 4), "value": normal(2, 2, 1, 5, 2), "bias": normal(3, 5)}
    caches = [op.forward(**x, mask=SOME_HIDDEN[:3], dropout_p=0.3, rng=1)[1] for op in (blockwise, dot_product)]
    for names in itertools.combinations(x, count):
        tangents = {name: normal(4, *x[name].shape) for name in names}
        ours, theirs = (op.jvp(cache, **tangents) for op, cache in zip((blockwise, dot_product), caches, strict=True))
        assert_alike(ours, theirs, 1e-14, str(names))


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


@each(
    ("rule", "share"),
    [
        (rules.causal(), 0.55),
        (rules.sliding_window(left=100), 0.1),
        (rules.packed(np.arange(8192) // 512), 0.13),
        (rules.padding(1000), 0.13),
        (rules.selected(np.arange(8192)[:, None] // 2048 * 16, block_size=128), 0.07),
        (rules.padding(0), 0.0),
    ],
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


def test_a_window_asks_and_reads_only_what_is_near(monkeypatch: Patch) -> None:
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


@each(
    ("changed", "error", "message"),
    [
        ({"workers": 1.5}, TypeError, "^workers must be an integer"),
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


def test_products_may_leave_the_range_where_the_scores_do_not() -> None:
    inputs = {"query": np.full((3, 2), 1e160), "key": np.full((4, 2), 1e155), "value": normal(0, 4, 3)}
    inputs["key"][1:] *= [[1.0, 1.0], [0.5, 1.5], [1.0, 1.2]]
    options = {"scale": 1e-315 * 0.7}
    cache = dot_product.forward(**inputs, **options)[1]
    assert np.isfinite(cache.scores).all()
    assert_same_as_dot_product(inputs, tolerance=1e-6, **options)  # so small a scale has few digits left


def test_a_wider_gradient_of_the_output_is_taken_with_the_same_weights() -> None:
    inputs = {name: (3 * normal(seed, 64, 8)).astype(np.float32) for seed, name in enumerate(("query", "key", "value"))}
    bias = 3 * normal(3, 64, 64).astype(np.float32)
    _, cache = blockwise.forward(**inputs, bias=bias)
    given = normal(4, 64, 8)
    narrow = blockwise.backward(given.astype(np.float32), cache)
    for wide in (given, given.astype(np.longdouble)):
        for found, expected in zip(blockwise.backward(wide, cache)[:4], narrow[:4], strict=True):
            assert found is not None
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@each("dtype", [np.float32, np.float64])
@each("sign", [1, -1])
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


def test_values_near_the_smallest_numbers_keep_their_digits() -> None:
    inputs = {"query": np.full((4, 1), -20, np.float32), "key": np.ones((8, 1), np.float32)}
    inputs["value"] = (1e-34 * np.random.default_rng(0).random((8, 2))).astype(np.float32)
    np.testing.assert_allclose(
        blockwise.forward(**inputs, scale=1.0)[0], inputs["value"][None].mean(axis=1).repeat(4, 0), rtol=1e-5
    )


@each(
    ("answer", "error", "what"),
    [
        *((1, TypeError, "1"), (None, TypeError, "None"), (0.5, TypeError, "0.5"), ([True], TypeError, "[True]")),
        (np.ones((4, 5), int), TypeError, "an array of int64"),
        *((np.ones(5, bool), ValueError, ""), (np.ones((3, 5), bool), ValueError, "")),
    ],
)
def test_a_rule_that_answers_something_else_is_refused(answer: Any, error: type[Exception], what: str) -> None:
    class Wrong(rules.Rule):
        def block(self, rows: slice, columns: slice) -> Any:
            del rows, columns
            return answer

        def __repr__(self) -> str:
            return "Wrong()"

    whole = f"be True, False or an array of booleans, not {what} (Wrong() from query 0 and key 0 on)" if what else ""
    with pytest.raises(error, match=r"^the block of a rule must " + re.escape(whole) + ("$" if what else "")):
        blockwise.forward(**arrays(), mask=Wrong())


@each("bad", ["query", "key", "value"])
@each("poison", POISONS)
@each("has_mask", [False, True])
@pytest.mark.again
def test_a_row_of_which_everything_is_dropped_has_no_gradient_whatever_it_holds(
    bad: str, poison: float, has_mask: bool
) -> None:
    mask = np.random.default_rng(0).random((6, 7)) < 0.6 if has_mask else None
    inputs = batch_of()
    inputs[bad][0, 3, 1] = poison
    options = {"mask": mask, "dropout_p": 0.9, "rng": 1}
    dropout = dot_product.forward(**inputs, **options)[1].dropout
    assert ((dropout[0] == 0) | ~(np.True_ if mask is None else mask)).all(axis=-1).any()
    assert_as_dot_product(inputs, 1e-13, **options)


@each("poison", [np.nan, np.inf])
@pytest.mark.again
def test_a_weight_of_nothing_beside_a_bad_value_spoils_the_output_and_no_gradient_of_a_score(poison: float) -> None:
    query, key, value = np.ones((3, 2)), normal(1, 6, 2), normal(2, 6, 2)
    key[4, 0], value[4, 1] = -np.inf, poison  # a score of minus infinity, and so a weight of zero
    inputs = {"query": query, "key": key, "value": value}
    output, cache = blockwise.forward(**inputs)
    assert np.isnan(output[:, 1]).all()
    assert np.isfinite(blockwise.backward(np.ones((3, 2)), cache).query).all()
    assert_as_dot_product(inputs, 1e-13)


def out_of_range(dtype: Any, size: float) -> dict[str, Array]:
    """Arrays of which some scores are about as large as the largest number to the power of 2 * `size`."""
    large = np.ldexp(dtype(1), int(np.finfo(dtype).maxexp * size))
    inputs = {name: x.astype(dtype) for name, x in batch_of().items()}
    inputs["query"] = np.abs(inputs["query"])
    inputs["query"][:, [1, 4]] *= large
    inputs["key"][:, [2, 3, 5]] *= large
    inputs["key"][:, 5] = np.abs(inputs["key"][:, 5])
    return inputs


@each("dtype", [np.float32, np.longdouble], long=[np.float64])
@each("size", [0.95], long=[0.6])
@each("hidden", [[], [5], [1, 2, 3, 4]])
@each(("dropout", "block_size"), [({}, None), ({"dropout_p": 0.3, "rng": 1}, 2)], long=[({}, (3, 4))])
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
    assert_as_dot_product(inputs, 200 * eps, sums=10 * terms, block_sizes=[block_size], mask=mask, **dropout)


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


@each(("dtype", "unit"), [(np.float32, 1.0), (np.float64, 1.0), (np.float32, 1e-25), (np.float64, 1e-300)])
@each("size", [1.0, 1e8, 1e30], long=[1e3, 1e16])
@each("has_bias", [False, True])
def test_weights_sum_to_one_in_the_backward_pass_however_large_the_scores_are(
    dtype: Any, unit: float, size: float, has_bias: bool
) -> None:
    inputs = {"query": size * normal(0, 40, 8), "key": normal(1, 450, 8).repeat(2, axis=0), "value": normal(2, 900, 3)}
    inputs |= {"bias": np.zeros((1, 900))} if has_bias else {}
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    d_output = np.full((40, 3), unit, dtype)
    d_value = blockwise.backward(d_output, blockwise.forward(**inputs)[1]).value
    np.testing.assert_allclose(d_value.sum(axis=0), d_output.sum(axis=0), rtol=0.02)


def test_no_head_gives_gradients_of_zero_to_what_all_heads_share() -> None:
    output, cache = blockwise.forward(np.ones((3, 2)), np.ones((4, 2)), np.ones((0, 4, 2)))
    for gradient in blockwise.backward(output, cache)[:3]:
        assert (gradient == 0).all()


@each(
    ("dtype", "n", "m", "factor", "tolerance"),
    [(np.float32, 700, 700, 40, 1e-5), (np.float64, 600, 4096, 1e40, 1e-12)],  # of the latter the log-sum-exp is lost
    long=[(np.float32, n, n, 40, 1e-5) for n in (2048, 4096)],
)
@each("workers", [1, 2])
def test_a_row_with_large_scores_adds_to_what_the_others_give_and_does_not_spoil_it(
    dtype: Any, n: int, m: int, factor: float, tolerance: float, workers: int
) -> None:
    query, key, value = normal(0, n, 4).astype(dtype), normal(1, m, 4).astype(dtype), normal(2, m, 4).astype(dtype)
    query[550] *= dtype(factor)  # tiles of some queries and all keys begin elsewhere than those of some keys
    _, cache = blockwise.forward(query, key, value, workers=workers)
    assert (float(cache.logsumexp[550]) > 1e39) == (factor > 1e39)
    given = normal(3, n, 4).astype(dtype)
    expected = dot_product.backward(given, dot_product.forward(query, key, value)[1])
    for found, wanted in zip(blockwise.backward(given, cache, workers=workers)[:3], expected[:3], strict=True):
        assert_close(found, wanted, tolerance)


@each("has_bias", [False, True])
@some_blocks
def test_a_product_that_leaves_the_range_downwards_is_not_lost_beside_others(has_bias: bool, block_size: Any) -> None:
    key, value = np.array([[-2e154], [-1e154], [-1.5e154]]), normal(0, 3, 2)
    inputs, scale = {"query": np.full((1, 1), 1e154), "key": key, "value": value}, 1e-308
    if has_bias:
        inputs, scale = inputs | {"bias": np.array([[1e308, -0.9e308, 0.0]])}, 1.0
    _, cache = dot_product.forward(**inputs, scale=scale)
    assert has_bias or (cache.weights > 0.1).all()
    assert_same_as_dot_product(inputs, block_size, scale=scale)


FAR = 2.0**48  # scores of that size are multiples of 2**-4
SHUT = np.random.default_rng(5).random((5, 9)) < 0.7


def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(float)


@each("batch", [(2,)], long=[()])
@each(
    "options",
    [{}, {"is_causal": True}, {"mask": SHUT}, {"mask": rules.causal(offset=2)}, {"dropout_p": 0.4, "rng": 3}],
    long=[{"mask": masks.causal(5, 9, offset=1)}],
)
@each("at_once", [plain.PAIRS_AT_ONCE, 9], long=[1])
def test_rows_of_which_the_log_sum_exp_is_too_large_have_the_same_gradients(
    options: dict[str, Any], batch: Shape, at_once: int, monkeypatch: Patch
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
    for gradient in found[:4]:
        np.testing.assert_array_equal(gradient, 0)
    others = blockwise.backward(np.zeros((4, 2)), cache, d_logsumexp=np.array([1.0, 1.0, 1.0, 1.0])).bias
    np.testing.assert_array_equal(others[1], 0)
    np.testing.assert_allclose(others[[0, 2, 3]].sum(axis=1), 1, rtol=1e-14)


def test_rules_that_call_themselves_equal_are_asked_one_by_one() -> None:
    @dataclass(frozen=True)
    class Padded(rules.Rule):
        lengths: Any = field(compare=False)
        leading = (3,)

        def at(self, index: Shape) -> rules.Rule:
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


@each("case", TINY)
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


def test_a_query_that_attends_to_nothing_has_a_sum_of_zero() -> None:
    query, key = normal(0, 3, 2), normal(1, 4, 2)
    for mask in (rules.padding(0), np.zeros((3, 4), bool)):
        _, cache = blockwise.forward(query, key, key, mask=mask)
        for found, expected in ((cache.logsumexp, -np.inf), (cache.total, 0), (cache.shift, 0)):
            np.testing.assert_array_equal(found, np.full(3, expected))


@each("value_of_one", [np.nan, np.inf, 1e200])
def test_beside_values_that_are_done_plainly_the_log_sum_exp_alone_is_known(value_of_one: float) -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 2)
    value[1] = value_of_one
    _, cache = blockwise.forward(query, key, value, block_size=4)
    assert np.isnan(cache.total).all()
    np.testing.assert_array_equal(cache.shift, 0)
    np.testing.assert_allclose(cache.logsumexp, dot_product.forward(query, key, value)[1].softmax.logsumexp[:, 0])


def test_complex_gradients_of_the_log_sum_exp_alone() -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 5)
    _, cache = blockwise.forward(query, key, value, mask=SHUT[:3, :4])
    given = normal(3, 3)
    expected = blockwise.backward(np.zeros((3, 5)), cache, d_logsumexp=given)
    found = blockwise.backward(np.zeros((3, 5)), cache, d_logsumexp=1j * given)
    assert expected.query.any()
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, 1j * other, rtol=0, atol=1e-14)


@each("bias", [None, np.zeros(2)])
@each("block_size", [None, (2, 1), (1, 2)])
@each("of_another_query", [1.0, np.nan])
def test_scores_of_minus_infinity_that_attend_are_not_hidden(
    bias: Array | None, block_size: Any, of_another_query: float
) -> None:
    query, key = np.array([[np.inf, 1.0], [of_another_query, 1.0]]), np.array([[-1.0, 0.0], [1.0, 0.0]])
    inputs = {"query": query, "key": key, "value": np.array([[1.0], [5.0]]), "bias": bias}
    for mask in (np.eye(2, dtype=bool), np.tri(2, dtype=bool)):  # of the keys that query 0 sees, all are -inf
        output, cache = blockwise.forward(**inputs, mask=mask, block_size=block_size)
        np.testing.assert_array_equal(output, dot_product.forward(**inputs, mask=mask)[0])
        np.testing.assert_array_equal(np.isnan(cache.logsumexp), [True, np.isnan(of_another_query)])


@each("shared", ["query", "key", "value", "bias", "query key bias", ""])
@each("n", [3], long=[600])
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


def test_vectors_of_the_log_sum_exp_that_do_not_fit_are_refused() -> None:
    output, cache = blockwise.forward(**arrays())
    with pytest.raises(ValueError, match=r"d_logsumexp must have the shape \(4,\)"):
        blockwise.backward(output, cache, d_logsumexp=np.zeros((4, 1)))


def test_a_scale_of_each_query_that_is_one_for_all_has_a_tangent_in_every_part() -> None:
    """Rows are taken a few at a time, and double backward takes them in strips."""
    query, key, value = normal(0, 700, 2), normal(1, 600, 2), normal(2, 600, 3)
    scale, d_scale = np.full((1, 1), 0.7), np.full((1, 1), 1.3)
    output, cache = blockwise.forward(query, key, value, scale=scale)
    expected, other = dot_product.forward(query, key, value, scale=scale)
    assert_close(blockwise.jvp(cache, scale=d_scale), dot_product.jvp(other, scale=d_scale), 1e-14)
    along = blockwise.Gradients(query, key, value, None, None, d_scale)
    found, wanted = blockwise.double_backward(along, output, cache), dot_product.double_backward(along, expected, other)
    assert_close(found[0], wanted[0], 1e-12)
    for x, y in zip(found[1], wanted[1], strict=True):
        if x is not None:
            assert_close(x, y, 1e-12)


def test_what_cannot_run_tasks_is_refused_by_every_pass() -> None:
    query, key, value = normal(0, 3, 2), normal(1, 4, 2), normal(2, 4, 5)
    output, cache = blockwise.forward(query, key, value)
    for how, error, message in (
        ({"executor": 3}, TypeError, r"^executor must be a concurrent\.futures\.Executor, not int"),
        ({"workers": 0}, ValueError, "^workers must be at least 1, not 0"),
    ):
        for use in (
            lambda how=how: blockwise.forward(query, key, value, **how),
            lambda how=how: blockwise.backward(output, cache, **how),
            lambda how=how: blockwise.jvp(cache, query=query, **how),
        ):
            with pytest.raises(error, match=message):
                use()


# A sink and the log-sum-exp


def with_sink() -> dict[str, Array]:
    return {
        "query": normal(0, 2, 4, 3),
        "key": normal(1, 2, 6, 3),
        "value": normal(2, 3, 1, 6, 2),
        "sink": normal(3, 2),
    }


@each("sink", ["none", "of each head", 0.3, -20.0])
@each("known", [True, False])
@each("softcap", [None, 0.8])
def test_gradients_of_output_and_log_sum_exp_are_numerical_ones(sink: Any, known: bool, softcap: float | None) -> None:
    x = with_sink() | {"bias": normal(4, 4, 6)}
    of_nothing = x.pop("sink") if isinstance(sink, str) else np.array(sink)
    if sink == "none":
        of_nothing = np.array(-np.inf)
    else:
        x["sink"] = of_nothing
    options = {"mask": a_mask(4, 6), "block_size": 2, "softcap": softcap}
    output, cache = blockwise.forward(**x, **options)
    assert_same_bits(cache.logsumexp[:, 2], np.broadcast_to(of_nothing, 2))  # of a query that attends to nothing
    d_output, d_logsumexp = normal(8, *output.shape), normal(9, *cache.logsumexp.shape)
    if not known:
        cache = cache._replace(total=np.full_like(cache.total, np.nan))
    gradients = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    for name, array in x.items():
        along = normal(7, *array.shape)
        moved, its_cache = blockwise.forward(**{**x, name: array + 1e-30j * along}, **options)
        of_rows = np.where(np.isinf(its_cache.logsumexp), 0, its_cache.logsumexp)
        numerical = ((d_output * moved).sum() + (d_logsumexp * of_rows).sum()).imag / 1e-30
        assert (getattr(gradients, name) * along).sum() == pytest.approx(numerical, rel=1e-12)


def test_of_merged_results_one_has_the_sink_and_it_gets_the_gradient_of_the_whole() -> None:
    x = with_sink()
    query, key, value, sink = x.values()
    whole, cache = blockwise.forward(**x)
    first = blockwise.forward(query, key[:, :2], value[..., :2, :], sink=sink)
    second = blockwise.forward(query, key[:, 2:], value[..., 2:, :])
    merged = merge(first, second)
    assert_close(merged.output, whole, 1e-15)
    assert_close(merged.logsumexp, cache.logsumexp, 1e-15)
    d_output, d_logsumexp = normal(8, *whole.shape), normal(9, *cache.logsumexp.shape)
    expected = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    parts = blockwise.merge_backward((d_output, d_logsumexp), first, second)
    one, other = (
        blockwise.backward(d.output, part[1], d_logsumexp=d.logsumexp)
        for d, part in zip(parts, (first, second), strict=True)
    )
    assert_close(one.sink, expected.sink, 1e-14)
    assert other.sink is None
    assert_close(one.query + other.query, expected.query, 1e-14)
    assert_close(np.concatenate([one.key, other.key], axis=1), expected.key, 1e-14)
    assert_close(np.concatenate([one.value, other.value], axis=-2), expected.value, 1e-14)


@each("sink", [np.nan, np.inf, -np.inf, 1e308])
@each("size", [1e16, 1e200], long=[1.0, 1e155])
def test_sinks_and_scores_at_the_ends_of_the_range_are_those_of_dot_product(sink: float, size: float) -> None:
    x = with_sink() | {"sink": np.array([sink, 0.5])}
    x["query"], x["key"] = x["query"] * size, x["key"] * (size if size > 1e100 else 1)
    output, cache = blockwise.forward(**x, block_size=2)
    expected, its_cache = dot_product.forward(**x)
    assert_alike(output, expected, 1e-14)
    d_output = normal(8, *output.shape)
    d_output[:, 0, 1] = 0
    assert_alike(blockwise.backward(d_output, cache).sink, dot_product.backward(d_output, its_cache).sink, 1e-13)
    along = {name: normal(7, *array.shape) for name, array in x.items()}
    assert_alike(blockwise.jvp(cache, **along), dot_product.jvp(its_cache, **along), 1e-13)


def test_gradients_are_found_where_their_terms_and_those_of_the_log_sum_exp_do_not_fit() -> None:
    x = with_sink()
    output, cache = blockwise.forward(**x, block_size=2)
    d_output, d_logsumexp = normal(8, *output.shape), normal(9, *cache.logsumexp.shape)
    expected = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    x["value"] = x["value"] * 2.0**600
    _, large = blockwise.forward(**x, block_size=2)
    found = blockwise.backward(d_output * 2.0**420, large, d_logsumexp=d_logsumexp * 2.0**1020)
    for one, other in ((found.sink, expected.sink), (found.query, expected.query), (found.key, expected.key)):
        assert_close(one * 2.0**-1020, other, 1e-13)


@each("name", [*with_sink()])
def test_second_derivatives_are_found_where_their_terms_do_not_fit(name: str) -> None:
    """As those of dot-product attention, which runs the same formulas on numbers whose range has no end."""
    x = with_sink() | {"sink": np.float64(0.3)}
    x["value"] = x["value"] * 2.0**600
    along = dict.fromkeys(dot_product.Gradients._fields) | {name: normal(7, *x[name].shape) * 2.0**-300}
    found = []
    for op in (blockwise, dot_product):
        output, cache = op.forward(**x)
        d_output = normal(8, *output.shape) * 2.0**420
        d_d_output, gradients = op.double_backward(op.Gradients(**along), d_output, cache)
        found.append([d_d_output, *gradients])
    for one, other in zip(*found, strict=True):
        if other is not None:
            assert_alike(one, other, 1e-14)
