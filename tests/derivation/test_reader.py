"""Reading pages: tags, markers, what is code and what is not."""

import os
from pathlib import Path

from helpers import each

from attention_np.derivation import PageCheck, read_page, verify

from .pages import HEADER, page, verdicts

BROKEN_TAGS = [
    ("$$1 = 1$$", "no tag"),
    (r"$$1 = 1 \tag{t.1} \tag{t.2}$$", "two tags"),
    (r"$$1 = 1 \tag{other.1}$$", "should be t.N"),
    (r"$$1 = 1 \tag{t.0}$$", "should be t.N"),
    (r"$$1 = 1 \tag{t}$$", "should be t.N"),
    (r"$$1 = 1 \tag{t.one}$$", "should be t.N"),
    ("$$1 = 1\n\n\\tag{t.1}$$", "blank line"),
    (r"$$" + "1 + " * 1500 + r"1 = 1501 \tag{t.1}$$", "characters"),
]


@each(("text", "words"), BROKEN_TAGS)
def test_every_equation_has_exactly_one_tag(text: str, words: str) -> None:
    found = page(text)
    assert found.equations[0].fault is not None
    assert words in found.equations[0].fault.message
    assert verdicts(text) == ["fails"]


def test_a_tag_stands_once() -> None:
    assert verdicts("$$1 = 1 \\tag{t.1}$$\n\n$$2 = 2 \\tag{t.1}$$") == ["holds", "fails"]


def test_underscores_of_the_file_are_hyphens_of_the_tag() -> None:
    found = read_page("dot_product.md", r"$$1 = 1 \tag{dot-product.1}$$")
    assert found.equations[0].fault is None


HIDDEN = [
    "Text <!-- $$1 = 2$$\n$$2 = 3$$ --> text\n",
    "<!-- one\n\n$$1 = 2$$ -->\n",
    "```\n$$1 = 2$$\n```\n",
    "~~~latex\n$$1 = 2$$\n~~~\n",
    "````\n```\n$$1 = 2$$\n```\n````\n",
    "An inline `$$1 = 2$$` one.\n",
    "``a ` $$1 = 2$$``\n",
    "<!-- $$1 = 2$$ -->\n",
    "<!-- never closed $$1 = 2$$",
    r"Costs \$\$ money.",
]


SHOWN = [
    "Text \\<!-- $$1 = 2$$ -->\n",
    "Text <!--> $$1 = 2$$ -->\n",
    "Text <!---> $$1 = 2$$ -->\n",
    "Text <!-- never closed $$1 = 2$$\n",
    "Text <!-- not closed here $$1 = 2$$\n\n--> after the paragraph\n",
    "``` not ` a fence\n$$1 = 2$$\n",
    "<!--\n```\n-->\n$$1 = 2$$\n",
    "<!-- `-->` --> $$1 = 2$$\n",
    "Text <!-- ` --> $$1 = 2$$ ` text\n",
    "one\u2028```\n$$1 = 2$$\n",
    "a ` lonely tick $$1 = 2$$\n",
    "`` two and ` one $$1 = 2$$\n",
]


@each("text", SHOWN)
def test_what_only_looks_like_code_hides_no_equation(text: str) -> None:
    assert len(page(text).equations) == 1


@each("text", HIDDEN)
def test_code_and_comments_are_no_equations(text: str) -> None:
    found = page(text)
    assert not found.equations
    assert not found.problems


def test_an_equation_knows_its_line() -> None:
    found = page("text\n\n$$\n1 = 1\n\\tag{t.1}\n$$\n")
    assert found.equations[0].line == HEADER.count("\n") + 4


def test_dollars_that_are_never_closed_are_a_problem() -> None:
    found = page(r"$$ 1 = 1 \tag{t.1} $$ and $$ 2 = 2")
    assert len(found.equations) == 1
    assert "never closed" in found.problems[0]


