from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, Case, assert_close, assert_same_bits, each, normal, run

from attention_np import feature_map, gradcheck, linear_attention

DIRECTIONS = [None, 4]


def inputs(m: int | None, *shape: int) -> dict[str, Any]:
    given = {"x": normal(0, *shape)}
    return given if m is None else given | {"directions": normal(1, m, shape[-1])}


@each("m", DIRECTIONS)
@each("shape", [(5,), (3, 5), (2, 3, 1)])
def test_gradients_are_numerical_ones_for_any_shape(m: int | None, shape: tuple[int, ...]) -> None:
    report = gradcheck.check_op(feature_map, inputs(m, *shape), method="complex-step")
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


def test_random_features_have_the_mean_and_the_variance_that_the_page_says() -> None:
    query, key, count = np.array([0.4, -0.2]), np.array([0.3, 0.5]), 2**20
    directions = normal(0, count, 2)
    products = np.multiply(*(feature_map.forward(x, directions)[0] for x in (query, key))) * count
    mean, spread = np.exp(query @ key), np.expm1(((query + key) ** 2).sum())  # the variance over the squared mean
    assert abs(products.mean() / mean - 1) < 4 * np.sqrt(spread / count)
    assert abs(products.var() / mean**2 / spread - 1) < 0.02


@each("m", DIRECTIONS)
def test_a_column_of_ones_among_the_values_is_the_sum_that_weights_are_divided_by(m: int | None) -> None:
    (query, key), value, n = normal(2, 2, 6, 4), normal(3, 6, 3), 6
    f, p = (feature_map.forward(**(inputs(m, 6, 4) | {"x": x}))[0] for x in (query, key))
    output, _ = linear_attention.forward(f, p, np.concatenate([value, np.ones((n, 1))], axis=-1), scale=1.0)
    weights = np.tril(f @ p.T)
    assert (weights[np.tril_indices(n)] > 0).all()
    assert_close(output[:, :-1] / output[:, -1:], weights / weights.sum(axis=-1, keepdims=True) @ value, 1e-14)


def test_elu_of_what_is_far_from_zero_is_zero_or_a_line() -> None:
    x = np.array([-np.inf, -800.0, -0.0, 0.0, 1e308, np.inf])
    results = run(Case(feature_map, {"x": x}, {}), np.ones(6), {"x": np.ones(6)})
    assert_same_bits(results.output, np.array([0, 0, 1, 1, 1e308, np.inf]))
    for slope in (results.gradients["x"], results.jvp):
        assert_same_bits(slope, np.array([0.0, 0, 1, 1, 1, 1]))


@each("size", [1e100, 1e200])
def test_a_feature_of_a_large_row_is_that_of_its_distance_from_the_direction(size: float) -> None:
    x = size * np.array([[1.0, 0.0], [1.0, 0.0]])
    features, cache = feature_map.forward(x, np.array([[1.0, 0.0], [1e-200, 0.0]]))
    assert_same_bits(features, np.zeros((2, 2)))
    assert_same_bits(feature_map.backward(np.ones((2, 2)), cache).x, np.zeros((2, 2)))


@each("m", DIRECTIONS)
@each("poison", [np.nan, np.inf, -np.inf])
def test_a_row_without_an_incoming_gradient_has_none_whatever_it_holds(m: int | None, poison: Any) -> None:
    case = Case(feature_map, inputs(m, 3, 4), {})
    d_output = normal(2, *case.forward()[0].shape)
    d_output[1] = 0
    expected = run(case, d_output).gradients
    case.inputs["x"][1] = poison
    for name, gradient in run(case, d_output).gradients.items():
        assert_close(gradient, expected[name], 1e-15)


@each(
    ("changed", "message"),
    [
        ({"x": np.array(1.0)}, r"x must have at least one axis, .*\(x\.shape=\(\)\)"),
        (
            {"directions": np.ones(4)},
            r"directions must have the shape \(m, 4\) \(directions\.shape=\(4,\), x\.shape=\(2, 4\)",
        ),
        ({"directions": np.ones((3, 5))}, r"directions must have the shape \(m, 4\) \(directions\.shape=\(3, 5\)"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        feature_map.forward(**{"x": np.ones((2, 4)), **changed})


def test_the_root_of_the_number_of_directions_has_the_digits_of_the_dtype() -> None:
    output, _ = feature_map.forward(np.zeros((1, 3), np.longdouble), np.zeros((5, 3), np.longdouble))
    assert_close(output, np.full((1, 5), 1 / np.sqrt(np.longdouble(5))), 2 * float(np.finfo(np.longdouble).eps))
