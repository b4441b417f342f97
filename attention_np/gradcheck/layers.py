"""Layers that keep state: methods, or functions with a cache, seen as functions of their inputs and parameters.

Each call is made on a copy of the layer as it was given, with other parameters in it and gradient buffers of zeros. So
the layer stays as it is, whatever happens; a buffer that is added to, call after call, holds the gradient of one call;
and dropout that keeps its generator, or running means, start from the same state each time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Real
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.checking import check
from attention_np.gradcheck.measuring.noise import elsewhere
from attention_np.gradcheck.nesting import Nest, arguments_of, filled, leaves, signature_of, takes
from attention_np.gradcheck.reporting import Report

__all__ = ["check_layer"]

Array = npt.NDArray[Any]

# Names by custom: of what holds parameters, and of the array in an object that is one, with those of their gradients;
HOLDERS = {"params": ("grads", "gradients"), "parameters": ("gradients", "grads")}
VALUES = dict.fromkeys(("data", "value", "array"), ("grad",))
# of what is a parameter, whether or not a gradient is found; and of gradients that are beside it, or kept together.
ASKED_FOR = ("W", "b", "weights", "biases")
BESIDE, TOGETHER = ("d{}", "d_{}", "g{}", "dLd{}", "dL_d{}", "grad_{}", "{}_grad"), ("grads", "gradients", "grad")
WRITES = "backward writes to the gradient of the output that it is given: whoever uses that again finds another"
NONE_LEFT = (
    "{} is None or zero after backward: if the gradient is elsewhere, or none is wanted, as of what is frozen, "
    "name those with gradients, parameters="
)
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
        layers within it, in params and grads, in parameters and gradients, data with grad, or any W with a gradient
        beside it, as dW, d_W, gW, dLdW, grad_W or W_grad, or in grads; or returned. What is in params, or is called
        W, b, weights or biases, is wrong without a gradient. A note names other arrays for which none is found; lone
        numbers are checked if they are named.
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
        return functions.noted(check(functions.forward, functions.backward, arguments, **options))
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
    report = methods.noted(check(methods.forward, methods.backward, arguments | found, **options))
    if not unnamed:
        return report
    verb = "is" if len(unnamed) == 1 else "are"
    note = f"{', '.join(unnamed)} of the layer {verb} not checked: name those with gradients, parameters="
    first, *others = report.inputs
    return Report((first.with_note(note), *others))


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

    def noted(self, report: Report) -> Report:
        """The report, with a note if backward wrote to what it was given."""
        first, *others = report.inputs
        return Report((first.with_note(WRITES), *others)) if self.written else report

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
    told: set[str] = field(default_factory=set, init=False)  # of what backward has left a gradient that is not zero

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
        of_parameters = {
            path: next(behind, None) if there is None else _at(layer, there) for path, there in self.parameters.items()
        }
        for name, x in of_parameters.items():
            self.told.update(path for path, leaf in leaves(x, name) if not _is_nothing(leaf))
        gradients += of_parameters.values()
        return gradients if weight is None else [None if x is None else weight * x for x in gradients]

    def noted(self, report: Report) -> Report:
        """The same, and with what to do where a gradient that is wrong is none, or has always been zero."""
        entries = list(super().noted(report))
        for k, entry in enumerate(entries):
            for path, there in self.parameters.items():
                if not entry.ok and _is_in(path, entry.name) and not any(_is_in(x, entry.name) for x in self.told):
                    entries[k] = entry.with_note(NONE_LEFT.format(there or f"the gradient of {path}"))
        return Report(tuple(entries))

    def pulled(self, layer: Any, d_output: Any) -> tuple[Any, Any]:
        """What the layer's backward returns; and what all gradients are to be multiplied by, if it was not told."""
        pull_back = _method(layer, self.pull_back)
        if not takes(pull_back, 1) and takes(pull_back, 0):  # of a loss
            return pull_back(), d_output
        signature = signature_of(pull_back)
        if signature is not None and not (isinstance(d_output, tuple) or takes(pull_back, 1)):
            _, *more = [name for name, x in signature.parameters.items() if x.default is x.empty]
            name, to = self.pull_back, ", ".join(f"{x}=..." for x in more)
            raise TypeError(
                f"{name} of {type(layer).__name__} takes more than the gradient of the output: set {', '.join(more)} "
                f"beforehand, as by layer.{name} = functools.partial(layer.{name}, {to})"
            )
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


