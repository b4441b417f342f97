"""The door for kernels in low precision, held against a function in double precision.

No small step can be taken in half precision. So the truth is measured of another function, or is that function's own
backward; and the floor is how far the kernel's answers jump about on lines of points close by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import Evidence, subject_of
from attention_np.gradcheck.flow import measured_gradients, mistake_of
from attention_np.gradcheck.problem.calls import (
    SAME_CALL,
    Backward,
    Forward,
    another_answer,
    as_executor,
    as_generator,
    as_inputs,
    check_functions,
    check_mapping,
    fault_of_form,
    kind_of,
    on_copies,
)
from attention_np.gradcheck.problem.nests import Nest, is_narrow, parts_of
from attention_np.gradcheck.problem.problem import FlatFunctions, Problem
from attention_np.gradcheck.report.findings import Details, InputReport, compared
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.slopes.measuring import Running, as_method
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import AT_ONCE
from attention_np.gradcheck.slopes.probes import POINTS, noise_of
from attention_np.gradcheck.verdict.judging import UNDECIDED, WRONG, Verdict, judge, size_of
from attention_np.gradcheck.words import explain as cause_of
from attention_np.gradcheck.words.reading import Ask

EPS, SINGLE = (float(np.finfo(x).eps) for x in (np.float64, np.float32))  # which kernels, too, add up in
PRECISIONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "tf32": 2.0**-10}  # the last bit of one
OF_OUTPUTS = (("backward", "forward"), ("gradient", "output"), ("input", "reference"))  # words for what is said
ROUNDED_ALIKE = 2  # last bits that what hardly moves may be off by: it is rounded alike close by, as a scale


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
    explain: Callable[[Report], str | None] | None = None,
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
        As for :func:`check`.
    explain : callable, optional
        ``explain(report)`` is called where something is wrong, before a cause is looked for here; what it returns is
        said of every array that is wrong, and None if it knows nothing. For kernels of attention it may ask
        :func:`attention_np.conventions.identify`, of which this module knows nothing.

    Returns
    -------
    Report
        One entry for the output, called "output" (of several, "output.0" and so on), and one for each input. NaN, where
        the reference has none, is wrong.

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
    check_functions(forward=forward, backward=backward, reference=reference)
    if explain is not None:
        check_functions(explain=explain)
    check_mapping(inputs)
    executor = as_executor(executor)
    nest, generator = Nest.of_arguments(inputs), as_generator(rng)
    if not nest.arrays:
        as_inputs(inputs)  # which says why nothing is moved
    kernel = _Kernel(forward, backward, nest, _last_bit(precision, nest.arrays.values()))
    functions = replace(kernel.functions, of_nests=reference, gradients=pull_back or backward)
    point = tuple(x.astype(np.float64) for x in nest.arrays.values())
    right = np.asarray(on_copies(functions.forward, *point))
    if right.dtype.itemsize < 8:
        raise TypeError(f"reference must compute in double precision, not return {right.dtype}")
    if right.shape != kernel.output.shape:
        raise ValueError(
            f"reference must return the shape of the kernel's output, {kernel.output.shape}: {right.shape}"
        )
    cotangents = np.stack([kernel.as_given(u) for u in generator.standard_normal((3, *right.shape))])
    with np.errstate(all="ignore"):
        answer, again = kernel.answer(cotangents[0]), kernel.answer(cotangents[0])
        problem = Problem(
            partial(on_copies, functions.forward),
            kernel.backward,
            dict(zip(nest.arrays, point, strict=True)),
            point,
            right,
            cotangents,
            {name: answer[name] for name in nest.arrays},
            seed=int(generator.integers(2**63)),
            dtype=right.dtype,
            unit=kernel.unit,
            parts=kernel.functions.parts,
            stateless=True,
        )
        how = as_method(method), Running(executor)
        known = _believed(problem, functions.backward, *how) if pull_back else measured_gradients(problem, *how)
        expected = kernel.named(right) | {
            name: np.asarray(evidence.measured, float).reshape(evidence.shape) for name, evidence in known.items()
        }
        near = ROUNDED_ALIKE * kernel.unit + SAME_CALL * SINGLE
        asks = {
            name: _AskPair(evidence, problem.inputs, functions.backward) if pull_back else Ask(evidence, problem.inputs)
            for name, evidence in known.items()
        }
        reports = {}
        for name, there in expected.items():
            fault = fault_of_form(answer[name], there) or another_answer(answer[name], again[name], near)
            if fault is not None:
                for word, of_output in OF_OUTPUTS if name not in known else ():
                    fault = fault.replace(word, of_output)
                reports[name] = InputReport(name, "reference", False, math.inf, size=there.size, diagnosis=fault)
        comparable = [name for name in expected if name not in reports]
        del again  # arrays may be large
        judged: dict[str, tuple[Details, str | None]] = {}
        for noise in kernel.noises(cotangents[0], {name: answer[name] for name in comparable}, generator):
            for name in comparable:
                judged[name] = _judged(kernel, answer[name], expected[name], noise[name], asks.get(name))
            if not any((details.verdict == WRONG).any() for details, _ in judged.values()):
                break  # floors only rise
        verdicts: dict[str, Verdict] = {}
        for name, (details, diagnosis) in judged.items():
            reports[name] = compared(name, "reference", details, kernel.unit, diagnosis)
            if name in known:
                verdicts[name] = Verdict(known[name], 0.0)
                verdicts[name].floor[:], verdicts[name].entries[:] = details.floor.ravel(), details.verdict.ravel()
        report = Report(tuple(reports[name] for name in expected))
        said = explain(report) if explain is not None and any(x.wrong for x in report) else None
        if said is not None:
            return Report(tuple(replace(x, diagnosis=said) if x.wrong else x for x in report))
        for name in (name for name in verdicts if reports[name].wrong):
            mistake = mistake_of(verdicts[name], known, verdicts)
            cause = cause_of(replace(mistake, ask=asks[name], exact=True)) or "no simple cause"
            reports[name] = replace(reports[name], diagnosis=cause)
    return Report(tuple(reports[name] for name in expected))


def _believed(problem: Problem, pull_back: Backward, method: str, running: Running) -> dict[str, Evidence]:
    """The gradients of the reference for all cotangents by its own backward, which is believed."""
    known = {}
    for name, x in problem.inputs.items():
        subject = subject_of(problem, name)
        known[name] = Evidence(name, problem, subject, method, running, np.zeros(x.shape), False)
    for k, u in enumerate(problem.cotangents):
        for (name, evidence), gradient in zip(known.items(), on_copies(pull_back, u, *problem.point), strict=True):
            if gradient is None or np.shape(gradient) != evidence.shape:
                raise ValueError(
                    f"reference's backward must return a gradient of the shape of {name}, {evidence.shape}: "
                    f"{kind_of(gradient) if gradient is None else np.shape(gradient)}"
                )
            evidence.slopes[k], evidence.looked[...] = np.ravel(gradient), True
    return known


@dataclass(frozen=True)
class _AskPair(Ask):
    """The answers where the reference is a pair: its own backward knows the slopes for any cotangent."""

    pull_back: Backward

    @property
    def is_quick(self) -> bool:
        """Whether a cotangent for each output may be asked: not many more than the kernel itself is asked for."""
        return bool(self.evidence.problem.output.size <= 200)

    def slopes(self, cotangents: Array) -> Array:
        """The reference's gradients for other cotangents."""
        position, there = list(self.inputs).index(self.evidence.name), list(self.inputs.values())
        return np.stack([np.asarray(on_copies(self.pull_back, u, *there)[position], float) for u in cotangents])


