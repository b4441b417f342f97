"""A verdict on every entry of a gradient: the steps 2 to 4 of :mod:`attention_np.gradcheck.examining`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDABLE, UNDECIDED, WRONG, judge
from attention_np.gradcheck.findings import Escape
from attention_np.gradcheck.judging.measured import ASKED, COARSE, FAR, Measured, Options, grossly
from attention_np.gradcheck.judging.saturation import SEEN, is_lost
from attention_np.gradcheck.measuring.noise import (
    GROSS,
    Line,
    Question,
    elsewhere,
    noise_floor,
    own_tolerance,
    sensitivity,
    unsteadiness,
    wider_difference,
)
from attention_np.gradcheck.measuring.numerical import METHODS, measure, measure_along
from attention_np.gradcheck.measuring.probes import NOT_ANALYTIC, tells
from attention_np.gradcheck.measuring.reach import hidden_by_rounding
from attention_np.gradcheck.measuring.slopes import NotAnalyticError
from attention_np.gradcheck.measuring.subject import REFUSALS, along, flattened, magnitudes, sizes

__all__ = ["decide", "first_verdict", "suspects", "why_not_complex_step"]

Array = npt.NDArray[Any]

COMPLEX_STEP, CENTRAL = METHODS
RESOLUTION = {COMPLEX_STEP: 1e-10, CENTRAL: 1e-7}  # the relative error of an entry that must be seen
OWN_ROUNDING = 4  # units in the last place of an entry that are no reason to look closer
LAST_BITS = 64  # units in the last place of the largest, or of an input: what rounding may leave of terms that cancel
BIASED = 3  # times how unsteady they are: what solvers and series are off by, which stop on one side of the limit
TOLERANCE = 0.1  # a relative error that is no solver's, nor of a series that ends
TOGETHER = 4  # doubtful entries that are looked at more closely together; if all prove wrong, clearer ones are believed
FEW = 64  # entries behind what is off along a direction, that are looked at
ALIKE = 13  # slopes within so many powers of two move together
SHORT = 2.0**-12  # relative: a step
STREWN = 4  # times that another input is asked for in another order, half of it zero
WITNESSES = 4  # wrong entries, and undecided ones, whose complex step is held against differences


def decide(found: Measured, options: Options) -> None:
    """The verdicts on all entries that were looked at, and on the whole if those are not all.

    With "auto", an input whose complex step proves wrong, or tells nothing, is measured again by differences.
    """
    rtol, reason = options.rtol, None
    _settle(found, rtol)
    if found.method == COMPLEX_STEP:
        besides = [() if options.witnessed else suspects(found), np.flatnonzero(found.blind)[:WITNESSES]]
        reason = why_not_complex_step(found, np.concatenate(besides), options.method)
    if reason is not None:
        if options.method != "auto":
            raise NotAnalyticError(f"input {found.name}: {reason}, so the complex step does not apply: use central")
        found.method, found.note = CENTRAL, reason
        found.look(np.flatnonzero(found.looked))
        _settle(found, rtol)
    if not found.looked.all():
        _project(found, rtol, options.directions)
    if found.fault is None and found.looked.any() and np.isfinite(found.numerical[0]).any():
        if found.blind[found.looked].all():
            found.fault = "it could not be decided: rounding alone may be as large as a gradient of such outputs can be"
        elif 0 < found.tolerance < np.inf and (found.verdict[found.looked] == UNDECIDED).all():
            found.fault = "it could not be decided: no entry is known better than to the tolerance of forward"
        elif (found.verdict == HOLDS).any() and not (found.verdict == WRONG).any():
            # It is of backward, whichever method shows it.
            found.fault = found.candidate.once(found.name, "elsewhere", lambda: _fault_elsewhere(found, rtol))


def first_verdict(found: Measured, some: Array | None = None) -> Array:
    """The verdicts by the method's own errors and the last bits of the entries; the entries to look at more closely."""
    gradient = found.claimed
    some = np.arange(gradient.size) if some is None else some
    found.floor[some] = found.errors[some]
    larger = np.fmax(np.abs(gradient), np.abs(found.numerical[0]))[some]
    _add_noise(found, some, OWN_ROUNDING * float(np.finfo(gradient.dtype).eps) * larger)
    verdict = found.verdict[some]
    return np.asarray(some[(verdict == WRONG) | ((verdict == UNDECIDED) & np.isfinite(found.floor[some]))])


