"""Who does the tasks: the results do not tell, errors come out, and no more is begun than is needed."""

import multiprocessing
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest
from _blockwise.calls import AtOnce, assert_expected_bits, failing, results
from helpers import Array, Patch, assert_alike, assert_same_bits, each, normal

from attention_np import blockwise, rules
from attention_np._lib import blas, workers


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        yield pool


@each("count", [2], long=[3, 7])
def test_the_bits_do_not_depend_on_the_number_of_workers(count: int) -> None:
    assert_expected_bits(workers=count)


def test_the_bits_do_not_depend_on_the_executor(processes: Executor) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert_expected_bits(executor=pool)
        assert_expected_bits(executor=pool, workers=1)
    assert_expected_bits(executor=processes)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_the_bits_do_not_depend_on_a_cluster() -> None:
    distributed = pytest.importorskip("distributed", reason="a cluster needs Dask: pip install distributed")
    with (
        distributed.LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_expected_bits(executor=client.get_executor())


def test_a_rule_may_itself_use_attention() -> None:
    x = normal(0, 600, 3)

    class Inner(rules.Rule):
        def block(self, rows: slice, columns: slice) -> Array:
            output, cache = blockwise.forward(x, x[:, ::-1], x, workers=1)
            gradient = blockwise.backward(output, cache, workers=1).key
            return np.add.outer(gradient[rows, 0], gradient[columns, 1]) > -0.1

    inputs = {"query": x, "key": x, "value": x}
    inner = results(blockwise, inputs, mask=Inner(), block_size=(200, 300))
    known = rules.whole(Inner().block(slice(0, 600), slice(0, 600)))
    expected = results(blockwise, inputs, mask=known, block_size=(200, 300))
    for (name, array), (_, other) in zip(inner.items(), expected.items(), strict=True):
        assert_alike(array, other, 1e-14, name)


@each("count", [1, 2])
def test_an_error_in_a_task_is_raised_and_leaves_no_task_behind(count: int) -> None:
    x = normal(0, 8, 600, 4)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no third block"):
        blockwise.forward(x, x, x, mask=failing(), workers=count)
    assert threading.active_count() <= before  # one of another test may have ended meanwhile


def test_no_more_results_wait_than_a_few_for_each_worker() -> None:
    alive, most = 0, 0

    class Eager(AtOnce):
        def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            future = super().submit(function, *args)
            get = future.result

            def result(timeout: float | None = None) -> Any:
                nonlocal alive
                alive -= 1
                return get(timeout)

            future.result = result  # type: ignore[method-assign]
            return future

    x = normal(0, 40, 512, 2)
    blockwise.forward(x, x, x, executor=Eager(), workers=2)
    assert alive == 0
    assert most == 5  # two for each worker, and the one that is due


def test_an_executor_runs_the_tasks_of_every_pass() -> None:
    query, key, value = normal(0, 4, 2), normal(1, 5, 2), normal(2, 5, 3)
    passes = [AtOnce() for _ in range(4)]
    output, cache = blockwise.forward(query, key, value, executor=passes[0])
    blockwise.backward(output, cache, executor=passes[1])
    blockwise.jvp(cache, query=query, executor=passes[2])
    assert [x.tasks for x in passes] == [1, 1, 1, 0]
    query[2] *= 1e20  # its log-sum-exp is too coarse
    output, cache = blockwise.forward(query, key, value)
    blockwise.backward(output, cache, executor=passes[3])
    assert passes[3].tasks == 2


def test_no_pass_over_two_small_heads_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_run_here", None)
    query, key, value = normal(0, 2, 4, 2), normal(1, 2, 5, 2), normal(2, 2, 5, 3)
    output, cache = blockwise.forward(query, key, value, workers=2)
    gradients = blockwise.backward(output, cache, workers=2)
    blockwise.jvp(cache, query=query, workers=2)
    blockwise.double_backward(gradients, output, cache, workers=2)


@each("count", [2, 3])
def test_no_thread_runs_far_ahead_of_the_results(count: int) -> None:
    begun, go_on = set(), threading.Event()

    def work(number: int) -> int:
        begun.add(number)
        if number == 0:
            assert go_on.wait(60)
        return number

    def look() -> None:
        for _ in range(2000):
            if len(begun) > 2 * count:
                break
            time.sleep(0.01)
        time.sleep(0.2)  # the next would begin at once
        ahead.extend(sorted(begun))
        go_on.set()

    ahead: list[int] = []
    done: list[int] = []
    looking = threading.Thread(target=look)
    looking.start()
    workers.run(work, ((i, i) for i in range(40)), lambda _, number: done.append(number), None, count)
    looking.join()
    assert ahead == list(range(2 * count + 1))
    assert done == list(range(40))


def test_after_an_error_no_more_tasks_begin() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise RuntimeError("no")
        time.sleep(0.002)

    with pytest.raises(RuntimeError, match="no"):
        workers.run(work, ((i, i) for i in range(500)), lambda *_: None, None, 2)
    assert len(begun) < 250


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "negative scale": {"scale": -0.3},
    "out of the range of unshifted exponentials": {"scale": 30.0},
    "dropout": {"dropout_p": 0.2, "rng": 1},
    "bias": {"bias": normal(9, 1, 700)},
}


