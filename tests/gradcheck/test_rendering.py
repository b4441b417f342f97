"""Reports as they look, whole."""

from dataclasses import replace

import numpy as np

from attention_np.gradcheck import Report, _html

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


def test_a_report_looks_so_as_html():
    html = Report((entry_with_everything(),))._repr_html_()
    assert html.replace(_html.STYLE, "") == "".join(HTML)


HTML = [
    '<div class="anp-report"><style></style>',
    "<table>",
    "<thead>",
    "<tr><th>input</th><th>method</th><th>holds</th><th>error</th><th>worst at</th><th>analytic</th>",
    "<th>numerical</th><th>floor</th></tr></thead>",
    "<tbody>",
    '<tr><td><code>x</code></td><td>complex-step</td><td><span class="mark wrong">✗ NO</span></td>',
    "<td>5.0e-01</td><td>[1, 2]</td><td>5</td><td>4</td><td>1.0e-16</td></tr></tbody></table>",
    "<section>",
    "<p><code>x</code>: <strong>no simple cause</strong></p>",
    "<details><summary>2 of 5 entries are wrong</summary>",
    "<table>",
    "<thead>",
    "<tr><th>index</th><th>analytic</th><th>numerical</th><th>relative error</th><th>floor</th></tr></thead>",
    "<tbody>",
    "<tr><td>[1, 2]</td><td>5</td><td>4</td><td>2.0e-01</td><td>1.0e-16</td></tr>",
    "<tr><td>[0, 1]</td><td>1</td><td>1.0000000000009095</td><td>9.1e-13</td>",
    "<td>1.0e-16</td></tr></tbody></table></details>",
    "<p>1 of 5 entries cannot be decided at this precision: [1, 0]</p>",
    "<p>forward refuses complex arrays</p>",
    "<p>stopped after 5 of 6 entries</p>",
    "<figure>",
    '<span class="panel" role="img" aria-label="2 by 3 entries: 2 wrong, 1 undecidable, 2 holds, 1 not looked ',
    'at">',
    '<svg width="50" height="34" viewBox="-0.0625 -0.0625 3.125 2.125">',
    '<rect width="3" height="2" fill="none" stroke="currentColor" stroke-opacity="0.5" stroke-width="0.0625"/>',
    '<path d="M1 0h1v1h-1zM2 1h1v1h-1z" fill="#cf222e" fill-opacity="1.0"/>',
    '<path d="M0.3 1.3h0.4v0.4h-0.4z" fill="#8b949e" fill-opacity="1.0"/>',
    '<path d="M0.06 0.06h0.88v0.88h-0.88zM2.06 0.06h0.88v0.88h-0.88z" fill="#2da44e" fill-opacity="0.3"/>',
    '<path d="M1 1h1v1h-1z" fill="none" fill-opacity="1.0"/></svg></span>',
    "<figcaption>",
    '<span class="key">',
    '<svg width="16" height="16" viewBox="-0.071429 -0.071429 1.1429 1.1429">',
    '<rect width="1" height="1" fill="none" stroke="currentColor" stroke-opacity="0.5" ',
    'stroke-width="0.071429"/>',
    '<path d="M0 0h1v1h-1z" fill="#cf222e" fill-opacity="1.0"/></svg> wrong</span>',
    '<span class="key">',
    '<svg width="16" height="16" viewBox="-0.071429 -0.071429 1.1429 1.1429">',
    '<rect width="1" height="1" fill="none" stroke="currentColor" stroke-opacity="0.5" ',
    'stroke-width="0.071429"/>',
    '<path d="M0.3 0.3h0.4v0.4h-0.4z" fill="#8b949e" fill-opacity="1.0"/></svg> undecidable</span>',
    '<span class="key">',
    '<svg width="16" height="16" viewBox="-0.071429 -0.071429 1.1429 1.1429">',
    '<rect width="1" height="1" fill="none" stroke="currentColor" stroke-opacity="0.5" ',
    'stroke-width="0.071429"/>',
    '<path d="M0.06 0.06h0.88v0.88h-0.88z" fill="#2da44e" fill-opacity="0.3"/></svg> holds</span>',
    '<span class="key">',
    '<svg width="16" height="16" viewBox="-0.071429 -0.071429 1.1429 1.1429">',
    '<rect width="1" height="1" fill="none" stroke="currentColor" stroke-opacity="0.5" ',
    'stroke-width="0.071429"/>',
    '<path d="M0 0h1v1h-1z" fill="none" fill-opacity="1.0"/></svg> not looked ',
    "at</span></figcaption></figure></section></div>",
]
