r"""Feature maps: what takes the place of the exponential of softmax, so that attention is linear in the sequence.

.. math::

    \phi(x)_a = \mathrm{elu}(x_a) + 1
        = \begin{cases} e^{x_a} & \text{if } x_a \le 0 \\ x_a + 1 & \text{otherwise} \end{cases} \qquad \text{or} \qquad
    \phi(x)_r = \tfrac{1}{\sqrt{m}} e^{w_r \cdot x - |x|^2 / 2}

    \frac{\partial L}{\partial x} = \frac{\partial L}{\partial \phi} \odot \min(\phi, 1)
    \qquad \text{or} \qquad
    \frac{\partial L}{\partial x} = \sum_r s_r (w_r - x), \quad s_r = \frac{\partial L}{\partial \phi_r} \phi_r

Without `directions` it is the first, of Katharopoulos et al.; with them the second, of Performer, whose products of a
query and a key are, in the mean over normal directions, the exponential of theirs. The derivation is
``derivations/feature_map.md`` of the package.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np._lib import passes
from attention_np._lib.arguments import as_floating
from attention_np._lib.arrays import Array, real_types
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_product, backward_times
from attention_np._lib.second_look import in_range
from attention_np._lib.wide import narrowed

__all__ = ["Cache", "Gradients", "backward", "double_backward", "forward", "jvp"]

VECTORIZED = ("x",)  # may carry any leading axes: for gradcheck


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each array of :func:`forward`, of its shape and dtype."""

    x: Array
    directions: Array | None


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader."""

    x: Array  # (..., d)
    directions: Array | None  # (m, d)
    features: Array  # (..., m), or (..., d)
    output_shape: tuple[int, ...]


def forward(x: npt.ArrayLike, directions: npt.ArrayLike | None = None) -> tuple[Array, Cache]:
    r"""Positive features of queries or keys, for :mod:`~attention_np.linear_attention`.

    Parameters
    ----------
    x : array_like of float, (..., d)
        Queries or keys. For weights as of softmax, both divided by ``d ** 0.25``.
    directions : array_like of float, (m, d), optional
        Of Performer's features, the same for queries and keys: standard normal numbers, drawn once. By default the
        features are ``elu(x) + 1``.

    Returns
    -------
    features : ndarray, (..., m)
        Or (..., d) without `directions`.
    cache : Cache
        For :func:`backward` and :func:`jvp`. Refers to the inputs, without a copy.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers, or is a masked array.
    ValueError
        If `x` has no axis, or `directions` are not of as many numbers each.

    Notes
    -----
    Katharopoulos et al. [1]_, and Choromanski et al. [2]_. For a direction w a feature of Performer is at most
    ``exp(w @ w / 2)``, whatever finite `x` is. One that is below the normal numbers of the dtype loses digits, or is
    zero, and with it its part of a gradient. The product of the m features of a query q and of a key k has, over the
    draws of the directions, the mean ``exp(q @ k)`` and the relative variance ``expm1(sum((q + k)**2)) / m``.

    Weights that sum to one are those divided by their sum, which is one more column of values: of ones.

    References
    ----------
    .. [1] A. Katharopoulos et al., "Transformers are RNNs: fast autoregressive transformers with linear attention",
       ICML 2020.
    .. [2] K. Choromanski et al., "Rethinking attention with performers", ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import feature_map
    >>> features, cache = feature_map.forward(np.array([-1.0, 0.0, 2.0]))
    >>> print(features.round(4))
    [0.3679 1.     3.    ]
    >>> print(feature_map.backward(np.ones(3), cache).x.round(4))
    [0.3679 1.     1.    ]
    >>> query, key = np.array([0.4, -0.2]), np.array([0.3, 0.5])
    >>> directions = np.random.default_rng(0).standard_normal((10_000, 2))
    >>> mean = feature_map.forward(query, directions)[0] @ feature_map.forward(key, directions)[0]
    >>> print(mean.round(2), np.exp(query @ key).round(2))
    1.02 1.02
    """
    x = as_floating("x", x)
    if x.ndim < 1:
        raise ValueError(f"x must have at least one axis, (..., features) (x.shape={x.shape})")
    if directions is not None:
        directions = as_floating("directions", directions)
        if directions.ndim != 2 or directions.shape[-1] != x.shape[-1]:
            shapes = f"(directions.shape={directions.shape}, x.shape={x.shape})"
            raise ValueError(f"directions must have the shape (m, {x.shape[-1]}) {shapes}")
    return apply(x, directions)


@passes.forward
def apply(x: Array, directions: Array | None) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked."""
    if directions is None:
        rises = x.real > 0
        features = np.exp(np.where(rises, 0, x)) + np.where(rises, x, 0)  # (..., d) (feature-map.1)
    else:
        (exponents,) = in_range(_exponents, x, directions)
        root = np.sqrt(real_types(exponents.dtype)[1](max(len(directions), 1)))
        features = np.exp(narrowed(exponents)) / root  # (..., m) (feature-map.8)
        features = features.astype(exponents.dtype, copy=False)
    return features.copy(), Cache(x=x, directions=directions, features=features, output_shape=features.shape)


def _exponents(x: Array, directions: Array) -> tuple[Array]:
    """What Performer's features are the exponentials of, (..., m)."""
    return (x @ directions.T - (x * x).sum(axis=-1, keepdims=True) / 2,)


@passes.backward
def backward(d_output: Tangent, cache: Cache) -> tuple[Gradients, tuple[Array, ...]]:
    """The gradient of a loss with respect to `x` and the directions, from that of the features, (..., m)."""
    if cache.directions is None:
        return Gradients(x=backward_times(d_output, _slope(cache)), directions=None), ()  # (feature-map.2)

    # forward was features = exp(exponents), exponents = x @ directions^T - sum(x * x) / 2
    d_exponents = backward_times(d_output, cache.features)  # (..., m) (feature-map.10)
    total = d_exponents.sum(axis=-1, keepdims=True)  # (..., 1)
    # (..., d) (feature-map.11)
    d_x = backward_product(d_exponents, cache.directions) - backward_times(total, cache.x)
    rows, x_rows = (array.reshape(prod(array.shape[:-1]), array.shape[-1]) for array in (d_exponents, cache.x))
    d_directions = backward_product(rows.swapaxes(0, 1), x_rows)  # (m, d) (feature-map.12)
    return Gradients(x=d_x, directions=d_directions), (d_exponents,)


def _slope(cache: Cache) -> Array:
    """How fast elu + 1 rises: it is its own derivative below zero."""
    slope: Array = np.where(cache.x.real > 0, 1, cache.features)
    return slope


@passes.jvp
def jvp(cache: Cache, *, x: Tangent = None, directions: Tangent = None) -> tuple[Array, tuple[Array, ...]]:
    """Forward mode: the tangent of the features, (..., m), from those of the inputs."""
    if cache.directions is None:
        return _slope(cache) * x, ()  # (..., d) (feature-map.3)
    of_x = x @ cache.directions.T - (cache.x * x).sum(axis=-1, keepdims=True)  # (..., m)
    d_products = of_x + cache.x @ directions.T  # (..., m) (feature-map.13)
    return cache.features * d_products, (d_products,)  # (..., m) (feature-map.13)


double_backward = passes.second_derivative(apply, backward)
