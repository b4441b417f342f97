"""Latent attention and the indexer against PyTorch's autograd, and a whole layer against that of DeepSeek-V3."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, normal

from attention_np import chain, indexer, latent, masks, rms_norm, rotary
from peers.test_torch_chain import CLOSE, assert_same

torch = pytest.importorskip("torch", reason="the comparison with PyTorch needs torch: pip install attention-np[peers]")

H, N, M = 3, 4, 5
SHAPES = {
    "query": (2, H, N, 4),
    "query_rotary": (2, H, N, 2),
    "latent": (2, M, 6),
    "key_rotary": (M, 2),
    "w_key": (H, 6, 4),
    "w_value": (H, 6, 5),
}
SELECTED = masks.selected([[0, 3], [2, 2], [4, 1], [1, -1]], M)


def by_torch(
    query: Any, query_rotary: Any, latent: Any, key_rotary: Any, w_key: Any, w_value: Any, bias: Any, sink: Any
) -> Any:
    """With keys and values of each head, as the papers write it."""
    key, value = torch.einsum("bmr,hrd->bhmd", latent, w_key), torch.einsum("bmr,hrd->bhmd", latent, w_value)
    products = torch.einsum("bhnd,bhmd->bhnm", query, key) + torch.einsum("bhnd,md->bhnm", query_rotary, key_rotary)
    scores = 2 * torch.tanh(products / 6**0.5 / 2) + bias
    scores = scores.masked_fill(~torch.tensor(SELECTED), -torch.inf)
    column = sink[:, None, None].expand(2, H, N, 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_attention_with_all_that_it_takes(absorbed: bool) -> None:
    options = {"absorbed": absorbed, "softcap": 2.0, "mask": SELECTED}
    layer = lambda **given: chain.apply(latent, **given, **options)  # noqa: E731
    assert_same(layer, by_torch, SHAPES | {"bias": (N, M), "sink": (H,)})


@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_attention_alone(absorbed: bool) -> None:
    layer = lambda **given: chain.apply(latent, **given, absorbed=absorbed, mask=SELECTED)  # noqa: E731

    def theirs(query: Any, query_rotary: Any, latent: Any, key_rotary: Any, w_key: Any, w_value: Any) -> Any:
        key, value = latent[:, None] @ w_key, latent[:, None] @ w_value
        both = torch.cat([query, query_rotary], -1), torch.cat([key, key_rotary.expand(2, H, M, 2)], -1)
        mask = torch.tensor(SELECTED)
        return torch.nn.functional.scaled_dot_product_attention(*both, value, attn_mask=mask)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # which has second derivatives
        assert_same(layer, theirs, SHAPES)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's own rules
def test_forward_mode_is_that_of_dual_numbers() -> None:
    arrays = {name: normal(k, *shape) for k, (name, shape) in enumerate(SHAPES.items())}
    arrays |= {"bias": normal(6, N, M), "sink": normal(7, H)}
    along = {name: normal(20 + k, *x.shape) for k, (name, x) in enumerate(arrays.items())}
    tensors, tangents = ([torch.tensor(x) for x in of.values()] for of in (arrays, along))
    expected, slope = torch.func.jvp(by_torch, tuple(tensors), tuple(tangents))
    for absorbed in (False, True):
        output, cache = latent.forward(**arrays, absorbed=absorbed, softcap=2.0, mask=SELECTED)  # type: ignore[arg-type]
        assert_close(output, expected.numpy(), CLOSE)
        assert_close(latent.jvp(cache, **along), slope.numpy(), CLOSE)


def test_the_indexer_and_the_divergence_that_trains_it() -> None:
    target = np.abs(normal(9, 2, N, M)) * SELECTED
    mask = torch.tensor(SELECTED)

    def ours(query: Any, key: Any, weights: Any) -> Any:
        scores = chain.apply(indexer, query, key, weights, mask=SELECTED, scale=0.7)
        return chain.where(SELECTED, scores, 0.0)

    def theirs(query: Any, key: Any, weights: Any) -> Any:
        scores = torch.einsum("bhn,bhnm->bnm", weights, torch.relu(0.7 * query @ key[:, None].mT))
        return scores.masked_fill(~mask, 0)

    assert_same(ours, theirs, {"query": (2, H, N, 3), "key": (2, M, 3), "weights": (2, H, N)})

    given = {
        name: normal(k, *shape)
        for k, (name, shape) in enumerate((("q", (2, H, N, 3)), ("k", (2, M, 3)), ("w", (2, H, N))))
    }
    scores, cache = indexer.forward(*given.values(), mask=SELECTED)
    tensors = [torch.tensor(x, requires_grad=True) for x in given.values()]
    theirs_scores = torch.einsum("bhn,bhnm->bnm", tensors[2], torch.relu(tensors[0] @ tensors[1][:, None].mT))
    log_shares = theirs_scores.masked_fill(~mask, -torch.inf).log_softmax(-1)
    p = torch.tensor(target)
    divergence = torch.where(mask, p * (torch.log(p.clamp_min(1e-300)) - log_shares), 0).sum()
    wanted = torch.autograd.grad(divergence, tensors)
    shares = np.where(SELECTED, np.exp(scores), 0)
    d_scores = target.sum(-1, keepdims=True) * shares / shares.sum(-1, keepdims=True) - target
    for found, x in zip(indexer.backward(d_scores, cache), wanted, strict=True):
        assert_close(found, x.numpy(), CLOSE)


def test_the_choice_is_that_of_topk_where_no_scores_are_equal() -> None:
    scores = normal(3, 20, 30)
    np.testing.assert_array_equal(indexer.top_k(scores, 7), torch.topk(torch.tensor(scores), 7).indices.numpy())


# A whole layer

D, Q_RANK, RANK, D_N, D_R, D_V = 10, 7, 6, 4, 2, 5
EPSILON = 1e-6


def deepseek(absorbed: bool, scale: float) -> Callable[..., Any]:
    """The attention of DeepSeek-V3 on a chain: low ranks with norms, and positions in features of their own."""

    def layer(x: Any, q_a: Any, q_gain: Any, q_b: Any, kv_a: Any, kv_gain: Any, kv_b: Any, w_output: Any) -> Any:
        query = chain.apply(rms_norm, x @ q_a, q_gain, epsilon=EPSILON) @ q_b
        query = query.reshape(*x.shape[:2], H, D_N + D_R).swapaxes(1, 2)
        both = x @ kv_a
        latents = chain.apply(rms_norm, both[..., :RANK], kv_gain, epsilon=EPSILON)
        turned = [chain.apply(rotary, part, interleaved=True) for part in (query[..., D_N:], both[..., RANK:])]
        weights = kv_b.reshape(RANK, H, D_N + D_V).swapaxes(0, 1)
        parts = query[..., :D_N], turned[0], latents, turned[1], weights[..., :D_N], weights[..., D_N:]
        output = chain.apply(latent, *parts, absorbed=absorbed, scale=scale, is_causal=True)
        return output.swapaxes(1, 2).reshape(*x.shape[:2], H * D_V) @ w_output

    return layer


class InDouble:
    """PyTorch for a module that casts what it computes to single precision."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.mark.parametrize("yarn", [False, True])
