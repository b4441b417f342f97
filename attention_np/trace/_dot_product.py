"""The steps of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

from attention_np import dot_product as op
from attention_np import softmax
from attention_np._lib.arguments import as_flag, as_integer
from attention_np.trace._inputs import as_tokens, as_width, loss_gradient, small_numbers
from attention_np.trace._shared import (
    forward,
    given,
    incoming,
    mean_backward,
    scores_backward,
    softmax_backward,
    softmax_forward,
    traced,
)
from attention_np.trace._steps import Trace

__all__ = ["dot_product"]


def dot_product(tokens: str | Sequence[str], *, d: int = 4, is_causal: bool = False, seed: int = 0) -> Trace:
    """Every step of scaled dot-product attention on a sentence.

    Parameters
    ----------
    tokens : str or sequence of str
        A sentence, in which each word and each Chinese character is a token; or the tokens themselves. n of them.
    d : int, optional
        The width of queries, keys and values, at most 64.
    is_causal : bool, optional
        Whether a token attends to itself and to those before it only.
    seed : int, optional
        Another seed gives the same tokens other numbers.

    Returns
    -------
    Trace
        Query, key and value are made up from the tokens, (n, d) each.

    Raises
    ------
    TypeError
        If an argument is not of its type.
    ValueError
        If there is no token, or `d` is out of range.

    Examples
    --------
    >>> from attention_np import trace
    >>> steps = trace.dot_product("I love AI", is_causal=True)
    >>> steps["A"].tags
    ('dot-product.3', 'softmax.9')
    >>> print(steps["A"].array.round(3))
    [[1.    0.    0.   ]
     [0.905 0.095 0.   ]
     [0.14  0.052 0.808]]
    """
    words, d = as_tokens(tokens), as_width("d", d)
    is_causal, seed = as_flag("is_causal", is_causal), as_integer("seed", seed)
    query, key, value = (small_numbers(seed, role, words, d) for role in ("query", "key", "value"))
    g = loss_gradient(seed, words, d)
    output, cache = op.forward(query, key, value, is_causal=is_causal)
    gradients = op.backward(g, cache)
    d_weights = g @ value.T  # (n, n)
    d_scores = softmax.backward(d_weights, cache.softmax).scores  # (n, n)

    steps = [
        given("queries", "Q", "ia", "What each token asks for, in d_k numbers.", query),
        given("keys", "K", "ja", "What each token can be found by, in as many numbers.", key),
        given("values", "V", "jb", "What each token has to tell, in d_v numbers.", value),
        forward(
            "scores",
            "S",
            "ij",
            ("dot-product.1", "dot-product.2"),
            f"S = Q K^T / sqrt(d_k), with d_k = {d}",
            "A score says how well the query of its row agrees with the key of its column.",
            cache.scores,
        ),
        *softmax_forward(cache.softmax, "ij", "dot-product.3"),
        forward(
            "output",
            "O",
            "ib",
            ("dot-product.4", "dot-product.5"),
            "O = A V",
            "The output of a query is the mean of the values, with its weights.",
            output,
        ),
        incoming("O", "ib", "dot-product.6", g, output),
        *mean_backward(gradients.value, d_weights, "ij", ("dot-product.9", "dot-product.11"), "G"),
        *softmax_backward(cache.weights, d_weights, d_scores, "ij", ("dot-product.17", "dot-product.16")),
        *scores_backward(gradients.query, gradients.key, ("ia", "ja"), ("dot-product.23", "dot-product.26")),
    ]
    return traced(
        "dot_product",
        "Scaled dot-product attention" + (", causal" if is_causal else ""),
        words,
        steps,
        lambda **arrays: op.forward(**arrays, is_causal=is_causal)[0],
        {"query": query, "key": key, "value": value},
        gradients._asdict(),
        g,
    )
