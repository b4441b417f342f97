"""PyTorch and JAX give the known answers, within the bounds, wherever they follow the conventions."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array

from attention_np import known_answers
from attention_np.known_answers.formats import DTYPES

from .pipeline import scores_of

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")
functional = torch.nn.functional

NON_FINITE = ("hidden non-finite", "infinite scores")  # 0 * NaN is NaN there
HALF = ("float16", "bfloat16")


def to_torch(x: Array) -> Any:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def from_torch(x: Any) -> Array:
    return (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy()


def differentiated(forward: Callable[..., Any]) -> Callable[[dict[str, Array], dict[str, Any]], dict[str, Array]]:
    """The function that verify takes, by autograd, of ``forward(tensors, mask, options)`` with one or two results."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if "weights_by" in options:
            raise NotImplementedError  # they take the softmax
        tensors = {name: to_torch(x) for name, x in inputs.items()}
        d_output, mask = tensors.pop("d_output"), tensors.pop("mask", None)
        for name, x in tensors.items():
            x.requires_grad_("positions" not in name)
        output = forward(tensors, mask, options)
        output.to(d_output.dtype).backward(d_output)
        gradients = {f"d_{name}": from_torch(x.grad) for name, x in tensors.items() if x.grad is not None}
        return {"output": from_torch(output), **gradients}

    return function


def mask_and_bias(tensors: dict[str, Any], mask: Any, options: dict[str, Any], n: int, m: int) -> Any:
    """What PyTorch's function takes for them together."""
    bias = tensors.get("bias")
    if options.get("is_causal") and (mask is not None or bias is not None):
        causal = torch.ones(n, m, dtype=torch.bool).tril()
        mask = causal if mask is None else mask & causal
    if bias is None:
        return mask
    return bias if mask is None else torch.where(mask, bias, -torch.inf)


