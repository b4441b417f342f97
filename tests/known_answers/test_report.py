"""What a report says: how many cases, where, by how much, and what it looks like."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array

from attention_np import known_answers, softmax

from .sets import Sets, standard


def test_a_report_begins_with_how_many_cases_were_checked(small: Path) -> None:
    def one_case(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if inputs["scores"].shape != (1, 1000):
            raise NotImplementedError
        return known_answers.of_op(softmax)(inputs, options)

    report = known_answers.verify(one_case, small, op="softmax")
    assert report.ok
    assert str(report).splitlines()[:2] == ["1 of 17 cases were checked, 16 skipped", ""]
    report = known_answers.verify(known_answers.of_op(softmax), small, op="softmax")
    assert str(report).splitlines()[0] == "17 of 17 cases were checked, 0 skipped"


def test_a_report_says_where_by_how_much_and_what_it_looks_like(answers: Sets) -> None:
    def missing_scale(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return standard(inputs, options, key_scale=np.float32(1))

    report = known_answers.verify(missing_scale, answers["dot_product"], skip=["hidden non-finite"])
    wrong = report["plain", "d_key"]
    assert wrong.note == "it is sqrt(5) times the answer throughout"
    assert wrong.error > 1e4
    text = str(report)
    assert re.search(r"float32  output +\d+ +\d+ +0\.\d+ +dot_product/", text)
    assert re.search(
        r"float32/dot_product/[\w-]+: d_key is wrong in \d+ of \d+ entries \(.*\)\n    at \[[\d, ]+\] it is", text
    )
    assert "cases were skipped: float32/dot_product/" in text
    with pytest.raises(known_answers.KnownAnswerError, match=r"^\d+ arrays are not the known answers\n"):
        report.raise_if_failed()
    assert report["plain", "output"].ok
    with pytest.raises(KeyError, match="d_bias was not compared"):
        report["plain", "d_bias"]
