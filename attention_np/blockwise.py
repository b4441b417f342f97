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

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from attention_np import biases, rules
from attention_np._blockwise import kernels, plain
from attention_np._blockwise.merging import Partial, merge, merge_backward
from attention_np._blockwise.problem import Place, Problem, as_block_size, grouped
from attention_np._blockwise.tiles import Cotangent, Tangent, Tile
from attention_np._lib import passes
from attention_np._lib.arguments import (
    as_attended,
    as_flag,
    as_mask,
    as_scale,
    as_sink,
    as_softcap,
    as_tangent,
    as_vector,
    check_broadcasts_to,
    check_cache,
    check_features,
    check_gradients,
    check_outputs,
    scores_shape,
)
from attention_np._lib.arrays import (
    Array,
    as_gradient,
    as_result,
    in_dtype,
    precision,
    quiet,
    sum_to,
    with_query_axis,
    without_query_axis,
)
from attention_np._lib.blas import one_thread
from attention_np._lib.dropout import Rng, as_probability, draw_key
from attention_np._lib.products import backward_times
from attention_np._lib.second_look import left_range
from attention_np._lib.wide import widened
from attention_np._lib.workers import as_workers, run
from attention_np.biases import Bias
from attention_np.dot_product import Gradients
from attention_np.rules import Rule, cut, own_place, pick

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Cache", "Gradients", "Partial", "backward", "double_backward", "forward", "jvp", "merge", "merge_backward"]

VECTORIZED = ("query", "key", "value", "bias")  # may carry any leading axes: for gradcheck


class Cache(NamedTuple):
    """What :func:`forward` leaves for :func:`backward`, :func:`jvp` and the reader.

    The inputs are as they were given; for a single query, without an axis for the queries, n is 1 in the rest.
    """

    query: Array  # (..., n, d_k)
    key: Array  # (..., m, d_k)
    value: Array  # (..., m, d_v)
    bias: Array | None  # broadcasts to (..., n, m); or a Bias
    sink: Array | None  # broadcasts to the leading axes of the scores
    mask: Rule | None  # who attends to whom, all rules together; None: all to all
    scale: Any  # a real scalar of the precision computed in
    softcap: Any  # the same, or None
    logsumexp: Array  # (..., n), with the sink; infinite if it does not fit the dtype, or NaN for minus infinity
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
    bias: npt.ArrayLike | Bias | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
    softcap: float | None = None,
    sink: npt.ArrayLike | None = None,
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
    bias : array_like of float or Bias, optional
        Added to the scores; broadcasts to them. Or one of :mod:`attention_np.biases`, which is made block by block.
    scale : float, optional
        What the products of queries and keys are multiplied by, by default ``1 / sqrt(d_k)``.
    is_causal : bool, optional
        Query i attends to keys ``j <= i`` only: ``rules.causal()``, together with `mask`.
    dropout_p : float, optional
        The probability, in [0, 1), with which a weight is dropped; the others are divided by ``1 - dropout_p``.
    rng : int or numpy.random.Generator, optional
        A seed, or a generator from which one integer is drawn; needed for dropout. Draws are those of
        :func:`attention_np.dot_product.forward`.
    softcap, sink
        As for :func:`attention_np.dot_product.forward`. Of results that are to be merged, one has the sink.
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
    Scores that do not fit the dtype, in double precision those beyond 1e308, have the weights that they say, too.
    Queries whose log-sum-exp does not give their weights back (since it is infinite, NaN, or so large that its rounding
    counts) are differentiated over all their keys at once: in linear memory, but not in blocks.

    With threadpoolctl (``pip install 'attention-np[fast]'``), every BLAS of the process is held to one thread until the
    call returns, since the tasks are what runs in parallel; so products elsewhere in the process run on one thread
    meanwhile. When the last of several calls returns, or fails, the number of threads is what it was. Results
    have the same bits then, whatever the workers and the executor. Inside a ``threadpool_limits`` of another thread of
    yours, that limit stays as it is.

    On Linux, where threads of ours are as many as the cores, each keeps to one core until the call returns, the calling
    thread too; then that may run where it could before. What a rule starts meanwhile, threads or processes, begins on
    the core of its thread.

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
    sink = as_sink(sink, shape, query, key, value)
    dropout_p = as_probability(dropout_p, rng)
    dtype = precision(query, key, value, bias, sink)
    scale, softcap = as_scale(scale, key.shape[-1], dtype.compute), as_softcap(softcap, dtype.compute)
    rule = _rule(shape, mask, is_causal)
    biases.check(bias, shape, key.shape[-1])
    sizes = as_block_size(block_size)
    at_once = as_workers(executor, workers)

    queries, d_v = with_query_axis(query, query), value.shape[-1]
    leading = np.broadcast_shapes(queries.shape[:-2], key.shape[:-2], value.shape[:-2])
    # Two outputs, one of which stays in the cache: what callers do to theirs must not change the gradients.
    blank = np.empty if rule is None and shape[-1] else np.zeros  # without a rule every place is written
    output = blank((*leading, shape[-2], d_v), dtype.compute)
    kept = np.empty_like(output)
    logsumexp, shift, total = (np.full(shape[:-1], x, dtype.compute) for x in (-np.inf, 0, 0))
    if sink is not None:  # all that there is of a query that no tile has
        logsumexp[...], total[...] = sink[..., None], np.nan
    cache = Cache(
        query=query,
        key=key,
        value=value,
        bias=bias,
        sink=sink,
        mask=rule,
        scale=scale,
        softcap=softcap,
        logsumexp=logsumexp,
        shift=shift,
        total=total,
        output=kept,
        dropout_p=dropout_p,
        dropout_key=draw_key(rng) if dropout_p else None,
        block_size=sizes,
        output_shape=without_query_axis(output, query).shape,
    )
    problem = _problem(cache, dtype.compute)

    def consume(places: list[Place], results: list[kernels.Attended]) -> None:
        for place, (found, *of_rows) in zip(places, results, strict=True):
            output[place.at][place.rows] = found
            own = own_place(place.at, shape[:-2])
            for whole, part in zip((logsumexp, shift, total), of_rows, strict=True):
                whole[own][place.rows] = part

    tasks = ((places, [problem.tile(place) for place in places]) for places in grouped(problem.strips()))
    run(kernels.attend, tasks, consume, executor, at_once)
    kept[...] = output

    with quiet():
        return as_result(without_query_axis(output, query), dtype.result), cache


