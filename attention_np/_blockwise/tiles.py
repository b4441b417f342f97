"""A tile: some queries of one head, some keys, and all that decides how they attend. What a task works on.

A tile may travel to another process or machine. It holds views, so what travels is its own part of each array; a part
of a file that is mapped into memory travels as the name of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from attention_np._arrays import Array, in_dtype
from attention_np._dropout import Draws
from attention_np.rules import Rule, cut

__all__ = ["Block", "Cotangent", "Tile", "slices"]


def slices(start: int, stop: int, step: int) -> Iterator[slice]:
    """`start` to `stop` in steps of `step`, the last of which may be shorter."""
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


class Block(NamedTuple):
    """Some of a tile's keys, beside some of its queries, of which some pair may attend."""

    columns: slice
    visible: Array | None  # broadcasts to the block; None: all attend
    bias: Array | None  # broadcasts to the block


class _Mapped(NamedTuple):
    """An array in a file."""

    file: str
    dtype: np.dtype[Any]
    offset: int  # in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def open(self) -> Array:
        extent = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        length = (extent + self.dtype.itemsize) // self.dtype.itemsize
        flat = np.memmap(self.file, self.dtype, mode="r", offset=self.offset, shape=(length,))
        return np.lib.stride_tricks.as_strided(np.asarray(flat), self.shape, self.strides, writeable=False)


def _by_name(array: Any) -> Any:
    """`array`, or where to find it if it is a part of a file that is mapped into memory."""
    if not isinstance(array, np.ndarray) or not array.size or min(array.strides, default=0) < 0:
        return array
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or owner.mode == "c":  # "c" may differ from its file
        return array
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    if any(stride % array.dtype.itemsize for stride in array.strides):
        return array
    return _Mapped(str(owner.filename), array.dtype, offset, array.shape, array.strides)


class _Travels:
    """A dataclass that is pickled with its mapped arrays by name."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: _by_name(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value.open() if isinstance(value, _Mapped) else value)


def _checked(rule: Rule, rows: slice, columns: slice) -> bool | Array:
    """What a rule, which may be the caller's, says of a block."""
    visible = rule.block(rows, columns)
    if isinstance(visible, bool | np.bool_):
        return bool(visible)
    shape = rows.stop - rows.start, columns.stop - columns.start
    if not isinstance(visible, np.ndarray) or visible.dtype != np.bool_:
        what = f"an array of {visible.dtype}" if isinstance(visible, np.ndarray) else repr(visible)
        raise TypeError(f"the block of a rule must be True, False or an array of booleans, not {what} ({rule!r})")
    if visible.ndim != 2 or any(size not in (1, full) for size, full in zip(visible.shape, shape, strict=True)):
        raise ValueError(
            f"the block of a rule must broadcast to {shape}, not have the shape {visible.shape} ({rule!r})"
        )
    return visible


@dataclass(frozen=True)
class Tile(_Travels):
    """The operands of a task. Positions count from the first query and the first key of the tile."""

    query: Array  # (n, d_k)
    key: Array  # (m, d_k)
    value: Array  # (m, d_v)
    bias: Array | None  # broadcasts to (n, m)
    rule: Rule | None
    dropout: Draws | None
    scale: Any
    dtype: np.dtype[Any]  # to compute in
    block_size: tuple[int, int]  # queries and keys that are looked at together

    @property
    def n(self) -> int:
        """The number of queries."""
        return int(self.query.shape[0])

    @property
    def m(self) -> int:
        """The number of keys."""
        return int(self.key.shape[0])

    def is_like(self, other: Tile) -> bool:
        """Whether both have the same shapes and the same rule, and nothing else that differs from head to head."""
        return (
            self.rule == other.rule
            and all(tile.bias is None and tile.dropout is None for tile in (self, other))
            and all(getattr(self, name).shape == getattr(other, name).shape for name in ("query", "key", "value"))
        )

    def take(self, array: Array, part: slice) -> Array:
        """Some rows of an array, in the dtype that is computed in."""
        taken: Array
        (taken,) = in_dtype(self.dtype, array[part])
        return taken

    def row_blocks(self) -> Iterator[slice]:
        """The queries, block by block."""
        return slices(0, self.n, self.block_size[0])

    def blocks(self, rows: slice, columns: slice) -> Iterator[Block]:
        """Some keys beside some queries, block by block, without those that the rule hides from all of them."""
        reach = columns if self.rule is None else self.rule.columns(rows, columns)
        for columns in slices(reach.start, reach.stop, self.block_size[1]):
            block = self.block(rows, columns)
            if block is not None:
                yield block

    def block(self, rows: slice, columns: slice) -> Block | None:
        """One block; None if nobody attends in it."""
        visible = True if self.rule is None else _checked(self.rule, rows, columns)
        if visible is False:
            return None
        if self.bias is None:
            return Block(columns, None if visible is True else visible, None)
        (bias,) = in_dtype(self.dtype, cut(self.bias, rows, columns))
        hidden = bias.real == -np.inf
        if hidden.any():
            visible = np.logical_and(visible, ~hidden)
        return Block(columns, None if visible is True else visible, bias)


@dataclass(frozen=True)
class Cotangent(_Travels):
    """What the backward pass of a tile needs besides: one row for each of its queries."""

    d_output: Array  # (n, d_v)
    output: Array  # (n, d_v)
    d_logsumexp: Array | None  # (n,)
    logsumexp: Array  # (n,)
    shift: Array  # (n,), as forward found it, and
    total: Array  # (n,)
    limits: Array | None  # (n,), the number of scores that are plus infinity; None: none anywhere
