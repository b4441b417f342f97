"""What the figures of the derivation pages show: drawn by :mod:`attention_np.plot` while the site is built.

All are narrow, with panels below one another, so that letters stay legible where a phone shrinks them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attention_np import biases, dot_product, gradcheck, linear_attention, masks, multi_head, plot, rotary
from attention_np._lib.figures import legend_below

__all__ = ["FIGURES", "WIDE", "Drawing"]

SENTENCE = ["The", "cat", "sat", "on", "the", "mat"]
WIDE = 4.6  # inches


class Drawing(NamedTuple):
    """A figure, the equation or the function that it stands behind, and what it says in words."""

    name: str
    behind: str
    draw: Callable[[], Any]  # gives the Axes, or an array of them
    alt: str
    caption: str


def _panels(high: float, rows: int = 1, columns: int = 1, space: bool = False) -> Any:
    """Axes on a figure as wide as all others and so many inches high; one alone, or an array of them."""
    import matplotlib.pyplot as plt

    look = {"projection": "3d"} if space else None
    return plt.subplots(rows, columns, figsize=(WIDE, high), layout="compressed", subplot_kw=look)[1]


def _sentence(features: int) -> Any:
    return np.random.default_rng(3).standard_normal((len(SENTENCE), features))


def _weights_of_the_sentence() -> Any:
    x = _sentence(4)
    _, cache = dot_product.forward(x, x, x)
    return cache.weights


def _query_weights() -> Any:
    return plot.query_weights(_weights_of_the_sentence()[3], SENTENCE, query="on", ax=_panels(2.6))


def _weights() -> Any:
    return plot.weights(_weights_of_the_sentence(), SENTENCE, ax=_panels(3.6))


def _top_keys() -> Any:
    return plot.top_keys(_weights_of_the_sentence(), SENTENCE, k=2).plot()


def _jacobian() -> Any:
    return plot.softmax_jacobian(np.array([2.0, 1.0, 0.5, 0.0, -1.0]), ax=_panels(3.6))


def _saturation() -> Any:
    return plot.saturation(scales=2.0 ** np.arange(-2, 9), ax=_panels(4.2))


def _scores() -> Any:
    return plot.saturation(ax=_panels(4.2))


def _heads() -> Any:
    rng, width = np.random.default_rng(5), 8
    parameters = multi_head.Parameters(*rng.standard_normal((4, width, width)) / np.sqrt(width))
    x = _sentence(width)
    _, cache = multi_head.forward(x, x, x, parameters, num_heads=2)
    return plot.heads(cache.weights, SENTENCE, axes=_panels(7.0, rows=2))


def _masks() -> Any:
    n, segments = 12, np.repeat([0, 1, 2], [5, 3, 4])
    shown = {
        "causal": masks.causal(n),
        "sliding window": masks.sliding_window(n, left=3),
        "blocks": masks.block_causal(n, 4),
        "several levels": masks.multi_level_causal(n, levels=(1, 4)),
        "padding": np.broadcast_to(masks.padding([8], n)[0], (n, n)),
        "packed": masks.packed(segments),
    }
    axes = _panels(7.4, rows=3, columns=2)
    for ax, (name, mask) in zip(axes.flat, shown.items(), strict=True):
        if legend := plot.mask(mask, ax=ax).get_legend():
            legend.remove()  # the caption says it for all
        ax.set_title(name)
    return axes


def _convex_hull() -> Any:
    rng = np.random.default_rng(11)
    key, value = rng.standard_normal((2, 6, 2))
    return plot.points(np.array([1.5, 0.6]), key, value, axes=_panels(8.4, rows=2))


def _doubled_query() -> Any:
    rng = np.random.default_rng(281)
    query, (key, value) = rng.standard_normal(3), rng.standard_normal((2, 6, 3))
    return plot.points([query, 2 * query], key, value, ["q", "2q"], axes=_panels(7.4, rows=2, space=True))


def _function(x: Any, w: Any) -> Any:
    return np.tanh(x @ w)


def _inputs() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {"x": rng.standard_normal((4, 3)), "w": rng.standard_normal((3, 5))}


def _v_curve() -> Any:
    x, w = _inputs().values()
    moves, right = np.eye(w.size).reshape(-1, *w.shape), (x.T @ (1 - _function(x, w) ** 2)).ravel()
    steps = np.logspace(-16, 0, 49)

    def losses(h: Any) -> Any:
        return _function(x, w + h[:, None, None, None] * moves).sum(axis=(-2, -1))  # (steps, entries)

    h = steps[:, None]
    central = [(losses(k * steps) - losses(-k * steps)) / (2 * k * h) for k in (1, 1 / 2, 1 / 4)]
    once = [(4 * fine - coarse) / 3 for coarse, fine in pairwise(central)]
    formulas = {  # told apart by the line and the marker, too; the colours are those of Okabe and Ito
        "forward differences, $h$": ((losses(steps) - losses(0 * steps)) / h, "#E69F00", "-", "v"),
        "central differences, $h^2$": (central[0], "#56B4E9", "--", "s"),
        "extrapolated once, $h^4$": (once[0], "#009E73", "-.", "^"),
        "extrapolated twice, $h^6$": ((16 * once[1] - once[0]) / 15, "#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "D"),
        "complex step, $h^2$": (losses(1j * steps).imag / h, "#000000", "-", "o"),
    }
    ax = _panels(4.8)
    for number, (formula, (slopes, colour, line, marker)) in enumerate(formulas.items()):
        errors = np.maximum(np.abs(slopes - right) / np.abs(right).max(), 1e-17)  # zero, too, has a place
        median, every = np.median(errors, axis=1), (number, 4)
        ax.loglog(steps, median, color=colour, ls=line, marker=marker, markevery=every, ms=4, label=formula)
        ax.fill_between(steps, median, errors.max(axis=1), color=colour, alpha=0.15, lw=0)
    ax.axhline(np.finfo(float).eps, color="0.5", lw=0.8, ls=":", label="rounding, $2^{-52}$")
    ax.set_xlabel("step h")
    ax.set_ylabel("relative error")
    ax.grid(alpha=0.25)
    ax.locator_params(axis="x", numticks=6)
    legend_below(ax, columns=2)
    return ax


def _wrong_gradient() -> Any:
    def backward(d_y: Any, x: Any, w: Any) -> Any:
        d_z = d_y * (1 - np.tanh(x @ w) ** 2)
        d_w = x.T @ d_z
        d_w[1, 2:] *= 1.001
        return d_z @ w.T, d_w

    return plot.places(gradcheck.check(_function, backward, _inputs())["w"], ax=_panels(3.6))


def _cost() -> Any:
    return plot.cost(ax=_panels(3.8))


def _softcap() -> Any:
    above, below = axes = _panels(4.6, rows=2)
    products = np.linspace(-6, 6, 241)
    for cap in (1, 2, 4):
        above.plot(products, cap * np.tanh(products / cap), label=f"softcap {cap}")
        below.plot(products, 1 / np.cosh(products / cap) ** 2)
    above.plot(products, products, color="grey", linestyle=":", label="none")
    above.set_ylabel("score")
    above.legend()
    below.set(xlabel="product of a query and a key", ylabel="slope")
    return axes


def _sink() -> Any:
    ax = _panels(2.8)
    sinks = np.linspace(-4, 8, 121)
    for m in (1, 8, 64):
        query, key, value = np.zeros((1, 1)), np.zeros((m, 1)), np.ones((m, 1))
        outputs = [dot_product.forward(query, key, value, sink=sink)[0].item() for sink in sinks]
        ax.plot(sinks, 1 - np.array(outputs), label="1 key" if m == 1 else f"{m} keys")
    ax.set(xlabel="sink", ylabel="its share")
    ax.legend()
    return ax


def _turning() -> Any:
    n, pairs = 9, 3
    x = np.zeros((n, 2 * pairs))
    x[:, :pairs] = 1
    turned, _ = rotary.forward(x, base=20)
    axes = _panels(2.1, columns=pairs)
    for a, ax in enumerate(axes):
        across, up = turned[:, a], turned[:, a + pairs]
        ax.plot(np.cos(np.linspace(0, 2 * np.pi)), np.sin(np.linspace(0, 2 * np.pi)), color="lightgrey", zorder=0)
        ax.scatter(across, up, c=np.arange(n), cmap="viridis", s=16)
        for position in (0, n - 1):
            ax.annotate(f"{position}", 1.25 * np.array([across[position], up[position]]), ha="center", va="center")
        ax.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal", title=f"pair {a + 1}", xticks=[], yticks=[])
    return axes


def _ramps() -> Any:
    above, below = axes = _panels(4.6, rows=2)
    n = 24
    slopes = biases.alibi_slopes(4)
    _, cache = dot_product.forward(
        np.zeros((4, n, 1)), np.zeros((4, n, 1)), np.zeros((4, n, 1)), bias=biases.alibi(slopes)
    )
    for slope, weights in zip(slopes, cache.weights, strict=True):
        above.plot(np.arange(n), -slope * np.arange(n)[::-1], label=f"slope 1/{1 / slope:.0f}")
        below.plot(np.arange(n), weights[-1])
    above.set_ylabel("bias")
    above.legend()
    below.set(xlabel="key, for the last of 24 queries", ylabel="weight")
    return axes


def _states() -> Any:
    first, second = np.eye(2)
    key = np.array([first, second, second, first, second, second])  # the fourth token writes to the first one's key
    value = np.array([1.0, 0.5, 0.0, -1.0, 0.0, 0.0])[:, None]
    rules: dict[str, dict[str, Any]] = {
        "sum": {},
        "with a decay": {"log_decay": np.full((6, 1), np.log(0.7))},
        "with the delta rule": {"beta": np.ones(6)},
    }
    ax = _panels(2.8)
    for (name, options), marker in zip(rules.items(), "ovs", strict=True):
        said, _ = linear_attention.forward(np.tile(first, (6, 1)), key, value, scale=1.0, **options)
        ax.plot(np.arange(1, 7), said[:, 0], marker=marker, label=name)
    ax.set(xlabel="token", ylabel="what the state says")
    ax.legend()
    return ax


FIGURES = (
    Drawing(
        "query-weights",
        "dot-product.3",
        _query_weights,
        "Bars for the six words of The cat sat on the mat: the weights that the query on gives to each, which sum "
        "to one.",
        "The weights of one query: the row of $A$ for the fourth word of a sentence, on random features.",
    ),
    Drawing(
        "top-keys",
        "dot-product.4",
        _top_keys,
        "Table with a row for each of the six words: the two words that it attends to most, and their weights.",
        "Which values each output is mostly made of: the two keys of the largest weight.",
    ),
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
        "softmax.44",
        _saturation,
        "Two falling curves over the standard deviation of the scores, from 1/4 to 256. Without the factor the "
        "gradient falls from 0.94 to nearly zero at 16; with it, the same curve lies eight times further to the right.",
        "How much gradient passes at random queries and keys of width 64, over the scale of their products. The "
        "factor $1/\\sqrt{d_k}$ shifts the curve to the right, by $\\sqrt{64} = 8$. Median, and the range from the "
        "lower to the upper decile.",
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
        _scores,
        "Curves over the width from 1 to 1024: with the factor the gradient that passes stays near 0.9, without it "
        "the gradient falls towards zero.",
        "How much gradient passes at random queries and keys of growing width: without the division it vanishes.",
    ),
    Drawing(
        "convex-hull",
        "properties.4",
        _convex_hull,
        "First six keys in the plane and a query as an arrow; then their values, the convex hull around them, and "
        "the output inside it.",
        "One query among the keys, and its output among the values. Dots are as large as their weights.",
    ),
    Drawing(
        "doubled-query",
        "properties.8",
        _doubled_query,
        "First six keys in space and two arrows, of which one is twice as long as the other; then the values with "
        "their convex hull, a body with flat sides, and two outputs inside it, the second one nearer to its border.",
        "A query and its double, in three features. The second output is not the double of the first: it has moved "
        "towards the values of the largest weights, and is in the convex hull as well.",
    ),
    Drawing(
        "v-curve",
        "gradcheck.42",
        _v_curve,
        "Errors of finite differences over the step on logarithmic axes: each curve is a V; the complex step falls "
        "and stays at the rounding.",
        "The V of four formulas of differences, and the complex step, which has no left arm. Median and largest error "
        "of the entries of a gradient.",
    ),
    Drawing(
        "places",
        "gradcheck.58",
        _wrong_gradient,
        "Grid of the entries of a gradient; three entries of the second row are crossed as wrong.",
        "Where a gradient is wrong: three entries are off by a thousandth, and each is found.",
    ),
    Drawing(
        "cost",
        "blockwise.48",
        _cost,
        "Memory over the length of the sequence on logarithmic axes: plain attention grows with the square of the "
        "length, blockwise attention with the length.",
        "The memory of a forward and a backward pass, plain and blockwise.",
    ),
    Drawing(
        "softcap",
        "dot-product.36",
        _softcap,
        "Two panels over the product of a query and a key. Above three curves that come to rest at plus and minus 1, 2 "
        "and 4, and the straight line without a cap. Below their slopes: bells of height one, wider for a higher cap.",
        "Scores under a softcap, and the factor that their gradient gets: a product far beyond the cap learns nothing.",
    ),
    Drawing(
        "sink",
        "dot-product.38",
        _sink,
        "Three rising curves over the sink, from nearly zero to nearly one: for 1, 8 and 64 keys, each further right.",
        "The share $\\omega$ of a sink, where all keys have the score zero. Many keys outweigh it together.",
    ),
    Drawing(
        "turning-pairs",
        "rotary.5",
        _turning,
        "Three circles with nine dots each, for the positions 0 to 8. On the first circle they go round more than "
        "once, on the second nearly half round, on the third a sixth.",
        "Three pairs of features at the positions 0 to 8, with 20 for 10000: the first turns fastest.",
    ),
    Drawing(
        "ramps",
        "biases.1",
        _ramps,
        "Above four straight lines that rise to zero at the last key, below the weights that they make: the steeper "
        "the line, the more weight have the nearest keys.",
        "ALiBi's ramps for four heads, and the weights of the last query where the products say nothing: each head "
        "looks back at its own range.",
    ),
    Drawing(
        "states",
        "linear-attention.10",
        _states,
        "Three lines over six tokens. All say 1 at first. The sum stays there until the fourth token, then says 0; the "
        "one with a decay falls, then says less than 0 and rises again; the delta rule stays at 1, then at -1.",
        "What a state says for one key, to which the first token writes 1 and the fourth -1. The sum says both "
        "together, a decay forgets, and the delta rule corrects.",
    ),
)
