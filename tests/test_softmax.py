import warnings
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from helpers import CENTRAL, COMPLEX_STEP, Array, Shape, assert_close, assert_same_bits, each, normal
from scipy import special

from attention_np import gradcheck, softmax
from attention_np._lib.wide import widened
from attention_np._softmax import rows

SHAPES_AND_AXES = [((5,), -1), ((5,), 0), ((4, 5), 0), ((4, 5), 1), ((2, 3, 4), 1), ((2, 3, 4), -3), ((3, 1), -1)]

MASKS = {
    "of the shape of the scores": np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], bool),
    "a row": np.array([True, False, True, True, False]),
    "a column": np.array([[True], [False], [True], [True]]),
    "one True": np.array(True),
    "one False": np.array(False),
}


GRADIENTS = [(shape, axis, None) for shape, axis in SHAPES_AND_AXES]
GRADIENTS += [((4, 5), axis, mask) for axis in (0, 1) for mask in MASKS.values()]


@each(("method", "rtol"), [("complex-step", COMPLEX_STEP)], long=[("central", CENTRAL)])
@each(("shape", "axis", "mask"), GRADIENTS)
def test_gradients_along_any_axis_and_under_any_mask(
    shape: Shape, axis: int, mask: Array | None, method: str, rtol: float
) -> None:
    report = gradcheck.check_op(softmax, {"scores": 2 * normal(0, *shape)}, axis=axis, mask=mask, method=method)
    report.raise_if_failed()
    assert report["scores"].max_relative_error <= rtol
    assert report["jvp"].max_relative_error <= 1e-15


@each("size", [1e-300, 1e-8, 1.0, 30.0, 1e3, 1e300])
@each(("shape", "axis"), SHAPES_AND_AXES)
def test_weights_and_logsumexp_are_those_of_scipy_over_any_range(shape: Shape, axis: int, size: float) -> None:
    scores = size * normal(0, *shape)
    assert_close(softmax.forward(scores, axis=axis)[0], special.softmax(scores, axis=axis), 1e-15)
    assert_close(softmax.logsumexp(scores, axis=axis), special.logsumexp(scores, axis=axis), 1e-15)


@each("axis", [0, 1])
@each("mask", MASKS.values())
def test_a_masked_score_is_as_minus_infinity(mask: Array, axis: int) -> None:
    scores = normal(0, 4, 5)
    hidden = np.where(mask, scores, -np.inf)
    with np.errstate(all="ignore"):
        expected = np.nan_to_num(special.softmax(hidden, axis=axis), nan=0.0)
        sums = special.logsumexp(hidden, axis=axis)
    weights, _ = softmax.forward(scores, axis=axis, mask=mask)
    assert_close(weights, expected, 1e-15)
    assert (weights[~np.broadcast_to(mask, weights.shape)] == 0).all()
    assert_close(softmax.logsumexp(scores, axis=axis, mask=mask), sums, 1e-15)
    assert_same_bits(softmax.forward(hidden, axis=axis)[0], weights)


@each("mask", MASKS.values())
@each(("shape", "axis"), [((4, 5), 0), ((4, 5), 1), ((2, 4, 5), 1), ((2, 4, 5), 2)])
def test_the_jacobian_is_diag_a_minus_a_a_transposed(shape: Shape, axis: int, mask: Array) -> None:
    scores = normal(0, *shape)
    hidden = np.moveaxis(np.where(mask, scores, -np.inf), axis, -1)
    jacobian = softmax.jacobian(scores, axis=axis, mask=mask)
    assert jacobian.shape == (*hidden.shape, hidden.shape[-1])
    rounding = (hidden.shape[-1] + 3) * np.finfo(float).eps  # of the weights, their products and a row of sums
    for index in np.ndindex(*hidden.shape[:-1]):
        row = hidden[index].astype(np.longdouble)
        a = special.softmax(row) if (row > -np.inf).any() else np.zeros(row.shape)
        assert_close(jacobian[index], (np.diag(a) - np.outer(a, a)).astype(float), rounding)


def test_the_jacobian_is_right_in_every_digit_where_one_weight_is_nearly_one() -> None:
    scores = np.array([30.0, 0.0, 1.0])
    small = np.exp(np.array([-30.0, -29.0], np.longdouble))
    expected = small.sum() / (1 + small.sum()) ** 2  # a (1 - a) of the first weight
    assert abs(softmax.jacobian(scores)[0, 0] / expected - 1) < 1e-15


OVERFLOWING = [1.5e308, -1.5e308, 0.0]


