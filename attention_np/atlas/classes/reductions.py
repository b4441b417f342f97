"""Pictures whose keys, or queries, are fewer than their pixels, and those that sum up their tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from attention_np import chain
from attention_np.atlas import recipes
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import Mirror, UnknownLayer
from attention_np.atlas._parts import affine
from attention_np.atlas.classes.arranged import Arranged
from attention_np.atlas.classes.compressed import check_choice, plain
from attention_np.atlas.classes.dense import BERT, Dense, options_of, thirds, weights
from attention_np.atlas.recipes.reductions import windows


def taps(m: Mirror, **fields: Any) -> Any:
    """A convolution's weight (rows, columns, c_in / groups, c_out); refused if not of squares side by side."""
    fields = {"padding": (0, 0), "dilation": (1, 1), "groups": 1, "stride": m.kernel_size} | fields
    if any(getattr(m, name) != value for name, value in fields.items()) or m.padding_mode != "zeros":
        raise UnknownLayer(f"{m._about} is no convolution of squares side by side")
    return m.weight.swapaxes(0, 3).swapaxes(0, 1).swapaxes(0, 2)


def pixel(m: Mirror) -> tuple[Any, Any]:
    """The matrix (d_in, d_out) and b of a convolution of single pixels."""
    if m.kernel_size != (1, 1):
        raise UnknownLayer(f"{m._about} is no projection")
    return taps(m)[0, 0], m.bias


def batch_norm(m: Mirror) -> tuple[Any, Any]:
    """The gain and b of a batch norm that has stopped to count."""
    if not m.track_running_stats or m.running_mean is None:
        raise UnknownLayer(f"{m._about} has no numbers of earlier batches")
    if m.weight is None:
        raise UnknownLayer(f"{m._about} has no gain")
    gain = m.weight * (1.0 / np.sqrt(np.asarray(m.running_var, float) + m.eps)).astype(m.weight.dtype)
    return gain, m.bias - np.asarray(m.running_mean, m.weight.dtype) * gain


