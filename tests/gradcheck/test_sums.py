"""A sum over a broadcast axis of which not all terms were taken: what the terms are, and which of them are there."""

import numpy as np
import pytest

from attention_np.gradcheck.agreement import WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose

from .evidence import cotangents_for, evidence_of
from .programs import back_through_softmax, normal, softmax


def times(x, b):
    return x * b


def said_of(forward, wrong, inputs, where):
    """What is said where ``wrong(d, *inputs)`` is claimed to be the gradient of one input."""

    def backward(d, *arrays):
        return [np.asarray(wrong(d, *arrays)) if name == where else 0 * x for name, x in inputs.items()]

    return diagnose(evidence_of(forward, backward, inputs, where))


PARTS = [
    (lambda terms: terms[2], "it is only the term of index 2 of the sum over the broadcast axis 0 (of 5)"),
    (
        lambda terms: terms.sum(axis=0) - terms[2],
        "the term of index 2 is missing from the sum over the broadcast axis 0 (of 5)",
    ),
    (
        lambda terms: terms[:3].sum(axis=0),
        "only the terms up to index 2 are in the sum over the broadcast axis 0 (of 5)",
    ),
    (
        lambda terms: terms[2:].sum(axis=0),
        "only the terms from index 2 on are in the sum over the broadcast axis 0 (of 5)",
    ),
]


@pytest.mark.parametrize(("part", "said"), PARTS)
@pytest.mark.parametrize("shape", [(3,), (1, 3)])
@pytest.mark.parametrize(
    ("forward", "terms"),
    [
        (lambda x, b: 1e6 * x * b, lambda d, x, b: 1e6 * d * x),  # noqa: ARG005
        (lambda x, b: 1e-6 * x * b, lambda d, x, b: 1e-6 * d * x),  # noqa: ARG005
        (lambda x, b: x + b, lambda d, x, b: d),  # noqa: ARG005
        (lambda x, b: np.sin(x) * b, lambda d, x, b: d * np.sin(x)),  # noqa: ARG005
        (lambda x, b: x * b + x**2, lambda d, x, b: d * x),  # noqa: ARG005
        (lambda x, b: x + np.sinh(x) * b, lambda d, x, b: d * np.sinh(x)),  # noqa: ARG005
        (lambda x, b: np.tanh(x + b), lambda d, x, b: d / np.cosh(x + b) ** 2),
        (lambda x, b: np.tanh(x * b), lambda d, x, b: d * x / np.cosh(x * b) ** 2),
    ],
)
def test_terms_are_known_from_the_output_and_the_other_inputs(forward, terms, part, said, shape):
    inputs = {"x": normal(5, 3, seed=1), "b": normal(*shape, seed=2)}
    assert said_of(forward, lambda d, x, b: part(terms(d, x, b)).reshape(shape), inputs, "b") == said


@pytest.mark.parametrize("single", ["x", "b"])
def test_terms_are_known_as_well_where_an_input_is_stored_in_single_precision(single):
    inputs = {"x": normal(5, 3, seed=1), "b": normal(3, seed=2)}
    inputs[single] = inputs[single].astype(np.float32).astype(float)

    def forward(x, b):
        return np.sin(x) * b if single == "b" else x * b + x**2

    def backward(d, x, b):
        return [0 * x, (d * (np.sin(x) if single == "b" else x))[1:].sum(axis=0) + 0 * b]

    found = evidence_of(forward, backward, inputs, "b")
    found = found._replace(inputs={**inputs, single: inputs[single].astype(np.float32)})
    assert diagnose(found) == "the term of index 0 is missing from the sum over the broadcast axis 0 (of 5)"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (lambda t: t[:, 1].sum(), "it is only the term of index 1 of the sum over the broadcast axis 1 (of 3)"),
        (lambda t: t[2].sum(), "it is only the term of index 2 of the sum over the broadcast axis 0 (of 4)"),
        (lambda t: t[:, :2].sum(), "the term of index 2 is missing from the sum over the broadcast axis 1 (of 3)"),
        (lambda t: t[0, 0], "it is only the first term of the sum over all broadcast axes"),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_of_several_broadcast_axes_the_one_is_named_that_is_not_summed(part, said, shape):
    inputs = {"x": normal(4, 3, seed=1), "b": np.full(shape, 0.7)}
    assert said_of(times, lambda d, x, b: part(d * x).reshape(b.shape), inputs, "b") == said


def test_terms_that_cancel_are_known_no_better_than_their_rounding():
    rng = np.random.default_rng(0)
    u = cotangents_for(normal(8, 3, seed=3), rng)
    x = rng.standard_normal((8, 3))
    for column in range(3):  # the first four terms are large, and cancel for each cotangent
        _, _, rows = np.linalg.svd(u[:, :4, column])
        x[:4, column] = 1e6 * rows[-1]
    terms = u * x
    right = terms[:, ::-1].sum(axis=1)
    claimed = terms[:, 5::-1].sum(axis=1)
    verdict = np.full(3, WRONG)
    inputs, floor = {"x": x, "b": normal(3)}, np.full(3, 1e-16)
    found = Evidence("b", inputs, x * normal(3), u, {"b": claimed}, {"b": right}, floor, verdict, None, {})
    exact = np.abs(claimed - terms[:, :6].sum(axis=1)).max()
    assert 1e-13 < exact < 1e-7
    assert diagnose(found) == "only the terms up to index 5 are in the sum over the broadcast axis 0 (of 8)"


def layer(x, w, b):
    return np.tanh(x @ w + b)


