import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck.measuring.subject import along, flattened, rows_at_once, rows_in, sizes

from .programs import real_only
from .subjects import subject_of, watched_subject_of

twice_real_only = real_only(lambda x: np.concatenate([x, x], axis=-1))


@each("shape", [(), (1,), (3,), (2, 3), (0,)])
@each("batched", [False, True])
def test_outputs_are_rows_one_for_each_value_of_the_input_which_is_given_as_an_array(shape, batched):
    x, moved = np.ones(shape), np.random.default_rng(0).standard_normal((4, *shape))
    subject, seen = watched_subject_of(lambda x: 2.0 * x, x, batched=batched)
    np.testing.assert_array_equal(subject.outputs(moved), 2 * moved.reshape(4, x.size))
    assert all(len(arrays) == 1 for arrays in seen)


def test_a_batch_is_one_call_and_no_batch_a_call_for_each_move():
    for batched, expected in ((False, [((2, 3), (3, 4))] * 5), (True, [((5, 2, 3), (3, 4))])):
        subject, seen = watched_subject_of(np.matmul, np.ones((2, 3)), np.ones((3, 4)), batched=batched)
        rows = subject.outputs(np.arange(30.0).reshape(5, 2, 3))
        assert [(x.shape, y.shape) for x, y in seen] == expected
        assert rows[:, 0].tolist() == [3, 21, 39, 57, 75]


def test_without_a_batch_a_function_may_use_the_memory_of_its_output_again():
    memory = np.zeros(2)

    def forward(x, y):
        np.multiply(x, y, out=memory)
        return memory

    subject = subject_of(forward, np.ones(2), np.full(2, 3.0))
    np.testing.assert_array_equal(subject.outputs(np.array([[1.0, 2.0], [3.0, 4.0]])), [[3, 6], [9, 12]])


def test_an_output_whose_shape_depends_on_the_input_is_refused():
    subject = subject_of(lambda x: x[x > 0], np.ones(3))
    message = r"^forward must return arrays of one shape, not \(3,\) and \(2,\)$"
    with pytest.raises(ValueError, match=message):
        subject.outputs(np.array([[1.0, -1.0, 1.0]]))


@each("dtype", ["float32", "float64"])
@each("batched", [False, True])
def test_where_a_function_raises_its_values_are_nan_and_elsewhere_what_they_are(batched, dtype):
    def forward(x):
        if (x < 0).any():
            raise ValueError("negative")
        return np.sqrt(x)

    subject = subject_of(forward, np.ones(2, dtype), batched=batched)
    found = subject.values(np.array([[1.0, 4.0], [-1.0, 4.0], [9.0, 16.0]], dtype))
    np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan], [3, 4]])
    assert found.dtype == dtype


@each("batched", [False, True])
def test_all_inputs_are_given_in_the_dtype_of_the_one_that_moves_or_in_their_own_wider_one(batched):
    subject = subject_of(lambda x, y: x * y, np.ones(2), np.full(2, 3, np.float32), batched=batched)
    assert subject.outputs(np.ones((3, 2)) * 1j).dtype == np.complex128
    assert subject.outputs(np.ones((3, 2))).dtype == np.float64
    subject = subject_of(lambda x, y: x * y, *np.ones((2, 2), np.float32), batched=batched)
    assert subject.outputs(np.ones((3, 2), np.float32)).dtype == np.float32
    assert subject.outputs(np.ones((3, 2)) + 0j).dtype == np.complex64
    subject = subject_of(lambda x, y: y + 0 * x, np.ones(2, np.float32), np.array([0.1, 0.3]), batched=batched)
    for dtype in (np.float32, np.complex64):
        np.testing.assert_array_equal(subject.outputs(np.ones((1, 2), dtype)), [[0.1, 0.3]])


@each(
    ("x", "expected"),
    [
        (np.zeros(3), [1, 1, 1]),
        ([0.0, -3.0, 5.0], [4, 4, 4]),  # as typical: 4, the median of 3 and 5
        ([1e-12, 1.0, 1.5, 100.0], [1, 1, 1, 64]),
        ([np.nan, np.inf, -np.inf, 8.0], [8, 8, 8, 8]),
        ([np.nan], [1]),
        ([5e-324], [1]),
        (3.0, 2),
        (np.zeros((0, 2)), np.zeros((0, 2))),
    ],
)
def test_a_size_is_never_that_of_a_zero_or_of_what_is_not_finite(x, expected):
    np.testing.assert_array_equal(sizes(np.asarray(x)), expected)


