import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attention_np import gradcheck
from attention_np.gradcheck import METHODS, NotAnalyticError, numerical_gradient
from attention_np.gradcheck.numerical import TASK_ELEMENTS

EXACT = {"complex-step": 1e-15, "central": 1e-9, "auto": 1e-15}


def normal(*shape, seed=0, dtype=float):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 0), (0,), (2, 1, 3), (TASK_ELEMENTS * 2 + 3,)])
def test_the_gradient_of_each_element_is_that_of_the_formula(method, shape):
    x, y, u = normal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    found = numerical_gradient(lambda a, b: np.sin(a) * np.exp(b), {"a": x, "b": y}, u, method=method)
    expected = {"a": u * np.cos(x) * np.exp(y), "b": u * np.sin(x) * np.exp(y)}
    assert list(found) == ["a", "b"]
    for name, gradient in found.items():
        assert gradient.shape == shape
        assert gradient.dtype == np.float64
        size = np.abs(expected[name]).max(initial=0)
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=EXACT[method] * size)


@pytest.mark.parametrize("method", METHODS)
def test_the_output_may_have_any_shape_and_couple_the_elements(method):
    x, u = normal(3, 4), normal(2, 3, 3, seed=1)
    found = numerical_gradient(lambda a: np.stack([a @ a.T, -a @ a.T]), {"a": x}, u, method=method)["a"]
    d = u[0] - u[1]
    np.testing.assert_allclose(found, (d + d.T) @ x, rtol=0, atol=EXACT[method] * np.abs(found).max() * 4)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("method", METHODS)
