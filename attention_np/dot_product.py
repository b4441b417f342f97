r"""Scaled dot-product attention: each query takes a weighted mean of the values, weighted by how its keys agree.

.. math::

    S = \tfrac{1}{\sqrt{d_k}} Q K^\top + B, \qquad A = \mathrm{softmax}(S), \qquad O = A V

    \frac{\partial L}{\partial Q} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S} K, \qquad
    \frac{\partial L}{\partial K} = \tfrac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S}^{\!\top} Q, \qquad
    \frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial O}

The order of all that may be asked for: scale, softcap, bias, mask, sink, softmax, dropout, values. The derivation is
``derivations/dot_product.md`` of the package; each line below that carries out one of its equations cites its tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import biases, softmax, weightings
from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_attended,
    as_row_scale,
    as_scale,
    as_sink,
    as_softcap,
    check_features,
    scores_shape,
)
from attention_np._lib.arrays import Array, added, is_finite, is_row_scale, precision, sum_to, transposed
from attention_np._lib.dropout import Rng, as_probability, draw, drop
from attention_np._lib.dual import dual, velocity_of, with_slope
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product, backward_times, pair_products, pairs_that_flow, product
from attention_np._lib.second_look import all_finite, clipped_scores, scores_and_tops
from attention_np._lib.wide import narrowed, widened
from attention_np._softmax import rows
from attention_np.biases import Bias, OfBlock, Operands
from attention_np.masks import visible_pairs
from attention_np.weightings import Weighting

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("query", "key", "value", "bias")  # may carry any leading axes: for gradcheck
OP = passes.Op(queries="query", added=("bias", "sink"))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    value: Array
    bias: Array | None  # a list of arrays for a list
    sink: Array | None
    scale: Array | None = None  # None of a number


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_k)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    bias: Array | None  # broadcasts to (..., n, m); or a Bias; or a list of them
    sink: Array | None  # broadcasts to the leading axes of the scores
    scale: Any  # broadcasts to (..., n, 1); or a real scalar of the precision computed in
    mask: Array | None  # who attends to whom, all rules together; broadcasts to (..., n, m); None: all to all
    softcap: Any  # the same, or None
    weights_by: Weighting | None  # None: softmax
    uncapped: Array | None  # (..., n, m), what the softcap is of, if there is one
    scores: Array  # (..., n, m); a row whose largest is out of range, less that
    weights: Array  # (..., n, m), before dropout
    dropout: Array | None  # (..., n, m): 0 where a weight is dropped, else 1 / (1 - dropout_p)
    softmax: Any  # its cache, with a sink of (..., n, m + 1): the sink comes last; or that of `weights_by`
    output_shape: tuple[int, ...]


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | Bias | Sequence[npt.ArrayLike | Bias] | None = None,
    scale: npt.ArrayLike | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
    softcap: float | None = None,
    sink: npt.ArrayLike | None = None,
    weights_by: Weighting | None = None,
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
    bias : array_like of float or Bias, or list of them, optional
        Added to the scores; broadcasts to them. Minus infinity hides a pair as a mask does; plus infinity takes
        all the weight of its query, in equal shares if there are several. Or one of :mod:`attention_np.biases`, of
        whose array the gradient is then. A list is a list of biases, which add; then so are gradient and tangent. A sum
        of them that does not fit the dtype is infinite.
    scale : float or array_like of float, optional
        What the products of queries and keys are multiplied by, by default ``1 / sqrt(d_k)``. With at least one axis it
        broadcasts to (..., n, 1), a number for each query, and is an input with a gradient.
    is_causal : bool, optional
        Query i attends to keys ``j <= i`` only: ``masks.causal(n, m)``, together with `mask`.
    dropout_p : float, optional
        The probability, in [0, 1), with which a weight is dropped; the others are divided by ``1 - dropout_p``.
    rng : int or numpy.random.Generator, optional
        A seed, or a generator from which one integer is drawn; needed for dropout. Equal seeds drop equal weights.
    softcap : float, optional
        Above zero: a product s of a query and a key, scaled, becomes ``softcap * tanh(s / softcap)``, before the bias.
    sink : array_like of float, (...), optional
        One more score for each query, without a value: what weight it takes goes nowhere. Broadcasts to the leading
        axes of the scores, as one number for each head; 0.0 is "softmax off by one".
    weights_by : Weighting, optional
        One of :mod:`attention_np.weightings`: how scores become weights, by default by softmax. It takes no sink.

    Returns
    -------
    output : ndarray, (..., n, d_v)
        Or (..., d_v) for a single query. Zero for a query that may attend to nothing, whatever its sink.
    cache : Cache
        The named intermediates. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `mask` is not boolean, or an option is not
        of its type.
    ValueError
        If shapes do not fit together; if `dropout_p` is outside [0, 1), or above zero without an `rng`; if `scale`
        is not finite, or `softcap` not finite and above zero; if there are both a sink and `weights_by`.

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
    >>> print(dot_product.backward(np.array([[1.0]]), cache).query.round(4))
    [[-2.2249  2.2249]]
    >>> print(dot_product.jvp(cache, value=np.array([[3.0], [0.0]])).round(4))
    [[2.4133]]
    """
    query, key, value, bias = as_attended(query, key, value, bias)
    shape = scores_shape(query, key, value)
    check_features(query, key)
    biases.check(bias, shape, key.shape[-1])
    sink, of_rows = as_sink(sink, shape, query, key, value), as_row_scale(scale, shape)
    dropout_p = as_probability(dropout_p, rng)
    if weights_by is not None:
        weightings.check(weights_by, sink)
    compute = precision(query, key, value, *biases.terms_of(bias), sink, of_rows).compute
    softcap = as_softcap(softcap, compute)
    mask = visible_pairs(shape, mask, bias, is_causal)
    dropout = draw(rng, dropout_p, shape, compute)
    scale = as_scale(scale, key.shape[-1], compute) if of_rows is None else of_rows
    options: Any = {"mask": mask, "softcap": softcap, "dropout": dropout, "weights_by": weights_by}
    return attend(query, key, value, bias, sink, scale, **options)


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Any,
    sink: Array | None,
    scale: Any,
    mask: Array | None,
    softcap: Any,
    dropout: Array | None,
    weights_by: Any = None,
) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    arguments = query, key, bias, sink, scale, mask, softcap, weights_by
    softmax_cache, scores, uncapped, mask, _ = weights_of_scores(*arguments)
    weights = softmax_cache.weights[..., : scores.shape[-1]]  # (..., n, m) (dot-product.3, dot-product.38)
    # a mean of the values that are left after dropout (dot-product.56)
    is_mean = dropout is None and (weights_by is None or weights_by.sums_to_one)
    output = product(drop(weights, dropout), value, mask, mean=is_mean)  # (..., n, d_v) (dot-product.4)
    inputs = query, key, value, bias, sink, scale
    made = uncapped, scores, weights, dropout, softmax_cache, output.shape
    return output, Cache._make((*inputs, mask, softcap, weights_by, *made))


