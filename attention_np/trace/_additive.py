"""The steps of additive attention."""

from __future__ import annotations

from collections.abc import Sequence

from attention_np import additive as op
from attention_np import masks, softmax
from attention_np._lib.arguments import as_flag, as_integer
from attention_np._lib.arrays import Array
from attention_np.trace._inputs import as_tokens, as_width, loss_gradient, numbered, small_numbers
from attention_np.trace._shared import (
    backward,
    forward,
    given,
    incoming,
    mean_backward,
    softmax_backward,
    softmax_forward,
    traced,
)
from attention_np.trace._steps import Step, Trace

__all__ = ["additive"]


def additive(
    tokens: str | Sequence[str], *, d: int = 4, hidden: int = 3, is_causal: bool = False, seed: int = 0
) -> Trace:
    """Every step of additive attention on a sentence.

    Parameters
    ----------
    tokens, d, is_causal, seed
        As for :func:`dot_product`.
    hidden : int, optional
        How many hidden units compare a query with a key, at most 64.

    Returns
    -------
    Trace
        Query, key and value, (n, d) each, and the parameters of the network are made up.

    Raises
    ------
    TypeError, ValueError
        As for :func:`dot_product`.

    Examples
    --------
    >>> from attention_np import trace
    >>> trace.additive("I love AI", hidden=2)["T"].shape
    (3, 3, 2)
    """
    words, d, hidden = as_tokens(tokens), as_width("d", d), as_width("hidden", hidden)
    is_causal, seed = as_flag("is_causal", is_causal), as_integer("seed", seed)
    inputs = {role: small_numbers(seed, role, words, d) for role in ("query", "key", "value")}
    # Small weights, so that tanh is not saturated everywhere.
    inputs |= {role: small_numbers(seed, role, numbered(d), hidden, largest=0.5) for role in ("w_query", "w_key")}
    inputs |= {"w_score": small_numbers(seed, "w_score", numbered(1), hidden)[0]}
    inputs |= {"b": small_numbers(seed, "b", numbered(1), hidden, largest=0.5)[0]}
    g = loss_gradient(seed, words, d)
    mask = masks.causal(len(words)) if is_causal else None
    output, cache = op.forward(**inputs, mask=mask)
    gradients = op.backward(g, cache)
    return traced(
        "additive",
        "Additive attention" + (", causal" if is_causal else ""),
        words,
        [*_forward_steps(cache, output), *_backward_steps(g, output, cache, gradients)],
        lambda **arrays: op.forward(**arrays, mask=mask)[0],
        inputs,
        gradients._asdict(),
        g,
    )


def _forward_steps(cache: op.Cache, output: Array) -> list[Step]:
    assert cache.b is not None  # it is among the inputs
    return [
        given("queries", "Q", "ic", "What each token asks for, in d_q numbers.", cache.query),
        given("keys", "K", "ja", "What each token can be found by, in d_k numbers.", cache.key),
        given("values", "V", "jb", "What each token has to tell, in d_v numbers.", cache.value),
        given("query weights", "W^Q", "cu", "From a query to the hidden units, one column for each.", cache.w_query),
        given("key weights", "W^K", "au", "From a key to the same hidden units.", cache.w_key),
        given("bias", "beta", "u", "A number that is added to each hidden unit.", cache.b),
        given("score weights", "w", "u", "How much each hidden unit counts for the score.", cache.w_score),
        forward(
            "projected queries",
            "X",
            "iu",
            ("additive.1",),
            "X = Q W^Q",
            "Each query is taken to the hidden units once, whatever the keys are.",
            cache.query @ cache.w_query,
        ),
        forward(
            "projected keys",
            "Y",
            "ju",
            ("additive.2",),
            "Y_ju = sum_a K_ja W^K_au + beta_u",
            "So is each key, and here the bias is added.",
            cache.key @ cache.w_key + cache.b,
        ),
        forward(
            "hidden units",
            "T",
            "iju",
            ("additive.4",),
            "T_iju = tanh(Z_iju), with Z_iju = X_iu + Y_ju",
            "Every query is added to every key, and tanh is taken of each number.",
            cache.hidden,
        ),
        forward(
            "scores",
            "S",
            "ij",
            ("additive.5",),
            "S_ij = sum_u w_u T_iju",
            "The score of a pair is a weighted sum of its hidden units.",
            cache.scores,
        ),
        *softmax_forward(cache.softmax, "ij", "additive.6"),
        forward(
            "output",
            "O",
            "ib",
            ("additive.7",),
            "O = A V",
            "The output of a query is the mean of the values, with its weights.",
            output,
        ),
    ]


