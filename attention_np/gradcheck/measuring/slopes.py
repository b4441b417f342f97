"""How a function moves when entries of one input move: by the complex step, and by extrapolated central differences.

Both give, for each entry that moves, the derivative of ``(cotangent * output).sum()`` for several cotangents at once,
and an estimate of the error. The formulas are derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.measuring.subject import SMALLEST, Subject, flattened, moves_zero

__all__ = [
    "COMPLEX_STEP",
    "COMPLEX_STEP_IN_SINGLE",
    "SCALES",
    "SMALLER",
    "WITHIN",
    "NotAnalyticError",
    "Slopes",
    "by_best_differences",
    "by_complex_step",
    "by_differences",
    "by_first_differences",
    "extrapolated",
    "lost_of_each",
    "reach_of",
]

Array = npt.NDArray[Any]

COMPLEX_STEP = 2.0**-100  # relative; its square is far below rounding whatever the function multiplies it with
COMPLEX_STEP_IN_SINGLE = 2.0**-40  # where small slopes times a shorter one would be lost
TINY = 2.0**-800  # of an entry, where a shorter step would be lost
SCALES = tuple(2.0**-k for k in (7, 12, 17, 22, 27, 32, 37, 42, 4, 47, 52, 57))  # relative steps, as they are tried
NEAR = 2.0**-6  # of an entry that is smaller than others: the first step, if it need not be the best
SATURATED = 4  # units in the last place of an output, that it moves by when an input moves by its own size
SMALLER = 2.0**-5  # so much smaller all entries are, where exponentials of them no longer saturate
FURTHER = 4  # times: the next move, of those that are to show what an output depends on
WITHIN = 8  # parts of the size of an input, within one of which a saturated output may have changed
CLEAR = 24  # times how far rounding moves the outputs: a jump of the slope
APART = 3  # times the errors of two slopes, that contradict each other
HIDDEN = 1e-8  # of a slope: an error of the first step, or what outputs that do not move may hide, that is worth calls
GOOD = 1e-11  # a relative error that is not worth improving
BEYOND_ZERO = 1e-9  # one that is not worth moving an entry past zero, where functions may not be defined
LEVELS = 3  # steps h, h/2 and h/4: errors of the orders h^2 and h^4 cancel


class NotAnalyticError(ValueError):
    """The complex step does not apply: the function refuses complex arrays, or is not analytic."""


class Slopes(NamedTuple):
    """Derivatives with respect to some entries, or along some directions."""

    values: Array  # (moves, cotangents)
    errors: Array  # (moves,): the method's own error for the first cotangent
    scales: Array  # (moves,): the longest step that was taken, relative to the direction
    lost: Array  # (moves,): how much last bits make up of the weighted sum, of outputs that hardly move; once known


class Reach(NamedTuple):
    """What moves do to the outputs by a closer look."""

    touched: Array  # (moves, outputs): whether a long move changes an output at all
    largest: Array  # (moves, outputs): the largest magnitude that it takes there


def by_complex_step(
    subject: Subject, directions: Array, scale: Array | None = None, reach: Reach | None = None
) -> Slopes:
    """Im f(x + i h v) / h, for each direction v: exact but for rounding, as nothing is subtracted (gradcheck.14).

    The parameters are those of :func:`by_differences`; the scale is by default so short that nothing is left of h^2.
    """
    step, room = scale, _room(subject, directions)  # (moves,)
    if step is None:  # so short that no entry moves by more than a small fraction of itself
        in_single = (subject.output.dtype.itemsize < 8) | (room < TINY)
        step = np.where(in_single, COMPLEX_STEP_IN_SINGLE, COMPLEX_STEP) * room
    try:
        outputs = subject.outputs(subject.x + 1j * _steps(step, directions))
    except Exception as error:
        raise NotAnalyticError(
            f"forward refuses complex arrays, so the complex step does not apply: use central ({error})"
        ) from error
    if outputs.dtype.kind != "c":
        raise NotAnalyticError(
            f"forward turns complex arrays into {outputs.dtype}, so the complex step does not apply: use central"
        )
    with np.errstate(all="ignore"):
        slopes = outputs.imag / step[:, None]  # (moves, outputs) (gradcheck.14)
        eps = float(np.finfo(outputs.dtype).eps)
        weights = np.abs(subject.weights[:, 0])
        # (gradcheck.48), and what the square of the step leaves (gradcheck.14)
        errors = eps * _summed(np.abs(slopes), weights) + step**2 * (np.abs(subject.output.ravel()) * weights).sum()
        values = _weighted(slopes, subject.weights)
        usable = np.isfinite(values[:, 0])
        return Slopes(values, np.where(usable, errors, np.inf), step, _lost(subject, slopes, reach))


def _room(subject: Subject, directions: Array) -> Array:
    """The magnitude of the entry that moves most for its own, relative to its move; at most 1, a power of two."""
    with np.errstate(all="ignore"):
        room = np.where((directions != 0) & (np.abs(subject.x) > SMALLEST), np.abs(subject.x / directions), np.inf)
    least = flattened(room).min(axis=1, initial=1.0)
    return np.asarray(np.ldexp(1.0, np.frexp(least)[1] - 1))


def _steps(step: Array, directions: Array) -> Array:
    """Each of the directions times a number of its own."""
    return np.asarray(step.reshape(len(step), *(1,) * (directions.ndim - 1)) * directions)


def by_differences(subject: Subject, directions: Array, scale: Array | float, reach: Reach | None = None) -> Slopes:
    """Richardson's extrapolation of central differences along each direction v, at h = scale, scale/2 and scale/4.

    The scale, of each move or of all, is relative to its direction; `reach` is what a closer look has found: without
    it, an output depends on a move if it is seen to move.
    """
    return _by_differences(subject, directions, scale, reach)[0]


def _by_differences(
    subject: Subject, directions: Array, scale: Array | float, reach: Reach | None = None
) -> tuple[Slopes, Array]:
    """The same, with what rounding may hide of each slope in outputs that are not seen to move."""
    scale = np.broadcast_to(scale, len(directions))
    weights, loudness = subject.weights, subject.loudness  # (outputs, cotangents), (outputs,)
    column = []  # one for each step: (moves, cotangents)
    bends = []  # for each step, by how much the slopes of the first cotangent on both sides differ: (moves,)
    last_bit = np.zeros(len(directions))  # by which rounding moves the weighted sum
    with np.errstate(all="ignore"):
        steps = [scale / 2**level for level in range(LEVELS)]  # (gradcheck.23)
        asked = [_steps(step, directions) for step in steps]
        places = [(subject.x + sign * h).astype(subject.x.dtype) for h in asked for sign in (1, -1)]
        outputs = np.split(subject.values(np.concatenate(places)), len(places))
        for level, (step, h) in enumerate(zip(steps, asked, strict=True)):
            width = _width(places[2 * level], places[2 * level + 1], h) * step  # what rounding made of 2 h
            above, below = outputs[2 * level : 2 * level + 2]
            difference = above - below  # (gradcheck.25)
            column.append(_weighted(difference, weights) / width[:, None])  # (gradcheck.25)
            moving = difference != 0 if reach is None else reach.touched
            last_bit = np.fmax(last_bit, np.sqrt(_summed(moving, loudness**2)))
            bend = above - 2 * subject.output.ravel() + below
            bends.append(2 * _summed(bend, weights[:, 0]) / width)  # (gradcheck.80)
            noise_of_bend = 2 * np.sqrt(_summed(bend != 0, loudness**2)) / width
        best, truncation = extrapolated(column)
        jump = np.abs(16 * bends[2] - 10 * bends[1] + bends[0]) / 7  # of the slope, within the step (gradcheck.81)
        jump[~(jump > CLEAR * noise_of_bend)] = 0
        errors = truncation[:, 0] + 2 * last_bit / width + jump  # of the last, shortest step (gradcheck.33)
        hidden = 2 * np.sqrt(_summed(~moving, loudness**2)) / width
        if reach is not None:  # of an output that is seen to move, no more than its own last bits are lost
            own = np.broadcast_to(np.abs(subject.output.ravel()), difference.shape)
            reach = reach._replace(largest=np.where(difference != 0, own, reach.largest))
        lost = _lost(subject, difference / width[:, None], reach)
    usable = np.isfinite(errors)  # which they are not where the slope is not
    return Slopes(best, np.where(usable, errors, np.inf), np.array(scale), lost), hidden


def _weighted(slopes: Array, weights: Array) -> Array:
    """The weighted sums of the slopes for each cotangent: (moves, cotangents)."""
    return np.stack([_summed(slopes, column) for column in weights.T], axis=1)


def _summed(rows: Array, weights: Array) -> Array:
    """``rows @ weights``, so that the bits of no row depend on how many there are."""
    return np.asarray((rows * weights).sum(axis=1))  # (gradcheck.5)


def _lost(subject: Subject, slopes: Array, reach: Reach | None) -> Array:
    """What saturated outputs lose of the weighted sum of `slopes`, (moves, outputs)."""
    if reach is None:
        return np.zeros(len(slopes))
    return np.asarray(np.sqrt(_summed(lost_of_each(subject, slopes, reach) ** 2, subject.weights[:, 0] ** 2)))


def lost_of_each(subject: Subject, slopes: Array, reach: Reach) -> Array:
    """What saturated outputs lose of each slope, (moves, outputs): their last bits.

    An output is saturated if it depends on an input, but would not move by its last bit if the input moved by its own
    size: as a weight of softmax that has rounded to one, or 1 - tanh(x) where that has rounded to zero.
    """
    saturated = ~(np.abs(slopes) > SATURATED * subject.unit * reach.largest)
    noise = 0.0 if subject.noise is None else subject.noise.ravel()
    return np.where(saturated & reach.touched, WITHIN * np.fmax(subject.unit * reach.largest, noise), 0)


def reach_of(subject: Subject, directions: Array) -> Reach:
    """What an output depends on, as far as it is seen to move, and how far it gets: alone, and when all inputs move.

    All go towards zero together, and one alone no further than differences step: a solver or a series that is asked
    outside its domain need never return. What is saturated here moves where all are smaller.
    """
    x, output = subject.x, subject.output.ravel()
    step = _steps(SCALES[0] * _room(subject, directions), directions)
    with np.errstate(all="ignore"):
        outputs = subject.values(np.concatenate([x[None] / 2, SMALLER * x[None], x + step, x - step]))
        (half, smaller), up, down = np.split(outputs, [2, 2 + len(directions)])
        touched = (up != output) | (down != output) | (subject.values(SMALLER * (x + step)) != smaller)
        touched |= ~touched.any(axis=1, keepdims=True)  # the entry is too small to move anything, for all we know
        hidden = np.sqrt(_summed(~touched, subject.loudness**2))
        slopes = np.abs(_summed(up - down, subject.weights[:, 0]))
        for k in np.flatnonzero((hidden > HIDDEN * slopes) & (slopes > 0)):
            touched[k] |= _moved_further(subject, directions[k], step[k], touched[k])
        largest = np.abs(output)
        for reached in (half, smaller, up, down):
            largest = np.fmax(largest, np.where(np.isfinite(reached), np.abs(reached), 0))
    return Reach(touched, np.broadcast_to(largest, touched.shape))


def _moved_further(subject: Subject, direction: Array, step: Array, touched: Array) -> Array:
    """Which outputs move where all inputs are smaller, or by ever longer moves away from zero, until one more does.

    What it raises there, and NaN, tell nothing.
    """
    moved = np.zeros_like(touched)
    try:
        if len(subject.point) > 1:
            tame = subject.at([np.array(SMALLER * y) for y in subject.point], subject.cotangents)
            there, beside = tame.values(SMALLER * np.stack([subject.x, subject.x + step]))
            moved |= (there != beside) & np.isfinite(there) & np.isfinite(beside)
        outwards = np.where(subject.x < 0, -1, 1) * np.abs(step)
        while not (moved & ~touched).any() and (np.abs(outwards) < SCALES[0] * np.fmax(np.abs(direction), 1)).all():
            outwards = FURTHER * outwards
            there = subject.values((subject.x + outwards)[None])[0]
            moved |= (there != subject.output.ravel()) & np.isfinite(there)
    except Exception:  # noqa: S110 - what it raises there is up to the function
        pass
    return moved


def extrapolated(column: list[Array]) -> tuple[Array, Array]:
    """Richardson's extrapolation of central differences at h, h/2, h/4, ..., and what the last step of it changed."""
    tableau = [column]
    for order in range(1, len(column)):
        fine, coarse = tableau[-1][1:], tableau[-1][:-1]
        # (gradcheck.28), (gradcheck.29)
        tableau.append([(4**order * a - b) / (4**order - 1) for a, b in zip(fine, coarse, strict=True)])
    best, (coarser, finer) = tableau[-1][0], tableau[-2]  # (gradcheck.31)
    return best, np.maximum(np.abs(best - finer), np.abs(best - coarser))


