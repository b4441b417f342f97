"""What a layer does between its ops: sums, products and moves of entries, each of which is an op, too.

An operation takes a list of arrays, its parts. Most are linear in each part. Then two formulas are enough: forward mode
is the value with the tangent of a part in its place, and the tangents of the gradients of a product are those
gradients with the tangent of the other factor in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array, added, as_gradient, as_result, is_finite, precision, quiet, transposed
from attention_np._lib.products import backward_product, backward_times


class Gradients(NamedTuple):
    """The gradient of each part; None of a constant."""

    parts: list[Array | None]


class Cache(NamedTuple):
    """What an operation leaves for its other passes."""

    parts: list[Array]  # in the dtype computed in
    variable: Sequence[bool]  # which parts have gradients
    options: dict[str, Any]
    output: Array


@dataclass(frozen=True)
class Operation:
    """An operation that is linear in all its parts together."""

    name: str
    value: Callable[..., Any]  # of the parts
    gradient: Callable[..., Any]  # of part number k: of d_output, k and the parts

    def forward(self, parts: list[Array], variable: Sequence[bool], **options: Any) -> tuple[Array, Cache]:
        """The value, and what the other passes need."""
        arrays = [x for x in parts if isinstance(x, np.ndarray)] or [np.asarray(x) for x in parts]
        compute, result = precision(*arrays)
        with quiet():
            ready = [_in_dtype(x, compute) for x in parts]
            output = as_result(np.asanyarray(self.value(*ready, **options)), result)
        return output, Cache(ready, variable, options, output)

    def backward(self, d_output: Array, cache: Cache) -> Gradients:
        """The gradient of each part, summed over what was broadcast."""
        return self._gradients(d_output, cache, lambda _: cache.parts)

    def _gradients(self, d_output: Array, cache: Cache, factors: Callable[[int], Sequence[Array] | None]) -> Gradients:
        """The gradient of each part, where `factors` are what the parts are in its formula; None is zero."""
        gradients: list[Array | None] = [None] * len(cache.parts)
        with quiet():
            for k, part in enumerate(cache.parts):
                parts = factors(k) if cache.variable[k] else None
                if parts is not None:
                    gradients[k] = as_gradient(self.gradient(d_output, k, *parts, **cache.options), part)
        return Gradients(gradients)

    def jvp(self, cache: Cache, parts: Sequence[Array | None]) -> Array:
        """The tangent of the value, from those of the parts."""
        tangents = [np.zeros_like(x) if t is None else t for x, t in zip(cache.parts, parts, strict=True)]
        with quiet():
            return as_result(np.asanyarray(self.value(*tangents, **cache.options)), cache.output.dtype)

    def double_backward(self, d_gradients: Gradients, d_output: Array, cache: Cache) -> tuple[None, Gradients]:
        """The tangents of the gradients, from those of the parts; `d_d_output` is left to the whole chain."""
        del d_gradients, d_output
        return None, Gradients([None] * len(cache.parts))  # no gradient depends on the parts


Operation.Gradients = Gradients  # type: ignore[attr-defined]


def _in_dtype(x: Any, compute: np.dtype[Any]) -> Array:
    if isinstance(x, np.ndarray) and x.dtype == compute:
        return x
    return np.asanyarray(x, np.result_type(compute, np.complex64) if np.iscomplexobj(x) else compute)


class Product(Operation):
    """An operation that is linear in each of its two parts alone."""

    def jvp(self, cache: Cache, parts: Sequence[Array | None]) -> Array:
        """A term for each part that has a tangent."""
        terms = [(t, cache.parts[1]) if k == 0 else (cache.parts[0], t) for k, t in enumerate(parts) if t is not None]
        with quiet():
            total = added(*(self.value(*pair, **cache.options) for pair in terms))
            return as_result(np.asanyarray(total), cache.output.dtype)

    def double_backward(self, d_gradients: Gradients, d_output: Array, cache: Cache) -> tuple[None, Gradients]:
        """The gradient of each part, with the tangent of the other in its place."""

        def factors(k: int) -> Sequence[Array] | None:
            tangent = d_gradients.parts[1 - k]
            if tangent is None:
                return None
            return (tangent, cache.parts[1]) if k == 1 else (cache.parts[0], tangent)

        return None, self._gradients(d_output, cache, factors)  # (chain.13)


class Quotient(Operation):
    """x / y, which is not linear in y."""

    def jvp(self, cache: Cache, parts: Sequence[Array | None]) -> Array:
        """The tangent of the numerator, less the quotient times that of the denominator, over the denominator."""
        (_, y), (d_x, d_y) = cache.parts, parts
        with quiet():
            total = added(d_x, None if d_y is None else -cache.output * d_y)
            return as_result(np.asanyarray(total / y), cache.output.dtype)  # (chain.15)

    def double_backward(self, d_gradients: Gradients, d_output: Array, cache: Cache) -> tuple[None, Gradients]:
        """The tangents of both gradients, d_output / y and -d_output * quotient / y."""
        (x, y), d_y = cache.parts, d_gradients.parts[1]
        with quiet():
            d_quotient = self.jvp(cache, d_gradients.parts)
            of_x = None if d_y is None else -_over(_over(backward_times(d_output, d_y), y), y)  # (chain.16)
            bend = d_quotient if d_y is None else d_quotient - x / y * (d_y / y)
            formulas = (of_x, -_over(backward_times(d_output, bend), y))  # (chain.16)
            parts = zip(formulas, cache.parts, cache.variable, strict=True)
            return None, Gradients([as_gradient(d, x) if d is not None and has else None for d, x, has in parts])


def _over(d_array: Array, divisor: Array) -> Array:
    """A gradient divided by an array, of which an entry that is exactly zero stays so."""
    quotient: Array = d_array / divisor
    return quotient if is_finite(quotient) else np.where(d_array == 0, 0, quotient)


def _divide_gradient(d_output: Array, k: int, x: Array, y: Array) -> Array:
    return -_over(backward_times(d_output, x / y), y) if k else _over(d_output, y)  # (chain.14)


def _matmul_gradient(d_output: Array, k: int, x: Array, y: Array) -> Array:
    """As of matrices: x of one axis is a row, y of one axis a column."""
    d_matrix = d_output[..., None, :] if x.ndim == 1 and y.ndim > 1 else d_output
    d_matrix = d_matrix[..., None] if y.ndim == 1 else d_matrix
    if x.ndim == y.ndim == 1:
        d_matrix = d_matrix[..., None]
    row, column = x if x.ndim > 1 else x[None], y if y.ndim > 1 else y[:, None]
    if k == 0:
        return backward_product(d_matrix, transposed(column))
    d_column: Array = transposed(backward_product(transposed(d_matrix), row))
    return d_column[..., 0] if y.ndim == 1 else d_column


def _concatenate_gradient(d_output: Array, k: int, *parts: Array, axis: int) -> Array:
    ends = np.cumsum([x.shape[axis] for x in parts])[:-1]
    gradient: Array = np.split(d_output, ends, axis)[k]
    return gradient


def _where_gradient(d_output: Array, k: int, *_: Array, mask: Array) -> Array:
    return np.where(mask, 0, d_output) if k else np.where(mask, d_output, 0)


def _entries_gradient(d_output: Array, _: int, x: Array, index: Any) -> Array:
    d_x = np.zeros(x.shape, d_output.dtype)
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, slice | int) for part in parts):
        d_x[index] = d_output
    else:
        np.add.at(d_x, index, d_output)  # an entry may have been taken more than once
    return d_x


def _sum_gradient(d_output: Array, _: int, x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    if not keepdims:
        axes = tuple(range(x.ndim)) if axis is None else axis
        d_output = np.expand_dims(d_output, axes)
    return np.broadcast_to(d_output, x.shape)


ADD = Operation("add", lambda x, y: x + y, lambda d, *_: d)
SUBTRACT = Operation("subtract", lambda x, y: x - y, lambda d, k, *_: -d if k else d)
NEGATIVE = Operation("negative", lambda x: -x, lambda d, *_: -d)
MULTIPLY = Product("multiply", lambda x, y: x * y, lambda d, k, x, y: backward_times(d, x if k else y))  # (chain.12)
DIVIDE = Quotient("divide", lambda x, y: x / y, _divide_gradient)
MATMUL = Product("matmul", lambda x, y: x @ y, _matmul_gradient)
RESHAPE = Operation("reshape", lambda x, shape: x.reshape(shape), lambda d, _, x, **__: d.reshape(x.shape))
SWAPAXES = Operation("swapaxes", lambda x, axes: x.swapaxes(*axes), lambda d, *_, axes: d.swapaxes(*axes))
ENTRIES = Operation("entries", lambda x, index: x[index], _entries_gradient)
SUM = Operation("sum", lambda x, axis, keepdims: x.sum(axis=axis, keepdims=keepdims), _sum_gradient)
CONCATENATE = Operation("concatenate", lambda *parts, axis: np.concatenate(parts, axis), _concatenate_gradient)
WHERE = Operation("where", lambda x, y, mask: np.where(mask, x, y), _where_gradient)
