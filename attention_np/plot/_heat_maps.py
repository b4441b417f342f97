"""Numbers for each pair of tokens, as colours: weights, masks, the Jacobian of softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._arrays import as_mask
from attention_np._figures import new_figure, one_axes
from attention_np.plot._tokens import as_tokens, label_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["as_matrix", "heads", "mask", "softmax_jacobian", "weights"]

Array = npt.NDArray[Any]

COLOURS = "cividis"  # grows lighter evenly, and looks alike to people who see fewer colours
HIDDEN, HATCH, LINES = "0.85", "////", "0.6"  # of pairs that are masked out
WRITTEN = 8  # rows and columns up to which the numbers are written into their cells
CELL, LEAST, MOST = 0.45, 3.5, 10.0  # inches: of a cell, and of a new figure
ELONGATED = 4  # times longer one way than the other: cells are no squares then


def weights(
    weights: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the weights of one head: a row for each query, a column for each key.

    Parameters
    ----------
    weights : array_like, (n, m)
    query_tokens : sequence of str, optional
        n of them. By default the queries are numbered, from 0.
    key_tokens : sequence of str, optional
        m of them. By default `query_tokens`, if n is m.
    mask : array_like of bool, optional
        True where query i may attend to key j; broadcasts to `weights`. Other pairs are hatched.
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
        If `weights` is not a matrix of real numbers, or tokens or mask do not fit it.
    """
    matrix = as_matrix("weights", weights, "heads draws all heads of a sample")
    seen = None if mask is None else as_mask(mask, matrix.shape, "the weights")
    queries, keys = _both_tokens(query_tokens, key_tokens, matrix.shape)
    ax = one_axes(ax, *_size(matrix.shape, bar=True))
    image = _draw(ax, matrix, seen, 0.0, _largest(matrix, seen))
    _label(ax, matrix.shape, queries, keys)
    _bar(ax.figure, image, [ax], "weight")
    return ax


def heads(
    weights: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    axes: Sequence[Axes] | None = None,
) -> npt.NDArray[Any]:
    """Draw the weights of all heads, a panel for each, in colours that mean the same in all.

    Parameters
    ----------
    weights : array_like, (heads, n, m)
    query_tokens, key_tokens, mask
        As for :func:`weights`; `mask` broadcasts to all heads.
    axes : sequence of matplotlib.axes.Axes, optional
        Where to draw, one for each head, of one figure; by default on a new figure.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, (heads,)

    Raises
    ------
    ImportError, TypeError, ValueError
        As for :func:`weights`.
    """
    array = _as_real("weights", weights)
    if array.ndim != 3 or not array.size:
        raise ValueError(
            f"weights must be those of all heads of one sample, (heads, n, m) (weights.shape={array.shape})"
        )
    seen = None if mask is None else np.broadcast_to(as_mask(mask, array.shape, "the weights"), array.shape)
    queries, keys = _both_tokens(query_tokens, key_tokens, array.shape[1:])
    if axes is not None and len(axes) != len(array):
        raise ValueError(f"axes must be one for each of the {len(array)} heads, not {len(axes)}")
    columns = _columns(len(array))
    given, axes = axes, _panels(len(array), columns, array.shape[1:]) if axes is None else axes
    largest = _largest(array, seen)
    for head, ax in enumerate(axes):
        image = _draw(ax, array[head], None if seen is None else seen[head], 0.0, largest)
        _label(ax, array.shape[1:], queries, keys)
        ax.set_title(f"head {head}")
        if given is None:
            _label_outside_only(ax, first=head % columns == 0, last=head + columns >= len(array))
    _bar(axes[0].figure, image, list(axes), "weight")
    return np.array(axes, object)


def mask(
    mask: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw who may attend to whom: white where attending is allowed, grey and hatched where it is not.

    Parameters
    ----------
    mask : array_like of bool, (n, m)
    query_tokens, key_tokens, ax
        As for :func:`weights`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError, TypeError, ValueError
        As for :func:`weights`; a mask that is not boolean is refused.
    """
    shape = np.shape(mask)
    seen = as_mask(mask, shape)
    if seen.ndim != 2 or not seen.size:
        raise ValueError(f"mask must be that of one head, (n, m) (mask.shape={shape})")
    queries, keys = _both_tokens(query_tokens, key_tokens, shape)
    ax = one_axes(ax, *_size(shape, bar=False))
    _draw(ax, np.zeros(shape), seen, 0.0, 1.0, colours="Greys", written=False)
    _grid(ax, shape)
    _label(ax, shape, queries, keys)
    from matplotlib.patches import Patch

    hidden = Patch(facecolor=HIDDEN, edgecolor=LINES, hatch=HATCH, label="hidden")
    allowed = Patch(facecolor="white", edgecolor=LINES, label="may attend")
    ax.legend(
        handles=[allowed, hidden],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2,
        frameon=False,
        fontsize="small",
    )
    return ax


def softmax_jacobian(
    scores: npt.ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the Jacobian of softmax at the scores of one query: how each weight moves with each score.

    Parameters
    ----------
    scores : array_like, (m,)
    tokens : sequence of str, optional
        Of the m keys.
    mask : array_like of bool, (m,), optional
        True for the keys that the query may attend to.
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
        If `scores` are not the real numbers of one query, or tokens or mask do not fit them.

    Notes
    -----
    :math:`\frac{\partial A_j}{\partial S_l} = A_j (\delta_{jl} - A_l)`: positive on the diagonal, negative elsewhere,
    and every row and column sums to zero. Derived in ``derivations/softmax.md``.
    """
    row = _as_real("scores", scores)
    if row.ndim != 1 or not row.size:
        raise ValueError(f"scores must be those of one query, (m,) (scores.shape={row.shape})")
    listed = as_tokens("tokens", tokens, len(row), "keys")
    jacobian = softmax.jacobian(row, mask=mask)  # (m, m)
    ax = one_axes(ax, *_size(jacobian.shape, bar=True))
    largest = float(np.abs(jacobian).max()) or 1.0
    image = _draw(ax, jacobian, None, -largest, largest)
    label_tokens(ax, "x", listed, len(row), "score of")
    label_tokens(ax, "y", listed, len(row), "weight of")
    _bar(ax.figure, image, [ax], "derivative of the weight by the score")
    return ax


def as_matrix(name: str, array: npt.ArrayLike, otherwise: str) -> Array:
    """`array` as a matrix of real numbers with at least one entry."""
    matrix = _as_real(name, array)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"{name} must be those of one head, (n, m): {otherwise} ({name}.shape={matrix.shape})")
    return matrix


