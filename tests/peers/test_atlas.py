import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.models.bert.modeling_bert import BertConfig, BertSelfAttention  # noqa: E402
from transformers.models.canine.modeling_canine import CanineSelfAttention  # noqa: E402
from transformers.models.d_fine.modeling_d_fine import DFineConfig, DFineMultiscaleDeformableAttention  # noqa: E402
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32Config  # noqa: E402
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2Config  # noqa: E402
from transformers.models.levit.modeling_levit import LevitAttention  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention, T5Config  # noqa: E402

from attention_np import atlas  # noqa: E402
from benchmarks import atlas as runner  # noqa: E402
from benchmarks import atlas_changes  # noqa: E402

STORED = json.loads(runner.STORED.read_text(encoding="utf-8"))
SIXTY = [
    "afmoe", "albert", "bamba", "bark", "bart", "bert", "big_bird", "bloom", "canine", "codegen", "cvt",
    "deberta", "deepseek_v3", "deformable_detr", "detr", "diffllama", "falcon", "falcon_mamba", "fsmt", "funnel",
    "gemma2", "glm5_next", "glm_moe_dsa", "gpt2", "gpt_neox", "gpt_oss", "grounding_dino", "hiera", "idefics2",
    "inkling", "jetmoe", "kimi_linear", "levit", "llama", "longformer", "luke", "mamba2", "minimax", "mistral4",
    "modernbert", "moonshine", "moshi", "mpt", "nemotron_h", "openai", "parakeet", "pvt", "qwen2_vl",
    "qwen3_next", "recurrent_gemma", "roformer", "rwkv", "sam", "sam2", "swinv2", "t5", "vjepa2", "wavlm",
    "xlnet", "zaya",
]  # fmt: skip
LlamaAttention, LlamaConfig = modeling_llama.LlamaAttention, modeling_llama.LlamaConfig


def llama(**changes: Any) -> Any:
    sizes = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10} | changes
    config = LlamaConfig(**sizes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return LlamaAttention(config, layer_idx=0).eval()


def arguments(n: int = 7, d: int = 10) -> dict[str, Any]:
    torch.manual_seed(1)
    angles = torch.randn(2, n, d // 2).repeat(1, 1, 2)
    mask = torch.zeros(2, 1, n, n).masked_fill(~torch.ones(n, n).tril().bool(), torch.finfo(torch.float32).min)
    mask[1, :, :, :2] = torch.finfo(torch.float32).min
    return {
        "hidden_states": torch.randn(2, n, 60),
        "position_embeddings": (angles.cos(), angles.sin()),
        "attention_mask": mask,
    }


def test_a_layer_has_the_output_and_the_gradients_of_its_module() -> None:
    report = atlas.check(llama(), **arguments())
    assert report.ok
    assert report.worst < 1e-13
    assert list(report.errors)[:2] == ["output", "q_proj.weight"]
    assert "hidden_states" in report.errors


def test_a_report_shows_a_module_that_differs_from_what_it_was_patched_from() -> None:
    patched, reference = llama(), llama()
    patched.scaling *= 1.001
    report = atlas.check(patched, reference=reference, **arguments())
    assert not report.ok
    assert "differs" in str(report)


@pytest.mark.parametrize("folder", ["cvt", "qwen4_exp", "llama"])
def test_what_a_layer_computes_is_in_the_dtype_of_its_module(folder: str) -> None:
    outcome = runner.of_folder(folder, runner.Tiny())  # which runs each layer in float32
    assert {x["state"] for x in outcome.values()} == {"whole"}, outcome


def test_a_layer_takes_arguments_by_position_and_arrays() -> None:
    module = llama().double()
    given = {key: x.double() if torch.is_tensor(x) else tuple(y.double() for y in x) for key, x in arguments().items()}
    layer = atlas.read(module)
    output, cache = layer.forward(
        *(x.numpy() if torch.is_tensor(x) else [y.numpy() for y in x] for x in given.values())
    )
    np.testing.assert_allclose(output, module(**given)[0].detach().numpy(), rtol=0, atol=1e-6)  # softmax in float32
    assert set(layer.backward(output, cache)) == {"hidden_states", *dict(module.named_parameters())}


def test_sdpa_without_a_mask_is_causal_as_the_module_says() -> None:
    for is_causal in (True, False):
        module = llama()
        module.config._attn_implementation, module.is_causal = "sdpa", is_causal
        given = arguments()
        assert atlas.check(module, **given | {"attention_mask": None}).ok
        assert atlas.check(module, **given | {"attention_mask": given["attention_mask"] == 0}).ok


def test_a_layer_follows_the_attributes_of_its_module() -> None:
    module = llama()
    module.scaling = 0.7
    assert atlas.check(module, **arguments()).ok
    config = Gemma2Config(hidden_size=60, num_attention_heads=6, num_key_value_heads=3, head_dim=10)
    config._attn_implementation = "eager"
    for softcap in (None, 0.5):
        module = Gemma2Attention(config, layer_idx=0).eval()
        module.attn_logit_softcapping = softcap
        assert atlas.check(module, **arguments()).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.q_proj.register_forward_pre_hook(lambda *_: None),
        lambda m: setattr(m, "forward", lambda *args, **kwargs: None),
        lambda m: setattr(m, "q_proj", torch.nn.Sequential(m.q_proj)),
        lambda m: setattr(m.config, "_attn_implementation", "flex_attention"),
        lambda m: torch.nn.utils.parametrizations.weight_norm(m.q_proj),
        lambda m: m.to("meta"),
        lambda m: (m.train(), setattr(m, "attention_dropout", 0.1)),
    ],
)
def test_a_module_that_computes_something_else_is_refused(change: Any) -> None:
    module = llama()
    change(module)
    with pytest.raises(atlas.UnknownLayer):
        atlas.read(module)


