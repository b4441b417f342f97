"""The layout of a trace as plain text."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.text import cut, padded, width_of

if TYPE_CHECKING:
    from attention_np.trace._steps import Step, Trace

__all__ = ["written"]

Array = npt.NDArray[Any]

INDENT = "    "
LONGEST_LABEL = 8  # columns of the terminal that a token may take
DECIMALS = 3
SIGNIFICANT = 3  # digits that the largest number of a small array keeps
SLABS_SHOWN = 1  # of an array with an axis of queries in front
PARTS = {"given": "Given", "forward": "Forward", "backward": "Backward"}


def written(trace: Trace, width: int) -> str:
    """All of a trace."""
    lines = [trace.title, "", *_wrapped(_introduction(trace), width), ""]
    part = None
    for number, step in enumerate(trace.steps, 1):
        if step.part != part:
            part = step.part
            lines += [PARTS[part].upper(), ""]
        lines += [*_step(trace, number, step, width), ""]
    check = (
        f"Check: the derivatives of L by the complex step agree with the gradients above, to a relative error of "
        f"{trace.error:.1e}."
    )
    return "\n".join([*lines, *_wrapped(check, width)]) + "\n"


def _introduction(trace: Trace) -> str:
    count = len(trace.tokens)
    return (
        f"{count} token{'' if count == 1 else 's'}. Indices count from 1. A tag such as ({trace.steps[-1].tags[0]}) "
        f"names an equation of a page in derivations/; this op's page is {trace.op}.md. The numbers to begin with are "
        "made up from the tokens, so equal tokens have equal rows."
    )


def _step(trace: Trace, number: int, step: Step, width: int) -> list[str]:
    shape = " x ".join(map(str, step.shape)) or "a number"
    title = f"{number}. {step.name[0].upper()}{step.name[1:]}, {step.symbol}: {shape}"
    tags = " ".join(f"({tag})" for tag in step.tags)
    room = width - len(title)
    lines = [f"{title}{tags.rjust(room)}".rstrip()] if len(tags) + 2 <= room else [title, tags.rjust(width)]
    lines += _wrapped(step.sentence, width, INDENT)
    if step.formula:
        lines += [f"{INDENT}{line}" for line in step.formula.split("\n")]
    return [*lines, "", *_tables(trace, step, width)]


def _tables(trace: Trace, step: Step, width: int) -> list[str]:
    """The array: a row of numbers, a table, or a table for each index of its first axis."""
    digits = _decimals(step.array)
    if step.array.ndim < 3:
        return _table(trace, step.axes, step.array, digits, width)
    lines: list[str] = []
    by_query = step.axes[0] == "i"
    shown = step.array[:SLABS_SHOWN] if by_query else step.array
    for label, slab in zip(trace.labels(step.axes[0], len(step.array)), shown, strict=False):
        lines.append(f"{INDENT}{f'query {label!r}' if by_query else f'head {label}'}:")
        lines += _table(trace, step.axes[1:], slab, digits, width)
    if len(shown) < len(step.array):
        lines.append(f"{INDENT}and so on, a table for each query")
    return lines


def _table(trace: Trace, axes: str, array: Array, digits: int, width: int) -> list[str]:
    """Numbers below the labels of their columns, in as many blocks of columns as the width asks for."""
    if array.ndim < 2:
        array, axes = array.reshape(1, -1), f" {axes}"
    rows = [cut(label, LONGEST_LABEL) for label in trace.labels(axes[0], len(array))] if axes[0] != " " else [""]
    columns = [cut(label, LONGEST_LABEL) for label in trace.labels(axes[1:], array.shape[1])]
    cells = [[_number(value, digits) for value in row] for row in array.tolist()]
    margin = max(map(width_of, rows)) if any(rows) else 0
    cell = 2 + max(width_of(text) for text in (*columns, *(text for row in cells for text in row)))
    fitting = max(1, (width - len(INDENT) - margin) // cell)
    lines = []
    for first in range(0, len(columns), fitting):
        block = slice(first, first + fitting)
        lines += [""] * (first > 0)
        for label, texts in zip(["", *rows], [columns, *cells], strict=True):
            lines.append(INDENT + padded(label, margin) + "".join(padded(text, cell, ">") for text in texts[block]))
    return [line.rstrip() for line in lines]


def _decimals(array: Array) -> int:
    """As many as the numbers have, up to three; more where all are small."""
    finite = np.abs(array[np.isfinite(array)])
    for digits in range(1, DECIMALS):
        if np.allclose(finite, finite.round(digits), rtol=0, atol=1e-12):
            return digits
    return max(DECIMALS, SIGNIFICANT - 1 - math.floor(math.log10(finite.max())))


def _number(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{round(value, digits) + 0.0:.{digits}f}"  # adding zero makes a plain zero of a negative one


def _wrapped(sentence: str, width: int, indent: str = "") -> list[str]:
    lines = fill(sentence, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return lines.split("\n")
