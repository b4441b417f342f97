# every gradient takes all inputs
"""Functions as strangers write them, and the mistakes that strangers make in their gradients.

``FUNCTIONS`` has a function a name: forward, backward, and the inputs to look at. ``PLANTED`` are the mistakes, each in
the gradient of one input, with a pattern of what is said of it, or None where nothing but the place can be said.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from .programs import back_through_softmax, normal, softmax

__all__ = ["FUNCTIONS", "PLANTED", "Function", "Planted", "arrays", "bug"]

Array = npt.NDArray[Any]
Gradient = Callable[..., Any]
Backward = Callable[..., tuple[Array, ...]]


class Function(NamedTuple):
    """A correct function with its gradients, and the point to look at."""

    forward: Callable[..., Any]
    backward: Backward
    inputs: Mapping[str, Array]


class Planted(NamedTuple):
    """A bug planted in the gradient of the input called `where`."""

    name: str
    forward: Callable[..., Any]
    backward: Backward
    wrong_backward: Backward
    inputs: Mapping[str, Array]
    where: str
    expected: str | None  # what its cause is said to be, in part; None: that it has no simple one


def function(forward: Callable[..., Any], inputs: Mapping[str, Array], *gradients: Gradient) -> Function:
    """A function, and its gradient by each of its inputs, one after the other, ``gradient(d, *inputs)``."""
    return Function(forward, lambda *question: tuple(np.asarray(g(*question)) for g in gradients), inputs)


class Changed(NamedTuple):
    """A gradient that is made of the right one."""

    change: Callable[[Array], Array]


def planted(name: str, where: str, gradient: Gradient | Changed, of: Function, expected: str | None) -> Planted:
    """A function with another gradient of one of its inputs."""

    def wrong_backward(d: Array, *arrays: Array) -> tuple[Array, ...]:
        gradients = dict(zip(of.inputs, of.backward(d, *arrays), strict=True))
        wrong = gradient.change(gradients[where]) if isinstance(gradient, Changed) else gradient(d, *arrays)
        return tuple({**gradients, where: np.asarray(wrong)}.values())

    return Planted(name, *of[:2], wrong_backward, of.inputs, where, expected)


def arrays(seed: int, **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Normal numbers, the seed of each array one more than that of the one before."""
    return {name: normal(*shape, seed=seed + k) for k, (name, shape) in enumerate(shapes.items())}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def positive(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.3, 0.9, shape)


def layer(activation, slope, seed):
    """An activation of a product, whose slope is a function of its value."""

    def behind(d, x, w):
        return d * slope(activation(x @ w))

    return function(
        lambda x, w: activation(x @ w),
        arrays(seed, x=(5, 3), w=(3, 4)),
        lambda d, x, w: behind(d, x, w) @ w.T,
        lambda d, x, w: x.T @ behind(d, x, w),
    )


def windows(x):
    return sliding_window_view(x, (3, 3), axis=(-2, -1))  # (channels, rows, columns, 3, 3)


def convolution(x, w, b):
    return np.einsum("cijkl,fckl->fij", windows(x), w) + b[:, None, None]


def col2im(d, w, put, stride=1):
    d_x = np.zeros((w.shape[1], d.shape[1] + 2, d.shape[2] + 2))
    for i in range(0, d.shape[1], stride):
        for j in range(0, d.shape[2], stride):
            put(d_x[:, i : i + 3, j : j + 3], np.einsum("f,fckl->ckl", d[:, i, j], w))
    return d_x


def of_kernel(windows, d):
    return np.einsum("cijkl,fij->fckl", windows, d)


def assign(there, what):
    there[...] = what


def add(there, what):
    there += what


def pooled(x):
    return sliding_window_view(x.real, 3)[::2].max(axis=-1)  # windows of three that overlap in one


def pooling_backward(put):
    def backward(d, x):
        d_x = np.zeros_like(x)
        for k, g in enumerate(d):
            at = 2 * k + int(x[2 * k : 2 * k + 3].argmax())
            put(d_x[at : at + 1], g)
        return d_x

    return backward


TOKENS = np.array([0, 2, 1, 2, 4, 0, 2])
SIGNAL = np.array([0.1, 0.4, 2.0, 0.3, -0.2, 0.6, 3.0, 0.2, 0.9, -0.4, 0.5])


def lookup(put):
    def backward(d, w):
        d_w = np.zeros_like(w)
        if put == "add":
            np.add.at(d_w, TOKENS, d)
        elif put == "last":
            d_w[TOKENS] = d
        else:
            d_w[TOKENS[::-1]] = d[::-1]
        return d_w

    return backward


def rnn(x, w, u):
    h, states = np.zeros(u.shape[0]), []
    for x_t in x:
        h = np.tanh(x_t @ w + h @ u)
        states.append(h)
    return np.stack(states)


def rnn_backward(which, carry=1.0, derivative=True, first=0, used=None):
    def backward(d, x, w, u):
        h = rnn(x, w, u)
        d_x, d_w, d_u, d_next = np.zeros_like(x), np.zeros_like(w), np.zeros_like(u), np.zeros(u.shape[0])
        for t in reversed(range(first, len(x))):
            z = (d[t] + carry * d_next) * (1 - h[t] ** 2 if derivative else 1)
            d_x[t] = z @ w.T
            if used is None or t in used:
                d_w += np.outer(x[t], z)
                d_u += np.outer(h[t - 1], z) if t else 0
            d_next = z @ u.T
        return {"x": d_x, "w": d_w, "u": d_u}[which]

    return backward


def gru(x, h):
    z = sigmoid(x)
    return (1 - z) * h + z * np.tanh(h)


def standard(x, axis, eps=1e-5):
    centered = x - x.mean(axis=axis, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(axis=axis, keepdims=True) + eps)


