"""Of a large input a sample is looked at, and the whole gradient along random directions."""

import math
import re

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, check
from attention_np.gradcheck.flow import Options
from attention_np.gradcheck.verdict import deciding
from attention_np.gradcheck.verdict.judging import UNCHECKED, WRONG

from ..programs import normal, with_entry


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
    found = check(waves, waves_backward, {"x": normal(100, 100)}, max_entries=50)["x"]
    assert (found.ok, found.size, found.checked) == (True, 10_000, 50)
    assert (found.details.verdict != UNCHECKED).sum() == 50
    np.testing.assert_array_equal(np.isnan(found.details.numerical), found.details.verdict == UNCHECKED)
    for places in np.nonzero(found.details.verdict != UNCHECKED):
        assert len(set(places)) > 30  # drawn from everywhere
    assert (found.escape.entries, found.escape.size, found.escape.directions) == (50, 10_000, 8)
    assert found.escape.norm == pytest.approx(np.linalg.norm(found.details.analytic), rel=0.5)
    assert found.escape.probability(1e-6) < 1e-12
    assert found.escape.probability(0) == pytest.approx(1 - 50 / 10_000)


@each("method", METHODS)
@each("factor", [1.5, -1.0, 1 + 1e-5])
def test_a_single_wrong_entry_that_was_not_sampled_is_found_along_directions_and_then_located(factor, method):
    options = {"method": method, "max_entries": 20}
    inputs = {"x": normal(40, 40)}
    index = not_sampled(check(waves, waves_backward, inputs, **options)["x"])
    found = check(waves, wrong_at(index, factor), inputs, **options)["x"]
    assert (found.ok, found.wrong, found.worst_index) == (False, 1, index)
    assert found.details.verdict[index] == WRONG
    assert 20 < found.checked == found.escape.entries <= 20 + 64


@each(
    ("size", "total", "most"),
    [
        *((size, size, size) for size in (0, 1, 31_622)),
        *((size, 10**5, min(size, 10_000)) for size in (5, 10_000, 10_001, 10**5)),
        *((size, 10**9, min(size, 100)) for size in (5, 100, 101, 10**9)),
    ],
)
def test_by_default_the_fewer_entries_are_looked_at_the_more_each_look_computes(size, total, most):
    assert Options("auto", 0.0, "auto").most(size, total) == most
    for asked, expected in ((None, size), (5, min(5, size)), (10**8, min(10**8, size))):
        assert Options("auto", 0.0, asked).most(size, total) == expected


@each(("error", "ok"), [(0.0, True), (3e-7, False)])
def test_an_error_that_all_entries_share_below_the_noise_of_each_is_found_along_directions(error, ok):
    """Of a sum that is far up, so that no entry alone can be told from its noise."""
    forward = lambda x: x.sum() + 1e6  # noqa: E731
    backward = lambda d, x: d * (np.ones_like(x) + error)  # noqa: E731
    options = {"method": "central", "max_entries": 10}
    found = check(forward, backward, {"x": np.ones(2000)}, **options)["x"]
    assert (found.wrong, found.ok) == (0, ok)
    said = r"along [1-8] of 8 random directions the gradient differs from the slope of forward, yet no single entry .*"
    assert bool(re.fullmatch(said, found.diagnosis or "")) == (not ok)


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


@pytest.mark.parametrize("trials", [15, pytest.param(120, marks=pytest.mark.long)])
def test_an_error_of_the_size_that_directions_just_see_escapes_as_often_as_the_report_says(monkeypatch, trials):
    monkeypatch.setattr(deciding, "DIRECTIONS", 1)

    def factor_of(escape, entry):
        return 1 + 2 * escape.threshold / abs(entry)

    often, expected = escapes(factor_of, trials, max_entries=6)
    assert 0.2 < expected < 0.4
    assert often == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / trials))
