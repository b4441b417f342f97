r"""A short convolution over time: each token is mixed with the few before it, each feature by weights of its own.

.. math::

    y_t = \sum_{s=0}^{k-1} w_{k-1-s} \odot x_{t-s} + b, \qquad
    \frac{\partial L}{\partial x_i} = \sum_{s=0}^{k-1} w_{k-1-s} \odot \frac{\partial L}{\partial y_{i+s}}, \qquad
    \frac{\partial L}{\partial w_{k-1-s}} = \sum_t x_{t-s} \odot \frac{\partial L}{\partial y_t}

It stands before the state of Mamba, of gated DeltaNet and of their relatives. The derivation is
``derivations/short_conv.md`` of the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_array, as_floating, as_optional, broadcast_axes, check_vector
from attention_np._lib.arrays import Array, as_result, precision
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x", "initial_state")  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("b",))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    w: Array
    b: Array | None
    initial_state: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp`, the next part of a sequence, and the reader."""

    x: Array  # (..., n, d)
    w: Array  # (width, d)
    b: Array | None  # (d,)
    initial_state: Array | None  # (..., width - 1, d)
    segments: Array | None  # (..., n) of int
    final_state: Array  # (..., width - 1, d), in the dtype of the output
    output_shape: tuple[int, ...]


def forward(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    initial_state: npt.ArrayLike | None = None,
    segments: npt.ArrayLike | None = None,
) -> tuple[Array, Cache]:
    r"""A causal convolution of n tokens, feature by feature.

    Parameters
    ----------
    x : array_like of float, (..., n, d)
    w : array_like of float, (width, d)
        The weights of each feature: the last is that of the token itself, the first that of the oldest one in reach.
    b : array_like of float, (d,), optional
        Added to each token.
    initial_state : array_like of float, (..., width - 1, d), optional
        The tokens before the first one, the oldest first, such as ``final_state`` of the part before. By default there
        are none.
    segments : array_like of int, (..., n), optional
        The segment of each token, where several sequences are packed into one: where it changes another sequence
        begins, and no token sees those before. What `initial_state` holds belongs to the first.

    Returns
    -------
    output : ndarray, (..., n, d)
        The leading axes are those of `x`, `initial_state` and `segments`, broadcast together.
    cache : Cache
        With ``final_state``, the last ``width - 1`` tokens, those of `initial_state` among them where `x` has fewer:
        zeros in the places of tokens that there were not, or that another segment holds. Refers to the inputs, without
        a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array; if `segments` are not integers.
    ValueError
        If shapes do not fit together.

    Notes
    -----
    A sequence that is cut into parts gives the same outputs, to the last bit, where ``final_state`` of each part is the
    `initial_state` of the next; with gradients of the final states, the same gradients. A part may be of a single
    token. Where the cut falls between two segments, nothing is passed on.

    A token that is out of reach contributes nothing, even where it holds NaN or infinity. A sum of products that fits
    the dtype is found where products on its way do not fit.

    PyTorch's ``Conv1d`` has its weights as (d, 1, width), ``causal_conv1d`` as (d, width), and both have tokens along
    the last axis.

    References
    ----------
    .. [1] A. Gu, T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", COLM 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import short_conv
    >>> x, w = np.array([[1.0], [2.0], [4.0]]), np.array([[10.0], [1.0]])
    >>> output, cache = short_conv.forward(x, w)
    >>> print(output.T, cache.final_state)
    [[ 1. 12. 24.]] [[4.]]
    >>> output, _ = short_conv.forward(np.array([[8.0]]), w, initial_state=cache.final_state)
    >>> print(output)
    [[48.]]
    >>> print(short_conv.forward(x, w, segments=[0, 1, 1])[0].T)
    [[ 1.  2. 24.]]
    >>> print(short_conv.backward(np.array([[0.0], [0.0], [1.0]]), cache).x.T)
    [[ 0. 10.  1.]]
    """
    x, w = as_floating("x", x), as_floating("w", w)
    b, initial_state = as_optional("b", b), as_optional("initial_state", initial_state)
    if segments is not None:
        segments = as_array("segments", segments, "integers")
        if segments.dtype.kind not in "biu" and segments.size:
            raise TypeError(f"segments must hold integers, not {segments.dtype} (segments.shape={segments.shape})")
    _check_shapes(x, w, b, initial_state, segments)
    output, cache = convolve(x, w, b, initial_state, segments=segments)
    # These are inputs, so their dtype holds them: with it the next part is computed as this one.
    return output, cache._replace(final_state=as_result(cache.final_state, precision(x, w, b, initial_state).result))


