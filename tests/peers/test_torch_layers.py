"""What a layer of today is made of, against PyTorch's functions and its autograd."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close

from attention_np import multi_head

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

DOUBLE = 1e-12


def gradients_of(function: Any, d_output: Array, *arrays: Array) -> tuple[Array, list[Array]]:
    """The output of a function of tensors, and the gradient of each by autograd."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    output = function(*tensors)
    output.backward(torch.tensor(d_output))
    return output.detach().numpy(), [t.grad.numpy() for t in tensors]


def torch_layer(x: Any, w: Any, heads: int, kv_heads: int, options: Any, theirs: Any) -> Any:
    """Grouped heads, normalised, turned, capped, with a sink, of PyTorch's operations alone."""
    n = x.shape[-2]
    q, k, v = (
        (x @ w[f"w_{name}"] + w[f"b_{name}"]).reshape(2, n, count, -1).transpose(1, 2)
        for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
    )
    if "query_gain" in w:
        q, k = (
            torch.nn.functional.rms_norm(y, y.shape[-1:], w[g], 1e-6) for y, g in ((q, "query_gain"), (k, "key_gain"))
        )
    q, k = theirs(q), theirs(k)
    k, v = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v))
    scores = q @ k.transpose(-1, -2) * options.get("scale", q.shape[-1] ** -0.5)
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    i, j = torch.arange(n)[:, None], torch.arange(n)
    left, right = options["window"]
    scores = scores.masked_fill((j < i - left) | (j > i + right), -torch.inf)
    if "sink" in w:
        scores = torch.cat([scores, w["sink"][:, None, None].expand(2, heads, n, 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., :n]
    return (weights @ v).transpose(1, 2).reshape(2, n, -1) @ w["w_output"] + w["b_output"]


@pytest.mark.parametrize("seed", range(12))
def test_random_layers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads, group, d_k, d_v, n, d = (int(rng.integers(1, 4)) for _ in range(6))
    heads, d_k, n, d = kv_heads * group, 2 * d_k, n + 3, d + 3
    shapes = {
        "query": (d, heads * d_k),
        "key": (d, kv_heads * d_k),
        "value": (d, kv_heads * d_v),
        "output": (heads * d_v, 5),
    }
    w = {f"w_{name}": rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    w |= {f"b_{name}": rng.standard_normal(shape[1]) for name, shape in shapes.items()}
    if rng.random() < 0.6:
        w |= {"query_gain": rng.standard_normal(d_k), "key_gain": rng.standard_normal(d_k)}
    if rng.random() < 0.6:
        w["sink"] = rng.standard_normal(heads)
    options: dict[str, Any] = {"window": (int(rng.integers(0, 6)), int(rng.integers(0, 2)))}
    if rng.random() < 0.6:
        options["softcap"] = 1.5
    if rng.random() < 0.5:
        options["scale"] = 0.7
    turned = rng.random() < 0.7
    angles = torch.arange(n)[:, None] * 100.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)

    def theirs(y: Any) -> Any:
        one, other = y.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1) if turned else y

    x, d_output = rng.standard_normal((2, n, d)), rng.standard_normal((2, n, 5))
    rotated = {"rotary": {"base": 100.0}} if turned else {}
    parameters = multi_head.Parameters(**w)
    output, cache = multi_head.forward(
        x, x, x, parameters, num_heads=heads, num_kv_heads=kv_heads, **options, **rotated
    )
    names = list(w)
    expected, (d_x, *d_w) = gradients_of(
        lambda x, *w: torch_layer(x, dict(zip(names, w, strict=True)), heads, kv_heads, options, theirs),
        d_output,
        x,
        *w.values(),
    )
    assert_close(output, expected, DOUBLE)
    gradients = multi_head.backward(d_output, cache)
    assert_close(gradients.query + gradients.key + gradients.value, d_x, DOUBLE)
    scale = max(np.abs(gradient).max() for gradient in d_w)
    for name, gradient in zip(names, d_w, strict=True):
        assert np.abs(getattr(gradients.parameters, name) - gradient).max() <= DOUBLE * scale, name
