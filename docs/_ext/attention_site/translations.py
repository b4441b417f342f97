"""Pages in another language: prose of their own, and the equations and programs of the page that they translate.

Which page translates which, ``docs/translations.py`` says.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attention_site.naming import HOME
from attention_site.running import output_block
from attention_site.site import FOLDERS
from docs.translations import FOLDER, README, ROOT, anchors, blocks, original_of, programs, translation_of

__all__ = ["BlockOf", "ProgramOf", "lead_to_translations", "link_translation"]

NAMES = "English", "中文"  # of the languages
MISSING = "本页尚无中文译文。以下为英文。"
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#([^)]+))?\)")


class _PartOf(SphinxDirective):
    required_arguments = 1
    kind = ""

    def parts(self, text: str) -> list[tuple[str, str]]:
        """What the original has of this kind."""
        raise NotImplementedError

    def part(self) -> tuple[str, str]:
        """The one that is asked for."""
        here = ROOT / f"{self.env.docname}.md"
        if not here.is_relative_to(FOLDER):
            raise self.error(f"only a translation shows the {self.kind} of another page")
        file = original_of(here)
        self.env.note_dependency(str(file))
        shown = dict(enumerate(self.parts(file.read_text(encoding="utf-8")), start=1))
        number = self.arguments[0]
        if not number.isdecimal() or int(number) not in shown:
            raise self.error(f"{file.name} has {len(shown)} {self.kind}, and none is number {number}")
        return shown[int(number)]


class ProgramOf(_PartOf):
    """``{program} 1``: the first program of the page that this one translates, and what it prints."""

    kind, parts = "programs", staticmethod(programs)

    def run(self) -> list[nodes.Node]:
        """Take it from the original."""
        code, printed = (part.rstrip("\n") for part in self.part())
        block = nodes.literal_block(code, code, language="python")
        return [block, output_block(printed)] if printed else [block]


class BlockOf(_PartOf):
    """``{block} 1``: the first fenced block that is no program, of the page that this one translates."""

    kind, parts = "blocks", staticmethod(blocks)

    def run(self) -> list[nodes.Node]:
        """Take it from the original."""
        language, held = self.part()
        held = held.rstrip("\n")
        return [nodes.literal_block(held, held, language=language or "text")]


def lead_to_translations(_app: object, page: str, source: list[str]) -> None:
    """Let the links of the README in Chinese lead to pages in Chinese, at the same heading.

    On GitHub they lead to the English pages: those hold their equations.
    """

    def translated(link: re.Match[str]) -> str:
        original, anchor = ROOT / link[1], link[2]
        other = translation_of(original)
        if other is None:
            return link[0]
        place = "#" + anchors(other)[anchors(original).index(anchor)] if anchor else ""
        return f"]({other.relative_to(ROOT).as_posix()}{place})"

    if page == README.stem:
        source[0] = LINK.sub(translated, source[0])


def link_translation(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put a link to the page in the other language under the title, or say in that language that there is none."""
    here, title = ROOT / f"{page}.md", next(doctree.findall(nodes.title), None)
    is_translation = here.is_relative_to(FOLDER)
    if title is None or not (is_translation or Path(page).parent.as_posix() in ("docs", *FOLDERS)):
        return
    other = original_of(here) if is_translation else translation_of(here)
    line = nodes.paragraph("", classes=["language"])
    if other is None:
        line += [nodes.inline("", MISSING, lang="zh-Hans"), _link(app, page, HOME, "中文首页")]
    else:
        line += _link(app, page, name_of(other), NAMES[not is_translation])
    title.parent.insert(title.parent.index(title) + 1, line)


def _link(app: Sphinx, page: str, target: str, text: str) -> nodes.reference:
    return nodes.reference("", text, internal=True, refuri=app.builder.get_relative_uri(page, target))


def name_of(file: Path) -> str:
    """The name by which Sphinx knows a page."""
    return file.relative_to(ROOT).as_posix().removesuffix(".md")
