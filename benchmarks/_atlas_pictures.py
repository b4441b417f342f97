"""Calls of attention classes of pictures and video, of `_atlas_calls.py`: of a module, n, batch and features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Calls = Callable[[Any, int, int, int], list[dict[str, Any]]]


def packed(_made: Any, n: int, _b: int, width: int) -> list[dict[str, Any]]:
    """Sequences one after the other, in each sample."""
    import torch

    ends = torch.tensor([0, 3, n], dtype=torch.int32)
    return [{"hidden_states": torch.randn(2, n, width), "cu_seqlens": ends, "attention_mask": None}]


def with_queries(name: str, of_keys: str, *, first: bool = False, keys: bool = True) -> Calls:
    """Of tokens with positions, and of keys with theirs; `first`: the sequence stands before the batch."""

    def calls(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
        import torch

        def tokens(m: int) -> Any:
            return torch.randn(*((m, b) if first else (b, m)), width)

        def hidden(m: int) -> Any:
            mask = torch.zeros(b, 1, n, m)
            mask[0, ..., -2:] = torch.finfo(torch.float32).min
            return mask.expand(b, made.num_heads, n, m).flatten(0, 1).clone() if first else mask

        own = {"hidden_states": tokens(n), name: tokens(n)}
        calls = [own, own | {"attention_mask": hidden(n)}]
        if keys:
            cross = {"hidden_states": tokens(n), "key_value_states": tokens(n + 2), of_keys: tokens(n + 2)}
            calls += [cross, cross | {name: tokens(n), "attention_mask": hidden(n + 2)}]
            if not first:
                calls.append(cross | {"attention_mask": hidden(n + 2) < 0})
        return calls

    return calls


def three(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Queries, keys and values."""
    import torch

    width = made.q_proj.in_features
    keys = torch.randn(2, b, n + 2, width)
    return [{"q": torch.randn(b, n, width), "k": keys[0], "v": keys[1]}]