@pytest.mark.parametrize("name", ["is_causal", "position_bias"])
def test_what_is_handed_on_to_the_attention_function_is_refused(name: str) -> None:
    given = {key: x for key, x in arguments().items() if key != "attention_mask"}
    module = llama()
    module.config._attn_implementation = "sdpa"
    assert atlas.check(module, **given, use_cache=False).ok
    with pytest.raises(atlas.UnknownLayer, match=f"not known with {name}"):
        atlas.check(module, **given, **{name: False})


def test_a_part_in_the_place_of_one_that_computes_nothing_is_refused() -> None:
    config = BertConfig(hidden_size=60, num_attention_heads=6)
    config._attn_implementation = "eager"
    module = CanineSelfAttention(config).eval()
    x = torch.randn(2, 7, 60)
    assert atlas.check(module, x, x).ok
    module.dropout = torch.nn.Tanh()
    with pytest.raises(atlas.UnknownLayer, match="does not look at: dropout"):
        atlas.check(module, x, x)


def test_a_forward_in_the_place_of_torchs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: 2 * torch.nn.functional.linear(x, self.weight))
    with pytest.raises(atlas.UnknownLayer, match="in place of torch's"):
        atlas.read(llama())


def test_a_patched_helper_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *_: (q, k))
    with pytest.raises(atlas.UnknownLayer, match="calls apply_rotary_pos_emb, whose source"):
        atlas.read(llama())


def test_a_class_with_another_forward_is_refused() -> None:
    class Mine(LlamaAttention):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Any, **kwargs: Any) -> Any:
            return super().forward(2 * hidden_states, **kwargs)

    with pytest.raises(atlas.UnknownLayer, match="no reading of its source"):
        atlas.read(Mine(llama().config, layer_idx=0))


def test_what_is_no_attention_is_refused() -> None:
    with pytest.raises(atlas.UnknownLayer, match="is no attention"):
        atlas.read(torch.nn.Linear(3, 3))
    with pytest.raises(TypeError, match="module must be a"):
        atlas.read(3)


def test_a_cache_of_earlier_tokens_is_refused() -> None:
    layer = atlas.read(llama())
    with pytest.raises(atlas.UnknownLayer, match="full pass"):
        layer.forward(**arguments(), past_key_values=object())


def test_reading_and_checking_change_no_module() -> None:
    module = llama()
    before = copy.deepcopy(module.state_dict())
    atlas.check(module, **arguments())
    assert all(torch.equal(x, before[key]) and x.dtype == before[key].dtype for key, x in module.state_dict().items())


