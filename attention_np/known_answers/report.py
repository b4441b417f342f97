"""What a run over known answers found: for a person, and for a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attention_np._lib.text import table

LINES = 20  # that a report has at most, so that it is read
ROWS = 8  # of the table, of which those of arrays that are wrong come first
SKIPPED = 4  # names


class KnownAnswerError(AssertionError):
    """A function does not give a known answer."""


class Comparison(NamedTuple):
    """One array, as a function returned it, against its known answer."""

    case: str  # such as "float32/dot_product/causal"
    array: str  # such as "d_query"
    ok: bool  # every entry is within its bound
    error: float  # the largest error of an entry over its bound
    worst_index: tuple[int, ...]  # where that is
    found: float  # there
    answer: float
    bound: float
    wrong: int  # how many entries are
    size: int  # how many there are
    note: str | None  # what it looks like, in a sentence
    about: str = ""  # what the case is there for
    flags: tuple[str, ...] = ()  # its tags, each with its reason and the threads that it comes from

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        flags = [f"    {'; '.join(self.flags)}"] if self.flags else []
        if self.note and self.note.startswith("it raised"):
            return "\n".join([f"{self.case}{about}: {self.note}", *flags])
        lines = [f"{self.case}: {self.array} is wrong in {self.wrong} of {self.size} entries{about}"]
        if self.bound == self.bound:  # the shapes are the same
            place = f"at {list(self.worst_index)} " if self.worst_index else ""
            lines.append(f"    {place}it is {self.found:.9g}, not {self.answer:.9g} within {self.bound:.1e}")
        return "\n".join(lines + ([f"    {self.note}"] if self.note else []) + flags)


@dataclass(frozen=True)
class Conformance:
    """What was found in all cases; ``report["causal", "d_query"]`` is the worst of one array in one case.

    Attributes
    ----------
    comparisons : tuple of Comparison
        One for each array that the function returned in each case.
    skipped : tuple of str
        The cases that it did not implement.
    verdict : str or None
        One sentence over all cases that fail: the cause that explains every number of them to its bound, if one does.
    """

    comparisons: tuple[Comparison, ...]
    skipped: tuple[str, ...] = ()
    verdict: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every array is within its bounds."""
        return all(comparison.ok for comparison in self.comparisons)

    @property
    def failed(self) -> tuple[Comparison, ...]:
        """The comparisons that do not hold, those that were not compared first, then those of small cases."""
        sizes: dict[str, int] = {}
        for comparison in self.comparisons:
            sizes[comparison.case] = sizes.get(comparison.case, 0) + comparison.size
        return tuple(
            sorted(
                (x for x in self.comparisons if not x.ok),
                key=lambda x: (x.size > 0 and x.bound == x.bound, sizes[x.case]),
            )
        )

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __getitem__(self, key: tuple[str, str]) -> Comparison:
        case, array = key
        found = [x for x in self.comparisons if x.array == array and (x.case == case or x.case.endswith(f"/{case}"))]
        if not found:
            raise KeyError(f"{array} was not compared in a case called {case}")
        return max(found, key=lambda x: (not x.ok, x.error))

    def __str__(self) -> str:
        checked = len({comparison.case for comparison in self.comparisons})
        lines = [f"{checked} of {checked + len(self.skipped)} cases were checked, {len(self.skipped)} skipped"]
        lines += [self.verdict] if self.verdict else []
        lines += ["", *_table(self.comparisons)]
        end = []
        if self.skipped:
            names = ", ".join(self.skipped[:SKIPPED]) + (", ..." if len(self.skipped) > SKIPPED else "")
            end = ["", f"{len(self.skipped)} {'case was' if len(self.skipped) == 1 else 'cases were'} skipped: {names}"]
        failed = self.failed  # smallest cases first
        room = LINES - len(lines) - len(end) - 2
        shown = 0
        if failed:
            lines.append("")
        for comparison in failed:
            block = [line for line in str(comparison).splitlines() if line not in lines]  # tags are explained once
            if len(block) > room:
                break
            lines, room, shown = [*lines, *block], room - len(block), shown + 1
        if len(failed) > shown:
            lines.append(f"and {len(failed) - shown} arrays more")
        return "\n".join(lines + end)

    def raise_if_failed(self) -> None:
        """Raise `KnownAnswerError`, an AssertionError that prints the report, if an array is not within its bounds."""
        if not self.ok:
            raise KnownAnswerError(f"{len(self.failed)} arrays are not the known answers\n{self}")


def _table(comparisons: tuple[Comparison, ...]) -> list[str]:
    """A line for each array in each dtype, or for those that fail and a few more: the worst of its cases."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.case.partition("/")[0], comparison.array), []).append(comparison)
    rows = []
    for (dtype, array), group in groups.items():
        worst = max(group, key=lambda x: (not x.ok, x.error))
        hold = sum(x.ok for x in group)
        case = worst.case.partition("/")[2]
        rows.append((dtype, array, len(group), hold if worst.ok else f"{hold} NO", f"{worst.error:.2g}", case))
    shown = sorted(rows, key=lambda row: isinstance(row[3], int))[:ROWS] if len(rows) > ROWS else rows
    head = ("dtype", "array", "cases", "hold", "error / bound", "the worst case")
    lines = table([head, *([str(cell) for cell in row] for row in shown)], left=len(head)).splitlines()
    rest = rows[:0] if len(rows) <= ROWS else [row for row in rows if row not in shown]
    wrong = sum(not isinstance(row[3], int) for row in rest)
    return lines + ([f"and {len(rest)} arrays more, of which {wrong or 'none'} fail"] if rest else [])
