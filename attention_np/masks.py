"""Who may attend to whom: boolean masks, True where attending is allowed.

A mask broadcasts to the scores, ``(..., n, m)`` for n queries and m keys; two masks combine with ``&``. Each function
takes time and memory proportional to the mask that it returns.

The causal mask is that of Vaswani et al. [1]_, the sliding window that of Beltagy et al. [2]_.

References
----------
.. [1] A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
.. [2] I. Beltagy, M. E. Peters, A. Cohan, "Longformer: the long-document transformer", arXiv:2004.05150, 2020.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from attention_np._lib import arguments
from attention_np._lib.arguments import as_array, as_flag, as_integer, check_broadcasts_to
from attention_np._lib.arrays import Array, holds_array, is_floating
from attention_np._lib.text import shortened

__all__ = [
    "as_mask",
    "block_causal",
    "causal",
    "multi_level_causal",
    "packed",
    "padding",
    "padding_from_tokens",
    "selected",
    "sliding_window",
    "tree",
]

Mask: TypeAlias = npt.NDArray[np.bool_]


def causal(n: int, m: int | None = None, *, offset: int = 0) -> Mask:
    """Each query sees the keys up to its own position, and none of its future.

    Parameters
    ----------
    n, m : int
        Numbers of queries and of keys; `m` is `n` by default.
    offset : int, optional
        Query i sees the keys ``j <= i + offset``. Zero aligns the first query with the first key, as `is_causal` and
        PyTorch do; ``m - n`` aligns the last with the last, as decoding with a cache of keys needs.

    Returns
    -------
    ndarray of bool, (n, m)

    Raises
    ------
    TypeError, ValueError
        If `n` or `m` is not an integer, negative, or larger than an array can be; if `offset` is not an integer.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.causal(3).astype(int))
    [[1 0 0]
     [1 1 0]
     [1 1 1]]
    >>> print(masks.causal(2, 4, offset=2).astype(int))
    [[1 1 1 0]
     [1 1 1 1]]
    """
    n, m = _lengths(n, m)
    # Further off nothing changes, and NumPy may not count so far.
    offset = max(-n, min(as_integer("offset", offset), m))
    return np.tri(n, m, offset, dtype=np.bool_)  # (masks.33, masks.35)


def padding(lengths: npt.ArrayLike, m: int, *, heads: bool = False) -> Mask:
    """Every query sees the keys before the length of its sample, and none of the padding after it.

    Parameters
    ----------
    lengths : array_like of int, (...)
        The number of real keys of each sample, from 0 to `m`.
    m : int
        The number of keys, padding included.
    heads : bool, optional
        Insert an axis for the heads of :mod:`attention_np.multi_head`.

    Returns
    -------
    ndarray of bool, (..., 1, m), or (..., 1, 1, m) with `heads`

    Raises
    ------
    TypeError, ValueError
        If a length or `m` is not an integer, or a length is not from 0 to `m`.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.padding([1, 3], 3).astype(int))
    [[[1 0 0]]
    <BLANKLINE>
     [[1 1 1]]]
    """
    _, m = _lengths(0, m)
    counts = as_integers("lengths", lengths)
    if counts.size and not (counts.min() >= 0 and counts.max() <= m):
        raise ValueError(f"lengths must be from 0 to m={m}, not from {counts.min()} to {counts.max()}")
    return _over_queries(np.arange(m) < counts[..., None], heads)  # (masks.49)


def padding_from_tokens(tokens: npt.ArrayLike, pad_id: int, *, heads: bool = False) -> Mask:
    """Every query sees the keys whose token is not `pad_id`.

    Parameters
    ----------
    tokens : array_like of int, (..., m)
    pad_id : int
        The token that stands for padding.
    heads : bool, optional
        Insert an axis for the heads of :mod:`attention_np.multi_head`.

    Returns
    -------
    ndarray of bool, (..., 1, m), or (..., 1, 1, m) with `heads`

    Raises
    ------
    TypeError, ValueError
        If the tokens or `pad_id` are not integers; if `tokens` has no axis.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.padding_from_tokens([[7, 5, 0], [3, 0, 0]], pad_id=0)[:, 0].astype(int))
    [[1 1 0]
     [1 0 0]]
    """
    return _over_queries(as_integers("tokens", tokens, axes=1) != as_integer("pad_id", pad_id), heads)


def sliding_window(n: int, m: int | None = None, *, left: int | None, right: int | None = 0) -> Mask:
    """Query i sees the keys ``i - left <= j <= i + right``.

    Parameters
    ----------
    n, m : int
        Numbers of queries and of keys; `m` is `n` by default.
    left, right : int or None
        How many keys before and after its own position a query sees; None is no bound. With the default ``right=0``
        the window is causal, and is ``left + 1`` keys wide.

    Returns
    -------
    ndarray of bool, (n, m)

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer, or negative.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.sliding_window(4, left=1).astype(int))
    [[1 0 0 0]
     [1 1 0 0]
     [0 1 1 0]
     [0 0 1 1]]
    """
    n, m = _lengths(n, m)
    window = np.ones((n, m), dtype=np.bool_)
    if right is not None:
        window = causal(n, m, offset=as_integer("right", right, least=0))  # (masks.37, masks.39)
    if left is not None:
        window &= ~causal(n, m, offset=-as_integer("left", left, least=0) - 1)  # (masks.37, masks.39)
    return window


def as_window(window: tuple[int | None, int | None]) -> dict[str, int | None]:
    """A window, (left, right), as the options of :func:`sliding_window`."""
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise TypeError(f"window must be a pair (left, right), not {window!r}")
    return {"left": window[0], "right": window[1]}


def block_causal(n: int, block_size: int) -> Mask:
    """Each query sees the earlier blocks and the whole of its own, so it looks ahead within its block.

    Parameters
    ----------
    n : int
        Number of queries and of keys.
    block_size : int
        Positions in a block, at least 1. The last block may be shorter.

    Returns
    -------
    ndarray of bool, (n, n)

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer; if `n` is negative or `block_size` less than 1.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.block_causal(4, 2).astype(int))
    [[1 1 0 0]
     [1 1 0 0]
     [1 1 1 1]
     [1 1 1 1]]
    """
    n, _ = _lengths(n, None)
    block = np.arange(n) // min(as_integer("block_size", block_size, least=1), max(n, 1))  # (n,) (masks.40)
    return block[:, None] >= block  # (masks.42)


def multi_level_causal(n: int, levels: Sequence[int] = (1, 4, 16)) -> Mask:
    """Each query sees near keys one by one and far ones at coarser steps, and none of its future.

    At distance ``d = i - j >= 0`` the step s is the largest level that is at most ``max(d, 1)``, and query i sees
    key j if ``(j + 1) % s == 0``: the last position of each stretch of s stands for the stretch.

    Parameters
    ----------
    n : int
        Number of queries and of keys.
    levels : sequence of int, optional
        The steps, increasing from 1.

    Returns
    -------
    ndarray of bool, (n, n)

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer; if `n` is negative or the levels do not increase from 1.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.multi_level_causal(8, levels=(1, 4)).astype(int)[-1])
    [0 0 0 1 1 1 1 1]
    """
    n, _ = _lengths(n, None)
    steps = as_integers("levels", levels, axes=1).astype(np.int64)
    if steps.ndim != 1 or not steps.size or steps[0] != 1 or (np.diff(steps) <= 0).any():
        raise ValueError(f"levels must increase from 1, as (1, 4, 16) do, not {shortened(levels)}")
    position = np.arange(n)
    step = steps[np.searchsorted(steps, np.maximum(position, 1), side="right") - 1]  # (n,), by distance (masks.44)
    mask = np.zeros((n, n), dtype=np.bool_)
    for i in range(n):  # row by row: n^2 integers take 8 times the mask
        mask[i, : i + 1] = (position[: i + 1] + 1) % step[i::-1] == 0  # (masks.45)
    return mask


def packed(query_segments: npt.ArrayLike, key_segments: npt.ArrayLike | None = None, *, heads: bool = False) -> Mask:
    """Each query sees the keys of its own segment: several sequences, packed into one.

    Parameters
    ----------
    query_segments : array_like of int, (..., n)
        The segment that each query belongs to.
    key_segments : array_like of int, (..., m), optional
        The segment of each key, by default those of the queries.
    heads : bool, optional
        Insert an axis for the heads of :mod:`attention_np.multi_head`.

    Returns
    -------
    ndarray of bool, (..., n, m), or (..., 1, n, m) with `heads`

    Raises
    ------
    TypeError, ValueError
        If the segments are not integers, have no axis, or their leading axes do not broadcast.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.packed([0, 0, 1]).astype(int))
    [[1 1 0]
     [1 1 0]
     [0 0 1]]
    """
    queries = as_integers("query_segments", query_segments, axes=1)
    keys = queries if key_segments is None else as_integers("key_segments", key_segments, axes=1)
    try:
        same: Mask = queries[..., :, None] == keys[..., None, :]  # (masks.50)
    except ValueError:
        raise ValueError(
            "the leading axes of query_segments and key_segments do not broadcast together "
            f"(query_segments.shape={queries.shape}, key_segments.shape={keys.shape})"
        ) from None
    return same[..., None, :, :] if as_flag("heads", heads) else same


def selected(indices: npt.ArrayLike, m: int, *, block_size: int = 1) -> Mask:
    """Each query sees the keys, or the blocks of keys, that its row of `indices` lists.

    Parameters
    ----------
    indices : array_like of int, (..., n, k)
        From 0 on; -1 selects nothing, so that rows may list fewer than k. What is listed twice counts once, and the
        order says nothing.
    m : int
        The number of keys.
    block_size : int, optional
        Keys in a block, at least 1; the last block may be shorter. By default `indices` are of keys.

    Returns
    -------
    ndarray of bool, (..., n, m)

    Raises
    ------
    TypeError, ValueError
        If an argument does not hold integers, `indices` has fewer than two axes, or an index is below -1 or not below
        the number of blocks.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.selected([[0, 3], [2, -1], [-1, -1]], 4).astype(int))
    [[1 0 0 1]
     [0 0 1 0]
     [0 0 0 0]]
    >>> print(masks.selected([[2], [0]], 5, block_size=2).astype(int))
    [[0 0 0 0 1]
     [1 1 0 0 0]]
    """
    rows, block_size = as_selection(indices, block_size)
    _, m = _lengths(rows.shape[-2], _length("m", m))
    check_selection(rows, m, block_size)
    return listed(rows, slice(0, m), block_size)


def as_selection(indices: npt.ArrayLike, block_size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Lists of what each query selects, and the size of a block, if they are."""
    array = as_integers("indices", indices, axes=2)
    rows = array.astype(np.int64)
    if rows.size and rows.min() < -1:
        raise ValueError(f"indices must be from 0 on, or -1 for none, and one is {array.flat[rows.argmin()]}")
    return rows, as_integer("block_size", block_size, least=1)


