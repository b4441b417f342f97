"""What a case of each op holds: its options, inputs and answers, and the shapes that they have together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_np import biases, indexer, latent, rotary, weightings
from attention_np._lib import json
from attention_np._lib.arguments import (
    broadcast_leading,
    check_broadcasts_to,
    check_features,
    check_vector,
    check_weight,
    scores_shape,
)
from attention_np._lib.arrays import Array
from attention_np._lib.text import shortened
from attention_np._multi_head.parameters import Parameters, as_parameters
from attention_np.activation import KINDS
from attention_np.known_answers.formats import DESCALE
from attention_np.known_answers.weighed import KINDS as WEIGHTINGS

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]
Arrays: TypeAlias = Mapping[str, Array]

MOST_SCORES = 2**24  # of a case, times the hidden units of additive attention: what is held in memory at a time
DESCALES = tuple(name + DESCALE for name in ("query", "key", "value", "d_output"))
HAVE_NO_GRADIENT = (
    "mask",
    "kept",
    "index",
    "positions",
    "key_positions",
    "d_output",
    "d_final_state",
    "d_logsumexp",
    *DESCALES,
)
BOOLEANS = ("mask", "kept")


class Signature(NamedTuple):
    """What an op takes and gives.

    The function `shapes` takes inputs, of which only the shapes count, and the options, and gives the shapes of the
    output and of the log-sum-exp, or what else is given beside the output, or None where there is nothing; a ValueError
    if the inputs do not fit together.
    """

    inputs: tuple[str, ...]
    optional: tuple[str, ...]  # inputs that may be left out
    options: Mapping[str, Callable[[Any], Any]]  # and how each is read
    needed: tuple[str, ...]  # options that must not be left out
    shapes: Callable[[Arrays, Mapping[str, Any]], tuple[Shape, Shape | None]]
    beside: str = "logsumexp"  # what is given beside the output
    second_order: bool = False  # whether a case may hold a tangent of each input, and Hessian-vector products
    in_float32: tuple[str, ...] = ()  # statistics and states, which kernels of shorter formats hold in float32

    def read_options(self, value: Any) -> dict[str, Any]:
        """The options of a case, as they stand in a manifest."""
        if not isinstance(value, dict):
            raise ValueError("options: an object is expected")
        try:
            left_out = {name for name in self.options if name not in value} - set(self.needed)
            return json.as_record(value, {name: x for name, x in self.options.items() if name not in left_out})
        except ValueError as error:
            raise ValueError(f"options: {error}") from None

    def check(self, inputs: Shapes, answers: Shapes, options: Mapping[str, Any]) -> None:
        """Refuse arrays, given by their shapes, that are not those of a case; a ValueError says why."""
        gradients = [name for name in (*self.inputs, *self.optional) if name in inputs and name not in HAVE_NO_GRADIENT]
        moving = self.second_order and any(name.startswith("v_") for name in inputs)
        tangents = {f"v_{name}": inputs[name] for name in gradients if moving}
        _check_names("inputs", inputs, (*self.inputs, "d_output", *tangents), self.optional)
        output, beside = self.shapes({name: _empty(shape) for name, shape in inputs.items()}, options)
        expected = {"output": output} | {f"d_{name}": inputs[name] for name in gradients}
        if beside is not None:
            expected[self.beside] = beside
        if moving:
            expected |= {"d_d_output": output} | {f"hvp_{name}": inputs[name] for name in gradients}
        _check_names("answers", answers, tuple(expected))
        for name, shape in {**expected, **tangents, "d_output": output}.items():
            _check_shape(name, answers[name] if name in expected else inputs[name], shape)


def _check_names(what: str, given: Shapes, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{', '.join(missing)} is missing among the {what}")
    if odd := [name for name in given if name not in (*needed, *optional)]:
        raise ValueError(f"{', '.join(odd)} is among the {what}, and the op has none of that name")


def _check_shape(name: str, shape: Shape, expected: Shape) -> None:
    if shape != expected:
        raise ValueError(f"{name} must have the shape {expected}, not {shape}")


def _softmax(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    scores, axis = inputs["scores"].shape, options.get("axis", -1)
    if not -len(scores) <= axis < len(scores):
        raise ValueError(f"axis {axis} is no axis of scores (scores.shape={scores})")
    _check_broadcasts(inputs, scores)
    along = axis % len(scores)
    return scores, scores[:along] + scores[along + 1 :]


def _dot_product(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape | None]:
    query, key, value = _attending(inputs)
    check_features(query, key)
    return _attention(inputs, options, query, key, value)


def _kernel(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    query, key = inputs["query"], inputs["key"]
    if query.ndim < 3 or key.ndim != query.ndim:
        raise ValueError(f"query and key must have (..., h, n, d) (query.shape={query.shape}, key.shape={key.shape})")
    check_features(query, key)
    (*batch, h, n, _), (*_, few, m, d_k) = query.shape, key.shape
    if h % few:
        raise ValueError(f"{h} heads of queries are no whole number of groups for {few} of keys")
    if ("value" in inputs) == ("value_width" in options):
        raise ValueError("there is either a value or a value_width, of the keys that are values, too")
    value = inputs.get("value", _empty((*key.shape[:-1], min(options.get("value_width", d_k), d_k))))
    _check_shape("value", value.shape, (*key.shape[:-1], value.shape[-1]))
    if "block_table" in options:
        m = _of_pages(options, key, batch)
    else:
        _check_shape("key", key.shape[:-3], tuple(batch))
    _check_of_sequences(options, n, m, batch)
    scores = (*batch, h, n, m)
    _check_scores(inputs, scores, 1)
    biases.check(made_bias(inputs, options), scores, d_k)
    for name in inputs.keys() & {*DESCALES}:
        shape, of = inputs[name].shape, inputs.get(name.removesuffix(DESCALE), _empty(())).shape
        if len(shape) != len(of) or any(y % x for x, y in zip(shape, of, strict=True)):
            raise ValueError(f"each axis of {name} must divide that of its array, {of}, not {shape}")
    if ("kept" in inputs) != ("dropout_p" in options):
        raise ValueError("kept and dropout_p are both given or none")
    if "kept" in inputs:
        check_broadcasts_to("kept", inputs["kept"], scores)
    _check_shape("d_logsumexp", inputs.get("d_logsumexp", _empty(scores[:-1])).shape, scores[:-1])
    return (*scores[:-1], value.shape[-1]), scores[:-1]


def _of_pages(options: Mapping[str, Any], key: Array, batch: list[int]) -> int:
    """The number of keys that a block table gives each sample."""
    table = np.array(options["block_table"])
    if table.ndim != 2 or [len(table)] != batch or not (table >= -1).all() or not (table < len(key)).all():
        raise ValueError(f"block_table must name pages, of {len(key)}, for each of the samples {tuple(batch)}")
    return int(table.shape[1] * key.shape[-2])


def _check_of_sequences(options: Mapping[str, Any], n: int, m: int, batch: list[int]) -> None:
    if options.get("alignment", "top-left") not in ("top-left", "bottom-right"):
        raise ValueError(f"alignment must be top-left or bottom-right, not {shortened(options['alignment'])}")
    if ("cu_seqlens_q" in options) != ("cu_seqlens_k" in options):
        raise ValueError("cu_seqlens_q and cu_seqlens_k are both given or none")
    for name, total in (("cu_seqlens_q", n), ("cu_seqlens_k", m)):
        ends = options.get(name, (0, total))
        if list(ends) != sorted(ends) or ends[:1] != (0,) or ends[-1:] != (total,):
            raise ValueError(f"{name} must rise from 0 to {total}")
    if len(options.get("cu_seqlens_q", ())) != len(options.get("cu_seqlens_k", ())):
        raise ValueError("cu_seqlens_q and cu_seqlens_k must be as long as each other")
    lengths = options.get("key_lengths")
    if lengths is not None and ([len(lengths)] != batch or max(lengths) > m):
        raise ValueError(f"key_lengths must be at most {m}, for each of the samples {tuple(batch)}")
    if "indices" in options:
        indices = np.array(options["indices"])
        wrong = indices.ndim not in (2, 3) or (*batch, n)[-(indices.ndim - 1) :] != indices.shape[:-1]
        if wrong or not ((indices >= -1) & (indices < m)).all():
            raise ValueError(f"indices must be of {m} keys, or -1, in (n, k) or (batch, n, k)")


def _merge(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    del options  # it has none
    outputs, logsumexps = inputs["outputs"].shape, inputs["logsumexps"].shape
    if len(outputs) < 3:
        raise ValueError(f"outputs must have (parts, ..., n, d) (outputs.shape={outputs})")
    _check_shape("logsumexps", logsumexps, outputs[:-1])
    _check_shape("d_logsumexp", inputs.get("d_logsumexp", _empty(logsumexps[1:])).shape, logsumexps[1:])
    return outputs[1:], logsumexps[1:]


def _additive(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape | None]:
    query, key, value = _attending(inputs)
    hidden = inputs["w_score"].size
    for name, x in (("query", query), ("key", key)):
        _check_shape(f"w_{name}", inputs[f"w_{name}"].shape, (x.shape[-1], hidden))
    for name in ("w_score", "b"):
        check_vector(name, inputs.get(name, inputs["w_score"]), hidden)
    return _attention(inputs, options, query, key, value, hidden)


def _multi_head(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape | None]:
    heads = options["num_heads"]
    query, key, value = _attending(inputs)
    weights = Parameters(**{name: inputs.get(name) for name in Parameters._fields})  # type: ignore[arg-type]
    few = options.get("num_kv_heads", heads)
    as_parameters(weights, query, key, value, heads, few)
    query, key, value = (
        _empty((*x.shape[:-2], heads, x.shape[-2], w.shape[1] // own))
        for x, w, own in ((query, weights.w_query, heads), (key, weights.w_key, few), (value, weights.w_value, few))
    )
    (*leading, _, n, _), logsumexp = _attention(inputs, options, query, key, value)
    if "rotary" in options:
        _check_turned(query.shape[-1], options["rotary"])
        for name, x in (("positions", query), ("key_positions", key)):
            if name in inputs:
                _check_positions(name, inputs[name], (*x.shape[:-3], x.shape[-2]))
    return (*leading, n, weights.w_output.shape[1]), logsumexp


def _linear_attention(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    from attention_np.linear_attention import tokens_shape

    del options  # none of them changes a shape
    optional = [inputs.get(name) for name in OF_STATES]
    query, key, value = _attending(inputs)
    tokens = tokens_shape(query, key, value, *optional)
    if "mask" in inputs:
        check_broadcasts_to("mask", inputs["mask"], tokens, "the tokens")
    state = (*tokens[:-1], key.shape[-1], value.shape[-1])
    if prod(state) * tokens[-1] > MOST_SCORES:
        raise ValueError(f"{tokens[-1]} states of the shape {state} are more than a case may have")
    _check_shape("d_final_state", inputs["d_final_state"].shape, state)
    return (*tokens, value.shape[-1]), state


def _latent(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    del options  # none of them changes a shape
    if ("query_rotary" in inputs) != ("key_rotary" in inputs):
        raise ValueError("query_rotary and key_rotary are both given or none")
    names = "query", "query_rotary", "latent", "key_rotary", "w_key", "w_value"
    scores = latent.scores_shape(tuple(inputs.get(name) for name in names))  # type: ignore[arg-type]
    features = max(inputs["latent"].shape[-1], inputs["w_key"].shape[-1], inputs["w_value"].shape[-1])
    _check_scores(inputs, scores, features)
    return (*scores[:-1], inputs["w_value"].shape[-1]), scores[:-1]


def _indexer(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    del options  # it changes no shape
    scores = indexer.scores_shape(inputs["query"], inputs["key"], inputs["weights"])
    _check_scores(inputs, scores, inputs["query"].shape[-3])
    return scores, None


def _normalisation(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    del options  # it changes no shape
    x = inputs["x"]
    _check_axes(x, 1)
    for name in ("gain", "b"):
        if name in inputs:
            check_broadcasts_to(name, inputs[name], x.shape, "x")
    return x.shape, None


def _rotary(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    x = inputs["x"]
    _check_axes(x, 2)
    _check_turned(x.shape[-1], options)
    sections = options.get("sections")
    rotary.as_sections(
        sections,
        options.get("arrangement", "runs"),
        options.get("restart", False),
        options.get("width", x.shape[-1]),
    )
    if "positions" in inputs:
        positions = inputs["positions"]
        if sections is not None and positions.shape[:1] != (len(sections),):
            raise ValueError(f"positions must have an axis for the {len(sections)} sections first")
        _check_positions("positions", positions if sections is None else positions[0], x.shape[:-1])
    return x.shape, None


def _linear(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    del options
    x, w = inputs["x"], inputs["w"]
    _check_axes(x, 1)
    check_weight("w", w, "x", x, leading=True)
    if "b" in inputs:
        check_vector("b", inputs["b"], w.shape[-1])
    if x.ndim == 1:
        return (*w.shape[:-2], w.shape[-1]), None
    return (*broadcast_leading(x=x, w=w), x.shape[-2], w.shape[-1]), None


def _weightings(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    made_weighting(options["weights_by"])
    scores = inputs["scores"].shape
    if not scores:
        raise ValueError("scores must have one axis at least")
    _check_broadcasts(inputs, scores)
    return scores, None


def _activation(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    if options["kind"] not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {shortened(options['kind'])}")
    return inputs["x"].shape, None


def _feature_map(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    del options  # it has none
    x = inputs["x"]
    directions = inputs.get("directions")
    if directions is None:
        return x.shape, None
    _check_axes(x, 2)
    _check_shape("directions", directions.shape, (*directions.shape[:1], x.shape[-1]))
    return (*x.shape[:-1], len(directions)), None


def _short_conv(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    x, w = inputs["x"], inputs["w"]
    _check_axes(x, 2)
    n, d = x.shape[-2:]
    if w.ndim != 2 or not len(w) or w.shape[1] != d:
        raise ValueError(f"w must have the shape (width, {d}) (w.shape={w.shape})")
    if "b" in inputs:
        check_vector("b", inputs["b"], d)
    before = inputs.get("initial_state", _empty((len(w) - 1, d)))
    leading = broadcast_leading(x=x, initial_state=before)
    state = (*leading, len(w) - 1, d)
    _check_shape("initial_state", before.shape, (*before.shape[:-2], *state[-2:]))
    if len(options.get("segments", range(n))) != n:
        raise ValueError(f"segments must have a number for each of the {n} tokens")
    _check_shape("d_final_state", inputs["d_final_state"].shape, state)
    return (*leading, n, d), state


def _cross_entropy(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    del options
    scores, target = inputs["scores"].shape, inputs["target"].shape
    if not scores or target[-1:] != scores[-1:]:
        raise ValueError(f"scores and target must have as many entries in a row, not {scores} and {target}")
    rows = np.broadcast_shapes(scores, target)
    _check_broadcasts(inputs, rows)
    return rows[:-1], None


def _pooling(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    x, width = inputs["x"], options["width"]
    _check_axes(x, 2)
    n, d = x.shape[-2:]
    gate = inputs.get("gate", x)
    stride = options.get("stride", width)
    if not width or not stride:
        raise ValueError("width and stride must be at least 1")
    _check_shape("gate", gate.shape, (*gate.shape[:-2], n, d))
    leading = broadcast_leading(x=x, gate=gate)
    if "b" in inputs:
        if "gate" not in inputs:
            raise ValueError("b is added to gates, and gate is not given")
        _check_shape("b", inputs["b"].shape, (width, d))
    windows = max((n - width) // stride + 1, 0)
    if prod(leading) * windows * width * d > MOST_SCORES:
        raise ValueError(f"{windows} windows of {width} tokens are more than a case may have")
    return (*leading, windows, d), None


def _deformable(inputs: Arrays, options: Mapping[str, Any]) -> tuple[Shape, None]:
    value, locations, weights = (inputs[name] for name in ("value", "locations", "weights"))
    if value.ndim < 2 or weights.ndim < 3:
        raise ValueError(f"value and weights need more axes (value.shape={value.shape}, weights.shape={weights.shape})")
    shapes, (n, levels, points) = options["shapes"], weights.shape[-3:]
    if any(len(size) != 2 or not all(size) for size in shapes) or len(shapes) != levels:
        raise ValueError(f"shapes must have a height and a width of each of the {levels} levels")
    pixels = sum(height * width for height, width in shapes)
    d = value.shape[-1]
    _check_shape("value", value.shape, (*value.shape[:-2], pixels, d))
    _check_shape("locations", locations.shape, (*locations.shape[:-4], n, levels, points, 2))
    leading = np.broadcast_shapes(value.shape[:-2], locations.shape[:-4], weights.shape[:-3])
    if prod((*leading, n, levels, points, pixels, d)) > MOST_SCORES:
        raise ValueError(f"{n} queries over {pixels} pixels are more than a case may have")
    return (*leading, n, d), None


def _check_turned(features: int, options: Mapping[str, Any]) -> None:
    made_rotary(options)
    width = options.get("width", features)
    if width % 2 or not 0 <= width <= features:
        raise ValueError(f"width {width} must be even, and at most the {features} features that there are")


def _check_positions(name: str, positions: Array, rows: Shape) -> None:
    check_broadcasts_to(name, positions, rows, "the rows")
    if positions.shape[-1:] != rows[-1:]:
        raise ValueError(f"{name} must have a number for each row ({name}.shape={positions.shape})")


def _check_axes(x: Array, axes: int) -> None:
    if x.ndim < axes:
        raise ValueError(f"x must have {axes} axes at least (x.shape={x.shape})")


def _empty(shape: Shape) -> Array:
    """An array of that shape, for checks that look at nothing else: it takes no memory."""
    return np.broadcast_to(np.float64(0), shape)


def _attending(inputs: Arrays) -> list[Array]:
    for name in ATTENDING:
        if inputs[name].ndim < 2:
            raise ValueError(f"{name} must have two axes at least ({name}.shape={inputs[name].shape})")
    return [inputs[name] for name in ATTENDING]


def _attention(
    inputs: Arrays, options: Mapping[str, Any], query: Array, key: Array, value: Array, hidden: int = 1
) -> tuple[Shape, Shape | None]:
    scores = scores_shape(query, key, value)
    _check_scores(inputs, scores, hidden)
    biases.check(made_bias(inputs, options), scores, key.shape[-1])
    if "scale" in inputs:
        check_broadcasts_to("scale", inputs["scale"], (*scores[:-1], 1), "(..., n, 1) of the scores")
        if "scale" in options:
            raise ValueError("scale is among the inputs and among the options")
    if "sink" in inputs and "weights_by" in options:
        raise ValueError("a sink is one more score of a softmax, and weights_by is among the options")
    leading = np.broadcast_shapes(scores[:-2], value.shape[:-2])
    output = (*leading, scores[-2], value.shape[-1])
    if "weights_by" in options:
        made_weighting(options["weights_by"])
        return output, None
    return output, scores[:-1]


def _check_scores(inputs: Arrays, scores: Shape, for_each: int) -> None:
    """Refuse more scores than fit in memory, with so many numbers for each, and what does not broadcast to them."""
    if prod(scores) * for_each > MOST_SCORES:
        raise ValueError(f"scores of the shape {scores} are more than a case may have")
    _check_broadcasts(inputs, scores)
    if "sink" in inputs:
        check_broadcasts_to("sink", inputs["sink"], scores[:-2], "the leading axes of the scores")


def _check_broadcasts(inputs: Arrays, scores: Shape) -> None:
    for name in ("mask", "bias"):
        if name in inputs:
            check_broadcasts_to(name, inputs[name], scores)


def biases_in(inputs: Iterable[str]) -> list[str]:
    """The inputs that a bias is made of."""
    held = {*inputs}
    return [name for name in ("bias", *MADE) if name in held]


def made_bias(inputs: Arrays, options: Mapping[str, Any]) -> Any:
    """The bias that is given, or that an input stands for; a list of those in the order of :func:`biases_in`."""
    index = inputs["index"].astype(np.int64) if "index" in inputs else None
    made: list[Any] = []
    for name in biases_in(inputs):
        if name == "bias":
            made.append(inputs[name])
        elif index is not None and name in BY_INDEX:
            made.append(
                BY_INDEX[name](inputs[name], index, **_picked(options, OF_INDEX if name == "embedding" else ()))
            )
        else:
            made.append(MADE[name](inputs[name], **_picked(options, OF_BIASES if name == "table" else ())))
    return made if len(made) > 1 else made[0] if made else None


def made_weighting(by: Mapping[str, Any]) -> weightings.Weighting:
    """How scores become weights, of the option that says it."""
    numbers = dict(by)
    made: weightings.Weighting = getattr(weightings, numbers.pop("kind"))(**numbers)
    return made


def made_rotary(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of rotary.forward, of those of a case."""
    if "scaling" not in options:
        return dict(options)
    numbers = dict(options["scaling"])
    return {**options, "scaling": getattr(rotary, numbers.pop("kind"))(**numbers)}


