"""Right but for rounding: errors that no formula makes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from attention_np.gradcheck.diagnosis.cotangents import correlation
from attention_np.gradcheck.diagnosis.mistake import ENOUGH, Array, Mistake, number
from attention_np.gradcheck.measuring.noise import moved_relatively

__all__ = ["lost_epsilon", "rounded"]

# The bits of the significand, and how many times its last place a computation in that precision may be off.
PRECISIONS = {"bfloat16": (8, 16), "float16": (11, 64), "float32": (24, 1000)}
LEAST = 2.0**-24  # of float16, whose small numbers are that far apart
NEARBY = 1e-5  # relative: many a unit in the last place of single precision, and next to nothing for a formula
SMALLER = 0.75  # times the input: so much that powers can be told apart, while the epsilon stays small beside it
SMALL = 1e-2  # of the largest entry: an error that an epsilon may make
CLEARLY = 30  # times what counts as an error: known to a few percent
NEAR = 3  # times the error, relative: how closely they do, as an epsilon is far from 1 by no more than its square is
CLOSE = 0.1  # relative: how closely they do in entries that are next to nothing beside what they are off by
GROWN = 2  # times as large: no typical error of rounding is, by chance, of so many
FEW = 30  # values, of which nothing can be said about a pattern


def rounded(mistake: Mistake) -> str | None:
    """Only of single or half precision, while the function and its gradient are known better."""
    size, error = (np.abs(x[:, mistake.looked_at]).max() for x in (mistake.right, mistake.error))
    off = _off(mistake)
    finer = {name: found for name, found in PRECISIONS.items() if 2 * mistake.precision < 0.5 ** found[0]}
    possible = [name for name, (bits, units) in finer.items() if error <= units * 0.5**bits * size]
    for name in possible:
        bits, _ = PRECISIONS[name]
        if _have_bits(mistake.claimed, bits, mistake.looked_at) and not _have_bits(mistake.right, bits, mistake.wrong):
            unit = 2 * 0.5**bits * np.abs(mistake.right) + LEAST * (name == "float16") + mistake.tolerance
            if (np.abs(mistake.error) <= unit)[:, mistake.looked_at].all():
                return f"it is rounded to {name}: every entry is such a number, off by at most {off}"
            if _are_other_errors_nearby(mistake):
                return f"it seems to be computed in {name}: every entry is such a number, off by at most {off}"
    for_ones = _precision_for_ones(mistake, possible) if possible else None
    if for_ones is not None:
        return (
            f"it seems to be computed in {for_ones}: where the gradient of the output is all ones, every entry is such "
            f"a number; here it is off by at most {off}"
        )
    if "float32" in possible and _is_like_rounding(mistake, size) and _are_other_errors_nearby(mistake):
        return (
            f"its errors are of the size of rounding to float32, at most {off}, and without a pattern: "
            "some of it seems to be computed in that precision"
        )
    return None


def _are_other_errors_nearby(mistake: Mistake) -> bool:
    """Whether the errors at a point very close by have nothing in common with those here but their size.

    Rounding makes such errors; whatever else a formula does wrong, as by a constant that lacks a digit or a series that
    is cut off, it does there, too; and what is nearly zero here alone, as beside a start that has converged, has grown.
    """
    rng, evidence = np.random.default_rng(0), mistake.evidence
    inputs = {name: moved_relatively(x, rng, NEARBY) for name, x in evidence.inputs.items()}
    there = mistake.elsewhere(inputs, moved_relatively(evidence.cotangents, rng, NEARBY))
    if there is None:
        return False
    x, y = mistake.error / mistake.right, there.error / there.right
    seen = np.isfinite(x) & np.isfinite(y) & ~mistake.neutral
    if seen.sum() < FEW or np.median(np.abs(y[seen])) > GROWN * np.median(np.abs(x[seen])):
        return False
    return bool(abs(correlation(x[seen], y[seen])) <= 0.5)


def _have_bits(x: Array, bits: int, entries: Array) -> bool:
    """Whether the significands have no more than so many bits. By chance even one number of float64 hardly ever has."""
    scaled = np.frexp(x[:, entries])[0] * 2.0**bits
    return bool((scaled == np.rint(scaled)).all())


def _precision_for_ones(mistake: Mistake, names: Iterable[str]) -> str | None:
    """The same of the gradients for a cotangent of ones, which leaves the bits alone that another is multiplied by.

    Small integers have few bits in any precision: some entry must take more than half of its bits.
    """
    ask, ones = mistake.evidence.ask, np.ones((1, *mistake.evidence.output.shape))
    if ask is None:
        return None
    claimed = ask.claims(ones)
    for name in names:
        bits, _ = PRECISIONS[name]
        if _have_bits(claimed, bits, mistake.looked_at):
            if _have_bits(claimed, bits // 2, mistake.looked_at):
                return None
            right = ask.slopes(ones)
            near = (np.abs(claimed - right) <= 2 * 0.5**bits * np.abs(right) + mistake.tolerance[0])[
                :, mistake.looked_at
            ]
            return name if near.all() and not _have_bits(right, bits, mistake.wrong) else None
    return None


def _is_like_rounding(mistake: Mistake, size: float) -> bool:
    """Whether the errors are of that size in single precision, the typical one and the largest, and of both signs.

    A formula that is wrong would hardly be off by so little everywhere, and by nothing more anywhere.
    """
    telling = mistake.looked_at & ~mistake.neutral
    relative = (mistake.error / mistake.right)[:, telling]
    if relative.size < FEW:
        return False
    unit = 0.5**24
    typical, largest = float(np.median(np.abs(relative))), float(np.abs(mistake.error[:, telling]).max())
    of_that_size = unit / 30 <= typical <= 4 * unit and largest <= 32 * unit * size
    return bool(of_that_size and abs(np.sign(relative).mean()) <= 0.35)


def _off(mistake: Mistake) -> str:
    """How far it is off at most, for any of the cotangents, in words."""
    size, error = (np.abs(x[:, mistake.looked_at]).max(axis=1) for x in (mistake.right, mistake.error))
    with np.errstate(all="ignore"):
        return f"about {number(float(np.nanmax(error / size)), 2)} of the largest entry"


def lost_epsilon(mistake: Mistake) -> str | None:
    """Errors that are small, and rise as a power of the input where that is smaller, as beside a lost epsilon."""
    evident = np.abs(mistake.error) > CLEARLY * mistake.tolerance
    size, error = (np.abs(x[:, mistake.looked_at]).max() for x in (mistake.right, mistake.error))
    if evident.any(axis=0).sum() < ENOUGH or error > SMALL * size:  # one entry rises by anything
        return None
    inputs = {**mistake.evidence.inputs, mistake.name: SMALLER * mistake.evidence.inputs[mistake.name]}
    there = mistake.elsewhere(inputs, mistake.evidence.cotangents)
    if there is None:
        return None
    rises = float((there.error * mistake.error)[evident].sum() / np.square(mistake.error[evident]).sum())
    power = round(2 * math.log(rises, 1 / SMALLER)) / 2 if rises > 1 else 0
    relative = mistake.error / mistake.right
    if (np.abs(there.error / there.right - relative) <= CLOSE * np.abs(relative))[evident].all():
        return None  # each entry has a factor of its own
    own = np.fmin(NEAR * np.abs(relative), CLOSE) * np.abs(mistake.error)
    near = np.fmax(NEAR * error / size * error, own) + mistake.tolerance
    if power and (np.abs(there.error * SMALLER**power - mistake.error) <= near)[evident].all():
        return (
            f"perhaps an epsilon beside {mistake.name} is missing, or another one: it is off by at most "
            f"{_off(mistake)}, and by about {number(SMALLER**-power, 3)} times as much where {mistake.name} is "
            f"{SMALLER:g} times as large"
        )
    return None
