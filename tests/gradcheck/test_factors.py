"""A constant factor: when one is found, and how it is shown."""

import math

import numpy as np
from helpers import each
from hypothesis import given
from hypothesis import strategies as st

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import UNDECIDED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose
from attention_np.gradcheck.diagnosis.factors import Factor

from .evidence import RIGHT, evidence_of, linear_evidence, matrices, noises, said_of, seeds
from .programs import normal


@each(
    ("wrong", "expected"),
    [
        (lambda d, x: -d * np.cos(x), "it is -1 times the numerical gradient throughout"),
        (lambda d, x: 2 * d * np.cos(x), "it is 2 times the numerical gradient throughout"),
        (lambda d, x: 0.73 * d * np.cos(x), "it is 0.73 times the numerical gradient throughout"),
        (lambda d, x: 0 * d * x, "it is zero throughout"),
        (lambda d, x: d * np.sin(x), None),
        (lambda d, x: d * x, None),
    ],
)
@each("shape", [(), (1,), (1, 1)])
def test_a_single_ratio_is_a_factor_only_if_it_is_no_accident(wrong, expected, shape):
    x = np.full(shape, normal(seed=1))
    assert diagnose(evidence_of(np.sin, lambda *a: (wrong(*a),), {"x": x}, "x")) == expected


@each(
    ("factor", "at", "expected"),
    [
        (np.e, [2], "at index 2 of axis 0, where it is 2.71828183 times the numerical gradient"),
        (-1, [2], "at index 2 of axis 0, where it is -1 times the numerical gradient"),
        (np.e, [2, 4], "at the indices 2 and 4 of axis 0, where it is 2.71828183 times the numerical gradient"),
    ],
)
def test_one_wrong_entry_has_a_factor_that_is_the_same_at_another_point(factor, at, expected):
    rng = np.random.default_rng(0)
    right = np.diag(rng.standard_normal(6))
    wrong = right * np.where(np.isin(np.arange(6), at), factor, 1)
    assert diagnose(linear_evidence(right, wrong, (6,), (6,), rng)) == f"wrong only {expected}"


@each(("noise", "shown"), [(3e-6, "2.7183"), (3e-5, "2.718"), (3e-4, "about 2.72")])
def test_a_factor_is_shown_with_the_digits_that_are_known(noise, shown):
    said = said_of(lambda g, _: np.e * g, (20, 20), noise=noise)
    assert said == f"it is {shown} times the numerical gradient throughout"


@given(matrices, matrices, seeds, noises, st.sampled_from([-1, 2, 0.5, -2, 1.7, 0.01, 300]))
def test_a_factor_is_found_in_any_shape(shape, output_shape, seed, noise, factor):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((math.prod(output_shape), math.prod(shape)))
    sentence = diagnose(linear_evidence(right, factor * right, shape, output_shape, rng, noise))
    assert sentence.startswith(f"it is {factor:g} times the numerical gradient throughout")


@each(
    ("left", "said"),
    [
        ([0, 0, 0], "throughout"),
        ([0, 0, 1e-17], "throughout, but for rounding"),
        ([0, 9, 0], "in every entry that can"),
    ],
)
def test_a_gradient_is_called_zero_no_further_than_it_is(left, said):
    x, u = np.ones(3), np.random.default_rng(0).standard_normal((3, 3))
    verdict, floor = np.array([WRONG, UNDECIDED, WRONG]), np.array([1e-15, 1e3, 1e-15])
    found = Evidence("x", {"x": x}, x, u, {"x": u * left}, {"x": u * [1, 0, 1]}, floor, verdict, 0 * x, {})
    assert diagnose(found).startswith(f"it is zero {said}")
    twice = found._replace(analytic={"x": 2 * found.numerical["x"] + [0, 9, 0]})
    assert diagnose(twice).startswith("it is 2 times the numerical gradient in every entry that can be decided")


def test_entries_so_small_that_their_noise_is_lost_do_not_hide_a_factor():
    sizes = np.where(np.arange(6) % 3, 1.0, 1e-310)
    assert of_ratios(np.random.default_rng(0).standard_normal((3, 6)) * sizes) == E_TIMES


