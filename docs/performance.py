"""The tables of ``docs/performance.md``, from ``docs/measured``: ``python -m docs.performance`` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.tables import table, written

__all__ = ["page"]

HERE = Path(__file__).resolve().parent
PAGE, SPEED, CLUSTER = (HERE / name for name in ("performance.md", "measured/speed.json", "measured/cluster.json"))
COMMENTS = tuple(
    (f"<!-- {of}, written by python -m docs.performance -->", f"<!-- end of {of} -->") for of in ("speed", "cluster")
)
TIMES, RATIOS = ("ours", "NumPy", "PyTorch", "floor"), ("ours / NumPy", "ours / PyTorch", "ours / floor")


def page(text: str, speed: dict[str, Any], cluster: dict[str, Any]) -> str:
    """The `text` of the page, with the tables as they were measured.

    Raises
    ------
    ValueError
        If the text does not have the comments that the tables stand between.
    """
    text = written(PAGE.name, text, COMMENTS[0], "\n".join(_speed(speed)))
    return written(PAGE.name, text, COMMENTS[1], "\n".join(_cluster(cluster)))


def _machine(machine: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    load = machine.get("load")
    busy = f", busy with other programs (load average {load:.0f})" if load and load > machine["cores"] else ""
    return f"{machine['processor']}, {machine['cores']} cores{busy}, {libraries}"


def _speed(measured: dict[str, Any]) -> Iterator[str]:
    yield f"Measured on {_machine(measured['machine'])}: milliseconds, the least of {measured['rounds']} rounds.\n"
    yield table(("", "shape", "dtype", "pass", *TIMES, *RATIOS), _lines(measured["rows"]), left=4)


def _lines(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        shape = " x ".join(map(str, row["shape"]))
        times = [f"{row['milliseconds'][name]:.3g}" if name in row["milliseconds"] else "" for name in TIMES]
        ratios = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in RATIOS]
        yield [row["name"], shape, row["dtype"], row["pass"], *times, *ratios]


def _cluster(measured: dict[str, Any]) -> Iterator[str]:
    sizes = f"{measured['heads']} heads, n = m = {measured['n']}, d = 64, float32, {measured['workers']} processes"
    yield f"Measured on {_machine(measured['machine'])}: {sizes}; the least of {measured['rounds']} rounds.\n"
    headings = ("", "one process, ms", "cluster, ms", "tasks", "sent, MB", "received, MB")
    yield table(headings, (_of_way(row) for row in measured["rows"]))


def _of_way(row: dict[str, Any]) -> list[str]:
    times = [f"{row[name]:.0f}" for name in ("one process", "cluster")]
    return [row["way"], *times, str(row["tasks"]), *(f"{row[name] / 1e6:.2f}" for name in ("sent", "received"))]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    speed, cluster = (json.loads(file.read_text(encoding="utf-8")) for file in (SPEED, CLUSTER))
    PAGE.write_text(page(text, speed, cluster), encoding="utf-8")
