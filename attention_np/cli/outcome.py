"""How a command ends."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOLDS, FAILS, UNUSABLE = 0, 1, 2  # exit codes


def refuse(reason: str) -> int:
    """Say why the arguments cannot be used, and return the exit code for it."""
    print(f"attention-np: {reason}", file=sys.stderr)  # noqa: T201
    return UNUSABLE


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
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
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
