"""What the ops that stand around attention compute forward and backward, in any arithmetic. From their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.by_position import Arithmetic, Numbers, Options

Program = Callable[[Arithmetic, Mapping[str, Numbers], Options], dict[str, Numbers]]
ROUNDINGS = 4  # of a sum of products beside one for each term


def activated(kind: str, x: Any, functions: Any) -> tuple[Any, Any]:
    """An activation of the number `x`, and its slope there, by exp, erf, log and so on of `functions`."""
    if kind in ("relu", "relu_squared"):
        positive = x if x > 0 else x * 0
        return (positive, x * 0 + (x > 0)) if kind == "relu" else (positive * positive, 2 * positive)
    if kind == "exp":
        return functions.exp(x), functions.exp(x)
    if kind == "elu_plus_one":
        return (x + 1, x * 0 + 1) if x > 0 else (functions.exp(x), functions.exp(x))
    if kind == "tanh":
        return functions.tanh(x), 1 - functions.tanh(x) ** 2
    reached = 1 / (1 + functions.exp(-x))
    if kind in ("sigmoid", "softplus"):
        value = reached if kind == "sigmoid" else functions.log(1 + functions.exp(x))
        return value, reached * (1 - reached) if kind == "sigmoid" else reached
    if kind == "gelu":
        gate = (1 + functions.erf(x / functions.sqrt(2))) / 2
        opening = functions.exp(-x * x / 2) / functions.sqrt(2 * functions.pi)
    elif kind == "gelu_tanh":
        steep = functions.sqrt(2 / functions.pi)
        tanh = functions.tanh(steep * (x + 44715 * x**3 / 1000000))
        gate, opening = (1 + tanh) / 2, steep * (1 + 3 * 44715 * x**2 / 1000000) * (1 - tanh**2) / 2
    elif kind == "quick_gelu":
        gate = 1 / (1 + functions.exp(-x * 1702 / 1000))
        opening = gate * (1 - gate) * 1702 / 1000
    else:
        gate, opening = reached, reached * (1 - reached)  # silu
    return x * gate, gate + x * opening


def _linear(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    del options
    x, w, b, d_output = inputs["x"], inputs["w"], inputs.get("b"), inputs["d_output"]
    single = len(x.shape) == 1
    rows, d_rows = (rules.map(y, lambda a: a[..., None, :] if single else a) for y in (x, d_output))
    product = rules.product(rows, w, w.shape[-2] + ROUNDINGS)
    output = rules.map(product, lambda a: a.reshape(d_output.shape))
    d_x = rules.product(d_rows, w.swapaxes(-1, -2), w.shape[-1] + ROUNDINGS)
    d_w = rules.product(rows.swapaxes(-1, -2), d_rows, rows.shape[-2] + ROUNDINGS)
    answers = {
        "output": output if b is None else rules.plus(output, b),
        "d_x": rules.map(rules.sum_to(d_x, rows.shape), lambda a: a.reshape(x.shape)),
        "d_w": rules.sum_to(d_w, w.shape),
    }
    return answers | ({} if b is None else {"d_b": rules.sum_to(d_output, b.shape)})


def _activation(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    value, slope = rules.activation(inputs["x"], options["kind"])
    return {"output": value, "d_x": rules.times(inputs["d_output"], slope)}


def _feature_map(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    x, directions, d_output = inputs["x"], inputs.get("directions"), inputs["d_output"]
    if directions is None:
        return _activation(rules, inputs, {"kind": "elu_plus_one"})
    del options
    (m, d), n = directions.shape, x.shape[-2]
    half = rules.over(rules.summed(rules.times(x, x), -1), 2)[..., None]  # (..., n, 1)
    exponents = rules.minus(rules.product(x, directions.swapaxes(-1, -2), d + ROUNDINGS), half)
    features = rules.times(rules.exp(exponents, 0), rules.inverse_root(rules.number(m)))  # (..., n, m)
    d_exponents = rules.rounded(rules.times(d_output, rules.rounded(features)))
    total = rules.summed(d_exponents, -1)[..., None]  # (..., n, 1)
    towards = rules.rounded(rules.product(d_exponents, directions, m + ROUNDINGS))
    d_directions = rules.product(d_exponents.swapaxes(-1, -2), x, n + ROUNDINGS)  # (..., m, d)
    return {
        "output": features,
        "d_x": rules.minus(towards, rules.rounded(rules.times(total, x))),
        "d_directions": rules.sum_to(d_directions, directions.shape),
    }


def _short_conv(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    x, w, d_output, b, initial_state = (
        inputs["x"],
        inputs["w"],
        inputs["d_output"],
        inputs.get("b"),
        inputs.get("initial_state"),
    )
    (*leading, n, d), width = d_output.shape, len(w)
    x = rules.map(x, lambda a: np.broadcast_to(a, d_output.shape))
    numbers = np.array(options.get("segments", [0] * n))
    whole = (*leading, width - 1, d)
    before = (
        rules.zeros(whole) if initial_state is None else rules.map(initial_state, lambda a: np.broadcast_to(a, whole))
    )
    tokens = rules.joined([before, x])  # what stands at place p is token p - width + 1

    def reaches(p: int, t: int) -> bool:
        """Whether token t sees what stands at place p: no segment begins between them."""
        first = p - (width - 1)
        return (numbers[max(first, 0) : t + 1] == numbers[t]).all() and (first >= 0 or initial_state is not None)

    output, d_tokens, d_w = rules.zeros(x.shape), rules.zeros(tokens.shape), []
    for tap in range(width):
        reach = np.array([reaches(t + tap, t) for t in range(n)], np.bool_).reshape(n, 1)
        seen = rules.map(tokens, lambda a, tap=tap: a[..., tap : tap + n, :])
        arrives = rules.where(reach, d_output)
        output = rules.plus(output, rules.where(reach, rules.times(seen, w[tap])))
        d_w.append(rules.sum_to(rules.times(arrives, seen), (1, d)))
        parts = [rules.zeros((*leading, tap, d)), rules.times(arrives, w[tap])]
        d_tokens = rules.plus(d_tokens, rules.joined([*parts, rules.zeros((*leading, width - 1 - tap, d))]))
    kept = np.array([reaches(p, n - 1) if n else initial_state is not None for p in range(n, n + width - 1)], np.bool_)[
        :, None
    ]
    behind = rules.where(kept, inputs["d_final_state"])
    d_tokens = rules.plus(d_tokens, rules.joined([rules.zeros((*leading, n, d)), behind]))
    answers = {
        "output": output if b is None else rules.plus(output, b),
        "final_state": rules.where(kept, rules.map(tokens, lambda a: a[..., n:, :])),
        "d_x": rules.sum_to(rules.map(d_tokens, lambda a: a[..., width - 1 :, :]), inputs["x"].shape),
        "d_w": rules.joined(d_w),
    }
    answers |= {} if b is None else {"d_b": rules.sum_to(d_output, b.shape)}
    if initial_state is None:
        return answers
    d_before = rules.map(d_tokens, lambda a: a[..., : width - 1, :])
    return answers | {"d_initial_state": rules.sum_to(d_before, initial_state.shape)}


def _cross_entropy(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    del options
    both = inputs["scores"], inputs["target"]
    shape = np.broadcast_shapes(*(x.shape for x in both))
    visible = np.broadcast_to(inputs.get("mask", np.True_), shape)
    scores, target = (rules.where(visible, rules.map(x, lambda a: np.broadcast_to(a, shape))) for x in both)
    nothing = rules.zeros(scores.shape)
    weights, logsumexp, _ = rules.softmax(scores, visible, nothing)
    surprise = rules.where(visible, rules.minus(logsumexp[..., None], scores))
    d_rows = inputs["d_output"][..., None]
    total = rules.summed(target, -1)[..., None]
    slopes = rules.where(visible, rules.minus(rules.times(weights, total), target))
    return {
        "output": rules.summed(rules.times(target, surprise), -1),
        "d_scores": rules.sum_to(rules.times(d_rows, slopes), both[0].shape),
        "d_target": rules.sum_to(rules.times(d_rows, surprise), both[1].shape),
    }


def _pooling(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    x, gate, b = inputs["x"], inputs.get("gate"), inputs.get("b")
    (n, d), width = x.shape[-2:], options["width"]
    *leading, _, _ = inputs["d_output"].shape
    starts = range(0, n - width + 1, options.get("stride", width))
    d_rows = inputs["d_output"][..., None, :]  # (..., windows, 1, d)

    def in_windows(x: Numbers) -> Numbers:
        tokens = np.array([range(start, start + width) for start in starts], int).reshape(-1, width)
        return rules.map(x, lambda a: a[..., tokens, :])

    def from_windows(d_windows: Numbers, shape: tuple[int, ...]) -> Numbers:
        total = rules.zeros((*leading, n, d))
        d_windows = rules.map(d_windows, lambda a: np.broadcast_to(a, (*leading, *a.shape[-3:])))
        for k, start in enumerate(starts):
            held = rules.map(d_windows, lambda a, k=k: a[..., k, :, :])
            parts = [rules.zeros((*leading, start, d)), held, rules.zeros((*leading, n - width - start, d))]
            total = rules.plus(total, rules.joined(parts))
        return rules.sum_to(total, shape)

    held = in_windows(x)
    if gate is None:
        mean = rules.over(rules.summed(held, -2), width)
        d_held = rules.map(rules.over(d_rows, width), lambda a: np.broadcast_to(a, held.shape))
        return {"output": mean, "d_x": from_windows(d_held, x.shape)}
    scores = in_windows(gate)
    scores = scores if b is None else rules.plus(scores, b)
    d_weights = rules.times(d_rows, held).swapaxes(-1, -2)  # (..., windows, d, width), as the scores below
    of_each = rules.map(scores.swapaxes(-1, -2), lambda a: np.broadcast_to(a, d_weights.shape))
    weights, _, d_scores = rules.softmax(of_each, np.ones(d_weights.shape, np.bool_), d_weights)
    weights, d_scores = weights.swapaxes(-1, -2), d_scores.swapaxes(-1, -2)
    answers = {
        "output": rules.summed(rules.times(weights, held), -2),
        "d_x": from_windows(rules.times(weights, d_rows), x.shape),
        "d_gate": from_windows(d_scores, gate.shape),
    }
    return answers | ({} if b is None else {"d_b": rules.sum_to(d_scores, b.shape)})


def _deformable(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    value, locations, weights, d_output = (inputs[name] for name in ("value", "locations", "weights", "d_output"))
    n, _, points = weights.shape[-3:]
    of_queries = rules.map(d_output, lambda a: a[..., :, None, :])  # (..., n, 1, d)
    output, start = rules.zeros(d_output.shape), 0
    d_value: list[Numbers] = []
    d_x: list[Numbers] = []
    d_y: list[Numbers] = []
    d_weights: list[Numbers] = []
    for level, (height, width) in enumerate(options["shapes"]):
        pixels = slice(start, start + height * width)
        start = pixels.stop
        x, y = (rules.map(locations, lambda a, k=k, f=level: a[..., f, :, k]) for k in (0, 1))  # (..., n, points)
        share = rules.map(weights, lambda a, f=level: a[..., f, :, None])  # (..., n, points, 1)
        columns, by_column = rules.hats(x, width)  # (..., n, points, width)
        rows, by_row = rules.hats(y, height)
        near, by_x, by_y = (
            rules.map(
                rules.times(one[..., :, None], other[..., None, :]),
                lambda a, size=height * width: a.reshape(*a.shape[:-2], size),
            )
            for one, other in ((rows, columns), (rows, by_column), (by_row, columns))
        )  # each (..., n, points, pixels)
        of_level = rules.map(value, lambda a, of=pixels: a[..., None, of, :])  # (..., 1, pixels, d)
        samples = rules.product(near, of_level, height * width + ROUNDINGS)  # (..., n, points, d)
        output = rules.plus(output, rules.summed(rules.times(share, samples), -2))
        across = of_level.swapaxes(-1, -2)
        agreement = rules.product(of_queries, across, d_output.shape[-1] + ROUNDINGS)  # (..., n, 1, pixels)
        d_weights.append(rules.summed(rules.times(near, agreement), -1))
        for terms, by in ((d_x, by_x), (d_y, by_y)):
            terms.append(rules.summed(rules.times(share, rules.times(by, agreement)), -1))
        parts = rules.map(rules.times(share, near), lambda a: a.reshape(*a.shape[:-3], n * points, a.shape[-1]))
        each = rules.map(of_queries, lambda a: np.repeat(a, points, axis=-2).reshape(*a.shape[:-3], n * points, -1))
        d_value.append(rules.product(parts.swapaxes(-1, -2), each, n * points + ROUNDINGS))

    def stacked(levels: list[Numbers]) -> Numbers:
        return rules.joined([x[..., None, :] for x in levels])  # (..., n, levels, points)

    both = rules.joined([stacked(x)[..., None, :] for x in (d_x, d_y)]).swapaxes(-1, -2)
    return {
        "output": output,
        "d_value": rules.sum_to(rules.joined(d_value), value.shape),
        "d_locations": rules.sum_to(both, locations.shape),
        "d_weights": rules.sum_to(stacked(d_weights), weights.shape),
    }


def _indexer(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    query, key, weights = inputs["query"], inputs["key"], inputs["weights"]
    *leading, n, m = inputs["d_output"].shape
    visible = np.broadcast_to(inputs.get("mask", np.True_), (*leading, n, m))
    of_heads, keys = visible[..., None, :, :], rules.map(key, lambda a: a[..., None, :, :])  # (..., 1, m, d)
    scale = rules.scale(options.get("scale", 1.0), query.shape[-1])
    products = rules.scores(query, keys, scale, None, of_heads)  # (..., h, n, m)
    _, slopes = rules.activation(products, "relu")
    activated = rules.where(of_heads, rules.rounded(rules.times(products, slopes)))
    of_queries = rules.map(weights, lambda a: a[..., None])  # (..., h, n, 1)
    d_heads = rules.map(rules.where(visible, inputs["d_output"]), lambda a: a[..., None, :, :])  # (..., 1, n, m)
    d_products = rules.rounded(rules.times(rules.times(d_heads, of_queries), slopes))
    scaled = rules.times(d_products, scale)
    d_key = rules.product(scaled.swapaxes(-1, -2), query, n + ROUNDINGS)  # (..., h, m, d)
    return {
        "output": rules.where(visible, rules.summed(rules.times(activated, of_queries), -3), -np.inf),
        "d_query": rules.sum_to(rules.product(scaled, keys, m + ROUNDINGS), query.shape),
        "d_key": summed_over_heads(rules, d_key, key.shape),
        "d_weights": rules.sum_to(rules.summed(rules.times(d_heads, activated), -1), weights.shape),
    }


def summed_over_heads(rules: Arithmetic, d_x: Numbers, shape: tuple[int, ...]) -> Numbers:
    """The gradient of what is of this shape, and the same for all heads, from (..., h, m, d)."""
    total = rules.sum_to(d_x, (*shape[:-2], 1, *shape[-2:]))
    return rules.map(total, lambda a: a.reshape(shape))


def hats(u: Array, size: int) -> tuple[Array, Array]:
    """How near locations `u`, (...), counted in pixels from the centre of the first, are to each of `size` centres."""
    distance = u[..., None] - np.arange(size)
    height, slope = 1 - abs(distance), np.where(distance < 0, 1, -1)
    reached = height > 0
    return np.where(reached, height, height * 0), np.where(reached, size * slope, 0)


def _weightings(rules: Arithmetic, inputs: Mapping[str, Numbers], options: Options) -> dict[str, Numbers]:
    scores = inputs["scores"]
    visible = np.broadcast_to(inputs.get("mask", np.True_), scores.shape)
    weights, d_scores = rules.weighed(scores, visible, inputs["d_output"], options["weights_by"])
    return {"output": weights, "d_scores": d_scores}


AROUND: dict[str, Program] = {
    "weightings": _weightings,
    "linear": _linear,
    "feature_map": _feature_map,
    "activation": _activation,
    "short_conv": _short_conv,
    "cross_entropy": _cross_entropy,
    "pooling": _pooling,
    "deformable": _deformable,
    "indexer": _indexer,
}
