"""Columns beside the features: a difference and counters in the same product."""

import numpy as np
from helpers import each, normal

from attention_np._blockwise.columns import by_features, with_column, with_counters


def test_the_columns_beside_others_are_of_their_dtype() -> None:
    array = normal(0, 2, 3, 8).astype(np.float32)
    for wider in (with_column(array, 1, 4), with_counters(array)):
        assert wider.dtype == np.float32


@each("features", [0, 1, 7, 64])
@each("part", [0, 0.5, 1])
def test_a_product_with_one_more_column_subtracts(features: int, part: float) -> None:
    at, d_output, value, delta = int(part * features), normal(1, 3, features), normal(3, 5, features), normal(2, 3, 1)
    wider = with_column(d_output, -delta, at)
    np.testing.assert_array_equal(wider[:, at : at + 1], -delta)
    difference = wider @ with_column(value, 1, at).T
    np.testing.assert_allclose(difference, d_output @ value.T - delta, rtol=0, atol=1e-12)


def test_the_features_of_second_operands_are_in_order_in_memory() -> None:
    key = normal(4, 2, 3, 8)
    np.testing.assert_array_equal(by_features(key), key)
    assert by_features(key).swapaxes(-1, -2).flags.c_contiguous


def test_the_counters_count_every_key_once() -> None:
    value = normal(1, 2, 7, 3)
    counted = np.ones((2, 1, 7)) @ with_counters(value)
    np.testing.assert_array_equal(counted[..., 3:], [[[2, 2, 2, 1]]] * 2)
    np.testing.assert_array_equal(with_counters(value)[..., :3], value)
