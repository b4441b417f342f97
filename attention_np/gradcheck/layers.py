"""The door for layers that keep state, and for functions with a cache.

Each call is made on a copy of the layer as it was given, with other parameters in it and gradient buffers of zeros. So
the layer stays as it is, whatever happens; a buffer that is added to, call after call, holds the gradient of one call;
and dropout that keeps its generator, or running means, start from the same state each time.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.check import check
from attention_np.gradcheck.problem.nests import Nest, arguments_of, filled, leaves, signature_of, takes
from attention_np.gradcheck.report.reporting import Report

HOLDERS = {"params": "grads", "parameters": "gradients"}  # of parameters, and of their gradients, by custom


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
    parameters : mapping of str to str or None
        Where an object has each parameter, and where `backward` leaves its gradient: attributes as ``{"W": "dW"}``,
        entries as ``{"params.W": "grads.W"}`` or ``{"params.0": "grads.0"}``, those of layers within as
        ``{"layers.0.W": "layers.0.dW"}``, or all at once, ``{"params": "grads"}``; None if `backward` returns it, in
        this order behind those of the inputs. ``{}``: check the inputs alone. By default every array that the layer
        holds, or an object within it, must have its gradient in one of five customary places: ``grads.W`` of
        ``params.W``, ``gradients.W`` of ``parameters.W``, ``dW`` or ``grad_W`` of ``W``, ``W.grad`` of ``W.data``.
    **options
        As for :func:`check`.

    Returns
    -------
    Report
        One entry for each input and each parameter, which is called by its path.

    Notes
    -----
    `backward` is given the gradients of several outputs as a tuple, or one by one if it must have as many arguments.
    Whether a layer adds to its gradients or sets them does not matter, nor does it if `backward` writes to the gradient
    that it is given. What is drawn from NumPy's global generator is the same at each call.

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
    >>> layer = Dense(np.array([[1.0, 2.0], [3.0, 5.0]]))
    >>> report = gradcheck.check_layer(layer, np.array([[0.5, -1.0]]), parameters={"params": "grads"})
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
    if isinstance(layer, tuple | ModuleType) or getattr(run, "__self__", None) is None:
        if parameters:
            raise ValueError("parameters are those of an object that keeps them: functions take theirs as inputs")
        functions = _Functions(tuple(arguments), positional, run, pull_back)
        return check(functions.forward, functions.backward, arguments, **options)
    kept = _copied(layer, {})
    methods = _Methods(tuple(arguments), positional, kept, forward, backward, parameters or {})
    if parameters is None:
        parameters = _by_custom(methods, arguments)
        methods = replace(methods, parameters=parameters)
    held = {path: _at(kept, path) for path in parameters}
    for path, x in held.items():
        if x is None:
            raise ValueError(
                f"{type(layer).__name__} has no {path}, a parameter by its path such as 'W', 'params.W' or 'params.0'"
            )
        if path in arguments:
            raise ValueError(f"{path} is the name of an input and of a parameter: name the input otherwise")
    arrays = [id(x) for _, x in leaves(held) if isinstance(x, np.ndarray)]
    if len(set(arrays)) < len(arrays):
        raise ValueError("two of parameters are the same array, whose gradient is one: let backward add them, name one")
    return check(methods.forward, methods.backward, arguments | held, **options)


def _by_custom(methods: _Methods, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The customary place of the gradient of each array of a layer, as one forward and one backward leave it."""
    used, output = methods.ran(tuple(map(_detached, arguments.values())))
    methods.pulled(used, _detached(output))
    pairs = {path: _customary(used, path, x.shape) for path, x in _arrays(methods.layer, "", set())}
    pairs = {path: place for path, place in pairs.items() if path not in pairs.values()}
    alone = [path for path, place in pairs.items() if place is None]
    if alone:
        raise ValueError(
            f"{type(used).__name__} holds {', '.join(alone)}, and backward leaves no gradient in a customary place: "
            "say where each has its own, as parameters={'W': 'dW', 'params': 'grads'}, or {} for the inputs alone"
        )
    return {path: place for path, place in pairs.items() if place is not None}


def _customary(layer: Any, path: str, shape: tuple[int, ...]) -> str | None:
    """Where a layer has the gradient of what is at a path, if in a customary place and of the same shape."""
    owner, _, name = path.rpartition(".")
    lead = f"{owner}." if owner else ""
    places = [f"{lead}d{name}", f"{lead}grad_{name}", *([f"{owner}.grad"] if name == "data" else [])]
    steps = path.split(".")
    places += [".".join([HOLDERS.get(step, step) for step in steps])] * any(step in HOLDERS for step in steps)
    fitting = [place for place in places if isinstance(x := _at(layer, place), np.ndarray) and x.shape == shape]
    return fitting[0] if fitting else None


