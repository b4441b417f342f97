"""Functions as they are called: what they take and give back is looked at, and how they behave is told."""

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import check, numerical_gradient
from attention_np.gradcheck.problem.calls import SAME_CALL, as_inputs, first_call, in_double_precision

from ..programs import sine_in_single, takes_the_memory_for_its_own

EPS = float(np.finfo(np.float64).eps)
INPUTS = {"x": np.array([[0.5, -1.5, 2.0], [1.0, 3.0, -0.25]]), "y": np.array([2.0, 3.0, 5.0])}
MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])


def forward(x, y):
    return x * y


def backward(u, x, y):
    return u * y, (u * x).sum(axis=0)


def seen(forward=forward, backward=backward, inputs=INPUTS, seed=0):
    return first_call(forward, backward, inputs, np.random.default_rng(seed))


@each("dtype", ["float16", "float32", "float64", "longdouble", ">f8", ">f4"])
def test_inputs_are_copied_in_their_own_dtype_and_the_byte_order_of_the_machine(dtype):
    given = {"x": np.arange(6).reshape(2, 3).astype(dtype), "a name of words": np.zeros((), dtype)}
    arrays = as_inputs(given)
    assert list(arrays) == ["x", "a name of words"]
    for name, x in given.items():
        assert type(arrays[name]) is np.ndarray
        assert arrays[name].dtype == np.dtype(dtype).newbyteorder("=")
        assert not np.shares_memory(arrays[name], x)
        np.testing.assert_array_equal(arrays[name], x)


@each(
    ("inputs", "error", "sentence"),
    [
        ([np.ones(2)], TypeError, "inputs must be a mapping of names to arrays, not list"),
        ({}, ValueError, "inputs must hold at least one array: there is nothing to differentiate by"),
        ({"x": [[1.0], [1.0, 2.0]]}, TypeError, "input x must be an array, not a list of uneven lists"),
        (
            {"x": np.ones(2) * 1j},
            TypeError,
            "input x must hold real floating-point numbers, not complex128 (x.shape=(2,)): pass its real and "
            "imaginary parts as two inputs",
        ),
        ({"x": [1, 2]}, TypeError, "input x must hold real floating-point numbers, not int64 (x.shape=(2,))"),
        ({"x": None}, TypeError, "input x must hold real floating-point numbers, not object (x.shape=())"),
        (
            {"x": MASKED},
            TypeError,
            "input x must not be a masked array, whose mask would be lost: pass .data or .filled(...) (shape=(3,))",
        ),
    ],
)
def test_inputs_that_cannot_be_differentiated_by_are_refused_in_a_sentence(inputs, error, sentence):
    with pytest.raises(error) as raised:
        numerical_gradient(lambda x: x, inputs, np.ones(2))
    assert str(raised.value) == sentence


@each("rng", [None, -1, 1.5, True, "seed", [1, 2], np.random.RandomState(0)])
def test_what_is_neither_a_seed_nor_a_generator_is_refused(rng):
    with pytest.raises(TypeError, match=r"^rng must be a seed, an integer that is not negative, or a numpy.random.Gen"):
        check(np.sin, lambda d, x: d * np.cos(x), {"x": np.ones(2)}, rng=rng)


