import json
import multiprocessing
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_np import dot_product, gradcheck, multi_head, softmax
from attention_np.gradcheck import METHODS, GradientError, NotAnalyticError, assert_gradients, check, check_op

from .programs import programs

ALL = [*METHODS, "auto"]
CLAIMED = {"complex-step": 1e-13, "central": 1e-7, "auto": 1e-13}


def normal(*shape, seed=0, dtype=float):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# A function of two arrays that is not symmetric in anything, with its gradients.


def bilinear(x, y):
    return np.tanh(x @ y) + np.sin(y)


def bilinear_backward(d_output, x, y):
    d = d_output / np.cosh(x @ y) ** 2
    return d @ y.T, x.T @ d + d_output * np.cos(y)


def square_inputs(n=3, dtype=float):
    return {"x": normal(n, n, dtype=dtype), "y": normal(n, n, seed=1, dtype=dtype)}


def planted(bug):
    """The backward above, with a bug in the gradient of `x`."""

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return bug(d_x, d_y, d_output)

    return backward


def with_entry(array, index, value):
    changed = np.array(array)
    changed[index] = value
    return changed


CORRECT = {
    "two inputs": (bilinear, bilinear_backward, square_inputs()),
    "an elementwise function": (np.exp, lambda d, x: d * np.exp(x), {"x": normal(2, 3, 2)}),
    "a scalar output": (lambda x: (x**2).sum(), lambda d, x: 2 * d * x, {"x": normal(4)}),
    "a scalar output of Python": (lambda x: float(x[0]) * 2 if x.dtype == float else x[0] * 2, None, {"x": normal(1)}),
    "a scalar input": (lambda x: np.array([x, x**2]), lambda d, x: d[0] + 2 * d[1] * x, {"x": 0.7}),
    "a scalar each way": (np.sin, lambda d, x: d * np.cos(x), {"x": np.array(0.7)}),
    "a list as input": (np.sin, lambda d, x: d * np.cos(x), {"x": [0.7, 0.8]}),
    "no elements": (np.sin, lambda d, x: d * np.cos(x), {"x": np.zeros((0, 3))}),
    "no output": (lambda x: x[:0], lambda _, x: np.zeros_like(x), {"x": normal(3)}),
    "one input without elements": (
        lambda x, y: x * y.sum(),
        lambda d, x, y: (d * y.sum(), np.full(y.shape, (d * x).sum())),
        {"x": normal(3), "y": np.zeros((0, 2))},
    ),
    "many inputs": (
        lambda a, b, c, d: a * b + c / d,
        lambda u, a, b, c, d: (u * b, u * a, u / d, -u * c / d**2),
        {name: normal(3, seed=k) + 3 for k, name in enumerate("abcd")},
    ),
    "an input that is not used": (
        lambda x, _: np.sin(x),
        lambda d, x, y: (d * np.cos(x), np.zeros_like(y)),
        {"x": normal(3), "y": normal(2)},
    ),
    "a constant": (lambda x: x * 0 + 1, lambda d, _: 0 * d, {"x": normal(3)}),
    "broadcasting": (
        lambda x, b: x * b,
        lambda d, x, b: (d * b, (d * x).sum(axis=0)),
        {"x": normal(4, 3), "b": normal(3, seed=1)},
    ),
    "inputs that are zero": (
        lambda x, w: np.tanh(x) @ w,
        lambda d, x, w: (d @ w.T / np.cosh(x) ** 2, np.tanh(x).T @ d),
        {"x": np.zeros((2, 3)), "w": np.zeros((3, 2))},
    ),
    "a gradient that cancels to zero": (
        lambda x, c: softmax.forward(x + c)[0],
        lambda d, x, c: (lambda g: (g, g.sum(axis=-1, keepdims=True)))(
            softmax.backward(d, softmax.forward(x + c)[1]).scores
        ),
        {"x": normal(5, 7), "c": normal(5, 1, seed=1)},
    ),
    "a gradient of zeros that cancels to zero": (
        lambda x, c: softmax.forward(x + c)[0],
        lambda d, x, c: (lambda g: (g, g.sum(axis=-1, keepdims=True)))(
            softmax.backward(d, softmax.forward(x + c)[1]).scores
        ),
        {"x": np.zeros((5, 7)), "c": np.zeros((5, 1))},
    ),
    "saturated tanh": (np.tanh, lambda d, x: d * (1 - np.tanh(x) ** 2), {"x": np.array([-9.0, 8.0, 14.0])}),
    "wholly saturated tanh": (np.tanh, lambda d, x: d * (1 - np.tanh(x) ** 2), {"x": np.array([-14.0, 16.0, 30.0])}),
    "saturated softmax": (
        lambda x: softmax.forward(x)[0],
        lambda d, x: softmax.backward(d, softmax.forward(x)[1]).scores,
        {"x": 50 * normal(4, 5)},
    ),
    "a function that ends in a difference": (
        lambda x: (x + 1e6) - 1e6 * np.cos(x / 1e4),
        lambda d, x: d * (1 + 1e2 * np.sin(x / 1e4)),
        {"x": normal(5)},
    ),
    "gradients as a list": (np.sin, lambda d, x: [d * np.cos(x)], {"x": normal(3)}),
    "gradients that are a view of the cotangent": (
        lambda x: x.reshape(-1) + 1,
        lambda d, x: d.reshape(x.shape),
        {"x": normal(2, 3)},
    ),
    "a cumulative product": (
        lambda x: np.cumsum(x**3, axis=1),
        lambda d, x: np.cumsum(d[:, ::-1], axis=1)[:, ::-1] * 3 * x**2,
        {"x": normal(2, 6)},
    ),
}
CORRECT["a scalar output of Python"] = (
    *CORRECT["a scalar output of Python"][:1],
    lambda d, x: 2 * d * np.ones_like(x),
    {"x": normal(1)},
)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("what", CORRECT)
def test_correct_gradients_hold(what, method):
    forward, backward, inputs = CORRECT[what]
    report = check(forward, backward, inputs, method=method)
    assert report.ok, str(report)
    assert [entry.name for entry in report] == list(inputs)
    for entry in report:
        assert entry.method == ("central" if method == "central" else "complex-step")
        assert entry.diagnosis is None
        assert entry.undecidable or entry.max_relative_error <= CLAIMED[method]


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", ["float16", "float32", "longdouble"])
def test_correct_gradients_hold_in_every_dtype(dtype, method):
    report = check(bilinear, bilinear_backward, square_inputs(dtype=dtype), method=method)
    assert report.ok, str(report)
    assert all(entry.max_relative_error <= 50 * max(np.finfo(dtype).eps, 1e-9) for entry in report)


