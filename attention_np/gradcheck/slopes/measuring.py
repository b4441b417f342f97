"""The slopes of many entries: here or on an executor, kept in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from functools import partial
from typing import NamedTuple

import numpy as np

from attention_np._lib.arrays import Array
from attention_np.gradcheck.slopes.checkpoint import Checkpoint
from attention_np.gradcheck.slopes.methods import Slopes, by_best_differences, by_complex_step, by_differences
from attention_np.gradcheck.slopes.moves import Subject, entry_directions, flattened

METHODS = COMPLEX, CENTRAL = ("complex-step", "central")


def as_method(method: str) -> str:
    """`method`, refused if it is none."""
    if method not in ("auto", *METHODS):
        raise ValueError(f"method must be 'auto', {' or '.join(map(repr, METHODS))}, not {method!r}")
    return method


class Running(NamedTuple):
    """Where and how to evaluate."""

    executor: Executor | None = None
    checkpoint: Checkpoint | None = None


def measured(
    subject: Subject,
    elements: Array,
    method: str,
    running: Running,
    *,
    steps: Array | None = None,
    best: bool = False,
    key: str | None = None,
) -> Slopes:
    """The slopes with respect to the entries whose flat indices are `elements`.

    By differences, at the `steps` that are given for each, or at the `best` of all. A checkpoint keeps them by `key`.
    """
    size = subject.rows  # moves that one task takes on, whoever carries it out
    starts = range(0, len(elements), size)
    chunks = [elements[start : start + size] for start in starts]
    some = [None if steps is None else steps[start : start + size] for start in starts]
    columns = len(subject.cotangents) + len(Slopes._fields) - 1
    kept = running.checkpoint if key else None
    parts: dict[int, Slopes] = {}

    for number, chunk in enumerate(chunks):
        stored = kept.get(f"{key}/{size}/{number}", (len(chunk), columns)) if kept else None
        if stored is not None:
            cotangents = len(subject.cotangents)
            parts[number] = Slopes(stored[:, :cotangents], *stored[:, cotangents:].T)
    missing = [number for number in range(len(chunks)) if number not in parts]
    tasks = [partial(_slopes_of_entries, subject, chunks[k], method, some[k], best) for k in missing]
    for done, slopes in _in_turn(tasks, running.executor):
        parts[missing[done]] = slopes
        if kept:
            kept.put(f"{key}/{size}/{missing[done]}", np.column_stack(slopes))
    if not chunks:
        return Slopes(np.zeros((0, len(subject.cotangents))), *np.zeros((len(Slopes._fields) - 1, 0)))
    ordered = [parts[number] for number in range(len(chunks))]
    return Slopes(*(np.concatenate(column) for column in zip(*ordered, strict=True)))


def directional_slopes(subject: Subject, directions: Array, method: str, running: Running) -> Slopes:
    """The slopes along `directions`, (moves, *x.shape); by differences, at the best steps."""
    tasks = [partial(_slopes, subject, v[None], method, None, False) for v in directions]
    parts = dict(_in_turn(tasks, running.executor))
    return Slopes(*(np.concatenate(column) for column in zip(*(parts[k] for k in range(len(tasks))), strict=True)))


def _slopes_of_entries(subject: Subject, elements: Array, method: str, steps: Array | None, best: bool) -> Slopes:
    directions = entry_directions(subject.x, elements)
    slopes = _slopes(subject, directions, method, steps, best)
    size = flattened(directions)[np.arange(len(elements)), elements]
    return slopes._replace(values=slopes.values / size[:, None], errors=slopes.errors / size)


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
