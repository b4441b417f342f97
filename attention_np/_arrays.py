"""What every op needs of arrays: checks, dtype rules, and sums back over the axes that were broadcast.

An op computes in the common dtype of its arrays, half precision in single, and hands its results back in the dtype they
came in: the output in the common one, each gradient in that of its array (:func:`precision`).
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from attention_np._legible import shortened

__all__ = [
    "Array",
    "Precision",
    "added",
    "as_array",
    "as_bias",
    "as_flag",
    "as_floating",
    "as_gradient",
    "as_integer",
    "as_mask",
    "as_number",
    "as_optional_tangent",
    "as_result",
    "as_tangent",
    "as_vector",
    "check_broadcasts_to",
    "check_cache",
    "check_vector",
    "check_weight",
    "in_dtype",
    "is_finite",
    "is_floating",
    "precision",
    "quiet",
    "real_types",
    "scores_shape",
    "sum_of_squares",
    "sum_to",
    "transposed",
    "with_query_axis",
    "without_query_axis",
]

Array = npt.NDArray[Any]
CacheType = TypeVar("CacheType")


def quiet() -> np.errstate:
    """Arithmetic on NaN and infinity is defined by the ops, so NumPy need not warn of it."""
    return np.errstate(all="ignore")


class Precision(NamedTuple):
    """The dtype an op computes in, and the dtype its output is handed back in."""

    compute: np.dtype[Any]
    result: np.dtype[Any]


def _computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    # float16 and bfloat16 have too few digits to sum in; NumPy gives bfloat16 (of ml_dtypes) the kind "V".
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype.newbyteorder("=")


def precision(*arrays: Array | None) -> Precision:
    """The precision that `arrays` (None: not given) are computed in together."""
    return _precision_of(frozenset(array.dtype for array in arrays if array is not None))


@lru_cache  # it took a tenth of the time of attention over sixteen keys
def _precision_of(dtypes: frozenset[np.dtype[Any]]) -> Precision:
    if len(dtypes) > 1:
        dtypes = frozenset(dtype.newbyteorder("=") for dtype in dtypes)
    compute = np.result_type(*map(_computed_in, dtypes))
    result = next(iter(dtypes)).newbyteorder("=") if len(dtypes) == 1 else compute
    return Precision(compute, result)


def in_dtype(compute: np.dtype[Any], *arrays: Array | None) -> list[Any]:
    """`arrays` in the dtype that an op computes in, without a copy where they are; None stays None."""
    return [None if array is None else array.astype(compute, copy=False) for array in arrays]


def as_number(name: str, value: Any) -> Any:
    """`value`, a real number or an array of no axes that holds one, as a scalar of its own precision."""
    number = as_array(name, _as_float(name, value) if type(value) is int else value)
    if number.ndim or number.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a number, not {shortened(value)}")
    return number[()]


def _as_float(name: str, integer: int) -> int | float:
    """`integer`, as a float if it is too large for NumPy's integers."""
    try:
        return integer if -(2**63) <= integer < 2**63 else float(integer)
    except OverflowError:
        raise ValueError(f"{name} must be finite in floating point, not {shortened(integer)}") from None


