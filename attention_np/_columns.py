"""Text in columns of equal width: a Chinese character takes two, a combining mark none."""

from __future__ import annotations

import unicodedata

__all__ = ["cut", "padded", "visible", "width_of"]


def width_of(text: str) -> int:
    """How many columns `text` takes.

    Examples
    --------
    >>> width_of("mat"), width_of("垫子")
    (3, 4)
    """
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def padded(text: str, width: int, align: str = "<") -> str:
    """`text` filled up with spaces to so many columns, behind it or, with ``align=">"``, before it."""
    spaces = " " * (width - width_of(text))
    return spaces + text if align == ">" else text + spaces


def cut(text: str, width: int) -> str:
    """`text` if it fits into so many columns, else its beginning and two dots.

    Examples
    --------
    >>> cut("transformer", 8)
    'transf..'
    """
    if width_of(text) <= width:
        return text
    while width_of(text) > width - 2:
        text = text[:-1]
    return text + ".."


def visible(text: str) -> str:
    r"""`text` with escapes for what does not print, such as the end of a line.

    Examples
    --------
    >>> print(visible("the\n"))
    the\n
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