def normalization(axis, inputs):
    return function(
        lambda x, gamma, beta: gamma * standard(x, axis) + beta,
        inputs,
        normalization_backward(axis),
        lambda d, x, gamma, beta: (d * standard(x, axis)).sum(axis=0),
        lambda d, x, gamma, beta: d.sum(axis=0),
    )


def normalization_backward(axis, mean=1, product=1, eps=1e-5, count=None, gain=1):
    def backward(d, x, gamma, _beta):
        g = d * (gamma if gain else 1)
        y, n = standard(x, axis, eps), count or x.shape[axis]
        centered = g - mean * g.sum(axis, keepdims=True) / n - product * y * (g * y).sum(axis, keepdims=True) / n
        return centered / np.sqrt(x.var(axis, keepdims=True) + eps)

    return backward


def root_mean_square(x, eps=1e-6):
    return np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def rms_norm_backward(product=1, eps=1e-6, gained=True):
    def backward(d, x, gain):
        r, g = root_mean_square(x, eps), d * gain if gained else d
        return g / r - product * x * (g * x).mean(axis=-1, keepdims=True) / r**3

    return backward


def sparsemax(x):
    ordered = -np.sort(-x.real, axis=-1)
    k = np.arange(1, x.shape[-1] + 1)
    inside = (1 + k * ordered > np.cumsum(ordered, axis=-1)).sum(axis=-1, keepdims=True)
    tau = (np.where(k <= inside, ordered, 0).sum(axis=-1, keepdims=True) - 1) / inside
    return np.maximum(x.real - tau, 0)


def sparsemax_backward(d, x):
    support = sparsemax(x) > 0
    return support * (d - (d * support).sum(axis=-1, keepdims=True) / support.sum(axis=-1, keepdims=True))


def norm(x):
    return np.sqrt((x * x).sum(axis=-1))


def leaky(x):
    return np.where(x.real > 0, x, 0.1 * x)


def huber(x):
    return np.where(np.abs(x.real) < 1, x * x / 2, np.sign(x.real) * x - 0.5)


def attention(inputs, mask=None, heads=None):
    return function(lambda *a: attend(*a, mask, heads)[0], inputs, *(attend_backward(k, mask, heads) for k in range(3)))


def split(x, heads):
    return swap(x.reshape(*x.shape[:-1], heads, -1), -2, -3) if heads else x


def combined(x, heads):
    return swap(x, -2, -3).reshape(*x.shape[:-3], x.shape[-2], -1) if heads else x


def attend(query, key, value, mask, heads):
    """Scaled dot-product attention, with `heads` along the last axis if there are any, and its weights."""
    query, key, value = (split(x, heads) for x in (query, key, value))
    scores = query @ swap(key, -1, -2) / np.sqrt(query.shape[-1])
    weights = softmax(scores if mask is None else np.where(mask, scores, -1e9))
    return combined(weights @ value, heads), weights


def attend_backward(which, mask=None, heads=None, scale=1.0, correction=1.0):
    def backward(d, *inputs):
        _, weights = attend(*inputs, mask, heads)
        d, query, key, value = (split(x, heads) for x in (d, *inputs))
        d_weights = d @ swap(value, -1, -2)
        d_scores = weights * (d_weights - correction * (weights * d_weights).sum(axis=-1, keepdims=True))
        d_scores *= scale / np.sqrt(query.shape[-1])
        gradients = d_scores @ key, swap(d_scores, -1, -2) @ query, swap(weights, -1, -2) @ d
        return combined(gradients[which], heads)

    return backward


def additive(query, key, value, w_query, w_key, w_score):
    return softmax(np.tanh((query @ w_query)[:, np.newaxis] + key @ w_key) @ w_score) @ value


def additive_backward(which, slope=lambda h: 1 - h**2):
    def backward(d, query, key, value, w_query, w_key, w_score):
        hidden = np.tanh((query @ w_query)[:, np.newaxis] + key @ w_key)  # (n, m, h)
        d_scores = back_through_softmax(d @ value.T, hidden @ w_score)
        z = d_scores[..., np.newaxis] * w_score * slope(hidden)
        d_q, d_k = z.sum(axis=1), z.sum(axis=0)
        d_w_score = (d_scores[..., np.newaxis] * hidden).sum(axis=(0, 1))
        d_value = softmax(hidden @ w_score).T @ d
        return (d_q @ w_query.T, d_k @ w_key.T, d_value, query.T @ d_q, key.T @ d_k, d_w_score)[which]

    return backward


ADDITIVE = arrays(34, query=(4, 3), key=(5, 3), value=(5, 2), w_query=(3, 6), w_key=(3, 6), w_score=(6,))
LABELS = np.eye(4)[[0, 2, 1, 3, 2]]
SHARES = softmax(normal(5, 4, seed=1))
TARGET = normal(5, 4, seed=90)
DROPPED = np.random.default_rng(5).random((4, 6)) < 0.7
swap = np.swapaxes


def entrywise(forward: Callable[..., Any], slope: Callable[..., Any], x: Array) -> Function:
    return function(forward, {"x": x}, lambda d, x: d * slope(x))


