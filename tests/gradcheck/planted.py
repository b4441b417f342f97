"""Correct functions, and bugs planted in their gradients, with what a diagnosis says of them.

Each function is plain NumPy: ``forward(*inputs) -> array`` and ``backward(d_output, *inputs)``, a tuple with one
gradient for each input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .programs import back_through_layer_norm, normal, softmax
from .programs import layer_norm as normalized

__all__ = ["FUNCTIONS", "PLANTED", "Function", "Planted", "like"]

Array = npt.NDArray[Any]
Backward = Callable[..., tuple[Array, ...]]


class Function(NamedTuple):
    """A correct function with its gradients, and the point to look at."""

    forward: Callable[..., Array]
    backward: Backward
    inputs: Mapping[str, Array]


class Planted(NamedTuple):
    """A bug planted in the gradient of the input called `where`."""

    name: str
    kind: str
    forward: Callable[..., Array]
    backward: Backward
    wrong_backward: Backward
    inputs: Mapping[str, Array]
    where: str

    @property
    def expected(self) -> str | None:
        """What is said of it, word for word: people read these sentences, and search for them."""
        return SENTENCES.get(self.name)


def back_through_softmax(d: Array, weights: Array) -> Array:
    return weights * (d - (weights * d).sum(axis=-1, keepdims=True))


def swap(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


# The functions


def matmul(a, b):
    return a @ b


def matmul_backward(d, a, b):
    return d @ b.T, a.T @ d


def layer(x, w, b):
    return np.tanh(x @ w + b)


def layer_backward(d, x, w, b):
    z = d * (1 - np.tanh(x @ w + b) ** 2)
    return z @ w.T, x.T @ z, z.sum(axis=0)


def softmax_backward(d, x):
    return (back_through_softmax(d, softmax(x)),)


def attention_of(mask: Array | None = None, heads: int = 0) -> tuple[Callable[..., Array], Backward]:
    """Scaled dot-product attention, with `heads` along the last axis if there are any, and its gradients."""

    def split(x):
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3) if heads else x

    def combine(x):
        return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1) if heads else x

    def weights_of(query, key):
        scores = query @ swap(key) / np.sqrt(query.shape[-1])
        return softmax(scores if mask is None else np.where(mask, scores, -1e9))

    def forward(query, key, value):
        return combine(weights_of(split(query), split(key)) @ split(value))

    def backward(d, query, key, value):
        d, query, key, value = split(d), split(query), split(key), split(value)
        weights = weights_of(query, key)
        d_scores = back_through_softmax(d @ swap(value), weights) / np.sqrt(query.shape[-1])
        return combine(d_scores @ key), combine(swap(d_scores) @ query), combine(swap(weights) @ d)

    return forward, backward


def biased_attention(scores, bias, value, w):
    return softmax(scores + bias) @ value @ w


def biased_attention_backward(d, scores, bias, value, w):
    weights = softmax(scores + bias)
    d_scores = back_through_softmax(d @ w.T @ value.T, weights)
    return d_scores, d_scores, weights.T @ d @ w.T, (weights @ value).T @ d


def layer_norm(x, gamma, beta):
    return normalized(x) * gamma + beta


def normalized_backward(d, x):
    return (back_through_layer_norm(d, x),)


def layer_norm_backward(d, x, gamma, beta):  # noqa: ARG001
    return *normalized_backward(d * gamma, x), (d * normalized(x)).sum(axis=0), d.sum(axis=0)


def on_sphere(x):
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True))


def on_sphere_backward(d, x):
    y = on_sphere(x)
    return ((d - y * (d * y).sum(axis=-1, keepdims=True)) / np.sqrt((x**2).sum(axis=-1, keepdims=True)),)


def additive(query, key, value, w_query, w_key, w_score):
    hidden = np.tanh((query @ w_query)[:, np.newaxis] + key @ w_key)
    return softmax(hidden @ w_score) @ value


def additive_backward(d, query, key, value, w_query, w_key, w_score, *, tanh_derivative=lambda h: 1 - h**2):
    hidden = np.tanh((query @ w_query)[:, np.newaxis] + key @ w_key)  # (n, m, h)
    weights = softmax(hidden @ w_score)
    d_scores = back_through_softmax(d @ value.T, weights)
    z = d_scores[..., np.newaxis] * w_score * tanh_derivative(hidden)
    d_q, d_k = z.sum(axis=1), z.sum(axis=0)
    d_w_score = (d_scores[..., np.newaxis] * hidden).sum(axis=(0, 1))
    return d_q @ w_query.T, d_k @ w_key.T, weights.T @ d, query.T @ d_q, key.T @ d_k, d_w_score


def blocked(x, w, *, block=8):
    return np.concatenate([np.tanh(x[k : k + block] @ w) for k in range(0, len(x), block)])


def blocked_backward(d, x, w, *, block=8, used=lambda _: True):
    """`used` says which blocks contribute, by where they start."""
    d_x, d_w = np.zeros_like(x), np.zeros_like(w)
    for k in range(0, len(x), block):
        rows = slice(k, k + block)
        z = d[rows] * (1 - np.tanh(x[rows] @ w) ** 2)
        if used(k):
            d_x[rows] = z @ w.T
            d_w += x[rows].T @ z
    return d_x, d_w


def running_mean(x):
    return np.cumsum(np.exp(x / 2), axis=0) / np.arange(1, len(x) + 1)[:, np.newaxis]


def running_mean_backward(d, x):
    shares = d / np.arange(1, len(x) + 1)[:, np.newaxis]
    return (np.flip(np.cumsum(np.flip(shares, 0), axis=0), 0) * np.exp(x / 2) / 2,)


CAUSAL = np.tri(6, dtype=bool)
PADDED = np.arange(7) < 5  # the keys that may be attended to


def arrays(seed: int, **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Normal numbers, the seed of each array one more than that of the one before."""
    return {name: normal(*shape, seed=seed + k) for k, (name, shape) in enumerate(shapes.items())}


