"""One recurrence, three forms, all rules; what is hidden, what is not finite, and what is forgotten."""

import re
from typing import Any

import numpy as np
import pytest
from helpers import Array, Case, assert_close, assert_same_bits, each, leaves, normal, peak_of, run, tangents_of

from attention_np import dot_product, gradcheck, linear_attention
from attention_np._linear_attention import chunks

N, D_K, D_V = 13, 4, 3
RULES: dict[str, tuple[int | None, str]] = {  # how many decays a token has, and what else it does
    "linear": (None, ""),
    "one decay": (1, ""),
    "a decay for each feature": (D_K, ""),
    "delta": (None, "beta"),
    "delta, one decay": (1, "beta"),
    "delta, a decay for each feature": (D_K, "beta"),
    "probe": (None, "probe"),
    "probe, one decay": (1, "probe"),
    "probe, a decay for each feature": (D_K, "probe"),
    "bonus": (None, "bonus"),
    "bonus, one decay": (1, "bonus"),
    "bonus, a decay for each feature": (D_K, "bonus"),
    "probe and bonus, a decay for each feature": (D_K, "probe and bonus"),
}
OF_TOKENS = ("query", "key", "value", "log_decay", "beta", "probe", "response")
SELDOM = (
    "probe",
    "probe, one decay",
    "bonus",
    "bonus, one decay",
    "bonus, a decay for each feature",
)  # whose parts others have together
every_rule = pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.long) if rule in SELDOM else rule for rule in RULES]
)


def case(rule: str, n: int = N, leading: tuple[int, ...] = (2,), strength: float = 1.0, **options: Any) -> Case:
    """Random tokens and a first state; keys of length about one, as the delta rule wants them; probes alike."""
    decays, more = RULES[rule]
    inputs = {"query": normal(0, *leading, n, D_K), "key": normal(1, *leading, n, D_K) / 2}
    inputs["value"] = normal(2, *leading, n, D_V)
    if decays:
        inputs["log_decay"] = -strength * np.abs(normal(3, *leading, n, decays))
    if more == "beta":
        inputs["beta"] = np.random.default_rng(4).uniform(0, 1, (*leading, n))
    inputs["initial_state"] = normal(5, *leading, D_K, D_V)
    if "probe" in more:
        inputs["probe"], inputs["response"] = normal(10, *leading, n, D_K) / 2, normal(11, *leading, n, D_K) / 2
    if "bonus" in more:
        inputs["bonus"] = normal(12, *leading, D_K)
    return Case(linear_attention, inputs, options)


def everything(of: Case) -> dict[str, Array]:
    """Output, last state, and the gradients of a loss of both."""
    output, cache = of.forward()
    d_output, d_final_state = normal(6, *output.shape), normal(7, *cache.final_state.shape)
    gradients = linear_attention.backward(d_output, cache, d_final_state=d_final_state)
    return {"output": output, "final_state": cache.final_state, **dict(leaves(gradients))}


def curvature(of: Case, d_output: Array, still: str = "") -> dict[str, Array]:
    """The double backward of random gradients of the gradients, but for that of one array."""
    vectors = {name: x for name, x in tangents_of(of).items() if name != still}
    d_gradients = linear_attention.Gradients(**dict.fromkeys(linear_attention.Gradients._fields) | vectors)
    d_d_output, gradients = linear_attention.double_backward(d_gradients, d_output, of.forward()[1])
    return {f"second {name}": x for name, x in (("output", d_d_output), *leaves(gradients))}


def assert_alike(actual: dict[str, Array], expected: dict[str, Array], rtol: float) -> None:
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(actual[name], x, rtol)


@every_rule
@each("chunk_size", [1, 2, 3, 5, 12, 13, 14, 100])
def test_in_chunks_of_any_size_the_numbers_are_those_of_steps(rule: str, chunk_size: int) -> None:
    hidden = np.arange(N) % 5 != 2
    for mask in ({}, {"mask": hidden}):
        assert_alike(everything(case(rule, chunk_size=chunk_size, **mask)), everything(case(rule, **mask)), 1e-14)


