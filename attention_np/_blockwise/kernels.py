r"""The forward and the backward pass of a tile, in blocks of scores that stay in the cache of a core.

The scores are in the units in which the exponential is fastest: binary digits where NumPy's ``exp2`` is vectorised.
Arrays that hold NaN or infinity, and complex ones, go the way of :mod:`attention_np._blockwise.plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attention_np import biases
from attention_np._blockwise import plain, scratch
from attention_np._blockwise.columns import COUNTERS, by_features, delta_parts, interleaved, with_column, with_counters
from attention_np._blockwise.tiles import (
    Cotangent,
    Tangent,
    Tile,
    TileGradients,
    cut_arrays,
    cut_tangents,
    slices,
)
from attention_np._lib.arrays import Array, is_finite, is_row_scale, sum_of_squares, transposed
from attention_np._lib.dropout import drop
from attention_np._lib.dual import dual, value_of, velocity_of
from attention_np._lib.products import apart
from attention_np._lib.wide import is_wide
from attention_np.biases import Operands
from attention_np.dot_product import capped, slope_of_capped, slope_tangent, through_scale

KEYS = 2048  # that are prepared together
_OF_ROWS = ("d_output", "output", "shift", "total")
TERMS = 128  # of a sum that are added up in one product: its rounding grows with the root of their number
MANY = 1024  # queries or keys: backward, shorter sums take a tenth of the error off then, for a twentieth of the time
TOGETHER = 2048  # queries or keys of small tiles that are prepared together, by one call of NumPy where each had one
LIKENESSES = 16  # of tiles, as heads with masks of their own have them, that are told apart
BLOCK_TWICE = 256, 256  # queries and keys of which double backward has four arrays where backward has two
PAIRS = 2**18  # of a query and a key that are worked on at once, at most, where blocks of several tiles fit the cache


Result = TypeVar("Result")


class _Exponential(NamedTuple):
    """``function(unit * x) == exp(x)``."""

    function: Any
    unit: np.longdouble
    least: float  # below it the exponential leaves the normal numbers, where it takes 10 to 300 times as long
    small: float  # sums of exponentials of scores up to it, times values of any usual size, stay in range


@lru_cache
def _exponential(dtype: np.dtype[Any]) -> _Exponential:
    info = np.finfo(dtype)
    least, small = float(info.minexp + 6), float(info.maxexp // 4)  # exponents of 2
    if dtype.char in "fd" and _is_vectorised("exp2", dtype):
        return _Exponential(np.exp2, 1 / np.log(np.longdouble(2)), least, small)  # half the time of exp in float32
    return _Exponential(np.exp, np.longdouble(1), least * np.log(2), small * np.log(2))


def _is_vectorised(name: str, dtype: np.dtype[Any]) -> bool:
    try:
        from numpy.lib import introspect
    except ImportError:  # NumPy 1
        return False
    targets = introspect.opt_func_info(func_name=f"^{name}$").get(name, {})
    return not targets.get(2 * dtype.char, {}).get("current", "baseline").startswith("baseline")


class Attended(NamedTuple):
    """What a tile that holds all the keys its queries attend to gives."""

    output: Array  # (n, d_v)
    logsumexp: Array  # (n,)
    shift: Array  # (n,), taken before the exponential: from products that are only scaled, else from scores
    total: Array  # (n,), of the exponentials after that; NaN: not known


def attend(tiles: Sequence[Tile]) -> list[Attended]:
    """The attention of tiles that hold all the keys their queries attend to."""
    return _in_batches(tiles, lambda batch: _attend([tiles[k] for k in batch]))


def _attend(tiles: Sequence[Tile]) -> Iterator[Attended]:
    query = _queries(tiles)  # (h, n, d_k)
    keys, values = _Parts(tiles, "key"), _Parts(tiles, "value")
    moderate = tiles[0].dtype.kind != "c" and all(map(_is_moderate, values))
    moderate = moderate and all(tile.sink is None or tile.sink < np.inf for tile in tiles)
    bound = np.inf
    if moderate:  # no product of a query and a key exceeds that of their lengths; NaN if one holds NaN
        bound = float(_length(query) * np.max(list(map(_length, keys))))  # (blockwise.63)
    if not moderate or _may_overflow(tiles[0], bound):
        yield from (_plainly(tile) for tile in tiles)
        return
    if tiles[0].weights_by is not None:
        for tile, output in zip(tiles, _weighed_values(tiles, query), strict=True):
            nothing = np.full(tile.n, np.nan, tile.dtype), np.zeros(tile.n, tile.dtype), np.ones(tile.n, tile.dtype)
            yield Attended(output, *nothing) if is_finite(output) else _plainly(tile)
        return
    sums, totals, shifts = _sums(tiles, query, keys, values, bound)
    outputs = sums / np.where(totals == 0, 1, totals)[..., None]  # (h, n, d_v) (blockwise.5)
    natural = abs(tiles[0].factor) if tiles[0].only_scaled else 1  # what makes a score of a shift
    logsumexps = shifts * natural + np.log(totals)  # (h, n) (blockwise.5); of nothing it is minus infinity
    all_finite = is_finite(outputs) and not np.isnan(logsumexps).any()
    for tile, *of_tile in zip(tiles, outputs, logsumexps, shifts, totals, strict=True):
        attended = Attended(*of_tile)
        yield attended if all_finite else _mended(tile, attended)


def _mended(tile: Tile, attended: Attended) -> Attended:
    """The same, with the rows that are not finite done plainly."""
    for rows in tile.row_blocks():
        if not np.isfinite(attended.output[rows]).all() or np.isnan(attended.logsumexp[rows]).any():
            attended.output[rows], attended.logsumexp[rows] = plain.attend(tile, rows)
            attended.total[rows] = np.nan
    return attended


def _plainly(tile: Tile) -> Attended:
    output, logsumexp = plain.attend(tile, tile.rows)
    return Attended(output, logsumexp, np.zeros_like(logsumexp), np.full_like(logsumexp, np.nan))


def _weighed_values(tiles: Sequence[Tile], query: Array) -> Array:
    """The sums of values, (h, n, d_v), by weights of which each is of its own score alone."""
    tile, value = tiles[0], _stacked(tiles, "value")
    of_each = _WeightsOfEach(tile, query, _stacked(tiles, "key"))
    sums = np.zeros((len(tiles), tile.n, value.shape[-1]), tile.dtype)
    for heads, rows, columns, visible, bias in _blocks(tiles, tile.columns):
        weights, _, _ = of_each.weights((heads, rows), (heads, columns), visible, bias)  # (h, b, c)
        if tile.dropout is not None:
            weights *= _multipliers(tiles[heads], rows, columns)
        _add_product(sums[heads, rows], weights, value[heads, columns], TERMS)
    return sums


def _sums(
    tiles: Sequence[Tile], query: Array, keys: _Parts, values: _Parts, bound: float
) -> tuple[Array, Array, Array]:
    """The sums of weighted values (h, n, d_v) and of weights (h, n), and the shifts (h, n) they are relative to."""
    tile, d_v = tiles[0], tiles[0].value.shape[-1]
    exponential, unit, least, small = _exponential(tile.dtype)
    # Where no exponential leaves the range any shift serves, and none is the cheapest: no running maximum is needed.
    in_range = tile.bias is None and bool(_largest_exponent(tiles, bound) <= small)
    in_range = in_range and not any(map(_any_lost, values))
    sums = np.zeros((len(tiles), tile.n, d_v + COUNTERS), tile.dtype)
    largest = np.full((len(tiles), tile.n, 1), 0 if in_range else -np.inf, tile.dtype)
    if tile.sink is not None:
        sinks = np.array([tile.sink for tile in tiles])[:, None, None]
        largest[...] = 0 if in_range else sinks
        weights = exponential((sinks - largest) * tile.dtype.type(unit))
        sums[..., -1:] = np.where(sinks == -np.inf, 0, weights)  # a sink is seen before any key (blockwise.39)
    if in_range and tile.only_scaled:
        query = query * _factor(tile)  # products are exponents
    for part, key, value in zip(keys.slices, map(by_features, keys), map(with_counters, values), strict=True):
        for heads, rows, columns, visible, bias in _blocks(tiles, part):
            own_sums, own_largest = sums[heads, rows], largest[heads, rows]
            own = slice(columns.start - part.start, columns.stop - part.start)
            scores = _product("scores", query[heads, rows], transposed(key[heads, own]))  # (h, b, c) (blockwise.1)
            if not in_range:
                _shift(tile, scores, visible, bias, own_largest, own_sums)
                np.maximum(scores, least, out=scores)
            elif not tile.only_scaled:
                scores *= _make_scores(tile, scores, bias)
            weights = exponential(scores, out=scores)
            if visible is not None:
                weights *= visible
            if tile.dropout is not None:
                own_sums[..., -1] += weights.sum(axis=-1)
                weights *= _multipliers(tiles[heads], rows, columns)  # (blockwise.34)
                _add_product(own_sums[..., :d_v], weights, value[heads, own, :d_v], TERMS)
            else:
                _add_product(own_sums, weights, value[heads, own], TERMS)  # (blockwise.3) (blockwise.4)
    totals, shifts = sums[..., d_v:].sum(axis=-1), largest[..., 0]
    if not in_range:  # where nothing but minus infinity attends, the floor of the exponents has made weights of nothing
        totals[(shifts == -np.inf) & (totals > 0)] = np.nan
        shifts[shifts == -np.inf] = 0
    return sums[..., :d_v], totals, shifts


def _shift(tile: Tile, scores: Array, visible: Array | None, bias: Array | None, largest: Array, sums: Array) -> None:
    """Make exponents of products, relative to the largest so far; and relative to it the sums so far, too.

    Products that are only scaled are compared and subtracted as they are: what is multiplied afterwards is small, and
    so is its rounding.
    """
    exponential = _exponential(tile.dtype).function
    factor = _make_scores(tile, scores, bias)
    if visible is not None:
        np.copyto(scores, -np.inf, where=~visible)
    before = largest.copy()
    np.maximum(largest, scores.max(axis=-1, keepdims=True), out=largest)  # (blockwise.2)
    now = np.where(largest == -np.inf, 0, largest)
    sums *= exponential((before - now) * factor)  # (blockwise.3) (blockwise.4)
    scores -= now
    scores *= factor


def _make_scores(tile: Tile, products: Array, bias: Array | None) -> Any:
    """Make scores of products that are not only scaled; what makes exponents of either."""
    if tile.only_scaled:
        return _factor(tile)
    products *= abs(tile.factor)
    if tile.softcap is not None:
        products[...] = capped(products, tile.softcap)  # (blockwise.37)
    if bias is not None:
        products += bias
    return tile.dtype.type(_exponential(tile.dtype).unit)


def _factor(tile: Tile) -> Any:
    """What makes an exponent of the exponential out of a product of a query and a key."""
    return tile.dtype.type(abs(np.longdouble(tile.factor)) * _exponential(tile.dtype).unit)  # (blockwise.62)


def _queries(tiles: Sequence[Tile]) -> Array:
    """The queries (h, n, d_k), scaled if each has a scale of its own, else negated if the scale is negative."""
    query = _stacked(tiles, "query")
    if is_row_scale(tiles[0].scale):
        return query * _stacked(tiles, "scale")
    return query if tiles[0].scale >= 0 else -query


def differentiate(tiles: Sequence[tuple[Tile, Cotangent]]) -> list[TileGradients]:
    """What each tile contributes to the gradients of its arrays."""
    alone = [tile for tile, _ in tiles]
    return _in_batches(alone, lambda batch: _differentiate([alone[k] for k in batch], [tiles[k][1] for k in batch]))


def _differentiate(tiles: Sequence[Tile], cotangents: Sequence[Cotangent]) -> Iterator[TileGradients]:
    if tiles[0].dtype.kind == "c" or not all(map(_can_be_divided, cotangents)):
        yield from (_differentiate_plainly(*both) for both in zip(tiles, cotangents, strict=True))
        return
    for tile, one, gradients in zip(tiles, cotangents, _gradients(tiles, cotangents), strict=True):
        finite = all(is_finite(x) for part in gradients for x in biases.terms_of(part))
        yield gradients if finite else _differentiate_plainly(tile, one)


def _differentiate_plainly(tile: Tile, cotangent: Cotangent) -> TileGradients:
    if tile.weights_by is None:
        return plain.differentiate(tile, cotangent)
    return plain.differentiate_whole_rows([(tile, cotangent)])[0]  # of some keys, too: no weight depends on others


def _can_be_divided(cotangent: Cotangent) -> bool:
    """Whether the gradient of the output may be divided by the sums of weights, instead of the weights."""
    total = cotangent.total.max()
    return bool(np.isfinite(total)) and _is_moderate(cotangent.d_output) and not _any_lost(cotangent.d_output, total)


def _gradients(tiles: Sequence[Tile], cotangents: Sequence[Cotangent]) -> Iterator[TileGradients]:
    tile = tiles[0]
    query, key, value = _queries(tiles), _stacked(tiles, "key"), _stacked(tiles, "value")  # (h, n, d_k) and so on
    d_output, output, shift, total = (_together([getattr(one, name) for one in cotangents]) for name in _OF_ROWS)
    by_softmax = tile.weights_by is None
    in_one_block = tile.m <= tile.block_size[1] and tile.sink is None and by_softmax
    in_one_block = in_one_block and all(one.is_whole and one.d_logsumexp is None for one in cotangents)
    delta = np.zeros((*d_output.shape[:2], 1), tile.dtype)  # (h, n, p)
    if by_softmax:
        delta = delta_parts(d_output, output, are_many=not in_one_block)  # (blockwise.10)
    for of_tile, one in zip(delta, cotangents, strict=True):
        if one.d_logsumexp is not None:
            of_tile[:, -1] -= one.d_logsumexp  # (blockwise.19)
    # The weights stay undivided. What they are to be divided by goes to the rows of the other operands, which are few.
    inverse = (1 / np.where(total == 0, np.inf, total))[..., None]  # (h, n, 1) (blockwise.9)
    query_over, d_output_over = query * inverse, d_output * inverse
    recomputed: _RecomputedWeights | _WeightsOfEach = _WeightsOfEach(tile, query, key)
    if by_softmax:
        recomputed = _RecomputedWeights(tile, query, key, shift[..., None])
    d_value = np.zeros_like(value)
    if tile.dropout is None:
        d_output = interleaved(d_output, -delta)
        value = interleaved(value, np.ones(delta.shape[-1]), is_by_features=True)
    else:
        value = by_features(value)
    d_query, d_key = np.zeros_like(query_over), np.zeros_like(key)
    of_biases = [plain.zeros(one) for one in tiles] if tile.bias is not None else []
    terms_of_columns, terms_of_rows = (TERMS if size < MANY else size for size in (tile.n, tile.m))
    for heads, rows, columns, visible, bias in _blocks(tiles, tile.columns):
        weights, slopes, below_cap = recomputed.weights((heads, rows), (heads, columns), visible, bias)  # (h, b, c)
        # dA - delta (h, b, c) (blockwise.12)
        d_scores = _product("d_scores", d_output[heads, rows], transposed(value[heads, columns]))
        if tile.dropout is not None:
            factors = _multipliers(tiles[heads], rows, columns)
            d_scores *= factors  # (blockwise.36)
            d_scores -= delta[heads, rows].sum(axis=-1, keepdims=True)
        if in_one_block:  # the gradients of a row of scores sum to zero, and if not, then it is rounding
            residual = np.einsum("hbc,hbc->hb", weights, d_scores)[..., None] * inverse[heads, rows]  # (h, b, 1)
            d_scores -= residual  # (blockwise.72)
        d_scores *= slopes  # (h, b, c) (blockwise.13)
        if tile.dropout is not None:
            weights *= factors  # (blockwise.36)
        if bias is not None:
            of_tiles = zip(tiles[heads], of_biases[heads], d_scores * inverse[heads, rows], strict=True)
            for of_tile, into, d_own in of_tiles:
                read = of_tile.operands(rows, columns)
                plain.add_read(into, plain.add_bias_gradient(of_tile.bias, into.bias, d_own, read), read)
        if below_cap is not None:
            d_scores *= slope_of_capped(below_cap, tile.softcap)  # (blockwise.38)
        own_d_value, own_d_key, own_d_query = d_value[heads, columns], d_key[heads, columns], d_query[heads, rows]
        _add_product(own_d_value, transposed(weights), d_output_over[heads, rows], terms_of_columns)  # (blockwise.11)
        _add_product(own_d_key, transposed(d_scores), query_over[heads, rows], terms_of_columns)  # (blockwise.15)
        _add_product(own_d_query, d_scores, key[heads, columns], terms_of_rows)  # (blockwise.14)
    d_query *= tile.factor * inverse
    d_key *= abs(tile.factor)
    for k, into in enumerate(of_biases):
        d_query[k] += into.query * tile.factor
        d_key[k] += into.key
    d_scale: Any = None
    if is_row_scale(tile.scale):  # (blockwise.45, blockwise.46)
        d_query, d_scale = through_scale(d_query, _stacked(tiles, "query"), _stacked(tiles, "scale"))
        for k, into in enumerate(of_biases):
            d_scale[k] += into.scale
    for k in range(len(tiles)):
        d_bias = of_biases[k].bias if of_biases else None
        yield TileGradients(d_query[k], d_key[k], d_value[k], d_bias, scale=None if d_scale is None else d_scale[k])


class _RecomputedWeights:
    """The weights of blocks once more, not yet divided by their sums, from what forward kept of each row.

    `query` is as :func:`_queries` gives it; the arrays may have an axis for the heads.
    """

    def __init__(self, tile: Tile, query: Array, key: Array, shift: Array) -> None:
        self.tile, self.shift = tile, shift  # (n, 1)
        self.in_range = tile.only_scaled and not shift.any()  # as in the forward pass, or as good
        if self.in_range:
            query = query * _factor(tile)  # products are exponents
        elif tile.only_scaled:  # one more column subtracts: q.k - s = [q, -s].[k, 1] (blockwise.67)
            query, key = with_column(query, -shift), with_column(key, 1)  # last: it rounds before as it did forward
        self.query, self.key = query, by_features(key)

    def weights(
        self, rows: Any, columns: Any, visible: Array | None, bias: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Those of a block, how fast they grow with their scores, and what the softcap is of, if there is one."""
        tile, below_cap = self.tile, None
        exponential, _, least, small = _exponential(tile.dtype)
        weights = _product("weights", self.query[rows], transposed(self.key[columns]))
        if tile.softcap is not None:
            below_cap = weights * abs(tile.factor)
        if not self.in_range:
            factor = _make_scores(tile, weights, bias)
            if not tile.only_scaled:
                weights -= self.shift[rows]
            weights *= factor
            np.clip(weights, least, small, out=weights)  # above it is only what is hidden
        exponential(weights, out=weights)  # (h, b, c) (blockwise.8)
        if visible is not None:
            weights *= visible
        return weights, weights, below_cap


