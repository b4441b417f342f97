"""Forward and every gradient against PyTorch's own functions and its autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Array, Shape, assert_close, leaves, normal

from attention_np import dot_product, masks, multi_head, scaled_dot_product_attention
from attention_np.multi_head import Parameters

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
functional = torch.nn.functional

DOUBLE = 1e-12
SOME_HIDDEN = np.arange(20).reshape(4, 5) % 3 > 0  # every query sees some key


def tensor(x: Array) -> Any:
    return torch.tensor(np.ascontiguousarray(x), requires_grad=x.dtype.kind == "f")


def torch_gradients(function: Callable[..., Any], d_output: Array, arrays: dict[str, Array]) -> tuple[Array, Any]:
    """The output of a function of tensors, and the gradient of each of its arrays by autograd."""
    tensors = {name: tensor(x) for name, x in arrays.items()}
    output = function(**tensors)
    output.backward(torch.tensor(d_output))
    return output.detach().numpy(), {name: t.grad.numpy() for name, t in tensors.items()}


def assert_agrees(
    function: Callable[..., Any], arrays: dict[str, Array], found: Array, gradients: Any, d_output: Array, digits: float
) -> None:
    """That the output and the gradients are those of a function of tensors."""
    expected, expected_gradients = torch_gradients(function, d_output, arrays)
    assert_close(found, expected, digits)
    for name, gradient in expected_gradients.items():
        assert getattr(gradients, name).dtype == gradient.dtype
        assert_close(getattr(gradients, name).reshape(gradient.shape), gradient, digits)


def arrays_of(n: int = 4, m: int = 5, d_v: int = 3, heads: int = 2, key_heads: int = 2, dtype: Any = float) -> Any:
    shapes = {"query": (2, heads, n, 3), "key": (2, key_heads, m, 3), "value": (2, key_heads, m, d_v)}
    return {name: normal(i, *shape).astype(dtype) for i, (name, shape) in enumerate(shapes.items())}


SDPA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "values of another width": ({"d_v": 7}, {}),
    "more keys than queries": ({"n": 2, "m": 9}, {}),
    "more queries than keys": ({"n": 9, "m": 2}, {}),
    "mask": ({}, {"mask": SOME_HIDDEN}),
    "mask of a batch": ({}, {"mask": masks.padding([5, 2], 5, heads=True)}),
    "causal": ({}, {"is_causal": True}),
    "causal, more keys": ({"n": 3, "m": 6}, {"is_causal": True}),
    "causal, more queries": ({"n": 6, "m": 3}, {"is_causal": True}),
    "scale": ({}, {"scale": 0.3}),
    "mask and scale": ({}, {"mask": SOME_HIDDEN, "scale": -1.5}),
}


@pytest.mark.parametrize(("sizes", "options"), SDPA.values(), ids=SDPA)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, DOUBLE), (np.float32, 64 * np.finfo(np.float32).eps)])
def test_scaled_dot_product_attention(sizes: Any, options: dict[str, Any], dtype: Any, digits: float) -> None:
    arrays = arrays_of(**sizes, dtype=dtype)
    output, cache = dot_product.forward(**arrays, **options)
    d_output = normal(9, *output.shape).astype(dtype)
    theirs = {("attn_mask" if name == "mask" else name): x for name, x in options.items()}
    as_theirs = theirs | ({"attn_mask": torch.tensor(theirs["attn_mask"])} if "mask" in options else {})

    def attention(**tensors: Any) -> Any:
        return functional.scaled_dot_product_attention(**tensors, **as_theirs)

    assert_agrees(attention, arrays, output, dot_product.backward(d_output, cache), d_output, digits)
    assert_close(scaled_dot_product_attention(**arrays, **theirs), output, digits)


@pytest.mark.parametrize("hidden", [False, True], ids=["finite", "minus infinity"])
@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (2, 1, 4, 5), (2, 2, 4, 5)], ids=str)
def test_a_float_mask_and_its_gradient(shape: Shape, hidden: bool) -> None:
    bias = normal(5, *shape)
    arrays = {**arrays_of(), "bias": np.where(SOME_HIDDEN[: shape[-2]], bias, -np.inf) if hidden else bias}
    output, cache = dot_product.forward(**arrays)
    d_output = normal(9, *output.shape)

    def attention(query: Any, key: Any, value: Any, bias: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)

    assert_agrees(attention, arrays, output, dot_product.backward(d_output, cache), d_output, DOUBLE)
    assert_close(scaled_dot_product_attention(*list(arrays.values())), output, DOUBLE)


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_grouped_queries(key_heads: int) -> None:
    arrays, d_output = arrays_of(heads=6, key_heads=key_heads), normal(9, 2, 6, 4, 3)

    def attention(**tensors: Any) -> Any:
        return functional.scaled_dot_product_attention(**tensors, is_causal=True, enable_gqa=True)

    # Broadcasting over an axis for the group gives the gradients, too.
    query = arrays["query"].reshape(2, key_heads, 6 // key_heads, 4, 3)
    output, cache = dot_product.forward(query, arrays["key"][:, :, None], arrays["value"][:, :, None], is_causal=True)
    gradients = dot_product.backward(d_output.reshape(output.shape), cache)
    assert_agrees(attention, arrays, output.reshape(d_output.shape), gradients, d_output, DOUBLE)
    ours = scaled_dot_product_attention(**arrays, is_causal=True, enable_gqa=True)
    assert_close(ours, output.reshape(d_output.shape), DOUBLE)


def torch_module(d_model: int, num_heads: int, dtype: Any = float, **options: Any) -> Any:
    """A module of random weights and, unlike after its own initialisation, random biases."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(d_model, num_heads, batch_first=True, **options).to(
        torch.float64 if dtype is float else torch.float32
    )
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.normal_()
    return module


