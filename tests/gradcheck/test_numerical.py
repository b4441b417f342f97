import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import each, some_of

from attention_np import gradcheck
from attention_np.gradcheck import METHODS, NotAnalyticError, numerical_gradient
from attention_np.gradcheck.measuring.numerical import TASK_ELEMENTS, batched, measure, measure_along
from attention_np.gradcheck.measuring.running import Running
from attention_np.gradcheck.measuring.slopes import COMPLEX_STEP
from attention_np.gradcheck.measuring.steps import BEYOND_ZERO
from attention_np.gradcheck.measuring.subject import SCALES, Subject, sizes

from .programs import normal, real_only, sine_in_single
from .subjects import subject_of, watched_subject_of

EXACT = {"complex-step": 1e-15, "central": 1e-9, "auto": 1e-15}


@each("method", [*METHODS, "auto"])
@each("shape", [(), (1,), (5,), (2, 3), (2, 0), (0,), (2, 1, 3), (TASK_ELEMENTS * 2 + 3,)])
def test_the_gradient_of_each_element_is_that_of_the_formula(method, shape):
    x, y, u = normal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    found = numerical_gradient(lambda a, b: np.sin(a) * np.exp(b), {"a": x, "b": y}, u, method=method)
    expected = {"a": u * np.cos(x) * np.exp(y), "b": u * np.sin(x) * np.exp(y)}
    assert list(found) == ["a", "b"]
    for name, gradient in found.items():
        assert gradient.shape == shape
        assert gradient.dtype == np.float64
        size = np.abs(expected[name]).max(initial=0)
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=EXACT[method] * size)


