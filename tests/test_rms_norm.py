from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, assert_close, assert_same_bits, each, normal

from attention_np import gradcheck, layer_norm, rms_norm


@each("epsilon", [0.0, 1e-6, 0.5])
@each("shape", [(5,), (3, 5), (2, 3, 4)])
def test_gradients_are_numerical_ones_for_any_shape_and_epsilon(shape: tuple[int, ...], epsilon: float) -> None:
    inputs = {"x": normal(0, *shape), "gain": normal(1, shape[-1])}
    for given in (inputs, {"x": inputs["x"]}):
        report = gradcheck.check_op(rms_norm, given, method="complex-step", epsilon=epsilon)
        report.raise_if_failed()
        assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("axis", [(-2, -1), (0, 2), 1, (2, 0, 1)])
@each("of_gain", [(), (4,), (3, 1), (3, 4), (2, 3, 4)])
def test_a_row_may_lie_along_any_axes_and_a_gain_broadcasts(of_gain: tuple[int, ...], axis: Any) -> None:
    inputs = {"x": normal(0, 2, 3, 4), "gain": normal(1, *of_gain)}
    report = gradcheck.check_op(rms_norm, inputs, method="complex-step", epsilon=0.1, axis=axis)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("size", [1.0, 1e200, 1e-200])
def test_a_row_along_two_axes_is_the_row_of_both_side_by_side(size: float) -> None:
    x, gain, d_output = size * normal(0, 2, 3, 4), normal(1, 3, 4), normal(2, 2, 3, 4)
    output, cache = rms_norm.forward(x, gain, epsilon=0.0, axis=(-1, -2))
    expected, of_rows = rms_norm.forward(x.reshape(2, 12), gain.ravel(), epsilon=0.0)
    assert_close(output.reshape(2, 12), expected, 1e-15)
    gradients, wanted = rms_norm.backward(d_output, cache), rms_norm.backward(d_output.reshape(2, 12), of_rows)
    assert_close(size * gradients.x.reshape(2, 12), size * wanted.x, 1e-15)
    assert_close(gradients.gain.ravel(), wanted.gain, 1e-15)
    moved = rms_norm.jvp(cache, x=x[::-1], gain=gain).reshape(2, 12)
    assert_close(moved, rms_norm.jvp(of_rows, x=x[::-1].reshape(2, 12), gain=gain.ravel()), 1e-15)


def test_a_gain_that_takes_gradients_below_the_normal_numbers_costs_small_rows_no_digit() -> None:
    x, gain, d_output = (2.0 ** float(e) * normal(k, 3, 5) for k, e in enumerate((-400, -600, -450)))
    gradient = rms_norm.backward(d_output, rms_norm.forward(x, gain, epsilon=0.0)[1]).x
    of_usual = rms_norm.backward(2.0**450 * d_output, rms_norm.forward(2.0**400 * x, 2.0**600 * gain, epsilon=0.0)[1])
    assert_close(gradient, 2.0**-650 * of_usual.x, 1e-14)


def test_gradients_below_the_normal_numbers_cost_small_rows_no_digit_without_a_gain() -> None:
    x, d_output = 2.0**-500 * normal(0, 3, 5), np.round(2.0**10 * normal(1, 3, 5))  # so that no digit is lost before
    for of_op in (rms_norm, layer_norm):
        gradient = of_op.backward(2.0**-1070 * d_output, of_op.forward(x, epsilon=0.0)[1]).x
        of_usual = of_op.backward(d_output, of_op.forward(2.0**500 * x, epsilon=0.0)[1])
        assert_close(gradient, 2.0**-570 * of_usual.x, 1e-14)


def test_rows_have_the_mean_square_one_and_their_size_is_forgotten() -> None:
    x = normal(0, 4, 7)
    output, cache = rms_norm.forward(x, epsilon=0.0)
    assert_close((output**2).mean(axis=-1), np.ones(4), 1e-15)
    assert_same_bits(rms_norm.forward(2.0**40 * x, epsilon=0.0)[0], output)
    assert cache.x is x
    assert_close(cache.rms[:, 0], np.sqrt((x**2).mean(axis=-1)), 1e-15)
    along = (rms_norm.backward(normal(1, 4, 7), cache).x * x).sum(axis=-1)
    assert np.abs(along).max() <= 1e-15


def test_a_row_of_zeros_is_zero_and_its_gradient_that_of_a_product() -> None:
    output, cache = rms_norm.forward(np.zeros((2, 3)), epsilon=0.25)
    assert_same_bits(output, np.zeros((2, 3)))
    d_output = normal(0, 2, 3)
    assert_same_bits(rms_norm.backward(d_output, cache).x, 2 * d_output)


