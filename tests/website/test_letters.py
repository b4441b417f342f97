"""The letters that a page declares, folded under its title."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from attention_np.derivation import read_page
from docs.translations import ROOT

from . import needed  # noqa: F401

from docutils import nodes  # isort: skip
from docutils.utils import new_document  # isort: skip
from attention_site.letters import show_letters  # isort: skip


@pytest.mark.parametrize(("page", "said"), [("derivations/chunks", "Given"), ("docs/zh/derivations/chunks.zh", "给定")])
def test_letters_stand_behind_the_lines_under_the_title(page: str, said: str) -> None:
    header = read_page(ROOT / "derivations" / "chunks.md").header
    site = cast("Any", SimpleNamespace(headers={"derivations/chunks": header}))
    tree = new_document("page")
    prose = nodes.paragraph("", "The recurrence")
    section = nodes.section("", nodes.title("", "Chunks"), nodes.paragraph("", "guide", classes=["guide"]), prose)
    tree += section
    show_letters(site, tree, page)
    start, folded, end = section[2:5]
    assert start.astext().startswith("<details")
    assert end.astext() == "</details>"
    indices, given, _ = (line.astext() for line in folded.children)
    assert "a, c = 1" in indices
    assert given.startswith(said)
    assert r"V \, (n \times d_{v})" in given
    assert r"\mu \, (d_{k})" in given
    assert r"\dot" not in given
    assert section[5] is prose


def test_a_page_of_the_course_shows_none() -> None:
    tree = new_document("page")
    section = nodes.section("", nodes.title("", "Lookup"))
    tree += section
    show_letters(cast("Any", SimpleNamespace(headers={})), tree, "docs/course/lookup")
    assert len(section) == 1
