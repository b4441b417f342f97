r"""The forward and the backward pass of a tile, in blocks of scores that stay in the cache of a core.

The scores are in the units in which the exponential is fastest: binary digits where NumPy's ``exp2`` is vectorised.
Arrays that hold NaN or infinity, and complex ones, go the way of :mod:`attention_np._blockwise.plain`.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attention_np._arrays import Array
from attention_np._blockwise import plain
from attention_np._blockwise.tiles import Block, Cotangent, Tile, slices

__all__ = ["TileGradients", "attend", "differentiate"]


class TileGradients(NamedTuple):
    """What a tile contributes to the gradients of its own parts of the arrays."""

    query: Array  # (n, d_k)
    key: Array  # (m, d_k)
    value: Array  # (m, d_v)
    bias: Array | None  # of the shape of the tile's


class _Exponential(NamedTuple):
    """``function(unit * x) == exp(x)``."""

    function: Any
    unit: float
    least: float  # below it the exponential leaves the normal numbers, where it takes 10 to 300 times as long
    small: float  # sums of exponentials of scores up to it, times values of any usual size, stay in range


@lru_cache
def _exponential(dtype: np.dtype[Any]) -> _Exponential:
    info = np.finfo(dtype)
    least, small = float(info.minexp + 6), float(info.maxexp // 4)  # exponents of 2
    if dtype.char in "fd" and _is_vectorised("exp2", dtype):
        return _Exponential(np.exp2, 1 / np.log(2), least, small)  # half the time of exp in float32
    return _Exponential(np.exp, 1.0, least * np.log(2), small * np.log(2))


def _is_vectorised(name: str, dtype: np.dtype[Any]) -> bool:
    try:
        from numpy.lib import introspect
    except ImportError:  # NumPy 1
        return False
    found = introspect.opt_func_info(func_name=f"^{name}$").get(name, {})
    return not found.get(2 * dtype.char, {}).get("current", "baseline").startswith("baseline")


class _Scratch(threading.local):
    """Arrays of each thread that are used again and again, and so are in its core's cache.

    What is asked for under one name is valid until it is asked for again: never across a block, since the rule that is
    asked for the next one may itself use attention. A thread keeps a few MiB.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def __call__(self, name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        size = shape[0] * shape[1] * dtype.itemsize
        if name not in self.arrays or self.arrays[name].nbytes < size:
            self.arrays[name] = np.empty(size, np.uint8)
        return self.arrays[name][:size].view(dtype).reshape(shape)


_scratch = _Scratch()


def attend(tile: Tile) -> tuple[Array, Array]:
    """The output (n, d_v) and the log-sum-exp (n,) of a tile that holds all the keys its queries attend to."""
    output = np.zeros((tile.n, tile.value.shape[1]), tile.dtype)
    logsumexp = np.empty(tile.n, tile.dtype)
    longest = _longest(tile)
    for rows in tile.row_blocks():
        if tile.dtype.kind != "c":
            logsumexp[rows] = _attend(tile, rows, longest, output[rows])
            if np.isfinite(output[rows]).all() and (logsumexp[rows] < np.inf).all():
                continue
        output[rows], logsumexp[rows] = plain.attend(tile, rows)
    return output, logsumexp


def _attend(tile: Tile, rows: slice, longest: float, output: Array) -> Array:
    """The log-sum-exp of some rows, whose output is added to `output`, zero before."""
    exponential, unit, least, _ = _exponential(tile.dtype)
    query = tile.take(tile.query, rows) * (tile.scale * tile.dtype.type(unit))  # (b, d_k)
    n = len(query)
    in_range = _in_range(tile, query, longest)
    largest = np.full((n, 1), 0 if in_range else -np.inf, tile.dtype)
    total = np.zeros((n, 1), tile.dtype)
    for block in tile.blocks(rows):
        key, value = tile.take(tile.key, block.columns), tile.take(tile.value, block.columns)
        scores = _scratch("scores", (n, len(key)), tile.dtype)
        np.matmul(query, key.T, out=scores)  # (b, c) (blockwise.1)
        _add_bias(scores, block, unit)
        if not in_range:  # else any shift serves, and none is the cheapest
            if block.visible is not None:
                np.copyto(scores, -np.inf, where=~block.visible)
            before, largest = largest, np.maximum(largest, scores.max(axis=1, keepdims=True))  # (blockwise.2)
            shift = np.where(largest == -np.inf, 0, largest)
            shrink = exponential(before - shift)
            total *= shrink  # (blockwise.3)
            output *= shrink  # (blockwise.4)
            scores -= shift
            np.maximum(scores, least, out=scores)
        weights = exponential(scores, out=scores)
        if block.visible is not None:
            weights *= block.visible
        total += weights @ np.ones((len(key), 1), tile.dtype)  # (blockwise.3); a quarter of the time of a sum
        if tile.dropout is not None:
            weights *= tile.dropout.block(rows, block.columns, tile.dtype)  # (blockwise.29)
        _add_product(output, weights, value)  # (blockwise.4)

    empty = total == 0
    output /= np.where(empty, 1, total)  # (blockwise.5)
    logsumexp: Array = np.where(empty, -np.inf, largest / tile.dtype.type(unit) + np.log(total))  # (blockwise.5)
    return logsumexp[:, 0]


def differentiate(tile: Tile, given: Cotangent) -> TileGradients:
    """What a tile contributes to the gradients of its arrays."""
    if tile.dtype.kind != "c" and given.limits is None and (given.logsumexp < np.inf).all():
        gradients = _differentiate(tile, given)
        if all(np.isfinite(gradient).all() for gradient in gradients if gradient is not None):
            return gradients
    return TileGradients(*plain.differentiate(tile, given))


def _differentiate(tile: Tile, given: Cotangent) -> TileGradients:
    exponential, unit, least, _ = _exponential(tile.dtype)
    longest = _longest(tile)
    gradients = plain.zeros(tile)
    d_query, d_key, d_value, d_bias = gradients
    keys = _with_column(tile.take(tile.key, slice(None)), 1)
    values = _with_column(tile.take(tile.value, slice(None)), 1)
    delta = plain.delta(tile, given)  # (n,) (blockwise.8)
    for rows in tile.row_blocks():
        query, d_output = tile.take(tile.query, rows), tile.take(given.d_output, rows)
        n = len(query)
        scaled = query * (tile.scale * tile.dtype.type(unit))
        in_range = _in_range(tile, scaled, longest)
        logsumexp = given.logsumexp[rows]
        shift = np.where(logsumexp == -np.inf, 0, logsumexp * tile.dtype.type(unit))
        # One more column subtracts as it multiplies: q.k - l = [q, -l].[k, 1] (blockwise.38). That is nearly free.
        scaled = _with_column(scaled, -shift)
        d_shifted = _with_column(d_output, -delta[rows])
        for block in tile.blocks(rows):
            columns = block.columns
            m = columns.stop - columns.start
            weights = np.matmul(scaled, keys[columns].T, out=_scratch("weights", (n, m), tile.dtype))
            _add_bias(weights, block, unit)
            if not in_range:
                np.clip(weights, least, 0, out=weights)
            exponential(weights, out=weights)  # (b, c) (blockwise.7)
            if block.visible is not None:
                weights *= block.visible
            d_scores = _scratch("d_scores", (n, m), tile.dtype)
            if tile.dropout is None:
                np.matmul(d_shifted, values[columns].T, out=d_scores)  # dA - delta (blockwise.10)
                _add_product(d_value[columns], weights.T, d_output)  # (blockwise.9)
            else:
                factors = tile.dropout.block(rows, columns, tile.dtype)
                np.matmul(d_output, values[columns, :-1].T, out=d_scores)
                d_scores *= factors  # (blockwise.31)
                d_scores -= delta[rows, None]
                factors *= weights
                _add_product(d_value[columns], factors.T, d_output)  # (blockwise.31)
            d_scores *= weights  # (b, c) (blockwise.11)
            plain.add_bias_gradient(d_bias, d_scores, rows, columns)
            _add_product(d_query[rows], d_scores, tile.take(tile.key, columns))  # (blockwise.12)
            _add_product(d_key[columns], d_scores.T, query)  # (blockwise.13)
    d_query *= tile.scale
    d_key *= tile.scale
    return TileGradients(*gradients)


def _add_product(total: Array, a: Array, b: Array) -> None:
    total += np.matmul(a, b, out=_scratch("product", (a.shape[0], b.shape[1]), total.dtype))


def _add_bias(scores: Array, block: Block, unit: float) -> None:
    if block.bias is not None:
        scores += block.bias * scores.dtype.type(unit)


def _longest(tile: Tile) -> float:
    """The length of the longest key: NaN if one holds NaN, infinite where it bounds no score."""
    if tile.dtype.kind == "c" or tile.bias is not None:
        return np.inf
    return float(np.max([_length(tile.take(tile.key, part)) for part in slices(0, tile.m, 4096)], initial=0))


def _length(vectors: Array) -> float:
    squares = np.einsum("ia,ia->i", vectors, vectors)
    return float(np.sqrt(squares.max(initial=0)))


def _in_range(tile: Tile, query: Array, longest: float) -> bool:
    """Whether no score can be so large or so small that its exponential, unshifted, leaves the range of the dtype.

    By the inequality of Cauchy and Schwarz a score is at most the product of the lengths of its query and its key. It
    saves the running maximum, which is a fifth of the time of the forward pass.
    """
    return _length(query) * longest <= _exponential(tile.dtype).small  # (blockwise.34)


def _with_column(array: Array, column: Any) -> Array:
    wider = np.empty((len(array), array.shape[1] + 1), array.dtype)
    wider[:, :-1], wider[:, -1] = array, column
    return wider
