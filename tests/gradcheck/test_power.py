import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_np import softmax
from attention_np.gradcheck import check
from attention_np.gradcheck.agreement import HOLDS, UNDECIDED

from .planted import FUNCTIONS
from .programs import bilinear, bilinear_backward, normal, programs, square_inputs, with_entry

ALL = ["auto", "central"]


MANY = int(os.environ.get("GRADCHECK_EXAMPLES", "100"))  # random functions, for each method and dtype
how_many = pytest.mark.parametrize("examples", [6, pytest.param(MANY, marks=pytest.mark.long)])


@how_many
@pytest.mark.parametrize("badly_scaled", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ALL)
def test_no_random_correct_function_is_called_wrong(method, dtype, badly_scaled, examples):
    @given(programs(badly_scaled=badly_scaled))
    @settings(max_examples=examples)
    def holds(program_and_inputs):
        program, inputs = program_and_inputs
        if badly_scaled and method == "central":  # nothing tells how far to step from zero if its scale is its own
            inputs = {name: np.where(x == 0, 1 / program.scales[k], x) for k, (name, x) in enumerate(inputs.items())}
        inputs = {name: x.astype(dtype) for name, x in inputs.items()}
        report = check(program.forward, program.backward, inputs, method=method)
        assert report.ok, str(report)

    holds()


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("power", [2, 5])
def test_a_power_of_zeros_has_a_gradient_of_zeros(power, method):
    report = check(lambda x: x**power, lambda d, x: power * d * x ** (power - 1), {"x": np.zeros(3)}, method=method)
    assert report.ok, str(report)
    report = check(lambda x: x**power, lambda d, _: d, {"x": np.zeros(3)}, method=method)
    assert not report.ok


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-6])
def test_a_function_that_is_flat_but_for_the_surroundings_of_the_point_is_not_taken_for_flat(width, method):
    def forward(x):
        return np.exp(-(((x - 1) / width) ** 2))

    def backward(d_output, x):
        return -2 * d_output * (x - 1) / width**2 * forward(x)

    inputs = {"x": 1 + width * np.array([0.5, -1.0, 1.5])}
    assert check(forward, backward, inputs, method=method).ok
    if method != "central" or width > 1e-5:  # where it is so narrow, differences need not look closely enough to see it
        assert not check(forward, lambda d, x: 0 * d * x, inputs, method=method).ok


@pytest.mark.parametrize("method", ALL)
def test_an_entry_on_a_scale_of_its_own_is_not_taken_for_one_that_does_not_matter(method):
    scale = np.array([1e10, 1.0, 1.0])

    def forward(x):
        return 1 / (1 + (scale * x) ** 2)

    def backward(d_output, x):
        return -2 * d_output * scale**2 * x * forward(x) ** 2

    inputs = {"x": np.array([3e-11, 1.0, -2.0])}
    report = check(forward, backward, inputs, method=method)
    assert report.ok, str(report)


@how_many
def test_a_factor_on_a_random_gradient_is_found_unless_rounding_hides_it(examples):
    @given(programs(), st.integers(0, 2), st.sampled_from([1 + 1e-9, -1.0, 2.0, 0.5, 0.0]))
    @settings(max_examples=examples)
    def is_found(program_and_inputs, which, factor):
        program, inputs = program_and_inputs
        position = which % len(inputs)

        def backward(d_output, *arrays):
            gradients = program.backward(d_output, *arrays)
            gradients[position] = gradients[position] * factor
            return gradients

        report = check(program.forward, backward, inputs)
        entries = list(report)
        right = check(program.forward, program.backward, inputs).inputs[position]
        largest = np.abs(right.details.numerical).max()
        hidden = right.max_relative_error > 1e-13 or right.undecidable or largest <= 1e-6 * ordinary(program, inputs)
        assert hidden or not entries[position].ok, str(report)
        assert all(entry.ok for k, entry in enumerate(entries) if k != position)

    is_found()


def ordinary(program, inputs):
    """The size of a gradient where nothing cancels or saturates: that of the output over that of the input."""
    output = np.abs(program.forward(*inputs.values())).max()
    return output / (max(np.abs(x).max() for x in inputs.values()) or 1)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0, 1e3, 1e6])  # the larger, the worse differences of step 6e-6 are
def test_a_wrong_gradient_of_an_analytic_function_is_never_excused_by_central_differences(scale):
    inputs = {"x": np.linspace(-1, 1, 7) / 10}
    for error in (1e-9, 1e-8, 1.05e-7, -1e-9):
        report = check(
            lambda x: np.sin(scale * x), lambda d, x, e=error: (1 + e) * d * scale * np.cos(scale * x), inputs
        )
        assert not report.ok, error
        assert report["x"].method == "complex-step"
    assert check(lambda x: np.sin(scale * x), lambda d, x: d * scale * np.cos(scale * x), inputs).ok


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("float16", 0.2)])
def test_a_wrong_gradient_in_low_precision_is_found(dtype, error):
    def wrong(d, x, y):
        return tuple((g * (1 + error)).astype(dtype) for g in bilinear_backward(d, x, y))

    assert not check(bilinear, wrong, square_inputs(dtype=dtype)).ok


def test_a_function_that_computes_in_single_precision_holds_by_central_differences():
    def forward(x):
        return np.exp(2 * x.astype(np.float32))

    inputs = {"x": normal(5)}
    report = check(forward, lambda d, x: 2 * d.astype(float) * np.exp(2 * x), inputs)
    assert report.ok, str(report)
    assert report["x"].method == "central"
    assert not check(forward, lambda d, x: 3 * d.astype(float) * np.exp(2 * x), inputs).ok


