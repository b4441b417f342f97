r"""A backward of softmax, or of another normalisation, without the term that the normalisation brings in.

With weights A = softmax(S) and :math:`O_i = \sum_j A_{ij} V_j`, the gradient of the scores is

.. math:: dS_{ij} = A_{ij} (dA_{ij} - r_i), \qquad r_i = \sum_j A_{ij} dA_{ij} = \sum_b dO_{ib} O_{ib}.

So what a backward without :math:`r_i` gets wrong is a multiple of :math:`\langle dO_i, O_i \rangle` in each row. It is
right for a cotangent whose rows are orthogonal to those of the output: the third of the evidence.
"""

from __future__ import annotations

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
    output = case.evidence.output
    if output.ndim == 0 or output.shape[-1] < 2 or case.wrong.sum() < 2:
        return None
    error, tolerance = np.abs(case.error), case.tolerance
    evident: Array = np.any((error > 100 * tolerance).reshape(3, -1), axis=-1)
    if (error[2] > tolerance[2]).any() or not evident[:2].all():
        return None
    sizes = [np.abs(gradient[case.wrong]).max() for gradient in case.right[[0, 2]]]
    if sizes[1] < 1e-3 * sizes[0] or not (np.abs(case.right[2]) > 100 * tolerance[2])[case.wrong].any():
        return None
    return (
        f"{_which_term(output)} is missing or wrong: it is right for a cotangent with rows orthogonal to the rows of "
        "the output, and wrong for others"
    )


def _which_term(output: Array) -> str:
    """What multiplies the products of the rows, by what the rows of the output look like."""
    o = np.asarray(output, np.float64)
    norms = np.sqrt((o * o).sum(axis=-1))
    size = float(np.sqrt(o.shape[-1]))
    if (o >= 0).all() and np.allclose(o.sum(axis=-1), 1, rtol=1e-4):
        return "the softmax correction, weights * sum(weights * d_weights) along the rows,"
    if np.allclose(norms, 1, rtol=1e-4):
        return "the projection term of an L2 normalization, output * sum(output * d_output) along the rows,"
    if np.allclose(norms, size, rtol=1e-2) and norms.size > 1:
        return "the term of a layer normalization with output * mean(output * d_output) along the rows"
    return "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij,"


def _by_sums_of_rows(case: Case) -> str | None:
    """The rows of the right gradient sum to zero; an error is a multiple of one vector of one sign in each row."""
    for axis in range(len(case.shape)):
        if case.shape[axis] >= 2 and case.looked_at.all() and _has_errors_like_weights(case, axis):
            return (
                f"the softmax correction along axis {axis}, weights * sum(weights * d_weights), is missing or wrong: "
                "the errors of each row are a multiple of one positive vector whatever the cotangent, and the right "
                "rows sum to zero"
            )
    return None


def _has_errors_like_weights(case: Case, axis: int) -> bool:
    length = case.shape[axis]
    error, right, tolerance = (
        np.moveaxis(x, axis + 1, -1).reshape(3, -1, length) for x in (case.error, case.right, case.tolerance)
    )
    sums = np.abs(right.sum(axis=-1))
    if (sums > tolerance.sum(axis=-1) + 1e-12 * np.abs(right).sum(axis=-1)).any() or not right.any():
        return False
    spread = np.maximum(tolerance, tolerance.max(axis=-1, keepdims=True))
    evident = np.abs(error) > 30 * spread
    rows = np.arange(error.shape[1])
    largest = np.abs(error / spread).max(axis=-1).argmax(axis=0)  # of the cotangents, in each row
    weights = error[largest, rows]  # (rows, length), and of one sign if they are weights
    peak = np.abs(weights).argmax(axis=-1)
    multiple = error[:, rows, peak] / weights[rows, peak]  # (3, rows)
    with_error = evident.any(axis=(0, 2))
    unlike = np.abs(error - multiple[..., np.newaxis] * weights) > 2 * spread
    signed = weights * np.sign(weights[rows, peak])[:, np.newaxis]
    if unlike[:, with_error].any() or (signed < -spread[largest, rows])[with_error].any():
        return False
    # Softmax weights are positive and differ; a constant along the rows would be the mean that was not taken off.
    differ = np.ptp(weights, axis=-1) > 30 * spread[largest, rows].max(axis=-1)
    entries = (evident[largest, rows].sum(axis=-1) - 1) * (evident.any(axis=-1).sum(axis=0) - 1)
    return bool((differ & with_error).any() and entries[with_error].clip(0).sum() >= 3)
