r"""Additive attention: a query and a key agree by what a small network says of them.

.. math::

    T_{ij} = \tanh(q_i W_q + k_j W_k + b), \qquad S_{ij} = w_s \cdot T_{ij}, \qquad
    A = \mathrm{softmax}(S), \qquad O = A V

    \frac{\partial L}{\partial W_q} = \sum_{i} q_i^\top \sum_j \frac{\partial L}{\partial S_{ij}}
    \left(w_s \odot (1 - T_{ij} \odot T_{ij})\right)

The derivation, with the gradients of all seven arrays, is ``derivations/additive.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._lib.arguments import (
    as_floating,
    as_mask,
    as_optional_tangent,
    as_tangent,
    as_vector,
    check_cache,
    check_vector,
    check_weight,
    scores_shape,
)
from attention_np._lib.arrays import (
    Array,
    as_gradient,
    as_result,
    in_dtype,
    is_finite,
    precision,
    quiet,
    sum_to,
    transposed,
    with_query_axis,
    without_query_axis,
)
from attention_np._lib.products import (
    backward_times,
    linear,
    linear_backward,
    pair_products,
    pairs_that_flow,
    product,
)
from attention_np._lib.second_look import left_range, scores_in_range
from attention_np._lib.wide import widened

__all__ = ["Cache", "Gradients", "backward", "forward", "jvp"]

VECTORIZED = ("query", "key", "value")  # may carry any leading axes: for gradcheck


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
    hidden: Array  # (..., n, m, h)
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
        The named intermediates, of which `hidden` takes n m h numbers. Refers to the inputs, without a copy.

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
    """
    query, key, value = as_floating("query", query), as_floating("key", key), as_floating("value", value)
    w_query, w_key = as_floating("w_query", w_query), as_floating("w_key", w_key)
    w_score, b = as_floating("w_score", w_score), None if b is None else as_floating("b", b)
    shape = scores_shape(query, key, value)
    _check_parameters(query, key, w_query, w_key, w_score, b)
    visible = None if mask is None else np.atleast_2d(as_mask(mask, shape))

    dtype = precision(query, key, value, w_query, w_key, w_score, b)
    arrays = (query, key, value, w_query, w_key, w_score, b)
    q, k, v, w_q, w_k, w_s, bias = in_dtype(dtype.compute, *arrays)
    q = with_query_axis(q, query)
    with quiet():
        queries, keys = _projected(q, k, w_q, w_k, bias)
        if left_range((queries, keys), (q, k, w_q, w_k, bias)):
            queries, keys = _projected(widened(q), widened(k), w_q, w_k, bias)
        # every query with every key (additive.9)
        hidden = np.tanh(queries[..., :, None, :] + keys[..., None, :, :])  # (..., n, m, h) (additive.3, additive.4)
        scores = hidden @ w_s  # (..., n, m) (additive.5, additive.9, additive.10)
        if not is_finite(scores):
            rows = None if visible is None else visible[..., None, :]
            scores = scores_in_range(scores[..., None, :], w_s[None, :], hidden, 1, None, rows)[..., 0, :]
        softmax_cache = softmax.normalised(scores, mask=visible)
        weights = softmax_cache.weights  # (..., n, m) (additive.6)
        output = product(weights, v, visible, mean=True)  # (..., n, d_v) (additive.7, additive.10)
        output = as_result(without_query_axis(output, query), dtype.result)
    return output, Cache(*arrays, visible, hidden, scores, weights, softmax_cache, output.shape)


def _projected(q: Array, k: Array, w_q: Array, w_k: Array, b: Array | None) -> tuple[Array, Array]:
    queries = linear(q, w_q, None)  # (..., n, h) (additive.1, additive.8)
    keys = linear(k, w_k, b)  # (..., m, h) (additive.2, additive.8)
    return queries, keys


