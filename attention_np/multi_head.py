r"""Multi-head attention: several attentions side by side, each on its own projection of the inputs.

.. math::

    Q = X_q W_q + b_q, \quad K = X_k W_k + b_k, \quad V = X_v W_v + b_v, \qquad
    C = [\mathrm{Attention}(Q^{(h)}, K^{(h)}, V^{(h)})]_{h}, \qquad Y = C W_o + b_o

Head h has columns ``h * d_k`` to ``(h + 1) * d_k`` of Q and K, and likewise of V and C. Some layers have fewer heads of
keys and values than of queries, and some normalise or turn the queries and keys of each head before they meet. The
derivation is ``derivations/multi_head.md`` of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import biases, dot_product, masks, weightings
from attention_np._lib import passes
from attention_np._lib.arguments import as_array, as_attended, as_flag, as_integer, as_scale, as_softcap, scores_shape
from attention_np._lib.arrays import Array, precision, sum_to, with_query_axis
from attention_np._lib.dropout import Rng, as_probability, draw, drop
from attention_np._lib.passes import Tangent
from attention_np._lib.products import product
from attention_np._lib.wide import narrowed
from attention_np._multi_head import steps
from attention_np._multi_head.parameters import Parameters, as_parameters, check_heads
from attention_np._multi_head.steps import Plan, Steps, back_through, plan_of, tangent_through, through
from attention_np.biases import Bias
from attention_np.linear import affine_gradients, affine_map, affine_tangent
from attention_np.masks import visible_pairs
from attention_np.weightings import Weighting

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
OP = passes.Op(
    queries="query", added=("bias",), nested={"parameters": Parameters}, factors=("scale",), has_products=True
)


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
    bias: Array | None  # broadcasts to (..., num_heads, n, m); or a Bias
    num_heads: int
    num_kv_heads: int
    query_steps: Steps  # what the queries go through on the way from their projection to the scores
    key_steps: Steps
    weights: Array  # (..., num_heads, n, m), before dropout
    attention: dot_product.Cache  # of all heads at once: its query is (..., num_heads, n, d_k), and so on
    combined: Array  # (..., n, num_heads * d_v)
    output_shape: tuple[int, ...]

    @property
    def heads_of(self) -> tuple[int, int]:
        """How many of queries, and of keys and values."""
        return self.num_heads, self.num_kv_heads

    @property
    def plans(self) -> tuple[Plan, Plan]:
        """What queries and keys go through."""
        return plan_of(self.query_steps), plan_of(self.key_steps)

    @property
    def mask(self) -> Any:
        """Who attends to whom."""
        return self.attention.mask

    @property
    def scale(self) -> Any:
        """What the products of queries and keys are multiplied by."""
        return self.attention.scale

    @property
    def softcap(self) -> Any:
        """That of the scores, or None."""
        return self.attention.softcap

    @property
    def weights_by(self) -> Weighting | None:
        """How scores become weights; None: by softmax."""
        by: Weighting | None = self.attention.weights_by
        return by

    @property
    def dropout(self) -> Any:
        """The multipliers of the weights, or None."""
        return self.attention.dropout

    def in_range(self) -> Cache:
        """With its products made again, of inputs that are widened: those on the way need not fit the dtype."""
        q, k, v, *steps = project(self.query, self.key, self.value, self.parameters, self.heads_of, self.plans)
        attention = self.attention._replace(query=q, key=k, value=v)
        heads = product(drop(attention.weights, attention.dropout), v, attention.mask)
        query_steps, key_steps = steps
        return self._replace(
            attention=attention, combined=_combine(heads), query_steps=query_steps, key_steps=key_steps
        )


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    parameters: Parameters,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    mask: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | Bias | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    weights_by: Weighting | None = None,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
    rotary: Mapping[str, Any] | None = None,
    positions: npt.ArrayLike | None = None,
    key_positions: npt.ArrayLike | None = None,
    qk_norm: Literal["rms", "l2"] | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_norm_after_rotary: bool = False,
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
        The projections, gains and sink, without leading axes.
    num_heads : int
        Of queries; divides the columns of `w_query`, which say how wide a head is.
    num_kv_heads : int, optional
        Of keys and values, which divides `num_heads`: query head h attends with key/value head
        ``h // (num_heads // num_kv_heads)``. By default as many.
    mask : array_like of bool, optional
        True where attending is allowed; broadcasts to the scores, (..., num_heads, n, m). By default all to all.
    bias : array_like of float or Bias, optional
        Added to the scores; broadcasts to them. Or one of :mod:`attention_np.biases`.
    scale : float, optional
        What the products of queries and keys are multiplied by, by default ``1 / sqrt(d_k)``.
    window : (int or None, int or None), optional
        Query i attends to keys ``i - left <= j <= i + right`` only, as :func:`attention_np.masks.sliding_window`.
    rotary : mapping, optional
        Options of :func:`attention_np.rotary.forward`, such as ``{"base": 500000.0}``, ``{}`` for its own: queries and
        keys are turned by their positions. By default they are not.
    positions : array_like, (n,) or (..., n), optional
        Of the queries, for `rotary`; leading axes broadcast to those of `query`. By default 0 to n - 1. With `sections`
        of rotary, the positions on each axis stand before these axes.
    key_positions : array_like, (m,) or (..., m), optional
        Of the keys; by default `positions` where they are given, else 0 to m - 1.
    qk_norm : {"rms", "l2"}, optional
        Queries and keys of each head are divided by their root mean square, or by their length, and multiplied by
        `query_gain` and `key_gain`. By default "rms" where a gain is given, else they are not.
    qk_norm_epsilon : float, optional
        Added to the mean of the squares, or to their sum, below the root.
    qk_norm_after_rotary : bool, optional
        Whether they are normalised after they are turned, as in Llama 4, and not before, as in Qwen 3.
    is_causal, softcap, weights_by, dropout_p, rng
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
        If shapes do not fit together, or an option is refused by :func:`attention_np.dot_product.forward` or
        :func:`attention_np.rotary.forward`.

    Notes
    -----
    Vaswani et al. [1]_, with each head's scores scaled by :math:`1 / \sqrt{d_k}`, its own width; groups of heads that
    share keys and values are those of Ainslie et al. [2]_. A projection that does not fit the dtype is infinite in the
    cache; the output and the gradients are those of the numbers that it is.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
    .. [2] J. Ainslie et al., "GQA: training generalized multi-query transformer models from multi-head checkpoints",
       EMNLP 2023.

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
    num_kv_heads = num_heads if num_kv_heads is None else as_integer("num_kv_heads", num_kv_heads)
    *leading, n, m = scores_shape(query, key, value)
    parameters = as_parameters(parameters, query, key, value, num_heads, num_kv_heads)
    if weights_by is not None:
        weightings.check(weights_by, parameters.sink)
    shape = (*leading, num_heads, n, m)
    mask = visible_pairs(shape, mask, bias, is_causal)
    if window is not None:
        within = masks.sliding_window(n, m, **masks.as_window(window))
        mask = within if mask is None else mask & within
    dropout_p = as_probability(dropout_p, rng)
    compute = precision(query, key, value, *parameters, *biases.terms_of(bias)).compute
    d_k = parameters.w_query.shape[1] // num_heads
    biases.check(bias, shape, d_k)
    has_gain = parameters.query_gain is not None or parameters.key_gain is not None
    norms = steps.norms(qk_norm, qk_norm_epsilon, has_gain, d_k, compute)
    of_keys = positions if key_positions is None else key_positions
    places = {"positions": (positions, with_query_axis(query, query)), "key_positions": (of_keys, key)}
    turns = steps.turns(rotary, places, d_k, compute)
    is_last = as_flag("qk_norm_after_rotary", qk_norm_after_rotary)
    plans = [turn + norms if is_last else norms + turn for turn in turns]
    options: Any = {"heads_of": (num_heads, num_kv_heads), "plans": plans, "mask": mask, "weights_by": weights_by}
    options |= {"scale": as_scale(scale, d_k, compute), "softcap": as_softcap(softcap, compute)}
    dropout = draw(rng, dropout_p, shape, compute)
    return attend(query, key, value, parameters, bias, dropout=dropout, **options)


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    parameters: Parameters,
    bias: Array | None,
    heads_of: tuple[int, int],
    plans: Sequence[Plan],
    mask: Array | None,
    scale: Any,
    softcap: Any,
    weights_by: Weighting | None,
    dropout: Array | None,
) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    q, k, v, query_steps, key_steps = project(query, key, value, parameters, heads_of, plans)
    # scores, weights and outputs, the heads being one more leading axis (multi-head.6, multi-head.7, multi-head.8)
    # (..., num_heads, n, d_v) (multi-head.9, multi-head.10)
    sink = None if parameters.sink is None else narrowed(parameters.sink)
    heads, attention = dot_product.attend.mathematics(q, k, v, bias, sink, scale, mask, softcap, dropout, weights_by)
    combined = _combine(heads)  # (..., n, num_heads * d_v) (multi-head.11, multi-head.12)
    # (..., n, d_output) (multi-head.13, multi-head.14)
    output = affine_map(combined, parameters.w_output, parameters.b_output)
    inputs, made = (query, key, value, parameters, bias), (attention.weights, attention, combined, output.shape)
    return output, Cache._make((*inputs, *heads_of, query_steps, key_steps, *made)), (q, k, v, combined)


def project(
    query: Array, key: Array, value: Array, w: Parameters, heads_of: tuple[int, int], plans: Sequence[Plan]
) -> tuple[Array, Array, Array, Steps, Steps]:
    """The queries, keys and values of all heads, as they meet; and what the first two went through."""
    num_heads, num_kv_heads = heads_of
    # each projection for all heads at once (multi-head.4)
    q = affine_map(query, w.w_query, w.b_query)  # (..., n, num_heads * d_k) (multi-head.1)
    k = affine_map(key, w.w_key, w.b_key)  # (..., m, num_kv_heads * d_k) (multi-head.2, multi-head.4)
    v = affine_map(value, w.w_value, w.b_value)  # (..., m, num_kv_heads * d_v) (multi-head.3, multi-head.4)
    queries, query_steps = through(plans[0], _split(q, num_heads), w.query_gain)
    keys, key_steps = through(plans[1], _split(k, num_kv_heads), w.key_gain)
    values = _split(v, num_kv_heads)
    return queries, _repeated(keys, num_heads), _repeated(values, num_heads), query_steps, key_steps


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from the output's, (..., n, d_output).

    In self-attention, the gradient with respect to the one input is the sum of those of query, key and value. That of
    `b_key` is zero but for rounding where projections and a softmax are all there is, without softcap, sink, norm or
    rotary positions: it adds one number to all scores of a query, which softmax does not see.
    """
    w, attention = cache.parameters, cache.attention

    # forward was output = combined @ w_output + b_output
    d_combined, d_w_output, d_b_output = affine_gradients(d_output, cache.combined, w.w_output)  # (multi-head.29)

    # forward was combined = the heads side by side, each attention(q, k, v)
    d_heads = _split(d_combined, cache.num_heads)  # (..., num_heads, n, d_v) (multi-head.31, multi-head.32)
    # (multi-head.33, multi-head.34, multi-head.35)
    of_heads, (d_scores, _) = dot_product.backward.mathematics(d_heads, attention)

    # forward was q = query @ w_query + b_query, and so on
    d_queries, d_keys, d_values = _of_own_heads(of_heads, cache)
    d_queries, d_query_gain = back_through(cache.query_steps, d_queries)
    d_keys, d_key_gain = back_through(cache.key_steps, d_keys)
    d_q = _combine(d_queries)  # (..., n, num_heads * d_k) (multi-head.37)
    d_k = _combine(d_keys)  # (..., m, num_kv_heads * d_k) (multi-head.37)
    d_v = _combine(d_values)  # (..., m, num_kv_heads * d_v) (multi-head.37)
    # each is a linear map, as the one of the output is
    d_query, d_w_query, d_b_query = affine_gradients(d_q, cache.query, w.w_query)  # (multi-head.38)
    d_key, d_w_key, d_b_key = affine_gradients(d_k, cache.key, w.w_key)  # (multi-head.39)
    d_value, d_w_value, d_b_value = affine_gradients(d_v, cache.value, w.w_value)  # (multi-head.40)

    d_parameters = Parameters(
        w_query=d_w_query,
        w_key=d_w_key,
        w_value=d_w_value,
        w_output=d_w_output,
        b_query=d_b_query,
        b_key=d_b_key,
        b_value=d_b_value,
        b_output=d_b_output,
        query_gain=d_query_gain,
        key_gain=d_key_gain,
        sink=of_heads.sink,
    )
    # (multi-head.36)
    gradients = Gradients(query=d_query, key=d_key, value=d_value, parameters=d_parameters, bias=of_heads.bias)
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
    """Forward mode: the tangent of the output, (..., n, d_output), from those of the inputs.

    The tangent of `parameters` is a `Parameters` of tangents.
    """
    w, d_w, (num_heads, num_kv_heads) = cache.parameters, parameters, cache.heads_of
    d_q = affine_tangent(cache.query, w.w_query, query, d_w.w_query, d_w.b_query)  # (multi-head.65)
    d_k = affine_tangent(cache.key, w.w_key, key, d_w.w_key, d_w.b_key)  # (multi-head.65)
    d_v = affine_tangent(cache.value, w.w_value, value, d_w.w_value, d_w.b_value)  # (multi-head.65)
    d_queries = tangent_through(cache.query_steps, _split(d_q, num_heads), d_w.query_gain)
    d_keys = _repeated(tangent_through(cache.key_steps, _split(d_k, num_kv_heads), d_w.key_gain), num_heads)
    d_values = _repeated(_split(d_v, num_kv_heads), num_heads)
    # (multi-head.66)
    d_heads, (d_scores,) = dot_product.jvp.mathematics(
        cache.attention, query=d_queries, key=d_keys, value=d_values, bias=bias, sink=d_w.sink
    )
    d_combined = _combine(d_heads)  # (..., n, num_heads * d_v) (multi-head.67)
    # (multi-head.67)
    d_output: Array = affine_tangent(cache.combined, w.w_output, d_combined, d_w.w_output, d_w.b_output)
    return d_output, (d_scores, d_combined)


