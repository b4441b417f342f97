r"""What attention costs: operations, bytes moved and peak memory of the plain and of the blockwise algorithm.

The operations of the matrix products, a multiplication and an addition counting as two, are for each head

.. math::

    2 n m (d_k + d_v) \text{ forward}, \qquad
    4 n m (d_k + d_v) \text{ backward}, \qquad
    2 n m (3 d_k + 2 d_v) \text{ backward, blockwise},

since the blockwise algorithm computes the scores again: ``derivations/dot_product.md`` and
``derivations/blockwise.md``, "What it costs". What else the plain algorithm does and moves is counted as it runs
(``attention_np/_lib/counting.py``). In the blockwise algorithm a block of scores stays in the cache; what moves is
counted as in [1]_.

What grows with the number of pairs of a query and a key is counted in full. Of what grows with the number of positions,
arrays are counted and operations are not.

References
----------
.. [1] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact attention with
   IO-awareness", NeurIPS 2022.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import blockwise as blockwise_op
from attention_np import dot_product as op
from attention_np import masks
from attention_np._blockwise.columns import COUNTERS, number_of_parts
from attention_np._blockwise.problem import (
    BLOCK,
    BLOCK_OF_A_RULE,
    MOST_PAIRS,
    PAIRS_TO_A_POSITION,
    as_block_size,
)
from attention_np._blockwise.whole import fit
from attention_np._lib.arguments import as_flag, as_integer
from attention_np._lib.arrays import is_floating, precision
from attention_np._lib.counting import Tally

__all__ = ["Cost", "Costs", "Sizes", "blockwise", "chain", "dot_product", "longest"]

TILE = 2048  # the most positions that a task of the blockwise algorithm works on
TOGETHER = 2**18  # the pairs of several heads that are taken together where heads are small
FORWARD_TILES, BACKWARD_TILES = 4, 12  # what a worker holds, in arrays as large as the keys and values of a tile
PLACE = 600  # bytes of the objects that say where a tile is
SAMPLE = (5, 7)  # the queries and keys on which calls are counted
SAMPLE_PAIRS = 5 * 7
SAMPLE_D_V = 1000  # d_k is 1 there, and the operations for each pair say how many products are over either


@dataclass(frozen=True)
class Sizes:
    """The sizes of a problem.

    Parameters
    ----------
    n : int
        The number of queries.
    m : int, optional
        The number of keys, by default as many as queries.
    d_k, d_v : int, optional
        The features of queries and keys, 64 by default, and of values, by default `d_k`.
    heads, batch : int, optional
        How many such problems there are: only their product matters.
    dtype : dtype, optional
        Of the arrays, float32 by default. Half precision is computed in single.
    is_causal : bool, optional
        Query i attends to the keys ``j <= i`` only.
    dropout : bool, optional
        Whether weights are dropped.

    Raises
    ------
    TypeError
        If a size is not an integer, a flag neither True nor False, or `dtype` not one of real floating-point numbers.
    ValueError
        If a size is negative.
    """

    n: int
    m: int | None = None
    d_k: int = 64
    d_v: int | None = None
    heads: int = 1
    batch: int = 1
    dtype: npt.DTypeLike = np.float32
    is_causal: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not a size."""
        for name in ("n", "m", "d_k", "d_v", "heads", "batch"):
            if getattr(self, name) is not None:
                as_integer(name, getattr(self, name), least=0)
        for name in ("is_causal", "dropout"):
            as_flag(name, getattr(self, name))
        dtype = np.dtype(self.dtype)
        if not is_floating(dtype) or dtype.kind == "c":
            raise TypeError(f"dtype must be one of real floating-point numbers, not {dtype}")


class _Counts(NamedTuple):
    """How many numbers there are in each array, of all heads together, and how long they are."""

    n: int
    m: int
    d_k: int
    d_v: int
    heads: int  # of the whole batch
    itemsize: int  # in bytes, of the numbers computed with
    stored: int  # of those that go in and out

    @classmethod
    def of(cls, sizes: Sizes) -> _Counts:
        if not isinstance(sizes, Sizes):
            raise TypeError(f"sizes must be a Sizes, not {type(sizes).__name__}")
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