def parameters_of(module: Any) -> Parameters:
    named = {name: p.detach().numpy() for name, p in module.named_parameters()}
    w_out, b_out = named["out_proj.weight"], named.get("out_proj.bias")
    if "in_proj_weight" in named:
        return Parameters.from_in_proj(named["in_proj_weight"], w_out, named.get("in_proj_bias"), b_out)
    biases = np.split(named["in_proj_bias"], 3) if "in_proj_bias" in named else [None] * 3
    weights = (named[f"{x}_proj_weight"].T for x in "qkv")
    return Parameters(*weights, w_out.T, *biases, b_out)


def assert_agrees_with_the_module(
    module: Any, arrays: dict[str, Array], ours: dict[str, Any], theirs: dict[str, Any], digits: float = DOUBLE
) -> None:
    """Output, weights of every head, and the gradients of inputs and parameters."""
    parameters, num_heads = parameters_of(module), module.num_heads
    output, cache = multi_head.forward(**arrays, parameters=parameters, num_heads=num_heads, **ours)
    d_output = normal(9, *output.shape).astype(output.dtype)
    gradients = multi_head.backward(d_output, cache)

    tensors = {name: tensor(x) for name, x in arrays.items()}
    expected, weights = module(**tensors, **theirs, need_weights=True, average_attn_weights=False)
    module.zero_grad()
    expected.backward(torch.tensor(d_output))

    assert_close(output, expected.detach().numpy(), digits)
    assert_close(cache.weights, weights.detach().numpy(), digits)
    for name, t in tensors.items():
        assert_close(getattr(gradients, name), t.grad.numpy(), digits)

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.grad)
    scale = max(np.abs(x).max() for _, x in leaves(gradients.parameters))
    expected_parameters = dict(leaves(parameters_of(module)))
    actual_parameters = dict(leaves(gradients.parameters))
    assert set(actual_parameters) == set(expected_parameters)
    for name, gradient in expected_parameters.items():
        if name == "b_key":  # zero, but for rounding
            assert np.abs(actual_parameters[name] - gradient).max() <= digits * scale
        else:
            assert_close(actual_parameters[name], gradient, digits)


LENGTHS = np.array([5, 2])
HIDDEN = np.arange(5) >= LENGTHS[:, None]  # as in key_padding_mask: True where a key is padding

MHA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "key_padding_mask": (
        {"mask": masks.as_mask(HIDDEN, true_means="hidden")[:, None, None, :]},
        {"key_padding_mask": HIDDEN},
    ),
    "boolean attn_mask": ({"mask": masks.as_mask(~SOME_HIDDEN, true_means="hidden")}, {"attn_mask": ~SOME_HIDDEN}),
    "float attn_mask": ({"bias": normal(5, 4, 5)}, {"attn_mask": normal(5, 4, 5)}),
    "both masks": (
        {"mask": masks.as_mask(HIDDEN, true_means="hidden")[:, None, None, :] & masks.causal(4, 5)},
        {"key_padding_mask": HIDDEN, "attn_mask": ~masks.causal(4, 5)},
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), MHA.values(), ids=MHA)
@pytest.mark.parametrize("num_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 3, "vdim": 5}, {"kdim": 3, "vdim": 5, "bias": False}], ids=str
)
def test_multi_head_attention_with_its_weights_loaded(
    options: dict[str, Any], num_heads: int, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    module = torch_module(8, num_heads, **options)
    key, value = normal(1, 2, 5, options.get("kdim", 8)), normal(2, 2, 5, options.get("vdim", 8))
    arrays = {"query": normal(0, 2, 4, 8), "key": key, "value": value}
    assert_agrees_with_the_module(module, arrays, ours, {k: torch.tensor(v) for k, v in theirs.items()})


@pytest.mark.parametrize("batch", [(), (2,)], ids=["alone", "in a batch"])
def test_causal_self_attention_of_the_module(batch: Shape) -> None:
    x = normal(0, *batch, 6, 8)
    theirs = {"attn_mask": torch.tensor(~masks.causal(6)), "is_causal": True}
    module = torch_module(8, 2)
    assert_agrees_with_the_module(module, dict.fromkeys(("query", "key", "value"), x), {"is_causal": True}, theirs)


def test_the_module_in_single_precision() -> None:
    module = torch_module(8, 2, np.float32)
    arrays = {name: normal(i, 2, 5, 8).astype(np.float32) for i, name in enumerate(("query", "key", "value"))}
    assert_agrees_with_the_module(module, arrays, {}, {}, 64 * np.finfo(np.float32).eps)
