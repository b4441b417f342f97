"""What a case of each op holds: its options, inputs and answers, and the shapes that they have together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attention_np._lib import json

__all__ = ["SIGNATURES", "Signature"]

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]

MOST_SCORES = 2**24  # of a case, times the hidden units of additive attention: what is held in memory at a time
HAVE_NO_GRADIENT = ("mask", "d_output")


class Signature(NamedTuple):
    """What an op takes and gives.

    The function `shapes` takes the shapes of inputs and the options, and gives the shapes of the output and of the
    log-sum-exp; a ValueError if the inputs do not fit together.
    """

    inputs: tuple[str, ...]
    optional: tuple[str, ...]  # inputs that may be left out
    options: Mapping[str, Callable[[Any], Any]]  # and how each is read
    needed: tuple[str, ...]  # options that must not be left out
    shapes: Callable[[Shapes, Mapping[str, Any]], tuple[Shape, Shape]]

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
        _check_names("inputs", inputs, (*self.inputs, "d_output"), self.optional)
        gradients = [name for name in inputs if name not in HAVE_NO_GRADIENT]
        _check_names("answers", answers, ("output", "logsumexp", *(f"d_{name}" for name in gradients)))
        output, logsumexp = self.shapes(inputs, options)
        _check_shape("d_output", inputs["d_output"], output)
        _check_shape("output", answers["output"], output)
        _check_shape("logsumexp", answers["logsumexp"], logsumexp)
        for name in gradients:
            _check_shape(f"d_{name}", answers[f"d_{name}"], inputs[name])


def _check_names(what: str, given: Shapes, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{', '.join(missing)} is missing among the {what}")
    if odd := [name for name in given if name not in (*needed, *optional)]:
        raise ValueError(f"{', '.join(odd)} is among the {what}, and the op has none of that name")


def _check_shape(name: str, shape: Shape, expected: Shape) -> None:
    if shape != expected:
        raise ValueError(f"{name} must have the shape {expected}, not {shape}")


def _softmax(inputs: Shapes, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    scores, axis = inputs["scores"], options.get("axis", -1)
    if not -len(scores) <= axis < len(scores):
        raise ValueError(f"axis {axis} is no axis of scores (scores.shape={scores})")
    _check_broadcasts(inputs, scores)
    along = axis % len(scores)
    return scores, scores[:along] + scores[along + 1 :]


def _dot_product(inputs: Shapes, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    del options  # none of them changes a shape
    query, key, value = (_at_least_two_axes(name, inputs[name]) for name in ("query", "key", "value"))
    if query[-1] != key[-1]:
        raise ValueError(f"query and key must have as many features (query.shape={query}, key.shape={key})")
    return _attention(inputs, query, key, value)


def _additive(inputs: Shapes, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    del options  # it has none
    query, key, value = (_at_least_two_axes(name, inputs[name]) for name in ("query", "key", "value"))
    hidden = prod(inputs["w_score"])
    _check_shape("w_score", inputs["w_score"], (hidden,))
    _check_shape("b", inputs.get("b", (hidden,)), (hidden,))
    _check_shape("w_query", inputs["w_query"], (query[-1], hidden))
    _check_shape("w_key", inputs["w_key"], (key[-1], hidden))
    return _attention(inputs, query, key, value, hidden=hidden)


def _multi_head(inputs: Shapes, options: Mapping[str, Any]) -> tuple[Shape, Shape]:
    heads = options["num_heads"]
    query, key, value = (_split(inputs, name, heads) for name in ("query", "key", "value"))
    _check_shape("w_key", inputs["w_key"], (inputs["key"][-1], query[-1] * heads))
    combined, logsumexp = _attention(inputs, query, key, value)
    *leading, _, n, d_v = combined
    w_output = _at_least_two_axes("w_output", inputs["w_output"])
    _check_shape("w_output", w_output, (d_v * heads, w_output[-1]))
    _check_shape("b_output", inputs.get("b_output", w_output[-1:]), w_output[-1:])
    return (*leading, n, w_output[-1]), logsumexp


def _split(inputs: Shapes, name: str, heads: int) -> Shape:
    """The shape (..., heads, n, features) of what `name`, (..., n, features), is projected to."""
    x, w = _at_least_two_axes(name, inputs[name]), _at_least_two_axes(f"w_{name}", inputs[f"w_{name}"])
    _check_shape(f"w_{name}", w, (x[-1], w[-1]))
    _check_shape(f"b_{name}", inputs.get(f"b_{name}", w[-1:]), w[-1:])
    if heads < 1 or w[-1] % heads:
        raise ValueError(f"the features of w_{name} cannot be split into {heads} heads (w_{name}.shape={w})")
    return (*x[:-2], heads, x[-2], w[-1] // heads)


def _attention(inputs: Shapes, query: Shape, key: Shape, value: Shape, hidden: int = 1) -> tuple[Shape, Shape]:
    if key[-2] != value[-2]:
        raise ValueError(f"there must be as many values as keys (key.shape={key}, value.shape={value})")
    leading = _broadcast(query[:-2], key[:-2])
    scores = (*leading, query[-2], key[-2])
    if prod(scores) * hidden > MOST_SCORES:
        raise ValueError(f"scores of the shape {scores} are more than a case may have")
    _check_broadcasts(inputs, scores)
    return (*_broadcast(leading, value[:-2]), query[-2], value[-1]), scores[:-1]


def _at_least_two_axes(name: str, shape: Shape) -> Shape:
    if len(shape) < 2:
        raise ValueError(f"{name} must have two axes at least ({name}.shape={shape})")
    return shape


def _broadcast(*leading: Shape) -> Shape:
    try:
        return np.broadcast_shapes(*leading)
    except ValueError:
        shapes = " and ".join(map(str, leading))
        raise ValueError(f"leading axes of the shapes {shapes} do not broadcast together") from None


def _check_broadcasts(inputs: Shapes, scores: Shape) -> None:
    for name in ("mask", "bias"):
        shape = inputs.get(name, ())
        if len(shape) > len(scores) or _broadcast(shape, scores) != scores:
            raise ValueError(f"{name} must broadcast to the scores, whose shape is {scores} ({name}.shape={shape})")


def _axis(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("an axis is expected")
    return value


ATTENDING = ("query", "key", "value")
WEIGHTS = ("w_query", "w_key", "w_value", "w_output")
BIASES = ("b_query", "b_key", "b_value", "b_output")
SIGNATURES = {
    "softmax": Signature(("scores",), ("mask",), {"axis": _axis}, (), _softmax),
    "dot_product": Signature(
        ATTENDING, ("mask", "bias"), {"scale": json.as_finite, "is_causal": json.as_flag}, (), _dot_product
    ),
    "additive": Signature((*ATTENDING, "w_query", "w_key", "w_score"), ("b", "mask"), {}, (), _additive),
    "multi_head": Signature(
        (*ATTENDING, *WEIGHTS),
        (*BIASES, "mask", "bias"),
        {"num_heads": json.as_whole, "is_causal": json.as_flag},
        ("num_heads",),
        _multi_head,
    ),
}
