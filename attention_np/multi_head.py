r"""Multi-head attention: several attentions side by side, each on its own projection of the inputs.

.. math::

    Q = X_q W_q + b_q, \quad K = X_k W_k + b_k, \quad V = X_v W_v + b_v, \qquad
    C = [\mathrm{Attention}(Q^{(h)}, K^{(h)}, V^{(h)})]_{h}, \qquad Y = C W_o + b_o

Head h has columns ``h * d_k`` to ``(h + 1) * d_k`` of Q and K, and likewise of V and C. The derivation is
``derivations/multi_head.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import dot_product, softmax
from attention_np._lib.arguments import (
    as_array,
    as_bias,
    as_floating,
    as_integer,
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
    is_floating,
    precision,
    quiet,
    sum_to,
    with_query_axis,
    without_query_axis,
)
from attention_np._lib.dropout import Rng, as_generator, as_probability, draw_key, multipliers
from attention_np._lib.products import linear, linear_backward, product
from attention_np._lib.second_look import left_range
from attention_np._lib.wide import widened

__all__ = ["Cache", "Gradients", "Parameters", "backward", "combine_heads", "forward", "jvp", "split_heads"]

VECTORIZED = ("query", "key", "value")  # may carry any leading axes: for gradcheck


class Parameters(NamedTuple):
    """The projections: weights that multiply from the right, ``x @ w + b``, and their biases.

    The same type holds their gradients and tangents. `from_in_proj` and `from_c_attn` read the two fused layouts in
    use, `random` draws them.
    """

    w_query: Array  # (d_query, num_heads * d_k)
    w_key: Array  # (d_key, num_heads * d_k)
    w_value: Array  # (d_value, num_heads * d_v)
    w_output: Array  # (num_heads * d_v, d_output)
    b_query: Array | None = None  # (num_heads * d_k,)
    b_key: Array | None = None  # (num_heads * d_k,)
    b_value: Array | None = None  # (num_heads * d_v,)
    b_output: Array | None = None  # (d_output,)

    @classmethod
    def from_in_proj(
        cls,
        in_proj_weight: npt.ArrayLike,
        out_proj_weight: npt.ArrayLike,
        in_proj_bias: npt.ArrayLike | None = None,
        out_proj_bias: npt.ArrayLike | None = None,
    ) -> Parameters:
        """Parameters from the layout of PyTorch's `nn.MultiheadAttention`: stacked, and multiplying from the left.

        Parameters
        ----------
        in_proj_weight : array_like, (3 * d_model, d_model)
            The transposed weights of query, key and value, one below the other.
        out_proj_weight : array_like, (d_model, d_model)
            `out_proj.weight`: the transposed weight of the output.
        in_proj_bias : array_like, (3 * d_model,), optional
        out_proj_bias : array_like, (d_model,), optional

        Returns
        -------
        parameters : Parameters
            Views of the given arrays where they are NumPy arrays.

        Raises
        ------
        TypeError, ValueError
            If an array is not of floating-point numbers, or its shape is not as above.

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import multi_head
        >>> stacked = np.arange(12.0).reshape(6, 2)  # in_proj_weight of nn.MultiheadAttention(2, num_heads)
        >>> print(multi_head.Parameters.from_in_proj(stacked, np.eye(2)).w_key)
        [[4. 6.]
         [5. 7.]]
        """
        w_in = as_floating("in_proj_weight", in_proj_weight)
        if w_in.ndim != 2 or w_in.shape[0] != 3 * w_in.shape[1]:
            raise ValueError(
                f"in_proj_weight must have the shape (3 * d_model, d_model) (in_proj_weight.shape={w_in.shape})"
            )
        w_out = _shaped("out_proj_weight", out_proj_weight, (w_in.shape[1], w_in.shape[1]))
        return cls._from_fused(w_in.T, w_out.T, "in_proj_bias", in_proj_bias, "out_proj_bias", out_proj_bias)

    @classmethod
    def from_c_attn(
        cls,
        c_attn_weight: npt.ArrayLike,
        c_proj_weight: npt.ArrayLike,
        c_attn_bias: npt.ArrayLike | None = None,
        c_proj_bias: npt.ArrayLike | None = None,
    ) -> Parameters:
        """Parameters from the layout of GPT-2: columns side by side, weights multiplying from the right.

        Parameters
        ----------
        c_attn_weight : array_like, (d_model, 3 * d_model)
            The weights of query, key and value, side by side.
        c_proj_weight : array_like, (d_model, d_model)
            The weight of the output.
        c_attn_bias : array_like, (3 * d_model,), optional
        c_proj_bias : array_like, (d_model,), optional

        Returns
        -------
        parameters : Parameters
            Views of the given arrays where they are NumPy arrays.

        Raises
        ------
        TypeError, ValueError
            If an array is not of floating-point numbers, or its shape is not as above.

        Examples
        --------
        >>> import numpy as np
        >>> from attention_np import multi_head
        >>> side_by_side = np.arange(12.0).reshape(2, 6)  # c_attn.weight of a GPT-2 of width 2
        >>> print(multi_head.Parameters.from_c_attn(side_by_side, np.eye(2)).w_key)
        [[2. 3.]
         [8. 9.]]
        """
        w_in = as_floating("c_attn_weight", c_attn_weight)
        if w_in.ndim != 2 or w_in.shape[1] != 3 * w_in.shape[0]:
            raise ValueError(
                f"c_attn_weight must have the shape (d_model, 3 * d_model) (c_attn_weight.shape={w_in.shape})"
            )
        w_out = _shaped("c_proj_weight", c_proj_weight, (w_in.shape[0], w_in.shape[0]))
        return cls._from_fused(w_in, w_out, "c_attn_bias", c_attn_bias, "c_proj_bias", c_proj_bias)

    @classmethod
    def _from_fused(
        cls,
        w_in: Array,
        w_out: Array,
        b_in_name: str,
        b_in: npt.ArrayLike | None,
        b_out_name: str,
        b_out: npt.ArrayLike | None,
    ) -> Parameters:
        d_model = w_in.shape[0]
        w_query, w_key, w_value = (w_in[:, i * d_model : (i + 1) * d_model] for i in range(3))
        b_query = b_key = b_value = None
        if b_in is not None:
            fused = _shaped(b_in_name, b_in, (3 * d_model,))
            b_query, b_key, b_value = (fused[i * d_model : (i + 1) * d_model] for i in range(3))
        b_output = None if b_out is None else _shaped(b_out_name, b_out, (d_model,))
        return cls(w_query, w_key, w_value, w_out, b_query, b_key, b_value, b_output)

    @classmethod
    def random(
        cls,
        d_model: int,
        *,
        rng: Rng,
        d_key: int | None = None,
        d_value: int | None = None,
        biases: bool = True,
        dtype: npt.DTypeLike = np.float64,
    ) -> Parameters:
        r"""Parameters with the usual scaled initialisation: Glorot's uniform weights and zero biases.

        Parameters
        ----------
        d_model : int
            Features of the query, of all heads together, and of the output.
        rng : int or numpy.random.Generator
            A seed or a generator.
        d_key, d_value : int, optional
            Features of the key and of the value where they differ from `d_model` (PyTorch's `kdim` and `vdim`).
        biases : bool, optional
            With zero biases, or with none.
        dtype : dtype, optional

        Returns
        -------
        parameters : Parameters

        Raises
        ------
        TypeError, ValueError
            If a width is not an integer of at least 1, `rng` neither seed nor generator, or `dtype` not floating.

        Notes
        -----
        Weights of shape (d_in, d_out) are uniform on :math:`\pm\sqrt{6 / (d_{in} + d_{out})}`, so that neither the
        outputs nor the gradients grow or shrink with the width [1]_.

        References
        ----------
        .. [1] X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks",
           AISTATS 2010.

        Examples
        --------
        >>> from attention_np import multi_head
        >>> parameters = multi_head.Parameters.random(8, rng=0)
        >>> parameters.w_query.shape, parameters.b_query.shape
        ((8, 8), (8,))
        """
        d_model = as_integer("d_model", d_model, least=1)
        d_key = d_model if d_key is None else as_integer("d_key", d_key, least=1)
        d_value = d_model if d_value is None else as_integer("d_value", d_value, least=1)
        if not is_floating(np.dtype(dtype)):
            raise TypeError(f"dtype must hold floating-point numbers, not {np.dtype(dtype)}")
        generator = as_generator(rng)
        widths = (d_model, d_key, d_value, d_model)
        weights = []
        for d_in in widths:
            bound = sqrt(6 / (d_in + d_model))
            weights.append(generator.uniform(-bound, bound, (d_in, d_model)).astype(dtype))
        zeros = [np.zeros(d_model, dtype) if biases else None for _ in range(4)]
        return cls(*weights, *zeros)


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
    _check_heads("x", x.shape[-1], num_heads, x.shape)
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
    query, key, value = as_floating("query", query), as_floating("key", key), as_floating("value", value)
    bias = None if bias is None else as_bias(bias, query, key, value)
    num_heads = as_integer("num_heads", num_heads)
    *leading, n, m = scores_shape(query, key, value)
    parameters = _check_parameters(query, key, value, parameters, num_heads)
    visible = dot_product.visible_pairs((*leading, num_heads, n, m), mask, bias, is_causal)
    dropout_p = as_probability(dropout_p, rng)

    dtype = precision(query, key, value, *parameters, bias)
    x_q, x_k, x_v, added, *arrays = in_dtype(dtype.compute, query, key, value, bias, *parameters)
    x, w = (with_query_axis(x_q, query), x_k, x_v), Parameters(*arrays)
    scale = dot_product.as_scale(None, w.w_query.shape[1] // num_heads, dtype.compute)
    shape = (*leading, num_heads, n, m)
    with quiet():
        dropout = multipliers(draw_key(rng), dropout_p, shape, dtype.compute) if dropout_p else None
        options = added, visible, scale, dropout
        output, inside, of_scores = _attend(x, w, num_heads, *options)
        if left_range((output, *inside), (*x, *w)):
            output, inside, of_scores = _attend(_widened(x), Parameters._make(_widened(w)), num_heads, *options)
        q, k, v, combined = map(np.asarray, inside)
        output = as_result(without_query_axis(np.asarray(output), query), dtype.result)

    weights = of_scores.weights
    of_heads = (*np.broadcast_shapes(weights.shape[:-2], v.shape[:-2]), n, v.shape[-1])
    attention = dot_product.Cache(
        q, k, v, bias, visible, scale, of_scores.scores, weights, dropout, of_scores, of_heads
    )
    return output, Cache(query, key, value, parameters, bias, num_heads, weights, attention, combined, output.shape)


class _Inside(NamedTuple):
    """What is between the projections."""

    q: Array  # (..., num_heads, n, d_k)
    k: Array  # (..., num_heads, m, d_k)
    v: Array  # (..., num_heads, m, d_v)
    combined: Array  # (..., n, num_heads * d_v)


def _attend(x: Sequence[Array], w: Parameters, num_heads: int, *options: Any) -> tuple[Array, _Inside, softmax.Cache]:
    """What :func:`forward` computes, of arrays that may be `widened`: the output, and what leads to it."""
    q, k, v = _project(x, w, num_heads)
    # scores, weights and outputs, the heads being one more leading axis (multi-head.6, multi-head.7, multi-head.8)
    heads, of_scores = dot_product.attend(q, k, v, *options)  # (..., num_heads, n, d_v) (multi-head.9, multi-head.10)
    combined = _combine(heads)  # (..., n, num_heads * d_v) (multi-head.11, multi-head.12)
    output = linear(combined, w.w_output, w.b_output)  # (..., n, d_output) (multi-head.13, multi-head.14)
    return output, _Inside(q, k, v, combined), of_scores


def _project(x: Sequence[Array], w: Parameters, num_heads: int) -> list[Array]:
    # each projection for all heads at once (multi-head.4)
    q = linear(x[0], w.w_query, w.b_query)  # (..., n, num_heads * d_k) (multi-head.1)
    k = linear(x[1], w.w_key, w.b_key)  # (..., m, num_heads * d_k) (multi-head.2, multi-head.4)
    v = linear(x[2], w.w_value, w.b_value)  # (..., m, num_heads * d_v) (multi-head.3, multi-head.4)
    return [_split(array, num_heads) for array in (q, k, v)]


def backward(d_output: npt.ArrayLike, cache: Cache) -> Gradients:
    r"""The gradient of a loss with respect to every array of :func:`forward`.

    Parameters
    ----------
    d_output : array_like of float, (..., n, d_output)
        The gradient of the loss with respect to the output.
    cache : Cache
        From :func:`forward`.

    Returns
    -------
    Gradients
        `query`, `key`, `value`, `parameters` (a `Parameters` of gradients) and `bias`; None where there was no array.
        In self-attention, the gradient with respect to the one input is the sum of those of query, key and value.

    Raises
    ------
    TypeError
        If `cache` is another op's, or `d_output` is not of floating-point numbers.
    ValueError
        If `d_output` does not have the shape of the output.

    Notes
    -----
    With the gradients of the heads from :func:`attention_np.dot_product.backward`, side by side again:

    .. math::

        \frac{\partial L}{\partial W_o} = C^\top \frac{\partial L}{\partial Y}, \qquad
        \frac{\partial L}{\partial C} = \frac{\partial L}{\partial Y} W_o^\top, \qquad
        \frac{\partial L}{\partial W_q} = X_q^\top \frac{\partial L}{\partial Q}, \qquad
        \frac{\partial L}{\partial X_q} = \frac{\partial L}{\partial Q} W_q^\top

    and likewise for key and value; a bias gets the sum of the rows. Derived in ``derivations/multi_head.md``.
    The gradient of `b_key` is zero but for rounding: it moves all scores of a query alike, which softmax does not see.
    A gradient that does not fit the dtype is infinite; one below its normal numbers loses digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import multi_head
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 8))
    >>> parameters = multi_head.Parameters.random(8, rng=0)
    >>> output, cache = multi_head.forward(x, x, x, parameters, num_heads=4)
    >>> gradients = multi_head.backward(np.ones_like(output), cache)
    >>> gradients.query.shape, gradients.parameters.w_query.shape
    ((2, 5, 8), (8, 8))
    """
    cache = check_cache(cache, Cache, "multi_head")
    query, compute = cache.query, cache.weights.dtype
    d_output = with_query_axis(as_vector("d_output", d_output, cache.output_shape, compute), query)
    x, w = _arrays(cache)

    with quiet():
        gradients, between = _pull_back(d_output, x, w, _Inside(*cache.attention[:3], cache.combined), cache)
        results = (gradients.query, gradients.key, gradients.value, *gradients.parameters, gradients.bias)
        if left_range((*results, *between), (d_output, *x, *w, cache.attention.scale)):
            gradients, _ = _pull_back(widened(d_output), *_in_range(x, w, cache), cache)
    return gradients


def _pull_back(
    d_output: Array, x: Sequence[Array], w: Parameters, inside: _Inside, cache: Cache
) -> tuple[Gradients, tuple[Array, ...]]:
    """What :func:`backward` computes, of arrays that may be `widened`, and what is on the way to it."""
    # forward was output = combined @ w_output + b_output (multi-head.28, multi-head.29)
    d_combined, d_w_output, d_b_output = linear_backward(d_output, inside.combined, w.w_output)  # (multi-head.30)

    # forward was combined = the heads side by side, each attention(q, k, v)
    d_heads = _split(d_combined, cache.num_heads)  # (..., num_heads, n, d_v) (multi-head.32, multi-head.33)
    # (multi-head.34, multi-head.35, multi-head.36)
    *d_projected, d_scores = dot_product.pull_back(d_heads, inside.q, inside.k, inside.v, cache.attention)

    # forward was q = query @ w_query + b_query, and so on
    shapes = (part.shape for part in (inside.q, inside.k, inside.v))
    d_q, d_k, d_v = (_combine(sum_to(d, axes)) for d, axes in zip(d_projected, shapes, strict=True))  # (multi-head.38)
    # each is a linear map, as the one of the output is (multi-head.39)
    d_query, d_w_query, d_b_query = linear_backward(d_q, x[0], w.w_query)  # (multi-head.40)
    d_key, d_w_key, d_b_key = linear_backward(d_k, x[1], w.w_key)  # (multi-head.41)
    d_value, d_w_value, d_b_value = linear_backward(d_v, x[2], w.w_value)  # (multi-head.42)

    d_weights = (d_w_query, d_w_key, d_w_value, d_w_output)
    d_biases = (d_b_query, d_b_key, d_b_value, d_b_output)
    d_parameters = (
        None if array is None else as_gradient(d_array, array)
        for d_array, array in zip((*d_weights, *d_biases), cache.parameters, strict=True)
    )
    gradients = Gradients(
        as_gradient(without_query_axis(d_query, cache.query), cache.query),
        as_gradient(d_key, cache.key),
        as_gradient(d_value, cache.value),
        Parameters._make(d_parameters),
        None if cache.bias is None else as_gradient(d_scores, cache.bias),  # (multi-head.37)
    )
    return gradients, (d_combined, d_scores, d_q, d_k, d_v)


def jvp(
    cache: Cache,
    *,
    query: npt.ArrayLike | None = None,
    key: npt.ArrayLike | None = None,
    value: npt.ArrayLike | None = None,
    parameters: Parameters | None = None,
    bias: npt.ArrayLike | None = None,
) -> Array:
    r"""Forward mode: how the output moves when the inputs move along a tangent.

    Parameters
    ----------
    cache : Cache
        From :func:`forward`.
    query, key, value, bias : array_like of float, optional
        The tangents, each of the shape of its array; one that is left out is zero.
    parameters : Parameters, optional
        The tangents of the parameters; None in place of any of them is zero.

    Returns
    -------
    ndarray, (..., n, d_output)
        The tangent of the output.

    Raises
    ------
    TypeError
        If `cache` is another op's, `parameters` not a `Parameters`, or a tangent not of floating-point numbers.
    ValueError
        If a tangent does not have the shape of its array, or is given for an array that there was not.

    Notes
    -----
    :math:`\dot Q = \dot X_q W_q + X_q \dot W_q + \dot b_q`, likewise for key and value; each head as in
    :func:`attention_np.dot_product.jvp`; then :math:`\dot Y = \dot C W_o + C \dot W_o + \dot b_o`. Derived in
    ``derivations/multi_head.md``.
    A tangent that does not fit the dtype is infinite; one below its normal numbers loses digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import multi_head
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 8))
    >>> parameters = multi_head.Parameters.random(8, rng=0)
    >>> output, cache = multi_head.forward(x, x, x, parameters, num_heads=4)
    >>> multi_head.jvp(cache, query=np.ones_like(x)).shape
    (2, 5, 8)
    """
    cache = check_cache(cache, Cache, "multi_head")
    compute = cache.weights.dtype
    d_query = with_query_axis(as_tangent("query", query, cache.query, compute), cache.query)
    d_key = as_tangent("key", key, cache.key, compute)
    d_value = as_tangent("value", value, cache.value, compute)
    d_bias = as_optional_tangent("bias", bias, cache.bias, compute)
    d_w = _parameter_tangents(parameters, cache.parameters, compute)
    d_x = [d_query, d_key, d_value]
    x, w = _arrays(cache)

    with quiet():
        inside = _Inside(*cache.attention[:3], cache.combined)
        d_output, between = _push_forward(d_x, d_w, d_bias, x, w, inside, cache)
        if left_range((d_output, *between), (*d_x, *d_w, *x, *w, cache.attention.scale)):
            d_x, d_w = _widened(d_x), Parameters._make(_widened(d_w))
            d_output = np.asarray(_push_forward(d_x, d_w, d_bias, *_in_range(x, w, cache), cache)[0])

        dtype = precision(cache.query, cache.key, cache.value, *cache.parameters, cache.bias).result
        return as_result(without_query_axis(d_output, cache.query), dtype)


def _push_forward(
    d_x: Sequence[Array],
    d_w: Parameters,
    d_bias: Array | None,
    x: Sequence[Array],
    w: Parameters,
    inside: _Inside,
    cache: Cache,
) -> tuple[Array, tuple[Array, ...]]:
    """What :func:`jvp` computes, of arrays that may be `widened`, and what is on the way to it."""
    d_q = linear(d_x[0], w.w_query, d_w.b_query) + x[0] @ d_w.w_query  # (multi-head.58)
    d_k = linear(d_x[1], w.w_key, d_w.b_key) + x[1] @ d_w.w_key  # (multi-head.58)
    d_v = linear(d_x[2], w.w_value, d_w.b_value) + x[2] @ d_w.w_value  # (multi-head.58)
    q, k, v, combined = inside
    tangents = (*(_split(d, cache.num_heads) for d in (d_q, d_k, d_v)), d_bias)
    d_heads, d_scores = dot_product.push_forward(tangents, q, k, v, cache.attention)  # (multi-head.59)
    d_combined = _combine(d_heads)  # (..., n, num_heads * d_v) (multi-head.60)
    d_output: Array = linear(d_combined, w.w_output, d_w.b_output) + combined @ d_w.w_output  # (multi-head.60)
    return d_output, (d_scores, d_combined)


def _arrays(cache: Cache) -> tuple[tuple[Array, Array, Array], Parameters]:
    """The inputs and the parameters, in the precision computed in."""
    x_q, x_k, x_v, *w = in_dtype(cache.weights.dtype, cache.query, cache.key, cache.value, *cache.parameters)
    return (with_query_axis(x_q, cache.query), x_k, x_v), Parameters(*w)


def _in_range(x: Sequence[Array], w: Parameters, cache: Cache) -> tuple[Sequence[Array], Parameters, _Inside]:
    """The arrays `widened`, and what is between the projections, which need not fit the dtype."""
    x, w = _widened(x), Parameters._make(_widened(w))
    q, k, v = _project(x, w, cache.num_heads)
    attention = cache.attention
    dropped = dot_product.drop(attention.weights, attention.dropout)
    return x, w, _Inside(q, k, v, _combine(product(dropped, v, attention.mask)))


def _widened(arrays: Iterable[Array | None]) -> list[Any]:
    return [widened(array) for array in arrays]


def _check_parameters(query: Array, key: Array, value: Array, parameters: Parameters, num_heads: int) -> Parameters:
    """`parameters` as arrays, if they fit the inputs and the heads."""
    if not isinstance(parameters, Parameters):
        raise TypeError(f"parameters must be a multi_head.Parameters, not {type(parameters).__name__}")
    parameters = Parameters._make(
        None if array is None and name.startswith("b_") else as_floating(f"parameters.{name}", array)
        for name, array in parameters._asdict().items()
    )
    check_weight("parameters.w_query", parameters.w_query, "query", query)
    check_weight("parameters.w_key", parameters.w_key, "key", key)
    check_weight("parameters.w_value", parameters.w_value, "value", value)
    d_qk, d_v = parameters.w_query.shape[1], parameters.w_value.shape[1]
    if parameters.w_key.shape[1] != d_qk:
        raise ValueError(
            f"w_query and w_key must map to one number of features, not to {d_qk} and {parameters.w_key.shape[1]} "
            f"(parameters.w_query.shape={parameters.w_query.shape}, parameters.w_key.shape={parameters.w_key.shape})"
        )
    _check_heads("parameters.w_query", d_qk, num_heads, parameters.w_query.shape)
    _check_heads("parameters.w_value", d_v, num_heads, parameters.w_value.shape)
    if parameters.w_output.ndim != 2 or parameters.w_output.shape[0] != d_v:
        raise ValueError(
            f"w_output must take the {d_v} features that w_value gives (parameters.w_output.shape="
            f"{parameters.w_output.shape}, parameters.w_value.shape={parameters.w_value.shape})"
        )
    widths = {"b_query": d_qk, "b_key": d_qk, "b_value": d_v, "b_output": parameters.w_output.shape[1]}
    for name, size in widths.items():
        b = getattr(parameters, name)
        if b is not None:
            check_vector(f"parameters.{name}", b, size)
    return parameters


def _check_heads(name: str, features: int, num_heads: int, shape: tuple[int, ...]) -> None:
    if num_heads < 1 or features % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide the {features} features of {name} ({name}.shape={shape})")


def _parameter_tangents(tangents: Parameters | None, primals: Parameters, compute: np.dtype[np.generic]) -> Parameters:
    if tangents is None:
        tangents = Parameters(*[None] * len(primals))  # type: ignore[arg-type]
    if not isinstance(tangents, Parameters):
        raise TypeError(f"the tangent of parameters must be a multi_head.Parameters, not {type(tangents).__name__}")
    return Parameters._make(
        as_optional_tangent(f"parameters.{name}", getattr(tangents, name), primal, compute)
        for name, primal in primals._asdict().items()
    )


def _shaped(name: str, array: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    result = as_floating(name, array)
    if result.shape != shape:
        raise ValueError(f"{name} must have the shape {shape} ({name}.shape={result.shape})")
    return result
