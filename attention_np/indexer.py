r"""The indexer of sparse attention: a cheap score of each query for each key, by which the keys are selected.

.. math::

    I_{ij} = \sum_h w_{hi} \, \mathrm{relu}(s \, q_{hi} \cdot k_j), \qquad
    \frac{\partial L}{\partial q_{hi}} = s \sum_j D_{hij} k_j, \qquad
    D_{hij} = \frac{\partial L}{\partial I_{ij}} w_{hi} [q_{hi} \cdot k_j > 0]

Several small heads of queries share one key. :func:`top_k` makes a choice of the scores, which
:func:`attention_np.masks.selected` takes; no gradient goes through it, and a Kullback-Leibler divergence trains the
scores instead. The derivation is ``derivations/indexer.md`` of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_integer, as_mask, as_number, as_scale, broadcast_axes
from attention_np._lib.arrays import Array, precision, quiet, transposed
from attention_np._lib.dual import value_of
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product, backward_times
from attention_np._lib.wide import is_wide

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp", "top_k"]

VECTORIZED = ("query", "key", "weights")  # may carry any leading axes: for gradcheck
OP = passes.Op(factors=("scale",), has_products=True)


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    query: Array
    key: Array
    weights: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    query: Array  # (..., h, n, d)
    key: Array  # (..., m, d)
    weights: Array  # (..., h, n)
    mask: Array | None  # broadcasts to (..., n, m); None: nothing is hidden
    scale: Any  # a real scalar of the precision computed in
    activated: Array  # (..., h, n, m), zero where a product is cut off
    output_shape: tuple[int, ...]

    def in_range(self) -> Cache:
        """With its products made again, of inputs that are widened: a weight brings them back into range."""
        return self._replace(activated=cut_off(multiplied(self.query, self.key, self.scale)))


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    scale: float = 1.0,
) -> tuple[Array, Cache]:
    r"""The score of each of n queries for each of m keys.

    Parameters
    ----------
    query : array_like of float, (..., h, n, d)
        Of h small heads. The leading axes of all arrays, those before the heads, broadcast together.
    key : array_like of float, (..., m, d)
        One for all heads.
    weights : array_like of float, (..., h, n)
        How much each head of a query counts.
    mask : array_like of bool, optional
        True where query i may select key j; broadcasts to the scores, (..., n, m). By default all may.
    scale : float, optional
        What the products of queries and keys are multiplied by.

    Returns
    -------
    output : ndarray, (..., n, m)
        Minus infinity where the mask hides a pair: the gradient that comes in there is ignored, and the tangent is
        zero.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array, `mask` is not boolean, or `scale` is not a
        number.
    ValueError
        If shapes do not fit together, or `scale` is not finite.

    Notes
    -----
    :math:`I_{ij} = \sum_h w_{hi} \, \mathrm{relu}(s \, q_{hi} \cdot k_j)`, of DeepSeek-V3.2 [1]_, where the weights are
    projected from the token and carry the factors :math:`1 / \sqrt{h d}`. The slope of relu at zero is zero. A pair
    that is masked out contributes nothing to any gradient, even where its arrays hold NaN.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", arXiv:2512.02556, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import indexer, masks
    >>> query = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]]])  # two heads of two queries
    >>> key = np.array([[2.0, 1.0], [-1.0, 3.0], [1.0, 0.0]])
    >>> weights = np.array([[1.0, 1.0], [0.5, 2.0]])
    >>> output, cache = indexer.forward(query, key, weights, mask=masks.causal(2, 3, offset=1))
    >>> print(output)
    [[ 3.5  1.  -inf]
     [ 3.   3.   2. ]]
    >>> print(indexer.top_k(output, 2))
    [[0 1]
     [0 1]]
    >>> print(indexer.backward(np.ones((2, 3)), cache).weights)
    [[2. 4.]
     [5. 2.]]
    """
    query, key, weights = as_floating("query", query), as_floating("key", key), as_floating("weights", weights)
    shape = scores_shape(query, key, weights)
    mask = None if mask is None else np.atleast_2d(as_mask(mask, shape))
    as_number("scale", scale)  # None is no scale here
    scale = as_scale(scale, query.shape[-1], precision(query, key, weights).compute)
    return score(query, key, weights, mask=mask, scale=scale)


@passes.forward
def score(
    query: Array, key: Array, weights: Array, mask: Array | None, scale: Any
) -> tuple[Array, Cache, tuple[Array, ...]]:
    """What :func:`forward` computes, of arguments that it has checked."""
    activated = cut_off(multiplied(query, key, scale))  # (..., h, n, m)
    scores = (weights[..., None] * activated).sum(axis=-3)  # (..., n, m) (indexer.3)
    output = scores if mask is None else np.where(mask, scores, -np.inf)  # (..., n, m)
    cache = Cache(
        query=query, key=key, weights=weights, mask=mask, scale=scale, activated=activated, output_shape=output.shape
    )
    return output, cache, (scores,)


def multiplied(query: Array, key: Array, scale: Any) -> Array:
    """The products of each head of queries with the keys, scaled."""
    products: Array = query @ transposed(key)[..., None, :, :] * scale  # (..., h, n, m) (indexer.1)
    return products


def cut_off(products: Array) -> Array:
    """What is above zero, or NaN, and else zero."""
    real: Any = value_of(products).real
    return np.where((real.mantissa if is_wide(real) else real) <= 0, 0, products)  # (..., h, n, m) (indexer.2)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to every array of :func:`forward`, from that of the output, (..., n, m).

    What comes in for a pair that is hidden is ignored, and an entry that is exactly zero contributes nothing.
    """
    visible = d_output if cache.mask is None else np.where(cache.mask, d_output, 0)  # (..., n, m) (indexer.18)
    d_scores = visible[..., None, :, :]  # (..., 1, n, m)

    # forward was scores = the sum over heads of weights * activated
    d_weights = backward_times(d_scores, cache.activated).sum(axis=-1)  # (..., h, n) (indexer.6)
    d_activated = backward_times(d_scores, cache.weights[..., None])  # (..., h, n, m) (indexer.7)

    # forward was activated = relu(products), products = scale * query @ key^T
    d_products = np.where(cache.activated != 0, d_activated, 0)  # (..., h, n, m) (indexer.8)
    # (..., h, n, d) (indexer.9)
    d_query = backward_product(d_products, cache.key[..., None, :, :], cache.scale)
    # (..., m, d), a sum over the heads (indexer.10)
    d_key = backward_product(transposed(d_products), cache.query, cache.scale).sum(axis=-3)
    return Gradients(query=d_query, key=d_key, weights=d_weights), (d_activated,)


