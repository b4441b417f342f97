"""Random correct functions with their gradients, for the harness to find nothing wrong with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def back_through_softmax(d: Array, x: Array) -> Array:
    weights = softmax(x)
    return weights * (d - (weights * d).sum(axis=-1, keepdims=True))


def row_sums(x: Array) -> Array:
    return np.broadcast_to(x.sum(axis=-1, keepdims=True), x.shape)


UNARY = {
    "exp": (lambda x: np.exp(np.tanh(x)), lambda d, x: d * np.exp(np.tanh(x)) / np.cosh(x) ** 2),
    "tanh": (np.tanh, lambda d, x: d / np.cosh(x) ** 2),
    "sin": (np.sin, lambda d, x: d * np.cos(x)),
    "softmax": (softmax, back_through_softmax),
    "sum": (row_sums, lambda d, x: np.broadcast_to(d.sum(axis=-1, keepdims=True), x.shape)),
    "saturate": (lambda x: softmax(40 * x), lambda d, x: 40 * back_through_softmax(d, 40 * x)),
}
BINARY = {
    "add": (lambda x, y: x + y, lambda d, _x, _y: (d, d)),
    "product": (lambda x, y: x * y, lambda d, x, y: (d * y, d * x)),
    "matmul": (lambda x, y: x @ y, lambda d, x, y: (d @ y.T, x.T @ d)),
}


class Program(NamedTuple):
    """Square matrices in, each multiplied by its scale; then one operation after another; then the last one's scale."""

    scales: tuple[float, ...]
    steps: tuple[tuple[str, int, int], ...]
    output_scale: float

    def values(self, *inputs: Array) -> list[Array]:
        values = [x * np.asarray(c, x.real.dtype) for x, c in zip(inputs, self.scales, strict=True)]
        for name, i, j in self.steps:
            values.append(UNARY[name][0](values[i]) if name in UNARY else BINARY[name][0](values[i], values[j]))
        return values

    def forward(self, *inputs: Array) -> Array:
        output = self.values(*inputs)[-1]
        return output * np.asarray(self.output_scale, output.real.dtype)

    def backward(self, d_output: Array, *inputs: Array) -> list[Array]:
        values = self.values(*inputs)
        d_values = [np.zeros_like(x) for x in values]
        d_values[-1] = d_output * np.asarray(self.output_scale, d_output.dtype)
        for k in range(len(self.steps) - 1, -1, -1):
            name, i, j = self.steps[k]
            d = d_values[len(inputs) + k]
            if name in UNARY:
                d_values[i] = d_values[i] + UNARY[name][1](d, values[i])
            else:
                d_i, d_j = BINARY[name][1](d, values[i], values[j])
                d_values[i] = d_values[i] + d_i
                d_values[j] = d_values[j] + d_j
        return [d * np.asarray(c, d.dtype) for d, c in zip(d_values, self.scales, strict=False)]


@st.composite
def programs(draw: st.DrawFn, largest: int = 12) -> tuple[Program, dict[str, Array]]:
    """A program, and inputs that undo its scales, so that what it computes with is of ordinary size."""
    count = draw(st.integers(1, 3))
    size = draw(st.integers(1, 3))
    exponents = st.integers(-largest, largest)
    scales = tuple(10.0 ** draw(exponents) for _ in range(count))
    steps = []
    for k in range(draw(st.integers(1, 5))):
        places = st.integers(0, count + k - 1)
        steps.append((draw(st.sampled_from([*UNARY, *BINARY])), draw(places), draw(places)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    zeros = draw(st.sampled_from([0.0, 0.0, 0.3]))
    inputs = {}
    for name, c in zip("abc", scales, strict=False):
        x = rng.standard_normal((size, size)) / c
        some_zero = np.where(rng.random(x.shape) < zeros, 0.0, x)
        inputs[name] = some_zero if some_zero.any() else x  # zeros alone would not tell differences the scale
    return Program(scales, tuple(steps), 10.0 ** draw(exponents)), inputs
