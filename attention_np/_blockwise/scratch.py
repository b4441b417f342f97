"""Arrays that a thread uses again and again, and so are in its core's cache; calls hand them on to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np._lib.workers import usable_cores


class _Arrays:
    """Arrays by name. What is asked for under one name is valid until it is asked for again."""

    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}
        self.views: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def get(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        view = self.views.get((name, shape, dtype))
        return self._view(name, shape, dtype) if view is None else view

    def _view(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = prod(shape) * dtype.itemsize
        if name not in self.buffers or self.buffers[name].nbytes < size:
            self.buffers[name] = np.empty(size, np.uint8)
            self.views.clear()
        if len(self.views) == 64:
            self.views.clear()
        view: Array = self.buffers[name][:size].view(dtype).reshape(shape)
        self.views[name, shape, dtype] = view
        return view


class _Of(threading.local):
    """What a thread works with."""

    def __init__(self) -> None:
        self.taken: list[_Arrays] = []


_of = _Of()
KEPT = 2**24  # bytes of the arrays of one thread, if they are to wait for the next call: twice what usual blocks take
_spare: list[_Arrays] = []


@contextmanager
def own() -> Iterator[None]:
    """Arrays that nobody else uses meanwhile: a rule, or the handler of a signal, may itself use attention."""
    try:
        arrays = _spare.pop()
    except IndexError:
        arrays = _Arrays()
    _of.taken.append(arrays)
    try:
        yield
    finally:
        used = _of.taken.pop()
        if used.size <= KEPT and len(_spare) < usable_cores():
            _spare.append(used)


def array(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of this thread, whose numbers are whatever they were."""
    return _of.taken[-1].get(name, shape, dtype)
