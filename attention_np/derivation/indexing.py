"""Entries of an array: what ``S_{ij}``, ``Q_i`` and ``x_{t-1}`` pick."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import Environment, Tensor
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.names import plain
from attention_np.derivation.values import ONE, Arithmetic, Array, Value


def filled(indices: tuple[nodes.Node, ...], rank: int, node: nodes.Node) -> tuple[nodes.Node, ...]:
    """The indices at a node, with a colon for each axis that has none."""
    if len(indices) > rank:
        message = f"{len(indices)} indices at something with {rank} axes" if rank else "a number takes no index"
        raise Fault("shape", message, node.span)
    return indices if len(indices) == rank else indices + (nodes.Slice(node.span),) * (rank - len(indices))


def pick(
    tensor: Tensor,
    indices: tuple[nodes.Node, ...],
    environment: Environment,
    evaluate: Callable[[nodes.Node], Value],
    span: Span,
) -> Value:
    """The entries of a tensor, with one index for each of its axes; ``evaluate`` is for indices that are calculated."""
    arithmetic = environment.arithmetic
    data, first = tensor.data, len(tensor.lead)
    named = dict(enumerate(tensor.lead))  # axes of the data that are indices as they stand
    places: dict[int, Value] = {}  # and those of which entries are looked up
    kept: list[int] = []
    for k, (index, axis) in enumerate(zip(indices, tensor.axes, strict=True), first):
        if isinstance(index, nodes.Slice):
            kept.append(k)
            continue
        if isinstance(index, nodes.IndexRef):
            own = environment.names.range_of(index.name)
            if not arithmetic.same(own, axis):
                message = f"index {index.name} runs over {plain(own)}, but this axis over {plain(axis)}"
                raise Fault("shape", message, index.span)
            named[k] = index.name
            if index.name in environment.at:  # the one place of a recurrence, whose axis stays
                data = data[(slice(None),) * k + (slice(environment.at[index.name] - 1, environment.at[index.name]),)]
            continue
        places[k] = _whole(evaluate(index), axis, arithmetic, index.span)
    names = tuple(named.values())
    if places or len(set(names)) < len(names):
        data, names = _look_up(data, named, places, kept, arithmetic, span)
    elif kept and kept[0] < max(named, default=0):
        data = data.transpose([*named, *kept])
    shape = tuple([tensor.axes[k - first] for k in kept])
    if len(shape) == 1:
        data, shape = data[..., None], (*shape, ONE)
    return Value(data, names, shape, tensor.scale, tensor.tangent)


def _look_up(
    data: Array, named: dict[int, str], places: dict[int, Value], kept: list[int], arithmetic: Arithmetic, span: Span
) -> tuple[Array, tuple[str, ...]]:
    """The entries at these places, counted from one, with named axes in the order in which the indices were met."""
    every = [*named.values(), *(name for place in places.values() for name in place.names)]
    met = tuple(dict.fromkeys(every))
    single = [k for k, name in named.items() if every.count(name) == 1]
    for k in [k for k in named if k not in single]:  # a diagonal: an index that stands at several axes
        places[k] = Value(np.arange(1.0, data.shape[k] + 1.0), (named[k],))
    data = data.transpose([*single, *places, *kept])
    before, rest = data.shape[: len(single)], data.shape[len(single) + len(places) :]
    looked = tuple(name for name in met if name not in {named[k] for k in single})
    counted = [arithmetic.spread(place, looked).astype(np.int64) - 1 for place in places.values()]
    wrong = [(entry < 0) | (entry >= data.shape[axis]) for axis, entry in enumerate(counted, len(single))]
    shape = np.broadcast_shapes(*(entry.shape for entry in counted))
    arithmetic.account.make(math.prod(before + shape + rest), span)
    entries = [np.where(bad, 0, entry) for bad, entry in zip(wrong, counted, strict=True)]
    data = data[(slice(None),) * len(single) + tuple(entries)]
    if any(bad.any() for bad in wrong):
        # Outside of its range there is no entry. A sum or a case that excludes the place excludes
        # the NaN as well.
        outside = np.broadcast_to(reduce(np.logical_or, wrong), shape)
        data = np.where(outside.reshape(shape + (1,) * len(rest)), np.nan, data)
    order = [(*(named[k] for k in single), *looked).index(name) for name in met]
    return data.transpose(*order, *range(len(met), data.ndim)), met


def _whole(value: Value, axis: str, arithmetic: Arithmetic, span: Span) -> Value:
    """The value of an index, which is a whole number; a single one must lie within its axis."""
    if value.shape or value.eye or value.data.dtype.kind == "c" or not np.isfinite(value.data).all():
        raise Fault("shape", "an index must be a whole number", span)
    whole = np.rint(value.data)
    if np.abs(whole - value.data).max(initial=0.0) > 1e-9:
        raise Fault("shape", "an index must be a whole number", span)
    if not value.names and not 1 <= float(whole) <= arithmetic.size(axis):
        message = f"index {int(whole)} is outside of 1 to {plain(axis)} (here {arithmetic.size(axis)})"
        raise Fault("domain", message, span)
    return value._replace(data=whole)
