"""A gradient that is wrong in some places only: what the places are called, and what is there."""

import numpy as np
from helpers import each

from ..programs import normal
from .said import said, said_of, said_of_slopes


def times_minus_one(g, _):
    return -g


def by_something(g, rng):
    return g + rng.standard_normal(g.shape)


def zero(g, _):
    return 0 * g


AT = np.s_
NONE = "no simple cause"
PLACES = [
    ((10, 3), AT[1::3], by_something, "at the indices 1, 4 and 7 of axis 0"),
    ((9, 3), AT[:4], by_something, "from index 0 to 3 of axis 0 (of 9)"),
    ((5, 6), AT[2, 3], by_something, "at one entry, [2, 3]"),
    ((5,), AT[2], times_minus_one, "at index 2 of axis 0, where it is -1 times the numerical gradient"),
    ((20, 3), AT[[1, 2, 5, 7, 12]], by_something, None),  # five without a rule
    ((20,), AT[[1, 2, 5, 7]], by_something, None),  # of which any four are as good
    ((4, 5), AT[1:3, [0, 3]], by_something, None),  # entries that are few have some indices in any case
]


def changed(where, change):
    """A change in some entries of slopes, (outputs, *shape)."""
    inside = (slice(None), *(where if isinstance(where, tuple) else (where,)))

    def wrong(g, rng):
        g[inside] = change(g[inside], rng)
        return g

    return wrong


@each(("shape", "where", "change", "sentence"), PLACES)
def test_of_places_it_is_said(shape, where, change, sentence):
    assert said_of(changed(where, change), shape) == (f"wrong only {sentence}" if sentence else NONE)


X = 1.5 * normal(4, 6, seed=2)
SIDES = [(lambda x: x < 0, "x is negative"), (lambda x: x > 0, "x is positive")]


@each(("side", "text"), SIDES)
@each(
    ("slope", "what"),
    [
        (lambda x: 0 * x, ", where it is zero"),
        (lambda x: 1.7 * np.exp(x), ", where it is 1.7 times the numerical gradient"),
        (lambda x: np.exp(x) + np.sin(x), ""),
    ],
)
def test_of_one_side_of_a_kink_it_is_said(side, text, slope, what):
    found = said(np.exp, lambda d, x: d * np.where(side(x), slope(x), np.exp(x)), {"x": X})
    assert found == f"wrong only where {text}{what}"


def of_a_leak(entries, zeros, leaking):
    """What is said where some entries have no effect, and some of them are claimed to have one."""
    right = normal(7, entries)
    right[:, zeros] = 0
    wrong = right.copy()
    wrong[:, leaking] = normal(7, len(leaking), seed=1)
    return said_of_slopes(right, wrong)


@each(
    ("zeros", "leaking", "sentence", "place"),
    [
        ([0], [0], "in the only such entry", ""),
        ([3, 4, 5, 6, 7], [3, 4, 5, 6], "in 4 of 5 such entries", ", from index 3 to 6 of axis 0 (of 20)"),
    ],
)
def test_of_a_leak_it_is_said(zeros, leaking, sentence, place):
    found = of_a_leak(20, zeros, leaking)
    assert found == f"it is not zero where the numerical gradient is, {sentence}{place}: is a mask forgotten?"


@each(
    ("entries", "zeros", "leaking", "expected"),
    [
        (24, 3, 2, "wrong only from index 0 to 1 of axis 0 (of 24)"),
        (26, 3, 2, "it is not zero where the numerical gradient is"),
        (9, 1, 1, "wrong only at index 0 of axis 0"),
        (9, 3, 3, "it is not zero where the numerical gradient is"),
    ],
)
def test_a_leak_is_said_if_as_many_entries_would_hardly_ever_be_zeros(entries, zeros, leaking, expected):
    """Of 24 entries, two are among certain three with a chance of 1/92, of 26 with one of 1/108."""
    found = of_a_leak(entries, np.arange(zeros), np.arange(leaking))
    assert found.startswith(expected)
    assert "leak" not in expected or "mask" in found


def test_the_factor_in_a_place_is_the_same_at_another_point():
    assert said(np.sin, lambda d, x: d * (np.cos(x) + np.sin(x) * [0, 0.1]), {"x": np.array([0.3, 1.7])}) == NONE
