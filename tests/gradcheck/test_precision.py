"""What is said of a gradient that is rounded, and what is not."""

import re

import numpy as np
from helpers import each

from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import diagnose

from .evidence import evidence_of, linear_evidence
from .planted import PLANTED, bug
from .programs import normal

ROUNDED = r"it is rounded to float16: every entry is such a number, off by at most about \S+ of the largest entry$"
LIKE_SINGLE = (
    r"its errors are of the size of rounding to float32, at most about \S+ of the largest entry, and without a "
    "pattern: some of it seems to be computed in that precision$"
)


def starts(sentence, pattern):
    return sentence is not None and re.match(pattern, sentence) is not None


class Nearby:
    """What is asked of a point close by: for three cotangents, `claimed` and `right`; nothing is known of others."""

    is_linear = True
    output = np.ones(7)

    def __init__(self, claimed, right):
        self.claimed, self.right = claimed, right

    def moved(self, inputs):  # noqa: ARG002
        return self

    def slopes(self, cotangents):
        return self.right if len(cotangents) == 3 else np.full((len(cotangents), *self.right.shape[1:]), np.nan)

    def claims(self, cotangents):
        known = np.concatenate([self.claimed, 0 * self.claimed[:1]])
        return known if len(cotangents) == 4 else np.full((len(cotangents), *self.right.shape[1:]), np.nan)


def other_errors_nearby(right, claimed):
    """As of rounding: like those here, each somewhere else."""
    rng = np.random.default_rng(9)
    errors = (claimed - right) / np.where(right == 0, 1, right)
    moved = rng.permutation(errors, axis=-1) * rng.choice([-1, 1], right.shape)
    return Nearby(right * (1 + moved), right)


def the_same_errors_nearby(right, claimed):
    """As of a formula."""
    return Nearby(claimed * (1 + 1e-5), right * (1 + 1e-5))


def larger_errors_nearby(right, claimed):
    """As of what is nearly zero at one point alone."""
    other = other_errors_nearby(right, claimed)
    return Nearby(right + 4 * (other.claimed - right), right)


def claimed_for(right, claimed):
    """Evidence of a gradient for three cotangents, (3, entries), known far better than it is claimed."""
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal((7, right.shape[1]))
    found = linear_evidence(slopes, slopes, right.shape[1:], (7,), rng)
    return found._replace(
        analytic={"x": claimed},
        numerical={"x": right},
        floor=1e-16 + 0 * found.floor,
        verdict=np.full(right.shape[1:], WRONG),
        ask=other_errors_nearby(right, claimed),
    )


def rounded_to_half(rng, entries=40):
    right = rng.standard_normal((3, entries))
    return right, right.astype(np.float16).astype(float)


@each(("noise", "said"), [(2.0**-53, True), (2.0**-24, True), (2.0**-11, False)])
def test_a_gradient_is_rounded_if_its_numbers_have_fewer_bits_than_are_known_of_it(noise, said):
    right, claimed = rounded_to_half(np.random.default_rng(1))
    found = claimed_for(right, claimed)._replace(floor=noise * np.abs(right[0]))
    assert starts(diagnose(found), ROUNDED) == said


@each("size", [1e-3, 1.0, 1e3])
@each("sampled", [False, True])
def test_a_sample_of_the_entries_tells_at_any_scale_that_they_are_rounded(size, sampled):
    right, _ = rounded_to_half(np.random.default_rng(1))
    right = size * right
    found = claimed_for(right, right.astype(np.float16).astype(float))
    unknown = sampled & (np.arange(40) % 4 == 0)
    found = found._replace(
        numerical={"x": np.where(unknown, np.nan, right)}, verdict=np.where(unknown, UNCHECKED, WRONG)
    )
    assert starts(diagnose(found), ROUNDED)


def test_numbers_of_few_bits_that_are_off_by_far_more_are_not_rounded():
    right, claimed = rounded_to_half(np.random.default_rng(1))
    claimed = (claimed * np.where(np.arange(40) % 3, 1, 1.3)).astype(np.float16).astype(float)
    assert not starts(diagnose(claimed_for(right, claimed)), "it is rounded")


