"""Numbers for each pair of tokens, as colours: weights, masks, the Jacobian of softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._lib.arguments import as_array, as_mask
from attention_np._lib.arrays import is_floating
from attention_np._lib.figures import as_axes, new_figure, one_axes
from attention_np.plot._cells import LINES, colour_bar, draw_cells, draw_grid, largest
from attention_np.plot._looks import as_seen, legend_at, marks
from attention_np.plot._tokens import as_tokens, label_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

CELL, LEAST, MOST = 0.45, 3.5, 10.0  # inches: of a cell, and of a new figure


def weights(
    weights: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the weights of one head: a row for each query, a column for each key.

    NaN has a hatch of its own. What is infinite lies beyond the end of the colour bar.

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
    TypeError, ValueError
        If `weights` is not a matrix of real numbers, or tokens or mask do not fit it.
    """
    matrix = as_matrix("weights", weights, "heads draws all heads of a sample")
    seen = as_seen(mask, matrix.shape, "the weights")
    queries, keys = both_tokens(query_tokens, key_tokens, matrix.shape)
    ax = one_axes(ax, *_size(matrix.shape, bar=True))
    image = draw_cells(ax, matrix, seen, (0.0, largest(matrix, seen)))
    _label(ax, matrix.shape, queries, keys)
    colour_bar(ax.figure, image, [ax], "weight", matrix, seen)
    return ax


def heads(
    weights: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    axes: Axes | Sequence[Axes] | None = None,
) -> npt.NDArray[Any]:
    """Draw the weights of all heads, a panel for each, in colours that mean the same in all.

    Parameters
    ----------
    weights : array_like, (heads, n, m)
    query_tokens, key_tokens, mask
        As for :func:`weights`; `mask` broadcasts to all heads.
    axes : (sequence of) matplotlib.axes.Axes, optional
        Where to draw, one for each head, of one figure, such as the grid of ``plt.subplots``; by default on a new
        figure.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, (heads,)

    Raises
    ------
    TypeError, ValueError
        As for :func:`weights`.
    """
    array = as_real("weights", weights)
    if array.ndim != 3 or not array.size:
        raise ValueError(
            f"weights must be those of all heads of one sample, (heads, n, m) (weights.shape={array.shape})"
        )
    seen = as_seen(mask, array.shape, "the weights")
    queries, keys = both_tokens(query_tokens, key_tokens, array.shape[1:])
    columns = _columns(len(array))
    if axes is None:
        panels = _panels(len(array), columns, array.shape[1:])
    else:
        panels = as_axes(axes, len(array), f"one for each of the {len(array)} heads")
    limits = 0.0, largest(array, seen)
    for head, ax in enumerate(panels):
        image = draw_cells(ax, array[head], seen[head], limits)
        _label(ax, array.shape[1:], queries, keys)
        ax.set_title(f"head {head}")
        if axes is None:
            _label_outside_only(ax, first=head % columns == 0, last=head + columns >= len(array))
    colour_bar(panels[0].figure, image, panels, "weight", array, seen)
    return np.array(panels, object)


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
    TypeError, ValueError
        As for :func:`weights`; a mask that is not boolean is refused.
    """
    shape = np.shape(mask)
    seen = as_mask(mask, shape)
    if seen.ndim != 2 or not seen.size:
        raise ValueError(f"mask must be that of one head, (n, m) (mask.shape={shape})")
    queries, keys = both_tokens(query_tokens, key_tokens, shape)
    ax = one_axes(ax, *_size(shape, bar=True))
    draw_cells(ax, np.zeros(shape), seen, (0.0, 1.0), colours="Greys", written=False)
    draw_grid(ax, shape)
    _label(ax, shape, queries, keys)
    from matplotlib.patches import Patch

    allowed = Patch(facecolor="white", edgecolor=LINES, label="may attend")
    legend_at(ax, (1.0, 1.0), [allowed, *marks(hidden=True, nan=False)])
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
        True for the keys that the query may attend to; the others have neither weight nor gradient, and are hatched.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError, ValueError
        If `scores` are not the real numbers of one query, or tokens or mask do not fit them.

    Notes
    -----
    :math:`\frac{\partial A_j}{\partial S_l} = A_j (\delta_{jl} - A_l)`: positive on the diagonal, negative elsewhere,
    and every row and column sums to zero. Derived in ``derivations/softmax.md``.
    """
    row = as_row("scores", scores)
    listed = as_tokens("tokens", tokens, len(row), "keys")
    jacobian = softmax.jacobian(row, mask=mask)  # (m, m)
    keys = as_seen(mask, row.shape, "the scores")
    seen = keys[:, None] & keys
    ax = one_axes(ax, *_size(jacobian.shape, bar=True))
    end = largest(np.abs(jacobian), seen)
    image = draw_cells(ax, jacobian, seen, (-end, end))
    label_tokens(ax, "x", listed, len(row), "score of")
    label_tokens(ax, "y", listed, len(row), "weight of")
    colour_bar(ax.figure, image, [ax], "derivative of the weight by the score", jacobian, seen)
    return ax


def as_matrix(name: str, array: npt.ArrayLike, otherwise: str) -> Array:
    """`array` as a matrix of real numbers with at least one entry."""
    matrix = as_real(name, array)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"{name} must be those of one head, (n, m): {otherwise} ({name}.shape={matrix.shape})")
    return matrix


def as_row(name: str, array: npt.ArrayLike) -> Array:
    """`array` as the real numbers of one query, of which there is at least one."""
    row = as_real(name, array)
    if row.ndim != 1 or not row.size:
        raise ValueError(f"{name} must be those of one query, (m,) ({name}.shape={row.shape})")
    return row


def as_real(name: str, array: npt.ArrayLike) -> Array:
    """`array` in double precision, if it holds real numbers."""
    result = as_array(name, array)
    if result.dtype.kind not in "iu" and (result.dtype.kind == "c" or not is_floating(result.dtype)):
        raise TypeError(f"{name} must hold real numbers, not {result.dtype} ({name}.shape={result.shape})")
    return result.astype(np.float64)


def both_tokens(
    queries: Sequence[str] | None, keys: Sequence[str] | None, shape: tuple[int, ...]
) -> tuple[list[str] | None, list[str] | None]:
    """What queries and keys are called: of as many, the keys as the queries are."""
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


def _label(ax: Axes, shape: tuple[int, ...], queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    label_tokens(ax, "x", keys, shape[1], "key")
    label_tokens(ax, "y", queries, shape[0], "query")
