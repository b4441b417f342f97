"""How slopes are measured: in which dtype, where, by which method, and what is known of their errors."""

import warnings
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck import numerical_gradient
from attention_np.gradcheck.measuring.functions import in_double_precision, wide_dtype
from attention_np.gradcheck.measuring.numerical import METHODS, analytic_or_not, batched, measure, measure_along
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.slopes import COMPLEX_STEP

from .programs import bilinear, bilinear_backward, normal, square_inputs
from .subjects import every_entry, measured, subject_of


class Counting(Executor):
    """An executor that carries out each task at once, and counts them."""

    def __init__(self):
        self.tasks = 0

    def submit(self, function, /, *args, **kwargs):
        self.tasks += 1
        done = Future()
        done.set_result(function(*args, **kwargs))
        return done


@pytest.mark.parametrize("method", METHODS)
def test_directions_and_entries_are_measured_where_the_executor_says(method):
    subject, executor = subject_of(np.sin, normal(40)), Counting()
    here, there = (measure_along(subject, normal(5, 40), method, Running(e)) for e in (None, executor))
    assert executor.tasks == 5
    np.testing.assert_array_equal(here.values, there.values)
    measure(subject, np.arange(40), method, Running(executor))
    assert executor.tasks == 5 + 3


def squares_of_the_first(x):
    return (x * x)[:2]  # of an infinite entry, the square of a complex number is no number, and unused


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_raises_no_warning_wherever_it_is_evaluated(method, executor):
    inputs = {"x": np.array([0.5, 1.0, np.inf])}
    pool = executor and executor(1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = numerical_gradient(squares_of_the_first, inputs, np.ones(2), method=method, executor=pool)["x"]
        log = numerical_gradient(np.log, {"x": np.array([1e-3, 1.0, 2.0])}, np.ones(3), method=method, executor=pool)
    assert not seen
    np.testing.assert_allclose(found, [1, 2, 0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(log["x"], [1e3, 1, 0.5], rtol=1e-8)


def test_a_closer_look_shows_what_the_length_of_a_complex_step_makes_of_the_slope():
    subject = subject_of(lambda x: x**3, np.zeros(2))
    found = measure(subject, np.arange(2), METHODS[0], Running(), best=True)
    np.testing.assert_allclose(found.values[:, 0], -(COMPLEX_STEP**2), rtol=1e-12)
    np.testing.assert_allclose(found.errors, 2 * (1 - 1 / 16) * COMPLEX_STEP**2, rtol=1e-6)
    once = measure(subject, np.arange(2), METHODS[0], Running())
    assert (once.errors < COMPLEX_STEP**2 / 1e6).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_gradients_and_errors_are_double_and_of_the_shape_of_the_input(method, dtype):
    for shape in ((2, 3), ()):
        inputs = {"x": np.ones(shape, dtype)}
        for part in numerical_gradient(np.sin, inputs, np.ones(shape), method=method, return_error=True):
            assert (part["x"].dtype, part["x"].shape) == (np.float64, shape)


@pytest.mark.parametrize("cotangent", [np.ones(3) * 1j, np.array(["a", "b", "c"]), np.array([None] * 3), [True] * 3])
def test_a_cotangent_of_no_real_numbers_is_refused(cotangent):
    with pytest.raises(TypeError, match=r"^cotangent must hold real numbers, not .* \(cotangent.shape=\(3,\)\)$"):
        numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)


@pytest.mark.parametrize("cotangent", [np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8), [1.0, 2.0, 3.0]])
def test_a_cotangent_may_hold_whole_numbers(cotangent):
    found = numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)["x"]
    np.testing.assert_allclose(found, np.cos(1) * np.array([1, 2, 3]), rtol=1e-14)


