"""The verdicts on entries: what a closer look excuses, and what slopes along directions show."""

import numpy as np
import pytest

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDABLE, WRONG
from attention_np.gradcheck.checking import _cotangents
from attention_np.gradcheck.judging.measured import Candidate, Measured
from attention_np.gradcheck.judging.verdicts import CLOSER, _hunt, _projections, decide
from attention_np.gradcheck.measuring.functions import as_generator, first_call, in_double_precision, on_copies
from attention_np.gradcheck.measuring.running import Running

from .programs import bilinear, bilinear_backward, normal, square_inputs, with_entry

EPS = float(np.finfo(float).eps)


def measured(forward, backward, inputs, name="x", method="complex-step", seed=0):
    """One input before anything is judged."""
    rng = as_generator(seed)
    first = first_call(forward, backward, inputs, rng)
    point = tuple(in_double_precision(forward, list(inputs.values()), first.output))
    cotangents = _cotangents(first.cotangent, first.output, rng)
    problem = Candidate(lambda *x: on_copies(forward, *x), backward, inputs, point, first, cotangents, seed)
    return Measured(name, problem, problem.subject(name), method, Running())


# The cotangents


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4)])
def test_the_third_cotangent_is_the_first_less_its_component_along_each_row_of_the_output(shape, dtype):
    u, output = normal(*shape, dtype=dtype) / 3, 3 * normal(*shape, seed=1, dtype=dtype)
    eps = float(np.finfo(dtype).eps)
    first, other, orthogonal = found = _cotangents(u, output, np.random.default_rng(7))
    assert found.dtype == np.result_type(dtype, np.float64)
    np.testing.assert_array_equal(first, u)
    assert (abs((orthogonal * output).sum(axis=-1)) <= 50 * eps).all()
    taken_off = first - orthogonal
    squares = (output.astype(np.longdouble) ** 2).sum(axis=-1, keepdims=True)
    multiple = (taken_off * output).sum(axis=-1, keepdims=True) / squares
    np.testing.assert_allclose(taken_off, multiple * output, rtol=0, atol=50 * eps)
    for cotangent in found:  # the functions are given them in the dtype of the output
        np.testing.assert_array_equal(cotangent, cotangent.astype(dtype))
    assert abs(np.corrcoef(first.ravel().astype(float), other.ravel().astype(float))[0, 1]) < 0.9


def test_the_third_cotangent_keeps_what_stands_against_rows_that_are_zero_or_not_finite():
    u, output = normal(4, 5), normal(4, 5, seed=1)
    output[1], output[2, 3], output[3, 0] = 0, np.nan, np.inf
    _, _, orthogonal = _cotangents(u, output, np.random.default_rng(0))
    np.testing.assert_array_equal(orthogonal[1:], u[1:])
    assert orthogonal[0] @ output[0] == pytest.approx(0, abs=1e-14)


def test_of_an_output_of_one_number_nothing_is_left_along_it():
    found = _cotangents(np.array(1.5), np.array(2.0), np.random.default_rng(0))
    assert found.shape == (3,)
    assert (found[0], found[2]) == (1.5, 0)
    assert found[1] not in (0, 1.5)


# What a closer look excuses


def test_a_method_that_was_chosen_is_kept_where_its_slopes_are_right():
    for method in ("complex-step", "central"):
        found = measured(bilinear, bilinear_backward, square_inputs(), method=method)
        found.look(np.arange(9))
        decide(found, "auto", 0.0, 8)
        assert (found.method, found.note, found.escape, found.fault) == (method, None, None, None)
        assert (found.verdict == HOLDS).all()
        assert (found.floor > 0).all()


@pytest.mark.parametrize("rtol", [0.0, 1e-3])
def test_an_error_that_is_allowed_is_allowed_relative_to_the_largest_entry_of_that_input(rtol):
    x = np.array([1e-4, 2e-4, 5e-4])
    slope = np.array([1.0, 3.0, 1.0])

    def backward(d_output, _):
        return d_output * slope + np.array([2e-3, 0, 0.1])

    report = check(lambda x: slope * x, backward, {"x": x}, rtol=rtol)
    largest = abs(report["x"].details.analytic).max()
    expected = np.where(np.array([2e-3, 0, 0.1]) <= rtol * largest, HOLDS, WRONG)
    np.testing.assert_array_equal(report["x"].details.verdict, expected)


