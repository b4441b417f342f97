"""Who is believed where two gradients disagree."""

import re

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, GradientError, NotAnalyticError, assert_gradients, check
from attention_np.gradcheck.verdict.deciding import decide, settle
from attention_np.gradcheck.verdict.judging import HOLDS, UNDECIDED, WRONG, Verdict

from ..evidence import EPS, evidence_of
from ..programs import normal, real_only, shifted_softmax, shifted_softmax_backward

X = np.linspace(0.5, 1.2, 8)
WAYS = each("method", ["auto", "central"])


def partly_conjugate(share):
    """The square of x, its complex slope off by a share."""
    return lambda x: (1 - share) * x * x + share * (x * np.conj(x)).real


@each("scale", [1e-3, 1.0, 1e3])
@each(
    ("share", "claimed", "believed"),
    [
        (1.0, 1.0, True),
        (1.0, 3.0, True),  # they say something else than both, and grossly so
        (0.0, 3.0, False),  # both agree
        (1e-7, 1.0, True),  # slightly so, but two against one
        (1e-7, 1 + 1e-6, False),
        (1e-7, 1 + 5e-8, False),  # between the two, but close to none
        (1e-7, -1.0, False),
        (4e-6, 3.0, True),
        (4e-7, 3.0, False),
    ],
)
def test_differences_contradict_a_complex_step_if_they_are_far_from_it_or_are_what_is_claimed(
    share, claimed, believed, scale
):
    found = evidence_of(partly_conjugate(share), lambda d, x: claimed * 2 * d * x, {"x": scale * X}, tried=False)
    with np.errstate(all="ignore"):
        reason = settle(Verdict(found, 0.0))
    assert (reason is not None) == believed
    if believed:
        pattern = r"the complex step gives the slope (\S+), differences (\S+): forward is not analytic .*"
        steps, differences = map(float, re.fullmatch(pattern, reason).groups())
        assert steps == pytest.approx((1 - share) * differences, rel=1e-7, abs=1e-12)


def test_differences_that_see_too_little_of_the_output_contradict_nothing_and_nothing_is_wrong_without_them():
    forward = lambda x: 1e12 + 0 * x + (x * np.conj(x)).real  # noqa: E731 # whose last bits drown it
    found = evidence_of(forward, lambda d, x: d * 2 * x, {"x": 1e-6 * X}, tried=False)
    with np.errstate(all="ignore"):
        verdict = Verdict(found, 0.0)
        assert settle(verdict) is None
    assert not verdict.wrong.size


@each("rtol", [0.2, 0.05])
def test_differences_that_take_the_place_of_complex_steps_are_judged_with_the_same_tolerance(rtol):
    found = check(partly_conjugate(1.0), lambda d, x: 2.2 * d * x, {"x": X}, rtol=rtol)["x"]
    assert (found.method, found.ok) == ("central", rtol == 0.2)
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .* use central$"):
        decide(evidence_of(partly_conjugate(1.0), lambda d, x: 2 * d * x, {"x": X}, tried=False), False, 0.0)


def rough(x):
    """The derivative of half a square, but for the rounding of numbers ten thousand times as large."""
    return x * 10001 - x * 10000


@each("method", METHODS)
def test_of_rounding_that_no_rule_foresees_nothing_is_wrong_and_it_is_blamed_once(method):
    x = np.linspace(1, 2, 60)
    found = check(lambda x: x * x / 2, lambda d, x: d * rough(x), {"x": x}, vectorized=["x"], method=method)["x"]
    assert (found.wrong, found.ok) == (0, True)
    if method == "complex-step":
        assert 100 * EPS < np.median(found.details.floor) < found.details.floor.max() < 12 * 10001 * EPS


@WAYS
@each("k", [1.0, 1e-3])
@each("claimed", [0, 1])
def test_a_term_that_is_left_out_is_found_well_above_the_floor(claimed, k, method):
    """Of k |x| beside large terms, which the complex step and a trial along all entries see little of."""

    def forward(x):
        return np.array(np.sin(x[0]) + k * np.abs(x[1:]).sum())

    def backward(d, x, times=1):
        return d * np.concatenate([np.cos(x[:1]), times * k * np.sign(x[1:])])

    inputs = {"x": np.array([0.3, 2.0, -1.5])}
    right = check(forward, backward, inputs, method=method)["x"]
    assert right.ok
    assert k > 100 * right.details.floor.max()
    found = check(forward, lambda d, x: backward(d, x, claimed), inputs, method=method)["x"]
    np.testing.assert_array_equal(found.details.verdict == WRONG, [False, claimed != 1, claimed != 1])


def left_out(k, seed):
    """The report on a claim that leaves k |x| out, as the complex step does, and k over its floors."""
    x = np.array([0.3, 2.0, -1.5])
    found = check(lambda x: np.sin(x) + k * np.abs(x), lambda d, x: d * np.cos(x), {"x": x}, rng=seed)["x"]
    return found, np.abs(k * found.details.analytic / np.cos(x)) / found.details.floor


@each("seed", range(3))
@each("k", [1e-16, 1e-14, 1e-12, 1e-11, 1e-5, 1e-3, 0.1])
def test_a_term_that_is_left_out_by_the_complex_step_too_is_found_or_below_the_floor(k, seed):
    found, over_floor = left_out(k, seed)
    assert found.wrong == (3 if k >= 1e-5 else 0)
    assert found.wrong or (over_floor < 10).all()