def _is_nothing(gradient: Any) -> bool:
    return gradient is None or (isinstance(gradient, np.ndarray | np.generic | float) and not np.any(gradient))


def _is_in(path: str, other: str) -> bool:
    return f"{other}.".startswith(f"{path}.")


class _Held(NamedTuple):
    """An array that a layer holds, or a layer within it."""

    array: Array
    through: tuple[str, ...]  # the attributes that lead to it


def _usual(methods: _Methods, arguments: Mapping[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """Where layers have their parameters and gradients by custom, as calls show; and what else they use."""
    values = tuple(arguments.values())
    layer, output, result = _used(methods, values)
    before, after = dict(_arrays(methods.layer)), dict(_arrays(layer))
    asked, returned = _asked_for(after | before), [id(x) for _, x in leaves(result, "")]
    others = [path for path in _made(methods, values, before, after) if _place(layer, path) is not None]
    late = [path for path in others if path in asked]
    if late:
        raise ValueError(f"{_no(layer, late[0])} before forward is called: let it make its parameters first")
    found: dict[str, str | None] = {}
    for path, held in before.items():
        if not _is_at(methods.layer, path, held.array):
            if path in asked:
                all_at_once = "name all at once, as parameters={'params': 'grads'}"
                raise ValueError(f"{path} of {type(layer).__name__} is no path: {all_at_once}")
            others.append(path)
            continue
        there, (stays, matters) = _place(layer, path), _moved(methods, values, path, output)
        has_one = there is not None and id(_at(layer, there)) not in returned  # to the inputs, or behind those
        if (stays and has_one) or (matters and path in asked):
            found[path] = there
        elif stays and matters:
            others.append(path)
    pairs = _each_once(layer, found, before)
    of_arguments = Nest.of_arguments(arguments)
    behind = {len(returned) - len(x) for x in (of_arguments.kinds, of_arguments.leaves)}  # with None for a mask, or not
    if None in pairs.values() and len(pairs) in behind:
        pairs = dict.fromkeys(pairs)
    else:
        pairs = {path: there or _places(path)[0] for path, there in pairs.items()}
    checked = [id(before[path].array) for path in pairs]
    return pairs, [path for path in (*others, *found) if path not in before or id(before[path].array) not in checked]


def _asked_for(arrays: Mapping[str, _Held]) -> list[str]:
    """The paths to what is a parameter by its name: in params, if the layer has that, or else in any layer within."""
    if {held.through[0] for held in arrays.values()}.isdisjoint(HOLDERS):
        return [path for path, held in arrays.items() if not {*HOLDERS, *ASKED_FOR}.isdisjoint(held.through)]
    return [path for path, held in arrays.items() if held.through[0] in HOLDERS]


def _place(layer: Any, path: str) -> str | None:
    """Where the gradient of what is at a path is by custom: of all places the first that holds numbers."""
    return next((there for there in _places(path) if isinstance(_at(layer, there), np.ndarray | Real | list)), None)


def _places(path: str) -> list[str]:
    """Where it may be: of params.w in grads.w, and of w.data in w.grad; beside W in dW; or in grads, as W or as dW."""
    steps = path.split(".")
    named = [k for k, step in enumerate(steps) if not step.isdecimal()]
    instead = {k: (HOLDERS | VALUES if k else HOLDERS).get(steps[k], ()) for k in named}
    others = [[*steps[:k], name, *steps[k + 1 :]] for k in named for name in instead[k]]
    within = [[*steps[:k], name, *steps[k:]] for k in named for name in TOGETHER]
    beside = []
    for there in (steps, *others, *within):
        last = max(k for k, step in enumerate(there) if not step.isdecimal())
        name = there[last].lstrip("_")
        lead = there[last].removesuffix(name)
        beside += [[*there[:last], lead + form.format(name), *there[last + 1 :]] for form in BESIDE]
    return [".".join(there) for there in (*others, *beside, *within)]


def _each_once(layer: Any, pairs: Mapping[str, str | None], before: Mapping[str, _Held]) -> dict[str, str | None]:
    """The paths to parameters and their gradients, by the first of several ways to the same array that has one.

    Where each of two ways to it has a gradient of its own, neither is that of the array, and it has none.
    """
    ways: dict[int, list[str]] = {}
    for path in pairs:
        ways.setdefault(id(before[path].array), []).append(path)
    once = {}
    for paths in ways.values():
        first, *_ = [path for path in paths if pairs[path] is not None] or paths
        one, *others = [_at(layer, there) for path in paths if (there := pairs[path]) is not None] or [None]
        if all(np.array_equal(one, x) for x in others):
            once[first] = pairs[first]
    return once


def _used(methods: _Methods, values: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The layer after its forward, and its backward of the output itself; that, and what backward returns."""
    layer, output = methods.ran(tuple(map(_apart, values)))
    outputs = Nest({"output": _apart(output)}, numbers=True)
    d_output = outputs.filled(map(np.array, outputs.arrays.values()), alone=True)["output"]
    return layer, outputs.trees["output"], methods.pulled(layer, d_output)[0]


def _moved(methods: _Methods, values: tuple[Any, ...], path: str, output: Any) -> tuple[bool, bool]:
    """Whether forward leaves an array of the layer as it is, once that has moved, and whether the output has, too."""
    of_it, (x,) = (
        replace(methods, parameters={path: None}),
        elsewhere([_at(methods.layer, path)], np.random.default_rng(0)),
    )
    try:
        layer, there = of_it.ran((*map(_apart, values), x))
        pairs = zip(leaves(output, ""), leaves(there, ""), strict=True)
        return _is_at(layer, path, x), not all(np.array_equal(y, z) for (_, y), (_, z) in pairs)
    except Exception:  # what it raises is up to the layer
        return True, True


def _made(
    methods: _Methods, values: tuple[Any, ...], before: Mapping[str, _Held], after: Mapping[str, _Held]
) -> list[str]:
    """The paths to arrays that forward makes, but for those that are others where the inputs have moved."""
    known = [id(held.array) for path, held in after.items() if path in before]
    inputs = Nest(dict(zip(methods.names, values, strict=True)))
    there = inputs.filled(elsewhere(inputs.arrays.values(), np.random.default_rng(0)))
    try:
        layer, _ = methods.ran(tuple(there.values()))
    except Exception:  # what it raises is up to the layer
        return []
    made = {path: held.array for path, held in after.items() if path not in before and id(held.array) not in known}
    return [path for path, x in made.items() if _is_at(layer, path, x)]


def _arrays(
    held: Any, path: str = "", through: tuple[str, ...] = (), seen: tuple[Any, ...] = ()
) -> Iterator[tuple[str, _Held]]:
    """The arrays of an object by their paths, and those of the objects that it holds."""
    by_custom = () if path else (*HOLDERS, *ASKED_FOR)  # which may be properties
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(held).__mro__)
    slotted = (name for names in slots for name in ([names] if isinstance(names, str) else names))
    names = dict.fromkeys((*by_custom, *getattr(held, "__dict__", {}), *slotted))
    is_one = bool(path) and "grad" in names and not names.keys().isdisjoint(VALUES)  # a parameter
    if is_one:
        names.pop("grad")
    for name in names:
        led = (name,) if is_one and name not in VALUES else (*through, name)  # to what an optimizer keeps beside it
        for there, leaf in leaves(getattr(held, name, None), name):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc":
                yield path + there, _Held(leaf, led)
            elif not (any(leaf is x for x in (held, *seen)) or isinstance(leaf, type | ModuleType)):
                yield from _arrays(leaf, f"{path}{there}.", led, (*seen, held))


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
    if isinstance(layer, np.ndarray):
        return None
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
        copied = copy.deepcopy(x, memo)
        _rebind(memo)
        return copied
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


def _rebind(copies: dict[int, Any]) -> None:
    """Let functions that objects hold, as lambdas of `self`, use the copies: no function is copied itself."""
    for held in [*copies.values()]:
        names = held if isinstance(held, dict) else getattr(held, "__dict__", {})
        for name, function in [pair for pair in names.items() if isinstance(pair[1], FunctionType)]:
            used = [cell.cell_contents for cell in function.__closure__ or ()]
            if any(id(x) in copies for x in used):
                cells = tuple(CellType(copies.get(id(x), x)) for x in used)
                code, around = function.__code__, function.__globals__
                names[name] = FunctionType(code, around, function.__name__, function.__defaults__, cells)
                names[name].__kwdefaults__ = function.__kwdefaults__
