"""What is said of a gradient that is rounded, or random, and what is not."""

import numpy as np
import pytest

from attention_np.gradcheck.agreement import UNCHECKED, WRONG
from attention_np.gradcheck.diagnosis import Evidence, diagnose

from .test_diagnosis import linear_evidence

ROUNDED = "it is rounded to float16"
LIKE_SINGLE = "its errors are of the size of rounding to float32"
RANDOM = (
    "it looks random: of both signs alike, unrelated to the numerical gradient and to its own neighbours, and for "
    "two nearly parallel cotangents unrelated to itself"
)


def starts(sentence, beginning):
    return sentence is not None and sentence.startswith(beginning)


def claimed_for(right, claimed, dtype=float):
    """Evidence of a gradient for three cotangents, (3, entries), known far better than it is claimed."""
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal((7, right.shape[1]))
    found = linear_evidence(slopes, slopes, right.shape[1:], (7,), rng)
    return found._replace(
        output=found.output.astype(dtype),
        analytic={"x": claimed},
        numerical={"x": right},
        floor=1e-16 + 0 * found.floor,
        verdict=np.full(right.shape[1:], WRONG),
    )


# Rounded


def rounded_to_half(rng, entries=40):
    right = rng.standard_normal((3, entries))
    return right, right.astype(np.float16).astype(float)


@pytest.mark.parametrize(("dtype", "said"), [(np.float64, True), (np.float32, True), (np.float16, False)])
def test_a_gradient_is_rounded_if_its_numbers_have_fewer_bits_than_the_output(dtype, said):
    right, claimed = rounded_to_half(np.random.default_rng(1))
    assert starts(diagnose(claimed_for(right, claimed, dtype)), ROUNDED) == said


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("sampled", [False, True])
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


@pytest.mark.parametrize("sampled", [False, True])
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


@pytest.mark.parametrize(("entries", "said"), [(9, False), (10, True)])
def test_thirty_errors_tell_what_rounding_is_like(entries, said):
    right = np.random.default_rng(1).uniform(0.9, 1, (3, entries))
    assert starts(diagnose(claimed_for(right, right * (1 + like_single(entries)))), LIKE_SINGLE) == said


@pytest.mark.parametrize(("typical", "said"), [(3.8, True), (4.5, False)])
def test_the_typical_error_of_single_precision_is_a_few_last_places(typical, said):
    right = np.random.default_rng(1).uniform(0.9, 1, (3, 40))
    assert starts(diagnose(claimed_for(right, right * (1 + like_single(40, typical)))), LIKE_SINGLE) == said


def test_zeros_do_not_hide_that_the_rest_is_like_rounding():
    right = np.random.default_rng(1).uniform(0.9, 1, (3, 40))
    right[:, :8] = 0
    found = claimed_for(right, right * (1 + like_single(40)))
    found = found._replace(verdict=np.where(np.arange(40) < 8, 0, WRONG))
    assert starts(diagnose(found), LIKE_SINGLE)


# Random


def random_gradient(*shape, change=None, seed=2):
    """Evidence of random numbers in the place of a gradient; ``change(claimed, right)`` makes some less so."""
    rng = np.random.default_rng(seed)
    entries = int(np.prod(shape))
    u = rng.standard_normal((3, 50))
    u[2] = u[0] + 0.1 * rng.standard_normal(50)
    right = (u @ rng.standard_normal((50, entries))).reshape(3, *shape)
    claimed = rng.choice([-1.0, 1.0], (3, *shape)) * rng.uniform(0.5, 1, (3, *shape))
    if change is not None:
        change(claimed, right)
    x = rng.standard_normal(shape)
    return Evidence("x", {"x": x}, u[0], u, {"x": claimed}, {"x": right}, 0 * x, np.full(shape, WRONG), None, {})


@pytest.mark.parametrize("shape", [(36,), (3000,), (1, 36), (2, 32), (50, 50)])
def test_numbers_without_any_pattern_look_random(shape):
    assert starts(diagnose(random_gradient(*shape)), RANDOM)


@pytest.mark.parametrize(("entries", "positive"), [(36, 29), (3000, 1620)])
def test_numbers_of_which_most_have_one_sign_do_not_look_random(entries, positive):
    def change(claimed, _):
        signs = np.where(np.arange(entries) < positive, 1, -1)
        claimed[1] = np.abs(claimed[1]) * np.random.default_rng(0).permutation(signs)

    assert not starts(diagnose(random_gradient(entries, change=change)), RANDOM)


def test_a_gradient_that_is_right_for_one_cotangent_does_not_look_random():
    def change(claimed, right):
        claimed[1] = right[1]

    assert not starts(diagnose(random_gradient(2500, change=change)), RANDOM)


@pytest.mark.parametrize("shape", [(2, 32), (32, 2), (1, 32, 2), (32, 1, 2)])
def test_slices_that_are_alike_do_not_look_random_along_whatever_axis_they_are(shape):
    def change(claimed, _):
        axis = shape.index(2)
        pair = np.moveaxis(claimed[1], axis, 0)
        pair[1] = pair[0]

    assert not starts(diagnose(random_gradient(*shape, change=change)), RANDOM)


def test_a_slice_of_one_sign_does_not_look_random():
    def change(claimed, _):
        claimed[1, 17] = np.abs(claimed[1, 17])

    assert not starts(diagnose(random_gradient(50, 50, change=change)), RANDOM)
