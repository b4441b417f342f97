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


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_segment_anything_with_its_vectors_of_rows_and_columns(op: Any) -> None:
    modeling = import_module("transformers.models.sam.modeling_sam")
    config = transformers.SamVisionConfig(hidden_size=WIDTH, num_attention_heads=HEADS)
    module = modeling.SamVisionSdpaAttention(config, SIDE).eval()

    def layer(x: Any, **of: Any) -> Any:
        parts = projected(x, of, "qkv").reshape(2, N, 3, WIDTH)
        query, key, value = (heads(parts[..., k, :]) for k in range(3))
        # their products are of queries that are not scaled
        both = [
            biases.products(of[f"rel_pos_{axis}"] * D_K**0.5, index) for axis, index in (("h", DOWN), ("w", ACROSS))
        ]
        return projected(joined(chain.apply(op, query, key, value, bias=both)), of, "proj")

    def run(x: Any) -> Any:
        return module(x.reshape(2, SIDE, SIDE, WIDTH))[0].reshape(2, N, WIDTH)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compare(module, run, layer, {"x": (2, N, WIDTH)})


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_beit_with_its_table_and_the_class_token(op: Any) -> None:
    modeling = import_module("transformers.models.beit.modeling_beit")
    config = transformers.BeitConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, image_size=SIDE, patch_size=1, attn_implementation="sdpa"
    )
    parts = {"attention": modeling.BeitAttention(config), "positions": modeling.BeitRelativePositionBias(config)}
    module = torch.nn.ModuleDict(parts).eval()
    count = (2 * SIDE - 1) ** 2
    index = np.pad(INDEX, ((1, 0), (1, 0)))
    index[0], index[1:, 0], index[0, 0] = count, count + 1, count + 2  # from the class token, to it, and to itself

    def layer(x: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, f"attention_{name}_proj")) for name in "qkv")
        bias = biases.table(of["positions_relative_position_bias_table"], index)
        return projected(joined(chain.apply(op, query, key, value, bias=bias)), of, "attention_o_proj")

    def run(x: Any) -> Any:
        return module["attention"](x, module["positions"]((SIDE, SIDE)))[0]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compare(module, run, layer, {"x": (2, N + 1, WIDTH)})


def conformer(name: str) -> tuple[Any, Callable[..., Any]]:
    """An attention with the relative shift of Transformer-XL, and how it is run."""
    if name == "wav2vec2":
        modeling = import_module("transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer")
        config = transformers.Wav2Vec2ConformerConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type="relative", **BASE
        )
        one = modeling.Wav2Vec2ConformerSelfAttention(config).eval()
        return one, lambda x, distances: one(x, relative_position_embeddings=distances[None])[0]
    modeling = import_module("transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer")
    config = transformers.FastSpeech2ConformerConfig(hidden_size=WIDTH)
    of_module = {"num_attention_heads": HEADS, "attention_dropout_rate": 0.0}
    other = modeling.FastSpeech2ConformerAttention(config, of_module).eval()
    return other, lambda x, distances: other(x, pos_emb=distances[None])[0]


@pytest.mark.parametrize("op", [dot_product, blockwise])
@pytest.mark.parametrize("name", ["wav2vec2", "fastspeech2"])
def test_conformers_with_the_relative_shift_of_transformer_xl(op: Any, name: str) -> None:
    module, run = conformer(name)
    index = N - 1 + np.arange(N) - np.arange(N)[:, None]

    def layer(x: Any, distances: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, f"linear_{name}")) for name in "qkv")
        vectors = heads(projected(distances, of, "linear_pos"))  # (heads, 2 N - 1, d_k)
        u, v = (of[f"pos_bias_{name}"].reshape(HEADS, D_K, 1) for name in "uv")
        # (q + u) k + (q + v) r is (q + u) k + (q + u) r + (v - u) r, of which the last knows no query
        table = chain.apply(linear, vectors, (v - u) * D_K**-0.5).reshape(HEADS, 2 * N - 1).swapaxes(0, 1)
        both = [biases.products(vectors, index), biases.table(table, index)]
        attended = chain.apply(op, query + u.swapaxes(-1, -2), key, value, bias=both)
        return projected(joined(attended), of, "linear_out")

    compare(module, run, layer, {"x": (2, N, WIDTH), "distances": (2 * N - 1, WIDTH)})


LLAMA = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": D_K}


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_the_fourth_llama_with_a_scale_that_grows_with_the_position(op: Any) -> None:
    modeling = import_module("transformers.models.llama4.modeling_llama4")
    config = transformers.Llama4TextConfig(
        **LLAMA,
        num_hidden_layers=1,
        no_rope_layers=[0],
        attn_temperature_tuning=True,
        floor_scale=2,
        attn_scale=0.5,
        **BASE,
    )
    module = modeling.Llama4TextAttention(config, 0).eval()
    reached = torch.log1p(torch.floor((torch.arange(N).float() + 1) / 2))  # which they have in single precision
    scale = (reached * 0.5 + 1).double().numpy()[:, None] * D_K**-0.5  # (n, 1)
    assert scale[0] < scale[1] < scale[-1]

    def layer(x: Any, **of: Any) -> Any:
        query, key, value = (heads(projected(x, of, f"{name}_proj")) for name in "qkv")
        return projected(joined(chain.apply(op, query, key, value, scale=scale)), of, "o_proj")

    compare(module, lambda x: module(x, None, None)[0], layer, {"x": (2, N, WIDTH)})


@pytest.mark.parametrize("op", [dot_product, blockwise])
def test_the_gradient_of_a_scale_of_each_query_is_that_through_llamas_attention(op: Any) -> None:
    modeling = import_module("transformers.models.llama4.modeling_llama4")
    module = torch.nn.Module().eval()
    module.num_key_value_groups = 1

    def run(query: Any, key: Any, value: Any, scale: Any) -> Any:
        return modeling.eager_attention_forward(module, query * scale, key, value, None, 1.0)[0].transpose(1, 2)

    def layer(query: Any, key: Any, value: Any, scale: Any) -> Any:
        return chain.apply(op, query, key, value, scale=scale)

    of_heads = (2, HEADS, N, D_K)
    compare(module, run, layer, {"query": of_heads, "key": of_heads, "value": of_heads, "scale": (N, 1)})
