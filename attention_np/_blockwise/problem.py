"""One call of :mod:`attention_np.blockwise` in parts: which tiles there are, and how they are handed over.

The parts are fixed by the sizes and the rule alone, never by the number of workers, so neither are the sums over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from attention_np._blockwise.tiles import Cotangent, Tangent, Tile, slices
from attention_np._lib.arguments import as_integer
from attention_np._lib.arrays import Array, is_row_scale
from attention_np._lib.blas import SMALL
from attention_np._lib.dropout import Draws
from attention_np.biases import Bias
from attention_np.rules import Rule, cut, own_place, pick, reach

# Queries and keys of a block of scores: two fit a second-level cache of 1 MiB in single precision, of 2 in double.
BLOCK, BLOCK_OF_A_RULE = (512, 256), (256, 384)  # fewer queries follow a rule more closely
TASKS = 8  # of a large problem, at least: with fewer, there are machines some of whose cores would have none
# Queries and keys of a tile: the first of which there are as many tiles.
SIDES = {(2048, 2048): TASKS, (2048, 1024): TASKS, (1024, 1024): TASKS // 2, (512, 512): 0}
# Pairs of a query and a key, where to prepare one of either takes as long as 64: a task of the least takes longer than
# handing it over, and in one of the most threads rarely wait for each other to let the interpreter go.
LEAST_PAIRS, MOST_PAIRS, PAIRS_TO_A_POSITION = 2**18, 2**20, 64

OF_ROWS, OF_KEYS = ("logsumexp", "shift", "total"), ("key", "value")  # one number for each query; a row for each key


def as_block_size(block_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """The sizes of a block as a pair; None: ours."""
    if block_size is None:
        return None
    sizes = block_size if isinstance(block_size, tuple | list) else (block_size, block_size)
    if len(sizes) != 2:
        raise ValueError(f"block_size must be one number, or one of queries and one of keys, not {block_size}")
    return as_integer("block_size", sizes[0], least=1), as_integer("block_size", sizes[1], least=1)


class Place(NamedTuple):
    """Where a tile is."""

    at: tuple[int, ...]  # in the leading axes of the output
    rows: slice
    columns: slice


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The arrays and options of a call, checked."""

    query: Array  # (..., n, d_k)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    bias: Any  # broadcasts to (..., n, m); or a Bias; or a list of them; or None
    sink: Array | None  # broadcasts to the leading axes of the scores
    scale: Any  # a number, or broadcasts to (..., n, 1)
    mask: Rule | None
    softcap: Any
    weights_by: Any = None
    dropout_p: float
    dropout_key: int | None
    block_size: tuple[int, int] | None
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, cache: Any, dtype: np.dtype[Any]) -> Problem:
        """That of a call of forward, which left this `cache`, to be computed in `dtype`."""
        names = [field.name for field in fields(cls) if field.name != "dtype"]
        return cls(dtype=dtype, **{name: getattr(cache, name) for name in names})

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What there are gradients of."""
        return self.query, self.key, self.value, self.bias, self.sink, self.scale

    @property
    def n(self) -> int:
        """The number of queries."""
        return int(self.query.shape[-2])

    @property
    def m(self) -> int:
        """The number of keys."""
        return int(self.key.shape[-2])

    @cached_property
    def leading(self) -> tuple[int, ...]:
        """The leading axes of the output."""
        return np.broadcast_shapes(*(array.shape[:-2] for array in (self.query, self.key, self.value)))

    @cached_property
    def scores_leading(self) -> tuple[int, ...]:
        """The leading axes of the scores: those of the value may be more."""
        return np.broadcast_shapes(self.query.shape[:-2], self.key.shape[:-2])

    @property
    def is_small(self) -> bool:
        """Whether no product of a tile is one that a BLAS shares out."""
        *_, second, first = sorted((self.n, self.m, self.query.shape[-1], self.value.shape[-1]))
        return bool(first * second <= SMALL)

    def strips(self) -> list[Place]:
        """Tiles of some queries and all the keys that any of them attends to."""
        most, _ = self._sides(lambda rows, _: -(-self.n // rows))
        return [place for index, rows in self._rows(most) for place in self._reach(index, rows)]

    def squares(self) -> list[Place]:
        """Tiles of some queries and some keys, as the backward pass needs: its sums over queries stay small."""
        most_rows, most_columns = self._sides(lambda rows, columns: -(-self.n // rows) * -(-self.m // columns))
        return [
            Place(index, rows, columns)
            for index, rows in self._rows(most_rows)
            for place in self._reach(index, rows)
            for columns in _evenly(place.columns, most_columns)
        ]

    def _sides(self, tiles_a_head: Any) -> tuple[int, int]:
        return next(sides for sides, least in SIDES.items() if prod(self.leading) * tiles_a_head(*sides) >= least)

    def _rows(self, most: int) -> Iterator[tuple[tuple[int, ...], slice]]:
        for index in np.ndindex(*self.leading):
            for rows in slices(0, self.n, most):
                yield index, rows

    def _reach(self, index: tuple[int, ...], rows: slice) -> Iterator[Place]:
        columns = slice(0, self.m) if self.mask is None else self._reached(self.rule_at(index), rows)
        if columns.start < columns.stop:
            yield Place(index, rows, columns)

    def _reached(self, rule: Rule, rows: slice) -> slice:
        """The keys that some queries attend to, asked once of each rule."""
        key = id(rule), rows.start, rows.stop  # of those in `_rules`, which last as long as this
        if key not in self._columns:
            self._columns[key] = reach(rule, rows, slice(0, self.m))
        return self._columns[key]

    def is_whole(self, place: Place) -> bool:
        """Whether the tile at a place holds all the keys that its queries attend to."""
        return place in self._reach(place.at, place.rows)

    def _of_scores(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """A place in the leading axes of the output as one in those of the scores."""
        return own_place(index, self.scores_leading)

    @cached_property
    def _rules(self) -> dict[tuple[int, ...], Rule]:
        """Those of heads and of tiles, each made once: tiles whose rule is one and the same are worked on together."""
        return {}

    @cached_property
    def _columns(self) -> dict[tuple[int, int, int], slice]:
        return {}

    def rule_at(self, index: tuple[int, ...], rows: slice | None = None, columns: slice | None = None) -> Rule:
        """The rule at a place in the leading axes of the output, and there for some queries and keys alone."""
        assert self.mask is not None
        own = own_place(index, self.mask.leading)
        if own not in self._rules:
            self._rules[own] = self.mask.at(self._of_scores(index))
        if rows is None or columns is None:
            return self._rules[own]
        part = *own, rows.start, rows.stop, columns.start, columns.stop
        if part not in self._rules:
            self._rules[part] = self._rules[own].within(rows, columns)
        return self._rules[part]

    def is_first(self, index: tuple[int, ...]) -> bool:
        """Whether a place in the leading axes of the output is the first of those that share its scores."""
        own = self._of_scores(index)
        return index == (0,) * (len(index) - len(own)) + own

    def bias_at(self, place: Place, like: Any = None) -> Any:
        """The part of the bias that is added at a place; or of its gradient or tangent, a view."""
        if isinstance(self.bias, list):
            likes = [None] * len(self.bias) if like is None else like
            return [self._term_at(place, *both) for both in zip(self.bias, likes, strict=True)]
        return self._term_at(place, self.bias, like)

    def _term_at(self, place: Place, bias: Any, like: Any) -> Any:
        of_scores = self._of_scores(place.at)
        if isinstance(bias, Bias):
            if like is not None:
                return bias.with_array(like).at(of_scores).array
            return bias.at(of_scores).within(place.rows, place.columns).astype(self.dtype)
        whole = bias if like is None else like
        whole = whole if whole.ndim > 1 else whole.reshape(1, -1)
        return cut(pick(whole, of_scores, axes=2), place.rows, place.columns)

    def _scale_at(self, place: Place, like: Array) -> Array:
        """The part of a scale of each query at a place; or of its gradient or tangent, a view."""
        whole = like if like.ndim > 1 else like.reshape(1, 1)
        return cut(pick(whole, self._of_scores(place.at), axes=2), place.rows, slice(None))

    def shape_of(self, name: str) -> Any:
        """That of an input or a result of this name, a list of those in a list; None if there is no such input."""
        if name == "output":
            return (*self.leading, self.n, self.value.shape[-1])
        if name in OF_ROWS:
            return (*self.scores_leading, self.n)
        if name == "scale":
            return (*self.scores_leading, self.n, 1) if is_row_scale(self.scale) else None
        array = getattr(self, name)
        if isinstance(array, list):
            return [tuple(x.shape) for x in array]
        return None if array is None else tuple(array.shape)

    def part(self, name: str, whole: Array, place: Place) -> Array:
        """The part at a place, a view, of an input or a result of this name, or of its gradient or tangent."""
        at, rows, columns = place
        if name == "bias":
            return cast(Array, self.bias_at(place, whole))
        if name == "scale":
            return self._scale_at(place, whole)
        if name == "sink":
            number: Any = (*own_place(at, whole.shape), ...)
            return cast(Array, whole[number])
        if name in OF_ROWS:
            return pick(whole, at, axes=1)[rows]
        return pick(whole, at, axes=2)[columns if name in OF_KEYS else rows]

    def tangent(self, place: Place, tangents: Any) -> Tangent:
        """The tangents at a place, of a NamedTuple of those of the inputs, None where one is zero."""
        named = zip(tangents._fields, tangents, strict=True)
        parts = {name: None if x is None else self.part(name, x, place) for name, x in named}
        if parts["scale"] is not None:  # of each query, even where one is for all
            parts["scale"] = np.broadcast_to(parts["scale"], (place.rows.stop - place.rows.start, 1))
        return Tangent(**parts)

    def cotangent(self, place: Place, whole: Cotangent, without: Array | None = None) -> Cotangent:
        """The part of `whole` at a place; `without` some of the rows, (..., n): their gradients are zero."""
        at, rows, _ = place
        d_output, output = (x[at][rows] for x in (whole.d_output, whole.output))
        logsumexp, shift, total = (pick(x, at, axes=1)[rows] for x in (whole.logsumexp, whole.shift, whole.total))
        d_logsumexp = None
        # Where several values share these scores, it is one log-sum-exp.
        if whole.d_logsumexp is not None and self.is_first(at):
            d_logsumexp = pick(whole.d_logsumexp, at, axes=1)[rows]
        if without is not None:
            left_out = without[at][rows]
            d_output = np.where(left_out[:, None], 0, d_output)
            d_logsumexp = None if d_logsumexp is None else np.where(left_out, 0, d_logsumexp)
        return Cotangent(d_output, output, d_logsumexp, logsumexp, shift, total, self.is_whole(place))

    def tile(self, place: Place) -> Tile:
        """The tile at a place."""
        at, rows, columns = place
        of_scores = self._of_scores(at)
        rule = None if self.mask is None else self.rule_at(at, rows, columns)
        dropout = None
        if self.dropout_key is not None:
            head = np.ravel_multi_index(of_scores, self.scores_leading) if of_scores else 0
            dropout = Draws(self.dropout_key, self.dropout_p, int(head) * self.n, self.m, 0).within(rows, columns)
        return Tile(
            query=np.asarray(pick(self.query, at, axes=2))[rows],
            key=np.asarray(pick(self.key, at, axes=2))[columns],
            value=np.asarray(pick(self.value, at, axes=2))[columns],
            bias=None if self.bias is None else self.bias_at(place),
            rule=rule,
            dropout=dropout,
            scale=np.broadcast_to(self._scale_at(place, self.scale), (rows.stop - rows.start, 1))
            if is_row_scale(self.scale)
            else self.scale,
            dtype=self.dtype,
            block_size=self.block_size or (BLOCK if self.mask is None else BLOCK_OF_A_RULE),
            softcap=self.softcap,
            weights_by=self.weights_by,
            sink=None if self.sink is None else np.asarray(pick(self.sink, of_scores, axes=0), self.dtype),
        )


def grouped(places: list[Place]) -> Iterator[list[Place]]:
    """`places` in tasks that get smaller: few to hand over, and short ones at the end, where workers wait for one."""
    left, group, size = sum(map(_pairs, places)), [], 0
    for place in places:
        group.append(place)
        size += _pairs(place)
        if size >= min(max(LEAST_PAIRS, 2 * left // TASKS), MOST_PAIRS):
            yield group
            left, group, size = left - size, [], 0
    if group:
        yield group


def _pairs(place: Place) -> int:
    """How much there is to do at a place."""
    rows, columns = place.rows.stop - place.rows.start, place.columns.stop - place.columns.start
    return int(rows * columns + PAIRS_TO_A_POSITION * (rows + columns))


def _evenly(columns: slice, side: int) -> Iterator[slice]:
    """`columns` in parts of about one length, near `side`."""
    length = columns.stop - columns.start
    parts = max(1, round(length / side))
    return slices(columns.start, columns.stop, -(-length // parts))
