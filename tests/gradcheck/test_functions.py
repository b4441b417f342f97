import warnings

import numpy as np
import pytest
from helpers import each

from attention_np import gradcheck
from attention_np.gradcheck.measuring.functions import (
    SAME_CALL_ULPS,
    as_generator,
    as_inputs,
    call_backward,
    dtype_of,
    evaluate,
    first_call,
    form_of,
    in_double_precision,
)
from attention_np.gradcheck.measuring.numerical import numerical_gradient

from .programs import sine_in_single, takes_the_memory_for_its_own

EPS = float(np.finfo(np.float64).eps)
INPUTS = {"x": np.array([[0.5, -1.5, 2.0], [1.0, 3.0, -0.25]]), "y": np.array([2.0, 3.0, 5.0])}


def forward(x, y):
    return x * y


def backward(u, x, y):
    return u * y, (u * x).sum(axis=0)


def seen(forward=forward, backward=backward, inputs=INPUTS, seed=0):
    return first_call(forward, backward, inputs, np.random.default_rng(seed))


@each("dtype", ["float16", "float32", "float64", "longdouble"])
def test_inputs_are_copied_as_arrays_of_their_own_dtype(dtype):
    given = {"x": np.ones((2, 3), dtype), "a name of words": np.zeros((), dtype)}
    arrays = as_inputs(given)
    assert list(arrays) == ["x", "a name of words"]
    for name, x in given.items():
        assert type(arrays[name]) is np.ndarray
        assert arrays[name].dtype == dtype
        assert not np.shares_memory(arrays[name], x)
        np.testing.assert_array_equal(arrays[name], x)


@each(
    ("inputs", "error", "sentence"),
    [
        ([np.ones(2)], TypeError, "inputs must be a mapping of names to arrays, not list"),
        (None, TypeError, "inputs must be a mapping of names to arrays, not NoneType"),
        ({}, ValueError, "inputs must hold at least one array: there is nothing to differentiate by"),
        ({3: np.ones(2)}, TypeError, "the names of inputs must be strings, not 3"),
        ({"x": [[1.0], [1.0, 2.0]]}, TypeError, "input x must be an array, not a list of uneven lists"),
        (
            {"x": np.ones(2) * 1j},
            TypeError,
            "input x is complex: gradients are checked of real functions of real arrays, so pass its real and "
            "imaginary parts as two inputs (x.shape=(2,), complex128)",
        ),
        ({"x": [1, 2]}, TypeError, "input x must hold real floating-point numbers, not int64 (x.shape=(2,))"),
        ({"x": True}, TypeError, "input x must hold real floating-point numbers, not bool (x.shape=())"),
        ({"x": None}, TypeError, "input x must hold real floating-point numbers, not object (x.shape=())"),
        ({"x": ["a"]}, TypeError, "input x must hold real floating-point numbers, not <U1 (x.shape=(1,))"),
        (
            {"a": np.ones(1), "x": np.zeros(2, "datetime64[s]")},
            TypeError,
            "input x must hold real floating-point numbers, not datetime64[s] (x.shape=(2,))",
        ),
    ],
)
def test_inputs_that_cannot_be_differentiated_by_are_refused_in_a_sentence(inputs, error, sentence):
    with pytest.raises(error) as raised:
        as_inputs(inputs)
    assert str(raised.value) == sentence


@each("dtype", [">f8", "<f8", ">f4"])
def test_inputs_of_another_byte_order_are_taken_in_the_native_one(dtype):
    x = as_inputs({"x": np.array([1.0, 2.0], dtype)})["x"]
    assert x.dtype == np.dtype(dtype).newbyteorder("=")
    assert x.dtype.isnative
    np.testing.assert_array_equal(x, [1, 2])


@each("seed", [0, 7, np.int64(7), 2**70])
def test_a_seed_gives_the_same_numbers_each_time_but_others_than_the_seed_elsewhere(seed):
    numbers, again = (as_generator(seed).standard_normal(5) for _ in range(2))
    np.testing.assert_array_equal(numbers, again)
    assert (numbers != np.random.default_rng(seed).standard_normal(5)).all()
    assert (numbers != as_generator(seed + 1).standard_normal(5)).all()
    generator = np.random.default_rng(0)
    assert as_generator(generator) is generator


