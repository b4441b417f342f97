"""How a function moves when entries of one input move: by the complex step, and by extrapolated central differences.

Both give, for each entry that moves, the derivative of ``(cotangent * output).sum()`` for several cotangents at once,
and an estimate of the error. The formulas are derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.functions import Forward

__all__ = [
    "SCALES",
    "NotAnalyticError",
    "Slopes",
    "Subject",
    "along",
    "by_best_differences",
    "by_complex_step",
    "by_differences",
    "extrapolated",
    "rows_in",
    "sizes",
]

Array = npt.NDArray[Any]

COMPLEX_STEP = 2.0**-100  # relative; its square is far below rounding whatever the function multiplies it with
COMPLEX_STEP_IN_SINGLE = 2.0**-40
SCALES = tuple(2.0**-k for k in (7, 12, 17, 22, 27, 32, 37, 42, 2, 47, 52, 57))  # relative steps, as they are tried
SATURATED = 4  # units in the last place of an output, that it moves by when an input moves by its own size
KNOWN = 0.1  # a slope whose relative error is less
GOOD = 1e-11  # a relative error that is not worth improving
LEVELS = 3  # steps h, h/2 and h/4: errors of the orders h^2 and h^4 cancel
SMALLEST = 1e-250  # whatever is smaller counts as zero: a fraction of it could not be told from it


class NotAnalyticError(ValueError):
    """The complex step does not apply: the function refuses complex arrays, or is not analytic."""


class Slopes(NamedTuple):
    """Derivatives with respect to some entries, or along some directions."""

    values: Array  # (moves, cotangents)
    errors: Array  # (moves,): the method's own error for the first cotangent
    scales: Array  # (moves,): the longest step that was taken, relative to the direction
    lost: Array  # (moves,): how much last bits make up of the weighted sum, of outputs that hardly move


@dataclass(frozen=True)
class Subject:
    """A function at a point, to be differentiated with respect to one of its inputs."""

    forward: Forward
    point: tuple[Array, ...]
    position: int  # of the input
    output: Array  # at the point
    cotangents: Array  # (cotangents, *output.shape)
    batched: bool = False  # whether this input may carry one more leading axis, and the output then does, too
    noise: Array | None = None  # how far rounding moves each output, of its shape; by default by its last bit
    unit: float = float(np.finfo(np.float64).eps)  # the last bit of one, in the dtype in which gradients are claimed

    @property
    def x(self) -> Array:
        """The input that moves."""
        return self.point[self.position]

    @property
    def weights(self) -> Array:
        """The cotangents as the columns of a matrix."""
        wide = np.result_type(self.cotangents, np.float64)
        return np.asarray(self.cotangents.reshape(len(self.cotangents), -1).astype(wide).T)  # (outputs, cotangents)

    @property
    def loudness(self) -> Array:
        """How far rounding moves each output, times its weight in the first cotangent: (outputs,)."""
        eps = float(np.finfo(self.output.dtype).eps)
        noise = eps * np.abs(self.output) if self.noise is None else self.noise
        loudness: Array = np.abs(noise.ravel() * self.weights[:, 0])
        return loudness

    def outputs(self, moved: Array) -> Array:
        """The outputs, one a row, where the input takes each of the values in `moved`, (moves, *x.shape)."""
        point = [x.astype(np.result_type(x, moved)) for x in self.point]
        if not self.batched:
            rows = []
            for k in range(len(moved)):
                point[self.position] = moved[k, ...]
                rows.append(np.array(self.forward(*(x.copy() for x in point))).ravel())
            return np.array(rows).reshape(len(moved), self.output.size)
        ones = (1,) * max(0, self.output.ndim - self.x.ndim)  # so that the new axis comes before all others
        point[self.position] = moved.reshape(len(moved), *ones, *self.x.shape)
        found = np.asarray(self.forward(*point))
        return np.broadcast_to(found, (len(moved), *self.output.shape)).reshape(len(moved), -1)

    def at(self, point: Sequence[Array], cotangents: Array) -> Subject:
        """The same function at another point."""
        return replace(self, point=tuple(point), cotangents=cotangents)


def sizes(x: Array) -> Array:
    """What a step from each entry of `x` is relative to: its magnitude, or the typical one of `x` if that is larger.

    A power of two, so that nothing is rounded when a step or a slope is multiplied by it.
    """
    magnitude = np.where(np.isfinite(x), np.abs(x), 0)
    nonzero = magnitude[magnitude > SMALLEST]
    size = np.maximum(magnitude, np.median(nonzero) if nonzero.size else 1.0)
    powers: Array = np.ldexp(np.ones_like(size), np.frexp(size)[1] - 1)
    return powers


def along(x: Array, elements: Array) -> Array:
    """The directions in which one entry of `x` moves alone, by its size: (elements, *x.shape)."""
    directions = np.zeros((len(elements), x.size), x.dtype)
    directions[np.arange(len(elements)), elements] = sizes(x).ravel()[elements]
    return directions.reshape(len(elements), *x.shape)


def by_complex_step(
    subject: Subject, directions: Array, touched: Array | None = None, shortness: float = 1.0
) -> Slopes:
    """Im f(x + i h v) / h, for each direction v: exact but for rounding, as nothing is subtracted (gradcheck.14).

    The parameters are those of :func:`by_differences`, and a factor on the step.
    """
    step = shortness * _complex_steps(subject, directions)  # (moves,)
    try:
        outputs = subject.outputs(subject.x + 1j * step.reshape(-1, *(1,) * subject.x.ndim) * directions)
    except Exception as error:
        raise NotAnalyticError(
            f"forward refuses complex arrays, so the complex step does not apply: use central ({error})"
        ) from error
    if outputs.dtype.kind != "c":
        raise NotAnalyticError(
            f"forward turns complex arrays into {outputs.dtype}, so the complex step does not apply: use central"
        )
    with np.errstate(all="ignore"):
        slopes = outputs.imag / step[:, None]  # (moves, outputs)
        eps = float(np.finfo(outputs.dtype).eps)
        weights = np.abs(subject.weights[:, 0])
        # (gradcheck.48), and what the square of the step leaves (gradcheck.14)
        errors = eps * (np.abs(slopes) @ weights) + step**2 * float(np.abs(subject.output.ravel()) @ weights)
        lost = _lost(subject, slopes, slopes != 0 if touched is None else touched)
        return Slopes(slopes @ subject.weights, errors, step, lost)


def _complex_steps(subject: Subject, directions: Array) -> Array:
    """So short that none of the entries that move does so by more than a small fraction of itself: (moves,)."""
    step = COMPLEX_STEP_IN_SINGLE if subject.output.dtype.itemsize < 8 else COMPLEX_STEP
    with np.errstate(all="ignore"):
        room = np.where((directions != 0) & (np.abs(subject.x) > SMALLEST), np.abs(subject.x / directions), np.inf)
    least = np.fmin(room.reshape(len(directions), -1).min(axis=1, initial=np.inf), 1.0)
    return np.asarray(np.ldexp(step, np.frexp(least)[1] - 1).astype(np.float64))  # a power of two


def by_differences(subject: Subject, directions: Array, scale: Array | float, touched: Array | None = None) -> Slopes:
    """Richardson's extrapolation of central differences along each direction v, at h = scale, scale/2 and scale/4.

    Parameters
    ----------
    subject : Subject
    directions : ndarray, (moves, *x.shape)
    scale : float or ndarray, (moves,)
        The longest step, relative to each direction.
    touched : ndarray of bool, (moves, outputs), optional
        The outputs that depend on each move, as :func:`dependence` finds them; by default those that are seen to move.
    """
    scale = np.broadcast_to(scale, len(directions))
    weights, loudness = subject.weights, subject.loudness  # (outputs, cotangents), (outputs,)
    column = []  # one for each step: (moves, cotangents)
    last_bit = np.zeros(len(directions))  # by which rounding moves the weighted sum
    with np.errstate(all="ignore"):
        for level in range(LEVELS):
            step = scale / 2**level
            h = step.reshape(-1, *(1,) * subject.x.ndim) * directions
            up, down = subject.x + h, subject.x - h
            width = _width(up, down, h) * step  # what rounding made of 2 h
            difference = subject.outputs(up) - subject.outputs(down)
            column.append(difference @ weights / width[:, None])  # (gradcheck.25)
            moving = difference != 0 if touched is None else touched
            last_bit = np.fmax(last_bit, np.sqrt(moving @ loudness**2))
        best, truncation = extrapolated(column)
        errors = truncation[:, 0] + 2 * last_bit / width  # of the last, shortest step (gradcheck.33)
        lost = _lost(subject, difference / width[:, None], moving)
    usable = np.isfinite(best[:, 0]) & np.isfinite(errors)
    return Slopes(best, np.where(usable, errors, np.inf), np.array(scale), lost)


def _lost(subject: Subject, slopes: Array, touched: Array) -> Array:
    """What saturated outputs lose of the weighted sum of `slopes`, (moves, outputs): their last bits.

    An output is saturated if it depends on an input, but would not move by its last bit if the input moved by its own
    size: as a weight of softmax that has rounded to one.
    """
    size = np.abs(subject.output.ravel())
    other = size.max(initial=0) or float(sizes(subject.x).max(initial=0))
    last_bits = subject.unit * np.where(size > 0, size, other)  # a zero may be what two large terms left
    saturated = touched & (np.abs(slopes) <= SATURATED * last_bits)
    return np.asarray(np.sqrt(saturated @ (last_bits * subject.weights[:, 0]) ** 2))


def dependence(subject: Subject, directions: Array) -> Array:
    """The outputs that depend on each move at all, however little: (moves, outputs).

    Those to which a NaN spreads. A function that takes none is held to depend on everything.
    """
    with np.errstate(all="ignore"):
        try:
            return np.isnan(subject.outputs(np.where(directions != 0, np.nan, subject.x)))
        except Exception:
            return np.ones((len(directions), subject.output.size), bool)


def extrapolated(column: list[Array]) -> tuple[Array, Array]:
    """Richardson's extrapolation of central differences at h, h/2, h/4, ..., and what the last step of it changed."""
    tableau = [column]
    for order in range(1, len(column)):
        fine, coarse = tableau[-1][1:], tableau[-1][:-1]
        # (gradcheck.28), (gradcheck.29)
        tableau.append([(4**order * a - b) / (4**order - 1) for a, b in zip(fine, coarse, strict=True)])
    best, (coarser, finer) = tableau[-1][0], tableau[-2]  # (gradcheck.31)
    return best, np.maximum(np.abs(best - finer), np.abs(best - coarser))


