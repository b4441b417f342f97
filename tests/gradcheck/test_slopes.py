import tracemalloc
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import each, some_of
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck.measuring.slopes import (
    COMPLEX_STEP,
    COMPLEX_STEP_IN_SINGLE,
    SCALES,
    NotAnalyticError,
    Reach,
    by_best_differences,
    by_complex_step,
    by_differences,
    extrapolated,
    reach_of,
)
from attention_np.gradcheck.measuring.subject import along, flattened, rows_at_once, rows_in, sizes

from .programs import real_only, softmax
from .subjects import every_entry, heard, subject_of, watched_subject_of

EPS = float(np.finfo(np.float64).eps)
LEAST = 3  # of its own last bits, which no estimate of an error can promise to get below
SMOOTH = {
    "sin": (np.sin, np.cos),
    "a steep sin": (lambda x: np.sin(16 * x), lambda x: 16 * np.cos(16 * x)),
    "exp": (np.exp, np.exp),
    "log": (np.log, lambda x: 1 / x),
    "sqrt": (np.sqrt, lambda x: 0.5 / np.sqrt(x)),
    "a cube": (lambda x: x**3, lambda x: 3 * x**2),
    "the reciprocal": (lambda x: 1 / x, lambda x: -1 / x**2),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "the logistic function": (lambda x: 1 / (1 + np.exp(-x)), lambda x: 0.5 / (1 + np.cosh(x))),
    "a Gaussian": (lambda x: np.exp(-x * x), lambda x: -2 * x * np.exp(-x * x)),
    "Runge's function": (lambda x: 1 / (1 + 25 * x * x), lambda x: -50 * x / (1 + 25 * x * x) ** 2),
    "arctan": (np.arctan, lambda x: 1 / (1 + x * x)),
    "a line far up": (lambda x: x + 1e9, np.ones_like),
}
UNITS = [2.0**-300, 2.0**-10, 1.0, 2.0**40]  # powers of two, so that dividing by them rounds nothing
points = np.concatenate([np.linspace(0.2, 2.9, 25), [0.013, 0.07, 1.0]])


def in_units(what, unit):
    """A smooth function that takes its argument in other units, at a point; and its slopes, in long double."""
    forward, derivative = SMOOTH[what]
    exact = derivative(points.astype(np.longdouble)) / unit
    return heard(subject_of(lambda x: forward(x / unit), points * unit)), exact


def slopes_of_entries(method, subject, *args):
    """The slopes and errors by each entry, in place of those along a step of its size."""
    found = method(subject, every_entry(subject), *args)
    size = sizes(subject.x).ravel()
    return found.values[:, 0] / size, found.errors / size


@each("shape", [(), (1,), (3,), (2, 3), (0,)])
@each("batched", [False, True])
def test_outputs_are_rows_one_for_each_value_of_the_input_which_is_given_as_an_array(shape, batched):
    x, moved = np.ones(shape), np.random.default_rng(0).standard_normal((4, *shape))
    subject, seen = watched_subject_of(lambda x: 2.0 * x, x, batched=batched)
    np.testing.assert_array_equal(subject.outputs(moved), 2 * moved.reshape(4, x.size))
    assert all(len(arrays) == 1 for arrays in seen)


def test_a_batch_is_one_call_and_no_batch_a_call_for_each_move():
    for batched, expected in ((False, [((2, 3), (3, 4))] * 5), (True, [((5, 2, 3), (3, 4))])):
        subject, seen = watched_subject_of(np.matmul, np.ones((2, 3)), np.ones((3, 4)), batched=batched)
        rows = subject.outputs(np.arange(30.0).reshape(5, 2, 3))
        assert [(x.shape, y.shape) for x, y in seen] == expected
        assert rows[:, 0].tolist() == [3, 21, 39, 57, 75]


def test_without_a_batch_a_function_may_use_the_memory_of_its_output_again():
    memory = np.zeros(2)

    def forward(x, y):
        np.multiply(x, y, out=memory)
        return memory

    subject = subject_of(forward, np.ones(2), np.full(2, 3.0))
    np.testing.assert_array_equal(subject.outputs(np.array([[1.0, 2.0], [3.0, 4.0]])), [[3, 6], [9, 12]])


