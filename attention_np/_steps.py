"""The NumPy calls of dot_product on arrays of one number a pair, in order: what :mod:`attention_np.cost` adds up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attention_np._lib.arrays import precision

if TYPE_CHECKING:
    from attention_np.cost import Sizes

__all__ = ["Counts", "Step", "backward", "forward"]


class Counts(NamedTuple):
    """How many numbers there are in each array, of all heads together, and how long they are."""

    n: int
    m: int
    d_k: int
    d_v: int
    heads: int  # of the whole batch
    itemsize: int  # in bytes, of the numbers computed with
    stored: int  # of those that go in and out

    @classmethod
    def of(cls, sizes: Sizes) -> Counts:
        n, d_k = sizes.n, sizes.d_k
        m = n if sizes.m is None else sizes.m
        d_v = d_k if sizes.d_v is None else sizes.d_v
        dtype = precision(np.empty(0, sizes.dtype))
        return cls(n, m, d_k, d_v, sizes.heads * sizes.batch, dtype.compute.itemsize, dtype.result.itemsize)

    @property
    def pairs(self) -> int:
        return self.heads * self.n * self.m

    @property
    def queries(self) -> int:
        return self.heads * self.n * self.d_k

    @property
    def outputs(self) -> int:
        return self.heads * self.n * self.d_v

    @property
    def inputs(self) -> int:
        return self.queries + self.heads * self.m * (self.d_k + self.d_v)

    @property
    def converted(self) -> int:
        """The bytes of each number of a copy to compute with; 0 where none is needed."""
        return self.itemsize if self.itemsize != self.stored else 0


class Step(NamedTuple):
    """A NumPy call, in arrays of one number for each pair of a query and a key."""

    flops: int  # for each pair
    reads: float
    writes: float
    held: float  # such arrays that are there while it runs, those it writes included
    is_product: bool = False


def forward(c: Counts, sizes: Sizes) -> Iterator[Step]:
    """The steps of :func:`attention_np.dot_product.forward`."""
    flag = 1 / c.itemsize  # an array of booleans
    masked, dropped = int(sizes.is_causal), int(sizes.dropout)
    if sizes.dropout:
        draws = 4 / c.itemsize  # 32 bits each
        yield Step(0, 0, draws, draws)
        yield Step(1, draws, flag, draws + flag)  # which of them drop a weight?
        yield Step(0, flag, 1, draws + flag + 1)  # the multipliers, which stay
    yield Step(2 * c.d_k, 0, 1, dropped + 1, is_product=True)  # query @ key^T
    yield Step(1, 1, 1, dropped + 1)  # * scale, in place
    yield Step(1, 1, 0, dropped + 1)  # are they finite? the sum of their squares
    held = dropped + masked
    if sizes.is_causal:
        yield Step(0, 1 + flag, 1, held + 1)  # the scores, minus infinity where a pair is hidden
    yield Step(1, 1, 0, held + 1)  # the maximum
    yield Step(1, 1, 1, held + 2)  # less the maximum
    yield Step(1, 1, 1, held + 3)  # the exponentials
    yield Step(1, 1, 0, held + 2)  # their sum
    yield Step(1, 1, 1, held + 3)  # the weights
    if sizes.dropout:
        yield Step(1, 2, 1, 4)  # the weights that are left
    yield Step(2 * c.d_v, 1, 0, 2, is_product=True)  # weights @ value


def backward(c: Counts, sizes: Sizes) -> Iterator[Step]:
    """The steps of :func:`attention_np.dot_product.backward`."""
    flag = 1 / c.itemsize
    cached = 2  # scores and weights
    if sizes.dropout:
        cached = 4  # also the multipliers, and the weights that are left
        yield Step(1, 2, 1, cached)
    yield Step(2 * c.d_v, 1, 0, cached, is_product=True)  # d_value
    yield Step(2 * c.d_v, 0, 1, cached + 1, is_product=True)  # d_output @ value^T
    if sizes.is_causal:
        yield Step(0, 1 + flag, 1, cached + 2)  # zero where a pair is hidden
    held = cached + 1
    if sizes.dropout:
        held += 1
        yield Step(1, 2, 1, held)  # times the multipliers
    yield Step(1, 1, 0, held)  # where is the largest weight?
    yield Step(1, 1, 1, held + 1)  # d_weights less what is there
    yield Step(1, 2, 1, held + 2)  # times the weights
    yield Step(1, 1, 0, held + 2)  # their sum
    yield Step(1, 1, 1, held + 2)  # less the sum
    yield Step(1, 2, 1, held + 2)  # times the weights, in place
    yield Step(1, 1, 0, held + 1)  # are they finite?
    yield Step(2 * c.d_k, 1, 0, held + 1, is_product=True)  # d_query
    yield Step(2 * c.d_k, 1, 0, held + 1, is_product=True)  # d_key
    yield Step(1, 1, 0, held + 1)  # has anything left the range?
