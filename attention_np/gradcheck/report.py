"""What a check found: one line an input, readable in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["GradientError", "InputReport", "Report"]


class GradientError(AssertionError):
    """A gradient does not agree with the numerical one."""


@dataclass(frozen=True)
class InputReport:
    """What was found for one input.

    Attributes
    ----------
    name : str
    method : str
        How the numerical gradient was taken; "adjoint" for the check of forward mode.
    ok : bool
    max_relative_error : float
        The largest difference over the largest magnitude that takes part (:mod:`attention_np.gradcheck.agreement`).
    worst_index : tuple of int
        Where the difference is largest.
    analytic, numerical : float
        The two values there.
    undecidable : int
        Entries that differ by more than the tolerance, yet by less than rounding can explain.
    diagnosis : str or None
        What is wrong, if that can be said in a sentence.
    """

    name: str
    method: str
    ok: bool
    max_relative_error: float
    worst_index: tuple[int, ...] = ()
    analytic: float = float("nan")
    numerical: float = float("nan")
    undecidable: int = 0
    diagnosis: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it: None stands for a number that is NaN or infinite."""
        return {key: _as_json(value) for key, value in self.__dict__.items()}


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
