"""Right but for rounding: errors that no formula makes; and for an epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attention_np.gradcheck.evidence import moved_relatively
from attention_np.gradcheck.words.reading import CLEARLY, ENOUGH, Array, Mistake, Reading, number

# The bits of the significand, and how many times its last place a computation in that precision may be off.
PRECISIONS = {"bfloat16": (8, 16), "float16": (11, 64), "float32": (24, 1000)}


def rounded(mistake: Mistake) -> Iterator[Reading]:
    """Rounded to single or half precision, or computed in it, while the function is known better."""
    looked = mistake.looked
    size, error = (np.abs(x[:, looked]).max() for x in (mistake.right, mistake.error))
    for name, (bits, units) in PRECISIONS.items():
        if 2 * mistake.precision >= 0.5**bits or error > units * 0.5**bits * size:
            continue
        if _have_bits(mistake.claimed[:, looked], bits) and not _have_bits(mistake.right[:, mistake.wrong], bits):
            unit = 2 * 0.5**bits * np.abs(mistake.right) + (2.0**-24 if name == "float16" else 0) + mistake.tolerance
            how = "is rounded to" if (np.abs(mistake.error) <= unit)[:, looked].all() else "seems to be computed in"
            if how.startswith("is") or _has_other_errors_nearby(mistake, bits):
                said = f"it {how} {name}: every entry is such a number, off by at most {_off(mistake)}"
                yield Reading(name, said, mistake.claimed, alone=True)
        elif name == "float32" and _has_other_errors_nearby(mistake, bits):
            said = (
                f"its errors are of the size of rounding to float32, at most {_off(mistake)}, and without a pattern: "
                "some of it seems to be computed in that precision"
            )
            yield Reading("like float32", said, mistake.claimed, alone=True)


def lost_epsilon(mistake: Mistake) -> Iterator[Reading]:
    """Errors that are small, and rise as a power of the input where that is smaller, as beside a lost epsilon."""
    evident = np.abs(mistake.error) > CLEARLY * mistake.tolerance
    size, error = (np.abs(x[:, mistake.looked]).max() for x in (mistake.right, mistake.error))
    if evident.any(axis=0).sum() < ENOUGH or error > 1e-2 * size:  # one entry rises by anything
        return
    shorter = 0.75  # times: powers can be told apart, and the epsilon stays small beside it
    there = mistake.elsewhere({**mistake.inputs, mistake.name: shorter * mistake.x}, mistake.cotangents)
    if there is None:
        return
    rises = float((there.error * mistake.error)[evident].sum() / np.square(mistake.error[evident]).sum())
    power = round(2 * math.log(rises, 1 / shorter)) / 2 if rises > 1 else 0
    relative = np.abs(mistake.error / mistake.right)
    change = np.abs(there.error / there.right - mistake.error / mistake.right)
    if not power or (change <= 0.1 * relative)[evident].all():
        return  # each entry has a factor of its own
    near = np.fmax(3 * error / size * error, np.fmin(3 * relative, 0.1) * np.abs(mistake.error)) + mistake.tolerance
    if (np.abs(there.error * shorter**power - mistake.error) <= near)[evident].all():
        times = number(shorter**-power, 3)
        said = (
            f"perhaps an epsilon beside {mistake.name} is missing, or another one: it is off by at most "
            f"{_off(mistake)}, and by about {times} times as much where {mistake.name} is {shorter:g} times as large"
        )
        yield Reading("epsilon", said, mistake.claimed, alone=True)


READINGS = ((120, rounded), (121, lost_epsilon))


def _has_other_errors_nearby(mistake: Mistake, bits: int) -> bool:
    """Whether the errors at a point very close by have nothing in common with those here but their size.

    Rounding makes such errors; whatever else a formula does wrong, as by a constant that lacks a digit or a series that
    is cut off, it does there, too.
    """
    rng, far = np.random.default_rng(0), max(1e-5, 8 * 0.5**bits)  # where they are other numbers of so many bits
    inputs = {name: moved_relatively(x, rng, far) for name, x in mistake.inputs.items()}
    there = mistake.elsewhere(inputs, moved_relatively(mistake.cotangents, rng, far))
    if there is None:
        return False
    x, y = mistake.error / mistake.right, there.error / there.right
    seen = np.isfinite(x) & np.isfinite(y) & mistake.wrong
    if seen.sum() < 30 or np.median(np.abs(y[seen])) > 2 * np.median(np.abs(x[seen])):
        return False
    if np.median(np.abs(x[seen] - np.median(x[seen]))) <= 0.1 * np.median(np.abs(x[seen])):
        return False  # they are alike
    return bool(abs(np.corrcoef(_ranks(x[seen]), _ranks(y[seen]))[0, 1]) <= 0.5)


def _ranks(x: Array) -> Array:
    """Which is the smallest, and so on: a few large values do not decide on a correlation of those."""
    return np.argsort(np.argsort(x))


def _have_bits(x: Array, bits: int) -> bool:
    """Whether the significands have no more than so many bits. By chance even one number of float64 hardly ever has."""
    significands = np.frexp(x)[0] * 2.0**bits
    return bool((significands == np.rint(significands)).all())


def _off(mistake: Mistake) -> str:
    """How far it is off at most, for any of the cotangents, in words."""
    size, error = (np.abs(x[:, mistake.looked]).max(axis=1) for x in (mistake.right, mistake.error))
    return f"about {number(float(np.nanmax(error / size)), 2)} of the largest entry"
