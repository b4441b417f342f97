"""How the time and the memory of blockwise attention grow: forward and backward, one head of 64, float32.

From the root of the repository:

    python -m benchmarks.memory [--long] [--sizes N ...] [--json FILE]

Each length has a fresh process. Memory is its peak above what it holds with its inputs, less the bytes of the output
and the gradients; what the cache keeps counts as ours. Time should grow as n^2, memory no faster than n.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from benchmarks._command_line import add_json, console, count, store
from benchmarks._machine import describe
from benchmarks._timing import cores

SIZES = (8192, 16384, 32768, 65536)
LONGEST = 131072  # takes minutes
MIB = 2**20
MOST = 64 * MIB  # for each worker
ROOT = Path(__file__).parents[1]


def measure(n: int) -> dict[str, Any]:
    """The numbers for one length, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks._peak", str(n)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"the process for n = {n} failed:\n{done.stderr}")
    numbers = json.loads(done.stdout)
    reached = numbers["bytes_above"] <= MOST * cores()
    return {"n": n, "workers": cores(), **numbers, "targets": {"64 MiB a worker": reached}}


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each length."""
    table = Table(box=box.SIMPLE_HEAD, title="One head of 64, float32; MiB above inputs and outputs")
    for header in ("n", "forward s", "backward s", "ns a pair", "MiB above", "of which cache", "MiB a worker"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        forward, backward, n = row["seconds_forward"], row["seconds_backward"], row["n"]
        reached = all(row["targets"].values())
        table.add_row(
            str(n),
            f"{forward:.2f}",
            f"{backward:.2f}",
            f"{1e9 * (forward + backward) / n**2:.2f}",
            f"{row['bytes_above'] / MIB:.1f}",
            f"{row['bytes_cache'] / MIB:.1f}",
            Text(f"{row['bytes_above'] / MIB / row['workers']:.1f}", style="" if reached else "bold red"),
        )
    console().print(table)


def main() -> None:
    """Measure each length, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="memory", description="Time and memory of blockwise attention by length")
    parser.add_argument("--sizes", type=count, nargs="+", default=SIZES, metavar="N", help="the lengths")
    parser.add_argument("--long", action="store_true", help=f"n = {LONGEST} too, which takes minutes")
    add_json(parser, "memory")
    options = parser.parse_args()
    sizes = [*options.sizes, *([LONGEST] if options.long else [])]
    rows = [measure(n) for n in sizes]
    print_table(rows)
    store(options.json, {"machine": describe(), "rows": rows})


if __name__ == "__main__":
    main()