@passes.jvp
def jvp(
    cache: Cache, *, query: Tangent = None, key: Tangent = None, weights: Tangent = None
) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the output, (..., n, m), moves when the inputs move along a tangent; not where it is hidden."""
    d_products = multiplied(query, cache.key, cache.scale) + multiplied(cache.query, key, cache.scale)  # (indexer.12)
    d_activated = np.where(cache.activated != 0, d_products, 0)  # (..., h, n, m) (indexer.13)
    # (..., n, m) (indexer.14)
    d_scores = (weights[..., None] * cache.activated + cache.weights[..., None] * d_activated).sum(axis=-3)
    return d_scores if cache.mask is None else np.where(cache.mask, d_scores, 0), (d_scores,)


double_backward = passes.second_derivative(score, backward)


def top_k(scores: npt.ArrayLike, k: int) -> npt.NDArray[np.int64]:
    """The places of the k largest scores of each row: a choice, which has no gradient.

    Parameters
    ----------
    scores : array_like of float, (..., m)
        Minus infinity is not chosen; NaN counts as the largest, so that it shows.
    k : int
        How many are chosen, from 0 on.

    Returns
    -------
    ndarray of int, (..., k)
        The largest first, and of equal ones the earlier; -1 where fewer are visible, as
        :func:`attention_np.masks.selected` and :func:`attention_np.rules.selected` take it.

    Raises
    ------
    TypeError
        If `scores` is not of floating-point numbers, or is a masked array; if `k` is not an integer.
    ValueError
        If `scores` has no axis, or `k` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import indexer
    >>> print(indexer.top_k(np.array([[1.0, 3.0, 3.0, 2.0], [-np.inf, 0.0, -np.inf, -np.inf]]), 2))
    [[ 1  2]
     [ 1 -1]]
    """
    scores, k = as_floating("scores", scores), as_integer("k", k, least=0)
    if scores.ndim < 1:
        raise ValueError(f"scores must have at least one axis, (..., m) (scores.shape={scores.shape})")
    with quiet():
        numbers = scores.astype(precision(scores).compute, copy=False).real
        ranks = np.where(np.isnan(numbers), -np.inf, -numbers)  # (..., m), the least first
        order = ranks.argsort(axis=-1, kind="stable")[..., :k]  # (..., k)
        hidden = np.take_along_axis(ranks, order, axis=-1) == np.inf
    chosen = np.full((*scores.shape[:-1], k), -1, np.int64)
    chosen[..., : order.shape[-1]] = np.where(hidden, -1, order)
    return chosen


def scores_shape(query: Array, key: Array, weights: Array) -> tuple[int, ...]:
    """(..., n, m), if the arrays are heads of n queries, m keys, and a weight of each head of a query."""
    shapes = f"(query.shape={query.shape}, key.shape={key.shape}, weights.shape={weights.shape})"
    if query.ndim < 3:
        raise ValueError(f"query must have at least three axes, (..., h, n, features) (query.shape={query.shape})")
    if key.ndim < 2:
        raise ValueError(f"key must have at least two axes, (..., m, features) (key.shape={key.shape})")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has {key.shape[-1]} features but query has {query.shape[-1]} {shapes}")
    if weights.shape[-2:] != query.shape[-3:-1]:
        h, n = query.shape[-3:-1]
        raise ValueError(f"weights must have the shape (..., {h}, {n}), of the heads and queries {shapes}")
    leading = {"query": query.shape[:-3], "key": key.shape[:-2], "weights": weights.shape[:-2]}
    return (*broadcast_axes(leading), query.shape[-2], key.shape[-2])
