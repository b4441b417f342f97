"""Linear attention in chunks beside a straightforward chunked form in PyTorch, and as the length grows.

From the root of the repository:

    python -m benchmarks.linear_attention [--n N] [--longest N] [--heads H] [--rounds R] [--json FILE]

The gated delta rule, forward and backward, heads of 64, chunks of 64. Beside PyTorch both are on one thread: at the
usual size ours takes no workers, and BLAS is held to one. With --heads and --n so large that `LEAST` of
``attention_np/_linear_attention/chunks.py`` is reached, ours has a worker for each core, and PyTorch still one thread.
The lengths are of one head, so of one thread. PyTorch's gradients are those of its autograd. A probe and a response are
timed beside the delta rule, with the same tokens, without decays, with one, and with one for each feature. They write
two kinds of rows where the delta rule writes one, so each product of pairs is four and not two: 42 products of a chunk,
forward and backward, against 27. What is no product takes about as long in both; the less it takes, the nearer the
times are to 42 / 27.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from attention_np import linear_attention
from attention_np._lib.blas import one_thread
from benchmarks._command_line import add_json, console, count, store
from benchmarks._machine import describe
from benchmarks._timing import interleaved, spread
from benchmarks.checkers import installed

Array = npt.NDArray[Any]
N, LONGEST, HEADS, D, ROUNDS = 1024, 131072, 4, 64, 5
MOST = 1.0  # of PyTorch's time
MOST_OF_PROBE = 1.3  # of the time of the delta rule with as many decays
STEEPEST = 1.25  # times as much time, or memory, for a token of the longest sequence as for one of the shortest


def random_inputs(n: int, heads: int, dtype: str) -> dict[str, Array]:
    """Keys of length one, some decay, steps between 0 and 1."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((heads, n, D)) for _ in range(3))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    beta, log_decay = rng.uniform(0, 1, (heads, n)), -rng.exponential(0.1, (heads, n, 1))
    inputs = {"query": query, "key": key, "value": value, "log_decay": log_decay, "beta": beta}
    return {name: x.astype(dtype) for name, x in inputs.items()}


def with_probe(inputs: dict[str, Array]) -> dict[str, Array]:
    """The tokens with a probe and a response in the place of beta, of the same lengths."""
    others = {name: x for name, x in inputs.items() if name != "beta"}
    return others | {"probe": inputs["key"], "response": -inputs["beta"][..., None] * inputs["key"]}


def ours(inputs: dict[str, Array]) -> Callable[[], Any]:
    """Output and gradients by this package."""

    def both() -> Any:
        with one_thread():
            output, cache = linear_attention.forward(**inputs, chunk_size=D)
            return output, *(x for x in linear_attention.backward(output, cache) if x is not None)

    return both


