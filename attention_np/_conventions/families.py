"""Conventions beside attention: how rotary positions pair and turn features, how a state decays, is written and read.

A family says of an op which readings there are, and with which calls they are told apart, as
:mod:`attention_np._conventions.readings` does for attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attention_np._conventions.asking import FORMS, PERMUTED, TRIED, Answers, RefusedError, distance, holds_all, said
from attention_np._conventions.readings import Call, Reading
from attention_np._lib.arrays import Array
from attention_np.known_answers.analysis import Analysis, Computed
from attention_np.known_answers.bounds import analysed_by
from attention_np.known_answers.formats import Format

NONE_OF_THESE = "none of these"
YARN = 4.0, 4096  # factor and original length, with which a range of pairs begins and ends between two
LAYOUTS = tuple(PERMUTED)


class Question(NamedTuple):
    """A call, and the axes that its answer decides together."""

    axes: tuple[str, ...]
    call: Call
    of: str = "output"  # or "final_state"


class Family(NamedTuple):
    """An op: its axes, the alternatives of each, ours first, and what is asked, in that order."""

    op: str
    arrays: tuple[str, ...]  # by position
    options: tuple[str, ...]  # the names that a function may take
    by_token: tuple[str, ...]  # arrays that have the axes of the layout
    axes: Mapping[str, tuple[str, ...]]
    firsts: Callable[[], list[Question]]  # of which one is asked, the first that a function takes
    questions: Callable[[], list[Question]]  # what is asked then, with the inputs of that one
    answers: Callable[[Reading, Call, Analysis], dict[str, Computed]]


def profile_of(
    family: Family, function: Callable[..., Any], options: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Of each axis the alternative that explains what a function returns, and notes on those that were not asked."""
    reading: dict[str, str] = {}
    notes: dict[str, str] = {}
    for first in family.firsts():
        if {*first.call[0]} & {*family.options} <= {*options}:
            observations, dtype, refusal = _first_observations(family, function, first)
            if observations:
                break
    if not observations:
        raise ValueError(f"{family.op} does not take its arrays of {', '.join(TRIED)}: {refusal}")
    outputs = [observed["output"] for _, observed in observations]
    forms = {name: form for name, form in FORMS.items() if all(holds_all(form, x) for x in outputs)} or FORMS
    precision, form = next(iter(forms.items()))
    reading |= _chosen(family, first, reading, observations, form)
    if not reading:
        notes[first.axes[1]] = "nothing explains its output without options, so no more was asked"
        return dict.fromkeys(first.axes[1:], NONE_OF_THESE), notes
    values = {"precision": precision, **reading}
    for question in family.questions():
        axis = question.axes[0]
        if axis in values:
            continue
        question = question._replace(call=({**first.call[0], **question.call[0]}, question.call[1]))
        taken = [x for x in family.options if x in question.call[0] or x in question.call[1]]
        if missing := [x for x in taken if x not in options]:
            notes[axis] = f"not asked: {' and '.join(missing)} is not among its options"
            continue
        try:
            observed = _returned(family, function, question.call, reading["layout"], dtype)
        except RefusedError as error:
            notes[axis] = f"not asked: it raised {error}"
            continue
        if question.of not in observed:
            notes[axis] = f"it returns no {question.of.replace('_', ' ')}"
            continue
        chosen = _chosen(family, question, reading, [(reading["layout"], observed)], form)
        values |= chosen or dict.fromkeys(question.axes, NONE_OF_THESE)
        reading |= chosen
    return values, notes


def _first_observations(
    family: Family, function: Callable[..., Any], question: Question
) -> tuple[list[tuple[str, Answers]], str, RefusedError | None]:
    """The answers in every layout, in the first dtype that the function takes."""
    refusal, taken, observations = None, TRIED[0], list[tuple[str, Answers]]()
    for dtype, layout in product(TRIED, LAYOUTS):
        if observations and layout == LAYOUTS[0]:
            break
        try:
            observations.append((layout, _returned(family, function, question.call, layout, dtype)))
            taken = dtype
        except RefusedError as error:
            refusal = refusal or error
    return observations, taken, refusal


