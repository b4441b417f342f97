"""Rounding errors side by side: ours, PyTorch's two backends for processors, and JAX, against extended precision.

From the root of the repository:

    python -m benchmarks.accuracy [--n N ...] [--scale S ...] [--dtype NAME ...] [--seeds COUNT] [--json FILE]

Queries, keys, values and the gradient of the output are normal, 64 features a head; queries are multiplied by the
score scale, so that scores are normal with that standard deviation. Two errors are measured of the output and of the
gradient of each array: the largest error over the largest magnitude, and the mean error over the mean magnitude. A
number in the tables is the root mean square of one of them over all seeds and heads; the ratio is that of ours to the
least of the peers'. The program exits with 1 if a ratio is above 1.05. Peers that are not installed are left out.

In all, it takes about an hour on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_np import blockwise, dot_product
from benchmarks import _truth
from benchmarks._machine import describe
from benchmarks._truth import Results
from benchmarks.checkers import installed

SIZES = (64, 256, 1024, 4096)
SCALES = (1.0, 4.0, 16.0, 64.0)
DTYPES = ("float64", "float32")
SEEDS = 20
FEATURES = 64  # the scale of the scores, 1/8, is a power of two: the same number for all, in every precision
ROWS = 4096  # queries of all heads of a seed together, or n: of 20 heads, ratios of largest errors vary by a twentieth
LIMIT = 1.05
ERRORS = ("largest", "mean")
OURS = ("dot_product", "blockwise")
PIPE_WIDTH = 150  # where the output is no terminal

Array = npt.NDArray[np.floating]
Attention = Callable[[Array, Array, Array, Array], Results]


class Cell(NamedTuple):
    """A row of the tables without its numbers."""

    dtype: str
    n: int
    scale: float


def ours(op: Any) -> Attention:
    """An op of this library."""

    def compute(query: Array, key: Array, value: Array, d_output: Array) -> Results:
        output, cache = op.forward(query, key, value)
        gradients = op.backward(d_output, cache)
        return Results(output, gradients.query, gradients.key, gradients.value)

    return compute


def by_torch(backend: str) -> Attention:
    """PyTorch's `scaled_dot_product_attention` by one of its backends."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def compute(query: Array, key: Array, value: Array, d_output: Array) -> Results:
        tensors: list[Any] = [torch.from_numpy(x)[None].requires_grad_() for x in (query, key, value)]
        with sdpa_kernel(getattr(SDPBackend, backend)):
            output: Any = scaled_dot_product_attention(*tensors)
            output.backward(torch.from_numpy(d_output)[None])
        gradients: list[Any] = [x.grad for x in tensors]
        return Results(*(x.detach().numpy()[0] for x in (output, *gradients)))

    return compute


