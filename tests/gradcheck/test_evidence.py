"""What is claimed and what is measured of one input: here, next door, in a wider dtype, and elsewhere."""

import numpy as np
import pytest
from helpers import each
from hypothesis import example, given
from hypothesis import strategies as st

from attention_np.gradcheck import METHODS
from attention_np.gradcheck.evidence import (
    FAR,
    Pair,
    elsewhere,
    line_noise,
    neighbor_differences,
    neighbor_in_last_bits,
    noise_of_pair,
)

from .evidence import EPS, evidence_of
from .programs import bilinear, bilinear_backward, normal, square_inputs

TOLERANCE = {"complex-step": 1e-14, "central": 1e-9}
NO_WIDER = np.finfo(np.longdouble).eps >= EPS


@each("dtype", ["float16", "float32", "float64", "longdouble"])
def test_every_entry_moves_by_one_to_four_last_bits_up_or_down(dtype):
    x = np.concatenate([np.full(100, 1.5), np.full(100, -1.25)]).astype(dtype)
    y = neighbor_in_last_bits(x, np.random.default_rng(0))
    assert y.dtype == x.dtype
    assert set((y - x) / np.abs(np.spacing(x))) == {-4, -3, -2, -1, 1, 2, 3, 4}


@given(st.floats(allow_subnormal=False))
@example(float(np.finfo(float).max))
def test_what_is_zero_or_not_finite_stays_and_everything_else_stays_finite(number):
    x = np.full(8, number)
    y = neighbor_in_last_bits(x, np.random.default_rng(0))
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(x))
    if number == 0 or not np.isfinite(number):
        np.testing.assert_array_equal(y, x)
    elif abs(number) < np.finfo(float).max:
        assert (y != x).any()


def test_elsewhere_is_close_by_and_zeros_are_moved_up_and_by_a_part_of_one_at_most():
    x, zeros, mask = normal(50, dtype="float32"), np.zeros(50), np.where(np.arange(50) % 2, -1e9, 0.0)
    there = elsewhere([x, zeros, mask], np.random.default_rng(0))
    assert [y.dtype for y in there] == [np.float32, float, float]
    assert 0 < np.abs(there[0] / x - 1).min() < np.abs(there[0] / x - 1).max() <= FAR * (1 + 1e-4)
    for y in (there[1], there[2][::2]):
        assert 0 < y.min() < y.max() <= FAR


def pair(noise, wrong=0.0):
    """The slope of a square, claimed with an error, and with noise of so much of it."""
    rng = np.random.default_rng(1)
    return Pair(
        lambda u, inputs: u * 2 * inputs[0] * (1 + wrong + noise * rng.choice([-1, 1])),
        lambda u, inputs: u * 2 * inputs[0],
    )


QUESTION = np.ones(3), [np.array([1.0, -2.0, 3.0])]


@each("wrong", [0.0, 1e-3, 1.0])
def test_next_door_an_error_stays_and_noise_does_not(wrong):
    right = wrong * 2 * QUESTION[1][0]
    found = neighbor_differences(pair(0.0, wrong), QUESTION, np.random.default_rng(0))
    assert found.shape == (4, 3)
    np.testing.assert_allclose(found, np.broadcast_to(right, (4, 3)), rtol=1e-14, atol=1e-14)
    noisy = neighbor_differences(pair(1e-6, wrong), QUESTION, np.random.default_rng(0))
    np.testing.assert_allclose(np.abs(noisy - right), np.abs(np.broadcast_to(2e-6 * QUESTION[1][0], (4, 3))), rtol=1e-6)


def none():
    return None


