"""Many evaluations: here or on an executor, with a progress bar on a terminal, and without losing what is done."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Checkpoint", "fingerprint", "ignore", "run", "track"]

Array = npt.NDArray[Any]
Result = TypeVar("Result")

PATIENCE = 1.0  # seconds before a progress bar appears
SAVE_EVERY = 10.0  # seconds
FORMAT = "attention_np gradient check, 1"


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


def ignore(done: int) -> None:
    """Report nothing of the entries that are done."""


def fingerprint(parts: Iterable[Any]) -> str:
    """A digest by which a checkpoint is known to belong to the same question."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.tobytes() + repr((part.shape, part.dtype.str)).encode() if isinstance(part, np.ndarray) else part
        digest.update(data if isinstance(data, bytes) else repr(data).encode())
    return digest.hexdigest()


class Checkpoint:
    """A file that keeps the numerical slopes found so far, so that an interrupted check goes on where it was."""

    def __init__(self, path: str | os.PathLike[str], question: str) -> None:
        self.path = Path(path)
        self.question = question
        self.done: dict[str, list[Any]] = {}
        self.saved = time.monotonic()
        if self.path.exists():
            self.done = self._read()

    def _read(self) -> dict[str, list[Any]]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            form, question, done = found["format"], found["question"], found["done"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"checkpoint {self.path} is not the checkpoint of a gradient check") from None
        if form != FORMAT or not isinstance(done, dict):
            raise ValueError(f"checkpoint {self.path} is not the checkpoint of a gradient check")
        if question != self.question:
            raise ValueError(
                f"checkpoint {self.path} belongs to another check: other functions, inputs, seed or options; "
                "remove it, or name another file"
            )
        return done

    def get(self, key: str, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """The arrays that were kept under `key`, or None."""
        if key not in self.done:
            return None
        try:
            arrays = [np.array([float(n) for n in part], np.float64) for part in self.done[key]]
            return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
        except (TypeError, ValueError):
            raise ValueError(f"checkpoint {self.path} is damaged at {key}: remove it") from None

    def put(self, key: str, arrays: Iterable[Array]) -> None:
        """Keep `arrays` under `key`; the file is written now and then."""
        self.done[key] = [[repr(float(n)) for n in array.ravel()] for array in arrays]
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file; an older one stays whole until the new one is."""
        fresh = self.path.with_name(self.path.name + ".new")
        content: Mapping[str, Any] = {"format": FORMAT, "question": self.question, "done": self.done}
        fresh.write_text(json.dumps(content), encoding="utf-8")
        fresh.replace(self.path)
        self.saved = time.monotonic()
