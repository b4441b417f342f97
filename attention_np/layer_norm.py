r"""Layer normalisation: each row less its mean, divided by its standard deviation, times a gain, plus a bias.

A row is what lies along the last axis, or along several: of heads and features together. With d numbers in a row,

.. math::

    c_a = x_a - \tfrac{1}{d} \sum_b x_b, \qquad \sigma = \sqrt{\tfrac{1}{d} \sum_a c_a^2 + \epsilon}, \qquad
    y_a = g_a \frac{c_a}{\sigma} + b_a

That is :mod:`attention_np.rms_norm` of the row less its mean, and so are its gradients. The derivation is
``derivations/layer_norm.md`` of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from attention_np import rms_norm
from attention_np._lib import passes
from attention_np._lib.arrays import Array, precision
from attention_np._lib.passes import Tangent
from attention_np.rms_norm import as_epsilon, as_factor, as_normalised, mean

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("b",), has_products=True)


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    gain: Array | None
    b: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., d)
    gain: Array | None  # (d,)
    b: Array | None  # (d,)
    centred: rms_norm.Cache  # its x is the input less its mean, its rms the standard deviation
    output_shape: tuple[int, ...]

    @property
    def deviation(self) -> Array:
        """The standard deviation of each row, (..., 1), with epsilon."""
        return self.centred.rms

    @property
    def normalised(self) -> Array:
        """The rows before gain and bias, (..., d)."""
        return self.centred.normalised

    @property
    def epsilon(self) -> Any:
        """A real scalar of the precision computed in."""
        return self.centred.epsilon

    @property
    def axis(self) -> tuple[int, ...]:
        """The axes of a row, from the last."""
        return self.centred.axis

    def in_range(self) -> Cache:
        """With its products made again, of inputs that are widened."""
        centred = self.centred._replace(x=self.x - mean(self.x, self.axis), gain=self.gain)
        return self._replace(centred=centred.in_range())


def forward(
    x: npt.ArrayLike,
    gain: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
    axis: int | tuple[int, ...] = -1,
) -> tuple[Array, Cache]:
    r"""Layer normalisation over the last axis, or over several.

    Parameters
    ----------
    x : array_like of float, (..., d)
    gain : array_like of float, (d,), optional
        What each feature is multiplied by, by default 1. Or of any shape that broadcasts to that of `x`, such as
        (heads, d).
    b : array_like of float, (d,), optional
        Added to it, by default 0. Of any such shape.
    epsilon : float, optional
        Added to the variance, so that a row of equal numbers gives `b`; from 0 on.
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
        If `x` has no such axis, an axis is named twice or none is, `gain` or `b` does not broadcast to the shape of
        `x`, or `epsilon` is negative or not finite.

    Notes
    -----
    Ba, Kiros and Hinton [1]_. The variance is the mean squared deviation, divided by d.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import layer_norm
    >>> output, cache = layer_norm.forward(np.array([[1.0, 2.0, 6.0]]), b=np.array([0.0, 0.0, 1.0]))
    >>> print(cache.deviation.round(4), output.round(4))
    [[2.1602]] [[-0.9258 -0.4629  2.3887]]
    >>> print(layer_norm.backward(np.array([[1.0, 0.0, 0.0]]), cache).x.round(4))
    [[ 0.1763 -0.2204  0.0441]]
    """
    x, gain, _, axes = as_normalised(x, gain, epsilon, axis)
    b = as_factor("b", b, x)
    epsilon = as_epsilon("epsilon", epsilon, precision(x, gain, b).compute)
    return normalise(x, gain, b, epsilon=epsilon, axis=axes)


@passes.forward
def normalise(
    x: Array, gain: Array | None, b: Array | None, epsilon: float, axis: tuple[int, ...]
) -> tuple[Array, Cache, tuple[Array]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    centred = x - mean(x, axis)  # (..., d) (layer-norm.1, layer-norm.21)
    # (layer-norm.2, layer-norm.3)
    scaled, of_centred = rms_norm.normalise.mathematics(centred, gain, epsilon, axis)  # (..., d)
    output = scaled if b is None else scaled + b  # (..., d) (layer-norm.4, layer-norm.23)
    return output, Cache(x=x, gain=gain, b=b, centred=of_centred, output_shape=output.shape), (centred,)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to `x`, the gain and `b`, from that of the output, (..., d)."""
    # forward was output = the centred row over its deviation, times gain, plus b (layer-norm.8, layer-norm.9)
    of_centred, intermediates = rms_norm.backward.mathematics(d_output, cache.centred)  # (layer-norm.10)
    # forward was centred = x - mean(x), a projection that is its own transpose
    d_x = of_centred.x - mean(of_centred.x, cache.centred.axis)  # (..., d) (layer-norm.11, layer-norm.25)
    # summed over what was broadcast (layer-norm.12, layer-norm.24)
    return Gradients(x=d_x, gain=of_centred.gain, b=d_output), (of_centred.x, *intermediates)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, gain: Tangent = None, b: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: the tangent of the output, (..., d), from those of the inputs."""
    d_centred = x - mean(x, cache.centred.axis)  # (..., d) (layer-norm.14)
    # (..., d) (layer-norm.15)
    d_output, intermediates = rms_norm.jvp.mathematics(cache.centred, x=d_centred, gain=gain)
    return d_output if b is None else d_output + b, (d_centred, *intermediates)  # (..., d) (layer-norm.16)


double_backward = passes.second_derivative(normalise, backward)
