"""New figures of Matplotlib, which is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BELOW = -36  # points from the axes to a legend: past the numbers and the label of the horizontal axis


def new_figure(width: float, height: float) -> Figure:
    """A figure of that size in inches.

    Raises
    ------
    ImportError
        If Matplotlib is missing.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need Matplotlib: pip install 'attention-np[plot]'") from error
    figure: Figure = plt.figure(figsize=(width, height), layout="compressed")  # constrained, for square cells too
    return figure


def one_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or else Axes that fill a new figure of that size in inches.

    Raises
    ------
    ImportError
        If Matplotlib is missing.
    TypeError
        If `ax` is something else, such as a figure.
    """
    if ax is None:
        return new_figure(width, height).add_subplot()
    _refuse_others("ax", ax)
    return ax


def as_axes(axes: Axes | Sequence[Axes], count: int, what: str) -> list[Axes]:
    """`axes` one after another: a list of them, one alone, or a grid as ``plt.subplots`` returns it.

    Raises
    ------
    TypeError, ValueError
        If they are not Axes, or not so many.
    """
    listed = list(np.ravel(np.array(axes, object)))
    if len(listed) != count:
        raise ValueError(f"axes must be {what}, not {len(listed)}")
    for ax in listed:
        _refuse_others("axes", ax)
    return listed


def _refuse_others(name: str, ax: object) -> None:
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise TypeError(f"{name} must be Axes of Matplotlib, not {type(ax).__name__}")


def legend_below(ax: Axes, handles: Sequence[Any] | None = None, *, columns: int = 3, outside: bool = True) -> None:
    """A legend below `ax`, and if that is `outside`, its horizontal label: of `handles`, or of all that has a label."""
    from matplotlib.transforms import ScaledTranslation

    below_the_label = ScaledTranslation(0, BELOW / 72 if outside else 0, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=ax.get_legend_handles_labels()[0] if handles is None else handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + below_the_label,
        ncols=columns,
        frameon=False,
        fontsize="small",
    )
