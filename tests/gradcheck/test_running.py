import contextlib
import io
import logging
import multiprocessing
import pickle
import re
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from attention_np import dot_product
from attention_np.gradcheck import (
    METHODS,
    GradientError,
    NotAnalyticError,
    Report,
    check,
    check_op,
    saving,
)
from attention_np.gradcheck.measuring import running

from .programs import bilinear, bilinear_backward, normal, square_inputs

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
        alone = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
        with (
            distributed.LocalCluster(**alone, silence_logs=logging.CRITICAL) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client.get_executor()


def wrong_backward(d_output, x, y):
    d_x, d_y = bilinear_backward(d_output, x, y)
    return d_x * (1 + 3e-13), d_y


def not_analytic(x):
    return np.abs(x) * x


def not_analytic_backward(d_output, x):
    return 2 * d_output * np.abs(x)


def busy_elsewhere(x):
    if threading.current_thread() is not threading.main_thread() or multiprocessing.parent_process() is not None:
        raise MemoryError("no more memory in this place")
    return np.tanh(x)


def equal_to_the_bit(report, other):
    assert report == other
    for entry, another in zip(report, other, strict=True):
        for array, same in zip(entry.details or (), another.details or (), strict=True):
            np.testing.assert_array_equal(array, same, strict=True)
    return True


@pytest.mark.parametrize("method", ALL)
def test_an_executor_changes_no_bit_of_the_report(executor, method):
    inputs = square_inputs(10)  # of 100 elements each, so that there are several tasks
    for backward in (bilinear_backward, wrong_backward):
        here = check(bilinear, backward, inputs, method=method)
        assert equal_to_the_bit(check(bilinear, backward, inputs, method=method, executor=executor), here)
    assert not here["x"].ok or method == "central"


@pytest.mark.parametrize("options", [{"max_entries": 40}, {"vectorized": ["x"], "memory": 10_000}, {"rtol": 1e-14}])
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


class Watched(Executor):
    """An executor that keeps its tasks, and carries each out as it comes."""

    def __init__(self):
        self.tasks = []
        self.pool = ThreadPoolExecutor(1)

    def submit(self, function, /, *args, **kwargs):
        self.tasks.append(partial(function, *args, **kwargs))
        return self.pool.submit(*pickle.loads(pickle.dumps((function, *args))), **kwargs)  # noqa: S301


def test_the_evaluations_are_tasks_that_can_be_pickled_and_any_executor_takes():
    watched = Watched()
    inputs = square_inputs(10)
    report = check(bilinear, wrong_backward, inputs, executor=watched)
    watched.pool.shutdown()
    assert equal_to_the_bit(report, check(bilinear, wrong_backward, inputs))
    assert len(watched.tasks) > 8
    assert len(pickle.dumps(watched.tasks[0])) < 20_000


class Interrupting:
    """A function that somebody interrupts after so many calls."""

    def __init__(self, function, after=10**9):
        self.function = function
        self.calls, self.after = 0, after

    def __call__(self, *arrays):
        self.calls += 1
        if self.calls > self.after:
            raise KeyboardInterrupt
        return self.function(*arrays)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """What is in the file that an interrupted check has left, and how many calls the whole check takes."""
    path = tmp_path_factory.mktemp("left") / "long.json"
    whole = Interrupting(bilinear)
    check(whole, wrong_backward, square_inputs(10), checkpoint=path)
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(bilinear, int(0.7 * whole.calls)), wrong_backward, square_inputs(10), checkpoint=path)
    return path.read_bytes(), whole.calls


@pytest.fixture
def interrupted(tmp_path, left_behind):
    """The file that an interrupted check has left, and how many calls the whole check takes."""
    content, calls = left_behind
    path = tmp_path / "long.json"
    path.write_bytes(content)
    return path, calls


