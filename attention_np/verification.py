"""All that `check` verifies: ops against numbers, pages against mathematics, ops and pages against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attention_np import cases
from attention_np.gradcheck import METHODS, check_op

if TYPE_CHECKING:
    from attention_np.derivation import Report

__all__ = ["PAGES", "Finding", "against_pages", "check_ops", "check_pages", "of_pages", "page_names"]

PACKAGE = Path(__file__).resolve().parent
PAGES = PACKAGE.parent / "derivations"  # beside the package in a clone; an installed package has no pages


class Finding(NamedTuple):
    """One array of an op, in one case, under one method."""

    op: str
    case: str
    input: str
    method: str
    error: float
    ok: bool


def check_ops(examples: Iterable[cases.Case]) -> list[Finding]:
    """Every gradient of every case by every method, and forward mode against backward mode."""
    findings = []
    for example in examples:
        for method in METHODS:
            for entry in check_op(example.module, example.inputs, method=method, **example.options):
                if entry.method == "adjoint" and method != METHODS[0]:
                    continue  # it does not depend on the method
                name = "all, forward mode" if entry.method == "adjoint" else entry.name
                findings.append(
                    Finding(example.op, example.name, name, entry.method, entry.max_relative_error, entry.ok)
                )
    return findings


def page_names(folder: Path) -> list[str]:
    """The pages in `folder`, by the names of their files."""
    return sorted(file.stem for file in folder.glob("*.md"))


def check_pages(folder: Path) -> Report:
    """Every equation of every page in `folder`, the ops against the pages, and who cites what."""
    from attention_np.derivation import read_pages, verify

    sources = [Path(str(op.__file__)) for op in cases.OPS.values()]
    return verify(read_pages([folder]), sources=sources, operators=cases.OPS, root=PACKAGE.parent)


def of_pages(report: Report, names: Sequence[str]) -> Report:
    """The part of `report` that is about the pages called `names`, and the ops of the same names."""
    stems = {name.replace("_", "-") for name in names}
    return replace(
        report,
        records=[record for record in report.records if record.page in stems],
        fields=[field for field in report.fields if field.page in stems],
        problems=[problem for problem in report.problems if Path(problem.partition(":")[0]).stem in names],
    )


def against_pages(report: Report) -> list[Finding]:
    """What the comparison of ops with pages found, in the form of the other findings on ops."""
    return [
        Finding(field.op, f"page {field.page}", field.name, "page", field.error, bool(field.ok))
        for field in report.fields
    ]
