"""The steps of multi-head self-attention."""

from __future__ import annotations

from collections.abc import Sequence

from attention_np import dot_product, softmax
from attention_np import multi_head as op
from attention_np._lib.arguments import as_flag, as_integer
from attention_np._lib.arrays import Array, transposed
from attention_np.trace._inputs import as_tokens, as_width, loss_gradient, numbered, small_numbers
from attention_np.trace._shared import (
    backward,
    forward,
    given,
    incoming,
    mean_backward,
    scores_backward,
    softmax_backward,
    softmax_forward,
    traced,
)
from attention_np.trace._steps import Step, Trace

__all__ = ["multi_head"]

WEIGHTS = ("w_query", "w_key", "w_value", "w_output")
OF_HEAD = "(h)"


def multi_head(
    tokens: str | Sequence[str], *, d: int = 4, num_heads: int = 2, is_causal: bool = False, seed: int = 0
) -> Trace:
    """Every step of multi-head self-attention on a sentence.

    Parameters
    ----------
    tokens, d, is_causal, seed
        As for :func:`dot_product`; `d` is the width of all heads together.
    num_heads : int, optional
        Divides `d`.

    Returns
    -------
    Trace
        One array X, (n, d), is query, key and value. It is made up, and so are the projections; there are no biases.

    Raises
    ------
    TypeError, ValueError
        As for :func:`dot_product`; also if `num_heads` does not divide `d`.

    Examples
    --------
    >>> from attention_np import trace
    >>> trace.multi_head("I love AI")["A(h)"].shape
    (2, 3, 3)
    """
    words, d, num_heads = as_tokens(tokens), as_width("d", d), as_integer("num_heads", num_heads, least=1)
    is_causal, seed = as_flag("is_causal", is_causal), as_integer("seed", seed)
    if d % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide d={d}")
    x = small_numbers(seed, "x", words, d)
    parameters = op.Parameters(*(small_numbers(seed, role, numbered(d), d, largest=0.5) for role in WEIGHTS))
    g = loss_gradient(seed, words, d)
    output, cache = op.forward(x, x, x, parameters, num_heads=num_heads, is_causal=is_causal)
    gradients = op.backward(g, cache)

    def outputs(x: Array, **weights: Array) -> Array:
        return op.forward(x, x, x, op.Parameters(**weights), num_heads=num_heads, is_causal=is_causal)[0]

    weights = {role: array for role, array in parameters._asdict().items() if array is not None}
    return traced(
        "multi_head",
        f"Multi-head self-attention with {num_heads} head{'' if num_heads == 1 else 's'}"
        + (", causal" if is_causal else ""),
        words,
        [*_forward_steps(cache, output), *_backward_steps(g, output, cache, gradients)],
        outputs,
        {"x": x, **weights},
        {"x": gradients.query + gradients.key + gradients.value, **gradients.parameters._asdict()},
        g,
    )


def _forward_steps(cache: op.Cache, output: Array) -> list[Step]:
    x, parameters, attention = cache.query, cache.parameters, cache.attention
    d_k = attention.query.shape[-1]
    heads = attention.weights @ attention.value  # (heads, n, d_v)
    return [
        given("inputs", "X", "ir", "Each token, in d numbers: it is query, key and value at once.", x),
        given("query weights", "W^Q", "rc", f"Head 1 has the first {d_k} columns, and so on.", parameters.w_query),
        given("key weights", "W^K", "rc", "Likewise.", parameters.w_key),
        given("value weights", "W^V", "rf", "Likewise.", parameters.w_value),
        given("output weights", "W^O", "fu", f"Head 1 has the first {d_k} rows, and so on.", parameters.w_output),
        *_projected(cache),
        forward(
            "scores",
            "S(h)",
            "hij",
            ("multi-head.6",),
            f"S(h) = Q(h) (K(h))^T / sqrt(d_k), with d_k = {d_k}",
            "Each head compares queries with keys by itself; the root is that of its own width.",
            attention.scores,
        ),
        *softmax_forward(attention.softmax, "hij", "multi-head.7", OF_HEAD),
        forward(
            "output of each head",
            "O(h)",
            "hib",
            ("multi-head.8", "multi-head.9"),
            "O(h) = A(h) V(h)",
            "What each head found: the mean of its values, with its weights.",
            heads,
        ),
        forward(
            "heads side by side",
            "C",
            "if",
            ("multi-head.11",),
            "C = [O(1) O(2) ...]",
            "Again no number is computed.",
            cache.combined,
        ),
        forward(
            "output",
            "Y",
            "iu",
            ("multi-head.13", "multi-head.14"),
            "Y = C W^O",
            "The output projection mixes what the heads found.",
            output,
        ),
    ]


