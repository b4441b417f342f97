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
    SAME_CALL_ULPS,
    Backward,
    Forward,
    as_generator,
    as_inputs,
    check_mapping,
    form_of,
    kind_of,
)
from attention_np.gradcheck.measuring.numerical import numerical_gradient
from attention_np.gradcheck.measuring.subject import sizes
from attention_np.gradcheck.nesting import Nest, children, is_narrow
from attention_np.gradcheck.reporting import InputReport, Report, compared

__all__ = ["check_low_precision"]

Array = npt.NDArray[Any]

PRECISIONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "tf32": 2.0**-10}  # the last bit of one
LONGEST, POINTS, ORDER = 2.0**-5, 10, 5  # relative; a smooth curve leaves next to nothing, its rounding all
STEADY = 2  # last bits, of what is rounded alike close by: inputs, as a scale may be, and outputs that hardly move
AT_ONCE = 100  # entries that are wrong, whose saturation is looked at: one that stays wrong is enough
SATURATED = 2.0**-2  # of the way that an output goes as an input grows from nothing: a line would go all of it again


def check_low_precision(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, Any],
    reference: Forward | tuple[Forward, Backward],
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
    reference : callable or pair of callables
        ``reference(*inputs)``, the same function of arrays of float64, or of complex ones if it takes them. Or that and
        its backward, as for :func:`check`, which is then believed: for inputs too large for numerical gradients.
    precision : {"float16", "bfloat16", "tf32"}, optional
        What the kernel computes in, if it is less than the dtype of its inputs; by default that.
    method, rng, executor
        As for :func:`numerical_gradient`; `rng` draws the cotangent and the points close by.
    constants : mapping of str to float, optional
        As for :func:`check`.

    Returns
    -------
    Report
        One entry for the output, called "output" (of several, "output.0" and so on), and one for each input. NaN, where
        the reference has none, is wrong.

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
    reference, pull_back = reference if isinstance(reference, tuple) and len(reference) == 2 else (reference, None)
    for name, function in (("forward", forward), ("backward", backward), ("reference", reference)):
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    check_mapping(inputs)
    nest, generator = Nest.of_arguments(inputs), as_generator(rng)
    if not nest.arrays:
        as_inputs(inputs)  # which says why nothing is moved
    kernel = _Kernel(forward, backward, nest, _last_bit(precision, nest.arrays.values()))
    output = kernel.output
    drawn = _cotangents(generator.standard_normal(output.shape).astype(output.dtype), output, generator)
    cotangents = np.stack([kernel.as_given(u) for u in drawn])
    point = {name: x.astype(np.float64) for name, x in nest.arrays.items()}

    def wide(*arrays: Array) -> Array:
        found = kernel.joined(reference(*nest.filled(arrays).values()))
        if found.dtype.itemsize < 8:
            raise TypeError(f"reference must compute in double precision, not return {found.dtype}")
        if found.shape != output.shape:
            raise ValueError(f"reference must return the shape of the kernel's output, {output.shape}: {found.shape}")
        return found

    def slopes(u: Array) -> dict[str, Array]:
        if pull_back is not None:
            return kernel.gradients(pull_back, u, list(point.values()))
        found: dict[str, Array] = numerical_gradient(wide, point, u, method=method, executor=executor)
        return found

    right = wide(*(x.copy() for x in point.values()))
    expected = {**kernel.named(right), **slopes(cotangents[0])}
    answer, again = kernel.answer(cotangents[0]), kernel.answer(cotangents[0])
    floors = kernel.floors(cotangents[0], generator)
    reports = {}
    for name, numerical in expected.items():
        is_output = name not in point
        fault = form_of(answer[name], numerical) or kernel.other(answer[name], again[name])
        if fault is not None:
            if is_output:
                fault = fault.replace("backward", "forward").replace("gradient", "output").replace("input", "reference")
            reports[name] = InputReport(name, "reference", False, math.inf, size=numerical.size, diagnosis=fault)
            continue
        most = np.fmax(np.abs(answer[name]), np.abs(numerical))
        of_reference = np.finfo(np.float64).eps * np.abs(numerical).max(initial=0)  # what it leaves where all cancels
        floor = floors[name] + np.fmax(kernel.unit * most, kernel.smallest) / 2 + of_reference
        wrong = np.abs(answer[name] - numerical) > UNDECIDABLE * floor
        if not is_output and wrong.any():
            u = np.where(_saturated(kernel, wide, point, name), cotangents[0], 0)
            excess = np.abs(answer[name] - numerical)[wrong] / floor[wrong]
            places = np.argwhere(wrong)[np.argsort(-excess)]
            for first in range(0, len(places) if u.any() else 0, AT_ONCE):
                chosen = tuple(places[first : first + AT_ONCE].T)
                lost = [_lost(wide, point, name, place, u) for place in zip(*chosen, strict=True)]
                floor[chosen] += STEADY * kernel.unit * np.array(lost) / UNDECIDABLE
                if (np.abs(answer[name] - numerical) > UNDECIDABLE * floor)[chosen].any():
                    break
        reports[name] = _report(name, answer[name], numerical, floor, kernel.unit)
    known = {name: x.details for name, x in reports.items() if x.details is not None and name in point}
    if any(reports[name].wrong for name in known):
        claims = [answer, *(kernel.answer(u) for u in (*cotangents[1:], 0 * cotangents[0]))]
        numericals = [expected, *map(slopes, cotangents[1:])]
        for name, details in known.items():
            if not reports[name].wrong:
                continue
            evidence = Evidence(
                name=name,
                inputs=point,
                output=right,
                cotangents=cotangents,
                analytic={key: np.stack([claim[key] for claim in claims[:3]]) for key in known},
                numerical={key: np.stack([found[key] for found in numericals]) for key in point},
                floor=details.floor,
                verdict=details.verdict,
                at_zero=claims[3][name],
                constants={} if constants is None else constants,
                parts=() if kernel.is_one else kernel.outputs.parts,
            )
            cause = diagnose(evidence) or "no simple cause"
            if not cause.startswith("it is rounded"):  # which it is meant to be
                reports[name] = replace(reports[name], diagnosis=cause)
    return Report(tuple(reports.values()))


