r"""RMS normalisation: each row divided by the root of its mean square, times a gain for each feature.

A row is what lies along the last axis, or along several: of heads and features together. With d numbers in a row,

.. math::

    \rho = \sqrt{\tfrac{1}{d} \sum_a x_a^2 + \epsilon}, \qquad y_a = g_a \frac{x_a}{\rho}, \qquad
    \frac{\partial (x_a / \rho)}{\partial x_b} = \frac{1}{\rho} \left( \delta_{ab} - \frac{x_a x_b}{d \rho^2} \right)

The derivation is ``derivations/rms_norm.md`` of the package.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_added, as_axes, as_floating, as_number, check_broadcasts_to
from attention_np._lib.arrays import Array, is_finite, precision, real_types
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.wide import is_wide, narrowed, widened

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck
OP = passes.Op(has_products=True)


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    gain: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., d)
    gain: Array | None  # (d,)
    epsilon: Any  # a real scalar of the precision computed in
    axis: tuple[int, ...]  # counted from the last
    rms: Array  # (..., 1)
    normalised: Array  # (..., d)
    output_shape: tuple[int, ...]

    def in_range(self) -> Cache:
        """With its products made again, of inputs that are widened: tiny rows have roots that have lost digits."""
        rms = root_mean_square(self.x, self.epsilon, self.axis)
        return self._replace(rms=rms, normalised=self.x / rms)


def forward(
    x: npt.ArrayLike, gain: npt.ArrayLike | None = None, *, epsilon: float = 1e-6, axis: int | tuple[int, ...] = -1
) -> tuple[Array, Cache]:
    r"""RMS normalisation over the last axis, or over several.

    Parameters
    ----------
    x : array_like of float, (..., d)
    gain : array_like of float, (d,), optional
        What each feature is multiplied by, as it is: a model that stores a gain less one adds the one. By default 1.
        Or of any shape that broadcasts to that of `x`, such as (heads, d).
    epsilon : float, optional
        Added to the mean square, so that a row of zeros stays zero; from 0 on.
    axis : int or tuple of int, optional
        Along which a row lies: ``(-2, -1)`` for what lies along the last two together. By default the last.

    Returns
    -------
    output : ndarray, (..., d)
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `epsilon` is not a number, or `axis` is not
        an integer or a tuple of them.
    ValueError
        If `x` has no such axis, an axis is named twice or none is, `gain` does not broadcast to the shape of `x`, or
        `epsilon` is negative or not finite.

    Notes
    -----
    Zhang and Sennrich [1]_. Squares that leave the range of the dtype do no harm: finite rows of any size have the
    output that their numbers say.

    References
    ----------
    .. [1] B. Zhang, R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import rms_norm
    >>> output, cache = rms_norm.forward(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]))
    >>> print(cache.rms.round(4), output.round(4))
    [[3.5355]] [[0.8485 2.2627]]
    >>> print(rms_norm.backward(np.array([[1.0, 0.0]]), cache).x.round(4))
    [[ 0.181  -0.1358]]
    """
    x, gain, epsilon, axes = as_normalised(x, gain, epsilon, axis)
    return normalise(x, gain, epsilon=epsilon, axis=axes)


@passes.forward
def normalise(x: Array, gain: Array | None, epsilon: Any, axis: tuple[int, ...] = (-1,)) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    rms = root_mean_square(x, epsilon, axis)  # (..., 1) (rms-norm.1, rms-norm.22)
    normalised = x / rms  # (..., d) (rms-norm.2)
    output = normalised.copy() if gain is None else normalised * gain  # (..., d) (rms-norm.3, rms-norm.24)
    return output, Cache(
        x=x, gain=gain, epsilon=epsilon, axis=axis, rms=rms, normalised=normalised, output_shape=output.shape
    )


def root_mean_square(x: Array, epsilon: Any, axis: tuple[int, ...]) -> Array:
    """The root of the mean square and `epsilon`, (..., 1), of any `x` that is finite."""
    root: Array = np.sqrt(mean(x * x, axis) + epsilon)
    if is_wide(root):
        return root
    least = _least_root(root.dtype)  # the squares of smaller numbers lose digits, or are zero
    if is_finite(root) and root.real.min(initial=np.inf) > least:
        return root
    usual = (least < root.real) & (root.real < np.inf)
    return np.where(usual, root, narrowed(root_mean_square(widened(x), epsilon, axis)))


@lru_cache
def _least_root(dtype: np.dtype[Any]) -> Any:
    """Of the roots of squares that have all their digits."""
    return np.sqrt(np.finfo(dtype).tiny / np.finfo(dtype).eps)


def mean(x: Array, axis: tuple[int, ...]) -> Array:
    """The mean over some axes, which stay."""
    average: Array = x.sum(axis=axis, keepdims=True) / _length(x.shape, axis)
    return average


@lru_cache  # it took a twentieth of the time of a norm of sixteen rows
def _length(shape: tuple[int, ...], axis: tuple[int, ...]) -> int:
    """Of how many numbers a row is; 1 for none, whose sum is zero."""
    return max(prod([shape[a] for a in axis]), 1)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to `x` and the gain, from that of the output, (..., d)."""
    normalised, gain = cache.normalised, cache.gain

    # forward was output = normalised * gain
    # (..., d), summed over what was broadcast (rms-norm.11, rms-norm.25)
    d_gain = backward_times(d_output, normalised)
    d_normalised = d_output if gain is None else backward_times(d_output, gain)  # (..., d) (rms-norm.10)

    # forward was normalised = x / rms, and all of the row is in rms
    terms = d_gain if gain is None else backward_times(d_normalised, normalised)
    part = mean(terms, cache.axis)  # (..., 1) (rms-norm.12)
    # (..., d) (rms-norm.13, rms-norm.26)
    d_x = backward_times(d_normalised - backward_times(part, normalised), 1 / cache.rms)
    return Gradients(x=d_x, gain=d_gain), (d_normalised,)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, gain: Tangent = None) -> tuple[Array, tuple[Array]]:
    """Forward mode: the tangent of the output, (..., d), from those of the inputs."""
    d_rms = mean(cache.normalised * x, cache.axis)  # (..., 1) (rms-norm.18)
    d_normalised = (x - cache.normalised * d_rms) / cache.rms  # (..., d) (rms-norm.15, rms-norm.27)
    if cache.gain is None:
        return d_normalised, (d_normalised,)
    return d_normalised * cache.gain + cache.normalised * gain, (d_normalised,)  # (..., d) (rms-norm.16)


