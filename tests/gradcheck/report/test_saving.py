"""Reports in files: they come back as they were, and what is none is refused."""

import json
import re
from dataclasses import replace

import pytest
from helpers import each

from attention_np.gradcheck import Report
from attention_np.gradcheck.report import saving
from attention_np.gradcheck.report.findings import Entry
from attention_np.gradcheck.verdict.sampling import Escape

from ..reports import EVERYTHING, HOLDS, SAMPLE, WRONG, wrong_in


def test_a_report_that_is_saved_and_loaded_is_the_same_without_its_arrays(tmp_path):
    path = tmp_path / "report.json"
    EVERYTHING.save(path)
    loaded = Report.load(str(path))
    assert loaded == EVERYTHING
    assert str(loaded) == str(EVERYTHING)
    assert hash(loaded) == hash(EVERYTHING)
    assert all(entry.details is None for entry in loaded)
    assert isinstance(loaded["x"].worst[0], Entry)
    assert isinstance(loaded["x"].escape, Escape)
    assert loaded["x"].worst == EVERYTHING["x"].worst  # to the last digit
    assert set(json.loads(path.read_text())) == {"format", "version", "ok", "inputs"}


def test_a_report_takes_the_place_of_another_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.json"
    Report((HOLDS,)).save(path)
    with path.open() as reader:
        Report((WRONG,)).save(path)
        assert json.load(reader)["inputs"][0]["name"] == HOLDS.name  # who reads the old one reads all of it
    with pytest.raises(TypeError):
        Report((replace(HOLDS, note=object()),)).save(path)
    assert Report.load(path) == Report((WRONG,))
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def saved_with(change):
    """The JSON of a report, changed."""
    value = {**saving.HEADER, **Report((replace(wrong_in((1, 2)), escape=SAMPLE),)).to_dict()}
    value = json.loads(json.dumps(value))
    change(value)
    return json.dumps(value)


def with_input(**values):
    return saved_with(lambda value: value["inputs"][0].update(values))


def with_escape(**values):
    return saved_with(lambda value: value["inputs"][0]["escape"].update(values))


STRANGE = [
    ("", "Expecting value"),
    (b"\xff\xfe\x00", "codec"),
    ("1", 'it has no "format": "attention_np gradient report"$'),
    (saved_with(lambda value: value.update(version=1)), "its version is 1, and only 2 can be read$"),
    (saved_with(lambda value: value.pop("inputs")), "inputs is missing$"),
    (saved_with(lambda value: value.update(inputs={})), "inputs: a list is expected, not {}$"),
    (saved_with(lambda value: value.update(inputs=[])), "it reports on no input$"),
    (saved_with(lambda value: value["inputs"][0].pop("name")), "inputs: name is missing$"),
    (with_input(name=1001 * "x"), "inputs: name: a name of more than 1000 characters$"),
    (with_input(analytic=10**400), "analytic: a number is too large$"),
    (with_input(too_small=-1), "too_small: a whole number that is not negative is expected, not -1$"),
    (with_input(escape={}), "escape: entries is missing$"),
    (with_escape(entries=3, size=2), "escape: 3 entries cannot have been looked at of 2$"),
]


@each(("content", "reason"), STRANGE)
def test_a_file_that_is_no_report_is_refused_by_its_path_with_the_reason(tmp_path, content, reason):
    path = tmp_path / "a file.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a saved gradient report: .*{reason}") as said:
        Report.load(path)
    assert type(said.value) is ValueError
    path.write_text(with_input())
    assert Report.load(path)["x"].worst_index == (1, 2)  # of which all these are made
