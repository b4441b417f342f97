r"""The forward and the backward pass of a tile, in blocks of scores that stay in the cache of a core.

The scores are in the units in which the exponential is fastest: binary digits where NumPy's ``exp2`` is vectorised.
Arrays that hold NaN or infinity, and complex ones, go the way of :mod:`attention_np._blockwise.plain`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attention_np._arrays import Array, transposed
from attention_np._blockwise import plain
from attention_np._blockwise.tiles import Cotangent, Tile, slices

__all__ = ["TileGradients", "attend", "differentiate"]

KEYS = 2048  # that are prepared together
PAIRS = 2**18  # of a query and a key that are worked on at once, at most, where several small tiles are taken together


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
        self.buffers: dict[str, Array] = {}
        self.views: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        view = self.views.get((name, shape, dtype))
        return self._view(name, shape, dtype) if view is None else view

    def _view(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = prod(shape) * dtype.itemsize
        if name not in self.buffers or self.buffers[name].nbytes < size:
            self.buffers[name] = np.empty(size, np.uint8)
            self.views.clear()
        if len(self.views) == 64:
            self.views.clear()
        view: Array = self.buffers[name][:size].view(dtype).reshape(shape)
        self.views[name, shape, dtype] = view
        return view


_scratch = _Scratch()


def attend(tiles: Sequence[Tile]) -> list[tuple[Array, Array]]:
    """The output (n, d_v) and the log-sum-exp (n,) of tiles that hold all the keys their queries attend to."""
    return [found for batch in _batches(tiles) for found in _attend(batch)]


def _attend(tiles: Sequence[Tile]) -> Iterator[tuple[Array, Array]]:
    dtype = tiles[0].dtype
    if dtype.kind == "c":
        yield from (plain.attend(tile, slice(0, tile.n)) for tile in tiles)
        return
    sums, largest = _sums(tiles)
    total = sums[..., -1]  # (h, n)
    empty = total == 0
    outputs = sums[..., :-1] / np.where(empty, 1, total)[..., None]  # (h, n, d_v) (blockwise.5)
    unit = dtype.type(_exponential(dtype).unit)
    logsumexps = np.where(empty, -np.inf, largest[..., 0] / unit + np.log(total))  # (h, n) (blockwise.5)
    for tile, output, logsumexp in zip(tiles, outputs, logsumexps, strict=True):
        if not (np.isfinite(output).all() and (logsumexp < np.inf).all()):
            for rows in tile.row_blocks():
                if not (np.isfinite(output[rows]).all() and (logsumexp[rows] < np.inf).all()):
                    output[rows], logsumexp[rows] = plain.attend(tile, rows)
        yield output, logsumexp


def _sums(tiles: Sequence[Tile]) -> tuple[Array, Array]:
    """The sums of weighted values and of weights (h, n, d_v + 1), and the scores (h, n, 1) they are relative to."""
    tile = tiles[0]
    exponential, unit, least, _ = _exponential(tile.dtype)
    query = _stacked(tiles, "query") * (tile.scale * tile.dtype.type(unit))  # (h, n, d_k)
    in_range = _in_range(tiles, query)
    sums = np.zeros((len(tiles), tile.n, tile.value.shape[1] + 1), tile.dtype)
    largest = np.full((len(tiles), tile.n, 1), 0 if in_range else -np.inf, tile.dtype)
    for part in slices(0, tile.m, KEYS):
        key, value = _stacked(tiles, "key", part), _with_column(_stacked(tiles, "value", part), 1)
        for rows in tile.row_blocks():
            own_query, own_sums = query[:, rows], sums[:, rows]
            for columns, visible, bias in tile.blocks(rows, part):
                own = slice(columns.start - part.start, columns.stop - part.start)
                scores = _product("scores", own_query, transposed(key[:, own]))  # (h, b, c) (blockwise.1)
                if bias is not None:
                    scores += bias * tile.dtype.type(unit)
                if not in_range:  # else any shift serves, and none is the cheapest
                    if visible is not None:
                        np.copyto(scores, -np.inf, where=~visible)
                    _rescale(largest[:, rows], own_sums, scores, exponential)
                    np.maximum(scores, least, out=scores)
                weights = exponential(scores, out=scores)
                if visible is not None:
                    weights *= visible
                if tile.dropout is not None:
                    own_sums[..., -1] += weights.sum(axis=-1)
                    weights *= tile.dropout.block(rows, columns, tile.dtype)  # (blockwise.29)
                    own_sums[..., :-1] += weights @ value[:, own, :-1]
                else:  # a column of ones beside the values adds the weights up, in a quarter of the time of a sum
                    own_sums += _product("product", weights, value[:, own])  # (blockwise.3) (blockwise.4)
    return sums, largest


def _rescale(largest: Array, sums: Array, scores: Array, exponential: Any) -> None:
    """Take the largest score so far from the scores, after making the sums so far relative to it."""
    before = largest.copy()
    np.maximum(largest, scores.max(axis=-1, keepdims=True), out=largest)  # (blockwise.2)
    shift = np.where(largest == -np.inf, 0, largest)
    sums *= exponential(before - shift)  # (blockwise.3) (blockwise.4)
    scores -= shift


def differentiate(tiles: Sequence[tuple[Tile, Cotangent]]) -> list[TileGradients]:
    """What each tile contributes to the gradients of its arrays."""
    given = {id(tile): cotangent for tile, cotangent in tiles}
    batches = _batches([tile for tile, _ in tiles])
    return [found for batch in batches for found in _differentiate(batch, [given[id(tile)] for tile in batch])]


def _differentiate(tiles: Sequence[Tile], given: Sequence[Cotangent]) -> Iterator[TileGradients]:
    infinite = any(one.limits is not None or not (one.logsumexp < np.inf).all() for one in given)
    if tiles[0].dtype.kind == "c" or infinite:
        yield from (TileGradients(*plain.differentiate(*both)) for both in zip(tiles, given, strict=True))
        return
    for tile, one, gradients in zip(tiles, given, _gradients(tiles, given), strict=True):
        finite = all(np.isfinite(gradient).all() for gradient in gradients if gradient is not None)
        yield gradients if finite else TileGradients(*plain.differentiate(tile, one))


def _gradients(tiles: Sequence[Tile], given: Sequence[Cotangent]) -> Iterator[TileGradients]:
    tile = tiles[0]
    exponential, unit, least, _ = _exponential(tile.dtype)
    query, key, value = (_stacked(tiles, name) for name in ("query", "key", "value"))  # (h, n, d_k) and so on
    d_output = np.stack([one.d_output for one in given])  # (h, n, d_v)
    scaled = query * (tile.scale * tile.dtype.type(unit))
    in_range = _in_range(tiles, scaled)
    logsumexp = np.stack([one.logsumexp for one in given])[..., None]  # (h, n, 1)
    shift = np.where(logsumexp == -np.inf, 0, logsumexp * tile.dtype.type(unit))
    delta = np.stack([plain.delta(*both) for both in zip(tiles, given, strict=True)])[..., None]  # (blockwise.8)
    # One more column subtracts as it multiplies: q.k - l = [q, -l].[k, 1] (blockwise.38). That is nearly free. And the
    # products come in pairs, since what a thread does between two of them keeps the others waiting.
    rows_of_scores = _pair(_with_column(scaled, -shift), _with_column(d_output, -delta if tile.dropout is None else 0))
    columns_of_scores = _pair(_with_column(key, 1), _with_column(value, 1))
    rows_of_gradients = _pair(d_output, query)
    d_value_and_key = np.zeros((2, len(tiles), tile.m, rows_of_gradients.shape[-1]), tile.dtype)
    d_query, d_bias = np.zeros_like(query), None if tile.bias is None else np.zeros(tile.bias.shape, tile.dtype)
    for rows in tile.row_blocks():
        own_rows, own_gradients = rows_of_scores[:, :, rows], rows_of_gradients[:, :, rows]
        own_d_query = d_query[:, rows]
        for columns, visible, bias in tile.blocks(rows, slice(0, tile.m)):
            both = _product("both", own_rows, transposed(columns_of_scores[:, :, columns]))
            weights, d_scores = both  # of the second as yet dA - delta (h, b, c) (blockwise.10)
            if bias is not None:
                weights += bias * tile.dtype.type(unit)
            if not in_range:
                np.clip(weights, least, 0, out=weights)
            exponential(weights, out=weights)  # (h, b, c) (blockwise.7)
            if visible is not None:
                weights *= visible
            if tile.dropout is not None:
                factors = tile.dropout.block(rows, columns, tile.dtype)
                d_scores *= factors  # (blockwise.31)
                d_scores -= delta[:, rows]
            d_scores *= weights  # (h, b, c) (blockwise.11)
            if tile.dropout is not None:
                weights *= factors  # (blockwise.31)
            if d_bias is not None:
                plain.add_bias_gradient(d_bias, d_scores[0], rows, columns)
            of_columns = d_value_and_key[:, :, columns]
            of_columns += _product("of columns", transposed(both), own_gradients)  # (blockwise.9) (blockwise.13)
            own_d_query += _product("of rows", d_scores, key[:, columns])  # (blockwise.12)
    d_query *= tile.scale
    d_value, d_key = d_value_and_key[0, ..., : value.shape[-1]], d_value_and_key[1, ..., : key.shape[-1]]
    d_key *= tile.scale
    return (TileGradients(*found, d_bias) for found in zip(d_query, d_key, d_value, strict=True))


def _batches(tiles: Sequence[Tile]) -> Iterator[list[Tile]]:
    """Tiles that follow one another and differ in nothing but their numbers, as many as fit the cache together."""
    batch: list[Tile] = []
    for tile in tiles:
        rows, columns = min(tile.block_size[0], tile.n), min(tile.block_size[1], tile.m)
        if batch and ((len(batch) + 1) * rows * columns > PAIRS or not tile.is_like(batch[0])):
            yield batch
            batch = []
        batch.append(tile)
    if batch:
        yield batch


def _stacked(tiles: Sequence[Tile], name: str, part: slice = slice(None)) -> Array:
    """One array of all tiles, in the dtype that is computed in."""
    arrays = [tile.take(getattr(tile, name), part) for tile in tiles]
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def _product(name: str, a: Array, b: Array) -> Array:
    return np.matmul(a, b, out=_scratch(name, (*a.shape[:-1], b.shape[-1]), a.dtype))


def _pair(first: Array, second: Array) -> Array:
    """Two arrays as one, the narrower with columns of zeros after its own."""
    pair = np.empty((2, *first.shape[:-1], max(first.shape[-1], second.shape[-1])), first.dtype)
    for into, array in zip(pair, (first, second), strict=True):
        into[..., : array.shape[-1]] = array
        into[..., array.shape[-1] :] = 0
    return pair


def _in_range(tiles: Sequence[Tile], query: Array) -> bool:
    """Whether no score can be so large or so small that its exponential, unshifted, leaves the range of the dtype.

    By the inequality of Cauchy and Schwarz a score is at most the product of the lengths of its query and its key. It
    saves the running maximum, which is a fifth of the time of the forward pass.
    """
    tile = tiles[0]
    if tile.bias is not None:
        return False
    longest = [_length(_stacked(tiles, "key", part)) for part in slices(0, tile.m, KEYS)]
    return bool(_length(query) * np.max(longest, initial=0) <= _exponential(tile.dtype).small)  # (blockwise.34)


def _length(vectors: Array) -> float:
    """The length of the longest vector; NaN if one holds NaN."""
    squares = np.square(vectors) @ np.ones(vectors.shape[-1], vectors.dtype)  # five times as fast as einsum
    return float(np.sqrt(squares.max(initial=0)))


def _with_column(array: Array, column: Any) -> Array:
    wider = np.empty((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
    wider[..., :-1], wider[..., -1:] = array, column
    return wider
