"""How a function moves when entries of one input move: by the complex step, and by extrapolated central differences.

Both give, for each entry that moves, the derivative of ``(cotangent * output).sum()`` for several cotangents at once,
and an estimate of the error. The formulas are derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.measuring.reach import Reach, lost_of
from attention_np.gradcheck.measuring.subject import Subject, flattened, room, steps_along, summed

__all__ = [
    "COMPLEX_STEP",
    "COMPLEX_STEP_IN_SINGLE",
    "NotAnalyticError",
    "Slopes",
    "by_complex_step",
    "by_differences",
    "extrapolated",
]

Array = npt.NDArray[Any]

COMPLEX_STEP = 2.0**-100  # relative; its square is far below rounding whatever the function multiplies it with
COMPLEX_STEP_IN_SINGLE = 2.0**-40  # where small slopes times a shorter one would be lost
TINY = 2.0**-800  # of an entry, where a shorter step would be lost
CLEAR = 24  # times how far rounding moves the outputs: a jump of the slope
LEVELS = 3  # steps h, h/2 and h/4: errors of the orders h^2 and h^4 cancel


class NotAnalyticError(ValueError):
    """The complex step does not apply: the function refuses complex arrays, or is not analytic."""


class Slopes(NamedTuple):
    """Derivatives with respect to some entries, or along some directions."""

    values: Array  # (moves, cotangents)
    errors: Array  # (moves,): the method's own error for the first cotangent
    scales: Array  # (moves,): the longest step that was taken, relative to the direction
    lost: Array  # (moves,): how much last bits make up of the weighted sum, of outputs that hardly move; once known


def by_complex_step(
    subject: Subject, directions: Array, scale: Array | None = None, reach: Reach | None = None
) -> Slopes:
    """Im f(x + i h v) / h, for each direction v: exact but for rounding, as nothing is subtracted (gradcheck.14).

    The parameters are those of :func:`by_differences`; the scale is by default so short that nothing is left of h^2.
    """
    step, own = scale, room(subject, directions)  # (moves,)
    if step is None:  # so short that no entry moves by more than a small fraction of itself
        in_single = (subject.output.dtype.itemsize < 8) | (own < TINY)
        step = np.where(in_single, COMPLEX_STEP_IN_SINGLE, COMPLEX_STEP) * own
    try:
        outputs = subject.outputs(subject.x + 1j * steps_along(directions, step))
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
        errors = eps * summed(np.abs(slopes), weights) + step**2 * (np.abs(subject.output.ravel()) * weights).sum()
        values = _weighted(slopes, subject.weights)
        usable = np.isfinite(values[:, 0])
        return Slopes(values, np.where(usable, errors, np.inf), step, lost_of(subject, slopes, reach))


def by_differences(subject: Subject, directions: Array, scale: Array | float, reach: Reach | None = None) -> Slopes:
    """Richardson's extrapolation of central differences along each direction v, at h = scale, scale/2 and scale/4.

    The scale, of each move or of all, is relative to its direction; `reach` is what a closer look has found: without
    it, an output depends on a move if it is seen to move.
    """
    scale = np.broadcast_to(scale, len(directions))
    weights, loudness = subject.weights, subject.loudness  # (outputs, cotangents), (outputs,)
    column = []  # one for each step: (moves, cotangents)
    bends = []  # for each step, by how much the slopes of the first cotangent on both sides differ: (moves,)
    last_bit = np.zeros(len(directions))  # by which rounding moves the weighted sum
    with np.errstate(all="ignore"):
        steps = [scale / 2**level for level in range(LEVELS)]  # (gradcheck.23)
        asked = [steps_along(directions, step) for step in steps]
        places = [(subject.x + sign * h).astype(subject.x.dtype) for h in asked for sign in (1, -1)]
        outputs = np.split(subject.values(np.concatenate(places)), len(places))
        for level, (step, h) in enumerate(zip(steps, asked, strict=True)):
            width = _width(places[2 * level], places[2 * level + 1], h) * step  # what rounding made of 2 h
            above, below = outputs[2 * level : 2 * level + 2]
            difference = above - below  # (gradcheck.25)
            column.append(_weighted(difference, weights) / width[:, None])  # (gradcheck.25)
            moving = difference != 0 if reach is None else reach.touched
            last_bit = np.fmax(last_bit, np.sqrt(summed(moving, loudness**2)))
            bend = above - 2 * subject.output.ravel() + below
            bends.append(2 * summed(bend, weights[:, 0]) / width)  # (gradcheck.80)
            noise_of_bend = 2 * np.sqrt(summed(bend != 0, loudness**2)) / width
        best, truncation = extrapolated(column)
        jump = np.abs(16 * bends[2] - 10 * bends[1] + bends[0]) / 7  # of the slope, within the step (gradcheck.81)
        jump[~(jump > CLEAR * noise_of_bend)] = 0
        errors = truncation[:, 0] + 2 * last_bit / width + jump  # of the last, shortest step (gradcheck.33)
        if reach is not None:  # of an output that is seen to move, no more than its own last bits are lost
            own = np.broadcast_to(np.abs(subject.output.ravel()), difference.shape)
            reach = reach._replace(largest=np.where(difference != 0, own, reach.largest))
        lost = lost_of(subject, difference / width[:, None], reach)
    usable = np.isfinite(errors)  # which they are not where the slope is not
    return Slopes(best, np.where(usable, errors, np.inf), np.array(scale), lost)


def _weighted(slopes: Array, weights: Array) -> Array:
    """The weighted sums of the slopes for each cotangent: (moves, cotangents)."""
    return np.stack([summed(slopes, column) for column in weights.T], axis=1)


def extrapolated(column: list[Array]) -> tuple[Array, Array]:
    """Richardson's extrapolation of central differences at h, h/2, h/4, ..., and what the last step of it changed."""
    tableau = [column]
    for order in range(1, len(column)):
        fine, coarse = tableau[-1][1:], tableau[-1][:-1]
        # (gradcheck.28), (gradcheck.29)
        tableau.append([(4**order * a - b) / (4**order - 1) for a, b in zip(fine, coarse, strict=True)])
    best, (coarser, finer) = tableau[-1][0], tableau[-2]  # (gradcheck.31)
    return best, np.maximum(np.abs(best - finer), np.abs(best - coarser))


def _width(up: Array, down: Array, h: Array) -> Array:
    """By how much more, or less, than 2 h the input moved: about 2, for each move."""
    asked, got = flattened(h), flattened(up - down)
    usable = np.isfinite(got) & (asked != 0)
    single = (asked != 0).sum(axis=1) == 1  # of a direction of several entries, each is rounded by itself
    ratio = np.where(usable, got, 0).sum(axis=1) / np.where(usable, asked, 0).sum(axis=1)
    return np.where(single & usable.any(axis=1), ratio, 2.0)
