"""Pages in another language: prose of their own, and the equations and programs of the page that they translate.

A translation of ``docs/course/lookup.md`` is ``docs/zh/course/lookup.zh.md``. Its first line names its page, and the
digest of that page when the two were last compared: ``python -m docs.translations`` says which are behind.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attention_site.running import output_block

__all__ = ["ProgramOf", "link_translation", "original_of", "programs", "translation_of"]

FOLDER, SUFFIX = "docs/zh/", ".zh"
NAMES = "English", "中文"  # of the languages
_PROGRAM = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def original_of(page: str) -> str | None:
    """The page that a page translates: what stands at the same place without the folder of the language."""
    if not (page.startswith(FOLDER) and page.endswith(SUFFIX)):
        return None
    name = page.removeprefix(FOLDER).removesuffix(SUFFIX)
    return name if name.startswith("derivations/") else f"docs/{name}"


def translation_of(page: str) -> str:
    """Where the translation of a page is, if there is one."""
    return f"{FOLDER}{page.removeprefix('docs/')}{SUFFIX}"


def programs(text: str) -> list[tuple[str, str]]:
    """The programs of a page, and what each prints."""
    return _PROGRAM.findall(text)


class ProgramOf(SphinxDirective):
    """``{program} 1``: the first program of the page that this one translates, and what it prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Take it from the original."""
        original = original_of(self.env.docname)
        if original is None:
            raise self.error("only a translation shows the programs of another page")
        file = Path(self.env.srcdir) / f"{original}.md"
        self.env.note_dependency(str(file))
        shown = dict(enumerate(programs(file.read_text(encoding="utf-8")), start=1))
        number = self.arguments[0]
        if not number.isdecimal() or int(number) not in shown:
            raise self.error(f"{original}.md has {len(shown)} programs, and none is number {number}")
        code, printed = shown[int(number)]
        return [nodes.literal_block(code, code.rstrip("\n"), language="python"), output_block(printed.rstrip("\n"))]


def link_translation(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put a link to the page in the other language under the title."""
    original = original_of(page)
    other, name = (translation_of(page), NAMES[1]) if original is None else (original, NAMES[0])
    title = next(doctree.findall(nodes.title), None)
    if title is None or other not in app.env.found_docs:
        return
    link = nodes.reference("", name, internal=True, refuri=app.builder.get_relative_uri(page, other))
    title.parent.insert(title.parent.index(title) + 1, nodes.paragraph("", "", link, classes=["language"]))
