import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, each

from attention_np._lib.arrays import quiet
from attention_np._lib.wide import LEAST, Wide, is_wide, times_power_of_two, widened


@pytest.fixture(autouse=True)
def _as_in_ops() -> Iterator[None]:
    with quiet():
        yield


def exact(number: Wide) -> list[Fraction]:
    """The numbers that it stands for."""
    places = zip(number.mantissa.ravel().tolist(), number.exponent.ravel().tolist(), strict=True)
    return [Fraction(mantissa) * Fraction(2) ** exponent for mantissa, exponent in places]


def numbers(seed: int, *shape: int, most: int = 3000) -> Wide:
    """Small integers times powers of two."""
    rng = np.random.default_rng(seed)
    return Wide(rng.integers(-9, 10, shape) * 1.0, rng.integers(-most, most, shape).astype(np.intc), np.float64)


@each("seed", range(5))
@each("of", [operator.add, operator.sub, operator.mul])
def test_arithmetic_is_that_of_the_numbers_whatever_their_size(of: Callable[[Any, Any], Any], seed: int) -> None:
    one, other = numbers(2 * seed, 30), numbers(2 * seed + 1, 30)
    for found, x, y in zip(exact(of(one, other)), exact(one), exact(other), strict=True):
        assert found == of(x, y) or abs(found / of(x, y) - 1) < Fraction(1, 2**52)


@each("seed", range(5))
def test_products_and_sums_add_up_terms_of_any_size(seed: int) -> None:
    a, b = numbers(seed, 3, 4), numbers(seed + 50, 4, 2)
    found, x, y = exact(a @ b), np.reshape(exact(a), (3, 4)), np.reshape(exact(b), (4, 2))
    for number, true, terms in zip(found, (x @ y).ravel(), (abs(x) @ abs(y)).ravel(), strict=True):
        assert abs(number - true) <= terms / 2**50
    for axis in (0, 1, (0, 1)):
        total = exact(a.sum(axis=axis, keepdims=True))
        for number, true, terms in zip(total, np.ravel(x.sum(axis)), np.ravel(abs(x).sum(axis)), strict=True):
            assert abs(number - true) <= terms / 2**50
    assert a.sum(axis=0).shape == (4,)
    assert a.sum(axis=0, keepdims=True).shape == (1, 4)


@each("shift", [-900, 0, 900])
def test_a_product_of_small_integers_of_one_size_is_exact(shift: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 10, (3, 5)), rng.integers(-9, 10, (2, 5, 4))
    found = widened(np.ldexp(a * 1.0, shift)) @ widened(np.ldexp(b * 1.0, shift))
    np.testing.assert_array_equal(found * widened(np.ldexp(1.0, -shift)) * widened(np.ldexp(1.0, -shift)), a @ b)


def test_zero_has_the_least_exponent_and_other_mantissas_are_at_least_one_half() -> None:
    scaled = Wide(np.array([0.0, 1.0, 12.0]), np.array([7, 7, 7]), np.float64)
    assert_same_bits(scaled.mantissa, np.array([0.0, 0.5, 0.75]))
    np.testing.assert_array_equal(scaled.exponent, [LEAST, 8, 11])
    assert_same_bits(np.asarray(scaled), np.array([0.0, 128.0, 12 * 128.0]))
    assert (scaled - scaled).exponent.tolist() == [LEAST] * 3


@each("dtype", [np.float32, np.float64, np.longdouble, np.complex64, np.complex128])
def test_plain_numbers_come_back_in_their_dtype_and_to_the_last_bit(dtype: Any) -> None:
    limits = np.finfo(dtype)
    array = np.array([0, 1, limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, np.inf, np.nan], dtype)
    if limits.dtype != dtype:
        array = array + dtype(1j) * np.array([1, 2, limits.max, 0, 0, limits.smallest_subnormal, 0, 0], limits.dtype)
    scaled = widened(array)
    assert is_wide(scaled)
    assert not is_wide(array)
    assert scaled.dtype == dtype
    np.testing.assert_array_equal(np.asarray(scaled), array)
    assert np.asarray(scaled).dtype == dtype
    doubled = np.asarray(scaled * scaled)
    assert doubled.dtype == dtype
    assert np.isinf(doubled[2].real) or np.isinf(doubled[2].imag)
    assert doubled[4] == 0


def test_infinity_and_nan_go_through_as_in_ieee_arithmetic() -> None:
    array = np.array([np.inf, -np.inf, np.nan, 0.0, 1e300, -1e-300, 1.0])
    one, other = (x.ravel() for x in np.meshgrid(array, array))
    for of in (operator.add, operator.sub, operator.mul):
        expected = of(one, other)
        expected = np.where(
            np.isfinite(one) & np.isfinite(other), np.asarray(of(widened(one), widened(other))), expected
        )
        np.testing.assert_array_equal(of(widened(one), other), expected)
        np.testing.assert_array_equal(of(one, widened(other)), expected)
    matrix = np.array([[np.inf, 1.0], [0.0, 1e300], [1.0, np.nan]])
    np.testing.assert_array_equal(
        widened(matrix) @ np.array([[1.0, 0.0], [1e10, 1e-310]]),
        ([[np.inf, np.nan], [np.inf, 1e300 * 1e-310], [np.nan, np.nan]]),
    )
    np.testing.assert_array_equal(np.isfinite(widened(array)), np.isfinite(array))
    np.testing.assert_array_equal(widened(matrix).sum(axis=1), [np.inf, 1e300, np.nan])


