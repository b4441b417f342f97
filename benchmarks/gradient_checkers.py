"""Gradient checkers side by side: which planted bugs each finds, how small an error it sees, and how long it takes.

The functions and their bugs are those of ``tests/gradcheck/planted.py``: plain NumPy, a forward and a backward
function each. From the root of the repository:

    python -m benchmarks.gradient_checkers [--json FILE]

PyTorch's checker runs with its default tolerances; with the tightest decades of rtol and atol at which it calls every
right gradient of the list right, found here, and of those the pair that finds most; and in its fast mode. A gradient
that lacks the sum over a broadcast axis is summed by PyTorch before it is checked, and so counts as missed. Checkers
that are not installed are left out, and say so.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_np import dot_product, gradcheck
from benchmarks._timing import interleaved
from benchmarks.checkers import Checker, Pair, by_autograd, by_jax, by_torch, installed, ours
from tests.gradcheck.planted import PLANTED, Planted

DECADES = [10.0**-k for k in range(17)]  # of the relative errors that are planted in attention
RTOLS = [10.0**-k for k in range(2, 15)]
ATOLS = [10.0**-k for k in range(16, 1, -1)]
SHAPE = (1, 2, 16, 8)  # batch, heads, positions, features
REPEATS = 7
LIBRARIES = ("torch", "jax", "autograd")
PIPE_WIDTH = 170  # where the output is no terminal


def right_pairs() -> list[Pair]:
    """The functions of the planted list with their right gradients, each function once."""
    pairs: dict[Any, Pair] = {}
    for bug in PLANTED:
        key = (bug.forward, bug.backward, *((name, x.tobytes()) for name, x in bug.inputs.items()))
        pairs.setdefault(key, Pair(bug.forward, bug.backward, bug.inputs))
    return list(pairs.values())


def wrong_pair(bug: Planted) -> Pair:
    """A function with the planted bug in its gradient."""
    return Pair(bug.forward, bug.wrong_backward, bug.inputs)


def tightest(rights: Sequence[Pair]) -> tuple[float, float]:
    """The tolerances of `torch.autograd.gradcheck` that call all of `rights` right, and of those the sharpest.

    Each rtol has its smallest atol. Of the pairs that are left, the one that finds most of the planted bugs.
    """
    corners: dict[float, float] = {}
    rest = iter(ATOLS)
    atol = next(rest)
    for rtol in RTOLS:
        while any(by_torch(rtol=rtol, atol=atol)(pair) for pair in rights):
            following = next(rest, None)
            if following is None:
                return _sharpest(corners)
            atol = following
        corners[atol] = rtol  # a tighter rtol with the same atol takes the place of a looser one
    return _sharpest(corners)


def _sharpest(corners: dict[float, float]) -> tuple[float, float]:
    def score(corner: tuple[float, float]) -> tuple[int, float]:
        atol, rtol = corner
        alarm = by_torch(rtol=rtol, atol=atol)
        return sum(alarm(wrong_pair(bug)) is not None for bug in PLANTED), -rtol

    if not corners:
        raise SystemExit("torch.autograd.gradcheck calls some right gradient wrong at every tolerance that was tried")
    atol, rtol = max(corners.items(), key=score)
    return rtol, atol


def checkers(rights: Sequence[Pair]) -> Iterator[Checker]:
    """All checkers that are installed, ours first."""
    yield Checker("ours", "every entry", ours)
    if installed("torch"):
        rtol, atol = tightest(rights)
        yield Checker("torch", "every entry of J", by_torch())
        looks_at = f"every entry of J, to rtol {rtol:.0e}, atol {atol:.0e}"
        yield Checker("torch tight", looks_at, by_torch(rtol=rtol, atol=atol))
        yield Checker("torch fast", "one projection of each J", by_torch(fast_mode=True))
    if installed("jax"):
        yield Checker("jax", "one projection", by_jax())
    if installed("autograd"):
        yield Checker("autograd", "one projection", by_autograd())


def detection(columns: Sequence[Checker]) -> list[dict[str, Any]]:
    """For each bug: which checkers find it, and what ours says of it."""
    rows = []
    for bug in PLANTED:
        pair = wrong_pair(bug)
        report = gradcheck.check(*pair)
        diagnosis = report[bug.where].diagnosis
        if str(diagnosis).startswith("no simple cause"):
            diagnosis = None
        named = diagnosis is None if bug.expected is None else bool(re.search(bug.expected, diagnosis or ""))
        rows.append(
            {
                "bug": bug.name,
                "input": bug.where,
                "expected": bug.expected,
                "diagnosis": diagnosis,
                "diagnosis_right": named,
                "alarms": {column.name: column.alarm(pair) for column in columns},
            }
        )
    return rows


def attention() -> Pair:
    """Scaled dot-product attention as a function of its three arrays."""
    rng = np.random.default_rng(0)

    def backward(d_output: Any, *arrays: Any) -> Any:
        return dot_product.backward(d_output, dot_product.forward(*arrays)[1])[:3]

    inputs = {name: rng.standard_normal(SHAPE) for name in ("query", "key", "value")}
    return Pair(lambda *arrays: dot_product.forward(*arrays)[0], backward, inputs)


def smallest_found(alarm: Callable[[Pair], str | None], entry: bool) -> float | None:
    """The last decade, from one downwards, of relative errors in the gradient of the keys that raise an alarm.

    In all entries, or in the one that is the smallest on average over cotangents.
    """
    pair = attention()
    rng = np.random.default_rng(1)
    samples = [pair.backward(rng.standard_normal(SHAPE), *pair.inputs.values())[1] for _ in range(100)]
    place = np.unravel_index(np.square(samples).sum(axis=0).argmin(), SHAPE) if entry else ...
    found = None
    for error in DECADES:

        def wrong(d_output: Any, *arrays: Any, error: float = error) -> Any:
            query, key, value = pair.backward(d_output, *arrays)
            key = key.copy()
            key[place] *= 1 + error
            return query, key, value

        if alarm(Pair(pair.forward, wrong, pair.inputs)) is None:
            break
        found = error
    return found


def seconds(columns: Sequence[Checker]) -> dict[str, list[float]]:
    """How long each checker takes for attention, in turn."""
    pair = attention()

    def check_op(_pair: Pair) -> None:
        gradcheck.check_op(dot_product, pair.inputs)

    runs = {column.name: check_op if column.name == "ours" else column.alarm for column in columns}
    return interleaved({name: partial(run, pair) for name, run in runs.items()}, REPEATS)


def print_detection(columns: Sequence[Checker], rows: Sequence[dict[str, Any]]) -> None:
    """One line per bug."""
    table = Table(box=box.SIMPLE_HEAD, title="Planted bugs")
    for header in ("bug", *(column.name for column in columns)):
        table.add_column(header, no_wrap=True)
    table.add_column("what ours says")
    for row in rows:
        says = row["diagnosis"] or "(no simple cause)"
        cells = [_found(row["alarms"][column.name] is not None) for column in columns]
        diagnosis = Text(says if row["diagnosis_right"] else f"not as expected: {says}")
        table.add_row(row["bug"], *cells, diagnosis)
    _console().print(table)


def print_summary(columns: Sequence[Checker], result: dict[str, Any]) -> None:
    """One line per checker."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{len(PLANTED)} bugs; attention is {SHAPE}, float64")
    headers = ["checker", "looks at", "bugs found", "false alarms"]
    headers += ["least error in a gradient", "in one entry", "attention", "spread"]
    for header in headers:
        table.add_column(header, justify="left" if header in headers[:2] else "right")
    for column in columns:
        summary = result["checkers"][column.name]
        times = summary["seconds"]
        table.add_row(
            column.name,
            column.looks_at,
            f"{summary['found']} of {len(PLANTED)}",
            f"{summary['false_alarms']} of {summary['right_functions']}",
            _decade(summary["least_error"]),
            _decade(summary["least_error_in_one_entry"]),
            f"{1000 * statistics.median(times):.0f} ms",
            f"{1000 * min(times):.0f} to {1000 * max(times):.0f} ms",
        )
    for library in LIBRARIES:
        if result["versions"][library] is None:
            table.add_row(library, "not installed", *[""] * (len(headers) - 2))
    _console().print(table)


