"""Who is believed where two gradients disagree: the steps of a verdict, one by one."""

import numpy as np
import pytest

from attention_np.gradcheck import NotAnalyticError, check
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.judging.verdicts import (
    CLOSER,
    ENOUGH,
    _hunt,
    _may_be_lost,
    _projections,
    _why_not_complex_step,
    decide,
    first_verdict,
)

from .programs import normal
from .test_judging import linear, measured

EPS = float(np.finfo(float).eps)
ALL = np.arange(8)
X = np.linspace(0.5, 1.2, 8)


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


def looked_at(forward, backward, x=X, **options):
    found = measured(forward, backward, {"x": x}, **options)
    found.look(np.arange(x.size))
    return found


def sine(factor=1.0, seed=0):
    """The gradient of a sine, times a factor, or a function of the cotangent, of the first one, and of the input."""
    first = []

    def backward(d, x):
        first.append(d.copy())
        return d * np.cos(x) * (factor(d, first[0], x) if callable(factor) else np.asarray(factor, x.dtype))

    return looked_at(np.sin, backward, seed=seed)


# The first verdict


def test_the_first_floor_is_the_error_of_the_method_and_four_last_places_of_the_larger_gradient():
    found = sine(np.array([1, 1, 1, 3, 0.2, 1, 1, 1]))
    found.numerical[1:] = 1e9  # what other cotangents give does not matter
    found.errors[:] = np.arange(8) * 1e-12
    first_verdict(found)
    claimed, numerical = found.candidate.claimed("x"), found.numerical[0]
    np.testing.assert_array_equal(found.floor, found.errors + 4 * EPS * np.maximum(np.abs(claimed), np.abs(numerical)))
    np.testing.assert_array_equal(found.errors, np.arange(8) * 1e-12)


def test_a_closer_look_is_for_entries_that_are_wrong_or_undecided_where_there_is_a_slope():
    found = sine(np.array([1, 3, 1, 1, 1.1, 1.1, 1, 3]))
    found.errors[4], found.errors[5], found.looked[7] = 1.0, np.inf, False
    np.testing.assert_array_equal(first_verdict(found), [1, 4])
    verdicts = [HOLDS, WRONG, HOLDS, HOLDS, UNDECIDED, UNDECIDED, HOLDS, UNCHECKED]
    np.testing.assert_array_equal(found.verdict, verdicts)


# What saturated outputs lose


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("factor", "lost"),
    [
        (2.0, False),  # the same multiple everywhere is a bug
        (-1.0, False),
        (1 + 1e-3, False),
        (1 + 1e-8, False),  # so is what is slight
        (0.0, True),
        (lambda d, first, x: np.where((d == first).all(), 2.0, 3.0), True),  # noqa: ARG005
        (lambda d, first, x: np.where((d == first).all(), -1.0, 3.0), True),  # noqa: ARG005
        (lambda d, first, x: np.where((d == first).all(), 2.0, -2.0), True),  # noqa: ARG005
        (lambda d, first, x: 2 + x, True),  # noqa: ARG005
        (lambda d, first, x: 1 + 1e-8 * x, False),  # noqa: ARG005
        (lambda d, first, x: 1e3 * (1 + 1e-8 * x), False),  # noqa: ARG005
        (lambda d, first, x: 1e-3 * (2 + x), True),  # noqa: ARG005
    ],
)
def test_what_is_lost_is_gross_and_another_multiple_elsewhere(factor, lost, dtype):
    def function(*arrays):
        return np.asarray(factor(*arrays) if callable(factor) else factor)

    first = []

    def backward(d, x):
        first.append(d.copy())
        return d * (np.cos(x) * function(d, first[0], x)).astype(x.dtype)

    found = looked_at(np.sin, backward, X.astype(dtype))
    np.testing.assert_array_equal(_may_be_lost(found, ALL), np.full(8, lost))


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_what_is_slight_beside_the_entry_was_not_lost(scale):
    first = []

    def backward(d, x):
        first.append(d.copy())
        return scale * d * np.cos(x) * np.where((d == first[0]).all(), 1 + 1e-7, 2.0)

    assert not _may_be_lost(looked_at(lambda x: scale * np.sin(x), backward), ALL).any()


@pytest.mark.parametrize("changing", [lambda x: 0 * x, lambda x: 2 + x])
def test_each_entry_is_lost_or_not_by_itself(changing):
    found = sine(lambda d, first, x: np.where(ALL % 2, 2.0, changing(x)))  # noqa: ARG005
    np.testing.assert_array_equal(_may_be_lost(found, ALL), ALL % 2 == 0)
    np.testing.assert_array_equal(_may_be_lost(found, ALL[:3]), [True, False, True])
    assert _may_be_lost(found, ALL[:0]).shape == (0,)


