"""What is known of a wrong gradient, and when it is enough to say what the gradient is instead.

A hypothesis about a wrong gradient comes down to an array that the claimed gradient is supposed to equal. It is
accepted if it does so in every entry that was looked at and for every cotangent, to within the noise, and if the
claimed gradient is so far from the numerical one that this means something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDABLE, UNDECIDED, WRONG
from attention_np.gradcheck.diagnosis.asking import Asked, is_quick
from attention_np.gradcheck.measuring.noise import ELSEWHERE, moved_relatively
from attention_np.gradcheck.nesting import Parts

__all__ = ["ENOUGH", "ROUGH", "Array", "Evidence", "Mistake", "axes_in_words", "in_words", "number", "subsets"]

Array = npt.NDArray[Any]
Item = TypeVar("Item")

EVIDENT = 8  # an error that a hypothesis is to explain is at least so many times what the hypothesis may be off
AS_A_RULE = 0.2  # of what is allowed in an entry, twice its noise: the root of the mean square of what is left
ENOUGH = 3  # entries, or values, that fit alike: that two do is no more than a coincidence
COARSE = 1e-6  # a typical entry that is known no better does not tell whether a number is the same at another point
CLAIMS = 4  # for each entry of the inputs: more take longer than the check, which moves all of those
NEXT_TO_ONE = 1e-5  # a number that is no further off is shown as its distance from 1
ROUGH = 1e-3  # a number that is known less well is told as "about" that, and could have many a name
PROBES = 8  # entries that are compared before all are
EPS = float(np.finfo(np.float64).eps)


class Evidence(NamedTuple):
    """What is known of one input whose gradient is wrong."""

    name: str
    inputs: Mapping[str, Array]  # all of the function
    output: Array
    cotangents: Array  # (3, *output.shape): random ones
    analytic: Mapping[str, Array]  # of each input whose claim has the right form, for the three: (3, *shape)
    numerical: Mapping[str, Array]  # of every input; NaN where an entry was not looked at
    floor: Array  # how much noise there may be in analytic - numerical, for the first cotangent
    verdict: Array  # agreement.HOLDS, WRONG, UNDECIDED or UNCHECKED, for each entry
    at_zero: Array  # what is claimed for a cotangent of zeros; a right one is zero
    constants: Mapping[str, float]  # numbers that the function was called with, such as {"num_heads": 4}
    ask: Asked | None = None  # what else may be asked of the functions; without it, less is claimed
    parts: Parts = ()  # of several outputs, laid end to end in `output`: its axis is none of theirs
    exact: bool = False  # whether the noise is all of what is claimed, and nothing magnifies it


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
        known = looked_at & (size[0] > 0)
        decided = known & (np.asarray(evidence.verdict) != UNDECIDED)  # those that noise hides are not typical
        relative = (floor / size[0])[decided if decided.any() else known]
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

    @property
    def hidden(self) -> Array:
        """The entries that noise hides: whatever fits the others fits them, too."""
        noisy = np.any(self.noise > COARSE * np.maximum(np.abs(self.claimed), np.abs(self.right)), axis=0)
        return np.asarray(self.looked_at & noisy & (np.asarray(self.evidence.verdict) == UNDECIDED))

    @cached_property
    def neutral(self) -> Array:
        """The entries that tell nothing: not wrong, but zero anyway or undecidable."""
        zero: Array = np.all(np.maximum(np.abs(self.claimed), np.abs(self.right)) <= self.tolerance, axis=0)
        neutral: Array = self.looked_at & ~self.wrong & (zero | (np.asarray(self.evidence.verdict) == UNDECIDED))
        return neutral

    @cached_property
    def slopes(self) -> Array | None:
        """What each entry looked at does to each output, (outputs, entries); None if that takes too long to measure."""
        output, ask = self.evidence.output, self.evidence.ask
        if ask is None or not is_quick(int(self.looked_at.sum()), output.size):
            return None
        slopes = ask.slopes(np.eye(output.size).reshape(-1, *output.shape))
        return slopes[:, self.looked_at]

    @cached_property
    def claims(self) -> Array | None:
        """The same as it is claimed; None if that takes too long, or no sum of it is the whole claim."""
        output, ask = self.evidence.output, self.evidence.ask
        most = CLAIMS * sum(x.size for x in self.evidence.inputs.values())
        if self.slopes is None or ask is None or output.size > most or not ask.is_linear:
            return None
        v = np.random.default_rng(1).standard_normal(output.size)
        mirror = np.eye(output.size) - 2 * np.outer(v, v) / (v @ v)  # no zeros, at which code may be another
        return np.asarray(mirror @ ask.claims(mirror.reshape(-1, *output.shape))[:, self.looked_at])

    @property
    def is_seen_again(self) -> bool:
        """Whether enough is known of another point to tell a number there from the same one here."""
        return self.evidence.ask is not None and self.precision <= COARSE

    @cached_property
    def again(self) -> Mistake | None:
        """The same mistake at another point, for other cotangents; None where too little is known of one."""
        if not self.is_seen_again:
            return None
        rng = np.random.default_rng(0)
        inputs = {name: moved_relatively(x, rng, ELSEWHERE) for name, x in self.evidence.inputs.items()}
        return self.elsewhere(inputs, rng.standard_normal(self.evidence.cotangents.shape))

    def elsewhere(self, inputs: Mapping[str, Array], cotangents: Array) -> Mistake | None:
        """The same mistake at `inputs`."""
        if self.evidence.ask is None:
            return None
        ask = self.evidence.ask.moved(inputs)
        output = ask.output
        if not np.isfinite(output).all():
            return None
        verdict = np.where(self.looked_at & (self.evidence.verdict == WRONG), HOLDS, self.evidence.verdict)
        *claimed, at_zero = ask.claims(np.concatenate([cotangents, 0 * cotangents[:1]]))
        evidence = self.evidence._replace(
            inputs=inputs,
            output=output,
            cotangents=cotangents,
            analytic={self.name: np.array(claimed)},
            numerical={self.name: ask.slopes(cotangents)},
            floor=4 * np.maximum(self.evidence.floor, self.precision * np.abs(claimed[0])),  # it is not measured there
            verdict=verdict,
            at_zero=at_zero,
            ask=ask,
        )
        found = Mistake.of(evidence)
        known = np.isfinite(found.claimed) & np.isfinite(found.right)
        return found if known[:, self.looked_at].all() else None

    def is_right_for(self, cotangents: Array, slopes: Array | None = None, noise: Array | float = 0.0) -> bool:
        """Whether the claimed gradient is the one for other `cotangents`, (3, *output.shape), or other `slopes`.

        `noise`: of the cotangents.
        """
        slopes = self.slopes if slopes is None else slopes
        if slopes is None or self.slopes is None:
            return False
        found, flat, noises = self.of_those_looked_at, cotangents.reshape(3, -1), np.abs(noise + 0 * cotangents)
        for entries in (np.flatnonzero(found.wrong)[:PROBES], slice(None)):  # some first: hardly any reading is right
            used, usual = slopes[:, entries], np.abs(self.slopes[:, entries])
            terms, usual = np.abs(flat) @ np.abs(used), np.abs(self.evidence.cotangents.reshape(3, -1)) @ usual
            scale = np.where((usual > 0) & (not self.evidence.exact), terms / usual, 1.0)
            known = np.maximum(found.noise[:, entries], self.precision * terms + noises.reshape(3, -1) @ np.abs(used))
            allowed = UNDECIDABLE * np.maximum(scale, 1.0) * known
            if not (np.abs(flat @ used - found.claimed[:, entries]) <= allowed).all():
                return False
        return found.noisier(known).is_explained_by(flat @ slopes, scale)

    def number(self, x: float, digits: int) -> str:
        """A number that is known as well as a typical entry."""
        return number(x, digits, 2 * self.precision)

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
        noise = self.noise if self.evidence.exact else np.maximum(scale, 1.0) * self.noise
        allowed: Array = UNDECIDABLE * np.maximum(noise, self.precision * np.abs(other))
        return allowed

    def is_explained_by(
        self, other: Array, scale: float | Array = 1.0, in_entries: int = 1, known: Array | None = None
    ) -> bool:
        """Whether the claimed gradient is `other`, of shape ``(3, *shape)``, and evidently not the numerical one.

        That is so if `other` leaves no more than noise, in every entry and as a rule; and evident if so many entries
        are off by far more than the noise could make them, or else a dozen values by more than that. Of the wrong
        entries, at least half or ten must be `known`; by default all are that were looked at.
        """
        known = self.looked_at if known is None else known & self.looked_at
        allowed = self.allowed(other, scale)
        left, error = (np.abs(self.claimed - x)[:, known] for x in (other, self.right))
        allowed = np.broadcast_to(allowed, self.claimed.shape)[:, known]
        if not (left <= allowed).all():
            return False
        if (known & self.wrong).sum() < min(10, self.wrong.sum() / 2):
            return False
        unlike = left[allowed > 0] / allowed[allowed > 0]
        if np.linalg.norm(unlike) > AS_A_RULE * np.sqrt(unlike.size):
            return False
        wrong = error > allowed
        if (error > EVIDENT * allowed).any(axis=0).sum() >= in_entries:
            return True
        return bool(wrong.sum() >= 12 and wrong.any(axis=0).sum() >= 4)


def number(x: float, digits: int = 9, precision: float = EPS) -> str:
    """A number for a sentence, known to within `precision`, relative: the fewest digits that are as close, or `digits`.

    Where those hardly tell it from 1, it is shown as its distance from 1.
    """
    apart = abs(x - 1)
    if 0 < apart < max(NEXT_TO_ONE, 10.0 ** (1 - digits)):
        known = max(1, int(math.log10(max(apart / precision, 1))))
        return f"1 {'+' if x > 1 else '-'} {apart:.{min(3, digits, known)}g}"
    shorter = (float(f"{x:.{fewer}g}") for fewer in range(2, digits))
    shown = next((y for y in shorter if abs(y - x) <= precision * abs(x) and y != 1), x)
    return f"{'about ' if precision > ROUGH and shown != x else ''}{shown:.{digits}g}"


def subsets(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """All sets of some of these, small ones first."""
    given = tuple(items)
    for count in range(1, len(given) + 1):
        yield from combinations(given, count)


def in_words(parts: Sequence[object]) -> str:
    """``a, b and c``."""
    words = [str(part) for part in parts]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def axes_in_words(axes: Sequence[object]) -> str:
    """``axis a``, or ``axes a and b``."""
    return f"{'axis' if len(axes) == 1 else 'axes'} {in_words(axes)}"
