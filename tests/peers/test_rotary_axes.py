"""Rotary positions on several axes, beside those of `transformers` and their gradients by autograd."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers import assert_close, normal

from attention_np import rotary

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("transformers", reason="pip install transformers")

HEADS, D, N = 2, 32, 7
MROPE = [5, 4, 7]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
TEXT = {  # the folder of a model, its class, and ours
    "Qwen2-VL": ("qwen2_vl", "Qwen2VL", {}),
    "Qwen2.5-VL": ("qwen2_5_vl", "Qwen2_5_VL", {}),
    "Qwen3-VL": ("qwen3_vl", "Qwen3VLText", {"arrangement": "interleaved"}),
}


@pytest.fixture(autouse=True)
def _float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs go to float32 for angles and turns: to see what they mean, to float64."""
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def assert_turned(x: Any, turned: Any, positions: Any, **options: Any) -> None:
    """The output, and the gradient of a loss of it."""
    output, cache = rotary.forward(x.detach().numpy(), positions, **options)
    assert_close(output, turned.detach().numpy(), 1e-12)
    d_output = normal(9, *output.shape)
    (expected,) = torch.autograd.grad(turned, x, torch.from_numpy(d_output))
    assert_close(rotary.backward(d_output, cache).x, expected.numpy(), 1e-12)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "YaRN"])
@pytest.mark.parametrize("model", TEXT)
def test_sections_of_language_models_that_see(model: str, scaled: bool) -> None:
    folder, name, options = TEXT[model]
    theirs = import_module(f"transformers.models.{folder}.modeling_{folder}")
    configuration = import_module(f"transformers.models.{folder}.configuration_{folder}")
    kind = getattr(configuration, f"{name.removesuffix('Text')}TextConfig")
    parameters = {"rope_type": "default", **(YARN if scaled else {}), "rope_theta": 500.0, "mrope_section": MROPE}
    sizes = {"hidden_size": HEADS * D, "num_attention_heads": HEADS, "head_dim": D, "max_position_embeddings": 64}
    embedding = getattr(theirs, f"{name}RotaryEmbedding")(kind(**sizes, rope_parameters=parameters))
    positions = np.random.default_rng(1).integers(0, 50, (3, 2, N))
    x = torch.from_numpy(normal(0, 2, HEADS, N, D)).requires_grad_()
    cos, sin = embedding(x, torch.from_numpy(positions))
    turned, _ = theirs.apply_rotary_pos_emb(x, x, cos, sin)
    scaling = rotary.yarn(4, 16) if scaled else None
    assert_turned(x, turned, positions[:, :, None], base=500.0, scaling=scaling, sections=MROPE, **options)


@pytest.mark.parametrize("folder", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_rows_and_columns_of_vision_towers_restart_the_frequencies(folder: str) -> None:
    theirs = import_module(f"transformers.models.{folder}.modeling_{folder}")
    (kind,) = (getattr(theirs, x) for x in vars(theirs) if x.endswith("VisionConfig"))
    (embedding,) = (getattr(theirs, x) for x in vars(theirs) if x.endswith("VisionRotaryEmbedding"))
    width = "embed_dim" if folder == "qwen2_vl" else "hidden_size"
    embedding = embedding(kind(**{width: HEADS * D, "num_heads": HEADS}))
    x = torch.from_numpy(normal(0, HEADS, N, D)).requires_grad_()  # theirs have heads behind rows
    positions = np.random.default_rng(1).integers(0, 50, (N, 2))
    cos, sin = embedding(x, torch.from_numpy(positions))
    turned, _ = theirs.apply_rotary_pos_emb_vision(x.transpose(0, 1), x.transpose(0, 1), cos, sin)
    assert_turned(x, turned.transpose(0, 1), positions.T, sections=(D // 4, D // 4), restart=True)
