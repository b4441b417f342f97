"""How a command ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attention_np._lib.files import write_whole

HOLDS, FAILS, UNUSABLE = 0, 1, 2  # exit codes
INTERRUPTED, NOBODY_READS = 130, 141  # those of a shell for what SIGINT and SIGPIPE end


def refuse(reason: str) -> int:
    """Say why the arguments cannot be used, and return the exit code for it."""
    print(f"attention-np: {reason}", file=sys.stderr)  # noqa: T201
    return UNUSABLE


def ended(command: Callable[[], int]) -> int:
    """What a command returns; the exit code, and a line if there is something to say, of one that was cut short."""
    if sys.stdout is None:  # it was closed before Python began
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            return ended(command)
    try:
        exit_code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("attention-np: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except MemoryError as error:
        return refuse(f"there is not enough memory: {error}" if str(error) else "there is not enough memory")
    except OSError as error:
        if error.filename is not None:  # a file, and not what is printed
            raise
        with contextlib.suppress(OSError, ValueError):  # what is left would be written at the end, and fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS if isinstance(error, BrokenPipeError) else refuse(f"cannot print: {error.strerror}")
    return exit_code


def missing(packages: Mapping[str, str]) -> list[str]:
    """Which packages are not installed, given as {module: package}."""
    return [package for module, package in packages.items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # somebody has put None in its place
        return False


def write_json(file: Path, content: Any) -> str | None:
    """Write `content`, which has no NaN and no infinity; say why that cannot be."""
    try:
        write_whole(file, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        return f"cannot write {file}: {error.strerror}"
    return None


def why_not_writable(file: Path) -> str | None:
    """Why a file cannot be written, as far as that is seen before the work is done."""
    if file.is_dir():
        return f"cannot write {file}: it is a folder"
    if not file.absolute().parent.is_dir():
        return f"cannot write {file}: there is no folder {file.absolute().parent}"
    return None
