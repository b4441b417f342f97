"""What is added to the scores by position: whole and block by block, with the gradient of its one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_alike, assert_close, assert_same_bits, each, normal, peak_of, random_parameters

from attention_np import biases, blockwise, chain, dot_product, gradcheck, masks, multi_head, rules
from attention_np.biases import Bias

N, M, HEADS, D_K = 6, 7, 2, 3


def index_of(n: int, m: int) -> Array:
    """Rows of a table of four, each of them there several times, or none."""
    index: Array = np.random.default_rng(n + 100 * m).integers(0, 4, (n, m))
    return index


def of_each_kind(n: int = N, m: int = M, d_k: int = D_K) -> dict[str, Bias]:
    return {
        "ALiBi": biases.alibi(normal(1, HEADS)),
        "ALiBi of all heads": biases.alibi(normal(1)),
        "T5": biases.t5(normal(2, 8, HEADS), max_distance=6),
        "T5, one way": biases.t5(normal(2, 7, 1), bidirectional=False, max_distance=5),
        "T5 of all heads": biases.t5(normal(2, 5)),
        "Shaw": biases.shaw(normal(3, 5, d_k)),
        "Shaw of a wide window": biases.shaw(normal(3, 41, d_k)),
        "table": biases.table(normal(5, 4, HEADS), index_of(n, m)),
        "table of all heads": biases.table(normal(5, 4), index_of(n, m).astype(np.uint8)),
        "products": biases.products(normal(6, 4, d_k), index_of(n, m)),
        "products of each head": biases.products(normal(6, HEADS, 4, d_k), index_of(n, m)),
        "products of keys": biases.products(normal(7, 4, d_k), index_of(n, m), of="key"),
        "products of keys, of each head": biases.products(normal(7, HEADS, 4, d_k), index_of(n, m), of="key"),
        "forgetting": biases.forgetting(-np.abs(normal(4, max(n, m)))),
        "forgetting of each head": biases.forgetting(-np.abs(normal(4, 2, HEADS, max(n, m)))),
    }


KINDS = tuple(of_each_kind())
every_kind = each("kind", KINDS)
ONE_OF_EACH = ("ALiBi", "T5", "Shaw", "table", "products of keys, of each head", "forgetting of each head")
PIPELINE: dict[str, dict[str, Any]] = {
    "alone": {},
    "causal": {"is_causal": True},
    "everything": {"is_causal": True, "softcap": 0.8, "dropout_p": 0.3, "rng": 3, "scale": -0.7},
}


def arrays(n: int = N, m: int = M) -> dict[str, Any]:
    shapes = {"query": (2, HEADS, n, D_K), "key": (HEADS, m, D_K), "value": (2, HEADS, m, 2)}
    return {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def by_formula(bias: Any, query: Array, key: Array) -> Array:
    """What a bias adds, pair by pair."""
    kind, array, lookup = type(bias).__name__, bias.array, getattr(bias, "lookup", None)
    n, m = query.shape[-2], key.shape[-2]
    added = np.zeros((*np.broadcast_shapes(query.shape[:-2], (HEADS,)), n, m))
    for i, j in np.ndindex(n, m):
        if kind == "_Alibi":
            added[..., i, j] = -array * abs(i - j)
        elif kind == "_Products":
            w = len(array) // 2
            row = min(max(j - i, -w), w) + w if type(lookup).__name__ == "_Clipped" else lookup.array[i, j]
            x = query[..., i, :] if bias.of == "query" else key[..., j, :] / np.sqrt(D_K)
            added[..., i, j] = (x * array[..., row, :]).sum(axis=-1)
        elif kind == "_Forgetting":
            between = array[..., min(i, j) + 1 : max(i, j) + 1].sum(axis=-1)
            added[..., i, j] = between if j <= i else -between
        else:
            row = bucket_of(j - i, lookup) if type(lookup).__name__ == "_Buckets" else lookup.array[i, j]
            added[..., i, j] = array[row]
    return added


def bucket_of(distance: int, buckets_of: Any) -> int:
    """The bucket as the authors of T5 have it, by logarithms."""
    buckets, first = buckets_of.size, 0
    if buckets_of.bidirectional:
        buckets //= 2
        first, behind = (buckets if distance > 0 else 0), abs(distance)
    else:
        behind = max(-distance, 0)
    exact = buckets // 2
    if behind < exact:
        return first + behind
    share = np.log(behind / exact) / np.log(buckets_of.max_distance / exact)
    return first + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


@every_kind
@each(("n", "m"), [(6, 7), (1, 1), (9, 2), (1, 8)])
def test_it_adds_what_its_formula_says(kind: str, n: int, m: int) -> None:
    x, bias = arrays(n, m), of_each_kind(n, m)[kind]
    _, cache = dot_product.forward(**x, bias=bias)
    _, without = dot_product.forward(**x)
    expected = without.scores + by_formula(bias, x["query"] * cache.scale, x["key"])
    assert_close(cache.scores, expected, 1e-14)


@each("kind", ONE_OF_EACH, long={*KINDS} - {*ONE_OF_EACH})
@each("options", [PIPELINE["everything"]], long=[PIPELINE["alone"], PIPELINE["causal"]])
def test_gradients_are_numerical_ones(kind: str, options: dict[str, Any]) -> None:
    x = arrays(3, 5) | {"bias": of_each_kind(3, 5)[kind]}
    x |= {"sink": normal(5, HEADS)} if "softcap" in options else {}
    report = gradcheck.check_op(dot_product, x, method="complex-step", **options)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report.inputs) <= 1e-12


@pytest.mark.long  # multi_head stands on dot_product, whose gradients are in the quick part
@each("kind", ONE_OF_EACH)
def test_gradients_of_several_heads_with_projections_are_numerical_ones(kind: str) -> None:
    x, bias = normal(0, 2, N, 4), of_each_kind(N, N, d_k=2)[kind]
    inputs = {"query": x, "key": x, "value": x, "parameters": random_parameters(0), "bias": bias}
    report = gradcheck.check_op(multi_head, inputs, method="complex-step", num_heads=2, is_causal=True)
    report.raise_if_failed()


@every_kind
@each("options", [PIPELINE["everything"]], long=[PIPELINE["alone"], PIPELINE["causal"]])
@each("block_size", [(4, 3)], long=[1, None])
def test_block_by_block_it_is_what_it_is_as_a_whole(kind: str, options: dict[str, Any], block_size: Any) -> None:
    x = arrays() | {"bias": of_each_kind()[kind]}
    output, cache = blockwise.forward(**x, **options, block_size=block_size)
    expected, its_cache = dot_product.forward(**x, **options)
    assert_alike(output, expected, 1e-14)
    d_output, along = normal(8, *output.shape), {name: normal(9, *array.shape) for name, array in x.items()}
    theirs = dot_product.backward(d_output, its_cache)
    whole_rows = cache._replace(logsumexp=np.full_like(cache.logsumexp, np.nan))
    for ours in (blockwise.backward(d_output, cache), blockwise.backward(d_output, whole_rows)):
        for name in x:
            assert_alike(getattr(ours, name), getattr(theirs, name), 1e-13, name)
    assert_alike(blockwise.jvp(cache, **along), dot_product.jvp(its_cache, **along), 1e-13)
    twice = blockwise.double_backward(blockwise.Gradients(**along, sink=None), d_output, cache)
    expected_twice = dot_product.double_backward(dot_product.Gradients(**along, sink=None), d_output, its_cache)
    assert_alike(twice[0], expected_twice[0], 1e-13)
    for name in x:
        assert_alike(getattr(twice[1], name), getattr(expected_twice[1], name), 1e-12, name)


@every_kind
def test_second_derivatives_are_those_of_the_gradients_in_the_complex_plane(kind: str) -> None:
    x = arrays() | {"bias": of_each_kind()[kind], "sink": normal(5, HEADS)}
    output, cache = dot_product.forward(**x, softcap=0.8)
    d_output, along = normal(8, *output.shape), {name: normal(9, *array.shape) for name, array in x.items()}
    _, found = dot_product.double_backward(dot_product.Gradients(**along), d_output, cache)
    moved = {name: array + 1e-30j * along[name] for name, array in x.items() if name != "bias"}
    moved["bias"] = x["bias"].with_array(x["bias"].array + 1e-30j * along["bias"])
    gradients = dot_product.backward(d_output, dot_product.forward(**moved, softcap=0.8)[1])
    for name in x:
        assert_alike(getattr(found, name), getattr(gradients, name).imag / 1e-30, 1e-12, name)


@every_kind
@each("op", [dot_product, blockwise])
def test_its_array_never_upcasts_and_its_gradient_is_in_its_own_dtype(op: Any, kind: str) -> None:
    for dtype in (np.float16, np.float32):
        x = {name: array.astype(dtype) for name, array in arrays().items()}
        bias = of_each_kind()[kind]
        output, cache = op.forward(**x, bias=bias)
        gradients = op.backward(output, cache)
        assert output.dtype == gradients.query.dtype == op.jvp(cache, bias=bias.array).dtype == dtype
        assert (gradients.bias.dtype, gradients.bias.shape) == (np.float64, bias.shape)


@every_kind
def test_what_is_hidden_has_no_part_in_its_gradient(kind: str) -> None:
    x, bias = arrays(), of_each_kind()[kind]
    mask = masks.padding([M, 4], M, heads=True)
    clean, cache = dot_product.forward(**x, bias=bias, mask=mask)
    expected = dot_product.backward(clean, cache)
    spoiled = {name: array.copy() for name, array in x.items()}
    spoiled["key"] = np.broadcast_to(x["key"], (2, HEADS, M, D_K)).copy()
    spoiled["key"][1, :, 4:], spoiled["value"][1, :, 4:] = np.nan, np.inf
    for op in (dot_product, blockwise):
        output, its_cache = op.forward(**spoiled, bias=bias, mask=mask)
        assert_alike(output, clean, 1e-14)
        assert_alike(op.backward(clean, its_cache).bias, expected.bias, 1e-13)


def test_minus_infinity_in_a_table_hides_as_a_mask_does() -> None:
    table = normal(2, 4)
    table[2:] = -np.inf  # with four buckets: all keys ahead
    x = arrays()
    x["value"][:, :, -1] = np.nan  # which no query but those behind it would see
    for op in (dot_product, blockwise):
        output, cache = op.forward(**x, bias=biases.t5(table, max_distance=3))
        assert_alike(
            output[..., :-1, :],
            op.forward(**x, bias=biases.t5(table, max_distance=3), is_causal=True)[0][..., :-1, :],
            1e-14,
        )
        assert np.isfinite(output).all()
        gradients = op.backward(normal(8, *output.shape), cache)
        assert np.isfinite(gradients.bias).all()
        np.testing.assert_array_equal(gradients.bias[2:], 0)


@each(("buckets", "max_distance"), [(32, 128), (16, 64), (8, 20), (7, 9), (64, 1024), (4, 3)])
@each("bidirectional", [True, False])
def test_buckets_are_those_of_logarithms(buckets: int, max_distance: int, bidirectional: bool) -> None:
    bias: Any = biases.t5(np.zeros(buckets), bidirectional=bidirectional, max_distance=max_distance)
    distances = np.arange(-1500, 1501)
    np.testing.assert_array_equal(bias.lookup.rows_of(distances), [bucket_of(int(d), bias.lookup) for d in distances])


def test_slopes_are_those_of_the_authors() -> None:
    assert_same_bits(biases.alibi_slopes(8), 2.0 ** -np.arange(1.0, 9.0))
    np.testing.assert_allclose(biases.alibi_slopes(12)[8:], 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5]))
    assert_same_bits(biases.alibi_slopes(1), np.array([2.0**-8]))


def test_under_a_causal_mask_a_slope_of_the_keys_alone_gives_the_same_attention() -> None:
    x, slopes = arrays(), np.array([0.5, 0.25])
    output, _ = dot_product.forward(**x, bias=biases.alibi(slopes), is_causal=True)
    of_keys = slopes[:, None, None] * np.arange(M)
    assert_close(output, dot_product.forward(**x, bias=of_keys, is_causal=True)[0], 1e-14)


def test_gates_of_a_long_sequence_keep_the_digits_of_near_keys() -> None:
    n = 3000
    log_f = -np.abs(np.random.default_rng(0).standard_normal(n)) * 100
    one = np.zeros((1, 1))
    last = biases.forgetting(log_f).within(slice(n - 1, n), slice(n - 5, n))
    near = last.block(slice(0, 1), slice(0, 5), one)[0]
    exact = [float(log_f[n - 5 + j + 1 :].astype(np.longdouble).sum()) for j in range(5)]
    np.testing.assert_allclose(near, exact, rtol=1e-14)


@every_kind
def test_a_part_of_it_is_that_part_of_the_whole(kind: str) -> None:
    bias, query = of_each_kind()[kind], arrays()["query"]
    whole = bias.block(slice(0, N), slice(0, M), query)
    rows, columns = slice(2, 5), slice(1, 6)
    part = bias.within(rows, columns).block(slice(0, 3), slice(0, 5), query[..., rows, :])
    assert_close(part, whole[..., rows, columns], 1e-15)
    again = bias.within(slice(1, N), slice(1, M)).within(slice(1, 4), slice(0, 5))
    assert_close(again.block(slice(0, 3), slice(0, 5), query[..., rows, :]), part, 1e-15)


@every_kind
def test_lengths_of_zero_give_gradients_of_zero(kind: str) -> None:
    for n, m in ((0, M), (N, 0)):
        x, bias = arrays(n, m), of_each_kind(n, m)[kind]
        for op in (dot_product, blockwise):
            output, cache = op.forward(**x, bias=bias)
            assert output.shape == (2, HEADS, n, 2)
            np.testing.assert_array_equal(op.backward(output, cache).bias, np.zeros(bias.shape))
            assert op.jvp(cache, bias=bias.array).shape == output.shape


@each("kind", ["ALiBi of all heads", "T5 of all heads", "Shaw", "forgetting"])
def test_blockwise_makes_no_array_of_all_pairs(kind: str) -> None:
    n = 1500
    x = {name: normal(i, n, D_K).astype(np.float32) for i, name in enumerate(("query", "key", "value"))}
    bias = of_each_kind(n, n)[kind]
    window, few = rules.sliding_window(left=64), {"softcap": 20.0, "sink": 0.0, "block_size": 128, "workers": 1}

    def both_passes() -> None:
        output, cache = blockwise.forward(**x, bias=bias, mask=window, **few)
        blockwise.backward(output, cache, workers=1)

    assert peak_of(both_passes) < n * n * 4 / 4


@each(
    ("make", "error", "sentence"),
    [
        (lambda: biases.alibi(np.ones(3, int)), TypeError, "slopes must hold floating-point numbers, not int64"),
        (lambda: biases.alibi_slopes(0), ValueError, "num_heads must be at least 1, not 0"),
        (lambda: biases.t5(np.ones((4, 2, 1))), ValueError, "table must have one or two axes"),
        (lambda: biases.t5(np.ones((3, 2))), ValueError, r"table must have at least 4 buckets \(table.shape=\(3, 2\)"),
        (lambda: biases.t5(np.ones(1), bidirectional=False), ValueError, "table must have at least 2 buckets"),
        (lambda: biases.t5(np.ones(32), max_distance=8), ValueError, "max_distance must be above 8, the distances"),
        (lambda: biases.t5(np.ones(32), max_distance=1.5), TypeError, "max_distance must be an integer, not float"),
        (lambda: biases.t5(np.ones(32), bidirectional=1), TypeError, "bidirectional must be True or False, not 1"),
        (lambda: biases.shaw(np.ones((4, 3))), ValueError, r"embedding must have the shape \(2 w \+ 1, d_k\)"),
        (lambda: biases.shaw(np.ones(3)), ValueError, r"embedding must have the shape .*\(embedding.shape=\(3,\)\)"),
        (lambda: biases.table(np.ones(3, int), [[0]]), TypeError, "table must hold floating-point numbers, not int64"),
        (lambda: biases.table(np.ones((2, 2, 2)), [[0]]), ValueError, r"table must have one or two axes, \(r, heads\)"),
        (lambda: biases.table(np.ones(3), [[0.0]]), TypeError, r"index must hold integers, not float64 \(index.shape"),
        (lambda: biases.table(np.ones(3), [[True]]), TypeError, "index must hold integers, not bool"),
        (
            lambda: biases.table(np.ones(3), [0, 1]),
            ValueError,
            r"index must have two axes, \(n, m\) \(index.shape=.2,.\)",
        ),
        (lambda: biases.table(np.ones(3), [[0, 3]]), ValueError, "index must be of the rows 0 to 2, not 3"),
        (lambda: biases.table(np.ones((3, 2)), [[-1, 2]]), ValueError, "index must be of the rows 0 to 2, not -1"),
        (lambda: biases.products(np.ones((3, 2)), [[2**63]]), ValueError, "index must be of the rows 0 to 2, not 9223"),
        (
            lambda: biases.products(np.ones(3), [[0]]),
            ValueError,
            r"embedding must have two or three axes, \(heads, r, d",
        ),
        (lambda: biases.products(np.ones((2, 3, 4)), [[3]]), ValueError, "index must be of the rows 0 to 2, not 3"),
        (
            lambda: biases.products(np.ones((3, 2)), [[0]], of="value"),
            ValueError,
            "of must be .query. or .key., not 'value'",
        ),
        (lambda: biases.products(np.ones((3, 2)), [[0]], of=1), ValueError, "of must be .query. or .key., not 1"),
        (lambda: biases.forgetting(np.array(0.5)), ValueError, "log_f must have at least one axis"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(make: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        make()


@each("op", [dot_product, blockwise])
@each(
    ("bias", "sentence"),
    [
        (biases.alibi(np.ones(3)), r"slopes must broadcast to the leading axes of the scores, whose shape is \(2, 2\)"),
        (biases.t5(np.ones((4, 3))), "table must have a column for each head, .* whose shape is .2, 2, 6, 7."),
        (biases.shaw(np.ones((3, 4))), r"embedding has 4 features but query has 3 \(embedding.shape=\(3, 4\)\)"),
        (
            biases.table(np.ones((4, 3)), index_of(N, M)),
            "table must have a column for each head, .* shape is .2, 2, 6, 7.",
        ),
        (
            biases.table(np.ones(4), index_of(M, M)),
            r"index must have an entry for each pair .*, \(6, 7\) \(index.shape=.7, 7",
        ),
        (biases.products(np.ones((4, 2)), index_of(N, M)), "embedding has 2 features but query has 3"),
        (
            biases.products(np.ones((3, 4, D_K)), index_of(N, M)),
            "embedding must have rows for each head, .* .2, 2, 6, 7.",
        ),
        (
            biases.products(np.ones((4, D_K)), index_of(N, 1)),
            "index must have an entry for each pair of a query and a key",
        ),
        (biases.forgetting(np.ones(6)), r"log_f must broadcast to the leading axes of the scores and positions"),
        (biases.forgetting(np.ones(1)), r"log_f must have a number for each of 7 positions \(log_f.shape=\(1,\)\)"),
    ],
)
def test_biases_that_do_not_fit_are_refused(op: Any, bias: Bias, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        op.forward(**arrays(), bias=bias)


def test_a_bias_of_ones_own_needs_no_more_than_its_methods() -> None:
    class OfKeys(Bias):
        def check(self, *_: Any) -> None:
            pass

        def at(self, _: Any) -> OfKeys:
            return self

        def within(self, _: slice, columns: slice) -> OfKeys:
            return self.with_array(self.array[columns])

        def block(self, rows: slice, columns: slice, _: Array) -> Array:
            return np.broadcast_to(self.array[columns], (rows.stop - rows.start, columns.stop - columns.start))

        def backward(self, d_scores: Array, _: slice, columns: slice, __: Array) -> Array:
            d_array = np.zeros(self.shape, d_scores.dtype)
            d_array[columns] = d_scores.sum(axis=tuple(range(d_scores.ndim - 1)))
            return d_array

    x, array = arrays(), normal(1, M)
    output, cache = dot_product.forward(**x, bias=OfKeys(array))
    expected, its_cache = dot_product.forward(**x, bias=array)
    assert_same_bits(output, expected)
    assert_close(dot_product.backward(output, cache).bias, dot_product.backward(output, its_cache).bias, 1e-14)


def several(n: int = N, m: int = M, d_k: int = D_K) -> list[Any]:
    """A list of biases, of all kinds."""
    of_kinds, array = of_each_kind(n, m, d_k), normal(8, HEADS, 1, m)
    array[0, 0, 1] = -np.inf
    names = ("T5", "Shaw", "table", "products of keys, of each head", "forgetting of each head")
    return [array, *(of_kinds[name] for name in names), array[0]]


def test_biases_in_a_list_add() -> None:
    x, parts = arrays(), several()
    output, cache = dot_product.forward(**x, bias=parts)
    alone = [dot_product.forward(**x, bias=bias)[1].scores for bias in parts]
    without = dot_product.forward(**x)[1].scores
    assert_close(cache.scores, without + sum(scores - without for scores in alone), 1e-14)
    assert_same_bits(dot_product.forward(**x, bias=[parts[0]])[0], dot_product.forward(**x, bias=parts[0])[0])
    assert_same_bits(dot_product.forward(**x, bias=[])[0], dot_product.forward(**x)[0])
    assert output.shape == (2, HEADS, N, 2)


@each("block_size", [(4, 3)], long=[1, None, (2, 300)])
def test_block_by_block_a_list_and_a_scale_of_each_query_are_what_they_are_as_a_whole(block_size: Any) -> None:
    x = arrays() | {"bias": several(), "scale": normal(12, 2, 1, N, 1), "sink": normal(5, HEADS)}
    x["scale"][1, 0, 2], x["scale"][0, 0, 3] = 0, np.nan
    mask = np.ones((2, 1, N, M), np.bool_)
    mask[0, 0, 3] = False
    for options in ({}, PIPELINE["everything"]):
        options = {name: value for name, value in options.items() if name != "scale"} | {"mask": mask}
        output, cache = blockwise.forward(**x, **options, block_size=block_size)
        expected, its_cache = dot_product.forward(**x, **options)
        assert_alike(output, expected, 1e-14)
        d_output = normal(8, *output.shape)
        along: dict[str, Any] = {name: normal(9, *np.shape(array)) for name, array in x.items() if name != "bias"}
        along["bias"] = [normal(10 + k, *bias.shape) for k, bias in enumerate(x["bias"])]
        along["scale"][0, 0, 3] = 0
        whole_rows = cache._replace(logsumexp=np.full_like(cache.logsumexp, np.nan))
        theirs = dot_product.backward(d_output, its_cache)
        found = [blockwise.backward(d_output, cache), blockwise.backward(d_output, whole_rows)]
        twice = blockwise.double_backward(blockwise.Gradients(**along), d_output, cache)
        expected_twice = dot_product.double_backward(dot_product.Gradients(**along), d_output, its_cache)
        assert_alike(twice[0], expected_twice[0], 1e-13)
        pairs = [(ours, theirs) for ours in found] + [(twice[1], expected_twice[1])]
        for ours, others in pairs:
            for name in ("query", "key", "value", "sink", "scale"):
                assert_alike(getattr(ours, name), getattr(others, name), 1e-12, name)
            for one, other in zip(ours.bias, others.bias, strict=True):
                assert_alike(one, other, 1e-12)
        assert_alike(blockwise.jvp(cache, **along), dot_product.jvp(its_cache, **along), 1e-13)
        for name in x:
            alone = {name: along[name]}
            assert_alike(blockwise.jvp(cache, **alone), dot_product.jvp(its_cache, **alone), 1e-13, name)


def test_gradients_of_a_list_are_a_list_in_its_order_and_share_no_memory() -> None:
    x, parts = arrays(), several()
    output, cache = dot_product.forward(**x, bias=parts)
    gradients = dot_product.backward(output, cache).bias
    assert isinstance(gradients, list)
    assert [d.shape for d in gradients] == [bias.shape for bias in parts]
    both = normal(8, 2, HEADS, N, M)
    _, cache = dot_product.forward(**x, bias=[both, both])
    d_both: Any = dot_product.backward(output, cache).bias
    assert_same_bits(*d_both)
    assert not np.may_share_memory(*d_both)
    assert dot_product.backward(output, dot_product.forward(**x, bias=[])[1]).bias == []


@pytest.mark.parametrize("op", [dot_product, multi_head])
def test_gradients_of_a_list_are_numerical_ones(op: Any) -> None:
    x: dict[str, Any] = arrays(3, 3)
    options: dict[str, Any] = {"softcap": 0.8, "is_causal": True}
    if op is multi_head:
        x = dict.fromkeys(x, normal(0, 2, 3, 4)) | {"parameters": random_parameters(0)}
        options["num_heads"] = HEADS
    x["bias"] = several(3, 3, 2 if op is multi_head else D_K)
    report = gradcheck.check_op(op, x, method="complex-step", **options)
    report.raise_if_failed()
    assert report["bias.3"].max_relative_error <= 1e-12


def test_a_tangent_of_a_list_is_a_list_of_which_none_is_zero() -> None:
    x, parts = arrays(), several()
    _, cache = dot_product.forward(**x, bias=parts)
    along = [normal(9, *bias.shape) for bias in parts]
    one_by_one = [[d if j == k else None for j, d in enumerate(along)] for k in range(len(along))]
    assert_close(
        dot_product.jvp(cache, bias=along), sum(dot_product.jvp(cache, bias=alone) for alone in one_by_one), 1e-14
    )
    for wrong in (along[:-1], along[0]):
        with pytest.raises(TypeError, match=r"^the tangent of bias must be a list of 7, as bias is, or None$"):
            dot_product.jvp(cache, bias=wrong)
    with pytest.raises(ValueError, match=r"^the tangent of bias\[1\] must have the shape \(8, 2\)"):
        dot_product.jvp(cache, bias=[None, np.ones(3), *along[2:]])


@each(
    ("parts", "error", "sentence"),
    [
        (
            [np.ones(M), np.ones(3)],
            ValueError,
            r"bias\[1\] must broadcast to the scores, whose shape is \(2, 2, 6, 7\)",
        ),
        ([np.ones(M), None], TypeError, r"bias\[1\] must hold floating-point numbers, not object"),
        ([np.ones(M, int)], TypeError, r"bias\[0\] must hold floating-point numbers, not int64"),
        ([biases.alibi(np.ones(3))], ValueError, "slopes must broadcast"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(parts: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        dot_product.forward(**arrays(), bias=parts)


def test_variables_of_a_chain_may_stand_in_biases_of_a_list_and_in_a_scale() -> None:
    x, index = arrays(3, 4), index_of(3, 4)
    x |= {"numbers": normal(1, 4), "vectors": normal(2, 4, D_K), "of_keys": normal(3, 4), "factors": normal(4, 3, 1)}

    def layer(query: Any, key: Any, value: Any, numbers: Any, vectors: Any, of_keys: Any, factors: Any) -> Any:
        parts = [biases.table(numbers * 2, index), biases.products(vectors, index, of="key"), np.ones(4), of_keys]
        return chain.apply(dot_product, query, key, value, bias=parts, scale=factors * factors)

    gradcheck.check_op(chain, x, layer=layer, method="complex-step").raise_if_failed()


@each("dtype", [np.float32, np.float64, np.longdouble, np.complex128])
def test_a_row_that_is_looked_up_often_has_a_sum_with_all_its_digits(dtype: Any) -> None:
    n = 300
    d_scores = np.abs(normal(0, n, n)).astype(dtype)  # so that sums grow as long as they are
    d_scores = d_scores * (1 + 2j) if np.dtype(dtype).kind == "c" else d_scores
    bias = biases.table(np.zeros(3, dtype), np.where(np.eye(n, dtype=bool), 2, 0))
    found = bias.backward(d_scores, slice(0, n), slice(0, n), d_scores)
    assert found.dtype == dtype
    off = d_scores[~np.eye(n, dtype=bool)].astype(np.result_type(dtype, np.longdouble))
    exact = np.array([off.sum(), 0, np.trace(d_scores)])
    np.testing.assert_allclose(
        found.astype(exact.dtype), exact, rtol=0, atol=8 * np.finfo(dtype).eps * abs(exact).max()
    )


def test_an_index_may_be_changed_afterwards() -> None:
    index = index_of(N, M)
    bias, x = biases.table(normal(1, 4), index), arrays()
    before, _ = dot_product.forward(**x, bias=bias)
    index[...] = 0
    assert_same_bits(dot_product.forward(**x, bias=bias)[0], before)


def test_a_row_of_a_table_that_only_hidden_pairs_have_may_hold_anything() -> None:
    index = index_of(N, M)
    x, mask = arrays(), (index != 3)
    mask[2] = False
    for make in (biases.table, biases.products, lambda array, index: biases.products(array, index, of="key")):
        array = normal(1, 4) if make is biases.table else normal(1, 4, D_K)
        clean, cache = dot_product.forward(**x, bias=make(array, index), mask=mask)
        expected = dot_product.backward(clean, cache)
        array[3] = np.nan
        output, its_cache = dot_product.forward(**x, bias=make(array, index), mask=mask)
        assert_same_bits(output, clean)
        for found, d in zip(dot_product.backward(clean, its_cache), expected, strict=True):
            if d is not None:
                assert_same_bits(found, d)


@each("op", [dot_product, blockwise])
def test_minus_infinity_in_one_bias_of_a_list_hides_whatever_is_in_another(op: Any) -> None:
    x, hidden, table = arrays(), np.zeros((N, M)), np.array([0.0, -np.inf])
    hidden[0], hidden[1, 0] = -np.inf, -np.inf
    ahead, index = np.where(np.arange(M) < 2, np.inf, 0.0), np.zeros((N, M), int)
    index[2] = 1
    mask = (hidden == 0) & (index == 0)
    expected, _ = dot_product.forward(**x, bias=ahead, mask=mask)
    output, cache = op.forward(**x, bias=[hidden, ahead, biases.table(table, index)])
    assert_alike(output, expected, 1e-14)
    assert all(np.isfinite(d).all() for d in op.backward(output, cache).bias)


@each("op", [dot_product, blockwise])
def test_what_is_hidden_twice_by_the_lowest_number_has_less_than_what_is_so_once(op: Any) -> None:
    x, lowest = arrays(), np.finfo(np.float64).min
    of_keys, of_pairs = np.where(np.arange(M) > 2, lowest, 0.0), np.where(np.arange(N) == 1, lowest, 0.0)[:, None]
    output, cache = op.forward(**x, bias=[of_keys, of_pairs])
    assert_alike(output[..., 0, :], op.forward(**x, bias=of_keys)[0][..., 0, :], 1e-14)
    once = x["value"][..., :3, :].mean(axis=-2) * np.ones((2, HEADS, 1))  # beside such a number all products are zero
    assert_alike(output[..., 1, :], once, 1e-14)
    assert all(np.isfinite(d).all() for d in op.backward(output, cache).bias)
