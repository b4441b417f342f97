"""What is known of a wrong gradient, and when it is enough to say what the gradient is instead.

A hypothesis about a wrong gradient comes down to an array that the claimed gradient is supposed to equal. It is
accepted if it does so in every entry that was looked at and for every cotangent, to within the noise, and if the
claimed gradient is so far from the numerical one that this means something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNCHECKED, UNDECIDABLE, UNDECIDED, WRONG

if TYPE_CHECKING:
    from attention_np.gradcheck.diagnosis.asking import Asked

__all__ = ["Array", "Evidence", "Mistake", "in_words", "number"]

Array = npt.NDArray[Any]

EVIDENT = 8  # an error that a hypothesis is to explain is at least so many times what the hypothesis may be off
EPS = float(np.finfo(np.float64).eps)


class Evidence(NamedTuple):
    """What is known of one input whose gradient is wrong.

    Attributes
    ----------
    name : str
        The input.
    inputs : mapping of str to ndarray
        Every input of the function.
    output : ndarray
    cotangents : ndarray
        ``(3, *output.shape)``: two random ones, and the first one less its component along each row of the output.
    analytic : mapping of str to ndarray
        For every input whose claimed gradient has the right form: ``(3, *shape)``, the claimed gradients for the three
        cotangents.
    numerical : mapping of str to ndarray
        For every input: ``(3, *shape)``, the numerical ones; NaN where an entry was not looked at.
    floor : ndarray
        Of the shape of the input: the noise floor of each entry of analytic - numerical, for the first cotangent.
    verdict : ndarray
        Of the shape of the input: agreement.HOLDS, WRONG, UNDECIDED or UNCHECKED.
    at_zero : ndarray or None
        The claimed gradient for a cotangent of zeros. A right one is zero.
    constants : mapping of str to float
        Numbers that the function was called with, such as ``{"num_heads": 4}``.
    ask : Asked or None
        What else may be asked of the functions. Without it, less is claimed.
    """

    name: str
    inputs: Mapping[str, Array]
    output: Array
    cotangents: Array
    analytic: Mapping[str, Array]
    numerical: Mapping[str, Array]
    floor: Array
    verdict: Array
    at_zero: Array | None
    constants: Mapping[str, float]
    ask: Asked | None = None


@dataclass(frozen=True)
class Mistake:
    """One wrong gradient, its arrays NaN in the entries that were not looked at."""

    evidence: Evidence
    claimed: Array  # (3, *shape)
    right: Array  # (3, *shape), the numerical gradient
    noise: Array  # (3, *shape): how far the two may be apart when both are right
    precision: float  # the noise of a typical entry, relative to the entry

    @classmethod
    def of(cls, evidence: Evidence) -> Mistake:
        """The mistake that `evidence` makes."""
        claimed, right = (
            np.asarray(gradients[evidence.name], np.float64) for gradients in (evidence.analytic, evidence.numerical)
        )
        looked_at = np.isfinite(right).all(axis=0) & (np.asarray(evidence.verdict) != UNCHECKED)
        size = np.maximum(np.abs(claimed), np.abs(right))
        floor = np.where(np.isfinite(evidence.floor), evidence.floor, 0)
        relative = (floor / size[0])[looked_at & (size[0] > 0)]
        precision = max(float(np.median(relative)) if relative.size else 0.0, 2 * EPS)
        # The floor is that of the first cotangent; the terms of another are of another size, as a rule a similar one.
        others = 2 * np.maximum(floor, precision * size[1:])
        noise = np.concatenate([floor[np.newaxis], others]) + 4 * EPS * size
        claimed, right = (np.where(looked_at, x, np.nan) for x in (claimed, right))
        return cls(evidence, claimed, right, noise, precision)

    @property
    def name(self) -> str:
        """The input."""
        return self.evidence.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the input."""
        return self.claimed.shape[1:]

    @property
    def error(self) -> Array:
        """The claimed gradient less the numerical one."""
        return self.claimed - self.right

    @cached_property
    def looked_at(self) -> Array:
        """The entries that are known."""
        known: Array = np.all(np.isfinite(self.right), axis=0)
        return known

    @property
    def tolerance(self) -> Array:
        """What counts as an error is larger."""
        return UNDECIDABLE * self.noise

    @cached_property
    def wrong(self) -> Array:
        """The entries that are wrong for some cotangent."""
        apart: Array = np.any(np.abs(self.error) > self.tolerance, axis=0)
        wrong: Array = (apart | (np.asarray(self.evidence.verdict) == WRONG)) & self.looked_at
        return wrong

    @cached_property
    def neutral(self) -> Array:
        """The entries that tell nothing: not wrong, but zero anyway or undecidable."""
        zero: Array = np.all(np.maximum(np.abs(self.claimed), np.abs(self.right)) <= self.tolerance, axis=0)
        neutral: Array = self.looked_at & ~self.wrong & (zero | (np.asarray(self.evidence.verdict) == UNDECIDED))
        return neutral

    def among(self, entries: Array) -> Mistake:
        """The same, as if only `entries`, a boolean array, had been looked at."""
        return replace(self, right=np.where(entries, self.right, np.nan))

    @cached_property
    def of_those_looked_at(self) -> Mistake:
        """The same with the entries that were looked at alone, as one axis: of a large input, few are."""
        seen = self.looked_at
        evidence = self.evidence._replace(verdict=np.asarray(self.evidence.verdict)[seen])
        claimed, right, noise = (x[:, seen] for x in (self.claimed, self.right, self.noise))
        return replace(self, evidence=evidence, claimed=claimed, right=right, noise=noise)

    def noisier(self, noise: Array) -> Mistake:
        """The same, as if nothing were known better than to within `noise`."""
        return replace(self, noise=np.maximum(self.noise, noise))

    def allowed(self, other: Array, scale: float | Array = 1.0) -> Array:
        """How far the claimed gradient may be from `other`, which magnifies the noise so much, and still equal it."""
        noise = np.maximum(scale, 1.0) * self.noise
        allowed: Array = UNDECIDABLE * np.maximum(noise, self.precision * np.abs(other))
        return allowed

    def is_explained_by(self, other: Array, scale: float | Array = 1.0, in_entries: int = 1) -> bool:
        """Whether the claimed gradient is `other`, of shape ``(3, *shape)``, and evidently not the numerical one.

        That is evident if so many entries are off by far more than the noise could make them, or else a dozen values
        by more than that, of all of which `other` leaves next to nothing. Entries of `other` that are NaN are not
        known; of the wrong ones, at least half or ten must be.
        """
        known = np.isfinite(other) & self.looked_at
        allowed = self.allowed(other, scale)
        left, error = np.abs(self.claimed - other), np.abs(self.error)
        if not ((left <= allowed) | ~known).all():
            return False
        if (known.all(axis=0) & self.wrong).sum() < min(10, self.wrong.sum() / 2):
            return False
        if ((error > EVIDENT * allowed) & known).any(axis=0).sum() >= in_entries:
            return True
        wrong = (error > allowed) & known
        enough = wrong.sum() >= 12 and wrong.any(axis=0).sum() >= 4
        return bool(enough and (left <= 0.05 * error)[wrong].all())


def number(x: float, digits: int = 9) -> str:
    """A number for a sentence; close to 1 it is shown as its distance from 1."""
    if 1e-12 < abs(x - 1) < 1e-5:
        return f"1 {'+' if x > 1 else '-'} {abs(x - 1):.3g}"
    return f"{x:.{digits}g}"


def in_words(parts: Sequence[object]) -> str:
    """``a, b and c``."""
    words = [str(part) for part in parts]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
