"""A translation has the equations and the programs of its page, and was compared with it as it is now."""

import re
from pathlib import Path

import pytest

from docs.translations import ROOT, TRANSLATIONS, behind, original_of

EQUATION = re.compile(r"^```\{equation\} (\S+)\n```$", re.MULTILINE)
FIGURE = re.compile(r"^```\{((?:moving|mechanism|results-of)\} \w+)$", re.MULTILINE)
translations = pytest.mark.parametrize("file", TRANSLATIONS, ids=lambda file: file.name)


@translations
def test_a_translation_was_compared_with_its_page_as_it_is(file: Path) -> None:
    assert not behind(file), f"compare the two, then: python -m docs.translations {file.relative_to(ROOT)}"


@translations
def test_a_translation_has_every_equation_program_and_figure_of_its_page(file: Path) -> None:
    text, page = file.read_text(encoding="utf-8"), original_of(file).read_text(encoding="utf-8")
    assert EQUATION.findall(text) == re.findall(r"\\tag\{([^}]*)\}", page)
    programs = re.findall(r"^```\{program\} (\d+)\n```$", text, re.MULTILINE)
    assert [int(number) for number in programs] == list(range(1, page.count("\n```text\n") + 1))
    assert FIGURE.findall(text) == FIGURE.findall(page)
    assert len(re.findall(r"^#+ ", text, re.MULTILINE)) == len(re.findall(r"^#+ ", page, re.MULTILINE))
    assert "$$" not in text  # equations have one source


def test_the_course_is_translated_whole() -> None:
    translated = {original_of(file) for file in TRANSLATIONS}
    assert {*(ROOT / "docs" / "course").glob("*.md"), ROOT / "docs" / "course.md"} <= translated
