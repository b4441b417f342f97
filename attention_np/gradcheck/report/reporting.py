"""What a check found: for a person, for a file, and for a test."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from attention_np._lib.files import write_whole
from attention_np.gradcheck import plot
from attention_np.gradcheck.report.describing import describe
from attention_np.gradcheck.report.findings import InputReport


class GradientError(AssertionError):
    """A gradient does not agree with the numerical one."""


@dataclass(frozen=True, eq=False)
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self.to_dict() == other.to_dict()  # where NaN equals NaN

    def __str__(self) -> str:
        return describe(self.inputs)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """The report in the types of JSON, without the arrays of the details.

        None stands for NaN, and the strings "Infinity" and "-Infinity" for what they say: JSON has none of them.
        """
        fields = [{key: value for key, value in vars(entry).items() if key != "details"} for entry in self.inputs]
        return {"ok": self.ok, "inputs": _as_json(fields)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_dict` to a file, as JSON: the whole of it or nothing."""
        write_whole(path, f"{json.dumps(self.to_dict(), allow_nan=False)}\n".encode())

    def plot(self, name: str | None = None) -> npt.NDArray[Any]:
        """Where the errors are, by Matplotlib, of all inputs that are wrong, or of all if none is; or of `name`."""
        chosen = [self[name]] if name is not None else [entry for entry in self if not entry.ok] or list(self)
        return plot.all_places(chosen)

    def raise_if_failed(self) -> None:
        """Raise `GradientError`, an AssertionError that prints the report, if a gradient does not hold."""
        failed = [entry for entry in self.inputs if not entry.ok]
        if failed:
            unseen = all(entry.verdict == "undecidable" for entry in failed)
            what = "could not be checked" if unseen else "does not hold"
            raise GradientError(f"the gradient {what} for {', '.join(entry.name for entry in failed)}\n{self}")


def _as_json(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _as_json(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [_as_json(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value)
    return value