def backward(d_output: npt.ArrayLike, cache: Cache) -> Gradients:
    r"""The gradient of a loss with respect to every array of :func:`forward`.

    Parameters
    ----------
    d_output : array_like of float, (..., n, d_v)
        The gradient of the loss with respect to the output.
    cache : Cache
        From :func:`forward`.

    Returns
    -------
    Gradients
        Of all seven arrays (`b`: None if there was none), summed over axes that were broadcast.

    Raises
    ------
    TypeError
        If `cache` is another op's, or `d_output` is not of floating-point numbers.
    ValueError
        If `d_output` does not have the shape of the output.

    Notes
    -----
    From the gradient of the scores, with :math:`Z_{ij}` the sum inside the tanh:

    .. math::

        \frac{\partial L}{\partial Z_{ij}} = \frac{\partial L}{\partial S_{ij}} w_s \odot (1 - T_{ij} \odot T_{ij}),
        \qquad \frac{\partial L}{\partial W_q} = \sum_i q_i^\top \sum_j \frac{\partial L}{\partial Z_{ij}},
        \qquad \frac{\partial L}{\partial b} = \sum_{ij} \frac{\partial L}{\partial Z_{ij}},
        \qquad \frac{\partial L}{\partial w_s} = \sum_{ij} \frac{\partial L}{\partial S_{ij}} T_{ij}

    These and the others are derived in ``derivations/additive.md``.
    A query whose row of `d_output` is exactly zero contributes nothing to the other gradients, whatever it holds.
    A gradient that does not fit the dtype is infinite; one below its normal numbers loses digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import additive
    >>> query, key, value = np.array([[0.0]]), np.array([[1.0], [-1.0]]), np.array([[10.0], [20.0]])
    >>> output, cache = additive.forward(query, key, value, np.eye(1), np.eye(1), np.ones(1))
    >>> print(additive.backward(np.array([[1.0]]), cache).w_score.round(4))
    [-2.2384]
    """
    cache = check_cache(cache, Cache, "additive")
    d_output = as_vector("d_output", d_output, cache.output_shape, cache.weights.dtype)
    d_output = with_query_axis(d_output, cache.query)
    arrays = _arrays(cache)

    with quiet():
        gradients, between = _pull_back(d_output, arrays, cache)
        if left_range((*gradients, *between), (d_output, *arrays)):
            gradients, _ = _pull_back(widened(d_output), arrays, cache)
    return gradients


