"""The indexer: its scores, what a hidden pair does to them and to their gradients, the choice, and what trains it."""

from typing import Any

import numpy as np
import pytest
from helpers import COMPLEX_STEP, Array, assert_close, assert_same_bits, each, normal

from attention_np import cross_entropy, indexer, masks, rules

H, N, M, D = 3, 4, 5, 2
HIDDEN = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], bool)
NAMES = ("query", "key", "weights")


def arrays(*batch: int) -> dict[str, Array]:
    shapes = ((*batch, H, N, D), (*batch, M, D), (*batch, H, N))
    return {name: normal(seed, *shape) for seed, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))}


def by_loops(query: Array, key: Array, weights: Array, scale: float = 1.0) -> Array:
    scores = np.zeros((N, M))
    for i, j, h in np.ndindex(N, M, H):
        scores[i, j] += weights[h, i] * max(scale * sum(query[h, i, a] * key[j, a] for a in range(D)), 0)
    return scores


@each("scale", [1.0, 0.3, -2.0])
def test_a_score_is_the_weighted_sum_over_heads_of_products_that_are_cut_off(scale: float) -> None:
    output, cache = indexer.forward(**arrays(), scale=scale)
    assert_close(output, by_loops(**arrays(), scale=scale), 1e-15)
    assert cache.activated.min() == 0
    assert cache.activated.shape == (H, N, M)


def test_leading_axes_broadcast_and_gradients_are_summed_back() -> None:
    given = arrays(2)
    given["key"] = given["key"][0]
    output, cache = indexer.forward(**given)
    d_output = normal(5, 2, N, M)
    gradients = indexer.backward(d_output, cache)
    d_key = np.zeros((M, D))
    for k in range(2):
        one, of_one = indexer.forward(given["query"][k], given["key"], given["weights"][k])
        assert_close(output[k], one, 1e-15)
        d_key += indexer.backward(d_output[k], of_one).key
    assert_close(gradients.key, d_key, 1e-14)


@each("mask", [HIDDEN, HIDDEN[0], masks.padding([5, 2], M)])
def test_a_hidden_score_is_minus_infinity_and_ignores_what_arrives(mask: Array) -> None:
    given = arrays(2)
    output, cache = indexer.forward(**given, mask=mask)
    mask = np.broadcast_to(mask, output.shape)
    plain, of_plain = indexer.forward(**given)
    assert_same_bits(output, np.where(mask, plain, -np.inf))
    d_output = normal(5, *output.shape)
    wanted = indexer.backward(np.where(mask, d_output, 0), of_plain)
    for ignored in (1.0, np.nan, np.inf):
        gradients = indexer.backward(np.where(mask, d_output, ignored), cache)
        for found, x in zip(gradients, wanted, strict=True):
            assert_same_bits(found, x)
    tangents = {name: normal(7, *x.shape) for name, x in given.items()}
    moved = indexer.jvp(cache, **tangents)
    assert_same_bits(moved, np.where(mask, indexer.jvp(of_plain, **tangents), 0))


@each("name", NAMES)
def test_under_a_mask_gradients_and_second_derivatives_are_numerical_ones(name: str) -> None:
    given, d_output = arrays(), normal(5, N, M)
    along = indexer.Gradients(*(normal(6 + k, *x.shape) for k, x in enumerate(given.values())))

    def moved(step: float) -> Any:
        inputs = {of: x + 1j * step * (of == name) * tangent for of, x, tangent in zip(given, given.values(), along)}  # noqa: B905
        return indexer.forward(**inputs, mask=HIDDEN)

    output, cache = moved(COMPLEX_STEP)
    _, plain = indexer.forward(**given, mask=HIDDEN)
    slopes = np.where(HIDDEN, output, 0).imag / COMPLEX_STEP
    assert_close(indexer.jvp(plain, **{name: getattr(along, name)}), slopes, 1e-14)
    gradient = getattr(indexer.backward(d_output, plain), name)
    assert np.sum(gradient * getattr(along, name)) == pytest.approx(np.sum(slopes * d_output), rel=1e-13)
    only = indexer.Gradients(*(x if of == name else None for of, x in along._asdict().items()))
    d_d_output, second = indexer.double_backward(only, d_output, plain)
    assert_close(d_d_output, slopes, 1e-14)
    for found, x in zip(second, indexer.backward(d_output, cache), strict=True):
        assert_close(found, x.imag / COMPLEX_STEP, 1e-14)


