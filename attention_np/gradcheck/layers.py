"""Layers that keep state: methods, or functions with a cache, seen as functions of their inputs and parameters.

Each call is made on a copy of the layer as it was given, with other parameters in it and gradient buffers of zeros. So
the layer stays as it is, whatever happens; a buffer that is added to, call after call, holds the gradient of one call;
and dropout that keeps its generator, or running means, start from the same state each time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.checking import check
from attention_np.gradcheck.measuring.noise import ELSEWHERE
from attention_np.gradcheck.nesting import Nest, arguments_of, filled, leaves, signature_of, takes
from attention_np.gradcheck.reporting import Report

__all__ = ["check_layer"]

Array = npt.NDArray[Any]

USUAL = {"params": "grads", "parameters": "gradients"}  # and where their gradients are; those of any NAME are in dNAME
OF_ONE = {"data": "grad", "value": "grad"}  # the same of objects within a layer that are a parameter each
ASKED_FOR = ("W", "b", "weights", "biases")  # what has such a name is a parameter, also where no dW is beside it
STEP = re.compile(r"\.?(\w+)|\[([^\]]+)\]")


def check_layer(
    layer: Any,
    inputs: Any,
    *,
    forward: str = "forward",
    backward: str = "backward",
    parameters: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Report:
    """Check the gradients of a layer that keeps state, by its inputs and by its parameters.

    Parameters
    ----------
    layer : object, module, or pair of functions
        An object with methods ``forward(*inputs) -> output`` and ``backward(d_output) -> gradients by the inputs``,
        which leaves the gradients of its parameters in attributes, mappings or lists. It is not changed. Or a module,
        or a pair, with functions ``forward(*inputs) -> (output, cache)`` and ``backward(d_output, cache)``.
    inputs : mapping of str to array, tuple or list of arrays, or array
        The arguments of `forward`: a mapping by name, if it has parameters of these names, otherwise in order. As for
        :func:`check`, they may be nests, and what is no array of floating-point numbers is passed on as it is.
    forward, backward : str, optional
        The names of the two. A `backward` that takes nothing is that of a loss, and returns the loss's own gradient.
    parameters : mapping of str to str or None, optional
        Where each parameter is, and where `backward` leaves its gradient: attributes as ``{"W": "dW"}``, entries as
        ``{"params.W": "grads.W"}`` or ``{"params[0]": "grads[0]"}``, those of layers within as
        ``{"layers[0].W": "layers[0].dW"}``, or all at once, ``{"params": "grads"}``; None if `backward` returns it,
        in this order behind those of the inputs, as ``return dX, [dW, db]``. By default those of the layer and of
        layers within it, in params and grads, in parameters and gradients, data with grad, or any NAME with a dNAME
        beside it, such as W with dW; or returned. A note names the arrays for which none is found.
    **options
        As for :func:`check`.

    Returns
    -------
    Report
        One entry for each input and each parameter, which is called by its path.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used: a parameter is not there, or the layer cannot be copied.

    Notes
    -----
    `backward` is given the gradients of several outputs as a tuple, or one by one if it must have as many arguments.
    Whether a layer adds to its gradients or sets them does not matter, nor does it if `backward` writes to the gradient
    that it is given, which is noted. What is drawn from NumPy's global generator is the same at each call.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> class Dense:
    ...     def __init__(self, w):
    ...         self.params, self.grads = {"w": w}, {}
    ...
    ...     def forward(self, x):
    ...         self.x = x
    ...         return x @ self.params["w"]
    ...
    ...     def backward(self, d_y):
    ...         self.grads["w"] = self.x.T @ d_y
    ...         return d_y @ self.params["w"]  # a transpose is missing
    >>> report = gradcheck.check_layer(Dense(np.array([[1.0, 2.0], [3.0, 5.0]])), np.array([[0.5, -1.0]]))
    >>> report["x"].ok, report["params.w"].ok
    (False, True)
    """
    if isinstance(layer, tuple):
        if len(layer) != 2 or not all(map(callable, layer)):
            raise TypeError("layer must be an object, a module, or a pair of functions, (forward, backward)")
        run, pull_back = layer
    else:
        run, pull_back = _method(layer, forward), _method(layer, backward)
    arguments, positional = arguments_of(inputs, signature_of(run))
    names = tuple(arguments)
    if isinstance(layer, tuple | ModuleType) or getattr(run, "__self__", None) is None:
        if parameters:
            raise ValueError("parameters are those of an object that keeps them: functions take theirs as inputs")
        functions = _Functions(names, positional, run, pull_back)
        return _noted(check(functions.forward, functions.backward, arguments, **options), functions)
    kept = _copied(layer, {})
    if kept is layer:
        raise TypeError(f"layer, of type {type(layer).__name__}, cannot be copied, so it would not stay as it is")
    bare = _Methods(names, positional, kept, forward, backward, {})
    pairs, unnamed = _usual(bare, arguments) if parameters is None else (dict(parameters), [])
    found = {path: _at(kept, path) for path in pairs}
    for path, x in found.items():
        if x is None:
            raise ValueError(f"{_no(layer, path)}, a parameter by its path such as 'W', 'params.W' or 'params[0]'")
        if path in arguments:
            raise ValueError(f"{path} is the name of an input and of a parameter: name the input otherwise")
    methods = replace(bare, parameters=pairs)
    return _noted(check(methods.forward, methods.backward, arguments | found, **options), methods, unnamed)


def _noted(report: Report, called: _Called, unnamed: Sequence[str] = ()) -> Report:
    """The report, with a note if backward wrote to what it was given, and on arrays that are not checked."""
    first, *others = report.inputs
    if called.written:
        first = first.with_note(
            "backward writes to the gradient of the output that it is given: whoever uses that again finds another"
        )
    if unnamed:
        names = ", ".join(unnamed)
        verb = "is" if len(unnamed) == 1 else "are"
        first = first.with_note(f"{names} of the layer {verb} not checked: name those with gradients, parameters=")
    return Report((first, *others))


def _state() -> Any:
    return np.random.mtrand.get_state(legacy=False)


@dataclass(frozen=True)
class _Called:
    """How something is called with arguments in a fixed order."""

    names: tuple[str, ...]
    positional: int  # how many of them are passed by position
    written: list[str] = field(default_factory=list, init=False)  # what backward has written to
    drawn: Any = field(default_factory=_state, init=False)  # from where NumPy's global generator draws, at each call

    def call(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """The function's answer, by position and by name, with the same draws each time."""
        named = dict(zip(self.names[self.positional :], values[self.positional :], strict=True))
        before = _state()
        np.random.mtrand.set_state(self.drawn)
        try:
            return function(*values[: self.positional], **named)
        finally:
            np.random.mtrand.set_state(before)

    def pulled_back(self, pull_back: Callable[..., Any], d_output: Any, *further: Any) -> Any:
        """What a backward returns that is given the gradients of several outputs as a tuple, or all if it must be."""
        given = copy.deepcopy(d_output)
        one_by_one = isinstance(given, tuple) and not takes(pull_back, 1 + len(further))
        result = pull_back(*given, *further) if one_by_one else pull_back(given, *further)
        pairs = zip(leaves(given, ""), leaves(d_output, ""), strict=True)
        if not all(np.array_equal(x, y) for (_, x), (_, y) in pairs):
            self.written.append("d_output")
        return result

    def by_inputs(self, result: Any, values: tuple[Any, ...]) -> list[Any]:
        """The gradient of each input, of what a backward returns; None where there is none."""
        arguments = Nest.of_arguments(dict(zip(self.names, values, strict=False)))
        d_inputs = arguments.by_tree(result) if arguments.kinds else {}
        return [d_inputs.get(name) for name in self.names]


