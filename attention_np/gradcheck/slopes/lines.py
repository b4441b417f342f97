"""Numbers at equally spaced points: what is smooth leaves next to nothing of high differences, and noise leaves all."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


ORDER = 5  # of the differences
POINTS = 10  # on a line: enough for those to be a sample of the noise


def high_differences(points: Array) -> Array:
    """Differences of a high order along the first axis, each as large as the noise of one point: (points - ORDER, ...).

    The root of the sum of the squares of their weights is that of ``comb(2 * ORDER, ORDER)`` (gradcheck.69).
    """
    return np.asarray(np.diff(points, n=ORDER, axis=0) / np.sqrt(comb(2 * ORDER, ORDER)))  # (gradcheck.68)


def noise_of(points: Array) -> Array:
    """The noise of each curve: the root mean square of its high differences."""
    return np.asarray(np.sqrt(np.square(high_differences(points)).mean(axis=0)))
