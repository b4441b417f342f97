"""A gradient of another shape than its input."""

import numpy as np
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.words.shapes import diagnose_shape

from ..programs import normal

TERMS = normal(3, 4, 5, seed=1)
G = normal(4, 5, seed=2)
SHAPES = [
    (TERMS, TERMS.sum(axis=0), "the sum over the broadcast axis 0 is missing"),
    (TERMS, TERMS.sum(axis=(0, 2)), "the sum over the broadcast axes 0 and 2 is missing"),
    (TERMS, TERMS.sum(axis=(0, 1))[np.newaxis], "the sum over the broadcast axes 0 and 1 is missing"),
    (G.T, G, "axes 0 and 1 are transposed"),
    (G.T * (1 + 1e-8), G, "axes 0 and 1 are transposed"),
    (TERMS.transpose(1, 2, 0), TERMS, "its axes are permuted, to the order 1, 2 and 0"),
    (TERMS.swapaxes(0, 2), TERMS, "axes 0 and 2 are transposed"),
    (G.ravel(), G, "it is right but for the shape"),
    (G[np.newaxis], G, "it is right but for the shape"),
    (G[None, None], G, "it is right but for the shape"),
    (G.sum(axis=1), G, "it is summed over axis 1, which the input has"),
    (G.sum(axis=0, keepdims=True), G, "it is summed over axis 0, which the input has"),
]


@each(("gradient", "numerical", "expected"), SHAPES)
def test_a_gradient_of_another_shape_is_recognized_by_its_values(gradient, numerical, expected):
    assert diagnose_shape(gradient, np.asarray(numerical)) == expected
    assert diagnose_shape(1e-3 * gradient, 1e-3 * np.asarray(numerical)) == expected


@each(
    ("gradient", "numerical"),
    [
        (np.float16(TERMS), 1.01 * TERMS.sum(axis=0)),
        (G.T * (1 + 1e-5), G),
        (np.zeros((5, 4)), G),
        (np.zeros((5, 4)), np.zeros((4, 5))),
        (np.full((5, 4), 1.5e308), np.full((4, 5), -1.5e308)),  # which overflows, without a warning
    ],
)
def test_of_values_that_are_others_nothing_is_said(gradient, numerical):
    assert diagnose_shape(gradient, numerical) is None


def test_a_check_says_it_after_the_shapes():
    inputs = {"x": normal(5, 4, seed=1), "b": normal(4, seed=2)}
    found = check(np.add, lambda d, x, b: (d.copy(), d.copy()), inputs)
    assert found["x"].ok
    assert found["b"].diagnosis.endswith(": the sum over the broadcast axis 0 is missing")
    assert "(5, 4)" in found["b"].diagnosis
