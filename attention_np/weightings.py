r"""How scores become weights, where it is not by softmax: sigmoid, silu, sparsemax, entmax, softpick, stick-breaking.

Each is an object with the three passes of its own, and is given to an attention as ``weights_by=``. Sparsemax and
entmax are what softmax is, the best answer to the scores of a row under a price on certainty, with another price:

.. math::

    W_i = \arg\max_{p \ge 0, \, \sum_j p_j = 1} \sum_j p_j S_{ij} - \Omega(p), \qquad
    \frac{\partial L}{\partial S_{ij}} = D_{ij} \Big( G_{ij} - \frac{\sum_l D_{il} G_{il}}{\sum_l D_{il}} \Big), \qquad
    D_{ij} = W_{ij}^{2 - \alpha}

In all of them a pair that is masked out, or whose score is minus infinity, has weight zero, and so have all keys of a
query that may attend to nothing. The derivation is ``derivations/weightings.md`` of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np._lib import passes
from attention_np._lib.arguments import as_floating, as_mask, as_number
from attention_np._lib.arrays import Array, is_finite
from attention_np._lib.dual import Dual, dual
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.tails import sigmoids
from attention_np._lib.text import shortened
from attention_np._softmax import rows
from attention_np._weightings.thresholds import largest_of_sparsemax, logarithms_of_entmax
from attention_np.activation import KINDS

__all__ = [
    "Cache",
    "Gradients",
    "Weighting",
    "backward",
    "double_backward",
    "entmax",
    "forward",
    "jvp",
    "sigmoid",
    "silu",
    "softpick",
    "sparsemax",
    "stick_breaking",
]

VECTORIZED = ("scores",)  # may carry any leading axes: for gradcheck
OP = passes.Op(added=("scores",))


class Gradients(NamedTuple):
    """The gradient of the loss with respect to the array of :func:`forward`, of its shape and dtype."""

    scores: Array


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    scores: Array  # (..., m)
    mask: Array | None  # broadcasts to (..., m)
    weights_by: Weighting
    visible: Array  # (..., m), of bool: neither masked out nor minus infinity
    weights: Array  # (..., m), in the dtype computed in
    parts: Any  # what the gradient is made of: one of the tuples below
    output_shape: tuple[int, ...]


class Slopes(NamedTuple):
    """Where each weight depends on its own score alone, or on a threshold beside it."""

    slopes: Array  # (..., m): how fast a weight grows with its score, its threshold held
    shares: Array | None  # (..., m): the slopes by their sum; None without a threshold


class Picks(NamedTuple):
    """Of softpick: by its denominator, how fast each of its terms grows, and what goes to no weight."""

    positive: Array  # (..., m), of bool: the score is
    slopes: Array  # (..., m)
    lost: Array  # (..., 1)


class Breaks(NamedTuple):
    """Of stick-breaking: what share of the rest a key takes, and what share it leaves."""

    taken: Array  # (..., m)
    left: Array  # (..., m)


@dataclass(frozen=True, repr=False)
class Weighting:
    """How scores become weights, row by row. A subclass defines `weights_and_parts`, `gradient` and `tangent`."""

    name: ClassVar[str]
    sums_to_one: ClassVar[bool] = False  # the weights of a row, which a number added to all its scores does not change
    is_of_each: ClassVar[bool] = False  # whether a weight depends on its own score alone

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def forward(self, scores: npt.ArrayLike, *, mask: npt.ArrayLike | None = None) -> tuple[Array, Cache]:
        """The weights of `scores`, (..., m), along their last axis; `mask`, which broadcasts to them, as in softmax."""
        return forward(scores, weights_by=self, mask=mask)

    def backward(self, d_weights: npt.ArrayLike, cache: Cache) -> Array:
        """The gradient of the scores, (..., m), from that of the weights."""
        return backward(d_weights, self._own(cache)).scores

    def jvp(self, cache: Cache, d_scores: npt.ArrayLike) -> Array:
        """Forward mode: how the weights, (..., m), move when the scores move with `d_scores`."""
        return jvp(self._own(cache), scores=d_scores)

    def _own(self, cache: Cache) -> Cache:
        if isinstance(cache, Cache) and cache.weights_by != self:
            raise TypeError(f"cache must be of {self}, not of {cache.weights_by}")
        return cache

    def in_range(self, scores: Array, less_largest: Array, tops: Array | None) -> Array:
        """What to weigh where scores do not fit the dtype: they with its largest numbers, or rows less their largest.

        `tops` is the infinity that the largest of such a row is, (..., 1), zero in the others, and None without any.
        """
        del less_largest, tops
        return scores

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Any]:
        """Weights, (..., m), and the parts of a cache, of scores that are zero where they are not `visible`."""
        raise NotImplementedError

    def gradient(self, d_weights: Array, cache: Cache) -> Array:
        """The gradient of the scores, (..., m)."""
        raise NotImplementedError

    def tangent(self, d_scores: Array, cache: Cache) -> Array:
        """The tangent of the weights, (..., m)."""
        raise NotImplementedError


def forward(
    scores: npt.ArrayLike, *, weights_by: Weighting | None = None, mask: npt.ArrayLike | None = None
) -> tuple[Array, Cache]:
    """The weights of `scores` along their last axis, as an op: what the method of each object is.

    Parameters
    ----------
    scores : array_like of float, (..., m)
        Minus infinity hides an entry, as the mask does.
    weights_by : Weighting, optional
        One of those of this module, by default ``entmax()``.
    mask : array_like of bool, optional
        True where a score takes part; broadcasts to `scores`. The weight of any other is zero.

    Returns
    -------
    weights : ndarray, (..., m)
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to `scores`, without a copy.

    Raises
    ------
    TypeError
        If `scores` is not of floating-point numbers, or is a masked array, `mask` is not boolean, or `weights_by` is
        no `Weighting`.
    ValueError
        If `scores` has no axis, or `mask` does not broadcast to it.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> scores = np.array([1.6, 1.2, -1.0])
    >>> for kind in (weightings.sparsemax(), weightings.entmax()):
    ...     weights, cache = kind.forward(scores)
    ...     print(weights.round(4), kind.backward(np.array([1.0, 0.0, 1.0]), cache).round(4))
    [0.7 0.3 0. ] [ 0.5 -0.5  0. ]
    [0.64 0.36 0.  ] [ 0.3429 -0.3429  0.    ]
    """
    scores = as_floating("scores", scores)
    if scores.ndim < 1:
        raise ValueError(f"scores must have at least one axis, (..., m) (scores.shape={scores.shape})")
    weights_by = entmax() if weights_by is None else weights_by
    check(weights_by)
    weights, cache = weights_and_cache(
        scores=scores, mask=None if mask is None else as_mask(mask, scores.shape), weights_by=weights_by
    )
    return (weights.copy() if weights is cache.weights else weights), cache


def check(weights_by: Any, sink: Array | None = None) -> None:
    """Refuse what is no `Weighting`, and a sink beside it."""
    if not isinstance(weights_by, Weighting):
        raise TypeError(f"weights_by must be one of attention_np.weightings, as sparsemax(), not {weights_by!r}")
    if sink is not None:
        raise ValueError(
            f"a sink is one more score of a softmax, and weights_by is {weights_by} (sink.shape={sink.shape})"
        )


@passes.forward
def weights_and_cache(scores: Array, mask: Array | None, weights_by: Weighting) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    visible = scores.real != -np.inf
    visible = visible if mask is None else visible & mask  # (..., m)
    shown = np.where(visible, scores, 0)
    weights, parts = weights_by.weights_and_parts(shown, visible) if scores.size else (shown, None)
    return weights, Cache(
        scores=scores,
        mask=mask,
        weights_by=weights_by,
        visible=visible,
        weights=weights,
        parts=parts,
        output_shape=weights.shape,
    )


@passes.backward
def backward(d_weights: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to the scores, (..., m), from that of the weights.

    It is zero wherever a score does not take part, and in every row whose `d_weights` is zero. Where a weight has a
    kink in its score, it is the slope of the side on which the weight is zero.
    """
    d_scores = scores_gradient(d_weights, cache)  # (..., m)
    return Gradients(scores=d_scores), (d_scores,)