def _arrays(x: Any, path: str, seen: set[int]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of floating-point numbers that an object holds, or objects within it, by their paths."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind == "f":
            yield path, x
        return
    held = dict(x) if isinstance(x, Mapping) else dict(enumerate(x)) if isinstance(x, list | tuple) else None
    if held is None:
        held = {} if isinstance(x, ModuleType | type) else getattr(x, "__dict__", {})
    if id(x) not in seen:
        seen.add(id(x))
        for name, part in held.items():
            yield from _arrays(part, f"{path}.{name}" if path else str(name), seen)


@dataclass(frozen=True)
class _Called:
    """How something is called with arguments in a fixed order."""

    names: tuple[str, ...]
    positional: int  # how many of them are passed by position
    drawn: Any = field(default_factory=lambda: np.random.mtrand.get_state(legacy=False), init=False)

    def call(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """The function's answer, by position and by name, with the same draws of NumPy's global generator each time."""
        named = dict(zip(self.names[self.positional :], values[self.positional :], strict=True))
        before = np.random.mtrand.get_state(legacy=False)
        np.random.mtrand.set_state(self.drawn)
        try:
            return function(*values[: self.positional], **named)
        finally:
            np.random.mtrand.set_state(before)

    def pulled_back(self, pull_back: Callable[..., Any], d_output: Any, *further: Any) -> Any:
        """What a backward returns that is given the gradients of several outputs as a tuple, or all if it must be."""
        given = copy.deepcopy(d_output)  # which it may write to
        one_by_one = isinstance(given, tuple) and not takes(pull_back, 1 + len(further))
        return pull_back(*given, *further) if one_by_one else pull_back(given, *further)

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
        return _detached(result[0] if len(result) == 2 else result[:-1])

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
    parameters: Mapping[str, str | None]  # and the place of each gradient

    def forward(self, *values: Any) -> Any:
        """The output of the layer with these parameters."""
        return _detached(self.ran(values)[1])

    def backward(self, d_output: Any, *values: Any) -> list[Any]:
        """The gradients of the inputs and of the parameters."""
        layer, _ = self.ran(values)
        result, weight = self.pulled(layer, d_output)
        behind = [path for path, there in self.parameters.items() if there is None]
        count = sum(len(list(leaves(_at(self.layer, path)))) for path in behind)
        returned = [x for _, x in leaves(result)] if count else []
        result = tuple(returned[:-count]) if count else result
        following = chain(returned[len(returned) - count :], repeat(None))
        gradients = self.by_inputs(result, values)
        for path, there in self.parameters.items():
            gradients.append(filled(_at(self.layer, path), following) if there is None else _at(layer, there))
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
        return layer, self.call(_method(layer, self.run), values[:count])

    def with_parameters(self, values: tuple[Any, ...]) -> Any:
        """A copy of the layer in which all that refers to an array of a parameter refers to that of `values`."""
        there: dict[int, Any] = {}
        others = []  # dtypes that the layer's own parameters do not have
        for path, value in zip(self.parameters, values, strict=False):
            for (_, x), (_, y) in zip(leaves(_at(self.layer, path)), leaves(value), strict=True):
                if isinstance(x, np.ndarray):
                    there[id(x)] = y
                    others += [y.dtype] if y.dtype != x.dtype else []
        for place in self.parameters.values():
            for _, x in leaves(None if place is None else _at(self.layer, place)):
                if isinstance(x, np.ndarray) and x.dtype.kind in "fc" and id(x) not in there:
                    there[id(x)] = np.zeros(x.shape, np.result_type(x.dtype, *others) if others else x.dtype)
        layer = _copied(self.layer, there)
        for path, value in zip(self.parameters, values, strict=False):
            if not _same(_at(layer, path), value):
                raise TypeError(f"{path} of {type(layer).__name__} is no array: name the attribute that holds one")
        return layer


def _method(layer: Any, name: str) -> Callable[..., Any]:
    """The function of an object or a module, of that name."""
    function: Callable[..., Any] | None = getattr(layer, name, None)
    if function is None:
        held = f"module {layer.__name__}" if isinstance(layer, ModuleType) else type(layer).__name__
        raise TypeError(f"{held} has no function called {name}: name those that it has, as forward= and backward=")
    return function


def _at(layer: Any, path: str) -> Any:
    """What is at a path; None if nothing is."""
    for step in path.split("."):
        layer = _within(layer, step)
    return layer


def _within(layer: Any, step: str) -> Any:
    if isinstance(layer, np.ndarray):
        return None
    if isinstance(layer, Mapping):
        return layer.get(step, layer.get(int(step)) if step.isdecimal() else None)
    if isinstance(layer, tuple | list) and step.lstrip("-").isdecimal():
        return layer[int(step)] if int(step) < len(layer) else None
    try:
        return getattr(layer, step, None)
    except Exception:  # of a property, as of a gradient before backward has been called
        return None


def _detached(output: Any) -> Any:
    """A nest with copies of its arrays: an output may be a view of what it is computed from, an input be written to."""
    return filled(output, (np.copy(x) if isinstance(x, np.ndarray) else x for _, x in leaves(output)))


def _same(held: Any, value: Any) -> bool:
    """Whether two nests of one form hold the same arrays."""
    pairs = zip(leaves(held), leaves(value), strict=True)
    return all(x is y for (_, x), (_, y) in pairs)


def _copied(x: Any, known: dict[int, Any]) -> Any:
    """A copy of a layer, with `known` in the place of what has those ids; modules that it holds are shared."""
    shared = {id(module): module for module in sys.modules.values()}
    try:
        return copy.deepcopy(x, {**shared, **known})
    except Exception as error:  # what it raises is up to the objects
        kind = type(x).__name__
        raise TypeError(f"layer, of type {kind}, cannot be copied, so it would not stay as it is: {error}") from error