def _add_noise(found: Measured, some: Array, noise: Array) -> Array:
    """Raise the floor of some entries, and judge them by it; those that are wrong still."""
    found.floor[some] += np.where(np.isfinite(noise), noise, 0)
    gradient = found.claimed
    resolution = max(RESOLUTION[found.method], COARSE * float(np.finfo(gradient.dtype).eps))
    verdict = judge(gradient[some], found.numerical[0, some], found.floor[some], resolution)
    found.verdict[some] = np.where(found.looked[some], verdict, UNCHECKED)
    return np.asarray(some[found.verdict[some] == WRONG])


def _settle(found: Measured, rtol: float) -> None:
    """The floor first, then a closer look at entries that do not hold by it, the least clear first.

    Once all of several prove wrong, they tell how much too low the first floors are. Entries that are clearer than
    that are believed.
    """
    claimed = found.claimed
    doubtful = np.concatenate([first_verdict(found), _by_luck(found)])
    difference = np.abs(claimed - found.numerical[0])
    doubtful = doubtful[np.lexsort([difference[doubtful] / found.floor[doubtful]])]
    while doubtful.size:
        some, doubtful = doubtful[:TOGETHER], doubtful[TOGETHER:]
        first = found.floor[some]
        _look_closer(found, some)
        if doubtful.size and (found.verdict[some] == WRONG).all():
            times = found.floor[some] / first
            believed = doubtful[difference[doubtful] > UNDECIDABLE * max(1, times.max()) * found.floor[doubtful]]
            shaken = sensitivity(found.pair(believed).claimed, *found.candidate.question, found.rng("noise"))
            _add_noise(found, believed, shaken + np.median(times) * found.floor[believed])
            doubtful = np.setdiff1d(doubtful, believed)
    if rtol:
        difference = np.abs(claimed - found.numerical[0])
        largest = np.fmax(np.abs(claimed), np.abs(found.numerical[0])).max(initial=0)
        found.verdict[(difference <= rtol * largest) & found.looked] = HOLDS


def _by_luck(found: Measured) -> Array:
    """The entries that hold no more at their best steps, of those that agree further than their slopes are known.

    As where a claim lacks what rounding hides. The least known are looked at first, and if none is wrong, no others.
    """
    known = found.errors / np.fmax(np.abs(found.claimed), np.abs(found.numerical[0]))
    lucky = np.flatnonzero((found.verdict == HOLDS) & (known > RESOLUTION[found.method]))
    lucky = lucky[np.argsort(-known[lucky])]
    doubtful = lucky[:0]
    for some in (lucky[:ASKED], lucky[ASKED:]):
        found.look(some, best=True)
        doubtful = np.concatenate([doubtful, first_verdict(found, some)])
        if not (found.verdict[some] == WRONG).any():
            break
    return doubtful


def _look_closer(found: Measured, some: Array) -> None:
    """Raise the floor of entries by all that can be blamed besides, one after the other, until they are not wrong."""
    found.look(some, best=True)
    first_verdict(found, some)
    question = found.candidate.question
    floor = noise_floor(found.pair(some), *question, found.rng("noise"), found.numerical[0, some])
    wrong = _add_noise(found, some, floor)
    for noise in (_of_narrow_dtype, _of_tolerance, _of_saturation):
        if wrong.size:
            difference = found.claimed[wrong] - found.numerical[0, wrong]
            wrong = _add_noise(found, wrong, noise(found, wrong, question, difference))


def _of_narrow_dtype(found: Measured, some: Array, question: Question, difference: Array) -> Array:
    """By how much the difference of the two gradients is another one in a wider dtype; and how unsteady it is close by.

    That is asked of differences in the last bits, which may round alike in both dtypes, or where there is no wider one.
    """
    wider = wider_difference(found.pair(some), *question) if found.candidate.wide else None
    noise = np.zeros(len(some)) if wider is None else np.abs(wider - difference).astype(float)
    largest = max(np.nanmax(np.abs(found.numerical[0])), np.abs(question[0]).max())
    last_bits = LAST_BITS * found.subject.unit
    # An exponential of what is left of large terms, as of x - logsumexp(x), is off by their last bits times itself.
    terms = np.abs(found.subject.x.ravel()[some])
    exponentials = np.fmin(last_bits * terms, grossly(question[0].dtype)) * np.abs(found.claimed[some])
    slight = np.abs(difference) < np.fmax(last_bits * largest, exponentials)
    slight &= ~(np.abs(difference) <= UNDECIDABLE * noise)
    if slight.any():
        noise[slight] = unsteadiness(found.pair(some[slight]), *question, found.rng("unsteadiness"))
    return noise


