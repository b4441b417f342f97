"""The programs of ``examples/`` as pages: their text, their code, and what they print and draw."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attention_site.figures import FOLDER
from attention_site.running import output_block, run

__all__ = ["RESULTS", "ExampleParser", "Results", "as_markdown", "show_results"]

RESULTS = "results"  # the directive and the class of the place where the results of a program go

log = logging.getLogger(__name__)


class ExampleParser(MystParser):
    """Reads a program whose cells begin with ``# %%``; cells of text are Markdown."""

    supported = ("percent",)  # type: ignore[misc]

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the program as the page that it is."""
        super().parse(as_markdown(inputstring), document)


def as_markdown(program: str) -> str:
    """The cells of a program as one Markdown text, with a place for its results at the end."""
    import jupytext  # type: ignore[import-untyped]

    parts = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in jupytext.reads(program, fmt="py:percent").cells
    ]
    text = re.sub(r"\A(# .*)\.$", r"\1", "\n\n".join(parts), flags=re.MULTILINE)
    return f"{text}\n\n## What it prints\n\n```{{{RESULTS}}}\n```\n"


class Results(SphinxDirective):
    """The place where the results of a program go; it has them when the page is finished."""

    def run(self) -> list[nodes.Node]:
        """Leave an empty place."""
        return [nodes.container(classes=[RESULTS])]


class _Results(NamedTuple):
    printed: str
    missing: str  # why it did not run
    pictures: list[str]


def show_results(doctree: nodes.document, page: str, root: Path, site: Path) -> None:
    """Run the program of a page, and put what it prints and draws into its place."""
    for place in doctree.findall(nodes.container):
        if RESULTS in place["classes"]:
            results = _results(root / f"{page}.py", root, site / FOLDER)
            if results.missing:
                place += nodes.paragraph("", f"It was not run for this page: {results.missing}")
            if results.printed:
                place += output_block(results.printed)
            for picture in results.pictures:
                address = f"{'../' * page.count('/')}{FOLDER}/{picture}"
                title = next(iter(doctree.findall(nodes.title))).astext()
                place += nodes.image(uri=address, alt=f"What the example draws: {title}", candidates={"?": address})


def _results(program: Path, root: Path, folder: Path) -> _Results:
    folder.mkdir(parents=True, exist_ok=True)
    with run([str(program)], root) as done:
        pictures = []
        for picture in sorted(done.folder.rglob("*.png")):
            pictures.append(f"example-{picture.name}")
            shutil.copy(picture, folder / pictures[-1])
        missing = ""
        if done.code:
            missing = (done.errors.splitlines() or ["it failed"])[-1]
            if "not installed" not in missing:
                log.warning("%s failed: %s", program, missing)
        return _Results(done.printed, missing, pictures)
