"""Arrays with a slope: what carries a second derivative beside the imaginary step of a first one.

An imaginary step carries a first derivative because its square is too small to count. A second derivative needs one
more quantity of that kind. A :class:`Dual` is ``value + e slope``, where e times e is zero and both parts may have an
imaginary step. Then the slope is a first derivative and its imaginary part a second one, with no difference taken
anywhere (hyper-dual numbers: Fike and Alonso, 2011). What has no rule here is refused; no slope is dropped.

At the end are three functions whose imaginary part is written out, for arrays of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

Array = npt.NDArray[Any]


class Dual(NDArrayOperatorsMixin):
    """Behaves like the array ``value`` in what the evaluator does to arrays; ``slope`` has its shape."""

    def __init__(self, value: Array, slope: Array) -> None:
        self.value, self.slope = np.broadcast_arrays(value, slope)
        self.shape, self.ndim, self.size = self.value.shape, self.value.ndim, self.value.size
        self.dtype = np.result_type(value, slope)
        self.base = None

    @property
    def real(self) -> Array:
        """What is compared, and measured."""
        return self.value.real

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _RULES:
            return NotImplemented
        return _RULES[ufunc](*inputs)

    def __array_function__(self, function: Any, types: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*inputs, **options)
        if function not in _LINEAR:
            return NotImplemented
        return _linear(lambda array: function(array, *inputs[1:], **options), inputs[0])

    def __getitem__(self, index: Any) -> Dual:
        return _linear(lambda array: array[index], self)


def _method(name: str) -> Callable[..., Dual]:
    return lambda self, *inputs, **options: _linear(lambda array: getattr(array, name)(*inputs, **options), self)


for _name in ("copy", "reshape", "squeeze", "sum", "transpose"):
    setattr(Dual, _name, _method(_name))


def value_of(array: Any) -> Any:
    """The array without its slope."""
    return array.value if isinstance(array, Dual) else array


def slope_of(array: Any) -> Any:
    """The slope, which is zero where an array has none."""
    return array.slope if isinstance(array, Dual) else np.zeros_like(array, dtype=float)


def _linear(function: Callable[..., Array], *inputs: Any) -> Dual:
    return Dual(function(*map(value_of, inputs)), function(*map(slope_of, inputs)))


def _bilinear(function: Callable[..., Array], of_slopes: Callable[..., Array] | None = None) -> Callable[..., Dual]:
    """The rule of a product: the slope of each factor in its turn, times the others."""
    moving = of_slopes or function

    def rule(*inputs: Any) -> Dual:
        values = [value_of(array) for array in inputs]
        slopes = [
            moving(*values[:k], array.slope, *values[k + 1 :])
            for k, array in enumerate(inputs)
            if isinstance(array, Dual)
        ]
        return Dual(function(*values), sum(slopes[1:], slopes[0]))

    return rule


def _times(left: Array, right: Array) -> Array:
    """A product in which an infinity beside a slope of exactly zero makes no NaN."""
    product: Array = left * right
    if np.isfinite(product).all():
        return product
    return np.where((left == 0) | (right == 0), 0.0, product)


def _chain(function: Callable[[Array], Array], derivative: Callable[[Array, Array], Array]) -> Callable[[Dual], Dual]:
    """The rule of an elementwise function with ``derivative(x, y)``, where y is its value."""

    def rule(x: Dual) -> Dual:
        y = function(x.value)
        return Dual(y, _times(derivative(x.value, y), x.slope))

    return rule


def _add(left: Any, right: Any) -> Dual:
    slopes = [array.slope for array in (left, right) if isinstance(array, Dual)]
    return Dual(value_of(left) + value_of(right), sum(slopes[1:], slopes[0]))


def _divide(left: Any, right: Any) -> Dual:
    if not isinstance(right, Dual):
        return Dual(left.value / right, left.slope / right)
    one, two = value_of(left), right.value
    quotient = one / two
    below = _times(-quotient / two, right.slope)
    return Dual(quotient, left.slope / two + below if isinstance(left, Dual) else below)


def _power(base: Any, exponent: Any) -> Dual:
    one, two = value_of(base), value_of(exponent)
    value = power(one, two)
    below = _times(np.where(two == 0, 0.0, two * power(one, two - 1.0)), slope_of(base))
    if not isinstance(exponent, Dual):
        return Dual(value, below)
    logarithm = np.where(one.real < 0, np.nan, np.log(one))
    return Dual(value, below + _times(value * logarithm, exponent.slope))


def _einsum(subscripts: str, *operands: Any) -> Dual:
    return _bilinear(lambda *arrays: np.einsum(subscripts, *arrays))(*operands)


def _inverse(matrix: Dual) -> Dual:
    inverse = np.linalg.inv(matrix.value)
    return Dual(inverse, -inverse @ matrix.slope @ inverse)


def _where(condition: Array, one: Any, two: Any) -> Dual:
    return _linear(lambda left, right: np.asarray(np.where(condition, left, right)), one, two)


def _stack(arrays: list[Any], axis: int = 0) -> Dual:
    return _linear(lambda *parts: np.stack(parts, axis=axis), *arrays)


def _alike(*arrays: Any) -> list[Any]:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [np.broadcast_to(array, shape) for array in arrays]


_RULES: dict[np.ufunc, Callable[..., Any]] = {
    np.add: _add,
    np.subtract: lambda left, right: _add(left, -right),
    np.negative: lambda array: _linear(np.negative, array),
    np.multiply: lambda left, right: _bilinear(product, _times)(left, right),
    np.divide: _divide,
    np.power: _power,
    np.matmul: _bilinear(np.matmul),
    np.exp: _chain(lambda x: exp(x), lambda x, y: y),
    np.log: _chain(np.log, lambda x, y: 1.0 / x),
    np.sqrt: _chain(np.sqrt, lambda x, y: 0.5 / y),
    np.tanh: _chain(np.tanh, lambda x, y: 1.0 - y * y),
    np.cosh: _chain(np.cosh, lambda x, y: np.sinh(x)),
    np.sinh: _chain(np.sinh, lambda x, y: np.cosh(x)),
    np.cos: _chain(np.cos, lambda x, y: -np.sin(x)),
    np.sin: _chain(np.sin, lambda x, y: np.cos(x)),
    np.isnan: lambda array: np.isnan(array.value) | np.isnan(array.slope),
    np.isfinite: lambda array: np.isfinite(array.value) & np.isfinite(array.slope),
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.linalg.inv: _inverse,
    np.where: _where,
    np.stack: _stack,
    np.broadcast_arrays: _alike,
}
_LINEAR = frozenset(
    (
        np.broadcast_to,
        np.diagonal,
        np.expand_dims,
        np.moveaxis,
        np.repeat,
        np.squeeze,
        np.swapaxes,
        np.take,
        np.take_along_axis,
        np.trace,
    )
)


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
        moving = np.broadcast_to(exponent.imag != 0, value.shape)
        by_exponent = np.where(moving, value * np.log(base.real), 0.0) * exponent.imag
    result = np.empty(value.shape, dtype=complex)
    result.real = value
    result.imag = np.where(np.broadcast_to(base.imag == 0, value.shape), 0.0, by_base) + by_exponent
    return result
