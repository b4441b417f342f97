from typing import Any

import mpmath
import numpy as np
import pytest
from helpers import COMPLEX_STEP, assert_close, assert_same_bits, each, normal

from attention_np import cross_entropy, gradcheck, softmax


@each("mask", [None, np.array([True, False, True, True, False])])
@each(
    ("of_scores", "of_target"),
    [
        ((5,), (5,)),
        ((3, 5), (5,)),
        ((5,), (2, 3, 5)),
        ((2, 1, 5), (3, 5)),
        ((3, 5), ()),
        ((5,), (2,)),
        ((2, 1, 5), (3,)),
    ],
)
def test_gradients_are_numerical_ones_of_targets_and_indices_of_any_shape(
    of_scores: tuple[int, ...], of_target: tuple[int, ...], mask: Any
) -> None:
    inputs, options = {"scores": normal(0, *of_scores)}, {"mask": mask}
    if of_target[-1:] == (5,):
        inputs["target"] = normal(1, *of_target)
    else:
        options["target"] = np.random.default_rng(1).integers(5, size=of_target)
    report = gradcheck.check_op(cross_entropy, inputs, method="complex-step", **options)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report) <= COMPLEX_STEP
    assert_same_bits(inputs["scores"], normal(0, *of_scores))


@each("far", [0.0, 3.0, 46.0, 300.0, 690.0])
@each("kind", ["the largest", "another", "shared"])
def test_losses_and_gradients_keep_their_digits_where_they_are_the_rest_of_numbers_near_one(
    kind: str, far: float
) -> None:
    scores = normal(0, 7) + far * (np.arange(7) == 2)
    target = {"the largest": np.eye(7)[2], "another": np.eye(7)[4], "shared": 0.9 * np.eye(7)[2] + 0.1 * np.eye(7)[4]}
    output, cache = cross_entropy.forward(scores, target[kind])
    gradients = cross_entropy.backward(np.array(1.0), cache)
    with mpmath.workdps(700):
        s, t = ([mpmath.mpf(float(x)) for x in array] for array in (scores, target[kind]))
        powers = [mpmath.exp(x) for x in s]
        losses = [mpmath.log(sum(powers)) - x for x in s]
        expected = [sum(x * y for x, y in zip(t, losses, strict=True)), *losses]
        found = [output, *gradients.target]
        if kind != "shared":  # else, of the two, the terms do cancel
            expected += [p / sum(powers) * sum(t) - x for p, x in zip(powers, t, strict=True)]
            found += [*gradients.scores]
        # a distance is rounded, and so the exponential of it
        worst = max(abs(mpmath.mpf(float(x)) / y - 1) for x, y in zip(found, expected, strict=True))
    assert worst <= 2.3e-16 * (8 + far / 2)


def test_an_index_is_a_target_of_one_and_the_gradient_is_that_of_softmax_through_the_logarithm() -> None:
    scores, index, d_output = normal(0, 2, 4, 5), np.array([[0, 1, 2, 3], [4, 4, 0, 2]]), normal(1, 2, 4)
    for kind in (np.int8, np.uint64):
        output, cache = cross_entropy.forward(scores, index.astype(kind))
        expected, of_ones = cross_entropy.forward(scores, np.eye(5)[index])
        assert_same_bits(output, expected)
        gradients = cross_entropy.backward(d_output, cache)
        assert_same_bits(gradients.scores, cross_entropy.backward(d_output, of_ones).scores)
        assert gradients.target is None
    weights, by_weights = softmax.forward(scores)
    assert_close(cache.weights, weights, 3e-16)
    assert_close(output, -np.log((weights * np.eye(5)[index]).sum(-1)), 1e-15)
    d_weights = -d_output[..., None] * np.eye(5)[index] / weights
    assert_close(gradients.scores, softmax.backward(d_weights, by_weights).scores, 1e-15)


@each("hidden", [np.nan, np.inf, -np.inf, 3.0])
@each("by", ["mask", "score", "both"])
def test_a_hidden_entry_counts_in_neither_sum_whatever_it_holds(by: str, hidden: float) -> None:
    scores, target, d_output = normal(0, 3, 5), normal(1, 3, 5), normal(2, 3)
    seen, others = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool), [0, 1, 3]
    held = np.where(seen, scores, -np.inf if by == "score" else hidden)
    weighed = np.where(seen, target, target if by == "both" else hidden)
    options = {} if by == "score" else {"mask": seen}
    output, cache = cross_entropy.forward(held, weighed, **options)
    gradients = cross_entropy.backward(d_output, cache)
    moved = cross_entropy.jvp(cache, scores=held, target=weighed)
    assert output[1] == moved[1] == 0
    for gradient in gradients:
        assert (gradient[~seen] == 0).all()
        assert (gradient[seen] != 0).all()
    for gradient in cross_entropy.backward(np.full(3, np.nan), cache):
        assert (gradient[~seen] == 0).all()
        assert np.isnan(gradient[seen]).all()
    for row, columns in ((0, others), (2, slice(None))):
        expected, alone = cross_entropy.forward(scores[row, columns], target[row, columns])
        assert_close(output[row], expected, 1e-15)
        assert_close(
            moved[row], cross_entropy.jvp(alone, scores=scores[row, columns], target=target[row, columns]), 1e-14
        )
        for gradient, wanted in zip(gradients, cross_entropy.backward(d_output[row], alone), strict=True):
            assert_close(gradient[row, columns], wanted, 1e-15)
    output, cache = cross_entropy.forward(held, np.array([2, 0, 4]), **options)
    assert (output[:2] == 0).all()
    assert (cross_entropy.backward(d_output, cache).scores[:2] == 0).all()
    assert output[2] > 0


