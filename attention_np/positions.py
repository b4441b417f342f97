r"""Positions as numbers that are added to the embeddings of tokens.

.. math::

    P_{i,2a} = \sin(i \theta_a), \qquad P_{i,2a+1} = \cos(i \theta_a), \qquad \theta_a = \mathrm{base}^{-2a / d}

with i and a from 0. The derivation is ``derivations/positions.md`` of the package. :mod:`attention_np.rotary` turns
queries and keys by the same angles instead.
"""

from __future__ import annotations

import numpy as np

from attention_np._lib.arguments import as_integer
from attention_np._lib.arrays import Array
from attention_np.rotary import Angles, as_positions

__all__ = ["sinusoidal"]


def sinusoidal(n: int, d: int, *, base: float = 10000.0) -> Array:
    """The positions 0 to n - 1, sine and cosine in turn.

    Parameters
    ----------
    n : int
        Number of positions.
    d : int
        Number of features; of an odd number the last is a sine.
    base : float, optional
        Above 1: the slowest features are about so many times slower than the first.

    Returns
    -------
    ndarray, (n, d)

    Raises
    ------
    TypeError, ValueError
        If `n` or `d` is not an integer, or negative; if `base` is not above 1.

    Notes
    -----
    Vaswani et al. [1]_, section 3.5.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention is all you need", NeurIPS 2017.

    Examples
    --------
    >>> from attention_np import positions
    >>> print(positions.sinusoidal(2, 4).round(4))
    [[0.     1.     0.     1.    ]
     [0.8415 0.5403 0.01   1.    ]]
    """
    n, d = as_integer("n", n, least=0), as_integer("d", d, least=0)
    even = d + d % 2
    angles = Angles.of(even, base)
    if even != d:  # the frequencies of an odd number of features, the next of which is left out
        angles = angles._replace(frequencies=angles.frequencies ** (even / d))
    cos, sin = angles.at(as_positions("positions", None, (n,)), np.dtype(float))  # (n, d / 2)
    table = np.empty((n, even))
    table[:, 0::2], table[:, 1::2] = sin, cos  # (positions.2)
    cut: Array = table[:, :d].copy()
    return cut
