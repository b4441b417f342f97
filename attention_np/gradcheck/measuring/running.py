"""Many evaluations: here or on an executor, and a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from attention_np.gradcheck.saving import Checkpoint

__all__ = ["MEMORY", "Running", "ignore", "run", "track"]

Result = TypeVar("Result")

MEMORY = 2**28  # bytes that a batch of moves may take
PATIENCE = 1.0  # seconds before a progress bar appears


def ignore(done: int) -> None:
    """Report nothing of the entries that are done."""


@dataclass(frozen=True)
class Running:
    """Where and how to evaluate."""

    executor: Executor | None = None
    memory: int = MEMORY
    checkpoint: Checkpoint | None = None
    advance: Callable[[int], None] = ignore


def run(tasks: Sequence[Callable[[], Result]], executor: Executor | None) -> Iterator[tuple[int, Result]]:
    """The results of all tasks, each with its number, as they come in."""
    if executor is None:
        for number, task in enumerate(tasks):
            yield number, task()
        return
    futures = {executor.submit(task): number for number, task in enumerate(tasks)}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


@contextmanager
def track(total: int, what: str, show: bool | None) -> Iterator[Callable[[int], None]]:
    """A function to report entries done to; it draws a progress bar if the check is long and somebody is watching.

    `show` None: on a terminal, if the library that draws it is installed.
    """
    bar: Any = None
    started = time.monotonic()
    if show is None:
        show = sys.stderr.isatty()

    def advance(done: int) -> None:
        nonlocal bar, total
        if show and bar is None and time.monotonic() - started > PATIENCE:
            bar = _bar(what, total)
        total -= done
        if bar:
            bar.update(bar.task_ids[0], advance=done)

    try:
        yield advance
    finally:
        if bar:
            bar.stop()


def _bar(what: str, total: int) -> Any:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return False
    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
