"""What is said of a wrong gradient, whatever is wrong with it, and of which nothing is said."""

import math
import re

import numpy as np
from helpers import each
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose
from attention_np.gradcheck.diagnosis.mistake import Mistake

from .evidence import EPS, evidence_of, jacobian, linear_evidence, sampled, seeds, shapes
from .planted import FUNCTIONS, bug
from .programs import normal, softmax


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


@each(
    ("wrong", "expected"),
    [
        (lambda right, _rng: -right, "it is -1 times the numerical gradient throughout"),
        (lambda right, _rng: right[:, ::-1], "axes 0 and 1 are reversed"),
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
    found = evidence_of(*FUNCTIONS["softmax"], "x")
    assert diagnose(found._replace(analytic={})) is None
    unused = evidence_of(lambda x: 0 * x, lambda d, x: (d * x,), {"x": normal(3, 4, seed=1)}, "x")
    assert (unused.verdict == WRONG).all()
    assert diagnose(unused) is None
    infinite = found.analytic["x"] * np.inf
    assert diagnose(found._replace(analytic={"x": infinite}, verdict=np.full((4, 5), WRONG))) is None


@each("shape", [(0,), (3, 0), (0, 0, 2)])
def test_nothing_is_said_of_a_gradient_without_entries(shape):
    x, none = np.zeros(shape), {"x": np.zeros((3, *shape))}
    assert diagnose(Evidence("x", {"x": x}, x, none["x"], none, none, x, x.astype(int), x, {})) is None


NAMED = [
    "contraction, b: a mean over the batch",
    "square dense, w: result transposed",
    "flip, x: not flipped",
    "causal attention, q: that of the keys",
    "multi-head attention, v: one head of one sample",
    "attention, k: no correction",
    "attention, v: weights without the scale",
    "tanh layer, w: a factor for each column",
    "dense, w: = for += over the batch",
]
OF_ONE_SCALE = [
    "attention, k: in float16",
    "dense, w: weight decay",
    "tanh layer, x: no tanh derivative",
    "energy, x: the cotangent ignored",
]


def is_said_of(planted, found):
    sentence = diagnose(found)
    return sentence is None if planted.expected is None else re.search(planted.expected, sentence)


@each("name", [*NAMED, *OF_ONE_SCALE])
def test_a_sample_of_the_entries_is_enough(name):
    planted = bug(name)
    found = evidence_of(planted.forward, planted.wrong_backward, planted.inputs, planted.where)
    found = sampled(found, share=0.75)
    assert np.isnan(found.numerical[planted.where]).any()
    assert is_said_of(planted, found)


def test_what_a_verdict_calls_unchecked_is_not_looked_at_whatever_stands_there():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 20))
    found = linear_evidence(right, -right, (20,), (7,), rng)
    skipped = np.arange(20) % 3 == 0
    numerical = np.where(skipped, 7.0, found.numerical["x"])
    found = found._replace(numerical={"x": numerical}, verdict=np.where(skipped, UNCHECKED, found.verdict))
    assert diagnose(found) == "it is -1 times the numerical gradient throughout"


@each("scale", [1e-140, 1e12], long=[1e-12, 1e140])
@each("name", NAMED)
def test_the_scale_of_the_gradient_does_not_matter(name, scale):
    planted = bug(name)
    found = evidence_of(
        lambda *arrays: scale * planted.forward(*arrays),
        lambda *arrays: [scale * gradient for gradient in planted.wrong_backward(*arrays)],
        planted.inputs,
        planted.where,
    )
    assert is_said_of(planted, found)


TARGET = softmax(normal(3, 5, seed=1))


def said(forward, backward, inputs, where=None, **options):
    """What a check says of one input, by default the first, of which something is wrong."""
    report = check(forward, backward, inputs, **options)
    found = report[where or next(iter(inputs))]
    assert not found.ok
    return found.diagnosis


FACTORS = 1 + 3e-8 * np.random.default_rng(4).choice([-1, 1], (6, 8))


@each(
    ("forward", "backward"),
    [
        (lambda x: np.sin(np.pi * x), lambda d, x: d * np.pi * np.cos(3.1415926 * x)),
        (np.sin, lambda d, x: d * np.cos(x) * FACTORS),
        (np.sin, lambda d, x: d * np.cos(x) * (1 + 5 * (FACTORS - 1))),
    ],
)
def test_an_approximation_that_is_as_good_as_single_precision_is_not_called_so(forward, backward):
    assert "float32" not in said(forward, backward, {"x": normal(6, 8, seed=1)})


def guarded(x):
    return np.where(np.abs(x) < 1e-3, 1e-3, x)


WITH_A_ZERO = np.where(np.arange(12) == 3, 0, normal(12, seed=1))


@each(("forward", "slope"), [(lambda x: x * x, lambda x: 2 * guarded(x)), (np.cosh, lambda x: np.sinh(guarded(x)))])
@each("method", ["complex-step", "central"])
def test_a_point_where_a_function_is_stationary_is_not_behind_a_mask(forward, slope, method):
    found = said(forward, lambda d, x: d * slope(x), {"x": WITH_A_ZERO}, method=method)
    assert "mask" not in found


def test_a_forgotten_derivative_is_not_the_gradient_of_another_input():
    inputs = {"x": normal(3, 4, seed=1), "h": normal(3, 4, seed=2)}
    found = said(lambda x, h: x + np.tanh(h), lambda d, x, h: (d.copy(), d.copy()), inputs, "h")  # noqa: ARG005
    assert found == "it is the gradient of the output, passed on as it is"


def test_of_a_large_input_hardly_more_than_the_entries_that_were_looked_at_is_compared(monkeypatch):
    compared, explains = [], Mistake.is_explained_by
    monkeypatch.setattr(
        Mistake,
        "is_explained_by",
        lambda case, *args, **kw: compared.append(case.claimed.size) or explains(case, *args, **kw),
    )
    inputs = {"x": normal(2000, seed=1)}
    found = said(np.sin, lambda d, x: d * np.sin(x), inputs, vectorized="x", max_entries=50, directions=1)
    assert found == "no simple cause"
    assert sum(size > 3 * 50 for size in compared) < 20


@each("wrong", [lambda x: np.cos(x) * [1, np.e / 2], lambda x: np.cos(x) + np.sin(x) * [0, 0.1]])
def test_one_wrong_entry_of_two_is_no_place_unless_a_factor_of_its_own_says_so(wrong):
    found = said(np.sin, lambda d, x: d * wrong(x), {"x": np.array([0.3, 1.7])})
    factor = "wrong only at index 1 of axis 0, where it is 1.35914091 times the numerical gradient"
    assert found == factor or found.startswith("no simple cause")
    assert (found == factor) == (wrong(np.zeros(2))[1] > 1)


def test_an_error_near_one_point_alone_is_no_place_at_another():
    x = np.linspace(0.2, 2.6, 12)
    x[1] = 1.0

    def backward(d, x):
        return d * 3 * x**2 * (1 + 1e-12 * np.exp(-((1000 * (x - 1)) ** 2)))

    assert check(lambda x: x**3, backward, {"x": x})["x"].diagnosis == "no simple cause"
