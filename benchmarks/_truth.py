r"""Attention and its gradients in extended precision, fast enough for thousands of queries.

NumPy has no fast products in extended precision, but products of small integers are exact in any. So each factor is
split: a leading part, rounded to a grid so coarse that the product of two leading parts is exact in float64 in
whatever order it is summed; and the rest, smaller by a factor of a million, for which float64 is precise enough (the
first step of the scheme of [1]_). Everything else is done in ``numpy.longdouble``. The relative error, to the
largest entry, is near 1e-19: a thousandth of what is measured against it in float64.

References
----------
.. [1] K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free transformations of matrix multiplication by using fast
   routines of matrix multiplication and its applications", Numerical Algorithms 59, 2012.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Results", "attention", "check_precision", "product"]

Array = npt.NDArray[np.floating]

ROWS = 256  # queries at a time: their scores stay in the cache
DIGITS = 53  # of float64
LEAST = -150  # of exponents: what is smaller beside a weight of one is nothing, and would be slow as a subnormal number


class Results(NamedTuple):
    """The output of attention and the gradients of its arrays."""

    output: Array  # (n, d_v)
    query: Array  # (n, d_k)
    key: Array  # (m, d_k)
    value: Array  # (m, d_v)


def attention(query: Array, key: Array, value: Array, d_output: Array) -> Results:
    """The output and the gradients for one head of which every query attends to every key.

    Parameters
    ----------
    query, key, value, d_output : ndarray, (n, d_k), (m, d_k), (m, d_v) and (n, d_v)
        If the query is of float32, float64 is precise enough, and is what is computed in; if not, extended precision.

    Returns
    -------
    Results
        Of float64 or ``numpy.longdouble``.

    Raises
    ------
    RuntimeError
        If extended precision is needed, and ``numpy.longdouble`` has no more digits than float64 on this machine.
    """
    wide = np.float64 if query.dtype == np.float32 else np.longdouble
    if wide is np.longdouble:
        check_precision()
    query, key, value, d_output = (np.asarray(x, wide) for x in (query, key, value, d_output))
    scale = 1 / np.sqrt(wide(query.shape[1]))
    output, d_query = np.empty((len(query), value.shape[1]), wide), np.empty(query.shape, wide)
    d_key, d_value = np.zeros(key.shape, wide), np.zeros(value.shape, wide)
    for start in range(0, len(query), ROWS):
        rows = slice(start, start + ROWS)
        scores = product(query[rows], key.T) * scale  # (r, m)
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(np.maximum(scores, LEAST))  # (r, m)
        weights /= weights.sum(axis=1, keepdims=True)
        output[rows] = product(weights, value)
        d_value += product(weights.T, d_output[rows])

        d_weights = product(d_output[rows], value.T)  # (r, m)
        # Any number may be taken from a whole row. That of the heaviest weight spares the others its rounding.
        d_weights -= np.take_along_axis(d_weights, weights.argmax(axis=1, keepdims=True), axis=1)
        d_scores = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True))  # (r, m)
        d_query[rows] = product(d_scores, key) * scale
        d_key += product(d_scores.T, query[rows]) * scale
    return Results(output, d_query, d_key, d_value)


def product(a: Array, b: Array) -> Array:
    """``a @ b`` in extended precision, relative to the largest terms of each sum.

    Parameters
    ----------
    a, b : ndarray of numpy.longdouble, (n, k) and (k, m)
        Or of float64, for which the product is the plain one.
    """
    if a.dtype == np.float64:
        return a @ b
    digits = (DIGITS - int(np.ceil(np.log2(max(a.shape[1], 1))))) // 2
    a_lead, b_lead = _leading(a, digits, axis=1), _leading(b, digits, axis=0)
    a_rest, b_rest = (a - a_lead).astype(float), (b - b_lead).astype(float)
    exact = a_lead @ b_lead  # sums of integers below 2^53, times a power of two for each entry
    rest = a_lead @ b_rest + a_rest @ b.astype(float)
    result: Array = exact + rest.astype(np.longdouble)
    return result


def _leading(x: Array, digits: int, axis: int) -> npt.NDArray[np.float64]:
    """`x` rounded, along `axis`, to multiples of 2**-digits of the power of two above its largest magnitude."""
    _, exponents = np.frexp(np.abs(x).max(axis=axis, keepdims=True).astype(float))
    unit = np.ldexp(1.0, exponents - digits)
    leading: npt.NDArray[np.float64] = np.rint(x.astype(float) / unit) * unit
    return leading


def check_precision() -> None:
    """Refuse a machine on which there is nothing to hold float64 against."""
    digits = np.finfo(np.longdouble).nmant + 1
    if digits < 64:
        raise RuntimeError(
            f"numpy.longdouble has {digits} binary digits here, and 64 are needed as the truth for float64"
        )
