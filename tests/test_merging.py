"""`blockwise.merge` of what `blockwise.forward` gave, for every shape that it takes."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attention_np import blockwise, dot_product

Array = npt.NDArray[Any]

SHAPES = {  # of query, key and value
    "a single query": ((4,), (7, 4), (7, 5)),
    "no leading axes": ((3, 4), (7, 4), (7, 5)),
    "several values share the scores": ((3, 4), (7, 4), (2, 7, 5)),
    "values stretch an axis of length one": ((2, 1, 3, 4), (7, 4), (2, 3, 7, 5)),
    "a value is shared": ((6, 3, 4), (7, 4), (1, 7, 5)),
}


def arrays(case: str) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in SHAPES[case]]


def parts_of(query: Array, key: Array, value: Array) -> list[tuple[Array, Any]]:
    return [blockwise.forward(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 3), slice(3, 7))]


def close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-15)


@pytest.mark.parametrize("case", SHAPES)
def test_what_forward_gives_merges_as_it_is(case: str) -> None:
    query, key, value = arrays(case)
    merged = blockwise.merge(*parts_of(query, key, value))
    expected, _ = dot_product.forward(query, key, value)
    _, cache = blockwise.forward(query, key, value)
    close(merged.output, expected)
    close(merged.logsumexp, cache.logsumexp)


@pytest.mark.parametrize("case", SHAPES)
def test_gradients_flow_through_a_merge_for_every_shape(case: str) -> None:
    query, key, value = arrays(case)
    parts = parts_of(query, key, value)
    output, cache = blockwise.forward(query, key, value)
    rng = np.random.default_rng(1)
    d_output, d_logsumexp = rng.standard_normal(output.shape), rng.standard_normal(cache.logsumexp.shape)
    d_parts = blockwise.merge_backward((d_output, d_logsumexp), *parts)
    first, second = (
        blockwise.backward(d.output, part_cache, d_logsumexp=d.logsumexp)
        for d, (_, part_cache) in zip(d_parts, parts, strict=True)
    )
    whole = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    close(first.query + second.query, whole.query)
    close(np.concatenate([first.key, second.key], axis=-2), whole.key)
    close(np.concatenate([first.value, second.value], axis=-2), whole.value)


def test_a_single_query_may_have_its_logsumexp_without_an_axis() -> None:
    (one, other) = parts_of(*arrays("a single query"))
    merged = blockwise.merge((one[0], one[1].logsumexp[0]), (other[0], other[1].logsumexp[0]))
    close(merged.output, blockwise.merge(one, other).output)
    assert merged.logsumexp.shape == ()
    d_one, d_other = blockwise.merge_backward((np.ones(5), np.ones(1)), (one[0], one[1].logsumexp[0]), other)
    assert (d_one.logsumexp.shape, d_other.logsumexp.shape) == ((), (1,))


@pytest.mark.parametrize(
    ("pair", "what"), [(np.zeros((2, 3)), "ndarray"), (None, "NoneType"), ((1.0, 2.0, 3.0), "3 items")]
)
def test_what_is_no_pair_is_refused(pair: Any, what: str) -> None:
    message = f"second must be a pair of an output and its logsumexp, or cache, not {what}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        blockwise.merge((np.zeros((3, 2)), np.zeros(3)), pair)


@pytest.mark.parametrize(
    ("output", "logsumexp"),
    [((), ()), ((), (1,)), ((5,), (2,)), ((5,), (1, 1)), ((3, 5), (1,)), ((3, 5), (2, 3)), ((2, 3, 5), (3, 3))],
)
def test_a_logsumexp_of_other_rows_is_refused(output: tuple[int, ...], logsumexp: tuple[int, ...]) -> None:
    part = np.zeros(output), np.zeros(logsumexp)
    with pytest.raises(ValueError, match=r"^the logsumexp of first must have one number for each row"):
        blockwise.merge(part, part)


def test_the_gradient_of_the_logsumexp_must_have_its_shape() -> None:
    parts = parts_of(*arrays("several values share the scores"))
    message = re.escape("(the logsumexp of d_merged: (2, 3), that of first and second together: (3,))")
    with pytest.raises(ValueError, match=f"^d_merged must have the shape of what was merged {message}$"):
        blockwise.merge_backward((np.zeros((2, 3, 5)), np.zeros((2, 3))), *parts)
