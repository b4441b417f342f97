"""Weights of scores, and differential attention, against PyTorch's autograd of their formulas, in float64."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_alike, each, normal

from attention_np import chain, multi_head, weightings
from peers.test_torch_chain import assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

EXAMPLE = Path(__file__).parents[2] / "examples" / "differential.py"
CLOSE = 1e-13


def entmax(scores: Any, alpha: float) -> Any:
    """By bisection for the threshold, and one step of Newton's method through which its gradient goes."""
    with torch.no_grad():
        power, top = alpha - 1, scores.max(dim=-1, keepdim=True).values
        low, high = power * top - 1, power * top
        for _ in range(80):
            middle = (low + high) / 2
            total = (power * scores - middle).clamp(min=0).pow(1 / power).sum(dim=-1, keepdim=True)
            low, high = torch.where(total > 1, middle, low), torch.where(total > 1, high, middle)
        inside = power * scores > middle

    def weights(threshold: Any) -> Any:
        rest = torch.where(inside, power * scores - threshold, torch.ones_like(scores))
        return torch.where(inside, rest.pow(1 / power), torch.zeros_like(scores))

    for _ in range(2):  # one for the first derivative, one more for the second
        slope = torch.where(inside, weights(middle).clamp(min=1e-300).pow(2 - alpha), torch.zeros_like(scores)) / power
        middle = middle + (weights(middle).sum(dim=-1, keepdim=True) - 1) / slope.sum(dim=-1, keepdim=True)
    return weights(middle)


def softpick(scores: Any) -> Any:
    grown = torch.expm1(scores)
    return grown.relu() / grown.abs().sum(dim=-1, keepdim=True)


def stick_breaking(scores: Any) -> Any:
    left = torch.nn.functional.logsigmoid(-scores).flip(-1)
    before = (left.cumsum(dim=-1) - left).flip(-1)
    return torch.exp(torch.nn.functional.logsigmoid(scores) + before)


THEIRS: dict[weightings.Weighting, Callable[[Any], Any]] = {
    weightings.sigmoid(): torch.sigmoid,
    weightings.silu(): torch.nn.functional.silu,
    weightings.sparsemax(): lambda scores: entmax(scores, 2.0),
    weightings.entmax(1.3): lambda scores: entmax(scores, 1.3),
    weightings.entmax(1.5): lambda scores: entmax(scores, 1.5),
    weightings.entmax(2.5): lambda scores: entmax(scores, 2.5),
    weightings.softpick(): softpick,
    weightings.stick_breaking(): stick_breaking,
}


@each("kind", THEIRS)
def test_all_passes_are_those_of_autograd(kind: weightings.Weighting) -> None:
    ours = lambda scores: chain.apply(weightings, scores, weights_by=kind)  # noqa: E731
    assert_same(ours, lambda scores: THEIRS[kind](scores), {"scores": (4, 7)}, 2e-13)


@each("kind", THEIRS)
def test_multi_head_attention_by_any_weights_is_that_of_autograd(kind: weightings.Weighting) -> None:
    n, heads, d = 5, 4, 3
    x, g = normal(0, 2, n, 6), normal(1, 2, n, 6)
    shapes = ((6, heads * d), (6, 2 * d), (6, 2 * d), (heads * d, 6))
    matrices = [normal(2 + k, *shape) / 2 for k, shape in enumerate(shapes)]
    biases = [normal(6 + k, shape[1]) for k, shape in enumerate(shapes)]
    parameters = multi_head.Parameters(*matrices, *biases)
    options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": 2, "weights_by": kind}
    output, cache = multi_head.forward(x, x, x, parameters, mask=np.arange(n) != 2, **options)
    theirs, *w = (torch.tensor(array, requires_grad=True) for array in (x, *matrices, *biases))

    def of_heads(k: int, count: int) -> Any:
        return (theirs @ w[k] + w[4 + k]).reshape(2, n, count, d).transpose(1, 2).repeat_interleave(heads // count, 1)

    query, key, value = (of_heads(k, count) for k, count in enumerate((heads, 2, 2)))
    seen = [0, 1, 3, 4]
    weights = THEIRS[kind](query @ key[:, :, seen].transpose(-1, -2) / d**0.5)
    combined = (weights @ value[:, :, seen]).transpose(1, 2).reshape(2, n, heads * d)
    expected = combined @ w[3] + w[7]
    assert_alike(output, expected.detach().numpy(), CLOSE)
    (expected * torch.tensor(g)).sum().backward()
    gradients = multi_head.backward(g, cache)
    assert_alike(gradients.query + gradients.key + gradients.value, theirs.grad.numpy(), 2e-12)
    for name, found, of_theirs in zip(parameters._fields, gradients.parameters, w, strict=False):
        assert_alike(found, of_theirs.grad.numpy(), 2e-12, name)
    along = normal(20, 2, n, 6)
    found, _ = multi_head.forward(x + 1e-30j * along, x, x, parameters, mask=np.arange(n) != 2, **options)
    assert_alike(multi_head.jvp(cache, query=along), found.imag / 1e-30, 2e-13)


def differential(x: Any, depth: int, heads: int, **p: Any) -> Any:
    """Differential attention by whole arrays: both softmaxes of a head stand on one axis, from which they are taken."""
    b, n, _ = x.shape
    start = 0.8 - 0.6 * np.exp(-0.3 * depth)
    query, key = ((x @ p[name]).reshape(b, n, heads, 2, -1) for name in ("w_query", "w_key"))
    value = (x @ p["w_value"]).reshape(b, n, heads, -1)
    scores = torch.einsum("bihsk,bjhsk->bhsij", query, key) / query.shape[-1] ** 0.5
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    share = torch.exp(p["a"] @ p["b"]) - torch.exp(p["c"] @ p["d"]) + start
    output = torch.einsum("bhij,bjhv->bihv", weights[:, :, 0] - share * weights[:, :, 1], value)
    output = output / (output.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * p["gain"] * (1 - start)
    return output.reshape(b, n, -1) @ p["w_output"]


@each("depth", [0, 5])
def test_differential_attention_is_that_of_autograd(depth: int) -> None:
    example = runpy.run_path(str(EXAMPLE))
    inputs: dict[str, Array] = {"x": example["x"], **example["parameters"]}
    output, cache = chain.forward(lambda **arrays: example["layer"](**arrays, depth=depth), inputs)
    g = normal(5, *output.shape)
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in inputs.items()}
    expected = differential(**theirs, depth=depth, heads=example["HEADS"])
    assert_alike(output, expected.detach().numpy(), CLOSE)
    (expected * torch.tensor(g)).sum().backward()
    for name, gradient in chain.backward(g, cache).items():
        assert_alike(gradient, theirs[name].grad.numpy(), CLOSE, name)