@passes.jvp
def jvp(cache: Cache, *, scores: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: how the weights, (..., m), move when the scores move along a tangent."""
    d_weights = weights_tangent(scores, cache)  # (..., m)
    return d_weights, (d_weights,)


double_backward = passes.second_derivative(weights_and_cache, backward)


def scores_gradient(d_weights: Array, cache: Cache) -> Array:
    """The gradient of the scores. For ops."""
    return _of_live_rows(cache.weights_by.gradient, d_weights, cache)


def weights_tangent(d_scores: Array, cache: Cache) -> Array:
    """How the weights move with the scores. For ops."""
    return _of_live_rows(cache.weights_by.tangent, d_scores, cache)


def backward_tangent(
    d_weights: Array, d_weights_tangent: Array, d_scores: Array, cache: Cache
) -> tuple[Array, Array, Array]:
    """The gradient of the scores, its tangent, and that of the weights, from those of `d_weights` and of the scores."""
    weights, dual_cache = weights_and_cache.mathematics(dual(cache.scores, d_scores), cache.mask, cache.weights_by)
    d_scores_dual: Any = scores_gradient(dual(d_weights, d_weights_tangent), dual_cache)
    return d_scores_dual.value, d_scores_dual.velocity, weights.velocity


def _of_live_rows(formula: Any, vector: Array, cache: Cache) -> Array:
    """`formula` of the entries that are visible; a row of zeros gives zeros, whatever it meets."""
    vector = np.where(cache.visible, vector, 0)  # (..., m)
    if 0 in vector.shape:
        return vector
    result: Array = formula(vector, cache)
    if is_finite(result):
        return result
    live = cache.visible & (vector != 0).any(axis=-1, keepdims=True)
    return np.where(live, result, 0)


class _OfEach(Weighting):
    """A function of each score alone: the activation of this name."""

    is_of_each = True

    def of_each(self, scores: Array) -> tuple[Array, Array]:
        """The weights of scores that all take part, and their slopes, (..., m) each."""
        return KINDS[self.name](scores)  # (weightings.26, weightings.27)

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Slopes]:
        weights, slopes = self.of_each(scores)
        return np.where(visible, weights, 0), Slopes(slopes, shares=None)

    def gradient(self, d_weights: Array, cache: Cache) -> Array:
        return backward_times(d_weights, cache.parts.slopes)  # (..., m) (weightings.28)

    def tangent(self, d_scores: Array, cache: Cache) -> Array:
        return self.gradient(d_scores, cache)


class _Sigmoid(_OfEach):
    name = "sigmoid"


class _Silu(_OfEach):
    name = "silu"


class _WithThreshold(Weighting):
    """A threshold for each row, which moves so that the weights sum to one. The Jacobian is symmetric."""

    sums_to_one = True

    def in_range(self, scores: Array, less_largest: Array, tops: Array | None) -> Array:
        del scores, tops
        return less_largest

    def gradient(self, d_weights: Array, cache: Cache) -> Array:
        return _times_jacobian(d_weights, cache.parts)  # (..., m)

    def tangent(self, d_scores: Array, cache: Cache) -> Array:
        return self.gradient(d_scores, cache)


def _times_jacobian(vector: Array, parts: Slopes) -> Array:
    """The Jacobian times `vector`: from a gradient of the weights that of the scores, from a tangent the weights'."""
    shares: Any = parts.shares
    place = rows.heaviest(shares, shares.ndim - 1)
    # As in softmax: to take the entry of a share that is nearly one leaves small numbers of which no digit is lost.
    above = vector - rows.entry_at(place, vector, shares.ndim - 1)  # (weightings.56)
    mean = backward_times(above, shares).sum(axis=-1, keepdims=True)  # (..., 1)
    result: Array = backward_times(above - mean, parts.slopes)  # (..., m) (weightings.19, weightings.24)
    # There itself the slope may be beyond the dtype, and the mean below it.
    total = backward_times(above, parts.slopes).sum(axis=-1, keepdims=True)  # (..., 1)
    is_top = shares.real > 0.5
    return np.where(is_top, -backward_times(total, shares), result)  # (weightings.57)


class _Sparsemax(_WithThreshold):
    name = "sparsemax"

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Slopes]:
        if isinstance(scores, Dual):
            weights, parts = self.weights_and_parts(scores.value, visible)
            return dual(weights, _times_jacobian(scores.velocity, parts)), parts  # which are constants (weightings.12)
        top = _Top(scores, visible)
        gaps = np.where(visible, scores - top.largest, -np.inf)  # (..., m)
        weights = gaps + largest_of_sparsemax(gaps)  # (..., m) (weightings.6)
        inside = top.inside((weights.real > 0) & visible)
        nan, zero = gaps.dtype.type(np.nan), gaps.dtype.type(0)  # of the dtype, for NumPy 1 too
        of_slopes = np.where(top.at_nan, nan, zero)  # of one, whose logarithm is zero
        return top.settled(np.where(inside, weights, 0)), _slopes(of_slopes, inside)