def test_plus_infinity_is_the_limit_as_in_softmax() -> None:
    scores = np.array([[np.inf, 1.0, np.inf, -np.inf], [0.0, 1.0, 2.0, 3.0]])
    for target, loss in (([0.5, 0, 0.5, 0], np.log(2)), ([0.25, 0, 0.5, 1], 0.75 * np.log(2)), ([0, 1, 0, 0], np.inf)):
        output, cache = cross_entropy.forward(scores, np.array(target, float))
        assert_close(output[0], np.array(loss), 2e-16)
        gradients = cross_entropy.backward(np.ones(2), cache)
        assert (gradients.scores[0] == 0).all()
        assert (gradients.scores[1] != 0).all()
        assert_same_bits(cross_entropy.backward(np.array([1.0, 0]), cache).target, cache.losses[0])
        assert_close(cache.losses[0], np.array([np.log(2), np.inf, np.log(2), 0]), 2e-16)
        assert cross_entropy.jvp(cache, scores=np.ones((2, 4)))[0] == 0
        assert_same_bits(cache.weights[0], np.array([0.5, 0, 0.5, 0]))
    assert np.isnan(cross_entropy.forward(np.array([np.inf, np.nan, 1.0]), np.array(2))[0])  # there is no limit


@each("dtype", [np.float32, np.float64, np.complex128])
def test_scores_of_any_size_have_the_losses_that_they_say(dtype: Any) -> None:
    most, tiny, digits = np.finfo(dtype).max, 2.0**-90, 2 * float(np.finfo(dtype).eps)
    scores = np.array([0.75 * most, -0.75 * most, 0.5 * most], dtype)  # further apart than the dtype can say
    output, cache = cross_entropy.forward(scores, np.array([1, 0, 0], dtype))
    assert output == 0
    output, cache = cross_entropy.forward(scores, np.array([0, tiny, 0], dtype))
    assert_close(output, np.array(1.5 * (most * tiny), dtype), digits)
    assert_same_bits(cross_entropy.backward(np.array(1, dtype), cache).scores, np.array([tiny, -tiny, 0], dtype))
    gradients = cross_entropy.backward(np.array(tiny, dtype), cache)
    assert_close(gradients.target, np.array([0, 1.5 * (most * tiny), tiny * (0.25 * most)], dtype), digits)
    along = np.array([0, tiny, 0], dtype)
    assert_same_bits(cross_entropy.jvp(cache, target=along), output)
    large = np.array([0.75 * most, -0.75 * most, 0], dtype)  # of the targets, the sum of any two fits
    of_large = cross_entropy.forward(np.log(np.array([2, 1, 1], dtype)), large + np.array([0, 0, 0.75 * most], dtype))[
        1
    ]
    found = cross_entropy.backward(np.array(1, dtype), of_large).scores
    assert_close(found, np.array([-0.375 * most, 0.9375 * most, -0.5625 * most], dtype), digits)


@each("poison", [np.nan, np.inf])
def test_a_target_of_zero_contributes_nothing_whatever_the_scores_are(poison: float) -> None:
    scores, target = normal(0, 3, 5), normal(1, 3, 5)
    scores[1, 2], target[1] = poison, 0
    output, cache = cross_entropy.forward(scores, target)
    expected, plain = cross_entropy.forward(normal(0, 3, 5), target)
    assert_same_bits(output, expected)
    assert output[1] == 0
    assert_same_bits(cross_entropy.backward(np.ones(3), cache).scores, cross_entropy.backward(np.ones(3), plain).scores)


@each(
    ("changed", "error", "message"),
    [
        (
            {"scores": np.array(1.0)},
            ValueError,
            r"scores must have at least one axis, \(\.\.\., m\) \(scores\.shape=\(\)\)",
        ),
        ({"scores": np.ones((3, 5), int)}, TypeError, "scores must hold floating-point numbers, not int64"),
        ({"target": np.ones((3, 5), bool)}, TypeError, "target must hold floating-point numbers, not bool"),
        ({"target": np.ones((3, 4))}, ValueError, r"target has 4 entries but a row of scores has 5 \(scores\.shape="),
        ({"target": np.array(0.5)}, ValueError, r"target has no axis but a row of scores has 5 \(scores\.shape="),
        ({"target": np.ones((2, 5))}, ValueError, "the leading axes of scores and target do not broadcast together"),
        (
            {"target": [1, 2]},
            ValueError,
            r"the leading axes of scores and a target of integers, which are indices, do not ",
        ),
        ({"target": [1, 5, 0]}, ValueError, r"target\[1\] is 5, but an index of 5 scores must be at least 0 and less "),
        ({"target": [[0], [-100]]}, ValueError, r"target\[1, 0\] is -100, but an index of 5 scores must be at least 0"),
        ({"target": -1}, ValueError, r"target is -1, but .* \(scores\.shape=\(3, 5\), target\.shape=\(\)\)$"),
        ({"mask": np.ones((3, 1, 5), bool)}, ValueError, r"mask must broadcast to the scores, whose shape is \(3, 5\)"),
        ({"mask": np.ones(5)}, TypeError, "mask must be boolean"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        cross_entropy.forward(**{"scores": np.ones((3, 5)), "target": [0, 1, 2], **changed})


def test_the_loss_of_one_row_is_an_array_without_axes() -> None:
    output, cache = cross_entropy.forward(np.array([1.0, 2.0]), 1)
    assert type(output) is np.ndarray
    assert output.shape == cache.output_shape == ()
