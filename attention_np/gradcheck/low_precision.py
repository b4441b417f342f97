"""Kernels that exist in low precision only, against a reference in double precision.

No small step can be taken in half precision, so the numerical gradient is that of the reference. What the kernel's
rounding can be blamed for is seen in the kernel itself, entry by entry: at equally spaced points close by, the output
and the gradients of an exact kernel lie on smooth curves, and whatever differences of a high order leave is rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE, UNDECIDED, WRONG, judge
from attention_np.gradcheck.checking import _cotangents
from attention_np.gradcheck.diagnosis import Evidence, diagnose
from attention_np.gradcheck.findings import Details
from attention_np.gradcheck.measuring.functions import (
    Backward,
    Forward,
    as_generator,
    as_inputs,
    check_mapping,
    form_of,
)
from attention_np.gradcheck.measuring.numerical import numerical_gradient
from attention_np.gradcheck.measuring.subject import sizes
from attention_np.gradcheck.nesting import Flat, Nest, is_narrow
from attention_np.gradcheck.reporting import InputReport, Report, compared

__all__ = ["check_low_precision"]

Array = npt.NDArray[Any]

PRECISIONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "tf32": 2.0**-10}  # the last bit of one
LONGEST, POINTS, ORDER = 2.0**-5, 10, 5  # relative; a smooth curve leaves next to nothing, its rounding all
STEADY = 2  # last bits, of what is rounded alike close by: inputs, as a scale may be, and outputs that hardly move
SATURATED = 2.0**-6  # of an output, by which it would move if an input moved by its own size


def check_low_precision(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, Any],
    reference: Forward,
    *,
    precision: str | None = None,
    method: str = "auto",
    rng: int | np.random.Generator = 0,
    executor: Executor | None = None,
    constants: Mapping[str, float] | None = None,
) -> Report:
    """Check a kernel in half precision, or in TF32, against a function in double precision that is to be the same.

    The gradients are held against the numerical ones of `reference`, entry by entry, and the output against its
    output; with as much allowed as the kernel's rounding can be blamed for in that entry.

    Parameters
    ----------
    forward, backward : callable
        The kernel's, as for :func:`check`.
    inputs : mapping of str to array_like
        As for :func:`check`, in the dtypes that the kernel takes: float16, bfloat16 of ml_dtypes, float32.
    reference : callable
        ``reference(*inputs)``, the same function of arrays of float64, or of complex ones if it takes them.
    precision : {"float16", "bfloat16", "tf32"}, optional
        What the kernel computes in, if it is less than the dtype of its inputs; by default that.
    method, rng, executor
        As for :func:`numerical_gradient`; `rng` draws the cotangent and the points close by.
    constants : mapping of str to float, optional
        As for :func:`check`.

    Returns
    -------
    Report
        One entry for the output, called "output", and one for each input. NaN, where the reference has none, is wrong.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import gradcheck
    >>> report = gradcheck.check_low_precision(
    ...     np.tanh,
    ...     lambda d_y, x: d_y * (1 - np.tanh(x)),  # a square is missing
    ...     {"x": np.linspace(-1, 1, 4, dtype=np.float16)},
    ...     reference=np.tanh,
    ... )
    >>> report["output"].ok, report["x"].ok
    (True, False)
    """
    for name, function in (("forward", forward), ("backward", backward), ("reference", reference)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    check_mapping(inputs)
    nest, generator = Nest.of_arguments(inputs), as_generator(rng)
    if not nest.arrays:
        as_inputs(inputs)  # which says why nothing is moved
    kernel = _Kernel(forward, backward, nest, _last_bit(precision, nest.arrays.values()))
    output = kernel.output
    cotangents = _cotangents(generator.standard_normal(output.shape).astype(output.dtype), output, generator)
    point = {name: x.astype(np.float64) for name, x in nest.arrays.items()}
    wide_functions = replace(kernel.functions, of_nests=reference)

    def wide(*arrays: Array) -> Array:
        found = np.asarray(wide_functions.forward(*arrays))
        if found.dtype.itemsize < 8:
            raise TypeError(f"reference must compute in double precision, not return {found.dtype}")
        if found.shape != output.shape:
            raise ValueError(f"reference must return the shape of the kernel's output, {output.shape}: {found.shape}")
        return found

    def slopes(u: Array) -> dict[str, Array]:
        found: dict[str, Array] = numerical_gradient(wide, point, u, method=method, executor=executor)
        return found

    expected = {"output": wide(*(x.copy() for x in point.values())), **slopes(cotangents[0])}
    answer, floors = kernel.answer(cotangents[0]), kernel.floors(cotangents[0], generator)
    reports = {}
    for name, numerical in expected.items():
        fault = form_of(answer[name], numerical)
        if fault is not None:
            said = fault.replace("gradient", "output").replace("input", "reference") if name == "output" else fault
            reports[name] = InputReport(name, "reference", False, math.inf, size=numerical.size, diagnosis=said)
            continue
        most = np.fmax(np.abs(answer[name]), np.abs(numerical))
        floor = floors[name] + np.fmax(kernel.unit * most, kernel.smallest) / 2
        wrong = np.abs(answer[name] - numerical) > UNDECIDABLE * floor
        if name != "output":
            lost = [_lost(wide, point, name, tuple(place), cotangents[0]) for place in np.argwhere(wrong)]
            floor[wrong] += STEADY * kernel.unit * np.array(lost) / UNDECIDABLE
        reports[name] = _report(name, answer[name], numerical, floor, kernel.unit)
    known = {name: x.details for name, x in reports.items() if x.details is not None and name != "output"}
    if any(reports[name].wrong for name in known):
        claims = [answer, *(kernel.answer(u) for u in (*cotangents[1:], 0 * cotangents[0]))]
        numericals = [expected, *map(slopes, cotangents[1:])]
        for name, details in known.items():
            if not reports[name].wrong:
                continue
            evidence = Evidence(
                name=name,
                inputs=point,
                output=expected["output"],
                cotangents=cotangents,
                analytic={key: np.stack([claim[key] for claim in claims[:3]]) for key in known},
                numerical={key: np.stack([found[key] for found in numericals]) for key in point},
                floor=details.floor,
                verdict=details.verdict,
                at_zero=claims[3][name],
                constants={} if constants is None else constants,
                parts=kernel.functions.parts,
            )
            cause = diagnose(evidence) or "no simple cause"
            if not cause.startswith("it is rounded"):  # which it is meant to be
                reports[name] = replace(reports[name], diagnosis=cause)
    return Report(tuple(reports.values()))


class _Kernel:
    """A kernel at a point, in the dtypes that it takes; its answers in double precision."""

    def __init__(self, forward: Forward, backward: Backward, inputs: Nest, unit: float) -> None:
        self.unit, self.names = unit, list(inputs.arrays)
        self.point: list[Array] = list(inputs.arrays.values())
        result = forward(*inputs.filled(x.copy() for x in self.point).values())
        self.functions = Flat.of(forward, backward, inputs, result)
        self.output = np.asarray(self.functions.forward(*(x.copy() for x in self.point)))
        if _in_double(self.output).dtype.kind != "f":
            raise TypeError(f"forward must return arrays of floating-point numbers, not {type(result).__name__}")
        self.smallest = max(float(np.spacing(np.zeros((), x.dtype))) for x in (self.output, *self.point))

    def answer(self, u: Array, point: Sequence[Array] | None = None) -> dict[str, Any]:
        """The output, and the gradients by the inputs."""
        arrays = self.point if point is None else point
        output = self.functions.forward(*(x.copy() for x in arrays))
        gradients = self.functions.backward(u.astype(self.output.dtype), *(x.copy() for x in arrays))
        answers = zip(["output", *self.names], [output, *gradients], strict=True)
        return {name: _in_double(x) for name, x in answers}

    def floors(self, u: Array, rng: np.random.Generator) -> dict[str, Array]:
        """How far rounding moves each entry of the output and of the gradients."""
        here = self.answer(u)
        floors = {name: np.zeros(np.shape(x)) for name, x in here.items()}
        ways = [rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape) for x in (u, *self.point)]
        spacing = self.unit
        while spacing <= max(LONGEST, self.unit):
            answers = [self.answer(*self.moved(u, ways, k * spacing)) for k in range(-POINTS // 2, POINTS // 2)]
            for name, floor in floors.items():
                if not all(np.shape(x[name]) == floor.shape and x[name] is not None for x in (here, *answers)):
                    continue
                curve = np.array([x[name] for x in answers])
                with np.errstate(all="ignore"):
                    left = np.sqrt((np.diff(curve, n=ORDER, axis=0) ** 2).mean(axis=0) / comb(2 * ORDER, ORDER))
                    of_constants = STEADY * np.abs(curve[POINTS // 2 + 1] - here[name]) * self.unit / spacing
                    noise = left + of_constants / UNDECIDABLE
                floors[name] = np.fmax(floor, np.where(np.isfinite(noise), noise, 0))
            spacing *= 4
        return floors

    def moved(self, u: Array, ways: Sequence[Array], most: float) -> tuple[Array, list[Array]]:
        """The cotangent and the inputs a little further on their ways, in their own dtypes."""
        cotangent, *point = (
            (x.astype(np.float64) * (1 + most * way)).astype(x.dtype)
            for x, way in zip((u, *self.point), ways, strict=True)
        )
        return cotangent, point


def _lost(wide: Forward, point: Mapping[str, Array], name: str, place: tuple[int, ...], u: Array) -> float:
    """What the outputs that hardly move with one entry weigh, over the size of that entry: what their last bits lose.

    As 1 - y where y has rounded to one: so long as it stays there, no point close by shows what is lost.
    """
    size = float(sizes(point[name])[place])
    moved = {key: x.copy() for key, x in point.items()}
    outputs = []
    for move in (size / 8, -size / 8, -point[name][place]):
        moved[name][place] = point[name][place] + move
        outputs.append(wide(*moved.values()))
    above, below, at_zero = outputs
    output = wide(*point.values())
    saturated = (np.abs(above - below) * 4 <= SATURATED * np.abs(output)) & (at_zero != output)
    return float(np.linalg.norm((output * u)[saturated]) / size)


def _last_bit(precision: str | None, arrays: Iterable[Array]) -> float:
    """The last bit of one in a precision, by default the narrowest of those of the arrays."""
    if precision is None:
        return max(float(np.spacing(np.ones((), x.dtype))) for x in arrays)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be {', '.join(map(repr, PRECISIONS))} or None, not {precision!r}")
    return PRECISIONS[precision]


def _in_double(x: Any) -> Any:
    if x is None:
        return None
    array = np.asarray(x)
    return array.astype(np.float64) if array.dtype.kind == "f" or is_narrow(array.dtype) else array


def _report(name: str, claimed: Array, numerical: Array, floor: Array, unit: float) -> InputReport:
    """What is found by comparing, without its cause."""
    verdict = judge(claimed, numerical, floor, UNDECIDABLE * unit)
    verdict[~np.isfinite(numerical)] = UNDECIDED
    diagnosis = None
    if (verdict == WRONG).any():
        diagnosis = "it is further from the reference than rounding explains"
    elif claimed.size and (verdict == UNDECIDED).all():
        diagnosis = "it could not be checked: rounding may be all that there is of it"
    return compared(name, "reference", Details(claimed, numerical, floor, verdict), unit, diagnosis)
