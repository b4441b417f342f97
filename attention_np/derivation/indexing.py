"""Entries of an array: what ``S_{ij}``, ``Q_i`` and ``x_{t-1}`` pick."""

from __future__ import annotations

import numpy as np

from attention_np.derivation import nodes
from attention_np.derivation.environment import Environment
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.values import ONE, Array, Value

_UNREAD = Value(np.zeros(()))  # the place of an index that only names an axis


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
        names = list(lead)
        letters = [item.name for item in items if isinstance(item, nodes.IndexRef)]
        whole = sum(isinstance(item, nodes.Slice) for item in items)
        # Different letters, each over its own axis, only reorder the axes: nothing is looked up.
        simple = len({*lead, *letters}) == len(lead) + len(letters) == len(lead) + len(items) - whole
        simple = simple and self.environment.at.keys().isdisjoint(letters)
        picked: list[Value | None] = []
        for item, axis in zip(items, axes, strict=True):
            if isinstance(item, nodes.Slice):
                picked.append(None)
                continue
            if isinstance(item, nodes.IndexRef):
                own = self.environment.names.range_of(item.name)
                if not self.arithmetic.same(own, axis):
                    message = f"index {item.name} runs over {plain(own)}, but this axis over {plain(axis)}"
                    raise Fault("shape", message, item.span)
                if simple:
                    picked.append(_UNREAD)
                    names.append(item.name)
                    continue
            counted = self._place(item, axis, bound)
            picked.append(counted)
            names += [name for name in counted.names if name not in names]
        kept = [k for k, place in enumerate(picked) if place is None]
        shape = tuple(axes[k] for k in kept)
        offset = len(lead)
        if simple:
            front = [offset + k for k in range(len(axes)) if k not in kept]
            data = data.transpose(*range(offset), *front, *(offset + k for k in kept))
        else:
            ordered = tuple(names)
            index: list[Array] = []
            for k, name in enumerate(lead):
                arange = np.arange(data.shape[k])
                index.append(arange.reshape([-1 if other == name else 1 for other in ordered]))
            outside: Array = np.zeros((1,) * len(ordered), dtype=bool)
            for k, place in enumerate(picked):
                if place is not None:
                    entry = self.arithmetic.spread(place, ordered).astype(np.int64) - 1
                    wrong = (entry < 0) | (entry >= data.shape[offset + k])
                    outside = outside | wrong
                    index.append(np.where(wrong, 0, entry))
            front = [offset + k for k in range(len(axes)) if k not in kept]
            data = data.transpose(*range(offset), *front, *(offset + k for k in kept))
            self.arithmetic.charge(
                [np.broadcast_shapes(*(item.shape for item in index)) + data.shape[len(index) :]], span
            )
            data = data[tuple(index)] if index else data
            if outside.any():
                # Outside of its range there is no entry. A sum or a case that excludes the place excludes
                # the NaN as well.
                outside = outside.reshape(outside.shape + (1,) * (data.ndim - outside.ndim))
                data = np.where(np.broadcast_to(outside, data.shape), np.nan, data)
        if len(shape) == 1:
            data, shape = data[..., None], (*shape, ONE)
        return Value(data, tuple(names), shape, scale, tangent)

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
