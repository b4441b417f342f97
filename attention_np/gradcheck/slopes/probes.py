"""What a function is like at a point: analytic or not, how noisy its outputs are, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.calls import REFUSALS, NotAnalyticError
from attention_np.gradcheck.slopes.methods import (
    COMPLEX_STEP,
    LEVELS,
    TOO_SMALL,
    UNDECIDABLE,
    by_complex_step,
    by_differences,
)
from attention_np.gradcheck.slopes.moves import LONGEST, Subject, entry_directions, magnitudes

FIRST = 2.0**-9  # the relative step at which truncation and rounding are both small, as a rule
TRIALS = tuple(2.0**-k for k in (7, 9, 12, 16, 21, 27))  # relative steps, all of which are asked in doubt
ORDER = 5  # of the differences that leave noise alone
POINTS = 10  # on a line: enough for those differences to be a sample of the noise
NOT_ANALYTIC = (
    "forward is not analytic (a cast, an abs, a comparison of complex numbers?), or loses small imaginary parts"
)


class Trial(NamedTuple):
    """What is seen of an input along one random direction, in which every entry takes part."""

    refusal: str | None  # why the complex step does not apply; None if nothing speaks against it
    unseen: Array  # of the shape of the input: how far off its slopes may be that nothing was seen of it
    bends: bool  # whether the function may have a kink at the point


def tried(subject: Subject, rng: np.random.Generator, noise: Callable[[], Array]) -> Trial:
    """The complex step, held against differences along one direction; `noise` of the outputs is asked if it matters."""
    direction = random_direction(subject.x, rng)[None]
    unknown = np.full(subject.x.shape, np.inf)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        first = by_differences(subject, direction, FIRST)
        bends, quotient = bool(first.bent[0]), float(first.values[0, 0])
        try:
            slopes = by_complex_step(subject, direction).values[0]
            slope, depends = float(slopes[0]), np.zeros(subject.output.size, bool)
            if not abs(slope - quotient) <= UNDECIDABLE * first.errors[0]:
                depends = subject.outputs(subject.x + 1j * COMPLEX_STEP * direction)[0].imag != 0
        except NotAnalyticError as refused:
            return Trial(str(refused), unknown, bends)
        if not np.isfinite(slope) and np.isfinite(quotient):
            return Trial("the complex step gives no finite slope", unknown, bends)
        unseen = np.abs(slopes - first.values[0]).max() + first.errors[0]  # for one cotangent it may cancel
        if not abs(slope - quotient) <= UNDECIDABLE * (first.errors[0] + _hidden(subject, depends, FIRST)):
            other, unseen = _contradicted(subject, direction, slope, depends)
            if other is not None:  # were the outputs noisier than by their last bits?
                other, unseen = _contradicted(replace(subject, noise=noise()), direction, slope, depends)
            if other is not None:
                return Trial(contradiction(slope, other), unknown, bends)
        return Trial(None, unseen / np.abs(np.where(direction[0] == 0, np.inf, direction[0])), bends)


def _hidden(subject: Subject, depends: Array, step: float) -> float:
    """What slopes of outputs that do not move may be, as of those that have saturated, where the complex step has some.

    It is what their rounding makes of a difference at the shortest of the steps.
    """
    return float(np.linalg.norm((subject.rounding * subject.weights[:, 0])[depends])) / step * 2.0 ** (LEVELS - 1)


def contradiction(step: float, difference: float) -> str:
    """In words, that the complex step and differences give other slopes."""
    return f"the complex step gives the slope {step:.9g}, differences {difference:.9g}: {NOT_ANALYTIC}"


def _contradicted(subject: Subject, direction: Array, slope: float, depends: Array) -> tuple[float | None, float]:
    """The slope by differences that speaks against the complex step; None if none does. How far apart they may be.

    It takes evidence to say no: slopes by differences at two scales that agree, within their errors, with each other,
    and with the complex step at none that would have told.
    """
    scales = [by_differences(subject, direction, step) for step in TRIALS]
    quotients, error, moves = (
        np.ravel([getattr(x, part)[..., 0] for x in scales]) for part in ("values", "errors", "responsive")
    )
    error = error + np.array([_hidden(subject, depends, step) for step in TRIALS])
    apart = np.abs(quotients - slope)
    differs, tells = apart > UNDECIDABLE * error, moves.astype(bool)
    same = np.abs(np.diff(quotients)) <= UNDECIDABLE * np.fmin(error[1:], error[:-1])
    steady = tells[1:] & tells[:-1] & same & differs[1:] & differs[:-1]
    excess = np.where(steady, np.fmin(apart[1:], apart[:-1]), 0)
    agrees = tells & ~differs & (UNDECIDABLE * error < excess.max())
    told = (apart + error)[np.isfinite(apart + error)]
    best = int(excess.argmax())
    is_clear = excess[best] > TOO_SMALL * subject.unit * abs(slope) and not agrees.any()
    return float(quotients[best]) if is_clear else None, float(told.min(initial=np.inf)) if told.size else 0.0


def random_direction(x: Array, rng: np.random.Generator) -> Array:
    """In which each entry moves by its own size."""
    v: Array = magnitudes(x) * rng.choice([-1, 1], x.shape) * rng.uniform(0.5, 1, x.shape)
    return v


def high_differences(points: Array) -> Array:
    """Differences of a high order along the first axis, each as large as the noise of one point: (points - ORDER, ...).

    What is smooth leaves next to nothing, and noise the root of the sum of the squares of their weights, which is that
    of ``comb(2 * ORDER, ORDER)`` (gradcheck.69).
    """
    return np.asarray(np.diff(points, n=ORDER, axis=0) / np.sqrt(comb(2 * ORDER, ORDER)))  # (gradcheck.68)


def noise_of(points: Array) -> Array:
    """The noise of each curve: the root mean square of its high differences."""
    return np.asarray(np.sqrt(np.square(high_differences(points)).mean(axis=0)))


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
            still = np.isinf(least) | (spacing < LONGEST / 4)  # the last is for what stays as it is on shorter lines
            if not still.any():
                break
            try:
                places = (
                    [np.asarray(x + k * spacing * v, x.dtype) for x, v in zip(point, directions, strict=True)]
                    for k in range(POINTS)
                )
                curves = np.array([np.ravel(forward(*place)) for place in places], float)
            except REFUSALS:
                continue
            noise = noise_of(curves)
            least = np.where((noise > 0) & still, np.fmin(least, noise), least)
    return np.asarray(np.where(np.isfinite(least), least, 0).reshape(output.shape))


def refusal_of(subject: Subject, element: int) -> str | None:
    """What forward raises where an entry moves a little, if it does."""
    try:
        subject.outputs(subject.x + LONGEST * entry_directions(subject.x, np.array([element])))
    except REFUSALS as error:
        return f"{type(error).__name__} ({error})"
    return None
