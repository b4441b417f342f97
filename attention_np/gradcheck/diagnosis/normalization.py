r"""A backward of softmax, or of another normalisation, without a term that the normalisation brings in.

With weights A = softmax(S) and :math:`O_i = \sum_j A_{ij} V_j`, the gradient of the scores is

.. math:: dS_{ij} = A_{ij} (dA_{ij} - r_i), \qquad r_i = \sum_j A_{ij} dA_{ij} = \sum_b dO_{ib} O_{ib}.

So what a backward without :math:`r_i` gets wrong is a multiple of :math:`\langle dO_i, O_i \rangle` in each row. It is
right for a cotangent whose rows are orthogonal to those of the output. In the rows of what is normalized, the errors
are multiples of a vector whatever the cotangent, or of two, and the right rows are orthogonal to known ones.

A row may have several axes, as in a batch normalization of images, which has all of them but that of the channels; or
of one axis a group of indices, as in a group normalization, or a normalization of each head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from attention_np.gradcheck.agreement import UNDECIDABLE
from attention_np.gradcheck.diagnosis.mistake import Array, Mistake, axes_in_words, subsets

__all__ = ["errors_along_rows", "right_for_orthogonal_rows"]

CLOSE = 1e-2  # relative: what an epsilon may change of a row
EVIDENTLY, CLEARLY = 30, 100  # times the noise, or what a reading leaves; times what counts as an error
SPARE = 3  # values beyond those that fit anyway


def errors_along_rows(mistake: Mistake) -> str | None:
    """The errors of each row are multiples of one vector, or of two known ones, whatever the cotangent."""
    if not mistake.looked_at.all() or not mistake.right.any():
        return None
    for where, shape, axes in _kinds_of_rows(mistake.shape):
        rows = partial(_rows, shape, axes)
        error, right, tolerance = (rows(y) for y in (mistake.error, mistake.right, mistake.tolerance))
        tolerance, it = tolerance.max(axis=-1, keepdims=True), "them" if where.startswith("axes") else "it"
        for what, errors, vectors, orthogonal in _terms(mistake, where, rows, error, right, tolerance):
            if _are_orthogonal(right, orthogonal, tolerance) and _are_spanned(error, right, vectors, tolerance):
                return f"{what} missing or wrong: whatever the cotangent, the errors along {it} are {errors}"
        if _are_orthogonal(right, np.ones_like(right[:, :1]), tolerance) and _are_along_weights(
            error, right, tolerance
        ):
            return (
                f"the softmax correction along {where}, or a term like it, is missing or wrong: whatever "
                f"the cotangent, the errors along {it} are a multiple of one vector without negative entries"
            )
    return None


def _kinds_of_rows(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Along some axes, or groups of the indices of one: what they are called, and these axes of which shape."""
    every = [*subsets(range(len(shape)))]
    yield from ((axes_in_words(axes), shape, axes) for axes in every)
    for axis, n in enumerate(shape):
        for groups in (k for k in range(2, n) if n % k == 0):
            split = (*shape[:axis], groups, n // groups, *shape[axis + 1 :])
            for axes in (axes for axes in every if axis in axes):
                names = [f"{k} (in {groups} groups)" if k == axis else k for k in axes]
                yield axes_in_words(names), split, tuple(k + (k >= axis) for k in axes)


def _rows(shape: tuple[int, ...], axes: tuple[int, ...], several: Array) -> Array:
    """The rows along some axes of several arrays, reshaped to (several, *shape): (rows, several, length)."""
    arrays = several.reshape(-1, *shape)
    last = np.moveaxis(arrays, (0, *(axis + 1 for axis in axes)), range(-1 - len(axes), 0))
    return last.reshape(-1, len(arrays), math.prod(last.shape[-len(axes) :]))


Terms = Iterator[tuple[str, str, Array, Array]]  # two texts; what errors are made of, what right rows are orthogonal to


def _terms(
    mistake: Mistake, where: str, rows: Callable[[Array], Array], error: Array, right: Array, tolerance: Array
) -> Terms:
    """What may be missing along some axes; vectors are (rows, vectors, length)."""
    output, x = mistake.evidence.output, rows(np.asarray(mistake.evidence.inputs[mistake.name], np.float64))
    ones, centered = np.ones_like(x), x - x.mean(axis=-1, keepdims=True)
    used = (np.abs(np.concatenate([error, right], axis=1)) > np.tile(tolerance, (1, 2, 1))).any(axis=1, keepdims=True)
    there = "" if used.all() else " where the gradient is not zero"
    multiple, less_its_mean = f"a multiple of {mistake.name}", f"{mistake.name} less its mean"
    yield f"a mean along {where}, to be taken off, is", f"equal{there}", used * ones, ones
    if output.shape == mistake.shape and (output > 0).all() and np.allclose(rows(output).sum(axis=-1), 1, rtol=CLOSE):
        what = f"the softmax correction along {where}, weights * sum(weights * d_weights), is"
        yield what, "a multiple of the weights", rows(output), ones
    projection = f"the projection term of a normalization along {where}, y * sum(y * d_y) or its mean, is"
    yield projection, multiple, x, x
    yield projection, f"a multiple of {less_its_mean}", centered, centered
    both = np.concatenate([ones, centered], axis=1)
    statistics = f"the terms of the mean and of the variance of a normalization along {where} are"
    yield statistics, f"a number plus a multiple of {less_its_mean}", both, both


def _are_orthogonal(right: Array, vectors: Array, tolerance: Array) -> bool:
    """Whether right rows are orthogonal to their vectors, to others than ones but for what an epsilon changes."""
    terms = np.abs(right) @ np.swapaxes(np.abs(vectors), -1, -2)
    close = np.where(np.ptp(vectors, axis=-1)[:, np.newaxis] == 0, 0, CLOSE * terms)
    noise = tolerance * np.abs(vectors).sum(axis=-1)[:, np.newaxis]
    return bool((np.abs(right @ np.swapaxes(vectors, -1, -2)) <= close + noise).all())


def _are_spanned(error: Array, right: Array, vectors: Array, tolerance: Array) -> bool:
    """Whether the errors of each row are sums of multiples of its vectors, and some right rows are not."""

    def left(x: Array) -> Array:
        basis = np.swapaxes(vectors, -1, -2)
        return np.asarray(np.abs(x - np.swapaxes(basis @ np.linalg.pinv(basis) @ np.swapaxes(x, -1, -2), -1, -2)))

    rest, noise = left(error), tolerance / UNDECIDABLE
    if (rest > 2 * tolerance).any():
        return False
    evident = (np.abs(error) > EVIDENTLY * np.maximum(rest, noise)).sum(axis=-1)  # (rows, cotangents)
    evident = evident[(left(right) > EVIDENTLY * noise).any(axis=(1, 2))]
    return bool(np.maximum(evident - vectors.shape[1], 0).sum() >= SPARE)


def _are_along_weights(error: Array, right: Array, tolerance: Array) -> bool:
    """Whether the errors of each row are multiples of one vector without negative entries, and not of equal ones.

    Where a row has a single output, they always are. But then so are errors and right rows together.
    """
    spare = 0
    for row, right_row, most in zip(error, right, tolerance, strict=True):
        largest, peak = np.unravel_index(np.abs(row).argmax(), row.shape)
        vector, noise = row[largest] / row[largest, peak], float(most[largest, 0] / np.abs(row[largest, peak]))
        if noise > 1 / EVIDENTLY:
            continue  # a row without errors
        if (np.abs(row - np.outer(row[:, peak], vector)) > 2 * most).any() or (vector < -noise).any():
            return False
        both = np.concatenate([row, right_row], axis=1)
        one_output = (
            np.abs(both - np.outer(row[:, peak], both[largest] / row[largest, peak])) <= EVIDENTLY * most
        ).all()
        if np.ptp(vector) > EVIDENTLY * noise and not one_output:
            evident = np.abs(row) > EVIDENTLY * most
            spare += int((evident[largest].sum() - 1) * (evident.any(axis=1).sum() - 1))
    return spare >= SPARE


def right_for_orthogonal_rows(mistake: Mistake) -> str | None:
    """Right for a cotangent that is orthogonal to the output in the rows along some axes, and not for any.

    An error that is linear in the cotangent and vanishes for such a one is a multiple of <dO_i, O_i>. The right
    gradient must not vanish for it, or nothing could be wrong. What is orthogonal along fewer axes is so along more.
    """
    ask, output, u = mistake.evidence.ask, np.asarray(mistake.evidence.output, np.float64), mistake.evidence.cotangents
    tolerance = mistake.tolerance
    seen = (np.abs(mistake.error) > CLEARLY * tolerance).any(axis=tuple(range(1, mistake.error.ndim)))
    if mistake.wrong.sum() < 2 or not seen.all() or not output.ndim or ask is None or not ask.is_linear:
        return None
    if mistake.evidence.parts:
        return None  # the rows of several outputs are not of one length
    sets = [*subsets(range(output.ndim))][::-1]
    orthogonal = np.stack([u[0] - _component(u[0], output, axes) for axes in sets])
    slopes, claims = ask.slopes(orthogonal), ask.claims(orthogonal)
    for axes, right, claimed in zip(sets, slopes, claims, strict=True):
        if (np.abs(claimed - right) > 2 * tolerance[0]).any() or not np.isfinite(right)[mistake.wrong].all():
            continue
        if (np.abs(right) > CLEARLY * tolerance[0])[mistake.wrong].any():
            return (
                "a term with sum(output * d_output), such as the softmax correction sum_j A_ij dA_ij, is missing or "
                f"wrong: it is right for a cotangent that is orthogonal to the output along {axes_in_words(axes)}"
            )
    return None


def _component(u: Array, output: Array, axes: tuple[int, ...]) -> Array:
    """The part of `u` that is along the output in each of the rows along some axes."""
    squares = (output * output).sum(axis=axes, keepdims=True)
    component: Array = (u * output).sum(axis=axes, keepdims=True) / np.where(squares > 0, squares, 1) * output
    return component
