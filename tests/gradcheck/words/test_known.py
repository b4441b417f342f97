# every factor takes all that there is
"""A factor that is a known array: which ones are named, and when none is."""

import numpy as np
from helpers import each

from attention_np.gradcheck import METHODS

from ..programs import normal
from .said import said

X = np.abs(normal(5, 4, seed=1)) + 0.1
GAIN = normal(4, seed=2)
W = normal(4, 3, seed=3) / 3  # the outputs are not near one
ENTRY = "it is {} times the numerical gradient, entry by entry: a factor {}"
COTANGENT = "it is right for {} times the gradient of the output in the place of that: a factor {}"


def said_of(factor, of_the_cotangent=False, **options):
    """Of tanh((x gain) @ w), where a factor of the gradient or of the cotangent is wrong."""

    def forward(x, gain, w):
        return np.tanh((x * gain) @ w)

    def backward(d, x, gain, w):
        y = forward(x, gain, w)
        d = d * factor(x, gain, y) if of_the_cotangent else d
        d_x = (d * (1 - y * y)) @ w.T * gain
        return d_x if of_the_cotangent else d_x * factor(x, gain, y)

    return said(forward, backward, {"x": X, "gain": GAIN.copy(), "w": W}, **options)


@each(
    ("factor", "name", "meaning"),
    [
        (lambda x, gain, y: 1 / gain, "1/gain", "gain is missing"),
        (lambda x, gain, y: 1 - x, "(1 - x)", "1 - x too many"),
        (lambda x, gain, y: 1 / (1 - x**2), "1/(1 - x^2)", "1 - x^2 is missing"),
        (lambda x, gain, y: np.sign(gain), "sign(gain)", "sign(gain) too many"),
        (lambda x, gain, y: -x, "-x", "x too many"),
        (lambda x, gain, y: 0.25 / x, "0.25 * 1/x", "x is missing"),
    ],
)
def test_of_a_factor_of_each_entry_it_is_said(factor, name, meaning):
    for options in ({}, {"max_entries": 12}, {"method": "central"}):
        assert said_of(factor, **options) == ENTRY.format(name, meaning)


@each(
    ("factor", "name", "meaning"),
    [
        (lambda x, gain, y: 1 / (1 - y * y), "1/(1 - output^2)", "1 - output^2 is missing"),
        (lambda x, gain, y: y, "output", "output too many"),
        (lambda x, gain, y: 3 * np.exp(y), "3 * exp(output)", "exp(output) too many"),
    ],
)
def test_of_a_factor_of_the_cotangent_it_is_said(factor, name, meaning):
    for options in ({}, {"max_entries": 12}, {"method": "central"}):
        assert said_of(factor, of_the_cotangent=True, **options) == COTANGENT.format(name, meaning)


@each(
    ("factor", "of_the_cotangent"),
    [
        (lambda x, gain, y: np.cosh(x), False),
        (lambda x, gain, y: 1 + 1e-6 * np.sin(1e3 * x), False),
        (lambda x, gain, y: GAIN, False),  # what the gain is at this point alone
        (lambda x, gain, y: np.cosh(y), True),
        (lambda x, gain, y: y * x[:, :1], True),
    ],
)
def test_a_factor_that_is_no_simple_array_at_another_point_too_has_no_name(factor, of_the_cotangent):
    assert said_of(factor, of_the_cotangent).startswith("no simple cause")


def test_a_single_zero_tells_no_factor_that_is_one_elsewhere():
    def backward(d, x):  # wrong at the zero
        return np.where(x == 0, 0, (d * np.cumprod(x))[::-1].cumsum()[::-1] / np.where(x == 0, 1, x))

    found = said(np.cumprod, backward, {"x": np.array([1.5, 0.0, 2.0, -3.0])})
    assert found == "wrong only at index 1 of axis 0, where it is zero"


@each("method", [name for name in METHODS if name != "auto"])
@each(
    ("forward", "claimed", "expected"),
    [
        (np.linalg.det, lambda x: np.linalg.inv(x).T, ENTRY.format("1/output", "output is missing")),
        (lambda x: np.sqrt((x * x).sum()), lambda x: x, ENTRY.format("output", "output too many")),
        (
            lambda x: 3 * x.sum(),
            lambda x: 2 * np.ones_like(x),
            "it is 0.666666667 times the numerical gradient throughout",
        ),
    ],
)
def test_a_number_may_be_a_factor_of_all_entries_if_it_is_one_at_another_point_too(forward, claimed, expected, method):
    assert said(forward, lambda d, x: d * claimed(x), {"x": normal(3, 3)}, method=method) == expected
