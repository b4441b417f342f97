"""How every picture shows what has no colour and no length of its own: hidden pairs, and NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_mask

HIDDEN: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "0.6", "hatch": "////", "linewidth": 0}
NAN: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D55E00", "hatch": "xxxx", "linewidth": 0}


def as_seen(mask: npt.ArrayLike | None, shape: tuple[int, ...], of: str) -> npt.NDArray[np.bool_]:
    """Where the mask of an array of that shape allows to attend, for every entry; without a mask everywhere."""
    return np.ones(shape, bool) if mask is None else np.broadcast_to(as_mask(mask, shape, of), shape)


def marks(*, hidden: bool, nan: bool) -> list[Any]:
    """What a legend shows for the marks that a picture has."""
    from matplotlib.patches import Patch

    shown = [(hidden, HIDDEN, "hidden"), (nan, NAN, "NaN")]
    return [Patch(**look, label=label) for there, look, label in shown if there]


def legend_at(ax: Any, place: tuple[float, float], handles: Sequence[Any], **more: Any) -> None:
    """A legend whose upper left corner is at a place of `ax`."""
    look = {"handlelength": 1.2, "handletextpad": 0.5, "frameon": False, "fontsize": "small", **more}
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=place, **look)


def number(value: float, digits: int) -> str:
    """`value` as a picture writes it.

    Examples
    --------
    >>> number(0.25, 2), number(-0.001, 2), number(float("nan"), 2)
    ('0.25', '0.00', 'NaN')
    """
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # adding zero: no minus before a zero
    return text.replace("nan", "NaN").replace("-", "\N{MINUS SIGN}")
