"""The tables of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from attention_np._lib.text import legible
from attention_np.cli.verification import Finding

if TYPE_CHECKING:
    from attention_np.derivation import Verification

__all__ = ["print_faults", "print_findings", "print_report", "progress", "say"]

Item = TypeVar("Item")

PIPE_WIDTH = 140  # where the output is no terminal


def progress(items: Sequence[Item]) -> Iterable[Item]:
    """The items, with a bar on the terminal, if there is one, while they are worked on."""
    terminal = Console(stderr=True)
    return track(items, "Checking", console=terminal, transient=True, disable=not terminal.is_terminal)


def say(line: str, style: str = "") -> None:
    """Print one line as it is."""
    _console().print(Text(legible(line), style=style), soft_wrap=True)


def print_findings(findings: Sequence[Finding]) -> None:
    """One line for each input of an op and each method: the worst of its cases."""
    if not findings:
        return
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.op, finding.input, finding.method), []).append(finding)
    table = Table(box=box.SIMPLE_HEAD, title="Gradients against numerical ones: the largest relative error")
    for header, words in zip(("op", "input", "method"), zip(*groups, strict=True), strict=True):
        table.add_column(header, min_width=max(map(len, words)))
    for header in ("error", "holds", "cases"):
        table.add_column(header, min_width=len("1.0e-16") if header == "error" else len(header), justify="right")
    table.add_column("the worst case", no_wrap=True, overflow="ellipsis")  # the one to be cut on a narrow terminal
    previous = next(iter(groups))[0]
    for (op, name, method), group in groups.items():
        if op != previous:
            table.add_section()
        previous = op
        worst = max(group, key=lambda finding: (not finding.ok, finding.error))
        table.add_row(op, name, method, f"{worst.error:.1e}", _verdict(worst.ok), str(len(group)), worst.case)
    _console().print(table)
    examples = len({(finding.op, finding.case) for finding in findings})
    wrong = sum(not finding.ok for finding in findings)
    say(f"{len(findings)} checks in {examples} cases: {f'{wrong} do not hold' if wrong else 'all hold'}.\n")


def print_report(report: Verification) -> None:
    """One line for each equation, and one for each array of an op that was held against its page."""
    table = Table(box=box.SIMPLE_HEAD, title="Equations of the derivation pages")
    for header in ("equation", "verdict", "error", "carried out by"):
        table.add_column(header, no_wrap=True, justify="right" if header == "error" else "left")
    previous = None
    for record in report.records:
        if record.page != previous and previous is not None:
            table.add_section()
        previous = record.page
        error = "" if record.error is None or record.verdict == "refuted" else f"{record.error:.1e}"
        if record.rounded and record.verdict == "holds":
            error = "as printed"
        style = "bold red" if record.verdict == "fails" else "dim" if record.verdict == "not executed" else ""
        tag, cited = _plain(record.tag or "(no tag)"), _plain(", ".join(record.cited_by))
        table.add_row(tag, Text(record.verdict, style=style), error, cited)
    _console().print(table)

    if report.fields:
        table = Table(box=box.SIMPLE_HEAD, title="Ops against the definitions of their pages")
        for header in ("op", "array", "symbol", "error", "agrees"):
            table.add_column(header, no_wrap=True, justify="right" if header == "error" else "left")
        for field in report.fields:
            words = map(_plain, (field.op, field.name, field.symbol))
            table.add_row(*words, f"{field.error:.1e}", _verdict(field.ok))
        _console().print(table)

    count = {verdict: report.count(verdict) for verdict in ("holds", "refuted", "fails", "not executed")}
    executed = len(report.records) - count["not executed"]
    say(
        f"{len(report.records)} equations, {executed} executed: {count['holds']} hold, {count['refuted']} are refuted "
        f"as their page says, {count['fails']} fail; {count['not executed']} say why they are not executed.\n"
    )


def print_faults(findings: Sequence[Finding], report: Verification | None) -> None:
    """Everything that does not hold, with what is known of where."""
    wrong: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if not finding.ok:
            wrong.setdefault((finding.op, finding.input), []).append(finding)
    for (op, name), group in wrong.items():
        worst = max(group, key=lambda finding: finding.error)
        methods = ", ".join(dict.fromkeys(finding.method for finding in group))
        examples = len({finding.case for finding in group})
        say(
            f"does not hold: {op}, {name}, by {methods}, in {examples} case{'s' if examples > 1 else ''}; "
            f"the worst is '{worst.case}' with a relative error of {worst.error:.1e}",
            "bold red",
        )
        for note in dict.fromkeys(finding.note for finding in group if finding.note):
            say(f"    {note}")
    if report is None:
        return
    for field in report.fields:
        if not field.ok:
            say(f"differs from its page: {field.op}, {field.name} ({field.symbol}): {field.describe()}", "bold red")
            for record in report.suspects(field):
                say(f"    a line to look at: {', '.join(record.cited_by)} carries out ({record.tag})")
    for record in report.records:
        if record.verdict == "fails":
            say(f"does not hold: ({record.tag or 'no tag'}), {record.page}, line {record.line}", "bold red")
            say(record.message)
    for problem in report.problems:
        say(problem, "bold red")


def _plain(word: str) -> Text:
    """A word from a page: whatever it holds, it is no markup."""
    return Text(legible(word))


def _verdict(ok: bool) -> Text:
    return Text("yes") if ok else Text("NO", style="bold red")


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
