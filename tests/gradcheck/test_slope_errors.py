"""What the slopes of simple functions are known to, in numbers that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck.measuring.slopes import (
    COMPLEX_STEP,
    COMPLEX_STEP_IN_SINGLE,
    Reach,
    _width,
    by_complex_step,
    by_differences,
    reach_of,
)
from attention_np.gradcheck.measuring.subject import along, flattened, rows_at_once, rows_in
from tests.gradcheck.subjects import every_entry, subject_of

EPS = float(np.finfo(np.float64).eps)
U = np.array([3.0, -4.0])  # the cotangent


def with_noise(forward, x, noise, **changes):
    subject = subject_of(forward, np.array(x), cotangent=np.resize(U, np.shape(forward(np.array(x)))))
    return replace(subject, noise=noise if noise is None else np.array(noise), **changes)


# Of differences


@pytest.mark.parametrize("scale", [2.0**-3, 2.0**-20])
@pytest.mark.parametrize(("noise", "sizes"), [([1e-9, 2e-9], [1e-9, 2e-9]), (None, [2 * EPS, 4 * EPS])])
def test_the_error_of_differences_on_a_line_is_the_noise_over_the_shortest_step(noise, sizes, scale):
    subject = with_noise(lambda x: np.stack([2 * x[0], 4 * x[0]]), [1.0], noise)
    found = by_differences(subject, every_entry(subject), scale)
    np.testing.assert_allclose(found.errors, [np.hypot(3 * sizes[0], 4 * sizes[1]) / (scale / 4)], rtol=1e-12)
    np.testing.assert_array_equal(found.values, [[3 * 2 - 4 * 4]])
    np.testing.assert_array_equal((found.coarse, found.lost), np.zeros((2, 1)))


def test_the_error_of_differences_has_what_the_last_step_changed_besides():
    subject = with_noise(lambda x: x**5, [1.0], [0.0])
    h = 2.0**-3
    found = by_differences(subject, every_entry(subject), h)
    assert found.errors[0] == pytest.approx(3 * h**4 / 4, rel=1e-6)  # (gradcheck.28), times the cotangent
    assert found.values[0, 0] == pytest.approx(15, rel=1e-12)


def test_outputs_that_do_not_move_add_no_noise_unless_a_closer_look_has_seen_them_depend():
    subject = with_noise(lambda x: np.stack([2 * x[0], 7 + 0 * x[0]]), [1.0], [1e-9, 5e-9])
    errors = [by_differences(subject, every_entry(subject), 0.5).errors[0]]
    for touched in ([True, False], [True, True]):
        reach = Reach(np.array([touched]), np.array([[2.0, 7.0]]))
        errors.append(by_differences(subject, every_entry(subject), 0.5, reach).errors[0])
    np.testing.assert_allclose(errors, [8 * 3e-9, 8 * 3e-9, 8 * np.hypot(3e-9, 20e-9)], rtol=1e-12)


def test_noise_is_heard_at_any_of_the_three_steps():
    def forward(x):
        return x + np.where(np.abs(x - 1) > 0.1, 0, 0.0) * x - np.where(np.abs(x - 1) < 0.1, x - 1, 0)

    subject = with_noise(forward, [1.0], [1e-9])
    found = by_differences(subject, every_entry(subject), 2.0**-2)  # flat within the two shorter ones
    assert found.errors[0] >= 2 * 3e-9 / (2 * 2.0**-4)


@pytest.mark.parametrize(("noise", "last_bits"), [(None, [EPS * 6, EPS * 8]), ([1e-12, 1e-20], [1e-12, EPS * 8])])
def test_the_coarse_error_is_that_of_the_last_bits_where_the_outputs_are_largest(noise, last_bits):
    subject = with_noise(lambda x: np.stack([x[0], 2 * x[0]]), [1.0], noise)
    direction, scale = every_entry(subject), 2.0**-10
    for touched in ([True, True], [True, False], [False, True]):
        reach = Reach(np.array([touched]), np.array([[6.0, 8.0]]))
        found = by_differences(subject, direction, scale, reach)
        expected = np.hypot(*(np.array(last_bits) * U * touched)) / (scale / 4)
        np.testing.assert_allclose(found.coarse, [expected], rtol=1e-12)


def test_of_two_moves_each_has_the_coarse_error_of_its_own_reach():
    subject = with_noise(lambda x: x * 1.0, [1.0, 1.0], None)
    reach = Reach(np.eye(2, dtype=bool), np.array([[6.0, 8.0], [16.0, 32.0]]))
    found = by_differences(subject, every_entry(subject), 1.0, reach)
    np.testing.assert_allclose(found.coarse, [4 * 3 * 6 * EPS, 4 * 4 * 32 * EPS], rtol=1e-12)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_a_slope_that_is_not_finite_has_an_infinite_error_and_no_other_has(what):
    x = np.array([1.0, 1.0])
    subject = subject_of(lambda x: np.where(x > 1, what, x).sum(keepdims=True), x)
    reach = Reach(np.ones((2, 1), bool), np.ones((2, 1)))
    assert (by_differences(subject, every_entry(subject), 0.5, reach).errors == np.inf).all()
    noisy = replace(subject_of(lambda x: x * 1.0, x), noise=np.array([np.inf, 0.0]))
    errors = by_differences(noisy, every_entry(noisy), 0.5).errors
    np.testing.assert_array_equal(np.isinf(errors), [True, False])


# Of the complex step


def test_the_error_of_the_complex_step_is_the_rounding_of_the_slopes_and_the_square_of_the_step():
    subject = with_noise(lambda x: np.stack([2 * x[0], -8 * x[0]]), [1.0], None)
    found = by_complex_step(subject, every_entry(subject))
    np.testing.assert_allclose(found.errors, [EPS * (3 * 2 + 4 * 8)], rtol=1e-12)
    for shortness in (1.0, 0.25):
        flat = with_noise(lambda x: np.stack([5.0 + 0 * x[0], -7.0 + 0 * x[0]]), [1.0], None)
        found = by_complex_step(flat, every_entry(flat), shortness=shortness)
        np.testing.assert_array_equal(found.errors, [(shortness * COMPLEX_STEP) ** 2 * (3 * 5 + 4 * 7)])
        np.testing.assert_array_equal(found.scales, [shortness * COMPLEX_STEP])


@pytest.mark.parametrize(
    ("x", "dtype", "step"),
    [
        (1.0, "float32", COMPLEX_STEP_IN_SINGLE),
        (1.0, "float64", COMPLEX_STEP),
        (1.0, "longdouble", COMPLEX_STEP),
        (1.5 * 2.0**-790, "float64", COMPLEX_STEP),
        (1.5 * 2.0**-810, "float64", COMPLEX_STEP_IN_SINGLE),
    ],
)
def test_the_complex_step_is_longer_in_single_precision_and_for_entries_close_to_the_end_of_the_range(x, dtype, step):
    subject = subject_of(lambda x: 2 * x, np.array([x, 1.0, 1.0], dtype))
    found = by_complex_step(subject, every_entry(subject))
    relative = 2.0 ** np.floor(np.log2(x))  # of the entry, to those beside it
    usual = COMPLEX_STEP if x != 1 else step
    np.testing.assert_array_equal(found.scales, [step * relative, usual, usual])
    np.testing.assert_array_equal(found.values[:, 0], [2, 2, 2])


def test_a_slope_at_the_end_of_the_range_has_all_its_digits_by_the_complex_step():
    x = np.array([1.3e-298, 1.0, 1.0])
    subject = subject_of(np.log, x)
    found = by_complex_step(subject, every_entry(subject))
    np.testing.assert_allclose(found.values[:, 0], 1 / x, rtol=1e-14)


def test_in_no_direction_the_complex_step_moves_an_entry_by_much_of_itself():
    x = np.array([1.0, 3.0 * 2.0**-20, 0.0, 4.0])
    subject = subject_of(lambda x: 2 * x, x)
    directions = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [64, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]], float)
    found = by_complex_step(subject, directions)
    np.testing.assert_array_equal(found.scales / COMPLEX_STEP, [1, 2.0**-19, 1, 2.0**-6, 1, 1])


# What is lost


@pytest.mark.parametrize(("noise", "last_bits"), [(None, [EPS * 6, EPS * 8]), ([1e-12, 1e-20], [1e-12, EPS * 8])])
@pytest.mark.parametrize("touched", [[True, True], [True, False], [False, True]])
def test_outputs_that_are_flat_lose_eight_last_bits_of_where_they_are_largest(noise, last_bits, touched):
    subject = with_noise(lambda x: np.stack([5.0 + 0 * x[0], -7.0 + 0 * x[0]]), [1.0], noise)
    reach = Reach(np.array([touched]), np.array([[6.0, 8.0]]))
    expected = 8 * np.hypot(*(np.array(last_bits) * U * touched))
    for found in (
        by_complex_step(subject, every_entry(subject), reach),
        by_differences(subject, every_entry(subject), 0.5, reach),
    ):
        np.testing.assert_allclose(found.lost, [expected], rtol=1e-12)


@pytest.mark.parametrize(("times", "loses"), [(3.0, True), (5.0, False), (-3.0, True), (-5.0, False), (0.0, True)])
@pytest.mark.parametrize("unit", [EPS, 2.0**-23])
def test_an_output_is_saturated_if_it_moves_by_at_most_four_last_bits_when_its_input_moves_by_its_size(
    times, loses, unit
):
    subject = replace(subject_of(lambda x: times * unit * 6 * x, np.array([1.0])), unit=unit)
    reach = Reach(np.ones((1, 1), bool), np.full((1, 1), 6.0))
    for found in (
        by_complex_step(subject, every_entry(subject), reach),
        by_differences(subject, every_entry(subject), 0.5, reach),
    ):
        assert found.lost[0] == (8 * 6 * unit if loses else 0)


# The reach


def test_the_reach_is_looked_for_two_sizes_away_alone_together_alternately_and_at_zero():
    seen = []

    def forward(x):
        seen.append(x.copy())
        return x.sum(keepdims=True)

    x = np.array([[1.5, 3.0, 9.0], [5.0, 1.25, 1.75]])
    size = np.array([[2, 2, 8], [4, 2, 2]])  # the median is about 2.4
    subject = subject_of(forward, x)
    seen.clear()
    reach_of(subject, along(x, np.array([1, 3])))
    found = {tuple(point.ravel()) for point in seen if not np.isnan(point).any()}
    alternately = np.array([[-1, 1, -1], [1, -1, 1]])
    moves = [size, alternately * size, x / 2, size * (np.arange(6) == 1).reshape(2, 3)]
    moves.append(size * (np.arange(6) == 3).reshape(2, 3))
    assert found == {tuple((x + sign * 2 * move).ravel()) for move in moves for sign in (1, -1)}


def test_the_reach_of_an_output_that_is_nowhere_finite_nearby_is_that_at_the_point():
    with np.errstate(all="ignore"):
        subject = subject_of(lambda x: np.where(x == 1.5, -3.0, np.inf), np.array([1.5]))
    np.testing.assert_array_equal(reach_of(subject, every_entry(subject)).largest, [[3]])


# Widths, rows, memory


def test_the_width_is_what_rounding_made_of_a_step_if_one_entry_moves_alone_and_two_otherwise():
    h = np.array([[0.0, 0.5], [0.25, 0.0], [0.5, 0.5], [0.0, 0.0], [0.5, 0.0]])
    up = np.array([[9.0, 1.6], [1.2, 9.0], [1.6, 1.6], [1.0, 1.0], [np.inf, 1.0]])
    down = np.array([[9.0, 0.5], [0.8, 9.0], [0.4, 0.4], [1.0, 1.0], [0.5, 1.0]])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(_width(up, down, h), [2.2, 1.6, 2, 2, 2])


@pytest.mark.parametrize(("shape", "flat"), [((3,), (3, 1)), ((3, 2, 4), (3, 8)), ((0, 2), (0, 2)), ((3, 0), (3, 0))])
def test_flat_rows_are_as_many_as_there_were(shape, flat):
    assert flattened(np.zeros(shape)).shape == flat


def test_a_batch_that_cannot_be_tried_is_held_to_take_four_complex_arrays_of_input_and_output():
    def refuses(x):
        if x.dtype.kind == "c":
            raise TypeError("real only")
        return np.concatenate([x, x], axis=-1)

    subject = subject_of(refuses, np.ones(100), batched=True)
    for memory in (64 * 300 * 8, 64 * 300 * 8 - 1):
        assert rows_in(memory, subject) == (8 if memory == 64 * 300 * 8 else 4)
    assert rows_at_once(10**6, replace(subject, rows=7)) == 7
    assert rows_at_once(64 * 300 * 8, replace(subject, rows=7, batched=False)) == 8


@pytest.mark.parametrize(("rows", "calls"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (9, [5])])
def test_no_more_rows_go_through_at_once_than_may(rows, calls):
    seen = []

    def forward(x):
        seen.append(len(x))
        return 2 * x

    subject = replace(subject_of(forward, np.ones(3), batched=True), rows=rows)
    seen.clear()
    moved = np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(subject.outputs(moved), 2 * moved)
    assert seen == calls


def test_an_input_that_goes_with_another_gets_the_new_axis_before_those_of_the_output():
    seen = []

    def forward(x, bias):
        seen.append((x.shape, bias.shape))
        return x + bias

    subject = replace(subject_of(forward, np.ones((4, 2, 3)), np.arange(3.0), batched=True), with_it=(1,))
    seen.clear()
    moved = np.random.default_rng(0).standard_normal((5, 4, 2, 3))
    np.testing.assert_array_equal(subject.outputs(moved), flattened(moved + np.arange(3)))
    assert seen == [((5, 4, 2, 3), (5, 1, 1, 3))]


def test_of_nothing_any_number_of_rows_fit():
    def refuses(x):
        if x.dtype.kind == "c":
            raise TypeError("real only")
        return x * 1.0

    assert rows_in(10**6, subject_of(refuses, np.ones((0,)), batched=True)) == 2**19
    nothing = subject_of(lambda x: x[..., :0] * 1.0, np.ones((0,)))
    assert rows_in(10**6, nothing) == 2**19
    assert rows_in(2**62, nothing) == 2**30
    assert rows_in(1, nothing) == 1


def test_an_input_of_single_precision_moves_alone_and_the_others_keep_their_own():
    subject = subject_of(lambda x, y: y + 0 * x, np.ones(2, np.float32), np.array([0.1, 0.3]))
    np.testing.assert_array_equal(subject.outputs(np.ones((1, 2), np.float32)), [[0.1, 0.3]])
    np.testing.assert_array_equal(subject.outputs(np.ones((1, 2), np.complex64)), [[0.1, 0.3]])
    single = subject_of(lambda x: x, np.ones(2, np.float32))
    assert single.outputs(np.ones((1, 2)) + 0j).dtype == np.complex64


def test_where_a_function_raises_its_values_keep_their_dtype():
    def forward(x):
        if (x < 0).any():
            raise ValueError("negative")
        return np.sqrt(x)

    found = subject_of(forward, np.ones(2, np.float32)).values(np.array([[1, -1], [4, 9]], np.float32))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[np.nan, np.nan], [2, 3]])
