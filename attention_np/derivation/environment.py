"""What the names of a page stand for in draws of one size: random tensors, definitions and their derivatives.

A derivative is never a formula here. :class:`Perturbed` gives one tensor an imaginary step in each of its entries at
once, along an extra axis, and evaluates again every later definition that depends on it. A derivative of a derivative
is that once more, with slopes in the place of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast

import numpy as np

from attention_np._lib.dual import velocity_or_zero
from attention_np.derivation import limits, nodes
from attention_np.derivation.duals import Array, Dual
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.header import Free, Header
from attention_np.derivation.names import Names, of_tangent
from attention_np.derivation.values import (
    ONE,
    SLOPED,
    STEP,
    STEPPED,
    Arithmetic,
    Value,
    indices_of,
    lead_of,
    top,
    top_tangent,
)

LOSS = "L"  # the key of the sum of the output times its cotangent


class Tensor(NamedTuple):
    """The value of a name: an array whose axes have ranges, behind those of ``lead``."""

    data: Array
    axes: tuple[str, ...]
    scale: float = 0.0
    tangent: float = 0.0
    lead: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the axes that have ranges."""
        return self.data.shape[len(self.lead) :]

    def drawn(self, place: int) -> Array:
        """The array in one of the draws, by its place among them."""
        return self.data[place] if self.lead else self.data

    def value(self) -> Value:
        """The bare symbol: a number, a column, a matrix, or a tensor of more axes."""
        data, shape = self.data, self.axes
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return Value(data, self.lead, shape, self.scale, self.tangent)


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


