"""Correct functions with their gradients: one in which tests plant bugs, and random ones that nothing is wrong with."""

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]


def normal(*shape: int, seed: int = 0, dtype: npt.DTypeLike = float) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def with_entry(array: Array, index: Any, value: Any) -> Array:
    changed = np.array(array)
    changed[index] = value
    return changed


class Watched:
    """A function that keeps the arrays that it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seen = function, []

    def __call__(self, *arrays: Array, **options: Any) -> Any:
        self.seen.append([np.array(x) for x in (*arrays, *options.values()) if isinstance(x, np.ndarray)])
        return self.function(*arrays, **options)


def bilinear(x: Array, y: Array) -> Array:
    """A function of two arrays that is not symmetric in anything."""
    return np.tanh(x @ y) + np.sin(y)


def bilinear_backward(d_output: Array, x: Array, y: Array) -> tuple[Array, Array]:
    d = d_output / np.cosh(x @ y) ** 2
    return d @ y.T, x.T @ d + d_output * np.cos(y)


def wrong_backward(d_output: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """That of `x` is off by more than rounding, and by less than differences see."""
    d_x, d_y = bilinear_backward(d_output, x, y)
    return d_x * (1 + 3e-13), d_y


def square_inputs(n: int = 3, dtype: npt.DTypeLike = float) -> dict[str, Array]:
    return {"x": normal(n, n, dtype=dtype), "y": normal(n, n, seed=1, dtype=dtype)}


def planted(bug: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of `bilinear`, with a bug in that of `x`: ``bug(d_x, d_y, d_output)`` are both."""

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return bug(d_x, d_y, d_output)

    return backward


def real_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but for complex arrays, which are refused."""

    def forward(*arrays):
        if any(x.dtype.kind == "c" for x in arrays):
            raise RuntimeError("no complex arrays here")
        return function(*arrays)

    return forward


def sine_in_single(x: Array) -> Array:
    if x.dtype not in (np.float32, np.complex64):
        raise TypeError("float32 only")
    return np.sin(x)


def takes_the_memory_for_its_own(x: Array) -> Array:
    """As a compiled kernel of single precision does that is told where the numbers are and how many."""
    return np.ascontiguousarray(x).view(np.complex64 if x.dtype.kind == "c" else np.float32)[: x.size]


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def back_through_softmax(d: Array, x: Array) -> Array:
    weights = softmax(x)
    return weights * (d - (weights * d).sum(axis=-1, keepdims=True))


def row_sums(x: Array) -> Array:
    return np.broadcast_to(x.sum(axis=-1, keepdims=True), x.shape)


def logsumexp(x: Array) -> Array:
    largest = x.real.max(axis=-1, keepdims=True)
    return np.broadcast_to(largest + np.log(np.exp(x - largest).sum(axis=-1, keepdims=True)), x.shape)


def layer_norm(x: Array) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + x.dtype.type(1e-5))


def back_through_layer_norm(d: Array, x: Array) -> Array:
    y = layer_norm(x)
    projected = d - d.mean(axis=-1, keepdims=True) - y * (d * y).mean(axis=-1, keepdims=True)
    return projected / np.sqrt(x.var(axis=-1, keepdims=True) + x.dtype.type(1e-5))


def lower_triangle(x: Array) -> Array:
    return np.tri(len(x), dtype=x.real.dtype)


UNARY = {
    "exp": (lambda x: np.exp(np.tanh(x)), lambda d, x: d * np.exp(np.tanh(x)) / np.cosh(x) ** 2),
    "tanh": (np.tanh, lambda d, x: d / np.cosh(x) ** 2),
    "sin": (np.sin, lambda d, x: d * np.cos(x)),
    "softmax": (softmax, back_through_softmax),
    "sum": (row_sums, lambda d, x: np.broadcast_to(d.sum(axis=-1, keepdims=True), x.shape)),
    "saturate": (lambda x: softmax(40 * x), lambda d, x: 40 * back_through_softmax(d, 40 * x)),
    "logsumexp": (logsumexp, lambda d, x: softmax(x) * row_sums(d)),
    "layer norm": (layer_norm, back_through_layer_norm),
    "mask": (lambda x: x * lower_triangle(x), lambda d, x: d * lower_triangle(x)),
}
BINARY = {
    "add": (lambda x, y: x + y, lambda d, _x, _y: (d, d)),
    "product": (lambda x, y: x * y, lambda d, x, y: (d * y, d * x)),
    "matmul": (lambda x, y: x @ y, lambda d, x, y: (d @ y.T, x.T @ d)),
    "division": (lambda x, y: x / (1 + y * y), lambda d, x, y: (d / (1 + y * y), -2 * d * x * y / (1 + y * y) ** 2)),
}


class Program(NamedTuple):
    """Square matrices in, multiplied by their scales; then one operation after another; then the last one's scale."""

    scales: tuple[Array, ...]
    steps: tuple[tuple[str, int, int], ...]
    output_scale: float

    def values(self, *inputs: Array) -> list[Array]:
        values = [x * c.astype(x.real.dtype) for x, c in zip(inputs, self.scales, strict=True)]
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
        return [d * c.astype(d.dtype) for d, c in zip(d_values, self.scales, strict=False)]


@st.composite
def programs(draw: st.DrawFn, largest: int = 12, *, badly_scaled: bool = False) -> tuple[Program, dict[str, Array]]:
    """A program, and inputs that undo its scales, so that what it computes with is of ordinary size.

    If it is `badly_scaled`, each entry of an input may have a scale of its own, and inputs of zeros have any scale.
    """
    count = draw(st.integers(1, 3))
    size = draw(st.integers(1, 3))
    exponents = st.integers(-largest, largest)
    orders = [draw(exponents) for _ in range(count)]
    steps = []
    for k in range(draw(st.integers(1, 5))):
        places = st.integers(0, count + k - 1)
        steps.append((draw(st.sampled_from([*UNARY, *BINARY])), draw(places), draw(places)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales, inputs = [], {}
    for name, order in zip("abc", orders, strict=False):
        zeros = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
        x = np.where(rng.random((size, size)) < zeros, 0.0, rng.standard_normal((size, size)))
        scale = np.array(10.0**order if badly_scaled or x.any() else 1.0)
        if badly_scaled and draw(st.booleans()):
            scale = 10.0 ** rng.integers(-largest, largest, x.shape, endpoint=True)
        inputs[name] = x / scale
        scales.append(scale)
    return Program(tuple(scales), tuple(steps), 10.0 ** draw(exponents)), inputs


def shifted_softmax(x: Array, c: Array) -> Array:
    """The gradient of the shift is what is left of terms that cancel."""
    return softmax(x + c)


def shifted_softmax_backward(d: Array, x: Array, c: Array) -> tuple[Array, Array]:
    d_x = back_through_softmax(d, x + c)
    return d_x, d_x.sum(axis=-1, keepdims=True)


class Pickling(Executor):
    """Does each task at once, as another process would get it."""

    def __init__(self):
        self.sizes = []

    def submit(self, function, /, *args, **kwargs):
        sent, future = pickle.dumps((function, args, kwargs)), Future()
        self.sizes.append(len(sent))
        function, args, kwargs = pickle.loads(sent)  # noqa: S301
        future.set_result(function(*args, **kwargs))
        return future
