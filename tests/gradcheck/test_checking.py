"""What a check makes of its arguments, and that it finds correct gradients correct."""

import numpy as np
import pytest
from helpers import each

from attention_np import softmax
from attention_np.gradcheck import GradientError, assert_gradients, check
from attention_np.gradcheck.checking import _elsewhere

from .programs import (
    bilinear,
    bilinear_backward,
    normal,
    planted,
    shifted_softmax,
    shifted_softmax_backward,
    square_inputs,
    wrong_backward,
)

ALL = ["auto", "central"]
CLAIMED = {"central": 1e-7, "auto": 1e-13}


SHIFTED = shifted_softmax, shifted_softmax_backward
CORRECT = {
    "two inputs": (bilinear, bilinear_backward, square_inputs()),
    "inputs that are read-only or not contiguous": (
        bilinear,
        bilinear_backward,
        {"x": normal(6, 6)[::2, ::2].T, "y": np.broadcast_to(normal(3), (3, 3))},
    ),
    "a scalar output": (lambda x: (x**2).sum(), lambda d, x: 2 * d * x, {"x": normal(4)}),
    "a scalar output of Python": (
        lambda x: float(x[0]) * 2 if x.dtype == float else x[0] * 2,
        lambda d, x: 2 * d * np.ones_like(x),
        {"x": normal(1)},
    ),
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
    "inputs that are zero": (
        lambda x, w: np.tanh(x) @ w,
        lambda d, x, w: (d @ w.T / np.cosh(x) ** 2, np.tanh(x).T @ d),
        {"x": np.zeros((2, 3)), "w": np.zeros((3, 2))},
    ),
    "a gradient that cancels to zero": (*SHIFTED, {"x": normal(5, 7), "c": normal(5, 1, seed=1)}),
    "a gradient of zeros that cancels to zero": (*SHIFTED, {"x": np.zeros((5, 7)), "c": np.zeros((5, 1))}),
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
}


@each("method", ALL)
@each("what", CORRECT)
def test_correct_gradients_hold(what, method):
    forward, backward, inputs = CORRECT[what]
    report = check(forward, backward, inputs, method=method)
    assert report.ok, str(report)
    assert [entry.name for entry in report] == list(inputs)
    for entry in report:
        assert entry.method == ("central" if method == "central" else "complex-step")
        assert entry.diagnosis is None
        assert entry.undecidable or entry.max_relative_error <= CLAIMED[method]


@each("method", ALL)
@each("dtype", ["float16", "float32", "longdouble"])
def test_correct_gradients_hold_in_every_dtype_and_wrong_ones_do_not(dtype, method):
    inputs, eps = square_inputs(dtype=dtype), max(float(np.finfo(dtype).eps), 1e-9)
    report = check(bilinear, bilinear_backward, inputs, method=method)
    assert report.ok, str(report)
    assert all(entry.max_relative_error <= 50 * eps for entry in report)
    error = {"float16": 0.2, "float32": 1e-4, "longdouble": 1e-6}[dtype]

    def wrong(*question):
        return tuple((g * (1 + error)).astype(dtype) for g in bilinear_backward(*question))

    assert not check(bilinear, wrong, inputs, method=method).ok


@each("method", ALL)
def test_inputs_of_different_dtypes_are_each_judged_in_their_own(method):
    inputs = {"x": normal(3, 3), "y": normal(3, 3, seed=1, dtype="float32")}

    def backward(d_output, x, y):
        d_x, d_y = bilinear_backward(d_output, x, y)
        return d_x, d_y.astype(y.dtype)

    report = check(bilinear, backward, inputs, method=method)
    assert report.ok
    assert report["x"].max_relative_error <= CLAIMED[method]
    assert 1e-9 < report["y"].max_relative_error < 1e-6


@each("method", ALL)
@each("input_scale", [1e-12, 1e12])
@each("output_scale", [1e-12, 1e12])
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


def test_rtol_sets_the_tolerance():
    off = planted(lambda g, h, _: (g * (1 + 1e-6), h))
    assert check(bilinear, off, square_inputs(), rtol=1.1e-6).ok
    assert not check(bilinear, off, square_inputs(), rtol=0.9e-6).ok
    assert check(bilinear, off, square_inputs(), rtol=1.1e-6, method="central").ok
    assert check(lambda x: 2 * x, lambda d, _: 2 * d, {"x": np.ones(3)}, rtol=0).ok
    for rtol in (0.5, 0.49):  # what is exactly allowed is
        twice = check(lambda x: 1 * x, lambda d, _: 2 * d, {"x": np.ones(3)}, rtol=rtol, method="complex-step")
        assert twice.ok == (rtol == 0.5)


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
    generators = [np.random.default_rng(seed) for seed in (3, 3, 4)]
    first, again, other = (check(bilinear, off, square_inputs(), rng=rng).to_dict() for rng in generators)
    assert first == again
    assert first != other
    assert check(bilinear, off, square_inputs()).to_dict() == check(bilinear, off, square_inputs(), rng=0).to_dict()


def test_assert_gradients_is_silent_or_raises_the_report():
    assert_gradients(bilinear, bilinear_backward, square_inputs())
    with pytest.raises(AssertionError) as raised:
        assert_gradients(bilinear, wrong_backward, square_inputs())
    assert isinstance(raised.value, GradientError)
    assert str(raised.value).startswith("the gradient does not hold for x\ninput  method ")
    assert_gradients(bilinear, wrong_backward, square_inputs(), method="central")
    assert_gradients(bilinear, wrong_backward, square_inputs(), rtol=1e-12, rng=5)


