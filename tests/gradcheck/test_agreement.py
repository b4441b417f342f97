import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck import agreement
from attention_np.gradcheck.agreement import compare, noise_floor, relative_error

EPS = float(np.finfo(np.float64).eps)
numbers = st.floats(-1e100, 1e100, allow_subnormal=False)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


def never():
    raise AssertionError("the noise floor costs evaluations, and is not needed here")


@given(pairs)
def test_the_relative_error_is_the_largest_difference_over_the_largest_magnitude(both):
    a, b = np.array(both).T
    error, index = relative_error(a, b)
    difference, magnitude = max(abs(x - y) for x, y in both), max(max(abs(x), abs(y)) for x, y in both)
    assert error == (difference / magnitude if difference else 0)
    assert abs(a - b)[index] == difference
    assert relative_error(b, a) == (error, index)


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_the_relative_error_does_not_depend_on_the_scale(scale):
    error, index = relative_error(
        np.array([[1.0, -2.0], [4.0, 0.0]]) * scale, np.array([[1.0, -2.0], [3.0, 0.0]]) * scale
    )
    assert error == pytest.approx(0.25, rel=1e-15)
    assert index == (1, 0)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_empty_arrays_agree(shape):
    assert relative_error(np.zeros(shape), np.zeros(shape)) == (0.0, ())
    assert compare(np.zeros(shape), np.zeros(shape), 0.0, never) == (0.0, (), 0, True)


def test_zeros_agree_and_scalars_have_an_empty_index():
    assert relative_error(np.zeros(3), np.zeros(3)) == (0.0, (0,))
    assert relative_error(np.array(2.0), np.array(1.0)) == (0.5, ())


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_agrees_not_even_with_itself(strange):
    ordinary, other = np.array([1.0, 2.0, 3.0]), np.array([1.0, strange, 3.0])
    for a, b in ((ordinary, other), (other, ordinary), (other, other)):
        assert relative_error(a, b) == (np.inf, (1,))
        found = compare(a, b, 1e300, lambda: np.full(3, np.inf))
        assert (found.ok, found.worst, found.error) == (False, (1,), np.inf)


def test_arrays_that_agree_to_the_tolerance_need_no_noise_floor():
    a = np.array([1.0, 2.0])
    assert compare(a, a * (1 + 1e-14), 1e-13, never).ok
    assert compare(a, a, 0.0, never).ok


@pytest.mark.parametrize(
    ("times_the_floor", "undecidable", "ok"), [(9.9, 1, True), (10.1, 0, False), (1e6, 0, False), (0.0, 0, True)]
)
def test_a_difference_is_an_error_above_ten_times_its_own_floor_and_undecidable_below(times_the_floor, undecidable, ok):
    floor = np.array([0.0, 1e-6, 0.0])
    actual, expected = np.array([1.0, 0.5, -0.25]), np.array([1.0, 0.5, -0.25])
    actual[1] += times_the_floor * 1e-6
    found = compare(actual, expected, 1e-13, lambda: floor)
    assert (found.undecidable, found.ok) == (undecidable, ok)
    assert found.error == pytest.approx(times_the_floor * 1e-6 / max(1, actual[1]), rel=1e-9)


def test_the_noise_of_one_entry_excuses_no_other():
    actual, expected = np.array([1e-3, -1e-3]), np.array([2.0, 1e-3])  # the second has the wrong sign
    found = compare(actual, expected, 1e-13, lambda: np.array([10.0, 1e-19]))
    assert not found.ok
    assert found.undecidable == 1


def test_a_difference_within_the_tolerance_is_neither_wrong_nor_undecidable():
    actual, expected = np.array([1.0, 1e-9, 1.0]), np.array([1.0, 2e-9, 1.0 + 1e-6])
    found = compare(actual, expected, 1e-8, lambda: np.array([0.0, 0.0, 1e-6]))
    assert found == (pytest.approx(1e-6, rel=1e-3), (2,), 1, True)


def test_an_array_below_its_floor_throughout_is_zero_on_the_scale_of_the_terms_that_cancelled():
    terms = 3.0
    residue = np.array([1.0, -2.0, 0.5]) * EPS * terms
    found = compare(residue, -residue, 1e-13, lambda: np.full(3, EPS * terms))
    assert found.ok
    assert found.undecidable == 3  # rounding could have made them anything
    assert found.error == pytest.approx(4 * EPS, rel=1e-12)  # the difference over the terms


def test_the_scale_of_the_terms_follows_the_precision():
    residue = np.full(2, 1e-8)
    found = compare(residue, -residue, 1e-7, lambda: np.full(2, 1e-8), precision=1e-4)
    assert (found.error, found.ok) == (pytest.approx(2e-4, rel=1e-12), True)


