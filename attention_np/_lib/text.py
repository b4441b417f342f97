"""Text as it may be shown: legible, on one line, short, in columns, and numbers with their unit.

A Chinese character takes two columns, a combining mark none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

LONGEST = 40  # characters


def legible(text: str, several_lines: bool = True) -> str:
    r"""`text` with what does not print as Python writes it in a literal; the ends of lines too, unless of several.

    A terminal obeys some characters instead of printing them.

    Examples
    --------
    >>> print(legible("the\n", several_lines=False))
    the\n
    """
    kept = "\n" if several_lines else ""
    return "".join(x if x.isprintable() or x == kept else x.encode("unicode_escape").decode() for x in text)


def shortened(value: Any) -> str:
    """`value` as it can stand in a message."""
    try:
        text = repr(value)
    except RecursionError:
        return "what is nested so deeply"
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of so many digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def tokenise(sentence: str) -> list[str]:
    """The words of a sentence, in lower case; each Chinese character and each picture, such as an emoji, is one.

    Examples
    --------
    >>> tokenise("Transformer改变了AI 🎉")
    ['transformer', '改', '变', '了', 'ai', '🎉']
    """
    return re.findall(r"[\u4e00-\u9fff\u2600-\u27bf\U0001f000-\U0001faff]|[^\W\u4e00-\u9fff]+", sentence.lower())


def width_of(text: str) -> int:
    """How many columns `text` takes.

    Examples
    --------
    >>> width_of("mat"), width_of("垫子")
    (3, 4)
    """
    double = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + double - sum(unicodedata.combining(character) > 0 for character in text)


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
    ends = accumulate(map(width_of, text))
    begun = list(takewhile(lambda end: end <= width, ends))  # a long text is not read to its end
    if len(begun) == len(text):
        return text
    return text[: sum(end <= width - 2 for end in begun)] + ".."


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """`rows` in columns, of which the first `left` are aligned to the left and the others to the right."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            padded(cell, width, "<" if i < left else ">")
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def in_bytes(number: float) -> str:
    """Such as "1.5 GiB"."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def in_thousands(number: float) -> str:
    """Such as "1.5 G"."""
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P", "E")).rstrip()


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / step, power + 1
    digits = 0 if power == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {units[power]}"
