"""A normalization whose backward lacks its term: when that is said, and what it is called."""

import numpy as np
from helpers import each

from ..programs import normal, softmax
from .said import said, said_of_numbers

SOFTMAX = "the softmax correction along axis {}, weights * sum(weights * d_weights), is missing or wrong"
PROJECTION = "the projection term of a normalization along {}, y * sum(y * d_y) or its mean, is missing or wrong"
MEAN = "a mean along {}, to be taken off, is missing or wrong"
STATISTICS = "the terms of the mean and of the variance of a normalization along {} are missing or wrong"
ALONG = ": whatever the cotangent, the errors along {} are {}"
ORTHOGONAL = (
    "a term with sum(output * d_output), such as the softmax correction sum_j A_ij dA_ij, is missing or wrong: it is "
    "right for a cotangent that is orthogonal to the output along {}"
)


def weights_backward(d_weights, weights, correction):
    return weights * (d_weights - correction * (weights * d_weights).sum(axis=-1, keepdims=True))


@each("correction", [0, 2, -1])
def test_a_softmax_without_its_correction_is_known_by_its_weights_where_they_are_the_output(correction):
    found = said(softmax, lambda d, x: weights_backward(d, softmax(x), correction), {"x": normal(5, 4, seed=1)})
    assert found == SOFTMAX.format(1) + ALONG.format("it", "a multiple of the weights")


@each("correction", [0, 2])
def test_behind_something_else_it_is_known_by_the_cotangents_for_which_it_is_right(correction):
    def forward(x, v):
        return softmax(x) @ v

    found = said(
        forward,
        lambda d, x, v: weights_backward(d @ v.T, softmax(x), correction),
        {"x": normal(5, 4, seed=1), "v": normal(4, 3, seed=2)},
    )
    assert found == ORTHOGONAL.format("axis 1")


def normalized(x, axes):
    centered = x - x.mean(axis=axes, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=axes, keepdims=True) + 1e-5)


def back_through_normalized(d, x, axes, mean=1.0, projection=1.0):
    y = normalized(x, axes)
    rest = d - mean * d.mean(axis=axes, keepdims=True) - projection * y * (d * y).mean(axis=axes, keepdims=True)
    return rest / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)


@each(
    ("wrong", "which", "errors"),
    [
        ({"mean": 0}, MEAN, "equal"),
        ({"projection": 0}, PROJECTION, "a multiple of x less its mean"),
        ({"projection": 12 / 11}, PROJECTION, "a multiple of x less its mean"),
        ({"mean": 0, "projection": 0}, STATISTICS, "a number plus a multiple of x less its mean"),
    ],
)
@each(
    ("shape", "axes", "where", "it"),
    [
        ((4, 6), (1,), "axis 1", "it"),
        ((3, 2, 4), (0, 2), "axes 0 and 2", "them"),  # of images
    ],
)
def test_of_a_normalization_it_is_said_which_term_is_wrong_along_which_axes(
    shape, axes, where, it, wrong, which, errors
):
    inputs = {"x": normal(*shape, seed=1)}
    found = said(lambda x: normalized(x, axes), lambda d, x: back_through_normalized(d, x, axes, **wrong), inputs)
    assert found == which.format(where) + ALONG.format(it, errors)


ROWS = normal(5, 4, seed=1)
SUMS = normal(3, 5, 4, seed=2) - normal(3, 5, 4, seed=2).mean(axis=-1, keepdims=True)  # right rows, which sum to zero
MULTIPLES, SHORT = normal(3, 5, 1, seed=3), normal(3, 1, 3)


def with_entry(x, index, change):
    x = x.copy()
    x[index] += change
    return x


@each(
    ("right", "error", "is_said"),
    [
        (SUMS, MULTIPLES * np.ones(4), True),
        (SUMS, with_entry(MULTIPLES * np.ones(4), (1, 0, 2), 0.01), False),  # one row of another kind
        (with_entry(SUMS, (0, 4, 1), 0.01), MULTIPLES * np.ones(4), False),
        (normal(3, 5, 4), MULTIPLES * np.ones(4), False),
        (SUMS, MULTIPLES * np.ones(4) * (np.arange(5)[:, None] < 2), True),  # rows without an error
        (SUMS, MULTIPLES * np.ones(4) * (np.arange(3)[:, None, None] < 1), True),
        (
            SUMS[:, :1],
            MULTIPLES[:, :1] * np.ones(4) * (np.arange(3)[:, None, None] < 1),
            True,
        ),  # three beyond the first
        (SHORT - SHORT.mean(-1, keepdims=True), np.ones((1, 3)) * np.eye(3)[0, :, None, None], False),  # two beyond
        (np.where(np.arange(4) == 2, np.nan, SUMS), MULTIPLES * np.ones(4), False),  # some entries are not known
    ],
)
def test_it_takes_three_entries_beyond_those_that_fit_anyway_in_rows_that_all_fit(right, error, is_said):
    found = said_of_numbers(right, right + error, 1e-12, output=normal(7))
    assert (found is not None and found.startswith(MEAN.format("axis 1"))) == is_said
