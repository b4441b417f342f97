"""Right but for rounding: errors that no formula makes."""

from __future__ import annotations

import numpy as np

from attention_np.gradcheck.diagnosis.cotangents import correlation
from attention_np.gradcheck.diagnosis.mistake import Array, Mistake, number

__all__ = ["rounded"]

# The bits of the significand, and how many times its last place a computation in that precision may be off.
PRECISIONS = {"bfloat16": (8, 16), "float16": (11, 64), "float32": (24, 1000)}
LEAST = 2.0**-24  # of float16, whose small numbers are that far apart
FEW = 30  # values, of which nothing can be said about a pattern


def rounded(mistake: Mistake) -> str | None:
    """Only of single or half precision, while the function and its gradient are of more."""
    size, error = (np.abs(x[:, mistake.looked_at]).max() for x in (mistake.right, mistake.error))
    off = f"{number(error / size, 2)} of the largest entry"
    dtypes = (mistake.evidence.output.dtype, np.asarray(mistake.evidence.analytic[mistake.name]).dtype)
    own = min(np.finfo(dtype).nmant + 1 for dtype in dtypes if dtype.kind == "f")
    allowed = {name: units * 0.5**bits for name, (bits, units) in PRECISIONS.items() if bits < own}
    possible = [name for name, largest in allowed.items() if error <= largest * size]
    for name in possible:
        bits, _ = PRECISIONS[name]
        if not _have_bits(mistake.claimed, bits, mistake.looked_at) or _have_bits(mistake.right, bits, mistake.wrong):
            continue
        unit = 2 * 0.5**bits * np.abs(mistake.right) + LEAST * (name == "float16") + mistake.tolerance
        if (np.abs(mistake.error) <= unit)[:, mistake.looked_at].all():
            return f"it is rounded to {name}: every entry is such a number, off by at most {off}"
        if _are_other_errors_nearby(mistake):
            return f"it seems to be computed in {name}: every entry is such a number, off by at most {off}"
    if "float32" in possible and _is_like_rounding(mistake, size) and _are_other_errors_nearby(mistake):
        return (
            f"its errors are of the size of rounding to float32, at most {off}, and without a pattern: "
            "some of it seems to be computed in that precision"
        )
    return None


def _are_other_errors_nearby(mistake: Mistake) -> bool:
    """Whether the errors at a point very close by have nothing in common with those here.

    Rounding makes such errors; whatever else a formula does wrong, as by a constant that lacks a digit or a series that
    is cut off, it does there, too.
    """
    if mistake.evidence.ask is None:
        return False
    claimed, right = mistake.evidence.ask.nearby()
    here, there = mistake.error / mistake.right, (claimed - right) / right
    seen = np.isfinite(here) & np.isfinite(there) & ~mistake.neutral
    return bool(seen.sum() >= FEW and abs(correlation(here[seen], there[seen])) <= 0.5)


def _have_bits(x: Array, bits: int, entries: Array) -> bool:
    """Whether the significands have no more than so many bits. By chance even one number of float64 hardly ever has."""
    scaled = np.frexp(x[:, entries])[0] * 2.0**bits
    return bool((scaled == np.rint(scaled)).all())


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
