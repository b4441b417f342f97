"""Tokens, and axes that have them along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attention_np._lib.text import cut, legible, width_of
from attention_np.plot._fonts import showing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST, SMALLEST = 10.0, 6.0  # points: the size of a token's letters
FLAT = 8.0  # points: rather than making them smaller than this, the labels of columns are turned
LINE = 1.25  # height of a line in sizes
COLUMN = 0.62  # width of a column of text in sizes
LONGEST = 16  # columns that a token may take


def as_tokens(name: str, tokens: Sequence[str] | None, count: int, of: str) -> list[str] | None:
    """`tokens` as a list of strings, of which there must be `count`; None stays None."""
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name} must be a list of tokens, not one string: split {tokens!r} first")
    listed = [legible(str(token), several_lines=False) for token in tokens]
    if len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} tokens for {count} {of}")
    return listed


def label_tokens(ax: Axes, which: Literal["x", "y"], tokens: Sequence[str] | None, count: int, name: str) -> None:
    """Put tokens along an axis on which they stand at 0, 1, 2 ...; without tokens, their numbers.

    Labels become smaller and then fewer where there is no room for all. Those of columns are turned where they would
    run into each other.
    """
    from matplotlib.ticker import MaxNLocator

    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_label_text(name)
    if tokens is None:
        if count == 1:
            axis.set_ticks([0])
        else:
            axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        return
    box = ax.get_window_extent()
    room = 72 / ax.figure.dpi * (box.width if which == "x" else box.height) / max(1, count)  # points for each token
    properties, texts = showing([cut(token, LONGEST) for token in tokens])
    longest = max(map(width_of, texts), default=0)
    flat = which == "y" or room >= FLAT * COLUMN * (longest + 1)
    needed = LINE if which == "y" or not flat else COLUMN * (longest + 1)  # sizes for each token
    size = min(LARGEST, max(SMALLEST, room / needed))
    every = max(1, math.ceil(0.999 * size * needed / room)) if room else 1
    places = range(0, count, every)
    axis.set_ticks(list(places), [texts[place] for place in places], fontsize=size, **properties)
    for label in () if flat else axis.get_ticklabels():
        text = label.get_text()
        fits = room * every >= size * COLUMN * width_of(text)
        if not (fits and width_of(text) > len(text)):  # Chinese is not read sideways if it need not be
            label.set_rotation(90)
