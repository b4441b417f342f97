"""How scores become weights where it is not by softmax: against formulas in 50 digits, at kinks, limits and edges."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_alike, assert_close, assert_same_bits, each, normal, peak_of
from mpmath import mpf

from attention_np import (
    activation,
    blockwise,
    chain,
    dot_product,
    gradcheck,
    masks,
    multi_head,
    rules,
    softmax,
    weightings,
)
from attention_np._blockwise import plain
from attention_np._lib.pages import PAGES
from attention_np._weightings import thresholds
from attention_np.weightings import Weighting

KINDS: dict[str, Weighting] = {
    "sigmoid": weightings.sigmoid(),
    "silu": weightings.silu(),
    "sparsemax": weightings.sparsemax(),
    "entmax": weightings.entmax(),
    "entmax near softmax": weightings.entmax(1.001),
    "entmax beyond sparsemax": weightings.entmax(3.0),
    "softpick": weightings.softpick(),
    "stick-breaking": weightings.stick_breaking(),
}
NORMALISED = ("sparsemax", "entmax", "entmax near softmax", "entmax beyond sparsemax")
every_kind = each("kind", KINDS)


def of_alpha(scores: list[Any], alpha: float) -> list[Any]:
    """Entmax by bisection for the threshold of its definition: of minus tau, which lies between these."""
    power = mpf(alpha) - 1
    scaled = [power * (s - max(scores)) for s in scores]
    low, high = mpf(0), mpf(1)  # of what the largest has, whose power is at most one
    for _ in range(mpmath.mp.prec):
        middle = (low + high) / 2
        total = sum(max(s + middle, mpf(0)) ** (1 / power) for s in scaled)
        low, high = (low, middle) if total > 1 else (middle, high)
    return [max(s + low, mpf(0)) ** (1 / power) for s in scaled]


def of_sparsemax(scores: list[Any]) -> list[Any]:
    ordered = sorted(scores, reverse=True)
    number = max(k for k in range(1, len(scores) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
    threshold = (sum(ordered[:number]) - 1) / number
    return [max(s - threshold, mpf(0)) for s in scores]


def of_softpick(scores: list[Any]) -> list[Any]:
    grown = [mpmath.exp(s) - 1 for s in scores]
    total = sum(abs(x) for x in grown)
    return [max(x, mpf(0)) / total if total else mpf(0) for x in grown]


def of_sticks(scores: list[Any]) -> list[Any]:
    weights, rest = [], mpf(1)
    for s in reversed(scores):
        share = 1 / (1 + mpmath.exp(-s))
        weights.append(share * rest)
        rest *= 1 / (1 + mpmath.exp(s))
    return weights[::-1]


TRUTHS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "sigmoid": lambda scores: [1 / (1 + mpmath.exp(-s)) for s in scores],
    "silu": lambda scores: [s / (1 + mpmath.exp(-s)) for s in scores],
    "sparsemax": of_sparsemax,
    "entmax": lambda scores: of_alpha(scores, 1.5),
    "entmax near softmax": lambda scores: of_alpha(scores, 1.001),
    "entmax beyond sparsemax": lambda scores: of_alpha(scores, 3.0),
    "softpick": of_softpick,
    "stick-breaking": of_sticks,
}


def truth(scores: Array, function: Callable[[list[Any]], list[Any]]) -> Array:
    with mpmath.workdps(50):
        rows = [function([mpf(s) for s in row]) for row in scores.reshape(-1, scores.shape[-1]).tolist()]
        return np.array([[float(x) for x in row] for row in rows]).reshape(scores.shape)


def random_scores(*shape: int, seed: int = 0) -> Array:
    """Rows of different width, the first of them narrow."""
    return normal(seed, *shape) * np.logspace(-1, 1, shape[-2])[:, None]


@every_kind
def test_weights_are_what_the_formula_says(kind: str) -> None:
    scores = random_scores(5, 7)
    weights, _ = KINDS[kind].forward(scores)
    assert_close(weights, truth(scores, TRUTHS[kind]), 4e-16)


SYMBOLS = {  # of the page, whose own op is entmax
    "sigmoid": r"\sigma",
    "silu": r"\Psi",
    "sparsemax": "P",
    "softpick": "W",
    "stick-breaking": "Q",
}


@each("kind", SYMBOLS)
def test_each_kind_is_what_the_page_says(kind: str) -> None:
    pytest.importorskip("lark", reason="to read a page, pip install 'attention-np[check]'")
    from attention_np.derivation import read_page, verify_against_op

    front, rest = (PAGES / "weightings.md").read_text(encoding="utf-8").split("\n---\n", 1)
    text = front.replace(r"\Xi", SYMBOLS[kind]) + "\n---\n" + rest
    records = verify_against_op(read_page("weightings.md", text), partial_module(KINDS[kind]), draws=2)
    assert {record.name for record in records} == {"output", "weights", "gradient of scores"}
    assert all(record.ok for record in records), records


def partial_module(by: Weighting) -> Any:
    """The op of one weighting."""
    op = ModuleType("weightings")
    vars(op).update(vars(weightings), forward=lambda scores: weightings.forward(scores, weights_by=by))
    return op


@each("alpha", [1 + 1e-12, 1.25, 4.0], long=[1.001, 1.5, 1.9, 2.0, 2.5, 60.0])
def test_entmax_has_all_digits_whatever_alpha_and_however_large_the_scores(alpha: float) -> None:
    for center in (0.0, 1e4):
        scores = (center + random_scores(5, 6)).round(9)
        expected = truth(scores, lambda row: of_alpha(row, alpha))
        weights, _ = weightings.entmax(alpha).forward(scores)
        assert np.abs(weights - expected).max() <= 4e-16 * max(1, alpha / 4)
        np.testing.assert_array_equal(weights == 0, expected == 0)
        np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-17)


def test_entmax_goes_to_softmax_and_to_a_hard_choice() -> None:
    scores = random_scores(4, 6)
    for excess in (1e-3, 1e-6, 1e-9, 1e-12, 2.0**-52):
        weights, cache = weightings.entmax(1 + excess).forward(scores)
        limit, of_limit = softmax.forward(scores)
        assert_close(weights, limit, 300 * excess + 4e-16)  # the next term has the square of a gap, here of 20
        g = normal(3, 4, 6)
        assert_close(
            weightings.entmax(1 + excess).backward(g, cache), softmax.backward(g, of_limit).scores, 1e3 * excess + 1e-15
        )
    weights, _ = weightings.entmax(1e9).forward(scores)
    np.testing.assert_array_equal(weights, scores == scores.max(axis=-1, keepdims=True))


def of_two(gap: float, alpha: float) -> tuple[float, float, float]:
    """Of two scores: both weights, and how fast the first one moves, by bisection for the logarithm of the second."""
    with mpmath.workdps(60):
        power = mpf(alpha) - 1
        low, high = mpf(-800), mpmath.log(mpf(1) / 2)
        for _ in range(240):
            middle = (low + high) / 2
            below = mpmath.log(mpmath.exp(power * middle) + power * mpf(gap)) < power * mpmath.log1p(
                -mpmath.exp(middle)
            )
            low, high = (middle, high) if below else (low, middle)
        second = mpmath.exp(low)
        slope = 1 / ((1 - second) ** (power - 1) + second ** (power - 1))
        return float(1 - second), float(second), float(slope)


@each(("alpha", "gap"), [(30.0, 0.0077), (1e3, 1e-6), (1e12, 2e-13)], long=[(2.5, 0.6), (30.0, 1e-9), (1e6, 9e-7)])
def test_near_scores_share_the_weight_and_its_gradient_however_large_alpha(alpha: float, gap: float) -> None:
    for dtype, tolerance in ((np.float64, 1e-11), (np.float32, 2e-4)):
        scores, first = np.array([gap, 0], dtype), np.array([1, 0], dtype)
        by = weightings.entmax(alpha)
        first_weight, second_weight, slope = of_two(float(scores[0]), alpha)
        weights, cache = by.forward(scores)
        np.testing.assert_allclose(weights, [first_weight, second_weight], rtol=tolerance)
        for moved in (by.backward(first, cache), by.jvp(cache, first)):
            np.testing.assert_allclose(moved, [slope, -slope], rtol=tolerance)
        _, twice = weightings.double_backward(weightings.Gradients(first), first, cache)
        assert np.isfinite(twice.scores).all()
        assert abs(twice.scores.sum()) <= tolerance * abs(twice.scores[0])


@each("alpha", [1e39, 1e300])
@each("dtype", [np.float16, np.float32, np.float64])
def test_an_alpha_beyond_the_dtype_is_a_hard_choice(alpha: float, dtype: type) -> None:
    scores = np.array([[1.5, 1.0, -2.0], [3.0, 3.0, 1.0], [1e4, -np.inf, -1e4]], dtype)
    weights, cache = weightings.entmax(alpha).forward(scores)
    np.testing.assert_array_equal(weights, [[1, 0, 0], [0.5, 0.5, 0], [1, 0, 0]])
    d_scores = weightings.entmax(alpha).backward(normal(0, 3, 3).astype(dtype), cache)
    assert_same_bits(d_scores[[0, 2]], np.zeros((2, 3), dtype))
    assert not np.isnan(d_scores).any()


@every_kind
@each("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_scores_of_ten_thousand_have_their_weights_in_every_dtype_with_nan_behind_the_mask(
    kind: str, dtype: Any
) -> None:
    by, eps = KINDS[kind], float(ml_dtypes.finfo(dtype).eps)
    steps = np.array([0.0, 0.5, -0.25, 64.0, 0.75, -8.0])
    scores = (np.array([[1e4], [-1e4], [0.0], [1e4]]) + steps).astype(dtype)
    mask = np.arange(6) != np.array([[4], [3], [1], [3]])
    kept = scores.astype(float)[mask].reshape(4, 5)
    hidden = np.where(mask, scores, np.array(np.nan, dtype))
    weights, cache = by.forward(hidden, mask=mask)
    assert weights.dtype == dtype
    expected = truth(kept, TRUTHS[kind])
    found = weights.astype(float)
    np.testing.assert_array_equal(found[~mask], 0)
    difference = np.abs(found[mask].reshape(4, 5) - expected)
    assert (difference <= 8 * eps * np.maximum(1, np.abs(expected))).all()
    g = normal(5, 4, 6).astype(dtype)
    _, exactly = by.forward(kept)
    theirs = by.backward(g.astype(float)[mask].reshape(4, 5), exactly)
    for moved in (by.backward(g, cache), by.jvp(cache, np.where(mask, g, np.array(np.inf, dtype)))):
        assert np.isfinite(moved.astype(float)).all()
        np.testing.assert_array_equal(moved.astype(float)[~mask], 0)
    ours = by.backward(g, cache).astype(float)[mask].reshape(4, 5)
    assert (np.abs(ours - theirs) <= 32 * eps * np.maximum(1, np.abs(theirs))).all()


def test_the_limit_of_entmax_at_its_pole_is_softmax_in_every_dtype() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        eps = float(np.finfo(dtype).eps)
        scores, g = (1e4 + random_scores(3, 5).round(1) * 8).astype(dtype), normal(1, 3, 5).astype(dtype)
        by = weightings.entmax(np.nextafter(1, 2))
        weights, cache = by.forward(scores)
        limit, of_limit = softmax.forward(scores)
        assert_close(weights.astype(float), limit.astype(float), 8 * eps)
        expected = softmax.backward(g, of_limit).scores
        assert_close(by.backward(g, cache).astype(float), expected.astype(float), 16 * eps)


def test_equal_scores_are_no_kink_of_sparsemax_and_the_checker_agrees() -> None:
    scores = np.array([[1.0, 1.0, 0.25], [2.0, 2.0, 2.0], [3.0, 0.5, 0.5]])  # inside together, or outside together
    weights, cache = weightings.sparsemax().forward(scores)
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [1, 0, 0]], atol=1e-16)
    d_scores = weightings.sparsemax().backward(np.array([[1.0, 0.0, 5.0]] * 3), cache)
    np.testing.assert_allclose(d_scores, [[0.5, -0.5, 0], [-1, -2, 3], [0, 0, 0]], atol=1e-15)
    gradcheck.check_op(weightings, {"scores": scores}, weights_by=weightings.sparsemax()).raise_if_failed()


def test_sparsemax_is_entmax_at_two() -> None:
    scores, g = random_scores(80, 9), normal(1, 80, 9)
    one, other = weightings.sparsemax(), weightings.entmax(2)
    (weights, cache), (expected, its_cache) = one.forward(scores), other.forward(scores)
    assert_close(weights, expected, 1e-15)
    assert_close(one.backward(g, cache), other.backward(g, its_cache), 1e-15)


@each("alpha", [1.05, 1.5, 1.8, 2.0, 2.3, 7.0])
def test_long_and_staggered_rows_are_solved_in_few_steps(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "STEPS", 2 if alpha == 1.5 else 24)  # for which there is a formula
    m = 2000
    rows = [normal(0, m), normal(1, m) * 1e-3, -np.arange(m) * 1e-3, -np.logspace(-9, 1, m), np.zeros(m)]
    weights, _ = weightings.entmax(alpha).forward(np.array(rows))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-14)


@each("kind", NORMALISED)
def test_a_number_added_to_a_row_changes_nothing_and_equal_scores_have_equal_weights(kind: str) -> None:
    scores = random_scores(4, 5).round(6)
    scores[:, 3] = scores[:, 1]
    weights, cache = KINDS[kind].forward(scores)
    assert KINDS[kind].sums_to_one
    assert_same_bits(weights[:, 3], weights[:, 1])
    assert_close(KINDS[kind].forward(scores + 1e4)[0], KINDS[kind].forward((scores + 1e4) - 1e4)[0], 1e-15)
    np.testing.assert_allclose(KINDS[kind].backward(normal(1, 4, 5), cache).sum(axis=-1), 0, atol=1e-14)
    equal, cache = KINDS[kind].forward(np.zeros((1, 8)))
    assert_close(equal, np.full((1, 8), 1 / 8), 3e-16)
    g = normal(2, 1, 8)
    slope = 8.0 ** (cache.weights_by.alpha - 2) if "entmax" in kind else 1
    assert_close(KINDS[kind].backward(g, cache), slope * (g - g.mean()), 4e-15)


def test_small_weights_keep_their_digits() -> None:
    scores = np.array([[-300.0, -40.0, -700.0, 30.0, -35.0]])
    for kind in ("sigmoid", "silu", "stick-breaking"):
        weights, cache = KINDS[kind].forward(scores)
        np.testing.assert_allclose(weights, truth(scores, TRUTHS[kind]), rtol=2e-15)
        assert (KINDS[kind].backward(np.ones_like(scores), cache) != 0).all()
    scores = np.linspace(-3, 1.2, 400)[None]  # the first keys have what is left of what is left
    weights, _ = KINDS["stick-breaking"].forward(scores)
    expected = truth(scores, of_sticks)
    assert expected.min() < 1e-60
    np.testing.assert_allclose(weights, expected, rtol=4e-14)
    scores = np.array([[1e-9, -2e-9, 3e-12]])
    np.testing.assert_allclose(KINDS["softpick"].forward(scores)[0], truth(scores, of_softpick), rtol=1e-15)


@each("kind", ["sparsemax", "entmax", "softpick"], long={*KINDS} - {"sparsemax", "entmax", "softpick"})
@each("alone", [False], long=[True])
def test_a_weight_of_nearly_one_leaves_the_digits_of_small_gradients(kind: str, alone: bool) -> None:
    scores, g = np.array([[2.0, 38.0, -1.0]]), np.array([[1.0, 1e3, 7.0]])
    if alone:
        g = np.array([[0.0, 1.0, 0.0]])
    with mpmath.workdps(120):
        step, row = mpf(10) ** -40, [mpf(s) for s in scores[0].tolist()]
        at = TRUTHS[kind](row)
        expected = []
        for j in range(3):
            there = TRUTHS[kind]([s + step * (k == j) for k, s in enumerate(row)])
            terms = [mpf(x) * (b - a) / step for x, a, b in zip(g[0].tolist(), at, there, strict=True)]
            expected.append(float(sum(terms)))
    _, cache = KINDS[kind].forward(scores)
    np.testing.assert_allclose(KINDS[kind].backward(g, cache)[0], expected, rtol=1e-13, atol=1e-38)


@each("kind", ["entmax", "softpick", "stick-breaking"], long={*KINDS} - {"entmax", "softpick", "stick-breaking"})
def test_gradients_are_numerical_ones(kind: str) -> None:
    report = gradcheck.check_op(
        weightings, {"scores": random_scores(2, 3, 5)}, method="complex-step", weights_by=KINDS[kind]
    )
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP


@every_kind
def test_forward_mode_and_second_derivatives_are_those_in_the_complex_plane(kind: str) -> None:
    by = KINDS[kind]
    scores, v, g = (random_scores(2, 4, 5, seed=seed) for seed in (1, 2, 3))
    mask = np.random.default_rng(0).random((4, 5)) < 0.8
    mask[1] = False
    weights, cache = by.forward(scores, mask=mask)
    beyond, of_beyond = by.forward(scores + 1e-30j * v, mask=mask)
    moved = by.jvp(cache, v)
    assert_alike(moved, beyond.imag / 1e-30, 4e-14)
    assert abs((g * moved).sum() - (by.backward(g, cache) * v).sum()) <= 1e-13 * np.abs(g * moved).sum()
    d_d_weights, gradients = weightings.double_backward(weightings.Gradients(v), g, cache)
    assert_alike(d_d_weights, moved, 1e-15)
    assert_alike(gradients.scores, by.backward(g, of_beyond).imag / 1e-30, 1e-12)
    assert_same_bits(weights[:, 1], np.zeros((2, 5)))


@every_kind
def test_it_is_an_analytic_function_beyond_small_steps(kind: str) -> None:
    z = random_scores(3, 4) * np.exp(1e-3j)  # Cauchy-Riemann: along i it moves by i times as much
    g = normal(4, 3, 4)

    def along(direction: complex) -> Any:
        return (g * (KINDS[kind].forward(z + 1e-6 * direction)[0] - KINDS[kind].forward(z - 1e-6 * direction)[0])).sum()

    assert abs(along(1j) - 1j * along(1)) <= 1e-8 * abs(along(1)) + 1e-14


@each(
    ("kind", "scores", "expected"),
    [("sparsemax", [1.0, 0.0, -1.0], [0.0, 0.0, 0.0])],
    long=[("softpick", [0.0, 1.0, -1.0], [0.0, 0.622, 0.229])],
)
def test_at_a_kink_the_gradient_is_that_of_the_side_without_a_weight_and_the_checker_says_so(
    kind: str, scores: list[float], expected: list[float]
) -> None:
    inputs = {"scores": np.array(scores)}
    _, cache = KINDS[kind].forward(inputs["scores"])
    np.testing.assert_allclose(KINDS[kind].backward(np.array([1.0, 2.0, 4.0]), cache), expected, atol=1e-3)
    report = gradcheck.check_op(weightings, inputs, weights_by=KINDS[kind])
    assert not report.ok
    assert "forward is not differentiable at [0]" in str(report)


def test_below_two_an_edge_is_no_kink() -> None:
    report = gradcheck.check_op(weightings, {"scores": np.array([2.0, 0.0, -1.0])}, weights_by=weightings.entmax(1.5))
    assert report["scores"].ok  # though the second derivative has one


@each("kind", NORMALISED)
def test_a_weight_of_zero_has_no_gradient_and_gives_none(kind: str) -> None:
    scores = np.array([0.3, 0.1, -20.0, -1500.0])
    _, cache = KINDS[kind].forward(scores)
    assert KINDS[kind].backward(normal(0, 4), cache)[3] == 0
    assert_same_bits(KINDS[kind].jvp(cache, np.array([0.0, 0.0, 0.0, 1.0])), np.zeros(4))


@every_kind
def test_what_is_hidden_takes_no_part_whatever_it_holds(kind: str) -> None:
    by, mask = KINDS[kind], np.array([[True, False, True, True], [False] * 4, [True] * 4])
    clean, g, v = random_scores(3, 4), normal(1, 3, 4), normal(2, 3, 4)
    expected, its_cache = by.forward(np.where(mask, clean, -7.0), mask=mask)
    for poison in (np.nan, np.inf, -np.inf, 1e308):
        scores, d_weights = np.where(mask, clean, poison), np.where(mask, g, poison)
        weights, cache = by.forward(scores, mask=mask)
        assert_same_bits(weights, expected)
        assert_same_bits(by.backward(d_weights, cache), by.backward(np.where(mask, g, 3.0), its_cache))
        assert_same_bits(by.jvp(cache, np.where(mask, v, poison)), by.jvp(its_cache, v))
    by_score, _ = by.forward(np.where(mask, clean, -np.inf))
    assert_same_bits(by_score, expected)
    assert_same_bits(expected[1], np.zeros(4))
    few, of_few = by.forward(clean[0, [0, 2, 3]])
    assert_alike(few, expected[0, [0, 2, 3]], 4e-16)
    assert_alike(by.backward(g[0, [0, 2, 3]], of_few), by.backward(g, its_cache)[0, [0, 2, 3]], 4e-15)


@every_kind
def test_nan_stays_in_its_row_and_a_row_without_a_gradient_gives_none(kind: str) -> None:
    by, scores = KINDS[kind], random_scores(3, 4)
    scores[1, 2] = np.nan
    weights, cache = by.forward(scores)
    assert np.isnan(weights[1, 2])
    assert np.isfinite(weights[[0, 2]]).all()
    assert np.isnan(by.backward(np.ones((3, 4)), cache)[1, 2])
    d_weights = np.ones((3, 4)) * [[1.0], [0.0], [1.0]]
    assert_same_bits(by.backward(d_weights, cache)[1], np.zeros(4))
    assert_same_bits(by.jvp(cache, d_weights)[1], np.zeros(4))


@every_kind
@each("dtype", {"float32": np.float32, "complex64": np.complex64})
def test_weights_are_in_the_dtype_computed_in(kind: str, dtype: type) -> None:
    for by in (KINDS[kind], weightings.entmax(1.3)):  # whose threshold is not that of a closed form
        weights, cache = by.forward(random_scores(3, 6).astype(dtype))
        assert weights.dtype == cache.weights.dtype == by.backward(weights, cache).dtype == dtype


def test_a_softpick_of_nearly_one_moves_by_what_it_lacks() -> None:
    by, scores = KINDS["softpick"], np.array([40.0, -3.0, 1e-5, 1.0])
    _, cache = by.forward(scores)
    columns = [by.jvp(cache, unit) for unit in np.eye(4)]
    rows = [by.backward(unit, cache) for unit in np.eye(4)]
    np.testing.assert_allclose(np.transpose(columns), rows, rtol=1e-14)


def test_plus_infinity_is_the_limit() -> None:
    scores, g = np.array([[np.inf, 1.0, np.inf, -1.0]]), normal(0, 1, 4)
    for kind in (*NORMALISED, "softpick"):
        weights, cache = KINDS[kind].forward(scores)
        assert_same_bits(weights, np.array([[0.5, 0.0, 0.5, 0.0]]))
        assert_same_bits(KINDS[kind].backward(g, cache), np.zeros((1, 4)))
    weights, cache = KINDS["stick-breaking"].forward(scores)
    assert_close(weights, truth(np.array([[999.0, 1.0, 999.0, -1.0]]), of_sticks), 1e-15)
    assert np.isfinite(KINDS["stick-breaking"].backward(g, cache)).all()
    assert_same_bits(KINDS["sigmoid"].forward(scores)[0][:, 0], np.ones(1))


@every_kind
def test_gradients_near_the_largest_number_are_within_its_range(kind: str) -> None:
    scores, g = random_scores(3, 4), normal(1, 3, 4)
    _, cache = KINDS[kind].forward(scores)
    exact = KINDS[kind].backward(g * 2.0**-5, cache)
    for size in (2.0**1020, 2.0**-1040):
        found = KINDS[kind].backward(g * 2.0**-5 * size, cache)
        np.testing.assert_allclose(found, exact * size, rtol=1e-13, atol=1e-322)


@every_kind
def test_half_and_single_precision_are_kept_and_as_good_as_they_can_be(kind: str) -> None:
    for dtype in (np.float16, np.float32):
        scores = random_scores(3, 6).astype(dtype)
        weights, cache = KINDS[kind].forward(scores)
        exact, of_exact = KINDS[kind].forward(scores.astype(float))
        g = normal(1, 3, 6).astype(dtype)
        eps = float(np.finfo(dtype).eps)
        assert weights.dtype == KINDS[kind].backward(g, cache).dtype == KINDS[kind].jvp(cache, g).dtype == dtype
        assert_close(weights.astype(float), exact, 3 * eps)
        expected = KINDS[kind].backward(g.astype(float), of_exact)
        assert_close(KINDS[kind].backward(g, cache).astype(float), expected, 20 * eps)


@every_kind
@each("shape", [(1,), (3, 1), (0,), (0, 4), (2, 0), (2, 3, 5)])
def test_one_key_no_key_and_any_leading_axes(kind: str, shape: tuple[int, ...]) -> None:
    by, scores = KINDS[kind], normal(0, *shape)
    weights, cache = by.forward(scores)
    assert weights.shape == by.backward(weights, cache).shape == by.jvp(cache, scores).shape == shape
    if shape[-1:] == (1,) and kind in NORMALISED:
        assert_same_bits(weights, np.ones(shape))
        assert_same_bits(by.backward(scores, cache), np.zeros(shape))


def test_softpick_of_zeros_is_zero() -> None:
    weights, cache = weightings.softpick().forward(np.zeros((2, 3)))
    assert_same_bits(weights, np.zeros((2, 3)))
    assert_same_bits(weightings.softpick().backward(np.ones((2, 3)), cache), np.zeros((2, 3)))


def test_sigmoid_and_silu_are_those_of_activation() -> None:
    x = normal(0, 3, 4) * 10
    for kind in ("sigmoid", "silu"):
        assert_same_bits(KINDS[kind].forward(x)[0], activation.forward(x, kind=kind)[0])


def test_an_object_says_what_it_is_and_only_reads_its_own_cache() -> None:
    assert str(weightings.entmax(1.25)) == "entmax(alpha=1.25)"
    assert weightings.entmax() == weightings.entmax(1.5) != weightings.entmax(1.6)
    assert copy.deepcopy(weightings.softpick()) == weightings.softpick() != weightings.silu()
    _, cache = weightings.sparsemax().forward(np.zeros(3))
    with pytest.raises(TypeError, match=r"^cache must be of entmax\(alpha=1.5\), not of sparsemax\(\)$"):
        weightings.entmax().backward(np.zeros(3), cache)


def test_in_a_chain_it_is_an_op_like_any_other() -> None:
    def layer(x: Any, value: Any) -> Any:
        scores = x @ x.swapaxes(-1, -2)
        first = chain.apply(weightings, 2.0 * scores, weights_by=weightings.entmax()) @ value
        return first + chain.apply(dot_product, x, x, value, weights_by=weightings.softpick())

    report = gradcheck.check_op(chain, {"x": normal(0, 4, 4), "value": normal(1, 4, 2)}, layer=layer)
    report.raise_if_failed()


def of_attention(*leading: int) -> dict[str, Array]:
    shapes = {"query": (*leading, 4, 3), "key": (*leading, 6, 3), "value": (*leading, 6, 2), "bias": (4, 6)}
    return {name: normal(k, *shape) for k, (name, shape) in enumerate(shapes.items())}


PIPELINE = {"is_causal": True, "softcap": 1.5, "scale": 0.9, "dropout_p": 0.3, "rng": 4}


@every_kind
def test_in_attention_it_stands_between_the_scores_and_dropout(kind: str) -> None:
    x, by = of_attention(2), KINDS[kind]
    output, cache = dot_product.forward(**x, **PIPELINE, weights_by=by)
    scores = 1.5 * np.tanh(0.9 * x["query"] @ x["key"].swapaxes(-1, -2) / 1.5) + x["bias"]
    weights, of_scores = by.forward(scores, mask=masks.causal(4, 6))
    assert_alike(cache.weights, weights, 1e-15)
    assert_alike(output, (weights * cache.dropout) @ x["value"], 1e-15)
    g = normal(9, *output.shape)
    gradients = dot_product.backward(g, cache)
    assert_alike(
        gradients.bias, by.backward(g @ x["value"].swapaxes(-1, -2) * cache.dropout, of_scores).sum(axis=0), 1e-13
    )


@every_kind
def test_scores_that_leave_the_range_on_their_way_have_the_weights_that_they_say(kind: str) -> None:
    x, by = of_attention(), KINDS[kind]
    large = {"query": x["query"] * 2.0**700, "key": x["key"] * 2.0**325, "value": x["value"], "bias": x["bias"]}
    output, cache = dot_product.forward(**large, scale=2.0**-1025, weights_by=by)
    expected, its_cache = dot_product.forward(**x, scale=1.0, weights_by=by)
    assert_alike(output, expected, 1e-14)
    g = normal(9, *output.shape)
    gradients, theirs = dot_product.backward(g, cache), dot_product.backward(g, its_cache)
    assert_alike(gradients.query * 2.0**700, theirs.query, 1e-13)
    assert_alike(gradients.bias, theirs.bias, 1e-13)
    if kind != "silu":  # whose weights do not fit
        output, _ = dot_product.forward(**large, weights_by=by)
        hard = dot_product.forward(x["query"] * 1e4, x["key"] * 1e4, x["value"], weights_by=by)[0]
        assert_alike(output, hard, 1e-14)


@each("kind", ["sigmoid", "silu"])
@each("options", [{"is_causal": True, "softcap": 1.5, "dropout_p": 0.3, "rng": 4}], long=[{}, {"scale": 40.0}])
def test_block_by_block_it_is_what_it_is_as_a_whole(kind: str, options: dict[str, Any]) -> None:
    x, options = of_attention(2), options | {"weights_by": KINDS[kind]}
    output, cache = blockwise.forward(**x, **options, block_size=(3, 2))
    expected, its_cache = dot_product.forward(**x, **options)
    assert_alike(output, expected, 1e-15)
    g, v = normal(9, *output.shape), {name: normal(7, *array.shape) for name, array in x.items()}
    for size in (1.0, 2.0**1015):
        gradients, theirs = blockwise.backward(g * size, cache), dot_product.backward(g * size, its_cache)
        for name in x:
            assert_alike(getattr(gradients, name) / size, getattr(theirs, name) / size, 1e-14, name)
    assert_alike(blockwise.jvp(cache, **v), dot_product.jvp(its_cache, **v), 1e-14)
    along = dot_product.Gradients(**v, sink=None)
    twice, expected_twice = (
        op.double_backward(along, g, of) for op, of in ((blockwise, cache), (dot_product, its_cache))
    )
    assert_alike(twice[0], expected_twice[0], 1e-14)
    for name in x:
        assert_alike(getattr(twice[1], name), getattr(expected_twice[1], name), 1e-13, name)


def test_blockwise_makes_no_array_of_all_pairs_and_adds_up_what_comes_of_parts() -> None:
    n, by = 3000, weightings.sigmoid()
    x = {name: normal(k, n, 3).astype(np.float32) for k, name in enumerate(("query", "key", "value"))}

    def both_passes() -> None:
        output, cache = blockwise.forward(**x, weights_by=by, workers=1)
        blockwise.backward(output, cache, workers=1)

    assert peak_of(both_passes) < n * n * 4 / 2
    few = {name: array[:40].astype(float) for name, array in x.items()}
    parts = [blockwise.forward(few["query"], few["key"][k], few["value"][k], weights_by=by) for k in HALVES]
    assert_alike(parts[0][0] + parts[1][0], blockwise.forward(**few, weights_by=by)[0], 1e-15)
    with pytest.raises(ValueError, match=r"^first has weights by sigmoid\(\), not by softmax: add up the outputs"):
        blockwise.merge(*parts)
    with pytest.raises(ValueError, match=r"^there is no log-sum-exp of weights_by=sigmoid\(\)"):
        blockwise.backward(parts[0][0], parts[0][1], d_logsumexp=np.zeros(40))
    with pytest.raises(ValueError, match=r"^blockwise has the weights_by that look at each score alone, .* not entmax"):
        blockwise.forward(**few, weights_by=weightings.entmax())


@each("kind", ["sigmoid", "silu"])
def test_block_by_block_only_what_is_seen_is_weighed_and_in_no_other_way(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, n, left = KINDS[kind], 256, 31
    x = {name: normal(k, 2, n, 4) for k, name in enumerate(("query", "key", "value"))}
    counts: list[int] = []
    of_each = type(by).of_each

    def counted(self: Weighting, scores: Array) -> Any:
        counts.append(scores.size)
        return of_each(self, scores)

    monkeypatch.setattr(type(by), "of_each", counted)
    for name in ("attend", "differentiate_whole_rows"):
        monkeypatch.setattr(plain, name, pytest.fail)
    output, cache = blockwise.forward(**x, weights_by=by, mask=rules.sliding_window(left=left), block_size=32)
    gradients = blockwise.backward(output, cache)
    assert sum(counts) <= 2 * 2 * n * 64  # once each way: two blocks of keys for each of queries
    monkeypatch.undo()
    expected, its_cache = dot_product.forward(**x, weights_by=by, mask=masks.sliding_window(n, left=left))
    assert_alike(output, expected, 1e-15)
    theirs = dot_product.backward(output, its_cache)
    for name in x:
        assert_alike(getattr(gradients, name), getattr(theirs, name), 1e-14, name)


HALVES = slice(0, 20), slice(20, 40)


def test_a_sink_is_softmaxs_alone_and_what_is_no_weighting_is_refused() -> None:
    x = of_attention()
    with pytest.raises(ValueError, match=r"^a sink is one more score of a softmax, and weights_by is sparsemax\(\)"):
        dot_product.forward(**x, sink=0.0, weights_by=weightings.sparsemax())
    with_sink = multi_head.Parameters(*(np.eye(2),) * 4, sink=np.zeros(1))
    with pytest.raises(ValueError, match=r"^a sink is one more score of a softmax, and weights_by is silu\(\)"):
        multi_head.forward(*(np.eye(2),) * 3, with_sink, num_heads=1, weights_by=weightings.silu())
    with pytest.raises(TypeError, match=r"^weights_by must be one of attention_np.weightings"):
        multi_head.forward(*(np.eye(2),) * 3, with_sink, num_heads=1, weights_by="silu")
    with pytest.raises(TypeError, match=r"^weights_by must be one of attention_np.weightings"):
        dot_product.forward(**x, weights_by="sparsemax")


@each(
    ("call", "error", "sentence"),
    [
        (
            lambda: weightings.entmax(1.0),
            ValueError,
            "alpha must be above 1, where entmax is softmax, and finite, not 1",
        ),
        (lambda: weightings.entmax(np.inf), ValueError, "alpha must be above 1"),
        (lambda: weightings.entmax(np.nan), ValueError, "alpha must be above 1"),
        (lambda: weightings.entmax("2"), TypeError, "alpha must be a number"),
        (lambda: weightings.sparsemax().forward(np.ones(3, int)), TypeError, "scores must hold floating-point numbers"),
        (lambda: weightings.sparsemax().forward(np.array(1.0)), ValueError, "scores must have at least one axis"),
        (lambda: weightings.sparsemax().forward(np.ones(3), mask=np.ones(3)), TypeError, "mask must be boolean"),
        (lambda: weightings.forward(np.ones(3), weights_by=weightings.silu), TypeError, "weights_by must be one of"),
        (lambda: weightings.forward(np.ones(3), weights_by="silu"), TypeError, "weights_by must be one of"),
    ],
)
def test_what_cannot_be_used_is_refused(call: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        call()
