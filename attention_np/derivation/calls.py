"""Functions that are more than one number at a time: maxima, softmax, diag, trace, norms, einsum, concat."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from attention_np.derivation import functions, nodes
from attention_np.derivation.duals import Dual, power
from attention_np.derivation.environment import Environment
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.values import (
    ANY,
    ONE,
    Arithmetic,
    Array,
    Value,
    describe,
    indices_of,
    lead_of,
    measured,
    top,
)

_UNDERFLOW = -708.0


def call(node: nodes.Call, values: list[Value], environment: Environment) -> Value:
    """The value of a function call without an index below, of these arguments."""
    name, arithmetic = node.function, environment.arithmetic
    if name == "einsum":
        return _einsum(node, values, arithmetic)
    if name in ("max", "min"):
        return _extreme(node, values, arithmetic)
    if name == "sqrt" and len(values) == 2:
        return _root(node, *values)
    if len(values) != 1:
        raise Fault("syntax", f"{node.text} takes one argument", node.span)
    (value,) = values
    if value.eye or ANY in value.shape:
        raise Fault("shape", "the size of this is not known here", node.arguments[0].span)
    if name in ("softmax", "logsumexp"):
        return _last_axis(node, value)
    if name == "diag":
        return _diag(value, arithmetic, node.span)
    if name in ("trace", "det"):
        if len(value.shape) != 2 or arithmetic.unify(*value.shape) is None:
            raise Fault("shape", f"no {name} of {describe(value)}", node.span)
        return _trace(value) if name == "trace" else _determinant(value, arithmetic, node.span)
    if name == "norm" and value.shape:
        return _norm(value)
    if name == "abs" and value.shape:
        raise Fault("shape", f"the modulus of {describe(value)}: write \\lVert ... \\rVert for a norm", node.span)
    if name == "concat":
        raise Fault("syntax", "over which index? Write \\mathrm{concat}_h(...)", node.span)
    return _elementwise("abs" if name == "norm" else name, value, environment, node.span)


def call_over_index(node: nodes.Call, under: nodes.Bound, value: Value) -> Value:
    """A maximum, a softmax or a log-sum-exp of a value over the indices below."""
    if node.function == "softmax" and (len(under.names) != 1 or under.condition is not None):
        raise Fault("syntax", "softmax runs over one index", under.span)
    data, names = value.data, value.names
    for name in under.names:
        axis = names.index(name)
        if node.function == "softmax":
            data = functions.softmax(data, axis)
            continue
        if node.function == "logsumexp":
            data = functions.logsumexp(data, axis)
        else:
            data = functions.largest(data, axis, -1 if node.function == "min" else 1)
        names = tuple(other for other in names if other != name)
    return value.made(data, names, value.shape)


def _root(node: nodes.Call, value: Value, order: Value) -> Value:
    if order.names or order.shape or order.data.real == 0:
        raise Fault("shape", "the order of a root is a number", node.arguments[1].span)
    return value.made(power(value.data, 1.0 / order.data), value.names, value.shape)


def _trace(value: Value) -> Value:
    data = np.trace(value.data, axis1=-2, axis2=-1)
    return value._replace(data=data, shape=(), scale=max(value.scale, top(data)))


def _determinant(value: Value, arithmetic: Arithmetic, span: Span) -> Value:
    """A determinant; it moves with its matrix as Jacobi's formula says, det(A) tr(A^-1 dA)."""
    arithmetic.account.work(value.data.size * value.data.shape[-1], span)
    matrix = value.data.value if isinstance(value.data, Dual) else value.data
    data = np.linalg.det(matrix)
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        if value.data.dtype.kind == "c" or isinstance(value.data, Dual):
            raise Fault("domain", "the derivative of a determinant that is zero", span) from None
        return Value(data, value.names)
    if isinstance(value.data, Dual):
        slope = np.trace(inverse @ value.data.velocity, axis1=-2, axis2=-1)
        data = cast(Array, Dual(data, data * slope))
    steep = top(data) * top(inverse) * matrix.shape[-1]
    return measured(data, value.names, (), steep * value.scale, steep * value.tangent)


def _extreme(node: nodes.Call, values: list[Value], arithmetic: Arithmetic) -> Value:
    if len(values) == 1 and values[0].shape:
        value = values[0]
        data = value.data.reshape(*value.data.shape[: len(value.names)], -1)
        sign = 1 if node.function == "max" else -1
        return value._replace(data=functions.largest(data, -1, sign), shape=())
    if len(values) < 2:
        raise Fault("syntax", f"{node.text} takes several numbers, or an index below", node.span)
    total = values[0]
    for value in values[1:]:
        left, right, shape = arithmetic.shapes_of(total, value, node.span, "cannot compare")
        names, (one, two) = arithmetic.together([left, right], node.span)
        first = one.real >= two.real if node.function == "max" else one.real <= two.real
        # A NaN on either side is the result.
        data = np.where(np.isnan(two), two, np.where(first | np.isnan(one), one, two))
        scale, tangent = max(left.scale, right.scale), max(left.tangent, right.tangent)
        total = Value(data, names, shape, scale, tangent)
    return total


