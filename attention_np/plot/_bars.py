"""The weights of one query as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attention_np._lib.figures import legend_below, one_axes
from attention_np._lib.text import legible
from attention_np.plot._fonts import showing
from attention_np.plot._heat_maps import as_row
from attention_np.plot._looks import HIDDEN, NAN, as_seen, marks, number
from attention_np.plot._tokens import as_tokens, label_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR = "#0072B2"  # the blue of Okabe and Ito
ROW, LEAST, MOST = 0.24, 1.8, 10.0  # inches: of a bar, and of a new figure
THICK = 0.75  # of a row: a bar
ROOM = 0.15  # of the axis: for a number behind a bar
WRITTEN = 30  # bars up to which the weights are written behind them


def query_weights(
    weights: npt.ArrayLike,
    key_tokens: Sequence[str] | None = None,
    *,
    query: str | None = None,
    mask: npt.ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the weights of one query as bars, a row for each key in the order of the keys.

    Keys that are hidden and weights that are NaN have a hatch in the place of a bar; an infinite weight reaches the
    edge.

    Parameters
    ----------
    weights : array_like, (m,)
        Such as ``cache.weights[0, 2, i]`` of query i in head 2.
    key_tokens : sequence of str, optional
        m of them. By default the keys are numbered, from 0.
    query : str, optional
        The token of the query, for the title.
    mask : array_like of bool, (m,), optional
        True for the keys that the query may attend to; the others are hatched.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        If `weights` are not the real numbers of one query, or tokens or mask do not fit them.
    """
    row = as_row("weights", weights)
    keys = as_tokens("key_tokens", key_tokens, len(row), "keys")
    seen = as_seen(mask, row.shape, "the weights")
    nan = np.isnan(row) & seen
    ax = one_axes(ax, 5.0, min(max(ROW * len(row), LEAST), MOST) + 0.8)
    limits = _limits(row[seen])
    ends = np.clip(row, *limits)  # what is infinite reaches the edge
    places = np.arange(len(row))
    drawn = seen & ~nan
    ax.barh(places[drawn], ends[drawn], color=COLOUR, height=THICK)
    for rows, look in ((~seen, HIDDEN), (nan, NAN)):  # from edge to edge: neither is a length
        ax.barh(places[rows], 1, height=THICK, transform=ax.get_yaxis_transform(), **look)
    ax.set_xlim(limits)
    ax.set_ylim(len(row) - 0.5, -0.5)  # the first key above
    if limits[0] < 0:
        ax.axvline(0, color="0.5", lw=0.8)
    ax.set_xlabel("weight")
    label_tokens(ax, "y", keys, len(row), "key")
    for place in places[drawn] if len(row) <= WRITTEN else ():
        _write(ax, row[place], ends[place], place)
    ax.spines[["top", "right"]].set_visible(False)
    if handles := marks(hidden=not seen.all(), nan=bool(nan.any())):
        legend_below(ax, handles)
    if query is not None:
        properties, (title,) = showing([f"weights of the query {legible(query, several_lines=False)}"])
        ax.set_title(title, **properties)
    return ax


def _limits(shown: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the axis: zero, all that is finite, and room for the numbers behind the bars."""
    finite = shown[np.isfinite(shown)]
    least, most = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    if least == most:
        most = 1.0
    room = ROOM * (most - least)
    below = least < 0 or bool(np.isneginf(shown).any())
    return least - room if below else 0.0, most + room


def _write(ax: Axes, value: float, end: float, place: int) -> None:
    """The weight behind the end of its bar; if the bar reaches the edge, in the bar."""
    outward = 1 if value >= 0 else -1
    inside = bool(np.isinf(value))
    right = (outward < 0) != inside  # the text ends at the end of the bar
    ax.annotate(
        number(value, 3),
        (end, place),
        (-3 if right else 3, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="center",
        fontsize=8,
        color="white" if inside else None,
    )
