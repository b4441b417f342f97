"""One question: a function of arrays and its claimed gradients, at a point, for three cotangents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.calls import (
    Backward,
    Forward,
    NotAnalyticError,
    as_inputs,
    call_backward,
    check_mapping,
    first_call,
    in_double_precision,
    is_same_function,
    on_copies,
    wide_dtype,
)
from attention_np.gradcheck.problem.nests import Nest, Parts, children, is_narrow, signature_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class FlatFunctions:
    """Two functions of nests as functions of arrays, which can be sent to another process."""

    of_nests: Forward
    gradients: Backward
    inputs: Nest
    outputs: Nest | None  # None: one array of real numbers

    @classmethod
    def of(cls, forward: Forward, backward: Backward, inputs: Nest, result: Any) -> FlatFunctions:
        """Those of two functions the first of which has returned `result`."""
        outputs = Nest({"output": result}, numbers=True)
        if children(result) is not None and not outputs.kinds:
            raise TypeError("forward must return at least one array of real floating-point numbers")
        plain = children(result) is None and outputs.kinds.get("output") != "c"
        return cls(forward, backward, inputs, None if plain else outputs)

    @property
    def parts(self) -> Parts:
        """Of several outputs, as `forward` lays them end to end."""
        return () if self.outputs is None else self.outputs.parts

    def forward(self, *arrays: Array) -> Any:
        """All outputs as one vector; or the one output, as it is."""
        is_complex = self.inputs.is_complex or (self.outputs is not None and self.outputs.is_complex)
        if is_complex and any(x.dtype.kind == "c" for x in arrays):
            raise NotAnalyticError("real and imaginary parts are moved one by one")
        result = self.of_nests(*self.inputs.filled(arrays).values())
        return result if self.outputs is None else self.outputs.joined(result)

    def backward(self, d_output: Array, *arrays: Array) -> list[Any]:
        """One gradient for each of the arrays."""
        cotangent = d_output if self.outputs is None else self.outputs.split(d_output)
        return self.inputs.gradients(self.gradients(cotangent, *self.inputs.filled(arrays).values()))


@dataclass(frozen=True)
class Problem:
    """Two functions of arrays at one point."""

    forward: Forward
    backward: Backward
    inputs: Mapping[str, Array]  # as they were given
    point: tuple[Array, ...]  # the same, in the precision in which slopes are measured
    output: Array  # at `point`
    cotangents: Array  # (3, *output.shape)
    claims: Mapping[str, Any]  # what `backward` returns for the first of them
    seed: int
    dtype: np.dtype[Any]  # of the output where the inputs are as they were given, and so of cotangents
    unit: float  # the last bit of one, in the precision that the functions are meant for
    parts: Parts = ()  # of several outputs, end to end
    faults: Mapping[str, str] = field(default_factory=dict)  # by input: there is no sense in comparing
    writes: Mapping[str, str] = field(default_factory=dict)  # by input: what is written to that should not be
    stateless: bool = False  # whether `backward` uses nothing that `forward` kept of its last call
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The entries of all inputs and the output."""
        return self.output.size + sum(x.size for x in self.point)

    @property
    def question(self) -> tuple[Array, list[Array]]:
        """The cotangent and all inputs, as `backward` is given them."""
        return np.array(self.cotangents[0], self.dtype), list(self.inputs.values())

    def claim(self, cotangent: Array, inputs: list[Array] | None = None) -> dict[str, Any]:
        """What `backward` returns, at the point or elsewhere; it may use what `forward` kept of its last call."""
        there = list(self.inputs.values()) if inputs is None else inputs
        dtype = self.dtype if inputs is None else np.result_type(self.dtype, *(x.dtype for x in there))
        # Arrays throughout: what NumPy computes of a 0-d array, or takes from a stack of them, is none.
        u, arrays = np.array(cotangent, dtype), {name: np.array(x) for name, x in zip(self.inputs, there, strict=True)}
        if not self.stateless:
            self.forward(*map(np.array, there))
        return call_backward(self.backward, u, arrays)

    def claimed(self, name: str) -> Array:
        """The gradient that is claimed for one input, in its dtype or in a narrower one."""
        gradient, x = np.asarray(self.claims[name]), self.inputs[name]
        is_wider = gradient.dtype.kind == "f" and gradient.dtype.itemsize > x.dtype.itemsize
        return gradient.astype(x.dtype) if is_wider else gradient

    def rng(self, name: str, purpose: str) -> np.random.Generator:
        """Randomness of its own for each input and purpose, so that no choice depends on another."""
        return np.random.default_rng([self.seed, list(self.inputs).index(name), *purpose.encode()])

    def once(self, key: Any, measure: Callable[[], Result]) -> Result:
        """What `measure` gives, asked once."""
        if key not in self.known:
            self.known[key] = measure()
        result: Result = self.known[key]
        return result

    @cached_property
    def wider(self) -> Problem | None:
        """The same in a wider dtype; None where the functions take none, or there is none."""
        narrow = np.result_type(*(x.dtype for x in self.inputs.values()))
        wide = np.dtype(np.float64 if narrow.itemsize < 8 else np.longdouble)
        if not np.finfo(wide).eps < np.finfo(narrow).eps:
            return None
        inputs = {name: x.astype(wide) for name, x in self.inputs.items()}
        try:
            output = np.asarray(on_copies(self.forward, *inputs.values()))
            if output.dtype != wide or not is_same_function(output, self.output):
                return None
            point, cotangents = tuple(inputs.values()), self.cotangents.astype(wide)
            there = replace(
                self, inputs=inputs, point=point, output=output, cotangents=cotangents, dtype=wide, known={}
            )
            return replace(there, unit=float(np.finfo(wide).eps), claims=there.claim(cotangents[0]))
        except Exception:  # not every function takes every dtype
            return None


