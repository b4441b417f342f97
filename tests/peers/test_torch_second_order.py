"""Every pass of each op against PyTorch's autograd, and autograd of its gradients for the double backward."""

from typing import Any

import numpy as np
import pytest
from helpers import SOME_HIDDEN, Array

from attention_np import additive, blockwise, chain, dot_product, multi_head, rotary, softmax
from attention_np.multi_head import Parameters
from peers.test_torch_chain import assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

BLOCKS: dict[Any, dict[str, Any]] = {dot_product: {}, blockwise: {"block_size": 2}}  # of which there are several
EMPTY_ROW = SOME_HIDDEN  # (4, 5): the second query attends to nothing
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask with an empty row": {"mask": EMPTY_ROW},
    "softcap": {"softcap": 0.7},
    "dropout": {"dropout_p": 0.4, "rng": 3},
}


def visible(scores: Any, mask: Array | None) -> Any:
    return scores if mask is None else scores.masked_fill(~torch.tensor(mask), -torch.inf)


def weights_of(scores: Any, mask: Array | None = None) -> Any:
    """Softmax whose rows may be empty, and differentiable twice."""
    weights = torch.softmax(visible(scores, mask), -1)
    return weights if mask is None else torch.where(torch.tensor(mask.any(-1, keepdims=True)), weights, 0.0)


@pytest.mark.parametrize("mask", [None, EMPTY_ROW], ids=["all", "mask"])
def test_softmax(mask: Array | None) -> None:
    of_mask = lambda scores: weights_of(scores, mask)  # noqa: E731
    assert_same(lambda scores: chain.apply(softmax, scores, mask=mask), of_mask, {"scores": (2, 4, 5)})


@pytest.mark.parametrize("op", [dot_product, blockwise])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_dot_product(op: Any, options: dict[str, Any]) -> None:
    shapes = {"query": (2, 4, 3), "key": (2, 5, 3), "value": (5, 6), "bias": (4, 5), "sink": (2,)}
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    draws = dot_product.forward(**zeros, **options)[1].dropout  # type: ignore[arg-type]
    cap = options.get("softcap")

    def theirs(query: Any, key: Any, value: Any, bias: Any, sink: Any) -> Any:
        scores = query @ key.mT / np.sqrt(3)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        logits = torch.cat([visible(scores + bias, options.get("mask")), sink[:, None, None].expand(2, 4, 1)], -1)
        weights = torch.softmax(logits, -1)[..., :-1]
        return (weights if draws is None else weights * torch.tensor(draws)) @ value

    assert_same(lambda **x: chain.apply(op, **x, **options, **BLOCKS[op]), theirs, shapes)


@pytest.mark.parametrize("of_b", [{"b": (7,)}, {}], ids=["with b", "without b"])
def test_additive(of_b: dict[str, tuple[int, ...]]) -> None:
    def theirs(query: Any, key: Any, value: Any, w_query: Any, w_key: Any, w_score: Any, b: Any = 0) -> Any:
        hidden = torch.tanh((query @ w_query)[..., :, None, :] + (key @ w_key)[..., None, :, :] + b)
        return weights_of(hidden @ w_score, EMPTY_ROW) @ value

    shapes = {"query": (2, 4, 3), "key": (2, 5, 2), "value": (2, 5, 6), "w_query": (3, 7), "w_key": (2, 7)}
    shapes |= {"w_score": (7,)} | of_b
    assert_same(lambda **x: chain.apply(additive, **x, mask=EMPTY_ROW), theirs, shapes)


def turned(x: Any) -> Any:
    """By the positions 0, 1 and so on, the second half of the features beside the first."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


def test_rotary() -> None:
    assert_same(lambda x: chain.apply(rotary, x), turned, {"x": (2, 4, 6)})


@pytest.mark.parametrize("of_today", [False, True], ids=["plain", "grouped heads, norms, rotary positions"])
def test_multi_head(of_today: bool) -> None:
    """Of all parameters at once: in one of the two, two heads of queries have one of keys and values."""
    options: dict[str, Any] = {"num_kv_heads": 1, "rotary": {}, "qk_norm": "rms"} if of_today else {}
    few = 4 if of_today else 8
    shapes = {"x": (2, 4, 8), "y": (2, 5, 8), "z": (2, 5, 8), "w_query": (8, 8), "w_key": (8, few), "w_value": (8, few)}
    shapes |= {"w_output": (8, 8), "b_query": (8,), "b_value": (few,), "b_output": (8,)}
    if of_today:  # without a norm softmax does not see a bias of the keys
        shapes |= {"b_key": (4,), "query_gain": (4,), "key_gain": (4,)}

    def ours(x: Any, y: Any, z: Any, **parameters: Any) -> Any:
        return chain.apply(multi_head, x, y, z, Parameters(**parameters), num_heads=2, is_causal=True, **options)

    def theirs(x: Any, y: Any, z: Any, **p: Any) -> Any:
        def heads(array: Any, name: str) -> Any:
            x = (array @ p[f"w_{name}"] + p.get(f"b_{name}", 0)).unflatten(-1, (-1, 4)).transpose(-2, -3)
            gain = p.get(f"{name}_gain")
            return x if gain is None else turned(torch.nn.functional.rms_norm(x, (4,), gain, 1e-6))

        q, k, v = heads(x, "query"), heads(y, "key"), heads(z, "value")  # one head of keys serves both
        weights = weights_of(q @ k.mT / 2, np.tril(np.ones((4, 5), bool)))
        return (weights @ v).transpose(-2, -3).flatten(-2) @ p["w_output"] + p["b_output"]

    assert_same(ours, theirs, shapes)
