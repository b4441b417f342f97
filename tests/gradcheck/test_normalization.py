"""A normalisation whose backward lacks its term: when that is said, and what it is called."""

import numpy as np
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import WRONG
from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of, linear_evidence
from .programs import normal, softmax

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
        at_zero=0 * right[0],
        ask=None,
    )


def said_of(found):
    return diagnose(found) or ""


PROJECTION = "the projection term of a normalization along axis 1, y * sum(y * d_y) or its mean, is"


def rows_that_sum_to_zero(*shape, seed=0):
    right = np.random.default_rng(seed).standard_normal((3, *shape))
    return right - right.mean(axis=-1, keepdims=True)


def errors_like_weights(weights, seed=1, cotangents=3):
    multiples = np.random.default_rng(seed).standard_normal((3, *weights.shape[:-1], 1))
    return np.where(np.arange(3).reshape(3, *[1] * weights.ndim) >= 3 - cotangents, multiples, 0) * weights


def positive(*shape, seed=2):
    return np.random.default_rng(seed).uniform(0.1, 1, shape)


FIRST_ROWS = np.arange(5)[:, np.newaxis]


@each(
    ("weights", "cotangents", "said"),
    [
        *((positive(9) * (np.arange(9) < n), count, n * count > 7) for n, count in ((4, 2), (3, 2), (2, 3), (3, 3))),
        (positive(9), 1, False),
        (positive(2), 3, False),  # two entries for three cotangents are too few
        *((positive(*shape), 3, True) for shape in ((6,), (1, 4), (5, 4), (2, 3, 4))),
        (positive(5, 4) * (FIRST_ROWS < 2), 3, True),  # rows without an error do not speak against it
        (positive(5, 2) * (FIRST_ROWS < 1), 3, False),  # nor are they evidence
        (np.ones((5, 4)), 3, False),  # as of a mean
    ],
)
def test_it_takes_three_entries_beyond_those_that_fit_anyway_in_any_shape(weights, cotangents, said):
    error = errors_like_weights(weights, cotangents=cotangents)
    found = said_of(with_errors(rows_that_sum_to_zero(*weights.shape), error))
    assert found.startswith(f"{BY_SUMS} {weights.ndim - 1}, or a term like it, is missing or wrong") == said
    assert (BY_SUMS in found) == said


@each("row", [0, 4])
def test_one_row_of_another_kind_speaks_against_a_softmax_correction(row):
    right, error = rows_that_sum_to_zero(5, 4), errors_like_weights(positive(5, 4))
    other_sum, other_error, other_sign = right.copy(), error.copy(), error.copy()
    other_sum[:, row, 1] += [0.01, -0.01, 0.0]
    other_error[1, row, 2] += 0.01
    other_sign[:, row, 3] *= -1
    for found in ((other_sum, error), (right, other_error), (right, other_sign)):
        assert BY_SUMS not in said_of(with_errors(*found))


def test_the_noise_of_other_cotangents_does_not_excuse_a_row_that_sums_to_something():
    right = rows_that_sum_to_zero(5, 4)
    right[0, 2, 1] += 1e-4
    assert BY_SUMS not in said_of(with_errors(right, errors_like_weights(positive(5, 4)), floor=1e-6))


@each(("off", "said"), [(0.0, True), (1.5, True), (2.5, False), (None, True)])
def test_weights_are_told_apart_to_within_the_noise(off, said):
    weights, right = positive(5, 4), rows_that_sum_to_zero(5, 4)
    if off is None:  # where they are zero, they may be anything within it
        weights[:, 2] = 0
    error = errors_like_weights(weights)
    if off is None:
        error[:, :, 2] = 0.5e-5 * np.random.default_rng(3).choice([-1, 1], (3, 5))
    else:
        error[0, 2, 1] += off * 1e-5
    found = with_errors(right, error, floor=1e-6)  # what counts as an error is ten times that
    assert said_of(found).startswith(BY_SUMS) == said


def test_rows_of_which_some_are_not_known_tell_nothing_of_a_softmax_correction():
    right, error = rows_that_sum_to_zero(5, 4), errors_like_weights(positive(5, 4))
    found = with_errors(right, error)
    right[:, 3, 2] = np.nan
    assert BY_SUMS not in said_of(found._replace(numerical={"x": right}))


def heads_of_scores(scores, value, w):
    return np.concatenate(list(softmax(scores) @ value), axis=-1) @ w


def heads_of_scores_backward(correction):
    def backward(d, scores, value, w):
        heads = (d @ w.T).reshape(len(d), len(scores), -1).swapaxes(0, 1)
        weights = softmax(scores)
        d_weights = heads @ np.swapaxes(value, -1, -2)
        return weights * (d_weights - correction * (weights * d_weights).sum(axis=-1, keepdims=True)), None, None

    return backward


SCORES = {"scores": normal(3, 4, 5, seed=1), "value": normal(3, 5, 4, seed=2), "w": normal(12, 6, seed=3)}


@each("correction", [0, 2, -1])
def test_the_softmax_correction_is_missed_behind_a_projection_of_heads(correction):
    """Where the rows of the output are not those that the correction is about."""
    backward = heads_of_scores_backward(correction)
    found = evidence_of(heads_of_scores, lambda *a: [backward(*a)[0], 0 * a[2], 0 * a[3]], SCORES, "scores")
    assert not np.allclose(found.analytic["scores"][2], found.numerical["scores"][2])
    assert diagnose(found).startswith("the softmax correction along axis 2")


def test_the_softmax_may_be_along_another_axis():
    def forward(x):
        return softmax(x.T).T

    found = evidence_of(forward, lambda d, x: (d * forward(x),), {"x": normal(5, 3, seed=1)}, "x")
    assert diagnose(found).startswith("the softmax correction along axis 0")


