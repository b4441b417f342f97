"""What depends on positions, in any arithmetic: biases, and how fast rotary positions turn. From their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array

Numbers: TypeAlias = Any  # of the arithmetic: an array of them
Arithmetic: TypeAlias = Any  # an Exact or an Analysis
Options: TypeAlias = Mapping[str, Any]

# Inputs that stand for one: of ALiBi, tables (T5's, or by an index), vectors (Shaw's, or by an index), forgetting gates
BIASES = ("slopes", "table", "embedding", "log_f")


class PositionBias(NamedTuple):
    """What is added to the scores, (..., n, m), and what takes their gradient to those of inputs."""

    added: Numbers
    backward: Callable[[Numbers], dict[str, Numbers]]


def position_biases(
    rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options, scale: Numbers
) -> list[PositionBias]:
    """The biases that the inputs have."""
    return [_position_bias(rules, name, inputs, options, scale) for name in BIASES if name in inputs]


def _position_bias(
    rules: Arithmetic, name: str, inputs: Mapping[str, Numbers], options: Options, scale: Numbers
) -> PositionBias:
    query, key, array = inputs["query"], inputs["key"], inputs[name]
    n, m = query.shape[-2], key.shape[-2]
    i, j = np.arange(n)[:, None], np.arange(m)
    index = None
    if "index" in inputs:
        index = np.array(getattr(inputs["index"], "value", inputs["index"])).astype(np.float64).astype(np.int64)
    if name == "embedding":
        count = array.shape[-2]
        rows = np.clip(j - i, -(count // 2), count // 2) + count // 2 if index is None else index
        if options.get("of", "query") == "key":
            return _of_keys(rules, array, rows, key, scale)
        return _of_queries(rules, array, rows, query, scale)
    if name == "table" and index is not None:
        chosen = np.arange(array.shape[0])[:, None, None] == index
        return _linear(rules, name, rules.map(array, np.transpose), chosen, None, array.shape)
    if name == "slopes":
        return _linear(rules, name, rules.map(array, lambda a: a[..., None]), -np.abs(i - j)[None], None, array.shape)
    if name == "table":
        size, both_ways = array.shape[0], options.get("bidirectional", True)
        buckets = [[_bucket(d, size, both_ways, options.get("max_distance", 128)) for d in row] for row in j - i]
        chosen = np.arange(size)[:, None, None] == np.array(buckets)
        return _linear(rules, name, rules.map(array, np.transpose), chosen, None, array.shape)
    k = np.arange(array.shape[-1])[:, None, None]
    return _linear(rules, name, array, k <= i + 0 * j, k <= j + 0 * i, array.shape)


def _linear(
    rules: Arithmetic, name: str, rows: Numbers, places: Array, others: Array | None, shape: tuple[int, ...]
) -> PositionBias:
    """The sum over r of ``rows[..., r] * places[r]``, less that with `others`, which are sums of their own."""
    _, n, m = places.shape
    maps = [rules.number(x.reshape(len(x), -1).astype(np.float64)) for x in (places, others) if x is not None]

    def apart(terms: list[Numbers]) -> Numbers:
        return terms[0] if len(terms) == 1 else rules.minus(*terms)

    added = apart([rules.product(rows[..., None, :], x, len(places)) for x in maps])

    def backward(d_scores: Numbers) -> dict[str, Numbers]:
        flat = rules.map(d_scores, lambda a: a.reshape(*a.shape[:-2], 1, n * m))
        d_rows = apart([rules.product(flat, x.swapaxes(0, 1), n * m + len(places)) for x in maps])[..., 0, :]
        if name == "slopes":
            return {"d_slopes": rules.sum_to(d_rows[..., 0], shape)}
        if name == "table":
            return {"d_table": rules.map(rules.sum_to(d_rows, shape[::-1]), np.transpose)}
        return {f"d_{name}": rules.sum_to(d_rows, shape)}

    return PositionBias(rules.map(added, lambda a: a.reshape(*a.shape[:-2], n, m)), backward)


def _of_queries(rules: Arithmetic, embedding: Numbers, index: Array, query: Numbers, scale: Numbers) -> PositionBias:
    count, d_k = embedding.shape[-2:]
    picked, chosen = _picked(rules, query, embedding, index, scale)

    def backward(d_scores: Numbers) -> dict[str, Numbers]:
        of_rows = rules.product(d_scores[..., None, :], chosen, index.shape[1])[..., 0, :]  # (..., n, r)
        scaled = rules.rounded(rules.times(of_rows, scale))
        d_embedding = rules.product(scaled.swapaxes(-1, -2), query, sum(index.shape))
        found = {
            "d_embedding": rules.sum_to(d_embedding, embedding.shape),
            "d_query": rules.product(scaled, embedding, count + d_k),
        }
        if scale.shape if hasattr(scale, "shape") else ():
            d_scaled = rules.rounded(rules.product(rules.rounded(of_rows), embedding, count + d_k))
            found["d_scale"] = rules.summed(rules.rounded(rules.times(d_scaled, query)), -1)
        return found

    return PositionBias(picked, backward)


def _of_keys(rules: Arithmetic, embedding: Numbers, index: Array, key: Numbers, scale: Numbers) -> PositionBias:
    count, d_k = embedding.shape[-2:]
    unscaled, chosen = _picked(rules, key, embedding, index.T, rules.scale(1.0, d_k))
    unscaled = unscaled.swapaxes(-1, -2)  # (..., n, m)

    def backward(d_scores: Numbers) -> dict[str, Numbers]:
        scaled = rules.rounded(rules.times(d_scores, scale)).swapaxes(-1, -2)  # (..., m, n)
        of_rows = rules.rounded(rules.product(scaled[..., None, :], chosen, len(index))[..., 0, :])  # (..., m, r)
        d_embedding = rules.product(of_rows.swapaxes(-1, -2), key, sum(index.shape))
        found = {
            "d_embedding": rules.sum_to(d_embedding, embedding.shape),
            "d_key": rules.product(of_rows, embedding, count + d_k),
        }
        if scale.shape if hasattr(scale, "shape") else ():
            found["d_scale"] = rules.summed(rules.rounded(rules.times(d_scores, rules.rounded(unscaled))), -1)
        return found

    return PositionBias(rules.times(unscaled, scale), backward)


def _picked(rules: Arithmetic, x: Numbers, embedding: Numbers, index: Array, scale: Numbers) -> tuple[Numbers, Numbers]:
    """Of the scaled products of each row of `x` with all vectors the one that the index says; and which that is."""
    products = rules.scores(x, embedding, scale, None, np.True_)  # (..., rows, r)
    chosen = rules.number((index[..., None] == np.arange(embedding.shape[-2])).astype(np.float64))
    return rules.map(products, lambda a: a[..., np.arange(len(index))[:, None], index]), chosen


def _bucket(distance: int, size: int, bidirectional: bool, max_distance: int) -> int:
    """T5's row of the table for a key position less a query position."""
    first, behind = 0, max(-int(distance), 0)
    if bidirectional:
        size //= 2
        first, behind = size * int(distance > 0), abs(int(distance))
    exact = size // 2
    if behind < exact:
        return first + behind
    wide = size - exact  # buckets in a geometric series: behind / exact >= (max_distance / exact) ** (k / wide)
    reached = [k for k in range(1, wide) if behind**wide * exact**k >= max_distance**k * exact**wide]
    return first + exact + len(reached)


