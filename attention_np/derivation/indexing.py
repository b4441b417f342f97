"""Entries of an array: what ``S_{ij}``, ``Q_i`` and ``x_{t-1}`` pick."""

from __future__ import annotations

from functools import reduce

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import Environment
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

    def _pick(
        self,
        data: Array,
        lead: tuple[str, ...],
        axes: tuple[str, ...],
        items: tuple[nodes.Node, ...],
        scale: float,
        tangent: float,
        span: Span,
        bound: tuple[str, ...],
    ) -> Value:
        """Index an array whose axes are ``lead`` (named) and then ``axes``, one item for each of these."""
        named = dict(enumerate(lead))  # axes of the data that are indices as they stand
        places: dict[int, Value] = {}  # and those of which entries are looked up
        kept: list[int] = []
        for k, (item, axis) in enumerate(zip(items, axes, strict=True), len(lead)):
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
        every = [*named.values(), *(name for place in places.values() for name in place.names)]
        met = tuple(dict.fromkeys(every))
        along = list(named)
        if len(met) < len(every):  # a diagonal: an index that stands at several axes is looked up
            along = [k for k, name in named.items() if every.count(name) == 1]
        names = tuple([named[k] for k in along])
        if len(along) < len(named):
            others = [k for k in named if k not in along]
            places |= {k: Value(np.arange(1.0, data.shape[k] + 1.0), (named[k],)) for k in others}
        shape = tuple(axes[k - len(lead)] for k in kept)
        order = [*along, *places, *kept]
        if order != sorted(order):
            data = data.transpose(order)
        if places:
            looked = tuple(name for name in met if name not in names)
            data = self._look_up(
                data, len(along), [self.arithmetic.spread(each, looked) for each in places.values()], span
            )
            order = [(names + looked).index(name) for name in met]
            data, names = data.transpose(*order, *range(len(met), data.ndim)), met
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return Value(data, names, shape, scale, tangent)

    def _look_up(self, data: Array, first: int, places: list[Array], span: Span) -> Array:
        """The entries at these places, counted from one, of as many axes behind the first ones."""
        counted = [place.astype(np.int64) - 1 for place in places]
        wrong = [(entry < 0) | (entry >= data.shape[k]) for k, entry in enumerate(counted, first)]
        rest = data.shape[first + len(places) :]
        looked = np.broadcast_shapes(*(entry.shape for entry in counted))
        self.arithmetic.charge([data.shape[:first] + looked + rest], span)
        entries = [np.where(bad, 0, entry) for bad, entry in zip(wrong, counted, strict=True)]
        data = data[(slice(None),) * first + tuple(entries)]
        if any(bad.any() for bad in wrong):
            # Outside of its range there is no entry. A sum or a case that excludes the place excludes
            # the NaN as well.
            outside = np.broadcast_to(reduce(np.logical_or, wrong), looked)
            data = np.where(outside.reshape(looked + (1,) * len(rest)), np.nan, data)
        return data

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
