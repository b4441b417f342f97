from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, assert_same_bits, normal

from attention_np import softmax
from attention_np._arrays import quiet
from attention_np._range import (
    LEAST,
    _normalised,
    _Scaled,
    all_finite,
    excess,
    finite_or_scaled,
    product_in_range,
    scores_in_range,
    times_power_of_two,
)

VAST, TINY = 2.0**700, 2.0**-700


def exact(number: _Scaled, place: int) -> Fraction:
    return Fraction(float(number.mantissa[place])) * Fraction(2) ** int(number.exponent[place])


def test_numbers_with_exponents_of_their_own_add_up_whichever_is_larger() -> None:
    one = _Scaled(np.array([0.75, 0.5, -0.5, 0.0]), np.array([5000, -5000, 9, LEAST]))
    other = _Scaled(np.array([-0.5, 0.625, 0.5, 0.5]), np.array([4990, -4990, 9, -4000]))
    for total in (one.plus(other), other.plus(one)):
        for place in range(4):
            assert exact(total, place) == exact(one, place) + exact(other, place)
        assert total.exponent[2] == LEAST
        assert ((np.abs(total.mantissa) >= 0.5) | (total.mantissa == 0)).all()


def test_zero_has_the_least_exponent_and_other_numbers_keep_theirs() -> None:
    normalised = _normalised(np.array([0.0, 1.0, 12.0]), np.array([7, 7, 7]))
    assert_same_bits(normalised.mantissa, np.array([0.0, 0.5, 0.75]))
    np.testing.assert_array_equal(normalised.exponent, [LEAST, 8, 11])
    assert_same_bits(normalised.value(), np.array([0.0, 128.0, 12 * 128.0]))


@pytest.mark.parametrize("unit", [np.float32(3), np.float64(3), np.complex64(3 - 1j), np.complex128(3 - 1j)], ids=repr)
def test_a_power_of_two_that_does_not_fit_alone_may_fit_with_the_number(unit: Any) -> None:
    most = np.finfo(unit.dtype).maxexp - 8
    small = times_power_of_two(np.array([[unit], [0]], unit.dtype), -most)
    scaled = times_power_of_two(small, np.array([most, most + 10]))
    np.testing.assert_array_equal(scaled, [[unit, 1024 * unit], [0, 0]])
    assert scaled.dtype == unit.dtype


def test_bfloat16_is_multiplied_in_float32() -> None:
    scaled = times_power_of_two(np.array([1.5], ml_dtypes.bfloat16), 3)
    assert scaled.dtype == np.float32
    assert scaled == 12


def spread(seed: int, n: int, d: int, rows: list[float]) -> Array:
    return normal(seed, n, d) * np.array(rows)[:, None]


@pytest.mark.parametrize("unit", [1.0, 1j, 1 - 1j], ids=str)
def test_a_product_is_right_in_each_row_and_column_however_far_apart_their_sizes_are(unit: complex) -> None:
    a, b = spread(0, 3, 4, [VAST, 1.0, TINY]), spread(1, 2, 4, [VAST, TINY]).T
    expected = normal(0, 3, 4) @ normal(1, 2, 4).T
    sizes = np.array([[np.inf, 1], [VAST, TINY], [1, 0]])
    with quiet():
        actual = product_in_range(a * unit if unit != 1 else a, b)
    for i, j in ((0, 1), (1, 0), (1, 1), (2, 0)):
        np.testing.assert_allclose(actual[i, j] / sizes[i, j], expected[i, j] * unit, rtol=1e-13)
    assert np.isinf(actual[0, 0])
    assert actual[2, 1] == 0


def test_partial_sums_that_overflow_do_not_matter_nor_do_what_is_not_finite_elsewhere() -> None:
    a = np.array([[1.5e308, 1.5e308, -1.5e308], [1.0, 2.0, np.inf]])
    np.testing.assert_array_equal(product_in_range(a, np.ones((3, 1))), [[1.5e308], [np.inf]])
    assert_same_bits(product_in_range(np.zeros((2, 0)), np.zeros((0, 3))), np.zeros((2, 3)))


@pytest.mark.parametrize("size", [2.0**-300, 1.0, 2.0**300, 2.0**600, 2.0**1000])
@pytest.mark.parametrize("factor", [2.0**-3, 0.5, 1.0, 2.0**100])
def test_the_excess_is_enough_and_not_much_more(size: float, factor: float) -> None:
    a, b = size * normal(0, 4, 5), 2.0**200 * normal(1, 3, 5)
    shift = excess(a, b, factor)
    bits = np.log2(np.abs(a).max()) + np.log2(np.abs(b).max()) + max(np.log2(factor), -1)
    assert shift == 0 or bits + 35 < 1024 + shift < bits + 45
    assert bits - shift < 1024 - 35
    if factor == 1:
        assert shift == excess(a, b)
    assert excess(a, b, 2.0**-3) == excess(a, b, 0.5)
    if shift:
        assert excess(a, b, factor * 2) == shift + (factor >= 0.5)