def _backward_steps(g: Array, output: Array, cache: op.Cache, gradients: op.Gradients) -> list[Step]:
    assert gradients.b is not None  # there is a bias
    d_weights = g @ cache.value.T  # (n, n)
    d_scores = softmax.backward(d_weights, cache.softmax).scores  # (n, n)
    d_hidden = d_scores[..., None] * cache.w_score  # (n, n, hidden)
    d_sum = d_hidden * (1 - cache.hidden**2)  # (n, n, hidden)
    return [
        incoming("O", "ib", "additive.11", g, output),
        *mean_backward(gradients.value, d_weights, "ij", ("additive.12", "additive.13"), "G"),
        *softmax_backward(cache.weights, d_weights, d_scores, "ij", ("additive.14",)),
        backward(
            "gradient of the score weights",
            "dL/dw",
            "u",
            ("additive.16",),
            "dL/dw_u = sum_ij dL/dS_ij T_iju",
            "One and the same w makes the scores of all pairs, so all pairs are summed.",
            gradients.w_score,
        ),
        backward(
            "gradient of the hidden units",
            "dL/dT",
            "iju",
            ("additive.15",),
            "dL/dT_iju = dL/dS_ij w_u",
            "A hidden unit belongs to one pair: nothing is summed.",
            d_hidden,
        ),
        backward(
            "gradient inside the tanh",
            "dL/dZ",
            "iju",
            ("additive.18",),
            "dL/dZ_iju = dL/dT_iju (1 - T_iju^2)",
            "The slope of tanh: a unit that is nearly 1 or -1 lets almost nothing through.",
            d_sum,
        ),
        backward(
            "gradient of the projected queries",
            "dL/dX",
            "iu",
            ("additive.19",),
            "dL/dX_iu = sum_j dL/dZ_iju",
            "Forward added a query to every key, so backward sums over the keys.",
            d_sum.sum(axis=1),
        ),
        backward(
            "gradient of the projected keys",
            "dL/dY",
            "ju",
            ("additive.20",),
            "dL/dY_ju = sum_i dL/dZ_iju",
            "And a key to every query, so here it sums over the queries.",
            d_sum.sum(axis=0),
        ),
        backward(
            "gradient of the queries",
            "dL/dQ",
            "ic",
            ("additive.21",),
            "dL/dQ = dL/dX (W^Q)^T",
            "Back through the projection: the transposed weights.",
            gradients.query,
        ),
        backward(
            "gradient of the query weights",
            "dL/dW^Q",
            "cu",
            ("additive.22",),
            "dL/dW^Q = Q^T dL/dX",
            "All queries share these weights, so this product sums over the queries.",
            gradients.w_query,
        ),
        backward(
            "gradient of the keys",
            "dL/dK",
            "ja",
            ("additive.23",),
            "dL/dK = dL/dY (W^K)^T",
            "The same for the keys.",
            gradients.key,
        ),
        backward(
            "gradient of the key weights",
            "dL/dW^K",
            "au",
            ("additive.24",),
            "dL/dW^K = K^T dL/dY",
            "And for their weights.",
            gradients.w_key,
        ),
        backward(
            "gradient of the bias",
            "dL/dbeta",
            "u",
            ("additive.25",),
            "dL/dbeta_u = sum_j dL/dY_ju",
            "The bias was added to every key, so all keys are summed.",
            gradients.b,
        ),
    ]
