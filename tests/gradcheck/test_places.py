"""A gradient that is wrong in some places only: what the places are called, and what is there."""

import math
import re

import numpy as np
import pytest
from helpers import each
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from attention_np.gradcheck import check
from attention_np.gradcheck.diagnosis import diagnose
from attention_np.gradcheck.diagnosis.mistake import Mistake
from attention_np.gradcheck.diagnosis.places import where_wrong

from .evidence import linear_evidence, matrices, noises, said_of, sampled, seeds


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
    ((20, 3), AT[[1, 2, 5, 7, 12]], by_something, None),  # five without a rule
]


def changed(where, change):
    """A change in some entries of slopes, (outputs, *shape)."""
    inside = (slice(None), *(where if isinstance(where, tuple) else (where,)))

    def wrong(g, rng):
        g[inside] = change(g[inside], rng)
        return g

    return wrong


@each(("shape", "where", "change", "sentence"), PLACES)
def test_of_places_it_is_said(shape, where, change, sentence):
    assert said_of(changed(where, change), shape) == (sentence and f"wrong only {sentence}")


@each(
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
@each(
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


@given(array_shapes(min_dims=2, max_dims=4, min_side=3, max_side=5), matrices, seeds, noises, st.data())
def test_a_slice_is_found_in_any_shape_with_what_it_holds(shape, output_shape, seed, noise, data):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.sampled_from(range(len(shape))))
    index = data.draw(st.sampled_from(range(shape[axis])))
    change, expected = data.draw(
        st.sampled_from([(0.0, ", where it is zero$"), (-1.0, ", where it is -1 times"), (None, "$")])
    )
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    wrong = right.copy()
    slices = np.take(np.arange(math.prod(shape)).reshape(shape), index, axis).ravel()
    wrong[:, slices] = rng.standard_normal(wrong[:, slices].shape) if change is None else change * wrong[:, slices]
    if change is None and len(slices) < 5:
        return  # a few wrong entries are in a row by chance every now and then
    sentence = diagnose(linear_evidence(right, wrong, shape, output_shape, rng, noise))
    assert re.search(f"^wrong only at index {index} of axis {axis}{expected}", sentence), sentence


def part(k, n, name):
    return f": number {k}, counted from 0, of the {n} parts that {name} makes"


HEADS = {"num_heads": 3}
BLOCKS = [  # from where to where, what the function was called with, and what is said of the place
    (4, 8, HEADS, "from index 4 to 7 of axis 1 (of 12{})", part(1, 3, "num_heads")),
    (8, 12, HEADS, "from index 8 of axis 1 on (of 12{})", part(2, 3, "num_heads")),
    (6, 12, {"parts": 2}, "from index 6 of axis 1 on (of 12{})", part(1, 2, "parts")),
    (10, 12, {"block_size": 5}, "from index 10 of axis 1 on (of 12{})", ": the last, partial block of block_size=5"),
    (3, 5, HEADS, "from index 3 to 4 of axis 1 (of 12{})", ""),
    (6, 12, {"scale": 2.5}, "from index 6 of axis 1 on (of 12{})", ""),  # no number of parts
    (6, 12, {"scale": 0.0, "p": np.inf, "block_size": 5}, "from index 6 of axis 1 on (of 12{})", ""),
    (5, 12, {"block_size": 5}, "from index 5 of axis 1 on (of 12{})", ""),
    (8, 11, {"block_size": 5}, "from index 8 to 10 of axis 1 (of 12{})", ""),
    (10, 12, {"block_size": 4}, "from index 10 of axis 1 on (of 12{})", ""),
    (6, 12, {"block_size": 6}, "from index 6 of axis 1 on (of 12{})", ""),  # a whole one
    (2, 6, HEADS, "from index 2 to 5 of axis 1 (of 12{})", ""),  # as long as a head, but across two
]


@each(("start", "stop", "constants", "place", "name"), BLOCKS)
def test_a_head_or_a_partial_block_is_called_so(start, stop, constants, place, name):
    said = said_of(changed(AT[:, start:stop], lambda g, _: np.e * g), (5, 12), constants=constants)
    assert said == f"wrong only {place.format(name)}, where it is 2.71828183 times the numerical gradient"


def test_what_was_not_looked_at_is_not_claimed():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 60))
    wrong = right * np.where(np.arange(60) < 30, 1, np.e)
    sentence = diagnose(sampled(linear_evidence(right, wrong, (6, 10), (7,), rng), share=0.5))
    assert sentence.startswith("wrong only from index 3 of axis 0 on (of 6) (of the entries that were looked at)")


def test_what_is_masked_belongs_to_any_slice():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 6, 6)) * np.tri(6)
    wrong = right.copy()
    wrong[:, :, 2] *= -1
    found = linear_evidence(right.reshape(7, 36), wrong.reshape(7, 36), (6, 6), (7,), rng)
    assert diagnose(found) == "wrong only at index 2 of axis 1, where it is -1 times the numerical gradient"


