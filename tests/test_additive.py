import tracemalloc
from typing import Any

import numpy as np
import pytest
from helpers import SHAPES, SOME_HIDDEN, Array, assert_close, attentions, each, normal

from attention_np import additive


def arrays() -> dict[str, Array]:
    return attentions(SHAPES["four queries, five keys"], d_q=3, d_k=2, d_v=6, h=4)["additive"].inputs


def test_the_cache_names_the_intermediates() -> None:
    x = arrays()
    output, cache = additive.forward(**x, mask=SOME_HIDDEN)
    assert all(getattr(cache, name) is array for name, array in x.items())
    queries, keys = x["query"] @ x["w_query"], x["key"] @ x["w_key"]
    assert cache.hidden is not None
    assert_close(cache.hidden, np.tanh(queries[:, None] + keys[None] + x["b"]), 1e-15)
    assert_close(cache.scores, cache.hidden @ x["w_score"], 1e-15)
    assert_close(cache.weights @ x["value"], output, 1e-15)
    np.testing.assert_array_equal(cache.weights > 0, SOME_HIDDEN)


@each("name", ["query", "key", "w_query", "w_key", "b"])
def test_saturated_units_have_no_gradient_and_do_no_harm(name: Any) -> None:
    x = arrays()
    _, cache = additive.forward(**{**x, "b": np.full(4, 1e200)})
    gradients = additive.backward(normal(1, 4, 6), cache)
    assert (getattr(gradients, name) == 0).all()


def test_projections_that_do_not_fit_have_the_weights_that_they_say() -> None:
    huge = np.float32(1e30)
    query, key, value = np.array([[huge]]), np.array([[huge], [-huge]]), np.array([[1], [3]], np.float32)
    one = np.ones(1, np.float32)
    output, cache = additive.forward(query, key, value, np.array([[huge]]), np.array([[-2 * huge]]), one)
    share = 1 / (1 + np.exp(2))  # tanh(-inf) = -1 against tanh(inf) = 1
    np.testing.assert_allclose(output, share + 3 * (1 - share), rtol=1e-6)
    gradients = additive.backward(np.ones_like(output), cache)
    np.testing.assert_allclose(gradients.value, [[share], [1 - share]], rtol=1e-6)
    for gradient in (gradients.query, gradients.key, gradients.w_query, gradients.w_key):
        np.testing.assert_array_equal(gradient, 0)
    np.testing.assert_allclose(gradients.w_score, 4 * share * (1 - share), rtol=1e-6)


LEADING = {"query": (3, 1), "key": (2,), "value": (3, 2)}


@each("dtype", [np.float64, np.float32, np.complex128])
@each("mask", [None, SOME_HIDDEN, SOME_HIDDEN[:1]])
def test_in_blocks_of_queries_the_numbers_are_the_same(dtype: Any, mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = {name: array.astype(dtype) for name, array in arrays().items()}
    x |= {
        name: np.stack([x[name] * k for k in range(np.prod(of))]).reshape(*of, *x[name].shape)
        for name, of in LEADING.items()
    }
    d_output = normal(1, 3, 2, 4, 6).astype(dtype)
    tangents = {name: normal(2, *array.shape).astype(dtype) for name, array in x.items()}

    def passes() -> tuple[additive.Cache, list[Any]]:
        output, cache = additive.forward(**x, mask=mask)
        gradients = additive.backward(d_output, cache)
        d_d_output, second = additive.double_backward(additive.Gradients(**tangents), d_output, cache)
        return cache, [output, *gradients, additive.jvp(cache, **tangents), d_d_output, *second]

    whole, expected = passes()
    assert whole.hidden is not None
    with monkeypatch.context() as patched:
        patched.setattr(additive, "BLOCK", 6 * 5 * 4 * 3)  # three of the four queries, of six leading places, at a time
        cache, results = passes()
    assert cache.hidden is None
    np.testing.assert_array_equal(cache.scores, whole.scores)
    for result, of_whole in zip(results, expected, strict=True):
        assert_close(result, of_whole, 1e-6 if dtype == np.float32 else 1e-14)


def test_memory_grows_with_the_pairs_and_not_with_their_hidden_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "BLOCK", 2**14)
    n, h = 128, 128
    x = {name: normal(k, n, 8) for k, name in enumerate(("query", "key", "value"))}
    x |= {name: normal(3, 8, h) for name in ("w_query", "w_key")}
    tracemalloc.start()
    try:
        output, cache = additive.forward(**x, w_score=normal(4, h))
        additive.double_backward(additive.backward(output, cache), output, cache)
        additive.jvp(cache, w_score=cache.w_score)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert cache.hidden is None
    assert peak < 0.25 * 8 * n * n * h  # bytes, all of which the whole hidden layer takes once
