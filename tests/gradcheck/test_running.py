import contextlib
import io
import logging
import multiprocessing
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from helpers import each

from attention_np import dot_product
from attention_np.gradcheck import METHODS, NotAnalyticError, check, check_op
from attention_np.gradcheck.measuring import running

from .programs import Pickling, bilinear, bilinear_backward, normal, square_inputs, wrong_backward
from .reports import equal_to_the_bit

ALL = [*METHODS, "auto"]


@pytest.fixture(
    scope="module", params=["threads", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("processes", "dask"))]
)
def executor(request):
    if request.param == "threads":
        with ThreadPoolExecutor(3) as pool:
            yield pool
    elif request.param == "processes":
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    else:
        distributed = pytest.importorskip("distributed", reason="a cluster needs Dask: pip install distributed")
        alone = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "dashboard_address": ":0"}
        with (
            distributed.LocalCluster(**alone, silence_logs=logging.CRITICAL) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client.get_executor()


def not_analytic(x):
    return np.abs(x) * x


def not_analytic_backward(d_output, x):
    return 2 * d_output * np.abs(x)


def busy_elsewhere(x):
    if threading.current_thread() is not threading.main_thread() or multiprocessing.parent_process() is not None:
        raise MemoryError("no more memory in this place")
    return np.tanh(x)


@each("method", ALL)
def test_an_executor_changes_no_bit_of_the_report(executor, method):
    inputs = square_inputs(6)  # of 36 elements each, so that there are several tasks
    for backward in (bilinear_backward, wrong_backward):
        here = check(bilinear, backward, inputs, method=method)
        assert equal_to_the_bit(check(bilinear, backward, inputs, method=method, executor=executor), here)
    assert not here["x"].ok or method == "central"


@each("options", [{"max_entries": 40}, {"vectorized": ["x"], "memory": 10_000}, {"rtol": 1e-14}])
def test_an_executor_changes_no_bit_whatever_the_options(executor, options):
    inputs = {"x": normal(8, 8)}
    here = check(not_analytic, not_analytic_backward, inputs, **options)
    assert here["x"].method == "central"
    assert equal_to_the_bit(check(not_analytic, not_analytic_backward, inputs, executor=executor, **options), here)


def test_an_op_is_checked_on_an_executor_too(executor):
    inputs = {"query": normal(5, 4), "key": normal(6, 4, seed=1), "value": normal(6, 3, seed=2)}
    for options in ({}, {"dropout_p": 0.5, "rng": 3}):
        here = check_op(dot_product, inputs, **options)
        assert here.ok
        assert equal_to_the_bit(check_op(dot_product, inputs, executor=executor, **options), here)


def test_an_error_in_a_worker_reaches_the_caller(executor):
    inputs = {"x": normal(5, 5)}
    assert check(busy_elsewhere, not_analytic_backward, inputs, method="central")
    with pytest.raises(MemoryError, match=r"^no more memory in this place$"):
        check(busy_elsewhere, not_analytic_backward, inputs, method="central", executor=executor)
    with pytest.raises(NotAnalyticError, match="use central"):
        check(np.abs, np.multiply, inputs, method="complex-step", executor=executor)


def test_the_evaluations_are_tasks_that_can_be_pickled_and_any_executor_takes():
    inputs, executor = square_inputs(10), Pickling()
    report = check(bilinear, wrong_backward, inputs, executor=executor)
    assert equal_to_the_bit(report, check(bilinear, wrong_backward, inputs))
    assert len(executor.sizes) > 8
    assert executor.sizes[0] < 20_000


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


@pytest.fixture
def drawn(monkeypatch):
    """A function: what a check draws on standard error, where there is no patience. Pytest has its own outside."""
    monkeypatch.setattr(running, "PATIENCE", -1)
    monkeypatch.setenv("TERM", "xterm")

    def drawn(*, attached=True, **options):
        terminal = io.StringIO()
        terminal.isatty = lambda: attached
        with contextlib.redirect_stderr(terminal):
            assert check(bilinear, bilinear_backward, square_inputs(6), **options).ok
        return terminal.getvalue()

    return drawn


def test_a_long_check_draws_its_progress_on_a_terminal(drawn, monkeypatch):
    progress = pytest.importorskip("rich.progress")
    added, add = [], progress.Progress.add_task
    monkeypatch.setattr(
        progress.Progress,
        "add_task",
        lambda self, what, total: added.append((what, total)) or add(self, what, total=total),
    )
    assert "checking gradients" in drawn()
    assert "checking gradients" in drawn(progress=True)
    assert added == 2 * [("checking gradients", 72)]


def test_nothing_is_drawn_of_a_short_check_nor_where_nobody_watches_or_wants_it_or_the_library_is_missing(
    drawn, monkeypatch
):
    assert not drawn(attached=False)
    assert not drawn(progress=False)
    for module in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not drawn()
    assert not drawn(progress=True)
    monkeypatch.undo()
    assert not drawn(progress=True)


@pytest.fixture
def bars(monkeypatch):
    """The progress bars that were drawn."""
    drawn = []

    class Bar:
        task_ids = (0,)

        def __init__(self, _, total):
            self.total, self.done, self.stopped = total, 0, False
            drawn.append(self)

        def update(self, _, advance):
            self.done += advance

        def stop(self):
            self.stopped = True

    monkeypatch.setattr(running, "PATIENCE", -1)
    monkeypatch.setattr(running, "_bar", Bar)
    return drawn


@pytest.mark.parametrize("backward", [bilinear_backward, wrong_backward])
def test_progress_counts_each_entry_once(bars, backward):
    check(bilinear, backward, square_inputs(10), progress=True, max_entries=70)
    assert [(bar.total, bar.done) for bar in bars] == [(140, 140)]


def test_the_bar_goes_when_the_check_ends_or_is_interrupted(bars):
    def interrupted(x, y):
        if calls.pop():
            raise KeyboardInterrupt
        return bilinear(x, y)

    check(bilinear, bilinear_backward, square_inputs(10), progress=True)
    calls = [True] + 300 * [False]
    with pytest.raises(KeyboardInterrupt):
        check(interrupted, bilinear_backward, square_inputs(10), progress=True)
    assert [bar.stopped for bar in bars] == [True, True]
