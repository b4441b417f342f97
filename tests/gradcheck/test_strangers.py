"""Functions as strangers have them: what they are asked, and what is said of solvers, series and special functions."""

import numpy as np
import pytest

from attention_np.gradcheck import check, numerical_gradient, step_errors

ALL = ["auto", "central"]
FACTORS = [1.0, 1.5, 1 + 1e-13]  # right, wrong, and so that it must be looked at more closely


class Questions:
    """A product of two inputs, and what its two functions are called with."""

    def __init__(self, factor=1.0):
        self.factor, self.arrays = factor, []

    def forward(self, x, y):
        self.arrays += [x, y]
        return np.asarray((np.sin(x) * y).sum())

    def backward(self, d_output, x, y):
        self.arrays += [d_output, x, y]
        d_x, d_y = self.factor * d_output * np.cos(x) * y, d_output * np.sin(x)
        return np.asarray(d_x, x.dtype), np.asarray(d_y, y.dtype)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("factor", FACTORS)
def test_everything_that_a_function_is_given_is_an_array(factor, shape, dtype, method):
    inputs = {"x": np.full(shape, 0.7, dtype), "y": np.full(shape, 0.3, dtype)}
    asked = Questions(factor)
    check(asked.forward, asked.backward, inputs, method=method)
    numerical_gradient(asked.forward, inputs, 1.0, method=method)
    step_errors(asked.forward, inputs, entries=2)
    assert all(type(x) is np.ndarray for x in asked.arrays)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("factor", FACTORS)
def test_no_point_is_nan_or_far_away_or_of_another_sign(factor, method):
    inputs = {"x": np.array([0.5, 2.0, 3.0]), "y": -np.array([1.0, 1.5, 0.3])}
    asked = Questions(factor)
    check(asked.forward, asked.backward, inputs, method=method)
    for x in (x for x in asked.arrays if x.shape == (3,)):
        near = [(x.real / start).min() > 0 and np.abs(x.real).max() <= 5 for start in inputs.values()]
        assert any(near), x


def root(x):
    """By Newton's method, which does not end for negative numbers, nor for NaN."""
    y, calls = np.ones_like(x), 0
    while True:
        step = (x / y - y) / 2
        y = y + step
        calls += 1
        if all(abs(step) < 1e-9 * abs(y)):
            return y
        if calls > 1000:
            pytest.fail(f"it does not end for {x}")


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("factor", [1.0, 1.5, 1 + 1e-6])
def test_a_solver_that_ends_only_near_the_point_is_checked(factor, method):
    report = check(root, lambda d, x: factor * d / 2 / np.sqrt(x), {"x": np.array([1.0, 2.0, 5.0])}, method=method)
    assert report.ok == (factor == 1)


def test_a_solver_of_differential_equations_is_checked():
    integrate = pytest.importorskip("scipy.integrate", reason="needs SciPy: pip install attention-np[check]")
    start = np.array([1.0, 2.0])

    def forward(k):
        return integrate.solve_ivp(lambda _, y: -k * y, (0, 1), start, rtol=1e-10, atol=1e-12).y[:, -1]

    def backward(d_output, k):
        return -np.exp(-k) * (d_output @ start)

    assert check(forward, backward, {"k": np.array([0.7])}, rtol=1e-6).ok
    assert not check(forward, lambda d, k: 1.01 * backward(d, k), {"k": np.array([0.7])}, rtol=1e-6).ok
