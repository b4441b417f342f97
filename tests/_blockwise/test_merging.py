"""`blockwise.merge` of parts of the keys, and of whatever `blockwise.forward` gave."""

import functools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, assert_close, assert_same_bits, each, normal

from attention_np import blockwise, dot_product, gradcheck
from attention_np.blockwise import Partial, merge, merge_backward

from .calls import batch_of


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


@each("masked", [False, True])
@each("scale", [1.0, 300.0])
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


def test_the_gradients_of_a_merge_are_complex_in_the_precision_of_each_part() -> None:
    one, other = ([x.astype(dtype) for x in part] for part, dtype in zip(partials([5]), ("F", "D"), strict=True))
    for d in (one, other):
        found = merge_backward((d[0], d[1]), (one[0], one[1]), (other[0], other[1]))
        assert [x.dtype.char for part in found for x in part] == list("FFDD")
    assert [x.dtype.char for x in merge((one[0], one[1]), (other[0], other[1]))] == list("DD")


@each("half", [np.float16, ml_dtypes.bfloat16])
@each("of_logsumexp", ["half", "single"])
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


SHAPES = {  # of query, key and value
    "a single query": ((4,), (7, 4), (7, 5)),
    "no leading axes": ((3, 4), (7, 4), (7, 5)),
    "several values share the scores": ((3, 4), (7, 4), (2, 7, 5)),
    "values stretch an axis of length one": ((2, 1, 3, 4), (7, 4), (2, 3, 7, 5)),
    "a value is shared": ((6, 3, 4), (7, 4), (1, 7, 5)),
}


def shaped(case: str) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in SHAPES[case]]


def parts_of(query: Array, key: Array, value: Array) -> list[tuple[Array, Any]]:
    return [blockwise.forward(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 3), slice(3, 7))]


def close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-15)


@each("case", SHAPES)
def test_what_forward_gives_merges_as_it_is_and_gradients_flow_through(case: str) -> None:
    query, key, value = shaped(case)
    parts = parts_of(query, key, value)
    output, cache = blockwise.forward(query, key, value)
    merged = merge(*parts)
    close(merged.output, dot_product.forward(query, key, value)[0])
    close(merged.logsumexp, cache.logsumexp)
    rng = np.random.default_rng(1)
    d_output, d_logsumexp = rng.standard_normal(output.shape), rng.standard_normal(cache.logsumexp.shape)
    d_parts = merge_backward((d_output, d_logsumexp), *parts)
    first, second = (
        blockwise.backward(d.output, part_cache, d_logsumexp=d.logsumexp)
        for d, (_, part_cache) in zip(d_parts, parts, strict=True)
    )
    whole = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    close(first.query + second.query, whole.query)
    close(np.concatenate([first.key, second.key], axis=-2), whole.key)
    close(np.concatenate([first.value, second.value], axis=-2), whole.value)


def test_a_single_query_may_have_its_logsumexp_without_an_axis() -> None:
    (one, other) = parts_of(*shaped("a single query"))
    merged = merge((one[0], one[1].logsumexp[0]), (other[0], other[1].logsumexp[0]))
    close(merged.output, merge(one, other).output)
    assert merged.logsumexp.shape == ()
    d_one, d_other = merge_backward((np.ones(5), np.ones(1)), (one[0], one[1].logsumexp[0]), other)
    assert (d_one.logsumexp.shape, d_other.logsumexp.shape) == ((), (1,))


def zeros(*shapes: tuple[int, ...], dtype: Any = float) -> Any:
    return tuple(np.zeros(shape, dtype) for shape in shapes)


PART = zeros((3, 2), (3,))
ROWS = "the logsumexp of {} must have one number for each row"
PAIR = "{} must be a pair of an output and its logsumexp, or cache, not "
NO_PART: list[tuple[Any, type[Exception], str]] = [
    (np.zeros((2, 3)), TypeError, PAIR + "ndarray"),
    (None, TypeError, PAIR + "NoneType"),
    ((1.0, 2.0, 3.0), TypeError, PAIR + "3 items"),
    (zeros((3, 2), (3,), dtype=int), TypeError, "the output of {} must hold floating-point numbers, not int64"),
    *(
        (zeros(output, logsumexp), ValueError, ROWS)
        for output, logsumexp in (
            *(((3, 2), (3, 1)), ((), ()), ((), (1,)), ((5,), (2,)), ((5,), (1, 1))),
            *(((3, 5), (1,)), ((3, 5), (2, 3)), ((2, 3, 5), (3, 3))),
        )
    ),
]


@each(("bad", "error", "sentence"), NO_PART)
def test_what_is_no_part_is_refused_by_its_place(bad: Any, error: type[Exception], sentence: str) -> None:
    d = functools.partial(merge_backward, PART)
    for use in (merge, d):
        for name, parts in (("first", (bad, PART)), ("second", (PART, bad))):
            with pytest.raises(error, match="^" + re.escape(sentence.format(name))):
                use(*parts)
    with pytest.raises(error, match="^" + re.escape(sentence.format("d_merged"))):
        merge_backward(bad, PART, PART)


def test_parts_and_gradients_that_do_not_fit_each_other_are_refused() -> None:
    for use in (merge, functools.partial(merge_backward, PART)):
        with pytest.raises(ValueError, match=r"^the outputs of first and second must have one shape"):
            use(PART, zeros((1, 2), (1,)))
    for shape in ((3, 1), (1, 2), (4, 2)):
        with pytest.raises(
            ValueError, match=r"^d_merged must have the shape of what was merged \(the output of d_merged"
        ):
            merge_backward(zeros(shape, shape[:1]), PART, PART)
    parts = parts_of(*shaped("several values share the scores"))
    message = re.escape("(the logsumexp of d_merged: (2, 3), that of first and second together: (3,))")
    with pytest.raises(ValueError, match=f"^d_merged must have the shape of what was merged {message}$"):
        merge_backward(zeros((2, 3, 5), (2, 3)), *parts)
