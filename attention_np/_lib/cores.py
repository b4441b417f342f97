"""A core for each worker, where the workers are as many as the cores.

Threads that take turns in the interpreter wake one another, and a scheduler may put the one that wakes beside the one
that woke it: on Linux two workers were seen to share a core for ten milliseconds while the other one was idle, which is
as long as a small problem takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Before(threading.local):
    """Where a thread that keeps to some cores could run before."""

    cores: set[int] | None = None


_before = _Before()


def of_workers(workers: int) -> list[set[int] | None]:
    """The cores that each worker may use; None: as before."""
    try:
        usable = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # other systems do not tell
        return [None] * workers
    return [{core} for core in usable] if len(usable) == workers else [None] * workers


@contextmanager
def keep_to(cores: set[int] | None) -> Iterator[None]:
    """Run this thread on `cores` only. Afterwards, and in a child that it forks, it may run where it could before."""
    if cores is None:
        yield
        return
    with suppress(OSError):  # the system may refuse it, here and below, and nothing is lost
        _before.cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        move_back()


def move_back() -> None:
    """Let this thread run where it could before."""
    before, _before.cores = _before.cores, None
    if before is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, before)
