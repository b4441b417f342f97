"""A function whose input moves: what it is called with, and what steps are relative to."""

import math

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.slopes import moves
from attention_np.gradcheck.slopes.moves import batched, sizes

from ..programs import Watched, normal, sine_in_single
from ..subjects import subject_of, watched_subject_of


@each("shape", [(), (1,), (2, 3), (0,)])
@each(("in_batches", "rows", "calls"), [(False, 9, [1] * 5), (True, 9, [5]), (True, 5, [5]), (True, 2, [2, 2, 1])])
def test_outputs_are_rows_one_for_each_move_and_no_more_go_through_at_once_than_may(
    monkeypatch, shape, in_batches, rows, calls
):
    monkeypatch.setattr(moves, "AT_ONCE", rows * max(1, 2 * math.prod(shape)))
    x, moved = np.ones(shape), np.random.default_rng(0).standard_normal((5, *shape))
    subject, seen = watched_subject_of(lambda x: 2.0 * x, x, batched=in_batches)
    np.testing.assert_array_equal(subject.outputs(moved), 2 * moved.reshape(5, x.size))
    assert [x.shape for (x,) in seen] == [(k, *shape) if in_batches else shape for k in calls]


@each(
    ("x", "expected"),
    [
        (np.zeros(3), [1, 1, 1]),
        ([0.0, -3.0, 5.0], [4, 4, 4]),  # as typical: 4, the median of 3 and 5
        ([1e-12, 1.0, 1.5, 100.0], [1, 1, 1, 64]),
        ([np.nan, np.inf, -np.inf, 8.0], [8, 8, 8, 8]),
        (np.zeros((0, 2)), np.zeros((0, 2))),
    ],
)
def test_a_size_is_a_power_of_two_and_never_that_of_a_zero_or_of_what_is_not_finite(x, expected):
    np.testing.assert_array_equal(sizes(np.asarray(x)), expected)


@each("in_batches", [False, True])
def test_as_many_moves_go_through_at_once_as_their_arrays_are_small(in_batches):
    for size, rows in ((1, 256 if in_batches else 16), (2**13, 4), (2**20, 1)):
        assert subject_of(np.sin, np.ones(size), batched=in_batches).rows == rows


LEADING = {
    "an entrywise function": (np.sin, (normal(2, 3),), 0),
    "a product from the right": (np.matmul, (normal(2, 3), normal(3, 4)), 1),
    "a bias of fewer axes": (np.add, (normal(2, 4, 3), normal(3, seed=1)), 1),
    "an input that is not used": (lambda x, _: x * 2, (normal(2, 3), normal(4)), 1),
    "an output that is infinite and NaN here and there": (lambda x: x / [0.0, 1.0, np.nan], (normal(2, 3),), 0),
    "an input without entries": (np.sin, (np.zeros((2, 0)),), 0),
    "a sum in another order": (lambda x: x[..., :: (-1) ** x.ndim].sum(axis=-1), (normal(2, 500),), 0),
    "a function of single precision only": (sine_in_single, (normal(3, dtype=np.float32),), 0),
    "a domain that ends nearby": (lambda x: np.log(x - 0.89), (np.ones(3),), 0),
}


def test_an_input_that_takes_one_more_axis_only_together_with_others_is_given_it_with_them():
    def forward(scores, bias):
        if bias.ndim > scores.ndim:
            raise ValueError("the bias has more axes than the scores")
        return np.exp(scores) * np.sin(bias)

    def backward(d, scores, bias):
        return d * np.exp(scores) * np.sin(bias), d * np.exp(scores) * np.cos(bias)

    inputs, counted = {"scores": normal(2, 3), "bias": normal(2, 3, seed=1)}, Watched(forward)
    assert check(counted, backward, inputs, vectorized=["scores", "bias"]).ok
    assert {(x.shape, y.shape) for x, y in counted.seen} >= {((6, 2, 3), (6, 2, 3)), ((6, 2, 3), (2, 3))}
    with pytest.raises(ValueError, match=r"^vectorized names bias, but forward does not take one more .* \(bias.shape"):
        check(forward, backward, inputs, vectorized="bias")


@each("unit", [1e-20, 1.0, 1e20])
@each(
    ("forward", "same"),
    [
        (lambda x: x + 1e-14 * (x.ndim - 2) * x, True),
        (lambda x: x - 1e-6 * x.mean(), False),
        (lambda x: x - x.mean(axis=0), False),
        (lambda x: x.reshape(3, 4) * 2, False),
        (lambda x: x.T * x.T, False),
    ],
)
def test_a_function_that_computes_something_else_in_a_batch_gets_none_in_any_units(forward, unit, same):
    found = batched(subject_of(lambda x: unit * forward(x), normal(3, 4) + 4), ())
    assert (found is not None) == same


@each("leading", [(), (4,)])
@each("position", [0, 1, 2])
def test_an_input_without_an_axis_for_heads_moves_in_batches(leading, position):
    def forward(x, y, z):
        """(..., h, n), (..., m) and (n, m), which must not have more axes than the products, to (..., h, n, m)."""
        products = x[..., None] * y[..., None, None, :]
        if z.ndim > products.ndim:
            raise ValueError("z has more axes than the products")
        return products + z

    subject = subject_of(forward, normal(*leading, 2, 3), normal(*leading, 5), normal(3, 5), position=position)
    in_batches = batched(subject, tuple(k for k in range(3) if k != position))
    moved = subject.x + np.arange(3).reshape(3, *(1,) * subject.x.ndim)
    np.testing.assert_array_equal(in_batches.outputs(moved), subject.outputs(moved))
