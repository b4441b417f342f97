"""``attention-np verify``: a folder of results against a folder of known answers."""

from __future__ import annotations

import argparse
from pathlib import Path

from attention_np._lib.text import legible
from attention_np.cli.outcome import FAILS, HOLDS, refuse
from attention_np.known_answers import verify_files
from attention_np.known_answers.formats import OF_CASES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="results: a file of each case, named as in the set")
    parser.add_argument("--answers", type=Path, metavar="OTHER", required=True, help="what `known-answers` has written")
    parser.add_argument("--dtype", action="append", choices=OF_CASES, help="this dtype alone; may be repeated")
    parser.add_argument(
        "--capabilities", type=Path, metavar="FILE", help="what the kernel can do, in JSON: other cases are left out"
    )
    parser.add_argument("--skip", action="append", default=[], metavar="TAG", help="a tag, or the name of a case")


def run(options: argparse.Namespace) -> int:
    """Compare, print the report, and return 0 if all is within the bounds, 1 if not, 2 if nothing could be compared."""
    try:
        report = verify_files(
            options.directory,
            options.answers,
            dtypes=options.dtype,
            skip=options.skip,
            capabilities=options.capabilities,
        )
    except (FileNotFoundError, ImportError, ValueError) as error:
        return refuse(legible(str(error)))
    print(legible(str(report)))  # noqa: T201
    return HOLDS if report.ok else FAILS
