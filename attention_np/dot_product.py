r"""Wide dot-product attention: each query takes a weighted mean of the values, weighted by how its keys agree.

.. math::

    S = \tfrac{1}{\sqrt{d_k}} Q K^\top + B, \qquad A = \mathrm{softmax}(S), \qquad O = A V

    \frac{\partial L}{\partial Q} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S} K, \qquad
    \frac{\partial L}{\partial K} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S}^{\!\top} Q, \qquad
    \frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial O}

The derivation is ``derivations/dot_product.md``; each line below that carries out one of its equations cites its tag.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import masks, softmax
from attention_np._lib.arguments import (
    as_bias,
    as_flag,
    as_floating,
    as_mask,
    as_number,
    as_optional_tangent,
    as_tangent,
    as_vector,
    check_broadcasts_to,
    check_cache,
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
    real_types,
    sum_to,
    transposed,
    with_query_axis,
    without_query_axis,
)
from attention_np._lib.dropout import Rng, as_probability, draw_key, multipliers
from attention_np._lib.products import (
    backward_product,
    pair_products,
    pairs_that_flow,
    product,
)
from attention_np._lib.second_look import left_range, scores_in_range
from attention_np._lib.text import shortened
from attention_np._lib.wide import widened

__all__ = ["Cache", "Gradients", "backward", "forward", "jvp"]

VECTORIZED = ("query", "key", "value", "bias")  # may carry any leading axes: for gradcheck


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    value: Array
    bias: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_k)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    bias: Array | None  # broadcasts to (..., n, m)
    mask: Array | None  # who attends to whom, all rules together; broadcasts to (..., n, m); None: all to all
    scale: Any  # a real scalar of the precision computed in
    scores: Array  # (..., n, m); a row whose largest is out of range, less that
    weights: Array  # (..., n, m), before dropout
    dropout: Array | None  # (..., n, m): 0 where a weight is dropped, else 1 / (1 - dropout_p)
    softmax: softmax.Cache
    output_shape: tuple[int, ...]


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n queries over m keys and their values.

    Parameters
    ----------
    query : array_like of float, (..., n, d_k)
        Or (d_k,): a single query. The leading axes of all arrays broadcast together.
    key : array_like of float, (..., m, d_k)
    value : array_like of float, (..., m, d_v)
    mask : array_like of bool, optional
        True where query i may attend to key j; broadcasts to the scores, (..., n, m). By default all to all.
    bias : array_like of float, optional
        Added to the scores; broadcasts to them. Minus infinity hides a pair as a mask does; plus infinity takes
        all the weight of its query, in equal shares if there are several.
    scale : float, optional
        What the products of queries and keys are multiplied by, by default ``1 / sqrt(d_k)``.
    is_causal : bool, optional
        Query i attends to keys ``j <= i`` only: ``masks.causal(n, m)``, together with `mask`.
    dropout_p : float, optional
        The probability, in [0, 1), with which a weight is dropped; the others are divided by ``1 - dropout_p``.
    rng : int or numpy.random.Generator, optional
        A seed, or a generator from which one integer is drawn; needed for dropout. Equal seeds drop equal weights.

    Returns
    -------
    output : ndarray, (..., n, d_v)
        Or (..., d_v) for a single query. Zero for a query that may attend to nothing.
    cache : Cache
        The named intermediates. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `mask` is not boolean, or an option is not
        of its type.
    ValueError
        If shapes do not fit together; if `dropout_p` is outside [0, 1), or above zero without an `rng`; if `scale`
        is not finite.

    Notes
    -----
    :math:`O = \mathrm{softmax}(Q K^\top / \sqrt{d_k} + B) V` [1]_. A pair that is masked out contributes nothing,
    even where its arrays hold NaN or infinity.

    Finite arrays have a finite output: where a product, or a sum with the bias, leaves the range of the dtype on its
    way, it is computed again with an exponent of its own. A row whose largest score does not fit, too, has the weights
    that its scores say. A weight below the normal numbers of the dtype loses digits, or is zero, and with it what a
    gradient has of it.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention is all you need", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import dot_product
    >>> query = np.array([[1.0, 0.0]])
    >>> key = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> value = np.array([[10.0], [20.0]])
    >>> output, cache = dot_product.forward(query, key, value)
    >>> print(cache.weights.round(4), output.round(4))
    [[0.8044 0.1956]] [[11.9557]]
    """
    query, key, value = as_floating("query", query), as_floating("key", key), as_floating("value", value)
    bias = None if bias is None else as_bias(bias, query, key, value)
    shape = scores_shape(query, key, value)
    check_features(query, key)
    dropout_p = as_probability(dropout_p, rng)
    dtype = precision(query, key, value, bias)
    scale = as_scale(scale, key.shape[-1], dtype.compute)
    visible = visible_pairs(shape, mask, bias, is_causal)

    q, k, v, b = in_dtype(dtype.compute, query, key, value, bias)
    q = with_query_axis(q, query)
    with quiet():
        dropout = multipliers(draw_key(rng), dropout_p, shape, dtype.compute) if dropout_p else None
        output, softmax_cache = attend(q, k, v, b, visible, scale, dropout)
        output = as_result(without_query_axis(output, query), dtype.result)

    scores, weights = softmax_cache.scores, softmax_cache.weights
    cache = Cache(query, key, value, bias, visible, scale, scores, weights, dropout, softmax_cache, output.shape)
    return output, cache


