"""Reports in words: whole, and sentence by sentence."""

import math
from dataclasses import replace
from html import unescape

import numpy as np
from helpers import each

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


def cells_of(entry):
    """What stands in the line of one input."""
    return str(Report((entry,))).splitlines()[1].split()


def test_of_an_input_without_entries_it_is_said_that_nothing_was_checked_but_not_of_forward_mode():
    empty = compared("x", np.ones((0, 3)), np.ones((0, 3)))
    assert lines_on(empty) == ["x: it has no entries: there is nothing to check"]
    assert cells_of(empty)[2] == "-"
    forward_mode = InputReport("jvp", "adjoint", True, 1e-16, (), 1.0, 1.0)
    assert lines_on(forward_mode) == []
    assert cells_of(forward_mode)[2] == "yes"


def test_of_a_check_that_was_stopped_it_is_said_after_how_many_entries_if_any_was_begun():
    assert lines_on(replace(HOLDS, size=400, checked=0)) == ["query: stopped after 0 of 400 entries"]


def test_one_entry_is_no_entries_and_shows_in_the_line_of_the_input_already():
    one = replace(FLAT, size=1, checked=1, undecidable=1, undecided=((),))
    assert lines_on(one) == ["bias: 1 of 1 entry cannot be decided at this precision"]
    assert lines_on(wrong_in((1, 2))) == ["x: 1 of 12 entries is wrong"]
    assert lines_on(wrong_in((), shape=())) == []  # the only one
    places = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    assert len(lines_on(wrong_in(*places))) == 2 + 5  # of many the five worst


@each(
    ("analytic", "numerical", "wrong", "shown"),
    [
        (1 + 2**-50, 1.0, 1, ["1.0000000000000009", "1"]),
        (1 + 2**-50, 1.0, 0, ["1", "1"]),
        (1 + 1.23456e-11, 1.0, 1, ["1.00000000001", "1"]),  # no more digits than it takes
        (math.nan, 4.25, 1, ["nan", "4.25"]),
        (1.5, math.nan, 1, ["1.5", "nan"]),
    ],
)
def test_values_of_which_one_is_wrong_never_look_the_same(analytic, numerical, wrong, shown):
    entry = replace(WRONG, analytic=analytic, numerical=numerical, wrong=wrong)
    assert cells_of(entry)[6:8] == shown
    many_lines = replace(entry, name="two\nlines", max_relative_error=math.nan)  # the error is not known
    assert cells_of(many_lines)[:5] == ["two", "lines", "central", "NO" if wrong else cells_of(entry)[2], "-"]


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
    assert "along 2 random directions: an error of" in _sampled(SAMPLE._replace(directions=2, norm=0.5))


@each(
    ("probability", "said"),
    [(0.0, "0"), (1.0, "1"), (1 / 800, "0.00125"), (0.001, "0.001"), (1 / 1001, "1e-03"), (1 / 3000, "4e-04")],
)
def test_a_probability_has_three_digits_down_to_a_thousandth_and_then_one(probability, said):
    assert _probability(probability) == said
    assert _probability(5e-324) == "5e-324"


def test_a_sample_without_directions_says_how_many_wrong_entries_may_have_been_missed():
    without = SAMPLE._replace(directions=0)
    said = (
        "looked at 200 of 100000 entries: a single wrong entry escapes with probability 0.998, errors in 1000 entries "
        "with 0.134"
    )
    for norm in (1.0, 0.0, math.inf):  # no error is a part of a gradient of zeros
        assert _sampled(without._replace(norm=norm)) == said
    small = _sampled(without._replace(size=150, entries=100))
    assert small.endswith("escapes with probability 0.333, errors in 1 entry with 0.333")


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


@each(("threshold", "error"), [(0.0, "1e-16"), (1e9, "1")])
def test_the_error_that_hardly_escapes_is_named_from_the_last_bit_to_the_whole(threshold, error):
    assert f"an error of {error} of the gradient's norm escapes" in _sampled(SAMPLE._replace(threshold=threshold))