def as_flag(name: str, value: bool) -> bool:
    """`value`, which must be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def as_integer(name: str, value: int, least: int | None = None) -> int:
    """`value` as an integer, which is at least `least`; True and False are none."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, not {value}")
    try:
        integer = int(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if least is not None and integer < least:
        raise ValueError(f"{name} must be at least {least}, not {shortened(integer)}")
    return integer


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is one of floating-point numbers, real or complex, of at least 16 bits."""
    return (dtype.kind in "fc" and dtype.itemsize > 1) or dtype.name == "bfloat16"


def real_types(compute: np.dtype[Any]) -> tuple[type[np.floating[Any]], type[np.floating[Any]]]:
    """The real scalar type that leaves `compute` as it is, and one at least as wide as float64 to work it out in."""
    real = np.finfo(compute).dtype.type
    return real, np.promote_types(real, np.float64).type


def as_array(name: str, values: npt.ArrayLike, what: str = "numbers") -> Array:
    """`values` as an ndarray, of which subclasses are views; a masked array, whose mask would be lost, is refused."""
    if type(values) is np.ndarray:
        return values
    if isinstance(values, np.ndarray) and isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must not be a masked array, whose mask says something else than who may attend to whom: pass "
            f"{name}.data or {name}.filled(...) ({name}.shape={values.shape})"
        )
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of {what}: {error}") from None


def as_floating(name: str, array: npt.ArrayLike) -> Array:
    """`array` as an ndarray of floating-point numbers, real or complex, without a copy where that can be."""
    result = as_array(name, array, "floating-point numbers")
    if not is_floating(result.dtype):
        raise TypeError(
            f"{name} must hold floating-point numbers, not {result.dtype} ({name}.shape={result.shape}): "
            f"convert it first, for example with np.asarray({name}, dtype=float)"
        )
    return result


def as_vector(name: str, array: npt.ArrayLike, shape: tuple[int, ...], compute: np.dtype[Any]) -> Array:
    """`array`, a cotangent or a tangent of something of the given `shape`, in `compute` or, if wider, its own dtype."""
    result = as_floating(name, array)
    if result.shape != shape:
        argument = name.rpartition(" ")[2]
        raise ValueError(f"{name} must have the shape {shape} of what it belongs to ({argument}.shape={result.shape})")
    if result.dtype == compute:
        return result
    return result.astype(np.result_type(compute, _computed_in(result.dtype)), copy=False)


def as_tangent(name: str, tangent: npt.ArrayLike | None, primal: Array, compute: np.dtype[Any]) -> Array:
    """`tangent` as an array of the shape of `primal`, the array called `name`; None is a zero tangent."""
    if tangent is None:
        return np.zeros(primal.shape, compute)
    return as_vector(f"the tangent of {name}", tangent, primal.shape, compute)


def as_optional_tangent(
    name: str, tangent: npt.ArrayLike | None, primal: Array | None, compute: np.dtype[Any]
) -> Array | None:
    """As :func:`as_tangent`, for an array that forward can be called without."""
    if primal is not None:
        return as_tangent(name, tangent, primal, compute)
    if tangent is not None:
        raise ValueError(f"a tangent was given for {name}, but forward was called without {name}")
    return None


def added(*terms: Array | None) -> Array | None:
    """The sum of `terms`, of which None is zero; None if all are."""
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


def as_result(array: Array, dtype: np.dtype[Any]) -> Array:
    """`array` in `dtype`; complex stays complex, for the complex step."""
    return array if array.dtype.kind == "c" else array.astype(dtype, copy=False)


def as_gradient(d_array: Array, array: Array) -> Array:
    """`d_array` summed over the axes along which `array` was broadcast, and in its dtype."""
    return as_result(np.asarray(sum_to(d_array, array.shape)), array.dtype)


def check_cache(cache: object, kind: type[CacheType], op: str) -> CacheType:
    """`cache`, which must be one that `op`'s own forward made."""
    if not isinstance(cache, kind):
        raise TypeError(
            f"cache must be the one that {op}.forward returned, not {type(cache).__module__}.{type(cache).__qualname__}"
        )
    return cache


def with_query_axis(array: Array, query: Array) -> Array:
    """`array` (..., features), with an axis of length 1 for the queries where `query` is a single one without."""
    return array[..., None, :] if query.ndim == 1 else array


def without_query_axis(array: Array, query: Array) -> Array:
    """`array` (..., n, features), less the axis that :func:`with_query_axis` put in."""
    return array[..., 0, :] if query.ndim == 1 else array


def _broadcast_leading(**arrays: Array) -> tuple[int, ...]:
    """The leading axes (all but the last two) of `arrays`, broadcast together."""
    leading = [array.shape[:-2] for array in arrays.values()]
    if all(axes == leading[0] for axes in leading):
        return leading[0]
    try:
        return np.broadcast_shapes(*leading)
    except ValueError:
        shapes = ", ".join(f"{name}.shape={array.shape}" for name, array in arrays.items())
        raise ValueError(f"the leading axes of {' and '.join(arrays)} do not broadcast together ({shapes})") from None


def scores_shape(query: Array, key: Array, value: Array) -> tuple[int, ...]:
    """(..., n, m), if the arrays are n queries (or one without an axis), m keys and their m values."""
    if query.ndim < 1:
        raise ValueError(
            f"query must have at least one axis, (..., n, features) or (features,) (query.shape={query.shape})"
        )
    for name, array in (("key", key), ("value", value)):
        if array.ndim < 2:
            raise ValueError(f"{name} must have at least two axes, (..., m, features) ({name}.shape={array.shape})")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"key and value must be of one length: there are {key.shape[-2]} keys and {value.shape[-2]} values "
            f"(key.shape={key.shape}, value.shape={value.shape})"
        )
    queries = with_query_axis(query, query)
    _broadcast_leading(query=queries, key=key, value=value)
    return (*_broadcast_leading(query=queries, key=key), queries.shape[-2], key.shape[-2])


