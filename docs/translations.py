"""Which translations are behind the pages that they translate: ``python -m docs.translations``.

The translation of ``docs/course/lookup.md`` is ``docs/zh/course/lookup.zh.md``, that of ``derivations/softmax.md`` is
``docs/zh/derivations/softmax.zh.md``, and that of ``README.md`` is ``README.zh.md``. Its first line names its original
and the digest of it. When the original has changed, somebody compares the two; ``python -m docs.translations FILE ...``
then writes the first line of these translations again.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path

__all__ = [
    "BLOCK",
    "FOLDER",
    "README",
    "ROOT",
    "STAMPED",
    "TRANSLATIONS",
    "anchors",
    "behind",
    "blocks",
    "digest",
    "headings",
    "original_of",
    "programs",
    "stamp",
    "translation_of",
]

ROOT = Path(__file__).resolve().parents[1]
FOLDER, SUFFIX = ROOT / "docs" / "zh", ".zh.md"
TRANSLATIONS = sorted(FOLDER.rglob(f"*{SUFFIX}"))
README = ROOT / f"README{SUFFIX}"  # holds its programs itself: GitHub shows it, and reads no directives
STAMPED = [*TRANSLATIONS, README]
STAMP = re.compile(r"\A(<!-- translates .*-->\n)?")
PROGRAM = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
WRITTEN = re.compile(r"^<!-- (\w+): written by .*?^<!-- end of \1 -->$", re.DOTALL | re.MULTILINE)  # tables of numbers
BLOCK = re.compile(r"^(`{3,})([^`\n]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def original_of(translation: Path) -> Path:
    """The page that a translation translates."""
    if translation == README:
        return ROOT / "README.md"
    name = translation.relative_to(FOLDER).as_posix().removesuffix(SUFFIX)
    return ROOT / ("" if name.startswith("derivations/") else "docs") / f"{name}.md"


def translation_of(page: Path) -> Path | None:
    """The translation of a page, if there is one."""
    name = page.relative_to(ROOT).as_posix().removeprefix("docs/")
    file = FOLDER / f"{name.removesuffix('.md')}{SUFFIX}"
    return file if file.is_file() else None


def programs(text: str) -> list[tuple[str, str]]:
    """The programs of a page, and what the page says that each prints."""
    return PROGRAM.findall(text)


def blocks(text: str) -> list[tuple[str, str]]:
    """The other fenced blocks of a page, but for directives: of which language each is, and what it holds."""
    found = BLOCK.findall(PROGRAM.sub("", text))
    return [(language, held) for _, language, held in found if not language.startswith("{")]


def headings(page: Path) -> list[tuple[str, str]]:
    """The headings of a page: of which level each is, and its words."""
    return re.findall(r"^(#+) (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)


def anchors(page: Path) -> list[str]:
    """By which names links lead to the headings of a page."""
    return [re.sub(r"[^\w\- ]", "", title.lower().strip()).replace(" ", "-") for _, title in headings(page)]


def digest(text: str) -> str:
    """A few digits that change when somebody changes a text, and not when a program writes a table in it again."""
    return sha256(WRITTEN.sub("", text).encode()).hexdigest()[:12]


def stamp(page: Path) -> str:
    """The first line of a translation that has been compared with its page as it is now, with the digest of that."""
    return f"<!-- translates {page.relative_to(ROOT)}, digest {digest(page.read_text(encoding='utf-8'))} -->\n"


def behind(translation: Path) -> bool:
    """Whether the original has changed since the translation was compared with it."""
    return not translation.read_text(encoding="utf-8").startswith(stamp(original_of(translation)))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name).resolve()
        text = file.read_text(encoding="utf-8")
        file.write_text(STAMP.sub(stamp(original_of(file)), text, count=1), encoding="utf-8")
    for file in STAMPED:
        if behind(file):
            print(f"{file.relative_to(ROOT)}: compare it with {original_of(file).relative_to(ROOT)}")  # noqa: T201
