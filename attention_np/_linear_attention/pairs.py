"""How a later token meets an earlier one of its chunk, through all that is forgotten in between.

The decay between token j and token i is the product of those of the tokens j + 1 to i, so the logarithms of a *segment*
are summed. A chunk is cut in two, and so are its halves, down to single tokens: where i is in the later half and j in
the earlier, the segment ends in one and begins in the other, and the decay is a factor for i times a factor for j. So
all pairs are products of matrices, no sum is ever taken off another, and no exponential is of more than is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_np._lib.arrays import Array, transposed


def decayed_products(late: Array, early: Array, log_decay: Array) -> Array:
    """The decayed product of each token i of a chunk with each token j before it: zero where j is not before i.

    Parameters
    ----------
    late, early : ndarray, (..., c, d)
    log_decay : ndarray, (..., c, d)

    Returns
    -------
    ndarray, (..., c, c)
    """
    c = late.shape[-2]
    leading = np.broadcast_shapes(late.shape[:-2], early.shape[:-2], log_decay.shape[:-2])
    dtype = np.result_type(late.dtype, early.dtype, log_decay.dtype)
    products = np.zeros_like(log_decay, dtype, "C", shape=(*leading, c, c))
    for before, behind in _halves(0, c):
        to_late, of_early = _decays(log_decay, before, behind)
        one, other = late[..., behind, :] * to_late, early[..., before, :] * of_early
        products[..., behind, before] = one @ transposed(other)  # (linear-attention.50)
    return products


def decayed_products_backward(
    d_products: Array, late: Array, early: Array, log_decay: Array
) -> tuple[Array, Array, Array]:
    """The gradients of :func:`decayed_products` with respect to its three arrays."""
    shape = (*d_products.shape[:-2], *late.shape[-2:])
    dtype = np.result_type(d_products.dtype, late.dtype, early.dtype, log_decay.dtype)
    d_late, d_early, d_log_decay = (np.zeros_like(log_decay, dtype, "C", shape=shape) for _ in range(3))
    for before, behind in _halves(0, late.shape[-2]):
        to_late, of_early = _decays(log_decay, before, behind)
        one, other = late[..., behind, :] * to_late, early[..., before, :] * of_early
        d_block = d_products[..., behind, before]
        d_one, d_other = d_block @ other, transposed(d_block) @ one
        d_late[..., behind, :] += d_one * to_late
        d_early[..., before, :] += d_other * of_early
        # a decay is in the segments of all that come behind it, and of all that came before
        d_log_decay[..., behind, :] += sum_from(d_one * one)  # (linear-attention.46, linear-attention.51)
        d_log_decay[..., before, :] += sum_before(d_other * other)  # (linear-attention.46, linear-attention.51)
    return d_late, d_early, d_log_decay


def _halves(start: int, stop: int) -> Iterator[tuple[slice, slice]]:
    """The earlier and the later half of these tokens, and of each half."""
    middle = (start + stop) // 2
    if middle > start:
        yield slice(start, middle), slice(middle, stop)
        yield from _halves(start, middle)
        yield from _halves(middle, stop)


def _decays(log_decay: Array, before: slice, behind: slice) -> tuple[Array, Array]:
    """What is left of a token of the earlier half at its end, and of that at a token of the later half."""
    return from_start(log_decay[..., behind, :]), from_end(log_decay[..., before, :])


def from_start(log_decay: Array) -> Array:
    """The decay from before the first token to each."""
    decay: Array = np.exp(np.cumsum(log_decay, axis=-2))
    return decay


def from_end(log_decay: Array) -> Array:
    """The decay from behind each token to the last."""
    # flipped last: where numbers lie backwards in memory, NumPy's exponential may have another last bit
    decay: Array = np.flip(np.exp(sum_before(np.flip(log_decay, axis=-2))), axis=-2)
    return decay


def sum_from(x: Array) -> Array:
    """The sum over each token and those behind it."""
    return np.flip(np.cumsum(np.flip(x, axis=-2), axis=-2), axis=-2)


def sum_before(x: Array) -> Array:
    """The sum over the tokens before each."""
    total = np.zeros_like(x)
    total[..., 1:, :] = np.cumsum(x[..., :-1, :], axis=-2)
    return total
