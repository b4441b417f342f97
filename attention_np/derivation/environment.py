"""What the names of a page stand for in one draw: sizes, random tensors, definitions and their derivatives.

A derivative is never a formula here. :class:`Perturbed` gives one tensor an imaginary step in each of its entries at
once, along an extra axis ``"@"``, and evaluates again every later definition that depends on it. A derivative of a
derivative is that once more, with slopes in the place of the steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from attention_np.derivation import limits, nodes
from attention_np.derivation.account import Account
from attention_np.derivation.duals import Array, Dual, slope_of
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.header import Free, Header
from attention_np.derivation.names import Names, moved_by
from attention_np.derivation.values import ONE, STEP, Arithmetic, Value, top, top_tangent


class Tensor(NamedTuple):
    """The value of a name: an array whose axes have ranges, with a leading perturbation axis or without."""

    data: Array
    axes: tuple[str, ...]
    scale: float = 0.0
    tangent: float = 0.0
    perturbed: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the axes."""
        return self.data.shape[1:] if self.perturbed else self.data.shape

    def value(self) -> Value:
        """The bare symbol: a number, a column, a matrix, or a tensor of more axes."""
        names = ("@",) if self.perturbed else ()
        data, shape = self.data, self.axes
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return Value(data, names, shape, self.scale, self.tangent)


@dataclass(frozen=True)
class Definition:
    """``key`` with its indices equals ``body``, except L, which has none; ``place`` is that of the new name."""

    key: str
    indices: tuple[str, ...]
    body: nodes.Node | None
    span: Span
    needs: frozenset[str]  # every name, free or defined, that its value depends on
    masked: bool = False  # a case of it, or of what it depends on, is a literal infinity
    place: Span = (0, 0)


@dataclass
class Definitions:
    """The definitions of a page so far, in its order, and why some of them have no value."""

    by_key: dict[str, Definition] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Definitions:
        """An independent table."""
        return Definitions(dict(self.by_key), dict(self.broken))

    def add(
        self, key: str, indices: tuple[str, ...], body: nodes.Node | None, uses: frozenset[str], span: Span, place: Span
    ) -> None:
        """Append a definition that uses these names; everything that they need is known already."""
        needs = uses.union(*map(self.needs, uses))
        masked = self.mask(body) if body is not None else any(map(self._is_masked, uses))
        self.by_key[key] = Definition(key, indices, body, span, needs, masked, place)

    def needs(self, key: str) -> frozenset[str]:
        """Every name, free or defined, that the value of ``key`` depends on."""
        return self.by_key[key].needs if key in self.by_key else frozenset()

    def mask(self, node: nodes.Node) -> bool:
        """Whether a case of an expression, or of what it is defined by, is a literal infinity."""
        return node.has_infinite_case or any(map(self._is_masked, node.tensors))

    def _is_masked(self, key: str) -> bool:
        return key in self.by_key and self.by_key[key].masked

    def order(self, key: str) -> list[Definition]:
        """The definitions that lead up to ``key``, in the order of the page."""
        needs = self.needs(key)
        return [definition for name, definition in self.by_key.items() if name == key or name in needs]


Evaluate = Callable[["Environment", nodes.Node], Value]
Draw = Callable[[str, Free], Tensor]


