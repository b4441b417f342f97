"""The right entries in the wrong places, word for word."""

import math
import re

import numpy as np
from helpers import each
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis import diagnose

from .evidence import linear_evidence, matrices, noises, said_of, seeds
from .programs import normal


def exchanged_in_pairs(length):
    return [k ^ 1 if k | 1 < length else k for k in range(length)]


ORDERS = [
    ((4, 4, 4), lambda g: g.transpose(0, 3, 1, 2), "its axes are permuted, to the order 2, 0 and 1"),
    ((3, 4, 3), lambda g: g.transpose(0, 3, 2, 1), "axes 0 and 2 are transposed"),
    ((3, 5), lambda g: g[:, ::-1, ::-1], "axes 0 and 1 are reversed"),
    ((2, 8), lambda g: np.roll(g, -3, 2), "it is shifted by -3 along axis 1, around the end"),
    ((2, 9), lambda g: np.roll(g, 4, 2), "it is shifted by 4 along axis 1, around the end"),
    ((2, 9), lambda g: np.roll(g, -4, 2), "it is shifted by -4 along axis 1, around the end"),
    ((5, 3), lambda g: g[:, [2, 0, 1, 4, 3]], "the slices along axis 0 are in another order: 2, 0, 1, 4, 3"),
    (
        (12, 3),
        lambda g: g[:, exchanged_in_pairs(12)],
        "the slices along axis 0 are in another order: 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10",
    ),
    ((13, 3), lambda g: g[:, exchanged_in_pairs(13)], "the slices along axis 0 are in another order"),
    ((8, 3), lambda g: g[:, [4, 5, 2, 3, 0, 1, 6, 7]], "the blocks of 2 along axis 0 are in another order: 2, 1, 0, 3"),
    ((2, 4), lambda g: g[:, :, [0, 3, 2, 1]], "indices 1 and 3 of axis 1 are exchanged"),
    ((2, 5), lambda g: g[:, ::-1], "axis 0 is reversed"),
    ((1500,), lambda g: np.roll(g, 300, 1), "it is shifted by 300 along axis 0, around the end"),
    ((2,) * 6, lambda g: g.swapaxes(1, 6), "axes 0 and 5 are transposed"),
    (
        (12, 3),
        lambda g: g.reshape(-1, 3, 4, 3).swapaxes(1, 2).reshape(g.shape),
        "the slices along axis 0 are in another order: 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11",
    ),
    (
        (14, 3),
        lambda g: g.reshape(-1, 2, 7, 3).swapaxes(1, 2).reshape(g.shape),
        "a reshape stands where a transpose belongs, or the other way round: as (2, 7, 3), "
        "its axes are permuted to the order 1, 0 and 2 before it is reshaped to (14, 3)",
    ),
    (
        (2, 3, 4),
        lambda g: g.transpose(0, 3, 1, 2).reshape(g.shape),
        "it is transposed to (4, 2, 3) and then reshaped to (2, 3, 4): a reshape stands where a transpose belongs",
    ),
]


@each(("shape", "change", "sentence"), ORDERS)
def test_of_another_order_it_is_said(shape, change, sentence):
    assert said_of(lambda g, _: change(g), shape) == sentence


@each(("kept", "said"), [(slice(1, None), "at index 0 of axis 1"), (slice(5), "at index 5 of axis 1")])
def test_entries_that_are_equal_anyway_are_not_shifted(kept, said):
    def backward(d, x):
        gradient = np.zeros_like(x)
        gradient[:, kept] = d[:, None]
        return gradient

    found = check(lambda x: x.sum(axis=1), backward, {"x": normal(4, 6, seed=1)})["x"]
    assert found.diagnosis == f"wrong only {said}, where it is zero"


def test_axes_in_another_order_are_looked_for_up_to_six():
    assert "transposed" not in str(said_of(lambda g, _: g.swapaxes(1, 7), (2,) * 7))


def test_of_equal_slices_each_is_taken_to_be_where_it_was():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 4, 3))
    right[:, 1] = right[:, 0]
    wrong = right[:, [3, 1, 2, 0]]
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (4, 3), (7,), rng)
    assert diagnose(found) == "indices 0 and 3 of axis 0 are exchanged"


def test_an_order_that_is_too_long_to_list_is_called_another():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((6, 31))
    found = linear_evidence(right, right[:, rng.permutation(31)], (31,), (6,), rng)
    assert diagnose(found) == "the slices along axis 0 are in another order"


