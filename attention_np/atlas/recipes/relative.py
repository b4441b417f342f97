"""Scores that also depend on how far apart two tokens are: Transformer-XL, the conformers, and DeBERTa."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases, chain
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import attention, in_heads, joined, linear, normed, repeated
from attention_np.atlas.recipes.dense import multi_head


@recipe(
    x=(2, 3, 6), distances=(5, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_distance=(6, 8), u=(2, 4), v=(2, 4),
    w_output=(8, 6), gain=(6,),
)  # fmt: skip
def relative_positions(
    x: Any, distances: Any, w_query: Any, w_key: Any, w_value: Any, w_distance: Any = None, u: Any = None,
    v: Any = None, w_output: Any = None, b_query: Any = None, b_key: Any = None, b_value: Any = None,
    b_output: Any = None, segments: Any = None, s: Any = None, gain: Any = None, b_norm: Any = None,
    memory: Any = None, x_value: Any = None, *, d: int = 4, groups: int = 1, places: Any = None, alike: Any = None,
    kept: Any = None, shown: Any = None, scale: Any = None, mask: Any = None, bias: Any = None, epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """Queries meet keys, and vectors of distances; each head adds u to them for the one, v for the other (Dai, 2019).

    `distances` (..., 2n - 1, features) are those of j - i from 1 - n on, or `places` (n, m) says which belongs to each
    pair. Where not `shown`, the lowest number stands in place of the distance. `segments` are vectors of tokens that
    are `alike` (b, 1, n, m, 2) or not, for queries with s added (XLNet, Funnel). Where `kept` is 0 neither counts.
    """
    n, memory = x.shape[-2], x if memory is None else memory
    places = np.arange(n) - np.arange(n)[:, None] + n - 1 if places is None else places
    scale = d**-0.5 if scale is None else scale
    query, key = in_heads(linear(x, w_query, b_query), d), in_heads(linear(memory, w_key, b_key), d)  # (b, h, n, d)
    value = in_heads(linear(memory if x_value is None else x_value, w_value, b_value), d)
    vectors = distances if w_distance is None else in_heads(linear(distances, w_distance), d)  # (..., h, 2n - 1, d)
    far = (query if v is None else query + v[:, None]) @ vectors.swapaxes(-2, -1)  # (b, h, n, 2n - 1) (biases.6)
    far = scale * far[..., np.arange(n)[:, None], places]  # (b, h, n, m) (biases.7)
    if segments is not None:
        of_segments = (query + s[:, None]) @ segments.swapaxes(-2, -1)  # (b, h, n, 2)
        far = far + scale * (of_segments[..., None, :] * alike).sum(axis=-1)
    far = far if kept is None else far * kept
    far = far if shown is None else chain.where(shown, far, float(np.finfo(x.dtype).min))
    query = query if u is None else query + u[:, None]
    bias = far if bias is None else [far, bias]
    key, value = repeated(key, groups), repeated(value, groups)
    output = joined(attention(query, key, value, scale=scale, mask=mask, bias=bias))  # (b, n, h * d) (dot-product.5)
    output = linear(output, w_output, b_output)
    return output if gain is None else normed(x + output, gain, b_norm, kind="layer", epsilon=epsilon)


@recipe(
    x=(2, 3, 6), distances=(5, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_far_key=(6, 8), w_far_query=(6, 8),
)  # fmt: skip
def disentangled(
    x: Any, distances: Any, w_far_key: Any = None, w_far_query: Any = None, b_far_key: Any = None,
    b_far_query: Any = None, *, of_key: Any = None, of_query: Any = None, d: int = 4, scale: Any = None,
    bias: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Queries also meet keys of distances, and keys queries of distances (DeBERTa: He et al., 2021).

    `of_key`, `of_query` (n, m): the row of `distances` that makes the key, or the query, of each pair.
    """
    n = np.arange(x.shape[-2])
    if scale is None:
        scale = (d * (1 + (w_far_key is not None) + (w_far_query is not None))) ** -0.5
    added = [] if bias is None else [bias]
    if w_far_key is not None:
        rows = n[:, None] - n + len(n) - 1 if of_key is None else of_key
        added += [biases.products(in_heads(linear(distances, w_far_key, b_far_key), d), rows)]  # (biases.6)
    if w_far_query is not None:
        rows = n[:, None] - n + len(n) - 1 if of_query is None else of_query
        vectors = in_heads(linear(distances, w_far_query, b_far_query), d)
        added += [biases.products(vectors, rows, of="key")]  # (biases.8)
    return multi_head(x, d=d, scale=scale, bias=added or None, **options)