class Cost(NamedTuple):
    """What one pass costs.

    Attributes
    ----------
    product_flops : int
        Operations of the matrix products.
    other_flops : int
        All others: exponentials, sums, differences and so on, one for each number that they are computed from or make.
    bytes_moved : int
        What is read from memory and written to it.
    peak_bytes : int
        The most memory in use at once, without query, key, value and the incoming gradient. That of the forward pass
        includes the output and the cache; that of the backward pass these, which are still there, and the gradients.
    """

    product_flops: int
    other_flops: int
    bytes_moved: int
    peak_bytes: int

    @property
    def flops(self) -> int:
        """All operations."""
        return self.product_flops + self.other_flops


class Costs(NamedTuple):
    """What a forward and a backward pass cost.

    Attributes
    ----------
    forward, backward : Cost
        Each pass by itself.
    input_bytes : int
        Query, key and value.
    output_bytes : int
        The output; the incoming gradient of the backward pass has the same size.
    """

    forward: Cost
    backward: Cost
    input_bytes: int
    output_bytes: int

    @property
    def forward_memory(self) -> int:
        """What a forward pass takes in all, its inputs included."""
        return self.input_bytes + self.forward.peak_bytes

    @property
    def memory(self) -> int:
        """What a forward and a backward pass take in all, inputs and incoming gradient included."""
        return max(self.forward_memory, self.input_bytes + self.output_bytes + self.backward.peak_bytes)


def dot_product(sizes: Sizes) -> Costs:
    r"""What :mod:`attention_np.dot_product` costs, which holds the scores of all pairs.

    Parameters
    ----------
    sizes : Sizes
        With `is_causal` the pairs that are hidden are computed all the same, and there is a mask to hold.

    Returns
    -------
    Costs

    Notes
    -----
    With :math:`N` bytes in an array of all scores, the peak is :math:`3 N` forward (scores, scores less their maximum,
    exponentials) and :math:`5 N` backward; :math:`2 N` are kept in between, scores and weights. A mask adds :math:`N`
    forward, dropout about :math:`N` forward and :math:`3 N` backward.

    Backward takes :math:`N` less where no weight is above a half.
    NumPy writes a result into an operand that nobody else holds. Where it cannot tell (before Python 3.14 on other
    systems than Linux), the backward pass takes :math:`N` more.

    Examples
    --------
    >>> from attention_np import cost
    >>> costs = cost.dot_product(cost.Sizes(n=4096, heads=32))
    >>> costs.forward.product_flops == 2 * 32 * 4096 * 4096 * (64 + 64)
    True
    >>> print(f"{costs.memory / 2**30:.1f} GiB")
    10.3 GiB
    """
    c = _Counts.of(sizes)
    mask = c.n * c.m if sizes.is_causal else 0  # one byte a pair, and one mask for all heads
    copies = c.converted * c.inputs  # they stay as long as the pass lasts
    scores = c.pairs * c.itemsize
    forward, backward = _counted(c, sizes.is_causal, sizes.dropout)
    if sizes.dropout:  # 32 random bits, from which it is seen whether the weight is dropped, from which the multiplier
        forward = forward._replace(
            other_flops=forward.other_flops + c.pairs,
            bytes_moved=forward.bytes_moved + (4 + 4 + 1 + 1 + c.itemsize) * c.pairs,
        )
    forward = forward._replace(
        bytes_moved=forward.bytes_moved + c.itemsize * (c.inputs + c.outputs),
        peak_bytes=(3 + sizes.is_causal + sizes.dropout) * scores
        + mask
        + copies
        + (c.stored + c.converted) * c.outputs,
    )
    backward = backward._replace(
        bytes_moved=backward.bytes_moved + c.itemsize * 2 * (c.inputs + c.outputs),
        peak_bytes=(5 + 3 * sizes.dropout) * scores
        + mask
        + copies
        + c.stored * c.outputs
        + c.itemsize * (c.inputs + c.outputs),
    )
    return Costs(forward, backward, c.stored * c.inputs, c.stored * c.outputs)


