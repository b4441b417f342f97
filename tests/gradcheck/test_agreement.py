import numpy as np
import pytest
from helpers import each
from hypothesis import example, given
from hypothesis import strategies as st

from attention_np.gradcheck.agreement import (
    HOLDS,
    UNCHECKED,
    UNDECIDABLE,
    UNDECIDED,
    WRONG,
    judge,
    moved,
    normwise,
    relative_error,
)

EPS = float(np.finfo(np.float64).eps)
numbers = st.floats(-1e100, 1e100, allow_subnormal=False)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


@given(pairs)
def test_the_relative_error_is_the_largest_difference_over_the_largest_magnitude(both):
    a, b = np.array(both).T
    error, index = relative_error(a, b)
    difference, magnitude = max(abs(x - y) for x, y in both), max(max(abs(x), abs(y)) for x, y in both)
    assert error == (difference / magnitude if difference else 0)
    assert abs(a - b)[index] == difference
    assert relative_error(b, a) == (error, index)


@each("scale", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_the_relative_error_does_not_depend_on_the_scale(scale):
    error, index = relative_error(
        np.array([[1.0, -2.0], [4.0, 0.0]]) * scale, np.array([[1.0, -2.0], [3.0, 0.0]]) * scale
    )
    assert error == pytest.approx(0.25, rel=1e-15)
    assert index == (1, 0)


@each("shape", [(0,), (3, 0), (0, 0, 2)])
def test_empty_arrays_and_zeros_agree_and_scalars_have_an_empty_index(shape):
    empty = np.zeros(shape)
    assert relative_error(empty, empty) == (0.0, ())
    assert normwise(empty, empty, empty, EPS) == 0
    assert judge(empty, empty, empty, 1e-10).shape == shape
    assert relative_error(np.zeros(3), np.zeros(3)) == (0.0, (0,))
    assert relative_error(np.array(2.0), np.array(1.0)) == (0.5, ())


@each("strange", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_agrees_not_even_with_itself(strange):
    ordinary, other = np.array([1.0, 2.0, 3.0]), np.array([1.0, strange, 3.0])
    for a, b in ((ordinary, other), (other, ordinary), (other, other)):
        assert relative_error(a, b) == (np.inf, (1,))
        assert normwise(a, b, np.full(3, 1e300), EPS) == np.inf


@each(
    ("times_the_floor", "verdict"),
    [(0.0, HOLDS), (0.5, UNDECIDED), (9.9, UNDECIDED), (10.1, WRONG), (1e6, WRONG), (-9.9, UNDECIDED), (-10.1, WRONG)],
)
def test_an_entry_is_wrong_above_ten_times_its_floor_and_undecided_below(times_the_floor, verdict):
    assert UNDECIDABLE == 10
    expected = np.array([1.0, 0.5, -0.25])
    actual = expected + np.array([0.0, times_the_floor * 1e-6, 0.0])
    np.testing.assert_array_equal(judge(actual, expected, np.full(3, 1e-6), 1e-10), [HOLDS, verdict, HOLDS])


@each("size", [1e-30, 1.0, 1e30])
def test_an_entry_holds_if_it_agrees_to_the_resolution_of_its_own_size_whatever_the_noise(size):
    expected, floor = np.array([1.0, size, -size]), np.full(3, np.inf)
    np.testing.assert_array_equal(judge(expected * (1 + 0.9e-7), expected, floor, 1e-7), [HOLDS] * 3)
    np.testing.assert_array_equal(judge(expected * (1 + 1.1e-7), expected, floor, 1e-7), [UNDECIDED] * 3)


@each(
    ("actual", "expected", "floor", "resolution", "verdict"),
    [
        ([0.0, 0.0], [1e-9, 0.0], 1e-20, 1e-10, [WRONG, HOLDS]),
        ([1 + 1e-8], [1.0], 1e-16, 1e-7, [WRONG]),  # the resolution excuses no difference above the noise
        ([1e-3, -1e-3], [2.0, 1e-3], [10.0, 1e-19], 1e-10, [UNDECIDED, WRONG]),  # nor the noise of one entry another
        ([1e12, 1.001e-12], [1e12, 1e-12], [1e-4, 1e-28], 1e-10, [HOLDS, WRONG]),  # nor does a large one hide a small
    ],
)
def test_each_entry_gets_a_verdict_of_its_own(actual, expected, floor, resolution, verdict):
    assert len({HOLDS, WRONG, UNDECIDED, UNCHECKED}) == 4
    found = judge(np.array(actual), np.array(expected), np.broadcast_to(floor, len(actual)), resolution)
    np.testing.assert_array_equal(found, verdict)


@each("floor", [0.0, 1.0, np.inf])
def test_what_is_nan_can_be_compared_with_nothing_and_is_undecided(floor):
    actual, expected = np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])
    verdict = judge(actual, expected, np.full(3, floor), 1e-10)
    np.testing.assert_array_equal(verdict, [UNDECIDED] * 3)
    assert verdict.dtype == np.int8