@dataclass(frozen=True, repr=False)
class _Entmax(_WithThreshold):
    name = "entmax"
    alpha: float

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Slopes]:
        value = scores.value if isinstance(scores, Dual) else scores
        # What fits the dtype times any logarithm of a weight: more tells no scores apart but near the smallest numbers.
        limits = np.finfo(value.dtype)
        excess = limits.dtype.type(min(self.alpha - 1, limits.max / limits.maxexp))
        top = _Top(value, visible)
        gaps = np.where(visible, value - top.largest, -np.inf)  # (..., m)
        logarithms, inside = logarithms_of_entmax(gaps, excess)
        inside = top.inside(inside & visible)
        logarithms = np.where(top.at_nan, np.nan, np.where(inside, logarithms, 0))
        of_slopes = (1 - excess) * logarithms  # (weightings.15)
        if isinstance(scores, Dual):
            weights = np.where(inside, np.exp(logarithms), 0)
            d_weights = _times_jacobian(scores.velocity, _slopes(of_slopes, inside))
            logarithms = dual(logarithms, d_weights / np.where(weights == 0, 1, weights))  # (weightings.25)
            of_slopes = (1 - excess) * logarithms
        weights = np.where(inside, np.exp(logarithms), 0)  # (..., m) (weightings.14)
        return top.settled(weights), _slopes(of_slopes, inside)