def test_inputs_and_outputs_of_any_size_are_differentiated_as_well_as_ordinary_ones(method, scale):
    x, u = normal(6), normal(6, seed=1)
    for output_scale in (1e-12, 1.0, 1e12):
        found = numerical_gradient(lambda a, c=output_scale: np.sin(a / scale) * c, {"a": x * scale}, u, method=method)[
            "a"
        ]
        expected = u * np.cos(x) / scale * output_scale
        np.testing.assert_allclose(found, expected, rtol=0, atol=2 * EXACT[method] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float16", "float32", "longdouble"])
@pytest.mark.parametrize("method", METHODS)
def test_inputs_of_every_dtype_are_differentiated_in_double(method, dtype):
    x, u = normal(4, dtype=dtype), normal(4, seed=1, dtype=dtype)
    found = numerical_gradient(np.sin, {"x": x}, u, method=method)["x"]
    expected = u.astype(np.longdouble) * np.cos(x.astype(np.longdouble))
    np.testing.assert_allclose(found, expected.astype(float), rtol=0, atol=EXACT[method])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_not_looked_at_may_hold_anything(method, strange):
    x = np.array([0.5, strange, 1.0])
    found = numerical_gradient(lambda a: np.sin(a[[0, 2]]), {"a": x}, np.ones(2), method=method)["a"]
    np.testing.assert_allclose(found, [np.cos(0.5), 0, np.cos(1.0)], rtol=0, atol=EXACT[method])


@pytest.mark.parametrize("method", METHODS)
def test_an_input_that_is_not_used_has_the_gradient_zero(method):
    found = numerical_gradient(lambda a, b: np.sin(a), {"a": normal(3), "b": normal(2)}, np.ones(3), method=method)  # noqa: ARG005
    np.testing.assert_array_equal(found["b"], np.zeros(2))


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_a_function_that_writes_to_its_inputs_is_differentiated_at_the_point_that_was_given(method):
    def forward(a, b):
        a *= b
        b[...] = 0
        return a

    x, y = normal(3), normal(3, seed=1)
    inputs = {"a": x.copy(), "b": y.copy()}
    found = numerical_gradient(forward, inputs, np.ones(3), method=method)
    np.testing.assert_allclose(found["a"], y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["b"], x, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(inputs["a"], x)
    np.testing.assert_array_equal(inputs["b"], y)


@pytest.mark.parametrize("method", METHODS)
def test_a_function_sees_arrays_even_where_an_input_is_a_single_number(method):
    def forward(x):
        assert isinstance(x, np.ndarray)
        return x * x

    assert numerical_gradient(forward, {"x": 3.0}, 1.0, method=method)["x"] == pytest.approx(6, rel=1e-10)


NOT_ANALYTIC = {
    "abs": (lambda x: np.abs(x) * x, lambda x: 2 * np.abs(x)),
    "real": (lambda x: np.real(x) ** 2, lambda x: 2 * x),
    "a real part of it": (lambda x: np.real(x) * x, lambda x: 2 * x),
    "a conjugate": (lambda x: np.conj(x) * x + x, lambda x: 2 * x + 1),
    "hypot": (lambda x: np.hypot(x, 1.0), lambda x: x / np.hypot(x, 1)),
    "norm": (lambda x: np.linalg.norm(x) * x[:1], None),
    "a cast": (lambda x: np.array([float(v) ** 2 for v in x]), lambda x: 2 * x),
    "astype": (lambda x: x.astype(float) ** 2, lambda x: 2 * x),
    "astype of a part": (lambda x: x.astype(float) * x, lambda x: 2 * x),
    "math": (lambda x: np.frompyfunc(lambda v: v if v > 0 else -v, 1, 1)(x.real).astype(float), np.sign),
    "an error of its own": (None, lambda x: 2 * x),
}


def refuses(x):
    if x.dtype.kind == "c":
        raise RuntimeError("no complex arrays here")
    return x**2


@pytest.mark.parametrize("what", NOT_ANALYTIC)
def test_auto_takes_central_differences_where_the_function_is_not_analytic(what):
    forward, derivative = NOT_ANALYTIC[what]
    forward = forward or refuses
    x = np.array([0.5, -1.5, 2.0])
    u = np.random.default_rng(1).standard_normal(np.shape(forward(x)))
    auto = numerical_gradient(forward, {"x": x}, u)["x"]
    central = numerical_gradient(forward, {"x": x}, u, method="central")["x"]
    np.testing.assert_array_equal(auto, central)
    if derivative is not None:
        np.testing.assert_allclose(auto, u * derivative(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_auto_sees_that_a_function_is_not_analytic_whatever_the_size_of_its_inputs(scale):
    x = np.array([0.5, -1.5, 2.0]) * scale
    found = numerical_gradient(lambda a: np.abs(a) * a, {"a": x}, np.ones(3))["a"]
    np.testing.assert_allclose(found, 2 * np.abs(x), rtol=1e-8)


def test_auto_keeps_the_warnings_of_its_trial_to_itself():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = numerical_gradient(lambda x: x.astype(float) * x, {"x": np.array([0.5, 2.0])}, np.ones(2))["x"]
    assert not seen
    np.testing.assert_allclose(found, [1.0, 4.0], rtol=1e-9)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: np.where(x > 0, x, 0.1 * x),
        lambda x: np.maximum(x, 0) * x,
        lambda x: np.sin(1e6 * x),
        lambda x: np.sin(1e-9 * x),
        lambda x: np.exp(100 * x),
        lambda x: 1e-12 * x,
        lambda x: np.tanh(50 * x),
        lambda x: x + 1e9,
    ],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_auto_takes_the_complex_step_where_the_function_is_analytic_however_steep_or_flat(forward, scale):
    inputs = {"x": np.array([0.5, -1.5, 2.0, 0.3]) * scale}
    auto = numerical_gradient(forward, inputs, np.ones(4))["x"]
    exact = numerical_gradient(forward, inputs, np.ones(4), method="complex-step")["x"]
    np.testing.assert_array_equal(auto, exact)


def test_auto_takes_the_complex_step_for_a_steep_function_of_zeros():
    found = numerical_gradient(lambda x: np.sin(1e12 * x), {"x": np.zeros(2)}, np.ones(2))["x"]
    np.testing.assert_allclose(found, [1e12, 1e12], rtol=1e-15)


@pytest.mark.parametrize("what", ["abs", "real", "hypot", "a cast", "an error of its own"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_a_complex_step_that_does_not_apply_says_so(what):
    forward = NOT_ANALYTIC[what][0] or refuses
    if what == "abs":
        forward = np.abs
    with pytest.raises(NotAnalyticError, match=r"^forward (refuses complex|turns complex).* use central"):
        numerical_gradient(forward, {"x": np.array([0.5, 1.0])}, np.ones(2), method="complex-step")


def test_not_analytic_is_a_value_error_that_keeps_its_cause():
    assert issubclass(NotAnalyticError, ValueError)
    with pytest.raises(NotAnalyticError, match="no complex arrays here") as raised:
        numerical_gradient(refuses, {"x": np.ones(2)}, np.ones(2), method="complex-step")
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize("method", METHODS)
def test_an_executor_changes_no_bit(method):
    x, u = normal(TASK_ELEMENTS + 7), normal(TASK_ELEMENTS + 7, seed=1)
    here = numerical_gradient(np.cumprod, {"x": x}, u, method=method)["x"]
    with ThreadPoolExecutor(3) as executor:
        there = numerical_gradient(np.cumprod, {"x": x}, u, method=method, executor=executor)["x"]
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "forward", [np.sin, lambda x: x**3, lambda x: np.exp(3 * x), lambda x: np.tanh(20 * x), lambda x: 1e8 + x]
)
def test_the_error_of_a_method_is_bounded_by_its_estimate(method, forward):
    x, u = np.linspace(-1.1, 1.3, 9), normal(9, seed=1)
    found, error = (part["x"] for part in numerical_gradient(forward, {"x": x}, u, method=method, return_error=True))
    wide = numerical_gradient(forward, {"x": x.astype(np.longdouble)}, u, method="complex-step")["x"]
    rounding = 1e-14 * np.abs(wide)  # 20 * x is rounded before tanh sees it
    assert (np.abs(found - wide) <= 3 * error + rounding).all()
    assert (error <= (rounding if method == "complex-step" else 1e-6 * np.abs(wide) + 1e-6)).all()


def test_a_single_precision_function_has_an_honest_estimate():
    def forward(x):
        return np.exp(2 * x.astype(np.float32))

    x = np.linspace(-1, 1, 5)
    found, estimate = numerical_gradient(forward, {"x": x}, np.ones(5), method="central", return_error=True)
    found, estimate = found["x"], estimate["x"]
    error = np.abs(found - 2 * np.exp(2 * x))
    assert error.max() > 1e-6
    assert (error <= 3 * estimate).all()
    assert (estimate < 1e-1 * found.max()).all()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([np.ones(2)], TypeError, "^inputs must be a mapping of names to arrays, not list$"),
        (np.ones(2), TypeError, "^inputs must be a mapping of names to arrays, not ndarray$"),
        ({}, ValueError, "^inputs must hold at least one array"),
        ({"x": [1, 2]}, TypeError, r"^input x must hold real floating-point numbers, not int64 \(x.shape=\(2,\)\)$"),
        ({"x": 3}, TypeError, r"^input x must hold real .* not int64 \(x.shape=\(\)\)$"),
        (
            {"a": np.ones(1), "x": np.ones(2) * 1j},
            TypeError,
            "^input x is complex: .* parts as two inputs",
        ),
        ({"x": [True]}, TypeError, "^input x must hold real .* not bool"),
        ({"x": None}, TypeError, "^input x must hold real .* not object"),
        ({"x": "abc"}, TypeError, "^input x must hold real .* not <U3"),
    ],
)
def test_inputs_that_cannot_be_differentiated_by_are_refused(inputs, error, message):
    with pytest.raises(error, match=message):
        numerical_gradient(lambda *x: x[0] * 1.0, inputs, np.ones(2))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0, 2.0], "^forward must return one array, not list$"),
        ((np.ones(2), None), "^forward must return one array, not tuple$"),
        (None, "^forward must return one array, not NoneType$"),
        (3, "^forward must return one array, not int$"),
        (np.array([1, 2]), "^forward must return real floating-point numbers, not int64$"),
        (np.array([1j, 2]), "^forward must return real numbers, not complex128: return the real and imaginary parts"),
        (np.array([True]), "^forward must return real floating-point numbers, not bool$"),
        (np.array([None]), "^forward must return real floating-point numbers, not object$"),
    ],
)
def test_outputs_that_cannot_be_differentiated_are_refused(result, message):
    with pytest.raises(TypeError, match=message):
        numerical_gradient(lambda _: result, {"x": np.ones(2)}, np.ones(2))


@pytest.mark.parametrize("cotangent", [1.0, np.ones(2), np.ones((3, 1)), np.ones((1, 3))])
def test_a_cotangent_of_another_shape_is_refused_with_both_shapes(cotangent):
    with pytest.raises(ValueError, match=r"^cotangent must have the shape of the output, \(3,\) \(cotangent.shape="):
        numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)


@pytest.mark.parametrize("method", ["complex", "", None, "CENTRAL", 3])
def test_an_unknown_method_is_refused_with_those_there_are(method):
    with pytest.raises(ValueError, match=r"^method must be 'auto', 'complex-step' or 'central', not "):
        numerical_gradient(np.sin, {"x": np.ones(3)}, np.ones(3), method=method)


def test_the_package_shows_what_a_user_needs():
    assert set(gradcheck.__all__) <= set(dir(gradcheck))
    assert METHODS == ("complex-step", "central")