def of_all_passes(query: Array, key: Array, value: Array, d_output: Array, **options: Any) -> list[Array]:
    how = {name: options.pop(name) for name in ("executor", "workers") if name in options}
    output, cache = blockwise.forward(query, key, value, **options, **how)
    gradients = blockwise.backward(d_output, cache, **how)
    tangent = blockwise.jvp(cache, query=key, key=query, value=value, **how)
    return [output, cache.logsumexp, tangent, *(x for x in gradients if x is not None)]


@each("with_nan", [True], long=[False])
@each("name", ["dropout"], long=OPTIONS)
def test_one_array_for_all_gives_the_bits_of_four_copies_here_and_in_another_process(
    name: str, with_nan: bool, processes: Executor
) -> None:
    x = normal(0, 700, 8)
    if with_nan:
        x[3, 0] = np.nan
    expected = of_all_passes(*(x.copy() for _ in range(4)), **OPTIONS[name], workers=1)
    here = of_all_passes(x, x, x, x, **OPTIONS[name], workers=1)
    elsewhere = of_all_passes(x, x, x, x, **OPTIONS[name], executor=processes)
    for found in (here, elsewhere):
        for array, other in zip(found, expected, strict=True):
            assert_same_bits(array, other)


def test_sums_over_tasks_raise_no_warning_in_any_thread() -> None:
    query, key = normal(0, 8, 600, 8), normal(1, 600, 8)
    d_output = np.ones((8, 600, 8))
    d_output[0, 3], d_output[1:, 5] = np.inf, -np.inf
    _, cache = blockwise.forward(query, key, key, workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            gradients = blockwise.backward(d_output, cache, workers=2)
    assert np.isnan(gradients.value).any()


def interrupted_at(line: int, run: Any) -> bool:
    """Whether `run` is over before it comes to that many lines of the module; at the last it is interrupted."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != workers.__file__:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        run()
        return True
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(None)


def threads_of_blas() -> list[int]:
    return [library["num_threads"] for library in blas.controller().info()]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is begun in the background ignores interrupts, and so do the tests in it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@each("count", [1, 2])
def test_an_interrupt_at_any_line_leaves_blas_the_caller_and_the_threads_as_they_were(
    count: int, monkeypatch: Patch
) -> None:
    """In the threads that work nothing is ever interrupted: a signal reaches the main thread alone."""
    at_work, run = [False], workers._run

    def watched(*args: Any) -> None:
        at_work.append(True)
        run(*args)
        at_work.append(False)

    monkeypatch.setattr(workers, "_run", watched)
    x = normal(0, 4, 600, 3)
    expected, before = blockwise.forward(x, x, x)[0], threads_of_blas()
    lines, over = 0, False
    while not over:
        lines += 1
        over = interrupted_at(lines, lambda: blockwise.forward(x, x, x, workers=count))
        seen = [*at_work]
        assert not seen[-1], lines
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("attention_np")]
        for thread in ours:  # at high load one whose call is over takes a while to end
            thread.join(60)
        assert not any(thread.is_alive() for thread in ours), lines
        assert at_work == seen, lines  # and no work is begun afterwards
        assert threads_of_blas() == before, lines
        assert_same_bits(blockwise.forward(x, x, x, workers=count)[0], expected)
    assert lines > 5


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_call_long_before_its_tasks() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as the system sends it
        time.sleep(0.01)
        return number

    for count in (1, 2):
        done.clear()
        with pytest.raises(KeyboardInterrupt):
            workers.run(work, ((i, i) for i in range(1000)), lambda _, number: done.append(number), None, count)
        assert done == list(range(len(done)))
        assert len(done) < 100