def weights_of_scores(
    query: Array,
    key: Array,
    bias: Any,
    sink: Array | None,
    scale: Any,
    mask: Array | None,
    softcap: Any,
    weights_by: Weighting | None = None,
) -> tuple[Any, Array, Array | None, Array | None, Array | None]:
    """Softmax's cache; the scores, and those before a softcap; the mask, with what biases hide; what rows are less."""
    scaled, factor = with_scale(query, scale)
    products = narrowed(scaled @ transposed(key) * factor)  # (..., n, m) (dot-product.1)
    uncapped = tops = None
    if softcap is not None:
        uncapped = products if is_finite(products) else clipped_scores(products, scaled, key, factor, None)
        products = capped(uncapped, softcap)  # (..., n, m) (dot-product.33)
    term = bias
    if reads_operands(bias):
        term = biases.term(bias, operands(products, query, key, scale))  # (..., n, m)
        mask = visible_pairs(products.shape, mask, term, is_causal=False)
    scores = products if term is None else products + term  # (..., n, m) (dot-product.28)
    finite = is_finite(scores)
    if not finite:
        of_products = products, scaled, key, factor, term
        scores, tops = scores_and_tops(*of_products, mask)
        if weights_by is not None:
            scores = weights_by.in_range(clipped_scores(*of_products), scores, tops)
    if weights_by is not None:
        _, cache = weightings.weights_and_cache.mathematics(scores, mask, weights_by)
    elif sink is None:
        cache = softmax.normalised(scores, mask=mask, finite=finite)
    else:
        cache = softmax.normalised(rows.of_scores_and_sink(scores, sink, mask, tops))
    return cache, scores, uncapped, mask, tops


