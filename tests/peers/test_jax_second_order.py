"""Double backward against JAX's forward mode over its gradients."""

from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, assert_close, normal

from attention_np import blockwise, dot_product

jax = pytest.importorskip("jax", reason="the comparison with JAX needs jax: pip install attention-np[peers]")


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_double_backward_is_the_tangent_of_jax_gradients(op: Any) -> None:
    shapes = {"query": (2, 4, 3), "key": (2, 5, 3), "value": (2, 5, 6), "bias": (4, 5), "sink": (2,)}
    arrays = {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    tangents = {name: normal(10 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    d_output = normal(20, 2, 4, 6)
    with jax.enable_x64(True):
        jnp = jax.numpy

        def attention(x: Any) -> Any:
            scores = 0.7 * jnp.tanh(x["query"] @ x["key"].swapaxes(-1, -2) / np.sqrt(3) / 0.7) + x["bias"]
            scores = jnp.where(SOME_HIDDEN, scores, -jnp.inf)
            sinks = jnp.broadcast_to(x["sink"][:, None, None], (2, 4, 1))
            return jax.nn.softmax(jnp.concatenate([scores, sinks], -1), -1)[..., :-1] @ x["value"]

        def loss(x: Any) -> Any:
            return (attention(x) * d_output).sum()

        _, moved = jax.jvp(attention, (arrays,), (tangents,))
        _, expected = jax.jvp(jax.grad(loss), (arrays,), (tangents,))
    _, cache = op.forward(**arrays, mask=SOME_HIDDEN, softcap=0.7)
    d_d_output, gradients = op.double_backward(op.Gradients(**tangents), d_output, cache)
    assert_close(d_d_output, np.asarray(moved), 1e-11)
    for name, x in expected.items():
        assert_close(getattr(gradients, name), np.asarray(x), 1e-11)
