"""Which steps of differences are tried, and which of the slopes that they give is kept."""

import numpy as np
import pytest

from attention_np.gradcheck.measuring import slopes as slopes_module
from attention_np.gradcheck.measuring.slopes import AT_ZERO, SCALES, Slopes, _compare, by_best_differences
from attention_np.gradcheck.measuring.subject import along
from tests.gradcheck.subjects import every_entry, subject_of


def slopes(value, error, scale, coarse=0.0):
    return Slopes(np.array([[value, 99.0]]), *np.array([[error], [scale], [coarse], [0.0]]))


@pytest.mark.parametrize(
    ("found", "before", "better", "doubtful"),
    [
        (slopes(1.0, 0.1, 0.5), slopes(1.1, 0.2, 1.0), True, False),  # they agree: the smaller error
        (slopes(1.0, 0.2, 0.5), slopes(1.1, 0.1, 1.0), False, False),
        (slopes(1.0, 0.1, 0.5), slopes(1.1, 0.1, 1.0), False, False),
        (slopes(1.0, 0.1, 0.5, 0.2), slopes(1.1, 0.2, 1.0), False, False),  # with the coarse one
        (slopes(1.0, 0.2, 0.5), slopes(1.1, 0.1, 1.0, 0.2), True, False),
        (slopes(1.0, 0.2, 0.5), slopes(1.8, 0.1, 1.0), False, False),  # by three times both errors they still agree
        (slopes(1.0, 0.2, 0.5), slopes(2.0, 0.1, 1.0), True, False),  # they do not: the shorter step
        (slopes(2.0, 0.1, 1.0), slopes(1.0, 0.2, 0.5), False, False),
        (slopes(2.0, 0.1, 1.0), slopes(1.0, 0.2, 1.0), False, False),
        (slopes(-1.0, 0.2, 0.5), slopes(1.0, 0.1, 1.0), True, False),
        (slopes(9.0, 0.2, 0.5, 0.7), slopes(1.0, 0.1, 1.0), True, False),  # the shorter one is known well enough
        (slopes(9.0, 0.2, 0.5, 0.9), slopes(1.0, 0.1, 1.0), False, True),  # it is a stair of rounding
        (slopes(9.0, 1.0, 0.5, 0.9), slopes(1.0, 0.1, 1.0), False, False),  # that nobody knows the height of
        (slopes(-9.0, 0.2, 0.5, 2.0), slopes(1.0, 0.1, 1.0), False, True),
        (slopes(1.0, 0.05, 1.0), slopes(9.0, 0.2, 0.5, 0.9), False, True),
        (slopes(1.0, 0.05, 1.0, 0.9), slopes(9.0, 0.2, 0.5), False, False),
        (slopes(1.0, np.inf, 0.5), slopes(2.0, 0.1, 1.0), False, False),
        (slopes(np.nan, np.inf, 0.5), slopes(2.0, 0.1, 1.0), False, False),
        (slopes(2.0, 0.1, 0.5), slopes(np.nan, np.inf, 1.0), True, False),
        (slopes(np.nan, np.inf, 0.5), slopes(np.nan, np.inf, 1.0), True, False),
    ],
)
def test_of_two_slopes_that_agree_the_better_known_is_kept_and_else_the_shorter_unless_it_is_a_stair(
    found, before, better, doubtful
):
    nowhere = np.zeros(1, bool)
    assert [choice.tolist() for choice in _compare(found, before, nowhere)] == [[better], [doubtful]]


def test_at_zero_the_shorter_step_is_right_however_coarse_the_outputs_are():
    long, short = slopes(1.0, 0.1, 1.0), slopes(9.0, 0.2, 0.5, 0.9)
    at_zero = np.ones(1, bool)
    assert [choice.tolist() for choice in _compare(short, long, at_zero)] == [[True], [False]]
    assert [choice.tolist() for choice in _compare(long, short, at_zero)] == [[False], [False]]