def _slopes(logarithms: Array, inside: Array) -> Slopes:
    shares = softmax.normalised(logarithms, mask=inside).weights
    return Slopes(np.where(inside, np.exp(logarithms), 0), shares)


class _Top:
    """The largest visible score of each row, and what a row becomes where that is no number to compute with."""

    def __init__(self, scores: Array, visible: Array) -> None:
        self.scores = np.where(visible, scores.real, -np.inf)  # (..., m)
        largest = self.scores.max(axis=-1, keepdims=True, initial=-np.inf)  # (..., 1)
        self.largest = np.where(largest == -np.inf, 0, largest)
        self.at_limit = largest == np.inf  # (..., 1)
        self.at_nan = visible & np.isnan(largest)  # (..., m)
        self.is_usual = np.isfinite(self.largest).all()

    def inside(self, inside: Array) -> Array:
        """Where weights are neither zero nor at a limit, which does not move."""
        return inside if self.is_usual else (inside & ~self.at_limit) | self.at_nan

    def settled(self, weights: Array) -> Array:
        """Equal shares of plus infinity, which is the limit; NaN in a row that has one."""
        if self.is_usual:
            return weights
        limits = self.scores == np.inf
        shares = limits / np.maximum(limits.sum(axis=-1, keepdims=True), 1).astype(self.scores.dtype)
        return np.where(self.at_nan, np.nan, np.where(self.at_limit, shares, weights))


