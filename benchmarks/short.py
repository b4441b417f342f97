"""Speed in some minutes: everything that people wait for in one table, beside peers, and beside the last stored run.

From the root of the repository:

    python -m benchmarks.short [--only WORD ...] [--longest N] [--rounds R] [--json FILE]

All of a row are timed in turn, after their results have been compared. Its ratios are of the least times, which other
programs disturb least. "since" is how ours has changed against the run in ``docs/measured/speed.json``: the ratio of
ours to the floor, or where there is none to NumPy, over the same ratio there. What grew by more than a tenth is marked.
``--json docs/measured/speed.json`` stores a run; ``python -m docs.performance`` then writes the tables of the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from attention_np import blockwise, dot_product
from benchmarks._command_line import add_json, console, count, print_missing, store
from benchmarks._contenders import by_numpy, by_torch, ours, random_inputs
from benchmarks._floor import floors
from benchmarks._formulas import pairs
from benchmarks._machine import blas_threads, describe
from benchmarks._timing import cores, interleaved
from benchmarks.checkers import installed

STORED = Path("docs/measured/speed.json")
ROUNDS = 3
GROWN = 1.1  # times the stored ratio
SAME = 1e-4  # of the largest entry: float32 through several sums
BOTH = "forward + backward"
ATTENTION = (  # dtype, mask, (batch, heads, n, d)
    ("float32", "full", (2, 8, 512, 64)),
    ("float32", "full", (1, 8, 1024, 64)),
    ("float32", "full", (1, 8, 2048, 64)),
    ("float32", "full", (1, 4, 4096, 64)),
    ("float32", "full", (1, 6, 700, 80)),
    ("float32", "causal", (2, 8, 512, 64)),
    ("float32", "causal", (1, 4, 4096, 64)),
    ("float64", "full", (2, 8, 512, 64)),
    ("float64", "full", (1, 8, 1024, 64)),
    ("float64", "causal", (1, 4, 4096, 64)),
)
TINY = ((1, 1, 16, 64), (2, 8, 16, 64))

Row = dict[str, Any]


class Case(NamedTuple):
    """What is timed in turn: ours first, then all others by the names of their columns."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    which: str
    runs: Mapping[str, Callable[[], Any]]
    calls: int


def cases(longest: int) -> Iterator[Case]:
    """All that the table has, `blockwise` of so many queries at most."""
    for dtype, mask, shape in (each for each in ATTENTION if each[2][2] <= longest):
        inputs = random_inputs(shape, dtype, is_causal=mask == "causal")
        everyone = [ours(inputs, blockwise), by_numpy(inputs), *_torch(inputs), *floors(inputs)]
        name = "blockwise" if mask == "full" else "blockwise, causal"
        yield Case(name, shape, dtype, "forward", {x.name: x.forward for x in everyone}, 1)
        yield Case(name, shape, dtype, BOTH, {x.name: x.both for x in everyone}, 1)
    for shape in TINY:
        inputs = random_inputs(shape, "float32")
        everyone = [ours(inputs, dot_product), by_numpy(inputs), *_torch(inputs)]
        yield Case("dot_product", shape, "float32", BOTH, {x.name: x.both for x in everyone}, 100)
    for pair in pairs():
        yield Case(pair.name, pair.shape, "float32", pair.which, {"ours": pair.ours, "NumPy": pair.plain}, pair.calls)


def _torch(inputs: Any) -> list[Any]:
    return [by_torch(inputs)] if installed("torch") else []


def measure(case: Case, rounds: int) -> Row:
    """The milliseconds of all, and the ratios of the least."""
    _compare(case)
    times = interleaved(case.runs, rounds, calls=case.calls)
    least = {name: 1000 * min(values) for name, values in times.items()}
    floor = [least.pop(name) for name in [*least] if name.startswith("floor")]
    if floor:
        least["floor"] = min(floor)
    ratios = {f"ours / {name}": least["ours"] / least[name] for name in least if name != "ours"}
    where = {"name": case.name, "shape": list(case.shape), "dtype": case.dtype, "pass": case.which}
    return where | {"milliseconds": least, "ratios": ratios}


def _compare(case: Case) -> None:
    """Refuse to time what does not compute the same."""

    def arrays(name: str) -> list[Any]:
        results = case.runs[name]()
        every = results if isinstance(results, tuple) else (results,)
        return [np.asarray(x.detach() if hasattr(x, "detach") else x) for x in every]

    expected = arrays("ours")
    for name in case.runs:
        if name == "ours" or name.startswith("floor"):
            continue
        for x, y in zip(arrays(name), expected, strict=True):
            if not np.abs(x - y).max() <= SAME * np.abs(y).max():
                raise SystemExit(f"{name} differs from ours in {case.name} at {case.shape}: nothing is timed")


def since(row: Row, stored: Sequence[Row]) -> float | None:
    """How ours has changed against the floor, or against NumPy, since `stored`; None where that has no such row."""
    key = ("name", "shape", "dtype", "pass")
    yardstick = "ours / floor" if "ours / floor" in row["ratios"] else "ours / NumPy"
    for other in stored:
        if all(row[k] == other[k] for k in key) and yardstick in other["ratios"]:
            ratio: float = row["ratios"][yardstick] / other["ratios"][yardstick]
            return ratio
    return None


def print_table(rows: Sequence[Row], stored: Sequence[Row]) -> int:
    """A line for each row; how many grew by more than a tenth."""
    table = Table(box=box.SIMPLE_HEAD, title="milliseconds, the least")
    columns = ("ours", "NumPy", "PyTorch", "floor")
    ratios = ("ours / NumPy", "ours / PyTorch", "ours / floor")
    for header in ("", "shape", "dtype", "pass", *columns, *ratios, "since"):
        is_text = header in ("", "shape", "dtype", "pass")
        table.add_column(header.replace("/ ", "/\n"), justify="left" if is_text else "right", no_wrap=True)
    grown = 0
    for row in rows:
        change = since(row, stored)
        is_slower = change is not None and change > GROWN
        grown += is_slower
        mark = Text("" if change is None else f"{change:.2f}{' slower' * is_slower}", "bold red" if is_slower else "")
        times = [f"{row['milliseconds'][name]:.3g}" if name in row["milliseconds"] else "" for name in columns]
        of = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in ratios]
        table.add_row(row["name"], ",".join(map(str, row["shape"])), row["dtype"], row["pass"], *times, *of, mark)
    console().print(table)
    return grown


def main() -> None:
    """Time everything, print the table beside the stored run, and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="short", description="Speed in some minutes, beside the last stored run")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="cases whose name has one of these")
    parser.add_argument("--longest", type=count, default=4096, metavar="N", help="n of `blockwise` at most")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    add_json(parser, "short")
    options = parser.parse_args()
    before = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"rows": []}
    with blas_threads(cores()):
        machine = describe("torch")
        print_missing(machine)
        if before["rows"] and before["machine"]["processor"] != machine["processor"]:
            print(f"the stored run is of another processor, {before['machine']['processor']}")
        chosen = (case for case in cases(options.longest) if any(word in case.name for word in options.only))
        rows = [measure(case, options.rounds) for case in chosen]
    grown = print_table(rows, before["rows"])
    print(f"{grown} of {len(rows)} are more than {GROWN - 1:.0%} slower than in the stored run")
    store(options.json, {"machine": machine, "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