def test_a_padded_sample_without_a_visible_token_has_even_weights() -> None:
    config = BertConfig(hidden_size=60, num_attention_heads=6)
    config._attn_implementation = "eager"
    module = BertSelfAttention(config, layer_idx=0).eval()
    mask = torch.full((2, 1, 1, 7), torch.finfo(torch.float32).min)
    assert atlas.check(module, torch.randn(2, 7, 60), mask).ok


def test_a_choice_between_keys_of_equal_scores_is_refused() -> None:
    sizes = {
        "hidden_size": 60,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
    }
    sizes |= {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "head_dim": 4}
    config = DeepseekV32Config(**sizes, index_n_heads=12, index_head_dim=8, index_topk=3)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    module = DeepseekV32Attention(config, layer_idx=0).eval()
    given = arguments(d=4) | {"position_ids": torch.arange(7)[None].repeat(2, 1)}
    with pytest.raises(atlas.UnknownLayer, match="a query that sees none"):
        atlas.check(module, **given)
    given["attention_mask"][1, :, :, 0] = 0.0
    assert atlas.check(module, **given).ok
    torch.nn.init.zeros_(module.indexer.weights_proj.weight)  # all scores are zero
    with pytest.raises(atlas.UnknownLayer, match="chooses between keys of equal scores"):
        atlas.check(module, **given)


def fused(wrong: str = "") -> Any:
    """An attention function as transformers registers them, with a backward of its own, that may be wrong."""

    class Softmax(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, scores: Any) -> Any:
            weights = torch.softmax(scores, -1)
            ctx.save_for_backward(weights)
            return weights

        @staticmethod
        def backward(ctx: Any, *d_weights: Any) -> Any:
            (weights,) = ctx.saved_tensors
            total = weights * d_weights[0]
            return total if wrong == "correction" else total - weights * total.sum(-1, keepdim=True)

    class Repeated(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, groups: int) -> Any:
            ctx.groups = groups
            return x.repeat_interleave(groups, 1)

        @staticmethod
        def backward(ctx: Any, *d_y: Any) -> Any:
            apart = d_y[0].reshape(len(d_y[0]), -1, ctx.groups, *d_y[0].shape[2:])
            return (apart[:, :, 0] if wrong == "group" else apart.sum(2)), None

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any) -> Any:
        key, value = (Repeated.apply(x, module.num_key_value_groups) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * (1.1 * scaling if wrong == "scale" else scaling)
        weights = Softmax.apply(scores if mask is None else scores + mask)
        return (weights @ value).transpose(1, 2).contiguous(), None

    return attention


CAUSES = {
    "correction": "softmax correction sum_j A_ij dA_ij, is missing or wrong",
    "scale": "but for the scale, which is none that is known",
    "group": "of all that an entry does along axis 1 of the output only the first counts",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["sdpa", "", *CAUSES])
def test_a_fused_function_is_judged_in_its_own_precision(wrong: str, dtype: Any) -> None:
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    registered = modeling_llama.ALL_ATTENTION_FUNCTIONS
    registered.register("mine", sdpa_attention_forward if wrong == "sdpa" else fused(wrong))
    try:
        module = llama().to(dtype)
        module.config._attn_implementation = "mine"
        given = arguments()
        given["attention_mask"] = given["attention_mask"][:1]  # each query sees a key
        report = atlas.check(module, reference=llama(), dtype=None, **given | {"hidden_states": torch.randn(2, 7, 60)})
    finally:
        registered._global_mapping.pop("mine")
    assert report.ok is (wrong not in CAUSES), str(report)
    if wrong in CAUSES:
        assert CAUSES[wrong] in str(report)
        assert report.causes


def test_numbers_in_double_precision_are_converted_to_the_dtype_of_the_module() -> None:
    given = arguments()
    given["attention_mask"] = given["attention_mask"][:1]
    report = atlas.check(
        llama(), dtype=None, **given | {"hidden_states": np.random.default_rng(0).normal(size=(2, 7, 60))}
    )
    assert report.ok, str(report)


def test_a_reference_with_other_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"same parameters: k_proj\.bias, o_proj\.bias, q_proj\.bias, v_proj\.bias"):
        atlas.check(llama(attention_bias=True), reference=llama(), **arguments())


