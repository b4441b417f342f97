"""Reports in files, as JSON."""

import json
from dataclasses import replace

import pytest

from attention_np.gradcheck import Report

from ..reports import EVERYTHING, HOLDS, WRONG


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
