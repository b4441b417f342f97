"""The value of an expression in the draws of one size, by walking its tree.

Types are checked here too, at the place where they clash: a tree is walked completely (no branch is skipped), so an
ill-typed page cannot pass by luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_np.derivation import limits, nodes
from attention_np.derivation.calls import call, call_over_index, concat
from attention_np.derivation.duals import Dual, power, product
from attention_np.derivation.environment import Environment, Perturbed, Tensor
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.indexing import filled, pick
from attention_np.derivation.names import plain
from attention_np.derivation.values import (
    ANY,
    ONE,
    STEPPED,
    Array,
    Value,
    describe,
    measured,
    number,
    top,
    top_tangent,
)


def evaluate(environment: Environment, node: nodes.Node) -> Value:
    """The value of a node in an environment."""
    with np.errstate(all="ignore"):
        return Evaluator(environment).value(node)


class Evaluator:
    """Walks a tree. One method per kind of node, found by the name of its class.

    ``bound`` are the indices that the sums around the tree bind.
    """

    def __init__(self, environment: Environment, bound: tuple[str, ...] = ()) -> None:
        self.environment = environment
        self.arithmetic = environment.arithmetic
        self.bound = bound

    def value(self, node: nodes.Node) -> Value:
        """The value of a node; a fault without a place gets the place of the node."""
        self.arithmetic.account.work(limits.OPERATION, node.span)
        try:
            value: Value = getattr(self, node.method)(node)
            if isinstance(value.data, Dual):
                self.arithmetic.account.work(limits.DUAL * value.data.size, node.span)
            return value
        except Fault as fault:
            raise fault.at(node.span) from None

    def _pick(self, tensor: Tensor, indices: tuple[nodes.Node, ...], span: Span) -> Value:
        return pick(tensor, indices, self.environment, self.value, span)

    def _within(self, under: nodes.Bound) -> Evaluator:
        """The evaluator inside of a sum; binding an index again is an error."""
        for name, span in zip(under.names, under.spans, strict=True):
            if name in self.bound:
                raise Fault("shape", f"index {name} is bound twice", span)
        return Evaluator(self.environment, self.bound + under.names)

    def _over(self, under: nodes.Bound, body: Value, fill: float) -> Value:
        """The body with all bound indices as axes, and ``fill`` where the condition below does not hold."""
        for name in under.names:
            if name not in body.names:
                length = self.arithmetic.size(self.environment.names.range_of(name))
                self.arithmetic.account.make(length * body.data.size, under.span)
                data = np.broadcast_to(body.data, (length, *body.data.shape))
                body = body._replace(data=data, names=(name, *body.names), zero=False)
        if under.condition is None:
            return body
        inner = Evaluator(self.environment, self.bound + under.names)
        inner._check_limits(under)
        where = inner.condition(under.condition)
        names, (data, mask) = self.arithmetic.together([body, where], under.span)
        return body._replace(data=np.where(mask, data, fill), names=names, zero=False)

    def _check_limits(self, under: nodes.Bound) -> None:
        r"""``\\sum_{j=1}^{n}`` with j over m is an error, and so is a limit beyond the range."""
        parts = under.condition.parts if isinstance(under.condition, nodes.Both) else (under.condition,)
        for part in parts:
            if not isinstance(part, nodes.Compare) or part.relations != ("<=", "<="):
                continue
            middle, upper = part.sides[1], part.sides[2]
            if not isinstance(middle, nodes.IndexRef) or middle.name not in under.names:
                continue
            own = self.environment.names.range_of(middle.name)
            if isinstance(upper, nodes.SizeRef) and not self.arithmetic.same(upper.name, own):
                message = f"index {middle.name} runs over {plain(own)}, not over {plain(upper.name)}"
                raise Fault("shape", message, upper.span)
            if top(self.value(upper).data) > self.arithmetic.size(own):
                raise Fault("domain", f"index {middle.name} ends at {plain(own)}", upper.span)

    def _number(self, node: nodes.Number) -> Value:
        return number(node.value)

    def _constant(self, node: nodes.Constant) -> Value:
        return number({"infinity": np.inf, "pi": np.pi, "zero": 0.0}[node.name])

    def _sizeref(self, node: nodes.SizeRef) -> Value:
        return number(float(self.arithmetic.size(node.name)))

    def _indexref(self, node: nodes.IndexRef) -> Value:
        length = self.arithmetic.size(self.environment.names.range_of(node.name))
        places = np.arange(1.0, length + 1.0)
        if node.name in self.environment.at:
            places = places[self.environment.at[node.name] - 1 :][:1]
        return Value(places, (node.name,), (), float(length))

    def _eye(self, node: nodes.Eye) -> Value:
        value = number(1.0)._replace(eye=True)
        return value if node.size is None else self.arithmetic.expand_eye(value, node.size, node.span)

    def _ones(self, node: nodes.Ones) -> Value:
        if node.size is None:
            return Value(np.ones((1, 1)), (), (ANY, ONE), 1.0)
        return Value(np.ones((self.arithmetic.size(node.size), 1)), (), (node.size, ONE), 1.0)

    def _ref(self, node: nodes.Ref) -> Value:
        tensor = self.environment.tensor(node.name, node.name_span)
        if node.indices is None:
            return tensor.value()
        return self._pick(tensor, filled(node.indices, len(tensor.axes), node), node.span)

    def _indexed(self, node: nodes.Indexed) -> Value:
        base = self.value(node.base)
        if not base.shape:
            raise Fault("shape", f"cannot put indices on {describe(base)}", node.span)
        if ANY in base.shape or base.eye:
            raise Fault("shape", "the size of this is not known here", node.base.span)
        data = base.data[..., 0] if base.is_column else base.data
        tensor = Tensor(data, base.axes, base.scale, base.tangent, base.names)
        return self._pick(tensor, filled(node.indices, len(base.axes), node), node.span)

    def _delta(self, node: nodes.Delta) -> Value:
        left, right = node.left, node.right
        if isinstance(left, nodes.IndexRef) and isinstance(right, nodes.IndexRef):
            one, two = map(self.environment.names.range_of, (left.name, right.name))
            if not self.arithmetic.same(one, two):
                message = f"{left.name} runs over {plain(one)}, but {right.name} over {plain(two)}"
                raise Fault("shape", message, node.span)
        return self._truth(self._compared([node.left, node.right], ["="], node.span))

    def _iverson(self, node: nodes.Iverson) -> Value:
        return self._truth(self.condition(node.condition))

    def _truth(self, value: Value) -> Value:
        return value._replace(data=value.data.astype(float), scale=1.0, tangent=0.0, zero=False)

    def condition(self, node: nodes.Node) -> Value:
        """Where a condition holds, as a value of booleans."""
        if isinstance(node, nodes.Both):
            parts = [self.condition(part) for part in node.parts]
            names, arrays = self.arithmetic.together(parts, node.span)
            data = arrays[0]
            for array in arrays[1:]:
                data = data & array if node.word == "and" else data | array
            return Value(data, names)
        assert isinstance(node, nodes.Compare)
        return self._compared(list(node.sides), list(node.relations), node.span)

    def _compared(self, sides: list[nodes.Node], relations: list[str], span: Span) -> Value:
        values = [self.value(side) for side in sides]
        for value, side in zip(values, sides, strict=True):
            if value.shape or value.eye:
                raise Fault("shape", f"a condition compares numbers, not {describe(value)}", side.span)
        names, arrays = self.arithmetic.together(values, span)
        data: Array = np.array(True)
        for left, relation, right in zip(arrays, relations, arrays[1:], strict=False):
            if relation not in _COMPARISONS:
                raise Fault("syntax", "\\approx is not a condition", span)
            if np.isnan(left.real).any() or np.isnan(right.real).any():
                raise Fault("domain", "a condition compares something that is not a number", span)
            data = data & _COMPARISONS[relation](left.real, right.real)
        return Value(data, names)

    def _group(self, node: nodes.Group) -> Value:
        return self.value(node.body)

    def _add(self, node: nodes.Add) -> Value:
        total: Value | None = None
        for term, (sign, _) in zip(node.terms, node.signs, strict=True):
            value = self.value(term)
            if total is None:
                total = value if sign > 0 else value._replace(data=-value.data)
            else:
                total = self.arithmetic.add(total, value, sign, (node.span[0], term.span[1]))
        assert total is not None
        return total

    def _mul(self, node: nodes.Mul) -> Value:
        return self._multiplied(node, [self.value(factor) for factor in node.factors])

    def _multiplied(self, node: nodes.Mul, values: list[Value]) -> Value:
        elementwise = any(operator in ("odot", "oslash") for operator in node.operators)
        total = values[0]
        chain = 1 if total.shape else 0  # shaped factors since the last elementwise operator
        for value, factor, operator in zip(values[1:], node.factors[1:], node.operators[1:], strict=True):
            span = (node.span[0], factor.span[1])
            chain = (chain if operator in ("", "cdot", "slash", "mod") else 0) + (1 if value.shape else 0)
            if elementwise and chain > 1:
                message = "a matrix product beside an elementwise one: which comes first? Use brackets"
                raise Fault("shape", message, span)
            if operator == "odot":
                total = self.arithmetic.multiply(total, value, span, elementwise=True)
            elif operator == "oslash":
                inverse = self.arithmetic.apply(value, lambda x: 1.0 / x, lambda x, y: y * y)
                total = self.arithmetic.multiply(total, inverse, span, elementwise=True)
            elif operator == "slash":
                total = self.arithmetic.multiply(total, self.arithmetic.reciprocal(value, factor.span), span)
            elif operator == "mod":
                total = self._remainder(total, value, span)
            else:
                total = self.arithmetic.multiply(total, value, span)
        return total

    def _remainder(self, left: Value, right: Value, span: Span) -> Value:
        names, (one, two) = self.arithmetic.together([left, right], span)
        whole = left.data.dtype.kind != "c" and right.data.dtype.kind != "c"
        if left.shape or right.shape or not whole or np.any(one != np.rint(one)) or np.any(two != np.rint(two)):
            raise Fault("shape", "a remainder is of whole numbers", span)
        return Value(np.mod(one, two), names, (), right.scale)

    def _frac(self, node: nodes.Frac) -> Value:
        above = self.value(node.top)
        below = self.value(node.bottom)
        return self.arithmetic.multiply(above, self.arithmetic.reciprocal(below, node.bottom.span), node.span)

    def _power(self, node: nodes.Power) -> Value:
        base = self.value(node.base)
        exponent = self.value(node.exponent)
        if exponent.shape or exponent.eye:
            raise Fault("shape", f"an exponent is a number, not {describe(exponent)}", node.exponent.span)
        if top(exponent.data) > limits.EXPONENT:
            raise Fault("limit", f"an exponent above {limits.EXPONENT:g}", node.exponent.span)
        if base.shape and not node.elementwise:
            return self._matrix_power(base, exponent, node)
        if base.eye:
            raise Fault("shape", "a power of I", node.span)
        names, (one, two) = self.arithmetic.together([base, exponent], node.span)
        data = power(one, two)
        steep = top(two.real * np.power(one.real, two.real - 1.0))
        return measured(data, names, base.shape, steep * base.scale, steep * base.tangent)

    def _matrix_power(self, base: Value, exponent: Value, node: nodes.Power) -> Value:
        whole = not exponent.names and float(exponent.data.real).is_integer()
        if not whole or len(base.shape) != 2 or self.arithmetic.unify(*base.shape) is None:
            message = f"this power of {describe(base)} is not defined; elementwise it is ^{{\\odot 2}}"
            raise Fault("shape", message, node.span)
        power = int(exponent.data.real)
        if abs(power) > limits.MATRIX_POWER:
            raise Fault("limit", f"a matrix power above {limits.MATRIX_POWER}", node.span)
        if power == 0:
            raise Fault("shape", "write I for a matrix to the power of zero", node.span)
        if power < 0:
            self.arithmetic.account.work(base.data.size * base.data.shape[-1], node.span)
            try:
                data = np.linalg.inv(base.data)
            except np.linalg.LinAlgError:
                raise Fault("domain", "this matrix has no inverse", node.span) from None
            size = top(data)
            scale = max(size, size * size * base.scale)
            base = base._replace(data=data, scale=scale, tangent=size * size * base.tangent)
        total = base
        for _ in range(abs(power) - 1):
            total = self.arithmetic.matrix_product(total, base, node.span)
        return total

    def _transpose(self, node: nodes.Transpose) -> Value:
        return self.arithmetic.transpose(self.value(node.base), node.span)

    def _reduce(self, node: nodes.Reduce) -> Value:
        inner = self._within(node.bound)
        if isinstance(node.body, nodes.Mul):
            values = [inner.value(factor) for factor in node.body.factors]
            contracted = self._contracted(node, node.body, values)
            if contracted is not None:
                return contracted
            body = inner._multiplied(node.body, values).sized(node.body.span)
        else:
            body = inner.value(node.body).sized(node.body.span)
        body = self._over(node.bound, body, 0.0 if node.kind == "sum" else 1.0)
        axes = tuple(body.names.index(name) for name in node.bound.names)
        rest = tuple(name for name in body.names if name not in node.bound.names)
        if node.kind == "prod":
            if body.shape:
                raise Fault("shape", "a product over an index is of numbers", node.span)
            data = body.data
            for axis in sorted(axes, reverse=True):
                parts = [np.take(data, k, axis=axis) for k in range(data.shape[axis])]
                data = parts[0]
                for part in parts[1:]:
                    data = product(data, part)
        else:
            data = body.data.sum(axis=axes)
        return body.made(data, rest, body.shape)

    def _contracted(self, node: nodes.Reduce, body: nodes.Mul, values: list[Value]) -> Value | None:
        """A sum of products of numbers, without the array of the products; None where it takes more than that."""
        plain_sum = node.kind == "sum" and node.bound.condition is None and set(body.operators) <= {"", "cdot"}
        if not plain_sum or any(value.shape or value.eye for value in values):
            return None
        if not set(node.bound.names) <= set(self.arithmetic.indices(values, body.span)):
            return None
        lengths = {name: each.data.shape[axis] for each in values for axis, name in enumerate(each.names)}
        self.arithmetic.account.make(math.prod(lengths.values()), body.span)
        total = values[0]
        for position, value in enumerate(values[1:], 2):
            later = {name for other in values[position:] for name in other.names}
            over = tuple([name for name in node.bound.names if name not in later])
            total = self.arithmetic.contract(total, value, over)
        # An infinity beside a zero is looked at one by one.
        return total if np.isfinite(total.data).all() else None

    def _cases(self, node: nodes.Cases) -> Value:
        values = [self.value(item) for item in node.values]
        shapes = {value.shape for value in values if not value.zero}
        if len(shapes) > 1 or any(value.eye for value in values):
            raise Fault("shape", "the cases have different shapes", node.span)
        shape = shapes.pop() if shapes else ()
        wheres = [None if item is None else self.condition(item) for item in node.conditions]
        known = [where for where in wheres if where is not None]
        names, arrays = self.arithmetic.together([*values, *known], node.span)
        masks = iter(arrays[len(values) :])
        data: Any = np.array(np.nan)
        chosen = [(array, None if where is None else next(masks)) for array, where in zip(arrays, wheres, strict=False)]
        for array, mask in reversed(chosen):
            data = array if mask is None else np.where(mask, array, data)
        scale = max(value.scale for value in values)
        return Value(data, names, shape, scale, max(value.tangent for value in values))

    def _matrix(self, node: nodes.Matrix) -> Value:
        cells = [self.value(cell) for row in node.rows for cell in row]
        for value, cell in zip(cells, (cell for row in node.rows for cell in row), strict=True):
            if value.shape or value.eye:
                raise Fault("shape", f"an entry is a number, not {describe(value)}", cell.span)
        names, arrays = self.arithmetic.together(cells, node.span)
        rows, columns = len(node.rows), len(node.rows[0])
        if max(rows, columns) > limits.SIZE:
            raise Fault("limit", f"a matrix with more than {limits.SIZE} rows or columns", node.span)
        arrays = list(np.broadcast_arrays(*arrays))
        self.arithmetic.account.make(arrays[0].size * rows * columns, node.span)
        data = np.stack(arrays, axis=-1).reshape(*arrays[0].shape, rows, columns)
        shape: tuple[str, ...] = (str(rows), str(columns))
        if shape == (ONE, ONE):
            data, shape = data[..., 0, 0], ()
        return Value(data, names, shape, max(v.scale for v in cells), max(v.tangent for v in cells))

    def _call(self, node: nodes.Call) -> Value:
        if node.bound is not None:
            return self._call_over_index(node, node.bound)
        arguments = node.arguments
        if node.function == "softmax" and len(arguments) > 1:
            arguments = (nodes.Matrix(node.span, tuple((item,) for item in arguments)),)
        return call(node, [self.value(argument) for argument in arguments], self.environment)

    def _call_over_index(self, node: nodes.Call, under: nodes.Bound) -> Value:
        if len(node.arguments) != 1:
            raise Fault("syntax", f"{node.text} over an index takes one argument", node.span)
        inner = self if node.function == "softmax" else self._within(under)
        value = inner.value(node.arguments[0]).sized(node.span)
        if node.function == "concat":
            return concat(node, under, value, self.environment)
        for name, span in zip(under.names, under.spans, strict=True):
            if name not in value.names:
                raise Fault("shape", f"index {name} does not occur in the argument", span)
        return call_over_index(node, under, self._over(under, value, np.inf if node.function == "min" else -np.inf))

    def _derivative(self, node: nodes.Derivative) -> Value:
        environment = self.environment
        bottom = environment.tensor(node.bottom.name, node.bottom.name_span)
        below = filled(node.bottom.indices or (), len(bottom.axes), node.bottom)
        inner = node.top
        while isinstance(inner, nodes.Derivative):
            inner = inner.top
        needed = environment.definitions.needs(node.bottom.name) - {node.bottom.name}
        if isinstance(inner, nodes.Ref) and inner.name in needed:
            message = f"upside down: {plain(node.bottom.name)} depends on {plain(inner.name)}"
            raise Fault("name", message, node.span)
        if isinstance(node.top, nodes.Ref):
            upper = environment.tensor(node.top.name, node.top.name_span)
            above = filled(node.top.indices or (), len(upper.axes), node.top)
            jacobian = environment.jacobian(node.top.name, node.bottom.name, node.span)
            return self._pick(jacobian, above + below, node.span)
        perturbed = environment.perturbed(node.bottom.name, node.span)
        return self._derivative_by(node, perturbed, bottom, below)

    def _tangent(self, node: nodes.Tangent) -> Value:
        perturbed = self.environment.along_tangents(tuple(tangent.name for tangent in node.tangents), node.span)
        return self._derivative_by(node, perturbed, Tensor(np.zeros(()), ()), ())

    def _derivative_by(
        self,
        node: nodes.Derivative | nodes.Tangent,
        perturbed: Perturbed,
        bottom: Tensor,
        below: tuple[nodes.Node, ...],
    ) -> Value:
        """The derivative of an expression by ``bottom``, which takes a step in ``perturbed``."""
        value = Evaluator(perturbed, self.bound).value(node.top)
        names = tuple(name for name in value.names if name != perturbed.axis)
        shape = value.axes
        if value.eye or ANY in shape:
            raise Fault("shape", "the size of this is not known here", node.top.span)
        if perturbed.axis in value.names:
            lead = (perturbed.axis, *names)
            data, names = perturbed.derivative(self.arithmetic.spread(value, lead), lead)
        else:
            count = math.prod(bottom.lengths)
            self.arithmetic.account.make(value.data.size * count, node.span)
            data = np.zeros((*value.data.shape, count))
        kept = tuple(self.arithmetic.size(axis) for axis in shape)
        data = data.reshape((*data.shape[: len(names)], *kept, *bottom.lengths))
        slices = tuple(nodes.Slice(node.top.span) for _ in shape)
        scale = max(value.tangent, top(data))
        tangent = max(value.tangent, top_tangent(data)) if STEPPED in names else 0.0
        derivative = Tensor(data, shape + bottom.axes, scale, tangent, names)
        return self._pick(derivative, slices + below, node.span)


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "=": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
