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

from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import moved
from attention_np.gradcheck.measuring.subject import REFUSALS

__all__ = [
    "Pair",
    "moved_relatively",
    "noise_floor",
    "own_tolerance",
    "sensitivity",
    "unsteadiness",
    "wider_difference",
]

Array = npt.NDArray[Any]

ULPS = 4  # by how many units in the last place, at most, the inputs are moved
SMALL_MOVES = 4
LARGER_MOVES = 2
POINTS, ORDER = 10, 3  # that are equally spaced, and of the differences there
LARGER = 0.75  # a larger move is eps to this power, relative (gradcheck.55)


Way = Callable[[Array, list[Array]], Array]  # to a gradient, from the cotangent and all inputs


class Spacings(NamedTuple):
    """How far equally spaced points are apart, relative, and which slopes there are called smooth.

    Of smooth slopes, differences of a high order leave at most so much of the largest. Of the error of a wrong formula
    they leave no more: so ten times what is left is less than the error, as long as this is below a tenth.
    """

    relative: tuple[float, ...]
    smooth: float


CLOSE = Spacings(tuple(2.0**-k for k in (7, 9, 11, 14, 17, 20)), 1e-2)
# So far that a solver takes another number of steps; thrice what is left of one entry is then allowed all others.
APART = Spacings((2.0**-4, 2.0**-5, *CLOSE.relative), 1e-3)
ALIKE = 2.0**-5  # by which the ways of entries differ: symmetric matrices, and rows that sum to one, stay nearly such
CLOSER = 4  # times: then the differences of a smooth function fall by this to the power of their order, a few at least
FALLS = 16


class Pair(NamedTuple):
    """Two ways to the same numbers."""

    claimed: Way
    measured: Way

    def at(self, cotangent: Array, inputs: list[Array]) -> tuple[Any, Any]:
        """Both; NaN for one that refuses this point, as a function of probabilities that no more sum to one."""
        return _or_nan(self.claimed, cotangent, inputs), _or_nan(self.measured, cotangent, inputs)


def noise_floor(pair: Pair, cotangent: Array, inputs: list[Array], rng: np.random.Generator) -> Array:
    """How far the difference between the two moves when the inputs do, entry by entry."""
    with np.errstate(all="ignore"):
        here = pair.claimed(cotangent, inputs) - pair.measured(cotangent, inputs)
        drift = np.zeros(here.shape)
        for _ in range(LARGER_MOVES):
            u, *point = (moved_relatively(x, rng, float(np.finfo(x.dtype).eps) ** LARGER) for x in (cotangent, *inputs))
            there, measured_there = pair.at(u, point)
            drift = np.fmax(drift, np.abs(there - measured_there - here))  # (gradcheck.54)
    floor = sum(sensitivity(way, cotangent, inputs, rng) for way in pair) + np.where(np.isfinite(drift), drift, 0)
    return np.where(np.isfinite(floor), floor, 0)


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
    at = _spaced(pair, cotangent, inputs, rng)
    left = np.full(pair.claimed(cotangent, inputs).shape, np.nan)
    with np.errstate(all="ignore"):
        for spacing in CLOSE.relative:
            claimed, measured = at(spacing, POINTS, left)
            smooth = _left_over(measured) <= CLOSE.smooth * np.abs(measured).max(axis=0)
            left = np.where(np.isnan(left) & smooth, _left_over(claimed - measured), left)
            if not np.isnan(left).any():
                break
    return np.where(np.isnan(left), 0, left)


def own_tolerance(
    pair: Pair, cotangent: Array, inputs: list[Array], rng: np.random.Generator, most: float
) -> tuple[Array, Array]:
    """The same of slopes that jump from point to point, as those of what stops at a tolerance, and steady claims.

    A solver or a series stops after as many steps as its tolerance takes. Points further apart show it, and more of
    them within the same span: there the error of a formula falls, however short its wave is, and a jump stays. The
    first is of slopes that are smooth but for that, as of a right gradient; the second of any that jump. No jump is
    looked for that times `most` would be less than the difference.
    """
    at = _spaced(pair, cotangent, inputs, rng)
    left = np.full(pair.claimed(cotangent, inputs).shape, np.nan)
    jumps = np.zeros(left.shape)
    with np.errstate(all="ignore"):
        claims, _ = at(APART.relative[-1], POINTS, left)
        rounding = np.where((claims == claims[0]).all(axis=0), np.inf, _left_over(claims))  # the same in float16
        for spacing in APART.relative:
            claimed, measured = at(spacing, POINTS, left)
            apart = claimed - measured
            of_both, of_measured = _left_over(apart), _left_over(measured)
            open_yet = np.isnan(left)
            smooth = open_yet & (of_measured <= APART.smooth * np.abs(measured).max(axis=0))
            telling = open_yet & (most * of_both > np.abs(apart[-1])) & (FALLS * rounding < of_both)
            if telling.any():
                closer = _left_over(np.subtract(*at(spacing / CLOSER, CLOSER * (POINTS - 1) + 1, left)))
                telling &= FALLS * closer > of_both
            found = np.where(telling, of_both, 0)
            left, jumps = np.where(smooth, found, left), np.fmax(jumps, found)
            if not np.isnan(left).any():
                break
    return np.where(np.isnan(left), 0, left), jumps


def _spaced(
    pair: Pair, cotangent: Array, inputs: list[Array], rng: np.random.Generator
) -> Callable[[float, int, Array], Array]:
    """Both gradients at so many points, so far apart; the last is the point itself.

    They lie towards zero, where what diverges does not.
    """
    ways = [rng.uniform(1 - ALIKE, 1, x.shape) for x in inputs]

    def at(spacing: float, points: int, like: Array) -> Array:
        steps = range(1 - points, 1)
        places = (
            [np.array(x * (1 + k * spacing * v), x.dtype) for x, v in zip(inputs, ways, strict=True)] for k in steps
        )
        answers = [np.broadcast_arrays(*pair.at(cotangent, place), like)[:2] for place in places]
        return np.swapaxes(answers, 0, 1)

    return at


def _left_over(points: Array) -> Array:
    """What differences of a high order leave of numbers at equally spaced points, the first axis."""
    return np.asarray(np.abs(np.diff(points, n=ORDER, axis=0)).max(axis=0) / np.sqrt(comb(2 * ORDER, ORDER)))


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


def _or_nan(function: Way, cotangent: Array, inputs: list[Array]) -> Any:
    try:
        return function(cotangent, inputs)
    except REFUSALS:
        return np.nan


def _cast(cotangent: Array, inputs: list[Array], dtype: np.dtype[Any]) -> tuple[Array, list[Array]]:
    return cotangent.astype(dtype), [x.astype(dtype) for x in inputs]