@passes.forward
def convolve(
    x: Array, w: Array, b: Array | None, initial_state: Array | None, segments: Array | None
) -> tuple[Array, Cache, tuple[Array]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    width, n = len(w), x.shape[-2]
    leading = _leading_axes(x, initial_state, segments)
    tokens = _with_past(x, initial_state, width, leading)  # (..., width - 1 + n, d) (short-conv.5)
    reach, kept = _in_reach(segments, initial_state is not None, width, n)

    output = np.zeros((), x.dtype)
    for tap in range(width):
        term = tokens[..., tap : tap + n, :] * w[tap]  # (..., n, d)
        output = output + np.where(reach[tap], term, 0)  # (..., n, d) (short-conv.1, short-conv.7)
    output = output if b is None else output + b  # (..., n, d) (short-conv.7)
    final_state = np.where(kept, tokens[..., n:, :], 0)  # (..., width - 1, d) (short-conv.8)
    cache = Cache(
        x=x,
        w=w,
        b=b,
        initial_state=initial_state,
        segments=segments,
        final_state=final_state,
        output_shape=output.shape,
    )
    return output, cache, (output,)


def _with_past(x: Array, past: Array | None, width: int, leading: tuple[int, ...]) -> Array:
    """The tokens behind those before them, zeros where there are none, (..., width - 1 + n, d)."""
    n, d = x.shape[-2:]
    before = np.zeros((width - 1, d), x.dtype) if past is None else past
    parts = [np.broadcast_to(before, (*leading, width - 1, d)), np.broadcast_to(x, (*leading, n, d))]
    return np.concatenate(parts, axis=-2)


def _in_reach(segments: Array | None, has_past: bool, width: int, n: int) -> tuple[list[Array], Array]:
    """For each tap whether a token sees what stands there, (..., n, 1); and whether the last one does, of each place.

    Those between which no other segment begins see each other. The latter, (..., width - 1, 1), says what is left
    behind the last token.
    """
    begins = np.zeros(n, bool)
    if segments is not None:  # the first token begins none: what was before it belongs to its segment
        begins = np.concatenate([np.zeros_like(segments[..., :1], bool), segments[..., 1:] != segments[..., :-1]], -1)
    number = begins.cumsum(axis=-1)  # (..., n)
    before = np.full((*number.shape[:-1], width - 1), 0 if has_past else -1)  # nobody sees tokens that there were not
    places = np.concatenate([before, number], axis=-1)[..., None]  # (..., width - 1 + n, 1)
    reach = [places[..., tap : tap + n, :] == number[..., None] for tap in range(width)]  # (short-conv.6)
    return reach, places[..., n:, :] == places[..., -1:, :]  # (short-conv.8)


@passes.backward
def backward(d_output: Tangent, cache: Cache, *, d_final_state: Tangent = None) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, d)."""
    width, (*leading, n, d) = len(cache.w), cache.output_shape
    tokens = _with_past(cache.x, cache.initial_state, width, tuple(leading))  # (..., width - 1 + n, d)
    reach, kept = _in_reach(cache.segments, cache.initial_state is not None, width, n)

    # forward was final_state = the last places of tokens
    d_tokens = np.zeros((*leading, width - 1 + n, d), tokens.dtype)
    if d_final_state is not None:
        behind = np.where(kept, d_final_state, 0)  # (..., width - 1, d)
        d_tokens = _placed(behind, n, 0)  # (..., width - 1 + n, d) (short-conv.15, short-conv.16)

    # forward was output = the sum over the taps of the tokens in their reach, times w
    d_w = []
    for tap in range(width):
        arrives = np.where(reach[tap], d_output, 0)  # (..., n, d)
        # (..., d), summed over what was broadcast (short-conv.10)
        d_w.append(backward_times(arrives, tokens[..., tap : tap + n, :]).sum(axis=-2))
        d_term = backward_times(arrives, cache.w[tap])  # (..., n, d) (short-conv.9)
        # (..., width - 1 + n, d) (short-conv.3, short-conv.12, short-conv.13)
        d_tokens = d_tokens + _placed(d_term, tap, width - 1 - tap)
    d_initial_state, d_x = d_tokens[..., : width - 1, :], d_tokens[..., width - 1 :, :]
    of_taps = np.concatenate([x[..., None, :] for x in d_w], axis=-2)  # (..., width, d)
    # that of b is summed over what was broadcast (short-conv.11)
    return Gradients(x=d_x, w=of_taps, b=d_output, initial_state=d_initial_state), (d_tokens, of_taps)


def _placed(d_part: Array, before: int, behind: int) -> Array:
    """A gradient of some of the places, with zeros for those before and behind."""
    *leading, _, d = d_part.shape
    parts = [np.zeros((*leading, before, d), d_part.dtype), d_part, np.zeros((*leading, behind, d), d_part.dtype)]
    return np.concatenate(parts, axis=-2)


@passes.jvp
def jvp(
    cache: Cache, *, x: Tangent = None, w: Tangent = None, b: Tangent = None, initial_state: Tangent = None
) -> tuple[dict[str, Array], tuple[Array]]:
    """Forward mode: the tangents of the output, (..., n, d), and of the final state, from those of the inputs."""
    width, (*leading, n, _) = len(cache.w), cache.output_shape
    tokens = _with_past(cache.x, cache.initial_state, width, tuple(leading))  # (..., width - 1 + n, d)
    d_tokens = _with_past(x, initial_state, width, tuple(leading))  # (..., width - 1 + n, d)
    reach, kept = _in_reach(cache.segments, cache.initial_state is not None, width, n)

    output = np.zeros((), x.dtype)
    for tap in range(width):
        place = slice(tap, tap + n)
        term = d_tokens[..., place, :] * cache.w[tap] + tokens[..., place, :] * w[tap]  # (..., n, d)
        output = output + np.where(reach[tap], term, 0)  # (..., n, d) (short-conv.24)
    output = output if b is None else output + b  # (..., n, d) (short-conv.24)
    # (..., width - 1, d) (short-conv.25)
    return {"output": output, "final_state": np.where(kept, d_tokens[..., n:, :], 0)}, (output,)


double_backward = passes.second_derivative(convolve, backward)


def _leading_axes(x: Array, initial_state: Array | None, segments: Array | None) -> tuple[int, ...]:
    """Those of the tokens, the state before them and the segments, broadcast together."""
    leading = {"x": x.shape[:-2]}
    if initial_state is not None:
        leading["initial_state"] = initial_state.shape[:-2]
    if segments is not None:
        leading["segments"] = segments.shape[:-1]
    return broadcast_axes(leading)


def _check_shapes(x: Array, w: Array, b: Array | None, initial_state: Array | None, segments: Array | None) -> None:
    """Refuse arrays that do not fit together."""
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, (..., n, features) (x.shape={x.shape})")
    n, d = x.shape[-2:]
    if w.ndim != 2 or not len(w):
        raise ValueError(f"w must have the shape (width, features), of a width from 1 on (w.shape={w.shape})")
    if w.shape[-1] != d:
        raise ValueError(f"w has {w.shape[-1]} features but x has {d} (w.shape={w.shape}, x.shape={x.shape})")
    if b is not None:
        check_vector("b", b, d)
    if initial_state is not None and initial_state.shape[-2:] != (len(w) - 1, d):
        shape = f"(..., {len(w) - 1}, {d})"
        raise ValueError(f"initial_state must have the shape {shape} (initial_state.shape={initial_state.shape})")
    if segments is not None and segments.shape[-1:] != (n,):
        raise ValueError(f"segments must have the shape (..., {n}) (segments.shape={segments.shape})")
    _leading_axes(x, initial_state, segments)
