"""A sum of which not all terms were taken.

The gradient of an input that several outputs share, as one that is broadcast or multiplied with every row of a batch,
is a sum. Its terms along an axis of the output are the numerical gradients for cotangents of which only one index of
that axis is left.
"""

from __future__ import annotations

import numpy as np

from attention_np.gradcheck.diagnosis.mistake import Array, Mistake

__all__ = ["part_of_a_sum"]

WORK = 10**8  # outputs, times terms, times the entries that were looked at: more would take longer than the check


def part_of_a_sum(mistake: Mistake) -> str | None:
    """Some of the terms: one, all but one, those up to or from an index on. They equal it for all three cotangents."""
    u, ask = mistake.evidence.cotangents, mistake.evidence.ask
    lengths = [n if n > 1 else 0 for n in u.shape[1:]]
    if ask is None or not any(lengths) or 3 * sum(lengths) * u[0].size * mistake.looked_at.sum() > WORK:
        return None
    parts = [_alone(u, axis, k) for axis, length in enumerate(lengths) for k in range(length)]
    terms = ask.slopes(np.concatenate(parts)).reshape(-1, *mistake.claimed.shape)
    ends = np.cumsum(lengths)
    for axis, of_axis in enumerate(np.split(terms, ends[:-1])):
        found = _part(mistake, of_axis) if len(of_axis) else None
        if found is not None:
            return f"{found} over axis {axis} of the output (of {lengths[axis]})"
    return None


def _alone(u: Array, axis: int, index: int) -> Array:
    """The cotangents, zero but for one index of an axis of the output."""
    alone = np.zeros_like(u)
    where = (slice(None), *(index if k == axis else slice(None) for k in range(u.ndim - 1)))
    alone[where] = u[where]
    return alone


def _part(mistake: Mistake, terms: Array) -> str | None:
    mistake = mistake.noisier(mistake.precision * np.abs(terms).sum(axis=0))
    several = (np.abs(terms) > mistake.tolerance).any(axis=1).sum(axis=0) > 1
    if not (several & mistake.wrong).any():
        return None  # each entry has but one term: it is no sum
    for k, term in enumerate(terms):
        if mistake.is_explained_by(term):
            return f"it is only the term of index {k} of the sum"
    for k, term in enumerate(terms):
        if mistake.is_explained_by(mistake.right - term):
            return f"the term of index {k} is missing from the sum"
    so_far = np.zeros_like(mistake.right)
    for k, term in enumerate(terms):
        so_far = so_far + term
        if mistake.is_explained_by(so_far):
            return f"only the terms up to index {k} are in the sum"
        if mistake.is_explained_by(mistake.right - so_far):
            return f"only the terms from index {k + 1} on are in the sum"
    return None
