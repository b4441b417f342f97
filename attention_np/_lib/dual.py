"""Dual numbers: an array, and beside each number its velocity, which is its derivative along one direction.

What the ops are made of works on them as on arrays, so the lines that carry out a formula run on either, and a line
that is run on dual numbers is that line in forward mode. It is what second derivatives are made of: `backward` of an op
on dual inputs gives the velocities of the gradients. Both parts may be complex, or numbers whose range has no end
(:mod:`attention_np._lib.wide`, the sister of this module).

An array is a constant. What has no rule here is refused, so that no velocity is ever dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.lib.stride_tricks import sliding_window_view

from attention_np._lib.arrays import Array, is_finite

Rule: TypeAlias = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class Dual(NDArrayOperatorsMixin):
    """The numbers `value`, with `velocity`, an array of the same shape.

    Two are equal if both parts are; which is larger, and what is finite, their values say.
    """

    UFUNCS: ClassVar[dict[Any, Rule]] = {}  # a subclass may have other rules
    FUNCTIONS: ClassVar[dict[Any, Rule]] = {}

    def __init__(self, value: Any, velocity: Any) -> None:
        self.value, self.velocity = value, velocity

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """What NumPy asks for the result of `ufunc`; with `out`, it is an operation in place."""
        if method != "__call__" or options or ufunc not in self.UFUNCS:
            what = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(f"numpy.{what} has no rule for dual numbers{' with options' if options else ''}")
        result = self.UFUNCS[ufunc](*inputs)
        if out is None:
            return result
        if not isinstance(out[0], Dual):
            raise TypeError("an array cannot hold dual numbers, whose velocities would be dropped")
        out[0][...] = result
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What NumPy asks for the result of any other function."""
        if function not in self.FUNCTIONS:
            raise TypeError(f"numpy.{function.__name__} has no rule for dual numbers")
        return self.FUNCTIONS[function](*args, **kwargs)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """Refuse to be an array, which has no velocity."""
        raise TypeError("dual numbers are no array: their velocities would be dropped")

    def each(self, function: Callable[[Any], Any]) -> Any:
        """What `function`, which is linear, makes of both parts."""
        return type(self)(function(self.value), function(self.velocity))

    def __getitem__(self, index: Any) -> Any:
        return type(self)(self.value[index], self.velocity[index])

    def __setitem__(self, index: Any, numbers: Any) -> None:
        if isinstance(self.velocity, np.ndarray) and not self.velocity.flags.writeable:
            raise ValueError("dual numbers that share their velocities with others cannot be changed: copy them first")
        self.value[index], self.velocity[index] = value_of(numbers), velocity_or_zero(numbers)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    @property
    def real(self) -> Array:
        """What is compared: the real part of the value, a constant."""
        real: Array = self.value.real
        return real

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        shape: tuple[int, ...] = self.value.shape
        return shape

    @property
    def ndim(self) -> int:
        """As of an array."""
        return len(self.value.shape)

    @property
    def size(self) -> int:
        """As of an array."""
        return int(np.prod(self.value.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of both parts together."""
        one, other = self.value.dtype, self.velocity.dtype
        return one if one is other else np.result_type(one, other)

    @property
    def T(self) -> Any:  # noqa: N802
        """As of an array."""
        return self.each(lambda x: x.T)


def _method(name: str) -> Rule:
    def method(self: Dual, *args: Any, **kwargs: Any) -> Any:
        return self.each(lambda part: getattr(part, name)(*args, **kwargs))

    method.__doc__ = "As of an array."
    return method


for _name in ("astype", "copy", "ravel", "reshape", "squeeze", "sum", "swapaxes", "take", "transpose"):
    setattr(Dual, _name, _method(_name))


def dual(value: Any, velocity: Any) -> Array:
    """`value` with its `velocity`; for types, an array like any other."""
    return cast(Array, Dual(value, velocity))


def is_dual(array: Any) -> bool:
    """Whether `array` is of dual numbers."""
    return isinstance(array, Dual)


def value_of(array: Any) -> Any:
    """The array without its velocity."""
    return array.value if isinstance(array, Dual) else array


def velocity_of(array: Any) -> Any:
    """The velocity of an array; None of a constant."""
    return array.velocity if isinstance(array, Dual) else None


def velocity_or_zero(array: Any) -> Any:
    """The velocity of an array; of a constant, zeros of its shape."""
    if isinstance(array, Dual):
        return array.velocity
    return np.broadcast_to(np.zeros((), np.result_type(array)), np.shape(array)) if np.ndim(array) else 0


def parts_of(array: Any) -> tuple[Any, ...]:
    """The value and the velocity, if there is one."""
    return (array.value, array.velocity) if isinstance(array, Dual) else (array,)


def multilinear(function: Function) -> Function:
    """`function` of dual numbers, too, which is linear in each of them: the rule of products.

    So what takes no part in a product, as `function` has it, takes no part in any of its terms. Keywords are for the
    value alone.
    """

    @wraps(function)
    def of_duals(*args: Any, **kwargs: Any) -> Any:
        for x in args:
            if isinstance(x, Dual):
                kind = type(x)
                break
        else:
            return function(*args, **kwargs)
        values, velocity = [value_of(x) for x in args], None
        for k, x in enumerate(args):
            if isinstance(x, Dual):
                term = function(*values[:k], x.velocity, *values[k + 1 :])  # (chunks.23)
                velocity = term if velocity is None else _sum(velocity, term)
        return kind(function(*values, **kwargs), velocity)

    return cast(Function, of_duals)


def _sum(total: Any, term: Any) -> Any:
    """In place where it can be, as fresh memory takes longer than arithmetic."""
    if type(total) is np.ndarray and total.dtype == term.dtype and total.shape == term.shape:
        total += term
        return total
    return total + term


def linear(*places: int) -> Callable[[Rule], Rule]:
    """The rule of a function that is linear in its arguments at these `places` together: arrays, or lists of them."""

    def rule_of(function: Rule) -> Rule:
        def rule(*args: Any, **kwargs: Any) -> Any:
            parts = []
            for part in (value_of, velocity_or_zero):
                arguments = [_each(part, x) if k in places else x for k, x in enumerate(args)]
                parts.append(function(*arguments, **kwargs))
            return _kind_of(args)(*parts)

        return rule

    return rule_of


def _each(function: Rule, x: Any) -> Any:
    return [_each(function, one) for one in x] if isinstance(x, list | tuple) else function(x)


def _kind_of(args: Sequence[Any]) -> Any:
    """The class of the dual numbers among arguments."""
    flat = [one for x in args for one in (x if isinstance(x, list | tuple) else [x])]
    return next(type(x) for x in flat if isinstance(x, Dual))


def with_slope(slope: Rule) -> Callable[[Function], Function]:
    """`function` of dual numbers, too, whose derivative by its first argument x is ``slope(x, y, ...)`` where it is y.

    The others are taken as they are. It is for derivatives in which, by the rules of arithmetic, large terms cancel.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def of_either(x: Any, *others: Any) -> Any:
            if not isinstance(x, Dual):
                return function(x, *others)
            others = tuple(map(value_of, others))
            y = function(x.value, *others)
            return type(x)(y, times(x.velocity, slope(x.value, y, *others)))

        return cast(Function, of_either)

    return decorate


def chain(function: Rule, slope: Callable[[Any, Any], Any]) -> Rule:
    """The rule of a function of each entry x, whose ``slope(x, y)`` is known where its value is y."""

    def rule(x: Dual) -> Any:
        y = function(x.value)
        return type(x)(y, times(x.velocity, slope(x.value, y)))

    return rule


def times(velocity: Any, slope: Any) -> Any:
    """``velocity * slope``, where a velocity of zero stays zero, whatever the slope."""
    result = velocity * slope
    return result if is_finite(result) else np.where(velocity == 0, 0, result)


def _add(x: Any, y: Any) -> Any:
    value = value_of(x) + value_of(y)
    if isinstance(x, Dual) and isinstance(y, Dual):
        return type(x)(value, x.velocity + y.velocity)
    one = x if isinstance(x, Dual) else y
    return type(one)(value, _spread(one.velocity, value.shape))


def _subtract(x: Any, y: Any) -> Any:
    value = value_of(x) - value_of(y)
    if isinstance(x, Dual):
        return type(x)(value, x.velocity - y.velocity if isinstance(y, Dual) else _spread(x.velocity, value.shape))
    return type(y)(value, _spread(-y.velocity, value.shape))


def _spread(velocity: Any, shape: tuple[int, ...]) -> Any:
    """The velocity of a sum with a constant, which may have more axes: a view, which must not be written to."""
    return np.broadcast_to(velocity, shape)


def _divide(x: Any, y: Any) -> Any:
    if not isinstance(y, Dual):
        return type(x)(x.value / y, x.velocity / y)
    value = value_of(x) / y.value
    velocity = -times(y.velocity, value)
    return type(y)(value, (_sum(velocity, x.velocity) if isinstance(x, Dual) else velocity) / y.value)


def _power(x: Any, exponent: Any) -> Any:
    if isinstance(exponent, Dual):
        raise TypeError("numpy.power has no rule for an exponent of dual numbers")
    return type(x)(x.value**exponent, times(x.velocity, exponent * x.value ** (exponent - 1)))


def _exp(x: Any) -> Any:
    """Where the value is zero, behind minus infinity, so is the velocity, however large that of x is."""
    y = np.exp(x.value)
    velocity = times(x.velocity, y)  # (chunks.22)
    return type(x)(y, velocity if is_finite(velocity) else np.where(y == 0, 0, velocity))


def _slope_of_tanh(x: Any, _: Any) -> Any:
    """By exponentials that vanish, since tanh itself is rounded to one."""
    twice = 2 * np.asarray(x)
    decay = np.exp(np.where(twice.real > 0, -twice, twice))
    slope = 4 * decay
    decay += 1
    slope /= decay * decay
    return slope


def _equal(x: Any, y: Any) -> Any:
    return (value_of(x) == value_of(y)) & (velocity_or_zero(x) == velocity_or_zero(y))


def _of_values(function: Rule) -> Rule:
    """The rule of a comparison, which is of the values and gives constants."""
    return lambda *args: function(*map(value_of, args))


_COMPARISONS: tuple[Any, ...] = (np.less, np.less_equal, np.greater, np.greater_equal, np.isfinite, np.isnan)
_LINEAR: tuple[Any, ...] = (
    np.broadcast_to,
    np.concatenate,
    np.cumsum,
    np.diagonal,
    np.expand_dims,
    np.flip,
    np.moveaxis,
    np.repeat,
    sliding_window_view,
    np.squeeze,
    np.stack,
    np.swapaxes,
    np.take,
    np.take_along_axis,
    np.trace,
    np.transpose,
    np.tril,
    np.zeros_like,
)
Dual.UFUNCS.update({function: _of_values(function) for function in _COMPARISONS})
Dual.UFUNCS.update(
    {
        np.add: _add,
        np.subtract: _subtract,
        np.negative: lambda x: x.each(np.negative),
        np.multiply: multilinear(np.multiply),
        np.matmul: multilinear(np.matmul),
        np.divide: _divide,
        np.power: _power,
        np.exp: _exp,
        np.expm1: chain(np.expm1, lambda x, _: np.exp(x)),
        np.log: chain(np.log, lambda x, _: 1 / x),
        np.log1p: chain(np.log1p, lambda x, _: 1 / (1 + x)),
        np.sqrt: chain(np.sqrt, lambda _, y: 1 / (2 * y)),
        np.tanh: chain(np.tanh, _slope_of_tanh),
        np.equal: _equal,
        np.not_equal: lambda x, y: ~_equal(x, y),
    }
)
Dual.FUNCTIONS.update({function: linear(0)(function) for function in _LINEAR})
Dual.FUNCTIONS.update(
    {
        np.where: linear(1, 2)(np.where),
        np.array_split: lambda x, *how: [
            type(x)(*parts) for parts in zip(*(np.array_split(part, *how) for part in parts_of(x)), strict=True)
        ],
        np.may_share_memory: lambda *_: False,
    }
)
