import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, NotAnalyticError, numerical_gradient

from ..programs import normal, real_only, sine_in_single

EXACT = {"complex-step": 1e-15, "central": 1e-9, "auto": 1e-15}


@each("method", [*METHODS, "auto"])
@each("dtype", ["float16", "float32", "float64", "longdouble"])
@each("shape", [(), (5,), (2, 3), (2, 0), (35,)])
def test_the_gradient_of_each_element_is_that_of_the_formula_in_double(method, dtype, shape):
    x, y, u = (normal(*shape, seed=k, dtype=t) for k, t in enumerate((dtype, float, float)))
    found = numerical_gradient(lambda a, b: np.sin(a) * np.exp(b), {"a": x, "b": y}, u, method=method)
    wide = x.astype(np.longdouble)
    expected = {"a": u * np.cos(wide) * np.exp(y), "b": u * np.sin(wide) * np.exp(y)}
    assert list(found) == ["a", "b"]
    for name, gradient in found.items():
        assert (gradient.shape, gradient.dtype) == (shape, np.float64)
        size = np.abs(expected[name]).max(initial=0)
        np.testing.assert_allclose(gradient, expected[name].astype(float), rtol=0, atol=EXACT[method] * size)


@each(
    ("forward", "derivative"),
    [(lambda x: np.abs(x) * x, lambda x: 2 * np.abs(x)), (real_only(np.square), lambda x: 2 * x)],
)
def test_auto_takes_differences_for_the_inputs_by_which_the_function_is_not_analytic(forward, derivative):
    x, y, u = np.array([0.5, -1.5, 2.0]), normal(3), normal(3, seed=1)
    found = numerical_gradient(lambda x, y: forward(x) + np.sin(y), {"x": x, "y": y}, u)
    np.testing.assert_allclose(found["x"], u * derivative(x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["y"], u * np.cos(y), rtol=0, atol=1e-9)
    with pytest.raises(NotAnalyticError, match=r"no complex arrays here.*use central"):
        numerical_gradient(real_only(np.sin), {"x": x}, u, method="complex-step")


def test_a_function_that_takes_single_precision_only_is_differentiated_in_it():
    x = np.linspace(0.3, 2, 5, dtype=np.float32)
    for method in ("auto", "central"):
        found = numerical_gradient(sine_in_single, {"x": x}, np.ones(5), method=method)["x"]
        np.testing.assert_allclose(found, np.cos(x.astype(float)), rtol=0, atol=1e-3)
