"""A mistake, as far as it is known, and when a reading of it is right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import Evidence, elsewhere
from attention_np.gradcheck.problem.calls import REFUSALS
from attention_np.gradcheck.problem.nests import Parts
from attention_np.gradcheck.slopes.measuring import measured
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import AT_ONCE, flattened
from attention_np.gradcheck.verdict.elsewhere import is_linear
from attention_np.gradcheck.verdict.judging import UNCHECKED, UNDECIDED, WRONG

Item = TypeVar("Item")

AS_A_RULE = 0.25  # of what is allowed in an entry, 2.5 times its noise: the root of the mean square of what is left
CLEARLY = 100  # times what counts as an error, or what a reading leaves
ENOUGH = 3  # entries, or values, that fit alike: that two do is no more than a coincidence
VAGUE = 1e-3  # a number that is known less well is told as "about" that, and could have many a name
EPS = float(np.finfo(float).eps)  # the least noise of a number: readings are compared in float64


class Reading(NamedTuple):
    """What a mistake may be."""

    kind: str  # what it is, without its numbers
    sentence: str
    claim: Array  # (3, *shape): what is claimed, if it is so
    numbers: tuple[float, ...] = ()  # that must be the same at another point
    scale: Array | float = 1.0  # by how much the noise of the numerical gradient is magnified in it
    known: Array | None = None  # the entries of which it says something; None: all
    entries: int = 1  # at least so many must be off by far more than the noise
    alone: bool = False  # whether it says enough by itself, and need not be so at another point


@dataclass(frozen=True)
class Ask:
    """What else the functions say of one input, at the point or elsewhere: NaN where they were not asked, or refuse."""

    evidence: Evidence
    inputs: Mapping[str, Array]

    @property
    def is_quick(self) -> bool:
        """Whether it takes no longer than a check to find what each entry does to each output."""
        return int(self.evidence.looked.sum()) * self.evidence.problem.output.size**2 <= 10**8

    @property
    def is_linear(self) -> bool:
        """Whether what is claimed is linear in the cotangent."""
        return is_linear(self.evidence.problem, self.evidence.name)

    @cached_property
    def output(self) -> Array:
        """The output."""
        try:
            return np.asarray(self._there(self.evidence.problem.cotangents).with_output().output)
        except REFUSALS:
            return np.full_like(self.evidence.problem.output, np.nan)

    def slopes(self, cotangents: Array) -> Array:
        """The numerical gradients for other cotangents, (cotangents, *shape)."""
        rows = flattened(cotangents) @ self._jacobian if self.is_quick else self._measured(cotangents)
        return self._placed(rows)

    def claims(self, cotangents: Array) -> Array:
        """The claimed gradients for them."""
        problem, there = self.evidence.problem, list(self.inputs.values())
        try:
            rows = [np.ravel(problem.claim(u, there)[self.evidence.name])[self._elements] for u in cotangents]
        except REFUSALS:
            rows = [np.full(len(self._elements), np.nan)] * len(cotangents)
        return self._placed(np.array(rows))

    @cached_property
    def _jacobian(self) -> Array:
        output = self.evidence.problem.output
        return self._measured(np.eye(output.size).reshape(-1, *output.shape))

    def _measured(self, cotangents: Array) -> Array:
        evidence, elements = self.evidence, self._elements
        there, steps = self._there(cotangents), evidence.steps[elements]
        try:
            return np.asarray(measured(there, elements, evidence.method, evidence.running, steps=steps).values.T)
        except REFUSALS:
            return np.full((len(cotangents), len(elements)), np.nan)

    def _there(self, cotangents: Array) -> Any:
        return replace(self.evidence.there(cotangents[0], list(self.inputs.values())), cotangents=cotangents)

    @property
    def _elements(self) -> Array:
        return np.flatnonzero(self.evidence.looked)

    def _placed(self, rows: Array) -> Array:
        placed = np.full((len(rows), self.evidence.looked.size), np.nan)
        placed[:, self._elements] = rows
        return placed.reshape(len(rows), *self.evidence.shape)


@dataclass(frozen=True)
class Mistake:
    """One wrong gradient, for three cotangents; arrays are NaN in the entries that were not looked at."""

    name: str
    inputs: Mapping[str, Array]  # all of the function
    output: Array
    cotangents: Array  # (3, *output.shape)
    claimed: Array  # (3, *shape)
    right: Array  # (3, *shape): the numerical gradient
    floor: Array  # how much noise there may be in the difference, for the first cotangent
    verdict: Array  # HOLDS and so on, for each entry
    at_zero: Array  # what is claimed for a cotangent of zeros; a right one is zero
    others: Mapping[str, tuple[Array, Array | None]] = field(default_factory=dict)  # of inputs: right, and claimed
    parts: Parts = ()  # of several outputs, laid end to end in `output`: its axis is none of theirs
    ask: Ask | None = None  # what else may be asked; without it, less is claimed
    exact: bool = False  # whether the noise is all of what is claimed, and nothing magnifies it

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the input."""
        return self.claimed.shape[1:]

    @property
    def x(self) -> Array:
        """The input."""
        return np.asarray(self.inputs[self.name], np.float64)

    @cached_property
    def looked(self) -> Array:
        """The entries that are known."""
        return np.asarray(np.isfinite(self.right).all(axis=0) & (self.verdict != UNCHECKED))

    @property
    def error(self) -> Array:
        """The claimed gradient less the numerical one."""
        return self.claimed - self.right

    @cached_property
    def precision(self) -> float:
        """The noise of a typical entry, of those that noise does not hide, relative to the entry."""
        size = np.fmax(np.abs(self.claimed[0]), np.abs(self.right[0]))
        known = self.looked & (size > 0)
        decided = known & (self.verdict != UNDECIDED)
        relative = (self.floor / size)[decided if decided.any() else known]
        return max(float(np.median(relative)) if relative.size else 0.0, 2 * EPS)

    @cached_property
    def noise(self) -> Array:
        """How far the two may be apart when both are right: (3, *shape)."""
        size = np.fmax(np.abs(self.claimed), np.abs(self.right))
        floor = np.where(np.isfinite(self.floor), self.floor, 0)
        # The floor is that of the first cotangent; the terms of another are of another size, as a rule a similar one.
        others = 2 * np.maximum(floor, self.precision * size[1:])
        return np.concatenate([floor[np.newaxis], others]) + 4 * EPS * size

    @property
    def tolerance(self) -> Array:
        """What counts as an error is larger."""
        return UNDECIDABLE * self.noise

    @cached_property
    def wrong(self) -> Array:
        """The entries that are wrong for some cotangent."""
        off = np.any(np.abs(self.error) > self.tolerance, axis=0)
        return np.asarray((off | (self.verdict == WRONG)) & self.looked & (self.verdict != UNDECIDED))

    @cached_property
    def neutral(self) -> Array:
        """The entries that tell nothing: not wrong, but zero anyway, too small to judge, or hidden by noise."""
        zero = np.all(np.maximum(np.abs(self.claimed), np.abs(self.right)) <= self.tolerance, axis=0)
        return np.asarray(self.looked & ~self.wrong & (zero | (self.verdict == UNDECIDED)))

    @cached_property
    def jacobian(self) -> Array | None:
        """What each entry looked at does to each output, (outputs, entries); None if that takes too long to measure."""
        if self.ask is None or not self.ask.is_quick:
            return None
        return self.ask.slopes(np.eye(self.output.size).reshape(-1, *self.output.shape))[:, self.looked]

    @cached_property
    def claimed_jacobian(self) -> Array | None:
        """The same as it is claimed; None if that takes too long, or no sum of it is the whole claim."""
        size = self.output.size
        too_long = size > 3 * sum(x.size for x in self.inputs.values())  # longer than to move all of those
        if self.jacobian is None or self.ask is None or too_long or not self.ask.is_linear:
            return None
        v = np.random.default_rng(1).standard_normal(size)
        mirror = np.eye(size) - 2 * np.outer(v, v) / (v @ v)  # no zeros, at which code may be another
        return np.asarray(mirror @ self.ask.claims(mirror.reshape(-1, *self.output.shape))[:, self.looked])

    @property
    def is_seen_again(self) -> bool:
        """Whether enough is known of another point to tell a number there from the same one here."""
        return self.ask is not None and self.precision <= VAGUE / 10

    @cached_property
    def again(self) -> Mistake | None:
        """The same mistake at another point, for other cotangents; None where too little is known of one."""
        if self.ask is None or not self.is_seen_again:
            return None
        rng = np.random.default_rng(0)
        pairs = zip(self.inputs.items(), elsewhere(self.inputs.values(), rng), strict=True)
        inputs = {name: np.where(x == 0, x, y) for (name, x), y in pairs}  # zeros may be on one side of a kink
        cotangents, ask = rng.standard_normal(self.cotangents.shape), replace(self.ask, inputs=inputs)
        *claimed, at_zero = ask.claims(np.concatenate([cotangents, 0 * cotangents[:1]]))
        floor = 4 * np.maximum(self.floor, self.precision * np.abs(claimed[0]))  # it is not measured there
        there = replace(
            self, inputs=inputs, cotangents=cotangents, floor=floor, others={}, ask=ask,
            claimed=np.array(claimed), right=ask.slopes(cotangents), output=ask.output, at_zero=at_zero
        )  # fmt: skip
        known = np.isfinite(there.claimed) & np.isfinite(there.right)
        return there if np.isfinite(there.output).all() and known[:, self.looked].all() else None

    def is_explained_by(self, reading: Reading) -> bool:
        """Whether the claimed gradient is what a reading says, and evidently not the numerical one.

        That is so if it leaves no more than noise, in every entry and as a rule; and evident if so many entries are off
        by far more than the noise could make them, or else a dozen values by more than that. Of the wrong entries, at
        least half or ten must be `known`.
        """
        known = self.looked & (self.verdict != UNDECIDED)
        known = known if reading.known is None else known & reading.known
        if (known & self.wrong).sum() < min(10, self.wrong.sum() / 2):
            return False
        scale = np.broadcast_to(1.0 if self.exact else np.fmax(reading.scale, 1), self.claimed.shape)
        claimed, right, claim, noise, scale = (
            x.reshape(3, -1) for x in (self.claimed, self.right, reading.claim, self.noise, scale)
        )
        elements = np.flatnonzero(known)
        few, rest = spread(np.flatnonzero(known & self.wrong), 8), range(0, len(elements), AT_ONCE)
        unlike, evident, off, values = np.zeros(2), 0, 0, 0
        for some in (few, *(elements[start : start + AT_ONCE] for start in rest)):  # hardly any reading is right
            allowed = np.maximum(scale[:, some] * noise[:, some], self.precision * np.abs(claim[:, some])) * UNDECIDABLE
            left = np.abs(claimed[:, some] - claim[:, some])
            if not (left <= allowed).all():
                return False
            if some is not few:
                error = np.abs(claimed[:, some] - right[:, some])
                unlike += [np.square((left / allowed)[allowed > 0]).sum(), (allowed > 0).sum()]
                evident += (error > 8 * allowed).any(axis=0).sum()  # most of the error is explained
                values, off = values + (error > allowed).sum(), off + (error > allowed).any(axis=0).sum()
        several = values >= 12 and off >= 4
        return bool((evident >= reading.entries or several) and unlike[0] <= AS_A_RULE**2 * unlike[1])

    def as_of(
        self, kind: str, said: str, cotangents: Array, slopes: Array | None = None, numbers: tuple[float, ...] = ()
    ) -> Iterator[Reading]:
        """A reading by which it is the right gradient for other cotangents, or of other slopes; if those are known."""
        if self.jacobian is None:
            return
        slopes, flat = self.jacobian if slopes is None else slopes, cotangents.reshape(3, -1)
        usual, terms = np.abs(self.cotangents.reshape(3, -1)) @ np.abs(self.jacobian), np.abs(flat) @ np.abs(slopes)
        claim, scale = np.full(self.claimed.shape, np.nan), np.ones(self.claimed.shape)
        claim[:, self.looked], scale[:, self.looked] = flat @ slopes, np.where(usual > 0, terms / usual, 1.0)
        yield Reading(kind, said, claim, numbers, scale)

    def number(self, x: float, digits: int = 9) -> str:
        """A number that is known as well as a typical entry."""
        return number(x, digits, 2 * self.precision)


def number(x: float, digits: int = 9, precision: float = EPS) -> str:
    """A number for a sentence, known to within `precision`, relative: the fewest digits that are as close, or `digits`.

    Where those hardly tell it from 1, it is shown as its distance from 1.
    """
    distance = abs(x - 1)
    if 0 < distance < max(1e-5, 10.0 ** (1 - digits)):
        known = max(1, int(math.log10(max(distance / precision, 1))))
        return f"1 {'+' if x > 1 else '-'} {distance:.{min(3, digits, known)}g}"
    shorter = (float(f"{x:.{fewer}g}") for fewer in range(2, digits))
    shown = next((y for y in shorter if abs(y - x) <= precision * abs(x) and y != 1), x)
    return f"{'about ' if precision > VAGUE and shown != x else ''}{shown:.{digits}g}"


def spread(elements: Array, count: int) -> Array:
    """So many of the elements at most, from the first to the last."""
    return np.asarray(elements[np.linspace(0, len(elements) - 1, min(count, len(elements))).astype(int)])


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
