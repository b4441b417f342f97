"""Weights of scores, and differential attention, against PyTorch's autograd of their formulas, in float64."""

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import chain, multi_head, weightings
from peers.test_torch_chain import assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

EXAMPLE = Path(__file__).parents[2] / "examples" / "differential.py"


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
    n, heads, d, seen = 5, 4, 3, [0, 1, 3, 4]
    shapes = {"w_query": (6, heads * d), "w_key": (6, 2 * d), "w_value": (6, 2 * d), "w_output": (heads * d, 6)}
    arrays = {"x": (2, n, 6)} | shapes | {f"b_{name[2:]}": shape[1:] for name, shape in shapes.items()}
    if kind.sums_to_one:
        del arrays["b_key"]  # of which the weights do not depend
    options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": 2, "weights_by": kind, "mask": np.arange(n) != 2}

    def ours(x: Any, **w: Any) -> Any:
        return chain.apply(multi_head, x, x, x, multi_head.Parameters(**w), **options)

    def theirs(x: Any, **w: Any) -> Any:
        def of_heads(name: str, count: int) -> Any:
            y = (x @ w[f"w_{name}"] + w.get(f"b_{name}", 0)).reshape(2, n, count, d).transpose(1, 2)
            return y.repeat_interleave(heads // count, 1)

        query, key, value = of_heads("query", heads), of_heads("key", 2), of_heads("value", 2)
        weights = THEIRS[kind](query @ key[:, :, seen].transpose(-1, -2) / d**0.5)
        return (weights @ value[:, :, seen]).transpose(1, 2).reshape(2, n, heads * d) @ w["w_output"] + w["b_output"]

    assert_same(ours, theirs, arrays)


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
    theirs = partial(differential, depth=depth, heads=example["HEADS"])
    assert_same(partial(example["layer"], depth=depth), theirs, inputs, 2e-13)
