"""Double backward against PyTorch's autograd of its own gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, Array, assert_close, normal

from attention_np import additive, blockwise, dot_product, layer_norm, multi_head, rms_norm, rotary, softmax
from attention_np.multi_head import Parameters

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
functional = torch.nn.functional

DOUBLE = 1e-11
BLOCKS: dict[Any, dict[str, Any]] = {dot_product: {}, blockwise: {"block_size": 2}}  # of which there are several
EMPTY_ROW = SOME_HIDDEN  # (4, 5): the second query attends to nothing


def visible(scores: Any, mask: Array | None) -> Any:
    return scores if mask is None else scores.masked_fill(~torch.tensor(mask), -torch.inf)


def weights_of(scores: Any, mask: Array | None = None) -> Any:
    """Softmax whose rows may be empty, and differentiable twice."""
    weights = torch.softmax(visible(scores, mask), -1)
    return weights if mask is None else torch.where(torch.tensor(mask.any(-1, keepdims=True)), weights, 0.0)


def assert_twice(
    op: Any,
    function: Callable[..., Any],
    arrays: dict[str, Array],
    along: list[str],
    **options: Any,
) -> None:
    """That the gradients of <v, gradients> are those of PyTorch, v being zero but for the arrays `along`."""
    output, cache = op.forward(**arrays, **options)
    d_output = normal(7, *output.shape)
    v = {name: normal(8 + i, *arrays[name].shape) for i, name in enumerate(along)}
    kind = op.Gradients
    found = op.double_backward(kind(**{name: v.get(name) for name in kind._fields}), d_output, cache)

    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
    d = torch.tensor(d_output, requires_grad=True)
    gradients = torch.autograd.grad((function(**tensors) * d).sum(), list(tensors.values()), create_graph=True)
    product = sum((g * torch.tensor(v[name])).sum() for name, g in zip(arrays, gradients, strict=True) if name in v)
    expected = torch.autograd.grad(product, [d, *tensors.values()], allow_unused=True, materialize_grads=True)
    assert_close(found[0], expected[0].detach().numpy(), DOUBLE)
    for name, x in zip(arrays, expected[1:], strict=True):
        largest = max(np.abs(y.detach().numpy()).max() for y in expected[1:])
        assert np.abs(getattr(found[1], name) - x.detach().numpy()).max() <= DOUBLE * largest, name


def subsets(*names: str) -> list[list[str]]:
    return [list(names), *([name] for name in names)]


@pytest.mark.parametrize("mask", [None, EMPTY_ROW], ids=["all", "mask"])
def test_softmax(mask: Array | None) -> None:
    def function(scores: Any) -> Any:
        return weights_of(scores, mask)

    assert_twice(softmax, function, {"scores": 3 * normal(0, 2, 4, 5)}, ["scores"], mask=mask)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask with an empty row": {"mask": EMPTY_ROW},
    "softcap": {"softcap": 0.7},
    "dropout": {"dropout_p": 0.4, "rng": 3},
}


@pytest.mark.parametrize("op", [dot_product, blockwise])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("along", subsets("query", "key", "value", "bias", "sink"), ids=" ".join)
def test_dot_product(op: Any, options: dict[str, Any], along: list[str]) -> None:
    arrays = {"query": normal(0, 2, 4, 3), "key": normal(1, 2, 5, 3), "value": normal(2, 5, 6)}
    arrays |= {"bias": normal(3, 4, 5), "sink": normal(4, 2)}
    draws = dot_product.forward(**arrays, **options)[1].dropout
    cap = options.get("softcap")

    def function(query: Any, key: Any, value: Any, bias: Any, sink: Any) -> Any:
        scores = query @ key.mT / np.sqrt(3)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        logits = torch.cat([visible(scores + bias, options.get("mask")), sink[:, None, None].expand(2, 4, 1)], -1)
        weights = torch.softmax(logits, -1)[..., :-1]
        return (weights if draws is None else weights * torch.tensor(draws)) @ value

    assert_twice(op, function, arrays, along, **options, **BLOCKS[op])


@pytest.mark.parametrize("along", subsets("query", "key", "value", "w_query", "w_key", "w_score", "b"), ids=" ".join)
def test_additive(along: list[str]) -> None:
    shapes = {"query": (2, 4, 3), "key": (2, 5, 2), "value": (2, 5, 6), "w_query": (3, 7), "w_key": (2, 7)}
    shapes |= {"w_score": (7,), "b": (7,)}
    arrays = {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}

    def function(query: Any, key: Any, value: Any, w_query: Any, w_key: Any, w_score: Any, b: Any) -> Any:
        hidden = torch.tanh((query @ w_query)[..., :, None, :] + (key @ w_key)[..., None, :, :] + b)
        return weights_of(hidden @ w_score, EMPTY_ROW) @ value

    assert_twice(additive, function, arrays, along, mask=EMPTY_ROW)


def normalised(x: Any, epsilon: float) -> Any:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon)


@pytest.mark.parametrize("along", subsets("x", "gain"), ids=" ".join)
def test_rms_norm(along: list[str]) -> None:
    arrays = {"x": normal(0, 2, 4, 6), "gain": normal(1, 6)}
    assert_twice(rms_norm, lambda x, gain: normalised(x, 1e-6) * gain, arrays, along)


@pytest.mark.parametrize("along", subsets("x", "gain", "b"), ids=" ".join)
def test_layer_norm(along: list[str]) -> None:
    arrays = {"x": normal(0, 2, 4, 6), "gain": normal(1, 6), "b": normal(2, 6)}
    assert_twice(layer_norm, lambda x, gain, b: functional.layer_norm(x, (6,), gain, b), arrays, along)


def turned(x: Any) -> Any:
    """By the positions 0, 1 and so on, the second half of the features beside the first."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