def test_an_output_whose_shape_depends_on_the_input_is_refused():
    subject = subject_of(lambda x: x[x > 0], np.ones(3))
    message = r"^forward must return arrays of one shape, not \(3,\) and \(2,\)$"
    with pytest.raises(ValueError, match=message):
        subject.outputs(np.array([[1.0, -1.0, 1.0]]))


@each("dtype", ["float32", "float64"])
@each("batched", [False, True])
def test_where_a_function_raises_its_values_are_nan_and_elsewhere_what_they_are(batched, dtype):
    def forward(x):
        if (x < 0).any():
            raise ValueError("negative")
        return np.sqrt(x)

    subject = subject_of(forward, np.ones(2, dtype), batched=batched)
    found = subject.values(np.array([[1.0, 4.0], [-1.0, 4.0], [9.0, 16.0]], dtype))
    np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan], [3, 4]])
    assert found.dtype == dtype


@each("batched", [False, True])
def test_all_inputs_are_given_in_the_dtype_of_the_one_that_moves_or_in_their_own_wider_one(batched):
    subject = subject_of(lambda x, y: x * y, np.ones(2), np.full(2, 3, np.float32), batched=batched)
    assert subject.outputs(np.ones((3, 2)) * 1j).dtype == np.complex128
    assert subject.outputs(np.ones((3, 2))).dtype == np.float64
    subject = subject_of(lambda x, y: x * y, *np.ones((2, 2), np.float32), batched=batched)
    assert subject.outputs(np.ones((3, 2), np.float32)).dtype == np.float32
    assert subject.outputs(np.ones((3, 2)) + 0j).dtype == np.complex64
    subject = subject_of(lambda x, y: y + 0 * x, np.ones(2, np.float32), np.array([0.1, 0.3]), batched=batched)
    for dtype in (np.float32, np.complex64):
        np.testing.assert_array_equal(subject.outputs(np.ones((1, 2), dtype)), [[0.1, 0.3]])


@each(
    ("x", "expected"),
    [
        (np.zeros(3), [1, 1, 1]),
        ([0.0, -3.0, 5.0], [4, 4, 4]),  # as typical: 4, the median of 3 and 5
        ([1e-12, 1.0, 1.5, 100.0], [1, 1, 1, 64]),
        ([np.nan, np.inf, -np.inf, 8.0], [8, 8, 8, 8]),
        ([np.nan], [1]),
        ([5e-324], [1]),
        (3.0, 2),
        (np.zeros((0, 2)), np.zeros((0, 2))),
    ],
)
def test_a_size_is_never_that_of_a_zero_or_of_what_is_not_finite(x, expected):
    np.testing.assert_array_equal(sizes(np.asarray(x)), expected)


