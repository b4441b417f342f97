"""What three cotangents tell that one does not."""

import math
import re

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.agreement import WRONG
from attention_np.gradcheck.diagnosis import diagnose
from attention_np.gradcheck.diagnosis.cotangents import correlation

from .evidence import evidence_with, linear_evidence, sampled


@each(
    ("claimed", "floor", "said"),
    [
        ([[1.0], [1.001], [0.999]], 1e-3, False),  # one entry only if it is so exactly
        ([[1.0], [1.0], [1.0]], 1e-3, True),
        ([[1.7], [1.7 + 1e-7], [1.7 - 1e-7]], 1e-6, False),
        ([[1.7, -2.9], [1.7 + 1e-7, -2.9], [1.7 - 1e-7, -2.9 + 1e-7]], 1e-6, True),  # two by no accident
    ],
)
def test_what_is_about_the_same_for_every_cotangent_takes_two_entries(claimed, floor, said):
    rng, claimed = np.random.default_rng(0), np.array(claimed)
    entries = claimed.shape[1]
    right = rng.standard_normal((7, entries))
    found = linear_evidence(right, right, (entries,), (7,), rng, noise=floor)
    found = found._replace(
        analytic={"x": claimed},
        floor=np.full(entries, floor),
        verdict=np.ones(entries, int),
        at_zero=0 * claimed[0],
        ask=None,
    )
    assert ("it is the same whatever the cotangent" in str(diagnose(found))) == said


@each(
    ("added", "sentence"),
    [
        (lambda x: 0 * x + 0.123456789, "a constant is added to it, 0.123457 in every entry, whatever the cotangent"),
        (lambda x: 0.123456789 * x, "0.123457 times x itself is added to it, whatever the cotangent"),
        (
            lambda x: 1.23456789 + np.arange(12).reshape(x.shape),
            "something is added to it that does not depend on the cotangent, from 1.235 to 12.23",
        ),
    ],
)
def test_of_what_is_added_whatever_the_cotangent_it_is_said(added, sentence):
    plain = evidence_with()
    added = added(plain.inputs["x"])
    found = evidence_with(added, at_zero=added)
    assert diagnose(found._replace(verdict=np.ones_like(found.verdict))) == sentence


def test_what_is_there_for_a_cotangent_of_zeros_is_known_without_the_noise_of_others():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 12))
    found = linear_evidence(right, right, (3, 4), (7,), rng, noise=1e-6)
    added = {"x": found.analytic["x"] + 0.01}
    found = found._replace(analytic=added, at_zero=np.full((3, 4), 0.01), verdict=np.ones((3, 4), int), ask=None)
    assert diagnose(found) == "a constant is added to it, 0.01 in every entry, whatever the cotangent"


def test_a_multiple_of_an_input_is_known_as_well_where_that_is_stored_in_single_precision():
    x = evidence_with().inputs["x"].astype(np.float32)
    added = 0.123456789 * x.astype(float)
    found = evidence_with(added, at_zero=added)._replace(inputs={"x": x}, verdict=np.ones((3, 4), int))
    assert diagnose(found) == "0.123457 times x itself is added to it, whatever the cotangent"


def test_a_sample_of_the_entries_tells_what_is_added():
    found = evidence_with(0.01, at_zero=np.full((3, 4), 0.01))
    found = sampled(found._replace(verdict=np.ones((3, 4), int)), share=0.75)
    assert diagnose(found) == "a constant is added to it, 0.01 in every entry, whatever the cotangent"


@each(
    ("shape", "equal", "said"),
    [((2,), 1, False), ((3,), 1, True), ((4, 2), 1, True), ((2, 4), 1, True), ((2, 2), 1, True), ((2, 3), 3, False)],
)
def test_the_same_number_is_evidence_in_three_entries_of_all_axes_that_are_not_equal_anyway(shape, equal, said):
    rng = np.random.default_rng(0)
    right = np.repeat(rng.standard_normal((7, math.prod(shape) // equal)), equal, axis=1)
    found = linear_evidence(right, right + rng.standard_normal((7, 1)), shape, (7,), rng)
    assert (
        bool(re.fullmatch(r"the same number is added to every entry, \S+ for one cotangent", str(diagnose(found))))
        == said
    )


@each(("known", "entries", "said"), [(2, 3, False), (3, 5, True)])
def test_entries_that_are_hardly_known_are_no_evidence_of_the_same_number(known, entries, said):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, entries))
    found = linear_evidence(right, right + rng.standard_normal((7, 1)), (entries,), (7,), rng)
    found = found._replace(floor=np.where(np.arange(entries) < known, found.floor, 10.0))
    found = found._replace(verdict=np.where(found.floor < 1, WRONG, 0))
    assert (
        bool(re.fullmatch(r"the same number is added to every entry, \S+ for one cotangent", str(diagnose(found))))
        == said
    )


@each(
    ("x", "y", "expected"),
    [
        ([1.0, -2.0, 3.0], [1.0, -2.0, 3.0], 1),
        ([1.0, -2.0, 3.0], [-1.0, 2.0, -3.0], -1),
        ([1.0, 1.0], [1.0, -1.0], 0),
        ([1.0, 1e9], [1.0, -1e9], 0),  # every pair counts the same
        ([0.0, 2.0, 0.5], [0.0, 2.0, 0.5], 1),  # zeros do not count
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([0.0, 0.0], [1.0, 2.0], 0),
        ([2.0, 1.0], [1.0, 2.0], 0.8),
    ],
)
def test_a_correlation_counts_every_pair_the_same(x, y, expected):
    with np.errstate(all="ignore"):
        found = correlation(np.array(x), np.array(y))
    assert found == pytest.approx(expected, abs=1e-15)
    assert -1 - 1e-15 <= found <= 1 + 1e-15