class Pool:
    submit = 3


COUNT, TOLERANCE = (
    "^directions must be a positive integer, not ",
    "^rtol must be a finite number that is not negative, not ",
)
EXECUTOR = "^executor must be a concurrent.futures.Executor, not "
CONSTANTS = "^constants must be a mapping of names to numbers, not "


@each(
    ("arguments", "error", "message"),
    [
        ({"inputs": [normal(2)]}, TypeError, "^inputs must be a mapping of names to arrays, not list$"),
        ({"inputs": {"x": 3}}, TypeError, r"^input x must hold real floating-point .*, not int64 \(x.shape=\(\)\)$"),
        ({"forward": lambda x: x.size}, TypeError, "^forward must return one array, not int$"),
        ({"backward": lambda d, _: (d, d)}, ValueError, r"^backward must return one .* of the 1 inputs \(x\), not 2$"),
        ({"backward": lambda d, _: {"x": d}}, TypeError, "^backward must return .*, not as a mapping$"),
        ({"method": "richardson"}, ValueError, r"^method must be 'auto', .* or 'central', not 'richardson'$"),
        ({"forward": None}, TypeError, "^forward must be a function, not NoneType$"),
        ({"backward": "x"}, TypeError, "^backward must be a function, not str$"),
        ({"memory": 0}, ValueError, "^memory must be a positive integer, not 0$"),
        ({"max_entries": -1}, ValueError, "^max_entries must be a positive integer, not -1$"),
        ({"vectorized": 3}, TypeError, "^vectorized must be names of inputs, not 3$"),
        ({"rng": -1}, TypeError, "^rng must be a seed, .*, or a numpy.random.Generator, not -1$"),
        ({"checkpoint": "."}, ValueError, "^checkpoint . is .*$"),
        *(({"directions": count}, ValueError, COUNT) for count in (0, -1, 1.0, True, None, "1")),
        *(({"rtol": rtol}, ValueError, TOLERANCE) for rtol in (-1e-30, np.nan, np.inf, True, "1", 1j)),
        *(({"executor": executor}, TypeError, EXECUTOR) for executor in ("threads", dict, 3, Pool())),
        *(
            ({"constants": given}, TypeError, CONSTANTS)
            for given in (4, {"n": "2"}, {"n": 1j}, {"m": None}, [("n", 2)])
        ),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": normal(3)}}
    with pytest.raises(error, match=message) as raised:
        check(**(usual | arguments))
    assert "\n" not in str(raised.value)


def test_an_error_inside_a_function_reaches_the_caller_as_it_is():
    def forward(x):
        raise ZeroDivisionError(f"{x.shape} is no shape for me")

    with pytest.raises(ZeroDivisionError, match=r"^\(3,\) is no shape for me$"):
        check(forward, lambda d, x: d * x, {"x": normal(3)})


def test_a_question_at_the_same_point_is_told_from_others_by_the_values_at_another(tmp_path):
    """Two functions that agree at the point, of which one is kept."""
    x = normal(4)
    path = tmp_path / "kept"

    def backward(d, x):
        return d * np.cos(x)

    check(np.sin, backward, {"x": x}, checkpoint=path)
    assert check(np.sin, backward, {"x": x}, checkpoint=path).ok
    with pytest.raises(ValueError, match="belongs to another check"):
        check(lambda y: np.sin(y) + (y - x) ** 3, backward, {"x": x}, checkpoint=path)
    there = _elsewhere(np.array([1.0, -3.0, 5.0, 4.0]))
    np.testing.assert_array_equal(np.abs(there - [1.0, -3.0, 5.0, 4.0]), [[0.5, 0.5, 1, 1]])


@each(("of_gradient", "of_inputs"), [("float32", "float64"), ("float64", "float32"), ("float16", "float32")])
@each("factor", [1, 1.5])
def test_a_buffer_of_another_dtype_is_one_finding_and_the_values_are_compared_all_the_same(
    factor, of_gradient, of_inputs
):
    def backward(d_y, x, w):
        d_z = d_y * (1 - np.tanh(x @ w) ** 2)
        d_w = np.zeros(w.shape, of_gradient)
        d_w += (factor * x.T @ d_z).astype(of_gradient)
        return d_z @ w.T, d_w

    inputs = {"x": normal(5, 4, dtype=of_inputs), "w": normal(4, 3, seed=1, dtype=of_inputs)}
    report = check(lambda x, w: np.tanh(x @ w), backward, inputs)
    said = f"the gradient is {of_gradient}, the input {of_inputs}"
    assert report["x"].ok
    assert not report["w"].ok
    if factor == 1:
        assert (report["w"].diagnosis, report["w"].wrong) == (said, 0)
    else:
        about = "about " if of_gradient == "float16" else ""
        assert str(report["w"].diagnosis).startswith(f"{said}; besides: it is {about}1.5 times")


@each("factor", [1, 1.5])
def test_where_the_output_is_wider_than_the_inputs_so_may_be_the_gradient(factor):
    def loss(x):  # as one in C gives it: a Python number
        return float(np.sum(x**2))

    found = check(loss, lambda d, x: factor * d * 2 * x, {"x": normal(5, dtype="float32")})["x"]
    assert found.ok == (factor == 1), found
    assert factor == 1 or found.diagnosis.startswith("it is 1.5 times")