class _Softpick(Weighting):
    name = "softpick"

    def in_range(self, scores: Array, less_largest: Array, tops: Array | None) -> Array:
        if tops is None:
            return scores
        far = np.finfo(less_largest.dtype).maxexp  # from where on the one that is taken from an exponential is nothing
        return np.where(tops == np.inf, less_largest + far, scores)

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Picks]:
        top = _Top(scores, visible)
        scores = np.where(top.at_limit, 0, scores)
        shift = np.maximum(np.where(top.at_limit, 0, top.largest), 0)  # (..., 1)
        positive = scores.real > 0
        growth: Array = np.exp(scores - shift)  # (..., m)
        # |e^s - 1| by what neither overflows nor is rounded away (weightings.32)
        sizes = -np.expm1(np.where(positive, -scores, scores)) * np.where(positive, growth, np.exp(-shift))
        total = sizes.sum(axis=-1, keepdims=True)  # (..., 1)
        total = np.where(total.real == 0, 1, total)
        weights: Array = np.where(positive, sizes / total, 0)  # (..., m) (weightings.31)
        lost = np.where(positive, 0, sizes).sum(axis=-1, keepdims=True) / total  # (..., 1) (weightings.33)
        slopes = np.where(positive, growth, np.where(scores.real == 0, 0, -growth)) / total  # (..., m) (weightings.34)
        return top.settled(weights), Picks(positive, slopes, lost)

    def gradient(self, d_weights: Array, cache: Cache) -> Array:
        weights, (positive, slopes, lost) = cache.weights, cache.parts
        taken = rows.entry_at(rows.heaviest(weights, weights.ndim - 1), d_weights, weights.ndim - 1)  # (..., 1)
        above = d_weights - taken
        mean = (weights * above).sum(axis=-1, keepdims=True)  # (..., 1)
        own = np.where(positive, above + taken * lost, taken * (lost - 1))
        return backward_times(own - mean, slopes)  # (..., m) (weightings.35, weightings.36)

    def tangent(self, d_scores: Array, cache: Cache) -> Array:
        weights, (positive, slopes, lost) = cache.weights, cache.parts
        terms = backward_times(d_scores, slopes)  # (..., m)
        # A weight that is nearly one moves with what it lacks, which is what all else has.
        is_top = weights.real > 0.5  # (..., m)
        others = np.where(is_top, 0, terms).sum(axis=-1, keepdims=True)  # (..., 1)
        lacking = lost + np.where(is_top, 0, weights).sum(axis=-1, keepdims=True)  # (..., 1)
        own = np.where(positive, terms, 0) * np.where(is_top, lacking, 1)
        total = np.where(is_top, others, terms.sum(axis=-1, keepdims=True))
        d_weights: Array = own - backward_times(total, weights)  # (..., m) (weightings.37)
        return d_weights


class _StickBreaking(Weighting):
    name = "stick_breaking"

    def weights_and_parts(self, scores: Array, visible: Array) -> tuple[Array, Breaks]:
        taken, left = sigmoids(scores)  # (..., m) (weightings.38)
        parts = Breaks(np.where(visible, taken, 0), np.where(visible, left, 1))
        if isinstance(scores, Dual):
            weights, at_rest = self.weights_and_parts(scores.value, visible)
            return dual(weights, _tangent_of_breaks(scores.velocity, weights, at_rest)), parts
        rest = _exclusive(np.cumprod, parts.left[..., ::-1], 1)[..., ::-1]  # what is left for a key by those behind it
        return parts.taken * rest, parts  # (..., m) (weightings.39)

    def gradient(self, d_weights: Array, cache: Cache) -> Array:
        taken, left = cache.parts
        gains = backward_times(d_weights, cache.weights)  # (..., m)
        before = _exclusive(np.cumsum, gains, 0)
        d_scores: Array = left * gains - backward_times(before, taken)  # (..., m) (weightings.42)
        return d_scores

    def tangent(self, d_scores: Array, cache: Cache) -> Array:
        return _tangent_of_breaks(d_scores, cache.weights, cache.parts)


