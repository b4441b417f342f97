"""What a function is like at a point: analytic or not, how noisy its outputs are, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_np.gradcheck.problem.calls import REFUSALS, NotAnalyticError
from attention_np.gradcheck.slopes.lines import POINTS, noise_of
from attention_np.gradcheck.slopes.methods import (
    BENT,
    COMPLEX_STEP,
    LEVELS,
    TOO_SMALL,
    UNDECIDABLE,
    Array,
    extrapolated,
)
from attention_np.gradcheck.slopes.moves import LONGEST, Subject, along_entries, magnitudes

TRIALS = tuple(LONGEST * 2.0 ** (-5 * k) for k in range(5))  # relative steps of differences
NOT_ANALYTIC = (
    "forward is not analytic (a cast, an abs, a comparison of complex numbers?), or loses small imaginary parts"
)


class Trial(NamedTuple):
    """What is seen of an input along one random direction, in which every entry takes part."""

    refusal: str | None  # why the complex step does not apply; None if nothing speaks against it
    unseen: Array  # of the shape of the input: how far off its slopes may be that nothing was seen of it
    bends: bool  # whether some output may have a kink at the point


def tried(subject: Subject, rng: np.random.Generator, noise: Callable[[], Array]) -> Trial:
    """The complex step, held against differences along one direction; `noise` of the outputs is asked if it matters.

    It takes evidence to say no: an output whose slopes by differences at two scales agree, within their errors, with
    each other, and with the complex step at none.
    """
    direction = random_direction(subject.x, rng)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        looks = _Looks(subject, direction, subject.rounding)
        found, error, _ = looks.at(TRIALS[0])
        likely = looks.likely
        bends, unknown = looks.bends, np.full(subject.x.shape, np.inf)
        try:
            output = subject.outputs((subject.x + 1j * COMPLEX_STEP * direction)[None])[0]
        except NotAnalyticError as refused:
            return Trial(str(refused), unknown, bends)
        except MemoryError:
            raise
        except Exception as refused:
            why = str(refused).partition("\n")[0] or type(refused).__name__
            return Trial(f"forward refuses complex arrays ({why})", unknown, bends)
        if output.dtype.kind != "c":
            return Trial(f"forward turns complex arrays into {output.dtype}", unknown, bends)
        slope = output.imag / COMPLEX_STEP
        if (~np.isfinite(slope) & np.isfinite(found)).any():
            return Trial("the complex step gives no finite slope", unknown, bends)
        agrees = np.abs(slope - found) <= UNDECIDABLE * error
        unseen = np.abs(slope - found) + likely
        if not agrees.all():
            other, resolved = _contradicted(looks, slope)
            if other is not None:  # were the outputs noisier than by their last bits?
                other, resolved = _contradicted(_Looks(subject, direction, noise().ravel()), slope)
            if other is not None:
                return Trial(contradiction(*other), unknown, bends)
            unseen = np.where(agrees, unseen, resolved)
        total = np.sqrt(np.square(unseen * subject.weights[:, 0]).sum())
        return Trial(None, total / np.abs(np.where(direction == 0, np.inf, direction)), bends)


def contradiction(step: float, difference: float) -> str:
    """In words, that the complex step and differences give other slopes."""
    return f"the complex step gives the slope {step:.9g}, differences {difference:.9g}: {NOT_ANALYTIC}"


def _contradicted(looks: _Looks, slope: Array) -> tuple[tuple[float, float] | None, Array]:
    """The complex step and the differences of the output in which they are farthest apart; None if they need not be.

    They need not where they agree at a scale that would have told. And how far apart they may be, for each output.
    """
    scales = [looks.at(scale) for scale in TRIALS]
    found, error, tells = (np.array(part) for part in zip(*scales, strict=True))  # (scales, outputs)
    differ = np.abs(found - slope)
    steady = tells[1:] & tells[:-1] & (np.abs(np.diff(found, axis=0)) <= UNDECIDABLE * np.fmin(error[1:], error[:-1]))
    apart = differ > UNDECIDABLE * error
    excess = np.where(steady & apart[1:] & apart[:-1], np.fmin(differ[1:], differ[:-1]), 0)
    agrees = tells & ~apart & (UNDECIDABLE * error < excess.max(axis=0, initial=0))
    excess[:, agrees.any(axis=0)] = 0
    weight = np.abs(looks.subject.weights[:, 0])
    excess[excess * weight <= TOO_SMALL * looks.subject.unit * (np.abs(slope) * weight).max(initial=0)] = 0
    scale, k = np.unravel_index(int(excess.argmax()), excess.shape) if excess.size else (0, 0)
    told = np.where(np.isfinite(differ + error), differ + error, np.inf).min(axis=0, initial=np.inf)
    resolved = np.where(np.isfinite(told), told, 0)
    return (float(slope[k]), float(found[scale, k])) if excess.size and excess[scale, k] > 0 else None, resolved


class _Looks:
    """The slope of each output along one direction by differences, its error, and whether the output moves at all."""

    def __init__(self, subject: Subject, direction: Array, rounding: Array) -> None:
        self.subject, self.direction, self.rounding, self.bends = subject, direction, rounding, False
        self.likely = np.zeros(rounding.shape)  # errors of the last step, if they go on falling as they have

    def at(self, scale: float) -> tuple[Array, Array, Array]:
        """At one step, halved twice."""
        steps = scale / 2.0 ** np.arange(LEVELS)
        moves = np.multiply.outer(np.stack([steps, -steps]).ravel(), self.direction)
        values = self.subject.values(self.subject.x + moves)
        up, down = values.reshape(2, LEVELS, self.subject.output.size)
        column = list((up - down) / (2 * steps[:, None]))
        best, truncation = extrapolated(column)
        bend = (up - 2 * self.subject.output.ravel() + down) / steps[:, None]
        left = np.abs(16 * bend[2] - 10 * bend[1] + bend[0]) / 7  # (gradcheck.81)
        rounding = 2 * self.rounding / steps[-1]
        self.bends |= bool((~(left <= BENT * rounding)).any())
        fell = np.fmin(truncation / np.abs(best - column[-1]), 1)
        self.likely = rounding + np.where(np.isfinite(fell), fell, 0) * truncation
        return best, truncation + rounding, (up != down).any(axis=0)


def random_direction(x: Array, rng: np.random.Generator) -> Array:
    """In which each entry moves by its own size."""
    v: Array = magnitudes(x) * rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape)
    return v


def noise_of_outputs(
    forward: Callable[..., Any], point: Sequence[Array], output: Array, rng: np.random.Generator
) -> Array:
    """How far rounding moves each output: what high differences leave of it on a short line through the point.

    That sees rounding inside the function, as single precision. Of an output that stays what it is on a line, a longer
    one is asked. J. J. More, S. M. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33, 2011.
    """
    directions = [np.where((x != 0).any() & (x == 0), 0, random_direction(x, rng)) for x in point]
    least = np.full(output.size, np.inf)
    with np.errstate(all="ignore"):
        for spacing in (2.0**-34, 2.0**-20, 2.0**-9):
            try:
                places = (
                    [np.asarray(x + k * spacing * v, x.dtype) for x, v in zip(point, directions, strict=True)]
                    for k in range(POINTS)
                )
                curves = np.array([np.ravel(forward(*place)) for place in places], float)
            except REFUSALS:
                continue
            found = noise_of(curves)
            still = np.isinf(least) | (spacing < LONGEST / 4)  # the last is for what stays as it is on shorter lines
            least = np.where((found > 0) & still, np.fmin(least, found), least)
    return np.asarray(np.where(np.isfinite(least), least, 0).reshape(output.shape))


def refusal_of(subject: Subject, element: int) -> str | None:
    """What forward raises where an entry moves a little, if it does."""
    try:
        subject.outputs(subject.x + LONGEST * along_entries(subject.x, np.array([element])))
    except REFUSALS as error:
        return f"{type(error).__name__} ({error})"
    return None
