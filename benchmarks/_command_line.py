"""What the programs here share: arguments, a console for tables, and files of results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

__all__ = ["add_json", "console", "count", "print_missing", "store"]

PIPE_WIDTH = 170  # where the output is no terminal


def console() -> Console:
    """A console that is wide enough for the tables where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def count(text: str) -> int:
    """The argument `text` as a number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above zero")
    return int(text)


def print_missing(machine: dict[str, Any]) -> None:
    """A line for each library that is not installed."""
    for library, found in machine["versions"].items():
        if found is None:
            print(f"{library} is not installed: what needs it is left out")


def add_json(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``--json FILE``, by default a file of the given name among what is built."""
    parser.add_argument(
        "--json",
        type=_file,
        default=f"build/benchmarks/{name}.json",
        metavar="FILE",
        help="where to write the numbers (default: %(default)s)",
    )


def _file(text: str) -> Path:
    """A file that can be written: found out before the work, not after it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path.parent} cannot be made: {error.strerror}") from None
    return path


def store(path: Path, result: dict[str, Any]) -> None:
    """Write everything to `path`."""
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"written to {path}")
