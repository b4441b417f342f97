"""Fonts for tokens of any script."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

__all__ = ["showing"]

SHOWN_FIRST = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans", "PingFang", "Microsoft YaHei", "Noto Sans")
# In the names of fonts without letters of their own, without outlines, or of another weight:
UNFIT = ("Last Resort", "Emoji", "Bold", "Light", "Thin", "Black", "Condensed")
LACKING_SHOWN = 8  # letters that the warning names
BOX = "\N{WHITE SQUARE}"


def showing(texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Properties of a Matplotlib text in which `texts` show as they are, and the texts, with a box for what cannot.

    The font families are the default ones, and behind them others for the letters that these lack. A dollar sign is
    one, and does not begin a formula.

    Warns
    -----
    UserWarning
        If no font of the machine has some letter: what to install.
    """
    from matplotlib import rcParams

    families = list(rcParams["font.family"])
    lacking = {letter for text in texts for letter in text if not letter.isspace()}
    for path in _default_fonts(families):
        lacking -= _letters(path)
    for name, path in _other_fonts() if lacking else ():
        if lacking & _letters(path):
            families.append(name)
            lacking -= _letters(path)
        if not lacking:
            break
    if not lacking:
        return {"fontfamily": families, "parse_math": False}, list(texts)
    warnings.warn(_what_to_install(lacking), stacklevel=2)
    box = BOX if any(BOX in _letters(path) for path in _default_fonts(families)) else "?"
    shown = ["".join(box if letter in lacking else letter for letter in text) for text in texts]
    return {"fontfamily": families, "parse_math": False}, shown


def _default_fonts(families: Iterable[str]) -> Iterator[Any]:
    """The files of those families that the machine has."""
    from matplotlib import font_manager

    for family in families:
        with suppress(ValueError):  # it is not on this machine
            yield font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)


def _other_fonts() -> Iterator[tuple[str, Any]]:
    """Upright fonts of regular weight by name and file, first those that are good at many scripts."""
    from matplotlib import font_manager

    names = {entry.name for entry in font_manager.fontManager.ttflist if not any(word in entry.name for word in UNFIT)}

    def rank(name: str) -> tuple[int, str]:
        known = [place for place, start in enumerate(SHOWN_FIRST) if name.startswith(start)]
        return min(known, default=len(SHOWN_FIRST)), name

    for name in sorted(names, key=rank):
        yield name, font_manager.findfont(name)


@lru_cache(maxsize=256)
def _letters(path: Any) -> frozenset[str]:
    """The letters that a font has."""
    from matplotlib import font_manager

    try:
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # a file that is damaged, or gone
        return frozenset()


def _what_to_install(lacking: Iterable[str]) -> str:
    from matplotlib import get_cachedir

    letters = sorted(lacking)
    shown = ", ".join(letters[:LACKING_SHOWN]) + (", ..." if len(letters) > LACKING_SHOWN else "")
    if any(unicodedata.east_asian_width(letter) in "WF" for letter in letters):
        package = (
            "Noto Sans CJK, for example (fonts-noto-cjk on Debian and Ubuntu, google-noto-sans-cjk-fonts on Fedora, "
            "noto-fonts-cjk on Arch Linux, font-noto-sans-cjk in Homebrew)"
        )
    else:
        package = "one of the Noto fonts, for example"
    return (
        f"no font on this machine has {shown}, so boxes are shown: install {package}, then delete Matplotlib's list of "
        f"fonts, {get_cachedir()}/fontlist*.json"
    )
