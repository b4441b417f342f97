"""How far an entry moves for differences: at first by a fraction of itself, and where need be as is best for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.measuring.reach import HIDDEN, Reach, hidden_by_rounding, reach_of
from attention_np.gradcheck.measuring.slopes import Slopes, by_differences
from attention_np.gradcheck.measuring.subject import SCALES, Subject, moves_zero, room

__all__ = ["by_best_differences", "by_first_differences"]

Array = npt.NDArray[Any]

NEAR = 2.0**-6  # of an entry that is smaller than others: the first step, if it need not be the best
GOOD = 1e-11  # a relative error that is not worth improving
BEYOND_ZERO = 1e-9  # one that is not worth moving an entry past zero, where functions may not be defined
APART = 3  # times the errors of two slopes, that contradict each other


def by_first_differences(subject: Subject, directions: Array) -> Slopes:
    """Differences where an entry moves by a fraction of itself; the best where that gives no slope.

    Where it gives a coarse one, small entries are moved as far as others of their array. Where outputs that are not
    seen to move may hide what counts, it is found out whether they depend on the entry.
    """
    scale = np.fmin(SCALES[0], NEAR * room(subject, directions))
    found = by_differences(subject, directions, scale)
    refused = np.flatnonzero(~np.isfinite(found.values[:, 0]))
    if refused.size:
        _put(found, refused, by_best_differences(subject, directions[refused]))
    coarse = np.flatnonzero((found.errors > HIDDEN * np.abs(found.values[:, 0])) & (scale < SCALES[0]))
    if coarse.size:
        _put_better(found, coarse, by_differences(subject, directions[coarse], SCALES[0]))
    slopes = np.abs(found.values[:, 0])
    counts = np.fmax(HIDDEN * slopes, UNDECIDABLE * found.errors)  # what is less is no more than the errors excuse
    unsure = np.flatnonzero((hidden_by_rounding(subject, found.scales) > counts) & (slopes > 0))
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
    own = room(subject, directions)  # (moves,)
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
