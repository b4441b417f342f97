"""Latent attention, plain beside absorbed: how much faster the second is for a few queries, and what the page counts.

From the root of the repository:

    python -m benchmarks.latent [--tokens M] [--heads H] [--rounds R] [--json FILE]

Forward, in the sizes of DeepSeek-V3 but for the heads, of which it has 128: latents of 512, 128 features of keys and of
values, 64 of positions; float32. The plain form makes keys and values of all tokens each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from attention_np import latent
from benchmarks._command_line import add_json, console, count, store
from benchmarks._machine import describe
from benchmarks._timing import interleaved, spread

TOKENS, HEADS, ROUNDS = 4096, 64, 3
QUERIES = (1, 16, 256)
R, D_N, D_R, D_V = 512, 128, 64, 128
LEAST = 0.5  # of the ratio that the page counts, at one query


def run(n: int, m: int, h: int, absorbed: bool) -> Callable[[], object]:
    """Forward, of n queries over m tokens in h heads."""
    rng = np.random.default_rng(0)
    shapes = (h, n, D_N), (h, n, D_R), (m, R), (m, D_R), (h, R, D_N), (h, R, D_V)
    arrays = [(rng.standard_normal(shape) / R**0.5).astype(np.float32) for shape in shapes]
    return lambda: latent.forward(*arrays, absorbed=absorbed)


def counted(n: int, m: int) -> float:
    """How many times as many multiplications the plain form takes, by (latent.35) and (latent.36)."""
    plain = m * R * (D_N + D_V) + n * m * (D_N + D_R + D_V)
    return plain / (n * R * (D_N + D_V) + n * m * (2 * R + D_R))


def measure(m: int, heads: int, rounds: int) -> dict[str, Any]:
    """A row for each number of queries."""
    rows = []
    for n in QUERIES:
        times = interleaved({absorbed: run(n, m, heads, absorbed) for absorbed in (False, True)}, rounds)
        plain, absorbed = (spread(times[form]).median for form in (False, True))
        milliseconds = {"plain": 1000 * plain, "absorbed": 1000 * absorbed}
        rows.append({"queries": n, "milliseconds": milliseconds, "ratio": plain / absorbed, "counted": counted(n, m)})
    one = rows[0]
    reached = {f"at one query {LEAST} of what is counted": one["ratio"] >= LEAST * one["counted"]}
    return {"tokens": m, "heads": heads, "rows": rows, "targets": reached}


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each number of queries."""
    table = Table(box=box.SIMPLE_HEAD, title="Latent attention in the sizes of DeepSeek-V3, float32, forward")
    for header in ("queries", "plain, ms", "absorbed, ms", "plain / absorbed", "multiplications"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        ms = row["milliseconds"]
        ratios = f"{row['ratio']:.1f}", f"{row['counted']:.1f}"
        table.add_row(str(row["queries"]), f"{ms['plain']:.1f}", f"{ms['absorbed']:.1f}", *ratios)
    console().print(table)


def main() -> None:
    """Time everything, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="latent", description="Latent attention, plain beside absorbed")
    parser.add_argument("--tokens", type=count, default=TOKENS, help="latents (default: %(default)s)")
    parser.add_argument("--heads", type=count, default=HEADS, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    add_json(parser, "latent")
    options = parser.parse_args()
    result = measure(options.tokens, options.heads, options.rounds)
    print_table(result["rows"])
    store(options.json, {"machine": describe(), **result})


if __name__ == "__main__":
    main()