@pytest.mark.parametrize("unit", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("share", [0.0, 1e-6, 1.0])
def test_whether_one_more_axis_is_taken_does_not_depend_on_the_units_of_the_output(unit, share):
    def forward(x):
        return unit * (x - share * x.mean())

    def with_rounding(x):
        return unit * (x + 1e-14 * (x.ndim - 2) * x)

    subject = subject_of(forward, normal(3, 3) + 4)
    found = batched(subject, ())
    assert (found == "it computes something else then") if share else found.batched
    assert batched(subject_of(with_rounding, normal(3, 3)), ()).batched


def test_the_trial_of_one_more_axis_is_close_to_the_point():
    seen = []

    def forward(x):
        seen.append(x.copy())
        return np.log(x)

    x = np.array([0.5, 1.0, 3.0])
    subject = subject_of(forward, x)
    seen.clear()
    assert batched(subject, ()).batched
    assert [place.shape for place in seen] == [(3,)] * 3 + [(3, 3)]
    np.testing.assert_array_equal(np.stack(seen[:3]), seen[3])
    apart = np.abs(seen[3] - x)
    assert ((apart > 0) & (apart <= 0.2)).all()
    assert apart.max() > 0.02


def test_a_subject_is_analytic_or_it_is_said_why_not():
    assert analytic_or_not(subject_of(np.sin, np.ones(2))) is None
    assert analytic_or_not(subject_of(np.abs, np.ones(2))) == "forward turns complex arrays into float64"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert analytic_or_not(subject_of(np.sqrt, np.array([0.0, 1.0]))) is None  # at the edge of its domain
    assert not seen


def refuses_complex(x):
    if x.dtype.kind == "c":
        raise TypeError("real only")
    return np.sin(x)


def test_slopes_along_directions_are_taken_by_the_method_of_the_input():
    found = measured(refuses_complex, lambda d, x: d * np.cos(x), {"x": normal(4)}, method="central")
    directions = normal(2, 4, seed=1)
    u = found.candidate.first.cotangent
    slopes = found.slopes_along(directions).values[:, 0]
    np.testing.assert_allclose(slopes, directions @ (u * np.cos(normal(4))), rtol=1e-9)
    pair = found.pair_along(directions)
    np.testing.assert_allclose(pair.measured(u, [normal(4)]), slopes, rtol=1e-9)


def test_slopes_of_single_precision_inputs_are_measured_in_double_elsewhere_too():
    found = measured(bilinear, bilinear_backward, square_inputs(dtype="float32"))
    found.look(np.arange(9))
    u, point = found.candidate.question
    wide = [x.astype(float) for x in point]
    right = bilinear_backward(u.astype(float), *wide)[0]
    elements = np.arange(9)
    np.testing.assert_allclose(found.pair(elements).measured(u, point), right.ravel(), rtol=0, atol=1e-12)
    directions = normal(2, 3, 3)
    expected = np.tensordot(directions, right, 2)
    np.testing.assert_allclose(found.pair_along(directions).measured(u, point), expected, rtol=0, atol=1e-12)


def test_a_function_of_single_precision_alone_is_asked_in_that_elsewhere_too():
    def forward(x):
        if x.dtype not in (np.float32, np.complex64):
            raise TypeError("single precision only")
        return np.sin(x)

    found = measured(forward, lambda d, x: d * np.cos(x), {"x": normal(4, dtype="float32")})
    u, (x,) = found.candidate.question
    slopes = found.pair(np.arange(4)).measured(2 * u, [x + np.float32(0.1)])
    np.testing.assert_allclose(slopes, 2 * u * np.cos(x + np.float32(0.1)), rtol=1e-6)


@pytest.mark.skipif(np.finfo(np.longdouble).eps >= np.finfo(float).eps, reason="there is no wider dtype than float64")
def test_a_question_in_extended_precision_is_answered_in_that():
    found = measured(np.sin, lambda d, x: d * np.cos(x), {"x": normal(4)})
    u, x = (array.astype(np.longdouble) for array in (found.candidate.question[0], found.candidate.question[1][0]))
    x += np.longdouble(1) / 3
    slopes = found.pair(np.arange(4)).measured(u, [x])
    assert slopes.dtype == np.longdouble
    np.testing.assert_allclose(slopes, u * np.cos(x), rtol=20 * np.finfo(np.longdouble).eps)


def test_what_is_looked_at_again_is_not_one_more_entry_done():
    done = []
    found = measured(np.sin, lambda d, x: d * np.cos(x), {"x": normal(5)})
    found.running = replace(found.running, advance=done.append)
    found.look(np.arange(5), key="x")
    assert sum(done) == 5
    found.look(np.arange(5), best=True)
    found.slopes_along(every_entry(found.subject))
    found.pair(np.arange(5)).measured(*found.candidate.question)
    assert sum(done) == 5


def test_trying_double_precision_raises_no_warning():
    x = np.array([1.0, 2.0], np.float32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (kept,) = in_double_precision(lambda x: np.full(x.shape, np.inf, x.dtype), [x], np.full(2, np.inf, np.float32))
    assert not seen
    assert kept.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_the_wide_dtype_is_double_or_what_is_wider(dtype):
    assert wide_dtype(np.dtype(dtype)) == np.result_type(dtype, np.float64)
    assert wide_dtype(np.dtype(dtype)).itemsize >= 8
