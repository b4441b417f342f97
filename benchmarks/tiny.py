"""How long attention takes at tiny sizes, where the calls themselves are what costs: beside NumPy and PyTorch.

From the root of the repository:

    python -m benchmarks.tiny [--rounds R] [--calls N] [--json FILE]

`dot_product`, forward and backward, n = 16. Ratios are of the least times, which other programs disturb least.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attention_np import dot_product
from benchmarks._command_line import add_json, console, count, print_missing, store
from benchmarks._contenders import by_numpy, by_torch, ours, random_inputs
from benchmarks._machine import blas_threads, describe
from benchmarks._timing import cores, interleaved, spread
from benchmarks.checkers import installed

SHAPES = ((1, 1, 16, 64), (2, 8, 16, 64))
DTYPES = ("float32", "float64")
ROUNDS, CALLS = 15, 200
COLUMNS = ("ours", "NumPy", "PyTorch")
RATIOS = ("ours / PyTorch", "ours / NumPy")
MOST = 2.0  # times as long as PyTorch


def measure(shape: tuple[int, ...], dtype: str, rounds: int, calls: int) -> dict[str, Any]:
    """The microseconds of each contender, and the ratios of the least."""
    inputs = random_inputs(shape, dtype)
    contenders = [ours(inputs, dot_product), by_numpy(inputs)]
    if installed("torch"):
        contenders.append(by_torch(inputs))
    times = interleaved({contender.name: contender.both for contender in contenders}, rounds, calls=calls)
    found = {name: spread([1e6 * t for t in values]) for name, values in times.items()}
    ratios = {f"ours / {name}": found["ours"].least / found[name].least for name in found if name != "ours"}
    targets = {f"ours / PyTorch <= {MOST}": ratios["ours / PyTorch"] <= MOST} if "PyTorch" in found else {}
    microseconds = {name: value._asdict() for name, value in found.items()}
    return {"dtype": dtype, "shape": list(shape), "microseconds": microseconds, "ratios": ratios, "targets": targets}


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each shape and dtype."""
    table = Table(box=box.SIMPLE_HEAD, title="dot_product, forward + backward: microseconds, least (median)")
    for header in ("shape", "dtype", *COLUMNS, *RATIOS):
        table.add_column(header, justify="left" if header in ("shape", "dtype") else "right", no_wrap=True)
    for row in rows:
        times = [_time(row["microseconds"].get(name)) for name in COLUMNS]
        ratios = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in RATIOS]
        style = "" if all(row["targets"].values()) else "bold red"
        table.add_row(",".join(map(str, row["shape"])), row["dtype"], *times, Text(ratios[0], style), ratios[1])
    console().print(table)


def _time(microseconds: Mapping[str, float] | None) -> str:
    return "" if microseconds is None else f"{microseconds['least']:.1f} ({microseconds['median']:.1f})"


def main() -> None:
    """Time everything, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="tiny", description="Attention at tiny sizes, beside NumPy and PyTorch")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    parser.add_argument("--calls", type=count, default=CALLS, help="of how many calls (default: %(default)s)")
    add_json(parser, "tiny")
    options = parser.parse_args()
    with blas_threads(cores()):
        machine = describe("torch")
        print_missing(machine)
        rows = [measure(shape, dtype, options.rounds, options.calls) for shape in SHAPES for dtype in DTYPES]
    print_table(rows)
    store(options.json, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
