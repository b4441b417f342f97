"""What depends on positions, in any arithmetic: biases, and how fast rotary positions turn. From their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array

Numbers: TypeAlias = Any  # of the arithmetic: an array of them
Arithmetic: TypeAlias = Any  # an Exact or an Analysis
Options: TypeAlias = Mapping[str, Any]

BIASES = ("slopes", "table", "embedding", "log_f")  # inputs that stand for one: of ALiBi, T5, Shaw, forgetting gates


class PositionBias(NamedTuple):
    """What is added to the scores, (..., n, m), and what takes their gradient to those of inputs."""

    added: Numbers
    backward: Callable[[Numbers], dict[str, Numbers]]


def position_bias(
    rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options, query: Numbers, scale: Numbers, m: int
) -> PositionBias | None:
    """The bias that the inputs have, if there is one."""
    name = next((name for name in BIASES if name in inputs), None)
    if name is None:
        return None
    array, n = inputs[name], query.shape[-2]
    i, j = np.arange(n)[:, None], np.arange(m)
    if name == "embedding":
        return _shaw(rules, array, j - i, query, scale)
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


def _shaw(rules: Arithmetic, embedding: Numbers, distances: Array, query: Numbers, scale: Numbers) -> PositionBias:
    count, d_k = embedding.shape
    index = np.clip(distances, -(count // 2), count // 2) + count // 2  # (n, m)
    products = rules.scores(query, embedding, scale, None, np.True_)  # (..., n, 2 w + 1)
    chosen = rules.number((index[..., None] == np.arange(count)).astype(np.float64))  # (n, m, 2 w + 1)

    def backward(d_scores: Numbers) -> dict[str, Numbers]:
        of_rows = rules.product(d_scores[..., None, :], chosen, distances.shape[1])[..., 0, :]  # (..., n, 2 w + 1)
        scaled = rules.rounded(rules.times(of_rows, scale))
        d_embedding = rules.product(scaled.swapaxes(-1, -2), query, sum(distances.shape))
        return {
            "d_embedding": rules.sum_to(d_embedding, (count, d_k)),
            "d_query": rules.product(scaled, embedding, count + d_k),
        }

    return PositionBias(rules.map(products, lambda a: a[..., np.arange(len(index))[:, None], index]), backward)


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
