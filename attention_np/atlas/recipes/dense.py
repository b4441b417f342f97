"""Softmax attention from every query to every key: of BERT, BART and ViT, and with turned heads of Llama."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain, short_conv, softmax
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import (
    activated,
    attention,
    clipped,
    in_heads,
    joined,
    least,
    linear,
    normed,
    repeated,
    turned,
)


@recipe(x=(2, 5, 6), w_query=(6, 12), w_key=(6, 12), w_value=(6, 12), w_output=(12, 6), b_query=(12,), b_output=(6,))
def multi_head(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any = None, b_query: Any = None, b_key: Any = None,
    b_value: Any = None, b_output: Any = None, memory: Any = None, x_value: Any = None,
    *, d: int = 4, scale: float | None = None, mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Heads of `d` features look at the tokens of `memory`, or of x itself (Vaswani et al., 2017).

    What values are made of may be others: `x_value`.
    """
    memory = x if memory is None else memory
    x_value = memory if x_value is None else x_value
    query = in_heads(linear(x, w_query, b_query), d)  # (b, h, n, d) (multi-head.1)
    key = in_heads(linear(memory, w_key, b_key), d)  # (b, h, m, d)
    value = in_heads(linear(x_value, w_value, b_value), d)  # (b, h, m, d)
    output = joined(attention(query, key, value, scale=scale, mask=mask, bias=bias))  # (b, n, h * d) (dot-product.5)
    if w_output is not None:
        output = linear(output, w_output, b_output)
    return output


@recipe(x=(2, 5, 6), gain=(6,), b=(6,), w_query=(6, 12), w_key=(6, 12), w_value=(6, 12), w_output=(12, 6))
def post_norm(x: Any, gain: Any, b: Any, *, epsilon: float = 1e-12, **options: Any) -> Any:
    """Tokens and what they see of each other, added and normalised, as in one module of ALBERT (Lan et al., 2020)."""
    return normed(x + multi_head(x, **options), gain, b, kind="layer", epsilon=epsilon)  # (layer-norm.4)


