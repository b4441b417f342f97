"""Attention as a person would do it on paper: every step, forward and backward, in small numbers.

    from attention_np import trace

    steps = trace.dot_product("The cat sat on the mat", is_causal=True)
    print(steps)
    steps["dL/dS"].array

The steps are the equations of the op's page in ``derivations/``, carried out on a sentence: each has its array, its
shape, the paragraph that leads to it, the equation in plain text, and its tag. :func:`of` traces any op that has a
page; the command ``python -m attention_np trace`` prints the same. The extra ``check`` reads the pages. :func:`chain`
traces a layer of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from attention_np._lib.arguments import as_flag, as_integer
from attention_np.trace._inputs import as_tokens, as_width
from attention_np.trace._paper import Step, Trace

__all__ = ["Step", "Trace", "additive", "chain", "dot_product", "multi_head", "of"]


def of(
    op: str, tokens: str | Sequence[str], *, d: int = 4, is_causal: bool = False, seed: int = 0, **sizes: int
) -> Trace:
    """Every step of an op on a sentence, as its page derives it.

    Parameters
    ----------
    op : str
        The name of the op, which is that of its page.
    tokens : str or sequence of str
        A sentence, in which each word and each Chinese character is a token; or the tokens themselves. As many queries
        and keys.
    d : int, optional
        The length of all other ranges of the page, at most 64.
    is_causal : bool, optional
        Whether a token attends to itself and to those before it only.
    seed : int, optional
        Another seed gives the same tokens other numbers.
    **sizes
        The length of some ranges, by their names on the page: ``H=2`` heads.

    Returns
    -------
    Trace
        What the page leaves free is made up: from the tokens what has a row for each, otherwise from nothing. A bias
        is zero, or hides what `is_causal` does.

    Raises
    ------
    ImportError
        If the extra ``check`` is not installed.
    TypeError
        If an argument is not of its type.
    ValueError
        If there is no token, a size is out of range, or the op has no page that can be traced.

    Examples
    --------
    >>> from attention_np import trace
    >>> trace.of("softmax", "I love AI")["A"].shape
    (3, 3)
    """
    if not isinstance(op, str):
        raise TypeError(f"op must be the name of an op, not {type(op).__name__}")
    words, d = as_tokens(tokens), as_width("d", d)
    is_causal, seed = as_flag("is_causal", is_causal), as_integer("seed", seed)
    lengths = {name: as_width(name, size) for name, size in sizes.items()}
    try:
        from attention_np.trace._pages import traced
    except ImportError as error:
        raise ImportError("a trace reads the derivation pages: pip install 'attention-np[check]'") from error
    return traced(op, words, lengths, d, is_causal, seed)


def dot_product(tokens: str | Sequence[str], *, d: int = 4, is_causal: bool = False, seed: int = 0) -> Trace:
    """Every step of scaled dot-product attention on a sentence; `d` is the width of queries, keys and values.

    See :func:`of` for the other parameters and for what is raised.

    Examples
    --------
    >>> from attention_np import trace
    >>> steps = trace.dot_product("I love AI", is_causal=True)
    >>> steps["A"].tags
    ('dot-product.3',)
    >>> print(steps["A"].array.round(3))
    [[1.    0.    0.   ]
     [0.905 0.095 0.   ]
     [0.14  0.052 0.808]]
    """
    return of("dot_product", tokens, d=d, is_causal=is_causal, seed=seed)


def additive(
    tokens: str | Sequence[str], *, d: int = 4, hidden: int = 3, is_causal: bool = False, seed: int = 0
) -> Trace:
    """Every step of additive attention on a sentence; `hidden` units compare a query with a key.

    See :func:`of` for the other parameters and for what is raised.

    Examples
    --------
    >>> from attention_np import trace
    >>> trace.additive("I love AI", hidden=2)["T"].shape
    (3, 3, 2)
    """
    return of("additive", tokens, d=d, is_causal=is_causal, seed=seed, h=as_width("hidden", hidden))


def multi_head(
    tokens: str | Sequence[str], *, d: int = 4, num_heads: int = 2, is_causal: bool = False, seed: int = 0
) -> Trace:
    """Every step of multi-head self-attention on a sentence; `num_heads` divides `d`, the width of all heads together.

    See :func:`of` for the other parameters and for what is raised.

    Examples
    --------
    >>> from attention_np import trace
    >>> trace.multi_head("I love AI")["A(h)"].shape
    (2, 3, 3)
    """
    d, num_heads = as_width("d", d), as_integer("num_heads", num_heads, least=1)
    if d % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide d={d}")
    width = d // num_heads
    return of("multi_head", tokens, d=d, is_causal=is_causal, seed=seed, H=num_heads, d_k=width, d_v=width)


def chain(
    layer: Callable[..., Any], inputs: Mapping[str, npt.ArrayLike], d_output: npt.ArrayLike | None = None
) -> Trace:
    """Every step of a layer, forward and backward: what each makes, and the gradient of it.

    Parameters
    ----------
    layer : callable
        As for :func:`attention_np.chain.forward`, with one output.
    inputs : mapping of str to array_like
        Real numbers; they are computed with in float64.
    d_output : array_like, optional
        The gradient of the loss with respect to the output, by default small whole numbers.

    Raises
    ------
    ValueError
        If the layer has several outputs, or an array does not have the shape that it must have.

    Examples
    --------
    >>> import numpy as np
    >>> from attention_np import trace
    >>> print(trace.chain(lambda x: x * x, {"x": np.array([3.0, 4.0])}, np.ones(2))["dL/dx"].array)
    [6. 8.]
    """
    from attention_np.trace._chain import traced

    return traced(layer, inputs, d_output)
