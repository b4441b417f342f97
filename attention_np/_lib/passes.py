"""The shell of an op's passes: what makes formulas robust, once, for all ops.

An op's pass *is* its formulas. A decorator carries the rest: arguments are checked, the inputs come in the dtype that
is computed in and a single query with an axis of its own, arithmetic is quiet, what left the range of the dtype on its
way is worked out again (:mod:`attention_np._lib.second_look`), and each result is summed over what was broadcast, in
the dtype of what it belongs to.

It can, because the module of an op has `Gradients` with the names of its inputs, and a `Cache` that begins with the
inputs, in the same order, and ends with the shape of the output. What else the shell must know of an op, `OP` says, an
:class:`Op`, before the first pass. The formulas alone are ``mathematics`` of the pass:
for another op, whose own shell has done all that. They return their result; or a pair of it and of its intermediates,
and then the second look is theirs too: the sizes of those tell it what the result does not show.

An op may have further outputs, such as a state or a log-sum-exp. They stand in its cache, and the formulas of
`backward` take their gradients by keyword: `d_final_state` says that there is a ``final_state``. The formulas of `jvp`
then return a dict of tangents, that of the output under "output", and each further one under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature, unwrap
from itertools import repeat
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import numpy as np

from attention_np._lib.arguments import as_tangent, as_vector, check_cache, check_gradients, check_outputs
from attention_np._lib.arrays import (
    SEVERAL,
    Array,
    Precision,
    as_gradient,
    as_result,
    holds_array,
    precision,
    quiet,
)
from attention_np._lib.blas import one_thread
from attention_np._lib.dual import Dual, dual, parts_of, velocity_of
from attention_np._lib.second_look import are_usual, may_leave_range
from attention_np._lib.wide import is_wide, widened

# array_like of the shape of its input, None for zero; or of the output, for its gradient; to the formulas an array
Tangent: TypeAlias = Any

PRECISIONS = {of: Precision(of, of) for of in map(np.dtype, "fdFD")}  # that are computed in as they are

Arguments = ParamSpec("Arguments")
Cache = TypeVar("Cache")
Gradients = TypeVar("Gradients")
Intermediates: TypeAlias = tuple[Array, ...]
Map: TypeAlias = Callable[[Any], Any]
Result = TypeVar("Result", covariant=True)


class Op(NamedTuple):
    """What the shell must know of an op beside the names of its inputs: `OP`, at the head of the op's module."""

    queries: str | None = None  # the input that may be a single query, without an axis for queries
    added: tuple[str, ...] = ()  # the inputs that are terms of a sum: they are factors of nothing
    nested: Mapping[str, type] = {}  # the inputs that are NamedTuples of arrays, and which
    factors: tuple[str, ...] = ()  # what else the cache has that products of a pass are of
    has_products: bool = False  # whether some in the cache need not fit the dtype: `Cache.in_range` makes them again
    in_parts: bool = False  # whether formulas cast an input part by part; a tangent that is left out is None to jvp


class Pass(Protocol[Arguments, Result]):
    """A pass as users call it, and its formulas alone."""

    mathematics: Callable[..., Any]

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """The whole of it."""
        ...


