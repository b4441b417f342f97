"""Slopes by the complex step and by differences: exact, or known to be off by no more than the error that is told."""

from fractions import Fraction

import numpy as np
import pytest
from helpers import each, some_of
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck.slopes.methods import (
    COMPLEX_STEP,
    by_best_differences,
    by_complex_step,
    by_differences,
    extrapolated,
)
from attention_np.gradcheck.slopes.moves import LONGEST, sizes

from ..subjects import SMOOTH, UNITS, every_entry, heard, in_units, slopes_of_entries, subject_of

EPS = float(np.finfo(np.float64).eps)
STEPS = [LONGEST * 2.0 ** (-5 * k) for k in range(10)]
LEAST = 3  # of its own last bits, which no estimate of an error can promise to get below


@each("unit", UNITS)
@each("what", SMOOTH)
def test_the_complex_step_is_exact_but_for_rounding(what, unit):
    subject, exact = in_units(what, unit)
    found, errors = slopes_of_entries(by_complex_step, subject)
    assert (np.abs(found - exact) <= 12 * EPS * np.abs(exact)).all()
    assert (errors <= 2 * EPS * np.abs(exact)).all()


def test_in_no_direction_the_complex_step_moves_an_entry_by_much_of_itself():
    subject = subject_of(lambda x: 2 * x, np.array([1.0, 3.0 * 2.0**-20, 0.0, 4.0]))
    directions = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [64, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]], float)
    found = by_complex_step(subject, directions)
    np.testing.assert_array_equal(found.steps / COMPLEX_STEP, [1, 2.0**-19, 1, 2.0**-6, 1, 1])


def test_outputs_that_do_not_count_leave_no_error_and_those_that_do_not_move_are_told():
    subject = subject_of(lambda x: np.stack([x, 2 * x]), np.array(1.0), cotangent=[1.0, 0.0])
    assert by_complex_step(subject, every_entry(subject)).errors == pytest.approx(EPS, rel=1e-12, abs=0)
    first = subject_of(lambda x: x[:1] + 1e9, np.array([1.0, 1.0]))
    for method in (by_complex_step, by_best_differences, lambda *both: by_differences(*both, LONGEST)):
        assert method(first, every_entry(first)).responsive.tolist() == [True, False]


quintic = st.lists(st.fractions(-100, 100, max_denominator=100), min_size=6, max_size=6)


def central_differences(coefficients, h):
    """Those of a polynomial at zero, at the steps h, h/2 and h/4: exact if h is a fraction."""

    def value(t):
        return sum(c * t**power for power, c in enumerate(coefficients))

    return [np.array([(value(step) - value(-step)) / (2 * step)], object) for step in (h, h / 2, h / 4)]


@given(quintic, st.fractions(-100, 100), st.fractions(Fraction(1, 1000), 1000))
def test_extrapolation_is_exact_for_quintics_and_leaves_a_sixty_fourth_of_a_seventh_power(c, c7, h):
    best, change = extrapolated(central_differences(c, h))
    assert best[0] == c[1]
    assert change[0] == abs(c[5]) * h**4 / 4  # (gradcheck.28)
    best, _ = extrapolated(central_differences([*c, 0, c7], h))
    assert best[0] - c[1] == c7 * h**6 / 64  # (gradcheck.29)


@each("unit", *some_of(UNITS, 3))
@each("what", SMOOTH)
def test_the_error_of_differences_is_below_its_estimate_at_every_step(what, unit):
    subject, exact = in_units(what, unit)
    for step in STEPS:
        found, errors = slopes_of_entries(by_differences, subject, step)
        known = np.isfinite(errors) & (step * sizes(subject.x) < subject.x)  # within the domain of each function
        error = np.abs(found - exact)
        assert (error <= 3 * errors + LEAST * EPS * np.abs(exact))[known].all(), step


def test_a_kink_within_the_step_is_in_the_error():
    x = np.array([1.0 + 2.0**-9, 1.0 - 2.0**-8])
    subject = subject_of(lambda x: np.maximum(x, 1) * 3, x)
    for step in (2.0**-7, 2.0**-8):
        found, errors = slopes_of_entries(by_differences, subject, step)
        assert (np.abs(found - [3, 0]) <= errors).all(), step
        assert (errors >= 0.1).any()
    near = slopes_of_entries(by_differences, subject, 2.0**-10)[1]
    assert (near <= 1e-11).all()


def test_an_output_that_does_not_move_may_hide_a_slope_below_its_last_bit_if_it_depends_on_the_entry():
    def error_beside(of_an_output):
        subject = subject_of(lambda x: np.stack([1e-3 * x[0], 2.0**10 + of_an_output(x)]), np.ones(2))
        found, errors = slopes_of_entries(by_differences, subject, 2.0**-20)
        assert found[0] == pytest.approx(1e-3, rel=1e-9)
        return errors[0]

    assert error_beside(lambda x: 2.0**-26 * x[0]) >= 2.0**-26
    assert error_beside(lambda x: x[1]) < 2e-12


@each("unit", *some_of(UNITS, 3))
@each("what", SMOOTH)
def test_the_best_differences_know_nine_digits_and_their_own_error(what, unit):
    subject, exact = in_units(what, unit)
    found, errors = slopes_of_entries(by_best_differences, subject)
    error = np.abs(found - exact)
    assert (error <= 3 * errors + LEAST * EPS * np.abs(exact)).all()
    if what == "a line far up":  # where the outputs are a billion times larger than what moves
        assert (error <= 1e-5 * np.abs(exact)).all()
    else:
        assert (error <= 1e-9 * np.abs(exact)).all()
        assert (errors <= 1e-8 * np.abs(exact)).all()


@each("steepness", [1.0, 1e3, 1e6, 1e9])
@each("forward", [np.sin, np.tanh, np.expm1, np.arctan])
def test_at_zero_the_step_fits_however_steep_the_function_is(forward, steepness):
    subject = heard(subject_of(lambda x: forward(steepness * x), np.zeros(2)))
    with np.errstate(all="ignore"):
        found, errors = slopes_of_entries(by_best_differences, subject)
    np.testing.assert_allclose(found, steepness, rtol=1e-8)
    assert (errors <= 1e-4 * steepness).all()
