"""Encoders that put something of their own around `multi_head`."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain, short_conv, softmax
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import activated, attention, in_heads, joined, linear, normed
from attention_np.atlas.recipes.dense import grouped_query, multi_head

QKV = {"w_query": (6, 8), "w_key": (6, 8), "w_value": (6, 8)}


@recipe(x=(2, 5, 6), gain=(6,), b=(6,), **QKV)
def pre_norm(
    x: Any, gain: Any, b: Any = None, memory: Any = None, memory_gain: Any = None, memory_b: Any = None, *,
    epsilon: float = 1e-5, **options: Any,
) -> Any:  # fmt: skip
    """Tokens, and those of another sequence, are normalised in the same module (Perceiver: Jaegle et al., 2021)."""
    x = normed(x, gain, b, kind="layer", epsilon=epsilon)  # (layer-norm.4)
    if memory_gain is not None:
        memory = normed(memory, memory_gain, memory_b, kind="layer", epsilon=epsilon)
    return grouped_query(x, memory=memory, norm=None, **{"groups": 1, **options})


@recipe(x=(2, 5, 6), layout=(2, 5, 3), w_layout_query=(3, 4), w_layout_key=(3, 4), **QKV)
def with_layout(
    x: Any, layout: Any, w_layout_query: Any, w_layout_key: Any, b_layout_query: Any = None, b_layout_key: Any = None,
    *, d: int = 4, d_layout: int = 2, bias: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Places on a page, of `d_layout` features a head, score each pair, too (LiLT: Wang et al., 2022)."""
    query = in_heads(linear(layout, w_layout_query, b_layout_query), d_layout)  # (b, h, n, d_layout)
    key = in_heads(linear(layout, w_layout_key, b_layout_key), d_layout)
    places = d_layout**-0.5 * (query @ key.swapaxes(-2, -1))  # (b, h, n, n)
    return multi_head(x, d=d, bias=places if bias is None else [places, bias], **options)


@recipe(
    x=(2, 3, 6), memory=(2, 5, 6), query_places=(2, 3, 6), key_places=(2, 5, 6), places=(2, 3, 6),
    w_query_places=(6, 8), w_key_places=(6, 8), w_places=(6, 8), w_output=(8, 6), **QKV,
)  # fmt: skip
def with_places(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, memory: Any = None, query_places: Any = None,
    key_places: Any = None, places: Any = None, w_query_places: Any = None, w_key_places: Any = None,
    w_places: Any = None, b_query: Any = None, b_key: Any = None, b_value: Any = None, b_output: Any = None,
    b_query_places: Any = None, b_key_places: Any = None, b_places: Any = None, *, d: int = 4, **options: Any,
) -> Any:  # fmt: skip
    """Heads have features of content, and behind these as many of places (Conditional DETR: Meng et al., 2021)."""
    memory = x if memory is None else memory
    query, key = linear(x, w_query, b_query), linear(memory, w_key, b_key)  # (b, n, h * d), (b, m, h * d)
    if query_places is not None:
        query = query + linear(query_places, w_query_places, b_query_places)
        key = key + linear(key_places, w_key_places, b_key_places)
    query, key, value = (in_heads(y, d) for y in (query, key, linear(memory, w_value, b_value)))
    if places is not None:
        query = chain.concatenate([query, in_heads(linear(places, w_places, b_places), d)])  # (b, h, n, 2 d)
        key = chain.concatenate([key, in_heads(linear(key_places, w_key_places, b_key_places), d)])
    return linear(joined(attention(query, key, value, **options)), w_output, b_output)  # (dot-product.5)


@recipe(x=(2, 3, 6), memory=(2, 5, 6), x_value=(2, 5, 6), positions=(2, 5, 8), w_output=(8, 6), **QKV)
def crossed_heads(
    x: Any, memory: Any, x_value: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, positions: Any = None,
    b_query: Any = None, b_key: Any = None, b_value: Any = None, b_output: Any = None, *, d: int = 4, **options: Any,
) -> Any:  # fmt: skip
    """Keys and values have positions; heads and queries change places on the way out (EdgeTAM: Zhou et al., 2025)."""
    key, value = linear(memory, w_key, b_key), linear(x_value, w_value, b_value)
    if positions is not None:
        key, value = key + positions, value + positions
    query, key, value = (in_heads(y, d) for y in (linear(x, w_query, b_query), key, value))
    output = attention(query, key, value, **options)  # (b, h, n, d) (dot-product.5)
    return linear(output.reshape(*x.shape[:-1], -1), w_output, b_output)


