"""The tables of the command line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from attention_np._lib.text import legible
from attention_np.cli.verification import Finding

if TYPE_CHECKING:
    from attention_np.derivation import Verification

Item = TypeVar("Item")

PIPE_WIDTH = 200  # where the output is no terminal


def progress(items: Sequence[Item]) -> Iterable[Item]:
    """The items, with a bar on the terminal, if there is one, while they are worked on."""
    terminal = Console(stderr=True)
    return track(items, "Checking", console=terminal, transient=True, disable=not terminal.is_terminal)


def say(line: str, style: str = "") -> None:
    """Print one line as it is."""
    _console().print(Text(legible(line), style=style), soft_wrap=True)


def print_findings(findings: Sequence[Finding], rows: str = "ops") -> None:
    """One line for each of the "ops", with the worst of its inputs; for each of the "inputs"; or of the "cases".

    Where there is a line for each input, that of the op itself is of all its inputs together: forward mode and double
    backward.
    """
    if not findings:
        return
    every = rows == "cases"
    groups: dict[tuple[str, ...], list[Finding]] = {}
    ops = list(dict.fromkeys(finding.op for finding in findings))
    for finding in sorted(findings, key=lambda finding: (ops.index(finding.op), _of_all(finding) == every)):
        key = finding.op, "" if rows == "ops" or (_of_all(finding) and not every) else finding.input
        groups.setdefault((*key, finding.method, finding.case) if every else key, []).append(finding)
    of_each = "op" if rows == "ops" else "input"
    table = _Table(f"Gradients against numerical ones: the worst relative error of each {of_each}")
    table.add_columns(**{of_each: "left"}, error="right", allowed="right", holds="left")
    table.add_columns(**({"checks": "right", "worst at": "left"} if rows == "ops" else {}), method="left", case="left")
    previous = None
    for (op, of, *_), group in groups.items():
        if op != previous and of:
            table.add_row(Text(op, style="bold"))
        previous = op
        worst = max(group, key=lambda finding: (not finding.ok, finding.share))
        name = "  " + of if of else Text(op, style="bold")
        place = (str(len(group)), worst.input) if rows == "ops" else ()
        numbers = f"{worst.error:.1e}", f"{worst.allowed:.1e}", _verdict(worst.ok)
        table.add_row(name, *numbers, *place, worst.method, worst.case)
    table.print()
    examples = len({(finding.op, finding.case) for finding in findings})
    wrong = sum(not finding.ok for finding in findings)
    if rows == "inputs":
        say("In the line of an op: forward mode and double backward, of all its inputs.")
    say(f"{len(findings)} checks in {examples} cases: {f'{wrong} do not hold' if wrong else 'all hold'}.")
    say("Allowed: ten times what rounding and the method's own error can be blamed for there.\n")


def _of_all(finding: Finding) -> bool:
    """Whether it is of all inputs together."""
    return finding.input.startswith("all, ")


def print_report(report: Verification, every: bool = False) -> None:
    """One line for each page; or with `every`, for each equation, and for each array that was held against its page."""
    if every:
        _print_every(report)
    else:
        of_ops = ", and arrays of the op that agree" if report.fields else ""
        table = _Table(f"Derivation pages: equations{of_ops}", gives_way=False)
        table.add_columns(page="left")
        table.add_columns(**dict.fromkeys(("equations", "executed", "hold", "refuted", "fail", "skipped"), "right"))
        table.add_columns(error="right", **({"arrays": "right"} if of_ops else {}))
        for page in dict.fromkeys(record.page for record in report.records):
            records = [record for record in report.records if record.page == page]
            count = Counter(record.verdict for record in records)
            errors = [x.error for x in records if x.error is not None and x.verdict == "holds" and not x.rounded]
            fields = [field for field in report.fields if field.page == Path(page).stem.replace("_", "-")]
            table.add_row(
                _plain(Path(page).stem.replace("-", "_")),  # as its file is called
                *map(str, (len(records), len(records) - count["not executed"], count["holds"], count["refuted"])),
                Text(str(count["fails"]), style="bold red" if count["fails"] else ""),
                str(count["not executed"]),
                f"{max(errors):.1e}" if errors else "",
                *([f"{sum(field.ok for field in fields)} of {len(fields)}" if fields else ""] if of_ops else ()),
            )
        table.print()
    count = Counter(record.verdict for record in report.records)
    say(
        f"{len(report.records)} equations, {len(report.records) - count['not executed']} executed: "
        f"{count['holds']} hold, {count['refuted']} are refuted as their page says, {count['fails']} fail; "
        f"{count['not executed']} say why they are not executed.\n"
    )


def _print_every(report: Verification) -> None:
    table = _Table("Equations of the derivation pages")
    table.add_columns(equation="left", verdict="left", error="right", **{"carried out by": "left"})
    for record in report.records:
        error = "" if record.error is None or record.verdict == "refuted" else f"{record.error:.1e}"
        if record.rounded and record.verdict == "holds":
            error = "as printed"
        style = "bold red" if record.verdict == "fails" else "dim" if record.verdict == "not executed" else ""
        tag, cited = _plain(record.tag or "(no tag)"), _plain(", ".join(record.cited_by))
        table.add_row(tag, Text(record.verdict, style=style), error, cited)
    table.print()
    if report.fields:
        table = _Table("Ops against the definitions of their pages")
        table.add_columns(op="left", array="left", symbol="left", error="right", agrees="left")
        for field in report.fields:
            words = map(_plain, (field.op, field.name, field.symbol))
            table.add_row(*words, f"{field.error:.1e}", _verdict(field.ok))
        table.print()


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


class _Table:
    """A table of which no tag, number or verdict is cut: where the terminal is narrow, the last column gives way."""

    def __init__(self, title: str, gives_way: bool = True) -> None:
        self.gives_way = gives_way
        self.table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0, pad_edge=False)

    def add_columns(self, **justify: Any) -> None:
        for header, side in justify.items():
            self.table.add_column(header, justify=side)

    def add_row(self, *cells: str | Text) -> None:
        self.table.add_row(*cells)

    def print(self) -> None:
        for column in self.table.columns[: -1 if self.gives_way else None]:
            column.no_wrap = True
            column.min_width = max(Text(str(cell)).cell_len for cell in (column.header, *column.cells))
        _console().print(self.table)


class _Printer(Console):
    """One that leaves it to whoever prints what to do when nobody reads on."""

    def on_broken_pipe(self) -> None:
        raise  # the error that Rich has caught where it calls this


def _console() -> Console:
    return _Printer(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
