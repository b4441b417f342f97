"""A report as HTML, for notebooks: one fragment without scripts or anything from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attention_np.gradcheck import _text
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG

if TYPE_CHECKING:
    from attention_np.gradcheck.report import InputReport

__all__ = ["render"]

Verdicts = npt.NDArray[np.integer]

# A mark is white on its own ground, and all else takes the notebook's colours: both read well on light and dark.
STYLE = """
.anp-report { max-width: 70em; line-height: 1.5 }
.anp-report table { border-collapse: collapse; margin: 0.3em 0 0.8em; font-variant-numeric: tabular-nums }
.anp-report th, .anp-report td { text-align: left !important; padding: 0.25em 0.9em 0.25em 0; white-space: nowrap }
.anp-report thead th { font-weight: 600; border-bottom: 1px solid currentColor }
.anp-report code { background: none; color: inherit }
.anp-report p { margin: 0.2em 0 }
.anp-report .mark { padding: 0.1em 0.6em; border-radius: 1em; color: #fff; font-size: 90% }
.anp-report .holds { background: #1a7f37 }
.anp-report .wrong { background: #cf222e }
.anp-report .undecidable, .anp-report .unfinished { background: #646c75 }
.anp-report section { border-left: 3px solid #8886; padding-left: 0.9em; margin: 0.8em 0 }
.anp-report summary { cursor: pointer }
.anp-report figure { margin: 0.6em 0 }
.anp-report .panel { display: inline-block; margin: 0 1em 0.6em 0; vertical-align: top; font-size: 85% }
.anp-report .panel svg { display: block }
.anp-report .key { margin-right: 1.2em }
.anp-report .key svg { vertical-align: -0.2em }
"""
MARKS = {"holds": "✓ yes", "wrong": "✗ NO", "undecidable": "? undecidable", "unfinished": "… unfinished"}
LARGEST = 64  # entries along an axis of a picture
PANELS = 16
PICTURE_WIDTH = 256  # pixels

# What an entry looks like: told apart by shape as well as by colour.
LOOKS = {
    WRONG: ("wrong", "#cf222e", 0.0, 1.0),  # name, colour, margin around it, opacity
    UNDECIDED: ("undecidable", "#8b949e", 0.3, 1.0),
    HOLDS: ("holds", "#2da44e", 0.06, 0.3),
    UNCHECKED: ("not looked at", "none", 0.0, 1.0),
}


def render(inputs: Sequence[InputReport]) -> str:
    """The table with a line an input, and below it what else there is to say of each."""
    header = "".join(f"<th>{escape(column)}</th>" for column in _text.COLUMNS)
    rows = "".join(f"<tr>{_row(entry)}</tr>" for entry in inputs)
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="anp-report"><style>{STYLE}</style>{table}{"".join(map(_section, inputs))}</div>'


def _row(entry: InputReport) -> str:
    cells = [escape(cell) for cell in _text.cells(entry)]
    cells[0] = f"<code>{cells[0]}</code>"
    cells[2] = f'<span class="mark {entry.verdict}">{MARKS[entry.verdict]}</span>'
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _section(entry: InputReport) -> str:
    """What there is to say of an input below the table; nothing for most that hold."""
    parts = []
    if entry.diagnosis is not None:
        parts.append(f"<p><code>{escape(entry.name)}</code>: <strong>{escape(entry.diagnosis)}</strong></p>")
    remarks = [f"<p>{escape(remark)}</p>" for remark in _text.remarks(entry)]
    parts += [part for part in (_wrong_entries(entry), *remarks, _picture(entry)) if part]
    if parts and entry.diagnosis is None:
        parts.insert(0, f"<p><code>{escape(entry.name)}</code></p>")
    return f"<section>{''.join(parts)}</section>" if parts else ""


def _wrong_entries(entry: InputReport) -> str:
    sentence = escape(_text.how_many_wrong(entry))
    shown = _text.worst_shown(entry)
    if not shown:
        return f"<p>{sentence}</p>" if sentence else ""
    header = "".join(f"<th>{escape(column)}</th>" for column in _text.WORST_COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _text.worst_cells(worst))}</tr>" for worst in shown
    )
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<details><summary>{sentence}</summary>{table}</details>"


def _picture(entry: InputReport) -> str:
    """Where entries are wrong or undecidable, as one panel for each index of the leading axes."""
    if entry.details is None:
        return ""
    verdict = np.asarray(entry.details.verdict)
    if verdict.size < 2 or (verdict == HOLDS).all() or max(verdict.shape[-2:]) > LARGEST:
        return ""
    leading = verdict.shape[:-2]
    panels = [(index, np.atleast_2d(verdict[index])) for index in np.ndindex(leading)]
    if len(panels) > PANELS:
        panels = [(index, panel) for index, panel in panels if (panel != HOLDS).any()]
    drawn = "".join(_panel(index, panel) for index, panel in panels[:PANELS])
    more = f"<p>and {len(panels) - PANELS} more like these</p>" if len(panels) > PANELS else ""
    return f"<figure>{drawn}{more}<figcaption>{_legend(verdict)}</figcaption></figure>"


def _panel(index: tuple[int, ...], verdict: Verdicts) -> str:
    rows, columns = verdict.shape
    title = escape(f"[{', '.join(map(str, (*index, ':', ':')))}]") if index else ""
    counts = ", ".join(f"{(verdict == kind).sum()} {LOOKS[kind][0]}" for kind in _kinds(verdict))
    drawing = _svg(verdict, min(16.0, PICTURE_WIDTH / max(rows, columns)))
    return f'<span class="panel" role="img" aria-label="{rows} by {columns} entries: {counts}">{title}{drawing}</span>'


def _svg(verdict: Verdicts, cell: float) -> str:
    """Cells of so many pixels, in a frame."""
    rows, columns = verdict.shape
    line = 1 / cell
    paths = "".join(_path(verdict == kind, kind) for kind in _kinds(verdict))
    return (
        f'<svg width="{columns * cell + 2:.5g}" height="{rows * cell + 2:.5g}" '
        f'viewBox="{-line:.5g} {-line:.5g} {columns + 2 * line:.5g} {rows + 2 * line:.5g}">'
        f'<rect width="{columns}" height="{rows}" fill="none" stroke="currentColor" stroke-opacity="0.5" '
        f'stroke-width="{line:.5g}"/>{paths}</svg>'
    )


def _path(where: npt.NDArray[np.bool_], kind: int) -> str:
    """One square for each entry that `where` tells, or one bar for neighbours with no margin between them."""
    _, colour, margin, opacity = LOOKS[kind]
    side = 1 - 2 * margin
    squares = "".join(
        f"M{j + margin:g} {i + margin:g}h{length - 2 * margin:g}v{side:g}h-{length - 2 * margin:g}z"
        for i, j, length in _runs(where, longest=1 if margin else where.shape[1])
    )
    return f'<path d="{squares}" fill="{colour}" fill-opacity="{opacity}"/>'


def _runs(where: npt.NDArray[np.bool_], longest: int) -> list[tuple[int, int, int]]:
    """The row, the first column and the length of the runs of true entries."""
    runs: list[tuple[int, int, int]] = []
    for i, j in np.argwhere(where).tolist():
        row, start, length = runs[-1] if runs else (-1, 0, 0)
        if row == i and start + length == j and length < longest:
            runs[-1] = (row, start, length + 1)
        else:
            runs.append((i, j, 1))
    return runs


def _legend(verdict: Verdicts) -> str:
    """A square of each kind that there is, with its name."""
    return "".join(
        f'<span class="key">{_svg(np.full((1, 1), kind), 14)} {LOOKS[kind][0]}</span>' for kind in _kinds(verdict)
    )


def _kinds(verdict: Verdicts) -> list[int]:
    return [kind for kind in LOOKS if (verdict == kind).any()]
