"""What is said of a wrong gradient, word for word: people read these sentences, and search for them."""

import math

import numpy as np
import pytest

from attention_np.gradcheck.diagnosis import diagnose

from .planted import FUNCTIONS, PLANTED
from .test_diagnosis import EPS, diagnosis_of, evidence_of, linear_evidence

PLANTED_BUGS = {
    "matmul, a: the sign": "it is -1 times the numerical gradient throughout",
    "energy, y: the sign": "it is -1 times the numerical gradient throughout",
    "wave, gain: the sign of a single entry": "it is -1 times the numerical gradient throughout",
    "mean of squares, x: the 2 of the square": "it is 0.5 times the numerical gradient throughout",
    "layer, w: counted twice": (
        "it is 2 times the numerical gradient throughout (also sqrt(4), where 4 is the length of an axis of x and w)"
    ),
    "energy, x: a factor without a name": "it is 1.7 times the numerical gradient throughout",
    "attention, value: nothing": "it is zero throughout",
    "attention, query: no scale": (
        "it is 2.82842712 times the numerical gradient throughout: sqrt(8), where 8 is the length of the last "
        "axis of query and key"
    ),
    "attention, key: the scale twice": (
        "it is 0.353553391 times the numerical gradient throughout: 1/sqrt(8), where 8 is the length of the last "
        "axis of query and key"
    ),
    "attention, key: the scale of another length": (
        "it is 1.63299316 times the numerical gradient throughout: sqrt(8/3), where 8 is the length of the last "
        "axis of query and key and 3 is the length of the last axis of value and the output"
    ),
    "attention, query: minus the scale": (
        "it is -2.82842712 times the numerical gradient throughout: -sqrt(8), where 8 is the length of the last "
        "axis of query and key"
    ),
    "causal attention, key: dropout forgotten": (
        "it is 0.9 times the numerical gradient throughout: 1 - 0.1, as for a dropout probability of 0.1"
    ),
    "layer, b: a mean in the place of the sum": (
        "it is 0.2 times the numerical gradient throughout: 1/5, as a mean in the place of the sum over the "
        "broadcast axis of length 5 gives"
    ),
    "times, b: a mean in the place of the sum": (
        "it is 0.25 times the numerical gradient throughout: 1/4, as a mean in the place of the sum over the "
        "broadcast axis of length 4 gives"
    ),
    "scaled rows, s: a mean over both axes": (
        "it is 0.125 times the numerical gradient throughout: 1/8, as a mean in the place of the sum over the "
        "broadcast axes of lengths 2 and 4 gives"
    ),
    "mean of squares, x: the sum in the place of the mean": (
        "it is 5 times the numerical gradient throughout, and 5 is the length of axis 0 of x"
    ),
    "running mean, x: each row with its own": "each index of axis 0 has its own factor, 0.1667 to 1",
    "layer, w: each column with its own": "each index of axis 1 has its own factor, 0.5 to 2",
    "square matmul, a: transposed": "axes 0 and 1 are transposed",
    "causal attention, query: the keys' gradient": "it is the gradient of key in the place of its own",
    "causal attention, key: swapped with query": "the gradients of key and query are swapped: each is the other's",
    "square matmul, b: swapped with a": "the gradients of b and a are swapped: each is the other's",
    "matmul, b: a reshape of the transpose": (
        "it is transposed to (3, 6) and then reshaped to (6, 3): a reshape stands where a transpose belongs"
    ),
    "running mean, x: time reversed": "axis 0 is reversed",
    "layer norm, gamma: reversed": "axis 0 is reversed",
    "attention, key: off by one": "it is shifted by 1 along axis 0, around the end",
    "times, b: off by two": "it is shifted by -2 along axis 0, around the end",
    "multi-head attention, value: heads in another order": "the blocks of 4 along axis 2 are in another order: 1, 0, 2",
    "multi-head attention, query: a reshape in the place of combining heads": (
        "a reshape stands where a transpose belongs, or the other way round: as (2, 5, 3, 4), its axes are "
        "permuted to the order 0, 2, 1 and 3 before it is reshaped to (2, 5, 12)"
    ),
    "padded attention, query: two rows exchanged": "indices 1 and 3 of axis 0 are exchanged",
    "layer, b: one term of the sum": (
        "it is only the term at index 0 of axis 0 of the sum over the broadcast axes: no other cotangent matters"
    ),
    "layer, b: the last term missing": (
        "the term at index 4 of axis 0 is missing from the sum over the broadcast axes, or wrong: it is all that "
        "differs"
    ),
    "times, b: the last term missing": "the term of index 3 is missing from the sum over the broadcast axis 0 (of 4)",
    "scaled rows, s: summed over one axis of two": (
        "it is only the term of index 0 of the sum over the broadcast axis 0 (of 2)"
    ),
    "layer norm, gamma: up to the middle": (
        "only the terms up to index 2 are in the sum over the broadcast axis 0 (of 5)"
    ),
    "times, b: the sum missing": "the sum over the broadcast axis 0 is missing",
    "matmul, a: transposed": "axes 0 and 1 are transposed",
    "layer, w: flattened": "it is right, but flattened",
    "layer, b: an axis kept": "it is right, but has an extra axis of length 1: (1, 6) in the place of (6,)",
    "causal attention, value: summed over the keys": "it is summed over axis 0, which the input has",
    "padded attention, query: one row": "wrong only at index 2 of axis 0, where it is zero",
    "layer, w: one column twice": (
        "wrong only at index 1 of axis 1, where it is 2 times the numerical gradient (also sqrt(4), where 4 is "
        "the length of an axis of x and w)"
    ),
    "multi-head attention, key: one head": "wrong only from index 4 to 7 of axis 2 (of 12)",
    "multi-head attention, value: one sample": "wrong only at index 1 of axis 0",
    "multi-head attention, value: one head of one sample": (
        "wrong only at index 0 of axis 0 and from index 8 of axis 2 on (of 12), where it is -1 times the "
        "numerical gradient"
    ),
    "blocked, x: the last block": "wrong only from index 16 of axis 0 on (of 19), where it is zero",
    "blocked, x: no tanh derivative after the first block": "wrong only from index 8 of axis 0 on (of 19)",
    "blocked, x: the first block": (
        "wrong only up to index 7 of axis 0 (of 19), where it is -1 times the numerical gradient"
    ),
    "running mean, x: every second row": (
        "wrong only at every second index of axis 0, from 1 on, where it is 3 times the numerical gradient, and 3"
        " is the length of the last axis of x and the output"
    ),
    "biased attention, bias: above the diagonal": (
        "wrong only above the diagonal of the last two axes, where it is zero"
    ),
    "square matmul, b: the diagonal": "wrong only on the diagonal of the last two axes, where it is zero",
    "matmul, b: one entry": "wrong only at one entry, [2, 1], where it is 8.5 whatever the cotangent",
    "layer norm, beta: one entry": "wrong only at index 3 of axis 0, where it is -1 times the numerical gradient",
    "padded attention, value: leaks through the mask": (
        "it is not zero where it must be, as behind a mask: in all 6 entries without any effect, from index 5 of "
        "axis 0 on (of 7)"
    ),
    "causal attention, query: the mask forgotten": "wrong only up to index 4 of axis 0 (of 6)",
    "padded attention, key: the mask forgotten for one key": (
        "it is not zero where it must be, as behind a mask: in 8 of 16 entries without any effect, at index 5 of axis 0"
    ),
    "softmax, scores: no correction": (
        "the softmax correction, weights * sum(weights * d_weights) along the rows, is missing or wrong: it is "
        "right for a cotangent with rows orthogonal to the rows of the output, and wrong for others"
    ),
    "attention, query: no correction": (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij, is "
        "missing or wrong: it is right for a cotangent with rows orthogonal to the rows of the output, and wrong "
        "for others"
    ),
    "causal attention, key: twice the correction": (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij, is "
        "missing or wrong: it is right for a cotangent with rows orthogonal to the rows of the output, and wrong "
        "for others"
    ),
    "biased attention, bias: no correction": (
        "a term with sum(output * d_output) along the rows, such as the softmax correction sum_j A_ij dA_ij, is "
        "missing or wrong: it is right for a cotangent with rows orthogonal to the rows of the output, and wrong "
        "for others"
    ),
    "on the sphere, x: no projection": (
        "the projection term of an L2 normalization, output * sum(output * d_output) along the rows, is missing "
        "or wrong: it is right for a cotangent with rows orthogonal to the rows of the output, and wrong for "
        "others"
    ),
    "normalized, x: no projection": (
        "the term of a layer normalization with output * mean(output * d_output) along the rows is missing or "
        "wrong: it is right for a cotangent with rows orthogonal to the rows of the output, and wrong for others"
    ),
    "softmax, scores: the mean for the weighted mean": (
        "the softmax correction along axis 1, weights * sum(weights * d_weights), is missing or wrong: the errors"
        " of each row are a multiple of one positive vector whatever the cotangent, and the right rows sum to "
        "zero"
    ),
    "layer, w: float32": (
        "it is rounded to float32: every entry is such a number, off by at most 2.2e-08 of the largest entry"
    ),
    "attention, key: float16": (
        "it is rounded to float16: every entry is such a number, off by at most 0.00028 of the largest entry"
    ),
    "multi-head attention, value: computed in float32": (
        "its errors are of the size of rounding to float32, at most 1.1e-08 of the largest entry, and without a "
        "pattern: some of it seems to be computed in that precision"
    ),
    "layer, b: a constant": "a constant is added to it, 0.01 in every entry, whatever the cotangent",
    "layer, w: weight decay": "0.01 times w itself is added to it, whatever the cotangent",
    "matmul, a: some other array": (
        "something is added to it that does not depend on the cotangent, from -0.987 to 0.9996"
    ),
    "energy, x: the cotangent ignored": (
        "it is the same whatever the cotangent, as if the loss were a plain sum of the output"
    ),
    "additive attention, value: the cotangent ignored": (
        "it is the same whatever the cotangent, as if the loss were a plain sum of the output"
    ),
    "times, b: a sum of cotangents everywhere": (
        "the same number is added to every entry: -3.664, 1.246 and -3.424 for three cotangents"
    ),
    "additive attention, query: no tanh derivative": "it is zero throughout, but for rounding",
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_of_a_planted_bug_it_is_said(planted):
    assert diagnosis_of(planted) == PLANTED_BUGS.get(planted.name)


ALL = "query, key, value and the output"
LAST = f"12 is the length of the last axis of {ALL}"
SECOND = f"5 is the length of axis 1 of {ALL}"
HEADS, ADDITIVE, LAYER = ("multi-head attention", "query"), ("additive attention", "query"), ("layer", "b")
BLOCKED, SCALED = ("blocked", "x"), ("scaled rows", "s")
A_MEAN = "as a mean in the place of the sum over the broadcast axis of length"
FACTORS = [  # where, the factor, what the function was called with, and what is said of it
    (HEADS, 3, {"num_heads": 3}, "3", ", and 3 is num_heads"),
    (HEADS, 1 / 3, {"num_heads": 3}, "0.333333333", ": 1/3, where 3 is num_heads"),
    (HEADS, 4, {"num_heads": 3}, "4", f": 12/3, where {LAST} and 3 is num_heads"),
    (HEADS, 6, {"num_heads": 2}, "6", f": 12/2, where {LAST} and 2 is num_heads"),
    (HEADS, 1 / 4, {"num_heads": 3}, "0.25", f": 1/(12/3), where {LAST} and 3 is num_heads"),
    (HEADS, 3**-0.5, {"num_heads": 4}, "0.577350269", f": 1/sqrt(12/4), where {LAST} and 4 is num_heads"),
    (HEADS, 12**0.5, {}, "3.46410162", f": sqrt(12), where {LAST}"),
    (HEADS, 12**-0.5, {}, "0.288675135", f": 1/sqrt(12), where {LAST}"),
    (HEADS, 1 / 12, {}, "0.0833333333", f": 1/12, where {LAST}"),
    (HEADS, 5, {}, "5", f", and {SECOND}"),
    (HEADS, 1 / 0.9, {"dropout_p": 0.1}, "1.11111111", ": 1/(1 - 0.1), where 0.1 is dropout_p"),
    (HEADS, 0.9, {"dropout_p": 0.1}, "0.9", ": 1 - 0.1, where 0.1 is dropout_p"),
    (HEADS, 0.1, {"dropout_p": 0.1}, "0.1", ", and 0.1 is dropout_p"),
    (HEADS, -0.3, {"scale": 0.3}, "-0.3", ", and 0.3 is scale"),
    (HEADS, 0.3, {"scale": -0.3}, "0.3", ", and -0.3 is scale"),
    (HEADS, 1 / 0.3, {"scale": 0.3}, "3.33333333", ": 1/0.3, where 0.3 is scale"),
    (HEADS, 0.3**0.5, {"scale": 0.3}, "0.547722558", ": sqrt(0.3), where 0.3 is scale"),
    (HEADS, 0.123456789, {"scale": 0.123456789}, "0.123456789", ": 0.123457, where 0.123457 is scale"),
    (HEADS, -1 / 0.75, {}, "-1.33333333", ": -1/(1 - 0.25), as for a dropout probability of 0.25"),
    (HEADS, 0.95, {}, "0.95", ": 1 - 0.05, as for a dropout probability of 0.05"),
    (HEADS, 0.6, {}, "0.6", ": 1 - 0.4, as for a dropout probability of 0.4"),
    (HEADS, 1 / 0.6, {}, "1.66666667", ": 1/(1 - 0.4), as for a dropout probability of 0.4"),
    (HEADS, 0.95, {"num_heads": 3}, "0.95", ""),
    (HEADS, 60, {}, "60", f", and 60 = 5 * 12 is the length of axes 1 to 2 of {ALL}"),
    (HEADS, 1 / 120, {}, "0.00833333333", f": 1/120, where 120 = 2 * 5 * 12 is the length of axes 0 to 2 of {ALL}"),
    (HEADS, 12 / 5, {}, "2.4", f": 12/5, where {LAST} and {SECOND}"),
    (HEADS, 2.4**0.5, {}, "1.54919334", f": sqrt(12/5), where {LAST} and {SECOND}"),
    (HEADS, 5 / 12, {}, "0.416666667", f": 5/12, where {SECOND} and {LAST}"),
    (HEADS, 1.7, {}, "1.7", ""),
    (HEADS, 1 + 1e-9, {}, "1 + 1e-09", ""),
    (HEADS, 1 - 1e-9, {}, "1 - 1e-09", ""),
    (HEADS, 1e-6, {}, "1e-06", ""),
    (HEADS, -1e6, {}, "-1000000", ""),
    (HEADS, -1, {"causal": True, "window": math.inf, "dropout_p": 0.0}, "-1", ""),
    (HEADS, 2, {}, "2", f", and 2 is the length of axis 0 of {ALL}"),
    (ADDITIVE, 2, {}, "2", " (also sqrt(4), where 4 is the length of axis 0 of query and the output)"),
    (ADDITIVE, 3, {}, "3", ", and 3 is the length of an axis of query, key, w_query and w_key"),
    (ADDITIVE, 0.5, {}, "0.5", ": 1/sqrt(4), where 4 is the length of axis 0 of query and the output"),
    (ADDITIVE, 18, {}, "18", ", and 18 = 3 * 6 is the length of axes 0 to 1 of w_query and w_key"),
    (LAYER, 1 / 5, {}, "0.2", f": 1/5, {A_MEAN} 5 gives"),
    (BLOCKED, 57, {}, "57", ", and 57 = 19 * 3 is the length of axes 0 to 1 of the output"),
    (SCALED, 1 / 4, {}, "0.25", f": 1/4, {A_MEAN} 4 gives"),
    (SCALED, 1 / 2, {}, "0.5", f": 1/2, {A_MEAN} 2 gives"),
]


@pytest.mark.parametrize(("place", "factor", "constants", "shown", "name"), FACTORS)
def test_of_a_factor_it_is_said(place, factor, constants, shown, name):
    function, where = place
    forward, backward, inputs = FUNCTIONS[function]
    found = evidence_of(forward, lambda *a: [factor * g for g in backward(*a)], inputs, where, constants)
    assert diagnose(found) == f"it is {shown} times the numerical gradient throughout{name}"


def said_of(change, shape, output_shape=(7,), constants=None, noise=8 * EPS):
    """What is said where ``change(right, rng)`` is claimed, the right slopes being random: (outputs, *shape)."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((math.prod(output_shape), *shape))
    wrong = np.asarray(change(right.copy(), rng))
    flat = (x.reshape(len(right), -1) for x in (right, wrong))
    return diagnose(linear_evidence(*flat, shape, output_shape, rng, noise, constants))


def exchanged_in_pairs(length):
    return [k ^ 1 if k | 1 < length else k for k in range(length)]


ORDERS = [
    ((4, 4, 4), lambda g: g.transpose(0, 3, 1, 2), "its axes are permuted, to the order 2, 0 and 1"),
    ((3, 4, 3), lambda g: g.transpose(0, 3, 2, 1), "axes 0 and 2 are transposed"),
    ((3, 5), lambda g: g[:, ::-1, ::-1], "axes 0 and 1 are reversed"),
    ((2, 8), lambda g: np.roll(g, -3, 2), "it is shifted by -3 along axis 1, around the end"),
    ((2, 9), lambda g: np.roll(g, 4, 2), "it is shifted by 4 along axis 1, around the end"),
    ((2, 9), lambda g: np.roll(g, -4, 2), "it is shifted by -4 along axis 1, around the end"),
    ((5, 3), lambda g: g[:, [2, 0, 1, 4, 3]], "the slices along axis 0 are in another order: 2, 0, 1, 4, 3"),
    (
        (12, 3),
        lambda g: g[:, exchanged_in_pairs(12)],
        "the slices along axis 0 are in another order: 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10",
    ),
    ((13, 3), lambda g: g[:, exchanged_in_pairs(13)], "the slices along axis 0 are in another order"),
    (
        (8, 3),
        lambda g: g[:, [4, 5, 2, 3, 0, 1, 6, 7]],
        "the blocks of 2 along axis 0 are in another order: 2, 1, 0, 3",
    ),
    ((2, 4), lambda g: g[:, :, [0, 3, 2, 1]], "indices 1 and 3 of axis 1 are exchanged"),
    ((2, 5), lambda g: g[:, ::-1], "axis 0 is reversed"),
    ((1500,), lambda g: np.roll(g, 300, 1), "it is shifted by 300 along axis 0, around the end"),
    ((2,) * 6, lambda g: g.swapaxes(1, 6), "axes 0 and 5 are transposed"),
    (
        (12, 3),
        lambda g: g.reshape(-1, 3, 4, 3).swapaxes(1, 2).reshape(g.shape),
        "the slices along axis 0 are in another order: 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11",
    ),
    (
        (14, 3),
        lambda g: g.reshape(-1, 2, 7, 3).swapaxes(1, 2).reshape(g.shape),
        "a reshape stands where a transpose belongs, or the other way round: as (2, 7, 3), "
        "its axes are permuted to the order 1, 0 and 2 before it is reshaped to (14, 3)",
    ),
    (
        (2, 3, 4),
        lambda g: g.transpose(0, 3, 1, 2).reshape(g.shape),
        "it is transposed to (4, 2, 3) and then reshaped to (2, 3, 4): a reshape stands where a transpose belongs",
    ),
]


@pytest.mark.parametrize(("shape", "change", "sentence"), ORDERS, ids=[sentence for *_, sentence in ORDERS])
def test_of_another_order_it_is_said(shape, change, sentence):
    assert said_of(lambda g, _: change(g), shape) == sentence


def test_axes_in_another_order_are_looked_for_up_to_six():
    assert "transposed" not in str(said_of(lambda g, _: g.swapaxes(1, 7), (2,) * 7))


def test_of_equal_slices_each_is_taken_to_be_where_it_was():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 4, 3))
    right[:, 1] = right[:, 0]
    wrong = right[:, [3, 1, 2, 0]]
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (4, 3), (7,), rng)
    assert diagnose(found) == "indices 0 and 3 of axis 0 are exchanged"


def times_minus_one(g, rng):  # noqa: ARG001
    return -g


def by_something(g, rng):
    return g + rng.standard_normal(g.shape)


def zero(g, rng):  # noqa: ARG001
    return 0 * g


AT = np.s_
PLACES = [
    ((10, 3), AT[1::3], by_something, "at every third index of axis 0, from 1 on"),
    ((12, 3), AT[2::4], by_something, "at every 4th index of axis 0, from 2 on"),
    ((3, 9), AT[:, ::2], by_something, "at every second index of axis 1, from 0 on"),
    ((9, 3), AT[[0, 3, 4]], by_something, "at the indices 0, 3 and 4 of axis 0"),
    ((10, 3), AT[2::2], by_something, "at the indices 2, 4, 6 and 8 of axis 0"),  # every second would have 0
    ((8, 3), AT[[1, 2, 5]], by_something, "at the indices 1, 2 and 5 of axis 0"),
    ((20, 3), AT[[1, 2, 5, 7]], by_something, "at the indices 1, 2, 5 and 7 of axis 0"),
    ((9, 3), AT[2:5], by_something, "from index 2 to 4 of axis 0 (of 9)"),
    ((9, 3), AT[4:], by_something, "from index 4 of axis 0 on (of 9)"),
    ((9, 3), AT[:4], by_something, "up to index 3 of axis 0 (of 9)"),
    ((5, 6), AT[2, 3], zero, "at one entry, [2, 3], where it is zero"),
    ((5,), AT[2], times_minus_one, "at index 2 of axis 0, where it is -1 times the numerical gradient"),
]


@pytest.mark.parametrize(("shape", "where", "change", "sentence"), PLACES, ids=[sentence for *_, sentence in PLACES])
def test_of_places_it_is_said(shape, where, change, sentence):
    def wrong(g, rng):
        inside = (slice(None), *(where if isinstance(where, tuple) else (where,)))
        g[inside] = change(g[inside], rng)
        return g

    assert said_of(wrong, shape) == f"wrong only {sentence}"


def test_of_five_indices_without_a_rule_nothing_is_said():
    def wrong(g, rng):
        g[:, [1, 2, 5, 7, 12]] = by_something(g[:, [1, 2, 5, 7, 12]], rng)
        return g

    assert said_of(wrong, (20, 3)) is None


@pytest.mark.parametrize(
    ("side", "text"),
    [
        (np.equal, "on the diagonal"),
        (np.less, "above the diagonal"),
        (np.greater, "below the diagonal"),
        (np.less_equal, "on and above the diagonal"),
        (np.greater_equal, "on and below the diagonal"),
        (np.not_equal, "off the diagonal"),
    ],
)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (zero, ", where it is zero"),
        (times_minus_one, ", where it is -1 times the numerical gradient"),
        (by_something, ""),
    ],
)
def test_of_a_triangle_it_is_said(side, text, change, what):
    rows, columns = np.indices((6, 6))
    for shape in ((6, 6), (2, 6, 6)):
        sentence = said_of(lambda g, rng: np.where(side(rows, columns), change(g, rng), g), shape)
        assert sentence == f"wrong only {text} of the last two axes{what}"


# Numbers


RIGHT = np.random.default_rng(1).standard_normal((7, 3, 4))


def evidence_with(added=0.0, factor=1.0, at_zero=None):
    found = linear_evidence(
        RIGHT.reshape(7, 12), (factor * RIGHT).reshape(7, 12), (3, 4), (7,), np.random.default_rng(2)
    )
    return found._replace(analytic={"x": found.analytic["x"] + added}, at_zero=at_zero)


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        (lambda x: 0 * x + 0.123456789, "a constant is added to it, 0.123457 in every entry, whatever the cotangent"),
        (lambda x: 0.123456789 * x, "0.123457 times x itself is added to it, whatever the cotangent"),
        (
            lambda x: 1.23456789 + np.arange(12).reshape(x.shape),
            "something is added to it that does not depend on the cotangent, from 1.235 to 12.23",
        ),
    ],
)
def test_of_what_is_added_whatever_the_cotangent_it_is_said(added, sentence):
    plain = evidence_with()
    added = added(plain.inputs["x"])
    found = evidence_with(added, at_zero=added)
    assert diagnose(found._replace(verdict=np.ones_like(found.verdict))) == sentence


def test_factors_along_an_axis_are_said_with_four_digits():
    found = evidence_with(factor=np.array([np.pi / 10, 1.0, 10 * np.pi])[:, np.newaxis])
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3142 to 31.42"


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2, 2), "each index of axis 0 has its own factor, 0.3 to 2.718"),
        ((2, 1), None),  # of one entry each, any two numbers are multiples
    ],
)
def test_a_factor_of_an_index_explains_two_wrong_entries_at_least(shape, sentence):
    factors = np.array([0.3, np.e])[:, np.newaxis]
    said = said_of(lambda g, _: factors * g, shape)
    assert said == sentence or (sentence is None and "own factor" not in str(said))


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_factors_along_an_axis_are_said_at_any_scale(size):
    right = size * RIGHT
    wrong = np.array([0.3, 1.0, np.e])[:, np.newaxis] * right
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (3, 4), (7,), np.random.default_rng(2))
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3 to 2.718"


@pytest.mark.parametrize(("length", "sentence"), [(2, None), (3, "the same number is added to every entry: ")])
def test_the_same_number_is_evidence_in_three_entries(length, sentence):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, length))
    wrong = right + rng.standard_normal((7, 1))
    said = diagnose(linear_evidence(right, wrong, (length,), (7,), rng))
    assert said is None if sentence is None else said.startswith(sentence)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 2)])
def test_the_same_number_is_evidence_in_entries_of_all_axes(shape):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, math.prod(shape)))
    found = linear_evidence(right, right + rng.standard_normal((7, 1)), shape, (7,), rng)
    assert diagnose(found).startswith("the same number is added to every entry: ")


@pytest.mark.parametrize(("entries", "said"), [(1, False), (2, True)])
def test_two_entries_are_about_the_same_for_every_cotangent_by_no_accident(entries, said):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, entries))
    found = linear_evidence(right, right, (entries,), (7,), rng)
    claimed = np.array([1.7, -2.9])[:entries] * np.array([[1.0], [1 + 1e-7], [1 - 1e-7]])
    found = found._replace(
        analytic={"x": claimed}, floor=np.full(entries, 1e-6), verdict=np.ones(entries, int), at_zero=None
    )
    assert ("it is the same whatever the cotangent" in str(diagnose(found))) == said


# What lengths are called


def said_of_factor(factor, inputs, where, output_shape):
    """What is said of a factor on the gradient of one of several inputs."""
    rng = np.random.default_rng(0)
    shape = inputs[where]
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    found = linear_evidence(right, factor * right, shape, output_shape, rng)
    arrays = {name: rng.standard_normal(length) for name, length in inputs.items()}
    numerical, analytic = {where: found.numerical["x"]}, {where: found.analytic["x"]}
    return diagnose(found._replace(name=where, inputs=arrays, numerical=numerical, analytic=analytic))


@pytest.mark.parametrize(
    ("factor", "inputs", "output_shape", "said"),
    [
        (
            11.0,
            dict.fromkeys("abcde", (11, 3)),
            (2, 5),
            "it is 11 times the numerical gradient throughout, and 11 is the length of axis 0 of a, b, c and others",
        ),
        (
            33.0,
            dict.fromkeys("abcd", (11, 3)),
            (2, 5),
            "it is 33 times the numerical gradient throughout, "
            "and 33 = 11 * 3 is the length of axes 0 to 1 of a, b, c and d",
        ),
        (22.0, {"a": (11, 1, 2), "b": (3,)}, (5,), "it is 22 times the numerical gradient throughout"),
        (
            1 / 8,
            {"a": (3, 1), "b": (3, 5)},
            (2, 3, 4),
            "it is 0.125 times the numerical gradient throughout: 1/8, "
            "as a mean in the place of the sum over the broadcast axes of lengths 2 and 4 gives",
        ),
    ],
)
def test_of_a_length_it_is_said(factor, inputs, output_shape, said):
    assert said_of_factor(factor, inputs, "a", output_shape) == said


# Masks, sums, and the softmax correction


@pytest.mark.parametrize(
    ("zeros", "leaking", "sentence"),
    [
        ([0], [0], "in the only entry without any effect"),
        ([2, 5, 9], [2, 5, 9], "in all 3 entries without any effect"),
        ([3, 4, 5, 6], [3, 4, 5], "in 3 of 4 entries without any effect"),
    ],
)
def test_of_a_leak_it_is_said(zeros, leaking, sentence):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 20))
    right[:, zeros] = 0
    wrong = right.copy()
    wrong[:, leaking] = rng.standard_normal((7, len(leaking)))
    found = linear_evidence(right, wrong, (20,), (7,), rng)
    numerical = found.numerical["x"].copy()
    numerical[:, zeros] = 0
    said = diagnose(found._replace(numerical={"x": numerical}))
    assert said.startswith(f"it is not zero where it must be, as behind a mask: {sentence}")


def test_the_first_term_of_a_sum_over_two_axes_is_called_so():
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 3)), "b": np.array(0.7)}
    found = evidence_of(lambda x, b: x * b, lambda d, x, b: (d * b, np.asarray((d * x)[0, 0])), inputs, "b")
    assert diagnose(found) == "it is only the first term of the sum over all broadcast axes"


@pytest.mark.parametrize("cotangents", [[0, 1, 1], [1, 1, 0.5], [1, -2, 0.5]])
@pytest.mark.parametrize("length", [2, 3])
def test_the_softmax_correction_shows_in_rows_of_any_length_and_whatever_cotangent_shows_it(length, cotangents):
    rng = np.random.default_rng(0)
    projection = np.kron(np.eye(4), np.eye(length) - 1 / length)
    found = linear_evidence(projection, projection, (4, length), (4 * length,), rng)
    weights = rng.uniform(0.1, 1, (4, length)) + np.arange(length)
    error = np.multiply.outer(cotangents, weights)
    found = found._replace(
        analytic={"x": found.numerical["x"] + error}, at_zero=None, verdict=np.ones((4, length), int)
    )
    said = diagnose(found)
    assert said is not None
    assert said.startswith(
        "the softmax correction along axis 1, weights * sum(weights * d_weights), is missing or wrong"
    )


def test_a_term_of_a_sum_is_placed_along_the_axes_that_were_summed_alone():
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((5, 1, 4)), "w": rng.standard_normal((4, 6)), "b": rng.standard_normal((1, 6))}

    def backward(d, x, w, b):
        inner = d * (1 - np.tanh(x @ w + b) ** 2)
        return 0 * x, 0 * w, inner[2]

    found = evidence_of(lambda x, w, b: np.tanh(x @ w + b), backward, inputs, "b")
    assert diagnose(found) == (
        "it is only the term at index 2 of axis 0 of the sum over the broadcast axes: no other cotangent matters"
    )


def test_a_softmax_correction_that_is_missing_in_one_row_alone_is_called_so():
    def backward(d, x):
        weights = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        correction = (weights * d).sum(axis=-1, keepdims=True)
        correction[-1] = 0
        return (weights * (d - correction),)

    def softmax(x):
        exponentials = np.exp(x)
        return exponentials / exponentials.sum(axis=-1, keepdims=True)

    found = evidence_of(softmax, backward, {"x": np.random.default_rng(0).standard_normal((4, 6))}, "x")
    assert diagnose(found).startswith("the softmax correction, weights * sum(weights * d_weights) along the rows,")
