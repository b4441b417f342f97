r"""How far a correct implementation may be from an answer, entry by entry: a forward error analysis.

Each op is gone through once more by the rules of :mod:`attention_np.known_answers.analysis`, in which every array
carries the largest error that each of its entries may have. The derivation is ``docs/known-answers.md``
of the repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.analysis import Analysis, Computed, exact
from attention_np.known_answers.formats import Format
from attention_np.known_answers.ops import OPS

BITS = 8  # of a bound, which is at most a 128th larger than it need be


def bounds(op: str, form: Format, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    """The largest error of each entry of each answer, of a correct implementation, before its own last rounding.

    Parameters
    ----------
    op : str
        A name of `known_answers.ops.OPS`.
    form : Format
        Of the inputs.
    inputs, options
        As for :func:`attention_np.known_answers.truth.answers`.

    Returns
    -------
    dict of str to ndarray of float64
        Zero where an answer is what it is whatever the rounding, as for a query that attends to nothing.
    """
    return {name: computed.error for name, computed in analysed(op, form, inputs, options).items()}


def analysed(op: str, form: Format, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Computed]:
    """The answers in float64, each with its largest error."""
    return analysed_by(Analysis(form), op, inputs, options)


def analysed_by(
    rules: Analysis, op: str, inputs: Mapping[str, Array], options: Mapping[str, Any]
) -> dict[str, Computed]:
    """The same by other rules."""
    # What NaN and infinity hide behind has no influence, so a zero does as well.
    clean = {name: x if x.dtype == np.bool_ else exact(finite(name, x)) for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        return OPS[op](rules, clean, options)


def with_rounding(error: Array, answer: Array, form: Format) -> Array:
    """The bound of each entry: its error, its last rounding, and the rounding of the answer that it is held against."""
    size = np.abs(answer.astype(np.float64))
    size = np.where(np.isfinite(size), size, 0)
    bound = np.where((error > 0) | (size > 0), error + 2 * (form.unit * (size + error) + form.underflow), 0)
    return _rounded_up(bound)


def _rounded_up(x: Array) -> Array:
    """Numbers of a few bits, which take less room when they are compressed."""
    fraction, exponent = np.frexp(x)
    rounded: Array = np.ldexp(np.ceil(np.ldexp(fraction, BITS)), exponent - BITS)
    return rounded


def finite(name: str, x: Array) -> Array:
    """An input in float64, with zeros for what is not finite, but in what is added to scores."""
    wide = np.asarray(x).astype(np.float64)
    return (
        wide if name in ("bias", "scores", "log_decay", "gate", "logsumexps") else np.where(np.isfinite(wide), wide, 0)
    )
