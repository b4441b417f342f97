r"""What is added to the scores by position: ALiBi, T5's table, Shaw's embeddings, forgetting gates.

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
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from attention_np._lib.arguments import as_flag, as_integer, as_learned, check_broadcasts_to
from attention_np._lib.arrays import Array, added, sum_to
from attention_np._lib.dual import moving, value_of, velocity_of, velocity_or_zero
from attention_np._lib.products import backward_product
from attention_np.rules import pick

__all__ = ["Bias", "alibi", "alibi_slopes", "check", "forgetting", "shaw", "t5"]

Own = TypeVar("Own", bound="Bias")
WIDER = {"f": np.longdouble, "c": np.clongdouble}


@dataclass(frozen=True, eq=False)
class Bias:
    """A bias that is made of one array. A subclass defines `check`, `at`, `within`, `block` and `backward`.

    It stands for that array where an array is expected: it has its `shape` and its `dtype`.
    """

    array: Array  # that it is linear in

    reads_query = False  # whether it is linear in the queries, too, and defines `query_backward`

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

    def query_backward(self, d_scores: Array, rows: slice, columns: slice) -> Array:
        """What a block contributes to the gradient of the scaled queries, (..., b, d_k)."""
        raise NotImplementedError

    def gradients(
        self, d_scores: Array, rows: slice, columns: slice, query: Array, scale: Any
    ) -> tuple[Array, Array | None]:
        """What a block contributes to the gradients of the array and, if it reads them, of the queries."""
        d_array = self.backward(d_scores, rows, columns, query * scale if self.reads_query else query)
        return d_array, self.query_backward(d_scores, rows, columns) * scale if self.reads_query else None

    def moving(self, d_array: Array) -> Bias:
        """The same, whose array moves with this velocity, for queries and gradients of scores that move."""
        return _Moving(self.array, self, d_array)

    def pushed(self, d_array: Any, rows: slice, columns: slice, query: Array, d_query: Any, scale: Any) -> Array | None:
        """How a block moves along tangents of the array and of the queries, of which None is zero."""
        moved = None
        if d_array is not None:
            moved = self.with_array(np.asarray(d_array)).block(rows, columns, query * scale)  # (biases.4)
        if self.reads_query and d_query is not None:
            moved = added(moved, self.block(rows, columns, np.asarray(d_query) * scale))  # (biases.17)
        return moved

    def pushed_gradients(
        self,
        rows: slice,
        columns: slice,
        d_scores: Array,
        moved_d_scores: Array,
        query: Array,
        along_query: Any,
        along_array: Any,
        scale: Any,
    ) -> tuple[Array, Array | None]:
        """How :meth:`gradients` moves with `d_scores`, and with the queries and the array along tangents."""
        d_array, d_query = self.gradients(moved_d_scores, rows, columns, query, scale)  # (biases.26)
        if self.reads_query:  # each of the two is a factor in the gradient of the other
            d_array = d_array + self.backward(d_scores, rows, columns, np.asarray(along_query) * scale)  # (biases.27)
            along = self.with_array(np.asarray(along_array))
            d_query = added(d_query, along.query_backward(d_scores, rows, columns) * scale)  # (biases.28)
        return d_array, d_query


@dataclass(frozen=True, eq=False)
class _Moving(Bias):
    """A bias whose blocks and gradients are dual numbers."""

    of: Bias
    d_array: Array

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        value, d_query = value_of(query), velocity_of(query)
        moved = self.of.pushed(self.d_array, rows, columns, value, d_query, 1)
        return moving(self.of.block(rows, columns, value), moved)

    def gradients(
        self, d_scores: Array, rows: slice, columns: slice, query: Array, scale: Any
    ) -> tuple[Array, Array | None]:
        value, d_value = np.asarray(value_of(d_scores)), np.asarray(velocity_or_zero(d_scores))
        along = value_of(query), velocity_or_zero(query), self.d_array, scale
        found = self.of.gradients(value, rows, columns, along[0], scale)
        moved = self.of.pushed_gradients(rows, columns, value, d_value, *along)
        return moving(found[0], moved[0]), None if found[1] is None else moving(found[1], moved[1])


def check(bias: Array | Bias | None, shape: tuple[int, ...], d_k: int) -> None:
    """Refuse a bias, array or object, that does not fit scores of this `shape`."""
    if isinstance(bias, Bias):
        bias.check(shape, d_k)
    elif bias is not None:
        check_broadcasts_to("bias", bias, shape)


@dataclass(frozen=True, eq=False)
class _Relative(Bias):
    """A bias that depends on the difference of the positions alone."""

    moved: int = 0  # what the positions of the keys are counted from, less that of the queries

    def within(self: Own, rows: slice, columns: slice) -> Own:
        return replace(self, moved=self.moved + columns.start - rows.start)  # type: ignore[call-arg,attr-defined]

    def distances(self, rows: slice, columns: slice) -> npt.NDArray[np.int64]:
        """Each j - i of a block once, in order."""
        return np.arange(columns.start - rows.stop + 1, columns.stop - rows.start) + self.moved

    def values(self, distances: npt.NDArray[np.int64]) -> Array:
        """What is added at each distance, (..., d)."""
        raise NotImplementedError

    def values_backward(self, d_values: Array, distances: npt.NDArray[np.int64]) -> Array:
        """The gradient of the array from that of :meth:`values`, (..., d)."""
        raise NotImplementedError

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        del query
        return _spread(self.values(self.distances(rows, columns)), rows, columns)  # (biases.6)

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        del query
        d_values = _by_distance(d_scores).sum(axis=-2)  # (..., d) (biases.7)
        return self.values_backward(d_values, self.distances(rows, columns))


def _spread(values: Array, rows: slice, columns: slice) -> Array:
    """One of the `values` (..., n + m - 1) for each pair, by the difference of its positions: a view, (..., n, m)."""
    n, m = rows.stop - rows.start, columns.stop - columns.start
    if n == 0 or m == 0:
        return np.zeros((*values.shape[:-1], n, m), values.dtype)
    view: Array = np.lib.stride_tricks.sliding_window_view(values, m, axis=-1)[..., ::-1, :]
    return view


def _by_distance(x: Array) -> Array:
    """Each row of (..., n, m) moved to where the differences of its positions are, (..., n, n + m - 1); zero elsewhere.

    Row i of the result is one more place to the left than that before it. So the rows in reverse, each followed by n
    zeros, are read on in rows that are shorter by one.
    """
    *leading, n, m = x.shape
    if n == 0 or m == 0:
        return np.zeros((*leading, n, max(n + m - 1, 0)), x.dtype)  # as many as `distances` has
    padded = np.zeros((*leading, n, n + m), x.dtype)
    padded[..., :m] = x[..., ::-1, :]
    moved = padded.reshape(*leading, n * (n + m))[..., : n * (n + m - 1)].reshape(*leading, n, n + m - 1)
    return moved[..., ::-1, :]


def _grouped(x: Array, index: npt.NDArray[np.int64], size: int) -> Array:
    """The sums of the entries (..., d) that have the same index below `size`, which are side by side."""
    total = np.zeros((*x.shape[:-1], size), x.dtype)
    if index.size:
        starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
        total[..., index[starts]] = np.add.reduceat(x, starts, axis=-1)
    return total


class _Alibi(_Relative):
    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del d_k
        check_broadcasts_to("slopes", self.array, shape[:-2], "the leading axes of the scores")

    def at(self, index: tuple[int, ...]) -> _Alibi:
        return self.with_array(pick(self.array[..., None], index, axes=1)[..., 0])

    def values(self, distances: npt.NDArray[np.int64]) -> Array:
        slopes: Array = self.array[..., None]
        values: Array = -slopes * np.abs(distances).astype(self.dtype)  # (biases.5)
        return values

    def values_backward(self, d_values: Array, distances: npt.NDArray[np.int64]) -> Array:
        d_slopes = -(d_values * np.abs(distances).astype(d_values.dtype)).sum(axis=-1)  # (biases.8)
        return sum_to(d_slopes, self.shape)


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
    between = 2.0 ** (-4 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([slopes, between])[:heads]


@dataclass(frozen=True, eq=False)
class _T5(_Relative):
    bidirectional: bool = True
    max_distance: int = 128

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del d_k
        heads = self.shape[1:]
        if len(shape) - 2 < len(heads) or heads not in ((), (1,), shape[-3:-2]):
            raise ValueError(
                f"table must have a column for each head, the last of the leading axes of the scores, whose shape is "
                f"{shape} (table.shape={self.shape})"
            )

    def at(self, index: tuple[int, ...]) -> _T5:
        return self if self.array.ndim == 1 else self.with_array(self.array[:, index[-1] if self.shape[1] > 1 else 0])

    def buckets(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The row of the table for each key position less query position."""
        size, behind = len(self.array), -distances
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

    def values(self, distances: npt.NDArray[np.int64]) -> Array:
        values: Array = self.array[self.buckets(distances)].T  # (heads, d) (biases.9)
        return values

    def values_backward(self, d_values: Array, distances: npt.NDArray[np.int64]) -> Array:
        grouped = _grouped(d_values, self.buckets(distances), len(self.array))  # (..., buckets) (biases.10)
        d_table: Array = sum_to(grouped, self.shape[::-1]).T
        return d_table


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
    return _T5(array, bidirectional=bidirectional, max_distance=max_distance)


