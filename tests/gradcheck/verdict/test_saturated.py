"""Where an activation has saturated, digits are lost that the function still has: what is right holds all the same."""

import itertools

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import check
from attention_np.gradcheck.verdict.judging import WRONG

from ..programs import back_through_layer_norm, layer_norm, softmax


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


ACTIVATIONS = {  # with the slope from the value, as it is written
    "softmax": (softmax, lambda d, y: y * (d - (y * d).sum(-1, keepdims=True))),
    "sigmoid": (sigmoid, lambda d, y: d * y * (1 - y)),
    "tanh": (np.tanh, lambda d, y: d * (1 - y * y)),
}


def centred(axes_of):
    """A normalization to mean zero and variance one, and its gradient."""

    def parts(x):
        axes = axes_of(x)
        c = x - x.mean(axes, keepdims=True)
        r = np.sqrt((c * c).mean(axes, keepdims=True) + x.real.dtype.type(1e-5))
        return axes, c / r, r

    def backward(d, x):
        axes, y, r = parts(x)
        return (d - d.mean(axes, keepdims=True) - y * (d * y).mean(axes, keepdims=True)) / r

    return lambda x: parts(x)[1], backward


def scaled(mean, epsilon):
    """A division by the root of the mean, or the sum, of squares, and its gradient."""

    def backward(d, x):
        r = np.sqrt(mean(x * x) + x.dtype.type(epsilon))
        return (
            (d - x / r * mean(d * x / r)) / r
            if mean is mean_of
            else (d - x / r * (d * x / r).sum(-1, keepdims=True)) / r
        )

    return lambda x: x / np.sqrt(mean(x * x) + x.real.dtype.type(epsilon)), backward


def mean_of(x):
    return x.mean(-1, keepdims=True)


def sum_of(x):
    return x.sum(-1, keepdims=True)


def largest(x):
    return x.real.argmax(-1)[..., None]


def by_largest(x):
    return x / np.take_along_axis(x, largest(x), -1)


def by_largest_backward(d, x):
    k = largest(x)
    m = np.take_along_axis(x, k, -1)
    g = d / m
    np.put_along_axis(g, k, np.take_along_axis(g, k, -1) - sum_of(d * x) / m**2, -1)
    return g


NORMS = {
    "layer": centred(lambda _: -1),
    "batch": centred(lambda x: tuple(range(x.ndim - 1))),
    "rms": scaled(mean_of, 1e-6),
    "l2": scaled(sum_of, 0),
    "maximum": (by_largest, by_largest_backward),
}


def saturated(activation, norm, by, shape, dtype, seed):
    """Behind a normalization, or behind a projection: forward, backward, and inputs."""
    f, back = ACTIVATIONS[activation]
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    if norm == "projection":
        w = rng.standard_normal((shape[-1], shape[-1])).astype(dtype)

        def backward(d, x, w):
            g = x.dtype.type(by) * back(d, f(x.dtype.type(by) * (x @ w)))
            return g @ w.T, x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])

        return lambda x, w: f(x.real.dtype.type(by) * (x @ w)), backward, {"x": x, "w": w}
    n, n_back = NORMS[norm]

    def through_norm(d, x):
        c = x.dtype.type(by)
        return n_back(c * back(d, f(c * n(x))), x)

    return lambda x: f(x.real.dtype.type(by) * n(x)), through_norm, {"x": x}


GRID = list(
    itertools.product(
        ACTIVATIONS, [*NORMS, "projection"], (10, 40, 300, 1000), ((3, 3), (4, 8), (2, 3, 5)), ("float64", "float32")
    )
)


METHOD = pytest.mark.parametrize("method", ["auto", "central"])
JUMPS = ("softmax", "layer", 300, (3, 3), "float64"), 6


def refused(cell, seed, method):
    forward, backward, inputs = saturated(*cell, seed)
    report = check(forward, backward, inputs, rng=seed, method=method)
    return [] if report.ok else [f"{cell}, seed {seed}: {report}"]


