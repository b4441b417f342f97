"""Faults of a page, and how they are shown.

Every objection of the engine to a page is a :class:`Fault`: a kind, one sentence, and the place in the
equation. Nothing else may leave the engine; :func:`excerpt` turns the place into the line of the file with a caret
under it.
"""

from __future__ import annotations

from typing import Literal

Span = tuple[int, int]

Kind = Literal[
    "syntax",  # not the LaTeX that the grammar reads
    "name",  # a symbol or an index that nobody declared
    "shape",  # indices or shapes that do not fit: "not well-formed" in the sense of the errata
    "domain",  # the logarithm of a negative number, an index outside of its range, not a number
    "limit",  # too long, too deep, too large
    "page",  # front matter, tags, markers
    "claim",  # well-formed, and not true
    "broken",  # uses a definition that is itself broken
]


class Fault(Exception):
    """One thing wrong with a page.

    Parameters
    ----------
    kind : str
        The family of the fault; a refuted equation may ask for ``"shape"``.
    message : str
        One sentence for the author of the page.
    span : (int, int), optional
        Where, as offsets into the text of the equation (or of the page, for problems of the page).
    """

    def __init__(self, kind: Kind, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message
        self.span = span

    def at(self, span: Span) -> Fault:
        """The same fault with a place, if it had none."""
        if self.span is None:
            self.span = span
        return self


def line_of(text: str, offset: int) -> int:
    """1-based number of the line that holds ``offset``."""
    return text.count("\n", 0, offset) + 1


def excerpt(text: str, span: Span, width: int = 100) -> str:
    """The line of ``text`` at ``span`` with carets under the place; long lines are cut around it."""
    start = max(0, min(span[0], len(text)))
    stop = max(start + 1, span[1])
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    last = len(text) if last < 0 else last
    if start - first > width:
        first = start - width // 2
    last = min(last, first + width)
    line = "".join(character if character.isprintable() else " " for character in text[first:last])
    carets = "^" * max(1, min(stop, last) - start)
    return f"    {line}\n    {' ' * (start - first)}{carets}"


def show(path: str, text: str, fault: Fault, offset: int = 0) -> str:
    """``file:line: message`` with the excerpt, for a fault whose span counts from ``offset``."""
    if fault.span is None:
        return f"{path}:{line_of(text, offset)}: {fault.message}"
    start, stop = fault.span[0] + offset, fault.span[1] + offset
    return f"{path}:{line_of(text, start)}: {fault.message}\n{excerpt(text, (start, stop))}"
