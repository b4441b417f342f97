from functools import partial

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.measuring.noise import (
    SMALL_MOVES,
    ULPS,
    Pair,
    moved_relatively,
    noise_floor,
    wider_difference,
)

from .programs import Watched

EPS = float(np.finfo(np.float64).eps)
WIDER = np.finfo(np.longdouble).eps < EPS
needs_a_wider_dtype = pytest.mark.skipif(not WIDER, reason="this machine has no wider dtype than float64")


def pair_of(claimed, measured):
    """Both as functions of a cotangent and of the inputs one by one."""
    return Pair(lambda u, point: claimed(u, *point), lambda u, point: measured(u, *point))


def floor_of(claimed, measured, *inputs, cotangent=None, seed=0):
    u = np.ones_like(inputs[0]) if cotangent is None else cotangent
    return noise_floor(pair_of(claimed, measured), u, list(inputs), np.random.default_rng(seed))


def square(u, x):
    return u * x * x


@each("x", [1.0, -3.0, 1e-12, 1e12, 1e-140])
def test_the_floor_of_two_well_conditioned_functions_is_some_units_in_their_last_place(x):
    floor = floor_of(square, square, np.full((2, 3), x))
    assert floor.shape == (2, 3)
    assert (floor >= EPS * x**2).all()
    # each of the two moves by 3 inputs times ULPS units, each up to EPS
    assert (floor <= 2 * 3 * (ULPS + 1) * EPS * x**2).all()


def test_it_sees_cancellation_inside_the_claimed_gradient_and_inside_the_measured_one():
    def cancels(u, x):
        return u * ((1e4 * x + 1) ** 2 - (1e4 * x) ** 2 - 1) / 2e4

    def plain(u, x):
        return u * x

    x = np.sqrt([1.3, 2.7, 5.1])
    difference = np.abs(cancels(1, x) - x)
    assert (difference > 1e-14).all()
    for pair in ((cancels, plain), (plain, cancels)):
        floor = floor_of(*pair, x)
        assert (difference <= UNDECIDABLE * floor).all()
        assert (floor <= 10 * EPS * 1e4 * x).all()


def test_the_inputs_move_by_some_last_bits_and_then_by_a_larger_part_that_is_still_tiny():
    record = Watched(np.multiply)
    floor_of(record, np.multiply, np.full(50, 1.5))
    moves = [np.abs(x / 1.5 - 1).max() for _, x in record.seen]
    small, larger = ([move for move in moves if low <= move <= high] for low, high in ((EPS / 2, 1e-14), (1e-14, 1)))
    assert len(small) == SMALL_MOVES
    assert max(small) <= ULPS * EPS
    assert len(larger) >= 2
    assert 2.0**-41 <= min(larger) <= max(larger) <= 2.0**-39  # (gradcheck.55)


def test_the_cotangent_moves_too():
    u = np.array([[1e8, -1e8 + 1]])  # the gradient is the rest of a sum over it
    floor = floor_of(lambda u, x: x * u.sum(), lambda u, x: x * u.sum(), np.ones(1), cotangent=u)
    assert 1e8 * EPS / 2 <= floor[0] <= 100 * 1e8 * EPS


@each("error", [1e-3, 1e-7, 1e-10])
@each(
    "bug",
    [
        lambda x, error: np.cos(x) * (1 + error),
        lambda x, error: np.cos(x) + error,
        lambda x, error: np.cos(x) + error * x**3,
        lambda x, error: np.cos(x * (1 + error)),
    ],
)
def test_the_difference_that_a_bug_makes_is_not_taken_for_noise(bug, error):
    x = np.array([0.4, -0.7, 1.1])
    floor = floor_of(lambda u, x: u * bug(x, error), lambda u, x: u * np.cos(x), x)
    assert (np.abs(bug(x, error) - np.cos(x)) > UNDECIDABLE * floor).all()


def test_the_noise_of_one_entry_is_not_that_of_another():
    def claimed(u, x):
        large = x * [1e4, 0]
        return u * ((large + 1) ** 2 - large**2 - 1) / [2e4, 1]

    floor = floor_of(claimed, lambda u, x: u * x * [1, 0], np.sqrt([1.3, 1.3]))
    assert floor[0] > 1e-13
    assert floor[1] == 0


@each("dtype", ["float16", "float32", "float64", "longdouble"])
def test_the_floor_follows_the_dtype_of_the_inputs(dtype):
    eps = float(np.finfo(dtype).eps)
    floor = floor_of(lambda u, x: 3 * u * x, lambda u, x: 3 * u * x, np.ones(50, dtype))
    assert 3 * eps * ULPS / 2 <= floor.max() <= 2 * 3 * 2 * eps * (ULPS + 1)