@every_rule
def test_double_backward_in_chunks_is_that_of_steps(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = np.arange(N) % 5 == 2
    of = case(rule, leading=(2, 1), mask=~hidden)
    of.inputs["query"] = normal(8, 3, N, D_K)
    for name in ("query", "key", "value"):
        of.inputs[name][..., hidden, :] = np.nan
    if "log_decay" in of.inputs:
        of.inputs["log_decay"][..., 6, :1] = -np.inf
    d_output = normal(9, 2, 3, N, D_V)
    expected = {still: curvature(of, d_output, still) for still in ("", *of.inputs)}
    for name in ("step_by_step", "step_by_step_backward"):
        monkeypatch.delattr(linear_attention, name)
    for chunk_size in (1, 5, 13):
        of.options["chunk_size"] = chunk_size
        for still, x in expected.items():
            assert_alike(curvature(of, d_output, still), x, 1e-14)


@every_rule
def test_a_complex_factor_of_the_gradients_of_gradients_of_real_arrays_is_one_of_the_double_backward(rule: str) -> None:
    of, d_output = case(rule, chunk_size=4), normal(9, 2, N, D_V)

    def turned(factor: complex) -> dict[str, Array]:
        vectors = {name: factor * x for name, x in tangents_of(of).items()}
        d_gradients = linear_attention.Gradients(**dict.fromkeys(linear_attention.Gradients._fields) | vectors)
        d_d_output, gradients = linear_attention.double_backward(d_gradients, d_output, of.forward()[1])
        return {"output": d_d_output, **dict(leaves(gradients))}

    assert_alike(turned(1 + 2j), {name: (1 + 2j) * x for name, x in turned(1).items()}, 1e-14)


@every_rule
def test_each_token_decays_corrects_writes_and_reads_in_this_order(rule: str) -> None:
    x = case(rule, leading=()).inputs
    state, outputs = x["initial_state"], []
    for t in range(N):
        before = state
        state = np.exp(x["log_decay"][t])[:, None] * state if "log_decay" in x else state
        told = state.T @ x["key"][t]
        written = x["beta"][t] * (x["value"][t] - told) if "beta" in x else x["value"][t]
        state = state + np.outer(x["key"][t], written)
        if "probe" in x:
            state = state + np.outer(x["response"][t], x["probe"][t] @ before)
        source = before + np.outer(x["bonus"] * x["key"][t], x["value"][t]) if "bonus" in x else state
        outputs.append(0.5 * source.T @ x["query"][t])
    output, cache = linear_attention.forward(**x)
    assert_close(output, np.array(outputs), 1e-15)
    assert_close(cache.final_state, state, 1e-15)


@every_rule
@each("chunk_size", [None, 2])
def test_gradients_are_numerical_ones(rule: str, chunk_size: int | None) -> None:
    of = case(rule, n=5, leading=())
    report = gradcheck.check_op(linear_attention, of.inputs, method="complex-step", chunk_size=chunk_size)
    report.raise_if_failed()
    assert max(entry.max_relative_error for entry in report.inputs) <= 1e-13


@every_rule
@each("chunk_size", [None, 4])
def test_a_sequence_in_two_parts_is_the_whole_gradients_included(rule: str, chunk_size: int | None) -> None:
    whole = case(rule, chunk_size=chunk_size)
    expected, middle = everything(whole), 6
    tokens = {name: x for name, x in whole.inputs.items() if name in OF_TOKENS}
    axis = {name: -1 if name == "beta" else -2 for name in tokens}
    first, second = (
        {name: np.split(x, [middle], axis=axis[name])[part] for name, x in tokens.items()} for part in (0, 1)
    )
    options = whole.options | {name: x for name, x in whole.inputs.items() if name == "bonus"}
    one, cache = linear_attention.forward(**first, initial_state=whole.inputs["initial_state"], **options)
    other, later = linear_attention.forward(**second, initial_state=cache.final_state, **options)
    assert_close(np.concatenate([one, other], axis=-2), expected["output"], 1e-14)
    assert_close(later.final_state, expected["final_state"], 1e-14)
    d_output = normal(6, *expected["output"].shape)
    d_final_state = normal(7, *expected["final_state"].shape)
    behind = linear_attention.backward(d_output[..., middle:, :], later, d_final_state=d_final_state)
    before = linear_attention.backward(d_output[..., :middle, :], cache, d_final_state=behind.initial_state)
    assert_close(before.initial_state, expected["initial_state"], 1e-14)
    for name in tokens:
        joined = np.concatenate([getattr(before, name), getattr(behind, name)], axis=axis[name])
        assert_close(joined, expected[name], 1e-14)
    if "bonus" in options:
        assert_close(before.bonus + behind.bonus, expected["bonus"], 1e-14)


@each("rule", [rule for rule in RULES if RULES[rule][1] == "beta"])
@each("chunk_size", [None, 5])
def test_the_delta_rule_is_a_probe_and_a_response_gradients_included(rule: str, chunk_size: int | None) -> None:
    delta = case(rule, chunk_size=chunk_size)
    x, beta = delta.inputs, delta.inputs["beta"][..., None]
    decay = np.exp(x["log_decay"]) if "log_decay" in x else np.ones(1)
    with_probe = {name: array for name, array in x.items() if name != "beta"}
    with_probe |= {"value": beta * x["value"], "probe": decay * x["key"], "response": -beta * x["key"]}
    actual, expected = everything(Case(linear_attention, with_probe, delta.options)), everything(delta)
    for name in ("output", "final_state", "query", "initial_state"):
        assert_close(actual[name], expected[name], 1e-14)
    assert_close(beta * actual["value"], expected["value"], 1e-14)
    through_key = actual["key"] + decay * actual["probe"] - beta * actual["response"]
    assert_close(through_key, expected["key"], 1e-14)
    of_beta = (x["value"] * actual["value"]).sum(axis=-1) - (x["key"] * actual["response"]).sum(axis=-1)
    assert_close(of_beta, expected["beta"], 1e-14)
    if "log_decay" in x:
        of_decay = decay * x["key"] * actual["probe"]
        alike = x["log_decay"].shape[-1] == 1
        of_decay = of_decay.sum(axis=-1, keepdims=True) if alike else of_decay
        assert_close(actual["log_decay"] + of_decay, expected["log_decay"], 1e-14)


@each("chunk_size", [None, 2, 64])
@each("rule", ["linear", "probe, one decay", "probe, a decay for each feature"])
def test_a_bonus_of_ones_reads_the_state_before_the_decay_and_what_the_value_adds(
    rule: str, chunk_size: int | None
) -> None:
    of = case(rule, chunk_size=chunk_size)
    of.inputs["bonus"] = np.ones(D_K)
    output, _ = of.forward()
    states = [of.inputs["initial_state"]]
    for t in range(N):
        before = {n: x[:, : t + 1] if n in OF_TOKENS else x for n, x in of.inputs.items()}
        states.append(linear_attention.forward(**before)[1].final_state)
    for t in range(N):
        q, k, v = (of.inputs[name][:, t] for name in ("query", "key", "value"))
        source = states[t] + k[:, :, None] * v[:, None, :]
        assert_close(output[:, t], 0.5 * (q[:, None] @ source)[:, 0], 1e-14)


@each("decays", [1, D_K])
def test_a_probe_sees_the_state_before_a_decay_to_nothing_and_loses_no_digits(decays: int) -> None:
    of = case("probe, a decay for each feature" if decays > 1 else "probe, one decay", leading=())
    of.inputs["log_decay"][[2, 3, 7]], of.inputs["log_decay"][5] = -np.inf, np.log(1e-12)
    expected = everything(of)
    state = of.inputs["initial_state"]
    for t in range(3):
        q, k, v, b, a = (of.inputs[name][t] for name in ("query", "key", "value", "response", "probe"))
        left = 0 if t == 2 else np.exp(of.inputs["log_decay"][t])[:, None] * state
        state = left + np.outer(b, a @ state) + np.outer(k, v)
        assert_close(expected["output"][t], 0.5 * q @ state, 1e-14)
    assert (expected["log_decay"][[2, 3, 7]] == 0).all()
    assert all(np.isfinite(x).all() for x in expected.values())
    for chunk_size in (1, 4, 13):
        of.options["chunk_size"] = chunk_size
        assert_alike(everything(of), expected, 1e-14)
        assert_alike(curvature(of, normal(9, N, D_V)), curvature(of._replace(options={}), normal(9, N, D_V)), 1e-14)


def test_a_token_without_a_probe_and_one_with_a_probe_of_zeros_are_one() -> None:
    of = case("a decay for each feature", chunk_size=4)
    expected = everything(of)
    of.inputs["response"] = normal(3, 2, N, D_K)
    of.inputs["probe"] = np.zeros((2, N, D_K))
    actual = everything(of)
    for name, x in expected.items():
        assert_close(actual[name], x, 1e-14)
    assert (actual["response"] == 0).all()
    assert (actual["probe"] != 0).any()


@each("chunk_size", [None, 4])
def test_with_one_decay_it_is_dot_product_attention_with_a_mask_that_multiplies(chunk_size: int | None) -> None:
    x = case("one decay", leading=()).inputs
    del x["initial_state"]
    output, cache = linear_attention.forward(**x, chunk_size=chunk_size)
    _, scores = dot_product.forward(x["query"], x["key"], x["value"])
    segments = np.array(
        [[x["log_decay"][j + 1 : t + 1].sum() if j <= t else -np.inf for j in range(N)] for t in range(N)]
    )
    mask = np.exp(segments)
    weights = scores.scores * mask
    assert_close(output, weights @ x["value"], 1e-14)
    d_output = normal(6, N, D_V)
    d_weights = d_output @ x["value"].T
    gradients = linear_attention.backward(d_output, cache)
    assert_close(gradients.value, weights.T @ d_output, 1e-14)
    assert_close(gradients.query, 0.5 * (mask * d_weights) @ x["key"], 1e-14)
    assert_close(gradients.key, 0.5 * (mask * d_weights).T @ x["query"], 1e-14)
    through = weights * d_weights
    assert_close(gradients.log_decay, np.array([[through[s:, :s].sum()] for s in range(N)]), 1e-14)


@each("chunk_size", [None, 4])
def test_with_a_decay_for_each_feature_it_is_a_sum_over_features_of_such_masks(chunk_size: int | None) -> None:
    x = case("a decay for each feature", leading=()).inputs
    del x["initial_state"]
    output, cache = linear_attention.forward(**x, chunk_size=chunk_size)
    apart = []
    for a in range(D_K):
        one = {name: x[name][:, a : a + 1] for name in ("query", "key", "log_decay")}
        apart.append(linear_attention.forward(**one, value=x["value"], scale=0.5))
    assert_close(output, sum(part for part, _ in apart), 1e-14)
    d_output = normal(6, N, D_V)
    gradients = linear_attention.backward(d_output, cache)
    for name in ("query", "key", "log_decay"):
        own = [getattr(linear_attention.backward(d_output, of), name) for _, of in apart]
        assert_close(getattr(gradients, name), np.concatenate(own, axis=-1), 1e-14)


# What is hidden, what is not there, what is not finite

HIDDEN = np.arange(N) % 4 == 1


@every_rule
@each("poison", [np.nan, np.inf], long=[-np.inf])
@each("chunk_size", [None, 3])
def test_a_padded_token_changes_nothing_whatever_it_holds(rule: str, poison: float, chunk_size: int | None) -> None:
    plain = case(rule, mask=~HIDDEN, chunk_size=chunk_size)
    spoiled = {name: x.copy() for name, x in plain.inputs.items()}
    for name, x in spoiled.items():
        if name in OF_TOKENS:
            x[(..., HIDDEN) if name == "beta" else (..., HIDDEN, slice(None))] = poison
    actual, expected = run(plain._replace(inputs=spoiled)), run(plain)
    for name, x in expected.items():
        assert_same_bits(dict(actual.items())[name], x)
    assert (expected.output[:, HIDDEN] == 0).all()
    assert (expected.jvp[:, HIDDEN] == 0).all()
    for name in OF_TOKENS:
        assert name not in plain.inputs or (expected.gradients[name][:, HIDDEN] == 0).all()
    without = {n: np.delete(x, HIDDEN, axis=1) if n in OF_TOKENS else x for n, x in plain.inputs.items()}
    kept = run(Case(linear_attention, without, {"chunk_size": chunk_size}), run(plain).output[:, ~HIDDEN])
    assert_close(expected.output[:, ~HIDDEN], kept.output, 1e-14)
    assert_close(expected.cache.final_state, kept.cache.final_state, 1e-14)


def test_padding_hands_on_a_state_that_is_not_finite_as_it_is() -> None:
    of = case("delta, one decay", mask=np.arange(N) < 0)
    state = of.inputs["initial_state"]
    state[0, 1], state[1, 2] = np.nan, np.inf
    output, cache = of.forward()
    assert_same_bits(cache.final_state, state)
    assert (output == 0).all()


@every_rule
@each("chunk_size", [None, 3])
def test_without_tokens_the_state_is_the_one_that_came(rule: str, chunk_size: int | None) -> None:
    of = case(rule, n=0, chunk_size=chunk_size)
    output, cache = of.forward()
    assert output.shape == (2, 0, D_V)
    assert_same_bits(cache.final_state, of.inputs["initial_state"])
    assert not np.shares_memory(cache.final_state, of.inputs["initial_state"])
    gradients = linear_attention.backward(output, cache, d_final_state=2 * cache.final_state)
    assert_same_bits(gradients.initial_state, 2 * cache.final_state)
    del of.inputs["initial_state"]
    assert (of.forward()[1].final_state == 0).all()


@every_rule
@each("poison", [np.nan, np.inf], long=[-np.inf])
@each("chunk_size", [None, 3])
def test_what_a_token_spoils_is_seen_from_it_on_and_not_before(
    rule: str, poison: float, chunk_size: int | None
) -> None:
    of = case(rule, chunk_size=chunk_size)
    d_output = normal(2, 2, N, D_V)
    d_output[0, 7:] = 0
    plain, curved = run(of, d_output), curvature(of, d_output)
    for name in ("query", "key", "value"):
        spoiled = of.inputs[name].copy()
        spoiled[0, 7, 1] = poison
        bad = of._replace(inputs={**of.inputs, name: spoiled})
        actual = run(bad, d_output)
        assert_close(actual.output[:, :7], plain.output[:, :7], 1e-14)
        assert_close(actual.output[1], plain.output[1], 1e-14)
        assert not np.isfinite(actual.output[0, 7]).all()
        gradients = curvature(bad, d_output)
        for other in (f"second {name}" for name in of.inputs):
            assert_close(gradients[other], curved[other], 1e-14)
        for other, gradient in plain.gradients.items():
            assert_close(actual.gradients[other], gradient, 1e-14)  # nothing that is spoiled has a gradient


@each("rule", ["one decay", "delta, a decay for each feature"])
@each("chunk_size", [None, 3, 64])
def test_behind_a_decay_to_nothing_nothing_is_left_not_even_nan(rule: str, chunk_size: int | None) -> None:
    of = case(rule, chunk_size=chunk_size)
    of.inputs["log_decay"][:, 7] = -np.inf
    fresh = {n: x[:, 7:] for n, x in of.inputs.items() if n != "initial_state"}
    expected = run(Case(linear_attention, fresh, {"chunk_size": chunk_size}))
    for spoil in (0.0, np.nan, np.inf):
        of.inputs["initial_state"][0, 1] = spoil
        of.inputs["value"][1, 3] = spoil
        actual = run(of, np.concatenate([np.zeros((2, 7, D_V)), normal(2, 2, N - 7, D_V)], axis=1))
        assert_close(actual.output[:, 7:], expected.output, 1e-14)
        again = run(Case(linear_attention, fresh, {"chunk_size": chunk_size}), normal(2, 2, N - 7, D_V))
        for name, gradient in again.gradients.items():
            assert_close(actual.gradients[name][:, 7:], gradient, 1e-14)
            assert (actual.gradients[name][:, :7] == 0).all()
        assert (actual.gradients["log_decay"][:, 7] == 0).all()
        assert (actual.gradients["initial_state"] == 0).all()


# Long sequences


@pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule][0]])
@pytest.mark.parametrize("strength", [1e3, *(pytest.param(x, marks=pytest.mark.long) for x in (1e-6, 1.0, 1e30))])
def test_decays_of_any_strength_lose_nothing_in_single_precision(rule: str, strength: float) -> None:
    of = case(rule, n=700, leading=(), strength=strength)
    of.inputs["log_decay"][::97] = -np.inf
    norm = np.linalg.norm(of.inputs["key"], axis=-1, keepdims=True)
    single = Case(linear_attention, {**of.inputs, "key": of.inputs["key"] / norm}, {}).map(lambda x: x.astype("f4"))
    expected = everything(single.map(lambda x: x.astype(float)))
    for chunk_size in (None, 64):
        for name, x in everything(single._replace(options={"chunk_size": chunk_size})).items():
            assert x.dtype == np.float32
            assert_close(x.astype(float), expected[name], 2e-5)


