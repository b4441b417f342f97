"""What went wrong in public is refused: for each tag that names it, a kernel that does just that."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import known_answers, linear_attention, short_conv
from attention_np.known_answers.examples.flags import WENT_WRONG
from attention_np.known_answers.examples.kernel import kernel_examples

from . import reference
from .sets import written

pytestmark = pytest.mark.long  # fifty digits of thirty cases


def attention(wrong: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Attention of heads from its formulas, forward and backward, with one of them wrong."""
    dtype, q, k = inputs["query"].dtype.type, inputs["query"], inputs["key"]
    v = inputs["value"] if "value" in inputs else k[..., : options["value_width"]]
    group, few = q.shape[-3] // k.shape[-3], k.shape[-3]
    (*_, n, d_k), m, d_o = q.shape, k.shape[-2], inputs["d_output"]
    key, value = (np.repeat(x, group, axis=-3) for x in (k, v))
    scale, softcap = dtype(options.get("scale", d_k**-0.5)), options.get("softcap")
    products = q @ key.swapaxes(-1, -2) * scale
    tanh = np.tanh(products / dtype(softcap)) if softcap else None
    scores, slope = products, dtype(1)
    if tanh is not None:
        scores, slope = dtype(softcap) * tanh, 1 - tanh**2
        if wrong == "softcap without its bound":
            scores, slope = (
                products / dtype(softcap) * tanh,
                (tanh + products / dtype(softcap) * slope) / dtype(softcap),
            )
    scores = scores + inputs.get("bias", dtype(0))
    visible = np.broadcast_to(reference.visible(options, n, m), scores.shape)
    hidden = np.where(visible, scores, dtype(-np.inf))
    sink = None if wrong == "sink that is ignored" else inputs.get("sink")
    ends = hidden if sink is None else np.concatenate([hidden, _column(sink, hidden)], axis=-1)
    logsumexp = np.logaddexp.reduce(ends, axis=-1)
    shift = np.where(np.isfinite(logsumexp), logsumexp, 0)[..., None]
    weights = np.exp(hidden - shift)
    output = weights @ value

    if wrong == "masks of the backward pass":  # they are all seen
        weights = np.exp(scores - np.logaddexp.reduce(scores, axis=-1)[..., None])
    if wrong == "one query far below zero":
        weights = np.exp(hidden) / np.exp(logsumexp)[..., None]
    if wrong == "scatter at -1":  # which is the last key
        told = (np.array(options["indices"]) == -1).any(axis=-1)[:, None] & (np.arange(m) == m - 1)
        weights = np.where(told, np.exp(scores - shift), weights)
    mean = (d_o * output).sum(axis=-1, keepdims=True)
    if wrong == "statistics of a part":
        halves = hidden.reshape(*hidden.shape[:-1], 2, m // 2)
        own = np.exp(halves - np.logaddexp.reduce(halves, axis=-1)[..., None])
        weights = own.reshape(hidden.shape)
    if wrong == "cotangents along the output":
        mean = 0 * mean
    d_lse = inputs.get("d_logsumexp", np.zeros(q.shape[:-1], dtype))
    if wrong == "statistics in another layout":  # (batch, queries, heads) where it is packed
        d_lse = d_lse.swapaxes(-1, -2).reshape(d_lse.shape)
    if wrong == "gradient of the log-sum-exp and the sink":
        d_lse = 0 * d_lse
    d_scores = weights * (d_o @ value.swapaxes(-1, -2) - mean + d_lse[..., None])
    if wrong == "softcap of what is masked":  # the lowest number takes the place of those that are
        slope = 1 - (np.where(visible, scores, np.finfo(dtype).min) / dtype(softcap)) ** 2
    d_products = d_scores * slope * scale
    to_keys, of_values = d_products, weights
    if wrong == "selected keys in common":  # the last query that has a key writes over what others wrote
        last = np.cumsum(visible[..., ::-1, :], axis=-2)[..., ::-1, :] == 1
        to_keys, of_values = np.where(last, to_keys, 0), np.where(last, of_values, 0)
    d_query = d_products @ key
    if wrong == "padded widths" and d_k % 32:
        d_query[..., d_k // 32 * 32 :] = 0  # what no tile wrote
    if wrong == "gradients below the tolerance":
        d_query = 0 * d_query
    d_key, d_value = (
        x.reshape(*x.shape[:-3], few, group, *x.shape[-2:]).sum(axis=-3)
        for x in (to_keys.swapaxes(-1, -2) @ q, of_values.swapaxes(-1, -2) @ d_o)
    )
    found = {"output": output, "logsumexp": logsumexp, "d_query": d_query, "d_key": d_key, "d_value": d_value}
    if "value" not in inputs:
        d_key[..., : v.shape[-1]] += found.pop("d_value")
    forgets = wrong == "gradients of masks and sinks"
    if "bias" in inputs:
        found["d_bias"] = reference.summed_to(d_scores, inputs["bias"].shape) * (not forgets)
    if "sink" in inputs:
        of_sink = np.exp(_column(inputs["sink"], hidden) - shift) * (d_lse[..., None] - mean)
        if sink is None or forgets:
            of_sink = 0 * of_sink
        found["d_sink"] = reference.summed_to(of_sink[..., 0].sum(axis=-1), inputs["sink"].shape)
    return found


def _column(sink: Array, scores: Array) -> Array:
    return np.broadcast_to(sink[..., None, None], (*scores.shape[:-1], 1))


def states(wrong: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Linear attention token by token, with its backward pass, and one of its lines wrong."""
    right = known_answers.of_op(linear_attention)(inputs, options)
    if wrong == "decay of another head":  # the first one's, where the gradient of the last state comes in
        given = inputs | {"log_decay": np.broadcast_to(inputs["log_decay"][:1, :1], inputs["log_decay"].shape)}
        others = known_answers.of_op(linear_attention)(given | {"d_output": 0 * inputs["d_output"]}, options)
        own = known_answers.of_op(linear_attention)(inputs | {"d_output": 0 * inputs["d_output"]}, options)
        names = [name for name, x in right.items() if name.startswith("d_") and x is not None]
        return right | {name: right[name] + others[name] - own[name] for name in names}
    if wrong == "decay that overflows":  # whatever is decayed is so by a quotient of products from the beginning
        total = np.exp(np.cumsum(inputs["log_decay"], axis=-2))
        with np.errstate(all="ignore"):
            poisoned = total * (1 / total) - 1  # zero, or 0 * inf
        return right | {"output": right["output"] + poisoned.sum(axis=-1, keepdims=True)}
    if wrong == "gradient of a strong decay":  # a difference of what is rounded to half
        terms = right["d_log_decay"] + inputs["query"].shape[-1] * np.ones((), inputs["query"].dtype)
        half = ((terms.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
        return right | {"d_log_decay": half - inputs["query"].shape[-1]}
    return right


def convolution(wrong: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """A short convolution whose last state's gradient goes to tokens from the first slot on, however few."""
    right = known_answers.of_op(short_conv)(inputs, options)
    n, before = inputs["x"].shape[-2], len(inputs["w"]) - 1
    if not wrong or n >= before:
        return right
    d_state, d_x = inputs["d_final_state"], right["d_x"].copy()
    d_x += d_state[..., :n, :] - d_state[..., before - n :, :]
    found = right | {"d_x": d_x}
    if "initial_state" in inputs:  # and what stays of the first state is forgotten
        d_first = right["d_initial_state"].copy()
        d_first[..., n:, :] -= d_state[..., : before - n, :]
        found["d_initial_state"] = d_first
    return found


def loss(wrong: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """A cross-entropy whose logarithms are clipped at -100 on the way back."""
    del options
    scores, target, d_output = (inputs[x] for x in ("scores", "target", "d_output"))
    log_weights = scores - np.logaddexp.reduce(scores, axis=-1)[..., None]
    asked = np.where(log_weights < -100, 0, target) if wrong else target
    slopes = np.exp(log_weights) * target.sum(axis=-1, keepdims=True) - asked
    return {
        "output": -(target * log_weights).sum(axis=-1),
        "d_scores": d_output[..., None] * slopes,
        "d_target": -d_output[..., None] * log_weights,
    }


KERNELS: dict[str, Callable[[str, dict[str, Array], dict[str, Any]], dict[str, Array]]] = {
    "attention": attention,
    "linear_attention": states,
    "short_conv": convolution,
    "cross_entropy": loss,
}
FLAGGED = [example for example in kernel_examples() if {*example.tags} & WENT_WRONG.keys()]


@pytest.fixture(scope="module")
def flagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(
        tmp_path_factory.mktemp("flagged"), lambda x: bool({*x.tags} & WENT_WRONG.keys()), ["float32"], kernel_examples
    )


def of_tag(tag: str) -> tuple[str, list[str]]:
    cases = [example for example in FLAGGED if tag in example.tags]
    (op,) = {example.op for example in cases}
    return op, [example.name for example in cases]


@each("op", KERNELS)
def test_the_kernels_are_right_where_nothing_is_wrong(flagged: Path, op: str) -> None:
    known_answers.verify(partial(KERNELS[op], ""), flagged, op=op).raise_if_failed()


@each("tag", WENT_WRONG)
def test_what_went_wrong_in_public_is_refused_by_the_cases_that_name_it(flagged: Path, tag: str) -> None:
    op, names = of_tag(tag)
    others = [example.name for example in FLAGGED if example.op == op and example.name not in names]
    with np.errstate(all="ignore"):
        report = known_answers.verify(partial(KERNELS[op], tag), flagged, op=op, skip=others)
    assert {x.case.rpartition("/")[2] for x in report.failed} >= set(names)
    assert tag in CHANGES_OUTPUT or not [x for x in report.failed if x.array == "output"]


CHANGES_OUTPUT = ("softcap without its bound", "sink that is ignored", "decay that overflows")


def test_a_gradient_that_forgets_the_mean_is_right_for_cotangents_orthogonal_to_the_output(flagged: Path) -> None:
    (case,) = [x for x in known_answers.load(flagged) if x.name.endswith("kernel-cotangents-along-output")]
    inputs, output = dict(case.inputs), case.answers["output"]
    along = (inputs["d_output"] * output).sum(axis=-1, keepdims=True) / (output**2).sum(axis=-1, keepdims=True)
    inputs["d_output"] = inputs["d_output"] - along * output
    right, wrong = (attention(tag, inputs, dict(case.options)) for tag in ("", "cotangents along the output"))
    np.testing.assert_allclose(wrong["d_query"], right["d_query"], atol=2e-5)
