"""Kernels that exist in low precision only, against a reference in double precision.

No small step can be taken in half precision, so the numerical gradient is that of the reference. What the kernel's
rounding can be blamed for is seen in the kernel itself, entry by entry: at equally spaced points close by, the output
and the gradients of an exact kernel lie on smooth curves, and whatever differences of a high order leave is rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE, UNDECIDED, WRONG, judge
from attention_np.gradcheck.diagnosis import diagnose
from attention_np.gradcheck.examining import evidence_of, prepared
from attention_np.gradcheck.findings import Details
from attention_np.gradcheck.judging.measured import ROUGH, Candidate, Measured, Options
from attention_np.gradcheck.judging.verdicts import why_not_complex_step
from attention_np.gradcheck.measuring.functions import (
    SAME_CALL_ULPS,
    Backward,
    FirstCall,
    Forward,
    another_answer,
    as_generator,
    as_inputs,
    check_mapping,
    form_of,
    kind_of,
    on_copies,
)
from attention_np.gradcheck.measuring.noise import high_differences
from attention_np.gradcheck.measuring.numerical import METHODS, as_method, measure
from attention_np.gradcheck.measuring.reach import SMALLER, WITHIN, reach_of
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.slopes import by_differences
from attention_np.gradcheck.measuring.subject import SCALES, Subject, along, room, sizes
from attention_np.gradcheck.nesting import Flat, Nest, apart, is_narrow
from attention_np.gradcheck.reporting import InputReport, Report, compared

__all__ = ["check_low_precision"]

Array = npt.NDArray[Any]

EPS, SINGLE = (float(np.finfo(x).eps) for x in (np.float64, np.float32))  # which kernels, too, add up in
PRECISIONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "tf32": 2.0**-10}  # the last bit of one
OF_OUTPUTS = (("backward", "forward"), ("gradient", "output"), ("input", "reference"))  # words for what is said
LONGEST, POINTS, ORDER = 2.0**-5, 10, 5  # relative; a smooth curve leaves next to nothing, its rounding all
STEADY = 2  # last bits, of what is rounded alike close by: inputs, as a scale may be, and outputs that hardly move
TOGETHER, WITNESSES = 8, 64  # saturated entries that are measured together, and that are at most


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
    functions = replace(kernel.functions, of_nests=reference, gradients=pull_back or backward)
    right = np.asarray(functions.forward(*(x.astype(np.float64) for x in nest.arrays.values())))
    if right.dtype.itemsize < 8:
        raise TypeError(f"reference must compute in double precision, not return {right.dtype}")
    if right.shape != kernel.output.shape:
        raise ValueError(
            f"reference must return the shape of the kernel's output, {kernel.output.shape}: {right.shape}"
        )
    cotangents = np.stack([kernel.as_given(u) for u in generator.standard_normal((3, *right.shape))])
    options = Options(as_method(method), 0.0, None, 0, {} if constants is None else constants)
    seed = int(generator.integers(2**63))
    truth = _Reference(functions, pull_back is not None, options, Running(executor), cotangents, seed)
    near = STEADY * kernel.unit + SAME_CALL_ULPS * SINGLE
    with np.errstate(all="ignore"):
        found = _Compared(kernel, truth, right, generator)
        reports = {}
        for name, expected in found.expected.items():
            answer = found.answer[name]
            fault = form_of(answer, expected) or another_answer(answer, found.again[name], near)
            if fault is None:
                reports[name] = found.report(name)
                continue
            for word, of_output in OF_OUTPUTS if name not in found.known else ():
                fault = fault.replace(word, of_output)
            reports[name] = InputReport(name, "reference", False, math.inf, size=expected.size, diagnosis=fault)
        details = {name: x.details for name, x in reports.items() if name in found.known and x.details is not None}
        for name in details:
            if reports[name].wrong:
                evidence = evidence_of(
                    found.known[name], details[name].verdict, found.known, details, options.constants
                )
                # Slopes of inputs for which the reference is a pair take too long.
                evidence = evidence._replace(exact=True, ask=None if truth.believed else evidence.ask)
                reports[name] = replace(reports[name], diagnosis=diagnose(evidence) or "no simple cause")
    return Report(tuple(reports.values()))


@dataclass(frozen=True)
class _Reference:
    """The function in double precision, and its gradients: measured, or those of its own backward."""

    functions: Flat
    believed: bool
    options: Options
    running: Running
    cotangents: Array
    seed: int

    def candidate(self, kernel: _Kernel, answer: Mapping[str, Any], right: Array) -> Candidate:
        """The reference, whose output is `right`, and what the kernel claims, where the kernel is."""
        arrays = {name: x.astype(np.float64) for name, x in kernel.point.items()}
        run, parts = partial(on_copies, self.functions.forward), self.functions.outputs
        claimed = [answer[name] for name in arrays]
        first = FirstCall(right, self.cotangents, claimed, faults={}, writes={}, is_view=False)
        return Candidate(
            run,
            kernel.backward,
            arrays,
            tuple(arrays.values()),
            first,
            self.cotangents,
            self.seed,
            () if parts is None else parts.parts,
            stateless=True,
        )

    def gradients(self, candidate: Candidate) -> dict[str, Measured]:
        """The gradients for all cotangents."""
        known = {}
        for name in candidate.inputs:
            subject = candidate.subject(name)
            if self.believed:
                known[name] = Measured(name, candidate, subject, self.options.method, self.running)
                continue
            known[name] = found = prepared(candidate, name, subject, self.options, self.running)
            found.look(np.arange(subject.x.size), best=found.method == METHODS[1])
        for k, u in enumerate(self.cotangents if self.believed else ()):
            gradients = self.functions.backward(u.copy(), *(x.copy() for x in candidate.point))
            for found, gradient in zip(known.values(), gradients, strict=True):
                if gradient is None or np.shape(gradient) != found.subject.x.shape:
                    raise ValueError(
                        f"reference's backward must return a gradient of the shape of {found.name}, "
                        f"{found.subject.x.shape}: {kind_of(gradient) if gradient is None else np.shape(gradient)}"
                    )
                found.numerical[k], found.looked[...] = np.ravel(gradient), True
        return known

    def largest_where_smaller(self, found: Measured, some: Array) -> Array:
        """How large some entries of a gradient are where its input, or all are far smaller; NaN if that is unknown."""
        (u, inputs), position = found.candidate.question, found.subject.position
        tame = [SMALLER * x for x in inputs]
        largest = np.full(len(some), np.nan)
        for there in ([*inputs[:position], tame[position], *inputs[position + 1 :]], tame):
            try:
                if self.believed:
                    gradient = np.ravel(self.functions.backward(u.copy(), *(x.copy() for x in there))[position])[some]
                else:
                    gradient = measure(found.there(u, there), some, found.method, found.aside).values[:, 0]
            except Exception:  # noqa: S112 - what it raises there is up to the reference
                continue
            largest = np.fmax(largest, np.abs(gradient))
        return largest


class _Kernel:
    """A kernel at a point, in the dtypes that it takes; its answers in double precision."""

    def __init__(self, forward: Forward, backward: Backward, inputs: Nest, unit: float) -> None:
        self.point, self.unit = inputs.arrays, unit
        result = forward(*inputs.filled(x.copy() for x in self.point.values()).values())
        self.functions = Flat.of(forward, backward, inputs, result)
        outputs = self.functions.outputs
        self.output = np.asarray(result if outputs is None else outputs.joined(result))
        if not (self.output.dtype.kind == "f" or is_narrow(self.output.dtype)):
            raise TypeError(f"forward must return arrays of floating-point numbers, not {kind_of(result)}")
        self.smallest = max(float(np.spacing(np.zeros((), x.dtype))) for x in (self.output, *self.point.values()))

    def named(self, output: Array) -> dict[str, Any]:
        """The arrays of the output, by their names."""
        outputs = self.functions.outputs
        return {"output": output} if outputs is None else apart(output, outputs.parts)

    def as_given(self, u: Array) -> Array:
        """A cotangent rounded to the dtypes of the outputs, as `backward` is given it."""
        outputs, given = self.functions.outputs, u.astype(self.output.dtype)
        return np.asarray(given if outputs is None else outputs.joined(outputs.split(given))).astype(np.float64)

    def backward(self, u: Array, *arrays: Array) -> list[Any]:
        """The gradients by the inputs, of arrays in any precision."""
        return list(self.answer(u, arrays).values())[-len(self.point) :]

    def answer(self, u: Array, point: Iterable[Array] | None = None) -> dict[str, Any]:
        """The outputs, and the gradients by the inputs."""
        there = self.point.values() if point is None else point
        arrays = [np.array(x, own.dtype) for x, own in zip(there, self.point.values(), strict=True)]
        output = np.asarray(self.functions.forward(*(x.copy() for x in arrays)))
        gradients = self.functions.backward(u.astype(self.output.dtype), *arrays)
        answers = self.named(output) | dict(zip(self.point, gradients, strict=True))
        return {name: _in_double(x) for name, x in answers.items()}

    def floors(self, u: Array, here: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Array]:
        """How far rounding moves each entry of the output and of the gradients, of the answer that is given `here`."""
        floors = {name: np.zeros(np.shape(x)) for name, x in here.items()}
        ways = [rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape) for x in (u, *self.point.values())]
        spacing = self.unit
        while spacing <= max(LONGEST, self.unit):
            answers = [self.answer(*self.moved(u, ways, spacing, k)) for k in range(POINTS)]
            for name, floor in floors.items():
                if not all(np.shape(x[name]) == floor.shape and x[name] is not None for x in (here, *answers)):
                    continue
                curve = np.array([x[name] for x in answers])
                with np.errstate(all="ignore"):
                    if spacing > self.unit:  # closer, rounding itself may choose the branch
                        largest = max(np.abs(curve).max(initial=0), np.abs(u).max(initial=0))
                        curve = _without_a_branch(curve, self.unit * largest)
                    left = np.sqrt((high_differences(curve, ORDER) ** 2).mean(axis=0))
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
        for x, way in zip((u, *self.point.values()), ways, strict=True):
            finite = np.where(np.isfinite(x), x, x.dtype.type(0))
            bits = np.abs(np.spacing(finite).astype(np.float64))
            steps = np.where(way > 0, POINTS - 1 - k, k) * np.ceil(spacing * np.abs(way * finite) / bits)
            moved.append((x - np.copysign(steps * bits, finite)).astype(x.dtype))
        return moved[0], moved[1:]


def _without_a_branch(curve: Array, last_bit: float) -> Array:
    """The curve of each entry without its jump, if it has a single one, far larger than its other steps: no rounding.

    What rounding makes of a curve, it does all along it, or by the `last_bit` of terms that cancelled, as 1 - y * y.
    """
    steps = np.diff(curve, axis=0)
    others = np.sort(np.abs(steps), axis=0)[-2]
    far = np.abs(steps) > UNDECIDABLE * np.fmax(others, last_bit)
    return np.concatenate([curve[:1], curve[1:] - np.cumsum(np.where(far, steps, 0), axis=0)])


class _Compared:
    """What a kernel answers at its point, what it is to answer, and how much of the difference is rounding."""

    def __init__(self, kernel: _Kernel, truth: _Reference, right: Array, rng: np.random.Generator) -> None:
        self.kernel, self.truth = kernel, truth
        self.answer, self.again = kernel.answer(truth.cotangents[0]), kernel.answer(truth.cotangents[0])
        self.known = truth.gradients(truth.candidate(kernel, self.answer, right))
        self.noise = kernel.floors(truth.cotangents[0], self.answer, rng)
        self.expected = kernel.named(right)
        for name, found in self.known.items():
            self.expected[name] = found.numerical[0].reshape(found.subject.x.shape)

    def floor(self, name: str) -> Array:
        """How far rounding may move each entry from what is expected of it."""
        expected = self.expected[name]
        most = np.fmax(np.abs(self.answer[name]), np.abs(expected))
        of_reference = EPS * np.abs(expected).max(initial=0)  # what it leaves where all cancels
        if name in self.known:  # as where a kink of the reference is within the step
            of_reference = of_reference + self.known[name].errors.reshape(expected.shape)
        return np.asarray(self.noise[name] + np.fmax(self.kernel.unit * most, self.kernel.smallest) / 2 + of_reference)

    def report(self, name: str) -> InputReport:
        """What is found by comparing, without its cause."""
        claimed, expected, floor, unit = self.answer[name], self.expected[name], self.floor(name), self.kernel.unit
        found = self.known.get(name)
        if found is not None and (np.abs(claimed - expected) > UNDECIDABLE * floor).any():
            self._allow_saturation(found, np.abs(claimed - expected), floor)
        verdict = judge(claimed, expected, floor, UNDECIDABLE * unit)
        verdict[~np.isfinite(expected)] = UNDECIDED
        if found is not None:
            found.floor, found.verdict = floor.ravel(), verdict.ravel()
            may_change = self.truth.options.method == "auto" and found.method == METHODS[0]
            if may_change and why_not_complex_step(found) is not None:
                found.method = METHODS[1]
                found.look(np.flatnonzero(found.looked), best=True)
                self.expected[name] = found.numerical[0].reshape(expected.shape)
                return self.report(name)
        diagnosis, largest = None, np.fmax(np.abs(claimed), np.abs(expected))
        if (verdict == WRONG).any():
            diagnosis = "it is further from the reference than rounding explains"
        elif claimed.size and (verdict == UNDECIDED).all() and not (UNDECIDABLE * floor <= ROUGH * largest).any():
            diagnosis = "it could not be checked: rounding may be all that there is of it"
        return compared(name, "reference", Details(claimed, expected, floor, verdict), unit, diagnosis)

    def _allow_saturation(self, found: Measured, error: Array, floor: Array) -> None:
        """Raise the floor by what saturated outputs lose, where an entry is wrong.

        As 1 - y where y has rounded to one: so long as it stays there, no point close by shows what is lost. Such an
        entry is far larger where its input, or all are far smaller. Beside wrong ones that are not, it is undecided.
        Else the worst are measured: once all of several are wrong still, so is the rest; once many are not, as much is
        allowed to the others as last bits make of the entry that is not saturated.
        """
        wrong = np.flatnonzero(error > UNDECIDABLE * floor)
        whole = self.truth.largest_where_smaller(found, wrong)
        saturated = ~(WITHIN * np.abs(self.expected[found.name].flat[wrong]) > whole)
        doubtful, whole = wrong[saturated], whole[saturated]
        if not saturated.all():
            floor.flat[doubtful] = error.flat[doubtful]
            return
        subject = replace(found.subject, unit=self.kernel.unit)
        order = np.argsort(-(error * sizes(subject.x)).flat[doubtful])  # all may lose about as much
        doubtful, whole = doubtful[order], whole[order]
        for first in range(0, min(doubtful.size, WITNESSES), TOGETHER):
            some, behind = doubtful[first : first + TOGETHER], doubtful[first + TOGETHER :]
            floor.flat[some] += STEADY / WITHIN * _lost(subject, some) / UNDECIDABLE
            still = error.flat[some] > UNDECIDABLE * floor.flat[some]
            if still.any():
                floor.flat[behind] = floor.flat[behind] if still.all() else error.flat[behind]
                return
        floor.flat[doubtful[WITNESSES:]] += STEADY * subject.unit * whole[WITNESSES:] / UNDECIDABLE


def _lost(subject: Subject, some: Array) -> Array:
    """What saturated outputs lose of the slopes of some entries, each moved by a fraction of itself."""
    directions = along(subject.x, some)
    found = by_differences(subject, directions, SCALES[0] * room(subject, directions), reach_of(subject, directions))
    return found.lost / sizes(subject.x).ravel()[some]


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
