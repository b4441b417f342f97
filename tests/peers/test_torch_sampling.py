"""Deformable sampling against the function of Hugging Face's DETRs, and pooling and both ops' Hessians by autograd."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import chain, deformable, pooling
from peers.test_torch_chain import assert_same

NEEDED = "the comparison with PyTorch and Hugging Face needs torch and transformers: pip install attention-np[peers]"
torch = pytest.importorskip("torch", reason=NEEDED)
pytest.importorskip("transformers", reason=NEEDED)

CLOSE = 1e-12
SHAPES = ((7, 5), (4, 4), (1, 3))
PIXELS = sum(height * width for height, width in SHAPES)
MODELS = ["deformable_detr", "rt_detr"]


def inputs(n: int = 6, batch: int = 2, heads: int = 3, points: int = 4, d: int = 5) -> dict[str, Array]:
    """Values, locations of which one in three is outside, and weights, with an axis for the heads."""
    return {
        "value": normal(0, batch, heads, PIXELS, d),
        "locations": 1.4 * np.random.default_rng(1).random((batch, heads, n, len(SHAPES), points, 2)) - 0.2,
        "weights": normal(2, batch, heads, n, len(SHAPES), points),
    }


def as_tensors(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}


def theirs(model: str) -> Callable[..., Any]:
    """Their function, of arrays with an axis for the heads behind that of the batch."""
    module = import_module(f"transformers.models.{model}.modeling_{model}")
    sampler = module.MultiScaleDeformableAttention()

    def call(value: Any, locations: Any, weights: Any) -> Any:
        batch, heads, n = weights.shape[:3]
        starts = torch.tensor([0, *np.cumsum([height * width for height, width in SHAPES])[:-1]])
        turned = (x.transpose(1, 2) for x in (value, locations, weights))
        taken, places, shares = turned
        found = sampler(taken, torch.tensor(SHAPES), list(SHAPES), starts, places, shares, 64)
        return found.reshape(batch, n, heads, -1).transpose(1, 2)

    return call


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("where", ["anywhere", "far outside", "on centres of pixels"])
def test_output_and_gradients_are_those_of_the_detrs(model: str, where: str) -> None:
    given = inputs()
    if where == "far outside":
        given["locations"][0, 0] += 1e6
        given["locations"][1, 1, 2] = -3.0
    if where == "on centres of pixels":  # of the level of four by four, where arithmetic on both sides is exact
        given["locations"][..., 1, :, :] = np.random.default_rng(3).integers(-1, 5, (2, 3, 6, 4, 2)) / 4 + 0.125
    tensors = as_tensors(given)
    expected = theirs(model)(**tensors)
    output, cache = deformable.forward(**given, shapes=SHAPES)
    assert_close(output, expected.detach().numpy(), CLOSE)
    d_output = normal(5, *output.shape)
    expected.backward(torch.tensor(d_output))
    gradients = deformable.backward(d_output, cache)
    for name, tensor in tensors.items():
        assert_close(getattr(gradients, name), tensor.grad.numpy(), CLOSE)


def by_hats(value: Any, locations: Any, weights: Any) -> Any:
    """Samples as sums over all pixels, which autograd can differentiate twice."""
    start, output = 0, 0
    for k, (height, width) in enumerate(SHAPES):
        x, y = locations[..., k, :, 0, None], locations[..., k, :, 1, None]
        columns = torch.relu(1 - (x * width - 0.5 - torch.arange(width)).abs())
        rows = torch.relu(1 - (y * height - 0.5 - torch.arange(height)).abs())
        near = (rows[..., :, None] * columns[..., None, :]).flatten(-2)
        samples = torch.einsum("...npk,...ka->...npa", near, value[..., start : start + height * width, :])
        output = output + (weights[..., k, :, None] * samples).sum(-2)
        start += height * width
    return output


def by_unfolding(x: Any, gate: Any, b: Any) -> Any:
    """Windows of five tokens, three apart."""
    held, gates = (part.unfold(-2, 5, 3).transpose(-1, -2) for part in (x, gate))
    return ((gates + b).softmax(-2) * held).sum(-2)


OPS: dict[str, Any] = {
    "deformable": (deformable, by_hats, inputs(), {"shapes": SHAPES}),
    "pooling": (
        pooling,
        by_unfolding,
        {"x": normal(0, 2, 12, 3), "gate": normal(1, 2, 12, 3), "b": normal(2, 5, 3)},
        {"width": 5, "stride": 3},
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_all_passes_are_those_of_autograd(name: str) -> None:
    op, other, given, options = OPS[name]
    assert_same(lambda **x: chain.apply(op, **x, **options), other, given)
