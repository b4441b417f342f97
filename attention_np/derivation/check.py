"""One page against mathematics: definitions are evaluated, everything else must hold, at every draw.

:class:`PageCheck` goes through the equations in order. What the names mean lives in a :class:`.scope.Scope`: one for
the page, and one for each worked example, in which some of the free tensors have printed values. A statement in the
draws of one size is a :class:`.trial.Trial`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from attention_np.derivation import compare
from attention_np.derivation.account import Account
from attention_np.derivation.draws import DRAWS
from attention_np.derivation.environment import LOSS, Definitions, as_tensor
from attention_np.derivation.errors import Fault, Span, show
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.examples import Setting, binds
from attention_np.derivation.names import Symbol
from attention_np.derivation.page import Equation, Page
from attention_np.derivation.record import Record
from attention_np.derivation.scope import Drawing, Scope
from attention_np.derivation.statements import Statement, chains, read_statement
from attention_np.derivation.trial import Trial, check_bound
from attention_np.derivation.usage import gradient_of, mentioned, same_value, unused
from attention_np.derivation.values import indices_of

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
        them, no equation is compared with the one that it is said to be the same as.
    """

    def __init__(
        self, page: Page, seed: int = 0, draws: int = DRAWS, elsewhere: Mapping[str, Equation] | None = None
    ) -> None:
        self.page = page
        self.elsewhere = elsewhere or {}
        self.drawing = Drawing(page.header, Account(), seed, draws)
        self.scope = self.drawing.scope(page.header.names(), Definitions(), {}, {})
        self.statements: dict[str, list[Statement]] = {}  # of the equations that do not fail, by their tags
        self.examples: dict[int, Scope] = {}  # by their headings; one that sets nothing has the scope of the page

    @property
    def account(self) -> Account:
        """What the page has cost so far."""
        return self.drawing.account

    def run(self) -> list[Record]:
        """Judge all equations; then, with all names known, *Same as*, and definitions that nothing uses."""
        records = [self.equation(equation) for equation in self.page.equations]
        for record, equation in zip(records, self.page.equations, strict=True):
            if self.elsewhere and equation.same and record.verdict == "holds":
                try:
                    self._check_same(equation)
                except Fault as fault:
                    self._fail(record, equation, fault)
        for position, key in unused(records, self.page.header):
            record, equation = records[position], self.page.equations[position]
            if record.verdict == "holds":
                self._fail(record, equation, _unused_definition(key, self.scope_of(equation)))
        return records

    def equation(self, equation: Equation) -> Record:
        """Judge one equation. The names that it defines are known to those after it."""
        tag, line = equation.tag, equation.line
        record = Record(tag, self.page.name, line, "fails", text_only=equation.text_only, same=equation.same)
        try:
            if equation.fault is not None:
                raise equation.fault
            if equation.mark == "skipped":
                record.verdict, record.message = "not executed", equation.reason
                return record
            self.account.begin()
            self._judge(equation, record)
        except Fault as fault:
            self._fail(record, equation, fault)
        except (RecursionError, MemoryError):
            record.message = f"{self.page.path}:{line}: this equation is too large"
            record.kind = "limit"
        except Exception as error:  # a page must never bring a traceback; tests see to it that none gets here
            record.message = f"{self.page.path}:{line}: the checker failed here: {type(error).__name__}: {error}"
            record.kind = "internal"
        return record

    def _fail(self, record: Record, equation: Equation, fault: Fault) -> None:
        record.verdict, record.kind = "fails", fault.kind
        self.statements.pop(equation.tag, None)
        record.message = show(self.page.path, self.page.text, fault, equation.offset)
        if fault.span is None:
            record.message = f"{self.page.path}:{equation.line}: {fault.message}"
        record.uses |= mentioned(equation.text, self.scope.names)
        if equation.mark == "malformed" and fault.kind == "shape":
            record.verdict = "refuted"

    def _judge(self, equation: Equation, record: Record) -> None:
        """Judge the statements of an equation one after the other; a fault is its first error."""
        parsed = chains(equation.text)
        scope, self.statements[equation.tag] = self.scope_of(equation), []
        record.example = -1 if scope is self.scope else equation.example
        refuted: npt.NDArray[np.bool_] = np.array(False)
        worst = 0.0
        for chain in parsed:
            statement = read_statement(chain, scope.names)
            self.statements[equation.tag].append(statement)
            record.gradient = record.gradient or statement.has_derivative
            record.rounded = record.rounded or "~" in statement.relations
            record.uses |= statement.uses
            record.of += gradient_of(statement, scope.definitions)
            if equation.mark:
                error, fails = _refutation(statement, scope)
                refuted = refuted | fails
            elif scope is not self.scope and binds(statement, scope.names):
                error = _check_setting(statement, scope)
            else:
                if statement.target is not None:
                    record.defines += (statement.target.key,)
                    self.define(statement, scope)
                error = self._check_statement(statement, scope, record)
            worst = max(worst, error)
        record.error = worst
        if equation.mark:
            _check_mark(equation.mark, refuted, parsed[0].relations[0].span)
        record.verdict = "refuted" if equation.mark else "holds"

    def _check_statement(self, statement: Statement, scope: Scope, record: Record) -> float:
        """The worst error of the relations of a statement: all hold at every draw.

        An inequality, or what is said of sizes alone, must hold at many more: at a few also a wrong one may be true.
        """
        worst = 0.0
        trials = [Trial(statement, environment) for environment in scope.environments]
        for position in statement.claims:
            relation, more = statement.relations[position], list[Trial]()
            error, drawn = _check_relation(trials, position, record)
            of_sizes = scope is self.scope and statement.mentions_name and not drawn
            if relation in _BOUNDS or of_sizes:
                more = [Trial(statement, environment) for environment in self.drawing.more(scope)]
                error = max(error, _check_relation(more, position, record)[0])
            if relation in ("<=", ">=") and all(trial.equal(position) for trial in (*trials, *more)):
                raise Fault("claim", "both sides are always equal: claim =", statement.places[position])
            worst = max(worst, error)
        return worst

    def define(self, statement: Statement, scope: Scope) -> None:
        """Make the name that a statement defines known, and evaluate it at every draw."""
        target, body = statement.target, statement.first
        assert target is not None
        check_bound(body, set(target.indices))
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
            self._define_loss(target.key, tensors[0].axes, scope)

    def _define_loss(self, output: str, axes: tuple[str, ...], scope: Scope) -> None:
        """The loss is the sum of the output times its cotangent, unless the page has a loss of its own."""
        cotangent = self.page.header.cotangent
        if scope.names.get(cotangent) is None:
            scope.names.add(Symbol(cotangent, "tensor", axes))
        if scope.names.get(LOSS) is None:
            scope.names.add(Symbol(LOSS, "defined", ()))
            scope.definitions.add(LOSS, (), None, frozenset([output, cotangent]), (0, 0), (0, 0))

    def scope_of(self, equation: Equation) -> Scope:
        """The scope of the worked example that an equation belongs to, or that of the page."""
        if equation.example < 0:
            return self.scope
        if equation.example not in self.examples:
            self.examples[equation.example] = self.scope  # if it cannot be set up, nobody tries again
            self._set_up_example(equation)
        return self.examples[equation.example]

    def _set_up_example(self, first: Equation) -> None:
        """Set up the worked example that begins with an equation, from everything that its equations set."""
        names, refusal = self.scope.names.copy(), None
        setting = Setting(self.page.header, names, self.account)
        for equation in self.page.equations:
            if equation.example == first.example and equation.fault is None and not equation.mark:
                try:
                    setting.read(equation.text)
                except Fault as fault:
                    if fault.kind in ("shape", "limit") and equation is first:
                        refusal = fault
        if setting.values or setting.sizes:
            definitions = self.scope.definitions.copy()
            self.examples[first.example] = self.drawing.scope(names, definitions, setting.sizes, setting.values)
        if refusal is not None:
            raise refusal

    def _check_same(self, equation: Equation) -> None:
        """The equations that one is the same as must hold with the names of its page, too, with the same left sides.

        All sides of a chain are equal, so then every side of the one equals every side of the other, in every draw.
        """
        self.account.begin()
        scope = self.scope_of(equation)
        others: list[Statement] = []
        for tag in equation.same:
            other = self.elsewhere.get(tag)
            if other is None or other.tag == equation.tag:
                raise Fault("page", f"the same as ({tag}), which stands in no {'page' if other is None else 'other'}")
            if other.mark:
                raise Fault("page", f"the same as ({tag}), which does not hold itself: {other.mark}")
            try:
                others += _statements_that_hold(other, scope)
            except Fault as fault:
                raise Fault("claim", f"the same as ({tag}), which does not hold here: {fault.message}") from None
        for statement in [read_statement(chain, scope.names) for chain in chains(equation.text)]:
            if not any(_same_left_side(statement, other, scope) for other in others):
                message = f"not the same as ({', '.join(equation.same)}): no left side there has this value"
                raise Fault("claim", message, statement.span)


