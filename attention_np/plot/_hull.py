"""The convex hull of a few points of the plane or of space."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLAT = 1e-9  # of the size of a set of points: what is so near to a plane lies in it


def faces(places: Array) -> Iterator[Array]:
    """The polygons around a convex hull, the corners of each in order: one in the plane, one for each side in space."""
    if not len(places):
        return
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
    faces = set()
    for chosen in combinations(range(len(places)), places.shape[1]):
        base, *others = places[list(chosen)]
        spans = np.array(others) - base
        normal = np.array([-spans[0, 1], spans[0, 0]]) if len(base) == 2 else np.cross(spans[0], spans[1])
        length = float(np.linalg.norm(normal))
        if length <= FLAT * size ** len(spans):
            continue  # these points lie on each other, or on one line: no plane goes through them alone
        heights = (places - base) @ normal / length
        if heights.min() >= -FLAT * size or heights.max() <= FLAT * size:
            faces.add(tuple(np.flatnonzero(np.abs(heights) <= FLAT * size).tolist()))
    return sorted(faces)
