"""One check, in the order in which it looks.

1. *Measure.* How far rounding moves each output, since everything later is held against that; whether differences
   along one random direction contradict the complex step, which says the method; then the slopes of every entry, of
   all inputs before any is judged, since one input's are evidence on another's (`measuring`).
2. *Judge by the floor*: the method's own errors and the last bits of the entry. Most entries hold by that, for no call
   of the functions more (`judging`).
3. *One closer look* at the entries of which the floor says no, the least clear first, since it costs calls: the best
   steps; how far the last bits of the inputs move the two gradients; and while an entry is still wrong, whether the
   difference stays in a wider dtype, whether it is steady close by, and what saturated outputs lose. Where several
   prove wrong together, clearer ones are believed: so what is wrong takes at most five times the calls of what holds,
   as a rule; by differences up to nine times in inputs of a few entries, since each is tried with all steps, and up to
   thirteen for a single number next to a kink, as a jump takes 240 calls to look for.
   If differences contradict the complex step, or tell something where it does not, the input is measured again
   by differences, and judged again. If no entry of it can be decided, it is neither right nor wrong, and does not pass.
4. *The whole*: along random directions if only a sample was looked at, and if nothing is wrong, for other cotangents
   and close by.
5. *Words.* Kinks first, where there is no gradient to be wrong; then the first cause that explains every entry for
   three cotangents, and does so again at another point (`diagnosis`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG, relative_error
from attention_np.gradcheck.diagnosis import Evidence, diagnose, diagnose_shape
from attention_np.gradcheck.diagnosis.asking import Asked
from attention_np.gradcheck.findings import Details
from attention_np.gradcheck.judging.measured import Candidate, Measured, Options
from attention_np.gradcheck.judging.verdicts import RESOLUTION, decide, first_verdict
from attention_np.gradcheck.measuring.functions import dtype_of, form_of
from attention_np.gradcheck.measuring.numerical import METHODS
from attention_np.gradcheck.measuring.probes import Cusp, cusps, refusal_of, rounding_of, why_not_analytic
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.slopes import NotAnalyticError
from attention_np.gradcheck.measuring.subject import Subject, rows_in
from attention_np.gradcheck.reporting import InputReport, Interrupted, Report, compared

__all__ = ["evidence_of", "examine", "prepared"]

Array = npt.NDArray[Any]

TOLERANCE = (
    "its slopes do not reproduce at points close by: forward {} a tolerance of its own, of about {:.0e} of the "
    "gradient, as solvers and series are. Make that smaller, or allow it by rtol="
)
# Real numbers alone do not tell the one from the other.
SEEMS = dict(zip(METHODS, ("seems to be computed to", "has kinks there, or is computed to"), strict=True))
JUMPS = "forward has other slopes close by, as beyond a kink, or where the sign of a vector or an order is left open"
SLIGHT = 1e-2  # normwise, of every input: solvers are off by less of their derivatives, at 1e-3, a usual tolerance
PERHAPS_A_SOLVER = (
    "no simple cause; all of it is {:.0e} of the gradient: if forward is a solver, its own error may be as large. See "
    "whether a smaller tolerance makes it smaller, or allow it by rtol="
)


def examine(candidate: Candidate, subjects: Mapping[str, Subject], options: Options, running: Running) -> Report:
    """A report on each input, of `subjects` by name.

    Raises
    ------
    Interrupted
        With a report on what was found until then.
    """
    faults = candidate.first.faults
    forms = {
        name: form_of(gradient, x)
        for (name, x), gradient in zip(candidate.inputs.items(), candidate.first.gradients, strict=True)
    }
    known: dict[str, Measured] = {}

    def unfinished() -> tuple[InputReport, ...]:
        return tuple(_report_on_part(name, known.get(name), forms[name], candidate) for name in candidate.inputs)

    if running.checkpoint:
        running.checkpoint.findings = unfinished
    try:
        for name, subject in subjects.items():
            if name not in faults:
                known[name] = prepared(candidate, name, subject, options, running)
                running.advance(0)
        sound = {name: found for name, found in known.items() if forms[name] is None}
        for found in known.values():
            _look_at_all(found, options)
        for found in sound.values():
            decide(found, options)
            if found.tolerance:
                jumps = math.isinf(found.tolerance)
                found.remark(JUMPS if jumps else TOLERANCE.format(SEEMS[found.method], found.tolerance))
        reports = [_report_on(name, known, sound, forms, options, candidate) for name in candidate.inputs]
    except KeyboardInterrupt:
        raise Interrupted(Report(unfinished())) from None
    return Report(tuple(reports))


def _report_on(
    name: str,
    known: Mapping[str, Measured],
    sound: Mapping[str, Measured],
    forms: Mapping[str, str | None],
    options: Options,
    candidate: Candidate,
) -> InputReport:
    form, first = forms[name], candidate.first
    if name in first.faults:
        return _unequal(name, options.method, candidate.inputs[name], first.faults[name])
    if form is not None:
        report = _report_on_form(known[name], form)
    else:
        report = _report(known[name], _diagnosis(known[name], known, sound, options))
    gradient, inputs = first.gradients[list(candidate.inputs).index(name)], candidate.inputs
    dtype = dtype_of(gradient, inputs[name], inputs.values(), first.output) if form is None else None
    besides = [said for said in (first.writes.get(name), dtype, report.diagnosis) if said is not None]
    return replace(report, ok=not besides, diagnosis="; besides: ".join(besides) or None)


def prepared(candidate: Candidate, name: str, subject: Subject, options: Options, running: Running) -> Measured:
    """One input, before anything is measured, with the method that fits it."""
    subject = candidate.once(name, "rounding", lambda: _heard(candidate, name, subject, running.memory))
    method, reason = options.method, None
    witnessed = method == METHODS[0] and options.witnessed  # differences of every entry tell more than those of a trial
    if method != METHODS[1] and subject.x.size and not witnessed:
        reason = why_not_analytic(subject, candidate.rng(name, "analytic"))
    if method == "auto":
        method = METHODS[0] if reason is None else METHODS[1]
    found = Measured(name, candidate, subject, method, running, note=reason)
    if options.method == METHODS[0] and reason is not None and not _cusps(found):
        raise NotAnalyticError(f"input {name}: {reason}, so the complex step does not apply: use central")
    return found


def _heard(candidate: Candidate, name: str, subject: Subject, memory: int) -> Subject:
    """The same, with how many moves may go through at once, and how far rounding moves each output."""
    if subject.batched:
        measured = candidate.once("each", "memory", lambda: rows_in(memory, subject))  # one call is like another
        subject = replace(subject, rows=min(measured, rows_in(memory, replace(subject, batched=False))))
    return replace(subject, noise=rounding_of(subject, candidate.rng(name, "rounding")))


def _cusps(found: Measured) -> list[Cusp]:
    """The entries of an input where forward has no slope."""
    return found.candidate.once(
        found.name, "cusps", lambda: cusps(found.subject, found.rng("cusps"), found.running.memory)
    )


def _may_break(found: Measured, options: Options) -> bool:
    """Whether it takes a look of its own to see a kink: differences have what the slope jumps by among their errors.

    Where both methods are asked, those of an entry whose complex step holds are looked at in the report on them.
    """
    if not options.witnessed or not (found.verdict == HOLDS).all():
        return True
    known = RESOLUTION[METHODS[1]] * np.abs(found.numerical[0])
    return found.method == METHODS[1] and bool((found.errors > known).any())


def _look_at_all(found: Measured, options: Options) -> None:
    """Measure what there is to measure; by differences if a complex step is refused on the way."""
    elements = _sample(found, options.most(found.subject.x.size, found.candidate.size))
    refusal = None
    try:
        found.look(elements, key=f"{found.name}/{found.method}")
        if elements.size and not np.isfinite(found.numerical[0, elements]).any():
            refusal = "the complex step gives no finite slope"
    except NotAnalyticError as error:
        if options.method != "auto":
            raise NotAnalyticError(f"input {found.name}: {error}") from error
        refusal = str(error).partition(",")[0]
    if refusal is not None and options.method == "auto" and found.method == METHODS[0]:
        found.method, found.note = METHODS[1], refusal
        found.look(elements, key=f"{found.name}/{found.method}")


def _sample(found: Measured, most: int) -> Array:
    """The entries to look at: all, or so many at random."""
    elements = np.arange(found.subject.x.size)
    if elements.size <= most:
        return elements
    return np.sort(found.candidate.rng(found.name, "entries").choice(elements, most, replace=False))


def _report_on_part(name: str, found: Measured | None, form: str | None, candidate: Candidate) -> InputReport:
    """On an input that not everything is known of: the entries that hold so far."""
    fault, writes = form or candidate.first.faults.get(name), candidate.first.writes.get(name)
    if found is None or fault is not None:
        return _unequal(name, "auto" if found is None else found.method, candidate.inputs[name], fault or writes)
    found.verdict[first_verdict(found)] = UNCHECKED
    return replace(_report(found, writes), ok=False, details=None)


def _unequal(name: str, method: str, x: Array, diagnosis: str | None) -> InputReport:
    """On a gradient that was not compared, as there is no sense in it, or no time was left."""
    return InputReport(
        name, method, False, math.nan if diagnosis is None else math.inf, size=x.size, diagnosis=diagnosis
    )


def _report_on_form(found: Measured, fault: str) -> InputReport:
    """On a gradient that cannot be compared."""
    x, claimed = found.subject.x, found.candidate.claimed(found.name)
    cause = None
    if claimed.dtype.kind == "f" and claimed.shape != x.shape:
        cause = diagnose_shape(claimed, found.numerical[0].reshape(x.shape))
    report = _unequal(found.name, found.method, x, f"{fault}: {cause}" if cause else fault)
    return replace(report, note=found.note)


def _report(found: Measured, diagnosis: str | None) -> InputReport:
    """On a gradient that was compared entry by entry."""
    claimed = found.candidate.claimed(found.name)
    parts = (claimed, *(x.reshape(claimed.shape) for x in (found.numerical[0], found.floor, found.verdict)))
    looked = np.flatnonzero(found.verdict != UNCHECKED)
    missing = looked[~np.isfinite(found.numerical[0, looked])]
    if looked.size and missing.size == looked.size and diagnosis is None:
        diagnosis = "it could not be checked"
    eps = float(np.finfo(claimed.dtype).eps)
    precision = eps if found.method == METHODS[0] else eps ** (2 / 3)
    report = compared(found.name, found.method, Details(*parts), precision, diagnosis)
    report = replace(report, note=found.note, escape=found.escape)
    return report.with_note(_of_missing(found, missing)) if missing.size else report


def _diagnosis(
    found: Measured, known: Mapping[str, Measured], sound: Mapping[str, Measured], options: Options
) -> str | None:
    """What is wrong with a gradient, in a sentence; None if nothing is."""
    shape = found.subject.x.shape
    verdict = found.verdict.reshape(shape).copy()
    broken = None
    for cusp in _cusps(found) if _may_break(found, options) else ():
        broken = broken or str(cusp)
        verdict[cusp.index] = UNDECIDED  # it has no gradient there
    if not (verdict == WRONG).any():
        return broken or found.fault
    cause = _cause(found, verdict, known, sound, options.constants)
    return cause if broken is None else f"{broken}; besides, in other entries: {cause}"


def _cause(
    found: Measured,
    verdict: Array,
    known: Mapping[str, Measured],
    sound: Mapping[str, Measured],
    constants: Mapping[str, float],
) -> str:
    """What the entries that are wrong look like."""
    cause = diagnose(evidence_of(found, verdict, known, sound, constants))
    if cause is not None:
        return cause
    errors = {
        name: relative_error(x.candidate.claimed(name).ravel()[x.looked], x.numerical[0, x.looked])[0]
        for name, x in sound.items()
    }
    if found.method == METHODS[1] and max(errors.values()) < SLIGHT:
        return PERHAPS_A_SOLVER.format(errors[found.name])
    return "no simple cause"


def evidence_of(
    found: Measured,
    verdict: Array,
    known: Mapping[str, Measured],
    sound: Iterable[str],
    constants: Mapping[str, float],
) -> Evidence:
    """What is known of an input with some entries that are wrong; `sound`: whose claims have the form of the input."""
    candidate, u = found.candidate, found.candidate.cotangents
    asked = (*u[1:], np.zeros(u.shape[1:]))
    answers = candidate.once("each", "claims", lambda: [candidate.claims, *map(candidate.gradients, asked)])
    return Evidence(
        name=found.name,
        inputs=candidate.inputs,
        output=candidate.first.output,
        cotangents=u,
        analytic={name: np.stack([np.asarray(answer[name]) for answer in answers[:3]]) for name in sound},
        numerical={name: m.numerical.reshape(3, *m.subject.x.shape) for name, m in known.items()},
        floor=found.floor.reshape(found.subject.x.shape),
        verdict=verdict,
        at_zero=np.asarray(answers[3][found.name]),
        constants=constants,
        ask=Asked(found, candidate.inputs),
        parts=candidate.parts,
    )


def _of_missing(found: Measured, missing: Array) -> str:
    count = f"{missing.size} {'entry' if missing.size == 1 else 'entries'}"
    refusal = refusal_of(found.subject, missing[0])
    why = "" if refusal is None else f": where one of them moves, it raises {refusal}"
    return f"forward has no finite slope by the numerical method in {count}{why}"
