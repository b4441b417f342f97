r"""Activations: a function of each number alone, such as the gelu between the layers of a transformer.

.. math::

    y = f(x), \qquad \frac{\partial L}{\partial x} = \frac{\partial L}{\partial y} \odot f'(x)

    \mathrm{silu}(x) = x \, \sigma(x), \qquad \mathrm{gelu}(x) = x \, \Phi(x), \qquad
    (x \, g(x))' = g(x) + x \, g'(x)

The derivation is ``derivations/activation.md`` of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating
from attention_np._lib.arrays import Array
from attention_np._lib.erf import normal
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.tails import bounded, cubic_terms, in_double, log1p, sigmoids

__all__ = ["Cache", "Gradients", "backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck

STEEPNESS = Fraction("1.702")  # of quick_gelu
LINEAR = Fraction("1.5957691216057307117597842397375274739")  # of gelu_tanh: twice the root of 2 / pi
CUBIC = LINEAR * Fraction("0.044715")

# What takes numbers and gives as many; a gate gives two of each, its value and its slope
Function: TypeAlias = Callable[[Any], Any]


class Gradients(NamedTuple):
    """The gradient of the loss with respect to the array of :func:`forward`, of its shape and dtype."""

    x: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (...)
    kind: str
    output_shape: tuple[int, ...]


class Kind(NamedTuple):
    """An activation: a function of each number, and its slope."""

    value: Function
    slope: Function


def forward(x: npt.ArrayLike, *, kind: str) -> tuple[Array, Cache]:
    r"""A function of each number.

    Parameters
    ----------
    x : array_like of float, (...)
    kind : str
        "sigmoid", "tanh", "relu", "relu_squared", "silu" (swish), "gelu" (with the error function), "gelu_tanh" (its
        approximation with a tanh), "quick_gelu" (with a sigmoid), "softplus", or "exp".

    Returns
    -------
    output : ndarray, (...)
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the input, without a copy.

    Raises
    ------
    TypeError
        If `x` is not of floating-point numbers, or is a masked array.
    ValueError
        If there is no such `kind`.

    Notes
    -----
    Far to the left, where an activation or its slope goes to zero, both keep their relative digits, until they are
    below the normal numbers of the dtype. An infinite `x` has the limits. The slope of "relu" at zero is zero.

    "silu" and "gelu" are of Hendrycks and Gimpel [1]_ and Elfwing et al. [2]_, "relu_squared" of So et al. [3]_. Gated
    layers multiply ``silu(x @ w)`` or ``gelu(x @ w)`` by ``x @ v`` (SwiGLU, GeGLU, [4]_).

    References
    ----------
    .. [1] D. Hendrycks, K. Gimpel, "Gaussian error linear units (GELUs)", 2016.
    .. [2] S. Elfwing, E. Uchibe, K. Doya, "Sigmoid-weighted linear units for neural network function approximation in
       reinforcement learning", Neural Networks 107, 2018.
    .. [3] D. So et al., "Primer: searching for efficient transformers for language modeling", NeurIPS 2021.
    .. [4] N. Shazeer, "GLU variants improve transformer", 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import activation
    >>> output, cache = activation.forward(np.array([-1.0, 0.0, 2.0]), kind="gelu")
    >>> print(output.round(4), activation.backward(np.ones(3), cache).x.round(4))
    [-0.1587  0.      1.9545] [-0.0833  0.5     1.0852]
    >>> print(activation.forward(np.array([-30.0, -700.0]), kind="silu")[0])
    [-2.80728689e-012 -6.90174756e-302]
    """
    x = as_floating("x", x)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return apply(x=x, kind=kind)


@passes.forward
def apply(x: Array, kind: str) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    output = KINDS[kind].value(x).reshape(x.shape)  # (...)
    return output, Cache(x=x, kind=kind, output_shape=output.shape)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> Gradients:
    """The gradient of a loss with respect to `x`, from that of the output, (...)."""
    return Gradients(x=backward_times(d_output, KINDS[cache.kind].slope(cache.x)))  # (...) (activation.5)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None) -> Array:
    """Forward mode: how the output, (...), moves when `x` moves along a tangent."""
    return backward_times(x, KINDS[cache.kind].slope(cache.x)).reshape(x.shape)  # (...) (activation.6)


def sigmoid(x: Any) -> Any:
    """From zero to one."""
    return sigmoids(x)[0]  # (activation.9)


def sigmoid_slope(x: Any) -> Any:
    """What is reached, times what is missing."""
    reached, missing = sigmoids(x)
    return reached * missing  # (activation.10)


def tanh_slope(x: Any) -> Any:
    """The square of the tanh less one has lost its digits where they are near to each other; this has not."""
    return 4 * sigmoid_slope(2 * x)  # (activation.13)


def relu(x: Any) -> Any:
    """`x` where it is positive."""
    return np.where(x.real <= 0, 0, x)  # (activation.14); NaN stays


def relu_slope(x: Any) -> Any:
    """One where `x` is positive, zero at zero."""
    return np.where(x.real > 0, 1, np.where(x.real <= 0, 0, x))  # (activation.15); NaN stays


def relu_squared(x: Any) -> Any:
    """The square of `x` where it is positive."""
    return relu(x) * relu(x)  # (activation.16)


def relu_squared_slope(x: Any) -> Any:
    """It is continuous, and zero at zero."""
    return 2 * relu(x)  # (activation.17)


def softplus(x: Any) -> Any:
    """The logarithm of ``1 + exp(x)``, in which the exponential neither overflows nor is rounded away."""
    return np.where(x.real > 0, x, 0) + log1p(np.exp(np.where(x.real > 0, -x, x)))  # (activation.30)


def of_sigmoid(x: Any) -> tuple[Any, Any]:
    """The gate of silu, and its slope."""
    reached, missing = sigmoids(x)
    return reached, reached * missing  # (activation.10)


def of_normal(x: Any) -> tuple[Any, Any]:
    """The gate of gelu: how much of the normal distribution lies below x; and its slope, the density there."""
    return normal(x)  # (activation.1)


def of_steep_sigmoid(x: Any) -> tuple[Any, Any]:
    """The gate of quick_gelu, and its slope."""
    reached, missing = sigmoids(*cubic_terms(x, STEEPNESS))
    return reached, float(STEEPNESS) * reached * missing  # (activation.22)


def of_cubic_sigmoid(x: Any) -> tuple[Any, Any]:
    """The gate of gelu_tanh, ``(1 + tanh(u)) / 2``, which is the sigmoid of 2 u; and its slope."""
    reached, missing = sigmoids(*cubic_terms(x, LINEAR, CUBIC))
    return reached, (float(LINEAR) + 3 * float(CUBIC) * x * x) * reached * missing  # (activation.25)


def gated(gate: Function) -> Kind:
    """The activation that is x times a gate, which opens from zero to one."""

    @in_double
    def value(x: Any) -> Any:
        open_, _ = gate(bounded(x))
        return np.where(x.real < 0, bounded(x), x) * open_  # (activation.2)

    @in_double
    def slope(x: Any) -> Any:
        x = bounded(x)
        open_, opening = gate(x)
        return open_ + x * opening  # (activation.3)

    return Kind(value, slope)


KINDS = {
    "sigmoid": Kind(sigmoid, sigmoid_slope),
    "tanh": Kind(np.tanh, tanh_slope),
    "relu": Kind(relu, relu_slope),
    "relu_squared": Kind(relu_squared, relu_squared_slope),
    "silu": gated(of_sigmoid),  # (activation.18, activation.19)
    "gelu": gated(of_normal),  # (activation.2, activation.3)
    "gelu_tanh": gated(of_cubic_sigmoid),  # (activation.24, activation.25)
    "quick_gelu": gated(of_steep_sigmoid),  # (activation.21, activation.22)
    "softplus": Kind(softplus, sigmoid),  # (activation.28)
    "exp": Kind(np.exp, np.exp),  # (activation.29)
}
