"""The steps of a probe, one by one: where it looks, what it takes for rounding, and what for not analytic."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck.measuring.probes import (
    COMPLEX_STEP,
    _contradiction,
    _direction,
    _left_over,
    rounding_of,
    why_not_analytic,
)
from tests.gradcheck.subjects import heard, subject_of

EPS = float(np.finfo(np.float64).eps)


def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _as_in_a_check():
    with np.errstate(all="ignore"):
        yield


# Where it looks


def test_along_a_random_direction_each_entry_goes_up_or_down_by_a_half_to_all_of_its_size():
    x = np.concatenate([np.geomspace(1e-250, 1e250, 500), [0.0, np.nan, -np.inf, 1e-310]])
    v = _direction(subject_of(lambda x: x, x), rng())
    size = np.where(np.isfinite(x) & (x > 1e-300), x, 1.0)  # the typical one
    share = np.abs(v) / size
    assert ((share[:500] >= 0.5) & (share[:500] <= 1)).all()
    assert share[:500].min() < 0.51
    assert share[:500].max() > 0.99
    assert ((share[500:] > 0.25) & (share[500:] <= 1)).all()
    assert 200 < (v > 0).sum() < 300


def test_noise_is_looked_for_at_sixteen_points_in_a_row():
    seen = []

    def forward(x):
        seen.append(x.copy())
        return np.array([7.0, -9.0]) * (-1) ** len(seen) + np.array([x[0], -x[1]])

    subject = subject_of(forward, np.array([1.0, 2.0]))
    seen.clear()
    step = np.array([0.25, -0.5])
    left, largest = _left_over(subject, step)
    np.testing.assert_array_equal(seen, [subject.x + k * step for k in range(1, 17)])
    np.testing.assert_allclose(left, 32 * np.array([7, 9]) / np.sqrt(252), rtol=1e-12)  # of what alternates
    np.testing.assert_array_equal(largest, [7 + 5, 9 + 5.5])  # at the last points


def test_differences_leave_nothing_of_a_quartic_and_then_say_that_they_saw_nothing():
    left, largest = _left_over(subject_of(lambda x: x * x * x * x - 3 * x, np.array([0.0])), np.array([1.0]))
    assert (left[0], largest[0]) == (np.inf, 16**4 - 48)


# Rounding


def steps_of(width, x):
    """The number rounded to multiples of a width."""
    return np.round(x / width) * width


def test_an_output_in_which_no_rounding_was_seen_has_as_much_of_it_as_the_others():
    def forward(x):
        noisy = np.sin(x[:3].astype(np.float32)).astype(float)
        return np.concatenate([noisy, 1e3 * (noisy[:2] - noisy[:2].round(3)) * 0 + 1e3, np.sin(x[:2]) * 0])

    noise = rounding_of(subject_of(forward, np.array([0.3, 0.7, 1.1])), rng())
    typical = np.median(noise[:3] / forward(np.array([0.3, 0.7, 1.1]))[:3])
    assert 1e-9 < typical < 1e-6
    np.testing.assert_allclose(noise[3:5], 1e3 * typical, rtol=1e-12)
    np.testing.assert_array_equal(noise[5:], 0)


def test_the_noise_of_outputs_that_are_zero_says_nothing_of_others():
    def forward(x):
        y = x.astype(np.float32)
        around_zero = (np.sin(y[:2]) - np.sin(np.float32(0.7))).astype(float)
        return np.concatenate([around_zero, np.sin(y[2:]).astype(float), [5.0]])

    x = np.array([0.7, 0.7, 0.9])
    subject = subject_of(forward, x)
    assert not subject.output[:2].any()
    noise = rounding_of(subject, rng())
    assert noise[3] == pytest.approx(5 * noise[2] / subject.output[2], rel=1e-12)
    assert (noise[:2] > 1e-9).all()


@pytest.mark.parametrize("x", [[0.0, 1.0, 1.0], [0.0, 0.7, 1.0]])
def test_the_entries_that_are_not_zero_move_and_the_zeros_do_not(x):
    heard_at = rounding_of(subject_of(lambda x: np.exp(x.astype(np.float32)).astype(float), np.array(x)), rng())
    assert (heard_at[1:] > 1e-9).all()
    rough = subject_of(lambda x: x[1:] + np.exp(x[0].astype(np.float32)).astype(float), np.array(x))
    assert (rounding_of(rough, rng()) <= 4 * EPS).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
def test_noise_is_told_in_double_precision_and_in_the_shape_of_the_output(dtype):
    noise = rounding_of(subject_of(np.sin, np.ones((2, 3), dtype)), rng())
    assert (noise.dtype, noise.shape) == (np.float64, (2, 3))


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_noise_is_heard_in_any_units_of_single_precision(unit):
    def forward(x):
        return np.exp(x.astype(np.float16)).astype(np.float32) * np.float32(unit)

    subject = subject_of(forward, np.linspace(0.3, 2.9, 20, dtype=np.float32))
    noise = rounding_of(subject, rng())
    assert (noise >= 1e-5 * subject.output).mean() >= 0.9


def test_what_changes_in_long_steps_only_is_heard_in_those():
    x = np.array([1.0, 2.0])
    noise = rounding_of(subject_of(lambda x: steps_of(1e-3, x), x), rng())
    assert (noise >= 1e-5).all()
    assert (noise <= 2e-3).all()


def test_a_wave_within_the_closest_points_is_not_taken_for_noise():
    for wave in (1e7, 1e9, 1e11):
        for size in (1e-6, 1.0, 1e6):
            subject = subject_of(lambda x, wave=wave, size=size: np.sin(wave / size * x), np.array([0.3]) * size)
            assert rounding_of(subject, rng()) <= 1e3 * EPS * wave
    x = np.array([0.3])
    loud = subject_of(lambda x: np.sin(x.astype(np.float32)).astype(float) + 1e6, x)
    assert 1e-9 < rounding_of(loud, rng()) < 1e-6


def test_a_function_that_is_quiet_close_by_is_asked_nowhere_else():
    calls = []

    def forward(x):
        calls.append(1)
        return np.sin(x)

    subject = subject_of(forward, np.array([1.2]))
    calls.clear()
    assert rounding_of(subject, rng()) == EPS * np.sin(1.2)
    assert len(calls) == 16


def test_a_quiet_output_beside_a_loud_one_stays_quiet():
    def forward(x):
        return np.stack([np.sin(1e9 * x[0]), np.sin(x[1]), np.sin(x[1].astype(np.float32)).astype(float)])

    noise = rounding_of(subject_of(forward, np.array([0.3, 0.7])), rng())
    assert noise[0] < 1e-4
    assert noise[1] < 4 * EPS
    assert noise[2] > 1e-9


# Analytic or not


def line(*slopes, noise=0.0):
    """Outputs on lines through one, so that differences know their slopes exactly."""
    subject = subject_of(lambda x: np.array(slopes) * x[:1], np.array([1.0]))
    return replace(subject, noise=np.full(len(slopes), noise))


def contradicts(subject, slope, error=0.0):
    found = _contradiction(subject, np.ones(1), np.array(slope), np.full(len(slope), error))
    assert found is None or found.startswith("the complex step gives the slope ")
    return found is not None


@pytest.mark.parametrize(
    ("off", "error", "noise", "expected"),
    [
        (0.0, 0.0, 0.0, False),
        (0.9e-8, 0.0, 0.0, False),  # rounding, maybe
        (1.1e-8, 0.0, 0.0, True),
        (-1.1e-8, 0.0, 0.0, True),
        (1.0, 0.9, 0.0, True),  # off by more than is not known
        (1.0, 1.1, 0.0, False),
        (3.0, 0.0, 1e-6, True),  # rounding makes 10 * 2 * noise / step of it, and the longest are 2**-9 and 2**-14
        (0.3, 0.0, 1e-6, False),
        (-2.0, 0.0, 0.0, True),  # as for a conjugate
    ],
)
def test_a_complex_step_is_contradicted_by_converged_differences_beyond_all_that_can_be_blamed(
    off, error, noise, expected
):
    assert contradicts(line(1.0, noise=noise), [1 + off], error) == expected
    assert contradicts(line(1.0, 0.5, noise=noise), [1 + off, 0.5], error) == expected


def test_a_discrepancy_is_judged_beside_the_largest_slope_of_either():
    assert contradicts(line(1e3, 1.0), [1e3, 1 + 1.1e-5])
    assert not contradicts(line(1e3, 1.0), [1e3, 1 + 0.9e-5])
    assert contradicts(line(1e-9, 2e-12), [1e-9, 1e-12])
    assert not contradicts(line(1.0, 0.0), [1e6, 0.9e-2]) or contradicts(line(1.0), [1e6])
    assert not contradicts(line(0.0), [0.0])
    assert not contradicts(line(1e-9, 0.0), [1e-9, 1e-12])  # what is zero, and stays it, tells nothing


def test_the_output_that_contradicts_most_is_told_with_the_slopes_of_the_first_scale():
    found = _contradiction(line(1.0, 2.0, 3.0), np.ones(1), np.array([1.5, 7.0, 2.0]), np.zeros(3))
    assert found.startswith("the complex step gives the slope 7, differences 2: ")


@pytest.mark.parametrize("width", [2.0**-30, 2.0**-45, 2.0**-60])
@pytest.mark.parametrize(("slope", "expected"), [(5.0, False), (7.0, True), (1.0, False)])
def test_a_slope_that_differences_see_at_some_scale_is_contradicted_by_no_other(width, slope, expected):
    """The slope is 5 close to zero, and 1 farther off."""
    subject = subject_of(lambda x: x + 4 * width * np.tanh(x / width), np.array([0.0]))
    assert contradicts(replace(subject, noise=np.zeros(1)), [slope]) == expected


def test_one_output_that_differences_agree_with_excuses_no_other():
    subject = subject_of(lambda x: np.concatenate([x + 2.0**-28 * np.tanh(x * 2.0**30), x]), np.array([0.0]))
    subject = replace(subject, noise=np.zeros(2))
    assert not contradicts(subject, [5.0, 1.0])
    assert contradicts(subject, [5.0, 2.0])


def test_a_jump_farther_off_does_not_hide_what_is_wrong_close_by():
    subject = subject_of(lambda x: x + np.where(x > 1 + 2.0**-10, 1e9, 0), np.array([1.0]))
    assert contradicts(replace(subject, noise=np.zeros(1)), [1.001])


def test_differences_that_have_not_converged_contradict_nothing():
    root = replace(subject_of(np.cbrt, np.array([0.0])), noise=np.zeros(1))
    for slope in (123.0, 1e6, -1e6):
        assert not contradicts(root, [slope])
    wave = subject_of(lambda x: np.sin(1e12 * x), np.array([0.3]))
    assert not contradicts(replace(wave, noise=np.zeros(1)), [1e12 * np.cos(0.3e12)])


def test_a_complex_step_that_depends_on_its_length_is_not_known_well_enough_to_be_contradicted():
    def forward(x):  # a slope of 1; by the complex step, one that falls with the square of its length
        if x.dtype.kind != "c":
            return x * 1.0
        return x.real + 1j * x.imag * (1 + (x.imag / COMPLEX_STEP) ** 2 / 8)

    assert why_not_analytic(heard(subject_of(forward, np.array([1.0]))), rng()) is None


def test_a_function_that_turns_complex_numbers_into_others_with_a_warning_refuses_them():
    def forward(x):
        if x.dtype.kind == "c":
            warnings.warn("no imaginary part", np.exceptions.ComplexWarning, stacklevel=2)
        return np.sin(x)

    assert why_not_analytic(subject_of(forward, np.ones(2)), rng()) == (
        "forward refuses complex arrays (no imaginary part)"
    )


def test_a_refusal_without_a_word_is_told_by_its_kind():
    def forward(x):
        if x.dtype.kind == "c":
            raise TypeError
        return np.sin(x)

    assert why_not_analytic(subject_of(forward, np.ones(2)), rng()) == "forward refuses complex arrays (TypeError)"
