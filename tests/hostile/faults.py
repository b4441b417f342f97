"""Faults on purpose: the n-th call of some functions fails, for n = 1, 2, ..., until a run has met none."""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from helpers import Patch

Places = Mapping[tuple[Any, str], Callable[[], BaseException]]  # functions by owner and name, and what each raises
SECONDS = 60.0  # a thousand times what a run takes: after these it waits for something that never comes


class Raw(io.FileIO):
    """A file that takes half of what it is given at a time, as a disk that is nearly full: of Python, to be patched."""

    def write(self, content: Any, /) -> int:
        half = memoryview(content).nbytes // 2 + 1
        return int(super().write(memoryview(content)[:half]) or 0)


def opened(file: Any, mode: str = "r", *others: Any, opener: Any = None, **how: Any) -> Any:
    """As the built-in ``open``; what is written goes through :meth:`Raw.write`."""
    if not {"w", "x"} & set(mode):
        return open_of_python(file, mode, *others, opener=opener, **how)
    stream = io.BufferedWriter(Raw(file, mode.replace("b", ""), opener=opener))
    return stream if "b" in mode else io.TextIOWrapper(stream, encoding=how.get("encoding"))


open_of_python = builtins.open


class Faults:
    """How many of the calls were made so far, and what the one that failed raised."""

    calls = 0
    raised: BaseException | None = None


@contextmanager
def failing(number: int, places: Places) -> Iterator[Faults]:
    """Let call `number` of all calls of the functions at `places` fail, in whatever thread it is."""
    faults, lock = Faults(), threading.RLock()

    def at(function: Any, error: Callable[[], BaseException]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with lock:
                faults.calls += 1
                if faults.calls == number:
                    faults.raised = error()
                    raise faults.raised
            return function(*arguments, **options)

        return call

    with Patch.context() as patch:
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)  # pathlib's
        for (owner, name), error in places.items():
            patch.setattr(owner, name, at(getattr(owner, name), error))
        yield faults


def at_each(places: Places, run: Callable[[], Any], look: Callable[[int, BaseException | None], None]) -> int:
    """Run with a fault at each call in turn, and `look` after each, at what the run raised; how many there were.

    A run that catches its fault, and gives what it should, is as good as one that raises it. A run that does not end
    is an error.
    """

    def once(number: int) -> None:
        try:
            with failing(number, places) as faults:
                run()
        except BaseException as error:
            outcome.append((faults, error))
        else:
            outcome.append((faults, None))

    for number in count(1):
        outcome: list[tuple[Faults, BaseException | None]] = []
        thread = threading.Thread(target=once, args=(number,), daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert outcome, f"with a fault at call {number} the run does not end"
        ((faults, error),) = outcome
        chain = error
        while chain is not None and chain is not faults.raised:
            chain = chain.__cause__ or chain.__context__
        if error is not None and chain is None:
            raise AssertionError(f"the fault at call {number}, {faults.raised!r}, became {error!r}") from error
        look(number, error)
        if faults.raised is None:
            return number - 1
    raise AssertionError