@each("poison", [np.nan, np.inf, -np.inf])
def test_what_is_hidden_contributes_nothing_whatever_it_holds(poison: float) -> None:
    mask = np.ones((N, M), bool)
    mask[2], mask[:, 3] = False, False
    given, d_output = arrays(), normal(5, N, M)
    bad = {name: x.copy() for name, x in given.items()}
    bad["query"][:, 2], bad["key"][3], bad["weights"][:, 2] = poison, poison, poison
    tangents = {name: normal(7, *x.shape) for name, x in given.items()}
    (actual, of_actual), (expected, of_expected) = (indexer.forward(**x, mask=mask) for x in (bad, given))
    assert_same_bits(actual, expected)
    assert_same_bits(indexer.jvp(of_actual, **tangents), indexer.jvp(of_expected, **tangents))
    for one, other in zip(indexer.backward(d_output, of_actual), indexer.backward(d_output, of_expected), strict=True):
        assert_same_bits(one, other)


def test_a_query_without_an_incoming_gradient_contributes_nothing() -> None:
    given, d_output = arrays(), normal(5, N, M)
    d_output[2] = 0
    bad = {name: x.copy() for name, x in given.items()}
    bad["query"][:, 2], bad["weights"][:, 2] = np.nan, np.nan
    for one, other in zip(*(indexer.backward(d_output, indexer.forward(**x)[1]) for x in (bad, given)), strict=True):
        assert_same_bits(one, other)


def test_nan_flows_to_the_scores_and_the_gradients_that_it_touches_alone() -> None:
    given = arrays()
    given["key"][1, 0] = np.nan
    output, cache = indexer.forward(**given)
    np.testing.assert_array_equal(np.isnan(output), np.arange(M) == [[1]] * N)
    gradients = indexer.backward(np.where(np.arange(M) == 1, 0, normal(5, N, M)), cache)
    assert all(np.isfinite(x).all() for x in gradients)
    assert np.isnan(indexer.backward(normal(5, N, M), cache).query).any()


def test_the_slope_at_the_kink_is_zero() -> None:
    output, cache = indexer.forward(np.zeros((1, 1, 2)), np.ones((1, 2)), np.ones((1, 1)))
    gradients = indexer.backward(np.ones((1, 1)), cache)
    assert output == 0
    assert all((x == 0).all() for x in gradients)


@each("size", [1e200, 1e-200])
def test_a_weight_brings_products_back_into_range(size: float) -> None:
    given, d_output = arrays(), normal(5, N, M)
    plain, of_plain = indexer.forward(**given)
    moved = {"query": size * given["query"], "key": size * given["key"], "weights": given["weights"] / size**0.5}
    output, cache = indexer.forward(**moved, scale=size**-1.5)
    assert_close(output, plain, 1e-14)
    wanted, found = indexer.backward(d_output, of_plain), indexer.backward(d_output, cache)
    assert_close(found.query * size, wanted.query, 1e-14)
    assert_close(found.key * size, wanted.key, 1e-14)
    assert_close(found.weights / size**0.5, wanted.weights, 1e-14)


# The choice


