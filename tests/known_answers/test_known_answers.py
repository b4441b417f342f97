"""Known answers: they are right, their bounds are met and tight, and files are written whole."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, Patch, Printed, each, normal, some_of

import attention_np
from attention_np import cases, cli, dot_product, known_answers, softmax
from attention_np.known_answers import bounds, files, settling, truth, verifying, writing
from attention_np.known_answers.examples import OPS, TAGS, all_examples
from attention_np.known_answers.formats import DTYPES, FORMATS, Format, dtype_of, to_format

DOCS = Path(__file__).parents[2] / "docs" / "known-answers.md"
EXTENDED = Format(64, -1074, 64, -1022, "")  # the bounds are worked out in float64, and so have its range
SMALL = [example for example in all_examples() if "tile" not in example.tags and example.name != "long"]
EPSILON = np.finfo(float).eps
FEW = {
    "softmax": ["rows", "tangents-mask"],
    "dot_product": ["plain", "one-key", "padding", "nothing-visible", "nan-without-gradient", "tangents-plain"],
    "additive": ["plain"],
    "multi_head": ["self-attention"],
    "linear_attention": ["kda", "padding"],
    "rms_norm": ["gain"],
    "layer_norm": ["gain"],
    "rotary": ["positions"],
}
OF_ROWS = ("rms_norm", "layer_norm", "rotary")  # without scores, and so without a log-sum-exp
BESIDE: dict[str, set[str]] = {"linear_attention": {"final_state"}} | {op: set() for op in OF_ROWS}  # the output
Sets = dict[str, Path]  # of each op
long = pytest.mark.long


def written(folder: Path, chosen: Callable[[Any], bool], dtypes: Sequence[str]) -> Path:
    """A set of some of the cases."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "all_examples", lambda: [example for example in all_examples() if chosen(example)])
        known_answers.write(folder / "set", dtypes=dtypes)
    return folder / "set"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """The small cases in one dtype, in a set for each op: a manifest of all is long, and read by each test."""
    folder = tmp_path_factory.mktemp("answers")
    sets = {op: written(folder / op, lambda x, op=op: x.op == op and "tile" not in x.tags, ["float32"]) for op in OPS}
    return sets | {"blockwise": sets["dot_product"]}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of them in each."""
    return written(tmp_path_factory.mktemp("few"), lambda example: example.name in FEW[example.op], DTYPES)


@pytest.fixture
def small(answers: Sets, tmp_path: Path) -> Path:
    """A set of its own, of softmax in float32."""
    return Path(shutil.copytree(answers["softmax"], tmp_path / "small"))


@pytest.mark.parametrize("op", [*OPS, "blockwise"])
@pytest.mark.parametrize(
    ("name", "dtypes"), [("answers", {"float32"}), ("few", set(DTYPES)), pytest.param("whole", set(DTYPES), marks=long)]
)
def test_every_op_gives_its_known_answers(request: pytest.FixtureRequest, name: str, dtypes: set[str], op: str) -> None:
    folder = request.getfixturevalue(name)
    folder = folder[op] if name == "answers" else folder
    report = known_answers.verify(known_answers.of_op(cases.OPS[op]), folder, op=op)
    report.raise_if_failed()
    assert not report.skipped
    assert {x.array for x in report} >= {"output"} | BESIDE.get(op, {"logsumexp"})
    assert {x.case.partition("/")[0] for x in report} == dtypes


def exactly(x: np.longdouble) -> Any:
    """A number of extended precision, which mpmath does not take in all versions, by its two halves."""
    high = float(x)
    return truth.MP.fadd(high, float(x - high), exact=True)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy's longdouble has no 64 bits here")
@each("example", *some_of(SMALL, 16))
def test_the_ops_in_extended_precision_agree_with_fifty_digits(example: Any) -> None:
    exact = truth.answers(example.op, example.inputs, example.options)
    wide = {name: x if x.dtype == np.bool_ else x.astype(np.longdouble) for name, x in example.inputs.items()}
    found = known_answers.of_op(cases.OPS[example.op])(wide, example.options)
    limits = bounds.bounds(example.op, EXTENDED, example.inputs, example.options)
    largest = {name: np.abs(np.where(finite(x), x, 0).astype(float)).max(initial=0) for name, x in exact.items()}
    ordinary = not {"large scores"} & set(example.tags) and example.name != "saturated"
    for name, x in exact.items():
        assert found[name].dtype == np.longdouble
        some = finite(x)
        np.testing.assert_array_equal(found[name][~some], x[~some].astype(float))
        difference = np.abs(np.vectorize(exactly, otypes=[object])(found[name][some]) - x[some]).astype(float)
        size = np.abs(x[some]).astype(float)
        assert (difference <= limits[name][some] + 2 * EXTENDED.unit * size + 1e-300).all()
        if ordinary:
            scale = largest[name] if largest[name] > 1e-30 else max(largest.values())  # what is zero came of these
            assert difference.max(initial=0) <= 2e-18 * scale


def finite(values: Array) -> Array:
    return np.isfinite(values.astype(float))


@each("example", *some_of(SMALL, 11))
def test_the_numbers_whose_errors_are_bounded_are_the_answers(example: Any) -> None:
    exact = truth.answers(example.op, example.inputs, example.options)
    found = bounds.analysed(example.op, FORMATS["float64"], example.inputs, example.options)
    for name, x in exact.items():
        some, expected = finite(x), np.where(finite(x), x, 0).astype(float)
        difference = np.where(some, found[name].value - expected, 0)
        assert (np.abs(difference) <= found[name].error + 4 * EPSILON * np.abs(expected) + 1e-300).all()


@each("example", *some_of(SMALL[::7], 9))
def test_more_digits_change_no_answer(example: Any) -> None:
    errors = bounds.bounds(example.op, FORMATS["float64"], example.inputs, example.options)
    fewer = settling.settled_answers(example.op, example.inputs, example.options, errors)
    more = truth.answers(example.op, example.inputs, example.options, digits=150)
    for name, x in fewer.items():
        a, b = to_format(x, "float64"), to_format(more[name], "float64")
        np.testing.assert_array_equal(a, np.where(np.abs(b) < 1e-140, a, b))
        assert not a[np.abs(b) < 1e-140].any() or "huge" in example.name


def test_a_gradient_that_cancels_to_nothing_is_exactly_zero(answers: Sets) -> None:
    for case in known_answers.load(answers["multi_head"], skip=["sink"]):
        if "b_key" in case.inputs and "rotary" not in case.options:  # all scores of a query move alike
            assert not case.answers["d_b_key"].any()
            assert case.bounds["d_b_key"].any() or "one-key" in case.name


@each("dtype", DTYPES)
def test_rounding_is_to_the_nearest_and_of_two_to_the_even_one(dtype: str) -> None:
    form = FORMATS[dtype]
    some = normal(0, 200) * 2.0 ** np.random.default_rng(1).integers(form.least // 2, 10, 200)
    tiny = np.arange(0, 9) * 2.0 ** (form.least - 2) if form.least > -1070 else np.arange(0, 9) * 5e-324
    numbers = [Fraction(float(x)) for x in (*some, *tiny)]
    numbers += [x * (1 + Fraction(1, 2**k)) for x in numbers[:20] for k in (form.precision, form.precision + 1, 60, 80)]
    with truth.MP.workdps(400):
        exact = np.array([truth.MP.mpf(x.numerator) / x.denominator for x in numbers], object)
        found = to_format(exact, dtype)
    bits = found.view(f"u{found.itemsize}")
    for x, y, pattern in zip(numbers, found, bits, strict=True):
        steps = [
            np.array([int(pattern) + k], bits.dtype).view(found.dtype)[0] for k in (-1, 1) if int(pattern) + k >= 0
        ]
        near = [abs(Fraction(float(z)) - x) for z in steps if np.isfinite(float(z))]
        off = abs(Fraction(float(y)) - x)
        assert all(off <= other for other in near)
        assert off not in near or int(pattern) % 2 == 0


def test_a_number_that_a_dtype_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^an answer is too large for float16$"):
        to_format(np.array([truth.MP.mpf(10) ** 6], object), "float16")


def test_bounds_are_within_a_few_hundred_times_the_usual_error(answers: Sets) -> None:
    ratios = []
    for case in known_answers.load(answers["dot_product"], skip=["large scores"]):
        found = known_answers.of_op(dot_product)(dict(case.inputs), dict(case.options))
        for name, answer in case.answers.items():
            finite = np.isfinite(answer)
            error = np.where(finite, found[name].astype(np.float64) - np.where(finite, answer, 0), 0)
            if error.any():
                ratios.append(np.sqrt(np.mean(case.bounds[name] ** 2) / np.mean(error**2)))
    assert len(ratios) > 100
    assert np.median(ratios) < 200
    assert np.quantile(ratios, 0.95) < 1000


def standard(inputs: dict[str, Array], options: dict[str, Any], **planted: Any) -> dict[str, Array]:
    """Attention from its formulas, with a bug planted."""
    more = {name for name in inputs if name not in ("query", "key", "value", "mask", "d_output") and name[:2] != "v_"}
    if more or options.keys() - {"scale", "is_causal"}:
        raise NotImplementedError
    q, k, v, d_output = (inputs[name] for name in ("query", "key", "value", "d_output"))
    if len({x.shape[:-2] for x in (q, k, v)}) > 1:
        raise NotImplementedError
    rounded, between = planted.get("products_in", q.dtype), planted.get("between", lambda x: x)
    scale = q.dtype.type(options.get("scale", planted.get("scale", q.shape[-1] ** -0.5)))
    visible = np.broadcast_to(inputs.get("mask", np.True_), (*q.shape[:-1], k.shape[-2]))
    if options.get("is_causal"):
        offset = k.shape[-2] - q.shape[-2] if planted.get("causal") == "aligned last" else 0
        visible = visible & np.tri(*visible.shape[-2:], offset, dtype=np.bool_)
    scores = q.astype(rounded).astype(q.dtype) @ k.astype(rounded).astype(q.dtype).swapaxes(-1, -2) * scale
    scores = np.where(visible, scores, q.dtype.type(planted.get("hidden", -np.inf)))
    largest = scores.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = weights.sum(axis=-1, keepdims=True) + q.dtype.type(planted.get("epsilon", 0))
        weights = between(np.where(total > 0, weights / np.where(total > 0, total, 1), 0))
    d_weights = between(d_output @ v.swapaxes(-1, -2))
    mean = (weights * d_weights).sum(axis=-1, keepdims=True) if planted.get("mean", True) else 0
    d_scores = between(weights * (d_weights - mean))
    return {
        "output": weights @ v,
        "logsumexp": np.where(largest > -np.inf, largest + np.log(np.where(total > 0, total, 1)), -np.inf)[..., 0],
        "d_query": d_scores @ k * scale,
        "d_key": d_scores.swapaxes(-1, -2) @ q * planted.get("key_scale", scale),
        "d_value": weights.swapaxes(-1, -2) @ d_output,
    }


PLANTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no scale": ({"scale": 1.0}, {"output", "logsumexp", "d_query", "d_key", "d_value"}),
    "no scale in one gradient": ({"key_scale": np.float32(1)}, {"d_key"}),
    "no mean in the backward of softmax": ({"mean": False}, {"d_query", "d_key"}),
    "is_causal aligned with the last key": ({"causal": "aligned last"}, {"output"}),
    "a finite number for minus infinity": ({"hidden": -1e4}, {"output"}),
    "an epsilon in the denominator": ({"epsilon": 1e-5}, {"output"}),
    "scores from inputs rounded to 11 bits": ({"products_in": np.float16}, {"output", "d_query", "d_key", "d_value"}),
}


def test_a_plain_implementation_gives_the_answers(answers: Sets) -> None:
    report = known_answers.verify(standard, answers["dot_product"], dtypes=["float32"], skip=["hidden non-finite"])
    report.raise_if_failed()
    assert len(report.skipped) < len({x.case for x in report})


@each("dtype", ["float16", "bfloat16"])
def test_what_may_be_rounded_to_a_half_type_between_products_is_within_the_bounds(few: Path, dtype: str) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        single = {name: x if x.dtype == np.bool_ else x.astype(np.float32) for name, x in inputs.items()}
        return standard(single, options, between=lambda x: x.astype(dtype_of(dtype)).astype(np.float32))

    known_answers.verify(function, few, dtypes=[dtype], skip=["hidden non-finite"]).raise_if_failed()


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
        return known_answers.of_op(cases.OPS[op])(*given)

    return function


MISREAD: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "a softcap of twice the size": ("dot_product", "softcap", lambda softcap: 2 * softcap),
    "a sink that is scaled as scores are": ("dot_product", "sink", lambda sink: sink * sink.dtype.type(0.25) + 1),
    "slopes that rise with distance": ("dot_product", "slopes", np.negative),
    "buckets of the other direction": ("dot_product", "table", lambda table: np.roll(table, 4, axis=0)),
    "a far bucket that begins elsewhere": ("dot_product", "max_distance", lambda distance: distance + 2),
    "distances that are counted from the key": ("dot_product", "embedding", lambda embedding: embedding[::-1]),
    "gates that are no logarithms": ("dot_product", "log_f", np.exp),
    "a window of one key less": ("multi_head", "window", lambda window: (window[0] - 1, window[1])),
    "normalised on the other side of the turn": ("multi_head", "qk_norm_after_rotary", lambda after: not after),
    "the length for the root mean square": ("multi_head", "qk_norm", {"l2": "rms"}.get),
    "neighbours for halves": ("rotary", "interleaved", lambda interleaved: not interleaved),
    "positions that begin at one": ("multi_head", "key_positions", lambda positions: positions + 1),
    "a ramp between whole pairs": ("rotary", "scaling.truncate", lambda truncate: not truncate),
    "a scaling that is left out": ("multi_head", "rotary.scaling", lambda _: {"kind": "linear", "factor": 1.0}),
}


@each(("op", "name", "change"), MISREAD.values())
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


@each("op", ["softmax", "dot_product", "blockwise", "additive", "multi_head"])
def test_forward_mode_and_hessian_vector_products_give_the_answers(answers: Sets, op: str) -> None:
    module = cases.OPS[op]

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        tangents = {name[2:]: x for name, x in inputs.items() if name.startswith("v_")}
        if not tangents:
            raise NotImplementedError
        given = {name: x for name, x in inputs.items() if name in (*tangents, "mask")}
        if op == "multi_head":
            given, tangents = verifying.with_parameters(given), verifying.with_parameters(tangents)
        _, cache = module.forward(**given, **options)
        found = attention_np.hessian_vector_product(module, inputs["d_output"], cache, **tangents)
        products = verifying.without_parameters(found)
        return {"d_d_output": module.jvp(cache, **tangents), **{f"hvp_{name}": x for name, x in products.items()}}

    known_answers.verify(function, answers[op], op=op).raise_if_failed()


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


def test_a_report_begins_with_how_many_cases_were_checked(small: Path) -> None:
    def one_case(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        if inputs["scores"].shape != (1, 1000):
            raise NotImplementedError
        return known_answers.of_op(softmax)(inputs, options)

    report = known_answers.verify(one_case, small, op="softmax")
    assert report.ok
    assert str(report).splitlines()[:2] == ["1 of 17 cases were checked, 16 skipped", ""]
    report = known_answers.verify(known_answers.of_op(softmax), small, op="softmax")
    assert str(report).splitlines()[0] == "17 of 17 cases were checked, 0 skipped"


def test_a_report_says_where_by_how_much_and_what_it_looks_like(answers: Sets) -> None:
    def missing_scale(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return standard(inputs, options, key_scale=np.float32(1))

    report = known_answers.verify(missing_scale, answers["dot_product"], skip=["hidden non-finite"])
    wrong = report["plain", "d_key"]
    assert wrong.note == "it is 2.23607 times the answer throughout"
    assert wrong.error > 1e4
    text = str(report)
    assert re.search(r"float32  output +\d+ +\d+ +0\.\d+ +dot_product/", text)
    assert re.search(
        r"float32/dot_product/plain: d_key is wrong in 60 of 60 entries\n    at \[\d, \d, \d\] it is", text
    )
    assert "cases were skipped: float32/dot_product/" in text
    with pytest.raises(known_answers.KnownAnswerError, match=r"^\d+ arrays are not the known answers\n"):
        report.raise_if_failed()
    assert report["plain", "output"].ok
    with pytest.raises(KeyError, match="d_bias was not compared"):
        report["plain", "d_bias"]


def changed(few: Path, change: Callable[[Array], Array], case: str = "plain", dtype: str = "float32") -> Any:
    """The comparison of an output that was changed."""

    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        return {"output": change(dot_product.forward(**arguments(inputs), **options)[0])}

    return known_answers.verify(function, few, dtypes=[dtype])[case, "output"]


def arguments(inputs: dict[str, Array]) -> dict[str, Array]:
    return {name: x for name, x in inputs.items() if name != "d_output" and not name.startswith("v_")}


def with_entry(number: float) -> Callable[[Array], Array]:
    def change(x: Array) -> Array:
        x[(0,) * x.ndim] = number
        return x

    return change


def test_what_is_wrong_is_told_in_a_sentence(few: Path) -> None:
    assert changed(few, with_entry(np.nan)).note == "it is NaN in 1 entry where the answer is not"
    assert changed(few, with_entry(np.inf)).note == "it is infinite in 1 entry where the answer is not"
    assert changed(few, lambda x: 0 * x, "one-key").note == "it is zero throughout"
    assert changed(few, lambda x: x.T).note == "its shape is (3, 4, 2), and that of the answer is (2, 4, 3)"
    assert "agrees to 1" in changed(few, lambda x: x.astype(np.float16)).note
    assert changed(few, np.nan_to_num, "nan-without-gradient").note.startswith("it is finite in 6 entries")
    nothing = changed(few, lambda x: x + np.float32(1e-30), "nothing-visible")
    assert nothing.note == "it is not exactly zero in 24 entries that nothing has an influence on"
    assert changed(few, lambda x: x).note is None


def test_one_wrong_entry_is_found_and_is_the_worst(few: Path) -> None:
    found = changed(few, lambda x: x + np.where(np.arange(x.size).reshape(x.shape) == 7, np.float32(1e-5), 0))
    assert (found.ok, found.wrong, found.worst_index) == (False, 1, (0, 2, 1))
    assert found.found - found.answer == pytest.approx(1e-5, rel=0.1)


def test_a_wider_result_is_compared_as_it_is(few: Path) -> None:
    assert changed(few, lambda x: x.astype(np.float64), dtype="float16").ok
    assert changed(few, lambda x: x.astype(np.longdouble)).ok
    assert not changed(few, lambda x: x.astype(np.longdouble) * (1 + 1e-4)).ok


def test_what_a_function_writes_to_its_inputs_harms_no_answer(few: Path) -> None:
    def function(inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
        output, _ = dot_product.forward(**arguments(inputs), **options)
        for x in inputs.values():
            x[...] = 0
        return {"output": output}

    assert known_answers.verify(function, few, dtypes=["float32"]).ok


@each(
    ("returned", "error", "message"),
    [
        (np.zeros(3), TypeError, r"^the function must return a dictionary of arrays, .* not ndarray"),
        (
            {"d_keys": np.zeros(3)},
            ValueError,
            r"^the function returned d_keys, which float32/softmax/rows has no answer",
        ),
        ({}, ValueError, r"^the function returned no array for float32/softmax/rows"),
        ({"output": None}, ValueError, r"^the function returned no array"),
        (
            {"output": np.zeros((3, 5), complex)},
            TypeError,
            r"^output must be an array of real numbers, not of complex128",
        ),
        ({"output": "abc"}, TypeError, r"^output must be an array of real numbers"),
    ],
)
def test_what_is_no_answer_is_refused(small: Path, returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        known_answers.verify(lambda *_: returned, small, op="softmax")


def test_a_function_that_implements_no_case_is_told(small: Path) -> None:
    def nothing(inputs: Any, options: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(ValueError, match=r"^nothing was compared: the function skipped all 17 cases$"):
        known_answers.verify(nothing, small, op="softmax")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_exception_of_the_function_is_its_own_and_names_the_case(small: Path) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        known_answers.verify(broken, small, op="softmax")
    assert caught.value.__notes__ == ["in the known answer float32/softmax/rows"]


def test_cases_are_chosen_by_op_dtype_tag_and_name(few: Path, small: Path) -> None:
    assert {case.op for case in known_answers.load(few, op="blockwise")} == {"dot_product"}
    assert {case.dtype for case in known_answers.load(few, dtypes=["bfloat16"])} == {"bfloat16"}
    names = {case.name for case in known_answers.load(few, dtypes=["float32"], skip=["mask", "rows"])}
    assert "float32/multi_head/self-attention" in names
    assert not names & {"float32/softmax/rows", "float32/dot_product/padding"}
    with pytest.raises(ValueError, match=r"holds no known answers of additive$"):
        known_answers.load(small, op="additive")
    with pytest.raises(ValueError, match=r"holds no known answers in float64$"):
        known_answers.load(small, dtypes=["float64"])
    with pytest.raises(ValueError, match="there is no dtype called float8: there are float64"):
        known_answers.load(small, dtypes=["float8"])
    with pytest.raises(TypeError, match="dtypes must be a list of names, not the string 'float32'"):
        known_answers.load(small, dtypes="float32")


def test_the_manifest_describes_every_file(few: Path) -> None:
    manifest = json.loads((few / "manifest.json").read_text(encoding="utf-8"))
    names = {entry["name"] for entry in manifest["cases"]}
    assert len(names) == len(manifest["cases"]) == len(DTYPES) * sum(map(len, FEW.values()))
    assert {entry["file"] for entry in manifest["cases"]} == {
        path.relative_to(few).as_posix() for path in few.rglob("*.safetensors")
    }
    for entry in manifest["cases"]:  # which names and shapes there are is read off the ops, when a set is read
        content = (few / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert entry["description"].endswith(".")
        assert set(entry["tags"]) <= set(manifest["tags"]) <= set(TAGS)
        arrays = files.from_bytes(content)
        assert {name: list(x.shape) for name, x in arrays.items()} == {
            name: tensor["shape"] for name, tensor in entry["tensors"].items()
        }
        answered = {name for name, tensor in entry["tensors"].items() if tensor["role"] == "answer"}
        assert answered == set(entry["largest_bound"])
        assert answered >= {"output"} | BESIDE.get(entry["op"], {"logsumexp"})
        assert all(arrays[name].dtype == dtype_of(entry["dtype"]) for name in answered)


def test_the_cases_cover_what_the_conventions_name(answers: Sets) -> None:
    assert {example.op for example in all_examples()} == set(OPS)
    assert {tag for example in all_examples() for tag in example.tags} == set(TAGS)
    loaded = known_answers.load(answers["dot_product"])
    of = {case.name.removeprefix("float32/dot_product/"): case for case in loaded}
    shapes = {name: (x.inputs["query"].shape, x.inputs["key"].shape, x.inputs["value"].shape) for name, x in of.items()}
    assert any(q[-2] == 1 for q, _, _ in shapes.values())
    assert any(k[-2] == 1 for _, k, _ in shapes.values())
    assert any(q[-2] < k[-2] for q, k, _ in shapes.values())
    assert any(q[-2] > k[-2] for q, k, _ in shapes.values())
    assert any(v[-1] != k[-1] for _, k, v in shapes.values())
    assert np.isnan(of["nan-behind-mask"].inputs["key"]).any()
    assert np.isfinite(of["nan-behind-mask"].answers["d_key"]).all()
    assert np.isneginf(of["bias-minus-infinity"].inputs["bias"]).any()
    assert np.isposinf(of["bias-plus-infinity"].answers["logsumexp"]).sum() == 3 * 2
    assert (of["empty-rows"].answers["logsumexp"] == -np.inf).sum() == 4
    products = of["large-scores"].inputs["query"] @ of["large-scores"].inputs["key"].swapaxes(-1, -2) / np.sqrt(5)
    assert 60 < np.abs(products).max() < 200
    ties = of["tied-largest"]
    scores = ties.inputs["query"] @ ties.inputs["key"].swapaxes(-1, -2)
    assert ((scores == scores.max(axis=-1, keepdims=True)).sum(axis=-1) >= 2).all()


def test_the_tags_of_a_case_say_what_it_holds() -> None:
    for example in all_examples():
        options = example.options | example.options.get("rotary", {})
        held = {tag for tag in ("mask", "bias", "sink") if tag in example.inputs}
        held |= {tag for tag in ("softcap", "scaling") if tag in options}
        held |= {"causal"} if options.get("is_causal") else set()
        assert held == {*example.tags} & {"mask", "bias", "sink", "softcap", "scaling", "causal"}


def test_what_is_hidden_must_be_exactly_zero(few: Path) -> None:
    halves = {case.name: case for case in known_answers.load(few, op="dot_product", dtypes=["float16"])}
    padding = halves["float16/dot_product/padding"]
    assert not padding.bounds["d_key"][1, 4:].any()
    assert padding.bounds["d_key"][1, :4].all()
    assert not halves["float16/dot_product/nothing-visible"].bounds["output"].any()


def test_a_set_is_the_same_bytes_whenever_it_is_written(answers: Sets, tmp_path: Path) -> None:
    how = "ops=['softmax'], dtypes=['float32']"
    program = f"import sys; from attention_np import known_answers as k; k.write(sys.argv[1], {how})"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "again")], check=True)
    for path in (tmp_path / "again").rglob("*.safetensors"):
        assert path.read_bytes() == (answers["softmax"] / path.relative_to(tmp_path / "again")).read_bytes()


def test_an_earlier_set_is_replaced_as_a_whole(small: Path) -> None:
    assert known_answers.write(small, ops=["softmax"], dtypes=["float64"]) == 17
    assert sorted(path.name for path in small.iterdir()) == ["float64", "manifest.json"]
    assert not list(small.parent.glob(".*"))


@pytest.mark.parametrize("name", ["notes.txt", "float32/softmax/extra.safetensors"])
def test_a_directory_that_holds_something_else_is_left_alone(small: Path, name: str) -> None:
    (small / name).write_text("mine", encoding="utf-8")
    before = sorted(small.rglob("*"))
    with pytest.raises(FileExistsError, match=r"it holds something else than an earlier set of known answers$"):
        known_answers.write(small, ops=["softmax"], dtypes=["float64"])
    assert sorted(small.rglob("*")) == before


@pytest.mark.parametrize(
    ("holder", "name", "fails"),
    [
        (files, "to_bytes", lambda _, about: "tangents-mask" in about),  # of the cases, one of the last
        (Path, "rename", lambda path, _: path.name == "new"),  # when all are written
    ],
)
def test_a_write_that_fails_leaves_what_was_there(
    small: Path, monkeypatch: Patch, holder: Any, name: str, fails: Callable[..., bool]
) -> None:
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    right = getattr(holder, name)

    def sometimes(*given: Any) -> Any:
        if fails(*given):
            raise OSError("no space")
        return right(*given)

    monkeypatch.setattr(holder, name, sometimes)
    with pytest.raises(OSError, match="no space"):
        known_answers.write(small, ops=["softmax"], dtypes=["float64"])
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before
    assert not list(small.parent.glob(".*"))


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"it is a file$"):
        known_answers.write(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        known_answers.write(tmp_path / "no" / "such")
    with pytest.raises(ValueError, match=r"^there is no op called dotproduct: there are softmax, dot_product"):
        known_answers.write(tmp_path / "set", ops=["dotproduct"])
    with pytest.raises(TypeError, match=r"^dtypes must be a list of names, not the string 'float32'$"):
        known_answers.write(tmp_path / "set", dtypes="float32")


def test_a_directory_without_a_set_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no known answers: there is no manifest\.json$"):
        known_answers.load(tmp_path)


@pytest.mark.parametrize(
    ("module", "words"), [("mpmath", "mpmath"), ("safetensors", "safetensors"), ("ml_dtypes", "bfloat16")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: Patch, module: str, words: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "safetensors.numpy", raising=False)
    with pytest.raises(ImportError, match=rf"{words}.*: pip install 'attention-np\[answers\]'$"):
        known_answers.write(tmp_path / "set")
    assert cli.main(["known-answers", str(tmp_path / "set")]) == 2
    assert not (tmp_path / "set").exists()


def test_the_command_writes_a_set_and_says_so(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / "set"
    assert cli.main(["known-answers", str(folder), "--op", "softmax", "--dtype", "float32", "--dtype", "float16"]) == 0
    assert capsys.readouterr().out == f"{folder}: 17 cases in float32, float16, described by manifest.json\n"
    assert len(list(known_answers.load(folder, op="softmax"))) == 34


def test_the_command_refuses_a_directory_of_other_things(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    assert cli.main(["known-answers", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("attention-np: cannot write")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert cli.main(["known-answers", str(tmp_path / "set"), "--op", "dotproduct"]) == 2


def block(language: str) -> tuple[str, str]:
    """The code of the page in a language, and what the page shows below it."""
    text = DOCS.read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```\s+```\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found[1], found[2]


@long
def test_the_example_of_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    code, shown = block("python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(DOCS), "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    ratio = r"(?<=float64  output   26     26    )0\.0\d\d"  # each NumPy has its own way to add
    assert re.search(ratio, printed)
    assert re.sub(ratio, "", printed) == re.sub(ratio, "", shown)


def test_the_page_counts_the_cases_right() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for op in OPS:
        assert f"| `{op}` | {sum(example.op == op for example in all_examples())} |" in text


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
        state = state if wrong == "decay last" else decay * state
        if wrong == "read before written":
            outputs.append(np.einsum("...ab,...a->...b", state, q))
        if "beta" in x:
            v = x["beta"][..., t, None] * (v - np.einsum("...ab,...a->...b", state, k))
        state = state + k[..., :, None] * v[..., None, :]
        state = decay * state if wrong == "decay last" else state
        if wrong != "read before written":
            outputs.append(np.einsum("...ab,...a->...b", state, q))
    scale = options.get("scale", 1.0 if wrong == "no scale" else 0.5)
    return {"output": np.stack(outputs, axis=-2) * scale, "final_state": state}


WRONG_RULES = {  # and the cases that do not show it
    "": None,
    "decay last": {"linear", "delta", "scale-1"},
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
    assert right == (names if unseen is None else unseen)
