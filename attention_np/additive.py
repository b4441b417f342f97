r"""Additive attention: a query and a key agree by what a small network says of them.

.. math::

    T_{ij} = \tanh(q_i W_q + k_j W_k + b), \qquad S_{ij} = w_s \cdot T_{ij}, \qquad
    A = \mathrm{softmax}(S), \qquad O = A V

    \frac{\partial L}{\partial W_q} = \sum_{i} q_i^\top \sum_j \frac{\partial L}{\partial S_{ij}}
    \left(w_s \odot (1 - T_{ij} \odot T_{ij})\right)

The derivation, with the gradients of all seven arrays, is ``derivations/additive.md`` of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_attended,
    as_floating,
    as_mask,
    as_optional,
    check_vector,
    check_weight,
    scores_shape,
)
from attention_np._lib.arrays import Array, added, is_finite, sum_to, transposed
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product, backward_times, pair_products, pairs_that_flow, product
from attention_np._lib.second_look import in_range, scores_in_range
from attention_np.linear import affine_gradients, affine_map, affine_tangent
from attention_np.rules import cut

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("query", "key", "value")  # may carry any leading axes: for gradcheck
OP = passes.Op(queries="query", added=("b",))
BLOCK = 2**18  # numbers of the hidden layer at a time, which the cache of a processor core holds


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    value: Array
    w_query: Array
    w_key: Array
    w_score: Array
    b: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_q)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    w_query: Array  # (d_q, h)
    w_key: Array  # (d_k, h)
    w_score: Array  # (h,)
    b: Array | None  # (h,)
    mask: Array | None  # broadcasts to (..., n, m)
    hidden: Array | None  # (..., n, m, h); None where these are more than 2**18 numbers
    scores: Array  # (..., n, m)
    weights: Array  # (..., n, m)
    softmax: softmax.Cache
    output_shape: tuple[int, ...]


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_score: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    mask: npt.ArrayLike | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n queries over m keys and their values, with the score of a one-layer network.

    Parameters
    ----------
    query : array_like of float, (..., n, d_q)
        Or (d_q,): a single query. The leading axes of query, key and value broadcast together.
    key : array_like of float, (..., m, d_k)
    value : array_like of float, (..., m, d_v)
    w_query : array_like of float, (d_q, h)
    w_key : array_like of float, (d_k, h)
    w_score : array_like of float, (h,)
    b : array_like of float, (h,), optional
    mask : array_like of bool, optional
        True where query i may attend to key j; broadcasts to the scores, (..., n, m). By default all to all.

    Returns
    -------
    output : ndarray, (..., n, d_v)
        Or (..., d_v) for a single query. Zero for a query that may attend to nothing.
    cache : Cache
        The named intermediates, of which `hidden` takes n m h numbers. Where these, with the leading axes, are more
        than ``2**18``, `hidden` is None: every pass makes the hidden layer again, a block of queries at a time.
        Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, or `mask` is not boolean.
    ValueError
        If shapes do not fit together.

    Notes
    -----
    :math:`S_{ij} = w_s \cdot \tanh(q_i W_q + k_j W_k + b)` [1]_. A pair that is masked out contributes nothing, even
    where its arrays hold NaN or infinity. Scores and projections that do not fit the dtype have the weights that they
    say.

    References
    ----------
    .. [1] D. Bahdanau, K. Cho, Y. Bengio, "Neural machine translation by jointly learning to align and translate",
       ICLR 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import additive
    >>> query, key, value = np.array([[0.0]]), np.array([[1.0], [-1.0]]), np.array([[10.0], [20.0]])
    >>> output, cache = additive.forward(query, key, value, np.eye(1), np.eye(1), np.ones(1))
    >>> print(cache.weights.round(4), output.round(4))
    [[0.821 0.179]] [[11.7899]]
    >>> print(additive.backward(np.array([[1.0]]), cache).w_score.round(4))
    [-2.2384]
    >>> print(additive.jvp(cache, w_score=np.array([1.0])).round(4))
    [[-2.2384]]
    """
    query, key, value, _ = as_attended(query, key, value, None)
    w_query, w_key = as_floating("w_query", w_query), as_floating("w_key", w_key)
    w_score, b = as_floating("w_score", w_score), as_optional("b", b)
    shape = scores_shape(query, key, value)
    _check_parameters(query, key, w_query, w_key, w_score, b)
    mask = None if mask is None else np.atleast_2d(as_mask(mask, shape))
    return attend(query, key, value, w_query, w_key, w_score, b, mask=mask)


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    w_query: Array,
    w_key: Array,
    w_score: Array,
    b: Array | None,
    mask: Array | None,
) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    blocks = []
    for rows, hidden in hidden_layer(query, key, w_query, w_key, b):
        scores = hidden @ w_score  # (..., r, m) (additive.5, additive.9, additive.10)
        if not is_finite(scores):
            pairs = None if mask is None else cut(mask, rows, slice(None))[..., None, :]
            scores = scores_in_range(scores[..., None, :], w_score[None, :], hidden, 1, None, pairs)[..., 0, :]
        blocks.append(scores)
    scores = np.concatenate(blocks, axis=-2)  # (..., n, m)
    softmax_cache = softmax.normalised(scores, mask=mask)
    weights = softmax_cache.weights  # (..., n, m) (additive.6)
    output = product(weights, value, mask, mean=True)  # (..., n, d_v) (additive.7, additive.10)
    inputs, kept = (query, key, value, w_query, w_key, w_score, b), hidden if len(blocks) == 1 else None
    return output, Cache(*inputs, mask, kept, scores, weights, softmax_cache, output.shape)


