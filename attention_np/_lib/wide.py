"""Numbers whose range has no end: an array, and beside each number the power of two that it is to be multiplied by.

What the ops are made of works on them as on arrays, so the lines that carry out a formula run on either. They are for
the second look, where the plain arithmetic has left the range of the dtype (:mod:`attention_np._lib.second_look`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.lib.stride_tricks import sliding_window_view

from attention_np._lib.arrays import Array
from attention_np._lib.dual import Dual, is_dual, value_of

LEAST = -(2**20)  # the exponent of zero: less than that of any number
WEAK = {int: np.float16, float: np.float16, complex: np.complex64}  # numbers of Python upcast no array
SLICE = 480  # products of numbers of that many powers of two, and their sums, are within the range of float64


class Wide(NDArrayOperatorsMixin):
    """The numbers ``mantissa * 2**exponent``, with mantissas of at least the precision of float64.

    Infinity and NaN are infinity and NaN, and nothing else becomes so. A part of a complex number that is ``2**1000``
    times smaller than the other loses digits. :func:`numpy.asarray` makes plain numbers of `dtype` of it: infinite
    where they do not fit.
    """

    def __init__(self, mantissa: Array, exponent: Any, dtype: npt.DTypeLike) -> None:
        size = np.frexp(magnitude(mantissa))[1]
        size = np.where(np.isfinite(mantissa), size, 0)
        self.mantissa: Array = np.asarray(times_power_of_two(mantissa, -size))  # of one number, too, an array to set
        self.exponent: Array = np.where(mantissa == 0, LEAST, exponent + size)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @classmethod
    def of(cls, array: Any) -> Wide:
        """`array`, or a number."""
        if isinstance(array, Wide):
            return array
        numbers = np.asarray(array)
        dtype = WEAK.get(type(array), numbers.dtype)
        return cls(numbers.astype(np.result_type(dtype, np.float64)), 0, dtype)

    def _each(self, function: Callable[[Array], Array]) -> Wide:
        """What `function`, which moves entries, makes of both arrays."""
        result = object.__new__(Wide)
        result.mantissa, result.exponent, result.dtype = function(self.mantissa), function(self.exponent), self.dtype
        return result

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """As plain numbers."""
        value = times_power_of_two(self.mantissa, self.exponent)
        return np.asarray(value, self.dtype if dtype is None else dtype)  # of a number, too, an array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None) -> Any:
        """What NumPy asks for the result of `ufunc` on such numbers; with `out`, it is an addition in place."""
        if method != "__call__" or ufunc not in UFUNCS or any(map(is_dual, inputs)):
            return NotImplemented
        result = UFUNCS[ufunc](*map(Wide.of, inputs))
        if out is None:
            return result
        if not np.can_cast(result.dtype, out[0].dtype, "same_kind"):
            return NotImplemented
        out[0][...] = result
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What NumPy asks for the result of any other function."""
        known = function in FUNCTIONS and not any(issubclass(kind, Dual) for kind in types)
        return FUNCTIONS[function](*args, **kwargs) if known else NotImplemented

    def __getitem__(self, index: Any) -> Wide:
        return self._each(lambda x: x[index])

    def __setitem__(self, index: Any, numbers: Any) -> None:
        numbers = Wide.of(numbers)
        self.mantissa[index], self.exponent[index] = numbers.mantissa, numbers.exponent

    def __len__(self) -> int:
        return len(self.mantissa)

    def __bool__(self) -> bool:
        return bool(self.mantissa)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.mantissa.shape

    @property
    def ndim(self) -> int:
        """As of an array."""
        return self.mantissa.ndim

    @property
    def real(self) -> Wide:
        """As of an array."""
        return self._each(np.real)

    @property
    def T(self) -> Wide:  # noqa: N802
        """As of an array."""
        return self._each(lambda x: x.T)

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> Wide:
        """The same numbers, of which plain ones are made in another dtype."""
        del copy
        result = self._each(lambda x: x)
        result.dtype = np.dtype(dtype)
        return result

    def copy(self) -> Wide:
        """As of an array."""
        return self._each(np.copy)

    def reshape(self, *shape: Any) -> Wide:
        """As of an array."""
        return self._each(lambda x: x.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> Wide:
        """As of an array."""
        return self._each(lambda x: x.swapaxes(one, other))

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Wide:
        """As of an array."""
        top = self.exponent.max(axis=axis, keepdims=True, initial=LEAST)
        total = times_power_of_two(self.mantissa, self.exponent - top).sum(axis=axis, keepdims=keepdims)
        return Wide(total, top.reshape(total.shape), self.dtype)

    def slices(self) -> Iterator[tuple[int, Array]]:
        """The finite numbers as a sum of arrays times ``2**place``, of numbers of SLICE powers of two at most."""
        counts = np.isfinite(self.mantissa) & (self.mantissa != 0)
        slices = self.exponent // SLICE
        for number in np.unique(slices[counts]).tolist():
            inside = np.where(counts & (slices == number), self.mantissa, 0)
            yield number * SLICE, times_power_of_two(inside, self.exponent - number * SLICE)


def is_wide(array: Any) -> bool:
    """Whether `array`, or the value of a dual number, has been :func:`widened`."""
    return isinstance(value_of(array), Wide)


@overload
def widened(array: Array) -> Array: ...
@overload
def widened(array: None) -> None: ...
def widened(array: Array | None) -> Array | None:
    """`array` as numbers whose range has no end; for types, an array like any other. None stays None."""
    if isinstance(array, Dual):
        return cast(Array, array.each(Wide.of))
    return None if array is None else cast(Array, Wide.of(array))


def narrowed(array: Any) -> Array:
    """`array` as plain numbers of its dtype, infinite where they do not fit; a velocity beside them may stay wide."""
    if isinstance(array, Dual):
        return cast(Array, type(array)(np.asanyarray(array.value), array.velocity))
    return np.asanyarray(array)


def times_power_of_two(array: Array, exponent: Any) -> Array:
    """``array * 2**exponent``, also where ``2**exponent`` alone does not fit."""
    if array.dtype.kind != "c":
        scaled: Array = np.ldexp(array, exponent)
        return scaled
    result = np.empty(np.broadcast_shapes(array.shape, np.shape(exponent)), array.dtype)
    result.real, result.imag = np.ldexp(array.real, exponent), np.ldexp(array.imag, exponent)
    return result


def magnitude(array: Array) -> Array:
    """The larger of the absolute values of the real and the imaginary part."""
    return np.maximum(np.abs(array.real), np.abs(array.imag)) if array.dtype.kind == "c" else np.abs(array)


def _add(x: Wide, y: Wide) -> Wide:
    top = np.maximum(x.exponent, y.exponent)
    parts = [times_power_of_two(part.mantissa, part.exponent - top) for part in (x, y)]
    return Wide(parts[0] + parts[1], top, np.result_type(x.dtype, y.dtype))


def _negative(x: Wide) -> Wide:
    return Wide(-x.mantissa, x.exponent, x.dtype)


def _multiply(x: Wide, y: Wide) -> Wide:
    return Wide(x.mantissa * y.mantissa, x.exponent + y.exponent, np.result_type(x.dtype, y.dtype))


def _divide(x: Wide, y: Wide) -> Wide:
    return Wide(x.mantissa / y.mantissa, x.exponent - y.exponent, np.result_type(x.dtype, y.dtype))


def _sqrt(x: Wide) -> Wide:
    odd = x.exponent % 2
    return Wide(np.sqrt(times_power_of_two(x.mantissa, odd)), (x.exponent - odd) // 2, x.dtype)


def _matmul(x: Wide, y: Wide) -> Wide:
    of_mantissas = x.mantissa @ y.mantissa  # infinity and NaN are where they are in the result
    dtype = np.result_type(x.dtype, y.dtype)
    total = Wide(np.where(np.isfinite(of_mantissas), 0, of_mantissas), 0, dtype)
    others = list(y.slices())
    for place, one in x.slices():
        for other_place, other in others:
            total = _add(total, Wide(one @ other, place + other_place, dtype))
    return total


def _cumsum(x: Wide, axis: int) -> Wide:
    top = x.exponent.max(axis=axis, keepdims=True, initial=LEAST)
    return Wide(times_power_of_two(x.mantissa, x.exponent - top).cumsum(axis=axis), top, x.dtype)


def _equal(x: Wide, y: Wide) -> Array:
    equal: Array = (x.mantissa == y.mantissa) & ((x.exponent == y.exponent) | np.isinf(x.mantissa))
    return equal


def _where(condition: Array, x: Any, y: Any) -> Wide:
    one, other = Wide.of(x), Wide.of(y)
    mantissa, exponent = (np.where(condition, getattr(one, of), getattr(other, of)) for of in ("mantissa", "exponent"))
    return Wide(mantissa, exponent, np.result_type(one.dtype, other.dtype))


def _concatenate(parts: Sequence[Any], axis: int) -> Wide:
    wide = [Wide.of(part) for part in parts]
    mantissa, exponent = (np.concatenate([getattr(x, of) for x in wide], axis) for of in ("mantissa", "exponent"))
    return Wide(mantissa, exponent, np.result_type(*(x.dtype for x in wide)))


UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: _add,
    np.subtract: lambda x, y: _add(x, _negative(y)),
    np.negative: _negative,
    np.multiply: _multiply,
    np.divide: _divide,
    np.sqrt: _sqrt,
    np.matmul: _matmul,
    np.equal: _equal,
    np.not_equal: lambda x, y: ~_equal(x, y),
    np.isfinite: lambda x: np.isfinite(x.mantissa),
    np.tanh: lambda x: np.tanh(np.asarray(x)),
    np.exp: lambda x: np.exp(np.asarray(x)),  # plain numbers, which that of a large one does not fit
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.concatenate: _concatenate,
    np.cumsum: _cumsum,
    np.take_along_axis: lambda x, index, axis: x._each(lambda part: np.take_along_axis(part, index, axis)),
    np.broadcast_to: lambda x, shape: x._each(lambda part: np.broadcast_to(part, shape)),
    np.may_share_memory: lambda *_: False,
    sliding_window_view: lambda x, *of, **how: x._each(lambda part: sliding_window_view(part, *of, **how)),
    np.zeros_like: lambda x: Wide(np.zeros_like(x.mantissa), 0, x.dtype),
}