@each("sampled", [False, True])
def test_numbers_that_are_round_anyway_do_not_tell_that_something_was_rounded(sampled):
    _, right = rounded_to_half(np.random.default_rng(1))
    found = claimed_for(right, right * (1 + 2.0**-10 * np.sign(np.sin(np.arange(40)))))
    claimed = found.analytic["x"].astype(np.float16).astype(float)
    unknown = sampled & (np.arange(40) % 4 == 0)
    found = found._replace(
        analytic={"x": claimed},
        numerical={"x": np.where(unknown, np.nan, right)},
        verdict=np.where(unknown, UNCHECKED, WRONG),
    )
    assert not starts(diagnose(found), ROUNDED)


def like_single(entries, typical=1.0):
    """Errors of both signs, their median so many times half the last place of single precision."""
    signs = np.where(np.arange(3 * entries) % 2, 1, -1).reshape(3, entries)
    return typical * 0.5**24 * signs


@each(("entries", "said"), [(9, False), (10, True)])
def test_thirty_errors_tell_what_rounding_is_like(entries, said):
    right = np.random.default_rng(1).uniform(0.9, 1, (3, entries))
    assert starts(diagnose(claimed_for(right, right * (1 + like_single(entries)))), LIKE_SINGLE) == said


@each(("typical", "said"), [(3.8, True), (4.5, False)])
def test_the_typical_error_of_single_precision_is_a_few_last_places(typical, said):
    right = np.random.default_rng(1).uniform(0.9, 1, (3, 40))
    assert starts(diagnose(claimed_for(right, right * (1 + like_single(40, typical)))), LIKE_SINGLE) == said


def test_zeros_do_not_hide_that_the_rest_is_like_rounding():
    right = np.random.default_rng(1).uniform(0.9, 1, (3, 40))
    right[:, :8] = 0
    found = claimed_for(right, right * (1 + like_single(40)))
    found = found._replace(verdict=np.where(np.arange(40) < 8, 0, WRONG))
    assert starts(diagnose(found), LIKE_SINGLE)


def test_a_wrong_formula_is_not_a_matter_of_precision_because_it_was_rounded():
    planted = bug("tanh layer, x: no tanh derivative")
    found = evidence_of(
        planted.forward,
        lambda *a: [g.astype(np.float32).astype(float) for g in planted.wrong_backward(*a)],
        planted.inputs,
        "x",
    )
    assert diagnose(found) is None


def test_a_number_of_single_precision_is_no_evidence_where_the_right_one_is_such_a_number_too():
    rng = np.random.default_rng(0)
    found = linear_evidence(np.eye(12), 2 * np.eye(12), (12,), (12,), rng)
    right = found.numerical["x"].astype(np.float32)
    wrong = (right * (1 + rng.uniform(-3e-5, 3e-5, right.shape))).astype(np.float32)
    found = found._replace(numerical={"x": right.astype(float)}, analytic={"x": wrong.astype(float)})
    assert diagnose(found) is None


@each(
    ("ask", "said"),
    [
        (other_errors_nearby, True),
        (larger_errors_nearby, False),
        (the_same_errors_nearby, False),
        (lambda *_: None, False),
    ],
)
def test_errors_that_are_the_same_nearby_are_not_those_of_rounding(ask, said):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((3, 40))
    found = claimed_for(right, right * (1 + rounding_errors(rng, right.shape)))
    found = found._replace(ask=ask(right, found.analytic["x"]))
    assert starts(diagnose(found), LIKE_SINGLE) == said


@each(("ask", "said"), [(other_errors_nearby, True), (the_same_errors_nearby, False), (lambda *_: None, False)])
@each("units", [1, 3])
def test_numbers_of_few_bits_are_computed_in_that_precision_if_they_are_off_by_more_than_rounding(ask, said, units):
    rng = np.random.default_rng(0)
    right = rng.standard_normal((3, 40))
    claimed = (right + units * rng.choice([-1, 1], right.shape) * np.spacing(right.astype(np.float16))).astype(
        np.float16
    )
    found = claimed_for(right, claimed.astype(float))
    found = found._replace(ask=ask(right, claimed.astype(float)))
    if units == 3:
        assert starts(diagnose(found), "it seems to be computed in float16: every entry is such a number") == said
    else:
        assert not starts(diagnose(found), ROUNDED)  # half a unit more than rounding makes


def rounding_errors(rng, shape):
    return rng.uniform(-1, 1, shape) * 6e-8