@each("k", [0, 1, 3, M, M + 2])
@each("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_come_first_and_of_equal_ones_the_earlier(k: int, dtype: Any) -> None:
    scores = np.random.default_rng(0).integers(-2, 2, (20, M)).astype(dtype)
    scores[np.random.default_rng(1).random(scores.shape) < 0.3] = -np.inf
    for row, chosen in zip(scores, indexer.top_k(scores, k), strict=True):
        visible = [j for j in range(M) if row[j] > -np.inf]
        expected = sorted(visible, key=lambda j, row=row: (-row[j], j))[:k]
        assert chosen.tolist() == expected + [-1] * (k - len(expected))


def test_nan_is_chosen_first_so_that_it_shows_and_plus_infinity_is_a_number() -> None:
    scores = np.array([1.0, np.inf, -np.inf, np.nan, 2.0])
    assert indexer.top_k(scores, 4).tolist() == [3, 1, 4, 0] or indexer.top_k(scores, 4).tolist() == [1, 3, 4, 0]
    assert indexer.top_k(np.array([0.0, -0.0]), 2).tolist() == [0, 1]


@each("shape", [(0,), (2, 0), (0, 3)])
def test_of_nothing_nothing_is_chosen(shape: tuple[int, ...]) -> None:
    chosen = indexer.top_k(np.zeros(shape), 2)
    assert chosen.shape == (*shape[:-1], 2)
    assert (chosen == -1).all()


def test_what_is_chosen_is_a_mask_and_a_rule() -> None:
    output, _ = indexer.forward(**arrays(2), mask=masks.causal(N, M))
    chosen = indexer.top_k(output, 2)
    mask = masks.selected(chosen, M)
    np.testing.assert_array_equal(mask.sum(-1), [[1, 2, 2, 2]] * 2)
    assert not (mask & ~masks.causal(N, M)).any()
    np.testing.assert_array_equal(rules.selected(chosen).mask(N, M), mask)
    least = np.where(mask, output, np.inf).min(-1)
    assert (np.where(mask, -np.inf, output).max(-1) <= least).all()


# What trains it


def test_the_divergence_has_the_gradient_of_the_page_unclipped() -> None:
    given = arrays()
    scores, cache = indexer.forward(**given, mask=HIDDEN)
    target = np.abs(normal(8, N, M)) * HIDDEN
    losses, of_losses = cross_entropy.forward(scores, target)
    d_scores = cross_entropy.backward(np.ones(N), of_losses).scores
    visible = np.where(HIDDEN, scores, -np.inf)[HIDDEN.any(-1)]
    weights = np.zeros((N, M))
    weights[HIDDEN.any(-1)] = np.exp(visible) / np.exp(visible).sum(-1, keepdims=True)
    assert_close(d_scores, target.sum(-1, keepdims=True) * weights - target, 1e-14)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(x).all() for x in indexer.backward(d_scores, cache))


def test_a_key_that_the_indexer_thinks_nothing_of_still_has_its_gradient() -> None:
    scores, target = np.array([[0.0, -800.0]]), np.array([[0.25, 0.75]])
    loss, cache = cross_entropy.forward(scores, target)
    assert_close(loss, np.array([600.0]), 1e-15)
    assert_close(cross_entropy.backward(np.ones(1), cache).scores, np.array([[0.75, -0.75]]), 1e-15)


@each(
    ("changed", "error", "message"),
    [
        ({"query": np.ones((N, D))}, ValueError, r"query must have at least three axes, \(..., h, n, features\)"),
        (
            {"key": np.ones(D)},
            ValueError,
            r"key must have at least two axes, \(..., m, features\) \(key.shape=\(2,\)\)",
        ),
        ({"key": np.ones((M, 3))}, ValueError, "key has 3 features but query has 2 "),
        (
            {"weights": np.ones((N, H))},
            ValueError,
            r"weights must have the shape \(..., 3, 4\), of the heads and queries",
        ),
        ({"weights": np.ones(N)}, ValueError, r"weights must have the shape \(..., 3, 4\)"),
        (
            {"key": np.ones((2, M, D)), "weights": np.ones((3, H, N))},
            ValueError,
            "the leading axes of the arrays do not broadcast together ",
        ),
        ({"mask": np.ones((3, M), bool)}, ValueError, "mask must broadcast to the scores"),
        ({"mask": np.ones((H, N, M), bool)}, ValueError, "mask must broadcast to the scores"),
        ({"scale": np.inf}, ValueError, "scale must be finite, not inf"),
        ({"scale": "a"}, TypeError, "scale must be a number, not 'a'"),
        ({"weights": np.ones((H, N), int)}, TypeError, "weights must hold floating-point numbers"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        indexer.forward(**{**arrays(), **changed})


@each(
    ("scores", "k", "error", "message"),
    [
        (np.ones(3), -1, ValueError, "k must be at least 0, not -1"),
        (np.ones(3), 1.5, TypeError, "k must be an integer, not float"),
        (np.ones(3, int), 1, TypeError, "scores must hold floating-point numbers"),
        (1.0, 1, ValueError, r"scores must have at least one axis, \(..., m\) \(scores.shape=\(\)\)"),
    ],
)
def test_a_choice_of_what_is_none_is_refused(scores: Any, k: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        indexer.top_k(scores, k)