class _WeightsOfEach:
    """The same of weights of which each is of its own score alone: there is nothing to divide them by."""

    def __init__(self, tile: Tile, query: Array, key: Array) -> None:
        self.tile, self.query, self.key = tile, query, by_features(key)

    def weights(
        self, rows: Any, columns: Any, visible: Array | None, bias: Array | None
    ) -> tuple[Array, Array, Array | None]:
        tile, below_cap = self.tile, None
        scores = _product("weights", self.query[rows], transposed(self.key[columns]))
        scores *= abs(tile.factor)
        if tile.softcap is not None:
            below_cap = scores
            scores = capped(scores, tile.softcap)
        if bias is not None:
            scores = scores + bias
        weights, slopes = tile.weights_by.of_each(scores)  # (h, b, c) each
        if visible is not None:
            weights, slopes = weights * visible, slopes * visible
        return weights, slopes, below_cap


def differentiate_twice(tiles: Sequence[tuple[Tile, Cotangent, Tangent]]) -> list[tuple[Array | None, ...]]:
    """The tangents of the output of tiles that hold all keys, and of their gradients.

    The tangents of their arrays may be `widened`, and then the results are, too. Where forward did not keep what gives
    the weights back, or something is not finite, it is worked out from whole rows of scores; and where a block holds
    all keys, since it takes no longer, and sees more of small differences.
    """
    return [_differentiate_twice(*each) for each in tiles]


