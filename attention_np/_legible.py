"""Text from files, and values of any kind, as they may be shown: legible, on one line, and short."""

from __future__ import annotations

from typing import Any

__all__ = ["legible", "shortened"]

LONGEST = 40  # characters


def legible(text: str) -> str:
    """`text` with everything that does not print, but for the ends of lines, as Python writes it in a literal.

    A terminal obeys some characters instead of printing them.
    """
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in text)


def shortened(value: Any) -> str:
    """`value` as it can stand in a message."""
    try:
        text = repr(value)
    except RecursionError:
        return "what is nested so deeply"
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of so many digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