def by_first_differences(subject: Subject, directions: Array) -> Slopes:
    """Differences where an entry moves by a fraction of itself; the best where that gives no slope.

    Where it gives a coarse one, small entries are moved as far as others of their array. Where outputs that are not
    seen to move may hide what counts, it is found out whether they depend on the entry.
    """
    scale = np.fmin(SCALES[0], NEAR * _room(subject, directions))
    found, hidden = _by_differences(subject, directions, scale)
    slopes = np.abs(found.values[:, 0])
    refused = np.flatnonzero(~np.isfinite(slopes))
    if refused.size:
        _put(found, refused, by_best_differences(subject, directions[refused]))
    counts = np.fmax(HIDDEN * slopes, UNDECIDABLE * found.errors)  # what is less is no more than the errors excuse
    coarse = np.flatnonzero((found.errors > HIDDEN * slopes) & (scale < SCALES[0]))
    if coarse.size:
        _put_better(found, coarse, by_differences(subject, directions[coarse], SCALES[0]))
    unsure = np.flatnonzero((hidden > counts) & (slopes > 0))
    if unsure.size:
        there = directions[unsure]
        _put(found, unsure, by_differences(subject, there, found.scales[unsure], reach_of(subject, there)))
    return found


def _put(found: Slopes, moves: Array, others: Slopes) -> None:
    """Put others in the place of some."""
    for kept, new in zip(found, others, strict=True):
        kept[moves] = new


