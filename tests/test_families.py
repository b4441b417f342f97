"""Conventions of rotary positions and of states are found by calling them, alone and two together."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from helpers import Array, each

from attention_np import conventions, linear_attention, rotary
from attention_np._conventions.families import FAMILIES, NONE_OF_THESE, ROTARY, STATES
from attention_np._conventions.readings import Reading

FROM_OURS = {
    "batch, heads, queries": (0, 1, 2, 3),
    "batch, queries, heads": (0, 2, 1, 3),
    "queries, batch, heads": (2, 0, 1, 3),
}


def turned(way: Reading) -> Any:
    """Rotary positions from their formulas, in the conventions of `way`."""
    axes = FROM_OURS[way.get("layout", "batch, heads, queries")]

    def turn(x: Array, **options: Any) -> Array:
        y = x.astype(float).transpose(np.argsort(axes)).copy()
        n, d = y.shape[-2:]
        width = options.get("width", d)
        start = d - width if way.get("slice") == "last features" else 0
        positions = options["positions"] if "positions" in options and way.get("positions") != "ignored" else range(n)
        pairs = np.arange(width // 2)
        speeds, amplitude = 10000.0 ** (-2 * pairs / width), 1.0
        if "yarn" in options:
            factor, original = options["yarn"]
            low, high = (width * np.log(original / (2 * np.pi * x)) / (2 * np.log(10000.0)) for x in (32, 1))
            if way.get("yarn's range") != "between pairs":
                low, high = np.floor(low), np.ceil(high)
            share = np.clip(1 - (pairs - low) / (high - low), 0, 1)
            speeds = speeds * share + speeds / factor * (1 - share)
            amplitude = 1.0 if way.get("yarn's amplitude") == "left out" else 1 + 0.1 * np.log(factor)
        angles = np.asarray(positions, float)[:, None] * speeds * (-1 if way.get("turn") == "backwards" else 1)
        pairing = way.get("pairing", "halves")
        one, other = (pairs, pairs + width // 2) if pairing == "halves" else (2 * pairs, 2 * pairs + 1)
        into = (one, other) if pairing != "interleaved, given back in halves" else (pairs, pairs + width // 2)
        cos, sin = amplitude * np.cos(angles), amplitude * np.sin(angles)
        a, b = y[..., start + one], y[..., start + other]
        y[..., start + into[0]], y[..., start + into[1]] = a * cos - b * sin, b * cos + a * sin
        return np.asarray(y.transpose(axes))

    return turn


def kept(way: Reading) -> Any:
    """A state that is written and read, token by token, in the conventions of `way`."""
    axes = FROM_OURS[way.get("layout", "batch, heads, queries")]

    def attend(query: Array, key: Array, value: Array, **options: Any) -> tuple[Array, Array]:
        back = np.argsort(axes)
        q, k, v = (x.astype(float).transpose(back) for x in (query, key, value))
        n, d = k.shape[-2:]
        scale = {"1": 1.0, "1/d_k": 1 / d}.get(way.get("scale", ""), d**-0.5)
        state = np.zeros((*k.shape[:2], d, d))
        if "initial_state" in options and way.get("initial state") != "ignored":
            state = options["initial_state"].astype(float)
            state = state.swapaxes(-1, -2) if way.get("initial state") == "d_v x d_k" else state
        decay = np.ones((*k.shape[:2], n, 1))
        if "log_decay" in options and way.get("decay") != "ignored":
            decay = np.exp(options["log_decay"].astype(float).transpose(back))
        beta = None
        if "beta" in options and way.get("beta") != "ignored":
            beta = options["beta"].astype(float).transpose(np.argsort(axes[:3]))
            beta = 1 / (1 + np.exp(-beta)) if way.get("beta") == "through a sigmoid" else beta
        output = np.zeros(v.shape)
        late = way.get("decay") == "after the write"
        for t in range(n):
            before, k_t, v_t = state, k[..., t, :], v[..., t, :]
            state = state if late else decay[..., t, :, None] * state
            if beta is not None:
                seen = before if way.get("delta rule") == "reads the state before its decay" else state
                v_t = beta[..., t, None] * (v_t - np.einsum("...k,...kv->...v", k_t, seen))
            state = state + k_t[..., :, None] * v_t[..., None, :]
            state = decay[..., t, :, None] * state if late else state
            read = before if way.get("read") == "before the write" else state
            output[..., t, :] = scale * np.einsum("...k,...kv->...v", q[..., t, :], read)
        state = state.swapaxes(-1, -2) if way.get("final state") == "d_v x d_k" else state
        return output.transpose(axes), state

    return attend


KERNELS = {"rotary": turned, "linear_attention": kept}
OTHERS = [(op, x, y) for op, family in FAMILIES.items() for x, values in family.axes.items() for y in values[1:]]


def found(op: str, way: Reading) -> dict[str, str]:
    """What is not as ours."""
    profile = conventions.identify(KERNELS[op](way), op=op, options=FAMILIES[op].options)
    assert profile["precision"] == "float32 or better"
    assert not profile.notes, profile
    return {axis: y for axis, y in profile.values.items() if axis != "precision" and y != FAMILIES[op].axes[axis][0]}


@each("op", FAMILIES)
def test_one_that_follows_our_conventions_has_them_all(op: str) -> None:
    assert found(op, {}) == {}
    profile = conventions.identify(KERNELS[op]({}), op=op, options=FAMILIES[op].options)
    assert profile.values.keys() == {"precision", *FAMILIES[op].axes}
    assert not profile.differs_from("attention_np")


@each(("op", "axis", "value"), OTHERS[::3], long=OTHERS)
def test_a_convention_that_is_another_is_found_and_no_other(op: str, axis: str, value: str) -> None:
    expected = {axis: value}
    if value == "before the write":  # the last token is never read, so neither is whether its state has decayed
        assert found(op, {axis: value}).items() >= expected.items()
    else:
        assert found(op, {axis: value}) == expected


@pytest.mark.long
@each("op", FAMILIES)
def test_two_conventions_that_are_others_are_both_found(op: str) -> None:
    others = [(x, y) for of, x, y in OTHERS if of == op and y != "before the write"]
    tried = 0
    for (one, value), (other, also) in combinations(others, 2):
        if one == other or {one, other} == {"decay", "delta rule"} or ({"beta"} < {one, other} >= {"delta rule"}):
            continue
        assert found(op, {one: value, other: also}) == {one: value, other: also}
        tried += 1
    assert tried > 20


@each("op", FAMILIES)
def test_a_bug_that_is_no_convention_is_none_of_these(op: str) -> None:
    def wrong(*arrays: Array, **options: Any) -> Any:
        right = KERNELS[op]({})(*arrays, **options)
        return right * 1.001 if op == "rotary" else (right[0] * 1.001, right[1])

    profile = conventions.identify(wrong, op=op, options=FAMILIES[op].options)
    assert set(profile.values.values()) == {NONE_OF_THESE}
    assert "no more was asked" in str(profile)


def test_our_own_ops_are_ours() -> None:
    def turn(x: Array, yarn: Any = None, **options: Any) -> Array:
        scaling = None if yarn is None else rotary.yarn(*yarn)
        return rotary.forward(x, scaling=scaling, **options)[0]

    def attend(*arrays: Array, **options: Any) -> Any:
        output, cache = linear_attention.forward(*arrays, **options)
        return output, cache.final_state

    for op, function in (("rotary", turn), ("linear_attention", attend)):
        profile = conventions.identify(function, op=op, options=FAMILIES[op].options)
        assert not profile.differs_from("attention_np")
        assert not profile.notes


def test_the_sentence_says_whose_it_is_but_for_what() -> None:
    profile = conventions.identify(turned({"yarn's range": "between pairs"}), op="rotary", options=["yarn"])
    assert profile.sentence == "Yours is gpt-oss'."
    profile = conventions.identify(turned({"turn": "backwards"}), op="rotary")
    assert "but for the direction of the turn, which is backwards." in profile.sentence
    assert profile["slice"] is None
    assert profile.notes["slice"] == "not asked: width is not among its options"
    with pytest.raises(KeyError, match="there is no axis 'causal': there are layout, pairing, turn"):
        profile["causal"]
    with pytest.raises(ValueError, match="there is no profile of 'PyTorch': there are attention_np, Llama"):
        profile.differs_from("PyTorch")


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="op must be one of dot_product, rotary, linear_attention, not 'softmax'"):
        conventions.identify(turned({}), op="softmax")
    with pytest.raises(ValueError, match="options has 'window': the names are positions, width, yarn"):
        conventions.identify(turned({}), op="rotary", options=["window"])
    with pytest.raises(ValueError, match="backward is asked of dot_product alone"):
        conventions.identify(turned({}), op="rotary", backward=turned({}))
    with pytest.raises(
        ValueError, match="rotary does not take its arrays of float32, float64, float16: ZeroDivisionErr"
    ):
        conventions.identify(lambda x: 1 / 0, op="rotary")


def test_the_alternatives_are_apart_by_more_than_the_bounds_of_every_precision() -> None:
    """Of a state, in float32: what is kept between tokens is not rounded to a shorter format by our bounds."""
    from attention_np._conventions.asking import FORMS
    from attention_np.known_answers.analysis import Analysis

    for family in (ROTARY, STATES):
        first = family.firsts()[0]
        for question in [first, *family.questions()]:
            call = {**first.call[0], **question.call[0]}, question.call[1]
            for axis, form in product(
                question.axes, FORMS.values() if family is ROTARY else [FORMS["float32 or better"]]
            ):
                values = family.axes[axis] if axis != "layout" else ()
                predicted = [family.answers({axis: y}, call, Analysis(form))[question.of] for y in values]
                for a, b in combinations(predicted, 2):
                    apart = np.abs(a.value - b.value) - a.error - b.error
                    assert apart.max() > 0.02, (family.op, axis, form.precision)


def test_a_delta_rule_that_does_not_go_without_its_beta_is_asked_with_it() -> None:
    def attend(*arrays: Array, beta: Array, **options: Any) -> Any:
        return kept({"beta": "through a sigmoid", "scale": "1"})(*arrays, beta=beta, **options)

    profile = conventions.identify(attend, op="linear_attention", options=STATES.options)
    assert profile.differs_from("attention_np") == {
        "beta": ("through a sigmoid", "as it is"),
        "scale": ("1", "1/sqrt(d_k)"),
    }
    assert not profile.notes
