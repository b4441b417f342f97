"""A figure for each function of :mod:`attention_np.plot`, for its reference, which shows the code of the figure too."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from attention_np import dot_product, gradcheck, masks, plot
from attention_site.drawings import Drawing

__all__ = ["REFERENCE", "shown_code"]


def weights() -> Any:
    words = ["The", "cat", "sat", "on", "the", "mat"]
    x = np.random.default_rng(3).normal(size=(6, 4))
    _, cache = dot_product.forward(x, x, x, is_causal=True)
    return plot.weights(cache.weights, words, mask=masks.causal(6))


def heads() -> Any:
    x = np.random.default_rng(0).normal(size=(2, 5, 4))  # two heads
    _, cache = dot_product.forward(x, x, x)
    _, axes = plt.subplots(2, 1, figsize=(4.6, 7), layout="compressed")  # without axes, side by side
    return plot.heads(cache.weights, ["I", "like", "to", "attend", "."], axes=axes)


def mask() -> Any:
    return plot.mask(masks.sliding_window(8, left=2))


def softmax_jacobian() -> Any:
    scores = np.array([2.0, 1.0, 0.0, -1.0])
    return plot.softmax_jacobian(scores, ["a", "b", "c", "d"])


def query_weights() -> Any:
    words = ["The", "cat", "sat", "on", "the", "mat"]
    x = np.random.default_rng(3).normal(size=(6, 4))
    _, cache = dot_product.forward(x, x, x, is_causal=True)
    return plot.query_weights(cache.weights[3], words, query="on", mask=masks.causal(6)[3])


def top_keys() -> Any:
    words = ["The", "cat", "sat", "on", "the", "mat"]
    x = np.random.default_rng(3).normal(size=(6, 4))
    _, cache = dot_product.forward(x, x, x)
    table = plot.top_keys(cache.weights, words, k=2)  # print(table) shows it as text
    return table.plot()


def saturation() -> Any:
    return plot.saturation(scales=[0.25, 1, 4, 16, 64, 256], d_k=64)


def cost() -> Any:
    return plot.cost([1024, 4096, 16384, 65536], memory=16 * 2**30)


def points() -> Any:
    rng = np.random.default_rng(11)
    key, value = rng.normal(size=(2, 6, 2))
    _, axes = plt.subplots(2, 1, figsize=(4.6, 8.4), layout="compressed")  # without axes, side by side
    return plot.points([1.5, 0.6], key, value, axes=axes)


def places() -> Any:
    def forward(x: Any) -> Any:
        return np.sin(x)

    def backward(d_y: Any, x: Any) -> Any:
        slope = np.cos(x)
        slope[1, 2:] = 1.0  # wrong
        return (d_y * slope,)

    report = gradcheck.check(forward, backward, {"x": np.random.default_rng(2).normal(size=(3, 5))})
    return plot.places(report["x"])


def _example(draw: Callable[[], Any], alt: str, caption: str) -> Drawing:
    name = draw.__name__
    return Drawing(f"plot-{name.replace('_', '-')}", f"{plot.__name__}.{name}", draw, alt, caption)


REFERENCE = (
    _example(
        weights,
        "Heat map of six by six weights under a causal mask: the upper right half is hatched and called hidden.",
        "The weights of one head. Hidden pairs have a hatch, and so has NaN.",
    ),
    _example(
        heads,
        "Two heat maps over the same five words, with one colour bar.",
        "A panel for each head, in colours that mean the same in all.",
    ),
    _example(
        mask,
        "Grid of eight queries by eight keys: a band of three along the diagonal is white, the rest is hatched.",
        "Who may attend to whom.",
    ),
    _example(
        softmax_jacobian,
        "Heat map of four by four derivatives: positive on the diagonal, negative elsewhere.",
        "How each weight moves with each score.",
    ),
    _example(
        query_weights,
        "Four bars with their weights behind them; the last two of six keys are hatched as hidden.",
        "The weights of one query.",
    ),
    _example(
        top_keys,
        "Table with a row for each of six words: two keys and their weights.",
        "The keys of the largest weights.",
    ),
    _example(
        saturation,
        "Two curves that fall towards zero as the scores grow; the one without the factor falls eight times earlier.",
        "How much gradient passes, over the scale of the scores.",
    ),
    _example(
        cost,
        "Memory of plain and of blockwise attention over the length, on logarithmic axes, and a line at 16 GiB, which "
        "plain attention crosses before a length of 8192.",
        "What attention costs, and what there is.",
    ),
    _example(
        points,
        "Six keys in the plane and a query as an arrow; their values, the convex hull and the output.",
        "A query among the keys, its output among the values.",
    ),
    _example(
        places,
        "Grid of three by five entries of a gradient, of which three in the second row are crossed as wrong.",
        "Where a gradient is wrong.",
    ),
)


def shown_code(drawing: Drawing) -> str:
    """The body of an example, as a reader would write it."""
    _, body = inspect.getsource(drawing.draw).split("\n", 1)
    unannotated = textwrap.dedent(body).replace(": Any", "").replace(" -> Any", "")
    return re.sub(r"^return (?:ax$)?", "", unannotated, flags=re.MULTILINE).rstrip()
