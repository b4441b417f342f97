"""The noise floor: of a difference between two gradients, how much rounding can be blamed for.

It is estimated from the functions as they are, in four ways that see different things.

- *Inputs moved in their last bit*, the cotangent too: how far each of the two gradients moves. It sees cancellation
  inside the functions.
- *Inputs moved a little more*: how far the difference between the two moves. It is zero everywhere for a right
  gradient, so that its moves are noise; while the difference that a bug makes stays, but for a small part of itself.
- *A wider dtype*, where the functions take one: how far the difference moves then. It sees what no small move of the
  inputs reaches, as the rounding in 1 - tanh(x)^2 near saturation.
- *Equally spaced points*: how unsteady the difference is there. It sees the same where there is no wider dtype, and
  besides what a solver or a series is off by that stops at a tolerance of its own.

Derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import comb, inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import moved
from attention_np.gradcheck.measuring.subject import REFUSALS, magnitudes

__all__ = [
    "Line",
    "Pair",
    "Question",
    "elsewhere",
    "high_differences",
    "moved_relatively",
    "noise_floor",
    "own_tolerance",
    "sensitivity",
    "unsteadiness",
    "wider_difference",
]

Array = npt.NDArray[Any]

ULPS = 4  # by how many units in the last place, at most, the inputs are moved
SMALL_MOVES, LARGER_MOVES = 4, 2  # of which the largest change counts (gradcheck.56)
LARGER = 0.75  # a larger move is eps to this power, relative (gradcheck.55)
STEADY = 1e-3  # of a difference: by how much what does not jump moves with it
GROSS = 1e-6  # relative: no rounding comes so far, but to single or half precision

POINTS, ORDER = 10, 3  # that are equally spaced, and of the differences there
HIGHER = 5  # the order of differences that leave a jump of the function, however small, more than what is smooth
CLOSE = tuple(2.0**-k for k in (7, 9, 11, 14, 17, 20))  # how far points are apart, relative, as it is tried
APART = (2.0**-4, 2.0**-5, *CLOSE)  # so far that a solver takes another number of steps
# Of smooth slopes, differences of a high order leave at most so much of the largest. Of the error of a wrong formula
# they leave no more: so ten times what is left is less than the error, as long as this is below a tenth. And below a
# hundredth where thrice what is left of one entry is allowed all others, as what solvers and series are off by is.
SMOOTH, SMOOTH_BUT_FOR_JUMPS = 1e-2, 1e-3
ALIKE = 2.0**-5  # by which the ways of entries differ: symmetric matrices, and rows that sum to one, stay nearly such
CLOSER = 2  # times: then the differences of a smooth function fall by this to the power of their order, in a few looks
FALLS = 16  # times: so much less is left where nothing jumps, or of rounding
WIDER = 8  # times: of a function with a kink so much more is left then, by where it is up to thrice more or less
LOOKS = 10  # so often closer: a wave is no jump of which one is as long as a point is from the next in the end
ELSEWHERE = 2.0**-7  # relative: another point, as far off as no formula is right by accident, and hardly any branch

Question = tuple[Array, list[Array]]  # the cotangent and all inputs
Way = Callable[[Array, list[Array]], Array]  # to a gradient, from these


class Pair(NamedTuple):
    """Two ways to the same numbers."""

    claimed: Way
    measured: Way

    def at(self, cotangent: Array, inputs: list[Array]) -> tuple[Any, Any]:
        """Both; NaN for one that refuses this point, as a function of probabilities that no more sum to one."""
        return _or_nan(self.claimed, cotangent, inputs), _or_nan(self.measured, cotangent, inputs)


def noise_floor(
    pair: Pair, cotangent: Array, inputs: list[Array], rng: np.random.Generator, measured: Array | None = None
) -> Array:
    """How far the difference between the two moves when the inputs do, entry by entry.

    `measured`: what the one that is measured is where the inputs are, if that is known.
    """
    question, last_bits = (cotangent, *inputs), (float(np.finfo(x.dtype).eps) for x in (cotangent, *inputs))
    with np.errstate(all="ignore"):
        measured = pair.measured(cotangent, inputs) if measured is None else measured
        here = np.stack([pair.claimed(cotangent, inputs), measured])
        far = [eps**LARGER for eps in last_bits]
        points = [
            [moved_relatively(x, rng, most) for x, most in zip(question, far, strict=True)] for _ in range(LARGER_MOVES)
        ]
        points += [[moved(x, rng, ULPS) for x in question] for _ in range(SMALL_MOVES)]
        each = np.empty((2, len(points), *here.shape[1:]), here.dtype)  # what both are at each of them
        for k, (u, *point) in enumerate(points):
            each[0, k], each[1, k] = pair.at(u, point)
        moves = np.abs(each - here[:, None])[:, LARGER_MOVES:]
        drifts = np.abs(each[0] - each[1] - (here[0] - here[1]))[:LARGER_MOVES]  # (gradcheck.54)
        of_claim, of_measured = np.fmax.reduce(moves, axis=1, initial=0)
        drift = np.fmax.reduce(drifts, initial=0)
        of_claim = of_claim + np.where(np.isfinite(drift), drift, 0)
        floor = of_measured + np.where(_is_at_an_edge(here, each, cotangent), 0, of_claim)
    return np.where(np.isfinite(floor), floor, 0)


def _is_at_an_edge(here: Array, each: Array, cotangent: Array) -> Array:
    """Whether the claim has another branch close by, and what is measured has not: that is no rounding.

    On one side both are the same then, and on the other as far apart as here.
    """
    apart, there = here[0] - here[1], each[0] - each[1]
    near = STEADY * np.abs(apart)
    gone = np.abs(there) <= near
    either = gone | (np.abs(there - apart) <= near)
    steady = np.abs(each[1] - here[1]) <= near
    largest = max(np.abs(here).max(initial=0), np.abs(cotangent).max(initial=0))
    return np.asarray((np.abs(apart) > GROSS * largest) & gone.any(axis=0) & (either & steady).all(axis=0))


def sensitivity(way: Way, cotangent: Array, inputs: list[Array], rng: np.random.Generator) -> Array:
    """How far the last bits of the inputs move one of the two."""
    here = way(cotangent, inputs)
    furthest: Array = np.zeros(here.shape)
    with np.errstate(all="ignore"):
        for _ in range(SMALL_MOVES):
            u, *point = (moved(x, rng, ULPS) for x in (cotangent, *inputs))
            furthest = np.fmax(furthest, np.abs(_or_nan(way, u, point) - here))
    return furthest


def unsteadiness(pair: Pair, cotangent: Array, inputs: list[Array], rng: np.random.Generator) -> Array:
    """What differences of a high order leave of the difference between the two, at equally spaced points close by.

    A wrong formula is smooth, and leaves next to nothing. Rounding is not, as that of 1 - y * y where y is nearly one:
    so long as y stays the same number, it looks like an error. The points are as far apart as the slopes are smooth.
    """
    line = Line(pair, (cotangent, inputs), rng)
    left = np.zeros(line.shape)
    with np.errstate(all="ignore"):
        for _, claimed, measured, _, smooth in line.looks(CLOSE, SMOOTH):
            left = np.where(smooth, _left_over(claimed - measured), left)
    return left


def own_tolerance(line: Line, most: float) -> tuple[Array, Array]:
    """The same of slopes that jump from point to point, as those of what stops at a tolerance, and steady claims.

    A solver or a series stops after as many steps as its tolerance takes. Points further apart show it, and closer ones
    where most is left: there the error of a formula falls, however short its wave is, and a jump stays. The first is of
    slopes that are smooth but for that, as of a right gradient; the second of any that jump, infinite where a branch of
    the function ends. No jump is looked for that times `most` would be less than the difference; nor one at the point
    itself, where the difference is what is asked about.
    """
    left, jumps = np.zeros((2, *line.shape))
    with np.errstate(all="ignore"):
        for spacing, claimed, measured, rough, smooth in line.looks(APART, SMOOTH_BUT_FOR_JUMPS):
            apart, found = claimed - measured, np.zeros(line.shape)
            unsteady = rough & (most * _unsteady(apart[:-1], measured[:-1]) > np.abs(apart[-1]))
            if unsteady.any() and np.isinf(line.rounding).all():
                break
            for entry in np.flatnonzero(unsteady & (smooth | (jumps == 0))):
                found[entry] = _jump(line, int(entry), spacing, apart[:-1, entry])
            left, jumps = np.where(smooth, found, left), np.fmax(jumps, found)
            if np.isinf(jumps).any():
                break  # which excuses nothing in any entry
            rough &= ~(most * _unsteady(apart, measured) <= np.abs(apart[-1]))  # what is steady is so closer by as well
    return left, jumps


def _unsteady(apart: Array, measured: Array) -> Array:
    """What is left of a difference, or of the part of the slopes that it is: that of a formula is steady in either."""
    return np.asarray(np.fmin(_left_over(apart), _left_over(apart / measured) * np.abs(measured).max(axis=0)))


def _jump(line: Line, entry: int, spacing: float, apart: Array) -> float:
    """What is left of the difference at spaced points, if that is left at ever closer ones, too, where most is.

    Infinite where a branch ends: the slopes jump by more than themselves, as for no tolerance, or the function has a
    kink there.
    """
    place, most, alone = 1 - POINTS, _left_over(apart), line.alone[entry]
    if not most > FALLS * line.rounding[entry]:
        return 0.0
    for _ in range(LOOKS):
        place = CLOSER * (place + int(np.abs(np.diff(apart, n=ORDER)).argmax()))
        place = min(place, -1 - CLOSER * ORDER)  # and nowhere beyond
        spacing /= CLOSER
        there = [(place + k) * spacing for k in range(CLOSER * ORDER + 1)]
        claimed = np.array([np.broadcast_to(line.at(line.pair.claimed, far), line.shape)[entry] for far in there])
        measured = np.array([np.ravel(line.at(alone.measured, far))[0] for far in there])
        apart = claimed - measured
        of_measured = _left_over(measured)
        if not FALLS * min(_left_over(apart), of_measured) > most:  # of what is measured, too: or backward jumps
            return 0.0
    coarse = of_measured > np.abs(measured).max() / 2
    return inf if coarse or (line.loss is not None and _has_a_kink(line, line.loss, there)) else float(most)


def _has_a_kink(line: Line, loss: Way, there: list[float]) -> bool:
    """Whether the function itself is continuous where its slopes jump.

    What is left of it at points so many times closer then falls by as much. Of a function that jumps, none of it does,
    as differences of a higher order see also beside what is smooth; of a smooth one, as that of a solver far better
    than its slopes, far more.
    """
    middle, spacing = there[len(there) // 2], there[1] - there[0]
    places = range(-HIGHER, HIGHER + 1)
    losses = [np.array([line.at(loss, middle + k * times * spacing) for k in places]) for times in (WIDER, 1)]
    least = FALLS * float(np.finfo(losses[1].dtype).eps) * np.abs(losses[1]).max()
    left = ([_left_over(points, order) for points in losses] for order in (ORDER, HIGHER))
    return all(close > least and WIDER / 3 < wide / close < 4 * WIDER for wide, close in left)


class Line:
    """Points on a line from where the inputs are towards zero, where what diverges does not; none is asked twice.

    `alone`: pairs of one entry each, which cost less than that of all. `loss`: what the slopes are those of, if kinks
    of it are to be told from tolerances: real numbers alone are taken by solvers that choose between two ways where
    those are equal.
    """

    def __init__(
        self,
        pair: Pair,
        question: Question,
        rng: np.random.Generator,
        alone: Sequence[Pair] = (),
        loss: Way | None = None,
    ) -> None:
        self.pair, self.question, self.alone, self.loss = pair, question, alone, loss
        self.ways = [rng.uniform(1 - ALIKE, 1, x.shape) for x in question[1]]
        self.known: dict[tuple[Way, float], Any] = {}

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of what is claimed."""
        return np.shape(self.at(self.pair.claimed, 0.0))

    def at(self, way: Way, far: float) -> Any:
        """What one of the ways gives so far off, relative."""
        if (way, far) not in self.known:
            cotangent, inputs = self.question
            place = [np.array(x * (1 + far * v), x.dtype) for x, v in zip(inputs, self.ways, strict=True)]
            self.known[way, far] = _or_nan(way, cotangent, place)
        return self.known[way, far]

    def spaced(self, way: Way, spacing: float) -> Array:
        """The same at points so far apart; the last is where the inputs are."""
        return np.stack([np.broadcast_to(self.at(way, k * spacing), self.shape) for k in range(1 - POINTS, 1)])

    def looks(self, spacings: Iterable[float], smooth: float) -> Iterator[tuple[float, Array, Array, Array, Array]]:
        """What is claimed and what is measured at points ever closer, until the latter has been smooth in all entries.

        With the spacing, which of them have not been so before, of which some may be taken off, and which are now.
        """
        rough = np.ones(self.shape, bool)
        for spacing in spacings if rough.any() else ():
            claimed, measured = (self.spaced(way, spacing) for way in self.pair)
            found = rough & (_left_over(measured) <= smooth * np.abs(measured).max(axis=0))
            found &= np.isfinite(_left_over(claimed))
            yield spacing, claimed, measured, rough, found
            rough &= ~found
            if not rough.any():
                return

    @cached_property
    def rounding(self) -> Array:
        """What is left of the claims at points that are next to each other; infinite where they are alike there."""
        claims = self.spaced(self.pair.claimed, APART[-1])
        return np.asarray(np.where((claims == claims[0]).all(axis=0), np.inf, _left_over(claims)))