@given(matrices, matrices, seeds, noises, st.data())
def test_another_order_is_found_in_any_shape(shape, output_shape, seed, noise, data):
    rng = np.random.default_rng(seed)
    places = np.arange(math.prod(shape)).reshape(shape)
    axis = data.draw(st.sampled_from(range(len(shape))))
    square = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j]]
    orders = {
        f"axis {axis} is reversed": np.flip(places, axis),
        f"it is shifted by 1 along axis {axis}": np.roll(places, 1, axis),
        f"along axis {axis} are in another order|of axis {axis} are exchanged": np.take(
            places, rng.permutation(shape[axis]), axis
        ),
    }
    if square:
        i, j = data.draw(st.sampled_from(square))
        orders[f"axes {j} and {i} are transposed"] = np.swapaxes(places, i, j)
    expected = data.draw(st.sampled_from(sorted(orders)))
    order = orders[expected].ravel()
    if (order == places.ravel()).all():
        return
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    sentence = diagnose(linear_evidence(right, right[:, order], shape, output_shape, rng, noise))
    others = [what for what, other in orders.items() if (other.ravel() == order).all()]
    if "another order" in expected or shape[axis] <= 3:  # then one may come to the same as another
        others.append("is reversed|shifted by|are exchanged|another order|transposed")
    assert re.search("|".join(others), sentence), sentence


@each(("pairs", "enough"), [(2, False), (6, True)])
def test_an_order_that_a_sample_hardly_shows_is_not_claimed(pairs, enough):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 36))
    found = linear_evidence(right, right.reshape(7, 6, 6).swapaxes(1, 2).reshape(7, 36), (6, 6), (7,), rng)
    below = np.flatnonzero(np.tri(6, k=-1))[:pairs]
    seen = np.tri(6, dtype=bool).T
    seen.flat[below] = True
    numerical = np.where(seen, found.numerical["x"], np.nan)
    sentence = diagnose(found._replace(numerical={"x": numerical}))
    assert (sentence == "axes 0 and 1 are transposed") == enough


def of_factor(d, x):
    """The gradient of Cholesky's factor, of moves that keep the matrix symmetric."""
    factor = np.linalg.cholesky(x)
    inverse, inner = np.linalg.inv(factor), np.tril(factor.T @ d) - np.diag(np.diag(factor.T @ d)) / 2
    of_x = inverse.T @ inner @ inverse
    return (of_x + of_x.T) / 2


PAIRS = "entries [i, j] and [j, i] of the last two axes are right together, and not each"


def test_a_transposed_gradient_of_few_entries_is_not_excused_by_symmetry():
    def best_path(t):
        return np.max([t[1, 0] + t[2, 1], t[0, 1] + t[1, 2] - 9]) ** 2

    def backward(d, t):
        there = np.zeros((3, 3))
        there[[1, 2], [0, 1]] = 2 * d * (t[1, 0] + t[2, 1])
        return there.T

    found = check(best_path, backward, {"t": np.abs(normal(3, 3))})["t"]
    assert "right together" not in found.diagnosis


def test_what_forward_does_not_see_of_a_matrix_excuses_nothing():
    x, v = normal(4, 4), normal(4, seed=1)

    def backward(d, x):  # a square is missing
        d_s = np.outer(d * (1 - np.tanh((x - x.T) @ v)), v)
        return d_s - d_s.T

    found = check(lambda x: np.tanh((x - x.T) @ v), backward, {"x": x})["x"]
    assert found.diagnosis.endswith("a factor 1 + output is missing")


@each(
    ("forward", "backward", "said"),
    [
        (np.linalg.cholesky, of_factor, f"{PAIRS}: forward reads the lower triangle alone"),
        (
            lambda x: np.linalg.cholesky(x.T),
            lambda d, x: of_factor(d, x.T),
            f"{PAIRS}: forward reads the upper triangle alone",
        ),
        (np.sin, lambda d, x: (d * np.cos(x) + (d * np.cos(x)).T) / 2, f"{PAIRS}. It is right if"),
        (np.sin, lambda d, x: d * np.cos(x) + (d * np.cos(x)).T, "the diagonal"),  # which counts twice
        (
            np.sin,
            lambda d, x: np.triu(d * np.cos(x)),
            "wrong only below the diagonal of the last two axes, where it is",
        ),
        (np.sin, lambda d, x: (d * np.cos(x)).T, "axes 0 and 1 are transposed"),
    ],
)
def test_of_entries_that_are_right_in_pairs_it_is_said_and_of_no_others(forward, backward, said):
    x = normal(4, 4)
    found = str(check(forward, backward, {"x": x @ x.T + 4 * np.eye(4)})["x"].diagnosis)
    assert found.startswith(said) if said != "the diagonal" else PAIRS not in found
