"""What a report says of one input: the slopes that there are none of, the parts of an interrupted check, the order."""

import re

import numpy as np
import pytest

from attention_np.gradcheck import Interrupted, NotAnalyticError, check
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG

from .programs import normal, square_inputs, with_entry


def root_of_what_is_not_below_one(x):
    if (np.real(x) < 1).any():
        raise ValueError("below one")
    return np.sqrt(x - 0.5)


def slope_of_that_root(d_output, x):
    return d_output / (2 * np.sqrt(x - 0.5))


@pytest.mark.parametrize(
    ("x", "note"),
    [
        ([1.0, 1.5, 2.0], "forward has no finite slope by the numerical method in 1 entry"),
        ([1.0, 1.5, 1.0], "forward has no finite slope by the numerical method in 2 entries"),
        ([1.2, 1.5, 1.3], None),
    ],
)
def test_at_the_edge_of_its_domain_a_function_has_no_slope_and_the_note_counts_the_entries(x, note):
    found = check(root_of_what_is_not_below_one, slope_of_that_root, {"x": x}, method="central")["x"]
    edge = np.equal(x, 1)
    assert (found.ok, found.note, found.undecidable) == (True, note, edge.sum())
    np.testing.assert_array_equal(found.details.verdict, np.where(edge, UNDECIDED, HOLDS))
    np.testing.assert_array_equal(np.isnan(found.details.numerical), edge)
    assert found.undecided == tuple((int(k),) for k in np.flatnonzero(edge))
    assert found.max_relative_error < 1e-10
    assert not edge[found.worst_index]
    assert len(found.worst) == 3
    assert found.worst[0].index == ((0,) if edge.any() else found.worst_index)


def test_a_note_on_missing_slopes_comes_after_the_note_on_the_method():
    def real_only(x):
        return root_of_what_is_not_below_one(np.hypot(x, 0.0))

    found = check(real_only, slope_of_that_root, {"x": [1.0, 1.5, 2.0]})["x"]
    assert re.fullmatch(
        r"forward refuses complex arrays \(.*\); forward has no finite slope by the numerical method in 1 entry",
        found.note,
    )


def test_of_the_places_that_cannot_be_decided_the_first_ten_are_kept():
    found = check(root_of_what_is_not_below_one, slope_of_that_root, {"x": np.ones(12)}, method="central")["x"]
    assert found.undecidable == found.checked == 12
    assert found.undecided == tuple((k,) for k in range(10))
    assert found.verdict == "undecidable"
    assert np.isnan(found.numerical)
    assert found.analytic == found.details.analytic[found.worst_index]


def refuses_one_alone(x):
    """What a trial along a random direction cannot see."""
    if np.iscomplexobj(x) and (x.imag != 0).sum() == 1:
        raise TypeError("one, two")
    return x**2


def test_a_complex_step_that_is_refused_on_the_way_gives_place_to_differences_or_is_an_error_if_it_was_asked_for():
    inputs = {"x": np.array([1.0, 1.5, 2.0])}
    found = check(refuses_one_alone, lambda d, x: 2 * d * x, inputs)["x"]
    assert (found.ok, found.method, found.note) == (True, "central", "forward refuses complex arrays")
    sentence = (
        r"^input x: forward refuses complex arrays, so the complex step does not apply: use central \(one, two\)$"
    )
    with pytest.raises(NotAnalyticError, match=sentence):
        check(refuses_one_alone, lambda d, x: 2 * d * x, inputs, method="complex-step")


def interrupted_after(calls, gradient_of_x):
    """The report of a check of three inputs that is interrupted after so many evaluations."""
    count = 0

    def forward(x, y, z):
        nonlocal count
        count += 1
        if count > calls:
            raise KeyboardInterrupt
        z += 0.0
        z[0, 0] = 7
        return np.sin(x) * y + z

    def backward(d_output, x, y, _):
        return gradient_of_x(d_output * np.cos(x) * y), d_output * np.sin(x), d_output

    inputs = {**square_inputs(), "z": normal(3, 3, seed=2)}
    with pytest.raises(Interrupted) as stopped:
        check(forward, backward, inputs, method="central")
    return stopped.value.report