LAYER = arrays(9, x=(5, 4), w=(4, 6), b=(6,))
PARAMETERS = {"w_query": (3, 6), "w_key": (3, 6), "w_score": (6,)}
FUNCTIONS: dict[str, Function] = {
    "times": Function(lambda x, b: x * b, lambda d, x, b: (d * b, (d * x).sum(axis=0)), arrays(1, x=(4, 5), b=(5,))),
    "scaled rows": Function(
        lambda x, s: np.sin(x) * s,
        lambda d, x, s: (d * np.cos(x) * s, (d * np.sin(x)).sum(axis=(0, -1))[:, np.newaxis]),
        arrays(3, x=(2, 3, 4), s=(3, 1)),
    ),
    "matmul": Function(matmul, matmul_backward, arrays(5, a=(4, 6), b=(6, 3))),
    "square matmul": Function(matmul, matmul_backward, arrays(7, a=(4, 4), b=(4, 4))),
    "layer": Function(layer, layer_backward, LAYER | {"w": LAYER["w"] / 2}),
    "softmax": Function(softmax, softmax_backward, arrays(12, scores=(4, 6))),
    "attention": Function(*attention_of(), arrays(13, query=(5, 8), key=(7, 8), value=(7, 3))),
    "causal attention": Function(*attention_of(CAUSAL), arrays(16, query=(6, 4), key=(6, 4), value=(6, 4))),
    "padded attention": Function(*attention_of(PADDED), arrays(19, query=(5, 8), key=(7, 8), value=(7, 3))),
    "multi-head attention": Function(
        *attention_of(heads=3), arrays(22, query=(2, 5, 12), key=(2, 5, 12), value=(2, 5, 12))
    ),
    "biased attention": Function(
        biased_attention, biased_attention_backward, arrays(25, scores=(4, 6), bias=(4, 6), value=(6, 5), w=(5, 3))
    ),
    "layer norm": Function(layer_norm, layer_norm_backward, arrays(29, x=(5, 8), gamma=(8,), beta=(8,))),
    "normalized": Function(normalized, normalized_backward, arrays(32, x=(5, 8))),
    "on the sphere": Function(on_sphere, on_sphere_backward, arrays(33, x=(5, 8))),
    "additive attention": Function(
        additive, additive_backward, arrays(34, query=(4, 3), key=(5, 3), value=(5, 2), **PARAMETERS)
    ),
    "mean of squares": Function(
        lambda x: (x**2).mean(axis=0), lambda d, x: (2 * x * d / len(x),), arrays(40, x=(5, 3))
    ),
    "blocked": Function(blocked, blocked_backward, arrays(41, x=(19, 4), w=(4, 3))),
    "running mean": Function(running_mean, running_mean_backward, arrays(43, x=(6, 3))),
    "wave": Function(
        lambda x, gain: np.sin(gain * x),
        lambda d, x, gain: (d * np.cos(gain * x) * gain, (d * np.cos(gain * x) * x).sum().reshape(gain.shape)),
        arrays(44, x=(7,)) | {"gain": np.array(1.3)},
    ),
    "energy": Function(
        lambda x, y: np.asarray((np.sin(x) * y**2).sum()),
        lambda d, x, y: (d * np.cos(x) * y**2, 2 * d * np.sin(x) * y),
        arrays(45, x=(3, 4), y=(3, 4)),
    ),
}

