"""What is wrong with a gradient, in a sentence, if the cause is simple.

The evidence is the claimed and the numerical gradient for three cotangents, with the noise of each entry. A cause is
named only if it explains every entry for every cotangent to within the noise; at most one is. A wrong formula has no
simple cause, and nothing is said of it.
"""

from __future__ import annotations

import numpy as np

from attention_np.gradcheck.diagnosis.cotangents import (
    added_regardless,
    not_linear,
    same_number_added,
    same_whatever_the_cotangent,
)
from attention_np.gradcheck.diagnosis.factors import constant_factor, factor_along_an_axis, zero
from attention_np.gradcheck.diagnosis.mistake import Evidence, Mistake
from attention_np.gradcheck.diagnosis.normalization import normalization
from attention_np.gradcheck.diagnosis.orders import another_order, of_another_input
from attention_np.gradcheck.diagnosis.places import leak, simply_wrong_in_places, wrong_in_places
from attention_np.gradcheck.diagnosis.precision import rounded
from attention_np.gradcheck.diagnosis.shapes import diagnose_shape
from attention_np.gradcheck.diagnosis.sums import part_of_a_sum

__all__ = ["Evidence", "diagnose", "diagnose_shape"]

# From the specific to the general: the first that explains the gradient is named.
CAUSES = (
    zero,
    leak,
    same_whatever_the_cotangent,
    added_regardless,
    constant_factor,
    of_another_input,
    another_order,
    part_of_a_sum,
    normalization,
    rounded,
    simply_wrong_in_places,
    factor_along_an_axis,
    wrong_in_places,
    same_number_added,
    not_linear,
)


def diagnose(evidence: Evidence) -> str | None:
    """What a wrong gradient looks like.

    Parameters
    ----------
    evidence : Evidence

    Returns
    -------
    str or None
        A sentence, without a capital letter and full stop; None if no simple cause explains the evidence.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np.gradcheck.agreement import WRONG
    >>> x, u = np.array([1.0, 2.0, 3.0]), np.array([[0.3, -0.7, 1.1], [0.9, 0.2, -0.4], [0.1, -0.8, 1.0]])
    >>> claimed, numerical = {"x": -2 * u * x}, {"x": 2 * u * x}
    >>> evidence = Evidence("x", {"x": x}, x**2, u, claimed, numerical, 1e-15 * x, np.full(3, WRONG), 0 * x, {})
    >>> diagnose(evidence)
    'it is -1 times the numerical gradient throughout'
    """
    if evidence.name not in evidence.analytic or evidence.name not in evidence.numerical:
        return None
    with np.errstate(all="ignore"):
        mistake = Mistake.of(evidence)
        if not mistake.wrong.any() or not np.isfinite(mistake.claimed[:, mistake.looked_at]).all():
            return None
        for cause in CAUSES:
            sentence = cause(mistake)
            if sentence is not None:
                return sentence
    return None
