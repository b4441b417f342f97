"""Reports as they look, whole."""

from dataclasses import replace
from html import unescape

import numpy as np

from attention_np.gradcheck import Report

from .reports import FLAT, HOLDS, MISSING, SAMPLE, WRONG, compared


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
