"""Who may attend to whom, asked block by block: masks for :mod:`attention_np.blockwise` that are never whole in memory.

Each function is that of the same name in :mod:`attention_np.masks`, without the numbers of queries and keys. A rule
says of every block of queries and keys whether all of it may attend, none of it, or which pairs; blocks that it rules
out are not computed. Two rules combine with ``&``. For a rule of your own, derive from :class:`Rule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attention_np import masks
from attention_np._lib.arguments import as_array, as_flag, as_integer

__all__ = ["Rule", "causal", "packed", "padding", "selected", "sliding_window", "tree", "whole"]

Mask: TypeAlias = npt.NDArray[np.bool_]

KEPT = 2**18  # bytes of a mask that is kept to be used again, at most


class Rule:
    """Who may attend to whom. A subclass defines :meth:`block`, and :meth:`columns` where whole ranges are ruled out.

    Attributes
    ----------
    leading : tuple of int
        The leading axes that the rule differs along, as those of a mask; they broadcast to those of the scores. A rule
        that has some defines :meth:`at`.

    Examples
    --------
    >>> from attention_np import rules
    >>> class EverySecondKey(rules.Rule):
    ...     def block(self, rows, columns):
    ...         return np.arange(columns.start, columns.stop)[None, :] % 2 == 0
    >>> print(EverySecondKey().mask(2, 5).astype(int))
    [[1 0 1 0 1]
     [1 0 1 0 1]]
    """

    leading: tuple[int, ...] = ()

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        """True if all pairs of a block may attend, False if none may, else a mask that broadcasts to the block."""
        raise NotImplementedError(f"{type(self).__name__} must define block(rows, columns)")

    def columns(self, rows: slice, columns: slice) -> slice:
        """The part of `columns`, a slice within it, outside of which none of `rows` attends to anything."""
        del rows
        return columns

    def at(self, index: tuple[int, ...]) -> Rule:
        """The rule at one place of the leading axes of the scores."""
        del index
        return self

    def within(self, rows: slice, columns: slice) -> Rule:
        """The rule for these queries and keys alone, counted from the first of each."""
        return _Shifted(self, rows.start, columns.start)

    def check(self, n: int, m: int) -> None:
        """Raise ValueError if the rule does not fit n queries and m keys."""

    def mask(self, n: int, m: int) -> Mask:
        """The mask in whole, leading axes included."""
        self.check(n, m)
        result = np.empty((*self.leading, n, m), np.bool_)
        for index in np.ndindex(*self.leading) if n and m else ():
            result[index] = self.at(index).block(slice(0, n), slice(0, m))
        return result

    def __and__(self, other: Rule) -> Rule:
        return _Both(self, other) if isinstance(other, Rule) else NotImplemented


@dataclass(frozen=True)
class _Band(Rule):
    """Query i sees the keys ``i + lower <= j <= i + upper``; None is no bound."""

    lower: int | None
    upper: int | None

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        least, most = columns.start - (rows.stop - 1), columns.stop - 1 - rows.start  # of j - i in the block
        lower = least if self.lower is None else self.lower
        upper = most if self.upper is None else self.upper
        if most < lower or least > upper:  # nothing of the block is visible (blockwise.49, blockwise.51)
            return False
        if lower <= least and most <= upper:  # all of it is (blockwise.49)
            return True
        n, m, shift = rows.stop - rows.start, columns.stop - columns.start, rows.start - columns.start
        mask = _triangle(n, m, upper + shift)
        return mask if lower <= least else mask & ~_triangle(n, m, lower + shift - 1)

    def columns(self, rows: slice, columns: slice) -> slice:
        start, stop = columns.start, columns.stop
        if self.lower is not None:
            start = min(max(start, rows.start + self.lower), stop)
        if self.upper is not None:
            stop = max(min(stop, rows.stop + self.upper), start)
        return slice(start, stop)

    def within(self, rows: slice, columns: slice) -> Rule:
        shift = rows.start - columns.start
        return _Band(*(None if bound is None else bound + shift for bound in (self.lower, self.upper)))


def _triangle(n: int, m: int, offset: int) -> Mask:
    return _kept_triangle(n, m, offset) if n * m <= KEPT else masks.causal(n, m, offset=offset)


@lru_cache(16)
def _kept_triangle(n: int, m: int, offset: int) -> Mask:
    # On the diagonal, block after block has the same one, and to make it takes as long as to apply it.
    mask = masks.causal(n, m, offset=offset)
    mask.flags.writeable = False
    return mask


class _Padding(Rule):
    def __init__(self, lengths: npt.NDArray[Any]) -> None:
        self.lengths, self.leading = lengths, lengths.shape

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        del rows
        if columns.stop <= self.lengths:
            return True
        if columns.start >= self.lengths:
            return False
        mask: Mask = np.arange(columns.start, columns.stop)[None, :] < self.lengths
        return mask

    def columns(self, rows: slice, columns: slice) -> slice:
        del rows
        return slice(columns.start, max(columns.start, min(columns.stop, int(self.lengths))))

    def within(self, rows: slice, columns: slice) -> Rule:
        del rows
        return _Padding(np.clip(self.lengths - columns.start, 0, columns.stop - columns.start))

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Padding(np.asarray(pick(self.lengths, index, axes=0)))

    def check(self, n: int, m: int) -> None:
        del n
        if self.lengths.size and self.lengths.max() > m:
            raise ValueError(f"lengths must be from 0 to m={m}, not {self.lengths.max()}")


class _Packed(Rule):
    def __init__(self, queries: npt.NDArray[Any], keys: npt.NDArray[Any]) -> None:
        self.queries, self.keys = queries, keys
        self.leading = np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        queries, keys = self.queries[rows], self.keys[columns]
        (first, last), (least, most) = _ends(queries), _ends(keys)
        if last < least or most < first:
            return False
        return True if first == last == least == most else masks.packed(queries, keys)

    def columns(self, rows: slice, columns: slice) -> slice:
        first, last = _ends(self.queries[rows])
        keys = self.keys[columns]
        near = np.flatnonzero((keys >= first) & (keys <= last))
        if not near.size:
            return slice(columns.start, columns.start)
        return slice(columns.start + int(near[0]), columns.start + int(near[-1]) + 1)

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Packed(pick(self.queries, index, axes=1), pick(self.keys, index, axes=1))

    def within(self, rows: slice, columns: slice) -> Rule:
        return _Packed(self.queries[..., rows], self.keys[..., columns])

    def check(self, n: int, m: int) -> None:
        if (self.queries.shape[-1], self.keys.shape[-1]) != (n, m):
            raise ValueError(
                f"there are segments of {self.queries.shape[-1]} queries and {self.keys.shape[-1]} keys, "
                f"but {n} queries and {m} keys"
            )


class _Selected(Rule):
    def __init__(self, rows: npt.NDArray[np.int64], block_size: int, start: int = 0) -> None:
        self.rows, self.block_size, self.leading = rows, block_size, rows.shape[:-2]
        self.start = start  # of the first key in its block

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        mask = masks.listed(self.rows[rows], self._in_blocks(columns), self.block_size)
        return bool(mask.all()) if mask.all() or not mask.any() else mask

    def columns(self, rows: slice, columns: slice) -> slice:
        some = self.rows[rows]
        some = some[some >= 0]
        if not some.size:
            return slice(columns.start, columns.start)
        first, last = (int(end) * self.block_size - self.start for end in (some.min(), some.max()))
        start = min(max(columns.start, first), columns.stop)
        return slice(start, max(min(columns.stop, last + self.block_size), start))

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Selected(pick(self.rows, index, axes=2), self.block_size, self.start)

    def within(self, rows: slice, columns: slice) -> Rule:
        of_all = self._in_blocks(columns)
        first, count = masks.blocks_of(of_all, self.block_size)
        some = self.rows[..., rows, :] - first
        some = np.where((some >= 0) & (some < count), some, -1)
        return _Selected(some, self.block_size, of_all.start - first * self.block_size)

    def check(self, n: int, m: int) -> None:
        if self.rows.shape[-2] != n:
            raise ValueError(
                f"there are lists of {self.rows.shape[-2]} queries, but {n} queries (indices.shape={self.rows.shape})"
            )
        masks.check_selection(self.rows, self.start + m, self.block_size)

    def _in_blocks(self, columns: slice) -> slice:
        """Some keys, counted from where the first of the blocks begins."""
        return slice(columns.start + self.start, columns.stop + self.start)


class _Tree(Rule):
    def __init__(self, parents: npt.NDArray[np.int64]) -> None:
        self.parents = parents

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        mask = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.bool_)
        for nodes, seen in masks.ancestors(self.parents, np.arange(rows.start, rows.stop)):
            inside = (seen >= columns.start) & (seen < columns.stop)
            mask[nodes[inside] - rows.start, seen[inside] - columns.start] = True
        return mask if mask.any() else False

    def check(self, n: int, m: int) -> None:
        if (n, m) != (len(self.parents), len(self.parents)):
            raise ValueError(f"there are {len(self.parents)} nodes of a tree, but {n} queries and {m} keys")


class _Whole(Rule):
    def __init__(self, mask: Mask) -> None:
        self.allowed, self.leading = mask, mask.shape[:-2]

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        part = cut(self.allowed, rows, columns)
        if part.all():
            return True
        return part if part.any() else False

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Whole(pick(self.allowed, index, axes=2))

    def within(self, rows: slice, columns: slice) -> Rule:
        return _Whole(cut(self.allowed, rows, columns))

    def check(self, n: int, m: int) -> None:
        if not all(size in (1, full) for size, full in zip(self.allowed.shape[-2:], (n, m), strict=True)):
            raise ValueError(f"mask must broadcast to {n} queries and {m} keys (mask.shape={self.allowed.shape})")


def reach(rule: Rule, rows: slice, columns: slice) -> slice:
    """What a rule, which may be the caller's, says of `columns`: checked, since a wrong slice would hide keys."""
    answer = rule.columns(rows, columns)
    bounds = (answer.start, answer.stop) if isinstance(answer, slice) and answer.step in (None, 1) else ()
    if len(bounds) != 2 or not all(isinstance(bound, int | np.integer) for bound in bounds):
        raise TypeError(f"the columns of a rule must be a slice of two integers and no step, not {answer!r} ({rule!r})")
    start, stop = map(int, bounds)
    if start >= stop:
        return slice(columns.start, columns.start)
    if start < columns.start or stop > columns.stop:
        raise ValueError(
            f"the columns of a rule must be within those it is asked for, {columns.start} to {columns.stop}, "
            f"not {start} to {stop} ({rule!r})"
        )
    return slice(start, stop)