@each(
    ("errors", "like_rounding"),
    [
        (rounding_errors, True),
        (lambda rng, shape: rounding_errors(rng, shape) / 10, True),
        (lambda rng, shape: rounding_errors(rng, shape) / 100, False),  # float32 is not so good
        (lambda rng, shape: rounding_errors(rng, shape) * 5, True),
        (lambda rng, shape: rounding_errors(rng, shape) * 50, False),  # nor so bad
        (lambda rng, shape: abs(rounding_errors(rng, shape)), False),  # nor of one sign
        (lambda rng, shape: rounding_errors(rng, shape) * np.where(np.arange(shape[1]) == 3, 1000, 1), False),
    ],
)
def test_errors_like_rounding_are_of_that_size_everywhere_and_of_both_signs(errors, like_rounding):
    rng = np.random.default_rng(0)
    right = linear_evidence(np.eye(60) + 0.1, np.eye(60) + 0.1, (60,), (60,), rng).numerical["x"]
    found = claimed_for(right, right * (1 + errors(rng, (3, 60))))
    assert starts(diagnose(found), LIKE_SINGLE) == like_rounding


@each("summed", [True, False])
@each(("dtype", "said"), [(np.float32, True), (np.float64, False)])
def test_what_is_rounded_before_it_is_multiplied_is_known_by_a_cotangent_of_ones(dtype, said, summed):
    def forward(x):
        return np.exp(x).sum() if summed else np.exp(x)

    def backward(d, x):
        return d * np.exp(x).astype(dtype).astype(float) * (1 if said else 1 + 5e-8)

    found = check(forward, backward, {"x": np.linspace(-1, 1, 6)})["x"]
    assert found.wrong == 6
    assert starts(found.diagnosis, "it seems to be computed in float32: where the gradient of the output is") == said


def test_small_integers_are_no_precision():
    found = check(lambda x: 3 * x + 1e-8 * np.exp(x), lambda d, x: 3 * d, {"x": np.linspace(-1, 1, 6)})["x"]  # noqa: ARG005
    assert (found.wrong, found.diagnosis) == (6, "no simple cause")


@each("seed", range(5))
@each(
    ("forward", "slope"),
    [
        (lambda x: x**3 + x, lambda x: 3 * x**2 + 1.01),
        (lambda x: np.exp(x) + x**2, lambda x: np.exp(x) + 2 * x + 3e-3),
        (lambda x: x**3, lambda x: 3 * x**2 + 1e-4),  # beside which the right one falls
        (lambda x: 8 * x + 2 * np.maximum(x - 0.5, 0), lambda x: 8 + 2 * (x > 0.5) + 0.01),
        (lambda x: 1 / x, lambda x: -(1 + 1e-5 * np.arange(6)) / x**2),  # which grows as the gradient does
    ],
)
def test_what_is_added_to_a_derivative_is_no_epsilon(forward, slope, seed):
    found = check(forward, lambda d, x: d * slope(x), {"x": normal(6, seed=seed)})["x"].diagnosis
    assert "epsilon" not in found


@each("seed", range(5))
def test_of_one_wrong_entry_no_epsilon_is_spoken_however_its_error_rises(seed):
    one = np.where(np.arange(12).reshape(3, 4) == 6, 1.01, 1)
    found = check(np.exp, lambda d, x: d * one * np.exp(x), {"x": normal(3, 4, seed=seed)})["x"].diagnosis
    assert found == "wrong only at one entry, [1, 2], where it is 1.01 times the numerical gradient"


@each("seed", range(5))
@each(
    ("forward", "slope"),
    [
        (lambda x: -(x * np.log(x + 1e-6)).sum(), lambda x: -np.log(x + 1e-6) - 1),
        (lambda x: -(x * np.log(x + 1e-6)).sum(), lambda x: -np.log(x) - x / (x + 1e-6)),
        (lambda x: x - np.log(x + 1e-6), lambda x: 1 - 1 / x),
        (lambda x: 1 / (np.sqrt(x) + 1e-6), lambda x: -0.5 * x**-1.5),
    ],
)
def test_an_epsilon_is_guessed_at_whatever_the_rest_of_the_gradient_does(forward, slope, seed):
    x = {"x": np.random.default_rng(seed).uniform(0.05, 1, 6)}
    found = check(forward, lambda d, x: d * slope(x), x)["x"].diagnosis
    assert found.startswith("perhaps an epsilon beside x is missing")


@each("of", [it for it in PLANTED if it.expected == "epsilon"])
def test_an_epsilon_that_is_another_is_guessed_at_whatever_the_cotangent(of):
    for seed in range(8):
        found = check(of.forward, of.wrong_backward, of.inputs, rng=seed)[of.where].diagnosis
        assert found.startswith(
            f"perhaps an epsilon beside {of.where} is missing, or another one: it is off by at most"
        )
