"""Fonts for tokens of any script."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

SHOWN_FIRST = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans", "PingFang", "Microsoft YaHei"),
    *("Noto Sans", "Noto Emoji", "Symbola"),
)
# In the names of fonts without letters of their own, without outlines, or of another weight:
UNFIT = ("Last Resort", "Color Emoji", "Bold", "Light", "Thin", "Black", "Condensed")
LACKING_SHOWN = 8  # letters that the warning names
NO_LETTERS = dict.fromkeys(range(0xFE00, 0xFE10))  # selectors of a variant, as behind an emoji: nothing to draw
CJK = (
    "CJK, Hiragana, Katakana, Kanbun, Bopomofo, Hangul, Ideographic, Enclosed CJK, Enclosed Ideographic, "
    "Halfwidth and Fullwidth, Kangxi, Kana, Small Kana"
)
SYMBOLS = (
    "Emoticons, Miscellaneous Symbols, Supplemental Symbols and Pictographs, Symbols and Pictographs Extended, "
    "Symbols for Legacy Computing, Transport and Map, Dingbats, Ornamental Dingbats, Enclosed Alphanumeric Supplement, "
    "Geometric Shapes Extended, Mahjong, Domino, Playing Cards"
)
FONTS = {  # and the beginnings of the names of the Unicode blocks that they cover
    "Noto Sans CJK (fonts-noto-cjk on Debian and Ubuntu, google-noto-sans-cjk-fonts on Fedora, noto-fonts-cjk on Arch "
    "Linux, font-noto-sans-cjk in Homebrew)": tuple(CJK.split(", ")),
    "Symbola (fonts-symbola on Debian and Ubuntu) or Noto Emoji, the one without colours": tuple(SYMBOLS.split(", ")),
}
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
    texts = [text.translate(NO_LETTERS) for text in texts]
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
    warnings.warn(_what_to_install(lacking), stacklevel=_level_of_the_caller())
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


def _level_of_the_caller() -> int:
    """The `stacklevel` at which a warning of the calling function points to the first line outside this package."""
    package = str(Path(__file__).resolve().parents[1])
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(package):
        frame, level = frame.f_back, level + 1
    return level


def _what_to_install(lacking: Iterable[str]) -> str:
    from matplotlib import get_cachedir

    letters = sorted(lacking)
    shown = ", ".join(letters[:LACKING_SHOWN]) + (", ..." if len(letters) > LACKING_SHOWN else "")
    packages = dict.fromkeys(map(_package_with, letters))
    return (
        f"no font on this machine has {shown}, so boxes are shown: install {' and '.join(packages)}, then delete "
        f"Matplotlib's list of fonts, {get_cachedir()}/fontlist*.json"
    )


def _package_with(letter: str) -> str:
    """The fonts that have letters of the same Unicode block."""
    from fontTools.unicodedata import block  # type: ignore[import-untyped]  # comes with Matplotlib

    name = block(letter)
    return next((fonts for fonts, starts in FONTS.items() if name.startswith(starts)), "one of the Noto fonts")
