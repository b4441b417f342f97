r"""Multi-head attention: several attentions side by side, each on its own projection of the inputs.

.. math::

    Q = X_q W_q + b_q, \quad K = X_k W_k + b_k, \quad V = X_v W_v + b_v, \qquad
    C = [\mathrm{Attention}(Q^{(h)}, K^{(h)}, V^{(h)})]_{h}, \qquad Y = C W_o + b_o

Head h has columns ``h * d_k`` to ``(h + 1) * d_k`` of Q and K, and likewise of V and C. The derivation is
``derivations/multi_head.md`` of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import dot_product
from attention_np._lib import passes
from attention_np._lib.arguments import as_array, as_attended, as_integer, as_scale, scores_shape
from attention_np._lib.arrays import Array, precision, sum_to, transposed
from attention_np._lib.dropout import Rng, as_probability, draw, drop
from attention_np._lib.parameters import Parameters, as_parameters, check_heads
from attention_np._lib.passes import Tangent, widened_inputs
from attention_np._lib.products import backward_product, linear, linear_backward, linear_double_backward, product
from attention_np.masks import visible_pairs

__all__ = [
    "Cache",
    "Gradients",
    "Parameters",
    "backward",
    "combine_heads",
    "double_backward",
    "forward",
    "jvp",
    "split_heads",
]

VECTORIZED = ("query", "key", "value")  # may carry any leading axes: for gradcheck


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    value: Array
    parameters: Parameters
    bias: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_query)
    key: Array  # (..., m, d_key)
    value: Array  # (..., m, d_value)
    parameters: Parameters
    bias: Array | None  # broadcasts to (..., num_heads, n, m)
    num_heads: int
    weights: Array  # (..., num_heads, n, m), before dropout
    attention: dot_product.Cache  # of all heads at once: its query is (..., num_heads, n, d_k), and so on
    combined: Array  # (..., n, num_heads * d_v)
    output_shape: tuple[int, ...]

    @property
    def scale(self) -> Any:
        """What the products of queries and keys are multiplied by."""
        return self.attention.scale

    def in_range(self) -> Cache:
        """With numbers whose range has no end: those between the projections need not fit the dtype of the cache."""
        cache = widened_inputs(self, Gradients._fields)
        q, k, v = project(cache.query, cache.key, cache.value, cache.parameters, self.num_heads)
        attention = self.attention._replace(query=q, key=k, value=v)
        heads = product(drop(attention.weights, attention.dropout), v, attention.mask)
        return cache._replace(attention=attention, combined=_combine(heads))


def split_heads(x: npt.ArrayLike, num_heads: int) -> Array:
    """Give each head its share of the features: the backward of :func:`combine_heads`.

    Parameters
    ----------
    x : array_like, (..., n, num_heads * d)
    num_heads : int

    Returns
    -------
    ndarray, (..., num_heads, n, d)
        A view of `x` where it can be.

    Raises
    ------
    TypeError
        If `num_heads` is not an integer.
    ValueError
        If `num_heads` is less than 1 or does not divide the features; if `x` has fewer than two axes.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import multi_head
    >>> print(multi_head.split_heads(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), 2))
    [[[1 2]
      [5 6]]
    <BLANKLINE>
     [[3 4]
      [7 8]]]
    """
    x, num_heads = as_array("x", x), as_integer("num_heads", num_heads)
    if x.ndim < 2:
        raise ValueError(f"x must have at least two axes, (..., n, features) (x.shape={x.shape})")
    check_heads("x", x.shape[-1], num_heads, x.shape)
    return _split(x, num_heads)


def _split(x: Array, num_heads: int) -> Array:
    by_position = x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)  # (..., n, num_heads, d) (multi-head.5)
    by_head: Array = by_position.swapaxes(-2, -3)  # (..., num_heads, n, d) (multi-head.5)
    return by_head


def combine_heads(x: npt.ArrayLike) -> Array:
    """Put the features of all heads side by side: the backward of :func:`split_heads`.

    Parameters
    ----------
    x : array_like, (..., num_heads, n, d)

    Returns
    -------
    ndarray, (..., n, num_heads * d)
        A view of `x` where it can be.

    Raises
    ------
    ValueError
        If `x` has fewer than three axes.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import multi_head
    >>> print(multi_head.combine_heads(np.array([[[1, 2], [5, 6]], [[3, 4], [7, 8]]])))
    [[1 2 3 4]
     [5 6 7 8]]
    """
    x = as_array("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have at least three axes, (..., num_heads, n, features) (x.shape={x.shape})")
    return _combine(x)


def _combine(x: Array) -> Array:
    by_position = x.swapaxes(-2, -3)  # (..., n, num_heads, d) (multi-head.12)
    combined: Array = by_position.reshape(*by_position.shape[:-2], x.shape[-3] * x.shape[-1])  # (multi-head.12)
    return combined


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    parameters: Parameters,
    *,
    num_heads: int,
    mask: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n queries over m keys and their values, in several heads.

    Parameters
    ----------
    query : array_like of float, (..., n, d_query)
        Or (d_query,): a single query. The leading axes of query, key and value broadcast together.
    key : array_like of float, (..., m, d_key)
    value : array_like of float, (..., m, d_value)
        Self-attention is ``query``, ``key`` and ``value`` all the same array.
    parameters : Parameters
        The projections, without leading axes.
    num_heads : int
        Divides the columns of `w_query` and those of `w_value`.
    mask : array_like of bool, optional
        True where attending is allowed; broadcasts to the scores, (..., num_heads, n, m). By default all to all.
    bias : array_like of float, optional
        Added to the scores; broadcasts to them.
    is_causal, dropout_p, rng
        As for :func:`attention_np.dot_product.forward`.

    Returns
    -------
    output : ndarray, (..., n, d_output)
        Or (..., d_output) for a single query. A query that may attend to nothing gets `b_output`.
    cache : Cache
        The named intermediates, `weights` of every head among them. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, `mask` is not boolean, `parameters` not a `Parameters`, or an
        option not of its type.
    ValueError
        If shapes do not fit together, or an option is refused by :func:`attention_np.dot_product.forward`.

    Notes
    -----
    Vaswani et al. [1]_, with each head's scores scaled by :math:`1 / \sqrt{d_k}`, its own width. A projection that does
    not fit the dtype is infinite in the cache; the output and the gradients are those of the numbers that it is.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention is all you need", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import multi_head
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 8))  # a batch of 2 sequences of 5 positions
    >>> parameters = multi_head.Parameters.random(8, rng=0)
    >>> output, cache = multi_head.forward(x, x, x, parameters, num_heads=4, is_causal=True)
    >>> output.shape, cache.weights.shape
    ((2, 5, 8), (2, 4, 5, 5))
    """
    query, key, value, bias = as_attended(query, key, value, bias)
    num_heads = as_integer("num_heads", num_heads)
    *leading, n, m = scores_shape(query, key, value)
    parameters = as_parameters(parameters, query, key, value, num_heads)
    shape = (*leading, num_heads, n, m)
    mask = visible_pairs(shape, mask, bias, is_causal)
    dropout_p = as_probability(dropout_p, rng)
    compute = precision(query, key, value, *parameters, bias).compute
    scale = as_scale(None, parameters.w_query.shape[1] // num_heads, compute)
    dropout = draw(rng, dropout_p, shape, compute)
    return attend(
        query=query,
        key=key,
        value=value,
        parameters=parameters,
        bias=bias,
        num_heads=num_heads,
        mask=mask,
        scale=scale,
        dropout=dropout,
    )


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    parameters: Parameters,
    bias: Array | None,
    num_heads: int,
    mask: Array | None,
    scale: Any,
    dropout: Array | None,
) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    q, k, v = project(query, key, value, parameters, num_heads)
    # scores, weights and outputs, the heads being one more leading axis (multi-head.6, multi-head.7, multi-head.8)
    # (..., num_heads, n, d_v) (multi-head.9, multi-head.10)
    heads, attention = dot_product.attend.mathematics(q, k, v, bias, None, mask, scale, None, dropout)
    combined = _combine(heads)  # (..., n, num_heads * d_v) (multi-head.11, multi-head.12)
    # (..., n, d_output) (multi-head.13, multi-head.14)
    output = linear(combined, parameters.w_output, parameters.b_output)
    cache = Cache(
        query=query,
        key=key,
        value=value,
        parameters=parameters,
        bias=bias,
        num_heads=num_heads,
        weights=attention.weights,
        attention=attention,
        combined=combined,
        output_shape=output.shape,
    )
    return output, cache, (q, k, v, combined)