@passes.documented(passes.BACKWARD)
def backward(
    d_output: npt.ArrayLike,
    cache: Cache,
    *,
    d_logsumexp: npt.ArrayLike | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> Gradients:
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
    cache = check_cache(cache, Cache, "blockwise")
    query, bias = cache.query, cache.bias
    of_output = with_query_axis(as_vector("d_output", d_output, cache.output_shape, cache.output.dtype), query)
    dtype, of_logsumexp = np.result_type(cache.output, of_output), None
    if d_logsumexp is not None:
        of_logsumexp = as_vector("d_logsumexp", d_logsumexp, cache.logsumexp.shape, cache.output.dtype)
        dtype = np.result_type(dtype, of_logsumexp)
    at_once = as_workers(executor, workers)

    problem = _problem(cache, dtype)
    of_output, of_logsumexp, output = in_dtype(dtype, of_output, of_logsumexp, cache.output)
    logsumexp, shift, total = in_dtype(dtype, cache.logsumexp, cache.shift, cache.total)
    apart = plain.without_logsumexp(cache.logsumexp, cache.output)
    # Without a rule the tiles cover everything, cut alike for all heads, and the first to come to a part sets it.
    blank = np.empty if problem.rule is None and 0 not in (*problem.leading, problem.n, problem.m) else np.zeros
    d_query, d_key, d_value = (blank(x.shape, dtype) for x in (problem.query, problem.key, problem.value))
    begun: set[int] = set()  # the addresses of parts

    def add(whole: Array, at: tuple[int, ...], part: slice, found: Array) -> None:
        into = pick(whole, at, axes=2)[part]
        if blank is np.empty and (address := into.__array_interface__["data"][0]) not in begun:
            begun.add(address)
            into[...] = found
        else:
            into += found

    d_bias = None if bias is None else np.zeros(bias.shape, dtype)
    with quiet():
        d_sink = _sink_gradient(cache, of_output, of_logsumexp, apart)

    def cotangent(place: Place, of_apart: bool | None = None) -> Cotangent:
        """What is given for a tile: for the rows that are apart, or for the others, and zero for the rest; or all."""
        own_logsumexp, own_shift, own_total = (pick(x, place.at, axes=1)[place.rows] for x in (logsumexp, shift, total))
        d_output, d_rows = of_output[place.at][place.rows], None
        # Where several values share these scores, it is one log-sum-exp.
        if of_logsumexp is not None and problem.is_first(place.at):
            d_rows = pick(of_logsumexp, place.at, axes=1)[place.rows]
        if apart is not None and of_apart is not None:
            rest = apart[place.at][place.rows] ^ of_apart
            d_output = np.where(rest[:, None], 0, d_output)
            d_rows = None if d_rows is None else np.where(rest, 0, d_rows)
        own_output, is_whole = output[place.at][place.rows], problem.is_whole(place)
        return Cotangent(d_output, own_output, d_rows, own_logsumexp, own_shift, own_total, is_whole)

    def consume(places: list[Place], results: list[kernels.TileGradients]) -> None:
        for place, found in zip(places, results, strict=True):
            add(d_query, place.at, place.rows, found.query)
            add(d_key, place.at, place.columns, found.key)  # (blockwise.14)
            add(d_value, place.at, place.columns, found.value)  # (blockwise.14)
            if d_bias is not None and found.bias is not None:
                into = problem.bias_at(place, d_bias)
                into += found.bias
            if d_sink is not None and found.sink is not None:
                into = pick(d_sink, place.at, axes=1)
                into += found.sink

    tasks = (
        (places, [(problem.tile(place), cotangent(place, of_apart=False)) for place in places])
        for places in grouped(problem.squares())
    )
    run(kernels.differentiate, tasks, consume, executor, at_once)
    blank = np.zeros  # every part has been begun, and strips are cut otherwise
    if apart is not None:
        strips = (x for x in problem.strips() if apart[x.at][x.rows].any())
        tasks = (([x], [(problem.tile(x), cotangent(x, of_apart=True))]) for x in strips)
        run(_differentiate_whole_rows, tasks, consume, executor, at_once)
    with one_thread(), quiet():  # threads of BLAS that have been woken stand in the way of those of the next call
        arrays = (
            x if x is None else in_dtype(dtype, x)[0] for x in (of_output, of_logsumexp, query, cache.key, cache.value)
        )
        if left_range((d_query, d_key, d_value, d_bias, d_sink), chain(arrays, [cache.scale])):
            d_sink = _sink_gradient(cache, of_output, widened(of_logsumexp), np.array(True))
            d_query, d_key, d_value = (widened(np.zeros(x.shape, dtype)) for x in (d_query, d_key, d_value))
            if d_bias is not None:  # that of an object is of a few numbers, each of them a sum over many scores
                d_bias = np.zeros_like(d_bias) if isinstance(bias, Bias) else widened(np.zeros_like(d_bias))
            for place in problem.strips():
                given = cotangent(place)
                wide = replace(given, d_output=widened(given.d_output))
                consume([place], _differentiate_whole_rows([(problem.tile(place), wide)]))
        return Gradients(
            as_result(without_query_axis(np.asarray(d_query), query), query.dtype),
            as_result(np.asarray(d_key), cache.key.dtype),
            as_result(np.asarray(d_value), cache.value.dtype),
            None if bias is None else as_result(np.asarray(d_bias), bias.dtype),
            None if cache.sink is None else as_gradient(np.asarray(d_sink)[..., 0], cache.sink),
        )


def _sink_gradient(cache: Cache, d_output: Array, d_logsumexp: Array | None, apart: Array | None) -> Array | None:
    """That of the sink at each place of the leading axes of the scores, (..., 1), if there is one.

    Rows that are `apart` are differentiated as a whole: of them it has what is of the log-sum-exp alone.
    """
    if cache.sink is None:
        return None
    known = ~np.isnan(cache.total)
    share = np.exp(cache.sink[..., None] - np.where(known, cache.shift, cache.logsumexp))
    share = np.where(known, share / cache.total, share)  # (..., n) (blockwise.61)
    share = np.where(cache.logsumexp.real == np.inf, 0, share)
    delta = backward_times(cache.output, d_output).sum(axis=-1)  # (..., n) (blockwise.8)
    delta = sum_to(delta if apart is None else np.where(apart, 0, delta), share.shape)
    d_sinks = -delta if d_logsumexp is None else d_logsumexp - delta
    total: Array = backward_times(d_sinks, share).sum(axis=-1, keepdims=True)  # (blockwise.63)
    return total


@overload
def jvp(
    cache: Cache,
    *,
    query: npt.ArrayLike | None = None,
    key: npt.ArrayLike | None = None,
    value: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    sink: npt.ArrayLike | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> Array: ...
@overload
def jvp(cache: Cache, *, outputs: Sequence[str], **tangents: Any) -> tuple[Array, ...]: ...
@passes.documented(passes.jvp_of("output", "logsumexp"))  # type: ignore[misc]
def jvp(
    cache: Cache,
    *,
    outputs: Sequence[str] | None = None,
    query: npt.ArrayLike | None = None,
    key: npt.ArrayLike | None = None,
    value: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    sink: npt.ArrayLike | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> Array | tuple[Array, ...]:
    r"""Forward mode: how the output, and the log-sum-exp if it is asked for, move when the inputs move along a tangent.

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
    cache = check_cache(cache, Cache, "blockwise")
    check_outputs("blockwise", outputs, ("output", "logsumexp"))
    compute = cache.output.dtype
    tangents = {"query": query, "key": key, "value": value, "bias": bias, "sink": sink}
    given = [None if x is None else as_tangent(name, x, getattr(cache, name), compute) for name, x in tangents.items()]
    problem = _problem(cache, compute)
    at_once = min(as_workers(executor, workers), problem.worth)
    wide = np.result_type(compute, *(x for x in given if x is not None))
    d_output = np.zeros((*problem.leading, problem.n, cache.value.shape[-1]), wide)
    d_logsumexp = np.zeros(cache.logsumexp.shape, wide)

    def consume(place: Place, found: tuple[Array, Array]) -> None:
        of_rows = pick(d_logsumexp, place.at, axes=1)
        d_output[place.at][place.rows], of_rows[place.rows] = found

    if any(x is not None for x in given):
        tasks = ((place, (problem.tile(place), _tangent(place, problem, *given))) for place in problem.strips())
        run(_push_forward, tasks, consume, executor, at_once)
    dtype = precision(cache.query, cache.key, cache.value, cache.bias, cache.sink).result
    with one_thread(), quiet():
        arrays = (in_dtype(compute, x)[0] for x in (cache.query, cache.key, cache.value))
        asked = (d_output,) if "logsumexp" not in (outputs or ()) else (d_output, d_logsumexp)
        if left_range(asked, chain(given, arrays, [cache.scale])):
            for place in problem.strips():
                along = _tangent(place, problem, *(widened(x) for x in given))
                consume(place, plain.push_forward(problem.tile(place), along))
        d_output = as_result(without_query_axis(d_output, cache.query), dtype)
    found = {"output": d_output, "logsumexp": as_result(d_logsumexp, compute)}
    return d_output if outputs is None else tuple([found[name] for name in outputs])


@passes.documented(passes.DOUBLE_BACKWARD)
def double_backward(
    d_gradients: Gradients,
    d_output: npt.ArrayLike,
    cache: Cache,
    *,
    d_logsumexp: npt.ArrayLike | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> tuple[Array, Gradients]:
    """The gradients of ``<d_gradients, backward(d_output, cache)>``, by `d_output` and by every array of `forward`.

    Of :func:`backward` with the same `d_logsumexp`. `executor` and `workers` are as for :func:`forward`.

    Notes
    -----
    In blocks, from what `forward` kept of each query, twice over the keys: in linear memory, and without the blocks
    that a rule hides. Where that does not do (see :func:`forward`), a few queries at a time over all their keys.
    Where a product of some of the arrays leaves the range of the dtype, so does the result; that of
    :mod:`attention_np.dot_product` is finite where it fits.

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
    cache = check_cache(cache, Cache, "blockwise")
    check_gradients(d_gradients, Gradients, "blockwise")
    compute, names = cache.output.dtype, Gradients._fields
    inputs = [getattr(cache, name) for name in names]
    along = [as_tangent(name, getattr(d_gradients, name), getattr(cache, name), compute) for name in names]
    of_output = with_query_axis(as_vector("d_output", d_output, cache.output_shape, compute), cache.query)
    of_logsumexp = None
    if d_logsumexp is not None:
        of_logsumexp = as_vector("d_logsumexp", d_logsumexp, cache.logsumexp.shape, compute)
    dtypes = (x for x in (of_output, of_logsumexp, *along) if x is not None)
    problem = _problem(cache, np.result_type(*dtypes))
    at_once = min(as_workers(executor, workers), problem.worth)
    of_rows = in_dtype(problem.dtype, cache.logsumexp, cache.shift, cache.total)
    of_output, of_logsumexp, output = in_dtype(problem.dtype, of_output, of_logsumexp, cache.output)
    sink = None if cache.sink is None else cache.sink[..., None, None]
    like = of_output, problem.query, problem.key, problem.value, cache.bias, sink

    def sums(numbers: Callable[[Any], Any], executor: Executor | None, workers: int) -> list[Any]:
        """The results of all tiles together, whose tangents are `numbers` of one kind or another."""
        shapes = [None if x is None else np.broadcast_shapes(x.shape, (1, 1)) for x in like]
        whole = [None if shape is None else numbers(np.zeros(shape, problem.dtype)) for shape in shapes]
        if isinstance(cache.bias, Bias):
            whole[4] = np.zeros(cache.bias.shape, problem.dtype)

        def consume(place: Place, found: tuple[Array | None, ...]) -> None:
            at, rows, columns = place
            every = slice(None)
            parts = (rows, every), (rows, every), (columns, every), (columns, every), (rows, columns), (every, every)
            for total, part, x in zip(whole, parts, found, strict=True):
                if total is not None:
                    of_bias = total is whole[4]
                    into = problem.bias_at(place, total) if of_bias else cut(pick(total, at, axes=2), *part)
                    into += x

        def task(place: Place) -> tuple[Tile, Cotangent, Tangent]:
            logsumexp, shift, total = (pick(x, place.at, axes=1)[place.rows] for x in of_rows)
            d_output, own_output = (x[place.at][place.rows] for x in (of_output, output))
            d_rows = None
            if of_logsumexp is not None and problem.is_first(place.at):
                d_rows = pick(of_logsumexp, place.at, axes=1)[place.rows]
            given = Cotangent(d_output, own_output, d_rows, logsumexp, shift, total, is_whole=True)
            tangent = _tangent(place, problem, *(x if x is None else numbers(x) for x in along))
            return problem.tile(place), given, tangent

        tasks = ((place, task(place)) for place in problem.strips())
        run(_differentiate_twice, tasks, consume, executor, workers)
        return whole

    d_d_output, *gradients = sums(lambda x: x, executor, at_once)
    with one_thread(), quiet():
        of_products = (*inputs[:3], of_output, of_logsumexp, *along[:3])
        arrays = (None if x is None else in_dtype(problem.dtype, x)[0] for x in of_products)
        if left_range((d_d_output, *gradients), chain(arrays, [cache.scale])):
            d_d_output, *gradients = [x if x is None else np.asarray(x) for x in sums(widened, None, 1)]
        dtype = precision(*inputs).result
        gradients[0] = without_query_axis(gradients[0], cache.query)
        of_inputs: list[Any] = [
            None if x is None else as_result(d_x.reshape(x.shape), x.dtype)
            for d_x, x in zip(gradients, inputs, strict=True)
        ]
        return as_result(without_query_axis(d_d_output, cache.query), dtype), Gradients._make(of_inputs)


def _tangent(place: Place, problem: Problem, query: Any, key: Any, value: Any, bias: Any, sink: Any) -> Tangent:
    """The tangents at a place, of those that are given."""
    at, rows, columns = place
    return Tangent(
        None if query is None else pick(query if query.ndim > 1 else query[None], at, axes=2)[rows],
        None if key is None else pick(key, at, axes=2)[columns],
        None if value is None else pick(value, at, axes=2)[columns],
        None if bias is None else problem.bias_at(place, bias),
        None if sink is None else pick(sink[..., None], at, axes=1).reshape(()),
    )


def _differentiate_whole_rows(tiles: list[tuple[Tile, Cotangent]]) -> list[kernels.TileGradients]:
    return [kernels.TileGradients(*plain.differentiate_whole_rows(*both)) for both in tiles]


def _differentiate_twice(task: tuple[Tile, Cotangent, Tangent]) -> tuple[Array | None, ...]:
    return kernels.differentiate_twice(*task)


def _push_forward(tile_and_tangent: tuple[Tile, Tangent]) -> tuple[Array, Array]:
    return plain.push_forward(*tile_and_tangent)


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


def _problem(cache: Cache, dtype: np.dtype[Any]) -> Problem:
    """The problem of a call of forward, to be computed in `dtype`."""
    return Problem(
        query=with_query_axis(cache.query, cache.query),
        key=cache.key,
        value=cache.value,
        bias=cache.bias,
        sink=cache.sink,
        rule=cache.mask,
        scale=cache.scale,
        softcap=cache.softcap,
        dropout_p=cache.dropout_p,
        dropout_key=cache.dropout_key,
        block_size=cache.block_size,
        dtype=dtype,
    )
