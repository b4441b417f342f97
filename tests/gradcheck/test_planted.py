# ruff: noqa: ARG005 # every gradient takes all inputs
"""What is said of the bugs planted in gradients: no false word, a cause for most, and at what cost."""

import re

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis.mistake import Mistake

from .planted import FUNCTIONS, PLANTED
from .programs import normal

METHODS = pytest.mark.parametrize("method", ["auto", pytest.param("central", marks=pytest.mark.long)])


@METHODS
@each("name", FUNCTIONS)
def test_the_functions_are_correct_and_nothing_is_said_of_them(name, method):
    report = check(*FUNCTIONS[name], method=method)
    assert report.ok, str(report)
    for entry in report:
        assert entry.diagnosis is None
        assert entry.max_relative_error <= (1e-7 if entry.method == "central" else 1e-13)


@METHODS
@each("bug", *some_of(PLANTED, 6))
def test_a_check_finds_a_bug_in_its_input_alone_and_names_its_cause_or_nothing(bug, method):
    seed = PLANTED.index(bug) % 2  # whatever the cotangent
    report = check(bug.forward, bug.wrong_backward, bug.inputs, method=method, rng=seed)
    assert [entry.name for entry in report if not entry.ok] == [bug.where], str(report)
    diagnosis = report[bug.where].diagnosis
    if bug.expected is None:
        assert diagnosis == "no simple cause"
    else:
        assert re.search(bug.expected, diagnosis), diagnosis


def test_most_mistakes_have_their_cause_named():
    named = sum(bug.expected is not None for bug in PLANTED)
    assert named >= 0.8 * len(PLANTED)


def test_two_gradients_that_are_swapped_are_each_the_others():
    forward, backward, inputs = FUNCTIONS["square dense"]
    report = check(forward, lambda *question: backward(*question)[::-1], inputs)
    assert [entry.diagnosis for entry in report] == [
        f"the gradients of {x} and {y} are swapped: each is the other's" for x, y in ("xw", "wx")
    ]


def calls_of(forward, backward, inputs, method, monkeypatch):
    """How often the functions are called by a check, and how often for the words."""
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
@pytest.mark.parametrize("names", [COSTLY, pytest.param(("",), marks=pytest.mark.long)])
def test_what_is_wrong_takes_at_most_five_times_the_calls_of_what_holds(names, method, monkeypatch):
    whole, words = [], []
    for bug in (bug for bug in PLANTED if bug.name.endswith(names)):
        with monkeypatch.context() as patched:
            holds, _ = calls_of(bug.forward, bug.backward, bug.inputs, method, patched)
            calls, for_words = calls_of(bug.forward, bug.wrong_backward, bug.inputs, method, patched)
        whole.append(calls / holds)
        words.append(for_words / holds)
    assert max(whole) <= 5
    assert max(words) <= 4
    assert np.median(words) <= 1


@each(("zeroed", "said"), [(False, ": by as much again: is a buffer not zeroed?"), (True, "")])
def test_a_buffer_that_is_not_zeroed_is_asked_after(zeroed, said):
    d_w = np.zeros((4, 3))

    def backward(d, x, w):
        np.add(d_w * (not zeroed), x.T @ d + zeroed * d_w.sum(), out=d_w)
        return d @ w.T, d_w

    found = check(np.matmul, backward, {"x": normal(5, 4), "w": normal(4, 3, seed=1)})["w"]
    assert found.diagnosis == f"backward gives another gradient when it is called again{said}"


@each(
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
    forward, _, inputs = FUNCTIONS["cube"]
    found = check(forward, claimed, inputs)["x"].diagnosis
    assert found.startswith(said)
    assert ("plain sum" in found) == ("plain sum" in said)