FUNCTIONS = {
    "dense": function(
        lambda x, w, b: x @ w + b,
        arrays(1, x=(5, 4), w=(4, 3), b=(3,)),
        lambda d, x, w, b: d @ w.T,
        lambda d, x, w, b: x.T @ d,
        lambda d, x, w, b: d.sum(axis=0),
    ),
    "square dense": function(
        np.matmul, arrays(4, x=(4, 4), w=(4, 4)), lambda d, x, w: d @ w.T, lambda d, x, w: x.T @ d
    ),
    "tanh layer": layer(np.tanh, lambda y: 1 - y**2, 6),
    "sigmoid layer": layer(sigmoid, lambda y: y * (1 - y), 8),
    "relu layer": layer(lambda z: np.maximum(z.real, 0), lambda y: y > 0, 10),
    "exp": entrywise(np.exp, np.exp, normal(3, 4, seed=12)),
    "cube": entrywise(lambda x: x**3, lambda x: 3 * x**2, normal(6, seed=13)),
    "reciprocal": entrywise(lambda x: 1 / x, lambda x: -1 / x**2, positive(7, seed=14)),
    "sigmoid": entrywise(sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x)), normal(3, 4, seed=15)),
    "tanh": entrywise(np.tanh, lambda x: 1 - np.tanh(x) ** 2, normal(3, 4, seed=16)),
    "elu": entrywise(
        lambda x: np.where(x.real < 0, np.exp(x) - 1, x),
        lambda x: np.where(x < 0, np.exp(x), 1),
        np.array([0.3, -1.0, 0.0, 2.0, -0.7, 0.0, 1.2, 0.4, -0.2, 0.8]),
    ),
    "leaky relu": entrywise(leaky, lambda x: np.where(x > 0, 1, 0.1), normal(4, 5, seed=17)),
    "relu": entrywise(lambda x: np.maximum(x.real, 0), lambda x: x > 0, normal(4, 5, seed=18)),
    "clip": entrywise(lambda x: np.clip(x.real, -0.8, 0.8), lambda x: abs(x) < 0.8, normal(20, seed=22)),
    "huber": entrywise(huber, lambda x: np.clip(x, -1, 1), 2 * normal(12, seed=19)),
    "arctan": entrywise(np.arctan, lambda x: 1 / (1 + x * x), normal(5, seed=20)),
    "swish": entrywise(
        lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))), normal(3, 4, seed=21)
    ),
    "softplus": entrywise(lambda x: np.log1p(np.exp(x)), sigmoid, normal(6, seed=22)),
    "log2": entrywise(np.log2, lambda x: 1 / x / np.log(2), positive(7, seed=12)),
    "log": entrywise(lambda x: np.log(x + 1e-8), lambda x: 1 / (x + 1e-8), positive(8, seed=23)),
    "quotient": function(
        lambda a, b: a / b,
        {"a": normal(3, 4, seed=24), "b": positive(3, 4, seed=25)},
        lambda d, a, b: d / b,
        lambda d, a, b: -d * a / b**2,
    ),
    "energy": function(
        lambda x, y: np.asarray((np.sin(x) * y**2).sum()),
        arrays(45, x=(3, 4), y=(3, 4)),
        lambda d, x, y: d * np.cos(x) * y**2,
        lambda d, x, y: 2 * d * np.sin(x) * y,
    ),
    "convolution": function(
        convolution,
        arrays(26, x=(2, 5, 5), w=(2, 2, 3, 3), b=(2,)),
        lambda d, x, w, b: col2im(d, w, add),
        lambda d, x, w, b: of_kernel(windows(x), d),
        lambda d, x, w, b: d.sum(axis=(1, 2)),
    ),
    "pooling": function(pooled, {"x": SIGNAL}, pooling_backward(add)),
    "mean pooling": function(
        lambda x: x.reshape(2, 2, 3, 2).mean(axis=(1, 3)),
        arrays(29, x=(4, 6)),
        lambda d, x: d.repeat(2, 0).repeat(2, 1) / 4,
    ),
    "embedding": function(lambda w: w[TOKENS], arrays(30, w=(5, 3)), lookup("add")),
    "upsampling": function(
        lambda x: x.repeat(2, axis=-2).repeat(2, axis=-1),
        arrays(31, x=(2, 3, 3)),
        lambda d, x: d.reshape(2, 3, 2, 3, 2).sum(axis=(2, 4)),
    ),
    "rnn": function(rnn, arrays(32, x=(4, 2), w=(2, 3), u=(3, 3)), *map(rnn_backward, "xwu")),
    "gru": function(
        gru,
        arrays(35, x=(6,), h=(6,)),
        lambda d, x, h: d * sigmoid(x) * (1 - sigmoid(x)) * (np.tanh(h) - h),
        lambda d, x, h: d * (1 - sigmoid(x) + sigmoid(x) * (1 - np.tanh(h) ** 2)),
    ),
    "lstm": function(
        lambda f, i, g, c: sigmoid(f) * c + sigmoid(i) * np.tanh(g),
        arrays(37, f=(5,), i=(5,), g=(5,), c=(5,)),
        lambda d, f, i, g, c: d * c * sigmoid(f) * (1 - sigmoid(f)),
        lambda d, f, i, g, c: d * np.tanh(g) * sigmoid(i) * (1 - sigmoid(i)),
        lambda d, f, i, g, c: d * sigmoid(i) * (1 - np.tanh(g) ** 2),
        lambda d, f, i, g, c: d * sigmoid(f),
    ),
    "batch norm": normalization(0, arrays(41, x=(6, 3), gamma=(3,), beta=(3,))),
    "layer norm": normalization(-1, arrays(44, x=(3, 6), gamma=(6,), beta=(6,))),
    "rms norm": function(
        lambda x, gain: gain * x / root_mean_square(x),
        arrays(47, x=(3, 5), gain=(5,)),
        rms_norm_backward(),
        lambda d, x, gain: (d * x / root_mean_square(x)).sum(axis=0),
    ),
    "softmax": function(softmax, arrays(49, x=(4, 5)), back_through_softmax),
    "sparsemax": function(sparsemax, arrays(50, x=(4, 5)), sparsemax_backward),
    "attention": attention(arrays(51, q=(5, 4), k=(5, 4), v=(5, 3))),
    "causal attention": attention(arrays(16, q=(6, 4), k=(6, 4), v=(6, 4)), np.tri(6, dtype=bool)),
    "padded attention": attention(arrays(19, q=(5, 8), k=(7, 8), v=(7, 3)), np.arange(7) < 5),
    "multi-head attention": attention(arrays(22, q=(2, 5, 12), k=(2, 5, 12), v=(2, 5, 12)), heads=3),
    "additive attention": function(additive, ADDITIVE, *(additive_backward(k) for k in range(6))),
    "cross-entropy": function(
        lambda z: np.asarray(-(LABELS * np.log(softmax(z))).sum() / len(z)),
        arrays(54, z=(5, 4)),
        lambda d, z: d * (softmax(z) - LABELS) / 5,
    ),
    "cross-entropies": function(
        lambda z: -(SHARES * np.log(softmax(z))).sum(axis=-1),
        arrays(54, z=(5, 4)),
        lambda d, z: d[:, None] * (softmax(z) - SHARES),
    ),
    "mean squared error": function(
        lambda x: np.asarray(((x - TARGET) ** 2).mean()), arrays(55, x=(5, 4)), lambda d, x: d * 2 * (x - TARGET) / 20
    ),
    "binary cross-entropy": function(
        lambda p: -(LABELS * np.log(p) + (1 - LABELS) * np.log(1 - p)),
        {"p": positive(5, 4, seed=56)},
        lambda d, p: d * (p - LABELS) / (p * (1 - p)),
    ),
    "divergence": function(
        lambda p: np.asarray((p * np.log(p / 0.3)).sum()),
        {"p": positive(4, 3, seed=57)},
        lambda d, p: d * (np.log(p / 0.3) + 1),
    ),
    "roll": function(lambda x: np.roll(x, 2, axis=0), arrays(58, x=(7, 2)), lambda d, x: np.roll(d, -2, axis=0)),
    "circular difference": function(
        lambda x: np.roll(x, -1) - 2 * x + np.roll(x, 1),
        arrays(59, x=(8,)),
        lambda d, x: np.roll(d, 1) - 2 * d + np.roll(d, -1),
    ),
    "cumsum": function(np.cumsum, arrays(60, x=(6,)), lambda d, x: np.cumsum(d[::-1])[::-1]),
    "squares summed up": function(
        lambda x: np.cumsum(x**2, axis=0), arrays(61, x=(5, 2)), lambda d, x: 2 * x * np.cumsum(d[::-1], axis=0)[::-1]
    ),
    "flip": function(lambda x: np.flip(x**2, 0), arrays(62, x=(5, 2)), lambda d, x: 2 * x * d[::-1]),
    "transpose": function(lambda x: np.sin(x).T, arrays(63, x=(4, 4)), lambda d, x: d.T * np.cos(x)),
    "heads": function(
        lambda x: swap(x.reshape(4, 2, 3), 0, 1) + 0, arrays(64, x=(4, 6)), lambda d, x: swap(d, 0, 1).reshape(4, 6)
    ),
    "concatenation": function(
        lambda a, b: np.concatenate([a, b]) ** 2,
        arrays(65, a=(3, 2), b=(4, 2)),
        lambda d, a, b: 2 * a * d[:3],
        lambda d, a, b: 2 * b * d[3:],
    ),
    "padding": function(lambda x: np.pad(x, 1), arrays(67, x=(4, 5)), lambda d, x: d[1:-1, 1:-1]),
    "contraction": function(
        lambda a, b: np.einsum("nij,jk->nik", a, b),
        arrays(68, a=(3, 2, 4), b=(4, 3)),
        lambda d, a, b: np.einsum("nik,jk->nij", d, b),
        lambda d, a, b: np.einsum("nij,nik->jk", a, d),
    ),
    "variance": function(lambda x: x.var(axis=0), arrays(70, x=(6, 3)), lambda d, x: d * 2 * (x - x.mean(axis=0)) / 6),
    "log-sum-exp": function(
        lambda x: np.log(np.exp(x).sum(axis=-1)), arrays(71, x=(4, 3)), lambda d, x: d[:, None] * softmax(x)
    ),
    "norm": function(norm, arrays(72, x=(4, 3)), lambda d, x: d[:, None] * x / norm(x)[:, None]),
    "residual": function(
        lambda x, w: x + np.tanh(x @ w),
        arrays(79, x=(5, 3), w=(3, 3)),
        lambda d, x, w: d + (d * (1 - np.tanh(x @ w) ** 2)) @ w.T,
        lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w) ** 2)),
    ),
    "median": function(
        lambda x: x[x.real.argsort()[3]], arrays(50, x=(7,)), lambda d, x: d * (np.arange(7) == x.argsort()[3])
    ),
    "dropout": entrywise(
        lambda x: np.exp(x * DROPPED / 0.7), lambda x: np.exp(x * DROPPED / 0.7) * DROPPED / 0.7, normal(4, 6, seed=73)
    ),
    "product of rows": function(
        lambda x: x.prod(axis=-1), arrays(74, x=(4, 3)), lambda d, x: (d * x.prod(axis=-1))[:, None] / x
    ),
    "outer": function(np.outer, arrays(75, a=(4,), b=(4,)), lambda d, a, b: d @ b, lambda d, a, b: a @ d),
    "scale and shift": function(
        lambda x, gamma, beta: gamma * x + beta,
        arrays(77, x=(5, 3), gamma=(3,), beta=(3,)),
        lambda d, x, gamma, beta: d * gamma,
        lambda d, x, gamma, beta: (d * x).sum(axis=0),
        lambda d, x, gamma, beta: d.sum(axis=0),
    ),
}


