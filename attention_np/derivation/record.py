"""The verdict on one equation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Record:
    """The verdict on one equation; ``error`` is None where nothing was compared.

    ``defines`` and ``uses`` are keys of names; ``of`` are those of the symbols X for which a left side is dL/dX, or a
    name that is defined as dL/dX. ``example`` is the heading of the worked example that the equation belongs to, or -1.
    """

    tag: str
    page: str
    line: int
    verdict: str
    error: float | None = None
    message: str = ""
    kind: str = ""
    cited_by: list[str] = field(default_factory=list)
    gradient: bool = False
    text_only: bool = False
    same: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # that code may cite for it: its own, and those of equations that it is the same as
    defines: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    uses: frozenset[str] = frozenset()
    example: int = -1
    rounded: bool = False  # compared with printed digits, to half a unit of the last

    def as_json(self) -> dict[str, Any]:
        """The record as it stands in the JSON report."""
        return {
            "tag": self.tag,
            "page": self.page,
            "line": self.line,
            "verdict": self.verdict,
            "error": None if self.error is None or not np.isfinite(self.error) else self.error,
            "cited_by": list(self.cited_by),
            **({"rounded": True} if self.rounded else {}),
            **({"message": self.message} if self.message else {}),
        }
