"""The command line: ``python -m attention_np``, also installed as ``attention-np``; a module for each command.

Each has ``HELP``, one line; ``add_arguments(parser)``; and ``run(options)``, which returns the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import attention_np
from attention_np.cli import check, cost, known_answers, trace

__all__ = ["main"]

COMMANDS = {"check": check, "cost": cost, "trace": trace, "known-answers": known_answers}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 all holds, 1 something does not, 2 unusable arguments."""
    parser = argparse.ArgumentParser(
        prog="attention-np", description="Attention and its gradients in pure NumPy, verified."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {attention_np.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP, description=command.HELP.capitalize() + "."))
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed why; --help is no error
        return int(stop.code or 0)
    exit_code: int = COMMANDS[options.command].run(options)
    return exit_code
