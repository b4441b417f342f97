"""The attentions as functions that return their output alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np import additive, blockwise, dot_product, multi_head
from attention_np._lib.arguments import as_array, as_flag, as_floating, check_broadcasts_to, scores_shape
from attention_np._lib.arrays import Array
from attention_np._lib.dropout import Rng
from attention_np.rules import Rule

__all__ = ["additive_attention", "multi_head_attention", "scaled_dot_product_attention"]

ALGORITHMS: dict[str, Callable[..., tuple[Array, Any]]] = {
    "dot_product": dot_product.forward,
    "blockwise": blockwise.forward,
}
# Scores of one head, or of all, from which on blockwise attention is the faster; and queries and keys below which there
# are hardly more scores than numbers in the keys and values, so that it saves nothing.
LARGE, LARGE_TOGETHER, FEW = 2**17, 2**22, 128


def scaled_dot_product_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    attn_mask: npt.ArrayLike | Rule | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: Rng | None = None,
    algorithm: str = "auto",
) -> Array:
    """Scaled dot-product attention, with the signature of PyTorch's function of this name.

    Parameters
    ----------
    query : array_like of float, (..., n, d_k)
    key : array_like of float, (..., m, d_k)
    value : array_like of float, (..., m, d_v)
    attn_mask : array_like of bool or float, or Rule, optional
        Broadcasts to the scores, (..., n, m). Booleans are a mask, True where attending is allowed; floats are a bias,
        added to the scores; one of :mod:`attention_np.rules` is a mask that is never whole in memory. Unlike PyTorch's,
        it may be given together with `is_causal`.
    dropout_p : float, optional
        The probability with which a weight is dropped. As in PyTorch, it applies whenever it is not zero.
    is_causal : bool, optional
        Query i attends to keys ``j <= i`` only.
    scale : float, optional
        By default ``1 / sqrt(d_k)``.
    enable_gqa : bool, optional
        Grouped queries: key and value may have fewer heads (the last axis but two) than query, each serving an equal
        number of query heads that follow one another.
    rng : int or numpy.random.Generator, optional
        A seed or generator; needed for dropout.
    algorithm : {"auto", "dot_product", "blockwise"}, optional
        The module that computes it. "auto" is :mod:`attention_np.blockwise`, on all cores and in linear memory, with a
        rule, and where the scores would be large: at least 2**17 of one head, or 2**22 of all heads, of 128 queries and
        keys or more; and else :mod:`attention_np.dot_product`. Both give the same to rounding, and a seed the same
        draws.

    Returns
    -------
    ndarray, (..., n, d_v)

    Raises
    ------
    TypeError, ValueError
        As :func:`attention_np.dot_product.forward`; if the heads of key or value do not divide those of query; and if
        there is no such algorithm.

    See Also
    --------
    attention_np.dot_product : the same with the intermediates, the gradients and forward mode.

    Examples
    --------
    >>> import numpy as np
    >>> import attention_np as anp
    >>> query, key, value = np.zeros((1, 2)), np.ones((4, 2)), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> print(anp.scaled_dot_product_attention(query, key, value))
    [[2.5]]
    """
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f'algorithm must be "auto", "dot_product" or "blockwise", not {algorithm!r}')
    if as_flag("enable_gqa", enable_gqa):
        query = as_floating("query", query)
        key, value = _repeat_heads("key", key, query), _repeat_heads("value", value, query)
    shape = scores_shape(as_floating("query", query), as_floating("key", key), as_floating("value", value))
    mask: Any = None
    bias = None
    if isinstance(attn_mask, Rule):
        mask = attn_mask.mask(*shape[-2:]) if algorithm == "dot_product" else attn_mask
    elif attn_mask is not None:
        array = as_array("attn_mask", attn_mask, "booleans or floating-point numbers")
        if array.dtype.kind in "iu":
            raise TypeError(
                f"attn_mask must hold booleans or floating-point numbers, not {array.dtype}: "
                f"masks.as_mask reads a mask of 0 and 1 (attn_mask.shape={array.shape})"
            )
        check_broadcasts_to("attn_mask", array, shape)
        if array.dtype == np.bool_:
            mask = array
        else:
            as_floating("attn_mask", array)
            bias = attn_mask
    if algorithm == "auto":
        algorithm = "blockwise" if isinstance(mask, Rule) or _are_large(shape) else "dot_product"
    output, _ = ALGORITHMS[algorithm](
        query, key, value, mask=mask, bias=bias, scale=scale, is_causal=is_causal, dropout_p=dropout_p, rng=rng
    )
    return output


def _are_large(shape: tuple[int, ...]) -> bool:
    """Whether scores of this shape are better never held."""
    *_, n, m = shape
    return min(n, m) >= FEW and (n * m >= LARGE or prod(shape) >= LARGE_TOGETHER)


def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_score: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    mask: npt.ArrayLike | None = None,
) -> Array:
    """Additive attention: the output of :func:`attention_np.additive.forward` alone.

    Parameters
    ----------
    query, key, value, w_query, w_key, w_score, b, mask
        As for :func:`attention_np.additive.forward`.

    Returns
    -------
    ndarray, (..., n, d_v)

    Raises
    ------
    TypeError, ValueError
        As :func:`attention_np.additive.forward`.

    Examples
    --------
    >>> import numpy as np
    >>> import attention_np as anp
    >>> query, key, value = np.array([[0.0]]), np.array([[1.0], [1.0]]), np.array([[1.0], [2.0]])
    >>> print(anp.additive_attention(query, key, value, np.eye(1), np.eye(1), np.ones(1)))
    [[1.5]]
    """
    output, _ = additive.forward(query, key, value, w_query, w_key, w_score, b, mask=mask)
    return output


def multi_head_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    parameters: multi_head.Parameters,
    *,
    num_heads: int,
    **options: Any,
) -> Array:
    """Multi-head attention: the output of :func:`attention_np.multi_head.forward` alone.

    Parameters
    ----------
    query, key, value, parameters, num_heads, **options
        As for :func:`attention_np.multi_head.forward`, with all of its options.

    Returns
    -------
    ndarray, (..., n, d_output)

    Raises
    ------
    TypeError, ValueError
        As :func:`attention_np.multi_head.forward`.

    Examples
    --------
    >>> import numpy as np
    >>> import attention_np as anp
    >>> x = np.ones((5, 8))
    >>> parameters = anp.multi_head.Parameters.random(8, rng=0)
    >>> anp.multi_head_attention(x, x, x, parameters, num_heads=2).shape
    (5, 8)
    """
    output, _ = multi_head.forward(query, key, value, parameters, num_heads=num_heads, **options)
    return output


def _repeat_heads(name: str, array: npt.ArrayLike, query: Array) -> Array:
    """`array` with each head repeated for the query heads that it serves."""
    array = as_floating(name, array)
    if min(array.ndim, query.ndim) < 3 or not array.shape[-3] or query.shape[-3] % array.shape[-3]:
        raise ValueError(
            f"with enable_gqa the heads of {name}, its last axis but two, must divide those of query "
            f"({name}.shape={array.shape}, query.shape={query.shape})"
        )
    return np.repeat(array, query.shape[-3] // array.shape[-3], axis=-3)
