"""Attention over some keys and over others, merged into attention over all: split-key decoding and ring attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arguments import as_floating
from attention_np._lib.arrays import Array, in_dtype, precision, quiet, sum_to


class Partial(NamedTuple):
    """Attention over some of the keys: what :func:`merge` takes and gives."""

    output: Array  # (..., n, d_v), or (d_v,) for a single query
    logsumexp: Array  # (..., n), with fewer leading axes or of length one where several values share the scores


class Dtypes(NamedTuple):
    """Those that a partial result is handed back in."""

    output: np.dtype[Any]
    logsumexp: np.dtype[Any]


def merge(first: Partial | tuple[Array, Array], second: Partial | tuple[Array, Array]) -> Partial:
    r"""Attention over the keys of two partial results together, from what each gave for its own keys.

    Parameters
    ----------
    first, second : Partial, or (output, logsumexp), or (output, cache)
        Attention of the same queries over keys that no other has: (..., n, d_v) and (..., n), or what :func:`forward`
        gave; a single query with leading axes needs its axis, ``output[..., None, :]``. What had no key to attend to
        has the output zero and the log-sum-exp minus infinity.

    Returns
    -------
    Partial
        Merging is associative, and attention over no keys is its neutral element. Half precision is computed in single
        and handed back: the output in the dtype of the outputs, the log-sum-exp in that of the log-sum-exps.

    Raises
    ------
    TypeError
        If an array is not of floating-point numbers.
    ValueError
        If the shapes of the arrays do not fit together.

    Notes
    -----
    With :math:`\ell = \log(e^{\ell_1} + e^{\ell_2})`, :math:`O = e^{\ell_1 - \ell} O_1 + e^{\ell_2 - \ell} O_2`. A
    log-sum-exp of plus infinity on one side takes all; on both it gives NaN, as it does not say in which shares.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> query, key, value = np.zeros((1, 2)), np.ones((4, 2)), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> parts = [blockwise.forward(query, key[keys], value[keys]) for keys in (slice(0, 1), slice(1, 4))]
    >>> print(blockwise.merge(*parts).output)
    [[2.5]]
    """
    one, other = _partial("first", first), _partial("second", second)
    _check_alike(one, other)
    dtypes = Dtypes(*(precision(*pair).result for pair in zip(one, other, strict=True)))
    one, other = _widened(one, other)
    with quiet():
        shares, logsumexp = _shares(one, other)
        output = _shared(shares[0], one.output) + _shared(shares[1], other.output)  # (blockwise.6)
        return _cast(Partial(output.reshape(one.output.shape), logsumexp), dtypes)


def merge_backward(
    d_merged: Partial | tuple[Array, Array],
    first: Partial | tuple[Array, Array],
    second: Partial | tuple[Array, Array],
) -> tuple[Partial, Partial]:
    r"""The gradients of a loss with respect to the two partial results that :func:`merge` merged.

    Parameters
    ----------
    d_merged : Partial, or (d_output, d_logsumexp)
        The gradients with respect to what :func:`merge` gave.
    first, second
        What it was given.

    Returns
    -------
    tuple of Partial
        The gradients with respect to the output and the log-sum-exp of each, in their dtypes: for :func:`backward` of
        its own call.

    Raises
    ------
    TypeError, ValueError
        As :func:`merge`.

    Notes
    -----
    With :math:`w_1 = e^{\ell_1 - \ell}`: :math:`\frac{\partial L}{\partial O_1} = w_1 \frac{\partial L}{\partial O}`
    and :math:`\frac{\partial L}{\partial \ell_1} = w_1 \left(\frac{\partial L}{\partial \ell} +
    \sum_b \frac{\partial L}{\partial O_b} (O_{1b} - O_b)\right)`.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> first = blockwise.Partial(np.array([[1.0]]), np.array([0.0]))
    >>> second = blockwise.Partial(np.array([[3.0]]), np.array([0.0]))
    >>> d_first, d_second = blockwise.merge_backward((np.array([[1.0]]), np.array([0.0])), first, second)
    >>> print(d_first.output, d_first.logsumexp)
    [[0.5]] [-0.5]
    """
    one, other = _partial("first", first), _partial("second", second)
    d = _partial("d_merged", d_merged)
    _check_alike(one, other)
    if d.output.shape != one.output.shape:
        raise ValueError(
            "d_merged must have the shape of what was merged "
            f"(the output of d_merged: {d.output.shape}, the outputs of first and second: {one.output.shape})"
        )
    of_rows = np.broadcast_shapes(one.logsumexp.shape, other.logsumexp.shape)
    if d.logsumexp.shape != of_rows:
        raise ValueError(
            "d_merged must have the shape of what was merged "
            f"(the logsumexp of d_merged: {d.logsumexp.shape}, that of first and second together: {of_rows})"
        )
    dtypes = [Dtypes(part.output.dtype, part.logsumexp.dtype) for part in (one, other)]
    one, other, d = _widened(one, other, d)
    with quiet():
        shares, _ = _shares(one, other)
        merged = _shared(shares[0], one.output) + _shared(shares[1], other.output)  # (blockwise.23)
        gradients = []
        for share, part in zip(shares, (one, other), strict=True):
            d_output = _shared(share, d.output)  # (blockwise.24)
            d_share = sum_to((d.output * (part.output - merged)).sum(axis=-1), of_rows) + d.logsumexp  # (blockwise.25)
            d_logsumexp = np.where(share == 0, 0, share * d_share)  # (blockwise.25)
            gradients.append(Partial(d_output.reshape(part.output.shape), sum_to(d_logsumexp, part.logsumexp.shape)))
        d_first, d_second = map(_cast, gradients, dtypes)
    return d_first, d_second


def _partial(name: str, pair: Any) -> Partial:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        what = f"{len(pair)} items" if isinstance(pair, tuple | list) else type(pair).__name__
        raise TypeError(f"{name} must be a pair of an output and its logsumexp, or cache, not {what}")
    output, logsumexp = pair
    if getattr(logsumexp, "weights_by", None) is not None:
        raise ValueError(f"{name} has weights by {logsumexp.weights_by}, not by softmax: add up the outputs instead")
    of_rows: Any = getattr(logsumexp, "logsumexp", logsumexp)  # of a cache
    part = Partial(as_floating(f"the output of {name}", output), as_floating(f"the logsumexp of {name}", of_rows))
    if not part.output.ndim or not _are_of_rows(part.logsumexp.shape, part.output.shape[:-1]):
        raise ValueError(
            f"the logsumexp of {name} must have one number for each row of its output "
            f"(output.shape={part.output.shape}, logsumexp.shape={part.logsumexp.shape})"
        )
    return part


def _are_of_rows(shape: tuple[int, ...], rows: tuple[int, ...]) -> bool:
    """Whether log-sum-exps of this shape are those of such rows, or of scores that several values share."""
    if not rows:
        return shape in ((), (1,))  # a single query's, which :func:`forward` gives an axis
    leading = zip(shape[-2::-1], rows[-2::-1], strict=False)
    return shape[-1:] == rows[-1:] and len(shape) <= len(rows) and all(size in (1, full) for size, full in leading)


def _check_alike(first: Partial, second: Partial) -> None:
    if first.output.shape != second.output.shape:
        raise ValueError(
            "the outputs of first and second must have one shape "
            f"(first: {first.output.shape}, second: {second.output.shape})"
        )


def _widened(*parts: Partial) -> list[Partial]:
    """Each in the dtype that its numbers are computed in together, which is never half precision."""
    compute = precision(*(array for part in parts for array in part)).compute
    return [Partial(*in_dtype(compute, *part)) for part in parts]


def _cast(part: Partial, dtypes: Dtypes) -> Partial:
    # What a complex number had a part in stays complex: complex steps differentiate by its imaginary part.
    output, logsumexp = (
        x if x.dtype.kind == "c" and dtype.kind != "c" else x.astype(dtype, copy=False)
        for x, dtype in zip(part, dtypes, strict=True)
    )
    return Partial(output, logsumexp)


def _shares(first: Partial, second: Partial) -> tuple[tuple[Array, Array], Array]:
    """What part of the weights is over the keys of each, and the log-sum-exp over all."""
    one, other = first.logsumexp, second.logsumexp
    limits = [x.real == np.inf for x in (one, other)]
    at_limit = limits[0] | limits[1]
    larger = np.where(one.real >= other.real, one, other)
    shift = np.where(np.isinf(larger), 0, larger)
    powers: list[Array] = [
        np.where(at_limit, limit, np.exp(x - shift)) for x, limit in zip((one, other), limits, strict=True)
    ]
    powers[0] = np.where(limits[0] & limits[1], np.nan, powers[0])
    total = powers[0] + powers[1]
    shares = [np.where(power == 0, 0, power / total) for power in powers]  # (blockwise.60, blockwise.22)
    return (shares[0], shares[1]), np.where(at_limit, np.inf, shift + np.log(total))  # (blockwise.60)


def _shared(share: Array, output: Array) -> Array:
    """A part of the output; a share of exactly zero contributes nothing, whatever it holds."""
    share = share[..., None]
    part: Array = np.where(share == 0, 0, share * output)
    return part