class _Kernel:
    """A kernel at a point, in the dtypes that it takes; its answers in double precision."""

    def __init__(self, forward: Forward, backward: Backward, inputs: Nest, unit: float) -> None:
        self.forward, self.backward, self.inputs, self.unit = forward, backward, inputs, unit
        self.point: list[Array] = list(inputs.arrays.values())
        result = forward(*inputs.filled(x.copy() for x in self.point).values())
        self.outputs, self.is_one = Nest({"output": result}, numbers=True), children(result) is None
        if not self.outputs.kinds:
            raise TypeError(f"forward must return arrays of floating-point numbers, not {kind_of(result)}")
        self.output = self.joined(result)
        self.smallest = max(float(np.spacing(np.zeros((), x.dtype))) for x in (self.output, *self.point))

    def joined(self, result: Any) -> Array:
        """Several outputs as one vector; one as it is."""
        return np.asarray(result) if self.is_one else self.outputs.joined(result)

    def named(self, joined: Array) -> dict[str, Any]:
        """What `joined` gives, by the names of the outputs."""
        arrays = {path: np.asarray(x) for path, x in self.outputs.arrays.items()}
        ends = np.cumsum([x.size for x in arrays.values()])[:-1]
        parts = np.split(joined.reshape(-1), ends)
        return {path: part.reshape(x.shape) for (path, x), part in zip(arrays.items(), parts, strict=True)}

    def as_given(self, u: Array) -> Array:
        """A cotangent rounded to the dtypes of the outputs, as `backward` is given it."""
        given = u.astype(self.output.dtype)
        return given.astype(u.dtype) if self.is_one else self.outputs.joined(self.cotangent(given)).astype(u.dtype)

    def cotangent(self, u: Array) -> Any:
        """The cotangent in the form and the dtypes of the outputs; one in double precision stays in it."""
        return u if self.is_one else self.outputs.split(u)

    def gradients(self, backward: Backward, u: Array, arrays: Sequence[Array]) -> dict[str, Any]:
        """What a backward gives by the inputs."""
        result = backward(self.cotangent(u), *self.inputs.filled(x.copy() for x in arrays).values())
        return dict(zip(self.inputs.arrays, self.inputs.gradients(result), strict=True))

    def answer(self, u: Array, point: Sequence[Array] | None = None) -> dict[str, Any]:
        """The outputs, and the gradients by the inputs."""
        arrays = self.point if point is None else point
        result = self.joined(self.forward(*self.inputs.filled(x.copy() for x in arrays).values()))
        answers = self.named(result) | self.gradients(self.backward, u.astype(self.output.dtype), arrays)
        return {name: _in_double(x) for name, x in answers.items()}

    def other(self, first: Any, again: Any) -> str | None:
        """What is wrong if the same question gets another answer, beyond the last bits of sums in another order."""
        sums = SAME_CALL_ULPS * float(np.finfo(np.float32).eps)  # which even such kernels add up in
        most = (STEADY * self.unit + sums) * np.abs(first).max(initial=0)
        if not (np.abs(again - first) > most).any():
            return None
        twice = (np.abs(again - 2 * first) <= 2 * most).all()
        more = ": by as much again: is a buffer not zeroed?" if twice else ""
        return f"backward gives another gradient when it is called again{more}"

    def floors(self, u: Array, rng: np.random.Generator) -> dict[str, Array]:
        """How far rounding moves each entry of the output and of the gradients."""
        here = self.answer(u)
        floors = {name: np.zeros(np.shape(x)) for name, x in here.items()}
        ways = [rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape) for x in (u, *self.point)]
        spacing = self.unit
        while spacing <= max(LONGEST, self.unit):
            answers = [self.answer(*self.moved(u, ways, spacing, k)) for k in range(POINTS)]
            for name, floor in floors.items():
                if not all(np.shape(x[name]) == floor.shape and x[name] is not None for x in (here, *answers)):
                    continue
                curve = np.array([x[name] for x in answers])
                with np.errstate(all="ignore"):
                    left = np.sqrt((np.diff(curve, n=ORDER, axis=0) ** 2).mean(axis=0) / comb(2 * ORDER, ORDER))
                    of_constants = STEADY * np.abs(curve[POINTS // 2] - curve[POINTS // 2 - 1]) * self.unit / spacing
                    noise = left + of_constants / UNDECIDABLE
                floors[name] = np.fmax(floor, np.where(np.isfinite(noise), noise, 0))
            spacing *= 4
        return floors

    def moved(self, u: Array, ways: Sequence[Array], spacing: float, k: int) -> tuple[Array, list[Array]]:
        """The cotangent and the inputs after `k` of the steps between `POINTS` points, in their own dtypes.

        Every step is so many last bits of the number itself, and towards zero, or back from there: so no point is
        rounded, and the kernel is not blamed for the rounding of what it is given.
        """
        moved = []
        for x, way in zip((u, *self.point), ways, strict=True):
            finite = np.where(np.isfinite(x), x, x.dtype.type(0))
            bits = np.abs(np.spacing(finite).astype(np.float64))
            steps = np.where(way > 0, POINTS - 1 - k, k) * np.ceil(spacing * np.abs(way * finite) / bits)
            moved.append((x - np.copysign(steps * bits, finite)).astype(x.dtype))
        return moved[0], moved[1:]


def _saturated(kernel: _Kernel, wide: Forward, point: Mapping[str, Array], name: str) -> Array:
    """The outputs that hardly move with an input, though it has brought them where they are: alone, or by the row."""
    moves = (1, 0, 7 / 8, 9 / 8)
    output, without, less, more = (wide(*{**point, name: move * point[name]}.values()) for move in moves)
    slope, way = 8 * np.fmax(np.abs(output - less), np.abs(more - output)), np.abs(output - without)
    slopes, ways = (
        np.concatenate([_of_rows(part).ravel() for part in kernel.named(x).values()]).reshape(x.shape)
        for x in (slope, way)
    )
    return np.asarray((slope < SATURATED * way) | (slopes < SATURATED * ways))


def _of_rows(x: Array) -> Array:
    return np.broadcast_to(np.sqrt((x * x).sum(axis=-1, keepdims=True)), x.shape) if x.ndim else x


def _lost(wide: Forward, point: Mapping[str, Array], name: str, place: tuple[int, ...], u: Array) -> float:
    """What the outputs with one entry in them weigh, over the size of that entry: what their last bits lose.

    As 1 - y where y has rounded to one: so long as it stays there, no point close by shows what is lost.
    """
    moved = {key: x.copy() for key, x in point.items()}
    output = wide(*moved.values())
    moved[name][place] = 0
    theirs = (wide(*moved.values()) != output) & (u != 0)
    return float(np.linalg.norm((output * u)[theirs]) / sizes(point[name])[place])


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
