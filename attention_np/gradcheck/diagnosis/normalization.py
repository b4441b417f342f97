r"""A backward of softmax, or of another normalisation, without the term that the normalisation brings in.

With weights A = softmax(S) and :math:`O_i = \sum_j A_{ij} V_j`, the gradient of the scores is

.. math:: dS_{ij} = A_{ij} (dA_{ij} - r_i), \qquad r_i = \sum_j A_{ij} dA_{ij} = \sum_b dO_{ib} O_{ib}.

So what a backward without :math:`r_i` gets wrong is a multiple of :math:`\langle dO_i, O_i \rangle` in each row. It is
right for a cotangent whose rows are orthogonal to those of the output: the third of the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attention_np.gradcheck.diagnosis.mistake import Array, Mistake

__all__ = ["normalization"]

CLOSE = 1e-4  # of a row: formulas of different normalizations differ by far more
HARDLY = 1e-9  # what rounding may make of the numbers that a direction is compared with


class Normalization(NamedTuple):
    """One whose output is its own row: what its term is called, and the right gradient but for a factor of each row."""

    term: str
    gradient: Callable[[Array, Array], Array]  # of the cotangent and the output


NORMALIZATIONS = (
    Normalization(
        "the softmax correction, weights * sum(weights * d_weights) along the rows,",
        lambda d, y: y * (d - (y * d).sum(axis=-1, keepdims=True)),
    ),
    Normalization(
        "the term of a division by the sum, sum(output * d_output) along the rows,",
        lambda d, y: d - (y * d).sum(axis=-1, keepdims=True),
    ),
    Normalization(
        "the projection term of an L2 normalization, output * sum(output * d_output) along the rows,",
        lambda d, y: d - y * (y * d).sum(axis=-1, keepdims=True),
    ),
    Normalization(
        "the term of a layer normalization with output * mean(output * d_output) along the rows",
        lambda d, y: d - d.mean(axis=-1, keepdims=True) - y * (y * d).mean(axis=-1, keepdims=True),
    ),
    Normalization(
        "the term of an RMS normalization with output * mean(output * d_output) along the rows",
        lambda d, y: d - y * (y * d).mean(axis=-1, keepdims=True),
    ),
)


def normalization(mistake: Mistake) -> str | None:
    """The term of a normalisation is missing, by either of two routes."""
    return _by_orthogonal_rows(mistake) or _by_directions(mistake)


def _by_orthogonal_rows(mistake: Mistake) -> str | None:
    """Right for the third cotangent, and for no other.

    An error that is linear in the cotangent and vanishes for a random one with rows orthogonal to those of the output
    is a multiple of <dO_i, O_i>. The right gradient must not vanish for it, or nothing could be wrong.
    """
    error, tolerance = np.abs(mistake.error), mistake.tolerance
    if mistake.wrong.sum() < 2 or (error[2] > tolerance[2]).any():
        return None
    seen = [(off > 100 * noise).any() for off, noise in zip(error[:2], tolerance[:2], strict=True)]
    if not all(seen) or not (np.abs(mistake.right[2]) > 100 * tolerance[2])[mistake.wrong].any():
        return None
    if mistake.evidence.ask is not None and not mistake.evidence.ask.is_linear:
        return None
    return (
        f"{_which_term(mistake)} is missing or wrong: it is right for a cotangent with rows orthogonal to "
        "the rows of the output, and wrong for others"
    )


def _which_term(mistake: Mistake) -> str:
    """What multiplies the products of the rows: that of the normalization whose right gradient the numerical one is."""
    d, output = mistake.evidence.cotangents, np.asarray(mistake.evidence.output, np.float64)
    if output.shape == mistake.shape and output.ndim:
        for term, gradient in NORMALIZATIONS:
            if _are_multiples(mistake, gradient(np.asarray(d, np.float64), output)):
                return term
    return "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij,"


def _are_multiples(mistake: Mistake, other: Array) -> bool:
    """Whether the right gradient is `other`, but for a factor of each row, the same for every cotangent."""
    right = mistake.right
    products, squares = (
        np.where(mistake.looked_at, x, 0).sum(axis=(0, -1), keepdims=True) for x in (right * other, other * other)
    )
    factor = np.where(squares > 0, products / squares, 0)
    close = max(CLOSE, 30 * float(np.finfo(mistake.evidence.output.dtype).eps))
    size = np.nanmax(np.abs(right), axis=(0, -1), keepdims=True)
    near = np.abs(right - factor * other) <= close * size + mistake.tolerance
    return bool((near | ~mistake.looked_at).all())


class Direction(NamedTuple):
    """The vector that all errors of one row are multiples of."""

    vector: Array  # 1 where it is largest; zeros where there is no error
    noise: float  # of the vector
    entries: int  # how many values show it, beyond those that fit anyway


def _by_directions(mistake: Mistake) -> str | None:
    """The errors of each row are multiples of one vector, whatever the cotangent, as those of a normalization are.

    Where a row has a single output, they always are. But then so are errors and right gradients together.
    """
    if not mistake.looked_at.all() or not mistake.right.any():
        return None
    x = np.asarray(mistake.evidence.inputs[mistake.name], np.float64)
    for axis, length in enumerate(mistake.shape):
        error, right, tolerance = (
            np.moveaxis(y, (0, axis + 1), (-2, -1)).reshape(-1, 3, length)
            for y in (mistake.error, mistake.right, mistake.tolerance)
        )
        rows = [_direction(*row) for row in zip(error, right, tolerance, strict=True)]
        directions = [row for row in rows if row is not None]
        if len(directions) < len(rows) or sum(row.entries for row in directions) < 3:
            continue
        sums_to_zero = bool((np.abs(right.sum(axis=-1)) <= tolerance.sum(axis=-1)).all())
        if sums_to_zero and all((row.vector >= -row.noise).all() for row in directions):
            return (
                f"the softmax correction along axis {axis}, or a term like it, is missing or wrong: the errors of each "
                "row are a multiple of one positive vector whatever the cotangent, and the right rows sum to zero"
            )
        of_rows = np.moveaxis(x, axis, -1).reshape(-1, length)
        centered = of_rows - of_rows.mean(axis=-1, keepdims=True)
        for what, vectors in ((f"{mistake.name} less its mean", centered), (mistake.name, of_rows)):
            if _are_along(directions, vectors) and _is_orthogonal(right, vectors):
                return (
                    f"the projection term of a normalization along axis {axis}, y * mean(y * d_y), is missing or "
                    f"wrong: the errors of each row are a multiple of {what} whatever the cotangent, and the right "
                    "rows are orthogonal to it"
                )
    return None


def _direction(error: Array, right: Array, tolerance: Array) -> Direction | None:
    """That of one row: the errors, the right gradient and the tolerance, (3, length). None if there is none."""
    spread = tolerance.max(axis=1, keepdims=True)
    evident = np.abs(error) > 30 * spread
    if not evident.any():
        return Direction(np.zeros(error.shape[1]), np.inf, 0)
    vector, noise, off = _multiples(error, spread)
    if (off > 2).any():
        return None
    *_, off = _multiples(np.concatenate([error, right], axis=1), spread)
    if np.ptp(vector) <= 30 * noise or (off <= 30).all():
        return Direction(vector, noise, 0)  # a constant along the row would be the mean that was not taken off
    largest = np.abs(error).max(axis=1).argmax()
    return Direction(vector, noise, int((evident[largest].sum() - 1) * (evident.any(axis=1).sum() - 1)))


def _multiples(x: Array, spread: Array) -> tuple[Array, float, Array]:
    """The row of `x` with the largest entry, scaled, its noise, and how far `x` is from multiples of it, in spreads."""
    largest, peak = np.unravel_index(np.abs(x).argmax(), x.shape)
    vector = x[largest] / x[largest, peak]
    noise = float(spread[largest, 0] / np.abs(x[largest, peak]))
    return vector, noise, np.abs(x - np.outer(x[:, peak], vector)) / spread


def _are_along(directions: list[Direction], vectors: Array) -> bool:
    """Whether the directions are those of `vectors`, (rows, length)."""
    for row, vector in zip(directions, vectors, strict=True):
        scaled = vector / vector[np.abs(row.vector).argmax()]
        if np.isfinite(row.noise) and not (np.abs(row.vector - scaled) <= 2 * row.noise + HARDLY).all():
            return False
    return True


def _is_orthogonal(right: Array, vectors: Array) -> bool:
    """Whether the right gradients, (rows, 3, length), are orthogonal to `vectors`, but for what an epsilon changes."""
    products = right * vectors[:, np.newaxis]
    return bool((np.abs(products.sum(axis=-1)) <= 0.01 * np.abs(products).sum(axis=-1)).all())