@dataclass(frozen=True)
class _Functions(_Called):
    """Functions with a cache as functions of the inputs."""

    run: Callable[..., Any]
    pull_back: Callable[..., Any]

    def forward(self, *values: Any) -> Any:
        """The output without the cache."""
        result = self.call(self.run, values)
        if not isinstance(result, tuple) or len(result) < 2:
            raise TypeError(
                f"forward must return (output, cache), not {type(result).__name__}: for functions without a cache, "
                "backward(d_output, *inputs), use gradcheck.check"
            )
        return _apart(result[0] if len(result) == 2 else result[:-1])

    def backward(self, d_output: Any, *values: Any) -> Any:
        """The gradients of the inputs."""
        cache = self.call(self.run, values)[-1]
        return self.by_inputs(self.pulled_back(self.pull_back, d_output, cache), values)


@dataclass(frozen=True)
class _Methods(_Called):
    """A layer as functions of its inputs and its parameters."""

    layer: Any
    run: str
    pull_back: str
    parameters: Mapping[str, str | None]

    def forward(self, *values: Any) -> Any:
        """The output of the layer with these parameters."""
        return _apart(self.ran(values)[1])

    def backward(self, d_output: Any, *values: Any) -> list[Any]:
        """The gradients of the inputs and of the parameters."""
        layer, _ = self.ran(values)
        result, weight = self.pulled(layer, d_output)
        count = sum(path is None for path in self.parameters.values())
        returned = [x for _, x in leaves(result, "")] if count else []
        if count:
            result = tuple(returned[:-count])
        gradients = self.by_inputs(result, values)
        behind = iter(returned[-count:])
        gradients += [next(behind, None) if path is None else _at(layer, path) for path in self.parameters.values()]
        return gradients if weight is None else [None if x is None else weight * x for x in gradients]

    def pulled(self, layer: Any, d_output: Any) -> tuple[Any, Any]:
        """What the layer's backward returns; and what all gradients are to be multiplied by, if it was not told."""
        pull_back = _method(layer, self.pull_back)
        if not takes(pull_back, 1) and takes(pull_back, 0):  # of a loss
            return pull_back(), d_output
        return self.pulled_back(pull_back, d_output), None

    def ran(self, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """A copy of the layer with the parameters that are the last of the values, after its forward; its output."""
        count = len(self.names)
        layer = self.with_parameters(values[count:])
        output = self.call(_method(layer, self.run), values[:count])
        if output is None:
            raise TypeError(
                f"{self.run} of {type(layer).__name__} returns None: it must return the output, as {self.pull_back} "
                "must the gradients by the inputs, in a subclass say"
            )
        return layer, output

    def with_parameters(self, values: tuple[Any, ...]) -> Any:
        """A copy of the layer in which all that refers to an array of a parameter refers to that of `values`."""
        there: dict[int, Any] = {}
        others = []  # dtypes that the layer's own parameters do not have
        for path, value in zip(self.parameters, values, strict=True):
            for (_, x), (_, y) in zip(leaves(_at(self.layer, path), path), leaves(value, path), strict=True):
                if isinstance(x, np.ndarray):
                    there[id(x)] = y
                    others += [y.dtype] if y.dtype != x.dtype else []
        for path in filter(None, self.parameters.values()):
            for _, x in leaves(_at(self.layer, path), path):
                if isinstance(x, np.ndarray) and x.dtype.kind in "fc" and id(x) not in there:
                    there[id(x)] = np.zeros_like(x, np.result_type(x.dtype, *others))
        layer = _copied(self.layer, there)
        for path, value in zip(self.parameters, values, strict=True):
            if not _same(_at(layer, path), value):
                _put(layer, path, value)
        return layer


class _Held(NamedTuple):
    """An array that a layer holds, or a layer within it."""

    array: Array
    gradient: str  # where its gradient is by custom
    outermost: str  # the attribute of the whole layer that leads to it


def _usual(methods: _Methods, arguments: Mapping[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """Where layers have their parameters and gradients by custom, as two calls show; and which arrays have none."""
    layer, result = _used(methods, tuple(arguments.values()))
    inputs = [x for _, x in leaves(tuple(arguments.values()), "") if isinstance(x, np.ndarray)]
    before, after = dict(_arrays(methods.layer)), dict(_arrays(layer))
    for path in after.keys() - before:
        if any(np.array_equal(after[path].array, x) for x in inputs):  # an input that is kept, be it called b
            del after[path]
    own = _kept(methods, arguments, before, after)
    found = _asked_for(methods.layer, before, after)
    given = [id(x) for _, x in leaves(result, "")]  # to the inputs, or behind those
    gradients = {path: _at(layer, after[path].gradient) for path in own if path not in found}
    found += [path for path, x in gradients.items() if x is not None and id(x) not in given]
    pairs = _each_once(layer, {path: after[path].gradient for path in found}, before)
    checked = [id(before[path].array) for path in pairs]
    same = (path for path, held in before.items() if path in own or not _is_at(methods.layer, path, held.array))
    others = [path for path in same if id(before[path].array) not in checked]
    missing = [path for path, there in pairs.items() if _at(layer, there) is None]
    if not missing:
        return dict(pairs), others
    of_arguments, returned = Nest.of_arguments(arguments), len(list(leaves(result, "")))
    behind = {returned - len(of_arguments.kinds), returned - len(of_arguments.leaves)}  # with None for a mask, or not
    if len(pairs) not in behind:
        path = missing[0]
        raise ValueError(f"{_no(layer, pairs[path])} after backward, the gradient of {path}: name parameters=")
    return dict.fromkeys(pairs), others


def _asked_for(layer: Any, before: Mapping[str, _Held], after: Mapping[str, _Held]) -> list[str]:
    """The paths to what is a parameter by its name."""
    asked = [name for name in USUAL if name in {held.outermost for held in after.values()}] or ASKED_FOR
    found = [path for path, held in after.items() if held.outermost in asked]
    for path in found:
        if path not in before:
            raise ValueError(f"{_no(layer, path)} before forward is called: let it make its parameters first")
        if not _is_at(layer, path, before[path].array):
            raise ValueError(
                f"{path} of {type(layer).__name__} is no path: name all at once, as parameters={{'params': 'grads'}}"
            )
    return found


def _each_once(layer: Any, pairs: Mapping[str, str], before: Mapping[str, _Held]) -> dict[str, str]:
    """The paths to parameters and their gradients, by the first of several ways to the same array.

    Where each of two ways to it has a gradient of its own, neither is that of the array, and it has none.
    """
    ways: dict[int, list[str]] = {}
    for path in pairs:
        ways.setdefault(id(before[path].array), []).append(path)
    gradients = ((first, [_at(layer, pairs[path]) for path in (first, *more)]) for first, *more in ways.values())
    return {path: pairs[path] for path, (one, *others) in gradients if all(np.array_equal(one, x) for x in others)}


def _used(methods: _Methods, values: tuple[Any, ...]) -> tuple[Any, Any]:
    """The layer after its forward, and its backward of the output itself; and what that returns."""
    layer, output = methods.ran(tuple(map(_apart, values)))
    outputs = Nest({"output": output}, numbers=True)
    d_output = outputs.filled(map(np.array, outputs.arrays.values()), alone=True)["output"]
    return layer, methods.pulled(layer, d_output)[0]


def _kept(
    methods: _Methods, arguments: Mapping[str, Any], before: Mapping[str, _Held], after: Mapping[str, _Held]
) -> list[str]:
    """The paths to arrays that calls leave as they were, and do not compute from others, all of which are moved."""
    same = {
        path: held.array * (1 - ELSEWHERE)
        for path, held in before.items()
        if path in after and np.array_equal(held.array, after[path].array) and _is_at(methods.layer, path, held.array)
    }
    try:
        layer, _ = _used(replace(methods, parameters=dict.fromkeys(same)), (*arguments.values(), *same.values()))
    except Exception:  # what it raises is up to the layer
        return list(same)
    return [path for path, x in same.items() if np.array_equal(x, _at(layer, path))]


def _arrays(held: Any, path: str = "", outermost: str = "", seen: tuple[Any, ...] = ()) -> Iterator[tuple[str, _Held]]:
    """The arrays of an object by their paths, and those of the objects that it holds."""
    by_custom = () if path else (*USUAL, *ASKED_FOR)  # which may be properties
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(held).__mro__)
    slotted = (name for names in slots for name in ([names] if isinstance(names, str) else names))
    names = dict.fromkeys((*by_custom, *getattr(held, "__dict__", {}), *slotted))
    is_one = bool(path) and "grad" in names and bool(OF_ONE.keys() & names)  # a parameter
    if is_one:
        names.pop("grad")
    for name in names:
        for there, leaf in leaves(getattr(held, name, None), name):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc":
                gradient = path + (OF_ONE if is_one else USUAL).get(name, f"d{name}") + there[len(name) :]
                yield path + there, _Held(leaf, gradient, outermost or name)
            elif not (any(leaf is x for x in (held, *seen)) or isinstance(leaf, type | ModuleType)):
                yield from _arrays(leaf, f"{path}{there}.", outermost or name, (*seen, held))


def _is_at(layer: Any, path: str, x: Array) -> bool:
    """Whether a path leads to an array: there may be keys that no path can name."""
    try:
        return np.array_equal(_at(layer, path), x, equal_nan=True)
    except ValueError:
        return False


def _apart(output: Any) -> Any:
    """A nest with copies of its arrays: an output may be a view of what it is computed from, an input be written to."""
    return filled(output, (np.copy(x) if isinstance(x, np.ndarray) else x for _, x in leaves(output, "")))


def _method(layer: Any, name: str) -> Callable[..., Any]:
    """The method of a layer, or the function of a module, of that name."""
    found: Callable[..., Any] | None = getattr(layer, name, None)
    if found is None:
        held = f"module {layer.__name__}" if isinstance(layer, ModuleType) else type(layer).__name__
        raise TypeError(f"{held} has no function called {name}: name those that it has, as forward= and backward=")
    return found


def _no(layer: Any, path: str) -> str:
    return f"{type(layer).__name__} has no {path}"


@cache
def _steps(path: str) -> list[str]:
    """The names and indices of a path such as ``layers[0].params.W``."""
    if not re.fullmatch(f"({STEP.pattern})+", path):
        raise ValueError(f"{path!r} is no path such as 'W', 'params.W' or 'layers[0].W'")
    return [(name or index).strip("'\"") for name, index in STEP.findall(path)]


def _at(layer: Any, path: str) -> Any:
    """What is at a path; None if nothing is."""
    for step in _steps(path):
        layer = _held(layer, step)
    return layer


def _held(layer: Any, step: str) -> Any:
    if isinstance(layer, Mapping):
        return layer.get(step, layer.get(int(step)) if step.isdecimal() else None)
    if isinstance(layer, tuple | list) and step.lstrip("-").isdecimal():
        return layer[int(step)] if int(step) < len(layer) else None
    return getattr(layer, step, None)


def _put(layer: Any, path: str, value: Any) -> None:
    """Put something at a path of a copy."""
    *before, last = _steps(path)
    owner = layer
    for step in before:
        owner = _held(owner, step)
    try:
        if isinstance(owner, Mapping | list):
            owner[int(last) if last.isdecimal() else last] = value  # type: ignore[index]
        else:
            setattr(owner, last, value)
    except (AttributeError, TypeError):
        raise TypeError(f"{path} of {type(layer).__name__} cannot be set: name the attribute that holds it") from None


def _same(held: Any, value: Any) -> bool:
    """Whether two nests of one form hold the same arrays."""
    pairs = zip(leaves(held, ""), leaves(value, ""), strict=True)
    return all(x is y or not isinstance(y, np.ndarray) for (_, x), (_, y) in pairs)


def _copied(x: Any, known: dict[int, Any]) -> Any:
    """A copy of a layer, with `known` in the place of what has those ids; parts that cannot be copied are shared."""
    memo = dict(known)
    try:
        return copy.deepcopy(x, memo)
    except Exception:  # what it raises is up to the objects
        if isinstance(x, dict):
            return {key: _copied(value, known) for key, value in x.items()}
        if isinstance(x, list):
            return [_copied(value, known) for value in x]
        try:
            held = copy.copy(x)
            vars(held).update({name: _copied(value, known) for name, value in vars(x).items()})
        except Exception:
            return x
        return held
