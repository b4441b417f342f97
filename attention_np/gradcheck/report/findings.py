"""What a check finds: data alone, which reports are made of and renderers are handed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

UNDECIDABLE = 10  # times its floor: a difference that rounding cannot be blamed for (gradcheck.56)
HOLDS, WRONG, UNDECIDED, UNCHECKED = range(4)  # the verdicts on an entry
TOO_SMALL = 8  # units in the last place of the largest entry: what differs by less is not judged (gradcheck.84)
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


class Escape(NamedTuple):
    """With what probability an error goes unnoticed if only a sample of the entries was looked at."""

    entries: int  # of all `size` entries, how many were looked at one by one
    size: int
    directions: int  # random directions along which the whole gradient was projected
    threshold: float  # a projection of the error that is smaller goes unnoticed, by the noise floor along a direction
    norm: float  # of the gradient, times the least size by which directions count an entry

    def probability(self, relative_error: float, wrong_entries: int = 1) -> float:
        r"""Of not noticing an error of `relative_error` times the norm of the gradient, in so many entries.

        Parameters
        ----------
        relative_error : float
            The norm of the error over that of the gradient; 0 stands for one too small to show along any direction.
        wrong_entries : int, optional
            In how many entries the error sits; the default, one, is the hardest to find.

        Raises
        ------
        ValueError
            If there can be no such error.

        Notes
        -----
        Along a direction v of independent standard normal components an error e shows as
        :math:`\langle e, v \rangle \sim N(0, |e|^2)`, which is smaller than the threshold t with the probability
        :math:`\mathrm{erf}(t / (\sqrt 2 |e|))`. None of the n entries that were drawn out of N is one of the w wrong
        ones with the probability :math:`\binom{N - w}{n} / \binom{N}{n}`. The draws are independent.

        Examples
        --------
        >>> escape = Escape(entries=200, size=100_000, directions=8, threshold=1e-12, norm=1.0)
        >>> print(f"{escape.probability(1e-10):.1e}, {escape.probability(0):.3f}, {escape.probability(0, 5000):.1e}")
        1.6e-17, 0.998, 3.5e-05
        """
        if not 0 <= relative_error < math.inf:
            raise ValueError(f"relative_error must be a finite number that is not negative, not {relative_error}")
        if not 0 <= wrong_entries <= self.size:
            raise ValueError(f"wrong_entries must be from 0 to the {self.size} that there are, not {wrong_entries}")
        error = relative_error * self.norm if relative_error else 0.0  # though the norm be infinite
        below_threshold = math.erf(self.threshold / error / math.sqrt(2)) if error else 1.0
        right = self.size - wrong_entries
        if self.entries > right:
            return 0.0
        choices = ((right, 1), (right - self.entries, -1), (self.size, -1), (self.size - self.entries, 1))
        not_drawn = math.exp(sum(sign * math.lgamma(n + 1) for n, sign in choices))  # (gradcheck.74)
        return below_threshold**self.directions * min(not_drawn, 1.0)  # (gradcheck.73)


@dataclass(frozen=True)
class InputReport:
    """What was found for one input.

    Attributes
    ----------
    name : str
    method : str
        How the numerical gradient was taken; "adjoint" for the check of forward mode.
    ok : bool
        No entry is wrong, all could be measured, and some could be decided.
    max_relative_error : float
        The largest difference over the largest magnitude that takes part.
    worst_index : tuple of int
        Where the difference is largest, among the wrong entries if there are any.
    analytic, numerical : float
        The two values there.
    floor : float
        What rounding and the method can be blamed for, of the difference there.
    size, checked, wrong, undecidable, too_small : int
        How many entries there are, were looked at, are wrong, and cannot be decided at the working precision; how many
        of the last are too small to judge beside the largest, but differ.
    undecided : tuple of tuple of int
        Where the first of those are.
    worst : tuple of Entry
        The worst entries, the wrong ones first.
    diagnosis : str or None
        What is wrong, in a sentence.
    note : str or None
        What else is worth knowing, such as why the method was changed.
    escape : Escape or None
        If only a sample was looked at.
    details : Details or None
        The arrays; None where there was nothing to compare, and in a report that was read from a file. They do not
        count when reports are compared.
    """

    name: str
    method: str
    ok: bool
    max_relative_error: float
    worst_index: tuple[int, ...] = ()
    analytic: float = math.nan
    numerical: float = math.nan
    floor: float = 0.0
    size: int = 0
    checked: int = 0
    wrong: int = 0
    undecidable: int = 0
    too_small: int = 0
    undecided: tuple[tuple[int, ...], ...] = ()
    worst: tuple[Entry, ...] = ()
    diagnosis: str | None = None
    note: str | None = None
    escape: Escape | None = None
    details: Details | None = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """One of "holds", "wrong", "unfinished", and "undecidable": not one entry could be decided, or looked at."""
        if self.size and self.undecidable == self.checked and (self.ok or self.checked):
            return "undecidable"
        if self.ok:
            return "holds"
        return "unfinished" if self.diagnosis is None and not self.wrong else "wrong"

    def with_note(self, sentence: str) -> InputReport:
        """The same, with a sentence more in its note."""
        return replace(self, note=sentence if self.note is None else f"{self.note}; {sentence}")


def compared(
    name: str, method: str, details: Details, precision: float, diagnosis: str | None, too_small: int = 0
) -> InputReport:
    """What a comparison entry by entry comes to; `precision` is the relative error that one operation makes."""
    a, n, floor, verdict = (x.ravel() for x in details)
    looked = np.flatnonzero(verdict != UNCHECKED)
    known = looked[np.isfinite(n[looked])]
    wrong, undecided = np.flatnonzero(verdict == WRONG), np.flatnonzero(verdict == UNDECIDED)
    rest = np.setdiff1d(looked, np.concatenate([wrong, undecided]))

    def index(k: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(k, details.analytic.shape)))

    def worst_first(elements: Array) -> list[Entry]:
        with np.errstate(all="ignore"):
            ranked = elements[np.lexsort([-np.abs(a - n)[elements]])][:SHOWN].tolist()
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
    return float(difference / largest.max()) if difference else 0.0