def are_same(one: Rule | None, other: Rule | None) -> bool:
    """Whether two rules are known to say the same. What others mean by ``==`` of theirs is not."""
    return one is other or (isinstance(one, _Band) and isinstance(other, _Band) and one == other)


class _Shifted(Rule):
    def __init__(self, rule: Rule, row: int, column: int) -> None:
        self.rule, self.row, self.column, self.leading = rule, row, column, rule.leading

    def __repr__(self) -> str:
        return f"{self.rule!r} from query {self.row} and key {self.column} on"

    def _back(self, rows: slice, columns: slice) -> tuple[slice, slice]:
        return (
            slice(rows.start + self.row, rows.stop + self.row),
            slice(columns.start + self.column, columns.stop + self.column),
        )

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        return self.rule.block(*self._back(rows, columns))

    def columns(self, rows: slice, columns: slice) -> slice:
        reached = reach(self.rule, *self._back(rows, columns))
        return slice(reached.start - self.column, reached.stop - self.column)

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Shifted(self.rule.at(index), self.row, self.column)


class _Both(Rule):
    def __init__(self, first: Rule, second: Rule) -> None:
        self.first, self.second = first, second
        self.leading = np.broadcast_shapes(first.leading, second.leading)

    def block(self, rows: slice, columns: slice) -> bool | Mask:
        first = self.first.block(rows, columns)
        if first is False:
            return False
        second = self.second.block(rows, columns)
        if second is False or first is True:
            return second
        return first if second is True else np.logical_and(first, second)

    def columns(self, rows: slice, columns: slice) -> slice:
        return reach(self.second, rows, reach(self.first, rows, columns))

    def at(self, index: tuple[int, ...]) -> Rule:
        return _Both(self.first.at(index), self.second.at(index))

    def within(self, rows: slice, columns: slice) -> Rule:
        return _Both(self.first.within(rows, columns), self.second.within(rows, columns))

    def check(self, n: int, m: int) -> None:
        self.first.check(n, m)
        self.second.check(n, m)


