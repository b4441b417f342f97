"""The recurrence of linear attention in chunks: products of matrices within a chunk, one step from chunk to chunk.

For finite numbers. Where something is not finite, the results are not, and whoever calls this goes token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array, added, transposed
from attention_np._lib.dual import Dual, moving
from attention_np._lib.workers import as_workers, run
from attention_np._linear_attention.pairs import (
    decayed_products,
    decayed_products_backward,
    from_end,
    from_start,
    sum_before,
    sum_from,
)
from attention_np._linear_attention.tokens import Tokens

SPAN = 2**13  # tokens of all heads, whose chunks are worked on together: more take more memory, fewer more time
LEAST = 2**25  # numbers written to states: with fewer, threads mostly wait for one another to call NumPy


class Decays(NamedTuple):
    """What is left at a token of the state before the chunk, at its end of what a token has written, and of all."""

    from_start: Array  # (..., T, c, d)
    to_end: Array  # (..., T, c, d)
    whole: Array  # (..., T, d, 1)
    between: Array | None  # (..., T, c, c), at a token of what another has written before, if all features decay alike


class Delta(NamedTuple):
    """What the delta rule needs of a chunk: how its tokens correct each other, and the state before."""

    overlaps: Array  # (..., T, c, c), of each key with those before it
    solver: Array  # (..., T, c, c), the inverse of 1 + beta * overlaps
    erased: Array  # (..., T, c, d_k), times the state before the chunk: what is written less


class Chunks(NamedTuple):
    """The T chunks of c tokens of a sequence, and what is known of them without any state."""

    n: int  # tokens, of which the last chunk may have fewer
    tokens: Tokens  # each (..., T, c, features), zeros behind the last token
    decays: Decays | None
    read: Array  # (..., T, c, d_k), the queries as they meet the state before the chunk
    met: Array  # (..., T, c, d_k), the keys as they meet it
    kept: Array  # (..., T, c, d_k), the keys as they are left at the end of the chunk
    scores: Array  # (..., T, c, c), of each query with its own key and those before it
    delta: Delta | None
    written: Array  # (..., T, c, d_v), if the state before the chunk is zero


def forward(tokens: Tokens, state: Array, scale: Any, size: int) -> tuple[Array, Array, Array]:
    """The outputs, the states before each chunk, and the last one."""
    spans = _spans(tokens, state, size)

    def of_heads(state: Array, *arrays: Any) -> tuple[Array, Array, Array]:
        tokens, outputs, states = Tokens(*arrays), [], []
        for span in spans:
            output, before, state = _forward(_chunks(tokens.part(span), size), state, scale)
            outputs.append(output)
            states.append(before)
        return np.concatenate(outputs, axis=-2), np.concatenate(states, axis=-3), state

    output, states, state = _by_heads(of_heads, tokens.n, state, *tokens)
    return output, states, state


def _forward(chunks: Chunks, state: Array, scale: Any) -> tuple[Array, Array, Array]:
    """Of a span."""
    states, written = [], []
    for t in range(chunks.scores.shape[-3]):
        states.append(state)
        writes = chunks.written[..., t, :, :]
        if chunks.delta is not None:
            writes = writes - chunks.delta.erased[..., t, :, :] @ state  # (..., c, d_v) (chunks.11)
        written.append(writes)
        left = state if chunks.decays is None else chunks.decays.whole[..., t, :, :] * state
        state = left + transposed(chunks.kept[..., t, :, :]) @ writes  # (..., d_k, d_v) (chunks.12)
    before, all_written = np.stack(states, axis=-3), np.stack(written, axis=-3)
    output = scale * (chunks.read @ before + chunks.scores @ all_written)  # (..., T, c, d_v) (chunks.13)
    return _joined(output, chunks.n), before, state


def backward(
    tokens: Tokens, d_output: Array, d_state: Array, states: Array, scale: Any, size: int
) -> tuple[Tokens, Array]:
    """The gradients of the tokens and of the first state, from those of the outputs and of the last state."""
    spans = _spans(tokens, d_state, size)

    def of_heads(d_state: Array, d_output: Array, states: Array, *arrays: Any) -> tuple[Array | None, ...]:
        tokens, found = Tokens(*arrays), []
        for span in reversed(spans):
            kept = states[..., span.start // size : -(-span.stop // size), :, :]
            d_tokens, d_state = _backward(
                d_output[..., span, :], d_state, _chunks(tokens.part(span), size), kept, scale
            )
            found.append(d_tokens)
        return *_together(found), d_state

    *d_tokens, d_state = _by_heads(of_heads, tokens.n, d_state, d_output, states, *tokens)
    return Tokens._make(d_tokens), d_state


def _backward(d_output: Array, d_state: Array, chunks: Chunks, states: Array, scale: Any) -> tuple[Tokens, Array]:
    """Of a span."""
    (query, key, value, log_decay, beta, _), decays, delta = chunks.tokens, chunks.decays, chunks.delta
    written = chunks.written if delta is None else chunks.written - delta.erased @ states

    # forward was output = scale * (read @ state + scores @ written)
    d_sum = scale * _cut(d_output, chunks.scores.shape[-1])  # (..., T, c, d_v)
    d_read, d_scores = d_sum @ transposed(states), np.tril(d_sum @ transposed(written))
    d_written_here, d_state_here = transposed(chunks.scores) @ d_sum, transposed(chunks.read) @ d_sum

    # from chunk to chunk, written -= erased @ state, state = whole * state + kept^T @ written
    d_states, d_writes = [], []
    for t in reversed(range(chunks.scores.shape[-3])):
        d_states.append(d_state)
        d_writes.append(d_written_here[..., t, :, :] + chunks.kept[..., t, :, :] @ d_state)  # (chunks.15)
        d_left = d_state if decays is None else decays.whole[..., t, :, :] * d_state
        d_state = d_left + d_state_here[..., t, :, :]  # (..., d_k, d_v)
        if delta is not None:
            d_state = d_state - transposed(delta.erased[..., t, :, :]) @ d_writes[-1]  # (chunks.16)
    d_behind, d_written = np.stack(d_states[::-1], axis=-3), np.stack(d_writes[::-1], axis=-3)
    d_kept = written @ transposed(d_behind)  # (..., T, c, d_k)

    d_value, d_beta, d_met, d_overlaps = d_written, None, None, None
    if delta is not None:
        # forward was written = solver @ (beta * (value - met @ state)), solver = (1 + beta * overlaps)^-1
        d_written = transposed(delta.solver) @ d_written  # (..., T, c, d_v) (chunks.15)
        missing = value - chunks.met @ states - delta.overlaps @ written  # (..., T, c, d_v) (chunks.17)
        d_beta = (d_written * missing).sum(axis=-1, keepdims=True)  # (..., T, c, 1) (chunks.18)
        d_value = beta * d_written  # (..., T, c, d_v) (chunks.18)
        d_met, d_overlaps = -d_value @ transposed(states), -np.tril(d_value @ transposed(written), -1)

    # forward was read = query * from_start, met = key * from_start, kept = key * to_end
    d_query, d_key, d_log_decay = d_read, d_kept if d_met is None else d_kept + d_met, None
    if decays is not None:
        d_query = d_read * decays.from_start  # (..., T, c, d_k) (chunks.19)
        d_key = d_kept * decays.to_end  # (..., T, c, d_k) (chunks.20)
        of_start = d_read * chunks.read
        if d_met is not None:
            d_key, of_start = d_key + d_met * decays.from_start, of_start + d_met * chunks.met
        d_whole = transposed((decays.whole * states * d_behind).sum(axis=-1, keepdims=True))  # (..., T, 1, d_k)
        d_log_decay = sum_from(of_start) + sum_before(d_kept * chunks.kept) + d_whole  # (chunks.21)
        if log_decay.shape[-1] == 1:
            d_log_decay = d_log_decay.sum(axis=-1, keepdims=True)

    # forward was scores = products of query and key, overlaps = products of key and key
    d_late, d_early, d_between = _products_backward(d_scores, query, chunks, own=True)
    d_query, d_key = d_query + d_late, d_key + d_early
    d_log_decay = added(d_log_decay, d_between)
    if d_overlaps is not None:
        d_late, d_early, d_between = _products_backward(d_overlaps, key, chunks, own=False)
        d_key = d_key + d_late + d_early
        d_log_decay = added(d_log_decay, d_between)
    gradients = Tokens(d_query, d_key, d_value, d_log_decay, d_beta)
    return gradients.each(lambda x: _joined(x, chunks.n)), d_state


def _together(found: list[Tokens]) -> Iterable[Array | None]:
    """The arrays of all spans, of which those of the last one come first."""
    columns = zip(*reversed(found), strict=True)
    return (None if x[0] is None else np.concatenate(x, axis=-2) for x in columns)


def _by_heads(function: Callable[..., Iterable[Any]], n: int, state: Array, *arrays: Array | None) -> Iterable[Any]:
    """What `function` makes of the state and the arrays, of which each worker is given some of the heads.

    The heads are along the longest leading axis of the state. An array that is broadcast along it stays whole.
    """
    heads = max(state.shape[:-2], default=1)
    if heads == 1 or n * state.size < LEAST:
        return function(state, *arrays)
    axis, workers = state.shape.index(heads), min(as_workers(None, None), heads)
    columns: list[Sequence[Array | None]] = []
    for array in (state, *arrays):
        if array is None:
            columns.append([None] * workers)
            continue
        # in C order: NumPy adds numbers up as they lie in memory, and one head could lie in another way than many
        x = array[(None,) * (state.ndim - array.ndim)].copy()
        columns.append([x] * workers if x.shape[axis] == 1 else np.array_split(x, workers, axis))
    found: list[Iterable[Any]] = []
    tasks = enumerate(zip(*columns, strict=True))
    run(lambda task: function(*task), tasks, lambda _, made: found.append(made), None, workers)
    return [None if x[0] is None else np.concatenate(x, axis) for x in zip(*found, strict=True)]


def _spans(tokens: Tokens, state: Array, size: int) -> list[slice]:
    """Whole chunks that are worked on together."""
    heads = prod(state.shape[:-2])
    length = max(SPAN // max(heads, 1) // size, 1) * size
    return [slice(start, min(start + length, tokens.n)) for start in range(0, tokens.n, length)]


def _chunks(tokens: Tokens, size: int) -> Chunks:
    cut = tokens.each(lambda x: _cut(x, size))
    query, key, value, log_decay, beta, _ = cut
    read, met, kept, decays = query, key, key, None
    if log_decay is not None:
        between, whole = None, np.exp(log_decay.sum(axis=-2))[..., None]
        if log_decay.shape[-1] == 1:
            ones = np.ones(log_decay.shape, log_decay.dtype)
            between = decayed_products(ones, ones, log_decay)
        decays = Decays(from_start(log_decay), from_end(log_decay), whole, between)  # (chunks.6)
        read, met, kept = query * decays.from_start, key * decays.from_start, key * decays.to_end
    found = Chunks(tokens.n, cut, decays, read, met, kept, query, None, value)
    scores = _products(query, found, own=True)  # (..., T, c, c) (chunks.7)
    if beta is None:
        return found._replace(scores=scores)
    overlaps = _products(key, found, own=False)  # (..., T, c, c) (chunks.7)
    solver = _inverse(beta * overlaps)  # (..., T, c, c) (chunks.9)
    delta = Delta(overlaps, solver, solver @ (beta * met))
    return found._replace(scores=scores, delta=delta, written=solver @ (beta * value))


def _products(late: Array, chunks: Chunks, own: bool) -> Array:
    """The decayed products of each row of `late` with the keys before it and, if `own`, with its own key."""
    key, decays = chunks.tokens.key, chunks.decays
    if decays is None:
        return np.tril(late @ transposed(key), 0 if own else -1)
    if decays.between is not None:
        products: Array = late @ transposed(key)
        return products * _with_own(decays.between, own)
    products = decayed_products(late, key, chunks.tokens.log_decay)
    return products + _on_diagonal((late * key).sum(axis=-1)) if own else products


def _products_backward(d_products: Array, late: Array, chunks: Chunks, own: bool) -> tuple[Array, Array, Array | None]:
    """The gradients of :func:`_products` with respect to the rows, the keys and `log_decay`."""
    key, log_decay, decays = chunks.tokens.key, chunks.tokens.log_decay, chunks.decays
    if decays is None:
        return d_products @ key, transposed(d_products) @ late, None
    if decays.between is not None:
        ones = np.ones(log_decay.shape, log_decay.dtype)
        d_between = d_products * (late @ transposed(key))
        decayed = d_products * _with_own(decays.between, own)
        _, _, d_log_decay = decayed_products_backward(d_between, ones, ones, log_decay)
        return decayed @ key, transposed(decayed) @ late, d_log_decay
    d_late, d_key, d_log_decay = decayed_products_backward(d_products, late, key, log_decay)
    if own:
        d_own = np.diagonal(d_products, axis1=-2, axis2=-1)[..., None]
        d_late, d_key = d_late + d_own * key, d_key + d_own * late
    return d_late, d_key, d_log_decay


def _with_own(between: Array, own: bool) -> Array:
    """The decays between tokens, with that of what a token has written itself, of which all is left."""
    return between + np.eye(between.shape[-1], dtype=between.dtype) if own else between


def _on_diagonal(x: Array) -> Array:
    matrix: Array = x[..., None] * np.eye(x.shape[-1], dtype=x.dtype)
    return matrix


def _inverse(lower: Array) -> Array:
    """The inverse of ``1 + lower``, strictly lower triangular, (..., c, c): forward substitution, row by row."""
    if isinstance(lower, Dual):
        solver = _inverse(lower.value)
        return moving(solver, -solver @ lower.velocity @ solver)  # (chunks.24)
    inverse: Array = np.broadcast_to(np.eye(lower.shape[-1], dtype=lower.dtype), lower.shape).copy()
    for i in range(1, lower.shape[-1]):
        row = lower[..., i, None, :i] @ inverse[..., :i, :i]  # (..., 1, i)
        inverse[..., i, :i] = -row[..., 0, :]  # (chunks.10)
    return inverse


def _cut(x: Array, size: int) -> Array:
    """`x`, (..., n, features), as (..., T, c, features), with zeros behind the last token."""
    *leading, n, features = x.shape
    missing = -n % size
    if missing:
        x = np.concatenate([x, np.zeros((*leading, missing, features), x.dtype)], axis=-2)
    return x.reshape(*leading, (n + missing) // size, size, features)


def _joined(x: Array, n: int) -> Array:
    """`x`, (..., T, c, features), as (..., n, features)."""
    *leading, parts, size, features = x.shape
    whole: Array = x.reshape(*leading, parts * size, features)
    return whole[..., :n, :]
