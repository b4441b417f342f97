"""What a check would find of a function and a backward, and what is then said of it."""

import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose

EPS = float(np.finfo(float).eps)
seeds = st.integers(0, 2**32 - 1)
shapes = array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5)
matrices = array_shapes(min_dims=1, max_dims=4, min_side=2, max_side=5)
noises = st.sampled_from([8 * EPS, 1e-10, 1e-6])  # of the complex step, central differences, and float32


def jacobian(forward, inputs, name):
    """By the complex step, (*output.shape, *input.shape)."""
    x = inputs[name]
    columns = []
    for k in range(x.size):
        moved = {other: y.astype(complex) for other, y in inputs.items()}
        moved[name].flat[k] += 1e-30j
        columns.append(np.asarray(forward(*moved.values())).imag / 1e-30)
    return np.stack(columns, axis=-1).reshape((*np.shape(columns[0]), *x.shape))


class Asked:
    """What a diagnosis may ask of `forward` and `backward`, both of which take the inputs by name."""

    is_linear = True  # as far as these tests go

    def __init__(self, forward, backward, inputs, where):
        self.forward, self.backward, self.inputs, self.where = forward, backward, inputs, where

    def moved(self, inputs):
        return Asked(self.forward, self.backward, inputs, self.where)

    @property
    def output(self):
        return np.asarray(self.forward(*self.inputs.values()))

    def slopes(self, cotangents):
        slopes = jacobian(self.forward, self.inputs, self.where)
        return np.tensordot(cotangents, slopes, cotangents.ndim - 1)

    def claims(self, cotangents):
        position = list(self.inputs).index(self.where)
        return np.stack([self.backward(u, *self.inputs.values())[position] for u in cotangents])


class AskedOfALinearFunction:
    """The same of a function with given slopes, (outputs, *shape), for which `claim` takes any cotangents."""

    is_linear = True

    def __init__(self, right, claim, output, shape):
        self.right, self.claims, self.output, self.shape = right, claim, output, shape

    def slopes(self, cotangents):
        return (cotangents.reshape(len(cotangents), -1) @ self.right).reshape(-1, *self.shape)

    def moved(self, inputs):  # noqa: ARG002
        return self


def evidence_of(forward, backward, inputs, where, constants=None, seed=0):
    """What a check would find."""
    output = np.asarray(forward(*inputs.values()))
    u = np.random.default_rng(seed).standard_normal((3, *output.shape))
    slopes = {name: jacobian(forward, inputs, name) for name in inputs}
    numerical = {name: np.tensordot(u, slope, output.ndim) for name, slope in slopes.items()}
    answers = [backward(cotangent, *inputs.values()) for cotangent in (*u, 0 * u[0])]
    analytic = {name: np.stack([answer[k] for answer in answers[:3]]) for k, name in enumerate(inputs)}
    analytic = {name: a for name, a in analytic.items() if a.shape[1:] == inputs[name].shape}
    floor = 8 * EPS * np.tensordot(abs(u[0]), abs(slopes[where]), output.ndim)
    verdict = np.full(inputs[where].shape, WRONG)
    if where in analytic:
        floor = floor + 4 * EPS * abs(analytic[where][0])
        verdict = np.where(abs(analytic[where][0] - numerical[where][0]) > 10 * floor, WRONG, HOLDS)
    at_zero = np.asarray(answers[3][list(inputs).index(where)])
    ask = Asked(forward, backward, inputs, where)
    return Evidence(where, inputs, output, u, analytic, numerical, floor, verdict, at_zero, constants or {}, ask)


def linear_evidence(right, wrong, shape, output_shape, rng, noise=8 * EPS, constants=None):
    """Evidence of a function with the Jacobian `right`, (output, input), and a backward with the Jacobian `wrong`."""
    output, x = rng.standard_normal(output_shape), rng.standard_normal(shape)
    u = rng.standard_normal((3, *output.shape))
    flat = u.reshape(3, -1)
    sizes = (abs(flat) @ (abs(right) + abs(wrong))).reshape(3, *shape)
    numerical, analytic = ((flat @ slopes).reshape(3, *shape) for slopes in (right, wrong))
    numerical = numerical + noise * sizes * rng.uniform(-1, 1, sizes.shape)
    floor = noise * sizes[0]
    verdict = np.where(abs(analytic[0] - numerical[0]) > 10 * floor, WRONG, HOLDS)
    ask = AskedOfALinearFunction(right, lambda v: (v.reshape(len(v), -1) @ wrong).reshape(-1, *shape), output, shape)
    return Evidence(
        "x", {"x": x}, output, u, {"x": analytic}, {"x": numerical}, floor, verdict, 0 * x, constants or {}, ask
    )


def said_of(change, shape, output_shape=(7,), constants=None, noise=8 * EPS):
    """What is said where ``change(right, rng)`` is claimed, the right slopes being random: (outputs, *shape)."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((math.prod(output_shape), *shape))
    wrong = np.asarray(change(right.copy(), rng))
    flat = (x.reshape(len(right), -1) for x in (right, wrong))
    return diagnose(linear_evidence(*flat, shape, output_shape, rng, noise, constants))


RIGHT = np.random.default_rng(1).standard_normal((7, 3, 4))


def evidence_with(added=0.0, factor=1.0, at_zero=0 * RIGHT[0]):
    found = linear_evidence(
        RIGHT.reshape(7, 12), (factor * RIGHT).reshape(7, 12), (3, 4), (7,), np.random.default_rng(2)
    )
    return found._replace(analytic={"x": found.analytic["x"] + added}, at_zero=at_zero, ask=None)


def sampled(found, share, seed=0):
    """The same, with only some of the entries looked at."""
    skipped = np.random.default_rng(seed).random(found.verdict.shape) >= share
    numerical = found.numerical[found.name].copy()
    numerical[:, skipped] = np.nan
    return found._replace(
        numerical={**found.numerical, found.name: numerical}, verdict=np.where(skipped, UNCHECKED, found.verdict)
    )