@pytest.mark.parametrize("method", ALL)
def test_inputs_of_different_dtypes_are_each_judged_in_their_own(method):
    inputs = {"x": normal(3, 3), "y": normal(3, 3, seed=1, dtype="float32")}

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x, d_y.astype(y.dtype)

    report = check(bilinear, backward, inputs, method=method)
    assert report.ok
    assert report["x"].max_relative_error <= CLAIMED[method]
    assert 1e-9 < report["y"].max_relative_error < 1e-6


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("input_scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("output_scale", [1e-12, 1.0, 1e12])
def test_the_scale_of_inputs_and_outputs_does_not_matter(method, input_scale, output_scale):
    def forward(x, y):
        return output_scale * bilinear(x / input_scale, y)

    def right(d_output, x, y):
        d_x, d_y = bilinear_backward(output_scale * d_output, x / input_scale, y)
        return d_x / input_scale, d_y

    def wrong(d_output, x, y):
        d_x, d_y = right(d_output, x, y)
        return d_x * (1 + 1e3 * CLAIMED[method]), d_y

    inputs = square_inputs() | {"x": input_scale * normal(3, 3)}
    assert check(forward, right, inputs, method=method).ok
    report = check(forward, wrong, inputs, method=method)
    assert not report["x"].ok
    assert report["y"].ok


NO_FALSE_ALARM = settings(max_examples=200)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ALL)
@given(programs())
@NO_FALSE_ALARM
def test_no_random_correct_function_is_called_wrong(method, dtype, program_and_inputs):
    program, inputs = program_and_inputs
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    report = check(program.forward, program.backward, inputs, method=method)
    assert report.ok, str(report)


@given(programs(), st.integers(0, 2), st.sampled_from([1 + 1e-9, -1.0, 2.0, 0.5, 0.0]))
@settings(max_examples=100)
def test_a_factor_on_a_random_gradient_is_found_unless_rounding_hides_it(program_and_inputs, which, factor):
    program, inputs = program_and_inputs
    position = which % len(inputs)

    def backward(d_output, *arrays):
        gradients = program.backward(d_output, *arrays)
        gradients[position] = gradients[position] * factor
        return gradients

    report = check(program.forward, backward, inputs)
    entries = list(report)
    right = check(program.forward, program.backward, inputs).inputs[position]
    hidden = (
        right.max_relative_error > 1e-13 or right.undecidable or abs(right.numerical) < 1e-6 * ordinary(program, inputs)
    )
    assert hidden or not entries[position].ok, str(report)
    assert all(entry.ok for k, entry in enumerate(entries) if k != position)


