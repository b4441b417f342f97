"""Forked processes that say how far they are."""

import os
import resource
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

CONTEXT: Any = get_context("fork")
PATIENCE = 120  # seconds that a process may say nothing: it waits for a lock that nobody opens


class Child:
    """A forked process that does `work` in silence, and the last thing that it said through its connection."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.connection, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_silently, args=(work, theirs))
        self.process.start()
        theirs.close()
        self.said, self.seconds = "", 0.0
        self._start, self._idle = time.monotonic(), 0

    def is_stuck(self) -> bool:
        """Whether it has said nothing for long; to be asked about once a second."""
        said = self.said
        self._listen()
        self._idle = self._idle + 1 if said == self.said else 0
        return self._idle > PATIENCE

    def end(self) -> int:
        """Its exit code, as in `multiprocessing`: negative for a signal."""
        if self.is_stuck():
            self.process.kill()
        self.process.join()
        self._listen()
        self.connection.close()
        self.seconds = time.monotonic() - self._start
        return int(self.process.exitcode)

    def _listen(self) -> None:
        try:
            while self.connection.poll():
                self.said = self.connection.recv_bytes().decode()
        except EOFError:
            pass


def _silently(work: Callable[[Connection], None], connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    work(connection)
