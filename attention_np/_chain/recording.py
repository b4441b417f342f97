"""A layer as it is recorded: variables that stand for arrays, and the steps that make one from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from inspect import isfunction, signature
from numbers import Number
from operator import index as as_index
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from attention_np._chain import arithmetic
from attention_np._lib.arguments import as_array, check_outputs
from attention_np._lib.arrays import SEVERAL, Array, StandIn, holds_array, is_floating

OPERATIONS = {
    np.add: arithmetic.ADD,
    np.subtract: arithmetic.SUBTRACT,
    np.multiply: arithmetic.MULTIPLY,
    np.divide: arithmetic.DIVIDE,
    np.matmul: arithmetic.MATMUL,
    np.negative: arithmetic.NEGATIVE,
}
INSTEAD = {
    "concatenate": "chain.concatenate([x, y], axis=-1)",
    "where": "chain.where(mask, x, y)",
    "sum": "x.sum(axis)",
    "reshape": "x.reshape(shape)",
    "swapaxes": "x.swapaxes(-1, -2)",
    "transpose": "x.swapaxes(-1, -2)",
    "T": "x.swapaxes(-1, -2)",
    "mT": "x.swapaxes(-1, -2)",
    "mean": "x.sum(axis) / count",
    "dot": "x @ y",
    "ravel": "x.reshape(-1)",
    "flatten": "x.reshape(-1)",
    "astype": "an array of that dtype as the input",
    "power": "x * x",
    "square": "x * x",
    "exp": 'chain.apply(activation, x, kind="exp")',
    "tanh": 'chain.apply(activation, x, kind="tanh")',
}

ANYWAY = "an op with chain.apply(op, x), or, where no gradient flows, its array, x.value"


class Place(NamedTuple):
    """Where a variable stood among the arguments of a step."""

    number: int


class Variable(StandIn, NDArrayOperatorsMixin):
    """An array of a layer: an input, or what a step made."""

    def __init__(self, tape: Tape, number: int) -> None:
        self.tape, self.number = tape, number

    @property
    def value(self) -> Array:
        """Its array: a constant, of which nothing knows where it comes from."""
        return self.tape.values[self.number]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """As of an array."""
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self.value.dtype

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a Variable of a chain has no {name}: use {INSTEAD.get(name, ANYWAY)}")

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Variable]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Variable(shape={self.shape}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> Variable:
        for part in index if isinstance(index, tuple) else (index,):
            if part is None or part is Ellipsis or isinstance(part, slice):
                continue
            kind = as_array("an index", part, "integers").dtype
            if kind.kind not in "iu":
                raise TypeError(f"a Variable takes slices, None, ... and integers between [ ], not {kind}")
        return combined(arithmetic.ENTRIES, self, index=index)

    def reshape(self, *shape: Any) -> Variable:
        """As of an array."""
        return combined(arithmetic.RESHAPE, self, shape=shape[0] if len(shape) == 1 else shape)

    def swapaxes(self, one: int, other: int) -> Variable:
        """As of an array."""
        return combined(arithmetic.SWAPAXES, self, axes=(as_index(one), as_index(other)))

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Variable:
        """As of an array."""
        return combined(arithmetic.SUM, self, axis=axis, keepdims=keepdims)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """What NumPy asks for an operator, or for a function of its own."""
        in_place = out is None or type(out[0]) is Variable  # x += y makes a new x
        if method == "__call__" and ufunc in OPERATIONS and in_place and not options:
            return combined(OPERATIONS[ufunc], *arrays)
        raise TypeError(_refusal(f"np.{ufunc.__name__}", ufunc.__name__))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(_refusal(f"np.{function.__name__}", function.__name__))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(_refusal("an array is wanted, which"))

    def __bool__(self) -> Any:
        raise TypeError(_refusal("a condition"))

    def __float__(self) -> Any:
        raise TypeError(_refusal("float"))

    __int__ = __complex__ = __index__ = __float__


def _refusal(what: str, name: str = "") -> str:
    return f"{what} takes no Variable of a chain: use {INSTEAD.get(name, ANYWAY)}"


class Step(NamedTuple):
    """One op of a chain, as it was applied."""

    number: int
    op: Any
    arguments: dict[str, Any]  # that hold variables, with a Place for each
    cache: Any
    output: tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype of the op's output
    outputs: tuple[str, ...]
    made: tuple[int, ...]  # the variables that are these outputs

    @property
    def read(self) -> list[int]:
        """The variables that the step was made from."""
        return [number for argument in self.arguments.values() for number in variables_in(argument)]

    def tangents(self, tangents: dict[int, Array]) -> dict[int, Array]:
        """Of what the step made, from those of what it was made from; none if there are none of these."""
        of_arguments = self._of_arguments(tangents)
        if not of_arguments:
            return {}
        if self.outputs == ("output",):
            return {self.made[0]: self.op.jvp(self.cache, **of_arguments)}
        return dict(zip(self.made, self.op.jvp(self.cache, outputs=self.outputs, **of_arguments), strict=True))

    def gradients(self, d_made: dict[int, Array]) -> Iterable[tuple[int, Array]]:
        """Of the variables that the step was made from, from those of what it made."""
        if not d_made:
            return ()
        d_output, further = self._cotangents(d_made)
        return self._by_variable(self.op.backward(d_output, self.cache, **further))

    def gradient_tangents(self, tangents: dict[int, Array], d_made: dict[int, Array]) -> Iterable[tuple[int, Array]]:
        """The tangents of :meth:`gradients`, from those of the variables."""
        of_arguments = self._of_arguments(tangents)
        if not of_arguments or not d_made:
            return ()
        d_output, further = self._cotangents(d_made)
        d_gradients = self.op.Gradients(**{name: of_arguments.get(name) for name in self.op.Gradients._fields})
        return self._by_variable(self.op.double_backward(d_gradients, d_output, self.cache, **further)[1])

    def _of_arguments(self, tangents: dict[int, Array]) -> dict[str, Any]:
        """The tangents of the arguments, of those that hold a variable with one."""
        return {
            name: mapped(lambda place, _: tangents.get(place.number), argument, keep=False)
            for name, argument in self.arguments.items()
            if not tangents.keys().isdisjoint(variables_in(argument))
        }

    def _cotangents(self, d_made: dict[int, Array]) -> tuple[Array, dict[str, Array]]:
        """The gradient of the output, and by their names in `backward` those of the further ones."""
        named = {name: d_made[x] for name, x in zip(self.outputs, self.made, strict=True) if x in d_made}
        d_output = named.pop("output", None)
        if d_output is None:
            d_output = np.zeros(*self.output)
        return d_output, {f"d_{name}": d for name, d in named.items()}

    def _by_variable(self, gradients: Any) -> Iterable[tuple[int, Array]]:
        pairs: list[tuple[int, Array]] = []
        for name, argument in self.arguments.items():
            mapped(lambda place, d: pairs.append((place.number, d)), argument, getattr(gradients, name))
        return [pair for pair in pairs if pair[1] is not None]


class Tape:
    """The steps of a layer while it runs, and all its variables."""

    def __init__(self) -> None:
        self.values: list[Array] = []
        self.steps: list[Step] = []
        self.dtype: np.dtype[Any] | None = None  # that steps are rounded to, where constants are of others

    def variable(self, value: Array) -> Variable:
        """A new one."""
        self.values.append(value if self.dtype is None else value.astype(self.dtype, copy=False))
        return Variable(self, len(self.values) - 1)

    def record(self, op: Any, args: Any, kwargs: Any, outputs: Sequence[str]) -> tuple[Variable, ...]:
        """A step, and what it makes."""
        number = len(self.steps) + 1
        try:
            arguments: dict[str, Any] = {}
            if isinstance(op, arithmetic.Operation):  # whose parts alone hold variables
                parts, variable = args
                arguments["parts"] = [Place(x.number) if has else x for x, has in zip(parts, variable, strict=True)]
                values = [x.value if has else x for x, has in zip(parts, variable, strict=True)]
                output, cache = op.forward(values, variable, **kwargs)
            else:
                bound = (_of_function if isfunction(op.forward) else signature)(op.forward).bind(*args, **kwargs)
                for name, value in bound.arguments.items():
                    if variables_in(value):
                        if name not in op.Gradients._fields:
                            raise TypeError(
                                f"{name} takes no Variable, as there is no gradient of it: give its array, x.value"
                            )
                        arguments[name] = mapped(lambda x, _: Place(x.number), value)
                        bound.arguments[name] = mapped(lambda x, _: x.value, value)
                if outputs != ("output",):
                    _check_outputs(op, outputs)
                output, cache = op.forward(*bound.args, **bound.kwargs)
        except (TypeError, ValueError, IndexError) as error:
            kind = next(kind for kind in (TypeError, IndexError, ValueError) if isinstance(error, kind))
            raise kind(f"step {number}, {name_of(op)}: {error}") from error
        results = [np.asanyarray(output if name == "output" else getattr(cache, name)) for name in outputs]
        made = tuple(map(self.variable, results))
        like = (output.shape, output.dtype)
        numbers = tuple(x.number for x in made)
        self.steps.append(Step(number, op, arguments, cache, like, tuple(outputs), numbers))
        return made


def combined(operation: arithmetic.Operation, *parts: Any, **options: Any) -> Variable:
    """An operation on variables, arrays and numbers; of constants alone an array, for types a variable like any."""
    ready = [x if isinstance(x, Variable) else as_constant(x) for x in parts]
    variable = [isinstance(x, Variable) for x in ready]
    made = (tape_of(ready) or Tape()).record(operation, (ready, variable), options, ("output",))[0]
    return made if any(variable) else cast(Variable, made.value)


def as_constant(x: Any) -> Any:
    """`x`, a number or an array of some."""
    if isinstance(x, Number):
        return x
    array = as_array("a constant", x)
    if array.dtype.kind not in "biu" and not is_floating(array.dtype):
        raise TypeError(f"a constant must hold numbers, not {array.dtype} (its shape is {array.shape})")
    return array


VARIABLES = (Variable, Place)
_of_function = lru_cache(signature)  # to read it takes as long as a small op


def mapped(function: Callable[[Any, Any], Any], value: Any, other: Any = None, *, keep: bool = True) -> Any:
    """`value` with ``function(variable, its part of other)`` in place of each variable, of which it may hold some.

    What is constant stays, or is None without `keep`; a bias object without `keep` is its array.
    """
    if isinstance(value, VARIABLES):
        return function(value, other)
    if holds_array(value) and isinstance(value.array, VARIABLES):
        result = function(value.array, other)
        return value.with_array(result) if keep else result
    if isinstance(value, SEVERAL):
        others = [None] * len(value) if other is None else other
        parts = [mapped(function, x, y, keep=keep) for x, y in zip(value, others, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value if keep else None


def variables_in(value: Any) -> list[int]:
    """The numbers of all that are in `value`."""
    numbers: list[int] = []
    mapped(lambda x, _: numbers.append(x.number), value)
    return numbers


def tape_of(values: Any) -> Tape | None:
    """The one that all variables in `values` are on."""
    tapes: dict[int, Tape] = {}
    mapped(lambda x, _: tapes.setdefault(id(x.tape), x.tape), list(values))
    if len(tapes) > 1:
        raise ValueError("variables of two chains cannot be combined: one layer calls another as a function")
    return next(iter(tapes.values()), None)


def _check_outputs(op: Any, outputs: Sequence[str]) -> None:
    """Refuse a name that is no output of the op, and one that is there twice."""
    further = [name[2:] for name in list(signature(op.backward).parameters)[2:] if name.startswith("d_")]
    check_outputs(name_of(op), outputs, ["output", *further])
    if len(set(outputs)) < len(outputs):
        raise ValueError(f"outputs must name each once, not {', '.join(outputs)}")


def name_of(op: Any) -> str:
    """As it is told to people."""
    name: str = getattr(op, "name", None) or getattr(op, "__name__", None) or type(op).__name__
    return name.rpartition(".")[2]
