"""The shell of an op's passes: what makes formulas robust, once, for all ops.

An op's pass *is* its formulas. A decorator carries the rest: arguments are checked, the inputs come in the dtype that
is computed in and a single query with an axis of its own, arithmetic is quiet, what left the range of the dtype on its
way is worked out again (:mod:`attention_np._lib.second_look`), and each result is summed over what was broadcast, in
the dtype of what it belongs to.

It can, because the module of an op has `Gradients` with the names of its inputs, and its `Cache` holds the inputs under
those names. The formulas alone are ``mathematics`` of the pass: for another op, whose own shell has done all that. They
return their result, or a pair of it and of arrays on the way to it, whose size tells the second look what the result
does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from inspect import cleandoc, signature
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_tangent, as_vector, check_cache
from attention_np._lib.arrays import (
    Array,
    as_gradient,
    as_result,
    precision,
    quiet,
    with_query_axis,
    without_query_axis,
)
from attention_np._lib.second_look import left_range
from attention_np._lib.wide import is_wide, widened

__all__ = ["Tangent", "backward", "forward", "jvp", "widened_inputs"]

Tangent: TypeAlias = Any  # array_like of the shape of its input, None for zero; to the formulas an array

Given = ParamSpec("Given")
Cache = TypeVar("Cache")
CacheIn = TypeVar("CacheIn", contravariant=True)
Gradients = TypeVar("Gradients")
Between: TypeAlias = tuple[Array, ...]
Found = TypeVar("Found", covariant=True)

ADDED = ("bias", "b")  # inputs that are terms of a sum: they are factors of nothing


class Pass(Protocol[Given, Found]):
    """A pass as users call it, and its formulas alone."""

    mathematics: Callable[..., Any]

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        """The whole of it."""
        ...


class Backward(Protocol[CacheIn, Found]):
    """A backward pass as users call it, and its formulas alone."""

    mathematics: Callable[..., Any]

    def __call__(self, d_output: npt.ArrayLike, cache: CacheIn) -> Found:
        """The whole of it."""
        ...


@overload
def forward(mathematics: Callable[Given, tuple[Array, Cache, Between]]) -> Pass[Given, tuple[Array, Cache]]: ...
@overload
def forward(mathematics: Callable[Given, tuple[Array, Cache]]) -> Pass[Given, tuple[Array, Cache]]: ...
def forward(mathematics: Callable[..., Any]) -> Pass[..., Any]:
    """A forward pass of arguments that have been checked, all given by keyword: output and cache.

    The formulas return the output, the cache, and perhaps a tuple of arrays on the way to them. If they do, they must
    hold for inputs that are `widened`, too.
    """

    @wraps(mathematics)
    def shell(**arguments: Any) -> tuple[Array, Any]:
        inputs = {name: arguments.pop(name) for name in _input_names(mathematics)}
        dtype = precision(*_arrays(inputs.values()))
        ready = _ready(inputs, dtype.compute)
        with quiet():
            output, cache, *between = mathematics(**ready, **arguments)
            if between and left_range((output, *between[0]), _factors(ready)):
                output, cache, _ = _plain(mathematics(**_wide(ready), **arguments))
            output = as_result(_without_query_axis(output, inputs), dtype.result)
        return output, cache._replace(**inputs, output_shape=output.shape)

    return cast("Pass[..., Any]", _as_pass(shell, mathematics))


@overload
def backward(mathematics: Callable[[Array, Cache], tuple[Gradients, Between]]) -> Backward[Cache, Gradients]: ...
@overload
def backward(mathematics: Callable[[Array, Cache], Gradients]) -> Backward[Cache, Gradients]: ...
def backward(mathematics: Callable[..., Any]) -> Backward[Any, Any]:
    """A backward pass: `Gradients`, of the shapes and dtypes of the inputs, None where there was none."""
    given = signature(mathematics)
    vector = next(iter(given.parameters))

    @wraps(mathematics)
    def shell(*args: Any, **kwargs: Any) -> Any:
        d_output, cache = given.bind(*args, **kwargs).args if kwargs or len(args) != 2 else args
        inputs = _inputs(mathematics, cache)
        compute = cache.weights.dtype
        d_output = as_vector(vector, d_output, cache.output_shape, compute)
        if "query" in inputs:
            d_output = with_query_axis(d_output, inputs["query"])
        ready = _ready(inputs, compute)
        cache = cache._replace(**ready)
        with quiet():
            found, between = _split(mathematics(d_output, cache))
            gradients = _as_given(found, inputs)
            if left_range(_arrays((found, between, gradients)), (d_output, *_factors(ready), _scale(cache))):
                found, _ = _split(mathematics(widened(d_output), _in_range(cache)))
                gradients = _as_given(found, inputs)
        return gradients

    shell.__doc__ = _documented(mathematics, BACKWARD.replace("d_output", vector))
    return cast("Backward[Any, Any]", _as_pass(shell, mathematics))


def jvp(mathematics: Callable[Given, Array | tuple[Array, Between]]) -> Pass[Given, Array]:
    """A pass in forward mode: the tangent of the output, along those of the inputs."""
    given = signature(mathematics)
    formulas: Callable[..., Any] = mathematics

    @wraps(mathematics)
    def shell(cache: Any, **tangents: Any) -> Array:
        inputs = _inputs(mathematics, cache)
        if not tangents.keys() <= inputs.keys():
            given.bind(cache, **tangents)  # which says what is not an argument
        compute = cache.weights.dtype
        along = {name: _tangent(name, tangents.get(name), x, compute) for name, x in inputs.items()}
        if "query" in inputs:
            along["query"] = with_query_axis(along["query"], inputs["query"])
        ready = _ready(inputs, compute)
        cache = cache._replace(**ready)
        with quiet():
            d_output, between = _split(formulas(cache, **along))
            given_arrays = (*_arrays(along.values()), *_factors(ready), _scale(cache))
            if left_range((d_output, *_arrays(between)), given_arrays):
                wide = {name: _each(widened, x) for name, x in along.items()}
                d_output = np.asarray(_split(formulas(_in_range(cache), **wide))[0])
            return as_result(_without_query_axis(d_output, inputs), precision(*_arrays(inputs.values())).result)

    shell.__doc__ = _documented(mathematics, JVP)
    return cast("Pass[Given, Array]", _as_pass(shell, mathematics))


def widened_inputs(cache: Cache, names: Iterable[str]) -> Cache:
    """`cache` with its inputs, which have these names, `widened`."""
    given: Any = cache
    wide: Cache = given._replace(**_wide({name: getattr(given, name) for name in names}))
    return wide


def _as_pass(shell: Callable[..., Any], mathematics: Callable[..., Any]) -> Any:
    cast(Any, shell).mathematics = mathematics
    return shell


def _input_names(mathematics: Callable[..., Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = mathematics.__globals__["Gradients"]._fields
    return names


def _inputs(mathematics: Callable[..., Any], cache: Any) -> dict[str, Any]:
    """The inputs that `cache`, which must be one of the op of these formulas, holds."""
    check_cache(cache, mathematics.__globals__["Cache"], mathematics.__module__.rpartition(".")[2])
    return {name: getattr(cache, name) for name in _input_names(mathematics)}


def _ready(inputs: Mapping[str, Any], compute: np.dtype[Any]) -> dict[str, Any]:
    """The inputs in the dtype that is computed in, without a copy where they are, the query with its axis."""
    ready = {name: _each(lambda x: x.astype(compute, copy=False), value) for name, value in inputs.items()}
    if "query" in ready:
        ready["query"] = with_query_axis(ready["query"], inputs["query"])
    return ready


def _without_query_axis(output: Array, inputs: Mapping[str, Any]) -> Array:
    return without_query_axis(output, inputs["query"]) if "query" in inputs else output


def _as_given(found: Any, inputs: Mapping[str, Any]) -> Any:
    """The gradients `found`, as those of the inputs as they were given."""
    fields = found._asdict()
    if "query" in fields:
        fields["query"] = without_query_axis(fields["query"], inputs["query"])
    return type(found)(*(_each(lambda x, d: as_gradient(d, x), inputs[name], d) for name, d in fields.items()))


def _tangent(name: str, tangent: Any, primal: Any, compute: np.dtype[Any]) -> Any:
    """`tangent` of the input called `name`, which may be a NamedTuple of arrays; what is left out is zero."""
    if not hasattr(primal, "_asdict"):
        return as_tangent(name, tangent, primal, compute)
    kind = type(primal)
    if tangent is not None and not isinstance(tangent, kind):
        what = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        raise TypeError(f"the tangent of {name} must be a {what}, not {type(tangent).__name__}")
    given = [None] * len(primal) if tangent is None else tangent
    parts = zip(primal._fields, given, primal, strict=True)
    return kind(*(_tangent(f"{name}.{of}", d, x, compute) for of, d, x in parts))


def _factors(inputs: Mapping[str, Any]) -> Iterator[Any]:
    """The arrays that products are of."""
    return _arrays(value for name, value in inputs.items() if name not in ADDED)


def _scale(cache: Any) -> Any:
    return getattr(cache, "scale", None)


def _in_range(cache: Any) -> Any:
    """`cache` for the second look: an op whose cache holds products that need not fit the dtype says how."""
    return cache.in_range() if hasattr(cache, "in_range") else cache


def _split(found: Any) -> tuple[Any, Any]:
    """The result of formulas, and what they tell of the way to it."""
    return found if type(found) is tuple else (found, ())


def _each(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """`function` of an array or of each in a NamedTuple, and of what is at its place in the others; None stays None."""
    if hasattr(value, "_fields"):
        return type(value)(*(_each(function, *parts) for parts in zip(value, *others, strict=True)))
    return None if value is None else function(value, *others)


def _arrays(values: Iterable[Any]) -> Iterator[Any]:
    """All arrays in `values`, those in tuples too."""
    for value in values:
        if isinstance(value, tuple):
            yield from _arrays(value)
        elif value is not None:
            yield value


def _wide(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x if name in ADDED else _each(widened, x) for name, x in inputs.items()}


def _plain(value: Any) -> Any:
    """`value` with plain arrays in the place of those that are `widened`."""
    if isinstance(value, tuple):
        parts = map(_plain, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return np.asarray(value) if is_wide(value) else value


BACKWARD = """
Parameters
----------
d_output : array_like of float
    The gradient of the loss with respect to what :func:`forward` returned first, of its shape.