def _as_real(name: str, array: npt.ArrayLike) -> Array:
    result = np.asarray(array)
    if result.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, not {result.dtype} ({name}.shape={result.shape})")
    return result.astype(np.float64)


def _both_tokens(
    queries: Sequence[str] | None, keys: Sequence[str] | None, shape: tuple[int, ...]
) -> tuple[list[str] | None, list[str] | None]:
    if keys is None and shape[0] == shape[1]:
        keys = queries
    return as_tokens("query_tokens", queries, shape[0], "queries"), as_tokens("key_tokens", keys, shape[1], "keys")


def _size(shape: tuple[int, ...], *, bar: bool) -> tuple[float, float]:
    """Width and height of a new figure: cells that are large enough to see, in a figure that fits a page."""
    high, wide = (min(max(CELL * length, LEAST), MOST) for length in shape)
    return wide + (1.4 if bar else 0.6), high + 0.6


def _columns(count: int) -> int:
    """The columns of so many panels: a square of them or somewhat wider, if possible without a gap at the end."""
    least = math.ceil(math.sqrt(count))
    return next((columns for columns in range(least, 2 * least) if count % columns == 0), least)


def _panels(count: int, columns: int, shape: tuple[int, ...]) -> list[Axes]:
    rows = math.ceil(count / columns)
    wide, high = _size(shape, bar=False)
    shrunk = min(1.0, 14 / (columns * wide))
    figure = new_figure(columns * wide * shrunk + 1.0, rows * high * shrunk + 0.3)
    return [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def _label_outside_only(ax: Axes, *, first: bool, last: bool) -> None:
    """The tokens stand beside the first panel of a row and below the last of a column, as they are those of all."""
    if not first:
        ax.set_ylabel("")
        ax.tick_params(labelleft=False)
    if not last:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)


def _largest(matrix: Array, seen: Array | None) -> float:
    shown = matrix if seen is None else matrix[np.broadcast_to(seen, matrix.shape)]
    finite = shown[np.isfinite(shown)]
    return float(finite.max(initial=0.0)) or 1.0


def _draw(
    ax: Axes,
    matrix: Array,
    seen: Array | None,
    least: float,
    largest: float,
    colours: str = COLOURS,
    written: bool = True,
) -> AxesImage:
    hidden = np.zeros(matrix.shape, bool) if seen is None else ~np.broadcast_to(seen, matrix.shape)
    square = max(matrix.shape) <= ELONGATED * min(matrix.shape)
    image = ax.imshow(
        np.ma.masked_where(hidden, matrix),
        vmin=least,
        vmax=largest,
        cmap=colours,
        aspect="equal" if square else "auto",
        interpolation="nearest",
    )
    _hatch(ax, hidden)
    if written and max(matrix.shape) <= WRITTEN:
        for row, column in zip(*np.nonzero(~hidden), strict=True):
            value = matrix[row, column]
            dark = value < (least + largest) / 2
            text = f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")  # adding zero: no minus before a zero
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    return image


def _hatch(ax: Axes, hidden: Array) -> None:
    """Grey and a hatch over what is hidden, in one piece for each run of cells of a row."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    edges = np.diff(np.pad(hidden.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, stops = np.nonzero(edges == -1)
    if not len(rows):
        return
    left, right, top, bottom = starts - 0.5, stops - 0.5, rows - 0.5, rows + 0.5
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1).reshape(-1, 2)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(rows))
    ax.add_patch(PathPatch(Path(vertices, codes), facecolor=HIDDEN, edgecolor=LINES, hatch=HATCH, linewidth=0))


def _grid(ax: Axes, shape: tuple[int, ...]) -> None:
    """Lines between the cells, where these are few enough to be seen."""
    if max(shape) > 64:
        return
    ax.hlines(np.arange(1, shape[0]) - 0.5, -0.5, shape[1] - 0.5, colors=LINES, linewidths=0.5)
    ax.vlines(np.arange(1, shape[1]) - 0.5, -0.5, shape[0] - 0.5, colors=LINES, linewidths=0.5)


def _label(ax: Axes, shape: tuple[int, ...], queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    label_tokens(ax, "x", keys, shape[1], "key")
    label_tokens(ax, "y", queries, shape[0], "query")


def _bar(figure: Any, image: AxesImage, axes: Sequence[Axes], name: str) -> None:
    figure.colorbar(image, ax=list(axes), label=name, shrink=0.8)