def evaluate() -> tuple[list[Checker], dict[str, Any]]:
    """Everything, measured in this process."""
    rights = right_pairs()
    columns = list(checkers(rights))
    rows = detection(columns)
    times = seconds(columns)
    named = [row for row in rows if row["expected"] is not None]
    unnamed = [row for row in rows if row["expected"] is None]
    result = {
        "versions": {library: installed(library) for library in ("numpy", *LIBRARIES)},
        "bugs": rows,
        "diagnoses": {
            "right": sum(row["diagnosis_right"] for row in named),
            "to_name": len(named),
            "none": sum(row["diagnosis_right"] for row in unnamed),
            "not_to_name": len(unnamed),
        },
        "checkers": {
            column.name: {
                "looks_at": column.looks_at,
                "found": sum(row["alarms"][column.name] is not None for row in rows),
                "false_alarms": sum(column.alarm(pair) is not None for pair in rights),
                "right_functions": len(rights),
                "least_error": smallest_found(column.alarm, entry=False),
                "least_error_in_one_entry": smallest_found(column.alarm, entry=True),
                "seconds": times[column.name],
            }
            for column in columns
        },
    }
    return columns, result


def main() -> None:
    """Print the tables; write the numbers to a file if one is named."""
    parser = argparse.ArgumentParser(prog="gradient_checkers", description="Gradient checkers side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to this file")
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what others warn of is not what is measured
        columns, result = evaluate()
    print_detection(columns, result["bugs"])
    print_summary(columns, result)
    count = result["diagnoses"]
    print(f"ours names {count['right']} of {count['to_name']} causes as expected,", end=" ")
    print(f"and names none in {count['none']} of the {count['not_to_name']} bugs that have no simple one")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")


def _found(found: bool) -> Text:
    return Text("found") if found else Text("missed", style="bold red")


def _decade(error: float | None) -> str:
    return "none" if error is None else f"{error:.0e}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


if __name__ == "__main__":
    main()
