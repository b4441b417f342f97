"""Functions that go to zero like an exponential, with all their digits there.

The exponential of a number x that is rounded is wrong by as many units in the last place as x is large: of the sigmoid
of ``1.702 * x`` three digits are lost before it is zero. So a number that is computed comes as a sum, of terms that are
exact and of a small rest, and its exponential is a product.

All is arithmetic and exponentials, so it goes for complex numbers too, as the analytic continuation, and for arrays of
any kind that knows these, such as numbers that carry a slope.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

Numbers: TypeAlias = Any  # an array, or what behaves like one
Function: TypeAlias = Callable[[Numbers], Any]

FAR = 1e5  # where all that goes to zero like an exponential is zero, in every precision
POWERS_FAR = 200.0  # the same for that of a square or a cube, of which a rest is still small there
PART = 2**14  # numbers of a large array that are worked on at once: ten arrays of so many fit a second-level cache
GRID = 128  # multiples of its inverse have few digits, so that their products are exact


def in_double(function: Function) -> Function:
    """`function`, of numbers with fewer digits than those of double precision, computed in that."""

    @wraps(function)
    def in_its_own(x: Numbers) -> Numbers:
        dtype = np.result_type(x.dtype, np.float64)
        if x.dtype == dtype:
            return function(x)
        results = function(x.astype(dtype))
        return tuple(y.astype(x.dtype) for y in results) if isinstance(results, tuple) else results.astype(x.dtype)

    return in_its_own


def in_parts(function: Function) -> Function:
    """`function`, which gives several numbers for each one, a part of a large array at a time: twice as fast."""

    @wraps(function)
    def part_by_part(x: Numbers) -> Any:
        if type(x) is not np.ndarray or x.size <= PART:
            return function(x)
        numbers = x.ravel()
        results = [np.empty(numbers.size, y.dtype) for y in function(numbers[:1])]
        for start in range(0, numbers.size, PART):
            part = slice(start, start + PART)
            for result, y in zip(results, function(numbers[part]), strict=True):
                result[part] = y
        return tuple(result.reshape(x.shape) for result in results)

    return part_by_part


def bounded(x: Numbers, far: float = FAR) -> Numbers:
    """`x`, with `far` in the place of what is beyond it: of infinity, which must not meet a zero."""
    return np.where(x.real > far, far, np.where(x.real < -far, -far, x))


def on_grid(x: Numbers) -> Numbers:
    """A constant near x, of few digits."""
    return np.rint(GRID * x.real) / GRID


def sigmoids(*terms: Numbers) -> tuple[Numbers, Numbers]:
    """The sigmoid of the sum of `terms`, and one less that, which is the sigmoid of minus the sum."""
    left = sum(term.real for term in terms) < 0
    small: Numbers = 1  # the exponential of minus the modulus
    for term in terms:
        small = small * np.exp(np.where(left, term, -term))
    return np.where(left, small, 1) / (1 + small), np.where(left, 1, small) / (1 + small)


def exp_of_minus_square(x: Numbers, factor: float) -> Numbers:
    """The exponential of ``-factor * x * x``, for a power of two as `factor`."""
    x = bounded(x, POWERS_FAR)
    h = np.where(np.abs(x.real) < 1, 0, on_grid(x))  # a square below one may be rounded
    return np.exp(-factor * h * h) * np.exp(-factor * (x - h) * (x + h))  # (activation.33)


def cubic_terms(x: Numbers, linear: Fraction, cubic: Fraction = Fraction(0)) -> tuple[Numbers, ...]:
    """Terms whose sum is ``linear * x + cubic * x**3``; the last one is small."""
    x = bounded(x, POWERS_FAR if cubic else FAR)
    h = on_grid(x)
    (a, of_a), (b, of_b) = _split(linear), _split(cubic)
    rest = of_a * h + of_b * h * h * h + (x - h) * (float(linear) + float(cubic) * (x * x + x * h + h * h))
    return (a * h, b * h * h * h, rest) if cubic else (a * h, rest)  # (activation.34)


def _split(number: Fraction) -> tuple[float, float]:
    """A number of few digits, and what it lacks."""
    few = Fraction(round(number * 2**16), 2**16)
    return float(few), float(number - few)


def log1p(x: Numbers) -> Numbers:
    """The logarithm of ``1 + x``, for real parts from zero on: NumPy's own rounds small complex numbers away.

    The sum y is rounded, but ``log(y) / (y - 1)`` hardly moves with it.
    """
    y = 1 + x
    tiny = modulus(x) < np.finfo(x.dtype).eps  # where it is x
    return np.where(tiny, x, x * (np.log(y) / np.where(tiny, 1, y - 1)))


def modulus(x: Numbers) -> Numbers:
    """The modulus of `x`, of which no derivative is taken: a number that carries a slope need not be complex."""
    return np.hypot(x.real, getattr(x, "imag", 0))
