import numpy as np
import pytest

from attention_np import softmax
from attention_np.gradcheck import METHODS, check

from .planted import FUNCTIONS, PLANTED, like
from .programs import normal

FIRST = {bug.kind: bug.name for bug in reversed(PLANTED)}  # of each kind


def wrong_inputs(bug):
    """The inputs whose planted gradient is another than the right one."""
    u = np.random.default_rng(5).standard_normal(np.shape(bug.forward(*bug.inputs.values())))
    right, wrong = (f(u, *bug.inputs.values()) for f in (bug.backward, bug.wrong_backward))
    return {name for name, a, b in zip(bug.inputs, right, wrong, strict=True) if not np.array_equal(a, b)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_which_bugs_are_planted_pass_a_check(name, method):
    forward, backward, inputs = FUNCTIONS[name]
    assert check(forward, backward, inputs, method=method).ok


@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize(
    "bug", [pytest.param(p, id=p.name, marks=() if p.name in FIRST.values() else pytest.mark.long) for p in PLANTED]
)
def test_a_check_finds_each_planted_bug_in_its_input_alone_and_says_what_it_is(bug, method):
    report = check(bug.forward, bug.wrong_backward, bug.inputs, method=method)
    assert {entry.name for entry in report if not entry.ok} == wrong_inputs(bug)
    diagnosis = report[bug.where].diagnosis
    if bug.kind == "shape":
        assert diagnosis.startswith("the gradient has the shape (")
        diagnosis = diagnosis.partition("): ")[2]
    assert like(diagnosis) == like(bug.expected or "no simple cause")


def test_a_softmax_correction_left_out_is_found_although_it_vanishes_for_a_plain_sum():
    def backward(d_weights, scores):
        weights = softmax.forward(scores)[0]
        return weights * d_weights

    assert not check(lambda x: softmax.forward(x)[0], backward, {"scores": normal(3, 4)}).ok


def test_a_sum_left_out_is_found_where_the_shapes_agree_all_the_same():
    def forward(x, b):
        return x * b

    inputs = {"x": normal(4, 1), "b": normal(4, 1, seed=1)}
    assert check(forward, lambda d, x, b: (d * b, d * x), inputs).ok
    inputs = {"x": normal(4, 4), "b": normal(4, 1, seed=1)}
    report = check(forward, lambda d, x, b: (d * b, (d * x)[:, :1]), inputs)
    assert (report["x"].ok, report["b"].ok) == (True, False)