@dataclass(eq=False)
class Environment:
    """Draws of one size. ``evaluate`` is handed in, so that definitions and expressions can know each other."""

    next_axis: ClassVar = STEPPED  # of the steps of a derivative
    names: Names
    definitions: Definitions
    arithmetic: Arithmetic
    free: dict[str, Tensor]
    evaluate: Evaluate
    header: Header
    draw: Draw | None = None
    draws: Sequence[int] = (0,)
    values: dict[str, Tensor] = field(default_factory=dict, init=False)
    jacobians: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False)
    underflow: Span | None = field(default=None, init=False)  # where an exponential underflowed last
    at: dict[str, int] = field(default_factory=dict, init=False)  # the one place that a recurrence works out, by index
    _perturbed: dict[tuple[str, ...], Perturbed] = field(default_factory=dict, init=False)

    def tensor(self, key: str, span: Span) -> Tensor:
        """The value of a name, evaluating definitions in page order (never recursively) where needed."""
        if key not in self.free and key in self.header.tensors and self.draw is not None:
            self.free[key] = self.draw(key, self.header.tensors[key])
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
        elif definition.key in definition.body.tensors:
            tensor = self._recurrence(definition, definition.body)
        else:
            value = self.evaluate(self, definition.body)
            tensor = as_tensor(self, value, definition.indices, definition.span)
        return tensor._replace(data=self.arithmetic.hold(tensor.data, span))

    def _recurrence(self, definition: Definition, body: nodes.Node) -> Tensor:
        """A tensor that is worked out place after place of its first index; at later places it is not a number."""
        key, first, span = definition.key, definition.indices[0], definition.span
        axes = tuple(map(self.names.range_of, definition.indices))
        lengths = tuple(map(self.arithmetic.size, axes))
        tensor = Tensor(np.full(lengths, np.nan), axes)
        try:
            for place in range(lengths[0]):
                self.values[key], self.at[first] = tensor, place + 1
                entries = as_tensor(self, self.evaluate(self, body), definition.indices, span)
                if entries.axes != axes:
                    raise Fault("shape", f"of a recurrence all indices stand on the left: {key} has more", span)
                entries = self._stepped(key, entries, span)
                data = tensor.data if place else np.full_like(entries.data, np.nan)
                here = (slice(None),) * len(entries.lead) + (place,)
                data[here] = entries.data[here]
                scale, tangent = max(tensor.scale, entries.scale), max(tensor.tangent, entries.tangent)
                tensor = entries._replace(data=data, scale=scale, tangent=tangent)
        finally:
            del self.values[key], self.at[first]
        return tensor

    def _stepped(self, key: str, tensor: Tensor, span: Span) -> Tensor:
        """One place of a recurrence, with its step; later places are calculated from it."""
        return tensor

    def _functional(self, span: Span) -> Tensor:
        output = self.tensor(self.header.output or "", span)
        cotangent = self.tensor(self.header.cotangent, span)
        if cotangent.lengths != output.lengths:
            raise Fault("shape", f"{self.header.cotangent} has not the shape of the output", span)
        lead = lead_of(output.lead + cotangent.lead)
        one, two = (self.arithmetic.spread(Value(each.data, each.lead), lead) for each in (output, cotangent))
        terms = one * two
        return Tensor(
            terms.sum(axis=tuple(range(len(lead), terms.ndim))),
            (),
            max(top(terms), output.scale * cotangent.scale),
            max(top_tangent(terms), output.tangent * cotangent.scale, output.scale * cotangent.tangent),
            lead,
        )

    def perturbed(self, key: str, span: Span) -> Perturbed:
        """The draws with a step in every entry of ``key``, one after the other."""
        if (key,) not in self._perturbed:
            base = self.tensor(key, span)
            count = math.prod(base.lengths)
            self.arithmetic.account.make(count * count, span)
            step = Tensor(np.eye(count).reshape(count, *base.lengths), base.axes, lead=(self.next_axis,))
            self._perturbed[key,] = self._step({key: step}, span)
        return self._perturbed[key,]

    def along_tangents(self, tangents: tuple[str, ...], span: Span) -> Perturbed:
        r"""The draws with one step, of every X along its ``\\dot{X}``."""
        name = ("", *tangents)
        if name not in self._perturbed:
            steps = {}
            for key in tangents:
                tangent = self.tensor(key, span)
                steps[of_tangent(key)] = tangent._replace(data=tangent.data[None], lead=(self.next_axis, *tangent.lead))
            self._perturbed[name] = self._step(steps, span)
        return self._perturbed[name]

    def _step(self, steps: dict[str, Tensor], span: Span) -> Perturbed:
        return Perturbed(self, steps, span)

    def jacobian(self, top_key: str, bottom_key: str, span: Span) -> Tensor:
        """D top / d bottom, with the axes of top and then of bottom."""
        name = (top_key, bottom_key)
        if name not in self.jacobians:
            before, bottom = self.tensor(top_key, span), self.tensor(bottom_key, span)
            perturbed = self.perturbed(bottom_key, span)
            stepped = perturbed.tensor(top_key, span)
            axes, shape = before.axes + bottom.axes, before.lengths + bottom.lengths
            self.arithmetic.account.make(math.prod(shape), span)
            lead: tuple[str, ...] = ()
            data = np.zeros(shape)
            if perturbed.axis in stepped.lead:
                data, lead = perturbed.derivative(stepped.data, stepped.lead)
                data = data.reshape((*data.shape[: len(lead)], *shape))
            tangent = max(top_tangent(data), stepped.tangent) if STEPPED in lead else 0.0
            scale = max(top(data), stepped.tangent)
            self.jacobians[name] = Tensor(self.arithmetic.hold(data, span), axes, scale, tangent, lead)
        return self.jacobians[name]