def _differentiate_twice(tile: Tile, cotangent: Cotangent, tangent: Tangent) -> tuple[Array | None, ...]:
    block_size = min(BLOCK_TWICE[0], tile.block_size[0]), min(BLOCK_TWICE[1], tile.block_size[1])
    usual = tile.dtype.kind != "c" and not is_wide(tangent.query) and tile.m > block_size[1]
    usual = usual and bool(np.isfinite(cotangent.total).all())
    if usual and plain.without_logsumexp(cotangent.logsumexp, cotangent.output) is None:
        with scratch.own():
            results = _twice(replace(tile, block_size=block_size), cotangent, tangent)
        if all(is_finite(x) for part in results for x in biases.terms_of(part)):
            return results
    return plain.whole_rows_twice(tile, cotangent, tangent)


def _twice(tile: Tile, cotangent: Cotangent, tangent: Any) -> tuple[Array | None, ...]:
    """As :func:`differentiate_twice`, block by block.

    Twice over the keys, since the tangents of the log-sum-exp and the output are known behind the last of them.
    """
    query, key, value = tile.take(tile.query), tile.take(tile.key), tile.take(tile.value)
    dual_query, scale = dual(query, tangent.query), tile.scale
    scaled = dual_query
    if is_row_scale(scale):
        scale = dual(tile.take(scale), tangent.scale)
        scaled = dual_query * scale  # (n, d_k) (blockwise.43)
    query, d_query = value_of(scaled), velocity_of(scaled)
    recomputed = _RecomputedWeights(tile, _queries([tile])[0], key, cotangent.shift[:, None])
    inverse = (1 / np.where(cotangent.total == 0, np.inf, cotangent.total))[:, None]  # (n, 1) (blockwise.9)
    # Two terms are one product of vectors that are twice as long.
    long_query = np.concatenate([d_query, query], axis=-1) * tile.factor  # (n, 2 d_k)
    long_key = np.concatenate([key, tangent.key], axis=-1)  # (m, 2 d_k)
    gradients, of_biases = plain.zeros(tile), plain.zeros(tile)
    d_scaled, d_key, d_value = gradients.query, gradients.key, gradients.value
    first_d_scaled, d_sink = np.zeros_like(query), gradients.sink  # where each has a scale: not the tangent, but itself
    # (n, 1) (blockwise.39)
    share = np.zeros_like(inverse) if tile.sink is None else np.exp(tile.sink - cotangent.shift[:, None]) * inverse
    output_tangent, deltas = np.zeros(cotangent.output.shape, tile.dtype), plain.delta(tile, cotangent)[:, None]
    d_outputs = apart(apart(cotangent.d_output, value), tangent.value)
    terms_of_columns, terms_of_rows = (TERMS if size < MANY else size for size in (tile.n, tile.m))

    def operands(rows: slice, columns: slice) -> Operands:
        of_rows = scale[rows] if is_row_scale(scale) else scale
        of_keys = dual(key[columns], tangent.key[columns])
        return Operands(rows, columns, scaled[rows] * tile.factor, of_keys, of_rows)

    def with_tangents(rows: slice) -> Iterator[tuple[Any, ...]]:
        """Of each block: its keys, the multipliers of dropout, the weights, and the tangents of scores and products."""
        for columns, visible, bias in tile.blocks(rows, tile.columns):
            weights, _, below_cap = recomputed.weights(rows, columns, visible, bias)
            weights *= inverse[rows]  # (b, c) (blockwise.7)
            scores_tangent = _product("scores_tangent", long_query[rows], transposed(long_key[columns]))
            of_cap = None
            if below_cap is not None:
                of_cap = below_cap, scores_tangent.copy()
                scores_tangent *= slope_of_capped(below_cap, tile.softcap)
            if tile.bias is not None:
                of_block = (cut_arrays(tile.bias, rows, columns), cut_tangents(tile.bias, tangent.bias, rows, columns))
                scores_tangent += biases.tangent(*of_block, operands(rows, columns))
            factors = None if tile.dropout is None else tile.dropout.block(rows, columns, tile.dtype)
            yield columns, factors, weights, scores_tangent, of_cap  # (b, c) (blockwise.27)

    for rows in tile.row_blocks():
        d_output, logsumexp_tangent = d_outputs[rows], 0 if d_sink is None else share[rows] * tangent.sink
        for columns, factors, weights, scores_tangent, _ in with_tangents(rows):
            scores_tangent *= weights
            logsumexp_tangent = logsumexp_tangent + scores_tangent.sum(axis=-1, keepdims=True)  # (b, 1) (blockwise.28)
            of_scores, of_values = drop(scores_tangent, factors), drop(weights, factors)
            _add_product(output_tangent[rows], of_scores, value[columns], terms_of_rows)
            _add_product(output_tangent[rows], of_values, tangent.value[columns], terms_of_rows)
        output_tangent[rows] -= logsumexp_tangent * cotangent.output[rows]  # (b, d_v) (blockwise.28)
        delta_tangent = np.einsum("ib,ib->i", d_output, output_tangent[rows])[:, None]  # (b, 1) (blockwise.30)
        if d_sink is not None:
            sink_terms = deltas[rows] * (logsumexp_tangent - tangent.sink) - delta_tangent
            d_sink += (share[rows] * sink_terms).sum()  # (blockwise.42)

        of_keys = np.zeros_like(d_scaled[rows])
        for columns, factors, weights, scores_tangent, of_cap in with_tangents(rows):
            scores_tangent -= logsumexp_tangent
            d_scores = _product("d_scores", d_output, transposed(value[columns]))
            d_scores_tangent = _product("d_scores_tangent", d_output, transposed(tangent.value[columns]))
            if factors is not None:
                d_scores *= factors
                d_scores_tangent *= factors
            d_scores -= deltas[rows]  # (b, c) (blockwise.12)
            d_scores_tangent -= delta_tangent
            d_scores_tangent += scores_tangent * d_scores
            d_scores_tangent *= weights  # (b, c) (blockwise.32)
            d_scores *= weights  # (b, c) (blockwise.13)
            scores_tangent *= weights  # the tangent of the weights (blockwise.31)
            weights_tangent = drop(scores_tangent, factors)
            if tile.bias is not None:
                bias, read = biases.with_tangent(tile.bias, tangent.bias), operands(rows, columns)
                of_bias = plain.add_bias_gradient(bias, gradients.bias, dual(d_scores, d_scores_tangent), read)
                plain.add_read(of_biases, of_bias, read)
                if of_bias.query is not None:
                    first_d_scaled[rows] += value_of(of_bias.query)
            if of_cap is not None:
                d_scores, d_scores_tangent = slope_tangent(d_scores, d_scores_tangent, of_cap, tile.softcap)
            # (blockwise.33)
            _add_product(d_value[columns], transposed(weights_tangent), d_output, terms_of_columns)
            _add_product(d_key[columns], transposed(d_scores_tangent), query[rows], terms_of_columns)
            _add_product(d_key[columns], transposed(d_scores), d_query[rows], terms_of_columns)
            _add_product(of_keys, d_scores_tangent, key[columns], terms_of_rows)
            _add_product(of_keys, d_scores, tangent.key[columns], terms_of_rows)
            if is_row_scale(tile.scale):
                _add_product(first_d_scaled[rows], d_scores, key[columns], terms_of_rows)
        d_scaled[rows] += of_keys
    d_scaled += of_biases.query
    d_scaled *= tile.factor
    d_key *= tile.factor
    d_key += of_biases.key
    d_scale = None
    if is_row_scale(scale):
        d_scaled, d_scale = map(velocity_of, through_scale(dual(first_d_scaled, d_scaled), dual_query, scale))
        d_scale += of_biases.scale
    return output_tangent, d_scaled, d_key, d_value, gradients.bias, d_sink, d_scale