@each("method", METHODS)
@each("strange", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_not_looked_at_may_hold_anything(method, strange):
    x = np.array([0.5, strange, 1.0])
    found = numerical_gradient(lambda a: np.sin(a[[0, 2]]), {"a": x}, np.ones(2), method=method)["a"]
    np.testing.assert_allclose(found, [np.cos(0.5), 0, np.cos(1.0)], rtol=0, atol=EXACT[method])


@each("method", [*METHODS, "auto"])
def test_a_function_that_writes_to_its_inputs_is_differentiated_at_the_point_that_was_given(method):
    def forward(a, b):
        a *= b
        b[...] = 0
        return a

    x, y = normal(3), normal(3, seed=1)
    inputs = {"a": x.copy(), "b": y.copy()}
    found = numerical_gradient(forward, inputs, np.ones(3), method=method)
    np.testing.assert_allclose(found["a"], y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["b"], x, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(inputs["a"], x)
    np.testing.assert_array_equal(inputs["b"], y)


@each(
    ("forward", "derivative"),
    [(lambda x: np.abs(x) * x, lambda x: 2 * np.abs(x)), (real_only(np.square), lambda x: 2 * x)],
)
def test_auto_takes_central_differences_where_the_function_is_not_analytic(forward, derivative):
    x, u = np.array([0.5, -1.5, 2.0]), normal(3, seed=1)
    auto, central = (numerical_gradient(forward, {"x": x}, u, method=method)["x"] for method in ("auto", "central"))
    np.testing.assert_array_equal(auto, central)
    np.testing.assert_allclose(auto, u * derivative(x), rtol=0, atol=1e-9)


def test_not_analytic_is_a_value_error_that_keeps_its_cause():
    assert issubclass(NotAnalyticError, ValueError)
    with pytest.raises(NotAnalyticError, match="no complex arrays here") as raised:
        numerical_gradient(real_only(np.sin), {"x": np.ones(2)}, np.ones(2), method="complex-step")
    assert isinstance(raised.value.__cause__, RuntimeError)


@each("cotangent", [1.0, np.ones(2), np.ones((3, 1)), np.ones((1, 3))])
def test_a_cotangent_of_another_shape_is_refused_with_both_shapes(cotangent):
    with pytest.raises(ValueError, match=r"^cotangent must have the shape of the output, \(3,\) \(cotangent.shape="):
        numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)


def test_the_package_shows_what_a_user_needs():
    assert set(gradcheck.__all__) <= set(dir(gradcheck))
    assert METHODS == ("complex-step", "central")


LONG = TASK_ELEMENTS * 3 + 5


def oscillator(x):
    return np.sin(x) * np.exp(x[::-1] / 3)


def oscillator_slopes(x, u):
    """Of the sum of u times the outputs, by each entry."""
    return u * np.cos(x) * np.exp(x[::-1] / 3) + u[::-1] * np.sin(x[::-1]) * np.exp(x / 3) / 3


@each("method", METHODS)
@each("memory", *some_of([10**5, 1, 2**28], 3))
@each("elements", [range(LONG), [7], [5, 3, LONG - 1, 0, 3], range(LONG - 1, -1, -2), []])
def test_the_entries_that_are_asked_for_are_measured_in_their_order_whatever_the_memory(method, memory, elements):
    x, u = normal(LONG), normal(LONG, seed=1)
    subject = subject_of(oscillator, x, cotangent=u)
    chosen = np.array(elements, int)
    found = measure(subject, chosen, method, Running(memory=memory), best=True)
    expected = oscillator_slopes(x, u)[chosen]
    assert found.values.shape == (len(chosen), 1)
    np.testing.assert_allclose(found.values[:, 0], expected, rtol=0, atol=1e-9)
    assert (found.errors < 1e-9).all()
    assert [part.shape for part in found[1:]] == [(len(chosen),)] * 3
    alone = [measure(subject, chosen[k : k + 1], method, Running(), best=True) for k in range(len(chosen))]
    for k, one in enumerate(alone):
        assert [part[k] for part in found] == [part[0] for part in one]


@each("method", METHODS)
def test_what_an_entry_touches_is_found_out_for_the_best_even_where_the_slope_underflows(method):
    subject = subject_of(lambda x: 1 / (1 + np.exp(-x)), np.array([750.0]))
    found, best = (measure(subject, np.arange(1), method, Running(), best=best) for best in (False, True))
    assert (found.values, found.lost) == (0, 0)
    assert best.values == 0
    assert 2.0**-52 / 512 <= best.lost <= 2.0**-48 / 512


def test_without_the_best_step_differences_take_those_that_are_given_or_the_first():
    x = normal(LONG)
    subject = subject_of(lambda x: oscillator(9 * x), x)
    scales = SCALES[0] / 2.0 ** np.arange(LONG)[::-1].clip(max=20)
    elements = np.arange(LONG)
    found = measure(subject, elements, "central", Running(), scales=scales)
    np.testing.assert_array_equal(found.scales, scales)
    first = measure(subject, elements, "central", Running())
    assert first.scales.max() == SCALES[0]
    assert (first.scales * sizes(x) <= np.abs(x) / 64).all()
    best = measure(subject, elements, "central", Running(), best=True)
    worth_it = BEYOND_ZERO * np.abs(best.values[:, 0])
    assert (best.errors <= np.fmax(first.errors, worth_it)).all()
    assert (best.errors < first.errors / 100).any()


@each("method", METHODS)
def test_every_chunk_is_reported_when_it_is_done_and_is_of_a_size_that_depends_on_nobody(method):
    subject = subject_of(oscillator, normal(LONG))
    for executor in (None, ThreadPoolExecutor(2)):
        done, kept = [], {}
        measure(
            subject,
            np.arange(LONG),
            method,
            Running(executor, advance=done.append),
            keep=lambda elements, slopes, kept=kept: kept.update(zip(elements, slopes.values[:, 0], strict=True)),
        )
        assert sorted(done) == [5, *[TASK_ELEMENTS] * 3]
        expected = measure(subject, np.arange(LONG), method, Running()).values[:, 0]
        np.testing.assert_array_equal([kept[k] for k in range(LONG)], expected)


def test_chunks_that_finish_in_another_order_are_put_in_theirs():
    first = threading.Event()

    def forward(x):
        if x[0] != 1:  # the first chunk waits for the last
            assert first.wait(10)
        if x[-1] != 1:
            first.set()
        return x**2 * np.arange(len(x))

    subject = subject_of(forward, np.ones(LONG))
    first.clear()
    with ThreadPoolExecutor(8) as executor:
        found = measure(subject, np.arange(LONG), "central", Running(executor))
    np.testing.assert_allclose(found.values[:, 0], 2.0 * np.arange(LONG), rtol=1e-9)


def test_what_a_checkpoint_has_kept_is_not_measured_again():
    slopes, elements, done = {}, np.arange(LONG), []

    def get(key, shapes):
        assert key not in slopes or [part.shape for part in slopes[key]] == shapes
        return slopes.get(key)

    subject, seen = watched_subject_of(oscillator, normal(LONG))
    running = Running(checkpoint=SimpleNamespace(get=get, put=slopes.__setitem__), advance=done.append)
    first = measure(subject, elements, "central", running, key="x")
    assert len(slopes) == 4
    del slopes[list(slopes)[1]]
    seen.clear()
    done.clear()
    again = measure(subject, elements, "central", running, key="x")
    assert (len(seen), sum(done)) == (6 * TASK_ELEMENTS, LONG)
    for part, repeated in zip(first, again, strict=True):
        np.testing.assert_array_equal(part, repeated)
    kept = set(slopes)
    measure(subject, elements, "central", running)  # nothing is kept without a name
    assert set(slopes) == kept


LEADING = {
    "an entrywise function": (np.sin, (normal(2, 3),), 0),
    "a product from the left": (np.matmul, (normal(2, 3), normal(3, 4)), 0),
    "a product from the right": (np.matmul, (normal(2, 3), normal(3, 4)), 1),
    "a sum over the last axis": (lambda x: np.exp(x).sum(axis=-1), (normal(2, 3),), 0),
    "a bias of fewer axes": (np.add, (normal(2, 4, 3), normal(3, seed=1)), 1),
    "a scale": (np.multiply, (normal(2, 3), np.array(2.0)), 1),
    "an input that is not used": (lambda x, _: x * 2, (normal(2, 3), normal(4)), 1),
    "an output that is infinite and NaN here and there": (lambda x: x / [0.0, 1.0, np.nan], (normal(2, 3),), 0),
    "an input without entries": (np.sin, (np.zeros((2, 0)),), 0),
    "a sum in another order": (lambda x: x[..., :: (-1) ** x.ndim].sum(axis=-1), (normal(2, 500),), 0),
    "a function of single precision only": (sine_in_single, (normal(3, dtype=np.float32),), 0),
}


@each("what", LEADING)
def test_a_function_of_the_last_axes_takes_one_more_leading_axis(what):
    forward, point, position = LEADING[what]
    with np.errstate(all="ignore"):
        subject = subject_of(forward, *point, position=position)
    assert isinstance(batched(subject, ()), Subject)


def test_an_input_that_takes_one_more_axis_only_together_with_others_is_given_it_with_them():
    def forward(scores, bias):
        if bias.ndim > scores.ndim:
            raise ValueError("the bias has more axes than the scores")
        return np.exp(scores) * np.sin(bias)

    scores, bias = normal(2, 3), normal(2, 3, seed=1)
    subject = subject_of(forward, scores, bias, position=1)
    assert batched(subject, ()) == "it raises ValueError: the bias has more axes than the scores"
    together = batched(subject, (0,))
    assert together.with_it == (0,)
    found = measure(together, np.arange(6), METHODS[0], Running())
    np.testing.assert_allclose(found.values[:, 0], (np.exp(scores) * np.cos(bias)).ravel(), rtol=1e-13)
    assert batched(subject_of(forward, scores, bias), (1,)).with_it == ()  # the scores do not need the bias


@each("dtype", ["float16", "float32", "longdouble"])
@each("method", [*METHODS, "auto"])
def test_gradients_and_errors_of_every_dtype_are_double_and_the_gradient_is_the_same_without(method, dtype):
    inputs = {"a": normal(2, 3, dtype=dtype), "b": normal(), "c": np.zeros((0, 2))}

    def forward(a, b, c):
        return np.sin(a) * b + c.sum()

    alone = numerical_gradient(forward, inputs, np.ones((2, 3)), method=method)
    gradient, error = numerical_gradient(forward, inputs, np.ones((2, 3)), method=method, return_error=True)
    assert list(gradient) == list(error) == list(inputs)
    for name, x in inputs.items():
        np.testing.assert_array_equal(gradient[name], alone[name])
        assert error[name].shape == x.shape
        assert error[name].dtype == gradient[name].dtype == np.float64
        assert (error[name] > 0).all()
    expected = np.cos(inputs["a"].astype(np.longdouble)) * inputs["b"]
    np.testing.assert_allclose(gradient["a"], expected.astype(float), rtol=0, atol=EXACT[method])


@each("method", ["auto", "central"])
def test_a_function_that_takes_single_precision_only_is_differentiated_in_it(method):
    x = np.linspace(0.3, 2, 5, dtype=np.float32)
    found = numerical_gradient(sine_in_single, {"x": x}, np.ones(5), method=method)["x"]
    np.testing.assert_allclose(found, np.cos(x.astype(float)), rtol=0, atol=1e-3)


def test_auto_sees_an_input_that_is_not_analytic_beside_one_that_is():
    """All inputs are complex where one of them moves, so that an `abs` is not betrayed by its dtype."""
    inputs = {"x": np.array([0.5, 1.0]), "y": np.array([2.0, -3.0])}
    found = numerical_gradient(lambda x, y: np.sin(x) * np.abs(y), inputs, np.ones(2))
    np.testing.assert_allclose(found["x"], np.cos(inputs["x"]) * [2, 3], rtol=1e-14)
    np.testing.assert_allclose(found["y"], np.sin(inputs["x"]) * [1, -1], rtol=1e-9)


@each("method", METHODS)
def test_all_that_is_known_of_a_slope_is_in_its_units(method):
    x = np.array([0.3, 1.0, 20.0, 25.0])  # of which the last ones are saturated

    def known(unit):
        subject = subject_of(lambda x: np.tanh(x / unit), x * unit)
        return measure(subject, np.arange(4), method, Running(), best=True)

    one, other = known(1.0), known(1024.0)
    for name in ("values", "errors", "lost"):
        np.testing.assert_array_equal(1024 * getattr(other, name), getattr(one, name), err_msg=name)
    np.testing.assert_array_equal(other.scales, one.scales)
    assert one.lost[2:].all()


@pytest.mark.parametrize("method", METHODS)
def test_directions_and_entries_are_measured_where_the_executor_says(method, monkeypatch):
    subject, tasks = subject_of(np.sin, normal(40)), []
    with ThreadPoolExecutor(1) as executor:
        submit = executor.submit
        monkeypatch.setattr(executor, "submit", lambda task: tasks.append(task) or submit(task))
        here, there = (measure_along(subject, normal(5, 40), method, Running(e)) for e in (None, executor))
        assert len(tasks) == 5
        np.testing.assert_array_equal(here.values, there.values)
        measure(subject, np.arange(40), method, Running(executor))
        assert len(tasks) == 5 + 3


def squares_of_the_first(x):
    return (x * x)[:2]  # of an infinite entry, the square of a complex number is no number, and unused


@each("executor", [None, ThreadPoolExecutor])
@each("method", METHODS)
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


@each("cotangent", [np.ones(3) * 1j, np.array(["a", "b", "c"]), np.array([None] * 3), [True] * 3])
def test_a_cotangent_of_no_real_numbers_is_refused(cotangent):
    with pytest.raises(TypeError, match=r"^cotangent must hold real numbers, not .* \(cotangent.shape=\(3,\)\)$"):
        numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)


@each("cotangent", [np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8), [1.0, 2.0, 3.0]])
def test_a_cotangent_may_hold_whole_numbers(cotangent):
    found = numerical_gradient(np.sin, {"x": np.ones(3)}, cotangent)["x"]
    np.testing.assert_allclose(found, np.cos(1) * np.array([1, 2, 3]), rtol=1e-14)


@each("unit", [1e-20, 1.0, 1e20])
@each("share", [0.0, 1e-6, 1.0])
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
    x = np.array([0.5, 1.0, 3.0])
    subject, seen = watched_subject_of(np.log, x)
    assert batched(subject, ()).batched
    places = [place for (place,) in seen]
    assert [place.shape for place in places] == [(3,), (2, 3)]
    np.testing.assert_array_equal(places[1], [places[0], x])
    apart = np.abs(places[0] - x)
    assert ((apart > 0) & (apart <= 0.1 * x)).all()
    assert apart.max() > 0.02
