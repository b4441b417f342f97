"""What the kernels do, in the way of :mod:`attention_np.dot_product`: where arrays hold NaN or infinity or are complex.

A few rows at a time: what is not there must contribute nothing, and that takes a second look at whole rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_np import softmax
from attention_np._arrays import Array, sum_to, transposed
from attention_np._blockwise.tiles import Cotangent, Tile, slices
from attention_np._products import backward_product, pair_products, pairs_that_flow, product
from attention_np._range import infinite_to_nan

__all__ = ["add_bias_gradient", "attend", "delta", "differentiate", "push_forward", "zeros"]

PAIRS_AT_ONCE = 2**18


def attend(tile: Tile, rows: slice) -> tuple[Array, Array]:
    """The output and the log-sum-exp of some rows of a tile that holds all the keys they attend to."""
    outputs, logsumexps = [], []
    value = tile.take(tile.value, slice(None))
    for some in _few(tile, rows):
        cache, visible = _weights(tile, some)
        dropped = _dropped(tile, cache.weights, some, slice(0, tile.m))
        outputs.append(product(dropped, value, visible, mean=tile.dropout is None))
        logsumexps.append(cache.logsumexp[:, 0])
    return np.concatenate(outputs), np.concatenate(logsumexps)


def push_forward(tile: Tile, tangent: Tile) -> Array:
    """How the output of a tile that holds all keys moves along a tangent of its arrays, (n, d_v)."""
    key, value = tile.take(tile.key, slice(None)), tile.take(tile.value, slice(None))
    d_output = np.zeros((tile.n, value.shape[1]), np.result_type(tile.dtype, tangent.dtype))
    for rows in tile.row_blocks():
        for some in _few(tile, rows):
            cache, visible = _weights(tile, some)
            d_products = tangent.query[some] @ transposed(key) + tile.take(tile.query, some) @ transposed(tangent.key)
            d_scores = d_products * tile.scale
            if tangent.bias is not None:
                d_scores = d_scores + (tangent.bias if len(tangent.bias) == 1 else tangent.bias[some])
            d_weights = softmax.jvp(cache, scores=d_scores)
            columns = slice(0, tile.m)
            d_output[some] = product(_dropped(tile, d_weights, some, columns), value, visible)
            d_output[some] += product(_dropped(tile, cache.weights, some, columns), tangent.value, visible)
    return d_output


def _few(tile: Tile, rows: slice) -> Any:
    return slices(rows.start, rows.stop, max(1, min(rows.stop - rows.start, PAIRS_AT_ONCE // max(tile.m, 1))))


def _weights(tile: Tile, rows: slice) -> tuple[softmax.Cache, Array | None]:
    """The softmax of some rows over all keys of a tile, and who attends to whom in them."""
    columns = slice(0, tile.m)
    block = tile.block(rows, columns)
    visible: Array | None = np.zeros((1, 1), np.bool_) if block is None else block.visible
    scores = _scores(tile, rows, columns)
    scores = infinite_to_nan(scores, visible)
    if block is not None and block.bias is not None:
        scores = scores + block.bias
    return softmax.normalised(scores, mask=visible), visible


def _scores(tile: Tile, rows: slice, columns: slice) -> Array:
    query, key = tile.take(tile.query, rows), transposed(tile.take(tile.key, columns))
    scores: Array = query @ key * tile.scale
    if np.isfinite(scores).all():
        return scores
    return np.where(np.isfinite(scores), scores, (query * tile.scale) @ key)  # only the products may be out of range


def _dropped(tile: Tile, weights: Array, rows: slice, columns: slice) -> Array:
    if tile.dropout is None:
        return weights
    dropped: Array = weights * tile.dropout.block(rows, columns, tile.dtype)
    return dropped


def zeros(tile: Tile) -> tuple[Array, Array, Array, Array | None]:
    """Gradients of the arrays of a tile to add to."""
    arrays = tile.query, tile.key, tile.value, tile.bias
    query, key, value, bias = (None if array is None else np.zeros(array.shape, tile.dtype) for array in arrays)
    assert query is not None
    assert key is not None
    assert value is not None
    return query, key, value, bias


def delta(tile: Tile, given: Cotangent) -> Array:
    """What is subtracted in each row of the gradient of the weights, (n,) (blockwise.8)."""
    result: Array = np.einsum("ib,ib->i", given.d_output, tile.take(given.output, slice(None)))
    return result if given.d_logsumexp is None else result - given.d_logsumexp  # (blockwise.17)


def add_bias_gradient(d_bias: Array | None, d_scores: Array, rows: slice, columns: slice) -> None:
    """Add the gradient of some scores to that of the bias that was broadcast to them."""
    if d_bias is None:
        return
    into = d_bias[rows if len(d_bias) != 1 else slice(None), columns if d_bias.shape[1] != 1 else slice(None)]
    into += sum_to(d_scores, into.shape)  # (blockwise.15)


def differentiate(tile: Tile, given: Cotangent) -> tuple[Array, Array, Array, Array | None]:
    """What a tile contributes to the gradients of query, key, value and bias."""
    gradients = zeros(tile)
    d_query, d_key, d_value, d_bias = gradients
    deltas = delta(tile, given)
    for rows in tile.row_blocks():
        query, d_output = tile.take(tile.query, rows), given.d_output[rows]
        incoming = d_output if given.d_logsumexp is None else np.c_[d_output, given.d_logsumexp[rows]]
        for block in tile.blocks(rows, slice(0, tile.m)):
            columns = block.columns
            key, value = tile.take(tile.key, columns), tile.take(tile.value, columns)
            weights, moves = _recomputed(tile, given, rows, columns)
            flows = pairs_that_flow(block.visible, incoming)
            if flows is not None:
                moves = moves & flows
            dropped = _dropped(tile, weights, rows, columns)
            d_value[columns] += product(transposed(dropped), d_output, transposed(_over(flows, weights)))
            d_weights = _dropped(tile, pair_products(d_output, value, flows), rows, columns)
            d_scores = np.where(moves, weights * (d_weights - deltas[rows, None]), 0)
            add_bias_gradient(d_bias, d_scores, rows, columns)
            d_query[rows] += backward_product(d_scores, key) * tile.scale
            d_key[columns] += backward_product(transposed(d_scores), query) * tile.scale
    return gradients


def _over(pairs: Array | None, weights: Array) -> Array | None:
    return None if pairs is None else np.broadcast_to(pairs, weights.shape)


def _recomputed(tile: Tile, given: Cotangent, rows: slice, columns: slice) -> tuple[Array, Array]:
    """The weights of a block from the log-sum-exp of its rows (blockwise.7), and which of them move with the scores."""
    block = tile.block(rows, columns)
    scores = _scores(tile, rows, columns)
    if block is not None and block.bias is not None:
        scores = scores + block.bias
    logsumexp = given.logsumexp[rows, None]
    takes_part = scores.real != -np.inf
    if block is not None and block.visible is not None:
        takes_part = takes_part & block.visible
    at_limit = logsumexp.real == np.inf
    weights = np.where(takes_part & ~at_limit, np.exp(scores - logsumexp), 0)
    if given.limits is not None:
        share = (scores.real == np.inf) / np.maximum(given.limits[rows, None], 1).astype(scores.dtype)
        weights = np.where(takes_part & at_limit, share, weights)
    return weights, takes_part & ~at_limit
