"""What saturated numbers lose of a gradient, as where 1 - p rounds to zero in softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.judging.measured import grossly
from attention_np.gradcheck.measuring.noise import GROSS, Pair, Question, elsewhere
from attention_np.gradcheck.measuring.reach import SMALLER

__all__ = ["SEEN", "is_lost"]

Array = npt.NDArray[Any]

SEEN = 1e-3  # of the difference from what is claimed: how far apart two methods are that see one slope


@np.errstate(all="ignore")
def is_lost(
    pair: Pair,
    claimed: Array,
    measured: Array,
    question: Question,
    other: Array,
    rng: np.random.Generator,
    differences: Callable[[], tuple[Array, Array]] | None = None,
) -> Array:
    """Whether a difference between the two may be such a loss, entry by entry; `other`: another cotangent.

    Such a loss takes a term of the entry, or all of it: it leaves no fixed multiple of it, but nothing, or something
    else for another cotangent and at another point.

    Of complex steps, which may see what is lost to the claim alone, there are `differences`, too: what they see by
    their slopes and the errors of those is there to be seen. And what has saturated is far larger where all inputs are
    smaller.
    """
    u, inputs = question
    largest = np.fmax(np.abs(claimed), np.abs(measured))
    apart = np.abs(claimed - measured)
    answers = [pair.at(*there) for there in ((other, inputs), (u, elsewhere(inputs, rng)))]
    first = claimed / measured
    ratios = np.array([of_claimed / of_measured for of_claimed, of_measured in answers])
    same = np.abs(ratios - first) <= grossly(u.dtype) * np.abs(first)
    silent = np.isnan(ratios)  # where both are zero
    lost = np.asarray(~((same | silent).all(axis=0) & same.any(axis=0) & (first != 0)))  # no fixed multiple
    if differences is None or not lost.any():
        return lost
    slopes, errors = differences()
    seen = np.abs(slopes - measured) + errors < SEEN * apart
    _, smaller = pair.at(u, [SMALLER * x for x in inputs])
    return np.asarray(lost & ~seen & (np.abs(smaller) > (1 + GROSS) * largest))
