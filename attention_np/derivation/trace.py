"""Which line of code carries out which equation.

A line of code cites an equation in a comment, ``# (dot-product.7)`` or ``# (dot-product.7, dot-product.8)``. Every
cited tag must stand in a page, exactly once; every executed claim about a gradient must be cited, unless the page says
``*Text only.*`` behind it or ``cited: false`` in its front matter.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

_ONE = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[1-9][0-9]*"
_CITATION = re.compile(rf"\(({_ONE}(?:,\s*{_ONE})*)\)")


def citations(paths: Iterable[Path | str], root: Path | str | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """Tags cited in comments of Python files, each with its places ``file:line``; and files that cannot be read.

    Parameters
    ----------
    paths : iterable of path
        Source files.
    root : path, optional
        Places are given relative to it.
    """
    found: dict[str, list[str]] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        shown = str(path)
        if root is not None and path.resolve().is_relative_to(Path(root).resolve()):
            shown = path.resolve().relative_to(Path(root).resolve()).as_posix()
        try:
            source = path.read_text(encoding="utf-8")
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type == tokenize.COMMENT:
                    for match in _CITATION.finditer(token.string):
                        for tag in re.findall(_ONE, match.group(1)):
                            found.setdefault(tag, []).append(f"{shown}:{token.start[0]}")
        except (OSError, UnicodeDecodeError, SyntaxError, tokenize.TokenError) as error:
            problems.append(f"{shown}:1: cannot be read: {error}")
    return found, problems