@METHOD
@pytest.mark.parametrize(("step", "draws"), [(44, 1), pytest.param(1, 8, marks=pytest.mark.long)])
def test_no_right_gradient_of_what_has_saturated_is_refused(step, draws, method):
    seen = [(cell, seed or k % 5) for seed in range(draws) for k, cell in enumerate(GRID[seed % step :: step])]
    found = [report for of in seen if of != JUMPS for report in refused(*of, method)]
    assert not found, "\n".join(found)


@METHOD
def test_of_an_output_that_is_nearly_zero_no_jump_is_seen(method):
    assert not refused(*JUMPS, method)


def softplus(x):
    return np.log(1 + np.exp(x))


def stable_softplus(x):
    return np.where(x.real > 0, x, 0) + np.log1p(np.exp(-np.where(x.real > 0, x, -x)))


@METHOD
@each("dtype", ["float32", "float64"])
@each("forward", [softplus, stable_softplus])
@each("x", np.linspace(26, 30, 5))
def test_a_softplus_of_a_large_number_holds(x, forward, dtype, method):
    inputs = {"x": np.array([x, x + 0.3], dtype)}
    slope = lambda x: np.asarray(1 / (1 + np.exp(-x)), x.dtype)  # noqa: E731
    report = check(forward, lambda d, x: d * slope(x), inputs, method=method)
    assert report.ok, str(report)
    assert not check(forward, lambda d, x: d * slope(x) * (1 + x.dtype.type(1e-4)), inputs, method=method).ok


ZEROS = {  # with the slope at zero
    "a square": (lambda x: x * x, lambda d, x: 2 * d * x),
    "a fifth power": (lambda x: x**5, lambda d, x: 5 * d * x**4),
    "1 - cos": (lambda x: 1 - np.cos(x), lambda d, x: d * np.sin(x)),
    "sin": (np.sin, lambda d, x: d * np.cos(x)),
    "exp": (np.exp, lambda d, x: d * np.exp(x)),
    "layer norm": (layer_norm, back_through_layer_norm),
}


@METHOD
@each("dtype", ["float64"], long=["float32"])
@each("name", ZEROS)
@each("error", [1e-6, 1.0, "of the gradient"])
def test_an_error_at_an_input_of_zeros_is_found(error, name, dtype, method):
    forward, backward = ZEROS[name]
    inputs = {"x": np.zeros((2, 3), dtype)}
    if error == 1e-6 and dtype == "float32":
        return  # eight of its last bits
    if error == "of the gradient":
        error = 1e-3 * np.abs(backward(np.ones((2, 3)), inputs["x"])).max()
    right = check(forward, backward, inputs, method=method)
    assert right.ok, str(right)
    wrong = check(forward, lambda d, x: backward(d, x) + np.asarray(error * d, dtype), inputs, method=method)["x"]
    assert wrong.ok == (error == 0)
    assert wrong.wrong == (6 if error else 0)


@METHOD
@each("seed", *some_of(range(6), 6))
@each("error", [0.3, -1.0, 1e-2])
def test_an_error_in_the_smallest_rows_that_the_bound_leaves_is_found(error, seed, method):
    """Rows of a softmax of an attention, of ever smaller gradients: ones a thousand times the bound, over the error."""
    eps = float(np.finfo(float).eps)
    sizes = np.array([1.0, 1e-4, 1e-8, 1e3 * 8 * eps / abs(error)])

    def forward(x):
        return sizes[:, None] * softmax(x)

    def backward(d, x, row=None):
        g = ACTIVATIONS["softmax"][1](sizes[:, None] * d, softmax(x))
        return g if row is None else np.where(np.arange(4)[:, None] == row, (1 + error) * g, g)

    inputs = {"x": np.random.default_rng(seed).standard_normal((4, 3))}
    assert check(forward, backward, inputs, rng=seed, method=method).ok
    for row in range(4):
        found = check(forward, lambda d, x, row=row: backward(d, x, row), inputs, rng=seed, method=method)["x"]
        np.testing.assert_array_equal((found.details.verdict == WRONG).any(axis=1), np.arange(4) == row)
