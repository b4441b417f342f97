import inspect
import math

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, check
from attention_np.gradcheck.agreement import UNCHECKED, WRONG
from attention_np.gradcheck.judging.measured import Options

from .programs import normal, with_entry


def waves(x):
    return np.sin(2 * x)


def waves_backward(d_output, x):
    return 2 * d_output * np.cos(2 * x)


def wrong_at(index, factor, backward=waves_backward):
    def wrong(d_output, x):
        gradient = backward(d_output, x)
        return with_entry(gradient, index, factor * gradient[index])

    return wrong


def not_sampled(report):
    """An entry, of ordinary size, that was not looked at."""
    details = report.details
    ordinary = np.abs(details.analytic) > np.median(np.abs(details.analytic))
    return tuple(np.argwhere((details.verdict == UNCHECKED) & ordinary)[-1].tolist())


def test_of_a_large_input_a_sample_is_looked_at_and_the_report_says_so():
    report = check(waves, waves_backward, {"x": normal(100, 100)}, max_entries=50)
    assert report.ok, str(report)
    found = report["x"]
    assert (found.size, found.checked) == (10_000, 50)
    assert (found.details.verdict != UNCHECKED).sum() == 50
    np.testing.assert_array_equal(np.isnan(found.details.numerical), found.details.verdict == UNCHECKED)
    rows, columns = np.nonzero(found.details.verdict != UNCHECKED)
    assert len(set(rows)) > 30  # drawn from everywhere
    assert len(set(columns)) > 30
    assert (found.escape.entries, found.escape.size, found.escape.directions) == (50, 10_000, 8)
    assert found.escape.norm == pytest.approx(np.linalg.norm(found.details.analytic), rel=0.5)
    assert found.escape.probability(1e-6) < 1e-12
    assert found.escape.probability(0) == pytest.approx(1 - 50 / 10_000)


@each("method", METHODS)
def test_a_single_wrong_entry_that_was_not_sampled_is_found_along_directions_and_then_located(method):
    options = {"method": method, "max_entries": 20, "directions": 2}
    inputs = {"x": normal(40, 40)}
    index = not_sampled(check(waves, waves_backward, inputs, **options)["x"])
    found = check(waves, wrong_at(index, 1.5), inputs, **options)["x"]
    assert not found.ok
    assert found.worst_index == index
    assert (found.wrong, found.details.verdict[index]) == (1, WRONG)
    assert found.checked > 20


def test_every_entry_of_an_input_is_looked_at_where_those_are_not_too_many_or_all_are_asked_for():
    inputs = {"x": normal(6, 6), "y": normal(15, seed=1)}
    for most, checked in ((None, [36, 15]), (36, [36, 15]), (35, [35, 15]), (20, [20, 15])):
        report = check(
            lambda x, y: x * y.sum(),
            lambda d, x, y: (2 * d * y.sum(), np.full(y.shape, (d * x).sum())),
            inputs,
            max_entries=most,
        )
        assert [entry.checked for entry in report] == checked
        assert [entry.escape is None for entry in report] == [checked[0] == 36, True]
        assert [entry.wrong for entry in report] == [checked[0], 0]
        assert ((report["x"].details.verdict == WRONG).sum(), report["y"].ok) == (checked[0], True)


@each(
    ("size", "most"),
    [(0, 0), (1, 1), (31_622, 31_622), (31_623, 31_622), (10**5, 10_000), (10**6, 1000), (10**7, 100), (10**9, 100)],
)
def test_by_default_the_fewer_entries_are_looked_at_the_more_there_are_beyond_thirty_thousand(size, most):
    default = inspect.signature(check).parameters["max_entries"].default
    assert Options("auto", 0.0, default, 8, {}).most(size, size) == most
    assert Options("auto", 0.0, default, 8, {}).most(size, 10**9) == min(size, 100)
    for asked, expected in ((None, size), (5, min(5, size)), (10**8, min(10**8, size))):
        assert Options("auto", 0.0, asked, 8, {}).most(size, size) == expected


def square(x):
    return x**2


def square_backward(d, x):
    return 2 * d * x


def escapes(factor_of, trials, **options):
    """How often a single wrong entry, of the factor that `factor_of` an Escape gives, is missed, and should be."""
    missed, expected = 0, 0.0
    rng = np.random.default_rng(0)
    for seed in range(trials):
        inputs = {"x": np.append(1e6, rng.uniform(1, 2, 29))}  # so that directions do not see the small ones
        right = check(square, square_backward, inputs, rng=seed, **options)["x"]
        place = int(rng.integers(1, 30))
        factor = factor_of(right.escape, right.details.analytic[place])
        error = abs((factor - 1) * right.details.analytic[place])
        expected += right.escape.probability(error / np.linalg.norm(right.details.analytic))
        missed += check(square, wrong_at(place, factor, square_backward), inputs, rng=seed, **options).ok
    return missed / trials, expected / trials


def most_escape(error, forward, backward, x, places, **options):
    """How often an error relative to the norm of the gradient, in one of `places`, escapes: as is said at most."""
    rng, missed, most = np.random.default_rng(0), 0, 0.0
    for seed in range(40):
        place = int(rng.integers(*places))
        right = check(forward, backward, {"x": x}, rng=seed, **options)["x"].details.analytic
        factor = 1 + error * np.linalg.norm(right) / abs(right[place])
        report = check(forward, wrong_at(place, factor, backward), {"x": x}, rng=seed, **options)
        missed += report.ok
        most = max(most, report["x"].escape.probability(error) if report.ok else 0.0)
    assert missed / 40 <= most + 3 * math.sqrt(most * (1 - most) / 40)
    return missed


@pytest.mark.parametrize("trials", [10, pytest.param(80, marks=pytest.mark.long)])
def test_an_error_too_small_for_directions_escapes_as_often_as_the_report_says(trials):
    often, expected = escapes(lambda *_: 1 + 1e-11, trials, max_entries=12, directions=2)
    assert expected == pytest.approx(1 - 12 / 30, abs=0.01)
    assert often == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / trials))


@pytest.mark.long
def test_an_error_of_the_size_that_directions_just_see_escapes_at_most_as_often_as_the_report_says():
    def factor_of(escape, entry):
        return 1 + 2 * escape.threshold / abs(entry)

    often, expected = escapes(factor_of, 80, max_entries=6, directions=1)
    assert 0.2 < expected < 0.4
    assert often <= expected + 3 * math.sqrt(expected * (1 - expected) / 80)
    assert often >= expected - 3 * math.sqrt(expected * (1 - expected) / 80)


@pytest.mark.long
def test_an_error_in_a_small_entry_escapes_no_more_often_than_the_report_says():
    x = np.append(1e6 * normal(80), normal(120, seed=1))  # directions count the large ones a million times
    missed = most_escape(1e-13, square, square_backward, x, (80, 200), max_entries=20, directions=2)
    assert missed > 10  # what directions do not see


@pytest.mark.long
def test_what_rtol_allows_escapes_along_directions_too_and_the_report_says_so():
    options = {"max_entries": 40, "directions": 2, "rtol": 1e-5}
    assert most_escape(1e-4, np.sin, lambda d, x: d * np.cos(x), normal(400), (0, 400), **options) > 0