def test_of_an_output_of_one_number_a_fixed_multiple_is_none_that_was_lost():
    found = looked_at(lambda x: np.sin(x).sum(), lambda d, x: 2 * d * np.cos(x))
    assert not _may_be_lost(found, ALL).any()


def test_a_multiple_at_the_point_alone_was_lost():
    found = sine(lambda d, first, x: np.where((x == X).all(), 2.0, 3.0))  # noqa: ARG005
    assert _may_be_lost(found, ALL).all()


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_a_backward_that_gives_nothing_in_a_wider_dtype_is_judged_by_what_it_gives(method):
    def backward(d, x):
        return np.where(x.dtype == np.float64, 1.001, np.nan) * d * np.cos(x)

    report = check(np.sin, backward, {"x": X}, method=method)
    assert report["x"].wrong == 8


# Complex steps that differences contradict


def partly_conjugate(share):
    """The square of x, its complex slope off by a share."""
    return lambda x: (1 - share) * x * x + share * (x * np.conj(x)).real


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(
    ("share", "claimed", "believed"),
    [
        (1.0, 1.0, True),
        (1.0, 3.0, True),  # they say something else than both, and grossly so
        (0.0, 3.0, False),  # both agree
        (1e-7, 1.0, True),  # slightly so, but two against one
        (1e-7, 1 + 1e-6, False),
        (1e-7, 1 + 5e-8, False),  # between the two, but close to none
        (1e-7, -1.0, False),
        (4e-6, 3.0, True),
        (4e-7, 3.0, False),
    ],
)
def test_differences_contradict_a_complex_step_if_they_are_far_from_it_or_are_what_is_claimed(
    share, claimed, believed, scale
):
    found = looked_at(partly_conjugate(share), lambda d, x: claimed * 2 * d * x, scale * X)
    first_verdict(found)
    reason = _why_not_complex_step(found)
    assert (reason is not None) == believed
    if believed:
        assert reason.startswith("the complex step gives the slope ")


def test_a_contradiction_is_put_with_both_slopes_of_the_first_such_entry():
    def forward(x):
        return np.where(ALL >= 3, (x * np.conj(x)).real, x * x)

    found = looked_at(forward, lambda d, x: d * np.where(ALL >= 2, 2 + 0 * x, 2 * x), ALL + 3.0)
    assert first_verdict(found).size
    u = found.candidate.first.cotangent
    assert _why_not_complex_step(found) == (
        f"the complex step gives the slope {0 * u[3]:.9g}, differences {2 * u[3] * 6:.9g}: "
        "forward is not analytic (a cast, an abs, a comparison of complex numbers?)"
    )


@pytest.mark.parametrize("what", ["floor", "nothing"])
def test_differences_within_the_noise_contradict_nothing(what):
    found = looked_at(partly_conjugate(1.0), lambda d, x: 3 * d * x)
    first_verdict(found)
    if what == "floor":
        found.floor[:] = 1e3
    assert (_why_not_complex_step(found) is None) == (what == "floor")


def test_differences_that_the_last_bits_of_the_output_drown_contradict_nothing():
    found = looked_at(lambda x: 1e12 + 0 * x + (x * np.conj(x)).real, lambda d, x: 2 * d * x, 1e-6 * X)
    first_verdict(found)
    assert (found.verdict == WRONG).all()
    assert _why_not_complex_step(found) is None


def test_a_slope_that_saturated_outputs_hide_from_differences_is_no_contradiction():
    def logistic(x):
        return 1 / (1 + np.exp(-x))

    found = looked_at(logistic, lambda d, x: 2 * d * np.exp(-x), np.linspace(37.5, 39, 8))
    first_verdict(found)
    assert (found.verdict == WRONG).all()
    assert _why_not_complex_step(found) is None


def test_a_contradicted_complex_step_gives_way_to_differences_in_all_entries():
    def forward(x):
        return np.where(ALL >= 3, np.exp(x.real) + 0 * x, np.exp(x))

    found = looked_at(forward, lambda d, x: d * np.exp(x))
    steps = found.numerical[0].copy()
    decide(found, "auto", 0.0, 8)
    assert found.method == "central"
    assert found.note.startswith("the complex step gives the slope 0, differences ")
    assert (found.numerical[0] != steps).all()
    np.testing.assert_allclose(found.numerical[0], found.candidate.claimed("x"), rtol=1e-8)
    assert (found.verdict == HOLDS).all()
    found = looked_at(forward, lambda d, x: d * np.exp(x))
    with pytest.raises(NotAnalyticError, match=r"input x: the complex step .* does not apply: use central"):
        decide(found, "complex-step", 0.0, 8)


