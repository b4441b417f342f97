"""The numbers are right: held against extended precision, up to the limits of each dtype."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, Case, each, leaves, normal
from hypothesis import given
from hypothesis import strategies as st

from attention_np import additive, blockwise, dot_product, multi_head, softmax
from attention_np.multi_head import Parameters

from .strategies import REAL, Everything, cases, hostile

LONG = np.longdouble
LONG_IS_LONG = np.finfo(LONG).maxexp > np.finfo(np.float64).maxexp
only_where_longdouble_is_wider = pytest.mark.skipif(not LONG_IS_LONG, reason="longdouble is double here")
pytestmark = only_where_longdouble_is_wider

DIGITS = {np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3, np.float32: 1.2e-7, np.float64: 2.3e-16}


def as_long(x: Array) -> Array:
    return np.asarray(x.astype(np.float64) if x.dtype.kind == "V" else x).astype(LONG)


def in_extended_precision(case: Case) -> Case:
    op = dot_product if case.op is blockwise else case.op
    options = {name: x for name, x in case.options.items() if name not in ("workers", "block_size")}
    return case.map(as_long)._replace(op=op, options=options)


def assert_right(actual: Array, expected: Array, digits: float, floor: float = 0.0) -> None:
    """Normwise; infinite only where `expected` does not fit the dtype. `floor` is what may be lost absolutely."""
    most = LONG(np.finfo(np.float32).max if actual.dtype.kind == "V" else np.finfo(actual.dtype).max)
    value = as_long(actual)
    assert not np.isnan(value).any()
    fits = np.isfinite(value)
    assert (np.abs(expected[~fits]) + floor > most * (1 - LONG(digits))).all()
    assert ((value[~fits] > 0) == (expected[~fits] > 0)).all() or floor > most
    scale = np.abs(expected[fits]).max(initial=0)
    assert np.abs(value[fits] - expected[fits]).max(initial=0) <= digits * scale + floor


@given(cases(dtypes=REAL[:4]))
@hostile
def test_every_op_is_right_to_the_digits_of_its_narrowest_array(case: Case) -> None:
    narrowest = max((DIGITS[x.dtype.type] for _, x in leaves(case.inputs)), default=1e-3)
    actual, expected = Everything(case), Everything(in_extended_precision(case))
    assert_right(actual.output, expected.output, 60 * narrowest, 60 * narrowest)
    exact = in_extended_precision(case)
    _, cache = exact.forward()
    gradients = dict(leaves(exact.op.backward(as_long(actual.d_output), cache)))
    biggest = max((np.abs(x).max(initial=0) for x in gradients.values()), default=0)
    for name, x in actual.gradients.items():
        assert_right(x, gradients[name], 60 * narrowest, float(60 * narrowest * max(biggest, 1)))


@each("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.longdouble])
@each("op", ["dot_product", "additive", "multi_head"])
@each("m", [1, 3, 7, 11, 100])
def test_the_mean_of_the_largest_values_is_the_largest_value(dtype: Any, op: str, m: int) -> None:
    most = float(ml_dtypes.finfo(dtype).max) if dtype is not LONG else np.finfo(LONG).max
    shape = (2, m, 1)
    x = normal(0, *shape).astype(dtype)
    value = np.full(shape, most, dtype) * np.array([1, -1], dtype)[:, None, None]
    one = np.eye(1, dtype=dtype)
    if op == "additive":
        output, _ = additive.forward(x, x, value, one, one, one[0])
    elif op == "multi_head":
        output, _ = multi_head.forward(x, x, value, Parameters(one, one, one, one), num_heads=1)
    else:
        output, _ = dot_product.forward(x, x, value)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(as_long(output), as_long(value), rtol=1e-2 if np.dtype(dtype).itemsize == 2 else 1e-5)


@each("dtype", [np.float32, np.float64, np.longdouble])
def test_scores_that_do_not_fit_keep_their_order_and_their_ties(dtype: Any) -> None:
    huge = np.ldexp(dtype(1), np.finfo(dtype).maxexp - 2)
    key = np.array([[huge], [huge], [huge / 2], [-huge]], dtype)
    value = np.array([[1.0], [3.0], [5.0], [7.0]], dtype)
    output, cache = dot_product.forward(np.array([[huge], [-huge], [0], [1]], dtype), key, value, scale=1.0)
    np.testing.assert_array_equal(output, [[2], [7], [4], [2]])
    only_less = np.array([[-huge], [-huge / 2]], dtype)
    output, _ = dot_product.forward(np.array([[huge]], dtype), only_less, value[:2])
    np.testing.assert_array_equal(output, [[3]])
    gradients = dot_product.backward(np.ones((4, 1), dtype), cache)
    assert all(np.isfinite(x).all() for x in gradients[:3])


def test_a_sum_of_score_and_bias_that_does_not_fit_is_not_the_callers_infinity() -> None:
    query, key, value = np.array([[1e308]]), np.array([[1.2], [1.1]]), np.array([[1.0], [2.0]])
    bias = np.array([[1e308, 1.2e308]])
    output, _ = dot_product.forward(query, key, value, bias=bias, scale=1.0)
    np.testing.assert_array_equal(output, [[2.0]])
    output, cache = dot_product.forward(-query, key, value, bias=-bias, scale=1.0)
    np.testing.assert_array_equal(output, [[1.0]])
    limit, _ = dot_product.forward(query * 1.5, key * 1.5, value, bias=np.array([[0, np.inf]]), scale=1.0)
    np.testing.assert_array_equal(limit, [[2.0]])
    assert (dot_product.backward(np.ones((1, 1)), cache).query == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@given(st.data())
@hostile
def test_softmax_is_right_for_scores_up_to_the_limits(dtype: Any, data: Any) -> None:
    info = ml_dtypes.finfo(dtype)
    corners = [float(info.max), float(-info.max), float(info.tiny), float(info.smallest_subnormal), 0.0, 1.0, -1.0]
    numbers = st.one_of(st.sampled_from(corners), st.floats(-50, 50))
    row = np.array(data.draw(st.lists(numbers, min_size=1, max_size=6)))
    scores = np.asarray(row).astype(dtype)
    weights, cache = softmax.forward(scores)
    exact, exactly = softmax.forward(as_long(scores))
    assert_right(weights, exact, 8 * DIGITS[dtype])
    digits = 8 * DIGITS[dtype]
    logsumexps = [np.atleast_1d(softmax.logsumexp(x)) for x in (scores, as_long(scores))]
    assert_right(*logsumexps, digits, digits)
    d_weights = np.asarray(data.draw(st.lists(numbers, min_size=len(row), max_size=len(row)))).astype(dtype)
    size = float(np.abs(as_long(d_weights)).max())
    for found, truth in (
        (softmax.backward(d_weights, cache).scores, softmax.backward(as_long(d_weights), exactly).scores),
        (softmax.jvp(cache, scores=d_weights), softmax.jvp(exactly, scores=as_long(d_weights))),
    ):
        assert_right(found, truth, digits, digits * size + float(info.smallest_subnormal))
    assert_right(softmax.jacobian(scores), softmax.jacobian(as_long(scores)), digits, digits)


def test_a_score_weight_up_to_the_limit_gives_the_weights_of_the_numbers() -> None:
    most = np.finfo(float).max
    key, value = np.array([[30.0, 30.0], [30.0, -30.0], [30.0, 20.0]]), np.array([[1.0], [2.0], [3.0]])
    zero = np.zeros((1, 2))
    arrays = (zero, key, value, np.eye(2), np.eye(2), np.array([most, most]))
    output, cache = additive.forward(*arrays)
    np.testing.assert_array_equal(output, [[2.0]])  # of scores 2, 0 and 2 times the largest number, two are equal
    assert all(np.isfinite(x).all() for x in additive.backward(np.ones((1, 1)), cache)[:6])
    np.testing.assert_array_equal(additive.forward(*arrays[:5], -arrays[5])[0], [[2.0]])
    hidden, _ = additive.forward(*arrays, mask=np.array([False, True, True]))
    np.testing.assert_array_equal(hidden, [[3.0]])


def test_a_tangent_of_zero_stays_zero_beside_the_largest_keys() -> None:
    most = np.finfo(float).max
    _, cache = dot_product.forward(np.zeros((1, 1)), np.full((2, 1), most), np.array([[np.inf], [1.0]]))
    assert np.isnan(dot_product.jvp(cache, query=np.zeros((1, 1)))).all()  # zero times the infinite value
    nothing = dot_product.forward(np.zeros((1, 1)), np.full((2, 1), most), np.ones((2, 1)))[1]
    assert (dot_product.jvp(nothing, query=np.zeros((1, 1))) == 0).all()
    assert np.isnan(dot_product.jvp(nothing, query=np.full((1, 1), np.inf))).all()
    assert np.isnan(dot_product.backward(np.array([[np.nan]]), nothing).query).all()
