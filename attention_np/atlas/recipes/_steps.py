"""The steps that several recipes take, each an op of this package or a rearrangement of axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import activation, chain, dot_product, layer_norm, rms_norm
from attention_np import linear as linear_op


def linear(x: Any, w: Any, b: Any = None) -> Any:
    """Features x (..., d_in) through w (d_in, d_out), plus b; or each token through its own, of w (n, d_in, d_out).

    Without a w, x itself.
    """
    if w is None:
        return x
    if w.ndim > 2:
        return (x[..., None, :] @ w)[..., 0, :]
    return chain.apply(linear_op, x, w, b)


def activated(x: Any, kind: str) -> Any:
    """A function of each number."""
    return chain.apply(activation, x, kind=kind)


def in_heads(x: Any, d: int) -> Any:
    """(..., n, h * d) -> (..., h, n, d)."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // d, d).swapaxes(-3, -2)


def joined(x: Any) -> Any:
    """(..., h, n, d) -> (..., n, h * d)."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def repeated(x: Any, groups: int) -> Any:
    """(..., h, m, d) -> (..., groups * h, m, d): each head of keys serves so many of queries, one after the other."""
    return x if groups == 1 else x[..., np.repeat(np.arange(x.shape[-3]), groups), :, :]


def least(x: Any) -> float:
    """The least positive normal number of the dtype of x: beside it a row of zeros alone feels an epsilon."""
    return float(np.finfo(getattr(x, "value", x).dtype).tiny)


def clipped(x: Any, least: float, most: float) -> Any:
    """Numbers below `least` or above `most` become it; no gradient flows through these."""
    value = getattr(x, "value", x)
    return chain.where((value >= least) & (value <= most), x, np.clip(value, least, most))


def normed(x: Any, gain: Any = None, b: Any = None, *, kind: str | None = "rms", epsilon: float = 1e-6) -> Any:
    """Of each row: "rms" (rms-norm.3), "layer" with the mean removed (layer-norm.4), or "unit", of length 1."""
    if kind == "unit":
        d = x.shape[-1]
        return chain.apply(rms_norm, x, gain, epsilon=epsilon / d) * d**-0.5  # (rms-norm.2)
    if gain is not None and gain.ndim > 1:  # a gain for each head
        y = normed(x, kind=kind, epsilon=epsilon) * gain[..., None, :]
        return y if b is None else y + b[..., None, :]
    if kind == "rms":
        return chain.apply(rms_norm, x, gain, epsilon=epsilon)
    return chain.apply(layer_norm, x, gain, b, epsilon=epsilon)


def turned(x: Any, cos: Any, sin: Any, pairs: str = "halves") -> Any:
    """The first features of x (..., n, d) turned in pairs: by cos and sin (..., n, r), the others stay (rotary.5).

    The pair of feature i is i + r / 2 for "halves", the next one for "neighbours"; "halves of two" are of each half.
    """
    if pairs == "halves of two":
        x_, cos, sin = (y.reshape(*y.shape[:-1], 2, -1) for y in (x, cos, sin))
        return turned(x_, cos, sin).reshape(*x.shape)
    r = cos.shape[-1]
    if r % 2:
        raise ValueError(f"cos and sin must turn an even number of features, not {r}")
    turning = x[..., :r]
    if pairs == "halves":
        across = chain.concatenate([-turning[..., r // 2 :], turning[..., : r // 2]], axis=-1)
    else:
        even, odd = turning[..., 0::2], turning[..., 1::2]
        across = chain.concatenate([-odd[..., None], even[..., None]], axis=-1).reshape(*turning.shape)
    y = turning * cos + across * sin
    return y if r == x.shape[-1] else chain.concatenate([y, x[..., r:]], axis=-1)


def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """(..., n, d) queries, (..., m, d) keys and values -> (..., n, d) (dot-product.1)."""
    return chain.apply(dot_product, query, key, value, **options)
