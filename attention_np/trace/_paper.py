"""What a trace is made of, and its layout as plain text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attention_np._lib.text import cut, legible, padded, width_of

Array = npt.NDArray[Any]

INDENT = "    "
LONGEST_LABEL = 8  # columns of the terminal that a token may take
MOST_TABLES = 4  # one below the other, for the indices of an axis; of more the first two and the last are
DECIMALS = 3
SIGNIFICANT = 3  # digits that the largest number of a small array keeps
PARTS = {"given": "Given", "forward": "Forward", "backward": "Backward"}


@dataclass(frozen=True, eq=False)
class Step:
    """One array on the way from the inputs to the output, or from the gradient of the output to those of the inputs.

    Attributes
    ----------
    part : {"given", "forward", "backward"}
    name : str
        What it is called in the code, such as "scores", or "d_query" for a gradient; empty where it has no name there.
    symbol : str
        As in the formulas: "S"; "dL/dS" for the gradient of the loss with respect to S.
    axes : str
        One index letter an axis, as on the op's page: i for queries, j for keys, h for heads.
    tags : tuple of str
        The equations that say what it is, such as "dot-product.1"; none where the array is given.
    formula : str
        What these equations say, in plain text, a line for each; empty where the array is given.
    sentence : str
        The paragraph of the page before the first of them, if there is one.
    array : ndarray
        One axis for each letter of `axes`. Minus infinity stands for a pair that is masked out.
    entry : str
        One entry with numbers in the place of the letters, such as "dL/dS_11 = 0.882 (1.5 - 1.332) = 0.148"; empty
        where no equation is of single numbers.
    """

    part: Literal["given", "forward", "backward"]
    name: str
    symbol: str
    axes: str
    tags: tuple[str, ...]
    formula: str
    sentence: str
    array: Array
    entry: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one op on one sentence, in the order in which they are done.

    Attributes
    ----------
    op : str
        The name of the op, which is that of its page.
    title : str
    tokens : tuple of str
    steps : tuple of Step
    error : float
        The largest relative error among all comparisons: the two sides of each equation, where a derivative is the
        complex step; and the output and the gradients of the op, which are held against those of the page. What they
        are relative to is the largest number that takes part, the terms of sums counted.
    of_tokens : str
        The index letters that count tokens.
    introduction : str
        What stands before the steps.
    check : str
        What stands behind them.
    """

    op: str
    title: str
    tokens: tuple[str, ...]
    steps: tuple[Step, ...]
    error: float
    of_tokens: str
    introduction: str
    check: str

    def __getitem__(self, symbol: str) -> Step:
        """The step of that symbol, such as "S" or "dL/dS"."""
        for step in self.steps:
            if step.symbol == symbol:
                return step
        raise KeyError(f"{symbol!r} is not among the symbols of this trace: {', '.join(s.symbol for s in self.steps)}")

    def labels(self, axis: str, length: int) -> list[str]:
        """What the indices of an axis are called: tokens, or numbers from 1 as in the formulas."""
        if axis in self.of_tokens:
            return [legible(token, several_lines=False) for token in self.tokens]
        return [str(number) for number in range(1, length + 1)]

    def text(self, width: int = 80) -> str:
        """The steps as on paper, in lines of at most `width` characters where tables can be broken to fit."""
        lines = [self.title, "", *_wrapped(self.introduction, width), ""]
        part = said = None
        for number, step in enumerate(self.steps, 1):
            if step.part != part:
                part = step.part
                lines += [PARTS[part].upper(), ""]
            lines += [*_written(self, number, step, width, step.sentence != said), ""]
            said = step.sentence
        return "\n".join([*lines, *_wrapped(self.check, width)]) + "\n"

    def __str__(self) -> str:
        return self.text()


def _written(trace: Trace, number: int, step: Step, width: int, with_sentence: bool) -> list[str]:
    shape = " x ".join(map(str, step.shape)) or "a number"
    title = f"{number}. {step.name and f'{step.name}, '}{step.symbol}: {shape}"
    tags = " ".join(f"({tag})" for tag in step.tags)
    room = width - len(title)
    if len(tags) + 2 <= room:
        lines = [f"{title}{tags.rjust(room)}".rstrip()]
    else:
        lines = [title, *(line.rjust(width) for line in _wrapped(tags, width))]
    lines += _wrapped(step.sentence, width, INDENT) if step.sentence and with_sentence else []
    for line in (*step.formula.split("\n"), step.entry):
        if not line:
            continue
        fits = width_of(line) <= width - len(INDENT)
        for piece in [line] if fits else re.split(" (?== )", line):
            lines += _wrapped(piece, width, INDENT + "  " * piece.startswith(("=", "+", "-")), INDENT * 2)
    return [*lines, "", *_tables(trace, step, width)]


def _tables(trace: Trace, step: Step, width: int) -> list[str]:
    """The array: a row of numbers, a table, or a table for each index of its axes before the last two."""
    digits, lines = _decimals(step.array), []

    def write(axes: str, array: Array, labels: str) -> None:
        if array.ndim < 3:
            lines.extend([f"{INDENT}{labels}:"] if labels else [])
            lines.extend(_table(trace, axes, array, digits, width))
            return
        count = len(array)
        shown = range(count) if count <= MOST_TABLES else (0, 1, count - 1)
        for label, k in [(trace.labels(axes[0], count)[k], k) for k in shown]:
            if k == count - 1 and len(shown) < count:
                lines.append(f"{INDENT}{axes[0]} = 3 to {k}: left out here")
            write(axes[1:], array[k], f"{labels}{', ' if labels else ''}{axes[0]} = {label}")

    write(step.axes, step.array, "")
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


def _wrapped(sentence: str, width: int, indent: str = "", behind: str | None = None) -> list[str]:
    behind = indent if behind is None else behind
    lines = fill(sentence, width, initial_indent=indent, subsequent_indent=behind, break_on_hyphens=False)
    return lines.split("\n")