def _projected(cache: op.Cache) -> list[Step]:
    """Queries, keys and values, which are made alike: of all heads together, then those of each head."""
    attention = cache.attention
    found = [
        ("Q", "queries", "ic", "hia", "1", attention.query),
        ("K", "keys", "jc", "hja", "2", attention.key),
        ("V", "values", "jf", "hjb", "3", attention.value),
    ]
    together = [
        forward(
            f"{plural} of all heads",
            letter,
            axes,
            (f"multi-head.{tag}", "multi-head.4"),
            f"{letter} = X W^{letter}",
            "One product projects for all heads at once.",
            op.combine_heads(array),
        )
        for letter, plural, axes, _, tag, array in found
    ]
    apart = [
        forward(
            f"{plural} of each head",
            f"{letter}(h)",
            axes,
            ("multi-head.5",),
            f"{letter}(h) = columns {array.shape[-1]} (h - 1) + 1 to {array.shape[-1]} h of {letter}",
            "Each head takes its columns; no number is computed here.",
            array,
        )
        for letter, plural, _, axes, _, array in found
    ]
    return together + apart


def _backward_steps(g: Array, output: Array, cache: op.Cache, gradients: op.Gradients) -> list[Step]:
    attention, parameters = cache.attention, cache.parameters
    d_combined = g @ parameters.w_output.T  # (n, d)
    d_heads = op.split_heads(d_combined, cache.num_heads)  # (heads, n, d_v)
    inner = dot_product.backward(d_heads, attention)
    d_weights = d_heads @ transposed(attention.value)  # (heads, n, n)
    d_scores = softmax.backward(d_weights, attention.softmax).scores  # (heads, n, n)
    d_q, d_k, d_v = (op.combine_heads(d) for d in (inner.query, inner.key, inner.value))  # (n, d) each
    return [
        incoming("Y", "iu", "multi-head.27", g, output),
        backward(
            "gradient of the output weights",
            "dL/dW^O",
            "fu",
            ("multi-head.30",),
            "dL/dW^O = C^T G",
            "The rows of each head stand one below the other, as in W^O; nothing is summed over heads.",
            gradients.parameters.w_output,
        ),
        backward(
            "gradient of the heads side by side",
            "dL/dC",
            "if",
            ("multi-head.30",),
            "dL/dC = G (W^O)^T",
            "Back through the output projection.",
            d_combined,
        ),
        backward(
            "gradient of each head",
            "dL/dO(h)",
            "hib",
            ("multi-head.32",),
            "head h has its own columns of dL/dC",
            "What was put side by side is taken apart.",
            d_heads,
        ),
        *mean_backward(inner.value, d_weights, "hij", ("multi-head.34", "multi-head.34"), "dL/dO(h)", OF_HEAD),
        *softmax_backward(attention.weights, d_weights, d_scores, "hij", ("multi-head.35",), OF_HEAD),
        *scores_backward(inner.query, inner.key, ("hia", "hja"), ("multi-head.36", "multi-head.36"), OF_HEAD),
        *_projections_backward(d_q, d_k, d_v, gradients),
        backward(
            "gradient of the inputs",
            "dL/dX",
            "ir",
            ("multi-head.57",),
            "dL/dX = dL/dX^Q + dL/dX^K + dL/dX^V",
            "X stood in three places, so its gradient is the sum of three.",
            gradients.query + gradients.key + gradients.value,
        ),
    ]


def _projections_backward(d_q: Array, d_k: Array, d_v: Array, gradients: op.Gradients) -> list[Step]:
    """Back through the three projections, which are alike."""
    of_weights = gradients.parameters
    found = [
        ("Q", "queries", "query", "ir", "c", "40", d_q, of_weights.w_query, gradients.query),
        ("K", "keys", "key", "jr", "c", "41", d_k, of_weights.w_key, gradients.key),
        ("V", "values", "value", "jr", "f", "42", d_v, of_weights.w_value, gradients.value),
    ]
    steps = []
    for letter, plural, name, rows, column, tag, d_projected, d_w, d_x in found:
        steps += [
            backward(
                f"gradient of the {plural}, heads side by side",
                f"dL/d{letter}",
                rows[0] + column,
                ("multi-head.38",),
                f"dL/d{letter} = [dL/d{letter}(1) dL/d{letter}(2) ...]",
                "What was taken apart is put side by side.",
                d_projected,
            ),
            backward(
                f"gradient of the {name} weights",
                f"dL/dW^{letter}",
                f"r{column}",
                (f"multi-head.{tag}",),
                f"dL/dW^{letter} = X^T dL/d{letter}",
                "All tokens share the weights, so the product sums over the tokens.",
                d_w,
            ),
            backward(
                f"gradient of the inputs, as {plural}",
                f"dL/dX^{letter}",
                rows,
                (f"multi-head.{tag}",),
                f"dL/dX^{letter} = dL/d{letter} (W^{letter})^T",
                f"The part of the inputs' gradient that comes through the {plural}.",
                d_x,
            ),
        ]
    return steps
