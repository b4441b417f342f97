"""Keys, queries, values and outputs as points of the plane or of space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attention_np import dot_product
from attention_np._arrays import as_floating
from attention_np._figures import new_figure
from attention_np.plot._fonts import showing
from attention_np.plot._tokens import as_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["points"]

Array = npt.NDArray[Any]

MOST_POINTS = 40  # more are a cloud, not a picture
KEY, QUERY, HULL = "#0072B2", "#D55E00", "#56B4E9"  # of Okabe and Ito
SMALLEST, HEAVIEST = 25.0, 300.0  # square points: the area of a dot, and what a weight of 1 adds to it
WIDEST = 4.0  # points: the line to a value of weight 1
FLAT = 1e-9  # of the size of a set of points: what is so near to a plane lies in it


def points(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: npt.ArrayLike | None = None,
    axes: Sequence[Axes] | None = None,
) -> npt.NDArray[Any]:
    """Draw queries among the keys, and their outputs among the values, in the plane or in space.

    A query is an arrow. The convex hull of the values is shaded: no output can leave it. With a single query the dots
    are as large as its weights are, and lines lead from the output to the values that it is the mean of.

    Parameters
    ----------
    query : array_like of float, (n, 2) or (n, 3)
        Or without the axis of length n: a single query.
    key : array_like of float, (m, 2) or (m, 3)
    value : array_like of float, (m, 2) or (m, 3)
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
    ImportError
        If Matplotlib is missing.
    TypeError, ValueError
        If the arrays are not as above, or not those of :func:`attention_np.dot_product.forward`.
    """
    query, key, value = as_floating("query", query), as_floating("key", key), as_floating("value", value)
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

    _dots(of_keys, key, keys, single, "key")
    for place, token in zip(query, queries, strict=True):
        _arrow(of_keys, place)
        _name(of_keys, place, token, QUERY)
    of_keys.plot(*np.zeros((key.shape[1], 1)), ls="", marker="+", color="0.4", label="origin")
    of_keys.plot([], [], color=QUERY, marker=">", label="query")

    for number, polygon in enumerate(_faces(value)):
        _shade(of_values, polygon, "convex hull of the values" if number == 0 else None)
    _dots(of_values, value, keys, single, "value")
    if single is not None:
        for place, weight in zip(value, single, strict=True):
            of_values.plot(*np.stack([output[0], place], axis=1), color=QUERY, lw=WIDEST * weight, zorder=1.5)
    of_values.plot(*output.T, ls="", marker="*", ms=13, color=QUERY, mec="white", label="output")
    for place, token in zip(output, queries, strict=True) if single is None else ():
        _name(of_values, place, token, QUERY)
    _finish(of_keys, "keys and queries" if single is None else "keys and query")
    _finish(of_values, "values and outputs" if single is None else "values and output")
    return np.array([of_keys, of_values], object)


def _two_axes(axes: Sequence[Axes] | None, d_k: int, d_v: int) -> Sequence[Axes]:
    """Axes for points of so many features, as given or on a new figure."""
    if axes is None:
        figure = new_figure(10.5, 5.4)
        projections = ["3d" if d == 3 else "rectilinear" for d in (d_k, d_v)]
        return [figure.add_subplot(1, 2, place + 1, projection=kind) for place, kind in enumerate(projections)]
    if len(axes) != 2:
        raise ValueError(f"axes must be two, for keys and for values, not {len(axes)}")
    for ax, d, name in zip(axes, (d_k, d_v), ("keys", "values"), strict=True):
        if (ax.name == "3d") != (d == 3):
            raise ValueError(f"the axes for the {name}, which have {d} features, must be {d}-dimensional")
    return axes


def _dots(ax: Any, places: Array, tokens: Sequence[str], weights: Array | None, label: str) -> None:
    area = SMALLEST + HEAVIEST * (0.06 if weights is None else weights)
    ax.scatter(*places.T, s=area, color=KEY, edgecolors="white", linewidths=0.8, label=label, zorder=2)
    for place, token in zip(places, tokens, strict=True):
        _name(ax, place, token, "black")


def _name(ax: Any, place: Array, token: str, colour: str) -> None:
    """The token beside its point."""
    properties, (text,) = showing([token])
    if len(place) == 3:
        ax.text(*place, f"  {text}", color=colour, fontsize=9, **properties)
    else:
        ax.annotate(text, place, (7, 5), textcoords="offset points", color=colour, fontsize=9, zorder=4, **properties)


def _arrow(ax: Any, place: Array) -> None:
    """From the origin to a query."""
    if len(place) == 3:
        ax.quiver(0, 0, 0, *place, color=QUERY, arrow_length_ratio=0.12)
    else:
        ax.quiver(0, 0, *place, color=QUERY, angles="xy", scale_units="xy", scale=1, width=0.008, zorder=3)
        ax.plot(*place, alpha=0)  # an arrow alone does not widen the limits


def _shade(ax: Any, polygon: Array, label: str | None) -> None:
    if polygon.shape[1] == 2:
        ax.fill(*polygon.T, facecolor=HULL, edgecolor=KEY, alpha=0.25, zorder=1, label=label)
    else:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

        ax.add_collection3d(
            Poly3DCollection([polygon], facecolors=HULL, edgecolors=KEY, linewidths=0.6, alpha=0.12, label=label)
        )


def _finish(ax: Any, title: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("feature 1")
    ax.set_ylabel("feature 2")
    if ax.name == "3d":
        ax.set_zlabel("feature 3")
        lengths = [high - low for low, high in (ax.get_xlim(), ax.get_ylim(), ax.get_zlim())]
        ax.set_box_aspect(lengths, zoom=0.95)  # as long as they are, and with room for the labels
    else:
        ax.set_aspect("equal", adjustable="datalim")
        ax.margins(0.15)
        ax.grid(alpha=0.25)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize="small", frameon=False)


def _faces(places: Array) -> Iterator[Array]:
    """The polygons around a convex hull, the corners of each in order: one in the plane, one for each side in space."""
    places = places.astype(np.float64)
    if places.shape[1] == 2:
        border = _round(places)
        if border:
            yield places[border]
        return
    for face in _sides(places):
        corners = places[list(face)]
        centred = corners - corners.mean(axis=0)
        within = centred @ np.linalg.svd(centred)[2][:2].T  # coordinates in the plane of this side
        yield corners[_round(within)]


def _round(places: Array) -> list[int]:
    """The points on the border of the convex hull of points of the plane, in order."""
    border = sorted({point for side in _sides(places) for point in side})
    if not border:  # there is a single point
        return []
    x, y = (places[border] - places[border].mean(axis=0)).T
    return [border[number] for number in np.argsort(np.arctan2(y, x))]


def _sides(places: Array) -> list[tuple[int, ...]]:
    """The sets of points that lie on one line (in space: one plane) with all others on one side of it."""
    size = float(np.ptp(places, axis=0).max())
    found = set()
    for chosen in combinations(range(len(places)), places.shape[1]):
        base, *others = places[list(chosen)]
        spans = np.array(others) - base
        normal = np.array([-spans[0, 1], spans[0, 0]]) if len(base) == 2 else np.cross(spans[0], spans[1])
        length = float(np.linalg.norm(normal))
        if length <= FLAT * size ** len(spans):
            continue  # these points lie on each other, or on one line: no plane goes through them alone
        heights = (places - base) @ normal / length
        if heights.min() >= -FLAT * size or heights.max() <= FLAT * size:
            found.add(tuple(np.flatnonzero(np.abs(heights) <= FLAT * size).tolist()))
    return sorted(found)
