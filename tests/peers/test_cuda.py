"""On a CUDA device: the page's recipe, a kernel in CUDA and its mistakes, PyTorch's backends, and FlexAttention."""

# ruff: noqa: ARG001 - what FlexAttention calls is given all of batch, head, query and key
import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import assert_close, normal

from attention_np import biases, blockwise, masks
from attention_np.gradcheck import check_low_precision

torch = pytest.importorskip("torch", reason="attention on CUDA needs torch: pip install attention-np[peers]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its compiler of what it deprecates
if not torch.cuda.is_available():
    pytest.skip("attention on CUDA needs a CUDA device", allow_module_level=True)
attention = pytest.importorskip("torch.nn.attention")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# Half precision rounds weights, output and gradients once each; of float32 the sums of some hundred terms are seen.
DIGITS = {"float16": 2 * 2.0**-10, "bfloat16": 2 * 2.0**-7, "float32": 64 * 2.0**-23}
BACKENDS = {name: getattr(attention.SDPBackend, f"{name}_ATTENTION") for name in ("FLASH", "EFFICIENT", "CUDNN")}


def drawn(dtype: str, heads: int = 2, key_heads: int = 1, n: int = 133, m: int = 133, d: int = 16) -> dict[str, Any]:
    shapes = {"query": (heads, n, d), "key": (key_heads, m, d), "value": (key_heads, m, d)}
    return {name: normal(k, *shape).astype(DTYPES[dtype]) for k, (name, shape) in enumerate(shapes.items())}


def forward(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """The reference, in which heads of queries share those of keys."""
    group = len(query) // len(key)
    output, cache = blockwise.forward(
        query.reshape(-1, group, *query.shape[1:]), key[:, None], value[:, None], **options
    )
    return (output.reshape(query.shape), cache.logsumexp.reshape(query.shape[:2])), cache


def pulled(d_outputs: Any, query: Any, key: Any, value: Any, **options: Any) -> Any:
    _, cache = forward(query, key, value, **options)
    d_output, d_logsumexp = d_outputs[0].reshape(cache.output.shape), d_outputs[1].reshape(cache.logsumexp.shape)
    found = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp)
    return found.query.reshape(query.shape), found.key.reshape(key.shape), found.value.reshape(value.shape)


def there(x: Any) -> Any:
    """An array as a tensor on the device."""
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda()
        if x.dtype == "bfloat16"
        else torch.tensor(x).cuda()
    )


def back(x: Any) -> Any:
    x = x.detach().cpu()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def test_the_program_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "your-code.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "your-code.md", "exec"), names)  # noqa: S102
    assert names["report"].ok, str(names["report"])


class Problem(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("group", "n", "m", "d", "causal")) + tuple(
        (name, ctypes.c_float) for name in ("scale", "softcap")
    )


