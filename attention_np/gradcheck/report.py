"""What a check found, entry by entry: for a person, for JSON, and for a test."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from attention_np._lib import json
from attention_np.gradcheck import _html, _text
from attention_np.gradcheck._json import plain

__all__ = ["Details", "Entry", "Escape", "GradientError", "InputReport", "Report"]

Array = npt.NDArray[Any]

FACTORS = 10_000  # of a product over entries, that are computed one by one


class GradientError(AssertionError):
    """A gradient does not agree with the numerical one."""


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
        >>> from attention_np.gradcheck.report import Escape
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


@dataclass(frozen=True)
class InputReport:
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputReport) and self.to_dict() == other.to_dict()  # where NaN equals NaN

    def __hash__(self) -> int:
        return hash((self.name, self.method, self.ok))

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The report in the types of JSON; see :meth:`Report.to_dict`."""
        return {key: plain(value) for key, value in self.__dict__.items() if details or key != "details"}

    def _repr_html_(self) -> str:
        return _html.render([self])


@dataclass(frozen=True)
class Report:
    """What was found for all inputs; ``report[name]`` is what was found for one."""

    inputs: tuple[InputReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every gradient holds."""
        return all(entry.ok for entry in self.inputs)

    def __getitem__(self, name: str) -> InputReport:
        for entry in self.inputs:
            if entry.name == name:
                return entry
        raise KeyError(f"{name!r} is not among the inputs checked: {', '.join(entry.name for entry in self.inputs)}")

    def __iter__(self) -> Iterator[InputReport]:
        return iter(self.inputs)

    def __str__(self) -> str:
        return _text.describe(self.inputs)

    def _repr_html_(self) -> str:
        return _html.render(self.inputs)

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The report in the types of JSON.

        None stands for NaN, and the strings "Infinity" and "-Infinity" for what they say: JSON has none of them.
        The arrays of the details are included if `details` is true: their shapes, and their values as nested lists.
        """
        return {"ok": self.ok, "inputs": [entry.to_dict(details=details) for entry in self.inputs]}

    def save(self, path: str | os.PathLike[str], *, details: bool = False) -> None:
        """Write the report to a file, as JSON; `details` as for :meth:`to_dict`.

        The file is written beside `path` and then put in its place, so that no reader sees a part of it.
        """
        from attention_np.gradcheck import _saved

        json.write(path, {**_saved.HEADER, **self.to_dict(details=details)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read the report that :meth:`save` wrote; the same, and the arrays of the details as float64.

        Raises
        ------
        ValueError
            If the file holds something else. Nothing in it is evaluated.
        """
        from attention_np.gradcheck import _saved

        try:
            return cls(_saved.inputs_of(json.read(path)))
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} is not a saved gradient report: {error}") from error

    def plot(self, name: str | None = None) -> npt.NDArray[Any]:
        """Where the errors are, by Matplotlib: a figure with one Axes for each input.

        Parameters
        ----------
        name : str, optional
            The input to look at; by default those that are wrong, or all if none is.

        Returns
        -------
        ndarray of matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If Matplotlib is missing.
        ValueError
            If the report holds no arrays to plot.
        """
        from attention_np.gradcheck import plot

        chosen = [self[name]] if name is not None else [entry for entry in self if not entry.ok] or list(self)
        return plot.all_places(chosen)

    def raise_if_failed(self) -> None:
        """Raise `GradientError`, an AssertionError that prints the report, if a gradient does not hold."""
        if not self.ok:
            wrong = ", ".join(entry.name for entry in self.inputs if not entry.ok)
            raise GradientError(f"the gradient does not hold for {wrong}\n{self}")
