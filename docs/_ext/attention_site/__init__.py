"""A Sphinx extension: derivation pages with each equation beside its verdict and the code that carries it out."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from attention_site import (
    atlas,
    course,
    equations,
    examples,
    figures,
    letters,
    naming,
    pictures,
    reference,
    translations,
    typography,
    ways,
)
from attention_site.running import Program, Run, ShownEquation
from attention_site.searching import SearchIndex
from attention_site.site import Site

__all__ = ["copy_mathjax", "setup"]

CARRIER = "sphinx-mathjax-offline"  # a package whose files are those of MathJax 3.2.2
FORMULAS = "formulas.js"  # of all equations, which reading.js loads where somebody looks at a tag
MATHJAX = "tex-svg.js"  # formulas as drawings: fonts are not loaded from a page that is opened as a file


class _Build:
    """One build: the check runs at its beginning, and each page is finished when its links are resolved."""

    site: Site
    found: SearchIndex

    def begin(self, app: Sphinx) -> None:
        self.site = Site(Path(app.srcdir), app.builder)
        self.site.check()
        self.found = SearchIndex()
        figures.draw_figures(Path(app.outdir))

    def read(self, app: Sphinx, doctree: nodes.document) -> None:
        reference.link_files(self.site, doctree, app.env.docname)

    def finish(self, app: Sphinx, doctree: nodes.document, page: str) -> None:
        equations.show_equations(self.site, doctree, page)
        ways.show_ways(self.site, doctree, page, app.env.found_docs)
        figures.place_figures(doctree, page)
        examples.show_results(doctree, page, self.site.root, Path(app.outdir))
        pictures.let_enlarge(doctree, page, self.site.root, Path(app.outdir))
        equations.link_mentions(self.site, doctree, page)
        equations.link_tags_of_code(self.site, doctree, page)
        translations.link_translation(app, doctree, page)
        if page.endswith(".zh"):
            typography.join_lines(doctree)
            typography.tell_asides(doctree)
        typography.keep_punctuation(doctree)
        typography.leave_plain(doctree)
        reference.number_citations(doctree)
        reference.link_signatures(self.site, doctree, page)
        reference.link_named_pages(self.site, doctree, page, app.env.found_docs)
        self.found.add(doctree, app.builder.get_target_uri(page))
        letters.show_letters(self.site, doctree, page)  # which search does not look through

    def prepare_search(self, app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
        if page == "search":
            context |= {"mathjax": json.dumps(app.config.mathjax3_config), "mathjax_file": MATHJAX}

    def collect(self, _app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
        yield from reference.source_pages(self.site)

    def end(self, app: Sphinx, exception: Exception | None) -> None:
        if exception is None:
            copy_mathjax(Path(app.outdir) / "_static")
            self.found.write(Path(app.outdir) / "_static")
            formulas = json.dumps(self.site.formulas, ensure_ascii=False, separators=(",", ":"))
            (Path(app.outdir) / "_static" / FORMULAS).write_text(f"window.formulas = {formulas};\n", encoding="utf-8")


def copy_mathjax(folder: Path) -> None:
    """Copy the one file of MathJax that is needed, so that nothing is fetched when the site is read."""
    try:
        carrier = importlib.resources.files(CARRIER)
    except ModuleNotFoundError as error:
        raise ExtensionError("MathJax is missing: pip install 'attention-np[site]'") from error
    with importlib.resources.as_file(carrier / "static" / "mathjax" / MATHJAX) as file:
        shutil.copy(file, folder / MATHJAX)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    build = _Build()
    app.connect("builder-inited", build.begin)
    app.connect("source-read", translations.lead_to_translations)
    app.connect("doctree-read", build.read, priority=400)  # before files are collected that links lead to
    app.connect("env-updated", naming.name_pages)
    app.connect("doctree-resolved", build.finish)
    app.connect("html-page-context", naming.set_language)
    app.connect("html-page-context", build.prepare_search)
    app.connect("html-collect-pages", build.collect)
    app.connect("build-finished", build.end)
    app.connect("autodoc-process-docstring", reference.adapt_docstring, priority=400)  # before numpydoc
    app.connect("autodoc-process-signature", reference.adapt_signature)
    app.add_source_suffix(".py", "percent")
    app.add_source_parser(examples.ExampleParser)
    app.add_directive(examples.RESULTS, examples.Results)
    app.add_directive("run", Run)
    app.add_directive("run-python", Program)
    app.add_directive("equation", ShownEquation)
    app.add_directive_to_domain("std", "program", translations.ProgramOf, override=True)  # Sphinx looks there first
    app.add_directive("block", translations.BlockOf)
    app.add_directive("moving", course.Moving)
    app.add_directive("mechanism", course.Mechanism)
    app.add_directive("results-of", course.ResultsOf)
    app.add_directive("atlas", atlas.Atlas)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
