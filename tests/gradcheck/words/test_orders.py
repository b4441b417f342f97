"""The right entries in the wrong places, word for word."""

import numpy as np
from helpers import each

from ..programs import normal
from .said import said, said_of

ORDERS = [
    ((3, 5), lambda g: g[:, ::-1, ::-1], "axes 0 and 1 are reversed"),
    (
        (2, 9),
        lambda g: np.pad(g[..., 2:], [(0, 0), (0, 0), (0, 2)]),
        "it is shifted by -2 along axis 1, with zeros from beyond the end",
    ),
    (
        (9,),
        lambda g: np.pad(g[..., :-1], [(0, 0), (1, 0)]),
        "it is shifted by 1 along axis 0, with zeros from beyond the end",
    ),
    (
        (4, 6),
        lambda g: g.reshape(-1, 4, 2, 3).swapaxes(1, 2).reshape(g.shape),
        "a reshape stands where a transpose belongs, or the other way round: as (4, 2, 3), "
        "its axes are permuted to the order 1, 0 and 2 before it is reshaped to (4, 6)",
    ),
    (
        (2, 3, 4),
        lambda g: g.transpose(0, 3, 1, 2).reshape(g.shape),
        "a reshape stands where a transpose belongs, or the other way round: as (2, 3, 4), "
        "its axes are permuted to the order 2, 0 and 1 before it is reshaped to (2, 3, 4)",
    ),
]


@each(("shape", "change", "sentence"), ORDERS)
def test_of_another_order_it_is_said(shape, change, sentence):
    assert said_of(lambda g, _: change(g), shape) == sentence


@each(
    ("change", "sentence"),
    [
        (lambda d: d.T, "axes 0 and 1 are transposed"),
        (lambda d: d[::-1], "axis 0 is reversed"),
        (lambda d: np.roll(d, 1, 1), "it is shifted by 1 along axis 1, around the end"),
    ],
)
def test_of_another_order_of_the_cotangent_it_is_said(change, sentence):
    inputs = {"x": normal(4, 4, seed=1), "w": normal(4, 4, seed=2)}
    found = said(lambda x, w: np.tanh(x @ w), lambda d, x, w: x.T @ (change(d) / np.cosh(x @ w) ** 2), inputs, "w")
    assert found == f"the gradient of the output is taken in another order: {sentence}"


def test_gradients_in_each_others_place_are_told():
    inputs = {"x": normal(3, 4, seed=1), "y": normal(3, 4, seed=2)}
    right = {"x": lambda d, x, y: d * np.cos(x) * y**2, "y": lambda d, x, y: 2 * d * np.sin(x) * y}
    swapped = lambda *a: (right["y"](*a), right["x"](*a))  # noqa: E731
    forward = lambda x, y: np.sin(x) * y**2  # noqa: E731
    for where, other in ("xy", "yx"):
        both = f"the gradients of {where} and {other} are swapped: each is the other's"
        assert said(forward, swapped, inputs, where) == both