@each("strange", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_adds_no_noise_and_raises_no_warning(strange):
    x = np.array([strange, 1.0])
    floor = floor_of(lambda u, x: u * x, lambda u, x: u * x, x)
    assert floor[0] == 0
    assert 0 < floor[1] < 1e-14


def test_a_gradient_that_is_nan_somewhere_else_only_is_judged_where_it_is_not():
    """A function that fails at a place that it was not asked about has told nothing, and the other places count."""
    places = iter([False, True, *[False] * 20])

    def fails_once(u, x):
        return np.full(x.shape, np.nan) if next(places) else u * x

    floor = floor_of(fails_once, lambda u, x: u * x, np.array([1.0, -2.0]))
    assert (floor > 0).all()
    assert (floor < 1e-14).all()


def test_the_floor_is_the_same_for_the_same_seed_and_leaves_what_it_is_given_alone():
    x, u = np.random.default_rng(1).standard_normal((2, 9))
    kept = x.copy(), u.copy()
    first, again, other = (floor_of(square, square, x, cotangent=u, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal((x, u), kept)


def saturated(u, x):
    return u * (1 - np.tanh(x) ** 2)


def unsaturated(u, x):
    return u / np.cosh(x) ** 2


@needs_a_wider_dtype
def test_a_wider_dtype_sees_the_rounding_near_saturation_that_no_move_of_the_inputs_reaches():
    x = np.array([14.0])  # where tanh is 1 - 1.4e-12, and does not move in its last bit when x does
    u = np.ones(1)
    difference = saturated(u, x) - unsaturated(u, x)
    assert abs(difference) > 1e-6 * unsaturated(u, x)
    change = wider_difference(pair_of(saturated, unsaturated), u, [x]) - difference
    assert abs(difference) <= 2 * abs(change)


@needs_a_wider_dtype
def test_in_a_wider_dtype_the_difference_that_a_bug_makes_stays():
    x, u = np.array([0.5, 14.0]), np.ones(2)
    wider = wider_difference(pair_of(lambda u, x: 1.001 * unsaturated(u, x), unsaturated), u, [x])
    np.testing.assert_allclose(wider.astype(float), 0.001 * unsaturated(u, x), rtol=1e-9)


@each("narrow", ["float16", "float32"])
def test_what_is_narrower_than_double_is_claimed_in_double_and_measured_in_the_widest_there_is(narrow):
    claimed, measured = Watched(square), Watched(square)
    wider = wider_difference(pair_of(claimed, measured), np.ones(3, narrow), [np.ones(3, narrow)])
    for function, dtype in ((claimed, np.float64), (measured, np.longdouble)):
        assert {x.dtype for call in function.seen for x in call} == {np.dtype(dtype)}
    np.testing.assert_array_equal(wider, np.zeros(3))


@needs_a_wider_dtype
def test_the_wider_dtype_of_double_is_long_double_and_of_long_double_there_is_none():
    pair = pair_of(square, square)
    assert wider_difference(pair, np.ones(2), [np.ones(2)]).dtype == np.longdouble
    for u, x in (("longdouble", "longdouble"), ("float32", "longdouble"), ("longdouble", "float64")):
        assert wider_difference(pair, np.ones(2, u), [np.ones(2, x)]) is None


def refuses(narrow, u, x):
    if x.dtype != narrow:
        raise TypeError(f"{narrow} only")
    return u * x


def casts(narrow, u, x):
    return (u * x).astype(narrow)


@each("narrow", ["float32", "float64"])
@each("function", [refuses, casts])
def test_a_function_that_takes_no_wider_dtype_has_no_wider_difference_but_a_floor_all_the_same(function, narrow):
    claimed, x = partial(function, narrow), np.ones(2, narrow)
    assert wider_difference(pair_of(claimed, square), x, [x]) is None
    assert (floor_of(claimed, square, x) > 0).all()


@needs_a_wider_dtype
def test_what_takes_double_and_no_more_is_measured_in_double():
    def measured(u, x):
        if x.dtype == np.longdouble:
            raise TypeError("double at most")
        assert u.dtype == x.dtype == np.float64
        return u * x

    x = np.array([0.5, 1.5], np.float32)
    found = wider_difference(pair_of(square, measured), np.full(2, 3, np.float32), [x])
    np.testing.assert_array_equal(found, 3.0 * x * x - 3.0 * x)
    assert wider_difference(pair_of(square, measured), np.ones(2), [np.ones(2)]) is None


def test_a_wider_difference_is_infinite_where_the_functions_are_and_raises_no_warning():
    found = wider_difference(
        pair_of(lambda u, x: u * np.log(x), square), np.ones(2, np.float32), [np.eye(2, dtype="f")[0]]
    )
    np.testing.assert_array_equal(found, [-1, -np.inf])


def test_a_move_to_where_a_function_is_infinite_tells_nothing():
    def beyond_one(u, x):
        return u * np.where(x > 1, np.inf, 1.0)

    x, pair = np.ones(20), pair_of(beyond_one, lambda u, x: 0 * u * x)
    assert (noise_floor(pair, x, [x], np.random.default_rng(0)) < 1e-14).all()


@each("most", [0.5, 2.0**-7, 1e-9])
@each("dtype", ["float32", "float64"])
def test_a_relative_move_goes_up_and_down_by_at_most_so_much(most, dtype):
    x = np.linspace(1, 2, 400, dtype=dtype)
    moves = moved_relatively(x, np.random.default_rng(0), most) / x.astype(float) - 1
    least_seen = most / 2 if most > np.finfo(dtype).eps else 0
    assert moves.dtype == float
    assert -most - np.finfo(dtype).eps <= moves.min() <= -least_seen
    assert least_seen <= moves.max() <= most + np.finfo(dtype).eps
    assert moved_relatively(x, np.random.default_rng(0), most).dtype == dtype


@each("strange", [np.nan, np.inf, np.finfo(float).max])
def test_a_relative_move_leaves_what_is_not_finite_and_does_not_leave_the_range(strange):
    found = moved_relatively(np.full(20, strange), np.random.default_rng(0), 0.5)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(strange))