def of_a_leak(entries, zeros, leaking):
    """What is said where some entries have no effect, and some of them are claimed to have one."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, entries))
    right[:, zeros] = 0
    wrong = right.copy()
    wrong[:, leaking] = rng.standard_normal((7, len(leaking)))
    found = linear_evidence(right, wrong, (entries,), (7,), rng)
    numerical = found.numerical["x"].copy()
    numerical[:, zeros] = 0
    return diagnose(found._replace(numerical={"x": numerical}))


@each(
    ("zeros", "leaking", "sentence", "place"),
    [
        ([0], [0], "in the only such entry", ""),
        ([2, 5, 9], [2, 5, 9], "in all 3 such entries", ""),
        ([3, 4, 5, 6], [3, 4, 5], "in 3 of 4 such entries", ""),  # of 19, three are a range by accident
        ([3, 4, 5, 6, 7], [3, 4, 5, 6], "in 4 of 5 such entries", ", from index 3 to 6 of axis 0 (of 20)"),
        ([1, 2, 5, 7, 12, 13], [1, 2, 5, 7, 12], "in 5 of 6 such entries", ""),  # of no place with a name
    ],
)
def test_of_a_leak_it_is_said(zeros, leaking, sentence, place):
    said = of_a_leak(20, zeros, leaking)
    assert said == f"it is not zero where the numerical gradient is, {sentence}{place}: is a mask forgotten?"


@each(
    ("entries", "zeros", "leaking", "said"),
    [
        (24, 3, 2, ""),
        (26, 3, 2, "it is not zero where the numerical gradient is"),
        (9, 1, 1, "wrong only at index 0 of axis 0"),
        (9, 3, 1, "wrong only at index 0 of axis 0"),
        (9, 3, 2, ""),
        (9, 3, 3, "it is not zero where the numerical gradient is"),
        (11, 1, 1, "it is not zero where the numerical gradient is"),
    ],
)
def test_a_leak_is_said_if_as_many_entries_would_hardly_ever_be_zeros(entries, zeros, leaking, said):
    """Of 24 entries, two are among certain three with a chance of 1/92, of 26 with one of 1/108."""
    sentence = of_a_leak(entries, np.arange(zeros), np.arange(leaking)) or ""
    assert sentence.startswith(said)
    assert bool(sentence) == bool(said) or "is a mask forgotten" not in sentence


@each(
    ("shape", "where", "text", "chance"),
    [
        ((10,), AT[7:], "from index 7 of axis 0 on (of 10)", 2 / math.comb(10, 3)),
        ((10,), AT[:3], "up to index 2 of axis 0 (of 10)", 2 / math.comb(10, 3)),
        ((10,), AT[2:5], "from index 2 to 4 of axis 0 (of 10)", 10 / math.comb(10, 3)),
        ((10,), AT[4], "at index 4 of axis 0", 1),
        ((12,), AT[1::3], "at every third index of axis 0, from 1 on", (12 + 3) / math.comb(12, 4)),
        ((9,), AT[[0, 3, 4]], "at the indices 0, 3 and 4 of axis 0", 1),
        ((4, 5), AT[2], "at index 2 of axis 0", 4 / math.comb(20, 5)),
        (
            (6, 6),
            AT[2:, 4:],
            "from index 2 of axis 0 on (of 6) and from index 4 of axis 1 on (of 6)",
            10 * 2 * 2 / math.comb(36, 8),
        ),
        ((4, 5), AT[2, 3], "at one entry, [2, 3]", 10 * 4 * 5 / math.comb(20, 1)),
        ((6, 6), np.diag_indices(6), "on the diagonal of the last two axes", 6 / math.comb(36, 6)),
        ((3, 4, 5), AT[1, 2], "at index 1 of axis 0 and at index 2 of axis 1", 10 * 3 * 4 / math.comb(60, 5)),
    ],
)
def test_a_place_comes_with_the_chance_that_entries_strewn_at_random_make_one_like_it(shape, where, text, chance):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, *shape))
    wrong = changed(where, by_something)(right.copy(), rng)
    found = linear_evidence(right.reshape(7, -1), wrong.reshape(7, -1), shape, (7,), rng)
    place = where_wrong(Mistake.of(found))
    assert place.text == text
    assert place.chance == pytest.approx(math.log(chance), abs=1e-9)


def test_entries_that_are_zero_anyway_do_not_hide_of_which_axes_a_place_is():
    """Of the last axis every index is wrong in some place, and right in another, but for those that are masked."""
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 3, 4, 5))
    right[:, 1, 2, 3:] = 0
    wrong = right.copy()
    wrong[:, 1, 2] *= -1
    found = linear_evidence(right.reshape(7, 60), wrong.reshape(7, 60), (3, 4, 5), (7,), rng)
    assert diagnose(found) == (
        "wrong only at index 1 of axis 0 and at index 2 of axis 1, where it is -1 times the numerical gradient"
    )


@each(
    ("factor", "said"),
    [
        (lambda x: -1.0, "wrong in 4 of 12 entries, where it is -1 times the numerical gradient"),  # noqa: ARG005
        (lambda x: 0.0, "wrong in 4 of 12 entries, where it is zero"),  # noqa: ARG005
        (np.cos, "no simple cause"),
    ],
)
def test_what_is_simple_in_entries_without_a_place_is_said(factor, said):
    x, t = np.random.default_rng(0).standard_normal((2, 3, 4))

    def backward(d, x):
        return d * 2 / 7 * (x - t) * np.where(x < t, factor(x), 1)

    found = check(lambda x: ((x - t) ** 2).sum() / 7, backward, {"x": x})["x"]
    assert (found.wrong, found.diagnosis) == (4, said)
