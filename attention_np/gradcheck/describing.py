"""A report in words: plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape as escaped
from textwrap import fill

from attention_np._lib.text import legible
from attention_np.gradcheck.findings import Entry, Escape, Finding

__all__ = ["as_html", "describe", "how_many_wrong"]

COLUMNS = ("input", "method", "holds", "error", "worst at", "analytic", "numerical", "floor")
WORST_COLUMNS = ("index", "analytic", "numerical", "relative error", "floor")
MARKS = {"holds": "yes", "wrong": "NO", "undecidable": "?", "unfinished": "..."}
WIDTH = 110
HARD_SPACE = "\N{NO-BREAK SPACE}"
ENTRIES_SHOWN = 5
ERRORS = [10.0**k for k in range(-16, 0)]  # of which the smallest is named that is vouched for
RARE = 1e-6  # the probability of escape that the smallest error that is vouched for may have


def describe(inputs: Sequence[Finding]) -> str:
    """The table with a line an input, and below it what else there is to say of each."""
    lines = _table([COLUMNS, *map(cells, inputs)])
    common: dict[str, list[str]] = {}  # remarks, and whom they are made of
    for entry in inputs:
        for remark in remarks(entry):
            common.setdefault(remark, []).append(entry.name)
    for entry in inputs:
        if entry.diagnosis is not None:
            lines.append(f"{entry.name}: {entry.diagnosis}")  # in one line, however long: people search for it
        wrong, shown = how_many_wrong(entry), worst_shown(entry)
        if wrong:
            lines.append(f"{entry.name}: {wrong}{', the worst first:' if shown else ''}")
        if shown:
            lines += [f"    {line}" for line in _table([WORST_COLUMNS, *map(worst_cells, shown)])]
        said = [remark for remark in remarks(entry) if common[remark][0] == entry.name]  # once in a report
        lines += [_wrapped(f"{', '.join(common[remark])}: {remark}") for remark in said]
    return legible("\n".join(lines))


def as_html(inputs: Sequence[Finding]) -> str:
    """The same for a notebook."""
    return f"<pre>{escaped(describe(inputs))}</pre>"


def cells(entry: Finding) -> tuple[str, ...]:
    """What stands in the columns for one input."""
    if _is_empty(entry) or (math.isnan(entry.analytic) and math.isnan(entry.numerical)):  # nothing was compared
        values: tuple[str, ...] = ("-", "-", "-")
    else:
        analytic, numerical = _values(entry.analytic, entry.numerical, apart=entry.wrong > 0)
        values = analytic, numerical, f"{entry.floor:.1e}"
    error = "-" if _is_empty(entry) or math.isnan(entry.max_relative_error) else f"{entry.max_relative_error:.1e}"
    mark = "-" if _is_empty(entry) else MARKS[entry.verdict]
    return " ".join(entry.name.splitlines()), entry.method, mark, error, place(entry.worst_index), *values


def worst_shown(entry: Finding) -> tuple[Entry, ...]:
    """The wrong entries that get a line of their own: none if the line of the input shows the only one already."""
    return entry.worst[: min(entry.wrong, ENTRIES_SHOWN)] if entry.wrong > 1 else ()


def worst_cells(entry: Entry) -> tuple[str, ...]:
    """What stands in the columns for one wrong entry."""
    values = _values(entry.analytic, entry.numerical, apart=True)
    return place(entry.index), *values, f"{entry.relative_error:.1e}", f"{entry.floor:.1e}"


def how_many_wrong(entry: Finding) -> str:
    """Such as "7 of 12 entries are wrong"; empty where the line of the input says it all."""
    if not entry.wrong or _looked_at(entry) == 1:
        return ""
    return f"{_of_all(entry.wrong, entry)} {'is' if entry.wrong == 1 else 'are'} wrong"


def remarks(entry: Finding) -> list[str]:
    """What there is to say besides the table, the diagnosis and the wrong entries, a sentence each."""
    sentences = []
    if entry.undecidable:
        sentences.append(f"{_of_all(entry.undecidable, entry)} cannot be decided at this precision{_named(entry)}")
    if entry.note is not None:
        sentences.append(entry.note)
    if _is_empty(entry):
        sentences.append("it has no entries: there is nothing to check")
    if entry.escape is not None:
        sentences.append(_sampled(entry.escape))
    elif entry.checked < entry.size and (entry.checked or entry.diagnosis is None):  # else nothing could be compared
        sentences.append(f"stopped after {entry.checked} of {_entries(entry.size)}")
    return sentences


def place(index: tuple[int, ...]) -> str:
    """An index as text."""
    return str(list(map(int, index))) if index else "-"


def _is_empty(entry: Finding) -> bool:
    """Whether there are no entries; what is said of forward mode has none, and is still something."""
    return not entry.size and entry.method != "adjoint"


def _looked_at(entry: Finding) -> int:
    return entry.checked or entry.size


def _of_all(count: int, entry: Finding) -> str:
    return f"{count} of {_entries(_looked_at(entry))}"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _named(entry: Finding) -> str:
    """The places of undecided entries, if they are some and not all."""
    if entry.undecidable == entry.checked:
        return ""
    shown = entry.undecided[:ENTRIES_SHOWN]
    return f": {', '.join(map(place, shown))}{', ...' if len(shown) < entry.undecidable else ''}"


def _sampled(escape: Escape) -> str:
    """What was looked at, and what may have been missed."""
    looked = f"looked at {escape.entries} of {_entries(escape.size)}"
    single = _probability(escape.probability(0))
    if not (escape.directions and 0 < escape.norm < math.inf):
        some = max(1, escape.size // 100)
        return (
            f"{looked}: a single wrong entry escapes with probability {single}, "
            f"errors in {_entries(some)} with {_probability(escape.probability(0, some))}"
        )
    error = next((error for error in ERRORS if escape.probability(error) <= RARE), 1.0)
    directions = f"{escape.directions} random direction{'s' if escape.directions > 1 else ''}"
    return (
        f"{looked} and along {directions}: an error of {error:g} of the gradient's norm escapes with probability "
        f"at most {_probability(escape.probability(error))}, an error in a single entry that is smaller than the "
        f"noise along a direction with {single}"
    )


def _probability(probability: float) -> str:
    """Three digits, or one of a small probability, rounded up: it is a bound."""
    if not 0 < probability < 1e-3:
        return f"{probability:.3g}"
    unit = 10.0 ** math.floor(math.log10(probability))
    return f"{math.ceil(probability / unit) * unit:.0e}" if unit else f"{probability:.0e}"


def _values(analytic: float, numerical: float, *, apart: bool) -> tuple[str, str]:
    """Both values, with so many digits that they do not look the same if they must be told `apart`."""
    for digits in (9, 12, 17):
        texts = f"{analytic:.{digits}g}", f"{numerical:.{digits}g}"
        if texts[0] != texts[1] or not apart:
            break
    return texts


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _wrapped(line: str) -> str:
    """The line, broken between words, but not within an index."""
    whole = re.sub(r"\[[\d, ]+\]", lambda index: index[0].replace(" ", HARD_SPACE), line)
    lines = fill(whole, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return lines.replace(HARD_SPACE, " ")
