from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import each, some_of
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck.measuring.reach import Reach, reach_of
from attention_np.gradcheck.measuring.slopes import (
    COMPLEX_STEP,
    COMPLEX_STEP_IN_SINGLE,
    NotAnalyticError,
    by_complex_step,
    by_differences,
    extrapolated,
)
from attention_np.gradcheck.measuring.subject import SCALES, along, sizes

from .subjects import SMOOTH, UNITS, every_entry, in_units, slopes_of_entries, subject_of

EPS = float(np.finfo(np.float64).eps)
LEAST = 3  # of its own last bits, which no estimate of an error can promise to get below


@each("unit", UNITS)
@each("what", SMOOTH)
def test_the_complex_step_is_exact_but_for_rounding(what, unit):
    subject, exact = in_units(what, unit)
    found, errors = slopes_of_entries(by_complex_step, subject)
    assert (np.abs(found - exact) <= 12 * EPS * np.abs(exact)).all()
    assert (errors <= 2 * EPS * np.abs(exact)).all()


@each("unit", [2.0**-40, 1.0, 2.0**40])
def test_the_complex_step_in_single_precision_is_as_exact_as_that_is(unit):
    x, narrow = np.linspace(-2, 2, 9, dtype=np.float32), np.float32(unit)
    subject = subject_of(lambda x: np.sin(x / narrow), x * narrow)
    found, errors = slopes_of_entries(by_complex_step, subject)
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(found * unit, np.cos(x.astype(float)), rtol=2 * eps)
    assert (errors * unit <= 3 * eps).all()


@each(
    ("forward", "message"),
    [
        (np.abs, "^forward turns complex arrays into float64, so the complex step does not apply: use central$"),
        (np.floor, r"^forward refuses complex arrays, so the complex step does not apply: use central \(ufunc 'floor'"),
    ],
)
def test_a_complex_step_that_cannot_be_taken_says_so(forward, message):
    subject = subject_of(forward, np.array([0.5, 1.5]))
    with pytest.raises(NotAnalyticError, match=message):
        by_complex_step(subject, every_entry(subject))


quintic = st.lists(st.fractions(-100, 100, max_denominator=100), min_size=6, max_size=6)


def central_differences(coefficients, h):
    """Those of a polynomial at zero, at the steps h, h/2 and h/4: exact if h is a fraction."""

    def value(t):
        return sum(c * t**power for power, c in enumerate(coefficients))

    steps = [h, h / 2, h / 4]
    return [np.array([(value(step) - value(-step)) / (2 * step)], object) for step in steps]


@given(quintic, st.fractions(Fraction(1, 1000), 1000))
def test_extrapolation_is_exact_for_quintics_and_its_estimate_bounds_what_the_columns_before_are_off_by(c, h):
    column = central_differences(c, h)
    best, change = extrapolated(column)
    assert best[0] == c[1]
    assert change[0] == abs(c[5]) * h**4 / 4  # (gradcheck.28)


@given(quintic, st.fractions(-100, 100), st.fractions(Fraction(1, 1000), 1000))
def test_of_a_seventh_power_extrapolation_leaves_a_sixty_fourth(c, c7, h):
    best, _ = extrapolated(central_differences([*c, 0, c7], h))
    assert best[0] - c[1] == c7 * h**6 / 64  # (gradcheck.29)


@each("unit", *some_of(UNITS, 3))
@each("what", SMOOTH)
def test_the_error_of_differences_is_below_its_estimate_at_every_step(what, unit):
    subject, exact = in_units(what, unit)
    reach = reach_of(subject, every_entry(subject))
    for scale in SCALES:
        found, errors = slopes_of_entries(by_differences, subject, scale, reach)
        known = np.isfinite(errors) & (scale * sizes(subject.x) < subject.x)  # within the domain of each function
        error = np.abs(found - exact)
        assert (error <= 3 * errors + LEAST * EPS * np.abs(exact))[known].all(), scale