def _judged(
    kernel: _Kernel, claimed: Array, expected: Array, noise: Array, ask: Ask | None
) -> tuple[Details, str | None]:
    """The floor and the verdict of each entry of an answer, which `ask` knows of if it is a gradient; what to say."""
    largest = np.fmax(np.abs(claimed), np.abs(expected))
    of_reference = EPS * np.abs(expected).max(initial=0)  # what it leaves where all cancels
    if ask is not None:  # as where a kink of the reference is within the step
        of_reference = of_reference + ask.evidence.errors.reshape(expected.shape)
    floor = noise + np.fmax(kernel.unit * largest, kernel.smallest) / 2 + of_reference
    bound: Any = _of_positions(expected)
    subject = None if ask is None else ask.evidence.subject
    tiny = 0.0 if subject is None else float(subject.last_bits.max(initial=0) / size_of(subject.x))
    if ask is not None and (np.abs(claimed - expected) > UNDECIDABLE * floor).any():
        lost = ask.evidence.problem.once((ask.evidence.name, "lost"), lambda: _lost(kernel, ask))
        smallest = kernel.unit * np.abs(expected).max(initial=0) + 1.5 * lost + tiny  # (gradcheck.59)
        bound = np.fmax(bound, smallest)
    verdict = judge(claimed, expected, floor, bound, UNDECIDABLE * kernel.unit)
    verdict[~np.isfinite(expected)] = UNDECIDED
    diagnosis, hidden = None, (verdict == UNDECIDED) & ~(UNDECIDABLE * floor <= largest / 4)
    if (verdict == WRONG).any():
        diagnosis = "it is further from the reference than rounding explains"
    elif hidden.all() and (np.abs(expected) > tiny).any():
        diagnosis = "it could not be checked: rounding may be all that there is of it"
    return Details(claimed, expected, floor, verdict), diagnosis


def _of_positions(expected: Array) -> Array:
    """How far an entry may be off by what a kernel makes of positions in single precision, as angles are.

    A position times a frequency is off by the last bit of that product, which grows with the position: so up to as many
    last bits as an axis has rows. No input moves it, so noise does not show it.
    """
    rows = max(expected.shape[:-1], default=0)
    return np.asarray(rows * SINGLE * np.abs(expected).max(axis=-1, keepdims=True, initial=0)) if rows else np.zeros(())