def _last_axis(node: nodes.Call, value: Value) -> Value:
    if not value.shape:
        raise Fault("shape", f"{node.text} of {describe(value)}: over which index? Write it below", node.span)
    # A column is one vector; of a matrix every row is one.
    axis = -2 if value.is_column else -1
    apply = functions.softmax if node.function == "softmax" else functions.logsumexp
    data = apply(value.data, axis)
    shape = value.shape
    if node.function == "logsumexp":
        shape = () if axis == -2 else (*value.shape[:-1], ONE)
        data = data[..., 0] if axis == -2 else data[..., None]
        if shape == (ONE, ONE):
            data, shape = data[..., 0, 0], ()
    return value.made(data, value.names, shape)


def _diag(value: Value, arithmetic: Arithmetic, span: Span) -> Value:
    if value.is_column:
        length = value.data.shape[-2]
        arithmetic.account.make(value.data.size * length, span)
        data = np.where(np.eye(length, dtype=bool), value.data, 0.0)
        return value._replace(data=data, shape=(value.shape[0], value.shape[0]))
    if len(value.shape) == 2 and arithmetic.unify(*value.shape) is not None:
        data = np.diagonal(value.data, axis1=-2, axis2=-1)[..., None]
        return value._replace(data=data, shape=(value.shape[0], ONE))
    raise Fault("shape", f"diag of {describe(value)}", span)


def _norm(value: Value) -> Value:
    axes = tuple(range(len(value.names), value.data.ndim))
    data = np.sqrt((value.data * value.data).sum(axis=axes))
    return value.made(data, value.names, ())


def concat(node: nodes.Call, under: nodes.Bound, value: Value, environment: Environment) -> Value:
    """The matrices of a value side by side, or its columns below each other, over one index."""
    arithmetic = environment.arithmetic
    if len(under.names) != 1 or under.condition is not None:
        raise Fault("syntax", "concat runs over one index", under.span)
    index = under.names[0]
    if index not in value.names or len(value.shape) != 2:
        raise Fault("shape", f"nothing to join side by side: this is {describe(value)}", node.span)
    across = value.shape[0] if value.is_column else value.shape[1]
    wanted = sorted((environment.names.range_of(index), across))
    ranges = [name for name, parts in environment.header.sizes.items() if sorted(parts) == wanted]
    if not ranges:
        raise Fault("shape", f"no declared size is the product of {wanted[0]} and {wanted[1]}", node.span)
    rest = tuple(name for name in value.names if name != index)
    data = arithmetic.spread(value, (*rest, index))
    if value.is_column:
        data = data.reshape(*data.shape[:-3], -1, 1)
        return value._replace(data=data, names=rest, shape=(ranges[0], ONE))
    data = np.moveaxis(data, -3, -2)
    data = data.reshape(*data.shape[:-2], -1)
    return value._replace(data=data, names=rest, shape=(value.shape[0], ranges[0]))


def _einsum(node: nodes.Call, values: list[Value], arithmetic: Arithmetic) -> Value:
    text = node.text
    inputs, arrow, output = text.partition("->")
    operands = inputs.split(",")
    letters = set(text) - set(",->")
    well_formed = bool(arrow) and all(letter.isascii() and letter.islower() for letter in letters)
    if not well_formed or len(set(output)) < len(output) or len(text) > 60:
        raise Fault("syntax", "an einsum reads like ia,ja->ij", node.span)
    if len(operands) != len(node.arguments):
        raise Fault("shape", f"{len(operands)} index lists for {len(node.arguments)} operands", node.span)
    ranges: dict[str, str] = {}
    arrays = []
    scale, tangent = 1.0, 0.0
    lead = lead_of([name for value in values for name in value.names])
    for value, argument, spec in zip(values, node.arguments, operands, strict=True):
        data, shape = value.data, value.shape
        if indices_of(value.names) or value.eye or ANY in shape:
            message = f"an operand of einsum is an array without indices, not {describe(value)}"
            raise Fault("shape", message, argument.span)
        if value.is_column and len(spec) == 1:
            data, shape = data[..., 0], value.axes
        if len(shape) != len(spec):
            raise Fault("shape", f"{spec} for {describe(value)}", argument.span)
        for letter, name in zip(spec, shape, strict=True):
            common = arithmetic.unify(ranges.setdefault(letter, name), name)
            if common is None:
                raise Fault("shape", f"{letter} runs over {ranges[letter]} and over {name}", argument.span)
        arrays.append(arithmetic.spread(Value(data, value.names, shape), lead))
        tangent = tangent * value.scale + scale * value.tangent
        scale *= value.scale
    if not set(output) <= set(ranges):
        raise Fault("shape", "einsum: an index of the result is in no operand", node.span)
    before = np.broadcast_shapes(*(array.shape[: len(lead)] for array in arrays))
    arithmetic.account.make(math.prod((*before, *map(arithmetic.size, ranges.values()))), node.span)
    data = np.einsum(",".join("..." + spec for spec in operands) + "->..." + output, *arrays)
    shape = tuple(ranges[letter] for letter in output)
    if len(shape) == 1:
        data, shape = data[..., None], (*shape, ONE)
    return measured(data, lead, shape, scale, tangent)


def _elementwise(name: str, value: Value, environment: Environment, span: Span) -> Value:
    """A function from the table, entry by entry."""
    if name == "exp":
        real = value.sized(span).data.real
        if ((real < _UNDERFLOW) & np.isfinite(real)).any():
            environment.underflow = span
    function, slope = functions.FUNCTIONS[name]
    return environment.arithmetic.apply(value.sized(span), function, slope)