@each("rng", [None, -1, 1.5, True, "seed", [1, 2], np.random.RandomState(0)])
def test_what_is_neither_a_seed_nor_a_generator_is_refused(rng):
    with pytest.raises(TypeError, match=r"^rng must be a seed, an integer that is not negative, or a numpy.random.Gen"):
        as_generator(rng)


@each("result", [np.ones((2, 3), np.float32), np.float64(3), np.float32(3), 3.0, np.zeros(0)])
def test_the_output_is_one_array_of_real_numbers_in_its_own_dtype(result):
    output = evaluate(lambda _: result, [np.ones(1)])
    assert type(output) is np.ndarray
    assert output.dtype == np.asarray(result).dtype
    np.testing.assert_array_equal(output, result)


@each(
    ("result", "sentence"),
    [
        ([1.0], "forward must return one array, not list"),
        ((np.ones(2), np.ones(2)), "forward must return one array, not tuple"),
        (None, "forward must return one array, not NoneType"),
        (3, "forward must return one array, not int"),
        (1j, "forward must return one array, not complex"),
        (
            np.ones(2) * 1j,
            "forward must return real numbers, not complex128: return the real and imaginary parts, stacked "
            "(output.shape=(2,))",
        ),
        (np.array([1, 2]), "forward must return real floating-point numbers, not int64"),
        (np.bool_(True), "forward must return real floating-point numbers, not bool"),
        (np.array([None]), "forward must return real floating-point numbers, not object"),
    ],
)
def test_an_output_that_cannot_be_differentiated_is_refused_in_a_sentence(result, sentence):
    with pytest.raises(TypeError) as raised:
        evaluate(lambda _: result, [np.ones(1)])
    assert str(raised.value) == sentence


def test_gradients_may_come_as_a_tuple_a_list_or_alone():
    u, x = np.ones(2), np.array([2.0, 3.0])
    for result in ((x,), [x], x):
        (gradient,) = call_backward(lambda _, __, result=result: result, u, {"x": x})
        np.testing.assert_array_equal(gradient, x)
    assert call_backward(lambda *_: (None, 3.0), u, {"x": x, "y": x}) == [None, 3.0]


@each("result", [(), (np.ones(2),), (np.ones(2),) * 3, [np.ones(2)], np.ones((2, 2)), None])
def test_another_number_of_gradients_than_inputs_is_refused_with_the_names(result):
    count = len(result) if isinstance(result, tuple | list) else 1
    with pytest.raises(ValueError, match="backward") as raised:
        call_backward(lambda *_: result, np.ones(2), {"query": np.ones(2), "key": np.ones(2)})
    assert str(raised.value) == f"backward must return one gradient for each of the 2 inputs (query, key), not {count}"


def test_a_right_pair_of_functions_has_no_faults():
    first = seen()
    assert first.faults == {}
    np.testing.assert_array_equal(first.output, INPUTS["x"] * INPUTS["y"])
    np.testing.assert_array_equal(first.gradients[0], first.cotangent * INPUTS["y"])
    np.testing.assert_array_equal(first.gradients[1], (first.cotangent * INPUTS["x"]).sum(axis=0))
    empty = seen(inputs={"x": np.zeros((0, 3)), "y": np.ones(3)})
    assert (empty.faults, empty.output.shape, empty.cotangent.shape) == ({}, (0, 3), (0, 3))


def rewrites(x, y):
    x[...] = x
    return np.where(np.isnan(x), 0, x) * y


@each(
    ("forward", "backward", "x"),
    [
        (np.add, lambda u, *_: (u, u.sum(axis=0)), 1.0),  # the cotangent itself is a gradient
        (rewrites, lambda u, _, y: (u * y, y * 1), np.nan),  # what is written is there already
    ],
)
def test_what_looks_like_a_fault_and_is_none_is_not_called_one(forward, backward, x):
    assert seen(forward, backward, INPUTS | {"x": np.array([[x, 1.0, 2.0], [3.0, 4.0, 5.0]])}).faults == {}


