"""Which line of code carries out which equation.

A line of code cites an equation in a comment, ``# (dot-product.7)`` or ``# (dot-product.7, dot-product.8)``. Every
cited tag must stand in a page, exactly once, and a module of a page's name cites that page alone. Every executed claim
about a gradient must be cited, unless the page says ``*Same as (dot-product.7).*`` behind it, and that one is cited, or
``*Text only.*``, or ``cited: false`` in its front matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from attention_np.derivation.errors import line_of

_ONE = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[1-9][0-9]*"
# A string is skipped as a whole, so that what looks like a comment in it is none.
_STRING_OR_COMMENT = re.compile(
    r"""(?P<quotes>"{3}|'{3})(?:\\.|[^\\])*?(?P=quotes)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*""", re.DOTALL
)
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
    places: dict[str, list[str]] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        shown = str(path)
        if root is not None and path.resolve().is_relative_to(Path(root).resolve()):
            shown = path.resolve().relative_to(Path(root).resolve()).as_posix()
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{shown}:1: cannot be read: {error}")
            continue
        if not _CITATION.search(source):
            continue
        for comment in _STRING_OR_COMMENT.finditer(source):
            if comment.group().startswith("#"):
                for match in _CITATION.finditer(comment.group()):
                    for tag in re.findall(_ONE, match.group(1)):
                        places.setdefault(tag, []).append(f"{shown}:{line_of(source, comment.start())}")
    return places, problems
