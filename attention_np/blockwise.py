r"""Scaled dot-product attention in linear memory and in parallel: the numbers of :mod:`attention_np.dot_product`.

The n x m scores are never there at once. A query goes through the keys block by block and keeps three things: the
largest score so far, the sum of the exponentials, and the output so far, each rescaled when a larger score comes
(the online softmax). What is kept for the backward pass is the output and the log-sum-exp :math:`\ell_i` of each query,
from which any block of weights can be computed again (by the two numbers that it is made of, which are exact):

.. math::

    A_{ij} = e^{S_{ij} - \ell_i}, \qquad
    \delta_i = \sum_b \frac{\partial L}{\partial O_{ib}} O_{ib}, \qquad
    \frac{\partial L}{\partial S_{ij}} = A_{ij} \left(\frac{\partial L}{\partial A_{ij}} - \delta_i\right)

The derivation is ``derivations/blockwise.md`` of the package. Its kernels are in ``attention_np/_blockwise``; masks
that are never whole in memory are in :mod:`attention_np.rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_np import biases, rules, weightings
from attention_np._blockwise import kernels, plain, tiles, whole
from attention_np._blockwise.merging import Partial, merge, merge_backward
from attention_np._blockwise.problem import Place, Problem, as_block_size
from attention_np._blockwise.results import Results
from attention_np._blockwise.tiles import Cotangent, Tile
from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_attended,
    as_flag,
    as_mask,
    as_row_scale,
    as_scale,
    as_sink,
    as_softcap,
    check_broadcasts_to,
    check_features,
    scores_shape,
)
from attention_np._lib.arrays import Array, in_dtype, precision, sum_to
from attention_np._lib.dropout import Rng, as_probability, draw_key
from attention_np._lib.passes import Tangent
from attention_np._lib.products import backward_times
from attention_np._lib.wide import is_wide, widened
from attention_np._lib.workers import as_workers
from attention_np.biases import Bias
from attention_np.dot_product import Gradients
from attention_np.rules import Rule
from attention_np.weightings import Weighting

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Cache", "Gradients", "Partial", "backward", "double_backward", "forward", "jvp", "merge", "merge_backward"]

VECTORIZED = ("query", "key", "value", "bias")  # may carry any leading axes: for gradcheck
OP = passes.Op(queries="query", added=("bias", "sink"), in_parts=True)


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_k)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    bias: Array | None  # broadcasts to (..., n, m); or a Bias; or a list of them
    sink: Array | None  # broadcasts to the leading axes of the scores
    scale: Any  # broadcasts to (..., n, 1); or a real scalar of the precision computed in
    mask: Rule | None  # who attends to whom, all rules together; None: all to all
    softcap: Any  # the same, or None
    weights_by: Weighting | None  # None: softmax
    logsumexp: Array  # (..., n), with the sink; infinite if it does not fit the dtype; NaN for minus infinity, or none
    shift: Array  # (..., n), taken before the exponential: from products that are only scaled, else from scores
    total: Array  # (..., n), the sum of the exponentials after that; NaN where only the log-sum-exp is known
    output: Array  # (..., n, d_v), in the precision computed in; a copy
    dropout_p: float
    dropout_key: int | None  # what the draws depend on
    block_size: tuple[int, int] | None
    output_shape: tuple[int, ...]


def forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | Rule | None = None,
    bias: npt.ArrayLike | Bias | Sequence[npt.ArrayLike | Bias] | None = None,
    scale: npt.ArrayLike | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
    softcap: float | None = None,
    sink: npt.ArrayLike | None = None,
    weights_by: Weighting | None = None,
    block_size: int | tuple[int, int] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> tuple[Array, Cache]:
    r"""Attention of n queries over m keys and their values.

    Parameters
    ----------
    query : array_like of float, (..., n, d_k)
        Or (d_k,): a single query. The leading axes of all arrays broadcast together. An array may be a
        ``numpy.memmap``: only the parts that are worked on are read.
    key : array_like of float, (..., m, d_k)
    value : array_like of float, (..., m, d_v)
    mask : array_like of bool or Rule, optional
        True where query i may attend to key j; broadcasts to the scores, (..., n, m). Or one of
        :mod:`attention_np.rules`, which is asked block by block, and whose empty blocks cost nothing.
    bias : array_like of float or Bias, or list of them, optional
        Added to the scores; broadcasts to them. Or one of :mod:`attention_np.biases`, which is made block by block. A
        list is a list of biases, which add.
    scale : float or array_like of float, optional
        What the products of queries and keys are multiplied by, by default ``1 / sqrt(d_k)``. With at least one axis it
        broadcasts to (..., n, 1), a number for each query, and is an input with a gradient.
    is_causal : bool, optional
        Query i attends to keys ``j <= i`` only: ``rules.causal()``, together with `mask`.
    dropout_p : float, optional
        The probability, in [0, 1), with which a weight is dropped; the others are divided by ``1 - dropout_p``.
    rng : int or numpy.random.Generator, optional
        A seed, or a generator from which one integer is drawn; needed for dropout. Draws are those of
        :func:`attention_np.dot_product.forward`.
    softcap, sink
        As for :func:`attention_np.dot_product.forward`. Of results that are to be merged, one has the sink.
    weights_by : Weighting, optional
        ``weightings.sigmoid()`` or ``weightings.silu()``, in place of softmax. There is no log-sum-exp then, and what
        comes of parts of the keys is added up, not merged. A block takes two to five times as long as one of softmax
        forward, and one to two and a half times backward: these functions are more work than an exponential.
    block_size : int or (int, int), optional
        How many queries, and how many keys, are looked at together. By default as many as fit the cache of a core.
    executor : concurrent.futures.Executor, optional
        What runs the tasks: of threads, of processes, or of a cluster (``dask.distributed.Client.get_executor()``).
        Arrays travel to other processes in parts, those of a file mapped into memory by its name, under which the
        workers must find the same file. A few rows of each part are compared.
    workers : int, optional
        How many threads to use, by default one for each core; one if threadpoolctl is not installed, since threads
        that call a BLAS with threads of its own are slower than that BLAS alone. With an `executor`, how many tasks
        it is thought to run at once. Tasks are heads and blocks of queries, of at least 512; for a few queries over
        very many keys, give each worker some of the keys and :func:`merge` what comes of them.

    Returns
    -------
    output : ndarray, (..., n, d_v)
        Or (..., d_v) for a single query. Zero for a query that may attend to nothing.
    cache : Cache
        With the log-sum-exp of each query, and without the weights.

    Raises
    ------
    TypeError, ValueError
        As :func:`attention_np.dot_product.forward`; and if `block_size`, `executor` or `workers` cannot be used.
    OSError
        If a worker of `executor` does not find the file of a mapped array under its name, or finds another.

    Notes
    -----
    The online softmax is that of [1]_, the two passes those of [2]_. Output and gradients agree with
    :mod:`attention_np.dot_product` to rounding, relative to the largest terms of their sums: where one key has nearly
    all the weight of a query, :mod:`attention_np.dot_product` is the more accurate in gradients that are nearly zero.
    The gradients are of scores that are computed, and rounded, once more: their weights differ from those of the output
    by the last digit of the scores, which is 1e-3 where double precision has scores of 1e13.
    Scores that do not fit the dtype, in double precision those beyond 1e308, have the weights that they say, too.
    Queries whose log-sum-exp does not give their weights back (since it is infinite, NaN, or so large that its rounding
    counts) are differentiated over all their keys at once: in linear memory, but not in blocks.

    With threadpoolctl (``pip install 'attention-np[fast]'``), every BLAS of the process is held to one thread until the
    call returns, since the tasks are what runs in parallel; so products elsewhere in the process run on one thread
    meanwhile. When the last of several calls returns, or fails, the number of threads is what it was. Results have the
    same bits then, whatever the workers and, but for small heads, the executor. Inside a ``threadpool_limits`` of
    yours, that limit stays as it is.

    The memory of blocks, 16 MiB for each core at most, is kept for the next call.

    A few small heads, as 16 of 128 queries and keys in single precision, are done as a whole in the way of
    :mod:`attention_np.dot_product`, in the thread that asks and with the threads of BLAS, which mostly takes half the
    time or less. Sizes and options decide it: not with dropout, a `block_size` or an `executor`, which may give other
    last bits there. Where no two of n, m, d_k and d_v multiply to more than 4096, blocks are done in that thread, too.

    References
    ----------
    .. [1] M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, 2018.
    .. [2] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact attention with
       IO-awareness", NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> query = np.array([[1.0, 0.0]])
    >>> key = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> value = np.array([[10.0], [20.0]])
    >>> output, cache = blockwise.forward(query, key, value)
    >>> print(output.round(4), cache.logsumexp.round(4))
    [[11.9557]] [1.6318]
    """
    query, key, value, bias = as_attended(query, key, value, bias)
    shape = scores_shape(query, key, value)
    check_features(query, key)
    sink, of_rows = as_sink(sink, shape, query, key, value), as_row_scale(scale, shape)
    if weights_by is not None:
        _check_weighting(weights_by, sink)
    dropout_p = as_probability(dropout_p, rng)
    compute = precision(query, key, value, *biases.terms_of(bias), sink, of_rows).compute
    softcap = as_softcap(softcap, compute)
    rule = _rule(shape, mask, is_causal)
    biases.check(bias, shape, key.shape[-1])
    return attend(
        query=query,
        key=key,
        value=value,
        bias=bias,
        sink=sink,
        scale=as_scale(scale, key.shape[-1], compute) if of_rows is None else of_rows,
        mask=rule,
        softcap=softcap,
        weights_by=weights_by,
        dropout_p=dropout_p,
        block_size=as_block_size(block_size),
        executor=executor,
        workers=as_workers(executor, workers),
        dropout_key=draw_key(rng) if dropout_p else None,
    )


@passes.forward
def attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    sink: Array | None,
    scale: Any,
    executor: Executor | None,
    workers: int,
    **options: Any,
) -> tuple[Array, Cache]:
    """What :func:`forward` computes, of arguments that it has checked; `options` are those of :class:`Problem`."""
    inputs = Gradients(query, key, value, bias, sink, scale)
    dtype = precision(query, key, value, *biases.terms_of(bias), sink, scale).compute
    problem = Problem(**inputs._asdict(), **options, dtype=dtype)
    attended = whole.attend(problem) if executor is None and whole.are_small(problem) else None
    if attended is None:
        results = Results(problem, kernels.Attended._fields, executor, workers)
        if sink is not None:  # a query that attends to no key has the sink alone
            results["logsumexp"][...], results["total"][...] = sink[..., None], np.nan
        else:
            results["logsumexp"][...] = -np.inf
        results.put(kernels.attend, problem.strips(), problem.tile)
        attended = kernels.Attended(*results.in_order())
    cache = Cache(
        *inputs,
        **options,
        logsumexp=attended.logsumexp,
        shift=attended.shift,
        total=attended.total,
        output=attended.output.copy(),  # what callers do to theirs must not change the gradients
        output_shape=attended.output.shape,
    )
    return attended.output, cache


@passes.backward
def backward(
    d_output: Tangent,
    cache: Cache,
    *,
    d_logsumexp: Tangent = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> tuple[Gradients, passes.Intermediates]:
    r"""The gradient of a loss with respect to every array of :func:`forward`.

    From that of the output and, if `d_logsumexp` is given, of the log-sum-exp too, of the shape that the cache has it
    in: what :func:`merge_backward` gives. `executor` and `workers` are as for :func:`forward`.

    Notes
    -----
    The weights are computed again, block by block, from the log-sum-exp; then

    .. math::

        \frac{\partial L}{\partial S_{ij}} = A_{ij} \left(\frac{\partial L}{\partial A_{ij}} - \delta_i +
        \frac{\partial L}{\partial \ell_i}\right), \qquad
        \delta_i = \sum_b \frac{\partial L}{\partial O_{ib}} O_{ib}

    and a sink, which has no value, gets :math:`\partial L / \partial \ell_i - \delta_i` times its share of each row.

    What is worked out from an output or from products below the normal numbers of the dtype loses digits, too.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> query = np.array([[1.0, 0.0]])
    >>> key = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> value = np.array([[10.0], [20.0]])
    >>> output, cache = blockwise.forward(query, key, value)
    >>> print(blockwise.backward(np.array([[1.0]]), cache).query.round(4))
    [[-2.2249  2.2249]]
    """
    problem = Problem.of(cache, _dtype(cache.output, d_output, d_logsumexp))
    workers = as_workers(executor, workers)
    if executor is None and d_logsumexp is None and not is_wide(d_output) and whole.are_small(problem):
        differentiated = whole.differentiate(problem, d_output)
        if differentiated is not None:
            return differentiated
    kept = _cotangent(cache, d_output, d_logsumexp, problem.dtype)
    gradients = Results(problem, Gradients._fields, executor, workers, is_wide=is_wide(d_output))
    apart = None  # rows, (..., n), that blocks do not do for
    if cache.weights_by is None:
        apart = plain.without_logsumexp(cache.logsumexp, cache.output)
    if is_wide(d_output):
        apart = np.ones(cache.output.shape[:-1], np.bool_)
    if cache.sink is not None:
        d_sink = _sink_gradient(cache, cache.sink, kept, apart)
        gradients["sink"] = widened(d_sink) if is_wide(d_output) else d_sink

    def operands(place: Place, without: Array | None) -> tuple[Tile, Cotangent]:
        return problem.tile(place), problem.cotangent(place, kept, without)

    if apart is None or not apart.all():
        gradients.add(kernels.differentiate, problem.squares(), lambda place: operands(place, apart))  # (blockwise.16)
    if apart is not None:
        strips, others = [x for x in problem.strips() if apart[x.at][x.rows].any()], ~apart
        gradients.add(plain.differentiate_whole_rows, strips, lambda place: operands(place, others))
    return Gradients(*gradients.in_order()), ()


def _sink_gradient(cache: Cache, sink: Array, kept: Cotangent, apart: Array | None) -> Array:
    """The gradient of the sink at each place of the leading axes of the scores; of rows `apart`, from `d_logsumexp`."""
    known = ~np.isnan(cache.total)
    share = np.exp(sink[..., None] - np.where(known, cache.shift, cache.logsumexp))
    share = np.where(known, share / cache.total, share)  # (..., n) (blockwise.39)
    share = np.where(cache.logsumexp.real == np.inf, 0, share)
    delta = backward_times(cache.output, kept.d_output).sum(axis=-1)  # (..., n) (blockwise.10)
    delta = sum_to(delta if apart is None else np.where(apart, 0, delta), share.shape)
    d_sinks = -delta if kept.d_logsumexp is None else kept.d_logsumexp - delta
    total: Array = backward_times(d_sinks, share).sum(axis=-1, keepdims=True)[..., 0]  # (blockwise.41)
    return total


@passes.jvp
def jvp(
    cache: Cache,
    *,
    query: Tangent = None,
    key: Tangent = None,
    value: Tangent = None,
    bias: Tangent = None,
    sink: Tangent = None,
    scale: Tangent = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> tuple[dict[str, Array], tuple[()]]:
    r"""Forward mode: the tangents of the output, and of the log-sum-exp if `outputs` has it, from those of the inputs.

    `executor` and `workers` are as for :func:`forward`.

    Notes
    -----
    A few queries at a time, as :func:`attention_np.dot_product.jvp` does it: in linear memory, without the kernels.
    What is left out costs nothing, and adds nothing: along `value` alone the scores do not move, and a NaN that the
    tangent zero of a query would meet is not met. What is worked out from products below the normal numbers of the
    dtype loses digits, too.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> output, cache = blockwise.forward(np.ones((1, 2)), np.ones((3, 2)), np.ones((3, 1)))
    >>> print(blockwise.jvp(cache, value=np.array([[3.0], [0.0], [0.0]])))
    [[1.]]
    """
    tangents = Gradients(query, key, value, bias, sink, scale)
    problem = Problem.of(cache, cache.output.dtype)
    names, dtype = ("output", "logsumexp"), _dtype(cache.output, *tangents)
    results = Results(problem, names, executor, workers, dtype=dtype)
    if any(x is not None for x in tangents):
        results.put(plain.jvp, problem.strips(), lambda place: (problem.tile(place), problem.tangent(place, tangents)))
    return results, ()


@passes.double_backward
def double_backward(
    d_gradients: Gradients,
    d_output: Tangent,
    cache: Cache,
    *,
    d_logsumexp: Tangent = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> tuple[tuple[Array, Gradients], tuple[()]]:
    """The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and by every array of `forward`.

    Of :func:`backward` with the same `d_logsumexp`. `executor` and `workers` are as for :func:`forward`.

    Notes
    -----
    In blocks, from what `forward` kept of each query, twice over the keys: in linear memory, and without the blocks
    that a rule hides. Where that does not do (see :func:`forward`), a few queries at a time over all their keys.
    Where a product of some of the arrays leaves the range of the dtype, the result is worked out again, as in
    :mod:`attention_np.dot_product`.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import blockwise
    >>> output, cache = blockwise.forward(np.ones((1, 1)), np.zeros((2, 1)), np.array([[1.0], [3.0]]))
    >>> along = blockwise.Gradients(query=None, key=np.array([[1.0], [0.0]]), value=None, bias=None, sink=None)
    >>> d_d_output, gradients = blockwise.double_backward(along, np.ones((1, 1)), cache)
    >>> print(d_d_output, gradients.query, gradients.value.ravel())
    [[-0.5]] [[-0.5]] [ 0.25 -0.25]
    """
    problem = Problem.of(cache, _dtype(cache.output, d_output, d_logsumexp, *d_gradients))
    kept = _cotangent(cache, d_output, d_logsumexp, problem.dtype)
    names = ("output", *Gradients._fields)
    results = Results(problem, names, executor, workers, is_wide=is_wide(d_output))

    def operands(place: Place) -> tuple[Tile, Cotangent, tiles.Tangent]:
        return problem.tile(place), problem.cotangent(place, kept), problem.tangent(place, d_gradients)

    results.add(kernels.differentiate_twice, problem.strips(), operands)
    d_d_output, *gradients = results.in_order()
    return (d_d_output, Gradients(*gradients)), ()


def _check_weighting(weights_by: Any, sink: Array | None) -> None:
    weightings.check(weights_by, sink)
    if not weights_by.is_of_each:
        raise ValueError(
            f"blockwise has the weights_by that look at each score alone, sigmoid() and silu(), not {weights_by}: "
            "dot_product has all of them"
        )


def _rule(shape: tuple[int, ...], mask: npt.ArrayLike | Rule | None, is_causal: bool) -> Rule | None:
    """All that says who attends to whom, for scores of the given `shape`."""
    rule = None
    if isinstance(mask, Rule):
        mask.check(*shape[-2:])
        check_broadcasts_to("mask", np.broadcast_to(np.False_, (*mask.leading, 1, 1)), shape)
        rule = mask
    elif mask is not None:
        rule = rules.whole(as_mask(mask, shape))
    if as_flag("is_causal", is_causal):
        rule = rules.causal() if rule is None else rules.causal() & rule
    return rule


def _dtype(*arrays: Array | None) -> np.dtype[Any]:
    """The common dtype of `arrays`."""
    return np.result_type(*(x.dtype for part in arrays for x in biases.terms_of(part) if x is not None))


def _cotangent(cache: Cache, d_output: Array, d_logsumexp: Array | None, dtype: np.dtype[Any]) -> Cotangent:
    """The gradients of the results of forward, and what forward kept of each query, in this dtype."""
    if d_logsumexp is not None and cache.weights_by is not None:
        raise ValueError(f"there is no log-sum-exp of weights_by={cache.weights_by}, which d_logsumexp is of")
    d_logsumexp = None if d_logsumexp is None else np.asarray(d_logsumexp)
    arrays: Any = in_dtype(dtype, d_output, cache.output, d_logsumexp, cache.logsumexp, cache.shift, cache.total)
    return Cotangent(*arrays)
