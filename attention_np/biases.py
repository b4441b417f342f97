r"""What is added to the scores by position: ALiBi, tables and embeddings by index or distance, forgetting gates.

Each is a bias that is made of one small array, whole or block by block, and never there as a whole in
:mod:`attention_np.blockwise`. It is given to an attention as ``bias=``; the gradient of that array is then the gradient
of the bias. As in a causal mask, query i stands at position i and key j at position j.

What is added is linear in the array :math:`\tau`, so its gradient is the transpose of that map, and its tangent the map
of the tangent:

.. math::

    B_{ij} = \sum_r Z_{ijr} \tau_r, \qquad
    \frac{\partial L}{\partial \tau_r} = \sum_i \sum_j Z_{ijr} \frac{\partial L}{\partial S_{ij}}

The derivation is ``derivations/biases.md`` of the package. For a bias of your own, derive from :class:`Bias`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_array, as_flag, as_integer, as_learned, check_broadcasts_to
from attention_np._lib.arrays import Array, added, is_finite, is_row_scale, sum_to, transposed
from attention_np._lib.dual import Dual, dual, multilinear, value_of, velocity_of, velocity_or_zero
from attention_np._lib.products import backward_product, backward_times
from attention_np._lib.rows import scattered
from attention_np._lib.text import shortened
from attention_np._lib.wide import is_wide
from attention_np.rules import pick

__all__ = ["Bias", "alibi", "alibi_slopes", "check", "forgetting", "products", "shaw", "t5", "table"]

Own = TypeVar("Own", bound="Bias")
WIDER = {"f": np.longdouble, "c": np.clongdouble}


class Operands(NamedTuple):
    """A block of scores: which it is, and what its products are of."""

    rows: slice
    columns: slice
    query: Array  # (..., b, d_k), scaled
    key: Array  # (..., c, d_k)
    scale: Any  # a number, or (..., b, 1)


class OfBlock(NamedTuple):
    """What a block contributes to the gradients of what its bias is made of; None of what it does not read."""

    array: Any  # that of the bias; a list for a list
    query: Array | None = None  # (..., b, d_k), of the scaled queries
    key: Array | None = None  # (..., c, d_k)
    scale: Array | None = None  # (..., b, 1)


@dataclass(frozen=True, eq=False)
class Bias:
    """A bias that is linear in one array. A subclass defines `check`, `at`, `within`, `block` and `backward`.

    It stands for that array where an array is expected: it has its `shape` and its `dtype`. One that reads more than
    the queries, or is linear in them, too, defines `term`, `gradients` and `with_tangent` in their place.
    """

    array: Array  # that it is linear in

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return self.array.dtype

    def with_array(self: Own, array: Array) -> Own:
        """The same of another array: a tangent, say."""
        return replace(self, array=array)

    def astype(self: Own, dtype: npt.DTypeLike, copy: bool = False) -> Own:
        """The same in another dtype."""
        return self.with_array(self.array.astype(dtype, copy=copy))

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        """Raise ValueError if it does not fit scores of this `shape`, of queries of `d_k` features."""
        raise NotImplementedError

    def at(self: Own, index: tuple[int, ...]) -> Own:
        """The bias at one place of the leading axes of the scores; its array is a view."""
        raise NotImplementedError

    def within(self: Own, rows: slice, columns: slice) -> Own:
        """The bias of these queries and keys alone, counted from the first of each."""
        raise NotImplementedError

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        """What is added to a block of scores, (..., b, c); `query` is that of the rows, scaled, (..., b, d_k)."""
        raise NotImplementedError

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        """What a block contributes to the gradient of the array."""
        raise NotImplementedError

    def term(self, operands: Operands) -> Array:
        """What is added to a block of scores, (..., b, c)."""
        return self.block(*operands[:3])

    def gradients(self, d_scores: Array, operands: Operands) -> OfBlock:
        """What a block contributes to the gradients, from that of its scores, (..., b, c)."""
        return OfBlock(self.backward(d_scores, *operands[:3]))

    def with_tangent(self, d_array: Array) -> Bias:
        """The same, whose blocks and gradients are dual numbers, as the array and what else is given may be."""
        return _WithTangent(self.array, self, d_array)


@dataclass(frozen=True, eq=False)
class _WithTangent(Bias):
    """A bias that is linear in its array alone, beside a tangent of that."""

    of: Bias
    d_array: Array

    def term(self, operands: Operands) -> Array:
        values = Operands(*map(value_of, operands))
        return dual(self.of.term(values), self.of.with_array(self.d_array).term(values))  # (biases.17)

    def gradients(self, d_scores: Array, operands: Operands) -> OfBlock:
        values = Operands(*map(value_of, operands))
        of_value, of_tangent = (self.of.gradients(part(d_scores), values) for part in (value_of, velocity_or_zero))
        return OfBlock(dual(of_value.array, of_tangent.array))  # (biases.30)


def terms_of(bias: Any) -> list[Any]:
    """The biases in a list; of one alone, that; of None, none."""
    return bias if isinstance(bias, list) else [] if bias is None else [bias]


def check(bias: Any, shape: tuple[int, ...], d_k: int) -> None:
    """Refuse a bias, array or object or a list of them, that does not fit scores of this `shape`."""
    for k, one in enumerate(terms_of(bias)):
        if isinstance(one, Bias):
            one.check(shape, d_k)
        else:
            check_broadcasts_to(f"bias[{k}]" if isinstance(bias, list) else "bias", one, shape)


def term(bias: Any, operands: Operands) -> Array | None:
    """What a bias, or a list of them, adds to a block of scores; broadcasts to (..., b, c)."""
    operands = _narrow(operands)
    terms = [x.term(operands) if isinstance(x, Bias) else x for x in terms_of(bias)]
    total = added(*terms)  # (..., b, c) (biases.12)
    if len(terms) > 1 and total is not None and not is_finite(total):  # minus infinity hides, whatever is beside it
        hidden = reduce(np.logical_or, [value_of(x).real == -np.inf for x in terms])
        total = np.where(hidden, -np.inf, total)
    return total


def gradients(bias: Any, d_scores: Array, operands: Operands) -> OfBlock:
    """What a block contributes to the gradients of a bias, or of each in a list, and of what these read."""
    if isinstance(bias, list):
        of_each = [gradients(one, d_scores, operands) for one in bias]  # (biases.15)
        arrays, *of_operands = zip(*of_each, strict=True) if of_each else ((), (), (), ())
        return OfBlock([x.copy() if x is d_scores else x for x in arrays], *(added(*x) for x in of_operands))
    if isinstance(bias, Bias):
        return bias.gradients(_narrowed(d_scores), _narrow(operands))
    return OfBlock(d_scores)


def with_tangent(bias: Any, d_bias: Any) -> Any:
    """A bias, or a list of them, as dual numbers; a tangent that is None is zero."""
    if isinstance(bias, list):
        return [with_tangent(x, d) for x, d in zip(bias, d_bias or [None] * len(bias), strict=True)]
    if bias is None or d_bias is None:
        return bias
    return bias.with_tangent(np.asarray(d_bias)) if isinstance(bias, Bias) else dual(bias, d_bias)


def tangent(bias: Any, d_bias: Any, operands: Operands) -> Array | None:
    """The tangent of what a bias, or a list of them, adds to a block, whose operands may be dual numbers."""
    if isinstance(bias, list):
        return added(*(tangent(x, d, operands) for x, d in zip(bias, d_bias or [None] * len(bias), strict=True)))
    if isinstance(bias, Bias):
        d_term: Array | None = velocity_of(with_tangent(bias, d_bias).term(_narrow(operands)))
        return d_term
    of_array: Array | None = d_bias
    return of_array


def _narrow(operands: Operands) -> Operands:
    return Operands(operands.rows, operands.columns, *map(_narrowed, operands[2:]))


def _narrowed(x: Any) -> Any:
    """Plain numbers in the place of those whose range has no end, of dual numbers in both parts."""
    if isinstance(x, Dual):
        return dual(np.asarray(x.value), np.asarray(x.velocity))
    return np.asarray(x) if is_wide(x) else x


@dataclass(frozen=True, eq=False)
class _Distances:
    """The differences of the positions of a query and a key."""

    offset: int = 0  # what the positions of the keys are counted from, less that of the queries

    def within(self, rows: slice, columns: slice) -> Any:
        """Those of these queries and keys alone."""
        return replace(self, offset=self.offset + columns.start - rows.start)

    def of(self, rows: slice, columns: slice) -> npt.NDArray[np.int64]:
        """Each j - i of a block once, in order."""
        return np.arange(columns.start - rows.stop + 1, columns.stop - rows.start) + self.offset


def _spread(values: Array, rows: slice, columns: slice) -> Array:
    """One of the `values` (..., n + m - 1) for each pair, by the difference of its positions: a view, (..., n, m)."""
    n, m = rows.stop - rows.start, columns.stop - columns.start
    if n == 0 or m == 0:
        return np.zeros((*values.shape[:-1], n, m), values.dtype)
    view: Array = np.lib.stride_tricks.sliding_window_view(values, m, axis=-1)[..., ::-1, :]  # (biases.2)
    return view


def _by_distance(x: Array) -> Array:
    """Each row of (..., n, m) put where the differences of its positions are, (..., n, n + m - 1); zero elsewhere.

    Row i of the result is one more place to the left than that before it. So the rows in reverse, each followed by n
    zeros, are read on in rows that are shorter by one.
    """
    *leading, n, m = x.shape
    if n == 0 or m == 0:
        return np.zeros((*leading, n, max(n + m - 1, 0)), x.dtype)  # as many as there are distances
    padded = np.zeros((*leading, n, n + m), x.dtype)
    padded[..., :m] = x[..., ::-1, :]
    shorter = padded.reshape(*leading, n * (n + m))[..., : n * (n + m - 1)].reshape(*leading, n, n + m - 1)
    return shorter[..., ::-1, :]


def _grouped(x: Array, index: npt.NDArray[np.int64], size: int) -> Array:
    """The sums of the entries (..., d) that have the same index below `size`, which are side by side."""
    total = np.zeros((*x.shape[:-1], size), x.dtype)
    if index.size:
        starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
        total[..., index[starts]] = np.add.reduceat(x, starts, axis=-1)
    return total


class _Lookup:
    """Which row of an array a pair of a query and a key has. A subclass defines `within`, `index` and `sums`."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError if it is not of scores of this `shape`."""

    def within(self, rows: slice, columns: slice) -> Any:
        """That of these queries and keys alone."""
        raise NotImplementedError

    def index(self, rows: slice, columns: slice) -> npt.NDArray[Any]:
        """The row of each pair of a block, (b, c)."""
        raise NotImplementedError

    def spread(self, values: Array, rows: slice, columns: slice) -> Array:
        """One of the `values` (..., r) for each pair, (..., b, c)."""
        return values[..., self.index(rows, columns)]

    def sums(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        """The sum of the entries (..., b, c) of each of `size` rows, (..., r): the transpose of :meth:`spread`."""
        raise NotImplementedError

    def sums_of_each(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        """The same for each query, (..., b, r): the transpose of :func:`_picked`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class _ByIndex(_Lookup):
    """The row that an array says."""

    array: npt.NDArray[Any]  # (n, m)

    @classmethod
    def of(cls, index: npt.ArrayLike, size: int) -> _ByIndex:
        """An index of a caller into `size` rows."""
        array = as_array("index", index, "integers")
        if array.dtype.kind not in "iu":
            raise TypeError(f"index must hold integers, not {array.dtype} (index.shape={array.shape})")
        if array.ndim != 2:
            raise ValueError(f"index must have two axes, (n, m) (index.shape={array.shape})")
        if array.size and not 0 <= array.min() <= array.max() < size:
            outside = array.min() if array.min() < 0 else array.max()
            raise ValueError(f"index must be of the rows 0 to {size - 1}, not {shortened(int(outside))}")
        return cls(array.astype(np.min_scalar_type(max(size - 1, 0))))  # of its own, and small: there are n m of it

    def check(self, shape: tuple[int, ...]) -> None:
        if self.array.shape != shape[-2:]:
            pairs = f"index must have an entry for each pair of a query and a key, {shape[-2:]}"
            raise ValueError(f"{pairs} (index.shape={self.array.shape})")

    def within(self, rows: slice, columns: slice) -> _ByIndex:
        return _ByIndex(self.array[rows, columns])

    def transposed(self) -> _ByIndex:
        """The row of each pair of a key and a query."""
        return _ByIndex(self.array.T)

    def index(self, rows: slice, columns: slice) -> npt.NDArray[Any]:
        return self.array[rows, columns]

    def sums(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        return scattered(x.reshape(*x.shape[:-2], -1, 1), self.index(rows, columns).ravel(), size)[..., 0]

    def sums_of_each(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        index = self.index(rows, columns)
        index = index + size * np.arange(len(index))[:, None]
        sums = scattered(x.reshape(*x.shape[:-2], -1, 1), index.ravel(), len(index) * size)
        return sums.reshape(*x.shape[:-1], size)


@dataclass(frozen=True, eq=False)
class _ByDistance(_Distances, _Lookup):
    """The row that the difference of the positions has. A subclass defines `rows_of`."""

    def rows_of(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The row for each key position less query position."""
        raise NotImplementedError

    def index(self, rows: slice, columns: slice) -> npt.NDArray[Any]:
        return _spread(self.rows_of(self.of(rows, columns)), rows, columns)

    def spread(self, values: Array, rows: slice, columns: slice) -> Array:
        return _spread(values[..., self.rows_of(self.of(rows, columns))], rows, columns)  # (biases.2)

    def sums(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        of_distances = _by_distance(x).sum(axis=-2)  # (..., d) (biases.18)
        return _grouped(of_distances, self.rows_of(self.of(rows, columns)), size)

    def sums_of_each(self, x: Array, rows: slice, columns: slice, size: int) -> Array:
        return _grouped(_by_distance(x), self.rows_of(self.of(rows, columns)), size)


@dataclass(frozen=True, eq=False)
class _Table(Bias):
    """A number for each pair, looked up."""

    lookup: _Lookup

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del d_k
        heads = self.shape[1:]
        if len(shape) - 2 < len(heads) or heads not in ((), (1,), shape[-3:-2]):
            raise ValueError(
                f"table must have a column for each head, the last of the leading axes of the scores, whose shape is "
                f"{shape} (table.shape={self.shape})"
            )
        self.lookup.check(shape)

    def at(self, index: tuple[int, ...]) -> _Table:
        return self if self.array.ndim == 1 else self.with_array(self.array[:, index[-1] if self.shape[1] > 1 else 0])

    def within(self, rows: slice, columns: slice) -> _Table:
        return replace(self, lookup=self.lookup.within(rows, columns))

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        del query
        return self.lookup.spread(self.array.T, rows, columns)  # (heads, b, c) (biases.4)

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        del query
        heads = self.shape[:0:-1]
        d_scores = sum_to(d_scores, (*heads, *d_scores.shape[-2:]))
        d_table: Array = self.lookup.sums(d_scores, rows, columns, len(self.array)).T  # (r, heads) (biases.16)
        return d_table


@dataclass(frozen=True, eq=False)
class _Products(Bias):
    """A product of each query, or each key, with a vector for each pair, looked up."""

    lookup: Any
    of: str = "query"

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        if self.shape[-1] != d_k:
            features = f"embedding has {self.shape[-1]} features but query has {d_k}"
            raise ValueError(f"{features} (embedding.shape={self.shape})")
        heads = self.shape[:-2]
        if len(shape) - 2 < len(heads) or heads not in ((), (1,), shape[-3:-2]):
            raise ValueError(
                f"embedding must have rows for each head, the last of the leading axes of the scores, whose shape is "
                f"{shape} (embedding.shape={self.shape})"
            )
        self.lookup.check(shape)

    def at(self, index: tuple[int, ...]) -> _Products:
        return self if self.array.ndim == 2 else self.with_array(self.array[index[-1] if self.shape[0] > 1 else 0])

    def within(self, rows: slice, columns: slice) -> _Products:
        return replace(self, lookup=self.lookup.within(rows, columns))

    def with_tangent(self, d_array: Array) -> Bias:
        return self.with_array(dual(self.array, d_array))  # (biases.23, biases.31, biases.32)

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        products = query @ transposed(self.array)  # (..., b, r) (biases.6)
        return _picked(products, self.lookup.index(rows, columns))  # (..., b, c) (biases.7)

    def term(self, operands: Operands) -> Array:
        rows, columns, query, key, scale = operands
        if self.of == "query":
            return self.block(rows, columns, query)
        products = key @ transposed(self.array)  # (..., c, r) (biases.8)
        picked = transposed(_picked(products, self.lookup.transposed().index(columns, rows)))
        term: Array = picked * scale  # (..., b, c) (biases.9)
        return term

    def gradients(self, d_scores: Array, operands: Operands) -> OfBlock:
        rows, columns, query, key, scale = operands
        if self.of == "query":
            d_products = _sums_of_each(d_scores, self.lookup, rows, columns, self.shape[-2])  # (..., b, r) (biases.20)
            d_array = backward_product(transposed(d_products), query)  # (..., r, d_k) (biases.21)
            d_query = backward_product(d_products, self.array)  # (..., b, d_k) (biases.22)
            return OfBlock(sum_to(d_array, self.shape), query=d_query)
        # forward was picked * scale, where products are of keys
        d_picked, lookup = transposed(backward_times(d_scores, scale)), self.lookup.transposed()  # (..., c, b)
        d_products = _sums_of_each(d_picked, lookup, columns, rows, self.shape[-2])  # (..., c, r) (biases.24)
        d_array = backward_product(transposed(d_products), key)  # (..., r, d_k) (biases.25)
        d_key, d_scale = backward_product(d_products, self.array), None  # (..., c, d_k) (biases.26)
        if is_row_scale(scale):
            picked = self.term(operands._replace(scale=1))
            d_scale = backward_times(d_scores, picked).sum(axis=-1, keepdims=True)  # (..., b, 1) (biases.27)
        return OfBlock(sum_to(d_array, self.shape), key=d_key, scale=d_scale)


def _picked(products: Array, index: npt.NDArray[Any]) -> Array:
    """Of the products of each row, (..., b, r), the one that the index (b, c) says: (..., b, c)."""
    picked: Array = products[..., np.arange(len(index))[:, None], index]
    return picked


@multilinear
def _sums_of_each(x: Array, lookup: _Lookup, rows: slice, columns: slice, size: int) -> Array:
    return lookup.sums_of_each(x, rows, columns, size)


@dataclass(frozen=True, eq=False)
class _Alibi(Bias):
    distances: _Distances = _Distances()

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del d_k
        check_broadcasts_to("slopes", self.array, shape[:-2], "the leading axes of the scores")

    def at(self, index: tuple[int, ...]) -> _Alibi:
        return self.with_array(pick(self.array[..., None], index, axes=1)[..., 0])

    def within(self, rows: slice, columns: slice) -> _Alibi:
        return replace(self, distances=self.distances.within(rows, columns))

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        del query
        slopes: Array = self.array[..., None]
        values = -slopes * np.abs(self.distances.of(rows, columns)).astype(self.dtype)  # (..., d) (biases.1)
        return _spread(values, rows, columns)

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        del query
        of_distances = _by_distance(d_scores).sum(axis=-2)  # (..., d) (biases.18)
        sizes = np.abs(self.distances.of(rows, columns)).astype(of_distances.dtype)
        return sum_to(-(of_distances * sizes).sum(axis=-1), self.shape)  # (biases.19)


def alibi(slopes: npt.ArrayLike) -> Bias:
    r"""Attention with linear biases: what is farther away is less in proportion to the distance.

    Parameters
    ----------
    slopes : array_like of float, (...)
        Broadcasts to the leading axes of the scores: one for each head. Usually :func:`alibi_slopes`.

    Returns
    -------
    Bias
        :math:`-m_h |i - j|`, for ``bias=``.

    Raises
    ------
    TypeError
        If `slopes` is not of floating-point numbers.

    Notes
    -----
    As in Press et al. [1]_, whose slopes are not learned. With a causal mask, BLOOM's :math:`m_h j` gives the same
    weights: what is common to a row drops out.

    References
    ----------
    .. [1] O. Press, N. A. Smith, M. Lewis, "Train short, test long: attention with linear biases enables input length
       extrapolation", ICLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> query, key, value = np.zeros((2, 1, 3)), np.zeros((2, 3, 3)), np.eye(3)
    >>> output, cache = dot_product.forward(query, key, value, bias=biases.alibi(np.array([0.0, 1.0])))
    >>> print(output.round(3)[:, 0])
    [[0.333 0.333 0.333]
     [0.665 0.245 0.09 ]]
    >>> print(dot_product.backward(np.array([[1.0, 0.0, 0.0]])[None].repeat(2, axis=0), cache).bias.round(3))
    [0.333 0.283]
    """
    return _Alibi(as_learned("slopes", slopes))


def alibi_slopes(num_heads: int) -> Array:
    """The slopes of ALiBi's authors: a geometric series that ends at 2**-8.

    Parameters
    ----------
    num_heads : int
        Where it is no power of two, the slopes are those of the next smaller one, and of twice as many every second.

    Returns
    -------
    ndarray of float64, (num_heads,)

    Raises
    ------
    TypeError, ValueError
        If `num_heads` is not an integer of at least 1.

    Examples
    --------
    >>> print(alibi_slopes(4))
    [0.25       0.0625     0.015625   0.00390625]
    >>> print(alibi_slopes(3))
    [0.0625     0.00390625 0.25      ]
    """
    heads = as_integer("num_heads", num_heads, least=1)
    power = 2 ** (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    halfway = 2.0 ** (-4 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([slopes, halfway])[:heads]


def table(table: npt.ArrayLike, index: npt.ArrayLike) -> Bias:
    """A learned number for each pair, looked up by an index, as Swin and BEiT have it for places in an image.

    Parameters
    ----------
    table : array_like of float, (r, heads)
        Or (r,), if all heads have the same; heads are the last of the leading axes of the scores. Minus infinity hides
        a pair as a mask does.
    index : array_like of int, (n, m)
        The row of the table for query i and key j. It is copied.

    Returns
    -------
    Bias
        For ``bias=``: ``table[index[i, j], head]``.

    Raises
    ------
    TypeError
        If `table` is not of floating-point numbers, or `index` not of integers.
    ValueError
        If the table has not one or two axes, or the index not two; if an entry of it is no row of the table, which one
        below zero is not.

    Notes
    -----
    As in the windows of Liu et al. [1]_, whose rows are the differences of two places in both directions. The gradient
    of a row is the sum of the gradients of all scores that it is added to.

    References
    ----------
    .. [1] Z. Liu et al., "Swin transformer: hierarchical vision transformer using shifted windows", ICCV 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> x, value = np.zeros((2, 1)), np.array([[4.0], [0.0]])
    >>> ahead = biases.table(np.array([0.0, np.log(3)]), [[0, 1], [0, 0]])
    >>> output, cache = dot_product.forward(x, x, value, bias=ahead)
    >>> print(cache.weights.round(2))
    [[0.25 0.75]
     [0.5  0.5 ]]
    >>> print(dot_product.backward(np.array([[1.0], [0.0]]), cache).bias)
    [ 0.75 -0.75]
    """
    array = as_learned("table", table)
    if array.ndim not in (1, 2):
        raise ValueError(f"table must have one or two axes, (r, heads) (table.shape={array.shape})")
    return _Table(array, _ByIndex.of(index, len(array)))


@dataclass(frozen=True, eq=False)
class _Buckets(_ByDistance):
    """T5's."""

    size: int = 32
    bidirectional: bool = True
    max_distance: int = 128

    def rows_of(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        size, behind = self.size, -distances
        first = np.zeros_like(distances)
        if self.bidirectional:
            size //= 2
            first, behind = np.where(distances > 0, size, 0), np.abs(distances)
        behind = np.maximum(behind, 0)
        exact = size // 2
        # The first distance of each of the buckets that widen in a geometric series, in integers: so that no logarithm
        # decides by its rounding on which side of a border a distance is.
        ends = [exact * (self.max_distance / exact) ** (k / (size - exact)) for k in range(1, size - exact)]
        firsts = np.ceil(np.array(ends) * (1 - 2**-40))
        return first + np.where(behind < exact, behind, exact + np.searchsorted(firsts, behind, side="right"))


def t5(table: npt.ArrayLike, *, bidirectional: bool = True, max_distance: int = 128) -> Bias:
    """T5's bias: a learned number for each bucket of distances, which are wider the farther away they are.

    Parameters
    ----------
    table : array_like of float, (num_buckets, heads)
        Or (num_buckets,), if the scores have no axis for heads.
    bidirectional : bool, optional
        Half of the buckets are for keys behind the query; without, all of these are in the bucket of distance zero.
    max_distance : int, optional
        From which on all is one bucket.

    Returns
    -------
    Bias
        For ``bias=``: ``table[bucket(j - i), head]``.

    Raises
    ------
    TypeError
        If an argument is not of its type.
    ValueError
        If the table has not one or two axes, too few buckets, or more than there are distances.

    Notes
    -----
    The buckets of Raffel et al. [1]_: the first half of them for one distance each, the others up to `max_distance` in
    a geometric series.

    References
    ----------
    .. [1] C. Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text transformer",
       JMLR 21, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> far = biases.t5(np.arange(8.0), bidirectional=False, max_distance=16)
    >>> _, cache = dot_product.forward(np.zeros((12, 1)), np.zeros((1, 1)), np.zeros((1, 1)), bias=far)
    >>> print(cache.scores[:, 0])  # of the key at position zero, for each query
    [0. 1. 2. 3. 4. 4. 5. 5. 6. 6. 6. 6.]
    """
    array = as_learned("table", table)
    bidirectional, max_distance = as_flag("bidirectional", bidirectional), as_integer("max_distance", max_distance)
    if array.ndim not in (1, 2):
        raise ValueError(f"table must have one or two axes, (num_buckets, heads) (table.shape={array.shape})")
    least = 4 if bidirectional else 2
    if len(array) < least:
        raise ValueError(f"table must have at least {least} buckets (table.shape={array.shape})")
    exact = len(array) // least
    if max_distance <= exact:
        raise ValueError(f"max_distance must be above {exact}, the distances with a bucket each, not {max_distance}")
    return _Table(array, _Buckets(size=len(array), bidirectional=bidirectional, max_distance=max_distance))


def products(embedding: npt.ArrayLike, index: npt.ArrayLike, *, of: str = "query") -> Bias:
    """The product of each query, or each key, with a learned vector for the pair, looked up by an index.

    Parameters
    ----------
    embedding : array_like of float, (r, d_k)
        Or (heads, r, d_k), with vectors for each head, the last of the leading axes of the scores.
    index : array_like of int, (n, m)
        The row of the embedding for query i and key j. It is copied.
    of : {"query", "key"}, optional
        Whose products they are.

    Returns
    -------
    Bias
        For ``bias=``: ``scale * query[i] . embedding[index[i, j]]``, or with ``key[j]`` in place of ``query[i]``.

    Raises
    ------
    TypeError
        If `embedding` is not of floating-point numbers, or `index` not of integers.
    ValueError
        If the embedding has not two or three axes, or the index not two; if an entry of it is no row of the embedding,
        which one below zero is not; if `of` is neither of the two.

    Notes
    -----
    DeBERTa [1]_ has both in a list, and a scale of ``1 / sqrt(3 d_k)``. It comes after a softcap. A gradient flows to
    the queries, or the keys, too, and to a scale that is an array.

    References
    ----------
    .. [1] P. He, X. Liu, J. Gao, W. Chen, "DeBERTa: decoding-enhanced BERT with disentangled attention", ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> query, key = np.ones((2, 1)), np.array([[0.0], [3.0]])
    >>> vectors, index = np.array([[1.0], [2.0]]), [[0, 1], [1, 0]]
    >>> both = [biases.products(vectors, index), biases.products(vectors, index, of="key")]
    >>> _, cache = dot_product.forward(query, key, key, bias=both, scale=1.0)
    >>> print(cache.scores)  # query . key + query . vector + key . vector
    [[ 1. 11.]
     [ 2.  7.]]
    """
    array = as_learned("embedding", embedding)
    if array.ndim not in (2, 3):
        raise ValueError(f"embedding must have two or three axes, (heads, r, d_k) (embedding.shape={array.shape})")
    if not isinstance(of, str) or of not in ("query", "key"):
        raise ValueError(f'of must be "query" or "key", not {shortened(of)}')
    return _Products(array, _ByIndex.of(index, array.shape[-2]), of)


@dataclass(frozen=True, eq=False)
class _Clipped(_ByDistance):
    """A row for each distance within a window, of which the last is for all beyond."""

    window: int = 0

    def rows_of(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.clip(distances, -self.window, self.window) + self.window


def shaw(embedding: npt.ArrayLike) -> Bias:
    """Shaw's relative positions: each query is compared with a learned vector for the distance, too.

    Parameters
    ----------
    embedding : array_like of float, (2 w + 1, d_k)
        A row for each distance j - i from -w to w, shared by all heads; what is farther away has the last row.

    Returns
    -------
    Bias
        For ``bias=``: ``scale * query[i] . embedding[clip(j - i, -w, w) + w]``.

    Raises
    ------
    TypeError
        If `embedding` is not of floating-point numbers.
    ValueError
        If it is no matrix of an odd number of rows.

    Notes
    -----
    The term of the keys in Shaw et al. [1]_; theirs of the values is no bias. It comes after a softcap.

    References
    ----------
    .. [1] P. Shaw, J. Uszkoreit, A. Vaswani, "Self-attention with relative position representations", NAACL 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> query, key = np.ones((3, 1)), np.zeros((3, 1))
    >>> _, cache = dot_product.forward(query, key, key, bias=biases.shaw(np.array([[-1.0], [0.0], [2.0]])))
    >>> print(cache.scores)
    [[ 0.  2.  2.]
     [-1.  0.  2.]
     [-1. -1.  0.]]
    """
    array = as_learned("embedding", embedding)
    if array.ndim != 2 or len(array) % 2 == 0:
        raise ValueError(f"embedding must have the shape (2 w + 1, d_k) (embedding.shape={array.shape})")
    return _Products(array, _Clipped(window=len(array) // 2))


@dataclass(frozen=True, eq=False)
class _Forgetting(Bias):
    query_start: int = 0
    key_start: int = 0

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del d_k
        *leading, n, m = shape
        count = max(self.query_start + n, self.key_start + m)
        check_broadcasts_to("log_f", self.array, (*leading, count), "the leading axes of the scores and positions")
        if self.shape[-1] != count:
            raise ValueError(f"log_f must have a number for each of {count} positions (log_f.shape={self.shape})")

    def at(self, index: tuple[int, ...]) -> _Forgetting:
        return self.with_array(pick(self.array, index, axes=1))

    def within(self, rows: slice, columns: slice) -> _Forgetting:
        return replace(self, query_start=self.query_start + rows.start, key_start=self.key_start + columns.start)

    def _places(self, rows: slice, columns: slice) -> tuple[slice, slice]:
        return (
            slice(rows.start + self.query_start, rows.stop + self.query_start),
            slice(columns.start + self.key_start, columns.stop + self.key_start),
        )

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        del query
        queries, keys = self._places(rows, columns)
        # What is rounded off a long sum would be off each of its differences, so a second number keeps it.
        extended = np.cumsum(self.array, axis=-1, dtype=WIDER[self.dtype.kind])  # (..., L) (biases.10)
        sums = extended.astype(self.dtype)
        rest = (extended - sums).astype(self.dtype)
        one, other = (x[..., queries, None] - x[..., None, keys] for x in (sums, rest))
        differences: Array = one + other  # (..., b, c) (biases.11)
        return differences

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        del query
        queries, keys = self._places(rows, columns)
        d_sums = np.zeros((*d_scores.shape[:-2], self.shape[-1]), d_scores.dtype)
        d_sums[..., queries] += d_scores.sum(axis=-1)  # (biases.28)
        d_sums[..., keys] -= d_scores.sum(axis=-2)  # (biases.28)
        return sum_to(d_sums[..., ::-1].cumsum(axis=-1)[..., ::-1], self.shape)  # (biases.29)


def forgetting(log_f: npt.ArrayLike) -> Bias:
    r"""Forgetting gates: between a key and a later query lies the product of the gates on the way.

    Parameters
    ----------
    log_f : array_like of float, (..., n)
        The logarithms of the gates at all positions: finite, and usually below zero. The leading axes broadcast to
        those of the scores.

    Returns
    -------
    Bias
        :math:`c_i - c_j` with :math:`c_i = \sum_{k \le i} \log f_k`, for ``bias=``. For keys behind the query it is
        above zero: meant for a causal mask.

    Raises
    ------
    TypeError
        If `log_f` is not of floating-point numbers.
    ValueError
        If it has no axis.

    Notes
    -----
    The forgetting transformer of Lin et al. [1]_.

    References
    ----------
    .. [1] Z. Lin, E. Nikishin, X. O. He, A. Courville, "Forgetting transformer: softmax attention with a forget gate",
       ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import biases, dot_product
    >>> gates, x = np.array([1.0, 0.5, 0.5]), np.zeros((3, 1))
    >>> _, cache = dot_product.forward(x, x, x, bias=biases.forgetting(np.log(gates)), is_causal=True)
    >>> print(cache.weights.round(4))
    [[1.     0.     0.    ]
     [0.3333 0.6667 0.    ]
     [0.1429 0.2857 0.5714]]
    """
    array = as_learned("log_f", log_f)
    if not array.ndim:
        raise ValueError("log_f must have at least one axis, (..., n) (log_f.shape=())")
    return _Forgetting(array)
