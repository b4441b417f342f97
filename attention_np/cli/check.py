"""``attention-np check``: every gradient held against numerical ones, every page executed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attention_np import cases
from attention_np._lib.pages import PAGES
from attention_np.cli import verification
from attention_np.cli.outcome import FAILS, HOLDS, missing, refuse, why_not_writable, write_json

NEEDED = {"rich": "rich", "lark": "lark", "yaml": "PyYAML"}  # modules of the extra `check`, and their packages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="an op or a page, of which each input is shown; by default all, a line each",
    )
    parser.add_argument("--all", action="store_true", help="print every case and every equation")
    parser.add_argument(
        "--show",
        metavar="TAG",
        help="one equation: its formula, the same in NumPy, its numbers in a worked example, its code",
    )
    parser.add_argument("--derivations", type=Path, metavar="DIR", help="a folder of pages, or one page; also your own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE as well")


def run(options: argparse.Namespace) -> int:
    """Check, print, and return 0 if all holds."""
    lacking = missing(NEEDED)
    if lacking:
        return refuse(f"check needs {', '.join(lacking)}: pip install 'attention-np[check]'")
    path, file = options.derivations or PAGES, options.json
    if options.derivations is None and not path.is_dir():
        return refuse(f"there are no derivation pages: {path} is missing, from which the cases of the ops are made")
    if not path.exists():
        return refuse(f"there is no folder or page {path}")
    if options.show is not None:
        from attention_np.cli import showing

        return showing.show(options.show, path)
    pages = verification.page_names(path)
    names = [name if name in pages else name.replace("-", "_") for name in options.names]  # tags have hyphens
    alone = verification.stand_alone(path, names)
    if alone and not pages:
        return refuse(f"there is no page in {path}: a page is a file NAME.md")
    known = pages if alone else dict.fromkeys([*cases.OPS, *pages])
    unknown = [name for name in names if name not in known]
    if unknown:
        files = [name for name in unknown if Path(name).is_file()]
        hint = f"; for a page of your own: check --derivations {files[0]}" if files else ""
        return refuse(f"there is no op or page called {', '.join(unknown)}: there are {', '.join(known)}{hint}")
    unwritable = None if file is None else why_not_writable(file)
    if unwritable:
        return refuse(unwritable)

    from attention_np.cli import tables

    examples, problems = _examples(() if alone else names or cases.OPS)
    findings, report = verification.check(examples, path, names or None, tables.progress)
    report.problems += problems
    tables.print_findings(findings, "cases" if options.all else "inputs" if names else "ops")
    tables.print_report(report, options.all)
    holds = all(finding.ok for finding in findings) and report.ok
    tables.print_faults(findings, report)
    if file is not None and (fault := write_json(file, _content(holds, findings, report))):
        return refuse(fault)
    return HOLDS if holds else FAILS


def _examples(names: Iterable[str]) -> tuple[list[cases.Case], list[str]]:
    """The cases of the ops among `names`, and why there are none of an op whose page does not declare them."""
    from attention_np.derivation import Fault

    examples: list[cases.Case] = []
    problems = []
    for op in (op for op in cases.OPS if op in names):
        try:
            examples += cases.all_cases([op])
        except (FileNotFoundError, Fault) as error:  # noqa: PERF203 (five ops)
            problems.append(f"{op} has no cases: {error}")
    return examples, problems


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
    return {name: value for name, value in fields.items() if name not in ("allowed", "note")}
