"""A tile: some queries of one head, some keys, and all that decides how they attend. What a task works on.

A tile may travel to another process or machine. It holds views, so what travels is its own part of each array; a part
of a file that is mapped into memory travels as the name of the file, and the worker looks whether it is the same file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from attention_np import biases
from attention_np._lib.arrays import Array, in_dtype, is_row_scale
from attention_np._lib.dropout import Draws
from attention_np.biases import Bias, Operands, terms_of
from attention_np.rules import Rule, are_same, cut, reach

ROWS_OF_A_CHECKSUM = 8


def slices(start: int, stop: int, step: int) -> Iterator[slice]:
    """`start` to `stop` in steps of `step`, the last of which may be shorter."""
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def cut_arrays(bias: Any, rows: slice, columns: slice) -> Any:
    """Of a bias, or a list of them, the part of some queries and keys where it is an array."""
    if isinstance(bias, list):
        return [cut_arrays(x, rows, columns) for x in bias]
    return bias if bias is None or isinstance(bias, Bias) else cut(bias, rows, columns)


def cut_tangents(bias: Any, d_bias: Any, rows: slice, columns: slice) -> Any:
    """The same of the tangents of a bias, or of a list of them, some or all of which may be None."""
    if isinstance(bias, list) and d_bias is not None:
        return [cut_tangents(*both, rows, columns) for both in zip(bias, d_bias, strict=True)]
    return d_bias if d_bias is None or isinstance(bias, Bias) else cut(d_bias, rows, columns)


class Block(NamedTuple):
    """Some of a tile's keys, beside some of its queries, of which some pair may attend."""

    columns: slice
    visible: Array | None  # broadcasts to the block, or to those of several tiles (h, b, c); None: all attend
    bias: Array | None  # the same


class _Mapped(NamedTuple):
    """A part of a file: where it is, and what its sender sees there."""

    file: str  # an absolute path
    dtype: np.dtype[Any]
    offset: int  # in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    checksum: int

    def open(self) -> Array:
        """The part, by the name of its file; OSError if that leads to anything else than what the sender sees."""
        try:
            array = self._opened()
        except (OSError, ValueError) as error:  # ValueError: the file is too short
            raise OSError(self._message(f"it cannot be opened ({error})")) from error
        if _checksum(array) != self.checksum:
            raise OSError(self._message("it holds other numbers"))
        return array

    def _opened(self) -> Array:
        extent = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        length = (extent + self.dtype.itemsize) // self.dtype.itemsize
        flat = np.memmap(self.file, self.dtype, mode="r", offset=self.offset, shape=(length,))
        return np.lib.stride_tricks.as_strided(np.asarray(flat), self.shape, self.strides)

    def _message(self, problem: str) -> str:
        return (
            f"the file {self.file}, of which a part was sent to a worker by its name, is not there what it is for "
            f"the caller: {problem}. Give the workers the same file under that name, or pass a copy in memory, "
            "np.array(...), which is sent itself"
        )


def _checksum(array: Array) -> int:
    """What tells a file from another: of a few rows, since to read all of them may take as long as the task."""
    rows = np.linspace(0, len(array) - 1, min(len(array), ROWS_OF_A_CHECKSUM)).astype(int)
    return crc32(array[rows].tobytes())


def _by_name(array: Any) -> Any:
    """`array`, or where to find it if it is a part of a file that is mapped into memory and still has its name."""
    if not isinstance(array, np.ndarray) or not array.ndim or not array.size or min(array.strides) < 0:
        return array
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or owner.mode == "c":  # "c" may differ from its file
        return array
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    if any(stride % array.dtype.itemsize for stride in array.strides):
        return array
    mapped = _Mapped(str(owner.filename), array.dtype, offset, array.shape, array.strides, _checksum(array))
    try:
        mapped.open()
    except OSError:  # what is mapped has been deleted or replaced since, and can be had from here only
        return array
    return mapped


