"""What the kernels do, in the way of :mod:`attention_np.dot_product`: where arrays hold NaN or infinity or are complex.

A few rows at a time: a hidden pair must contribute nothing, and that takes a second look at whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_np import biases, dot_product, softmax, weightings
from attention_np._blockwise.tiles import (
    Block,
    Cotangent,
    Tangent,
    Tile,
    TileGradients,
    cut_arrays,
    cut_tangents,
    slices,
)
from attention_np._lib.arrays import Array, added, is_row_scale, sum_to, transposed
from attention_np._lib.dropout import drop
from attention_np._lib.dual import is_dual, velocity_of
from attention_np._lib.products import (
    apart,
    backward_times,
    pair_products,
    pairs_that_flow,
    product,
)
from attention_np._lib.second_look import clipped_scores
from attention_np._lib.wide import is_wide, narrowed, widened
from attention_np._softmax.rows import with_column, without_column
from attention_np.biases import Bias, OfBlock, Operands
from attention_np.dot_product import capped, products_gradients, scores_tangent, slope_of_capped, with_scale
from attention_np.rules import cut

PAIRS_AT_ONCE = 2**18
MOST_ROUNDING = 1 / 64  # of a score, for its weight to be had from the log-sum-exp


def attend(tile: Tile, rows: slice) -> tuple[Array, Array]:
    """The output and the log-sum-exp of some rows of a tile that holds all the keys they attend to.

    A log-sum-exp that is too large for the dtype is infinite; one that is too small is NaN, since minus infinity says
    that there is nothing to attend to.
    """
    outputs, logsumexps = [], []
    for some in _few(tile, rows):
        cache, tops = _whole_rows(tile, some)
        dropped = drop(cache.weights, cache.dropout)
        is_mean = tile.dropout is None and tile.weights_by is None
        outputs.append(product(dropped, cache.value, cache.mask, mean=is_mean))
        if tile.weights_by is not None:
            logsumexps.append(np.full_like(cache.weights[:, 0], np.nan))
            continue
        logsumexp = cache.softmax.logsumexp
        if tops is not None:
            if tile.sink is not None and tile.sink.real != -np.inf:
                tops = np.maximum(tops, 0)  # beside scores that are less than any number, the sink is the sum
            logsumexp = np.where(tops == -np.inf, np.nan, logsumexp + tops)
        logsumexps.append(logsumexp[:, 0])
    return np.concatenate(outputs), np.concatenate(logsumexps)


def _whole_rows(tile: Tile, rows: slice) -> tuple[dot_product.Cache, Array | None]:
    """What dot-product attention leaves of some rows over all keys of a tile, and what the scores are less."""
    block = tile.block(rows, tile.columns) or Block(tile.columns, np.zeros((1, 1), np.bool_), None)
    key = tile.take(tile.key)
    query = apart(tile.take(tile.query, rows), key)
    of_scores, scores, uncapped, visible, tops = dot_product.weights_of_scores(
        query, key, block.bias, tile.sink, tile.scale_of(rows), block.visible, tile.softcap, tile.weights_by
    )
    cache = dot_product.Cache(
        query=query,
        key=key,
        value=tile.take(tile.value),
        bias=_bias_within(tile, rows),
        sink=tile.sink,
        mask=visible,
        scale=tile.scale_of(rows),
        softcap=tile.softcap,
        weights_by=tile.weights_by,
        uncapped=uncapped,
        scores=scores,
        weights=of_scores.weights[:, : tile.m],
        dropout=None if tile.dropout is None else tile.dropout.block(rows, tile.columns, tile.dtype),
        softmax=of_scores,
        output_shape=(rows.stop - rows.start, tile.value.shape[1]),
    )
    return cache, tops


def _bias_within(tile: Tile, rows: slice) -> Any:
    """The bias of some rows and all keys, counted from the first of each."""
    if isinstance(tile.bias, Bias):
        return tile.bias.within(rows, tile.columns)
    cut_bias = cut_arrays(tile.bias, rows, tile.columns)
    if isinstance(cut_bias, list):
        return [x.within(rows, tile.columns) if isinstance(x, Bias) else x for x in cut_bias]
    return cut_bias


def jvp(tiles: Sequence[tuple[Tile, Tangent]]) -> list[tuple[Array, Array]]:
    """The tangents of the output, (n, d_v), and of the log-sum-exp, (n,), of tiles that hold all keys.

    The tangents of the inputs may be `widened`, and then the results are, too.
    """
    return [_jvp(*each) for each in tiles]


def _jvp(tile: Tile, tangent: Tangent) -> tuple[Array, Array]:
    tangents = tangent.query, tangent.key, tangent.value, *biases.terms_of(tangent.bias), tangent.sink, tangent.scale
    dtypes = (x.dtype for x in tangents if x is not None)
    dtype = np.result_type(*dtypes)
    d_output, d_logsumexp = (np.zeros(shape, dtype) for shape in ((tile.n, tile.value.shape[1]), tile.n))
    if any(map(is_wide, tangents)):
        d_output, d_logsumexp = widened(d_output), widened(d_logsumexp)
    for rows in tile.row_blocks():
        for some in _few(tile, rows):
            cache, _ = _whole_rows(tile, some)
            d_query, d_scale = (None if x is None else x[some] for x in (tangent.query, tangent.scale))
            d_bias = cut_tangents(tile.bias, tangent.bias, some, tile.columns)
            d_scores, _ = scores_tangent(cache, d_query, tangent.key, d_bias, d_scale)  # (blockwise.27)
            if d_scores is not None or tangent.sink is not None:
                d_scores = np.zeros((1, 1), tile.dtype) if d_scores is None else d_scores
                d_scores = np.broadcast_to(d_scores, cache.weights.shape)
                if tile.weights_by is not None:
                    d_weights = weightings.weights_tangent(d_scores, cache.softmax)
                    d_output[some] += product(drop(d_weights, cache.dropout), cache.value, cache.mask)
                    d_scores = None
            if d_scores is not None:
                of_sink = 0 if tangent.sink is None else tangent.sink
                d_columns = with_column(d_scores, of_sink, cache.sink)
                d_weights, _ = without_column(softmax.times_jacobian(d_columns, cache.softmax), cache.sink)
                d_output[some] += product(drop(d_weights, cache.dropout), cache.value, cache.mask)
                of_rows = softmax.logsumexp_tangent(d_columns, cache.softmax)
                d_logsumexp[some] = of_rows[:, 0]  # (blockwise.28)
            if tangent.value is not None:
                d_output[some] += product(drop(cache.weights, cache.dropout), tangent.value, cache.mask)
    return d_output, d_logsumexp


def _few(tile: Tile, rows: slice) -> Any:
    return slices(rows.start, rows.stop, max(1, PAIRS_AT_ONCE // tile.m))


def _products(tile: Tile, query: Array, key: Array, factor: Any) -> Array:
    """Of scaled queries and keys; under a softcap those that do not fit the dtype are its largest number."""
    products: Array = narrowed(pair_products(query, key) * factor)
    if tile.softcap is None or np.isfinite(products).all():
        return products
    return clipped_scores(products, query, key, factor, None)


def _scores(tile: Tile, rows: slice, block: Block) -> tuple[Array, Array]:
    """Of rows whose largest score is in range; and the products that they are made of."""
    query, factor = with_scale(tile.take(tile.query, rows), tile.scale_of(rows))
    key, bias = tile.take(tile.key, block.columns), block.bias
    products = _products(tile, query, key, factor)
    below_bias = products if tile.softcap is None else capped(products, tile.softcap)
    scores = below_bias if bias is None else below_bias + bias
    if not np.isfinite(scores).all():
        scores = clipped_scores(below_bias, query, key, factor, bias)
    return scores, products


def zeros(tile: Tile, wide: bool = False) -> TileGradients:
    """Gradients of the arrays of a tile to add to; `wide`: they are `widened`."""

    def zero(x: Any) -> Any:
        if isinstance(x, list):
            return [zero(one) for one in x]
        if x is None:
            return None
        array = np.zeros(x.shape, tile.dtype)
        return widened(array) if wide and not isinstance(x, Bias) else array

    query, key, value, bias = map(zero, (tile.query, tile.key, tile.value, tile.bias))
    sink = None if tile.sink is None else np.zeros((), tile.dtype)
    scale = zero(tile.scale) if is_row_scale(tile.scale) else None
    return TileGradients(query, key, value, bias, sink, scale)


def delta(tile: Tile, cotangent: Cotangent) -> Array:
    """What is subtracted in each row of the gradient of the weights, (n,) (blockwise.10)."""
    result: Array = np.einsum("ib,ib->i", cotangent.d_output, tile.take(cotangent.output))  # (blockwise.10)
    return result if cotangent.d_logsumexp is None else result - cotangent.d_logsumexp  # (blockwise.19)


def add_bias_gradient(bias: Any, d_bias: Any, d_scores: Array, operands: Operands) -> OfBlock:
    """Add the gradient of a block of scores to those of the biases in them; what else they read has what is returned.

    Of dual numbers the velocities are added.
    """
    if bias is None:
        return OfBlock(None)
    of_block = biases.gradients(bias, d_scores, operands)
    of_terms = map(biases.terms_of, (bias, d_bias, of_block.array))
    for term, total, d_term in zip(*of_terms, strict=True):
        into = total if isinstance(term, Bias) else cut(total, operands.rows, operands.columns)
        into += sum_to(velocity_of(d_term) if is_dual(d_term) else d_term, into.shape)  # (blockwise.17)
    return of_block


def add_read(into: TileGradients, of_bias: OfBlock, operands: Operands) -> None:
    """Add what biases have of the gradients of scaled queries, keys and scales; of dual numbers the velocities."""
    for total, part, x in zip(
        (into.query, into.key, into.scale),
        (operands.rows, operands.columns, operands.rows),
        (of_bias.query, of_bias.key, of_bias.scale),
        strict=True,
    ):
        if x is not None and total is not None:
            total[part] += velocity_of(x) if is_dual(x) else x


def _add_gradients(
    tile: Tile, into: TileGradients, d_scores: Array, d_products: Array, block: tuple[slice, slice]
) -> None:
    """Add the gradients of what the scores of a block, (b, c), are made of."""
    rows, columns = block
    operands = tile.operands(rows, columns)
    of_bias = add_bias_gradient(tile.bias, into.bias, d_scores, operands)
    query, scale = tile.take(tile.query, rows), tile.scale_of(rows)
    d_query, d_key, d_scale = products_gradients(d_products, of_bias, query, operands.key, scale)
    into.query[rows] += d_query
    into.key[columns] += d_key
    if into.scale is not None:
        into.scale[rows] += d_scale


def differentiate(tile: Tile, cotangent: Cotangent) -> TileGradients:
    """What a tile contributes to the gradients of its arrays, but for the sink.

    Rows that are of :func:`without_logsumexp` must have a gradient of zero.
    """
    gradients = zeros(tile)._replace(sink=None)
    deltas = delta(tile, cotangent)
    for rows in tile.row_blocks():
        d_output = cotangent.d_output[rows]
        incoming = d_output if cotangent.d_logsumexp is None else np.c_[d_output, cotangent.d_logsumexp[rows]]
        for block in tile.blocks(rows, tile.columns):
            columns = block.columns
            value = tile.take(tile.value, columns)
            weights, moves, products = _recomputed(tile, cotangent, rows, block)
            flows = pairs_that_flow(block.visible, incoming)
            if flows is not None:
                moves = moves & flows
            factors = None if tile.dropout is None else tile.dropout.block(rows, columns, tile.dtype)
            gradients.value[columns] += product(transposed(drop(weights, factors)), d_output, transposed(flows))
            d_weights = drop(pair_products(d_output, value, flows), factors)
            d_scores = d_products = np.where(moves, weights * (d_weights - deltas[rows, None]), 0)
            if tile.softcap is not None:
                d_products = backward_times(d_scores, slope_of_capped(products, tile.softcap))  # (blockwise.38)
            _add_gradients(tile, gradients, d_scores, d_products, (rows, columns))
    return gradients


def without_logsumexp(logsumexp: Array, output: Array) -> Array | None:
    """The rows (..., n) that cannot be differentiated block by block, from their log-sum-exp and output; None: none.

    The log-sum-exp is NaN or plus infinity, or so large that scores which are rounded otherwise in the backward pass
    than in the forward pass, since other keys are beside them, would have weights of another size. Or the output is
    not finite: then the mean of the gradients of the weights is lost.
    """
    size = logsumexp.real
    known = np.abs(size) < MOST_ROUNDING / np.finfo(logsumexp.dtype).eps
    if known.all() and np.isfinite(output).all():  # not by BLAS: a thread of its own would spin beside our workers
        return None
    known |= size == -np.inf
    apart: Array = ~(known & np.isfinite(output).all(axis=-1))
    return apart if apart.any() else None


def differentiate_whole_rows(tiles: Sequence[tuple[Tile, Cotangent]]) -> list[TileGradients]:
    """As :func:`differentiate`, from the scores alone; for tiles that hold all the keys their queries attend to.

    And to the sink, but for what it has of the log-sum-exp. If the gradient of the output is `widened`, the results
    are, too.
    """
    return [_differentiate_whole_rows(*each) for each in tiles]


def _differentiate_whole_rows(tile: Tile, cotangent: Cotangent) -> TileGradients:
    gradients = zeros(tile, is_wide(cotangent.d_output))
    d_value, d_sink = gradients.value, None if tile.sink is None else np.zeros((), tile.dtype)
    for rows in _few(tile, tile.rows):
        d_output = cotangent.d_output[rows]
        d_logsumexp = None if cotangent.d_logsumexp is None else cotangent.d_logsumexp[rows, None]
        if not (d_output != 0).any() and (d_logsumexp is None or not (d_logsumexp != 0).any()):
            continue
        cache, _ = _whole_rows(tile, rows)
        flows = pairs_that_flow(cache.mask, d_output)
        d_value += product(transposed(drop(cache.weights, cache.dropout)), d_output, transposed(flows))
        d_weights = drop(pair_products(d_output, cache.value, flows), cache.dropout)
        d_scores, d_sink_of_rows = dot_product.scores_gradient(d_weights, cache)
        if d_sink is not None and d_sink_of_rows is not None:
            d_sink = d_sink + d_sink_of_rows  # (blockwise.41)
        if d_logsumexp is not None:
            of_softmax, moves = cache.softmax, d_logsumexp != 0
            moves = moves & (of_softmax.scores[:, : tile.m].real != -np.inf) & (of_softmax.logsumexp.real != np.inf)
            moves = moves if cache.mask is None else moves & cache.mask
            d_scores = d_scores + np.where(moves, cache.weights * d_logsumexp, 0)  # (blockwise.19)
        d_products = d_scores
        if cache.uncapped is not None:
            d_products = backward_times(d_scores, slope_of_capped(cache.uncapped, tile.softcap))  # (blockwise.38)
        _add_gradients(tile, gradients, d_scores, d_products, (rows, tile.columns))
    return gradients._replace(sink=d_sink)


def whole_rows_twice(tile: Tile, cotangent: Cotangent, tangent: Any) -> tuple[Array | None, ...]:
    """The tangents of the output of a tile that holds all keys, and of its gradients, from those of all its arrays.

    From the scores alone. The latter may be `widened`, and then the results are, too.
    """
    gradients = zeros(tile, is_wide(tangent.query))
    outputs, d_sink = [], gradients.sink
    for rows in _few(tile, tile.rows):
        cache, _ = _whole_rows(tile, rows)
        bias = cut_tangents(tile.bias, tangent.bias, rows, tile.columns)
        scale = None if tangent.scale is None else tangent.scale[rows]
        of_rows = dot_product.Gradients(tangent.query[rows], tangent.key, tangent.value, bias, tangent.sink, scale)
        d_logsumexp = None if cotangent.d_logsumexp is None else cotangent.d_logsumexp[rows, None]
        output, tangents, _ = dot_product.backward_tangent(of_rows, cotangent.d_output[rows], cache, d_logsumexp)
        outputs.append(output)
        gradients.query[rows] = tangents.query
        for total, d_x in ((gradients.key, tangents.key), (gradients.value, tangents.value)):
            total += d_x
        for term, total, d_term in zip(*map(biases.terms_of, (tile.bias, gradients.bias, tangents.bias)), strict=False):
            into = total if isinstance(term, Bias) else cut(total, rows, tile.columns)
            into += sum_to(d_term, into.shape)
        if gradients.scale is not None:
            gradients.scale[rows] = tangents.scale
        d_sink = added(d_sink, tangents.sink)
    return np.concatenate(outputs, axis=0), *gradients._replace(sink=d_sink)


def _recomputed(tile: Tile, cotangent: Cotangent, rows: slice, block: Block) -> tuple[Array, Array, Array]:
    """The weights of a block from the log-sum-exp of its rows, which of them depend on the scores, and the products."""
    scores, products = _scores(tile, rows, block)
    takes_part: Array = scores.real != -np.inf
    if block.visible is not None:
        takes_part = takes_part & block.visible
    weights = np.where(takes_part, np.exp(scores - cotangent.logsumexp[rows, None]), 0)  # (blockwise.7)
    return weights, takes_part, products
