r"""A backward of softmax, or of another normalization, without a term that the normalization brings in.

Of softmax that term is :math:`r_i = \sum_j A_{ij} dA_{ij} = \sum_b dO_{ib} O_{ib}`. What is wrong without it vanishes
for a cotangent whose rows are orthogonal to those of the output. In the rows of what is normalized, the errors are
multiples of a vector whatever the cotangent, or of two, and the right rows are orthogonal to known ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.slopes.methods import UNDECIDABLE
from attention_np.gradcheck.slopes.moves import AT_ONCE
from attention_np.gradcheck.words.reading import CLEARLY, ENOUGH, Mistake, Reading, axes_in_words, spread, subsets


def errors_along_rows(mistake: Mistake) -> Iterator[Reading]:
    """The errors of each row are multiples of one vector, or of two known ones, whatever the cotangent."""
    every, small = range(len(mistake.shape)), mistake.looked.size <= AT_ONCE
    sets = subsets(every) if small else ((axis,) for axis in every)  # of large ones, all would take too long
    for axes in sets if mistake.looked.all() and mistake.right.any() else ():
        error, right, tolerance = (_rows(axes, y) for y in (mistake.error, mistake.right, mistake.tolerance))
        tolerance, it = tolerance.max(axis=-1, keepdims=True), "it" if len(axes) == 1 else "them"
        for what, errors, vectors, orthogonal in _terms(mistake, axes, error, right, tolerance):
            if _are_orthogonal(right, orthogonal, tolerance) and _are_spanned(error, right, vectors, tolerance):
                said = f"{what} missing or wrong: whatever the cotangent, the errors along {it} are {errors}"
                yield Reading(f"{what} {errors}", said, mistake.claimed)


def right_for_orthogonal_rows(mistake: Mistake) -> Iterator[Reading]:
    """Right for a cotangent that is orthogonal to the output in the rows along some axis, and not for any.

    An error that is linear in the cotangent and vanishes for such a one is a multiple of <dO_i, O_i>. The right
    gradient must not vanish for it, or nothing could be wrong. What is orthogonal along one axis is so along more.
    """
    ask, output, tolerance = mistake.ask, np.asarray(mistake.output, np.float64), mistake.tolerance
    clearly = ENOUGH if mistake.exact else CLEARLY
    seen = (np.abs(mistake.error) > clearly * tolerance).any(axis=tuple(range(1, mistake.error.ndim)))
    if mistake.wrong.sum() < 2 or not seen.all() or not output.ndim or mistake.parts:
        return
    if ask is None or not ask.is_linear:
        return
    u = np.asarray(mistake.cotangents[0])
    for axis in reversed(range(output.ndim)):
        orthogonal = (u - _component(u, output, axis))[None]
        (right,), (claimed,) = ask.slopes(orthogonal), ask.claims(orthogonal)
        off = np.abs(claimed - right) > 2 * tolerance[0]
        if not off.any() and (np.abs(right) > clearly * tolerance[0])[mistake.wrong].any():
            said = (
                "a term with sum(output * d_output), such as the softmax correction sum_j A_ij dA_ij, is missing or "
                f"wrong: it is right for a cotangent that is orthogonal to the output along axis {axis}"
            )
            yield Reading(f"orthogonal {axis}", said, mistake.claimed)


READINGS = ((100, errors_along_rows), (101, right_for_orthogonal_rows))

Terms = Iterator[tuple[str, str, Array, Array]]  # two texts; what errors are made of, what right rows are orthogonal to


def _rows(axes: tuple[int, ...], several: Array) -> Array:
    """The rows along some axes of several arrays, as many as tell as well as all: (rows, several, length)."""
    last = np.moveaxis(several, (0, *(axis + 1 for axis in axes)), range(-1 - len(axes), 0))[np.newaxis]
    lead, length = last.shape[: -1 - len(axes)], math.prod(last.shape[-len(axes) :])
    some = spread(np.arange(math.prod(lead)), max(1, AT_ONCE // length))
    return np.asarray(last[np.unravel_index(some, lead)].reshape(len(some), len(several), length))


def _terms(mistake: Mistake, axes: tuple[int, ...], error: Array, right: Array, tolerance: Array) -> Terms:
    """What may be missing along some axes; vectors are (rows, vectors, length)."""
    output, x, where, name = mistake.output, _rows(axes, mistake.x[np.newaxis]), axes_in_words(axes), mistake.name
    ones, centered = np.ones_like(x), x - x.mean(axis=-1, keepdims=True)
    used = (np.abs(np.concatenate([error, right], axis=1)) > np.tile(tolerance, (1, 2, 1))).any(axis=1, keepdims=True)
    there = "" if used.all() else " where the gradient is not zero"
    yield f"a mean along {where}, to be taken off, is", f"equal{there}", used * ones, ones
    if output.shape == mistake.shape and (output > 0).all() and np.allclose(output.sum(axis=axes), 1, rtol=1e-2):
        what = f"the softmax correction along {where}, weights * sum(weights * d_weights), is"
        yield what, "a multiple of the weights", _rows(axes, np.asarray(output, np.float64)[np.newaxis]), ones
    projection = f"the projection term of a normalization along {where}, y * sum(y * d_y) or its mean, is"
    yield projection, f"a multiple of {name}", x, x
    yield projection, f"a multiple of {name} less its mean", centered, centered
    statistics = f"the terms of the mean and of the variance of a normalization along {where} are"
    both = np.concatenate([ones, centered], axis=1)
    yield statistics, f"a number plus a multiple of {name} less its mean", both, both


def _are_orthogonal(right: Array, vectors: Array, tolerance: Array) -> bool:
    """Whether right rows are orthogonal to their vectors, to others than ones but for what an epsilon changes."""
    turned = np.swapaxes(vectors, -1, -2)
    close = np.where(np.ptp(vectors, axis=-1)[:, np.newaxis] == 0, 0, 1e-2 * (np.abs(right) @ np.abs(turned)))
    noise = tolerance * np.abs(vectors).sum(axis=-1)[:, np.newaxis]
    return bool((np.abs(right @ turned) <= close + noise).all())


def _are_spanned(error: Array, right: Array, vectors: Array, tolerance: Array) -> bool:
    """Whether the errors of each row are sums of multiples of its vectors, and some right rows are not."""
    basis = np.linalg.qr(np.swapaxes(vectors, -1, -2))[0]  # (rows, length, vectors)

    def left(x: Array) -> Array:
        return np.asarray(np.abs(x - x @ basis @ np.swapaxes(basis, -1, -2)))

    rest, noise = left(error), tolerance / UNDECIDABLE
    if (rest > 2 * tolerance).any():
        return False
    evident = (np.abs(error) > CLEARLY * np.maximum(rest, noise)).sum(axis=-1)  # (rows, cotangents)
    evident = evident[(left(right) > CLEARLY * noise).any(axis=(1, 2))]
    return bool(np.maximum(evident - vectors.shape[1], 0).sum() >= ENOUGH)


def _component(u: Array, output: Array, axis: int) -> Array:
    """The part of `u` that is along the output in each of the rows along an axis."""
    squares = (output * output).sum(axis=axis, keepdims=True)
    component: Array = (u * output).sum(axis=axis, keepdims=True) / np.where(squares > 0, squares, 1) * output
    return component
