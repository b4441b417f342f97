from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, assert_close, assert_same_bits, each, leaves, normal

from attention_np import gradcheck, linear

SHAPES = [  # of x, of w, and of what comes out
    ((4,), (4, 3), (3,)),
    ((2, 5, 4), (4, 3), (2, 5, 3)),
    ((4,), (2, 4, 3), (2, 3)),
    ((5, 4), (2, 4, 3), (2, 5, 3)),
    ((2, 1, 5, 4), (3, 4, 3), (2, 3, 5, 3)),
    ((3, 1, 4), (2, 1, 4, 1), (2, 3, 1, 1)),
    ((0, 4), (4, 3), (0, 3)),
    ((5, 0), (2, 0, 3), (2, 5, 3)),
    ((0, 5, 4), (1, 4, 0), (0, 5, 0)),
]


@each(("of_x", "of_w", "of_output"), SHAPES)
def test_gradients_are_numerical_ones_for_any_shape_that_matmul_takes(
    of_x: tuple[int, ...], of_w: tuple[int, ...], of_output: tuple[int, ...]
) -> None:
    inputs = {"x": normal(0, *of_x), "w": normal(1, *of_w), "b": normal(2, of_w[-1])}
    output, cache = linear.forward(**inputs)
    assert_same_bits(output, inputs["x"] @ inputs["w"] + inputs["b"])
    assert output.shape == of_output
    for name, gradient in leaves(linear.backward(output, cache)):
        assert gradient.shape == inputs[name].shape
    if output.size and inputs["x"].size:
        for given in (inputs, {"x": inputs["x"], "w": inputs["w"]}):
            report = gradcheck.check_op(linear, given, method="complex-step")
            report.raise_if_failed()
            assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("poison", [np.nan, np.inf])
@each("of_w", [(4, 3), (2, 4, 3)])
def test_an_entry_of_the_gradient_that_is_zero_contributes_nothing_whatever_x_and_w_hold(
    of_w: tuple[int, ...], poison: float
) -> None:
    x, w, b = normal(0, 2, 5, 4), normal(1, *of_w), normal(2, 3)
    d_output = normal(3, 2, 5, 3)
    d_output[1, 2], d_output[..., 1] = 0, 0
    expected = linear.backward(d_output, linear.forward(x, w, b)[1])
    x[1, 2, 3], w[..., 1] = poison, poison
    found = linear.backward(d_output, linear.forward(x, w, b)[1])
    for name, gradient in leaves(found):
        assert_same_bits(gradient, getattr(expected, name))
    assert (found.x[1, 2] == 0).all()
    assert (found.w[..., 1] == 0).all()


@each("dtype", [np.float32, np.float64, np.complex64])
@each("leading", [(), (1,)])
def test_a_sum_within_range_is_found_where_products_on_its_way_are_not(leading: tuple[int, ...], dtype: Any) -> None:
    large = 2.0 ** (np.finfo(dtype).maxexp - 10)
    x, w = np.array([[large, large, 1]], dtype), np.array([[large], [-large], [3]], dtype).reshape(*leading, 3, 1)
    output, cache = linear.forward(x, w)
    assert_same_bits(output, np.full((*leading, 1, 1), 3, dtype))
    one = np.ones_like(output)
    assert_same_bits(linear.jvp(cache, x=x, w=w), 2 * output)
    _, transposed = linear.forward(np.ones_like(x[:, :1]), w.swapaxes(-1, -2))
    assert_same_bits(linear.backward(x.reshape(*leading, 1, 3), transposed).x, output.reshape(1, 1))
    _, stacked = linear.forward(w.reshape(3, 1), one.reshape(1, 1))
    assert_same_bits(linear.backward(x.T, stacked).w, output.reshape(1, 1))
    rows = np.array([[large], [large], [-large], [-large]], dtype) * np.array(2**9, dtype)
    _, cache = linear.forward(np.zeros_like(rows), one.reshape(1, 1), np.zeros(1, dtype))
    assert_same_bits(linear.backward(rows, cache).b, np.zeros(1, dtype))


def test_rows_of_a_batch_are_rows_of_one_matrix_and_several_matrices_give_what_each_gives() -> None:
    x, w, b, d_output = normal(0, 3, 5, 4), normal(1, 2, 1, 4, 6), normal(2, 6), normal(3, 2, 3, 5, 6)
    output, cache = linear.forward(x, w, b)
    gradients = linear.backward(d_output, cache)
    apart = [linear.forward(x, w[h, 0], b) for h in range(2)]
    of_each = [linear.backward(d, cache) for d, (_, cache) in zip(d_output, apart, strict=True)]
    assert_close(output, np.stack([y for y, _ in apart]), 1e-15)
    assert_close(gradients.x, of_each[0].x + of_each[1].x, 1e-15)
    assert_close(gradients.w[:, 0], np.stack([of.w for of in of_each]), 1e-15)
    assert_close(gradients.b, of_each[0].b + of_each[1].b, 1e-15)
    flat = linear.backward(d_output[0].reshape(15, 6), linear.forward(x.reshape(15, 4), w[0, 0], b)[1])
    assert_same_bits(of_each[0].w, flat.w)
    assert_same_bits(of_each[0].x, flat.x.reshape(x.shape))


@each(
    ("changed", "message"),
    [
        ({"x": np.array(1.0)}, r"x must have at least one axis, .*\(x\.shape=\(\)\)"),
        ({"w": np.ones(4)}, r"w must have at least two axes, .*, features out\) \(w\.shape=\(4,\)\)"),
        ({"w": np.ones((3, 4))}, r"w takes 3 features but x has 4 \(w\.shape=\(3, 4\), x\.shape=\(2, 5, 4\)\)"),
        ({"w": np.ones((3, 4, 3))}, r"the leading axes of x and w do not broadcast together \(x\.shape=\(2, 5, 4\), w"),
        ({"b": np.ones(1)}, r"b must have the shape \(3,\) \(b\.shape=\(1,\)\)"),
        ({"b": np.ones((2, 3))}, r"b must have the shape \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        linear.forward(**{"x": np.ones((2, 5, 4)), "w": np.ones((4, 3)), **changed})
