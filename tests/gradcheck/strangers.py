# ruff: noqa: ARG005 # every gradient takes all inputs
"""Functions as strangers write them, right gradients of some of their inputs, and mistakes that strangers make in them.

``STRANGERS`` has a function a name: forward, inputs, and the right gradients ``gradient(d, *inputs)`` by input.
``MISTAKES`` are wrong ones, with the words that name the cause, or None where nothing but the place can be said.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .programs import normal, softmax

__all__ = ["MISTAKES", "STRANGERS", "Mistaken", "check_of"]


class Stranger(NamedTuple):
    """A function at a point, and its right gradients by some inputs."""

    forward: Any
    inputs: Any
    right: Any


class Mistaken(NamedTuple):
    """A wrong gradient of one input of a function, and a pattern of what is to be said of it."""

    function: str
    where: str
    name: str
    gradient: Any
    word: str | None


def check_of(function: str, where: str, gradient: Any) -> tuple[Any, Any, Any]:
    """The arguments of a check of one gradient: those of the other inputs are their right ones, or zeros."""
    forward, inputs, right = STRANGERS[function]

    def backward(d, *arrays):
        def claimed(name, x):
            of_it = gradient if name == where else right.get(name, lambda *_: np.zeros_like(x))
            return np.array(of_it(d, *arrays), float)

        return tuple(claimed(name, x) for name, x in zip(inputs, arrays, strict=True))

    return forward, backward, inputs


def some(seed, **shapes):
    return {name: normal(*shape, seed=seed + k) for k, (name, shape) in enumerate(shapes.items())}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def positive(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.3, 0.9, shape)


# Convolution by im2col, pooling, embeddings, upsampling


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


# Recurrent nets


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


def lstm(f, i, g, c):
    return sigmoid(f) * c + sigmoid(i) * np.tanh(g)


# Normalizations


def batch_norm(x, gamma, beta):
    return gamma * standard(x, 0) + beta


def standard(x, axis, eps=1e-5):
    centered = x - x.mean(axis=axis, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(axis=axis, keepdims=True) + eps)


def batch_norm_backward(mean=1, product=1, eps=1e-5, count=None, gain=1):
    return normalization_backward(0, mean, product, eps, count, gain)


def normalization_backward(axis, mean=1, product=1, eps=1e-5, count=None, gain=1):
    def backward(d, x, gamma, _beta):
        g = d * (gamma if gain else 1)
        y, n = standard(x, axis, eps), count or x.shape[axis]
        centered = g - mean * g.sum(axis, keepdims=True) / n - product * y * (g * y).sum(axis, keepdims=True) / n
        return centered / np.sqrt(x.var(axis, keepdims=True) + eps)

    return backward


def rms_norm(x, gain):
    return gain * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def rms_norm_backward(product=1, eps=1e-6, gained=True):
    def backward(d, x, gain):
        r = np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
        g = d * gain if gained else d
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


def attend(q, k, v):
    return softmax(q @ k.T / 2) @ v


def attend_backward(which, scale=2.0, correction=1.0):
    def backward(d, q, k, v):
        weights = softmax(q @ k.T / 2)
        d_weights = d @ v.T
        d_scores = weights * (d_weights - correction * (weights * d_weights).sum(axis=-1, keepdims=True)) / scale
        return {"q": d_scores @ k, "k": d_scores.T @ q, "v": weights.T @ d}[which]

    return backward


LABELS = np.eye(4)[[0, 2, 1, 3, 2]]
TARGET = normal(5, 4, seed=90)
DROPPED = np.random.default_rng(5).random((4, 6)) < 0.7
T = np.swapaxes


def entropy(z):
    return np.asarray(-(LABELS * np.log(softmax(z))).sum() / len(z))


def leaky(x):
    return np.where(x.real > 0, x, 0.1 * x)


def huber(x):
    return np.where(np.abs(x.real) < 1, x * x / 2, np.sign(x.real) * x - 0.5)


STRANGERS = {
    "dense": Stranger(
        lambda x, w, b: x @ w + b,
        some(1, x=(5, 4), w=(4, 3), b=(3,)),
        {
            "x": lambda d, x, w, b: d @ w.T,
            "w": lambda d, x, w, b: x.T @ d,
            "b": lambda d, x, w, b: d.sum(axis=0),
        },
    ),
    "square dense": Stranger(
        np.matmul, some(4, x=(4, 4), w=(4, 4)), {"x": lambda d, x, w: d @ w.T, "w": lambda d, x, w: x.T @ d}
    ),
    "tanh layer": Stranger(
        lambda x, w: np.tanh(x @ w),
        some(6, x=(5, 3), w=(3, 4)),
        {"w": lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w) ** 2))},
    ),
    "sigmoid layer": Stranger(
        lambda x, w: sigmoid(x @ w),
        some(8, x=(5, 3), w=(3, 4)),
        {"w": lambda d, x, w: x.T @ (d * sigmoid(x @ w) * (1 - sigmoid(x @ w)))},
    ),
    "relu layer": Stranger(
        lambda x, w: np.maximum((x @ w).real, 0),
        some(10, x=(5, 3), w=(3, 4)),
        {"w": lambda d, x, w: x.T @ (d * (x @ w > 0))},
    ),
    "exp": Stranger(np.exp, some(12, x=(3, 4)), {"x": lambda d, x: d * np.exp(x)}),
    "cube": Stranger(lambda x: x**3, some(13, x=(6,)), {"x": lambda d, x: 3 * d * x**2}),
    "reciprocal": Stranger(lambda x: 1 / x, {"x": positive(7, seed=14)}, {"x": lambda d, x: -d / x**2}),
    "sigmoid": Stranger(sigmoid, some(15, x=(3, 4)), {"x": lambda d, x: d * sigmoid(x) * (1 - sigmoid(x))}),
    "tanh": Stranger(np.tanh, some(16, x=(3, 4)), {"x": lambda d, x: d * (1 - np.tanh(x) ** 2)}),
    "leaky relu": Stranger(leaky, some(17, x=(4, 5)), {"x": lambda d, x: d * np.where(x > 0, 1, 0.1)}),
    "relu": Stranger(lambda x: np.maximum(x.real, 0), some(18, x=(4, 5)), {"x": lambda d, x: d * (x > 0)}),
    "huber": Stranger(huber, {"x": 2 * normal(12, seed=19)}, {"x": lambda d, x: d * np.clip(x, -1, 1)}),
    "arctan": Stranger(np.arctan, some(20, x=(5,)), {"x": lambda d, x: d / (1 + x * x)}),
    "swish": Stranger(
        lambda x: x * sigmoid(x),
        some(21, x=(3, 4)),
        {"x": lambda d, x: d * sigmoid(x) * (1 + x * (1 - sigmoid(x)))},
    ),
    "softplus": Stranger(lambda x: np.log1p(np.exp(x)), some(22, x=(6,)), {"x": lambda d, x: d * sigmoid(x)}),
    "log": Stranger(lambda x: np.log(x + 1e-8), {"x": positive(8, seed=23)}, {"x": lambda d, x: d / (x + 1e-8)}),
    "quotient": Stranger(
        lambda a, b: a / b,
        {"a": normal(3, 4, seed=24), "b": positive(3, 4, seed=25)},
        {"a": lambda d, a, b: d / b, "b": lambda d, a, b: -d * a / b**2},
    ),
    "convolution": Stranger(
        convolution,
        some(26, x=(2, 5, 5), w=(2, 2, 3, 3), b=(2,)),
        {
            "x": lambda d, x, w, b: col2im(d, w, add),
            "w": lambda d, x, w, b: np.einsum("cijkl,fij->fckl", windows(x), d),
            "b": lambda d, x, w, b: d.sum(axis=(1, 2)),
        },
    ),
    "pooling": Stranger(pooled, {"x": SIGNAL}, {"x": pooling_backward(add)}),
    "mean pooling": Stranger(
        lambda x: x.reshape(2, 2, 3, 2).mean(axis=(1, 3)),
        some(29, x=(4, 6)),
        {"x": lambda d, x: d.repeat(2, 0).repeat(2, 1) / 4},
    ),
    "embedding": Stranger(lambda w: w[TOKENS], some(30, w=(5, 3)), {"w": lookup("add")}),
    "upsampling": Stranger(
        lambda x: x.repeat(2, axis=-2).repeat(2, axis=-1),
        some(31, x=(2, 3, 3)),
        {"x": lambda d, x: d.reshape(2, 3, 2, 3, 2).sum(axis=(2, 4))},
    ),
    "rnn": Stranger(
        rnn, some(32, x=(4, 2), w=(2, 3), u=(3, 3)), {name: rnn_backward(name) for name in ("x", "w", "u")}
    ),
    "gru": Stranger(
        gru,
        some(35, x=(6,), h=(6,)),
        {"x": lambda d, x, h: d * sigmoid(x) * (1 - sigmoid(x)) * (np.tanh(h) - h)},
    ),
    "lstm": Stranger(
        lstm,
        some(37, f=(5,), i=(5,), g=(5,), c=(5,)),
        {
            "i": lambda d, f, i, g, c: d * np.tanh(g) * sigmoid(i) * (1 - sigmoid(i)),
            "c": lambda d, f, i, g, c: d * sigmoid(f),
        },
    ),
    "batch norm": Stranger(
        batch_norm,
        some(41, x=(6, 3), gamma=(3,), beta=(3,)),
        {
            "x": batch_norm_backward(),
            "gamma": lambda d, x, gamma, beta: (d * standard(x, 0)).sum(axis=0),
            "beta": lambda d, x, gamma, beta: d.sum(axis=0),
        },
    ),
    "layer norm": Stranger(
        lambda x, gamma, beta: gamma * standard(x, -1) + beta,
        some(44, x=(3, 6), gamma=(6,), beta=(6,)),
        {"x": normalization_backward(-1)},
    ),
    "rms norm": Stranger(rms_norm, some(47, x=(3, 5), gain=(5,)), {"x": rms_norm_backward()}),
    "softmax": Stranger(
        softmax, some(49, x=(4, 5)), {"x": lambda d, x: softmax(x) * (d - (softmax(x) * d).sum(-1, keepdims=True))}
    ),
    "sparsemax": Stranger(sparsemax, some(50, x=(4, 5)), {"x": sparsemax_backward}),
    "attention": Stranger(
        attend,
        some(51, q=(5, 4), k=(5, 4), v=(5, 3)),
        {name: attend_backward(name) for name in ("q", "k", "v")},
    ),
    "cross-entropy": Stranger(entropy, some(54, z=(5, 4)), {"z": lambda d, z: d * (softmax(z) - LABELS) / 5}),
    "mean squared error": Stranger(
        lambda x: np.asarray(((x - TARGET) ** 2).mean()),
        some(55, x=(5, 4)),
        {"x": lambda d, x: d * 2 * (x - TARGET) / 20},
    ),
    "binary cross-entropy": Stranger(
        lambda p: -(LABELS * np.log(p) + (1 - LABELS) * np.log(1 - p)),
        {"p": positive(5, 4, seed=56)},
        {"p": lambda d, p: d * (p - LABELS) / (p * (1 - p))},
    ),
    "divergence": Stranger(
        lambda p: np.asarray((p * np.log(p / 0.3)).sum()),
        {"p": positive(4, 3, seed=57)},
        {"p": lambda d, p: d * (np.log(p / 0.3) + 1)},
    ),
    "roll": Stranger(lambda x: np.roll(x, 2, axis=0), some(58, x=(7, 2)), {"x": lambda d, x: np.roll(d, -2, axis=0)}),
    "circular difference": Stranger(
        lambda x: np.roll(x, -1) - 2 * x + np.roll(x, 1),
        some(59, x=(8,)),
        {"x": lambda d, x: np.roll(d, 1) - 2 * d + np.roll(d, -1)},
    ),
    "cumsum": Stranger(np.cumsum, some(60, x=(6,)), {"x": lambda d, x: np.cumsum(d[::-1])[::-1]}),
    "squares summed up": Stranger(
        lambda x: np.cumsum(x**2, axis=0),
        some(61, x=(5, 2)),
        {"x": lambda d, x: 2 * x * np.cumsum(d[::-1], axis=0)[::-1]},
    ),
    "flip": Stranger(lambda x: np.flip(x**2, 0), some(62, x=(5, 2)), {"x": lambda d, x: 2 * x * d[::-1]}),
    "transpose": Stranger(lambda x: np.sin(x).T, some(63, x=(4, 4)), {"x": lambda d, x: d.T * np.cos(x)}),
    "heads": Stranger(
        lambda x: T(x.reshape(4, 2, 3), 0, 1) + 0,
        some(64, x=(4, 6)),
        {"x": lambda d, x: T(d, 0, 1).reshape(4, 6)},
    ),
    "concatenation": Stranger(
        lambda a, b: np.concatenate([a, b]) ** 2,
        some(65, a=(3, 2), b=(4, 2)),
        {"b": lambda d, a, b: 2 * b * d[3:]},
    ),
    "padding": Stranger(lambda x: np.pad(x, 1), some(67, x=(4, 5)), {"x": lambda d, x: d[1:-1, 1:-1]}),
    "contraction": Stranger(
        lambda a, b: np.einsum("nij,jk->nik", a, b),
        some(68, a=(3, 2, 4), b=(4, 3)),
        {
            "a": lambda d, a, b: np.einsum("nik,jk->nij", d, b),
            "b": lambda d, a, b: np.einsum("nij,nik->jk", a, d),
        },
    ),
    "variance": Stranger(
        lambda x: x.var(axis=0), some(70, x=(6, 3)), {"x": lambda d, x: d * 2 * (x - x.mean(axis=0)) / 6}
    ),
    "log-sum-exp": Stranger(
        lambda x: np.log(np.exp(x).sum(axis=-1)), some(71, x=(4, 3)), {"x": lambda d, x: d[:, None] * softmax(x)}
    ),
    "norm": Stranger(
        lambda x: np.sqrt((x * x).sum(axis=-1)),
        some(72, x=(4, 3)),
        {"x": lambda d, x: d[:, None] * x / np.sqrt((x * x).sum(axis=-1, keepdims=True))},
    ),
    "dropout": Stranger(
        lambda x: np.exp(x * DROPPED / 0.7),
        some(73, x=(4, 6)),
        {"x": lambda d, x: d * np.exp(x * DROPPED / 0.7) * DROPPED / 0.7},
    ),
    "product of rows": Stranger(
        lambda x: x.prod(axis=-1), some(74, x=(4, 3)), {"x": lambda d, x: (d * x.prod(axis=-1))[:, None] / x}
    ),
    "outer": Stranger(np.outer, some(75, a=(4,), b=(4,)), {"a": lambda d, a, b: d @ b, "b": lambda d, a, b: a @ d}),
    "scale and shift": Stranger(
        lambda x, gamma, beta: gamma * x + beta,
        some(77, x=(5, 3), gamma=(3,), beta=(3,)),
        {"x": lambda d, x, gamma, beta: d * gamma, "gamma": lambda d, x, gamma, beta: (d * x).sum(axis=0)},
    ),
}

_ = None
WRONG: dict[str, Any] = {  # by function: the input, the mistake, the wrong gradient, and the word
    "dense": [
        ("b", "a mean for the sum", lambda d, x, w, b: d.mean(axis=0), r"0\.2 times .* mean"),
        ("w", "divided by the batch", lambda d, x, w, b: x.T @ d / 5, r"0\.2 times .*5"),
        ("w", "the last sample dropped", lambda d, x, w, b: x[:-1].T @ d[:-1], "index 4 of axis 0"),
        ("x", "a column dropped", lambda d, x, w, b: d[:, 1:] @ w[:, 1:].T, "index 0 of axis 1"),
        (
            "w",
            "= for += over the batch",
            lambda d, x, w, b: np.outer(x[-1], d[-1]),
            "index 4 of axis 0, the last: does = stand",
        ),
        ("b", "the first sample alone", lambda d, x, w, b: d[0], "index 0 of axis 0"),
        ("w", "accumulated twice", lambda d, x, w, b: 2 * x.T @ d, "it is 2 times"),
        ("x", "the sign", lambda d, x, w, b: -d @ w.T, "it is -1 times"),
        ("b", "nothing", lambda d, x, w, b: 0 * b, "zero throughout"),
        ("b", "not summed", lambda d, x, w, b: d, "the sum over the broadcast axis 0 is missing"),
        ("w", "transposed", lambda d, x, w, b: d.T @ x, "transposed"),
        ("w", "weight decay", lambda d, x, w, b: x.T @ d + 0.01 * w, "0.01 times w"),
        ("x", "single precision", lambda d, x, w, b: (d @ w.T).astype(np.float32), "float32"),
    ],
    "square dense": [
        ("x", "w not transposed", lambda d, x, w: d @ w, "transpose"),
        ("w", "x not transposed", lambda d, x, w: x @ d, "transpose"),
        ("w", "d transposed", lambda d, x, w: x.T @ d.T, "gradient of the output .*transposed"),
        ("w", "result transposed", lambda d, x, w: d.T @ x, "transposed"),
    ],
    "tanh layer": [
        ("w", "no tanh derivative", lambda d, x, w: x.T @ d, r"1 - output\^2"),
        ("w", "1 - y for 1 - y^2", lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w))), r"1 \+ output"),
        ("w", "the derivative twice", lambda d, x, w: x.T @ (d * (1 - np.tanh(x @ w) ** 2) ** 2), r"1 - output\^2"),
        ("w", "tanh twice", lambda d, x, w: x.T @ (d * (1 - np.tanh(np.tanh(x @ w)) ** 2)), _),
    ],
    "sigmoid layer": [
        ("w", "no 1 - y", lambda d, x, w: x.T @ (d * sigmoid(x @ w)), "1 - output"),
        ("w", "no derivative", lambda d, x, w: x.T @ d, r"output \* \(1 - output\)"),
    ],
    "relu layer": [
        ("w", "no mask", lambda d, x, w: x.T @ d, "is a mask forgotten, as that of a ReLU"),
    ],
    "exp": [
        ("x", "no exp", lambda d, x: d.copy(), "1/output"),
        ("x", "x for exp(x)", lambda d, x: d * x, _),
    ],
    "cube": [
        ("x", "no square", lambda d, x: 3 * d * x, "1/x"),
        ("x", "no three", lambda d, x: d * x**2, r"0\.333333333 times"),
        ("x", "no three and no square", lambda d, x: d * x, "/x"),
    ],
    "reciprocal": [
        ("x", "no square in the denominator", lambda d, x: -d / x, r"\bx\b"),
        ("x", "no sign", lambda d, x: d / x**2, "it is -1 times"),
    ],
    "sigmoid": [
        ("x", "no 1 - y in it", lambda d, x: d * sigmoid(x), r"1 - output"),
        ("x", "sigmoid of the output", lambda d, x: d * sigmoid(sigmoid(x)) * (1 - sigmoid(sigmoid(x))), _),
    ],
    "tanh": [
        ("x", "x for the output", lambda d, x: d * (1 - x**2), _),
        ("x", "no square in it", lambda d, x: d * (1 - np.tanh(x)), r"1 \+ output"),
    ],
    "leaky relu": [
        ("x", "no slope below zero", lambda d, x: d * (x > 0), "where x is negative"),
        ("x", "another slope below zero", lambda d, x: d * np.where(x > 0, 1, 0.01), "where x is negative"),
    ],
    "relu": [
        ("x", "no mask in it", lambda d, x: d.copy(), "where x is negative: is a mask forgotten"),
        ("x", "the mask the other way round", lambda d, x: d * (x < 0), _),
        ("x", "the output for the mask", lambda d, x: d * np.maximum(x, 0), r"\bx\b|output"),
    ],
    "huber": [
        ("x", "not clipped", lambda d, x: d * x, _),
    ],
    "arctan": [
        ("x", "not squared", lambda d, x: d / (1 + x), _),
    ],
    "swish": [
        ("x", "sigmoid alone", lambda d, x: d * sigmoid(x), _),
    ],
    "softplus": [
        ("x", "exp for the sigmoid", lambda d, x: d * np.exp(x), r"exp\(output\) too many"),
    ],
    "log": [
        ("x", "an epsilon forgotten", lambda d, x: d / x, "epsilon"),
    ],
    "quotient": [
        ("b", "b not squared", lambda d, a, b: -d * a / b, r"\bb times"),
        ("b", "the numerator forgotten", lambda d, a, b: -d / b**2, r"1/a"),
        ("a", "a product", lambda d, a, b: d * b, r"b\^2"),
    ],
    "convolution": [
        ("x", "= for += in col2im", lambda d, x, w, b: col2im(d, w, assign), "the last"),
        (
            "x",
            "a stride of two in col2im",
            lambda d, x, w, b: col2im(d, w, add, 2),
            "used only at the indices 0 and 2 of axis 1",
        ),
        ("x", "the kernel not flipped", lambda d, x, w, b: col2im(d, w[..., ::-1, ::-1], add), _),
        (
            "w",
            "the last row dropped",
            lambda d, x, w, b: np.einsum("cijkl,fij->fckl", windows(x)[:, :-1], d[:, :-1]),
            "index 2 of axis 1",
        ),
        (
            "w",
            "filters and channels exchanged",
            lambda d, x, w, b: np.einsum("cijkl,fij->cfkl", windows(x), d),
            "transposed",
        ),
        ("b", "summed over rows alone", lambda d, x, w, b: d.sum(axis=1)[:, 0], "index 0 of axis 2"),
        ("b", "a mean over pixels", lambda d, x, w, b: d.mean(axis=(1, 2)), "1/9"),
        (
            "x",
            "one too far right",
            lambda d, x, w, b: np.pad(col2im(d, w, add), [(0, 0), (0, 0), (1, 0)])[..., :-1],
            "shifted by 1 along axis 2, with zeros from beyond",
        ),
    ],
    "pooling": [
        ("x", "= for +=", pooling_backward(assign), "the last"),
    ],
    "mean pooling": [
        ("x", "no quarter", lambda d, x: d.repeat(2, 0).repeat(2, 1), "it is 4 times"),
        (
            "x",
            "one of four pixels",
            lambda d, x: np.kron(d, [[1, 0], [0, 0]]) / 4,
            "right only at the indices 0 and 2 of axis 0 and at every second",
        ),
        ("x", "tiled for repeated", lambda d, x: np.tile(d, (2, 2)) / 4, "permuted"),
    ],
    "embedding": [
        ("w", "= for += of tokens", lookup("last"), "the last counts: does = stand"),
        ("w", "the first of each token", lookup("first"), "only the first counts"),
        ("w", "divided by the tokens", lambda d, w: lookup("add")(d, w) / 7, "1/7"),
    ],
    "upsampling": [
        (
            "x",
            "one of four pixels",
            lambda d, x: d[:, ::2, ::2],
            "along axes 1 and 2 of the output only the first counts",
        ),
        (
            "x",
            "two of four pixels",
            lambda d, x: d[:, ::2, ::2] + d[:, 1::2, ::2],
            "along axis 2 of the output only the first counts",
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
        (
            "x",
            "the sign of the gate",
            lambda d, x, h: d * sigmoid(x) * (1 - sigmoid(x)) * (h - np.tanh(h)),
            "it is -1 times",
        ),
        ("x", "no old state", lambda d, x, h: d * sigmoid(x) * (1 - sigmoid(x)) * np.tanh(h), _),
    ],
    "lstm": [
        ("i", "no derivative of the gate", lambda d, f, i, g, c: d * np.tanh(g), _),
        ("c", "another gate's", lambda d, f, i, g, c: d * sigmoid(i), _),
    ],
    "batch norm": [
        ("x", "statistics as constants", batch_norm_backward(mean=0, product=0), "the mean and of the variance"),
        ("x", "no mean of the gradient", batch_norm_backward(mean=0), "mean|same number"),
        ("x", "no projection", batch_norm_backward(product=0), "normalization"),
        ("x", "no epsilon", batch_norm_backward(eps=0), "epsilon"),
        ("x", "n - 1 in the means", batch_norm_backward(count=5), "the mean and of the variance"),
        ("x", "gamma forgotten", batch_norm_backward(gain=0), "gamma"),
        ("gamma", "the input for the normalized one", lambda d, x, gamma, beta: (d * x).sum(axis=0), _),
        ("beta", "a mean", lambda d, x, gamma, beta: d.mean(axis=0), "1/6"),
    ],
    "layer norm": [
        ("x", "statistics as constants", normalization_backward(-1, mean=0, product=0), "the mean and of the variance"),
        ("x", "no mean of the gradient", normalization_backward(-1, mean=0), "mean|same number"),
        ("x", "no projection", normalization_backward(-1, product=0), "normalization"),
        ("x", "gamma forgotten", normalization_backward(-1, gain=0), "gamma"),
        ("x", "another epsilon", normalization_backward(-1, eps=1e-3), "epsilon"),
    ],
    "rms norm": [
        ("x", "no projection", rms_norm_backward(product=0), "normalization"),
        ("x", "no epsilon", rms_norm_backward(eps=0), "epsilon"),
        ("x", "the gain forgotten", rms_norm_backward(gained=False), "gain"),
    ],
    "softmax": [
        ("x", "the diagonal alone", lambda d, x: d * softmax(x) * (1 - softmax(x)), "diagonal"),
        ("x", "no correction", lambda d, x: d * softmax(x), "softmax correction"),
        (
            "x",
            "a sum over all rows",
            lambda d, x: softmax(x) * (d - (softmax(x) * d).sum()),
            "softmax correction along axis 1",
        ),
    ],
    "sparsemax": [
        (
            "x",
            "no mean over the support",
            lambda d, x: d * (sparsemax(x) > 0),
            "a mean along axis 1.* equal where the gradient is not zero",
        ),
        ("x", "as of softmax", lambda d, x: sparsemax(x) * (d - (sparsemax(x) * d).sum(-1, keepdims=True)), _),
    ],
    "attention": [
        ("q", "no scale", attend_backward("q", scale=1.0), r"it is 2 times .*4"),
        ("k", "no correction", attend_backward("k", correction=0.0), "correction"),
        ("v", "weights not transposed", lambda d, q, k, v: softmax(q @ k.T / 2) @ d, "transpose"),
    ],
    "cross-entropy": [
        ("z", "not divided by the batch", lambda d, z: d * (softmax(z) - LABELS), "it is 5 times"),
        ("z", "the sign", lambda d, z: d * (LABELS - softmax(z)) / 5, "it is -1 times"),
        ("z", "no labels", lambda d, z: d * softmax(z) / 5, _),
        ("z", "d ignored", lambda d, z: (softmax(z) - LABELS) / 5, "whatever the cotangent"),
    ],
    "mean squared error": [
        ("x", "no two", lambda d, x: d * (x - TARGET) / 20, r"0\.5 times"),
        ("x", "divided by the batch alone", lambda d, x: d * 2 * (x - TARGET) / 5, "it is 4 times"),
    ],
    "binary cross-entropy": [
        ("p", "as behind a sigmoid", lambda d, p: d * (p - LABELS), r"p \* \(1 - p\)"),
    ],
    "divergence": [
        ("p", "no one", lambda d, p: d * np.log(p / 0.3), "same number"),
    ],
    "roll": [
        ("x", "rolled the same way", lambda d, x: np.roll(d, 2, axis=0), "shifted by"),
        ("x", "does not wrap", lambda d, x: np.concatenate([d[2:], 0 * d[:2]]), "around|from index 5 of axis 0 on"),
    ],
    "circular difference": [
        ("x", "does not wrap", lambda d, x: np.append(0, d[:-1]) - 2 * d + np.append(d[1:], 0), "around the end"),
    ],
    "cumsum": [
        ("x", "not reversed", lambda d, x: np.cumsum(d), "transpose"),
        ("x", "not summed", lambda d, x: d.copy(), "diagonal"),
    ],
    "squares summed up": [
        ("x", "not reversed in it", lambda d, x: 2 * x * np.cumsum(d, axis=0), _),
        ("x", "not summed", lambda d, x: 2 * x * d, "diagonal"),
    ],
    "flip": [
        ("x", "not flipped", lambda d, x: 2 * x * d, "axis 0 .*reversed"),
    ],
    "transpose": [
        ("x", "not transposed", lambda d, x: d * np.cos(x), "transposed"),
    ],
    "heads": [
        ("x", "reshaped without a transpose", lambda d, x: d.reshape(4, 6), "reshape"),
    ],
    "concatenation": [
        ("b", "the first rows", lambda d, a, b: 2 * b * d[:4], "shifted|index"),
    ],
    "padding": [
        ("x", "cropped at the corner", lambda d, x: d[:4, :5], _),
    ],
    "contraction": [
        ("b", "a row dropped", lambda d, a, b: np.einsum("nij,nik->jk", a[:, 1:], d[:, 1:]), "index 0 of axis 1"),
        ("b", "the batch overwritten", lambda d, a, b: a[-1].T @ d[-1], "index 2 of axis 0"),
        ("b", "a mean over the batch", lambda d, a, b: np.einsum("nij,nik->jk", a, d) / 3, "1/3"),
        ("a", "a column dropped", lambda d, a, b: d[..., :2] @ b[:, :2].T, "index 2 of axis 2"),
    ],
    "variance": [
        ("x", "n - 1", lambda d, x: d * 2 * (x - x.mean(axis=0)) / 5, "variance, with n - 1"),
        ("x", "not centered", lambda d, x: d * 2 * x / 6, "a mean along axis 0"),
    ],
    "log-sum-exp": [
        ("x", "not normalized", lambda d, x: d[:, None] * np.exp(x), r"exp\(output\)"),
    ],
    "norm": [
        ("x", "not divided", lambda d, x: d[:, None] * x, "output times"),
        ("x", "divided by the square", lambda d, x: d[:, None] * x / (x * x).sum(axis=-1, keepdims=True), "1/output"),
    ],
    "dropout": [
        ("x", "no 1/0.7", lambda d, x: d * np.exp(x * DROPPED / 0.7) * DROPPED, r"0\.7 times"),
        ("x", "no mask", lambda d, x: d * np.exp(x * DROPPED / 0.7) / 0.7, "is a mask forgotten"),
    ],
    "product of rows": [
        ("x", "not divided", lambda d, x: (d * x.prod(axis=-1))[:, None] * np.ones_like(x), "x times"),
    ],
    "outer": [
        ("a", "not transposed", lambda d, a, b: d.T @ b, "transposed"),
        ("b", "a and b exchanged", lambda d, a, b: b @ d, _),
    ],
    "scale and shift": [
        ("x", "gamma forgotten", lambda d, x, gamma, beta: d.copy(), "1/gamma"),
        ("x", "gamma twice", lambda d, x, gamma, beta: d * gamma**2, "gamma times"),
        ("gamma", "one row of the sum", lambda d, x, gamma, beta: (d * x)[1], "index 1 of axis 0"),
        ("x", "clipped", lambda d, x, gamma, beta: np.clip(d * gamma, -0.5, 0.5), "not linear"),
    ],
}
MISTAKES = [Mistaken(function, *row) for function, rows in WRONG.items() for row in rows]
