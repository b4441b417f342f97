"""The slopes of many entries: here or on an executor, kept in a checkpoint, with a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import numpy as np

from attention_np.gradcheck.slopes.checkpoint import Checkpoint
from attention_np.gradcheck.slopes.methods import Array, Slopes, by_best_differences, by_complex_step, by_differences
from attention_np.gradcheck.slopes.moves import Subject, along_entries, sizes

METHODS = COMPLEX, CENTRAL = ("complex-step", "central")


@dataclass(frozen=True)
class Running:
    """Where and how to evaluate."""

    executor: Executor | None = None
    checkpoint: Checkpoint | None = None
    advance: Callable[[int], None] = lambda _: None

    @property
    def aside(self) -> Running:
        """For measurements that do not count as entries done."""
        return replace(self, checkpoint=None, advance=lambda _: None)


def measured(
    subject: Subject,
    elements: Array,
    method: str,
    running: Running,
    *,
    steps: Array | None = None,
    best: bool = False,
    key: str | None = None,
    keep: Callable[[Array, Slopes], None] | None = None,
) -> Slopes:
    """The slopes with respect to the entries whose flat indices are `elements`.

    Parameters
    ----------
    subject : Subject
    elements : ndarray of int
    method : {"complex-step", "central"}
    running : Running
    steps : ndarray, optional
        The step of each entry, for central differences.
    best : bool, optional
        Try all steps and keep the best, for central differences.
    key : str, optional
        The name under which a checkpoint keeps the results.
    keep : callable, optional
        Is given the results as they come in, with the entries that they belong to.
    """
    size = subject.rows  # moves that one task takes on, whoever carries it out
    starts = range(0, len(elements), size)
    chunks = [elements[start : start + size] for start in starts]
    some = [None if steps is None else steps[start : start + size] for start in starts]
    columns = len(subject.cotangents) + len(Slopes._fields) - 1
    kept = running.checkpoint if key else None
    parts: dict[int, Slopes] = {}

    def take(number: int, slopes: Slopes) -> None:
        parts[number] = slopes
        running.advance(len(chunks[number]))
        if keep:
            keep(chunks[number], slopes)

    for number, chunk in enumerate(chunks):
        found = kept.get(f"{key}/{size}/{number}", (len(chunk), columns)) if kept else None
        if found is not None:
            *others, _, _, _ = found.T
            take(number, Slopes(np.array(others).T, *found.T[-3:]))
    missing = [number for number in range(len(chunks)) if number not in parts]
    tasks = [partial(_slopes_of_entries, subject, chunks[k], method, some[k], best) for k in missing]
    for done, slopes in _in_turn(tasks, running.executor):
        take(missing[done], slopes)
        if kept:
            kept.put(f"{key}/{size}/{missing[done]}", np.column_stack(slopes))
    if not chunks:
        return Slopes(np.zeros((0, len(subject.cotangents))), *np.zeros((3, 0)))
    ordered = [parts[number] for number in range(len(chunks))]
    return Slopes(*(np.concatenate(column) for column in zip(*ordered, strict=True)))


def measured_along(
    subject: Subject, directions: Array, method: str, running: Running, steps: float | None = None
) -> Slopes:
    """The slopes along `directions`, (moves, *x.shape); by differences, at the best `steps` unless they are given."""
    each = None if steps is None else np.full(1, steps)
    tasks = [partial(_slopes, subject, v[None], method, each, False) for v in directions]
    parts = dict(_in_turn(tasks, running.executor))
    return Slopes(*(np.concatenate(column) for column in zip(*(parts[k] for k in range(len(tasks))), strict=True)))


def _slopes_of_entries(subject: Subject, elements: Array, method: str, steps: Array | None, best: bool) -> Slopes:
    found = _slopes(subject, along_entries(subject.x, elements), method, steps, best)
    size = sizes(subject.x).ravel()[elements]
    return found._replace(values=found.values / size[:, None], errors=found.errors / size)


def _slopes(subject: Subject, directions: Array, method: str, steps: Array | None, best: bool) -> Slopes:
    with np.errstate(all="ignore"):  # of a thread of its own, too
        if method == COMPLEX:
            return by_complex_step(subject, directions)
        if steps is not None:
            return by_differences(subject, directions, steps)
        return by_best_differences(subject, directions, all_steps=best)


def _in_turn(tasks: Sequence[Callable[[], Slopes]], executor: Executor | None) -> Iterator[tuple[int, Slopes]]:
    """The results of all tasks, each with its number, as they come in."""
    if executor is None:
        yield from ((number, task()) for number, task in enumerate(tasks))
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

    `show` None: on a terminal, if rich, which draws it, is installed.
    """
    shown = sys.stderr.isatty() if show is None else show
    if not shown or find_spec("rich") is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar, started = Progress(console=Console(stderr=True), transient=True), time.monotonic()
    task = bar.add_task(what, total=total)

    def advance(done: int) -> None:
        if not bar.live.is_started and time.monotonic() - started > 1:  # second
            bar.start()
        bar.update(task, advance=done)

    try:
        yield advance
    finally:
        bar.stop()