def test_the_layer_is_that_of_deepseek_v3_gradients_included(yarn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    public = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3",
        reason="DeepSeek-V3 is in transformers: pip install transformers",
    )
    monkeypatch.setattr(public, "torch", InDouble())
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if yarn:  # of which the softmax scale has the amplitude, squared; the turns here stay plain
        parameters |= {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 1.0, "mscale": 1.0}
    config = public.DeepseekV3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=Q_RANK,
        kv_lora_rank=RANK,
        qk_nope_head_dim=D_N,
        qk_rope_head_dim=D_R,
        v_head_dim=D_V,
        attention_bias=False,
        rope_interleave=True,
        rope_parameters=parameters,
        attn_implementation="eager",
    )
    module = public.DeepseekV3Attention(config, layer_idx=0).double().eval()
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, d_y = normal(0, 2, 7, D), normal(1, 2, 7, D)
    angles = np.arange(7)[:, None] * 10000.0 ** (-np.arange(0, D_R, 2) / D_R)
    angles = np.concatenate([angles, angles], axis=-1)[None]
    hidden = torch.triu(torch.full((7, 7), -torch.inf, dtype=torch.float64), 1)[None, None]
    given = torch.tensor(x, requires_grad=True)
    expected, _ = module(given, (torch.tensor(np.cos(angles)), torch.tensor(np.sin(angles))), hidden)
    expected.backward(torch.tensor(d_y))

    def ours(name: str, of: Callable[[Any], Any]) -> Array:
        x = np.asarray(of(module.get_parameter(name)).numpy())
        return x.T if x.ndim == 2 else x

    names = {
        "q_a": "q_a_proj.weight",
        "q_gain": "q_a_layernorm.weight",
        "q_b": "q_b_proj.weight",
        "kv_a": "kv_a_proj_with_mqa.weight",
        "kv_gain": "kv_a_layernorm.weight",
        "kv_b": "kv_b_proj.weight",
        "w_output": "o_proj.weight",
    }
    inputs = {"x": x} | {name: ours(theirs, lambda p: p.detach()) for name, theirs in names.items()}
    amplitude = 0.1 * np.log(40) + 1 if yarn else 1
    scale = amplitude**2 / np.sqrt(D_N + D_R)
    for absorbed in (False, True):
        output, cache = chain.forward(deepseek(absorbed, scale), inputs)
        assert_close(output, expected.detach().numpy(), 1e-11)
        gradients = chain.backward(d_y, cache)
        assert_close(gradients["x"], given.grad.numpy(), 1e-11)
        for name, theirs in names.items():
            assert_close(gradients[name], ours(theirs, lambda p: p.grad), 1e-11)
