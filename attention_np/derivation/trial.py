"""A statement in the draws of one size: the values of its sides, and whether its relations hold between them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.derivation import compare, nodes
from attention_np.derivation.environment import Environment
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.evaluate import Evaluator, evaluate
from attention_np.derivation.names import plain
from attention_np.derivation.statements import Statement
from attention_np.derivation.values import Array, Value


class Side(NamedTuple):
    """One side of a relation, and the place of an exponential that underflowed in it."""

    node: nodes.Node
    value: Value
    underflow: Span | None


class Outcome(NamedTuple):
    """The largest error of one relation, and in which of the draws it holds; one for all where nothing is drawn."""

    error: float
    holds: npt.NDArray[np.bool_]


class Trial:
    """A statement in the draws of one environment. Each side is evaluated once, when it is first compared."""

    def __init__(self, statement: Statement, environment: Environment) -> None:
        self.statement = statement
        self.environment = environment
        self._sides: dict[int, Side] = {}

    def side(self, position: int) -> Side:
        """The side at that position of the chain."""
        if position not in self._sides:
            node = self.statement.sides[position]
            assert node is not None
            self.environment.underflow = None
            value = evaluate(self.environment, node)
            self._sides[position] = Side(node, value, self.environment.underflow)
        return self._sides[position]

    @cached_property
    def where(self) -> Value | None:
        """Where the condition of the statement holds, if it has one."""
        condition = self.statement.condition
        return None if condition is None else Evaluator(self.environment).condition(condition)

    def pairs(self, position: int) -> list[tuple[Array, Array]]:
        """The sides of one relation, where the condition holds: a pair of arrays for each draw."""
        left, right = self.side(position).value, self.side(position + 1).value
        place = self.statement.places[position]
        return compare.aligned_sides(self.environment.arithmetic, left, right, self.where, place)

    def compare(self, position: int, relation: str | None = None) -> Outcome:
        """Whether one relation holds, or another one in its place."""
        relation = relation or self.statement.relations[position]
        left, right = self.side(position), self.side(position + 1)
        free = {*left.value.names, *right.value.names}
        check_bound(left.node, free)
        check_bound(right.node, free)
        pairs, place = self.pairs(position), self.statement.places[position]
        scales = left.value.scale, right.value.scale
        try:
            if relation == "~":
                units = _half_units(left.node, right.node)
                outcomes = [compare.printed(*pair, units) for pair in pairs]
            elif relation != "=":
                outcomes = [compare.ordering(*pair, relation, max(scales)) for pair in pairs]
            else:
                underflow = left.underflow or right.underflow
                if underflow is not None:
                    raise Fault("domain", "the exponential underflows here: claim \\approx", underflow)
                masked = any(self.environment.definitions.mask(side.node) for side in (left, right))
                outcomes = [compare.equality(*pair, *scales, masked) for pair in pairs]
        except Fault as fault:
            raise fault.at(place) from None
        return Outcome(max(error for error, _ in outcomes), np.array([holds for _, holds in outcomes]))

    def equal(self, position: int) -> bool:
        """Whether the sides of one relation are equal in every draw, whatever the relation says."""
        return bool(self.compare(position, "=").holds.all())

    def complaint(self, position: int, error: float) -> Fault:
        """The fault of a relation that does not hold."""
        place = self.statement.places[position]
        if self.statement.relations[position] == "~":
            message = f"this does not agree with the printed digits: relative difference {error:.2g}"
            return Fault("claim", message, place)
        sizes = [f"{plain(name)}={size}" for name, size in self.environment.arithmetic.sizes.items()]
        message = f"this does not hold: relative error {error:.2g}" + (f" (with {', '.join(sizes)})" if sizes else "")
        factor = self._factor(position) if self.statement.relations[position] == "=" else None
        if factor is not None:
            message += f"; the left side is {factor:.4g} times the right one"
        return Fault("claim", message, place)

    @np.errstate(all="ignore")
    def _factor(self, position: int) -> float | None:
        """The factor of the right side that makes the left one, if it is the same in every entry and every draw."""
        pairs = self.pairs(position)
        factors = [float(np.vdot(right, left) / np.vdot(right, right)) for left, right in pairs]
        if len(pairs) == 1 or not np.ptp(factors) <= compare.TOLERANCE * abs(factors[0]) or not factors[0]:
            return None
        fits = [compare.equality(left, factors[0] * right, 0.0, 0.0)[1] for left, right in pairs]
        return factors[0] if all(fits) else None


def check_bound(node: nodes.Node, free: set[str]) -> None:
    """Refuse an index that is free in the equation and bound inside of it."""
    for item in node.walk:
        if isinstance(item, nodes.Reduce) or (isinstance(item, nodes.Call) and item.function != "softmax"):
            bound = item.bound
            for name, span in zip(bound.names, bound.spans, strict=True) if bound is not None else ():
                if name in free:
                    raise Fault("shape", f"index {name} is bound here, but free in the equation", span)


def _half_units(left: nodes.Node, right: nodes.Node) -> Array:
    """Half a unit of the last printed digit, of whichever side is printed."""
    for node in (right, left):
        units = compare.half_units(node)
        if units is not None:
            return units
    raise Fault("syntax", "\\approx needs printed numbers on one side")
