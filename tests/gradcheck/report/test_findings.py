"""What is found for an input, and what can escape a sample."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import InputReport
from attention_np.gradcheck.report.findings import Entry
from attention_np.gradcheck.verdict.judging import Escape

from ..reports import FLAT, HOLDS, MISSING, SAMPLE, WRONG, compared


@each(
    ("entry", "verdict"),
    [
        (HOLDS, "holds"),
        (WRONG, "wrong"),
        (MISSING, "wrong"),
        (FLAT, "undecidable"),
        (replace(FLAT, ok=False, diagnosis="no entry can be decided"), "undecidable"),
        (replace(FLAT, undecidable=2), "holds"),
        (InputReport("empty", "complex-step", True, 0.0), "holds"),
        (InputReport("jvp", "adjoint", True, 1e-16, (), 1.0, 1.0), "holds"),
    ],
)
def test_the_verdict_on_an_input(entry, verdict):
    assert entry.verdict == verdict


@each(
    ("analytic", "numerical", "error"),
    [
        (3.0, 4.0, 0.25),
        (-4.0, 3.0, 1.75),
        (0.0, 0.0, 0),
        (0.0, -1e-300, 1),
        (math.inf, 1, math.inf),
        (math.nan, 1, math.inf),
    ],
)
def test_the_relative_error_of_an_entry_is_over_the_larger_value(analytic, numerical, error):
    assert Entry((0,), analytic, numerical, 1e-16).relative_error == error


def test_the_worst_entries_are_wrong_ones_first_and_of_each_kind_the_largest_difference_first():
    analytic = np.arange(1.0, 9)
    numerical = analytic + np.array([0.125, 3, 0, 0.25, 4, 2, 0, 5])
    coarse = np.isin(analytic, [1, 5, 7])
    report = compared("x", analytic, numerical, np.where(coarse, 1.0, 0.05), coarse=coarse, looked_at=analytic < 8)
    assert [entry.index for entry in report.worst] == [(1,), (5,), (4,), (0,), (6,)]
    assert (report.worst_index, report.analytic, report.numerical, report.floor) == ((1,), 2.0, 5.0, 0.05)
    assert (report.size, report.checked, report.wrong, report.undecidable) == (8, 7, 2, 3)
    assert report.undecided == ((0,), (4,), (6,))
    assert len(compared("x", np.ones(30), np.ones(30), coarse=True).undecided) == 10


def test_the_error_is_that_of_the_largest_difference_over_the_largest_value_of_all_that_are_known():
    assert compared("x", [1.0, 8.0], [2.0, 8.0]).max_relative_error == 1 / 8
    assert compared("x", [1.0, 8.0], [2.0, np.nan]).max_relative_error == 1 / 2
    nothing = compared("x", np.ones(3), np.full(3, np.nan))
    assert math.isnan(nothing.max_relative_error)
    assert (nothing.analytic, math.isnan(nothing.numerical)) == (1.0, True)
    empty = compared("x", np.ones((0, 3)), np.ones((0, 3)))
    assert (empty.max_relative_error, empty.worst_index, empty.worst) == (0.0, (), ())


def test_the_error_of_a_gradient_that_is_all_noise_is_relative_to_the_terms_that_cancelled():
    noise = compared("x", [1e-17, -2e-17], [-1e-17, 1e-17], floor=1e-16, coarse=True)
    assert noise.max_relative_error == pytest.approx(3e-17 / (1e-16 / 2.0**-52), rel=1e-12)
    told = compared("x", [1e-17, 2e-15], [-1e-17, 2e-15 + 1e-17], floor=1e-16)  # one entry is above its noise
    assert told.max_relative_error == pytest.approx(1e-17 / 1e-15, rel=0.1)


def test_an_error_escapes_as_often_as_in_a_simulation():
    rng = np.random.default_rng(0)
    escape = Escape(entries=5, size=30, directions=3, threshold=1.5, norm=7.0)
    trials = 50_000
    seen = (np.abs(rng.standard_normal((trials, 3))) >= 1.5).any(axis=1)
    hit = (rng.permuted(np.tile(np.arange(30), (trials, 1)), axis=1)[:, :5] == 3).any(axis=1)
    expected = escape.probability(1 / 7)
    assert abs((~seen & ~hit).mean() - expected) < 5 * math.sqrt(expected * (1 - expected) / trials)


@each(
    ("escape", "error", "probability"),
    [
        (SAMPLE, 0, 0.998),
        (SAMPLE, 2e-13, 0.998 * math.erf(1.5 / math.sqrt(2)) ** 8),
        (SAMPLE._replace(norm=0.0), 1.0, 0.998),
        (SAMPLE._replace(norm=math.inf), 0, 0.998),
        (SAMPLE._replace(directions=100), 1e-6, 0),  # below the smallest number
        (SAMPLE._replace(entries=12, size=12), 0, 0),
    ],
)
def test_the_probability_of_escape_at_its_ends(escape, error, probability):
    assert escape.probability(error) == pytest.approx(probability, rel=1e-9, abs=0)
