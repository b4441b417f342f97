"""A normalisation whose backward lacks its term: when that is said, and what it is called."""

import numpy as np
import pytest

from attention_np.gradcheck.agreement import WRONG
from attention_np.gradcheck.diagnosis import diagnose
from attention_np.gradcheck.diagnosis.softmax import _which_term

from .test_diagnosis import linear_evidence

ORTHOGONAL = "is missing or wrong: it is right for a cotangent with rows orthogonal to the rows of the output"
BY_SUMS = "the softmax correction along axis"


def with_errors(right, error, floor=1e-12):
    """Evidence of a right gradient for three cotangents, (3, *shape), and what is claimed beside it."""
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal((7, right[0].size))
    found = linear_evidence(slopes, slopes, right.shape[1:], (7,), rng)
    return found._replace(
        analytic={"x": right + error},
        numerical={"x": right},
        floor=floor + 0 * found.floor,
        verdict=np.full(right.shape[1:], WRONG),
        at_zero=None,
    )


def said_of(found):
    return diagnose(found) or ""


# By rows that are orthogonal to those of the output


@pytest.mark.parametrize(("entries", "said"), [(1, False), (2, True), (3, True)])
def test_two_entries_that_are_right_for_orthogonal_rows_tell_of_a_normalization(entries, said):
    right = np.random.default_rng(1).standard_normal((3, 9))
    error = np.zeros((3, 9))
    error[:2, [0, 4, 5][:entries]] = np.random.default_rng(2).standard_normal((2, entries))
    found = with_errors(right, error)
    assert (ORTHOGONAL in said_of(found._replace(verdict=(error[0] != 0) * WRONG))) == said


@pytest.mark.parametrize("right_for", [{0}, {1}, {0, 1}, {0, 2}, {1, 2}, set()])
def test_a_gradient_that_is_right_for_other_cotangents_lacks_no_normalization(right_for):
    right = np.random.default_rng(1).standard_normal((3, 9))
    error = np.random.default_rng(2).standard_normal((3, 9))
    error[list(right_for)] = 0
    assert ORTHOGONAL not in said_of(with_errors(right, error))


WEIGHTS = np.random.default_rng(3).dirichlet(np.ones(6), (2, 5))
VECTORS = np.random.default_rng(4).standard_normal((2, 5, 6))
UNIT = VECTORS / np.sqrt((VECTORS**2).sum(axis=-1, keepdims=True))
CENTERED = VECTORS - VECTORS.mean(axis=-1, keepdims=True)
LAYER = CENTERED / np.sqrt((CENTERED**2).mean(axis=-1, keepdims=True) + 1e-5)
EXACT_IN_HALF = np.random.default_rng(5).multinomial(8192, np.full(64, 1 / 64), 40) / 8192  # each row sums to 1


@pytest.mark.parametrize(
    ("output", "term"),
    [
        (WEIGHTS, "the softmax correction, weights"),
        (WEIGHTS[0, 0], "the softmax correction, weights"),
        (np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, np.newaxis], "the softmax correction, weights"),  # masked
        (WEIGHTS + 1e-5, "the softmax correction, weights"),  # in single precision they do not sum to 1 exactly
        (EXACT_IN_HALF.astype(np.float16), "the softmax correction, weights"),
        (1.5 * WEIGHTS, "a term with"),
        (2 * WEIGHTS, "a term with"),
        (np.concatenate([WEIGHTS, [[[-1, 2, 0, 0, 0, 0]] * 5]]), "a term with"),  # of both signs
        (UNIT, "the projection term of an L2 normalization"),
        (np.abs(UNIT), "the projection term of an L2 normalization"),
        (UNIT[0, 0], "the projection term of an L2 normalization"),
        (UNIT * (1 + 5e-5), "the projection term of an L2 normalization"),
        (LAYER, "the term of a layer normalization"),
        (LAYER[0, :2], "the term of a layer normalization"),
        (LAYER[0, :1], "a term with"),  # one row may have any norm by accident
        (LAYER[0, 0], "a term with"),
        (VECTORS, "a term with"),
    ],
)
def test_the_rows_of_the_output_tell_what_normalization_it_is(output, term):
    assert _which_term(output).startswith(term)


def test_of_other_rows_the_softmax_correction_is_given_as_an_example():
    assert _which_term(VECTORS) == (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij,"
    )


# By sums of rows


def rows_that_sum_to_zero(*shape, seed=0):
    right = np.random.default_rng(seed).standard_normal((3, *shape))
    return right - right.mean(axis=-1, keepdims=True)


