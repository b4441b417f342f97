"""A few small heads as a whole, in the way of :mod:`attention_np.dot_product`: all their scores at once.

A tile for each head takes longer there than the arithmetic. What a second look would be for, a score or a log-sum-exp
that is out of range, is left to the blocks.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from attention_np import biases, dot_product
from attention_np._blockwise.kernels import Attended
from attention_np._blockwise.problem import Problem
from attention_np._blockwise.tiles import checked
from attention_np._lib.arrays import Array, is_row_scale
from attention_np._lib.products import product
from attention_np.masks import visible_pairs
from attention_np.rules import own_place, reach

# Bytes of the scores of a head, of which a pass has half a dozen arrays in the cache of a core one after the other; of
# those of all heads; and of what they are made of. Larger arrays go back to the system when they are freed, and to make
# their pages anew in every call takes longer than blocks.
A_HEAD, SCORES, OPERANDS = 2**17, 2**20, 2**21


def are_small(problem: Problem) -> bool:
    """Whether heads are small and few, and of arrays that are computed with as they are."""
    query, key, value, bias, sink, scale = problem.inputs
    arrays = (query, key, value, *biases.terms_of(bias), *(x for x in (sink, scale) if x is not None))
    is_usual = problem.block_size is None and not problem.dropout_p and problem.dtype.char in "fd"
    is_usual = is_usual and all(x.dtype == problem.dtype for x in arrays)
    features = query.shape[-1] + value.shape[-1]
    return is_usual and fit(problem.n, problem.m, features, prod(problem.leading), problem.dtype.itemsize)


def fit(n: int, m: int, features: int, heads: int, itemsize: int) -> bool:
    """Whether so many heads, of so many queries, keys and features of a key and a value, are small enough."""
    scores, operands = n * m * itemsize, (n + m) * features * itemsize
    return 0 < scores <= A_HEAD and 0 < heads * scores <= SCORES and heads * operands <= OPERANDS


def attend(problem: Problem) -> Attended | None:
    """What forward computes of all heads, (..., n, d_v) and (..., n); None where something is out of range."""
    cache = _cache(problem)
    if cache is None:
        return None
    output = product(cache.weights, cache.value, cache.mask, mean=problem.weights_by is None)  # (dot-product.4)
    rows = cache.scores.shape[:-1]
    if problem.weights_by is not None:
        return Attended(output, *(np.full(rows, x, problem.dtype) for x in (np.nan, 0, 1)))
    logsumexp = cache.softmax.logsumexp[..., 0]
    only_scaled = problem.bias is None and problem.softcap is None and problem.sink is None
    natural = 1 if not only_scaled or is_row_scale(problem.scale) else abs(problem.scale)
    shift = np.where(logsumexp == -np.inf, 0, logsumexp / natural)
    total = np.exp(logsumexp - shift * natural)  # what rounding of the shift has left (blockwise.5)
    return Attended(output, logsumexp, shift, total) if np.isfinite(shift).all() else None


def differentiate(problem: Problem, d_output: Array) -> tuple[dot_product.Gradients, Any] | None:
    """The gradients of all arrays, and what tells whether something left the range; None where a score has."""
    cache = _cache(problem)
    return None if cache is None else dot_product.backward.mathematics(d_output, cache)


def _cache(problem: Problem) -> dot_product.Cache | None:
    """What dot-product attention keeps of all heads."""
    query, key, _, bias, sink, scale = problem.inputs
    shape = (*problem.scores_leading, problem.n, problem.m)
    mask = visible_pairs(shape, _visible(problem), bias, is_causal=False)
    arguments = query, key, bias, sink, scale, mask, problem.softcap, problem.weights_by
    of_scores, scores, uncapped, mask, tops = dot_product.weights_of_scores(*arguments)
    if tops is not None:
        return None
    weights, output_shape = of_scores.weights[..., : problem.m], problem.shape_of("output")
    made = uncapped, scores, weights, None, of_scores, output_shape
    return dot_product.Cache._make((*problem.inputs, mask, problem.softcap, problem.weights_by, *made))


def _visible(problem: Problem) -> Array | None:
    """What the rule says of all pairs."""
    if problem.mask is None:
        return None
    rows, columns = slice(0, problem.n), slice(0, problem.m)
    visible = np.zeros((*problem.mask.leading, problem.n, problem.m), np.bool_)
    places: dict[tuple[int, ...], tuple[int, ...]] = {}
    for index in np.ndindex(problem.scores_leading):
        places.setdefault(own_place(index, problem.mask.leading), index)
    for own, index in places.items():
        rule = problem.rule_at(index, rows, columns)
        some = reach(rule, rows, columns)
        if some.start < some.stop:
            visible[own][:, some] = checked(rule, rows, some)
    return visible