def test_differences_that_take_the_place_of_complex_steps_are_judged_with_the_same_tolerance():
    for rtol, verdict in ((0.2, HOLDS), (0.05, WRONG)):
        found = looked_at(partly_conjugate(1.0), lambda d, x: 2.2 * d * x)
        decide(found, "auto", rtol, 8)
        assert found.method == "central"
        assert (found.verdict == verdict).any()


# A closer look


def test_steps_that_are_too_long_for_a_function_are_replaced_by_the_best_ones():
    found = check(lambda x: np.sin(100 * x), lambda d, x: 100 * d * np.cos(100 * x), {"x": X}, method="central")["x"]
    assert (found.wrong, found.undecidable) == (0, 0)


def in_double_only(backward):
    return lambda d, x: np.float64(1) * backward(d.astype(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("method", ["complex-step", "central"])
@pytest.mark.parametrize(("factor", "wrong"), [(1.0, 0), (1.001, 8)])
def test_without_a_wider_dtype_larger_moves_show_the_rounding_near_saturation(factor, wrong, method):
    backward = in_double_only(lambda d, x: factor * d * (1 - np.tanh(x) ** 2))
    report = check(np.tanh, backward, {"x": np.linspace(8.5, 9.5, 8)}, method=method)
    assert report["x"].wrong == wrong


@pytest.mark.parametrize(
    ("slope", "ok"),
    [(lambda p, x: p * (1 - p), True), (lambda p, x: 2 * np.exp(-x), False)],  # noqa: ARG005
)
def test_without_a_wider_dtype_what_saturated_outputs_lose_is_excused_all_the_same(slope, ok):
    backward = in_double_only(lambda d, x: d * slope(1 / (1 + np.exp(-x)), x))
    report = check(lambda x: 1 / (1 + np.exp(-x)), backward, {"x": np.linspace(38.5, 40, 8)}, method="complex-step")
    assert report.ok == ok


def test_the_clearest_wrong_entries_are_looked_at_last_whatever_their_size():
    size = np.where(np.arange(1000) < 950, 1e-20, 1e20)

    def backward(d, x):
        noisy = x * 10001 - x * 10000  # right but for noise
        return d * size * np.where(np.arange(1000) < 950, 2 * x, noisy)

    x = np.linspace(1, 2, 1000)
    found = check(lambda x: size * x * x / 2, backward, {"x": x}, vectorized=["x"], method="complex-step")["x"]
    np.testing.assert_array_equal(found.details.verdict == WRONG, np.arange(1000) < 950)


def test_after_enough_wrong_entries_no_more_are_looked_at_closely():
    def calls_for(size):
        calls = []

        def backward(d, x):
            calls.append(1)
            return 2 * d * np.cos(x)

        assert check(np.sin, backward, {"x": np.linspace(0.1, 1.4, size)}, vectorized=["x"])["x"].wrong == size
        return len(calls)

    assert calls_for(ENOUGH - CLOSER) < calls_for(ENOUGH) == calls_for(ENOUGH + 1) == calls_for(ENOUGH + 2 * CLOSER)


def test_an_error_that_is_exactly_the_one_allowed_is_allowed():
    assert check(lambda x: 1 * x, lambda d, _: 2 * d, {"x": X}, rtol=0.5, method="complex-step").ok
    assert not check(lambda x: 1 * x, lambda d, _: 2 * d, {"x": X}, rtol=0.49, method="complex-step").ok


@pytest.mark.parametrize("method", ["auto", "complex-step", "central"])
def test_gradients_at_the_two_ends_of_the_range_disagree_without_a_warning(method):
    slope = np.array([1e308, 1.0])
    report = check(lambda x: slope * x, lambda d, _: -slope * d, {"x": np.array([1e-3, 0.5])}, method=method)
    assert not report.ok


# Along directions


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(("rtol", "ok"), [(1e-6, True), (1e-9, False)])
def test_what_is_allowed_along_directions_grows_with_the_gradient(scale, rtol, ok):
    report = check(
        lambda x: scale * np.sin(x),
        lambda d, x: scale * d * np.cos(x) * (1 + 1e-7),
        {"x": normal(300)},
        max_entries=5,
        directions=4,
        rtol=rtol,
    )
    assert report.ok == ok


def test_along_directions_the_error_of_differences_is_part_of_the_floor():
    _, forward, backward = linear()
    found = measured(
        lambda x: np.sin(forward(x)),
        lambda d, x: backward(d * np.cos(forward(x)), x),
        {"x": normal(200)},
        method="central",
    )
    directions = 30 * normal(4, 200, seed=6)
    _, floor = _projections(found, directions)
    assert (floor >= found.slopes_along(directions).errors).all()


def test_the_entries_that_can_be_looked_at_together_are_not_halved():
    found = measured(np.sin, lambda d, x: d * np.cos(x), {"x": normal(CLOSER)})
    np.testing.assert_array_equal(_hunt(found, normal(CLOSER, seed=6)), np.arange(CLOSER))
