"""Attention layers of Hugging Face's transformers with random weights: output and every gradient, in float64."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import normal

from attention_np import biases, multi_head, rotary

NEEDED = "the comparison with Hugging Face's layers needs torch and transformers: pip install attention-np[peers]"
torch = pytest.importorskip("torch", reason=NEEDED)
transformers = pytest.importorskip("transformers", reason=NEEDED)
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")  # the name of 5.23

DIGITS = 1e-11
N, HEADS, KV_HEADS, D_K, WINDOW = 9, 4, 2, 8, 3
WHOLE = {
    "hidden_size": 16,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": D_K,
    "num_hidden_layers": 2,
    "intermediate_size": 8,
    "vocab_size": 11,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
BASE: dict[str, Any] = {"base": 500.0}


class Model(NamedTuple):
    """A decoder of theirs, by the names of its classes, and what it is here."""

    module: str
    prefix: str
    layout: str = "llama"
    config: dict[str, Any] = {}  # noqa: RUF012
    options: dict[str, Any] = {}  # noqa: RUF012
    window: int | None = None
    rotary: dict[str, Any] = BASE
    names: Callable[[str], str] = str  # what theirs are called in the layout
    gain_less_one: bool = False  # a gain is stored less one


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    """The configuration of a Llama whose frequencies are scaled."""
    return {"rope_parameters": {**PLAIN, "rope_type": kind, **more}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
SHORT, LONG = [1.0, 1.1, 1.3, 1.6], [1.0, 2.5, 6.0, 9.0]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
MODELS: dict[str, Model] = {
    "Llama": Model("llama", "Llama"),
    "Llama with biases": Model("llama", "Llama", config={"attention_bias": True}),
    "Mistral": Model("mistral", "Mistral", window=WINDOW),
    "Qwen 2": Model("qwen2", "Qwen2"),
    "Qwen 3": Model("qwen3", "Qwen3", "qwen3"),
    "Gemma 2": Model(
        "gemma2",
        "Gemma2",
        "gemma2",
        {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 5},
        {"softcap": 1.5, "scale": 5.0**-0.5},
        WINDOW,
    ),
    "gpt-oss": Model("gpt_oss", "GptOss", "gpt_oss", window=WINDOW),
    "linear scaling": Model(
        "llama", "Llama", config=scaled("linear", factor=4.0), rotary=BASE | {"scaling": rotary.linear(4)}
    ),
    "dynamic scaling": Model(
        "llama",
        "Llama",
        config=scaled("dynamic", factor=4.0) | {"max_position_embeddings": 6},
        rotary=BASE | {"scaling": rotary.dynamic(4, 6, N)},
    ),
    "YaRN": Model("llama", "Llama", config=scaled("yarn", **YARN), rotary=BASE | {"scaling": rotary.yarn(4, 16)}),
    "YaRN without rounding": Model(
        "gpt_oss",
        "GptOss",
        "gpt_oss",
        scaled("yarn", **YARN, truncate=False),
        window=WINDOW,
        rotary=BASE | {"scaling": rotary.yarn(4, 16, truncate=False)},
    ),
    "Llama 3": Model(
        "llama", "Llama", config=scaled("llama3", **LLAMA3), rotary=BASE | {"scaling": rotary.llama3(8, 1, 4, 32)}
    ),
    **{
        f"LongRoPE beyond {length}": Model(
            "llama",
            "Llama",
            config=scaled("longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=length),
            rotary=BASE | {"scaling": rotary.longrope(SHORT, LONG, length, N, maximum_length=64)},
        )
        for length in (N - 1, N)  # of the positions, so that the long factors hold, and the short ones
    },
    "Cohere": Model("cohere", "Cohere", rotary=BASE | {"interleaved": True}),
    "HunYuan": Model(
        "hunyuan_v1_dense",
        "HunYuanDenseV1",
        "qwen3",
        options={"qk_norm_after_rotary": True, "qk_norm_epsilon": 1e-5},
        names=lambda name: name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm"),
    ),
    "Gemma 3": Model(
        "gemma3",
        "Gemma3",
        "qwen3",
        {"query_pre_attn_scalar": 5, "rope_parameters": {"sliding_attention": PLAIN, "full_attention": PLAIN}},
        {"scale": 5.0**-0.5},
        WINDOW,
        gain_less_one=True,
    ),
}


@pytest.fixture(autouse=True)
def _float64_throughout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Theirs go to float32 on their way, for frequencies, norms and softmax: to see what they mean, to float64."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(usual)


def close(found: Any, expected: Any, scale: float) -> bool:
    return bool(np.abs(found - expected.detach().numpy()).max() <= DIGITS * scale)


def drawn(layer: Any) -> Any:
    layer = layer.double()
    for i, x in enumerate(layer.parameters()):
        x.data = torch.from_numpy(normal(i, *x.shape)) * (x.shape[-1] ** -0.5 if x.ndim > 1 else 0.5)
    return layer


def compare(
    layer: Any, run: Callable[[Any], Any], ours: Callable[[Any], Any], given: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Output and gradients of a layer of theirs, `run`, and of ours; `given` makes a state_dict one of our layout.

    What is left of theirs is returned: the gradients of arrays that are none of a layer's.
    """
    x, d_output = normal(90, 2, N, 16), normal(91, 2, N, 16)
    tensor = torch.tensor(x, requires_grad=True)
    expected = run(tensor)
    expected.backward(torch.tensor(d_output))
    output, gradients = ours(x, d_output)
    assert close(output, expected, 1)
    assert close(gradients.query + gradients.key + gradients.value, tensor.grad, np.abs(tensor.grad.numpy()).max())
    theirs = {name: p.grad for name, p in layer.named_parameters()}
    scale = max(float(g.abs().max()) for g in theirs.values())
    read = given({name: g.numpy() for name, g in theirs.items()})
    for name, gradient in read._asdict().items():
        found = getattr(gradients.parameters, name)
        assert (gradient is None) == (found is None), name
        if gradient is not None:
            assert np.abs(found - gradient).max() <= DIGITS * scale, name
    return theirs


