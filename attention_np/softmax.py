r"""Softmax and log-sum-exp: forward, backward, forward mode, and the Jacobian itself.

.. math::

    A_{ij} = \frac{e^{S_{ij}}}{\sum_l e^{S_{il}}}, \qquad
    \frac{\partial A_{ij}}{\partial S_{il}} = A_{ij} (\delta_{jl} - A_{il})

A score that is masked out, or minus infinity, has weight zero. A row that holds plus infinity is the limit: its
weights are shared among the entries that are plus infinity. Neither moves when a score does, so their gradient is zero.
A row with nothing to attend to has zero weights. The derivation is
``derivations/softmax.md`` of the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_integer, as_mask
from attention_np._lib.arrays import Array, as_result, computed_in, is_finite, precision, quiet
from attention_np._lib.dual import Dual, dual, value_of, velocity_of
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._softmax import rows

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jacobian", "jvp", "logsumexp"]

VECTORIZED = ("scores",)  # may carry any leading axes: for gradcheck


class Gradients(NamedTuple):
    """The gradient of the loss with respect to the array of :func:`forward`."""

    scores: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    scores: Array  # (..., m)
    mask: Array | None  # broadcasts to (..., m)
    axis: int
    logsumexp: Array  # (..., 1)
    weights: Array  # (..., m), in the dtype computed in

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return self.weights.shape


def forward(scores: npt.ArrayLike, *, axis: int = -1, mask: npt.ArrayLike | None = None) -> tuple[Array, Cache]:
    r"""Softmax of `scores` along one axis.

    Parameters
    ----------
    scores : array_like of float, (..., m)
        Any range: the largest score of each row is subtracted first.
    axis : int, optional
        The axis along which the weights sum to one, by default the last.
    mask : array_like of bool, optional
        True where a score takes part; broadcasts to `scores`. The weight of any other is zero.

    Returns
    -------
    weights : ndarray, (..., m)
        Non-negative; each row sums to one, or is zero if no score of it takes part.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to `scores`, without a copy; its weights are its own.

    Raises
    ------
    TypeError
        If `scores` is not of floating-point numbers, or is a masked array, or `mask` is not boolean.
    ValueError
        If there is no such axis, or `mask` does not broadcast to `scores`.

    Notes
    -----
    :math:`A_{ij} = e^{S_{ij} - m_i} / \sum_l e^{S_{il} - m_i}` with :math:`m_i = \max_j S_{ij}`, which equals the
    definition and cannot overflow [1]_.

    References
    ----------
    .. [1] P. Blanchard, D. J. Higham, N. J. Higham, "Accurately computing the log-sum-exp and softmax functions",
       IMA Journal of Numerical Analysis 41(4), 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import softmax
    >>> weights, cache = softmax.forward(np.array([1000.0, 1001.0, 1002.0]))
    >>> print(weights.round(4))
    [0.09   0.2447 0.6652]
    >>> weights, cache = softmax.forward(np.array([1.0, 2.0, 3.0]), mask=np.array([True, False, True]))
    >>> print(weights.round(4))
    [0.1192 0.     0.8808]
    >>> weights, cache = softmax.forward(np.array([0.0, 0.0, 0.0, 0.0]))
    >>> print(softmax.backward(np.array([1.0, 0.0, 0.0, 0.0]), cache).scores)
    [ 0.1875 -0.0625 -0.0625 -0.0625]
    >>> print(softmax.jvp(cache, scores=np.array([1.0, 0.0, 0.0, 0.0])))
    [ 0.1875 -0.0625 -0.0625 -0.0625]
    """
    cache = _checked(scores, axis, mask)
    return cache.weights.astype(precision(cache.scores).result), cache  # a copy


def _checked(scores: npt.ArrayLike, axis: int, mask: npt.ArrayLike | None) -> Cache:
    array = as_floating("scores", scores)
    axis = _as_axis(axis, array)
    with quiet():
        return normalised(array, axis, None if mask is None else as_mask(mask, array.shape))


def normalised(scores: Array, axis: int = -1, mask: Array | None = None, *, finite: bool = False) -> Cache:
    """What :func:`forward` leaves, for ops: arguments are not checked, and the weights are not copied.

    `finite` says that all scores are known to be finite, and so the largest of each row is, if it has any.
    """
    if isinstance(scores, Dual):
        of_values = normalised(scores.value, axis, mask)
        weights = dual(of_values.weights, times_jacobian(scores.velocity, of_values))  # (..., m) (softmax.37)
        logsumexp = dual(of_values.logsumexp, logsumexp_tangent(scores.velocity, of_values))  # (..., 1) (softmax.15)
        return of_values._replace(scores=scores, logsumexp=logsumexp, weights=weights)
    computed = scores.astype(computed_in(scores.dtype), copy=False)
    # (..., m) (softmax.61)
    visible = computed if mask is None else np.where(mask, computed, -np.inf)
    largest = visible.max(axis=axis, keepdims=True, initial=-np.inf)  # (..., 1) (softmax.6)
    has_limits = not (finite and mask is None) and not is_finite(largest)
    visible, shift = rows.limits(visible, largest) if has_limits else (visible, largest)

    exponentials = np.exp(visible - shift)  # (..., m) (softmax.7)
    total = exponentials.sum(axis=axis, keepdims=True)  # (..., 1)
    weights = np.divide(exponentials, total, out=exponentials)  # (..., m), in their memory (softmax.9)
    if has_limits:  # no weight where none takes part, though 0/0 and 0/nan are nan
        weights = np.where(visible.real == -np.inf, 0, weights)
    logsumexp = largest + np.log(total)  # (..., 1) (softmax.12)
    return Cache(scores, mask, axis % scores.ndim, logsumexp, weights)


def weights_and_cache(scores: Array, mask: Array | None, axis: int) -> tuple[Array, Cache]:
    """The weights, and what is left of them, of arguments that have been checked."""
    cache = normalised(scores, axis, mask)
    return cache.weights, cache


@passes.backward
def backward(d_weights: Tangent, cache: Cache) -> Gradients:
    """The gradient of a loss with respect to the scores: a vector-Jacobian product, without forming the Jacobian.

    It is zero wherever a score does not take part, and in every row whose `d_weights` is zero.
    """
    return Gradients(scores=times_jacobian(d_weights, cache))  # (..., m)


@passes.jvp
def jvp(cache: Cache, *, scores: Tangent = None) -> Array:
    """Forward mode: the tangent of the weights. The Jacobian is symmetric, so this is `backward` again."""
    return times_jacobian(scores, cache)  # (..., m)


def times_jacobian(vector: Array, cache: Cache) -> Array:
    """The Jacobian times `vector`, or `vector` times the Jacobian: it is symmetric. For ops."""
    if isinstance(cache.scores, Dual):
        of_values = Cache._make(map(value_of, cache))
        operands = value_of(vector), velocity_of(vector), cache.scores.velocity, of_values
        return dual(*backward_tangent(*operands)[:2])
    if not cache.weights.size:
        return vector
    return rows.where_weights_depend(deviation_from_mean, cache, vector)


def deviation_from_mean(vector: Array, weights: Array, axis: int, shift: bool = True) -> Array:
    """How far each entry of `vector` is above their weighted mean, times its weight: the Jacobian times `vector`.

    With `shift`, the entry at the heaviest weight is taken from its row first, which changes nothing but the rounding.
    """
    place = rows.heaviest(weights, axis) if shift else None
    above = vector if place is None else vector - rows.entry_at(place, vector, axis)  # (..., m) (softmax.85)
    mean = (weights * above).sum(axis=axis, keepdims=True)  # (..., 1) (softmax.30)
    deviation: Array = weights * (above - mean)  # (..., m) (softmax.23, softmax.32, softmax.37)
    return deviation


double_backward = passes.second_derivative(weights_and_cache, backward)


def backward_tangent(
    d_weights: Array, d_weights_tangent: Array | None, scores_tangent: Array, cache: Cache
) -> tuple[Array, Array, Array]:
    """The gradient of the scores, its tangent, and that of the weights, from those of the scores and `d_weights`.

    For ops. The second derivative of the weights, times both vectors, is the Jacobian times the product of how far each
    is above its mean: it does not matter which is which.
    """
    if not cache.weights.size:
        return d_weights, d_weights, scores_tangent
    weights, axis = cache.weights, cache.axis
    place = rows.heaviest(weights, axis)
    above, tangent_above = (rows.above_mean(x, weights, axis, place) for x in (d_weights, scores_tangent))
    product = above * tangent_above  # (..., m) (softmax.78)
    if d_weights_tangent is not None:
        product = product + d_weights_tangent  # (softmax.79)
    curved = rows.above_mean(product, weights, axis, place)
    results = above, curved, tangent_above  # (softmax.77, softmax.80)
    for array in results:
        array *= weights
    if all(map(is_finite, results)) and not rows.at_limit(cache).any():
        return results
    d_scores, weights_tangent = times_jacobian(d_weights, cache), times_jacobian(scores_tangent, cache)
    d_scores_tangent = rows.where_weights_depend(_deviation_of_product, cache, d_weights, scores_tangent)
    if d_weights_tangent is not None:
        d_scores_tangent = d_scores_tangent + times_jacobian(d_weights_tangent, cache)
    return d_scores, d_scores_tangent, weights_tangent


def _deviation_of_product(one: Array, other: Array, weights: Array, axis: int, shift: bool = True) -> Array:
    place = rows.heaviest(weights, axis) if shift else None

    def above_mean(vector: Array) -> Array:
        above = vector - rows.entry_at(place, vector, axis)  # (..., m)
        mean: Array = (weights * above).sum(axis=axis, keepdims=True)  # (..., 1)
        return above - mean

    return deviation_from_mean(above_mean(one) * above_mean(other), weights, axis, shift)  # (..., m)


def logsumexp_tangent(scores_tangent: Array, cache: Cache) -> Array:
    """The tangent of the log-sum-exp of each row, from that of its scores. For ops."""
    terms = np.where(rows.depends(cache), cache.weights * scores_tangent, 0)  # (..., m)
    total: Array = terms.sum(axis=cache.axis, keepdims=True)  # (..., 1) (softmax.15)
    return total


def backward_tangent_with_logsumexp(
    d_weights: Array, d_weights_tangent: Array, scores_tangent: Array, d_logsumexp: Array | None, cache: Cache
) -> tuple[Array, Array, Array]:
    """As :func:`backward_tangent`, with what the gradient of the log-sum-exp of each row, (..., 1), adds to it."""
    d_scores, d_scores_tangent, weights_tangent = backward_tangent(d_weights, d_weights_tangent, scores_tangent, cache)
    if d_logsumexp is None:
        return d_scores, d_scores_tangent, weights_tangent
    d_rows = np.where(rows.depends(cache), d_logsumexp, 0)  # its slope is the weights (softmax.15)
    d_scores = d_scores + backward_times(d_rows, cache.weights)  # (..., m)
    return d_scores, d_scores_tangent + backward_times(d_rows, weights_tangent), weights_tangent


def jacobian(scores: npt.ArrayLike, *, axis: int = -1, mask: npt.ArrayLike | None = None) -> Array:
    r"""The Jacobian of softmax as a matrix, ``diag(a) - a a^T`` for each row of weights.

    Parameters
    ----------
    scores, axis, mask
        As for :func:`forward`.

    Returns
    -------
    ndarray, (..., m, m)
        Entry (i, j) is the derivative of weight i with respect to score j. The axis of the softmax comes last, twice;
        the other axes keep their order.

    Raises
    ------
    TypeError, ValueError
        As for :func:`forward`.

    Notes
    -----
    :math:`\frac{\partial A_{ij}}{\partial S_{il}} = A_{ij} (\delta_{jl} - A_{il})`. It takes m times the memory of
    :func:`backward`, and is meant for reading and for checking.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import softmax
    >>> print(softmax.jacobian(np.array([0.0, 0.0])))
    [[ 0.25 -0.25]
     [-0.25  0.25]]
    """
    cache = _checked(scores, axis, mask)
    weights = np.moveaxis(cache.weights, cache.axis, -1)  # (..., m)
    with quiet():
        eye = np.eye(weights.shape[-1], dtype=weights.dtype)
        products = weights[..., :, None] * weights[..., None, :] * (1 - eye)  # (..., m, m) (softmax.17)
        # As 1 - a is the sum of the other weights, a (1 - a) is a row sum, exact even where a is nearly 1 (softmax.16).
        diagonal = products.sum(axis=-1)[..., None] * eye  # (softmax.24)
        matrix = diagonal - products  # (..., m, m) (softmax.21)
        if not np.isfinite(cache.logsumexp).all():
            dependent = np.moveaxis(rows.depends(cache), cache.axis, -1)
            matrix = np.where(dependent[..., :, None] & dependent[..., None, :], matrix, 0)
        return as_result(matrix, precision(cache.scores).result)


def logsumexp(scores: npt.ArrayLike, *, axis: int = -1, mask: npt.ArrayLike | None = None) -> Array:
    r"""The logarithm of the sum of the exponentials of `scores` along one axis.

    Parameters
    ----------
    scores, axis, mask
        As for :func:`forward`.

    Returns
    -------
    ndarray, (...)
        One number a row: minus infinity where no score takes part, plus infinity where a score is.

    Raises
    ------
    TypeError, ValueError
        As for :func:`forward`.

    Notes
    -----
    :math:`\ell_i = m_i + \log \sum_j e^{S_{ij} - m_i}`, so that :math:`A_{ij} = e^{S_{ij} - \ell_i}`.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import softmax
    >>> print(softmax.logsumexp(np.array([[1000.0, 1000.0], [0.0, -np.inf]])).round(4))
    [1000.6931    0.    ]
    """
    cache = _checked(scores, axis, mask)
    with quiet():
        return as_result(np.squeeze(cache.logsumexp, axis=cache.axis), precision(cache.scores).result)


def _as_axis(axis: int, scores: Array) -> int:
    index = as_integer("axis", axis)
    if not -scores.ndim <= index < scores.ndim:
        raise ValueError(f"scores has no axis {index} (scores.shape={scores.shape})")
    return index % scores.ndim
