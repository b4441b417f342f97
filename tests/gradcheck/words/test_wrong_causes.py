# every gradient takes all inputs
"""No cause is named that is false: wrong formulas, random errors, and those that are as small as rounding."""

import math

import numpy as np
from helpers import each, some_of
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from ..programs import normal, softmax
from .said import said, said_of, said_of_slopes

shapes = array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=4)
seeds = st.integers(0, 2**32 - 1)
NONE = "no simple cause"


@given(shapes, shapes, seeds, st.floats(-5, 2), st.sampled_from(["auto", "central"]))
def test_a_random_matrix_that_is_added_to_the_jacobian_has_no_simple_cause(shape, output_shape, seed, size, method):
    found = said_of(
        lambda g, rng: g + 10**size * rng.standard_normal(g.shape), shape, output_shape, seed, method=method
    )
    assert found.startswith(NONE)


@given(array_shapes(min_dims=2, max_dims=3, min_side=3, max_side=4), shapes, seeds, st.floats(0.1, 0.6))
def test_random_errors_in_random_entries_have_no_simple_cause(shape, output_shape, seed, share):
    rng = np.random.default_rng(seed)
    right, error = rng.standard_normal((2, math.prod(output_shape), *shape))
    error *= rng.random(error.shape) < share
    wrong = (error != 0).any(axis=0).sum()
    assume(wrong)
    found = said_of_slopes(right, right + error, output_shape)
    assert found.startswith("wrong only at " if wrong == 1 else NONE)


SMOOTH = {  # functions and their slopes
    "sin": (np.sin, np.cos),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "exp": (np.exp, np.exp),
    "cube": (lambda x: x**3 + x, lambda x: 3 * x**2 + 1),
    "softplus": (lambda x: np.log1p(np.exp(x)), lambda x: 1 / (1 + np.exp(-x))),
}
RELATED = {("exp", "softplus"), ("softplus", "exp")}  # by a factor that is known


@each("right", SMOOTH)
@each("wrong", *some_of(SMOOTH, 3))
@each("x", [normal(3, 4, seed=1), np.full((2, 3), 0.7)])
def test_the_slope_of_another_function_has_no_simple_cause(right, wrong, x):
    if right == wrong or (right, wrong) in RELATED:
        return
    forward, slope = SMOOTH[right][0], SMOOTH[wrong][1]
    assert said(forward, lambda d, x: d * slope(x), {"x": x}).startswith(NONE)
    w = normal(x.shape[-1], 3, seed=2)
    layer = {"x": x, "w": w}
    for where, gradient in (
        ("x", lambda d, x, w: d * slope(x @ w) @ w.T),
        ("w", lambda d, x, w: x.T @ (d * slope(x @ w))),
    ):
        if x.ndim == 2 and np.ptp(x):
            assert said(lambda x, w: forward(x @ w), gradient, layer, where).startswith(NONE)


Q, K, V = normal(5, 4, seed=1), normal(5, 4, seed=2), normal(5, 3, seed=3)
A = normal(3, 3, seed=1) + 3 * np.eye(3)
FORMULAS = [
    (lambda x: x * np.sin(x), lambda d, x: d * (np.sin(x) + np.cos(x)), Q),
    (lambda x: x @ x.T, lambda d, x: d @ x, Q),
    (lambda x: x @ x, lambda d, x: d @ x.T, A),
    (np.linalg.inv, lambda d, x: -np.linalg.inv(x).T @ d @ np.linalg.inv(x), A),
    (lambda q: softmax(q @ K.T) @ V, lambda d, q: softmax(q @ K.T) * (d @ V.T) @ K * 2, Q),
    (lambda x: ((x[:, None] - K) ** 2).sum(-1), lambda d, x: 2 * d.sum(1)[:, None] * x, Q),
    (lambda x: np.cumprod(x), lambda d, x: np.cumsum(d[::-1])[::-1], Q[0]),
    (lambda x: np.diff(x), lambda d, x: np.insert(d, 0, 0), Q[0]),
    (lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)), lambda d, x: d - d.mean(-1, keepdims=True), Q),
    (np.exp, lambda d, x: d * (1 + x + x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120), Q / 4),
    (np.sin, lambda d, x: d * (np.sin(x + 1e-6) - np.sin(x)) / 1e-6, Q),
]


@each(("forward", "backward", "x"), FORMULAS)
@each("options", [{}], long=[{"method": "central"}, {"rng": 1, "max_entries": 9}])
def test_a_wrong_formula_has_no_simple_cause(forward, backward, x, options):
    assert said(forward, backward, {"x": x}, **options).startswith(NONE)


def test_a_gradient_of_which_a_sample_is_zero_is_not_called_zero_throughout():
    found = said(
        lambda x: x.max(-1), lambda d, x: d[:, None] * (x == x.min(-1, keepdims=True)), {"x": normal(4, 3, seed=1)},
        method="central", max_entries=3, rng=4
    )  # fmt: skip
    assert found != "it is zero throughout"


def test_a_number_that_is_another_at_another_point_is_no_factor_in_single_precision_either():
    x = (normal(4, 4, seed=8) + 4 * np.eye(4)).astype(np.float32)
    assert "throughout" not in said(np.linalg.det, lambda d, x: d * np.linalg.inv(x).T, {"x": x})
