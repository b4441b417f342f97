"""What a sliding window and a selection cost: beside full attention, and as the length and the window grow.

From the root of the repository:

    python -m benchmarks.window [--n N] [--window W] [--rounds R] [--json FILE]

Blockwise attention, forward and backward, one head of 64, float32. In a window of w each query attends to itself and
the w - 1 keys before it. Full attention at the default length takes a minute, and is timed once.

A selection is of blocks of keys, at an eighth of the length; neighbours select the same blocks, so that whole blocks of
scores are looked at by nobody. How much of its time falls with its share of the blocks is what is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from attention_np import blockwise, rules
from benchmarks._command_line import add_json, console, count, store
from benchmarks._contenders import random_inputs
from benchmarks._machine import describe
from benchmarks._timing import interleaved, spread

N, WINDOW, HEAD, ROUNDS = 65536, 256, 64, 5
LEAST = 50  # times faster than full
SHARES = (1.0, 0.5, 0.25, 0.125)  # of the blocks that are selected
SELECTED = 512  # keys in a block, and queries that select alike
MOST = 1.5  # times as long as the share of a selection says


def run(n: int, window: int | None) -> Callable[[], object]:
    """Forward and backward over n queries and keys; without a window, of all to all."""
    return under(n, None if window is None else rules.sliding_window(left=window - 1))


def selection(n: int, share: float) -> Callable[[], object]:
    """The same, of queries each of which selects a share of the blocks of keys."""
    rng, size = np.random.default_rng(0), min(SELECTED, n)
    count = -(-n // size)
    chosen = np.stack([rng.permutation(count)[: max(1, round(share * count))] for _ in range(count)])
    return under(n, rules.selected(chosen.repeat(size, axis=0)[:n], block_size=size))


def under(n: int, mask: rules.Rule | None) -> Callable[[], object]:
    """Forward and backward over n queries and keys under a rule."""
    query, key, value, d_output, _ = random_inputs((n, HEAD), "float32")

    def both() -> object:
        _, cache = blockwise.forward(query, key, value, mask=mask)
        return blockwise.backward(d_output, cache)

    return both


def measure(n: int, window: int, rounds: int) -> dict[str, Any]:
    """How much faster the window is than full attention, and rows of how its time grows."""
    sizes = [(length, width) for length in (n // 4, n // 2, n) for width in (window // 2, window, 2 * window)]
    times = interleaved({size: run(*size) for size in sizes}, rounds)
    full = interleaved({"full": run(n, None)}, 1, warm=False)["full"][0]
    faster = full / spread(times[n, window]).median
    rows = [
        {"n": length, "window": width, "milliseconds": spread([1000 * t for t in times[length, width]])._asdict()}
        for length, width in sizes
    ]
    of_shares = interleaved({share: selection(max(n // 8, 1), share) for share in SHARES}, rounds)
    whole = spread(of_shares[1.0]).median
    selected = {share: spread(of_shares[share]).median / whole for share in SHARES}
    reached = {
        f"{LEAST} times faster than full": faster >= LEAST,
        f"at most {MOST} times what its share says": all(time <= MOST * share for share, time in selected.items()),
    }
    result = {"n": n, "window": window, "seconds_full": full, "times_faster": faster, "targets": reached, "rows": rows}
    return result | {"time_of_a_selection": selected}


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each length and window."""
    table = Table(box=box.SIMPLE_HEAD, title="One head of 64, float32, forward and backward")
    for header in ("n", "window", "ms, median (IQR)", "ns a pair"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        n, window, ms = row["n"], row["window"], row["milliseconds"]
        table.add_row(
            str(n),
            str(window),
            f"{ms['median']:.1f} ({ms['upper'] - ms['lower']:.1f})",
            f"{1e6 * ms['median'] / (n * window):.2f}",
        )
    console().print(table)


def main() -> None:
    """Time everything, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="window", description="What a sliding window costs")
    parser.add_argument("--n", type=count, default=N, help="queries and keys (default: %(default)s)")
    parser.add_argument("--window", type=count, default=WINDOW, help="keys of a query (default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    add_json(parser, "window")
    options = parser.parse_args()
    if options.n < 4 or options.window < 2:
        parser.error(f"a quarter of n = {options.n} and half of a window of {options.window} are timed, too")
    result = measure(options.n, options.window, options.rounds)
    print_table(result["rows"])
    print(f"full attention, n = {options.n}: {result['seconds_full']:.2f} s,", end=" ")
    print(f"{result['times_faster']:.0f} times as long as a window of {options.window} (target: {LEAST})")
    of_shares = [f"{time:.3f} of {share:g}" for share, time in result["time_of_a_selection"].items()]
    print(f"selected blocks, n = {options.n // 8}, time as a share of that of all: {', '.join(of_shares)}")
    store(options.json, {"machine": describe(), **result})


if __name__ == "__main__":
    main()
