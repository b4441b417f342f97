"""The tables of `check`: what is in which line, and nothing cut however narrow the terminal."""

from pathlib import Path

from helpers import Patch, Printed, each, leaves

from attention_np import cases, cli
from attention_np.cli import tables, verification
from attention_np.derivation import Record, Verification, read_pages
from attention_np.derivation.operators import FieldRecord
from attention_np.gradcheck import METHODS

PAGES = Path(__file__).parents[2] / "derivations"


FINDINGS = [
    verification.Finding("softmax", "rows", "scores", "complex-step", 1e-15, True, 1e-14),
    verification.Finding("softmax", "one far ahead", "scores", "central", 6.7e-3, True, 1e-1),
    verification.Finding("softmax", "rows", "all, forward mode", "adjoint", 0.0, True, 1e-15),
]


def test_an_error_that_is_large_because_its_method_is_coarse_stands_beside_what_is_allowed(capsys: Printed) -> None:
    tables.print_findings(FINDINGS[1:2], "inputs")
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if "scores" in line]
    assert row[1:5] == ["6.7e-03", "1.0e-01", "yes", "central"]


def test_the_worst_case_of_an_input_is_the_worst_beside_what_its_method_allows(capsys: Printed) -> None:
    tables.print_findings(FINDINGS, "inputs")
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("   scores")]
    assert row[1:] == ["1.0e-15", "1.0e-14", "yes", "complex-step", "rows"]  # a tenth of it, not a fifteenth
    wrong = FINDINGS[1]._replace(ok=False, allowed=1.0)
    tables.print_findings([*FINDINGS, wrong], "inputs")
    assert "NO" in capsys.readouterr().out  # before all that hold


def test_all_prints_every_case_by_every_method(capsys: Printed) -> None:
    tables.print_findings(FINDINGS, "cases")
    printed = capsys.readouterr().out
    for finding in FINDINGS:
        words = [finding.input, f"{finding.error:.1e}", finding.method, finding.case]
        assert any(all(word in line for word in words) for line in printed.splitlines())


@each("width", [80, 200])
def test_no_tag_verdict_or_number_is_cut_however_narrow_the_terminal(
    width: int, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", width)
    report = all_that_holds()[1]
    report.records = sorted(report.records, key=lambda record: len(record.tag or ""))[-30:]
    page = report.records[-1].page.replace("_", "-")
    report.fields = [FieldRecord(page, "softmax", name, "A", 1e-16) for name in ("output", "gradient of scores")]
    tables.print_report(report, every=True)
    tables.print_report(report)
    tables.print_findings(FINDINGS)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    for record in report.records:
        assert any(line.split()[:2] == [record.tag, record.verdict.split()[0]] for line in lines)
    assert any(line.split()[-3:] == ["2", "of", "2"] for line in lines)
    rows = [line for line in lines if "equations, " not in line and "Allowed" not in line]
    assert max(map(len, rows)) <= width
    assert "…" not in printed


def all_that_holds(*_: object) -> tuple[list[verification.Finding], Verification]:
    """As many findings as there are: of each input of each case by each method, and of each equation."""
    findings = [
        verification.Finding(case.op, case.name, name, method, 1e-16, True, 1e-15)
        for case in cases.all_cases()
        for name in ("all, forward mode", *(path for path, _ in leaves(case.inputs)))
        for method in METHODS
    ]
    pages = read_pages([PAGES])
    found = [(equation, page.name) for page in pages for equation in page.equations]
    return findings, Verification([Record(each.tag, name, each.line, "holds", 1e-16) for each, name in found])


def test_where_all_holds_check_has_a_line_for_each_op_and_page_and_a_name_one_for_each_input(
    monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr(verification, "check", all_that_holds)
    assert cli.main(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = [line.split()[0] for line in lines if line.strip()]
    assert set(first) >= {*cases.OPS, *verification.page_names(PAGES)}
    assert len(lines) <= 15 + len(cases.OPS) + len(verification.page_names(PAGES))
    assert cli.main(["check", "multi_head"]) == 0
    printed = capsys.readouterr().out
    for case in cases.all_cases(["multi_head"]):
        assert all(f"  {name} " in printed for name, _ in leaves(case.inputs))


def test_what_does_not_hold_is_in_the_line_of_its_op(capsys: Printed) -> None:
    wrong = FINDINGS[0]._replace(ok=False, error=0.5, case="one row")
    tables.print_findings([*FINDINGS, wrong])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "softmax" in line]
    assert row.split() == ["softmax", "5.0e-01", "1.0e-14", "NO", "4", "scores", "complex-step", "one", "row"]
