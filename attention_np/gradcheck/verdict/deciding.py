"""The verdict on an input: low floors first, then a closer look at what differs by more.

Floors are low at first: the method's own errors, and the last bits of the entry. Entries that differ by more get a
closer look, all together where that takes few calls, then a few at a time, the least clear first. No entry is wrong by
the complex step alone: differences must say so, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import DOORS, Evidence, neighbor_differences, neighbor_in_last_bits, noise_of_pair
from attention_np.gradcheck.problem.calls import REFUSALS, NotAnalyticError
from attention_np.gradcheck.problem.problem import Problem
from attention_np.gradcheck.slopes.kinks import kinks
from attention_np.gradcheck.slopes.measuring import CENTRAL, COMPLEX, directional_slopes
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import flattened, sizes
from attention_np.gradcheck.slopes.probes import contradiction, refusal_of
from attention_np.gradcheck.verdict.elsewhere import fault_elsewhere
from attention_np.gradcheck.verdict.judging import (
    COARSE,
    GROSS,
    HOLDS,
    OWN_ROUNDING,
    RESOLUTION,
    UNCHECKED,
    UNDECIDED,
    WRONG,
    Escape,
    Verdict,
)

DIRECTIONS = 8  # random ones of the whole gradient, beside a sample of its entries
CLOSER = 2  # entries looked at together; if all prove wrong, clearer ones are believed


def decide(evidence: Evidence, auto: bool, rtol: float) -> Verdict:
    """The verdict on an input that was looked at.

    With `auto`, an input whose complex step proves wrong is measured again by differences.
    """
    verdict = Verdict(evidence, rtol)
    reason = settle(verdict)
    if reason is not None:
        if not auto:
            raise NotAnalyticError.at_input(evidence.name, reason)
        evidence.note = reason
        evidence.by_differences()
        verdict = Verdict(evidence, rtol)
        settle(verdict)
    if not evidence.looked.all() and evidence.looked.size:
        _project(verdict)
    if evidence.bends:
        verdict.kinks = evidence.problem.once(
            (evidence.name, "kinks"), lambda: kinks(evidence.subject, evidence.rng("kinks"))
        )
        for kink in verdict.kinks:
            verdict.entries[np.ravel_multi_index(kink.index, evidence.shape) if kink.index else 0] = UNDECIDED
    if not verdict.wrong.size and not verdict.kinks and verdict.fault is None and verdict.looked.size:
        verdict.fault = _undecided(verdict) or fault_elsewhere(verdict)
    verdict.count_too_small()  # by the floors that they were judged by
    seen = verdict.entries != WRONG
    with np.errstate(all="ignore"):
        verdict.floor[seen] = np.fmax(verdict.floor, evidence.unseen.ravel())[seen]
    return verdict


def settle(verdict: Verdict) -> str | None:
    """Judge by low floors first, then look closer; why the complex step is not to be believed, if it is not."""
    evidence, difference = verdict.evidence, verdict.difference
    doubtful = verdict.begin(verdict.looked)
    if doubtful.size:
        doubtful = verdict.add(doubtful, _noise_of_claims(evidence, doubtful))
    doubtful = doubtful[np.lexsort([(difference / verdict.floor)[doubtful]])]
    while doubtful.size:
        some, doubtful = doubtful[:CLOSER], doubtful[CLOSER:]
        first = verdict.floor[some].copy()
        reason = _look_closer(verdict, some)
        if reason is not None:
            return reason
        if (verdict.entries[some] == WRONG).all():  # what is clearer than these floors tell is believed
            times = max(1.0, float((verdict.floor[some] / first).max()))
            clear = difference[doubtful] > UNDECIDABLE * times * verdict.floor[doubtful]
            verdict.floor[doubtful[clear]] *= times
            doubtful = doubtful[~clear]
    return None


def _noise_of_claims(evidence: Evidence, some: Array) -> Array:
    """How far rounding moves the claims: what they are in a wider dtype, or else in the last bits around."""
    problem = evidence.problem
    if problem.wider is not None and np.asarray(problem.wider.claims[evidence.name]).dtype == problem.wider.dtype:
        there = problem.wider.claimed(evidence.name).ravel()[some]
        return np.asarray(np.abs(evidence.claimed[some] - there), float)
    claims = problem.once("claims next door", lambda: _neighbor_claims(problem))
    moves = [np.abs(np.ravel(claimed[evidence.name])[some] - evidence.claimed[some]) for claimed in claims]
    return np.fmax.reduce(np.array(moves)) if moves else np.zeros(some.size)


def _neighbor_claims(problem: Problem) -> list[dict[str, Any]]:
    """All claims at points in the last bits around."""
    rng, (u, inputs) = np.random.default_rng(problem.seed), problem.question
    claims = []
    for _ in range(DOORS):
        v, *there = (neighbor_in_last_bits(x, rng) for x in (u, *inputs))
        try:
            claims.append(problem.claim(v, there))
        except REFUSALS:
            continue
    return claims


def _look_closer(verdict: Verdict, some: Array) -> str | None:
    """Raise the floors of some entries by what else can be blamed; why the complex step is not to be believed."""
    evidence = verdict.evidence
    if evidence.method == CENTRAL:
        evidence.look(some, best=True)
        verdict.begin(some)
    difference = evidence.claimed[some] - evidence.measured[some]
    scale = max(np.nanmax(np.abs(evidence.measured)), verdict.usual)
    slight = np.abs(difference) <= max(RESOLUTION[COMPLEX], COARSE * evidence.unit) * scale
    noise = noise_of_pair(
        evidence.pair(some),
        evidence.problem.question,
        difference,
        lambda: evidence.in_wider_dtype(some),
        evidence.rng("noise"),
        slight,
    )
    wrong = verdict.add(some, noise)
    if not wrong.size or (evidence.method == CENTRAL and evidence.problem.wider is None):
        return None
    return _second_opinion(verdict, wrong)


def _second_opinion(verdict: Verdict, wrong: Array) -> str | None:
    """No entry is wrong unless differences in the widest dtype say so; why they contradict the complex step, if so.

    They do if they say something else, and say what is claimed: two against one; or if they say something else grossly.
    """
    evidence = verdict.evidence
    steps, claimed = evidence.measured[wrong], evidence.claimed[wrong]
    other = evidence.second_opinion(wrong)
    coarse = UNDECIDABLE * other.errors >= np.abs(claimed - steps)
    if coarse.any():
        better = evidence.second_opinion(wrong[coarse], best=True)
        for kept, new in zip(other, better, strict=True):
            kept[coarse] = new
    with np.errstate(all="ignore"):
        slopes = other.values[:, 0]
        apart = np.abs(slopes - steps).astype(float)
        sure = apart > np.fmax(UNDECIDABLE * (other.errors + verdict.floor[wrong]), verdict.bound)
        gross = (apart > GROSS * np.fmax(np.abs(slopes), np.abs(steps))) & other.responsive.astype(bool)
        believed = sure & (gross | (np.abs(slopes - claimed) < apart / 10))
    if evidence.method == CENTRAL:
        verdict.add(wrong, np.where(np.isfinite(other.errors), other.errors + apart, 0))
        return None
    if believed.any():
        k = int(np.flatnonzero(believed)[0])
        return contradiction(float(steps[k]), float(slopes[k]))
    verdict.add(wrong, np.where(np.isfinite(other.errors), other.errors, 0))
    return None


def _undecided(verdict: Verdict) -> str | None:
    """What is wrong if no entry holds: nothing, if the gradient is zero within the bound."""
    evidence, looked = verdict.evidence, verdict.looked
    missing = verdict.missing
    if missing.size:
        count = f"{missing.size} {'entry' if missing.size == 1 else 'entries'}"
        refusal = refusal_of(evidence.subject, missing[0])
        why = "" if refusal is None else f": where one of them moves, it raises {refusal}"
        return (
            f"it could not be checked: forward has no slope by the numerical method in {count}{why}. Check "
            "it behind a projection onto what it allows"
        )
    if (verdict.entries[looked] == HOLDS).any() or (np.abs(evidence.measured[looked]) <= verdict.bound).all():
        return None
    largest = np.fmax(np.abs(evidence.claimed), np.abs(evidence.measured))
    nothing = max(GROSS, COARSE * evidence.unit) * verdict.usual  # beside what a gradient of such outputs can be
    seen = UNDECIDABLE * verdict.floor <= np.fmax(nothing, largest / 4)
    return None if seen[looked].any() else "it could not be decided: rounding alone may be as large as it is"


def _project(verdict: Verdict) -> None:
    """Hold the whole gradient against slopes along random directions; look at the entries behind what is off."""
    evidence = verdict.evidence
    x, claimed = evidence.subject.x, evidence.claimed
    size = sizes(x)
    directions = size * evidence.rng("directions").standard_normal((DIRECTIONS, *x.shape))
    flat = flattened(directions)
    slopes = directional_slopes(evidence.subject, directions, evidence.method, evidence.running)
    difference = flat @ claimed - slopes.values[:, 0]
    noise = np.abs(
        neighbor_differences(
            evidence.directional_pair(directions), evidence.problem.question, evidence.rng("directions")
        )
        - difference
    ).max(axis=0)
    noise = np.where(np.isfinite(noise), noise, 0)
    floor = noise + slopes.errors + OWN_ROUNDING * evidence.unit * np.linalg.norm(flat * claimed, axis=1)
    allowed = verdict.rtol * float(np.abs(claimed).max()) * np.linalg.norm(flat, axis=1)
    threshold = UNDECIDABLE * floor + 4 * allowed
    off = np.flatnonzero(np.abs(difference) > threshold)
    if off.size and not verdict.wrong.size:
        evidence.look(_hunt(verdict, flat[off[0]]))
        settle(verdict)
    verdict.escape = Escape(
        entries=int((verdict.entries != UNCHECKED).sum()),
        size=x.size,
        directions=DIRECTIONS,
        threshold=float(threshold.max()),
        norm=float(size.min() * np.linalg.norm(claimed)),
    )
    if off.size and not verdict.wrong.size:
        verdict.fault = (
            f"along {off.size} of {DIRECTIONS} random directions the gradient differs from the slope of forward, yet "
            "no single entry stands out"
        )


def _hunt(verdict: Verdict, direction: Array) -> Array:
    """The few entries that make most of the difference of the two gradients along a direction, found by halving."""
    evidence, elements = verdict.evidence, np.flatnonzero(direction)
    while len(elements) > 64:
        halves = np.array_split(elements, 2)
        parts = np.zeros((2, direction.size))
        for part, half in zip(parts, halves, strict=True):
            part[half] = direction[half]
        slopes = directional_slopes(
            evidence.subject, parts.reshape(-1, *evidence.shape), evidence.method, evidence.running
        )
        elements = halves[int(np.argmax(np.abs(parts @ evidence.claimed - slopes.values[:, 0])))]
    return elements