def test_an_index_of_which_all_is_noise_has_no_factor():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((3, 2, 4)) * np.array([[1.0], [1e-12]])
    claimed = right * np.array([[np.e], [1e5]])
    floor = np.full((2, 4), 1e-9)
    x, u = rng.standard_normal((2, 4)), rng.standard_normal((3, 7))
    found = Evidence("x", {"x": x}, u[0], u, {"x": claimed}, {"x": right}, floor, np.ones((2, 4), int), 0 * x, {})
    assert "own factor" not in str(diagnose(found))


@each("size", [1e-9, 1.0, 1e9])
def test_factors_along_an_axis_are_said_with_four_digits_at_any_scale(size):
    right = size * RIGHT
    wrong = np.array([np.pi / 10, 1.0, 10 * np.pi])[:, np.newaxis] * right
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (3, 4), (7,), np.random.default_rng(2))
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3142 to 31.42"


@each(
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


def of_ratios(right, factor=np.e, output_shape=(7,)):
    """What is said where the gradient for three cotangents, (3, entries), is claimed to be a multiple of itself."""
    right = np.asarray(right, float)
    x = np.random.default_rng(3).standard_normal(right.shape[1])
    u, output = np.random.default_rng(4).standard_normal((2, 3, *output_shape))
    floor, verdict = 1e-15 * abs(right[0]), np.full(x.shape, WRONG)
    found = Evidence("x", {"x": x}, output[0], u, {"x": factor * right}, {"x": right}, floor, verdict, 0 * x, {})
    return diagnose(found)


E_TIMES = "it is 2.71828183 times the numerical gradient throughout"


@each(
    ("right", "said"),
    [([[1.3], [0.7], [0.0]], E_TIMES), ([[0.0], [0.7], [1.3]], E_TIMES), ([[1.3], [0.0], [0.0]], None)],
)
def test_two_ratios_make_a_factor_where_one_may_be_any_number(right, said):
    assert of_ratios(right) == said


@each(("entries", "factor", "said"), [(3, np.e, E_TIMES), (2, np.pi, None), (2, 2.0, None)])
def test_of_a_single_output_it_takes_the_ratios_of_three_entries(entries, factor, said):
    right = np.multiply.outer([1.3, 0.7, -0.4], [1.0, 3.7, 0.29][:entries])  # alike for every cotangent
    found = of_ratios(right, factor, output_shape=())
    assert found == said or (said is not None and found.startswith(said))


@each(
    ("wrong", "said"),
    [
        (lambda d, x: d / x**2, "it is -1 times the numerical gradient throughout"),
        (lambda d, x: -2 * d / x**2, "it is 2 times the numerical gradient throughout"),
        (lambda d, x: -d / x, "it is x times the numerical gradient, entry by entry: a factor x too many"),
        (lambda d, x: -d * np.cosh(x - 2) / 2, None),
    ],
)
def test_of_round_inputs_another_point_tells_a_factor_from_an_accident(wrong, said):
    found = evidence_of(lambda x: 1 / x, lambda d, x: (np.asarray(wrong(d, x)),), {"x": np.array(2.0)}, "x")
    assert diagnose(found) == said


def test_an_index_that_one_entry_tells_of_has_its_factor_too_and_one_of_zeros_has_none():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 4, 4))
    right[:, 2, 1:] = right[:, 3] = 0
    wrong = right * np.array([0.3, np.e, 50.0, 7.0])[:, np.newaxis]
    found = linear_evidence(right.reshape(7, 16), wrong.reshape(7, 16), (4, 4), (7,), rng)
    assert diagnose(found) == "each index of axis 0 has its own factor, 0.3 to 50"