def _picked(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def _some(fields: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], dict[str, Any]]:
    """An object that has some of these fields, and no others."""

    def read(value: Any) -> dict[str, Any]:
        given = {name: x for name, x in fields.items() if name in value} if isinstance(value, dict) else fields
        return json.as_record(value, given)

    return read


def _scaling(value: Any) -> dict[str, Any]:
    """The kind of a scaling of rotary positions, and the arguments of the function of that name."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in SCALINGS:
        raise ValueError(f"an object is expected, with a kind of {', '.join(SCALINGS)}, not {shortened(value)}")
    takes = signature(getattr(rotary, kind)).parameters
    fields = {name: NOT_NUMBERS.get(name, json.as_finite) for name in takes}
    left_out = {name for name in takes if name not in value and takes[name].default is not Parameter.empty}
    names = {name: read for name, read in fields.items() if name not in left_out}
    return json.as_record(value, {"kind": json.as_text, **names})


def _weighting(value: Any) -> dict[str, Any]:
    """The kind of a weighting, and alpha, which entmax may have."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in WEIGHTINGS:
        raise ValueError(f"an object is expected, with a kind of {', '.join(WEIGHTINGS)}, not {shortened(value)}")
    return json.as_record(value, {"kind": json.as_text} | ({"alpha": json.as_finite} if kind == "entmax" else {}))


