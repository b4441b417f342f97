"""Arguments as they must be: what is not is refused by one sentence that names it, before any work is done."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from attention_np._lib.arrays import (
    Array,
    StandIn,
    computed_in,
    holds_array,
    is_floating,
    precision,
    quiet,
    real_types,
    with_query_axis,
)
from attention_np._lib.counting import Counted
from attention_np._lib.text import shortened

CacheType = TypeVar("CacheType")

FLAGS = (bool, np.bool_)  # to make the union of both at each call takes longer than to ask


def as_number(name: str, value: Any) -> Any:
    """`value`, a real number or an array of no axes that holds one, as a scalar of its own precision."""
    if type(value) is float:
        return np.float64(value)
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
    if not isinstance(value, FLAGS):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def as_integer(name: str, value: int, least: int | None = None) -> int:
    """`value` as an integer, which is at least `least`; True and False are none."""
    if isinstance(value, FLAGS):
        raise TypeError(f"{name} must be an integer, not {value}")
    try:
        integer = int(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if least is not None and integer < least:
        raise ValueError(f"{name} must be at least {least}, not {shortened(integer)}")
    return integer


def as_axes(name: str, axes: int | tuple[int, ...], of: str, array: Array) -> tuple[int, ...]:
    """`axes` of an array that is called `of`, one or a tuple of some, each counted from the last."""
    sequence = axes if isinstance(axes, tuple) else (axes,)
    if not sequence:
        raise ValueError(f"{name} must be of at least one axis of {of}, not ()")
    from_last = []
    for axis in sequence:
        number = as_integer(name, axis)
        if not -array.ndim <= number < array.ndim:
            raise ValueError(f"{of} has no axis {shortened(number)} ({of}.shape={array.shape})")
        from_last.append(number % array.ndim - array.ndim)
    if len(set(from_last)) < len(from_last):
        raise ValueError(f"{name} must name an axis of {of} once, not {axes} ({of}.shape={array.shape})")
    return tuple(from_last)


def as_array(name: str, values: npt.ArrayLike, what: str = "numbers") -> Array:
    """`values` as an ndarray, of which subclasses are views; a masked array, whose mask would be lost, is refused."""
    if type(values) is np.ndarray or isinstance(values, Counted):
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


def as_optional(name: str, array: npt.ArrayLike | None) -> Array | None:
    """As :func:`as_floating`; None stays None."""
    return None if array is None else as_floating(name, array)


def as_learned(name: str, array: Any) -> Array:
    """As :func:`as_floating`; what stands for an array is handed on, as its arrays have been through this."""
    return cast(Array, array) if isinstance(array, StandIn) else as_floating(name, array)


def as_vector(name: str, array: npt.ArrayLike, shape: tuple[int, ...], compute: np.dtype[Any]) -> Array:
    """`array`, a cotangent or a tangent of something of the given `shape`, in `compute` or, if wider, its own dtype."""
    result = as_floating(name, array)
    if result.shape != shape:
        argument = name.rpartition(" ")[2]
        raise ValueError(f"{name} must have the shape {shape} of what it belongs to ({argument}.shape={result.shape})")
    if result.dtype == compute:
        return result
    return result.astype(np.result_type(compute, computed_in(result.dtype)), copy=False)


def as_tangent(name: str, tangent: npt.ArrayLike | None, primal: Array | None, compute: np.dtype[Any]) -> Array | None:
    """`tangent` as an array of the shape of `primal`, the array called `name`, if there was one; None is zero."""
    if primal is None:
        if tangent is not None:
            raise ValueError(f"a tangent was given for {name}, but forward was called without {name}")
        return None
    if tangent is None:
        return np.zeros(primal.shape, compute)
    return as_vector(f"the tangent of {name}", tangent, primal.shape, compute)


def check_cache(cache: object, kind: type[CacheType], op: str) -> CacheType:
    """`cache`, which must be one that `op`'s own forward made."""
    if not isinstance(cache, kind):
        raise TypeError(
            f"cache must be the one that {op}.forward returned, not {type(cache).__module__}.{type(cache).__qualname__}"
        )
    return cache


def check_gradients(d_gradients: object, kind: type[CacheType], op: str) -> CacheType:
    """`d_gradients`, which must be of the kind that `op`'s own backward returns."""
    if not isinstance(d_gradients, kind):
        raise TypeError(f"d_gradients must be {op}.Gradients, not {type(d_gradients).__name__}")
    return d_gradients


def check_outputs(op: str, outputs: Any, known: Sequence[str]) -> None:
    """Refuse what is not a sequence of names of outputs that `op` has; None is fine."""
    if isinstance(outputs, str) or not (outputs is None or isinstance(outputs, Sequence)):
        raise TypeError(f"outputs must be a tuple of names of outputs, not {shortened(outputs)}")
    for name in outputs or ():
        if name not in known:
            raise ValueError(f"{op} has no output {name!r}: it has {', '.join(known)}")


