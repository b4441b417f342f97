from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, assert_close, assert_same_bits, each, normal

from attention_np import gradcheck, layer_norm, rms_norm


@each("given", [(), ("gain",), ("b",), ("gain", "b")])
@each("shape", [(5,), (3, 5), (2, 3, 4)])
def test_gradients_are_numerical_ones_with_and_without_gain_and_bias(shape: tuple[int, ...], given: Any) -> None:
    inputs = {"x": normal(0, *shape), "gain": normal(1, shape[-1]), "b": normal(2, shape[-1])}
    some = {name: x for name, x in inputs.items() if name in ("x", *given)}
    report = gradcheck.check_op(layer_norm, some, method="complex-step")
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("axis", [(-2, -1), (0, 2), 1])
@each("shape", [(), (4,), (3, 1), (3, 4), (2, 3, 4)])
def test_a_row_may_lie_along_any_axes_and_gain_and_bias_broadcast(shape: tuple[int, ...], axis: Any) -> None:
    inputs = {"x": normal(0, 2, 3, 4), "gain": normal(1, *shape), "b": normal(2, *shape)}
    report = gradcheck.check_op(layer_norm, inputs, method="complex-step", epsilon=0.1, axis=axis)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


def test_a_row_along_two_axes_has_one_mean_and_one_deviation() -> None:
    x, gain, b, d_output = normal(0, 2, 3, 4), normal(1, 3, 4), normal(2, 3, 4), normal(3, 2, 3, 4)
    output, cache = layer_norm.forward(x, gain, b, axis=(1, 2))
    expected, of_rows = layer_norm.forward(x.reshape(2, 12), gain.ravel(), b.ravel())
    assert_close(output.reshape(2, 12), expected, 1e-15)
    wanted = layer_norm.backward(d_output.reshape(2, 12), of_rows)
    for found, of_row in zip(layer_norm.backward(d_output, cache), wanted, strict=True):
        assert_close(found.reshape(of_row.shape), of_row, 1e-15)


def test_a_number_that_is_added_to_a_row_is_not_seen_and_gradients_have_the_mean_zero() -> None:
    x = np.round(normal(0, 3, 8) * 256) / 256
    output, cache = layer_norm.forward(x)
    assert_same_bits(layer_norm.forward(x + 1024)[0], output)
    assert np.abs(output.mean(axis=-1)).max() <= 1e-15
    assert np.abs(layer_norm.backward(normal(1, 3, 8), cache).x.mean(axis=-1)).max() <= 1e-15
    assert_close(cache.deviation[:, 0], np.sqrt(x.var(axis=-1) + 1e-5), 1e-15)
    assert_same_bits(cache.normalised, output)


def test_it_is_rms_normalisation_where_the_mean_is_zero() -> None:
    x = normal(0, 3, 4)
    x = np.concatenate([x, -x], axis=-1)
    gain, d_output = normal(1, 8), normal(2, 3, 8)
    output, cache = layer_norm.forward(x, gain, epsilon=0.1)
    expected, of_rms = rms_norm.forward(x, gain, epsilon=0.1)
    assert_close(output, expected, 1e-15)
    assert_close(layer_norm.backward(d_output, cache).gain, rms_norm.backward(d_output, of_rms).gain, 1e-15)


@each("size", [1.7e308, 1e200, 1e-200])
def test_rows_of_the_largest_and_smallest_numbers_give_the_numbers_that_they_say(size: Any) -> None:
    row = np.array([[1.0, -1.0, -1.0, 0.5], [1.0, 1.0, 1.0, 0.9]])
    expected, of_plain = layer_norm.forward(row, epsilon=0.0)
    d_output = normal(0, 2, 4)
    wanted = layer_norm.backward(d_output, of_plain).x
    output, cache = layer_norm.forward(size * row, epsilon=0.0)
    assert_close(output, expected, 1e-14)
    root = np.sqrt(size)
    assert_close(layer_norm.backward(root * d_output, cache).x * root, wanted, 1e-14)


@each("name", ["gain", "b"])
def test_what_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must broadcast to x, .*\(2, 4\) \({name}\.shape=\(3,\)\)"):
        layer_norm.forward(np.ones((2, 4)), **{name: np.ones(3)})
    with pytest.raises(TypeError, match=f"^{name} must hold floating-point numbers, not int64"):
        layer_norm.forward(np.ones((2, 4)), **{name: np.ones(4, int)})
    with pytest.raises(ValueError, match=r"^epsilon must be finite and not negative"):
        layer_norm.forward(np.ones((2, 4)), epsilon=-1)


def test_rows_below_the_normal_numbers_are_the_numbers_that_they_are() -> None:
    x = 2.0**-1050 * normal(0, 3, 5)
    output, wanted = (layer_norm.forward(size * x, epsilon=0.0)[0] for size in (1.0, 2.0**1000))
    assert_close(output, wanted, 1e-14)
