import re

import numpy as np
import pytest

from attention_np.gradcheck import METHODS, NotAnalyticError, check

from .programs import bilinear, bilinear_backward, normal, planted, square_inputs, with_entry

ALL = [*METHODS, "auto"]


@pytest.mark.parametrize(
    ("bug", "diagnosis"),
    [
        (lambda *_: None, "the gradient is missing"),
        (lambda g: g[:2], "the gradient has the shape (2, 3), the input (3, 3): it is right, but"),
        (lambda g: g.sum(), "the gradient has the shape (), the input (3, 3): it is summed over axes 0 and 1"),
        (lambda g: g[None], "the gradient has the shape (1, 3, 3), the input (3, 3): it is right, but has an extra"),
        (lambda g: with_entry(g, (1, 2), np.nan), "the gradient is NaN or infinite in 1 of 9 entries, first at [1, 2]"),
        (lambda g: g / 0.0, "the gradient is NaN or infinite in 9 of 9 entries, first at [0, 0]"),
        (lambda g: g + 0j, "the gradient holds complex128, not real floating-point numbers"),
        (lambda g: np.zeros(g.shape, int), "the gradient holds int64, not real floating-point numbers"),
        (lambda g: g.astype(object), "the gradient holds object, not real floating-point numbers"),
        (lambda g: g.astype(np.float32), "the gradient is float32, the input float64"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_no_gradient_is_said_to_be_none(bug, diagnosis):
    report = check(bilinear, planted(lambda d_x, d_y, _: (bug(d_x), d_y)), square_inputs())
    assert (report.ok, report["x"].ok, report["y"].ok) == (False, False, True)
    assert report["x"].diagnosis.startswith(diagnosis)
    assert report["x"].max_relative_error == np.inf
    assert f"x: {diagnosis}" in str(report)


def test_a_backward_that_gives_another_gradient_each_time_is_not_excused_as_noise():
    rng = np.random.default_rng(0)

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x + 1e-3 * rng.standard_normal(d_x.shape), d_y

    report = check(bilinear, backward, square_inputs())
    assert (report["x"].ok, report["y"].ok) == (False, True)
    assert report["x"].diagnosis == "backward gives another gradient when it is called again"


NOT_ANALYTIC = {
    "abs": (np.abs, lambda d, x: d * np.sign(x), "forward turns complex arrays into float64$"),
    "abs inside": (
        lambda x: np.abs(x) * x,
        lambda d, x: 2 * d * np.abs(x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
    "the real part": (
        lambda x: np.real(x) ** 2,
        lambda d, x: 2 * d * np.real(x),
        "forward turns complex arrays into float64$",
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
    "a norm": (
        lambda x: np.linalg.norm(x) * x,
        lambda d, x: d * np.linalg.norm(x) + (d * x).sum() * x / np.linalg.norm(x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
    "another output for complex arrays": (
        lambda x: np.exp(x) * (1 + np.iscomplexobj(x)),
        lambda d, x: d * np.exp(x),
        "the complex step gives the slope .*, differences .*: forward is not analytic ",
    ),
}


@pytest.mark.parametrize("what", NOT_ANALYTIC)
def test_under_auto_a_function_that_is_not_analytic_is_judged_by_central_differences_and_the_note_says_why(what):
    forward, backward, note = NOT_ANALYTIC[what]
    inputs = {"x": np.array([0.5, -1.5, 2.0, -0.25])}
    report = check(forward, backward, inputs)
    assert report.ok, str(report)
    assert report["x"].method == "central"
    assert report["x"].max_relative_error < 1e-8
    assert re.match(note, report["x"].note)
    report = check(forward, lambda d, x: (1 + 1e-6) * backward(d, x), inputs)
    assert not report.ok
    assert report["x"].method == "central"
    assert report["x"].max_relative_error == pytest.approx(1e-6, rel=1e-2)


@pytest.mark.parametrize("what", NOT_ANALYTIC)
def test_a_complex_step_that_was_asked_for_is_refused_where_the_function_is_not_analytic(what):
    forward, backward, note = NOT_ANALYTIC[what]
    because = rf"^input x: {note.removesuffix('$')}.*, so the complex step does not apply: use central$"
    for wrong_too in (1, 2):
        with pytest.raises(NotAnalyticError, match=because):
            check(
                forward,
                lambda d, x, c=wrong_too: c * backward(d, x),
                {"x": np.array([0.5, -1.5, 2.0, -0.25])},
                method="complex-step",
            )


def test_a_complex_step_that_agrees_with_a_wrong_gradient_is_not_trusted():
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .*"):
        check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)}, method="complex-step")
    report = check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)})
    assert (report["x"].method, report["x"].ok) == ("central", False)


def drowned(x):  # in a random direction, what the abs loses of the first entry drowns in what the others do
    return x[1:].sum(keepdims=True) + 1e-7 * np.abs(x[0]) * x[0]


def drowned_backward(d_output, x):
    return with_entry(d_output * np.ones_like(x), 0, 2e-7 * d_output[0] * np.abs(x[0]))


def test_under_auto_a_part_that_is_not_analytic_is_looked_at_again_by_central_differences():
    inputs = {"x": normal(5)}
    report = check(drowned, drowned_backward, inputs)
    assert report.ok, str(report)
    assert report["x"].method == "central"
    assert re.match("the complex step gives the slope .*, differences .*: forward is not analytic ", report["x"].note)
    assert not check(drowned, lambda d, x: drowned_backward(d, x) * [2, 1, 1, 1, 1], inputs).ok
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .* use central$"):
        check(drowned, drowned_backward, inputs, method="complex-step")


KINKED = {  # the function, two gradients that agree with one side each, the point, and the slopes at the kink
    "abs": (np.abs, lambda d, x: d * np.where(x > 0, 1, -1), lambda d, x: d * np.where(x >= 0, 1, -1), [1.0, 0.0], -1),
    "relu": (lambda x: np.where(x.real > 0, x, 0), lambda d, x: d * (x > 0), lambda d, x: d * (x >= 0), [1.0, 0.0], 0),
    "maximum": (lambda x: np.maximum(x, 0), lambda d, x: d * (x > 0), lambda d, x: d * (x >= 0), [-2.0, 0.0], 0),
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


@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize("what", KINKED)
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


@pytest.mark.parametrize("what", KINKED)
def test_the_complex_step_does_not_pass_a_kink_whichever_side_the_gradient_agrees_with(what):
    forward, one_side, other_side, point, _ = KINKED[what]

    def verdict(backward):
        try:
            return check(forward, backward, {"x": np.array(point)}, method="complex-step")["x"].diagnosis
        except NotAnalyticError as error:
            return str(error)

    for backward in (one_side, other_side):
        said = r"input x: .*, so the complex step does not apply: use central|forward is not differentiable at .*"
        assert re.fullmatch(said, verdict(backward))


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("distance", [1e-3, -1e-6, 1e-9, -1e-12])
def test_a_kink_that_is_close_by_is_none(distance, method):
    def forward(x):
        return np.where(x.real > 0, x, 0) @ np.ones((3, 2))

    x = np.array([[1.0, distance, -2.0]])
    report = check(forward, lambda d, x: (d @ np.ones((2, 3))) * (x > 0), {"x": x}, method=method)
    assert report.ok, str(report)
    report = check(forward, lambda d, x: (d @ np.ones((2, 3))) * (x > -0.5), {"x": x}, method=method)
    assert report.ok == (distance > 0), str(report)
