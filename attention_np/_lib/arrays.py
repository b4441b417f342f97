"""What every op needs of arrays: dtype rules, axes, and sums back over the axes that were broadcast.

An op computes in the common dtype of its arrays, half precision in single, and hands its results back in the dtype they
came in: the output in the common one, each gradient in that of its array (:func:`precision`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SEVERAL = (tuple, list)  # what holds several arrays; to make the union of both at each call takes longer than to ask


def quiet() -> np.errstate:
    """Arithmetic on NaN and infinity is defined by the ops, so NumPy need not warn of it."""
    return np.errstate(all="ignore")


class Precision(NamedTuple):
    """The dtype an op computes in, and the dtype its output is handed back in."""

    compute: np.dtype[Any]
    result: np.dtype[Any]


def computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    # float16 and bfloat16 have too few digits to sum in; NumPy gives bfloat16 (of ml_dtypes) the kind "V".
    return np.dtype(np.float32) if dtype.itemsize == 2 else native(dtype)


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype` in the byte order of this machine; itself where it is, since NumPy compares one object at once."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def precision(*arrays: Any) -> Precision:
    """The precision that `arrays` (some may be None) are computed in together; those of bias objects never upcast."""
    first, *others = [array.dtype for array in arrays if array is not None]
    for dtype in others:
        if dtype != first:
            break
    else:
        return _precision_of(first)
    of_held = [x.dtype for x in arrays if holds_array(x)]
    of_arrays = _precision_of(frozenset(x.dtype for x in arrays if x is not None and not holds_array(x)))
    if of_arrays.compute.kind != "c" and any(dtype.kind == "c" for dtype in of_held):
        return Precision(*(np.result_type(of_arrays.compute, np.complex64),) * 2)
    return of_arrays


class StandIn:
    """What stands for an array until it is known, as the variables of :mod:`attention_np.chain` do."""


def holds_array(value: Any) -> bool:
    """Whether this is no array, but what holds one in its place, as those of :mod:`attention_np.biases`."""
    return hasattr(value, "with_array")


def is_row_scale(scale: Any) -> bool:
    """Whether a scale is an array, with a number for each query, and so an input; else it is a number."""
    return getattr(scale, "ndim", 0) > 0


@lru_cache  # it took a tenth of the time of attention over sixteen keys
def _precision_of(of: np.dtype[Any] | frozenset[np.dtype[Any]]) -> Precision:
    dtypes = of if isinstance(of, frozenset) else frozenset([of])
    if len(dtypes) > 1:
        dtypes = frozenset(map(native, dtypes))
    compute = np.result_type(*map(computed_in, dtypes))
    result = native(next(iter(dtypes))) if len(dtypes) == 1 else compute
    return Precision(compute, result)


def in_dtype(compute: np.dtype[Any], *arrays: Array | None) -> list[Any]:
    """`arrays` in the dtype that an op computes in, without a copy where they are; None stays None."""
    return [None if array is None else array.astype(compute, copy=False) for array in arrays]


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is one of floating-point numbers, real or complex, of at least 16 bits."""
    return (dtype.kind in "fc" and dtype.itemsize > 1) or dtype.name == "bfloat16"


@lru_cache
def real_types(compute: np.dtype[Any]) -> tuple[type[np.floating[Any]], type[np.floating[Any]]]:
    """The real scalar type that leaves `compute` as it is, and one at least as wide as float64 to work it out in."""
    real = np.finfo(compute).dtype.type
    return real, np.promote_types(real, np.float64).type


def added(*terms: Array | None) -> Array | None:
    """The sum of `terms`, of which None is zero; None if all are."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def as_result(array: Array, dtype: np.dtype[Any]) -> Array:
    """`array` in `dtype`; complex stays complex, for the complex step."""
    return array if array.dtype.kind == "c" else array.astype(dtype, copy=False)


def as_gradient(d_array: Array, array: Array) -> Array:
    """`d_array` summed over the axes along which `array` was broadcast, and in its dtype."""
    if type(d_array) is np.ndarray and d_array.dtype == array.dtype and d_array.shape == array.shape:
        return d_array
    return as_result(np.asarray(sum_to(d_array, array.shape)), array.dtype)


def with_query_axis(array: Array, query: Array) -> Array:
    """`array` (..., features), with an axis of length 1 for the queries where `query` is a single one without."""
    return array[..., None, :] if query.ndim == 1 else array


def without_query_axis(array: Array, query: Array) -> Array:
    """`array` (..., n, features), less the axis that :func:`with_query_axis` put in."""
    return array[..., 0, :] if query.ndim == 1 else array


def is_finite(array: Array) -> bool:
    """Whether all numbers are finite; for use within :func:`quiet`.

    The first look, which mostly is enough, is :func:`sum_of_squares`.
    """
    if isinstance(array, np.ndarray) and array.dtype.kind == "f" and sum_of_squares(array) < np.inf:
        return True
    if not isinstance(array, np.ndarray) and hasattr(array, "velocity"):  # of a dual number, both parts
        return is_finite(array.value) and is_finite(array.velocity)
    return bool(np.isfinite(array).all())


def sum_of_squares(array: Array) -> Any:
    """Of all numbers, by one call to BLAS: the first look at an array is a cheap one."""
    flat = array.ravel("K")  # in the order of memory: a copy would take longer than the sum
    return flat.dot(flat)  # in half the time that `@` takes for a few


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` summed over the axes along which `shape` was broadcast to it: the backward of broadcasting."""
    if array.shape == shape:
        return array
    added = array.ndim - len(shape)
    stretched = tuple(i + added for i, size in enumerate(shape) if size == 1 and array.shape[i + added] != 1)
    summed: Array = array.sum(axis=(*range(added), *stretched)).reshape(shape)  # (dot-product.32, dot-product.74)
    return summed


@overload
def transposed(array: Array) -> Array: ...
@overload
def transposed(array: None) -> None: ...
def transposed(array: Array | None) -> Array | None:
    """The transpose of each matrix in `array`, as a view."""
    return None if array is None else array.swapaxes(-1, -2)
