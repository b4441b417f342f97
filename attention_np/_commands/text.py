"""Plain text for the commands that need NumPy alone: tables, and numbers with a unit."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["in_bytes", "in_thousands", "table"]


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """`rows` in columns, of which the first `left` are aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def in_bytes(number: float) -> str:
    """Such as "1.5 GiB"."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def in_thousands(number: float) -> str:
    """Such as "1.5 G"."""
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P", "E")).rstrip()


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / step, power + 1
    digits = 0 if power == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {units[power]}"