def test_an_interrupted_check_goes_on_where_it_was_and_reports_the_same(interrupted):
    path, calls = interrupted
    assert [file.name for file in path.parent.iterdir()] == ["long.json"]
    rest = Interrupting(bilinear)
    report = check(rest, wrong_backward, square_inputs(10), checkpoint=path)
    assert equal_to_the_bit(report, check(bilinear, wrong_backward, square_inputs(10)))
    assert not report["x"].ok
    assert rest.calls <= calls - 200  # the entries, each of which had been looked at once
    again = Interrupting(bilinear)
    assert equal_to_the_bit(check(again, wrong_backward, square_inputs(10), checkpoint=path), report)
    assert again.calls <= rest.calls
    assert Report.load(path) == report


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_check_can_be_interrupted_anywhere(tmp_path, method, share):
    options = {"method": method, "checkpoint": tmp_path / "long.json"}
    whole = Interrupting(bilinear)
    report = check(whole, wrong_backward, square_inputs(6), **options)
    options["checkpoint"].unlink()
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(bilinear, int(share * whole.calls)), wrong_backward, square_inputs(6), **options)
    rest = Interrupting(bilinear)
    assert equal_to_the_bit(check(rest, wrong_backward, square_inputs(6), **options), report)
    assert rest.calls <= whole.calls
    assert share < 0.5 or rest.calls < whole.calls


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_the_file_of_a_check_that_stops_before_anything_is_measured_is_no_report_of_success(tmp_path, stop):
    def stopped(x):
        if len(calls) > 8:  # in the midst of the probes
            raise stop
        calls.append(x)
        return np.sin(x)

    calls, path = [], tmp_path / "long.json"
    with pytest.raises(stop) as raised:
        check(stopped, lambda d, x: d * np.cos(x), {"x": normal(50)}, checkpoint=path)
    report = Report.load(path)
    assert not report.ok
    assert report["x"].verdict == "unfinished"
    with pytest.raises(GradientError):
        report.raise_if_failed()
    if stop is KeyboardInterrupt:
        assert raised.value.report == report
    assert check(np.sin, lambda d, x: d * np.cos(x), {"x": normal(50)}, checkpoint=path).ok


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
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


def test_what_is_done_outlasts_an_error_of_the_function(tmp_path):
    class Broken(Interrupting):
        def __call__(self, *arrays):
            try:
                return super().__call__(*arrays)
            except KeyboardInterrupt:
                raise MemoryError from None

    whole = Interrupting(bilinear)
    check(whole, bilinear_backward, square_inputs(10))
    options = {"checkpoint": tmp_path / "long.json"}
    with pytest.raises(MemoryError):
        check(Broken(bilinear, whole.calls - 20), bilinear_backward, square_inputs(10), **options)
    rest = Interrupting(bilinear)
    check(rest, bilinear_backward, square_inputs(10), **options)
    assert rest.calls < 0.75 * whole.calls


def test_a_check_goes_on_with_another_executor_and_another_memory_limit(interrupted):
    path, _ = interrupted
    report = check(bilinear, wrong_backward, square_inputs(10))
    copy = path.read_bytes()
    with ThreadPoolExecutor(2) as pool:
        assert check(bilinear, wrong_backward, square_inputs(10), checkpoint=path, executor=pool) == report
    path.write_bytes(copy)
    assert check(bilinear, wrong_backward, square_inputs(10), checkpoint=path, memory=50_000) == report


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": square_inputs(10) | {"y": 2 * square_inputs(10)["y"]}},
        {"inputs": {"x": square_inputs(10)["x"], "z": square_inputs(10)["y"]}},
        {"rng": 1},
        {"method": "central"},
        {"max_entries": 50},
        {"vectorized": ["x"]},
        {"forward": lambda x, y: bilinear(x, y) + 1},
    ],
)
def test_the_checkpoint_of_another_question_is_refused_and_left_alone(interrupted, other):
    path, _ = interrupted
    before = path.read_bytes()
    usual = {"forward": bilinear, "backward": wrong_backward, "inputs": square_inputs(10)}
    with pytest.raises(
        ValueError,
        match=rf"^checkpoint {re.escape(str(path))} belongs to another check, with other inputs, outputs, seed or "
        "options: remove it, or name another file$",
    ):
        check(**(usual | other), checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b'"x"', b"\xff\xfe\x00", b'{"format": "another"}', b"input  method\nx yes\n", b"null"],
)
def test_a_file_that_is_no_checkpoint_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"^checkpoint {re.escape(str(path))} is not the checkpoint of a gradient check$"
    ):
        check(bilinear, bilinear_backward, square_inputs(), checkpoint=path)
    assert path.read_bytes() == content


def test_a_saved_report_is_no_checkpoint_to_go_on_from(tmp_path):
    path = tmp_path / "report.json"
    check(bilinear, bilinear_backward, square_inputs()).save(path)
    with pytest.raises(ValueError, match=r"is not the checkpoint of a gradient check$"):
        check(bilinear, bilinear_backward, square_inputs(), checkpoint=path)