LAST, SECOND = "12 is the length of the last axis of a", "5 is the length of axis 1 of a"
FIRST_AXIS, LAST_AXIS = "the length of axis 0 of a", "the length of the last axis of a"
MEAN = ", as a mean in the place of the sum over the broadcast"
A_MEAN = f"{MEAN} axis of length"
HEADS = {"a": (2, 5, 12)}, (2, 5, 12)  # the shapes of the inputs, differentiated by the first, and of the output
CONSTANTS = [  # the factor, what the function was called with, how it is shown, and what is said of it
    (3, {"num_heads": 3}, "3", ": 3, which is num_heads"),
    (1 / 3, {"num_heads": 3}, "0.333333333", ": 1/3, where 3 is num_heads"),
    (4, {"num_heads": 3}, "4", f": perhaps 12/3, where {LAST} and 3 is num_heads"),
    (1 / 4, {"num_heads": 3}, "0.25", f": perhaps 1/(12/3), where {LAST} and 3 is num_heads"),
    (3**-0.5, {"num_heads": 4}, "0.577350269", f": perhaps 1/sqrt(12/4), where {LAST} and 4 is num_heads"),
    (12**0.5, {}, "3.46410162", f": perhaps sqrt(12), where {LAST}"),
    (12**0.5 + 1e-7, {}, "3.46410172", ""),  # near a name, but clearly not it
    (12**-0.5, {}, "0.288675135", f": perhaps 1/sqrt(12), where {LAST}"),
    (1 / 12, {}, "0.0833333333", f": perhaps 1/12, where {LAST}"),
    (5, {}, "5", ": perhaps 5, which is the length of axis 1 of a"),
    (1 / 0.9, {"dropout_p": 0.1}, "1.11111111", ": 1/(1 - 0.1), where 0.1 is dropout_p"),
    (0.9, {"dropout_p": 0.1}, "0.9", ": 1 - 0.1, where 0.1 is dropout_p"),
    (0.1, {"dropout_p": 0.1}, "0.1", ": 0.1, which is dropout_p"),
    (-0.3, {"scale": 0.3}, "-0.3", ": -0.3, where 0.3 is scale"),
    (0.3, {"scale": -0.3}, "0.3", ": 0.3, where -0.3 is scale"),
    (0.123456789, {"scale": 0.123456789}, "0.123456789", ": 0.123457, which is scale"),
    (-1 / 0.75, {}, "-1.33333333", ""),
    (0.95, {}, "0.95", ""),
    (0.6, {}, "0.6", ""),
    (60, {}, "60", ": perhaps 60, where 60 = 5 * 12 is the length of axes 1 and 2 of a"),
    (1 / 120, {}, "0.00833333333", ": perhaps 1/120, where 120 = 2 * 5 * 12 is the length of axes 0, 1 and 2 of a"),
    (12 / 5, {}, "2.4", f": perhaps 12/5, where {LAST} and {SECOND}"),
    (2.4**0.5, {}, "1.54919334", f": perhaps sqrt(12/5), where {LAST} and {SECOND}"),
    (5 / 12, {}, "0.416666667", f": perhaps 5/12, where {SECOND} and {LAST}"),
    (1 / 5, {"num_heads": 5}, "0.2", ": perhaps 1/5, where 5 is num_heads"),
    (12 / 7, {"num_heads": 7}, "1.71428571", ""),  # of no whole number of features
    (
        24,
        {"dropout_p": 0.5},
        "24",
        ": perhaps 24, where 24 = 2 * 12 is the length of axes 0 and 2 of a",
    ),  # and not 12/0.5
    (1 + 1e-9, {}, "1 + 1e-09", ""),
    (1e-6, {}, "1e-06", ""),
    (-1e6, {}, "-1000000", ""),
    (-1, {"causal": True, "window": math.inf, "dropout_p": 0.0}, "-1", ""),
    (2, {}, "2", ": perhaps 2, which is the length of axis 0 of a; or a 2, as of a square"),
    (1 / np.log(2), {}, "1.44269504", ": perhaps 1/log(2), as of logarithms or powers to the base 2"),
    (-np.pi / 180, {}, "-0.0174532925", ": perhaps -pi/180, as of degrees"),
    (np.sqrt(2 * np.pi), {}, "2.50662827", ": perhaps sqrt(2 * pi), as of turns"),
]
ADDITIVE = {"a": (4, 3), "key": (5, 3), "value": (5, 2), "w_query": (3, 6), "w_key": (3, 6), "w_score": (6,)}
SCALE = {"a": (3, 1), "x": (2, 3, 4)}
LENGTHS = [  # the factor, the shapes of the inputs and of the output, and what is said of it
    (11, dict.fromkeys("abcde", (11, 3)), (2, 5), ": perhaps 11, which is the length of axis 0 of a"),
    (33, dict.fromkeys("abcd", (11, 3)), (2, 5), ": perhaps 33, where 33 = 11 * 3 is the length of axes 0 and 1 of a"),
    (22, {"a": (11, 1, 2), "b": (3,)}, (5,), ": perhaps 22, where 22 = 11 * 2 is the length of axes 0 and 2 of a"),
    # other axes may be as long, or several together
    (1 / 7, {"a": (7, 7)}, (2, 3), f": perhaps 1/7, where 7 is {LAST_AXIS}"),
    (
        1 / 12,
        {"a": (3, 4, 2), "x": (12, 3)},
        (12, 4, 2),
        ": perhaps 1/12, where 12 is the length of axis 0 of x",
    ),
    (
        1 / 12,
        {"a": (3, 4, 5), "b": (7,)},
        (6, 5, 2),
        ": perhaps 1/12, where 12 = 3 * 4 is the length of axes 0 and 1 of a",
    ),
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
        ": perhaps sqrt(9/4), where 9 is the length of the last axis of b and 4 is the length of the last axis of a; "
        "or 9/6, where 9 is the length of the last axis of b and 6 is the length of axis 0 of a",
    ),
    (1 / 4, {"a": (3,), "b": (7,)}, (1, 3, 4), f": 1/4{MEAN} axis of length 4 gives"),
    # along 4 it is broadcast, and not along 2
    (
        1 / 8,
        {"a": (2, 3), "b": (7,)},
        (2, 3, 4),
        ": perhaps 1/8, where 8 = 2 * 4 is the length of axes 0 and 2 of the output",
    ),
    # along the axis of length 2 it is not broadcast
    (
        1 / 40,
        {"a": (2,), "b": (3,)},
        (5, 2, 4),
        ": perhaps 1/40, where 40 = 5 * 2 * 4 is the length of axes 0, 1 and 2 of the output",
    ),
    (11, {"a": (11, 3), "where": (11, 2)}, (2,), ": perhaps 11, which is the length of axis 0 of a"),
    # of all that a factor may be, none is stated as the one
    (0.5, {"a": (4, 7)}, (4, 7), f": perhaps 1/sqrt(4), where 4 is {FIRST_AXIS}; or a half, as of a square"),
    (0.6, {"a": (3, 5)}, (3, 5), f": perhaps 3/5, where 3 is {FIRST_AXIS} and 5 is {LAST_AXIS}"),
    (3, {"a": (3, 9)}, (3, 9), f": perhaps sqrt(9), where 9 is {LAST_AXIS}; or 3, which is {FIRST_AXIS}"),
    (
        4,
        {"a": (16, 4, 2)},
        (16, 4, 2),
        f": perhaps sqrt(16), where 16 is {FIRST_AXIS}; or 4, which is the length of axis 1 of a",
    ),
    (0.8, {"a": (5, 3)}, (3,), ""),
    (1 / 40, {"a": (3, 1, 1)}, (2, 3, 4, 5), f": 1/40{MEAN} axes of lengths 2, 4 and 5 gives"),
    (3, ADDITIVE, (4, 2), f": perhaps 3, which is {LAST_AXIS}"),
    (
        2,
        ADDITIVE,
        (4, 2),
        f": perhaps 2, which is the length of the last axis of value; or sqrt(4), where 4 is {FIRST_AXIS}; or a 2, as "
        "of a square",
    ),
    (18, ADDITIVE, (4, 2), ": perhaps 18, where 18 = 3 * 6 is the length of axes 0 and 1 of w_query"),
    (1 / 5, {"a": (6,), "x": (5, 4), "w": (4, 6)}, (5, 6), f": 1/5{A_MEAN} 5 gives"),
    (
        57,
        {"a": (19, 4), "w": (4, 3)},
        (19, 3),
        ": perhaps 57, where 57 = 19 * 3 is the length of axes 0 and 1 of the output",
    ),
    (1 / 4, SCALE, (2, 3, 4), f": 1/4{A_MEAN} 4 gives"),
    (
        1 / 2,
        SCALE,
        (2, 3, 4),
        f": perhaps 1/2{A_MEAN} 2 gives; or 1/sqrt(4), where 4 is the length of the last axis of x; or a half, as of "
        "a square",
    ),
]


