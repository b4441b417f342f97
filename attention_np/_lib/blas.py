"""BLAS held to one thread while calls last, in this process and in those that are forked from it meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

SECONDS_TO_LET_GO = 1.0  # a thousand times what it takes
SMALL = 2**12  # the product of any two sizes of a product that a BLAS does in one thread: OpenBLAS from 9216 in several


class _Hold:
    """How many calls want BLAS held in this process. The first holds it, the last lets go.

    threadpoolctl lets the limit of a process be set by one thread only, and lifted by that thread only. So when the
    thread that set it leaves before others, a thread that does nothing else takes its place until the last has left.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # that of a thread which forks while it has it, in a handler of a signal
        self.calls = self.own = 0  # those of all threads, and of the thread that holds
        self.holder: int | None = None  # that thread; None: it is the one that waits for `left`
        self.limit: Any = None
        self.left = threading.Event()
        self.keeper: threading.Thread | None = None

    def acquire(self, libraries: Any) -> None:
        with self.lock:
            if self.calls == 0:
                self.limit = _limit(libraries)
                self.limit.__enter__()
                self.holder = threading.get_ident()
            self.calls += 1
            self.own += self.holder == threading.get_ident()

    def release(self, libraries: Any) -> None:
        with self.lock:
            self.calls -= 1
            if self.holder == threading.get_ident():
                self.own -= 1
                if self.own:
                    return
                self.holder = None
                self.limit.__exit__(None, None, None)
                if self.calls:
                    self._hand_over(libraries)
            elif self.calls == 0 and self.keeper is not None:
                self.left.set()
                self.keeper.join()
                self.keeper = None

    def _hand_over(self, libraries: Any) -> None:
        taken = threading.Event()
        errors: list[BaseException] = []

        def keep() -> None:
            try:
                self.limit = _limit(libraries)
                with self.limit:
                    taken.set()
                    self.left.wait()
            except BaseException as error:
                errors.append(error)
            finally:
                taken.set()

        self.left.clear()
        keeper = threading.Thread(target=keep, name="attention_np_blas", daemon=True)
        keeper.start()
        taken.wait()
        if errors:  # the other calls go on, and nobody holds BLAS for them
            raise errors[0]
        self.keeper = keeper


def _limit(libraries: Any) -> Any:
    return libraries.limit(limits=1, user_api="blas")


_hold = _Hold()


def _before_fork() -> None:
    _hold.lock.acquire()  # between two numbers of threads there is no telling which to go back to


def _after_fork() -> None:
    _hold.lock.release()


def _after_fork_in_child() -> None:
    """Let BLAS go in the child: the calls that hold it go on in the parent alone."""
    global _hold
    held, _hold = _hold, _Hold()
    held.lock.release()
    if not held.calls:
        return
    if held.holder == threading.get_ident():
        held.limit.__exit__(None, None, None)
        return
    # Another thread held it, and the threads of that call may have been inside BLAS, with a lock of it that nobody
    # unlocks in the child. A child that never uses BLAS must not wait for it.
    helper = threading.Thread(target=_let_go, args=(_hold, held.limit), name="attention_np_blas", daemon=True)
    helper.start()
    helper.join(SECONDS_TO_LET_GO)


def _let_go(hold: _Hold, limit: Any) -> None:
    with hold.lock, limit:  # to enter it sets nothing: who ends it must have begun it, in threadpoolctl's books
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@contextmanager
def one_thread() -> Iterator[bool]:
    """Hold BLAS to one thread, if threadpoolctl is installed; whether it has one, as far as that is known.

    The number of threads of a BLAS belongs to the process: while this lasts, products elsewhere in the process run on
    one thread too. Nested and concurrent uses count as one, and when the last ends the number is what it was. A limit
    that a living thread has set by threadpoolctl, as around the call, stays: threadpoolctl heeds no other thread then.
    """
    libraries = controller()
    if libraries is None:
        yield True
        return
    hold = _hold
    hold.acquire(libraries)
    try:
        yield all(library.num_threads == 1 for library in libraries.lib_controllers if library.user_api == "blas")
    finally:
        hold.release(libraries)


@lru_cache
def controller() -> Any:
    """What sets the threads of BLAS; None if threadpoolctl is not installed."""
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    return ThreadpoolController()  # kept: to look through all loaded libraries takes longer than a small problem
