"""The parts of the Sphinx extension by themselves."""

import importlib
import re
from pathlib import Path

import pytest

from attention_np.derivation import Record

from . import needed  # noqa: F401

from docutils import nodes  # isort: skip
from docutils.utils import new_document  # isort: skip
from attention_site.examples import as_markdown  # isort: skip
from attention_site.excerpts import citing_only, excerpts  # isort: skip
from attention_site.listings import excerpt_html, linked  # isort: skip
from attention_site.typography import keep_punctuation, leave_plain  # isort: skip
from attention_site.verdicts import badge, in_chinese  # isort: skip

SOURCE = """\
def forward(x):
    scores = (
        x @ x.T  # (page.1)
    )
    # (page.2)
    total = scores.sum()
    if total > 0:  # (page.3)
        total = 0
    return total  # (page.1)


class Cache:
    scores: int  # (page.1)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (3, "scores = (\n    x @ x.T  # (page.1)\n)"),
        (5, "# (page.2)\ntotal = scores.sum()"),
        (7, "if total > 0:  # (page.3)"),
        (9, "return total  # (page.1)"),
    ],
)
def test_an_excerpt_is_the_whole_statement_that_cites(source: Path, line: int, expected: str) -> None:
    (excerpt,) = excerpts(source, [f"module.py:{line}"])
    assert excerpt.text == expected
    assert excerpt.within == "forward"


def test_statements_that_touch_are_one_excerpt_and_others_are_not(source: Path) -> None:
    together = excerpts(source, ["module.py:5", "module.py:3"])
    assert [(excerpt.first, excerpt.last, excerpt.cited) for excerpt in together] == [(2, 6, (3, 5))]
    apart = excerpts(source, ["module.py:9", "module.py:3", "module.py:13"])
    assert [excerpt.within for excerpt in apart] == ["forward", "forward", "Cache"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1  # (n,) (page.1, page.2)", "x = 1  # (n,) (page.2)"),
        ("# the sum (page.1), then (page.2)\nx = 1  # (page.3)", "# the sum, then (page.2)\nx = 1"),
        ("# (page.1)\nx = f(1)  # why", "x = f(1)  # why"),
        ("x = 1\n\ny = 2  # (page.21)", "x = 1\n\ny = 2"),
    ],
)
def test_beside_an_equation_the_code_cites_no_other(text: str, expected: str) -> None:
    assert citing_only({"page.2"}, text) == expected


def test_only_tags_of_equations_become_links() -> None:
    html = linked("# (page.1, page.2) version 1.2", lambda tag: "there.html#1" if tag == "page.1" else None)
    assert html == '# (<a class="tag" href="there.html#1">page.1</a>, page.2) version 1.2'


def test_code_is_escaped(source: Path) -> None:
    (source / "module.py").write_text("x = 1 < 2  # <b> (page.1)\n", encoding="utf-8")
    (excerpt,) = excerpts(source, ["module.py:1"])
    html = excerpt_html(excerpt, lambda tag: f"#{tag}", "module.html")
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


@pytest.mark.parametrize(
    ("record", "latex", "text"),
    [
        (Record("p.1", "p", 1, "holds", 2.2e-16), "a = b", "holds to 2e-16"),
        (Record("p.1", "p", 1, "holds", 0.0), "a = b", "holds exactly"),
        (Record("p.1", "p", 1, "holds", 0.0, defines=("a",)), r"a = \sum_{l=1}^n b_l", "by definition"),
        (Record("p.1", "p", 1, "holds", 0.0, defines=("a",)), "a = b = c", "holds exactly"),
        (Record("p.1", "p", 1, "holds", 1e-3, rounded=True), r"a \approx 0.1", "holds as printed"),
        (Record("p.1", "p", 1, "refuted", 0.5), "a = b", "false, as marked"),
        (Record("p.1", "p", 1, "refuted", None), "a = b", "false, as marked"),
        (Record("p.1", "p", 1, "not executed"), "a = b", "not executed"),
        (Record("p.1", "p", 1, "fails", 0.5), "a = b", "fails, off by 5e-01"),
    ],
)
def test_a_badge_says_what_the_check_found(record: Record, latex: str, text: str) -> None:
    found = badge(record, latex)
    assert found.text == text
    if record.verdict != "fails":  # which no page that is built shows
        assert all(re.search("[\u4e00-\u9fff]", said) for said in in_chinese(found)[1:])


def test_a_badge_gives_the_reason_why_an_equation_is_not_executed() -> None:
    assert badge(Record("p.1", "p", 1, "not executed"), "", "a limit").title == "a limit"


def test_an_example_becomes_a_page_with_a_place_for_its_results() -> None:
    text = as_markdown('# %% [markdown]\n"""\n# A title.\n\nWords.\n"""\n\n# %%\nprint(1)\n')
    assert text == "# A title\n\nWords.\n\n```python\nprint(1)\n```\n\n## What it prints\n\n```{results}\n```\n"


def test_a_missing_mathjax_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extension = importlib.import_module("attention_site")
    monkeypatch.setattr(extension, "CARRIER", "no-such-package")
    with pytest.raises(Exception, match=r"pip install 'attention-np\[site\]'"):
        extension.copy_mathjax(tmp_path)


@pytest.mark.parametrize(
    ("behind", "kept", "rest"), [(", and", ",", " and"), ("). Then", ").", " Then"), (" is", "", " is"), ("s", "", "s")]
)
def test_punctuation_stays_with_the_formula_before_it(behind: str, kept: str, rest: str) -> None:
    document = new_document("page")
    document += nodes.paragraph("", "", nodes.math("x", "x"), nodes.Text(behind))
    keep_punctuation(document)
    assert document.astext() == f"x{kept}{rest}"
    assert [together.astext() for together in document.findall(nodes.inline)] == ([f"x{kept}"] if kept else [])


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [("default", "x  holds", "text"), ("default", ">>> 1 + 1", "default"), ("python", "x = 1", "python")],
)
def test_a_block_without_a_language_has_no_colours_unless_it_is_a_session(
    language: str, code: str, expected: str
) -> None:
    document = new_document("page")
    document += nodes.literal_block(code, code, language=language)
    leave_plain(document)
    assert next(document.findall(nodes.literal_block))["language"] == expected