def check_selection(rows: npt.NDArray[np.int64], m: int, block_size: int) -> None:
    """Refuse lists of what is not among m keys."""
    count = -(-m // block_size)
    if rows.size and rows.max() >= count:
        of = "keys" if block_size == 1 else f"blocks of {block_size} keys"
        raise ValueError(f"indices must be less than {count}, the number of {of}, and one is {rows.max()} (m={m})")


def listed(rows: npt.NDArray[np.int64], columns: slice, block_size: int) -> Mask:
    """Which of some keys the rows list, (..., n, columns)."""
    first, count = blocks_of(columns, block_size)
    inside = (rows >= first) & (rows < first + count)  # -1 is not, and so writes nowhere
    blocks = np.zeros((*rows.shape[:-1], count), dtype=np.bool_)
    *of_rows, _ = np.nonzero(inside)
    places = (*of_rows, rows[inside] - first)
    blocks[places] = True  # (masks.52)
    own = np.arange(columns.start, columns.stop) // min(block_size, max(columns.stop, 1))  # (columns,) (masks.54)
    mask: Mask = blocks[..., own - first]  # (masks.55)
    return mask


def blocks_of(columns: slice, block_size: int) -> tuple[int, int]:
    """The first of the blocks that some keys are in, and how many these blocks are."""
    first = columns.start // block_size
    return first, -(-columns.stop // block_size) - first


def tree(parents: npt.ArrayLike) -> Mask:
    """Each node of a tree sees itself and its ancestors, and so the one path that leads to it.

    Several continuations of one text, drafted at once, are checked in one pass that way. The text itself comes before:
    beside a mask of ones, ``np.hstack([np.ones((n, m), bool), masks.tree(parents)])``.

    Parameters
    ----------
    parents : array_like of int, (n,)
        The index of the parent of each node, in any order; -1 for a node that has none, of which there may be several.

    Returns
    -------
    ndarray of bool, (n, n)

    Raises
    ------
    TypeError, ValueError
        If the parents are not integers, not a vector, not from -1 to n - 1, or lead back to where they started.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.tree([-1, 0, 0, 1]).astype(int))
    [[1 0 0 0]
     [1 1 0 0]
     [1 0 1 0]
     [1 1 0 1]]
    """
    parents = as_parents(parents)
    n = len(parents)
    _lengths(n, None)
    mask = np.zeros((n, n), dtype=np.bool_)
    for nodes, seen in ancestors(parents, np.arange(n)):
        mask[nodes, seen] = True  # (masks.72)
    return mask


def as_parents(parents: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`parents` of the nodes of a tree, if they are."""
    array = as_integers("parents", parents, axes=1)
    n = array.shape[-1]
    if array.ndim != 1 or (n and not (array.min() >= -1 and array.max() < n)):
        raise ValueError(f"parents must be a vector of numbers from -1 to n - 1 (parents.shape={array.shape})")
    result = array.astype(np.int64)
    steps = sum(1 for _ in ancestors(result, np.arange(n)))
    if steps > n:
        raise ValueError("parents must not lead back to where they started")
    return result


def ancestors(
    parents: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Pairs of nodes and ancestors: each of `nodes` with itself, then with its parent, and so on to the roots."""
    seen = nodes
    for _ in range(len(parents) + 1):
        if not nodes.size:
            return
        yield nodes, seen
        above = parents[seen]
        nodes, seen = nodes[above >= 0], above[above >= 0]


def as_mask(values: npt.ArrayLike, *, true_means: Literal["allowed", "hidden"]) -> Mask:
    """A mask of the library's convention from one of another.

    Half of the field marks what is hidden (PyTorch's `key_padding_mask`, for one), and some store a mask as numbers.

    Parameters
    ----------
    values : array_like
        Booleans, or the numbers 0 and 1 of any dtype.
    true_means : {"allowed", "hidden"}
        What True, or 1, says of a pair.

    Returns
    -------
    ndarray of bool
        A new array: True where attending is allowed.

    Raises
    ------
    TypeError
        If `values` holds neither booleans nor numbers.
    ValueError
        If it holds a number other than 0 and 1 (numbers to be added to the scores are a bias, not a mask), or
        `true_means` is neither word.

    Examples
    --------
    >>> from attention_np import masks
    >>> print(masks.as_mask([False, False, True], true_means="hidden"))
    [ True  True False]
    >>> print(masks.as_mask([1.0, 1.0, 0.0], true_means="allowed"))
    [ True  True False]
    """
    if true_means not in ("allowed", "hidden"):
        raise ValueError(f'true_means must be "allowed" or "hidden", not {true_means!r}')
    array = as_array("values", values, "booleans or numbers")
    if not (array.dtype.kind in "biu" or is_floating(array.dtype)) or array.dtype.kind == "c":
        raise TypeError(f"a mask holds booleans or the numbers 0 and 1, not {array.dtype} (values.shape={array.shape})")
    if not ((array == 0) | (array == 1)).all():
        raise ValueError(
            "a mask holds 0 and 1 alone, and these values hold other numbers: if they are to be added to the scores, "
            f"pass them as bias (values.shape={array.shape})"
        )
    mask: Mask = array == (1 if true_means == "allowed" else 0)
    return mask


def _over_queries(keys: Mask, heads: bool) -> Mask:
    """(..., m) as (..., 1, m), or (..., 1, 1, m) with heads."""
    return keys[..., None, None, :] if as_flag("heads", heads) else keys[..., None, :]


def _lengths(n: int, m: int | None) -> tuple[int, int]:
    n = _length("n", n)
    m = n if m is None else _length("m", m)
    if n * m > sys.maxsize:
        raise ValueError(f"a mask of {n} queries and {m} keys is larger than an array can be (n={n}, m={m})")
    return n, m


def _length(name: str, value: int) -> int:
    length = as_integer(name, value, least=0)
    if length > sys.maxsize:
        raise ValueError(f"{name} must be at most {sys.maxsize}, the length of an axis, not {shortened(length)}")
    return length


def as_integers(name: str, values: npt.ArrayLike, axes: int = 0) -> npt.NDArray[Any]:
    """`values` as an array of integers, with so many axes at least."""
    array = as_array(name, values, "integers")
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name} must hold integers, not {array.dtype} ({name}.shape={array.shape})")
    if array.ndim < axes:
        raise ValueError(f"{name} must have at least {axes} axis ({name}.shape={array.shape})")
    return array


def visible_pairs(shape: tuple[int, ...], mask: npt.ArrayLike | None, bias: Any, is_causal: bool) -> Array | None:
    """Who attends to whom by all that says so, for scores of the given `shape`, (..., n, m); None: all to all. For ops.

    Raises
    ------
    TypeError
        If `mask` is not boolean.
    ValueError
        If `mask` or `bias` does not broadcast to the scores.
    """
    together = []
    if mask is not None:
        together.append(arguments.as_mask(mask, shape))
    if as_flag("is_causal", is_causal):
        together.append(causal(*shape[-2:]))  # (masks.33)
    for one in bias if isinstance(bias, list) else [bias]:
        if one is not None and not holds_array(one):
            check_broadcasts_to("bias", one, shape)
            hidden = one.real == -np.inf  # (masks.5)
            if hidden.any():
                together.append(~hidden)
    return np.atleast_2d(reduce(operator.and_, together)) if together else None  # (masks.57)
