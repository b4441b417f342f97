"""What a check finds: data alone, which the reports are made of and the renderers are handed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

__all__ = ["Details", "Entry", "Escape", "Finding"]

Array = npt.NDArray[Any]

FACTORS = 10_000  # of a product over entries, that are computed one by one


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
    verdict: Array  # of integers, agreement.HOLDS and so on


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
            The norm of the error over that of the gradient; 0 stands for an error that is too small to show along any
            direction.
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
        ones with the probability :math:`\binom{N - w}{n} / \binom{N}{n}`. Entries and directions are drawn
        independently, so with d directions the error escapes with the probability

        .. math:: \mathrm{erf}\left(\frac{t}{\sqrt 2 |e|}\right)^d
                  \prod_{k=0}^{w-1} \frac{N - n - k}{N - k} .

        The factors decrease: behind ten thousand of them the last one stands for the rest, and the result is a bound.

        Examples
        --------
        >>> from attention_np.gradcheck.findings import Escape
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
        fewer, more = sorted((wrong_entries, self.entries))  # who is drawn and who is wrong may be exchanged
        counted = min(fewer, FACTORS)
        factors = [max(0, self.size - more - k) / (self.size - k) for k in range(counted)]  # (gradcheck.74)
        not_drawn = math.prod(factors) * (factors[-1] ** (fewer - counted) if factors else 1.0)
        return below_threshold**self.directions * not_drawn  # (gradcheck.73)


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found for one input.

    Attributes
    ----------
    name : str
    method : str
        How the numerical gradient was taken; "adjoint" for the check of forward mode.
    ok : bool
        No entry is wrong, and there is one that could be measured.
    max_relative_error : float
        The largest difference over the largest magnitude that takes part (:mod:`attention_np.gradcheck.agreement`).
    worst_index : tuple of int
        Where the difference is largest, among the wrong entries if there are any.
    analytic, numerical : float
        The two values there.
    floor : float
        What rounding and the method can be blamed for, of the difference there.
    size, checked, wrong, undecidable : int
        How many entries there are, were looked at, are wrong, and cannot be decided at the working precision.
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
        The arrays; None where there was nothing to compare, and in a report that was saved without them. They do not
        count when reports are compared.
    """

    name: str
    method: str
    ok: bool
    max_relative_error: float
    worst_index: tuple[int, ...] = ()
    analytic: float = float("nan")
    numerical: float = float("nan")
    floor: float = 0.0
    size: int = 0
    checked: int = 0
    wrong: int = 0
    undecidable: int = 0
    undecided: tuple[tuple[int, ...], ...] = ()
    worst: tuple[Entry, ...] = ()
    diagnosis: str | None = None
    note: str | None = None
    escape: Escape | None = None
    details: Details | None = field(default=None, repr=False)

    @property
    def verdict(self) -> str:
        """One of "holds", "wrong", "unfinished", and "undecidable": not one entry could be decided, or looked at."""
        if self.size and self.undecidable == self.checked and (self.ok or self.checked):
            return "undecidable"
        if self.ok:
            return "holds"
        return "unfinished" if self.diagnosis is None and not self.wrong else "wrong"
