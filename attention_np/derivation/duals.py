"""Dual numbers of pages: what carries a second derivative beside the imaginary step of a first one.

An imaginary step carries a first derivative because its square is too small to count. A second derivative needs one
more quantity of that kind. A dual number (:mod:`attention_np._lib.dual`) is ``value + e velocity``, where e times e is
zero and both parts may have an imaginary step. Then the velocity is a first derivative and its imaginary part a second
one, with no difference taken anywhere (hyper-dual numbers: Fike and Alonso, 2011).

Here are the rules in which a step meets an infinity, and functions that the ops do not need. At the end are three
functions whose imaginary part is written out, for arrays of both kinds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib import dual
from attention_np._lib.dual import chain, multilinear, value_of, velocity_or_zero

Array = npt.NDArray[Any]


class Dual(dual.Dual):
    """Behaves like the array ``value`` in what the evaluator does to arrays."""

    base = None

    def __init__(self, value: Array, velocity: Array) -> None:
        super().__init__(*np.broadcast_arrays(value, velocity))


def _times(left: Array, right: Array) -> Array:
    """A product in which an infinity beside a velocity of exactly zero makes no NaN."""
    product: Array = left * right
    if np.isfinite(product).all():
        return product
    return np.where((left == 0) | (right == 0), 0.0, product)


def _multiply(left: Any, right: Any) -> Dual:
    one, two = value_of(left), value_of(right)
    factors = [(left, two), (right, one)]
    velocities = [_times(x.velocity, other) for x, other in factors if isinstance(x, Dual)]
    return Dual(product(one, two), sum(velocities[1:], velocities[0]))


def _power(base: Any, exponent: Any) -> Dual:
    one, two = value_of(base), value_of(exponent)
    value = power(one, two)
    below = _times(np.where(two == 0, 0.0, two * power(one, two - 1.0)), velocity_or_zero(base))
    if not isinstance(exponent, Dual):
        return Dual(value, below)
    logarithm = np.where(one.real < 0, np.nan, np.log(one))
    return Dual(value, below + _times(value * logarithm, exponent.velocity))


def _einsum(subscripts: str, *operands: Any) -> Any:
    def contracted(*arrays: Any) -> Any:
        return np.einsum(subscripts, *arrays)

    return multilinear(contracted)(*operands)


def _inverse(matrix: Dual) -> Dual:
    inverse = np.linalg.inv(matrix.value)
    return Dual(inverse, -inverse @ matrix.velocity @ inverse)


def _alike(*arrays: Any) -> list[Any]:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [np.broadcast_to(array, shape) for array in arrays]


Dual.UFUNCS = dual.Dual.UFUNCS | {
    np.multiply: _multiply,
    np.power: _power,
    np.exp: chain(lambda x: exp(x), lambda _, y: y),
    np.tanh: chain(np.tanh, lambda _, y: 1.0 - y * y),
    np.cosh: chain(np.cosh, lambda x, _: np.sinh(x)),
    np.sinh: chain(np.sinh, lambda x, _: np.cosh(x)),
    np.cos: chain(np.cos, lambda x, _: -np.sin(x)),
    np.sin: chain(np.sin, lambda x, _: np.cos(x)),
    np.isnan: lambda x: np.isnan(x.value) | np.isnan(x.velocity),
    np.isfinite: lambda x: np.isfinite(x.value) & np.isfinite(x.velocity),
}
Dual.FUNCTIONS = dual.Dual.FUNCTIONS | {
    np.einsum: _einsum,
    np.linalg.inv: _inverse,
    np.broadcast_arrays: _alike,
}


def product(left: Array, right: Array) -> Array:
    """Elementwise product in which an infinity beside an exact zero derivative makes no NaN."""
    data: Array = left * right
    if isinstance(data, Dual) or data.dtype.kind != "c" or np.isfinite(data).all():
        return data
    real = left.real * right.real
    one, two = left.imag * right.real, left.real * right.imag
    one = np.where(np.broadcast_to(left.imag == 0, one.shape), 0.0, one)
    two = np.where(np.broadcast_to(right.imag == 0, two.shape), 0.0, two)
    fixed = np.empty(data.shape, dtype=complex)
    fixed.real, fixed.imag = real, one + two
    return fixed


def exp(x: Array) -> Array:
    """With the first-order imaginary part: NumPy's own takes a sine and a cosine of a step that is far below both."""
    if isinstance(x, Dual) or x.dtype.kind != "c":
        return np.exp(x)
    result = np.empty(x.shape, dtype=complex)
    result.real = np.exp(x.real)
    result.imag = np.where(x.imag == 0, 0.0, result.real * x.imag)
    return result


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` on real parts, with the first-order imaginary part.

    The complex power of NumPy goes through a logarithm, whose rounding error in the imaginary part would drown a
    complex step on a negative base; so the derivative is written out.
    """
    if isinstance(base, Dual) or isinstance(exponent, Dual):
        return _power(base, exponent)
    p = exponent.real
    value: Array = np.power(base.real, p)
    if base.dtype.kind != "c" and exponent.dtype.kind != "c":
        return value
    with np.errstate(all="ignore"):
        by_base = np.where(p == 0, 0.0, p * np.power(base.real, p - 1.0)) * base.imag
        has_step = np.broadcast_to(exponent.imag != 0, value.shape)
        by_exponent = np.where(has_step, value * np.log(base.real), 0.0) * exponent.imag
    result = np.empty(value.shape, dtype=complex)
    result.real = value
    result.imag = np.where(np.broadcast_to(base.imag == 0, value.shape), 0.0, by_base) + by_exponent
    return result
