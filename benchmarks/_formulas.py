"""What people wait for beside attention alone: calls of ours, each with the NumPy lines that one writes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from attention_np import additive, decoding, multi_head, rms_norm, rotary, softmax
from benchmarks._contenders import Array

__all__ = ["Pair", "pairs"]

Results = tuple[Array, ...]


class Pair(NamedTuple):
    """A call of ours, and straightforward NumPy that returns the same."""

    name: str
    shape: tuple[int, ...]
    which: str
    ours: Callable[[], Results]
    plain: Callable[[], Results]
    calls: int  # that are timed together


def pairs() -> Iterator[Pair]:
    """The small ops, a token of a cache, additive attention and a layer of several heads; in float32."""
    both, rng = "forward + backward", np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    x, d_x = normal(16, 64), normal(16, 64)
    yield Pair("softmax", x.shape, both, lambda: _both(softmax, d_x, x), lambda: _softmax(x, d_x), 200)
    yield Pair("rms_norm", x.shape, both, lambda: _both(rms_norm, d_x, x), lambda: _rms_norm(x, d_x), 200)
    yield Pair("rotary", x.shape, both, lambda: _both(rotary, d_x, x), lambda: _rotary(x, d_x), 200)
    for heads in (1, 8):
        yield _token(normal(heads, 1, 64), normal(heads, 1024, 64), normal(heads, 1024, 64))
    sequences, vectors = (normal(256, 64), normal(256, 64), normal(256, 64)), (normal(64, 128), normal(64, 128))
    arrays = (*sequences, vectors[0] / 8, vectors[1] / 8, normal(128))
    d_output = normal(256, 64)
    ours, plain = (lambda: _both(additive, d_output, *arrays)), (lambda: _additive(*arrays, d_output))
    yield Pair("additive", (256, 64, 128), both, ours, plain, 1)
    yield _layer(normal, 512, heads=8, key_heads=2)


def _both(op: Any, d_output: Array, *arrays: Array) -> Results:
    output, cache = op.forward(*arrays)
    return (output, *(x for x in op.backward(d_output, cache) if x is not None))


def _weights(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _scores_gradient(weights: Array, d_weights: Array) -> Array:
    d_scores: Array = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    return d_scores


def _softmax(x: Array, d_y: Array) -> Results:
    weights = _weights(x)
    return weights, _scores_gradient(weights, d_y)


def _rms_norm(x: Array, d_y: Array) -> Results:
    inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6))
    y = x * inverse
    return y, inverse * (d_y - y * (d_y * y).mean(axis=-1, keepdims=True))


def _rotary(x: Array, d_y: Array) -> Results:
    n, half = x.shape[0], x.shape[1] // 2
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)

    def turned(rows: Array, sine: Array) -> Array:
        first, second = rows[:, :half], rows[:, half:]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    return turned(x, sine), turned(d_y, -sine)


def _token(query: Array, key: Array, value: Array) -> Pair:
    heads, m, d = key.shape
    cache = decoding.KeyValueCache(m)
    cache.append(key, value)

    def formula() -> Results:
        return (_weights(query @ key.swapaxes(-1, -2) * np.float32(d**-0.5)) @ value,)

    return Pair("KeyValueCache", (heads, m, d), "a token", lambda: (cache.attend(query),), formula, 100)


def _additive(
    query: Array, key: Array, value: Array, w_query: Array, w_key: Array, w_score: Array, d_output: Array
) -> Results:
    hidden = np.tanh((query @ w_query)[:, None] + key @ w_key)  # (n, m, h)
    weights = _weights(hidden @ w_score)
    d_scores = _scores_gradient(weights, d_output @ value.T)
    d_sum = d_scores[..., None] * w_score * (1 - hidden * hidden)
    d_queries, d_keys = d_sum.sum(axis=1), d_sum.sum(axis=0)
    d_w_score = np.einsum("ij,iju->u", d_scores, hidden)
    of_queries = d_queries @ w_query.T, d_keys @ w_key.T, weights.T @ d_output
    return weights @ value, *of_queries, query.T @ d_queries, key.T @ d_keys, d_w_score


def _layer(normal: Callable[..., Array], width: int, heads: int, key_heads: int) -> Pair:
    n, d = 512, width // heads
    x, d_output = normal(n, width), normal(n, width)
    widths = ((width, width), (width, key_heads * d), (width, key_heads * d), (width, width))
    w_query, w_key, w_value, w_output = (normal(*shape) * np.float32(width**-0.5) for shape in widths)
    parameters = multi_head.Parameters(w_query, w_key, w_value, w_output)

    def ours() -> Results:
        output, cache = multi_head.forward(x, x, x, parameters, num_heads=heads, num_kv_heads=key_heads)
        gradients = multi_head.backward(d_output, cache)
        return output, gradients.query + gradients.key + gradients.value, *gradients.parameters[:4]

    def split(rows: Array, groups: int) -> Array:
        return rows.reshape(n, key_heads, groups, d).transpose(1, 2, 0, 3)  # (key heads, queries' heads of each, n, d)

    def merged(by_head: Array) -> Array:
        return by_head.transpose(2, 0, 1, 3).reshape(n, -1)

    def plain() -> Results:
        groups, scale = heads // key_heads, np.float32(d**-0.5)
        query, key, value = split(x @ w_query, groups), split(x @ w_key, 1), split(x @ w_value, 1)
        weights = _weights(query @ key.swapaxes(-1, -2) * scale)
        attended = merged(weights @ value)
        d_attended = split(d_output @ w_output.T, groups)
        d_scores = _scores_gradient(weights, d_attended @ value.swapaxes(-1, -2)) * scale
        d_query = merged(d_scores @ key)
        d_key = merged((d_scores.swapaxes(-1, -2) @ query).sum(axis=1, keepdims=True))
        d_value = merged((weights.swapaxes(-1, -2) @ d_attended).sum(axis=1, keepdims=True))
        d_x = d_query @ w_query.T + d_key @ w_key.T + d_value @ w_value.T
        return attended @ w_output, d_x, x.T @ d_query, x.T @ d_key, x.T @ d_value, attended.T @ d_output

    return Pair("multi_head", (n, width, heads, key_heads), "forward + backward", ours, plain, 1)
