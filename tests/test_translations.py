"""A translation has the equations and the programs of its page, and was compared with it as it is now."""

import re
from pathlib import Path

import pytest

from docs import translations as pages
from docs.translations import BLOCK, ROOT, TRANSLATIONS, anchors, behind, blocks, original_of, programs, translation_of

SHOWN = re.compile(r"^```\{equation\} (\S+)\n```$", re.MULTILINE)
EQUATION = re.compile(rf"\\tag\{{([^}}]*)\}}|{SHOWN.pattern}", re.MULTILINE)
FIGURE = re.compile(r"^```\{((?:moving|mechanism|results-of)\} \w+)$", re.MULTILINE)
with_readme = pytest.mark.parametrize("file", pages.STAMPED, ids=lambda file: file.name)
translations = pytest.mark.parametrize("file", TRANSLATIONS, ids=lambda file: file.name)


@with_readme
def test_a_translation_was_compared_with_its_page_as_it_is(file: Path) -> None:
    assert not behind(file), f"compare the two, then: python -m docs.translations {file.relative_to(ROOT)}"


@translations
def test_a_translation_has_every_equation_program_and_figure_of_its_page(file: Path) -> None:
    text, page = file.read_text(encoding="utf-8"), original_of(file).read_text(encoding="utf-8")
    own = BLOCK.sub(lambda block: block[0] if block[2].startswith("{") else "", page)  # not those that it quotes
    assert SHOWN.findall(text) == [tag or shown for tag, shown in EQUATION.findall(own)]
    numbers = re.findall(r"^```\{program\} (\d+)\n```$", text, re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(programs(page)) + 1))
    numbers = re.findall(r"^```\{block\} (\d+)\n```$", text, re.MULTILINE)
    assert not numbers or [int(number) for number in numbers] == list(range(1, len(blocks(page)) + 1))
    assert FIGURE.findall(text) == FIGURE.findall(page)
    assert "$$" not in text  # equations have one source
    assert not re.search(r'[\u3001-\u303f\uff00-\uffef]"', text)  # the site would set it as one that closes


@with_readme
def test_a_translation_has_the_headings_of_its_page(file: Path) -> None:
    levels, of_page = ([level for level, _ in pages.headings(page)] for page in (file, original_of(file)))
    assert levels == of_page


def test_a_table_that_is_written_again_is_no_change_of_its_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = "| [softmax](derivations/softmax.md) |"
    assert pages.digest(text.replace(f"{table} 8 |", f"{table} 9 |")) == pages.digest(text)
    assert pages.digest(text.replace(f"{table} stability", f"{table} Stability")) != pages.digest(text)


@translations
def test_a_link_leads_to_the_translation_where_there_is_one(file: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+\.md)", file.read_text(encoding="utf-8")):
        target = (file.parent / link).resolve()
        assert target.is_file(), link
        assert target in TRANSLATIONS or translation_of(target) is None, link


@translations
def test_a_link_into_a_translation_leads_to_one_of_its_headings(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
        target = (file.parent / link).resolve() if link else file
        if target in TRANSLATIONS:
            assert anchor in anchors(target), f"{link}#{anchor}"


def test_the_front_page_and_the_course_are_translated_whole() -> None:
    pages = [ROOT / "docs" / f"{name}.md" for name in ("index", "course", "questions")]
    pages += (ROOT / "docs" / "course").glob("*.md")
    assert [page for page in pages if translation_of(page) is None] == []


def test_every_translation_stands_in_the_contents_of_the_site_in_the_order_of_the_english_ones() -> None:
    english = re.findall(
        r"^/?(derivations/\w+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    chinese = re.findall(
        r"^(derivations/\w+)\.zh$", (ROOT / "docs" / "zh" / "index.zh.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert chinese == [page for page in english if translation_of(ROOT / f"{page}.md")]
    assert {f"{page.stem}" for page in TRANSLATIONS if page.parent.name == "derivations"} == {
        f"{page.removeprefix('derivations/')}.zh" for page in chinese
    }