def _of_tolerance(found: Measured, some: Array, question: Question, difference: Array) -> Array:
    """How unsteady a slight difference is, where backward is steady: solvers and series stop at a tolerance.

    One slope is asked first, along which the differences of all those entries add up: hardly any function jumps.
    """
    size, most = np.abs(found.numerical[0]), UNDECIDABLE * BIASED
    noise, largest = np.zeros(len(some)), np.nanmax(size)
    if found.tolerance == np.inf or not (np.abs(difference) < TOLERANCE * largest).all():
        return noise
    loss = found.loss if found.method == COMPLEX_STEP else None
    alone = [found.pair(some[[k]]) for k in range(len(some))]
    asked = [(alone[0] if len(some) == 1 else found.pair(some), alone, most)]
    if len(some) > 1 or found.method == CENTRAL:  # a step of its own at each point jumps by itself
        scale = float(found.scales[some].max())
        direction = np.tensordot(np.sign(difference) * found.scales[some] / scale, along(found.subject.x, some), 1)
        together = found.pair_along(direction[None], scale)
        asked.insert(0, (together, [together], most * len(some)))
    for pair, alone, times in asked:
        left, jumps = own_tolerance(Line(pair, question, found.rng("unsteadiness"), alone, loss), times)
        if not 0 < jumps.max() < np.inf:  # none jumps; or one does for a branch, which is no tolerance
            found.tolerance = max(found.tolerance, jumps.max())
            return noise
    relative = float(left.max() / largest)  # of the solver, whether or not an entry shows it
    noise = BIASED * np.fmax(left, relative * size[some])
    excused = np.abs(difference) < UNDECIDABLE * noise
    if excused.any() or (np.abs(difference) < most * jumps).any():
        found.tolerance = max(found.tolerance, BIASED * float(jumps.max() / largest))
    return np.where(excused, noise, 0)


def _of_saturation(found: Measured, some: Array, question: Question, difference: Array) -> Array:
    """What saturated outputs lose, where that is enough."""
    noise = np.zeros(len(some))
    enough = np.abs(difference) <= UNDECIDABLE * (found.floor + found.lost)[some]
    some = some[enough]
    if not some.size:
        return noise

    def differences() -> tuple[Array, Array]:
        witnesses = measure(found.subject, some, CENTRAL, found.aside, best=True)
        return witnesses.values[:, 0], witnesses.lost

    candidate = found.candidate
    answers = found.claimed[some], found.numerical[0, some]
    asked = (found.pair(some), *answers, question, candidate.cotangents[1], found.rng("elsewhere"))
    lost = is_lost(*asked, differences if found.method == COMPLEX_STEP else None)
    noise[enough] = np.where(lost, found.lost[some], 0)
    return noise


def why_not_complex_step(found: Measured, besides: Sequence[int] | Array = (), method: str = "auto") -> str | None:
    """Why the complex step of entries that look wrong, or of some `besides`, cannot be right itself, or cannot tell.

    Differences say something else; and grossly so, or they say what is claimed: two against one. Or the complex step
    says nothing, under "auto", of entries of which differences do.
    """
    wrong = np.flatnonzero(found.verdict == WRONG)[:WITNESSES]
    asked = np.concatenate([wrong[~_is_confirmed(found, wrong)], besides]).astype(int)
    steps, claimed = found.numerical[0, asked], found.claimed[asked]
    witnesses = measure(found.subject, asked, CENTRAL, found.aside, best=True)
    slopes = witnesses.values[:, 0]
    if method == "auto" and (found.blind[asked] & (UNDECIDABLE * witnesses.errors < found.scale[asked])).any():
        return "the complex step is all rounding in some entries, where differences tell more"
    apart = np.abs(slopes - steps)
    gross = apart > GROSS * np.fmax(np.abs(slopes), np.abs(steps))
    agree = np.abs(slopes - claimed) < 0.1 * apart
    moves = along(found.subject.x, asked)
    told = agree | (gross & tells(found.subject, moves, slopes, witnesses.errors, steps * flattened(moves).sum(axis=1)))
    # The last bits of any output may hide what an entry does to it, as to weights of softmax beside one that is tiny.
    hidden = hidden_by_rounding(found.subject, witnesses.scales) / sizes(found.subject.x).ravel()[asked]
    sure = told & (apart > UNDECIDABLE * (witnesses.errors + found.floor[asked] + witnesses.lost) + hidden)
    if not sure.any():
        return None
    k = int(np.flatnonzero(sure)[0])
    return f"the complex step gives the slope {steps[k]:.9g}, differences {slopes[k]:.9g}: {NOT_ANALYTIC}"


