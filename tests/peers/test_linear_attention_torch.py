"""The recurrence of linear attention against a plain loop in PyTorch and its autograd, in float64."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import linear_attention

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

N, D_K, D_V = 23, 5, 4
RULES = {  # log-decays for each token, and whether beta is there; a decay that is fixed is one of all tokens
    "linear": (0, False),
    "RetNet": ("fixed", False),
    "SSD": (1, False),
    "GLA": (D_K, False),
    "delta": (0, True),
    "gated delta": (1, True),
    "KDA": (D_K, True),
}


def arrays(decays: Any, has_beta: bool) -> dict[str, Array]:
    found = {"query": normal(0, 2, 3, N, D_K), "key": normal(1, 2, 3, N, D_K) / 2, "value": normal(2, 2, 3, N, D_V)}
    if decays == "fixed":
        gamma = 1 - 2.0 ** -np.arange(3, 6)
        found["log_decay"] = np.broadcast_to(np.log(gamma)[:, None, None], (2, 3, N, 1)).copy()
    elif decays:
        found["log_decay"] = -np.abs(normal(3, 2, 3, N, decays))
    if has_beta:
        found["beta"] = np.random.default_rng(4).uniform(0, 1, (2, 3, N))
    return found | {"initial_state": normal(5, 2, 3, D_K, D_V)}


def loop(query: Any, key: Any, value: Any, log_decay: Any = None, beta: Any = None, initial_state: Any = None) -> Any:
    """The outputs and the last state, one token after another."""
    state, outputs = initial_state, []
    for t in range(query.shape[-2]):
        q, k, v = query[..., t, :], key[..., t, :], value[..., t, :]
        if log_decay is not None:
            state = state * log_decay[..., t, :].exp()[..., None]
        if beta is not None:
            v = beta[..., t, None] * (v - torch.einsum("...ab,...a->...b", state, k))
        state = state + k[..., None] * v[..., None, :]
        outputs.append(torch.einsum("...ab,...a->...b", state, q) / query.shape[-1] ** 0.5)
    return torch.stack(outputs, -2), state


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk_size", [None, 1, 4, 16, 64])
def test_output_states_and_all_gradients_are_those_of_autograd_through_a_loop(
    rule: str, chunk_size: int | None
) -> None:
    given = arrays(*RULES[rule])
    output, cache = linear_attention.forward(**given, chunk_size=chunk_size)
    d_output, d_final_state = normal(8, *output.shape), normal(9, *cache.final_state.shape)
    found = linear_attention.backward(d_output, cache, d_final_state=d_final_state)
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in given.items()}
    expected, state = loop(**tensors)
    torch.autograd.backward([expected, state], [torch.tensor(d_output), torch.tensor(d_final_state)])
    assert_close(output, expected.detach().numpy(), 1e-13)
    assert_close(cache.final_state, state.detach().numpy(), 1e-13)
    for name, tensor in tensors.items():
        assert_close(getattr(found, name), tensor.grad.numpy(), 1e-13)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_double_backward_is_autograd_of_autograd(rule: str, chunk_size: int | None) -> None:
    given = arrays(*RULES[rule])
    output, cache = linear_attention.forward(**given, chunk_size=chunk_size)
    d_output, along = (
        normal(8, *output.shape),
        {name: normal(9 + i, *given[name].shape) for i, name in enumerate(given)},
    )
    vectors = linear_attention.Gradients(**dict.fromkeys(linear_attention.Gradients._fields) | along)
    d_d_output, found = linear_attention.double_backward(vectors, d_output, cache)
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in given.items()}
    d = torch.tensor(d_output, requires_grad=True)
    gradients = torch.autograd.grad(loop(**tensors)[0], list(tensors.values()), d, create_graph=True)
    product = sum((g * torch.tensor(along[name])).sum() for name, g in zip(tensors, gradients, strict=True))
    expected = torch.autograd.grad(product, [d, *tensors.values()])
    for one, other in zip((d_d_output, *(getattr(found, name) for name in given)), expected, strict=True):
        assert_close(one, other.numpy(), 1e-13)
