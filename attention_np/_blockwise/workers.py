"""Who runs the tasks: this thread, threads of our own, or any executor; and BLAS held to one thread meanwhile."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeVar

from attention_np._arrays import as_integer, quiet

__all__ = ["as_workers", "one_blas_thread", "run"]

Label = TypeVar("Label")
Task = TypeVar("Task")
Result = TypeVar("Result")


def as_workers(executor: Executor | None, workers: int | None) -> int:
    """How many tasks run at once, or with an executor how many are on their way at once."""
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}")
    if workers is not None:
        return as_integer("workers", workers, least=1)
    if executor is None and _controller() is None:
        return 1  # threads of ours that call a BLAS with threads of its own stand in each other's way
    return _cores()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    executor: Executor | None,
    workers: int,
) -> None:
    """Call `function` for each task, and `consume` with its label and its result, in the order of the tasks.

    However many workers there are, results are consumed in one order, so sums over them have the same bits. No more
    than a few results for each worker are there at once.
    """
    with one_blas_thread(), quiet():
        remaining = iter(tasks)
        first = list(islice(remaining, 2))
        tasks = chain(first, remaining)
        if executor is not None:
            _run_in(executor, function, tasks, consume, 2 * workers + 1)
        elif workers == 1 or len(first) < 2:
            for label, task in tasks:
                consume(label, _call(function, task))
        else:
            with ThreadPoolExecutor(workers, thread_name_prefix="attention_np") as pool:
                _run_in(pool, function, tasks, consume, 2 * workers + 1)


def _run_in(
    pool: Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    at_once: int,
) -> None:
    pending: deque[tuple[Label, Future[Result]]] = deque()

    def take() -> None:
        label, future = pending.popleft()
        consume(label, future.result())

    try:
        for label, task in tasks:
            pending.append((label, pool.submit(_call, function, task)))
            if len(pending) >= at_once:
                take()
        while pending:
            take()
    finally:
        for _, future in pending:
            future.cancel()


def _call(function: Callable[[Task], Result], task: Task) -> Result:
    # Here again: this may be another process, and NumPy's error state is each thread's own.
    with one_blas_thread(), quiet():
        return function(task)


class _Hold:
    """How many calls want BLAS held in this process. The first holds it, the last lets go."""

    def __init__(self) -> None:
        self.lock, self.count, self.limit = threading.Lock(), 0, None

    def acquire(self, controller: Any) -> None:
        with self.lock:
            if self.count == 0:
                self.limit = controller.limit(limits=1, user_api="blas")
            self.count += 1

    def release(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                limit: Any = self.limit
                self.limit = None
                limit.restore_original_limits()


_hold = _Hold()


def _forget() -> None:
    global _hold
    _hold = _Hold()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # of the calls that hold it here none goes on in the child


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, if threadpoolctl is installed.

    The number of threads of a BLAS belongs to the process: while this lasts, products elsewhere in the process run on
    one thread too. Nested and concurrent uses count as one, and when the last ends the number is what it was.
    """
    controller = _controller()
    if controller is None:
        yield
        return
    hold = _hold
    hold.acquire(controller)
    try:
        yield
    finally:
        hold.release()


@lru_cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    return ThreadpoolController()  # kept: to look through all loaded libraries takes longer than a small problem