def said_of_a_factor(factor, shapes, output_shape, constants=None):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((math.prod(output_shape), math.prod(shapes["a"])))
    found = linear_evidence(right, factor * right, shapes["a"], output_shape, rng, constants=constants)
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    gradients = {part: {"a": getattr(found, part)["x"]} for part in ("numerical", "analytic")}
    return diagnose(found._replace(name="a", inputs=inputs, **gradients))


@each(("factor", "constants", "shown", "name"), CONSTANTS)
def test_of_a_factor_it_is_said(factor, constants, shown, name):
    said = said_of_a_factor(factor, *HEADS, constants)
    assert said == f"it is {shown} times the numerical gradient throughout{name}"


@each(("factor", "shapes", "output_shape", "name"), LENGTHS)
def test_of_a_length_it_is_said(factor, shapes, output_shape, name):
    said = said_of_a_factor(factor, shapes, output_shape)
    assert said == f"it is {factor:.9g} times the numerical gradient throughout{name}"


@each(("shift", "said"), [(0, True), (0.3, False)])
def test_a_variance_is_spoken_of_only_where_the_gradient_sums_to_zero_as_that_of_a_variance_does(shift, said):
    def forward(x):
        return ((x - (1 - shift) * x.mean(axis=0)) ** 2).mean(axis=0)

    def backward(d, x):
        centered = x - (1 - shift) * x.mean(axis=0)
        return (d * 2 * (centered - (1 - shift) * centered.mean(axis=0)) / 5,)

    found = evidence_of(forward, backward, {"x": normal(6, 3, seed=1)}, "x")
    variance = ": perhaps 6/5, as of a variance, with n - 1 or n, where n = 6 is the length of axis 0 of x"
    assert diagnose(found) == f"it is 1.2 times the numerical gradient throughout{variance if said else ''}"


