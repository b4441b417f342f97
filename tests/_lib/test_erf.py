from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from helpers import ALL, Array, assert_same_bits, each

from attention_np._lib.erf import erf, erfc, normal

RNG = np.random.default_rng(0)
REAL = np.concatenate([RNG.uniform(-26, 26, 1000), RNG.uniform(-2, 2, 1000), np.exp(RNG.uniform(-600, 0, 200))])
SOME = REAL if ALL else REAL[::5]
FUNCTIONS = [(erf, mpmath.erf), (erfc, mpmath.erfc)]


def errors(found: Array, x: Array, truth: Callable[[Any], Any]) -> Array:
    """The relative error of each number, in 50 digits."""
    with mpmath.workdps(50):
        exact = [truth(mpmath.mpmathify(number)) for number in x.tolist()]
        return np.array([float(abs(a / b - 1)) for a, b in zip(found.tolist(), exact, strict=True)])


@pytest.mark.again
@each(("function", "truth"), [*FUNCTIONS, (lambda x: normal(x)[0], mpmath.ncdf), (lambda x: normal(x)[1], mpmath.npdf)])
def test_all_digits_are_right_wherever_it_is_a_normal_number(function: Any, truth: Any) -> None:
    assert errors(function(SOME), SOME, truth).max() <= 5.5e-16


@pytest.mark.again
@each(("function", "truth"), FUNCTIONS)
def test_it_goes_on_into_the_complex_plane(function: Any, truth: Any) -> None:
    count = 400 if ALL else 80
    z = RNG.uniform(-4, 4, count) + 1j * RNG.uniform(-4, 4, count)
    assert errors(function(z), z, truth).max() <= 2e-14
    step = 2.0**-30  # what it leaves out is beyond the digits, and what it moves is a normal number
    slope = function(SOME + 1j * step).imag / step
    sign = 1 if function is erf else -1
    assert errors(slope, SOME, lambda x: sign * 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x)).max() <= 2e-15


def test_infinity_has_the_limits_and_nan_stays() -> None:
    x = np.array([-np.inf, -99999.9962, np.inf, 99999.9962, np.nan])
    assert_same_bits(erf(x), np.array([-1, -1, 1, 1, np.nan]))
    assert_same_bits(erfc(x), np.array([2, 2, 0, 0, np.nan]))
    assert_same_bits(np.array(normal(x)), np.array([[0, 0, 1, 1, np.nan], [0, 0, 0, 0, np.nan]]))


@each("dtype", [np.float32, np.complex64])
def test_single_precision_is_double_rounded(dtype: Any) -> None:
    x = REAL[:2000].astype(dtype)
    for function, _ in FUNCTIONS:
        assert_same_bits(function(x), function(x.astype(np.result_type(dtype, float))).astype(dtype))
