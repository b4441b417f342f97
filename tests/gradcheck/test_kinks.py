"""Kinks and jumps: from what evidence on an entry has one, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck.measuring.probes import JUMP, KINK, KINK_STEPS, TOGETHER, _breaks, _one_sided, cusps
from attention_np.gradcheck.measuring.running import MEMORY
from tests.gradcheck.subjects import every_entry, heard, subject_of


def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


def test_a_jump_a_kink_and_smooth_entries_are_told_apart_when_they_are_looked_at_together():
    def forward(x):
        return np.stack([np.abs(x[0]) + np.sin(x[1]), np.where(x[2] >= 2, 5.0, 1.0) + x[1], np.abs(x[0]) * 3])

    subject = heard(subject_of(forward, np.array([0.0, 1.0, 2.0, 7.0])))
    np.testing.assert_array_equal(_breaks(subject, every_entry(subject)), [KINK, 0, JUMP, 0])


@pytest.mark.parametrize(("noise", "found"), [(2.5e-9, KINK), (2.5e-8, 0)])
def test_a_kink_is_what_rises_above_the_noise_at_four_steps(noise, found):
    subject = replace(subject_of(lambda x: np.abs(x - 1), np.array([1.0])), noise=np.array([noise]))
    np.testing.assert_array_equal(_breaks(subject, every_entry(subject)), [found])


def test_what_is_a_kink_at_long_steps_and_none_at_short_ones_is_none():
    subject = subject_of(lambda x: np.hypot(x - 1, 2.0**-27), np.array([1.0]))
    np.testing.assert_array_equal(_breaks(subject, every_entry(subject)), [0])


def test_at_zero_a_kink_must_last_to_short_steps_in_that_output_itself():
    subject = subject_of(lambda x: np.stack([1 + 1e-7 * np.abs(x[0]), np.abs(x[1])]), np.zeros(2))
    np.testing.assert_array_equal(_breaks(subject, every_entry(subject)), [0, KINK])


def test_at_zero_what_an_output_becomes_far_away_hides_no_kink():
    subject = subject_of(lambda x: np.abs(x) + 1e20 * x**8, np.zeros(2))
    np.testing.assert_array_equal(_breaks(subject, every_entry(subject)), [KINK, KINK])


def test_the_sides_of_a_kink_and_of_a_jump_are_those_of_the_first_cotangent():
    def forward(x):
        return np.stack([np.abs(x[0] - 4), 2 * x[0] + np.where(x[0] > 4, 3.0, 0.0) * (x[1] > 1)])

    u = np.array([[1.0, -2.0], [50.0, 50.0]])
    kink = subject_of(forward, np.array([4.0, 0.5])).at((np.array([4.0, 0.5]),), u)
    found = _one_sided(kink, 0, False)
    assert (found.index, found.jumps) == ((0,), False)
    assert (found.below, found.above) == pytest.approx((-1 - 4, 1 - 4), rel=1e-12)
    jump = subject_of(forward, np.array([4.0, 2.0])).at((np.array([4.0, 2.0]),), u)
    found = _one_sided(jump, 0, True)
    step = 4 * KINK_STEPS[3]
    assert (found.below, found.above) == pytest.approx((-5 * step, -2 * 3 - 3 * step), rel=1e-9)


@pytest.mark.parametrize("batched", [False, True])
def test_entries_are_looked_at_together_as_memory_allows_and_not_after_enough_were_found(batched):
    moved, alone = [], set()
    x = np.where(np.arange(200) % 20, 1.0, 0.0)

    def forward(y):
        moved.append(y.shape)
        rows, places = np.nonzero(np.atleast_2d(y) != x)
        alone.update(places[np.bincount(rows)[rows] == 1].tolist())  # of the entries, those that moved by themselves
        return np.abs(y)

    subject = replace(heard(subject_of(forward, x, batched=batched)), rows=16)
    for most, memory in ((10, MEMORY), (2, MEMORY), (3, 1)):
        moved.clear()
        alone.clear()
        found = cusps(subject, rng(), memory, most=most)
        assert [cusp.index[0] for cusp in found] == list(range(0, 20 * most, 20))
        assert max(alone) < 20 * (most - 1) + (16 if batched else 64 if memory > 1 else 1)
        if batched:
            assert max(shape[0] for shape in moved if len(shape) == 2) == 16
    assert TOGETHER == 64


def test_a_kink_far_from_zero_beside_large_terms_is_not_seen_where_rounding_hides_it():
    def forward(x, size):
        return (1e6 + size * np.abs(x - 1.0)) - 1e6

    for size, seen in ((1.0, True), (1e-14, False)):
        subject = heard(subject_of(lambda x, size=size: forward(x, size), np.array([1.0, 2.0])))
        assert bool(cusps(subject, rng(), MEMORY)) == seen
