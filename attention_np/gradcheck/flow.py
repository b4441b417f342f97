"""One problem from its slopes to a report: measure, judge, put into words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.evidence import Evidence, outputs_noise
from attention_np.gradcheck.problem.calls import NotAnalyticError, fault_of_form
from attention_np.gradcheck.problem.problem import Problem
from attention_np.gradcheck.report.findings import Details, InputReport, compared
from attention_np.gradcheck.report.reporting import Report
from attention_np.gradcheck.slopes.measuring import CENTRAL, COMPLEX, Running
from attention_np.gradcheck.slopes.moves import Subject
from attention_np.gradcheck.slopes.probes import tried
from attention_np.gradcheck.verdict.deciding import decide
from attention_np.gradcheck.verdict.judging import Verdict
from attention_np.gradcheck.words import explain
from attention_np.gradcheck.words.reading import Ask, Mistake
from attention_np.gradcheck.words.shapes import diagnose_shape

Array = npt.NDArray[Any]

WORK = 10**9  # entries looked at, times the entries that each of those looks computes with


@dataclass(frozen=True)
class Options:
    """How the inputs of one problem are looked at, by one method."""

    method: str
    rtol: float
    max_entries: int | Literal["auto"] | None

    def most(self, size: int, total: int) -> int:
        """How many entries are looked at one by one, of an input of so many; `total`: of all inputs and the output."""
        if self.max_entries == "auto":
            return min(size, max(100, WORK // max(total, 1)))
        return size if self.max_entries is None else min(size, self.max_entries)


def report_by(problem: Problem, subjects: Mapping[str, Subject], options: Options, running: Running) -> Report:
    """A report on each input by one method."""
    forms = {
        name: problem.faults.get(name) or fault_of_form(problem.claims[name], x) for name, x in problem.inputs.items()
    }
    known: dict[str, Evidence] = {}
    verdicts: dict[str, Verdict] = {}
    for name, subject in subjects.items():  # all before any is judged: one input's slopes are evidence on another's
        if name not in problem.faults:
            known[name] = prepared(problem, name, subject, options, running)
            _measure_entries(known[name], options)
    for name, found in known.items():
        if forms[name] is None:
            verdicts[name] = decide(found, options.method == "auto", options.rtol)
    reports = []
    for name, fault in forms.items():
        if fault is not None:
            reports.append(_report_on_form(problem, name, known.get(name), fault, options.method))
            continue
        said = problem.writes.get(name), _diagnosis(verdicts[name], known, verdicts)
        reports.append(_report(verdicts[name], "; besides: ".join(x for x in said if x is not None) or None))
    return Report(tuple(reports))


def prepared(problem: Problem, name: str, subject: Subject, options: Options, running: Running) -> Evidence:
    """One input, before anything is measured, with the method that fits it."""

    def noise() -> Array:
        return problem.once("noise", lambda: outputs_noise(problem))

    trial = problem.once((name, "trial"), lambda: tried(subject, problem.rng(name, "trial"), noise))
    method = options.method
    if method == "auto":
        method = COMPLEX if trial.refusal is None else CENTRAL
    if method == COMPLEX and trial.refusal is not None and not trial.bends:
        raise NotAnalyticError.at_input(name, trial.refusal)
    if method == COMPLEX:
        return Evidence(name, problem, subject, method, running, trial.unseen, trial.bends)
    note, zeros = trial.refusal if options.method == "auto" else None, np.zeros(subject.x.shape)
    return Evidence(name, problem, replace(subject, noise=noise()), method, running, zeros, trial.bends, note)


def _measure_entries(found: Evidence, options: Options) -> None:
    """Measure what there is to measure; by differences if a complex step is refused on the way."""
    elements = np.arange(found.subject.x.size)
    most = options.most(elements.size, found.problem.size)
    if elements.size > most:
        elements = np.sort(found.rng("entries").choice(elements, most, replace=False))
    refusal = None
    try:
        found.look(elements, key=f"{found.name}/{found.method}")
        if found.method == COMPLEX and elements.size and not np.isfinite(found.measured[elements]).any():
            refusal = "the complex step gives no finite slope"
    except NotAnalyticError as error:
        if options.method != "auto":
            raise NotAnalyticError.at_input(found.name, error) from error
        refusal = str(error)
        found.looked[elements] = True
    if refusal is not None and options.method == "auto":
        found.note = refusal
        found.by_differences()


def _report(verdict: Verdict, diagnosis: str | None) -> InputReport:
    """On a gradient that was compared entry by entry."""
    found = verdict.evidence
    parts = (x.reshape(found.shape) for x in (found.claimed, found.measured, verdict.floor, verdict.entries))
    precision = found.unit if found.method == COMPLEX else found.unit ** (2 / 3)
    report = compared(found.name, found.method, Details(*parts), precision, diagnosis, verdict.too_small)
    return replace(report, note=found.note, escape=verdict.escape)


def _report_on_form(problem: Problem, name: str, found: Evidence | None, fault: str, method: str) -> InputReport:
    """On a gradient that cannot be compared."""
    claimed, note = problem.claims.get(name), None
    if found is not None:
        method, note = found.method, found.note
        if isinstance(claimed, np.ndarray) and claimed.dtype.kind == "f" and claimed.shape != found.shape:
            cause = diagnose_shape(problem.claimed(name), found.measured.reshape(found.shape))
            fault = f"{fault}: {cause}" if cause else fault
    size, writes = problem.inputs[name].size, problem.writes.get(name)
    diagnosis = fault if writes is None else f"{writes}; besides: {fault}"
    return InputReport(name, method, False, math.inf, size=size, diagnosis=diagnosis, note=note)


def _diagnosis(verdict: Verdict, known: Mapping[str, Evidence], verdicts: Mapping[str, Verdict]) -> str | None:
    """What is wrong with a gradient, in a sentence; None if nothing is."""
    broken = str(verdict.kinks[0]) if verdict.kinks else None
    if not verdict.wrong.size:
        return broken or verdict.fault
    cause = explain(mistake_of(verdict, known, verdicts)) or no_simple_cause(verdict.evidence.name, verdicts)
    return cause if broken is None else f"{broken}; besides, in other entries: {cause}"


def no_simple_cause(name: str, verdicts: Mapping[str, Verdict]) -> str:
    """What is said of an error without a name; of a slight one, what may be as slight."""
    errors = {}
    for path, verdict in verdicts.items():
        largest = np.nanmax(np.abs(verdict.evidence.measured), initial=0)
        errors[path] = float(np.nanmax(verdict.difference, initial=0) / largest) if largest else math.inf
    if not 0 < max(errors.values()) < 1e-3:  # so much a solver or a series may be off by of its derivatives
        return "no simple cause"
    return (
        f"no simple cause; all of it is {errors[name]:.0e} of the largest entry: another epsilon, or the tolerance of "
        "a solver, a series or an integrator, may be as large. See whether a smaller one makes it smaller, or allow it "
        "by rtol="
    )


def mistake_of(verdict: Verdict, known: Mapping[str, Evidence], verdicts: Iterable[str]) -> Mistake:
    """What is known of a wrong gradient; `verdicts`: the inputs whose claims have their form."""
    found, problem = verdict.evidence, verdict.evidence.problem
    first, *others = problem.cotangents
    asked = problem.once("claims", lambda: [problem.claims, *(problem.claim(u) for u in (*others, 0 * first))])
    claimed = {name: np.stack([np.asarray(x[name], float) for x in asked[:3]]) for name in verdicts}
    right = {name: np.asarray(other.slopes, float).reshape(3, *other.shape) for name, other in known.items()}
    return Mistake(
        name=found.name,
        inputs=problem.inputs,
        output=problem.output,
        cotangents=problem.cotangents,
        claimed=claimed[found.name],
        right=right[found.name],
        floor=verdict.floor.reshape(found.shape),
        verdict=verdict.entries.reshape(found.shape),
        at_zero=np.asarray(asked[3][found.name], float),
        others={name: (x, claimed.get(name)) for name, x in right.items() if name != found.name},
        parts=problem.parts,
        ask=Ask(found, problem.inputs),
    )
