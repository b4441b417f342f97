"""Kinks and jumps are found with their places, and none is seen in what is smooth."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.slopes.kinks import Kink, kinks

from ..programs import normal
from ..subjects import heard, subject_of, watched_subject_of

SEEDS = range(3)


def kinks_of(subject, seed=0):
    with np.errstate(all="ignore"):  # as in a check
        return kinks(subject, np.random.default_rng(seed))


def kink(place, below, above):
    return Kink((place,), below, above, jumps=False)


def in_single(x, forward=np.exp):
    return forward(x.astype(np.float32)).astype(float)


def softplus(x):
    return np.where(x > 0, x, 0) + np.log1p(np.exp(-np.abs(x)))


@each("batched", [False, True])
@each(
    ("forward", "x", "expected"),
    [
        (np.abs, [1.0, 0.0, -2.0], [kink(1, -1, 1)]),
        (lambda x: np.where(x > 0, x, 0.01 * x), [1.0, 0.0, -2.0], [kink(1, 0.01, 1)]),
        (lambda x: np.abs(x - 0.7), [0.7, 0.1, 0.2], [kink(0, -1, 1)]),
        (lambda x: np.abs(x).sum(axis=-1, keepdims=True), [0.0, 3.0, -2.0], [kink(0, -1, 1)]),
        (lambda x: x.max(axis=-1, keepdims=True), [0.3, 0.8, 0.8], [kink(1, 0, 1), kink(2, 0, 1)]),
        (lambda x: np.clip(x, -1, 1), [0.3, 1.0, -1.0], [kink(1, 1, 0), kink(2, 0, 1)]),
        (lambda x: np.exp(x) + 0.01 * np.abs(x), [0.5, 0.0, 0.4], [kink(1, 0.99, 1.01)]),
        (lambda x: np.abs(x / 1e12 - 0.5), [0.5e12, 2e11, 3e12], [kink(0, -1e-12, 1e-12)]),
        (lambda x: np.abs(x / 1e-12 - 0.5), [0.5e-12, 2e-13, 3e-12], [kink(0, -1e12, 1e12)]),
        (lambda x: in_single(x, np.abs), [0.5, 0.0, -1.5], [kink(1, -1, 1)]),
    ],
)
def test_a_kink_is_found_with_its_place_and_the_slopes_on_both_sides(forward, x, expected, batched):
    subject = heard(subject_of(forward, np.array(x), batched=batched))
    for seed in SEEDS:
        found = kinks_of(subject, seed)
        assert [(one.index, one.jumps) for one in found] == [(one.index, False) for one in expected]
        for one, known in zip(found, expected, strict=True):
            close = pytest.approx((known.below, known.above), rel=1e-3, abs=1e-3 * known.above)
            assert (one.below, one.above) == close


@each(
    ("forward", "below", "above"),
    [
        (lambda x: np.where(x >= 0.5, 3.0, 1.0), 2, 0),
        (lambda x: np.where(x > 0.5, 3.0, 1.0) + np.sin(x), 0, 2),
        (lambda x: np.where(x >= 0.5, 1e-6, 0.0) + x, 1e-6, 0),
    ],
)
def test_a_jump_is_found_with_its_place_and_its_height_on_each_side(forward, below, above):
    subject = subject_of(forward, np.array([1.2, 0.5, -3.0]))
    for seed in SEEDS:
        (one,) = kinks_of(subject, seed)
        assert (one.index, one.jumps) == ((1,), True)
        assert (one.below, one.above) == pytest.approx((below, above), abs=1e-6 + 1e-3 * below)


def test_of_many_the_first_few_are_found_and_a_smooth_function_is_not_searched_nor_one_of_too_many_entries():
    x = np.full((10, 20), 0.5)
    x[:, 17:] = 0
    places = [one.index for one in kinks_of(subject_of(np.abs, x, batched=True))]
    assert places == [(0, 17), (0, 18), (0, 19), (1, 17), (1, 18)]
    for forward, entries, calls in ((np.sin, x, 60), (np.abs, np.zeros(4097), 0)):
        subject, seen = watched_subject_of(forward, entries)
        assert kinks_of(subject) == []
        assert len(seen) <= calls


SMOOTH = {
    "a fast wave": (lambda x: np.sin(1e6 * x), normal(3)),
    "a bend of infinite curvature": (lambda x: x + 0.01 * np.maximum(x - 0.5, 0) ** 1.5, np.array([0.5 + 1e-9, 0.7])),
    "jumps nearby": (lambda x: x + np.round(x), np.array([0.5 + 1e-4, 1.5 - 1e-7, 2.0])),
    "softplus that is steep at zero": (lambda x: softplus(1e12 * x), np.zeros(3)),
    "a logistic step at zero": (lambda x: np.tanh(1e10 * x), np.zeros(2)),
    "a smooth modulus": (lambda x: np.sqrt(x * x + 1e-20), np.zeros(2)),
    "a smooth modulus that ends in rounding": (lambda x: 1 + 1e-7 * np.sqrt(x * x + 1e-16), np.zeros(2)),
    "a Gaussian peak": (lambda x: np.exp(-((1e6 * x) ** 2)), np.zeros(2)),
    "relu close to its kink": (lambda x: np.maximum(x, 0), np.array([1e-3, -1e-3, 1e-7, -1e-7, 1.0, -2.0])),
    "max of all but equal numbers": (lambda x: x.max(keepdims=True), np.array([0.8, 0.8 - 1e-3, 0.8 - 1e-6])),
    "x |x|, which has a slope everywhere": (lambda x: x * np.abs(x), np.zeros(3)),
    "a root that has a slope at zero": (lambda x: np.abs(x) ** 1.2, np.zeros(3)),
    "noise of single precision": (lambda x: in_single(x, np.sin), normal(20)),
    "noise of half precision": (lambda x: np.exp(x.astype(np.float16)).astype(float), normal(20)),
    "noise of a cancellation": (lambda x: (np.exp(x) + 1e9) - 1e9, normal(20)),
    "a variance that cancels": (lambda x: np.atleast_1d(((x + 1e5) ** 2).mean() - (x + 1e5).mean() ** 2), normal(5)),
}


@each("what", SMOOTH)
def test_no_kink_is_seen_in_a_smooth_function_nor_away_from_the_kink(what):
    subject = heard(subject_of(*SMOOTH[what]))
    for seed in SEEDS:
        assert kinks_of(subject, seed) == []