def test_the_cotangent_is_drawn_from_the_generator_in_the_form_of_the_output():
    narrow = {name: x.astype(np.float32) for name, x in INPUTS.items()}
    first, again, other = (seen(inputs=narrow, seed=seed).cotangent for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == ((2, 3), np.float32)
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_the_output_and_the_gradients_are_copies_so_that_both_functions_may_use_their_memory_again():
    output, gradient = np.zeros((2, 3)), np.zeros((2, 3))

    def forward(x, y):
        np.multiply(x, y, out=output)
        return output

    def backward(u, x, y):
        np.multiply(u, y, out=gradient)
        return gradient, (u * x).sum(axis=0)

    first = seen(forward, backward)
    assert first.faults == {}
    output[...] = gradient[...] = 7
    np.testing.assert_array_equal(first.output, INPUTS["x"] * INPUTS["y"])
    np.testing.assert_array_equal(first.gradients[0], first.cotangent * INPUTS["y"])


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
        assert seen(doing(forward, to=place)).writes == {name: "forward writes to this input"}
        assert seen(backward=doing(backward, to=place + 1)).writes == {name: "backward writes to this input"}
    first = seen(backward=doing(backward, to=0))
    assert first.writes == dict.fromkeys("xy", "backward writes to the gradient of the output that it is given")
    np.testing.assert_array_equal(first.cotangent, seen().cotangent)
    for name, x in kept.items():
        np.testing.assert_array_equal(INPUTS[name], x)


@each("view", [lambda x: x, lambda x: x[::-1], lambda x: x.reshape(3, 2), lambda x: x[:1, 1:]])
def test_an_output_that_is_a_view_of_an_input_is_no_fault_and_its_gradient_is_judged(view):
    first = seen(lambda x, _: view(x), lambda u, x, y: (x * 0 + u.sum(), y * 1))
    assert (first.faults, first.writes, first.is_view) == ({}, {}, True)

    def backward(d, x):
        places = view(np.arange(x.size).reshape(x.shape))
        gradient = np.zeros(x.size)
        gradient[places.ravel()] = d.ravel()
        return gradient.reshape(x.shape)

    x = {"x": np.arange(1.0, 7.0).reshape(2, 3)}
    assert gradcheck.check(view, backward, x).ok
    assert gradcheck.check(view, lambda d, x: 2 * backward(d, x), x)["x"].verdict == "wrong"


def test_a_gradient_that_is_a_view_of_an_input_is_told_which():
    sentence = "a gradient is a view of this input: whoever changes one changes the other"
    assert seen(backward=lambda u, x, _: (x, (u * x).sum(axis=0))).writes == {"x": sentence}
    assert seen(backward=lambda u, _, y: (u * y, y[::-1])).writes == {"y": sentence}
    only = {"x": INPUTS["x"]}
    assert seen(lambda x: x * 2, lambda _, x: x, only).writes == {"x": sentence}
    assert seen(lambda x: x * 2, lambda _, x: [x], only).writes == {"x": sentence}


@each(
    "again",
    [
        lambda z: z + 1e-6 * np.random.default_rng(0).standard_normal(z.shape),
        lambda z: 2 * z,
        lambda z: z[:2],
        lambda z: z.astype(np.float32),
        lambda z: np.full(z.shape, np.nan),
        lambda _z: None,
    ],
)
def test_what_is_another_when_it_is_asked_for_again_is_told_of_a_gradient_for_its_input_and_of_the_output_for_every(
    again,
):
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


def test_a_gradient_that_is_missing_or_malformed_each_time_is_no_fault_of_the_calls():
    for strange in (None, np.zeros(7), np.zeros(3, int), np.full(3, np.nan), [[1.0], [1.0, 2.0]]):
        assert seen(backward=lambda u, _, y, strange=strange: (u * y, strange)).faults == {}


@each(("ulps", "same"), [(SAME_CALL_ULPS / 3, True), (SAME_CALL_ULPS * 3, False)])
def test_two_calls_may_differ_by_the_order_of_their_sums(ulps, same):
    signs = iter([0, 1])
    far = 5.0  # the largest entry of the output

    def sums(x, y):
        return x * 0 + y + next(signs) * ulps * EPS * far

    def backward(_, x, y):
        return x * 1, y * 1

    assert (seen(sums, backward).faults == {}) == same
    signs = iter([0, 1])
    shaky = seen(backward=lambda u, _, y: (u * y, y + next(signs) * ulps * EPS * far))
    assert (shaky.faults == {}) == same


@each("strange", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_finite_is_told_with_its_first_place_whatever_else_is_wrong(strange):
    def forward(x, y):
        result = x * y
        result[1, 0:2] = strange
        x[...] = 0
        return result

    sentence = "the output is NaN or infinite in 2 of 6 entries, first at [1, 0]"
    assert seen(forward).faults == dict.fromkeys("xy", sentence)


@each(
    ("gradient", "sentence"),
    [
        (None, "the gradient is missing"),
        (np.ones(2), "the gradient has the shape (2,), the input (3,)"),
        (np.ones((3, 1)), "the gradient has the shape (3, 1), the input (3,)"),
        (1.0, "the gradient has the shape (), the input (3,)"),
        (np.ones(3, int), "the gradient holds int64, not real floating-point numbers"),
        (np.ones(3) * 1j, "the gradient holds complex128, not real floating-point numbers"),
        (np.array([None] * 3), "the gradient holds object, not real floating-point numbers"),
        ([[1.0], [1.0, 2.0]], "the gradient is not an array, but a list of uneven lists"),
        (np.array([1, np.nan, np.inf], np.float32), "the gradient is NaN or infinite in 2 of 3 entries, first at [1]"),
    ],
)
def test_what_is_wrong_with_the_form_of_a_gradient_is_said_in_a_sentence(gradient, sentence):
    assert form_of(gradient, np.ones(3, np.float32)) == sentence


@each("dtype", ["float16", "float64"])
def test_a_gradient_of_another_dtype_can_be_compared_and_is_none_of_the_input(dtype):
    gradient, x = np.ones(3, dtype), np.ones(3, np.float32)
    assert form_of(gradient, x) is None
    assert dtype_of(gradient, x, [x], x) == f"the gradient is {dtype}, the input float32"
    assert dtype_of(np.ones(3, ">f4"), x, [x], x) is dtype_of([1.0, 2.0, 3.0], x, [x], x) is None
    among_others = dtype_of(gradient, x, [x, np.ones(1)], x)  # in whose dtype it may be, if that is wider
    assert among_others == (None if dtype == "float64" else f"the gradient is {dtype}, the input float32")


@each("dtype", ["float16", "float32", "float64", "longdouble"])
def test_a_gradient_of_the_shape_and_dtype_of_its_input_in_any_byte_order_or_without_a_dtype_is_in_form(dtype):
    for shape in ((), (3,), (2, 0)):
        assert form_of(np.ones(shape, dtype), np.zeros(shape, dtype)) is None
    assert form_of(np.ones(3, ">f8"), np.zeros(3)) is None
    assert form_of(3.0, np.zeros((), dtype)) is form_of([1.0, 2.0], np.zeros(2, dtype)) is None
    nan = np.array(np.nan, dtype)
    assert form_of(nan, nan) == "the gradient is NaN or infinite in 1 of 1 entries, first at []"


def in_double(forward, *inputs):
    return in_double_precision(forward, list(inputs), forward(*inputs))


@each("narrow", ["float16", "float32"])
def test_a_function_that_takes_double_precision_is_given_it(narrow):
    x, y = np.linspace(-2, 2, 8, dtype=narrow), np.ones(8)
    wide = in_double(lambda x, y: np.sin(x) * y, x, y)
    assert [z.dtype for z in wide] == [np.float64, np.float64]
    np.testing.assert_array_equal(wide[0], x)


@each("dtype", ["float64", "longdouble"])
def test_what_is_wide_already_stays_as_it_is(dtype):
    x = np.linspace(-2, 2, 8, dtype=dtype)
    calls = []
    (wide,) = in_double_precision(calls.append, [x], np.sin(x))
    assert wide.dtype == dtype
    assert not calls


def another_in_double(change):
    return lambda x: np.sin(x) if x.dtype == np.float32 else change(np.sin(x))


def returns_another_shape(x):
    return np.ascontiguousarray(x).view(np.float32) * 2


def misreads_one_entry_in_five(x):
    return np.concatenate([np.sin(x[:4]), np.sin(takes_the_memory_for_its_own(x))[4:]])


@each(
    "forward",
    [
        sine_in_single,
        lambda x: np.sin(takes_the_memory_for_its_own(x)),
        returns_another_shape,
        another_in_double(lambda y: y[np.newaxis]),
        another_in_double(lambda y: y * np.nan),
        misreads_one_entry_in_five,
    ],
)
def test_a_function_that_does_not_compute_the_same_in_double_precision_stays_at_its_own(forward):
    x = np.array([0.3, 0.9, 1.4, 2.0, 2.6], np.float32)
    (kept,) = in_double(forward, x)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept, x)


@each("unit", [1e-30, 1.0, 1e30])
def test_whether_it_computes_the_same_does_not_depend_on_the_units_of_the_output(unit):
    x = np.array([0.3, 0.9, 1.4, 2.0, 2.6], np.float32)
    scale = np.float32(unit)
    assert in_double(lambda x: np.sin(x) * scale, x)[0].dtype == np.float64
    assert in_double(lambda x: np.sin(takes_the_memory_for_its_own(x)) * scale, x)[0].dtype == np.float32


def test_an_output_of_zeros_or_of_nothing_is_the_same_in_double_precision():
    x = np.ones(3, np.float32)
    assert in_double(lambda x: x - x, x)[0].dtype == np.float64
    assert in_double(lambda x: x[:0] * 2, x)[0].dtype == np.float64


def test_trying_double_precision_writes_to_nobody():
    def writes(x):
        x *= 2
        return x

    x = np.ones(3, np.float32)
    (wide,) = in_double_precision(writes, [x], np.full(3, 2, np.float32))
    np.testing.assert_array_equal(x, np.ones(3))
    np.testing.assert_array_equal(wide, np.ones(3))


MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])


