"""Weights of scores that are not by softmax, and the gradient of the scores, in any numbers, from their definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("sigmoid", "silu", "sparsemax", "entmax", "softpick", "stick_breaking")


class Row(NamedTuple):
    """A row, and by how much each entry is off for a rounding of the scores and of what is computed of them."""

    weights: list[Any]
    d_scores: list[Any]
    weights_off: list[Any]
    d_scores_off: list[Any]


def weighed(by: Mapping[str, Any], scores: Sequence[Any], d_weights: Sequence[Any], functions: Any, steps: int) -> Row:
    """A row of which every score takes part; `steps` halvings find a threshold."""
    if not len(scores) or not any(d != 0 for d in d_weights):
        d_weights = [0 * s for s in scores]
    kind, g = by["kind"], list(d_weights)
    s = list(scores)
    if kind in ("sparsemax", "entmax"):
        return _with_threshold(s, g, 1 if kind == "sparsemax" else functions.mpf(by.get("alpha", 1.5)) - 1, steps)
    if kind == "softpick":
        return _softpick(s, g, functions)
    taken = [1 / (1 + functions.exp(-x)) for x in s]
    left = [1 / (1 + functions.exp(x)) for x in s]
    if kind == "stick_breaking":
        return _sticks(s, g, taken, left)
    weights = taken if kind == "sigmoid" else [x * t for x, t in zip(s, taken, strict=True)]
    slopes = [t * o * (1 if kind == "sigmoid" else x) for x, t, o in zip(s, taken, left, strict=True)]
    slopes = slopes if kind == "sigmoid" else [t + y for t, y in zip(taken, slopes, strict=True)]
    sizes = taken if kind == "sigmoid" else [t * (1 + abs(x)) for x, t in zip(s, taken, strict=True)]
    d_scores = [d * slope for d, slope in zip(g, slopes, strict=True)]
    off = [abs(d) * size * (1 + abs(x)) for d, size, x in zip(g, sizes, s, strict=True)]
    return Row(weights, d_scores, [size * (1 + abs(x)) for size, x in zip(sizes, s, strict=True)], off)


def _with_threshold(s: list[Any], g: list[Any], power: Any, steps: int) -> Row:
    if not s:
        return Row([], [], [], [])
    top = max(s)
    below, inverse = [power * (x - top) for x in s], 1 / power
    low, high = 0 * top, 0 * top + 1  # of the power that the largest weight has
    for _ in range(steps):
        middle = (low + high) / 2
        total = sum((x + middle) ** inverse for x in below if x + middle > 0)
        low, high = (low, middle) if total > 1 else (middle, high)
    weights = [(x + low) ** inverse if x + low > 0 else 0 * x for x in below]
    slopes = [w ** (1 - power) if w > 0 else w for w in weights]
    bends = [abs(1 - power) * w ** (1 - 2 * power) if w > 0 else w for w in weights]
    total = sum(slopes)
    mean = sum(d * x for d, x in zip(slopes, g, strict=True)) / total
    d_scores = [d * (x - mean) for d, x in zip(slopes, g, strict=True)]
    unit = 1 + max(abs(x) for x in s)  # which a rounding of a score, and of the threshold, is relative to
    size = sum(d * abs(x) for d, x in zip(slopes, g, strict=True)) / total
    of_mean = size + unit * sum(b * abs(x - mean) for b, x in zip(bends, g, strict=True)) / total
    weights_off = [w + d * unit for w, d in zip(weights, slopes, strict=True)]
    off = [d * (abs(x) + of_mean) + unit * b * abs(x - mean) for d, b, x in zip(slopes, bends, g, strict=True)]
    return Row(weights, d_scores, weights_off, off)


def _softpick(s: list[Any], g: list[Any], functions: Any) -> Row:
    grown = [functions.exp(x) - 1 for x in s]
    total = sum(abs(x) for x in grown)
    total = total if total else total + 1
    weights = [(x if x > 0 else 0 * x) / total for x in grown]
    slopes = [(x > 0) * (h + 1) / total - (x < 0) * (h + 1) / total for x, h in zip(s, grown, strict=True)]
    mean, size = (sum(w * f(d) for w, d in zip(weights, g, strict=True)) for f in (lambda d: d, abs))
    d_scores = [b * ((x > 0) * d - mean) for x, b, d in zip(s, slopes, g, strict=True)]
    unit = [1 + abs(x) for x in s]
    spread = sum(abs(b) * u for b, u in zip(slopes, unit, strict=True))  # what the denominator is off by
    weights_off = [w * (1 + spread) + abs(b) * u * (x > 0) for x, w, b, u in zip(s, weights, slopes, unit, strict=True)]
    of_mean = size * (1 + spread) + sum(
        abs(b) * u * abs(d) * (x > 0) for x, b, u, d in zip(s, slopes, unit, g, strict=True)
    )
    off = [
        abs(b) * ((u + spread) * abs((x > 0) * d - mean) + (x > 0) * abs(d) + of_mean)
        for x, b, u, d in zip(s, slopes, unit, g, strict=True)
    ]
    return Row(weights, d_scores, weights_off, off)


def _sticks(s: list[Any], g: list[Any], taken: list[Any], left: list[Any]) -> Row:
    weights, units = list(taken), list(taken)
    rest, unit = 1, 1
    for j in reversed(range(len(s))):
        weights[j], units[j] = taken[j] * rest, unit + abs(s[j])
        rest, unit = rest * left[j], unit + 1 + abs(s[j])
    d_scores, off = [], []
    before = before_off = 0
    for j, w in enumerate(weights):
        own = left[j] * w * g[j]
        d_scores.append(own - taken[j] * before)
        off.append((units[j] + 1 + abs(s[j])) * (abs(own) + taken[j] * before_off))
        before, before_off = before + w * g[j], before_off + units[j] * w * abs(g[j])
    return Row(weights, d_scores, [w * u for w, u in zip(weights, units, strict=True)], off)