def frequencies(
    base: float, width: int, scaling: Options | None, of: Any, number: Callable[[Any], Any]
) -> tuple[list[Any], list[Any], Any]:
    """The frequency of each pair as it is scaled, as it was before, and the amplitude.

    Parameters
    ----------
    base, width, scaling
        Options of rotary positions; `scaling` has its `kind` and its numbers by name.
    of : module or mpmath context
        Has `log`, `sqrt`, `floor`, `ceil` and `pi`.
    number : callable
        Makes a number of one that Python has.
    """
    plain = [number(base) ** (-number(2 * a) / width) for a in range(width // 2)]
    if scaling is None:
        return plain, plain, number(1)
    given: dict[str, Any] = {name: number(x) for name, x in scaling.items() if isinstance(x, int | float)}
    kind, factor, original = scaling["kind"], *(given.get(x, 1) for x in ("factor", "original_length"))
    if kind == "linear":
        return [f / factor for f in plain], plain, number(1)
    if kind == "dynamic":
        longer = factor * max(given["length"], original) / original - (factor - 1)
        slower = number(base) * longer ** (number(width) / (width - 2))
        return [slower ** (-number(2 * a) / width) for a in range(width // 2)], plain, number(1)
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        shares = [(original * f / (2 * of.pi) - low) / (high - low) for f in plain]
        return [_blended(f, factor, share) for f, share in zip(plain, shares, strict=True)], plain, number(1)
    if kind == "yarn":
        turns = given.get("beta_fast", number(32)), given.get("beta_slow", number(1))
        start, stop = (width * of.log(original / (x * 2 * of.pi)) / (2 * of.log(number(base))) for x in turns)
        if scaling.get("truncate", True):
            start, stop = of.floor(start), of.ceil(stop)
        start, stop = max(start, 0), min(stop, width - 1)
        found = [_blended(f, factor, 1 - (a - start) / (stop - start)) for a, f in enumerate(plain)]
        return found, plain, given.get("attention_factor", 1 + of.log(factor) / 10)
    longer = given.get("maximum_length", given["length"]) / original
    amplitude = of.sqrt(1 + of.log(longer) / of.log(original)) if longer > 1 else number(1)
    divisors = scaling["long_factor" if given["length"] > original else "short_factor"]
    found = [f / number(x) for f, x in zip(plain, divisors, strict=True)]
    return found, plain, given.get("attention_factor", amplitude)


def _blended(frequency: Any, factor: Any, share: Any) -> Any:
    """A share, from 0 to 1, of the frequency, and the rest of a slower one."""
    share = min(max(share, 0), 1)
    return frequency * share + frequency / factor * (1 - share)
