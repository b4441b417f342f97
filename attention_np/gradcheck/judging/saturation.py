"""What saturated numbers lose of a gradient, as where 1 - p rounds to zero in softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.judging.measured import GROSS, grossly
from attention_np.gradcheck.measuring.noise import Pair, Question, moved_relatively
from attention_np.gradcheck.measuring.slopes import SMALLER

__all__ = ["ELSEWHERE", "SEEN", "is_lost", "may_be_lost"]

Array = npt.NDArray[Any]

ELSEWHERE, POINTS = 2.0**-7, 2  # relative: how far off other points are; how many are asked
SEEN = 1e-3  # of the difference from what is claimed: how far apart two methods are that see one slope


@np.errstate(all="ignore")
def may_be_lost(
    pair: Pair, claimed: Array, measured: Array, question: Question, other: Array, rng: np.random.Generator
) -> Array:
    """Whether a difference between the two may be such a loss, entry by entry; `other`: another cotangent.

    Such a loss is gross: it takes a term of the entry, or all of it; a slight error has another cause. And it leaves no
    fixed multiple of the entry, but nothing, or something else for another cotangent and at another point.
    """
    u, inputs = question
    gross = np.abs(claimed - measured) > GROSS * np.fmax(np.abs(claimed), np.abs(measured))
    elsewhere = [(u, [moved_relatively(x, rng, ELSEWHERE) for x in inputs]) for _ in range(POINTS)]
    answers = [pair.at(*there) for there in ((other, inputs), *elsewhere)]
    first = claimed / measured
    near = grossly(u.dtype)
    ratios = np.array([of_claimed / of_measured for of_claimed, of_measured in answers])
    same = np.abs(ratios - first) <= near * np.abs(first)
    silent = np.isnan(ratios)  # where both are zero
    fixed = (same | silent).all(axis=0) & same.any(axis=0) & (first != 0)
    return np.asarray(gross & ~fixed)


def is_lost(
    pair: Pair,
    claimed: Array,
    steps: Array,
    question: Question,
    other: Array,
    rng: np.random.Generator,
    differences: Callable[[], tuple[Array, Array]],
) -> Array:
    """The same of complex steps, which may see what is lost to the claim alone.

    What `differences` see, too, by their slopes and the errors of those, is there to be seen. And what has saturated is
    far larger where all inputs are smaller.
    """
    maybe = may_be_lost(pair, claimed, steps, question, other, rng)
    if not maybe.any():
        return maybe
    slopes, errors = differences()
    seen = np.abs(slopes - steps) + errors < SEEN * np.abs(claimed - steps)
    u, inputs = question
    _, smaller = pair.at(u, [SMALLER * x for x in inputs])
    return np.asarray(maybe & ~seen & (np.abs(smaller) > (1 + GROSS) * np.fmax(np.abs(claimed), np.abs(steps))))
