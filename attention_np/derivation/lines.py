"""An equation of a page as lines of NumPy: ``name = ...`` for each side, or two sides and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attention_np.derivation import nodes
from attention_np.derivation.header import Header
from attention_np.derivation.identifiers import Identifiers
from attention_np.derivation.names import Names
from attention_np.derivation.pieces import Unsayable
from attention_np.derivation.printing import Printer
from attention_np.derivation.slopes import free_indices_of
from attention_np.derivation.statements import Statement

__all__ = ["PrintedSide", "PrintedStatement", "printed"]

ONE_LINE = 72  # characters of two sides that fit on a line


@dataclass(frozen=True)
class PrintedSide:
    """One side of a statement: its position, the lines that come first, and the expression."""

    position: int
    before: tuple[str, ...]
    text: str
    names: tuple[str, ...]
    loop: str = ""  # the index of a recurrence
    branches: tuple[tuple[str, str], ...] = ()  # the conditions and values of its cases, where each is one of numbers


@dataclass(frozen=True)
class PrintedStatement:
    """A statement in NumPy.

    Attributes
    ----------
    lines : tuple of str
        What a reader sees.
    name : str
        What is on the left, if it is an array; else "".
    frame : tuple of str
        The indices that are the axes of the left side, in their order.
    sides : tuple of PrintedSide
        The sides that are said.
    arrays : dict of str to str
        The names of arrays and sizes in the lines, and their keys on the page.
    derivatives : dict of str to Node
        The names of derivatives, and what they are.
    condition : str
        Where it holds, if not everywhere.
    """

    lines: tuple[str, ...]
    name: str
    frame: tuple[str, ...]
    sides: tuple[PrintedSide, ...]
    arrays: dict[str, str]
    derivatives: dict[str, nodes.Node]
    condition: str


def printed(statement: Statement, names: Names, header: Header, identifiers: Identifiers) -> PrintedStatement | None:
    """The statement in NumPy; None where it is not said."""
    printer = Printer(names, identifiers.copy(), header=header)
    try:
        return _Statement(statement, printer).printed()
    except Unsayable:
        return None


class _Statement:
    """Prints one statement."""

    def __init__(self, statement: Statement, printer: Printer) -> None:
        self.statement = statement
        self.printer = printer
        self.loop = ""  # the index of a recurrence

    def printed(self) -> PrintedStatement:
        statement, printer = self.statement, self.printer
        name, labels = self._left()
        free = (label for side in statement.sides if side is not None for label in free_indices_of(side))
        printer.frame = tuple(dict.fromkeys([*labels, *sorted(dict.fromkeys(free), key=self._rank)]))
        where = printer.condition(statement.condition)
        sides = list(self._sides(bool(name)))
        if len(sides) < 2 - bool(name):
            raise Unsayable("a statement of which a side is not said")
        condition = "" if where is None else printer.laid(where, printer.frame)
        lines = [*self._counters(), *(self._assigned(name, sides) if name else self._claimed(sides))]
        if where is not None:
            lines.append(f"# where {where.text}")
        return PrintedStatement(
            tuple(lines), name, printer.frame, tuple(sides), printer.arrays, printer.derivatives, condition
        )

    def _rank(self, index: str) -> int:
        """The place of an index among those of the page: the order of axes where nothing else says one."""
        declared = list(self.printer.header.indices)
        name = index.rstrip("'")
        return declared.index(name) if name in declared else len(declared)

    def _left(self) -> tuple[str, tuple[str, ...]]:
        """The name of the array on the left, and the indices at it; no name if there stands something else."""
        target, first, printer = self.statement.target, self.statement.sides[0], self.printer
        if target is not None:
            if target.indices and target.key in self.statement.first.tensors:
                self.loop = target.indices[0]
            return printer.symbol(target.key), target.indices
        if isinstance(first, nodes.Ref):
            names = [index.name for index in first.indices or () if isinstance(index, nodes.IndexRef)]
            slices = sum(isinstance(index, nodes.Slice) for index in first.indices or ())
            whole = all(isinstance(index, nodes.Slice) for index in (first.indices or ())[len(names) :])
            own = any(first.name in side.tensors for side in self.statement.sides[1:] if side is not None)
            if len(set(names)) + slices == len(first.indices or ()) and whole and not own:
                return printer.symbol(first.name), tuple(names)
        if isinstance(first, (nodes.Derivative, nodes.Tangent)):
            code = printer.code(first)
            if all(_named_otherwise(side, code.text, printer) for side in self.statement.sides[1:]):
                return code.text, code.names
        return "", ()

    def _sides(self, named: bool) -> Iterator[PrintedSide]:
        """The sides that are said, behind the one that the name is."""
        sides = self.statement.sides
        positions = [place for place in range(int(named), len(sides)) if sides[place] is not None]
        plain = [place for place in positions if not sides[place].has_derivative]  # type: ignore[union-attr]
        for place in plain if plain and named else positions:
            try:
                yield self._side(place, named)
            except Unsayable:  # noqa: PERF203 (a few sides)
                if not named:
                    raise

    def _side(self, place: int, named: bool) -> PrintedSide:
        node = self.statement.sides[place]
        assert node is not None
        loop = self.loop if place == 1 else ""
        inside = replace(self.printer, before=[], counters={})
        frame = inside.frame
        if loop:
            frame = frame[1:]
            inside = replace(inside, frame=frame, scalars=frozenset([loop]))
        code = inside.number(inside.code(node))
        if code.special == "eye":
            raise Unsayable("an identity matrix of an unknown size")
        text = inside.whole(code, frame) if named else inside.laid(inside.plain(code), frame)
        branches = tuple(self._branches(inside, node, frame)) if loop else ()
        before = [*(self._counter(inside, name, index) for name, index in inside.counters.items()), *inside.before]
        return PrintedSide(place, tuple(before), text, frame, loop, branches)

    @staticmethod
    def _branches(printer: Printer, node: nodes.Node, frame: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """The cases of a recurrence as branches."""
        if isinstance(node, nodes.Cases):
            wheres = [printer.condition(condition) for condition in node.conditions]
            if all(where is None or not where.names for where in wheres):
                for value, where in zip(node.values, wheres, strict=True):
                    code = printer.number(printer.code(value))
                    yield "" if where is None else where.text, printer.whole(code, frame)

    @staticmethod
    def _counter(printer: Printer, name: str, index: str) -> str:
        return f"{name} = np.arange({printer.size(printer.known.range_of(index))})"

    def _counters(self) -> Iterator[str]:
        """The indices that a condition of the statement uses."""
        for name, index in self.printer.counters.items():
            yield self._counter(self.printer, name, index)

    def _assigned(self, name: str, sides: list[PrintedSide]) -> Iterator[str]:
        """A line for each side, and those that come before it."""
        said = set(self._counters())
        rounded = [side for side in sides if self.statement.relations[side.position - 1] == "~"]
        for side in [side for side in sides if side not in rounded] or rounded:
            fresh = [line for line in side.before if line not in said]
            said.update(fresh)
            if side.loop:
                counter = self.printer.identifiers.of(side.loop)
                axes = self.printer.known.get(self.statement.target.key).axes  # type: ignore[union-attr]
                sizes = ", ".join(map(self.printer.size, axes))  # type: ignore[arg-type]
                yield from (line for line in fresh if "np.arange" in line)
                yield f"{name} = np.zeros(({sizes}{',' * (len(axes) == 1)}))"  # type: ignore[arg-type]
                yield f"for {counter} in range({self.printer.size(axes[0])}):"  # type: ignore[index]
                yield from (f"    {line}" for line in fresh if "np.arange" not in line)
                if not side.branches:
                    yield f"    {name}[{counter}] = {side.text}"
                for place, (where, text) in enumerate(side.branches):
                    yield f"    {'elif' if place else 'if'} {where}:" if where else "    else:"
                    yield f"        {name}[{counter}] = {text}"
            else:
                yield from fresh
                line = f"{name} = {side.text}" + "  # rounded" * (side in rounded)
                if line not in said:
                    yield line
                said.add(line)

    def _claimed(self, sides: list[PrintedSide]) -> Iterator[str]:
        """Two or more sides, and what holds between neighbours."""
        said = [*self._counters()]
        yield from dict.fromkeys(line for side in sides for line in side.before if line not in said)
        first, texts = sides[0].text, [side.text for side in sides]
        if len(sides) == 2 and len(texts[0]) + len(texts[1]) < ONE_LINE:
            yield _relation(texts[0], self.statement.relations[0], texts[1])
            return
        yield f"left = {first}"
        for place, text in enumerate(texts[1:]):
            relation = self.statement.relations[place]
            right = text if len(text) < ONE_LINE else "right"
            if right != text:
                yield f"right = {text}"
            yield _relation("left", relation, right)
            if relation != "=" and place < len(texts) - 2:
                yield f"left = {right}"


def _named_otherwise(side: nodes.Node | None, name: str, printer: Printer) -> bool:
    """Whether a side does not speak of the derivative that is on the left."""
    if side is None or not side.has_derivative:
        return True
    inside = replace(
        printer,
        before=[],
        counters={},
        derivatives={},
        patterns={**printer.patterns},
        identifiers=printer.identifiers.copy(),
    )
    try:
        return name not in inside.code(side).text
    except Unsayable:
        return True


def _relation(left: str, relation: str, right: str) -> str:
    """What is said of two sides."""
    if relation == "~":
        return f"{left}  # about {right}"
    if relation == "=":
        return f"np.allclose({left}, {right})"
    return f"np.all({left} {relation} {right})"
