"""Source code as HTML, in which the tag of an equation leads to the equation."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import PurePosixPath

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from attention_site.excerpts import Excerpt

__all__ = [
    "TAG",
    "Link",
    "excerpt_html",
    "linked",
    "listing_html",
    "output_html",
    "source_html",
    "source_page",
    "view_html",
]

TAG = re.compile(r"\b[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[1-9][0-9]{0,3}\b")
Link = Callable[[str], "str | None"]  # from the tag of an equation to its address; None: there is no such equation


def source_page(file: str) -> str:
    """The name of the page that shows a source file."""
    return f"source/{PurePosixPath(file).with_suffix('')}"


def linked(html: str, link: Link) -> str:
    """`html` with each known tag leading to its equation."""

    def as_link(match: re.Match[str]) -> str:
        address = link(match[0])
        return match[0] if address is None else f'<a class="tag" href="{escape(address)}">{match[0]}</a>'

    return TAG.sub(as_link, html)


LEXER, FORMATTER = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)


def _lines(code: str, link: Link) -> list[str]:
    """Each line of Python code as HTML."""
    html = highlight(code, LEXER, FORMATTER)
    return [linked(line, link) for line in html.rstrip("\n").split("\n")]


def listing_html(code: str, link: Link) -> str:
    """Python code in a page."""
    lines = "\n".join(_lines(code, link))
    return f'<div class="highlight-python notranslate"><div class="highlight"><pre>{lines}</pre></div></div>'


def view_html(kind: str, label: str, text: str, shown: bool) -> str:
    """One view of an equation behind its name, which opens and closes it; of the kind "numpy" or "numbers"."""
    lines = "\n".join(_lines(text, lambda _: None)) if kind == "numpy" else escape(text)
    return (
        f'<details class="view {kind}"{" open" * shown}><summary>{escape(label)}</summary>'
        f'<div class="highlight notranslate"><pre>{lines}</pre></div></details>'
    )


def output_html(text: str, link: Link) -> str:
    """What a program printed."""
    lines = linked(escape(text), link)
    return f'<div class="output notranslate"><div class="highlight"><pre>{lines}</pre></div></div>'


def excerpt_html(excerpt: Excerpt, link: Link, address: str) -> str:
    """The lines that carry an equation out; their caption leads to `address`, the page of the whole file."""
    file = PurePosixPath(excerpt.file)
    lines = f"line {excerpt.first}" if excerpt.first == excerpt.last else f"lines {excerpt.first} to {excerpt.last}"
    name = f"{file.name}, {excerpt.within}" if excerpt.within else file.name
    code = "".join(f'<span class="line">{line}</span>' for line in _lines(excerpt.text, link))
    return (
        f'<div class="excerpt"><a class="place" href="{escape(address)}#L{excerpt.cited[0]}" '
        f'title="{escape(excerpt.file)}, {lines}">{escape(name)}, <span class="at">{lines}</span></a>'
        f'<div class="highlight notranslate"><pre>{code}</pre></div></div>'
    )


def source_html(code: str, link: Link) -> str:
    """A whole file, each line with its number and an anchor."""
    lines = [
        f'<span class="line" id="L{number}"><a class="number" href="#L{number}" tabindex="-1">{number}</a>{line}</span>'
        for number, line in enumerate(_lines(code, link), 1)
    ]
    return f'<div class="highlight whole notranslate"><pre>{"".join(lines)}</pre></div>'
