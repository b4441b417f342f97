import re
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, Case, assert_close, assert_same_bits, each, normal, run

from attention_np import activation, gradcheck
from attention_np._lib.pages import PAGES

RNG = np.random.default_rng(0)
KINDS = tuple(activation.KINDS)
SYMBOLS = dict(zip(KINDS, r"\sigma T R Q Z Y V U P E".split(), strict=True))  # of the page
LEAST = {"tanh": -350, "gelu": -37, "gelu_tanh": -20.9, "quick_gelu": -410}  # where the slope is still a normal number


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


def errors(found: Array, x: Array, truth: Callable[[Any], Any], order: int) -> Array:
    """The relative error of each number as a derivative; or of its terms, where they cancel next to a zero of it."""
    with mpmath.workdps(700):  # enough for a difference to be a derivative, and for the tails
        step = mpmath.mpf(10) ** -150
        points = [[truth(mpmath.mpf(a) + k * step) for k in range(order + 2)] for a in x.tolist()]
        *_, exact, next_one = [[mpmath.fsum((-1) ** (k - j) * mpmath.binomial(k, j) * f[j] for j in range(k + 1)) / step**k for f in points] for k in range(order + 2)]
        return np.array([float(abs(a - b) / max(abs(b), abs(c) / 8, 10**-400)) for a, b, c in zip(found.tolist(), exact, next_one)])


@each("kind", KINDS)
@each("shape", [(), (5,), (2, 3, 4)])
def test_gradients_are_numerical_ones_for_any_shape(kind: str, shape: tuple[int, ...]) -> None:
    report = gradcheck.check_op(activation, {"x": normal(0, *shape)}, method="complex-step", kind=kind)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@each("kind", KINDS)
def test_each_kind_is_what_the_page_says(kind: str) -> None:
    pytest.importorskip("lark", reason="to read a page, pip install 'attention-np[check]'")
    from attention_np.derivation import read_page, verify_against_op

    text = (PAGES / "activation.md").read_text(encoding="utf-8")
    text = re.sub(r"output: Y\b", lambda _: f"output: {SYMBOLS[kind]}", text).replace("texttt{gelu}", f"texttt{{{kind}}}")
    records = verify_against_op(read_page("activation.md", text), activation)
    assert {record.name for record in records} == {"output", "gradient of x"}
    assert all(record.ok for record in records), records


@each("kind", KINDS)
def test_all_digits_of_values_and_slopes_are_right_in_the_tails_too(kind: str) -> None:
    least, step = LEAST.get(kind, -700), 2.0**-40
    x = np.concatenate([np.linspace(least, 0, 40), -np.geomspace(1e-9, 9, 40), np.geomspace(1e-9, 300, 40), [least / 3]])
    value, slope = value_and_slope(x, kind)
    assert errors(value, x, TRUTHS[kind], 0).max() <= 1e-15
    assert errors(slope, x, TRUTHS[kind], 1).max() <= 2e-15
    x = x[x > 0.93 * least]  # so that what the step moves is a normal number
    moved, moved_slope = value_and_slope(x + 1j * step, kind)
    assert errors(moved.imag / step, x, TRUTHS[kind], 1).max() <= 3e-15
    assert errors(moved_slope.imag / step, x, TRUTHS[kind], 2).max() <= 1e-14


@each("kind", KINDS)
def test_infinity_has_the_limits_and_nan_stays(kind: str) -> None:
    x = np.array([-np.inf, np.inf, np.nan, -99999.99, 99999.99])
    value, slope = value_and_slope(x, kind)
    near, near_slope = value_and_slope(np.array([-1e3, 1e3]), kind)
    bounded = kind in ("sigmoid", "tanh")
    assert_same_bits(value, np.array([near[0], 1 if bounded else np.inf, np.nan, *activation.forward(x[3:], kind=kind)[0]]))
    steep = {"relu_squared": np.inf}.get(kind, near_slope[1])
    assert_same_bits(slope[:3], np.array([near_slope[0], steep, np.nan]))
    assert not np.isnan(value[3:]).any()
    assert not np.isnan(slope[3:]).any()
    results = run(Case(activation, {"x": x}, {"kind": kind}), np.zeros(5), {"x": np.zeros(5)})
    assert_same_bits(results.gradients["x"], np.zeros(5))
    assert_same_bits(results.jvp, np.zeros(5))


def test_the_slope_at_a_kink_is_zero() -> None:
    for kind in ("relu", "relu_squared"):
        for zero in (0.0, -0.0):
            assert_same_bits(value_and_slope(np.array([zero]), kind)[1], np.zeros(1))


@each("kind", KINDS)
@each("dtype", [np.float16, np.float32, np.complex64])
def test_fewer_digits_are_those_of_double_precision_rounded(kind: str, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-12, 12, 97), [-80.0, 80.0]]).astype(dtype)
    more = x.astype(np.result_type(dtype, float))
    for found, expected in zip(value_and_slope(x, kind), value_and_slope(more, kind), strict=True):
        assert found.dtype == dtype
        with np.errstate(over="ignore"):
            expected = expected.astype(dtype)
        normal_numbers = np.abs(expected) > np.finfo(dtype).tiny
        some = normal_numbers & np.isfinite(expected)
        assert_same_bits(np.isfinite(found), np.isfinite(expected))
        assert (np.abs(found[some] / expected[some] - 1) <= 5 * np.finfo(dtype).eps).all()


def test_what_is_no_kind_is_refused() -> None:
    listed = "sigmoid, tanh, relu, relu_squared, silu, gelu, gelu_tanh, quick_gelu, softplus, exp"
    for wrong, said in (("swish", "'swish'"), (None, "None"), (["silu"], r"\['silu'\]")):
        with pytest.raises(ValueError, match=f"^kind must be one of {listed}, not {said}$"):
            activation.forward(np.ones(3), kind=wrong)  # type: ignore[arg-type]
