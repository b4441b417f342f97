"""A report in words: plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from textwrap import fill, indent

from attention_np._lib.text import legible, table
from attention_np.gradcheck.report.findings import SHOWN, Entry, InputReport
from attention_np.gradcheck.verdict.judging import Escape

COLUMNS = ("input", "method", "holds", "error", "worst at", "analytic", "numerical", "floor")
MARKS = {"holds": "yes", "wrong": "NO", "undecidable": "?"}  # of the verdicts, in the column "holds"


def describe(inputs: Sequence[InputReport]) -> str:
    """The table with a line an input, and below it what else there is to say of each."""
    lines = [table([COLUMNS, *map(_cells, inputs)], left=len(COLUMNS))]
    common: dict[str, list[str]] = {}  # remarks, and whom they are made of
    for entry in inputs:
        for remark in _remarks(entry):
            common.setdefault(remark, []).append(entry.name)
    for entry in inputs:
        if entry.diagnosis is not None:
            lines.append(f"{entry.name}: {entry.diagnosis}")  # in one line, however long: people search for it
        wrong, worst = how_many_wrong(entry), entry.worst[: entry.wrong]
        if wrong:
            lines.append(f"{entry.name}: {wrong}{', the worst first:' if len(worst) > 1 else ''}")
        if len(worst) > 1:  # else the line of the input shows it already
            columns = ("index", "analytic", "numerical", "relative error", "floor")
            lines.append(indent(table([columns, *map(_worst_cells, worst)], left=len(columns)), "    "))
        said = [remark for remark in _remarks(entry) if common[remark][0] == entry.name]  # once in a report
        lines += [_wrapped(f"{', '.join(common[remark])}: {remark}") for remark in said]
    return legible("\n".join(lines))


def how_many_wrong(entry: InputReport) -> str:
    """Such as "7 of 12 entries are wrong"; empty where the line of the input says it all."""
    if not entry.wrong or entry.checked == 1:
        return ""
    return f"{_of_all(entry.wrong, entry)} {'is' if entry.wrong == 1 else 'are'} wrong"


def place(index: tuple[int, ...]) -> str:
    """An index as text."""
    return str(list(map(int, index))) if index else "-"


def _cells(entry: InputReport) -> tuple[str, ...]:
    """What stands in the columns for one input."""
    name = " ".join(entry.name.splitlines())
    if not (entry.size or entry.method == "adjoint"):
        return name, entry.method, *["-"] * (len(COLUMNS) - 2)
    compared = not (math.isnan(entry.analytic) and math.isnan(entry.numerical))
    values = (*_values(entry, entry.wrong > 0), f"{entry.floor:.1e}") if compared else ("-", "-", "-")
    error = "-" if math.isnan(entry.max_relative_error) else f"{entry.max_relative_error:.1e}"
    return name, entry.method, MARKS[entry.verdict], error, place(entry.worst_index), *values


def _worst_cells(entry: Entry) -> tuple[str, ...]:
    """What stands in the columns for one wrong entry."""
    return place(entry.index), *_values(entry, True), f"{entry.relative_error:.1e}", f"{entry.floor:.1e}"


def _values(entry: InputReport | Entry, must_differ: bool) -> tuple[str, str]:
    """Both values, with so many digits that they do not look the same if they must not."""
    for digits in (9, 12, 17):
        texts = f"{entry.analytic:.{digits}g}", f"{entry.numerical:.{digits}g}"
        if texts[0] != texts[1] or not must_differ:
            break
    return texts


def _remarks(entry: InputReport) -> Iterator[str]:
    """What there is to say besides the table, the diagnosis and the wrong entries, a sentence each."""
    if entry.undecidable:
        shown, some = entry.undecided[:SHOWN], entry.undecidable < entry.checked
        more = ", ..." if len(shown) < entry.undecidable else ""
        named = f": {', '.join(map(place, shown))}{more}" if some else ""
        yield f"{_of_all(entry.undecidable, entry)} cannot be decided at this precision{named}"
    if entry.too_small:
        yield (
            f"{_of_all(entry.too_small, entry)} {'differs' if entry.too_small == 1 else 'differ'}, but too small to "
            "judge beside the others: to see more, scale the input, or check rows apart"
        )
    if entry.note is not None:
        yield entry.note
    if not entry.size and entry.method != "adjoint":
        yield "it has no entries: there is nothing to check"
    if entry.escape is not None:
        yield _sampled(entry.escape)


def _of_all(count: int, entry: InputReport) -> str:
    return f"{count} of {_entries(entry.checked or entry.size)}"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _sampled(escape: Escape) -> str:
    """What was looked at, and what may have been missed."""
    error = next((10.0**k for k in range(-16, 0) if escape.probability(10.0**k) <= 1e-6), 1.0)
    return (
        f"looked at {escape.entries} of {_entries(escape.size)} and along {escape.directions} random directions: "
        f"an error of {error:g} of the gradient's norm escapes with probability at most "
        f"{escape.probability(error):.3g}, an error in a single entry that is smaller than the noise along "
        f"a direction with {escape.probability(0):.3g}"
    )


def _wrapped(line: str) -> str:
    """The line, broken between words, but not within an index."""
    hard = "\N{NO-BREAK SPACE}"
    whole = re.sub(r"\[[\d, ]+\]", lambda index: index[0].replace(" ", hard), line)
    return fill(whole, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False).replace(hard, " ")
