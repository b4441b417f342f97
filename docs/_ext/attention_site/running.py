"""Directives: commands and programs with what they print while the site is built, and equations of other pages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attention_np.derivation import read_page
from attention_site.site import FOLDERS

__all__ = ["Done", "Program", "Run", "ShownEquation", "output_block", "run"]

LONGEST = 300  # seconds
COLUMNS = 76  # that fit beside the navigation
NARROW = 44  # that fit a telephone

log = logging.getLogger(__name__)


class Done(NamedTuple):
    """What a program left."""

    code: int
    printed: str
    errors: str
    folder: Path  # that it ran in, with the files that it wrote


@contextmanager
def run(arguments: list[str], root: Path, columns: int = COLUMNS) -> Iterator[Done]:
    """Run Python with `arguments` in an empty folder; it opens no window."""
    settings = {"MPLBACKEND": "Agg", "COLUMNS": str(columns), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | settings | {"PYTHONPATH": str(root)},
            capture_output=True,
            encoding="utf-8",
            timeout=LONGEST,
            check=False,
        )
        yield Done(done.returncode, done.stdout.rstrip(), done.stderr.strip(), Path(folder))


def output_block(text: str, *classes: str) -> nodes.literal_block:
    """What a program printed."""
    return nodes.literal_block(text, text, language="text", classes=["output", *classes])


class Run(SphinxDirective):
    """``{run} trace "I love AI"``: a command of the package, and what it prints, in narrow lines on a telephone."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Run it."""
        command = f"python -m attention_np {self.arguments[0]}"
        blocks: list[nodes.Node] = [nodes.literal_block(command, command, language="text")]
        for columns, name in ((COLUMNS, "wide"), (NARROW, "narrow")):
            with run(shlex.split(command)[1:], Path(self.env.srcdir), columns) as done:
                if done.code:
                    log.warning("%s failed: %s", command, done.errors, location=self.get_location())
                blocks.append(output_block(done.printed, name))
        return blocks


class Program(SphinxDirective):
    """``{run-python}``: a few lines of Python, and what they print."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Run them."""
        code = "\n".join(self.content)
        with run(["-c", code], Path(self.env.srcdir)) as done:
            if done.code:
                log.warning("the program failed: %s", done.errors, location=self.get_location())
            return [nodes.literal_block(code, code, language="python"), output_block(done.printed)]


class ShownEquation(SphinxDirective):
    """``{equation} softmax.31``: an equation of a derivation, shown in another page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Look it up."""
        tag = self.arguments[0]
        name = f"{tag.partition('.')[0].replace('-', '_')}.md"
        files = [Path(self.env.srcdir) / folder / name for folder in FOLDERS]
        file = next((file for file in files if file.is_file()), files[0])
        self.env.note_dependency(str(file))
        for equation in read_page(file).equations:
            if equation.tag == tag:
                latex = rf"{equation.text.strip()} \tag{{{tag}}}"
                return [nodes.math_block(latex, latex, number=None)]
        raise self.error(f"there is no equation ({tag}) in {file.name}")
