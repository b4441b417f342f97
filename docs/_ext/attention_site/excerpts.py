"""The lines of a source file that carry out an equation."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

__all__ = ["Excerpt", "citing_only", "excerpts"]

MOST_LINES = 14  # of a statement; of a longer one, those around the citation
AROUND = 4
TAG = r"[a-z][a-z0-9-]*\.[1-9][0-9]*"
CITATION = re.compile(rf" ?\(({TAG}(?:, {TAG})*)\)")


class Excerpt(NamedTuple):
    """Consecutive lines of a file, without their common indentation."""

    file: str
    first: int
    last: int
    cited: tuple[int, ...]  # the lines whose comments cite the equation
    within: str  # the function or class, or "" at the top of a module
    text: str


def excerpts(root: Path, places: Iterable[str]) -> list[Excerpt]:
    """The statements at `places`, each ``file:line`` with the file relative to `root`; neighbours are one excerpt."""
    found: list[Excerpt] = []
    for file, line in sorted(map(_split, places)):
        source = (root / file).read_text(encoding="utf-8")
        first, last = _statement(source, line)
        within = _within(source, line)
        cited: tuple[int, ...] = (line,)
        if found and found[-1].file == file and found[-1].within == within and first <= found[-1].last + 1:
            before = found.pop()
            first, last = min(first, before.first), max(last, before.last)
            cited = (*before.cited, line)
        text = dedent("\n".join(source.splitlines()[first - 1 : last]))
        found.append(Excerpt(file, first, last, cited, within, text))
    return found


def citing_only(tags: Collection[str], text: str) -> str:
    """`text` without what its comments say of equations of other `tags`: beside one equation that is noise."""

    def kept(match: re.Match[str]) -> str:
        left = ", ".join(tag for tag in match[1].split(", ") if tag in tags)
        return f"{match[0][: match[0].index('(')]}({left})" if left else ""

    lines = []
    for line in text.split("\n"):
        code, sign, comment = line.partition("#")
        left = CITATION.sub(kept, comment)
        if left.strip():
            lines.append(f"{code}{sign}{left}")
        elif code.strip() or not sign:
            lines.append(code.rstrip())
    return "\n".join(lines)


def _split(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)


@lru_cache(maxsize=64)
def _spans(source: str) -> list[tuple[int, int]]:
    """First and last line of every statement; of one that holds others, of its head alone."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            spans.append((node.lineno, max(node.lineno, body[0].lineno - 1) if body else last))
    return sorted(spans)


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the statement at `line`, or of that which a comment on its own line stands above."""
    spans = _spans(source)
    around = [(first, last) for first, last in spans if first <= line <= last]
    if around:
        first, last = min(around, key=lambda span: span[1] - span[0])
    else:
        first, last = next(((line, last) for first, last in spans if first > line), (line, line))
    if last - first >= MOST_LINES:
        first, last = max(first, line - AROUND), min(last, line + AROUND)
    return first, last


def _within(source: str, line: int) -> str:
    """The qualified name of the innermost function or class around `line`."""
    return ".".join(_names(ast.parse(source), line))


def _names(node: ast.AST, line: int) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or child.lineno):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield child.name
            yield from _names(child, line)