def by_best_differences(subject: Subject, directions: Array) -> Slopes:
    """Differences at the scale, of all in `SCALES`, at which each slope is known best.

    Entries that are much smaller than others of their array are moved by fractions of themselves first, and past zero
    only where those tell hardly anything. Longer steps are tried where shorter ones have been worse: beyond, a series
    or a solver may not converge.
    """
    reach = reach_of(subject, directions)
    own = _room(subject, directions)  # (moves,)
    best = by_differences(subject, directions, SCALES[0] * own, reach)
    at_zero = moves_zero(subject, directions)
    for scale, across in ((scale, across) for across in (False, True) for scale in SCALES):
        usable = ((scale >= own) == across) & (scale != best.scales)
        usable &= (scale <= SCALES[0]) | (best.scales >= SCALES[0] * own)
        flat = (best.values[:, 0] == 0) & reach.touched.any(axis=1)  # a step too long or too short sees nothing
        good = (BEYOND_ZERO if across else GOOD) * np.abs(best.values[:, 0])
        poor = np.flatnonzero(usable & (flat | at_zero | ~(best.errors <= good)))
        if not poor.size:
            continue
        found = by_differences(subject, directions[poor], scale, Reach(*(part[poor] for part in reach)))
        _put_better(best, poor, found)
    return best


