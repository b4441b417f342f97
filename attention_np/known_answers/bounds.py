r"""How far a correct implementation may be from an answer, entry by entry: a forward error analysis.

Each op is gone through once more by the rules of :mod:`attention_np.known_answers.analysis`, in which every array
carries the largest error that each of its entries may have. The derivation is ``docs/known-answers.md``
of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np.known_answers.analysis import FUNCTION, SCALING, Analysis, Computed, exact
from attention_np.known_answers.formats import Format

__all__ = ["bounds", "with_rounding"]

Array = npt.NDArray[Any]


def bounds(op: str, form: Format, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    """The largest error of each entry of each answer, of a correct implementation, before its own last rounding.

    Parameters
    ----------
    op : str
        "softmax", "dot_product", "additive" or "multi_head".
    form : Format
        Of the inputs.
    inputs, options
        As for :func:`attention_np.known_answers.truth.answers`.

    Returns
    -------
    dict of str to ndarray of float64
        Zero where an answer is what it is whatever the rounding, as for a query that attends to nothing.
    """
    # What NaN and infinity hide behind has no influence, so a zero does as well.
    clean = {name: _finite(name, x) for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        found = OPS[op](Analysis(form), clean, options)
    return {name: computed.error for name, computed in found.items()}


def with_rounding(error: Array, answer: Array, form: Format) -> Array:
    """The bound of each entry: its error, its last rounding, and the rounding of the answer that it is held against."""
    size = np.abs(answer.astype(np.float64))
    size = np.where(np.isfinite(size), size, 0)
    bound: Array = np.where((error > 0) | (size > 0), error + 2 * (form.unit * (size + error) + form.underflow), 0)
    return bound


def _finite(name: str, x: Array) -> Array:
    if x.dtype == np.bool_:
        return x
    wide = np.asarray(x).astype(np.float64)
    return wide if name in ("bias", "scores") else np.where(np.isfinite(wide), wide, 0)


def _softmax(rules: Analysis, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Computed]:
    axis = options.get("axis", -1)
    mask = np.broadcast_to(inputs.get("mask", np.True_), inputs["scores"].shape)
    scores, visible, d_output = (np.moveaxis(x, axis, -1) for x in (inputs["scores"], mask, inputs["d_output"]))
    weights = rules.weights(exact(np.where(visible, scores, 0)), visible)
    output = rules.rounded(weights.forward)
    moves = weights.moves & (d_output != 0).any(axis=-1, keepdims=True)
    d_weights = exact(np.where(moves, d_output, 0))
    mean = rules.summed(rules.times(output, d_weights), axis=-1).map(lambda x: x[..., None])
    d_scores = rules.weights_backward(output, d_weights, mean, moves)
    found = {"output": weights.forward, "logsumexp": weights.logsumexp, "d_scores": d_scores}
    return {name: x if name == "logsumexp" else x.map(lambda a: np.moveaxis(a, -1, axis)) for name, x in found.items()}


def _dot_product(rules: Analysis, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Computed]:
    query, key, value = (exact(inputs[name]) for name in ("query", "key", "value"))
    return _attention(rules, query, key, value, exact(inputs["d_output"]), inputs, options)


def _attention(
    rules: Analysis,
    query: Computed,
    key: Computed,
    value: Computed,
    d_output: Computed,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
) -> dict[str, Computed]:
    (n, d_k), m = query.value.shape[-2:], key.value.shape[-2]
    scale = np.float64(options.get("scale", d_k**-0.5))
    products = rules.product(query, key.transposed, d_k + SCALING).map(lambda x: x * scale)
    scores = Computed(products.value, np.abs(products.error))
    visible = np.broadcast_to(inputs.get("mask", np.True_), scores.value.shape)
    if options.get("is_causal"):
        visible = visible & (np.arange(m) <= np.arange(n)[:, None])
    if "bias" in inputs:
        size = np.abs(np.where(np.isfinite(inputs["bias"]), inputs["bias"], 0))
        scores = Computed(scores.value + inputs["bias"], scores.error + rules.gamma(2) * (scores.size + size))
    head = rules.attend(scores, visible, value, d_output)
    factor = exact(scale)
    d_query = rules.product(rules.times(head.d_scores, factor), key, m + SCALING)
    d_key = rules.product(rules.times(head.d_scores, factor).transposed, query, n + SCALING)
    found = {
        "output": head.output,
        "logsumexp": head.logsumexp,
        "d_query": rules.sum_to(d_query, query.value.shape),
        "d_key": rules.sum_to(d_key, key.value.shape),
        "d_value": rules.sum_to(head.d_value, value.value.shape),
    }
    return found | ({"d_bias": rules.sum_to(head.d_scores, inputs["bias"].shape)} if "bias" in inputs else {})


def _additive(rules: Analysis, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Computed]:
    del options  # it has none
    query, key, value, d_output = (exact(inputs[name]) for name in ("query", "key", "value", "d_output"))
    w_score = inputs["w_score"]
    queries = rules.rounded(rules.linear(query, inputs["w_query"]))
    keys = rules.rounded(rules.linear(key, inputs["w_key"], inputs.get("b")))
    added = Computed(
        queries.value[..., :, None, :] + keys.value[..., None, :, :],
        queries.error[..., :, None, :] + keys.error[..., None, :, :],
    )  # (..., n, m, h)
    hidden = _tanh(rules, rules.rounded(rules.off(added, 1)))
    weighted = rules.product(hidden, exact(w_score[:, None]), len(w_score) + 1)
    scores = weighted.map(lambda x: x[..., 0])
    visible = np.broadcast_to(inputs.get("mask", np.True_), scores.value.shape)
    head = rules.attend(scores, visible, value, d_output)

    d_scores = rules.sum_to(head.d_scores, scores.value.shape)
    by_pair = d_scores.map(lambda x: x[..., None])  # (..., n, m, 1)
    slopes = rules.minus(exact(np.ones(())), rules.times(hidden, hidden))
    slopes = Computed(slopes.value, slopes.error + rules.u * slopes.size)  # in the dtype, if the whole is
    d_sum = rules.rounded(rules.times(rules.rounded(rules.times(by_pair, exact(w_score))), slopes))
    d_queries = rules.rounded(rules.sum_to(rules.summed(d_sum, axis=-2), queries.value.shape))
    d_keys = rules.rounded(rules.sum_to(rules.summed(d_sum, axis=-3), keys.value.shape))
    d_query, d_w_query, _ = rules.linear_backward(d_queries, query, inputs["w_query"])
    d_key, d_w_key, d_b = rules.linear_backward(d_keys, key, inputs["w_key"])
    d_w_score = rules.sum_to(rules.times(by_pair, hidden), w_score.shape)
    found = {
        "output": head.output,
        "logsumexp": head.logsumexp,
        "d_query": d_query,
        "d_key": d_key,
        "d_value": rules.sum_to(head.d_value, value.value.shape),
        "d_w_query": d_w_query,
        "d_w_key": d_w_key,
        "d_w_score": d_w_score,
    }
    return found | ({"d_b": d_b} if "b" in inputs else {})


def _tanh(rules: Analysis, x: Computed) -> Computed:
    """Rounded to the dtype. The error of x counts by the largest slope near x, which is 1 / cosh^2."""
    nearest = np.maximum(np.abs(x.value) - x.error, 0)
    y = Computed(np.tanh(x.value), x.error / np.cosh(nearest) ** 2)
    return rules.rounded(rules.off(y, FUNCTION))


def _multi_head(rules: Analysis, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Computed]:
    heads = options["num_heads"]
    names = ("query", "key", "value")
    projected = [rules.linear(exact(inputs[x]), inputs[f"w_{x}"], inputs.get(f"b_{x}")) for x in names]
    d_output = exact(inputs["d_output"])
    d_combined = rules.linear(d_output, inputs["w_output"].T)
    split = [rules.rounded(x).map(lambda a: _split(a, heads)) for x in (*projected, d_combined)]
    query, key, value, d_heads = split
    found = _attention(rules, query, key, value, d_heads, inputs, options)
    combined = rules.rounded(found["output"]).map(_combine)
    output = rules.linear(combined, inputs["w_output"], inputs.get("b_output"))
    _, d_w_output, d_b_output = rules.linear_backward(d_output, combined, inputs["w_output"])
    gradients = {"d_w_output": d_w_output, "d_b_output": d_b_output}
    for name in names:
        d_projected = rules.rounded(found[f"d_{name}"]).map(_combine)
        gradients[f"d_{name}"], gradients[f"d_w_{name}"], gradients[f"d_b_{name}"] = rules.linear_backward(
            d_projected, exact(inputs[name]), inputs[f"w_{name}"]
        )
    if "bias" in inputs:
        gradients["d_bias"] = found["d_bias"]
    gradients = {name: x for name, x in gradients.items() if name.removeprefix("d_") in inputs}
    return {"output": output, "logsumexp": found["logsumexp"]} | gradients


def _split(x: Array, heads: int) -> Array:
    """(..., n, heads * d) as (..., heads, n, d)."""
    by_head: Array = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)
    return by_head


def _combine(x: Array) -> Array:
    """(..., heads, n, d) as (..., n, heads * d)."""
    by_position = x.swapaxes(-2, -3)
    combined: Array = by_position.reshape(*by_position.shape[:-2], x.shape[-3] * x.shape[-1])
    return combined


OPS: dict[str, Callable[[Analysis, Mapping[str, Array], Mapping[str, Any]], dict[str, Computed]]] = {
    "softmax": _softmax,
    "dot_product": _dot_product,
    "additive": _additive,
    "multi_head": _multi_head,
}
