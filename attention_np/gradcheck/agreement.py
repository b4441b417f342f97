"""When two arrays agree: the one definition that the harness, the tests and the benchmarks use.

*The normwise relative error* is the largest difference over the largest magnitude that takes part. It states claims
such as "agrees to 1e-13".

*The noise floor* of an entry is what rounding, and the method of differentiation, can be blamed for;
:mod:`attention_np.gradcheck.measuring.noise` estimates it. A difference above ten times its floor is an error, however
small the entry is beside others. Below, the entry holds if the two values agree to the resolution that the method is
meant to have, and is undecided if they do not: a residue of terms that cancelled, too coarse to see anything in.

Derived in ``derivations/gradcheck.md``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ADJOINT_ULPS",
    "CLEARLY_APART",
    "HOLDS",
    "UNCHECKED",
    "UNDECIDABLE",
    "UNDECIDED",
    "WRONG",
    "judge",
    "moved",
    "normwise",
    "relative_error",
]

Array = npt.NDArray[Any]

UNDECIDABLE = 10  # times the noise floor (gradcheck.56)
ADJOINT_ULPS = 4.5  # of <u, J v> against <J^T u, v>: 1e-15 in float64
CLEARLY_APART = 1e-6  # the adjoint error of one input that is to blame
HOLDS, WRONG, UNDECIDED, UNCHECKED = range(4)  # the verdicts on an entry


def relative_error(actual: Array, expected: Array) -> tuple[float, tuple[int, ...]]:
    """The largest difference over the largest magnitude of either, and the index of that difference.

    Examples
    --------
    >>> import numpy as np
    >>> error, index = relative_error(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.004]))
    >>> print(f"{error:.3g} at {index}")
    0.000999 at (2,)
    """
    with np.errstate(all="ignore"):
        difference = np.abs(np.asarray(actual) - expected)
        scale = float(max(np.abs(actual).max(initial=0), np.abs(expected).max(initial=0)))
    if not difference.size:
        return 0.0, ()
    difference = np.where(np.isfinite(difference), difference, np.inf)
    index = np.unravel_index(int(difference.argmax()), difference.shape)
    largest = float(difference[index])
    relative = largest / (scale if np.isfinite(scale) else 1.0) if largest else 0.0  # (gradcheck.45)
    return relative, tuple(map(int, index))


def judge(actual: Array, expected: Array, floor: Array, resolution: float) -> Array:
    """The verdict on each entry: `HOLDS`, `WRONG`, or `UNDECIDED`, also where one of the two is not finite.

    Parameters
    ----------
    actual, expected, floor : ndarray
        Of one shape; the noise floor of each entry of the difference.
    resolution : float
        The relative error that can be seen in an entry that is not the residue of a cancellation.

    Examples
    --------
    >>> import numpy as np
    >>> right = np.array([1.0, 1e-9, 1e-17])
    >>> judge(right * [1 + 1e-9, 1 - 1e-9, -1], right, np.array([1e-16, 1e-25, 1e-17]), 1e-10)
    array([1, 1, 2], dtype=int8)
    """
    with np.errstate(all="ignore"):
        difference = np.abs(actual - expected)
        wrong = difference > UNDECIDABLE * floor
        fine = difference <= resolution * np.maximum(np.abs(actual), np.abs(expected))  # (gradcheck.58)
    return np.where(wrong, WRONG, np.where(fine, HOLDS, UNDECIDED)).astype(np.int8)


def normwise(actual: Array, expected: Array, floor: Array, precision: float) -> float:
    """The normwise relative error; of arrays that are nothing but noise, relative to the terms that cancelled.

    Such an array is zero as far as anybody can tell. The magnitude that takes part is then that of the terms, which the
    floor tells: floor / precision, with `precision` the relative error that one operation makes.
    """
    error, _ = relative_error(actual, expected)
    largest = np.maximum(np.abs(actual), np.abs(expected))
    if np.isfinite(error) and error and (largest <= UNDECIDABLE * floor).all() and np.isfinite(floor).all():
        return float(np.abs(actual - expected).max() / (floor.max() / precision))
    return error


def moved(x: Array, rng: np.random.Generator, ulps: int) -> Array:
    """`x`, with each entry moved up or down by one to so many units in its last place; zero has none."""
    units = rng.integers(1, ulps, x.shape, endpoint=True) * rng.choice([-1, 1], x.shape)
    with np.errstate(all="ignore"):
        y = x + units.astype(x.dtype) * np.spacing(x)
    return np.where(np.isfinite(y) & (x != 0), y, x)