def _tangent_of_breaks(d_scores: Array, weights: Array, parts: Breaks) -> Array:
    behind = _exclusive(np.cumsum, backward_times(d_scores, parts.taken)[..., ::-1], 0)[..., ::-1]  # (..., m)
    return backward_times(backward_times(d_scores, parts.left) - behind, weights)  # (..., m) (weightings.43)


def _exclusive(accumulate: Any, x: Array, first: int) -> Array:
    """What has been accumulated along the last axis before each entry, beginning with `first`."""
    result: Array = np.concatenate(
        [np.full((*x.shape[:-1], 1), first, x.dtype), accumulate(x[..., :-1], axis=-1)], axis=-1
    )
    return result


def sigmoid() -> Weighting:
    r"""Each score by itself: a key takes nothing from another.

    Returns
    -------
    Weighting
        :math:`W_{ij} = 1 / (1 + e^{-S_{ij}})`, for ``weights_by=``.

    Notes
    -----
    The weights of a row add up to any number. Ramapuram et al. [1]_ begin with a bias of :math:`-\log m` on all scores,
    so that m scores of zero add up to about one. Small weights and their gradients keep their relative digits.

    References
    ----------
    .. [1] J. Ramapuram et al., "Theory, analysis, and best practices for sigmoid self-attention", ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> weights, cache = weightings.sigmoid().forward(np.array([np.log(3.0), 0.0, -np.inf]))
    >>> print(weights)
    [0.75 0.5  0.  ]
    """
    return _Sigmoid()


def silu() -> Weighting:
    r"""Each score by itself, times how far it is open: a weight may be negative, and grows without a bound.

    Returns
    -------
    Weighting
        :math:`W_{ij} = S_{ij} / (1 + e^{-S_{ij}})`, for ``weights_by=``.

    Notes
    -----
    As in the HSTU of Zhai et al. [1]_, who divide by the number of keys: put that into the values or the output.

    References
    ----------
    .. [1] J. Zhai et al., "Actions speak louder than words: trillion-parameter sequential transducers for generative
       recommendations", ICML 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> weights, cache = weightings.silu().forward(np.array([4.0, 0.0, -1.0]))
    >>> print(weights.round(4))
    [ 3.9281  0.     -0.2689]
    """
    return _Silu()


def sparsemax() -> Weighting:
    r"""The point of the simplex that is nearest to the scores: what is far behind has weight zero.

    Returns
    -------
    Weighting
        :math:`W_{ij} = \max(S_{ij} - \tau_i, 0)`, with :math:`\tau_i` so that the row sums to one [1]_; for
        ``weights_by=``.

    Notes
    -----
    A key whose weight is zero has no gradient, and no small step brings it back. At a kink, where a score is the
    threshold, the gradient is that of the side on which the weight is zero. Plus infinity is the limit, as in
    :mod:`attention_np.softmax`: all weight in equal shares, which do not move.

    References
    ----------
    .. [1] A. F. T. Martins, R. F. Astudillo, "From softmax to sparsemax: a sparse model of attention and multi-label
       classification", ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> weights, cache = weightings.sparsemax().forward(np.array([[1.0, 0.5, -1.0], [2.0, 0.0, 2.0]]))
    >>> print(weights)
    [[0.75 0.25 0.  ]
     [0.5  0.   0.5 ]]
    """
    return _Sparsemax()