SENTENCES = {  # of the bugs below; of those that are not here nothing can be said
    "matmul, a: the sign": "it is -1 times the numerical gradient throughout",
    "energy, y: the sign": "it is -1 times the numerical gradient throughout",
    "wave, gain: the sign of a single entry": "it is -1 times the numerical gradient throughout",
    "mean of squares, x: the 2 of the square": "it is 0.5 times the numerical gradient throughout",
    "layer, w: counted twice": (
        "it is 2 times the numerical gradient throughout: perhaps sqrt(4), where 4 is the length of the last axis of x"
    ),
    "energy, x: a factor without a name": "it is 1.7 times the numerical gradient throughout",
    "attention, value: nothing": "it is zero throughout",
    "attention, query: no scale": (
        "it is 2.82842712 times the numerical gradient throughout: sqrt(8), where 8 is the length of the last"
        " axis of query"
    ),
    "attention, key: the scale twice": (
        "it is 0.353553391 times the numerical gradient throughout: 1/sqrt(8), where 8 is the length of the "
        "last axis of query"
    ),
    "attention, key: the scale of another length": (
        "it is 1.63299316 times the numerical gradient throughout: perhaps sqrt(8/3), where 8 is the length "
        "of the last axis of query and 3 is the length of the last axis of value"
    ),
    "attention, query: minus the scale": (
        "it is -2.82842712 times the numerical gradient throughout: -sqrt(8), where 8 is the length of the "
        "last axis of query"
    ),
    "causal attention, key: dropout forgotten": "it is 0.9 times the numerical gradient throughout",
    "layer, b: a mean in the place of the sum": (
        "it is 0.2 times the numerical gradient throughout: 1/5, as a mean in the place of the sum over the "
        "broadcast axis of length 5 gives"
    ),
    "times, b: a mean in the place of the sum": (
        "it is 0.25 times the numerical gradient throughout: 1/4, as a mean in the place of the sum over the "
        "broadcast axis of length 4 gives"
    ),
    "scaled rows, s: a mean over both axes": (
        "it is 0.125 times the numerical gradient throughout: 1/8, as a mean in the place of the sum over the"
        " broadcast axes of lengths 2 and 4 gives"
    ),
    "mean of squares, x: the sum in the place of the mean": (
        "it is 5 times the numerical gradient throughout: 5, which is the length of axis 0 of x"
    ),
    "running mean, x: each row with its own": "each index of axis 0 has its own factor, 0.1667 to 1",
    "layer, w: each column with its own": "each index of axis 1 has its own factor, 0.5 to 2",
    "square matmul, a: transposed": "axes 0 and 1 are transposed",
    "causal attention, query: the keys' gradient": "it is the gradient of key in the place of its own",
    "causal attention, key: swapped with query": "the gradients of key and query are swapped: each is the other's",
    "square matmul, b: swapped with a": "the gradients of b and a are swapped: each is the other's",
    "matmul, b: a reshape of the transpose": (
        "it is transposed to (3, 6) and then reshaped to (6, 3): a reshape stands where a transpose belongs"
    ),
    "running mean, x: time reversed": "axis 0 is reversed",
    "layer norm, gamma: reversed": "axis 0 is reversed",
    "attention, key: off by one": "it is shifted by 1 along axis 0, around the end",
    "times, b: off by two": "it is shifted by -2 along axis 0, around the end",
    "multi-head attention, value: heads in another order": "the blocks of 4 along axis 2 are in another order: 1, 0, 2",
    "multi-head attention, query: a reshape in the place of combining heads": (
        "a reshape stands where a transpose belongs, or the other way round: as (2, 5, 3, 4), its axes are "
        "permuted to the order 0, 2, 1 and 3 before it is reshaped to (2, 5, 12)"
    ),
    "padded attention, query: two rows exchanged": "indices 1 and 3 of axis 0 are exchanged",
    "layer, b: one term of the sum": "the gradient of the output is used only at index 0 of axis 0",
    "layer, b: the last term missing": "the gradient of the output is left out at index 4 of axis 0",
    "times, b: the last term missing": "the gradient of the output is left out at index 3 of axis 0",
    "scaled rows, s: summed over one axis of two": "the gradient of the output is left out at index 1 of axis 0",
    "layer norm, gamma: up to the middle": "the gradient of the output is left out from index 3 of axis 0 on (of 5)",
    "times, b: the sum missing": "the sum over the broadcast axis 0 is missing",
    "matmul, a: transposed": "axes 0 and 1 are transposed",
    "layer, w: flattened": "it is right, but flattened",
    "layer, b: an axis kept": "it is right, but has an extra axis of length 1: (1, 6) in the place of (6,)",
    "causal attention, value: summed over the keys": "it is summed over axis 0, which the input has",
    "padded attention, query: one row": "wrong only at index 2 of axis 0, where it is zero",
    "layer, w: one column twice": (
        "wrong only at index 1 of axis 1, where it is 2 times the numerical gradient: perhaps sqrt(4), where "
        "4 is the length of the last axis of x"
    ),
    "multi-head attention, key: one head": "wrong only from index 4 to 7 of axis 2 (of 12)",
    "multi-head attention, value: one sample": "wrong only at index 1 of axis 0",
    "multi-head attention, value: one head of one sample": (
        "wrong only at index 0 of axis 0 and from index 8 of axis 2 on (of 12), where it is -1 times the "
        "numerical gradient"
    ),
    "blocked, x: the last block": "wrong only from index 16 of axis 0 on (of 19), where it is zero",
    "blocked, x: no tanh derivative after the first block": "wrong only from index 8 of axis 0 on (of 19)",
    "blocked, x: the first block": (
        "wrong only up to index 7 of axis 0 (of 19), where it is -1 times the numerical gradient"
    ),
    "running mean, x: every second row": (
        "wrong only at every second index of axis 0, from 1 on, where it is 3 times the numerical gradient: "
        "3, which is the length of the last axis of x"
    ),
    "biased attention, bias: above the diagonal": (
        "wrong only above the diagonal of the last two axes, where it is zero"
    ),
    "square matmul, b: the diagonal": "wrong only on the diagonal of the last two axes, where it is zero",
    "matmul, b: one entry": "wrong only at one entry, [2, 1], where it is 8.5 whatever the cotangent",
    "layer norm, beta: one entry": "wrong only at index 3 of axis 0, where it is -1 times the numerical gradient",
    "padded attention, value: leaks through the mask": (
        "it is not zero where the numerical gradient is, in all 6 such entries, from index 5 of axis 0 on (of"
        " 7): is a mask forgotten?"
    ),
    "causal attention, query: the mask forgotten": "wrong only up to index 4 of axis 0 (of 6)",
    "padded attention, key: the mask forgotten for one key": (
        "it is not zero where the numerical gradient is, in 8 of 16 such entries, at index 5 of axis 0: is a "
        "mask forgotten?"
    ),
    "softmax, scores: no correction": (
        "the softmax correction along axis 1, weights * sum(weights * d_weights), is missing or wrong: "
        "whatever the cotangent, the errors of each row are a multiple of the weights"
    ),
    "attention, query: no correction": (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij, "
        "is missing or wrong: it is right for a cotangent with rows orthogonal to those of the output, and "
        "for no others"
    ),
    "causal attention, key: twice the correction": (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij, "
        "is missing or wrong: it is right for a cotangent with rows orthogonal to those of the output, and "
        "for no others"
    ),
    "biased attention, bias: no correction": (
        "the softmax correction along axis 1, or a term like it, is missing or wrong: whatever the cotangent,"
        " the errors of each row are a multiple of one vector without negative entries"
    ),
    "on the sphere, x: no projection": (
        "the projection term of a normalization along axis 1, y * sum(y * d_y) or its mean, is missing or "
        "wrong: whatever the cotangent, the errors of each row are a multiple of x"
    ),
    "normalized, x: no projection": (
        "the projection term of a normalization along axis 1, y * sum(y * d_y) or its mean, is missing or "
        "wrong: whatever the cotangent, the errors of each row are a multiple of x less its mean"
    ),
    "softmax, scores: the mean for the weighted mean": (
        "the softmax correction along axis 1, weights * sum(weights * d_weights), is missing or wrong: "
        "whatever the cotangent, the errors of each row are a multiple of the weights"
    ),
    "layer, w: float32": (
        "it is rounded to float32: every entry is such a number, off by at most 2.2e-08 of the largest entry"
    ),
    "attention, key: float16": (
        "it is rounded to float16: every entry is such a number, off by at most 0.00028 of the largest entry"
    ),
    "multi-head attention, value: computed in float32": (
        "its errors are of the size of rounding to float32, at most 1.1e-08 of the largest entry, and without"
        " a pattern: some of it seems to be computed in that precision"
    ),
    "layer, b: a constant": "a constant is added to it, 0.01 in every entry, whatever the cotangent",
    "layer, w: weight decay": "0.01 times w itself is added to it, whatever the cotangent",
    "matmul, a: some other array": (
        "something is added to it that does not depend on the cotangent, from -0.987 to 0.9996"
    ),
    "energy, x: the cotangent ignored": "it is the same whatever the cotangent",
    "additive attention, value: the cotangent ignored": (
        "it is the same whatever the cotangent, as if the loss were a plain sum of the output"
    ),
    "times, b: a sum of cotangents everywhere": "the same number is added to every entry, -3.664 for one cotangent",
    "wave, gain: a factor inside the sum": (
        "it is right for x times the gradient of the output in the place of that: a factor x too many"
    ),
    "energy, x: no square": "it is 1/y times the numerical gradient, entry by entry: a factor y is missing",
    "layer, x: no tanh derivative": (
        "it is right for 1/(1 - output^2) times the gradient of the output in the place of that: a factor 1 -"
        " output^2 is missing"
    ),
    "layer, w: no tanh derivative": (
        "it is right for 1/(1 - output^2) times the gradient of the output in the place of that: a factor 1 -"
        " output^2 is missing"
    ),
    "layer, b: no tanh derivative": (
        "it is right for 1/(1 - output^2) times the gradient of the output in the place of that: a factor 1 -"
        " output^2 is missing"
    ),
    "layer, b: 1 - tanh without the square": (
        "it is right for 1/(1 + output) times the gradient of the output in the place of that: a factor 1 + "
        "output is missing"
    ),
    "times, b: the input squared": (
        "it is right for x times the gradient of the output in the place of that: a factor x too many"
    ),
    "square matmul, a: the other matrix not transposed": (
        "it is the derivative times the gradient of the output, and not the transposed derivative: a "
        "transpose is missing, or the reverse of an order"
    ),
    "normalized, x: the mean not taken off": (
        "a mean along axis 1, to be taken off, is missing or wrong: whatever the cotangent, the errors of "
        "each row are equal"
    ),
    "additive attention, query: no tanh derivative": "it is zero throughout, but for rounding",
    "blocked, w: the last block forgotten": "the gradient of the output is left out from index 16 of axis 0 on (of 19)",
    "mean of squares, x: a cube": "it is 1.5 * x times the numerical gradient, entry by entry: a factor x too many",
}

