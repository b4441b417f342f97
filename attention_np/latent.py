r"""Multi-head latent attention: keys and values of all heads are made of one short vector for each token, its latent.

.. math::

    k_{hj} = [W_{K,h}^\top c_j; \, k^R_j], \quad v_{hj} = W_{V,h}^\top c_j, \qquad
    s_{hij} = \tau \left( q_{hi} \cdot W_{K,h}^\top c_j + q^R_{hi} \cdot k^R_j \right), \qquad
    o_{hi} = \sum_j A_{hij} v_{hj}

The same is had without any key or value of a head: since :math:`q \cdot W^\top c = (W q) \cdot c`, the query can be
taken to the latents instead, and what attention makes of the latents to the output. That is the *absorbed* form:
dot-product attention of the heads, as so many queries, over one set of keys, :math:`[c_j; k^R_j]`, with the values
:math:`c_j`. The derivation, and the proof that output and gradients are the same, is ``derivations/latent.md`` of the
package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from attention_np import biases, dot_product
from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_bias,
    as_flag,
    as_floating,
    as_optional,
    as_scale,
    as_sink,
    as_softcap,
    broadcast_axes,
)
from attention_np._lib.arrays import Array, precision, sum_to, transposed
from attention_np._lib.dual import dual
from attention_np._lib.passes import Tangent
from attention_np._lib.products import product
from attention_np.biases import Bias, OfBlock, Operands
from attention_np.linear import affine_gradients, affine_map, affine_tangent
from attention_np.masks import visible_pairs

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

# Query, its rotary part, latents, their rotary part, and what makes keys and values of them, as in `Gradients`
Arrays: TypeAlias = tuple[Array, Array | None, Array, Array | None, Array, Array]

VECTORIZED = ("query", "query_rotary", "latent", "key_rotary", "bias")  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("bias", "sink"), factors=("scale",), has_products=True)


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    query_rotary: Array | None
    latent: Array
    key_rotary: Array | None
    w_key: Array
    w_value: Array
    bias: Array | None
    sink: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    query: Array  # (..., h, n, d_n)
    query_rotary: Array | None  # (..., h, n, d_r)
    latent: Array  # (..., m, r)
    key_rotary: Array | None  # (..., m, d_r)
    w_key: Array  # (h, r, d_n)
    w_value: Array  # (h, r, d_v)
    bias: Any  # broadcasts to (..., h, n, m); or a Bias; or a list of them; or None
    sink: Array | None  # broadcasts to (..., h)
    absorbed: bool
    mask: Array | None  # who attends to whom, all rules together; broadcasts to (..., h, n, m); None: all to all
    scale: Any  # a real scalar of the precision computed in
    softcap: Any  # the same, or None
    weights: Array  # (..., h, n, m)
    attention: dot_product.Cache  # absorbed and without a sink, the heads are rows of one attention: (..., h * n, m)
    heads: Any  # absorbed, means of latents, (..., h, n, r), which w_value is yet to be applied to; plain None
    output_shape: tuple[int, ...]

    @property
    def arrays(self) -> Arrays:
        """What queries, keys and values are made of."""
        return self[:6]

    @property
    def as_rows(self) -> bool:
        """Whether the heads are rows of one attention."""
        return self.absorbed and self.sink is None

    @property
    def width(self) -> int:
        """How many features of queries and keys meet that have no position."""
        return int((self.latent if self.absorbed else self.query).shape[-1])

    def in_range(self) -> Cache:
        """With its products made again, of inputs that are widened: those on the way need not fit the dtype."""
        q, k, v, as_rows = operands(self.arrays, self.absorbed, self.sink)
        heads = None
        if self.absorbed:
            heads = _rows_as_heads(product(self.attention.weights, v, self.attention.mask), self.query, as_rows)
        return self._replace(attention=self.attention._replace(query=q, key=k, value=v), heads=heads)


def forward(
    query: npt.ArrayLike,
    query_rotary: npt.ArrayLike | None,
    latent: npt.ArrayLike,
    key_rotary: npt.ArrayLike | None,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    absorbed: bool = False,
    mask: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | Bias | Sequence[npt.ArrayLike | Bias] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    softcap: float | None = None,
    sink: npt.ArrayLike | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n queries in h heads over m latents.

    Parameters
    ----------
    query : array_like of float, (..., h, n, d_n)
        What of the queries meets keys that are made of latents. The leading axes of all arrays, those before heads
        and tokens, broadcast together.
    query_rotary : array_like of float, (..., h, n, d_r), or None
        What of the queries meets `key_rotary`: both turned by their positions already, as by
        :mod:`attention_np.rotary`. Absorbed keys cannot be turned, so positions have features of their own.
    latent : array_like of float, (..., m, r)
    key_rotary : array_like of float, (..., m, d_r), or None
        One for all heads.
    w_key : array_like of float, (h, r, d_n)
        What makes the keys of each head of the latents.
    w_value : array_like of float, (h, r, d_v)
    absorbed : bool, optional
        Take the queries to the latents, and not the latents to keys and values of each head: the same numbers, but for
        rounding. It is the faster the fewer queries there are.
    mask : array_like of bool, optional
        True where query i may attend to key j; broadcasts to the scores, (..., h, n, m).
    bias : array_like of float or Bias, or list of them, optional
        Added to the scores, as in :func:`attention_np.dot_product.forward`. For one of :mod:`attention_np.biases` that
        reads queries or keys these are the two parts side by side, of d_n + d_r features. One that reads keys needs the
        plain form, since the absorbed has none.
    scale : float, optional
        What the products are multiplied by, by default ``1 / sqrt(d_n + d_r)``. DeepSeek multiplies it by the square of
        its YaRN amplitude.
    is_causal, softcap
        As for :func:`attention_np.dot_product.forward`.
    sink : array_like of float, (h,) or (...), optional
        As there: one more score for each query, without a value; broadcasts to (..., h).

    Returns
    -------
    output : ndarray, (..., h, n, d_v)
    cache : Cache
        The named intermediates, `weights` among them. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `mask` is not boolean, or an option is not
        of its type.
    ValueError
        If shapes do not fit together, if there is one rotary part without the other, or an option is refused by
        :func:`attention_np.dot_product.forward`.

    Notes
    -----
    DeepSeek-AI [1]_. Of a token a cache keeps the latent and the rotary key, r + d_r numbers for all heads together,
    where keys and values of h heads are h (d_n + d_r + d_v). What is out of range on the way, or hidden, is treated as
    in :mod:`attention_np.dot_product`.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model",
       arXiv:2405.04434, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import latent
    >>> rng = np.random.default_rng(0)
    >>> query, query_rotary = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 2))  # two heads of three queries
    >>> latents, key_rotary = rng.normal(size=(5, 6)), rng.normal(size=(5, 2))  # of five tokens
    >>> w_key, w_value = rng.normal(size=(2, 6, 4)), rng.normal(size=(2, 6, 3))
    >>> arrays = query, query_rotary, latents, key_rotary, w_key, w_value
    >>> plain, cache = latent.forward(*arrays)
    >>> absorbed, of_absorbed = latent.forward(*arrays, absorbed=True)
    >>> plain.shape, bool(np.allclose(plain, absorbed, rtol=0, atol=1e-14))
    ((2, 3, 3), True)
    >>> one, other = latent.backward(plain, cache), latent.backward(plain, of_absorbed)
    >>> bool(np.allclose(one.w_key, other.w_key, rtol=0, atol=1e-13))
    True
    """
    query, latent = as_floating("query", query), as_floating("latent", latent)
    w_key, w_value = as_floating("w_key", w_key), as_floating("w_value", w_value)
    if (query_rotary is None) != (key_rotary is None):
        one, other = ("key", "query") if query_rotary is None else ("query", "key")
        raise ValueError(f"{other}_rotary is missing: {one}_rotary meets it in the scores, so both are given or none")
    of_queries, of_keys = as_optional("query_rotary", query_rotary), as_optional("key_rotary", key_rotary)
    arrays = query, of_queries, latent, of_keys, w_key, w_value
    present = [x for x in arrays if x is not None]
    added, is_absorbed = as_bias(bias, *present), as_flag("absorbed", absorbed)
    if is_absorbed and any(getattr(one, "of", None) == "key" for one in biases.terms_of(added)):
        raise ValueError("bias reads the keys, of which the absorbed form has none: use absorbed=False")
    shape = scores_shape(arrays)
    width = query.shape[-1] + (0 if of_queries is None else of_queries.shape[-1])
    biases.check(added, shape, width)
    sink = as_sink(sink, shape, *present)
    compute = precision(*present, *biases.terms_of(added), sink).compute
    options: Any = {"absorbed": is_absorbed, "mask": visible_pairs(shape, mask, added, is_causal)}
    options |= {"scale": as_scale(scale, width, compute), "softcap": as_softcap(softcap, compute)}
    return attend(*arrays, added, sink, **options)


