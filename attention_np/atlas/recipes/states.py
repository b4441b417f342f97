"""Layers that keep a state in place of keys: delta rules with gates, Mamba, lightning attention and RWKV."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import chain, dot_product, linear_attention, rms_norm, short_conv
from attention_np.atlas.recipes._registry import recipe
from attention_np.atlas.recipes._steps import activated, clipped, joined, linear, normed

STATE: dict[str, Any] = {"scale": 1.0, "chunk_size": 16}


@recipe(
    x=(2, 5, 6), w_mixed=(6, 20), taps=(3, 20), w_beta=(6, 4), w_step=(6, 4), b_step=(4,), log_rate=(4,),
    w_gate=(6, 8), gain=(2,), w_output=(8, 6),
)  # fmt: skip
def gated_delta(
    x: Any, w_mixed: Any, taps: Any, w_beta: Any, w_step: Any, b_step: Any, log_rate: Any, w_gate: Any, gain: Any,
    w_output: Any, b_taps: Any = None,
    *, heads: int = 2, d: int = 3, most: float = 1.0, kind: str = "silu", gate: str = "silu", epsilon: float = 1e-6,
) -> Any:  # fmt: skip
    """A state for each head decays and is corrected towards each value, by at most `most` (Yang et al., 2024).

    `heads` of queries and keys of `d` features; each serves several heads of values, one after the other.
    """
    groups = log_rate.shape[-1] // heads
    mixed = activated(chain.apply(short_conv, x @ w_mixed, taps, b_taps), kind)  # (b, n, of q, k and v) (short-conv.1)
    query = normed(in_groups(mixed[..., : heads * d], heads, 1), kind="unit") * d**-0.5  # (b, heads, 1, n, d)
    key = normed(in_groups(mixed[..., heads * d : 2 * heads * d], heads, 1), kind="unit")
    value = in_groups(mixed[..., 2 * heads * d :], heads, groups)  # (b, heads, groups, n, d_v)
    beta = in_groups(most * activated(x @ w_beta, "sigmoid"), heads, groups)[..., 0]  # (b, heads, groups, n)
    rate = -activated(log_rate, "exp") * softplus(x @ w_step + b_step)
    log_decay = in_groups(rate, heads, groups)  # (b, heads, groups, n, 1)
    output = chain.apply(linear_attention, query, key, value, log_decay=log_decay, beta=beta, **STATE)
    output = chain.apply(rms_norm, output, gain, epsilon=epsilon)  # (rms-norm.3)
    output = output * activated(in_groups(x @ w_gate, heads, groups), gate)
    return of_groups(output) @ w_output


@recipe(
    x=(2, 5, 6), w_mixed=(6, 18), taps=(3, 18), w_beta=(6, 2), w_decay=(6, 6), b_decay=(6,), log_rate=(2,),
    w_gate=(6, 6), gain=(3,), w_output=(6, 6),
)  # fmt: skip
def kimi_delta(
    x: Any, w_mixed: Any, taps: Any, w_beta: Any, w_decay: Any, b_decay: Any, log_rate: Any, w_gate: Any, gain: Any,
    w_output: Any, b_taps: Any = None, b_gate: Any = None,
    *, least: float | None = None, kind: str = "silu", gate: str = "sigmoid", epsilon: float = 1e-6,
) -> Any:  # fmt: skip
    """The gated delta rule with a decay for each feature (Kimi Team, 2025); `least` bounds its logarithm."""
    heads, third = log_rate.shape[-1], taps.shape[-1] // 3
    mixed = activated(chain.apply(short_conv, x @ w_mixed, taps, b_taps), kind)  # (b, n, of q, k and v) (short-conv.1)
    query, key, value = (in_groups(mixed[..., k * third : (k + 1) * third], 1, heads) for k in range(3))
    query = normed(query, kind="unit") * query.shape[-1] ** -0.5  # (b, 1, heads, n, d)
    key = normed(key, kind="unit")
    beta = in_groups(activated(x @ w_beta, "sigmoid"), 1, heads)[..., 0]  # (b, 1, heads, n)
    rate, step = activated(log_rate, "exp")[:, None, None], in_groups(x @ w_decay + b_decay, 1, heads)
    log_decay = -rate * softplus(step) if least is None else least * activated(rate * step, "sigmoid")
    output = chain.apply(linear_attention, query, key, value, log_decay=log_decay, beta=beta, **STATE)
    output = chain.apply(rms_norm, output, gain, epsilon=epsilon)  # (rms-norm.3)
    output = output * activated(in_groups(linear(x, w_gate, b_gate), 1, heads), gate)
    return of_groups(output) @ w_output


@recipe(x=(2, 5, 6), w_mixed=(6, 18), w_gate=(6, 6), gain=(6,), w_output=(6, 6))
def lightning(
    x: Any, w_mixed: Any, w_gate: Any, gain: Any, w_output: Any,
    *, heads: int = 2, decay: Any = None, visible: Any = None, kind: str = "silu", epsilon: float = 1e-6,
) -> Any:  # fmt: skip
    """Scores without softmax, times a `decay` (heads, n, n) that falls with the distance (Qin et al., 2024).

    The recurrence of `linear_attention` with one decay for each head, written as a product over pairs.
    """
    mixed = activated(x @ w_mixed, kind)
    mixed = mixed if visible is None else mixed * visible
    mixed = mixed.reshape(*mixed.shape[:2], heads, -1).swapaxes(1, 2)  # (b, heads, n, of q, k and v)
    d, n = mixed.shape[-1] // 3, mixed.shape[-2]
    query, key, value = mixed[..., :d], mixed[..., d : 2 * d], mixed[..., 2 * d :]
    decay = np.tril(np.ones((n, n))) if decay is None else decay
    output = ((query @ key.swapaxes(-2, -1)) * decay) @ value  # (linear-attention.1, linear-attention.3)
    output = normed(joined(output), gain, epsilon=epsilon)  # (rms-norm.3)
    return (activated(x @ w_gate, "sigmoid") * output) @ w_output


@recipe(
    x=(2, 5, 6), share_key=(6,), share_value=(6,), share_gate=(6,), w_key=(6, 8), w_value=(6, 8), w_gate=(6, 8),
    log_rate=(8,), first=(8,), w_output=(8, 6),
)  # fmt: skip
def rwkv(
    x: Any, share_key: Any, share_value: Any, share_gate: Any, w_key: Any, w_value: Any, w_gate: Any, log_rate: Any,
    first: Any, w_output: Any,
) -> Any:  # fmt: skip
    """Each feature weighs the tokens by a key, and less the longer they are past (RWKV-4: Peng et al., 2023).

    The score of token j at token i is k_j - (i - 1 - j) rate, and k_i + first where j is i: softmax of one feature.
    """
    n = x.shape[-2]
    before = chain.concatenate([np.zeros((*x.shape[:-2], 1, x.shape[-1])), x[..., :-1, :]], axis=-2)
    key, value, gate = (
        (x * share + before * (1 - share)) @ w
        for share, w in ((share_key, w_key), (share_value, w_value), (share_gate, w_gate))
    )
    key, value = key.swapaxes(-2, -1)[..., None], value.swapaxes(-2, -1)[..., None]  # (b, inner, n, 1)
    past = np.arange(n)[:, None] - 1 - np.arange(n)  # -1 where j is i
    rate, here = activated(log_rate, "exp")[:, None, None], first[:, None, None]
    bias = chain.where(past < 0, here, -rate * np.maximum(past, 0.0))  # (inner, n, n)
    output = chain.apply(dot_product, np.ones(key.shape), key, value, bias=bias, mask=past >= -1, scale=1.0)
    return (activated(gate, "sigmoid") * output[..., 0].swapaxes(-2, -1)) @ w_output  # (dot-product.1)


@recipe(
    x=(2, 5, 6), w_in=(6, 40), taps=(3, 24), log_rate=(4,), b_step=(4,), skip=(4,), w_output=(12, 6), gain=(12,),
    b_taps=(24,),
)  # fmt: skip
def mamba2(
    x: Any, w_in: Any, taps: Any, log_rate: Any, b_step: Any, skip: Any, w_output: Any, gain: Any = None,
    b_taps: Any = None, b_in: Any = None, b_output: Any = None,
    *, groups: int = 2, visible: Any = None, least: float = 0.0, most: float = np.inf, kind: str = "silu",
    norm_groups: int = 1, norm_last: bool = True, epsilon: float = 1e-5,
) -> Any:  # fmt: skip
    """A state for each head decays by a step of its own, above 0 (Dao and Gu, 2024).

    Several heads, one after the other, share one of the `groups` of queries and keys; `visible` (b, n, 1) is 0 where
    there is no token. The gate opens before the norm, or after it.
    """
    heads, inner = log_rate.shape[-1], w_output.shape[0]
    projected = linear(x, w_in, b_in)
    gate, mixed, step = projected[..., :inner], projected[..., inner:-heads], projected[..., -heads:]
    mixed = activated(chain.apply(short_conv, mixed, taps, b_taps), kind)  # (short-conv.1)
    mixed = mixed if visible is None else mixed * visible
    value = in_groups(mixed[..., :inner], groups, heads // groups)  # (b, groups, heads / groups, n, d_v)
    half = (mixed.shape[-1] + inner) // 2
    key, query = in_groups(mixed[..., inner:half], groups, 1), in_groups(mixed[..., half:], groups, 1)
    step = in_groups(clipped(softplus(step + b_step), least, most), groups, heads // groups)
    log_decay = -activated(log_rate, "exp").reshape(groups, -1, 1, 1) * step  # (b, groups, heads / groups, n, 1)
    output = chain.apply(linear_attention, query, key, step * value, log_decay=log_decay, **STATE)
    output, gate = of_groups(output + skip.reshape(groups, -1, 1, 1) * value), activated(gate, "silu")
    if gain is None:
        output = output * gate
    elif norm_last:
        output = normed_in_groups(output * gate, norm_groups, epsilon) * gain  # (rms-norm.3)
    else:
        output = normed_in_groups(output, norm_groups, epsilon) * gain * gate
    return linear(output, w_output, b_output)


@recipe(
    x=(2, 5, 6), w_in=(6, 16), taps=(3, 8), w_mixed=(8, 7), w_step=(3, 8), b_step=(8,), log_rate=(8, 2), skip=(8,),
    w_output=(8, 6), b_taps=(8,),
)  # fmt: skip
def mamba(
    x: Any, w_in: Any, taps: Any, w_mixed: Any, w_step: Any, b_step: Any, log_rate: Any, skip: Any, w_output: Any,
    b_taps: Any = None, b_in: Any = None, b_output: Any = None, step_gain: Any = None, key_gain: Any = None,
    query_gain: Any = None,
    *, visible: Any = None, kind: str = "silu", epsilon: float | None = None,
) -> Any:  # fmt: skip
    """A state for each feature, whose parts decay by rates of their own (Gu and Dao, 2023).

    With an `epsilon`, what steps, keys and queries are made of is normalised first.
    """
    inner, d, rank = log_rate.shape[0], log_rate.shape[1], w_step.shape[0]
    projected = linear(x, w_in, b_in)
    value, gate = projected[..., :inner], activated(projected[..., inner:], "silu")
    value = activated(chain.apply(short_conv, value, taps, b_taps), kind)  # (b, n, inner) (short-conv.1)
    value = value if visible is None else value * visible
    mixed = value @ w_mixed
    step, key, query = mixed[..., :rank], mixed[..., rank : rank + d], mixed[..., rank + d :]
    if epsilon is not None:
        step, key = normed(step, step_gain, epsilon=epsilon), normed(key, key_gain, epsilon=epsilon)
        query = normed(query, query_gain, epsilon=epsilon)  # (rms-norm.3)
    step = softplus(linear(step, w_step, b_step)).swapaxes(-2, -1)[..., None]  # (b, inner, n, 1)
    log_decay = -activated(log_rate, "exp")[:, None, :] * step  # (b, inner, n, d)
    written = step * value.swapaxes(-2, -1)[..., None]
    query, key = query[..., None, :, :], key[..., None, :, :]  # (b, 1, n, d)
    output = chain.apply(linear_attention, query, key, written, log_decay=log_decay, **STATE)
    output = output[..., 0].swapaxes(-2, -1) + skip * value
    return linear(output * gate, w_output, b_output)


def softplus(x: Any) -> Any:
    """log(1 + exp x); above 20 x itself, as torch has it (activation.27)."""
    numbers = x.value if hasattr(x, "value") else x
    return chain.where(numbers > 20.0, x, activated(x, "softplus"))


def in_groups(x: Any, *heads: int) -> Any:
    """(b, n, features) -> (b, *heads, n, features of each)."""
    return x.reshape(*x.shape[:2], *heads, -1).swapaxes(1, 2).swapaxes(2, 3)


def of_groups(x: Any) -> Any:
    """What `in_groups` took apart."""
    x = x.swapaxes(2, 3).swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def normed_in_groups(x: Any, groups: int, epsilon: float) -> Any:
    """Each of so many groups of features, one after the other, divided by its root mean square (rms-norm.1)."""
    apart = x.reshape(*x.shape[:-1], groups, -1)
    return chain.apply(rms_norm, apart, epsilon=epsilon).reshape(*x.shape)
