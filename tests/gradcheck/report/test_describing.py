"""Reports in words: whole, and sentence by sentence."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np import gradcheck
from attention_np.gradcheck import METHODS, InputReport, Report

from ..reports import FLAT, HOLDS, MISSING, SAMPLE, WRONG, compared, wrong_in


def text_of(entry):
    """The cells in the line of one input, and the lines below the table."""
    header, row, *below = str(Report((entry,))).splitlines()
    assert " ".join(header.split()) == "input method holds error worst at analytic numerical floor"
    return row.split(), below


def said_of(escape):
    """What a report says of a sample, without line breaks."""
    return " ".join(line.strip() for line in text_of(replace(HOLDS, escape=escape))[1]).removeprefix("query: ")


TEXT = """
input         method        holds  error    worst at  analytic  numerical  floor
query         complex-step  yes    3.5e-16  [0, 2]    1.25      1.25       2.0e-16
x             complex-step  NO     2.0e-01  [1, 2]    5         4          1.0e-16
few           complex-step  yes    3.5e-16  [0, 2]    1.25      1.25       2.0e-16
many          complex-step  yes    0.0e+00  [0, 0]    0         0          1.0e-16
bias          complex-step  ?      1.0e-01  [1]       1e-17     -2e-17     3.0e-17
parameters.w  complex-step  NO     inf      -         -         -          -
empty         central       -      -        -         -         -          -
jvp           adjoint       yes    1.0e-16  -         1         1          0.0e+00
x: no simple cause
x: 2 of 5 entries are wrong, the worst first:
    index   analytic  numerical           relative error  floor
    [1, 2]  5         4                   2.0e-01         1.0e-16
    [0, 1]  1         1.0000000000009095  9.1e-13         1.0e-16
x: 1 of 5 entries cannot be decided at this precision: [1, 0]
x, few: forward refuses complex arrays
few: looked at 200 of 100000 entries and along 8 random directions: an error of 1e-11 of the gradient's norm
    escapes with probability at most 1.07e-13, an error in a single entry that is smaller than the noise along
    a direction with 0.998
many: 12 of 24 entries cannot be decided at this precision: [0, 0], [0, 2], [0, 4], [1, 0], [1, 2], ...
bias: 3 of 3 entries cannot be decided at this precision
bias: 2 of 3 entries differ, but too small to judge beside the others: to see more, scale the input, or check
    rows apart
parameters.w: the gradient is missing
empty: it has no entries: there is nothing to check
"""


def test_a_report_looks_so_as_text():
    numerical = np.arange(6.0).reshape(2, 3)
    analytic = np.where(numerical == 5, 5.0, numerical)
    numerical[0, 1], numerical[1, 2] = 1 + 2**-40, 4
    x = compared(
        "x", analytic, numerical, coarse=analytic == 3, looked_at=analytic != 4, note="forward refuses complex arrays"
    )
    half = np.arange(24).reshape(4, 6) % 2 == 0
    entries = [HOLDS, x]
    entries += [replace(HOLDS, name="few", note=x.note, escape=SAMPLE)]
    entries += [compared("many", np.zeros((4, 6)), np.zeros((4, 6)), coarse=half), FLAT, MISSING]
    entries += [InputReport("empty", "central", True, 0.0), InputReport("jvp", "adjoint", True, 1e-16, (), 1.0, 1.0)]
    assert str(Report((*entries,))).splitlines() == TEXT.splitlines()[1:]


@each(
    ("entry", "lines"),
    [
        (
            replace(FLAT, size=1, checked=1, undecidable=1, too_small=0),
            ["bias: 1 of 1 entry cannot be decided at this precision"],
        ),
        (wrong_in((1, 2), diagnosis=40 * " long"), [f"x: {40 * ' long'}", "x: 1 of 12 entries is wrong"]),
        (wrong_in((), shape=(), diagnosis=None), []),  # the line of the input shows the only one
        (wrong_in((0,), shape=(1,), diagnosis="twice\nover"), ["x: twice", "over"]),
    ],
)
def test_what_is_said_of_an_input_below_the_table(entry, lines):
    assert text_of(entry)[1] == lines


@each(
    ("analytic", "numerical", "wrong", "shown"),
    [
        (1 + 2**-50, 1.0, 1, ["1.0000000000000009", "1"]),
        (1 + 1.23456e-11, 1.0, 1, ["1.00000000001", "1"]),  # no more digits than it takes
        (math.nan, 4.25, 1, ["nan", "4.25"]),
    ],
)
def test_values_of_which_one_is_wrong_never_look_the_same(analytic, numerical, wrong, shown):
    entry = replace(WRONG, analytic=analytic, numerical=numerical, wrong=wrong)
    assert text_of(entry)[0][6:8] == shown
    many_lines = replace(entry, name="two\nlines", max_relative_error=math.nan)  # the error is not known
    assert text_of(many_lines)[0][:3] + text_of(many_lines)[0][4:5] == ["two", "lines", "central", "-"]


def test_a_check_of_a_sample_says_what_may_have_been_missed():
    assert said_of(SAMPLE) == (
        "looked at 200 of 100000 entries and along 8 random directions: an error of 1e-11 of the gradient's norm "
        "escapes with probability at most 1.07e-13, an error in a single entry that is smaller than the noise along a "
        "direction with 0.998"
    )
    assert SAMPLE.probability(1e-12) > 1e-6  # not the rare one
    for threshold, error in ((0.0, "1e-16"), (1e9, "1")):
        assert f"an error of {error} of the gradient's norm" in said_of(SAMPLE._replace(threshold=threshold))


def test_a_printed_report_fits_a_terminal():
    coarse = np.zeros((3, 4, 17, 16), bool)
    coarse[2, :, 16, 10:] = True
    numerical = np.full(coarse.shape, -1.23456789012e-101)
    wrong = compared("parameters.w_query", -numerical, numerical, 1e-117, diagnosis=None)
    unclear = compared("x", numerical, numerical, 1e-117, coarse=coarse, escape=SAMPLE, note=30 * "word ")
    text = str(Report((wrong, unclear)))
    assert max(map(len, text.splitlines())) <= 110
    assert "[2, 0, 16, 13], [2, 0, 16, 14], ..." in text.replace("\n   ", "")
    assert all(line.count("[") == line.count("]") for line in text.splitlines())  # no index is broken
    assert text.isascii()
    unbroken = text_of(replace(HOLDS, note=f"{94 * 'n'} complex-step"))[1]  # nor is a word, at a hyphen
    assert unbroken == [f"query: {94 * 'n'}", "    complex-step"]


def test_text_of_users_gives_no_orders_to_a_terminal():
    hostile = "\x1b[2J\u202e<script>alert('x')</script>&amp;\"'"
    report = Report((replace(wrong_in((1, 2), diagnosis=hostile, note=hostile), name=hostile), HOLDS))
    assert str(report).replace("\n", "").isprintable()
    assert str(report).count(r"\x1b[2J\u202e<script>") == 6  # four lines
    assert repr(report) == str(report)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_too_small_to_judge_is_counted_where_it_differs(method):
    weights = np.array([1.0, 1e-3, 1e-18, 1e-17])

    def backward(d, x):
        return d * weights * np.cos(x) * np.array([1, 1, 2, 1])

    report = gradcheck.check(lambda x: weights * np.sin(x), backward, {"x": np.ones(4)}, method=method)
    assert report.ok
    assert report["x"].too_small == 1
    assert "x: 1 of 4 entries differs, but too small to judge beside the others" in str(report)
