import re
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, Case, assert_same_bits, each, normal, run

from attention_np import activation, gradcheck
from attention_np._lib import tails
from attention_np._lib.pages import PAGES

SYMBOLS = {  # of the page
    "sigmoid": r"\\sigma",
    "tanh": "T",
    "relu": "R",
    "relu_squared": "Q",
    "silu": "Z",
    "gelu": "Y",
    "gelu_tanh": "V",
    "quick_gelu": "U",
    "softplus": "P",
    "exp": "E",
}
LEAST = {"tanh": -350, "gelu": -37, "gelu_tanh": -20.9, "quick_gelu": -410}  # where the slope is still a normal number
every_kind = each("kind", activation.KINDS)


def logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def cubic(x: Any) -> Any:
    return 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)


TRUTHS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": logistic,
    "tanh": mpmath.tanh,
    "relu": lambda x: max(x, mpmath.mpf(0)),
    "relu_squared": lambda x: max(x, mpmath.mpf(0)) ** 2,
    "silu": lambda x: x * logistic(x),
    "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * logistic(cubic(x)),
    "quick_gelu": lambda x: x * logistic(mpmath.mpf("1.702") * x),
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
    "exp": mpmath.exp,
}


def value_and_slope(x: Array, kind: str) -> tuple[Array, Array]:
    output, cache = activation.forward(x, kind=kind)
    return output, activation.backward(np.ones_like(output), cache).x


def worst_error(found: Array, x: Array, truth: Callable[[Any], Any], order: int) -> float:
    """Of numbers as derivatives, relatively; next to a zero of these, relatively to the terms that cancel there."""
    worst = 0.0
    with mpmath.workdps(450):  # of which the differences take some, and the tails the rest
        step = mpmath.mpf(10) ** -30
        for number, at in zip(found.tolist(), x.tolist(), strict=True):
            row = [truth(mpmath.mpf(at) - k * step) for k in range(order + 2)]  # the slope at a kink is the one before
            for _ in range(order):
                row = [(row[k] - row[k + 1]) / step for k in range(len(row) - 1)]
            size = max(abs(row[0]), abs(row[0] - row[1]) / step / 8)
            worst = max(worst, float(abs(number - row[0]) / size) if size else abs(number))
    return worst


@every_kind
@each("shape", [(), (5,), (2, 3, 4)])
def test_gradients_are_numerical_ones_for_any_shape(kind: str, shape: tuple[int, ...]) -> None:
    report = gradcheck.check_op(activation, {"x": normal(0, *shape)}, method="complex-step", kind=kind)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@every_kind
def test_each_kind_is_what_the_page_says(kind: str) -> None:
    pytest.importorskip("lark", reason="to read a page, pip install 'attention-np[check]'")
    from attention_np.derivation import read_page, verify_against_op

    text = (PAGES / "activation.md").read_text(encoding="utf-8").replace("slope: D, ", "")
    text = re.sub(r"output: Y\b", f"output: {SYMBOLS[kind]}", text.replace("{gelu}", f"{{{kind}}}", 1))
    page = read_page("activation.md", text)
    records = verify_against_op(page, activation, draws=2)  # `check` takes more, of gelu
    assert {record.name for record in records} == {"output", "gradient of x"}
    assert all(record.ok for record in records), records


@every_kind
@each("count", [6], long=[30])
def test_all_digits_of_values_and_slopes_are_right_in_the_tails_too(kind: str, count: int) -> None:
    truth, least, step, near = TRUTHS[kind], LEAST.get(kind, -700), 2.0**-40, np.geomspace(1e-9, 9, count)
    x = np.concatenate([np.linspace(least, 0, count), -near, near, np.linspace(10, 300, 3)])
    value, slope = value_and_slope(x, kind)
    assert worst_error(value, x, truth, 0) <= 1e-15
    assert worst_error(slope, x, truth, 1) <= 2e-15
    x = x[x > 0.93 * least]  # so that what the step moves is a normal number
    moved, moved_slope = value_and_slope(x + 1j * step, kind)
    assert worst_error(moved.imag / step, x, truth, 1) <= 2e-15
    assert worst_error(moved_slope.imag / step, x, truth, 2) <= 3e-15


