"""Reading pages: front matter, tags, markers, what is code and what is not."""

import os
from pathlib import Path

from helpers import each

from attention_np.derivation import PageCheck, read_page, verify

from .pages import DEFINITIONS, HEADER, page, verdicts

BROKEN_HEADERS = [
    ("---\nsizes: n m\n", "never closed"),
    ("---\nsizes: [n\n---\n", "cannot be read"),
    ("---\n- n\n---\n", "not a mapping"),
    ("---\nsizes: n n\n---\n", "declared twice"),
    ("---\nsizes: n=\u00b2\n---\n", "not part of the grammar"),
    ("---\nsizes: n\x00\n---\n", "cannot be read"),
    ("---\nsizes: n\nsizes: m\n---\n", "stands twice"),
    ("---\nsizes: &a n\n---\n", "no anchors"),
    ("---\nsizes: n\nindices: *a\n---\n", "no anchors"),
    ("---\n<<: {sizes: n}\n---\n", "no merge keys"),
    ("---\nsizes: !!python/object/apply:os.system [x]\n---\n", "no anchors, aliases or tags"),
    ("---\nfoo: 1\n---\n", "knows no 'foo'"),
    ("---\nsizes: n=1000000\n---\n", "not between"),
    ("---\nsizes: n=1\n---\n", "not between"),
    ("---\nsizes: n D=n*q\n---\n", "not declared"),
    ("---\nsizes: 3\n---\n", "sizes are"),
    ("---\nsizes: n+\n---\n", "not a single name"),
    ("---\nsizes: n\nindices: {i: m}\n---\n", "not declared"),
    ("---\nsizes: n\nindices: {n: n}\n---\n", "declared twice"),
    ("---\nsizes: n\nindices: [i]\n---\n", "mapping"),
    ("---\nsizes: n\ntensors: {x: n}\n---\n", "a list of sizes"),
    ("---\nsizes: n\ntensors: {x: [n, weird]}\n---\n", "not a single name"),
    ("---\nsizes: n\ntensors: {x: [n, permutation]}\n---\n", "square"),
    ("---\nsizes: n\ntensors: {x: [n, n, n, n, n, n, n, n]}\n---\n", "list of sizes"),
    ("---\nop: os.system\n---\n", "name of a module"),
    ("---\ncode: {__class__.x.y: Q}\noutput: O\n---\n", "not the name of an argument"),
    ("---\ncode: {query: Q}\n---\n", "names its output"),
    ("---\ncited: maybe\n---\n", "cited is true or false"),
    ("---\noptions: {a: [1]}\n---\n", "options"),
    ("---\nx: " + "[" * 50 + "]" * 50 + "\n---\n", "nested too deep"),
    ("---\nx: " + "[" * 3000 + "\n---\n", "nested too deep"),
    ("---\nx: " + "y" * 9000 + "\n---\n", "characters"),
    ("---\nsizes: " + " ".join(f"n_{k}" for k in range(9)) + " a b c d e f g h i j\n---\n", "up to 16"),
    ("---\n\tx: 1\n---\n", "cannot be read"),
    ("---\nx: \x01\n---\n", "cannot be read"),
]


@each(("text", "words"), BROKEN_HEADERS)
def test_broken_front_matter_is_one_problem_with_a_line(text: str, words: str) -> None:
    found = read_page("t.md", text)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("t.md:")
    assert words in found.problems[0]


def test_a_page_without_front_matter_is_a_page() -> None:
    assert verdicts(r"$$1 + 1 = 2 \tag{t.1}$$", "") == ["holds"]


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


USED = r"""
$$ w_{ij} = S_{ij} \tag{t.3} $$
"""


@each(
    ("header", "after", "verdict"),
    [
        ("", "", "fails"),
        ("", r"$$ w_{ij} = S_{ij} \tag{t.4} $$", "holds"),
        ("", r"$$ w_{ij} = 2 S_{ij} \tag{t.4} $$" + "\n\n*Refuted:* twice.", "holds"),
        ("", r"$$ w_{ij} = 2 S_{ij} \tag{t.4} $$" + "\n\n*Not executed:* because.", "fails"),
        ("", r"$$ w_{ij} = \foo \tag{t.4} $$", "holds"),
        ("", r"$$ \frac{\partial w_{ij}}{\partial x_k} = 0 \tag{t.4} $$", "holds"),
        ("", "## An example" + "\n\n" + r"$$ u = 2 \tag{t.4} $$" + "\n\n" + r"$$ w = S \tag{t.5} $$", "holds"),
        ("options: {bias: w}\n", "", "holds"),
        ("code: {scores: w}\n", "", "holds"),
    ],
)
def test_what_is_defined_is_used(header: str, after: str, verdict: str) -> None:
    found = page(DEFINITIONS + USED + after, HEADER.replace("cotangent", header + "cotangent"))
    assert not found.problems
    assert PageCheck(found).run()[2].verdict == verdict


def test_what_an_example_defines_is_used_in_that_example() -> None:
    body = "## An example\n\n$$ u = 2 \\tag{t.1} $$\n\n$$ w = u \\tag{t.2} $$\n\n"
    use = "$$ w = u \\tag{t.3} $$\n"
    assert [record.verdict for record in PageCheck(page(body + use)).run()] == ["holds"] * 3
    records = PageCheck(page(body + "## Afterwards\n\n" + use)).run()
    assert [record.verdict for record in records] == ["holds", "fails", "fails"]


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


@each(
    ("header", "line"),
    [
        ("sizes: n n", 2),
        ("title: a\nsizes: n+", 3),
        ("sizes: n\nindices:\n  i: n\n  j: q", 5),
        ("sizes: n\nindices: {n: n}", 3),
        ("sizes: n\ntensors:\n  x: [n]\n  y: [q]", 5),
        ("sizes: n\ntensors:\n  x: [n]\n  n: [n]", 5),
        ("sizes: n\noutput: x+", 3),
        ("title: a\nfoo: b", 3),
    ],
)
def test_what_is_wrong_with_front_matter_has_its_line(header: str, line: int) -> None:
    found = read_page("t.md", f"---\n{header}\n---\n")
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"t.md:{line}: ")


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
