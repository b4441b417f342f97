"""Arguments of attention classes that `atlas.py` cannot guess, by folder and class: of constructors, and of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks._atlas_pictures import PICTURES


def distances(name: str, mask: str) -> Callable[[Any, int, int, int], list[dict[str, Any]]]:
    """Calls of an encoder that takes vectors of all distances, without a mask and with one."""

    def calls(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
        import torch

        x, of_distances = torch.randn(b, n, width), torch.randn(b, 2 * n - 1, width)
        visible = torch.ones(b, n).bool()
        visible[0, -2:] = False
        masks = {
            "keys": visible[:, None],
            "pairs": (visible[:, None] & visible[:, :, None])[:, None],
            "causal": (visible[:, None] & torch.ones(n, n).bool().tril())[:, None],
            "added": torch.zeros(b, 1, n, n).masked_fill(~visible[:, None, None], torch.finfo(torch.float32).min),
        }
        given = {"hidden_states": x, name: of_distances}
        return [given, given | {"attention_mask": masks[mask]}]

    return calls


def of_positions(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of a conformer, for its kind of positions."""
    import torch

    if made.position_embeddings_type == "relative":
        return distances("relative_position_embeddings", "added")(made, n, b, width)
    (plain, masked) = distances("relative_position_embeddings", "added")(made, n, b, width)
    angles = torch.randn(n, 1, 1, made.head_size // 2).repeat(1, 1, 1, 2)
    turning = torch.stack([angles.cos(), angles.sin()])
    return [x | {"relative_position_embeddings": turning} for x in (plain, masked)]


def three(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of MobileBERT, whose values are made of other features."""
    import torch

    x = [torch.randn(b, n, width) for _ in range(2)]
    given = {"query_tensor": x[0], "key_tensor": x[1], "value_tensor": torch.randn(b, n, made.value.in_features)}
    hidden = torch.zeros(b, 1, n, n)
    hidden[0, ..., -2:] = torch.finfo(torch.float32).min
    return [given, given | {"attention_mask": hidden}]


def canine(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of CANINE: with a mask of zeros and ones, and with one that is added."""
    import torch

    given = {"from_tensor": torch.randn(b, n, width), "to_tensor": torch.randn(b, n + 2, width)}
    shown = torch.ones(b, n, n + 2)
    shown[0, :, -2:] = 0
    added = torch.zeros(b, 1, n, n + 2).masked_fill(shown[:, None] == 0, torch.finfo(torch.float32).min)
    return [given, given | {"attention_mask": shown}, given | {"attention_mask": added}]


def roformer(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of RoFormer: with positions, without, and of another sequence."""
    import torch

    d = made.attention_head_size
    given = {"hidden_states": torch.randn(b, n, width), "attention_mask": torch.randn(b, 1, 1, n)}
    cross = {"hidden_states": given["hidden_states"], "encoder_hidden_states": torch.randn(b, n + 2, width)}
    positions = {"sinusoidal_pos": torch.randn(1, 1, n, d)}
    return [given, given | positions, cross | positions]


def clvp(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of CLVP: with angles of some features, and without."""
    import torch

    hidden = torch.zeros(b, 1, n, n)
    hidden[0, ..., -2:] = torch.finfo(torch.float32).min
    given = {"hidden_states": torch.randn(b, n, width), "attention_mask": hidden}
    angles = torch.randn(1, n, made.head_dim // 4).repeat(1, 1, 2)
    return [given, given | {"rotary_pos_emb": angles, "position_ids": torch.arange(n).flip(0).repeat(b, 1)}]


def xlnet(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of XLNet: one stream, and two, with segments and a mask."""
    import torch

    for parameter in made.parameters():  # which the module leaves as it finds them in memory
        torch.nn.init.normal_(parameter, std=0.3)
    width = made.d_model
    given = {"h": torch.randn(n, b, width), "g": None, "attn_mask_h": None, "attn_mask_g": None}
    given |= {"r": torch.randn(2 * n, b, width), "seg_mat": None}
    hidden = torch.zeros(n, n, b, 1)
    hidden[:, -2:, 0] = 1.0
    segments = torch.nn.functional.one_hot((torch.rand(n, n, b) < 0.5).long(), 2).float()
    both = {"g": torch.randn(n, b, width), "attn_mask_h": hidden, "attn_mask_g": hidden, "seg_mat": segments}
    return [given, given | both]


def funnel(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of Funnel: of all tokens, and of pooled queries."""
    import torch

    calls: list[dict[str, Any]] = []
    for queries in (n, (n + 1) // 2):
        stride = 1 + (queries != n)
        positions = [[torch.randn(n + stride * queries, width)] * 2] * (made.block_index + 1)
        mask = torch.ones(b, n)
        mask[0, -2:] = 0
        alike = torch.rand(b, queries, n) < 0.5
        x = torch.randn(b, n, width)
        given = {"query": torch.randn(b, queries, width), "key": x, "value": x}
        first = torch.ones(queries, n)  # the first token, which is apart
        first[0], first[:, 0] = 0, 0
        both = (positions, alike, mask, first), (positions, None, None, None)
        calls += [given | {"attention_inputs": inputs} for inputs in both]
    return calls


def granite(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of Granite's encoders in blocks; of the fifth with a mask of tokens, too."""
    import torch

    place = torch.arange(made.context_size)
    far = made.rel_pos_emb.num_embeddings // 2
    far = (place[:, None] - place).clamp(-far, far) + far
    if not hasattr(made, "pre_norm"):
        mask = torch.ones(b, n).bool()
        mask[0, -2:] = False
        given = {"hidden_states": torch.randn(b, n, width), "position_embeddings": far}
        return [given, given | {"attention_mask": mask}]
    return [{"hidden_states": torch.randn(b, n, made.to_q.in_features), "attention_dists": far}]


def deberta(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of disentangled attention, with a mask of pairs."""
    import torch

    width = next(p.in_features for p in made.children() if hasattr(p, "in_features"))
    visible = torch.ones(b, 1, n, n)
    visible[0, ..., -2:], visible[0, :, -2:] = 0, 0
    place = torch.arange(n)
    size = 2 * getattr(made, "pos_ebd_size", getattr(made, "max_relative_positions", n))
    far = {"relative_pos": (place[:, None] - place)[None], "rel_embeddings": torch.randn(size, width)}
    return [{"hidden_states": torch.randn(b, n, width), "attention_mask": visible} | far]


def perceiver(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of Perceiver: of its latents, or of another sequence."""
    import torch

    mask = torch.randn(b, 1, 1, n)
    x, inputs = torch.randn(b, n, made.query.in_features), torch.randn(b, n + 2, made.key.in_features)
    if "LayerNorm" in type(made.layernorm2).__name__:
        return [{"hidden_states": x, "inputs": inputs, "inputs_mask": torch.randn(b, 1, 1, n + 2)}]
    return [{"hidden_states": x, "attention_mask": mask}, {"hidden_states": x}]


def lilt(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of LiLT."""
    import torch

    given = {"hidden_states": torch.randn(b, n, width)}
    given["layout_inputs"] = torch.randn(b, n, made.layout_query.in_features)
    return [given, given | {"attention_mask": torch.randn(b, 1, 1, n)}]


def bros(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of BROS."""
    import torch

    given = {"hidden_states": torch.randn(b, n, width)}
    given["bbox_pos_emb"] = torch.randn(n, n, b, made.attention_head_size)
    return [given, given | {"attention_mask": torch.randn(b, 1, 1, n)}]


def luke(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of LUKE: with entities, and without."""
    import torch

    words = {"word_hidden_states": torch.randn(b, n, width), "entity_hidden_states": None}
    both = words | {"entity_hidden_states": torch.randn(b, 3, width)}
    return [words, both, both | {"attention_mask": torch.randn(b, 1, 1, n + 3)}]


def wavlm(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of WavLM: distances of its own, and those of another layer."""
    import torch

    mask = torch.ones(b, n)
    mask[0, -2:] = 0
    given = {"hidden_states": torch.randn(b, n, width)}
    return [given, given | {"attention_mask": mask, "position_bias": torch.randn(b * made.num_heads, n, n)}]


def fun_asr(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of Fun-ASR's layers."""
    import torch

    shown = torch.ones(b, n)
    shown[0, -2:] = 0
    hidden = torch.zeros(b, 1, 1, n).masked_fill(shown[:, None, None] == 0, torch.finfo(torch.float32).min)
    given = {"hidden_states": torch.randn(b, n, width), "input_features_mask": shown}
    return [given, given | {"attention_mask": hidden}]


def squeezebert(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of SqueezeBERT, features first."""
    import torch

    given = {"hidden_states": torch.randn(b, made.all_head_size, n), "output_attentions": False}
    return [given | {"attention_mask": mask} for mask in (None, torch.randn(b, 1, 1, n))]


def fsmt(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of FSMT, tokens first."""
    import torch

    m = n + 2 if made.encoder_decoder_attention else n
    hidden = torch.zeros(b, m).bool()
    hidden[0, -2:] = True
    given = {"query": torch.randn(n, b, made.embed_dim), "key": torch.randn(m, b, made.embed_dim)}
    return [given, given | {"key_padding_mask": hidden, "attn_mask": torch.randn(n, m)}]


def layoutlmv2(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of LayoutLMv2."""
    import torch

    hidden = torch.zeros(b, 1, 1, n).bool()
    hidden[0, ..., -2:] = True
    places = {name: torch.randn(b, made.num_attention_heads, n, n) for name in ("rel_pos", "rel_2d_pos")}
    return [{"hidden_states": torch.randn(b, n, made.all_head_size), "attention_mask": hidden} | places]


def patchtsmixer(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Calls of PatchTSMixer."""
    import torch

    return [{"inputs": torch.randn(b, n, made.attn_layer.in_features)}]


def big_bird(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of BigBird's sparse attention, in blocks of two, with a mask of tokens and without."""
    import torch

    made.block_size, made.num_random_blocks = 2, 3
    calls = []
    for hidden in (0, 3):
        shown = torch.ones(b, 2 * n)
        shown[0, 2 * n - hidden :] = 0
        blocked = shown.reshape(b, n, 2)
        windows = torch.cat([blocked[:, 1:-3], blocked[:, 2:-2], blocked[:, 3:-1]], dim=2)
        given = {"hidden_states": torch.randn(b, 2 * n, width), "from_blocked_mask": blocked}
        given |= {"band_mask": (blocked[:, 2:-2, :, None] * windows[:, :, None])[:, None], "to_blocked_mask": blocked}
        calls.append(given | {"from_mask": shown[:, None, :, None], "to_mask": shown[:, None, None]})
    return calls


def longformer(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of Longformer's attention in a window of five, with global tokens and without."""
    import torch

    calls = []
    for places in ((), (0,), (1, 4)):
        mask = torch.zeros(b, 4 * n)
        mask[0, -3:] = torch.finfo(torch.float32).min
        mask[1, list(places)] = 10000.0
        mask[0, list(places)[:1]] = 10000.0
        given = {"hidden_states": torch.randn(b, 4 * n, width), "attention_mask": mask, "is_global_attn": bool(places)}
        calls.append(given | {"is_index_masked": mask < 0, "is_index_global_attn": mask > 0})
    return calls


def behind(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Calls of a decoder whose queries are the last of its keys, without a mask and with one."""
    import torch

    angles = torch.randn(b, n + 2, made.head_dim // 2).repeat(1, 1, 2)
    given = {"hidden_states": torch.randn(b, n, width), "context_hidden_states": torch.randn(b, 2, width)}
    given["position_embeddings"] = angles.cos(), angles.sin()
    hidden = torch.ones(b, 1, n, n + 2).bool().triu(3)
    hidden[0, ..., 0] = True
    return [given, given | {"attention_mask": torch.zeros(hidden.shape).masked_fill(hidden, -1e30)}]


CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "glpn.GLPNEfficientSelfAttention": {"sequence_reduction_ratio": 2},
    "pvt.PvtEfficientSelfAttention": {"sequences_reduction_ratio": 2},
    "pvt_v2.PvtV2SelfAttention": {"spatial_reduction_ratio": 3},
    "segformer.SegformerAttention": {"sequence_reduction_ratio": 2},
    "hiera.HieraMaskUnitAttention": {
        "hidden_size_output": 36,
        "num_heads": 6,
        "query_stride": 2,
        "window_size": 3,
        "use_mask_unit_attn": True,
    },
    "sam2.Sam2MultiScaleAttention": {"dim": 24, "dim_out": 60, "num_attention_heads": 6, "query_stride": (2, 2)},
    "cvt.CvtSelfAttention": {
        "num_heads": 6,
        "embed_dim": 60,
        "kernel_size": 3,
        "padding_q": 1,
        "padding_kv": 1,
        "stride_q": 1,
        "stride_kv": 2,
        "qkv_projection_method": "dw_bn",
        "qkv_bias": True,
        "attention_drop_rate": 0.0,
    },
    "levit.LevitAttention": {
        "hidden_sizes": 60,
        "key_dim": 10,
        "num_attention_heads": 6,
        "attention_ratio": 2,
        "resolution": 3,
    },
    "levit.LevitAttentionSubsample": {
        "input_dim": 60,
        "output_dim": 48,
        "key_dim": 10,
        "num_attention_heads": 6,
        "attention_ratio": 2,
        "stride": 2,
        "resolution_in": 5,
        "resolution_out": 3,
    },
    **{
        name: {"in_channels": 64}
        for name in (
            "apertus1p5.Apertus1p5VisionTokenizerAttnBlock",
            "chameleon.ChameleonVQVAEEncoderAttnBlock",
            "janus.JanusVQVAEAttnBlock",
        )
    },
    "florence2.Florence2VisionChannelAttention": {"stage_idx": 0},
    "florence2.Florence2VisionWindowAttention": {"stage_idx": 0},
    "mobilevitv2.MobileViTV2LinearSelfAttention": {"embed_dim": 20},
    "swiftformer.SwiftFormerEfficientAdditiveAttention": {"dim": 20},
    "dab_detr.DabDetrAttention": {"is_cross": True},
    "oneformer.OneFormerTextMapperAttention": {"num_heads": 6, "qkv_bias": True},
    "edgetam_video.EdgeTamVideoRoPECrossAttention": {"kv_in_dim": 24},
    "data2vec.Data2VecVisionSelfAttention": {"window_size": (3, 2)},
    "data2vec.Data2VecVisionSdpaSelfAttention": {"window_size": (2, 3)},
    "grounding_dino.GroundingDinoMultiheadAttention": {"num_attention_heads": 6},
    "mm_grounding_dino.MMGroundingDinoMultiheadAttention": {"num_attention_heads": 6},
    "fastspeech2_conformer.FastSpeech2ConformerAttention": {
        "module_config": {"num_attention_heads": 6, "attention_dropout_rate": 0.0}
    },
    "funnel.FunnelRelMultiheadAttention": {"block_index": 0},
    "fun_asr_nano.FunAsrNanoAttention": {"use_fsmn": True},
    "perceiver.PerceiverSelfAttention": {
        "is_cross_attention": True,
        "qk_channels": 24,
        "v_channels": 36,
        "num_heads": 6,
        "q_dim": 60,
        "kv_dim": 20,
    },
    "squeezebert.SqueezeBertSelfAttention": {"cin": 60, "q_groups": 2, "k_groups": 1, "v_groups": 4},
    "patchtsmixer.PatchTSMixerGatedAttention": {"in_size": 10, "out_size": 10},
}
CALLS: dict[str, Callable[[Any, int, int, int], list[dict[str, Any]]]] = {
    "muse_glimmer_assistant.MuseGlimmerAssistantAttention": behind,
    **PICTURES,
    "parakeet.ParakeetEncoderAttention": distances("position_embeddings", "pairs"),
    "nemotron_asr_streaming.NemotronAsrStreamingEncoderAttention": distances("position_embeddings", "causal"),
    "fastspeech2_conformer.FastSpeech2ConformerAttention": distances("pos_emb", "keys"),
    "seamless_m4t.SeamlessM4TConformerSelfAttention": of_positions,
    "wav2vec2_conformer.Wav2Vec2ConformerSelfAttention": of_positions,
    "wav2vec2_bert.Wav2Vec2BertSelfAttention": of_positions,
    "mobilebert.MobileBertSelfAttention": three,
    "canine.CanineSelfAttention": canine,
    "roformer.RoFormerSelfAttention": roformer,
    "clvp.ClvpSelfAttention": clvp,
    "xlnet.XLNetRelativeAttention": xlnet,
    "funnel.FunnelRelMultiheadAttention": funnel,
    "granite_speech.GraniteSpeechConformerAttention": granite,
    "granite_speech_plus.GraniteSpeechPlusConformerAttention": granite,
    "granite_speech5.GraniteSpeech5EncoderAttention": granite,
    "deberta.DisentangledSelfAttention": deberta,
    "deberta_v2.DisentangledSelfAttention": deberta,
    "sew_d.DisentangledSelfAttention": deberta,
    "perceiver.PerceiverSelfAttention": perceiver,
    "lilt.LiltSelfAttention": lilt,
    "bros.BrosSelfAttention": bros,
    "luke.LukeSelfAttention": luke,
    "wavlm.WavLMAttention": wavlm,
    "fun_asr_nano.FunAsrNanoAttention": fun_asr,
    "squeezebert.SqueezeBertSelfAttention": squeezebert,
    "fsmt.Attention": fsmt,
    "layoutlmv2.LayoutLMv2SelfAttention": layoutlmv2,
    "patchtsmixer.PatchTSMixerGatedAttention": patchtsmixer,
    "big_bird.BigBirdBlockSparseAttention": big_bird,
    "bigbird_pegasus.BigBirdPegasusBlockSparseAttention": big_bird,
    "longformer.LongformerSelfAttention": longformer,
    "led.LEDEncoderSelfAttention": longformer,
}
