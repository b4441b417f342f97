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

from attention_np import _machine
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
    return _usable_cores()


@lru_cache
def _usable_cores() -> int:
    return _machine.cores().usable


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
            _run_here(function, tasks, consume, workers)


def _run_here(
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    workers: int,
) -> None:
    """Run in this thread and `workers` - 1 more, each of which takes the next task when it has done one.

    A thread that only handed out tasks would take the interpreter lock from those that work, at every task.
    """
    source, turn = enumerate(tasks), threading.Condition()
    ready: dict[int, tuple[Label, Result]] = {}
    due = 0
    stopped = False

    def work() -> None:
        nonlocal due, stopped
        try:
            while True:
                with turn:
                    taken = next(source, None)
                    if taken is None or stopped:
                        return
                    number, (label, task) = taken
                    while number - due > 2 * workers and not stopped:
                        turn.wait()
                result = _call(function, task)
                with turn:
                    ready[number] = label, result
                    while due in ready:
                        consume(*ready.pop(due))
                        due += 1
                    turn.notify_all()
        except BaseException:
            with turn:
                stopped = True
                turn.notify_all()
            raise

    with ThreadPoolExecutor(workers - 1, thread_name_prefix="attention_np") as pool:
        others = [pool.submit(work) for _ in range(workers - 1)]
        work()
    for other in others:
        other.result()


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
    """How many calls want BLAS held in this process. The first holds it, the last lets go.

    threadpoolctl lets the limit of a process be set by one thread only, and lifted by that thread only. So when the
    thread that set it leaves before others, a thread that does nothing else takes its place until the last has left.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = self.own = 0  # those of all threads, and of the thread that holds
        self.holder: int | None = None  # that thread; None: it is the one that waits for `left`
        self.limit: Any = None
        self.left = threading.Event()
        self.keeper: threading.Thread | None = None

    def acquire(self, controller: Any) -> None:
        with self.lock:
            if self.calls == 0:
                self.limit = _limit(controller)
                self.limit.__enter__()
                self.holder = threading.get_ident()
            self.calls += 1
            self.own += self.holder == threading.get_ident()

    def release(self, controller: Any) -> None:
        with self.lock:
            self.calls -= 1
            if self.holder == threading.get_ident():
                self.own -= 1
                if self.own:
                    return
                self.holder = None
                self.limit.__exit__(None, None, None)
                if self.calls:
                    self._hand_over(controller)
            elif self.calls == 0 and self.keeper is not None:
                self.left.set()
                self.keeper.join()
                self.keeper = None

    def _hand_over(self, controller: Any) -> None:
        taken = threading.Event()

        def keep() -> None:
            with _limit(controller):
                taken.set()
                self.left.wait()

        self.left.clear()
        self.keeper = threading.Thread(target=keep, name="attention_np_blas", daemon=True)
        self.keeper.start()
        taken.wait()


def _limit(controller: Any) -> Any:
    return controller.limit(limits=1, user_api="blas")


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
        hold.release(controller)


@lru_cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    return ThreadpoolController()  # kept: to look through all loaded libraries takes longer than a small problem
