import warnings

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.measuring.step_errors import ORDERS, step_errors

from .programs import normal, softmax

EPS = float(np.finfo(float).eps)


def slope(x, y):
    """Of the line through the logarithms."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


TRUNCATION = {  # where the formula's own error is far above rounding, and its next term far below
    "forward differences": (1e-5, 1e-3),
    "central differences": (1e-3, 3e-2),
    "extrapolated once": (1e-2, 1e-1),
    "extrapolated twice": (3e-2, 2e-1),
    "complex step": (1e-5, 1e-2),
}


@each("formula", ORDERS)
def test_the_error_of_long_steps_grows_with_the_order_of_the_formula(formula):
    steps = np.geomspace(*TRUNCATION[formula], 9)
    found = step_errors(lambda x: softmax(4 * x), {"x": normal(4, 5)}, steps=steps, entries=20)
    slopes = [slope(steps, error) for error in found.errors[formula].T]
    assert np.median(slopes) == pytest.approx(ORDERS[formula], abs=0.05)


@each("formula", [formula for formula in ORDERS if formula != "complex step"])
def test_the_error_of_short_steps_grows_as_they_shrink(formula):
    steps = np.geomspace(1e-13, 1e-9, 41)
    found = step_errors(softmax, {"scores": normal(4, 5)}, steps=steps, entries=20)
    assert slope(steps, found.errors[formula].mean(axis=1)) == pytest.approx(-1, abs=0.15)


def test_the_complex_step_is_exact_to_rounding_however_short():
    found = step_errors(softmax, {"scores": normal(4, 5)}, steps=[1e-9, 1e-12, 1e-30, 1e-100], entries=20)
    assert found.errors["complex step"].shape == (4, 20)
    assert found.errors["complex step"].max() < 4 * EPS
    assert found.reference == "the complex step"


def test_a_wrong_gradient_stays_apart_at_every_step_and_a_right_one_does_not():
    x, u = normal(6), normal(6, seed=1)
    right = u * np.cos(x)
    wrong = right.copy()
    wrong[2] += 1e-3 * np.abs(right).max()
    for gradient, apart in ((right, 0), (wrong, 1e-3)):
        found = step_errors(np.sin, {"x": x}, u, gradient={"x": gradient}, steps=[1e-3, 1e-9, 1e-16])
        assert found.reference == "the claimed gradient"
        assert [index for _, index in found.places] == [(k,) for k in range(6)]
        assert found.errors["complex step"][1:, 2] == pytest.approx([apart, apart], rel=1e-2, abs=4 * EPS)
        assert found.errors["extrapolated twice"][0, 2] == pytest.approx(apart, rel=1e-2, abs=1e-12)
        assert np.delete(found.errors["complex step"][1:], 2, axis=1).max() < 4 * EPS


def test_a_complex_step_that_misleads_is_shown_but_not_believed():
    x = np.array([2.0, 2.5, 3.0])
    found = step_errors(lambda x: x * np.abs(x), {"x": x}, np.ones(3), steps=[1e-8])
    assert found.reference == "differences at their best steps"
    assert found.errors["complex step"][0] == pytest.approx(x / 6)  # it gives |x| where the slope is 2 |x|
    assert found.errors["central differences"].max() < 1e-6


@each("forward", [lambda x: np.sin(x.astype(float, casting="safe")), lambda x: x * np.cos(x.astype(float))])
def test_a_function_that_refuses_complex_arrays_or_loses_the_imaginary_part_has_the_other_formulas(forward):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = step_errors(forward, {"x": normal(3)})
    assert list(found.errors) == [formula for formula in ORDERS if formula != "complex step"]


def test_entries_are_drawn_from_all_inputs_without_repetition():
    inputs = {"a": normal(30), "b": normal(3, 20)}
    found = step_errors(lambda a, b: np.sin(a).sum() + np.sin(b).sum(), inputs, entries=60, steps=[1e-4])
    assert len(set(found.places)) == 60
    assert {name for name, _ in found.places} == {"a", "b"}
    for column, (name, index) in enumerate(found.places):
        x, largest = inputs[name][index], np.abs(np.cos(inputs[name])).max()
        size = max(abs(x), np.median(np.abs(inputs[name])))
        expected = np.abs(np.sin(x)) * 2.0 ** np.floor(np.log2(size)) * 1e-4 / 2
        assert found.errors["forward differences"][0, column] == pytest.approx(expected / largest, rel=0.15, abs=1e-7)


def test_steps_that_leave_the_domain_have_no_error_and_raise_no_warning():
    found = step_errors(np.log, {"x": np.array([0.5, 0.6])}, steps=[2.0, 1e-3])
    assert np.isnan(found.errors["central differences"][0]).all()
    assert (found.errors["central differences"][1] < 1e-5).all()


def test_what_is_given_is_not_written_to():
    x = normal(3)
    before = x.copy()

    def forward(x):
        result = np.sin(x)
        x[...] = 7
        return result

    found = step_errors(forward, {"x": x}, np.ones(3), gradient={"x": np.cos(x)}, steps=[1e-30])
    assert (x == before).all()
    assert found.errors["complex step"].max() < 4 * EPS


X = {"x": np.ones((2, 3))}


@each(
    ("options", "message"),
    [
        (
            {"cotangent": np.ones(3)},
            r"cotangent must have the shape of the output, \(2, 3\) \(cotangent.shape=\(3,\)\)",
        ),
        ({"gradient": X}, r"cotangent must be given with gradient: the one it was computed for, \(2, 3\)"),
        ({"gradient": {"y": 1.0}, "cotangent": X["x"]}, "gradient has 'y', which is not among the inputs: x"),
        (
            {"gradient": {"x": np.ones((3, 2))}, "cotangent": X["x"]},
            r"the gradient of x has the shape \(3, 2\), the input \(2, 3\)",
        ),
        ({"entries": 0}, "entries must be at least 1, not 0"),
        ({"steps": []}, r"steps must be a list of positive numbers \(steps.shape=\(0,\)\)"),
        ({"steps": 1e-3}, r"steps must be a list of positive numbers \(steps.shape=\(\)\)"),
        ({"steps": [0.0, 1.0]}, "steps must be a list of positive numbers"),
        ({"steps": [np.inf]}, "steps must be a list of positive numbers"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        step_errors(np.sin, X, **options)


def test_inputs_with_different_references_name_both():
    found = step_errors(
        lambda x, y: np.sin(x) * np.abs(y), {"x": np.array([0.5, 1.0]), "y": np.array([2.0, -3.0])}, rng=0
    )
    assert found.reference == "differences at their best steps and the complex step"


def test_sixteen_entries_are_drawn_unless_another_number_is_asked_for_or_there_are_fewer():
    def places(x=None, steps=(1e-3,), **options):
        x = np.linspace(0.1, 1, 40) if x is None else x
        found = step_errors(np.sin, {"x": x}, steps=steps, **options)
        assert found.steps.dtype == np.float64
        np.testing.assert_array_equal(found.steps, steps)
        return found.places

    assert len(places()) == 16
    assert places() == places(rng=0) != places(rng=1)
    assert len(places(entries=1)) == 1
    assert len(places(normal(3), np.float32([0.25, 0.5]))) == 3
    assert places(np.float64(0.5), [1, 2]) == (("x", ()),)
    with pytest.raises(ValueError, match="there is no entry to differentiate by"):
        places(np.ones((0, 3)))


@each("dtype", ["float32", "float64"])
def test_inputs_are_looked_at_in_double_and_an_output_of_one_number_has_the_cotangent_one(dtype):
    x = normal(3).astype(dtype)
    found = step_errors(lambda x: (x**2).sum(), {"x": x}, gradient={"x": 2 * x}, steps=[1e-3])
    assert found.errors["central differences"].max() < 1e-10
    assert found.errors["extrapolated once"].max() < 1e-10


def test_errors_of_a_gradient_that_is_zero_are_absolute():
    found = step_errors(np.cos, {"x": np.zeros(1)}, steps=[2.0**-7])
    np.testing.assert_allclose(found.errors["forward differences"], [[2.0**-8]], rtol=1e-4)


def test_a_function_that_warns_of_something_else_takes_complex_steps():
    def forward(x):
        warnings.warn("this is slow", UserWarning, stacklevel=2)
        return np.sin(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = step_errors(forward, {"x": np.ones(2)}, steps=[1e-3])
    assert "complex step" in found.errors


def test_differences_that_errors_are_taken_against_are_those_at_the_best_steps():
    found = step_errors(lambda x: np.sin(100 * x.real), {"x": np.linspace(0.5, 1.2, 8)})
    assert found.reference == "differences at their best steps"
    assert (np.nanmin(found.errors["extrapolated twice"], axis=0) < 1e-9).all()


def test_only_the_inputs_that_a_gradient_is_claimed_for_are_looked_at():
    x, y = normal(6), normal(6, seed=1)
    inputs = {"x": x, "y": y}
    found = step_errors(np.multiply, inputs, np.ones(6), gradient={"y": x}, steps=[1e-3])
    assert found.places == tuple(("y", (k,)) for k in range(6))
    assert found.errors["central differences"].max() < 1e-11