@each(
    ("of", "wider", "slight", "most", "least"),
    [
        (pair(0.0, 1e-3), none, False, 1e-15, 0),  # an error
        (pair(1e-6, 1e-3), none, False, 4e-5, 2e-6),  # and noise
        (pair(0.0, 1e-3), lambda: 2e-3 * QUESTION[1][0], False, 1e-15, 0),  # an error in a wider dtype, too
        (pair(0.0, 1e-3), lambda: 0 * QUESTION[1][0], False, 6e-3, 1.99e-3),  # which is gone there
        (pair(0.0, 1e-3), lambda: np.full(3, np.nan), False, 1e-15, 0),
        (pair(0.0, 1e-9), none, True, 1e-14, 0),
    ],
)
def test_noise_is_what_changes_next_door_or_in_a_wider_dtype(of, wider, slight, most, least):
    difference = of.difference(*QUESTION)
    noise = noise_of_pair(of, QUESTION, difference, wider, np.random.default_rng(0), np.full(3, slight))
    assert (noise >= least).all()
    assert (noise <= most).all()


@each(("claimed", "noisy"), [(lambda x: 1 - x * x, True), (lambda x: (1 - x) * (1 + x), False)])
def test_on_a_line_the_rounding_shows_of_what_stays_the_same_next_door(claimed, noisy):
    x = np.full(3, 1 - 3e-9)  # 1 - x * x has lost nine digits, and a last bit of x changes it by little
    of = Pair(lambda u, inputs: u * claimed(inputs[0]), lambda u, inputs: u * (1 - inputs[0]) * (1 + inputs[0]))
    noise = line_noise(of, (np.ones(3), [x]), np.random.default_rng(0))
    assert (noise > EPS / 8).all() if noisy else (noise < EPS / 64).all()


@each("method", METHODS)
def test_both_ways_to_a_few_entries_and_along_directions_agree_here_and_elsewhere(method):
    found = evidence_of(bilinear, bilinear_backward, square_inputs(), method=method, look=False)
    assert not found.looked.any()
    assert np.isnan(found.slopes).all()
    elements, directions = np.array([7, 2, 4]), normal(4, 3, 3, seed=5)
    found.look(elements, best=True)
    np.testing.assert_array_equal(np.flatnonzero(found.looked), [2, 4, 7])
    np.testing.assert_array_equal(np.isnan(found.slopes).all(axis=0), ~found.looked)
    u, point = found.problem.question
    for way, of in (
        (found.pair(elements), lambda d_x: d_x.ravel()[elements]),
        (found.directional_pair(directions), lambda d_x: np.tensordot(directions, d_x, 2)),
    ):
        for cotangent, place in ((u, point), (2 * u, [x + 0.1 for x in point])):
            right = of(bilinear_backward(cotangent, *place)[0])
            np.testing.assert_allclose(way.claimed(cotangent, place), right, rtol=1e-14)
            np.testing.assert_allclose(way.measured(cotangent, place), right, rtol=0, atol=TOLERANCE[method])
    np.testing.assert_array_equal(found.pair(elements).measured(u, point), found.measured[elements])
    right = [bilinear_backward(v, *point)[0].ravel()[elements] for v in found.problem.cotangents]
    np.testing.assert_allclose(found.slopes[:, elements], right, rtol=0, atol=TOLERANCE[method])


@pytest.mark.skipif(NO_WIDER, reason="there is no wider dtype than float64")
@each("error", [0.0, 1e-12])
def test_in_a_wider_dtype_an_error_stays_and_rounding_does_not(error):
    def backward(d, x):
        return d * ((x * 10001 - x * 10000) + error)

    elements = np.arange(4)
    found = evidence_of(lambda x: x * x / 2, backward, {"x": np.linspace(1, 2, 4)})
    u = found.problem.cotangents[0]
    np.testing.assert_allclose(found.in_wider_dtype(elements), error * u, rtol=1e-2, atol=1e-15)
    narrow = evidence_of(lambda x: x * x / 2, lambda d, x: np.asarray(backward(d, x), float), {"x": np.ones(4)})
    assert narrow.in_wider_dtype(elements) is None
    other = found.second_opinion(elements, best=True)
    right = u * np.linspace(1, 2, 4)
    assert other.values.dtype == np.longdouble
    assert (np.abs(other.values[:, 0] - right) <= 10 * other.errors + EPS).all()