def by_torch(inputs: dict[str, Array]) -> Callable[[], Any]:
    """The same by PyTorch: row by row for the inverse, chunk by chunk for the state."""
    import torch

    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    heads, n = inputs["beta"].shape
    later = torch.ones(D, D).triu().bool()  # the token itself, and those behind it

    def forward(query: Any, key: Any, value: Any, log_decay: Any, beta: Any) -> Any:
        q, k, v, g = (x.reshape(heads, n // D, D, -1) for x in (query * D**-0.5, key, value, log_decay))
        b = beta.reshape(heads, n // D, D, 1)
        so_far = g[..., 0].cumsum(-1)  # (heads, T, D)
        between = (so_far[..., :, None] - so_far[..., None, :]).masked_fill(later.triu(1), -torch.inf).exp()
        rows = -((b * k) @ k.mT * between).masked_fill(later, 0)
        for i in range(1, D):
            row = rows[..., i, :i].clone()
            rows = rows.clone()
            rows[..., i, :i] = row + (row[..., None] * rows[..., :i, :i].clone()).sum(-2)
        solver = rows + torch.eye(D, dtype=rows.dtype)
        written, erased = solver @ (b * v), solver @ (b * k * so_far.exp()[..., None])
        state, outputs = torch.zeros(heads, D, D, dtype=q.dtype), []
        for t in range(n // D):
            writes = written[:, t] - erased[:, t] @ state
            read = (q[:, t] * so_far[:, t, :, None].exp()) @ state
            outputs.append(read + (q[:, t] @ k[:, t].mT * between[:, t]) @ writes)
            kept = k[:, t] * (so_far[:, t, -1:] - so_far[:, t]).exp()[..., None]
            state = state * so_far[:, t, -1, None, None].exp() + kept.mT @ writes
        return torch.cat(outputs, 1)

    def both() -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            output = forward(**tensors)
            return output, *torch.autograd.grad(output, list(tensors.values()), output.detach())
        finally:
            torch.set_num_threads(threads)

    return both


def measure(n: int, longest: int, heads: int, rounds: int) -> dict[str, Any]:
    """Rows of how long each takes, how far PyTorch's numbers are from ours, and the time of a token as n grows."""
    rows, reached = [], {}
    for dtype in ("float32", "float64"):
        inputs = random_inputs(n, heads, dtype)
        runs = {"ours": ours(inputs)} | ({"torch": by_torch(inputs)} if installed("torch") else {})
        times = interleaved(runs, rounds)
        medians = {name: spread(found).median for name, found in times.items()}
        row: dict[str, Any] = {"dtype": dtype, "milliseconds": {name: 1000 * x for name, x in medians.items()}}
        if "torch" in runs:
            pairs = zip(runs["ours"](), runs["torch"](), strict=True)
            row["difference"] = max(float(np.abs(x - np.asarray(y.detach())).max() / np.abs(x).max()) for x, y in pairs)
            row["ratio"] = medians["ours"] / medians["torch"]
            reached[f"at most {MOST} times PyTorch's time, {dtype}"] = row["ratio"] <= MOST
        rows.append(row)
    probes = []
    for dtype in ("float32", "float64"):
        for decays, width in (("none", 0), ("one", 1), ("one a feature", D)):
            inputs = random_inputs(n, heads, dtype)
            one = inputs.pop("log_decay")
            inputs |= {"log_decay": np.repeat(one, width, axis=-1)} if width else {}
            runs = {"delta": ours(inputs), "probe": ours(with_probe(inputs))}
            medians = {name: spread(found).median for name, found in interleaved(runs, rounds).items()}
            milliseconds = {name: 1000 * x for name, x in medians.items()}
            ratio = medians["probe"] / medians["delta"]
            probes.append({"dtype": dtype, "decays": decays, "milliseconds": milliseconds, "ratio": ratio})
            reached[f"at most {MOST_OF_PROBE} times the delta rule's time, {decays}, {dtype}"] = ratio <= MOST_OF_PROBE
    lengths = [length for length in (longest // 16, longest // 4, longest) if length]
    growing = {length: ours(random_inputs(length, 1, "float32")) for length in lengths}
    times = interleaved(growing, min(rounds, 3))
    of_token = {
        "microseconds": {length: 1e6 * spread(times[length]).median / length for length in lengths},
        "bytes": {length: peak_of(growing[length]) / length for length in lengths},
    }
    for what, found in of_token.items():
        reached[f"{what} linear in n"] = found[lengths[-1]] <= STEEPEST * found[lengths[0]]
    return {"n": n, "heads": heads, "rows": rows, "probes": probes, "a_token": of_token, "targets": reached}


def peak_of(call: Callable[[], Any]) -> int:
    """The most bytes that a call has at once, its results included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def print_table(
    rows: Sequence[dict[str, Any]], probes: Sequence[dict[str, Any]], of_token: dict[str, dict[int, float]]
) -> None:
    """A line for each dtype, and one for the lengths."""
    table = Table(box=box.SIMPLE_HEAD, title="Gated delta rule, heads of 64, chunks of 64, forward and backward")
    for header in ("dtype", "ours, ms", "PyTorch, ms", "ratio", "difference"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        ms = row["milliseconds"]
        peer = (
            (f"{ms['torch']:.1f}", f"{row['ratio']:.2f}", f"{row['difference']:.1e}") if "torch" in ms else ("", "", "")
        )
        table.add_row(row["dtype"], f"{ms['ours']:.1f}", *peer)
    console().print(table)
    table = Table(box=box.SIMPLE_HEAD, title="A probe and a response beside the delta rule, forward and backward")
    for header in ("dtype", "decays", "delta rule, ms", "probe, ms", "ratio"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in probes:
        ms = row["milliseconds"]
        table.add_row(row["dtype"], row["decays"], f"{ms['delta']:.1f}", f"{ms['probe']:.1f}", f"{row['ratio']:.2f}")
    console().print(table)
    for what, found in of_token.items():
        print(f"{what} a token, one head, float32: {', '.join(f'{x:.1f} at n = {n}' for n, x in found.items())}")


def main() -> None:
    """Time everything, print the table and write the numbers to a file."""
    parser = argparse.ArgumentParser(prog="linear_attention", description="Linear attention in chunks beside PyTorch")
    parser.add_argument("--n", type=count, default=N, help="tokens, a multiple of 64 (default: %(default)s)")
    parser.add_argument("--longest", type=count, default=LONGEST, help="the longest sequence (default: %(default)s)")
    parser.add_argument("--heads", type=count, default=HEADS, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    add_json(parser, "linear_attention")
    options = parser.parse_args()
    if options.n % D:
        parser.error(f"n = {options.n} is no multiple of {D}")
    result = measure(options.n, options.longest, options.heads, options.rounds)
    print_table(result["rows"], result["probes"], result["a_token"])
    store(options.json, {"machine": describe(), **result})


if __name__ == "__main__":
    main()
