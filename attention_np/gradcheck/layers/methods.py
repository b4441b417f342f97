"""Layers that keep state: methods, or functions with a cache, seen as functions of their inputs and parameters.

Each call is made on a copy of the layer as it was given, with other parameters in it and gradient buffers of zeros. So
the layer stays as it is, whatever happens; a buffer that is added to, call after call, holds the gradient of one call;
and dropout that keeps its generator, or running means, start from the same state each time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import ModuleType
from typing import Any

import numpy as np

from attention_np.gradcheck.layers.paths import at, copied, detached, put, same
from attention_np.gradcheck.nesting import Nest, filled, leaves, signature_of, takes
from attention_np.gradcheck.reporting import Report

__all__ = ["Functions", "Methods", "method"]

WRITES = "backward writes to the gradient of the output that it is given: whoever uses that again finds another"
NONE_LEFT = (
    "{} is None or zero after backward: if the gradient is elsewhere, or none is wanted, as of what is frozen, "
    "parameters= says which have one, and where"
)


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
class Functions(_Called):
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
        return detached(result[0] if len(result) == 2 else result[:-1])

    def backward(self, d_output: Any, *values: Any) -> Any:
        """The gradients of the inputs."""
        cache = self.call(self.run, values)[-1]
        return self.by_inputs(self.pulled_back(self.pull_back, d_output, cache), values)


@dataclass(frozen=True)
class Methods(_Called):
    """A layer as functions of its inputs and its parameters."""

    layer: Any
    run: str
    pull_back: str
    parameters: Mapping[str, str | None]
    told: set[str] = field(default_factory=set, init=False)  # of what backward has left a gradient that is not zero

    def forward(self, *values: Any) -> Any:
        """The output of the layer with these parameters."""
        return detached(self.ran(values)[1])

    def backward(self, d_output: Any, *values: Any) -> list[Any]:
        """The gradients of the inputs and of the parameters."""
        layer, _ = self.ran(values)
        result, weight = self.pulled(layer, d_output)
        behind = [path for path, there in self.parameters.items() if there is None]
        count = sum(len(list(leaves(at(self.layer, path), path))) for path in behind)
        returned = [x for _, x in leaves(result, "")] if count else []
        if count:
            result = tuple(returned[:-count])
        gradients = self.by_inputs(result, values)
        following = chain(returned[-count:], repeat(None))
        of_parameters = {
            path: filled(at(self.layer, path), following) if there is None else at(layer, there)
            for path, there in self.parameters.items()
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
        pull_back = method(layer, self.pull_back)
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
        output = self.call(method(layer, self.run), values[:count])
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
            for (_, x), (_, y) in zip(leaves(at(self.layer, path), path), leaves(value, path), strict=True):
                if isinstance(x, np.ndarray):
                    there[id(x)] = y
                    others += [y.dtype] if y.dtype != x.dtype else []
        for path in filter(None, self.parameters.values()):
            for _, x in leaves(at(self.layer, path), path):
                if isinstance(x, np.ndarray) and x.dtype.kind in "fc" and id(x) not in there:
                    there[id(x)] = np.zeros_like(x, np.result_type(x.dtype, *others))
        layer = copied(self.layer, there)
        for path, value in zip(self.parameters, values, strict=True):
            if not same(at(layer, path), value):
                put(layer, path, value)
        return layer


def _is_nothing(gradient: Any) -> bool:
    return gradient is None or (isinstance(gradient, np.ndarray | np.generic | float) and not np.any(gradient))


def _is_in(path: str, other: str) -> bool:
    return f"{other}.".startswith(f"{path}.")


def method(layer: Any, name: str) -> Callable[..., Any]:
    """The method of a layer, or the function of a module, of that name."""
    found: Callable[..., Any] | None = getattr(layer, name, None)
    if found is None:
        held = f"module {layer.__name__}" if isinstance(layer, ModuleType) else type(layer).__name__
        raise TypeError(f"{held} has no function called {name}: name those that it has, as forward= and backward=")
    return found