@each(
    ("factor", "said"), [(lambda _: np.e, "it is 2.71828183 times the numerical gradient throughout"), (np.sinh, None)]
)
def test_what_is_wrong_where_orthogonal_rows_give_zero_anyway_is_called_by_its_factor_or_has_no_simple_cause(
    factor, said
):
    inputs = {"x": normal(4, 5, seed=1), "scale": normal(4, 1, seed=2)}

    def backward(d, x, scale):
        return d * scale * np.cos(x), factor(scale) * (d * np.sin(x)).sum(axis=-1, keepdims=True)

    found = evidence_of(lambda x, scale: np.sin(x) * scale, backward, inputs, "scale")
    assert diagnose(found) == said


ROWS = normal(5, 6, seed=1)


@each("bias", [0.0, normal(5, 6, seed=9)])
def test_a_mean_for_a_weighted_mean_is_a_wrong_softmax_correction_whatever_the_scores(bias):
    def forward(x):
        return softmax(x + bias)

    def backward(d, x):
        return (forward(x) * (d - d.mean(axis=-1, keepdims=True)),)

    even = np.where(np.arange(5)[:, np.newaxis] == 2, 0.3, ROWS)  # all weights of a row the same, as of a mean
    for x in (ROWS, even):
        assert diagnose(evidence_of(forward, backward, {"x": x}, "x")).startswith(f"{BY_SUMS} 1, ")


def orthogonal_to(x):
    right = np.random.default_rng(5).standard_normal((3, *x.shape))
    return right - (right * x).sum(axis=-1, keepdims=True) / (x * x).sum(axis=-1, keepdims=True) * x


def said_of_directions(right, error, x):
    return diagnose(with_errors(right, error)._replace(inputs={"x": x}))


def test_errors_along_rows_that_the_right_gradient_is_orthogonal_to_are_those_of_a_projection():
    along, right = errors_like_weights(ROWS), orthogonal_to(ROWS)
    said = f"{PROJECTION} missing or wrong: whatever the cotangent, the errors along it are a multiple of x"
    assert said_of_directions(right, along, ROWS) == said
    assert said_of_directions(right, errors_like_weights(normal(5, 6, seed=8)), ROWS) is None
    assert said_of_directions(np.random.default_rng(5).standard_normal((3, 5, 6)), along, ROWS) is None


def test_rows_whose_products_cancel_each_other_are_not_orthogonal():
    x = np.stack([ROWS[0], ROWS[0]])
    right = np.random.default_rng(5).standard_normal((3, 1, 6)) * np.array([[1.0], [-1.0]])
    assert said_of_directions(right, errors_like_weights(x), x) is None


def normalized(x, split, axes):
    """Along some axes of an array that is reshaped, as for groups, and back."""
    parts = x.reshape(split)
    centered = parts - parts.mean(axis=axes, keepdims=True)
    return (centered / np.sqrt((centered**2).mean(axis=axes, keepdims=True) + 1e-5)).reshape(x.shape)


def back_through_normalized(d, x, split, axes, mean=1.0, projection=1.0):
    y, parts, given = (z.reshape(split) for z in (normalized(x, split, axes), x, d))
    rest = given - mean * given.mean(axis=axes, keepdims=True)
    rest = rest - projection * y * (given * y).mean(axis=axes, keepdims=True)
    return (rest / np.sqrt(parts.var(axis=axes, keepdims=True) + 1e-5)).reshape(x.shape)


@each(
    ("wrong", "said"),
    [
        ({"mean": 0}, "a mean along {}, to be taken off, is missing or wrong"),
        ({"projection": 0}, "the projection term of a normalization along {}, "),
        ({"projection": 12 / 11}, "the projection term of a normalization along {}, "),
    ],
)
@each(
    ("split", "axes", "where"),
    [
        ((3, 2, 4), (0, 2), "axes 0 and 2"),  # of images
        ((2, 3, 2, 3), (2, 3), "axes 1 (in 3 groups) and 2"),  # of channels in groups
        ((3, 2, 4), (2,), "axis 1 (in 2 groups)"),  # of heads
    ],
)
def test_a_row_of_what_is_normalized_may_have_several_axes_or_a_group_of_indices(split, axes, where, wrong, said):
    shape = split if where == "axes 0 and 2" else (split[0], split[1] * split[2], *split[3:])
    x = {"x": normal(*shape, seed=1)}
    kind = {"split": split, "axes": axes}
    assert check(lambda x: normalized(x, **kind), lambda d, x: back_through_normalized(d, x, **kind), x).ok
    found = check(lambda x: normalized(x, **kind), lambda d, x: back_through_normalized(d, x, **kind, **wrong), x)["x"]
    assert str(found.diagnosis).startswith(said.format(where))


@each("axes", [(0,), (1, 2), (0, 1, 2)])
def test_the_rows_are_named_along_which_the_output_matters(axes):
    """The errors are multiples of x w^2, which is none of the vectors that are known."""
    inputs = {"x": normal(3, 2, 4, seed=1), "w": normal(3, 2, 4, seed=2)}

    def forward(x, w):
        return x * w / np.sqrt((x * w * x * w).sum(axis=axes, keepdims=True))

    def backward(d, x, w):
        size = np.sqrt((x * w * x * w).sum(axis=axes, keepdims=True))
        return d * w / size, None

    found = check(forward, backward, inputs)["x"]
    named = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes[:-1]))} and {axes[-1]}"
    assert f"it is right for a cotangent that is orthogonal to the output along {named}" in found.diagnosis
