"""What the kernels do, in the way of :mod:`attention_np.dot_product`: where arrays hold NaN or infinity or are complex.

A few rows at a time: what is not there must contribute nothing, and that takes a second look at whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_np import dot_product, softmax, weightings
from attention_np._blockwise.tiles import Block, Cotangent, Tangent, Tile, slices
from attention_np._lib.arrays import Array, added, sum_to, transposed
from attention_np._lib.dropout import drop
from attention_np._lib.products import (
    apart,
    backward_product,
    backward_times,
    pair_products,
    pairs_that_flow,
    product,
)
from attention_np._lib.second_look import clipped_scores
from attention_np._lib.wide import is_wide, widened
from attention_np._softmax.rows import with_column, without_column
from attention_np.biases import Bias
from attention_np.dot_product import capped, slope_of_capped
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
        query, key, block.bias, tile.sink, block.visible, tile.scale, tile.softcap, tile.weights_by
    )
    cache = dot_product.Cache(
        query=query,
        key=key,
        value=tile.take(tile.value),
        bias=tile.bias.within(rows, tile.columns) if isinstance(tile.bias, Bias) else None,
        sink=tile.sink,
        mask=visible,
        scale=tile.scale,
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


def jvp(tiles: Sequence[tuple[Tile, Tangent]]) -> list[tuple[Array, Array]]:
    """The tangents of the output, (n, d_v), and of the log-sum-exp, (n,), of tiles that hold all keys.

    The tangents of the inputs may be `widened`, and then the results are, too.
    """
    return [_jvp(*each) for each in tiles]


def _jvp(tile: Tile, tangent: Tangent) -> tuple[Array, Array]:
    given = tangent.query, tangent.key, tangent.value, tangent.bias, tangent.sink
    dtypes = (x.dtype for x in given if x is not None)
    dtype = np.result_type(*dtypes)
    d_output, d_logsumexp = (np.zeros(shape, dtype) for shape in ((tile.n, tile.value.shape[1]), tile.n))
    if any(map(is_wide, given)):
        d_output, d_logsumexp = widened(d_output), widened(d_logsumexp)
    for rows in tile.row_blocks():
        for some in _few(tile, rows):
            cache, _ = _whole_rows(tile, some)
            d_scores = _pushed_scores(cache, tangent, some)
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
                moved = softmax.moved_logsumexp(d_columns, cache.softmax)
                d_logsumexp[some] = moved[:, 0]  # (blockwise.27)
            if tangent.value is not None:
                d_output[some] += product(drop(cache.weights, cache.dropout), tangent.value, cache.mask)
    return d_output, d_logsumexp


def _pushed_scores(cache: dot_product.Cache, tangent: Tangent, rows: slice) -> Array | None:
    """How the scores of some rows move with the tangents that are given."""
    d_query = None if tangent.query is None else tangent.query[rows]
    of_query = None if d_query is None else pair_products(d_query, cache.key)
    of_key = None if tangent.key is None else pair_products(cache.query, tangent.key)
    d_scores = added(of_query, of_key)
    if d_scores is not None:
        d_scores = d_scores * cache.scale
        if cache.uncapped is not None:
            d_scores = backward_times(d_scores, slope_of_capped(cache.uncapped, cache.softcap))
    n, m = cache.scores.shape
    if isinstance(cache.bias, Bias):
        d_bias = cache.bias.pushed(tangent.bias, slice(0, n), slice(0, m), cache.query, d_query, cache.scale)
    else:
        d_bias = None if tangent.bias is None else cut(tangent.bias, rows, slice(0, m))
    return added(d_scores, d_bias)  # (blockwise.26)


def _few(tile: Tile, rows: slice) -> Any:
    return slices(rows.start, rows.stop, max(1, PAIRS_AT_ONCE // tile.m))


def _products(tile: Tile, query: Array, key: Array) -> Array:
    """Of queries and keys, scaled; under a softcap those that do not fit the dtype are its largest number."""
    products: Array = pair_products(query, key) * tile.scale
    if tile.softcap is None or np.isfinite(products).all():
        return products
    return clipped_scores(products, query, key, tile.scale, None)


def _scores(tile: Tile, rows: slice, block: Block) -> Array:
    """Of rows whose largest score is in range."""
    query, key, bias = tile.take(tile.query, rows), tile.take(tile.key, block.columns), block.bias
    products = _products(tile, query, key)
    if tile.softcap is not None:
        products = capped(products, tile.softcap)
    scores = products if bias is None else products + bias
    return scores if np.isfinite(scores).all() else clipped_scores(products, query, key, tile.scale, bias)


def zeros(tile: Tile, wide: bool = False) -> tuple[Array, Array, Array, Array | None]:
    """Gradients of the arrays of a tile to add to; `wide`: they are `widened`."""
    query, key, value = (np.zeros(array.shape, tile.dtype) for array in (tile.query, tile.key, tile.value))
    bias = None if tile.bias is None else np.zeros(tile.bias.shape, tile.dtype)
    if wide:
        query, key, value = (widened(array) for array in (query, key, value))
        bias = bias if isinstance(tile.bias, Bias) else widened(bias)
    return query, key, value, bias


def delta(tile: Tile, given: Cotangent) -> Array:
    """What is subtracted in each row of the gradient of the weights, (n,) (blockwise.8)."""
    result: Array = np.einsum("ib,ib->i", given.d_output, tile.take(given.output))  # (blockwise.8)
    return result if given.d_logsumexp is None else result - given.d_logsumexp  # (blockwise.17)


def add_bias_gradient(
    tile: Tile, d_bias: Array | None, d_query: Array, d_scores: Array, rows: slice, columns: slice
) -> None:
    """Add the gradient of some scores to that of the bias that is in them, and of the queries if it reads those."""
    if d_bias is None:
        return
    if isinstance(tile.bias, Bias):
        query = tile.take(tile.query, rows)
        found, of_query = tile.bias.gradients(np.asarray(d_scores), rows, columns, query, tile.scale)
        d_bias += found
        if of_query is not None:
            d_query[rows] += of_query
        return
    into = d_bias[rows if len(d_bias) != 1 else slice(None), columns if d_bias.shape[1] != 1 else slice(None)]
    into += sum_to(d_scores, into.shape)  # (blockwise.15)


def differentiate(tile: Tile, given: Cotangent) -> tuple[Array, Array, Array, Array | None]:
    """What a tile contributes to the gradients of query, key, value and bias.

    Rows that are of :func:`without_logsumexp` must have a gradient of zero.
    """
    gradients = zeros(tile)
    d_query, d_key, d_value, d_bias = gradients
    deltas = delta(tile, given)
    for rows in tile.row_blocks():
        query, d_output = tile.take(tile.query, rows), given.d_output[rows]
        incoming = d_output if given.d_logsumexp is None else np.c_[d_output, given.d_logsumexp[rows]]
        for block in tile.blocks(rows, tile.columns):
            columns = block.columns
            key, value = tile.take(tile.key, columns), tile.take(tile.value, columns)
            weights, moves = _recomputed(tile, given, rows, block)
            flows = pairs_that_flow(block.visible, incoming)
            if flows is not None:
                moves = moves & flows
            factors = None if tile.dropout is None else tile.dropout.block(rows, columns, tile.dtype)
            d_value[columns] += product(transposed(drop(weights, factors)), d_output, transposed(flows))
            d_weights = drop(pair_products(d_output, value, flows), factors)
            d_scores = np.where(moves, weights * (d_weights - deltas[rows, None]), 0)
            add_bias_gradient(tile, d_bias, d_query, d_scores, rows, columns)
            if tile.softcap is not None:
                slope = slope_of_capped(_products(tile, query, key), tile.softcap)
                d_scores = backward_times(d_scores, slope)  # (blockwise.60)
            d_query[rows] += backward_product(d_scores, key, tile.scale)
            d_key[columns] += backward_product(transposed(d_scores), query, tile.scale)
    return gradients


def without_logsumexp(logsumexp: Array, output: Array) -> Array | None:
    """The rows (..., n) that cannot be differentiated block by block, from their log-sum-exp and output; None: none.

    The log-sum-exp is NaN or plus infinity, or so large that scores which are rounded otherwise in the backward pass
    than in the forward pass, since other keys are beside them, would have weights of another size. Or the output is
    not finite: then the mean of the gradients of the weights is lost.
    """
    size = logsumexp.real
    known = np.abs(size) < MOST_ROUNDING / np.finfo(logsumexp.dtype).eps
    if known.all() and np.isfinite(output).all():
        return None
    known |= size == -np.inf
    apart: Array = ~(known & np.isfinite(output).all(axis=-1))
    return apart if apart.any() else None


def differentiate_whole_rows(
    tiles: Sequence[tuple[Tile, Cotangent]],
) -> list[tuple[Array, Array, Array, Array | None, Array | None]]:
    """As :func:`differentiate`, from the scores alone; for tiles that hold all the keys their queries attend to.

    And to the sink, but for what it has of the log-sum-exp. If the gradient of the output is `widened`, the results
    are, too.
    """
    return [_differentiate_whole_rows(*each) for each in tiles]


def _differentiate_whole_rows(tile: Tile, given: Cotangent) -> tuple[Array, Array, Array, Array | None, Array | None]:
    d_query, d_key, d_value, d_bias = zeros(tile, is_wide(given.d_output))
    d_sink = None if tile.sink is None else np.zeros((), tile.dtype)
    for rows in _few(tile, tile.rows):
        d_output = given.d_output[rows]
        d_logsumexp = None if given.d_logsumexp is None else given.d_logsumexp[rows, None]
        if not (d_output != 0).any() and (d_logsumexp is None or not (d_logsumexp != 0).any()):
            continue
        cache, _ = _whole_rows(tile, rows)
        flows = pairs_that_flow(cache.mask, d_output)
        d_value += product(transposed(drop(cache.weights, cache.dropout)), d_output, transposed(flows))
        d_weights = drop(pair_products(d_output, cache.value, flows), cache.dropout)
        d_scores, d_sinks = dot_product.scores_gradient(d_weights, cache)
        if d_sink is not None and d_sinks is not None:
            d_sink = d_sink + d_sinks.sum(axis=0)  # (blockwise.63)
        if d_logsumexp is not None:
            of_softmax, moves = cache.softmax, d_logsumexp != 0
            moves = moves & (of_softmax.scores[:, : tile.m].real != -np.inf) & (of_softmax.logsumexp.real != np.inf)
            moves = moves if cache.mask is None else moves & cache.mask
            d_scores = d_scores + np.where(moves, cache.weights * d_logsumexp, 0)  # (blockwise.17)
        d_products = d_scores
        if cache.uncapped is not None:
            d_products = backward_times(d_scores, slope_of_capped(cache.uncapped, tile.softcap))  # (blockwise.60)
        d_query[rows] = backward_product(d_products, cache.key, tile.scale)
        d_key += backward_product(transposed(d_products), cache.query, tile.scale)
        add_bias_gradient(tile, d_bias, d_query, d_scores, rows, tile.columns)
    return d_query, d_key, d_value, d_bias, d_sink


def whole_rows_twice(tile: Tile, given: Cotangent, along: Any) -> tuple[Array | None, ...]:
    """How the output of a tile that holds all keys, and its gradients, move along a tangent of all its arrays.

    From the scores alone. The tangents may be `widened`, and then the results are, too.
    """
    d_query, d_key, d_value, d_bias = zeros(tile, is_wide(along.query))
    d_sink = None if tile.sink is None else np.zeros((), tile.dtype)
    moved = []
    for rows in _few(tile, tile.rows):
        cache, _ = _whole_rows(tile, rows)
        is_shared = along.bias is None or isinstance(tile.bias, Bias) or len(along.bias) == 1
        bias = along.bias if is_shared else along.bias[rows]
        of_rows = dot_product.Gradients(along.query[rows], along.key, along.value, bias, along.sink)
        d_logsumexp = None if given.d_logsumexp is None else given.d_logsumexp[rows, None]
        output, found, _ = dot_product.push_backward(of_rows, given.d_output[rows], cache, d_logsumexp)
        moved.append(output)
        d_query[rows] = found.query
        d_key += found.key
        d_value += found.value
        if isinstance(tile.bias, Bias):
            d_bias = added(d_bias, found.bias)
        elif found.bias is not None:
            add_bias_gradient(tile, d_bias, d_query, found.bias, rows, tile.columns)
        d_sink = added(d_sink, found.sink)
    return np.concatenate(moved, axis=0), d_query, d_key, d_value, d_bias, d_sink


def _recomputed(tile: Tile, given: Cotangent, rows: slice, block: Block) -> tuple[Array, Array]:
    """The weights of a block from the log-sum-exp of its rows (blockwise.7), and which of them move with the scores."""
    scores = _scores(tile, rows, block)
    takes_part: Array = scores.real != -np.inf
    if block.visible is not None:
        takes_part = takes_part & block.visible
    return np.where(takes_part, np.exp(scores - given.logsumexp[rows, None]), 0), takes_part  # (blockwise.7)
