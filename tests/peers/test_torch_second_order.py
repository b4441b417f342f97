"""Double backward against PyTorch's autograd of its own gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, Array, assert_close, normal

from attention_np import additive, blockwise, dot_product, multi_head, softmax
from attention_np.multi_head import Parameters

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
functional = torch.nn.functional

DOUBLE = 1e-11
EMPTY_ROW = SOME_HIDDEN  # (4, 5): the second query attends to nothing


def visible(scores: Any, mask: Array | None) -> Any:
    return scores if mask is None else scores.masked_fill(~torch.tensor(mask), -torch.inf)


def weights_of(scores: Any, mask: Array | None = None) -> Any:
    """Softmax whose rows may be empty, and differentiable twice."""
    weights = torch.softmax(visible(scores, mask), -1)
    return weights if mask is None else torch.where(torch.tensor(mask.any(-1, keepdims=True)), weights, 0.0)


def assert_twice(
    op: Any, function: Callable[..., Any], arrays: dict[str, Array], along: list[str], **options: Any
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

    assert_twice(op, function, arrays, along, **options)


@pytest.mark.parametrize("along", subsets("query", "key", "value", "w_query", "w_key", "w_score", "b"), ids=" ".join)
def test_additive(along: list[str]) -> None:
    shapes = {"query": (2, 4, 3), "key": (2, 5, 2), "value": (2, 5, 6), "w_query": (3, 7), "w_key": (2, 7)}
    shapes |= {"w_score": (7,), "b": (7,)}
    arrays = {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}

    def function(query: Any, key: Any, value: Any, w_query: Any, w_key: Any, w_score: Any, b: Any) -> Any:
        hidden = torch.tanh((query @ w_query)[..., :, None, :] + (key @ w_key)[..., None, :, :] + b)
        return weights_of(hidden @ w_score, EMPTY_ROW) @ value

    assert_twice(additive, function, arrays, along, mask=EMPTY_ROW)


def test_multi_head() -> None:
    """Of all parameters at once, beside the module's own mathematics in PyTorch's operations."""
    x, y, w = normal(0, 2, 4, 8), normal(1, 2, 5, 8), Parameters.random(8, rng=2)
    output, cache = multi_head.forward(x, y, y, w, num_heads=2, is_causal=True)
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
            return (array @ p[f"w_{name}"] + p.get(f"b_{name}", 0)).unflatten(-1, (2, -1)).transpose(-2, -3)

        q, k, v = heads(query, "query"), heads(key, "key"), heads(value, "value")
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
