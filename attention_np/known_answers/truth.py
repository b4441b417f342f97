"""The answers in 50 decimal digits or more, by plain loops over mpmath's numbers.

This is what the answers are, so it is written to be seen to be right, and shares no code with the ops: a pair that is
masked out is never looked at, and a sum over products is that sum. The ops in extended precision are held against it
in the tests.

Numbers are exact when they come in: those of the inputs in their dtype. Every array here holds mpmath's numbers, and
the names are those of the ops and their pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import mpmath  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np
import numpy.typing as npt

__all__ = ["DIGITS", "answers"]

Array = npt.NDArray[Any]

DIGITS = 50
MP = mpmath.MPContext()  # of our own: the precision that a user has set stays as it is
LOCK = threading.Lock()  # the context has one precision at a time
ZERO = MP.mpf(0)


def answers(op: str, inputs: Mapping[str, Array], options: Mapping[str, Any], digits: int = DIGITS) -> dict[str, Array]:
    """The output, the log-sum-exp and the gradients of an op, as arrays of mpmath's numbers.

    Parameters
    ----------
    op : str
        "softmax", "dot_product", "additive" or "multi_head".
    inputs : mapping of str to ndarray
        What the op takes, the parameters of multi_head by their own names; and `d_output`.
    options : mapping of str to object
        `axis`, `scale`, `is_causal`, `num_heads`.
    digits : int, optional
        Decimal digits to compute in.

    Examples
    --------
    >>> import numpy as np
    >>> found = answers("softmax", {"scores": np.zeros(3), "d_output": np.ones(3)}, {})
    >>> print(MP.nstr(found["output"][0], 45))
    0.333333333333333333333333333333333333333333333
    """
    with LOCK, MP.workdps(digits):
        arrays = {name: x if x.dtype == np.bool_ else _exact(x) for name, x in inputs.items()}
        return OPS[op](arrays, options)


def _softmax(inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    axis = options.get("axis", -1)
    mask = np.broadcast_to(inputs.get("mask", np.True_), inputs["scores"].shape)
    scores, visible, d_output = (np.moveaxis(x, axis, -1) for x in (inputs["scores"], mask, inputs["d_output"]))
    weights, d_scores, logsumexp = _zeros(scores.shape), _zeros(scores.shape), _zeros(scores.shape[:-1])
    for i in np.ndindex(*scores.shape[:-1]):
        shown = _shown(visible[i], scores[i])
        row = _row(scores[i][shown])
        weights[i][shown], logsumexp[i] = row.weights, row.logsumexp
        d_scores[i][shown] = _row_backward(row, d_output[i][shown])
    return {
        "output": np.moveaxis(weights, -1, axis),
        "logsumexp": logsumexp,
        "d_scores": np.moveaxis(d_scores, -1, axis),
    }


def _dot_product(inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return _attention(query, key, value, inputs, leading, options)


def _attention(
    query: Array,
    key: Array,
    value: Array,
    inputs: Mapping[str, Array],
    scores_leading: tuple[int, ...],
    options: Mapping[str, Any],
) -> dict[str, Array]:
    """Scaled dot-product attention; mask, bias and d_output are taken from `inputs`."""
    n, m = query.shape[-2], key.shape[-2]
    shape = (*scores_leading, n, m)
    leading = np.broadcast_shapes(scores_leading, value.shape[:-2])
    scale = MP.mpf(options["scale"]) if "scale" in options else 1 / MP.sqrt(query.shape[-1])
    visible = np.broadcast_to(inputs.get("mask", np.True_), shape)
    if options.get("is_causal"):
        visible = visible & (np.arange(m) <= np.arange(n)[:, None])
    bias = np.broadcast_to(inputs.get("bias", _zeros((1, 1))), shape)

    logsumexp, results = _zeros(shape[:-1]), []
    for index, (q, k, v, shown, b, d_o) in _places(leading, query, key, value, visible, bias, inputs["d_output"]):
        shown = _shown(shown, b)
        scores = _zeros((n, m))
        for i, j in np.argwhere(shown):
            scores[i, j] = scale * _dot(q[i], k[j]) + b[i, j]
        head = _attend(scores, shown, v, d_o)
        logsumexp[_within(index, scores_leading)] = head.logsumexp
        d_query, d_key = _products(head.d_scores, k) * scale, _products(head.d_scores.T, q) * scale
        results.append((head.output, d_query, d_key, head.d_value, head.d_scores))

    output, d_query, d_key, d_value, d_bias = (
        np.array(parts, object).reshape(*leading, *parts[0].shape) for parts in zip(*results, strict=True)
    )
    found = {
        "output": output,
        "logsumexp": logsumexp,
        "d_query": _sum_to(d_query, query.shape),
        "d_key": _sum_to(d_key, key.shape),
        "d_value": _sum_to(d_value, value.shape),
    }
    return found | ({"d_bias": _sum_to(d_bias, inputs["bias"].shape)} if "bias" in inputs else {})


def _additive(inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    del options  # it has none
    query, key, value, w_score = (inputs[name] for name in ("query", "key", "value", "w_score"))
    n, m, h = query.shape[-2], key.shape[-2], len(w_score)
    queries, keys = _linear(query, inputs["w_query"]), _linear(key, inputs["w_key"], inputs.get("b"))
    scores_leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    leading = np.broadcast_shapes(scores_leading, value.shape[:-2])
    visible = np.broadcast_to(inputs.get("mask", np.True_), (*scores_leading, n, m))

    logsumexp, d_w_score, results = _zeros((*scores_leading, n)), _zeros((h,)), []
    for index, (q, k, v, shown, d_o) in _places(leading, queries, keys, value, visible, inputs["d_output"]):
        scores, hidden = _zeros((n, m)), _zeros((n, m, h))
        for i, j in np.argwhere(shown):
            hidden[i, j] = [MP.tanh(a + b) for a, b in zip(q[i], k[j], strict=True)]
            scores[i, j] = _dot(w_score, hidden[i, j])
        head = _attend(scores, shown, v, d_o)
        logsumexp[_within(index, scores_leading)] = head.logsumexp
        d_q, d_k = _zeros(q.shape), _zeros(k.shape)
        for i, j in np.argwhere(head.d_scores != 0):
            d_sum = w_score * head.d_scores[i, j] * (1 - hidden[i, j] ** 2)
            d_q[i] += d_sum
            d_k[j] += d_sum
            d_w_score += hidden[i, j] * head.d_scores[i, j]
        results.append((head.output, d_q, d_k, head.d_value))

    output, d_queries, d_keys, d_value = (
        np.array(parts, object).reshape(*leading, *parts[0].shape) for parts in zip(*results, strict=True)
    )
    d_query, d_w_query, _ = _linear_backward(_sum_to(d_queries, queries.shape), query, inputs["w_query"])
    d_key, d_w_key, d_b = _linear_backward(_sum_to(d_keys, keys.shape), key, inputs["w_key"])
    found = {
        "output": output,
        "logsumexp": logsumexp,
        "d_query": d_query,
        "d_key": d_key,
        "d_value": _sum_to(d_value, value.shape),
        "d_w_query": d_w_query,
        "d_w_key": d_w_key,
        "d_w_score": d_w_score,
    }
    return found | ({"d_b": d_b} if "b" in inputs else {})


def _multi_head(inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    heads = options["num_heads"]
    split = {
        name: _split(_linear(inputs[name], inputs[f"w_{name}"], inputs.get(f"b_{name}")), heads)
        for name in ("query", "key", "value")
    }  # (..., heads, n, d)
    query, key, value = split.values()
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    combined_shape = (*np.broadcast_shapes(leading, value.shape[:-2]), query.shape[-2], value.shape[-1])

    # The gradient of what the heads put out needs no output: it comes from d_output through the last projection.
    d_combined = _products(inputs["d_output"], inputs["w_output"].T)
    given = {name: inputs[name] for name in ("mask", "bias") if name in inputs}
    given["d_output"] = np.broadcast_to(_split(d_combined, heads), combined_shape)
    found = _attention(query, key, value, given, leading, options)

    combined = _combine(found["output"])
    output = _linear(combined, inputs["w_output"], inputs.get("b_output"))
    _, d_w_output, d_b_output = _linear_backward(inputs["d_output"], combined, inputs["w_output"])
    gradients = {"d_w_output": d_w_output, "d_b_output": d_b_output}
    for name in split:
        d_projected = _combine(found[f"d_{name}"])
        gradients[f"d_{name}"], gradients[f"d_w_{name}"], gradients[f"d_b_{name}"] = _linear_backward(
            d_projected, inputs[name], inputs[f"w_{name}"]
        )
    if "bias" in inputs:
        gradients["d_bias"] = found["d_bias"]
    gradients = {name: gradients[name] for name in sorted(gradients) if name.removeprefix("d_") in inputs}
    return {"output": output, "logsumexp": found["logsumexp"]} | gradients


class _Row(NamedTuple):
    """The softmax of a row of scores."""

    weights: Array
    logsumexp: Any
    moves: bool  # when a score does


def _row(scores: Array) -> _Row:
    """Softmax of a row of which every score takes part."""
    if any(MP.isnan(s) for s in scores):
        return _Row(np.array([MP.nan] * len(scores), object), MP.nan, True)
    largest = max(scores, default=-MP.inf)
    if largest == MP.inf:  # the limit: equal shares for those at infinity
        at_infinity = [s == MP.inf for s in scores]
        return _Row(np.array([MP.mpf(x) / sum(at_infinity) for x in at_infinity], object), MP.inf, False)
    exponentials = [MP.exp(s - largest) for s in scores]
    total = MP.fsum(exponentials)
    logsumexp = largest + MP.log(total) if len(scores) else -MP.inf
    return _Row(np.array([e / total for e in exponentials], object), logsumexp, True)


def _row_backward(row: _Row, d_weights: Array) -> Array:
    if not row.moves or not any(d != 0 for d in d_weights):
        return _zeros(d_weights.shape)
    # The Jacobian does not see what a whole row has in common. With that of the heaviest entry taken away, a weight of
    # nearly one leaves no small difference of large numbers.
    d_weights = d_weights - d_weights[max(range(len(d_weights)), key=row.weights.__getitem__)]
    mean = _dot(row.weights, d_weights)
    return np.array([w * (d - mean) for w, d in zip(row.weights, d_weights, strict=True)], object)


class _Head(NamedTuple):
    output: Array  # (n, d_v)
    logsumexp: Array  # (n,)
    d_scores: Array  # (n, m)
    d_value: Array  # (m, d_v)


def _attend(scores: Array, visible: Array, value: Array, d_output: Array) -> _Head:
    """From the scores of one head to its output, and from the gradient of that back to the scores."""
    n, m = scores.shape
    output, d_value = _zeros((n, value.shape[1])), _zeros(value.shape)
    logsumexp, d_scores = _zeros((n,)), _zeros((n, m))
    for i in range(n):
        shown = np.flatnonzero(visible[i])
        row = _row(scores[i, shown])
        logsumexp[i] = row.logsumexp
        output[i] = [_dot(row.weights, column) for column in value[shown].T]
        if not any(d != 0 for d in d_output[i]):
            continue  # nothing flows back through this query, whatever it holds
        d_weights = np.array([_dot(d_output[i], value[j]) for j in shown], object)
        d_scores[i, shown] = _row_backward(row, d_weights)
        for j, weight in zip(shown, row.weights, strict=True):
            d_value[j] += d_output[i] * weight  # the array first: else mpmath writes it out, to say it is no number
    return _Head(output, logsumexp, d_scores, d_value)


def _shown(visible: Array, scores: Array) -> Array:
    """The pairs that take part: minus infinity hides as a mask does."""
    return visible & np.asarray(scores != -MP.inf, np.bool_)


def _dot(a: Iterable[Any], b: Iterable[Any]) -> Any:
    """The sum of the products: exact, and then rounded."""
    return MP.fdot(a, b)


def _products(d_rows: Array, x: Array) -> Array:
    """(..., a) times (a, b), for a gradient: an entry that is exactly zero takes no part, whatever it meets."""
    result = _zeros((*d_rows.shape[:-1], x.shape[1]))
    for i in np.ndindex(*d_rows.shape[:-1]):
        some = np.flatnonzero(d_rows[i] != 0)
        result[i] = [_dot(d_rows[i][some], column) for column in x[some].T]
    return result


def _linear(x: Array, w: Array, b: Array | None = None) -> Array:
    y = _zeros((*x.shape[:-1], w.shape[1]))
    for i in np.ndindex(*x.shape[:-1]):
        y[i] = [_dot(x[i], column) for column in w.T]
    return y if b is None else y + b


def _linear_backward(d_y: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """The gradients of ``x @ w + b`` with respect to x, w and b."""
    rows, x_rows = d_y.reshape(-1, d_y.shape[-1]), x.reshape(-1, x.shape[-1])
    return _products(d_y, w.T), _products(rows.T, x_rows).T, np.array([MP.fsum(column) for column in rows.T], object)


def _split(x: Array, heads: int) -> Array:
    """(..., n, heads * d) as (..., heads, n, d)."""
    return np.stack(np.split(x, heads, axis=-1), axis=-3)


def _combine(x: Array) -> Array:
    """(..., heads, n, d) as (..., n, heads * d)."""
    return np.concatenate(list(np.moveaxis(x, -3, 0)), axis=-1)


def _places(leading: tuple[int, ...], *arrays: Array) -> Iterator[tuple[tuple[int, ...], list[Array]]]:
    """Each index of the leading axes, and there the last two axes of each array."""
    whole = [np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in arrays]
    for index in np.ndindex(*leading):
        yield index, [x[index] for x in whole]


def _within(index: tuple[int, ...], leading: tuple[int, ...]) -> tuple[int, ...]:
    """Where in axes of lengths `leading`, which broadcast to those of `index`, that index is."""
    own = index[len(index) - len(leading) :]
    return tuple(0 if size == 1 else at for at, size in zip(own, leading, strict=True))


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` summed over the axes along which `shape` was broadcast to it."""
    while array.ndim > len(shape):
        array = array.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1:
            array = array.sum(axis=axis, keepdims=True)
    return array


def _zeros(shape: tuple[int, ...]) -> Array:
    return np.full(shape, ZERO, object)


def _exact(x: Array) -> Array:
    values = np.asarray(x).astype(np.float64)
    result = np.empty(values.size, object)
    result[:] = [MP.mpf(number) for number in values.ravel().tolist()]
    return result.reshape(values.shape)


OPS: dict[str, Callable[[Mapping[str, Array], Mapping[str, Any]], dict[str, Array]]] = {
    "softmax": _softmax,
    "dot_product": _dot_product,
    "additive": _additive,
    "multi_head": _multi_head,
}
