"""Errors that are multiples of one vector in each row: of which normalization it is said that its term is missing."""

import numpy as np
import pytest

from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of
from .programs import normal, softmax
from .test_normalization import errors_like_weights, positive, with_errors

SOFTMAX = (
    "the softmax correction along axis 1, the weights times one sum a row, is missing or wrong: the errors of each "
    "row are a multiple of the weights whatever the cotangent, and the right rows sum to zero"
)
SOME_VECTOR = (
    "a term along axis 1 is missing or wrong: the errors of each row are a multiple of one positive vector whatever "
    "the cotangent, as those of a softmax without its correction are, and the right rows sum to zero"
)
PROJECTION = (
    "the projection term of a normalization along axis 1, y * mean(y * d_y), is missing or wrong: the errors of each "
    "row are a multiple of x whatever the cotangent, and the right rows are orthogonal to it"
)
ROWS = normal(5, 6, seed=1)
EVEN = np.where(np.arange(5)[:, np.newaxis] == 2, 0.3, ROWS)


@pytest.mark.parametrize(
    ("x", "bias"),
    [
        (ROWS, 0.0),
        (ROWS, normal(5, 6, seed=9)),  # so that the output alone tells the weights
        (EVEN, 0.0),  # of one row all weights are the same, as a mean that was not taken off would be
    ],
)
def test_a_mean_for_a_weighted_mean_is_told_by_the_weights(x, bias):
    def forward(x):
        return softmax(x + bias)

    def backward(d, x):
        return (forward(x) * (d - d.mean(axis=-1, keepdims=True)),)

    assert diagnose(evidence_of(forward, backward, {"x": x}, "x")) == SOFTMAX


@pytest.mark.parametrize(
    "output", [lambda x: softmax(x + normal(5, 6, seed=9)), lambda x: x - x.mean(axis=-1)[:, None]]
)
def test_of_vectors_that_are_not_the_weights_only_what_is_known_is_said(output):
    wrong = np.arange(6)

    def backward(d, x):
        y = output(x)
        right = y * (d - (y * d).sum(axis=-1, keepdims=True)) if (y > 0).all() else d - d.mean(axis=-1, keepdims=True)
        return (right + (d @ wrong)[:, np.newaxis] * positive(5, 6),)

    assert diagnose(evidence_of(output, backward, {"x": ROWS}, "x")) == SOME_VECTOR


def orthogonal_to(x):
    right = np.random.default_rng(5).standard_normal((3, *x.shape))
    return right - (right * x).sum(axis=-1, keepdims=True) / (x * x).sum(axis=-1, keepdims=True) * x


def said_of(right, error, x):
    return diagnose(with_errors(right, error)._replace(inputs={"x": x}))


def test_errors_along_rows_that_the_right_gradient_is_orthogonal_to_are_those_of_a_projection():
    along, right = errors_like_weights(ROWS), orthogonal_to(ROWS)
    assert said_of(right, along, ROWS) == PROJECTION
    assert said_of(right, errors_like_weights(normal(5, 6, seed=8)), ROWS) is None
    assert said_of(np.random.default_rng(5).standard_normal((3, 5, 6)), along, ROWS) is None


def test_rows_whose_products_cancel_each_other_are_not_orthogonal():
    x = np.stack([ROWS[0], ROWS[0]])
    right = np.random.default_rng(5).standard_normal((3, 1, 6)) * np.array([[1.0], [-1.0]])
    assert said_of(right, errors_like_weights(x), x) is None
