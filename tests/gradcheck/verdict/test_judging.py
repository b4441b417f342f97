"""The verdict on single entries: the floor, the bound, and the resolution."""

import math

import numpy as np
import pytest
from helpers import each
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck import check
from attention_np.gradcheck.verdict.judging import HOLDS, UNDECIDED, WRONG, Verdict, bound_of, judge

from ..evidence import EPS, evidence_of


@each("bound", [0.0, 5e-6, 2e-5])
@each("times_the_floor", [0.0, 0.5, 9.9, 10.1, 19.9, 20.1, 1e6, -9.9, -10.1, -20.1])
def test_an_entry_is_wrong_above_ten_floors_and_above_the_bound_and_undecided_below(times_the_floor, bound):
    expected = np.array([1.0, 0.5, -0.25])
    actual = expected + np.array([0.0, times_the_floor * 1e-6, 0.0])
    most = max(10, bound / 1e-6)
    verdict = HOLDS if times_the_floor == 0 else WRONG if abs(times_the_floor) > most else UNDECIDED
    np.testing.assert_array_equal(judge(actual, expected, np.full(3, 1e-6), bound, 1e-10), [HOLDS, verdict, HOLDS])


@each("size", [1e-30, 1.0, 1e30])
def test_an_entry_holds_if_it_agrees_to_the_resolution_of_its_own_size_whatever_the_noise(size):
    expected = np.array([1.0, size, -size])
    for floor, bound in ((np.inf, 0.0), (0.0, np.inf)):
        floors = np.full(3, floor)
        np.testing.assert_array_equal(judge(expected * (1 + 0.9e-7), expected, floors, bound, 1e-7), [HOLDS] * 3)
        np.testing.assert_array_equal(judge(expected * (1 + 1.1e-7), expected, floors, bound, 1e-7), [UNDECIDED] * 3)


@each(
    ("actual", "expected", "floor", "verdict"),
    [
        ([0.0, 0.0], [1e-9, 0.0], 1e-20, [WRONG, HOLDS]),
        ([1 + 1e-11], [1.0], 1e-16, [WRONG]),  # the resolution excuses no difference above the noise
        ([1e-3, -1e-3], [2.0, 1e-3], [10.0, 1e-19], [UNDECIDED, WRONG]),  # nor the noise of one entry another
        ([1e12, 1.001e-12], [1e12, 1e-12], [1e-4, 1e-28], [HOLDS, WRONG]),  # nor does a large one hide a small
        ([np.nan, 1.0, np.nan], [1.0, np.nan, np.nan], 0.0, [UNDECIDED] * 3),
        ([np.inf, 1.0, 1e308], [1.0, -np.inf, -1e308], 1.0, [WRONG] * 3),
    ],
)
def test_each_entry_gets_a_verdict_of_its_own(actual, expected, floor, verdict):
    found = judge(np.array(actual), np.array(expected), np.broadcast_to(floor, len(actual)), 0.0, 1e-10)
    np.testing.assert_array_equal(found, verdict)
    assert found.dtype == np.int8


@each("unit", [2.0**-23, EPS])
@each(
    ("x", "measured", "bits", "bound"),
    [
        ([1.0, -2.0], [3.0, -5.0], 0.0, 40),  # eight last bits of the largest entry
        ([1.0, -2.0], [np.nan, -5.0], 0.0, 40),
        ([1.0, -4.0], [0.0, 0.0], 1.0, math.sqrt(3) / 4),  # what moves the outputs by a last bit of each
        ([0.0, 0.0], [0.0, 1e-3], 1.0, math.sqrt(3)),
        ([1.0, -4.0], [1.0, 2.0], 1.0, 16),  # the larger of the two
    ],
)
def test_what_is_too_small_to_judge_is_told_by_the_largest_entry_and_by_the_outputs(x, measured, bits, bound, unit):
    last_bits = np.full(3, bits * unit)
    assert bound_of(np.array(x), np.array(measured), last_bits, unit) == pytest.approx(bound * unit, rel=1e-14)


@given(st.floats(-100, 100), st.integers(0, 1000))
def test_the_bound_has_the_unit_of_a_gradient(power, seed):
    x, measured, bits = np.random.default_rng(seed).standard_normal((3, 4))
    scale = 10.0**power
    of_other_units = bound_of(x * scale, measured / scale, EPS * abs(bits), EPS)
    assert of_other_units == pytest.approx(bound_of(x, measured, EPS * abs(bits), EPS) / scale, rel=1e-12)