@each("axis", [0, -1])
def test_vectors_of_the_largest_numbers_give_finite_products_and_leave_other_rows_alone(axis: int) -> None:
    scores = np.append(np.zeros((1, 3)), normal(0, 3, 3), axis=0)
    vectors = np.append([OVERFLOWING], normal(1, 3, 3), axis=0)
    if axis == 0:
        scores, vectors = scores.T, vectors.T
    weights, cache = softmax.forward(scores, axis=axis)
    for moved in (softmax.backward(vectors, cache).scores, softmax.jvp(cache, scores=vectors)):
        first, rest = (moved[:, 0], moved[:, 1:]) if axis == 0 else (moved[0], moved[1:])
        assert_close(first, np.array([5e307, -5e307, 0.0]), 1e-15)
        calm = np.where(np.abs(vectors) > 1e300, 1.0, vectors)
        alone = softmax.backward(calm, cache).scores
        assert_same_bits(rest, alone[:, 1:] if axis == 0 else alone[1:])
    assert weights.dtype == scores.dtype


def exact_product(scores: list[float], vector: list[float]) -> list[Decimal]:
    """The Jacobian of softmax times a vector, to fifty digits."""
    with localcontext() as context:
        context.prec = 50
        exponentials = [Decimal(s).exp() for s in scores]
        weights = [e / sum(exponentials) for e in exponentials]
        deviations = [[Decimal(v) - Decimal(u) for u in vector] for v in vector]
        return [
            a * sum(b * d for b, d in zip(weights, row, strict=True))
            for a, row in zip(weights, deviations, strict=True)
        ]


@each("scores", [[30.0, 0.0, 1.0], [0.0, 30.0, 1.0], [1.0, 0.0, 36.0], [300.0, 0.0, -300.0]])
@each("vector", [[1.0, 2.0, 3.0], [1.0, -0.3, 0.7], [-5.0, 1e-3, 7.0], [1e8, 1e8 + 1, 1e8 - 3], [0.1, 0.0, 0.0]])
def test_products_keep_their_relative_accuracy_where_one_weight_is_nearly_one(
    scores: list[float], vector: list[float]
) -> None:
    _, cache = softmax.forward(np.array(scores))
    for moved in (softmax.backward(np.array(vector), cache).scores, softmax.jvp(cache, scores=np.array(vector))):
        for actual, expected in zip(moved.tolist(), exact_product(scores, vector), strict=True):
            assert abs(Decimal(actual) - expected) <= Decimal("1e-15") * abs(expected)


def test_plus_infinities_share_a_row_and_nothing_moves_there() -> None:
    scores = np.array([[np.inf, 1.0, np.inf, -np.inf, np.inf], [0.0, 1.0, 2.0, 3.0, -np.inf]])
    weights, cache = softmax.forward(scores)
    np.testing.assert_array_equal(weights[0], np.array([1, 0, 1, 0, 1]) / 3)
    assert_close(weights[1], np.append(special.softmax(scores[1, :4]), 0), 1e-15)
    d_weights = normal(0, 2, 5)
    for moved in (softmax.backward(d_weights, cache).scores, softmax.jvp(cache, scores=d_weights)):
        assert (moved[0] == 0).all()
        assert moved[1, 4] == 0
        assert (moved[1, :4] != 0).all()
    jacobian = softmax.jacobian(scores)
    assert (jacobian[0] == 0).all()
    a = weights[1]
    assert_close(jacobian[1], np.diag(a) - np.outer(a, a), 1e-15)
    np.testing.assert_array_equal(softmax.logsumexp(scores)[0], np.inf)


