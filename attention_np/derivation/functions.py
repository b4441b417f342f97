"""The elementwise functions, safe for the complex step, and their slopes.

No function takes a modulus or a conjugate of the imaginary part, comparisons look at real parts, and outside of the
real domain the result is not a number (a complex logarithm of -1 would be one).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_np._lib.erf import erf
from attention_np.derivation.duals import exp
from attention_np.derivation.values import Array

Function = Callable[[Array], Array]
Slope = Callable[[Array, Array], Array]


def _log(x: Array) -> Array:
    return np.where(x.real < 0, np.nan, np.log(x))


def _sqrt(x: Array) -> Array:
    return np.where(x.real < 0, np.nan, np.sqrt(x))


def _tanh_slope(x: Array) -> Array:
    y = np.tanh(x)
    result: Array = 1.0 - y * y
    return result


def _sigmoid(x: Array) -> Array:
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


def absolute(x: Array) -> Array:
    """|x| along the real axis."""
    return np.where(x.real < 0, -x, x)


FUNCTIONS: dict[str, tuple[Function, Slope]] = {
    "exp": (exp, lambda x, y: y),
    "log": (_log, lambda x, y: 1.0 / np.where(x > 0, x, np.inf)),
    "sqrt": (_sqrt, lambda x, y: 0.5 / np.where(y > 0, y, np.inf)),
    "tanh": (np.tanh, lambda x, y: 1.0 - y * y),
    "tanh'": (_tanh_slope, lambda x, y: np.ones_like(y)),
    "cosh": (np.cosh, lambda x, y: np.sinh(x)),
    "sinh": (np.sinh, lambda x, y: np.cosh(x)),
    "cos": (np.cos, lambda x, y: np.ones_like(y)),
    "sin": (np.sin, lambda x, y: np.ones_like(y)),
    "sigmoid": (_sigmoid, lambda x, y: np.ones_like(y)),
    "erf": (erf, lambda x, y: 2.0 * np.ones_like(y)),
    "abs": (absolute, lambda x, y: np.ones_like(y)),
}


def largest(data: Array, axis: int, sign: int) -> Array:
    """Maximum (sign 1) or minimum (-1) along an axis, by the real part."""
    place = np.argmax(sign * data.real, axis=axis)
    result: Array = np.take_along_axis(data, np.expand_dims(place, axis), axis=axis).squeeze(axis)
    return result


def softmax(data: Array, axis: int) -> Array:
    """Softmax along an axis; the shift is a constant and does not carry a derivative."""
    shifted: Array = exp(data - data.real.max(axis=axis, keepdims=True))
    result: Array = shifted / shifted.sum(axis=axis, keepdims=True)
    return result


def logsumexp(data: Array, axis: int) -> Array:
    """Log sum exp along an axis."""
    shift = data.real.max(axis=axis, keepdims=True)
    total: Array = np.log(exp(data - shift).sum(axis=axis)) + np.squeeze(shift, axis)
    return total
