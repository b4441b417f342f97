from collections.abc import Iterator

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, each, normal

from attention_np._lib.arrays import quiet
from attention_np._lib.products import FEW, TERMS, backward_product, long_product, pairs_that_flow, product


@pytest.fixture(autouse=True)
def _as_in_ops() -> Iterator[None]:
    with quiet():
        yield


@each("m", [0, 1, TERMS - 1, TERMS, TERMS + 1, 2 * TERMS, 2 * TERMS + 1, 5 * TERMS])
@each("batch", [(), (3,)])
def test_a_product_in_parts_has_all_terms_of_its_sums_once(batch: tuple[int, ...], m: int) -> None:
    a, b = normal(0, *batch, 3, m), normal(1, *batch, m, 2)
    assert_close(long_product(a, b), np.einsum("...ij,...jk->...ik", a, b), 1e-13)


@each("rows", [1, 2, FEW, FEW + 1])
@each("m", [2 * TERMS, 3 * TERMS + 7])
def test_the_bits_of_a_product_in_parts_are_those_of_one_part_after_another(rows: int, m: int) -> None:
    a, b = normal(0, 2, rows, m), normal(1, 2, m, 5)
    expected = a[..., :TERMS] @ b[..., :TERMS, :]
    for start in range(TERMS, m, TERMS):
        expected += a[..., start : start + TERMS] @ b[..., start : start + TERMS, :]
    assert_same_bits(long_product(a, b), expected)


def test_a_gradient_of_zero_takes_no_part_whatever_it_meets() -> None:
    product_of_one = backward_product(np.array([[1e100, 0.0]]), np.array([[1e200], [np.nan]]), 1e-150)
    assert_close(product_of_one, np.array([[1e150]]), 1e-15)


def test_a_sum_that_overflows_on_its_way_is_mended_beside_rows_and_columns_that_are_not_finite() -> None:
    x = np.array([[1.5e308, 1.5e308, -1.5e308], [np.nan, 0.0, 0.0]])
    w = np.array([[1.0, np.nan], [1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(product(x, w), [[1.5e308, np.nan], [np.nan, np.nan]])


def test_a_sum_that_is_out_of_range_is_infinite() -> None:
    np.testing.assert_array_equal(product(np.full((1, 2), 1e308), np.full((2, 1), 10.0)), [[np.inf]])
    overflown = product(np.ones((1, 2), complex), np.full((2, 1), 1.7e308 + 5j), mean=True)
    assert np.isinf(overflown.real)
    assert overflown.imag == 10


@each("m", [3, 7, 11, 100])
def test_the_mean_of_the_largest_numbers_is_finite_beside_a_hidden_nan(m: int) -> None:
    weights = np.append(np.full((1, m), 1 / m), [[0.0]], axis=1)
    value = np.append(np.full((m, 1), np.finfo(float).max), [[np.nan]], axis=0)
    assert np.isfinite(product(weights, value, weights > 0, mean=True)).all()


def test_a_gradient_flows_through_visible_pairs_of_queries_that_have_one() -> None:
    mask = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(pairs_that_flow(mask, np.array([[1.0], [0.0]])), [[True, False], [False, False]])
    assert pairs_that_flow(mask, np.ones((2, 1))) is mask
