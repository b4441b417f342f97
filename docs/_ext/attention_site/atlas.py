"""Directives of the page of the atlas, from a stored run: its models, its recipes, and which mechanisms go together.

``{atlas} models``, ``{atlas} together`` and ``{atlas} recipes`` are the three. ``atlas.js`` searches the rows.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from attention_np.atlas import recipes
from attention_np.atlas._printing import lines_of
from attention_np.atlas.recipes._registry import RECIPES

__all__ = ["Atlas"]

STORED = "docs/measured/atlas.json"
HEAD = ("model", "recipe", "mechanisms", "heads", "features a head", "kept a token", "largest error")


class Entry(NamedTuple):
    """An attention class of a model folder."""

    folder: str
    name: str
    about: dict[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether the output and all gradients agree with the module's own."""
        return bool(self.about["state"] == "whole")

    @property
    def row(self) -> str:
        """Its line of the table."""
        get = self.about.get
        heads = str(get("heads", ""))
        if get("key_heads", get("heads")) != get("heads"):
            heads += f" / {get('key_heads')}"
        model = f"<td>{escape(self.folder)}<br><small>{escape(self.name)}</small></td>"
        if not self.is_whole:
            return f'<tr class="missing">{model}<td colspan="6">not read: {escape(get("why", ""))}</td></tr>'
        name = self.about["recipe"]
        recipe = escape(name)
        if name in RECIPES:  # else a reading that says itself what it computes
            recipe = f'<a href="#{anchor(name)}">{recipe}</a>'
        known = cells(*(str(get(key, "")) for key in ("d", "kept")), f"{get('error'):.0e}", kind=' class="number"')
        words = cells(get("mechanisms", ""))
        return f"<tr>{model}<td>{recipe}</td>{words}<td>{heads}</td>{known}</tr>"


class Atlas(SphinxDirective):
    """``{atlas} WHAT``: the rows of all models, the recipes, or a table of which mechanisms go together."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read the stored run, and show this side of it."""
        self.env.note_dependency(STORED)
        stored = json.loads((Path(self.env.srcdir) / STORED).read_text(encoding="utf-8"))
        entries = [Entry(folder, *of) for folder, classes in stored["folders"].items() for of in classes.items()]
        if self.arguments[0] == "recipes":
            return sections(entries)
        made = {"models": models, "together": together}[self.arguments[0]](entries)
        return [nodes.raw("", made, format="html")]


def models(entries: list[Entry]) -> str:
    """A table of all classes, whose rows the script searches."""
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    rows = "\n".join(entry.row for entry in entries)
    return (
        '<div class="atlas-search" hidden><label>Search '
        '<input type="search" placeholder="gemma, rotary gate, latent"></label> <span role="status"></span></div>'
        f'<div class="table-wrapper docutils container"><table class="docutils atlas"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def together(entries: list[Entry]) -> str:
    """How many classes have a mechanism and another: a square, darker where there are more."""
    of_classes = [
        list(filter(None, entry.about.get("mechanisms", "").split(", "))) for entry in entries if entry.is_whole
    ]
    counts = Counter(pair for words in of_classes for pair in product(words, words))
    words = sorted({one for one, _ in counts}, key=lambda word: -counts[word, word])
    rows = []
    for one in words:
        row = [f'<th scope="row">{one}</th>']
        for other in words:
            count = counts[one, other]
            share = count / counts[one, one]
            said = f"{count} of {counts[one, one]} classes with {one} have {other}"
            row.append(f'<td style="--share: {share:.2f}" title="{said}">{count or ""}</td>')
        rows.append(f"<tr>{''.join(row)}</tr>")
    head = "".join(f'<th scope="col"><span>{word}</span></th>' for word in words)
    body = "\n".join(rows)
    return (
        '<div class="table-wrapper"><table class="mechanisms-together">'
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def sections(entries: list[Entry]) -> list[nodes.Node]:
    """Each recipe: what it is, its steps with the tags of their equations, and the models that have it."""
    made: list[nodes.Node] = []
    for name in sorted(RECIPES):
        recipe = getattr(recipes, name)
        served = sorted({entry.folder for entry in entries if entry.is_whole and entry.about["recipe"] == name})
        section = nodes.section(ids=[anchor(name)])
        section += nodes.title("", name)
        section += nodes.paragraph("", " ".join((inspect.getdoc(recipe) or "").split()).replace("`", ""))
        section += nodes.literal_block(lines_of(recipe), lines_of(recipe), language="python")
        if served:
            section += nodes.paragraph("", f"{len(served)} models: {', '.join(served)}.")
        made.append(section)
    return made


def cells(*texts: str, kind: str = "") -> str:
    """The cells of a row."""
    return "".join(f"<td{kind}>{escape(text)}</td>" for text in texts)


def anchor(recipe: str) -> str:
    """Of the section of a recipe."""
    return f"recipe-{recipe.replace('_', '-')}"
