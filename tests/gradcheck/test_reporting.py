"""Reports, and what can escape a sample."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from helpers import each
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck import GradientError, InputReport, Report
from attention_np.gradcheck.findings import Entry, Escape

from .reports import FLAT, HOLDS, MISSING, SAMPLE, WRONG, compared, wrong_in


def test_an_input_is_found_by_its_name_and_all_come_in_order():
    report = Report((HOLDS, WRONG, MISSING))
    assert report["key"] is WRONG
    assert report["parameters.w_query"] is MISSING
    assert list(report) == [HOLDS, WRONG, MISSING]
    with pytest.raises(KeyError) as raised:
        Report((HOLDS, WRONG))["value"]
    assert raised.value.args == ("'value' is not among the inputs checked: query, key",)


@each(
    ("entry", "verdict"),
    [
        (HOLDS, "holds"),
        (WRONG, "wrong"),
        (MISSING, "wrong"),
        (FLAT, "undecidable"),
        (replace(FLAT, undecidable=2), "holds"),
        (InputReport("empty", "complex-step", True, 0.0), "holds"),
        (InputReport("jvp", "adjoint", True, 1e-16, (), 1.0, 1.0), "holds"),
        (InputReport("not begun", "complex-step", True, 0.0, size=5), "undecidable"),
    ],
)
def test_the_verdict_is_undecidable_if_nothing_could_be_decided(entry, verdict):
    assert entry.verdict == verdict


def test_a_report_of_which_an_input_does_not_hold_raises_an_assertion_error_with_the_names_and_the_table():
    assert Report((HOLDS, HOLDS)).ok
    Report((HOLDS,)).raise_if_failed()
    report = Report((HOLDS, WRONG, MISSING))
    assert not report.ok
    with pytest.raises(GradientError) as raised:
        report.raise_if_failed()
    assert isinstance(raised.value, AssertionError)
    assert str(raised.value) == f"the gradient does not hold for key, parameters.w_query\n{report}"


def test_a_report_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        WRONG.ok = True
    with pytest.raises(FrozenInstanceError):
        Report((WRONG,)).inputs = ()


def test_reports_are_equal_if_they_say_the_same_whatever_their_arrays():
    assert replace(MISSING, analytic=float("nan")) == MISSING  # though no NaN equals another
    assert hash(replace(MISSING, analytic=float("nan"))) == hash(MISSING)
    assert len({hash(entry) for entry in (HOLDS, WRONG, MISSING, FLAT)}) > 1
    assert wrong_in((1, 2)) == replace(wrong_in((1, 2)), details=None)
    assert wrong_in((1, 2)) != wrong_in((1, 1))
    assert replace(HOLDS, note="by another method") != HOLDS
    assert HOLDS != "query"


@each(
    ("analytic", "numerical", "error"),
    [
        (1.0, 1.0, 0),
        (0.0, 0.0, 0),
        (1.0, 4.0, 0.75),
        (-4.0, 1.0, 1.25),
        (0.0, 1e-300, 1),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (math.inf, math.inf, math.inf),
        (math.inf, 1, math.inf),
    ],
)
def test_the_relative_error_of_an_entry_is_over_the_larger_value(analytic, numerical, error):
    assert Entry((0,), analytic, numerical, 0.0).relative_error == error


def test_to_dict_is_json_by_the_standard_and_says_all():
    said = json.loads(json.dumps(Report((FLAT, MISSING)).to_dict(), allow_nan=False))
    bias = {
        "name": "bias",
        "method": "complex-step",
        "ok": True,
        "max_relative_error": 0.1,
        "worst_index": [1],
        "analytic": 1e-17,
        "numerical": -2e-17,
        "floor": 3e-17,
        "size": 3,
        "checked": 3,
        "wrong": 0,
        "undecidable": 3,
        "undecided": [[0], [1], [2]],
        "worst": [],
        "diagnosis": None,
        "note": None,
        "escape": None,
    }
    missing = {"name": "parameters.w_query", "ok": False, "size": 9, "diagnosis": "the gradient is missing"}
    missing |= dict.fromkeys(("floor", "checked", "undecidable"), 0) | dict.fromkeys(("analytic", "numerical"))
    missing |= {"max_relative_error": "Infinity", "worst_index": [], "undecided": []}  # JSON has no infinity
    assert said == {"ok": False, "inputs": [bias, {**bias, **missing}]}
    said = replace(wrong_in((1, 2)), escape=SAMPLE).to_dict()
    assert said["worst"][0] == {"index": [1, 2], "analytic": 8.0, "numerical": 7.0, "floor": 1e-16}
    assert said["escape"] == {"entries": 200, "size": 100_000, "directions": 8, "threshold": 3e-13, "norm": 1.0}


def test_to_dict_takes_the_numbers_of_numpy():
    numpy = replace(HOLDS, ok=np.True_, worst_index=(np.int64(0), np.int32(2)), analytic=np.float32(1.25))
    assert json.dumps(numpy.to_dict()) == json.dumps(HOLDS.to_dict())


def test_to_dict_includes_the_arrays_when_asked():
    report = compared("x", [[1.0, 2.0, 3.0]], [[1.0, 5.0, 0.0]], looked_at=[True, True, False])
    assert "details" not in report.to_dict()
    assert "details" not in Report((report,)).to_dict()["inputs"][0]
    assert Report((report,)).to_dict(details=True)["inputs"][0]["details"] == {
        "analytic": {"shape": [1, 3], "values": [[1.0, 2.0, 3.0]]},
        "numerical": {"shape": [1, 3], "values": [[1.0, 5.0, None]]},
        "floor": {"shape": [1, 3], "values": [[1e-16, 1e-16, 1e-16]]},
        "verdict": {"shape": [1, 3], "values": [[0, 1, 3]]},
    }


def test_an_error_escapes_as_often_as_in_a_simulation():
    rng = np.random.default_rng(0)
    escape = Escape(entries=5, size=30, directions=3, threshold=1.5, norm=7.0)
    error = np.zeros(30)
    error[[3, 8]] = 0.6, 0.8  # of the norm 1
    trials = 50_000
    seen = (np.abs(rng.standard_normal((trials, 3, 30)) @ error) >= 1.5).any(axis=1)
    drawn = rng.permuted(np.tile(np.arange(30), (trials, 1)), axis=1)[:, :5]
    hit = (error[drawn] != 0).any(axis=1)
    escaped = float((~seen & ~hit).mean())
    expected = escape.probability(1 / 7, wrong_entries=2)
    assert abs(escaped - expected) < 5 * math.sqrt(expected * (1 - expected) / trials)


def test_the_probability_of_escape_is_the_formula():
    by_directions = math.erf(3e-13 / (2e-13 * math.sqrt(2))) ** 8
    by_entries = math.comb(100_000 - 50, 200) / math.comb(100_000, 200)
    assert SAMPLE.probability(2e-13, 50) == pytest.approx(by_directions * by_entries, rel=1e-12)
    exchanged = SAMPLE._replace(entries=50)
    assert exchanged.probability(2e-13, 200) == pytest.approx(by_directions * by_entries, rel=1e-12)


def test_an_error_too_small_for_the_directions_is_left_to_the_entries():
    assert SAMPLE.probability(0) == SAMPLE.probability(1e-300) == pytest.approx(0.998)
    assert SAMPLE.probability(0, 0) == 1
    for without in ({"norm": 0.0}, {"directions": 0}):
        assert SAMPLE._replace(**without).probability(1.0) == pytest.approx(0.998)
    assert SAMPLE._replace(norm=math.inf).probability(0) == pytest.approx(0.998)
    assert SAMPLE._replace(directions=100).probability(1e-6) == 0  # below the smallest number


def test_what_is_looked_at_throughout_lets_nothing_escape():
    everything = SAMPLE._replace(entries=12, size=12)
    assert everything.probability(0) == 0
    assert everything.probability(0, 12) == 0
    assert Escape(4, 12, 0, 0.0, 1.0).probability(0, 9) == 0  # more wrong ones than were left out
    assert Escape(4, 12, 0, 0.0, 1.0).probability(0, 8) == pytest.approx(1 / math.comb(12, 4))


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.integers(1, 99), st.integers(0, 8))
def test_a_larger_error_in_more_entries_escapes_less_often(error, more, wrong, directions):
    escape = Escape(5, 100, directions, 1e-3, 2.0)
    assert 1 >= escape.probability(error, wrong) >= escape.probability(error + more, wrong + 1) >= 0


def test_an_error_that_there_cannot_be_is_refused():
    for error in (-1e-3, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"relative_error must be a finite number .* not negative, not {error}"):
            SAMPLE.probability(error)
    for wrong in (-1, 100_001):
        with pytest.raises(ValueError, match=f"wrong_entries must be from 0 to the 100000 that there are, not {wrong}"):
            SAMPLE.probability(1e-3, wrong)


def test_the_probability_of_very_many_factors_is_a_close_bound():
    n, size = 20_000, 10**9
    choices = [math.lgamma(k + 1) for k in (size - n, size - n, size, size - 2 * n)]
    exact = math.exp(choices[0] + choices[1] - choices[2] - choices[3])
    assert Escape(n, size, 0, 0.0, 1.0).probability(0, n) == pytest.approx(exact, rel=1e-4)
