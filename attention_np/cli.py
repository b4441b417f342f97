"""The command line: ``python -m attention_np``, also installed as ``attention-np``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention_np import cases, verification

__all__ = ["main"]

HOLDS, FAILS, UNUSABLE = 0, 1, 2  # exit codes

NEEDED = {"rich": "rich", "lark": "lark", "yaml": "PyYAML"}  # modules of the extra `check`, and their packages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 all holds, 1 something does not, 2 unusable arguments."""
    parser = argparse.ArgumentParser(
        prog="attention-np", description="Attention and its gradients in pure NumPy, verified."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check", help="verify every gradient numerically, execute every derivation page, and print the tables"
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="an op or a page; by default all")
    check.add_argument("--derivations", type=Path, metavar="DIR", help="the folder of the pages")
    check.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE as well")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed why; --help is no error
        return int(stop.code or 0)
    return _check(options.names, options.derivations, options.json)


def _check(names: Sequence[str], folder: Path | None, file: Path | None) -> int:
    missing = [package for module, package in NEEDED.items() if not _is_installed(module)]
    if missing:
        return _refuse(f"check needs {', '.join(missing)}: pip install 'attention-np[check]'")
    if folder is not None and not folder.is_dir():
        return _refuse(f"there is no folder {folder}")
    if folder is None and verification.PAGES.is_dir():
        folder = verification.PAGES
    pages = verification.page_names(folder) if folder is not None else []
    names = [name if name in pages else name.replace("-", "_") for name in names]  # tags have hyphens
    unknown = [name for name in names if name not in cases.OPS and name not in pages]
    if unknown:
        known = dict.fromkeys([*cases.OPS, *pages])
        return _refuse(f"there is no op or page called {', '.join(unknown)}: there are {', '.join(known)}")
    if file is not None and file.is_dir():
        return _refuse(f"cannot write {file}: it is a folder")
    if file is not None and not file.absolute().parent.is_dir():
        return _refuse(f"cannot write {file}: there is no folder {file.absolute().parent}")

    from attention_np import _tables

    everything = [*cases.OPS, *pages]
    findings = verification.check_ops(_tables.progress(cases.all_cases(names or cases.OPS)))
    _tables.print_findings(findings)
    report = None
    if folder is None:
        _tables.say("No derivation pages here: --derivations names their folder.")
    else:
        report = verification.of_pages(verification.check_pages(folder), names or everything)
        _tables.print_report(report)
    holds = all(finding.ok for finding in findings) and (report is None or report.ok)
    _tables.print_faults(findings, report)
    if file is not None:
        content = json.dumps(_content(holds, findings, report), indent=1, allow_nan=False) + "\n"
        try:
            file.write_text(content, encoding="utf-8")
        except OSError as error:
            return _refuse(f"cannot write {file}: {error.strerror}")
    return HOLDS if holds else FAILS


def _content(holds: bool, findings: Sequence[verification.Finding], report: Any) -> dict[str, Any]:
    """The report as JSON: a NaN or an infinity becomes null."""
    rows = [*findings, *(verification.against_pages(report) if report is not None else ())]
    return {
        "ok": holds,
        "ops": [_as_json(row) for row in rows],
        "equations": report.as_json() if report is not None else [],
        "problems": list(report.problems) if report is not None else [],
    }


def _as_json(row: verification.Finding) -> dict[str, Any]:
    fields = row._asdict() | {"error": row.error if math.isfinite(row.error) else None}
    return {name: value for name, value in fields.items() if name != "note"}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # somebody has put None in its place
        return False


def _refuse(reason: str) -> int:
    print(f"attention-np: {reason}", file=sys.stderr)  # noqa: T201
    return UNUSABLE
