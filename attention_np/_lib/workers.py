"""Who runs the tasks: this thread, threads of our own, or any executor."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, TypeVar

from attention_np._lib import blas, machine
from attention_np._lib.arguments import as_integer
from attention_np._lib.arrays import quiet

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Label = TypeVar("Label")
Task = TypeVar("Task")
Result = TypeVar("Result")


def as_workers(executor: Executor | None, workers: int | None) -> int:
    """How many tasks run at once, or with an executor how many are on their way at once."""
    if executor is not None:
        from concurrent.futures import Executor  # here and below: it takes as long to import as all of this package

        if not isinstance(executor, Executor):
            raise TypeError(f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}")
    if workers is not None:
        return as_integer("workers", workers, least=1)
    if executor is None and blas.controller() is None:
        return 1  # threads of ours that call a BLAS with threads of its own stand in each other's way
    return usable_cores()


@lru_cache
def usable_cores() -> int:
    """Those of the machine, or what a container or a quota leaves of them."""
    return machine.cores().usable


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    executor: Executor | None,
    workers: int,
    *,
    are_small: bool = False,
) -> None:
    """Call `function` for each task, and `consume` with its label and its result, in the order of the tasks.

    However many workers there are, results are consumed in one order, so sums over them have the same bits. No more
    than a few results for each worker are there at once.

    All of it is done in threads of our own. A signal reaches the main thread alone, so none can leave a lock taken or
    BLAS at one thread; an interrupted caller stops the threads, and waits for them. What `are_small`, the products of
    all tasks being so (:data:`attention_np._lib.blas.SMALL`), takes no lock, leaves BLAS as it is, and is done at once:
    to begin a thread would take longer. Where BLAS cannot be held to one thread, since a caller has set a limit of its
    own, its threads take the place of ours.
    """
    if are_small and executor is None:
        for label, task in tasks:
            consume(label, function(task))
        return
    call, over = _Call(), threading.Lock()

    def work() -> None:
        call.begun = True
        try:
            if not call.stopped:
                _run(function, tasks, consume, executor, workers, call)
        except BaseException as error:
            call.error = error
        call.over = True
        over.release()

    over.acquire()
    try:
        threading.Thread(target=work, name="attention_np").start()
        over.acquire()  # and not Thread.join, which may take a thread for dead when it is interrupted
    except BaseException:
        call.stopped = True
        while call.begun and not call.over:
            time.sleep(0.001)
        raise
    if call.error is not None:
        raise call.error


class _Call:
    """Where a call of :func:`run` is: set by one thread each, without a lock that an interrupt could leave taken."""

    stopped = begun = over = False
    error: BaseException | None = None


def _run(
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    executor: Executor | None,
    workers: int,
    call: _Call,
) -> None:
    with blas.one_thread() as is_held, quiet():  # NumPy's error state is each thread's own
        remaining = iter(tasks)
        first = list(islice(remaining, 2))
        tasks = chain(first, takewhile(lambda _: not call.stopped, remaining))
        if executor is not None:
            _run_in(executor, function, tasks, consume, 2 * workers + 1)
        elif workers == 1 or len(first) < 2 or not is_held:  # threads of BLAS and of ours stand in each other's way
            for label, task in tasks:
                consume(label, function(task))
        else:
            _run_here(function, tasks, consume, workers, call)


def _run_here(
    function: Callable[[Task], Result],
    tasks: Iterable[tuple[Label, Task]],
    consume: Callable[[Label, Result], None],
    workers: int,
    call: _Call,
) -> None:
    """Run in this thread and `workers` - 1 more, each of which takes the next task when it has done one.

    A thread that only handed out tasks would take the interpreter lock from those that work, at every task.
    """
    source, turn = enumerate(tasks), threading.Condition()
    ready: dict[int, tuple[Label, Result]] = {}
    due = 0

    def work() -> None:
        try:
            with quiet():
                take_turns()
        except BaseException:
            call.stopped = True
            raise
        finally:
            with turn:
                turn.notify_all()

    def take_turns() -> None:
        nonlocal due
        while True:
            with turn:
                taken = next(source, None)
                if taken is None:
                    return
                number, (label, task) = taken
                while number - due > 2 * workers and not call.stopped:
                    turn.wait()
                if call.stopped:
                    return
            result = function(task)
            with turn:
                ready[number] = label, result
                while due in ready:
                    consume(*ready.pop(due))
                    due += 1
                turn.notify_all()

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers - 1, thread_name_prefix="attention_np") as pool:
        try:
            others = [pool.submit(work) for _ in range(workers - 1)]
        except BaseException:  # as where no more threads can be started: those that were do no more than they must
            call.stopped = True
            raise
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
    with blas.one_thread(), quiet():  # this may be another process
        return function(task)
