"""The command line: ``python -m attention_np``, also installed as ``attention-np``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_np.cases import OPS, Case, all_cases
from attention_np.gradcheck import METHODS, check_op

__all__ = ["main"]

HOLDS, FAILS, UNUSABLE = 0, 1, 2  # exit codes


class Finding(NamedTuple):
    """One input of one case under one method."""

    op: str
    case: str
    input: str
    method: str
    error: float
    ok: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 all holds, 1 something does not, 2 unusable arguments."""
    parser = argparse.ArgumentParser(
        prog="attention-np", description="Attention and its gradients in pure NumPy, verified."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="verify every gradient numerically and print a table")
    check.add_argument("names", nargs="*", metavar="NAME", help=f"what to check, of {', '.join(OPS)}; by default all")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the findings to FILE as well")
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed why; --help is no error
        return int(stop.code or 0)
    return _check(options.names, options.json)


def _check(names: Sequence[str], report: Path | None) -> int:
    unknown = [name for name in names if name not in OPS]
    if unknown:
        return _refuse(f"there is no op called {', '.join(unknown)}: there are {', '.join(OPS)}")
    if report is not None and not report.absolute().parent.is_dir():
        return _refuse(f"cannot write {report}: there is no folder {report.absolute().parent}")
    if report is not None and report.is_dir():
        return _refuse(f"cannot write {report}: it is a folder")
    try:
        import rich  # noqa: F401
    except ImportError:
        return _refuse("check prints its table with rich, which is missing: pip install 'attention-np[check]'")

    findings = _findings(all_cases(names or OPS))
    _print(findings)
    holds = all(finding.ok for finding in findings)
    if report is not None:
        content = {"ok": holds, "ops": [_as_json(finding) for finding in findings], "equations": []}
        report.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return HOLDS if holds else FAILS


def _findings(cases: Sequence[Case]) -> list[Finding]:
    from rich.console import Console
    from rich.progress import track

    findings = []
    terminal = Console(stderr=True)
    for case in track(cases, "Checking", console=terminal, transient=True, disable=not terminal.is_terminal):
        for method in METHODS:
            for entry in check_op(case.module, case.inputs, method=method, **case.options):
                if entry.method == "adjoint" and method != METHODS[0]:
                    continue  # it does not depend on the method
                name = "all, forward mode" if entry.method == "adjoint" else entry.name
                findings.append(
                    Finding(case.op, case.name, name, entry.method, entry.max_relative_error, bool(entry.ok))
                )
    return findings


def _print(findings: Sequence[Finding]) -> None:
    """One line for each input and method with its worst case, then each finding that does not hold."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Analytic gradients against numerical ones")
    for header in ("op", "input", "method"):
        table.add_column(header, no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("largest relative error", justify="right", no_wrap=True)
    table.add_column("in the case")
    table.add_column("holds", no_wrap=True)
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.op, finding.input, finding.method), []).append(finding)
    previous = None
    for (op, name, method), group in groups.items():
        if previous not in (None, op):
            table.add_section()
        previous = op
        worst = max(group, key=lambda finding: (not finding.ok, finding.error))
        verdict = "yes" if worst.ok else "[bold red]NO[/]"
        table.add_row(op, name, method, str(len(group)), f"{worst.error:.1e}", worst.case, verdict)
    console = Console(width=None if sys.stdout.isatty() else 140, soft_wrap=False)
    console.print(table)

    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        console.print(
            f"[bold red]does not hold[/]: {finding.op}, {finding.input}, by {finding.method}, "
            f"in the case '{finding.case}': relative error {finding.error:.1e}"
        )
    cases = len({(finding.op, finding.case) for finding in findings})
    verdict = "all hold" if not wrong else f"{len(wrong)} do not hold"
    console.print(f"{len(findings)} checks in {cases} cases: {verdict}.")


def _as_json(finding: Finding) -> dict[str, Any]:
    return finding._asdict() | {"error": finding.error if math.isfinite(finding.error) else None}


def _refuse(reason: str) -> int:
    print(f"attention-np: {reason}", file=sys.stderr)  # noqa: T201
    return UNUSABLE