def with_scale(query: Array, scale: Any) -> tuple[Array, Any]:
    """The queries with a scale that each has of its own, and the number that products of them are multiplied by."""
    if not is_row_scale(scale):
        return query, scale
    scaled = query * scale  # (..., n, d_k) (dot-product.46)
    if not is_finite(scaled) and (all_finite(query, -1) & np.isfinite(scale) & ~all_finite(scaled, -1)).any():
        scaled = widened(query) * scale
    return scaled, 1


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, d_v)."""
    flows = pairs_that_flow(cache.mask, d_output)
    dropped = drop(cache.weights, cache.dropout)

    # forward was output = dropped @ value, dropped = weights * dropout (dot-product.58)
    d_value = product(transposed(dropped), d_output, transposed(flows))  # (..., m, d_v) (dot-product.9)
    d_dropped = sum_to(pair_products(d_output, cache.value, flows), dropped.shape)  # (..., n, m) (dot-product.11)
    d_weights = drop(d_dropped, cache.dropout)  # (..., n, m) (dot-product.59)

    # forward was weights = softmax(scores), or by what else they are
    d_scores, d_sink = scores_gradient(d_weights, cache)  # (..., n, m), (...)

    # forward was scores = capped(products) + bias
    of_bias = bias_gradients(cache.bias, d_scores, cache.query, cache.key, cache.scale)  # (dot-product.20)
    d_products = d_scores  # (..., n, m)
    if cache.uncapped is not None:
        d_products = backward_times(d_scores, slope_of_capped(cache.uncapped, cache.softcap))  # (dot-product.36)

    # forward was products = query @ key^T * scale
    d_query, d_key, d_scale = products_gradients(d_products, of_bias, cache.query, cache.key, cache.scale)
    gradients = Gradients(query=d_query, key=d_key, value=d_value, bias=of_bias.array, sink=d_sink, scale=d_scale)
    return gradients, (d_scores, d_products)


def products_gradients(
    d_products: Array, of_bias: OfBlock, query: Array, key: Array, scale: Any
) -> tuple[Array, Array, Array | None]:
    """The gradients of queries, keys and a scale that is an array; for second derivatives of dual numbers."""
    # forward was products = scaled @ key^T * factor, and the factor comes along (dot-product.54)
    scaled, factor = with_scale(query, scale)
    d_scaled = backward_product(d_products, key, factor)  # (..., n, d_k) (dot-product.22)
    d_key = backward_product(transposed(d_products), scaled, factor)  # (..., m, d_k) (dot-product.26)
    if of_bias.query is not None:  # which the bias has read
        d_scaled = d_scaled + of_bias.query * factor
    if of_bias.key is not None:
        d_key = d_key + of_bias.key
    d_query, d_scale = through_scale(d_scaled, query, scale)
    return d_query, d_key, added(d_scale, of_bias.scale)


def through_scale(d_scaled: Array, query: Array, scale: Any) -> tuple[Array, Array | None]:
    """The gradients of the queries, and of a scale that is an array, from that of the scaled queries."""
    if not is_row_scale(scale):
        return d_scaled, None
    # forward was scaled = query * scale
    d_query = backward_times(d_scaled, scale)  # (..., n, d_k) (dot-product.50)
    d_scale = backward_times(d_scaled, query).sum(axis=-1, keepdims=True)  # (..., n, 1) (dot-product.52)
    return d_query, d_scale


def scores_gradient(d_weights: Array, cache: Cache) -> tuple[Array, Array | None]:
    """The gradients of the scores, (..., n, m), and of the sink, (...)."""
    if cache.weights_by is not None:
        return weightings.scores_gradient(d_weights, cache.softmax), None
    if cache.sink is None:
        return softmax.times_jacobian(d_weights, cache.softmax), None  # (..., n, m) (dot-product.17)
    # a sink is one more column, without a value
    d_columns = softmax.times_jacobian(rows.with_column(d_weights, 0, cache.sink), cache.softmax)  # (dot-product.41)
    return d_columns[..., :-1], d_columns[..., -1].sum(axis=-1)  # (..., n, m), (...) (dot-product.42)


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    key: Tangent = None,
    value: Tangent = None,
    bias: Tangent = None,
    sink: Tangent = None,
    scale: Tangent = None,
) -> tuple[Array, tuple[Array]]:
    """Forward mode: how the output, (..., n, d_v), moves when the inputs move along a tangent."""
    d_scores = scores_tangent(cache, query, key, bias, scale)[0]
    if cache.weights_by is not None:
        d_weights = weightings.weights_tangent(d_scores, cache.softmax)
    else:
        d_columns = rows.with_column(d_scores, None if sink is None else sink[..., None, None], cache.sink)
        d_weights = softmax.times_jacobian(d_columns, cache.softmax)  # (dot-product.65, dot-product.44)
        d_weights, _ = rows.without_column(d_weights, cache.sink)  # (..., n, m)
    return output_tangent(cache, d_weights, value), (d_scores,)


def scores_tangent(
    cache: Cache, d_query: Array | None, d_key: Array | None, d_bias: Any, d_scale: Array | None
) -> tuple[Any, Any]:
    """The tangent of the scores, and that of the scaled products that they are made of; None is zero, in both ways."""
    scaled, factor = with_scale(cache.query, cache.scale)
    d_scaled = d_query
    if is_row_scale(cache.scale):  # (..., n, d_k) (dot-product.53)
        d_scaled = added(
            None if d_query is None else d_query * cache.scale, None if d_scale is None else cache.query * d_scale
        )
    of_query = None if d_scaled is None else pair_products(d_scaled, cache.key)  # (..., n, m)
    of_key = None if d_key is None else pair_products(scaled, d_key)  # (..., n, m)
    d_scores = d_products = added(of_query, of_key)
    if d_products is not None:
        d_scores = d_products = d_products * factor  # (..., n, m) (dot-product.63, dot-product.100)
        if cache.uncapped is not None:
            d_scores = backward_times(d_products, slope_of_capped(cache.uncapped, cache.softcap))  # (dot-product.37)
    if reads_operands(cache.bias):
        of_inputs = (cache.query, d_query), (cache.key, d_key), (cache.scale, d_scale)
        query, key, scale = (x if d is None else dual(x, d) for x, d in of_inputs)
        d_bias = biases.tangent(cache.bias, d_bias, operands(cache.scores, query, key, scale))
    return added(d_scores, d_bias), d_products


def output_tangent(cache: Cache, d_weights: Array, d_value: Array) -> Array:
    """The tangent of the output from those of the weights and the values."""
    # forward was output = dropped @ value: a term for the tangent of the weights
    of_weights = product(drop(d_weights, cache.dropout), cache.value, cache.mask)  # (..., n, d_v) (dot-product.67)
    # and one for that of the values
    d_output: Array = of_weights + product(drop(cache.weights, cache.dropout), d_value, cache.mask)  # (dot-product.68)
    return d_output


def capped(products: Array, softcap: Any) -> Array:
    """Scores that are never beyond the softcap."""
    scores: Array = softcap * np.tanh(products / softcap)  # (dot-product.33)
    return scores


def bend_of_capped(products: Array, slope: Array, softcap: Any) -> Array:
    """How fast :func:`slope_of_capped` moves with `products`: with all its digits near zero, where it is zero."""
    bend: Array = -2 * slope * np.tanh(products / softcap) / softcap
    return bend


@with_slope(bend_of_capped)
def slope_of_capped(products: Array, softcap: Any) -> Array:
    """How fast :func:`capped` moves with `products`: by exponentials that vanish, since tanh itself comes to rest."""
    twice = 2 * products / softcap
    decay = np.exp(np.where(twice.real > 0, -twice, twice))
    slope: Array = 4 * decay / (1 + decay) ** 2  # (dot-product.104)
    return slope


def reads_operands(bias: Any) -> bool:
    """Whether this is a bias object, or a list of biases, which may read queries and keys: not an array or None."""
    return bias is not None and not isinstance(bias, np.ndarray)


def operands(scores: Array, query: Array, key: Array, scale: Any) -> Operands:
    """What biases of all scores, as one block, may read."""
    (n, m), (scaled, factor) = scores.shape[-2:], with_scale(query, scale)
    return Operands(slice(0, n), slice(0, m), scaled * factor, key, scale)


def bias_gradients(bias: Any, d_scores: Array, query: Array, key: Array, scale: Any) -> OfBlock:
    """The gradient of a bias from that of the scores, which it is added to; and of what it reads beside."""
    if not reads_operands(bias):
        return OfBlock(d_scores)  # (..., n, m)
    return biases.gradients(bias, d_scores, operands(d_scores, query, key, scale))


@passes.double_backward
def double_backward(
    d_gradients: Gradients, d_output: Tangent, cache: Cache
) -> tuple[tuple[Array, Gradients], tuple[Array, ...]]:
    """The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and by every array of `forward`."""
    # (dot-product.97, dot-product.99)
    d_d_output, gradients, intermediates = backward_tangent(d_gradients, d_output, cache)
    return (d_d_output, gradients), intermediates


def slope_tangent(
    d_scores: Array, d_scores_tangent: Array, of_products: tuple[Array, Array], softcap: Any
) -> tuple[Array, Array]:
    """The gradient of products below a softcap from that of the scores, and its tangent."""
    products, products_tangent = of_products
    slope = slope_of_capped(products, softcap)  # (..., n, m)
    bend = bend_of_capped(products, slope, softcap)  # (..., n, m)
    d_products, by_scores = backward_times(d_scores, slope), backward_times(d_scores_tangent, slope)
    return d_products, by_scores + backward_times(d_scores, bend * products_tangent)  # (dot-product.101)


def backward_tangent(
    tangents: Gradients, d_output: Array, cache: Cache, d_logsumexp: Array | None = None
) -> tuple[Array, Gradients, tuple[Array, ...]]:
    """The tangents of the output and of the gradients of `backward`, along those of the inputs. For ops.

    With the gradient of the log-sum-exp, (..., n, 1), the gradients are of it, too. Beside them what is on the way: the
    tangents of the scores and of their gradients.
    """
    flows, shape = pairs_that_flow(cache.mask, d_output), cache.weights.shape
    d_inputs = tangents.query, tangents.key, tangents.bias, tangents.scale
    scores, products = scores_tangent(cache, *d_inputs)  # (..., n, m)

    # backward was d_dropped = d_output @ value^T, d_weights = d_dropped * dropout
    d_dropped = pair_products(d_output, cache.value, flows)  # (..., n, m) (dot-product.89)
    d_dropped_tangent = pair_products(d_output, tangents.value, flows)  # (..., n, m) (dot-product.88)
    # (dot-product.98)
    d_weights, d_weights_tangent = (drop(sum_to(x, shape), cache.dropout) for x in (d_dropped, d_dropped_tangent))

    # backward was d_scores = the Jacobian of softmax times d_weights (dot-product.90, dot-product.102)
    d_sinks = None
    if cache.weights_by is not None:
        of_weights = weightings.backward_tangent(d_weights, d_weights_tangent, scores, cache.softmax)
        d_scores, d_scores_tangent, weights = of_weights
    else:
        sink = None if tangents.sink is None else tangents.sink[..., None, None]
        columns = softmax.backward_tangent_with_logsumexp(
            rows.with_column(d_weights, 0, cache.sink),
            rows.with_column(d_weights_tangent, 0, cache.sink),
            rows.with_column(scores, sink, cache.sink),
            d_logsumexp,
            cache.softmax,
        )
        # (..., n, m) (dot-product.91, dot-product.93)
        (d_scores, _), (d_scores_tangent, d_sinks), (weights, _) = (rows.without_column(x, cache.sink) for x in columns)
    d_sink = None if d_sinks is None else d_sinks.sum(axis=-1)  # (...) (dot-product.103)

    # backward was d_value = dropped^T @ d_output (dot-product.87)
    d_value = product(transposed(drop(weights, cache.dropout)), d_output, transposed(flows))  # (..., m, d_v)

    # backward was d_products = d_scores * slope, a product of two that both have tangents
    d_products, d_products_tangent = d_scores, d_scores_tangent
    if cache.uncapped is not None:
        below_cap = cache.uncapped, products
        d_products, d_products_tangent = slope_tangent(d_scores, d_scores_tangent, below_cap, cache.softcap)

    # backward was d_query = scale * d_products @ key, d_key = scale * d_products^T @ query (dot-product.96), each
    # a product of two (dot-product.94, dot-product.95)
    query, key, scale = dual(cache.query, tangents.query), dual(cache.key, tangents.key), cache.scale
    if is_row_scale(scale):
        scale = dual(scale, tangents.scale)
    bias = biases.with_tangent(cache.bias, tangents.bias) if reads_operands(cache.bias) else None
    of_bias = bias_gradients(bias, dual(d_scores, d_scores_tangent), query, key, scale)
    of_products = products_gradients(dual(d_products, d_products_tangent), of_bias, query, key, scale)
    d_query, d_key, d_scale = map(velocity_of, of_products)
    d_bias: Any = of_bias.array
    d_bias = list(map(velocity_of, d_bias)) if isinstance(d_bias, list) else velocity_of(d_bias)
    gradients = Gradients(query=d_query, key=d_key, value=d_value, bias=d_bias, sink=d_sink, scale=d_scale)
    intermediates = scores, d_scores_tangent, d_products_tangent
    return output_tangent(cache, weights, tangents.value), gradients, intermediates
