r"""A backward of softmax, or of another normalisation, without the term that the normalisation brings in.

With weights A = softmax(S) and :math:`O_i = \sum_j A_{ij} V_j`, the gradient of the scores is

.. math:: dS_{ij} = A_{ij} (dA_{ij} - r_i), \qquad r_i = \sum_j A_{ij} dA_{ij} = \sum_b dO_{ib} O_{ib}.

So what a backward without :math:`r_i` gets wrong is a multiple of :math:`\langle dO_i, O_i \rangle` in each row. It is
right for a cotangent whose rows are orthogonal to those of the output: the third of the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attention_np.gradcheck.diagnosis.case import Array, Case

__all__ = ["normalization"]


def normalization(case: Case) -> str | None:
    """The term of a normalisation is missing, by either of two routes."""
    return _by_orthogonal_rows(case) or _by_sums_of_rows(case)


def _by_orthogonal_rows(case: Case) -> str | None:
    """Right for the third cotangent, and for no other.

    An error that is linear in the cotangent and vanishes for a random one with rows orthogonal to those of the output
    is a multiple of <dO_i, O_i>. The right gradient must not vanish for it, or nothing could be wrong.
    """
    error, tolerance = np.abs(case.error), case.tolerance
    if case.wrong.sum() < 2 or (error[2] > tolerance[2]).any():
        return None
    seen = [(off > 100 * noise).any() for off, noise in zip(error[:2], tolerance[:2], strict=True)]
    if not all(seen) or not (np.abs(case.right[2]) > 100 * tolerance[2])[case.wrong].any():
        return None
    return (
        f"{_which_term(case.evidence.output)} is missing or wrong: it is right for a cotangent with rows orthogonal to "
        "the rows of the output, and wrong for others"
    )


def _which_term(output: Array) -> str:
    """What multiplies the products of the rows, by what the rows of the output look like."""
    norms = np.sqrt((output * output).sum(axis=-1))
    size = float(np.sqrt(output.shape[-1]))
    if (output >= 0).all() and np.allclose(output.sum(axis=-1), 1, rtol=1e-4):
        return "the softmax correction, weights * sum(weights * d_weights) along the rows,"
    if np.allclose(norms, 1, rtol=1e-4):
        return "the projection term of an L2 normalization, output * sum(output * d_output) along the rows,"
    if np.allclose(norms, size, rtol=1e-2) and norms.size > 1:
        return "the term of a layer normalization with output * mean(output * d_output) along the rows"
    return "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij,"


def _by_sums_of_rows(case: Case) -> str | None:
    """The rows of the right gradient sum to zero; an error is a multiple of one vector of one sign in each row."""
    if not case.looked_at.all() or not case.right.any():
        return None
    for axis, length in enumerate(case.shape):
        arrays = (np.moveaxis(x, (0, axis + 1), (-2, -1)) for x in (case.error, case.right, case.tolerance))
        rows = zip(*(x.reshape(-1, 3, length) for x in arrays), strict=True)
        if _have_errors_like_weights(rows):
            return (
                f"the softmax correction along axis {axis}, weights * sum(weights * d_weights), is missing or wrong: "
                "the errors of each row are a multiple of one positive vector whatever the cotangent, and the right "
                "rows sum to zero"
            )
    return None


def _have_errors_like_weights(rows: Iterable[tuple[Array, Array, Array]]) -> bool:
    """Of each row the error, the right gradient and the tolerance, (3, length)."""
    evidence = 0
    for error, right, tolerance in rows:
        if (np.abs(right.sum(axis=1)) > tolerance.sum(axis=1)).any():
            return False
        entries = _entries_like_weights(error, tolerance.max(axis=1, keepdims=True))
        if entries is None:
            return False
        evidence += entries
    return evidence >= 3


def _entries_like_weights(error: Array, spread: Array) -> int | None:
    """How many entries show that the errors of a row are multiples of positive weights; None if they are not."""
    evident = np.abs(error) > 30 * spread
    if not evident.any():
        return 0
    largest, peak = np.unravel_index(np.abs(error).argmax(), error.shape)
    weights = error[largest] / error[largest, peak]
    if (np.abs(error - np.outer(error[:, peak], weights)) > 2 * spread).any():
        return None
    noise = spread[largest] / np.abs(error[largest, peak])
    if (weights < -noise).any():
        return None
    if np.ptp(weights) <= 30 * noise:
        return 0  # softmax weights differ: a constant along the row would be the mean that was not taken off
    return int((evident[largest].sum() - 1) * (evident.any(axis=1).sum() - 1))