def reshaped(gradient):
    return swap(gradient.reshape(2, 5, 3, 4), 1, 2).reshape(2, 5, 12)


def reordered(gradient):
    return gradient.reshape(2, 5, 3, 4)[:, :, [1, 0, 2]].reshape(2, 5, 12)


def rounded(x, dtype=np.float32):
    return x.astype(dtype).astype(float)


LEAK = np.where(np.arange(7)[:, np.newaxis] < 5, 0, 0.1 * np.arange(1, 22).reshape(7, 3))
ONE_HEAD = np.where((np.arange(2)[:, np.newaxis, np.newaxis] == 0) & (np.arange(12) >= 8), -1, 1)
NOT_TRANSPOSED = (
    "^it is the derivative times the gradient of the output, and not the transposed derivative: "
    "a transpose is missing, or the reverse of an order$"
)
MISSING = " missing or wrong: whatever the cotangent, the errors along it are "
MEAN = f"^a mean along axis {{}}, to be taken off, is{MISSING}equal$"
STATISTICS = (
    f"^the terms of the mean and of the variance of a normalization along axis {{}} are{MISSING}"
    "a number plus a multiple of x less its mean$"
)
PROJECTION = (
    rf"^the projection term of a normalization along axis {{}}, y \* sum\(y \* d_y\) or its mean, is{MISSING}"
    "a multiple of "
)
SOFTMAX = (
    rf"^the softmax correction along axis 1, weights \* sum\(weights \* d_weights\), is{MISSING}"
    "a multiple of the weights$"
)
ORTHOGONAL = (
    r"^a term with sum\(output \* d_output\), such as the softmax correction sum_j A_ij dA_ij, is missing or wrong: "
    "it is right for a cotangent that is orthogonal to the output along axis 1$"
)
_ = None
WRONG: dict[str, Any] = {  # by function: the input, the mistake, the wrong gradient, and the word
    "dense": [
        ("b", "a mean for the sum", lambda d, x, w, b: d.mean(axis=0), r"0\.2 times .* mean"),
        ("w", "divided by the batch", lambda d, x, w, b: x.T @ d / 5, r"0\.2 times .*5"),
        ("w", "the last sample dropped", lambda d, x, w, b: x[:-1].T @ d[:-1], "index 4 of axis 0"),
        ("x", "a column dropped", lambda d, x, w, b: d[:, 1:] @ w[:, 1:].T, "index 0 of axis 1"),
        ("w", "= for += over the batch", lambda d, x, w, b: np.outer(x[-1], d[-1]), "the last: does = stand"),
        ("b", "the first sample alone", lambda d, x, w, b: d[0], "output is used only at index 0 of axis 0$"),
        ("b", "half of the first sample", lambda d, x, w, b: d[0] / 2, _),
        ("b", "less the first sample", lambda d, x, w, b: -d[0], _),
        ("w", "accumulated twice", Changed(lambda g: 2 * g), "it is 2 times"),
        ("x", "the sign", Changed(np.negative), "it is -1 times"),
        ("b", "nothing", lambda d, x, w, b: 0 * b, "zero throughout"),
        ("b", "not summed", lambda d, x, w, b: d, r"has the shape \(5, 3\), the input \(3,\)$"),
        ("w", "transposed", lambda d, x, w, b: d.T @ x, r"has the shape \(3, 4\), the input \(4, 3\)$"),
        ("w", "weight decay", lambda d, x, w, b: x.T @ d + 0.01 * w, _),
        ("x", "single precision", Changed(rounded), _),
        ("x", "flattened", lambda d, x, w, b: (d @ w.T).ravel(), r"has the shape \(20,\), the input \(5, 4\)$"),
    ],
    "square dense": [
        ("x", "w not transposed", lambda d, x, w: d @ w, NOT_TRANSPOSED),
        ("w", "x not transposed", lambda d, x, w: x @ d, "transpose"),
        ("w", "d transposed", lambda d, x, w: x.T @ d.T, "gradient of the output .*transposed"),
        ("w", "result transposed", lambda d, x, w: d.T @ x, "transposed"),
    ],
    "tanh layer": [
        ("w", "no tanh derivative", lambda d, x, w: x.T @ d, r"1 - output\^2"),
        ("w", "1 - y for 1 - y^2", lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w))), r"1 \+ output"),
        ("w", "the derivative twice", lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w) ** 2) ** 2), r"1 - output\^2"),
        ("w", "tanh twice", lambda d, x, w: x.T @ (d * (1 - np.tanh(np.tanh(x @ w)) ** 2)), _),
        ("x", "no tanh derivative", lambda d, x, w: d @ w.T, r"for 1/\(1 - output\^2\) times .* is missing"),
        (
            "w",
            "a factor for each column",
            Changed(lambda g: g * [0.5, 1, 1, 2]),
            "wrong only at the indices 0 and 3 of axis 1",
        ),
        ("w", "one column twice", Changed(lambda g: g * [1, 2, 1, 1]), "only at index 1 of axis 1, .* 2 times"),
    ],
    "sigmoid layer": [
        ("w", "no 1 - y", lambda d, x, w: x.T @ (d * sigmoid(x @ w)), "1 - output"),
        ("w", "no derivative", lambda d, x, w: x.T @ d, r"output \* \(1 - output\)"),
    ],
    "relu layer": [("w", "no mask", lambda d, x, w: x.T @ d, "is a mask forgotten, as that of a ReLU")],
    "exp": [("x", "no exp", lambda d, x: d.copy(), "1/output"), ("x", "x for exp(x)", lambda d, x: d * x, _)],
    "cube": [
        ("x", "no square", lambda d, x: 3 * d * x, "1/x"),
        ("x", "no three", lambda d, x: d * x**2, r"0\.333333333 times"),
        ("x", "no three and no square", lambda d, x: d * x, "/x"),
    ],
    "reciprocal": [
        ("x", "no square in the denominator", lambda d, x: -d / x, r"\bx\b"),
        ("x", "no sign", Changed(np.negative), "it is -1 times"),
    ],
    "sigmoid": [
        ("x", "no 1 - y in it", lambda d, x: d * sigmoid(x), r"1 - output"),
        ("x", "sigmoid of the output", lambda d, x: d * sigmoid(sigmoid(x)) * (1 - sigmoid(sigmoid(x))), _),
    ],
    "tanh": [
        ("x", "x for the output", lambda d, x: d * (1 - x**2), _),
        ("x", "no square in it", lambda d, x: d * (1 - np.tanh(x)), r"1 \+ output"),
    ],
    "elu": [("x", "no slope at zero and below", lambda d, x: d * (x > 0), "only where x is not positive, .* zero$")],
    "leaky relu": [
        ("x", "no slope below zero", lambda d, x: d * (x > 0), "where x is negative"),
        ("x", "another slope below zero", lambda d, x: d * np.where(x > 0, 1, 0.01), "where x is negative"),
    ],
    "relu": [
        ("x", "no mask in it", lambda d, x: d.copy(), "where x is negative: is a mask forgotten"),
        ("x", "the mask the other way round", lambda d, x: d * (x < 0), _),
        ("x", "the output for the mask", lambda d, x: d * np.maximum(x, 0), r"\bx\b|output"),
    ],
    "clip": [("x", "the upper edge alone", lambda d, x: d * (x < 0.8), "in some or all of 14 of its 20 entries")],
    "huber": [("x", "not clipped", lambda d, x: d * x, _)],
    "arctan": [("x", "not squared", lambda d, x: d / (1 + x), _)],
    "swish": [("x", "sigmoid alone", lambda d, x: d * sigmoid(x), _)],
    "softplus": [("x", "exp for the sigmoid", lambda d, x: d * np.exp(x), r"exp\(output\) too many")],
    "log2": [("x", "another base", lambda d, x: d / x, r"0\.693147181 times")],
    "log": [("x", "an epsilon forgotten", lambda d, x: d / x, _)],
    "quotient": [
        ("b", "b not squared", lambda d, a, b: -d * a / b, r"\bb times"),
        ("b", "the numerator forgotten", lambda d, a, b: -d / b**2, r"1/a"),
        ("a", "a product", lambda d, a, b: d * b, r"b\^2"),
    ],
    "energy": [
        ("x", "a factor without a name", Changed(lambda g: 1.7 * g), r"1\.7 times .* throughout$"),
        ("x", "no square", lambda d, x, y: d * np.cos(x) * y, "it is 1/y times the numerical gradient, entry by entry"),
        ("x", "the cotangent ignored", lambda d, x, y: 0 * x + 3, "it is the same whatever the cotangent$"),
        ("y", "the sign", Changed(np.negative), "it is -1 times"),
        ("y", "cosine for sine", lambda d, x, y: 2 * d * np.cos(x) * y, _),
    ],
    "causal attention": [
        ("q", "that of the keys", attend_backward(1, np.tri(6, dtype=bool)), _),
        ("q", "the mask forgotten", attend_backward(0), "from index 0 to 4 of axis 0"),  # the last sees all anyway
        ("k", "the mask off by one", attend_backward(1, np.tri(6, k=1, dtype=bool)), _),
        ("v", "the mask forgotten", attend_backward(2), _),
    ],
    "padded attention": [("v", "leaks", Changed(lambda g: g + LEAK), "in all 6 such .* is a mask forgotten")],
    "multi-head attention": [
        ("q", "a reshape for combining", Changed(reshaped), r"as \(2, 5, 3, 4\), its axes are permuted"),
        ("k", "as if there were a single head", attend_backward(1), _),
        ("v", "heads in another order", Changed(reordered), "from index 0 to 7 of axis 2"),
        (
            "v",
            "one head of one sample",
            Changed(lambda g: g * ONE_HEAD),
            "0 of axis 0 and from index 8 to 11 of axis 2",
        ),
        ("v", "computed in float32", lambda *a: attend_backward(2, heads=3)(*map(rounded, a)), _),
    ],
    "additive attention": [
        # the softmax does not see a shift of its scores, so without the derivative the terms cancel
        ("query", "no tanh derivative", additive_backward(0, np.ones_like), "it is zero throughout, but for rounding"),
        ("key", "no tanh derivative", additive_backward(1, np.ones_like), _),
        ("value", "the cotangent ignored", lambda d, *a: additive_backward(2)(0 * d + 1, *a), "a plain sum"),
    ],
    "convolution": [
        ("x", "= for += in col2im", lambda d, x, w, b: col2im(d, w, assign), "the last"),
        ("x", "a stride of two", lambda d, x, w, b: col2im(d, w, add, 2), "only at the indices 0 and 2 of axis 1"),
        ("x", "the kernel not flipped", lambda d, x, w, b: col2im(d, w[..., ::-1, ::-1], add), _),
        ("w", "the last row dropped", lambda d, x, w, b: of_kernel(windows(x)[:, :-1], d[:, :-1]), "index 2 of axis 1"),
        ("w", "filters and channels exchanged", lambda d, x, w, b: swap(of_kernel(windows(x), d), 0, 1), "transposed"),
        ("b", "summed over rows alone", lambda d, x, w, b: d.sum(axis=1)[:, 0], "index 0 of axis 2"),
        ("b", "a mean over pixels", lambda d, x, w, b: d.mean(axis=(1, 2)), "1/9"),
        (
            "x",
            "one too far right",
            Changed(lambda g: np.pad(g, [(0, 0), (0, 0), (1, 0)])[..., :-1]),
            "shifted by 1 along axis 2, with zeros",
        ),
    ],
    "pooling": [("x", "= for +=", pooling_backward(assign), "the last")],
    "mean pooling": [
        ("x", "no quarter", lambda d, x: d.repeat(2, 0).repeat(2, 1), "it is 4 times"),
        ("x", "one of four pixels", lambda d, x: np.kron(d, [[1, 0], [0, 0]]) / 4, _),
        ("x", "tiled for repeated", lambda d, x: np.tile(d, (2, 2)) / 4, "permuted"),
    ],
    "embedding": [
        ("w", "= for += of tokens", lookup("last"), "the last counts: does = stand"),
        ("w", "the first of each token", lookup("first"), "only the first counts"),
        ("w", "divided by the tokens", lambda d, w: lookup("add")(d, w) / 7, "1/7"),
    ],
    "upsampling": [
        ("x", "one of four pixels", lambda d, x: d[:, ::2, ::2], "axes 1 and 2 of the output only the first counts"),
        (
            "x",
            "two of four pixels",
            lambda d, x: d[:, ::2, ::2] + d[:, 1::2, ::2],
            "axis 2 of .* only the first counts",
        ),
        ("x", "a mean of the pixels", lambda d, x: d.reshape(2, 3, 2, 3, 2).mean(axis=(2, 4)), r"0\.25 times"),
        ("x", "axes mixed up", lambda d, x: d.reshape(2, 2, 3, 2, 3).sum(axis=(1, 3)), _),
    ],
    "rnn": [
        ("x", "nothing carried back", rnn_backward("x", carry=0), "same index of axis 0"),
        ("w", "no tanh derivative", rnn_backward("w", derivative=False), _),
        ("x", "the first step left out", rnn_backward("x", first=1), "index 0 of axis 0, where it is zero"),
        ("w", "the last step alone", rnn_backward("w", used={3}), _),
        ("u", "half of it carried back", rnn_backward("u", carry=0.5), _),
    ],
    "gru": [
        ("x", "the sign of the gate", Changed(np.negative), "it is -1 times"),
        ("x", "no old state", lambda d, x, h: d * sigmoid(x) * (1 - sigmoid(x)) * np.tanh(h), _),
    ],
    "lstm": [
        ("i", "no derivative of the gate", lambda d, f, i, g, c: d * np.tanh(g), _),
        ("c", "another gate's", lambda d, f, i, g, c: d * sigmoid(i), _),
    ],
    "batch norm": [
        ("x", "statistics as constants", normalization_backward(0, mean=0, product=0), STATISTICS.format(0)),
        ("x", "no mean of the gradient", normalization_backward(0, mean=0), MEAN.format(0)),
        ("x", "no projection", normalization_backward(0, product=0), PROJECTION.format(0) + "x less its mean$"),
        ("x", "no epsilon", normalization_backward(0, eps=0), _),
        ("x", "n - 1 in the means", normalization_backward(0, count=5), "the mean and of the variance"),
        ("x", "gamma forgotten", normalization_backward(0, gain=0), "gamma"),
        ("gamma", "the input for the normalized one", lambda d, x, gamma, beta: (d * x).sum(axis=0), _),
        ("beta", "a mean", lambda d, x, gamma, beta: d.mean(axis=0), "1/6"),
    ],
    "layer norm": [
        ("x", "statistics as constants", normalization_backward(-1, mean=0, product=0), STATISTICS.format(1)),
        ("x", "no mean of the gradient", normalization_backward(-1, mean=0), MEAN.format(1)),
        ("x", "no projection", normalization_backward(-1, product=0), PROJECTION.format(1) + "x less its mean$"),
        ("x", "gamma forgotten", normalization_backward(-1, gain=0), "gamma"),
        ("x", "another epsilon", normalization_backward(-1, eps=1e-3), _),
        ("gamma", "the input not normalized", lambda d, x, gamma, beta: (d * x).sum(axis=0), _),
    ],
    "rms norm": [
        ("x", "no projection", rms_norm_backward(product=0), PROJECTION.format(1) + "x$"),
        ("x", "no epsilon", rms_norm_backward(eps=0), _),
        ("x", "the gain forgotten", rms_norm_backward(gained=False), "gain"),
    ],
    "softmax": [
        ("x", "the diagonal alone", lambda d, x: d * softmax(x) * (1 - softmax(x)), "diagonal"),
        ("x", "no correction", lambda d, x: d * softmax(x), SOFTMAX),
        ("x", "a sum over all rows", lambda d, x: softmax(x) * (d - (softmax(x) * d).sum()), "correction along axis 1"),
    ],
    "sparsemax": [
        (
            "x",
            "no mean over the support",
            lambda d, x: d * (sparsemax(x) > 0),
            "a mean .* equal where the gradient is not zero",
        ),
        ("x", "as of softmax", lambda d, x: sparsemax(x) * (d - (sparsemax(x) * d).sum(-1, keepdims=True)), _),
    ],
    "attention": [
        ("q", "no scale", attend_backward(0, scale=2.0), r"it is 2 times .*4"),
        ("k", "no correction", attend_backward(1, correction=0.0), "correction"),
        ("v", "weights not transposed", lambda d, q, k, v: softmax(q @ k.T / 2) @ d, "transpose"),
        ("k", "twice the correction", attend_backward(1, correction=2.0), ORTHOGONAL),
        ("k", "in float16", Changed(lambda g: rounded(g, np.float16)), _),
        ("q", "rows exchanged", Changed(lambda g: g[[0, 3, 2, 1, 4]]), "at the indices 1 and 3 of axis 0"),
        ("v", "weights without the scale", lambda d, q, k, v: softmax(q @ k.T).T @ d, _),
    ],
    "cross-entropy": [
        ("z", "not divided by the batch", lambda d, z: d * (softmax(z) - LABELS), "it is 5 times"),
        ("z", "the sign", Changed(np.negative), "it is -1 times"),
        ("z", "no labels", lambda d, z: d * softmax(z) / 5, _),
        ("z", "d ignored", lambda d, z: (softmax(z) - LABELS) / 5, "whatever the cotangent"),
    ],
    "cross-entropies": [
        ("z", "no shares", lambda d, z: d[:, None] * softmax(z), _),
        ("z", "shares that are too small", lambda d, z: d[:, None] * (softmax(z) - 0.9 * SHARES), _),
        ("z", "shares that are smoothed", lambda d, z: d[:, None] * (softmax(z) - 0.9 * SHARES - 0.1 * LABELS), _),
    ],
    "mean squared error": [
        ("x", "no two", lambda d, x: d * (x - TARGET) / 20, r"0\.5 times"),
        ("x", "divided by the batch alone", lambda d, x: d * 2 * (x - TARGET) / 5, "it is 4 times"),
    ],
    "binary cross-entropy": [("p", "as behind a sigmoid", lambda d, p: d * (p - LABELS), r"p \* \(1 - p\)")],
    "divergence": [("p", "no one", lambda d, p: d * np.log(p / 0.3), _)],
    "roll": [
        ("x", "rolled the same way", lambda d, x: np.roll(d, 2, axis=0), "shifted by"),
        ("x", "does not wrap", lambda d, x: np.concatenate([d[2:], 0 * d[:2]]), "around"),
    ],
    "circular difference": [
        ("x", "does not wrap", lambda d, x: np.append(0, d[:-1]) - 2 * d + np.append(d[1:], 0), "around the end")
    ],
    "cumsum": [
        ("x", "not reversed", lambda d, x: np.cumsum(d), "transpose"),
        ("x", "not summed", lambda d, x: d.copy(), "diagonal"),
    ],
    "squares summed up": [
        ("x", "not reversed in it", lambda d, x: 2 * x * np.cumsum(d, axis=0), _),
        ("x", "not summed", lambda d, x: 2 * x * d, "diagonal"),
    ],
    "flip": [("x", "not flipped", lambda d, x: 2 * x * d, "axis 0 .*reversed")],
    "transpose": [("x", "not transposed", lambda d, x: d * np.cos(x), "transposed")],
    "heads": [("x", "reshaped without a transpose", lambda d, x: d.reshape(4, 6), "reshape")],
    "concatenation": [("b", "the first rows", lambda d, a, b: 2 * b * d[:4], "shifted|index")],
    "padding": [("x", "cropped at the corner", lambda d, x: d[:4, :5], _)],
    "contraction": [
        ("b", "a row dropped", lambda d, a, b: np.einsum("nij,nik->jk", a[:, 1:], d[:, 1:]), "index 0 of axis 1"),
        ("b", "the batch overwritten", lambda d, a, b: a[-1].T @ d[-1], "index 2 of axis 0"),
        ("b", "a mean over the batch", lambda d, a, b: np.einsum("nij,nik->jk", a, d) / 3, "1/3"),
        ("a", "a column dropped", lambda d, a, b: d[..., :2] @ b[:, :2].T, "index 2 of axis 2"),
    ],
    "variance": [
        ("x", "n - 1", lambda d, x: d * 2 * (x - x.mean(axis=0)) / 5, r"1\.2 times"),
        ("x", "not centered", lambda d, x: d * 2 * x / 6, "a mean along axis 0"),
    ],
    "log-sum-exp": [("x", "not normalized", lambda d, x: d[:, None] * np.exp(x), r"exp\(output\)")],
    "norm": [
        ("x", "not divided", lambda d, x: d[:, None] * x, "output times"),
        ("x", "divided by the square", lambda d, x: d[:, None] * x / (x * x).sum(axis=-1, keepdims=True), "1/output"),
    ],
    "residual": [
        ("x", "one way alone", lambda d, x, w: d.copy(), _),
        ("x", "the way around it forgotten", lambda d, x, w: (d * (1 - np.tanh(x @ w) ** 2)) @ w.T, _),
    ],
    "median": [("x", "its neighbour", lambda d, x: d * (np.arange(7) == x.argsort()[4]), _)],  # in no order
    "dropout": [
        ("x", "no 1/0.7", lambda d, x: d * np.exp(x * DROPPED / 0.7) * DROPPED, r"0\.7 times"),
        ("x", "no mask", lambda d, x: d * np.exp(x * DROPPED / 0.7) / 0.7, "is a mask forgotten"),
    ],
    "product of rows": [("x", "not divided", lambda d, x: (d * x.prod(axis=-1))[:, None] * np.ones_like(x), "x times")],
    "outer": [
        ("a", "not transposed", lambda d, a, b: d.T @ b, "transposed"),
        ("b", "a and b exchanged", lambda d, a, b: b @ d, _),
    ],
    "scale and shift": [
        ("x", "gamma forgotten", lambda d, x, gamma, beta: d.copy(), "1/gamma"),
        ("x", "gamma twice", lambda d, x, gamma, beta: d * gamma**2, "gamma times"),
        ("gamma", "x forgotten", lambda d, x, gamma, beta: d.sum(axis=0), "a factor x is missing$"),
        ("gamma", "one row of the sum", lambda d, x, gamma, beta: (d * x)[1], "index 1 of axis 0"),
        ("x", "clipped", lambda d, x, gamma, beta: np.clip(d * gamma, -0.5, 0.5), _),
        ("gamma", "a sum of cotangents", lambda d, x, *_: (d * x).sum(axis=0) + d.sum(), _),
        ("beta", "a constant", Changed(lambda g: g + 0.01), _),
    ],
}
PLANTED = [
    planted(f"{of}, {where}: {name}", where, gradient, FUNCTIONS[of], expected)
    for of, rows in WRONG.items()
    for where, name, gradient, expected in rows
]


def bug(name: str) -> Planted:
    return next(bug for bug in PLANTED if bug.name == name)
