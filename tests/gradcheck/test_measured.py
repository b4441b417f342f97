"""Two functions at one point: what they are asked, in which dtype, and what is kept of the answers."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.measuring.numerical import METHODS

from .programs import bilinear, bilinear_backward, normal, sine_in_single, square_inputs
from .subjects import every_entry, measured


def test_a_function_of_single_precision_is_measured_at_the_same_point_in_double():
    found = measured(bilinear, bilinear_backward, square_inputs(dtype="float32"))
    problem = found.candidate
    assert [x.dtype for x in problem.point] == [np.float64] * 2
    assert problem.first.output.dtype == np.float32
    assert problem.output.dtype == np.float64
    np.testing.assert_array_equal(problem.output, bilinear(*problem.point))
    assert problem.wide
    assert problem.subject("x").unit == np.finfo(np.float32).eps


def test_a_function_of_single_precision_alone_is_asked_in_that_here_and_elsewhere_and_is_not_wide():
    found = measured(sine_in_single, lambda d, x: d * np.cos(x), {"x": normal(4, dtype="float32")})
    assert not found.candidate.wide
    assert found.candidate.output is found.candidate.first.output
    u, (x,) = found.candidate.question
    slopes = found.pair(np.arange(4)).measured(2 * u, [x + np.float32(0.1)])
    np.testing.assert_allclose(slopes, 2 * u * np.cos(x + np.float32(0.1)), rtol=1e-6)


@each("dtype", ["float32", "float64"])
def test_backward_is_given_a_cotangent_of_the_output_here_and_of_the_inputs_elsewhere_and_copies_of_those(dtype):
    seen = []

    def backward(d_output, x, y):
        seen.append((d_output.dtype, x.dtype))
        result = bilinear_backward(d_output, x, y)
        x *= 0
        return result

    inputs = square_inputs(dtype=dtype)
    problem = measured(bilinear, backward, inputs).candidate
    u = problem.cotangents[0]
    assert u.dtype == np.float64
    seen.clear()
    here = problem.gradients(u)
    wide = [x.astype(np.longdouble) for x in inputs.values()]
    elsewhere = problem.gradients(u, wide)
    assert seen == [(np.dtype(dtype),) * 2, (np.dtype(np.longdouble),) * 2]
    assert list(here) == ["x", "y"]
    assert (here["y"].dtype, elsewhere["y"].dtype) == (np.dtype(dtype), np.dtype(np.longdouble))
    for x, same in zip(inputs.values(), square_inputs(dtype=dtype).values(), strict=True):
        np.testing.assert_array_equal(x, same)
    assert (wide[0] != 0).all()


def test_randomness_is_its_own_for_each_input_and_purpose_and_the_same_again():
    found = measured(bilinear, bilinear_backward, square_inputs())
    other = measured(bilinear, bilinear_backward, square_inputs(), name="y")

    def draws(rng):
        return rng.random(4).tolist()

    assert draws(found.rng("one")) == draws(found.rng("one")) == draws(found.candidate.rng("x", "one"))
    different = [draws(rng) for rng in (found.rng("one"), found.rng("two"), other.rng("one"))]
    assert len({tuple(numbers) for numbers in different}) == 3
    assert draws(measured(bilinear, bilinear_backward, square_inputs(), seed=1).rng("one")) != different[0]


@each("method", METHODS)
def test_both_ways_to_a_few_entries_and_along_directions_agree_here_and_elsewhere(method):
    inputs = square_inputs()
    found = measured(bilinear, bilinear_backward, inputs, method=method)
    assert not found.looked.any()
    assert np.isnan(found.numerical).all()
    elements, directions = np.array([7, 2, 4]), normal(4, 3, 3, seed=5)
    found.look(elements, best=True)
    np.testing.assert_array_equal(np.flatnonzero(found.looked), [2, 4, 7])
    np.testing.assert_array_equal(np.isnan(found.numerical).all(axis=0), ~found.looked)
    tolerance = {"complex-step": 1e-14, "central": 1e-9}[method]
    u, point = found.candidate.question
    for pair, of in (
        (found.pair(elements), lambda d_x: d_x.ravel()[elements]),
        (found.pair_along(directions), lambda d_x: np.tensordot(directions, d_x, 2)),
    ):
        for cotangent, place in ((u, point), (2 * u, [x + 0.1 for x in point])):
            right = of(bilinear_backward(cotangent, *place)[0])
            np.testing.assert_allclose(pair.claimed(cotangent, place), right, rtol=1e-14)
            np.testing.assert_allclose(pair.measured(cotangent, place), right, rtol=0, atol=tolerance)
    values = found.slopes_along(directions).values
    np.testing.assert_array_equal(found.pair(elements).measured(u, point), found.numerical[0, elements])
    np.testing.assert_array_equal(found.pair_along(directions).measured(u, point), values[:, 0])
    expected = [np.tensordot(directions, bilinear_backward(v, *point)[0], 2) for v in found.candidate.cotangents]
    np.testing.assert_allclose(values.T, expected, rtol=0, atol=10 * tolerance)


def test_along_directions_nothing_is_lost_of_extended_precision():
    found = measured(bilinear, bilinear_backward, square_inputs(dtype="longdouble"))
    directions = normal(4, 3, 3, seed=5)
    u, point = found.candidate.question
    claimed = found.pair_along(directions).claimed(u, point)
    assert claimed.dtype == np.longdouble
    right = np.tensordot(directions.astype(np.longdouble), bilinear_backward(u, *point)[0], 2)
    np.testing.assert_allclose(claimed, right, rtol=100 * np.finfo(np.longdouble).eps)


def test_slopes_of_single_precision_inputs_are_measured_in_double_elsewhere_too():
    found = measured(bilinear, bilinear_backward, square_inputs(dtype="float32"))
    found.look(np.arange(9))
    u, point = found.candidate.question
    wide = [x.astype(float) for x in point]
    right = bilinear_backward(u.astype(float), *wide)[0]
    elements = np.arange(9)
    np.testing.assert_allclose(found.pair(elements).measured(u, point), right.ravel(), rtol=0, atol=1e-12)
    directions = normal(2, 3, 3)
    expected = np.tensordot(directions, right, 2)
    np.testing.assert_allclose(found.pair_along(directions).measured(u, point), expected, rtol=0, atol=1e-12)


@pytest.mark.skipif(np.finfo(np.longdouble).eps >= np.finfo(float).eps, reason="there is no wider dtype than float64")
def test_a_question_in_extended_precision_is_answered_in_that():
    found = measured(np.sin, lambda d, x: d * np.cos(x), {"x": normal(4)})
    u, x = (array.astype(np.longdouble) for array in (found.candidate.question[0], found.candidate.question[1][0]))
    x += np.longdouble(1) / 3
    slopes = found.pair(np.arange(4)).measured(u, [x])
    assert slopes.dtype == np.longdouble
    np.testing.assert_allclose(slopes, u * np.cos(x), rtol=20 * np.finfo(np.longdouble).eps)


def test_what_is_looked_at_again_is_not_one_more_entry_done():
    done = []
    found = measured(np.sin, lambda d, x: d * np.cos(x), {"x": normal(5)})
    found.running = replace(found.running, advance=done.append)
    found.look(np.arange(5), key="x")
    assert sum(done) == 5
    found.look(np.arange(5), best=True)
    found.slopes_along(every_entry(found.subject))
    found.pair(np.arange(5)).measured(*found.candidate.question)
    assert sum(done) == 5
