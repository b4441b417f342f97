from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, assert_same_bits, each, normal

from attention_np import softmax
from attention_np._lib.arrays import quiet
from attention_np._lib.second_look import all_finite, left_range, product_in_range, scores_in_range

VAST, TINY = 2.0**700, 2.0**-700


def spread(seed: int, n: int, d: int, rows: list[float]) -> Array:
    return normal(seed, n, d) * np.array(rows)[:, None]


@each("unit", [1.0, 1j, 1 - 1j])
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


@each("pairs", [None, np.array([True, True, False])])
def test_each_row_of_negative_scores_has_the_weights_that_they_say_however_far_apart_the_rows_are(
    pairs: Array | None,
) -> None:
    q, k = np.array([[[1e300], [1e-30]]]), np.array([[[-1e300], [-2e300], [1.0 if pairs is not None else -3e300]]])
    with quiet():
        scores = scores_in_range(q @ k.swapaxes(1, 2), q, k, 1.0, None, pairs)
    np.testing.assert_array_equal(softmax.forward(scores, mask=pairs)[0], [[[1, 0, 0], [1, 0, 0]]])


ONE = np.ones((2, 3))


@each("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_results_of_a_usual_size_have_not_left_the_range_whatever_they_were_made_of(dtype: Any) -> None:
    limits = np.finfo(dtype)
    for size in (1.0, limits.max, 2 * limits.tiny / limits.eps):
        one = np.array([0, size], dtype)
        with np.errstate(all="ignore"):  # as in the ops
            found = left_range([one, None, np.zeros((0, 3), dtype)], [one, one, np.array([limits.max], dtype)])
        assert not found


@each("lost", [np.inf, -np.inf, np.nan])
def test_a_result_that_is_not_finite_has_left_the_range_if_products_of_the_arrays_can(lost: float) -> None:
    spoiled = np.array([1.0, lost])
    assert left_range([ONE, spoiled], [1e200 * ONE, None, 1e200 * ONE])
    assert left_range([spoiled], [1e100 * ONE, 1e100 * ONE, np.float64(1e110)])
    assert not left_range([spoiled], [1e100 * ONE, 1e100 * ONE, np.float64(1e90)])
    assert not left_range([spoiled], [ONE, np.array([1.0, np.nan, np.inf])])
    assert left_range([spoiled], [np.array([1e200, np.nan]), 1e-200 * ONE, 1e200 * ONE])


@each("lost", [0.0, 5e-324, 1e-300])
def test_a_result_that_is_hardly_there_has_left_the_range_if_products_of_the_arrays_can(lost: float) -> None:
    small = np.array([0.0, lost])
    assert left_range([ONE, small], [1e-200 * ONE, 1e-200 * ONE, 1e200 * ONE])
    assert not left_range([small], [1e-100 * ONE, 1e-100 * ONE])
    assert not left_range([small], [0 * ONE, ONE])


def test_the_narrowest_of_the_arrays_sets_the_range() -> None:
    narrow = np.array([1e30], np.float32)
    assert left_range([np.array([np.inf])], [narrow, ONE * 1e10])
    assert not left_range([np.array([np.inf])], [narrow * ONE, ONE * 1e10])
    assert left_range([np.array([0.0], np.float32)], [np.array([1e-30], np.float32), ONE * 1e-10])


@each("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_single_and_leaves_its_range_upwards_alone(dtype: Any) -> None:
    single = np.array([1e30], np.float32)
    assert left_range([np.array([np.inf], dtype)], [single, single])
    assert not left_range([np.array([0.0], dtype)], [1 / single, 1 / single])


def test_rows_and_columns_are_finite_each_for_itself() -> None:
    array = np.array([[1.0, np.nan], [1.0, 1.0]])
    np.testing.assert_array_equal(all_finite(array, -1), [[False], [True]])
    np.testing.assert_array_equal(all_finite(array, -2), [[True, False]])


def exact_weights(scores: list[Fraction]) -> Array:
    less = [float(max(score - max(scores), Fraction(-1000))) for score in scores]
    return np.asarray(np.exp(less) / np.exp(less).sum())


@each("seed", range(4), long=range(4, 8))
@each("dtype", [np.float64, np.complex128])
@each("with_bias", [False, True])
@each("masked", [False, True])
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


@each("bias", [None, np.array([0.1, 0.2, 0.3])])
@each("poison", [1.0, np.nan, np.inf])
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