@pytest.mark.parametrize("name", MODELS)
def test_decoders_with_rotary_positions(name: str) -> None:
    model = MODELS[name]
    modeling = import_module(f"transformers.models.{model.module}.modeling_{model.module}")
    configuration = import_module(f"transformers.models.{model.module}.configuration_{model.module}")
    suffix = "TextConfig" if model.module == "gemma3" else "Config"
    given = {**WHOLE, "rope_parameters": PLAIN, **model.config}
    if model.window is not None:
        given |= {"sliding_window": model.window, "layer_types": ["sliding_attention", "full_attention"]}
    config = getattr(configuration, model.prefix + suffix)(**given)
    layer = drawn(getattr(modeling, model.prefix + "Attention")(config, 0))
    turning = getattr(modeling, model.prefix + "RotaryEmbedding")(config)
    masking = import_module("transformers.masking_utils")
    mask_of = masking.create_causal_mask if model.window is None else masking.create_sliding_window_causal_mask

    def run(x: Any) -> Any:
        positions = torch.arange(N)[None]
        mask = mask_of(config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=positions)
        kind = {"layer_type": "sliding_attention"} if model.module == "gemma3" else {}
        return layer(x, position_embeddings=turning(x, positions, **kind), attention_mask=mask)[0]

    def read(state: dict[str, Any], gains: bool = False) -> multi_head.Parameters:
        state = {model.names(key): x for key, x in state.items()}
        if gains and model.gain_less_one:
            state |= {key: 1 + x for key, x in state.items() if "norm" in key}
        return multi_head.Parameters.from_layer(state, model.layout)

    window = {} if model.window is None else {"window": (model.window - 1, 0)}

    def ours(x: Any, d_output: Any) -> Any:
        parameters = read({key: x.numpy() for key, x in layer.state_dict().items()}, gains=True)
        options = {"is_causal": True, "rotary": model.rotary, **window, **model.options}
        given = {"num_heads": HEADS, "num_kv_heads": KV_HEADS}
        output, cache = multi_head.forward(x, x, x, parameters, **given, **options)
        return output, multi_head.backward(d_output, cache)

    compare(layer, run, ours, read)


