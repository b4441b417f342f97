"""How a function moves when entries of one input move: by the complex step, and by extrapolated central differences.

Both give, for each entry that moves, the derivative of ``(cotangent * output).sum()`` for several cotangents at once,
and an estimate of the error. The formulas are derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.calls import NotAnalyticError
from attention_np.gradcheck.slopes.moves import LONGEST, Subject, flattened, room, scaled

COMPLEX_STEP = 2.0**-100  # relative; its square is far below rounding whatever the function multiplies it with
COMPLEX_STEP_IN_SINGLE = 2.0**-40  # where small slopes times a shorter one would be lost
LEVELS = 3  # steps h, h/2 and h/4: errors of the orders h^2 and h^4 cancel
BENT = 24  # times how far rounding moves the outputs: a jump of the slope
UNDECIDABLE = 10  # times its floor: a difference that rounding cannot be blamed for (gradcheck.56)
TOO_SMALL = 8  # units in the last place of the largest entry: what differs by less is not judged (gradcheck.59)
KNOWN = 1e-8  # relative: a slope that the first step knows so well is not measured again


class Slopes(NamedTuple):
    """Derivatives with respect to some entries, or along some directions."""

    values: Array  # (moves, cotangents)
    errors: Array  # (moves,): the method's own error for the first cotangent
    steps: Array  # (moves,): the longest step that was taken, relative to the direction
    responsive: Array  # (moves,): whether some output changes
    bent: Array  # (moves,): whether the slope jumps within the step


def by_complex_step(subject: Subject, directions: Array) -> Slopes:
    """Im f(x + i h v) / h, for each direction v: exact but for rounding, as nothing is subtracted (gradcheck.14).

    The steps are so short that nothing is left of h^2, and no entry moves by more than a small fraction of itself.
    """
    own = room(subject.x, directions)
    in_single = (subject.output.dtype.itemsize < 8) | (own < 2.0**-800)
    steps = np.where(in_single, COMPLEX_STEP_IN_SINGLE, COMPLEX_STEP) * own
    try:
        outputs = subject.outputs(subject.x + 1j * scaled(directions, steps))
    except (MemoryError, NotAnalyticError):
        raise
    except Exception as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise NotAnalyticError(f"forward refuses complex arrays ({why})") from error
    if outputs.dtype.kind != "c":
        raise NotAnalyticError(f"forward turns complex arrays into {outputs.dtype}")
    with np.errstate(all="ignore"):
        slopes = outputs.imag / steps[:, None]  # (moves, outputs) (gradcheck.14)
        eps = float(np.finfo(outputs.dtype).eps)
        values, weights = _weighted(slopes, subject.weights), np.abs(subject.weights[:, 0])
        # (gradcheck.48), and what the square of the step leaves (gradcheck.14)
        left = steps**2 * (np.abs(subject.output.ravel()) * weights).sum()
        errors = eps * _summed(np.abs(slopes), weights) + left
        known = np.isfinite(values[:, 0])
        return Slopes(values, np.where(known, errors, np.inf), steps, (slopes != 0).any(axis=1), 0 * steps)


def by_differences(subject: Subject, directions: Array, steps: Array | float) -> Slopes:
    """Richardson's extrapolation of central differences along each direction v, at h = step, step/2 and step/4.

    The step, of each move or of all, is relative to its direction.
    """
    steps, x, output = np.broadcast_to(steps, len(directions)), subject.x, subject.output.ravel()
    with np.errstate(all="ignore"):
        levels = np.stack([steps / 2**level for level in range(LEVELS)])  # (levels, moves) (gradcheck.23)
        asked = levels.reshape(*levels.shape, *(1,) * x.ndim) * directions  # (levels, moves, *x.shape)
        up, down = (x + asked).astype(x.dtype), (x - asked).astype(x.dtype)
        outputs = subject.values(np.concatenate([*up, *down])).reshape(2, *levels.shape, output.size)
        weights, noise = subject.weights, np.square(subject.rounding * subject.weights[:, 0])
        above, below = outputs  # (levels, moves, outputs)
        width = _width(up, down, asked) * levels  # what rounding made of 2 h
        column = list(_weighted(above - below, weights) / width[..., None])  # (gradcheck.25)
        bends = 2 * _summed(above - 2 * output + below, weights[:, 0]) / width  # (gradcheck.66)
        moved = np.logical_or.accumulate((above != output) | (below != output))
        rounding = np.fmax.reduce(2 * np.sqrt(_summed(moved, noise)) / width, initial=0)  # (gradcheck.33)
        responsive, width = moved[-1], width[-1]
        best, truncation = extrapolated(column)
        jump = np.abs(16 * bends[2] - 10 * bends[1] + bends[0]) / 7  # of the slope, within the step (gradcheck.67)
        bent = ~(jump <= BENT * rounding)
        jump[~bent | np.isnan(jump)] = 0
        hidden = 2 * np.sqrt(np.maximum(noise.sum() - _summed(responsive, noise), 0)) / width
        unsure = np.flatnonzero(hidden > np.fmax(KNOWN * np.abs(best[:, 0]), rounding))
        if unsure.size:  # outputs that do not move may hide a slope below their last bits: do they depend on it?
            responsive[unsure] |= _dependent_outputs(subject, directions[unsure])
            rounding[unsure] = (2 * np.sqrt(_summed(responsive, noise)) / width)[unsure]
        errors = truncation[:, 0] + rounding + jump
    known = np.isfinite(errors)  # which they are not where the slope is not
    return Slopes(best, np.where(known, errors, np.inf), np.array(steps), np.asarray(responsive.any(axis=1)), bent)


def by_best_differences(subject: Subject, directions: Array, *, all_steps: bool = False) -> Slopes:
    """Differences where each entry moves by a fraction of itself; at its best step where that knows it badly.

    Or of `all_steps` in any case. Entries that are much smaller than others of their array are moved by fractions of
    themselves first, and past zero only where those tell hardly anything: beyond, a solver need not converge.
    """
    own = room(subject.x, directions)  # (moves,)
    best = by_differences(subject, directions, np.fmin(LONGEST, own / 64))
    at_zero = flattened((directions != 0) & (subject.x == 0)).any(axis=1)  # of which nothing tells the scale
    badly = np.full(len(directions), True) if all_steps else ~(best.errors <= KNOWN * np.abs(best.values[:, 0]))
    tried = [LONGEST * 2.0 ** (-5 * k) for k in range(12)]
    for step, across in ((step, across) for across in (False, True) for step in tried if badly.any()):
        usable = ((step >= own) == across) & (step != best.steps) & badly
        flat = (best.values[:, 0] == 0) & best.responsive  # a step too long or too short sees nothing
        good = (KNOWN / 10 if across else KNOWN / 1000) * np.abs(best.values[:, 0])
        poor = np.flatnonzero(usable & (flat | at_zero | ~(best.errors <= good)))
        if poor.size:
            others = by_differences(subject, directions[poor], step)
            better = _are_better(others, Slopes(*(part[poor] for part in best)))
            for kept, new in zip(best, others, strict=True):
                kept[poor[better]] = new[better]
    return best


def _are_better(new: Slopes, before: Slopes) -> Array:
    """Which slopes are better known by other steps.

    If the two do not contradict each other, the one with the smaller error is better. If they do, the shorter step is
    right: the longer one has left what is local, and sees nothing of a narrow peak, or looks past a kink.
    """
    difference = np.abs(new.values - before.values)[:, 0]
    agree = ~(difference > 3 * (new.errors + before.errors))
    better = np.where(agree, new.errors < before.errors, new.steps < before.steps)
    better &= np.isfinite(new.errors) & (new.responsive >= before.responsive)  # a step too short to see is not better
    return np.asarray(better | ~np.isfinite(before.errors))


def _dependent_outputs(subject: Subject, directions: Array) -> Array:
    """Which outputs move where entries are an eighth less than they are, or far more, or far less: (moves, outputs)."""
    outwards = np.where(subject.x < 0, -1, 1) * np.fmax(np.abs(directions), directions != 0)
    moves = [sign * far * outwards for sign in (1, -1) for far in (2.0**-20, 2.0**-13, LONGEST)]
    moves.append(-np.where(directions != 0, subject.x / 8, 0))
    outputs = np.split(subject.values(np.concatenate([subject.x + there for there in moves])), len(moves))
    return np.asarray(np.any([(y != subject.output.ravel()) & np.isfinite(y) for y in outputs], axis=0))


def extrapolated(column: list[Array]) -> tuple[Array, Array]:
    """Richardson's extrapolation of central differences at h, h/2, h/4, ..., and what the last step of it changed."""
    tableau = [column]
    for order in range(1, len(column)):
        fine, coarse = tableau[-1][1:], tableau[-1][:-1]
        # (gradcheck.28), (gradcheck.29)
        tableau.append([(4**order * a - b) / (4**order - 1) for a, b in zip(fine, coarse, strict=True)])
    best, (coarser, finer) = tableau[-1][0], tableau[-2]  # (gradcheck.31)
    return best, np.maximum(np.abs(best - finer), np.abs(best - coarser))


def _weighted(slopes: Array, weights: Array) -> Array:
    """The weighted sums of the slopes for each cotangent: (..., cotangents)."""
    return _summed(slopes[..., None, :], weights.T)


def _summed(rows: Array, weights: Array) -> Array:
    """``rows @ weights``, so that the bits of no row depend on how many there are."""
    return np.asarray((rows * weights).sum(axis=-1))  # (gradcheck.5)


def _width(up: Array, down: Array, h: Array) -> Array:
    """By how much more, or less, than 2 h the input moved: about 2, for each level and move."""
    asked, got = (x.reshape(*x.shape[:2], math.prod(x.shape[2:])) for x in (h, up - down))
    usable = np.isfinite(got) & (asked != 0)
    single = (asked != 0).sum(axis=-1) == 1  # of a direction of several entries, each is rounded by itself
    ratio = np.where(usable, got, 0).sum(axis=-1) / np.where(usable, asked, 0).sum(axis=-1)
    return np.where(single & usable.any(axis=-1), ratio, 2.0)
