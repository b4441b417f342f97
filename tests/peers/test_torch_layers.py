"""What a layer of today is made of, against PyTorch's functions and its autograd."""

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import layer_norm, multi_head, rms_norm, rotary

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

DOUBLE = 1e-12


def gradients_of(function: Any, d_output: Array, *arrays: Array) -> tuple[Array, list[Array]]:
    """The output of a function of tensors, and the gradient of each by autograd."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    output = function(*tensors)
    output.backward(torch.tensor(d_output))
    return output.detach().numpy(), [t.grad.numpy() for t in tensors]


@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)])
def test_normalisations(shape: tuple[int, ...], epsilon: float) -> None:
    x, gain, b, d_output = normal(0, *shape), normal(1, 7), normal(2, 7), normal(3, *shape)
    functional = torch.nn.functional
    for op, arrays, function in (
        (rms_norm, (x, gain), lambda *t: functional.rms_norm(t[0], (7,), t[1], epsilon)),
        (layer_norm, (x, gain, b), lambda *t: functional.layer_norm(t[0], (7,), t[1], t[2], epsilon)),
    ):
        output, cache = op.forward(*arrays, epsilon=epsilon)
        expected, gradients = gradients_of(function, d_output, *arrays)
        assert_close(output, expected, DOUBLE)
        for actual, wanted in zip(op.backward(d_output, cache), gradients, strict=True):
            assert_close(actual, wanted, DOUBLE)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions(interleaved: bool) -> None:
    """PyTorch turns complex numbers, of neighbours or of the two halves."""
    x, positions, d_output = normal(0, 2, 5, 8), normal(1, 5) * 20, normal(2, 2, 5, 8)
    angles = torch.tensor(positions)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    axes = (4, 2) if interleaved else (2, 4)

    def turned(x: Any) -> Any:
        pairs = x.reshape(2, 5, *axes)
        arrows = torch.view_as_complex((pairs if interleaved else pairs.transpose(-1, -2)).contiguous())
        found = torch.view_as_real(arrows * torch.polar(torch.ones_like(angles), angles))
        return (found if interleaved else found.transpose(-1, -2)).reshape(2, 5, 8)

    output, cache = rotary.forward(x, positions, interleaved=interleaved)
    expected, (gradient,) = gradients_of(turned, d_output, x)
    assert_close(output, expected, DOUBLE)
    assert_close(rotary.backward(d_output, cache).x, gradient, DOUBLE)


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


def linear(state: Any, name: str, x: Any) -> Any:
    return torch.nn.functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


LAYOUTS: dict[str, tuple[str, str, str, str]] = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gemma2": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "qwen3": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gpt_oss": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "t5": ("q", "k", "v", "o"),
    "bert": ("self.query", "self.key", "self.value", "output.dense"),
    "bloom": ("query", "key", "value", "dense"),
}
# What each layer does besides, in our words: options of multi_head, and of the layer below.
BESIDES: dict[str, dict[str, Any]] = {
    "llama": {"rotary": {"base": 100.0}},
    "gemma2": {"rotary": {"base": 100.0}, "softcap": 2.0, "scale": 0.3, "window": (2, 0)},
    "qwen3": {"rotary": {"base": 100.0}},
    "gpt_oss": {"rotary": {"base": 100.0}, "window": (2, 0)},
    "t5": {"scale": 1.0},
    "bert": {},
    "bloom": {},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_in_the_layouts_of_hugging_face(layout: str) -> None:
    """The arithmetic of each layer written down with PyTorch's linear maps, on a state_dict with its names."""
    heads, n, d, d_k = 4, 6, 8, 4
    kv_heads = 2 if layout in ("llama", "gemma2", "qwen3", "gpt_oss") else heads
    names, options = LAYOUTS[layout], dict(BESIDES[layout])
    sizes = {
        names[0]: (heads * d_k, d),
        names[1]: (kv_heads * d_k, d),
        names[2]: (kv_heads * d_k, d),
        names[3]: (d, heads * d_k),
    }
    if layout == "bloom":
        sizes = {"query_key_value": (3 * heads * d_k, d), "dense": (d, heads * d_k)}
    state = {f"{name}.weight": normal(i, *size) / np.sqrt(size[1]) for i, (name, size) in enumerate(sizes.items())}
    if layout in ("gpt_oss", "bert", "bloom"):
        state |= {f"{name}.bias": normal(i + 9, size[0]) for i, (name, size) in enumerate(sizes.items())}
    if layout == "qwen3":
        state |= {"q_norm.weight": normal(20, d_k), "k_norm.weight": normal(21, d_k)}
    if layout == "gpt_oss":
        state["sinks"] = normal(22, heads)
    is_causal = layout not in ("t5", "bert")
    added = normal(23, heads, n, n) if layout in ("t5", "bloom") else None

    def layer(x: Any, *arrays: Any) -> Any:
        given = dict(zip(state, arrays, strict=True))
        if layout == "bloom":
            fused = linear(given, "query_key_value", x).view(2, n, heads, 3, d_k)
            q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        else:
            q, k, v = (linear(given, name, x).view(2, n, -1, d_k).transpose(1, 2) for name in names[:3])
        if layout == "qwen3":
            q, k = (
                torch.nn.functional.rms_norm(y, (d_k,), given[f"{g}_norm.weight"], 1e-6)
                for y, g in ((q, "q"), (k, "k"))
            )
        if "rotary" in options:
            angles = torch.arange(n)[:, None] * 100.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
            cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
            q, k = (y * cos + torch.cat([-y[..., d_k // 2 :], y[..., : d_k // 2]], dim=-1) * sin for y in (q, k))
        k, v = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v))
        scores = q @ k.transpose(2, 3) * options.get("scale", d_k**-0.5)
        if "softcap" in options:
            scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
        if added is not None:
            scores = scores + torch.tensor(added)
        if is_causal:
            i, j = torch.arange(n)[:, None], torch.arange(n)
            scores = scores.masked_fill((j > i) | (j < i - options.get("window", (n, 0))[0]), -torch.inf)
        if layout == "gpt_oss":
            scores = torch.cat([scores, given["sinks"].reshape(1, -1, 1, 1).expand(2, -1, n, 1)], dim=-1)
        attended = scores.softmax(dim=-1)[..., :n] @ v
        return linear(given, names[3], attended.transpose(1, 2).reshape(2, n, -1))

    x, d_output = normal(30, 2, n, d), normal(31, 2, n, d)
    beside = {"rotary_emb.inv_freq": np.ones(2)} if "rotary" in options else {}
    parameters = multi_head.Parameters.from_layer(state | beside, layout, num_heads=heads)
    of_kv = {"num_kv_heads": kv_heads, "is_causal": is_causal, "bias": added}
    output, cache = multi_head.forward(x, x, x, parameters, num_heads=heads, **of_kv, **options)
    expected, (d_x, *d_state) = gradients_of(layer, d_output, x, *state.values())
    assert_close(output, expected, DOUBLE)
    gradients = multi_head.backward(d_output, cache)
    assert_close(gradients.query + gradients.key + gradients.value, d_x, DOUBLE)
    # What arrays of gradients are called there is what arrays are: read theirs as a layer, too.
    theirs = multi_head.Parameters.from_layer(dict(zip(state, d_state, strict=True)), layout, num_heads=heads)
    scale = max(np.abs(x).max() for x in d_state)
    for name, gradient in theirs._asdict().items():
        ours = getattr(gradients.parameters, name)
        assert (ours is None) == (gradient is None)
        if gradient is not None:
            assert np.abs(ours - gradient).max() <= DOUBLE * scale, name
