"""What a check makes of its arguments, before it looks at anything."""

from dataclasses import replace

import numpy as np
import pytest

from attention_np.gradcheck import Report, check, checking
from attention_np.gradcheck.checking import DIRECTIONS, _as_constants, _as_count, _as_names, _elsewhere
from attention_np.gradcheck.findings import Escape
from attention_np.gradcheck.measuring.running import MEMORY

from .programs import bilinear, bilinear_backward, normal, square_inputs
from .reports import HOLDS


@pytest.fixture
def asked(monkeypatch):
    """What is to be examined, in place of examining it."""
    asked = []

    def examine(*question):
        asked.append(question)
        return Report((HOLDS,))

    monkeypatch.setattr(checking, "examine", examine)
    return asked


def test_by_default_the_method_and_how_many_entries_are_looked_at_are_chosen(asked):
    check(bilinear, bilinear_backward, square_inputs())
    problem, subjects, options, running = asked[0]
    assert options == ("auto", 0.0, "auto", DIRECTIONS, {})
    assert DIRECTIONS == 8
    assert (running.executor, running.memory, running.checkpoint) == (None, MEMORY, None)
    assert list(subjects) == list(problem.inputs) == ["x", "y"]
    assert [subject.position for subject in subjects.values()] == [0, 1]
    assert problem.backward is bilinear_backward


def test_options_are_handed_on(asked, tmp_path):
    executor = type("Pool", (), {"submit": lambda *_: None})()
    options = {"method": "central", "rtol": 1, "max_entries": None, "directions": np.int64(3), "constants": {"n": 2}}
    path = tmp_path / "kept"
    check(bilinear, bilinear_backward, square_inputs(), executor=executor, memory=123, checkpoint=path, **options)
    _, _, found, running = asked[0]
    assert found == ("central", 1.0, None, 3, {"n": 2.0})
    assert isinstance(found.rtol, float)
    assert (running.executor, running.memory, running.checkpoint.path) == (executor, 123, path)
    assert Report.load(path) == Report((HOLDS,))


def test_each_seed_makes_a_question_of_its_own(asked):
    for seed in (*range(40), 0):
        check(bilinear, bilinear_backward, square_inputs(), rng=seed)
    problems = [problem for problem, *_ in asked]
    seeds = [problem.seed for problem in problems]
    assert len(set(seeds)) == 40
    assert seeds[0] == seeds[-1]
    assert max(seeds) > 2**61
    cotangents = [problem.cotangents for problem in problems]
    np.testing.assert_array_equal(cotangents[0], cotangents[-1])
    assert len({float(u[0, 0, 0]) for u in cotangents}) == 40
    np.testing.assert_array_equal(cotangents[0][0], problems[0].first.cotangent)


def test_without_a_seed_it_is_zero(asked):
    for options in ({}, {"rng": 0}):
        check(bilinear, bilinear_backward, square_inputs(), **options)
    first, again = (problem.seed for problem, *_ in asked)
    assert first == again


def test_a_function_that_writes_to_its_inputs_is_asked_on_copies_from_then_on(asked):
    def writes(x, y):
        x += 1
        return x * y

    inputs = square_inputs()
    for forward in (writes, bilinear):
        check(forward, bilinear_backward, inputs)
    (first, *_), (second, *_) = asked
    before = [x.copy() for x in first.point]
    np.testing.assert_array_equal(first.forward(*first.point), (inputs["x"] + 1) * inputs["y"])
    np.testing.assert_array_equal(first.point, before)
    assert second.forward is bilinear


def test_inputs_that_carry_another_axis_only_together_are_told_so(asked):
    def forward(x, y):
        if y.ndim > x.ndim:
            raise ValueError("y has more axes than x")
        return x * y

    def backward(d, x, y):
        return d * y, d * x

    check(forward, backward, square_inputs(), vectorized=["x", "y"])
    _, subjects, *_ = asked[0]
    assert [(subject.batched, subject.with_it) for subject in subjects.values()] == [(True, ()), (True, (0,))]
    with pytest.raises(ValueError, match=r"^vectorized names y, but forward does not .*: it raises ValueError: y has"):
        check(forward, backward, square_inputs(), vectorized=["y"])


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


@pytest.mark.parametrize("number", [1, 10**30, np.int32(1)])
def test_a_count_is_one_or_more(number):
    _as_count("directions", number)


@pytest.mark.parametrize("number", [0, -1, 1.0, True, None, "1"])
def test_what_is_no_count_is_refused_by_its_name(number):
    with pytest.raises(ValueError, match=r"^directions must be a positive integer, not "):
        _as_count("directions", number)


def test_names_may_be_one_or_many_in_any_form():
    arrays = {"x": 1, "long name": 2}
    for given in (["x", "long name"], ("x", "long name"), iter(["x", "long name"]), {"x": 0, "long name": 0}):
        assert _as_names(given, arrays) == ["x", "long name"]
    assert _as_names("long name", arrays) == ["long name"]
    assert _as_names((), arrays) == []


def test_constants_are_real_numbers_by_name():
    assert _as_constants(None) == {}
    assert _as_constants({"n": 2, 3: np.float32(0.5)}) == {"n": 2.0, "3": 0.5}
    for given in ({"n": "2"}, {"n": 2, "m": None}, {"n": 1j}, [("n", 2)], 3):
        with pytest.raises(TypeError, match=r"^constants must be a mapping of names to numbers, not "):
            _as_constants(given)


@pytest.mark.parametrize("rtol", [-1e-30, np.nan, np.inf, True, "1", None, 1j])
def test_a_tolerance_is_a_finite_number_that_is_not_negative(rtol):
    if rtol is None:
        assert check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(2)}, rtol=rtol).ok
        return
    with pytest.raises(ValueError, match=r"^rtol must be a finite number that is not negative, not "):
        check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(2)}, rtol=rtol)


@pytest.mark.parametrize("executor", [dict, 3, type("Pool", (), {"submit": 3})()])
def test_an_executor_is_an_object_that_tasks_can_be_submitted_to(executor):
    with pytest.raises(TypeError, match=r"^executor must be a concurrent.futures.Executor, not "):
        check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(2)}, executor=executor)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 1000 * "x"},
        {"escape": Escape(1, 1, 8, 1e-12, 1.0)},
        {"escape": Escape(5, 5, 8, 1e-12, 1.0)},
        {"escape": Escape(2, 5, 8, 1e-12, 1.0)},
    ],
)
def test_a_report_with_the_longest_name_or_the_largest_sample_is_read_again(tmp_path, changes):
    report = Report((replace(HOLDS, **changes),))
    report.save(tmp_path / "report")
    assert Report.load(tmp_path / "report") == report
