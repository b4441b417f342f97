"""``attention-np known-answers``: inputs, answers and error bounds that a kernel in any language can be tested with."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_np.cli.outcome import HOLDS, missing, refuse
from attention_np.known_answers import write
from attention_np.known_answers.examples import OF_KERNELS, OPS, SETS
from attention_np.known_answers.formats import OF_CASES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="where to; an earlier set is replaced")
    names = (*OPS, "blockwise", *OF_KERNELS)
    parser.add_argument("--op", action="append", choices=names, help="this op alone; may be repeated")
    parser.add_argument("--set", choices=SETS, default="standard", help="by default standard")
    parser.add_argument("--dtype", action="append", choices=OF_CASES, help="this dtype alone; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Write, say what was written, and return 0."""
    try:
        count = write(options.directory, ops=options.op, dtypes=options.dtype, cases=options.set, progress=_progress())
    except ImportError as error:
        return refuse(str(error))
    except ValueError as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(f"cannot write {options.directory}: {error.strerror}" if error.strerror else str(error))
    print(f"{options.directory}: {count} files, described by manifest.json")  # noqa: T201
    return HOLDS


def _progress() -> Callable[[Any], Any]:
    """A bar on the terminal, if Rich is installed."""
    if missing({"rich": "rich"}):
        return iter
    from attention_np.cli import tables

    return tables.progress