@passes.forward
def attend(
    query: Array,
    query_rotary: Array | None,
    latent: Array,
    key_rotary: Array | None,
    w_key: Array,
    w_value: Array,
    bias: Any,
    sink: Array | None,
    absorbed: bool,
    mask: Array | None,
    scale: Any,
    softcap: Any,
) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    q, k, v, as_rows = operands((query, query_rotary, latent, key_rotary, w_key, w_value), absorbed, sink)
    term, visible = bias, mask
    if absorbed and bias is not None:  # which may read the queries of the plain form
        term = biases.term(bias, _operands_of_bias(query, query_rotary, latent, scale))
        if term is not None and not isinstance(bias, np.ndarray):
            *leading, n, m = np.broadcast_shapes(term.shape, (*query.shape[-3:-1], latent.shape[-2]))
            visible = visible_pairs((*leading, n, m), mask, term, is_causal=False)
    if as_rows:
        term, visible = (_heads_as_rows(_over_heads(x, query)) for x in (term, visible))
    # (latent.3, latent.4, latent.5), absorbed (latent.8, latent.9, latent.11)
    attended, attention = dot_product.attend.mathematics(q, k, v, term, sink, scale, visible, softcap, None)
    heads = _rows_as_heads(attended, query, as_rows)  # (..., h, n, d_v), absorbed (..., h, n, r)
    output = affine_map(heads, w_value, None) if absorbed else heads  # (..., h, n, d_v) (latent.10)
    inputs = query, query_rotary, latent, key_rotary, w_key, w_value, bias, sink
    weights, kept = _rows_as_heads(attention.weights, query, as_rows), heads if absorbed else None
    cache = Cache._make((*inputs, absorbed, mask, scale, softcap, weights, attention, kept, output.shape))
    # What was made: what stands beside it in queries and keys could hide that it has left the range.
    made = (q[..., : cache.width],) if absorbed else (k[..., : cache.width], v)
    return output, cache, (*made, heads)


