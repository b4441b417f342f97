"""``attention-np info``: what NumPy runs on here, how fast it is, and what would make it faster."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from attention_np._lib.text import in_bytes, table
from attention_np.cli import rates
from attention_np.cli.advice import Advice, advise
from attention_np.cli.facts import THREAD_VARIABLES, Blas, Facts, gather
from attention_np.cli.outcome import HOLDS, refuse, why_not_writable

__all__ = ["HELP", "add_arguments", "run"]

HELP = "NumPy, its BLAS, cores and measured rates, and what would make attention faster here"
WIDTH = 110
BUSY = 0.5  # of a core, taken by others in the last minute
UNKNOWN = "unknown without threadpoolctl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE as well")


def run(options: argparse.Namespace) -> int:
    """Look, measure, and print."""
    unwritable = None if options.json is None else why_not_writable(options.json)
    if unwritable:
        return refuse(unwritable)
    facts = gather()
    as_it_is = rates.measure({})
    one_thread = rates.measure(dict.fromkeys(THREAD_VARIABLES, "1"))
    if as_it_is is not None:
        blas = [found._replace(kernels=found.kernels or as_it_is.kernels) for found in facts.blas]
        facts = facts._replace(blas=blas)
    advice = list(advise(facts, as_it_is, rates.measure))

    text = [_describe(facts), "", _rates(facts, as_it_is, one_thread), "", *_busy(facts), _advice(advice)]
    print("\n".join(text))  # noqa: T201
    if options.json is not None:
        content = _as_json({"facts": facts, "rates": as_it_is, "one_thread": one_thread, "advice": advice})
        try:
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            return refuse(f"cannot write {options.json}: {error.strerror}")
    return HOLDS


def _describe(facts: Facts) -> str:
    cores = f"{facts.cores.present}"
    if facts.cores.allowed < facts.cores.present:
        cores += f", of which the process may run on {facts.cores.allowed}"
    if facts.cores.quota is not None:
        cores += f", with a quota of {facts.cores.quota:.3g}"
    memory = "unknown"
    if facts.memory is not None:
        memory = f"{in_bytes(facts.memory.total)}, {in_bytes(facts.memory.available)} available"
    lines = [
        ("NumPy", f"{facts.numpy}, Python {facts.python}, {facts.system}"),
        ("processor", facts.processor),
        ("cores", cores),
        ("memory", memory),
        ("SIMD of NumPy", ", ".join(facts.simd) or "unknown"),
        ("exp2 of NumPy", "unknown in NumPy 1" if facts.exp2 is None else f"for {facts.exp2}"),
        *(("BLAS", _blas(blas)) for blas in facts.blas or [Blas("unknown", None, None, None, None)]),
        *(("environment", f"{name}={value}") for name, value in facts.variables.items()),
        ("threadpoolctl", facts.threadpoolctl or "not installed"),
    ]
    return table(lines, left=2)


def _blas(blas: Blas) -> str:
    threads = f"threads: {UNKNOWN}"
    if blas.threads is not None:
        threads = f"{blas.threads} thread{'' if blas.threads == 1 else 's'}"
        threads += f" ({blas.threading})" if blas.threading else ""
    kernels = f"{blas.kernels} kernels" if blas.kernels else f"kernels: {UNKNOWN}"
    return ", ".join([f"{blas.name} {blas.version or ''}".strip(), kernels, threads])


def _rates(facts: Facts, as_it_is: rates.Rates | None, one_thread: rates.Rates | None) -> str:
    if as_it_is is None:
        return "The rates could not be measured: no other Python process could be started."
    threads = {blas.threads for blas in facts.blas}
    known = threads.pop() if len(threads) == 1 else None
    names = list(as_it_is.products)
    lines = [("measured", *names)]
    lines.append((f"matrix product, {_threads(known)}", *(f"{as_it_is.products[name]:.3g} GF/s" for name in names)))
    if one_thread is not None and known != 1:
        lines.append(("matrix product, 1 thread", *(f"{one_thread.products[name]:.3g} GF/s" for name in names)))
    lines.append(("exp", *(f"{as_it_is.exp[name]:.2f} ns" for name in names)))
    lines.append(("exp2", *(f"{as_it_is.exp2[name]:.2f} ns" for name in names)))
    return table(lines)


def _busy(facts: Facts) -> list[str]:
    if facts.load is None or facts.load < BUSY:
        return []
    return [f"Other programs are running (load {facts.load:.1f}): the machine is faster than measured.", ""]


def _threads(number: int | None) -> str:
    return "all threads" if number is None else f"{number} thread{'' if number == 1 else 's'}"


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return "Nothing was found that would make it faster."
    lines = ["What would make it faster:"]
    for each in advice:
        text = each.text
        if each.ratios:
            ratios = " and ".join(f"{ratio:.2f} times as fast in {name}" for name, ratio in each.ratios.items())
            text += f" Measured: {each.gains} {ratios}."
        lines.append(fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))
    return "\n".join(lines)


def _as_json(value: Any) -> Any:
    """`value` with its named tuples as objects."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list) else value