PLANTED: list[Planted] = []


def like(sentence: str | None) -> str | None:
    """A sentence, but for the sizes in it that depend on the cotangents."""
    return sentence and re.sub(r"\S+(?= of the largest)|-?\d\.\d+(?=[^:]* for one cotangent)", "#", sentence)


def plant(kind: str, function: str, where: str, name: str, change: Callable[..., Any] | None = None) -> Any:
    """Add a bug: `change(gradient)` is the wrong gradient. Without it, decorate ``wrong(d, *inputs) -> gradient``."""
    forward, backward, inputs = FUNCTIONS[function]
    position = list(inputs).index(where)

    def add(wrong: Callable[..., Any]) -> Callable[..., Any]:
        def wrong_backward(d, *arrays):
            gradients = list(backward(d, *arrays))
            gradients[position] = np.asarray(wrong(d, *arrays))
            return tuple(gradients)

        PLANTED.append(Planted(f"{function}, {where}: {name}", kind, forward, backward, wrong_backward, inputs, where))
        return wrong

    if change is None:
        return add
    return add(lambda d, *arrays: change(backward(d, *arrays)[position].copy()))


def swap_gradients(function: str, where: str, name: str) -> None:
    """Add a bug in which the first two gradients are each the other's."""
    forward, backward, inputs = FUNCTIONS[function]

    def wrong_backward(d, *arrays):
        first, second, *rest = backward(d, *arrays)
        return second, first, *rest

    PLANTED.append(Planted(f"{function}, {where}: {name}", "order", forward, backward, wrong_backward, inputs, where))


