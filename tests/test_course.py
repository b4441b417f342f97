"""The course: its equations hold, its programs print what it shows, and it is as long as it says."""

import re
from pathlib import Path

import pytest

from attention_np.cli.verification import check_pages
from docs.translations import programs

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "course.md"
ROWS = re.findall(
    r"^\| (\d+) \| \[(.+)\]\(course/(\w+)\.md\) \| (\d+) \|", INDEX.read_text(encoding="utf-8"), re.MULTILINE
)
CHAPTERS = [ROOT / "docs" / "course" / f"{name}.md" for _, _, name, _ in ROWS]
LONG = ("training", "translation")  # they learn
chapters = pytest.mark.parametrize(
    "chapter", [pytest.param(file, marks=[pytest.mark.long] * (file.stem in LONG), id=file.stem) for file in CHAPTERS]
)
each = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda file: file.stem)


def test_every_equation_of_the_course_holds() -> None:
    report = check_pages(ROOT / "docs" / "course")
    assert not report.problems
    assert {record.page.replace("-", "_") for record in report.records} == {file.stem for file in CHAPTERS}
    assert [record.message for record in report.records if record.verdict != "holds"] == []


@chapters
def test_every_program_prints_what_the_chapter_shows(chapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = programs(chapter.read_text(encoding="utf-8"))
    assert len(found) >= 2  # of the chapter, and of its answers
    for code, shown in found:
        exec(compile(code, str(chapter), "exec"), {"__name__": "__main__"})  # noqa: S102
        assert capsys.readouterr().out == shown


@each
def test_a_chapter_has_what_the_course_promises(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    assert len(re.findall(r"^```\{(?:moving|mechanism|results-of)\} \w+$", text, re.MULTILINE)) == 1
    parts = [text.index(f"\n## {heading}\n") for heading in ("By hand: an example", "The program", "Exercises")]
    assert parts == sorted(parts)
    (program, _), *_ = programs(text[parts[1] :])
    assert sum(1 for line in program.splitlines() if line.strip()) <= 30
    asked, answered = text[parts[2] :].split("<summary>Answers</summary>")
    for told in (asked, answered):
        assert re.findall(r"^(\d)\. ", told, re.MULTILINE) == ["1", "2", "3"]


def test_the_table_of_the_course_says_what_the_chapters_say() -> None:
    total = 0
    for number, title, name, minutes in ROWS:
        text = (ROOT / "docs" / "course" / f"{name}.md").read_text(encoding="utf-8")
        assert f"\n# {number}. {title}\n\n*{minutes} minutes." in text
        total += int(minutes)
    assert total == 240


def test_each_chapter_leads_to_the_next() -> None:
    for here, (number, title, name, _) in zip(CHAPTERS, ROWS[1:], strict=False):
        assert f"[{number}. {title}]({name}.md)" in " ".join(here.read_text(encoding="utf-8").split())