def entmax(alpha: float = 1.5) -> Weighting:
    r"""The family from softmax, near alpha 1, by way of sparsemax, at 2, to a hard choice, for large alpha.

    Parameters
    ----------
    alpha : float, optional
        Above 1.

    Returns
    -------
    Weighting
        :math:`W_{ij} = \max((\alpha - 1) S_{ij} - \tau_i, 0)^{1 / (\alpha - 1)}`, with :math:`\tau_i` so that the row
        sums to one [1]_; for ``weights_by=``.

    Raises
    ------
    TypeError
        If `alpha` is no number.
    ValueError
        If `alpha` is not above 1 and finite.

    Notes
    -----
    The gradient is of Peters et al., too; alpha itself may be learned [2]_, of which there is no gradient here. Up to
    alpha 2 the weights of near scores are continuous, below 2 their slopes as well. Above 2 a slope is infinite where a
    weight becomes zero.

    References
    ----------
    .. [1] B. Peters, V. Niculae, A. F. T. Martins, "Sparse sequence-to-sequence models", ACL 2019.
    .. [2] G. M. Correia, V. Niculae, A. F. T. Martins, "Adaptively sparse transformers", EMNLP 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> for alpha in (1.000001, 1.5, 2.0, 50.0):
    ...     weights, cache = weightings.entmax(alpha).forward(np.array([1.6, 1.2, -1.0]))
    ...     print(weights.round(4))
    [0.5732 0.3842 0.0426]
    [0.64 0.36 0.  ]
    [0.7 0.3 0. ]
    [1. 0. 0.]
    """
    number = float(as_number("alpha", alpha))
    if not 1 < number < np.inf:
        raise ValueError(f"alpha must be above 1, where entmax is softmax, and finite, not {shortened(alpha)}")
    return _Entmax(number)


def softpick() -> Weighting:
    r"""A rectified softmax: scores above zero share what is there, and those below may leave it to nobody.

    Returns
    -------
    Weighting
        :math:`W_{ij} = \max(e^{S_{ij}} - 1, 0) / \sum_l |e^{S_{il}} - 1|`, zero in a row of zeros; for ``weights_by=``.

    Notes
    -----
    As Zuhri et al. have it [1]_, without the small number that they add to the denominator: 0 / 0 is 0. A score of
    exactly zero is at a kink, and has gradient zero.

    References
    ----------
    .. [1] Z. M. K. Zuhri, E. H. Fuadi, A. F. Aji, "Softpick: no attention sink, no massive activations with rectified
       softmax", 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> weights, cache = weightings.softpick().forward(np.log(np.array([[3.0, 2.0, 0.5], [1.0, 0.5, 0.5]])))
    >>> print(weights.round(4))
    [[0.5714 0.2857 0.    ]
     [0.     0.     0.    ]]
    """
    return _Softpick()


def stick_breaking() -> Weighting:
    r"""A stick of length one: the last key breaks off its share, the one before it a share of what is left, and so on.

    Returns
    -------
    Weighting
        :math:`W_{ij} = \sigma(S_{ij}) \prod_{l > j} (1 - \sigma(S_{il}))`, over the keys that are visible; for
        ``weights_by=``.

    Notes
    -----
    With ``masks.causal(n, offset=-1)`` it is the attention of Tan et al. [1]_, in which no token sees itself. The
    product is one of numbers of which each has all its digits, and so has the smallest weight, until it is below the
    normal numbers of the dtype.

    References
    ----------
    .. [1] S. Tan, S. Yang, A. Courville, R. Panda, Y. Shen, "Scaling stick-breaking attention: an efficient
       implementation and in-depth study", ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import weightings
    >>> weights, cache = weightings.stick_breaking().forward(np.log(np.array([1.0, 3.0, 1.0])))
    >>> print(weights)
    [0.0625 0.375  0.5   ]
    """
    return _StickBreaking()
