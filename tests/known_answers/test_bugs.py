"""Each bug that a kernel may have shows in some case, in the arrays that it spoils and in no others."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, Patch, each

import attention_np
from attention_np import dot_product, known_answers
from attention_np.known_answers.examples import all_examples

from .sets import Sets, standard

long = pytest.mark.long


@pytest.fixture(autouse=True)
def no_verdict(monkeypatch: Patch) -> None:
    """Causes are not looked for, which takes longer than all comparisons: that is for test_verdict."""
    monkeypatch.setattr("attention_np.known_answers.verdict.verdict_of", lambda *_: None)


PLANTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no scale": ({"scale": 1.0}, {"output", "logsumexp", "d_query", "d_key", "d_value"}),
    "no scale in one gradient": ({"key_scale": np.float32(1)}, {"d_key"}),
    "no mean in the backward of softmax": ({"mean": False}, {"d_query", "d_key"}),
    "is_causal aligned with the last key": ({"causal": "aligned last"}, {"output"}),
    "a finite number for minus infinity": ({"hidden": -1e4}, {"output"}),
    "an epsilon in the denominator": ({"epsilon": 1e-5}, {"output"}),
    "scores from inputs rounded to 11 bits": ({"products_in": np.float16}, {"output", "d_query", "d_key", "d_value"}),
}


def test_a_kernel_that_takes_rows_to_follow_one_another_is_found_by_views_of_a_fused_projection(answers: Sets) -> None:
    def as_if_contiguous(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        strides = {name: np.empty(x.shape, x.dtype).strides for name, x in inputs.items()}
        return standard(
            {n: np.lib.stride_tricks.as_strided(x, x.shape, strides[n]) for n, x in inputs.items()}, options
        )

    skip = ["hidden non-finite"]
    assert known_answers.verify(as_if_contiguous, answers["dot_product"], skip=skip).ok
    assert known_answers.verify(standard, answers["dot_product"], skip=skip, fused=True).ok
    report = known_answers.verify(as_if_contiguous, answers["dot_product"], skip=skip, fused=True)
    assert {x.case for x in report.failed} >= {"float32/dot_product/causal", "float32/dot_product/outliers"}


@each(("planted", "arrays"), PLANTED.values())
def test_a_planted_bug_is_found(answers: Sets, planted: dict[str, Any], arrays: set[str]) -> None:
    report = known_answers.verify(
        lambda inputs, options: standard(inputs, options, **planted),
        answers["dot_product"],
        dtypes=["float32"],
        skip=["hidden non-finite"],
    )
    assert {x.array for x in report.failed} >= arrays
    assert not report.ok


def otherwise(name: str, change: Callable[[Any], Any]) -> Callable[..., dict[str, Array]]:
    """The op with one input or option read otherwise, or one of its rotary positions; cases without it are skipped."""

    def function(op: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        first, _, second = name.partition(".")
        holder = inputs if first in inputs else options
        if first not in holder or (second and second not in holder[first]):
            raise NotImplementedError
        changed = holder | {first: holder[first] | {second: change(holder[first][second])}} if second else None
        changed = changed or holder | {first: change(holder[first])}
        given = (changed, options) if holder is inputs else (inputs, changed)
        return known_answers.of_op(getattr(attention_np, op))(*given)

    return function


MISREAD: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "a softcap of twice the size": ("dot_product", "softcap", lambda softcap: 2 * softcap),
    "a sink that is scaled as scores are": ("dot_product", "sink", lambda sink: sink * sink.dtype.type(0.25) + 1),
    "slopes that rise with distance": ("dot_product", "slopes", np.negative),
    "buckets of the other direction": ("dot_product", "table", lambda table: np.roll(table, 4, axis=0)),
    "a far bucket that begins elsewhere": ("dot_product", "max_distance", lambda distance: distance + 2),
    "distances that are counted from the key": ("dot_product", "embedding", lambda embedding: embedding[::-1]),
    "an index of keys and queries": ("dot_product", "index", np.transpose),
    "products of queries for those of keys": ("dot_product", "of", lambda of: "query"),
    "a scale of the wrong sign": ("dot_product", "scale", lambda scale: -scale),
    "gates that are no logarithms": ("dot_product", "log_f", np.exp),
    "a window of one key less": ("multi_head", "window", lambda window: (window[0] - 1, window[1])),
    "normalised on the other side of the turn": ("multi_head", "qk_norm_after_rotary", lambda after: not after),
    "the length for the root mean square": ("multi_head", "qk_norm", {"l2": "rms"}.get),
    "neighbours for halves": ("rotary", "interleaved", lambda interleaved: not interleaved),
    "positions that begin at one": ("multi_head", "key_positions", lambda positions: positions + 1),
    "a ramp between whole pairs": ("rotary", "scaling.truncate", lambda truncate: not truncate),
    "a scaling that is left out": ("multi_head", "rotary.scaling", lambda _: {"kind": "linear", "factor": 1.0}),
}


@each(("op", "name", "change"), [*MISREAD.values()][::4], long=[x for i, x in enumerate(MISREAD.values()) if i % 4])
def test_a_convention_that_is_read_otherwise_is_found(
    answers: Sets, op: str, name: str, change: Callable[[Any], Any]
) -> None:
    report = known_answers.verify(partial(otherwise(name, change), op), answers[op], op=op)
    # What has one length is turned and normalised in either order.
    seen = {x.case for x in report} - ({"float32/multi_head/llama-4"} if name == "qk_norm_after_rotary" else set())
    assert seen
    assert seen <= {x.case for x in report.failed}


@each(("op", "name"), [("dot_product", "softcap"), ("multi_head", "window"), ("rotary", "scaling.truncate")])
def test_a_convention_that_is_read_as_it_is_meant_is_not(answers: Sets, op: str, name: str) -> None:
    assert known_answers.verify(partial(otherwise(name, lambda value: value), op), answers[op], op=op).ok


def standard_moving(inputs: dict[str, Array], options: dict[str, Any], wrong: str = "") -> dict[str, Array]:
    """Its second derivatives from their formulas, with something left out."""
    if "v_query" not in inputs or "bias" in inputs:
        raise NotImplementedError
    q, k, v, d_output = (inputs[name] for name in ("query", "key", "value", "d_output"))
    v_q, v_k, v_v = (inputs[f"v_{name}"] for name in ("query", "key", "value"))
    scale, visible = q.dtype.type(q.shape[-1] ** -0.5), inputs.get("mask", np.True_)
    if options.get("is_causal"):
        visible = np.tri(q.shape[-2], k.shape[-2], dtype=np.bool_)
    exponentials = np.exp(np.where(visible, q @ k.swapaxes(-1, -2) * scale, q.dtype.type(-np.inf)))
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / np.where(total > 0, total, 1)

    def from_mean(x: Array) -> Array:
        return weights * (x - (weights * x).sum(axis=-1, keepdims=True))

    d_weights, moved_d_weights = d_output @ v.swapaxes(-1, -2), d_output @ v_v.swapaxes(-1, -2)
    moved_weights = from_mean((v_q @ k.swapaxes(-1, -2) + q @ v_k.swapaxes(-1, -2)) * scale)
    d_scores, moved_d_scores = from_mean(d_weights), from_mean(moved_d_weights)
    if wrong != "the weights stand still":
        mean, moved_mean = ((x * d_weights).sum(axis=-1, keepdims=True) for x in (weights, moved_weights))
        moved_mean = 0 if wrong == "the mean stands still" else moved_mean
        moved_d_scores = moved_d_scores + moved_weights * (d_weights - mean) - weights * moved_mean
    of_keys = 0 if wrong == "the keys stand still" else d_scores @ v_k
    return {
        "d_d_output": moved_weights @ v + (0 if wrong == "the values stand still" else weights @ v_v),
        "hvp_query": (moved_d_scores @ k + of_keys) * scale,
        "hvp_key": (moved_d_scores.swapaxes(-1, -2) @ q + d_scores.swapaxes(-1, -2) @ v_q) * scale,
        "hvp_value": moved_weights.swapaxes(-1, -2) @ d_output,
    }


@each(
    ("wrong", "arrays"),
    [
        ("", set()),
        ("the weights stand still", {"hvp_query", "hvp_key"}),
        ("the mean stands still", {"hvp_query", "hvp_key"}),
        ("the keys stand still", {"hvp_query"}),
        ("the values stand still", {"d_d_output"}),
    ],
)
def test_what_is_left_out_of_a_second_derivative_is_found(answers: Sets, wrong: str, arrays: set[str]) -> None:
    report = known_answers.verify(
        partial(standard_moving, wrong=wrong), answers["dot_product"], skip=["hidden non-finite"]
    )
    assert {x.array for x in report.failed} == arrays
    assert len({x.case for x in report}) == 4


def with_sums_that_are_not_rescaled(tile: int) -> Callable[..., dict[str, Array]]:
    """Online softmax that rescales the output where a later tile of keys has a larger score, but not the sum."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        others = inputs.keys() - {"query", "key", "value", "d_output"}
        if any(not name.startswith("v_") for name in others) or not options.keys() <= {"scale", "is_causal"}:
            raise NotImplementedError
        q, k, v = (inputs[name] for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) * q.dtype.type(options.get("scale", q.shape[-1] ** -0.5))
        if options.get("is_causal"):
            scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, q.dtype.type(-np.inf))
        largest = np.full((*scores.shape[:-1], 1), -np.inf, q.dtype)
        total, output = np.zeros_like(largest), q.dtype.type(0)
        for first in range(0, k.shape[-2], tile):
            part = scores[..., first : first + tile]
            larger = np.maximum(largest, part.max(axis=-1, keepdims=True))
            exponentials = np.exp(part - larger)
            total = total + exponentials.sum(axis=-1, keepdims=True)
            output = output * np.exp(largest - larger) + exponentials @ v[..., first : first + tile, :]
            largest = larger
        return {"output": output / total}

    return function