def test_rotary() -> None:
    assert_twice(rotary, turned, {"x": normal(0, 2, 4, 6)}, ["x"])


@pytest.mark.parametrize("of_today", [False, True], ids=["plain", "grouped heads, norms, rotary positions"])
def test_multi_head(of_today: bool) -> None:
    """Of all parameters at once, beside the module's own mathematics in PyTorch's operations."""
    x, y, w = normal(0, 2, 4, 8), normal(1, 2, 5, 8), Parameters.random(8, rng=2)
    options: dict[str, Any] = {}
    if of_today:  # 2 heads of queries, one of keys and values
        few = {"w_key": w.w_key[:, :4], "w_value": w.w_value[:, :4], "b_key": normal(50, 4), "b_value": normal(51, 4)}
        w = w._replace(**few, query_gain=normal(52, 4), key_gain=normal(53, 4))
        options = {"num_kv_heads": 1, "rotary": {}, "qk_norm": "rms"}
    output, cache = multi_head.forward(x, y, y, w, num_heads=2, is_causal=True, **options)
    d_output = normal(3, *output.shape)
    given = {name: value for name, value in w._asdict().items() if value is not None}
    of_w = {name: normal(4 + i, *value.shape) for i, (name, value) in enumerate(given.items())}
    of_x, of_y, of_z = normal(30, *x.shape), normal(31, *y.shape), normal(32, *y.shape)
    along = multi_head.Gradients(query=of_x, key=of_y, value=of_z, parameters=w._replace(**of_w), bias=None)
    d_d_output, found = multi_head.double_backward(along, d_output, cache)

    tensors = [torch.tensor(value, requires_grad=True) for value in (x, y, y, *given.values())]
    d = torch.tensor(d_output, requires_grad=True)

    def function(query: Any, key: Any, value: Any, *parameters: Any) -> Any:
        p = dict(zip(given, parameters, strict=True))

        def heads(array: Any, name: str) -> Any:
            x = (array @ p[f"w_{name}"] + p.get(f"b_{name}", 0)).unflatten(-1, (-1, 4)).transpose(-2, -3)
            return turned(normalised(x, 1e-6) * p[f"{name}_gain"]) if f"{name}_gain" in p else x

        q, k, v = heads(query, "query"), heads(key, "key"), heads(value, "value")  # one head of keys serves both
        weights = weights_of(q @ k.mT / np.sqrt(q.shape[-1]), np.tril(np.ones((4, 5), bool)))
        return (weights @ v).transpose(-2, -3).flatten(-2) @ p["w_output"] + p.get("b_output", 0)

    gradients = torch.autograd.grad((function(*tensors) * d).sum(), tensors, create_graph=True)
    vectors = [torch.tensor(u) for u in (of_x, of_y, of_z, *of_w.values())]
    product = sum((g * u).sum() for g, u in zip(gradients, vectors, strict=True))
    expected = torch.autograd.grad(product, [d, *tensors], allow_unused=True, materialize_grads=True)
    ours = [found.query, found.key, found.value, *(getattr(found.parameters, name) for name in given)]
    largest = max(np.abs(u.detach().numpy()).max() for u in expected)
    for one, other in zip([d_d_output, *ours], expected, strict=True):
        assert np.abs(one - other.detach().numpy()).max() <= DOUBLE * largest
