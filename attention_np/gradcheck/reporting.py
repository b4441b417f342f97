"""What a check found, entry by entry: for a person, for a file, and for a test."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck import plot, saving
from attention_np.gradcheck.agreement import UNCHECKED, UNDECIDED, WRONG, normwise
from attention_np.gradcheck.describing import as_html, describe
from attention_np.gradcheck.findings import Details, Entry, Finding

__all__ = ["GradientError", "InputReport", "Interrupted", "Report", "compared"]

SHOWN, NAMED = 5, 10  # worst entries, and undecided ones, in a report


class GradientError(AssertionError):
    """A gradient does not agree with the numerical one."""


class Interrupted(KeyboardInterrupt):
    """A check was interrupted; `report` says what was found until then."""

    def __init__(self, report: Report) -> None:
        super().__init__("the check was interrupted: its report is in the attribute called report")
        self.report = report


class InputReport(Finding):  # noqa: D101
    __doc__ = Finding.__doc__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputReport) and self.to_dict() == other.to_dict()  # where NaN equals NaN

    def __hash__(self) -> int:
        return hash((self.name, self.method, self.ok))

    def with_note(self, sentence: str) -> InputReport:
        """The same, with a sentence more in its note."""
        return replace(self, note=sentence if self.note is None else f"{self.note}; {sentence}")

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The report in the types of JSON; see :meth:`Report.to_dict`."""
        only: dict[str, Any] = saving.as_dict([self], details=details)["inputs"][0]
        return only

    def _repr_html_(self) -> str:
        return as_html([self])


def compared(name: str, method: str, details: Details, precision: float, diagnosis: str | None) -> InputReport:
    """What a comparison entry by entry comes to; `precision` is the relative error that one operation makes."""
    a, n, floor, verdict = (x.ravel() for x in details)
    looked = np.flatnonzero(verdict != UNCHECKED)
    known = looked[np.isfinite(n[looked])]
    wrong, undecided = np.flatnonzero(verdict == WRONG), np.flatnonzero(verdict == UNDECIDED)
    rest = np.setdiff1d(looked, np.concatenate([wrong, undecided]))

    def index(k: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(k, details.analytic.shape)))

    def entry(k: int) -> Entry:
        return Entry(index(k), float(a[k]), float(n[k]), float(floor[k]))

    def worst_first(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(all="ignore"):
            return elements[np.lexsort([-np.abs(a - n)[elements]])]

    ranked = np.concatenate([worst_first(part) for part in (wrong, undecided, rest)])
    candidates = worst_first(wrong if wrong.size else known if known.size else looked)
    worst = entry(int(candidates[0])) if candidates.size else Entry((), math.nan, math.nan, math.nan)
    return InputReport(
        name,
        method,
        diagnosis is None,
        normwise(a[known], n[known], floor[known], precision) if known.size or not looked.size else math.nan,
        *worst,
        size=a.size,
        checked=looked.size,
        wrong=wrong.size,
        undecidable=undecided.size,
        undecided=tuple(index(int(k)) for k in undecided[:NAMED]),
        worst=tuple(entry(int(k)) for k in ranked[:SHOWN]),
        diagnosis=diagnosis,
        details=details,
    )


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
        return describe(self.inputs)

    def _repr_html_(self) -> str:
        return as_html(self.inputs)

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The report in the types of JSON.

        None stands for NaN, and the strings "Infinity" and "-Infinity" for what they say: JSON has none of them.
        The arrays of the details are included if `details` is true: their shapes, and their values as nested lists.
        """
        return saving.as_dict(self.inputs, details=details)

    def save(self, path: str | os.PathLike[str], *, details: bool = False) -> None:
        """Write the report to a file, as JSON; `details` as for :meth:`to_dict`.

        The file is written beside `path` and then put in its place, so that no reader sees a part of it.
        """
        saving.write(path, self.inputs, details=details)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read the report that :meth:`save` wrote; the same, and the arrays of the details as float64.

        Raises
        ------
        ValueError
            If the file holds something else. Nothing in it is evaluated.
        """
        return cls(tuple(InputReport(**fields) for fields in saving.read(path)))

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
        chosen = [self[name]] if name is not None else [entry for entry in self if not entry.ok] or list(self)
        return plot.all_places(chosen)

    def raise_if_failed(self) -> None:
        """Raise `GradientError`, an AssertionError that prints the report, if a gradient does not hold."""
        if not self.ok:
            failed = [entry for entry in self.inputs if not entry.ok]
            unseen = all(entry.verdict == "undecidable" for entry in failed)
            what = "could not be checked" if unseen else "does not hold"
            raise GradientError(f"the gradient {what} for {', '.join(entry.name for entry in failed)}\n{self}")