def test_small_decays_late_in_a_sequence_keep_their_digits() -> None:
    """Differences of sums of all decays so far would have lost them: each sum is about 1e4, known to 1e-3."""
    n = 3000
    x = case("one decay", n=n, leading=()).inputs
    x["log_decay"][:-8], x["log_decay"][-8:] = -4.0, -1e-3
    single = {name: array.astype("f4") for name, array in x.items()}
    exact = linear_attention.forward(**{name: array.astype(float) for name, array in single.items()})[0]
    for chunk_size in (None, 64):
        output, _ = linear_attention.forward(**single, chunk_size=chunk_size)
        assert np.abs(output[-8:] - exact[-8:]).max() <= 1e-6 * np.abs(exact[-8:]).max()


def test_a_sequence_is_the_same_whichever_chunks_are_worked_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    of = case("delta, a decay for each feature", n=50, chunk_size=4, mask=np.arange(50) % 7 != 3)
    d_output = normal(9, 2, 50, D_V)
    whole, curved = everything(of), curvature(of, d_output)
    for span in (1, 8, 24, 60):
        monkeypatch.setattr(chunks, "SPAN", span)
        assert_alike(everything(of), whole, 1e-14)
        assert_alike(curvature(of, d_output), curved, 1e-14)


@each("rule", ["one decay", "delta, a decay for each feature"], long=["linear", "a decay for each feature", "delta"])
@each("heads", [3], long=[1, 2, 5])
def test_the_bits_do_not_depend_on_the_number_of_workers(
    rule: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "LEAST", 0)
    monkeypatch.setattr(chunks, "SPAN", 2 * heads * 32)  # of which each sequence has two
    whole = case(rule, n=40, leading=(2, heads), chunk_size=16, mask=np.arange(40) % 7 != 3)
    cases = [whole, whole.map(lambda x: x.astype("f4").T.copy().T)]  # and single precision, features first in memory
    for shift in range(3):  # each array for all heads, for each sequence, and for each head
        axes = {name: [(1, 1), (2, 1), (heads,)][(k + shift) % 3] for k, name in enumerate(whole.inputs)}
        shared = {name: normal(8, *axes[name], *x.shape[2:]) / 3 for name, x in whole.inputs.items()}
        cases.append(whole._replace(inputs=shared))
    for of in cases:
        results = []
        for workers in (1, 3):
            monkeypatch.setattr(chunks, "as_workers", lambda *_, workers=workers: workers)
            results.append(everything(of) | (curvature(of, normal(9, 2, heads, 40, D_V)) if of is whole else {}))
        for name, x in results[0].items():
            assert_same_bits(results[1][name], x)