@each("dtype", [np.float32, np.float64, np.complex64])
@each("share", [0.99, 0.6, 0.5, -0.5, -0.6, -0.9])
def test_rows_of_any_finite_size_give_the_numbers_that_they_say(share: float, dtype: Any) -> None:
    x, d_output = normal(0, 3, 5).astype(dtype), normal(1, 3, 5).astype(dtype)
    size = 2.0 ** int(share * np.log2(float(np.finfo(dtype).max)))
    large = (x / np.abs(x).max() * np.ones((3, 1)) * [[size], [1], [size]]).astype(dtype)
    plain = (x / np.abs(x).max()).astype(dtype)
    output, cache = rms_norm.forward(large, epsilon=0.0)
    expected, of_plain = rms_norm.forward(plain, epsilon=0.0)
    digits = 10 * float(np.finfo(dtype).eps)
    assert_close(output, expected, digits)
    assert_same_bits(output[1], expected[1])
    factors = np.array([[1 / size], [1], [1 / size]])
    gradient = rms_norm.backward((d_output / factors**0.5).astype(dtype), cache).x
    wanted = rms_norm.backward(d_output, of_plain).x
    assert_close(gradient / factors**0.5, wanted, digits)


def test_a_product_with_the_gain_that_leaves_the_range_comes_back_with_the_root() -> None:
    x, gain, d_output = normal(0, 3, 5), normal(1, 5), normal(2, 3, 5)
    wanted = rms_norm.backward(d_output, rms_norm.forward(x, gain, epsilon=0.0)[1])
    _, cache = rms_norm.forward(1e200 * x, 1e200 * gain, epsilon=0.0)
    assert_close(rms_norm.backward(1e200 * d_output, cache).x, 1e200 * wanted.x, 1e-14)
    _, cache = rms_norm.forward(1e-200 * x, 1e-200 * gain, epsilon=0.0)
    assert_close(rms_norm.backward(1e-200 * d_output, cache).x * 1e200, wanted.x, 1e-14)
    assert_close(rms_norm.jvp(cache, x=1e-200 * x, gain=0 * gain) * 1e200, 0 * x, 1e-14)


@each("shape", [(0,), (0, 3), (3, 0)])
def test_zero_lengths_have_zero_length_results(shape: tuple[int, ...]) -> None:
    output, cache = rms_norm.forward(np.zeros(shape), np.ones(shape[-1]))
    gradients = rms_norm.backward(output, cache)
    assert output.shape == gradients.x.shape == rms_norm.jvp(cache).shape == shape
    assert_same_bits(gradients.gain, np.zeros(shape[-1]))


@each(
    ("changed", "error", "message"),
    [
        ({"x": np.array(1.0)}, ValueError, r"x must have at least one axis, .*\(x\.shape=\(\)\)"),
        ({"gain": np.ones(3)}, ValueError, r"gain must broadcast to x, whose shape is \(2, 4\) \(gain\.shape=\(3,\)\)"),
        ({"gain": np.ones((1, 1, 4))}, ValueError, r"gain must broadcast to x, .* \(gain\.shape=\(1, 1, 4\)\)"),
        ({"x": np.ones((1, 4)), "gain": np.ones((2, 4))}, ValueError, r"gain must broadcast to x, .*\(1, 4\)"),
        ({"axis": 2}, ValueError, r"x has no axis 2 \(x\.shape=\(2, 4\)\)"),
        ({"axis": (-1, -3)}, ValueError, r"x has no axis -3 \(x\.shape=\(2, 4\)\)"),
        ({"axis": (-1, 1)}, ValueError, r"axis must name an axis of x once, not \(-1, 1\) \(x\.shape=\(2, 4\)\)"),
        ({"axis": ()}, ValueError, r"axis must be of at least one axis of x, not \(\)"),
        ({"axis": True}, TypeError, "axis must be an integer, not True"),
        ({"axis": [0, 1]}, TypeError, "axis must be an integer, not list"),
        ({"epsilon": -1e-6}, ValueError, "epsilon must be finite and not negative, not -1e-06"),
        ({"epsilon": np.nan}, ValueError, "epsilon must be finite and not negative, not nan"),
        ({"epsilon": np.inf}, ValueError, "epsilon must be finite and not negative, not inf"),
        ({"epsilon": "a"}, TypeError, "epsilon must be a number, not 'a'"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        rms_norm.forward(**{"x": np.ones((2, 4)), **changed})
