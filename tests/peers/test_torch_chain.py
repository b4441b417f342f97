"""Chains and the small ops that layers are made of, against PyTorch's autograd: gradients, and their gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import (
    activation,
    chain,
    cross_entropy,
    dot_product,
    layer_norm,
    linear,
    linear_attention,
    rms_norm,
    short_conv,
)

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
functional = torch.nn.functional

CLOSE = 1e-12
KINDS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "relu_squared": lambda x: torch.relu(x) ** 2,
    "silu": lambda x: functional.silu(x),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "softplus": lambda x: functional.softplus(x),
    "exp": torch.exp,
}


def assert_same(
    layer: Callable[..., Any], theirs: Callable[..., Any], arrays: Mapping[str, Any], close: float = CLOSE
) -> None:
    """Output, gradients, forward mode and double backward are those of PyTorch, of `arrays` or of their shapes."""
    each = enumerate(arrays.items())
    inputs = {name: normal(k, *x) / 2 if isinstance(x, tuple) else x for k, (name, x) in each}
    along = {name: normal(20 + k, *x.shape) for k, (name, x) in enumerate(inputs.items())}
    output, cache = chain.forward(layer, inputs)
    d_output = normal(40, *output.shape)
    gradients = chain.backward(d_output, cache)
    moved, twice = chain.double_backward(along, d_output, cache)

    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    d = torch.tensor(d_output, requires_grad=True)
    expected = theirs(**tensors)
    first = torch.autograd.grad((expected * d).sum(), list(tensors.values()), create_graph=True)
    product = sum((g * torch.tensor(along[name])).sum() for name, g in zip(inputs, first, strict=True))
    second = torch.autograd.grad(product, [d, *tensors.values()], allow_unused=True, materialize_grads=True)

    def as_array(tensor: Any) -> Array:
        return np.asarray(tensor.detach().numpy())

    assert_close(output, as_array(expected), close)
    assert_close(moved, as_array(second[0]), close)
    assert_close(chain.jvp(cache, **along), as_array(second[0]), close)
    for name, of_first, of_second in zip(inputs, first, second[1:], strict=True):
        assert_close(np.asarray(gradients[name]), as_array(of_first), close)
        assert_close(np.asarray(twice[name]), as_array(of_second), close)


@pytest.mark.parametrize("kind", KINDS)
def test_every_activation(kind: str) -> None:
    assert_same(lambda x: chain.apply(activation, x, kind=kind), KINDS[kind], {"x": (5, 7)})


def test_a_block_with_a_loss() -> None:
    """Norms, attention of one head with a mask, a gated feed-forward network, both residuals, and cross-entropy."""
    mask, target = np.tri(5, dtype=bool), np.array([[1, 3, 0, 2, 2], [4, 4, 1, 0, 3]])

    def ours(x: Any, g: Any, b: Any, g2: Any, w_up: Any, w_gate: Any, w_down: Any, **w: Any) -> Any:
        y = chain.apply(layer_norm, x, g, b)
        query, key, value = (chain.apply(linear, y, w[name], b) for name in ("w_q", "w_k", "w_v"))
        x = x + chain.apply(dot_product, query, key, value, mask=mask)
        y = chain.apply(rms_norm, x, g2)
        x = x + (chain.apply(activation, y @ w_gate, kind="gelu") * (y @ w_up)) @ w_down / 3
        return chain.apply(cross_entropy, x, target).sum(axis=0)

    def theirs(x: Any, g: Any, b: Any, g2: Any, w_up: Any, w_gate: Any, w_down: Any, **w: Any) -> Any:
        y = functional.layer_norm(x, (6,), g, b, 1e-5)
        query, key, value = (y @ w[name] + b for name in ("w_q", "w_k", "w_v"))
        scores = (query @ key.mT / 6**0.5).masked_fill(~torch.tensor(mask), -torch.inf)
        x = x + scores.softmax(-1) @ value
        y = functional.rms_norm(x, (6,), g2, 1e-6)
        x = x + (functional.gelu(y @ w_gate) * (y @ w_up)) @ w_down / 3
        return functional.cross_entropy(x.mT, torch.tensor(target), reduction="none").sum(0)

    shapes = {"x": (2, 5, 6), "g": (6,), "b": (6,), "w_q": (6, 6), "w_k": (6, 6), "w_v": (6, 6), "g2": (6,)}
    assert_same(ours, theirs, shapes | {"w_up": (6, 8), "w_gate": (6, 8), "w_down": (8, 6)})


def test_a_convolution_before_a_state_that_goes_on() -> None:
    def ours(x: Any, w: Any, b: Any, before: Any, state: Any) -> Any:
        y, last = chain.apply(short_conv, x, w, b, initial_state=before, outputs=("output", "final_state"))
        z, state = chain.apply(linear_attention, y, y, y, initial_state=state, outputs=("output", "final_state"))
        return chain.concatenate([z, last * 2, state], axis=-2)

    def theirs(x: Any, w: Any, b: Any, before: Any, state: Any) -> Any:
        padded = torch.cat([before, x], dim=-2)
        y = functional.conv1d(padded.mT, w.mT[:, None], b, groups=3).mT
        rows = []
        for t in range(y.shape[-2]):
            state = state + y[:, t, :, None] * y[:, t, None, :]
            rows.append((y[:, t, None, :] @ state)[:, 0] / 3**0.5)
        return torch.cat([torch.stack(rows, -2), padded[:, -2:] * 2, state], dim=-2)

    assert_same(ours, theirs, {"x": (2, 5, 3), "w": (3, 3), "b": (3,), "before": (2, 2, 3), "state": (2, 3, 3)})


def test_norms_over_heads_and_features_and_targets_that_are_distributions() -> None:
    def ours(x: Any, g: Any, t: Any) -> Any:
        y = chain.apply(rms_norm, chain.apply(layer_norm, x, g, axis=(-2, -1), epsilon=0.3), axis=(0, 2), epsilon=0.2)
        return chain.apply(cross_entropy, y, t)

    def theirs(x: Any, g: Any, t: Any) -> Any:
        y = functional.layer_norm(x, (3, 4), g, None, 0.3)
        y = y / torch.sqrt((y * y).mean((0, 2), keepdim=True) + 0.2)
        return -(t * functional.log_softmax(y, -1)).sum(-1)

    assert_same(ours, theirs, {"x": (2, 3, 4), "g": (3, 4), "t": (2, 3, 4)})
