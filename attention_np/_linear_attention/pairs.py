"""How a later token meets an earlier one of its chunk, through all that is forgotten in between.

What token j wrote has the decays of the tokens j + 1 to i when token i has decayed, and those of j + 1 to i - 1 just
before, so the logarithms of a *segment* are summed. A chunk is cut in two, and so are its halves, down to single
tokens: where i is in the later half and j in the earlier, the segment ends in one and begins in the other, and the
decay is a factor for i times a factor for j. So all pairs are products of matrices, no sum is ever taken off another,
and no exponential is of more than is there.

The rows of the later tokens are of several kinds, such as queries and probes, and those of the earlier ones too, such
as responses and keys. All kinds go through the same halves at once, since their decays are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array, transposed


class Rows(NamedTuple):
    """The kinds of rows of a chunk: what reads the state, and what is written with."""

    late: tuple[Array, ...]  # each (..., T, c, d_k)
    behind: tuple[bool, ...]  # for each, whether it reads behind the decay of its token
    own: tuple[bool, ...]  # for each, whether it reads what its token has written
    early: tuple[Array, ...]  # each (..., T, c, d_k)


def products(rows: Rows, log_decay: Any, of_pairs: tuple[Array, ...] | None) -> list[list[Array]]:
    """The decayed products of the rows of each kind with what is written with before them, or by their own token.

    Each is (..., c, c). Without `log_decay` nothing decays. If all features decay alike, `of_pairs` is what
    :func:`decays_of_pairs` gives; else it is None.
    """
    if log_decay is None:
        of_pairs = tuple([earlier(rows.late[0].shape[-2], rows.late[0].dtype, own) for own in rows.own])
    if of_pairs is not None:
        columns = [transposed(y).copy() for y in rows.early]  # BLAS is quicker with rows that lie in memory so
        return [
            [in_place(np.multiply, x @ y, of_x) for y in columns] for x, of_x in zip(rows.late, of_pairs, strict=True)
        ]
    both = decayed_products(_kinds(rows.late), _kinds(rows.early), log_decay, rows.behind)
    return [
        [
            both[..., k, :, e, :] + on_diagonal((x * y).sum(axis=-1)) if own else both[..., k, :, e, :]
            for e, y in enumerate(rows.early)
        ]
        for k, (x, own) in enumerate(zip(rows.late, rows.own, strict=True))
    ]


def products_backward(
    d_products: list[list[Array]],
    of_rows: list[list[Array]],
    rows: Rows,
    log_decay: Any,
    of_pairs: tuple[Array, ...] | None,
) -> tuple[list[Array], list[Array], Array | None]:
    """The gradients of :func:`products`, which gave `of_rows`, with respect to both kinds of rows, and to `log_decay`.

    Where a token reads before its own writes, or what is behind it, there is no gradient of `d_products`, whose memory
    may be used.
    """
    if log_decay is not None and of_pairs is None:
        return _products_of_features_backward(d_products, rows, log_decay)
    d_log_decay, d_plain = None, d_products
    if of_pairs is not None:
        d_log_decay = sum_of(
            _sum_of_segments(sum_of(d * x for d, x in zip(of_d, of_x, strict=True)), behind)
            for of_d, of_x, behind in zip(d_products, of_rows, rows.behind, strict=True)
        )
        both = zip(d_products, of_pairs, strict=True)
        d_plain = [[in_place(np.multiply, d, of_x) for d in of_row] for of_row, of_x in both]
    d_late = [sum_of(d @ y for d, y in zip(of_x, rows.early, strict=True)) for of_x in d_plain]
    of_early = zip(*d_plain, strict=True)
    d_early = [sum_of(transposed(d) @ x for d, x in zip(of_y, rows.late, strict=True)) for of_y in of_early]
    return d_late, d_early, d_log_decay


def _sum_of_segments(d_pairs: Array, behind: bool) -> Array:
    """The gradient of the logarithm of each decay, (..., c, 1), from those of pairs, (..., c, c): where it is between.

    So for token s the sum of all rows i from s on, or behind s, of what is before column s.
    """
    before = np.zeros_like(d_pairs)
    before[..., 1:] = np.cumsum(d_pairs[..., :-1], axis=-1)  # (..., c, c): of row i what is before column s
    of_rows = before * earlier(d_pairs.shape[-1], d_pairs.dtype, behind)
    d_log_decay: Array = of_rows.sum(axis=-2)[..., None]  # (linear-attention.42)
    return d_log_decay


def earlier(c: int, dtype: Any, own: bool) -> Array:
    """One for each pair of a token and one before it, or itself if `own`; else zero, (c, c)."""
    return np.tri(c, dtype=dtype) if own else np.tri(c, k=-1, dtype=dtype)


def _products_of_features_backward(
    d_products: list[list[Array]], rows: Rows, log_decay: Array
) -> tuple[list[Array], list[Array], Array]:
    """Where each feature decays at its own rate."""
    # (..., kinds, c, others, c)
    d_both = np.stack([np.stack(of_x, axis=-2) for of_x in d_products], axis=-4)
    late, early = _kinds(rows.late), _kinds(rows.early)
    d_both_late, d_both_early, d_log_decay = decayed_products_backward(d_both, late, early, log_decay, rows.behind)
    d_late = [d_both_late[..., k, :, :] for k in range(len(rows.late))]
    d_early = [d_both_early[..., e, :, :] for e in range(len(rows.early))]
    for k, own in enumerate(rows.own):
        for e, d in enumerate(d_products[k] if own else ()):
            d_own = _diagonal(d)
            d_late[k], d_early[e] = d_late[k] + d_own * rows.early[e], d_early[e] + d_own * rows.late[k]
    return d_late, d_early, d_log_decay


def decays_of_pairs(rows: Rows, log_decay: Array) -> tuple[Array, ...]:
    """For each kind what is left of what another token has written before, (..., c, c), if all features decay alike."""
    both = decayed_products(*_ones(rows, log_decay), log_decay, rows.behind)
    of_kinds = [both[..., k, :, 0, :] for k in range(len(rows.late))]
    eye = np.eye(log_decay.shape[-2], dtype=log_decay.dtype)  # of what a token has written itself, all is left
    return tuple([x + eye if own else x for x, own in zip(of_kinds, rows.own, strict=True)])


def _ones(rows: Rows, log_decay: Array) -> tuple[Array, Array]:
    """Of one feature, whose decayed products are the decays: for each kind of rows, and for what is written with."""
    *leading, c, _ = log_decay.shape
    return np.ones((*leading, len(rows.late), c, 1), log_decay.dtype), np.ones((*leading, 1, c, 1), log_decay.dtype)


def _kinds(rows: Sequence[Array]) -> Array:
    """Rows of several kinds along an axis of their own, (..., kinds, c, d)."""
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in rows))
    return np.stack([np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in rows], axis=-3)


def on_diagonal(x: Array) -> Array:
    """Matrices with the entries of `x`, (..., c), on their diagonals."""
    matrix: Array = x[..., None] * np.eye(x.shape[-1], dtype=x.dtype)
    return matrix


def _diagonal(x: Array) -> Array:
    """The diagonal of each matrix as a column."""
    return np.diagonal(x, axis1=-2, axis2=-1)[..., None]


def in_place(function: Any, x: Array, y: Array) -> Array:
    """``function(x, y)`` of an `x` that nothing else refers to, into it where it fits: fresh memory takes longer."""
    fits = type(x) is type(y) is np.ndarray and (x.dtype, x.shape) == (
        np.result_type(x, y),
        np.broadcast_shapes(x.shape, y.shape),
    )
    result: Array = function(x, y, out=x) if fits else function(x, y)
    return result


def sum_of(arrays: Iterable[Array]) -> Array:
    """Their sum, of one or more that nothing else refers to."""
    total, *others = arrays
    for x in others:
        total = in_place(np.add, total, x)
    return total


def decayed_products(late: Array, early: Array, log_decay: Array, behind: Sequence[bool]) -> Array:
    """The decayed product of each token i of a chunk with each token j before it: zero where j is not before i.

    Parameters
    ----------
    late : ndarray, (..., kinds, c, d)
    early : ndarray, (..., others, c, d)
    log_decay : ndarray, (..., c, d)
    behind : sequence of bool, of as many as kinds
        Whether these rows meet what is behind the decay of their own token, too.

    Returns
    -------
    ndarray, (..., kinds, c, others, c)
    """
    (*lates, kinds, c, _), (*earlies, others, _, _) = late.shape, early.shape
    leading = np.broadcast_shapes(tuple(lates), tuple(earlies), log_decay.shape[:-2])
    dtype = np.result_type(late.dtype, early.dtype, log_decay.dtype)
    products = np.zeros_like(log_decay, dtype, "C", shape=(*leading, kinds, c, others, c))
    for before, later in _halves(0, c):
        to_late, of_early = _decays(log_decay, before, later, behind)
        rows, columns = _rows(late[..., later, :] * to_late), _rows(early[..., before, :] * of_early)
        block = rows @ transposed(columns)  # (linear-attention.92)
        shape = (*block.shape[:-2], kinds, block.shape[-2] // kinds, others, block.shape[-1] // others)
        products[..., later, :, before] = block.reshape(shape)
    return products


def decayed_products_backward(
    d_products: Array, late: Array, early: Array, log_decay: Array, behind: Sequence[bool]
) -> tuple[Array, Array, Array]:
    """The gradients of :func:`decayed_products` with respect to its three arrays."""
    *leading, kinds, c, others, _ = d_products.shape
    d = max(late.shape[-1], early.shape[-1])
    dtype = np.result_type(d_products.dtype, late.dtype, early.dtype, log_decay.dtype)
    shapes = (*leading, kinds, c, d), (*leading, others, c, d), (*leading, c, d)
    d_late, d_early, d_log_decay = (np.zeros_like(log_decay, dtype, "C", shape=shape) for shape in shapes)
    for before, later in _halves(0, c):
        to_late, of_early = _decays(log_decay, before, later, behind)
        one, other = late[..., later, :] * to_late, early[..., before, :] * of_early
        d_block = d_products[..., later, :, before]
        size, of_before = d_block.shape[-3], d_block.shape[-1]
        d_block = d_block.reshape(*leading, kinds * size, others * of_before)
        d_one = (d_block @ _rows(other)).reshape(*leading, kinds, size, d)
        d_other = (transposed(d_block) @ _rows(one)).reshape(*leading, others, of_before, d)
        d_late[..., later, :] += d_one * to_late
        d_early[..., before, :] += d_other * of_early
        # a decay is in the segments of all that come behind it, and of all that came before
        for kind, with_own in enumerate(behind):
            of_kind = d_one[..., kind, :, :] * one[..., kind, :, :]
            # (linear-attention.42, linear-attention.93)
            d_log_decay[..., later, :] += sum_from(of_kind, with_own)
        # (linear-attention.42, linear-attention.93)
        d_log_decay[..., before, :] += sum_before((d_other * other).sum(axis=-3))
    return d_late, d_early, d_log_decay


def _rows(x: Array) -> Array:
    """The rows of all kinds, (..., kinds, size, d), below each other."""
    *leading, kinds, size, d = x.shape
    return x.reshape(*leading, kinds * size, d)


def _halves(start: int, stop: int) -> Iterator[tuple[slice, slice]]:
    """The earlier and the later half of these tokens, and of each half."""
    middle = (start + stop) // 2
    if middle > start:
        yield slice(start, middle), slice(middle, stop)
        yield from _halves(start, middle)
        yield from _halves(middle, stop)


def _decays(log_decay: Array, before: slice, later: slice, behind: Sequence[bool]) -> tuple[Array, Array]:
    """What is left of a token of the earlier half at its end, and of that at a token of the later half."""
    to_late = from_start(log_decay[..., later, :])
    kinds = {True: to_late, False: one_before(to_late)} if not all(behind) else {True: to_late}
    of_kinds = np.stack([kinds[x] for x in behind], axis=-3) if len(kinds) > 1 else to_late[..., None, :, :]
    return of_kinds, from_end(log_decay[..., before, :])[..., None, :, :]


def from_start(log_decay: Array) -> Array:
    """The decay from before the first token to behind each."""
    decay: Array = np.exp(np.cumsum(log_decay, axis=-2))
    return decay


def one_before(decay: Array) -> Array:
    """Of what :func:`from_start` gives, the decay from before the first token to before each: one for the first."""
    start = np.ones((*decay.shape[:-2], min(decay.shape[-2], 1), decay.shape[-1]), decay.dtype)
    return np.concatenate([start, decay[..., :-1, :]], axis=-2)


def from_end(log_decay: Array) -> Array:
    """The decay from behind each token to the last."""
    # flipped last: where numbers lie backwards in memory, NumPy's exponential may have another last bit
    decay: Array = np.flip(np.exp(sum_before(np.flip(log_decay, axis=-2))), axis=-2)
    return decay


def sum_from(x: Array, with_own: bool = True) -> Array:
    """The sum over the tokens behind each, and over itself if `with_own`."""
    total = np.flip(x, axis=-2)
    return np.flip(np.cumsum(total, axis=-2) if with_own else sum_before(total), axis=-2)


def sum_before(x: Array) -> Array:
    """The sum over the tokens before each."""
    total = np.zeros_like(x)
    total[..., 1:, :] = np.cumsum(x[..., :-1, :], axis=-2)
    return total