def _check_relation(trials: Sequence[Trial], position: int, record: Record | None = None) -> tuple[float, bool]:
    """The worst error of one relation, which must hold in all trials; and whether it depends on the draw."""
    worst, drawn = 0.0, False
    for trial in trials:
        outcome = trial.compare(position)
        drawn = drawn or outcome.holds.size > 1
        if not outcome.holds.all():
            if record is not None:
                record.error = outcome.error
            raise trial.complaint(position, outcome.error)
        worst = max(worst, outcome.error)
    return worst, drawn


def _refutation(statement: Statement, scope: Scope) -> tuple[float, npt.NDArray[np.bool_]]:
    """The worst error of a statement, and in which draws at least one of its relations does not hold."""
    if statement.target is not None:
        raise Fault("page", "a refuted equation cannot define a name", statement.target.span)
    worst, fails = 0.0, []
    for environment in scope.environments:
        trial = Trial(statement, environment)
        outcomes = [trial.compare(position) for position in statement.claims]
        worst = max([worst, *(outcome.error for outcome in outcomes)])
        here = np.zeros(len(environment.draws), dtype=bool)
        for outcome in outcomes:
            here |= ~outcome.holds
        fails.append(here)
    return worst, np.concatenate(fails)


def _check_mark(mark: str, refuted: npt.NDArray[np.bool_], place: Span) -> None:
    """An equation that is marked as wrong must be wrong, at every draw."""
    if mark == "malformed":
        raise Fault("claim", "marked as not well-formed, but it can be evaluated", place)
    if not refuted.all():
        some = " at some draws" if refuted.any() else ""
        raise Fault("claim", "marked as refuted, but it holds" + some, place)


