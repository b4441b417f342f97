"""A gradient of another shape than its input."""

import numpy as np
from helpers import each

from attention_np.gradcheck.diagnosis import diagnose_shape

from .programs import normal

TERMS = normal(3, 4, 5, seed=1)
G = normal(4, 5, seed=2)


@each(
    ("gradient", "numerical", "expected"),
    [
        (TERMS, TERMS.sum(axis=0), "the sum over the broadcast axis 0 is missing"),
        (TERMS, TERMS.sum(axis=(0, 2)), "the sum over the broadcast axes 0 and 2 is missing"),
        (TERMS, TERMS.sum(axis=1, keepdims=True), "the sum over the broadcast axis 1 is missing"),
        (TERMS, TERMS.sum(axis=(0, 1))[np.newaxis], "the sum over the broadcast axes 0 and 1 is missing"),
        (TERMS, TERMS.sum(), "the sum over the broadcast axes 0, 1 and 2 is missing"),
        (
            TERMS / 3,
            TERMS.sum(axis=0),
            "the sum over the broadcast axis 0 is missing, and the terms are those of a mean",
        ),
        (np.broadcast_to(G, (3, 4, 5)), G, "the sum over the broadcast axis 0 is repeated along it"),
        (G.T, G, "axes 0 and 1 are transposed"),
        (TERMS.transpose(1, 2, 0), TERMS, "its axes are permuted, to the order 1, 2 and 0"),
        (TERMS.swapaxes(0, 2), TERMS, "axes 0 and 2 are transposed"),
        (G.ravel(), G, "it is right, but flattened"),
        (G.T.ravel(), G, "axes 0 and 1 are transposed, and it is flattened"),
        (G.reshape(2, 10), G, "it is right, but reshaped to (2, 10)"),
        (G[np.newaxis], G, "it is right, but has an extra axis of length 1: (1, 4, 5) in the place of (4, 5)"),
        (G[:1], G[0], "it is right, but has an extra axis of length 1: (1, 5) in the place of (5,)"),
        (G[0], G[:1], "it is right, but lacks an axis of length 1: (5,) in the place of (1, 5)"),
        (
            G[np.newaxis, np.newaxis],
            G,
            "it is right, but has other axes of length 1: (1, 1, 4, 5) in the place of (4, 5)",
        ),
        (TERMS[:, :2], TERMS[:, :2].sum(axis=0), "the sum over the broadcast axis 0 is missing"),
        (np.full((3, 4), 0.7), np.array(0.7), "the sum over the broadcast axes 0 and 1 is repeated along it"),
        (TERMS[0], TERMS, "it is only index 0 of axis 0"),
        (np.float16(TERMS), 1.01 * TERMS.sum(axis=0), None),
        (G.sum(axis=1), G, "it is summed over axis 1, which the input has"),
        (G.sum(axis=0, keepdims=True), G, "it is summed over axis 0, which the input has"),
        (G.mean(), G, "it is averaged over axes 0 and 1, which the input has"),
        (G[0], G, "it is only index 0 of axis 0"),
        (G[:1], G, "it is only index 0 of axis 0"),
        (G[:2], G, "it is right, but only of shape (2, 5): the rest is missing"),
        (np.pad(G, ((0, 2), (0, 0))), G, "it is right, but continued to the shape (6, 5)"),
        (np.float32(G.T), G, "axes 0 and 1 are transposed"),
        (G.T * (1 + 1e-8), G, "axes 0 and 1 are transposed"),
        (G.T * (1 + 1e-5), G, None),
        (1e-3 * G.T * (1 + 1e-5), 1e-3 * G, None),
        (np.zeros((5, 4)), G, None),
        (np.zeros((5, 4)), np.zeros((4, 5)), None),
        (np.full((5, 4), np.nan), G, None),
        (np.zeros((0, 4)), G, None),
        (np.ones((5, 4), int), np.ones((4, 5)), None),
        (normal(5, 4, seed=3), G, None),
        (normal(3, 4, 5, seed=3), G, None),
    ],
)
def test_a_gradient_of_another_shape_is_recognized_by_its_values(gradient, numerical, expected):
    assert diagnose_shape(gradient, np.asarray(numerical)) == expected


def test_a_sample_of_the_entries_tells_what_another_shape_is():
    numerical = np.where(np.random.default_rng(0).random(G.shape) < 0.5, np.nan, G)
    assert diagnose_shape(G.T, numerical) == "axes 0 and 1 are transposed"
    assert (
        diagnose_shape(np.stack([G - 1, np.ones((4, 5))]), numerical) == "the sum over the broadcast axis 0 is missing"
    )


def test_more_than_six_axes_are_not_tried_in_every_order():
    gradient = normal(*(2,) * 5, 3, seed=1)
    assert diagnose_shape(gradient, gradient.swapaxes(0, 5)) == "axes 0 and 5 are transposed"
    gradient = normal(*(2,) * 6, 3, seed=1)
    assert diagnose_shape(gradient, gradient.swapaxes(0, 6)) is None


def test_values_of_another_shape_that_overflow_when_they_are_compared_raise_no_warning():
    assert diagnose_shape(np.full((5, 4), 1.5e308), np.full((4, 5), -1.5e308)) is None


@each(("known", "expected"), [(2, "axes 0 and 1 are transposed"), (1, None)])
def test_two_entries_tell_what_another_shape_is_and_one_may_be_so_by_accident(known, expected):
    numerical = np.where(np.arange(20).reshape(4, 5) % 13 < 1, G, np.nan)
    assert np.isfinite(numerical).sum() == 2
    numerical[0, 0] = numerical[0, 0] if known == 2 else np.nan
    assert diagnose_shape(G.T, numerical) == expected
