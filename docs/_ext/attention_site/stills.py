"""What stands in the place of each figure that moves until its script has run: one moment of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np import dot_product, linear_attention, masks, rotary, softmax

__all__ = ["STILLS"]

WORDS = ["the", "cat", "ran", "it"]
SCORES = np.array([0.0, 2.0, 1.0, 0.0])  # those of the course
BLUE, RED = "#0072B2", "#D55E00"  # of Okabe and Ito


def _axes(high: float = 2.2, columns: int = 1) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(4.6, high), layout="constrained")[1]


def _bars(ax: Any, names: list[str], values: Any, title: str) -> None:
    ax.barh(names[::-1], values[::-1], color=[RED if x < 0 else BLUE for x in values[::-1]])
    ax.set_title(title, fontsize=9)


def _arrows(ax: Any, vectors: Any, names: list[str]) -> None:
    reach = 1.25 * np.abs(vectors).max()
    for (x, y), name in zip(vectors, names, strict=True):
        ax.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": BLUE})
        ax.text(1.1 * x, 1.1 * y, name, ha="center", va="center")
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])


def _lookup() -> Any:
    left, right = axes = _axes(columns=2)
    keys, query = np.array([[1.4, 0.2], [-0.3, 1.4]]), np.array([1.3, 0.75])
    _arrows(left, np.vstack([keys, query]), ["cat", "ran", "it"])
    _, cache = dot_product.forward(query, keys, np.eye(2))
    _bars(right, ["cat", "ran"], cache.weights[0], "weights")
    return axes


def _softmax() -> Any:
    left, right = axes = _axes(columns=2)
    _bars(left, WORDS, SCORES, "scores")
    _bars(right, WORDS, softmax.forward(SCORES)[0], "weights")
    return axes


def _gradient() -> Any:
    left, right = axes = _axes(columns=2)
    weights, cache = softmax.forward(SCORES)
    z = np.array([0, weights[1] - 1, weights[2], 0])
    _bars(left, WORDS, z, "z, and r as a line")
    left.axvline(weights @ z, color="0.5", ls="--")
    _bars(right, WORDS, softmax.backward(z, cache).scores, "gradient of the scores")
    return axes


def _mask() -> Any:
    left, right = axes = _axes(columns=2)
    scores = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], SCORES])
    for ax, mask, title in ((left, None, "all"), (right, masks.causal(4), "causal")):
        ax.imshow(softmax.forward(scores, mask=mask)[0], cmap="Blues", vmin=0, vmax=1)
        ax.set_xticks(range(4), WORDS)
        ax.set_yticks(range(4), WORDS)
        ax.set_title(title, fontsize=9)
    return axes


def _root() -> Any:
    left, right = axes = _axes(columns=2)
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(8, 512)) @ rng.normal(size=512)
    names = [f"key {j + 1}" for j in range(8)]
    _bars(left, names, softmax.forward(scores)[0], "512 features, not divided")
    _bars(right, names, softmax.forward(scores / np.sqrt(512))[0], "divided")
    return axes


def _rotary() -> Any:
    axes = _axes(columns=2)
    for ax, places in zip(axes, ([3, 1], [7, 5]), strict=True):
        turned = rotary.forward(np.array([[1.0, 0.0], [np.cos(0.5), np.sin(0.5)]]), np.array(places) * np.pi / 8)[0]
        _arrows(ax, turned, [f"query, {places[0]}", f"key, {places[1]}"])
    return axes


def _cache() -> Any:
    ax = _axes(2.0)
    n = np.arange(1, 10)
    ax.plot(n, n * (n + 1) / 2, marker="o", label="rows projected without a cache", color=RED)
    ax.plot(n, n, marker="s", label="with one", color=BLUE)
    ax.set(xlabel="words", xticks=n)
    ax.legend()
    return ax


def _state() -> Any:
    ax = _axes(2.2)
    key, value = np.array([[1.0, 0], [0, 1], [1, 0], [0.8, 0.6]]), np.array([[3.0, 0], [0, 2], [1, 1], [2, 2]])
    said, _ = linear_attention.forward(np.tile(key[0], (4, 1)), key, value, beta=np.ones(4), scale=1.0)
    ax.plot(range(1, 5), said, marker="o", label=["value 1", "value 2"])
    ax.set(xlabel="token", xticks=range(1, 5), ylabel="read with the first key")
    ax.legend()
    return ax


STILLS: dict[str, Callable[[], Any]] = {
    "lookup": _lookup,
    "softmax": _softmax,
    "gradient": _gradient,
    "mask": _mask,
    "root": _root,
    "rotary": _rotary,
    "cache": _cache,
    "state": _state,
}
