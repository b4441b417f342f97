"""When an array explains a wrong gradient."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose
from attention_np.gradcheck.diagnosis.mistake import Mistake, number


def case_of(error, floor=1e-6, size=1.0):
    """A case whose claimed gradient is off by `error`, (3, entries), in units of what it may be off."""
    rng = np.random.default_rng(0)
    right = size * rng.choice([-1.0, 1.0], error.shape)
    floor = np.broadcast_to(np.float64(floor * size), error.shape[1:])

    def case(claimed):
        verdict = np.where((claimed != right).any(axis=0), WRONG, HOLDS)
        x = rng.standard_normal(error.shape[1:])
        return Mistake.of(Evidence("x", {"x": x}, x, right, {"x": claimed}, {"x": right}, floor, verdict, 0 * x, {}))

    return case(right + error * case(right).allowed(right))


@each("size", [1e-9, 1.0, 1e9])
@each(
    ("entries", "error", "left", "explained"),
    [
        (1, 9.0, 0.0, True),  # one is enough if it is off by far more than the noise
        (1, 9.0, 0.6, True),
        (12, 9.0, 0.3, False),  # of which more is left than noise leaves
        (1, 9.0, 1.1, False),
        (1, 7.0, 0.0, False),
        (3, 7.0, 0.0, False),
        (4, 7.0, 0.0, True),  # or a dozen values in four entries
        (4, 7.0, 0.03 * 7, True),  # of which next to nothing is left
        (4, 7.0, 0.07 * 7, False),
        (8, 7.0, 0.0, True),
        (8, 0.9, 0.0, False),
    ],
)
def test_an_array_explains_a_gradient_that_is_evidently_something_else(entries, error, left, explained, size):
    errors = np.where(np.arange(12) < entries, error, 0.0) * np.ones((3, 1))
    case = case_of(errors, size=size)
    leaves = np.where(errors != 0, left, 0.0) * case.allowed(case.right)
    assert case.is_explained_by(case.claimed - leaves) == explained


@each(("cotangents", "entries", "explained"), [(3, 4, True), (2, 6, True), (2, 5, False), (1, 12, True)])
def test_a_dozen_values_are_evidence_whatever_cotangents_they_belong_to(cotangents, entries, explained):
    errors = np.where(np.arange(12) < entries, 7.0, 0.0) * (np.arange(3) < cotangents)[:, np.newaxis]
    case = case_of(errors)
    assert case.is_explained_by(case.claimed) == explained


@each(
    ("wrong", "known", "explained"),
    [(4, 2, True), (4, 1, False), (5, 3, True), (5, 2, False), (30, 10, True), (30, 9, False)],
)
def test_of_the_wrong_entries_half_or_ten_must_be_known(wrong, known, explained):
    case = case_of(np.where(np.arange(40) < wrong, 1e3, 0.0) * np.ones((3, 1)))
    seen = (np.arange(40) < known) | (np.arange(40) >= wrong)
    assert case.is_explained_by(case.claimed, known=seen) == explained
    assert not case.is_explained_by(np.where(seen, case.claimed, np.nan))  # what is not predicted is not explained


def test_a_floor_that_is_not_finite_counts_as_none():
    x = np.random.default_rng(0).standard_normal(6)
    u = np.random.default_rng(1).standard_normal((3, 6))
    for strange in (np.inf, np.nan):
        floor = np.where(np.arange(6) == 2, strange, 1e-15)
        found = Evidence("x", {"x": x}, x, u, {"x": -u * x}, {"x": u * x}, floor, np.full(6, WRONG), 0 * x, {})
        assert diagnose(found) == "it is -1 times the numerical gradient throughout"
        found.analytic["x"][:, 2] *= 1.001
        assert diagnose(found) is None


def test_the_precision_is_that_of_a_typical_entry_for_the_cotangent_whose_noise_is_known():
    x = np.random.default_rng(0).standard_normal(6)
    right = np.array([[1.0], [1e3], [1e-3]]) * np.random.default_rng(1).uniform(1, 2, (3, 6))
    right[0, :3] = 0
    floor = np.where(np.arange(6) == 5, 1.0, 1e-6 * right[0])
    verdict = np.where(np.arange(6) == 5, UNCHECKED, WRONG)
    with np.errstate(all="ignore"):
        case = Mistake.of(Evidence("x", {"x": x}, x, right, {"x": 0 * right}, {"x": right}, floor, verdict, 0 * x, {}))
    assert case.precision == pytest.approx(1e-6, rel=1e-12)


def test_what_is_allowed_is_ten_times_the_noise_or_the_precision_of_the_other_array():
    case = case_of(np.full((3, 2), 20.0))
    for size in (1.0, 1e9):
        other = size * case.right
        for scale, magnified in ((1.0, 1), (0.5, 1), (3.0, 3)):
            expected = 10 * np.maximum(magnified * case.noise, case.precision * np.abs(other))
            np.testing.assert_allclose(case.allowed(other, scale), expected, rtol=1e-12)
        np.testing.assert_array_equal(case.allowed(other), case.allowed(other, 1.0))


@each(
    ("x", "digits", "said"),
    [
        (np.pi, 9, "3.14159265"),
        (np.pi, 3, "3.14"),
        (1.0, 9, "1"),
        (1 + 2e-12, 9, "1 + 2e-12"),
        (1 - 1.23456e-9, 2, "1 - 1.2e-09"),
        (1 + 1e-5, 4, "1 + 1e-05"),
        (1 + 0.9e-5, 9, "1 + 9e-06"),
        (1 + 1.1e-5, 9, "1.000011"),
        (1 + 0.5e-12, 9, "1 + 5e-13"),
        (2 + 1e-9, 9, "2"),
        (-1 - 1e-9, 9, "-1"),
    ],
)
def test_a_number_close_to_one_is_shown_as_its_distance(x, digits, said):
    assert number(x, digits) == said
    assert digits != 9 or number(x) == said


@each(
    ("x", "precision", "said"),
    [
        (1.1502, 1e-3, "1.15"),
        (1.1502, 2e-3, "about 1.15"),
        (1.1502, 1e-1, "about 1.2"),
        (-0.1254, 1e-2, "about -0.125"),
        (299.98, 1e-2, "about 300"),
        (1.70000002, 1e-6, "1.7"),
        (1.70000002, 1e-9, "1.70000002"),
        (1 + 2.7e-13, 1e-13, "1 + 3e-13"),
        (2.0, 1e-1, "2"),
        (1.04, 1e-1, "1.04"),  # what is wrong by a factor is wrong by one
    ],
)
def test_a_number_is_shown_in_the_fewest_digits_that_are_as_close_as_it_is_known(x, precision, said):
    assert number(x, precision=precision) == said
