"""What is wrong with a gradient, in a sentence, if the cause is simple.

The evidence is the claimed and the numerical gradient for three cotangents, with the noise of each entry. A cause is a
prediction of the claimed gradient: from the numerical one, from the cotangents, or from what each entry does to each
output. It is named only if the prediction is right in every entry for every cotangent, to within the noise, and
if it is so again at another point for other cotangents, which have not suggested it. At most one is named. A wrong
formula has no simple cause, and nothing is said of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np

from attention_np.gradcheck.diagnosis import (
    cotangents,
    factors,
    incoming,
    known,
    normalization,
    orders,
    places,
    precision,
)
from attention_np.gradcheck.diagnosis.mistake import ENOUGH, Evidence, Mistake
from attention_np.gradcheck.diagnosis.shapes import diagnose_shape

__all__ = ["Evidence", "diagnose", "diagnose_shape"]

# From the specific to the general: the first that explains the gradient is named.
CAUSES = (
    factors.zero,
    places.leak,
    cotangents.same_whatever_the_cotangent,
    cotangents.added_regardless,
    factors.constant_factor,
    known.known_factor,
    orders.of_another_input,
    orders.another_order,
    orders.right_in_pairs,
    incoming.part_of_the_slopes,
    known.known_factor_of_the_cotangent,
    incoming.another_order_of_the_cotangent,
    normalization.errors_along_rows,
    normalization.right_for_orthogonal_rows,
    incoming.passed_on,
    precision.rounded,
    precision.lost_epsilon,
    places.simply_wrong_in_places,
    incoming.part_of_the_derivative,
    incoming.leak_of_the_cotangent,
    factors.factor_along_an_axis,
    places.wrong_in_places,
    places.simply_wrong_somewhere,
    incoming.right_for_some_outputs,
    cotangents.same_number_added,
    cotangents.not_linear,
)
# What these say is not said again elsewhere: they have looked there, need no estimate, or compare what is not known.
SAID_ONCE = (factors.zero, orders.of_another_input, precision.rounded, precision.lost_epsilon, cotangents.not_linear)
# The numbers of these are others at another point.
OWN_NUMBERS = (cotangents.added_regardless, factors.factor_along_an_axis, cotangents.same_number_added)
NUMBER = re.compile(r"(?P<one>1 [-+] )?(?P<part>-?\d+(\.\d+)?(e[-+]\d+)?)")
SAME = 1e-4  # relative: as close as a number is the same at another point, as one of central differences may be known


def diagnose(evidence: Evidence) -> str | None:
    """What a wrong gradient looks like, without a capital letter and full stop; None if it has no simple cause.

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
        here = None
        for cause in CAUSES:
            sentence = cause(mistake)
            if sentence is not None and (cause in SAID_ONCE or _is_said_again(cause, mistake, sentence)):
                return sentence
            if sentence and cause is factors.constant_factor and _tells(mistake) and factors.is_another_again(mistake):
                here = f"{sentence.partition(':')[0]}, at this point alone: at another it is not"
    return here


def _tells(mistake: Mistake) -> bool:
    """Whether a factor at one point is more than any formula has where there are few entries, or all are alike."""
    x = np.asarray(mistake.evidence.inputs[mistake.name])
    telling = mistake.looked_at & (np.abs(mistake.error) > mistake.tolerance).any(axis=0)
    return np.unique(x[telling]).size >= ENOUGH


def _is_said_again(cause: Callable[[Mistake], str | None], mistake: Mistake, sentence: str) -> bool:
    """Whether it is so at another point, too, with the same numbers; true where nothing is known of one."""
    if mistake.again is None:
        return True
    again = cause(mistake.again) if mistake.again.wrong.any() else None
    if again is None or NUMBER.sub("", sentence) != NUMBER.sub("", again):
        return False
    if cause is factors.constant_factor and factors.is_another_again(mistake):  # in digits that are hardly known
        return False
    return cause in OWN_NUMBERS or all(map(_is_same, NUMBER.finditer(sentence), NUMBER.finditer(again)))


def _is_same(here: re.Match[str], there: re.Match[str]) -> bool:
    """Whether two numbers of a sentence are the same; as distances from 1, to the last digit that is shown."""
    one, other = (Decimal(found["part"]) * (-1 if found["one"] == "1 - " else 1) for found in (here, there))
    if here["one"] and there["one"]:
        return abs(one - other) <= max(Decimal((0, (1,), int(x.as_tuple().exponent))) for x in (one, other))
    one, other = (part + (1 if found["one"] else 0) for part, found in ((one, here), (other, there)))
    return abs(one - other) <= Decimal(SAME) * abs(other)
