"""What a check finds, what it excuses, and what is not seen of functions whose numbers are of very different sizes."""

import os

import numpy as np
import pytest
from helpers import each
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_np.gradcheck import NotAnalyticError, check, numerical_gradient
from attention_np.gradcheck.agreement import HOLDS, UNDECIDED

from .planted import FUNCTIONS
from .programs import (
    normal,
    programs,
    shifted_softmax,
    shifted_softmax_backward,
    with_entry,
)

ALL = ["auto", "central"]


MANY = int(os.environ.get("GRADCHECK_EXAMPLES", "100"))  # random functions, for each method and dtype
how_many = pytest.mark.parametrize("examples", [3, pytest.param(MANY, marks=pytest.mark.long)])


@pytest.mark.parametrize(
    ("badly_scaled", "examples"),
    [(False, 3), (True, 3), *(pytest.param(*x, marks=pytest.mark.long) for x in [(False, MANY // 4), (True, MANY)])],
)
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


@each("method", ALL)
@each("power", [2, 5])
def test_a_power_of_zeros_has_a_gradient_of_zeros(power, method):
    report = check(lambda x: x**power, lambda d, x: power * d * x ** (power - 1), {"x": np.zeros(3)}, method=method)
    assert report.ok, str(report)
    report = check(lambda x: x**power, lambda d, _: d, {"x": np.zeros(3)}, method=method)
    assert not report.ok


@each("method", ALL)
@each("width", [1e-2, 1e-4, 1e-6])
def test_a_function_that_is_flat_but_for_the_surroundings_of_the_point_is_not_taken_for_flat(width, method):
    def forward(x):
        return np.exp(-(((x - 1) / width) ** 2))

    def backward(d_output, x):
        return -2 * d_output * (x - 1) / width**2 * forward(x)

    inputs = {"x": 1 + width * np.array([0.5, -1.0, 1.5])}
    assert check(forward, backward, inputs, method=method).ok
    if method != "central" or width > 1e-5:  # where it is so narrow, differences need not look closely enough to see it
        assert not check(forward, lambda d, x: 0 * d * x, inputs, method=method).ok


@each("method", ALL)
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


@each("scale", [1e-6, 1.0, 1e6], long=[30.0, 1e3])  # the larger, the worse differences of step 6e-6 are
def test_a_wrong_gradient_of_an_analytic_function_is_never_excused_by_central_differences(scale):
    inputs = {"x": np.linspace(-1, 1, 7) / 10}
    for error in (1e-9, 1e-8, 1.05e-7, -1e-9):
        report = check(
            lambda x: np.sin(scale * x), lambda d, x, e=error: (1 + e) * d * scale * np.cos(scale * x), inputs
        )
        assert not report.ok, error
        assert report["x"].method == "complex-step"
    assert check(lambda x: np.sin(scale * x), lambda d, x: d * scale * np.cos(scale * x), inputs).ok


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
QUICK = [("softmax", "scores", "central"), ("inputs from 1e-12 to 1e12", "x", "auto")]


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


def changed(change):
    """The gradients of a shifted softmax, that of the shift changed."""

    def backward(*arrays):
        d_x, d_shift = shifted_softmax_backward(*arrays)
        return d_x, change(d_shift)

    return backward


@each("method", ALL)
def test_entries_that_are_the_residue_of_a_cancellation_are_undecided_and_named_and_never_wrong(method):
    inputs = {"x": normal(8, 7), "shift": normal(8, 1, seed=1)}
    for factor in (1, -1, 3):
        backward = changed(lambda d_shift, c=factor: c * d_shift)
        report = check(shifted_softmax, backward, inputs, method=method)
        assert report.ok, str(report)
        shift = report["shift"]
        assert shift.undecidable + (shift.details.verdict == HOLDS).sum() == 8
        assert shift.undecidable > 4
        assert shift.undecided == tuple(map(tuple, np.argwhere(shift.details.verdict == UNDECIDED)[:10].tolist()))
        assert f"shift: {shift.undecidable} of 8 entries cannot be decided at this precision" in str(report)
    off = changed(lambda d_shift: d_shift + 1e-12)
    report = check(shifted_softmax, off, inputs, method=method)
    assert [entry.ok for entry in report] == [True, False]
    assert report["shift"].wrong == 8


@each("error", [1e-9, 1e-3, 1.0])
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


EPS = float(np.finfo(float).eps)


def l1_norm(x):
    return np.array(np.abs(x).sum())


def relu_sum(x):
    return np.array(np.maximum(x.real, 0).sum())


def leaky(x):
    return np.array(np.where(x.real > 0, x.real, 0.1 * x.real).sum())


def length(x):
    return np.array(np.hypot(x, 1.0).sum())


BENT = {
    "the modulus": (l1_norm, lambda d, x: d * np.sign(x)),
    "max(x, 0)": (relu_sum, lambda d, x: d * (x > 0)),
    "a leaky one": (leaky, lambda d, x: d * np.where(x > 0, 1, 0.1)),
    "hypot, that is smooth": (length, lambda d, x: d * x / np.hypot(x, 1.0)),
}

FROM_ONE = {
    "pseudo-Huber": (lambda x: np.sqrt(1 + x * x) - 1, lambda d, x: d * x / np.sqrt(1 + x * x)),
    "1 - cos": (lambda x: 1 - np.cos(x), lambda d, x: d * np.sin(x)),
    "1 - exp": (lambda x: 1 - np.exp(-x * x), lambda d, x: d * 2 * x * np.exp(-x * x)),
    "log(1 + x^2)": (lambda x: np.log(1 + x * x), lambda d, x: d * 2 * x / (1 + x * x)),
}


@each("powers", [4, 12])
@each("name", BENT)
def test_a_step_longer_than_an_entry_sees_a_bend_between_and_does_not_look_past_it(name, powers):
    forward, backward = BENT[name]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.choice([-1, 1], 6) * 10.0 ** rng.uniform(-powers, powers, 6)
        report = check(forward, backward, {"x": x}, rng=seed)
        assert report.ok, f"{x.tolist()}\n{report}"


def test_what_differences_cannot_tell_beside_a_large_term_is_not_called_known():
    x = np.array([1e-8, 1e6])
    gradient, error = numerical_gradient(l1_norm, {"x": x}, np.ones(()), method="central", return_error=True)
    assert abs(gradient["x"][0] - 1) <= 10 * error["x"][0]
    assert abs(gradient["x"][1] - 1) < 1e-7
    assert error["x"][1] < 1e-7
    report = check(l1_norm, lambda d, x: d * np.sign(x), {"x": x}, method="central")
    assert report["x"].undecided == ((0,),)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["auto", "central"])
@pytest.mark.parametrize(
    "name", [*list(FROM_ONE)[:1], *(pytest.param(n, marks=pytest.mark.long) for n in list(FROM_ONE)[1:])]
)
def test_what_is_left_of_one_moves_in_last_bits_of_one(name, method, dtype):
    forward, backward = FROM_ONE[name]
    eps = float(np.finfo(dtype).eps)
    for size in (0.01 * eps, 0.1 * eps**0.5, eps**0.5, 30 * eps**0.5, 1000 * eps**0.5):
        x = (size * normal(4)).astype(dtype)
        report = check(forward, backward, {"x": x}, method=method)
        assert report.ok, f"{x.tolist()}\n{report}"
        assert not (method == "auto" and dtype == np.float64 and report["x"].undecidable)


def test_a_gradient_that_is_grossly_wrong_is_found_though_differences_are_coarse():
    forward, _ = FROM_ONE["pseudo-Huber"]
    found = check(forward, lambda d, _: d, {"x": 1e-9 * normal(4)}, method="central")["x"]
    assert found.wrong == 4
    assert (np.abs(found.details.numerical) <= 10 * found.details.floor).all()  # nothing is known but that it is small


def test_the_slopes_of_what_does_not_move_are_zero_and_known():
    dead = -np.abs(normal(5)) - 0.1
    found = check(lambda x: np.maximum(x.real, 0), lambda d, x: d * (x > 0), {"x": dead})["x"]
    assert (found.ok, found.undecidable, found.method) == (True, 0, "central")
    assert check(lambda x: np.maximum(x.real, 0), lambda d, _: 1e-9 * d, {"x": dead})["x"].wrong == 5
    masked = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    found = check(lambda x: x.real * masked, lambda d, _: d * masked, {"x": normal(5)})["x"]
    assert (found.ok, found.undecidable) == (True, 0)


BRANCHES = {
    "a modulus": (np.abs, np.sign),
    "the square of a real part": (lambda x: x.real**2, lambda x: 2 * x),
    "half a square": (lambda x: x * np.abs(x) / 2, np.abs),
}


@each("large", [1e3, 1e9, 1e12])
@each("name", BRANCHES)
def test_a_branch_that_is_not_analytic_is_seen_however_large_the_others_are(name, large):
    branch, slope = BRANCHES[name]
    x = np.array([0.3, -0.7, 1.0, -2.0, 0.5])

    def forward(x):
        return np.concatenate([large * np.sin(x[:2]), branch(x[2:])])

    def backward(d, x, factor=1.0):
        return np.concatenate([d[:2] * large * np.cos(x[:2]), factor * d[2:] * slope(x[2:])])

    by_complex_step = 0.5 if name == "half a square" else 0.0  # times the right gradient
    found = check(forward, lambda d, x: backward(d, x, by_complex_step), {"x": x})["x"]
    assert found.method == "central"
    assert "forward is not analytic" in found.note
    assert found.wrong == 3
    report = check(forward, backward, {"x": x})
    assert report.ok, str(report)


def test_a_function_that_stays_zero_is_not_analytic_if_the_complex_step_says_that_it_moves():
    """log sum exp(x - max x) of a row with one large score: its gradient is p - onehot, and rounds to zero."""

    def weights(x):
        scores = np.exp(x - x.real.max(axis=-1, keepdims=True))
        return scores / scores.sum(axis=-1, keepdims=True)

    def forward(x):  # the complex step leaves the maximum out
        return np.log(np.exp(x - x.real.max(axis=-1, keepdims=True)).sum(axis=-1))

    for seed in range(3):
        x = normal(3, 4, seed=seed) + np.array([50.0, 0, 0, 0])
        largest = x == x.max(axis=-1, keepdims=True)
        report = check(forward, lambda d, x, largest=largest: d[:, None] * (weights(x) - largest), {"x": x}, rng=seed)
        assert report.ok, str(report)
        assert not check(forward, lambda d, x: d[:, None] * weights(x), {"x": x}, rng=seed).ok


def test_what_stays_zero_for_want_of_digits_speaks_against_no_complex_step():
    def forward(x):  # 1e-14 at most, beside one
        return np.log(1 + (1e-6 * x / (1 + x * x)) ** 2)

    def backward(d, x):
        y = 1e-6 * x / (1 + x * x)
        return d * 2 * y / (1 + y * y) * 1e-6 * (1 - x * x) / (1 + x * x) ** 2

    for seed in range(10):
        found = check(forward, backward, {"x": 3 * normal(3, seed=seed).astype(np.float32)}, rng=seed)["x"]
        assert (found.ok, found.method) == (True, "complex-step")


@each("share", [1e-6, 1e-9])  # which a trial along all entries sees, and does not see
def test_a_term_that_is_not_analytic_is_seen_in_a_sum_with_larger_ones(share):
    def forward(x):
        return np.array(np.sin(x[0]) + share * np.abs(x[1]))

    inputs = {"x": np.array([0.3, 2.0])}
    found = check(forward, lambda d, x: d * np.array([np.cos(x[0]), 0.0]), inputs)["x"]
    assert (found.method, found.worst_index, found.wrong) == ("central", (1,), 1)
    assert found.note.startswith("the complex step gives the slope ")
    assert check(forward, lambda d, x: d * np.array([np.cos(x[0]), share * np.sign(x[1])]), inputs).ok
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .* use central$"):
        check(forward, lambda d, x: d * np.array([np.cos(x[0]), 0.0]), inputs, method="complex-step")


STAIRS = {
    "a clipped straight-through": (lambda x: np.clip(x.real, -1, 1), lambda d, _: d, [3.0, 0.5], 1),
    "sign": (lambda x: np.sign(x.real), lambda d, x: 0 * d * x, [0.5, -2.0, 3.0], 0),
    "a rounded straight-through": (lambda x: np.round(x.real), lambda d, _: d, [3.2, 0.7], 2),
    "max(-x, 0)": (lambda x: (np.abs(x) - x) / 2, lambda d, x: 0 * d * x, [1.5, 0.3], 0),
}


@each("unit", [1.0, 1e-12])
@each("name", STAIRS)
def test_the_verdict_on_what_is_flat_does_not_depend_on_the_unit_of_the_output(name, unit):
    forward, backward, x, wrong = STAIRS[name]
    found = check(lambda x: unit * forward(x), lambda d, x: unit * backward(d, x), {"x": np.array(x)})["x"]
    assert (found.ok, found.wrong, found.undecidable) == (wrong == 0, wrong, 0)
