"""Pictures of a check, by Matplotlib: where the errors are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arrays import Array
from attention_np._lib.figures import legend_below, new_figure, one_axes
from attention_np.gradcheck.report import describing
from attention_np.gradcheck.report.findings import Details, InputReport
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.verdict.judging import UNCHECKED, UNDECIDED, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["all_places", "places"]


LEAST, MOST = 1e-3, 1e3  # of the scale of errors over their tolerance


def places(input_report: InputReport, *, ax: Axes | None = None) -> Axes:
    """Plot where the errors are: each entry's difference over its tolerance, ten times its noise floor.

    The rows are those of the last two axes, for each index of the leading ones below each other. What is wrong
    has a cross; what cannot be decided, or is too small to judge, a dot. On a new figure, unless `ax` is given.
    """
    if not isinstance(input_report, InputReport):
        what = type(input_report).__name__
        raise TypeError(f"places draws one input of a report, such as report['x'], not a whole {what}")
    if input_report.details is None:
        raise ValueError(_nothing_to_plot([input_report.name]))
    ax = one_axes(ax, 6.0, 4.5)
    ax.set_title(_title(input_report))
    if not input_report.details.verdict.size:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no entries", ha="center", va="center", transform=ax.transAxes)
        return ax
    shape = input_report.details.verdict.shape
    cells = (-1, (1, *shape)[-1])
    _draw_errors(ax, _over_tolerance(input_report.details).reshape(cells))
    _mark(ax, np.asarray(input_report.details.verdict).reshape(cells))
    _label(ax, shape)
    return ax


def all_places(inputs: Sequence[InputReport]) -> npt.NDArray[Any]:
    """A figure with :func:`places` of each of the inputs that has arrays."""
    plotted = [entry for entry in inputs if entry.details is not None]
    if not plotted:
        raise ValueError(_nothing_to_plot([entry.name for entry in inputs]))
    columns = math.ceil(math.sqrt(len(plotted)))
    rows = math.ceil(len(plotted) / columns)
    figure = new_figure(5.5 * columns, 4.2 * rows)
    axes = [places(entry, ax=figure.add_subplot(rows, columns, k + 1)) for k, entry in enumerate(plotted)]
    return np.array(axes, object)


def _nothing_to_plot(names: Sequence[str]) -> str:
    return f"the report holds no arrays to plot for {', '.join(names)}: there was nothing to compare"


def _title(entry: InputReport) -> str:
    wrong = describing.how_many_wrong(entry) or ("holds" if entry.ok else "does not hold")
    return f"{entry.name}: {wrong}"


def _over_tolerance(details: Details) -> Array:
    """How large each difference is, in tolerances; NaN where nothing was compared."""
    with np.errstate(all="ignore"):
        difference = np.abs(np.asarray(details.analytic, float) - details.numerical)
        ratio = np.where(difference == 0, 0.0, difference / (UNDECIDABLE * np.asarray(details.floor)))
    known = np.asarray(details.verdict) != UNCHECKED
    return np.where(known, np.where(np.isnan(ratio), np.inf, ratio), np.nan)


def _draw_errors(ax: Axes, image: Array) -> None:
    from matplotlib.colors import LogNorm

    high, wide = image.shape
    square = max(high, wide) <= 3 * min(high, wide)  # cells of longer ones would be too small
    looks: dict[str, Any] = {"norm": LogNorm(LEAST, MOST), "cmap": "cividis"}
    shown = np.clip(image, LEAST, MOST)
    picture = ax.imshow(shown, aspect="equal" if square else "auto", interpolation="nearest", **looks)
    rows, columns = np.nonzero(~np.isnan(image))
    if len(rows) < image.size / 20:  # single cells would be lost among the others
        ax.scatter(columns, rows, s=9, c=shown[rows, columns], zorder=2, **looks)
    bar = ax.figure.colorbar(picture, ax=ax, extend="both", shrink=0.85)
    bar.set_label(f"difference / ({UNDECIDABLE} noise floors)")
    bar.ax.axhline(1, color="black", lw=1.5)


def _mark(ax: Axes, verdict: Array) -> None:
    """Crosses and dots, with their legend: what the colours say must be seen without them."""
    looks: dict[int, dict[str, Any]] = {
        WRONG: {"label": "wrong", "marker": "X", "s": 36, "c": "#B2182B", "ec": "white"},
        UNDECIDED: {"label": "undecidable", "marker": "o", "s": 14, "c": "white", "ec": "black"},
        UNCHECKED: {"label": "not looked at", "marker": ".", "s": 4, "c": "0.7"},
    }
    handles = []
    for kind, look in looks.items():
        rows, columns = np.nonzero(verdict == kind)
        if rows.size:
            handles.append(ax.scatter(columns, rows, lw=0.8, zorder=3, **look))
    if handles:
        legend_below(ax, handles)


def _label(ax: Axes, shape: tuple[int, ...]) -> None:
    """The indices along the last two axes, or those of the leading axes, with a line between one and the next."""
    from matplotlib.ticker import MaxNLocator

    high, wide = (1, 1, *shape)[-2:]
    for axis, length, k in ((ax.xaxis, wide, -1), (ax.yaxis, high, -2)):
        axis.set_label_text(f"index of axis {len(shape) + k}" if len(shape) + k >= 0 else "")
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        if length == 1:
            axis.set_ticks([0] if len(shape) + k >= 0 else [])
    leading = list(np.ndindex(shape[:-2]))
    if len(leading) > 1:
        ax.set_ylabel("index of the leading axes")
        ax.hlines(high * np.arange(1, len(leading)) - 0.5, -0.5, wide - 0.5, color="white", lw=1.5)
        shown = range(0, len(leading), math.ceil(len(leading) / 24))  # for so many there is room
        ax.set_yticks([high * (k + 0.5) - 0.5 for k in shown], [describing.place(leading[k]) for k in shown])