double_backward = passes.second_derivative(normalise, backward)


def as_normalised(
    x: npt.ArrayLike, gain: npt.ArrayLike | None, epsilon: float, axis: int | tuple[int, ...]
) -> tuple[Array, Array | None, Any, tuple[int, ...]]:
    """The arguments of a normalisation: arrays, a scalar of the precision computed in, and axes from the last."""
    x = as_floating("x", x)
    if x.ndim < 1:
        raise ValueError(f"x must have at least one axis, (..., features) (x.shape={x.shape})")
    axes = as_axes("axis", axis, "x", x)
    gain = as_factor("gain", gain, x)
    return x, gain, as_epsilon("epsilon", epsilon, precision(x, gain).compute), axes


def as_factor(name: str, value: npt.ArrayLike | None, x: Array) -> Array | None:
    """`value`, a gain or what is added, as an array that broadcasts to the shape of `x`; None if there is none."""
    if value is None:
        return None
    array = as_added(name, value, x)
    check_broadcasts_to(name, array, x.shape, "x")
    return array


def as_epsilon(name: str, epsilon: float, compute: np.dtype[Any]) -> Any:
    """`epsilon` as a scalar of the precision computed in."""
    number = as_number(name, epsilon)
    if not 0 <= number < np.inf:
        raise ValueError(f"{name} must be finite and not negative, not {number}")
    real, _ = real_types(compute)
    return real(number)