@each("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_sizes_and_directions_have_the_dtype_of_the_input(dtype):
    x = np.array([[1.5, 0.0], [-6.0, 3.0]], dtype)
    assert sizes(x).dtype == dtype
    directions = along(x, np.array([2, 1]))
    assert directions.dtype == dtype
    np.testing.assert_array_equal(directions, [[[0, 0], [4, 0]], [[0, 2], [0, 0]]])


@each("memory", [1, 10**4, 10**6, 2**28])
def test_as_many_rows_fit_as_there_is_memory_for_four_complex_arrays_each_and_a_power_of_two_of_them(memory):
    rows = rows_in(memory, subject_of(lambda x: np.concatenate([x, x]), np.ones(100)))
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * 64 * 300 <= memory
    assert 2 * rows * 64 * 300 > memory


def test_what_a_function_takes_beside_its_inputs_counts_in_a_batch():
    def hungry(x):
        return np.multiply.outer(x, np.ones(1000)).sum(axis=-1)

    x, memory = np.ones(100), 2**26
    alone, batched = (rows_in(memory, subject_of(hungry, x, batched=batched)) for batched in (False, True))
    assert batched & (batched - 1) == 0
    assert batched < alone
    subject = subject_of(hungry, x, batched=True)
    tracemalloc.start()
    subject.outputs(np.ones((batched, 100), complex))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory / 4 <= peak <= memory


@each("tracing", [False, True])
def test_measuring_memory_leaves_whoever_else_measures_it_alone(tracing):
    subjects = [subject_of(forward, np.ones(10), batched=True) for forward in (np.sin, twice_real_only)]
    for _ in range(2):  # whatever is done once is done by then
        alone = [rows_in(10**6, subject) for subject in subjects]
    if tracing:
        tracemalloc.start()
        np.ones(10**6)  # somebody else's peak
    try:
        for subject, rows in zip(subjects, alone, strict=True):
            assert rows_in(10**6, subject) == rows > 1
            assert tracemalloc.is_tracing() == tracing
    finally:
        tracemalloc.stop()


def test_a_batch_that_cannot_be_tried_is_held_to_take_four_complex_arrays_of_input_and_output():
    subject = subject_of(twice_real_only, np.ones(100), batched=True)
    for memory in (64 * 300 * 8, 64 * 300 * 8 - 1):
        assert rows_in(memory, subject) == (8 if memory == 64 * 300 * 8 else 4)
    assert rows_at_once(10**6, replace(subject, rows=7)) == 7
    assert rows_at_once(64 * 300 * 8, replace(subject, rows=7, batched=False)) == 8
    nothing = subject_of(lambda x: x[..., :0] * 1.0, np.ones((0,)))  # of which any number of rows fit
    assert [rows_in(memory, nothing) for memory in (1, 10**6, 2**62)] == [1, 2**19, 2**30]
    assert rows_in(10**6, subject_of(twice_real_only, np.ones((0,)), batched=True)) == 2**19


@each(("rows", "calls"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (9, [5])])
def test_no_more_rows_go_through_at_once_than_may(rows, calls):
    subject, seen = watched_subject_of(lambda x: 2 * x, np.ones(3), batched=True)
    moved = np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(replace(subject, rows=rows).outputs(moved), 2 * moved)
    assert [len(x) for (x,) in seen] == calls


def test_an_input_that_goes_with_another_gets_the_new_axis_before_those_of_the_output():
    subject, seen = watched_subject_of(np.add, np.ones((4, 2, 3)), np.arange(3.0), batched=True)
    moved = np.random.default_rng(0).standard_normal((5, 4, 2, 3))
    np.testing.assert_array_equal(replace(subject, with_it=(1,)).outputs(moved), flattened(moved + np.arange(3)))
    assert [(x.shape, bias.shape) for x, bias in seen] == [((5, 4, 2, 3), (5, 1, 1, 3))]
