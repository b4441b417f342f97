"""Text from files as it may be shown: a terminal obeys some characters instead of printing them."""

from __future__ import annotations

__all__ = ["legible"]


def legible(text: str) -> str:
    """`text` with everything that does not print, but for the ends of lines, as Python writes it in a literal."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in text)
