"""Dual numbers: arrays, and beside each number the velocity with which it moves."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import assert_close, each, normal

from attention_np._lib.arrays import Array, is_finite, quiet
from attention_np._lib.dual import Dual, dual, parts_of, velocity_of
from attention_np._lib.products import backward_product, backward_times, pair_products, product
from attention_np._lib.wide import is_wide, narrowed, widened

STEP = 1e-30  # squared, nothing beside one
X, V = np.abs(normal(0, 3, 4)) + 0.5, normal(1, 3, 4)
Y, W = np.abs(normal(2, 4, 4)) + 0.5, normal(3, 4, 4)


@pytest.fixture(autouse=True)
def _as_in_ops() -> Iterator[None]:
    with quiet():
        yield


def entries(x: Any) -> Any:
    found = x[1:].copy()
    found[0] = 2 * x[0]
    found[..., 1] -= x[1:, 0]
    found += 1
    return found


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda x, y: 1 - x + y[:3] - (-x) + np.ones((2, 3, 4)),
    "products": lambda x, y: (x @ y) * x + 3 * x @ np.eye(4) - np.ones((3, 4)) @ y,
    "quotients": lambda x, y: x / y[1:] + 1 / x + x / 3,
    "functions": lambda x, y: np.exp(-x) + np.log(x) + np.sqrt(x) + np.tanh(y[:3]) + x**2 + x**-1.5,
    "cases": lambda x, y: np.where(x.real > 1, x, np.where(y[:3].real > 1, 0, y[:3])),
    "totals": lambda x, y: x.sum(axis=0) + y.sum(axis=(0, 1), keepdims=True) + np.cumsum(y, axis=0),
    "shapes": lambda x, y: np.expand_dims(x, 1).swapaxes(0, 1).reshape(4, 3).T + np.broadcast_to(y[0], (3, 4)),
    "parts": lambda x, y: np.concatenate([x, np.ones((1, 4))]) + np.stack([y[0], np.flip(y[1]), x[0], x[1]]),
    "matrices": lambda x, y: np.tril(y) + np.diagonal(y, axis1=0, axis2=1) + x[0] * y.take([1, 0, 2, 3], 0),
    "picked": lambda x, y: np.take_along_axis(y, y.real.argmax(1)[:, None], axis=1) * np.array_split(x, 2)[0][0],
    "entries": lambda x, y: entries(x) + entries(y)[:2],
}


@each("name", RULES)
@each("standing", ["", "x", "y"])
def test_every_rule_is_the_derivative_by_the_complex_step(name: str, standing: str) -> None:
    of_x, of_y = (V if standing != "x" else 0 * V), (W if standing != "y" else 0 * W)
    expected = RULES[name](X + 1j * STEP * of_x, Y + 1j * STEP * of_y)
    found = RULES[name](X if standing == "x" else dual(X, V), Y if standing == "y" else dual(Y, W))
    if not isinstance(found, Dual):  # of what moves nothing is in it
        assert (expected.imag == 0).all()
        return
    assert_close(found.value, expected.real, 1e-15)
    assert found.velocity.shape == expected.shape
    assert_close(found.velocity, expected.imag / STEP, 1e-14)


def test_what_has_no_rule_is_refused_and_no_velocity_is_dropped() -> None:
    x, still = dual(X, V), np.zeros_like(X)
    for compute in (np.arctan, np.cumprod, np.add.reduce, np.prod, np.asarray, np.ascontiguousarray, float):
        with pytest.raises(TypeError):
            compute(x)
    with pytest.raises(TypeError, match=r"^numpy.arctan has no rule for dual numbers$"):
        np.arctan(x)
    with pytest.raises(TypeError, match=r"^an array cannot hold dual numbers, whose velocities would be dropped$"):
        still += x
    with pytest.raises(TypeError, match=r"^dual numbers are no array: their velocities would be dropped$"):
        still[0] = x[0]
    assert (still == 0).all()


def test_comparisons_stand_still_and_what_is_equal_stays_so() -> None:
    x = dual(np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]))
    np.testing.assert_array_equal(x == 0, [True, False, False])
    np.testing.assert_array_equal(x != 0, [False, True, True])
    np.testing.assert_array_equal(x > 0, [False, False, True])
    assert not is_finite(dual(np.zeros(2), np.array([0, np.nan])))


def test_an_entry_of_a_gradient_takes_part_if_it_is_not_zero_or_moves() -> None:
    d = dual(np.array([0.0, 0.0, 2.0]), np.array([0.0, 1.0, 0.0]))
    factor = dual(np.array([np.nan, 5.0, 3.0]), np.array([np.inf, np.nan, 7.0]))
    assert [x.tolist() for x in parts_of(backward_times(d, factor))] == [[0, 0, 6], [0, 5, 14]]
    far = np.array([[np.nan], [np.inf], [1.0]])
    assert parts_of(backward_product(dual(d.value, 0 * d.velocity)[None], far)) == ([[2.0]], [[0.0]])
    found = backward_product(d[None], far)
    assert (found.value, velocity_of(found)) == (2, np.inf)
    pairs = np.array([[True, False, True]])
    weights = dual(np.array([[0.5, 0.0, 0.5]]), np.array([[1.0, 0.0, -1.0]]))
    for excluded in (np.nan, 7.0):
        values = dual(np.array([[1.0], [excluded], [3.0]]), np.array([[1.0], [np.inf], [1.0]]))
        assert parts_of(product(weights, values, pairs)) == ([[2.0]], [[-1.0]])
    np.testing.assert_array_equal(pair_products(values[..., :1], values[:1], pairs.T).value[:, 0], [1, 0, 3])


def test_limits_stand_still() -> None:
    """What has come to rest, as a weight that is zero, does so however fast its score moves."""
    found: Any = np.exp(dual(np.array([-np.inf, -1e4, 0.0]), np.array([np.inf, np.nan, 2.0])))
    np.testing.assert_array_equal(found.velocity, [0, 0, 2])
    far = np.tanh(dual(np.array([20.0, 400.0]), np.ones(2)))
    assert_close(velocity_of(far), 4 * np.exp([-40.0, -800.0]), 1e-15)


@each("dtype", [np.float32, np.complex128])
def test_both_parts_may_be_of_any_precision_or_have_a_range_without_end(dtype: Any) -> None:
    x, v = X.astype(dtype), V.astype(dtype)
    found = dual(x, v) * 2 + dual(x, v) @ np.eye(4, dtype=dtype)
    assert found.dtype == velocity_of(found).dtype == dtype
    wide = widened(dual(1e200 * X, 1e-200 * V))
    assert is_wide(wide)
    cube: Any = wide * wide * wide * widened(np.array(1e-300)) * widened(np.array(1e-300))
    assert_close(narrowed(cube).value, X**3, 1e-14)
    assert_close(np.asarray(cube.velocity * widened(np.array(1e200)) * widened(np.array(1e200))), 3 * X**2 * V, 1e-14)


def test_what_is_changed_in_place_is_nothing_else() -> None:
    x = dual(X.copy(), V.copy())
    y: Any = (x + 1).copy()
    y += x
    y[0] = 0
    rows: Array = y[1]
    rows -= x[1]
    assert_close(y.value[2:], 2 * X[2:] + 1, 1e-15)
    assert_close(y.velocity, np.stack([0 * V[0], V[1], 2 * V[2]]), 1e-15)
    np.testing.assert_array_equal(parts_of(x), (X, V))
    with pytest.raises(ValueError, match=r"^dual numbers that share their velocities with others cannot be changed"):
        (x + 1)[0] = 0
