"""Columns beside the features: a sum, a delta and counters in the same product."""

from typing import Any

import numpy as np
import pytest
from helpers import each, normal

from attention_np._blockwise.columns import by_features, delta_parts, interleaved, with_column, with_counters


def test_the_columns_beside_others_are_of_their_dtype() -> None:
    array = normal(0, 2, 3, 8).astype(np.float32)
    for wider in (with_column(array, 1), with_counters(array), interleaved(array, np.ones(2))):
        assert wider.dtype == np.float32


@each("features", [0, 1, 7, 8, 24, 64, 100])
@each("are_many", [False, True])
def test_a_product_with_interleaved_columns_subtracts_delta(features: int, are_many: bool) -> None:
    d_output, output, value = normal(1, 3, features), normal(2, 3, features), normal(3, 5, features)
    parts = delta_parts(d_output, output, are_many)
    assert are_many or parts.shape == (3, 1)
    difference = interleaved(d_output, -parts) @ interleaved(value, np.ones(parts.shape[-1])).T
    expected = d_output @ value.T - (d_output * output).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-12)


def test_what_nearly_cancels_cancels_in_every_part_of_the_features() -> None:
    d_output, value = normal(1, 1, 64), normal(2, 1, 64)
    parts = delta_parts(d_output, value, are_many=True)
    terms = interleaved(d_output, -parts) * interleaved(value, np.ones(8))
    assert np.abs(terms.reshape(8, 9).sum(axis=-1)).max() < 1e-14


@each(("dtype", "wide"), [(np.float32, np.float64), (np.float64, np.longdouble)])
def test_many_parts_of_delta_add_up_to_it_beyond_their_own_precision(dtype: Any, wide: Any) -> None:
    if np.finfo(wide).eps == np.finfo(dtype).eps:
        pytest.skip("there is nothing wider here")
    d_output, output = normal(1, 5, 64).astype(dtype), normal(2, 5, 64).astype(dtype)
    d_output[:, 56:] *= dtype(1e-4)  # so the last part is small, and rounds little
    delta = delta_parts(d_output, output, are_many=True)
    assert (delta.dtype, delta.shape) == (dtype, (5, 8))
    exact = (d_output.astype(wide) * output).sum(axis=-1)
    assert np.abs(delta.astype(wide).sum(axis=-1) - exact).max() < 1e-2 * np.finfo(dtype).eps


def test_the_counters_count_every_key_once() -> None:
    value = normal(1, 2, 7, 3)
    counted = np.ones((2, 1, 7)) @ with_counters(value)
    np.testing.assert_array_equal(counted[..., 3:], [[[2, 2, 2, 1]]] * 2)
    np.testing.assert_array_equal(with_counters(value)[..., :3], value)


def test_each_column_is_in_the_middle_of_its_part() -> None:
    (row,) = interleaved(np.zeros((1, 64)), np.ones(8))
    np.testing.assert_array_equal(np.flatnonzero(row), 4 + 9 * np.arange(8))


def test_the_features_of_second_operands_are_in_order_in_memory() -> None:
    key = normal(4, 2, 3, 8)
    np.testing.assert_array_equal(by_features(key), key)
    value, columns = normal(5, 2, 3, 32), normal(6, 2, 3, 4)
    wider = interleaved(value, columns, is_by_features=True)
    np.testing.assert_array_equal(wider, interleaved(value, columns))
    for array in (by_features(key), wider):
        assert array.swapaxes(-1, -2).flags.c_contiguous