class Environment:
    """One draw. ``evaluate`` is handed in, so that definitions and expressions can know each other."""

    def __init__(
        self,
        names: Names,
        definitions: Definitions,
        arithmetic: Arithmetic,
        free: dict[str, Tensor],
        evaluate: Evaluate,
        header: Header,
        draw: Draw | None = None,
    ) -> None:
        self.names = names
        self.definitions = definitions
        self.arithmetic = arithmetic
        self.free = free
        self.evaluate = evaluate
        self.header = header
        self.draw = draw
        self.values: dict[str, Tensor] = {}
        self.jacobians: dict[tuple[str, str], Tensor] = {}
        self._perturbed: dict[tuple[str, ...], Perturbed] = {}
        self.underflow: Span | None = None

    def branch(self, names: Names, definitions: Definitions, account: Account) -> Environment:
        """The same draw with other tables of names, which so far say the same, and an account of its own."""
        other = copy.copy(self)
        other.names, other.definitions = names, definitions
        other.arithmetic = copy.copy(self.arithmetic)
        other.arithmetic.account = account
        other.free, other.values = dict(self.free), dict(self.values)
        other.jacobians, other._perturbed = dict(self.jacobians), {}
        return other

    def tensor(self, key: str, span: Span) -> Tensor:
        """The value of a name, evaluating definitions in page order (never recursively) where needed."""
        if key in self.free:
            return self.free[key]
        if key not in self.values:
            for definition in self.definitions.order(key):
                if definition.key not in self.values and definition.key not in self.free:
                    self.values[definition.key] = self._define(definition, span)
            if key == self.header.cotangent:
                return self._draw_cotangent(span)
        if key not in self.values:
            raise Fault("broken", f"{key} has no value: its definition is broken", span)
        return self.values[key]

    def _draw_cotangent(self, span: Span) -> Tensor:
        output, cotangent = self.header.output, self.header.cotangent
        if output is None or self.draw is None:
            raise Fault("name", "the page names no output", span)
        self.free[cotangent] = self.draw(cotangent, Free(self.tensor(output, span).axes))
        return self.free[cotangent]

    def _define(self, definition: Definition, span: Span) -> Tensor:
        if definition.key in self.definitions.broken:
            reason = self.definitions.broken[definition.key]
            raise Fault("broken", f"{definition.key} has no value: its definition is broken ({reason})", span)
        if definition.body is None:
            tensor = self._functional(span)
        else:
            value = self.evaluate(self, definition.body)
            tensor = as_tensor(self, value, definition.indices, definition.span)
        return tensor._replace(data=self.arithmetic.hold(tensor.data, span))

    def _functional(self, span: Span) -> Tensor:
        output = self.tensor(self.header.output or "", span)
        cotangent = self.tensor(self.header.cotangent, span)
        moving = output.perturbed or cotangent.perturbed
        if not moving and cotangent.data.shape != output.data.shape:
            raise Fault("shape", f"{self.header.cotangent} has not the shape of the output", span)
        terms = output.data * cotangent.data
        axes = tuple(range(1 if moving else 0, terms.ndim))
        return Tensor(
            terms.sum(axis=axes),
            (),
            max(top(terms), output.scale * cotangent.scale),
            max(top_tangent(terms), output.tangent * cotangent.scale, output.scale * cotangent.tangent),
            moving,
        )

    def perturbed(self, key: str, span: Span) -> Perturbed:
        """The draw with a step in every entry of ``key``, one after the other."""
        if (key,) not in self._perturbed:
            lengths = self.tensor(key, span).lengths
            count = math.prod(lengths)
            self.arithmetic.charge([(count, count)], span)
            self._perturbed[key,] = self._step({key: np.eye(count).reshape(count, *lengths)}, count, span)
        return self._perturbed[key,]

    def along(self, tangents: tuple[str, ...], span: Span) -> Perturbed:
        r"""The draw with one step, of every X along its ``\\dot{X}``."""
        name = ("", *tangents)
        if name not in self._perturbed:
            directions = {}
            for key in tangents:
                tangent = self.tensor(key, span)
                directions[moved_by(key)] = tangent.data[:, None] if tangent.perturbed else tangent.data[None]
            self._perturbed[name] = self._step(directions, 1, span)
        return self._perturbed[name]

    def _step(self, directions: dict[str, Array], count: int, span: Span) -> Perturbed:
        return Perturbed(self, directions, count, span)

    def jacobian(self, top_key: str, bottom_key: str, span: Span) -> Tensor:
        """D top / d bottom, with the axes of top and then of bottom."""
        name = (top_key, bottom_key)
        if name not in self.jacobians:
            before, bottom = self.tensor(top_key, span), self.tensor(bottom_key, span)
            perturbed = self.perturbed(bottom_key, span)
            moved = perturbed.tensor(top_key, span)
            shape = before.lengths + bottom.lengths
            self.arithmetic.charge([shape], span)
            data = perturbed.derivative(moved.data) if moved.perturbed else np.zeros(shape)
            lead = data.shape[: data.ndim - len(before.lengths) - 1] if moved.perturbed else ()
            self.jacobians[name] = Tensor(
                self.arithmetic.hold(data.reshape(lead + shape), span),
                before.axes + bottom.axes,
                max(top(data), moved.tangent),
                max(top_tangent(data), moved.tangent) if lead else 0.0,
                bool(lead),
            )
        return self.jacobians[name]


class Perturbed(Environment):
    """A draw in which some tensors take a step, in an imaginary part; what does not depend on them is shared."""

    def __init__(self, parent: Environment, directions: dict[str, Array], count: int, span: Span) -> None:
        super().__init__(parent.names, parent.definitions, parent.arithmetic, {}, parent.evaluate, parent.header)
        self.parent = parent
        self.directions = directions
        self.count = count
        for key, direction in directions.items():
            self.free[key] = self._moved(parent.tensor(key, span), direction, span)

    def _moved(self, tensor: Tensor, direction: Array, span: Span) -> Tensor:
        """The tensor with a step along each direction."""
        data = self.arithmetic.hold(tensor.data + 1j * STEP * direction, span)
        return tensor._replace(data=data, tangent=top(direction), perturbed=True)

    def _step(self, directions: dict[str, Array], count: int, span: Span) -> Perturbed:
        return PerturbedTwice(self, directions, count, span)

    def tensor(self, key: str, span: Span) -> Tensor:
        """The symbol of that key, carried along with the perturbation."""
        if key in self.free:
            return self.free[key]
        if self.definitions.needs(key).isdisjoint(self.directions):
            return self._shared(self.parent.tensor(key, span), span)
        if key not in self.values:
            for definition in self.definitions.order(key):
                name = definition.key
                if not (name in self.values or name in self.free or definition.needs.isdisjoint(self.directions)):
                    self.values[name] = self._define(definition, span)
        return self.values[key]

    def _shared(self, tensor: Tensor, span: Span) -> Tensor:
        return tensor

    def derivative(self, data: Array) -> Array:
        """What an array moves by for each step: the axis of the steps is its first, and the last of the result."""
        moved: Array = np.moveaxis(np.where(np.isnan(data.real), np.nan, data.imag), 0, -1) / STEP
        return moved


