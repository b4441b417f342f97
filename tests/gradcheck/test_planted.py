import re

import numpy as np
import pytest

from attention_np import softmax
from attention_np.gradcheck import METHODS, check

from .planted import FUNCTIONS, PLANTED
from .programs import bilinear, bilinear_backward, normal, planted, square_inputs, with_entry

ALL = [*METHODS, "auto"]


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
@pytest.mark.parametrize("bug", PLANTED, ids=lambda p: p.name)
def test_a_check_finds_each_planted_bug_in_its_input_alone_and_says_what_it_is(bug, method):
    report = check(bug.forward, bug.wrong_backward, bug.inputs, method=method)
    assert {entry.name for entry in report if not entry.ok} == wrong_inputs(bug)
    diagnosis = report[bug.where].diagnosis
    assert re.search(bug.expected or "^no simple cause$", diagnosis), diagnosis


BUGS = {
    "the sign": lambda g, *_: -g,
    "a factor 2": lambda g, *_: 2 * g,
    "a factor 1/2": lambda g, *_: g / 2,
    "a constant": lambda g, *_: g + 1e-3,
    "a transposition": lambda g, *_: g.T,
    "the other gradient": lambda _, other, __: other,
    "a permutation": lambda g, *_: g[::-1],
    "zeros": lambda g, *_: np.zeros_like(g),
    "the cotangent ignored": lambda g, _, d_output: g / d_output,
    "one row": lambda g, *_: with_entry(g, 1, 0.0),
    "a mean for a sum": lambda g, *_: g / len(g),
    "noise": lambda g, *_: g + 1e-4 * normal(*g.shape, seed=9),
}


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_in_its_input_alone(bug, method):
    backward = planted(lambda d_x, d_y, d_output: (BUGS[bug](d_x, d_y, d_output), d_y))
    report = check(bilinear, backward, square_inputs(), method=method)
    assert (report.ok, report["x"].ok, report["y"].ok) == (False, False, True)
    assert report["x"].max_relative_error > 1e-5


@pytest.mark.parametrize("method", ALL)
def test_swapped_gradients_are_found_in_both(method):
    report = check(bilinear, planted(lambda d_x, d_y, _: (d_y, d_x)), square_inputs(), method=method)
    assert (report["x"].ok, report["y"].ok) == (False, False)


@pytest.mark.parametrize("method", ALL)
def test_a_backward_that_takes_the_loss_for_a_plain_sum_is_found(method):
    report = check(bilinear, lambda d, x, y: bilinear_backward(np.ones_like(d), x, y), square_inputs(), method=method)
    assert (report["x"].ok, report["y"].ok) == (False, False)


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
