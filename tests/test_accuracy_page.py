"""The tables of docs/accuracy.md are those of what was measured."""

import json

import pytest

from docs import accuracy

MEASURED = json.loads(accuracy.MEASURED.read_text(encoding="utf-8"))


def test_the_tables_are_those_of_what_was_measured() -> None:
    text = accuracy.PAGE.read_text(encoding="utf-8")
    assert accuracy.page(text, MEASURED) == text, "write it again: python -m docs.accuracy"


def test_a_worst_ratio_is_seen_wherever_it_is() -> None:
    text = accuracy.PAGE.read_text(encoding="utf-8")
    for row in (MEASURED["rows"][0], MEASURED["rows"][-1]):
        before, row["ratios"]["blockwise"] = row["ratios"]["blockwise"], 9.87
        assert accuracy.page(text, MEASURED).count("9.87") == 1
        row["ratios"]["blockwise"] = before


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^accuracy\.md has no place for the tables"):
        accuracy.page("nothing here", MEASURED)
