"""New figures of Matplotlib, which is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["new_figure", "one_axes"]


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
    figure: Figure = plt.figure(figsize=(width, height), layout="constrained")
    return figure


def one_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or else Axes that fill a new figure of that size in inches."""
    return new_figure(width, height).add_subplot() if ax is None else ax