def of_layer(part, n, shape=None, length=5):
    """What is said where some of the terms of a bias behind a layer are taken."""
    inputs = {"x": normal(length, 4, seed=1), "w": normal(4, n, seed=2), "b": normal(*(shape or (n,)), seed=3)}
    return said_of(layer, lambda d, x, w, b: part(d * (1 - layer(x, w, b) ** 2)).reshape(b.shape), inputs, "b")


ONLY = "it is only the term at index 1 of axis 0 of the sum over the broadcast axes: no other cotangent matters"
MISSING = (
    "the term at index 1 of axis 0 is missing from the sum over the broadcast axes, or wrong: it is all that differs"
)


@pytest.mark.parametrize("shape", [None, (1, 2)])
@pytest.mark.parametrize(("part", "said"), [(lambda t: t[1], ONLY), (lambda t: t.sum(axis=0) - t[1], MISSING)])
def test_a_single_term_shows_in_two_entries(part, said, shape):
    assert of_layer(part, 2, shape) == said


@pytest.mark.parametrize("part", [lambda t: t[1], lambda t: t.sum(axis=0) - t[1]])
def test_one_entry_is_a_multiple_of_some_cotangent_by_accident(part):
    assert "axis 0" not in str(of_layer(part, 1))


def test_of_two_terms_the_one_that_is_missing_is_named():
    assert of_layer(lambda t: t[0], 4, length=2) == ONLY.replace("index 1", "index 0")
    assert of_layer(lambda t: t[1], 4, length=2) == MISSING.replace("index 1", "index 0")


@pytest.mark.parametrize("size", [1e14, 1e-14])
def test_the_noise_of_a_large_entry_does_not_hide_a_term_in_the_others(size):
    sizes = np.array([size, 1.0, 1.0, 1.0])
    inputs = {"x": normal(5, 4, seed=1), "w": normal(4, 4, seed=2), "b": normal(4, seed=3)}

    def forward(x, w, b):
        return sizes * layer(x, w, b)

    def wrong(d, x, w, b):
        return (d * sizes * (1 - layer(x, w, b) ** 2))[1]

    assert said_of(forward, wrong, inputs, "b") == ONLY


X, B = normal(5, 4, seed=1), normal(4, seed=2)
AXIS = "of the sum over the broadcast axis 0 (of"
MISSING_FIRST = "the term of index 0 is missing from the sum over the broadcast axis 0 (of 5)"
FIRST_TWO = "only the terms up to index 1 are in the sum over the broadcast axis 0 (of 5)"
KNOWN = [  # how terms are known: the inputs, both functions, and what is said of b
    (
        {"b": B, "x": X},  # in another order
        lambda b, x: np.tanh(x + b),
        lambda d, b, x: (d / np.cosh(x + b) ** 2)[1],
        f"it is only the term of index 1 {AXIS} 5)",
    ),
    (
        {"x": X, "b": np.array([1.3, 0.0, -0.7, 2.1])},  # which hides some
        lambda x, b: np.sin(x) * b,
        lambda d, x, _b: (d * np.sin(x))[:2].sum(axis=0),
        FIRST_TWO,
    ),
    ({"x": X * [1, 0, 1, 1], "b": B}, times, lambda d, x, _b: (d * x)[:2].sum(axis=0), FIRST_TWO),
    (
        {"x": X, "b": B},
        lambda x, b: np.where(np.arange(4) < 2, x + b, np.tanh(x + b)),  # they are the terms in some entries alone
        lambda d, _x, _b: d[1],
        "it depends on the cotangent at index 1 of axis 0 alone, where a sum over the broadcast axes belongs",
    ),
    (
        {"x": X, "b": B},  # known by the gradient of an input that is not broadcast
        lambda x, b: softmax(x + b),
        lambda d, x, b: back_through_softmax(d, x + b)[1:].sum(axis=0),
        MISSING_FIRST,
    ),
    (
        {"x": X, "b": B},
        lambda x, b: softmax(x * b),
        lambda d, x, b: (back_through_softmax(d, x * b) * x)[1:].sum(axis=0),
        MISSING_FIRST,
    ),
    (
        {"x": normal(3, 5, 4, seed=1), "b": normal(4, 2, seed=2)},  # over a batch of matrices
        np.matmul,
        lambda d, x, _b: x[1].T @ d[1],
        f"it is only the term of index 1 {AXIS} 3)",
    ),
    (
        {"x": normal(5, 1, 4), "w": normal(4, 6, seed=1), "b": normal(1, 6, seed=2)},  # along the summed axes alone
        lambda x, w, b: np.tanh(x @ w + b),
        lambda d, x, w, b: (d * (1 - np.tanh(x @ w + b) ** 2))[2],
        "it is only the term at index 2 of axis 0 of the sum over the broadcast axes: no other cotangent matters",
    ),
]


@pytest.mark.parametrize(("inputs", "forward", "wrong", "said"), KNOWN)
def test_terms_are_known_by_whatever_tells_them(inputs, forward, wrong, said):
    assert said_of(forward, wrong, inputs, "b") == said


def test_terms_are_known_where_the_gradient_of_a_further_input_is_not():
    inputs = {"a": np.array(1.3), "x": X, "b": B}

    def backward(d, a, x, b):
        return 0 * a, 0 * x, (a * back_through_softmax(d, x + b))[3]

    found = evidence_of(lambda a, x, b: a * softmax(x + b), backward, inputs, "b")
    found = found._replace(numerical={name: n for name, n in found.numerical.items() if name != "a"})
    assert diagnose(found) == "it is only the term of index 3 of the sum over the broadcast axis 0 (of 5)"