cache : Cache
    From :func:`forward`.

Returns
-------
Gradients
    Of each array of :func:`forward`, its shape and dtype, summed over axes that were broadcast; None where there was
    none. A gradient that does not fit the dtype is infinite; one that is below its normal numbers, or worked out from
    what is, loses digits.

Raises
------
TypeError
    If `cache` is another op's, or `d_output` is not of floating-point numbers.
ValueError
    If `d_output` does not have the shape of what it belongs to.
"""

JVP = """
Parameters
----------
cache : Cache
    From :func:`forward`.
**tangents : array_like of float, optional
    Under the name of each array of :func:`forward` its tangent, of its shape; one that is left out is zero.

Returns
-------
ndarray
    The tangent of what :func:`forward` returned first. A tangent that does not fit the dtype is infinite; one below its
    normal numbers loses digits.

Raises
------
TypeError
    If `cache` is another op's, or a tangent is not of floating-point numbers.
ValueError
    If a tangent does not have the shape of its array, or is given for an array that there was not.
"""


def _documented(mathematics: Callable[..., Any], usual: str) -> str:
    """The docstring of formulas, with what is the same for all ops before its notes."""
    own, notes, rest = cleandoc(mathematics.__doc__ or "").partition("Notes\n-----")
    return f"{own.rstrip()}\n{usual}\n{notes}{rest}".rstrip() + "\n"