def _chosen(
    family: Family, question: Question, reading: Reading, observations: Sequence[tuple[str, Answers]], form: Format
) -> dict[str, str]:
    """The alternatives that explain an answer to its bounds, or none."""
    best: dict[str, str] = {}
    nearest = 1.0
    axes = [axis for axis in question.axes if axis != "layout"]
    for layout, observed in observations:
        for combination in product(*(family.axes[axis] for axis in axes)):
            new = dict(zip(axes, combination, strict=True))
            predicted = family.answers({**reading, **new}, question.call, Analysis(form))
            far = distance(observed, predicted, form, (question.of,))
            if far < nearest or (far <= nearest and not best):
                best, nearest = ({"layout": layout} if "layout" in question.axes else {}) | new, far
    return best


def _returned(family: Family, function: Callable[..., Any], call: Call, layout: str, dtype: str) -> Answers:
    """What a function returns for a call, in float64 and in our own layout."""
    inputs, options = call
    axes = PERMUTED[layout]

    def laid(name: str, x: Array) -> Array:
        own = axes if x.ndim == 4 else axes[:3]
        return np.array(x.astype(dtype).transpose(own if name in family.by_token else range(x.ndim)))

    arrays = {name: laid(name, x) for name, x in inputs.items()}
    operands = [arrays.pop(name) for name in family.arrays]
    try:
        with np.errstate(all="ignore"):
            observed = function(*operands, **arrays, **options)
        output, state = observed if isinstance(observed, tuple | list) else (observed, None)
        in_double: Array = np.asarray(output).astype(np.float64).transpose(np.argsort(axes))
        if in_double.shape[:-1] != inputs[family.arrays[0]].shape[:-1]:
            raise ValueError(f"an array of the shape {np.shape(output)} was returned")
    except Exception as error:  # whatever a function does with what it does not take
        raise RefusedError(said(error)) from error
    return {"output": in_double} | ({} if state is None else {"final_state": np.asarray(state).astype(np.float64)})


def _numbers(*shape: int, seed: int) -> Array:
    """Numbers of six bits, which every format holds; products of three of them only float32 does."""
    return np.asarray(np.random.default_rng(seed).integers(-31, 32, shape) / 16)


def _rotary_firsts() -> list[Question]:
    return [Question(("layout", "pairing", "turn"), ({"x": _numbers(2, 3, 8, 16, seed=21)}, {}))]


def _rotary_questions() -> list[Question]:
    x = _numbers(2, 3, 8, 16, seed=21)
    positions = np.array([3.0, 1.0, 4.0, 0.0, 9.0, 2.0, 6.0, 5.0])
    return [
        Question(("positions",), ({"x": x, "positions": positions}, {})),
        Question(("slice",), ({"x": x}, {"width": 8})),
        Question(("yarn's range", "yarn's amplitude"), ({"x": _numbers(1, 1, 64, 64, seed=22)}, {"yarn": YARN})),
    ]


def _rotary_answers(reading: Reading, call: Call, rules: Analysis) -> dict[str, Computed]:
    inputs, call_options = call
    pairing = reading.get("pairing", "halves")
    options: dict[str, Any] = {"interleaved": pairing != "halves", "trailing": reading.get("slice") == "last features"}
    options |= {name: x for name, x in call_options.items() if name == "width"}
    if "yarn" in call_options:
        factor, original = call_options["yarn"]
        whole = reading.get("yarn's range", "of whole pairs") == "of whole pairs"
        options["scaling"] = {"kind": "yarn", "factor": factor, "original_length": original, "truncate": whole}
        if reading.get("yarn's amplitude") == "left out":
            options["scaling"]["attention_factor"] = 1.0
    n = inputs["x"].shape[-2]
    positions = inputs.get("positions", np.arange(n, dtype=np.float64))
    if reading.get("positions") == "ignored":
        positions = np.arange(n, dtype=np.float64)
    if reading.get("turn") == "backwards":
        positions = -positions
    read = {"x": inputs["x"], "positions": positions, "d_output": np.zeros(inputs["x"].shape)}
    output = analysed_by(rules, "rotary", read, options)["output"]
    if pairing == "interleaved, given back in halves":
        width = call_options["width"] if "width" in call_options else inputs["x"].shape[-1]
        start = inputs["x"].shape[-1] - width if options["trailing"] else 0
        order = np.arange(inputs["x"].shape[-1])
        order[start : start + width] = start + np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
        output = Computed(output.value[..., order], output.error[..., order])
    return {"output": output}


def _state_firsts() -> list[Question]:
    """Without options; or, of a delta rule that does not go without its beta, with it."""
    arrays = {name: _numbers(2, 3, 6, 8, seed=24 + i) for i, name in enumerate(("query", "key", "value"))}
    axes = "layout", "scale", "read"
    return [Question(axes, (arrays, {})), Question((*axes, "beta"), (arrays | {"beta": _gates()["beta"]}, {}))]


