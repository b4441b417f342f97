"""What each op computes forward and backward, in any arithmetic.

In exact numbers, by :class:`attention_np.known_answers.truth.Exact`, that is the answers; in numbers that carry the
error they may have, by :class:`attention_np.known_answers.analysis.Analysis`, it is their bounds. The ops have no part
in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.around import AROUND, summed_over_heads
from attention_np.known_answers.by_position import BIASES, Arithmetic, Numbers, Options, position_biases

SCALING = 6  # roundings of a score besides those of its sum: the scale, its square root for both factors, the bias


class Head(NamedTuple):
    """What attention computes from scores and values, and from the gradient of its output."""

    output: Numbers  # (..., n, d_v)
    logsumexp: Numbers | None  # (..., n), of a softmax
    d_scores: Numbers  # (..., n, m)
    d_value: Numbers  # (..., m, d_v)


class Tangents(NamedTuple):
    """The tangents of what attention computes, from those of the scores and the values."""

    output: Numbers  # (..., n, d_v)
    d_scores: Numbers  # (..., n, m)
    d_value: Numbers  # (..., m, d_v)


def _softmax(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    scores, axis = inputs["scores"], options.get("axis", -1)
    visible = np.broadcast_to(inputs.get("mask", np.True_), scores.shape)
    d_output = rules.map(inputs["d_output"], lambda x: np.moveaxis(x, axis, -1))
    scores = rules.map(scores, lambda x: np.moveaxis(x, axis, -1))
    output, logsumexp, d_scores = rules.softmax(scores, np.moveaxis(visible, axis, -1), d_output)
    answers = {"output": output, "d_scores": d_scores}
    if "v_scores" in inputs:
        v_scores = rules.map(inputs["v_scores"], lambda x: np.moveaxis(x, axis, -1))
        tangents = rules.softmax_tangent(scores, np.moveaxis(visible, axis, -1), d_output, v_scores)
        answers |= dict(zip(("d_d_output", "hvp_scores"), tangents, strict=True))
    return {name: rules.map(x, lambda a: np.moveaxis(a, -1, axis)) for name, x in answers.items()} | {
        "logsumexp": logsumexp
    }


def attention_of_heads(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """Dot-product attention, of arrays whose leading axes broadcast."""
    (n, d_k), m = inputs["query"].shape[-2:], inputs["key"].shape[-2]
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    scale, softcap = inputs.get("scale", rules.scale(options.get("scale"), d_k)), options.get("softcap")
    visible = _visible(inputs, options, n, m)
    by_position, bias = position_biases(rules, inputs, options, scale), inputs.get("bias")
    for one in by_position:
        bias = one.added if bias is None else rules.plus(rules.rounded(bias), rules.rounded(one.added))
    after = options.get("softcap_after")  # "bias" or "mask": as others have it, of whom `conventions` knows
    scores = uncapped = rules.scores(query, key, scale, bias, visible, None if after else softcap)
    seen = visible
    if after:
        scores = rules.times(rules.tanh(rules.over(uncapped, softcap)), rules.number(softcap))
    if after == "mask":
        seen, scores = np.ones_like(visible), _hidden_at(rules, visible, scores, softcap)
    if "weights_by" in options:
        head, d_sink = _weighed(rules, scores, visible, value, inputs["d_output"], options["weights_by"]), None
    else:
        head, d_sink = _attend(rules, scores, seen, value, inputs, options)
    d_products = d_biased = rules.where(visible, head.d_scores) if after == "mask" else head.d_scores
    if softcap is not None:
        uncapped = uncapped if after else rules.scores(query, key, scale, None, visible)
        slope = rules.tanh_slope(rules.tanh(rules.over(uncapped, softcap)))
        d_products = rules.rounded(rules.times(d_products, slope))
        d_biased = d_products if after else d_biased
    scaled = rules.times(d_products, scale)
    answers = {
        "output": head.output,
        **({} if head.logsumexp is None else {"logsumexp": head.logsumexp}),
        "d_query": rules.product(scaled, key, m + SCALING),
        "d_key": rules.product(scaled.swapaxes(-1, -2), query, n + SCALING),
        "d_value": rules.sum_to(head.d_value, value.shape),
    }
    if "scale" in inputs:
        d_scaled = rules.rounded(rules.product(d_products, key, m + SCALING))
        answers["d_scale"] = rules.summed(rules.rounded(rules.times(d_scaled, query)), -1)  # (..., n)
    for one in by_position:
        for name, x in one.backward(d_biased).items():  # some are of queries, keys and scales, too
            answers[name] = rules.plus(rules.rounded(answers[name]), rules.rounded(x)) if name in answers else x
    answers["d_query"], answers["d_key"] = (rules.sum_to(answers[f"d_{x}"], inputs[x].shape) for x in ("query", "key"))
    if "scale" in inputs:
        answers["d_scale"] = rules.sum_to(answers["d_scale"][..., None], inputs["scale"].shape)
    if "bias" in inputs:
        answers["d_bias"] = rules.sum_to(d_biased, inputs["bias"].shape)
    if d_sink is not None:
        answers["d_sink"] = d_sink
    return answers | (
        _dot_product_tangents(rules, inputs, scale, visible, scores, scaled) if "v_query" in inputs else {}
    )


def _hidden_at(rules: Arithmetic, visible: Array, scores: Numbers, softcap: float | None) -> Numbers:
    """Scores of which those that are hidden are minus the softcap, as that of minus infinity is."""
    there = rules.where(~np.broadcast_to(visible, scores.shape), rules.number(np.full(scores.shape, -(softcap or 0))))
    return rules.plus(rules.where(visible, scores), there)


def _visible(inputs: Mapping[str, Numbers], options: Options, n: int, m: int) -> Array:
    """Who sees whom, all rules together."""
    visible: Array = inputs.get("mask", np.True_)
    distances = np.arange(m) - np.arange(n)[:, None]
    if options.get("is_causal"):
        visible = visible & (distances <= 0)
    left, right = options.get("window", (None, None))
    visible = visible if left is None else visible & (distances >= -left)
    return visible if right is None else visible & (distances <= right)


def _attend(
    rules: Arithmetic, scores: Numbers, visible: Array, value: Numbers, inputs: Mapping[str, Numbers], options: Options
) -> tuple[Head, Numbers | None]:
    """Attention from its scores, and the gradient of the sink: one more key, seen by all, whose value is zero."""
    sink, d_output, kept, d_logsumexp = (inputs.get(x) for x in ("sink", "d_output", "kept", "d_logsumexp"))
    if kept is not None:
        kept = rules.over(rules.number(kept), 1 - options["dropout_p"])
    if sink is None:
        return rules.attend(scores, visible, value, d_output, kept, d_logsumexp), None
    m, one_more = scores.shape[-1], (*scores.shape[:-1], 1)
    column = rules.map(sink, lambda a: np.broadcast_to(a[..., None, None], one_more))
    whole = rules.joined([scores.swapaxes(-1, -2), column.swapaxes(-1, -2)]).swapaxes(-1, -2)
    seen = np.concatenate([np.broadcast_to(visible, scores.shape), np.ones(one_more, np.bool_)], axis=-1)
    nothing = rules.zeros((*value.shape[:-2], 1, value.shape[-1]))
    if kept is not None:
        kept = rules.map(kept, lambda a: np.concatenate([np.broadcast_to(a, scores.shape), a[..., :1]], axis=-1))
    head = rules.attend(whole, seen, rules.joined([value, nothing]), d_output, kept, d_logsumexp)
    d_sink = rules.sum_to(rules.summed(rules.map(head.d_scores, lambda a: a[..., m]), -1), sink.shape)
    d_scores, d_value = (
        rules.map(x, cut) for x, cut in ((head.d_scores, lambda a: a[..., :m]), (head.d_value, lambda a: a[..., :m, :]))
    )
    return head._replace(d_scores=d_scores, d_value=d_value), d_sink


def _weighed(
    rules: Arithmetic, scores: Numbers, visible: Array, value: Numbers, d_output: Numbers, by: Mapping[str, Any]
) -> Head:
    """The same of weights that are not by softmax; no case of it has tangents."""
    m = scores.shape[-1]
    d_weights = rules.rounded(rules.product(d_output, value.swapaxes(-1, -2), value.shape[-1]))
    scores = rules.map(scores, lambda a: np.broadcast_to(a, d_weights.shape))
    weights, d_scores = rules.weighed(scores, np.broadcast_to(visible, d_weights.shape), d_weights, by)
    weights = rules.rounded(weights)
    d_value = rules.product(d_output.swapaxes(-1, -2), weights, d_output.shape[-2] + SCALING)
    return Head(rules.product(weights, value, m + SCALING), None, d_scores, d_value.swapaxes(-1, -2))


def _dot_product_tangents(
    rules: Arithmetic, inputs: Mapping[str, Numbers], scale: Numbers, visible: Array, scores: Numbers, scaled: Numbers
) -> dict[str, Numbers]:
    """The tangent of each line of :func:`attention_of_heads`; `scaled` is the gradient of its products."""
    query, key, value, v_query, v_key = (inputs[name] for name in ("query", "key", "value", "v_query", "v_key"))
    scores_tangent = rules.plus(
        rules.scores(v_query, key, scale, None, visible),
        rules.scores(query, v_key, scale, inputs.get("v_bias"), visible),
    )
    tangents = rules.attend_tangent(
        scores, visible, value, inputs["d_output"], rules.rounded(scores_tangent), inputs["v_value"]
    )
    if "v_d_output" in inputs:  # as that of heads does, and gradients are linear in it
        by_output = rules.attend(scores, visible, value, inputs["v_d_output"])
        d_scores, d_value = (
            rules.rounded(rules.plus(rules.rounded(one), rules.rounded(other)))
            for one, other in ((tangents.d_scores, by_output.d_scores), (tangents.d_value, by_output.d_value))
        )
        tangents = tangents._replace(d_scores=d_scores, d_value=d_value)

    def product_tangent(d_products_tangent: Numbers, x: Numbers, d_products: Numbers, v_x: Numbers) -> Numbers:
        terms = (rules.product(a, b, x.shape[-2] + SCALING) for a, b in ((d_products_tangent, x), (d_products, v_x)))
        return rules.plus(*map(rules.rounded, terms))

    d_products_tangent = rules.times(tangents.d_scores, scale)
    of_query = product_tangent(d_products_tangent, key, scaled, v_key)
    of_key = product_tangent(d_products_tangent.swapaxes(-1, -2), query, scaled.swapaxes(-1, -2), v_query)
    answers = {
        "d_d_output": tangents.output,
        "hvp_query": rules.sum_to(of_query, query.shape),
        "hvp_key": rules.sum_to(of_key, key.shape),
        "hvp_value": rules.sum_to(tangents.d_value, value.shape),
    }
    return answers | ({"hvp_bias": rules.sum_to(tangents.d_scores, inputs["bias"].shape)} if "bias" in inputs else {})


def _additive(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    del options  # it has none
    query, key, value, w_score = (inputs[name] for name in ("query", "key", "value", "w_score"))
    queries = rules.rounded(rules.linear(query, inputs["w_query"]))
    keys = rules.rounded(rules.linear(key, inputs["w_key"], inputs.get("b")))
    added = rules.plus(queries[..., :, None, :], keys[..., None, :, :])  # (..., n, m, h)
    hidden = rules.rounded(rules.tanh(rules.rounded(added)))
    scores = rules.product(hidden, w_score[:, None], len(w_score) + 1)[..., 0]
    head = rules.attend(scores, inputs.get("mask", np.True_), value, inputs["d_output"])

    by_pair = rules.sum_to(head.d_scores, scores.shape)[..., None]  # (..., n, m, 1)
    d_hidden = rules.rounded(rules.times(by_pair, w_score))
    d_added = rules.rounded(rules.times(d_hidden, rules.rounded(rules.tanh_slope(hidden))))
    d_queries = rules.rounded(rules.sum_to(rules.summed(d_added, -2), queries.shape))
    d_keys = rules.rounded(rules.sum_to(rules.summed(d_added, -3), keys.shape))
    d_query, d_w_query, _ = rules.linear_backward(d_queries, query, inputs["w_query"])
    d_key, d_w_key, d_b = rules.linear_backward(d_keys, key, inputs["w_key"])
    answers = {
        "output": head.output,
        "logsumexp": head.logsumexp,
        "d_query": d_query,
        "d_key": d_key,
        "d_value": rules.sum_to(head.d_value, value.shape),
        "d_w_query": d_w_query,
        "d_w_key": d_w_key,
        "d_w_score": rules.sum_to(rules.times(by_pair, hidden), w_score.shape),
    }
    answers |= {"d_b": d_b} if "b" in inputs else {}
    if "v_query" not in inputs:
        return answers
    return answers | _additive_tangents(rules, inputs, (hidden, scores), (by_pair, d_hidden, d_queries, d_keys))


def _additive_tangents(
    rules: Arithmetic, inputs: Mapping[str, Numbers], forward: tuple[Numbers, ...], backward: tuple[Numbers, ...]
) -> dict[str, Numbers]:
    """The tangent of each line of :func:`_additive`, with some of its results."""
    v, (hidden, scores), (by_pair, d_hidden, d_queries, d_keys) = _tangents(inputs), forward, backward
    query, key, value, w_query, w_key, w_score = (
        inputs[x] for x in ("query", "key", "value", "w_query", "w_key", "w_score")
    )
    queries_tangent = rules.plus(rules.linear(v["query"], w_query), rules.linear(query, v["w_query"]))
    keys_tangent = rules.plus(rules.linear(v["key"], w_key, v.get("b")), rules.linear(key, v["w_key"]))
    queries_tangent, keys_tangent = rules.rounded(queries_tangent), rules.rounded(keys_tangent)
    slope = rules.tanh_slope(hidden)
    added_tangent = rules.rounded(rules.plus(queries_tangent[..., :, None, :], keys_tangent[..., None, :, :]))
    hidden_tangent = rules.rounded(rules.times(added_tangent, slope))
    terms = len(w_score) + 1
    of_hidden = rules.product(hidden_tangent, w_score[:, None], terms)[..., 0]
    scores_tangent = rules.plus(of_hidden, rules.product(hidden, v["w_score"][:, None], terms)[..., 0])
    tangents = rules.attend_tangent(
        scores, inputs.get("mask", np.True_), value, inputs["d_output"], rules.rounded(scores_tangent), v["value"]
    )

    by_pair_tangent = rules.rounded(rules.sum_to(tangents.d_scores, scores.shape))[..., None]
    d_hidden_tangent = rules.rounded(
        rules.plus(rules.times(by_pair_tangent, w_score), rules.times(by_pair, v["w_score"]))
    )
    twice = rules.times(rules.rounded(rules.times(hidden_tangent, hidden)), rules.number(2))
    less = rules.rounded(rules.times(d_hidden, twice))
    d_added_tangent = rules.rounded(rules.minus(rules.rounded(rules.times(d_hidden_tangent, slope)), less))
    d_queries_tangent = rules.rounded(rules.sum_to(rules.summed(d_added_tangent, -2), d_queries.shape))
    d_keys_tangent = rules.rounded(rules.sum_to(rules.summed(d_added_tangent, -3), d_keys.shape))
    of_query = _linear_gradient_tangents(
        rules, d_queries_tangent, d_queries, (query, w_query), (v["query"], v["w_query"])
    )
    of_key = _linear_gradient_tangents(rules, d_keys_tangent, d_keys, (key, w_key), (v["key"], v["w_key"]))
    of_score = rules.plus(rules.times(by_pair_tangent, hidden), rules.times(by_pair, hidden_tangent))
    answers = {
        "d_d_output": tangents.output,
        "hvp_query": of_query[0],
        "hvp_key": of_key[0],
        "hvp_value": rules.sum_to(tangents.d_value, value.shape),
        "hvp_w_query": of_query[1],
        "hvp_w_key": of_key[1],
        "hvp_w_score": rules.sum_to(rules.rounded(of_score), w_score.shape),
    }
    return answers | ({"hvp_b": of_key[2]} if "b" in inputs else {})


def _tangents(inputs: Mapping[str, Numbers]) -> dict[str, Numbers]:
    return {name.removeprefix("v_"): x for name, x in inputs.items() if name.startswith("v_")}


def _linear_gradient_tangents(
    rules: Arithmetic, d_y_tangent: Numbers, d_y: Numbers, factors: tuple[Numbers, Numbers], v: tuple[Numbers, Numbers]
) -> tuple[Numbers, ...]:
    """The tangents of the gradients of ``x @ w + b``, from those of d_y, x and w."""
    by_d_y, by_factors = rules.linear_backward(d_y_tangent, *factors), rules.linear_backward(d_y, *v)
    return *(
        rules.plus(rules.rounded(a), rules.rounded(b)) for a, b in zip(by_d_y[:2], by_factors[:2], strict=True)
    ), by_d_y[2]


def _multi_head(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    heads, names, w_output = options["num_heads"], ("query", "key", "value"), inputs["w_output"]
    projected = {x: rules.linear(inputs[x], inputs[f"w_{x}"], inputs.get(f"b_{x}")) for x in names}
    # The gradient of what the heads put out needs no output: it comes from d_output through the last projection.
    projected["d_output"] = rules.product(inputs["d_output"], w_output.swapaxes(0, 1), w_output.shape[1] + 1)
    v = _tangents(inputs)  # in cases without norms and rotary positions
    if v:
        projected |= {f"v_{x}": _linear_tangent(rules, inputs, v, x, inputs[x], v[x]) for x in names}
        across = v["w_output"].swapaxes(0, 1)
        projected["v_d_output"] = rules.product(inputs["d_output"], across, w_output.shape[1] + 1)
    few = options.get("num_kv_heads", heads)  # each of which serves so many heads of queries that follow one another
    split = {x: few if x.removeprefix("v_") in ("key", "value") else heads for x in projected}
    of_own = {x: rules.map(rules.rounded(y), lambda a, x=x: _split(a, split[x])) for x, y in projected.items()}
    takes_back = {}
    for x in ("query", "key"):
        of_own[x], takes_back[x] = _prepared(rules, x, of_own[x], inputs, options)
    of_heads = {x: rules.map(y, lambda a, x=x: np.repeat(a, heads // split[x], axis=-3)) for x, y in of_own.items()}
    shared = {x: inputs[x] for x in ("mask", "bias", "sink", *BIASES, "index") if x in inputs}
    attention = attention_of_heads(rules, shared | of_heads, options)

    combined = rules.map(rules.rounded(attention["output"]), _combine)
    answers = {"output": rules.linear(combined, w_output, inputs.get("b_output"))}
    answers |= {name: x for name, x in attention.items() if name == "logsumexp"}
    _, d_w_output, d_b_output = rules.linear_backward(inputs["d_output"], combined, w_output)
    gradients = {"d_w_output": d_w_output, "d_b_output": d_b_output}
    gradients |= {name: attention[name] for name in (f"d_{x}" for x in shared) if name in attention}
    if v:
        combined_tangent = rules.map(rules.rounded(attention["d_d_output"]), _combine)
        answers["d_d_output"] = _linear_tangent(rules, inputs, v, "output", combined, combined_tangent)
        gradients["hvp_w_output"] = rules.linear_backward(inputs["d_output"], combined_tangent, w_output)[1]
        gradients["hvp_b_output"] = rules.zeros(d_b_output.shape)  # it shifts the output, which no gradient sees
    for x in names:
        d_own = sum_to_groups(rules, attention[f"d_{x}"], of_own[x].shape)
        if x in takes_back:
            d_own, of_gain = takes_back[x](rules.rounded(d_own))
            gradients |= of_gain
        d_projected = rules.map(rules.rounded(d_own), _combine)
        backward = rules.linear_backward(d_projected, inputs[x], inputs[f"w_{x}"])
        gradients |= dict(zip((f"d_{x}", f"d_w_{x}", f"d_b_{x}"), backward, strict=True))
        if v:
            own_tangent = sum_to_groups(rules, attention[f"hvp_{x}"], of_own[x].shape)
            d_projected_tangent = rules.map(rules.rounded(own_tangent), _combine)
            products = _linear_gradient_tangents(
                rules, d_projected_tangent, d_projected, (inputs[x], inputs[f"w_{x}"]), (v[x], v[f"w_{x}"])
            )
            gradients |= dict(zip((f"hvp_{x}", f"hvp_w_{x}", f"hvp_b_{x}"), products, strict=True))
    return answers | {name: gradients[name] for name in sorted(gradients) if name.partition("_")[2] in inputs}


def _linear_tangent(
    rules: Arithmetic,
    inputs: Mapping[str, Numbers],
    v: Mapping[str, Numbers],
    name: str,
    x: Numbers,
    x_tangent: Numbers,
) -> Numbers:
    """The tangent of the projection called `name`, from those of `x` and of its parameters."""
    of_x = rules.linear(x_tangent, inputs[f"w_{name}"], v.get(f"b_{name}"))
    return rules.plus(rules.rounded(of_x), rules.rounded(rules.linear(x, v[f"w_{name}"])))


def sum_to_groups(rules: Arithmetic, d_x: Numbers, shape: tuple[int, ...]) -> Numbers:
    """The gradients of heads of this shape, of those of all heads that they serve."""
    groups = rules.map(d_x, lambda a: a.reshape(*shape[:-3], shape[-3], -1, *shape[-2:]))
    return rules.map(rules.sum_to(groups, (*shape[:-2], 1, *shape[-2:])), lambda a: a.reshape(shape))


def _prepared(
    rules: Arithmetic, name: str, x: Numbers, inputs: Mapping[str, Numbers], options: Options
) -> tuple[Numbers, Callable[[Numbers], tuple[Numbers, dict[str, Numbers]]]]:
    """Queries or keys of each head, normalised and turned as the options say, and what takes their gradient back."""
    gain, kind, steps = inputs.get(f"{name}_gain"), options.get("qk_norm"), []
    if kind is not None or {"query_gain", "key_gain"} & inputs.keys():
        epsilon = options.get("qk_norm_epsilon", 1e-6)
        steps.append(lambda x: _normalised(rules, x, gain, epsilon, _total if kind == "l2" else _mean))
    if "rotary" in options:
        positions = inputs.get("positions")
        positions = inputs.get("key_positions", positions) if name == "key" else positions
        if positions is not None and len(positions.shape) > 1:
            positions = rules.map(positions, lambda a: a[..., None, :])  # alike for all heads
        steps.append(lambda x: _turned(rules, x, positions, options["rotary"]))
    back = []
    for step in reversed(steps) if options.get("qk_norm_after_rotary") else steps:
        x, backward = step(x)
        x = rules.rounded(x)
        back.append(backward)

    def take_back(d_x: Numbers) -> tuple[Numbers, dict[str, Numbers]]:
        gains: dict[str, Numbers] = {}
        for backward in reversed(back):
            d_x, d_gain = backward(d_x)
            d_x = rules.rounded(d_x)
            gains |= {} if d_gain is None else {f"d_{name}_gain": d_gain}
        return d_x, gains

    return x, take_back


def _latent(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """Latent attention has two forms, and a kernel may carry out either."""
    answers: dict[str, Numbers] = rules.in_any_form(
        lambda: _latent_plain(rules, inputs, options), lambda: _latent_absorbed(rules, inputs, options)
    )
    return answers


def _latent_plain(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """Of keys and values of each head."""
    w_key, w_value = inputs["w_key"], inputs["w_value"]
    latents, terms = _of_all_heads(rules, inputs["latent"]), w_key.shape[-2] + SCALING  # (..., 1, m, r)
    keys, values = (rules.rounded(rules.product(latents, w, terms)) for w in (w_key, w_value))
    attention, (d_query, d_keys, d_values) = _attend_by_position(rules, inputs, options, inputs["query"], keys, values)
    answers, to_latents = {"d_query": d_query}, []
    for name, d_made, w in (("w_key", d_keys, w_key), ("w_value", d_values, w_value)):
        d_made = rules.rounded(d_made)  # (..., h, m, d_n), (..., h, m, d_v)
        d_w = rules.product(d_made.swapaxes(-1, -2), latents, d_made.shape[-2] + SCALING).swapaxes(-1, -2)
        answers[f"d_{name}"] = rules.sum_to(d_w, w.shape)
        to_latents.append(rules.product(d_made, w.swapaxes(-1, -2), w.shape[-1] + SCALING))  # (..., h, m, r)
    return attention | answers | {"d_latent": _to_latent(rules, to_latents, inputs["latent"].shape)}


def _latent_absorbed(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    """Of the latents themselves, to which the queries are taken, and the output from them."""
    query, w_key, w_value, d_output = (inputs[name] for name in ("query", "w_key", "w_value", "d_output"))
    latents, across = _of_all_heads(rules, inputs["latent"]), w_value.swapaxes(-1, -2)
    absorbing = rules.rounded(rules.product(query, w_key.swapaxes(-1, -2), w_key.shape[-1] + SCALING))
    d_heads = rules.rounded(rules.product(d_output, across, across.shape[-2] + SCALING))  # (..., h, n, r)
    width = query.shape[-1] + (inputs["query_rotary"].shape[-1] if "query_rotary" in inputs else 0)
    inner, options = {**inputs, "d_output": d_heads}, {"scale": width**-0.5, **options}  # as of the plain form
    attention, (d_absorbing, *to_latents) = _attend_by_position(rules, inner, options, absorbing, latents, latents)
    heads, d_absorbing = rules.rounded(attention["output"]), rules.rounded(d_absorbing)
    d_query = rules.product(d_absorbing, w_key, w_key.shape[-2] + SCALING)
    d_w_key = rules.product(d_absorbing.swapaxes(-1, -2), query, query.shape[-2] + SCALING)
    d_w_value = rules.product(d_output.swapaxes(-1, -2), heads, heads.shape[-2] + SCALING).swapaxes(-1, -2)
    return attention | {
        "output": rules.product(heads, w_value, w_value.shape[-2] + SCALING),
        "d_query": rules.sum_to(d_query, query.shape),
        "d_w_key": rules.sum_to(d_w_key, w_key.shape),
        "d_w_value": rules.sum_to(d_w_value, w_value.shape),
        "d_latent": _to_latent(rules, to_latents, inputs["latent"].shape),
    }


def _attend_by_position(
    rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options, query: Numbers, key: Numbers, value: Numbers
) -> tuple[dict[str, Numbers], tuple[Numbers, Numbers, Numbers]]:
    """Dot-product attention with the rotary parts beside queries and keys: its answers, and gradients of the three."""
    own, parts = query.shape[-1], [query, key]
    if "query_rotary" in inputs:
        turned = inputs["query_rotary"], _of_all_heads(rules, inputs["key_rotary"])
        parts = [_beside(rules, x, y) for x, y in zip(parts, turned, strict=True)]
    taken = {name: inputs[name] for name in ("mask", "bias", "sink", "d_output") if name in inputs}
    taken |= dict(zip(("query", "key", "value"), (*parts, value), strict=True))
    answers = attention_of_heads(rules, taken, options)
    d_query, d_key, d_value = (answers.pop(f"d_{name}") for name in ("query", "key", "value"))
    if "query_rotary" in inputs:
        of_queries, of_keys = (rules.map(x, lambda a: a[..., own:]) for x in (d_query, d_key))
        answers["d_query_rotary"] = rules.sum_to(of_queries, inputs["query_rotary"].shape)
        answers["d_key_rotary"] = summed_over_heads(rules, of_keys, inputs["key_rotary"].shape)
    d_query, d_key = (rules.map(x, lambda a: a[..., :own]) for x in (d_query, d_key))
    return answers, (rules.sum_to(d_query, query.shape), rules.sum_to(d_key, key.shape), d_value)


def _of_all_heads(rules: Arithmetic, x: Numbers) -> Numbers:
    """(..., m, d) as (..., 1, m, d)."""
    return rules.map(x, lambda a: a[..., None, :, :])


def _beside(rules: Arithmetic, x: Numbers, other: Numbers) -> Numbers:
    """The features of both."""
    leading = np.broadcast_shapes(x.shape[:-1], other.shape[:-1])
    parts = (rules.map(y, lambda a: np.broadcast_to(a, (*leading, a.shape[-1]))) for y in (x, other))
    return rules.joined([y.swapaxes(-1, -2) for y in parts]).swapaxes(-1, -2)


def _to_latent(rules: Arithmetic, parts: list[Numbers], shape: tuple[int, ...]) -> Numbers:
    """The gradient of the latents, by keys and by values of heads, (..., h, m, r)."""
    return rules.plus(*(rules.rounded(summed_over_heads(rules, x, shape)) for x in parts))


def _linear_attention(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    of_tokens = ("query", "key", "value", "log_decay", "beta", "probe", "response")
    names = [name for name in of_tokens if name in inputs]
    mask = inputs.get("mask", np.True_)
    seen = mask[..., None] if np.ndim(mask) else mask
    tokens = {name: inputs[name] for name in names}
    if "beta" in tokens:
        tokens["beta"] = rules.map(tokens["beta"], lambda a: a[..., None])
    tokens = {name: rules.where(seen, x) for name, x in tokens.items()}
    d_output = rules.where(seen, inputs["d_output"])
    (n, d_k), d_v = inputs["query"].shape[-2:], inputs["value"].shape[-1]
    shape, scale = inputs["d_final_state"].shape, rules.scale(options.get("scale"), d_k)
    first, bonus = inputs.get("initial_state"), None
    state = rules.zeros(shape) if first is None else rules.map(first, lambda a: np.broadcast_to(a, shape))
    if "bonus" in inputs:
        bonus = rules.map(inputs["bonus"], lambda a: a[..., None, :])  # (..., 1, d_k)

    outputs, steps = [], []
    for t in range(n):
        now = {name: rules.map(x, lambda a, t=t: a[..., t : t + 1, :]) for name, x in tokens.items()}  # (..., 1, d)
        before, decayed, missing, decay, said = state, state, now["value"], None, None
        if "log_decay" in now:
            decay = rules.exp(now["log_decay"], n).swapaxes(-1, -2)  # (..., d_k, 1) or (..., 1, 1)
            decayed = rules.times(decay, state)
        if "beta" in now:
            missing = rules.minus(missing, rules.product(now["key"], decayed, d_k + SCALING))
        written = rules.times(missing, now["beta"]) if "beta" in now else missing  # (..., 1, d_v)
        state = rules.plus(decayed, rules.product(now["key"].swapaxes(-1, -2), written, n))
        if "probe" in now:
            said = rules.product(now["probe"], before, d_k + SCALING)  # (..., 1, d_v)
            state = rules.plus(state, rules.product(now["response"].swapaxes(-1, -2), said, n))
        read = rules.product(now["query"], state if bonus is None else before, d_k + SCALING)
        if bonus is not None:
            own = rules.summed(rules.times(now["query"], rules.times(bonus, now["key"])), -1)[..., None]
            read = rules.plus(read, rules.times(own, now["value"]))
        outputs.append(rules.times(read, scale))
        steps.append((now, decay, before, decayed, missing, written, said, state))

    gradients: dict[str, list[Numbers]] = {name: [] for name in (*names, "bonus")}
    d_state = inputs["d_final_state"]
    for t in reversed(range(n)):
        now, decay, before, decayed, missing, written, said, behind = steps[t]
        d_row = rules.map(d_output, lambda a, t=t: a[..., t : t + 1, :])  # (..., 1, d_v)
        source = behind if bonus is None else before
        d_query = rules.times(rules.product(d_row, source.swapaxes(-1, -2), d_v + SCALING), scale)
        read = rules.product(d_row.swapaxes(-1, -2), now["query"], n).swapaxes(-1, -2)  # (..., d_k, d_v)
        d_source = rules.times(read, scale)
        d_state = rules.plus(d_state, d_source) if bonus is None else d_state
        d_written = rules.product(d_state.swapaxes(-1, -2), now["key"].swapaxes(-1, -2), d_k + n).swapaxes(-1, -2)
        d_key = rules.product(d_state, written.swapaxes(-1, -2), d_v + n).swapaxes(-1, -2)  # (..., 1, d_k)
        d_value = d_written
        if "beta" in now:
            gradients["beta"].append(rules.summed(rules.times(d_written, missing), -1)[..., None])
            d_value = rules.times(d_written, now["beta"])
            d_key = rules.minus(d_key, rules.product(d_value, decayed.swapaxes(-1, -2), d_v + n))
            less = rules.product(d_value.swapaxes(-1, -2), now["key"], n).swapaxes(-1, -2)
            d_state = rules.minus(d_state, less)
        d_behind = d_state if "probe" in now else None  # with the delta rule there is none
        if decay is not None:
            of_rows = rules.summed(rules.times(d_state, decayed), -1)  # (..., d_k)
            alike = now["log_decay"].shape[-1] == 1
            gradients["log_decay"].append((rules.summed(of_rows, -1)[..., None] if alike else of_rows)[..., None, :])
            d_state = rules.times(d_state, decay)
        if d_behind is not None and said is not None:
            d_said = rules.product(d_behind.swapaxes(-1, -2), now["response"].swapaxes(-1, -2), d_k + n).swapaxes(
                -1, -2
            )
            gradients["response"].append(rules.product(d_behind, said.swapaxes(-1, -2), d_v + n).swapaxes(-1, -2))
            gradients["probe"].append(rules.product(d_said, before.swapaxes(-1, -2), d_v + n))
            of_probe = rules.product(d_said.swapaxes(-1, -2), now["probe"], n).swapaxes(-1, -2)  # (..., d_k, d_v)
            d_state = rules.plus(d_state, of_probe)
        if bonus is not None:
            d_own = rules.times(rules.summed(rules.times(d_row, now["value"]), -1)[..., None], scale)  # (..., 1, 1)
            own = rules.summed(rules.times(now["query"], rules.times(bonus, now["key"])), -1)[..., None]
            d_query = rules.plus(d_query, rules.times(d_own, rules.times(bonus, now["key"])))
            d_key = rules.plus(d_key, rules.times(d_own, rules.times(bonus, now["query"])))
            d_value = rules.plus(d_value, rules.times(rules.times(d_row, own), scale))
            gradients["bonus"].append(rules.times(d_own, rules.times(now["query"], now["key"])))
            d_state = rules.plus(d_state, d_source)
        gradients["query"].append(d_query)
        gradients["key"].append(d_key)
        gradients["value"].append(d_value)

    answers = {"output": rules.joined(outputs), "final_state": state}
    for name in names:
        whole = rules.where(seen, rules.joined(gradients[name][::-1]))
        whole = whole[..., 0] if name == "beta" else whole
        answers[f"d_{name}"] = rules.sum_to(whole, inputs[name].shape)
    if bonus is not None:
        total = rules.summed(rules.where(seen, rules.joined(gradients["bonus"][::-1])), -2)
        answers["d_bonus"] = rules.sum_to(total, inputs["bonus"].shape)
    return answers | ({} if first is None else {"d_initial_state": rules.sum_to(d_state, first.shape)})


def _rms_norm(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    output, backward = _normalised(rules, inputs["x"], inputs.get("gain"), options.get("epsilon", 1e-6), _mean)
    d_x, d_gain = backward(inputs["d_output"])
    return {"output": output, "d_x": d_x} | ({} if d_gain is None else {"d_gain": d_gain})


def _layer_norm(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    centred = {"x": _less_mean(rules, inputs["x"])}
    answers = _rms_norm(rules, {**inputs, **centred}, {"epsilon": options.get("epsilon", 1e-5)})
    answers["d_x"] = _less_mean(rules, answers["d_x"])
    if "b" in inputs:
        d_b = rules.sum_to(inputs["d_output"], inputs["b"].shape)
        answers |= {"output": rules.plus(answers["output"], inputs["b"]), "d_b": d_b}
    return answers


def _less_mean(rules: Arithmetic, x: Numbers) -> Numbers:
    return rules.minus(x, _mean(rules, x))


def _mean(rules: Arithmetic, x: Numbers) -> Numbers:
    return rules.over(_total(rules, x), x.shape[-1])


def _total(rules: Arithmetic, x: Numbers) -> Numbers:
    return rules.map(rules.summed(x, -1), lambda a: a[..., None])


def _normalised(
    rules: Arithmetic, x: Numbers, gain: Numbers | None, epsilon: float, mean: Callable[[Arithmetic, Numbers], Numbers]
) -> tuple[Numbers, Callable[[Numbers], tuple[Numbers, Numbers | None]]]:
    """Rows over the root of the mean of their squares, or of their total, and what takes gradients back."""
    inverse = rules.inverse_root(rules.plus(mean(rules, rules.times(x, x)), rules.number(epsilon)))
    normalised = rules.times(x, inverse)
    output = normalised if gain is None else rules.times(normalised, gain)

    def backward(d_output: Numbers) -> tuple[Numbers, Numbers | None]:
        d_normalised = d_output if gain is None else rules.rounded(rules.times(d_output, gain))
        part = mean(rules, rules.times(d_normalised, normalised))
        d_x = rules.times(rules.minus(d_normalised, rules.times(part, normalised)), inverse)
        d_gain = None if gain is None else rules.sum_to(rules.times(d_output, normalised), gain.shape)
        return rules.rounded(d_x), d_gain

    return rules.rounded(output), backward


def _rotary(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    output, backward = _turned(rules, inputs["x"], inputs.get("positions"), options)
    return {"output": output, "d_x": backward(inputs["d_output"])[0]}


def _turned(
    rules: Arithmetic, x: Numbers, positions: Numbers | None, options: Options
) -> tuple[Numbers, Callable[[Numbers], tuple[Numbers, None]]]:
    """Rows turned by the angles of their positions, and what turns gradients back."""
    *_, n, d = x.shape
    width = options.get("width", d)
    start, pairs = (d - width if options.get("trailing") else 0), np.arange(width // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if options.get("interleaved") else (pairs, pairs + width // 2)
    positions = rules.number(np.arange(n)) if positions is None else positions
    cos, sin = _waves(rules, positions, width, options)

    def turn(x: Numbers, back: bool) -> Numbers:
        one, other = (rules.map(x, lambda a, of=of: a[..., start + of]) for of in (first, second))
        cos_of_both, sin_of_both = ([rules.times(y, wave) for y in (one, other)] for wave in (cos, sin))
        down, up = (rules.plus, rules.minus) if back else (rules.minus, rules.plus)
        turned = rules.put(x, start + first, down(cos_of_both[0], sin_of_both[1]))
        return rules.put(turned, start + second, up(cos_of_both[1], sin_of_both[0]))

    return turn(x, False), lambda d_output: (turn(d_output, True), None)


def _waves(rules: Arithmetic, positions: Numbers, width: int, options: Options) -> tuple[Numbers, Numbers]:
    """Cosine and sine of the angle of each pair, (..., n, width / 2), by the position on its axis."""
    base, scaling, sections = options.get("base", 10000.0), options.get("scaling"), options.get("sections")
    if sections is None:
        cos, sin = rules.waves(positions, base, width, scaling)
        return cos, sin
    of_axes = [rules.map(positions, lambda a, axis=axis: a[axis]) for axis in range(len(sections))]
    cos, sin = rules.waves(of_axes[0], base, width, scaling)
    pairs, stop = np.arange(width // 2), 0
    for axis, size in enumerate(sections):
        start, stop = stop, stop + size
        own = pairs[start:stop]
        if options.get("arrangement") == "interleaved":
            own = (
                pairs[pairs % len(sections) == axis][:size] if axis else pairs[:0]
            )  # what is over is of the first axis
        both = rules.waves(of_axes[axis], base, 2 * size if options.get("restart") else width, scaling)
        part = slice(None) if options.get("restart") else own
        of_cos, of_sin = (rules.map(wave, lambda a, part=part: a[..., part]) for wave in both)
        cos, sin = rules.put(cos, own, of_cos), rules.put(sin, own, of_sin)
    return cos, sin


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


DENSE: dict[str, Callable[[Arithmetic, Mapping[str, Numbers], Options], dict[str, Numbers]]] = {
    "softmax": _softmax,
    "dot_product": attention_of_heads,
    "additive": _additive,
    "multi_head": _multi_head,
    "linear_attention": _linear_attention,
    "latent": _latent,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rotary": _rotary,
    **AROUND,
}
