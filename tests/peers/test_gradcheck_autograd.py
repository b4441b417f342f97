"""Autograd's gradients checked with one call: those that are right hold, and planted errors are found and named."""

from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from helpers import normal

from attention_np import gradcheck
from attention_np.gradcheck.autograd import assert_gradients, check

REASON = "the adapter for autograd needs autograd: pip install attention-np[peers]"
autograd = pytest.importorskip("autograd", reason=REASON)
numpy = pytest.importorskip("autograd.numpy", reason=REASON)
extend = pytest.importorskip("autograd.extend", reason=REASON)
builtins = pytest.importorskip("autograd.builtins", reason=REASON)


def scaled_exp(wrong_by: float = 0.0) -> Any:
    """The exponential of a multiple; the last entry of its gradient is wrong by a relative amount."""

    @extend.primitive
    def function(x: Any, scale: float) -> Any:
        return np.exp(x * scale)

    def pull_back(output: Any, x: Any, scale: float) -> Any:
        factor = np.where(np.arange(x.size) == x.size - 1, 1 + wrong_by, 1)
        return lambda d_output: d_output * output * scale * factor

    extend.defvjp(function, pull_back, None)
    return lambda x, scale: function(x, scale)


def softplus(wrong_by: float = 0.0) -> Any:
    """A function that is not analytic; the first entry of its gradient is wrong by a relative amount."""
    function = extend.primitive(lambda x: np.log1p(np.exp(-abs(x))) + np.maximum(x.real, 0))

    def pull_back(output: Any, x: Any) -> Any:  # noqa: ARG001
        return lambda d_output: d_output / (1 + np.exp(-x)) * np.where(np.arange(x.size) == 0, 1 + wrong_by, 1)

    extend.defvjp(function, pull_back)
    return lambda x: function(x)


def test_a_primitive_that_is_right_holds_to_full_precision_by_the_complex_step() -> None:
    report = check(scaled_exp(), (normal(0, 5), 0.5))
    assert [entry.name for entry in report] == ["x"]
    assert report.ok
    assert report["x"].method == "complex-step"
    assert report["x"].max_relative_error < 1e-15


@pytest.mark.parametrize(
    ("function", "arguments", "place"),
    [(scaled_exp(1e-9), (0.5,), (4,)), (softplus(1e-6), (), (0,))],
    ids=["complex step", "central differences"],
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
    scores = numpy.einsum("...ia,...ja->...ij", query, key) / 2
    weights = numpy.exp(scores)
    return (weights / numpy.sum(weights, axis=-1, keepdims=True)) @ value


def test_attention_holds() -> None:
    inputs = {"query": normal(0, 2, 3, 4), "key": normal(1, 2, 5, 4), "value": normal(2, 2, 5, 2)}
    report = check(attention, inputs)
    assert [entry.name for entry in report] == list(inputs)
    assert report.ok
    assert max(entry.max_relative_error for entry in report) < 1e-13


@pytest.mark.parametrize("types", [(dict, list), (builtins.dict, builtins.list)], ids=["Python's", "autograd's"])
def test_all_floating_outputs_count_nested_ones_too(types: Any) -> None:
    as_dict, as_list = types

    def function(x: Any, wrong: bool) -> Any:
        square = x**2
        last = autograd.tracer.getval(square) if wrong else square
        return as_dict({"sum": numpy.sum(x), "rest": as_list([last, 7.0])})

    assert check(function, (normal(0, 3), False)).ok
    assert not check(function, (normal(0, 3), True)).ok


def test_arguments_may_be_nested_and_those_that_are_not_floating_arrays_are_passed_on() -> None:
    def gather(layer: Any, index: Any, nothing: None, power: int, scale: float) -> Any:
        assert nothing is None
        assert isinstance(power, int)
        assert isinstance(scale, float)
        return (layer["w"][index] * layer["b"]) ** power * scale

    report = check(gather, ({"w": normal(0, 3), "b": normal(1, 2)}, np.array([0, 2]), None, 2, np.float64(0.5)))
    assert [entry.name for entry in report] == ["layer.w", "layer.b"]
    assert report.ok


def test_a_single_number_comes_out_and_an_input_of_no_axis_goes_in() -> None:
    assert_gradients(lambda x, y: x * numpy.sum(y), {"x": np.array(2.0), "y": normal(0, 3)})


def test_an_input_that_is_not_used_has_a_zero_gradient() -> None:
    report = check(lambda x, unused: x**2, [normal(0, 3), normal(1, 3)])  # noqa: ARG005
    assert report.ok
    assert report["unused"].analytic == 0
    assert check(lambda x: numpy.ones(3), normal(0, 3)).ok  # noqa: ARG005


def test_complex_inputs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^x is complex"):
        check(lambda x: abs(x), np.ones(3) * 1j)


def test_complex_outputs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^output\.1 of function is complex"):
        check(lambda x: (x, x * 1j), normal(0, 3))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ValueError, match="no real floating-point array"):
        check(numpy.tanh, 1.0)
    with pytest.raises(TypeError, match="must return at least one array"):
        check(lambda x: numpy.argmax(x), normal(0, 3))


def test_options_reach_the_check() -> None:
    assert check(numpy.sin, normal(0, 3), method="central")["input 0"].method == "central"
    with pytest.raises(ValueError, match="method must be"):
        check(numpy.sin, normal(0, 3), method="guess")


def test_the_example_of_the_documentation_finds_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(gradcheck.autograd.__doc__).partition("::\n")[2]
    exec(dedent(example), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "yes" not in printed