def _check_setting(statement: Statement, scope: Scope) -> float:
    """The example was set up with this value; a second one for the same name was not."""
    for environment in scope.environments:
        if not all(np.array_equal(left, right) for left, right in Trial(statement, environment).pairs(0)):
            raise Fault("shape", "this has another value in this example", statement.span)
    return 0.0


def _statements_that_hold(equation: Equation, scope: Scope) -> list[Statement]:
    """The statements of an equation, with the names of a scope, in which they must hold and define nothing."""
    statements = []
    for chain in chains(equation.text):
        statement = read_statement(chain, scope.names)
        if statement.target is not None:
            raise Fault("name", f"the symbol {statement.target.key} is not known here")
        trials = [Trial(statement, environment) for environment in scope.environments]
        for position in statement.claims:
            _check_relation(trials, position)
        statements.append(statement)
    return statements


def _same_left_side(one: Statement, two: Statement, scope: Scope) -> bool:
    """Whether the left sides of two statements are the same array, in index form or in matrix form."""
    for environment in scope.environments:
        values = [evaluate(environment, statement.first) for statement in (one, two)]
        left, right = (
            as_tensor(environment, value, indices_of(value.names), statement.first.span)
            for value, statement in zip(values, (one, two), strict=True)
        )
        if left.axes != right.axes:
            return False
        first, second = np.broadcast_arrays(left.data, right.data)
        if not compare.equality(first, second, left.scale, right.scale)[1]:
            return False
    return True


def _unused_definition(key: str, scope: Scope) -> Fault:
    slip = same_value(scope, key)
    message = f"{key} is defined here and used nowhere: a definition that nothing holds to account, or a slip"
    definition = scope.definitions.by_key.get(key)
    place = None if definition is None else definition.place
    return Fault("name", message + (f" for {slip}?" if slip else "?"), place)
