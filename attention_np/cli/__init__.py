"""The command line: ``python -m attention_np``, also installed as ``attention-np``; a module for each command.

Each has ``add_arguments(parser)`` and ``run(options)``, which returns the exit code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import attention_np
from attention_np.cli.outcome import ended

__all__ = ["main"]

COMMANDS = {
    "check": "verify every gradient numerically, execute every derivation page, and print the tables",
    "cost": "operations, bytes moved and memory of attention, plain and blockwise, and what fits in memory here",
    "trace": "print every step of attention on a sentence, forward and backward, in small numbers",
    "atlas": "the attention of published models: recipe, what is whole or missing, and the worst error of a stored run",
    "verify": "hold a folder of results against a folder of known answers, and say what is wrong in a sentence",
    "known-answers": "write known answers, with gradients and error bounds, to test attention in any language with",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 all holds, 1 something does not, 2 unusable arguments."""
    return ended(lambda: _run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="attention-np", description="Attention and its gradients in pure NumPy, verified."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {attention_np.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in COMMANDS if name in arguments}
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what.capitalize() + ".")
        if name in modules:
            modules[name].add_arguments(command)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed why; --help is no error
        return int(stop.code or 0)
    exit_code: int = modules[options.command].run(options)
    return exit_code