def ordinary(program, inputs):
    """The size of a gradient where nothing cancels or saturates: that of the output over that of the input."""
    output = np.abs(program.forward(*inputs.values())).max()
    return output / max(np.abs(x).max() for x in inputs.values())


BUGS = {
    "the sign": lambda g, *_: -g,
    "a factor 2": lambda g, *_: 2 * g,
    "a factor 1/2": lambda g, *_: g / 2,
    "a constant": lambda g, *_: g + 1e-3,
    "a transposition": lambda g, *_: g.T,
    "the other gradient": lambda _, other, __: other,
    "a permutation": lambda g, *_: g[::-1],
    "zeros": lambda g, *_: np.zeros_like(g),
    "the cotangent ignored": lambda g, _, d_output: g / d_output,
    "one row": lambda g, *_: with_entry(g, 1, 0.0),
    "a mean for a sum": lambda g, *_: g / len(g),
    "noise": lambda g, *_: g + 1e-4 * normal(*g.shape, seed=9),
}


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_in_its_input_alone(bug, method):
    backward = planted(lambda d_x, d_y, d_output: (BUGS[bug](d_x, d_y, d_output), d_y))
    report = check(bilinear, backward, square_inputs(), method=method)
    assert (report.ok, report["x"].ok, report["y"].ok) == (False, False, True)
    assert report["x"].max_relative_error > 1e-5


@pytest.mark.parametrize("method", ALL)
def test_swapped_gradients_are_found_in_both(method):
    report = check(bilinear, planted(lambda d_x, d_y, _: (d_y, d_x)), square_inputs(), method=method)
    assert (report["x"].ok, report["y"].ok) == (False, False)


@pytest.mark.parametrize("method", ALL)
def test_a_backward_that_takes_the_loss_for_a_plain_sum_is_found(method):
    report = check(bilinear, lambda d, x, y: bilinear_backward(np.ones_like(d), x, y), square_inputs(), method=method)
    assert (report["x"].ok, report["y"].ok) == (False, False)


def test_the_softmax_correction_is_missed_although_it_vanishes_for_a_plain_sum():
    def backward(d_weights, scores):
        weights = softmax.forward(scores)[0]
        return weights * d_weights

    assert not check(lambda x: softmax.forward(x)[0], backward, {"scores": normal(3, 4)}).ok


def test_a_sum_left_out_is_found_where_the_shapes_agree_all_the_same():
    def forward(x, b):
        return x * b

    inputs = {"x": normal(4, 1), "b": normal(4, 1, seed=1)}
    assert check(forward, lambda d, x, b: (d * b, d * x), inputs).ok
    inputs = {"x": normal(4, 4), "b": normal(4, 1, seed=1)}
    report = check(forward, lambda d, x, b: (d * b, (d * x)[:, :1]), inputs)
    assert (report["x"].ok, report["b"].ok) == (True, False)


@pytest.mark.parametrize("error", [1e-10, 1e-12, -1e-10, 3e-13])
def test_the_complex_step_finds_a_tiny_relative_error_of_a_whole_gradient(error):
    for method in ("complex-step", "auto"):
        report = check(bilinear, planted(lambda g, h, _: (g * (1 + error), h)), square_inputs(), method=method)
        assert (report["x"].ok, report["y"].ok) == (False, True)
        assert report["x"].max_relative_error == pytest.approx(abs(error), rel=1e-2)


@pytest.mark.parametrize(("method", "error"), [("complex-step", 1e-10), ("auto", 1e-10), ("central", 1e-6)])
@pytest.mark.parametrize("index", [(0, 0), (1, 2), (2, 1)])
def test_a_single_entry_that_is_off_by_little_of_the_largest_is_found_and_named(method, error, index):
    def bug(d_x, d_y, _):
        return with_entry(d_x, index, d_x[index] + error * np.abs(d_x).max()), d_y

    report = check(bilinear, planted(bug), square_inputs(), method=method)
    entry = report["x"]
    assert not entry.ok
    assert entry.worst_index == index
    assert entry.max_relative_error == pytest.approx(error, rel=1e-2)
    assert entry.analytic != entry.numerical
    assert entry.analytic == pytest.approx(entry.numerical, rel=1e-3)
    numerical = gradcheck.numerical_gradient(
        bilinear, square_inputs(), np.random.default_rng(0).standard_normal((3, 3)), method=method
    )
    assert entry.numerical == numerical["x"][index]


