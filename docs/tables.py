"""Tables in Markdown, and the place on a page that a program writes them to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["table", "written"]


def table(headings: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table, of which the first `left` columns are text and the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, rule, *lines))


def written(name: str, text: str, comments: tuple[str, str], content: str) -> str:
    """The `text` of the page called `name`, with `content` between its two `comments`.

    Raises
    ------
    ValueError
        If the text does not have both.
    """
    begin, end = (f"{comment}\n" for comment in comments)
    before, begins, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not (begins and ends):
        raise ValueError(f"{name} has no place for the tables: {comments[0]} and {comments[1]}")
    return f"{before}{begin}\n{content}\n{end}{after}"
