"""What three cotangents tell that one does not: a gradient is linear in the cotangent, and some errors are not."""

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


def added_regardless(mistake: Mistake) -> Iterator[Reading]:
    """Right but for something that is there for a cotangent of zeros, too; without that one, equal for all three."""
    added, where, x = mistake.at_zero, mistake.looked, mistake.x
    if not added[where].any():
        return
    low, high = float(added[where].min()), float(added[where].max())
    times = float((x * added)[where].sum() / (x * x)[where].sum())
    said = f"{mistake.number(times, 6)} times {mistake.name} itself is added to it, whatever the cotangent"
    yield Reading("multiple", said, mistake.right + times * x)
    said = f"something is added to it that does not depend on the cotangent, from {low:.4g} to {high:.4g}"
    yield Reading("something", said, mistake.right + added)


def not_linear(mistake: Mistake) -> Iterator[Reading]:
    """Not linear in the cotangent, as all gradients are: what it looks like for some cotangents is no evidence."""
    if mistake.ask is not None and mistake.ask.is_far_from_linear:
        said = (
            "backward is not linear in the gradient of the output: for a sum it does not give the sum, as if it "
            "clipped something or kept something from call to call"
        )
        if (np.abs(mistake.at_zero) > mistake.tolerance[0])[mistake.looked].any():
            said = "it is not zero for a cotangent of zeros: something is added that does not depend on it, or not only"
        yield Reading("not linear", said, mistake.claimed, alone=True)


READINGS = ((20, same_whatever_the_cotangent), (30, added_regardless), (200, not_linear))