def test_memory_is_that_of_the_arrays_and_a_state_for_each_part() -> None:
    n, d = 1024, 64
    x = {name: normal(k, n, d) / 8 for k, name in enumerate(("query", "key", "value"))} | {"beta": np.full(n, 0.5)}
    all_states = n * d * d * 8
    for chunk_size, arrays in ((None, 3), (d, 20)):
        output, cache = linear_attention.forward(**x, chunk_size=chunk_size)
        assert cache.states.nbytes <= all_states / 32
        peak = peak_of(lambda cache=cache, output=output: linear_attention.backward(output, cache))
        assert peak < all_states / 8 + arrays * output.nbytes, peak / output.nbytes
        gradients = linear_attention.backward(output, cache)
        vectors = (gradients, output, cache)
        assert peak_of(lambda vectors=vectors: linear_attention.double_backward(*vectors)) < 3 * peak


# What may be given


def test_a_single_token_is_a_step_of_decoding() -> None:
    of = case("delta, one decay", leading=())
    whole, _ = of.forward()
    state = of.inputs.pop("initial_state")
    for t in range(N):
        token = {name: x[t : t + 1] for name, x in of.inputs.items()} | {"query": of.inputs["query"][t]}
        output, cache = linear_attention.forward(**token, initial_state=state)
        assert_close(output, whole[t], 1e-14)
        assert linear_attention.backward(output, cache).query.shape == (D_K,)
        assert linear_attention.jvp(cache, query=token["query"]).shape == (D_V,)
        state = cache.final_state