def test_a_file_cut_short_is_refused(interrupted):
    path, _ = interrupted
    content = path.read_bytes()
    for part in (0.1, 0.5, 0.99):
        path.write_bytes(content[: int(part * len(content))])
        with pytest.raises(ValueError, match=r"is not the checkpoint of a gradient check$"):
            check(bilinear, wrong_backward, square_inputs(10), checkpoint=path)


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path):
    forward = Interrupting(bilinear)
    path = tmp_path / "nowhere" / "long.json"
    with pytest.raises(ValueError, match=rf"^checkpoint {re.escape(str(path))}: there is no folder {path.parent}$"):
        check(forward, bilinear_backward, square_inputs(10), checkpoint=path)
    assert forward.calls < 10


def test_a_checkpoint_is_never_half_written(interrupted, monkeypatch):
    path, calls = interrupted
    before = path.read_bytes()

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        check(bilinear, wrong_backward, square_inputs(10), checkpoint=path)
    monkeypatch.undo()
    assert [file.name for file in path.parent.iterdir()] == ["long.json"]
    assert path.read_bytes() == before
    rest = Interrupting(bilinear)
    check(rest, wrong_backward, square_inputs(10), checkpoint=path)
    assert rest.calls < calls


class Terminal(io.StringIO):
    def __init__(self, attached=True):
        super().__init__()
        self.attached = attached

    def isatty(self):
        return self.attached


@pytest.fixture
def drawn(monkeypatch):
    """A function: what a check draws on standard error, where there is no patience. Pytest has its own outside."""
    monkeypatch.setattr(running, "PATIENCE", -1)
    monkeypatch.setenv("TERM", "xterm")

    def drawn(*, attached=True, **options):
        terminal = Terminal(attached)
        with contextlib.redirect_stderr(terminal):
            assert check(bilinear, bilinear_backward, square_inputs(6), **options).ok
        return terminal.getvalue()

    return drawn


def test_a_long_check_draws_its_progress_on_a_terminal(drawn):
    pytest.importorskip("rich")
    assert "checking gradients" in drawn()
    assert "checking gradients" in drawn(progress=True)


def test_nothing_is_drawn_where_nobody_watches_or_nobody_wants_it(drawn):
    assert not drawn(attached=False)
    assert not drawn(progress=False)


def test_a_short_check_draws_nothing(drawn, monkeypatch):
    monkeypatch.setattr(running, "PATIENCE", 5.0)
    assert not drawn()
    assert not drawn(progress=True)


def test_without_the_library_nothing_is_drawn_and_all_is_checked(drawn, monkeypatch):
    for module in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not drawn()
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
    check(bilinear, bilinear_backward, square_inputs(10), progress=True)
    with pytest.raises(KeyboardInterrupt):
        check(Interrupting(bilinear, 300), bilinear_backward, square_inputs(10), progress=True)
    assert [bar.stopped for bar in bars] == [True, True]


def test_a_long_check_is_kept_again_and_again_on_its_way(tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    sizes = []

    def forward(x):
        sizes.append(kept.stat().st_size if kept.exists() else 0)
        return np.sin(x)

    monkeypatch.setattr(saving, "SAVE_EVERY", 0.0)
    check(forward, lambda d, x: d * np.cos(x), {"x": normal(100)}, checkpoint=kept)
    assert len(set(sizes)) > 3


def test_the_bar_on_a_terminal_counts_to_the_number_of_entries(monkeypatch):
    added = []
    progress = pytest.importorskip("rich.progress")
    monkeypatch.setattr(progress.Progress, "add_task", lambda _, what, total: added.append((what, total)))
    monkeypatch.setattr(running, "PATIENCE", -1)
    monkeypatch.setattr(progress.Progress, "task_ids", (0,), raising=False)
    monkeypatch.setattr(progress.Progress, "update", lambda *_, **__: None)
    check(bilinear, bilinear_backward, square_inputs(3), progress=True)
    assert added == [("checking gradients", 18)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "longdouble"])
def test_a_question_with_another_last_digit_is_another_question(dtype):
    x = np.array([1.0, 2.0], dtype)
    assert saving.fingerprint([x]) == saving.fingerprint([x.copy()])
    assert saving.fingerprint([x]) != saving.fingerprint([np.nextafter(x, 3)])
    assert saving.fingerprint([x]) != saving.fingerprint([x.reshape(2, 1)])
