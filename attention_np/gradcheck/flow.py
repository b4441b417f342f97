"""One problem from its slopes to a report: measure, judge, put into words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import Evidence, outputs_noise, subject_of
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
    for name, evidence in known.items():
        if forms[name] is None:
            verdicts[name] = decide(evidence, options.method == "auto", options.rtol)
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
    noise = partial(outputs_noise, problem)
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


def measured_gradients(problem: Problem, method: str, running: Running = Running()) -> dict[str, Evidence]:  # noqa: B008
    """All entries of all inputs, at the best steps."""
    known = {}
    for name in problem.inputs:
        known[name] = prepared(problem, name, subject_of(problem, name), Options(method, 0.0, None), running)
        known[name].look(np.arange(problem.inputs[name].size), best=True)
    return known


def _measure_entries(evidence: Evidence, options: Options) -> None:
    """Measure what there is to measure; by differences if a complex step is refused on the way."""
    elements = np.arange(evidence.subject.x.size)
    most = options.most(elements.size, evidence.problem.size)
    if elements.size > most:
        elements = np.sort(evidence.rng("entries").choice(elements, most, replace=False))
    refusal = None
    try:
        evidence.look(elements, key=f"{evidence.name}/{evidence.method}")
        if evidence.method == COMPLEX and elements.size and not np.isfinite(evidence.measured[elements]).any():
            refusal = "the complex step gives no finite slope"
    except NotAnalyticError as error:
        if options.method != "auto":
            raise NotAnalyticError.at_input(evidence.name, error) from error
        refusal = str(error)
        evidence.looked[elements] = True
    if refusal is not None and options.method == "auto":
        evidence.note = refusal
        evidence.by_differences()


def _report(verdict: Verdict, diagnosis: str | None) -> InputReport:
    """On a gradient that was compared entry by entry."""
    evidence = verdict.evidence
    parts = (x.reshape(evidence.shape) for x in (evidence.claimed, evidence.measured, verdict.floor, verdict.entries))
    precision = evidence.unit if evidence.method == COMPLEX else evidence.unit ** (2 / 3)
    report = compared(evidence.name, evidence.method, Details(*parts), precision, diagnosis, verdict.too_small)
    return replace(report, note=evidence.note, escape=verdict.escape)


def _report_on_form(problem: Problem, name: str, evidence: Evidence | None, fault: str, method: str) -> InputReport:
    """On a gradient that cannot be compared."""
    method, note = (method, None) if evidence is None else (evidence.method, evidence.note)
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
    evidence, problem = verdict.evidence, verdict.evidence.problem
    name, (first, *others) = evidence.name, problem.cotangents

    def claims() -> dict[str, Array]:
        """The claimed gradients for all cotangents, and for one of zeros."""
        every = [problem.claims, *(problem.claim(u) for u in (*others, 0 * first))]
        return {other: np.stack([np.asarray(x[other], float) for x in every]) for other in verdicts}

    claimed = problem.once("claims", claims)
    right = {other: np.asarray(known[other].slopes, float).reshape(3, *known[other].shape) for other in known}
    return Mistake(
        name=name,
        inputs=problem.inputs,
        output=problem.output,
        cotangents=problem.cotangents,
        claimed=claimed[name][:3],
        right=right[name],
        floor=verdict.floor.reshape(evidence.shape),
        verdict=verdict.entries.reshape(evidence.shape),
        at_zero=claimed[name][3],
        others={
            other: (x, claimed[other][:3] if other in claimed else None) for other, x in right.items() if other != name
        },
        parts=problem.parts,
        ask=Ask(evidence, problem.inputs),
    )
