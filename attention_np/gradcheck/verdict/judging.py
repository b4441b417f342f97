"""The verdict on each entry, by its floor and the bound.

An entry is wrong if claim and slope differ by more than ten times its floor, and by more than its bound. The floor is
what rounding and the method can be blamed for. The bound is what is too small to judge beside the rest: 8 units in the
last place of the largest entry measured for the same input; or so little that the input, moved by its size, moves the
outputs by less than their last bits. An entry holds if the two agree to the resolution that the method is meant to
have. Else it is undecided, and counted. Derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.evidence import Evidence
from attention_np.gradcheck.slopes.kinks import Kink
from attention_np.gradcheck.slopes.measuring import CENTRAL, COMPLEX
from attention_np.gradcheck.slopes.methods import COMPLEX_STEP, TOO_SMALL, UNDECIDABLE
from attention_np.gradcheck.slopes.moves import Subject

HOLDS, WRONG, UNDECIDED, UNCHECKED = range(4)  # the verdicts on an entry
OWN_ROUNDING = 4  # units in the last place of an entry that are no reason to look closer
RESOLUTION = {COMPLEX: 1e-10, CENTRAL: 1e-7}  # the relative error of an entry that must be seen
GROSS = 1e-6  # relative: no rounding comes so far, but to single or half precision
COARSE = 1e3  # units in the last place: the resolution in a dtype in which that is more


def judge(claimed: Array, measured: Array, floor: Array, bound: Array | float, resolution: float) -> Array:
    """The verdict on each entry: `HOLDS`, `WRONG`, or `UNDECIDED`, also where one of the two is not finite."""
    with np.errstate(all="ignore"):
        difference = np.abs(claimed - measured)
        wrong = difference > np.fmax(UNDECIDABLE * floor, bound)
        fine = difference <= resolution * np.maximum(np.abs(claimed), np.abs(measured))  # (gradcheck.58)
    return np.where(wrong, WRONG, np.where(fine, HOLDS, UNDECIDED)).astype(np.int8)


def bound_of(x: Array, measured: Array, last_bits: Array, unit: float) -> float:
    """What is too small to judge in a gradient by `x`."""
    largest = np.abs(measured[np.isfinite(measured)]).max(initial=0)
    zero = 0.0 if last_bits.any() else COMPLEX_STEP**2  # of zero, it leaves as much
    return float(max(TOO_SMALL * unit * largest, norm(last_bits) / size_of(x), zero))  # (gradcheck.59)


def norm(x: Array) -> float:
    """The root of the sum of squares, also of numbers whose squares are none."""
    largest = float(np.abs(x).max(initial=0))
    return float(np.linalg.norm(x / largest)) * largest if 0 < largest < np.inf else largest


def size_of(x: Array) -> float:
    """The size of an input: its largest magnitude, 1 if it is all zero."""
    return float(np.abs(x).max(initial=0, where=np.isfinite(x))) or 1.0


class Escape(NamedTuple):
    """With what probability an error goes unnoticed if only a sample of the entries was looked at."""

    entries: int  # of all `size` entries, how many were looked at one by one
    size: int
    directions: int  # random directions along which the whole gradient was projected
    threshold: float  # a projection of the error that is smaller goes unnoticed, by the noise floor along a direction
    norm: float  # of the gradient, times the least size by which directions count an entry

    def probability(self, relative_error: float) -> float:
        r"""Of not noticing an error of `relative_error` times the norm of the gradient, in a single entry.

        Along a direction of independent standard normal components an error e shows as a number of :math:`N(0, |e|^2)`,
        which is smaller than the threshold t with the probability :math:`\mathrm{erf}(t / (\sqrt 2 |e|))`.
        """
        error = relative_error * self.norm if relative_error else 0.0  # though the norm be infinite
        below_threshold = math.erf(self.threshold / error / math.sqrt(2)) if error else 1.0
        return below_threshold**self.directions * (1 - self.entries / self.size)  # (gradcheck.79), (gradcheck.80)


def usual_size(subject: Subject) -> float:
    """The size that a gradient of such outputs has where nothing cancels or saturates."""
    return norm(subject.last_bits / subject.unit) / size_of(subject.x)


@dataclass
class Verdict:
    """What becomes of the entries of one input; arrays are flat."""

    evidence: Evidence
    rtol: float
    fault: str | None = None  # what is wrong besides single entries
    escape: Escape | None = None
    kinks: list[Kink] = field(default_factory=list)
    too_small: int = 0
    floor: Array = field(init=False)
    bound: float = field(init=False)
    entries: Array = field(init=False)

    def __post_init__(self) -> None:
        size = self.evidence.looked.size
        self.floor, self.bound = np.zeros(size), 0.0
        self.entries = np.full(size, UNCHECKED, np.int8)

    @property
    def difference(self) -> Array:
        """How far claim and slope are apart."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.evidence.claimed - self.evidence.measured))

    @property
    def usual(self) -> float:
        """The size that the gradient has where nothing cancels or saturates."""
        return usual_size(self.evidence.subject)

    @property
    def looked(self) -> Array:
        """The entries that were looked at."""
        return np.flatnonzero(self.evidence.looked)

    @property
    def wrong(self) -> Array:
        """The entries that are wrong."""
        return np.flatnonzero(self.entries == WRONG)

    @property
    def missing(self) -> Array:
        """The entries that could not be measured."""
        return self.looked[~np.isfinite(self.evidence.measured[self.looked])]

    def count_too_small(self) -> None:
        """Count the entries that are undecided and would be wrong, were they not too small to judge."""
        differing = (self.entries == UNDECIDED) & (self.difference > UNDECIDABLE * self.floor)
        self.too_small = int((differing & np.isfinite(self.evidence.measured)).sum())

    def begin(self, some: Array) -> Array:
        """Judge by the method's own errors and the last bits of the entries; those that differ by more."""
        evidence = self.evidence
        self.bound = bound_of(evidence.subject.x, evidence.measured, evidence.subject.last_bits, evidence.unit)
        with np.errstate(all="ignore"):
            larger = np.fmax(np.abs(evidence.claimed), np.abs(evidence.measured))
        rounding = OWN_ROUNDING * evidence.unit * larger
        self.floor[some] = (evidence.errors + np.where(np.isfinite(rounding), rounding, 0))[some]
        return self._judge(some)

    def add(self, some: Array, noise: Array) -> Array:
        """Raise the floor of some entries, and judge them by it; those that are wrong still."""
        self.floor[some] += np.where(np.isfinite(noise), noise, 0)
        return self._judge(some)

    def _judge(self, some: Array) -> Array:
        evidence = self.evidence
        resolution = max(RESOLUTION[evidence.method], COARSE * evidence.unit)
        entries = judge(evidence.claimed[some], evidence.measured[some], self.floor[some], self.bound, resolution)
        self.entries[some] = np.where(evidence.looked[some], entries, UNCHECKED)
        if self.rtol:
            allowed = self.rtol * np.fmax(np.abs(evidence.claimed), np.abs(evidence.measured)).max(initial=0)
            self.entries[some[self.difference[some] <= allowed]] = HOLDS
        return np.asarray(some[self.entries[some] == WRONG])