@pytest.mark.parametrize("k", [1e-9, 1e-8, 1e-7, 1e-6])
def test_so_is_one_of_a_size_between(k):
    found, over_floor = left_out(k, 0)
    assert found.wrong or (over_floor < 10).all()


@WAYS
def test_entries_that_are_the_residue_of_a_cancellation_are_undecided_and_named_and_never_wrong(method):
    inputs = {"x": normal(8, 7), "shift": normal(8, 1, seed=1)}
    for change in (lambda d: d, lambda d: -d, lambda d: 3 * d, lambda d: d + 1e-12):

        def backward(d, x, shift, change=change):
            d_x, d_shift = shifted_softmax_backward(d, x, shift)
            return d_x, change(d_shift)

        report = check(shifted_softmax, backward, inputs, method=method)
        shift, off = report["shift"], abs(change(0)) > 0
        assert (report["x"].ok, shift.ok, shift.wrong) == (True, not off, 8 * off)
        if not off:
            assert shift.undecidable + (shift.details.verdict == HOLDS).sum() == 8
            assert shift.undecidable > 4
            assert shift.undecided == tuple(map(tuple, np.argwhere(shift.details.verdict == UNDECIDED).tolist()))


def entropy(p):
    if abs(p.sum() - 1) > 1e-15:
        raise ValueError("p must sum to one")
    return -(p * np.log(p)).sum()


P = np.array([0.5, 0.25, 0.25])


def test_what_cannot_be_measured_is_not_ok_and_it_is_said_why():
    found = check(entropy, lambda *_: np.full(3, 1e9), {"p": P}, method="central")["p"]
    assert (found.ok, found.verdict, found.wrong, found.undecidable) == (False, "undecidable", 0, 3)
    assert np.isnan(found.max_relative_error)
    assert found.diagnosis == (
        "it could not be checked: forward has no slope by the numerical method in 3 entries: where one of them moves, "
        "it raises ValueError (p must sum to one). Check it behind a projection onto what it allows"
    )
    with pytest.raises(GradientError, match="it could not be checked"):
        assert_gradients(entropy, lambda d, p: -d * (np.log(p) + 1), {"p": P}, method="central")


@WAYS
@each(("factor", "wrong"), [(1.0, 0), (1.01, 3)])
def test_along_the_directions_that_forward_allows_an_input_is_checked(factor, wrong, method):
    def lenient(p):
        if abs(p.sum() - 1) > 1e-12:
            raise ValueError("p must sum to one")
        return -(p * np.log(p)).sum()

    backward = lambda d, p: -factor * d * (np.log(p) + 1)  # noqa: E731
    start = np.array([0.2, 0.3, 0.5])

    def allowed(p):
        return p - (p - start).mean()

    found = check(
        lambda p: lenient(allowed(p)),
        lambda d, p: backward(d, allowed(p)) - backward(d, allowed(p)).mean(),
        {"p": start},
        method=method,
    )["p"]
    assert (found.ok, found.wrong) == (wrong == 0, wrong)


def root_of_what_is_not_below_one(x):
    if (np.real(x) < 1).any():
        raise ValueError("below one")
    return np.sqrt(x - 0.5)


@each(("x", "said"), [([1.0, 1.5, 2.0], "in 1 entry"), ([1.0, 1.5, 1.0], "in 2 entries"), ([1.2, 1.5], None)])
def test_one_entry_that_cannot_be_measured_makes_the_report_not_ok(x, said):
    edge = np.equal(x, 1)
    backward = lambda d, x: d / (2 * np.sqrt(x - 0.5))  # noqa: E731
    found = check(root_of_what_is_not_below_one, backward, {"x": x}, method="central")["x"]
    assert (found.ok, found.wrong, found.undecidable) == (said is None, 0, edge.sum())
    assert said is None or said in found.diagnosis
    np.testing.assert_array_equal(found.details.verdict, np.where(edge, UNDECIDED, HOLDS))
    np.testing.assert_array_equal(np.isnan(found.details.numerical), edge)
    assert not edge[found.worst_index]


@each("t", [1e-6, 1e-7, 1e-8, 1e-10])
@each("beside", [[], [0.5]])
def test_an_output_that_rounding_keeps_where_it_is_may_have_a_slope(beside, t):
    def forward(t):
        return np.stack([np.cos(t), np.sin(t)])

    inputs = {"t": np.array([t, *beside])}
    report = check(real_only(forward), lambda d, t: d[1] * np.cos(t) - d[0] * np.sin(t), inputs)
    assert report.ok, str(report)


def test_so_may_one_beside_an_entry_that_is_much_smaller_than_another():
    inputs, scale = {"x": np.array([[1e7, 1.0], [1e-4, -1e-12]])}, np.array([[1e-7, -1.0], [4e3, 1e12]])
    softmax = lambda x: np.exp(40 * scale * x) / np.exp(40 * scale * x).sum(-1, keepdims=True)  # noqa: E731

    def backward(d, x):
        y = softmax(x)
        return 40 * scale * y * (d - (y * d).sum(-1, keepdims=True))

    assert not any(check(softmax, backward, inputs, method="central", rng=seed)["x"].wrong for seed in range(3))
