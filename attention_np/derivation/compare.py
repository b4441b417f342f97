"""When two sides agree.

The error of a claim is normwise: the largest difference over the largest magnitude that takes part. Magnitudes of the
terms inside of a side take part as well, up to a bound, so that a sum that cancels to zero is not measured against its
own rounding error. Where the sides themselves are far below those terms, they must in addition agree with each other
to two digits, unless both are the rounding error of their own terms: otherwise two wrong small numbers would agree.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import free_indices
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.values import DRAWN, Arithmetic, Array, Value, describe, indices_of, top

TOLERANCE = 1e-12
_TERMS = 100.0  # intermediate terms above this do not loosen the comparison any further
_ROUNDING = 1e-13


def aligned_sides(
    arithmetic: Arithmetic, left: Value, right: Value, where: Value | None, span: Span
) -> list[tuple[Array, Array]]:
    """Both sides as arrays of one shape, restricted to where the condition of the claim holds: a pair for each draw.

    One pair for all draws where nothing in it is drawn.
    """
    left, right, shape = arithmetic.shapes_of(left, right, span, "cannot compare")
    one_free, two_free = (indices_of(value.sized(span).names) for value in (left, right))
    constant = [not free and not (value.shape and shape) for free, value in ((one_free, left), (two_free, right))]
    if set(one_free) != set(two_free) and not any(constant):
        raise Fault("shape", free_indices(one_free, two_free), span)
    if "*" in shape:
        raise Fault("shape", f"the size of {describe(left)} is not known here", span)
    extra = [] if where is None else [name for name in indices_of(where.names) if name not in one_free + two_free]
    if extra:
        raise Fault("shape", f"index {', '.join(extra)} of the condition is not free in the equation", span)
    names, arrays = arithmetic.together([left, right] if where is None else [left, right, where], span)
    axis = names.index(DRAWN) if DRAWN in names else None
    pairs = []
    for one, two, *mask in zip(
        *(array[None] if axis is None else np.moveaxis(array, axis, 0) for array in np.broadcast_arrays(*arrays)),
        strict=True,
    ):
        if mask:
            one, two = one[mask[0]], two[mask[0]]
            if one.size == 0:
                raise Fault("domain", "the condition holds nowhere", span)
        if np.isnan(one).any() or np.isnan(two).any():
            raise Fault("domain", "this is not a number", span)
        pairs.append((one, two))
    return pairs


def equality(
    left: Array, right: Array, left_scale: float, right_scale: float, masked: bool = False
) -> tuple[float, bool]:
    """The normwise error of ``left = right`` and whether that is an agreement.

    Two infinities say nothing about the expressions that they came from. They are equal only beside finite entries,
    and where the page itself puts them (``masked``: a case with a literal infinity).
    """
    scale = max(left_scale, right_scale)
    infinite = ~np.isfinite(left) | ~np.isfinite(right)
    if infinite.any():
        if not np.array_equal(left[infinite], right[infinite]):
            return np.inf, False
        if infinite.all() or not masked:
            raise Fault("domain", "this is infinite here")
        left, right = left[~infinite], right[~infinite]
    difference = top(left - right)
    magnitude = max(top(left), top(right))
    reference = max(magnitude, min(scale, _TERMS))
    if difference == 0.0:
        return 0.0, True
    error = difference / reference if reference > 0 else np.inf
    holds = error <= TOLERANCE
    genuine = (
        magnitude > _ROUNDING * reference or top(left) > _ROUNDING * left_scale or top(right) > _ROUNDING * right_scale
    )
    if holds and genuine and difference > 1e-2 * magnitude:
        holds = False
        error = difference / magnitude
    return float(error), holds


def ordering(left: Array, right: Array, relation: str, scale: float) -> tuple[float, bool]:
    """The largest violation of an inequality, relative, and whether there is none."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise Fault("domain", "this is infinite here")
    if relation in (">", ">="):
        left, right, relation = right, left, {">": "<", ">=": "<="}[relation]
    reference = max(top(left), top(right), min(scale, _TERMS)) or 1.0
    if relation == "!=":
        same = top(left - right) <= 1e-6 * reference
        return (1.0 if same else 0.0), not same
    with np.errstate(invalid="ignore"):
        excess = np.where(left == right, 0.0, left - right)
    worst = float(excess.max(initial=0.0)) / reference
    if relation == "<":
        return max(worst, 0.0), bool((left < right).all())
    return max(worst, 0.0), worst <= TOLERANCE


def half_units(node: nodes.Node) -> Array | None:
    """Half a unit of the last printed digit, for every number of a literal; None if it is not one.

    A whole number among decimals counts as exact to as many digits as its neighbours show.
    """
    literal = _literal(node)
    if literal is None:
        return None
    decimals, exponents, has_point = np.moveaxis(literal, -1, 0)
    units: Array = 0.5 * 10.0 ** (exponents - np.where(has_point, decimals, decimals.max()))
    return units


def _literal(node: nodes.Node) -> Array | None:
    """How many decimals each number of a literal has, its power of ten, and whether it has a point."""
    if isinstance(node, nodes.Number):
        return np.array([len(node.text.partition(".")[2]), 0, "." in node.text])
    if isinstance(node, nodes.Group):
        return _literal(node.body)
    if isinstance(node, nodes.Add) and len(node.terms) == 1:
        return _literal(node.terms[0])
    if isinstance(node, nodes.Mul) and len(node.factors) == 2 and isinstance(node.factors[1], nodes.Power):
        power = node.factors[1]
        inner, exponent = _literal(node.factors[0]), _integer(power.exponent)
        ten = isinstance(power.base, nodes.Number) and power.base.text == "10"
        return np.array([inner[0], exponent, True]) if ten and exponent is not None and _is_one(inner) else None
    if isinstance(node, nodes.Transpose):
        inner = _literal(node.base)
        return None if inner is None or _is_one(inner) else inner.swapaxes(0, 1)
    if isinstance(node, nodes.Matrix):
        cells = [cell for row in node.rows for cell in map(_literal, row) if _is_one(cell)]
        high, wide = len(node.rows), len(node.rows[0])
        return np.stack(cells).reshape(high, wide, -1) if len(cells) == high * wide else None
    return None


def _is_one(literal: Array | None) -> TypeGuard[Array]:
    return literal is not None and literal.ndim == 1


def _integer(node: nodes.Node) -> int | None:
    sign = 1
    if isinstance(node, nodes.Group):
        return _integer(node.body)
    if isinstance(node, nodes.Add) and len(node.terms) == 1:
        sign, node = node.signs[0][0], node.terms[0]
    if isinstance(node, nodes.Number) and node.text.isdigit() and len(node.text) < 4:
        return sign * int(node.text)
    return None


def printed(left: Array, right: Array, units: Array) -> tuple[float, bool]:
    """The relative difference from the printed numbers, and whether it is within half a unit of each."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return np.inf, False
    difference = np.abs(left - right)
    agrees = bool((difference <= units * (1.0 + 1e-9)).all())
    return top(difference) / (max(top(left), top(right)) or 1.0), agrees
