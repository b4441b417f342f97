"""What a check finds: data alone, which reports are made of and renderers are handed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict.judging import HOLDS, UNCHECKED, UNDECIDED, WRONG, Escape

SHOWN = 5  # worst entries, and others that have a name, in a report


class Entry(NamedTuple):
    """One entry of a gradient, as claimed and as found."""

    index: tuple[int, ...]  # type: ignore[assignment]  # not the method of tuples
    analytic: float
    numerical: float
    floor: float  # what rounding and the method can be blamed for, of the difference

    @property
    def relative_error(self) -> float:
        """The difference over the larger of the two values; infinite where one of them is not finite."""
        largest = max(abs(self.analytic), abs(self.numerical))
        error = abs(self.analytic - self.numerical) / largest if largest else 0.0
        return error if math.isfinite(error) else math.inf


class Details(NamedTuple):
    """Everything that was found for one input, each array of its shape."""

    analytic: Array
    numerical: Array  # NaN where an entry was not looked at
    floor: Array  # as in `Entry`
    verdict: Array  # of integers, HOLDS and so on


@dataclass(frozen=True)
class InputReport:
    """What was found for one input."""

    name: str
    method: str  #: How the numerical gradient was taken; "adjoint" for the check of forward mode.
    ok: bool  #: No entry is wrong, all could be measured, and some could be decided.
    max_relative_error: float  #: The largest difference over the largest magnitude that takes part.
    worst_index: tuple[int, ...] = ()  #: Where the difference is largest, among the wrong entries if there are any.
    analytic: float = math.nan  #: The value there that is claimed,
    numerical: float = math.nan  #: and the one that is measured.
    floor: float = 0.0  #: What rounding and the method can be blamed for, of the difference there.
    size: int = 0  #: How many entries there are,
    checked: int = 0  #: were looked at,
    wrong: int = 0  #: are wrong,
    undecidable: int = 0  #: cannot be decided at the working precision,
    too_small: int = 0  #: and of these differ, but are too small to judge beside the largest.
    undecided: tuple[tuple[int, ...], ...] = ()  #: Where the first are that cannot be decided.
    worst: tuple[Entry, ...] = ()  #: The worst entries, the wrong ones first.
    diagnosis: str | None = None  #: What is wrong, in a sentence.
    note: str | None = None  #: What else is worth knowing, such as why the method was changed.
    escape: Escape | None = None  #: If only a sample was looked at.
    #: The arrays; None where there was nothing to compare. They do not count when reports are compared.
    details: Details | None = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """One of "holds", "wrong", and "undecidable": not one entry could be decided, or looked at."""
        if self.size and self.undecidable == self.checked and (self.ok or self.checked):
            return "undecidable"
        return "holds" if self.ok else "wrong"


def compared(
    name: str, method: str, details: Details, precision: float, diagnosis: str | None, too_small: int = 0
) -> InputReport:
    """What a comparison entry by entry comes to; `precision` is the relative error that one operation makes."""
    a, n, floor, verdict = (x.ravel() for x in details)
    looked = np.flatnonzero(verdict != UNCHECKED)
    known = looked[np.isfinite(n[looked])]
    wrong, undecided = np.flatnonzero(verdict == WRONG), np.flatnonzero(verdict == UNDECIDED)
    rest = np.flatnonzero(verdict == HOLDS)

    def index(k: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(k, details.analytic.shape)))

    def worst_first(elements: Array) -> list[Entry]:
        with np.errstate(all="ignore"):
            rank = -np.abs(a[elements] - n[elements])
            if rank.size > SHOWN:  # of many, sort those that may be shown
                few = ~(rank > np.partition(rank, SHOWN)[SHOWN])
                elements, rank = elements[few], rank[few]
            ranked = elements[np.lexsort([rank])][:SHOWN].tolist()
        return [Entry(index(k), float(a[k]), float(n[k]), float(floor[k])) for k in ranked]

    nothing = [Entry((), math.nan, math.nan, math.nan)]
    return InputReport(
        name,
        method,
        diagnosis is None,
        _normwise(a[known], n[known], floor[known], precision) if known.size or not looked.size else math.nan,
        *(worst_first(wrong if wrong.size else known if known.size else looked) or nothing)[0],
        size=a.size,
        checked=looked.size,
        wrong=wrong.size,
        undecidable=undecided.size,
        too_small=too_small,
        undecided=tuple(map(index, undecided[: 2 * SHOWN].tolist())),
        worst=tuple(worst_first(wrong) + worst_first(undecided) + worst_first(rest))[:SHOWN],
        diagnosis=diagnosis,
        details=details,
    )


def _normwise(actual: Array, expected: Array, floor: Array, precision: float) -> float:
    """The normwise relative error; of arrays that are nothing but noise, relative to the terms that cancelled.

    Such an array is zero as far as anybody can tell. The magnitude that takes part is then that of the terms, which the
    floor tells: floor / precision.
    """
    with np.errstate(all="ignore"):
        difference = np.abs(actual - expected).max(initial=0)
        largest = np.maximum(np.abs(actual), np.abs(expected))
    if difference and (largest <= UNDECIDABLE * floor).all() and np.isfinite(floor).all():
        return float(difference / (floor.max() / precision))
    return float(difference / largest.max()) if difference else 0.0  # (gradcheck.45)
