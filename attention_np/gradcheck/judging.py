"""A verdict on every entry of a gradient: by the method's own errors first, and by closer looks where those say no."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDABLE, UNDECIDED, WRONG, judge
from attention_np.gradcheck.noise import noise_floor, wider_difference
from attention_np.gradcheck.numerical import METHODS, measure
from attention_np.gradcheck.probes import NOT_ANALYTIC
from attention_np.gradcheck.problem import Measured
from attention_np.gradcheck.report import Escape
from attention_np.gradcheck.slopes import NotAnalyticError, sizes

__all__ = ["decide", "first_verdict"]

Array = npt.NDArray[Any]

COMPLEX_STEP, CENTRAL = METHODS
RESOLUTION = {COMPLEX_STEP: 1e-10, CENTRAL: 1e-7}  # the relative error of an entry that must be seen
LEAST_RESOLUTION = 1e3  # units in the last place of the gradient's dtype
OWN_ROUNDING = 4  # units in the last place of an entry that are no reason to look closer
GROSS = 1e-6  # a relative error of an entry
CLOSER = 64  # entries that are looked at in a wider dtype at a time
WITNESSES = 16  # wrong entries whose complex step is held against differences


def decide(found: Measured, method: str, rtol: float, directions: int) -> None:
    """The verdicts on all entries that were looked at, and on the whole if those are not all.

    With `method` "auto", an input whose complex step proves wrong is measured again by differences.
    """
    _settle(found, rtol)
    if found.method == COMPLEX_STEP and (found.verdict == WRONG).any():
        reason = _contradiction(found)
        if reason is not None and method != "auto":
            raise NotAnalyticError(f"input {found.name}: {reason}, so the complex step does not apply: use central")
        if reason is not None:
            found.method, found.note = CENTRAL, reason
            found.look(found.looked_at)
            _settle(found, rtol)
    if found.looked_at.size < found.subject.x.size:
        _project(found, rtol, directions)


def first_verdict(found: Measured) -> Array:
    """The verdicts by the method's own errors and the last bits of the entries; the entries to look at more closely."""
    gradient = found.problem.claimed(found.name)
    claimed, numerical = gradient.ravel(), found.numerical[0]
    last_bits = float(np.finfo(gradient.dtype).eps) * np.fmax(np.abs(claimed), np.abs(numerical))
    found.floor = found.errors + OWN_ROUNDING * last_bits
    found.verdict = judge(claimed, numerical, found.floor, _resolution(found))
    return np.flatnonzero((found.verdict == WRONG) | (found.verdict == UNDECIDED))


def _resolution(found: Measured) -> float:
    eps = float(np.finfo(found.problem.claimed(found.name).dtype).eps)
    return max(RESOLUTION[found.method], LEAST_RESOLUTION * eps)


def _settle(found: Measured, rtol: float) -> None:
    claimed = found.problem.claimed(found.name).ravel()
    doubtful = first_verdict(found)
    if doubtful.size and found.method == CENTRAL:
        found.look(doubtful, best=True)
        doubtful = first_verdict(found)
    if doubtful.size:
        first, inputs = found.problem.first.cotangent, list(found.problem.inputs.values())
        noise = noise_floor(found.pair(doubtful), first, inputs, found.problem.rng(found.name, "noise"))
        found.floor[doubtful] += noise
        found.verdict = judge(claimed, found.numerical[0], found.floor, _resolution(found))
        _look_closer(found, claimed)
    if rtol:
        difference = np.abs(claimed - found.numerical[0])
        largest = np.fmax(np.abs(claimed), np.abs(found.numerical[0])).max(initial=0)
        found.verdict[difference <= rtol * largest] = HOLDS


def _look_closer(found: Measured, claimed: Array) -> None:
    """Before an entry is called wrong: in a wider dtype, is it still? The least clear ones first."""
    wrong = np.flatnonzero(found.verdict == WRONG)
    difference = np.abs(claimed - found.numerical[0])
    with np.errstate(all="ignore"):
        wrong = wrong[np.argsort(difference[wrong] / found.floor[wrong], kind="stable")]
    for start in range(0, len(wrong), CLOSER):
        some = wrong[start : start + CLOSER]
        found.look(some, best=True)
        change = np.fmax(_lost(found, claimed), found.errors)[some]
        if found.problem.wide:
            inputs = list(found.problem.inputs.values())
            wider = wider_difference(found.pair(some), found.problem.first.cotangent, inputs)
            if wider is not None:
                change = np.fmax(change, np.abs(wider - (claimed - found.numerical[0])[some]))
        found.floor[some] += np.where(np.isfinite(change), change, 0).astype(np.float64)
        found.verdict[some] = judge(claimed[some], found.numerical[0, some], found.floor[some], _resolution(found))
        if (found.verdict[some] == WRONG).all():
            return  # the others are clearer still