def by_best_differences(subject: Subject, directions: Array) -> Slopes:
    """Differences at the scale, of all in `SCALES`, at which each slope comes with the smallest error."""
    touched = dependence(subject, directions)
    best = by_differences(subject, directions, SCALES[0], touched)
    for scale in SCALES[1:]:
        poor = np.flatnonzero(~(best.errors <= GOOD * np.abs(best.values[:, 0])))
        if not poor.size:
            break
        found = by_differences(subject, directions[poor], scale, touched[poor])
        better = _is_better(found, best.errors[poor], best.values[poor, 0])
        for kept, new in zip(best, found, strict=True):
            kept[poor[better]] = new[better]
    return best


def _is_better(found: Slopes, errors: Array, values: Array) -> Array:
    """Which slopes are the better known ones: relative to themselves; or absolutely, if none of the two is known.

    Of a steep function, a long step sees nothing, and knows that nothing very well.
    """
    with np.errstate(all="ignore"):
        here, there = np.abs(found.errors / found.values[:, 0]), np.abs(errors / values)
    here, there = np.where(np.isnan(here), np.inf, here), np.where(np.isnan(there), np.inf, there)
    known = np.fmin(here, there) < KNOWN
    return np.where(known, here < there, found.errors < errors)


def _width(up: Array, down: Array, h: Array) -> Array:
    """By how much more, or less, than 2 h the input moved: about 2, for each move."""
    moves = len(h)
    asked, got = h.reshape(moves, -1), (up - down).reshape(moves, -1)
    usable = np.isfinite(got) & (asked != 0)
    single = (asked != 0).sum(axis=1) == 1  # of a direction of several entries, each is rounded by itself
    ratio = np.where(usable, got, 0).sum(axis=1) / np.where(usable, asked, 0).sum(axis=1)
    return np.where(single & usable.any(axis=1), ratio, 2.0)


def rows_in(memory: int, subject: Subject) -> int:
    """How many moves fit in `memory` bytes at once: a power of two, from what one call of forward takes."""
    least = 64 * (subject.x.size + subject.output.size)  # four complex arrays
    if not subject.batched:
        return _power_of_two(memory / max(least, 1))
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        subject.outputs(subject.x[None] + 0j)
        peak = tracemalloc.get_traced_memory()[1] - before
    except Exception:
        peak = 0
    finally:
        if not tracing:
            tracemalloc.stop()
    return _power_of_two(memory / max(peak, least, 1))


def _power_of_two(number: float) -> int:
    return 1 << max(0, min(30, int(np.log2(max(1.0, number)))))
