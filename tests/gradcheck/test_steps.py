import warnings

import numpy as np
from helpers import each, some_of

from attention_np.gradcheck.measuring.steps import by_best_differences, by_first_differences

from .subjects import SMOOTH, UNITS, every_entry, heard, in_units, slopes_of_entries, subject_of, watched_subject_of

EPS = float(np.finfo(np.float64).eps)
LEAST = 3  # of its own last bits, which no estimate of an error can promise to get below


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


@each("steepness", [1.0, 1e3, 1e6, 1e9, 1e12])
@each("forward", [np.sin, np.tanh, np.expm1, np.arctan])
def test_at_zero_the_step_fits_however_steep_the_function_is(forward, steepness):
    subject = heard(subject_of(lambda x: forward(steepness * x), np.zeros(2)))
    found, errors = slopes_of_entries(by_best_differences, subject)
    np.testing.assert_allclose(found, steepness, rtol=1e-8)
    assert (errors <= 1e-4 * steepness).all()


def test_entries_of_very_different_size_are_measured_each_at_its_own_step():
    units = 10.0 ** np.arange(-12, 13)
    x = np.linspace(0.5, 1.2, 25) * units
    for subject in (subject_of(lambda x: np.sin(x / units), x), subject_of(lambda x: np.sin(x / units).sum(), x)):
        found, errors = slopes_of_entries(by_best_differences, heard(subject))
        exact = np.cos(x / units) / units
        error = np.abs(found - exact)
        assert (error <= 3 * errors + LEAST * EPS * np.abs(exact)).all()
        np.testing.assert_allclose(found, exact, rtol=1e-6)


@each("near", [1e-3, 1e-6, 1e-9])
@each(("forward", "power"), [(np.log, -1), (lambda x: 2 * np.sqrt(x), -0.5)])
def test_beside_entries_of_size_one_an_entry_at_the_edge_of_the_domain_is_measured_within_it(forward, power, near):
    x = np.array([near, 1.0, 2.0, 0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, errors = slopes_of_entries(by_best_differences, heard(subject_of(forward, x)))
    np.testing.assert_allclose(found, x**power, rtol=1e-8)
    assert np.isfinite(errors).all()


@each("x", [1.569949132247599, 1.57, -1.4931166849642326, 0.3])
def test_the_stairs_of_single_precision_are_not_taken_for_the_slope_where_they_are_long(x):
    subject = subject_of(lambda x: np.sin(x.astype(np.float32)).astype(float), np.array([x]))
    for seed in range(8):
        found, errors = slopes_of_entries(by_best_differences, heard(subject, seed))
        assert (np.abs(found - np.cos(x)) <= 10 * errors).all()


def test_what_last_bits_may_hide_counts_at_the_first_step_beside_any_slope():
    subject = subject_of(lambda x: np.stack([1e-3 * x[0], 1 + 2.0**-30 * x[0]]), np.array([2.0**-20, 1.0, 1.0]))
    found, errors = slopes_of_entries(by_first_differences, subject)
    assert errors[0] > np.abs(found[0] - (1e-3 + 2.0**-30)) > 2.0**-31


def test_where_the_first_step_is_coarse_a_small_entry_moves_as_far_as_the_others():
    subject = subject_of(lambda x: 1e9 + x, np.array([2.0**-3, 1.0, 1.0]))
    found = by_first_differences(subject, every_entry(subject))
    np.testing.assert_array_equal(found.scales, 2.0**-7)


def test_no_longer_step_is_tried_where_a_shorter_one_was_better():
    subject, seen = watched_subject_of(lambda x: 1e4 + np.sin(64 * x), np.array([1.0]))
    assert by_best_differences(subject, every_entry(subject)).scales == 2.0**-12
    assert max(x.max() for (x,) in seen) == 1 + 2.0**-7
