"""A claimed gradient of another shape than its input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.verdict.judging import GROSS
from attention_np.gradcheck.words.orders import permutations_of, permuted
from attention_np.gradcheck.words.reading import axes_in_words, subsets

Readings = Iterator[tuple[str, Array, Array]]  # a sentence that holds if the two arrays are equal


def diagnose_shape(gradient: Array, numerical: Array) -> str | None:
    """What a gradient is whose shape is not that of its input; None if the values do not show what happened.

    The numerical one is for the same cotangent; NaN where an entry was not looked at.
    """
    with np.errstate(all="ignore"):
        return next((what for what, a, b in _readings(gradient, numerical) if _are_close(a, b)), None)


def _are_close(a: Array, b: Array) -> bool:
    """Whether they are equal where the second is known, which tells something if it is not zero there."""
    known = np.isfinite(b)
    if a.shape != b.shape or known.sum() < min(2, known.size) or not b[known].any():
        return False
    allowed = max(GROSS, 100 * float(np.finfo(a.dtype).eps)) * np.abs(b[known]).max()
    return bool(np.abs(a[known] - b[known]).max() <= allowed)


def _readings(gradient: Array, numerical: Array) -> Readings:
    shape = numerical.shape
    if gradient.size == numerical.size:
        yield "it is right but for the shape", gradient.reshape(shape), numerical
        for axes in permutations_of(shape):
            yield permuted(axes), gradient, numerical.transpose(axes)
    for axes in subsets(range(gradient.ndim)):
        total = _with_shape(gradient.sum(axis=axes, dtype=np.float64), shape)
        if total is not None and total.size < gradient.size:
            yield f"the sum over the broadcast {axes_in_words(axes)} is missing", total, numerical
    for axes in subsets(range(numerical.ndim)):
        total = _with_shape(numerical.sum(axis=axes), gradient.shape)
        if total is not None and total.size < numerical.size:
            yield f"it is summed over {axes_in_words(axes)}, which the input has", gradient, total


def _with_shape(x: Array, shape: tuple[int, ...]) -> Array | None:
    """The same with other axes of length 1, if that makes it of `shape`."""
    x = np.asarray(x)
    return x.reshape(shape) if [n for n in x.shape if n != 1] == [n for n in shape if n != 1] else None
