"""The answers are the truth: other arithmetic and more digits give the same."""

from typing import Any

import numpy as np
import pytest
from helpers import each, some_of

import attention_np
from attention_np import known_answers
from attention_np.known_answers import bounds, program, settling, truth
from attention_np.known_answers.examples import all_examples
from attention_np.known_answers.formats import FORMATS, Format, to_format

from .sets import Sets, finite

EXTENDED = Format(64, -1074, 64, -1022, "")  # the bounds are worked out in float64, and so have its range
IN_DOUBLE = ("silu", "gelu", "gelu_tanh", "quick_gelu")  # gates, which are computed in double precision at most
SMALL = [example for example in all_examples() if "tile" not in example.tags and example.name != "long"]
IN_EXTENDED = [example for example in SMALL if example.options.get("kind") not in IN_DOUBLE]
EPSILON = np.finfo(float).eps


def exactly(x: np.longdouble) -> Any:
    """A number of extended precision, which mpmath does not take in all versions, by its two halves."""
    high = float(x)
    return truth.MP.fadd(high, float(x - high), exact=True)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy's longdouble has no 64 bits here")
@each("example", *some_of(IN_EXTENDED, 16))
def test_the_ops_in_extended_precision_agree_with_fifty_digits(example: Any) -> None:
    exact = truth.answers(example.op, example.inputs, example.options)
    wide = {name: x if x.dtype == np.bool_ else x.astype(np.longdouble) for name, x in example.inputs.items()}
    found = known_answers.of_op(getattr(attention_np, example.op))(wide, example.options)
    limits = bounds.bounds(example.op, EXTENDED, example.inputs, example.options)
    largest = {name: np.abs(np.where(finite(x), x, 0).astype(float)).max(initial=0) for name, x in exact.items()}
    ordinary = not {"large scores"} & set(example.tags) and example.name != "saturated"
    for name, x in exact.items():
        assert found[name].dtype == np.longdouble
        some = finite(x)
        np.testing.assert_array_equal(found[name][~some], x[~some].astype(float))
        difference = np.abs(np.vectorize(exactly, otypes=[object])(found[name][some]) - x[some]).astype(float)
        size = np.abs(x[some]).astype(float)
        assert (difference <= limits[name][some] + 2 * EXTENDED.unit * size + 1e-300).all()
        if ordinary:
            scale = largest[name] if largest[name] > 1e-30 else max(largest.values())  # what is zero came of these
            assert difference.max(initial=0) <= 2e-18 * scale


@each("example", *some_of(SMALL, 11))
def test_the_numbers_whose_errors_are_bounded_are_the_answers(example: Any) -> None:
    exact = truth.answers(example.op, example.inputs, example.options)
    found = bounds.analysed(example.op, FORMATS["float64"], example.inputs, example.options)
    for name, x in exact.items():
        some, expected = finite(x), np.where(finite(x), x, 0).astype(float)
        difference = np.where(some, found[name].value - expected, 0)
        assert (np.abs(difference) <= found[name].error + 4 * EPSILON * np.abs(expected) + 1e-300).all()


@each("example", *some_of([example for example in SMALL if example.op == "latent"], 3))
def test_both_forms_of_latent_attention_have_the_same_answers(example: Any) -> None:
    with truth.LOCK, truth.MP.workdps(truth.DIGITS):
        exact = {name: x if x.dtype == np.bool_ else truth._exact(x) for name, x in example.inputs.items()}
        plain, absorbed = (
            form(truth.Exact(), exact, example.options) for form in (program._latent_plain, program._latent_absorbed)
        )
        assert plain.keys() == absorbed.keys()
        for name, x in plain.items():
            off = np.abs(absorbed[name] - x)[finite(x)]
            # The absorbed form takes the default scale from a double.
            assert (off <= (1e-40 if "scale" in example.options else 1e-13) * max(np.abs(x[finite(x)]))).all()


@each("example", *some_of(SMALL[::7], 9))
def test_more_digits_change_no_answer(example: Any) -> None:
    errors = bounds.bounds(example.op, FORMATS["float64"], example.inputs, example.options)
    fewer = settling.settled_answers(example.op, example.inputs, example.options, errors)
    more = truth.answers(example.op, example.inputs, example.options, digits=150)
    for name, x in fewer.items():
        a, b = to_format(x, "float64"), to_format(more[name], "float64")
        np.testing.assert_array_equal(a, np.where(np.abs(b) < 1e-140, a, b))
        assert not a[np.abs(b) < 1e-140].any() or "huge" in example.name


def test_a_gradient_that_cancels_to_nothing_is_exactly_zero(answers: Sets) -> None:
    for case in known_answers.load(answers["multi_head"], skip=["sink"]):
        if "b_key" in case.inputs and "rotary" not in case.options:  # all scores of a query move alike
            assert not case.answers["d_b_key"].any()
            assert case.bounds["d_b_key"].any() or "one-key" in case.name
