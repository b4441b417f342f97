"""Pictures: fewer keys, fewer queries, one summary of all tokens, or features that look at features."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import biases, chain, softmax
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import activated, attention, clipped, in_heads, joined, linear, normed
from attention_np.atlas.recipes.dense import multi_head


@recipe(
    x=(2, 12, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_reduction=(24, 6), gain=(6,), b=(6,), b_reduction=(6,)
)
def spatially_reduced(
    x: Any, w_reduction: Any = None, b_reduction: Any = None, gain: Any = None, b: Any = None, memory: Any = None,
    *, height: int = 4,
    width: int = 3, size: int = 2, epsilon: float = 1e-5, **options: Any,
) -> Any:  # fmt: skip
    """Keys and values are made of squares of `size` x `size` tokens (PVT: Wang et al., 2021; as in SegFormer).

    The other arguments are those of `multi_head`.
    """
    if w_reduction is not None:
        squares = windows(x.reshape(*x.shape[:-2], height, width, x.shape[-1]), size, size)  # (b, m, size^2, c)
        memory = linear(squares.reshape(*squares.shape[:-2], -1), w_reduction, b_reduction)
        memory = normed(memory, gain, b, kind="layer", epsilon=epsilon)  # (b, m, c) (layer-norm.4)
    return multi_head(x, memory=memory, **options)  # (b, n, h * d) (dot-product.5)


@recipe(x=(2, 3, 2, 6), memory=(2, 6, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 8), w_output=(8, 6), b_query=(8,))
def pooled_queries(x: Any, memory: Any, w_query: Any, b_query: Any = None, **options: Any) -> Any:
    """Each query is the largest, feature by feature, of those of k tokens x (b, n, k, c) (Hiera: Ryali et al., 2023).

    The other arguments are those of `multi_head`.
    """
    query = largest(linear(x, w_query, b_query))  # (b, n, h * d)
    return multi_head(query, None, memory=memory, **options)  # (b, n, h * d) (dot-product.5)


@recipe(x=(2, 6, 2, 3), gain=(6,), b=(6,), w_query=(6, 6), w_key=(6, 6), w_value=(6, 6), w_output=(6, 6), b_query=(6,))
def of_pixels(x: Any, gain: Any, b: Any, *, groups: int = 2, epsilon: float = 1e-6, **options: Any) -> Any:
    """Pixels of x (b, c, height, width) look at each other, beside x, as in VQGAN (Esser et al., 2021).

    Features of a group are normalised together with its pixels. The other arguments are those of `multi_head`.
    """
    c = x.shape[-3]
    y = normed(x.reshape(*x.shape[:-3], groups, -1), kind="layer", epsilon=epsilon)  # (layer-norm.4)
    y = y.reshape(*x.shape[:-2], -1).swapaxes(-1, -2) * gain + b  # (b, n, c)
    y = multi_head(y, d=c, **options)  # (b, n, c) (dot-product.5)
    return x + y.swapaxes(-1, -2).reshape(*x.shape)


@recipe(x=(2, 5, 6), w_query=(6, 6), w_key=(6, 6), w_value=(6, 6), w_output=(6, 6))
def of_channels(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, b_query: Any = None, b_key: Any = None,
    b_value: Any = None, b_output: Any = None, *, d: int = 3, scale: float | None = None,
) -> Any:  # fmt: skip
    """Features of a group look at each other, over all tokens (DaViT: Ding et al., 2022)."""
    query, key = in_heads(linear(x, w_query, b_query), d), in_heads(linear(x, w_key, b_key), d)  # (b, groups, n, d)
    value = in_heads(linear(x, w_value, b_value), d)
    query, key, value = (y.swapaxes(-1, -2) for y in (query, key, value))  # (b, groups, d, n)
    output = attention(query, key, value, scale=scale).swapaxes(-1, -2)  # (dot-product.5)
    return linear(joined(output), w_output, b_output)


@recipe(x=(2, 3, 4, 6), w_score=(6, 1), w_key=(6, 6), w_value=(6, 6), w_output=(6, 6), b_score=(1,))
def separable(
    x: Any, w_score: Any, w_key: Any, w_value: Any, w_output: Any, b_score: Any = None, b_key: Any = None,
    b_value: Any = None, b_output: Any = None,
) -> Any:  # fmt: skip
    """One score a token says what is summed up for all, which opens each value (MobileViT 2: Mehta et al., 2022)."""
    weights = chain.apply(softmax, linear(x, w_score, b_score), axis=-2)  # (b, p, n, 1) (softmax.1)
    context = (weights * linear(x, w_key, b_key)).sum(axis=-2, keepdims=True)  # (b, p, 1, c)
    return linear(activated(linear(x, w_value, b_value), "relu") * context, w_output, b_output)


@recipe(x=(2, 5, 6), w_query=(6, 6), w_key=(6, 6), w_score=(6, 1), w_mixed=(6, 6), w_output=(6, 6))
def efficient_additive(
    x: Any, w_query: Any, w_key: Any, w_score: Any, w_mixed: Any, w_output: Any, b_query: Any = None, b_key: Any = None,
    b_mixed: Any = None, b_output: Any = None,
) -> Any:  # fmt: skip
    """Queries are summed up, which opens each key (SwiftFormer: Shaker et al., 2023).

    Its weights are by softmax over the one score of a token, as the model has it: they are all one.
    """
    query, key = linear(x, w_query, b_query), linear(x, w_key, b_key)
    query, key = (normed(y, kind="unit", epsilon=1e-24) for y in (query, key))  # (rms-norm.2)
    weights = chain.apply(softmax, query @ w_score * w_query.shape[-1] ** -0.5)  # (b, n, 1) (softmax.1)
    summed = (weights * query).sum(axis=-2, keepdims=True)
    return linear(linear(summed * key, w_mixed, b_mixed) + query, w_output, b_output)


@recipe(x=(2, 5, 6), gain=(6,), b=(6,), w_mixed=(2, 3, 3), w_score=(6, 4), w_value=(2, 3, 3), output_gain=(6,))
def learned_tokens(
    x: Any, gain: Any, b: Any, w_mixed: Any, w_score: Any, w_value: Any, output_gain: Any, output_b: Any = None,
    *, epsilon: float = 1e-5,
) -> Any:  # fmt: skip
    """Each of a few outputs has a score of its own for every token (MGP-STR: Wang et al., 2022).

    Groups of features are projected by themselves, w_mixed and w_value (groups, d, d).
    """
    x = normed(x, gain, b, kind="layer", epsilon=epsilon)  # (b, n, c) (layer-norm.4)
    apart = in_heads(x, w_mixed.shape[-1])  # (b, groups, n, d)
    weights = chain.apply(softmax, joined(apart @ w_mixed) @ w_score, axis=-2)  # (b, n, outputs) (softmax.1)
    output = weights.swapaxes(-1, -2) @ joined(apart @ w_value)
    return normed(output, output_gain, output_b, kind="layer", epsilon=epsilon)  # (b, outputs, c) (layer-norm.4)


@recipe(
    x=(2, 4, 6), x_query=(2, 2, 6), w_query=(6, 8), w_key=(6, 8), w_value=(6, 12), table=(4, 2), w_output=(12, 6),
    b_output=(6,),
)  # fmt: skip
def of_distances(
    x: Any, x_query: Any, w_query: Any, w_key: Any, w_value: Any, table: Any, w_output: Any, b_query: Any = None,
    b_key: Any = None, b_value: Any = None, b_output: Any = None, *, d: int = 4, d_value: int = 6,
    places: Any = ((0, 1, 2, 3), (2, 1, 0, 1)),
) -> Any:  # fmt: skip
    """A bias for each distance in a picture, and a function of each number of the output (LeViT: Graham et al., 2021).

    `places` (n, m) are rows of the table. The norms of the model, whose numbers are fixed, are in w and b.
    """
    query, key = in_heads(linear(x_query, w_query, b_query), d), in_heads(linear(x, w_key, b_key), d)  # (b, h, n, d)
    value = in_heads(linear(x, w_value, b_value), d_value)
    output = joined(attention(query, key, value, bias=biases.table(table, places)))  # (dot-product.5)
    output = output * clipped(output + 3.0, 0.0, 6.0) / 6.0
    return linear(output, w_output, b_output)


@recipe(x=(2, 13, 6), taps_query=(3, 3, 6), taps_key=(3, 3, 6), taps_value=(3, 3, 6), w_query=(6, 8), w_key=(6, 8),
        w_value=(6, 8), b_taps_query=(6,), b_taps_key=(6,), b_taps_value=(6,))  # fmt: skip
def convolved(
    x: Any, taps_query: Any, taps_key: Any, taps_value: Any, b_taps_query: Any, b_taps_key: Any, b_taps_value: Any,
    *, height: int = 4, width: int = 3, first: int = 1, strides: Any = (1, 2), padding: Any = (1, 1), **options: Any,
) -> Any:  # fmt: skip
    """Each feature of a picture is convolved, with strides for queries, and for keys and values (CvT: Wu et al., 2021).

    So many `first` tokens are none of the picture. The other arguments are those of `multi_head`.
    """
    picture = x[..., first:, :].reshape(*x.shape[:-2], height, width, x.shape[-1])

    def made(taps: Any, b: Any, stride: int, pad: int) -> Any:
        y = convolution(picture, taps, stride, pad) + b
        y = y.reshape(*x.shape[:-2], -1, x.shape[-1])
        return chain.concatenate([x[..., :first, :], y], axis=-2) if first else y

    query = made(taps_query, b_taps_query, strides[0], padding[0])  # (b, n, c)
    key = made(taps_key, b_taps_key, strides[1], padding[1])  # (b, m, c)
    value = made(taps_value, b_taps_value, strides[1], padding[1])
    return multi_head(query, memory=key, x_value=value, **options)  # (b, n, h * d) (dot-product.5)


@recipe(x=(2, 2, 6), memory=(2, 5, 6), w_query=(6, 6), w_key=(6, 6), w_value=(6, 6), w_output=(6, 6), b_query=(6,))
def assigned(
    x: Any, memory: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, b_query: Any = None, b_key: Any = None,
    b_value: Any = None, b_output: Any = None, *, hard: bool = False, scale: float = 1.0, epsilon: float = 1.0,
) -> Any:  # fmt: skip
    """Queries share each token of `memory` among them (GroupViT: Xu et al., 2022).

    Where it is `hard`, the likeliest query has all of it, and gradients are as if it were shared.
    """
    scores = linear(x, w_query, b_query) @ linear(memory, w_key, b_key).swapaxes(-1, -2) * scale  # (b, n, m)
    weights = chain.apply(softmax, scores, axis=-2)  # (softmax.1)
    if hard:
        shares = getattr(weights, "value", weights)
        likeliest = np.arange(shares.shape[-2])[:, None] == shares.argmax(axis=-2)[..., None, :]
        weights = weights + (likeliest - shares)
    weights = weights / (weights.sum(axis=-1, keepdims=True) + epsilon)
    return linear(weights @ linear(memory, w_value, b_value), w_output, b_output)


def windows(x: Any, height: int, width: int) -> Any:
    """A picture (b, rows, columns, c) as (b, windows, height * width, c), without what fills no window."""
    rows, columns = x.shape[-3] // height, x.shape[-2] // width
    x = x[..., : rows * height, : columns * width, :]
    apart = x.reshape(*x.shape[:-3], rows, height, columns, width, x.shape[-1]).swapaxes(-3, -4)
    return apart.reshape(*x.shape[:-3], rows * columns, height * width, x.shape[-1])


def largest(x: Any) -> Any:
    """The largest number of x (..., k, c) for each feature: (..., c)."""
    place = np.real(getattr(x, "value", x)).argmax(axis=-2)
    index = np.indices(place.shape, sparse=True)
    index = (*index[:-1], place, index[-1])
    return x[index]


def convolution(x: Any, taps: Any, stride: int, padding: int) -> Any:
    """Of each feature of a picture (b, height, width, c), by taps (rows, columns, c), with zeros around it."""
    for axis in (-3, -2):
        shape = list(x.shape)
        shape[axis] = padding
        x = chain.concatenate([np.zeros(shape), x, np.zeros(shape)], axis=axis)
    rows, columns = taps.shape[:2]
    tall, wide = (x.shape[-3] - rows) // stride * stride + 1, (x.shape[-2] - columns) // stride * stride + 1
    return sum(
        x[..., i : i + tall : stride, j : j + wide : stride, :] * taps[i, j]
        for i in range(rows)
        for j in range(columns)
    )
