import re

import numpy as np
import pytest

from attention_np.gradcheck.agreement import HOLDS, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose, diagnose_shape

from .planted import FUNCTIONS, PLANTED

EPS = float(np.finfo(float).eps)


def jacobian(forward, inputs, name):
    """By the complex step, (*output.shape, *input.shape)."""
    x = inputs[name]
    columns = []
    for k in range(x.size):
        moved = {other: y.astype(complex) for other, y in inputs.items()}
        moved[name].flat[k] += 1e-30j
        columns.append(np.asarray(forward(*moved.values())).imag / 1e-30)
    return np.stack(columns, axis=-1).reshape(*np.shape(columns[0]), *x.shape)


def cotangents_for(output, seed=0):
    u = np.random.default_rng(seed).standard_normal((3, *output.shape))
    if not output.ndim:
        u[2] = 0
        return u
    squares = (output**2).sum(axis=-1, keepdims=True)
    share = (u[0] * output).sum(axis=-1, keepdims=True) / np.where(squares > 0, squares, 1)
    u[2] = u[0] - share * output
    return u


def evidence_of(forward, backward, inputs, where, constants=None, seed=0):
    output = np.asarray(forward(*inputs.values()))
    u = cotangents_for(output, seed)
    numerical, sizes = {}, {}
    for name in inputs:
        slopes = jacobian(forward, inputs, name)
        numerical[name] = np.tensordot(u, slopes, output.ndim)
        sizes[name] = np.tensordot(abs(u), abs(slopes), output.ndim)
    answers = [backward(cotangent, *inputs.values()) for cotangent in (*u, 0 * u[0])]
    analytic = {name: np.stack([answer[k] for answer in answers[:3]]) for k, name in enumerate(inputs)}
    analytic = {name: a for name, a in analytic.items() if a.shape[1:] == inputs[name].shape}
    floor = 8 * EPS * sizes[where][0]
    if where in analytic:
        floor = floor + 4 * EPS * abs(analytic[where][0])
        wrong = abs(analytic[where][0] - numerical[where][0]) > 10 * floor
    else:
        wrong = np.ones(inputs[where].shape, bool)
    at_zero = np.asarray(answers[3][list(inputs).index(where)])
    return Evidence(
        where, inputs, output, u, analytic, numerical, floor, np.where(wrong, WRONG, HOLDS), at_zero, constants or {}
    )


def diagnosis_of(planted, seed=0):
    found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where, seed=seed)
    if planted.where in found.analytic:
        return diagnose(found)
    gradient = planted.wrong_backward(found.cotangents[0], *planted.inputs.values())
    return diagnose_shape(gradient[list(planted.inputs).index(planted.where)], found.numerical[planted.where][0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_which_bugs_are_planted_are_correct(name):
    forward, backward, inputs = FUNCTIONS[name]
    for where in inputs:
        found = evidence_of(forward, backward, inputs, where)
        np.testing.assert_allclose(found.analytic[where], found.numerical[where], rtol=0, atol=1e-14)
        assert (found.verdict == HOLDS).all()
        assert diagnose(found) is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_bug_is_named_and_a_wrong_formula_is_not(planted, seed):
    sentence = diagnosis_of(planted, seed)
    if planted.expected is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert re.search(planted.expected, sentence), sentence


if __name__ == "__main__":
    for p in PLANTED:
        print(f"{p.name:60} {diagnosis_of(p)}")
