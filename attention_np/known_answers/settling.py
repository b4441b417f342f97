"""Answers that no further digit would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers import truth

DOUBTFUL = 1e-6  # of what rounding may make in the dtype: a smaller entry may be what is left of a cancellation
AGREEMENT = 1e-25  # relative: of an entry in more and in fewer digits
MORE = 2  # times the digits
LAST: dict[int, tuple[Any, dict[str, Array]]] = {}  # the last answers in so many digits, and what they are of
NOTHING = 1e-70  # of the same: what cancellation leaves in so many digits


def settled_answers(
    op: str, inputs: Mapping[str, Array], options: Mapping[str, Any], errors: Mapping[str, Array]
) -> dict[str, Array]:
    """What :func:`attention_np.known_answers.truth.answers` gives, with zeros where terms cancel and nothing is left.

    An entry that is tiny beside its terms is computed again in twice the digits. If it is the same, it is what it is;
    if what is left is in the last of those digits, it is zero, as the gradient of a bias is that softmax does not see.

    Parameters
    ----------
    op, inputs, options
        As for :func:`attention_np.known_answers.truth.answers`.
    errors : mapping of str to ndarray
        How far an implementation may be off in each entry.

    Raises
    ------
    ArithmeticError
        If an entry is neither.
    """
    found = _answers(op, inputs, options, truth.DIGITS)
    doubtful = {name: _doubtful(found[name], errors[name]) for name in found}
    if not any(entries.any() for entries in doubtful.values()):
        return found
    again = _answers(op, inputs, options, MORE * truth.DIGITS)
    for name, entries in doubtful.items():
        for index in map(tuple, np.argwhere(entries)):
            x, error = again[name][index], float(errors[name][index])
            if abs(found[name][index] - x) > AGREEMENT * abs(x):
                if abs(x) > NOTHING * error:
                    raise ArithmeticError(f"{name} needs more than {MORE * truth.DIGITS} digits")
                x = truth.ZERO
            found[name][index] = x
    return found


def _answers(op: str, inputs: Mapping[str, Array], options: Mapping[str, Any], digits: int) -> dict[str, Array]:
    """Those of :func:`truth.answers`; of inputs that were the last to be asked for, in another dtype, the same."""
    numbers = {name: x if x.dtype == np.bool_ else x.astype(np.float64) for name, x in inputs.items()}
    asked = op, repr(options), tuple((name, x.shape, x.tobytes()) for name, x in numbers.items())
    if LAST.get(digits, (None, None))[0] != asked:
        LAST[digits] = asked, truth.answers(op, numbers, options, digits)
    return {name: x.copy() for name, x in LAST[digits][1].items()}


def _doubtful(values: Array, errors: Array) -> Array:
    small = [abs(x) < DOUBTFUL * error for x, error in zip(values.ravel(), errors.ravel().tolist(), strict=True)]
    return np.array(small, np.bool_).reshape(values.shape)
