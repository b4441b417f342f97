"""What three cotangents tell that one does not: a gradient depends on the cotangent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_np.gradcheck.words.reading import Mistake, Reading


def same_whatever_the_cotangent(mistake: Mistake) -> Iterator[Reading]:
    """Equal for all three, and not zero. One entry is evidence only if it is so exactly."""
    same = np.stack(3 * [mistake.claimed[0]])
    exactly = bool(((mistake.claimed == same) | ~mistake.looked).all())
    if (np.abs(mistake.at_zero) > mistake.tolerance[0]).any():
        ones = mistake.as_of("", "", np.ones_like(mistake.cotangents))
        of_a_sum = any(mistake.is_explained_by(reading) for reading in ones)
        why = ", as if the loss were a plain sum of the output" if of_a_sum else ""
        yield Reading("same", f"it is the same whatever the cotangent{why}", same, entries=1 if exactly else 2)


READINGS = ((20, same_whatever_the_cotangent),)
