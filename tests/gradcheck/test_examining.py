"""What a report says of one input: the slopes that there are none of, the parts of an interrupted check, the order."""

import re

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import METHODS, Interrupted, NotAnalyticError, check, examining
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.checking import check_by

from .programs import bilinear, bilinear_backward, normal, planted, square_inputs, with_entry


def root_of_what_is_not_below_one(x):
    if (np.real(x) < 1).any():
        raise ValueError("below one")
    return np.sqrt(x - 0.5)


def slope_of_that_root(d_output, x):
    return d_output / (2 * np.sqrt(x - 0.5))


@each(
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


@each(
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
    assert (x.ok, x.max_relative_error, x.verdict) == (False, np.inf, "wrong")
    assert (z.method, z.diagnosis, z.checked, z.size) == ("central", "forward writes to this input", 0, 9)
    assert (z.ok, z.verdict) == (False, "wrong")
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


@each(("method", "low", "high"), [("complex-step", 0, 1e-15), ("central", 1e-13, 1e-10)])
@each("scale", [1.0, 1e9])
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


@each("factor", [1.0, 1.5])
def test_a_kink_that_shorter_steps_deny_is_a_steep_function_and_the_gradient_is_judged(factor):
    def steep(x):
        return x + np.tanh(1e9 * (x - 1)) / 1e5

    def backward(d_output, x):
        return factor * d_output * (1 + 1e4 * (1 - np.tanh(1e9 * (x - 1)) ** 2))

    found = check(steep, backward, {"x": np.array([0.5, 1.0, 2.0])})["x"]
    assert found.ok == (factor == 1)
    assert found.diagnosis is None or "1.5 times" in found.diagnosis


def test_of_a_gradient_of_another_shape_it_is_said_too_why_the_complex_step_does_not_serve():
    report = check(lambda x: x.astype(float) ** 2, lambda d, x: (2 * d * x)[np.newaxis], {"x": normal(4)})
    assert report["x"].diagnosis.startswith("the gradient has the shape (1, 4), the input (4,)")
    assert report["x"].note.startswith("forward ")


@each("dtype", ["float32", "float64", "longdouble"])
def test_the_details_have_the_shape_of_the_input_and_slopes_at_least_in_double(dtype):
    for shape in ((1, 2, 3), ()):
        x = np.asarray(normal(*shape)).astype(dtype)
        details = check(np.sin, lambda d, x: d * np.cos(x), {"x": x})["x"].details
        assert [part.shape for part in details] == [shape] * 4
        assert (details.floor > 0).all()
        assert details.numerical.dtype == np.result_type(dtype, np.float64)
        assert (details.analytic.dtype, details.verdict.dtype) == (dtype, np.int8)


@pytest.mark.parametrize("method", ["complex-step", "central"])
@each("max_entries", *some_of([4, None], 2))
def test_the_diagnosis_is_given_both_gradients_for_three_cotangents_and_the_claimed_one_for_zeros(
    monkeypatch, method, max_entries
):
    given = []
    monkeypatch.setattr(examining, "diagnose", lambda evidence: given.append(evidence) or "this is the cause")

    def backward(d_output, x, y):
        assert d_output.shape == (3, 3)
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x + 0.5, d_y

    inputs = square_inputs()
    report = check(
        bilinear, backward, inputs, method=method, max_entries=max_entries, constants={"number": 4, 3: np.float32(0.5)}
    )
    assert (report["x"].diagnosis, report["y"].diagnosis) == ("this is the cause", None)
    (evidence,) = given
    assert evidence.name == "x"
    assert list(evidence.inputs) == ["x", "y"]
    np.testing.assert_array_equal(evidence.inputs["y"], inputs["y"])
    np.testing.assert_array_equal(evidence.output, bilinear(**inputs))
    assert evidence.cotangents.shape == (3, 3, 3)
    assert not np.array_equal(evidence.cotangents[0], evidence.cotangents[1])
    right = [bilinear_backward(u, **inputs) for u in evidence.cotangents]
    looked = report["x"].details.verdict != 3
    for k, name in enumerate(("x", "y")):
        claimed = [gradients[k] + 0.5 * (name == "x") for gradients in right]
        np.testing.assert_allclose(evidence.analytic[name], claimed, rtol=1e-14)
        assert evidence.numerical[name].shape == (3, 3, 3)
    measured = np.stack([gradients[0] for gradients in right])
    np.testing.assert_allclose(evidence.numerical["x"][:, looked], measured[:, looked], rtol=0, atol=1e-8)
    assert np.isnan(evidence.numerical["x"][:, ~looked]).all()
    np.testing.assert_array_equal(evidence.at_zero, np.full((3, 3), 0.5))
    np.testing.assert_array_equal(evidence.floor, report["x"].details.floor)
    np.testing.assert_array_equal(evidence.verdict, report["x"].details.verdict)
    assert evidence.constants == {"number": 4.0, "3": 0.5}


def test_a_gradient_of_which_no_form_is_right_is_no_evidence_for_others(monkeypatch):
    given = []
    monkeypatch.setattr(examining, "diagnose", lambda evidence: given.append(evidence))

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x + 0.5, d_y[0]

    report = check(bilinear, backward, square_inputs())
    assert report["x"].diagnosis == "no simple cause"
    assert report["y"].diagnosis.startswith("the gradient has the shape (3,), the input (3, 3)")
    assert list(given[0].analytic) == ["x"]
    assert list(given[0].numerical) == ["x", "y"]


@each("times", [1, 2])
def test_a_write_to_an_argument_is_one_finding_and_the_values_are_compared_all_the_same(times):
    def forward(x, y):
        x += 0.5
        return np.sin(x - 0.5) * y

    def backward(d, x, y):
        gradients = times * d * np.cos(x) * y, d * np.sin(x)
        y[...] = 0
        return gradients

    def backward_of_sin(d, x):
        d *= np.cos(x)
        return times * d

    inputs, besides = (
        square_inputs(),
        "" if times == 1 else "; besides: it is 2 times the numerical gradient throughout",
    )
    x, y = check(forward, backward, inputs)
    assert (y.ok, y.wrong, y.checked, y.diagnosis) == (False, 0, 9, "backward writes to this input")
    alone = check(np.sin, backward_of_sin, {"x": inputs["x"]})["x"]
    of_d = "backward writes to the gradient of the output that it is given"
    for entry, said in ((x, "forward writes to this input"), (alone, of_d)):
        assert (entry.ok, entry.wrong, entry.checked, entry.diagnosis) == (False, 9 * (times - 1), 9, said + besides)


def test_of_an_input_without_entries_there_is_no_worst():
    found = check(np.sin, lambda d, x: d * np.cos(x), {"x": np.zeros((0, 3))})["x"]
    assert found.worst_index == ()
    assert np.isnan([found.analytic, found.numerical, found.floor]).all()


def test_at_a_kink_the_complex_step_is_not_refused_where_it_gives_what_is_claimed():
    def forward(x):
        return np.where(x.real > 0, x, -x)

    inputs = {"x": np.array([0.5, 0.0, -1.5])}
    found = check(forward, lambda d, x: d * np.where(x > 0, 1, -1), inputs, method="complex-step")["x"]
    assert (found.ok, found.wrong) == (False, 0)
    assert found.diagnosis.startswith("forward is not differentiable at [1]: its slope is ")


def test_of_wrong_entries_alone_the_largest_difference_is_the_worst():
    def backward(d_output, x):
        return with_entry(d_output * np.cos(x), 2, d_output[2] * np.cos(x[2]) + 1e-3)

    def forward(x):
        rough = np.array([1e14, 0, 0, 0])  # whose entry is undecided, and off by much more
        return np.sin(x) + rough - rough

    found = check(forward, backward, {"x": np.ones(4)}, method="central")["x"]
    details = found.details
    np.testing.assert_array_equal(details.verdict == WRONG, [False, False, True, False])
    assert found.worst_index == found.worst[0].index == (2,)
    assert (found.analytic, found.numerical) == (details.analytic[2], details.numerical[2])
    assert found.floor == details.floor[2] > 0


@each(
    ("bug", "diagnosis"),
    [
        (lambda *_: None, "the gradient is missing"),
        (lambda g: g[:2], "the gradient has the shape (2, 3), the input (3, 3): it is right, but"),
        (lambda g: with_entry(g, (1, 2), np.nan), "the gradient is NaN or infinite in 1 of 9 entries, first at [1, 2]"),
        (lambda g: g.astype(object), "the gradient holds object, not real floating-point numbers"),
    ],
)
def test_what_is_no_gradient_is_said_to_be_none(bug, diagnosis):
    report = check(bilinear, planted(lambda d_x, d_y, _: (bug(d_x), d_y)), square_inputs())
    assert (report.ok, report["x"].ok, report["y"].ok) == (False, False, True)
    assert report["x"].diagnosis.startswith(diagnosis)
    assert report["x"].max_relative_error == np.inf
    assert f"x: {diagnosis}" in str(report)


NOT_ANALYTIC = {
    "abs": (np.abs, lambda d, x: d * np.sign(x), "forward turns complex arrays into float64$"),
    "abs inside": (
        lambda x: np.abs(x) * x,
        lambda d, x: 2 * d * np.abs(x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
    "a cast of a part": (
        lambda x: x.astype(float) * x,
        lambda d, x: 2 * d * x,
        r"forward refuses complex arrays \(Casting complex values to real discards the imaginary part\)$",
    ),
    "hypot": (
        lambda x: np.hypot(x, 1.0),
        lambda d, x: d * x / np.hypot(x, 1.0),
        r"forward refuses complex arrays \(ufunc 'hypot' not supported",
    ),
    "a comparison of magnitudes": (
        lambda x: np.where(np.abs(x) > 1, np.abs(x), x**2),
        lambda d, x: d * np.where(np.abs(x) > 1, np.sign(x), 2 * x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
    "another output for complex arrays": (
        lambda x: np.exp(x) * (1 + np.iscomplexobj(x)),
        lambda d, x: d * np.exp(x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
}


@each("what", NOT_ANALYTIC)
def test_a_function_that_is_not_analytic_is_judged_by_differences_or_refused_if_the_complex_step_was_asked_for(what):
    forward, backward, note = NOT_ANALYTIC[what]
    inputs = {"x": np.array([0.5, -1.5, 2.0, -0.25])}
    found = check(forward, backward, inputs)["x"]
    assert (found.ok, found.method) == (True, "central")
    assert found.max_relative_error < 1e-8
    assert re.match(note, found.note)
    found = check(forward, lambda d, x: (1 + 1e-6) * backward(d, x), inputs)["x"]
    assert (found.ok, found.method) == (False, "central")
    assert found.max_relative_error == pytest.approx(1e-6, rel=1e-2)
    because = rf"^input x: {note.removesuffix('$')}.*, so the complex step does not apply: use central$"
    for factor in (1, 2):  # whatever else is wrong
        with pytest.raises(NotAnalyticError, match=because):
            check(forward, lambda d, x, c=factor: c * backward(d, x), inputs, method="complex-step")


def test_a_complex_step_that_agrees_with_a_wrong_gradient_is_not_trusted():
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .*"):
        check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)}, method="complex-step")
    report = check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)})
    assert (report["x"].method, report["x"].ok) == ("central", False)


KINKED = {  # the function, two gradients that agree with one side each, the point, and the slopes at the kink
    "abs": (np.abs, lambda d, x: d * np.where(x > 0, 1, -1), lambda d, x: d * np.where(x >= 0, 1, -1), [1.0, 0.0], -1),
    "relu": (lambda x: np.where(x.real > 0, x, 0), lambda d, x: d * (x > 0), lambda d, x: d * (x >= 0), [1.0, 0.0], 0),
    "a tie of max": (
        lambda x: np.max(x, keepdims=True),
        lambda d, _: d * [1.0, 0.0],
        lambda d, _: d * [0.0, 1.0],
        [2.0, 2.0],
        0,
    ),
    "a tie of argmax": (
        lambda x: x[[np.argmax(x.real)]],
        lambda d, _: d * [1.0, 0.0],
        lambda d, _: d * [0.0, 1.0],
        [2.0, 2.0],
        0,
    ),
    "a clip": (
        lambda x: np.where(x.real > 1, 1, x),
        lambda d, x: d * (x < 1),
        lambda d, x: d * (x <= 1),
        [0.0, 1.0],
        0,
    ),
}


@each("method", ["auto", "central"])
@each("what", KINKED)
def test_a_kink_is_reported_with_both_slopes_whichever_side_the_gradient_agrees_with(what, method):
    forward, one_side, other_side, point, below = KINKED[what]
    x = np.array(point)
    for backward in (one_side, other_side, lambda d, x: (one_side(d, x) + other_side(d, x)) / 2):
        report = check(forward, backward, {"x": x}, method=method, rng=np.random.default_rng(0))
        assert not report.ok
        place = 0 if "tie" in what else 1
        found = re.fullmatch(
            rf"forward is not differentiable at \[{place}\]: its slope is (\S+) on one side and (\S+) on the other",
            report["x"].diagnosis,
        )
        assert found, report["x"].diagnosis
        u = np.random.default_rng(0).standard_normal(forward(x).shape)[-1]
        slopes = sorted(float(slope) for slope in found.groups())
        above = 0 if what == "a clip" else 1
        assert slopes == pytest.approx(sorted([u * (1 if what == "a clip" else below), u * above]), rel=1e-5)


@each("method", [*METHODS, "auto"])
@each("distance", [1e-3, -1e-6, 1e-9, -1e-12])
def test_a_kink_that_is_close_by_is_none(distance, method):
    def forward(x):
        return np.where(x.real > 0, x, 0) @ np.ones((3, 2))

    x = np.array([[1.0, distance, -2.0]])
    report = check(forward, lambda d, x: (d @ np.ones((2, 3))) * (x > 0), {"x": x}, method=method)
    assert report.ok, str(report)
    report = check(forward, lambda d, x: (d @ np.ones((2, 3))) * (x > -0.5), {"x": x}, method=method)
    assert report.ok == (distance > 0), str(report)


@each("what", KINKED)
def test_neither_the_complex_step_nor_both_methods_pass_a_kink_whichever_side_the_gradient_agrees_with(what):
    forward, one_side, other_side, point, _ = KINKED[what]

    def said(methods, backward):
        try:
            reports = check_by(methods, forward, backward, {"x": np.array(point)})
        except NotAnalyticError as error:
            return str(error)
        return " ".join(str(report["x"].diagnosis) for report in reports)

    told = "input x: .*, so the complex step does not apply: use central|forward is not differentiable at .*"
    for backward in (one_side, other_side):
        assert re.fullmatch(told, said(["complex-step"], backward))
        assert re.search(told, said(METHODS, backward))
    assert re.search(told, said(METHODS, lambda d, x: (one_side(d, x) + other_side(d, x)) / 2))


def test_where_both_methods_are_asked_differences_of_every_entry_tell_what_is_not_analytic():
    def forward(x):
        return x * np.conj(x)

    inputs = {"x": np.array([0.5, -1.5])}
    with pytest.raises(NotAnalyticError, match="use central"):
        check_by(METHODS, forward, lambda d, x: 2 * d * x, inputs)
    of_steps, of_differences = check_by(METHODS, forward, lambda d, _: 0 * d, inputs)  # as the complex step has it
    assert (of_steps.ok, of_differences.ok) == (True, False)


def test_a_kink_whose_mean_slope_holds_by_both_methods_is_told_by_the_report_on_differences():
    def forward(x):
        return x * np.sign(x.real)  # whose complex step is zero at zero

    of_steps, of_differences = check_by(METHODS, forward, lambda d, x: d * np.sign(x), {"x": np.array([0.5, 0.0])})
    assert of_steps.ok
    assert of_differences["x"].diagnosis.startswith("forward is not differentiable at [1]: its slope is ")