def test_a_math_fence_would_be_displayed_and_not_checked() -> None:
    assert "between dollar signs" in page("```math\n1 = 2\n```\n").problems[0]


def test_a_page_that_cannot_be_read_is_a_problem() -> None:
    assert "cannot be read" in read_page("/nonexistent/t.md").problems[0]


def test_only_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.md").mkdir()
    os.mkfifo(tmp_path / "q.md")
    for path in (tmp_path / "p.md", tmp_path / "q.md", Path("/dev/zero")):
        assert read_page(path).problems == [f"{path}:1: cannot be read: not a file"]


def test_what_is_not_utf8_is_a_problem_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_bytes(b"one\ntwo \xff\n")
    assert read_page(tmp_path / "p.md").problems[0].startswith(f"{tmp_path / 'p.md'}:2: cannot be read: this is not")


PLACED = [
    ("$$ 1 = 1 $$", "", "no tag", "1 = 1"),
    ("$$ 1 = 1 \\tag{t.1} $$\n\n$$ 2 = 2 \\tag{t.1} $$", "", "stands twice", "\\tag{t.1}"),
    ("$$ 1 = 1 \\tag{t.1} $$", "*Refuted:* no.", "but it holds", "= 1"),
    ("$$ 1 = 1 \\tag{t.1} $$", "*Refuted, not well-formed:* no.", "can be evaluated", "= 1"),
]


@each(("text", "after", "words", "place"), PLACED)
def test_what_is_wrong_with_tags_and_marks_has_its_place(text: str, after: str, words: str, place: str) -> None:
    record = PageCheck(page(f"{text}\n\n{after}\n")).run()[-1]
    assert record.verdict == "fails"
    message, source, carets = record.message.splitlines()
    assert words in message
    assert source[carets.index("^") :].startswith(place)


EQUATION = "$$ 1 = 1 \\tag{t.1} $$\n"


@each(
    ("text", "words"),
    [
        ("", "t.md:1: the page is empty"),
        (" \n\n", "t.md:1: the page is empty"),
        (EQUATION, "t.md:1: a page begins with front matter"),
        ("---\nsizes: n\n---\ntext\n", "t.md:1: the page has no displayed equation"),
        ("---\nsizes: n\nop: softmax\n---\n" + EQUATION, "t.md:3: a page with op also has code"),
    ],
)
def test_a_page_of_which_a_part_is_missing_is_not_ok(text: str, words: str) -> None:
    report = verify([read_page("t.md", text)])
    assert not report.ok
    assert len(report.problems) == 1
    assert report.problems[0].startswith(words)


MARKERS = [
    ("1 = 2", "*Refuted:* it is not.", "refuted"),
    ("1 = 2", "*Refuted, not well-formed:* it is.", "fails"),
    ("x = y^\\top", "*Refuted, not well-formed:* a column is no row.", "refuted"),
    ("E[x] = 1", "*Not executed:* an expectation.", "not executed"),
    ("E[x] = 1", "*Not executed:*", "fails"),
    ("1 = 1", "*Refuted:* it is not.", "fails"),
    ("1 = 1", "*refuted*: it is not.", "fails"),
    ("1 = 1", "*Not executed.* it is not.", "fails"),
    ("1 = 1", "*Text only.*", "holds"),
    ("1 = 1", "*Emphasis* is only emphasis.", "holds"),
    ("1 = 2", "Some text.\n\n*Refuted:* too far away.", "fails"),
    ("q_i = x_i", "*Refuted:* a definition.", "fails"),
    ("1 = 2", "*Text only.* *Refuted:* it is not.", "refuted"),
]


@each(("equation", "after", "verdict"), MARKERS)
def test_the_marker_behind_an_equation_is_held_to(equation: str, after: str, verdict: str) -> None:
    assert verdicts(f"$$ {equation} \\tag{{t.1}} $$\n\n{after}\n") == [verdict]
