"""The cells of a heat map: their colours, the numbers in them, and hatches where there is no number to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np.plot._looks import HIDDEN, NAN, legend_at, marks, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

Array = npt.NDArray[Any]

COLOURS = "cividis"  # grows lighter evenly, and looks alike to people who see fewer colours
LINES = "0.6"
WRITTEN = 8  # rows and columns up to which the numbers are written into their cells
ELONGATED = 4  # times longer one way than the other: cells are no squares then
MOST_LINES = 64  # cells one way, of which more are too small for lines between them


def largest(matrix: Array, seen: Array) -> float:
    """The largest number that is seen and finite, as the end of a scale that begins at zero."""
    return float(matrix[seen & np.isfinite(matrix)].max(initial=0.0)) or 1.0


def draw_cells(
    ax: Axes, matrix: Array, seen: Array, limits: tuple[float, float], colours: str = COLOURS, written: bool = True
) -> AxesImage:
    """Draw the cells of `matrix` (n, m) in colours of that scale; what is not `seen` is hatched, and so is NaN."""
    nan = np.isnan(matrix) & seen
    square = max(matrix.shape) <= ELONGATED * min(matrix.shape)
    least, most = limits
    beyond = most - least  # imshow leaves what is infinite without a colour
    image = ax.imshow(
        np.ma.masked_where(~seen | nan, np.nan_to_num(matrix, posinf=most + beyond, neginf=least - beyond)),
        vmin=least,
        vmax=most,
        cmap=colours,
        aspect="equal" if square else "auto",
        interpolation="nearest",
    )
    _hatch(ax, ~seen, HIDDEN)
    _hatch(ax, nan, NAN)
    if written and max(matrix.shape) <= WRITTEN:
        for row, column in zip(*np.nonzero(seen), strict=True):
            _write(ax, row, column, matrix[row, column], (least + most) / 2)
    return image


def _write(ax: Axes, row: int, column: int, value: float, middle: float) -> None:
    behind = {"facecolor": "white", "linewidth": 0, "pad": 1.5} if np.isnan(value) else None  # a hatch is no paper
    colour = "white" if value < middle else "black"
    ax.text(column, row, number(value, 2), ha="center", va="center", fontsize=8, color=colour, bbox=behind)


def _hatch(ax: Axes, inside: Array, look: dict[str, Any]) -> None:
    """That look over some of the cells, in one piece for each run of cells of a row."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    edges = np.diff(np.pad(inside.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, stops = np.nonzero(edges == -1)
    if not len(rows):
        return
    left, right, top, bottom = starts - 0.5, stops - 0.5, rows - 0.5, rows + 0.5
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1).reshape(-1, 2)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(rows))
    ax.add_patch(PathPatch(Path(vertices, codes), **look))


def draw_grid(ax: Axes, shape: tuple[int, ...]) -> None:
    """Lines between the cells, where these are few enough to be seen."""
    if max(shape) > MOST_LINES:
        return
    ax.hlines(np.arange(1, shape[0]) - 0.5, -0.5, shape[1] - 0.5, colors=LINES, linewidths=0.5)
    ax.vlines(np.arange(1, shape[1]) - 0.5, -0.5, shape[0] - 0.5, colors=LINES, linewidths=0.5)


def colour_bar(figure: Any, image: AxesImage, axes: Sequence[Axes], name: str, matrix: Array, seen: Array) -> None:
    """A colour bar for all `axes`, which together show `matrix`, and below it what the hatches mean."""
    least, most = image.get_clim()
    below, above = bool((matrix[seen] < least).any()), bool((matrix[seen] > most).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]
    bar = figure.colorbar(image, ax=list(axes), label=name, shrink=0.8, extend=extend)
    handles = marks(hidden=not seen.all(), nan=bool(np.isnan(matrix[seen]).any()))
    if handles:  # in the title's place it would be in the way of a title
        legend_at(bar.ax, (0, -0.06), handles, borderaxespad=0, borderpad=0)
