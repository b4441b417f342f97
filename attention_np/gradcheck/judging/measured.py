"""Two functions at one point, and what has been measured of them there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck.agreement import UNDECIDABLE, UNDECIDED
from attention_np.gradcheck.findings import Escape
from attention_np.gradcheck.measuring.functions import Backward, FirstCall, Forward, call_backward, wide_dtype
from attention_np.gradcheck.measuring.noise import GROSS, Pair, sensitivity
from attention_np.gradcheck.measuring.numerical import METHODS, measure, measure_along
from attention_np.gradcheck.measuring.running import Running, ignore
from attention_np.gradcheck.measuring.slopes import Slopes
from attention_np.gradcheck.measuring.subject import Subject, flattened, sizes
from attention_np.gradcheck.nesting import Parts

__all__ = ["Candidate", "Measured", "Options", "grossly"]

Array = npt.NDArray[Any]
Result = TypeVar("Result")

WORK = 10**9  # entries looked at, times the entries that each of those looks computes with
COARSE, FAR = 1e3, 100  # units in the last place; noise floors: no rounding comes so far
ASKED = 8  # entries that are looked at elsewhere, or for other cotangents
LEAST_ENTRIES = 100  # looked at, however large the input
ROUGH = 1 / 4  # of an entry: to know it so well tells it from one and a half times as much
SMALL = 1e-2  # of the size that coarse outputs give a gradient: an entry below that is seen to be small
LONG = 2.0**-7  # of an output: the last bit of bfloat16. What has longer steps is made of them, as floor is
LARGE = 2.0**10  # times: cotangents that what is clipped at a few units or hundreds shows by


def grossly(dtype: np.dtype[Any]) -> float:
    """The relative difference of two numbers of a dtype that no rounding makes, but of the narrowest dtypes."""
    return max(GROSS, COARSE * float(np.finfo(dtype).eps))


class Options(NamedTuple):
    """What the caller asks for."""

    method: str
    rtol: float
    max_entries: int | Literal["auto"] | None
    directions: int
    constants: Mapping[str, float]
    witnessed: bool = False  # whether all that is looked at is measured by differences, too, for a report of theirs

    def most(self, size: int, total: int) -> int:
        """How many entries are looked at one by one, of an input of so many; `total`: of all inputs and the output."""
        if self.max_entries == "auto":
            return min(size, max(LEAST_ENTRIES, WORK // max(total, 1)))
        return size if self.max_entries is None else min(size, self.max_entries)


@dataclass(frozen=True)
class Candidate:
    """Two functions at one point."""

    forward: Forward
    backward: Backward
    inputs: Mapping[str, Array]  # as they were given
    point: tuple[Array, ...]  # the same, in the precision in which slopes are measured
    first: FirstCall
    cotangents: Array  # (3, *output.shape)
    seed: int
    parts: Parts = ()  # of several outputs, end to end
    stateless: bool = False  # whether `backward` uses nothing that `forward` kept of its last call
    known: dict[tuple[str, str], Any] = field(default_factory=dict)  # by input and purpose, whatever the method

    def once(self, name: str, purpose: str, measure: Callable[[], Result]) -> Result:
        """What `measure` gives for one input and purpose, asked once."""
        if (name, purpose) not in self.known:
            self.known[name, purpose] = measure()
        result: Result = self.known[name, purpose]
        return result

    @cached_property
    def output(self) -> Array:
        """The output at `point`."""
        if all(x.dtype == y.dtype for x, y in zip(self.inputs.values(), self.point, strict=True)):
            return self.first.output
        return np.array(self.forward(*self.point))

    @property
    def size(self) -> int:
        """The entries of all inputs and the output."""
        return self.first.output.size + sum(x.size for x in self.point)

    @property
    def wide(self) -> bool:
        """Whether the functions take a wider dtype than that of float32 inputs, or need none."""
        return all(x.dtype == wide_dtype(x.dtype) for x in self.point)

    @property
    def question(self) -> tuple[Array, list[Array]]:
        """The cotangent and all inputs."""
        return self.first.cotangent, list(self.inputs.values())

    def subject(self, name: str) -> Subject:
        """The function, to be differentiated with respect to the input called `name`."""
        position = list(self.inputs).index(name)
        unit = float(np.finfo(self.inputs[name].dtype).eps)
        return Subject(self.forward, self.point, position, self.output, self.cotangents, unit=unit)

    def gradients(self, cotangent: Array, inputs: list[Array] | None = None) -> dict[str, Any]:
        """What `backward` claims, at the point or elsewhere; it may use what `forward` kept of its last call."""
        there = list(self.inputs.values()) if inputs is None else inputs
        narrow = self.first.cotangent.dtype
        # Arrays throughout: what NumPy computes of a 0-d array, or takes from a stack of them, is none.
        u = np.array(cotangent, narrow if inputs is None else np.result_type(narrow, *(x.dtype for x in there)))
        if not self.stateless:
            self.forward(*map(np.array, there))
        arrays = {name: np.array(x) for name, x in zip(self.inputs, there, strict=True)}
        return dict(zip(self.inputs, call_backward(self.backward, u, arrays), strict=True))

    @cached_property
    def of_a_sum(self) -> list[dict[str, Any]]:
        """What is claimed for the first cotangent; and for a second large one, and its sum with the first as large."""
        return [self.claims, *map(self.gradients, self.large_cotangents[1:])]

    @property
    def large_cotangents(self) -> tuple[Array, Array, Array]:
        """The first two, so many times as large that a gradient that is clipped is so there, and their sum."""
        u, v, _ = LARGE * self.cotangents
        return u, v, u + v

    @property
    def claims(self) -> dict[str, Any]:
        """What is claimed for the first cotangent."""
        return dict(zip(self.inputs, self.first.gradients, strict=True))

    def claimed(self, name: str) -> Array:
        """The gradient that is claimed for one input, in its dtype or in a narrower one."""
        gradient, x = np.asarray(self.first.gradients[list(self.inputs).index(name)]), self.inputs[name]
        is_wider = gradient.dtype.kind == "f" and gradient.dtype.itemsize > x.dtype.itemsize
        return gradient.astype(x.dtype) if is_wider else gradient

    def rng(self, name: str, purpose: str) -> np.random.Generator:
        """Randomness of its own for each input and purpose, so that no choice depends on another."""
        return np.random.default_rng([self.seed, list(self.inputs).index(name), *purpose.encode()])


@dataclass
class Measured:
    """What is known of one input; arrays are flat, an element for each entry."""

    name: str
    candidate: Candidate
    subject: Subject
    method: str
    running: Running
    note: str | None = None
    escape: Escape | None = None
    fault: str | None = None
    tolerance: float = 0.0  # to which the functions seem to compute, relative, if worse than rounding; inf: they jump
    looked: Array = field(init=False)  # of bool
    numerical: Array = field(init=False)  # (cotangents, entries), NaN where not looked at, or where there is no slope
    errors: Array = field(init=False)
    scales: Array = field(init=False)
    lost: Array = field(init=False)
    floor: Array = field(init=False)
    verdict: Array = field(init=False)

    def __post_init__(self) -> None:
        size = self.subject.x.size
        self.looked = np.zeros(size, bool)
        self.numerical = np.full((len(self.subject.cotangents), size), np.nan, wide_dtype(self.subject.x.dtype))
        self.errors, self.scales, self.lost, self.floor = np.zeros((4, size))
        self.verdict = np.zeros(size, np.int8)

    def look(self, elements: Array, *, best: bool = False, key: str | None = None) -> None:
        """Measure the slopes of some entries."""
        running = self.running if key else self.aside  # entries that are looked at again are not more entries done
        measure(self.subject, elements, self.method, running, best=best, key=key, keep=self._keep)

    def _keep(self, elements: Array, found: Slopes) -> None:
        self.looked[elements] = True
        self.numerical[:, elements] = found.values.T
        self.errors[elements], self.scales[elements], self.lost[elements] = found.errors, found.scales, found.lost

    @property
    def claimed(self) -> Array:
        """The gradient that is claimed, flat."""
        return self.candidate.claimed(self.name).ravel()

    @cached_property
    def is_linear(self) -> bool:
        """Whether what is claimed for the sum of two cotangents is the sum of what is claimed for each, and multiples.

        So of the first, as many times as large, what is claimed is known.
        """
        one, other, of_sum = (claimed[self.name].ravel() for claimed in self.candidate.of_a_sum)
        each = LARGE * one
        near = grossly(of_sum.dtype)
        known = LARGE * self.floor[self.looked].max(initial=0)
        left = of_sum - each - other  # not finite where a narrow dtype has no such large numbers
        largest = (np.abs(each) + np.abs(other)).max(initial=0, where=np.isfinite(left))
        off = np.flatnonzero(np.isfinite(left) & (np.abs(left) > near * largest + FAR * known))[:ASKED]
        if not off.size:
            return True
        narrow, inputs = self.candidate.question
        claim, rng = self.pair(off).claimed, self.rng("sum")
        noise = [sensitivity(claim, w.astype(narrow.dtype), inputs, rng) for w in self.candidate.large_cotangents]
        return bool((np.abs(left)[off] <= FAR * sum(noise)).all())

    @cached_property
    def scale(self) -> Array:
        """The size that each entry of a gradient has where nothing cancels: that of what the outputs are made of.

        Their rounding tells how large that is, even where it cancels; but not that of coarse outputs.
        """
        terms = self.subject.loudness / float(np.finfo(self.subject.output.dtype).eps)
        terms = np.where(self._coarse, SMALL * self._sizes, terms)
        return np.asarray(np.linalg.norm(terms) / sizes(self.subject.x).ravel())

    @property
    def _coarse(self) -> Array:
        """The outputs whose noise is a part of them, and no last bit of anything, as if rounded to a few decimals."""
        return np.asarray(self.subject.loudness > np.cbrt(np.finfo(self.subject.output.dtype).eps) * self._sizes)

    @property
    def _sizes(self) -> Array:
        """How much the outputs count: what is smaller than one may be what is left of one."""
        return np.asarray(np.fmax(np.abs(self.subject.output.ravel()), 1) * np.abs(self.subject.weights[:, 0]))

    @property
    def blind(self) -> Array:
        """The undecided entries of which nothing is seen: neither about how large they are, nor that they are small.

        Beside them, coarse outputs have zeros that are none: landings between two stairs, unless those are too long for
        any rounding.
        """
        undecided: Array = self.verdict == UNDECIDED
        if not undecided.any():
            return undecided
        largest = np.fmax(np.abs(self.claimed), np.abs(self.numerical[0]))
        blind: Array = undecided & ~(UNDECIDABLE * self.floor <= np.fmax(self.scale, ROUGH * largest))
        if blind.any() and (self._coarse & (self.subject.loudness <= LONG * self._sizes)).any():
            blind |= largest == 0
        return blind

    def remark(self, sentence: str) -> None:
        """Add a sentence to the note."""
        self.note = sentence if self.note is None else f"{self.note}; {sentence}"

    def rng(self, purpose: str) -> np.random.Generator:
        """Randomness of its own for each purpose."""
        return self.candidate.rng(self.name, purpose)

    def pair(self, elements: Array) -> Pair:
        """The claimed and the measured gradient of some entries, as functions of the cotangent and of all inputs."""
        return self._pair(
            lambda gradient: gradient[elements],
            lambda there: measure(there, elements, self.method, self.aside, scales=self.scales[elements]),
        )

    def pair_along(self, directions: Array, scale: float | None = None) -> Pair:
        """The same of the slopes along some directions."""
        return self._pair(
            lambda gradient: np.asarray(flattened(directions) @ gradient.astype(wide_dtype(gradient.dtype))),
            lambda there: self.slopes_along(directions, there if scale else there.with_its_output(), scale),
        )

    def _pair(self, of_gradient: Callable[[Array], Array], of_subject: Callable[[Subject], Slopes]) -> Pair:
        """What two functions make of a claimed gradient, flat, and of the slopes that are measured there."""
        return Pair(
            lambda cotangent, inputs: of_gradient(np.ravel(self.candidate.gradients(cotangent, inputs)[self.name])),
            lambda cotangent, inputs: of_subject(self._there(cotangent, inputs)).values[:, 0],
        )

    def loss(self, cotangent: Array, inputs: list[Array]) -> Array:
        """What the slopes are those of."""
        return np.asarray((self._there(cotangent, inputs).with_its_output().output * cotangent).sum())

    def slopes_along(self, directions: Array, subject: Subject | None = None, scale: float | None = None) -> Slopes:
        """Slopes along directions, here or at another point; by differences, at one `scale` or the best."""
        return measure_along(subject or self.subject, directions, self.method, self.aside, scale)

    @property
    def aside(self) -> Running:
        """For measurements that do not count as entries done."""
        return replace(self.running, checkpoint=None, advance=ignore)

    def there(self, cotangent: Array, inputs: list[Array]) -> Subject:
        """The function elsewhere."""
        subject = self._there(cotangent, inputs)
        return subject.with_its_output() if self.method == METHODS[1] else subject  # differences look at it

    def _there(self, cotangent: Array, inputs: list[Array]) -> Subject:
        """The same without its output there, on which no slopes depend that are measured with known steps."""
        pairs = zip(inputs, self.candidate.point, strict=True)
        point = [np.array(x, np.result_type(x.dtype, y.dtype)) for x, y in pairs]
        return self.subject.at(point, cotangent[None])