def causal(*, offset: int = 0) -> Rule:
    """Query i sees the keys ``j <= i + offset``, as :func:`attention_np.masks.causal`.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.causal(offset=1).mask(2, 4).astype(int))
    [[1 1 0 0]
     [1 1 1 0]]
    """
    return _Band(None, as_integer("offset", offset))


def sliding_window(*, left: int | None, right: int | None = 0) -> Rule:
    """Query i sees the keys ``i - left <= j <= i + right``, as :func:`attention_np.masks.sliding_window`.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.sliding_window(left=1).mask(3, 3).astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]
    """
    lower = None if left is None else -as_integer("left", left, least=0)
    return _Band(lower, None if right is None else as_integer("right", right, least=0))


def padding(lengths: npt.ArrayLike, *, heads: bool = False) -> Rule:
    """Every query sees the keys before the length of its sample, as :func:`attention_np.masks.padding`.

    With `heads` the scores have an axis for heads after those of `lengths`.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.padding([1, 3]).mask(1, 3).astype(int))
    [[[1 0 0]]
    <BLANKLINE>
     [[1 1 1]]]
    """
    counts = masks.as_integers("lengths", lengths)
    if counts.size and counts.min() < 0:
        raise ValueError(f"lengths must not be negative, and one is {counts.min()}")
    return _Padding(counts[..., None] if as_flag("heads", heads) else counts)