@every_kind
def test_infinity_has_the_limits_and_nan_stays(kind: str) -> None:
    x = np.array([-np.inf, np.inf, np.nan])
    value, slope = value_and_slope(x, kind)
    before, before_slope = value_and_slope(np.array([-1e4, 1e4]), kind)
    top = 1.0 if kind in ("sigmoid", "tanh") else np.inf
    steep = np.inf if kind == "relu_squared" else before_slope[1]
    assert_same_bits(value, np.array([before[0], top, np.nan]))
    assert_same_bits(slope, np.array([before_slope[0], steep, np.nan]))
    results = run(Case(activation, {"x": x}, {"kind": kind}), np.zeros(3), {"x": np.zeros(3)})
    assert_same_bits(results.gradients["x"], np.zeros(3))
    assert_same_bits(results.jvp, np.zeros(3))


@every_kind
@each("sign", [-1, 1])
def test_no_finite_number_gives_nan(kind: str, sign: int) -> None:
    x = sign * np.concatenate([np.geomspace(1, 1e6, 3000), np.geomspace(1e6, 1e308, 300)])
    for numbers in (x, x.astype(np.longdouble), x if kind == "exp" else x + 1e-20j):
        value, slope = value_and_slope(numbers, kind)
        assert not np.isnan(value.real).any()
        assert not np.isnan(slope.real).any()


def test_the_slope_at_a_kink_is_zero() -> None:
    for kind in ("relu", "relu_squared"):
        assert_same_bits(value_and_slope(np.array([0.0, -0.0]), kind)[1], np.zeros(2))


@every_kind
@each("dtype", [np.float16, np.float32, np.complex64])
def test_fewer_digits_are_those_of_double_precision_rounded(kind: str, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-12, 11, 97), np.linspace(-80, 80, 61)]).astype(dtype)
    more = x.astype(np.result_type(dtype, float))
    limits = np.finfo(dtype)
    for found, expected in zip(value_and_slope(x, kind), value_and_slope(more, kind), strict=True):
        assert found.dtype == dtype
        fits = (np.abs(expected) < limits.max) & (np.abs(expected) > limits.tiny)
        assert (np.abs(found[fits] / expected[fits] - 1) <= 10 * limits.eps).all()


def test_what_is_no_kind_is_refused() -> None:
    listed = "sigmoid, tanh, relu, relu_squared, silu, gelu, gelu_tanh, quick_gelu, softplus, exp"
    wrong: Any
    for wrong, said in (("swish", "'swish'"), (None, "None"), (["silu"], r"\['silu'\]")):
        with pytest.raises(ValueError, match=f"^kind must be one of {listed}, not {said}$"):
            activation.forward(np.ones(3), kind=wrong)


@every_kind
@each("dtype", [np.float32, np.float64])
def test_a_large_array_is_what_its_rows_are(kind: str, dtype: type) -> None:
    x = (8 * normal(0, 5, tails.PART // 2 + 5)).astype(dtype)  # the last part is not full
    whole = activation.KINDS[kind](x)
    for found, rows in zip(whole, zip(*map(activation.KINDS[kind], x), strict=True), strict=True):
        assert (found.shape, found.dtype) == (x.shape, dtype)
        np.testing.assert_allclose(found, rows, rtol=4 * float(np.finfo(dtype).eps))


@each("kind", ["sigmoid", "tanh"])
@each("dtype", [np.float32, np.float64])
def test_the_second_derivative_has_its_digits_near_zero_where_it_is_zero(kind: str, dtype: Any) -> None:
    x = np.array([0.0, 1e-20, -3e-6, 2e-3, -0.1, 1.5, -6.0], dtype)
    one = np.ones_like(x)
    _, cache = activation.forward(x, kind=kind)
    found = activation.double_backward(activation.Gradients(one), one, cache)[1].x
    wide = x.astype(np.longdouble)
    # tanh'' = -2 tanh / cosh^2, and the sigmoid is (1 + tanh(x / 2)) / 2
    half = wide if kind == "tanh" else wide / 2
    expected = -2 * np.tanh(half) / np.cosh(half) ** 2 / (1 if kind == "tanh" else 8)
    np.testing.assert_allclose(found, expected, rtol=10 * np.finfo(dtype).eps, atol=0)
