"""Numbers anywhere in the range of their dtype, held against numbers that have no range, of mpmath.

What leaves the range on its way is found all the same: no NaN, infinite only where the truth does not fit the dtype,
and an error of a few roundings of the terms that a result is the sum of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st

from attention_np import additive, blockwise, dot_product, multi_head
from attention_np.multi_head import Parameters

from .strategies import hostile

MOST = {np.float32: 119, np.float64: 1015}  # powers of two, with room for a small integer
ROUNDINGS = 64
DEEP = -(10**5)  # a score so far behind has no weight in any dtype


class Sum(NamedTuple):
    """Numbers, and of each the size of the terms that it is the sum of: what rounding can be measured by."""

    value: Any  # arrays of mpmath's numbers
    size: Any

    def __matmul__(self, other: Sum) -> Sum:  # type: ignore[override]
        return Sum(self.value @ other.value, self.size @ other.size)

    def __add__(self, other: Sum) -> Sum:  # type: ignore[override]
        return Sum(self.value + other.value, self.size + other.size)

    def __mul__(self, other: Sum) -> Sum:  # type: ignore[override]
        return Sum(self.value * other.value, self.size * other.size)

    def __getitem__(self, index: Any) -> Sum:  # type: ignore[override]
        return Sum(self.value[index], self.size[index])

    def sum(self, axis: int, keepdims: bool = False) -> Sum:
        return Sum(self.value.sum(axis, keepdims=keepdims), self.size.sum(axis, keepdims=keepdims))

    @property
    def T(self) -> Sum:  # noqa: N802
        return Sum(self.value.T, self.size.T)


def exactly(array: Any) -> Sum:
    value = np.vectorize(lambda x: mpmath.mpf(float(x)), otypes=[object])(array)
    return Sum(value, abs(value))


def bounded(value: Any, size: Any = 1) -> Sum:
    """Numbers whose rounding is one of numbers of the given size."""
    return Sum(value, value * 0 + mpmath.mpf(1) * size)


def softmax_of(scores: Sum, size: Any = 1) -> Sum:
    less = scores.value - scores.value.max(axis=1, keepdims=True)
    exponentials = np.vectorize(lambda x: mpmath.exp(max(x, DEEP)), otypes=[object])(less)
    return bounded(exponentials / exponentials.sum(axis=1, keepdims=True), size)


def times_jacobian(weights: Sum, vector: Sum) -> Sum:
    mean = (weights * vector).sum(axis=1, keepdims=True)
    return weights * Sum(vector.value - mean.value, vector.size + mean.size)


class Attention:
    """Attention of exact numbers, with its gradients and its tangent."""

    def __init__(self, q: Sum, k: Sum, v: Sum, scale: Any, of_scores: bool = False) -> None:
        self.q, self.k, self.v, self.scale = q, k, v, exactly(scale)
        scores = q @ k.T * self.scale
        # A weight that is worked out again from the log-sum-exp is rounded as a score is, not as a number of size one.
        self.weights = softmax_of(scores, 1 + scores.size.max() if of_scores else 1)
        self.output = self.weights @ v

    def gradients(self, d_output: Sum) -> tuple[Sum, Sum, Sum, Sum]:
        d_scores = times_jacobian(self.weights, d_output @ self.v.T)
        d_query = d_scores @ self.k * self.scale
        return d_query, d_scores.T @ self.q * self.scale, self.weights.T @ d_output, d_scores

    def tangent(self, d_q: Sum, d_k: Sum, d_v: Sum) -> Sum:
        d_scores = (d_q @ self.k.T + self.q @ d_k.T) * self.scale
        return times_jacobian(self.weights, d_scores) @ self.v + self.weights @ d_v


def assert_right(found: Array, true: Sum, dtype: Any) -> None:
    limits = np.finfo(dtype)
    assert found.dtype == dtype
    for x, exact, size in zip(found.ravel().tolist(), true.value.ravel(), true.size.ravel(), strict=True):
        slack = ROUNDINGS * float(limits.eps) * size + 4 * float(limits.smallest_subnormal)
        assert not np.isnan(x)
        if np.isinf(x):
            assert abs(exact) + slack > float(limits.max)
            assert x * exact > 0 or abs(exact) < slack
        else:
            assert abs(mpmath.mpf(x) - exact) <= slack


class Draws:
    """Small integers times a power of two for each array: their products and scores are exact."""

    def __init__(self, data: Any, dtype: Any, least: int | None = None) -> None:
        self.data, self.dtype, self.least = data, dtype, -MOST[dtype] if least is None else least
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def array(self, *shape: int, most: int | None = None) -> Array:
        exponent = self.data.draw(st.integers(self.least, MOST[self.dtype] if most is None else most))
        return np.ldexp(self.rng.integers(-3, 4, shape).astype(self.dtype), exponent)

    def like(self, *arrays: Array) -> list[Array]:
        return [self.array(*array.shape) for array in arrays]

    def sizes(self, count: int) -> list[int]:
        return [self.data.draw(st.integers(1, 3)) for _ in range(count)]


both = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both
@pytest.mark.parametrize("op", [dot_product, blockwise])
@given(st.data())
@hostile
def test_attention_leaves_the_range_only_where_its_results_do(op: Any, dtype: Any, data: Any) -> None:
    # What is too small on its way blockwise attention does not see: it has its results alone.
    draws = Draws(data, dtype, least=-MOST[dtype] // 5 if op is blockwise else None)
    n, m, d, d_v = draws.sizes(4)
    q, k, v, g = draws.array(n, d), draws.array(m, d), draws.array(m, d_v), draws.array(n, d_v)
    scale = dtype(np.ldexp(1.0, data.draw(st.integers(-20, 20))))
    with mpmath.workprec(200):
        true = Attention(exactly(q), exactly(k), exactly(v), scale, of_scores=op is blockwise)
        output, cache = op.forward(q, k, v, bias=np.zeros((n, m), dtype), scale=scale)
        assert_right(output, true.output, dtype)
        for found, expected in zip(op.backward(g, cache)[:4], true.gradients(exactly(g)), strict=True):
            assert_right(found, expected, dtype)
        along = draws.like(q, k, v)
        moved = op.jvp(cache, **dict(zip(("query", "key", "value"), along, strict=True)))
        assert_right(moved, true.tangent(*map(exactly, along)), dtype)


@both
@given(st.data())
@hostile
def test_multi_head_attention_leaves_the_range_only_where_its_results_do(dtype: Any, data: Any) -> None:
    draws = Draws(data, dtype)
    n, m, width, d_v, wide = draws.sizes(5)
    d = data.draw(st.sampled_from([1, 4]))  # whose square root is exact
    q, k, v, g = draws.array(n, width), draws.array(m, width), draws.array(m, width), draws.array(n, wide)
    w = [draws.array(*shape) for shape in ((width, d), (width, d), (width, d_v), (d_v, wide))]
    b = [np.zeros(d, dtype), np.zeros(d, dtype), draws.array(d_v), draws.array(wide)]
    with mpmath.workprec(200):
        x_q, x_k, x_v, w_q, w_k, w_v, w_o, b_v, b_o, d_y = map(exactly, (q, k, v, *w, *b[2:], g))
        heads = Attention(x_q @ w_q, x_k @ w_k, x_v @ w_v + b_v[None], 1 / np.sqrt(d))
        output, cache = multi_head.forward(q, k, v, Parameters(*w, *b), num_heads=1)
        assert_right(output, heads.output @ w_o + b_o[None], dtype)

        d_q, d_k, d_v_, _ = heads.gradients(d_y @ w_o.T)
        found = multi_head.backward(g, cache)
        expected = (d_q @ w_q.T, d_k @ w_k.T, d_v_ @ w_v.T)
        weights = (x_q.T @ d_q, x_k.T @ d_k, x_v.T @ d_v_, heads.output.T @ d_y)
        biases = tuple(part.sum(axis=0) for part in (d_q, d_k, d_v_, d_y))
        for one, other in zip((*found[:3], *found.parameters[:8]), (*expected, *weights, *biases), strict=True):
            assert_right(one, other, dtype)

        along, of_w, of_b = draws.like(q, k, v), draws.like(*w), draws.like(*b)
        t_q, t_k, t_v, *t_w = map(exactly, (*along, *of_w))
        pushed = [
            t_x @ one + x @ t_one + exactly(t_b)[None]
            for t_x, one, x, t_one, t_b in zip(
                (t_q, t_k, t_v), (w_q, w_k, w_v), (x_q, x_k, x_v), t_w[:3], of_b[:3], strict=True
            )
        ]
        moved = multi_head.jvp(
            cache, **dict(zip(("query", "key", "value"), along, strict=True)), parameters=Parameters(*of_w, *of_b)
        )
        tangent = heads.tangent(*pushed) @ w_o + heads.output @ t_w[3] + exactly(of_b[3])[None]
        assert_right(moved, tangent, dtype)


@both
@given(st.data())
@hostile
def test_additive_attention_leaves_the_range_only_where_its_results_do(dtype: Any, data: Any) -> None:
    draws = Draws(data, dtype)
    n, m, d, h, d_v = draws.sizes(5)
    q, k, v, g = draws.array(n, d), draws.array(m, d), draws.array(m, d_v), draws.array(n, d_v)
    w_q, w_k = draws.array(d, h), draws.array(d, h)
    w_s = draws.array(h, most=1)  # of a larger one, the rounding of the hyperbolic tangents decides
    arrays = (q, k, v, w_q, w_k, w_s)
    with mpmath.workprec(200):
        x_q, x_k, x_v, a_q, a_k, a_s, d_y = map(exactly, (*arrays, g))
        inside = (x_q @ a_q)[:, None, :] + (x_k @ a_k)[None, :, :]
        hidden = bounded(np.vectorize(lambda x: mpmath.tanh(max(min(x, 200), -200)), otypes=[object])(inside.value))
        slope = bounded(1 - hidden.value * hidden.value)
        weights = softmax_of((hidden * a_s[None, None, :]).sum(axis=2))
        output, cache = additive.forward(*arrays)
        assert_right(output, weights @ x_v, dtype)

        d_scores = times_jacobian(weights, d_y @ x_v.T)
        d_inside = d_scores[:, :, None] * a_s[None, None, :] * slope
        d_queries, d_keys = d_inside.sum(axis=1), d_inside.sum(axis=0)
        d_w_score = (d_scores[:, :, None] * hidden).sum(axis=0).sum(axis=0)
        expected = (
            *(d_queries @ a_q.T, d_keys @ a_k.T, weights.T @ d_y),
            *(x_q.T @ d_queries, x_k.T @ d_keys, d_w_score),
        )
        for one, other in zip(additive.backward(g, cache)[:6], expected, strict=True):
            assert_right(one, other, dtype)

        along = draws.like(*arrays)
        t_q, t_k, t_v, t_wq, t_wk, t_ws = map(exactly, along)
        pushed = (t_q @ a_q + x_q @ t_wq)[:, None, :] + (t_k @ a_k + x_k @ t_wk)[None, :, :]
        t_scores = (slope * pushed * a_s[None, None, :] + hidden * t_ws[None, None, :]).sum(axis=2)
        tangent = times_jacobian(weights, t_scores) @ x_v + weights @ t_v
        names = ("query", "key", "value", "w_query", "w_key", "w_score")
        assert_right(additive.jvp(cache, **dict(zip(names, along, strict=True))), tangent, dtype)
