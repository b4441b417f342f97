"""What a constant factor is called: a length, a number of the call, and what they make."""

import math

import numpy as np
import pytest

from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of, linear_evidence
from .planted import FUNCTIONS

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
    (HEADS, 12 / 5, {}, "2.4", f": perhaps 12/5, where {LAST} and {SECOND}"),
    (HEADS, 2.4**0.5, {}, "1.54919334", f": perhaps sqrt(12/5), where {LAST} and {SECOND}"),
    (HEADS, 5 / 12, {}, "0.416666667", f": perhaps 5/12, where {SECOND} and {LAST}"),
    (HEADS, 1.7, {}, "1.7", ""),
    (HEADS, 12 / 7, {"num_heads": 7}, "1.71428571", ""),  # of no whole number of features
    (HEADS, 24, {"dropout_p": 0.5}, "24", ""),
    (HEADS, 1 + 1e-9, {}, "1 + 1e-09", ""),
    (HEADS, 1 - 1e-9, {}, "1 - 1e-09", ""),
    (HEADS, 1e-6, {}, "1e-06", ""),
    (HEADS, -1e6, {}, "-1000000", ""),
    (HEADS, -1, {"causal": True, "window": math.inf, "dropout_p": 0.0}, "-1", ""),
    (HEADS, 2, {}, "2", f", and 2 is the length of axis 0 of {ALL}"),
    (
        ADDITIVE,
        2,
        {},
        "2",
        " (also sqrt(4), where 4 is the length of axis 0 of query and the output; "
        "or 2, which is the length of the last axis of value and the output)",
    ),
    (ADDITIVE, 3, {}, "3", ", and 3 is the length of an axis of query, key, w_query and w_key"),
    (
        ADDITIVE,
        0.5,
        {},
        "0.5",
        " (also 1/sqrt(4), where 4 is the length of axis 0 of query and the output; "
        "or 1/2, where 2 is the length of the last axis of value and the output)",
    ),
    (ADDITIVE, 18, {}, "18", ", and 18 = 3 * 6 is the length of axes 0 to 1 of w_query and w_key"),
    (LAYER, 1 / 5, {}, "0.2", f": 1/5, {A_MEAN} 5 gives"),
    (BLOCKED, 57, {}, "57", ", and 57 = 19 * 3 is the length of axes 0 to 1 of the output"),
    (SCALED, 1 / 4, {}, "0.25", f": 1/4, {A_MEAN} 4 gives"),
    (
        SCALED,
        1 / 2,
        {},
        "0.5",
        f" (also 1/2, {A_MEAN} 2 gives; or 1/sqrt(4), where 4 is the length of the last axis of x and the output)",
    ),
]


@pytest.mark.parametrize(("place", "factor", "constants", "shown", "name"), FACTORS)
def test_of_a_factor_it_is_said(place, factor, constants, shown, name):
    function, where = place
    forward, backward, inputs = FUNCTIONS[function]
    found = evidence_of(forward, lambda *a: [factor * g for g in backward(*a)], inputs, where, constants)
    assert diagnose(found) == f"it is {shown} times the numerical gradient throughout{name}"


MEAN = ", as a mean in the place of the sum over the broadcast"
LENGTHS = [  # the factor, the shapes of the inputs and of the output, and what is said of it
    (11, dict.fromkeys("abcde", (11, 3)), (2, 5), ", and 11 is the length of axis 0 of a, b, c and others"),
    (33, dict.fromkeys("abcd", (11, 3)), (2, 5), ", and 33 = 11 * 3 is the length of axes 0 to 1 of a, b, c and d"),
    (22, {"a": (11, 1, 2), "b": (3,)}, (5,), ""),
    (1 / 8, {"a": (3, 1), "b": (3, 5)}, (2, 3, 4), f": 1/8{MEAN} axes of lengths 2 and 4 gives"),
    (1 / 5, {"a": (1, 3, 1), "b": (), "c": (5,)}, (1, 3, 1), f": 1/5{MEAN} axis of length 5 gives"),
    (
        np.sqrt(5 / 3),
        {"a": (5, 2), "empty": (0, 3)},
        (2,),
        ": perhaps sqrt(5/3), where 5 is the length of axis 0 of a and 3 is the length of the last axis of empty",
    ),
    (
        1.5,
        {"a": (6, 4), "b": (9,)},  # 9/6 and 6/4 as well
        (5,),
        ": perhaps sqrt(9/4), where 9 is the length of the last axis of b and 4 is the length of the last axis of a",
    ),
    (1 / 4, {"a": (3,), "b": (7,)}, (1, 3, 4), f": 1/4{MEAN} axis of length 4 gives"),
    (1 / 8, {"a": (2, 3), "b": (7,)}, (2, 3, 4), ""),  # along 4 it is broadcast, and not along 2
    # along the axis of length 2 it is not broadcast
    (
        1 / 40,
        {"a": (2,), "b": (3,)},
        (5, 2, 4),
        ": 1/40, where 40 = 5 * 2 * 4 is the length of axes 0 to 2 of the output",
    ),
    (11, {"a": (11, 3), "where": (11, 2)}, (2,), ", and 11 is the length of axis 0 of a and where"),
]


@pytest.mark.parametrize(("factor", "inputs", "output_shape", "name"), LENGTHS)
def test_of_a_length_it_is_said(factor, inputs, output_shape, name):
    rng = np.random.default_rng(0)
    shape = inputs["a"]
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    found = linear_evidence(right, factor * right, shape, output_shape, rng)
    arrays = {name: rng.standard_normal(length) for name, length in inputs.items()}
    found = found._replace(
        name="a", inputs=arrays, numerical={"a": found.numerical["x"]}, analytic={"a": found.analytic["x"]}
    )
    assert diagnose(found) == f"it is {factor:.9g} times the numerical gradient throughout{name}"


def test_of_equal_numbers_any_formula_makes_a_factor_that_needs_no_name():
    inputs = FUNCTIONS["attention"].inputs
    equal = {name: np.full(x.shape, 0.7 + k) for k, (name, x) in enumerate(inputs.items())}
    right = np.random.default_rng(0).standard_normal((7, equal["query"].size))
    found = linear_evidence(right, np.sqrt(8) * right, equal["query"].shape, (7,), np.random.default_rng(1))
    assert diagnose(found._replace(inputs={"x": equal["query"], **equal})) == (
        "it is 2.82842712 times the numerical gradient throughout"
    )
    assert "sqrt(8)" in diagnose(found._replace(inputs={"x": equal["query"], **equal, "key": inputs["key"]}))


@pytest.mark.parametrize(
    ("length", "first", "second"),
    [
        (
            8,
            "sqrt(8), where 8 is the length of the last axis of query and key",
            "2.82843, where 2.82843 is temperature",
        ),
        (7, "2.64575, where 2.64575 is temperature", "sqrt(7), where 7 is the length of axis 0 of key and value"),
    ],
)
def test_a_root_of_a_last_axis_comes_before_a_number_of_the_call_and_that_before_other_lengths(length, first, second):
    forward, backward, inputs = FUNCTIONS["attention"]
    factor = math.sqrt(length)
    found = evidence_of(
        forward, lambda *a: [factor * g for g in backward(*a)], inputs, "query", {"temperature": factor}
    )
    assert diagnose(found).endswith(f"times the numerical gradient throughout: perhaps {first}; or {second}")