def test_sdpa_hides_by_a_boolean_mask_and_gives_an_empty_row_nothing() -> None:
    module = llama()
    module.config._attn_implementation = "sdpa"
    visible = torch.ones(2, 1, 7, 7).bool().tril()
    visible[1, :, 3] = False
    report = atlas.check(module, **arguments() | {"attention_mask": visible})
    assert report.ok, str(report)


def test_t5_by_sdpa_is_read_where_each_query_sees_a_key() -> None:
    config = T5Config(d_model=60, num_heads=6, d_kv=10)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    visible = torch.ones(2, 1, 1, 7).bool()
    visible[0, ..., -2:] = False
    x = torch.randn(2, 7, 60)
    for mask in (None, visible, torch.zeros(2, 1, 1, 7).masked_fill(~visible, -1e9)):
        assert atlas.check(module, x, mask=mask).ok
    visible[1] = False
    with pytest.raises(atlas.UnknownLayer, match="where a query sees no key"):
        atlas.check(module, x, mask=visible)


def test_a_layer_follows_each_change_of_its_module_or_is_refused() -> None:
    outcome = atlas_changes.of_class(("llama", "LlamaAttention"), runner.Tiny())
    assert {state for state, _ in outcome.values()} <= {"follows", "refused", "not run"}, outcome
    assert outcome["scaling = 0.0"][0] == outcome["made with attention_bias = True"][0] == "follows"


@pytest.mark.long
def test_layers_of_ten_folders_follow_each_change_of_their_modules_or_are_refused() -> None:
    counts, bad = atlas_changes.run(SIXTY[::6])  # python benchmarks/atlas_changes.py tries all
    assert not bad, "\n".join(bad)
    assert counts["follows"] > 100


@pytest.mark.long
def test_sixty_folders_are_as_the_stored_table_says() -> None:
    outcome = runner.run(SIXTY, runner.Tiny())
    for folder, classes in outcome.items():
        stored = STORED["folders"][folder]
        assert {name: (x["digest"], x["state"], x.get("recipe")) for name, x in classes.items()} == {
            name: (x["digest"], x["state"], x.get("recipe")) for name, x in stored.items()
        }, folder
        assert all(x["error"] < 1e-11 for x in classes.values() if x["state"] == "whole")


def test_what_a_module_computes_in_training_alone_is_refused() -> None:
    levit = LevitAttention(30, 10, 3, 2, 3)
    with pytest.raises(atlas.UnknownLayer, match=r"computes something else, as it is in training: call eval"):
        atlas.read(levit)
    levit.eval()
    levit.projection.batch_norm.train()
    with pytest.raises(atlas.UnknownLayer, match=r"batch_norm, a BatchNorm1d, counts the numbers of its batch"):
        atlas.read(levit)


def test_a_check_begins_as_if_its_module_had_not_been_called() -> None:
    levit = LevitAttention(30, 10, 3, 2, 3)
    levit.eval()
    x = torch.randn(2, 9, 30)
    with torch.no_grad():
        levit(x)  # which keeps biases, apart from their parameter
    assert atlas.check(levit, x).ok
    with torch.no_grad():
        levit.attention_biases += 1.0 * torch.arange(levit.attention_biases.shape[-1])
    with pytest.raises(atlas.UnknownLayer, match=r"keeps other biases, of an earlier call"):
        atlas.read(levit).forward(x)


def test_another_function_among_the_attributes_of_a_module_is_refused() -> None:
    config = DFineConfig(d_model=30, decoder_attention_heads=3, decoder_n_points=[1, 3, 2])
    shapes = [(2, 2), (1, 2), (1, 1)]
    given = {"hidden_states": torch.randn(2, 4, 30), "encoder_hidden_states": torch.randn(2, 7, 30)}
    given |= {"reference_points": torch.rand(2, 4, 1, 4), "spatial_shapes_list": shapes}
    given["spatial_shapes"] = torch.tensor(shapes)
    sampled = DFineMultiscaleDeformableAttention(config).eval()
    assert atlas.check(sampled, **given).ok
    core = sampled.ms_deformable_attn_core
    sampled.ms_deformable_attn_core = lambda *arguments: 2.0 * core(*arguments)
    with pytest.raises(atlas.UnknownLayer, match=r"has no ms_deformable_attn_core that is"):
        atlas.read(sampled).forward(**given)
