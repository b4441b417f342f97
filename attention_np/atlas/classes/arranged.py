"""Softmax attention of what stands in another order: pictures, sequences first, a memory made of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import biases, chain
from attention_np.atlas import recipes
from attention_np.atlas._interface import eager
from attention_np.atlas._layer import Arguments
from attention_np.atlas._mirror import About, Mirror, UnknownLayer
from attention_np.atlas._parts import affine, rotation
from attention_np.atlas.classes.dense import BERT, OUT, SIZE, Dense, given, weights
from attention_np.atlas.classes.pictures import resampled
from attention_np.atlas.classes.tables import T5, of_distance
from attention_np.atlas.recipes._steps import in_heads


class Arranged(Dense):
    """A reading as `Dense`, whose arguments `before` arranges, and whose output `after` arranges back."""

    def __init__(
        self,
        projections: str = "q_proj k_proj v_proj o_proj",
        before: Callable[[Mirror, Arguments], dict[str, Any]] | None = None,
        after: Callable[[Mirror, Arguments, Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(projections, **options)
        self.before, self.after = before, after

    def __call__(self, m: Mirror, a: Arguments) -> Any:
        """The output, of the arguments of the module."""
        arranged = Arguments(a._given | self.before(m, a)) if self.before else a
        y = super().__call__(m, arranged)
        return self.after(m, a, y) if self.after else y


class TurnedKeys(Dense):
    """A reading in which keys are turned by angles of their own: in groups, of each the last, and not the very last.

    `groups`: how many, of a call and of its numbers of queries and turned keys; `positions_key`: their cos and sin.
    """

    def __init__(self, turn: str, positions_key: str, groups: Callable[..., int]) -> None:
        named = {"x": "query", "memory": "key", "x_value": "value"}
        super().__init__(turn=turn, mask=None, is_causal="is_causal", **named)  # type: ignore[arg-type]
        self.positions_key, self.groups = positions_key, groups

    def _scores(self, m: Mirror, a: Arguments, mask: Any, shape: tuple[int, int]) -> dict[str, Any]:
        if not a.query.ndim == a.key.ndim == a.value.ndim:
            raise UnknownLayer(f"{m._about} takes queries, keys and values of the same axes")
        made = super()._scores(m, a, mask, shape)
        turned = shape[1] - (a.num_k_exclude_rope or 0)
        groups = self.groups(m, a, shape[0], turned) if turned else 1
        for name, x in zip(("key_cos", "key_sin"), getattr(a, self.positions_key), strict=True):
            x, still = np.asarray(x), float(name == "key_cos")
            edges = [(0, 0)] * (x.ndim - 2)
            each = np.pad(x, [*edges, (turned // groups - x.shape[-2], 0), (0, 0)], constant_values=still)
            each = np.concatenate([each] * groups, axis=-2)
            each = np.pad(each, [*edges, (0, shape[1] - turned), (0, 0)], constant_values=still)
            made[name] = each[..., None, :, :]
        return made


class Unclipped(Dense):
    """A reading of projections that could clip their numbers, and do not (Gemma 4)."""

    def check(self, about: About) -> None:
        """Nothing: `_weights` refuses."""

    def _weights(self, m: Mirror) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, attribute in zip(("query", "key", "value", "output"), self.projections, strict=True):
            part = getattr(m, attribute)
            if part.use_clipped_linears:
                raise UnknownLayer(f"{part._about} clips what it takes and makes, which no recipe does")
            made[f"w_{name}"], made[f"b_{name}"] = affine(part.linear)
        return made


def sequence_first(m: Mirror, a: Arguments) -> dict[str, Any]:
    """Mask2Former: (n, b, c), and a mask (b * h, n, m); one of values without positions is not bound."""
    names = ("hidden_states", "position_embeddings", "key_value_states", "key_value_position_embeddings")
    made = {name: None if getattr(a, name) is None else getattr(a, name).swapaxes(0, 1) for name in names}
    if a.attention_mask is not None:
        mask = np.asarray(a.attention_mask)
        made["attention_mask"] = mask.reshape(-1, m.num_heads, *mask.shape[1:])
    return made | with_positions("position_embeddings", "key_value_position_embeddings")(m, a)


def with_positions(own: str, of_keys: str = "", mask: bool = False) -> Callable[[Mirror, Arguments], dict[str, Any]]:
    """Refuse a call without positions, which the module cannot do; a boolean `mask` is True where it hides."""

    def arranged(m: Mirror, a: Arguments) -> dict[str, Any]:
        name = of_keys if of_keys and a.key_value_states is not None else own
        if getattr(a, name) is None:
            raise UnknownLayer(f"{m._about} is not known without {name}")
        hidden = None if a.attention_mask is None else np.asarray(a.attention_mask)
        if not mask or hidden is None or hidden.dtype.kind != "b":
            return {}
        return {"attention_mask": np.where(hidden, -np.inf, 0.0)}

    return arranged


def of_text(m: Mirror, a: Arguments) -> dict[str, Any]:
    """Grounding DINO: what the picture reads in the text; the other way round is another output."""
    pairs = ((a.vision_features, m.vision_proj), (a.text_features, m.text_proj))
    numbers = [[getattr(y, "value", y) for y in (x, *affine(projection))] for x, projection in pairs]
    longest = [np.linalg.norm(x @ w + b, axis=-1).max() for x, w, b in numbers]
    if longest[0] * longest[1] * m.scale >= 25000:
        raise UnknownLayer(f"{m._about} clips scores that are 50000 apart, which no recipe does")
    mask = a.text_attention_mask
    return {"attention_mask": None if mask is None else np.where(np.asarray(mask), -np.inf, 0.0)[:, None, None]}


def flattened(m: Mirror, a: Arguments) -> dict[str, Any]:
    """A picture (b, height, width, c) as tokens."""
    x = a.hidden_states
    return {"hidden_states": x.reshape(x.shape[0], -1, x.shape[-1])}


def as_picture(m: Mirror, a: Arguments, y: Any) -> Any:
    """The tokens of a picture where they were."""
    return y.reshape(*a.hidden_states.shape[:-1], y.shape[-1])


def of_frames(m: Mirror, a: Arguments) -> dict[str, Any]:
    """V-JEPA 2: a third of the features turns by the frame of a token, one by its row, one by its column."""
    token = np.arange(a.hidden_states.shape[-2]) if a.position_mask is None else np.asarray(a.position_mask)[:, None]
    frame, place = np.divmod(token, m.grid_size**2)
    half = m.attention_head_size // 3 // 2
    if not m.d_dim == m.h_dim == m.w_dim == 2 * half:
        raise UnknownLayer(f"{m._about} does not turn thirds of a head")
    speeds = np.tile(1.0 / 10000.0 ** (np.arange(half) / half), 2)
    places = (frame, *np.divmod(place, m.grid_size))
    angles = np.concatenate([x[..., None] * speeds for x in places], axis=-1)
    return {"position_embeddings": (np.cos(angles), np.sin(angles))}


def of_all_heads(m: Mirror, a: Arguments) -> tuple[Any, Any]:
    """EfficientLoFTR: angles (b, n, h * d) of all heads together, those of each."""
    x, memory = a.hidden_states, a.encoder_hidden_states
    if m.head_dim % 2 or m.num_key_value_groups != 1 or m.q_proj.weight.shape[0] != x.shape[-1]:
        raise UnknownLayer(f"{m._about} is known with one head of keys for each of queries, of an even size")
    if memory is not None and memory.shape != x.shape:
        raise UnknownLayer(f"{m._about} takes encoder_hidden_states of the shape of hidden_states")
    cos, sin = (in_heads(np.asarray(y), m.head_dim) for y in a.position_embeddings)
    return cos, sin


def neighbours(cos: Any, sin: Any) -> dict[str, Any]:
    """Angles as they are."""
    return {"cos": cos, "sin": sin, "pairs": "neighbours"}


def of_rows_and_columns(m: Mirror, a: Arguments) -> Any:
    """Gemma 4: a half of the features turns by the row of a patch, the other by its column."""
    if np.shape(a.position_ids)[-1] != 2 or m.head_dim % 4:
        raise UnknownLayer(f"{m._about} is known with two positions, for halves of an even size")
    return a.position_embeddings


def of_two(cos: Any, sin: Any) -> dict[str, Any]:
    """Of all heads."""
    return {"cos": cos[..., None, :, :], "sin": sin[..., None, :, :], "pairs": "halves of two"}


def keys_of(a: Arguments) -> int:
    """The number of keys."""
    return int((a.hidden_states if a.key_value_states is None else a.key_value_states).shape[-2])


def repeats(m: Mirror, a: Arguments, n: int, keys: int) -> int:
    """SAM 2: keys of several frames are turned as the queries, frame by frame."""
    return keys // n if m.rope_k_repeat and keys != n else 1


def of_places(m: Mirror, a: Arguments) -> Any:
    """Data2Vec: a table of differences of rows and columns, with three rows for the first token; what is shared."""
    shared = a.relative_position_bias
    if not m.has_relative_position_bias:
        return shared
    part, shape = m.relative_position_bias, [x // m.config.patch_size for x in a.resolution]
    if a.interpolate_pos_encoding and a.hidden_states.shape[-2] != shape[0] * shape[1] + 1:
        raise UnknownLayer(f"{m._about} is not known with a bias that is stretched to other tokens")
    height, width = (2 * x - 1 for x in shape)
    old, table = [2 * x - 1 for x in part.window_size], part.relative_position_bias_table
    inner = resampled(table[:-3].reshape(old[1], -1), height).reshape(height, old[0], -1).swapaxes(0, 1)
    inner = resampled(inner.reshape(old[0], -1), width).reshape(width, height, -1).swapaxes(0, 1)
    table = chain.concatenate([inner.reshape(height * width, -1), table[-3:]], axis=0)
    y, x = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    index = np.full((y.size + 1, y.size + 1), height * width + 1)
    index[0] = height * width
    index[0, 0] = height * width + 2
    index[1:, 1:] = (y[:, None] - y + shape[0] - 1) * width + x[:, None] - x + shape[1] - 1
    own = biases.table(table, index)
    return own if shared is None else [own, np.asarray(shared)]


def conditional(m: Mirror, a: Arguments) -> Any:
    """Conditional DETR, of one sequence or across two."""
    cross, made = m.has("q_pos_sine_proj"), weights(m, "q_content_proj", "k_content_proj", "v_proj", "o_proj")
    places = {"query_places": a.query_position_embeddings, "key_places": a.query_position_embeddings}
    if cross:
        places |= {"key_places": a.encoder_position_embeddings, "places": a.query_sine_embed}
    for name, part in (("query_places", "q_pos_proj"), ("key_places", "k_pos_proj"), ("places", "q_pos_sine_proj")):
        if places.get(name) is not None:
            made[f"w_{name}"], made[f"b_{name}"] = affine(getattr(m, part))
            made[name] = np.asarray(places[name])
    memory = a.encoder_hidden_states if cross else a.hidden_states
    shape = (a.hidden_states.shape[-2], memory.shape[-2])
    made |= m.function("interface")(m, a.attention_mask, scaling=m.scaling, shape=shape)
    made.pop("groups", None)
    return recipes.with_places(a.hidden_states, memory=memory, d=m.head_dim, **made)


def edgetam(m: Mirror, a: Arguments) -> Any:
    """EdgeTAM's resampler of memories."""
    made = weights(m, "q_proj", "k_proj", "v_proj", "o_proj")
    if a.positional_encoding is not None:
        made["positions"] = np.asarray(a.positional_encoding).reshape(*a.key.shape[:-1], -1)
    shape = (a.query.shape[-2], a.key.shape[-2])
    made |= m.function("interface")(m, None, scaling=m.scaling, shape=shape, is_causal=m.is_causal)
    made.pop("groups", None)
    return recipes.crossed_heads(a.query, a.key, a.value, **made, d=m.head_dim)