def pose(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, Any],
    rng: np.random.Generator,
    *,
    stateless: bool = False,
) -> Problem:
    """The problem that two functions of nests make, called for the first time."""
    check_mapping(inputs)
    nest = Nest.of_arguments(inputs)
    for path, x in nest.arrays.items():
        if is_narrow(x.dtype):
            raise TypeError(f"{path} holds {x.dtype}, too narrow for small steps: use gradcheck.check_low_precision")
    arrays = as_inputs(nest.arrays or inputs)  # if nothing is moved, it says why
    signature = signature_of(backward)
    if signature is not None and "cache" in signature.parameters:
        raise TypeError("backward takes a cache: use gradcheck.check_layer((forward, backward), inputs)")
    result = forward(*nest.filled(x.copy() for x in arrays.values()).values())
    flat = FlatFunctions.of(forward, backward, nest, result)
    if flat.outputs is not None or list(arrays) != list(nest.trees):
        forward, backward = flat.forward, flat.backward
    first = first_call(forward, backward, arrays, rng)
    if first.writes or first.is_view:
        forward = partial(on_copies, forward)
    point = tuple(in_double_precision(forward, list(arrays.values()), first.output))
    narrow = [name for name, x in zip(arrays, point, strict=True) if x.dtype.itemsize < 4]
    if narrow:
        raise TypeError(
            f"forward computes in {arrays[narrow[0]].dtype} only ({', '.join(narrow)}), in which no small step can be "
            "taken: gradcheck.check_low_precision holds it against a function in double precision"
        )
    same = all(x.dtype == y.dtype for x, y in zip(arrays.values(), point, strict=True))
    return Problem(
        forward,
        backward,
        arrays,
        point,
        first.output if same else np.array(forward(*point)),
        first.cotangents.astype(wide_dtype(first.output.dtype)),
        first.claims,
        seed=int(rng.integers(2**63)),
        dtype=first.output.dtype,
        unit=float(np.finfo(first.output.dtype).eps),
        parts=flat.parts,
        faults=first.faults,
        writes=first.writes,
        stateless=stateless,
    )
