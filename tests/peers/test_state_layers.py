"""The layers with a state of the examples: Mamba-2 beside that of `transformers`, RWKV-7 beside a loop and autograd."""

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import normal

from peers.test_torch_chain import assert_same

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("transformers", reason="pip install transformers")

EXAMPLES = Path(__file__).parents[2] / "examples"
CLOSE = 1e-11
PARAMETERS = "in_proj.weight", "dt_bias", "A_log", "D", "norm.weight", "out_proj.weight"


def example(name: str) -> dict[str, Any]:
    """What an example defines, with its inputs for a longer sequence than it has."""
    content = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return content | {"inputs": content["inputs"] | {"x": normal(0, 2, 40, content["D"])}}  # two chunks and a half


def test_the_block_is_that_of_mamba_2_gradients_included(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs goes to float32 for steps and norms: to see what it means, to float64."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    from transformers.models.mamba2 import configuration_mamba2, modeling_mamba2

    ours = example("mamba2")
    config = configuration_mamba2.Mamba2Config(
        hidden_size=ours["D"],
        num_heads=ours["HEADS"],
        head_dim=ours["INNER"] // ours["HEADS"],
        state_size=ours["D_STATE"],
        n_groups=ours["GROUPS"],
        conv_kernel=ours["TAPS"],
        expand=2,
        chunk_size=16,
    )
    theirs = modeling_mamba2.Mamba2Mixer(config, layer_idx=0).double().eval()
    names = dict(zip(("w_in", "b_step", "log_rate", "skip", "gain", "w_out"), PARAMETERS, strict=True))

    def block(x: Any, taps: Any, b_taps: Any, **p: Any) -> Any:
        parameters = {names[name]: array.T if array.ndim == 2 else array for name, array in p.items()}
        parameters |= {"conv1d.weight": taps.T[:, None], "conv1d.bias": b_taps}
        assert parameters.keys() == dict(theirs.named_parameters()).keys()
        return torch.func.functional_call(theirs, parameters, (x,))

    assert_same(ours["layer"], block, ours["inputs"], CLOSE)


def rwkv7(p: Mapping[str, Any], heads: int) -> Any:
    """The time mixing of a first layer of RWKV-7, token by token, by the equations of its paper."""
    x = p["x"]
    batch, n, d = x.shape
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    r, w, k, v, a, g = ((1 - mu) * x + mu * before for mu in p["mu"])
    r, k, v = r @ p["w_r"], k @ p["w_k"], v @ p["w_v"]
    decay = torch.exp(-torch.exp(-torch.nn.functional.softplus(-(p["w0"] + torch.tanh(w @ p["w1"]) @ p["w2"])) - 0.5))
    rate = torch.sigmoid(p["a0"] + (a @ p["a1"]) @ p["a2"])
    gate = torch.sigmoid(g @ p["g1"]) @ p["g2"]
    removed = torch.nn.functional.normalize((k * p["k_k"]).view(batch, n, heads, -1), dim=-1)
    k = k * (1 + (rate - 1) * p["k_a"])
    r, decay, k, v, rate = (y.view(batch, n, heads, -1) for y in (r, decay, k, v, rate))
    state, outputs = torch.zeros(batch, heads, d // heads, d // heads, dtype=x.dtype), []  # of values and keys
    for t in range(n):
        step = torch.diag_embed(decay[:, t]) - removed[:, t, :, :, None] * (rate * removed)[:, t, :, None]
        state = state @ step + v[:, t, :, :, None] * k[:, t, :, None]
        outputs.append((state @ r[:, t, :, :, None])[..., 0])
    read = torch.stack(outputs, dim=1).reshape(batch * n, d)
    normed = torch.nn.functional.group_norm(read, heads, p["gain"], p["b"], eps=64e-5).view(batch, n, d)
    own = (r * k * p["r_k"].view(heads, -1)).sum(dim=-1, keepdim=True) * v
    return ((normed + own.reshape(batch, n, d)) * gate) @ p["w_o"]


def test_time_mixing_is_that_of_rwkv_7_gradients_included() -> None:
    ours = example("rwkv7")
    assert_same(ours["layer"], lambda **p: rwkv7(p, ours["HEADS"]), ours["inputs"], CLOSE)