def project(query: Array, key: Array, value: Array, w: Parameters, num_heads: int) -> tuple[Array, Array, Array]:
    """The queries, keys and values of all heads."""
    # each projection for all heads at once (multi-head.4)
    q = linear(query, w.w_query, w.b_query)  # (..., n, num_heads * d_k) (multi-head.1)
    k = linear(key, w.w_key, w.b_key)  # (..., m, num_heads * d_k) (multi-head.2, multi-head.4)
    v = linear(value, w.w_value, w.b_value)  # (..., m, num_heads * d_v) (multi-head.3, multi-head.4)
    return _split(q, num_heads), _split(k, num_heads), _split(v, num_heads)


@passes.backward
def backward(d_output: Array, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from the output's, (..., n, d_output).

    In self-attention, the gradient with respect to the one input is the sum of those of query, key and value. That of
    `b_key` is zero but for rounding: it moves all scores of a query alike, which softmax does not see.
    """
    w, attention = cache.parameters, cache.attention

    # forward was output = combined @ w_output + b_output (multi-head.28, multi-head.29)
    d_combined, d_w_output, d_b_output = linear_backward(d_output, cache.combined, w.w_output)  # (multi-head.30)

    # forward was combined = the heads side by side, each attention(q, k, v)
    d_heads = _split(d_combined, cache.num_heads)  # (..., num_heads, n, d_v) (multi-head.32, multi-head.33)
    # (multi-head.34, multi-head.35, multi-head.36)
    of_heads, (d_scores, _) = dot_product.backward.mathematics(d_heads, attention)

    # forward was q = query @ w_query + b_query, and so on
    d_q = _combine(sum_to(of_heads.query, attention.query.shape))  # (..., n, num_heads * d_k) (multi-head.38)
    d_k = _combine(sum_to(of_heads.key, attention.key.shape))  # (..., m, num_heads * d_k) (multi-head.38)
    d_v = _combine(sum_to(of_heads.value, attention.value.shape))  # (..., m, num_heads * d_v) (multi-head.38)
    # each is a linear map, as the one of the output is (multi-head.39)
    d_query, d_w_query, d_b_query = linear_backward(d_q, cache.query, w.w_query)  # (multi-head.40)
    d_key, d_w_key, d_b_key = linear_backward(d_k, cache.key, w.w_key)  # (multi-head.41)
    d_value, d_w_value, d_b_value = linear_backward(d_v, cache.value, w.w_value)  # (multi-head.42)

    d_parameters = Parameters(
        w_query=d_w_query,
        w_key=d_w_key,
        w_value=d_w_value,
        w_output=d_w_output,
        b_query=d_b_query,
        b_key=d_b_key,
        b_value=d_b_value,
        b_output=d_b_output,
    )
    # (multi-head.37)
    gradients = Gradients(query=d_query, key=d_key, value=d_value, parameters=d_parameters, bias=d_scores)
    return gradients, (d_combined, d_scores, d_q, d_k, d_v)


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    key: Tangent = None,
    value: Tangent = None,
    parameters: Tangent = None,
    bias: Tangent = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the output, (..., n, d_output), moves when the inputs move along a tangent.

    The tangent of `parameters` is a `Parameters` of tangents.
    """
    w, d_w = cache.parameters, parameters
    tangents = _push_projections(cache, query, key, value, parameters)
    # (multi-head.59)
    d_heads, (d_scores,) = dot_product.jvp.mathematics(cache.attention, **tangents, bias=bias)
    d_combined = _combine(d_heads)  # (..., n, num_heads * d_v) (multi-head.60)
    # (multi-head.60)
    d_output: Array = linear(d_combined, w.w_output, d_w.b_output) + cache.combined @ d_w.w_output
    return d_output, (d_scores, d_combined)


def _push_projections(cache: Cache, d_query: Array, d_key: Array, d_value: Array, d_w: Parameters) -> dict[str, Array]:
    """How the queries, keys and values of all heads move."""
    w = cache.parameters
    d_q = linear(d_query, w.w_query, d_w.b_query) + cache.query @ d_w.w_query  # (multi-head.58)
    d_k = linear(d_key, w.w_key, d_w.b_key) + cache.key @ d_w.w_key  # (multi-head.58)
    d_v = linear(d_value, w.w_value, d_w.b_value) + cache.value @ d_w.w_value  # (multi-head.58)
    of_heads = zip(("query", "key", "value"), (d_q, d_k, d_v), strict=True)
    return {name: _split(x, cache.num_heads) for name, x in of_heads}


@passes.double_backward
def double_backward(
    d_gradients: Gradients, d_output: Array, cache: Cache
) -> tuple[tuple[Array, Gradients], tuple[Array, ...]]:
    """The gradient of ``<d_gradients, backward(d_output, cache)>`` with respect to d_output and every array of forward.

    By d_output it is forward mode along `d_gradients`; by the others each line of `backward`, in forward mode.
    """
    w, attention, along, along_w = cache.parameters, cache.attention, d_gradients, d_gradients.parameters
    along_heads = _push_projections(cache, along.query, along.key, along.value, along_w)

    # backward was d_combined = d_output @ w_output^T, and d_heads its parts
    d_combined, moved_d_combined = (backward_product(d_output, transposed(x)) for x in (w.w_output, along_w.w_output))
    d_heads, moved_d_heads = (_split(x, cache.num_heads) for x in (d_combined, moved_d_combined))

    # backward was that of attention, and the heads side by side
    of_heads, _ = dot_product.backward.mathematics(d_heads, attention)
    attended = dot_product.Gradients(**along_heads, bias=along.bias, sink=None)
    moved_heads, moved, of_scores = dot_product.push_backward(attended, d_heads, moved_d_heads, attention)
    heads = attention.query, attention.key, attention.value
    d_q, d_k, d_v = (_combine(sum_to(d_x, x.shape)) for d_x, x in zip(of_heads[:3], heads, strict=True))
    moved_d_q, moved_d_k, moved_d_v = (_combine(sum_to(d_x, x.shape)) for d_x, x in zip(moved[:3], heads, strict=True))

    # backward was that of linear maps
    moved_combined = _combine(moved_heads)  # (..., n, num_heads * d_v)
    d_d_output = linear(moved_combined, w.w_output, along_w.b_output) + cache.combined @ along_w.w_output
    _, d_w_output, _ = linear_backward(d_output, moved_combined, w.w_output)
    d_query, d_w_query, d_b_query = linear_double_backward(
        moved_d_q, d_q, cache.query, w.w_query, along.query, along_w.w_query
    )
    d_key, d_w_key, d_b_key = linear_double_backward(moved_d_k, d_k, cache.key, w.w_key, along.key, along_w.w_key)
    d_value, d_w_value, d_b_value = linear_double_backward(
        moved_d_v, d_v, cache.value, w.w_value, along.value, along_w.w_value
    )
    d_parameters = Parameters(
        w_query=d_w_query,
        w_key=d_w_key,
        w_value=d_w_value,
        w_output=d_w_output,
        b_query=d_b_query,
        b_key=d_b_key,
        b_value=d_b_value,
        b_output=np.zeros_like(d_output[..., :1, :]),  # of the output, a shift: no gradient depends on it
    )
    gradients = Gradients(query=d_query, key=d_key, value=d_value, parameters=d_parameters, bias=moved.bias)
    return (d_d_output, gradients), (moved_d_combined, *of_scores, moved_d_q, moved_d_k, moved_d_v, moved_combined)
