from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from attention_np.gradcheck import Report, _html

from .reports import EVERYTHING, FLAT, HOLDS, SAMPLE, WRONG, compared, wrong_in


class Elements(HTMLParser):
    """The text of a fragment, with every element closed in its turn."""

    def __init__(self, fragment):
        super().__init__()
        self.open, self.seen, self.text, self.attributes = [], [], [], []
        self.feed(fragment)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


WRONG_BELOW = ["1 of 12 entries is wrong"]
WORST = ["index", "analytic", "numerical", "relative error", "floor"]
WORST += ["[1, 1, 0]", "9", "7", "2.2e-01", "1.0e-16", "[1, 0, 1]", "7", "6", "1.4e-01", "1.0e-16"]
KINDS = [" wrong", " holds"]


def html_of(*entries):
    return Elements(Report(entries)._repr_html_())


def test_html_says_what_the_text_says():
    entries = [
        *EVERYTHING,
        wrong_in((1, 2), (0, 1), diagnosis="no simple cause"),
        replace(HOLDS, size=10**5, checked=200, escape=SAMPLE, note="a note"),
    ]
    words = " ".join(html_of(*entries).text).split()
    for word in str(Report(tuple(entries))).replace(", the worst first:", "").split():
        assert word in words or word.rstrip(":") in words or word in ("yes", "NO", "?"), word


@pytest.mark.parametrize(("entry", "mark"), [(HOLDS, "✓ yes"), (WRONG, "✗ NO"), (FLAT, "? undecidable")])
def test_a_mark_is_a_word_and_not_only_a_colour(entry, mark):
    assert mark in html_of(entry).text


def test_text_of_users_cannot_become_html():
    hostile = "<script>alert('x')</script>&amp;\"'"
    entry = wrong_in((1, 2), (0, 0), diagnosis=hostile, note=hostile)
    fragment = replace(entry, name=hostile, method=hostile)._repr_html_()
    assert "<script" not in fragment
    assert Elements(fragment).text.count(hostile) >= 4


def test_html_needs_nothing_from_outside_and_runs_nothing():
    page = html_of(*EVERYTHING)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.seen)
    assert not any(name.startswith("on") or name in ("src", "href") for name, _ in page.attributes)
    assert "url(" not in _html.STYLE
    assert "@import" not in _html.STYLE


def test_a_report_on_one_input_has_html_too():
    assert "key" in Elements(WRONG._repr_html_()).text


def test_what_is_said_of_several_inputs_stands_side_by_side_and_nothing_between():
    pairs = [(wrong_in((1, 2), (0, 0), diagnosis="a cause"), WRONG), (HOLDS, FLAT), (FLAT, compared("x", 1.0, 2.0))]
    for one, other in pairs:
        first, second = html_of(one).text, html_of(other).text
        assert html_of(one, other).text == [*first[:16], *second[8:16], *first[16:], *second[16:]]


@pytest.mark.parametrize(
    ("entry", "below"),
    [
        (HOLDS, []),
        (compared("x", np.ones((3, 4)), np.ones((3, 4))), []),
        (WRONG, ["key", "1 of 12 entries is wrong"]),
        (compared("x", 1.0, 2.0), []),
        (replace(WRONG, note="a note", diagnosis="a cause"), ["key", ": ", "a cause", *WRONG_BELOW, "a note"]),
        (
            wrong_in((1, 0, 1), (1, 1, 0), shape=(2, 2, 2)),
            ["x", "2 of 8 entries are wrong", *WORST, "[0, :, :]", "[1, :, :]", *KINDS],
        ),
    ],
)
def test_below_the_table_there_is_what_there_is_to_say_and_no_more(entry, below):
    assert html_of(entry).text[16:] == below


def test_the_wrong_entries_are_folded_away():
    page = html_of(wrong_in((1, 2), (0, 0)))
    assert page.seen.count("details") == page.seen.count("summary") == 1
    assert "2 of 12 entries are wrong" in page.text


def pictures(entry):
    return [value for name, value in Elements(entry._repr_html_()).attributes if name == "aria-label"]