@pytest.mark.parametrize(
    ("gradient_of_x", "fault"),
    [
        (lambda _: None, "the gradient is missing"),
        (lambda g: g[0], "the gradient has the shape (3,), the input (3, 3)"),
    ],
)
def test_an_interrupted_check_says_what_cannot_be_compared_whatever_was_measured(gradient_of_x, fault):
    report = interrupted_after(120, gradient_of_x)
    x, y, z = report
    assert (x.method, x.diagnosis, x.checked, x.size) == ("central", fault, 0, 9)
    assert (z.method, z.diagnosis, z.checked, z.size) == ("auto", "forward writes to this input", 0, 9)
    for entry in (x, z):
        assert (entry.ok, entry.max_relative_error, entry.verdict) == (False, np.inf, "wrong")
    assert (y.diagnosis, y.wrong, y.verdict) == (None, 0, "unfinished")


def test_an_interrupted_check_counts_what_holds_so_far_and_nothing_else():
    report = interrupted_after(200, lambda g: with_entry(g, (0, 1), 5.0))
    x, y, _ = report
    assert (x.method, x.ok, x.diagnosis, x.wrong) == ("central", False, None, 0)
    assert x.checked == 8  # the wrong one would have been looked at again
    assert (0, 1) not in [entry.index for entry in x.worst]
    assert x.details is None
    assert y.checked in (0, 9)


def sums_to_one(x):
    """The gradient is zero, and computed as the rest of terms of the size of the cotangent."""
    weights = np.exp(x) / np.exp(x).sum()
    return weights.sum() * np.ones(4)


def sums_to_one_backward(d_output, x):
    weights = np.exp(x) / np.exp(x).sum()
    terms = d_output.sum() * weights
    return terms - weights * terms.sum()


@pytest.mark.parametrize(("method", "low", "high"), [("complex-step", 0, 1e-15), ("central", 1e-13, 1e-10)])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_the_error_of_a_gradient_that_is_all_noise_is_relative_to_the_terms_that_cancelled(method, low, high, scale):
    found = check(
        lambda x: scale * sums_to_one(x),
        lambda d, x: scale * sums_to_one_backward(d, x),
        {"x": np.linspace(-1, 1, 7)},
        method=method,
    )["x"]
    assert found.ok
    assert low < found.max_relative_error < high


def test_the_worst_entries_are_wrong_ones_first_and_of_each_kind_the_largest_difference_first():
    bad = {3: 0.5, 5: 2.0, 1: 1.0}

    def backward(d_output, x):
        gradient = d_output * np.cos(x)
        for place, error in bad.items():
            gradient[place] += error
        return gradient

    found = check(np.sin, backward, {"x": normal(9)})["x"]
    assert [entry.index for entry in found.worst[:3]] == [(5,), (1,), (3,)]
    assert len(found.worst) == 5
    assert found.worst_index == (5,)
    assert found.wrong == 3
    differences = [abs(entry.analytic - entry.numerical) for entry in found.worst]
    assert differences[:3] == pytest.approx([2, 1, 0.5])
    assert differences[3] >= differences[4]
    np.testing.assert_array_equal(np.flatnonzero(found.details.verdict == WRONG), [1, 3, 5])
    assert (found.details.verdict != UNCHECKED).all()


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_kink_that_shorter_steps_deny_is_a_steep_function_and_the_gradient_is_judged(factor):
    def steep(x):
        return x + np.tanh(1e9 * (x - 1)) / 1e5

    def backward(d_output, x):
        return factor * d_output * (1 + 1e4 * (1 - np.tanh(1e9 * (x - 1)) ** 2))

    found = check(steep, backward, {"x": np.array([0.5, 1.0, 2.0])})["x"]
    assert found.ok == (factor == 1)
    assert found.diagnosis is None or "1.5 times" in found.diagnosis


def test_an_input_without_entries_has_no_number_in_the_place_of_a_worst_entry():
    found = check(np.sin, lambda d, x: d * np.cos(x), {"x": np.zeros((0, 3))})["x"]
    assert found.worst_index == ()
    assert np.isnan([found.analytic, found.numerical, found.floor]).all()


def test_of_a_gradient_of_another_shape_it_is_said_too_why_the_complex_step_does_not_serve():
    report = check(lambda x: x.astype(float) ** 2, lambda d, x: (2 * d * x)[np.newaxis], {"x": normal(4)})
    assert report["x"].diagnosis.startswith("the gradient has the shape (1, 4), the input (4,)")
    assert report["x"].note.startswith("forward ")


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
def test_the_details_keep_slopes_at_least_in_double_and_in_the_precision_of_the_input(dtype):
    details = check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(4).astype(dtype)})["x"].details
    assert details.numerical.dtype == np.result_type(dtype, np.float64)
    assert details.analytic.dtype == dtype
    assert details.verdict.dtype == np.int8