def test_words_are_not_broken_however_long_they_are_nor_at_hyphens():
    assert _wrapped(f"x: {150 * 'n'} y").split() == ["x:", 150 * "n", "y"]
    assert _wrapped(f"{100 * 'n'} complex-step").splitlines() == [100 * "n", "    complex-step"]


def entry_with_everything():
    analytic = np.arange(6.0).reshape(2, 3)
    numerical = analytic.copy()
    numerical[0, 1], numerical[1, 2] = 1 + 2**-40, 4
    report = compared("x", analytic, numerical, coarse=analytic == 3, looked_at=analytic != 4)
    return replace(
        report, undecidable=1, undecided=((1, 0),), diagnosis="no simple cause", note="forward refuses complex arrays"
    )


def test_a_report_looks_so_as_text():
    every_second = np.arange(24).reshape(4, 6) % 2 == 0
    report = Report(
        (
            HOLDS,
            entry_with_everything(),
            replace(HOLDS, name="few", escape=SAMPLE._replace(directions=1, norm=2.5)),
            replace(HOLDS, name="none", escape=SAMPLE._replace(norm=0.0)),
            compared("many", np.zeros((4, 6)), np.zeros((4, 6)), coarse=every_second),
            FLAT,
            MISSING,
            replace(WRONG, checked=5, wrong=0, name="stopped", diagnosis=None),
        )
    )
    assert str(report).splitlines() == TEXT.splitlines()[1:]


TEXT = """
input               method        holds  error    worst at  analytic     numerical  floor
query               complex-step  yes    3.5e-16  [0, 2]    1.25         1.25       2.0e-16
x                   complex-step  NO     5.0e-01  [1, 2]    5            4          1.0e-16
few                 complex-step  yes    3.5e-16  [0, 2]    1.25         1.25       2.0e-16
none                complex-step  yes    3.5e-16  [0, 2]    1.25         1.25       2.0e-16
many                complex-step  yes    2.0e-16  [0, 0]    0            0          1.0e-16
bias                complex-step  ?      1.0e-01  [1]       1e-17        -2e-17     3.0e-17
parameters.w_query  complex-step  NO     inf      -         -            -          -
stopped             central       ...    5.0e-01  [1, 3]    -2.12345679  4.25       3.0e-11
x: no simple cause
x: 2 of 5 entries are wrong, the worst first:
    index   analytic  numerical           relative error  floor
    [1, 2]  5         4                   2.0e-01         1.0e-16
    [0, 1]  1         1.0000000000009095  9.1e-13         1.0e-16
x: 1 of 5 entries cannot be decided at this precision: [1, 0]
x: forward refuses complex arrays
x: stopped after 5 of 6 entries
few: looked at 200 of 100000 entries and along 1 random direction: an error of 1e-07 of the gradient's norm
    escapes with probability at most 1e-06, an error in a single entry that is smaller than the noise along a
    direction with 0.998
none: looked at 200 of 100000 entries: a single wrong entry escapes with probability 0.998, errors in 1000
    entries with 0.134
many: 12 of 24 entries cannot be decided at this precision: [0, 0], [0, 2], [0, 4], [1, 0], [1, 2], ...
bias: 3 of 3 entries cannot be decided at this precision
parameters.w_query: the gradient is missing
stopped: stopped after 5 of 12 entries
"""


def test_in_a_notebook_a_report_is_its_text_and_the_text_of_users_cannot_become_html():
    hostile = "<script>alert('x')</script>&amp;\"'"
    entry = replace(entry_with_everything(), name=hostile, diagnosis=hostile, note=hostile)
    for shown, text in ((entry, str(Report((entry,)))), (Report((entry, HOLDS)), str(Report((entry, HOLDS))))):
        html = shown._repr_html_()
        assert html.startswith("<pre>")
        assert html.endswith("</pre>")
        inside = html[len("<pre>") : -len("</pre>")]
        assert not {"<", ">"} & set(inside)
        assert unescape(inside) == text