def put(index: Any, change: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """A bug in some entries."""

    def changed(gradient):
        gradient[index] = change(gradient[index])
        return gradient

    return changed


# A constant factor

plant("factor", "matmul", "a", "the sign", lambda g: -g)
plant("factor", "energy", "y", "the sign", lambda g: -g)
plant("factor", "wave", "gain", "the sign of a single entry", lambda g: -g)
plant("factor", "mean of squares", "x", "the 2 of the square", lambda g: g / 2)
plant("factor", "layer", "w", "counted twice", lambda g: 2 * g)
plant("factor", "energy", "x", "a factor without a name", lambda g: 1.7 * g)
plant("factor", "attention", "value", "nothing", lambda g: 0 * g)
plant("factor", "attention", "query", "no scale", lambda g: g * np.sqrt(8))
plant("factor", "attention", "key", "the scale twice", lambda g: g / np.sqrt(8))
plant("factor", "attention", "key", "the scale of another length", lambda g: g * np.sqrt(8 / 3))
plant("factor", "attention", "query", "minus the scale", lambda g: -g * np.sqrt(8))
plant("factor", "causal attention", "key", "dropout forgotten", lambda g: 0.9 * g)
plant("factor", "layer", "b", "a mean in the place of the sum", lambda g: g / 5)
plant("factor", "times", "b", "a mean in the place of the sum", lambda g: g / 4)
plant("factor", "scaled rows", "s", "a mean over both axes", lambda g: g / 8)
plant("factor", "mean of squares", "x", "the sum in the place of the mean", lambda g: 5 * g)
plant("factor", "running mean", "x", "each row with its own", lambda g: g / np.arange(1, 7)[:, np.newaxis])
plant("factor", "layer", "w", "each column with its own", lambda g: g * np.linspace(0.5, 2, 6))

# Entries in other places

plant("order", "square matmul", "a", "transposed", lambda g: g.T)
plant("order", "causal attention", "query", "the keys' gradient")(
    lambda d, *arrays: FUNCTIONS["causal attention"].backward(d, *arrays)[1]
)


swap_gradients("causal attention", "key", "swapped with query")
swap_gradients("square matmul", "b", "swapped with a")
plant("order", "matmul", "b", "a reshape of the transpose", lambda g: g.T.reshape(g.shape))
plant("order", "running mean", "x", "time reversed", lambda g: g[::-1])
plant("order", "layer norm", "gamma", "reversed", lambda g: g[::-1])
plant("order", "attention", "key", "off by one", lambda g: np.roll(g, 1, axis=0))
plant("order", "times", "b", "off by two", lambda g: np.roll(g, -2))
plant(
    "order",
    "multi-head attention",
    "value",
    "heads in another order",
    lambda g: g.reshape(2, 5, 3, 4)[:, :, [1, 0, 2]].reshape(2, 5, 12),
)
plant(
    "order",
    "multi-head attention",
    "query",
    "a reshape in the place of combining heads",
    lambda g: g.reshape(2, 5, 3, 4).swapaxes(1, 2).reshape(2, 5, 12),
)
plant("order", "padded attention", "query", "two rows exchanged", lambda g: g[[0, 3, 2, 1, 4]])

# Sums over broadcast axes

plant("sum", "layer", "b", "one term of the sum")(lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b) ** 2))[0])
plant("sum", "layer", "b", "the last term missing")(
    lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b) ** 2))[:-1].sum(axis=0)
)
plant("sum", "times", "b", "the last term missing")(lambda d, x, _b: (d * x)[:-1].sum(axis=0))
plant("sum", "scaled rows", "s", "summed over one axis of two")(
    lambda d, x, _s: (d * np.sin(x)).sum(axis=-1)[0][:, np.newaxis]
)
plant("sum", "layer norm", "gamma", "up to the middle")(lambda d, x, _gamma, _beta: (d * normalized(x))[:3].sum(axis=0))