def _put_better(best: Slopes, moves: Array, found: Slopes) -> None:
    """Put those of some moves in their place that are better known."""
    better = _is_better(found, Slopes(*(part[moves] for part in best)))
    _put(best, moves[better], Slopes(*(part[better] for part in found)))


def _is_better(found: Slopes, before: Slopes) -> Array:
    """Which slopes are better known by other steps.

    If the two do not contradict each other, the one with the smaller error is better. If they do, the shorter step is
    right: the longer one has left what is local, and sees nothing of a narrow peak, or looks past a kink.
    """
    apart = np.abs(found.values - before.values)[:, 0]
    agree = ~(apart > APART * (found.errors + before.errors))
    better = np.where(agree, found.errors < before.errors, found.scales < before.scales)
    return np.asarray(better & np.isfinite(found.errors) | ~np.isfinite(before.errors))


def _width(up: Array, down: Array, h: Array) -> Array:
    """By how much more, or less, than 2 h the input moved: about 2, for each move."""
    asked, got = flattened(h), flattened(up - down)
    usable = np.isfinite(got) & (asked != 0)
    single = (asked != 0).sum(axis=1) == 1  # of a direction of several entries, each is rounded by itself
    ratio = np.where(usable, got, 0).sum(axis=1) / np.where(usable, asked, 0).sum(axis=1)
    return np.where(single & usable.any(axis=1), ratio, 2.0)