def test_what_moves_entries_moves_them_as_in_an_array() -> None:
    array, index = np.random.default_rng(0).standard_normal((2, 3, 4)), np.array([[[1], [0], [3]], [[2], [2], [0]]])
    wide = widened(array)
    assert (wide.shape, wide.ndim, len(wide), wide.T.shape) == ((2, 3, 4), 3, 2, (4, 3, 2))
    for change in (
        lambda x: x[1],
        lambda x: x[..., None, 2:],
        lambda x: x[np.arange(2), np.array([2, 0])],
        lambda x: x.T,
        lambda x: x.reshape(-1, 4),
        lambda x: x.reshape((6, 4)),
        lambda x: x.swapaxes(0, 2),
        lambda x: -x,
        lambda x: np.where(array > 0, x, 0),
        lambda x: np.where(array > 0, 1.5, x),
        lambda x: np.take_along_axis(x, index, axis=2),
        lambda x: np.broadcast_to(x[:, :, None], (2, 3, 5, 4)),
        lambda x: x != 0,
        lambda x: x == array[0],
        np.tanh,
    ):
        assert_same_bits(np.asarray(change(wide)), np.asarray(change(array)))
    assert np.where(array.astype(np.float32) > 0, widened(array.astype(np.float32)), 0).dtype == np.float32


def test_a_part_is_a_view_that_can_be_added_to() -> None:
    wide, array = widened(np.zeros((3, 2))), np.zeros((3, 2))
    part = wide[1:]
    part += np.full((2, 2), 1e308)
    part += widened(np.full(2, 1e308))
    wide[0] = 5.0
    np.testing.assert_array_equal(wide * 0.25, [[1.25, 1.25], [5e307, 5e307], [5e307, 5e307]])
    array += wide * 0.25
    assert array[0, 0] == 1.25
    number = widened(np.zeros(()))
    part = number[...]
    part += widened(np.float64(1e308))
    assert number * 0.5 == 5e307


def test_what_the_ops_do_not_need_is_refused() -> None:
    wide = widened(np.ones(3))
    for refused in (np.sin, np.mean, np.add.reduce, np.linalg.norm, lambda x: np.multiply.outer(x, x)):
        with pytest.raises(TypeError):
            refused(wide)


def test_complex_numbers_are_not_added_to_real_ones_in_place() -> None:
    for real in (np.ones(3), widened(np.ones(3))):
        with pytest.raises(TypeError):
            real += widened(np.full(3, 1 + 1j))
        np.testing.assert_array_equal(np.asarray(real), np.ones(3))
    narrow = np.ones(3, np.float32)
    narrow += widened(np.full(3, 0.5))
    assert_same_bits(narrow, np.full(3, 1.5, np.float32))


@each("dtype", [np.float32, np.float64, np.longdouble, np.complex64, np.complex128])
def test_the_dtype_of_a_result_is_that_of_arrays(dtype: Any) -> None:
    array, other = np.ones((2, 2), dtype), np.ones((2, 2), np.float64)
    for of in (
        lambda x: x + 1,
        lambda x: 0.5 * x,
        lambda x: x - 1j,
        lambda x: -x,
        lambda x: x @ array,
        lambda x: x @ other,
        lambda x: other * x,
        lambda x: x * np.float32(2),
        lambda x: x * np.arange(2),
        lambda x: x * np.array([True, False]),
        lambda x: x.sum(axis=0),
        lambda x: np.where(array == 1, x, 0),
        lambda x: np.where(array == 1, x, 0.5),
        lambda x: np.where(array == 1, x, other),
    ):
        assert np.asarray(of(widened(array))).dtype == of(array).dtype
    assert widened(array).__array__(np.complex64).dtype == np.complex64


def test_narrow_numbers_are_worked_with_in_float64() -> None:
    x = np.array([1 + 2.0**-12], np.float32)
    square = widened(x) * x
    np.testing.assert_array_equal(square - np.float32(1 + 2.0**-11), [np.float32(2.0**-24)])
    assert square.dtype == np.float32


def test_numbers_are_equal_where_they_are_those_of_an_array_that_are() -> None:
    array = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 2.0, -2.0, 1e-300, 0.5])
    one, other = (x.ravel() for x in np.meshgrid(array, array))
    assert_same_bits(widened(one) == other, one == other)
    assert_same_bits(widened(one) != other, one != other)
    vast = widened(one) * 1e300 * 1e300
    assert_same_bits(vast == widened(other) * 1e300 * 1e300, one == other)
    assert_same_bits(vast == other, np.isinf(one) & (one == other) | (one == 0) & (other == 0))
    assert_same_bits(1j * widened(one) == 1j * widened(other), 1j * one == 1j * other)


def test_a_single_number_alone_is_true_or_false() -> None:
    assert widened(np.ones(1))
    assert not widened(np.zeros(1))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(widened(np.ones(2)))


def test_a_sum_of_no_numbers_is_zero() -> None:
    for axis, keepdims in ((1, False), (1, True), (2, False), ((0, 1), True)):
        array = np.zeros((2, 0, 3))
        assert_same_bits(np.asarray(widened(array).sum(axis, keepdims)), array.sum(axis, keepdims=keepdims))
    assert_same_bits(np.asarray(widened(np.zeros((2, 0))) @ np.zeros((0, 3))), np.zeros((2, 3)))


@each("unit", [np.float32(3), np.float64(3), np.complex64(3 - 1j), np.complex128(3 - 1j)])
def test_a_power_of_two_that_does_not_fit_alone_may_fit_with_the_number(unit: Any) -> None:
    most = np.finfo(unit.dtype).maxexp - 8
    small = times_power_of_two(np.array([[unit], [0]], unit.dtype), -most)
    scaled = times_power_of_two(small, np.array([most, most + 10]))
    np.testing.assert_array_equal(scaled, [[unit, 1024 * unit], [0, 0]])
    assert scaled.dtype == unit.dtype