def with_gradients_of_the_first_queries(tile: int) -> Callable[..., dict[str, Array]]:
    """The gradients of keys and values are summed over the first tile of queries alone."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        first = np.arange(inputs["query"].shape[-2])[:, None] < tile
        some = inputs | {"d_output": np.where(first, inputs["d_output"], inputs["d_output"].dtype.type(0))}
        partial = correct(some, options)
        return correct(inputs, options) | {name: partial[name] for name in ("d_key", "d_value")}

    return function


def with_later_tiles_visible(tile: int) -> Callable[..., dict[str, Array]]:
    """is_causal hides keys within the tile of a query, and no tile after it."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if not options.get("is_causal"):
            raise NotImplementedError
        rows, columns = np.arange(inputs["query"].shape[-2])[:, None], np.arange(inputs["key"].shape[-2])
        visible = (columns <= rows) | (columns // tile > rows // tile)
        rest = {name: value for name, value in options.items() if name != "is_causal"}
        return correct(inputs | {"mask": visible & inputs.get("mask", True)}, rest)

    return function


def with_the_first_features(most: int) -> Callable[..., dict[str, Array]]:
    """Scores are products over so many features at most."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        query = inputs["query"]
        first = np.arange(query.shape[-1]) < most
        return correct(inputs | {"query": np.where(first, query, query.dtype.type(0))}, options)

    return function


correct = known_answers.of_op(dot_product)


TILED: dict[str, tuple[Callable[..., dict[str, Array]], set[str], set[str]]] = {
    "a sum of tiles of 128 keys is not rescaled": (
        with_sums_that_are_not_rescaled(128),
        {"output"},
        {"tiles-of-128", "tiles-of-128-causal"},
    ),
    "a sum of tiles of 256 keys is not rescaled": (
        with_sums_that_are_not_rescaled(256),
        {"output"},
        {"keys-in-tiles-of-256"},
    ),
    "gradients of the first 128 queries only": (
        with_gradients_of_the_first_queries(128),
        {"d_key", "d_value"},
        {"tiles-of-128", "tiles-of-128-causal"},
    ),
    "gradients of the first 256 queries only": (
        with_gradients_of_the_first_queries(256),
        {"d_key", "d_value"},
        {"queries-in-tiles-of-256"},
    ),
    "is_causal with tiles of 128 that are not skipped": (
        with_later_tiles_visible(128),
        {"output", "d_query"},
        {"tiles-of-128-causal"},
    ),
    "features after the first 128 are left out": (
        with_the_first_features(128),
        {"output", "d_key"},
        {"heads-of-160", "values-narrower-than-keys"},
    ),
}


@long
@pytest.mark.parametrize(("function", "arrays", "names"), TILED.values(), ids=TILED)
def test_a_bug_that_only_large_sizes_show_is_found(
    whole: Path, function: Callable[..., dict[str, Array]], arrays: set[str], names: set[str]
) -> None:
    tiled = {example.name for example in all_examples() if "tile" in example.tags}
    for dtype in ("float64", "float32"):
        report = known_answers.verify(function, whole, dtypes=[dtype], skip=["hidden non-finite"])
        assert {x.array for x in report.failed} >= arrays
        assert names <= {x.case.split("/")[-1] for x in report.failed} <= tiled


def recurrence(x: dict[str, Array], options: dict[str, Any], wrong: str = "") -> dict[str, Array]:
    """Linear attention as a loop, with a mistake."""
    if "mask" in x:
        raise NotImplementedError
    state = x.get("initial_state", np.zeros_like(x["d_final_state"]))
    if wrong == "no first state":
        state = np.zeros_like(state)
    outputs = []
    for t in range(x["query"].shape[-2]):
        q, k, v = (x[name][..., t, :] for name in ("query", "key", "value"))
        decay = np.exp(x["log_decay"][..., t, :])[..., None] if "log_decay" in x else np.ones(())
        before = state
        state = state if wrong == "decay last" else decay * state
        if wrong == "read before written":
            outputs.append(np.einsum("...ab,...a->...b", state, q))
        if "beta" in x:
            v = x["beta"][..., t, None] * (v - np.einsum("...ab,...a->...b", state, k))
        if "probe" in x:
            source = state if wrong == "probe behind the decay" else before
            said = np.einsum("...ab,...a->...b", source, x["probe"][..., t, :])
            state = state + x["response"][..., t, :, None] * said[..., None, :]
        state = state + k[..., :, None] * v[..., None, :]
        state = decay * state if wrong == "decay last" else state
        if "bonus" in x:
            source = before if wrong != "bonus behind the decay" else decay * before
            before = source + (x["bonus"] * k)[..., :, None] * v[..., None, :]
        if wrong != "read before written":
            outputs.append(np.einsum("...ab,...a->...b", before if "bonus" in x else state, q))
    scale = options.get("scale", 1.0 if wrong == "no scale" else 0.5)
    return {"output": np.stack(outputs, axis=-2) * scale, "final_state": state}


WRONG_RULES = {  # and the cases that do not show it
    "": None,
    "decay last": {"linear", "delta", "scale-1", "probe"},
    "probe behind the decay": "all but rwkv-7, probe-bonus",
    "bonus behind the decay": "all but rwkv-6, probe-bonus",
    "read before written": set(),
    "no first state": {"linear", "retnet", "scale-1"},
    "no scale": {"scale-1"},
}


@each("wrong", WRONG_RULES)
def test_linear_attention_with_another_rule_is_told_from_the_right_one(answers: Sets, wrong: str) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return recurrence(inputs, options, wrong)

    report = known_answers.verify(function, answers["linear_attention"], op="linear_attention")
    names = {x.case.rpartition("/")[2] for x in report}
    right = {name for name in names if all(x.ok for x in report if x.case.endswith("/" + name))}
    unseen = WRONG_RULES[wrong]
    if isinstance(unseen, str):
        unseen = names - set(unseen.removeprefix("all but ").split(", "))
    assert right == (names if unseen is None else unseen)
