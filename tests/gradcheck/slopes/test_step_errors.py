import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.slopes.step_errors import ORDERS, step_errors

from ..programs import normal, softmax

EPS = float(np.finfo(float).eps)
TRUNCATION = {  # where the formula's own error is far above rounding, and its next term far below
    "forward differences": (1e-5, 1e-3),
    "central differences": (1e-3, 3e-2),
    "extrapolated once": (1e-2, 1e-1),
    "extrapolated twice": (3e-2, 2e-1),
    "complex step": (1e-5, 1e-2),
}


def slope(x, y):
    """Of the line through the logarithms."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


@each("formula", ORDERS)
def test_the_error_of_long_steps_grows_with_the_order_of_the_formula_and_that_of_short_ones_as_they_shrink(formula):
    steps = np.geomspace(*TRUNCATION[formula], 9)
    found = step_errors(lambda x: softmax(4 * x), {"x": normal(4, 5)}, steps=steps, entries=20)
    slopes = [slope(steps, error) for error in found.errors[formula].T]
    assert np.median(slopes) == pytest.approx(ORDERS[formula], abs=0.05)
    steps = np.geomspace(1e-13, 1e-9, 41)
    found = step_errors(softmax, {"x": normal(4, 5)}, steps=steps, entries=20)
    if formula == "complex step":
        assert found.errors[formula].max() < 4 * EPS
    else:
        assert slope(steps, found.errors[formula].mean(axis=1)) == pytest.approx(-1, abs=0.15)


def test_a_wrong_gradient_stays_apart_at_every_step_and_a_right_one_does_not():
    x, u = normal(6), normal(6, seed=1)
    right = u * np.cos(x)
    wrong = right.copy()
    wrong[2] += 1e-3 * np.abs(right).max()
    for gradient, apart in ((right, 0), (wrong, 1e-3)):
        inputs = {"y": normal(6), "x": x}
        found = step_errors(lambda y, x: y + np.sin(x), inputs, u, gradient={"x": gradient}, steps=[1e-3, 1e-9, 1e-16])
        assert found.reference == "the claimed gradient"
        assert found.places == tuple(("x", (k,)) for k in range(6))
        assert found.errors["complex step"][1:, 2] == pytest.approx([apart, apart], rel=1e-2, abs=4 * EPS)
        assert found.errors["extrapolated twice"][0, 2] == pytest.approx(apart, rel=1e-2, abs=1e-12)
        assert np.delete(found.errors["complex step"][1:], 2, axis=1).max() < 4 * EPS


def test_a_complex_step_that_misleads_is_shown_but_not_believed_and_each_reference_is_named():
    inputs = {"x": np.array([2.0, 2.5, 3.0]), "y": normal(3)}
    found = step_errors(lambda x, y: x * np.abs(x) + np.sin(y), inputs, np.ones(3), steps=[1e-8])
    assert found.reference == "differences at their best steps and the complex step"
    assert found.errors["complex step"][0, :3] == pytest.approx(
        inputs["x"] / 6
    )  # it gives |x| where the slope is 2 |x|
    assert found.errors["central differences"].max() < 1e-6
