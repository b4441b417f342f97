"""What is said of the mistakes of strangers: no false word, a cause for most, and at what cost."""

import re

import numpy as np
import pytest

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis.mistake import Mistake

from .strangers import MISTAKES, STRANGERS, check_of

UNNAMED = "no simple cause"
RIGHTS = [(function, where) for function, stranger in STRANGERS.items() for where in stranger.right]


@pytest.mark.parametrize(("function", "where"), RIGHTS)
def test_nothing_is_said_of_a_right_gradient(function, where):
    found = check(*check_of(function, where, STRANGERS[function].right[where]))[where]
    assert found.ok, found.diagnosis


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.function}, {m.where}: {m.name}")
def test_of_a_mistake_the_cause_is_named_or_nothing_is_said(mistake, seed):
    found = check(*check_of(mistake.function, mistake.where, mistake.gradient), rng=seed)[mistake.where]
    assert not found.ok
    if mistake.word is None:
        assert found.diagnosis == UNNAMED
    else:
        assert re.search(mistake.word, found.diagnosis), found.diagnosis


def test_most_mistakes_have_their_cause_named():
    named = sum(mistake.word is not None for mistake in MISTAKES)
    assert named >= 0.8 * len(MISTAKES)


def calls_of(function, where, gradient, monkeypatch):
    """How often the functions are called by a check, and how often for the words."""
    forward, backward, inputs = check_of(function, where, gradient)
    calls, words = [], []
    explain = Mistake.of

    def starts(evidence):
        words.append(len(calls))
        return explain(evidence)

    monkeypatch.setattr(Mistake, "of", starts)
    arguments = (lambda *a: (calls.append(1), forward(*a))[1], lambda *a: (calls.append(1), backward(*a))[1])
    check(*arguments, inputs)
    return len(calls), len(calls) - words[0] if words else 0


def test_words_cost_at_most_four_times_a_check_that_holds(monkeypatch):
    costs = []
    for mistake in MISTAKES:
        right = STRANGERS[mistake.function].right.get(mistake.where)
        with monkeypatch.context() as patched:
            whole, _ = calls_of(mistake.function, mistake.where, right, patched)
            _, words = calls_of(mistake.function, mistake.where, mistake.gradient, patched)
        costs.append(words / whole)
    assert max(costs) <= 4
    assert np.median(costs) <= 1