def check_weight(name: str, w: Array, of: str, x: Array) -> None:
    """Refuse a `w` that is not a matrix with a row for each feature of `x`, which is called `of`."""
    if w.ndim != 2:
        raise ValueError(f"{name} must have two axes, (features in, features out) ({name}.shape={w.shape})")
    if w.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{name} takes {w.shape[0]} features but {of} has {x.shape[-1]} "
            f"({name}.shape={w.shape}, {of}.shape={x.shape})"
        )


def check_vector(name: str, b: Array, size: int) -> None:
    """Refuse a `b` that is not a vector of the given `size`."""
    if b.shape != (size,):
        raise ValueError(f"{name} must have the shape ({size},) ({name}.shape={b.shape})")


def check_broadcasts_to(name: str, array: Array, shape: tuple[int, ...], what: str = "the scores") -> None:
    """Refuse an `array` that does not broadcast to `shape`."""
    axes = array.shape
    fits = len(axes) <= len(shape) and all(
        size in (1, full) for size, full in zip(reversed(axes), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"{name} must broadcast to {what}, whose shape is {shape} ({name}.shape={axes})")


def as_bias(bias: npt.ArrayLike, *others: Array) -> Array:
    """`bias` as an array; a scalar takes the dtype that the `others` have together, since scalars never upcast."""
    array = as_floating("bias", bias)
    if array.ndim or isinstance(bias, np.ndarray):
        return array
    compute, dtype = precision(*others)
    if array.dtype.kind == "c" and dtype.kind != "c":
        dtype = np.result_type(compute, np.complex64)
    with quiet():
        return array.astype(dtype)


def as_mask(mask: npt.ArrayLike, shape: tuple[int, ...], what: str = "the scores") -> npt.NDArray[np.bool_]:
    """`mask` as a boolean array, True where attending is allowed, that broadcasts to `shape`."""
    if callable(getattr(mask, "mask", None)):
        raise TypeError("mask must be an array here: a rule gives its own by rule.mask(n, m)")
    result = as_array("mask", mask, "booleans")
    if result.dtype != np.bool_:
        raise TypeError(
            f"mask must be boolean, True where attending is allowed, not {result.dtype} (mask.shape={result.shape}): "
            "numbers that are added to the scores are a bias, and masks.as_mask reads 0/1 and the opposite convention"
        )
    check_broadcasts_to("mask", result, shape, what)
    return result


def is_finite(array: Array) -> bool:
    """Whether all numbers are finite; for use within :func:`quiet`.

    The first look, which mostly is enough, is :func:`sum_of_squares`.
    """
    if isinstance(array, np.ndarray) and array.dtype.kind == "f" and sum_of_squares(array) < np.inf:
        return True
    return bool(np.isfinite(array).all())


def sum_of_squares(array: Array) -> Any:
    """Of all numbers, by one call to BLAS: the first look at an array is a cheap one."""
    flat = array.ravel()
    return flat @ flat


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` summed over the axes along which `shape` was broadcast to it: the backward of broadcasting."""
    if array.shape == shape:
        return array
    added = array.ndim - len(shape)
    stretched = tuple(i + added for i, size in enumerate(shape) if size == 1 and array.shape[i + added] != 1)
    summed: Array = array.sum(axis=(*range(added), *stretched)).reshape(shape)  # (dot-product.32, notation.33)
    return summed


@overload
def transposed(array: Array) -> Array: ...
@overload
def transposed(array: None) -> None: ...
def transposed(array: Array | None) -> Array | None:
    """The transpose of each matrix in `array`, as a view."""
    return None if array is None else array.swapaxes(-1, -2)