def broadcast_leading(**arrays: Array) -> tuple[int, ...]:
    """The leading axes (all but the last two) of `arrays`, broadcast together."""
    try:
        return np.broadcast_shapes(*(array.shape[:-2] for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name}.shape={array.shape}" for name, array in arrays.items())
        raise ValueError(f"the leading axes of {' and '.join(arrays)} do not broadcast together ({shapes})") from None


def broadcast_axes(leading: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The leading axes of arrays, by their names, broadcast together."""
    try:
        return np.broadcast_shapes(*leading.values())
    except ValueError:
        listed = ", ".join(f"{name}: {axes}" for name, axes in leading.items())
        raise ValueError(f"the leading axes of the arrays do not broadcast together ({listed})") from None


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
    leading = queries.shape[:-2]
    if not leading == key.shape[:-2] == value.shape[:-2]:
        broadcast_leading(query=queries, key=key, value=value)
        leading = broadcast_leading(query=queries, key=key)
    return (*leading, queries.shape[-2], key.shape[-2])


def check_weight(name: str, w: Array, of: str, x: Array, *, leading: bool = False) -> None:
    """Refuse a `w` that is not a matrix with a row for each feature of `x`, which is called `of`.

    With `leading` it may be several such matrices, (..., features in, features out).
    """
    if w.ndim < 2 or (w.ndim > 2 and not leading):
        axes = "at least two axes, (..., features in" if leading else "two axes, (features in"
        raise ValueError(f"{name} must have {axes}, features out) ({name}.shape={w.shape})")
    if w.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"{name} takes {w.shape[-2]} features but {of} has {x.shape[-1]} "
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


def as_added(name: str, value: npt.ArrayLike, *others: Array) -> Array:
    """`value` as an array; a scalar takes the dtype that the `others` have together, since scalars never upcast."""
    array = as_floating(name, value)
    if array.ndim or isinstance(value, np.ndarray):
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


def as_attended(
    query: npt.ArrayLike, key: npt.ArrayLike, value: npt.ArrayLike, bias: Any
) -> tuple[Array, Array, Array, Array | None]:
    """The arrays of an attention, as arrays; a bias object stays one, and a list a list, for types an array."""
    query, key, value = as_floating("query", query), as_floating("key", key), as_floating("value", value)
    return query, key, value, as_bias(bias, query, key, value)


def as_bias(bias: Any, *others: Array) -> Any:
    """A bias as an array, in the dtype of the `others` if it is a scalar; an object stays one, and a list a list."""

    def of(name: str, one: Any) -> Any:
        return one if holds_array(one) else as_added(name, one, *others)

    if isinstance(bias, list):
        return [of(f"bias[{k}]", x) for k, x in enumerate(bias)]
    return None if bias is None else of("bias", bias)


def as_sink(sink: npt.ArrayLike | None, shape: tuple[int, ...], *others: Array) -> Array | None:
    """`sink` as an array that broadcasts to the leading axes of scores of the given `shape`."""
    if sink is None:
        return None
    array = as_added("sink", sink, *others)
    check_broadcasts_to("sink", array, shape[:-2], "the leading axes of the scores")
    return array


def check_features(query: Array, key: Array) -> None:
    """Refuse keys that have not as many features as the queries."""
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key has {key.shape[-1]} features but query has {query.shape[-1]} "
            f"(key.shape={key.shape}, query.shape={query.shape})"
        )


@lru_cache
def _usual_scale(d_k: int, compute: np.dtype[Any]) -> Any:
    real, extended = real_types(compute)
    return real(1 / np.sqrt(extended(max(d_k, 1))))  # without features the products are zero anyway


def as_row_scale(scale: Any, shape: tuple[int, ...]) -> Array | None:
    """A scale that is an array of at least one axis, for scores of the given `shape`; None if it is a number."""
    if scale is None or not (isinstance(scale, list | tuple) or np.ndim(scale)):
        return None
    array = as_floating("scale", as_array("scale", scale))
    check_broadcasts_to("scale", array, (*shape[:-1], 1), "(..., n, 1) of the scores")
    return array


def as_scale(scale: Any, d_k: int, compute: np.dtype[Any]) -> Any:
    """The scale in the precision that is computed in, so that it neither upcasts nor rounds."""
    return _usual_scale(d_k, compute) if scale is None else _as_finite("scale", scale, compute)


def as_softcap(softcap: Any, compute: np.dtype[Any]) -> Any:
    """The softcap in the precision that is computed in; None if there is none."""
    if softcap is None:
        return None
    number = _as_finite("softcap", softcap, compute)
    if number <= 0:
        raise ValueError(f"softcap must be above zero, not {shortened(softcap)} in {number.dtype}")
    return number


def _as_finite(name: str, value: Any, compute: np.dtype[Any]) -> Any:
    real, _ = real_types(compute)
    with quiet():
        number = real(as_number(name, value))
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, not {shortened(value)} in {np.dtype(real)}")
    return number