def errors_like_weights(weights, seed=1, cotangents=3):
    multiples = np.random.default_rng(seed).standard_normal((3, *weights.shape[:-1], 1))
    return np.where(np.arange(3).reshape(3, *[1] * weights.ndim) >= 3 - cotangents, multiples, 0) * weights


def positive(*shape, seed=2):
    return np.random.default_rng(seed).uniform(0.1, 1, shape)


@pytest.mark.parametrize("shape", [(2,), (6,), (1, 4), (5, 4), (2, 3, 4)])
def test_errors_like_weights_are_those_of_a_softmax_correction_in_any_shape(shape):
    found = with_errors(rows_that_sum_to_zero(*shape), errors_like_weights(positive(*shape)))
    said = said_of(found)
    if shape == (2,):
        assert BY_SUMS not in said  # two entries for three cotangents are too few
    else:
        assert said.startswith(f"{BY_SUMS} {len(shape) - 1}, weights * sum(weights * d_weights), is missing or wrong")


@pytest.mark.parametrize(
    ("entries", "cotangents", "said"), [(4, 2, True), (3, 2, False), (2, 3, False), (3, 3, True), (9, 1, False)]
)
def test_it_takes_three_entries_beyond_those_that_fit_anyway(entries, cotangents, said):
    weights = np.where(np.arange(9) < entries, positive(9), 0)
    error = errors_like_weights(weights, cotangents=cotangents)
    assert said_of(with_errors(rows_that_sum_to_zero(9), error)).startswith(BY_SUMS) == said


def test_rows_without_an_error_do_not_speak_against_a_softmax_correction():
    weights = positive(5, 4) * np.array([1, 1, 0, 0, 0])[:, np.newaxis]
    assert said_of(with_errors(rows_that_sum_to_zero(5, 4), errors_like_weights(weights))).startswith(BY_SUMS)


@pytest.mark.parametrize("row", [0, 4])
def test_one_row_of_another_kind_speaks_against_a_softmax_correction(row):
    right, error = rows_that_sum_to_zero(5, 4), errors_like_weights(positive(5, 4))
    other_sum, other_error, other_sign = right.copy(), error.copy(), error.copy()
    other_sum[:, row, 1] += [0.01, -0.01, 0.0]
    other_error[1, row, 2] += 0.01
    other_sign[:, row, 3] *= -1
    for found in ((other_sum, error), (right, other_error), (right, other_sign)):
        assert BY_SUMS not in said_of(with_errors(*found))


def test_rows_without_an_error_are_no_evidence_of_a_softmax_correction():
    weights = positive(5, 2) * np.array([1, 0, 0, 0, 0])[:, np.newaxis]
    assert BY_SUMS not in said_of(with_errors(rows_that_sum_to_zero(5, 2), errors_like_weights(weights)))


def test_the_noise_of_other_cotangents_does_not_excuse_a_row_that_sums_to_something():
    right = rows_that_sum_to_zero(5, 4)
    right[0, 2, 1] += 1e-4
    assert BY_SUMS not in said_of(with_errors(right, errors_like_weights(positive(5, 4)), floor=1e-6))


def test_errors_that_are_the_same_along_each_row_are_those_of_a_mean():
    error = errors_like_weights(np.ones((5, 4)))
    assert BY_SUMS not in said_of(with_errors(rows_that_sum_to_zero(5, 4), error))


@pytest.mark.parametrize(("off", "said"), [(0.0, True), (1.5, True), (2.5, False)])
def test_weights_are_told_apart_to_within_the_noise(off, said):
    right = rows_that_sum_to_zero(5, 4)
    error = errors_like_weights(positive(5, 4))
    error[0, 2, 1] += off * 1e-5
    found = with_errors(right, error, floor=1e-6)  # what counts as an error is ten times that
    assert said_of(found).startswith(BY_SUMS) == said


def test_weights_that_are_zero_may_be_anything_within_the_noise():
    weights = positive(5, 4)
    weights[:, 2] = 0
    error = errors_like_weights(weights)
    error[:, :, 2] = 0.5e-5 * np.random.default_rng(3).choice([-1, 1], (3, 5))
    assert said_of(with_errors(rows_that_sum_to_zero(5, 4), error, floor=1e-6)).startswith(BY_SUMS)


def test_rows_of_which_some_are_not_known_tell_nothing_of_a_softmax_correction():
    right, error = rows_that_sum_to_zero(5, 4), errors_like_weights(positive(5, 4))
    found = with_errors(right, error)
    right[:, 3, 2] = np.nan
    assert BY_SUMS not in said_of(found._replace(numerical={"x": right}))
