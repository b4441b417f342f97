"""Entries of an array: what ``S_{ij}``, ``Q_i`` and ``x_{t-1}`` pick."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import Environment, Tensor
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.values import ONE, Array, Value


class Indexing:
    """The part of the evaluator that reads index lists."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.arithmetic = environment.arithmetic

    def value(self, node: nodes.Node, bound: tuple[str, ...] = ()) -> Value:
        """The value of a node."""
        raise NotImplementedError

    def _filled(self, indices: tuple[nodes.Node, ...], rank: int, node: nodes.Node) -> tuple[nodes.Node, ...]:
        if len(indices) > rank:
            message = f"{len(indices)} indices at something with {rank} axes" if rank else "a number takes no index"
            raise Fault("shape", message, node.span)
        return indices if len(indices) == rank else indices + (nodes.Slice(node.span),) * (rank - len(indices))

    def _pick(self, tensor: Tensor, items: tuple[nodes.Node, ...], span: Span, bound: tuple[str, ...]) -> Value:
        """Index a tensor, with one item for each of its axes."""
        data, first = tensor.data, len(tensor.lead)
        named = dict(enumerate(tensor.lead))  # axes of the data that are indices as they stand
        places: dict[int, Value] = {}  # and those of which entries are looked up
        kept: list[int] = []
        for k, (item, axis) in enumerate(zip(items, tensor.axes, strict=True), first):
            if isinstance(item, nodes.Slice):
                kept.append(k)
            elif isinstance(item, nodes.IndexRef):
                own = self.environment.names.range_of(item.name)
                if not self.arithmetic.same(own, axis):
                    message = f"index {item.name} runs over {plain(own)}, but this axis over {plain(axis)}"
                    raise Fault("shape", message, item.span)
                if item.name in self.environment.at:
                    places[k] = self._place(item, axis, bound)
                else:
                    named[k] = item.name
            else:
                places[k] = self._place(item, axis, bound)
        names = tuple(named.values())
        if places or len(set(names)) < len(names):
            data, names = self._look_up(data, named, places, kept, span)
        elif kept and kept[0] < max(named, default=0):
            data = data.transpose([*named, *kept])
        shape = tuple([tensor.axes[k - first] for k in kept])
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return Value(data, names, shape, tensor.scale, tensor.tangent)

    def _look_up(
        self, data: Array, named: dict[int, str], places: dict[int, Value], kept: list[int], span: Span
    ) -> tuple[Array, tuple[str, ...]]:
        """The entries at these places, counted from one, with named axes in the order in which the indices were met."""
        every = [*named.values(), *(name for place in places.values() for name in place.names)]
        met = tuple(dict.fromkeys(every))
        along = [k for k, name in named.items() if every.count(name) == 1]
        for k in [k for k in named if k not in along]:  # a diagonal: an index that stands at several axes
            places[k] = Value(np.arange(1.0, data.shape[k] + 1.0), (named[k],))
        data = data.transpose([*along, *places, *kept])
        before, rest = data.shape[: len(along)], data.shape[len(along) + len(places) :]
        looked = tuple(name for name in met if name not in {named[k] for k in along})
        counted = [self.arithmetic.spread(place, looked).astype(np.int64) - 1 for place in places.values()]
        wrong = [(entry < 0) | (entry >= data.shape[axis]) for axis, entry in enumerate(counted, len(along))]
        shape = np.broadcast_shapes(*(entry.shape for entry in counted))
        self.arithmetic.account.make(math.prod(before + shape + rest), span)
        entries = [np.where(bad, 0, entry) for bad, entry in zip(wrong, counted, strict=True)]
        data = data[(slice(None),) * len(along) + tuple(entries)]
        if any(bad.any() for bad in wrong):
            # Outside of its range there is no entry. A sum or a case that excludes the place excludes
            # the NaN as well.
            outside = np.broadcast_to(reduce(np.logical_or, wrong), shape)
            data = np.where(outside.reshape(shape + (1,) * len(rest)), np.nan, data)
        order = [(*(named[k] for k in along), *looked).index(name) for name in met]
        return data.transpose(*order, *range(len(met), data.ndim)), met

    def _place(self, item: nodes.Node, axis: str, bound: tuple[str, ...]) -> Value:
        value = self.value(item, bound)
        if value.shape or value.eye or value.data.dtype.kind == "c" or not np.isfinite(value.data).all():
            raise Fault("shape", "an index must be a whole number", item.span)
        whole = np.rint(value.data)
        if np.abs(whole - value.data).max(initial=0.0) > 1e-9:
            raise Fault("shape", "an index must be a whole number", item.span)
        if not value.names and not 1 <= float(whole) <= self.arithmetic.size(axis):
            message = f"index {int(whole)} is outside of 1 to {plain(axis)} (here {self.arithmetic.size(axis)})"
            raise Fault("domain", message, item.span)
        return value._replace(data=whole)


def plain(name: str) -> str:
    """A name as it may stand in a message."""
    return name.replace("{", "").replace("}", "")