def operands(arrays: Arrays, absorbed: bool, sink: Array | None) -> tuple[Array, Array, Array, bool]:
    """Queries, keys and values of a dot-product attention, and whether the heads are rows of one, side by side."""
    query, query_rotary, latent, key_rotary, w_key, w_value = arrays
    latents = latent[..., None, :, :]  # (..., 1, m, r)
    of_keys = None if key_rotary is None else key_rotary[..., None, :, :]  # (..., 1, m, d_r)
    if not absorbed:
        keys = beside(affine_map(latents, w_key, None), of_keys)  # (..., h, m, d_n + d_r) (latent.1, latent.3)
        values = affine_map(latents, w_value, None)  # (..., h, m, d_v) (latent.2)
        return beside(query, query_rotary), keys, values, False
    absorbing = affine_map(query, transposed(w_key), None)  # (..., h, n, r) (latent.6, latent.7)
    queries = beside(absorbing, query_rotary)  # (..., h, n, r + d_r) (latent.8)
    keys = beside(latents, of_keys)  # (..., 1, m, r + d_r) (latent.8)
    if sink is not None:  # which is of a head
        return queries, keys, latents, False
    return _heads_as_rows(queries), keys[..., 0, :, :], latent, True


def beside(x: Array, turned: Array | None) -> Array:
    """The features of `x`, followed by the features that carry positions, if there are any."""
    if turned is None:
        return x
    leading = np.broadcast_shapes(x.shape[:-1], turned.shape[:-1])
    parts = [np.broadcast_to(part, (*leading, part.shape[-1])) for part in (x, turned)]
    return np.concatenate(parts, axis=-1)


def _operands_of_bias(query: Array, query_rotary: Array | None, latent: Array, scale: Any) -> Operands:
    """What a bias of all scores of the absorbed form may read; keys are none."""
    n, m = query.shape[-2], latent.shape[-2]
    return Operands(slice(0, n), slice(0, m), beside(query, query_rotary) * scale, latent, scale)


def _over_heads(x: Any, query: Array) -> Any:
    """What is of pairs, with the axes for heads and queries that it broadcasts to; None stays None."""
    return x if x is None else np.broadcast_to(x, np.broadcast_shapes(x.shape, (*query.shape[-3:-1], 1)))


