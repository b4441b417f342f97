"""JAX's gradients checked with one call: those that are right hold, and planted errors are found and named."""

from typing import Any, NamedTuple

import pytest
from helpers import normal

from attention_np.gradcheck.jax import check

from .adapted import LIBRARIES

jax = pytest.importorskip("jax", reason="the adapter for JAX needs jax: pip install attention-np[peers]")
numpy = jax.numpy


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
    assert not check(LIBRARIES["jax"]().scaled(1e-4), (x, 0.5)).ok


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


def test_types_that_numpy_does_not_have_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^x holds bfloat16, which NumPy does not have"):
        check(lambda x: x, numpy.ones(3, numpy.bfloat16))


def test_a_jitted_function_is_checked_as_it_is() -> None:
    function = jax.jit(LIBRARIES["jax"]().scaled(0.0))
    assert check(function, (normal(0, 5), 0.5))["x"].method == "complex-step"