def hidden_layer(
    query: Array, key: Array, w_query: Array, w_key: Array, b: Array | None
) -> Iterator[tuple[slice, Array]]:
    """The hidden layer in blocks: which r queries they are, and their units with all keys, (..., r, m, h)."""
    queries, keys = in_range(project, query, key, w_query, w_key, b)  # (..., n, h), (..., m, h)
    n, numbers = queries.shape[-2], prod((*np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2]), *keys.shape[-2:]))
    size = max(BLOCK // max(numbers, 1), 1)
    for start in range(0, max(n, 1), size):
        rows = slice(start, start + size)
        # every query with every key (additive.9)
        hidden = np.tanh(queries[..., rows, None, :] + keys[..., None, :, :])  # (additive.3, additive.4)
        yield rows, hidden


def hidden_blocks(cache: Cache) -> Iterator[tuple[slice, Array]]:
    """The same of a cache: all queries at once where it has their hidden layer."""
    if cache.hidden is not None:
        return iter([(slice(None), cache.hidden)])
    return hidden_layer(cache.query, cache.key, cache.w_query, cache.w_key, cache.b)


def project(query: Array, key: Array, w_query: Array, w_key: Array, b: Array | None) -> tuple[Array, Array]:
    """The queries and the keys on their way into the hidden layer."""
    queries = affine_map(query, w_query, None)  # (..., n, h) (additive.1, additive.8)
    keys = affine_map(key, w_key, b)  # (..., m, h) (additive.2, additive.8)
    return queries, keys


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, d_v)."""
    flows = pairs_that_flow(cache.mask, d_output)

    # forward was output = weights @ value
    d_value = product(transposed(cache.weights), d_output, transposed(flows))  # (..., m, d_v) (additive.12)
    d_weights = sum_to(pair_products(d_output, cache.value, flows), cache.weights.shape)  # (..., n, m) (additive.13)

    # forward was weights = softmax(scores)
    d_scores = softmax.times_jacobian(d_weights, cache.softmax)  # (..., n, m) (additive.14)

    # forward was scores = hidden @ w_score, hidden = tanh(queries + keys)
    h, of_queries = len(cache.w_score), []
    d_keys: Any = None  # and so the next: sums over the blocks
    d_w_score: Any = None
    for rows, hidden in hidden_blocks(cache):
        d_rows = d_scores[..., rows, :]  # (..., r, m)
        slopes = 1 - hidden * hidden  # (..., r, m, h) (additive.18)
        of_queries.append(backward_product(d_rows[..., None, :], slopes)[..., 0, :])  # (..., r, h) (additive.19)
        d_columns, slopes = transposed(d_rows)[..., None, :], slopes.swapaxes(-3, -2)  # (..., m, 1, r), (..., m, r, h)
        d_keys = added(d_keys, backward_product(d_columns, slopes)[..., 0, :])  # (..., m, h) (additive.20)
        d_pairs, of_pairs = d_rows.reshape(1, prod(d_rows.shape)), hidden.reshape(prod(d_rows.shape), h)
        d_w_score = added(d_w_score, backward_product(d_pairs, of_pairs)[0])  # (h,) (additive.16)
    # the factor of every pair's hidden units (additive.15)
    d_queries = backward_times(sum_to(np.concatenate(of_queries, axis=-2), (*cache.query.shape[:-1], h)), cache.w_score)
    d_keys = backward_times(sum_to(d_keys, (*cache.key.shape[:-1], h)), cache.w_score)  # (..., m, h)

    # forward was queries = query @ w_query, keys = key @ w_key + b
    d_query, d_w_query, _ = affine_gradients(d_queries, cache.query, cache.w_query)  # (additive.21, additive.22)
    d_key, d_w_key, d_b = affine_gradients(d_keys, cache.key, cache.w_key)  # (additive.23, additive.24, additive.25)
    gradients = Gradients(
        query=d_query, key=d_key, value=d_value, w_query=d_w_query, w_key=d_w_key, w_score=d_w_score, b=d_b
    )
    return gradients, (d_scores, d_queries, d_keys)


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    key: Tangent = None,
    value: Tangent = None,
    w_query: Tangent = None,
    w_key: Tangent = None,
    w_score: Tangent = None,
    b: Tangent = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: the tangent of the output, (..., n, d_v), from those of the inputs."""
    # (..., n, h) (additive.27)
    d_queries = affine_tangent(cache.query, cache.w_query, query, w_query, None)
    d_keys = affine_tangent(cache.key, cache.w_key, key, w_key, b)  # (..., m, h) (additive.28)
    of_rows = []
    for rows, hidden in hidden_blocks(cache):
        d_sum = d_queries[..., rows, None, :] + d_keys[..., None, :, :]  # (..., r, m, h) (additive.29)
        d_hidden = (1 - hidden * hidden) * d_sum  # (..., r, m, h) (additive.29)
        of_rows.append(d_hidden @ cache.w_score + hidden @ w_score)  # (..., r, m) (additive.30)
    d_scores = np.concatenate(of_rows, axis=-2)  # (..., n, m)
    d_weights = softmax.times_jacobian(d_scores, cache.softmax)  # (..., n, m) (additive.31)
    d_output: Array = product(d_weights, cache.value, cache.mask)  # (..., n, d_v)
    return d_output + product(cache.weights, value, cache.mask), (d_queries, d_keys, d_scores)  # (additive.32)


double_backward = passes.second_derivative(attend, backward)


def _check_parameters(query: Array, key: Array, w_query: Array, w_key: Array, w_score: Array, b: Array | None) -> None:
    check_weight("w_query", w_query, "query", query)
    check_weight("w_key", w_key, "key", key)
    h = w_query.shape[1]
    if w_key.shape[1] != h:
        raise ValueError(
            f"w_query and w_key must map to one number of hidden units, not to {h} and {w_key.shape[1]} "
            f"(w_query.shape={w_query.shape}, w_key.shape={w_key.shape})"
        )
    for name, array in (("w_score", w_score), ("b", b)):
        if array is not None:
            check_vector(name, array, h)