def packed(query_segments: npt.ArrayLike, key_segments: npt.ArrayLike | None = None, *, heads: bool = False) -> Rule:
    """Attend within one's own segment, as :func:`attention_np.masks.packed`.

    What lies between segments is skipped where segments follow one another in order. With `heads` the scores have an
    axis for heads after the leading axes of the segments.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.packed([0, 0, 1]).mask(3, 3).astype(int))
    [[1 1 0]
     [1 1 0]
     [0 0 1]]
    """
    queries = as_array("query_segments", query_segments, "integers")
    keys = queries if key_segments is None else as_array("key_segments", key_segments, "integers")
    masks.packed(*(x[..., :1] if x.ndim else x for x in (queries, keys)))  # refuses what cannot be
    heads = as_flag("heads", heads)
    return _Packed(*(x[..., None, :] if heads else x for x in (queries, keys)))


def selected(indices: npt.ArrayLike, *, block_size: int = 1) -> Rule:
    """Each query sees the keys, or blocks of keys, that its row lists, as :func:`attention_np.masks.selected`.

    Blocks of scores in which no query has selected anything are skipped. An index that is out of range is refused when
    the number of keys is known.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.selected([[1, -1], [0, 2]], block_size=2).mask(2, 5).astype(int))
    [[0 0 1 1 0]
     [1 1 0 0 1]]
    """
    return _Selected(*masks.as_selection(indices, block_size))


def tree(parents: npt.ArrayLike) -> Rule:
    """Each node of a tree sees itself and its ancestors, as :func:`attention_np.masks.tree`.

    Examples
    --------
    >>> from attention_np import rules
    >>> print(rules.tree([-1, 0, 0]).mask(3, 3).astype(int))
    [[1 0 0]
     [1 1 0]
     [1 0 1]]
    """
    return _Tree(masks.as_parents(parents))


def whole(mask: npt.ArrayLike) -> Rule:
    """A boolean mask, (..., n, m) or what broadcasts to that, as a rule: to combine it with others.

    Examples
    --------
    >>> from attention_np import rules
    >>> rule = rules.causal() & rules.whole([True, False, True])
    >>> print(rule.mask(3, 3).astype(int))
    [[1 0 0]
     [1 0 0]
     [1 0 1]]
    """
    allowed = as_array("mask", mask, "booleans").view()
    allowed.flags.writeable = False  # parts of it are what the rule answers with
    if allowed.dtype != np.bool_:
        raise TypeError(f"mask must be boolean, True where attending is allowed, not {allowed.dtype}")
    return _Whole(np.atleast_2d(allowed))


def pick(array: npt.NDArray[Any], index: tuple[int, ...], axes: int) -> npt.NDArray[Any]:
    """`array` at a place of the leading axes that it broadcasts to; its own last `axes` axes stay."""
    picked: npt.NDArray[Any] = array[own_place(index, array.shape[: array.ndim - axes])]
    return picked


def own_place(index: tuple[int, ...], leading: tuple[int, ...]) -> tuple[int, ...]:
    """A place in leading axes as one in those of the given lengths, which broadcast to them."""
    own = index[len(index) - len(leading) :]
    return own if 1 not in leading else tuple([0 if size == 1 else i for i, size in zip(own, leading, strict=True)])


def cut(array: npt.NDArray[Any], rows: slice, columns: slice) -> npt.NDArray[Any]:
    """The part of matrices that broadcast to the scores, of the last two axes that are not of length one."""
    n, m = array.shape[-2:]
    part: npt.NDArray[Any] = array[..., rows if n != 1 else slice(None), columns if m != 1 else slice(None)]
    return part


def _ends(segments: npt.NDArray[Any]) -> tuple[Any, Any]:
    return segments.min(), segments.max()