class PerturbedTwice(Perturbed):
    """A perturbed draw in which some tensors have a slope, too: for each step of the parent and each one of its own."""

    parent: Perturbed

    def __init__(self, parent: Perturbed, directions: dict[str, Array], count: int, span: Span) -> None:
        self.counts = (parent.count, count)
        super().__init__(parent, directions, count, span)

    def _moved(self, tensor: Tensor, direction: Array, span: Span) -> Tensor:
        lengths = tensor.lengths
        self.arithmetic.charge([(*self.counts, *lengths)], span)
        slope = np.broadcast_to(direction, (*self.counts, *lengths)).reshape(-1, *lengths)
        tensor = self._shared(tensor, span)
        data = cast(Array, Dual(np.broadcast_to(tensor.data, slope.shape), slope))
        return tensor._replace(data=self.arithmetic.hold(data, span), perturbed=True)

    def _step(self, directions: dict[str, Array], count: int, span: Span) -> Perturbed:
        raise Fault("name", "a third derivative: define the first one by a formula", span)

    def _shared(self, tensor: Tensor, span: Span) -> Tensor:
        """A tensor of the parent, for each pair of steps."""
        if not tensor.perturbed:
            return tensor
        self.arithmetic.charge([(self.count, *tensor.data.shape)], span)
        return tensor._replace(data=np.repeat(tensor.data, self.count, axis=0), tangent=0.0)

    def _define(self, definition: Definition, span: Span) -> Tensor:
        """Where the definition is of what takes a step in the parent, that step comes after it."""
        tensor = super()._define(definition, span)
        direction = self.parent.directions.get(definition.key)
        if direction is None:
            return tensor
        steps = 1j * STEP * np.repeat(direction, self.count, axis=0)
        return tensor._replace(data=tensor.data + steps, perturbed=True)

    def derivative(self, data: Array) -> Array:
        """The slope of an array: steps of the parent come first in it, as before, and its own last."""
        slope = np.where(np.isnan(data.real), np.nan, slope_of(data))
        return np.moveaxis(slope.reshape(*self.counts, *data.shape[1:]), 1, -1)


def as_tensor(environment: Environment, value: Value, indices: tuple[str, ...], span: Span) -> Tensor:
    """The value of a definition's right side as an array over its indices, then its anonymous axes."""
    moving = "@" in value.names
    named = [name for name in value.names if name != "@"]
    arithmetic = environment.arithmetic
    if named or value.shape or not indices:
        missing = [name for name in indices if name not in named]
        extra = [name for name in named if name not in indices]
        if missing or extra:
            raise Fault("shape", free_indices(indices, named), span)
    value.sized(span)
    axes = [environment.names.range_of(name) for name in indices]
    shape = value.shape[:-1] if len(value.shape) == 2 and value.shape[1] == ONE else value.shape
    order = (("@",) if moving else ()) + indices
    data = arithmetic.spread(value, order)
    if shape != value.shape:
        data = data[..., 0]
    lead = data.shape[:1] if moving else ()
    lengths = tuple(arithmetic.size(axis) for axis in (*axes, *shape) if axis != "*")
    if "*" in shape:
        raise Fault("shape", "the length of \\mathbf{1} is not known here: write \\mathbf{1}_n", span)
    if len(lengths) > limits.AXES:
        raise Fault("limit", f"a tensor of more than {limits.AXES} axes", span)
    arithmetic.charge([lead + lengths], span)
    data = np.broadcast_to(data, lead + lengths)
    return Tensor(data, (*axes, *shape), value.scale, value.tangent, moving)


def free_indices(left: tuple[str, ...] | list[str], right: tuple[str, ...] | list[str]) -> str:
    """The complaint about indices that are free on one side only."""
    missing = [name for name in left if name not in right]
    extra = [name for name in right if name not in left]
    parts = []
    if missing:
        parts.append(f"index {', '.join(missing)} is free on the left but not on the right")
    if extra:
        parts.append(f"index {', '.join(extra)} is free on the right but not on the left")
    return "; ".join(parts)