def _lost(found: Measured, claimed: Array) -> Array:
    """What may have been lost of the gradient in saturated outputs, as where 1 - p rounds to zero in softmax.

    Such a loss is gross: it takes a term of the entry, or all of it. A slight error has another cause.
    """
    difference = np.abs(claimed - found.numerical[0])
    gross = difference > GROSS * np.fmax(np.abs(claimed), np.abs(found.numerical[0]))
    return np.where(gross, found.lost, 0)


def _contradiction(found: Measured) -> str | None:
    """Why the complex step of entries that look wrong cannot be right itself."""
    wrong = np.flatnonzero(found.verdict == WRONG)[:WITNESSES]
    steps = found.numerical[0, wrong]
    witnesses = measure(found.subject, wrong, CENTRAL, found.aside, best=True)
    slopes = witnesses.values[:, 0]
    apart = np.abs(slopes - steps)
    largest = np.fmax(np.abs(slopes), np.abs(steps))
    sure = (apart > UNDECIDABLE * (witnesses.errors + found.floor[wrong])) & (apart > GROSS * largest)
    if not sure.any():
        return None
    k = int(np.flatnonzero(sure)[0])
    return f"the complex step gives the slope {steps[k]:.6g}, differences {slopes[k]:.6g}: {NOT_ANALYTIC}"


def _project(found: Measured, rtol: float, count: int) -> None:
    """Hold the whole gradient against slopes along random directions; look at the entries behind what is off."""
    x = found.subject.x
    size = sizes(x)
    directions = size * found.problem.rng(found.name, "directions").standard_normal((count, *x.shape))
    difference, floor = _projections(found, directions)
    off = np.flatnonzero(np.abs(difference) > UNDECIDABLE * floor)
    if off.size and not (found.verdict == WRONG).any():
        found.look(_hunt(found, directions[off[0]]))
        _settle(found, rtol)
    gradient = found.problem.claimed(found.name)
    found.escape = Escape(
        entries=int((found.verdict != UNCHECKED).sum()),
        size=x.size,
        directions=count,
        threshold=float(UNDECIDABLE * floor.max()),
        norm=float(np.linalg.norm((gradient.astype(np.float64) * size).ravel())),
    )
    if off.size and not (found.verdict == WRONG).any():
        found.fault = (
            f"along {off.size} of {count} random directions the gradient differs from the slope of forward, yet no "
            "single entry stands out"
        )


def _projections(found: Measured, directions: Array) -> tuple[Array, Array]:
    """Along each direction: by how much the two gradients differ, and the noise floor of that."""
    problem = found.problem
    gradient = problem.claimed(found.name).ravel()
    flat = directions.reshape(len(directions), -1)
    slopes = found.slopes_along(directions)
    difference = flat @ gradient.astype(np.float64) - slopes.values[:, 0]
    inputs = list(problem.inputs.values())
    rng = problem.rng(found.name, "noise along directions")
    noise = noise_floor(found.pair_along(directions), problem.first.cotangent, inputs, rng)
    terms = np.linalg.norm(flat * gradient.astype(np.float64), axis=1)
    return difference, noise + slopes.errors + OWN_ROUNDING * float(np.finfo(gradient.dtype).eps) * terms


def _hunt(found: Measured, direction: Array) -> Array:
    """The few entries that make most of a difference along a direction, found by halving."""
    elements = np.arange(direction.size)
    while len(elements) > CLOSER:
        halves = np.array_split(elements, 2)
        parts = np.zeros((2, direction.size))
        for part, half in zip(parts, halves, strict=True):
            part[half] = direction.ravel()[half]
        difference, floor = _projections(found, parts.reshape(2, *direction.shape))
        elements = halves[int(np.argmax(np.abs(difference) / np.fmax(floor, np.finfo(float).tiny)))]
    return elements
