"""Arrays that count what is done with them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array

WITHOUT_FLOPS = {"isfinite", "where", "not_equal", "logical_and", "logical_or"}


class Tally:
    """What the calls on counted arrays did; of arrays with other shapes than these, nothing is noted."""

    def __init__(self, shapes: Container[tuple[int, ...]] | None = None) -> None:
        self.shapes = shapes
        self.product_flops = self.other_flops = self.bytes_moved = 0

    def count(self, array: Array) -> Counted:
        """The array, which tells this tally of every call on it."""
        counted = array.view(Counted)
        counted.tally = self
        return counted

    def add(self, name: str, inputs: Iterable[Any], output: Array) -> None:
        """A call: an operation for each number that it takes or makes, two for each term of a product of matrices."""
        arrays = list({id(x): x for x in (*inputs, output) if isinstance(x, np.ndarray)}.values())
        noted = [x for x in arrays if self.shapes is None or x.shape in self.shapes]
        self.bytes_moved += sum(x.nbytes for x in noted)
        if name == "matmul" and all(x.ndim > 1 for x in arrays):
            self.product_flops += 2 * output.size * arrays[0].shape[-1]
        elif name not in WITHOUT_FLOPS:
            self.other_flops += max((x.size for x in noted), default=0)

    def taken(self) -> tuple[int, int, int]:
        """The operations of products, all others, and the bytes moved, since the last time."""
        counts = self.product_flops, self.other_flops, self.bytes_moved
        self.product_flops = self.other_flops = self.bytes_moved = 0
        return counts


class Counted(np.ndarray):
    """An array that adds every call on it, and on the results, to a tally."""

    tally: Tally

    def __array_finalize__(self, other: Any) -> None:
        """Of another counted array, it has the tally."""
        self.tally = getattr(other, "tally", None) or Tally()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Count a ufunc, or a reduction by it."""
        if options.get("out"):
            options["out"] = tuple(map(_plain, options["out"]))
        return self._told(ufunc.__name__, inputs, getattr(ufunc, method)(*map(_plain, inputs), **options))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Count np.where; other functions are made of ufuncs, or move nothing, and what they return has the tally."""
        output = super().__array_function__(function, types, inputs, options)
        if function is np.where:
            return self._told(function.__name__, inputs, output)
        return self.tally.count(output) if isinstance(output, np.ndarray) else output

    def argmax(self, *args: Any, **options: Any) -> Any:
        """Count it, which is no ufunc."""
        return self._told("argmax", [self], _plain(self).argmax(*args, **options))

    def _told(self, name: str, inputs: Iterable[Any], output: Any) -> Any:
        output = np.asarray(output)
        self.tally.add(name, inputs, output)
        return self.tally.count(output)


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, Counted) else array