class Reduced(Dense):
    """A reading of keys that are made of squares of tokens: `part` has the convolution `name` and its norm."""

    def __init__(self, projections: str, ratio: str, name: str, part: str = "", **options: Any) -> None:
        super().__init__(projections, turn=None, **options)
        self.ratio, self.name, self.part = ratio, name, part
        self.recipe = recipes.spatially_reduced

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        reduces = getattr(m, self.ratio) > 1
        home = getattr(m, self.part) if self.part and reduces else m
        size = getattr(home, self.name).kernel_size[0] if reduces else 1
        keys = (a.height // size) * (a.width // size)
        made = super()._scores(m, a, mask, (shape[0], keys)) | {"height": a.height, "width": a.width, "size": int(size)}
        if reduces:
            w = taps(getattr(home, self.name), kernel_size=(size, size))
            norm = options_of(home.layer_norm, a.hidden_states)
            made |= {"w_reduction": w.reshape(-1, w.shape[-1]), "b_reduction": getattr(home, self.name).bias}
            made |= {"gain": norm["gain"], "b": norm["b"], "epsilon": norm["epsilon"]}
        return made


def hiera(m: Mirror, a: Arguments) -> Any:
    """Hiera: tokens of a window stand apart; each stride of a window gives a query."""
    x, k = a.hidden_states, m.query_stride
    count = x.shape[-2] // (k * m.window_size) if m.use_mask_unit_attn else 1
    x = x.reshape(x.shape[0], -1, count, x.shape[-1]).swapaxes(1, 2)  # (b, windows, tokens, c)
    queries = x.reshape(*x.shape[:2], k, -1, x.shape[-1]).swapaxes(2, 3)
    y = recipes.pooled_queries(queries, x, **fused(m), d=m.head_dim, scale=m.scale)
    return y.swapaxes(1, 2).reshape(x.shape[0], -1, m.hidden_size_output)


def sam2(m: Mirror, a: Arguments) -> Any:
    """SAM 2: a square of tokens gives a query."""
    x, (tall, wide) = a.hidden_states, m.query_stride or (1, 1)
    b, height, width, c = x.shape
    options = m.function("interface")(m, None, scaling=m.scale, shape=(2, 2), is_causal=m.is_causal)
    options.pop("groups", None)
    made = fused(m) | options
    made["d"] = made["w_query"].shape[-1] // m.num_attention_heads
    y = recipes.pooled_queries(windows(x, tall, wide), x.reshape(b, height * width, c), **made)
    return y.reshape(b, height // tall, width // wide, y.shape[-1])


def fused(m: Mirror) -> dict[str, Any]:
    """Of a projection that makes queries, keys and values one behind the other."""
    made: dict[str, Any] = {}
    for kind, x in zip("wb", affine(m.qkv), strict=True):
        made |= {f"{kind}_{name}": y for name, y in zip(("query", "key", "value"), thirds(m, x), strict=True)}
    made["w_output"], made["b_output"] = affine(m.proj)
    return made


def of_pixels(m: Mirror, a: Arguments) -> Any:
    """The attention of a picture's quantiser."""
    made: dict[str, Any] = {"gain": m.norm.weight, "b": m.norm.bias, "groups": m.norm.num_groups, "epsilon": m.norm.eps}
    for name, part in (("query", m.q), ("key", m.k), ("value", m.v), ("output", m.proj_out)):
        made[f"w_{name}"], made[f"b_{name}"] = pixel(part)
    return recipes.of_pixels(a.hidden_states, **made)


def of_channels(m: Mirror, a: Arguments) -> Any:
    """Florence 2: groups of features."""
    x = a.hidden_states
    options = m.function("interface")(m, None, scaling=x.shape[-2] ** -0.5, shape=(2, 2), is_causal=m.is_causal)
    return recipes.of_channels(x, **fused(m), d=x.shape[-1] // m.groups, scale=options["scale"])


def in_windows(m: Mirror, a: Arguments) -> dict[str, Any]:
    """Florence 2: zeros fill the last windows of a picture."""
    x, size = a.hidden_states, m.window_size
    for axis in (1, 2):
        shape = list(x.shape)
        shape[axis] = -shape[axis] % size
        x = chain.concatenate([x, np.zeros(shape)], axis=axis)
    return {"hidden_states": windows(x, size, size)}


def of_windows(m: Mirror, a: Arguments, y: Any) -> Any:
    """What `in_windows` took apart, as tokens."""
    (b, height, width, c), size = a.hidden_states.shape, m.window_size
    rows, columns = -(-height // size), -(-width // size)
    y = y.reshape(b, rows, columns, size, size, c).swapaxes(2, 3).reshape(b, rows * size, columns * size, c)
    return y[:, :height, :width].reshape(b, height * width, c)


def separable(m: Mirror, a: Arguments) -> Any:
    """MobileViT 2: (b, c, pixels of a patch, patches)."""
    for part in (m.qkv_proj, m.out_proj):
        if part.normalization is not None or part.activation is not None:
            raise UnknownLayer(f"{part._about} is no plain projection")
    w, b = pixel(m.qkv_proj.convolution)
    made = {"w_score": w[:, :1], "w_key": w[:, 1 : m.embed_dim + 1], "w_value": w[:, m.embed_dim + 1 :]}
    if b is not None:
        made |= {"b_score": b[:1], "b_key": b[1 : m.embed_dim + 1], "b_value": b[m.embed_dim + 1 :]}
    made["w_output"], made["b_output"] = pixel(m.out_proj.convolution)
    x = a.hidden_states.swapaxes(1, 3).swapaxes(1, 2)
    return recipes.separable(x, **made).swapaxes(1, 2).swapaxes(1, 3)


def efficient_additive(m: Mirror, a: Arguments) -> Any:
    """SwiftFormer."""
    made: dict[str, Any] = {"w_score": m.w_g}
    for name, part in (("query", m.to_query), ("key", m.to_key), ("mixed", m.proj), ("output", m.final)):
        made[f"w_{name}"], made[f"b_{name}"] = affine(part)
    if m.scale_factor != made["w_query"].shape[-1] ** -0.5:
        raise UnknownLayer(f"{m._about} has another scale_factor than that of its features")
    return recipes.efficient_additive(a.x, **made)


def learned_tokens(m: Mirror, a: Arguments) -> Any:
    """MGP-STR."""
    norms = [options_of(norm, a.hidden_states) for norm in (m.token_norm, m.norm)]
    if norms[0]["epsilon"] != norms[1]["epsilon"]:
        raise UnknownLayer(f"{m._about} has two epsilons")
    made: dict[str, Any] = {"gain": norms[0]["gain"], "b": norms[0]["b"], "epsilon": norms[0]["epsilon"]}
    made |= {"output_gain": norms[1]["gain"], "output_b": norms[1]["b"], "w_score": pixel(m.tokenLearner[1])[0]}
    for name, part in (("w_mixed", m.tokenLearner[0]), ("w_value", m.feat)):
        w = taps(part, groups=part.groups)[0, 0]  # (c / groups, c)
        made[name] = w.reshape(w.shape[0], part.groups, -1).swapaxes(0, 1)
    return recipes.learned_tokens(a.hidden_states, **made)


def with_norm(m: Mirror, parts: tuple[int, ...] | None = None, heads: int = 1) -> list[tuple[Any, Any]]:
    """LeViT: matrices and b of a projection and its batch norm, for heads that make so many features of each part."""
    (w, _), (gain, b) = affine(m.linear), batch_norm(m.batch_norm)
    w = w * gain
    if parts is None:
        return [(w, b)]
    ends = np.cumsum((0, *parts))
    columns = [np.arange(heads)[:, None] * ends[-1] + np.arange(i, j) for i, j in pairwise(ends)]
    return [(w[:, x.ravel()], b[x.ravel()]) for x in columns]


def levit(m: Mirror, a: Arguments) -> Any:
    """LeViT: with a projection for all, or with fewer queries, of each so many rows and columns."""
    x, heads, d, d_value = a.hidden_state, m.num_attention_heads, m.key_dim, m.attention_ratio * m.key_dim
    x_query = x
    numbers = getattr(m.attention_biases, "value", m.attention_biases)[:, np.asarray(m.attention_bias_idxs)]
    if not all(np.array_equal(x, numbers) for x in m.attention_bias_cache.values()):
        raise UnknownLayer(f"{m._about} keeps other biases, of an earlier call: train() and eval() make it forget them")
    if m.has("queries_subsample"):
        side, stride = m.queries_subsample.resolution, m.queries_subsample.stride
        x_query = x.reshape(x.shape[0], side, side, -1)[:, ::stride, ::stride].reshape(x.shape[0], -1, x.shape[-1])
        parts = [*with_norm(m.queries), *with_norm(m.keys_values, (d, d_value), heads)]
    else:
        parts = with_norm(m.queries_keys_values, (d, d, d_value), heads)
    parts += with_norm(m.projection)
    made = {f"w_{name}": w for name, (w, _) in zip(("query", "key", "value", "output"), parts, strict=True)}
    made |= {f"b_{name}": b for name, (_, b) in zip(("query", "key", "value", "output"), parts, strict=True)}
    made |= {"table": m.attention_biases.swapaxes(0, 1), "places": np.asarray(m.attention_bias_idxs)}
    if m.scale != d**-0.5 or m.activation._about.kind != "Hardswish":
        raise UnknownLayer(f"{m._about} has another scale than that of its features, or another activation")
    return recipes.of_distances(x, x_query, **made, d=d, d_value=d_value)


def convolved(m: Mirror, a: Arguments) -> Any:
    """CvT."""
    made: dict[str, Any] = weights(m, "projection_query", "projection_key", "projection_value", "-")
    strides, padding = {}, {}
    for name in ("query", "key", "value"):
        whole = getattr(m, f"convolution_projection_{name}")
        if whole.linear_projection._about.kind != "CvtSelfAttentionLinearProjection":
            raise UnknownLayer(f"{whole._about} is known with a picture made rows alone")
        part = whole.convolution_projection
        conv, (gain, b) = part.convolution, batch_norm(part.normalization)
        sizes = (conv.stride[0], conv.padding[0])
        w = taps(conv, stride=(sizes[0],) * 2, padding=(sizes[1],) * 2, groups=m.embed_dim)[:, :, 0]
        made[f"taps_{name}"], strides[name], padding[name] = w * gain, *sizes
        made[f"b_taps_{name}"] = b if conv.bias is None else b + conv.bias * gain
    if strides["key"] != strides["value"] or padding["key"] != padding["value"]:
        raise UnknownLayer(f"{m._about} has values of other places than keys")
    made |= {"strides": (strides["query"], strides["key"]), "padding": (padding["query"], padding["key"])}
    made |= {"height": a.height, "width": a.width, "first": int(m.with_cls_token), "d": m.embed_dim // m.num_heads}
    return recipes.convolved(a.hidden_state, **made, scale=m.scale)


def assigned(m: Mirror, a: Arguments) -> Any:
    """GroupViT; a token that two queries have the same score for is refused."""
    scores = plain(m.q_proj(a.query)) @ plain(m.k_proj(a.key)).swapaxes(-1, -2)  # (b, n, m)
    check_choice(m, scores.swapaxes(-1, -2), 1)
    made = weights(m, "q_proj", "k_proj", "v_proj", "proj")
    return recipes.assigned(a.query, a.key, **made, hard=True, scale=m.scale, epsilon=m.assign_eps)


for reading in (
    *(hiera, sam2, of_pixels, of_channels, separable, efficient_additive, learned_tokens, levit, convolved, assigned),
):
    name = {hiera: "pooled_queries", sam2: "pooled_queries", levit: "of_distances"}.get(reading, reading.__name__)
    reading.recipe = getattr(recipes, name)  # type: ignore[attr-defined]

PVT: dict[str, Any] = {"size": "attention_head_size", "mask": None, "inline": True, "scale": None}
READINGS = {
    "2aa7b75e28": Reduced(BERT, "sr_ratio", "sr", **PVT),  # GLPN
    "a3d5c06b03": Reduced(BERT, "sequences_reduction_ratio", "sequence_reduction", **PVT),
    "9f404d3458": Reduced("query key value proj", "spatial_reduction_ratio", "spatial_reduction", **PVT),
    "827493e2b7": Reduced(  # SegFormer
        "q_proj k_proj v_proj o_proj", "sequence_reduction_ratio", "sequence_reduction", "sequence_reduction"
    ),
    "bd4e95bd78": hiera,
    "2cd1982275": sam2,
    "7895b81b78": of_pixels,  # Chameleon, Janus
    "db90209762": of_channels,
    "8b1a57ea2e": Arranged(
        "qkv proj", in_windows, of_windows, layout=thirds, heads="num_heads", turn=None, mask=None, scale="scale"
    ),
    "ebdd5c7007": separable,
    "f6f6d6c2e7": efficient_additive,
    "42ae4e9918": learned_tokens,
    "595da196cd c7d096108e": levit,
    "14aadff767": convolved,
    "c78f829f09": assigned,
}
PARTS = {  # whose parts the readings look at
    "f121a5f650 c01b1db441 c8d30a6e1d f136878d53 b61c365b67 181b7ed8aa 6fe151fbd7": lambda m: None,
}
FUNCTIONS = {"bf04fc5af5 29b95e80dd": None}  # of SAM 2, of GroupViT
