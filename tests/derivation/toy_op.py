"""An op for the tests: attention in a dozen lines, and with one sign wrong on demand."""

from typing import Any, NamedTuple

import numpy as np

Array = Any
wrong = ""


class Parameters(NamedTuple):
    """Something to hand in under a dotted name."""

    w_output: Array


class Cache(NamedTuple):
    """What forward leaves for backward."""

    query: Array
    key: Array
    value: Array
    parameters: Parameters
    scores: Array
    weights: Array
    mask: Array
    scale: float


class Gradients(NamedTuple):
    """Named as the arguments."""

    query: Array
    key: Array
    value: Array
    parameters: Parameters


def forward(
    query: Array, key: Array, value: Array, parameters: Parameters, *, mask: Array = None, scale: float = 1.0
) -> tuple[Array, Cache]:
    """Masked attention with an output projection."""
    assert mask.dtype == bool
    scores = scale * query @ key.T
    weights = np.where(mask, np.exp(scores), 0.0)
    weights /= weights.sum(-1, keepdims=True)
    output = weights @ value @ parameters.w_output
    return output, Cache(query, key, value, parameters, scores, weights, mask, scale)


def backward(d_output: Array, cache: Cache) -> Gradients:
    """The gradients; ``wrong`` names one of which the sign is flipped."""
    d_mixed = d_output @ cache.parameters.w_output.T
    d_weights = d_mixed @ cache.value.T
    d_scores = cache.weights * (d_weights - (cache.weights * d_weights).sum(-1, keepdims=True))
    found = {
        "query": cache.scale * d_scores @ cache.key,
        "key": cache.scale * d_scores.T @ cache.query,
        "value": cache.weights.T @ d_mixed,
        "w_output": (cache.weights @ cache.value).T @ d_output,
    }
    if wrong:
        found[wrong] = -found[wrong]
    return Gradients(found["query"], found["key"], found["value"], Parameters(found["w_output"]))
