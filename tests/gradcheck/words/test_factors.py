"""A constant factor: when there is one, how it is shown, and what it may be."""

import numpy as np
from helpers import each
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck.verdict.judging import UNDECIDED, WRONG

from ..programs import normal
from .said import said, said_of, said_of_numbers

E_TIMES = "it is 2.71828183 times the numerical gradient throughout"
NONE = "no simple cause"


@each(
    ("wrong", "expected"),
    [
        (lambda d, x: -d * np.cos(x), "it is -1 times the numerical gradient throughout"),
        (lambda d, x: 0.73 * d * np.cos(x), "it is 0.73 times the numerical gradient throughout"),
        (lambda d, x: 0 * d * x, "it is zero throughout"),
        (lambda d, x: d * np.sin(x), NONE),
        (lambda d, x: d * x, NONE),
    ],
)
@each("shape", [(), (1,), (1, 1), (5,)])
def test_a_ratio_is_a_factor_only_if_it_is_the_same_at_another_point(wrong, expected, shape):
    x = np.full(shape, normal(seed=1))  # of equal numbers, any formula makes a factor here
    assert said(np.sin, wrong, {"x": x}) == expected


@each("x", [0.7, 1.1, 1.9])
@each("slight", [1e-3, 0.01, 0.03])
def test_a_ratio_that_is_nearly_the_same_at_another_point_is_no_factor(slight, x):
    def backward(d, x):
        return d * np.exp(x) * (np.sin(3 * x) + (3 + slight * x**3) * np.cos(3 * x))

    assert "throughout" not in said(lambda x: np.exp(x) * np.sin(3 * x), backward, {"x": np.array(x)})


matrices = array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=3)


@given(matrices, matrices, st.integers(0, 2**32 - 1), st.sampled_from([-1, 2, 0.5, -2, 1.7, 0.01, 300]), st.data())
def test_a_factor_is_found_in_any_shape_by_any_method(shape, output_shape, seed, factor, data):
    method = data.draw(st.sampled_from(["auto", "central"]))
    found = said_of(lambda g, _: factor * g, shape, output_shape, seed, method=method)
    assert found.startswith(f"it is {factor:g} times the numerical gradient throughout")


@each(
    ("right", "output_shape", "factor", "expected"),
    [
        ([[1.3], [0.7], [0.0]], (7,), np.e, E_TIMES),
        ([[0.0], [0.7], [1.3]], (7,), np.e, E_TIMES),
        ([[1.3], [0.0], [0.0]], (7,), np.e, None),  # one ratio, which anything has
        (np.multiply.outer([1.3, 0.7, -0.4], [1.0, 3.7, 0.29]), (), np.e, E_TIMES),
        (np.multiply.outer([1.3, 0.7, -0.4], [1.0, 3.7]), (), np.e, None),  # alike for every cotangent
        (np.multiply.outer([1.3, 0.7, -0.4], [1.0, 3.7]), (), 2.0, None),
        (normal(3, 6) * np.where(np.arange(6) % 3, 1.0, 1e-310), (7,), np.e, E_TIMES),  # whose noise is lost
    ],
)
def test_where_no_other_point_is_known_several_ratios_make_a_factor(right, output_shape, factor, expected):
    right, u = np.asarray(right, float), normal(3, *output_shape, seed=4)
    floor = 1e-15 * np.abs(right[0])
    assert said_of_numbers(right, factor * right, floor, cotangents=u, output=u[0]) == expected


@each(
    ("left", "far"),
    [
        ([0, 0, 0], "throughout"),
        ([0, 0, 1e-17], "throughout, but for rounding"),
        ([0, 9, 0], "in every entry that can be decided"),
    ],
)
def test_a_gradient_is_called_zero_or_a_multiple_no_further_than_it_is(left, far):
    u, known = normal(3, 3), {"floor": np.array([1e-15, 1e3, 1e-15]), "verdict": np.array([WRONG, UNDECIDED, WRONG])}
    right = u * [1, 0, 1]
    assert said_of_numbers(right, u * left, **known) == f"it is zero {far}"
    found = said_of_numbers(right, 2.1 * right + [0, left[1], 0], **known)
    assert found == f"it is 2.1 times the numerical gradient {far.partition(',')[0]}"


@each(
    ("noise", "shown"),
    [(3e-6, "2.71828"), (5e-6, "2.7183"), (6e-5, "2.718"), (4e-4, "2.72"), (6e-4, "about 2.72"), (1e-12, "2.71828183")],
)
def test_a_factor_is_shown_with_the_digits_that_are_known(noise, shown):
    right = np.random.default_rng(0).uniform(1, 2, (3, 20))
    found = said_of_numbers(right, np.e * right, noise * np.abs(right[0]))
    assert found == f"it is {shown} times the numerical gradient throughout"


LAST_AXIS, MEAN = (
    "the length of the last axis of a",
    ", as a mean in the place of the sum over the broadcast axes gives",
)
HEADS = {"a": (2, 5, 12)}, (2, 5, 12)  # the shapes of the inputs, differentiated by the first, and of the output
NAMES = [  # the factor, the shapes, and what is said of it
    (1 / 12, *HEADS, f": perhaps 1/12, where 12 is {LAST_AXIS}"),
    (-5, *HEADS, ": perhaps -5, which is the length of axis 1 of a"),
    (24, *HEADS, ": perhaps 24, which is the length of axes 0 and 2 of a"),
    (-1, *HEADS, ""),
    (1.7, *HEADS, ""),
    (1 / 7, {"a": (7, 7)}, (2, 3), f": perhaps 1/7, where 7 is {LAST_AXIS}"),
    (3, {"a": (3, 9)}, (3, 9), f": perhaps sqrt(9), where 9 is {LAST_AXIS}"),
    (1 / 8, {"a": (3, 1), "b": (3, 5)}, (2, 3, 4), f": perhaps 1/8{MEAN}"),
    (1 / 2, {"a": (3, 1), "x": (2, 3, 4)}, (2, 3, 4), f": perhaps 1/2{MEAN}; or of a square"),
    (1 / 8, {"a": (3,)}, (2, 3, 4), f": perhaps 1/8{MEAN}"),
]


@each(("factor", "shapes", "output_shape", "name"), NAMES)
def test_of_a_factor_it_is_said_which_length_it_may_be(factor, shapes, output_shape, name):
    right = normal(3, *shapes["a"])
    inputs = {other: normal(*shape) for other, shape in shapes.items()}
    u = normal(3, *output_shape)
    known = {"name": "a", "inputs": inputs, "output": u[0], "cotangents": u}
    found = said_of_numbers(right, factor * right, 1e-15 * np.abs(right[0]), **known)
    assert found == f"it is {factor:.9g} times the numerical gradient throughout{name}"
