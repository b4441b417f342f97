"""The steps that the ops have in common, and how steps are written down.

What a step shows comes from the op's cache and gradients. What these do not hold, such as the gradient of the weights,
is made from what they do hold, by the one line that its formula says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np import softmax
from attention_np.gradcheck import numerical_gradient
from attention_np.gradcheck.agreement import relative_error
from attention_np.trace._steps import Step, Trace

__all__ = [
    "backward",
    "forward",
    "given",
    "incoming",
    "mean_backward",
    "scores_backward",
    "softmax_backward",
    "softmax_forward",
    "traced",
]

Array = npt.NDArray[Any]

forward = partial(Step, "forward")
backward = partial(Step, "backward")


def given(name: str, symbol: str, axes: str, sentence: str, array: Array) -> Step:
    """An array that is there to begin with."""
    return Step("given", name, symbol, axes, (), "", sentence, array)


def softmax_forward(cache: softmax.Cache, axes: str, tag: str, of_head: str = "") -> list[Step]:
    """From the scores to the weights, as a person would: largest score, exponentials, weights."""
    steps, scores, symbol = [], cache.scores, f"S{of_head}"
    if cache.mask is not None:
        scores, symbol = np.where(cache.mask, scores, -np.inf), f"S'{of_head}"
        steps.append(
            forward(
                "scores of what is seen",
                symbol,
                axes,
                ("softmax.66",),
                f"{symbol}_ij = S{of_head}_ij if j <= i, else -inf",
                "Causal: a token does not see those after it, so their scores become minus infinity.",
                scores,
            )
        )
    largest = scores.max(axis=-1)  # (..., n)
    exponentials = np.exp(scores - largest[..., None])  # (..., n, m)
    return [
        *steps,
        forward(
            "largest scores",
            f"mu{of_head}",
            axes[:-1],
            ("softmax.6",),
            f"mu{of_head}_i = max_j {symbol}_ij",
            "The largest score of each row is subtracted, which changes no weight, but then nothing overflows.",
            largest,
        ),
        forward(
            "exponentials",
            f"E{of_head}",
            axes,
            ("softmax.7",),
            f"E{of_head}_ij = exp({symbol}_ij - mu{of_head}_i)",
            "The exponential makes every score positive; the largest of each row becomes 1.",
            exponentials,
        ),
        forward(
            "weights",
            f"A{of_head}",
            axes,
            (tag, "softmax.9"),
            f"A{of_head}_ij = E{of_head}_ij / sum_l E{of_head}_il",
            "Each is divided by the sum of its row, so that the weights of a query sum to one.",
            cache.weights,
        ),
    ]


def incoming(symbol: str, axes: str, tag: str, d_output: Array, output: Array) -> Step:
    """The gradient that backward begins with."""
    loss = (d_output * output).sum()
    return backward(
        "gradient of the output",
        "G",
        axes,
        (tag,),
        f"dL/d{symbol} = G",
        f"Backward begins with what the loss says of the output. Here the loss is L = sum_{axes} G_{axes} "
        f"{symbol}_{axes}, which is {loss:.3f}.",
        d_output,
    )


def mean_backward(
    d_values: Array, d_weights: Array, axes: str, tags: tuple[str, str], d_output: str, of_head: str = ""
) -> list[Step]:
    """Back through the weighted mean: to the values and to the weights."""
    return [
        backward(
            "gradient of the values",
            f"dL/dV{of_head}",
            axes.replace("i", "") + "b",
            tags[:1],
            f"dL/dV{of_head} = (A{of_head})^T {d_output}" if of_head else f"dL/dV = A^T {d_output}",
            "A value collects the gradients of all queries that looked at it, each as strongly as it looked.",
            d_values,
        ),
        backward(
            "gradient of the weights",
            f"dL/dA{of_head}",
            axes,
            tags[1:],
            f"dL/dA{of_head} = {d_output} (V{of_head})^T" if of_head else f"dL/dA = {d_output} V^T",
            "The gradient of a weight says how far its value points along the gradient of the output.",
            d_weights,
        ),
    ]


def softmax_backward(
    weights: Array, d_weights: Array, d_scores: Array, axes: str, tags: tuple[str, ...], of_head: str = ""
) -> list[Step]:
    """Back through softmax: the mean of each row, and what is above it."""
    return [
        backward(
            "mean gradient of each row",
            f"r{of_head}",
            axes[:-1],
            (*tags[1:], "softmax.29"),
            f"r{of_head}_i = sum_l A{of_head}_il dL/dA{of_head}_il",
            "A score moves all weights of its row. So what counts is their mean gradient, with the weights.",
            (weights * d_weights).sum(axis=-1),
        ),
        backward(
            "gradient of the scores",
            f"dL/dS{of_head}",
            axes,
            tags[:1],
            f"dL/dS{of_head}_ij = A{of_head}_ij (dL/dA{of_head}_ij - r{of_head}_i)",
            "More weight here is less weight elsewhere: only what is above the mean counts, and each row sums to zero.",
            d_scores,
        ),
    ]


def scores_backward(
    d_query: Array, d_key: Array, axes: tuple[str, str], tags: tuple[str, str], of_head: str = ""
) -> list[Step]:
    """Back through the scaled products: to the queries and to the keys."""
    d_scores, transposed = f"dL/dS{of_head}", f"(dL/dS{of_head})^T"
    return [
        backward(
            "gradient of the queries",
            f"dL/dQ{of_head}",
            axes[0],
            tags[:1],
            f"dL/dQ{of_head} = {d_scores} K{of_head} / sqrt(d_k)",
            "A query moves the scores of its row, each as the key says.",
            d_query,
        ),
        backward(
            "gradient of the keys",
            f"dL/dK{of_head}",
            axes[1],
            tags[1:],
            f"dL/dK{of_head} = {transposed} Q{of_head} / sqrt(d_k)",
            "A key moves the scores of its column, each as the query says; hence the transpose.",
            d_key,
        ),
    ]


def traced(
    op: str,
    title: str,
    tokens: Sequence[str],
    steps: Sequence[Step],
    outputs: Callable[..., Array],
    inputs: Mapping[str, Array],
    gradients: Mapping[str, Array],
    d_output: Array,
) -> Trace:
    """The trace, once its gradients are held against the derivatives of the loss by the complex step."""
    numerical = numerical_gradient(
        lambda *arrays: outputs(**dict(zip(inputs, arrays, strict=True))), inputs, d_output, method="complex-step"
    )
    error = max(relative_error(gradients[name], numerical[name])[0] for name in inputs)
    return Trace(op, title, tuple(tokens), tuple(steps), error)