def torch_attention(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    return scaled_dot_product(query, key, value, tensors, mask, options)


def pipeline(query: Any, key: Any, value: Any, tensors: Any, mask: Any, options: dict[str, Any]) -> Any:
    """In float32 at least."""
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    query, key, value = (x.to(wide) for x in (query, key, value))
    return torch.softmax(scores_of(query, key, tensors, mask, options), dim=-1)[..., : key.shape[-2]] @ value


OURS_ALONE = {
    "softcap",
    "weights_by",
    "window",
    "sink",
    "slopes",
    "table",
    "embedding",
    "log_f",
    "index",
}  # PyTorch's function has none


def is_ours_alone(arrays: Any, options: dict[str, Any]) -> bool:
    """Whether a case asks for what functions of other libraries do not take: a scale of theirs is a number."""
    return bool(OURS_ALONE & (arrays.keys() | options.keys())) or "scale" in arrays


def scaled_dot_product(query: Any, key: Any, value: Any, tensors: Any, mask: Any, options: dict[str, Any]) -> Any:
    if is_ours_alone(tensors, options):
        return pipeline(query, key, value, tensors, mask, options)
    n, m = query.shape[-2], key.shape[-2]
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    padded = (1,) * max(0, 2 - len(leading))  # the fused kernels take four axes
    four = [x.expand(*leading, *x.shape[-2:]).reshape(*padded, *leading, *x.shape[-2:]) for x in (query, key, value)]
    both = mask_and_bias(tensors, mask, options, n, m)
    if both is not None:
        both = torch.atleast_2d(both).expand(*leading, n, m).reshape(*padded, *leading, n, m)
    is_causal = options.get("is_causal", False) and both is None
    output = functional.scaled_dot_product_attention(
        *four, attn_mask=both, is_causal=is_causal, scale=options.get("scale")
    )
    return output.reshape(*leading, n, value.shape[-1])


@pytest.mark.parametrize("backend", ["default", "MATH"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_attention_of_pytorch_gives_the_answers(whole: Path, dtype: str, backend: str) -> None:
    chosen = nullcontext()
    if backend != "default":
        chosen = torch.nn.attention.sdpa_kernel([getattr(torch.nn.attention.SDPBackend, backend)])
    with chosen:
        function, fused = differentiated(torch_attention), backend == "MATH"
        report = known_answers.verify(function, whole, dtypes=[dtype], skip=NON_FINITE, fused=fused)
    report.raise_if_failed()
    assert len({x.case for x in report}) >= 48


def torch_softmax(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
    scores = tensors["scores"] if mask is None else tensors["scores"].masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=options.get("axis", -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_softmax_of_pytorch_gives_the_answers(whole: Path, dtype: str) -> None:
    skip = [*NON_FINITE, "empty row"]
    function = differentiated(torch_softmax)
    known_answers.verify(function, whole, op="softmax", dtypes=[dtype], skip=skip).raise_if_failed()


def differentiated_twice(forward: Callable[..., Any]) -> Callable[[dict[str, Array], dict[str, Any]], dict[str, Array]]:
    """As :func:`differentiated`, of second order: autograd of autograd."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        tensors = {name: to_torch(x) for name, x in inputs.items()}
        mask = tensors.pop("mask", None)
        tangents = {name[2:]: tensors.pop(name) for name in inputs if name.startswith("v_")}
        if not tangents:
            raise NotImplementedError
        for x in tensors.values():
            x.requires_grad_()
        arrays = {name: tensors[name] for name in tangents}
        output = forward(arrays, mask, options)
        gradients = torch.autograd.grad(output, list(arrays.values()), tensors["d_output"], create_graph=True)
        names = {"d_d_output": "d_output", **{f"hvp_{name}": name for name in tangents}}
        found = torch.autograd.grad(gradients, [tensors[x] for x in names.values()], list(tangents.values()))
        return {name: from_torch(x) for name, x in zip(names, found, strict=True)}

    return function


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "forward"), [("softmax", torch_softmax), ("dot_product", torch_attention)])
def test_autograd_of_autograd_gives_the_answers(whole: Path, op: str, forward: Callable[..., Any], dtype: str) -> None:
    skip = [*NON_FINITE, "empty row"]
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):  # the one that has second derivatives
        report = known_answers.verify(differentiated_twice(forward), whole, op=op, dtypes=[dtype], skip=skip)
    report.raise_if_failed()
    assert {x.array for x in report} >= {"d_d_output", "hvp_scores" if op == "softmax" else "hvp_bias"}


def turned(x: Any, positions: Any, options: dict[str, Any]) -> Any:
    """Rotary positions, by the matrix of each turn, with the frequencies of Hugging Face's YaRN and Llama 3."""
    *_, n, d = x.shape
    width, dtype = options.get("width", d), torch.float64 if x.dtype == torch.float64 else torch.float32
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    frequencies, amplitude = scaled(options.get("base", 10000.0) ** (-pairs / width), options)
    positions = torch.arange(n) if positions is None else positions.double()
    angles = positions[..., None].double() * frequencies
    if "sections" in options:
        angles = on_axes(angles, positions, options)
    cos, sin = ((amplitude * wave(angles)).to(dtype) for wave in (torch.cos, torch.sin))
    start = d - width if options.get("trailing") else 0
    part = x[..., start : start + width].to(dtype)
    shape = (-1, 2) if options.get("interleaved") else (2, -1)
    one, other = part.unflatten(-1, shape).unbind(-1 if options.get("interleaved") else -2)
    both = torch.stack([one * cos - other * sin, one * sin + other * cos], -1 if options.get("interleaved") else -2)
    return torch.cat([x[..., :start], both.flatten(-2).to(x.dtype), x[..., start + width :]], dim=-1)


def on_axes(angles: Any, positions: Any, options: dict[str, Any]) -> Any:
    """Of the angles on each axis those of its pairs, in the way of Qwen2-VL, its vision tower, or Qwen3-VL."""
    sections, base = options["sections"], options.get("base", 10000.0)
    if options.get("restart"):
        exponents = [torch.arange(s, dtype=torch.float64) / s for s in sections]
        return torch.cat([x[..., None].double() * base**-e for x, e in zip(positions, exponents, strict=True)], dim=-1)
    if options.get("arrangement") == "interleaved":
        mixed = angles[0].clone()
        for axis in range(1, len(sections)):
            own = slice(axis, sections[axis] * len(sections), len(sections))
            mixed[..., own] = angles[axis][..., own]
        return mixed
    return torch.cat([part[k] for k, part in enumerate(angles.split(list(sections), dim=-1))], dim=-1)


def scaled(frequencies: Any, options: dict[str, Any]) -> tuple[Any, float]:
    given = options.get("scaling")
    if given is None:
        return frequencies, 1.0
    factor, original, base = given.get("factor"), given.get("original_length"), options["base"]
    width = 2 * len(frequencies)
    if given["kind"] == "linear":
        return frequencies / factor, 1.0
    if given["kind"] == "dynamic":
        larger = base * (factor * max(given["length"], original) / original - factor + 1) ** (width / (width - 2))
        return larger ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), 1.0
    if given["kind"] == "llama3":
        waves = 2 * torch.pi / frequencies
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        smooth = (original / waves - low) / (high - low)
        blend = (1 - smooth) * frequencies / factor + smooth * frequencies
        slow = torch.where(waves > original / low, frequencies / factor, blend)
        return torch.where(waves < original / high, frequencies, slow), 1.0
    if given["kind"] == "longrope":
        longer = given["maximum_length"] / original
        which = given["long_factor" if given["length"] > original else "short_factor"]
        return frequencies / torch.tensor(which), (1 + np.log(longer) / np.log(original)) ** 0.5
    ends = [
        width * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
        for turns in (given.get("beta_fast", 32), given.get("beta_slow", 1))
    ]
    if given.get("truncate", True):
        ends = [np.floor(ends[0]), np.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp), 0.1 * np.log(factor) + 1


def prepared(name: str, x: Any, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
    """Queries or keys of each head, normalised and turned as the options say."""
    gain, epsilon = tensors.get(f"{name}_gain"), options.get("qk_norm_epsilon", 1e-6)
    positions = tensors.get("positions")
    positions = tensors.get("key_positions", positions) if name == "key" else positions

    def normalise(x: Any) -> Any:
        if options.get("qk_norm") == "l2":
            return x / (x.square().sum(-1, keepdim=True) + epsilon).sqrt()
        return x if gain is None else functional.rms_norm(x, x.shape[-1:], gain, epsilon)

    def turn(x: Any) -> Any:
        return turned(x, positions, options["rotary"]) if "rotary" in options else x

    return turn(normalise(x)) if not options.get("qk_norm_after_rotary") else normalise(turn(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_positions_in_pytorch_give_the_answers(whole: Path, dtype: str) -> None:
    def forward(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
        del mask
        return turned(tensors["x"], tensors.get("positions"), options)

    report = known_answers.verify(differentiated(forward), whole, op="rotary", dtypes=[dtype])
    report.raise_if_failed()
    assert len({x.case for x in report}) >= 15


@pytest.mark.parametrize("dtype", DTYPES)
def test_multi_head_attention_in_pytorch_gives_the_answers(whole: Path, dtype: str) -> None:
    def projected(name: str, x: Any, tensors: dict[str, Any]) -> Any:
        w, b = tensors[f"w_{name}"], tensors.get(f"b_{name}")
        return functional.linear(x, w.T, b)

    def forward(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
        num_heads = options["num_heads"]
        num_kv_heads = options.get("num_kv_heads", num_heads)
        of_heads = [
            projected(name, tensors[name], tensors).unflatten(-1, (heads, -1)).transpose(-2, -3)
            for name, heads in {"query": num_heads, "key": num_kv_heads, "value": num_kv_heads}.items()
        ]
        for i, name in enumerate(("query", "key")):
            of_heads[i] = prepared(name, of_heads[i], tensors, options)
        of_heads[1:] = (x.repeat_interleave(num_heads // num_kv_heads, dim=-3) for x in of_heads[1:])
        output = scaled_dot_product(*of_heads, tensors, mask, options)
        combined = output.transpose(-2, -3).flatten(-2).to(tensors["query"].dtype)
        return projected("output", combined, tensors)

    report = known_answers.verify(differentiated(forward), whole, op="multi_head", dtypes=[dtype], skip=NON_FINITE)
    report.raise_if_failed()
    assert {x.array for x in report} >= {
        "output",
        "d_query",
        "d_w_query",
        "d_b_key",
        "d_w_output",
        "d_b_output",
        "d_bias",
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_additive_attention_in_pytorch_gives_the_answers(whole: Path, dtype: str) -> None:
    def forward(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
        del options
        queries = tensors["query"] @ tensors["w_query"]
        keys = functional.linear(tensors["key"], tensors["w_key"].T, tensors.get("b"))
        hidden = torch.tanh(queries[..., :, None, :] + keys[..., None, :, :])
        wide = torch.float32 if dtype in HALF else hidden.dtype
        scores = hidden.to(wide) @ tensors["w_score"].to(wide)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, dim=-1).to(hidden.dtype) @ tensors["value"]

    skip = [*NON_FINITE, "empty row"]
    known_answers.verify(differentiated(forward), whole, op="additive", dtypes=[dtype], skip=skip).raise_if_failed()


def test_half_precision_attention_whose_scores_are_rounded_is_found(whole: Path) -> None:
    def forward(tensors: dict[str, Any], mask: Any, options: dict[str, Any]) -> Any:
        if mask is not None or options or tensors.keys() - {"query", "key", "value"}:
            raise NotImplementedError
        scores = tensors["query"] @ tensors["key"].mT / tensors["key"].shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ tensors["value"]

    report = known_answers.verify(differentiated(forward), whole, dtypes=["bfloat16"], skip=NON_FINITE)
    assert not report["large-scores", "output"].ok


def by_jax(whole: Path, dtype: str, skip: Iterable[str] = ()) -> known_answers.Conformance:
    """The report on JAX's own function."""
    jax = pytest.importorskip("jax", reason="the comparison with JAX needs jax: pip install attention-np[peers]")
    attention = jax.nn.dot_product_attention

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if is_ours_alone(inputs, options):
            raise NotImplementedError
        arrays = {name: jax.numpy.asarray(x) for name, x in inputs.items() if not name.startswith("v_")}
        d_output, mask = arrays.pop("d_output"), arrays.pop("mask", None)
        leading = d_output.shape[:-2]

        def as_heads(x: Any) -> Any:  # (..., n, d) as (batch, n, heads, d)
            each = jax.numpy.broadcast_to(x, (*leading, *x.shape[-2:]))
            return each.reshape(-1, *x.shape[-2:])[:, :, None]

        def forward(differentiable: dict[str, Any]) -> Any:
            n, m = differentiable["query"].shape[-2], differentiable["key"].shape[-2]
            of_scores = [
                None if x is None else jax.numpy.broadcast_to(x, (*leading, n, m)).reshape(-1, 1, n, m)
                for x in (differentiable.get("bias"), mask)
            ]
            wide = max(differentiable["key"].shape[-1], d_output.shape[-1])  # the values must be as wide as the keys
            heads = [as_heads(differentiable[name]) for name in ("query", "key", "value")]
            heads = [jax.numpy.pad(x, [(0, 0)] * 3 + [(0, wide - x.shape[-1])]) for x in heads]
            scale = {"scale": differentiable["key"].shape[-1] ** -0.5}
            output = attention(*heads, bias=of_scores[0], mask=of_scores[1], **(scale | options))
            return output[:, :, 0, : d_output.shape[-1]].reshape(d_output.shape)

        def run(arrays: dict[str, Any]) -> Any:
            output, pull_back = jax.vjp(forward, arrays)
            return output, pull_back(d_output)[0]

        # XLA's compiler for the CPU does not take the products of half precision that the function asks for. For the
        # others it would look for quicker code for longer than it takes to run what it finds.
        compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
        output, gradients = (run if dtype in HALF else compiled)(arrays)
        return {"output": np.asarray(output), **{f"d_{name}": np.asarray(x) for name, x in gradients.items()}}

    with jax.enable_x64(True):
        return known_answers.verify(function, whole, dtypes=[dtype], skip=[*NON_FINITE, "empty row", *skip])


def test_the_attention_of_jax_gives_the_answers(whole: Path) -> None:
    report = by_jax(whole, "float32")
    report.raise_if_failed()
    assert len({x.case for x in report}) >= 20


@pytest.mark.parametrize("dtype", HALF)
def test_the_attention_of_jax_gives_the_answers_of_the_plain_shapes_in_half_precision(whole: Path, dtype: str) -> None:
    shapes = {
        x.name: [x.inputs[name].shape for name in ("query", "key", "value")]
        for x in known_answers.load(whole, op="dot_product")
    }
    others = [name for name, of_it in shapes.items() if of_it != shapes[f"{dtype}/dot_product/plain"]]
    report = by_jax(whole, dtype, skip=[*others, "mask"])  # uncompiled, each of other shapes would take five seconds
    report.raise_if_failed()
    assert len({x.case for x in report}) >= 10


def test_in_float64_the_attention_of_jax_is_found_to_take_its_softmax_in_float32(whole: Path) -> None:
    others = {case.name for case in known_answers.load(whole, op="dot_product")} - {"float64/dot_product/plain"}
    report = by_jax(whole, "float64", skip=others)
    assert not report.ok
    assert 1e-10 < abs(report["plain", "output"].found - report["plain", "output"].answer) < 1e-5
