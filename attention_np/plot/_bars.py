"""The weights of one query as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attention_np._arrays import as_mask
from attention_np._columns import visible
from attention_np._figures import one_axes
from attention_np.plot._fonts import showing
from attention_np.plot._tokens import as_tokens, label_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["query_weights"]

COLOUR = "#0072B2"  # the blue of Okabe and Ito
ROW, LEAST, MOST = 0.24, 1.8, 10.0  # inches: of a bar, and of a new figure
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

    Parameters
    ----------
    weights : array_like, (m,)
        Such as ``cache.weights[0, 2, i]`` of query i in head 2.
    key_tokens : sequence of str, optional
        m of them. By default the keys are numbered, from 0.
    query : str, optional
        The token of the query, for the title.
    mask : array_like of bool, (m,), optional
        True for the keys that the query may attend to; the others are marked as hidden.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        If Matplotlib is missing.
    TypeError, ValueError
        If `weights` are not the real numbers of one query, or tokens or mask do not fit them.
    """
    row = np.asarray(weights)
    if row.dtype.kind not in "fiu":
        raise TypeError(f"weights must hold real numbers, not {row.dtype} (weights.shape={row.shape})")
    if row.ndim != 1 or not row.size:
        raise ValueError(f"weights must be those of one query, (m,) (weights.shape={row.shape})")
    keys = as_tokens("key_tokens", key_tokens, len(row), "keys")
    seen = np.ones(row.shape, bool) if mask is None else as_mask(mask, row.shape, "the weights")
    seen = np.broadcast_to(seen, row.shape)
    ax = one_axes(ax, 5.0, min(max(ROW * len(row), LEAST), MOST) + 0.8)
    places = np.arange(len(row))
    ax.barh(places[seen], row[seen].astype(np.float64), color=COLOUR, height=0.75)
    ax.set_ylim(len(row) - 0.5, -0.5)  # the first key above
    ax.set_xlim(left=0)
    ax.margins(x=0.12)
    ax.set_xlabel("weight")
    label_tokens(ax, "y", keys, len(row), "key")
    for place in places if len(row) <= WRITTEN else ():
        text = f"{row[place]:.3f}" if seen[place] else "hidden"
        end = float(row[place]) if seen[place] else 0.0
        ax.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=8, color="0.3")
    ax.spines[["top", "right"]].set_visible(False)
    if query is not None:
        properties, (title,) = showing([f"weights of the query {visible(query)}"])
        ax.set_title(title, **properties)
    return ax
