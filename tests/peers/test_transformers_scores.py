"""Attention of Hugging Face's transformers with learned biases by index, or a learned scale: all gradients."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np import activation, biases, blockwise, chain, dot_product, linear, rms_norm

NEEDED = "the comparison with Hugging Face's layers needs torch and transformers: pip install attention-np[peers]"
torch = pytest.importorskip("torch", reason=NEEDED)
transformers = pytest.importorskip("transformers", reason=NEEDED)

DIGITS = 1e-12
WIDTH, HEADS, SIDE = 16, 4, 3
N, D_K = SIDE * SIDE, WIDTH // HEADS
BASE = {"attn_implementation": "eager"}

# The row of a table for two places in a window: how far apart they are, down and across.
PLACES = np.stack(np.divmod(np.arange(N), SIDE))
DOWN, ACROSS = PLACES[:, :, None] - PLACES[:, None, :] + SIDE - 1
INDEX = DOWN * (2 * SIDE - 1) + ACROSS


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(usual)


def heads(x: Any) -> Any:
    return x.reshape(*x.shape[:-1], HEADS, D_K).swapaxes(-2, -3)


def joined(x: Any) -> Any:
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], WIDTH)


def compare(module: Any, run: Callable[..., Any], layer: Callable[..., Any], more: dict[str, Any]) -> None:
    """The output of theirs, `run`, and the gradients of all its arrays and of `more`, beside those of ours.

    Second derivatives are compared along random directions. `layer` is given a function of the names of the parameters.
    """
    module.double()
    for k, x in enumerate(module.parameters()):
        x.data = torch.from_numpy(normal(k, *x.shape)) / x.shape[-1] ** 0.5
    parameters = dict(module.named_parameters())
    arrays = {name: normal(50 + k, *shape) for k, (name, shape) in enumerate(more.items())}
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
    expected = run(**tensors)
    d_output = normal(91, *expected.shape)
    every = tensors | parameters
    first = torch.autograd.grad((expected * torch.tensor(d_output)).sum(), [*every.values()], create_graph=True)
    along = {name: normal(60 + k, *x.shape) for k, (name, x) in enumerate(every.items())}
    total = sum((d * torch.tensor(along[name])).sum() for name, d in zip(every, first, strict=True))
    second = torch.autograd.grad(total, [*every.values()], materialize_grads=True)

    inputs = {name.replace(".", "_"): x.detach().numpy() for name, x in every.items()}
    output, cache = chain.forward(layer, inputs)
    gradients = chain.backward(d_output, cache)
    d_gradients = {name.replace(".", "_"): x for name, x in along.items()}
    _, twice = chain.double_backward(d_gradients, d_output, cache)
    assert np.abs(output - expected.detach().numpy()).max() <= DIGITS
    for ours, theirs in ((gradients, first), (twice, second)):
        size = max(float(x.detach().abs().max()) for x in theirs)
        for name, x in zip(every, theirs, strict=True):
            found = ours[name.replace(".", "_")]
            assert found is not None, name
            assert np.abs(found - x.detach().numpy()).max() <= DIGITS * size, name


def projected(x: Any, of: dict[str, Any], name: str) -> Any:
    return chain.apply(linear, x, of[f"{name}_weight"].swapaxes(0, 1), of.get(f"{name}_bias"))


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_swin_with_its_table(op: Any) -> None:
    modeling = import_module("transformers.models.swin.modeling_swin")
    config = transformers.SwinConfig(attn_implementation="sdpa")  # the other has its softmax in single precision
    module = modeling.SwinAttention(config, WIDTH, HEADS, SIDE).eval()

    def layer(x: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, f"{name}_proj")) for name in "qkv")
        bias = biases.table(of["relative_position_bias_relative_position_bias_table"], INDEX)
        return projected(joined(chain.apply(op, query, key, value, bias=bias)), of, "o_proj")

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # which has second derivatives
        compare(module, lambda x: module(x)[0], layer, {"x": (2, N, WIDTH)})


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_deberta_with_products_of_both_sides(op: Any) -> None:
    modeling = import_module("transformers.models.deberta_v2.modeling_deberta_v2")
    span = 5
    config = transformers.DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=span,
        **BASE,
    )
    module = modeling.DisentangledSelfAttention(config).eval()
    mask = torch.ones(1, 1, N, N)
    index = np.clip(np.arange(N)[:, None] - np.arange(N) + span, 0, 2 * span - 1)

    def layer(x: Any, embeddings: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, f"{name}_proj")) for name in ("query", "key", "value"))
        of_query, of_key = (heads(projected(embeddings, of, f"pos_{name}_proj")) for name in ("key", "query"))
        both = [biases.products(of_query, index), biases.products(of_key, index, of="key")]
        return joined(chain.apply(op, query, key, value, bias=both, scale=1 / float(np.sqrt(np.float32(3 * D_K)))))

    more = {"x": (2, N, WIDTH), "embeddings": (2 * span, WIDTH)}
    compare(module, lambda x, embeddings: module(x, mask, rel_embeddings=embeddings)[0], layer, more)


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_the_second_swin_with_its_scale_of_each_head(op: Any) -> None:
    modeling = import_module("transformers.models.swinv2.modeling_swinv2")
    module = modeling.Swinv2SelfAttention(transformers.Swinv2Config(**BASE), WIDTH, HEADS, (SIDE, SIDE)).eval()
    places = module.relative_coords_table.double().numpy()
    module.relative_coords_table = module.relative_coords_table.double()
    index = module.relative_position_index.numpy()

    def unit(x: Any) -> Any:  # divided by its length, which is far above their epsilon
        return chain.apply(rms_norm, x, epsilon=0.0) * D_K**-0.5

    def layer(x: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, name)) for name in ("query", "key", "value"))
        scale = chain.apply(activation, of["logit_scale"], kind="exp")
        hidden = chain.apply(
            activation,
            chain.apply(linear, places, of["continuous_position_bias_mlp_0_weight"].swapaxes(0, 1))
            + of["continuous_position_bias_mlp_0_bias"],
            kind="relu",
        )
        table = chain.apply(linear, hidden, of["continuous_position_bias_mlp_2_weight"].swapaxes(0, 1))
        table = 16 * chain.apply(activation, table.reshape(-1, HEADS), kind="sigmoid")
        attended = chain.apply(op, unit(query), unit(key), value, bias=biases.table(table, index), scale=scale)
        return joined(attended)

    compare(module, lambda x: module(x)[0], layer, {"x": (2, N, WIDTH)})
