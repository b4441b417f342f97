"""Blockwise attention on a Dask cluster of local processes beside one process, and how many bytes go to and fro.

From the root of the repository:

    python -m benchmarks.cluster [--n N] [--heads H] [--workers W] [--rounds R] [--json FILE]

Bytes are counted where they are handed over: a task and its arguments as they are pickled, and its result. "shares" is
the other way: each process holds a share of the keys and values, gets all queries, and sends its output and its
log-sum-exp, which `blockwise.merge` puts together.
"""

from __future__ import annotations

import argparse
import functools
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from attention_np import blockwise
from benchmarks._command_line import add_json, console, count, store
from benchmarks._contenders import Array, Inputs, random_inputs
from benchmarks._machine import blas_threads, describe
from benchmarks._timing import cores, interleaved

ROUNDS = 5


class Counting(Executor):
    """An executor that hands all on to another, and counts tasks and bytes."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.tasks = self.sent = self.received = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The same future; what it gives is counted when it is there."""
        self.tasks += 1
        self.sent += len(pickle.dumps((function, args, kwargs), protocol=5))
        future = self.executor.submit(function, *args, **kwargs)
        future.add_done_callback(self._count)
        return future

    def _count(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.received += len(pickle.dumps(future.result(), protocol=5))


def forward(inputs: Inputs, **options: Any) -> tuple[Array, ...]:
    """The output alone."""
    output, _ = blockwise.forward(*inputs[:3], **options)
    return (output,)


def both(inputs: Inputs, **options: Any) -> tuple[Array, ...]:
    """The output and three gradients."""
    output, cache = blockwise.forward(*inputs[:3], **options)
    return output, *blockwise.backward(inputs.d_output, cache, **options)[:3]


def of_share(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Attention over a share of the keys: what a process sends."""
    output, cache = blockwise.forward(query, key, value, workers=1)
    return output, cache.logsumexp


def shares(inputs: Inputs, executor: Executor, workers: int) -> tuple[Array, ...]:
    """The output, of as many shares of the keys as there are processes."""
    of_keys = zip(*(np.array_split(x, workers, axis=-2) for x in (inputs.key, inputs.value)), strict=True)
    futures = [executor.submit(of_share, inputs.query, key, value) for key, value in of_keys]
    return (functools.reduce(blockwise.merge, (future.result() for future in futures))[0],)


@contextmanager
def cluster(workers: int) -> Iterator[Executor]:
    """Processes of Dask on this machine, a thread each."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=workers, processes=True, threads_per_worker=1, dashboard_address=None
        ) as processes,
        distributed.Client(processes) as client,
    ):
        yield client.get_executor(pure=False)


def main() -> None:
    """Time all ways in turn, count, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="cluster", description="Blockwise attention on a cluster of processes")
    for name, default in (("n", 2048), ("heads", 8), ("workers", 2), ("rounds", ROUNDS)):
        parser.add_argument(f"--{name}", type=count, default=default, help="default: %(default)s")
    add_json(parser, "cluster")
    options = parser.parse_args()
    inputs = random_inputs((options.heads, options.n, 64), "float32")
    expected, rows = both(inputs), []
    with blas_threads(cores()), cluster(options.workers) as executor:
        counting = {name: Counting(executor) for name in ("forward", "forward + backward", "shares, forward")}
        ways = {
            "forward": lambda executor: forward(inputs, executor=executor),
            "forward + backward": lambda executor: both(inputs, executor=executor),
            "shares, forward": lambda executor: shares(inputs, executor, options.workers),
        }
        for name, way in ways.items():
            for x, y in zip(way(counting[name]), expected, strict=False):
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(y).max())
        alone = {"forward": lambda: forward(inputs), "forward + backward": lambda: both(inputs)}
        runs = {(name, "cluster"): functools.partial(way, executor) for name, way in ways.items()}
        times = interleaved({**runs, **{(name, "one"): run for name, run in alone.items()}}, options.rounds)
        for name, of in counting.items():
            one = 1000 * min(times[name.removeprefix("shares, "), "one"])
            row = {"way": name, "one process": one, "cluster": 1000 * min(times[name, "cluster"])}
            rows.append({**row, "tasks": of.tasks, "sent": of.sent, "received": of.received})
        machine = describe("distributed")
    table = Table(box=box.SIMPLE_HEAD, title="float32: milliseconds, the least, and bytes")
    for header in rows[0]:
        table.add_column(header, justify="left" if header == "way" else "right")
    for row in rows:
        table.add_row(*(f"{x:,.0f}" if isinstance(x, float | int) else x for x in row.values()))
    console().print(table)
    sizes = {name: getattr(options, name) for name in ("n", "heads", "workers", "rounds")}
    store(options.json, {"machine": machine, **sizes, "rows": rows})


if __name__ == "__main__":
    main()
