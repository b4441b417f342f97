"""When a reading of a mistake is right, how numbers are shown, and what may be asked of the functions beyond that."""

import numpy as np
from helpers import each

from attention_np.gradcheck import words
from attention_np.gradcheck.words.reading import Reading, number

from ..programs import normal
from .said import mistake_of, said


def mistake_off_by(error, floor=1e-6, size=1.0):
    """A mistake whose claimed gradient is off by `error`, (3, entries), in units of what it may be off."""
    right = size * np.random.default_rng(0).choice([-1.0, 1.0], error.shape)
    noise = mistake_of(right, right, floor * size).tolerance
    return mistake_of(right, right + error * np.sign(right) * noise, floor * size)


def explained(mistake, claim, known=None):
    return mistake.is_explained_by(Reading("", "", claim, known=known))


@each("size", [1e-9, 1.0, 1e9])
@each(
    ("entries", "error", "left", "expected"),
    [
        (1, 9.0, 0.0, True),  # one is enough if it is off by far more than the noise
        (12, 9.0, 0.3, False),  # of which more is left than noise leaves
        (1, 9.0, 1.1, False),
        (1, 7.0, 0.0, False),
        (4, 7.0, 0.0, True),  # or a dozen values in four entries
        (8, 0.9, 0.0, False),
    ],
)
def test_a_reading_explains_a_gradient_that_is_evidently_something_else(entries, error, left, expected, size):
    errors = np.where(np.arange(12) < entries, error, 0.0) * np.ones((3, 1))
    mistake = mistake_off_by(errors, size=size)
    leaves = np.where(errors != 0, left, 0.0) * np.maximum(
        mistake.tolerance, 10 * mistake.precision * abs(mistake.right)
    )
    assert explained(mistake, mistake.claimed - leaves) == expected


@each(
    ("wrong", "known", "expected"),
    [(4, 2, True), (4, 1, False), (5, 3, True), (5, 2, False), (30, 10, True), (30, 9, False)],
)
def test_of_the_wrong_entries_half_or_ten_must_be_known(wrong, known, expected):
    mistake = mistake_off_by(np.where(np.arange(40) < wrong, 1e3, 0.0) * np.ones((3, 1)))
    seen = (np.arange(40) < known) | (np.arange(40) >= wrong)
    assert explained(mistake, mistake.claimed, known=seen) == expected
    assert not explained(mistake, np.where(seen, mistake.claimed, np.nan))  # what is not predicted is not explained


def test_the_cheapest_reading_that_fits_is_named(monkeypatch):
    """Of modules that are put beside the others, too."""
    mistake = mistake_of(normal(3, 6), -normal(3, 6))
    asked = []

    def told(what):
        return lambda case: asked.append(what) or iter([Reading(what, what, case.claimed, alone=True)])

    readings = [(300, told("dear")), (-1, told("cheap")), (1, told("other"))]
    monkeypatch.setattr(words.import_module("attention_np.gradcheck.words.factors"), "READINGS", readings)
    words._by_cost.cache_clear()
    try:
        assert words.explain(mistake) == "cheap"
    finally:
        words._by_cost.cache_clear()
    assert asked == ["cheap"]


@each(
    ("x", "digits", "precision", "expected"),
    [
        (np.pi, 9, 1e-16, "3.14159265"),
        (1 + 2e-12, 9, 1e-16, "1 + 2e-12"),  # as its distance from one
        (1 + 1.1e-5, 9, 1e-16, "1.000011"),
        (1.1502, 9, 1e-3, "1.15"),  # the fewest digits that are as close as it is known
        (1.1502, 9, 2e-3, "about 1.15"),
        (1 + 2.7e-13, 9, 1e-13, "1 + 3e-13"),
        (1.04, 9, 1e-1, "1.04"),  # what is wrong by a factor is wrong by one
    ],
)
def test_a_number_is_shown_in_the_digits_that_tell_something(x, digits, precision, expected):
    assert number(x, digits, precision) == expected


def test_slopes_that_take_longer_than_the_check_are_not_asked_for():
    inputs = {"x": normal(2000, 4, seed=1), "b": normal(4, seed=2)}
    found = said(np.multiply, lambda d, x, _: (d * x)[:-1].sum(axis=0), inputs, "b", max_entries=4)
    assert found.startswith("no simple cause")


def test_of_a_large_input_hardly_more_than_the_entries_that_were_looked_at_is_claimed():
    counted = []
    x = {"x": normal(2000, seed=1)}
    found = said(np.sin, lambda d, x: counted.append(1) or d * np.sin(x), x, vectorized="x", max_entries=50)
    assert found == "no simple cause"
    assert len(counted) <= 60
