import math
from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck import Report
from attention_np.gradcheck.describing import _probability, _sampled, _wrapped
from attention_np.gradcheck.reporting import InputReport

from .reports import FLAT, HOLDS, MISSING, SAMPLE, WRONG, compared, wrong_in


def lines_on(entry):
    """What is printed below the table of one input."""
    header, row, *below = str(Report((entry,))).splitlines()
    assert header.startswith("input")
    assert row.startswith(entry.name)
    return below


def test_an_input_that_holds_has_its_line_and_nothing_else():
    assert lines_on(HOLDS) == []
    assert lines_on(compared("x", np.ones((2, 3)), np.ones((2, 3)))) == []


def test_of_an_input_without_entries_it_is_said_that_nothing_was_checked_but_not_of_forward_mode():
    empty = compared("x", np.ones((0, 3)), np.ones((0, 3)))
    assert lines_on(empty) == ["x: it has no entries: there is nothing to check"]
    assert str(Report((empty,))).splitlines()[1].split()[2] == "-"
    forward_mode = InputReport("jvp", "adjoint", True, 1e-16, (), 1.0, 1.0)
    assert lines_on(forward_mode) == []
    assert str(Report((forward_mode,))).splitlines()[1].split()[2] == "yes"


def test_the_line_of_an_input_is_one_line_and_says_nothing_of_an_error_that_is_not_known():
    row = str(Report((replace(WRONG, name="two\nlines", max_relative_error=math.nan),))).splitlines()[1]
    assert row.split()[:5] == ["two", "lines", "central", "NO", "-"]


def test_an_input_of_which_nothing_can_be_decided_neither_holds_nor_fails():
    assert str(Report((FLAT,))).splitlines()[1].split()[2] == "?"
    assert lines_on(FLAT) == ["bias: 3 of 3 entries cannot be decided at this precision"]
    one = replace(FLAT, size=1, checked=1, undecidable=1, undecided=((),))
    assert lines_on(one) == ["bias: 1 of 1 entry cannot be decided at this precision"]


def test_the_columns_of_a_printed_report_stand_below_each_other():
    lines = str(Report((HOLDS, WRONG, MISSING))).splitlines()[:4]
    for column in ("method", "holds", "error", "worst at", "analytic", "numerical", "floor"):
        start = lines[0].index(column)
        assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_values_of_which_one_is_wrong_never_look_the_same():
    close = replace(WRONG, analytic=1 + 2**-50, numerical=1.0)
    row = str(Report((close,))).splitlines()[1].split()
    assert (float(row[6]), float(row[7])) == (1 + 2**-50, 1.0)
    assert str(Report((replace(close, wrong=0),))).splitlines()[1].split()[6:8] == ["1", "1"]
    near = replace(WRONG, analytic=1 + 1.23456e-11, numerical=1.0)  # no more digits than it takes
    assert str(Report((near,))).splitlines()[1].split()[6:8] == ["1.00000000001", "1"]


def test_a_value_that_is_not_a_number_is_shown_beside_the_other():
    for analytic, numerical, shown in ((math.nan, 4.25, ["nan", "4.25"]), (1.5, math.nan, ["1.5", "nan"])):
        entry = replace(WRONG, analytic=analytic, numerical=numerical)
        assert str(Report((entry,))).splitlines()[1].split()[6:8] == shown


def test_several_wrong_entries_are_counted_and_the_worst_five_shown():
    places = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    first, header, *rows = lines_on(wrong_in(*places, diagnosis="no simple cause"))[1:]
    assert first == "x: 6 of 12 entries are wrong, the worst first:"
    assert header.split() == ["index", "analytic", "numerical", "relative", "error", "floor"]
    assert [row.split()[:4] for row in rows] == [
        ["[2,", "3]", "18", "12"],
        ["[2,", "2]", "16", "11"],
        ["[1,", "2]", "11", "7"],
        ["[1,", "1]", "9", "6"],
        ["[0,", "1]", "4", "2"],
    ]
    assert rows[0].split()[4:] == ["3.3e-01", "1.0e-16"]
    assert all(row.startswith("    ") for row in (header, *rows))


def test_one_wrong_entry_is_in_the_line_of_the_input_already():
    assert lines_on(wrong_in((1, 2))) == ["x: 1 of 12 entries is wrong"]
    assert lines_on(wrong_in((), shape=())) == []  # the only one


def test_the_diagnosis_is_one_line_however_long_and_comes_first():
    long = "it is " + 40 * "very " + "wrong"
    assert lines_on(wrong_in((1, 2), diagnosis=long))[0] == f"x: {long}"