def test_there_is_no_excess_without_a_finite_number() -> None:
    assert excess(np.array([0.0, np.inf, np.nan]), np.array([1e308])) == 0


def test_what_is_finite_stays_and_what_is_not_is_taken_from_the_smaller_problem() -> None:
    plain = [np.array([1.0, np.inf, np.nan], np.float32), None, np.array([np.inf])]
    small = [np.array([7.0, 1.0, 2.0], np.float32), np.array([1.0]), None]
    first, second, third = finite_or_scaled(plain, small, 3)
    assert_same_bits(first, np.array([1.0, 8.0, 16.0], np.float32))
    assert second is None
    assert third is plain[2]


def test_rows_and_columns_are_finite_each_for_itself() -> None:
    array = np.array([[1.0, np.nan], [1.0, 1.0]])
    np.testing.assert_array_equal(all_finite(array, -1), [[False], [True]])
    np.testing.assert_array_equal(all_finite(array, -2), [[True, False]])


def exact_weights(scores: list[Fraction]) -> Array:
    less = [float(max(score - max(scores), Fraction(-1000))) for score in scores]
    return np.asarray(np.exp(less) / np.exp(less).sum())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_scores_of_any_size_have_the_weights_of_exact_arithmetic(
    masked: bool, with_bias: bool, dtype: type, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.array([600, 400, 0, -600])
    q = np.ldexp(rng.integers(-3, 4, (2, 3, 3)) * 1.0, rng.choice(sizes, (2, 3, 1)))
    k = np.ldexp(rng.integers(-3, 4, (2, 4, 3)) * 1.0, rng.choice(sizes, (2, 4, 1)))
    q[0, 0], k[0, 0] = np.ldexp(3.0, 600), np.ldexp(2.0, 600)
    bias = np.ldexp(rng.integers(-3, 4, (3, 4)) * 1.0, rng.choice([0, 1020], (3, 4))) if with_bias else None
    pairs = rng.random((2, 3, 4)) < 0.6 if masked else np.ones((2, 3, 4), bool)
    pairs[..., 1] = True
    with quiet():
        plain = (q @ k.swapaxes(-1, -2) * 0.5).astype(dtype)
        given = None if bias is None else bias.astype(dtype)
        scores = scores_in_range(plain, q.astype(dtype), k.astype(dtype), 0.5, given, pairs if masked else None)
    weights, _ = softmax.forward(scores, mask=pairs)
    for b, i in np.ndindex(2, 3):
        seen = np.flatnonzero(pairs[b, i])
        exactly = [
            sum(Fraction(x) * Fraction(y) for x, y in zip(q[b, i].tolist(), k[b, j].tolist(), strict=True)) / 2
            + (0 if bias is None else Fraction(float(bias[i, j])))
            for j in seen
        ]
        behind = {max(exactly) - score for score in exactly} - {0}
        if not behind or min(behind) > max(map(abs, exactly)) / 2**40:  # else rounding decides
            np.testing.assert_allclose(weights[b, i, seen], exact_weights(exactly), rtol=0, atol=1e-15)
        assert weights[b, i].sum() == pytest.approx(1)


def test_complex_numbers_whose_absolute_value_alone_overflows_are_added_up() -> None:
    z = 1.5e308 * (1 + 1j)
    np.testing.assert_array_equal(product_in_range(np.array([[z, z, -z]]), np.ones((3, 1))), [[z]])


@pytest.mark.parametrize("bias", [None, np.array([0.1, 0.2, 0.3])], ids=["no bias", "bias"])
@pytest.mark.parametrize("poison", [1.0, np.nan, np.inf])
def test_a_row_out_of_range_or_not_finite_changes_no_bit_of_any_other(poison: float, bias: Array | None) -> None:
    q, k = normal(0, 4, 3), np.append(normal(1, 2, 3), 1e200 * np.ones((1, 3)), axis=0)
    q[:, 2] = -q[:, :2].sum(axis=1)
    q[1], q[2] = 1e200, poison
    with quiet():
        plain = q @ k.T * 0.3
        scores = scores_in_range(plain, q, k, 0.3, bias, None)
        alone = scores_in_range(plain[1:2], q[1:2], k, 0.3, bias, None)
    assert_same_bits(scores[[0, 3]], (plain if bias is None else plain + bias)[[0, 3]])
    assert_same_bits(scores[1], alone[0])
    np.testing.assert_array_equal(softmax.forward(scores)[0][1], [0, 0, 1])


def test_a_key_that_is_not_finite_leaves_the_others_of_a_row_out_of_range_as_they_are() -> None:
    q, k = np.array([[1e200]]), np.array([[1e200], [-np.inf], [-1.0]])
    with quiet():
        scores = scores_in_range(q @ k.T, q, k, 1.0, None, None)
    np.testing.assert_array_equal(softmax.forward(scores)[0], [[1, 0, 0]])