@each("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_sizes_and_directions_have_the_dtype_of_the_input(dtype):
    x = np.array([[1.5, 0.0], [-6.0, 3.0]], dtype)
    assert sizes(x).dtype == dtype
    directions = along(x, np.array([2, 1]))
    assert directions.dtype == dtype
    np.testing.assert_array_equal(directions, [[[0, 0], [4, 0]], [[0, 2], [0, 0]]])


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


@each("x", [1.569949132247599, 1.57, -1.4931166849642326, 0.3])
def test_the_stairs_of_single_precision_are_not_taken_for_the_slope_where_they_are_long(x):
    subject = subject_of(lambda x: np.sin(x.astype(np.float32)).astype(float), np.array([x]))
    for seed in range(8):
        found, errors = slopes_of_entries(by_best_differences, heard(subject, seed))
        assert (np.abs(found - np.cos(x)) <= 10 * errors).all()


@each(
    ("forward", "x", "u"),
    [
        (softmax, [60.0, 0.0, 1.0], [3.0, 1.0, 1.0]),  # the first lacks exp(-59), and its slope is that
        (lambda x: 1 - np.tanh(x), [30.0], [1.0]),  # rounded to zero, it loses the last bits of what it was
    ],
)
def test_a_saturated_output_loses_its_last_bits_of_the_slope(forward, x, u):
    subject = subject_of(forward, np.array(x), cotangent=u)
    assert subject.output[0] in (0, 1)
    directions = every_entry(subject)
    reach = reach_of(subject, directions)
    for found in (by_complex_step(subject, directions, reach=reach), by_best_differences(subject, directions)):
        assert (found.lost >= u[0] * EPS).all()
        assert (found.lost <= 100 * EPS).all()


@each("memory", [1, 10**4, 10**6, 2**28])
def test_as_many_rows_fit_as_there_is_memory_for_four_complex_arrays_each_and_a_power_of_two_of_them(memory):
    rows = rows_in(memory, subject_of(lambda x: np.concatenate([x, x]), np.ones(100)))
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * 64 * 300 <= memory
    assert 2 * rows * 64 * 300 > memory


def test_what_a_function_takes_beside_its_inputs_counts_in_a_batch():
    def hungry(x):
        return np.multiply.outer(x, np.ones(1000)).sum(axis=-1)

    x, memory = np.ones(100), 2**26
    alone, batched = (rows_in(memory, subject_of(hungry, x, batched=batched)) for batched in (False, True))
    assert batched & (batched - 1) == 0
    assert batched < alone
    subject = subject_of(hungry, x, batched=True)
    tracemalloc.start()
    subject.outputs(np.ones((batched, 100), complex))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory / 4 <= peak <= memory


@each("tracing", [False, True])
def test_measuring_memory_leaves_whoever_else_measures_it_alone(tracing):
    subjects = [subject_of(forward, np.ones(10), batched=True) for forward in (np.sin, twice_real_only)]
    for _ in range(2):  # whatever is done once is done by then
        alone = [rows_in(10**6, subject) for subject in subjects]
    if tracing:
        tracemalloc.start()
        np.ones(10**6)  # somebody else's peak
    try:
        for subject, rows in zip(subjects, alone, strict=True):
            assert rows_in(10**6, subject) == rows > 1
            assert tracemalloc.is_tracing() == tracing
    finally:
        tracemalloc.stop()


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


def test_in_no_direction_the_complex_step_moves_an_entry_by_much_of_itself():
    x = np.array([1.0, 3.0 * 2.0**-20, 0.0, 4.0])
    subject = subject_of(lambda x: 2 * x, x)
    directions = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [64, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]], float)
    found = by_complex_step(subject, directions)
    np.testing.assert_array_equal(found.scales / COMPLEX_STEP, [1, 2.0**-19, 1, 2.0**-6, 1, 1])


twice_real_only = real_only(lambda x: np.concatenate([x, x], axis=-1))


def test_a_batch_that_cannot_be_tried_is_held_to_take_four_complex_arrays_of_input_and_output():
    subject = subject_of(twice_real_only, np.ones(100), batched=True)
    for memory in (64 * 300 * 8, 64 * 300 * 8 - 1):
        assert rows_in(memory, subject) == (8 if memory == 64 * 300 * 8 else 4)
    assert rows_at_once(10**6, replace(subject, rows=7)) == 7
    assert rows_at_once(64 * 300 * 8, replace(subject, rows=7, batched=False)) == 8
    nothing = subject_of(lambda x: x[..., :0] * 1.0, np.ones((0,)))  # of which any number of rows fit
    assert [rows_in(memory, nothing) for memory in (1, 10**6, 2**62)] == [1, 2**19, 2**30]
    assert rows_in(10**6, subject_of(twice_real_only, np.ones((0,)), batched=True)) == 2**19


@each(("rows", "calls"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (9, [5])])
def test_no_more_rows_go_through_at_once_than_may(rows, calls):
    subject, seen = watched_subject_of(lambda x: 2 * x, np.ones(3), batched=True)
    moved = np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(replace(subject, rows=rows).outputs(moved), 2 * moved)
    assert [len(x) for (x,) in seen] == calls


def test_an_input_that_goes_with_another_gets_the_new_axis_before_those_of_the_output():
    subject, seen = watched_subject_of(np.add, np.ones((4, 2, 3)), np.arange(3.0), batched=True)
    moved = np.random.default_rng(0).standard_normal((5, 4, 2, 3))
    np.testing.assert_array_equal(replace(subject, with_it=(1,)).outputs(moved), flattened(moved + np.arange(3)))
    assert [(x.shape, bias.shape) for x, bias in seen] == [((5, 4, 2, 3), (5, 1, 1, 3))]