def high_differences(points: Array, order: int) -> Array:
    """Differences of a high order of numbers at equally spaced points, the first axis: as large as the noise of each.

    Of what is smooth they leave next to nothing.
    """
    return np.asarray(np.diff(points, n=order, axis=0) / np.sqrt(comb(2 * order, order)))


def _left_over(points: Array, order: int = ORDER) -> Array:
    """The largest of those."""
    return np.asarray(np.abs(high_differences(points, order)).max(axis=0))


def wider_difference(pair: Pair, cotangent: Array, inputs: list[Array]) -> Array | None:
    """The difference between the two in a wider dtype; None where the functions take none, or there is none."""
    narrow = np.result_type(cotangent.dtype, *(x.dtype for x in inputs))
    wide = np.dtype(np.float64 if narrow.itemsize < 8 else np.longdouble)
    if not np.finfo(wide).eps < np.finfo(narrow).eps:
        return None
    with np.errstate(all="ignore"):
        try:
            claimed = pair.claimed(*_cast(cotangent, inputs, wide))
            if claimed.dtype != wide:
                return None
            try:  # of float32, the slopes are measured in double precision anyway
                measured = pair.measured(*_cast(cotangent, inputs, np.dtype(np.longdouble)))
            except Exception:
                measured = pair.measured(*_cast(cotangent, inputs, wide))
        except Exception:
            return None  # not every function takes every dtype
        return np.asarray(claimed - measured)


