"""When two arrays agree: the one definition that the harness, the tests and the benchmarks use.

*The normwise relative error* is the largest difference over the largest magnitude that takes part. It states claims
such as "agrees to 1e-13".

*The noise floor* of an entry is how far it moves when the inputs move in their last bit. It is what rounding alone can
do, cancellation inside the function included. A difference below ten times its floor is undecidable at that precision,
and an array that lies below it throughout is zero as far as anybody can tell; for such an array the magnitude that
takes part is that of the terms that cancelled, which the floor tells too: floor / precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["UNDECIDABLE", "Agreement", "compare", "noise_floor", "relative_error"]

Array = npt.NDArray[Any]

UNDECIDABLE = 10  # times the noise floor


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
    if scale <= UNDECIDABLE * noise.max():
        scale = noise.max() / precision
        error = float(difference.max() / scale)
    suspicious = difference > rtol * scale
    wrong = difference > np.maximum(rtol * scale, UNDECIDABLE * noise)
    return Agreement(error, index, int(suspicious.sum() - wrong.sum()), not wrong.any())


def noise_floor(
    function: Callable[..., Array], inputs: Sequence[Array], rng: np.random.Generator, repeats: int = 2
) -> Array:
    """How far each entry of ``function(*inputs)`` moves when the inputs move in their last bit."""
    value = np.asarray(function(*inputs))
    floor: Array = np.zeros(value.shape)
    for _ in range(repeats):
        moved = [np.nextafter(x, np.where(rng.random(x.shape) < 0.5, -np.inf, np.inf).astype(x.dtype)) for x in inputs]
        nonzero = [np.where(x == 0, x, y) for x, y in zip(inputs, moved, strict=True)]  # zero has no last bit
        floor = np.maximum(floor, np.abs(np.asarray(function(*nonzero)) - value))
    return floor


def _difference_and_scale(actual: Array, expected: Array) -> tuple[Array, float]:
    with np.errstate(all="ignore"):
        difference = np.abs(np.asarray(actual) - expected)
        difference = np.where(np.isfinite(difference), difference, np.inf)
        scale = max(np.abs(actual).max(initial=0), np.abs(expected).max(initial=0))
    return difference, float(scale) if np.isfinite(scale) else 1.0