def _lost(kernel: _Kernel, ask: Ask) -> Array:
    """What a kernel loses that keeps outputs which have rounded, as to one, and works its gradient out from those.

    From such an output it cannot tell its point from another one with the same: so each entry may be as far off as
    the part of the gradient that comes through such outputs is from that part at another point.
    """
    problem, x = ask.evidence.problem, ask.evidence.subject.x
    lost, far = np.zeros(x.shape), ask.evidence.rng("lost").choice([-0.25, 0.25], x.shape)  # half the slope
    for way in (far, -far):
        there = replace(ask, inputs={**ask.inputs, ask.evidence.name: x + way * x})
        with np.errstate(all="ignore"):
            same = np.abs(there.output - ask.output) <= kernel.unit * np.abs(ask.output)
        if same.any():
            (part,), (moved,) = (asked.slopes((same * problem.cotangents[0])[None]) for asked in (ask, there))
            lost = np.fmax(lost, np.abs(moved - part))
    return lost


class _Kernel:
    """A kernel at a point, in the dtypes that it takes; its answers in double precision."""

    def __init__(self, forward: Forward, backward: Backward, inputs: Nest, unit: float) -> None:
        self.point, self.unit = inputs.arrays, unit
        result = forward(*inputs.filled(x.copy() for x in self.point.values()).values())
        self.functions = FlatFunctions.of(forward, backward, inputs, result)
        outputs = self.functions.outputs
        self.output = np.asarray(result if outputs is None else outputs.joined(result))
        if not (self.output.dtype.kind == "f" or is_narrow(self.output.dtype)):
            raise TypeError(f"forward must return arrays of floating-point numbers, not {kind_of(result)}")
        self.smallest = max(float(np.spacing(np.zeros((), x.dtype))) for x in (self.output, *self.point.values()))

    def named(self, output: Array) -> dict[str, Any]:
        """The arrays of the output, by their names."""
        return parts_of(output, self.functions.parts) if self.functions.parts else {"output": output}

    def as_given(self, u: Array) -> Array:
        """A cotangent rounded to the dtypes of the outputs, as `backward` is given it."""
        outputs, given = self.functions.outputs, u.astype(self.output.dtype)
        return np.asarray(given if outputs is None else outputs.joined(outputs.split(given))).astype(np.float64)

    def backward(self, u: Array, *arrays: Array) -> list[Any]:
        """The gradients by the inputs, of arrays in any precision."""
        return list(self.answer(u, arrays).values())[-len(self.point) :]

    def answer(self, u: Array, point: Iterable[Array] | None = None) -> dict[str, Any]:
        """The outputs, and the gradients by the inputs, in double precision."""
        return {name: _in_double(x) for name, x in self._narrow_answer(u, point or self.point.values()).items()}

    def _narrow_answer(self, u: Array, point: Iterable[Array]) -> dict[str, Any]:
        """The same in the kernel's own dtypes."""
        arrays = [np.array(x, own.dtype) for x, own in zip(point, self.point.values(), strict=True)]
        output = np.asarray(self.functions.forward(*(x.copy() for x in arrays)))
        gradients = self.functions.backward(u.astype(self.output.dtype), *arrays)
        return self.named(output) | dict(zip(self.point, gradients, strict=True))

    def noises(self, u: Array, here: Mapping[str, Array], rng: np.random.Generator) -> Iterator[dict[str, Array]]:
        """How far rounding moves each entry of the answers `here`: on lines of points close by, then on others, too.

        Closest to the point rounding itself may choose the branch; farther away a branch is no rounding.
        """
        ways = [rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape) for x in (u, *self.point.values())]
        spacing, noises = self.unit, {name: np.zeros(x.shape) for name, x in here.items()}
        while spacing <= max(2.0**-5, self.unit):
            answers = [self._narrow_answer(*self._points(u, ways, spacing, k)) for k in range(POINTS)]
            for name, x in here.items():
                if any(answer[name] is None or np.shape(answer[name]) != x.shape for answer in answers):
                    continue
                largest = max(np.abs(x).max(initial=0), np.abs(u).max(initial=0)) if spacing > self.unit else np.inf
                for start in range(0, x.size, AT_ONCE):
                    some = slice(start, start + AT_ONCE)
                    curve = np.array([_in_double(np.reshape(answer[name], -1)[some]) for answer in answers])
                    curve = _without_a_branch(curve, self.unit * largest)
                    step = np.abs(curve[POINTS // 2] - curve[POINTS // 2 - 1])
                    noise = noise_of(curve) + ROUNDED_ALIKE * step * self.unit / spacing / UNDECIDABLE
                    largest_yet = noises[name].reshape(-1)[some]
                    np.fmax(largest_yet, noise, where=np.isfinite(noise), out=largest_yet)
            del answers
            yield noises
            spacing *= 4

    def _points(self, u: Array, ways: Sequence[Array], spacing: float, k: int) -> tuple[Array, list[Array]]:
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
