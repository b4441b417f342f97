"""The figures of the pages: drawn while the site is built, and put where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from sphinx import addnodes

from attention_site.captions import IN_CHINESE
from attention_site.drawings import FIGURES, WIDE, Drawing
from attention_site.plot_examples import REFERENCE, shown_code
from attention_site.stills import STILLS

__all__ = ["FIGURES", "IN_CHINESE", "REFERENCE", "Drawing", "draw_figures", "place_figures"]

FOLDER = "_images"
LOOK: Any = {"svg.hashsalt": "attention_np", "figure.facecolor": "white", "savefig.facecolor": "white"}


def draw_figures(folder: Path) -> None:
    """Draw all figures into the images of the site; the same code draws the same bytes."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    drawings = {drawing.name: drawing.draw for drawing in (*FIGURES, *REFERENCE)}
    drawings |= {f"still-{name}": draw for name, draw in STILLS.items()}
    with mpl.rc_context(LOOK):
        for name, draw in drawings.items():
            axes = np.asarray(draw(), object).ravel()
            figure = axes[0].figure
            wide, high = figure.get_size_inches()
            figure.set_size_inches(min(wide, WIDE), high)
            figure.savefig(folder / FOLDER / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)


def place_figures(doctree: nodes.document, page: str) -> None:
    """Put each figure behind its equation, or with its code at the end of what the reference says of a function."""
    cards = {name: node for node in doctree.findall(nodes.container) for name in node["ids"]}
    for drawing in FIGURES:
        if drawing.behind in cards:
            parent, card = cards[drawing.behind].parent, cards[drawing.behind]
            said = IN_CHINESE[drawing.name] if page.endswith(".zh") else (drawing.alt, drawing.caption)
            told = drawing._replace(alt=said[0], caption=said[1])
            parent.insert(parent.index(card) + 1, _figure(told, "../" * page.count("/")))
    described = {name: node.parent for node in doctree.findall(addnodes.desc_signature) for name in node["ids"]}
    for drawing in REFERENCE:
        if drawing.behind in described:
            code = shown_code(drawing)
            content = next(described[drawing.behind].findall(addnodes.desc_content))
            shown = nodes.literal_block(code, code, language="python")
            content.extend([nodes.rubric("", "Example"), shown, _figure(drawing, "../" * page.count("/"))])


def _figure(drawing: Drawing, up: str) -> nodes.figure:
    address = f"{up}{FOLDER}/{drawing.name}.svg"
    image = nodes.image(uri=address, alt=drawing.alt, candidates={"?": address})  # not one of the source folder
    caption = nodes.caption("", "", *_with_formulas(drawing.caption))
    return nodes.figure("", image, caption, classes=["drawing"], ids=[f"figure-{drawing.name}"])


def _with_formulas(text: str) -> list[nodes.Node]:
    pieces = text.split("$")
    return [nodes.math(piece, piece) if number % 2 else nodes.Text(piece) for number, piece in enumerate(pieces)]