def _counted(c: _Counts, is_causal: bool, dropout: bool) -> list[Cost]:
    """What grows with the pairs in a forward and a backward pass: counted where the op runs on a few, and scaled."""
    rows = []
    for product_flops, other_flops, bytes_moved in _of_a_sample(c.itemsize, is_causal, dropout):
        of_v, of_k = divmod(product_flops, SAMPLE_PAIRS * SAMPLE_D_V)  # d_k is 1
        rows.append(
            Cost(
                c.pairs * (of_k // SAMPLE_PAIRS * c.d_k + of_v * c.d_v),  # twice (dot-product.75, dot-product.76)
                c.pairs * other_flops // SAMPLE_PAIRS,
                c.pairs * bytes_moved // SAMPLE_PAIRS,
                0,
            )
        )
    return rows


@lru_cache
def _of_a_sample(itemsize: int, is_causal: bool, dropout: bool) -> list[tuple[int, int, int]]:
    n, m = SAMPLE
    tally = Tally({(n, m), (m, n), (n * m,)})
    shapes = {"query": (n, 1), "key": (m, 1), "value": (m, SAMPLE_D_V), "d_output": (n, SAMPLE_D_V)}
    rng = np.random.default_rng(0)  # numbers in general position: of zeros and equal numbers less may be done
    arrays = {name: tally.count(rng.standard_normal(shape).astype(f"f{itemsize}")) for name, shape in shapes.items()}
    d_output = arrays.pop("d_output")
    draws = np.ones((n, m), f"f{itemsize}") if dropout else None
    mask = masks.causal(n, m) if is_causal else None
    scale = np.full((), 8, f"f{itemsize}")  # so that some weight is above a half: else backward does less
    _, cache = op.attend(**arrays, bias=None, sink=None, mask=mask, scale=scale, softcap=None, dropout=draws)
    forward = tally.taken()
    op.backward(d_output, cache)
    return [forward, tally.taken()]


def blockwise(sizes: Sizes, *, block_size: int | tuple[int, int] | None = None, workers: int = 1) -> Costs:
    r"""What :mod:`attention_np.blockwise` costs, which holds a block of scores for each worker.

    Parameters
    ----------
    sizes : Sizes
        With `is_causal` the blocks that are hidden as a whole are left out.
    block_size : int or (int, int), optional
        How many queries, and how many keys, are looked at together; by default as
        :func:`attention_np.blockwise.forward` chooses.
    workers : int, optional
        How many threads there are.

    Returns
    -------
    Costs

    Raises
    ------
    TypeError, ValueError
        If `block_size` or `workers` is not made of integers, or of such that are less than one.

    Notes
    -----
    Keys and values pass through the cache once for each block of :math:`b` queries, backward with their gradients, and
    everything else once. For :math:`P` pairs in the blocks that are computed these are :math:`P (d_k + d_v) / b`
    numbers forward and three times as many backward.

    Besides what goes in and out, only a copy of the output, the log-sum-exp and the two numbers that it is made of are
    kept, :math:`n (d_v + 3)` numbers a head. What a worker holds beside them is an upper bound, from blocks and tiles
    of the usual size. What NumPy and Python allocate has its peak at 20% to 100% of the one given here where queries
    and keys are about as many, and at less where either are few.

    Small heads, which are done as a whole, cost what :func:`dot_product` does, and backward their scores once more.
    Where their queries or keys are a few, what does not grow with the pairs may be more than the peak given here.

    The operations are those of scores whose exponentials are in range. Where they may not be, the running maximum and
    the scale add four for each pair forward, and two backward.

    Examples
    --------
    >>> from attention_np import cost
    >>> sizes = cost.Sizes(n=4096, heads=32)
    >>> costs = cost.blockwise(sizes)
    >>> costs.backward.product_flops == 2 * 32 * 4096 * 4096 * (3 * 64 + 2 * 64)
    True
    >>> costs.memory < cost.dot_product(sizes).memory / 30
    True
    """
    c = _Counts.of(sizes)
    workers = as_integer("workers", workers, least=1)
    if (
        block_size is None
        and not sizes.dropout
        and not c.converted
        and fit(c.n, c.m, c.d_k + c.d_v, c.heads, c.itemsize)
    ):
        return _whole(c, dot_product(sizes))
    rows, columns = as_block_size(block_size) or (BLOCK_OF_A_RULE if sizes.is_causal else BLOCK)
    rows = max(1, min(rows, c.n))
    pairs = c.heads * (_causal_pairs(c.n, c.m, rows) if sizes.is_causal else c.n * c.m)
    passes = -(-pairs // rows)  # how often a key passes through the cache, summed over keys
    width = c.d_k + c.d_v

    at_once = rows * min(columns, max(c.m, 1))  # pairs
    if c.n * c.m < 2 * TOGETHER:
        at_once = max(at_once, min(c.pairs, TOGETHER))
    block = c.itemsize * at_once
    tile = c.itemsize * _positions_of_a_task(c) * (width + 2 * COUNTERS)
    of_queries = c.itemsize * 3 * c.heads * c.n + PLACE * c.heads * -(-c.n // TILE)  # their numbers, and the places
    drops = int(sizes.dropout)
    at_work = c.itemsize * c.outputs + workers * (block * (1 + 3 * drops) + FORWARD_TILES * tile)
    kept = (c.stored + c.itemsize) * c.outputs + of_queries  # the output, and its copy, which is made at the end
    spare = workers * (block + 2 * c.itemsize * rows * (c.d_v + 2 * COUNTERS))  # for the next call

    forward = Cost(
        2 * pairs * width,  # twice (blockwise.47)
        (1 + (3 if drops else 2 * COUNTERS)) * pairs,  # exponential, and columns to sum by; or sum, draw, multiplier
        c.itemsize * (passes * width + c.queries + 2 * c.outputs),
        max(of_queries + at_work, kept + spare) + c.converted * c.outputs,
    )
    gradients = c.itemsize * c.inputs
    subtracting = number_of_parts(c.d_v) if c.m > columns else 1
    residual = 0 if c.m > columns else 3
    backward = Cost(
        2 * pairs * (3 * c.d_k + 2 * c.d_v),  # twice (blockwise.47)
        (2 + (4 if drops else 2 * subtracting) + residual) * pairs,  # exponential, times the weights; columns, or draws
        c.itemsize * (3 * passes * width + 2 * c.queries + 2 * c.outputs),
        kept
        + gradients
        + c.converted * c.outputs  # the incoming gradient
        + workers * (block * (2 + 3 * drops) + BACKWARD_TILES * tile),
    )
    return Costs(forward, backward, c.stored * c.inputs, c.stored * c.outputs)


def _whole(c: _Counts, plain: Costs) -> Costs:
    """The same of small heads, which are done as a whole: backward makes the scores and their weights again."""
    forward, backward, kept = plain.forward, plain.backward, c.itemsize * (c.outputs + 3 * c.heads * c.n)
    again = Cost(
        backward.product_flops + forward.product_flops - 2 * c.pairs * c.d_v,  # without the output
        backward.other_flops + forward.other_flops,
        backward.bytes_moved + forward.bytes_moved,
        backward.peak_bytes + kept,
    )
    return plain._replace(forward=forward._replace(peak_bytes=forward.peak_bytes + kept), backward=again)


def _positions_of_a_task(c: _Counts) -> int:
    """The queries or the keys, whichever are more, of the tiles that a worker is given at once."""
    rows, columns = max(1, min(c.n, TILE)), max(1, min(c.m, TILE))
    weight = rows * columns + PAIRS_TO_A_POSITION * (rows + columns)
    tiles = -(-MOST_PAIRS // weight)
    return min(c.heads * max(c.n, c.m), tiles * max(rows, columns))


def _causal_pairs(n: int, m: int, rows: int) -> int:
    """The pairs of all blocks of `rows` queries, each with the keys up to its last query."""
    whole = min(n, m) // rows  # blocks of queries that end before the keys do
    after = n - whole * rows
    next_rows = min(rows, after)
    before_end = rows * rows * whole * (whole + 1) // 2  # (blockwise.50)
    return before_end + next_rows * min(m, whole * rows + next_rows) + (after - next_rows) * m


def chain(layer: Callable[..., Any], inputs: Mapping[str, npt.ArrayLike]) -> Costs:
    """What a layer of ops costs, counted as it runs on these inputs.

    Parameters
    ----------
    layer : callable
        As for :func:`attention_np.chain.forward`, with one output.
    inputs : mapping of str to array_like of float
        Arrays of the shapes whose cost is wanted.

    Returns
    -------
    Costs
        The peak is what NumPy has allocated at once beside the inputs.

    Raises
    ------
    ValueError
        If the layer returns a tuple, or applies :mod:`attention_np.blockwise`, whose arrays are never there as a whole:
        :func:`blockwise` tells its cost.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import cost
    >>> costs = cost.chain(lambda x, w: x @ w, {"x": np.ones((5, 3)), "w": np.ones((3, 4))})
    >>> costs.forward.product_flops, costs.backward.product_flops
    (120, 240)
    """
    from attention_np import chain as chains

    tally = Tally()
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    output, cache = chains.forward(layer, {name: tally.count(x) for name, x in arrays.items()})
    forward = tally.taken()
    if cache.is_tuple:
        raise ValueError("a layer that is counted has one output, not a tuple of them")
    for step in cache.steps:
        if step.op is blockwise_op:
            raise ValueError(f"step {step.number} is blockwise, whose cost depends on its blocks: see cost.blockwise")
    chains.backward(tally.count(np.ones_like(np.asarray(output))), cache)
    peaks = _peaks(chains, layer, arrays)
    backward = Cost(*tally.taken(), peaks[1])
    return Costs(Cost(*forward, peaks[0]), backward, sum(x.nbytes for x in arrays.values()), output.nbytes)


def _peaks(chains: Any, layer: Callable[..., Any], arrays: Mapping[str, npt.NDArray[Any]]) -> list[int]:
    """The most bytes that were allocated at once, forward and backward."""
    tracemalloc.start()
    try:
        output, cache = chains.forward(layer, arrays)
        peaks = [tracemalloc.get_traced_memory()[1]]
        d_output = np.ones_like(output)
        tracemalloc.reset_peak()
        chains.backward(d_output, cache)
        return [*peaks, tracemalloc.get_traced_memory()[1] - d_output.nbytes]
    finally:
        tracemalloc.stop()


def longest(algorithm: Callable[[Sizes], Costs], memory: float, sizes: Sizes, *, backward: bool = True) -> int:
    """The largest `n` for which an algorithm fits in memory.

    Parameters
    ----------
    algorithm : callable
        :func:`dot_product` or :func:`blockwise`.
    memory : int or float
        In bytes: finite, and not negative.
    sizes : Sizes
        All sizes but `n`; `m` is `n` if it is None.
    backward : bool, optional
        Whether there is a backward pass as well.

    Returns
    -------
    int
        Zero if nothing fits.

    Raises
    ------
    TypeError
        If `memory` is not a number.
    ValueError
        If `memory` is negative, infinite or NaN; if any `n` fits, as where there are no heads.

    Examples
    --------
    >>> from attention_np import cost
    >>> cost.longest(cost.dot_product, 2**34, cost.Sizes(n=1, heads=32))
    5123
    """
    if isinstance(memory, bool) or not isinstance(memory, Real):
        raise TypeError(f"memory must be a number of bytes, not {type(memory).__name__}")
    if not 0 <= memory < np.inf:
        raise ValueError(f"memory must be a finite number of bytes, at least 0, not {memory}")

    def fits(n: int) -> bool:
        costs = algorithm(replace(sizes, n=n))
        return (costs.memory if backward else costs.forward_memory) <= memory

    least, most = 0, 1
    while fits(most):
        if most > memory:  # what grows takes a byte at least for each query
            raise ValueError(
                f"there is no longest n, as any fits in {memory} bytes (batch={sizes.batch}, heads={sizes.heads}, "
                f"m={sizes.m}, d_k={sizes.d_k}, d_v={sizes.d_v})"
            )
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