@each("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@each("axis", [0, -1])
def test_zero_lengths_have_zero_length_results(shape: Shape, axis: int) -> None:
    scores = np.zeros(shape)
    weights, cache = softmax.forward(scores, axis=axis)
    assert weights.shape == shape
    assert softmax.backward(np.zeros(shape), cache).scores.shape == shape
    assert softmax.jvp(cache, scores=np.zeros(shape)).shape == shape
    rest = np.delete(shape, axis)
    sums = softmax.logsumexp(scores, axis=axis)
    assert sums.shape == tuple(rest)
    assert (sums == -np.inf).all()
    assert softmax.jacobian(scores, axis=axis).shape == (*rest, shape[axis], shape[axis])


def test_complex_scores_continue_the_function_analytically() -> None:
    scores = normal(0, 3, 4) + 1j * normal(1, 3, 4)
    exponentials = np.exp(scores)
    expected = exponentials / exponentials.sum(-1, keepdims=True)
    weights, cache = softmax.forward(scores)
    assert_close(weights, expected, 1e-15)
    assert_close(np.exp(softmax.logsumexp(scores)), exponentials.sum(-1), 1e-14)
    d_weights = normal(2, 3, 4) + 1j * normal(3, 3, 4)
    jacobian = np.eye(4) * expected[:, :, None] - expected[:, :, None] * expected[:, None, :]
    assert_close(softmax.backward(d_weights, cache).scores, np.einsum("il,ilj->ij", d_weights, jacobian), 1e-14)
    assert_close(softmax.jacobian(scores), jacobian, 1e-14)


def test_the_cache_names_what_was_computed_and_refers_to_the_scores() -> None:
    scores = normal(0, 3, 4)
    weights, cache = softmax.forward(scores, axis=0)
    assert cache.scores is scores
    assert cache.axis == 0
    assert_same_bits(cache.weights, weights)
    assert_close(cache.logsumexp, special.logsumexp(scores, axis=0, keepdims=True), 1e-15)


VAST = 10**15  # so many rows that no arithmetic on them could even allocate its result


@each("rows", [4, VAST])
@each(
    ("dtype", "options", "error", "message"),
    [
        (np.int64, {}, TypeError, r"scores must hold floating-point numbers, not int64 .*scores\.shape=\({rows}, 3\)"),
        (bool, {}, TypeError, r"scores must hold floating-point numbers, not bool"),
        (object, {}, TypeError, r"scores must hold floating-point numbers, not object"),
        (float, {"axis": 2}, ValueError, r"scores has no axis 2 \(scores\.shape=\({rows}, 3\)\)"),
        (float, {"axis": -3}, ValueError, r"scores has no axis -3"),
        (float, {"axis": 1.5}, TypeError, r"^axis must be an integer, not float"),
        (float, {"axis": None}, TypeError, r"^axis must be an integer, not NoneType"),
        (float, {"mask": np.ones(3)}, TypeError, r"mask must be boolean.*not float64 \(mask\.shape=\(3,\)\)"),
        (float, {"mask": np.ones(3, int)}, TypeError, r"mask must be boolean.*not int64"),
        (
            float,
            {"mask": np.ones(2, bool)},
            ValueError,
            r"mask must broadcast to the scores, whose shape is \({rows}, 3\) \(mask\.shape=\(2,\)\)",
        ),
        (float, {"mask": np.ones((1, 1, 3), bool)}, ValueError, r"mask must broadcast.*mask\.shape=\(1, 1, 3\)"),
    ],
)
@each("function", [softmax.forward, softmax.jacobian, softmax.logsumexp])
def test_bad_input_is_refused_before_any_arithmetic(
    rows: int, dtype: Any, options: dict[str, Any], error: type[Exception], message: str, function: Any
) -> None:
    scores = np.broadcast_to(np.zeros((), dtype), (rows, 3))
    with pytest.raises(error, match=message.replace("{rows}", str(rows))):
        function(scores, **options)


def test_a_score_without_an_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scores has no axis -1 \(scores\.shape=\(\)\)"):
        softmax.forward(np.array(1.0))


def test_no_jacobian_or_logsumexp_warns() -> None:
    scores = np.array([[np.nan, 1.0], [np.inf, -np.inf], [1e308, -1e308], [-np.inf, -np.inf]])
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        softmax.jacobian(scores)
        softmax.logsumexp(scores)


def test_an_infinite_cotangent_takes_the_rest_of_its_row_to_the_limit() -> None:
    _, cache = softmax.forward(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(softmax.backward(np.array([2.0, np.inf]), cache).scores, [-np.inf, np.nan])
    np.testing.assert_array_equal(softmax.backward(np.array([np.inf, 2.0]), cache).scores, [np.nan, -np.inf])


@each("hidden", [np.nan, np.inf, -np.inf])
def test_a_score_of_minus_infinity_takes_no_part_whatever_its_cotangent_holds(hidden: float) -> None:
    _, cache = softmax.forward(np.array([-np.inf, 0.0, 1.0]))
    _, alone = softmax.forward(np.array([0.0, 1.0]))
    expected = [0.0, *softmax.backward(np.array([1.0, 2.0]), alone).scores]
    np.testing.assert_array_equal(softmax.backward(np.array([hidden, 1.0, 2.0]), cache).scores, expected)


def test_the_jacobian_of_a_row_with_nan_is_zero_where_a_score_is_masked() -> None:
    jacobian = softmax.jacobian(np.array([np.nan, 1.0, 2.0]), mask=np.array([True, True, False]))
    np.testing.assert_array_equal(jacobian, [[np.nan, np.nan, 0], [np.nan, np.nan, 0], [0, 0, 0]])


@each("dtype", [np.float16, np.float32, np.complex64])
def test_all_results_keep_the_dtype_of_the_scores(dtype: type) -> None:
    scores = normal(0, 3, 4).astype(dtype)
    _, cache = softmax.forward(scores)
    assert softmax.jvp(cache).dtype == dtype
    assert softmax.jacobian(scores).dtype == dtype
    assert softmax.logsumexp(scores).dtype == dtype


@each("axis", [0, 1])
@each("exponent", [700, -700])
def test_deviations_from_a_mean_that_does_not_fit_the_dtype_keep_their_digits(axis: int, exponent: int) -> None:
    weights, cache = softmax.forward(normal(0, 3, 5), axis=axis)
    vector, unit = normal(1, 3, 5), widened(np.float64(2.0**exponent))
    place = rows.heaviest(weights, axis)
    far = rows.above_mean(widened(vector) * unit * unit, weights, cache.axis, place)
    near = np.asarray(far * (1 / unit) * (1 / unit))
    assert_close(near, rows.above_mean(vector, weights, cache.axis, place), 1e-15)
