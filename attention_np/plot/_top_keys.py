"""The keys that each query attends to most, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_integer
from attention_np._lib.figures import one_axes
from attention_np._lib.text import table, width_of
from attention_np.plot._fonts import showing
from attention_np.plot._heat_maps import as_matrix, both_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, LETTER = 0.22, 0.07  # inches: of a row of the table and of a column of text, in a new figure


@dataclass(frozen=True, eq=False)
class TopKeys:
    """The keys of largest weight of each query. Printed, it is a table.

    Attributes
    ----------
    queries, keys : tuple of str
        What queries and keys are called.
    places : ndarray of int, (n, k)
        Which keys: any whose weight is NaN, then those of the largest weights; of equal ones, the earlier key.
    weights : ndarray, (n, k)
        Their weights. A key of weight zero is not shown.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    places: npt.NDArray[np.intp]
    weights: npt.NDArray[Any]

    def rows(self) -> list[list[str]]:
        """The cells of the table, those of the head first."""
        head = ["query"]
        for rank in range(1, self.places.shape[1] + 1):
            head += [f"key {rank}", "weight"]
        rows = [head]
        for query, places, weights in zip(self.queries, self.places, self.weights, strict=True):
            row = [query]
            for place, weight in zip(places, weights, strict=True):
                row += ["-", ""] if weight == 0 else [self.keys[place], f"{weight:.3f}".replace("nan", "NaN")]
            rows.append(row)
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        return table(rows, left=len(rows[0]))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the table.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default on a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If Matplotlib is missing.
        """
        head, *rows = self.rows()
        widths = [max(map(width_of, column)) + 2 for column in zip(head, *rows, strict=True)]
        ax = one_axes(ax, LETTER * sum(widths) + 0.3, ROW * (len(rows) + 1) + 0.3)
        ax.set_axis_off()
        properties, texts = showing([cell for row in rows for cell in row])
        wide = len(head)
        cells = [texts[start : start + wide] for start in range(0, len(texts), wide)]
        drawn = ax.table(cellText=cells, colLabels=head, loc="center", cellLoc="left", edges="horizontal")
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(9)
        drawn.auto_set_column_width(range(wide))
        for (row, _), cell in drawn.get_celld().items():
            cell.set(edgecolor="0.8", facecolor="none")
            if row:
                cell.get_text().set(**properties)
            else:
                cell.get_text().set_fontweight("bold")
        return ax


def top_keys(
    weights: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    k: int = 3,
) -> TopKeys:
    """The `k` keys that each query attends to most.

    A weight that is NaN comes before all others: it is what one has to see.

    Parameters
    ----------
    weights : array_like, (n, m)
    query_tokens, key_tokens : sequence of str, optional
        As for :func:`weights`.
    k : int, optional
        At least 1; all keys if there are fewer.

    Returns
    -------
    TopKeys

    Raises
    ------
    TypeError, ValueError
        If `weights` is not a matrix of real numbers, tokens do not fit it, or `k` is not such a number.

    Examples
    --------
    >>> from attention_np import plot
    >>> print(plot.top_keys([[0.1, 0.9], [1.0, 0.0]], ["猫", "坐"], k=2))
    query  key 1  weight  key 2  weight
    猫     坐     0.900   猫     0.100
    坐     猫     1.000   -
    """
    matrix = as_matrix("weights", weights, "choose a head, such as weights[0]")
    k = min(as_integer("k", k, least=1), matrix.shape[1])
    n, m = matrix.shape
    tokens = both_tokens(query_tokens, key_tokens, (n, m))
    ranks = np.where(np.isnan(matrix), -np.inf, -matrix)
    places = np.lexsort((ranks, ~np.isnan(matrix)), axis=1)[:, :k]
    queries, keys = (names or map(str, range(count)) for names, count in zip(tokens, (n, m), strict=True))
    return TopKeys(tuple(queries), tuple(keys), places, np.take_along_axis(matrix, places, axis=1))
