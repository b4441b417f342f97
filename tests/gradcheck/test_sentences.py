"""What is said of a planted bug, word for word: people read these sentences, and search for them."""

import pytest

from .evidence import diagnosis_of
from .planted import PLANTED

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
        "it is 1.63299316 times the numerical gradient throughout: perhaps sqrt(8/3), where 8 is the length of the "
        "last axis of query and key and 3 is the length of the last axis of value and the output"
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
        "the softmax correction along axis 1, the weights times one sum a row, is missing or wrong: the errors"
        " of each row are a multiple of the weights whatever the cotangent, and the right rows sum to zero"
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