def test_what_rounding_hides_is_counted_and_not_called_wrong():
    def forward(x, y):  # y is what is left of terms 1e10 times as large
        return (x + 1e10 * y) - 1e10 * y

    def backward(d, _, y):
        a = d * (1 + 1e10 * y.mean())
        return a - d * 1e10 * y.mean(), np.zeros_like(y)

    report = check(forward, backward, {"x": normal(6), "y": normal(6, seed=1)})
    assert report.ok, str(report)
    assert report["x"].max_relative_error > 1e-13
    assert report["x"].undecidable > 0
    assert "x: " in str(report)
    assert "cannot be decided at this precision" in str(report)
    wrong = check(
        forward, lambda *a: (1.001 * backward(*a)[0], backward(*a)[1]), {"x": normal(6), "y": normal(6, seed=1)}
    )
    assert not wrong["x"].ok


ROW = 10.0 ** np.arange(-12, 13, 4)  # from 1e-12 to 1e12


def mixed_scales(x):
    return ROW * np.sin(x[:, ::-1])


SHARP = {  # functions, each entry of whose gradients is far above its own rounding
    "attention": (
        *FUNCTIONS["attention"][:2],
        {"query": normal(2, 4), "key": normal(3, 4, seed=1), "value": normal(3, 2, seed=2)},
    ),
    "softmax": (*FUNCTIONS["softmax"][:2], {"scores": 3 * normal(2, 5)}),
    "layer norm": (
        *FUNCTIONS["layer norm"][:2],
        {"x": normal(2, 4), "gamma": normal(4, seed=1), "beta": normal(4, seed=2)},
    ),
    "gradients from 1e-12 to 1e12": (
        mixed_scales,
        lambda d, x: ((ROW * d)[:, ::-1] * np.cos(x),),
        {"x": normal(2, ROW.size)},
    ),
    "inputs from 1e-12 to 1e12": (
        lambda x, w: np.tanh(x / ROW) @ w,
        lambda d, x, w: ((d @ w.T) / np.cosh(x / ROW) ** 2 / ROW, np.tanh(x / ROW).T @ d),
        {"x": ROW * normal(2, ROW.size), "w": normal(ROW.size, 2, seed=1)},
    ),
}


EACH_INPUT = [
    (what, name, *by) for what in SHARP for name in SHARP[what][2] for by in (("auto", -1e-10), ("central", 1e-7))
]
QUICK = [("attention", "key", "auto"), ("softmax", "scores", "central"), ("inputs from 1e-12 to 1e12", "x", "auto")]


@pytest.mark.parametrize(
    ("what", "where", "method", "error"),
    [case if case[:3] in QUICK else pytest.param(*case, marks=pytest.mark.long) for case in EACH_INPUT],
)
def test_a_small_relative_error_of_any_single_entry_is_found_and_named_and_nothing_else(what, where, method, error):
    forward, backward, inputs = SHARP[what]
    right = check(forward, backward, inputs, method=method)
    assert right.ok
    assert not right[where].undecidable
    position = list(inputs).index(where)
    for index in np.ndindex(inputs[where].shape):

        def wrong(d_output, *arrays, index=index):
            gradients = list(backward(d_output, *arrays))
            gradients[position] = with_entry(gradients[position], index, gradients[position][index] * (1 + error))
            return gradients

        report = check(forward, wrong, inputs, method=method)
        assert [entry.name for entry in report if not entry.ok] == [where], index
        assert report[where].worst_index == index
        assert report[where].wrong == 1
        assert report[where].worst[0].index == index
        assert report[where].worst[0].relative_error == pytest.approx(abs(error), rel=1e-2)


@pytest.mark.parametrize("method", ALL)
def test_entries_that_are_the_residue_of_a_cancellation_are_undecided_and_named_and_never_wrong(method):
    def forward(x, shift):
        return softmax.forward(x + shift)[0]

    def backward(d_output, x, shift):
        d_x = softmax.backward(d_output, softmax.forward(x + shift)[1]).scores
        return d_x, d_x.sum(axis=-1, keepdims=True)

    inputs = {"x": normal(8, 7), "shift": normal(8, 1, seed=1)}
    for factor in (1, -1, 3):
        report = check(
            forward,
            lambda *a, c=factor: (lambda d_x, d_shift: (d_x, c * d_shift))(*backward(*a)),
            inputs,
            method=method,
        )
        assert report.ok, str(report)
        shift = report["shift"]
        assert shift.undecidable + (shift.details.verdict == HOLDS).sum() == 8
        assert shift.undecidable > 4
        assert shift.undecided == tuple(map(tuple, np.argwhere(shift.details.verdict == UNDECIDED)[:10].tolist()))
        assert f"shift: {shift.undecidable} of 8 entries cannot be decided at this precision" in str(report)
    report = check(forward, lambda *a: (backward(*a)[0], backward(*a)[1] + 1e-12), inputs, method=method)
    assert [entry.ok for entry in report] == [True, False]
    assert report["shift"].wrong == 8


@pytest.mark.parametrize("error", [1e-9, 1e-3, 1.0])
def test_a_small_entry_beside_large_ones_in_one_output_is_seen_by_the_complex_step_and_not_by_differences(error):
    def forward(x):
        return (ROW * np.sin(x)).sum(axis=-1)

    def wrong(d_output, x):
        return d_output * ROW * np.cos(x) * (1 + error * (np.arange(ROW.size) == 0))

    inputs = {"x": normal(ROW.size)}
    missed = check(forward, wrong, inputs, method="central")["x"]
    assert missed.ok
    assert (0,) in missed.undecided
    assert missed.details.verdict[-1] == HOLDS
    found = check(forward, wrong, inputs)["x"]
    assert (found.wrong, found.worst_index) == (1, (0,))
