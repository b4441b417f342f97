"""Right but for rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_np.gradcheck.words.reading import Array, Mistake, Reading, number

# The bits of the significand, and how many times its last place a computation in that precision may be off.
PRECISIONS = {"bfloat16": (8, 16), "float16": (11, 64), "float32": (24, 1000)}


def rounded(mistake: Mistake) -> Iterator[Reading]:
    """Numbers of single or half precision, close to the right ones, while the function is known better."""
    looked = mistake.looked
    right, error = (np.abs(x[:, looked]) for x in (mistake.right, mistake.error))
    for name, (bits, units) in PRECISIONS.items():
        known = 2 * mistake.precision < 0.5**bits and error.max() <= units * 0.5**bits * right.max()
        if known and _have_bits(mistake.claimed[:, looked], bits) and not _have_bits(mistake.right[:, looked], bits):
            off = number(float((error.max(axis=1) / right.max(axis=1)).max()), 2)
            said = (
                f"it is rounded to {name}, or computed in it: every entry is such a number, off by at most about {off} "
                "of the largest entry"
            )
            yield Reading(name, said, mistake.claimed, alone=True)


READINGS = ((120, rounded),)


def _have_bits(x: Array, bits: int) -> bool:
    """Whether the significands have no more than so many bits. By chance even one number of float64 hardly ever has."""
    significands = np.frexp(x)[0] * 2.0**bits
    return bool((significands == np.rint(significands)).all())
