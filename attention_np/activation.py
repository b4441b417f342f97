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
from attention_np._lib.dual import with_slope
from attention_np._lib.erf import normal
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.tails import bounded, cubic_terms, in_double, in_parts, log1p, sigmoids

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck

STEEPNESS = Fraction("1.702")  # of quick_gelu
LINEAR = Fraction("1.5957691216057307117597842397375274739")  # of gelu_tanh: twice the root of 2 / pi
CUBIC = LINEAR * Fraction("0.044715")

# Of numbers, what they become, and the slope there; of a gate, how far it is open, and how fast it opens
Function: TypeAlias = Callable[[Any], tuple[Any, Any]]


class Gradients(NamedTuple):
    """The gradient of the loss with respect to the array of :func:`forward`, of its shape and dtype."""

    x: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (...)
    kind: str
    slope: Array  # (...)
    output_shape: tuple[int, ...]


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
    [-2.80728689e-012 -6.90177358e-302]
    """
    x = as_floating("x", x)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return apply(x, kind=kind)


@passes.forward
def apply(x: Array, kind: str) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    value, slope = KINDS[kind](x)
    output = value.reshape(x.shape)  # (...)
    return output, Cache(x=x, kind=kind, slope=slope.reshape(x.shape), output_shape=output.shape)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> Gradients:
    """The gradient of a loss with respect to `x`, from that of the output, (...)."""
    return Gradients(x=backward_times(d_output, cache.slope))  # (...) (activation.5)


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None) -> Array:
    """Forward mode: the tangent of the output, (...), from that of `x`."""
    d_output: Array = backward_times(x, cache.slope).reshape(x.shape)  # (...) (activation.6)
    return d_output


double_backward = passes.second_derivative(apply, backward)


def sigmoid(x: Any) -> tuple[Any, Any]:
    """From zero to one; the slope is what is reached, times what is missing."""
    reached, missing = sigmoids(x)
    return reached, slope_of_sigmoid(x, reached, missing)  # (activation.9)


@with_slope(lambda x, slope, *_: -slope * np.tanh(x / 2))  # missing - reached, of which no digits are left near zero
def slope_of_sigmoid(_: Any, reached: Any, missing: Any) -> Any:
    """What is reached, times what is missing."""
    return reached * missing  # (activation.10)


def tanh(x: Any) -> tuple[Any, Any]:
    """From minus one to one; one less the square of it would not have the digits of the slope."""
    _, slope = sigmoid(2 * x)
    return np.tanh(x), 4 * slope  # (activation.11, activation.13)


def relu(x: Any) -> tuple[Any, Any]:
    """What is positive; the slope at zero is zero, and NaN stays."""
    value = np.where(x.real <= 0, 0, x)  # (activation.14)
    return value, np.where(x.real > 0, 1, value)  # (activation.15)


def relu_squared(x: Any) -> tuple[Any, Any]:
    """Its square, the slope of which is continuous."""
    positive, _ = relu(x)
    return positive * positive, 2 * positive  # (activation.16, activation.17)


def softplus(x: Any) -> tuple[Any, Any]:
    """The logarithm of ``1 + exp(x)``, in which the exponential neither overflows nor is rounded away."""
    right = x.real > 0
    value = np.where(right, x, 0) + log1p(np.exp(np.where(right, -x, x)))  # (activation.32)
    return value, sigmoid(x)[0]  # (activation.28)


def exp(x: Any) -> tuple[Any, Any]:
    """It is its own slope."""
    value = np.exp(x)
    return value, value.copy()  # (activation.29)


def cubic_sigmoid(x: Any) -> tuple[Any, Any]:
    """The gate of gelu_tanh: ``(1 + tanh(u)) / 2`` is the sigmoid of 2 u."""
    reached, missing = sigmoids(*cubic_terms(x, LINEAR, CUBIC))
    rise = float(LINEAR) + 3 * float(CUBIC) * x * x
    return reached, rise * reached * missing  # (activation.24, activation.25)


def steep_sigmoid(x: Any) -> tuple[Any, Any]:
    """The gate of quick_gelu."""
    reached, missing = sigmoids(*cubic_terms(x, STEEPNESS))
    return reached, float(STEEPNESS) * reached * missing  # (activation.21, activation.22)


def gated(gate: Function) -> Function:
    """The activation that is x times a gate."""

    @in_double
    def activation(x: Any) -> tuple[Any, Any]:
        within = bounded(x)
        open_, opening = gate(within)
        value = np.where(x.real < 0, within, x) * open_  # (activation.2)
        return value, open_ + within * opening  # (activation.3)

    return activation


KINDS: dict[str, Function] = {
    name: in_parts(function)
    for name, function in {
        "sigmoid": sigmoid,
        "tanh": tanh,
        "relu": relu,
        "relu_squared": relu_squared,
        "silu": gated(sigmoid),  # (activation.18, activation.19)
        "gelu": gated(normal),  # (activation.1, activation.2, activation.3)
        "gelu_tanh": gated(cubic_sigmoid),
        "quick_gelu": gated(steep_sigmoid),
        "softplus": softplus,
        "exp": exp,
    }.items()
}
