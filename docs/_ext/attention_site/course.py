"""Directives of the course: figures that move, diagrams of mechanism, and what an example draws.

The content of each is its caption. ``{moving} softmax`` shows a still picture until a script puts the figure of that
name in its place; ``{mechanism} heads`` shows a diagram; ``{results-of} learning`` shows the picture that an example
of that name saves.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attention_site.figures import FOLDER
from attention_site.mechanisms import MECHANISMS, draw
from attention_site.running import run
from attention_site.stills import STILLS

__all__ = ["Mechanism", "Moving", "ResultsOf"]

log = logging.getLogger(__name__)


class _Captioned(SphinxDirective):
    required_arguments = 1
    has_content = True

    def figure(self, picture: nodes.Node, name: str, kind: str) -> list[nodes.Node]:
        """A figure with the content as its caption."""
        parsed = self.parse_content_to_nodes()
        caption = nodes.caption("", "", *(parsed[0].children if parsed else []))
        figure = nodes.figure("", picture, caption, classes=["drawing", kind], ids=[f"{kind}-{name}"])
        return [figure]

    def image(self, file: str) -> nodes.raw:
        """A picture that the build makes, with the content as what it says to those who cannot see it."""
        address = f"{'../' * self.env.docname.count('/')}{FOLDER}/{file}"
        image = f'<img src="{address}" alt="{escape(" ".join(self.content))}">'
        return nodes.raw("", f'<a class="enlarge" href="{address}">{image}</a>', format="html")


class Moving(_Captioned):
    """``{moving} NAME``: a figure of ``_static/moving.js``, and its still picture."""

    def run(self) -> list[nodes.Node]:
        """Place the still picture, which the script finds by its name."""
        name = self.arguments[0]
        if name not in STILLS:
            raise self.error(f"there is no figure {name} that moves; there are {', '.join(STILLS)}")
        return self.figure(self.image(f"still-{name}.svg"), name, "moving")


class Mechanism(_Captioned):
    """``{mechanism} NAME``: a diagram, in the colours of the page."""

    def run(self) -> list[nodes.Node]:
        """Draw it into the page."""
        name = self.arguments[0]
        if name not in MECHANISMS:
            raise self.error(f"there is no diagram {name}; there are {', '.join(MECHANISMS)}")
        drawn = draw(name, " ".join(self.content), in_chinese=self.env.docname.endswith(".zh"))
        return self.figure(nodes.raw("", drawn, format="html"), name, "mechanism")


class ResultsOf(_Captioned):
    """``{results-of} NAME``: the picture that an example saves when it runs."""

    def run(self) -> list[nodes.Node]:
        """Run the example, and show its picture."""
        name = self.arguments[0]
        root, folder = Path(self.env.srcdir), Path(self.env.app.outdir) / FOLDER
        self.env.note_dependency(f"examples/{name}.py")
        with run([str(root / "examples" / f"{name}.py")], root) as done:
            picture = done.folder / "build" / "examples" / f"{name}.png"
            if done.code or not picture.is_file():
                log.warning("examples/%s.py left no picture: %s", name, done.errors, location=self.get_location())
                return []
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"example-{name}.png").write_bytes(picture.read_bytes())
        return self.figure(self.image(f"example-{name}.png"), name, "results")
