"""Slopes of many entries: the same to the bit wherever they are evaluated, and however many at once."""

from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest
from helpers import each

from attention_np.gradcheck import METHODS, check
from attention_np.gradcheck.slopes import moves
from attention_np.gradcheck.slopes.measuring import Running, measured

from ..programs import Watched, bilinear, bilinear_backward, normal, real_only, square_inputs, wrong_backward
from ..subjects import subject_of

LONG = 53  # entries, of which a task takes sixteen


def oscillator(x):
    return np.sin(x) * np.exp(x[::-1] / 3)


def oscillator_slopes(x, u):
    """Of the sum of u times the outputs, by each entry."""
    return u * np.cos(x) * np.exp(x[::-1] / 3) + u[::-1] * np.sin(x[::-1]) * np.exp(x / 3) / 3


@each("method", METHODS)
@each("elements", [range(LONG), [5, 3, LONG - 1, 0, 3], []])
def test_the_entries_that_are_asked_for_are_measured_in_their_order(method, elements):
    x, u, chosen = normal(LONG), normal(LONG, seed=1), np.array(elements, int)
    subject = subject_of(oscillator, x, cotangent=u)
    found = measured(subject, chosen, method, Running(), best=True)
    np.testing.assert_allclose(found.values, oscillator_slopes(x, u)[chosen, None], rtol=0, atol=1e-9)
    assert [part.shape for part in found[1:]] == [(len(chosen),)] * 4
    for k, entry in enumerate(chosen):
        one = measured(subject, np.array([entry]), method, Running(), best=True)
        assert [part[k] for part in found] == [part[0] for part in one]


def equal_to_the_bit(report, other):
    for entry, another in zip(report, other, strict=True):
        for array, same in zip(entry.details, another.details, strict=True):
            np.testing.assert_array_equal(array, same, strict=True)
    return report == other


@each("stop", [KeyboardInterrupt, MemoryError])
def test_tasks_that_have_not_begun_are_called_off_when_one_fails(stop):
    class Pool(Executor):
        """The first task fails; the others have not begun."""

        def __init__(self):
            self.futures = []

        def submit(self, *_, **__):
            self.futures.append(Future())
            if len(self.futures) == 1:
                self.futures[0].set_exception(stop())
            return self.futures[-1]

    pool = Pool()
    with pytest.raises(stop):
        check(bilinear, bilinear_backward, square_inputs(10), executor=pool)
    assert len(pool.futures) > 4
    assert all(future.cancelled() for future in pool.futures[1:])


@each("method", METHODS)
def test_what_goes_through_at_once_is_bounded_and_changes_no_bit(monkeypatch, method):
    reports, rows = [], []
    for entries in (2**20, 2**12, 1):
        monkeypatch.setattr(moves, "AT_ONCE", entries)
        counted = Watched(np.sin if method == "complex-step" else real_only(np.sin))
        reports.append(check(counted, lambda d, x: d * np.cos(x), {"x": normal(16, 16)}, vectorized="x"))
        rows.append(max(len(arrays[0]) for arrays in counted.seen if arrays[0].ndim == 3))
    assert rows == [256, 8, 1]
    assert {entry["x"].method for entry in reports} == {method}
    assert reports[0].ok
    assert equal_to_the_bit(reports[0], reports[1])
    assert equal_to_the_bit(reports[0], reports[2])


@each("backward", [bilinear_backward, wrong_backward])
@each("options", [*({"method": m} for m in METHODS), {"max_entries": 20}, {"vectorized": ["x"]}])
def test_an_executor_changes_no_bit_of_the_report_whatever_the_options(backward, options):
    here = check(bilinear, backward, square_inputs(6), **options)
    with ThreadPoolExecutor(3) as executor:
        assert equal_to_the_bit(check(bilinear, backward, square_inputs(6), executor=executor, **options), here)
