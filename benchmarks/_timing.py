"""Runs timed in turn, so that whatever changes on the machine meanwhile changes for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time, sleep
from typing import NamedTuple, TypeVar

import numpy as np

__all__ = ["Spread", "cores", "interleaved", "settle", "spread"]

Name = TypeVar("Name")


class Spread(NamedTuple):
    """A measured number: its median, its quartiles and the least that was seen."""

    median: float
    lower: float
    upper: float
    least: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of repeated measurements."""
    lower, median, upper = np.percentile(values, [25, 50, 75])
    return Spread(float(median), float(lower), float(upper), float(min(values)))


def cores() -> int:
    """How many cores this process may run on; `taskset` gives it fewer."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def interleaved(
    runs: Mapping[Name, Callable[[], object]], rounds: int, *, calls: int = 1, warm: bool = True
) -> dict[Name, list[float]]:
    """The seconds that a call of each run takes, one number a round.

    Parameters
    ----------
    runs : mapping of name to function
        All are run in each round, one after the other; each round begins one further along.
    rounds : int
    calls : int, optional
        How many calls are timed together; their mean counts.
    warm : bool, optional
        Whether each turn begins with a call that is not timed.

    Returns
    -------
    dict of name to list of float
    """
    names = list(runs)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            run = runs[name]
            settle()
            if warm:
                run()
            start = perf_counter()
            for _ in range(calls):
                run()
            times[name].append((perf_counter() - start) / calls)
    return times


def settle() -> None:
    """Wait, a second at most, until no thread of this process runs.

    The threads of OpenBLAS turn for 0.1 s after a product before they sleep, on a core that the next run wants.
    """
    end = perf_counter() + 1
    while perf_counter() < end:
        before = process_time()
        sleep(0.005)
        if process_time() - before < 0.001:
            return
