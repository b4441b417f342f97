"""Blockwise attention beside straightforward NumPy, PyTorch, JAX and the bare matrix products, on the CPU.

From the root of the repository:

    python -m benchmarks.blockwise [--shapes B,H,N,D ...] [--dtypes ...] [--masks ...] [--rounds R] [--json FILE]

All are timed in one process, in turn, with a thread for each core that the process may use (``taskset -c 0,1`` leaves
it two), after their results have been compared. A ratio is taken within each round, and the median of the rounds is
given. The floor is the faster of two ways to take the matrix products alone. "sigmoid / ours" and "silu / ours" are
what weights by these cost beside those by softmax. Peers that are not installed are left out; JAX's softmax is in
float32 throughout.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from benchmarks._command_line import add_json, console, count, print_missing, store
from benchmarks._contenders import PEERS, contenders, differences, ours_again, ours_weighed, random_inputs
from benchmarks._floor import floors
from benchmarks._machine import blas_threads, describe
from benchmarks._timing import cores, interleaved, spread

SHAPES = ((2, 8, 512, 64), (1, 8, 1024, 64), (1, 8, 2048, 64), (1, 4, 4096, 64))  # batch, heads, n, d
DTYPES = ("float32", "float64")
MASKS = ("full", "causal")
PASSES = ("forward", "forward + backward")
COLUMNS = ("ours", "NumPy", "PyTorch", "JAX", "floor, whole", "floor, blocks")
AGAIN, TWICE = ("double backward", "backward"), "double / backward"  # of ours, from one forward pass
WEIGHED = ("sigmoid", "silu")
RATIOS = ("ours / PyTorch", "ours / JAX", "ours / NumPy", "floor / ours", TWICE, *(f"{by} / ours" for by in WEIGHED))
ROUNDS = 9
SAME = 50  # results that differ by more than this many times the spacing of the dtype are not the same to rounding

Row = dict[str, Any]


def measure(shape: tuple[int, ...], dtype: str, mask: str, rounds: int) -> list[Row]:
    """A row for each pass: times, ratios and the targets that hold."""
    inputs = random_inputs(shape, dtype, is_causal=mask == "causal")
    attentions = list(contenders(inputs))
    found = differences(attentions)
    for peer in attentions[1:]:
        if not found[peer.name] <= SAME * np.finfo(peer.dtype).eps:
            at = f"{mask} {dtype} at {shape}"
            raise SystemExit(f"{peer.name} differs from ours by {found[peer.name]:.1e}, {at}: nothing is timed")

    everyone = [*attentions, *floors(inputs), *ours_weighed(inputs)]
    runs = {
        (contender.name, which): run
        for contender in everyone
        for which, run in zip(PASSES, (contender.forward, contender.both), strict=True)
    }
    times = interleaved(runs | {("ours", which): run for which, run in ours_again(inputs).items()}, rounds)
    rows = []
    for which in PASSES:
        seconds = {contender.name: times[contender.name, which] for contender in everyone}
        if which == PASSES[1]:
            seconds |= {again: times["ours", again] for again in AGAIN}
        where = {"dtype": dtype, "shape": list(shape), "mask": mask, "pass": which}
        rows.append({**where, "differences": found, **summary(shape, which, seconds)})
    return rows


def summary(shape: tuple[int, ...], which: str, seconds: Mapping[str, Sequence[float]]) -> Row:
    """What a row says of the times of one pass, a number a round for each contender."""
    ratios = {name: spread(values)._asdict() for name, values in _ratios(seconds)}
    return {
        "milliseconds": {name: spread([1000 * t for t in values])._asdict() for name, values in seconds.items()},
        "ratios": ratios,
        "targets": dict(_targets(shape, which, {name: ratio["median"] for name, ratio in ratios.items()})),
    }


def _ratios(seconds: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, list[float]]]:
    ours = seconds["ours"]
    for name in ("PyTorch", "JAX", "NumPy"):
        if name in seconds:
            yield f"ours / {name}", [a / b for a, b in zip(ours, seconds[name], strict=True)]
    if set(AGAIN) <= seconds.keys():
        yield TWICE, [a / b for a, b in zip(*(seconds[name] for name in AGAIN), strict=True)]
    for by in (by for by in WEIGHED if by in seconds):
        yield f"{by} / ours", [a / b for a, b in zip(seconds[by], ours, strict=True)]
    floor = min((seconds[name] for name in seconds if name.startswith("floor")), key=np.median, default=None)
    if floor is not None:
        yield "floor / ours", [a / b for a, b in zip(floor, ours, strict=True)]


def _targets(shape: tuple[int, ...], which: str, ratios: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """What ours should reach, and whether it does."""
    n = shape[-2]
    if "ours / PyTorch" in ratios:
        most = 1.0 if n >= 1024 else 1.3
        yield f"ours / PyTorch <= {most}", ratios["ours / PyTorch"] <= most
    if TWICE in ratios:
        yield f"{TWICE} <= 4", ratios[TWICE] <= 4
    if "floor / ours" in ratios and n >= 2048 and which == PASSES[1]:
        yield "floor / ours >= 0.85", ratios["floor / ours"] >= 0.85


def print_table(title: str, rows: Sequence[Row]) -> None:
    """A line for each row, those of one dtype and mask."""
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for header in ("shape", "pass"):
        table.add_column(header, no_wrap=True)
    for header in (*COLUMNS, *RATIOS):
        table.add_column(header.replace("/ ", "/\n").replace(", ", ",\n"), justify="right", no_wrap=True)
    for row in rows:
        times = [_time(row["milliseconds"].get(name)) for name in COLUMNS]
        ratios = [_ratio(name, row) for name in RATIOS]
        table.add_row(",".join(map(str, row["shape"])), row["pass"], *times, *ratios)
    console().print(table)


def _time(milliseconds: Mapping[str, float] | None) -> str:
    if milliseconds is None:
        return ""
    between = milliseconds["upper"] - milliseconds["lower"]
    digits = 1 if milliseconds["median"] < 100 else 0
    return f"{milliseconds['median']:.{digits}f} ({between:.{digits}f})"


def _ratio(name: str, row: Row) -> Text:
    if name not in row["ratios"]:
        return Text("")
    missed = any(target.startswith(name) and not reached for target, reached in row["targets"].items())
    return Text(f"{row['ratios'][name]['median']:.2f}", style="bold red" if missed else "")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="blockwise", description="Blockwise attention beside its peers, on the CPU")
    parser.add_argument("--shapes", type=_shape, nargs="+", default=SHAPES, metavar="B,H,N,D", help="which shapes")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="which dtypes")
    parser.add_argument("--masks", nargs="+", choices=MASKS, default=MASKS, help="which masks")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    add_json(parser, "blockwise")
    return parser.parse_args()


def _shape(text: str) -> tuple[int, ...]:
    sizes = tuple(count(part) for part in text.split(","))
    if len(sizes) != 4:
        raise argparse.ArgumentTypeError(f"a shape is batch,heads,n,d, not {text}")
    return sizes


def main() -> None:
    """Time everything, print the tables and write the numbers to a file."""
    options = arguments()
    with blas_threads(cores()):
        machine = describe(*PEERS)
        print_missing(machine)
        rows: list[Row] = []
        for dtype, mask in itertools.product(options.dtypes, options.masks):
            found = [row for shape in options.shapes for row in measure(shape, dtype, mask, options.rounds)]
            print_table(f"{dtype}, {mask}: milliseconds, median (interquartile range) of {options.rounds}", found)
            rows += found
    reached = [held for row in rows for held in row["targets"].values()]
    print(f"{sum(reached)} of {len(reached)} targets reached")
    store(options.json, {"machine": machine, "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
