"""What each op computes forward and backward, in any arithmetic.

In exact numbers, by :class:`attention_np.known_answers.truth.Exact`, that is the answers; in numbers that carry the
error they may have, by :class:`attention_np.known_answers.analysis.Analysis`, it is their bounds. The ops have no part
in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Numbers: TypeAlias = Any  # of the arithmetic: an array of them
Arithmetic: TypeAlias = Any  # an Exact or an Analysis
Options: TypeAlias = Mapping[str, Any]

SCALING = 6  # roundings of a score besides those of its sum: the scale, its square root for both factors, the bias


class Head(NamedTuple):
    """What attention computes from scores and values, and from the gradient of its output."""

    output: Numbers  # (..., n, d_v)
    logsumexp: Numbers  # (..., n)
    d_scores: Numbers  # (..., n, m)
    d_value: Numbers  # (..., m, d_v)


class Moving(NamedTuple):
    """How what attention computes moves with the scores and the values."""

    output: Numbers  # (..., n, d_v)
    d_scores: Numbers  # (..., n, m)
    d_value: Numbers  # (..., m, d_v)


def _softmax(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    scores, axis = inputs["scores"], options.get("axis", -1)
    visible = np.broadcast_to(inputs.get("mask", np.True_), scores.shape)
    d_output = rules.map(inputs["d_output"], lambda x: np.moveaxis(x, axis, -1))
    scores = rules.map(scores, lambda x: np.moveaxis(x, axis, -1))
    output, logsumexp, d_scores = rules.softmax(scores, np.moveaxis(visible, axis, -1), d_output)
    found = {"output": output, "d_scores": d_scores}
    if "v_scores" in inputs:
        along = rules.map(inputs["v_scores"], lambda x: np.moveaxis(x, axis, -1))
        moving = rules.moving_softmax(scores, np.moveaxis(visible, axis, -1), d_output, along)
        found |= dict(zip(("d_d_output", "hvp_scores"), moving, strict=True))
    return {name: rules.map(x, lambda a: np.moveaxis(a, -1, axis)) for name, x in found.items()} | {
        "logsumexp": logsumexp
    }


def _dot_product(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    (n, d_k), m = inputs["query"].shape[-2:], inputs["key"].shape[-2]
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    scale = rules.scale(options.get("scale"), d_k)
    visible = inputs.get("mask", np.True_)
    if options.get("is_causal"):
        visible = visible & (np.arange(m) <= np.arange(n)[:, None])
    scores = rules.scores(query, key, scale, inputs.get("bias"), visible)
    head = rules.attend(scores, visible, value, inputs["d_output"])
    scaled = rules.times(head.d_scores, scale)
    found = {
        "output": head.output,
        "logsumexp": head.logsumexp,
        "d_query": rules.sum_to(rules.product(scaled, key, m + SCALING), query.shape),
        "d_key": rules.sum_to(rules.product(scaled.swapaxes(-1, -2), query, n + SCALING), key.shape),
        "d_value": rules.sum_to(head.d_value, value.shape),
    }
    if "bias" in inputs:
        found["d_bias"] = rules.sum_to(head.d_scores, inputs["bias"].shape)
    return found | (_moving_dot_product(rules, inputs, scale, visible, scores, scaled) if "v_query" in inputs else {})


def _moving_dot_product(
    rules: Arithmetic, inputs: Mapping[str, Numbers], scale: Numbers, visible: Array, scores: Numbers, scaled: Numbers
) -> dict[str, Numbers]:
    """Each line of :func:`_dot_product` moves along the tangents; `scaled` is the gradient of its products."""
    query, key, value, v_query, v_key = (inputs[name] for name in ("query", "key", "value", "v_query", "v_key"))
    moved_scores = rules.plus(
        rules.scores(v_query, key, scale, None, visible),
        rules.scores(query, v_key, scale, inputs.get("v_bias"), visible),
    )
    moving = rules.moving_attend(
        scores, visible, value, inputs["d_output"], rules.rounded(moved_scores), inputs["v_value"]
    )

    def moved_product(moved: Numbers, x: Numbers, d_products: Numbers, v_x: Numbers) -> Numbers:
        terms = (rules.product(a, b, x.shape[-2] + SCALING) for a, b in ((moved, x), (d_products, v_x)))
        return rules.plus(*map(rules.rounded, terms))

    moved = rules.times(moving.d_scores, scale)
    of_query = moved_product(moved, key, scaled, v_key)
    of_key = moved_product(moved.swapaxes(-1, -2), query, scaled.swapaxes(-1, -2), v_query)
    found = {
        "d_d_output": moving.output,
        "hvp_query": rules.sum_to(of_query, query.shape),
        "hvp_key": rules.sum_to(of_key, key.shape),
        "hvp_value": rules.sum_to(moving.d_value, value.shape),
    }
    return found | ({"hvp_bias": rules.sum_to(moving.d_scores, inputs["bias"].shape)} if "bias" in inputs else {})


def _additive(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    del options  # it has none
    query, key, value, w_score = (inputs[name] for name in ("query", "key", "value", "w_score"))
    queries = rules.rounded(rules.linear(query, inputs["w_query"]))
    keys = rules.rounded(rules.linear(key, inputs["w_key"], inputs.get("b")))
    added = rules.plus(queries[..., :, None, :], keys[..., None, :, :])  # (..., n, m, h)
    hidden = rules.tanh(rules.rounded(added))
    scores = rules.product(hidden, w_score[:, None], len(w_score) + 1)[..., 0]
    head = rules.attend(scores, inputs.get("mask", np.True_), value, inputs["d_output"])

    by_pair = rules.sum_to(head.d_scores, scores.shape)[..., None]  # (..., n, m, 1)
    d_hidden = rules.rounded(rules.times(by_pair, w_score))
    d_added = rules.rounded(rules.times(d_hidden, rules.tanh_slope(hidden)))
    d_queries = rules.rounded(rules.sum_to(rules.summed(d_added, -2), queries.shape))
    d_keys = rules.rounded(rules.sum_to(rules.summed(d_added, -3), keys.shape))
    d_query, d_w_query, _ = rules.linear_backward(d_queries, query, inputs["w_query"])
    d_key, d_w_key, d_b = rules.linear_backward(d_keys, key, inputs["w_key"])
    found = {
        "output": head.output,
        "logsumexp": head.logsumexp,
        "d_query": d_query,
        "d_key": d_key,
        "d_value": rules.sum_to(head.d_value, value.shape),
        "d_w_query": d_w_query,
        "d_w_key": d_w_key,
        "d_w_score": rules.sum_to(rules.times(by_pair, hidden), w_score.shape),
    }
    return found | ({"d_b": d_b} if "b" in inputs else {})


def _multi_head(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    heads, names, w_output = options["num_heads"], ("query", "key", "value"), inputs["w_output"]
    projected = {x: rules.linear(inputs[x], inputs[f"w_{x}"], inputs.get(f"b_{x}")) for x in names}
    # The gradient of what the heads put out needs no output: it comes from d_output through the last projection.
    projected["d_output"] = rules.product(inputs["d_output"], w_output.swapaxes(0, 1), w_output.shape[1] + 1)
    few = options.get("num_kv_heads", heads)  # each of which serves so many heads of queries that follow one another
    split = {x: few if x in ("key", "value") else heads for x in projected}
    of_own = {x: rules.map(rules.rounded(y), lambda a, x=x: _split(a, split[x])) for x, y in projected.items()}
    of_heads = {x: rules.map(y, lambda a, x=x: np.repeat(a, heads // split[x], axis=-3)) for x, y in of_own.items()}
    given = {x: inputs[x] for x in ("mask", "bias") if x in inputs}
    found = _dot_product(rules, given | of_heads, options)

    combined = rules.map(rules.rounded(found["output"]), _combine)
    output = rules.linear(combined, w_output, inputs.get("b_output"))
    _, d_w_output, d_b_output = rules.linear_backward(inputs["d_output"], combined, w_output)
    gradients = {"d_w_output": d_w_output, "d_b_output": d_b_output, "d_bias": found.get("d_bias")}
    for x in names:
        shape = of_own[x].shape
        groups = rules.map(found[f"d_{x}"], lambda a, s=shape: a.reshape(*s[:-3], s[-3], -1, *s[-2:]))
        d_own = rules.map(rules.sum_to(groups, (*shape[:-2], 1, *shape[-2:])), lambda a, s=shape: a.reshape(s))
        d_projected = rules.map(rules.rounded(d_own), _combine)
        backward = rules.linear_backward(d_projected, inputs[x], inputs[f"w_{x}"])
        gradients |= dict(zip((f"d_{x}", f"d_w_{x}", f"d_b_{x}"), backward, strict=True))
    gradients = {name: gradients[name] for name in sorted(gradients) if name.removeprefix("d_") in inputs}
    return {"output": output, "logsumexp": found["logsumexp"]} | gradients


def _linear_attention(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    names = [name for name in ("query", "key", "value", "log_decay", "beta") if name in inputs]
    mask = inputs.get("mask", np.True_)
    seen = mask[..., None] if np.ndim(mask) else mask
    tokens = {name: inputs[name] for name in names}
    if "beta" in tokens:
        tokens["beta"] = rules.map(tokens["beta"], lambda a: a[..., None])
    tokens = {name: rules.where(seen, x) for name, x in tokens.items()}
    d_output = rules.where(seen, inputs["d_output"])
    (n, d_k), d_v = inputs["query"].shape[-2:], inputs["value"].shape[-1]
    shape, scale = inputs["d_final_state"].shape, rules.scale(options.get("scale"), d_k)
    given = inputs.get("initial_state")
    state = rules.zeros(shape) if given is None else rules.map(given, lambda a: np.broadcast_to(a, shape))

    outputs, steps = [], []
    for t in range(n):
        now = {name: rules.map(x, lambda a, t=t: a[..., t : t + 1, :]) for name, x in tokens.items()}  # (..., 1, d)
        decayed, missing, decay = state, now["value"], None
        if "log_decay" in now:
            decay = rules.exp(now["log_decay"], n).swapaxes(-1, -2)  # (..., d_k, 1) or (..., 1, 1)
            decayed = rules.times(decay, state)
        if "beta" in now:
            missing = rules.minus(missing, rules.product(now["key"], decayed, d_k + SCALING))
        written = rules.times(missing, now["beta"]) if "beta" in now else missing  # (..., 1, d_v)
        state = rules.plus(decayed, rules.product(now["key"].swapaxes(-1, -2), written, n))
        outputs.append(rules.times(rules.product(now["query"], state, d_k + SCALING), scale))
        steps.append((now, decay, decayed, missing, written, state))

    found: dict[str, list[Numbers]] = {name: [] for name in names}
    d_state = inputs["d_final_state"]
    for t in reversed(range(n)):
        now, decay, decayed, missing, written, behind = steps[t]
        d_row = rules.map(d_output, lambda a, t=t: a[..., t : t + 1, :])  # (..., 1, d_v)
        found["query"].append(rules.times(rules.product(d_row, behind.swapaxes(-1, -2), d_v + SCALING), scale))
        read = rules.product(d_row.swapaxes(-1, -2), now["query"], n).swapaxes(-1, -2)  # (..., d_k, d_v)
        d_state = rules.plus(d_state, rules.times(read, scale))
        d_written = rules.product(d_state.swapaxes(-1, -2), now["key"].swapaxes(-1, -2), d_k + n).swapaxes(-1, -2)
        d_key = rules.product(d_state, written.swapaxes(-1, -2), d_v + n).swapaxes(-1, -2)  # (..., 1, d_k)
        d_value = d_written
        if "beta" in now:
            found["beta"].append(rules.summed(rules.times(d_written, missing), -1)[..., None])
            d_value = rules.times(d_written, now["beta"])
            d_key = rules.minus(d_key, rules.product(d_value, decayed.swapaxes(-1, -2), d_v + n))
            less = rules.product(d_value.swapaxes(-1, -2), now["key"], n).swapaxes(-1, -2)
            d_state = rules.minus(d_state, less)
        if decay is not None:
            of_rows = rules.summed(rules.times(d_state, decayed), -1)  # (..., d_k)
            alike = now["log_decay"].shape[-1] == 1
            found["log_decay"].append((rules.summed(of_rows, -1)[..., None] if alike else of_rows)[..., None, :])
            d_state = rules.times(d_state, decay)
        found["key"].append(d_key)
        found["value"].append(d_value)

    answers = {"output": rules.joined(outputs), "final_state": state}
    for name in names:
        whole = rules.where(seen, rules.joined(found[name][::-1]))
        whole = whole[..., 0] if name == "beta" else whole
        answers[f"d_{name}"] = rules.sum_to(whole, inputs[name].shape)
    return answers | ({} if given is None else {"d_initial_state": rules.sum_to(d_state, given.shape)})


def _rms_norm(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    return _normalised(rules, inputs, inputs["x"], options.get("epsilon", 1e-6))


def _layer_norm(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    x, d_output = inputs["x"], inputs["d_output"]
    found = _normalised(rules, inputs, _less_mean(rules, x), options.get("epsilon", 1e-5))
    found["d_x"] = _less_mean(rules, found["d_x"])
    if "b" in inputs:
        found |= {"output": rules.plus(found["output"], inputs["b"]), "d_b": rules.sum_to(d_output, inputs["b"].shape)}
    return found


def _less_mean(rules: Arithmetic, x: Numbers) -> Numbers:
    return rules.minus(x, _mean(rules, x))


def _mean(rules: Arithmetic, x: Numbers) -> Numbers:
    total = rules.map(rules.summed(x, -1), lambda a: a[..., None])
    return rules.over(total, x.shape[-1])


def _normalised(rules: Arithmetic, inputs: Mapping[str, Numbers], x: Numbers, epsilon: float) -> dict[str, Numbers]:
    d_output, gain = inputs["d_output"], inputs.get("gain")
    inverse = rules.inverse_root(rules.plus(_mean(rules, rules.times(x, x)), rules.number(epsilon)))
    normalised = rules.times(x, inverse)
    output = normalised if gain is None else rules.times(normalised, gain)
    d_normalised = d_output if gain is None else rules.rounded(rules.times(d_output, gain))
    part = _mean(rules, rules.times(d_normalised, normalised))
    d_x = rules.times(rules.minus(d_normalised, rules.times(part, normalised)), inverse)
    found = {"output": rules.rounded(output), "d_x": rules.rounded(d_x)}
    if gain is not None:
        found["d_gain"] = rules.sum_to(rules.times(d_output, normalised), gain.shape)
    return found


def _rotary(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    *_, n, d = inputs["x"].shape
    width = options.get("width", d)
    start, pairs = (d - width if options.get("trailing") else 0), np.arange(width // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if options.get("interleaved") else (pairs, pairs + width // 2)
    positions = inputs.get("positions", rules.number(np.arange(n)))
    cos, sin = rules.waves(positions, options.get("base", 10000.0), width)

    def turn(x: Numbers, back: bool) -> Numbers:
        one, other = (rules.map(x, lambda a, of=of: a[..., start + of]) for of in (first, second))
        cos_of_both, sin_of_both = ([rules.times(y, wave) for y in (one, other)] for wave in (cos, sin))
        down, up = (rules.plus, rules.minus) if back else (rules.minus, rules.plus)
        turned = rules.put(x, start + first, down(cos_of_both[0], sin_of_both[1]))
        return rules.put(turned, start + second, up(cos_of_both[1], sin_of_both[0]))

    return {"output": turn(inputs["x"], False), "d_x": turn(inputs["d_output"], True)}


def _split(x: Array, heads: int) -> Array:
    """(..., n, heads * d) as (..., heads, n, d)."""
    by_head: Array = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)
    return by_head


def _combine(x: Array) -> Array:
    """(..., heads, n, d) as (..., n, heads * d)."""
    combined: Array = x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])
    return combined


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` summed over the axes along which `shape` was broadcast to it."""
    added = array.ndim - len(shape)
    stretched = tuple(axis + added for axis, size in enumerate(shape) if size == 1)
    return np.asarray(array.sum(axis=(*range(added), *stretched))).reshape(shape)


OPS: dict[str, Callable[[Arithmetic, Mapping[str, Numbers], Options], dict[str, Numbers]]] = {
    "softmax": _softmax,
    "dot_product": _dot_product,
    "additive": _additive,
    "multi_head": _multi_head,
    "linear_attention": _linear_attention,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rotary": _rotary,
}