def _multipliers(tiles: Sequence[Tile], rows: slice, columns: slice) -> Array:
    """What dropout multiplies the weights of a block by: (h, b, c)."""
    return _together([tile.dropout.block(rows, columns, tile.dtype) for tile in tiles if tile.dropout is not None])


def _blocks(tiles: Sequence[Tile], part: slice) -> Iterator[tuple[slice, slice, slice, Array | None, Array | None]]:
    """Blocks of scores, of as many heads as fit the cache together."""
    tile = tiles[0]
    pairs = min(tile.block_size[0], tile.n) * min(tile.block_size[1], tile.m)
    for heads in slices(0, len(tiles), max(1, PAIRS // max(1, pairs))):
        for rows in tile.row_blocks():
            for block in tiles[heads][0].blocks(rows, part, tiles[heads][1:]):
                yield heads, rows, *block


def _batches(tiles: Sequence[Tile]) -> Iterator[list[int]]:
    """Which tiles differ in nothing but their numbers, to be prepared together."""
    begun: list[list[int]] = []  # of which each may be added to
    for number, tile in enumerate(tiles):
        batch = next((batch for batch in begun if tile.is_like(tiles[batch[0]])), None)
        if batch is not None and (len(batch) + 1) * max(tile.n, tile.m) <= TOGETHER:
            batch.append(number)
            continue
        if batch is not None:
            begun.remove(batch)
            yield batch
        elif len(begun) == LIKENESSES:
            yield begun.pop(0)
        begun.append([number])
    yield from begun


def _in_batches(tiles: Sequence[Tile], work: Callable[[list[int]], Iterator[Result]]) -> list[Result]:
    """What comes of the tiles, in their order, if those that are alike are worked on together."""
    with scratch.own():
        by_number = {number: one for batch in _batches(tiles) for number, one in zip(batch, work(batch), strict=True)}
    return [by_number[number] for number in range(len(tiles))]


def _stacked(tiles: Sequence[Tile], name: str, part: slice = slice(None)) -> Array:
    """One array of all tiles, in the dtype that is computed in; of one tile a view."""
    return _together([getattr(tile, name)[part] for tile in tiles]).astype(tiles[0].dtype, copy=False)


class _Parts:
    """The keys or values of all tiles, so many at a time that few are in the dtype that is computed in."""

    def __init__(self, tiles: Sequence[Tile], name: str) -> None:
        self.tiles, self.name = tiles, name
        self.slices = list(slices(0, tiles[0].m, KEYS))
        self.only = _stacked(tiles, name) if len(self.slices) == 1 else None  # made once

    def __iter__(self) -> Iterator[Array]:
        if self.only is not None:
            return iter([self.only])
        return (_stacked(self.tiles, self.name, part) for part in self.slices)


def _together(arrays: Sequence[Array]) -> Array:
    return arrays[0][None] if len(arrays) == 1 else np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


def _product(name: str, a: Array, b: Array) -> Array:
    return np.matmul(a, b, out=scratch.array(name, (*a.shape[:-1], b.shape[-1]), a.dtype))


def _add_product(total: Array, a: Array, b: Array, terms: int) -> None:
    """Add ``a @ b``, of which no more than so many terms are added up in one go."""
    product = _product("product", a[..., :terms], b[..., :terms, :])
    for start in range(terms, a.shape[-1], terms):
        part = slice(start, start + terms)
        product += _product("part", a[..., part], b[..., part, :])
    total += product


def _is_moderate(array: Array) -> bool:
    """Whether products with weights neither underflow nor let those count that stand for zero: see `least`."""
    info = np.finfo(array.dtype)
    one, exponent = array.dtype.type(1), info.maxexp
    if np.ldexp(one, -(exponent // 4)) < sum_of_squares(array) < np.ldexp(one, exponent // 2):  # and so is the largest
        return True
    most = max(array.max(initial=0), -array.min(initial=0))
    return bool(-(exponent // 2) < np.frexp(most)[1] < exponent // 3)


def _any_lost(array: Array, factor: Any = None) -> bool:
    """Whether a number that is normal is not when divided by `factor`, by default the largest of unshifted weights."""
    info = np.finfo(array.dtype)
    least = info.tiny * (np.ldexp(array.dtype.type(1), info.maxexp // 4) if factor is None else factor)
    size = np.abs(array)
    if size.min(initial=least) >= least:
        return False
    return bool(((size >= info.tiny) & (size < least)).any())


def _largest_exponent(tiles: Sequence[Tile], bound: float) -> Any:
    """What no exponent of a score without a bias exceeds, nor that of a sink."""
    tile, unit = tiles[0], _exponential(tiles[0].dtype).unit
    most = bound * _factor(tile)
    if tile.softcap is not None:
        most = min(most, float(tile.softcap * unit))
    return max([most, *(float(tile.sink * unit) for tile in tiles if tile.sink is not None)])


def _may_overflow(tile: Tile, bound: float) -> bool:
    """Whether a product or a score may leave the range: one that became minus infinity would leave no trace."""
    info = np.finfo(tile.dtype)
    return bool(bound * max(1.0, abs(float(tile.factor))) > info.max * info.eps / 4)  # beside any bias that is finite


def _length(vectors: Array) -> float:
    """The length of the longest vector; NaN if one holds NaN."""
    squares = np.einsum("...a,...a->...", vectors, vectors).max()
    if squares < np.finfo(vectors.dtype).tiny:  # they may have underflowed
        return float(np.abs(vectors).max(initial=0) * np.sqrt(vectors.shape[-1]))
    return float(np.sqrt(squares))
