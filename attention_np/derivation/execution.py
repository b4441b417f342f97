"""A page on the numbers of a caller: its definitions and its claims about gradients of L, worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attention_np.derivation import compare, nodes
from attention_np.derivation.check import PageCheck
from attention_np.derivation.draws import complete
from attention_np.derivation.environment import LOSS, Environment, Tensor
from attention_np.derivation.errors import Fault
from attention_np.derivation.header import Free
from attention_np.derivation.page import Equation
from attention_np.derivation.statements import Statement, chains, read_statement
from attention_np.derivation.trial import Trial
from attention_np.derivation.values import Array, top

__all__ = ["Executed", "execute"]

ROUNDING = 1e-15
KINDS = ("normal", "uniform")  # of free tensors that the caller has numbers for


@dataclass(frozen=True, eq=False)
class Executed:
    """A statement that defines a name, or claims the gradient of L by it, and the environment of its numbers."""

    equation: Equation
    key: str
    gradient: bool
    statement: Statement
    environment: Environment

    @property
    def latex(self) -> str:
        """The statement alone, without the others of its equation."""
        return self.equation.text[slice(*self.statement.span)]

    @property
    def uses(self) -> frozenset[str]:
        """The keys of the names in it."""
        return self.statement.uses

    def tensor(self) -> Tensor:
        """The value of the name, or the numerical gradient by it, in which mere rounding errors are set to zero."""
        if not self.gradient:
            return self.environment.tensor(self.key, self.statement.span)
        gradient = self.environment.jacobian(LOSS, self.key, self.statement.span)
        return gradient._replace(data=np.where(abs(gradient.data) < ROUNDING * gradient.scale, 0.0, gradient.data))

    def error(self) -> float:
        """How far its sides are from each other, relatively, where its condition holds and they are finite."""
        trial, worst = Trial(self.statement, self.environment), 0.0
        if trial.where is not None and not trial.where.data.any():
            return 0.0
        for position in self.statement.claims:
            ((left, right),) = trial.pairs(position)
            finite = np.isfinite(left) & np.isfinite(right)
            one, two = (trial.side(side).value.scale for side in (position, position + 1))
            worst = max(worst, compare.equality(left[finite], right[finite], one, two)[0])
        return worst


def execute(
    check: PageCheck,
    sizes: dict[str, int],
    value_of: Callable[[str, Free, tuple[int, ...]], Array],
    triangular: str | None = None,
) -> Iterator[Executed]:
    """Work a page out on numbers of one's own, equation by equation, without its worked examples.

    Parameters
    ----------
    check : PageCheck
        Of one draw; its scope is that of these numbers from then on.
    sizes : dict
        The length of every range that is no product of others; those are filled in.
    value_of : callable
        ``value_of(key, free, shape)`` is a free tensor of any numbers or of numbers between 0 and 1, or the gradient of
        the output; what has to be positive or the like is drawn.
    triangular : str, optional
        The key of a name of which only the entries on and below the diagonal stay; the others become minus infinity.

    Raises
    ------
    Fault
        If an equation cannot be read or evaluated.
    """

    def tensor(key: str, free: Free) -> Tensor:
        array = value_of(key, free, tuple(sizes[axis] for axis in free.axes))
        return Tensor(array, free.axes, top(array[np.isfinite(array)]))

    complete(check.page.header, sizes)
    names, definitions = check.scope.names, check.scope.definitions
    drawn = check.page.header.tensors.items()
    values = {key: tensor(key, free) for key, free in drawn if free.kind in KINDS}
    check.scope = check.drawing.scope(names, definitions, sizes, values)
    (environment,) = check.scope.environments
    draw = environment.draw
    assert draw is not None
    environment.draw = lambda key, free: (tensor if free.kind in KINDS else draw)(key, free)
    for equation in check.page.equations:
        if equation.fault is not None or equation.mark or equation.example >= 0:
            continue
        check.account.begin()
        for chain in chains(equation.text):
            statement = read_statement(chain, names)
            key, gradient = _subject(statement)
            if statement.target is not None:
                statement = _lower(statement) if key == triangular else statement
                try:
                    check.define(statement, check.scope)
                except Fault as fault:
                    if fault.kind not in ("domain", "broken"):
                        raise
                    continue  # as a sum over entries hidden by minus infinity; an equation that uses it raises
            if key is not None and (key != triangular or gradient or statement.target is not None):
                yield Executed(equation, key, gradient, statement, environment)


def _subject(statement: Statement) -> tuple[str | None, bool]:
    """The name that the first side is, and whether the side is the gradient of L by it."""
    first = statement.sides[0]
    if statement.target is not None:
        return statement.target.key, False
    if isinstance(first, nodes.Derivative) and isinstance(first.top, nodes.Ref) and first.top.name == LOSS:
        return first.bottom.name, True
    return (first.name, False) if isinstance(first, nodes.Ref) else (None, False)


def _lower(statement: Statement) -> Statement:
    """The definition, with minus infinity above the diagonal."""
    assert statement.target is not None
    body, span = statement.first, statement.span
    row, column = (nodes.IndexRef(span, name) for name in statement.target.indices[-2:])
    below = nodes.Compare(span, (column, row), ("<=",))
    nothing = nodes.Add(span, (nodes.Constant(span, "infinity"),), ((-1, None),))
    return replace(statement, sides=(None, nodes.Cases(span, (body, nothing), (below, None))))