@every_rule
def test_leading_axes_broadcast_and_gradients_sum_over_them(rule: str) -> None:
    for chunk_size in (None, 4):
        of = case(rule, leading=(), chunk_size=chunk_size)
        names = [*of.inputs]
        axes = {name: (3, 1) if k % 3 == 0 else (2,) if k % 3 == 1 else () for k, name in enumerate(names)}
        shared = {name: normal(8, *axes[name], *x.shape) / 3 for name, x in of.inputs.items()}
        whole = {name: np.broadcast_to(x, (3, 2, *of.inputs[name].shape)) for name, x in shared.items()}
        actual, expected = everything(of._replace(inputs=shared)), everything(of._replace(inputs=whole))
        assert actual["output"].shape == (3, 2, N, D_V)
        assert actual["final_state"].shape == (3, 2, D_K, D_V)
        for name, x in expected.items():
            summed = x.sum(axis={(3, 1): 1, (2,): 0, (): (0, 1)}[axes[name]]) if name in axes else x
            assert_close(actual[name].reshape(summed.shape), summed, 1e-13)


def zeros(*shape: int) -> Array:
    return np.broadcast_to(0.0, shape)


REFUSED: list[tuple[type[Exception], dict[str, Any], str]] = [
    (ValueError, {"query": np.float64(1)}, "query must have at least two axes, (..., n, d_k) (query.shape=())"),
    (ValueError, {"key": zeros(4)}, "key must have at least two axes, (..., n, features) (key.shape=(4,))"),
    (
        ValueError,
        {"value": zeros(12, 3)},
        "query and value must be of one length: there are 13 queries and 12 values (query.shape=(2, 13, 4), "
        "value.shape=(12, 3))",
    ),
    (ValueError, {"key": zeros(13, 3)}, "key has 3 features but query has 4 (key.shape=(13, 3), query.shape="),
    (
        ValueError,
        {"log_decay": zeros(13)},
        "log_decay must have the shape (..., 13, 1) or (..., 13, 4) (log_decay.shape=",
    ),
    (ValueError, {"log_decay": zeros(13, 3)}, "log_decay must have the shape (..., 13, 1) or (..., 13, 4) (log_decay."),
    (ValueError, {"beta": zeros(13, 1)}, "beta must have the shape (..., 13) (beta.shape=(13, 1))"),
    (
        ValueError,
        {"initial_state": zeros(3, 4)},
        "initial_state must have the shape (..., 4, 3) (initial_state.shape=(3, 4))",
    ),
    (
        ValueError,
        {"beta": zeros(3, 13)},
        "the leading axes of the arrays do not broadcast together (query: (2,), key: (2,), value: (2,), "
        "log_decay: (2,), beta: (3,), initial_state: (2,))",
    ),
    (ValueError, {"beta": None, "probe": zeros(13, 4)}, "probe is given without response: a token has both or none"),
    (ValueError, {"beta": None, "response": zeros(13, 4)}, "response is given without probe: a token has both or none"),
    (
        ValueError,
        {"probe": zeros(13, 4), "response": zeros(13, 4)},
        "probe and beta are both given: beta has the delta rule, whose probe is the key itself",
    ),
    (ValueError, {"bonus": zeros(4)}, "bonus and beta are both given: beta has the delta rule"),
    (
        ValueError,
        {"beta": None, "probe": zeros(13, 3), "response": zeros(13, 4)},
        "probe must have the shape (..., 13, 4) (probe.shape=(13, 3))",
    ),
    (
        ValueError,
        {"beta": None, "probe": zeros(13, 4), "response": zeros(12, 4)},
        "response must have the shape (..., 13, 4) (response.shape=(12, 4))",
    ),
    (ValueError, {"beta": None, "bonus": np.float64(1)}, "bonus must have the shape (..., 4) (bonus.shape=())"),
    (TypeError, {"beta": None, "bonus": np.ones(4, int)}, "bonus must hold floating-point numbers, not int64"),
    (
        ValueError,
        {"beta": None, "bonus": zeros(3, 4)},
        "the leading axes of the arrays do not broadcast together (query: (2,), key: (2,), value: (2,), "
        "log_decay: (2,), initial_state: (2,), bonus: (3,))",
    ),
    (ValueError, {"mask": np.ones((13, 13), bool)}, "mask must broadcast to the tokens, whose shape is (2, 13) (mask."),
    (ValueError, {"chunk_size": 0}, "chunk_size must be at least 1, not 0"),
    (TypeError, {"chunk_size": 1.5}, "chunk_size must be an integer, not float"),
    (ValueError, {"scale": np.inf}, "scale must be finite, not inf"),
    (TypeError, {"beta": np.ones((2, 13), int)}, "beta must hold floating-point numbers, not int64"),
]


@each(("error", "changed", "sentence"), REFUSED)
def test_bad_input_is_refused_with_its_shapes(error: type[Exception], changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(error, match="^" + re.escape(sentence)):
        case("delta, a decay for each feature").forward(**changed)


def test_a_gradient_of_the_last_state_has_its_shape() -> None:
    output, cache = case("linear").forward()
    with pytest.raises(ValueError, match=r"^d_final_state must have the shape \(2, 4, 3\) of what it belongs to"):
        linear_attention.backward(output, cache, d_final_state=np.zeros((4, 3)))
    with pytest.raises(TypeError, match=r"^backward\(\) got an unexpected keyword argument 'd_state'"):
        linear_attention.backward(output, cache, d_state=np.zeros((2, 4, 3)))