def _repeated(x: Array, num_heads: int) -> Array:
    """Each head of keys or values once for each head of queries that it serves: (..., num_heads, m, d)."""
    group = num_heads // x.shape[-3]
    return x if group == 1 else x[..., np.arange(num_heads) // group, :, :]  # (multi-head.57)


def _of_own_heads(of_heads: dot_product.Gradients, cache: Cache) -> tuple[Array, Array, Array]:
    """The gradients of queries, keys and values, of the heads and leading axes that they have."""
    heads = cache.attention[:3]
    d_query, d_key, d_value = (sum_to(d_x, x.shape) for d_x, x in zip(of_heads[:3], heads, strict=True))
    num_kv_heads = cache.num_kv_heads
    return d_query, _summed_over_groups(d_key, num_kv_heads), _summed_over_groups(d_value, num_kv_heads)


def _summed_over_groups(d_x: Array, heads: int) -> Array:
    """The gradient of what was repeated: the sum over the heads of queries that it served."""
    if d_x.shape[-3] == heads:
        return d_x
    groups = d_x.reshape(*d_x.shape[:-3], heads, d_x.shape[-3] // heads, *d_x.shape[-2:])
    summed: Array = groups.sum(axis=-3)  # (..., num_kv_heads, m, d) (multi-head.61, multi-head.62)
    return summed


double_backward = passes.second_derivative(attend, backward)


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
