import json
from dataclasses import FrozenInstanceError

import pytest

from attention_np.gradcheck import GradientError, InputReport, Report

HOLDS = InputReport("query", "complex-step", True, 3.5e-16, (0, 2), 1.25, 1.25, undecidable=3)
WRONG = InputReport("key", "central", False, 0.5, (1, 3), -2.123456789012, 4.25)
MISSING = InputReport("parameters.w_query", "complex-step", False, float("inf"), diagnosis="the gradient is missing")


def test_a_report_holds_if_all_of_its_inputs_do():
    assert Report((HOLDS, HOLDS)).ok
    assert not Report((HOLDS, WRONG)).ok
    assert not Report((MISSING, HOLDS)).ok


def test_an_input_is_found_by_its_name_and_all_come_in_order():
    report = Report((HOLDS, WRONG, MISSING))
    assert report["key"] is WRONG
    assert report["parameters.w_query"] is MISSING
    assert list(report) == [HOLDS, WRONG, MISSING]


def test_an_input_that_was_not_checked_is_refused_with_those_that_were():
    with pytest.raises(KeyError) as raised:
        Report((HOLDS, WRONG))["value"]
    assert raised.value.args == ("'value' is not among the inputs checked: query, key",)


def test_a_printed_report_has_a_line_an_input_with_both_values_the_place_and_the_error():
    lines = str(Report((HOLDS, WRONG, MISSING))).splitlines()
    assert lines[0].split() == ["input", "method", "holds", "error", "worst", "at", "analytic", "numerical"]
    assert lines[1].split() == ["query", "complex-step", "yes", "3.5e-16", "[0,", "2]", "1.25", "1.25"]
    assert lines[2].split() == ["key", "central", "NO", "5.0e-01", "[1,", "3]", "-2.12345679", "4.25"]
    assert lines[3].split() == ["parameters.w_query", "complex-step", "NO", "inf", "[]", "nan", "nan"]
    assert lines[4] == "query: 3 entries cannot be decided at this precision"
    assert lines[5] == "parameters.w_query: the gradient is missing"
    assert len(lines) == 6


def test_the_columns_of_a_printed_report_stand_below_each_other():
    lines = str(Report((HOLDS, WRONG, MISSING))).splitlines()[:4]
    for column in ("method", "holds", "error", "worst at", "analytic", "numerical"):
        start = lines[0].index(column)
        assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_one_entry_that_cannot_be_decided_is_an_entry():
    one = InputReport("x", "central", True, 1e-3, (0,), 1.0, 1.0, undecidable=1)
    assert str(Report((one,))).splitlines()[-1] == "x: 1 entry cannot be decided at this precision"


def test_a_report_that_holds_raises_nothing():
    Report((HOLDS,)).raise_if_failed()


def test_a_report_that_does_not_hold_raises_an_assertion_error_with_the_names_and_the_table():
    report = Report((HOLDS, WRONG, MISSING))
    with pytest.raises(GradientError) as raised:
        report.raise_if_failed()
    assert isinstance(raised.value, AssertionError)
    assert str(raised.value) == f"the gradient does not hold for key, parameters.w_query\n{report}"


def test_to_dict_is_json_by_the_standard_and_says_all():
    report = Report((HOLDS, WRONG, MISSING))
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False)) == {
        "ok": False,
        "inputs": [
            {
                "name": "query",
                "method": "complex-step",
                "ok": True,
                "max_relative_error": 3.5e-16,
                "worst_index": [0, 2],
                "analytic": 1.25,
                "numerical": 1.25,
                "undecidable": 3,
                "diagnosis": None,
            },
            {
                "name": "key",
                "method": "central",
                "ok": False,
                "max_relative_error": 0.5,
                "worst_index": [1, 3],
                "analytic": -2.123456789012,
                "numerical": 4.25,
                "undecidable": 0,
                "diagnosis": None,
            },
            {
                "name": "parameters.w_query",
                "method": "complex-step",
                "ok": False,
                "max_relative_error": None,  # JSON has no infinity
                "worst_index": [],
                "analytic": None,
                "numerical": None,
                "undecidable": 0,
                "diagnosis": "the gradient is missing",
            },
        ],
    }


def test_a_report_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        WRONG.ok = True
    with pytest.raises(FrozenInstanceError):
        Report((WRONG,)).inputs = ()
