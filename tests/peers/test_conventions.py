"""Each library that is installed has the conventions that its profile says, in every dtype that it takes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import conventions
from attention_np.known_answers.formats import dtype_of

PRECISIONS = {
    "float64": "float32 or better",
    "float32": "float32 or better",
    "float16": "11 bits, as float16 and TF32",
    "bfloat16": "8 bits, as bfloat16",
}
BOOLEAN = ("is_causal", "mask", "bias", "scale")


HALF_AND_SINGLE = list(PRECISIONS)[1:]


def assert_is(name: str, profile: conventions.Profile, dtype: str) -> None:
    assert profile["precision"] == PRECISIONS[dtype]
    assert not profile.differs_from(name), profile
    assert name in profile.nearest
    assert "none of these" not in profile.values.values()
    assert not any("raised" in note for note in profile.notes.values()), profile


@each("dtype", PRECISIONS)
def test_pytorch(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="the profile of PyTorch needs torch: pip install attention-np[peers]")
    form = getattr(torch, dtype)

    def tensors(*arrays: Array, asked: bool = False) -> list[Any]:
        return [torch.from_numpy(x).to(form).requires_grad_(asked) for x in arrays]

    def attend(query: Any, key: Any, value: Any, mask: Array | None, bias: Array | None, **options: Any) -> Any:
        added = torch.from_numpy(mask) if mask is not None else tensors(bias)[0] if bias is not None else None
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=added, enable_gqa=True, **options
        )

    def attention(*arrays: Array, mask: Array | None = None, bias: Array | None = None, **options: Any) -> Array:
        return np.asarray(attend(*tensors(*arrays), mask, bias, **options).double())

    def backward(
        d_output: Array, *arrays: Array, mask: Array | None = None, bias: Array | None = None, **options: Any
    ) -> Any:
        leaves = tensors(*arrays, asked=True)
        attend(*leaves, mask, bias, **options).backward(*tensors(d_output))
        return [x.grad.double().numpy() for x in leaves]

    assert_is("PyTorch", conventions.identify(attention, options=BOOLEAN, backward=backward), dtype)


@each("dtype", HALF_AND_SINGLE)  # float64 has to be asked for
def test_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax", reason="the profile of JAX needs jax: pip install attention-np[peers]")

    def attention(*arrays: Array, window: Any = None, **options: Any) -> Array:
        given = [jax.numpy.asarray(x, dtype) for x in arrays]
        options |= {"bias": jax.numpy.asarray(options["bias"], dtype)} if "bias" in options else {}
        return np.asarray(jax.nn.dot_product_attention(*given, local_window_size=window, **options)).astype(float)

    assert_is("JAX", conventions.identify(attention, options=[*BOOLEAN, "window"]), dtype)


@each("dtype", PRECISIONS)
def test_onnx(dtype: str) -> None:
    onnx = pytest.importorskip("onnx", reason="the profile of ONNX needs onnx: pip install attention-np[peers]")
    from onnx import helper, reference

    if onnx.defs.onnx_opset_version() < 25:
        pytest.skip("windows are in the opset 25")
    code = {"float64": "DOUBLE", "float32": "FLOAT"}.get(dtype, dtype.upper())

    def attention(
        query: Array, key: Array, value: Array, mask: Array | None = None, bias: Array | None = None, **options: Any
    ) -> Array:
        window = options.pop("window", None)
        attributes = {name: int(x) if name == "is_causal" else float(x) for name, x in options.items()}
        if window is not None:
            attributes |= dict(zip(("left_window_size", "right_window_size"), window, strict=True))
        added = bias if mask is None else mask if bias is None else np.where(mask, bias, -np.inf)
        arrays = {"Q": query, "K": key, "V": value} | ({} if added is None else {"mask": added})
        arrays = {name: x if x.dtype == bool else x.astype(dtype_of(dtype)) for name, x in arrays.items()}
        of = {name: getattr(onnx.TensorProto, "BOOL" if x.dtype == bool else code) for name, x in arrays.items()}
        infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in of.items()]
        node = helper.make_node("Attention", list(arrays), ["Y"], **attributes)
        output = helper.make_tensor_value_info("Y", of["Q"], None)
        graph = helper.make_graph([node], "attention", infos, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
        return np.asarray(reference.ReferenceEvaluator(model).run(None, arrays)[0]).astype(float)

    assert_is("ONNX", conventions.identify(attention, options=[*BOOLEAN, "window", "softcap"]), dtype)


@each(("layer", "dtype"), [(layer, dtype) for layer in ("gemma2", "gpt_oss") for dtype in HALF_AND_SINGLE])
def test_transformers(layer: str, dtype: str) -> None:
    """The eager attention of a model, with the masks that the library makes for it, as for a cache of earlier keys.

    In float64 a row without keys is NaN: the lowest number of that dtype is infinite where the softmax is taken.
    """
    pytest.importorskip("transformers", reason="its profile needs transformers: pip install attention-np[peers]")
    import importlib

    import torch
    from transformers import masking_utils

    eager = importlib.import_module(f"transformers.models.{layer}.modeling_{layer}").eager_attention_forward
    form = getattr(torch, dtype)

    def attention(query: Array, key: Array, value: Array, **options: Any) -> Array:
        (b, heads, n, _), (few, m) = query.shape, key.shape[1:3]
        window, added = options.get("window"), torch.zeros(b, heads, n, m, dtype=form)
        if options.get("is_causal") or window is not None:
            rule = masking_utils.causal_mask_function
            if window is not None:
                rule = masking_utils.sliding_window_causal_mask_function(window[0])
            added = added + masking_utils.eager_mask(b, n, m, q_offset=m - n, mask_function=rule, dtype=form)
        if "mask" in options:
            lowest = torch.finfo(form).min
            added = torch.where(torch.from_numpy(options["mask"]), added, lowest)
        if "bias" in options:
            added = added + torch.from_numpy(options["bias"]).to(form)
        sinks = torch.from_numpy(options.get("sink", np.full(heads, -np.inf))).to(form)
        module = SimpleNamespace(num_key_value_groups=heads // few, training=False, sinks=sinks)
        tensors = [torch.from_numpy(x).to(form) for x in (query, key, value)]
        scaling = options.get("scale", query.shape[-1] ** -0.5)
        output = eager(module, *tensors, added, scaling=scaling, softcap=options.get("softcap"))[0]
        return np.asarray(output.double().transpose(1, 2))

    own = "softcap" if layer == "gemma2" else "sink"
    assert_is("transformers", conventions.identify(attention, options=[*BOOLEAN, "window", own]), dtype)


def turned_by(model: str, function: str, layout: int, twice: str) -> Any:
    """How a model of transformers turns its queries, with angles from its own frequencies."""
    pytest.importorskip("transformers", reason="its profile needs transformers: pip install attention-np[peers]")
    import importlib

    import torch

    apply = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), function)

    def turn(x: Array, **options: Any) -> Array:
        of = torch.from_numpy(x)
        n, d = x.shape[layout], x.shape[-1]
        positions = torch.as_tensor(np.asarray(options.get("positions", np.arange(n))))
        speeds, amplitude = 10000.0 ** (-torch.arange(0, d, 2) / d), 1.0
        if "yarn" in options:
            speeds, amplitude = yarn_of_transformers(*options["yarn"], d, truncate=model != "gpt_oss")
        angles = positions[:, None].float() * speeds
        of_all = {"halves": torch.cat([angles, angles], -1), "once": angles, "": angles}[twice][None]
        cos, sin = of_all.cos() * amplitude, of_all.sin() * amplitude
        found = apply(of, sin, cos) if model == "gptj" else apply(of, of, cos, sin)[0]
        return np.asarray(found.double())

    return turn


def yarn_of_transformers(factor: float, original: int, width: int, truncate: bool) -> tuple[Any, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    of = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": factor, "original_max_position_embeddings": original}
    config = LlamaConfig(
        hidden_size=width, num_attention_heads=1, head_dim=width, max_position_embeddings=int(factor * original),
        rope_parameters=of | {"truncate": truncate},
    )  # fmt: skip
    speeds, amplitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    return speeds, float(amplitude)


@each(
    ("name", "turn", "options"),
    [
        ("Llama", ("llama", "apply_rotary_pos_emb", 2, "halves"), ["positions", "yarn"]),
        ("gpt-oss", ("gpt_oss", "apply_rotary_pos_emb", 2, "once"), ["positions", "yarn"]),
        ("GPT-J", ("gptj", "apply_rotary_pos_emb", 1, "once"), ["positions"]),
        ("DeepSeek-V3", ("deepseek_v3", "apply_rotary_pos_emb_interleave", 2, "halves"), ["positions"]),
    ],
)
def test_rotary_positions_of_transformers(name: str, turn: Any, options: list[str]) -> None:
    profile = conventions.identify(turned_by(*turn), op="rotary", options=options)
    assert not profile.differs_from(name), profile
    assert name in profile.nearest
    assert not any("raised" in note for note in profile.notes.values()), profile


def test_the_delta_rule_of_transformers() -> None:
    pytest.importorskip("transformers", reason="its profile needs transformers: pip install attention-np[peers]")
    import torch
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    def attend(query: Array, key: Array, value: Array, **options: Any) -> tuple[Array, Array]:
        of = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in options.items()}
        b, n, h, d = query.shape
        g = of["log_decay"][..., 0] if "log_decay" in of else torch.zeros(b, n, h)
        first = of.get("initial_state", torch.zeros(b, h, d, d))
        arrays = (torch.from_numpy(np.ascontiguousarray(x)) for x in (query, key, value))
        if "beta" not in of:
            raise NotImplementedError
        output, state = torch_recurrent_gated_delta_rule(*arrays, g, of["beta"], first, output_final_state=True)
        return np.asarray(output.double()), np.asarray(state.double())

    profile = conventions.identify(attend, op="linear_attention", options=["log_decay", "beta", "initial_state"])
    assert not profile.differs_from("Qwen3-Next"), profile
    assert {*profile.values} >= {"scale", "read", "decay", "beta", "delta rule", "initial state", "final state"}