def test_below_the_floor_what_differs_by_more_than_the_tolerance_is_undecidable():
    residue = np.array([1e-8, -1e-8, 1e-20])
    found = compare(residue, -residue, 1e-7, lambda: np.full(3, 1e-8), precision=1e-4)
    assert (found.undecidable, found.ok) == (2, True)


def test_an_array_with_one_entry_above_its_floor_is_not_zero():
    residue = np.array([1e-16, 1e-16])
    assert compare(residue, -residue, 1e-13, lambda: np.full(2, 1e-16)).ok
    assert not compare(residue, -residue, 1e-13, lambda: np.array([1e-16, 1e-18])).ok


def test_without_a_floor_every_difference_above_the_tolerance_is_an_error():
    assert not compare(np.array([1.0]), np.array([1.0 + 2e-13]), 1e-13).ok
    assert compare(np.array([1.0]), np.array([1.0 + 0.5e-13]), 1e-13).ok


@pytest.mark.parametrize("x", [1.0, -3.0, 1e-12, 1e12, 1e-200])
def test_the_floor_of_a_well_conditioned_function_is_a_few_units_in_its_last_place(x):
    point = np.full((2, 3), x)
    floor = noise_floor(lambda y: y * y, [point], np.random.default_rng(0))
    assert floor.shape == (2, 3)
    assert (floor >= EPS * x**2).all()
    assert (floor <= 2 * agreement.ULPS * 2 * EPS * x**2).all()


def test_the_floor_sees_cancellation_inside_the_function():
    point = [np.array([1e8 + 1, 2.0]), np.array([1e8, 1.0])]
    floor = noise_floor(lambda x, y: x - y, point, np.random.default_rng(0))
    assert 1e8 * EPS / 2 <= floor[0] <= 1e8 * EPS * 2 * agreement.ULPS
    assert EPS / 2 <= floor[1] <= 3 * EPS * agreement.ULPS


def test_the_floor_sees_rounding_that_the_inputs_do_not_reach():
    if np.finfo(np.longdouble).eps == EPS:
        pytest.skip("this machine has no wider dtype than float64")
    point = np.array([14.0])  # where tanh is 1 - 1.4e-12, and does not move in its last bit when x does
    derivative = 1 / np.cosh(point) ** 2
    error = abs(1 - np.tanh(point) ** 2 - derivative)
    assert error > 1e-6 * derivative
    assert error <= agreement.UNDECIDABLE * noise_floor(
        lambda x: 1 - np.tanh(x) ** 2, [point], np.random.default_rng(0)
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_the_floor_follows_the_dtype_of_the_inputs(dtype):
    eps = float(np.finfo(dtype).eps)
    floor = noise_floor(lambda x: 3 * x, [np.ones(50, dtype)], np.random.default_rng(0))
    assert floor.dtype == np.float64
    assert 3 * eps * agreement.ULPS / 2 <= floor.max() <= 4 * eps * agreement.ULPS


def test_zero_has_no_last_bit_and_stays():
    seen = []

    def record(x):
        seen.append(x)
        return x

    floor = noise_floor(record, [np.array([0.0, 1.0])], np.random.default_rng(0))
    assert floor[0] == 0
    assert all(x[0] == 0 for x in seen)
    assert any(x[1] != 1 for x in seen)


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_an_input_that_is_not_finite_adds_no_noise(strange):
    floor = noise_floor(lambda x: x * 1.0, [np.array([strange, 1.0])], np.random.default_rng(0))
    assert floor[0] == 0
    assert 0 < floor[1] < 1e-14


@pytest.mark.parametrize("largest", [np.nan, np.inf, -np.inf, np.finfo(float).max])
def test_an_input_stays_finite_or_not_as_it_is(largest):
    seen = []

    def record(x):
        seen.append(x.astype(float))
        return np.ones(2)

    noise_floor(record, [np.array([largest, 1.0])], np.random.default_rng(0), repeats=20)
    places = np.array(seen)[:, 0]
    np.testing.assert_array_equal(np.isfinite(places), np.isfinite(largest))
    np.testing.assert_array_equal(np.isnan(places), np.isnan(largest))


def test_a_function_that_takes_no_wider_dtype_has_a_floor_all_the_same():
    def only_double(x):
        if x.dtype != np.float64:
            raise TypeError("float64 only")
        return x * 3

    assert 0 < noise_floor(only_double, [np.ones(1)], np.random.default_rng(0)) < 1e-14


def test_the_floor_is_the_same_for_the_same_seed_and_leaves_the_inputs_alone():
    x = np.random.default_rng(1).standard_normal(9)
    kept = x.copy()
    first, again = (noise_floor(np.tanh, [x], np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(x, kept)
