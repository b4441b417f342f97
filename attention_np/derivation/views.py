"""What a reader can see of an equation beside its formula: its lines of NumPy, and its numbers in a worked example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.check import PageCheck
from attention_np.derivation.environment import Environment
from attention_np.derivation.errors import Fault
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.identifiers import Identifiers
from attention_np.derivation.lines import PrintedStatement, printed
from attention_np.derivation.page import Equation
from attention_np.derivation.scope import Scope
from attention_np.derivation.statements import Statement
from attention_np.derivation.values import Array

__all__ = ["View", "printed_statements", "views"]

MOST_ENTRIES = 48  # of an array whose numbers are shown
DIGITS = 4  # behind the point
COLUMNS = 66  # that fit below an equation of the site


class View(NamedTuple):
    """Of one equation: lines of NumPy, "" where it is not said in NumPy, and the numbers of its left sides, by name."""

    lines: str
    numbers: str


def views(check: PageCheck) -> dict[str, View]:
    """The views of all equations that hold, by their tags, of a page that was checked."""
    identifiers = identifiers_of(check)
    examples = list(_example_scopes(check))
    seen = {}
    for equation in check.page.equations:
        parts = [part for _, part in printed_statements(check, equation, identifiers)]
        if parts and not equation.mark:
            lines = [line for part in parts if part is not None for line in part.lines]
            numbers = [] if check.scope_of(equation) is not check.scope else _numbers(check, equation, parts, examples)
            seen[equation.tag] = View("\n".join(_once(lines)), "\n".join(numbers))
    return seen


def identifiers_of(check: PageCheck) -> Identifiers:
    """The names of a page, and of its worked examples, in Python."""
    tables = [scope.names for scope in (check.scope, *check.examples.values())]
    return Identifiers.of_page(check.page.header, tables)


def printed_statements(
    check: PageCheck, equation: Equation, identifiers: Identifiers
) -> list[tuple[Statement, PrintedStatement | None]]:
    """The statements of an equation that was checked, and each in NumPy."""
    names = check.scope_of(equation).names
    return [
        (statement, printed(statement, names, check.page.header, identifiers))
        for statement in check.statements.get(equation.tag, ())
    ]


def _once(lines: list[str]) -> Iterator[str]:
    """The lines without the ranges of indices that stand before."""
    seen: set[str] = set()
    for line in lines:
        if line not in seen or "np.arange" not in line:
            yield line
        seen.add(line)


def _example_scopes(check: PageCheck) -> Iterator[Scope]:
    """The worked examples, each with all definitions of the page."""
    drawing = replace(check.drawing, draws=1)
    for scope in {id(scope): scope for scope in check.examples.values()}.values():
        if scope is not check.scope:
            known = check.scope.names, check.scope.definitions
            yield drawing.scope(*known, dict(scope.sizes), dict(scope.values))


def _numbers(
    check: PageCheck, equation: Equation, parts: list[PrintedStatement | None], examples: list[Scope]
) -> list[str]:
    """A line for each array on the left that a worked example says all of."""
    numbers: dict[str, str] = {}
    for statement, part in zip(check.statements[equation.tag], parts, strict=True):
        if part is None or not part.name or part.name in numbers:
            continue
        for scope in examples:
            if not _is_set(statement, scope, check):
                continue
            try:
                check.account.begin()
                array = _left(statement, scope.environments[0], part.frame)
            except Fault:
                continue
            if array.size <= MOST_ENTRIES and np.isfinite(array).any():
                numbers[part.name] = shown(part.name, array)
            break
    return list(numbers.values())


def _is_set(statement: Statement, scope: Scope, check: PageCheck) -> bool:
    """Whether a worked example sets everything that a statement depends on."""
    sides = [side for side in (*statement.sides, statement.condition) if side is not None]
    uses = set(statement.uses) | ({statement.target.key} if statement.target else set())
    needs = uses.union(*(scope.definitions.needs(key) for key in uses))
    header = check.page.header
    free = {key for key in needs if key in header.tensors or key == header.cotangent}
    sizes = {node.name for side in sides for node in side.walk if isinstance(node, nodes.SizeRef)}
    indices = {node.name for side in sides for node in side.walk if isinstance(node, nodes.IndexRef)}
    sizes |= {scope.names.range_of(index) for index in indices}
    known = {*scope.sizes, *header.fixed}
    return free <= set(scope.values) and all(
        {size, *header.sizes.get(size, ())} & known and (size in known or set(header.sizes[size]) <= known)
        for size in sizes
    )


def _left(statement: Statement, environment: Environment, frame: tuple[str, ...]) -> Array:
    """The array on the left of a statement."""
    target, first = statement.target, statement.sides[0]
    if target is not None or isinstance(first, nodes.Ref):
        key = target.key if target is not None else first.name  # type: ignore[union-attr]
        return environment.tensor(key, statement.span).data
    assert first is not None
    return laid_out(environment, first, frame)


def laid_out(environment: Environment, node: nodes.Node, frame: tuple[str, ...]) -> Array:
    """The value of a node with axes for the indices of a frame, then its own; a column or a row has one."""
    value = evaluate(environment, node)
    data = environment.arithmetic.spread(value, frame)
    return data.reshape(*data.shape[: len(frame)], -1) if len(value.shape) == 2 and "1" in value.shape else data


def shown(name: str, array: Array) -> str:
    """An array as NumPy prints it, behind its name."""
    text = np.array2string(
        np.asarray(array, dtype=float) + 0.0,
        precision=DIGITS,
        suppress_small=True,
        separator=", ",
        prefix=f"{name} = ",
        max_line_width=COLUMNS,
    )
    return f"{name} = {text}"
