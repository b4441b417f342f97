"""Correct functions, and bugs planted in their gradients, with what a diagnosis must say.

Each function is plain NumPy: ``forward(*inputs) -> array`` and ``backward(d_output, *inputs)``, a tuple with one
gradient for each input. What is expected of a diagnosis is a regular expression; None where there is no simple cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FUNCTIONS", "PLANTED", "Function", "Planted"]

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
    expected: str | None


def normal(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def back_through_softmax(d: Array, weights: Array) -> Array:
    return weights * (d - (weights * d).sum(axis=-1, keepdims=True))


def swap(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


# The functions


def times(x, b):
    return x * b


def times_backward(d, x, b):
    return d * b, (d * x).sum(axis=0)


def scaled_rows(x, s):
    return np.sin(x) * s  # s: (3, 1)


def scaled_rows_backward(d, x, s):
    return d * np.cos(x) * s, (d * np.sin(x)).sum(axis=(0, -1))[:, np.newaxis]


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


def normalized(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5)


def normalized_backward(d, x):
    deviation = np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)
    y = normalized(x)
    d_mean, projection = d.mean(axis=-1, keepdims=True), (d * y).mean(axis=-1, keepdims=True)
    return ((d - d_mean - y * projection) / deviation,)


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


def mean_of_squares(x):
    return (x**2).mean(axis=0)


def mean_of_squares_backward(d, x):
    return (2 * x * d / len(x),)


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


def wave(x, gain):
    return np.sin(gain * x)


def wave_backward(d, x, gain):
    slope = d * np.cos(gain * x)
    return slope * gain, (slope * x).sum().reshape(gain.shape)


def energy(x, y):
    return np.asarray((np.sin(x) * y**2).sum())


def energy_backward(d, x, y):
    return d * np.cos(x) * y**2, 2 * d * np.sin(x) * y


CAUSAL = np.tri(6, dtype=bool)
PADDED = np.arange(7) < 5  # the keys that may be attended to

FUNCTIONS: dict[str, Function] = {
    "times": Function(times, times_backward, {"x": normal(4, 5, seed=1), "b": normal(5, seed=2)}),
    "scaled rows": Function(
        scaled_rows, scaled_rows_backward, {"x": normal(2, 3, 4, seed=3), "s": normal(3, 1, seed=4)}
    ),
    "matmul": Function(matmul, matmul_backward, {"a": normal(4, 6, seed=5), "b": normal(6, 3, seed=6)}),
    "square matmul": Function(matmul, matmul_backward, {"a": normal(4, 4, seed=7), "b": normal(4, 4, seed=8)}),
    "layer": Function(
        layer, layer_backward, {"x": normal(5, 4, seed=9), "w": normal(4, 6, seed=10) / 2, "b": normal(6, seed=11)}
    ),
    "softmax": Function(softmax, softmax_backward, {"scores": normal(4, 6, seed=12)}),
    "attention": Function(
        *attention_of(),
        {"query": normal(5, 8, seed=13), "key": normal(7, 8, seed=14), "value": normal(7, 3, seed=15)},
    ),
    "causal attention": Function(
        *attention_of(CAUSAL),
        {"query": normal(6, 4, seed=16), "key": normal(6, 4, seed=17), "value": normal(6, 4, seed=18)},
    ),
    "padded attention": Function(
        *attention_of(PADDED),
        {"query": normal(5, 8, seed=19), "key": normal(7, 8, seed=20), "value": normal(7, 3, seed=21)},
    ),
    "multi-head attention": Function(
        *attention_of(heads=3),
        {"query": normal(2, 5, 12, seed=22), "key": normal(2, 5, 12, seed=23), "value": normal(2, 5, 12, seed=24)},
    ),
    "biased attention": Function(
        biased_attention,
        biased_attention_backward,
        {
            "scores": normal(4, 6, seed=25),
            "bias": normal(4, 6, seed=26),
            "value": normal(6, 5, seed=27),
            "w": normal(5, 3, seed=28),
        },
    ),
    "layer norm": Function(
        layer_norm,
        layer_norm_backward,
        {"x": normal(5, 8, seed=29), "gamma": normal(8, seed=30), "beta": normal(8, seed=31)},
    ),
    "normalized": Function(normalized, normalized_backward, {"x": normal(5, 8, seed=32)}),
    "on the sphere": Function(on_sphere, on_sphere_backward, {"x": normal(5, 8, seed=33)}),
    "additive attention": Function(
        additive,
        additive_backward,
        {
            "query": normal(4, 3, seed=34),
            "key": normal(5, 3, seed=35),
            "value": normal(5, 2, seed=36),
            "w_query": normal(3, 6, seed=37),
            "w_key": normal(3, 6, seed=38),
            "w_score": normal(6, seed=39),
        },
    ),
    "mean of squares": Function(mean_of_squares, mean_of_squares_backward, {"x": normal(5, 3, seed=40)}),
    "blocked": Function(blocked, blocked_backward, {"x": normal(19, 4, seed=41), "w": normal(4, 3, seed=42)}),
    "running mean": Function(running_mean, running_mean_backward, {"x": normal(6, 3, seed=43)}),
    "wave": Function(wave, wave_backward, {"x": normal(7, seed=44), "gain": np.array(1.3)}),
    "energy": Function(energy, energy_backward, {"x": normal(3, 4, seed=45), "y": normal(3, 4, seed=46)}),
}

PLANTED: list[Planted] = []


def plant(
    kind: str, function: str, where: str, name: str, expected: str | None, change: Callable[..., Any] | None = None
) -> Any:
    """Add a bug: `change(gradient)` is the wrong gradient. Without it, decorate ``wrong(d, *inputs) -> gradient``."""
    forward, backward, inputs = FUNCTIONS[function]
    position = list(inputs).index(where)

    def add(wrong: Callable[..., Any]) -> Callable[..., Any]:
        def wrong_backward(d, *arrays):
            gradients = list(backward(d, *arrays))
            gradients[position] = np.asarray(wrong(d, *arrays))
            return tuple(gradients)

        planted = Planted(
            f"{function}, {where}: {name}", kind, forward, backward, wrong_backward, inputs, where, expected
        )
        PLANTED.append(planted)
        return wrong

    if change is None:
        return add
    return add(lambda d, *arrays: change(backward(d, *arrays)[position].copy()))


def plant_all(kind: str, function: str, where: str, name: str, expected: str | None, wrong_backward: Backward) -> None:
    """Add a bug in which several gradients are wrong."""
    forward, backward, inputs = FUNCTIONS[function]
    PLANTED.append(
        Planted(f"{function}, {where}: {name}", kind, forward, backward, wrong_backward, inputs, where, expected)
    )


def put(index: Any, change: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """A bug in some entries."""

    def changed(gradient):
        gradient[index] = change(gradient[index])
        return gradient

    return changed


# A constant factor

plant("factor", "matmul", "a", "the sign", r"-1 times", lambda g: -g)
plant("factor", "energy", "y", "the sign", r"-1 times", lambda g: -g)
plant("factor", "wave", "gain", "the sign of a single entry", r"-1 times", lambda g: -g)
plant("factor", "mean of squares", "x", "the 2 of the square", r"0\.5 times", lambda g: g / 2)
plant("factor", "layer", "w", "counted twice", r"\b2 times", lambda g: 2 * g)
plant("factor", "energy", "x", "a factor without a name", r"1\.7 times", lambda g: 1.7 * g)
plant("factor", "attention", "value", "nothing", r"zero throughout", lambda g: 0 * g)
plant("factor", "attention", "query", "no scale", r"2\.82842712 times.*sqrt\(8\).*last axis of query and key",
      lambda g: g * np.sqrt(8))  # fmt: skip
plant("factor", "attention", "key", "the scale twice", r"0\.353553391 times.*1/sqrt\(8\)", lambda g: g / np.sqrt(8))
plant("factor", "attention", "key", "the scale of another length", r"sqrt\(8/3\)", lambda g: g * np.sqrt(8 / 3))
plant("factor", "attention", "query", "minus the scale", r"-sqrt\(8\)", lambda g: -g * np.sqrt(8))
plant("factor", "causal attention", "key", "dropout forgotten", r"0\.9 times.*1 - 0\.1.*dropout", lambda g: 0.9 * g)
plant("factor", "layer", "b", "a mean in the place of the sum", r"0\.2 times.*1/5.*mean", lambda g: g / 5)
plant("factor", "times", "b", "a mean in the place of the sum", r"1/4.*mean", lambda g: g / 4)
plant("factor", "scaled rows", "s", "a mean over both axes", r"1/8.*mean.*2 and 4", lambda g: g / 8)
plant("factor", "mean of squares", "x", "the sum in the place of the mean", r"5 times.*5 is the length of axis 0 of x",
      lambda g: 5 * g)  # fmt: skip
plant("factor", "running mean", "x", "each row with its own", r"each index of axis 0 has its own factor, 0\.1667 to 1",
      lambda g: g / np.arange(1, 7)[:, np.newaxis])  # fmt: skip
plant("factor", "layer", "w", "each column with its own", r"each index of axis 1 has its own factor",
      lambda g: g * np.linspace(0.5, 2, 6))  # fmt: skip

# Entries in other places

plant("order", "square matmul", "a", "transposed", r"axes 0 and 1 are transposed", lambda g: g.T)
plant("order", "causal attention", "query", "the keys' gradient", r"is the gradient of key")(
    lambda d, *arrays: FUNCTIONS["causal attention"].backward(d, *arrays)[1]
)


def swapped(first: int, second: int, function: str) -> Backward:
    def wrong_backward(d, *arrays):
        gradients = list(FUNCTIONS[function].backward(d, *arrays))
        gradients[first], gradients[second] = gradients[second], gradients[first]
        return tuple(gradients)

    return wrong_backward


plant_all("order", "causal attention", "key", "swapped with query", r"swapped", swapped(0, 1, "causal attention"))
plant_all("order", "square matmul", "b", "swapped with a", r"swapped", swapped(0, 1, "square matmul"))
plant("order", "matmul", "b", "a reshape of the transpose", r"transposed.*reshape", lambda g: g.T.reshape(g.shape))
plant("order", "running mean", "x", "time reversed", r"axis 0 is reversed", lambda g: g[::-1])
plant("order", "layer norm", "gamma", "reversed", r"axis 0 is reversed", lambda g: g[::-1])
plant("order", "attention", "key", "off by one", r"shifted by 1 along axis 0", lambda g: np.roll(g, 1, axis=0))
plant("order", "times", "b", "off by two", r"shifted by -2 along axis 0", lambda g: np.roll(g, -2))
plant("order", "multi-head attention", "value", "heads in another order",
      r"blocks of 4 along axis 2 are in another order: 1, 0, 2",
      lambda g: g.reshape(2, 5, 3, 4)[:, :, [1, 0, 2]].reshape(2, 5, 12))  # fmt: skip
plant("order", "multi-head attention", "query", "a reshape in the place of combining heads", r"reshape.*transpose",
      lambda g: g.reshape(2, 5, 3, 4).swapaxes(1, 2).reshape(2, 5, 12))  # fmt: skip
plant("order", "padded attention", "query", "two rows exchanged", r"indices 1 and 3 of axis 0 are exchanged",
      lambda g: g[[0, 3, 2, 1, 4]])  # fmt: skip

# Sums over broadcast axes

plant("sum", "layer", "b", "one term of the sum", r"only the term at index 0 of axis 0")(
    lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b) ** 2))[0]
)
plant("sum", "layer", "b", "the last term missing", r"term at index 4 of axis 0 is missing")(
    lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b) ** 2))[:-1].sum(axis=0)
)
plant("sum", "times", "b", "the last term missing", r"term of index 3 is missing from the sum.*broadcast axis 0")(
    lambda d, x, b: (d * x)[:-1].sum(axis=0)  # noqa: ARG005
)
plant("sum", "scaled rows", "s", "summed over one axis of two", r"only the term of index 0.*broadcast axis 0")(
    lambda d, x, s: (d * np.sin(x)).sum(axis=-1)[0][:, np.newaxis]  # noqa: ARG005
)
plant("sum", "layer norm", "gamma", "up to the middle", r"only the terms up to index 2.*broadcast axis 0")(
    lambda d, x, gamma, beta: (d * normalized(x))[:3].sum(axis=0)  # noqa: ARG005
)

# Other shapes

plant("shape", "times", "b", "the sum missing", r"sum over the broadcast axis 0 is missing")(lambda d, x, b: d * x)  # noqa: ARG005
plant("shape", "matmul", "a", "transposed", r"axes 0 and 1 are transposed", lambda g: g.T)
plant("shape", "layer", "w", "flattened", r"flattened", lambda g: g.ravel())
plant("shape", "layer", "b", "an axis kept", r"extra axis of length 1", lambda g: g[np.newaxis])
plant("shape", "causal attention", "value", "summed over the keys", r"summed over axis 0", lambda g: g.sum(axis=0))

# Wrong in places

plant("place", "padded attention", "query", "one row", r"only at index 2 of axis 0.*zero", put(2, lambda g: 0 * g))
plant("place", "layer", "w", "one column twice", r"only at index 1 of axis 1, where it is 2 times",
      put(np.s_[:, 1], lambda g: 2 * g))  # fmt: skip
plant("place", "multi-head attention", "key", "one head", r"only from index 4 to 7 of axis 2",
      put(np.s_[..., 4:8], lambda g: g**3 + g))  # fmt: skip
plant("place", "multi-head attention", "value", "one sample", r"only at index 1 of axis 0",
      put(1, lambda g: np.tanh(g) + g))  # fmt: skip
plant("place", "multi-head attention", "value", "one head of one sample",
      r"at index 0 of axis 0 and from index 8 of axis 2 on.*-1 times",
      put(np.s_[0, :, 8:], lambda g: -g))  # fmt: skip
plant("place", "blocked", "x", "the last block", r"only from index 16 of axis 0 on \(of 19.*zero")(
    lambda d, x, w: blocked_backward(d, x, w, used=lambda start: start < 16)[0]
)
plant(
    "place", "blocked", "x", "no tanh derivative after the first block", r"only from index 8 of axis 0 on \(of 19\)$"
)(lambda d, x, w: np.where(np.arange(19)[:, np.newaxis] < 8, blocked_backward(d, x, w)[0], d @ w.T))
plant("place", "blocked", "x", "the first block", r"only up to index 7 of axis 0", put(np.s_[:8], lambda g: -g))
plant("place", "running mean", "x", "every second row", r"every second index of axis 0, from 1 on",
      put(np.s_[1::2], lambda g: 3 * g))  # fmt: skip
plant("place", "biased attention", "bias", "above the diagonal", r"only above the diagonal.*zero", lambda g: np.tril(g))
plant("place", "square matmul", "b", "the diagonal", r"only on the diagonal", put(
    np.diag_indices(4), lambda g: 0 * g))  # fmt: skip
plant("place", "matmul", "b", "one entry", r"only at one entry, \[2, 1\].*8\.5", put((2, 1), lambda _: 8.5))
plant("place", "layer norm", "beta", "one entry", r"only at index 3 of axis 0.*-1 times", put(3, lambda g: -g))
plant("place", "padded attention", "value", "leaks through the mask",
      r"must be, as behind a mask.*from index 5 of axis 0",
      put(np.s_[5:], lambda g: g + 0.1 * np.arange(1, 7).reshape(2, 3)))  # fmt: skip


# The last query sees everything anyway.
plant("place", "causal attention", "query", "the mask forgotten", r"only up to index 4 of axis 0 \(of 6\)")(
    lambda *arrays: attention_of()[1](*arrays)[0]
)


@plant("place", "padded attention", "key", "the mask forgotten for one key", r"as behind a mask")
def unmasked_key(d, query, key, value):
    gradient = attention_of(PADDED)[1](d, query, key, value)[1]
    gradient[5] = attention_of()[1](d, query, key, value)[1][5]
    return gradient


# The correction of softmax


@plant("softmax", "softmax", "scores", "no correction", r"softmax correction")
def softmax_uncorrected(d, scores):
    return softmax(scores) * d


@plant("softmax", "attention", "query", "no correction", r"softmax correction")
def query_uncorrected(d, query, key, value):
    weights = softmax(query @ key.T / np.sqrt(8))
    return weights * (d @ value.T) @ key / np.sqrt(8)


@plant("softmax", "causal attention", "key", "twice the correction", r"softmax correction")
def key_overcorrected(d, query, key, value):
    weights = softmax(np.where(CAUSAL, query @ key.T / 2, -1e9))
    d_weights = d @ value.T
    return (weights * (d_weights - 2 * (weights * d_weights).sum(axis=-1, keepdims=True))).T @ query / 2


@plant("softmax", "biased attention", "bias", "no correction", r"softmax correction")
def bias_uncorrected(d, scores, bias, value, w):
    return softmax(scores + bias) * (d @ w.T @ value.T)


@plant("softmax", "on the sphere", "x", "no projection", r"projection term of an L2 normalization")
def unprojected(d, x):
    return d / np.sqrt((x**2).sum(axis=-1, keepdims=True))


@plant("softmax", "normalized", "x", "no projection", r"layer normalization")
def normalized_unprojected(d, x):
    return (d - d.mean(axis=-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)


@plant("softmax", "softmax", "scores", "the mean for the weighted mean", r"softmax correction.*missing or wrong")
def softmax_with_a_mean(d, scores):
    return softmax(scores) * (d - d.mean(axis=-1, keepdims=True))


# Rounded, or something added

plant("precision", "layer", "w", "float32", r"float32", lambda g: g.astype(np.float32).astype(float))
plant("precision", "attention", "key", "float16", r"float16", lambda g: g.astype(np.float16).astype(float))
plant("precision", "multi-head attention", "value", "computed in float32", r"float32.*without a pattern")(
    lambda d, *arrays: FUNCTIONS["multi-head attention"].backward(
        d, *(x.astype(np.float32).astype(float) for x in arrays))[2]
)  # fmt: skip
plant("constant", "layer", "b", "a constant", r"a constant is added to it, 0\.01 in every entry", lambda g: g + 0.01)
plant("constant", "layer", "w", "weight decay", r"0\.01 times w itself is added")(
    lambda d, x, w, b: layer_backward(d, x, w, b)[1] + 0.01 * w
)
plant("constant", "matmul", "a", "some other array", r"added to it that does not depend on the cotangent")(
    lambda d, a, b: d @ b.T + np.sin(a)
)
plant("constant", "energy", "x", "the cotangent ignored", r"same whatever the cotangent", lambda g: 0 * g + 3)
plant("constant", "additive attention", "value", "the cotangent ignored", r"same whatever the cotangent.*plain sum")(
    lambda d, *arrays: additive_backward(np.ones_like(d), *arrays)[2]
)
plant("constant", "times", "b", "a sum of cotangents everywhere", r"same number is added to every entry")(
    lambda d, x, b: (d * x).sum(axis=0) + d.sum()  # noqa: ARG005
)

# No simple cause: formulas that are wrong


def none(function: str, where: str, name: str) -> Any:
    return plant("formula", function, where, name, None)


none("wave", "x", "sine for cosine")(lambda d, x, gain: d * np.sin(gain * x) * gain)
none("wave", "gain", "a factor inside the sum")(lambda d, x, gain: (d * np.cos(gain * x) * x**2).sum())
none("wave", "x", "the gain inside")(lambda d, x, gain: d * np.cos(x) * gain)
none("energy", "x", "no square")(lambda d, x, y: d * np.cos(x) * y)
none("energy", "y", "cosine for sine")(lambda d, x, y: 2 * d * np.cos(x) * y)
none("layer", "x", "no tanh derivative")(lambda d, x, w, b: d @ w.T)  # noqa: ARG005
none("layer", "w", "no tanh derivative")(lambda d, x, w, b: x.T @ d)  # noqa: ARG005
none("layer", "b", "no tanh derivative")(lambda d, x, w, b: d.sum(axis=0))  # noqa: ARG005
none("layer", "b", "1 - tanh without the square")(
    lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b))).sum(axis=0)
)  # fmt: skip
none("layer", "x", "the bias forgotten inside tanh")(
    lambda d, x, w, b: (d * (1 - np.tanh(x @ w) ** 2)) @ w.T  # noqa: ARG005
)
none("times", "b", "the input squared")(lambda d, x, b: (d * x**2).sum(axis=0))  # noqa: ARG005
none("times", "x", "another factor")(lambda d, x, b: d * np.sin(b) * x)
none("square matmul", "a", "the other matrix not transposed")(lambda d, a, b: d @ b)  # noqa: ARG005
none("square matmul", "b", "the product the other way round")(lambda d, a, b: d @ a)  # noqa: ARG005
none("softmax", "scores", "the correction over the wrong axis")(
    lambda d, s: softmax(s) * (d - (softmax(s) * d).sum(axis=0))
)
none("attention", "key", "a term with queries left out")(
    lambda d, q, k, v: back_through_softmax(d @ v.T, softmax(q @ k.T / np.sqrt(8))).T @ np.sin(q) / np.sqrt(8)
)
none("attention", "value", "weights without the scale")(lambda d, q, k, v: softmax(q @ k.T).T @ d)  # noqa: ARG005
none("causal attention", "value", "the mask forgotten")(lambda d, q, k, v: softmax(q @ k.T / 2).T @ d)  # noqa: ARG005
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
none("layer norm", "gamma", "the input not normalized")(lambda d, x, gamma, beta: (d * x).sum(axis=0))  # noqa: ARG005
# The softmax does not see a shift of its scores, so without the derivative the terms cancel.
plant("factor", "additive attention", "query", "no tanh derivative", r"zero throughout, but for rounding")(
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
