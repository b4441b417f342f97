"""Keys, queries, values and outputs as points of the plane or of space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import dot_product
from attention_np._lib.figures import as_axes, legend_below, new_figure
from attention_np._lib.text import cut
from attention_np.plot._fonts import showing
from attention_np.plot._heat_maps import as_real
from attention_np.plot._hull import faces
from attention_np.plot._tokens import as_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[Any]

MOST_POINTS = 40  # more are a cloud, not a picture
MOST_NAMED, LONGEST = 3, 12  # of the points without a place: how many the legend names, in how many columns each
KEY, QUERY, HULL = "#0072B2", "#D55E00", "#56B4E9"  # of Okabe and Ito
SMALLEST, HEAVIEST = 25.0, 300.0  # square points: the area of a dot, and what a weight of 1 adds to it
WIDEST = 4.0  # points: the line to a value of weight 1
NEEDLE = 8.0  # times longer one way than the other: the features of the plane have scales of their own then
ROOM = 1.3  # of the extent of the points: for their names at the edge
FLATTEST = 2.0  # times longer than the shortest may the longest side of a box be
TICKS = 4  # intervals between the numbers along the longest side of a box
DIGIT = 4.0  # points: for each digit of these numbers, the label of the side stands further out


def points(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    axes: Axes | Sequence[Axes] | None = None,
) -> npt.NDArray[Any]:
    """Draw queries among the keys, and their outputs among the values, in the plane or in space.

    A query is an arrow. The convex hull of the values is shaded: no output can leave it. With a single query the dots
    are as large as its weights are, and lines lead from the output to the values that it is the mean of. What holds
    NaN or infinity has no place; the legend names it, and the hull is that of the other values.

    A unit is as long along each feature, unless the points extend so much further along one than along another that
    one would see a line.

    Parameters
    ----------
    query : array_like, (n, 2) or (n, 3)
        Or without the axis of length n: a single query.
    key : array_like, (m, 2) or (m, 3)
    value : array_like, (m, 2) or (m, 3)
    query_tokens, key_tokens : sequence of str, optional
        What queries and keys are called; by default their numbers, from 0.
    mask : array_like of bool, optional
        True where query i may attend to key j; broadcasts to (n, m).
    axes : sequence of two matplotlib.axes.Axes, optional
        For the keys and for the values; three-dimensional ones for points of space. By default on a new figure.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, (2,)

    Raises
    ------
    TypeError, ValueError
        If the arrays are not as above, or not those of :func:`attention_np.dot_product.forward`.
    """
    query, key, value = as_real("query", query), as_real("key", key), as_real("value", value)
    query = query[None] if query.ndim == 1 else query
    for name, array in {"query": query, "key": key, "value": value}.items():
        if array.ndim != 2 or array.shape[1] not in (2, 3) or not 1 <= len(array) <= MOST_POINTS:
            raise ValueError(
                f"{name} must be up to {MOST_POINTS} points of two or three features ({name}.shape={array.shape})"
            )
    output, cache = dot_product.forward(query, key, value, mask=mask)
    queries = as_tokens("query_tokens", query_tokens, len(query), "queries") or list(map(str, range(len(query))))
    keys = as_tokens("key_tokens", key_tokens, len(key), "keys") or list(map(str, range(len(key))))
    of_keys, of_values = _two_axes(axes, key.shape[1], value.shape[1])
    single = cache.weights[0] if len(query) == 1 else None
    font, names = showing([*queries, *keys])
    queries, keys = names[: len(queries)], names[len(queries) :]
    _draw_keys(of_keys, _Named("query", query, queries, font), _Named("key", key, keys, font), single)
    _draw_values(of_values, _Named("output", output, queries, font), _Named("value", value, keys, font), single)
    return np.array([of_keys, of_values], object)


class _Named(NamedTuple):
    """Points with their names; those that hold NaN or infinity have no place in a picture."""

    kind: str
    places: Array
    names: list[str]
    font: dict[str, Any]

    @property
    def finite(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.places).all(axis=1))

    def placed(self) -> Iterator[tuple[Array, str]]:
        """The points that have a place, with their names."""
        for place, name, finite in zip(self.places, self.names, self.finite, strict=True):
            if finite:
                yield place, name

    def lost(self) -> list[str]:
        """What the legend says of the others."""
        names = [name for name, finite in zip(self.names, self.finite, strict=True) if not finite]
        shown = ", ".join(cut(name, LONGEST) for name in names[:MOST_NAMED]) + (", ..." if names[MOST_NAMED:] else "")
        return [f"{self.kind} {shown}: NaN or infinite"] if names else []


def _draw_keys(ax: Any, query: _Named, key: _Named, weights: Array | None) -> None:
    _dots(ax, key, weights)
    for place, name in query.placed():
        _arrow(ax, place)
        _name(ax, place, name, query.font, QUERY)
    ax.plot(*np.zeros((key.places.shape[1], 1)), ls="", marker="+", color="0.5", label="origin")
    ax.plot([], [], color=QUERY, marker=">", label="query")
    _finish(ax, "keys and queries" if weights is None else "keys and query", key.lost() + query.lost(), key.font)


def _draw_values(ax: Any, output: _Named, value: _Named, weights: Array | None) -> None:
    for number, polygon in enumerate(faces(value.places[value.finite])):
        _shade(ax, polygon, "convex hull of the values" if number == 0 else None)
    _dots(ax, value, weights)
    if weights is not None and output.finite.all():
        for place, weight in zip(value.places[value.finite], weights[value.finite], strict=True):
            ax.plot(*np.stack([output.places[0], place], axis=1), color=QUERY, lw=WIDEST * weight, zorder=1.5)
    ax.plot(
        *output.places[output.finite].T, ls="", marker="*", ms=13, color=QUERY, mec=ax.get_facecolor(), label="output"
    )
    for place, name in output.placed() if weights is None else ():
        _name(ax, place, name, output.font, QUERY)
    _finish(
        ax, "values and outputs" if weights is None else "values and output", value.lost() + output.lost(), value.font
    )


def _two_axes(axes: Axes | Sequence[Axes] | None, d_k: int, d_v: int) -> list[Axes]:
    """Axes for points of so many features, as given or on a new figure."""
    if axes is None:
        figure = new_figure(10.5, 5.4)
        projections = ["3d" if d == 3 else "rectilinear" for d in (d_k, d_v)]
        return [figure.add_subplot(1, 2, place + 1, projection=kind) for place, kind in enumerate(projections)]
    listed = as_axes(axes, 2, "two, for keys and for values")
    for ax, d, name in zip(listed, (d_k, d_v), ("keys", "values"), strict=True):
        if (ax.name == "3d") != (d == 3):
            raise ValueError(f"the axes for the {name}, which have {d} features, must be {d}-dimensional")
    return listed


def _dots(ax: Any, points: _Named, weights: Array | None) -> None:
    added = 0.06 if weights is None else np.nan_to_num(weights[points.finite])
    area = SMALLEST + HEAVIEST * added
    behind = ax.get_facecolor()  # a rim, so that dots upon each other are told apart
    places = points.places[points.finite].T
    ax.scatter(*places, s=area, color=KEY, edgecolors=behind, linewidths=0.8, label=points.kind, zorder=2)
    for place, name in points.placed():
        _name(ax, place, name, points.font)


def _name(ax: Any, place: Array, name: str, font: dict[str, Any], colour: str | None = None) -> None:
    """The token beside its point."""
    look = {"fontsize": 9, **font, **({"color": colour} if colour else {})}
    if len(place) == 3:
        ax.text(*place, f"  {name}", **look)
    else:
        ax.annotate(name, place, (7, 5), textcoords="offset points", zorder=4, **look)


def _arrow(ax: Any, place: Array) -> None:
    """From the origin to a query."""
    if len(place) == 3:
        ax.quiver(0, 0, 0, *place, color=QUERY, arrow_length_ratio=0.12)
    else:
        ax.quiver(0, 0, *place, color=QUERY, angles="xy", scale_units="xy", scale=1, width=0.008, zorder=3)
    ax.plot(*place[:, None], alpha=0)  # an arrow alone does not widen the limits


def _shade(ax: Any, polygon: Array, label: str | None) -> None:
    if polygon.shape[1] == 2:
        ax.fill(*polygon.T, facecolor=HULL, edgecolor=KEY, alpha=0.25, zorder=1, label=label)
    else:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

        ax.add_collection3d(
            Poly3DCollection([polygon], facecolors=HULL, edgecolors=KEY, linewidths=0.6, alpha=0.12, label=label)
        )


def _finish(ax: Any, title: str, lost: Sequence[str], font: dict[str, Any]) -> None:
    ax.set_title(title)
    ax.set_xlabel("feature 1")
    ax.set_ylabel("feature 2")
    if ax.name == "3d":
        ax.set_zlabel("feature 3")
        _shape_box(ax)
    else:
        if np.isfinite(ax.dataLim.get_points()).all():  # there are points
            ax.update_datalim(ax.dataLim.expanded(ROOM, ROOM).get_points())  # a margin would not survive the aspect
            ax.set_aspect(_aspect(ax.dataLim.width, ax.dataLim.height), adjustable="datalim")
        ax.margins(0)
        ax.grid(alpha=0.25)
    for text in lost:
        ax.plot([], [], ls="", marker="x", color="0.5", label=text)
    legend_below(ax, columns=2, outside=ax.name != "3d")  # in space the labels are within
    for text in ax.get_legend().get_texts():
        text.set(**font)


def _aspect(width: float, height: float) -> float:
    """How many times longer a unit of the second feature is drawn than one of the first: 1 unless that is a needle."""
    if not width or not height:
        return 1.0
    ratio = width / height
    return ratio / min(max(ratio, 1 / NEEDLE), NEEDLE)


def _shape_box(ax: Any) -> None:
    """Sides as long as they are, or at least half of the longest: labels need room."""
    from matplotlib.ticker import MaxNLocator

    lengths = np.array([high - low for low, high in (ax.get_xlim(), ax.get_ylim(), ax.get_zlim())])
    ax.patch.set_visible(False)  # it would cover the labels of a neighbour
    sides = np.maximum(lengths / lengths.max(), 1 / FLATTEST)
    ax.set_box_aspect(sides, zoom=0.8)
    for axis, side in zip((ax.xaxis, ax.yaxis, ax.zaxis), sides, strict=True):
        axis.set_major_locator(MaxNLocator(round(TICKS * side)))
        numbers = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
        axis.labelpad = DIGIT * max(map(len, numbers), default=0)