def _state_questions() -> list[Question]:
    gates = _gates()
    log_decay = {"log_decay": gates["log_decay"]}
    return [
        Question(("decay",), (log_decay, {})),
        Question(("beta",), ({"beta": gates["beta"]}, {})),
        Question(("delta rule",), (gates, {})),
        Question(("initial state",), ({"initial_state": _numbers(2, 3, 8, 8, seed=27)}, {})),
        Question(("final state",), ({}, {}), "final_state"),
    ]


def _gates() -> dict[str, Array]:
    """Quarters, which every format holds."""
    rng = np.random.default_rng(23)
    return {"log_decay": -rng.integers(1, 5, (2, 3, 6, 1)) / 4, "beta": rng.integers(1, 4, (2, 3, 6)) / 4}


def _state_answers(reading: Reading, call: Call, rules: Analysis) -> dict[str, Computed]:
    read: dict[str, Array] = dict(call[0])
    d_k, d_v = read["key"].shape[-1], read["value"].shape[-1]
    scales = dict(zip(STATES.axes["scale"], (d_k**-0.5, 1.0, 1 / d_k), strict=True))
    options = {"scale": scales[reading.get("scale", "1/sqrt(d_k)")]}
    decay = reading.get("decay", "before the write")
    if decay == "ignored":
        read.pop("log_decay", None)
    if "log_decay" in read and decay == "after the write":  # what is written at a token has decayed when it is read
        each = read["log_decay"]
        read["query"] = read["query"] * np.exp(each)
        read["log_decay"] = np.concatenate([np.zeros_like(each[..., :1, :]), each[..., :-1, :]], axis=-2)
    if reading.get("beta") == "ignored":
        read.pop("beta", None)
    elif reading.get("beta") == "through a sigmoid" and "beta" in read:
        read["beta"] = 1 / (1 + np.exp(-read["beta"]))
    if {"beta", "log_decay"} <= read.keys() and reading.get("delta rule") == "reads the state before its decay":
        beta = read.pop("beta")[..., None]
        read |= {"probe": read["key"], "response": -beta * read["key"], "value": beta * read["value"]}
    if reading.get("read") == "before the write":
        read["bonus"] = np.zeros(d_k)
    if reading.get("initial state") == "d_v x d_k" and "initial_state" in read:
        read["initial_state"] = read["initial_state"].swapaxes(-1, -2)
    elif reading.get("initial state") == "ignored":
        read.pop("initial_state", None)
    read["d_output"] = np.zeros((*read["query"].shape[:-1], d_v))
    read["d_final_state"] = np.zeros((*read["query"].shape[:-2], d_k, d_v))
    computed = analysed_by(rules, "linear_attention", read, options)
    if reading.get("final state") == "d_v x d_k":
        state = computed["final_state"]
        computed["final_state"] = Computed(state.value.swapaxes(-1, -2), state.error.swapaxes(-1, -2))
    return computed


ROTARY = Family(
    "rotary",
    ("x",),
    ("positions", "width", "yarn"),
    ("x",),
    {
        "layout": LAYOUTS,
        "pairing": ("halves", "interleaved", "interleaved, given back in halves"),
        "turn": ("forwards", "backwards"),
        "positions": ("as they are", "ignored"),
        "slice": ("first features", "last features"),
        "yarn's range": ("of whole pairs", "between pairs"),
        "yarn's amplitude": ("multiplies", "left out"),
    },
    _rotary_firsts,
    _rotary_questions,
    _rotary_answers,
)
STATES = Family(
    "linear_attention",
    ("query", "key", "value"),
    ("log_decay", "beta", "initial_state"),
    ("query", "key", "value", "log_decay", "beta"),
    {
        "layout": LAYOUTS,
        "scale": ("1/sqrt(d_k)", "1", "1/d_k"),
        "read": ("after the write", "before the write"),
        "decay": ("before the write", "after the write", "ignored"),
        "beta": ("as it is", "through a sigmoid", "ignored"),
        "delta rule": ("reads the decayed state", "reads the state before its decay"),
        "initial state": ("d_k x d_v", "d_v x d_k", "ignored"),
        "final state": ("d_k x d_v", "d_v x d_k"),
    },
    _state_firsts,
    _state_questions,
    _state_answers,
)
FAMILIES = {family.op: family for family in (ROTARY, STATES)}