MISTAKES = {
    "right": ("", ""),
    "no delta": ("sum += float(d_output", "sum += 0 * float(d_output"),
    "no scale in d_key": ("d_k[a] += float(T(d_score))", "d_k[a] += float(T(d_score / p.scale))"),
    "a tile not masked": ("j < p.m &&", "j < (p.m + ROWS - 1) / ROWS * ROWS &&"),
    "causal off by one in backward": ("visible(first + r, j, p)", "visible(first + r, j + 1, p)"),
    "log-sum-exp in base 2": ("largest + logf(total)", "1.4427f * (largest + logf(total))"),
    "no derivative of softcap": ("slope = 1 - t * t", "slope = 1"),
    "atomicAdd lost": (
        "atomicAdd(&d_query[(head * p.n + first + r) * p.d + a], ",
        "((d_query[(head * p.n + first + r) * p.d + a]) += ",
    ),
    "one head of a group": ("head < (of_keys + 1) * p.group", "head < of_keys * p.group + 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_kernel_in_cuda_holds_and_its_mistakes_are_found(mistake: str, tmp_path: Path) -> None:
    compiler = shutil.which("nvcc") or pytest.skip("a kernel in CUDA needs nvcc")
    code, (right, wrong) = Path(__file__).with_name("attention.cu").read_text(encoding="utf-8"), MISTAKES[mistake]
    assert right in code
    (tmp_path / "attention.cu").write_text(code.replace(right, wrong) if right else code, encoding="utf-8")
    command = [compiler, "-std=c++17", "-arch=native", "-Xcompiler", "-fPIC", "-shared", "attention.cu", "-o", "it.so"]
    subprocess.run(command, check=True, cwd=tmp_path)
    library = ctypes.CDLL(str(tmp_path / "it.so"))
    options = {"is_causal": True} if mistake.startswith("causal") else {"softcap": 2.0}

    def call(name: str, query: Any, key: Any, *tensors: Any) -> None:
        (heads, n, d), (key_heads, m, _) = query.shape, key.shape
        causal, softcap = options.get("is_causal", False), options.get("softcap", 0.0)
        problem = Problem(heads // key_heads, n, m, d, causal, d**-0.5, softcap)
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
        assert library[f"{name}_{str(query.dtype)[6:]}"](*pointers, heads, problem) == 0

    def run(*tensors: Any) -> tuple[Any, Any]:
        query, key, value = tensors
        output, logsumexp = torch.empty_like(query), torch.empty(query.shape[:2], device="cuda")
        call("forward", query, key, output, logsumexp, query, key, value)
        return output, logsumexp

    def kernel(*arrays: Any) -> Any:
        return tuple(map(back, run(*map(there, arrays))))

    def kernel_backward(d_outputs: Any, *arrays: Any) -> Any:
        query, key, value = tensors = [there(x) for x in arrays]
        d_query, d_key, d_value = (
            torch.zeros(query.shape, device="cuda"),
            torch.empty_like(key),
            torch.empty_like(value),
        )
        given = [*map(there, d_outputs), *run(*tensors), *tensors]
        call("backward", query, key, d_query, d_key, d_value, *given)
        return tuple(map(back, (d_query.to(query.dtype), d_key, d_value)))

    reference = (lambda *arrays: forward(*arrays, **options)[0], lambda d, *arrays: pulled(d, *arrays, **options))
    for dtype in DTYPES:
        m = 133 if options.get("is_causal") else 150
        report = check_low_precision(kernel, kernel_backward, drawn(dtype, m=m), reference)
        assert report.ok == (mistake == "right"), f"{dtype}\n{report}"


def assert_agrees(found: Any, tensors: dict[str, Any], dtype: str, bias: Any = None, **options: Any) -> None:
    """That an output, and perhaps a log-sum-exp, and what they give to the tensors, are what blockwise gives."""
    cotangents = [torch.from_numpy(normal(7 + k, *x.shape)).to(x) for k, x in enumerate(found)]
    torch.autograd.backward(found, cotangents)
    arrays = {name: back(x.double()) for name, x in tensors.items()}
    if bias is not None:
        options["bias"] = bias(arrays.pop("bias"))
    group = arrays["query"].shape[1] // arrays["key"].shape[1]
    arrays = (
        {name: x.reshape(len(x), -1, group if name == "query" else 1, *x.shape[2:]) for name, x in arrays.items()}
        if group > 1
        else arrays
    )
    output, cache = blockwise.forward(**arrays, **options)
    expected = (output, cache.logsumexp)[: len(found)]
    d_output, *d_logsumexp = (back(u.double()).reshape(x.shape) for u, x in zip(cotangents, expected, strict=True))
    gradients = blockwise.backward(d_output, cache, d_logsumexp=d_logsumexp[0] if d_logsumexp else None)
    for x, y in zip(found, expected, strict=True):
        assert_close(back(x.double()), y.reshape(x.shape), DIGITS[dtype])
    for name, x in tensors.items():
        terms = (
            output[..., 0].size * arrays["key"].shape[-2] / x.numel() if x.ndim == 1 else 1
        )  # of slopes, added up one by one
        digits = max(DIGITS[dtype], 2.0**-23 * terms**0.5)
        assert_close(back(x.grad.double()), getattr(gradients, name).reshape(x.shape), digits)


def tensors_of(dtype: str, key_heads: int = 4, n: int = 200, m: int = 200) -> dict[str, Any]:
    shapes = {"query": (2, 4, n, 64), "key": (2, key_heads, m, 64), "value": (2, key_heads, m, 64)}
    return {
        name: torch.tensor(normal(k, *s), dtype=TYPES[dtype], device="cuda", requires_grad=True)
        for k, (name, s) in enumerate(shapes.items())
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case", [{}, {"is_causal": True}, {"key_heads": 2, "enable_gqa": True}, {"m": 333, "scale": 0.3}], ids=str
)
def test_a_backend_of_scaled_dot_product_attention(backend: str, dtype: str, case: dict[str, Any]) -> None:
    if (dtype == "float32" and backend != "EFFICIENT") or ("enable_gqa" in case and backend == "EFFICIENT"):
        pytest.skip(f"{backend} has no kernel for {dtype}, {case}")
    tensors = tensors_of(dtype, **{name: case[name] for name in ("key_heads", "m") if name in case})
    options = {name: case[name] for name in ("is_causal", "scale") if name in case}
    gqa = {"enable_gqa": True} if "enable_gqa" in case else {}
    with attention.sdpa_kernel(BACKENDS[backend]):
        output = torch.nn.functional.scaled_dot_product_attention(*tensors.values(), **options, **gqa)
        assert_agrees((output,), tensors, dtype, **options)


SEGMENTS = np.arange(200) // 70
FLEX: dict[str, Any] = {
    "softcap": (lambda s, b, h, i, j: 2 * torch.tanh(s / 2), None, {"softcap": 2.0}),
    "causal": (None, lambda b, h, i, j: i >= j, {"is_causal": True}),
    "window": (None, lambda b, h, i, j: (i >= j) & (i - j <= 17), {"mask": masks.sliding_window(200, left=17)}),
    "documents": (None, lambda b, h, i, j: i // 70 == j // 70, {"mask": masks.packed(SEGMENTS)}),
    "alibi": (lambda s, h, i, j, slopes: s - slopes[h] * (i - j).abs(), None, {"bias": biases.alibi}),
    "array": (lambda s, h, i, j, bias: s + bias[h, i, j], None, {"bias": lambda array: array}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", FLEX)
def test_flex_attention_with_its_log_sum_exp(case: str, dtype: str) -> None:
    score_mod, mask_mod, options = FLEX[case]
    tensors, score = tensors_of(dtype), score_mod
    if "bias" in options:
        array = biases.alibi_slopes(4) if case == "alibi" else normal(5, 4, 200, 200)
        of_bias = TYPES[dtype] if case == "array" else torch.float32
        bias = torch.tensor(array, dtype=of_bias, device="cuda", requires_grad=True)
        tensors["bias"] = bias

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score_mod(s, h, i, j, bias)

    block_mask = None if mask_mod is None else flex.create_block_mask(mask_mod, None, None, 200, 200)
    torch.compiler.reset()
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    inputs = [tensors[name] for name in ("query", "key", "value")]
    found = compiled(*inputs, score_mod=score, block_mask=block_mask, return_lse=True)
    assert_agrees(found, tensors, dtype, **options)
