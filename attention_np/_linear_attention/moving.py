"""Arrays that move: each number with its velocity beside it.

The double backward of an op is its backward pass in forward mode. The chunked passes are made of sums, products,
exponentials and one inverse, so their lines run on arrays that move as they stand, and the rules of forward mode are
here, once. (Numbers with a velocity are also called dual numbers.)
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from attention_np._lib.arrays import Array

PRODUCTS = (np.multiply, np.matmul)
SUMS = (np.add, np.subtract, np.negative)
# linear in the arrays that may move, so that the same of their velocities is the velocity
LINEAR = (np.concatenate, np.cumsum, np.diagonal, np.flip, np.stack, np.tril, np.zeros_like)


class Moving(NDArrayOperatorsMixin):
    """An array, and its velocity, of the same shape."""

    def __init__(self, value: Array, velocity: Array) -> None:
        self.value, self.velocity = value, velocity

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Any:
        """What NumPy asks for the result of `ufunc`."""
        if ufunc in PRODUCTS:
            return _product(ufunc, *inputs)
        if ufunc is np.exp:
            value = np.exp(self.value)
            return Moving(value, value * self.velocity)  # (chunks.22)
        if ufunc in SUMS:
            terms = [x if isinstance(x, Moving) else Moving(x, np.zeros_like(x)) for x in inputs]
            return Moving(ufunc(*[x.value for x in terms]), ufunc(*[x.velocity for x in terms]))
        return NotImplemented

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What NumPy asks for the result of any other function."""
        if function not in LINEAR:
            return NotImplemented
        value, velocity = (
            function(*map(part, args), **{name: part(x) for name, x in kwargs.items()}) for part in (_value, _velocity)
        )
        return Moving(value, velocity)

    def __iadd__(self, other: Any) -> Any:
        self.value += other.value
        self.velocity += other.velocity
        return self

    def __getitem__(self, index: Any) -> Moving:
        return Moving(self.value[index], self.velocity[index])

    def __setitem__(self, index: Any, other: Moving) -> None:
        self.value[index], self.velocity[index] = other.value, other.velocity

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self.value.dtype

    def reshape(self, *shape: int) -> Moving:
        """As of an array."""
        return Moving(self.value.reshape(*shape), self.velocity.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> Moving:
        """As of an array."""
        return Moving(self.value.swapaxes(one, other), self.velocity.swapaxes(one, other))

    def sum(self, axis: int, keepdims: bool = False) -> Moving:
        """As of an array."""
        return Moving(self.value.sum(axis, keepdims=keepdims), self.velocity.sum(axis, keepdims=keepdims))


def moving(value: Array, velocity: Array) -> Array:
    """`value`, moving with this velocity, in a dtype that holds both; for types, an array like any other."""
    dtype = np.result_type(value, velocity)
    return cast(Array, Moving(value.astype(dtype, copy=False), velocity.astype(dtype, copy=False)))


def velocity_of(array: Any) -> Array:
    """How an array moves."""
    velocity: Array = array.velocity
    return velocity


def _product(ufunc: np.ufunc, x: Any, y: Any) -> Moving:
    value = ufunc(_value(x), _value(y))
    if not isinstance(y, Moving):
        return Moving(value, ufunc(x.velocity, y))
    velocity = ufunc(_value(x), y.velocity)
    if isinstance(x, Moving):
        velocity += ufunc(x.velocity, y.value)  # (chunks.23)
    return Moving(value, velocity)


def _value(x: Any) -> Any:
    """Of an argument of a function of NumPy."""
    if isinstance(x, Moving):
        return x.value
    return [_value(one) for one in x] if isinstance(x, list) else x


def _velocity(x: Any) -> Any:
    """Of an argument of a function of NumPy, of which an array may stand still, and an option stays as it is."""
    if isinstance(x, Moving):
        return x.velocity
    if isinstance(x, list):
        return [_velocity(one) for one in x]
    return np.zeros_like(x) if isinstance(x, np.ndarray) else x
