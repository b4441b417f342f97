"""Reports as objects: what they hold, compare and raise."""

import json
from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck import GradientError, Report, check

from ..reports import EVERYTHING, FLAT, HOLDS, MISSING, SAMPLE, WRONG, wrong_in


def test_an_input_is_found_by_its_name_and_all_come_in_order():
    report = Report((HOLDS, WRONG, MISSING))
    assert report["key"] is WRONG
    assert list(report) == [HOLDS, WRONG, MISSING]
    with pytest.raises(KeyError) as raised:
        Report((HOLDS, WRONG))["value"]
    assert raised.value.args == ("'value' is not among the inputs checked: query, key",)


def test_a_report_of_which_an_input_does_not_hold_raises_an_assertion_error_with_the_names_and_the_table():
    Report((HOLDS, FLAT)).raise_if_failed()
    report = Report((HOLDS, WRONG, MISSING))
    assert not report.ok
    with pytest.raises(GradientError) as raised:
        report.raise_if_failed()
    assert isinstance(raised.value, AssertionError)
    assert str(raised.value) == f"the gradient does not hold for key, parameters.w\n{report}"
    unseen = Report((HOLDS, replace(FLAT, ok=False, diagnosis="it could not be decided")))
    with pytest.raises(GradientError, match=r"^the gradient could not be checked for bias\n"):
        unseen.raise_if_failed()
    with pytest.raises(GradientError, match=r"^the gradient does not hold for key, bias\n"):
        Report((WRONG, *unseen)).raise_if_failed()


def test_reports_are_the_same_if_they_say_the_same_where_nan_is_nan():
    report = Report((replace(MISSING, analytic=float("nan")), wrong_in((1, 2))))
    same = Report((MISSING, replace(wrong_in((1, 2)), details=None)))
    assert report == same
    for other in (Report((MISSING,)), Report((MISSING, wrong_in((1, 1)))), Report((*same, HOLDS)), "report"):
        assert report != other
    assert Report((HOLDS,)) != Report((replace(HOLDS, note="by another method"),))


OF_TWO = """{"ok": false, "inputs": [
{"name": "bias", "method": "complex-step", "ok": true, "max_relative_error": 0.1, "worst_index": [1],
"analytic": 1e-17, "numerical": -2e-17, "floor": 3e-17, "size": 3, "checked": 3, "wrong": 0, "undecidable": 3,
"too_small": 2, "undecided": [[0], [1], [2]], "worst": [], "diagnosis": null, "note": null, "escape": null},
{"name": "parameters.w", "method": "complex-step", "ok": false, "max_relative_error": "Infinity", "worst_index": [],
"analytic": null, "numerical": null, "floor": 0.0, "size": 9, "checked": 0, "wrong": 0, "undecidable": 0,
"too_small": 0, "undecided": [], "worst": [], "diagnosis": "the gradient is missing", "note": null, "escape": null}]}
"""


def test_in_the_types_of_json_nan_is_none_and_an_infinity_its_name():
    assert Report((FLAT, MISSING)).to_dict() == json.loads(OF_TWO)
    assert EVERYTHING.to_dict()["inputs"][-1]["analytic"] == "-Infinity"
    said = Report((replace(wrong_in((1, 2)), escape=SAMPLE),)).to_dict()["inputs"][0]
    assert said["worst"][0] == {"index": [1, 2], "analytic": 8.0, "numerical": 7.0, "floor": 1e-16}
    assert said["escape"] == {"entries": 200, "size": 100_000, "directions": 8, "threshold": 3e-13, "norm": 1.0}


def test_the_report_of_a_check_is_json_whatever_its_dtype():
    for dtype in (np.float32, np.longdouble):
        x = np.linspace(0.5, 1, 6, dtype=dtype)
        for factor in (1, 2, np.inf, np.nan):
            report = check(np.sin, lambda d, x, factor=factor: d * factor * np.cos(x), {"x": x}, max_entries=3)
            assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["ok"] is (factor == 1)


def test_a_report_takes_the_place_of_another_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.json"
    Report((HOLDS,)).save(path)
    with path.open() as reader:
        Report((WRONG,)).save(path)
        assert json.load(reader)["inputs"][0]["name"] == HOLDS.name  # who reads the old one reads all of it
    with pytest.raises(TypeError):
        Report((replace(HOLDS, note=object()),)).save(path)
    assert json.loads(path.read_text()) == Report((WRONG,)).to_dict()
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    EVERYTHING.save(str(path))
    assert json.loads(path.read_text()) == EVERYTHING.to_dict()  # to the last digit