def test_a_picture_shows_where_entries_are_wrong():
    assert pictures(wrong_in((1, 2), (0, 0))) == ["3 by 4 entries: 2 wrong, 10 holds"]
    assert "M2 1h1v1h-1z" in wrong_in((1, 2))._repr_html_()
    alone = "M0.06 0.06h0.88v0.88h-0.88zM1.06 0.06h0.88v0.88h-0.88z"  # but those that hold, which have a margin
    assert alone in wrong_in((1, 2))._repr_html_()
    assert "M1 2h3v1h-3z" in wrong_in((2, 1), (2, 2), (2, 3))._repr_html_()  # neighbours together


def test_each_index_of_the_leading_axes_has_its_own_picture():
    report = wrong_in((1, 0, 2, 3), (1, 1, 0, 0), shape=(2, 2, 3, 4))
    assert pictures(report) == [f"3 by 4 entries: {what}" for what in 2 * ["12 holds"] + 2 * ["1 wrong, 11 holds"]]
    assert "[1, 0, :, :]" in Elements(report._repr_html_()).text


def test_of_very_many_pictures_those_with_something_to_see_are_drawn():
    few = wrong_in((17, 0, 0), (3, 0, 0), shape=(20, 2, 2))
    assert len(pictures(few)) == 2
    many = wrong_in(*[(k, 0, 0) for k in range(19)], shape=(20, 2, 2))
    assert len(pictures(many)) == 16
    assert "and 3 more like these" in Elements(many._repr_html_()).text
    sixteen = wrong_in((3, 0, 0), shape=(16, 2, 2))
    assert len(pictures(sixteen)) == 16
    assert "more like these" not in " ".join(Elements(sixteen._repr_html_()).text)
    assert len(pictures(wrong_in((3, 0, 0), shape=(65, 2, 2)))) == 1


@pytest.mark.parametrize(
    "entry",
    [
        compared("x", np.ones((3, 4)), np.ones((3, 4))),  # nothing to see
        compared("x", 1.0, 2.0),  # one entry
        compared("x", np.ones((0, 4)), np.ones((0, 4))),
        wrong_in((0, 0), shape=(65, 2)),  # too large
        wrong_in((0, 0), shape=(2, 65)),
        replace(wrong_in((0, 0)), details=None),
    ],
)
def test_there_is_no_picture_where_it_would_show_nothing(entry):
    assert pictures(entry) == []


def test_arrays_of_one_axis_have_a_picture_and_so_have_undecided_and_skipped_entries():
    assert pictures(wrong_in(3, shape=(5,))) == ["1 by 5 entries: 1 wrong, 4 holds"]
    assert pictures(wrong_in(1, shape=(2,))) == ["1 by 2 entries: 1 wrong, 1 holds"]
    assert pictures(wrong_in((0, 0), shape=(64, 1))) == ["64 by 1 entries: 1 wrong, 63 holds"]
    unclear = compared("x", np.ones(4), np.ones(4), coarse=[True, False, False, False], looked_at=[1, 1, 0, 0])
    assert pictures(unclear) == ["1 by 4 entries: 1 undecidable, 1 holds, 2 not looked at"]


def test_html_of_the_largest_pictures_is_of_reasonable_size():
    rng = np.random.default_rng(0)
    numerical = rng.standard_normal((16, 64, 64))
    assert len(compared("x", -numerical, numerical)._repr_html_()) < 40_000


def test_of_an_input_that_holds_there_is_nothing_below_the_table():
    assert "section" not in html_of(HOLDS).seen


def test_a_picture_is_no_wider_than_its_place_however_many_entries_there_are():
    for columns in (3, 30, _html.LARGEST):
        seen = html_of(wrong_in((1, 2), shape=(3, columns)))
        widths = [float(value) for name, value in seen.attributes if name == "width" and float(value) != columns]
        assert max(widths) <= max(_html.PICTURE_WIDTH, 16) + 2


def test_neighbours_are_one_bar_up_to_a_length():
    where = np.array([[True, True, True, False], [False, False, False, True], [True, False, True, True]])
    alone = [(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 0, 1), (2, 2, 1), (2, 3, 1)]
    assert _html._runs(where, longest=1) == alone
    assert _html._runs(where, longest=2) == [(0, 0, 2), (0, 2, 1), (1, 3, 1), (2, 0, 1), (2, 2, 2)]
    assert _html._runs(where, longest=4) == [(0, 0, 3), (1, 3, 1), (2, 0, 1), (2, 2, 2)]
