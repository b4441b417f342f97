"""Gradients of other libraries checked with one call: right ones hold, and planted errors are found and named."""

from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from helpers import normal

from .adapted import LIBRARIES, Library, inputs_of_attention


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


def test_a_function_that_is_right_holds_to_full_precision_by_the_complex_step(library: Library) -> None:
    report = library.adapter.check(library.scaled(0.0), (library.array(normal(0, 5)), 0.5))
    assert [entry.name for entry in report] == ["x"]
    assert report.ok
    assert report["x"].method == "complex-step"
    assert report["x"].max_relative_error < 1e-15


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_a_planted_error_is_found_where_it_is(library: Library, method: str) -> None:
    x = library.array(normal(0, 5))
    function, arguments, place = library.scaled(1e-9), (x, 0.5), (4,)
    if method == "central":
        function, arguments, place = library.softplus(1e-6), (x,), (0,)
    report = library.adapter.check(function, arguments)
    assert not report.ok
    assert (report["x"].worst_index, report["x"].method) == (place, method)
    with pytest.raises(AssertionError, match="gradient does not hold for x"):
        library.adapter.check(function, arguments).raise_if_failed()


def test_a_function_that_is_not_analytic_is_checked_by_differences(library: Library) -> None:
    report = library.adapter.check(library.softplus(0.0), library.array(normal(0, 5)))
    assert report.ok
    assert report["x"].method == "central"


def test_attention_holds_in_double_precision(library: Library) -> None:
    inputs = inputs_of_attention(library)
    report = library.adapter.check(library.attention, inputs)
    assert [entry.name for entry in report] == list(inputs)
    assert report.ok
    assert max(entry.max_relative_error for entry in report) < library.digits


def test_all_floating_outputs_count_nested_ones_too(library: Library) -> None:
    def function(x: Any, wrong: bool) -> Any:
        square = x**2
        return {"sum": x.sum(), "rest": [library.constant(square) if wrong else square, 7.0]}

    x = library.array(normal(0, 3))
    assert library.adapter.check(function, (x, False)).ok
    assert not library.adapter.check(function, (x, True)).ok


def test_arguments_may_be_nested_and_those_that_are_not_floating_arrays_are_passed_on(library: Library) -> None:
    def gather(layer: Any, index: Any, nothing: None, power: int, scale: float, *rest: Any) -> Any:
        assert nothing is None
        assert isinstance(power, int)
        assert isinstance(scale, float)
        return (layer["w"][index] * layer["b"] * rest[0]) ** power * scale

    layer = {"w": library.array(normal(0, 3)), "b": library.array(normal(1, 2)), "mask": library.array([True])}
    inputs = (layer, library.array(np.array([0, 2])), None, 2, np.float64(0.5), library.array(normal(2, 2)))
    report = library.adapter.check(gather, inputs)
    assert {entry.name for entry in report} == {"layer.w", "layer.b", "input 5"}
    assert report.ok


def test_an_input_that_is_not_used_has_a_zero_gradient(library: Library) -> None:
    x, unused = library.array(normal(0, 3)), library.array(normal(1, 3))
    report = library.adapter.check(lambda x, unused: x**2, [x, unused])
    assert report.ok
    assert (report["unused"].analytic, report["unused"].note) == (0, None)
    assert library.adapter.check(lambda x: library.constant(library.sine(x) * 0 + 1), x).ok


@pytest.mark.parametrize("from_numpy", [False, True], ids=["its own", "NumPy's"])
def test_the_gradients_of_complex_functions_hold_and_those_of_conjugates_do_too(
    library: Library, from_numpy: bool
) -> None:
    z = normal(0, 3) + 1j * normal(1, 3)
    given = z if from_numpy else library.array(z)
    report = library.adapter.check(lambda z: (z**3, abs(z) ** 2), given)
    assert [entry.name for entry in report] == ["z.real", "z.imag"]
    assert report.ok, str(report)
    assert not library.adapter.check(lambda z: z**2 + library.constant(z) * z, given).ok


def test_a_complex_output_of_real_arrays_holds(library: Library) -> None:
    assert library.adapter.check(lambda x: x**2 * (1 + 2j), library.array(normal(0, 3))).ok


def test_a_loss_of_no_axis_holds(library: Library) -> None:
    assert library.adapter.check(lambda x: (x**2).sum(), library.array(normal(0, 3))).ok


def test_what_cannot_be_checked_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="no floating-point array"):
        library.adapter.check(library.sine, library.array(np.arange(3)))
    with pytest.raises(TypeError, match="must return at least one array"):
        library.adapter.check(lambda x: library.argmax(x), library.array(normal(0, 3)))


def test_options_reach_the_check(library: Library) -> None:
    (entry,) = library.adapter.check(library.sine, library.array(normal(0, 3)), method="central")
    assert entry.method == "central"
    with pytest.raises(ValueError, match="method must be"):
        library.adapter.check(library.sine, library.array(normal(0, 3)), method="guess")


def test_the_example_of_the_documentation_finds_its_error(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    exec(dedent(str(library.adapter.__doc__).partition("::\n")[2]), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "yes" not in printed