@each("dropped", [True, False])
@each(("factor", "name"), [(0.9, "1 - 0.1"), (1 / 0.9, "1/(1 - 0.1)")])
def test_a_dropout_is_spoken_of_only_where_entries_are_dropped(factor, name, dropped):
    right = np.random.default_rng(0).standard_normal((3, 9)) * np.where(dropped & (np.arange(9) % 3 == 0), 0, 1)
    dropout = f": perhaps {name}, as for a dropout probability of 0.1"
    assert of_ratios(right, factor) == (
        f"it is {factor:.9g} times the numerical gradient throughout{dropout if dropped else ''}"
    )


def test_two_indices_with_one_factor_are_not_each_said_to_have_their_own():
    right = np.random.default_rng(0).standard_normal((7, 3, 4))
    wrong = 3 * right
    right[:, 2] = 0
    found = linear_evidence(right.reshape(7, 12), wrong.reshape(7, 12), (3, 4), (7,), np.random.default_rng(1))
    assert "its own factor" not in str(diagnose(found))


def test_of_equal_numbers_any_formula_makes_a_factor_but_not_the_same_at_another_point():
    inputs = {"x": np.full((3, 8), 0.7)}
    for wrong, said in ((lambda x: np.sqrt(8) * np.cos(x), "sqrt(8)"), (lambda x: np.sqrt(8) * np.exp(x - 0.7), None)):
        claimed = wrong if said else lambda x, wrong=wrong: wrong(x) * np.cos(0.7)
        found = diagnose(evidence_of(np.sin, lambda d, x, claimed=claimed: (d * claimed(x),), inputs, "x"))
        assert found == (
            said
            and "it is 2.82842712 times the numerical gradient throughout: perhaps sqrt(8), where 8 is the "
            "length of the last axis of x"
        )


@each(
    ("length", "first", "second"),
    [
        (
            8,
            "sqrt(8), where 8 is the length of the last axis of a",
            "2.82843, which is temperature",
        ),
        (7, "2.64575, which is temperature", "sqrt(7), where 7 is the length of axis 0 of key"),
    ],
)
def test_a_root_of_a_last_axis_comes_before_a_number_of_the_call_and_that_before_other_lengths(length, first, second):
    factor, shapes = math.sqrt(length), {"a": (5, 8), "key": (7, 8), "value": (7, 3)}
    found = said_of_a_factor(factor, shapes, (5, 3), {"temperature": factor})
    assert found.endswith(f"times the numerical gradient throughout: perhaps {first}; or {second}")


