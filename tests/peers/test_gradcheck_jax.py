"""JAX's gradients checked with one call: those that are right hold, and planted errors are found and named."""

from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import normal

from attention_np import gradcheck
from attention_np.gradcheck.jax import assert_gradients, check

jax = pytest.importorskip("jax", reason="the adapter for JAX needs jax: pip install attention-np[peers]")
numpy = jax.numpy


def scaled_sine(wrong_by: float = 0.0) -> Any:
    """The sine of a multiple; the last entry of its gradient is wrong by a relative amount."""

    def forward(x: Any, scale: float) -> Any:
        return numpy.sin(x * scale), (x, scale)

    def backward(residuals: Any, d_output: Any) -> Any:
        x, scale = residuals
        return (d_output * numpy.cos(x * scale) * scale).at[-1].multiply(1 + wrong_by), None

    function = jax.custom_vjp(lambda x, scale: forward(x, scale)[0])
    function.defvjp(forward, backward)
    return function


def softplus(wrong_by: float = 0.0) -> Any:
    """A function that loses imaginary parts; the first entry of its tangent is wrong by a relative amount."""
    function = jax.custom_jvp(lambda x: numpy.log1p(numpy.exp(-abs(x))) + numpy.maximum(x.real, 0))

    @function.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (d_x,) = primals, tangents
        return function(x), (jax.nn.sigmoid(x) * d_x).at[0].multiply(1 + wrong_by)

    return function


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["as it is", "jit"])
def test_a_custom_vjp_that_is_right_holds_to_full_precision_by_the_complex_step(transform: Any) -> None:
    report = check(transform(scaled_sine()), (normal(0, 5), 0.5))
    assert [entry.name for entry in report] == ["x"]
    assert report.ok
    assert report["x"].method == "complex-step"
    assert report["x"].max_relative_error < 1e-15


@pytest.mark.parametrize(
    ("function", "arguments", "place"),
    [(scaled_sine(1e-9), (0.5,), (4,)), (softplus(1e-6), (), (0,))],
    ids=["custom_vjp", "custom_jvp"],
)
def test_a_planted_error_is_found_where_it_is(function: Any, arguments: tuple[float, ...], place: Any) -> None:
    report = check(function, (normal(0, 5), *arguments))
    assert not report.ok
    assert report["x"].worst_index == place
    with pytest.raises(AssertionError, match="gradient does not hold for x"):
        assert_gradients(function, (normal(0, 5), *arguments))


def test_a_function_that_is_not_analytic_is_checked_by_differences() -> None:
    report = check(softplus(), normal(0, 5))
    assert report.ok
    assert report["x"].method == "central"


def attention(query: Any, key: Any, value: Any) -> Any:
    return jax.nn.softmax(query @ numpy.swapaxes(key, -1, -2) / 2, axis=-1) @ value


def test_attention_holds_in_double_precision() -> None:
    inputs = {"query": normal(0, 2, 3, 4), "key": normal(1, 2, 5, 4), "value": normal(2, 2, 5, 2)}
    report = check(jax.jit(attention), inputs)
    assert [entry.name for entry in report] == list(inputs)
    assert report.ok
    assert max(entry.max_relative_error for entry in report) < 1e-13


def test_the_state_of_jax_is_left_as_it_was() -> None:
    def fails(x: Any) -> Any:
        assert x.dtype == numpy.float64
        raise RuntimeError("on purpose")

    assert check(numpy.sin, normal(0, 3)).ok
    assert numpy.ones(1).dtype == numpy.float32
    with pytest.raises(RuntimeError, match="on purpose"):
        check(fails, normal(0, 3))
    assert numpy.ones(1).dtype == numpy.float32


def test_what_a_function_of_single_precision_makes_itself_stays_single() -> None:
    dtypes = set()

    def function(x: Any) -> Any:
        dtypes.add((x.dtype.name, numpy.ones(3).dtype.name))
        return x * numpy.ones(3)

    assert check(function, numpy.asarray(normal(0, 3))).ok
    assert ("float32", "float32") in dtypes
    assert ("float32", "float64") not in dtypes


def test_single_precision_is_judged_by_what_it_holds() -> None:
    x = numpy.asarray(normal(0, 5))
    assert check(numpy.tanh, x).ok
    assert not check(scaled_sine(1e-4), (x, 0.5)).ok


class Layer(NamedTuple):
    weights: Any
    activation: Any


def test_pytrees_go_in_and_come_out() -> None:
    def network(layers: Any, x: Any, wrong: str) -> Any:
        for layer in layers:
            x = layer.activation(x @ layer.weights["w"] + layer.weights["b"])
        outputs = {"x": x, "total": x.sum()}
        outputs |= {wrong: jax.lax.stop_gradient(outputs[wrong])} if wrong else {}
        return {**outputs, "rest": [numpy.argmax(x.real), None]}

    layers = [Layer({"w": normal(i, 3, 3), "b": normal(i + 5, 3)}, numpy.tanh) for i in range(2)]
    inputs = {"layers": layers, "x": normal(9, 2, 3)}
    report = check(network, {**inputs, "wrong": ""})
    names = [f"layers.{i}.weights.{name}" for i in range(2) for name in "bw"]
    assert [entry.name for entry in report] == [*names, "x"]
    assert report.ok
    for output in ("x", "total"):
        assert not check(network, {**inputs, "wrong": output}).ok


def test_arguments_that_are_not_floating_arrays_are_passed_on_as_they_are() -> None:
    def gather(x: Any, index: Any, nothing: None, power: int, scale: float, *rest: Any) -> Any:
        assert nothing is None
        assert isinstance(power, int)
        assert isinstance(scale, float)
        return (x[index] * rest[0]) ** power * scale

    inputs = (normal(0, 3), np.array([0, 2]), None, 2, np.float64(0.5), numpy.asarray(normal(1, 2)))
    report = check(gather, inputs)
    assert [entry.name for entry in report] == ["x", "input 5"]
    assert report.ok


def test_an_input_that_is_not_used_has_a_zero_gradient() -> None:
    report = check(lambda x, unused: x**2, [normal(0, 3), normal(1, 3)])  # noqa: ARG005
    assert report.ok
    assert report["unused"].analytic == 0


@pytest.mark.parametrize("as_array", [numpy.asarray, np.asarray], ids=["JAX", "NumPy"])
def test_complex_inputs_are_refused(as_array: Any) -> None:
    with pytest.raises(TypeError, match=r"^x is complex"):
        check(lambda x: abs(x), as_array(np.ones(3) * 1j))


def test_complex_outputs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^output\.1 of function is complex"):
        check(lambda x: (x, x * 1j), normal(0, 3))


def test_types_that_numpy_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^x holds bfloat16, which NumPy does not have"):
        check(lambda x: x, numpy.ones(3, numpy.bfloat16))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ValueError, match="no real floating-point array"):
        check(abs, numpy.arange(3))
    with pytest.raises(TypeError, match="must return at least one array"):
        check(lambda x: numpy.argmax(x), normal(0, 3))


def test_options_reach_the_check() -> None:
    assert check(lambda x: numpy.sin(x), normal(0, 3), method="central")["x"].method == "central"
    with pytest.raises(ValueError, match="method must be"):
        check(numpy.sin, normal(0, 3), method="guess")


def test_the_example_of_the_documentation_finds_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(gradcheck.jax.__doc__).partition("::\n")[2]
    exec(dedent(example), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "yes" not in printed