def steps_from(x, forward):
    """The longest step of each trio that is taken from the first entry, in the order in which they are."""
    seen = []

    def watched(x):
        seen.append(float(x[0]))
        return forward(x)

    subject = subject_of(watched, x)
    seen.clear()
    by_best_differences(subject, along(x, np.array([0])))
    moves = [place - x[0] for place in seen[9:]]  # after NaN, and what the reach is found from
    return moves[::6]


def test_at_zero_all_steps_are_tried_down_to_the_shortest_once():
    steps = steps_from(np.zeros(1), np.sin)
    assert steps == [*SCALES, *AT_ZERO]


def test_a_slope_that_stays_poor_is_tried_with_all_steps_and_an_entry_that_is_small_with_fractions_of_itself_too():
    def rough(x):
        return np.sin(1e300 * x).sum(keepdims=True)  # another number at each point

    small = 2.0**-21
    steps = steps_from(np.array([small, 1.0, 1.0]), rough)
    assert set(steps) >= {SCALES[0] * small, *SCALES, SCALES[1] * small} - {step for step in SCALES if step < 2e-15}
    assert steps[0] == SCALES[0] * small
    assert len(steps) == len({*steps}) + steps.count(0.0) - min(steps.count(0.0), 1)


def test_a_slope_that_is_zero_is_looked_for_with_other_steps_and_one_that_is_known_is_not():
    assert steps_from(np.array([1.0]), lambda x: 2 * x) == [SCALES[0]]
    assert len(steps_from(np.array([1.0]), lambda x: np.exp(-(((x - 1.001) / 1e-4) ** 2)))) > 2
    assert steps_from(np.array([1.0, 2.0]), lambda x: x[1:] * 2) == [SCALES[0]]  # it does not depend on the entry


def test_an_entry_on_which_nothing_depends_is_not_tried_again_beside_one_that_matters():
    calls = []

    def forward(x):
        calls.append(1)
        return x[1:] * 2

    subject = subject_of(forward, np.array([1.0, 2.0]))
    calls.clear()
    by_best_differences(subject, every_entry(subject))
    assert len(calls) == 2 + 6 + 4 + 2 * 6  # with NaN, all together and alone for the reach, and a trio of steps


def test_a_slope_in_doubt_has_the_difference_as_its_error_and_is_not_tried_again(monkeypatch):
    asked = []

    def scripted(_, directions, scale, __):
        moves = np.flatnonzero(directions.any(axis=0))
        scale = np.broadcast_to(scale, len(moves))
        asked.append((scale[0], moves.tolist()))
        known = {  # by scale: value, error and coarse error of each of three entries
            SCALES[0]: [(1.0, 0.1, 0.0), (2.0, 0.3, 0.0), (5.0, 0.1, 0.0)],
            SCALES[1]: [(9.0, 0.2, 0.9), (2.1, 0.2, 0.0), (-4.0, 0.2, 1.0)],
            SCALES[2]: [(1.0, 0.0, 0.0), (2.2, 0.0, 0.0), (5.0, 0.0, 0.0)],
        }[scale[0]]
        values, errors, coarse = np.array(known).T[:, moves]
        return Slopes(values[:, np.newaxis], errors, scale.copy(), coarse, np.zeros(len(moves)))

    monkeypatch.setattr(slopes_module, "by_differences", scripted)
    subject = subject_of(np.sin, np.ones(3))
    found = by_best_differences(subject, every_entry(subject))
    np.testing.assert_array_equal(found.values[:, 0], [1.0, 2.2, 5.0])
    np.testing.assert_array_equal(found.errors, [8.0, 0.0, 9.0])
    np.testing.assert_array_equal(found.scales, [SCALES[0], SCALES[2], SCALES[0]])
    assert asked == [(SCALES[0], [0, 1, 2]), (SCALES[1], [0, 1, 2]), (SCALES[2], [1])]