def attend(
    q: Array, k: Array, v: Array, bias: Array | None, visible: Array | None, scale: Any, dropout: Array | None
) -> tuple[Array, softmax.Cache]:
    """What :func:`forward` computes, for ops: the output, and its softmax. `q`, `k` and `v` may be `widened`."""
    scores = np.asarray(q @ transposed(k) * scale)  # (..., n, m) (dot-product.1, masks.1, scaling.1, scaling.2)
    plain, scores = scores, scores if bias is None else scores + bias  # (dot-product.1, dot-product.2, dot-product.28)
    if not is_finite(scores):
        scores = scores_in_range(plain, q, k, scale, bias, visible)
    cache = softmax.normalised(scores, mask=visible)
    weights = cache.weights  # (..., n, m) (dot-product.3, scaling.42, scaling.47, properties.1)
    # a mean of the values (dot-product.5, masks.3, masks.15, properties.1, properties.2)
    # that are left after dropout (dot-product.33, dot-product.34)
    output = product(drop(weights, dropout), v, visible, mean=dropout is None)  # (..., n, d_v) (dot-product.4)
    return output, cache


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
        `query`, `key`, `value` and `bias` (None if there was none), summed over axes that were broadcast.

    Raises
    ------
    TypeError
        If `cache` is another op's, or `d_output` is not of floating-point numbers.
    ValueError
        If `d_output` does not have the shape of the output.

    Notes
    -----
    With :math:`r_i = \sum_l A_{il} \frac{\partial L}{\partial A_{il}}` and
    :math:`\frac{\partial L}{\partial A} = \frac{\partial L}{\partial O} V^\top`:

    .. math::

        \frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial O}, \qquad
        \frac{\partial L}{\partial S_{ij}} = A_{ij} \left(\frac{\partial L}{\partial A_{ij}} - r_i\right), \qquad
        \frac{\partial L}{\partial Q} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S} K, \qquad
        \frac{\partial L}{\partial K} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S}^{\!\top} Q

    They are derived in ``derivations/dot_product.md``. A query whose row of `d_output` is exactly zero contributes
    nothing to the other gradients, whatever it holds.
    A gradient that does not fit the dtype is infinite; one that is below its normal numbers, or worked out from weights
    or products near them, beside a far larger one in the same array too, loses digits or is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import dot_product
    >>> query = np.array([[1.0, 0.0]])
    >>> key = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> value = np.array([[10.0], [20.0]])
    >>> output, cache = dot_product.forward(query, key, value)
    >>> print(dot_product.backward(np.array([[1.0]]), cache).query.round(4))
    [[-2.2249  2.2249]]
    """
    cache = check_cache(cache, Cache, "dot_product")
    query, compute = cache.query, cache.weights.dtype
    d_output = with_query_axis(as_vector("d_output", d_output, cache.output_shape, compute), query)
    q, k, v = in_dtype(compute, query, cache.key, cache.value)
    q = with_query_axis(q, query)

    with quiet():
        found = pull_back(d_output, q, k, v, cache)
        gradients = _as_given(found, cache)
        if left_range((*found, *gradients), (d_output, q, k, v, cache.scale)):
            gradients = _as_given(pull_back(widened(d_output), q, k, v, cache), cache)
    return gradients


def pull_back(d_output: Array, q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Array, Array, Array]:
    """What :func:`backward` computes, for ops: the gradients of q, k, v and the scores. Arrays may be `widened`."""
    flows = pairs_that_flow(cache.mask, d_output)
    dropped = drop(cache.weights, cache.dropout)

    # forward was output = dropped @ value, dropped = weights * dropout (dot-product.8, dot-product.35)
    # (masks.11, properties.57)
    d_value = product(transposed(dropped), d_output, transposed(flows))  # (..., m, d_v) (dot-product.9, masks.12)
    d_dropped = sum_to(pair_products(d_output, v, flows), dropped.shape)  # (dot-product.10, dot-product.11)
    d_weights = drop(d_dropped, cache.dropout)  # (..., n, m) (dot-product.36)

    # forward was weights = softmax(scores) (dot-product.14, dot-product.18, masks.8, masks.10)
    d_scores = softmax.times_jacobian(d_weights, cache.softmax)  # (..., n, m) (dot-product.17)

    # forward was scores = scale * query @ key^T + bias, and the scale comes along (scaling.43)
    # (masks.13, masks.14, masks.16, scaling.44, scaling.45)
    d_query = backward_product(d_scores, k, cache.scale)  # (..., n, d_k) (dot-product.22, dot-product.23)
    # (dot-product.25, masks.13, masks.14, scaling.44, scaling.45)
    d_key = backward_product(transposed(d_scores), q, cache.scale)  # (..., m, d_k) (dot-product.26)
    return d_query, d_key, d_value, d_scores


def _as_given(found: tuple[Array, Array, Array, Array], cache: Cache) -> Gradients:
    d_query, d_key, d_value, d_scores = found
    query, bias = cache.query, cache.bias
    return Gradients(
        as_gradient(without_query_axis(d_query, query), query),
        as_gradient(d_key, cache.key),  # (dot-product.51)
        as_gradient(d_value, cache.value),  # (dot-product.51)
        None if bias is None else as_gradient(d_scores, bias),  # (dot-product.20, dot-product.31, dot-product.32)
    )


def jvp(
    cache: Cache,
    *,
    query: npt.ArrayLike | None = None,
    key: npt.ArrayLike | None = None,
    value: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
) -> Array:
    r"""Forward mode: how the output moves when the inputs move along a tangent.

    Parameters
    ----------
    cache : Cache
        From :func:`forward`.
    query, key, value, bias : array_like of float, optional
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
        If a tangent does not have the shape of its array, or is given for a bias that there was not.

    Notes
    -----
    :math:`\dot S = (\dot Q K^\top + Q \dot K^\top) / \sqrt{d_k} + \dot B`, then
    :math:`\dot A_{ij} = A_{ij} (\dot S_{ij} - \sum_l A_{il} \dot S_{il})`, then
    :math:`\dot O = \dot A V + A \dot V`; derived in ``derivations/dot_product.md``.
    A tangent that does not fit the dtype is infinite; one below its normal numbers loses digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import dot_product
    >>> output, cache = dot_product.forward(np.ones((1, 2)), np.ones((3, 2)), np.ones((3, 1)))
    >>> print(dot_product.jvp(cache, value=np.array([[3.0], [0.0], [0.0]])))
    [[1.]]
    """
    cache = check_cache(cache, Cache, "dot_product")
    compute = cache.weights.dtype
    d_query = with_query_axis(as_tangent("query", query, cache.query, compute), cache.query)
    d_key = as_tangent("key", key, cache.key, compute)
    d_value = as_tangent("value", value, cache.value, compute)
    d_bias = as_optional_tangent("bias", bias, cache.bias, compute)
    q, k, v = in_dtype(compute, cache.query, cache.key, cache.value)
    q = with_query_axis(q, cache.query)

    with quiet():
        d_output, d_scores = push_forward((d_query, d_key, d_value, d_bias), q, k, v, cache)
        if left_range((d_output, d_scores), (d_query, d_key, d_value, d_bias, q, k, v, cache.scale)):
            wide = (widened(d_query), widened(d_key), widened(d_value), d_bias)
            d_output = np.asarray(push_forward(wide, q, k, v, cache)[0])
        dtype = precision(cache.query, cache.key, cache.value, cache.bias).result
        return as_result(without_query_axis(d_output, cache.query), dtype)


def push_forward(tangents: Sequence[Any], q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Array]:
    """What :func:`jvp` computes, for ops: the tangents of output and scores. Arrays may be `widened`."""
    d_query, d_key, d_value, d_bias = tangents
    d_products = d_query @ transposed(k) + q @ transposed(d_key)  # (..., n, m) (dot-product.40, dot-product.41)
    d_scores = d_products * cache.scale  # (..., n, m) (dot-product.40, dot-product.41)
    if d_bias is not None:
        d_scores = d_scores + d_bias  # (dot-product.40, dot-product.41)
    d_weights = softmax.times_jacobian(d_scores, cache.softmax)  # (..., n, m) (dot-product.42, dot-product.43)

    # forward was output = dropped @ value: a term for the weights that move (dot-product.45)
    of_weights = product(drop(d_weights, cache.dropout), v, cache.mask)  # (..., n, d_v) (dot-product.44)
    # and one for the values (dot-product.44)
    d_output = of_weights + product(drop(cache.weights, cache.dropout), d_value, cache.mask)  # (dot-product.45)
    return d_output, d_scores


def check_features(query: Array, key: Array) -> None:
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key has {key.shape[-1]} features but query has {query.shape[-1]} "
            f"(key.shape={key.shape}, query.shape={query.shape})"
        )


def visible_pairs(
    shape: tuple[int, ...], mask: npt.ArrayLike | None, bias: Array | None, is_causal: bool
) -> Array | None:
    """Who attends to whom by all rules together, for scores of the given `shape`; None: all to all.

    Parameters
    ----------
    shape : tuple of int
        Of the scores, (..., n, m).
    mask, bias, is_causal
        As for :func:`forward`.

    Raises
    ------
    TypeError
        If `mask` is not boolean.
    ValueError
        If `mask` or `bias` does not broadcast to the scores.
    """
    rules = []
    if mask is not None:
        rules.append(as_mask(mask, shape))
    if as_flag("is_causal", is_causal):
        rules.append(masks.causal(*shape[-2:]))  # (masks.33, properties.48)
    if bias is not None:
        check_broadcasts_to("bias", bias, shape)
        hidden = bias.real == -np.inf  # (masks.5)
        if hidden.any():
            rules.append(~hidden)
    return np.atleast_2d(reduce(operator.and_, rules)) if rules else None  # (masks.49)


def as_scale(scale: Any, d_k: int, compute: np.dtype[Any]) -> Any:
    """The scale in the precision that is computed in, so that it neither upcasts nor rounds."""
    real, wide = real_types(compute)
    if scale is None:
        return real(1 / np.sqrt(wide(max(d_k, 1))))  # (scaling.2); without features the products are zero anyway
    with quiet():
        number = real(as_number("scale", scale))
    if not np.isfinite(number):
        raise ValueError(f"scale must be finite, not {shortened(scale)} in {np.dtype(real)}")
    return number


def drop(weights: Array, dropout: Array | None) -> Array:
    """What the values are multiplied by: `weights`, or what dropout leaves of them."""
    return weights if dropout is None else weights * dropout