SPREAD = np.array([1.0, 1e-3, 1e-14, 1e-15, 1e-17])


@each("method", ["auto", "central"])
@each("unit", [1.0, 1e-20, 1e20])
@each("factor", [0.0, -1.0, 1.5])
def test_what_is_too_small_is_counted_and_not_called_wrong(factor, unit, method):
    times = np.where(np.arange(5) < 2, 1, factor)
    inputs = {"x": np.linspace(1, 2, 5)}
    found = check(lambda x: unit * SPREAD * x, lambda d, _: d * times * unit * SPREAD, inputs, method=method)["x"]
    slopes = found.details.numerical
    large = abs((times - 1) * slopes) > 8 * EPS * abs(slopes).max()
    np.testing.assert_array_equal(found.details.verdict, np.where(large, WRONG, [0, 0, 2, 2, 2]))
    assert (found.ok, found.undecidable) == (not large.any(), 3 - large.sum())
    if method == "central":  # the trial of the complex step does not see so much
        assert found.too_small == 3 - large.sum()
    small = {"x": inputs["x"][2:]}  # apart from what is larger
    alone = check(lambda x: unit * SPREAD[2:] * x, lambda d, _: d * factor * unit * SPREAD[2:], small, method=method)[
        "x"
    ]
    assert alone.wrong == 3


def line(claimed, measured, method, dtype, errors=0.0, rtol=0.0):
    """The verdict on a line of given slopes, without what else may be blamed."""
    x = np.linspace(1, 2, len(claimed), dtype=dtype)
    found = evidence_of(lambda x: x, lambda d, _: np.asarray(claimed, d.dtype), {"x": x}, method=method)
    found.slopes[:], found.errors[:] = measured, errors
    verdict = Verdict(found, rtol)
    verdict.begin(verdict.looked)
    return verdict


@each(
    ("method", "dtype", "resolution"),
    [
        ("complex-step", "float64", 1e-10),
        ("central", "float64", 1e-7),
        ("complex-step", "float32", 1e3 * 2.0**-23),
        ("central", "float32", 1e3 * 2.0**-23),
    ],
)
def test_an_entry_holds_to_the_resolution_of_the_method_or_of_its_dtype(method, dtype, resolution):
    verdict = line(1 + np.array([0.9, 1.1]) * resolution, 1.0, method, dtype, errors=1.0)
    np.testing.assert_array_equal(verdict.entries, [HOLDS, UNDECIDED])
    assert verdict.too_small == 0


@each("dtype", ["float32", "float64"])
def test_the_floor_begins_with_the_errors_of_the_method_and_four_last_bits_and_is_added_to(dtype):
    unit = float(np.finfo(dtype).eps)
    claimed = np.array([1.0, 2.0, 1.0, 1.0])
    verdict = line(claimed, [1.0, -4.0, 1 + 39 * unit, 1 + 60 * unit], "complex-step", dtype, errors=unit)
    large = [1.0, 4.0, 1.0, 1.0]
    np.testing.assert_allclose(verdict.floor, unit + 4 * unit * np.array(large), rtol=1e-4)
    np.testing.assert_array_equal(verdict.wrong, [1, 3])
    np.testing.assert_array_equal(verdict.add(np.array([1, 3]), np.array([np.inf, 2 * unit])), [1])
    np.testing.assert_allclose(verdict.floor, unit + unit * np.array([4, 16, 4, 6]), rtol=1e-4)


@each(("off", "ok"), [(0.09, True), (0.11, False)])
@each("scale", [1e-9, 1.0, 1e9])
def test_what_rtol_allows_is_normwise(scale, off, ok):
    def forward(x):
        return scale * x * np.array([1.0, 1e-20])

    backward = lambda d, _: scale * d * np.array([1.0, 1e-20]) + scale * off * np.array([0, d[0]])  # noqa: E731
    found = check(forward, backward, {"x": np.ones(2)}, rtol=0.1)["x"]
    assert (found.ok, found.wrong) == (ok, 1 - ok)
    assert check(lambda x: x * 1.0, lambda d, _: 2 * d, {"x": np.ones(3)}, rtol=0.5).ok  # what is exactly allowed is
    assert not check(lambda x: x * 1.0, lambda d, _: 2 * d, {"x": np.ones(3)}, rtol=0.49).ok
