"""The tables of ``docs/accuracy.md``, from ``docs/measured/accuracy.json``: ``python -m docs.accuracy`` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.tables import table, written

__all__ = ["page"]

HERE = Path(__file__).resolve().parent
PAGE, MEASURED = HERE / "accuracy.md", HERE / "measured/accuracy.json"
COMMENTS = "<!-- written by python -m docs.accuracy -->", "<!-- end of what is written -->"
RESULTS = {"output": "output", "query": "d_query", "key": "d_key", "value": "d_value"}
OURS = ("dot_product", "blockwise")
SCALE, SIZE = 1.0, 1024  # of the table of errors


def page(text: str, measured: dict[str, Any]) -> str:
    """The `text` of the page, with the tables as they were `measured`.

    Raises
    ------
    ValueError
        If the text does not have the two comments that the tables stand between.
    """
    return written(PAGE.name, text, COMMENTS, "\n".join(_tables(measured)))


def _tables(measured: dict[str, Any]) -> Iterator[str]:
    rows = measured["rows"]
    libraries = ", ".join(f"{name} {version}" for name, version in measured["versions"].items() if version)
    yield f"Measured with {libraries} on {measured['processor']}, {measured['seeds']} seeds.\n"
    for op in OURS:
        above = measured["above_limit"][op]
        yield f"**`{op}`**: the largest ratio to the best peer. {above} of {len(rows)} ratios are above 1.05.\n"
        yield table(("dtype", "n", *RESULTS.values()), _ratios(rows, op))
    names = list(rows[0]["root_mean_squares"])
    yield f"The mean relative error at n = {SIZE}, scale {SCALE:g}.\n"
    yield table(("dtype", "of", *names), _errors(rows, names), left=2)


def _ratios(rows: list[dict[str, Any]], op: str) -> Iterator[list[str]]:
    """For each dtype and number of keys, the largest ratio over the scales and both kinds of error."""
    for dtype, n in dict.fromkeys((row["dtype"], row["n"]) for row in rows):
        line = [dtype, str(n)]
        for result in RESULTS:
            found = [row["ratios"][op] for row in rows if (row["dtype"], row["n"], row["result"]) == (dtype, n, result)]
            line.append(f"{max(found):.2f}")
        yield line


def _errors(rows: list[dict[str, Any]], names: list[str]) -> Iterator[list[str]]:
    for row in rows:
        if (row["n"], row["scale"], row["error"]) == (SIZE, SCALE, "mean"):
            yield [row["dtype"], RESULTS[row["result"]], *(f"{row['root_mean_squares'][name]:.2e}" for name in names)]


if __name__ == "__main__":
    found = page(PAGE.read_text(encoding="utf-8"), json.loads(MEASURED.read_text(encoding="utf-8")))
    PAGE.write_text(found, encoding="utf-8")
