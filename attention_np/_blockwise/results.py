"""The arrays that a pass makes: a kernel goes over the tiles, and each tile's results are put or added at its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_np._blockwise.problem import Place, Problem, grouped
from attention_np._lib.arrays import Array
from attention_np._lib.wide import widened
from attention_np._lib.workers import as_workers, run
from attention_np.biases import Bias

if TYPE_CHECKING:
    from concurrent.futures import Executor

Kernel = Callable[[list[Any]], list[Any]]  # of the operands of several tiles: of each, its part of every array


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], is_wide: bool, of: Any) -> Array:
    """To add to; that of a bias object, a few numbers each of which is a sum over many scores, is never `widened`."""
    array = np.empty(shape, dtype)
    array.fill(0)  # now: a page that is read before it is written is made twice
    return widened(array) if is_wide and not isinstance(of, Bias) else array


class Results(dict[str, Any]):
    """Arrays by name, zero at first: results of forward, or gradients or tangents of an array of that name."""

    def __init__(
        self,
        problem: Problem,
        names: Iterable[str],
        executor: Executor | None,
        workers: int | None,
        *,
        dtype: np.dtype[Any] | None = None,
        is_wide: bool = False,
    ) -> None:
        self.problem, self.executor, self.workers = problem, executor, as_workers(executor, workers)
        for name in names:
            shape = problem.shape_of(name)
            if isinstance(shape, list):
                of_each = zip(shape, problem.bias, strict=True)
                self[name] = [zeros(x, dtype or problem.dtype, is_wide, bias) for x, bias in of_each]
            elif shape is not None:
                like = problem.bias if name == "bias" else None
                self[name] = zeros(shape, dtype or problem.dtype, is_wide, like)
        self.names = tuple(names)

    def in_order(self) -> list[Any]:
        """The arrays in the order of their names, None where there is none."""
        return [self.get(name) for name in self.names]

    def put(self, kernel: Kernel, places: list[Place], operands: Callable[[Place], Any]) -> None:
        """Let each part be what `kernel` gives for the operands at its place."""

        def consume(part: Array, of_tile: Array) -> None:
            part[...] = of_tile

        self._run(kernel, places, operands, consume)

    def add(self, kernel: Kernel, places: list[Place], operands: Callable[[Place], Any]) -> None:
        """Add to each part what `kernel` gives for the operands at its place."""

        def consume(part: Array, of_tile: Array) -> None:
            part += of_tile

        self._run(kernel, places, operands, consume)

    def _run(self, kernel: Kernel, places: list[Place], operands: Any, consume: Callable[[Array, Array], None]) -> None:
        def consume_each(part: Any, of_tile: Any) -> None:
            if isinstance(of_tile, list):
                for both in zip(part, of_tile, strict=True):
                    consume(*both)
            else:
                consume(part, of_tile)

        def consume_all(group: list[Place], results: list[Any]) -> None:
            for place, of_tile in zip(group, results, strict=True):
                for name, array in zip(self.names, of_tile, strict=True):
                    if array is not None and name in self:
                        consume_each(self.problem.part(name, self[name], place), array)

        groups = list(grouped(places))
        tasks = ((group, [operands(place) for place in group]) for group in groups)
        are_small = len(groups) < 2 and self.problem.is_small
        run(kernel, tasks, consume_all, self.executor, self.workers, are_small=are_small)