def test_bloom() -> None:
    modeling = import_module("transformers.models.bloom.modeling_bloom")
    config = transformers.BloomConfig(hidden_size=16, n_head=HEADS, hidden_dropout=0.0, attention_dropout=0.0)
    layer = drawn(modeling.BloomAttention(config, 0))
    alibi = modeling.build_alibi_tensor(torch.ones(2, N), HEADS, torch.float64)
    hidden = torch.zeros(N, N, dtype=torch.float64).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)

    def read(state: dict[str, Any]) -> multi_head.Parameters:
        return multi_head.Parameters.from_layer(state, "bloom", num_heads=HEADS)

    def ours(x: Any, d_output: Any) -> Any:
        parameters = read({key: x.numpy() for key, x in layer.state_dict().items()})
        bias = biases.alibi(biases.alibi_slopes(HEADS))
        output, cache = multi_head.forward(x, x, x, parameters, num_heads=HEADS, bias=bias, is_causal=True)
        return output, multi_head.backward(d_output, cache)

    compare(layer, lambda x: layer(x, torch.zeros_like(x), alibi, hidden[None, None])[0], ours, read)


@pytest.mark.parametrize("decoder", [False, True])
def test_t5_with_the_gradient_of_its_table(decoder: bool) -> None:
    modeling = import_module("transformers.models.t5.modeling_t5")
    config = transformers.T5Config(
        d_model=16,
        d_kv=D_K,
        num_heads=HEADS,
        dropout_rate=0.0,
        is_decoder=decoder,
        attn_implementation="eager",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=7,
    )
    layer = drawn(modeling.T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    causal = torch.zeros(N, N, dtype=torch.float64).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)
    found: dict[str, Any] = {}

    def read(state: dict[str, Any]) -> multi_head.Parameters:
        return multi_head.Parameters.from_layer(state, "t5")

    def ours(x: Any, d_output: Any) -> Any:
        state = {key: x.numpy() for key, x in layer.state_dict().items()}
        bias = biases.t5(state["relative_attention_bias.weight"], bidirectional=not decoder, max_distance=7)
        options = {"num_heads": HEADS, "bias": bias, "scale": 1.0, "is_causal": decoder}
        output, cache = multi_head.forward(x, x, x, read(state), **options)
        gradients = multi_head.backward(d_output, cache)
        found["table"] = gradients.bias
        return output, gradients

    theirs = compare(layer, lambda x: layer(x, mask=causal[None, None] if decoder else None)[0], ours, read)
    table = theirs["relative_attention_bias.weight"]
    assert close(found["table"], table, float(table.abs().max()))


def test_bert() -> None:
    modeling = import_module("transformers.models.bert.modeling_bert")
    config = transformers.BertConfig(
        hidden_size=16,
        num_attention_heads=HEADS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    layer = drawn(modeling.BertAttention(config))
    del layer.output.LayerNorm  # with the residual it stands behind the layer of attention

    def read(state: dict[str, Any]) -> multi_head.Parameters:
        return multi_head.Parameters.from_layer(state, "bert")

    def ours(x: Any, d_output: Any) -> Any:
        parameters = read({key: x.numpy() for key, x in layer.state_dict().items()})
        output, cache = multi_head.forward(x, x, x, parameters, num_heads=HEADS)
        return output, multi_head.backward(d_output, cache)

    compare(layer, lambda x: layer.output.dense(layer.self(x)[0]), ours, read)
