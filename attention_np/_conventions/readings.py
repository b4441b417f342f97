"""Attention under other conventions than ours: each says how a call is to be read, and what its answers are then.

A *reading* is a dictionary of axes, each with one of its values; an axis that it leaves out is read as here. To read a
call is to change its inputs and options so that our own formulas, in the arithmetic that carries errors along
(:mod:`attention_np.known_answers.analysis`), compute what somebody computes who reads the call so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.known_answers.analysis import Analysis, Computed, exact
from attention_np.known_answers.formats import Format
from attention_np.known_answers.ops import OPS

Reading: TypeAlias = Mapping[str, str]
Call: TypeAlias = tuple[dict[str, Array], dict[str, Any]]  # inputs and options, as those of known answers

SCORE_ROUNDINGS = 4  # of a score to the dtype, where every step is a kernel of its own: product, scale, softcap, bias

AXES: dict[str, tuple[str, ...]] = {  # each with its values, our own first
    "layout": ("batch, heads, queries", "batch, queries, heads", "queries, batch, heads"),
    "keys": ("all", "causal without being asked"),
    "scale": ("1/sqrt(d_k)", "1", "1/d_k", "1/sqrt(d_v)", "ln(2)/sqrt(d_k)"),
    "given scale": ("multiplies", "divides", "on top of 1/sqrt(d_k)", "ignored"),
    "heads": ("consecutive", "tiled"),
    "mask": ("true attends", "true hides", "added as a number", "ignored"),
    "causal": (
        "top-left",
        "bottom-right",
        "top-left, without its own key",
        "top-left, with the next key",
        "keys before hidden",
        "ignored",
    ),
    "window": ("inclusive", "exclusive", "inclusive, and one key more", "exclusive, and one key less", "ignored"),
    "window's right": ("inclusive", "exclusive", "no key after its own", "ignored"),
    "window's alignment": ("top-left", "bottom-right"),
    "bias": ("added", "added before the scale", "subtracted", "ignored"),
    "softcap": ("before mask and bias", "after bias", "after mask", "before the scale", "ignored"),
    "sink": ("as it is", "scaled", "ignored"),
    "logsumexp": ("natural", "base 2", "natural, without the sink", "base 2, without the sink"),
    "empty row": ("zero", "nan", "mean", "as if nothing were hidden"),
    "dropout": ("divided by 1 - p", "as they are", "before the softmax", "ignored"),
}
OF_CASES = {"alignment": ("as it is asked", "ignored")}  # what no function is asked, and cases of kernels have
KNOWN = (  # options of a call that a reading says how to take
    "scale", "softcap", "softcap_after", "is_causal", "window", "alignment", "offset", "dropout_p", "weights_by",
    "bidirectional", "max_distance", "of",
)  # fmt: skip
KEYS_OF_WINDOW = {  # how many more than `left` a query sees, with its own
    "inclusive": 1,
    "exclusive": 0,
    "inclusive, and one key more": 2,
    "exclusive, and one key less": -1,
}
BEHIND_CAUSAL = {"top-left": 0, "top-left, without its own key": -1, "top-left, with the next key": 1}


class StepByStep(Analysis):
    """The rules for attention whose every step rounds to the dtype, its scores too, as eager code does."""

    def __init__(self, form: Format, roundings: int = SCORE_ROUNDINGS) -> None:
        super().__init__(form)
        self.roundings = roundings

    def rounded_scores(self, scores: Computed, products: Computed, bias: Computed | None) -> Computed:
        """To the dtype, step by step."""
        sizes = products.size if bias is None else products.size + np.where(np.isfinite(bias.value), bias.size, 0)
        return Computed(scores.value, scores.error + self.roundings * self.u * sizes)


def answers(
    reading: Reading, inputs: Mapping[str, Array], options: Mapping[str, Any], rules: Analysis
) -> dict[str, Computed]:
    """What a call of attention gives under a reading, each array with the errors that `rules` allow."""
    read, chosen = read_as(reading, inputs, options)
    empty: Array = ~np.asarray(seen_by(read).any(axis=-1))  # (..., n)
    of_empty = reading.get("empty row", "zero")
    if of_empty in ("mean", "as if nothing were hidden") and empty.any():
        shown = seen_by(read) | empty[..., None]
        read["mask"] = shown
        if of_empty == "mean":
            read["query"] = np.where(empty[..., None], 0, read["query"])
    computed = _computed(read, chosen, rules)
    if of_empty == "nan" and empty.any():
        computed["output"] = _at(computed["output"], empty[..., None], np.nan)
    if of_empty == "mean" and empty.any():
        computed["d_query"] = _at(computed["d_query"], empty[..., None], 0)
    computed |= _gradients_as_called(computed, inputs, options, read, reading)
    of_logsumexp = reading.get("logsumexp", "natural")
    if "logsumexp" not in computed:  # weights that are not by softmax have none
        return computed
    sink_counts = "sink" in read and "without the sink" not in of_logsumexp
    if "sink" in read and not sink_counts:
        rest = {name: x for name, x in read.items() if name != "sink"}
        computed["logsumexp"] = _computed(rest, chosen, rules)["logsumexp"]
    if of_empty in ("zero", "nan") and not sink_counts:
        computed["logsumexp"] = _at(computed["logsumexp"], empty, -np.inf)
    if "base 2" in of_logsumexp:
        computed["logsumexp"] = rules.times(computed["logsumexp"], rules.number(1 / math.log(2)))
    return computed


def _computed(inputs: Mapping[str, Array], options: Mapping[str, Any], rules: Analysis) -> dict[str, Computed]:
    clean = {name: x if x.dtype == np.bool_ else exact(np.asarray(x, np.float64)) for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        computed: dict[str, Computed] = OPS["dot_product"](rules, clean, options)
    return computed


def _at(x: Computed, some: Array, value: float) -> Computed:
    return Computed(np.where(some, value, x.value), np.where(some, 0, x.error))


def seen_by(inputs: Mapping[str, Array]) -> Array:
    """Who attends to whom by a call that has been read, (..., n, m)."""
    query, key, bias = inputs["query"], inputs["key"], inputs.get("bias")
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    shape = (*leading, query.shape[-2], key.shape[-2])
    visible: Array = np.broadcast_to(inputs.get("mask", np.True_), shape)
    if bias is not None:
        visible = np.logical_and(visible, bias != -np.inf)
    return visible


def read_as(reading: Reading, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> Call:
    """The call that we would have to be given, to compute what somebody computes who reads this one so."""
    if odd := [name for name in options if name not in KNOWN]:
        raise ValueError(f"no reading knows of {', '.join(odd)}")
    read, chosen = dict(inputs), dict(options)
    for one in (_heads, _dropout, _visible, _scale, _mask, _bias, _softcap, _sink):
        one(reading, read, chosen)
    return read, chosen


def _heads(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    del chosen
    heads, few = (read[name].shape[-3] if read[name].ndim > 2 else 1 for name in ("query", "key"))
    if few in (1, heads) or heads % few:
        return
    order = _order(heads, few, reading)
    read |= {name: np.take(read[name], order, axis=-3) for name in ("key", "value")}


def _order(heads: int, few: int, reading: Reading) -> Array:
    """Which head of keys each head of queries has."""
    each = np.arange(heads)
    return each % few if reading.get("heads") == "tiled" else each // (heads // few)


def _dropout(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    """Which weights are kept, and what they are divided by."""
    how = reading.get("dropout", "divided by 1 - p")
    if "kept" not in read or how == "divided by 1 - p":
        return
    chosen["dropout_p"] = 0.0
    if how != "as they are":
        kept = read.pop("kept")
        del chosen["dropout_p"]
        if how == "before the softmax":
            chosen["rules"] = kept


def _visible(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    """The causal rule and the window, which become a mask."""
    n, m = read["query"].shape[-2], read["key"].shape[-2]
    ahead = np.arange(m) - np.arange(n)[:, None]  # of the query, in positions
    rules = [chosen.pop("rules")] if "rules" in chosen else []
    causal = reading.get("causal", "top-left")
    first = chosen.pop("offset", 0)  # where the first query is aligned with the keys
    if chosen.pop("alignment", "") == "bottom-right" and reading.get("alignment") != "ignored":
        first += m - n
    if chosen.get("is_causal") and causal not in ("top-left", "ignored"):
        shift = m - n if causal == "bottom-right" else first + BEHIND_CAUSAL.get(causal, 0)
        rules.append(ahead >= 0 if causal == "keys before hidden" else ahead <= shift)
    elif (chosen.get("is_causal") and causal == "top-left") or reading.get("keys", "all") != "all":
        rules.append(ahead <= first)
    chosen.pop("is_causal", None)
    if "window" in chosen:
        left, right = chosen.pop("window")
        past = ahead - (m - n if reading.get("window's alignment") == "bottom-right" else first)
        of_left, of_right = reading.get("window", "inclusive"), reading.get("window's right", "inclusive")
        if of_left != "ignored" and left is not None:
            rules.append(past > -left - KEYS_OF_WINDOW[of_left])
        if of_right != "ignored" and right is not None:
            most = 0 if of_right == "no key after its own" else right - (of_right == "exclusive" and right > 0)
            rules.append(past <= most)
    if rules:
        chosen["rules"] = np.logical_and.reduce(np.broadcast_arrays(*rules))


def _mask(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    rules, polarity = chosen.pop("rules", np.True_), reading.get("mask", "true attends")
    mask = read.pop("mask", None)
    if mask is not None and polarity == "added as a number":
        read["bias"] = mask.astype(np.float64) + read.get("bias", 0)
    elif mask is not None and polarity != "ignored":
        rules = rules & (mask if polarity == "true attends" else ~mask)
    if rules.ndim:
        read["mask"] = rules


def _scale(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    d_k, d_v = read["query"].shape[-1], read["value"].shape[-1]
    plain = scale_called(reading.get("scale", "1/sqrt(d_k)"), d_k, d_v)
    scale, how = chosen.get("scale"), reading.get("given scale", "multiplies")
    if scale is None or how == "ignored":
        chosen["scale"] = plain
    elif how != "multiplies":
        chosen["scale"] = 1 / scale if how == "divides" else scale / math.sqrt(d_k)


def scale_called(name: str, d_k: int, d_v: int) -> float:
    """A scale by its name, or by the number that it is."""
    of_log2 = math.log(2) * d_k**-0.5  # powers of two in the place of powers of e
    return dict(zip(AXES["scale"], (d_k**-0.5, 1.0, 1 / d_k, d_v**-0.5, of_log2), strict=True)).get(name) or float(name)


def _bias(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    how = reading.get("bias", "added")
    if "bias" not in read or how == "added":
        return
    if how == "ignored":
        del read["bias"]
    else:
        read["bias"] = read["bias"] * (-1 if how == "subtracted" else chosen["scale"])


def _softcap(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    del read
    order = reading.get("softcap", "before mask and bias")
    if "softcap" not in chosen:
        return
    if order == "ignored":
        del chosen["softcap"]
    elif order == "before the scale":
        chosen["softcap"] = chosen["softcap"] * chosen["scale"]
    elif order != "before mask and bias":
        chosen["softcap_after"] = order.removeprefix("after ")


def _sink(reading: Reading, read: dict[str, Array], chosen: dict[str, Any]) -> None:
    how = reading.get("sink", "as it is")
    if "sink" in read and how == "ignored":
        del read["sink"]
    elif "sink" in read and how == "scaled":
        read["sink"] = read["sink"] * chosen["scale"]


def _gradients_as_called(
    computed: Mapping[str, Computed],
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    read: Mapping[str, Array],
    reading: Reading,
) -> dict[str, Computed]:
    """The gradients of the inputs as they were given, of those of the inputs as they were read."""
    gradients: dict[str, Computed] = {}
    heads, few = (x["key"].shape[-3] if x["key"].ndim > 2 else 1 for x in (read, inputs))
    if few != heads:
        shared = [np.flatnonzero(_order(heads, few, reading) == head) for head in range(few)]
        for name in ("d_key", "d_value"):
            value, error = (
                np.stack([np.take(x, some, axis=-3).sum(axis=-3) for some in shared], axis=-3)
                for x in (computed[name].value, computed[name].error)
            )
            gradients[name] = Computed(value, error)
    scale = read_as({k: x for k, x in reading.items() if "scale" in k}, inputs, options)[1]["scale"]
    by = {"subtracted": -1.0, "added before the scale": scale, "scaled": scale}
    for name, axis_name in (("bias", "bias"), ("sink", "sink")):
        how = reading.get(axis_name, "")
        if name in inputs and how == "ignored":
            gradients[f"d_{name}"] = exact(np.zeros(inputs[name].shape))
        elif name in inputs and how in by and f"d_{name}" in computed:
            x = computed[f"d_{name}"]
            gradients[f"d_{name}"] = Computed(x.value * by[how], x.error * abs(by[how]))
    return gradients
