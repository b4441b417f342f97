"""Functions that are more than one number at a time: maxima, softmax, diag, trace, norms, einsum, concat."""

from __future__ import annotations

import math

import numpy as np

from attention_np.derivation import functions, nodes
from attention_np.derivation.duals import power
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.indexing import Indexing, plain
from attention_np.derivation.values import ANY, ONE, Value, describe, indices_of, lead_of, measured, top

_UNDERFLOW = -708.0


class Calls(Indexing):
    """The part of the evaluator that knows functions, and what indices a sum or a maximum runs over."""

    def condition(self, node: nodes.Node, bound: tuple[str, ...]) -> Value:
        """Where a condition holds, as a value of booleans."""
        raise NotImplementedError

    def enter(self, bound: nodes.Bound, outer: tuple[str, ...]) -> tuple[str, ...]:
        """The bound indices inside of a sum; binding one again is an error."""
        for name, span in zip(bound.names, bound.spans, strict=True):
            if name in outer:
                raise Fault("shape", f"index {name} is bound twice", span)
        return outer + bound.names

    def over(self, bound: nodes.Bound, body: Value, outer: tuple[str, ...], fill: float) -> Value:
        """The body with all bound indices as axes, and ``fill`` where the condition does not hold."""
        inner = outer + bound.names
        for name in bound.names:
            if name not in body.names:
                length = self.arithmetic.size(self.environment.names.range_of(name))
                self.arithmetic.account.make(length * body.data.size, bound.span)
                data = np.broadcast_to(body.data, (length, *body.data.shape))
                body = body._replace(data=data, names=(name, *body.names), zero=False)
        if bound.condition is None:
            return body
        self._check_limits(bound, inner)
        where = self.condition(bound.condition, inner)
        names, (data, mask) = self.arithmetic.together([body, where], bound.span)
        return body._replace(data=np.where(mask, data, fill), names=names, zero=False)

    def _check_limits(self, bound: nodes.Bound, inner: tuple[str, ...]) -> None:
        r"""``\\sum_{j=1}^{n}`` with j over m is an error, and so is a limit beyond the range."""
        parts = bound.condition.parts if isinstance(bound.condition, nodes.Both) else (bound.condition,)
        for part in parts:
            if not isinstance(part, nodes.Compare) or part.relations != ("<=", "<="):
                continue
            middle, upper = part.sides[1], part.sides[2]
            if not isinstance(middle, nodes.IndexRef) or middle.name not in bound.names:
                continue
            own = self.environment.names.range_of(middle.name)
            if isinstance(upper, nodes.SizeRef) and not self.arithmetic.same(upper.name, own):
                message = f"index {middle.name} runs over {plain(own)}, not over {plain(upper.name)}"
                raise Fault("shape", message, upper.span)
            if top(self.value(upper, inner).data) > self.arithmetic.size(own):
                raise Fault("domain", f"index {middle.name} ends at {plain(own)}", upper.span)

    def _call(self, node: nodes.Call, bound: tuple[str, ...]) -> Value:
        """The value of a function call."""
        name = node.function
        if name == "einsum":
            return self._einsum(node, bound)
        if node.bound is not None:
            return self._over_index(node, node.bound, bound)
        values = [self.value(argument, bound) for argument in node.arguments]
        if name in ("max", "min"):
            return self._extreme(node, values)
        if name == "sqrt" and len(values) == 2:
            order = values[1]
            if order.names or order.shape or order.data.real == 0:
                raise Fault("shape", "the order of a root is a number", node.arguments[1].span)
            data = power(values[0].data, 1.0 / order.data)
            return values[0].made(data, values[0].names, values[0].shape)
        if name == "softmax" and len(values) > 1:
            column = nodes.Matrix(node.span, tuple((item,) for item in node.arguments))
            values = [self.value(column, bound)]
        if len(values) != 1:
            raise Fault("syntax", f"{node.text} takes one argument", node.span)
        value = values[0]
        if value.eye or ANY in value.shape:
            raise Fault("shape", "the size of this is not known here", node.arguments[0].span)
        if name in ("softmax", "logsumexp"):
            return self._last_axis(node, value)
        if name == "diag":
            return self._diag(value, node.span)
        if name == "trace":
            if len(value.shape) != 2 or self.arithmetic.unify(*value.shape) is None:
                raise Fault("shape", f"no trace of {describe(value)}", node.span)
            data = np.trace(value.data, axis1=-2, axis2=-1)
            return value._replace(data=data, shape=(), scale=max(value.scale, top(data)))
        if name == "norm":
            return self._norm(value)
        if name == "abs" and value.shape:
            raise Fault("shape", f"the modulus of {describe(value)}: write \\lVert ... \\rVert for a norm", node.span)
        if name == "concat":
            raise Fault("syntax", "over which index? Write \\mathrm{concat}_h(...)", node.span)
        return self.elementwise(name, value, node.span)

    def _extreme(self, node: nodes.Call, values: list[Value]) -> Value:
        if len(values) == 1 and values[0].shape:
            value = values[0]
            data = value.data.reshape(*value.data.shape[: len(value.names)], -1)
            sign = 1 if node.function == "max" else -1
            return value._replace(data=functions.largest(data, -1, sign), shape=())
        if len(values) < 2:
            raise Fault("syntax", f"{node.text} takes several numbers, or an index below", node.span)
        total = values[0]
        for value in values[1:]:
            left, right, shape = self.arithmetic.shapes_of(total, value, node.span, "cannot compare")
            names, (one, two) = self.arithmetic.together([left, right], node.span)
            first = one.real >= two.real if node.function == "max" else one.real <= two.real
            # A NaN on either side is the result.
            data = np.where(np.isnan(two), two, np.where(first | np.isnan(one), one, two))
            scale, tangent = max(left.scale, right.scale), max(left.tangent, right.tangent)
            total = Value(data, names, shape, scale, tangent)
        return total

    def _over_index(self, node: nodes.Call, under: nodes.Bound, bound: tuple[str, ...]) -> Value:
        if len(node.arguments) != 1:
            raise Fault("syntax", f"{node.text} over an index takes one argument", node.span)
        reduces = node.function in ("max", "min", "logsumexp", "concat")
        inner = self.enter(under, bound) if reduces else bound
        value = self.value(node.arguments[0], inner).sized(node.span)
        if node.function == "concat":
            return self._concat(node, under, value)
        sign = -1 if node.function == "min" else 1
        for name, span in zip(under.names, under.spans, strict=True):
            if name not in value.names:
                raise Fault("shape", f"index {name} does not occur in the argument", span)
        value = self.over(under, value, bound, -sign * np.inf)
        if not reduces and (len(under.names) != 1 or under.condition is not None):
            raise Fault("syntax", "softmax runs over one index", under.span)
        data, names = value.data, value.names
        for name in under.names:
            axis = names.index(name)
            if node.function == "softmax":
                data = functions.softmax(data, axis)
                continue
            summed = node.function == "logsumexp"
            data = functions.logsumexp(data, axis) if summed else functions.largest(data, axis, sign)
            names = tuple(other for other in names if other != name)
        return value.made(data, names, value.shape)

    def _last_axis(self, node: nodes.Call, value: Value) -> Value:
        if not value.shape:
            raise Fault("shape", f"{node.text} of {describe(value)}: over which index? Write it below", node.span)
        # A column is one vector; of a matrix every row is one.
        axis = -2 if len(value.shape) == 2 and value.shape[1] == ONE else -1
        apply = functions.softmax if node.function == "softmax" else functions.logsumexp
        data = apply(value.data, axis)
        shape = value.shape
        if node.function == "logsumexp":
            shape = () if axis == -2 else (*value.shape[:-1], ONE)
            data = data[..., 0] if axis == -2 else data[..., None]
            if shape == (ONE, ONE):
                data, shape = data[..., 0, 0], ()
        return value.made(data, value.names, shape)

    def _diag(self, value: Value, span: Span) -> Value:
        if len(value.shape) == 2 and value.shape[1] == ONE:
            length = value.data.shape[-2]
            self.arithmetic.account.make(value.data.size * length, span)
            data = np.where(np.eye(length, dtype=bool), value.data, 0.0)
            return value._replace(data=data, shape=(value.shape[0], value.shape[0]))
        if len(value.shape) == 2 and self.arithmetic.unify(*value.shape) is not None:
            data = np.diagonal(value.data, axis1=-2, axis2=-1)[..., None]
            return value._replace(data=data, shape=(value.shape[0], ONE))
        raise Fault("shape", f"diag of {describe(value)}", span)

    def _norm(self, value: Value) -> Value:
        if not value.shape:
            return self.elementwise("abs", value, (0, 0))
        axes = tuple(range(len(value.names), value.data.ndim))
        data = np.sqrt((value.data * value.data).sum(axis=axes))
        return value.made(data, value.names, ())

    def _concat(self, node: nodes.Call, under: nodes.Bound, value: Value) -> Value:
        if len(under.names) != 1 or under.condition is not None:
            raise Fault("syntax", "concat runs over one index", under.span)
        index = under.names[0]
        if index not in value.names or len(value.shape) != 2:
            raise Fault("shape", f"nothing to join side by side: this is {describe(value)}", node.span)
        column = value.shape[1] == ONE
        across = value.shape[0] if column else value.shape[1]
        wanted = sorted((self.environment.names.range_of(index), across))
        ranges = [name for name, parts in self.environment.header.sizes.items() if sorted(parts) == wanted]
        if not ranges:
            raise Fault("shape", f"no declared size is the product of {wanted[0]} and {wanted[1]}", node.span)
        rest = tuple(name for name in value.names if name != index)
        data = self.arithmetic.spread(value, (*rest, index))
        if column:
            data = data.reshape(*data.shape[:-3], -1, 1)
            return value._replace(data=data, names=rest, shape=(ranges[0], ONE))
        data = np.moveaxis(data, -3, -2)
        data = data.reshape(*data.shape[:-2], -1)
        return value._replace(data=data, names=rest, shape=(value.shape[0], ranges[0]))

    def _einsum(self, node: nodes.Call, bound: tuple[str, ...]) -> Value:
        text = node.text
        inputs, arrow, output = text.partition("->")
        operands = inputs.split(",")
        letters = set(text) - set(",->")
        well_formed = bool(arrow) and all(letter.isascii() and letter.islower() for letter in letters)
        if not well_formed or len(set(output)) < len(output) or len(text) > 60:
            raise Fault("syntax", "an einsum reads like ia,ja->ij", node.span)
        if len(operands) != len(node.arguments):
            raise Fault("shape", f"{len(operands)} index lists for {len(node.arguments)} operands", node.span)
        values = [self.value(argument, bound) for argument in node.arguments]
        ranges: dict[str, str] = {}
        arrays = []
        scale, tangent = 1.0, 0.0
        lead = lead_of([name for value in values for name in value.names])
        for value, argument, spec in zip(values, node.arguments, operands, strict=True):
            data, shape = value.data, value.shape
            if indices_of(value.names) or value.eye or ANY in shape:
                message = f"an operand of einsum is an array without indices, not {describe(value)}"
                raise Fault("shape", message, argument.span)
            if len(shape) == 2 and shape[1] == ONE and len(spec) == 1:
                data, shape = data[..., 0], shape[:1]
            if len(shape) != len(spec):
                raise Fault("shape", f"{spec} for {describe(value)}", argument.span)
            for letter, name in zip(spec, shape, strict=True):
                common = self.arithmetic.unify(ranges.setdefault(letter, name), name)
                if common is None:
                    raise Fault("shape", f"{letter} runs over {ranges[letter]} and over {name}", argument.span)
            arrays.append(self.arithmetic.spread(Value(data, value.names, shape), lead))
            tangent = tangent * value.scale + scale * value.tangent
            scale *= value.scale
        if not set(output) <= set(ranges):
            raise Fault("shape", "einsum: an index of the result is in no operand", node.span)
        before = np.broadcast_shapes(*(array.shape[: len(lead)] for array in arrays))
        self.arithmetic.account.make(math.prod((*before, *map(self.arithmetic.size, ranges.values()))), node.span)
        data = np.einsum(",".join("..." + spec for spec in operands) + "->..." + output, *arrays)
        shape = tuple(ranges[letter] for letter in output)
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return measured(data, lead, shape, scale, tangent)

    def elementwise(self, name: str, value: Value, span: Span) -> Value:
        """A function from the table, entry by entry."""
        if name == "exp":
            real = value.sized(span).data.real
            if ((real < _UNDERFLOW) & np.isfinite(real)).any():
                self.environment.underflow = span
        function, slope = functions.FUNCTIONS[name]
        return self.arithmetic.apply(value.sized(span), function, slope)