# Other shapes

plant("shape", "times", "b", "the sum missing")(lambda d, x, _b: d * x)
plant("shape", "matmul", "a", "transposed", lambda g: g.T)
plant("shape", "layer", "w", "flattened", lambda g: g.ravel())
plant("shape", "layer", "b", "an axis kept", lambda g: g[np.newaxis])
plant("shape", "causal attention", "value", "summed over the keys", lambda g: g.sum(axis=0))

# Wrong in places

plant("place", "padded attention", "query", "one row", put(2, lambda g: 0 * g))
plant("place", "layer", "w", "one column twice", put(np.s_[:, 1], lambda g: 2 * g))
plant("place", "multi-head attention", "key", "one head", put(np.s_[..., 4:8], lambda g: g**3 + g))
plant("place", "multi-head attention", "value", "one sample", put(1, lambda g: np.tanh(g) + g))
plant("place", "multi-head attention", "value", "one head of one sample", put(np.s_[0, :, 8:], lambda g: -g))
plant("place", "blocked", "x", "the last block")(
    lambda d, x, w: blocked_backward(d, x, w, used=lambda start: start < 16)[0]
)
plant("place", "blocked", "x", "no tanh derivative after the first block")(
    lambda d, x, w: np.where(np.arange(19)[:, np.newaxis] < 8, blocked_backward(d, x, w)[0], d @ w.T)
)
plant("place", "blocked", "x", "the first block", put(np.s_[:8], lambda g: -g))
plant("place", "running mean", "x", "every second row", put(np.s_[1::2], lambda g: 3 * g))
plant("place", "biased attention", "bias", "above the diagonal", lambda g: np.tril(g))
plant("place", "square matmul", "b", "the diagonal", put(np.diag_indices(4), lambda g: 0 * g))
plant("place", "matmul", "b", "one entry", put((2, 1), lambda _: 8.5))
plant("place", "layer norm", "beta", "one entry", put(3, lambda g: -g))
plant(
    "place",
    "padded attention",
    "value",
    "leaks through the mask",
    put(np.s_[5:], lambda g: g + 0.1 * np.arange(1, 7).reshape(2, 3)),
)