def _window(value: Any) -> tuple[int | None, int | None]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"two numbers are expected, or null, not {shortened(value)}")
    left, right = json.as_tuple(json.is_optional(json.as_whole))(value)
    return left, right


def _from_minus_one(value: Any) -> int:
    """The number of a page or a key, or -1 for none."""
    return -1 if value == -1 and not isinstance(value, bool) else json.as_whole(value)


def _of_places(value: Any) -> Any:
    """Whole numbers from -1, in two or three axes."""
    deeper = isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple) and value[0]
    three = deeper and isinstance(value[0][0], list | tuple)
    rows = json.as_tuple(_from_minus_one)
    return json.as_tuple(json.as_tuple(rows) if three else rows)(value)


def _signed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"a whole number is expected, not {shortened(value)}")
    return value


def _kind_of_norm(value: Any) -> str:
    if value not in ("rms", "l2"):
        raise ValueError(f"rms or l2 is expected, not {shortened(value)}")
    return str(value)


def _axis(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("an axis is expected")
    return value


ATTENDING = ("query", "key", "value")
MADE: dict[str, Callable[..., biases.Bias]] = {
    "slopes": biases.alibi,
    "table": biases.t5,
    "embedding": biases.shaw,
    "log_f": biases.forgetting,
}
BY_INDEX: dict[str, Callable[..., biases.Bias]] = {"table": biases.table, "embedding": biases.products}
SCALINGS = ("linear", "dynamic", "yarn", "llama3", "longrope")
NOT_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "truncate": json.as_flag,
    "short_factor": json.as_tuple(json.as_finite),
    "long_factor": json.as_tuple(json.as_finite),
}
OF_BIASES = {"bidirectional": json.as_flag, "max_distance": json.as_whole}  # options of a table by distance
OF_INDEX = {"of": json.as_text}  # and of an embedding by index
OF_SCORES = {
    "scale": json.as_finite,
    "is_causal": json.as_flag,
    "softcap": json.as_finite,
    "weights_by": _weighting,
    **OF_BIASES,
    **OF_INDEX,
}
OF_ROTARY = {
    "base": json.as_finite,
    "width": json.as_whole,
    "trailing": json.as_flag,
    "interleaved": json.as_flag,
    "scaling": _scaling,
}
OF_STATES = ("log_decay", "beta", "initial_state", "probe", "response", "bonus")
OF_SECTIONS = {"sections": json.as_tuple(json.as_whole), "arrangement": json.as_text, "restart": json.as_flag}
SIGNATURES = {
    "softmax": Signature(("scores",), ("mask",), {"axis": _axis}, (), _softmax, second_order=True),
    "dot_product": Signature(
        ATTENDING,
        ("mask", "bias", "sink", "scale", *MADE, "index"),
        OF_SCORES,
        (),
        _dot_product,
        second_order=True,
    ),
    "attention": Signature(
        ("query", "key"),
        ("value", "bias", "sink", "slopes", "mask", "kept", "d_logsumexp", *DESCALES),
        {
            "scale": json.as_finite,
            "softcap": json.as_finite,
            "is_causal": json.as_flag,
            "alignment": json.as_text,
            "offset": _signed,
            "window": _window,
            "key_lengths": json.as_tuple(json.as_whole),
            "cu_seqlens_q": json.as_tuple(json.as_whole),
            "cu_seqlens_k": json.as_tuple(json.as_whole),
            "block_table": _of_places,
            "indices": _of_places,
            "value_width": json.as_whole,
            "dropout_p": json.as_finite,
        },
        (),
        _kernel,
        second_order=True,
        in_float32=("logsumexp", "d_logsumexp"),
    ),
    "merge": Signature(
        ("outputs", "logsumexps"),
        ("d_logsumexp",),
        {},
        (),
        _merge,
        in_float32=("logsumexps", "d_logsumexp", "logsumexp", "d_logsumexps"),
    ),
    "additive": Signature(
        (*ATTENDING, "w_query", "w_key", "w_score"), ("b", "mask"), {}, (), _additive, second_order=True
    ),
    "multi_head": Signature(
        (*ATTENDING, *(name for name in Parameters._fields if name not in Parameters._field_defaults)),
        (*Parameters._field_defaults, "mask", "bias", *MADE, "index", "positions", "key_positions"),
        {
            "num_heads": json.as_whole,
            "num_kv_heads": json.as_whole,
            **OF_SCORES,
            "window": _window,
            "rotary": _some(OF_ROTARY),
            "qk_norm": _kind_of_norm,
            "qk_norm_epsilon": json.as_finite,
            "qk_norm_after_rotary": json.as_flag,
        },
        ("num_heads",),
        _multi_head,
        second_order=True,
    ),
    "linear_attention": Signature(
        (*ATTENDING, "d_final_state"),
        (*OF_STATES, "mask"),
        {"scale": json.as_finite},
        (),
        _linear_attention,
        "final_state",
        in_float32=("initial_state", "d_final_state", "final_state", "d_initial_state"),
    ),
    "latent": Signature(
        ("query", "latent", "w_key", "w_value"),
        ("query_rotary", "key_rotary", "mask", "bias", "sink"),
        {"scale": json.as_finite, "is_causal": json.as_flag, "softcap": json.as_finite},
        (),
        _latent,
    ),
    "rms_norm": Signature(("x",), ("gain",), {"epsilon": json.as_finite}, (), _normalisation),
    "layer_norm": Signature(("x",), ("gain", "b"), {"epsilon": json.as_finite}, (), _normalisation),
    "rotary": Signature(("x",), ("positions",), OF_ROTARY | OF_SECTIONS, (), _rotary),
    "linear": Signature(("x", "w"), ("b",), {}, (), _linear),
    "feature_map": Signature(("x",), ("directions",), {}, (), _feature_map),
    "activation": Signature(("x",), (), {"kind": json.as_text}, ("kind",), _activation),
    "short_conv": Signature(
        ("x", "w", "d_final_state"),
        ("b", "initial_state"),
        {"segments": json.as_tuple(json.as_whole)},
        (),
        _short_conv,
        "final_state",
    ),
    "weightings": Signature(("scores",), ("mask",), {"weights_by": _weighting}, ("weights_by",), _weightings),
    "cross_entropy": Signature(("scores", "target"), ("mask",), {}, (), _cross_entropy),
    "pooling": Signature(
        ("x",), ("gate", "b"), {"width": json.as_whole, "stride": json.as_whole}, ("width",), _pooling
    ),
    "deformable": Signature(
        ("value", "locations", "weights"),
        (),
        {"shapes": json.as_tuple(json.as_tuple(json.as_whole))},
        ("shapes",),
        _deformable,
    ),
    "indexer": Signature(("query", "key", "weights"), ("mask",), {"scale": json.as_finite}, (), _indexer),
}