def inverse_backward(d, x, times=1.0):
    """Right at symmetric points only, but for a number: a transposition is missing."""
    return -times * np.linalg.inv(x) @ d @ np.linalg.inv(x)


@each(
    ("times", "point", "alone"),
    [(2.0, normal(4, 4), True), (1.7, normal(2, 2), True), (2.0, np.zeros((3, 3)), False)],
)
def test_of_a_factor_that_is_gone_at_another_point_it_is_said_that_it_is(times, point, alone):
    x = {"x": point @ point.T + 4 * np.eye(len(point))}
    found = check(np.linalg.inv, lambda d, x: inverse_backward(d, x, times), x)["x"].diagnosis
    said = f"it is {times:g} times the numerical gradient throughout, at this point alone: at another it is not"
    assert (found == said) == alone  # entries that are alike have one factor by whatever formula


@each("off", [1e-5, -1e-5, 3e-9, 3e-13])
def test_a_factor_next_to_one_is_the_same_at_another_point_where_it_is_known_there(off):
    def backward(d, x):
        return (1 + off) * d * (1 - np.tanh(x) ** 2)

    found = {check(np.tanh, backward, {"x": normal(3, 4, seed=seed)})["x"].diagnosis for seed in range(6)}
    spelled = {str(Factor(1 + off + rounding, 1e-15)) for rounding in (-1e-15, 1e-15)}
    said = {f"it is {factor} times the numerical gradient throughout" for factor in spelled}
    assert found <= (said if abs(off) > 1e-12 else {"no simple cause"})


def test_of_several_outputs_no_length_is_that_of_all_of_them():
    def forward(x):
        return {"h": x @ np.ones((3, 4)), "loss": (x * x).sum()}

    def backward(d, x):
        return (d["h"] @ np.ones((4, 3)) + 2 * x * d["loss"]) / 3

    found = check(forward, backward, {"x": normal(2, 3)})["x"].diagnosis
    assert "perhaps 1/3, where 3 is the length of the last axis of x" in found
    assert "9" not in found


def test_a_factor_of_the_entries_that_can_be_decided_is_seen_beside_such_as_noise_hides():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((7, 6))
    right[:, 2:] = 0
    found = linear_evidence(right, 0.35 * right, (6,), (7,), rng)
    numerical, floor = found.numerical["x"].copy(), found.floor.copy()
    numerical[:, 2:], floor[2:] = 1e-13 * rng.standard_normal((3, 4)), 1e-13
    verdict = np.where(np.arange(6) < 2, WRONG, UNDECIDED)
    found = found._replace(numerical={"x": numerical}, floor=floor, verdict=verdict)
    assert diagnose(found) == "it is 0.35 times the numerical gradient throughout"
    hidden = found._replace(verdict=np.where(np.arange(6) < 1, WRONG, UNDECIDED))
    assert "0.35" in str(diagnose(hidden))


@each(
    ("value", "precision", "said"),
    [
        (1.0502, 0.02, "about 1.05"),
        (0.9701, 0.02, "about 0.97"),
        (-1.004, 1e-3, "-1.004"),
        (1.234, 0.02, "about 1.23"),
        (3.14159, 1e-3, "3.14"),
        (1 + 2.7e-13, 1e-13, "1 + 3e-13"),
    ],
)
def test_a_factor_has_digits_enough_to_tell_it_from_one(value, precision, said):
    assert str(Factor(value, precision)) == said


@each("x", [0.7, 1.1, 1.9])
@each("slight", [1e-3, 0.01, 0.03])
def test_a_ratio_that_is_another_at_another_point_is_no_factor(slight, x):
    def backward(d, x):
        return d * np.exp(x) * (np.sin(3 * x) + (3 + slight * x**3) * np.cos(3 * x))

    found = check(lambda x: np.exp(x) * np.sin(3 * x), backward, {"x": np.array(x)})["x"]
    assert found.wrong == 1
    assert "throughout" not in found.diagnosis


def test_a_difference_with_a_sign_is_in_parentheses():
    found = check(np.positive, lambda d, x: -0.7 * d + 0 * x, {"x": normal(5)}, constants={"p": 0.3})["x"]
    assert "-(1 - 0.3), where 0.3 is p" in found.diagnosis