# The last query sees everything anyway.
plant("place", "causal attention", "query", "the mask forgotten")(lambda *arrays: attention_of()[1](*arrays)[0])


@plant("place", "padded attention", "key", "the mask forgotten for one key")
def unmasked_key(d, query, key, value):
    gradient = attention_of(PADDED)[1](d, query, key, value)[1]
    gradient[5] = attention_of()[1](d, query, key, value)[1][5]
    return gradient


# The correction of softmax


plant("softmax", "softmax", "scores", "no correction")(lambda d, scores: softmax(scores) * d)
plant("softmax", "attention", "query", "no correction")(
    lambda d, query, key, value: softmax(query @ key.T / np.sqrt(8)) * (d @ value.T) @ key / np.sqrt(8)
)


@plant("softmax", "causal attention", "key", "twice the correction")
def key_overcorrected(d, query, key, value):
    weights = softmax(np.where(CAUSAL, query @ key.T / 2, -1e9))
    d_weights = d @ value.T
    return (weights * (d_weights - 2 * (weights * d_weights).sum(axis=-1, keepdims=True))).T @ query / 2


plant("softmax", "biased attention", "bias", "no correction")(
    lambda d, scores, bias, value, w: softmax(scores + bias) * (d @ w.T @ value.T)
)
plant("softmax", "on the sphere", "x", "no projection")(lambda d, x: d / np.sqrt((x**2).sum(axis=-1, keepdims=True)))
plant("softmax", "normalized", "x", "no projection")(
    lambda d, x: (d - d.mean(axis=-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)
)
plant("softmax", "softmax", "scores", "the mean for the weighted mean")(
    lambda d, scores: softmax(scores) * (d - d.mean(axis=-1, keepdims=True))
)

# Rounded, or something added

plant("precision", "layer", "w", "float32", lambda g: g.astype(np.float32).astype(float))
plant("precision", "attention", "key", "float16", lambda g: g.astype(np.float16).astype(float))
plant("precision", "multi-head attention", "value", "computed in float32")(
    lambda d, *arrays: FUNCTIONS["multi-head attention"].backward(
        d, *(x.astype(np.float32).astype(float) for x in arrays)
    )[2]
)
plant("constant", "layer", "b", "a constant", lambda g: g + 0.01)
plant("constant", "layer", "w", "weight decay")(lambda d, x, w, b: layer_backward(d, x, w, b)[1] + 0.01 * w)
plant("constant", "matmul", "a", "some other array")(lambda d, a, b: d @ b.T + np.sin(a))
plant("constant", "energy", "x", "the cotangent ignored", lambda g: 0 * g + 3)
plant("constant", "additive attention", "value", "the cotangent ignored")(
    lambda d, *arrays: additive_backward(np.ones_like(d), *arrays)[2]
)
plant("constant", "times", "b", "a sum of cotangents everywhere")(lambda d, x, _b: (d * x).sum(axis=0) + d.sum())

# No simple cause: formulas that are wrong


def none(function: str, where: str, name: str) -> Any:
    return plant("formula", function, where, name)


none("wave", "x", "sine for cosine")(lambda d, x, gain: d * np.sin(gain * x) * gain)
none("wave", "gain", "a factor inside the sum")(lambda d, x, gain: (d * np.cos(gain * x) * x**2).sum())
none("wave", "x", "the gain inside")(lambda d, x, gain: d * np.cos(x) * gain)
none("energy", "x", "no square")(lambda d, x, y: d * np.cos(x) * y)
none("energy", "y", "cosine for sine")(lambda d, x, y: 2 * d * np.cos(x) * y)
none("layer", "x", "no tanh derivative")(lambda d, _x, w, _b: d @ w.T)
none("layer", "w", "no tanh derivative")(lambda d, x, _w, _b: x.T @ d)
none("layer", "b", "no tanh derivative")(lambda d, _x, _w, _b: d.sum(axis=0))
none("layer", "b", "1 - tanh without the square")(lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b))).sum(axis=0))
none("layer", "x", "the bias forgotten inside tanh")(lambda d, x, w, _b: (d * (1 - np.tanh(x @ w) ** 2)) @ w.T)
none("times", "b", "the input squared")(lambda d, x, _b: (d * x**2).sum(axis=0))
none("times", "x", "another factor")(lambda d, x, b: d * np.sin(b) * x)
none("square matmul", "a", "the other matrix not transposed")(lambda d, _a, b: d @ b)
none("square matmul", "b", "the product the other way round")(lambda d, a, _b: d @ a)
none("softmax", "scores", "the correction over the wrong axis")(
    lambda d, s: softmax(s) * (d - (softmax(s) * d).sum(axis=0))
)
none("attention", "key", "a term with queries left out")(
    lambda d, q, k, v: back_through_softmax(d @ v.T, softmax(q @ k.T / np.sqrt(8))).T @ np.sin(q) / np.sqrt(8)
)
none("attention", "value", "weights without the scale")(lambda d, q, k, _v: softmax(q @ k.T).T @ d)
none("causal attention", "value", "the mask forgotten")(lambda d, q, k, _v: softmax(q @ k.T / 2).T @ d)
none("causal attention", "key", "the mask off by one")(
    lambda *arrays: attention_of(np.tri(6, k=1, dtype=bool))[1](*arrays)[1]
)
none("multi-head attention", "key", "as if there were a single head")(lambda *arrays: attention_of()[1](*arrays)[1])
none("normalized", "x", "the mean not taken off")(
    lambda d, x: (
        (d - normalized(x) * (d * normalized(x)).mean(axis=-1, keepdims=True))
        / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)
    )
)
none("layer norm", "x", "another epsilon")(
    lambda d, x, gamma, beta: layer_norm_backward(d, x * (1 + 1e-3 * x), gamma, beta)[0]
)
none("layer norm", "gamma", "the input not normalized")(lambda d, x, _gamma, _beta: (d * x).sum(axis=0))
# The softmax does not see a shift of its scores, so without the derivative the terms cancel.
plant("factor", "additive attention", "query", "no tanh derivative")(
    lambda d, *arrays: additive_backward(d, *arrays, tanh_derivative=np.ones_like)[0]
)
none("additive attention", "key", "no tanh derivative")(
    lambda d, *arrays: additive_backward(d, *arrays, tanh_derivative=np.ones_like)[1]
)
none("additive attention", "w_key", "no tanh derivative")(
    lambda d, *arrays: additive_backward(d, *arrays, tanh_derivative=np.ones_like)[4]
)
none("additive attention", "w_score", "before tanh")(
    lambda d, q, k, v, w_q, w_k, w_s: (
        back_through_softmax(d @ v.T, softmax(np.tanh((q @ w_q)[:, np.newaxis] + k @ w_k) @ w_s))[..., np.newaxis]
        * ((q @ w_q)[:, np.newaxis] + k @ w_k)
    ).sum(axis=(0, 1))
)
none("blocked", "w", "the last block forgotten")(
    lambda d, x, w: blocked_backward(d, x, w, used=lambda start: start < 16)[1]
)
none("running mean", "x", "summed the wrong way")(
    lambda d, x: np.cumsum(d / np.arange(1, 7)[:, np.newaxis], axis=0) * np.exp(x / 2) / 2
)
none("mean of squares", "x", "a cube")(lambda d, x: 3 * x**2 * d / len(x))