def test_an_infinite_difference_is_wrong_and_raises_no_warning():
    actual, expected = np.array([np.inf, 1.0, 1e308]), np.array([1.0, -np.inf, -1e308])
    np.testing.assert_array_equal(judge(actual, expected, np.ones(3), 1e-10), [WRONG] * 3)


@given(st.floats(0.5, 2), st.floats(-0.2, 0.2), st.floats(1e-3, 0.2), st.floats(0, 0.1))
@example(1.0, -0.1, 0.105, 1.0)
def test_the_verdict_does_not_depend_on_which_of_the_two_is_claimed(a, change, resolution, floor):
    one, other, floors = np.array([a]), np.array([a * (1 + change)]), np.array([floor])
    assert judge(one, other, floors, resolution) == judge(other, one, floors, resolution)


def test_an_array_below_its_floor_throughout_is_zero_on_the_scale_of_the_terms_that_cancelled():
    terms = 3.0
    residue = np.array([1.0, -2.0, 0.5]) * EPS * terms
    error = normwise(residue, -residue, np.full(3, EPS * terms), EPS)
    assert error == pytest.approx(4 * EPS, rel=1e-12)  # the difference over the terms
    residue = np.full(2, 1e-8)
    assert normwise(residue, -residue, residue, 1e-4) == pytest.approx(2e-4, rel=1e-12)


@each("last_floor", [1e-18, np.inf])
def test_an_array_with_one_entry_above_its_floor_or_no_floor_is_compared_as_any_other(last_floor):
    residue = np.array([1e-16, 1e-16])
    assert normwise(residue, -residue, np.array([1e-16, last_floor]), EPS) == 2


def test_the_normwise_error_of_what_is_not_noise_is_the_relative_error():
    a, b = np.array([1.0, 2.0, -4.0]), np.array([1.0, 2.0, -4.004])
    assert normwise(a, b, np.full(3, 1e-16), EPS) == relative_error(a, b)[0]
    assert normwise(np.zeros(3), np.zeros(3), np.ones(3), EPS) == 0


@each("dtype", ["float16", "float32", "float64", "longdouble"])
@each("ulps", [1, 4])
def test_every_entry_moves_by_at_least_one_and_at_most_so_many_last_bits_up_or_down(dtype, ulps):
    x = np.concatenate([np.full(100, 1.5), np.full(100, -1.25)]).astype(dtype)
    y = moved(x, np.random.default_rng(0), ulps)
    assert y.dtype == x.dtype
    units = (y - x) / np.abs(np.spacing(x))
    assert set(units) == {*range(-ulps, 0), *range(1, ulps + 1)}


@given(st.floats(allow_subnormal=False))
@example(float(np.finfo(float).max))
def test_what_is_zero_or_not_finite_stays_and_everything_else_stays_finite(number):
    x = np.full(8, number)
    y = moved(x, np.random.default_rng(0), 4)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(x))
    if number == 0 or not np.isfinite(number):
        np.testing.assert_array_equal(y, x)
    elif abs(number) < np.finfo(float).max:
        assert (y != x).any()


def test_moving_is_the_same_for_the_same_seed_and_leaves_the_array_alone():
    x = np.random.default_rng(1).standard_normal((3, 4))
    kept = x.copy()
    first, again, other = (moved(x, np.random.default_rng(seed), 4) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(x, kept)
    assert (first != other).any()
    assert first.shape == x.shape