class SecondDerivative(Protocol[Arguments, Gradients]):
    """A double backward as users call it, with the arguments of `backward`."""

    mathematics: Callable[..., Any]

    def __call__(
        self, d_gradients: Gradients, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> tuple[Array, Gradients]:
        """The whole of it."""
        ...


class PassOfOutputs(Protocol[Arguments]):
    """Forward mode of an op with further outputs: the tangent of the output, or of all that `outputs` names."""

    mathematics: Callable[..., Any]

    @overload
    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Array: ...
    @overload
    def __call__(self, *args: Any, outputs: Sequence[str], **kwargs: Any) -> tuple[Array, ...]: ...


@overload
def forward(
    mathematics: Callable[Arguments, tuple[Array, Cache, Intermediates]],
) -> Pass[Arguments, tuple[Array, Cache]]: ...
@overload
def forward(mathematics: Callable[Arguments, tuple[Array, Cache]]) -> Pass[Arguments, tuple[Array, Cache]]: ...
def forward(mathematics: Callable[..., Any]) -> Pass[..., Any]:
    """A forward pass of arguments that have been checked: output and cache.

    The inputs are given in their order, or all by keyword, and the options by keyword.

    Formulas that ask for the second look return a third, their intermediates, and hold for inputs that are `widened`.
    """
    op = _Known.of(mathematics)

    @wraps(mathematics)
    def shell(*inputs: Any, **arguments: Any) -> tuple[Array, Any]:
        inputs = inputs or tuple([arguments.pop(name) for name in op.names])
        ready, dtype, is_single = op.ready(inputs)

        with quiet():
            output, cache, *intermediates = mathematics(*ready, **arguments)
            if intermediates and op.left_range((output, *intermediates), lambda: op.factors(ready)):
                output, cache, *_ = mathematics(*op.widened(ready), **arguments)
                cache = _plain(cache)
            output = np.asanyarray(output)
            output = as_result(_without_axis(output) if is_single else output, dtype.result)
        if ready is inputs and cache.output_shape == output.shape:
            return output, cache
        return output, op.cache._make((*inputs, *cache[len(inputs) : -1], output.shape))

    return cast("Pass[..., Any]", _as_pass(shell, mathematics))


@overload
def backward(mathematics: Callable[Arguments, tuple[Gradients, Intermediates]]) -> Pass[Arguments, Gradients]: ...
@overload
def backward(mathematics: Callable[Arguments, Gradients]) -> Pass[Arguments, Gradients]: ...
def backward(mathematics: Callable[..., Any]) -> Pass[..., Any]:
    """A backward pass: `Gradients`, of the shapes and dtypes of the inputs, None where there was none."""
    op, declared = _Known.of(mathematics), signature(mathematics)
    vector, _, *more = declared.parameters  # more: gradients of further outputs, and options

    @wraps(mathematics)
    def shell(*args: Any, **kwargs: Any) -> Any:
        vectors, options = _by_keyword(more, kwargs)
        d_output, cache = args if len(args) == 2 and not kwargs else _bound(mathematics, args, kwargs)
        inputs, cache, dtype, is_single = op.opened(cache)
        d_output = as_vector(vector, d_output, cache.output_shape, dtype.compute)
        d_output = _with_axis(d_output) if is_single else d_output
        further = _further_vectors(vectors, cache, dtype.compute) if vectors else vectors

        with quiet():
            results, intermediates = _split(mathematics(d_output, cache, **further, **options))
            gradients = op.as_given(results, inputs, d_output, is_single)
            if intermediates is None:
                return gradients
            operands = d_output, *further.values()
            if op.left_range((*intermediates, *gradients), lambda: op.factors_with(operands, cache)):
                wide = _all_widened(further)
                results, _ = _split(mathematics(_widened(d_output), op.in_range(cache), **wide, **options))
                gradients = op.as_given(results, inputs, d_output, is_single)
            return gradients

    shell.__doc__ = _documented(mathematics, BACKWARD.replace("d_output", vector))
    first, second, *others = declared.parameters.values()
    others = [x.replace(annotation="npt.ArrayLike | None") if x.name.startswith("d_") else x for x in others]
    first = first.replace(annotation="npt.ArrayLike")
    public = declared.replace(parameters=[first, second, *others], return_annotation="Gradients")
    return cast("Pass[..., Any]", _as_pass(shell, mathematics, public))


@overload
def jvp(
    mathematics: Callable[Arguments, dict[str, Array] | tuple[dict[str, Array], Intermediates]],
) -> PassOfOutputs[Arguments]: ...
@overload
def jvp(mathematics: Callable[Arguments, Array | tuple[Array, Intermediates]]) -> Pass[Arguments, Array]: ...
def jvp(mathematics: Callable[..., Any]) -> Any:
    """A pass in forward mode: the tangent of the output, or of those that `outputs` names, from those of the inputs."""
    op, declared, further = _Known.of(mathematics), signature(mathematics), _further_outputs(mathematics)

    @wraps(mathematics)
    def shell(cache: Any, **keywords: Any) -> Any:
        outputs = keywords.pop("outputs", None) if further else None
        if not keywords.keys() <= declared.parameters.keys():
            _bound(mathematics, (cache,), keywords)  # which says what is not an argument
        inputs, cache, dtype, is_single = op.opened(cache)
        check_outputs(op.name, outputs, ("output", *further))
        tangents = op.tangents(keywords, inputs, dtype.compute, is_single, zeros=not op.declared.in_parts)
        options = {name: x for name, x in keywords.items() if name not in tangents}

        with quiet():
            results, intermediates = _by_output(mathematics(cache, **tangents, **options))
            if intermediates is not None:
                looked_at = *(results[name] for name in outputs or ("output",)), *intermediates
                if op.left_range(looked_at, lambda: op.factors_with(tuple(tangents.values()), cache)):
                    results, _ = _by_output(mathematics(op.in_range(cache), **_all_widened(tangents), **options))
            output = np.asarray(results["output"])
            results["output"] = _without_axis(output) if is_single else output
            if outputs is None:
                return as_result(results["output"], dtype.result)
            dtypes = {name: dtype.result if name == "output" else getattr(cache, name).dtype for name in outputs}
            return tuple([as_result(np.asarray(results[name]), dtypes[name]) for name in outputs])

    shell.__doc__ = _documented(mathematics, jvp_of("output", *further) if further else JVP)
    cache, *keywords = declared.parameters.values()
    kinds = {name: kind.__name__ for name, kind in op.declared.nested.items()}
    public = [
        x.replace(annotation=f"{kinds.get(x.name, 'npt.ArrayLike')} | None") if x.name in op.names else x
        for x in keywords
    ]
    returned = "Array"
    if further:
        public.insert(0, Parameter("outputs", Parameter.KEYWORD_ONLY, default=None, annotation="Sequence[str] | None"))
        returned = "Array | tuple[Array, ...]"
    return _as_pass(shell, mathematics, declared.replace(parameters=[cache, *public], return_annotation=returned))


def _further_outputs(mathematics: Callable[..., Any]) -> list[str]:
    """The names of the further outputs of the op that these formulas are of: what its `backward` takes gradients of."""
    _, _, *more = signature(mathematics.__globals__["backward"].mathematics).parameters
    return [name.removeprefix("d_") for name in more if name.startswith("d_")]


def _by_output(returned: Any) -> tuple[dict[str, Any], Any]:
    """The tangents that formulas return, by the names of the outputs, and their intermediates."""
    tangents, intermediates = _split(returned)
    return (tangents if isinstance(tangents, dict) else {"output": tangents}), intermediates


def double_backward(
    mathematics: Callable[Arguments, tuple[tuple[Array, Gradients], Intermediates | None]],
) -> Pass[Arguments, tuple[Array, Gradients]]:
    """A backward pass of `backward`: the gradients of <d_gradients, backward(d_output, cache)>.

    With None for the intermediates, as for an op whose other passes have none, there is no second look.
    """
    op = _Known.of(mathematics)
    _, vector, _, *more = signature(mathematics).parameters
    formulas: Callable[..., Any] = mathematics

    @wraps(mathematics)
    def shell(*args: Any, **kwargs: Any) -> Any:
        vectors, options = _by_keyword(more, kwargs)
        three = args if len(args) == 3 and not kwargs else _bound(mathematics, args, kwargs)
        d_gradients, d_output, cache = three
        inputs, cache, dtype, is_single = op.opened(cache)
        check_gradients(d_gradients, op.gradients, op.name)
        d_output = as_vector(vector, d_output, cache.output_shape, dtype.compute)
        d_output = _with_axis(d_output) if is_single else d_output
        further = _further_vectors(vectors, cache, dtype.compute)
        tangents = op.gradients(**op.tangents(d_gradients._asdict(), inputs, dtype.compute, is_single))

        with quiet():
            (d_d_output, results), intermediates = formulas(tangents, d_output, cache, **further, **options)
            gradients = op.as_given(results, inputs, d_output, is_single)
            if intermediates is not None:
                looked_at = d_d_output, results, intermediates, list(_computed(results, gradients))
                operands = *tangents, d_output, *further.values()
                if op.left_range(looked_at, lambda: op.factors_with(operands, cache)):
                    wide = op.gradients(*map(_widened, tangents)), _widened(d_output), op.in_range(cache)
                    (d_d_output, results), _ = formulas(*wide, **_all_widened(further), **options)
                    gradients = op.as_given(results, inputs, d_output, is_single)
            d_d_output = np.asarray(d_d_output)
            return as_result(_without_axis(d_d_output) if is_single else d_d_output, dtype.result), gradients

    shell.__doc__ = _documented(mathematics, DOUBLE_BACKWARD.replace("d_output", vector))
    first, second, third, *others = signature(mathematics).parameters.values()
    of_user = second.replace(annotation="npt.ArrayLike")
    others = [x.replace(annotation="npt.ArrayLike | None") if x.name.startswith("d_") else x for x in others]
    public = Signature([first, of_user, third, *others], return_annotation="tuple[Array, Gradients]")
    return cast("Pass[Arguments, tuple[Array, Gradients]]", _as_pass(shell, mathematics, public))


def second_derivative(
    forward: Callable[..., Any], backward: Pass[Arguments, Gradients]
) -> SecondDerivative[Arguments, Gradients]:
    """The double backward of an op: its `forward` and `backward` on dual numbers, whose tangents are `d_gradients`.

    The tangents of what `backward` returns are the gradients of the inputs, and that of the output is the gradient of
    `d_output`, which is a constant. Options of the formulas of `forward` are fields or properties of the cache.
    """
    attend, differentiate = getattr(forward, "mathematics", forward), backward.mathematics
    names = _Known.of(differentiate).names
    options = list(signature(attend).parameters)[len(names) :]

    @wraps(differentiate)
    def formulas(d_gradients: Any, d_output: Any, cache: Any, **further: Any) -> Any:
        """The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and the arrays of `forward`."""
        inputs = [_dual(x, tangent) for x, tangent in zip(cache[: len(names)], d_gradients, strict=True)]
        output, dual_cache, *of_forward = attend(*inputs, **{name: getattr(cache, name) for name in options})
        _share_values(dual_cache, cache)
        returned = differentiate(d_output, dual_cache, **further)
        gradients, of_backward = _split(returned)
        result = velocity_of(output), _each(velocity_of, gradients)
        if of_backward is None:
            return result, None
        return result, [part for x in _flat((*of_forward, of_backward)) for part in parts_of(x)]

    declared = signature(differentiate)
    first = Parameter("d_gradients", Parameter.POSITIONAL_OR_KEYWORD, annotation="Gradients")
    formulas.__name__ = formulas.__qualname__ = "double_backward"
    formulas.__doc__ = FORMULAS_TWICE
    formulas.__signature__ = declared.replace(parameters=[first, *declared.parameters.values()])  # type: ignore[attr-defined]
    return cast("SecondDerivative[Arguments, Gradients]", double_backward(formulas))


def _share_values(dual: Iterable[Any], cache: Iterable[Any]) -> None:
    """Let dual numbers have the arrays of the cache as their values, so that these are not twice in memory."""
    for x, kept in zip(dual, cache, strict=False):
        if isinstance(x, Dual) and isinstance(x.value, np.ndarray) and isinstance(kept, np.ndarray):
            x.value = kept if (x.shape, x.value.dtype) == (kept.shape, kept.dtype) else x.value
        elif isinstance(x, SEVERAL) and isinstance(kept, SEVERAL):
            _share_values(x, kept)


def _dual(value: Any, tangent: Any) -> Any:
    """An array, or each in a NamedTuple or a list, or an object that holds one, as a dual number with this tangent."""
    if isinstance(value, SEVERAL):
        return _like(value, map(_dual, value, tangent))
    if value is None or isinstance(value, np.generic):
        return value
    return value.with_tangent(tangent) if holds_array(value) else dual(value, tangent)


def _as_pass(shell: Callable[..., Any], mathematics: Callable[..., Any], public: Signature | None = None) -> Any:
    made = cast(Any, shell)
    made.mathematics = mathematics
    if public is not None:  # formulas are of arrays, and may return more
        made.__signature__ = public
        made.__annotations__ = {x.name: x.annotation for x in public.parameters.values()}
        made.__annotations__["return"] = public.return_annotation
    return made


def _bound(mathematics: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        return signature(mathematics).bind(*args, **kwargs).args
    except TypeError as error:
        raise TypeError(f"{mathematics.__name__}() {error}") from None


class _Known(NamedTuple):
    """An op as the shell knows it: read once for each pass, where its formulas are decorated."""

    name: str
    names: tuple[str, ...]  # of the inputs
    gradients: Any
    cache: Any
    declared: Op
    place: int | None  # among the inputs, of the one that may be a single query

    @classmethod
    def of(cls, mathematics: Callable[..., Any]) -> _Known:
        """The op of these formulas: what the module that they stand in has."""
        module, name = unwrap(mathematics).__globals__, mathematics.__module__.rpartition(".")[2]
        names, declared = module["Gradients"]._fields, module.get("OP", Op())
        unknown = {declared.queries, *declared.added, *declared.nested} - {None, *names}
        if unknown:
            raise ValueError(f"OP of {name} has {', '.join(map(str, unknown))}, but Gradients has {', '.join(names)}")
        place = None if declared.queries is None else names.index(declared.queries)
        return cls(name, names, module["Gradients"], module["Cache"], declared, place)

    def left_range(self, looked_at: Iterable[Any], factors: Callable[[], Sequence[Any]]) -> bool:
        """Whether what is on the way to `looked_at`, products of `factors`, may have left the range of the dtype."""
        if not self.declared.in_parts:
            return not are_usual(looked_at) and may_leave_range(factors())
        with one_thread():  # threads of BLAS that have been woken stand in the way of those of the next call
            return not are_usual(looked_at) and may_leave_range(_in_common_dtype(factors()))

    def ready(self, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], Precision, bool]:
        """The inputs as formulas have them, not copied where they are so; their dtype; whether a query is single."""
        is_single = self.place is not None and inputs[self.place].ndim == 1
        dtype = _precision_of_one_dtype(inputs)
        if dtype is not None and not is_single:
            return inputs, dtype, is_single
        dtype = _precision(inputs)
        if not is_single and all(x.dtype == dtype.compute for x in _flat(inputs)):
            return inputs, dtype, is_single
        cast = inputs if self.declared.in_parts else [_in_dtype(x, dtype.compute) for x in inputs]
        return tuple(self._of_query(_with_axis, cast) if is_single else cast), dtype, is_single

    def opened(self, cache: Any) -> tuple[Any, Any, Precision, bool]:
        """The inputs in `cache`, as they were given; the cache with them :meth:`ready`; and what that says of them."""
        check_cache(cache, self.cache, self.name)
        inputs = cache[: len(self.names)]
        ready, dtype, is_single = self.ready(inputs)
        cache = cache if ready is inputs else self.cache._make((*ready, *cache[len(inputs) :]))
        return inputs, cache, dtype, is_single

    def tangents(
        self,
        keywords: Mapping[str, Any],
        inputs: Sequence[Any],
        compute: np.dtype[Any],
        is_single: bool,
        *,
        zeros: bool = True,
    ) -> dict[str, Any]:
        """A tangent of each input, as formulas have them; without `zeros` None is kept."""
        tangents = []
        for name, x in zip(self.names, inputs, strict=True):
            tangent = keywords.get(name)
            is_kept = tangent is None and not zeros
            tangents.append(None if is_kept else _tangent(self.name, name, tangent, x, compute))
        tangents = self._of_query(_with_axis, tangents) if is_single else tangents
        return dict(zip(self.names, tangents, strict=True))

    def as_given(self, results: Any, inputs: Sequence[Any], d_output: Array, is_single: bool) -> Any:
        """The gradients that formulas return, as those of `inputs`; none has the memory of `d_output`."""
        of = self._of_query(_without_axis, results) if is_single else results
        return type(results)(*map(_as_gradient, of, inputs, repeat(d_output)))

    def factors(self, inputs: Iterable[Any]) -> list[Any]:
        """Of the inputs, the arrays that products are of."""
        return _flat(x for name, x in zip(self.names, inputs, strict=True) if name not in self.declared.added)

    def factors_with(self, vectors: Any, cache: Any) -> list[Any]:
        """All that the products of a pass are of."""
        others = [getattr(cache, name) for name in self.declared.factors]
        return _flat((vectors, *others)) + self.factors(cache[: len(self.names)])

    def widened(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, of which those that products are of are widened."""
        return [x if name in self.declared.added else _widened(x) for name, x in zip(self.names, inputs, strict=True)]

    def in_range(self, cache: Any) -> Any:
        """`cache` for the second look: with products made again, of inputs that are widened."""
        if not self.declared.has_products:
            return cache
        number = len(self.names)
        return self.cache._make((*self.widened(cache[:number]), *cache[number:])).in_range()

    def _of_query(self, change: Map, values: Sequence[Any]) -> list[Any]:
        """Of `values`, one for each input, `change` that of the query."""
        return [change(x) if place == self.place and x is not None else x for place, x in enumerate(values)]


def _with_axis(rows: Array) -> Array:
    """`rows`, (..., features), of a single query, with an axis for the queries."""
    return rows[..., None, :]


def _without_axis(rows: Array) -> Array:
    """`rows`, (..., n, features), less that axis."""
    return rows[..., 0, :]


def _by_keyword(names: Sequence[str], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Taken out of `kwargs`: the gradients of further outputs, None where one is left out, and the options."""
    if not names:
        return {}, {}
    vectors = {name: kwargs.pop(name, None) for name in names if name.startswith("d_")}
    return vectors, {name: kwargs.pop(name) for name in names if name in kwargs}


def _further_vectors(vectors: Mapping[str, Any], cache: Any, compute: np.dtype[Any]) -> dict[str, Any]:
    """Gradients of further outputs, each of the shape that the cache has that in, or None."""
    shapes = {name: getattr(cache, name.removeprefix("d_")).shape for name in vectors}
    return {name: x if x is None else as_vector(name, x, shapes[name], compute) for name, x in vectors.items()}


def _in_dtype(value: Any, compute: np.dtype[Any]) -> Any:
    if isinstance(value, SEVERAL):
        return _like(value, (_in_dtype(x, compute) for x in value))
    if value is None or isinstance(value, np.generic) or value.dtype == compute:
        return value
    return value.astype(compute, copy=False)


def _precision_of_one_dtype(inputs: Iterable[Any]) -> Precision | None:
    """That of plain arrays of one dtype in which they are computed in, too, and numbers; None of others."""
    dtype: Any = None
    for x in inputs:
        if type(x) is np.ndarray:
            if dtype is None:
                dtype = x.dtype
            elif x.dtype != dtype:
                return None
        elif x is not None and (dtype is None or not hasattr(x, "dtype") or x.dtype != dtype):
            return None  # None itself NumPy takes for float64
    return PRECISIONS.get(dtype)


def _precision(inputs: Iterable[Any]) -> Precision:
    """That of the arrays among the inputs: one that may be a number, as a scale, has no say where it is."""
    return precision(*(x for x in _flat(inputs) if not isinstance(x, np.generic)))


def _in_common_dtype(arrays: Sequence[Any]) -> list[Any]:
    """Arrays, of which formulas cast a part at a time, in the dtype that they are computed in."""
    compute = precision(*arrays).compute
    return [x.astype(compute, copy=False) for x in arrays]


def _like(value: Any, parts: Iterable[Any]) -> Any:
    """A NamedTuple, or a list, as `value` is."""
    return list(parts) if isinstance(value, list) else type(value)(*parts)


def _as_gradient(result: Any, value: Any, d_output: Array) -> Any:
    """`result`, as the gradient of an array, or of each in a NamedTuple or a list; None where there is none."""
    if value is None:
        return None
    is_own = type(result) is np.ndarray and result.base is None and result is not d_output
    if is_own and type(value) is np.ndarray and result.shape == value.shape and result.dtype == value.dtype:
        return result
    if isinstance(value, SEVERAL):
        result = [None] * len(value) if result is None else result
        return _like(result, (_as_gradient(d_x, x, d_output) for d_x, x in zip(result, value, strict=True)))
    if isinstance(value, np.generic):
        return None
    if result is None:
        return np.zeros(value.shape, value.dtype)
    gradient = as_gradient(result, value)
    return gradient.copy() if np.may_share_memory(gradient, d_output) else gradient  # as that of a term that is added


def _computed(results: Iterable[Any], gradients: Iterable[Any]) -> Iterator[Any]:
    """Of `gradients`, those that formulas return, and are not zero whatever the numbers are."""
    for x, gradient in zip(results, gradients, strict=True):
        if isinstance(x, SEVERAL):
            yield from _computed(x, gradient)
        elif x is not None:
            yield gradient


def _tangent(op: str, name: str, tangent: Any, primal: Any, compute: np.dtype[Any]) -> Any:
    """`tangent` of the input called `name`, which may be a NamedTuple or a list of arrays; what is left out is zero."""
    if isinstance(primal, list):
        if tangent is not None and not (isinstance(tangent, list | tuple) and len(tangent) == len(primal)):
            raise TypeError(f"the tangent of {name} must be a list of {len(primal)}, as {name} is, or None")
        of_each = enumerate(zip(tangent or [None] * len(primal), primal, strict=True))
        return [_tangent(op, f"{name}[{k}]", d, x, compute) for k, (d, x) in of_each]
    if not isinstance(primal, tuple):
        return as_tangent(name, tangent, None if isinstance(primal, np.generic) else primal, compute)
    kind: Any = type(primal)
    if tangent is not None and not isinstance(tangent, kind):
        raise TypeError(f"the tangent of {name} must be a {op}.{kind.__name__}, not {type(tangent).__name__}")
    parts = zip(kind._fields, [None] * len(primal) if tangent is None else tangent, primal, strict=True)
    return kind(*(_tangent(op, f"{name}.{of}", d, x, compute) for of, d, x in parts))


def _split(returned: Any) -> tuple[Any, Any]:
    """What formulas return: the result, and its intermediates, None if they do not ask for the second look."""
    return returned if type(returned) is tuple else (returned, None)


def _flat(values: Iterable[Any]) -> list[Any]:
    """All arrays in `values`, those in tuples and lists too."""
    flat = []
    for value in values:
        if isinstance(value, SEVERAL):
            flat += _flat(value)
        elif value is not None:
            flat.append(value)
    return flat


def _each(function: Callable[..., Any], value: Any) -> Any:
    """`function` of an array, or of each in a NamedTuple or a list."""
    return _like(value, (_each(function, x) for x in value)) if isinstance(value, SEVERAL) else function(value)


def _widened(value: Any) -> Any:
    """An array, or each in a NamedTuple or a list, with a range that has no end."""
    return _each(widened, value)


def _all_widened(vectors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _widened(x) for name, x in vectors.items()}


def _plain(value: Any) -> Any:
    """`value` with plain arrays in the place of those that are `widened`."""
    if isinstance(value, list):
        return [_plain(x) for x in value]
    if isinstance(value, tuple):
        parts = map(_plain, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return np.asarray(value) if is_wide(value) else value


BACKWARD = """
Parameters
----------
d_output : array_like of float
    The gradient of the loss with respect to what :func:`forward` returned first, of its shape. A row of it that is
    exactly zero contributes nothing to the gradients of what others share with it, whatever the inputs hold there.
cache : Cache
    From :func:`forward`.

Returns
-------
Gradients
    Of each array of :func:`forward`, its shape and dtype, summed over axes that were broadcast; None where there was
    none. A gradient that does not fit the dtype is infinite; one that is below its normal numbers, or worked out from
    what is (as from gradients of scores that a `scale` far above 1 magnifies), loses digits.

Raises
------
TypeError
    If `cache` is another op's, or `d_output` is not of floating-point numbers.
ValueError
    If `d_output` does not have the shape of what it belongs to.
"""

TANGENT = """\
Returns
-------
ndarray
    The tangent of what :func:`forward` returned first. A tangent that does not fit the dtype is infinite; one below its
    normal numbers loses digits.
"""

TANGENTS_OF_OUTPUTS = """\
outputs : sequence of str, optional
    Whose tangents are asked for: some of OUTPUTS. By default that of the first alone, without a tuple.

Returns
-------
ndarray, or tuple of ndarray
    The tangent of what :func:`forward` returned first; with `outputs` that of each, in their order and of the shape and
    dtype that `cache` has it in. A tangent that does not fit the dtype is infinite; one below its normal numbers loses
    digits.
"""

JVP = f"""
Parameters
----------
cache : Cache
    From :func:`forward`.
**tangents : array_like of float, optional
    Under the name of each array of :func:`forward` its tangent, of its shape; one that is left out is zero.

{TANGENT}
Raises
------
TypeError
    If `cache` is another op's, or a tangent is not of floating-point numbers.
ValueError
    If a tangent does not have the shape of its array, or is given for an array that there was not.
"""


def jvp_of(*outputs: str) -> str:
    """The usual docstring of forward mode of an op that has these outputs."""
    return JVP.replace(TANGENT, TANGENTS_OF_OUTPUTS.replace("OUTPUTS", ", ".join(f'"{name}"' for name in outputs)))


FORMULAS_TWICE = """\
The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and by every array of `forward`.

Notes
-----
They are what the formulas of :func:`backward` find on inputs that move with `d_gradients`: each line of it in forward
mode.
"""

DOUBLE_BACKWARD = """
Parameters
----------
d_gradients : Gradients
    The gradient of a loss with respect to each of the gradients that :func:`backward` returned; None is zero.
d_output : array_like of float
    What :func:`backward` was given.
cache : Cache
    From :func:`forward`.

Returns
-------
d_d_output : ndarray
    The gradient with respect to `d_output`, of its shape: :func:`jvp` of `d_gradients`.
gradients : Gradients
    The gradient with respect to each array of :func:`forward`: the Hessian of ``<d_output, output>`` times
    `d_gradients`. That is each line of :func:`backward`, in forward mode.
    Its terms are products of up to four arrays: where one on its way is below the normal numbers, digits are lost.

Raises
------
TypeError
    If `cache` or `d_gradients` is another op's, or an array is not of floating-point numbers.
ValueError
    If an array does not have the shape of what it belongs to, or is given for an array that there was not.
"""


def _documented(mathematics: Callable[..., Any], usual: str) -> str:
    """The docstring of formulas, with what is the same for all ops before its notes."""
    own, notes, rest = cleandoc(mathematics.__doc__ or "").partition("Notes\n-----")
    return f"{own.rstrip()}\n{usual}\n{notes}{rest}".rstrip() + "\n"
