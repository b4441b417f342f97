"""What a check found, entry by entry: for a person, for JSON, and for a test."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Details", "Entry", "Escape", "GradientError", "InputReport", "Report"]

Array = npt.NDArray[Any]


class GradientError(AssertionError):
    """A gradient does not agree with the numerical one."""


class Entry(NamedTuple):
    """One entry of a gradient, as claimed and as found."""

    index: tuple[int, ...]
    analytic: float
    numerical: float
    floor: float  # what rounding and the method can be blamed for, of the difference

    @property
    def relative_error(self) -> float:
        """The difference over the larger of the two values."""
        largest = max(abs(self.analytic), abs(self.numerical))
        return abs(self.analytic - self.numerical) / largest if largest else 0.0


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
    norm: float  # of the gradient, in the measure of the directions

    def probability(self, relative_error: float, wrong_entries: int = 1) -> float:
        """Of not noticing an error of `relative_error` times the norm of the gradient, in so many entries."""
        raise NotImplementedError


@dataclass(frozen=True)
class InputReport:
    """What was found for one input.

    Attributes
    ----------
    name : str
    method : str
        How the numerical gradient was taken; "adjoint" for the check of forward mode.
    ok : bool
        No entry is wrong.
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
        The arrays; None where there was nothing to compare, and in a report that was loaded.
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
    details: Details | None = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """ "holds", "wrong", or "undecidable" if not one entry could be decided."""
        if not self.ok:
            return "wrong"
        return "undecidable" if self.undecidable and self.undecidable == self.checked else "holds"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it: None stands for a number that is NaN or infinite."""
        return {key: _as_json(value) for key, value in self.__dict__.items() if key != "details"}


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
        rows = [("input", "method", "holds", "error", "worst at", "analytic", "numerical")]
        rows += [
            (
                entry.name,
                entry.method,
                "yes" if entry.ok else "NO",
                f"{entry.max_relative_error:.1e}",
                str(list(entry.worst_index)),
                f"{entry.analytic:.9g}",
                f"{entry.numerical:.9g}",
            )
            for entry in self.inputs
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        for entry in self.inputs:
            if entry.diagnosis is not None:
                lines.append(f"{entry.name}: {entry.diagnosis}")
            if entry.undecidable:
                entries = "1 entry" if entry.undecidable == 1 else f"{entry.undecidable} entries"
                lines.append(f"{entry.name}: {entries} cannot be decided at this precision")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it: None stands for a number that is NaN or infinite."""
        return {"ok": self.ok, "inputs": [entry.to_dict() for entry in self.inputs]}

    def raise_if_failed(self) -> None:
        """Raise `GradientError`, an AssertionError that prints the report, if a gradient does not hold."""
        if not self.ok:
            wrong = ", ".join(entry.name for entry in self.inputs if not entry.ok)
            raise GradientError(f"the gradient does not hold for {wrong}\n{self}")


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
