# ruff: noqa: ARG005 # every factor takes all that there is
"""A factor that is a known array: which ones are named, and when none is."""

import numpy as np
from helpers import each

from attention_np.gradcheck import METHODS, check
from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of, sampled
from .programs import normal

X = np.abs(normal(5, 4, seed=1)) + 0.1
GAIN = normal(4, seed=2)


def said_of(factor, of_the_cotangent=False, x=X, share=1.0):
    """Of (x gain) @ w, or of tanh of it, where a factor of the gradient or of the cotangent is wrong."""
    inputs = {"x": x, "gain": GAIN, "w": normal(4, 3, seed=3)}

    def forward(x, gain, w):
        return np.tanh((x * gain) @ w)

    def backward(d, x, gain, w):
        y = forward(x, gain, w)
        d = d * factor(x, gain, y) if of_the_cotangent else d
        d_x = (d * (1 - y * y)) @ w.T * gain
        return d_x if of_the_cotangent else d_x * factor(x, gain, y), 0 * gain, 0 * w

    found = evidence_of(forward, backward, inputs, "x")
    return diagnose(found if share == 1 else sampled(found, share))


@each("share", [1.0, 0.6])
@each(
    ("factor", "name", "meaning"),
    [
        (lambda x, gain, _: x, "x", "x too many"),
        (lambda x, gain, _: 1 / gain, "1/gain", "gain is missing"),
        (lambda x, gain, _: gain**2, "gain^2", "gain^2 too many"),
        (lambda x, gain, _: 1 / (1 - x**2), "1/(1 - x^2)", "1 - x^2 is missing"),
        (lambda x, gain, _: x * (1 - x), "(x * (1 - x))", "x * (1 - x) too many"),
        (lambda x, gain, _: -x, "-x", "x too many"),
        (lambda x, gain, _: 0.25 / x, "0.25 * 1/x", "x is missing"),
        (lambda x, gain, _: np.sign(gain), "sign(gain)", "sign(gain) too many"),
    ],
)
def test_of_a_factor_of_each_entry_it_is_said(factor, name, meaning, share):
    found = said_of(factor, share=share)
    assert found == f"it is {name} times the numerical gradient, entry by entry: a factor {meaning}"


@each("share", [1.0, 0.6])
@each(
    ("factor", "name", "meaning"),
    [
        (lambda x, _, y: 1 / (1 - y * y), "1/(1 - output^2)", "1 - output^2 is missing"),
        (lambda x, _, y: y, "output", "output too many"),
        (lambda x, _, y: 3 * np.exp(y), "3 * exp(output)", "exp(output) too many"),
    ],
)
def test_of_a_factor_of_the_cotangent_it_is_said(factor, name, meaning, share):
    found = said_of(factor, of_the_cotangent=True, share=share)
    where = "times the gradient of the output in the place of that"
    assert found == f"it is right for {name} {where}: a factor {meaning}"


@each(
    ("factor", "of_the_cotangent"),
    [
        (lambda x, *_: np.cosh(x), False),
        (lambda x, *_: x * np.cosh(x), False),
        (lambda x, *_: 1 + 1e-6 * np.sin(1e3 * x), False),
        (lambda x, _, y: np.cosh(y), True),
        (lambda x, _, y: y * x[:, :1], True),
    ],
)
def test_of_a_factor_that_is_no_simple_array_nothing_is_said(factor, of_the_cotangent):
    assert said_of(factor, of_the_cotangent) is None


def test_a_single_number_is_no_factor_of_the_cotangent_by_a_multiple_of_it():
    inputs = {"a": 1e8 * np.abs(normal(3)), "b": normal(4, seed=1)}
    for seed in range(8):
        found = check(
            lambda a, b: a.sum() + (b * b).sum(), lambda d, a, b: (d * np.ones_like(a), d * b), inputs, rng=seed
        )["b"]
        assert "output" not in str(found.diagnosis)


def test_a_single_zero_tells_no_factor_that_is_one_elsewhere():
    def backward(d, x):  # wrong at the zero
        return np.where(x == 0, 0, (d * np.cumprod(x))[::-1].cumsum()[::-1] / np.where(x == 0, 1, x))

    found = check(np.cumprod, backward, {"x": np.array([1.5, 0.0, 2.0, -3.0])})["x"]
    assert found.diagnosis == "wrong only at index 1 of axis 0, where it is zero"


def test_an_array_that_is_the_factor_at_the_point_alone_is_none():
    """Where the gain is what another array is by accident."""
    accident = GAIN.copy()
    assert said_of(lambda x, gain, _: accident) != said_of(lambda x, gain, _: gain)
    assert "gain times" not in str(said_of(lambda x, gain, _: accident))


@each("method", METHODS)
@each(
    ("forward", "claimed", "name", "meaning"),
    [
        (np.linalg.det, lambda x: np.linalg.inv(x).T, "1/output", "output is missing"),
        (lambda x: np.exp(x.sum()), np.ones_like, "1/output", "output is missing"),
        (lambda x: np.exp(x.sum()), lambda x: -np.ones_like(x), "-1/output", "output is missing"),
        (lambda x: np.sqrt((x * x).sum()), lambda x: x, "output", "output too many"),
        (lambda x: 3 * x.sum(), lambda x: 2 * np.ones_like(x), None, None),  # a number at every point
    ],
)
def test_a_number_may_be_a_factor_of_all_entries_if_it_is_one_at_another_point_too(
    forward, claimed, name, meaning, method
):
    found = check(forward, lambda d, x: d * claimed(x), {"x": normal(3, 3)}, method=method)["x"].diagnosis
    said = name and f"it is {name} times the numerical gradient, entry by entry: a factor {meaning}"
    assert found == (said or "it is 0.666666667 times the numerical gradient throughout")