def _heads_as_rows(x: Any) -> Any:
    """(..., h, n, d) as (..., h * n, d), the queries of all heads below each other; None stays None."""
    if x is None:
        return None
    *leading, h, n, d = x.shape
    return x.reshape(*leading, h * n, d)


def _rows_as_heads(x: Array, query: Array, as_rows: bool) -> Array:
    """The reverse of :func:`_rows`."""
    return x.reshape(*x.shape[:-2], *query.shape[-3:-1], x.shape[-1]) if as_rows else x


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from the output's, (..., h, n, d_v)."""
    query, w_key, w_value, attention = cache.query, cache.w_key, cache.w_value, cache.attention
    as_rows, latents = cache.as_rows, cache.latent[..., None, :, :]  # (..., 1, m, r)
    d_w_value = d_heads = d_output
    if cache.absorbed:
        # forward was output = heads @ w_value
        d_heads, d_w_value, _ = affine_gradients(d_output, cache.heads, w_value)  # (latent.21, latent.22)

    # forward was heads = attention(q, k, v)
    # (latent.12, latent.13, latent.14), absorbed (latent.23, latent.24)
    d_attended = _heads_as_rows(d_heads) if as_rows else d_heads
    of_attention, (d_scores, _) = dot_product.backward.mathematics(d_attended, attention)
    d_q, d_k, d_v = (sum_to(d, x.shape) for d, x in zip(of_attention[:3], attention[:3], strict=True))
    d_q = _rows_as_heads(d_q, query, as_rows)  # (..., h, n, d_n + d_r), absorbed (..., h, n, r + d_r)
    if as_rows:
        d_k, d_v = d_k[..., None, :, :], d_v[..., None, :, :]

    # forward was q = [queries, query_rotary], k = [keys, key_rotary]
    d_query, d_query_rotary = d_q[..., : cache.width], d_q[..., cache.width :]
    d_keys = d_k[..., : cache.width]
    d_key_rotary = d_k[..., cache.width :].sum(axis=-3)  # (..., m, d_r), a sum over the heads (latent.15)
    intermediate = d_query, d_keys, d_v
    if cache.absorbed:
        # forward was queries = query @ w_key^T, and latents were keys and values
        d_query, d_w_key, _ = affine_gradients(d_query, query, transposed(w_key))  # (latent.25, latent.26)
        d_w_key = transposed(d_w_key)  # (h, r, d_n)
        d_by_keys, d_by_values = d_keys, d_v  # (..., 1, m, r)
    else:
        # forward was keys = latents @ w_key, values = latents @ w_value
        d_by_keys, d_w_key, _ = affine_gradients(d_keys, latents, w_key)  # (latent.16)
        d_by_values, d_w_value, _ = affine_gradients(d_v, latents, w_value)  # (latent.17)

    # A latent is in both; each is summed over what it was broadcast along by itself.
    d_by_keys, d_by_values = (sum_to(x.sum(axis=-3), cache.latent.shape) for x in (d_by_keys, d_by_values))
    d_latent = d_by_keys + d_by_values  # (..., m, r) (latent.18, latent.27)

    d_scores = _rows_as_heads(d_scores, query, as_rows)  # (..., h, n, m)
    of_bias = OfBlock(of_attention.bias)  # (latent.19)
    if cache.absorbed and cache.bias is not None:
        read = _operands_of_bias(query, cache.query_rotary, cache.latent, cache.scale)
        of_bias = biases.gradients(cache.bias, d_scores, read)
        if of_bias.query is not None:
            d_bias_query = of_bias.query * cache.scale  # (..., h, n, d_n + d_r)
            d_query = d_query + d_bias_query[..., : query.shape[-1]]
            d_query_rotary = d_query_rotary + d_bias_query[..., query.shape[-1] :]
    has_rotary = cache.key_rotary is not None
    gradients = Gradients(
        query=d_query,
        query_rotary=d_query_rotary if has_rotary else None,
        latent=d_latent,
        key_rotary=d_key_rotary if has_rotary else None,
        w_key=d_w_key,
        w_value=d_w_value,
        bias=of_bias.array,
        sink=of_attention.sink,
    )
    return gradients, (d_scores, d_heads, *intermediate)


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    query_rotary: Tangent = None,
    latent: Tangent = None,
    key_rotary: Tangent = None,
    w_key: Tangent = None,
    w_value: Tangent = None,
    bias: Tangent = None,
    sink: Tangent = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the output, (..., h, n, d_v), moves when the inputs move along a tangent."""
    latents, d_latents = cache.latent[..., None, :, :], latent[..., None, :, :]  # (..., 1, m, r)
    d_of_keys = None if key_rotary is None else key_rotary[..., None, :, :]
    if cache.absorbed:
        d_query = affine_tangent(cache.query, transposed(cache.w_key), query, transposed(w_key), None)  # (latent.31)
        d_keys, d_values = d_latents, d_latents
    else:
        d_query = query
        d_keys = affine_tangent(latents, cache.w_key, d_latents, w_key, None)  # (..., h, m, d_n) (latent.29)
        d_values = affine_tangent(latents, cache.w_value, d_latents, w_value, None)  # (..., h, m, d_v) (latent.30)
    d_q, d_k, d_v = beside(d_query, query_rotary), beside(d_keys, d_of_keys), d_values
    if cache.absorbed and cache.bias is not None:
        of_queries = None if cache.query_rotary is None else dual(cache.query_rotary, query_rotary)
        read = _operands_of_bias(dual(cache.query, query), of_queries, cache.latent, cache.scale)
        bias = biases.tangent(cache.bias, bias, read)
    if cache.as_rows:
        d_q, d_k, d_v = _heads_as_rows(d_q), d_k[..., 0, :, :], d_v[..., 0, :, :]
        bias = _heads_as_rows(_over_heads(bias, cache.query))
    # (latent.33, latent.34)
    d_heads, (d_scores,) = dot_product.jvp.mathematics(
        cache.attention, query=d_q, key=d_k, value=d_v, bias=bias, sink=sink
    )
    d_heads = _rows_as_heads(d_heads, cache.query, cache.as_rows)
    if not cache.absorbed:
        return d_heads, (d_scores, d_q, d_k, d_v)
    # (..., h, n, d_v) (latent.32)
    d_output = affine_tangent(cache.heads, cache.w_value, d_heads, w_value, None)
    return d_output, (d_scores, d_q, d_heads)


double_backward = passes.second_derivative(attend, backward)


def scores_shape(arrays: Arrays) -> tuple[int, ...]:
    """(..., h, n, m), if the arrays fit together."""
    query, query_rotary, latent, key_rotary, w_key, w_value = arrays
    if query.ndim < 3:
        raise ValueError(f"query must have at least three axes, (..., h, n, features) (query.shape={query.shape})")
    if latent.ndim < 2:
        raise ValueError(f"latent must have at least two axes, (..., m, features) (latent.shape={latent.shape})")
    (h, n, d_n), (m, r) = query.shape[-3:], latent.shape[-2:]
    if w_key.shape != (h, r, d_n):
        raise ValueError(
            f"w_key must have the shape (heads, features of latent, features of query), {(h, r, d_n)} "
            f"(w_key.shape={w_key.shape}, latent.shape={latent.shape}, query.shape={query.shape})"
        )
    if w_value.ndim != 3 or w_value.shape[:2] != (h, r):
        raise ValueError(
            f"w_value must have the shape (heads, features of latent, features of value), ({h}, {r}, d_v) "
            f"(w_value.shape={w_value.shape}, latent.shape={latent.shape}, query.shape={query.shape})"
        )
    leading = {"query": query.shape[:-3], "latent": latent.shape[:-2]}
    if query_rotary is not None and key_rotary is not None:
        shapes = f"(query_rotary.shape={query_rotary.shape}, key_rotary.shape={key_rotary.shape})"
        if query_rotary.shape[-3:-1] != (h, n):
            raise ValueError(f"query_rotary must have the shape (..., {h}, {n}, d_r), as query has it {shapes}")
        if key_rotary.ndim < 2 or key_rotary.shape[-2] != m:
            raise ValueError(f"key_rotary must have the shape (..., {m}, d_r), a row for each latent {shapes}")
        if query_rotary.shape[-1] != key_rotary.shape[-1]:
            of = f"{key_rotary.shape[-1]} features but query_rotary has {query_rotary.shape[-1]}"
            raise ValueError(f"key_rotary has {of} {shapes}")
        leading |= {"query_rotary": query_rotary.shape[:-3], "key_rotary": key_rotary.shape[:-2]}
    return (*broadcast_axes(leading), h, n, m)