class Elsewhere:
    """An array of another library, which may be converted, or not."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __array__(self, dtype=None, copy=None):
        if self.numbers is None:
            raise RuntimeError("it is on a GPU")
        return np.array(self.numbers)


@each(
    ("result", "error", "sentence"),
    [
        *(
            (r, ValueError, f"backward must return one gradient for each of the 2 inputs (x, y), not {count}")
            for r, count in (((), 0), ([np.ones(2)], 1), ((np.ones(2),) * 3, 3), (np.ones((2, 2)), 1), (None, 1))
        ),
        ({"x": 1.0}, TypeError, "backward must return a tuple in the order of the inputs, not a dict"),
        (iter([1.0, 2.0]), TypeError, "backward must return a tuple in the order of the inputs, not a list_iterator"),
        (
            (Elsewhere(None), 1.0),
            TypeError,
            "backward must return arrays of NumPy, not tests.Elsewhere: it is on a GPU",
        ),
    ],
)
def test_gradients_that_are_not_one_for_each_input_are_refused_in_a_sentence(result, error, sentence):
    with pytest.raises(error) as raised:
        check(forward, lambda *_: result, INPUTS)
    assert str(raised.value).replace(f"{__name__.partition('.')[0]}.Else", "tests.Else") == sentence


def doing(function, *, to):
    """A function that also adds to the input at a place."""

    def changed(*arrays):
        result = function(*arrays)
        arrays[to][0] += 1
        return result

    return changed


def test_who_writes_to_an_input_or_the_cotangent_is_told_which_and_those_that_were_given_stay():
    kept = {name: x.copy() for name, x in INPUTS.items()}
    for place, name in enumerate(INPUTS):
        for functions, who in (
            ((doing(forward, to=place), backward), "forward"),
            ((forward, doing(backward, to=place + 1)), "backward"),
        ):
            report = check(*functions, INPUTS)
            assert {entry.name: entry.diagnosis for entry in report if not entry.ok} == {
                name: f"{who} writes to this input"
            }
            assert not report[name].wrong
    sentence = "backward writes to the gradient of the output that it is given"
    assert seen(backward=doing(backward, to=0)).writes == dict.fromkeys("xy", sentence)
    np.testing.assert_array_equal(seen(backward=doing(backward, to=0)).cotangents, seen().cotangents)
    for name, x in kept.items():
        np.testing.assert_array_equal(INPUTS[name], x)


@each("view", [lambda x: x, lambda x: x[::-1], lambda x: x.reshape(3, 2), lambda x: x[:1, 1:]])
def test_an_output_that_is_a_view_of_an_input_is_no_fault_and_its_gradient_is_judged(view):
    def backward(d, x):
        places = view(np.arange(x.size).reshape(x.shape))
        gradient = np.zeros(x.size)
        gradient[places.ravel()] = d.ravel()
        return gradient.reshape(x.shape)

    x = {"x": np.arange(1.0, 7.0).reshape(2, 3)}
    assert check(view, backward, x).ok
    assert check(view, lambda d, x: 2 * backward(d, x), x)["x"].wrong
    assert seen(view, backward, x).is_view


@each(
    "again",
    [
        lambda z: z + 1e-6 * np.random.default_rng(0).standard_normal(z.shape),
        lambda z: 2 * z,
        lambda z: z[:2],
        lambda z: z.astype(np.float32),
        lambda z: np.full(z.shape, np.nan),
        lambda _: None,
    ],
)
def test_what_is_another_when_it_is_asked_again_is_told_of_a_gradient_for_its_input_and_of_the_output_for_all(again):
    def second(function):
        calls = []

        def called(*arrays):
            calls.append(1)
            return function(*arrays) if len(calls) == 1 else again(function(*arrays))

        return called

    last = second(lambda u, x, _: (u * x).sum(axis=0) + np.arange(3.0))
    faults = seen(backward=lambda u, x, y: (u * y, last(u, x, y))).faults
    doubled = again(np.ones(3)) is not None and np.array_equal(again(np.ones(3)), 2 * np.ones(3))
    more = ": by as much again: is a buffer not zeroed?" if doubled else ""
    assert faults == {"y": f"backward gives another gradient when it is called again{more}"}
    if again(np.ones(3)) is not None:
        faults = seen(second(lambda _, y: y * 1), lambda _, x, y: (x * 1, y * 1)).faults
        assert faults == dict.fromkeys("xy", "forward gives another output when it is called again")


@each(("ulps", "same"), [(0.9 * SAME_CALL, True), (1.1 * SAME_CALL, False)])
def test_two_calls_may_differ_by_the_order_of_their_sums(ulps, same):
    signs = iter([0, 1, 0, 1])

    def shaky(y):
        return y + next(signs) * ulps * EPS * 5  # the largest entry

    assert (seen(lambda x, y: x * 0 + shaky(y), lambda _, x, y: (x * 1, y * 1)).faults == {}) == same
    assert (seen(backward=lambda u, _, y: (u * y, shaky(y))).faults == {}) == same


@each(
    ("gradient", "sentence"),
    [
        (None, "the gradient is missing"),
        (np.ones(2), "the gradient has the shape (2,), the input (3,)"),
        (np.ones((3, 1)), "the gradient has the shape (3, 1), the input (3,)"),
        (1.0, "the gradient has the shape (), the input (3,)"),
        (np.ones(3, int), "the gradient holds int64, not real floating-point numbers"),
        (np.ones(3) * 1j, "the gradient holds complex128, not real floating-point numbers"),
        (np.array([1, np.nan, np.inf], np.float32), "the gradient is NaN or infinite in 2 of 3 entries, first at [1]"),
        (MASKED, "the gradient is a masked array, whose mask would be lost"),
    ],
)
def test_what_is_wrong_with_the_form_of_a_gradient_is_said_in_a_sentence_beside_a_right_one(gradient, sentence):
    report = check(lambda x, y: x + y, lambda d, *_: (d, gradient), {"x": np.ones(3), "y": np.ones(3)})
    assert str(report["y"].diagnosis).partition(": ")[0] == sentence
    assert (report["x"].ok, report["y"].max_relative_error) == (True, np.inf)


def test_uneven_lists_are_no_gradient_and_that_is_said():
    report = check(np.sin, lambda *_: [[[1.0], [1.0, 2.0]]], {"x": np.ones(3)})
    assert report["x"].diagnosis == "the gradient is not an array, but a list of uneven lists"


def in_double(forward, *inputs):
    return in_double_precision(forward, list(inputs), np.asarray(forward(*inputs)))


def another_in_double(change):
    return lambda x: np.sin(x) if x.dtype == np.float32 else change(np.sin(x))


@each("unit", [1e-30, 1.0, 1e30])
@each(
    "forward",
    [
        sine_in_single,
        lambda x: np.sin(takes_the_memory_for_its_own(x)),
        another_in_double(lambda y: y[np.newaxis]),
        another_in_double(lambda y: y * np.nan),
        another_in_double(lambda y: y + 0.011 * np.array([0, 0, 0, 0, 1])),
        lambda x: np.concatenate([np.sin(x[:4]), np.sin(takes_the_memory_for_its_own(x))[4:]]),
    ],
)
def test_a_function_that_does_not_compute_the_same_in_double_precision_stays_at_its_own_in_any_units(forward, unit):
    x, scale = np.array([0.3, 0.9, 1.4, 2.0, 2.6], np.float32), np.float32(unit)
    (kept,) = in_double(lambda x: forward(x) * scale, x)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept, x)
    slightly = another_in_double(lambda y: y + 0.009 * np.array([0, 0, 0, 0, 1]))
    assert in_double(lambda x: slightly(x) * scale, x)[0].dtype == np.float64