def test_an_error_that_is_allowed_does_not_decide_what_was_not_looked_at():
    found = check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(30)}, max_entries=10, rtol=1e-3)["x"]
    assert (found.details.verdict == UNCHECKED).sum() == 20
    assert found.checked == 10


def loses_small_terms(x):
    """Softmax of two, where 1 - p has rounded: the gradient that is computed from p alone is lost."""
    return 1 / (1 + np.exp(-x))


def test_what_a_saturated_output_loses_is_excused_and_a_fixed_multiple_of_the_gradient_is_not():
    inputs = {"x": np.array([37.5, 38.0, 39.0])}

    def backward(d_output, x):
        p = loses_small_terms(x)
        return d_output * p * (1 - p)

    def doubled(d_output, x):
        return 2 * d_output * np.exp(-x)

    assert check(loses_small_terms, backward, inputs, method="complex-step").ok
    assert not check(loses_small_terms, doubled, inputs, method="complex-step").ok


# Along directions


def linear(size=200, seed=3):
    matrix = normal(6, size, seed=seed) / size
    return matrix, lambda x: matrix @ x, lambda d, _: matrix.T @ d


@pytest.mark.parametrize("method", ["complex-step", "central"])
def test_along_a_direction_the_two_gradients_differ_by_what_the_error_has_of_it(method):
    _, forward, backward = linear()
    error = normal(200, seed=4) * 1e-3
    inputs = {"x": normal(200, seed=5)}
    found = measured(forward, lambda d, x: backward(d, x) + error, inputs, method=method)
    directions = normal(5, 200, seed=6) * np.array([1.0, 1e3, 1e-3, 1.0, 1.0])[:, np.newaxis]
    difference, floor = _projections(found, directions)
    assert difference.shape == floor.shape == (5,)
    assert (abs(difference - directions @ error) <= UNDECIDABLE * floor).all()
    size = np.linalg.norm(directions, axis=1)
    assert (floor <= {"complex-step": 1e-14, "central": 1e-8}[method] * size).all()
    assert (floor >= EPS * np.linalg.norm(directions * backward(found.candidate.first.cotangent, None), axis=1)).all()


def test_the_noise_along_one_direction_is_not_that_along_another():
    _, forward, backward = linear()
    found = measured(forward, backward, {"x": normal(200, seed=5)})
    directions = normal(4, 200, seed=6) * np.array([1.0, 1e6, 1e-6, 1.0])[:, np.newaxis]
    _, together = _projections(found, directions)
    for k in range(4):
        _, alone = _projections(found, directions[k : k + 1])
        assert 0.5 < alone[0] / together[k] < 2


@pytest.mark.parametrize("place", [0, 1, 77, 150, 199])
def test_the_entry_behind_a_difference_is_among_the_few_that_are_then_looked_at(place):
    _, forward, backward = linear()
    found = measured(forward, lambda d, x: with_entry(backward(d, x), place, 5.0), {"x": normal(200, seed=5)})
    elements = _hunt(found, normal(200, seed=6))
    assert place in elements
    assert len(elements) <= CLOSER
    assert len(set(elements.tolist())) == len(elements)


def test_what_can_escape_is_measured_by_the_least_size_that_an_entry_has_in_the_directions():
    x = np.array([2.0] * 25 + [1024.0] * 15)

    def forward(x):
        return x**2 / 2

    found = check(forward, lambda d, x: d * x, {"x": x}, max_entries=10, directions=3)["x"]
    gradient = found.details.analytic
    assert found.escape.norm == pytest.approx(2 * np.linalg.norm(gradient), rel=1e-12)
    assert found.escape.entries == 10
    assert 0 < found.escape.threshold < 1e-10 * found.escape.norm


def test_an_error_that_is_allowed_is_allowed_in_very_many_entries():
    x = np.linspace(0.1, 1.4, 1000)
    for rtol, ok in ((1e-6, True), (1e-8, False)):
        report = check(np.sin, lambda d, x: (1 + 1e-7) * d * np.cos(x), {"x": x}, rtol=rtol, vectorized=["x"])
        assert report.ok == ok