def _is_confirmed(found: Measured, wrong: Array) -> Array:
    """Whether differences see what the complex step does, at their first step already."""
    steps = found.numerical[0, wrong]
    first = measure(found.subject, wrong, CENTRAL, found.aside)
    apart = np.abs(first.values[:, 0] - steps) + first.errors
    return np.asarray(apart < SEEN * np.abs(found.claimed[wrong] - steps))


def suspects(found: Measured) -> Array:
    """Entries whose complex step differences may contradict, at most one for each size of slopes.

    Entries move together whose slopes are of one size, the zeros for themselves: no large one hides a small one.
    """
    x = found.subject.x
    moves = (magnitudes(x) * found.rng("suspects").choice([-1, 1], x.shape)).ravel()
    with np.errstate(all="ignore"):
        expected = found.numerical[0] * moves
        kinds = np.where(expected == 0, np.inf, np.floor(np.log2(np.abs(expected)) / ALIKE))

    def apart(parts: Array, scale: float | None = None) -> Array:
        """How far differences and complex steps are apart along parts of the moves, in noise floors."""
        moved = parts.reshape(-1, *x.shape)
        slopes = measure_along(found.subject, moved, CENTRAL, found.aside, scale)
        floor = slopes.errors + slopes.lost + (found.floor * np.abs(parts)).sum(axis=1)
        terms = np.where(parts == 0, 0, expected)
        difference = np.abs(slopes.values[:, 0] - terms.sum(axis=1))
        gross = difference > GROSS * np.abs(terms).sum(axis=1)
        if gross.any():
            gross &= tells(found.subject, moved, slopes.values[:, 0], slopes.errors, terms.sum(axis=1))
        return np.where(gross, difference / floor, 0)

    several = []
    for kind in np.unique(kinds[found.looked & ~np.isnan(kinds)]):
        direction = np.where(found.looked & (kinds == kind), moves, 0)
        if apart(direction[None], SHORT)[0] > UNDECIDABLE:
            several.append(_halved(direction, apart, 1)[0])
    return np.array(several, int)


def _fault_elsewhere(found: Measured, rtol: float) -> str | None:
    """What shows that backward is right for one cotangent at one point, and keeps to that; seen in a few entries."""
    u, inputs = found.candidate.question
    rng = found.rng("elsewhere")
    holding = np.flatnonzero(found.verdict == HOLDS)
    some = rng.choice(holding, min(ASKED, holding.size), replace=False)
    if not found.is_linear:
        return (
            "it is right for one cotangent, but backward is not linear in the gradient of the output: for a sum it "
            "does not give the sum, as if it clipped something or kept something from call to call"
        )
    nearby = elsewhere(inputs, rng)
    if _is_wrong_at(found, some, (u, nearby), rtol):
        unused = _unused(found, some, nearby, rtol)
        if unused is not None:
            return (
                f"it is right at this point and the same where {unused} moves a little, though forward has other "
                f"slopes there: as if backward did not use {unused}, or kept it from an earlier call"
            )
        found.remark("it holds here and not close by: is it right by something that is true of this point alone?")
    return None


def _unused(found: Measured, some: Array, nearby: list[Array], rtol: float) -> str | None:
    """An input that moves the slopes, but not the claim, bit by bit.

    What is made of a mask, or of labels, is the same close to them, too; but not where all are zeros or ones, or are
    strewn and half zero.
    """
    (u, inputs), candidate, rng = found.candidate.question, found.candidate, found.rng("unused")

    def is_same(there: list[Array]) -> bool:
        try:
            return np.array_equal(found.pair(some).claimed(u, there), found.claimed[some])
        except REFUSALS:
            return False

    for k, name in enumerate(candidate.inputs):

        def where(x: Array, k: int = k) -> list[Array]:
            return [*inputs[:k], x, *inputs[k + 1 :]]

        x = inputs[k]
        strewn = (
            np.where(rng.random(x.shape) < 0.5, rng.permuted(x.ravel()).reshape(x.shape), 0) for _ in range(STREWN)
        )
        same = all(map(is_same, map(where, (nearby[k], 0 * x, 0 * x + 1, *strewn))))
        if same and _is_wrong_at(found, some, (u, where(nearby[k])), rtol):
            return name
    return None


