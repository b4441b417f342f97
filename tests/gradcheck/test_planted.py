import re

import numpy as np
import pytest

from attention_np.gradcheck import METHODS, check

from .planted import FUNCTIONS, PLANTED


def wrong_inputs(planted):
    """The inputs whose planted gradient is another than the right one."""
    u = np.random.default_rng(5).standard_normal(np.shape(planted.forward(*planted.inputs.values())))
    right, wrong = (f(u, *planted.inputs.values()) for f in (planted.backward, planted.wrong_backward))
    return {name for name, a, b in zip(planted.inputs, right, wrong, strict=True) if not np.array_equal(a, b)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_which_bugs_are_planted_pass_a_check(name, method):
    forward, backward, inputs = FUNCTIONS[name]
    assert check(forward, backward, inputs, method=method).ok


@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_check_finds_each_planted_bug_in_its_input_alone_and_says_what_it_is(planted, method):
    report = check(planted.forward, planted.wrong_backward, planted.inputs, method=method)
    assert {entry.name for entry in report if not entry.ok} == wrong_inputs(planted)
    diagnosis = report[planted.where].diagnosis
    assert re.search(planted.expected or "^no simple cause$", diagnosis), diagnosis