def moved_relatively(x: Array, rng: np.random.Generator, most: float) -> Array:
    """`x`, with each entry moved up or down by at most so much of itself."""
    with np.errstate(all="ignore"):
        y = x * np.asarray(1 + most * rng.uniform(-1, 1, x.shape), x.dtype)
    return np.where(np.isfinite(y), y, x)


def elsewhere(inputs: Iterable[Array], rng: np.random.Generator) -> list[Array]:
    """Another point close by. Zeros are moved, too, as biases are zero at first; and up, as many counts are.

    Zeros beside large numbers, as in a mask that is added to scores, are moved by a part of one.
    """
    there = []
    for x in inputs:
        way, size = rng.uniform(-1, 1, x.shape), magnitudes(x)
        way, size = np.where(x == 0, [np.abs(way), np.fmin(size, 1)], [way, size])
        there.append(np.asarray(x + ELSEWHERE * way * size, x.dtype))
    return there


def _or_nan(function: Way, cotangent: Array, inputs: list[Array]) -> Any:
    try:
        return function(cotangent, inputs)
    except REFUSALS:
        return np.nan


def _cast(cotangent: Array, inputs: list[Array], dtype: np.dtype[Any]) -> tuple[Array, list[Array]]:
    return cotangent.astype(dtype), [x.astype(dtype) for x in inputs]
