"""What a check hands on: to the report, and to the diagnosis of what is wrong."""

import numpy as np
import pytest

from attention_np.gradcheck import NotAnalyticError, check, examining
from attention_np.gradcheck.agreement import UNDECIDED, WRONG

from .programs import bilinear, bilinear_backward, normal, square_inputs, with_entry


@pytest.mark.parametrize("method", ["complex-step", "central"])
@pytest.mark.parametrize("max_entries", [None, 4])
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
    report = check(bilinear, backward, inputs, method=method, max_entries=max_entries, constants={"number": 4})
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
    assert evidence.constants == {"number": 4.0}


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


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3), ()])
def test_the_details_have_the_shape_of_the_input(shape):
    details = check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(*shape)})["x"].details
    assert [part.shape for part in details] == [shape] * 4
    assert (details.floor > 0).all()


@pytest.mark.parametrize("method", ["auto", "complex-step", "central"])
def test_of_an_input_that_is_written_to_nothing_is_measured(method):
    def forward(x, y):
        x += 0.5
        return np.sin(x) * y

    report = check(forward, lambda d, x, y: (d * y, d * x), square_inputs(), method=method)
    found = report["x"]
    assert (found.name, found.method, found.ok, found.size) == ("x", method, False, 9)
    assert (found.checked, found.max_relative_error, found.diagnosis) == (0, np.inf, "forward writes to this input")


def test_an_entry_whose_slope_leaves_the_range_is_undecided_and_not_the_worst():
    def forward(x):
        return np.stack([1e12 * (x[0] / 1e-299), np.sin(x[1])])

    inputs = {"x": np.array([1e-299, 0.5])}
    found = check(forward, lambda d, x: np.stack([0 * d[0], d[1] * np.cos(x[1])]), inputs, method="central")["x"]
    np.testing.assert_array_equal(found.details.verdict == UNDECIDED, [True, False])
    assert found.worst_index == (1,)
    assert found.max_relative_error < 1e-9
    assert "1 entry" in found.note


def test_at_a_kink_the_complex_step_is_not_refused_where_it_gives_what_is_claimed():
    def forward(x):
        return np.where(x.real > 0, x, -x)

    inputs = {"x": np.array([0.5, 0.0, -1.5])}
    found = check(forward, lambda d, x: d * np.where(x > 0, 1, -1), inputs, method="complex-step")["x"]
    assert (found.ok, found.wrong) == (False, 0)
    assert found.diagnosis.startswith("forward is not differentiable at [1]: its slope is ")


def test_without_a_kink_a_complex_step_that_does_not_serve_is_refused_with_the_name_of_the_input():
    with pytest.raises(NotAnalyticError, match=r"^input y: the complex step .* use central$"):
        check(lambda x, y: x * y.real, lambda d, x, y: (d * y, d * x), square_inputs(), method="complex-step")


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


@pytest.mark.parametrize("memory", [1, 2**28])
def test_moves_go_through_at_once_as_memory_allows(memory):
    rows = []

    def forward(x):
        rows.append(x.shape[0] if x.ndim == 2 else 1)
        return np.sin(x)

    assert check(forward, lambda d, x: d * np.cos(x), {"x": normal(300)}, vectorized=["x"], memory=memory).ok
    assert max(rows[5:]) == (256 if memory > 1 else 3)  # of which three are the trial
