"""The recurrence of linear attention in chunks: products of matrices within a chunk, one step from chunk to chunk.

For finite numbers. Where something is not finite, the results are not, and whoever calls this goes token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array, added, transposed
from attention_np._lib.dual import Dual, dual
from attention_np._lib.workers import as_workers, run
from attention_np._linear_attention.pairs import (
    Rows,
    decays_of_pairs,
    earlier,
    from_end,
    from_start,
    in_place,
    on_diagonal,
    one_before,
    products,
    products_backward,
    sum_before,
    sum_from,
    sum_of,
)
from attention_np._linear_attention.tokens import Tokens

SPAN = 2**11  # tokens of all heads, whose chunks are worked on together: more leave the caches, fewer take more calls
LEAST = 2**25  # numbers written to states: with fewer, threads mostly wait for one another to call NumPy


class Decays(NamedTuple):
    """What is left at a token of the state before the chunk, at its end of what a token has written, and of all."""

    from_start: Array  # (..., T, c, d), behind the decay of the token itself
    to_end: Array  # (..., T, c, d)
    whole: Array  # (..., T, d, 1)
    # if all features decay alike, what is left of what another has written before: (..., T, c, c) for each kind of rows
    of_pairs: tuple[Array, ...] | None


class Correction(NamedTuple):
    """What tokens that read before they write need: how they see each other, and the state before the chunk."""

    met: Array  # (..., T, c, d_k), the probes, or keys of the delta rule, as they meet the state before the chunk
    overlaps: list[Array]  # (..., T, c, c), of each with what was written with before it
    solver: Array  # (..., T, c, c), the inverse of 1 + beta * overlaps, or of 1 - overlaps of the responses
    erased: Array  # (..., T, c, d_k), times the state before the chunk: what is written less


class Chunks(NamedTuple):
    """The T chunks of c tokens of a sequence, and what is known of them without any state."""

    n: int  # tokens, of which the last chunk may have fewer
    tokens: Tokens  # each (..., T, c, features), zeros behind the last token
    decays: Decays | None
    rows: Rows
    read: Array  # (..., T, c, d_k), the queries as they meet the state before the chunk
    kept: list[Array]  # (..., T, c, d_k), what is written with as it is left at the end of the chunk
    scores: list[Array]  # (..., T, c, c), of each query with what its own token and those before it write with
    correction: Correction | None
    written: list[Array]  # (..., T, c, d_v), if the state before the chunk is zero; the state changes the first alone


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
    first, *others = chunks.written
    states, written = [], []
    added = [transposed(kept) @ x for kept, x in zip(chunks.kept[1:], others, strict=True)]  # (..., T, d_k, d_v)
    for t in range(first.shape[-3]):
        states.append(state)
        writes = first[..., t, :, :]
        if chunks.correction is not None:
            writes = writes - chunks.correction.erased[..., t, :, :] @ state  # (..., c, d_v) (chunks.11, chunks.30)
        written.append(writes)
        left = state if chunks.decays is None else chunks.decays.whole[..., t, :, :] * state
        state = left + transposed(chunks.kept[0][..., t, :, :]) @ writes  # (..., d_k, d_v) (chunks.12, chunks.31)
        for x in added:
            state = state + x[..., t, :, :]  # (chunks.31)
    before, families = np.stack(states, axis=-3), [np.stack(written, axis=-3), *others]
    total = chunks.read @ before
    for scores, x in zip(chunks.scores, families, strict=True):
        total = in_place(np.add, total, scores @ x)  # (..., T, c, d_v) (chunks.13, chunks.32)
    return _joined(scale * total, chunks.n), before, state


def backward(
    tokens: Tokens, d_output: Array, d_state: Array, states: Array, scale: Any, size: int
) -> tuple[Tokens, Array]:
    """The gradients of the tokens and of the first state, from those of the outputs and of the last state."""
    spans = _spans(tokens, d_state, size)

    def of_heads(d_state: Array, d_output: Array, states: Array, *arrays: Any) -> tuple[Array | None, ...]:
        tokens, d_spans = Tokens(*arrays), []
        for span in reversed(spans):
            kept = states[..., span.start // size : -(-span.stop // size), :, :]
            d_tokens, d_state = _backward(
                d_output[..., span, :], d_state, _chunks(tokens.part(span), size), kept, scale
            )
            d_spans.append(d_tokens)
        return *_together(d_spans), d_state

    *d_tokens, d_state = _by_heads(of_heads, tokens.n, d_state, d_output, states, *tokens)
    return Tokens._make(d_tokens), d_state


def _backward(d_output: Array, d_state: Array, chunks: Chunks, states: Array, scale: Any) -> tuple[Tokens, Array]:
    """Of a span."""
    tokens, decays, correction = chunks.tokens, chunks.decays, chunks.correction
    written = list(chunks.written)
    if correction is not None:
        written[0] = written[0] - correction.erased @ states

    # forward was output = scale * (read @ state + scores @ written), for each of what is written
    d_sum = scale * _cut(d_output, chunks.scores[0].shape[-1])  # (..., T, c, d_v)
    seen, *before = (earlier(d_sum.shape[-2], d_sum.dtype, own) for own in chunks.rows.own)  # (c, c) each
    columns = [transposed(x).copy() for x in written]
    d_read, d_scores = d_sum @ transposed(states), [in_place(np.multiply, d_sum @ x, seen) for x in columns]
    d_written = [transposed(scores) @ d_sum for scores in chunks.scores]
    d_state_here = transposed(chunks.read) @ d_sum

    # from chunk to chunk, written -= erased @ state, state = whole * state + kept^T @ written
    d_states, d_writes = [], []
    for t in reversed(range(d_sum.shape[-3])):
        d_states.append(d_state)
        d_writes.append(d_written[0][..., t, :, :] + chunks.kept[0][..., t, :, :] @ d_state)  # (chunks.15, chunks.34)
        d_left = d_state if decays is None else decays.whole[..., t, :, :] * d_state
        d_state = d_left + d_state_here[..., t, :, :]  # (..., d_k, d_v)
        if correction is not None:
            # (chunks.16, chunks.35)
            d_state = d_state - transposed(correction.erased[..., t, :, :]) @ d_writes[-1]
    d_behind = np.stack(d_states[::-1], axis=-3)  # (..., T, d_k, d_v)
    others = zip(d_written[1:], chunks.kept[1:], strict=True)
    d_written = [
        np.stack(d_writes[::-1], axis=-3),
        *(in_place(np.add, d, kept @ d_behind) for d, kept in others),
    ]  # (chunks.36)
    d_kept = [x @ transposed(d_behind) for x in written]  # (..., T, c, d_k)

    d_beta, d_met, d_products = None, [], [d_scores]
    if correction is not None:
        d_first = transposed(correction.solver) @ d_written[0]  # (..., T, c, d_v) (chunks.15, chunks.34)
        if tokens.beta is not None:
            # forward was written = solver @ (beta * (value - met @ state)), solver = (1 + beta * overlaps)^-1
            missing = tokens.value - correction.met @ states - correction.overlaps[0] @ written[0]  # (chunks.17)
            d_beta = (d_first * missing).sum(axis=-1, keepdims=True)  # (..., T, c, 1) (chunks.18)
            d_written = [tokens.beta * d_first]  # (..., T, c, d_v) (chunks.18)
            d_said = -d_written[0]
        else:
            # forward was said = met @ state + overlaps @ written, and said is what the responses write
            d_said = d_first
            d_written[1] = in_place(np.add, d_written[1], transposed(correction.overlaps[1]) @ d_said)  # (chunks.36)
        d_met = [d_said @ transposed(states)]  # (..., T, c, d_k)
        d_products.append([in_place(np.multiply, d_said @ x, before[0]) for x in columns])

    # forward was scores = products of queries, and overlaps of probes or keys, with what is written with
    of_rows = [chunks.scores] if correction is None else [chunks.scores, correction.overlaps]
    of_pairs = None if decays is None else decays.of_pairs
    d_late, d_early, d_log_decay = products_backward(d_products, of_rows, chunks.rows, tokens.log_decay, of_pairs)
    # of queries, and of probes or keys (chunks.19, chunks.20)
    d_late = [in_place(np.add, x, y) for x, y in zip(_from_start([d_read, *d_met], chunks), d_late, strict=True)]
    # of responses and keys (chunks.20)
    d_early = [in_place(np.add, x, y) for x, y in zip(_to_end(d_kept, chunks), d_early, strict=True)]
    if decays is not None:
        d_whole = transposed((decays.whole * states * d_behind).sum(axis=-1, keepdims=True))  # (..., T, 1, d_k)
        d_decays = d_whole
        for d, x, behind in zip([d_read, *d_met], _met(chunks), chunks.rows.behind, strict=True):
            d_decays = d_decays + sum_from(d * x, behind)  # (chunks.21, chunks.38)
        d_decays = d_decays + sum_before(sum_of(d * x for d, x in zip(d_kept, chunks.kept, strict=True)))  # (chunks.21)
        if tokens.log_decay.shape[-1] == 1:
            d_decays = d_decays.sum(axis=-1, keepdims=True)
        d_log_decay = added(d_log_decay, d_decays)

    gradients = _by_name(d_late, d_early, d_written[-1], chunks)._replace(log_decay=d_log_decay, beta=d_beta)
    if tokens.bonus is not None:
        d_own = (d_sum * tokens.value).sum(axis=-1, keepdims=True)  # (..., T, c, 1)
        gradients = _with_bonus(gradients, d_own, tokens)
    return gradients.each(lambda x: _joined(x, chunks.n)), d_state


def _by_name(d_late: list[Array], d_early: list[Array], d_value: Array, chunks: Chunks) -> Tokens:
    """The gradients of what reads, and of what is written with, as those of the tokens."""
    (d_query, *d_probe), (*d_response, d_key) = d_late, d_early
    if chunks.tokens.beta is not None:  # the key reads, too
        return Tokens(d_query, d_key + d_probe[0], d_value)
    if not d_probe:
        return Tokens(d_query, d_key, d_value)
    return Tokens(d_query, d_key, d_value, probe=d_probe[0], response=d_response[0])


def _with_bonus(d_tokens: Tokens, d_own: Array, tokens: Tokens) -> Tokens:
    """With what comes through the product of a query, the bonus and the key of the same token, (..., T, c, 1)."""
    query, key, bonus = tokens.query, tokens.key, tokens.bonus
    return d_tokens._replace(
        query=d_tokens.query + d_own * (bonus * key),  # (chunks.40)
        key=d_tokens.key + d_own * (bonus * query),  # (chunks.41)
        bonus=d_own * (query * key),  # (chunks.42)
    )


def _together(d_spans: list[Tokens]) -> Iterable[Array | None]:
    """The arrays of all spans, of which those of the last one come first."""
    columns = zip(*reversed(d_spans), strict=True)
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
    of_workers: list[Iterable[Any]] = []
    tasks = enumerate(zip(*columns, strict=True))
    run(lambda task: function(*task), tasks, lambda _, made: of_workers.append(made), None, workers)
    return [None if x[0] is None else np.concatenate(x, axis) for x in zip(*of_workers, strict=True)]


def _spans(tokens: Tokens, state: Array, size: int) -> list[slice]:
    """Whole chunks that are worked on together."""
    heads = prod(state.shape[:-2])
    length = max(SPAN // max(heads, 1) // size, 1) * size
    return [slice(start, min(start + length, tokens.n)) for start in range(0, tokens.n, length)]


def _chunks(tokens: Tokens, size: int) -> Chunks:
    cut = tokens.each(lambda x: _cut(x, size))
    rows = _rows(cut)
    decays = None if cut.log_decay is None else _decays(cut.log_decay, rows)
    chunks = Chunks(tokens.n, cut, decays, rows, cut.query, list(rows.early), [], None, [cut.value])
    scores, *overlaps = products(rows, cut.log_decay, None if decays is None else decays.of_pairs)
    read, *met = _from_start(rows.late, chunks)
    if cut.bonus is not None:
        scores[-1] = scores[-1] + on_diagonal((cut.query * (cut.bonus * cut.key)).sum(axis=-1))  # (chunks.39)
    chunks = chunks._replace(read=read, kept=_to_end(rows.early, chunks), scores=scores)
    if not met:
        return chunks
    if cut.beta is not None:
        solver = _inverse(cut.beta * overlaps[0][0])  # (..., T, c, c) (chunks.9)
        erased, written = solver @ (cut.beta * met[0]), [solver @ (cut.beta * cut.value)]
    else:
        solver = _inverse(-overlaps[0][0])  # (..., T, c, c) (chunks.29)
        erased, written = -(solver @ met[0]), [solver @ (overlaps[0][1] @ cut.value), cut.value]
    return chunks._replace(correction=Correction(met[0], overlaps[0], solver, erased), written=written)


def _rows(tokens: Tokens) -> Rows:
    own = tokens.bonus is None  # else the queries read before their tokens decay and write
    if tokens.beta is not None:
        return Rows((tokens.query, tokens.key), (own, True), (own, False), (tokens.key,))
    if tokens.probe is None:
        return Rows((tokens.query,), (own,), (own,), (tokens.key,))
    return Rows((tokens.query, tokens.probe), (own, False), (own, False), (tokens.response, tokens.key))


def _decays(log_decay: Array, rows: Rows) -> Decays:
    of_pairs = decays_of_pairs(rows, log_decay) if log_decay.shape[-1] == 1 else None
    whole = np.exp(log_decay.sum(axis=-2))[..., None]
    return Decays(from_start(log_decay), from_end(log_decay), whole, of_pairs)  # (chunks.6)


def _from_start(x: Sequence[Array], chunks: Chunks) -> list[Array]:
    """Rows of each kind times what is left of the state before the chunk where they read."""
    if chunks.decays is None:
        return list(x)
    decay = chunks.decays.from_start
    # (chunks.6, chunks.27)
    return [row * (decay if behind else one_before(decay)) for row, behind in zip(x, chunks.rows.behind, strict=True)]


def _to_end(x: Sequence[Array], chunks: Chunks) -> list[Array]:
    """What is written with, times what is left of it at the end of the chunk."""
    return list(x) if chunks.decays is None else [row * chunks.decays.to_end for row in x]


def _met(chunks: Chunks) -> list[Array]:
    """The rows of each kind as they meet the state before the chunk."""
    return [chunks.read] if chunks.correction is None else [chunks.read, chunks.correction.met]


def _inverse(lower: Array) -> Array:
    """The inverse of ``1 + lower``, strictly lower triangular, (..., c, c): forward substitution, row by row."""
    if isinstance(lower, Dual):
        solver = _inverse(lower.value)
        return dual(solver, -solver @ lower.velocity @ solver)  # (chunks.24)
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