def by_jax(written_out: bool) -> Attention:
    """JAX's `dot_product_attention`, or the formula written out, compiled.

    The former computes its softmax in float32 whatever the arrays are.
    """
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def formula(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("ihd,jhd->hij", query, key) / FEATURES**0.5
        return jnp.einsum("hij,jhd->ihd", jax.nn.softmax(scores), value)

    @jax.jit
    def differentiate(d_output: Any, *arrays: Any) -> Any:
        output, pull_back = jax.vjp(formula if written_out else jax.nn.dot_product_attention, *arrays)
        return output, *pull_back(d_output)

    def compute(query: Array, key: Array, value: Array, d_output: Array) -> Results:
        swapped = (x.swapaxes(0, 1) for x in (d_output, query, key, value))  # it has the heads behind the positions
        return Results(*(np.asarray(x).swapaxes(0, 1) for x in differentiate(*swapped)))

    return compute


def implementations() -> dict[str, Attention]:
    """Ours and every peer that is installed."""
    found = {"dot_product": ours(dot_product), "blockwise": ours(blockwise)}
    if installed("torch"):
        found["torch math"], found["torch flash"] = by_torch("MATH"), by_torch("FLASH_ATTENTION")
    if installed("jax"):
        found["jax"], found["jax formula"] = by_jax(written_out=False), by_jax(written_out=True)
    return found


def problem(cell: Cell, seed: int) -> list[Array]:
    """Query, key, value and the gradient of the output, each (heads, n, features)."""
    rng = np.random.default_rng([seed, cell.n])
    heads = max(1, ROWS // cell.n)
    arrays = rng.standard_normal((4, heads, cell.n, FEATURES))
    arrays[0] *= cell.scale
    return list(arrays.astype(cell.dtype))


def errors(found: Results, truth: Results) -> npt.NDArray[np.float64]:
    """The largest and the mean relative error of each result of one head, (2, 4)."""
    columns = []
    for x, exact in zip(found, truth, strict=True):
        error, size = np.abs(x - exact), np.abs(exact)
        columns.append((error.max() / size.max(), error.mean() / size.mean()))
    both: npt.NDArray[np.float64] = np.array(columns, np.float64).T
    return both


def measure(cell: Cell, seeds: Sequence[int], columns: dict[str, Attention]) -> list[dict[str, Any]]:
    """One row for each kind of error and each result: the root mean square over seeds and heads."""
    squares: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in columns}
    for seed in seeds:
        arrays = problem(cell, seed)
        truths = [_truth.attention(*head) for head in zip(*arrays, strict=True)]
        for name, compute in columns.items():
            found = compute(*arrays)
            for head, truth in enumerate(truths):
                squares[name].append(errors(Results(*(x[head] for x in found)), truth) ** 2)
    roots = {name: np.sqrt(np.mean(of_heads, axis=0)) for name, of_heads in squares.items()}
    return [
        {
            **cell._asdict(),
            "error": kind,
            "result": result,
            "root_mean_squares": {name: float(root[k, j]) for name, root in roots.items()},
            "ratios": ratios({name: float(root[k, j]) for name, root in roots.items()}),
        }
        for k, kind in enumerate(ERRORS)
        for j, result in enumerate(Results._fields)
    ]


def ratios(numbers: dict[str, float]) -> dict[str, float]:
    """Each of ours over the least of the peers'; empty without a peer."""
    peers = [number for name, number in numbers.items() if name not in OURS]
    return {name: numbers[name] / min(peers) for name in OURS} if peers else {}


def print_rows(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """A table for each precision and each kind of error."""
    for dtype, kind in itertools.product(DTYPES, ERRORS):
        chosen = [row for row in rows if (row["dtype"], row["error"]) == (dtype, kind)]
        if not chosen:
            continue
        table = Table(box=box.SIMPLE_HEAD, title=f"{kind.capitalize()} relative error in {dtype}, root mean square")
        for header in ("n", "scale", "of"):
            table.add_column(header, justify="left" if header == "of" else "right")
        for header in (*names, *(f"{name} ratio" for name in chosen[0]["ratios"])):
            table.add_column(header, justify="right")
        for row in chosen:
            of = row["result"] if row["result"] == "output" else f"d_{row['result']}"
            numbers = [f"{row['root_mean_squares'][name]:.2e}" for name in names]
            table.add_row(str(row["n"]), f"{row['scale']:g}", of, *numbers, *map(_ratio, row["ratios"].values()))
        _console().print(table)


def _ratio(ratio: float) -> Text:
    return Text(f"{ratio:.2f}", style="bold red" if ratio > LIMIT else "")


def _console() -> Console:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def above_limit(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """In how many rows each of ours has a ratio above the limit."""
    return {name: sum(row["ratios"].get(name, 0) > LIMIT for row in rows) for name in OURS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether ours is as accurate as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=SIZES, help="how many queries and keys")
    parser.add_argument("--scale", type=float, nargs="+", default=SCALES, help="the standard deviation of the scores")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=DTYPES)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many draws of the arrays")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.n) < 1:
        parser.error("there must be at least one seed, one query and one key")
    if "float64" in options.dtype:
        _truth.check_precision()

    columns = implementations()
    rows = []
    for cell in itertools.starmap(Cell, itertools.product(options.dtype, options.n, options.scale)):
        print(f"{cell.dtype}, n = {cell.n}, scale {cell.scale:g}", file=sys.stderr, flush=True)
        rows += measure(cell, range(options.seeds), columns)
    print_rows(rows, list(columns))
    found = above_limit(rows)
    for name, count in found.items():
        print(f"{name}: {count} of {len(rows)} ratios above {LIMIT}")
    if options.json is not None:
        machine = describe("torch", "jax")
        result = {**machine, "seeds": options.seeds, "limit": LIMIT, "above_limit": found, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