conditional.recipe = recipes.with_places  # type: ignore[attr-defined]
edgetam.recipe = recipes.crossed_heads  # type: ignore[attr-defined]
READINGS = {
    "0b114360a8 669427d3b5": conditional,
    "aab70daa2a": edgetam,
    "e42d394693": Dense(
        "- - - output_proj", memory="key_states", x_value="value_states", size="attention_head_dim",
        value_size="values_head_dim", turn=None, inline=True
    ),  # DAB-DETR: projected before
    "ff8cca6d31": Dense(turn=None, mask=None, refused="attention_mask", packed="cu_seqlens"),  # HunYuan-VL
    "b198611df7": Arranged(OUT, with_positions("object_queries"), added="object_queries", turn=None, inline=True),
    "47fdf15eb2": Arranged(
        OUT, with_positions("object_queries", "spatial_position_embeddings", mask=True), memory="key_value_states",
        added="object_queries", added_key="spatial_position_embeddings", turn=None, inline=True
    ),  # Table Transformer
    "ade9c15270": Arranged(
        OUT, sequence_first, lambda m, a, y: y.swapaxes(0, 1), memory="key_value_states", added="position_embeddings",
        added_key="key_value_position_embeddings", turn=None, inline=True
    ),  # Mask2Former, OneFormer
    "ccc5d70fc6": Dense(
        "q_proj k_proj v_proj proj", heads="num_heads", x="q", memory="k", x_value="v", turn=None, mask=None,
        inline=True, scale="scale"
    ),  # OneFormer's text
    "5cb7acd280": Arranged(
        "vision_proj text_proj values_text_proj out_vision_proj", of_text, x="vision_features", memory="text_features",
        turn=None, inline=True, scale="scale"
    ),  # Grounding DINO
    "1cff58d090": Arranged(
        before=flattened, after=as_picture, turn="apply_rotary_pos_emb_2d", mask=None, is_causal="is_causal"
    ),  # SAM 3
    "4f72b353ea": TurnedKeys("apply_rotary_pos_emb_2d", "position_embeddings", repeats),  # SAM 2
    "da94fd9081": TurnedKeys("apply_rotary_pos_emb_2d_self_attn", "position_embeddings", lambda *_: 1),  # EdgeTAM
    "0a0df73368": TurnedKeys(
        "apply_rotary_pos_emb_2d_cross_attn", "position_embeddings_k", lambda m, a, *_: a.rope_k_repeat
    ),
    "56e4f4cd2a": Arranged(
        "query key value proj", of_frames, turn=neighbours, size="attention_head_size", mask=None, is_causal="is_causal"
    ),  # V-JEPA 2
    "80d622f4b1": Dense(
        memory="encoder_hidden_states", mask=None, turn=neighbours, turn_if=given(), positions=of_all_heads
    ),  # EfficientLoFTR
    "180b8382b3": Dense(  # Llama 4
        mask=None,
        turn="vision_apply_rotary_emb",
        positions=lambda m, a: [
            np.asarray(x).reshape(len(a.hidden_states[0]), -1) for x in (a.freqs_ci.real, a.freqs_ci.imag)
        ],
        scale=lambda m, a: m.head_dim**-0.5,
        is_causal=False,
    ),
    "847e6d8caf": Unclipped(
        norms="q_norm k_norm", norm_value="v_norm", turn=of_two, positions=of_rows_and_columns
    ),  # Gemma 4
    "f3e4b7b90c": Arranged(
        "query key value output",
        lambda m, a: {} if a.mask is None else {"mask": np.asarray(a.mask)[..., : keys_of(a)]},
        memory="key_value_states", mask="mask",
        **T5 | {"position_bias": lambda m, a: of_distance(m, a, bidirectional=False)}
    ),  # Pix2Struct
    "ca2c38f093 5666b950c3": Dense(BERT, inline=True, scale=None, mask=None, position_bias=of_places, **SIZE),
}  # fmt: skip
PARTS = {"486ec726a2 acc47a4262": lambda m: None}  # the table of Data2Vec, the projections of Gemma 4
FUNCTIONS: dict[str, Any] = {
    "da12f8e8b1": rotation("neighbours", axis=-3),  # Inkling 2
    "ecdae08c5e": rotation(axis=-3),  # MiniMax M3
    "e5d6cfb13f f3fa57dbe8 9db67e7f61 c341bc04e7": rotation("neighbours", axis=-3),  # EdgeTAM, SAM
    "18e05dfc2e": eager(groups=True, takes=("position_bias",)),
    "7f17a374d6": eager(groups=True),
    "54a2ff6e7e": rotation("neighbours", half=True, axis=-3),  # Llama 4
    "cef99be23d 3a63d6112d aa384d8351": None,  # of Gemma 4, of Data2Vec
    "03f1287622": None,  # of V-JEPA 2
}
