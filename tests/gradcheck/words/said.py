"""What a check says of a gradient that is wrong; and mistakes that are given by their numbers."""

import math

import numpy as np

from attention_np.gradcheck import check
from attention_np.gradcheck.verdict.judging import HOLDS, UNCHECKED, WRONG
from attention_np.gradcheck.words import Mistake, explain

EPS = float(np.finfo(float).eps)


def said(forward, backward, inputs, where=None, **options):
    """What is said of one input, by default the first, where `backward` gives its gradient or those of all."""
    where = next(iter(inputs)) if where is None else where

    def answer(d, *arrays):
        found = backward(d, *arrays)
        of_one = dict.fromkeys(inputs) | {where: found}
        found = found if isinstance(found, tuple) else tuple(of_one.values())
        return tuple(np.zeros_like(x) if y is None else np.asarray(y) for x, y in zip(arrays, found, strict=True))

    found = check(forward, answer, inputs, **options)[where]
    assert not found.ok
    return found.diagnosis


def said_of(change, shape, output_shape=(7,), seed=0, **options):
    """What is said where ``change(right, rng)`` is claimed of the slopes of a linear function, (outputs, *shape)."""
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((math.prod(output_shape), *shape))
    return said_of_slopes(right, np.asarray(change(right.copy(), rng)), output_shape, **options)


def said_of_slopes(right, wrong, output_shape=(7,), **options):
    """The same of a linear function with the slopes `right`, for which `wrong` ones are claimed."""
    shape = right.shape[1:]
    flat = right.reshape(len(right), -1)
    x = np.random.default_rng(1).standard_normal(shape)

    def forward(x):
        return (flat @ x.reshape(-1)).reshape(output_shape)

    def backward(d, *_):
        return np.tensordot(d.reshape(-1), wrong, 1)

    return said(forward, backward, {"x": x}, **options)


def mistake_of(right, claimed, floor=EPS, **fields):
    """Of a gradient for three cotangents, (3, *shape), nothing else of which is known."""
    right, claimed = (np.asarray(x, float) for x in (right, claimed))
    shape, rng = right.shape[1:], np.random.default_rng(3)
    x, u, floor = rng.standard_normal(shape), rng.standard_normal((3, 7)), np.broadcast_to(floor * 1.0, shape)
    verdict = np.where((np.abs(claimed - right)[0] > 10 * floor) | (claimed != right).any(axis=0), WRONG, HOLDS)
    verdict = np.where(np.isfinite(right).all(axis=0), verdict, UNCHECKED)
    given = {"name": "x", "inputs": {"x": x}, "output": u[0], "cotangents": u, "claimed": claimed, "right": right}
    return Mistake(**{**given, "floor": floor, "verdict": verdict, "at_zero": 0 * x, **fields})


def said_of_numbers(right, claimed, floor=EPS, **fields):
    """What is said of such a mistake."""
    return explain(mistake_of(right, claimed, floor, **fields))
