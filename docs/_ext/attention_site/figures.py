"""The figures of the derivation pages: drawn by :mod:`attention_np.plot` while the site is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from docutils import nodes
from sphinx.util import logging

from attention_np import dot_product, gradcheck, masks, multi_head, plot

__all__ = ["FIGURES", "Drawing", "draw_figures", "place_figures"]

FOLDER = "_images"
SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]
LOOK: Any = {"svg.hashsalt": "attention_np", "figure.facecolor": "white", "savefig.facecolor": "white"}

log = logging.getLogger(__name__)


class Drawing(NamedTuple):
    """A figure, the equation that it stands behind, and what it says in words."""

    name: str
    behind: str
    draw: Callable[[], Any]  # gives the Axes, or an array of them
    alt: str
    caption: str


def _sentence(features: int) -> Any:
    return np.random.default_rng(3).standard_normal((len(SENTENCE), features))


def _weights() -> Any:
    x = _sentence(4)
    _, cache = dot_product.forward(x, x, x)
    return plot.weights(cache.weights, SENTENCE)


def _jacobian() -> Any:
    return plot.softmax_jacobian(np.array([2.0, 1.0, 0.5, 0.0, -1.0]))


def _heads() -> Any:
    rng, width = np.random.default_rng(5), 8
    parameters = multi_head.Parameters(*rng.standard_normal((4, width, width)) / np.sqrt(width))
    x = _sentence(width)
    _, cache = multi_head.forward(x, x, x, parameters, num_heads=2)
    return plot.heads(cache.weights, SENTENCE)


def _masks() -> Any:
    import matplotlib.pyplot as plt

    n, segments = 12, np.repeat([0, 1, 2], [5, 3, 4])
    shown = {
        "causal": masks.causal(n),
        "sliding window": masks.sliding_window(n, left=3),
        "blocks": masks.block_causal(n, 4),
        "several levels": masks.multi_level_causal(n, levels=(1, 4)),
        "padding": np.broadcast_to(masks.padding([8], n)[0], (n, n)),
        "packed": masks.packed(segments),
    }
    _, axes = plt.subplots(2, 3, figsize=(9, 6.6), layout="constrained")
    for ax, (name, mask) in zip(axes.flat, shown.items(), strict=True):
        if legend := plot.mask(mask, ax=ax).get_legend():
            legend.remove()  # the caption says it for all
        ax.set_title(name)
    return axes


def _convex_hull() -> Any:
    rng = np.random.default_rng(11)
    key, value = rng.standard_normal((2, 6, 2))
    return plot.points(np.array([1.5, 0.6]), key, value)


def _function(x: Any, w: Any) -> Any:
    return np.tanh(x @ w)


def _inputs() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {"x": rng.standard_normal((4, 3)), "w": rng.standard_normal((3, 5))}


def _v_curve() -> Any:
    return plot.v_curve(_function, _inputs())


def _wrong_gradient() -> Any:
    def backward(d_y: Any, x: Any, w: Any) -> Any:
        d_z = d_y * (1 - np.tanh(x @ w) ** 2)
        d_w = x.T @ d_z
        d_w[1, 2:] *= 1.001
        return d_z @ w.T, d_w

    return plot.places(gradcheck.check(_function, backward, _inputs())["w"])


FIGURES = (
    Drawing(
        "weights",
        "dot-product.5",
        _weights,
        "Heat map of six by six weights for the words of The cat sat on the mat; each row sums to one.",
        "The weights $A$ of a sentence with itself, on random features: a row for each query, a column for each key.",
    ),
    Drawing(
        "jacobian",
        "softmax.20",
        _jacobian,
        "Heat map of a five by five Jacobian: positive on the diagonal, negative elsewhere, largest for the heaviest "
        "weight.",
        "The Jacobian for the scores 2, 1, 0.5, 0 and -1. Every row and every column sums to zero.",
    ),
    Drawing(
        "saturation",
        "softmax.49",
        plot.saturation,
        "Curves over the width from 1 to 1024: with the factor the gradient that passes stays near 0.87, without it "
        "the gradient falls towards zero.",
        "How much gradient passes at random queries and keys of growing width, with and without the factor "
        "$1/\\sqrt{d_k}$. Median, and the range from the lower to the upper decile.",
    ),
    Drawing(
        "heads",
        "multi-head.10",
        _heads,
        "Two heat maps of six by six weights over the same sentence, which differ from each other.",
        "Two heads over one sentence, with random projections: each has weights of its own.",
    ),
    Drawing(
        "masks",
        "masks.45",
        _masks,
        "Six grids of twelve queries by twelve keys, with hidden pairs hatched: causal, sliding window, blocks, "
        "several levels, padding, packed.",
        "The masks of this page at twelve positions. What is hatched is hidden.",
    ),
    Drawing(
        "scores",
        "scaling.41",
        lambda: plot.saturation((1, 4, 16, 64, 256)),
        "Curves over the width from 1 to 256: with the factor the gradient stays level, without it the gradient falls.",
        "The same at random queries and keys: without the division the gradient vanishes with the width.",
    ),
    Drawing(
        "convex-hull",
        "properties.4",
        _convex_hull,
        "On the left six keys in the plane and a query as an arrow; on the right their values, the convex hull "
        "around them, and the output inside it.",
        "One query among the keys, and its output among the values. Dots are as large as their weights.",
    ),
    Drawing(
        "v-curve",
        "gradcheck.42",
        _v_curve,
        "Errors of finite differences over the step on logarithmic axes: each curve is a V; the complex step falls "
        "and stays at the rounding.",
        "The V of three formulas, and the complex step, which has no left arm.",
    ),
    Drawing(
        "places",
        "gradcheck.58",
        _wrong_gradient,
        "Grid of the entries of a gradient; three entries of the second row are outlined as wrong.",
        "Where a gradient is wrong: three entries are off by a thousandth, and each is found.",
    ),
    Drawing(
        "cost",
        "blockwise.42",
        plot.cost,
        "Memory over the length of the sequence on logarithmic axes: plain attention grows with the square of the "
        "length, blockwise attention with the length.",
        "The memory of a forward and a backward pass, plain and blockwise.",
    ),
)


def draw_figures(folder: Path) -> None:
    """Draw all figures into the images of the site; the same code draws the same bytes."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(LOOK):
        for drawing in FIGURES:
            axes = np.asarray(drawing.draw(), object).ravel()
            figure = axes[0].figure
            figure.savefig(folder / FOLDER / f"{drawing.name}.svg", metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)


def place_figures(doctree: nodes.document, page: str) -> None:
    """Put each figure behind its equation, and behind what the paragraph after the equation still says of it."""
    cards = {name: node for node in doctree.findall(nodes.container) for name in node["ids"]}
    for drawing in FIGURES:
        if drawing.behind in cards:
            parent, card = cards[drawing.behind].parent, cards[drawing.behind]
            parent.insert(parent.index(card) + 1, _figure(drawing, "../" * page.count("/")))


def _figure(drawing: Drawing, up: str) -> nodes.figure:
    address = f"{up}{FOLDER}/{drawing.name}.svg"
    image = nodes.image(uri=address, alt=drawing.alt, candidates={"?": address})  # not one of the source folder
    caption = nodes.caption("", "", *_with_formulas(drawing.caption))
    return nodes.figure("", image, caption, classes=["drawing"], ids=[f"figure-{drawing.name}"])


def _with_formulas(text: str) -> list[nodes.Node]:
    pieces = text.split("$")
    return [nodes.math(piece, piece) if number % 2 else nodes.Text(piece) for number, piece in enumerate(pieces)]
