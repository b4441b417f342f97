"""A constant factor: when one is found, and how it is shown."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck.agreement import WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose
from attention_np.gradcheck.diagnosis.factors import _are_round

from .evidence import EPS, RIGHT, evidence_of, evidence_with, linear_evidence, matrices, noises, said_of, seeds
from .planted import FUNCTIONS
from .programs import normal


def test_a_factor_near_a_name_but_clearly_not_it_has_no_name():
    forward, backward, inputs = FUNCTIONS["attention"]
    found = evidence_of(forward, lambda *a: [(np.sqrt(8) + 1e-9) * g for g in backward(*a)], inputs, "query")
    assert diagnose(found) == "it is 2.82842713 times the numerical gradient throughout"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda d, x: -d * np.cos(x), "it is -1 times the numerical gradient throughout"),
        (lambda d, x: 2 * d * np.cos(x), "it is 2 times the numerical gradient throughout"),
        (lambda d, x: 0.73 * d * np.cos(x), "it is 0.73 times the numerical gradient throughout"),
        (lambda d, x: 0 * d * x, "it is zero throughout"),
        (lambda d, x: d * np.sin(x), None),
        (lambda d, x: d * x, None),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_ratio_is_a_factor_only_if_it_is_no_accident(wrong, expected, shape):
    x = np.full(shape, normal(seed=1))
    assert diagnose(evidence_of(np.sin, lambda *a: (wrong(*a),), {"x": x}, "x")) == expected


def test_round_inputs_make_round_ratios_of_wrong_formulas():
    found = evidence_of(lambda x: 1 / x, lambda d, x: (-d / x,), {"x": np.array(2.0)}, "x")
    np.testing.assert_allclose(found.analytic["x"], 2 * found.numerical["x"])
    assert diagnose(found) is None


def test_three_ratios_of_a_single_entry_make_a_factor():
    forward, backward, inputs = FUNCTIONS["wave"]
    found = evidence_of(forward, lambda *a: [g / np.pi for g in backward(*a)], inputs, "gain")
    assert diagnose(found) == "it is 0.318309886 times the numerical gradient throughout"


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (np.pi, "wrong only at index 2 of axis 0"),
        (-1, "wrong only at index 2 of axis 0, where it is -1 times the numerical gradient"),
    ],
)
def test_one_wrong_entry_of_an_elementwise_function_has_some_ratio_whatever_is_wrong(factor, expected):
    assert of_an_elementwise_function(factor, at=[2]) == expected


def test_two_wrong_entries_of_an_elementwise_function_have_the_same_ratio_by_no_accident():
    said = "wrong only at the indices 2 and 4 of axis 0, where it is 3.14159265 times the numerical gradient"
    assert of_an_elementwise_function(np.pi, at=[2, 4]) == said


def of_an_elementwise_function(factor, at):
    """What is said where some of six entries have a factor."""
    rng = np.random.default_rng(0)
    right = np.diag(rng.standard_normal(6))
    wrong = right * np.where(np.isin(np.arange(6), at), factor, 1)
    return diagnose(linear_evidence(right, wrong, (6,), (6,), rng))


@pytest.mark.parametrize(("noise", "shown"), [(3e-6, "3.142"), (3e-5, "3.14"), (3e-4, "3.1")])
def test_a_factor_is_shown_with_the_digits_that_are_known(noise, shown):
    said = said_of(lambda g, _: np.pi * g, (20, 20), noise=noise)
    assert said == f"it is {shown} times the numerical gradient throughout"


@given(matrices, matrices, seeds, noises, st.sampled_from([-1, 2, 0.5, -2, 1.7, 0.01, 300]))
def test_a_factor_is_found_in_any_shape(shape, output_shape, seed, noise, factor):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    sentence = diagnose(linear_evidence(right, factor * right, shape, output_shape, rng, noise))
    assert sentence.startswith(f"it is {factor:g} times the numerical gradient throughout")


def test_entries_so_small_that_their_noise_is_lost_do_not_hide_a_factor():
    sizes = np.where(np.arange(6) % 3, 1.0, 1e-310)
    assert of_ratios(np.random.default_rng(0).standard_normal((3, 6)) * sizes) == PI_TIMES


def test_an_index_of_which_all_is_noise_has_no_factor():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((3, 2, 4)) * np.array([[1.0], [1e-12]])
    claimed = right * np.array([[np.e], [1e5]])
    floor = np.full((2, 4), 1e-9)
    x, u = rng.standard_normal((2, 4)), rng.standard_normal((3, 7))
    found = Evidence("x", {"x": x}, u[0], u, {"x": claimed}, {"x": right}, floor, np.ones((2, 4), int), None, {})
    assert "own factor" not in str(diagnose(found))


def test_factors_along_an_axis_are_said_with_four_digits():
    found = evidence_with(factor=np.array([np.pi / 10, 1.0, 10 * np.pi])[:, np.newaxis])
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3142 to 31.42"


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2, 2), "each index of axis 0 has its own factor, 0.3 to 2.718"),
        ((2, 1), None),  # of one entry each, any two numbers are multiples
    ],
)
def test_a_factor_of_an_index_explains_two_wrong_entries_at_least(shape, sentence):
    factors = np.array([0.3, np.e])[:, np.newaxis]
    said = said_of(lambda g, _: factors * g, shape)
    assert said == sentence or (sentence is None and "own factor" not in str(said))


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_factors_along_an_axis_are_said_at_any_scale(size):
    right = size * RIGHT
    wrong = np.array([0.3, 1.0, np.e])[:, np.newaxis] * right
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (3, 4), (7,), np.random.default_rng(2))
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3 to 2.718"


def of_ratios(right, factor=np.pi, output_shape=(7,)):
    """What is said where the gradient for three cotangents, (3, entries), is claimed to be a multiple of itself."""
    right = np.asarray(right, float)
    x = np.random.default_rng(3).standard_normal(right.shape[1])
    u, output = np.random.default_rng(4).standard_normal((2, 3, *output_shape))
    floor, verdict = 1e-15 * abs(right[0]), np.full(x.shape, WRONG)
    found = Evidence("x", {"x": x}, output[0], u, {"x": factor * right}, {"x": right}, floor, verdict, None, {})
    return diagnose(found)


PI_TIMES = "it is 3.14159265 times the numerical gradient throughout"


@pytest.mark.parametrize(
    ("right", "said"),
    [([[1.3], [0.7], [0.0]], PI_TIMES), ([[0.0], [0.7], [1.3]], PI_TIMES), ([[1.3], [0.0], [0.0]], None)],
)
def test_two_ratios_make_a_factor_where_one_may_be_any_number(right, said):
    assert of_ratios(right) == said


@pytest.mark.parametrize(("entries", "factor", "said"), [(3, np.pi, PI_TIMES), (2, np.pi, None), (2, 2.0, "it is 2")])
def test_of_a_single_output_it_takes_the_ratios_of_three_entries(entries, factor, said):
    right = np.multiply.outer([1.3, 0.7, -0.4], [1.0, 3.7, 0.29][:entries])  # alike for every cotangent
    found = of_ratios(right, factor, output_shape=())
    assert found == said or (said is not None and found.startswith(said))


@pytest.mark.parametrize(
    ("factor", "said"), [(-1.0, "it is -1 times the numerical gradient throughout"), (2.0, None), (-2.0, None)]
)
def test_of_round_inputs_the_sign_alone_is_no_accident(factor, said):
    x = {"x": np.array(2.0)}
    assert diagnose(evidence_of(lambda x: 1 / x, lambda d, x: (-factor * d / x**2,), x, "x")) == said


def test_an_index_that_one_entry_tells_of_has_its_factor_too_and_one_of_zeros_has_none():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 4, 4))
    right[:, 2, 1:] = right[:, 3] = 0
    wrong = right * np.array([0.3, np.e, 50.0, 7.0])[:, np.newaxis]
    found = linear_evidence(right.reshape(7, 16), wrong.reshape(7, 16), (4, 4), (7,), rng)
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3 to 50"


@pytest.mark.parametrize(
    ("x", "precision", "expected"),
    [
        ([1.23, 45600.0, -7e-5, 0.0], EPS, True),
        (np.float32(0.1), EPS, False),  # which is another number
        (np.float32(0.25), EPS, True),
        ([1.23, 1.234], EPS, False),
        ([0.1 + 0.2], EPS, True),  # but for its last place
        ([1.23e6 + 1e-4], 1e-10, True),
        ([1.23e6 + 1e-3], 1e-10, False),
        ([1.23e-6 + 1e-16], 1e-10, True),
        ([1.23e-6 + 1e-15], 1e-10, False),
    ],
)
def test_numbers_are_round_that_have_three_digits_as_far_as_they_are_known(x, precision, expected):
    assert _are_round(np.array(x), precision) == expected
