from typing import Any

import numpy as np
from helpers import SHAPES, SOME_HIDDEN, Array, assert_close, attentions, each, normal

from attention_np import additive


def arrays() -> dict[str, Array]:
    return attentions(SHAPES["four queries, five keys"], d_q=3, d_k=2, d_v=6, h=4)["additive"].inputs


def test_the_cache_names_the_intermediates() -> None:
    x = arrays()
    output, cache = additive.forward(**x, mask=SOME_HIDDEN)
    assert all(getattr(cache, name) is array for name, array in x.items())
    queries, keys = x["query"] @ x["w_query"], x["key"] @ x["w_key"]
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
