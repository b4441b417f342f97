"""What is said of a wrong gradient, whatever is wrong with it, and of which nothing is said."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose

from .evidence import EPS, diagnosis_of, evidence_of, jacobian, linear_evidence, sampled, seeds, shapes
from .planted import FUNCTIONS, PLANTED, like
from .programs import normal


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_which_bugs_are_planted_are_correct_and_nothing_is_said_of_them(name):
    forward, backward, inputs = FUNCTIONS[name]
    for where in inputs:
        found = evidence_of(forward, backward, inputs, where)
        np.testing.assert_allclose(found.analytic[where], found.numerical[where], rtol=0, atol=1e-14)
        assert (found.verdict == HOLDS).all()
        assert diagnose(found) is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_of_a_planted_bug_it_is_said_and_of_a_wrong_formula_nothing(planted):
    assert diagnosis_of(planted) == planted.expected
    assert like(diagnosis_of(planted, seed=1)) == like(planted.expected)


def test_the_names_of_the_planted_bugs_are_unique():
    names = [planted.name for planted in PLANTED]
    assert len(set(names)) == len(names)


@given(shapes, shapes, seeds, st.floats(-5, 2), st.sampled_from([8 * EPS, 1e-6, 1e-3]))
def test_a_random_matrix_that_is_added_to_the_jacobian_has_no_simple_cause(shape, output_shape, seed, size, noise):
    if math.prod(shape) == 1 and math.prod(output_shape) == 1:
        return  # one number is a multiple of another, whatever they are
    rng = np.random.default_rng(seed)
    right, error = rng.standard_normal((2, math.prod(output_shape), math.prod(shape)))
    if math.prod(shape) == 1 and output_shape[-1:] == (1,):
        return  # there the third cotangent is zero, and two are few
    assert diagnose(linear_evidence(right, right + 10**size * error, shape, output_shape, rng, noise)) is None


@given(array_shapes(min_dims=2, max_dims=3, min_side=3, max_side=5), shapes, seeds, st.floats(0.1, 0.6))
def test_random_errors_in_random_entries_have_no_simple_cause(shape, output_shape, seed, share):
    rng = np.random.default_rng(seed)
    right, error = rng.standard_normal((2, math.prod(output_shape), math.prod(shape)))
    wrong = right + error * (rng.random(error.shape) < share)
    sentence = diagnose(linear_evidence(right, wrong, shape, output_shape, rng))
    if (wrong != right).any(axis=0).sum() == 1:
        assert sentence.startswith("wrong only at ")  # and nothing else
    else:
        assert sentence is None


SMOOTH = [np.sin, np.cos, np.tanh, np.exp, np.cosh, np.square, lambda x: x, lambda x: x**3, lambda x: 1 / (1 + x**2)]
smooth = st.sampled_from(range(len(SMOOTH)))


@given(array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=4), seeds, smooth, smooth, smooth)
def test_a_wrong_smooth_formula_has_no_simple_cause(shape, seed, inner, outer, wrong):
    """A layer f(g(x) @ w), differentiated as if the derivative of f were another function."""
    rng = np.random.default_rng(seed)
    x, w = rng.uniform(0.5, 1.5, shape), rng.uniform(0.3, 0.9, (shape[-1], 3))
    slope = jacobian(SMOOTH[outer], {"x": SMOOTH[inner](x) @ w}, "x").sum(axis=tuple(range(len(shape))))
    claimed = SMOOTH[wrong](SMOOTH[inner](x) @ w)
    if np.ptp(claimed / slope) < 1e-3 * abs(claimed / slope).max():
        return  # the same function, or a multiple
    along = jacobian(SMOOTH[inner], {"x": x}, "x").sum(axis=tuple(range(len(shape))))
    found = evidence_of(
        lambda x: SMOOTH[outer](SMOOTH[inner](x) @ w), lambda d, _: ((d * claimed) @ w.T * along,), {"x": x}, "x"
    )
    assert diagnose(found) is None


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda right, rng: -right, "it is -1 times the numerical gradient throughout"),  # noqa: ARG005
        (lambda right, rng: right[:, ::-1], "axes 0 and 1 are reversed"),  # noqa: ARG005
        (lambda right, rng: rng.standard_normal(right.shape), None),
        (lambda right, rng: -right * rng.uniform(0.7, 1.3, right.shape), None),
    ],
)
def test_in_half_precision_many_entries_make_up_for_the_noise_of_each(wrong, expected):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((6, 20))
    found = linear_evidence(right, wrong(right, rng), (4, 5), (6,), rng, noise=1e-3)
    assert diagnose(found._replace(floor=15 * found.floor)) == expected


def test_nothing_is_said_where_nothing_can_be_compared():
    found = evidence_of(*FUNCTIONS["softmax"], "scores")
    assert diagnose(found._replace(analytic={})) is None
    unused = evidence_of(lambda x: 0 * x, lambda d, x: (d * x,), {"x": normal(3, 4, seed=1)}, "x")
    assert (unused.verdict == WRONG).all()
    assert diagnose(unused) is None
    infinite = found.analytic["scores"] * np.inf
    assert diagnose(found._replace(analytic={"scores": infinite}, verdict=np.full((4, 6), WRONG))) is None


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_nothing_is_said_of_a_gradient_without_entries(shape):
    x = np.zeros(shape)
    assert diagnose(evidence_of_nothing(x)) is None


def evidence_of_nothing(x):
    none = np.zeros((3, *x.shape))
    return Evidence("x", {"x": x}, x, none, {"x": none}, {"x": none}, x, x.astype(int), x, {})


@pytest.mark.parametrize(
    "name",
    [
        "attention, query: minus the scale",
        "layer, b: a mean in the place of the sum",
        "square matmul, a: transposed",
        "running mean, x: time reversed",
        "causal attention, key: swapped with query",
        "layer, w: weight decay",
        "multi-head attention, value: one sample",
        "attention, query: no correction",
        "layer, w: each column with its own",
        "attention, key: float16",
        "layer, x: no tanh derivative",
        "attention, value: weights without the scale",
    ],
)
def test_a_sample_of_the_entries_is_enough(name):
    planted = next(planted for planted in PLANTED if planted.name == name)
    found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where)
    found = sampled(found, share=0.75)
    assert np.isnan(found.numerical[planted.where]).any()
    sentence = diagnose(found)
    assert like(sentence) == like(planted.expected) or sentence.startswith(planted.expected), sentence


def test_what_a_verdict_calls_unchecked_is_not_looked_at_whatever_stands_there():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 20))
    found = linear_evidence(right, -right, (20,), (7,), rng)
    skipped = np.arange(20) % 3 == 0
    numerical = np.where(skipped, 7.0, found.numerical["x"])
    found = found._replace(numerical={"x": numerical}, verdict=np.where(skipped, UNCHECKED, found.verdict))
    assert diagnose(found) == "it is -1 times the numerical gradient throughout"


@pytest.mark.parametrize("scale", [1e-140, 1e-12, 1e12, 1e140])
def test_the_scale_of_the_gradient_does_not_matter(scale):
    for planted in PLANTED[::5]:
        if planted.kind in ("shape", "constant") or "8.5" in (planted.expected or ""):
            continue
        found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where)
        scaled = found._replace(
            analytic={name: scale * a for name, a in found.analytic.items()},
            numerical={name: scale * n for name, n in found.numerical.items()},
            floor=scale * found.floor,
        )
        if planted.kind != "sum":  # whose terms are known from the inputs
            assert diagnose(scaled) == diagnose(found), planted.name
