"""What a check makes of its arguments, what it finds right, and what it says of what cannot be compared."""

import numpy as np
import pytest
from helpers import each

from attention_np import softmax
from attention_np.gradcheck import GradientError, NotAnalyticError, assert_gradients, check

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
    "a scalar input": (lambda x: np.array([x, x**2]), lambda d, x: d[0] + 2 * d[1] * x, {"x": 0.7}),
    "no elements": (np.sin, lambda d, x: d * np.cos(x), {"x": np.zeros((0, 3))}),
    "no output": (lambda x: x[:0], lambda _, x: np.zeros_like(x), {"x": normal(3)}),
    "a constant": (lambda x: x * 0 + 1, lambda d, _: 0 * d, {"x": normal(3)}),
    "a gradient that cancels to zero": (*SHIFTED, {"x": normal(5, 7), "c": normal(5, 1, seed=1)}),
    "a gradient of zeros that cancels to zero": (*SHIFTED, {"x": np.zeros((5, 7)), "c": np.zeros((5, 1))}),
    "saturated tanh": (np.tanh, lambda d, x: d * (1 - np.tanh(x) ** 2), {"x": np.array([-9.0, 8.0, 14.0])}),
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


COUNT = "^max_entries must be a positive integer, 'auto' or None, not "
TOLERANCE = "^rtol must be a finite number that is not negative, not "
EXECUTOR = "^executor must be a concurrent.futures.Executor, not "


@each(
    ("arguments", "error", "message"),
    [
        ({"inputs": [normal(2)]}, TypeError, "^inputs must be a mapping of names to arrays, not list$"),
        ({"inputs": {"x": 3}}, TypeError, r"^input x must hold real floating-point .*, not int64 \(x.shape=\(\)\)$"),
        ({"forward": lambda x: x.size}, TypeError, "^forward must return one array, not int$"),
        ({"backward": lambda d, _: (d, d)}, ValueError, r"^backward must return one .* of the 1 inputs \(x\), not 2$"),
        (
            {"backward": lambda d, _: {"x": d}},
            TypeError,
            "^backward must return a tuple in the order of the inputs, not a dict$",
        ),
        ({"method": "richardson"}, ValueError, r"^method must be 'auto', .* or 'central', not 'richardson'$"),
        ({"forward": None}, TypeError, "^forward must be a function, not NoneType$"),
        ({"backward": "x"}, TypeError, "^backward must be a function, not str$"),
        *(({"max_entries": count}, ValueError, COUNT) for count in (0, -1, 1.0, True, "1")),
        ({"vectorized": 3}, TypeError, "^vectorized must be names of inputs, not 3$"),
        ({"rng": -1}, TypeError, "^rng must be a seed, .*, or a numpy.random.Generator, not -1$"),
        ({"checkpoint": "."}, ValueError, "^checkpoint . is .*$"),
        *(({"rtol": rtol}, ValueError, TOLERANCE) for rtol in (-1e-30, np.nan, np.inf, True, "1", 1j)),
        *(({"executor": executor}, TypeError, EXECUTOR) for executor in ("threads", dict, 3, Pool())),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_in_one_sentence(arguments, error, message):
    usual = {"forward": np.sin, "backward": lambda d, x: d * np.cos(x), "inputs": {"x": normal(3)}}
    with pytest.raises(error, match=message) as raised:
        check(**(usual | arguments))
    assert "\n" not in str(raised.value)


def refuses_one_alone(x):
    """What a trial along a random direction cannot see."""
    if np.iscomplexobj(x) and (x.imag != 0).sum() == 1:
        raise TypeError("one, two")
    return x**2


def test_a_complex_step_that_is_refused_on_the_way_gives_place_to_differences_or_is_an_error_if_it_was_asked_for():
    inputs = {"x": np.array([1.0, 1.5, 2.0])}
    found = check(refuses_one_alone, lambda d, x: 2 * d * x, inputs)["x"]
    assert (found.ok, found.method, found.note) == (True, "central", "forward refuses complex arrays (one, two)")
    sentence = (
        r"^input x: forward refuses complex arrays \(one, two\), so the complex step does not apply: use central$"
    )
    with pytest.raises(NotAnalyticError, match=sentence):
        check(refuses_one_alone, lambda d, x: 2 * d * x, inputs, method="complex-step")


def test_a_complex_step_that_agrees_with_a_wrong_gradient_is_not_trusted():
    with pytest.raises(NotAnalyticError, match=r"^input x: the complex step gives .*"):
        check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)}, method="complex-step")
    report = check(lambda x: np.abs(x) * x, lambda d, x: d * np.abs(x), {"x": normal(3)})
    assert (report["x"].method, report["x"].ok) == ("central", False)
