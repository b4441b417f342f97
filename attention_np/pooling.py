r"""Pooling over windows of tokens: the mean of each window, or a mean whose weights are a softmax of gates.

.. math::

    y_w = \sum_{p=1}^{k} a_{wp} \odot x_{wc+p}, \qquad
    a_{wp} = \frac{e^{g_{wc+p} + b_p}}{\sum_r e^{g_{wc+r} + b_r}} \quad \text{or} \quad \frac{1}{k}, \qquad
    \frac{\partial L}{\partial x_t} = \sum_{w:\, 1 \le t - wc \le k} a_{w,t-wc} \odot \frac{\partial L}{\partial y_w}

for windows of k tokens, one every c tokens, each feature by itself. What attention over long sequences makes of its
keys, to look at fewer. The derivation is ``derivations/pooling.md`` of the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_integer, as_optional, broadcast_leading
from attention_np._lib.arrays import Array, sum_to
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.rows import summed_over_windows, windows_of
from attention_np._lib.second_look import sum_in_range

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x", "gate")  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("gate", "b"))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    gate: Array | None
    b: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., n, d)
    gate: Array | None  # (..., n, d)
    b: Array | None  # (width, d)
    width: int  # the tokens of a window
    stride: int  # how many tokens later the next one begins
    weights: Array | None  # of the tokens of each window, (..., windows, width, d); None for a mean
    weighing: softmax.Cache | None  # the softmax that they come from
    output_shape: tuple[int, ...]


def forward(
    x: npt.ArrayLike,
    gate: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
    *,
    width: int,
    stride: int | None = None,
) -> tuple[Array, Cache]:
    r"""One row for each window of tokens.

    Parameters
    ----------
    x : array_like of float, (..., n, d)
        The tokens.
    gate : array_like of float, (..., n, d), optional
        How much each feature of a token counts in its windows, before the softmax over the window; by default all
        count alike. Leading axes broadcast with those of `x`. Minus infinity hides a feature of a token.
    b : array_like of float, (width, d), optional
        Added to the gates of the first, second, ... token of each window.
    width : int
        The tokens of a window, at least 1.
    stride : int, optional
        How many tokens later the next window begins, at least 1; by default `width`, where the last one ends. With
        less, windows overlap; with more, the tokens between two windows are in none.

    Returns
    -------
    output : ndarray, (..., windows, d)
        Of whole windows only, of which there are ``(n - width) // stride + 1``, and none if n is less than `width`:
        tokens behind the last whole window are in none.
    cache : Cache
        For :func:`backward` and :func:`jvp`, with the ``weights``. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, or `width` or `stride` is not an integer.
    ValueError
        If shapes do not fit together, `width` or `stride` is less than 1, or `b` is given without a `gate`.

    Notes
    -----
    A query must not see a window before it is over, or it would see its own future. Window w, from 0, holds the tokens
    from ``w * stride`` to ``w * stride + width - 1``, so the mask of n queries, (n, windows), is
    ``masks.causal(n, max(n - width + 1, 0), offset=1 - width)[:, ::stride]``.

    A token that is NaN or infinite has its way in its own windows, and in no other.

    Means of windows are the keys that MoBA [1]_ chooses blocks by. Pooled keys are the compressed branch of native
    sparse attention [2]_, whose pooling is learned.

    References
    ----------
    .. [1] E. Lu et al., "MoBA: mixture of block attention for long-context LLMs", arXiv:2502.13189, 2025.
    .. [2] J. Yuan et al., "Native sparse attention: hardware-aligned and natively trainable sparse attention",
       arXiv:2502.11089, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import masks, pooling
    >>> x = np.array([[1.0], [3.0], [5.0], [7.0], [9.0]])
    >>> output, cache = pooling.forward(x, width=2)
    >>> print(output.T)
    [[2. 6.]]
    >>> output, cache = pooling.forward(x, width=3, stride=2)
    >>> print(output.T, pooling.backward(np.array([[3.0], [6.0]]), cache).x.T)
    [[3. 7.]] [[1. 1. 3. 2. 2.]]
    >>> gate = np.log(np.array([[1.0], [3.0], [1.0], [1.0], [1.0]]))
    >>> print(pooling.forward(x, gate, width=2)[0].T)
    [[2.5 6. ]]
    >>> print(masks.causal(5, 4, offset=-1)[:, ::2].astype(int))  # which of these a query may see
    [[0 0]
     [1 0]
     [1 0]
     [1 1]
     [1 1]]
    """
    x = as_floating("x", x)
    gate, b = as_optional("gate", gate), as_optional("b", b)
    width = as_integer("width", width, least=1)
    stride = width if stride is None else as_integer("stride", stride, least=1)
    _check_shapes(x, gate, b, width)
    return pool(x, gate, b, width=width, stride=stride)


@passes.forward
def pool(x: Array, gate: Array | None, b: Array | None, width: int, stride: int) -> tuple[Array, Cache, tuple[Array]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    windows = windows_of(x, width, stride)  # (..., windows, width, d), a view
    weighing = weights = None
    if gate is None:
        output = windows.sum(axis=-2) / width  # (..., windows, d) (pooling.1)
    else:
        scores = windows_of(gate, width, stride)  # (..., windows, width, d) (pooling.4)
        scores = scores if b is None else sum_in_range(scores, b, axis=-2)  # (pooling.4)
        weights, weighing = softmax.weights_and_cache(scores, None, axis=-2)  # (..., windows, width, d) (pooling.5)
        terms = _shown(weights * windows, weighing)  # (..., windows, width, d)
        output = terms.sum(axis=-2)  # (..., windows, d) (pooling.6)
    cache = Cache(
        x=x, gate=gate, b=b, width=width, stride=stride, weights=weights, weighing=weighing, output_shape=output.shape
    )
    return output, cache, (output,)


def _shown(terms: Array, weighing: softmax.Cache) -> Array:
    """Terms of the windows, (..., windows, width, d), of which a hidden one is zero, whatever it is a product of."""
    return np.where(weighing.scores.real == -np.inf, 0, terms)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss by every array of :func:`forward`, from that of the output, (..., windows, d).

    A token that is in several windows gets the sum of what comes from each, and one that is in none zero.
    """
    n, d = cache.x.shape[-2:]
    d_rows = d_output[..., None, :]  # (..., windows, 1, d)
    if cache.weights is None or cache.weighing is None:
        # forward was output = windows.sum(axis=-2) / width
        d_each = d_rows / cache.width  # (..., windows, 1, d)
        d_windows = np.broadcast_to(d_each, (*d_output.shape[:-1], cache.width, d))
        d_x = summed_over_windows(d_windows, n, cache.stride)  # (..., n, d) (pooling.3)
        return Gradients(x=d_x, gate=None, b=None), (d_each,)
    windows = windows_of(cache.x, cache.width, cache.stride)  # (..., windows, width, d)
    # forward was output = the sum of weights * windows
    d_windows = _shown(backward_times(d_rows, cache.weights), cache.weighing)  # (..., windows, width, d) (pooling.7)
    # summed over what the weights were broadcast along (pooling.8)
    d_weights = sum_to(backward_times(d_rows, windows), cache.weights.shape)  # (..., windows, width, d)
    d_scores = softmax.times_jacobian(d_weights, cache.weighing)  # (..., windows, width, d) (pooling.9)
    # forward was scores = gate in its windows + b, of which that of b is summed over windows (pooling.13)
    d_b = None if cache.b is None else d_scores
    # (..., n, d) (pooling.11, pooling.12)
    d_x, d_gate = (summed_over_windows(part, n, cache.stride) for part in (d_windows, d_scores))
    return Gradients(x=d_x, gate=d_gate, b=d_b), (d_weights, d_scores)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, gate: Tangent = None, b: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the output, (..., windows, d), moves when the inputs move along a tangent."""
    windows, d_windows = (windows_of(rows, cache.width, cache.stride) for rows in (cache.x, x))
    if cache.weights is None or cache.weighing is None:
        d_output = d_windows.sum(axis=-2) / cache.width  # (..., windows, d) (pooling.1)
        return d_output, (d_output,)
    d_scores = windows_of(gate, cache.width, cache.stride)  # (..., windows, width, d)
    d_scores = d_scores if b is None else d_scores + b
    d_weights = softmax.times_jacobian(d_scores, cache.weighing)  # (..., windows, width, d) (pooling.14)
    terms = cache.weights * d_windows + backward_times(d_weights, windows)  # (..., windows, width, d)
    return _shown(terms, cache.weighing).sum(axis=-2), (d_weights,)  # (..., windows, d) (pooling.15)


double_backward = passes.second_derivative(pool, backward)


def _check_shapes(x: Array, gate: Array | None, b: Array | None, width: int) -> None:
    """Refuse arrays that do not fit together."""
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, (..., n, features) (x.shape={x.shape})")
    if gate is None:
        if b is not None:
            raise ValueError(f"b is added to gates, and gate is not given (b.shape={b.shape})")
        return
    if gate.shape[-2:] != x.shape[-2:]:
        shape = ", ".join(map(str, x.shape[-2:]))
        raise ValueError(f"gate must have the shape (..., {shape}) (gate.shape={gate.shape}, x.shape={x.shape})")
    broadcast_leading(x=x, gate=gate)
    if b is not None and b.shape != (width, x.shape[-1]):
        raise ValueError(f"b must have the shape ({width}, {x.shape[-1]}), (width, features) (b.shape={b.shape})")