def _pull_back(d_output: Array, arrays: Sequence[Array], cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """What :func:`backward` computes, of a `d_output` that may be `widened`, and what is on the way to it."""
    q, k, v, w_q, w_k, w_s = arrays
    hidden = cache.hidden
    flows = pairs_that_flow(cache.mask, d_output)

    # forward was output = weights @ value
    d_value = product(transposed(cache.weights), d_output, transposed(flows))  # (..., m, d_v) (additive.12)
    d_weights = sum_to(pair_products(d_output, v, flows), cache.weights.shape)  # (..., n, m) (additive.13)

    # forward was weights = softmax(scores)
    d_scores = softmax.times_jacobian(d_weights, cache.softmax)  # (..., n, m) (additive.14)

    # forward was scores = hidden @ w_score, hidden = tanh(queries + keys)
    d_score = d_scores[..., None]  # (..., n, m, 1)
    d_hidden, d_w_score, _ = linear_backward(d_score, hidden, w_s[:, None])  # (additive.15, additive.16)
    d_sum = backward_times(d_hidden, 1 - hidden * hidden)  # (..., n, m, h) (additive.18)
    d_queries = sum_to(d_sum.sum(axis=-2), (*q.shape[:-1], w_q.shape[1]))  # (..., n, h) (additive.19)
    d_keys = sum_to(d_sum.sum(axis=-3), (*k.shape[:-1], w_k.shape[1]))  # (..., m, h) (additive.20)

    # forward was queries = query @ w_query, keys = key @ w_key + b
    d_query, d_w_query, _ = linear_backward(d_queries, q, w_q)  # (additive.21, additive.22)
    d_key, d_w_key, d_b = linear_backward(d_keys, k, w_k)  # (additive.23, additive.24, additive.25)

    gradients = Gradients(
        as_gradient(without_query_axis(d_query, cache.query), cache.query),
        as_gradient(d_key, cache.key),
        as_gradient(d_value, cache.value),
        as_gradient(d_w_query, cache.w_query),
        as_gradient(d_w_key, cache.w_key),
        as_gradient(d_w_score[:, 0], cache.w_score),
        None if cache.b is None else as_gradient(d_b, cache.b),
    )
    return gradients, (d_scores, d_queries, d_keys)


def jvp(
    cache: Cache,
    *,
    query: npt.ArrayLike | None = None,
    key: npt.ArrayLike | None = None,
    value: npt.ArrayLike | None = None,
    w_query: npt.ArrayLike | None = None,
    w_key: npt.ArrayLike | None = None,
    w_score: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
) -> Array:
    r"""Forward mode: how the output moves when the inputs move along a tangent.

    Parameters
    ----------
    cache : Cache
        From :func:`forward`.
    query, key, value, w_query, w_key, w_score, b : array_like of float, optional
        The tangents, each of the shape of its array; one that is left out is zero.

    Returns
    -------
    ndarray, (..., n, d_v)
        The tangent of the output.

    Raises
    ------
    TypeError
        If `cache` is another op's, or a tangent is not of floating-point numbers.
    ValueError
        If a tangent does not have the shape of its array, or is given for a `b` that there was not.

    Notes
    -----
    :math:`\dot S_{ij} = \dot w_s \cdot T_{ij} + w_s \cdot ((1 - T_{ij} \odot T_{ij}) \odot \dot Z_{ij})` with
    :math:`\dot Z_{ij} = \dot q_i W_q + q_i \dot W_q + \dot k_j W_k + k_j \dot W_k + \dot b`; then as in
    :func:`attention_np.dot_product.jvp`. Derived in ``derivations/additive.md``.
    A tangent that does not fit the dtype is infinite; one below its normal numbers loses digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import additive
    >>> query, key, value = np.array([[0.0]]), np.array([[1.0], [-1.0]]), np.array([[10.0], [20.0]])
    >>> output, cache = additive.forward(query, key, value, np.eye(1), np.eye(1), np.ones(1))
    >>> print(additive.jvp(cache, w_score=np.array([1.0])).round(4))
    [[-2.2384]]
    """
    cache = check_cache(cache, Cache, "additive")
    compute = cache.weights.dtype
    d_query = with_query_axis(as_tangent("query", query, cache.query, compute), cache.query)
    d_key = as_tangent("key", key, cache.key, compute)
    d_value = as_tangent("value", value, cache.value, compute)
    d_w_query = as_tangent("w_query", w_query, cache.w_query, compute)
    d_w_key = as_tangent("w_key", w_key, cache.w_key, compute)
    d_w_score = as_tangent("w_score", w_score, cache.w_score, compute)
    d_b = as_optional_tangent("b", b, cache.b, compute)
    tangents = d_query, d_key, d_value, d_w_query, d_w_key, d_w_score, d_b
    arrays = _arrays(cache)

    with quiet():
        d_output, between = _push_forward(tangents, arrays, cache)
        if left_range((d_output, *between), (*tangents, *arrays)):
            wide = [widened(x) for x in tangents]
            d_output = np.asarray(_push_forward(wide, arrays, cache)[0])
        dtype = precision(*cache[:7]).result
        return as_result(without_query_axis(d_output, cache.query), dtype)


def _push_forward(tangents: Sequence[Any], arrays: Sequence[Array], cache: Cache) -> tuple[Array, tuple[Array, ...]]:
    """What :func:`jvp` computes, of tangents that may be `widened`, and what is on the way to it."""
    d_query, d_key, d_value, d_w_query, d_w_key, d_w_score, d_b = tangents
    q, k, v, w_q, w_k, w_s = arrays
    hidden = cache.hidden
    d_queries = d_query @ w_q + q @ d_w_query  # (..., n, h) (additive.27)
    d_keys = linear(d_key, w_k, d_b) + k @ d_w_key  # (..., m, h) (additive.28)
    d_sum = d_queries[..., :, None, :] + d_keys[..., None, :, :]  # (..., n, m, h) (additive.29)
    d_hidden = (1 - hidden * hidden) * d_sum  # (..., n, m, h) (additive.29)
    d_scores = d_hidden @ w_s + hidden @ d_w_score  # (..., n, m) (additive.30)
    d_weights = softmax.times_jacobian(d_scores, cache.softmax)  # (..., n, m) (additive.31)
    d_output = product(d_weights, v, cache.mask) + product(cache.weights, d_value, cache.mask)  # (additive.32)
    return d_output, (d_queries, d_keys, d_scores)


def _arrays(cache: Cache) -> tuple[Array, ...]:
    """All arrays but b, in the precision computed in."""
    q, *others = in_dtype(cache.weights.dtype, *cache[:6])
    return (with_query_axis(q, cache.query), *others)


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