def test_a_masked_array_is_refused_wherever_its_mask_would_be_lost():
    with pytest.raises(TypeError, match=r"^input x must not be a masked array, .* \(shape=\(3,\)\)$"):
        as_inputs({"x": MASKED})
    with pytest.raises(TypeError, match=r"^forward must not return a masked array, whose mask would be lost"):
        evaluate(lambda x: MASKED * x, [np.ones(3)])
    with pytest.raises(TypeError, match=r"^cotangent must not be a masked array, whose mask would be lost"):
        numerical_gradient(np.exp, {"x": np.ones(3)}, MASKED)
    assert form_of(MASKED, np.ones(3)) == "the gradient is a masked array, whose mask would be lost"
    assert form_of(MASKED.data, np.ones(3)) is None


def test_two_outputs_too_far_apart_to_subtract_are_different_and_raise_no_warning():
    sign = iter([1.0, -1.0, 1.0])
    found = seen(lambda x: 1.7e308 * next(sign) * np.ones_like(x), lambda d, x: 0 * d * x, {"x": np.ones(3)})
    assert found.faults == {"x": "forward gives another output when it is called again"}


def test_trying_double_precision_raises_no_warning():
    x = np.array([1.0, 2.0], np.float32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (kept,) = in_double_precision(lambda x: np.full(x.shape, np.inf, x.dtype), [x], np.full(2, np.inf, np.float32))
    assert not seen
    assert kept.dtype == np.float32
