"""What outputs depend on, however little they move, and what rounding hides of it.

An output of which a move changes no bit may depend on it all the same: as a weight of softmax that has rounded to one,
or a small term beside a large constant. So the inputs are moved farther, and together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.measuring.subject import SCALES, Subject, room, steps_along, summed

__all__ = ["HIDDEN", "SMALLER", "WITHIN", "Reach", "hidden_by_rounding", "lost_of", "lost_of_each", "reach_of"]

Array = npt.NDArray[Any]

SATURATED = 4  # units in the last place of an output, that it moves by when an input moves by its own size
SMALLER = 2.0**-5  # so much smaller all entries are, where exponentials of them no longer saturate
FURTHER = 4  # times: the next move, of those that are to show what an output depends on
WITHIN = 8  # parts of the size of an input, within one of which a saturated output may have changed
HIDDEN = 1e-8  # of a slope: an error of the first step, or what outputs that do not move may hide, that is worth calls


class Reach(NamedTuple):
    """What moves do to the outputs by a closer look."""

    touched: Array  # (moves, outputs): whether a long move changes an output at all
    largest: Array  # (moves, outputs): the largest magnitude that it takes there


def lost_of(subject: Subject, slopes: Array, reach: Reach | None) -> Array:
    """What saturated outputs lose of the weighted sum of `slopes`, (moves, outputs)."""
    if reach is None:
        return np.zeros(len(slopes))
    return np.asarray(np.sqrt(summed(lost_of_each(subject, slopes, reach) ** 2, subject.weights[:, 0] ** 2)))


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
    step = steps_along(directions, SCALES[0] * room(subject, directions))
    with np.errstate(all="ignore"):
        outputs = subject.values(np.concatenate([x[None] / 2, SMALLER * x[None], x + step, x - step]))
        (half, smaller), up, down = np.split(outputs, [2, 2 + len(directions)])
        touched = (up != output) | (down != output) | (subject.values(SMALLER * (x + step)) != smaller)
        touched |= ~touched.any(axis=1, keepdims=True)  # the entry is too small to move anything, for all we know
        hidden = np.sqrt(summed(~touched, subject.loudness**2))
        slopes = np.abs(summed(up - down, subject.weights[:, 0]))
        for k in np.flatnonzero((hidden > HIDDEN * slopes) & (slopes > 0)):
            touched[k] |= _moved_further(subject, directions[k], step[k], touched[k])
        largest = np.abs(output)
        for reached in (half, smaller, up, down):
            largest = np.fmax(largest, np.where(np.isfinite(reached), np.abs(reached), 0))
    return Reach(touched, np.broadcast_to(largest, touched.shape))


def hidden_by_rounding(subject: Subject, scales: Array) -> Array:
    """What the last bits of all outputs may hide of slopes by differences at these scales, at most: (moves,)."""
    return np.asarray(4 * np.linalg.norm(subject.loudness) / scales)  # of steps of a fourth of them, there and back


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
