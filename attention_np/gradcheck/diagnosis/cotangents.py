"""What three cotangents tell that one does not: a gradient is linear in the cotangent, and some errors are not."""

from __future__ import annotations

import numpy as np

from attention_np.gradcheck.diagnosis.mistake import ENOUGH, EVIDENT, Array, Mistake

__all__ = ["added_regardless", "not_linear", "same_number_added", "same_whatever_the_cotangent"]


def same_whatever_the_cotangent(mistake: Mistake) -> str | None:
    """Equal for all three, and not zero. One entry is evidence only if it is so exactly."""
    same = np.stack(3 * [mistake.claimed[0]])
    exactly = bool(((mistake.claimed == same) | ~mistake.looked_at).all())
    evident = (np.abs(same) > EVIDENT * mistake.tolerance).any()
    if not evident or not mistake.is_explained_by(same, in_entries=1 if exactly else 2):
        return None
    of_a_sum = mistake.is_right_for(np.ones_like(mistake.evidence.cotangents))
    return (
        f"it is the same whatever the cotangent{', as if the loss were a plain sum of the output' if of_a_sum else ''}"
    )


def added_regardless(mistake: Mistake) -> str | None:
    """Right but for something that is there for a cotangent of zeros, too; without that one, equal for all three."""
    added = np.asarray(mistake.evidence.at_zero, np.float64)
    if added.shape != mistake.shape or not mistake.is_explained_by(mistake.right + added):
        return None
    where = mistake.looked_at
    low, high = float(added[where].min()), float(added[where].max())
    if high - low <= 2 * mistake.precision * max(abs(low), abs(high)):
        return f"a constant is added to it, {mistake.number(high, 6)} in every entry, whatever the cotangent"
    x = np.asarray(mistake.evidence.inputs[mistake.name], np.float64)
    multiple = float((x * added)[where].sum() / (x * x)[where].sum())
    if mistake.is_explained_by(mistake.right + multiple * x):
        return f"{mistake.number(multiple, 6)} times {mistake.name} itself is added to it, whatever the cotangent"
    return f"something is added to it that does not depend on the cotangent, from {low:.4g} to {high:.4g}"


def not_linear(mistake: Mistake) -> str | None:
    """Not linear in the cotangent, as all gradients are; what else it looks like for some cotangents is no evidence."""
    if mistake.evidence.ask is None or mistake.evidence.ask.is_linear:
        return None
    if (np.abs(mistake.evidence.at_zero) > mistake.tolerance[0])[mistake.looked_at].any():
        return "it is not zero for a cotangent of zeros: something is added that does not depend on it, or not only"
    return (
        "backward is not linear in the gradient of the output: for a sum it does not give the sum, as if it clipped "
        "something or kept something from call to call"
    )


def same_number_added(mistake: Mistake) -> str | None:
    """The same number in every entry, another for another cotangent.

    At least three entries must agree on it that differ in the right gradient: where those are equal, anything wrong
    with one is wrong with all.
    """
    if _distinct(mistake) < ENOUGH:
        return None
    sums = [float(np.nanmedian(error)) for error in mistake.error]
    added = np.array(sums).reshape(3, *[1] * len(mistake.shape))
    if not mistake.is_explained_by(mistake.right + added, in_entries=ENOUGH):
        return None
    return f"the same number is added to every entry, {mistake.number(sums[0], 4)} for one cotangent"


def _distinct(mistake: Mistake) -> int:
    """How many entries there are, those counted once that are equal along an entire axis."""
    entries = 1
    for axis, length in enumerate(mistake.shape):
        first = np.take(mistake.right, [0], axis + 1)
        entries *= length if (np.abs(mistake.right - first) > 2 * mistake.tolerance).any() else 1
    return min(entries, int(mistake.looked_at.sum()))


def correlation(x: Array, y: Array) -> float:
    """From -1 to 1; every pair counts the same, however large it is."""
    size = np.maximum(np.abs(x), np.abs(y))
    x, y = (np.where(size > 0, z / size, 0.0) for z in (x, y))
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else 0.0
