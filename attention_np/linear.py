r"""A linear map of rows, with a bias: what projects queries, keys, values and outputs.

.. math::

    Y = X W + \mathbf{1} b^\top, \qquad
    \frac{\partial L}{\partial X} = G W^\top, \qquad
    \frac{\partial L}{\partial W} = X^\top G, \qquad
    \frac{\partial L}{\partial b} = G^\top \mathbf{1}

The derivation is ``derivations/linear.md`` of the package.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_optional, broadcast_leading, check_vector, check_weight
from attention_np._lib.arrays import Array, sum_to, transposed
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("b",))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    w: Array
    b: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., n, d_in)
    w: Array  # (..., d_in, d_out)
    b: Array | None  # (d_out,)
    output_shape: tuple[int, ...]


def forward(x: npt.ArrayLike, w: npt.ArrayLike, b: npt.ArrayLike | None = None) -> tuple[Array, Cache]:
    r"""The rows of `x` times a matrix, plus a bias: ``x @ w + b``.

    Parameters
    ----------
    x : array_like of float, (..., n, d_in)
        Or (d_in,): a single row.
    w : array_like of float, (d_in, d_out)
        Or (..., d_in, d_out): several matrices, whose leading axes broadcast with those of `x`.
    b : array_like of float, (d_out,), optional
        Added to each row.

    Returns
    -------
    output : ndarray, (..., n, d_out)
        Or (..., d_out) for a single row.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array.
    ValueError
        If shapes do not fit together.

    Notes
    -----
    A sum of products that fits the dtype is found where products on its way do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import linear
    >>> x, w, b = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [3.0, -1.0]]), np.array([0.5, 0.0])
    >>> output, cache = linear.forward(x, w, b)
    >>> print(output)
    [[ 7.5 -2. ]]
    >>> gradients = linear.backward(np.array([[1.0, 0.0]]), cache)
    >>> print(gradients.x, gradients.b)
    [[1. 3.]] [1. 0.]
    >>> print(gradients.w)
    [[1. 0.]
     [2. 0.]]
    """
    x, w, b = as_floating("x", x), as_floating("w", w), as_optional("b", b)
    if x.ndim < 1:
        raise ValueError(f"x must have at least one axis, (..., n, features) or (features,) (x.shape={x.shape})")
    check_weight("w", w, "x", x, leading=True)
    broadcast_leading(x=x, w=w)
    if b is not None:
        check_vector("b", b, w.shape[-1])
    return project(x, w, b)


@passes.forward
def project(x: Array, w: Array, b: Array | None) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    output = affine_map(x, w, b)  # (..., n, d_out)
    return output, Cache(x=x, w=w, b=b, output_shape=output.shape), ()


def affine_map(x: Array, w: Array, b: Array | None) -> Array:
    """``x @ w + b``, for ops."""
    y: Array = x @ w  # (..., n, d_out) (linear.1, linear.2)
    return y if b is None else y + b  # (linear.1, linear.2)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to `x`, `w` and `b`, from that of the output, (..., n, d_out).

    An entry of `d_output` that is exactly zero contributes nothing, whatever `x` or `w` hold.
    """
    d_x, d_w, d_b = affine_gradients(d_output, cache.x, cache.w)
    return Gradients(x=d_x, w=d_w, b=d_b), (d_x, d_w)


def affine_gradients(d_y: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """The gradients of ``y = x @ w + b`` with respect to x, w and b, given `d_y`; for ops.

    Those of x and w have the leading axes of both.
    """
    d_rows, x_rows = _rows(d_y, x, w), _rows(x, x, w)
    # forward was y = x @ w + b
    d_x = backward_product(d_rows, transposed(w))  # (..., n, d_in) (linear.5, linear.6, linear.11)
    d_w = transposed(backward_product(transposed(d_rows), x_rows))  # (..., d_in, d_out) (linear.7, linear.8, linear.11)
    d_b = sum_to(d_rows, d_y.shape[-1:])  # (d_out,) (linear.9)
    return d_x.reshape(x.shape) if w.ndim == 2 else d_x, d_w, d_b


def _rows(array: Array, x: Array, w: Array) -> Array:
    """`array`, which has the rows of `x` or of the output, as matrices: as one matrix where all rows meet one `w`."""
    if w.ndim == 2:
        return array.reshape(prod(array.shape[:-1]), array.shape[-1])
    return array[..., None, :] if x.ndim == 1 else array


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, w: Tangent = None, b: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: the tangent of the output, (..., n, d_out), from those of the inputs."""
    d_output = affine_tangent(cache.x, cache.w, x, w, b)
    return d_output, (d_output,)


def affine_tangent(x: Array, w: Array, d_x: Array, d_w: Array, d_b: Array | None) -> Array:
    """How ``x @ w + b`` moves when x, w and b do; for ops."""
    d_y: Array = affine_map(d_x, w, d_b) + x @ d_w  # (..., n, d_out) (linear.12)
    return d_y


double_backward = passes.second_derivative(project, backward)