class _Shaw(_Relative):
    reads_query = True

    @property
    def window(self) -> int:
        """The largest distance that has a row of its own."""
        return len(self.array) // 2

    def check(self, shape: tuple[int, ...], d_k: int) -> None:
        del shape
        if self.shape[1] != d_k:
            features = f"embedding has {self.shape[1]} features but query has {d_k}"
            raise ValueError(f"{features} (embedding.shape={self.shape})")

    def at(self, index: tuple[int, ...]) -> _Shaw:
        del index
        return self

    def rows_of(self, rows: slice, columns: slice) -> npt.NDArray[np.int64]:
        """The row of the embedding for each distance of a block."""
        return np.clip(self.distances(rows, columns), -self.window, self.window) + self.window

    def block(self, rows: slice, columns: slice, query: Array) -> Array:
        products = np.asarray(query @ self.array.T)  # (..., b, 2 w + 1) (biases.12)
        index = _spread(self.rows_of(rows, columns), rows, columns)  # (b, c)
        picked: Array = products[..., np.arange(len(index))[:, None], index]  # (..., b, c) (biases.13)
        return picked

    def _d_products(self, d_scores: Array, rows: slice, columns: slice) -> Array:
        return _grouped(_by_distance(d_scores), self.rows_of(rows, columns), len(self.array))  # (biases.14)

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        d_products = self._d_products(d_scores, rows, columns)  # (..., b, 2 w + 1)
        return sum_to(backward_product(d_products.swapaxes(-1, -2), query), self.shape)  # (biases.15)

    def query_backward(self, d_scores: Array, rows: slice, columns: slice) -> Array:
        return backward_product(self._d_products(d_scores, rows, columns), self.array)  # (..., b, d_k) (biases.16)


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
    return _Shaw(array)


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
        wide = np.cumsum(self.array, axis=-1, dtype=WIDER[self.dtype.kind])  # (..., L) (biases.18)
        sums = wide.astype(self.dtype)
        rest = (wide - sums).astype(self.dtype)
        one, other = (x[..., queries, None] - x[..., None, keys] for x in (sums, rest))
        differences: Array = one + other  # (..., b, c) (biases.19)
        return differences

    def backward(self, d_scores: Array, rows: slice, columns: slice, query: Array) -> Array:
        del query
        queries, keys = self._places(rows, columns)
        d_sums = np.zeros((*d_scores.shape[:-2], self.shape[-1]), d_scores.dtype)
        d_sums[..., queries] += d_scores.sum(axis=-1)  # (biases.20)
        d_sums[..., keys] -= d_scores.sum(axis=-2)  # (biases.20)
        return sum_to(d_sums[..., ::-1].cumsum(axis=-1)[..., ::-1], self.shape)  # (biases.21)


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
