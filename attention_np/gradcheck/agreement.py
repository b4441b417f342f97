"""When two arrays agree: the one definition that the harness, the tests and the benchmarks use.

*The normwise relative error* is the largest difference over the largest magnitude that takes part. It states claims
such as "agrees to 1e-13".

*The noise floor* of an entry is how far it moves when the inputs move in their last bit. It is what rounding alone can
do, cancellation inside the function included; :func:`noise_floor` says how it is found. A difference below ten times
its floor is undecidable at that precision, and an array of which every entry lies below is zero as far as anybody can
tell; for such an array the magnitude that takes part is that of the terms that cancelled, which the floor tells too:
floor / precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["UNDECIDABLE", "Agreement", "compare", "noise_floor", "relative_error"]

Array = npt.NDArray[Any]

UNDECIDABLE = 10  # times the noise floor
HOLDS, WRONG, UNDECIDED, UNCHECKED = range(4)  # the verdicts on an entry
ULPS = 8  # by how many units in the last place, at most, the inputs are moved to find the floor


class Agreement(NamedTuple):
    """How far two arrays agree."""

    error: float  # normwise and relative; infinite where one of them is not finite
    worst: tuple[int, ...]  # the index of the largest difference
    undecidable: int  # how many entries differ by more than the tolerance, but by less than rounding can explain
    ok: bool


def relative_error(actual: Array, expected: Array) -> tuple[float, tuple[int, ...]]:
    """The largest difference over the largest magnitude of either, and the index of that difference.

    Examples
    --------
    >>> import numpy as np
    >>> error, index = relative_error(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.004]))
    >>> print(f"{error:.3g} at {index}")
    0.000999 at (2,)
    """
    difference, scale = _difference_and_scale(actual, expected)
    if not difference.size:
        return 0.0, ()
    index = np.unravel_index(int(difference.argmax()), difference.shape)
    largest = float(difference[index])
    return (largest / scale if largest else 0.0), tuple(map(int, index))


def compare(
    actual: Array,
    expected: Array,
    rtol: float,
    floor: Callable[[], Array] = lambda: np.zeros(()),
    precision: float = float(np.finfo(np.float64).eps),
) -> Agreement:
    """Compare two arrays normwise, and where that fails, entry by entry against their noise.

    Parameters
    ----------
    actual, expected : ndarray
        Of one shape.
    rtol : float
        The normwise relative error that is allowed.
    floor : callable, optional
        Gives the noise floor of each entry. It costs evaluations, so it is called only if the arrays do not agree
        to `rtol`.
    precision : float, optional
        The relative error that one operation makes, by default that of float64.
    """
    error, index = relative_error(actual, expected)
    if error <= rtol:
        return Agreement(error, index, 0, True)
    if not np.isfinite(error):
        return Agreement(error, index, 0, False)

    noise = np.broadcast_to(floor(), actual.shape)
    difference, scale = _difference_and_scale(actual, expected)
    if (np.maximum(np.abs(actual), np.abs(expected)) <= UNDECIDABLE * noise).all():
        undecidable = int((difference > rtol * scale).sum())
        return Agreement(float(difference.max() / (noise.max() / precision)), index, undecidable, True)
    suspicious = difference > rtol * scale
    wrong = suspicious & (difference > UNDECIDABLE * noise)
    return Agreement(error, index, int(suspicious.sum() - wrong.sum()), not wrong.any())


def noise_floor(
    function: Callable[..., Array], inputs: Sequence[Array], rng: np.random.Generator, repeats: int = 4
) -> Array:
    """How far each entry of ``function(*inputs)`` moves when the inputs move in their last bit.

    The largest move of a few. Each input moves up or down by one to `ULPS` units in the last place: the effect of a
    single unit is often lost in the rounding of the result. Where the function works in a wider dtype, too, what that
    changes counts as well: it shows what the inputs do not reach, as the rounding in 1 - tanh(x)^2 near saturation.
    """
    value = np.asarray(function(*inputs))
    with np.errstate(all="ignore"):
        changes = [np.asarray(function(*(_move(x, rng) for x in inputs))) - value for _ in range(repeats)]
        try:
            changes.append(np.asarray(function(*_widen(inputs))) - value)
        except Exception:
            changes.append(np.zeros(value.shape))  # not every function takes every dtype
        sizes = np.abs(np.array(changes))
    floor: Array = np.where(np.isfinite(sizes), sizes, 0).max(axis=0).astype(np.float64)
    return floor


def _widen(arrays: Sequence[Array]) -> list[Array]:
    narrow = all(x.dtype.itemsize < 8 for x in arrays)
    return [x.astype(np.float64 if narrow else np.longdouble) for x in arrays]


def _move(x: Array, rng: np.random.Generator) -> Array:
    """`x`, with each entry moved up or down in its last place; zero has none."""
    units = rng.integers(1, ULPS, x.shape, endpoint=True) * rng.choice([-1, 1], x.shape)
    with np.errstate(all="ignore"):
        moved = x + units.astype(x.dtype) * np.spacing(x)
    return np.where(np.isfinite(moved) & (x != 0), moved, x)


def _difference_and_scale(actual: Array, expected: Array) -> tuple[Array, float]:
    with np.errstate(all="ignore"):
        difference = np.abs(np.asarray(actual) - expected)
        difference = np.where(np.isfinite(difference), difference, np.inf)
        scale = max(np.abs(actual).max(initial=0), np.abs(expected).max(initial=0))
    return difference, float(scale) if np.isfinite(scale) else 1.0
