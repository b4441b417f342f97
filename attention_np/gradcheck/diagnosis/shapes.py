"""A claimed gradient of another shape than its input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_np.gradcheck.diagnosis.mistake import Array, axes_in_words, subsets
from attention_np.gradcheck.diagnosis.orders import permutations_of, permuted

__all__ = ["diagnose_shape"]

CLOSE = 1e-6  # normwise; central differences are good for 1e-7


def diagnose_shape(gradient: Array, numerical: Array) -> str | None:
    """What a gradient is whose shape is not that of its input; None if the values do not show what happened.

    The numerical one is for the same cotangent; NaN where an entry was not looked at.

    Examples
    --------
    >>> import numpy as np
    >>> terms = np.array([[1.0, 2.0, 3.0], [5.0, 7.0, 11.0]])
    >>> diagnose_shape(terms, terms.sum(axis=0))
    'the sum over the broadcast axis 0 is missing'
    """
    gradient, numerical = np.asarray(gradient), np.asarray(numerical)
    if gradient.dtype.kind != "f" or not np.nan_to_num(numerical).any():
        return None  # where all is zero the values tell nothing
    with np.errstate(all="ignore"):
        for what, candidate, expected in _readings(gradient, numerical):
            if _close(candidate, expected):
                return what
    return None


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    known = np.isfinite(b)
    if known.sum() < min(2, known.size) or not b[known].any():
        return False
    off = np.abs(a[known] - b[known]).max()
    return bool(off <= max(CLOSE, 100 * np.finfo(a.dtype).eps) * np.abs(b[known]).max())


Readings = Iterator[tuple[str, Array, Array]]  # a sentence that holds if the two arrays are equal


def _readings(gradient: Array, numerical: Array) -> Readings:
    if gradient.size == numerical.size:
        yield from _of_the_same_entries(gradient, numerical)
    yield from _not_summed(gradient, numerical)
    yield from _summed(gradient, numerical)
    if gradient.ndim == numerical.ndim:
        overlap = tuple(slice(min(a, b)) for a, b in zip(gradient.shape, numerical.shape, strict=True))
        yield f"it is right, but only of shape {gradient.shape}: the rest is missing", gradient, numerical[overlap]
        yield f"it is right, but continued to the shape {gradient.shape}", gradient[overlap], numerical


def _of_the_same_entries(gradient: Array, numerical: Array) -> Readings:
    shape = numerical.shape
    same = gradient.reshape(shape)
    long = [n for n in gradient.shape if n != 1]
    if long == [n for n in shape if n != 1]:
        more = gradient.ndim - numerical.ndim
        what = "has an extra axis" if more == 1 else "lacks an axis" if more == -1 else "has other axes"
        yield f"it is right, but {what} of length 1: {gradient.shape} in the place of {shape}", same, numerical
    flat = "flattened" if gradient.ndim == 1 else f"reshaped to {gradient.shape}"
    yield f"it is right, but {flat}", same, numerical
    for axes in permutations_of(shape):
        transposed = numerical.transpose(axes)
        yield permuted(axes), gradient, transposed
        yield f"{permuted(axes)}, and it is {flat}", same, transposed.reshape(shape)


def _not_summed(gradient: Array, numerical: Array) -> Readings:
    """The terms of a sum over broadcast axes that was not taken, or every one of them the sum."""
    for axes in subsets(range(gradient.ndim)):
        total = _with_shape(gradient.sum(axis=axes, dtype=np.float64), numerical.shape)
        if total is None or total.size == gradient.size:
            continue
        where = axes_in_words(axes)
        count = gradient.size // max(total.size, 1)
        yield f"the sum over the broadcast {where} is missing", total, numerical
        yield f"the sum over the broadcast {where} is repeated along it", total / count, numerical
        mean = f"the sum over the broadcast {where} is missing, and the terms are those of a mean"
        yield mean, total * count, numerical


def _summed(gradient: Array, numerical: Array) -> Readings:
    """Summed over axes that the input has, or only one index of them."""
    for axes in subsets(range(numerical.ndim)):
        total = _with_shape(numerical.sum(axis=axes), gradient.shape)
        if total is None or total.size == numerical.size:
            continue
        where = axes_in_words(axes)
        mean = total * (total.size / numerical.size)
        first = numerical[tuple(0 if k in axes else slice(None) for k in range(numerical.ndim))]
        yield f"it is summed over {where}, which the input has", gradient, total
        yield f"it is averaged over {where}, which the input has", gradient, mean
        yield f"it is only index 0 of {where}", gradient, first.reshape(total.shape)


def _with_shape(x: Array, shape: tuple[int, ...]) -> Array | None:
    """The same with other axes of length 1, if that makes it of `shape`."""
    x = np.asarray(x)
    return x.reshape(shape) if [n for n in x.shape if n != 1] == [n for n in shape if n != 1] else None
