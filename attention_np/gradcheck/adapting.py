"""What the adapters of other libraries share: their functions, seen as functions of NumPy arrays.

The arguments of a function are taken apart into leaves (nested tuples, lists and mappings included). Those that are
real floating-point arrays are the inputs that the harness moves; all others are passed on as they are.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from numbers import Number
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.check import check
from attention_np.gradcheck.problem.nests import arguments_of, by_path, children, filled, leaves
from attention_np.gradcheck.report.reporting import Report

Signature = inspect.Signature


def library(name: str, title: str) -> Any:
    """The library of that name, or a module of it, imported now."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ImportError(f"gradcheck.{package} needs {title}: pip install {package}") from error


def each(d_output: Any) -> list[Any]:
    """The cotangents of all outputs, of :meth:`Adapter.as_output`."""
    return list(d_output.values()) if isinstance(d_output, dict) else [d_output]


class Adapter(ABC):
    """A function of a library's arrays as the pair of functions that the harness takes, `forward` and `backward`.

    `inputs` are its arguments, and `further` ones are passed by keyword. Those that are moved are then the attribute
    `inputs`, leaves by path; a lone number is a constant.
    """

    def __init__(self, function: Callable[..., Any], inputs: Any, signature: Signature | None, **further: Any) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        self.function = function
        self.arguments, self.positional = arguments_of(inputs, signature)
        self.arguments |= further
        self.leaves = by_path(pair for name, x in self.arguments.items() for pair in self.flatten(x, name))
        moved = {name: leaf for name, leaf in self.leaves.items() if self.kind(leaf) and not isinstance(leaf, Number)}
        self.inputs = {name: self.as_input(name, leaf) for name, leaf in moved.items()}
        if not self.inputs:
            held = ", ".join(f"{name} ({getattr(x, 'dtype', type(x).__name__)})" for name, x in self.leaves.items())
            raise ValueError(
                "inputs hold no floating-point array: there is nothing to differentiate by" + (held and f" in {held}")
            )

    def check(self, **options: Any) -> Report:
        """The report of the harness."""
        return check(self.forward, self.backward, self.inputs, **options)

    @abstractmethod
    def forward(self, *arrays: Array) -> Any:
        """The output of the function, or several by path, without anything being recorded for its gradient."""

    @abstractmethod
    def backward(self, d_output: Any, *arrays: Array) -> list[Array]:
        """The gradients by the library's own reverse mode, for a cotangent of the form of the output."""

    @abstractmethod
    def kind(self, leaf: Any) -> str:
        """Whether a leaf is an array of real floating-point numbers ("f"), of complex ones ("c") or neither ("")."""

    def to_numpy(self, leaf: Any) -> Array:
        """An array of the library as NumPy's; a TypeError if NumPy has no such numbers."""
        return np.array(leaf)

    def outputs(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """What the function returns if the inputs are these arrays of the library: each array of it by its path."""
        leaves = iter((self.leaves | dict(zip(self.inputs, arrays, strict=True))).values())
        values = {name: self.fill(argument, leaves) for name, argument in self.arguments.items()}
        named = {name: values.pop(name) for name in list(values)[self.positional :]}
        results = self.flatten(self.function(*values.values(), **named), "")
        outputs = {path.removeprefix("."): leaf for path, leaf in results if self.kind(leaf)}
        if not outputs:
            raise TypeError("function must return at least one array of floating-point numbers")
        return outputs

    def as_output(self, outputs: dict[str, Any]) -> Any:
        """The same as NumPy's arrays; of one output, its array alone."""
        arrays = {path: self.to_numpy(x) for path, x in outputs.items()}
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    def as_input(self, name: str, leaf: Any) -> Array:
        """A leaf to differentiate by as NumPy's array."""
        try:
            array = self.to_numpy(leaf)
        except TypeError as error:
            why = str(error).partition("\n")[0]
            raise TypeError(f"{name} ({leaf.dtype}) cannot be turned into an array of NumPy: {why}") from error
        if array.dtype.kind not in "fc":
            raise TypeError(f"{name} holds {leaf.dtype}, which NumPy does not have: pass it as float32 or wider")
        return array

    def children(self, tree: Any) -> dict[Any, Any] | None:
        """What a tuple, a list or a mapping holds, by key; None for a leaf."""
        return children(tree)

    def flatten(self, tree: Any, path: str) -> Iterator[tuple[str, Any]]:
        """The leaves of nested tuples, lists and mappings, each with its path."""
        return leaves(tree, path, self.children)

    def fill(self, tree: Any, leaves: Iterator[Any]) -> Any:
        """The inverse of :meth:`flatten`: the same tree with the next of these leaves."""
        return filled(tree, leaves, self.children)
