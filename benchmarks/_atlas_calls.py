"""Arguments of attention classes that `atlas.py` cannot guess, by folder and class: of constructors, and of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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


CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "fastspeech2_conformer.FastSpeech2ConformerAttention": {
        "module_config": {"num_attention_heads": 6, "attention_dropout_rate": 0.0}
    },
}
CALLS: dict[str, Callable[[Any, int, int, int], list[dict[str, Any]]]] = {
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
}
