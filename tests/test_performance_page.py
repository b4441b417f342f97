"""The tables of docs/performance.md are those of what was measured."""

import json
import re

import pytest

from docs import performance

SPEED, CLUSTER = (json.loads(file.read_text(encoding="utf-8")) for file in (performance.SPEED, performance.CLUSTER))
TEXT = performance.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_what_was_measured() -> None:
    assert performance.page(TEXT, SPEED, CLUSTER) == TEXT, "write it again: python -m docs.performance"


def test_every_row_that_was_measured_is_shown() -> None:
    for row in SPEED["rows"]:
        before, row["milliseconds"]["ours"] = row["milliseconds"]["ours"], 987654
        assert performance.page(TEXT, SPEED, CLUSTER).count("9.88e+05") == 1
        row["milliseconds"]["ours"] = before
    for row in CLUSTER["rows"]:
        before, row["sent"] = row["sent"], 9_876_540_000
        assert performance.page(TEXT, SPEED, CLUSTER).count("9876.54") == 1
        row["sent"] = before


def test_what_processes_are_sent_is_what_the_page_counts() -> None:
    n, heads, d, workers, size = CLUSTER["n"], CLUSTER["heads"], 64, CLUSTER["workers"], 4
    rows = {row["way"]: row for row in CLUSTER["rows"]}
    whole, shares = rows["forward"], rows["shares, forward"]
    assert 3 * n * d <= whole["sent"] / size / heads < 3.2 * n * d  # queries, keys and values, each once
    assert shares["tasks"] == workers
    assert 1 <= shares["sent"] / size / heads / ((workers + 2) * n * d) < 1.01  # queries to all; keys and values once
    assert 1 <= shares["received"] / size / heads / (workers * n * (d + 1)) < 1.01  # outputs and log-sum-exps


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    for begin, _ in performance.COMMENTS:
        with pytest.raises(ValueError, match=rf"^performance\.md has no place for the tables: {re.escape(begin)}"):
            performance.page(TEXT.replace(begin, ""), SPEED, CLUSTER)
