"""The recurrence of linear attention against a plain loop in PyTorch and its autograd, in float64."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import chain, linear_attention
from peers.test_torch_chain import assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

N, D_K, D_V = 23, 5, 4
RULES: dict[str, tuple[Any, str]] = {  # log-decays for each token, and what else there is; "fixed": one of all tokens
    "linear": (0, ""),
    "RetNet": ("fixed", ""),
    "SSD": (1, ""),
    "GLA": (D_K, ""),
    "delta": (0, "beta"),
    "gated delta": (1, "beta"),
    "KDA": (D_K, "beta"),
    "RWKV-6": (D_K, "bonus"),
    "RWKV-7": (D_K, "probe"),
    "one decay, probe": (1, "probe"),
    "probe": (0, "probe"),
    "probe and bonus": (D_K, "probe bonus"),
}


def arrays(decays: Any, more: str) -> dict[str, Array]:
    x = {"query": normal(0, 2, 3, N, D_K), "key": normal(1, 2, 3, N, D_K) / 2, "value": normal(2, 2, 3, N, D_V)}
    if decays == "fixed":
        gamma = 1 - 2.0 ** -np.arange(3, 6)
        x["log_decay"] = np.broadcast_to(np.log(gamma)[:, None, None], (2, 3, N, 1)).copy()
    elif decays:
        x["log_decay"] = -np.abs(normal(3, 2, 3, N, decays))
    if "beta" in more:
        x["beta"] = np.random.default_rng(4).uniform(0, 1, (2, 3, N))
    x["initial_state"] = normal(5, 2, 3, D_K, D_V)
    if "probe" in more:
        x |= {"probe": normal(6, 2, 3, N, D_K) / 3, "response": normal(7, 2, 3, N, D_K) / 3}
    if "bonus" in more:
        x["bonus"] = normal(8, 3, D_K)
    return x


def loop(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any = None,
    beta: Any = None,
    initial_state: Any = None,
    probe: Any = None,
    response: Any = None,
    bonus: Any = None,
) -> Any:
    """The outputs and the last state, one token after another."""
    state, outputs = initial_state, []
    for t in range(query.shape[-2]):
        q, k, v = query[..., t, :], key[..., t, :], value[..., t, :]
        before = state
        if log_decay is not None:
            state = state * log_decay[..., t, :].exp()[..., None]
        if beta is not None:
            v = beta[..., t, None] * (v - torch.einsum("...ab,...a->...b", state, k))
        state = state + k[..., None] * v[..., None, :]
        if probe is not None:
            said = torch.einsum("...ab,...a->...b", before, probe[..., t, :])
            state = state + response[..., t, :, None] * said[..., None, :]
        source = state if bonus is None else before + (bonus * k)[..., None] * v[..., None, :]
        outputs.append(torch.einsum("...ab,...a->...b", source, q) / query.shape[-1] ** 0.5)
    return torch.stack(outputs, -2), state


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk_size", [None, 1, 4, 16, 64])
def test_output_states_and_all_gradients_are_those_of_autograd_through_a_loop(
    rule: str, chunk_size: int | None
) -> None:
    inputs = arrays(*RULES[rule])
    output, cache = linear_attention.forward(**inputs, chunk_size=chunk_size)
    d_output, d_final_state = normal(8, *output.shape), normal(9, *cache.final_state.shape)
    gradients = linear_attention.backward(d_output, cache, d_final_state=d_final_state)
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    expected, state = loop(**tensors)
    torch.autograd.backward([expected, state], [torch.tensor(d_output), torch.tensor(d_final_state)])
    assert_close(output, expected.detach().numpy(), 1e-13)
    assert_close(cache.final_state, state.detach().numpy(), 1e-13)
    for name, tensor in tensors.items():
        assert_close(getattr(gradients, name), tensor.grad.numpy(), 1e-13)
    tangents = {name: normal(20 + i, *x.shape) for i, (name, x) in enumerate(inputs.items())}
    both = linear_attention.jvp(cache, outputs=("output", "final_state"), **tangents)
    expected_tangents = torch.autograd.functional.jvp(
        lambda *x: loop(**dict(zip(inputs, x, strict=True))),
        tuple(torch.tensor(x) for x in inputs.values()),
        tuple(torch.tensor(x) for x in tangents.values()),
    )[1]
    for one, other in zip(both, expected_tangents, strict=True):
        assert_close(one, other.numpy(), 1e-13)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_double_backward_is_autograd_of_autograd(rule: str, chunk_size: int | None) -> None:
    inputs = arrays(*RULES[rule])
    ours = lambda **x: chain.apply(linear_attention, **x, chunk_size=chunk_size)  # noqa: E731
    assert_same(ours, lambda **x: loop(**x)[0], inputs, 1e-13)