def text(_made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """A picture and a text, both padded."""
    import torch

    hidden = torch.zeros(b, n).bool()
    hidden[0, -2:] = True
    given = {"vision_features": torch.randn(b, n + 2, width), "text_features": torch.randn(b, n, width)}
    return [given, given | {"text_attention_mask": hidden, "vision_attention_mask": torch.zeros(b, n + 2).bool()}]


def conditional(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Tokens and keys with places, which one layer alone adds."""
    import torch

    def tokens(m: int) -> Any:
        return torch.randn(b, m, made.q_content_proj.in_features)

    given = {"hidden_states": tokens(n), "query_position_embeddings": tokens(n)}
    if not hasattr(made, "q_pos_sine_proj"):
        return [given, given | {"attention_mask": torch.randn(b, 1, n, n)}]
    given |= {"query_sine_embed": tokens(n), "encoder_hidden_states": tokens(n + 2)}
    given |= {"encoder_position_embeddings": tokens(n + 2), "attention_mask": torch.randn(b, 1, n, n + 2)}
    return [given, given | {"query_position_embeddings": None, "attention_mask": None}]


def projected(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Queries, keys and values that were projected before."""
    import torch

    given = {"hidden_states": torch.randn(b, n, made.embed_dim), "key_states": torch.randn(b, n + 2, made.embed_dim)}
    given |= {"value_states": torch.randn(b, n + 2, made.output_dim)}
    return [given, given | {"attention_mask": torch.randn(b, 1, n, n + 2)}]


def resampled(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """A few queries of many tokens, with positions and without."""
    import torch

    keys = torch.randn(2, b, n + 2, made.hidden_size)
    given = {"query": torch.randn(b, n, made.hidden_size), "key": keys[0], "value": keys[1]}
    return [given, given | {"positional_encoding": torch.randn(b, n + 2, made.inner_dim)}]


def angles(n: int, d: int, *, halves: bool = False) -> tuple[Any, Any]:
    """Cosines and sines of angles of pairs of neighbours, or of halves."""
    import torch

    x = torch.randn(n, d // 2)
    x = torch.cat([x, x], dim=-1) if halves else x.repeat_interleave(2, dim=-1)
    return x.cos(), x.sin()


def picture(made: Any, _n: int, b: int, width: int) -> list[dict[str, Any]]:
    """A picture of three by five tokens, with angles."""
    import torch

    return [{"hidden_states": torch.randn(b, 3, 5, width), "position_embeddings": angles(15, made.head_dim)}]


def video(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Queries of a frame, keys of three of them and of two objects."""
    import torch

    query, wide = torch.randn(b, 1, n, width), made.k_proj.in_features
    given = {"query": query, "key": query[:, :, :, :wide] * 2.0, "value": query[:, :, :, :wide] * 0.5}
    d = made.q_proj.out_features // made.num_attention_heads
    own = given | {"position_embeddings": angles(n, d)}
    if not hasattr(made, "rope_k_repeat") and not hasattr(made, "kv_in_dim"):
        return [own]
    if not hasattr(made, "rope_k_repeat"):
        keys = torch.randn(2, b, 1, 2 * (n + 1) + 2, wide)
        of_keys = {"position_embeddings_k": angles(n - 2, d), "rope_k_repeat": 2, "num_k_exclude_rope": 2}
        return [own | {"key": keys[0], "value": keys[1]} | of_keys]
    made.rope_k_repeat = True
    keys = torch.randn(2, b, 1, 3 * n + 2, wide)
    return [own, own | {"key": keys[0], "value": keys[1], "num_k_exclude_rope": 2}]


def frames(made: Any, _n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Tokens of two frames, and some of them, in another order."""
    import torch

    made.grid_size = 3
    x = torch.randn(b, 18, width)
    places = torch.stack([torch.randperm(18)[:11] for _ in range(b)])
    return [{"hidden_states": x}, {"hidden_states": x[:, :11], "position_mask": places}]


def places(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Angles of all heads together."""
    import torch

    cos, sin = angles(b * n, width)
    given = {"hidden_states": torch.randn(b, n, width), "encoder_hidden_states": torch.randn(b, n, width)}
    if made.num_key_value_groups != 1:
        raise ValueError("one head of keys for each of queries")
    turned = {"position_embeddings": (cos.reshape(b, n, -1), sin.reshape(b, n, -1))}
    return [given, given | turned, {"hidden_states": given["hidden_states"]} | turned]


def complexes(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Angles as complex numbers."""
    import torch

    x = torch.randn(n, 1, made.head_dim // 2)
    return [{"hidden_states": torch.randn(b, n, width), "freqs_ci": torch.polar(torch.ones(x.shape), x)}]


def patches(made: Any, n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Rows and columns of patches."""
    import torch

    half = made.head_dim // 2
    parts = [angles(b * n, half, halves=True) for _ in range(2)]
    cos, sin = (torch.cat([x[i] for x in parts], dim=-1).reshape(b, n, -1) for i in (0, 1))
    mask = torch.zeros(b, 1, n, n)
    mask[0, ..., -2:] = torch.finfo(torch.float32).min
    given = {"hidden_states": torch.randn(b, n, width), "position_embeddings": (cos, sin), "attention_mask": mask}
    return [given | {"position_ids": torch.randint(5, (b, n, 2))}]


def windows(made: Any, _n: int, b: int, width: int) -> list[dict[str, Any]]:
    """A picture of the module's window, and a larger one, with a bias that layers share."""
    import torch

    size = made.config.patch_size
    height, column = made.relative_position_bias.window_size
    of_window = {
        "hidden_states": torch.randn(b, height * column + 1, width),
        "resolution": (height * size, column * size),
    }
    larger = {"hidden_states": torch.randn(b, 21, width), "resolution": (5 * size, 4 * size)}
    return [of_window, larger, larger | {"relative_position_bias": torch.randn(1, made.num_attention_heads, 21, 21)}]


def squares(name: str = "hidden_states", first: int = 0) -> Calls:
    """Tokens of a picture of seven by five, behind so many others."""

    def calls(made: Any, _n: int, b: int, _width: int) -> list[dict[str, Any]]:
        import torch

        width = getattr(made, "hidden_size", None) or getattr(made, "embed_dim", None) or made.q_proj.in_features
        return [{name: torch.randn(b, first + 35, width), "height": 7, "width": 5}]

    return calls


def of_shape(name: str, *shape: int, features: Callable[[Any], int], last: bool = True) -> Calls:
    """One array, with its features last, or behind the batch."""

    def calls(made: Any, _n: int, b: int, _width: int) -> list[dict[str, Any]]:
        import torch

        c = features(made)
        return [{name: torch.randn(b, *shape, c) if last else torch.randn(b, c, *shape)}]

    return calls


def units(made: Any, _n: int, b: int, width: int) -> list[dict[str, Any]]:
    """Tokens in windows of three, of which two give a query, and all in one."""
    import torch

    return [{"hidden_states": torch.randn(b, 4 * made.query_stride * 3, width)}]


def boxes(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """Points around a box for each query, in pictures of three sizes."""
    import torch

    shapes = [(4, 3), (2, 3), (1, 2)]
    width = made.sampling_offsets.in_features
    given = {"hidden_states": torch.randn(b, n, width), "encoder_hidden_states": torch.randn(b, 20, width)}
    given |= {"reference_points": torch.rand(b, n, 1, 4), "spatial_shapes_list": shapes}
    given |= {"spatial_shapes": torch.tensor(shapes)}
    if not hasattr(made, "value_proj"):
        return [given]
    shown = torch.rand(b, 20) < 0.7
    return [given, given | {"attention_mask": shown, "position_embeddings": torch.randn(b, n, width)}]


def groups(made: Any, n: int, b: int, _width: int) -> list[dict[str, Any]]:
    """A few queries, each of which takes some of the tokens."""
    import torch

    c = made.q_proj.in_features
    return [{"query": torch.randn(b, 3, c), "key": torch.randn(b, n, c)}]


PICTURES: dict[str, Calls] = {
    "hunyuan_vl.HunYuanVLVisionAttention": packed,
    "hy_v4_vl.HYV4VLVisionAttention": packed,
    "conditional_detr.ConditionalDetrDecoderCrossAttention": conditional,
    "conditional_detr.ConditionalDetrDecoderSelfAttention": conditional,
    "dab_detr.DabDetrAttention": projected,
    "edgetam_video.EdgeTamVideoPerceiverAttention": resampled,
    "dab_detr.DetrAttention": with_queries("object_queries", "", keys=False),
    "table_transformer.TableTransformerAttention": with_queries("object_queries", "spatial_position_embeddings"),
    **{
        f"{name}Attention": with_queries("position_embeddings", "key_value_position_embeddings", first=True)
        for name in ("mask2former.Mask2Former", "oneformer.OneFormer")
    },
    "oneformer.OneFormerTextMapperAttention": three,
    "grounding_dino.GroundingDinoBiMultiHeadAttention": text,
    "mm_grounding_dino.MMGroundingDinoBiMultiHeadAttention": text,
    "sam3.Sam3ViTRoPEAttention": picture,
    "groupvit.GroupViTAssignAttention": groups,
    "d_fine.DFineMultiscaleDeformableAttention": boxes,
    "deimv2.Deimv2MultiscaleDeformableAttention": boxes,
    "rt_detr_v2.RTDetrV2MultiscaleDeformableAttention": boxes,
    "glpn.GLPNEfficientSelfAttention": squares(),
    "pvt.PvtEfficientSelfAttention": squares(),
    "pvt_v2.PvtV2SelfAttention": squares(),
    "segformer.SegformerAttention": squares(),
    "cvt.CvtSelfAttention": squares("hidden_state", 1),
    "hiera.HieraMaskUnitAttention": units,
    "sam2.Sam2MultiScaleAttention": of_shape("hidden_states", 5, 6, features=lambda m: m.dim),
    **{
        name: of_shape("hidden_states", 3, 4, features=lambda m: m.q.in_channels, last=False)
        for name in (
            "apertus1p5.Apertus1p5VisionTokenizerAttnBlock",
            "chameleon.ChameleonVQVAEEncoderAttnBlock",
            "janus.JanusVQVAEAttnBlock",
        )
    },
    "florence2.Florence2VisionChannelAttention": of_shape("hidden_states", 7, features=lambda m: m.dim),
    "florence2.Florence2VisionWindowAttention": of_shape("hidden_states", 5, 7, features=lambda m: m.dim),
    "mobilevitv2.MobileViTV2LinearSelfAttention": of_shape(
        "hidden_states", 4, 7, features=lambda m: m.embed_dim, last=False
    ),
    "swiftformer.SwiftFormerEfficientAdditiveAttention": of_shape("x", 7, features=lambda m: m.to_query.in_features),
    "mgp_str.MgpstrA3Module": of_shape("hidden_states", 7, features=lambda m: m.feat.in_channels),
    "levit.LevitAttention": of_shape("hidden_state", 9, features=lambda m: m.queries_keys_values.linear.in_features),
    "levit.LevitAttentionSubsample": of_shape("hidden_state", 25, features=lambda m: m.queries.linear.in_features),
    "sam2_video.Sam2VideoRoPEAttention": video,
    "sam3_tracker_video.Sam3TrackerVideoRoPEAttention": video,
    "edgetam_video.EdgeTamVideoRoPESelfAttention": video,
    "edgetam_video.EdgeTamVideoRoPECrossAttention": video,
    "vjepa2.VJEPA2RopeAttention": frames,
    "efficientloftr.EfficientLoFTRAttention": places,
    "llama4.Llama4VisionAttention": complexes,
    "gemma4.Gemma4VisionAttention": patches,
    "data2vec.Data2VecVisionSelfAttention": windows,
    "data2vec.Data2VecVisionSdpaSelfAttention": windows,
}