@recipe(x=(2, 3, 6), boxes=(2, 1, 3, 3, 4), **QKV)
def with_boxes(
    x: Any, boxes: Any, w_query: Any, b_query: Any = None, *, d: int = 4, bias: Any = None, **options: Any
) -> Any:
    """Queries also meet a vector of each pair of boxes, `boxes` (b, 1, n, n, d) (BROS: Hong et al., 2022)."""
    query = in_heads(linear(x, w_query, b_query), d)[..., None, :]  # (b, h, n, 1, d)
    places = d**-0.5 * (query @ boxes.swapaxes(-2, -1))[..., 0, :]  # (b, h, n, n)
    bias = places if bias is None else [places, bias]
    return multi_head(x, w_query=w_query, b_query=b_query, d=d, bias=bias, **options)


@recipe(x=(2, 3, 6), entities=(2, 2, 6), w_entity=(6, 8), **QKV)
def entity_aware(
    x: Any, entities: Any, w_query: Any, w_entity: Any, w_key: Any, w_value: Any, b_query: Any = None,
    b_entity: Any = None, b_key: Any = None, b_value: Any = None, *, d: int = 4, bias: Any = None,
) -> Any:  # fmt: skip
    """Words have a query for words and another one for entities (LUKE: Yamada et al., 2020)."""
    tokens = chain.concatenate([x, entities], axis=-2)
    words = (np.arange(tokens.shape[-2]) < x.shape[-2])[:, None]
    key, value = in_heads(linear(tokens, w_key, b_key), d), in_heads(linear(tokens, w_value, b_value), d)
    key = chain.concatenate([chain.where(words, key, 0.0), chain.where(~words, key, 0.0)])  # (b, h, m, 2 d)
    query = [in_heads(linear(x, w, b), d) for w, b in ((w_query, b_query), (w_entity, b_entity))]
    return joined(attention(chain.concatenate(query), key, value, scale=d**-0.5, bias=bias))  # (dot-product.5)


@recipe(x=(2, 5, 6), distances=(2, 5, 5), w_gates=(3, 8), factor=(2, 1, 1), b_gates=(8,), **QKV)
def gated_distances(
    x: Any, distances: Any, w_gates: Any, factor: Any, b_gates: Any = None, *, d: int = 4, mask: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """What is added for distances, (h, n, n), is opened by gates of the query's token (WavLM: Chen et al., 2022)."""
    tokens = x.reshape(*x.shape[:-1], -1, w_gates.shape[0]).swapaxes(-3, -2)  # (b, h, n, d)
    gates = linear(tokens, w_gates, b_gates)
    gates = activated(gates.reshape(*gates.shape[:-1], 2, 4).sum(axis=-1), "sigmoid")  # (b, h, n, 2)
    gate = gates[..., :1] * (gates[..., 1:] * factor - 1.0) + 2.0
    return multi_head(x, d=d, mask=mask, bias=gate * distances, **options)


@recipe(x=(2, 5, 6), taps=(3, 8), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8))
def with_memory(x: Any, taps: Any, w_value: Any, b_value: Any = None, *, visible: Any = 1.0, **options: Any) -> Any:
    """The values of neighbours, and the token's own, are added to the output (SAN-M: Gao et al., 2020)."""
    value = linear(x, w_value, b_value) * visible
    output = multi_head(x, w_value=w_value, b_value=b_value, **options)
    return output + (around(value, taps) + value)


def around(x: Any, taps: Any) -> Any:
    """Each feature of x (b, n, features) with `taps` of its neighbours, half of them ahead (short-conv.1)."""
    ahead = taps.shape[0] // 2
    padded = chain.concatenate([x, np.zeros((*x.shape[:-2], ahead, x.shape[-1]))], axis=-2)
    return chain.apply(short_conv, padded, taps)[..., ahead:, :]


@recipe(x=(2, 5, 6), w_gate=(6, 6), b_gate=(6,))
def gated_features(x: Any, w_gate: Any, b_gate: Any = None) -> Any:
    """Each token chooses among its own features (PatchTSMixer: Ekambaram et al., 2023)."""
    return x * chain.apply(softmax, linear(x, w_gate, b_gate))  # (softmax.1)


@recipe(x=(2, 5, 6), w_all_query=(6, 8), w_all_key=(6, 8), w_all_value=(6, 8), **QKV)
def global_tokens(
    x: Any, w_all_query: Any, w_all_key: Any, w_all_value: Any, b_all_query: Any = None, b_all_key: Any = None,
    b_all_value: Any = None, *, everywhere: Any = True, shown: Any = None, d: int = 4, **options: Any,
) -> Any:  # fmt: skip
    """Tokens that are `everywhere` (b, n, 1) see all by projections of their own (Longformer: Beltagy et al., 2020)."""
    own = {"b_query": b_all_query, "b_key": b_all_key, "b_value": b_all_value, "mask": shown}
    of_all = multi_head(x, w_all_query, w_all_key, w_all_value, d=d, **own)
    return chain.where(np.asarray(everywhere), of_all, multi_head(x, d=d, **options))
