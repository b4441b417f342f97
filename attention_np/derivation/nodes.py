"""The tree of an expression. Every node knows the place in the LaTeX that it was read from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from attention_np.derivation import limits
from attention_np.derivation.errors import Fault, Span


@dataclass(eq=False)
class Node:
    """A piece of an expression; ``children`` are the nodes directly below, ``depth`` is the height of the tree."""

    span: Span
    children: tuple[Node, ...] = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)
    method: ClassVar[str]  # that evaluates it

    def __init_subclass__(cls) -> None:
        cls.method = f"_{cls.__name__.lower()}"

    def __post_init__(self) -> None:
        self.children = tuple(_nodes_in(vars(self).values()))
        self.depth = 1 + max([child.depth for child in self.children], default=0)
        if self.depth > limits.DEPTH:
            raise Fault("limit", f"the expression is nested more than {limits.DEPTH} deep", self.span)

    @cached_property
    def walk(self) -> tuple[Node, ...]:
        """The node and everything below it."""
        return (self, *(node for child in self.children for node in child.walk))

    @cached_property
    def tensors(self) -> frozenset[str]:
        """The names of tensors, free or defined, that the expression uses."""
        return frozenset(node.name for node in self.walk if isinstance(node, Ref))

    @cached_property
    def has_derivative(self) -> bool:
        """Whether something is differentiated in it."""
        return any(isinstance(node, (Derivative, Tangent)) for node in self.walk)

    @cached_property
    def has_infinite_case(self) -> bool:
        """Whether a case of the expression is a literal infinity."""
        values = [value for node in self.walk if isinstance(node, Cases) for value in node.values]
        return any(isinstance(node, Constant) and node.name == "infinity" for value in values for node in value.walk)


def _nodes_in(values: Iterable[object]) -> list[Node]:
    found: list[Node] = []
    for value in values:
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            if value and not isinstance(value[0], int):  # a place
                found += _nodes_in(value)
        elif isinstance(value, Bound) and value.condition is not None:
            found.append(value.condition)
    return found


@dataclass(eq=False)
class Number(Node):
    """A literal, as printed."""

    text: str

    @property
    def value(self) -> float:
        """The number that it stands for."""
        return float(self.text)


@dataclass(eq=False)
class Constant(Node):
    r"""``\\infty``, ``\\pi``, and the bold zero."""

    name: str


@dataclass(eq=False)
class Slice(Node):
    """A colon in an index list: the whole axis."""


@dataclass(eq=False)
class Ref(Node):
    """A tensor, free or defined, with the indices that stand at it (None: the bare symbol)."""

    name: str
    indices: tuple[Node, ...] | None
    name_span: Span = (0, 0)


@dataclass(eq=False)
class IndexRef(Node):
    """An index used as a number, or inside an index list."""

    name: str


@dataclass(eq=False)
class SizeRef(Node):
    """The length of an index range, used as a number."""

    name: str


@dataclass(eq=False)
class Eye(Node):
    """The identity matrix; ``size`` is None when its neighbours have to say."""

    size: str | None


@dataclass(eq=False)
class Ones(Node):
    """The vector of ones."""

    size: str | None


@dataclass(eq=False)
class Delta(Node):
    """Kronecker's delta."""

    left: Node
    right: Node


@dataclass(eq=False)
class Add(Node):
    """Signed terms; also a single term with a sign. ``signs`` holds +1 or -1 and the place of the sign."""

    terms: tuple[Node, ...]
    signs: tuple[tuple[int, Span | None], ...]


@dataclass(eq=False)
class Mul(Node):
    """Factors and the operator before each: "", "cdot", "odot", "oslash", "slash", "mod"."""

    factors: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(eq=False)
class Group(Node):
    """Something in round or square brackets."""

    body: Node


@dataclass(eq=False)
class Frac(Node):
    r"""``\frac{top}{bottom}``."""

    top: Node
    bottom: Node


@dataclass(eq=False)
class Power(Node):
    """``base^exponent``, of each entry or of a matrix."""

    base: Node
    exponent: Node
    elementwise: bool = False
    script_span: Span = (0, 0)


@dataclass(eq=False)
class Transpose(Node):
    r"""``base^\top``."""

    base: Node
    script_span: Span = (0, 0)


@dataclass(eq=False)
class Indexed(Node):
    r"""An index list behind a bracket: ``(Q K^\\top)_{ij}``."""

    base: Node
    indices: tuple[Node, ...]


@dataclass(eq=False)
class Compare(Node):
    r"""A chain of relations between numbers: ``1 \\le j < i``."""

    sides: tuple[Node, ...]
    relations: tuple[str, ...]


@dataclass(eq=False)
class Both(Node):
    """Conditions joined by "and" or "or"."""

    parts: tuple[Node, ...]
    word: str


CONDITIONS = (Compare, Both)


@dataclass(eq=False)
class Bound:
    """The indices that a sum binds, and the condition on them."""

    names: tuple[str, ...]
    spans: tuple[Span, ...]
    condition: Node | None
    span: Span


@dataclass(eq=False)
class Call(Node):
    r"""A function of its arguments; ``bound`` for ``\\max_j``, ``\\mathrm{softmax}_j``."""

    function: str
    arguments: tuple[Node, ...]
    bound: Bound | None = None
    bare: bool = False
    text: str = ""


@dataclass(eq=False)
class Reduce(Node):
    """A sum or a product over indices."""

    kind: str
    bound: Bound
    body: Node


@dataclass(eq=False)
class Iverson(Node):
    """1 where the condition holds, else 0."""

    condition: Node


@dataclass(eq=False)
class Cases(Node):
    """Values and the condition of each; None is "otherwise"."""

    values: tuple[Node, ...]
    conditions: tuple[Node | None, ...]


@dataclass(eq=False)
class Matrix(Node):
    """Rows of a literal; a bracketed list with commas is a column."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(eq=False)
class Derivative(Node):
    """The numerical derivative of ``top`` by ``bottom``."""

    top: Node
    bottom: Ref


@dataclass(eq=False)
class Tangent(Node):
    r"""How fast ``top`` moves when every X moves with ``\\dot{X}``; these are ``tangents``."""

    top: Node
    tangents: tuple[Ref, ...]
