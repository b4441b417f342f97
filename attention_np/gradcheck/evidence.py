"""Evidence on one input: what is claimed and what is measured; here, next door, in a wider dtype, and elsewhere.

The claim less the measured slope is zero for a right gradient wherever one asks. So what it is at other points tells
what it is here: of an error it stays, and of rounding it does not. This room gathers, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.problem.calls import REFUSALS, wide_dtype
from attention_np.gradcheck.problem.problem import Problem
from attention_np.gradcheck.slopes.measuring import CENTRAL, Running, directional_slopes, measured
from attention_np.gradcheck.slopes.methods import UNDECIDABLE, Slopes
from attention_np.gradcheck.slopes.moves import Subject, flattened, magnitudes
from attention_np.gradcheck.slopes.probes import POINTS, high_differences, noise_of_outputs

Question = tuple[Array, list[Array]]  # the cotangent and all inputs
Way = Callable[[Array, list[Array]], Any]  # to the numbers that are compared, from these

ULPS, DOORS = 4, 4  # units in the last place, at most, by which inputs are moved; and how often (gradcheck.56)
FAR = 2.0**-7  # relative: another point, at which no formula is right by accident, and hardly any branch another one


class Pair(NamedTuple):
    """Two ways to the same numbers."""

    claimed: Way
    measured: Way

    def difference(self, cotangent: Array, inputs: list[Array]) -> Any:
        """The one less the other; NaN where one refuses this point, as a function of what must sum to one."""
        try:
            return self.claimed(cotangent, inputs) - self.measured(cotangent, inputs)
        except REFUSALS:
            return np.nan


def neighbor_differences(pair: Pair, question: Question, rng: np.random.Generator) -> Array:
    """The difference at points in the last bits around: (points, entries)."""
    points = [[neighbor_in_last_bits(x, rng) for x in (question[0], *question[1])] for _ in range(DOORS)]
    with np.errstate(all="ignore"):
        return np.stack(np.broadcast_arrays(*(pair.difference(u, there) for u, *there in points)))


def line_noise(pair: Pair, question: Question, rng: np.random.Generator) -> Array:
    """The noise of the difference on lines from the point towards zero, as long as the slopes are smooth there.

    It shows the rounding of what stays the same number close by, as 1 - y * y where y is nearly one. What diverges does
    not do so towards zero.
    """
    ways = [rng.uniform(31 / 32, 1, x.shape) for x in question[1]]  # rows that sum to one nearly stay such
    noise: Any = 0.0
    with np.errstate(all="ignore"):
        for spacing in (2.0**-36, 2.0**-24, 2.0**-15, 2.0**-9):
            places = [
                [np.array(x * (1 - k * spacing * v), x.dtype) for x, v in zip(question[1], ways, strict=True)]
                for k in range(POINTS)
            ]
            try:
                claims, slopes = (np.array([way(question[0], there) for there in places]) for way in pair)
            except REFUSALS:
                break
            smooth = np.abs(high_differences(slopes)).max(axis=0) <= 1e-2 * np.abs(slopes).max(axis=0)
            if not smooth.any():
                break
            noise = np.where(smooth, np.fmax(noise, np.abs(high_differences(claims - slopes)).max(axis=0)), noise)
    return np.asarray(noise)


def noise_of_pair(
    pair: Pair,
    question: Question,
    difference: Array,
    wider: Callable[[], Array | None],
    rng: np.random.Generator,
    slight: Array,
) -> Array:
    """How much of a difference may be noise: how it changes next door, and in a wider dtype.

    Or on a line, if the functions take no wider dtype, and the difference is `slight`.
    """
    noise = np.abs(neighbor_differences(pair, question, rng) - difference)
    noise = np.fmax.reduce(np.where(np.isfinite(noise), noise, 0), axis=0)  # (gradcheck.54)
    if (UNDECIDABLE * noise >= np.abs(difference)).all():
        return np.asarray(noise)
    there = wider()
    if there is not None:
        further = np.abs(difference - there).astype(float)
    elif slight.any():
        further = np.where(slight, line_noise(pair, question, rng), 0)
    else:
        return np.asarray(noise)
    return np.asarray(np.fmax(noise, np.where(np.isfinite(further), further, 0)))


def neighbor_in_last_bits(x: Array, rng: np.random.Generator) -> Array:
    """`x`, with each entry moved up or down by one to some units in its last place; zero has none."""
    units = rng.integers(1, ULPS, x.shape, endpoint=True) * rng.choice([-1, 1], x.shape)
    with np.errstate(all="ignore"):
        y = x + units.astype(x.dtype) * np.spacing(x)
    return np.where(np.isfinite(y) & (x != 0), y, x)


def elsewhere(inputs: Iterable[Array], rng: np.random.Generator) -> list[Array]:
    """Another point close by. Zeros are moved, too, as biases are zero at first; and up, as many counts are.

    Zeros beside large numbers, as in a mask that is added to scores, are moved by a part of one.
    """
    there = []
    for x in inputs:
        way, size = rng.uniform(-1, 1, x.shape), magnitudes(x)
        way, size = np.where(x == 0, [np.abs(way), np.fmin(size, 1)], [way, size])
        there.append(np.asarray(x + FAR * way * size, x.dtype))
    return there


@dataclass
class Evidence:
    """What is known of one input; arrays are flat, an element for each entry."""

    name: str
    problem: Problem
    subject: Subject
    method: str
    running: Running
    unseen: Array  # how far off a slope may be, of which a trial of the method has seen nothing
    bends: bool  # whether forward may have a kink at the point
    note: str | None = None
    looked: Array = field(init=False)  # of bool
    slopes: Array = field(init=False)  # (cotangents, entries), NaN where not looked at, or where there is none
    errors: Array = field(init=False)
    steps: Array = field(init=False)

    def __post_init__(self) -> None:
        size = self.subject.x.size
        self.looked = np.zeros(size, bool)
        self.slopes = np.full((len(self.subject.cotangents), size), np.nan, wide_dtype(self.subject.x.dtype))
        self.errors, self.steps = np.zeros((2, size))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the input."""
        return self.subject.x.shape

    @property
    def claimed(self) -> Array:
        """The gradient that is claimed, flat."""
        return self.problem.claimed(self.name).ravel()

    @property
    def measured(self) -> Array:
        """The gradient that is measured, flat; NaN where an entry was not looked at."""
        return np.asarray(self.slopes[0])

    @property
    def unit(self) -> float:
        """The last bit of one, in the dtype in which the gradient is claimed."""
        return float(np.finfo(self.claimed.dtype).eps)

    def look(self, elements: Array, *, best: bool = False, key: str | None = None) -> None:
        """Measure the slopes of some entries."""
        slopes = measured(self.subject, elements, self.method, self.running, best=best, key=key)
        self.looked[elements] = True
        self.slopes[:, elements] = slopes.values.T
        self.errors[elements], self.steps[elements] = slopes.errors, slopes.steps

    def by_differences(self) -> None:
        """Turn to the other method."""
        self.method, self.subject = CENTRAL, replace(self.subject, noise=outputs_noise(self.problem))
        self.unseen = np.zeros(self.shape)
        self.look(np.flatnonzero(self.looked))

    def rng(self, purpose: str) -> np.random.Generator:
        """Randomness of its own for each purpose."""
        return self.problem.rng(self.name, purpose)

    def pair(self, elements: Array, problem: Problem | None = None) -> Pair:
        """The claimed and the measured gradient of some entries, as functions of the cotangent and of all inputs."""
        steps = self.steps[elements]
        return self._pair(
            lambda gradient: gradient[elements],
            lambda there: measured(there, elements, self.method, self.running, steps=steps),
            problem or self.problem,
        )

    def directional_pair(self, directions: Array) -> Pair:
        """The same of the slopes along some directions."""
        flat = flattened(directions)
        return self._pair(
            lambda gradient: np.asarray(flat @ gradient.astype(wide_dtype(gradient.dtype))),
            lambda there: directional_slopes(there.with_output(), directions, self.method, self.running),
            self.problem,
        )

    def _pair(
        self, of_gradient: Callable[[Array], Any], of_subject: Callable[[Subject], Slopes], problem: Problem
    ) -> Pair:
        return Pair(
            lambda u, inputs: of_gradient(np.ravel(problem.claim(u, inputs)[self.name])),
            lambda u, inputs: of_subject(self.there(u, inputs)).values[:, 0],
        )

    def there(self, cotangent: Array, inputs: Sequence[Array]) -> Subject:
        """The function at another point; its output there, on which no slope depends, is not asked for."""
        pairs = zip(inputs, self.problem.point, strict=True)
        point = tuple(np.array(x, np.result_type(x.dtype, y.dtype)) for x, y in pairs)
        return replace(self.subject, point=point, cotangents=np.asarray(cotangent, wide_dtype(cotangent.dtype))[None])

    def in_wider_dtype(self, elements: Array) -> Array | None:
        """The difference of some entries in a wider dtype; None where the functions take none."""
        wider = self.problem.wider
        if wider is None or np.asarray(wider.claims[self.name]).dtype != wider.dtype:
            return None
        pair, question = self.pair(elements, wider), wider.question
        with np.errstate(all="ignore"):
            return np.asarray(wider.claimed(self.name).ravel()[elements] - pair.measured(*question))

    def second_opinion(self, elements: Array, *, best: bool = False) -> Slopes:
        """The slopes of some entries by differences, in the widest dtype that the functions take."""
        wider, subject = self.problem.wider, self.subject
        if wider is not None:
            subject = replace(
                subject, point=wider.point, output=wider.output, cotangents=wider.cotangents[:1], noise=None
            )
        return measured(subject, elements, CENTRAL, self.running, best=best)


def subject_of(problem: Problem, name: str) -> Subject:
    """The function of a problem, to be differentiated with respect to one of its inputs."""
    position = list(problem.inputs).index(name)
    return Subject(problem.forward, problem.point, position, problem.output, problem.cotangents, problem.unit)


def outputs_noise(problem: Problem) -> Array:
    """How far rounding moves each output of a problem, asked once."""
    rng = problem.rng(next(iter(problem.inputs)), "noise")
    return problem.once("noise", lambda: noise_of_outputs(problem.forward, problem.point, problem.output, rng))