class _Travels:
    """A dataclass that is pickled with its mapped arrays by name.

    A file is opened when its array is first asked for, in the task: an error while a task is unpacked would end the
    process that it was sent to.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: _by_name(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        here = {name: value for name, value in state.items() if not isinstance(value, _Mapped)}
        self.__dict__.update(here, _mapped={name: value for name, value in state.items() if name not in here})

    def __getattr__(self, name: str) -> Any:
        mapped = self.__dict__.get("_mapped", {})
        if name not in mapped:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return self.__dict__.setdefault(name, mapped[name].open())


def checked(rule: Rule, rows: slice, columns: slice) -> bool | Array:
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
    bias: Any  # broadcasts to (n, m); or a Bias; or a list of them; or None
    rule: Rule | None
    dropout: Draws | None
    scale: Any  # a number, or (n, 1)
    dtype: np.dtype[Any]  # to compute in
    block_size: tuple[int, int]  # queries and keys that are looked at together
    softcap: Any = None
    weights_by: Any = None
    sink: Array | None = None  # ()

    @property
    def n(self) -> int:
        """The number of queries."""
        return int(self.query.shape[0])

    @property
    def m(self) -> int:
        """The number of keys."""
        return int(self.key.shape[0])

    @property
    def only_scaled(self) -> bool:
        """Whether products of queries and keys are scores but for the scale, and no others are beside them."""
        return self.bias is None and self.softcap is None and self.sink is None

    def is_like(self, other: Tile) -> bool:
        """Whether both have the same shapes and the same rule."""
        return (
            self.query.shape == other.query.shape
            and self.key.shape == other.key.shape
            and self.value.shape == other.value.shape
            and [x.shape for x in terms_of(self.bias)] == [x.shape for x in terms_of(other.bias)]
            and (self.dropout is None) == (other.dropout is None)
            and are_same(self.rule, other.rule)
        )

    @property
    def rows(self) -> slice:
        """All queries."""
        return slice(0, self.n)

    @property
    def columns(self) -> slice:
        """All keys."""
        return slice(0, self.m)

    def take(self, array: Array, part: slice = slice(None)) -> Array:
        """Some rows of an array, by default all, in the dtype that is computed in."""
        return array[part].astype(self.dtype, copy=False)

    def row_blocks(self) -> Iterator[slice]:
        """The queries, block by block."""
        return slices(0, self.n, self.block_size[0])

    def blocks(self, rows: slice, columns: slice, others: Sequence[Tile] = ()) -> Iterator[Block]:
        """Some keys beside some queries, block by block, without those that the rule hides from all of them."""
        some = columns if self.rule is None else reach(self.rule, rows, columns)
        for columns in slices(some.start, some.stop, self.block_size[1]):
            block = self.block(rows, columns, others)
            if block is not None:
                yield block

    def bias_of(self, rows: slice, columns: slice) -> Array:
        """What the bias, or those in a list, add to a block."""
        term = biases.term(cut_arrays(self.bias, rows, columns), self.operands(rows, columns))
        assert term is not None
        return term

    def scale_of(self, rows: slice) -> Any:
        """The scale of some queries: a number, or (b, 1)."""
        return self.take(self.scale, rows) if is_row_scale(self.scale) else self.scale

    @property
    def factor(self) -> Any:
        """What products of keys and queries, that are scaled where each has a scale of its own, are multiplied by."""
        return self.dtype.type(1) if is_row_scale(self.scale) else self.scale

    def operands(self, rows: slice, columns: slice) -> Operands:
        """What biases of a block may read."""
        query, key, scale = self.take(self.query, rows), self.take(self.key, columns), self.scale_of(rows)
        return Operands(rows, columns, query * scale, key, scale)

    def block(self, rows: slice, columns: slice, others: Sequence[Tile] = ()) -> Block | None:
        """One block; None if nobody attends in it. With `others`, that are like this tile, it is one of all of them."""
        visible = True if self.rule is None else checked(self.rule, rows, columns)
        if visible is False:
            return None
        if not terms_of(self.bias):
            return Block(columns, None if visible is True else visible, None)
        of_tiles = [tile.bias_of(rows, columns) for tile in (self, *others)]
        (bias,) = in_dtype(self.dtype, np.stack(of_tiles) if others else of_tiles[0])
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
    is_whole: bool = True  # whether the tile holds all the keys that its queries attend to


@dataclass(frozen=True)
class Tangent(_Travels):
    """What forward mode of a tile needs besides: the tangents that are not zero."""

    query: Array | None  # (n, d_k)
    key: Array | None  # (m, d_k)
    value: Array | None  # (m, d_v)
    bias: Any  # broadcasts to (n, m); or of the shape of the array of a Bias; or a list of them
    sink: Array | None  # ()
    scale: Array | None = None  # (n, 1)


class TileGradients(NamedTuple):
    """What a tile contributes to the gradients of its own parts of the arrays."""

    query: Array  # (n, d_k)
    key: Array  # (m, d_k)
    value: Array  # (m, d_v)
    bias: Any  # of the shape of the tile's; or a list of them
    sink: Array | None = None  # (), of rows that were differentiated as a whole
    scale: Array | None = None  # (n, 1)
