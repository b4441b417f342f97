# ruff: noqa: ARG005 # every gradient takes all inputs
"""What is said of the mistakes of strangers: no false word, a cause for most, and at what cost."""

import re

import numpy as np
import pytest
from helpers import some_of

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis.mistake import Mistake

from .strangers import MISTAKES, STRANGERS, check_of

UNNAMED = "no simple cause"
RIGHTS = [(function, where) for function, stranger in STRANGERS.items() for where in stranger.right]


@pytest.mark.parametrize(("function", "where"), RIGHTS)
def test_nothing_is_said_of_a_right_gradient(function, where):
    found = check(*check_of(function, where, STRANGERS[function].right[where]))[where]
    assert found.ok, found.diagnosis


@pytest.mark.parametrize("mistake", some_of(MISTAKES, 3), ids=lambda m: f"{m.function}, {m.where}: {m.name}")
def test_of_a_mistake_the_cause_is_named_or_nothing_is_said(mistake):
    seed = MISTAKES.index(mistake) % 2  # whatever the cotangent
    found = check(*check_of(mistake.function, mistake.where, mistake.gradient), rng=seed)[mistake.where]
    assert not found.ok
    if mistake.word is None:
        assert found.diagnosis == UNNAMED
    else:
        assert re.search(mistake.word, found.diagnosis), found.diagnosis


def test_most_mistakes_have_their_cause_named():
    named = sum(mistake.word is not None for mistake in MISTAKES)
    assert named >= 0.8 * len(MISTAKES)


def calls_of(function, where, gradient, method, monkeypatch):
    """How often the functions are called by a check, and how often for the words."""
    forward, backward, inputs = check_of(function, where, gradient)
    calls, words = [], []
    explain = Mistake.of

    def starts(evidence):
        words.append(len(calls))
        return explain(evidence)

    monkeypatch.setattr(Mistake, "of", starts)
    arguments = (lambda *a: (calls.append(1), forward(*a))[1], lambda *a: (calls.append(1), backward(*a))[1])
    check(*arguments, inputs, method=method)
    return len(calls), len(calls) - words[0] if words else 0


COSTLY = ("an epsilon forgotten", "d ignored", "n - 1", "not divided")  # to be told from rounding, or to be named


@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize("mistakes", [COSTLY, pytest.param(None, marks=pytest.mark.long)])
def test_what_is_wrong_takes_at_most_five_times_the_calls_of_what_holds(mistakes, method, monkeypatch):
    whole, words = [], []
    for mistake in (m for m in MISTAKES if mistakes is None or m.name in mistakes):
        right = STRANGERS[mistake.function].right.get(mistake.where)
        with monkeypatch.context() as patched:
            holds, _ = calls_of(mistake.function, mistake.where, right, method, patched)
            calls, for_words = calls_of(mistake.function, mistake.where, mistake.gradient, method, patched)
        whole.append(calls / holds)
        words.append(for_words / holds)
    assert max(whole) <= 5
    assert max(words) <= 4
    assert np.median(words) <= 1


@pytest.mark.parametrize(("zeroed", "said"), [(False, ": by as much again: is a buffer not zeroed?"), (True, "")])
def test_a_buffer_that_is_not_zeroed_is_asked_after(zeroed, said):
    d_w = np.zeros((4, 3))

    def backward(d, x, w):
        np.add(d_w * (not zeroed), x.T @ d + zeroed * d_w.sum(), out=d_w)
        return d @ w.T, d_w

    inputs = {name: STRANGERS["dense"].inputs[name] for name in ("x", "w")}
    found = check(np.matmul, backward, inputs)["w"]
    assert found.diagnosis == f"backward gives another gradient when it is called again{said}"


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        (lambda d, x: 3 * x**2, "it is the same whatever the cotangent, as if the loss were a plain sum of the output"),
        (lambda d, x: x**2, "it is the same whatever the cotangent"),
        (lambda d, x: 3 * d + x**2, "it is not zero for a cotangent of zeros: something is added"),
        (lambda d, x: np.maximum(d, 0) * 3 * x**2, "backward is not linear in the gradient of the output"),
        (lambda d, x: 3 * d * x**2 + 0.01 * x, "0.01 times x itself is added to it, whatever the cotangent"),
    ],
)
def test_no_more_is_said_of_a_cotangent_that_is_ignored_or_clipped_than_is_so(claimed, said):
    found = check(*check_of("cube", "x", claimed))["x"].diagnosis
    assert found.startswith(said)
    assert ("plain sum" in found) == ("plain sum" in said)