@pytest.mark.parametrize(
    ("bug", "diagnosis"),
    [
        (lambda *_: None, "the gradient is missing"),
        (lambda g: g[:2], "the gradient has the shape (2, 3), the input (3, 3): it is right, but"),
        (lambda g: g.sum(), "the gradient has the shape (), the input (3, 3): it is summed over axes 0 and 1"),
        (
            lambda g: g[None],
            "the gradient has the shape (1, 3, 3), the input (3, 3): it is right, but has an extra",
        ),
        (lambda g: with_entry(g, (1, 2), np.nan), "the gradient is NaN or infinite in 1 of 9 entries, first at [1, 2]"),
        (lambda g: g / 0.0, "the gradient is NaN or infinite in 9 of 9 entries, first at [0, 0]"),
        (lambda g: g + 0j, "the gradient holds complex128, not real floating-point numbers"),
        (lambda g: np.zeros(g.shape, int), "the gradient holds int64, not real floating-point numbers"),
        (lambda g: g.astype(object), "the gradient holds object, not real floating-point numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_gradient_that_is_none_is_said_to_be(bug, diagnosis):
    report = check(bilinear, planted(lambda d_x, d_y, _: (bug(d_x), d_y)), square_inputs())
    assert (report.ok, report["x"].ok, report["y"].ok) == (False, False, True)
    assert report["x"].diagnosis.startswith(diagnosis)
    assert report["x"].max_relative_error == np.inf
    assert f"x: {diagnosis}" in str(report)


def test_a_scalar_gradient_that_is_not_finite_is_said_to_be():
    report = check(np.sin, lambda _, __: np.nan, {"x": 0.5})
    assert report["x"].diagnosis == "the gradient is NaN or infinite in 1 of 1 entries, first at []"


def test_a_backward_that_gives_another_gradient_each_time_is_not_excused_as_noise():
    rng = np.random.default_rng(0)

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x + 1e-3 * rng.standard_normal(d_x.shape), d_y

    report = check(bilinear, backward, square_inputs())
    assert (report["x"].ok, report["y"].ok) == (False, True)
    assert report["x"].diagnosis == "backward gives another gradient when it is called again"


def test_a_backward_may_use_its_memory_again():
    memory = np.zeros((3, 3)), np.zeros((3, 3))

    def backward(d_output, x, y):
        for buffer, gradient in zip(memory, bilinear_backward(d_output, x, y), strict=True):
            buffer[...] = gradient
        return memory

    assert check(bilinear, backward, square_inputs()).ok

    def wrong(d_output, x, y):
        return tuple(2 * gradient for gradient in backward(d_output, x, y))

    assert not check(bilinear, wrong, square_inputs()).ok


def test_a_function_whose_value_is_not_finite_has_no_gradient_that_holds():
    for x, method in ((0.0, "auto"), (-1.0, "auto"), (-1.0, "complex-step"), (-1.0, "central")):
        with np.errstate(all="ignore"):
            report = check(np.log, lambda d, x: d / (x + 1e-9), {"x": np.array([1.0, x])}, method=method)
        assert not report.ok
        assert report["x"].diagnosis == "the output is NaN or infinite in 1 of 2 entries, first at [1]"


KINKED = {
    "abs": (np.abs, lambda d, x: d * np.sign(x)),
    "abs inside": (lambda x: np.abs(x) * x, lambda d, x: 2 * d * np.abs(x)),
    "the real part": (lambda x: np.real(x) ** 2, lambda d, x: 2 * d * np.real(x)),
    "a cast of a part": (lambda x: x.astype(float) * x, lambda d, x: 2 * d * x),
    "hypot": (lambda x: np.hypot(x, 1.0), lambda d, x: d * x / np.hypot(x, 1.0)),
    "a comparison of magnitudes": (
        lambda x: np.where(np.abs(x) > 1, np.abs(x), x**2),
        lambda d, x: d * np.where(np.abs(x) > 1, np.sign(x), 2 * x),
    ),
    "a norm": (
        lambda x: np.linalg.norm(x) * x,
        lambda d, x: d * np.linalg.norm(x) + (d * x).sum() * x / np.linalg.norm(x),
    ),
}


@pytest.mark.parametrize("what", KINKED)
def test_under_auto_a_function_that_is_not_analytic_is_judged_by_central_differences(what):
    forward, backward = KINKED[what]
    inputs = {"x": np.array([0.5, -1.5, 2.0, -0.25])}
    report = check(forward, backward, inputs)
    assert report.ok, str(report)
    assert report["x"].method == "central"
    assert report["x"].max_relative_error < 1e-8
    report = check(forward, lambda d, x: (1 + 1e-6) * backward(d, x), inputs)
    assert not report.ok
    assert report["x"].method == "central"
    assert report["x"].max_relative_error == pytest.approx(1e-6, rel=1e-2)


def test_under_auto_a_part_that_is_not_analytic_is_looked_at_again_by_central_differences():
    def forward(x, y):  # in a random direction, what the cast loses of x drowns in what y does
        return x.real * 1e-6 + y * 1.0

    def backward(d_output, x, y):
        return (d_output * 1e-6).sum() * np.ones_like(x), d_output * np.ones_like(y)

    inputs = {"x": normal(1), "y": normal(5, seed=1)}
    report = check(forward, backward, inputs)
    assert report.ok, str(report)
    assert [entry.method for entry in report] == ["central", "complex-step"]
    wrong = check(forward, lambda *a: [2 * g for g in backward(*a)], inputs)
    assert [entry.ok for entry in wrong] == [False, False]


@pytest.mark.parametrize("method", ["complex-step", "auto"])
@pytest.mark.parametrize(
    "scale", [1e-6, 1.0, 30.0, 1e3, 1e6]
)  # the larger, the worse central differences of step 6e-6 are
def test_a_wrong_gradient_of_an_analytic_function_is_never_excused_by_central_differences(scale, method):
    inputs = {"x": np.linspace(-1, 1, 7) / 10}
    for error in (1e-9, 1e-8, 1.05e-7, -1e-9):
        report = check(
            lambda x: np.sin(scale * x),
            lambda d, x, e=error: (1 + e) * d * scale * np.cos(scale * x),
            inputs,
            method=method,
        )
        assert not report.ok, error
        assert report["x"].method == "complex-step"
    assert check(lambda x: np.sin(scale * x), lambda d, x: d * scale * np.cos(scale * x), inputs, method=method).ok


@pytest.mark.parametrize("power", np.arange(2.0, 5.0, 0.25))
def test_no_step_that_happens_to_fit_excuses_an_error_of_a_billionth(power):
    k = 10**power
    inputs = {"x": np.array([0.3])}
    report = check(lambda x: np.exp(k * (x - 0.3)), lambda d, x: (1 + 1e-9) * d * k * np.exp(k * (x - 0.3)), inputs)
    assert not report.ok


def test_a_complex_step_that_was_asked_for_and_is_wrong_is_refused_and_not_trusted():
    with pytest.raises(NotAnalyticError, match="use central"):
        check(np.abs, lambda d, x: d * np.sign(x), {"x": normal(3)}, method="complex-step")
    for backward in (
        lambda d, x: 2 * d * np.abs(x),
        lambda d, x: d * np.abs(x),
    ):  # right; as the complex step has it
        with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .* not analytic .* use central$"):
            check(lambda x: np.abs(x) * x, backward, {"x": normal(3)}, method="complex-step")


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("float16", 0.2)])
def test_a_wrong_gradient_in_low_precision_is_found(dtype, error):
    def wrong(d, x, y):
        return tuple((g * (1 + error)).astype(dtype) for g in bilinear_backward(d, x, y))

    assert not check(bilinear, wrong, square_inputs(dtype=dtype)).ok


def test_a_gradient_of_single_precision_in_a_double_function_is_found():
    def single(d, x, y):
        return [g.astype(np.float32).astype(float) for g in bilinear_backward(d, x, y)]

    report = check(bilinear, single, square_inputs())
    assert not report.ok
    assert 1e-9 < report["x"].max_relative_error < 1e-6


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
    memory = np.zeros(6), np.zeros(6)

    def in_place(*arrays):
        for buffer, gradient in zip(memory, backward(*arrays), strict=True):
            buffer[...] = gradient
        return memory

    assert check(forward, in_place, {"x": normal(6), "y": normal(6, seed=1)}) == report
    wrong = check(
        forward, lambda *a: (1.001 * backward(*a)[0], backward(*a)[1]), {"x": normal(6), "y": normal(6, seed=1)}
    )
    assert not wrong["x"].ok


@pytest.mark.parametrize(("size", "seed"), [(3, 1), (1, 2), (1, 6)])
def test_a_gradient_that_rounding_hides_throughout_is_said_to_be_undecidable(size, seed):
    report = check(
        lambda a: (0.7 * a + 1e12) - 1e12,
        lambda d, _: 0.7 * (1 + 1e-5) * d,
        {"a": normal(size, seed=seed)},
        method="central",
    )
    assert report.ok, str(report)
    assert report["a"].undecidable > 0
    assert "cannot be decided at this precision" in str(report)


def test_rtol_sets_the_tolerance():
    off = planted(lambda g, h, _: (g * (1 + 1e-6), h))
    assert check(bilinear, off, square_inputs(), rtol=1.1e-6).ok
    assert not check(bilinear, off, square_inputs(), rtol=0.9e-6).ok
    assert check(bilinear, off, square_inputs(), rtol=1.1e-6, method="central").ok
    assert check(lambda x: 2 * x, lambda d, _: 2 * d, {"x": np.ones(3)}, rtol=0).ok


def test_the_tolerance_that_is_asked_for_and_the_error_are_normwise_but_the_verdict_is_not():
    def forward(x):
        return x * np.array([1.0, 1e-20])

    off = {"inputs": {"x": np.ones(2)}, "backward": lambda d, _: d * np.array([1.0, 2e-20])}
    report = check(forward, **off)
    assert not report.ok
    assert report["x"].worst_index == (1,)
    assert report["x"].max_relative_error < 1e-19
    assert check(forward, **off, rtol=1e-15).ok


def test_the_report_is_the_same_for_the_same_seed_and_another_for_another():
    off = planted(lambda g, h, _: (g * 1.5, h))
    first, again, other = (check(bilinear, off, square_inputs(), rng=seed).to_dict() for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert check(bilinear, off, square_inputs(), rng=np.random.default_rng(3)).to_dict() == first
    assert check(bilinear, off, square_inputs()).to_dict() == check(bilinear, off, square_inputs(), rng=0).to_dict()


def test_the_cotangent_is_random_and_has_the_dtype_of_the_output():
    seen = []

    def backward(d, x, y):
        seen.append(d)
        return bilinear_backward(d, x, y)

    check(bilinear, backward, square_inputs(dtype="float32"))
    assert seen[0].dtype == np.float32
    assert len(np.unique(seen[0])) == seen[0].size
    assert (seen[0] < 0).any()
    assert (seen[0] > 0).any()


@pytest.mark.parametrize("method", ALL)
def test_functions_that_write_to_their_inputs_are_found_and_write_to_copies(method):
    def forward(x, y):
        result = bilinear(x, y)
        x[...] = 7
        y *= 0
        return result

    def backward(d_output, x, y):
        result = bilinear_backward(d_output, x, y)
        d_output[...] = 0
        return result

    inputs = square_inputs()
    report = check(forward, bilinear_backward, inputs, method=method)
    assert [entry.diagnosis for entry in report] == ["forward writes to this input"] * 2
    report = check(bilinear, backward, inputs, method=method)
    assert not report.ok
    assert report["x"].diagnosis == "backward writes to the gradient of the output that it is given"
    np.testing.assert_array_equal(inputs["x"], square_inputs()["x"])
    np.testing.assert_array_equal(inputs["y"], square_inputs()["y"])


@pytest.mark.parametrize("method", METHODS)
def test_inputs_may_be_read_only_and_not_contiguous(method):
    x, y = normal(6, 6)[::2, ::2].T, np.broadcast_to(normal(3), (3, 3))
    assert not y.flags.writeable
    assert check(bilinear, bilinear_backward, {"x": x, "y": y}, method=method).ok


@pytest.fixture(scope="module", params=["threads", "processes"])
def executor(request):
    if request.param == "threads":
        with ThreadPoolExecutor(3) as pool:
            yield pool
    else:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool


def wrong_backward(d_output, x, y):
    d_x, d_y = bilinear_backward(d_output, x, y)
    return d_x * (1 + 3e-13), d_y


def not_analytic(x):
    return np.abs(x) * x


def not_analytic_backward(d_output, x):
    return 2 * d_output * np.abs(x)


@pytest.mark.parametrize("method", ALL)
def test_threads_and_processes_change_no_bit_of_the_report(executor, method):
    inputs = square_inputs(10)  # of 100 elements each, so that there are several tasks
    for backward in (bilinear_backward, wrong_backward):
        here = check(bilinear, backward, inputs, method=method)
        there = check(bilinear, backward, inputs, method=method, executor=executor)
        assert here == there
    assert not here["x"].ok or method == "central"
    inputs = {"x": normal(5)}
    if method != "complex-step":
        assert check(not_analytic, not_analytic_backward, inputs, method=method, executor=executor).ok


def test_an_op_is_checked_in_threads_and_processes_too(executor):
    inputs = {"query": normal(5, 4), "key": normal(6, 4, seed=1), "value": normal(6, 3, seed=2)}
    here = check_op(dot_product, inputs, dropout_p=0.5, rng=3)
    assert here.ok
    assert here == check_op(dot_product, inputs, dropout_p=0.5, rng=3, executor=executor)


def test_an_error_in_a_worker_reaches_the_caller(executor):
    with pytest.raises(NotAnalyticError, match="use central"):
        check(np.abs, np.multiply, {"x": normal(3)}, method="complex-step", executor=executor)


def test_assert_gradients_is_silent_or_raises_the_report():
    assert_gradients(bilinear, bilinear_backward, square_inputs())
    with pytest.raises(AssertionError) as raised:
        assert_gradients(bilinear, wrong_backward, square_inputs())
    assert isinstance(raised.value, GradientError)
    assert str(raised.value).startswith("the gradient does not hold for x\ninput  method ")
    assert_gradients(bilinear, wrong_backward, square_inputs(), method="central")
    assert_gradients(bilinear, wrong_backward, square_inputs(), rtol=1e-12, rng=5)


def test_a_report_of_a_check_prints_names_values_and_errors_and_is_json():
    report = check(bilinear, planted(lambda g, h, _: (with_entry(g, (1, 2), 8.5), h)), square_inputs())
    row = str(report).splitlines()[1].split()
    assert row[:3] == ["x", "complex-step", "NO"]
    assert row[4:7] == ["[1,", "2]", "8.5"]
    assert float(row[7]) == pytest.approx(report["x"].numerical, rel=1e-8)
    assert float(row[3]) == pytest.approx(report["x"].max_relative_error, rel=0.1)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["inputs"][0]["worst_index"] == [1, 2]
    with pytest.raises(KeyError, match="'z' is not among the inputs checked: x, y"):
        report["z"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inputs": [normal(2)]}, TypeError, "^inputs must be a mapping of names to arrays, not list$"),
        ({"inputs": {}}, ValueError, "^inputs must hold at least one array"),
        ({"inputs": {"x": np.arange(3)}}, TypeError, r"^input x must hold real .* not int64 \(x.shape=\(3,\)\)$"),
        (
            {"inputs": {"x": normal(2) * 1j}},
            TypeError,
            "^input x is complex: .* parts as two inputs",
        ),
        ({"inputs": {"x": np.array([None])}}, TypeError, "^input x must hold real .* not object"),
        ({"forward": lambda x: [x]}, TypeError, "^forward must return one array, not list$"),
        ({"forward": lambda x: (x, x)}, TypeError, "^forward must return one array, not tuple$"),
        (
            {"forward": lambda x: x.astype(int)},
            TypeError,
            "^forward must return real floating-point numbers, not int64$",
        ),
        (
            {"forward": lambda x: x + 1j},
            TypeError,
            "^forward must return real numbers, not complex128: ",
        ),
        (
            {"backward": lambda d, _: (d, d)},
            ValueError,
            r"^backward must return one gradient for each of the 1 inputs \(x\), not 2$",
        ),
        ({"backward": lambda _, __: ()}, ValueError, r"each of the 1 inputs \(x\), not 0$"),
        (
            {"inputs": {"a": normal(2), "b": normal(2)}, "forward": np.add, "backward": lambda d, _, __: d},
            ValueError,
            r"each of the 2 inputs \(a, b\), not 1$",
        ),
        (
            {"inputs": {"a": normal(2), "b": normal(2)}, "forward": np.add, "backward": lambda d, _, __: [d]},
            ValueError,
            r"each of the 2 inputs \(a, b\), not 1$",
        ),
        (
            {"method": "richardson"},
            ValueError,
            r"^method must be 'auto', 'complex-step' or 'central', not 'richardson'$",
        ),
        ({"rtol": -1e-3}, ValueError, r"^rtol must be a number that is not negative, not -0.001$"),
        ({"rtol": float("nan")}, ValueError, "^rtol must be a number that is not negative, not nan$"),
        ({"rtol": "1e-3"}, ValueError, "^rtol must be a number that is not negative, not '1e-3'$"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": normal(3)}}
    with pytest.raises(error, match=message) as raised:
        check(**(usual | arguments))
    assert "\n" not in str(raised.value)


# An op for check_op, with parameters in a NamedTuple and an input that may be left out.


class Weights(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None = None


class AffineGradients(NamedTuple):
    x: np.ndarray
    weights: Weights


def affine_op(d_w_factor=1.0, jvp_factor=1.0, *, with_jvp=True, gradients=AffineGradients):
    def forward(x, weights, *, scale=1.0):
        output = (x @ weights.w) * scale + (0 if weights.b is None else weights.b)
        return output, (x, weights, scale)

    def backward(d_output, cache):
        x, weights, scale = cache
        d_b = None if weights.b is None else d_output.sum(axis=0)
        return gradients(scale * d_output @ weights.w.T, Weights(d_w_factor * scale * x.T @ d_output, d_b))

    def jvp(cache, *, x, weights):
        x0, w0, scale = cache
        moved = scale * (x @ w0.w + x0 @ weights.w)
        return jvp_factor * (moved if weights.b is None else moved + weights.b)

    return types.SimpleNamespace(forward=forward, backward=backward, **({"jvp": jvp} if with_jvp else {}))


def affine_inputs(b=True):
    return {"x": normal(4, 3), "weights": Weights(normal(3, 2, seed=1), normal(2, seed=2) if b else None)}


@pytest.mark.parametrize("method", ALL)
def test_check_op_reports_nested_arrays_by_dotted_names_and_forward_mode_last(method):
    report = check_op(affine_op(), affine_inputs(), method=method, scale=3.0)
    assert report.ok, str(report)
    assert [entry.name for entry in report] == ["x", "weights.w", "weights.b", "jvp"]
    assert report["jvp"].method == "adjoint"
    assert report["jvp"].max_relative_error <= 1e-15
    assert report["jvp"].analytic == pytest.approx(report["jvp"].numerical, rel=1e-14)
    json.dumps(report.to_dict(), allow_nan=False)


def test_check_op_leaves_alone_what_is_none_and_does_without_forward_mode():
    assert [entry.name for entry in check_op(affine_op(), affine_inputs(b=False))] == ["x", "weights.w", "jvp"]
    report = check_op(affine_op(with_jvp=False), affine_inputs())
    assert [entry.name for entry in report] == ["x", "weights.w", "weights.b"]


def test_check_op_finds_what_is_wrong_backward_and_forward():
    report = check_op(affine_op(d_w_factor=1 + 1e-12), affine_inputs())
    assert [(entry.name, entry.ok) for entry in report][:3] == [("x", True), ("weights.w", False), ("weights.b", True)]
    report = check_op(affine_op(jvp_factor=1 + 1e-13), affine_inputs())
    assert [entry.ok for entry in report] == [True, True, True, False]
    report = check_op(affine_op(gradients=lambda x, _: types.SimpleNamespace(x=x)), affine_inputs())
    assert report["weights.w"].diagnosis == "the gradient is missing"


def test_check_op_finds_an_op_that_writes_to_its_inputs_and_lets_it_write_to_copies():
    def forward(x):
        output = np.sin(x)
        cache = x.copy()
        x[...] = 0
        return output, cache

    op = types.SimpleNamespace(
        forward=forward,
        backward=lambda d, x: types.SimpleNamespace(x=d * np.cos(x)),
        jvp=lambda cache, x: np.cos(cache) * x,
    )
    inputs = {"x": normal(4)}
    assert check_op(op, inputs)["x"].diagnosis == "forward writes to this input"
    np.testing.assert_array_equal(inputs["x"], normal(4))


def test_check_op_draws_the_same_dropout_at_every_evaluation():
    inputs = {"query": normal(3, 4), "key": normal(5, 4, seed=1), "value": normal(5, 2, seed=2)}
    generator = np.random.default_rng(8)
    assert check_op(dot_product, inputs, dropout_p=0.5, rng=generator).ok
    assert generator.random() == np.random.default_rng(8).random()


def test_check_op_takes_the_seed_of_the_cotangent_and_of_the_tangents():
    first, again, other = (check_op(affine_op(), affine_inputs(), cotangent_rng=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["jvp"].numerical != other["jvp"].numerical


def test_check_op_refuses_inputs_that_are_not_a_mapping_or_not_floating_point():
    with pytest.raises(TypeError, match=r"^inputs must be a mapping of names to arrays, not list$"):
        check_op(softmax, [normal(3)])
    with pytest.raises(TypeError, match=r"^input scores must hold real floating-point numbers, not int64"):
        check_op(softmax, {"scores": np.arange(3)})
    with pytest.raises(ValueError, match="at least one array"):
        check_op(softmax, {})


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_ops_of_this_library_hold_with_nested_parameters(method, dtype):
    rng = np.random.default_rng(0)
    parameters = multi_head.Parameters(*(rng.standard_normal((4, 4)).astype(dtype) for _ in range(4)))
    inputs = {name: normal(3, 4, seed=k, dtype=dtype) for k, name in enumerate(("query", "key", "value"))}
    report = check_op(multi_head, {**inputs, "parameters": parameters}, method=method, num_heads=2)
    assert report.ok, str(report)
    assert report["parameters.w_query"].ok
