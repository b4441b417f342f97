"""What a closer look does to doubtful entries, and what is done where not all entries are looked at."""

import numpy as np
import pytest

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.judging import verdicts
from attention_np.gradcheck.judging.verdicts import (
    CLOSER,
    ENOUGH,
    OWN_ROUNDING,
    UNDECIDABLE,
    _add_noise,
    _project,
    _projections,
    _why_not_complex_step,
    first_verdict,
)
from attention_np.gradcheck.measuring.slopes import Slopes

from .programs import normal, with_entry
from .test_judging import measured

EPS = float(np.finfo(float).eps)


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


def line(claimed, slope=1.0, method="complex-step", dtype=float):
    """A line of the given slopes, all looked at, and what is claimed of it for a cotangent of ones."""
    x = np.linspace(1, 2, np.size(claimed), dtype=dtype)
    found = measured(lambda x: slope * x, lambda d, x: claimed * d / d * np.ones_like(x), {"x": x}, method=method)
    found.look(np.arange(x.size))
    found.numerical[:] = slope
    found.errors[:] = found.floor[:] = 0
    return found


# The noise that is added


def test_noise_raises_the_floor_of_the_entries_that_it_is_given_for_and_these_alone_are_judged_again():
    found = line(np.array([1.0, 1.5, 1.5, 1.5]))
    found.floor[:] = 1e-3
    found.looked[3] = False
    found.verdict[:] = HOLDS
    _add_noise(found, np.array([2, 3]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(found.floor, [1e-3, 1e-3, 1.001, 1.001])
    np.testing.assert_array_equal(found.verdict, [HOLDS, HOLDS, UNDECIDED, UNCHECKED])
    _add_noise(found, np.array([1]), np.array([2e-3]))
    np.testing.assert_array_equal(found.verdict, [HOLDS, WRONG, UNDECIDED, UNCHECKED])
    assert found.floor[1] == 3e-3


@pytest.mark.parametrize(
    ("method", "dtype", "resolution"),
    [
        ("complex-step", "float64", 1e-10),
        ("central", "float64", 1e-7),
        ("complex-step", "float32", 1e3 * 2.0**-23),
        ("central", "float32", 1e3 * 2.0**-23),
    ],
)
def test_an_entry_holds_to_the_resolution_of_the_method_or_of_its_dtype(method, dtype, resolution):
    off = np.array([0.9, 1.1]) * resolution
    found = line((1 + off).astype(dtype), method=method, dtype=dtype)
    _add_noise(found, np.arange(2), np.ones(2))
    np.testing.assert_array_equal(found.verdict, [HOLDS, UNDECIDED])


def test_a_right_gradient_of_single_precision_is_decided_in_every_entry():
    x = np.linspace(0.3, 2, 20, dtype=np.float32)
    for method in ("complex-step", "central"):
        found = check(np.sin, lambda d, x: d * np.cos(x), {"x": x[:-6]}, method=method)["x"]
        assert (found.wrong, found.undecidable) == (0, 0)


# Together, and no longer than needed


def calls_for(wrong, size=200):
    calls = []

    def backward(d, x):
        calls.append(1)
        return d * np.cos(x) * np.where(np.arange(x.size) < wrong, 2, 1)

    assert check(np.sin, backward, {"x": np.linspace(0.1, 1.4, size)}, vectorized=["x"])["x"].wrong == wrong
    return len(calls)


def test_wrong_entries_are_looked_at_together_up_to_a_number():
    assert calls_for(2) == calls_for(CLOSER) < calls_for(CLOSER + 1) == calls_for(2 * CLOSER)


def test_after_many_doubtful_entries_that_prove_right_the_rest_is_looked_at_all_the_same():
    def backward(d, x):
        return d * (x * 10001 - x * 10000)  # right but for noise

    found = check(lambda x: x * x / 2, backward, {"x": np.linspace(1, 2, ENOUGH + 300)}, vectorized=["x"])["x"]
    assert (found.wrong, found.ok) == (0, True)
    assert np.median(found.details.floor) > 100 * EPS


def test_the_closer_look_adds_its_noise_once():
    def backward(d, x):
        return d * (x * 10001 - x * 10000)

    x = np.linspace(1, 2, 40)
    floor = check(lambda x: x * x / 2, backward, {"x": x}, method="complex-step")["x"].details.floor
    assert floor.max() < 12 * 10001 * EPS


# A contradiction


@pytest.mark.parametrize(
    ("error", "floor", "lost", "expected"),
    [
        (0.09, 0, 0, True),
        (0.11, 0, 0, False),
        (0, 0.09, 0, True),
        (0, 0.11, 0, False),
        (0, 0, 0.09, True),
        (0, 0, 0.11, False),
        (0.03, 0.03, 0.03, True),
        (0.04, 0.04, 0.04, False),
    ],
)
def test_differences_contradict_by_more_than_ten_times_all_that_can_be_blamed(
    monkeypatch, error, floor, lost, expected
):
    found = line(np.array([3.0, 1.0, 3.0]))
    first_verdict(found)
    found.floor[:] = floor

    def scripted(_, elements, method, __, *, best):
        assert (elements.tolist(), method, best) == ([0, 2], "central", True)
        return Slopes(np.array([[2.0, 9.0]] * 2), *np.array([[error] * 2, [1.0] * 2, [0.0] * 2, [lost] * 2]))

    monkeypatch.setattr(verdicts, "measure", scripted)
    monkeypatch.setattr(verdicts, "_suspects", lambda _: np.zeros(0, int))
    assert (_why_not_complex_step(found) is not None) == expected


def takes_the_memory_for_its_own(x):
    """As a compiled kernel of single precision does that is told where the numbers are and how many."""
    return np.ascontiguousarray(x).view(np.complex64 if x.dtype.kind == "c" else np.float32)[: x.size]


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_function_of_single_precision_alone_is_not_asked_in_a_wider_dtype(factor):
    def backward(d, x):
        return (factor * takes_the_memory_for_its_own(d) * np.cos(takes_the_memory_for_its_own(x))).astype(x.dtype)

    x = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    found = check(lambda x: np.sin(takes_the_memory_for_its_own(x)), backward, {"x": x}, method="central")["x"]
    assert found.ok == (factor == 1)


# Along directions


def linear(size=300):
    slopes = np.random.default_rng(5).uniform(1, 2, size)
    return slopes, lambda x: slopes * x


def sampled(backward, forward, size=300, looked=5, **options):
    found = measured(forward, backward, {"x": normal(size)}, **options)
    found.look(np.arange(looked))
    first_verdict(found)
    return found


def test_directions_have_the_size_of_the_entries_and_are_normal():
    moves = []

    def forward(x):
        if x.dtype.kind == "c" and (x.imag != 0).all():
            moves.append(x.imag.copy())
        return x * 1.0

    x = np.where(np.arange(400) % 2, 1024.0, 1.0)
    found = measured(forward, lambda d, _: d, {"x": x})
    found.look(np.arange(5))
    first_verdict(found)
    moves.clear()
    _project(found, 0.0, 3)
    shares = np.abs(moves[0] / np.where(x > 1, 1024, 512))  # the typical one is between the two
    assert np.median(shares[::2]) == pytest.approx(np.median(shares[1::2]), rel=0.3)
    assert shares.max() < 8 * np.median(shares)


@pytest.mark.parametrize("place", [7, 299])
def test_one_direction_is_enough_to_find_a_wrong_entry(place):
    slopes, forward = linear()
    found = sampled(lambda d, _: with_entry(d * slopes, place, 9.0), forward)
    _project(found, 0.0, 1)
    assert found.verdict[place] == WRONG
    assert found.fault is None
    assert (found.escape.entries, found.escape.size, found.escape.directions) == (5 + CLOSER - (place < 5), 300, 1) or (
        found.escape.entries <= 5 + CLOSER
    )


def test_where_a_wrong_entry_is_known_none_is_hunted():
    slopes, forward = linear()
    found = sampled(lambda d, _: with_entry(d * slopes, [0, 200], 9.0), forward)
    assert found.verdict[0] == WRONG
    _project(found, 0.0, 4)
    assert found.looked.sum() == 5
    assert found.fault is None


def shared(error):
    """A sum that is far up, so that no entry alone can be told from its noise, and an error in every entry."""
    return (lambda x: x.sum() + 1e6), (lambda d, x: d * np.ones_like(x) + error)


def test_an_error_that_all_entries_share_below_the_noise_of_each_is_found_along_directions():
    for error, fault in ((0.0, False), (3e-8, True)):
        forward, backward = shared(error)
        found = check(forward, backward, {"x": np.ones(4000)}, method="central", max_entries=10, directions=6)["x"]
        assert found.wrong == 0
        assert found.ok != fault
        if fault:
            assert found.diagnosis.startswith("along ")
            assert found.diagnosis.endswith(
                " of 6 random directions the gradient differs from the slope of forward, yet no single entry stands out"
            )
            assert 1 <= int(found.diagnosis.split()[1]) <= 6


def test_the_floor_along_a_direction_has_four_last_places_of_the_terms_of_the_sum():
    slopes, forward = linear()
    found = sampled(lambda d, _: d * slopes, forward)
    directions = normal(3, 300, seed=2)
    difference, floor = _projections(found, directions)
    terms = np.linalg.norm(directions * found.candidate.claimed("x"), axis=1)
    assert (floor >= OWN_ROUNDING * EPS * terms).all()
    assert (np.abs(difference) <= UNDECIDABLE * floor).all()


def test_the_threshold_that_is_reported_is_ten_times_the_largest_floor_along_a_direction():
    slopes, forward = linear()
    found = sampled(lambda d, _: d * slopes, forward)
    _project(found, 0.0, 5)
    terms = np.linalg.norm(found.candidate.claimed("x"))
    assert 10 * OWN_ROUNDING * EPS * terms / 2 < found.escape.threshold < 1e3 * EPS * terms