def _is_wrong_at(found: Measured, some: Array, question: Question, rtol: float) -> bool:
    """Whether some entries are grossly wrong there."""
    near = grossly(question[0].dtype)
    allowed = 4 * rtol * np.abs(found.claimed).max()
    pair = found.pair(some)
    try:
        claimed, measured = pair.claimed(*question), pair.measured(*question)
        apart = ~(np.abs(claimed - measured) <= near * np.fmax(np.abs(claimed), np.abs(measured)))
        some, claimed = some[apart], claimed[apart]
        if not some.size:
            return False  # nothing is gained by a closer look at what agrees
        slopes = measure(found.there(*question), some, found.method, found.aside, best=True)
        apart = np.abs(claimed - slopes.values[:, 0])
        known = near * np.fmax(np.abs(claimed), np.abs(slopes.values[:, 0]))
        off = apart > known + allowed + FAR * (slopes.errors + slopes.lost + found.floor[some])
        if off.any() and found.method == COMPLEX_STEP:  # which need not be right there, too
            there = found.there(*question).with_its_output()
            slopes = measure(there, some, CENTRAL, found.aside, best=True)
            off &= np.abs(claimed - slopes.values[:, 0]) > known + allowed + FAR * (slopes.errors + slopes.lost)
    except REFUSALS:
        return False
    return bool(off.any())


def _project(found: Measured, rtol: float, count: int) -> None:
    """Hold the whole gradient against slopes along random directions; look at the entries behind what is off."""
    x = found.subject.x
    size = sizes(x)
    directions = size * found.rng("directions").standard_normal((count, *x.shape))
    difference, floor = _projections(found, directions)
    allowed = rtol * float(np.abs(found.claimed).max()) * np.linalg.norm(directions.reshape(count, x.size), axis=1)
    threshold = UNDECIDABLE * floor + 4 * allowed
    off = np.flatnonzero(np.abs(difference) > threshold)
    if off.size and not (found.verdict == WRONG).any():
        found.look(_hunt(found, directions[off[0]]))
        _settle(found, rtol)
    found.escape = Escape(
        entries=int((found.verdict != UNCHECKED).sum()),
        size=x.size,
        directions=count,
        threshold=float(threshold.max()),
        norm=float(size.min() * np.linalg.norm(found.claimed)),
    )
    if off.size and not (found.verdict == WRONG).any():
        found.fault = (
            f"along {off.size} of {count} random directions the gradient differs from the slope of forward, yet no "
            "single entry stands out"
        )


def _projections(found: Measured, directions: Array) -> tuple[Array, Array]:
    """Along each direction: by how much the two gradients differ, and the noise floor of that."""
    gradient = found.claimed
    flat = directions.reshape(len(directions), gradient.size)
    slopes = found.slopes_along(directions)
    pair = found.pair_along(directions)
    noise = noise_floor(pair, *found.candidate.question, found.rng("noise along directions"))
    terms = found.subject.unit * np.linalg.norm(flat * gradient, axis=1)
    return flat @ gradient - slopes.values[:, 0], noise + slopes.errors + OWN_ROUNDING * terms


def _hunt(found: Measured, direction: Array) -> Array:
    """The few entries that make most of the difference of the two gradients along a direction."""

    def apart(parts: Array) -> Array:
        slopes = found.slopes_along(parts.reshape(-1, *direction.shape))
        return np.asarray(np.abs(parts @ found.claimed - slopes.values[:, 0]))

    return _halved(direction.ravel(), apart, FEW)


def _halved(direction: Array, off: Callable[[Array], Array], most: int) -> Array:
    """The few entries that make most of what is off along a direction, found by halving."""
    elements = np.flatnonzero(direction)
    while len(elements) > most:
        halves = np.array_split(elements, 2)
        parts = np.zeros((2, direction.size))
        for part, half in zip(parts, halves, strict=True):
            part[half] = direction[half]
        elements = halves[int(np.argmax(off(parts)))]
    return elements
