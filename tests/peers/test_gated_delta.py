"""The layer of `examples/gated_delta.py` against that of Qwen3-Next in transformers, gradients included, in float64."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import chain, linear_attention

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
public = pytest.importorskip(
    "transformers.models.qwen3_next.modeling_qwen3_next",
    reason="Qwen3-Next is in transformers: pip install transformers",
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "gated_delta.py"
CLOSE = 1e-12


class InDouble:
    """PyTorch for a module that casts what it computes to single precision."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "torch", InDouble())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def as_ours(theirs: Iterator[tuple[str, Any]], example: dict[str, Any]) -> dict[str, Array]:
    """The arrays of the layer, or their gradients: the rows of its projections are sorted by heads of keys."""
    x = {name: array.detach().numpy() for name, array in theirs}
    heads, group, d, d_k = (*example["GROUPS"], example["D"], example["D_K"])
    ends = np.cumsum([d_k, d_k, group * example["D_V"]])
    query, key, value, gate = np.split(x["in_proj_qkvz.weight"].reshape(heads, -1, d), ends, axis=1)
    beta, step = np.split(x["in_proj_ba.weight"].reshape(heads, -1, d), 2, axis=1)

    def columns(*rows: Array) -> Array:
        return np.concatenate([of_heads.reshape(-1, d) for of_heads in rows]).T

    return {
        "w_mixed": columns(query, key, value),
        "taps": x["conv1d.weight"][:, 0].T,
        "w_gate": columns(gate),
        "w_step": columns(step),
        "b_step": x["dt_bias"],
        "log_rate": x["A_log"],
        "w_beta": columns(beta),
        "gain": x["norm.weight"],
        "w_output": x["out_proj.weight"].T,
    }


def test_the_layer_is_that_of_qwen3_next_gradients_included(example: dict[str, Any]) -> None:
    config = public.Qwen3NextConfig(
        hidden_size=example["D"],
        num_hidden_layers=1,
        linear_num_key_heads=example["KEY_HEADS"],
        linear_num_value_heads=example["VALUE_HEADS"],
        linear_key_head_dim=example["D_K"],
        linear_value_head_dim=example["D_V"],
        linear_conv_kernel_dim=example["TAPS"],
    )
    layer = public.Qwen3NextGatedDeltaNet(config, layer_idx=0).double()
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, d_y = normal(0, 2, 70, example["D"]), normal(1, 2, 70, example["D"])  # more than a chunk of theirs
    given = torch.tensor(x, requires_grad=True)
    expected = layer(given)
    expected.backward(torch.tensor(d_y))

    parameters = as_ours(layer.named_parameters(), example)
    output, cache = chain.forward(lambda **arrays: example["layer"](**arrays)[0], {"x": x, **parameters})
    assert_close(output, expected.detach().numpy(), CLOSE)
    gradients = chain.backward(d_y, cache)
    assert_close(gradients["x"], given.grad.numpy(), CLOSE)
    wanted = as_ours(((name, p.grad) for name, p in layer.named_parameters()), example)
    assert wanted.keys() | {"x"} == gradients.keys()
    for name, gradient in wanted.items():
        assert_close(gradients[name], gradient, CLOSE)


def test_the_recurrence_is_theirs_with_states_and_heads_in_groups() -> None:
    """Theirs has heads behind the tokens, and each head of keys serves two of values."""
    n, shapes = 7, {"query": (2, 1, 3), "key": (2, 1, 3), "value": (2, 2, 5), "log_decay": (2, 2, 1), "beta": (2, 2)}
    x = {name: normal(i, 2, n, *shape) / 2 for i, (name, shape) in enumerate(shapes.items())}
    x["log_decay"] = -np.abs(x["log_decay"])
    state = normal(9, 2, 2, 2, 3, 5)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in (x | {"state": state}).items()}
    theirs = {name: tensor.flatten(2, 3) for name, tensor in tensors.items() if name != "state"}
    theirs["g"] = theirs.pop("log_decay")[..., 0]
    of_state = {"initial_state": tensors["state"].flatten(1, 2), "output_final_state": True}
    expected = public.torch_recurrent_gated_delta_rule(**theirs, **of_state)

    ours = {name: np.moveaxis(array, 1, 3) for name, array in x.items()}  # (batch, heads, group, n, ...)
    output, cache = linear_attention.forward(**ours, initial_state=state, chunk_size=4)
    assert_close(np.moveaxis(output, 3, 1).reshape(expected[0].shape), expected[0].detach().numpy(), CLOSE)
    assert_close(cache.final_state.reshape(expected[1].shape), expected[1].detach().numpy(), CLOSE)
    d_outputs = [torch.tensor(normal(10 + i, *of.shape)) for i, of in enumerate(expected)]
    torch.autograd.backward(expected, d_outputs)
    d_output = np.moveaxis(d_outputs[0].numpy().reshape(2, n, 2, 2, 5), 1, 3)
    found = linear_attention.backward(d_output, cache, d_final_state=d_outputs[1].numpy().reshape(state.shape))
    for name in x:
        assert_close(np.moveaxis(getattr(found, name), 3, 1), tensors[name].grad.numpy(), CLOSE)
    assert_close(found.initial_state, tensors["state"].grad.numpy(), CLOSE)