def test_counts_are_out_of_the_entries_that_were_looked_at():
    looked_at = np.arange(12).reshape(3, 4) < 8
    report = wrong_in((0, 0), (0, 1), looked_at=looked_at)
    assert lines_on(report)[0] == "x: 2 of 8 entries are wrong, the worst first:"


def test_a_check_that_was_stopped_says_after_how_many_entries():
    assert lines_on(replace(HOLDS, size=400, checked=120)) == ["query: stopped after 120 of 400 entries"]
    assert lines_on(replace(HOLDS, size=400, checked=0)) == ["query: stopped after 0 of 400 entries"]
    assert lines_on(MISSING) == ["parameters.w_query: the gradient is missing"]  # nothing was begun


def test_a_check_of_a_sample_says_what_may_have_been_missed():
    report = replace(HOLDS, size=100_000, checked=200, escape=SAMPLE)
    said = " ".join(line.strip() for line in lines_on(report))
    assert said == (
        "query: looked at 200 of 100000 entries and along 8 random directions: an error of 1e-11 of the gradient's "
        "norm escapes with probability at most 2e-13, an error in a single entry that is smaller than the noise "
        "along a direction with 0.998"
    )
    assert 1e-13 < SAMPLE.probability(1e-11) < 2e-13  # rounded up, as it is a bound
    assert SAMPLE.probability(1e-12) > 1e-6  # not the rare one
    assert "along 1 random direction: an error of" in lines_on(replace(report, escape=SAMPLE._replace(directions=1)))[0]
    two = lines_on(replace(report, escape=SAMPLE._replace(directions=2, norm=0.5)))
    assert "along 2 random directions: an error of" in two[0]


def test_a_probability_has_three_digits_down_to_a_thousandth_and_then_one():
    for size, said in ((800, "0.00125"), (1000, "0.001"), (1001, "1e-03"), (3000, "4e-04")):
        entry = replace(HOLDS, escape=SAMPLE._replace(entries=size - 1, size=size, directions=0))
        assert f"a single wrong entry escapes with probability {said}, " in " ".join(" ".join(lines_on(entry)).split())


def test_a_sample_without_directions_says_how_many_wrong_entries_may_have_been_missed():
    report = replace(HOLDS, size=100_000, checked=200, escape=SAMPLE._replace(directions=0))
    assert " ".join(line.strip() for line in lines_on(report)) == (
        "query: looked at 200 of 100000 entries: a single wrong entry escapes with probability 0.998, "
        "errors in 1000 entries with 0.134"
    )
    for norm in (0.0, math.inf):  # no error is a part of a gradient of zeros
        assert lines_on(replace(report, escape=SAMPLE._replace(norm=norm))) == lines_on(report)
    small = replace(report, escape=SAMPLE._replace(directions=0, size=150, entries=100))
    assert " ".join(" ".join(lines_on(small)).split()).endswith(
        "escapes with probability 0.333, errors in 1 entry with 0.333"
    )


def test_a_printed_report_fits_a_terminal():
    coarse = np.zeros((3, 4, 17, 16), bool)
    coarse[2, :, 16, 10:] = True
    numerical = -1.23456789012e-101 * np.ones(coarse.shape)
    report = compared("parameters.w_query", -numerical, numerical, 1e-117, coarse=coarse)
    unclear = compared("x", numerical, numerical, 1e-117, coarse=coarse, escape=SAMPLE, note=30 * "word ")
    text = str(Report((report, unclear)))
    assert max(map(len, text.splitlines())) <= 110
    assert "[2, 0, 16, 13], [2, 0, 16, 14], ..." in text.replace("\n   ", "")
    assert all(line.count("[") == line.count("]") for line in text.splitlines())  # no index is broken
    assert text.isascii()


def test_the_smallest_probability_there_is_has_a_digit():
    assert _probability(5e-324) == "5e-324"


@pytest.mark.parametrize(("threshold", "error"), [(0.0, "1e-16"), (1e9, "1")])
def test_the_error_that_hardly_escapes_is_named_from_the_last_bit_to_the_whole(threshold, error):
    assert f"an error of {error} of the gradient's norm escapes" in _sampled(SAMPLE._replace(threshold=threshold))


def test_of_a_probability_of_nothing_or_of_all_no_digit_is_lost():
    assert (_probability(0.0), _probability(1.0)) == ("0", "1")


def test_words_are_not_broken_however_long_they_are():
    assert _wrapped(f"x: {150 * 'n'} y").split() == ["x:", 150 * "n", "y"]


def test_lines_are_not_broken_at_hyphens():
    assert _wrapped(f"{100 * 'n'} complex-step").splitlines() == [100 * "n", "    complex-step"]