@each(("dtype", "scales"), [("float64", SCALES[:-2]), ("float32", SCALES[:2])])
def test_a_line_has_its_slope_exactly_although_its_argument_is_rounded(dtype, scales):
    for scale in scales:
        subject = subject_of(lambda x: x * 1.0, np.array([0.1, 0.7, -1.3, 3.9], dtype))
        np.testing.assert_allclose(slopes_of_entries(by_differences, subject, scale)[0], 1, rtol=4 * EPS)


def test_each_move_has_its_own_scale():
    x, scales = np.full(3, 1.1), np.array([2.0**-2, 2.0**-7, 2.0**-30])
    subject = subject_of(lambda x: x**7, x)
    found = by_differences(subject, every_entry(subject), scales)
    np.testing.assert_array_equal(found.scales, scales)
    for k, scale in enumerate(scales):
        alone = by_differences(subject, along(x, np.array([k])), scale)
        assert alone.values[0] == found.values[k]
        assert alone.errors[0] == found.errors[k]
    error = np.abs(found.values[:, 0] - 7 * np.longdouble(1.1) ** 6)
    assert error[0] == pytest.approx(2.0**-12 / 64, rel=1e-6)  # (gradcheck.29)
    assert error[1] < 1e-11 < error[2]


@each("what", [np.nan, np.inf])
def test_a_slope_that_is_not_finite_has_an_infinite_error_and_no_other_has(what):
    x = np.array([1.0, 1.0])
    subject = subject_of(lambda x: np.where(x > 1, what, x).sum(keepdims=True), x)
    reach = Reach(np.ones((2, 1), bool), np.ones((2, 1)))
    assert (by_differences(subject, every_entry(subject), 0.5, reach).errors == np.inf).all()
    assert (by_differences(subject, every_entry(subject), 2.0**-57).errors == np.inf).all()  # rounding swallows it
    there = subject_of(lambda x: np.where(x.real > 1, np.nan * x, x), x).at((np.array([0.5, 2.0]),), np.ones((1, 2)))
    assert (by_complex_step(there, every_entry(there)).errors == np.inf).all()  # both outputs are summed
    noisy = replace(subject_of(lambda x: x * 1.0, x), noise=np.array([np.inf, 0.0]))
    errors = by_differences(noisy, every_entry(noisy), 0.5).errors
    np.testing.assert_array_equal(np.isinf(errors), [True, False])


@each(
    ("x", "dtype", "step"),
    [
        (1.0, "float32", COMPLEX_STEP_IN_SINGLE),
        (1.0, "float64", COMPLEX_STEP),
        (1.0, "longdouble", COMPLEX_STEP),
        (1.5 * 2.0**-790, "float64", COMPLEX_STEP),
        (1.5 * 2.0**-810, "float64", COMPLEX_STEP_IN_SINGLE),
    ],
)
def test_the_complex_step_is_longer_in_single_precision_and_for_entries_close_to_the_end_of_the_range(x, dtype, step):
    subject = subject_of(lambda x: 2 * x, np.array([x, 1.0, 1.0], dtype))
    found = by_complex_step(subject, every_entry(subject))
    relative = 2.0 ** np.floor(np.log2(x))  # of the entry, to those beside it
    usual = COMPLEX_STEP if x != 1 else step
    np.testing.assert_array_equal(found.scales, [step * relative, usual, usual])
    np.testing.assert_array_equal(found.values[:, 0], [2, 2, 2])


def test_an_output_that_does_not_count_leaves_no_error():
    subject = subject_of(lambda x: np.stack([x, 2 * x]), np.array(1.0), cotangent=[1.0, 0.0])
    assert by_complex_step(subject, every_entry(subject)).errors == EPS


def test_in_no_direction_the_complex_step_moves_an_entry_by_much_of_itself():
    x = np.array([1.0, 3.0 * 2.0**-20, 0.0, 4.0])
    subject = subject_of(lambda x: 2 * x, x)
    directions = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [64, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]], float)
    found = by_complex_step(subject, directions)
    np.testing.assert_array_equal(found.scales / COMPLEX_STEP, [1, 2.0**-19, 1, 2.0**-6, 1, 1])