@recipe(x=(2, 5, 6), w_query=(6, 16), w_key=(6, 8), w_value=(6, 8), w_output=(16, 6), query_gain=(4,), key_gain=(4,))
def grouped_query(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any = None, b_query: Any = None, b_key: Any = None,
    b_value: Any = None, b_output: Any = None, query_gain: Any = None, key_gain: Any = None, value_gain: Any = None,
    query_b: Any = None, key_b: Any = None, output_gain: Any = None, output_b: Any = None, w_gate: Any = None,
    b_gate: Any = None, sink: Any = None, taps_key: Any = None, taps_value: Any = None, memory: Any = None,
    x_value: Any = None, value_added: Any = None, strength: Any = None,
    *, d: int = 4, d_value: int | None = None, groups: int = 2, cos: Any = None, sin: Any = None, pairs: str = "halves",
    norm: str | None = "rms", epsilon: float = 1e-6, of_all_heads: bool = False, norm_last: bool = False,
    norm_value: bool = False, turn_value: bool = False, key_cos: Any = None, key_sin: Any = None,
    clip: float | None = None, norm_output: str | None = None,
    output_epsilon: float = 1e-6, norm_each: bool = False, norm_gated: bool = False, visible: Any = 1.0,
    query_factor: Any = None, gate: str = "sigmoid", scale: Any = None, softcap: float | None = None, mask: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """Heads of `d` features, turned by their positions (Su et al., 2021); several share a head of keys.

    Norms stand behind the projections of queries and keys, `of_all_heads` together or of each, or behind the turn.
    """
    memory = x if memory is None else memory
    x_value = memory if x_value is None else x_value
    query, key = linear(x, w_query, b_query), linear(memory, w_key, b_key)
    value = linear(x_value, w_value, b_value)
    value = value if value_added is None else value + value_added
    if taps_key is not None:  # a convolution of what is `visible` is added to each feature
        key = key + chain.apply(short_conv, key * visible, taps_key)  # (short-conv.1)
        value = value + chain.apply(short_conv, value * visible, taps_value)
    if of_all_heads:
        query = normed(query, query_gain, query_b, kind=norm, epsilon=epsilon)  # (b, n, h * d) (rms-norm.3)
        key = normed(key, key_gain, key_b, kind=norm, epsilon=epsilon)
    if clip is not None:
        query, key, value = (clipped(y, -clip, clip) for y in (query, key, value))
    query, key = in_heads(query, d), in_heads(key, d)  # (b, h, n, d), (b, h / groups, m, d)
    value = in_heads(value, d_value or d)  # (b, h / groups, m, d_v)
    if norm is not None and not of_all_heads and not norm_last:
        query = normed(query, query_gain, query_b, kind=norm, epsilon=epsilon)  # (rms-norm.3)
        key = normed(key, key_gain, key_b, kind=norm, epsilon=epsilon)
    if norm_value:
        value = normed(value, value_gain, kind=norm, epsilon=epsilon)
    if cos is not None:
        n = query.shape[-2]  # the first tokens of `memory` where that has more
        query = turned(query, cos[..., :n, :], sin[..., :n, :], pairs)  # (rotary.5)
        key = turned(key, *((cos, sin) if key_cos is None else (key_cos, key_sin)), pairs)
        value = turned(value, cos, sin, pairs) if turn_value else value
    if norm_last:
        query = normed(query, query_gain, query_b, kind=norm, epsilon=epsilon)  # (rms-norm.3)
        key = normed(key, key_gain, key_b, kind=norm, epsilon=epsilon)
    if query_factor is not None:  # of each head and feature
        query = query * query_factor
    options = {"scale": scale, "softcap": softcap, "mask": mask, "bias": bias, "sink": sink}
    output = attention(query, repeated(key, groups), repeated(value, groups), **options)  # (dot-product.5)
    if strength is not None:  # what an output has of its token's own value is taken away, in each head
        own = normed(repeated(value, groups), kind="unit", epsilon=least(value))  # (b, h, n, d)
        output = output - activated(strength, "tanh")[:, None, None] * (output * own).sum(axis=-1, keepdims=True) * own
    if norm_each:
        output = normed(output, output_gain, output_b, kind=norm_output, epsilon=output_epsilon)
    output = joined(output)  # (b, n, h * d)
    if w_gate is not None and norm_gated:
        output = output * activated(linear(x, w_gate, b_gate), gate)
    if norm_output is not None and not norm_each:
        output = normed(output, output_gain, output_b, kind=norm_output, epsilon=output_epsilon)
    if w_gate is not None and not norm_gated:
        output = output * activated(linear(x, w_gate, b_gate), gate)
    if w_output is not None:
        output = linear(output, w_output, b_output)
    return output


@recipe(
    x=(2, 5, 6), w_query=(6, 16), w_key=(6, 8), w_value=(6, 8), w_output=(16, 6), query_1=(4,), key_1=(4,),
    query_2=(4,), key_2=(4,),
)  # fmt: skip
def differential(
    x: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, query_1: Any, key_1: Any, query_2: Any, key_2: Any,
    b_query: Any = None, b_key: Any = None, b_value: Any = None, b_output: Any = None, *, d: int = 4, groups: int = 2,
    first: float = 0.8, cos: Any = None, sin: Any = None, pairs: str = "halves", epsilon: float = 1e-6,
    scale: Any = None, mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Heads of the second half, times a number, are taken from those of the first (DIFF Transformer: Ye et al., 2024).

    That number is learned as a difference of exponentials, and begins at `first`.
    """
    query = in_heads(linear(x, w_query, b_query), d)  # (b, h, n, d)
    key, value = in_heads(linear(x, w_key, b_key), d), in_heads(linear(x, w_value, b_value), d)  # (b, h / groups, m, d)
    if cos is not None:
        query, key = turned(query, cos, sin, pairs), turned(key, cos, sin, pairs)  # (rotary.5)
    half = value.shape[-3] // 2
    value = chain.concatenate([value[..., :half, :, :], value[..., half:, :, :]])  # (b, h / groups / 2, m, 2 d)
    value = repeated(chain.concatenate([value, value], axis=-3), groups)
    output = attention(query, repeated(key, groups), value, scale=scale, mask=mask, bias=bias)  # (dot-product.5)
    less = activated((query_1 * key_1).sum(), "exp") - activated((query_2 * key_2).sum(), "exp") + first
    half = output.shape[-3] // 2
    output = output[..., :half, :, :] - less * output[..., half:, :, :]  # (b, h / 2, n, 2 d)
    output = normed(output, epsilon=epsilon) * (1.0 - first)  # (rms-norm.3)
    return linear(joined(output), w_output, b_output)


@recipe(
    x=(2, 3, 6), w_router=(6, 3), w_query=(3, 6, 8), w_key=(6, 8), w_value=(6, 8), w_output=(3, 8, 6), b_output=(6,),
)  # fmt: skip
def mixture(
    x: Any, w_router: Any, w_query: Any, w_key: Any, w_value: Any, w_output: Any, b_output: Any,
    *, d: int = 4, top: int = 2, cos: Any = None, sin: Any = None, pairs: str = "halves", scale: Any = None,
    mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Each token takes the queries and outputs of its `top` experts; keys are of all (JetMoE: Shen et al., 2024)."""
    logits = x @ w_router  # (b, n, experts)
    chosen = np.argsort(-np.real(getattr(logits, "value", logits)), axis=-1, kind="stable")[..., :top]  # (b, n, top)
    rows = np.indices(chosen.shape)
    gates = chain.apply(softmax, logits[rows[0], rows[1], chosen])  # (softmax.1)
    query = (x[..., None, None, :] @ w_query[chosen])[..., 0, :]  # (b, n, top, h * d)
    query = in_heads(query.reshape(*x.shape[:-1], -1), d)  # (b, top * h, n, d)
    key, value = in_heads(linear(x, w_key), d), in_heads(linear(x, w_value), d)  # (b, h, n, d)
    if cos is not None:
        query, key = turned(query, cos, sin, pairs), turned(key, cos, sin, pairs)  # (rotary.5)
    key, value = (chain.concatenate([y] * top, axis=-3) for y in (key, value))  # (b, top * h, n, d)
    output = joined(attention(query, key, value, scale=scale, mask=mask, bias=bias))  # (dot-product.5)
    output = output.reshape(*chosen.shape, 1, -1) @ w_output[chosen]  # (b, n, top, 1, features)
    return (output[..., 0, :] * gates[..., None]).sum(axis=-2) + b_output


@recipe(
    x=(2, 5, 6), w_query=(6, 8), w_key=(6, 4), w_now=(6, 2), w_before=(6, 2), w_output=(8, 6), taps=(2, 12),
    b_taps=(12,), w_mixed=(2, 3, 4, 4), b_mixed=(12,), temperature=(1,),
)  # fmt: skip
def compressed_convolutional(
    x: Any, w_query: Any, w_key: Any, w_now: Any, w_before: Any, w_output: Any, taps: Any, b_taps: Any, w_mixed: Any,
    b_mixed: Any, temperature: Any, b_query: Any = None, b_key: Any = None, b_now: Any = None, b_before: Any = None,
    b_output: Any = None,
    *, cos: Any = None, sin: Any = None, pairs: str = "halves", scale: Any = None, mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Queries and keys are convolved, feature by feature and head by head, and half of a value is of the token before.

    The compressed convolutional attention of ZAYA1 (Figliolia et al., 2025), with `w_mixed` (width, heads, d, d).
    """
    b, n, d, width = x.shape[0], x.shape[1], w_mixed.shape[-1], w_mixed.shape[0]
    query, key = linear(x, w_query, b_query), linear(x, w_key, b_key)
    both = chain.apply(short_conv, chain.concatenate([query, key]), taps, b_taps)  # (b, n, of q and k) (short-conv.1)
    first = np.zeros((b, width - 1, both.shape[-1])) + b_taps  # what the taps make of no tokens
    both = chain.concatenate([first, both], axis=-2).reshape(b, n + width - 1, -1, 1, d)
    both = sum(both[:, j : j + n] @ w_mixed[j] for j in range(width)).reshape(b, n, -1) + b_mixed
    groups = query.shape[-1] // key.shape[-1]
    mean = (in_heads(query, d) + repeated(in_heads(key, d), groups)) * 0.5  # (b, h, n, d)
    query = in_heads(both[..., : query.shape[-1]], d) + mean
    mean = mean.reshape(b, -1, groups, n, d).sum(axis=2) / groups  # (b, h / groups, n, d)
    key = in_heads(both[..., query.shape[1] * d :], d) + mean
    query = normed(query, kind="unit", epsilon=least(query)) * d**0.5
    key = normed(key, kind="unit", epsilon=least(key)) * d**0.5 * temperature[:, None, None]
    if cos is not None:
        query, key = turned(query, cos, sin, pairs), turned(key, cos, sin, pairs)  # (rotary.5)
    shifted = chain.concatenate([np.zeros((b, 1, x.shape[-1])), x[:, :-1]], axis=-2)
    value = in_heads(chain.concatenate([linear(x, w_now, b_now), linear(shifted, w_before, b_before)]), d)
    output = attention(query, repeated(key, groups), repeated(value, groups), scale=scale, mask=mask, bias=bias)
    return linear(joined(output), w_output, b_output)  # (dot-product.5)
