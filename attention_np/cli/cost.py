"""``attention-np cost``: operations, bytes moved and memory, for many lengths, and where memory ends."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_np import cost
from attention_np._lib import machine
from attention_np._lib.text import in_bytes, in_thousands, table
from attention_np.cli.outcome import HOLDS, refuse, why_not_writable, write_json

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
MOST_GIB = 2**34  # what addresses of 64 bits reach


class Row(NamedTuple):
    """One line of the table."""

    n: int
    algorithm: str
    costs: cost.Costs
    fits: str  # "yes", "forward only", "no"; "?" if the memory is not known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    for name, what, default in (
        ("n", "the number of queries: a line of the table besides those of 128 to 8192", None),
        ("m", "the number of keys (default: as many as queries)", None),
        ("heads", "the number of heads", 1),
        ("batch", "the number of sequences", 1),
        ("d", "the features of queries and keys", 64),
        ("d-v", "the features of values (default: as queries)", None),
        ("workers", "the threads of the blockwise algorithm (default: the cores)", None),
    ):
        shown = "" if default is None else f" (default: {default})"
        field = "d_k" if name == "d" else name.replace("-", "_")  # of cost.Sizes, for all but the workers
        parser.add_argument(f"--{name}", dest=field, type=_positive, default=default, metavar="N", help=what + shown)
    parser.add_argument("--dtype", type=_dtype, default="float32", help="of the arrays (default: float32)")
    parser.add_argument(
        "--causal", dest="is_causal", action="store_true", help="query i attends to the keys up to i only"
    )
    parser.add_argument("--dropout", action="store_true", help="weights are dropped")
    parser.add_argument("--memory", type=_gib, metavar="GIB", help="the memory there is (default: what is available)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE as well")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    named = {field.name: getattr(options, field.name) for field in fields(cost.Sizes)}
    sizes = cost.Sizes(**named | {"n": options.n or 1})
    unwritable = None if options.json is None else why_not_writable(options.json)
    if unwritable:
        return refuse(unwritable)

    workers = options.workers or machine.cores().usable
    algorithms: dict[str, Callable[[cost.Sizes], cost.Costs]] = {
        "dot_product": cost.dot_product,
        "blockwise": partial(cost.blockwise, workers=workers),
    }
    measured = machine.memory()
    available = options.memory if options.memory is not None else measured.available if measured else None
    lengths = sorted({*LENGTHS, *([options.n] if options.n else [])})
    rows = [
        Row(n, name, costs, _fits(costs, available))
        for n in lengths
        for name, algorithm in algorithms.items()
        for costs in [algorithm(replace(sizes, n=n))]
    ]
    longest = {
        name: [cost.longest(algorithm, available, sizes, backward=backward) for backward in (False, True)]
        for name, algorithm in algorithms.items()
        if available is not None
    }
    text = [_title(sizes, workers), "", _table(rows), "", *_closing(longest, available, measured)]
    print("\n".join(text))  # noqa: T201
    content = _content(sizes, workers, available, rows, longest)
    if options.json is not None and (fault := write_json(options.json, content)):
        return refuse(fault)
    return HOLDS


def _fits(costs: cost.Costs, available: int | None) -> str:
    if available is None:
        return "?"
    return "yes" if costs.memory <= available else "forward only" if costs.forward_memory <= available else "no"


def _title(sizes: cost.Sizes, workers: int) -> str:
    d_v = sizes.d_k if sizes.d_v is None else sizes.d_v
    keys = "n" if sizes.m is None else sizes.m
    options = [str(sizes.dtype)]
    options += [word for word, is_on in (("causal", sizes.is_causal), ("dropout", sizes.dropout)) if is_on]
    return (
        f"Attention of n queries over {keys} keys: batch {sizes.batch}, {_count(sizes.heads, 'head')}, "
        f"d_k = {sizes.d_k}, d_v = {d_v}, {', '.join(options)}; {_count(workers, 'worker')} blockwise."
    )


def _table(rows: Sequence[Row]) -> str:
    lines = [
        ("", "", "forward", "", "", "with backward", "", "", ""),
        ("n", "algorithm", "operations", "moved", "memory", "operations", "moved", "memory", "fits"),
    ]
    for row in rows:
        forward, backward = row.costs.forward, row.costs.backward
        lines.append(
            (
                str(row.n) if row.algorithm == rows[0].algorithm else "",
                row.algorithm,
                in_thousands(forward.flops),
                in_bytes(forward.bytes_moved),
                in_bytes(row.costs.forward_memory),
                in_thousands(forward.flops + backward.flops),
                in_bytes(forward.bytes_moved + backward.bytes_moved),
                in_bytes(row.costs.memory),
                row.fits,
            )
        )
    return table(lines, left=2)


def _closing(longest: Mapping[str, Sequence[int]], available: int | None, measured: machine.Memory | None) -> list[str]:
    """What fits, and what that is measured by."""
    if available is None:
        return ["How much memory there is is not known here: --memory GIB says it."]
    if measured is not None and available == measured.available:
        memory = f"{in_bytes(available)} of {in_bytes(measured.total)} of memory are available."
    else:
        memory = f"Memory is taken to be {in_bytes(available)}."
    return [memory] + [
        f"{name} fits up to n = {forward:,} forward, and up to n = {both:,} with backward."
        for name, (forward, both) in longest.items()
    ]


def _content(
    sizes: cost.Sizes, workers: int, available: int | None, rows: Sequence[Row], longest: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """The table as JSON: numbers of operations and bytes."""
    return {
        "sizes": {name: value for name, value in asdict(sizes).items() if name != "n"} | {"dtype": str(sizes.dtype)},
        "workers": workers,
        "memory": available,
        "rows": [
            {
                "n": row.n,
                "algorithm": row.algorithm,
                "forward": row.costs.forward._asdict(),
                "backward": row.costs.backward._asdict(),
                "forward_memory": row.costs.forward_memory,
                "memory": row.costs.memory,
                "fits": row.fits,
            }
            for row in rows
        ],
        "longest": {name: dict(zip(("forward", "backward"), both, strict=True)) for name, both in longest.items()},
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def _dtype(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(cost.Sizes(1, dtype=text).dtype)
    except TypeError:
        raise argparse.ArgumentTypeError(f"must be one of real floating-point numbers, not {text}") from None


def _gib(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size <= MOST_GIB:
        raise argparse.ArgumentTypeError(f"must be a number of GiB above 0, and at most {MOST_GIB}, not {text}")
    return round(size * 2**30)