class Perturbed(Environment):
    """Draws in which some tensors take a step, in an imaginary part; what does not depend on them is shared."""

    axis: ClassVar = STEPPED
    next_axis: ClassVar = SLOPED

    def __init__(self, parent: Environment, steps: dict[str, Tensor], span: Span) -> None:
        super().__init__(parent.names, parent.definitions, parent.arithmetic, {}, parent.evaluate, parent.header)
        self.parent = parent
        self.steps = steps
        for key in steps:
            definition = self.definitions.by_key.get(key)
            if definition is not None and definition.body is not None and key in definition.body.tensors:
                self.free[key] = self._recurrence(definition, definition.body)
            else:
                self.free[key] = self._with_step(parent.tensor(key, span), steps[key], span)

    def _step(self, steps: dict[str, Tensor], span: Span) -> Perturbed:
        return PerturbedTwice(self, steps, span)

    def _stepped(self, key: str, tensor: Tensor, span: Span) -> Tensor:
        return self._with_step(tensor, self.steps[key], span) if key in self.steps else tensor

    def _with_step(self, tensor: Tensor, step: Tensor, span: Span) -> Tensor:
        """The tensor and its step, along the axis of the steps."""
        lead = lead_of(tensor.lead + step.lead)
        one, two = (self.arithmetic.spread(Value(item.data, item.lead), lead) for item in (tensor, step))
        self.arithmetic.account.make(math.prod(map(max, one.shape, two.shape)), span)
        data = self.arithmetic.hold(self._carry(one, two), span)
        return tensor._replace(data=data, tangent=top_tangent(data), lead=lead)

    def _carry(self, value: Array, step: Array) -> Array:
        carried: Array = value + 1j * STEP * step
        return carried

    def derivative(self, data: Array, lead: tuple[str, ...]) -> tuple[Array, tuple[str, ...]]:
        """The derivative of an array by each of the steps, whose axis becomes its last; and its other leading axes."""
        slopes = np.moveaxis(self._carried(data), lead.index(self.axis), -1)
        return slopes, tuple(name for name in lead if name != self.axis)

    def _carried(self, data: Array) -> Array:
        unknown, slopes = np.isnan(data.real), data.imag / STEP
        return np.where(unknown, np.nan, slopes) if unknown.any() else slopes

    def tensor(self, key: str, span: Span) -> Tensor:
        """The symbol of that key, carried along with the perturbation."""
        if key in self.free:
            return self.free[key]
        if self.definitions.needs(key).isdisjoint(self.steps):
            return self.parent.tensor(key, span)._replace(tangent=0.0)
        if key not in self.values:
            for definition in self.definitions.order(key):
                name = definition.key
                if not (name in self.values or name in self.free or definition.needs.isdisjoint(self.steps)):
                    self.values[name] = self._define(definition, span)
        return self.values[key]


class PerturbedTwice(Perturbed):
    """Perturbed draws in which some tensors have a slope, too, along an axis of its own."""

    axis: ClassVar = SLOPED
    parent: Perturbed

    def _recurrence(self, definition: Definition, body: nodes.Node) -> Tensor:
        raise Fault("name", f"a second derivative through a recurrence, that of {definition.key}", definition.span)

    def _step(self, steps: dict[str, Tensor], span: Span) -> Perturbed:
        raise Fault("name", "a third derivative: define the first one by a formula", span)

    def _carry(self, value: Array, step: Array) -> Array:
        return cast(Array, Dual(*np.broadcast_arrays(value, step)))

    def _carried(self, data: Array) -> Array:
        return np.where(np.isnan(data.real), np.nan, velocity_or_zero(data))

    def _define(self, definition: Definition, span: Span) -> Tensor:
        """Where the definition is of what takes a step in the parent, that step comes after it."""
        tensor = super()._define(definition, span)
        step = self.parent.steps.get(definition.key)
        return tensor if step is None else self.parent._with_step(tensor, step, span)


def as_tensor(environment: Environment, value: Value, indices: tuple[str, ...], span: Span) -> Tensor:
    """The value of a definition's right side as an array over its indices, then its anonymous axes."""
    lead, named = lead_of(value.names), indices_of(value.names)
    arithmetic = environment.arithmetic
    if named or value.shape or not indices:
        missing = [name for name in indices if name not in named]
        extra = [name for name in named if name not in indices]
        if missing or extra:
            raise Fault("shape", free_indices(indices, named), span)
    value.sized(span)
    axes = [environment.names.range_of(name) for name in indices]
    shape, data = value.axes, arithmetic.spread(value, lead + indices)
    if value.is_column:
        data = data[..., 0]
    before = data.shape[: len(lead)]
    lengths = tuple(arithmetic.size(axis) for axis in (*axes, *shape) if axis != "*")
    if "*" in shape:
        raise Fault("shape", "the length of \\mathbf{1} is not known here: write \\mathbf{1}_n", span)
    if len(lengths) > limits.AXES:
        raise Fault("limit", f"a tensor of more than {limits.AXES} axes", span)
    arithmetic.account.make(math.prod(before + lengths), span)
    if data.shape != before + lengths:
        data = np.broadcast_to(data, before + lengths)
    return Tensor(data, (*axes, *shape), value.scale, value.tangent, lead)


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
