"""One page against mathematics: definitions are evaluated, everything else must hold, at every draw.

:class:`PageCheck` goes through the equations in order. What the names mean lives in a :class:`Scope`: one for the
page, and one for each worked example, in which some of the free tensors have printed values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np.derivation import compare, nodes
from attention_np.derivation.account import Account
from attention_np.derivation.draws import (
    BOUND_DRAWS,
    BOUND_TOGETHER,
    DRAWS,
    TOGETHER,
    complete,
    draw_sizes,
    draw_tensor,
)
from attention_np.derivation.environment import Definitions, Environment, Tensor, as_tensor
from attention_np.derivation.errors import Fault, Span, show
from attention_np.derivation.evaluate import Evaluator, evaluate
from attention_np.derivation.examples import Setting, binds
from attention_np.derivation.names import Names, Symbol
from attention_np.derivation.page import Equation, Page
from attention_np.derivation.record import Record, Scope
from attention_np.derivation.statements import Statement, chains, read_statement
from attention_np.derivation.usage import mentioned, names_in, same_value, unused
from attention_np.derivation.values import Arithmetic, Value, indices_of

LOSS = "L"
_BOUNDS = frozenset(["<", "<=", ">", ">="])


class PageCheck:
    """Judges the equations of a page.

    Parameters
    ----------
    page : Page
        As read by :func:`.page.read_page`.
    seed : int
        Of the draws.
    draws : int
        How many; sizes and values differ between them.
    elsewhere : mapping of str to Equation, optional
        The equations of all pages by their tags, of which this page says that some are the same as its own. Without
        them that is not asked.
    """

    def __init__(
        self, page: Page, seed: int = 0, draws: int = DRAWS, elsewhere: Mapping[str, Equation] | None = None
    ) -> None:
        self.page = page
        self.elsewhere = elsewhere or {}
        self.seed = seed
        self.draws = draws
        self.account = Account()
        self._examples: dict[int, Scope | None] = {}
        self.scope = self.set_up(page.header.names(), Definitions(), {}, {})

    def set_up(self, names: Names, definitions: Definitions, sizes: dict[str, int], values: dict[str, Tensor]) -> Scope:
        """Names and what they stand for in every draw, where these sizes and free tensors are given."""
        scope = Scope(names, definitions, [], sizes, values)
        scope.environments += self._environments(scope, range(self.draws), TOGETHER)
        return scope

    def _environments(self, scope: Scope, draws: range, together: int, magnitudes: bool = False) -> list[Environment]:
        """Those of these draws, so many of them together, and all of them where they have the same sizes."""
        header = self.page.header
        batches: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for start in range(0, len(draws), together):
            sizes = draw_sizes(header, self.seed, draws[start] // TOGETHER) | scope.sizes
            complete(header, sizes)
            batches.setdefault(tuple(sizes.items()), []).extend(draws[start : start + together])
        return [self._environment(scope, dict(sizes), batch, magnitudes) for sizes, batch in batches.items()]

    def _environment(self, scope: Scope, sizes: dict[str, int], draws: list[int], magnitudes: bool) -> Environment:
        arithmetic = Arithmetic(sizes, bool(scope.values or scope.sizes), self.account)
        drawn = partial(draw_tensor, arithmetic=arithmetic, seed=self.seed, draws=draws, magnitudes=magnitudes)
        free, header = dict(scope.values), self.page.header
        return Environment(scope.names, scope.definitions, arithmetic, free, evaluate, header, drawn, draws)

    def run(self) -> list[Record]:
        """Judge all equations; then, with all names known, what says the same, and definitions that nothing uses."""
        records = [self.equation(equation) for equation in self.page.equations]
        for record, equation in zip(records, self.page.equations, strict=True):
            if self.elsewhere and equation.same and record.verdict == "holds":
                try:
                    self._same(equation)
                except Fault as fault:
                    self._judge_fault(equation, record, fault)
        for position, key in unused(records, self.page.header):
            record, equation = records[position], self.page.equations[position]
            if record.verdict == "holds":
                self._judge_fault(equation, record, self._unused(equation, key))
        return records

    def _unused(self, equation: Equation, key: str) -> Fault:
        scope = self._scope_of(equation)
        slip = same_value(scope, key)
        message = f"{key} is defined here and used nowhere: a definition that nothing holds to account, or a slip"
        definition = scope.definitions.by_key.get(key)
        place = None if definition is None else definition.place
        return Fault("name", message + (f" for {slip}?" if slip else "?"), place)

    def equation(self, equation: Equation) -> Record:
        """Judge one equation. What it defines is known to those after it."""
        record = Record(
            equation.tag, self.page.name, equation.line, "fails", text_only=equation.text_only, same=equation.same
        )
        try:
            if equation.fault is not None:
                raise equation.fault
            if equation.mark == "skipped":
                record.verdict = "not executed"
                record.message = equation.reason
                return record
            self.account.begin()
            self._judge(equation, record)
        except Fault as fault:
            self._judge_fault(equation, record, fault)
        except (RecursionError, MemoryError):
            record.message = f"{self.page.path}:{equation.line}: this equation is too large"
            record.kind = "limit"
        except Exception as error:  # a page must never bring a traceback; tests see to it that none gets here
            record.message = (
                f"{self.page.path}:{equation.line}: the checker failed here: {type(error).__name__}: {error}"
            )
            record.kind = "internal"
        return record

    def _judge_fault(self, equation: Equation, record: Record, fault: Fault) -> None:
        record.verdict, record.kind = "fails", fault.kind
        record.message = show(self.page.path, self.page.text, fault, equation.offset)
        if fault.span is None:
            record.message = f"{self.page.path}:{equation.line}: {fault.message}"
        record.uses |= mentioned(equation.text, self.scope.names)
        if equation.mark == "malformed" and fault.kind == "shape":
            record.verdict = "refuted"

    def _judge(self, equation: Equation, record: Record) -> None:
        parsed = chains(equation.text)
        scope = self._scope_of(equation)
        record.example = -1 if scope is self.scope else equation.example
        worst = 0.0
        refutations = [np.zeros(len(environment.draws), dtype=bool) for environment in scope.environments]
        for chain in parsed:
            statement = read_statement(chain, scope.names)
            record.gradient = record.gradient or _mentions_derivative(statement)
            record.uses |= names_in(statement)
            record.of += self._gradient_of(statement, scope)
            if scope is not self.scope and not equation.mark and binds(statement, scope.names):
                self._check_binding(statement, scope)
                continue
            if statement.target is not None:
                if equation.mark:
                    raise Fault("page", "a refuted equation cannot define a name", statement.target.span)
                record.defines += (statement.target.key,)
                self._define(statement, scope)
            before: list[_Side | None] = [None] * len(
                scope.environments
            )  # in the middle of a chain: what the last pair ended with
            for position in range(len(statement.relations)):
                if statement.sides[position] is None and len(statement.sides) == 2:
                    break
                if statement.sides[position] is None:
                    continue
                equal = statement.relations[position] in ("<=", ">=")
                drawn = scope is not self.scope or not _mentions_name(statement)
                record.rounded = record.rounded or statement.relations[position] == "~"
                for number, environment in enumerate(scope.environments):
                    sides = _both(statement, position, environment, before[number])
                    before[number] = sides[1]
                    error, holds = self._pair(statement, position, environment, sides)
                    drawn = drawn or holds.size > 1
                    equal = equal and bool(
                        holds.all() and self._pair(statement, position, environment, sides, "=")[1].all()
                    )
                    worst = max(worst, error)
                    if holds.all():
                        continue
                    refutations[number] |= ~holds
                    if equation.mark != "refuted":
                        record.error = error
                        raise Fault(
                            "claim",
                            self._complaint(statement, position, error, environment),
                            (statement.places[position]),
                        )
                if (statement.relations[position] in _BOUNDS or not drawn) and not equation.mark:
                    worst = max(worst, self._at_more(statement, position, scope, record))
                if equal and not equation.mark and self._equal_at_more(statement, position, scope):
                    message = "both sides are always equal: claim ="
                    raise Fault("claim", message, statement.places[position])
        record.error = worst
        if equation.mark == "malformed":
            raise Fault("claim", "marked as not well-formed, but it can be evaluated", parsed[0].relations[0].span)
        if equation.mark == "refuted":
            refuted = np.concatenate(refutations)
            if not refuted.all():
                raise Fault(
                    "claim",
                    "marked as refuted, but it holds" + (" at some draws" if refuted.any() else ""),
                    parsed[0].relations[0].span,
                )
            record.verdict = "refuted"
        else:
            record.verdict = "holds"

    def _same(self, equation: Equation) -> None:
        """What an equation is the same as must hold with the names of its page too, of the same left sides.

        All sides of a chain are equal, so then every side of the one equals every side of the other, in every draw.
        """
        self.account.begin()
        scope = self._scope_of(equation)
        statements = [read_statement(chain, scope.names) for chain in chains(equation.text)]
        others: list[Statement] = []
        for tag in equation.same:
            other = self.elsewhere.get(tag)
            if other is None or other.tag == equation.tag:
                raise Fault("page", f"the same as ({tag}), which stands in no {'page' if other is None else 'other'}")
            if other.mark:
                raise Fault("page", f"the same as ({tag}), which does not hold itself: {other.mark}")
            try:
                for chain in chains(other.text):
                    others.append(read_statement(chain, scope.names))
                    self._holds_here(others[-1], scope)
            except Fault as fault:
                raise Fault("claim", f"the same as ({tag}), which does not hold here: {fault.message}") from None
        for statement in statements:
            if not any(_one_subject(statement, other, scope) for other in others):
                message = f"not the same as ({', '.join(equation.same)}): no left side there has this value"
                raise Fault("claim", message, statement.span)

    def _holds_here(self, statement: Statement, scope: Scope) -> None:
        if statement.target is not None:
            raise Fault("name", f"the symbol {statement.target.key} is not known here")
        for position in range(len(statement.relations)):
            for environment in scope.environments:
                self._holds(statement, position, environment)

    def _holds(
        self, statement: Statement, position: int, environment: Environment, record: Record | None = None
    ) -> float:
        """The error of one relation in some draws, in which it must hold."""
        error, holds = self._pair(statement, position, environment, _both(statement, position, environment))
        if holds.all():
            return error
        if record is not None:
            record.error = error
        raise Fault("claim", self._complaint(statement, position, error, environment), statement.places[position])

    def _at_more(self, statement: Statement, position: int, scope: Scope, record: Record) -> float:
        """An inequality, or what is said of sizes alone, at many more: at a few also a wrong one may be true."""
        if not scope.more:
            further = range(self.draws, self.draws + BOUND_DRAWS)
            scope.more += self._environments(scope, further, BOUND_TOGETHER, magnitudes=True)
        worst = 0.0
        for environment in scope.more:
            worst = max(worst, self._holds(statement, position, environment, record))
        return worst

    def _equal_at_more(self, statement: Statement, position: int, scope: Scope) -> bool:
        """Whether the two sides of an inequality are equal there, too: a number has one sign at a few draws."""
        return all(
            self._pair(statement, position, at, _both(statement, position, at), "=")[1].all() for at in scope.more
        )

    def _gradient_of(self, statement: Statement, scope: Scope) -> tuple[str, ...]:
        """The symbol X, where the left side is dL/dX or a name that is defined as that."""
        left: nodes.Node | None = statement.first
        if left is statement.sides[0] and isinstance(left, nodes.Ref) and left.name in scope.definitions.by_key:
            left = scope.definitions.by_key[left.name].body
        if isinstance(left, nodes.Derivative) and isinstance(left.top, nodes.Ref) and left.top.name == LOSS:
            return (left.bottom.name,)
        return ()

    def _complaint(self, statement: Statement, position: int, error: float, environment: Environment) -> str:
        sizes = ", ".join(
            f"{name.replace('{', '').replace('}', '')}={size}" for name, size in environment.arithmetic.sizes.items()
        )
        relation = statement.relations[position]
        if relation == "~":
            return f"this does not agree with the printed digits: relative difference {error:.2g}"
        return f"this does not hold: relative error {error:.2g}" + (f" (with {sizes})" if sizes else "")

    def _pair(
        self,
        statement: Statement,
        position: int,
        environment: Environment,
        sides: tuple[_Side, _Side],
        instead: str | None = None,
    ) -> tuple[float, npt.NDArray[np.bool_]]:
        """The largest error of one relation in some draws, and in which of them it holds."""
        relation, place = instead or statement.relations[position], statement.places[position]
        (left, one, _), (right, two, _) = sides
        free = set(one.names) | set(two.names)
        _check_bound(left, free)
        _check_bound(right, free)
        where = self._where(statement.condition, environment)
        pairs = compare.aligned_sides(environment.arithmetic, one, two, where, place)
        try:
            if relation == "~":
                units = _half_units(left, right, place)
                found = [compare.printed(a, b, units) for a, b in pairs]
            elif relation != "=":
                found = [compare.ordering(a, b, relation, max(one.scale, two.scale)) for a, b in pairs]
            else:
                for side in sides:
                    if side.underflow is not None:
                        raise Fault("domain", "the exponential underflows here: claim \\approx", side.underflow)
                masked = environment.definitions.mask(left) or environment.definitions.mask(right)
                found = [compare.equality(a, b, one.scale, two.scale, masked) for a, b in pairs]
        except Fault as fault:
            raise fault.at(place) from None
        return max(error for error, _ in found), np.array([holds for _, holds in found])

    def _where(self, condition: nodes.Node | None, environment: Environment) -> Value | None:
        if condition is None:
            return None
        return Evaluator(environment).condition(condition, ())

    def _define(self, statement: Statement, scope: Scope) -> None:
        """Make a name known, evaluate it at every draw, and check the rest of its chain against it."""
        target, body = statement.target, statement.first
        assert target is not None
        _check_bound(body, set(target.indices))
        scope.names.add(Symbol(target.key, "defined"), target.span)
        scope.definitions.add(target.key, target.indices, body, body.tensors, body.span, target.span)
        try:
            tensors = [environment.tensor(target.key, target.span) for environment in scope.environments]
            if any(np.isnan(tensor.data).any() for tensor in tensors):
                of_itself = ": a recurrence uses the places before, of its first index" * (target.key in body.tensors)
                raise Fault("domain", "this is not a number" + of_itself, body.span)
        except Fault as fault:
            scope.definitions.broken[target.key] = fault.message
            raise
        scope.names.settle(target.key, tensors[0].axes)
        if target.key == self.page.header.output:
            self._loss(scope, tensors[0].axes)

    def _loss(self, scope: Scope, axes: tuple[str, ...]) -> None:
        header = self.page.header
        if scope.names.get(header.cotangent) is None:
            scope.names.add(Symbol(header.cotangent, "tensor", axes))
        if scope.names.get(LOSS) is None:
            uses = frozenset([header.output or "", header.cotangent])
            scope.names.add(Symbol(LOSS, "defined", ()))
            scope.definitions.add(LOSS, (), None, uses, (0, 0), (0, 0))

    def _scope_of(self, equation: Equation) -> Scope:
        if equation.example < 0:
            return self.scope
        if equation.example not in self._examples:
            self._examples[equation.example] = None  # if it cannot be set up, nobody tries again
            self._examples[equation.example], fault = self._example(equation)
            if fault is not None:
                raise fault
        return self._examples[equation.example] or self.scope

    def _example(self, first: Equation) -> tuple[Scope | None, Fault | None]:
        """The scope of a worked example: everything that its equations bind, before the first is judged.

        And what is wrong with the first, if it binds something badly.
        """
        names = self.scope.names.copy()
        setting = Setting(self.page.header, names, self.account)
        wrong: Fault | None = None
        for equation in self.page.equations:
            if equation.example == first.example and equation.fault is None and not equation.mark:
                try:
                    setting.read(equation.text)
                except Fault as fault:
                    if fault.kind in ("shape", "limit") and equation is first:
                        wrong = fault
        if not setting.values and not setting.sizes:
            return None, wrong
        return self.set_up(names, self.scope.definitions.copy(), setting.sizes, setting.values), wrong

    def _check_binding(self, statement: Statement, scope: Scope) -> None:
        """The example was set up with this value; a second one for the same name was not."""
        for environment in scope.environments:
            one, two = (side.value for side in _both(statement, 0, environment))
            pairs = compare.aligned_sides(environment.arithmetic, one, two, None, statement.places[0])
            if not all(np.array_equal(a, b) for a, b in pairs):
                raise Fault("shape", "this has another value in this example", statement.span)


def _one_subject(one: Statement, two: Statement, scope: Scope) -> bool:
    """Whether two statements are about the same array, in index form or in matrix form: their left sides are equal."""
    for environment in scope.environments:
        found = []
        for statement in (one, two):
            value = evaluate(environment, statement.first)
            found.append(as_tensor(environment, value, indices_of(value.names), statement.first.span))
        if found[0].axes != found[1].axes:
            return False
        left, right = np.broadcast_arrays(found[0].data, found[1].data)
        if not compare.equality(left, right, found[0].scale, found[1].scale)[1]:
            return False
    return True


class _Side(NamedTuple):
    """One side of a relation in some draws, and the place of an exponential that underflowed in it."""

    node: nodes.Node
    value: Value
    underflow: Span | None


def _both(
    statement: Statement, position: int, environment: Environment, before: _Side | None = None
) -> tuple[_Side, _Side]:
    """The sides of one relation; the first is known where the relation ``before`` it ended there."""
    return before or _side(statement.sides[position], environment), _side(statement.sides[position + 1], environment)


def _side(node: nodes.Node | None, environment: Environment) -> _Side:
    assert node is not None
    environment.underflow = None
    value = evaluate(environment, node)
    return _Side(node, value, environment.underflow)


def _check_bound(node: nodes.Node, free: set[str]) -> None:
    """An index that is free in the equation must not be bound somewhere inside of it."""
    for item in node.walk:
        bound = None
        if isinstance(item, nodes.Reduce) or (isinstance(item, nodes.Call) and item.function != "softmax"):
            bound = item.bound
        if bound is not None:
            for name, span in zip(bound.names, bound.spans, strict=True):
                if name in free:
                    raise Fault("shape", f"index {name} is bound here, but free in the equation", span)


def _mentions_name(statement: Statement) -> bool:
    found = (node for side in statement.sides if side is not None for node in side.walk)
    return any(isinstance(node, (nodes.Ref, nodes.IndexRef, nodes.SizeRef)) for node in found)


def _mentions_derivative(statement: Statement) -> bool:
    return any(side.has_derivative for side in statement.sides if side is not None)


def _half_units(left: nodes.Node, right: nodes.Node, place: Span) -> npt.NDArray[Any]:
    for side in (right, left):
        units = compare.half_units(side)
        if units is not None:
            return units
    raise Fault("syntax", "\\approx needs printed numbers on one side", place)
