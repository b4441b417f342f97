"""What docs/your-derivation.md shows a newcomer happens, as it is written there."""

import re
from pathlib import Path

import pytest

from attention_np import cases, cli

TEXT = (Path(__file__).parents[2] / "docs" / "your-derivation.md").read_text(encoding="utf-8")
GAUSSIAN, LINEAR = re.findall(r"^````markdown\n(.*?)^````$", TEXT, re.DOTALL | re.MULTILINE)
RIDGE = "".join(re.findall(r"^```latex\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
PROGRAM = "".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
TABLE, SHOWN, MISTAKE, PRINTED = re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def test_the_page_holds_and_the_command_prints_what_is_shown(mine: Path, capsys: Printed) -> None:
    (mine / "gaussian.md").write_text(GAUSSIAN, encoding="utf-8")
    assert cli.main(["check", "--derivations", "mine"]) == 0
    without_rounding = re.compile(r"\d\.\de-\d\d")
    shown, printed = (without_rounding.sub("", text).split() for text in (TABLE, capsys.readouterr().out))
    assert printed == shown


def test_one_equation_is_shown_in_numpy(mine: Path, capsys: Printed) -> None:
    (mine / "gaussian.md").write_text(GAUSSIAN, encoding="utf-8")
    assert cli.main(["check", "--show", "gaussian.4", "--derivations", "mine"]) == 0
    shown, printed = (text.rpartition(", error ")[0] for text in (SHOWN, capsys.readouterr().out))
    assert printed == shown


def test_a_flipped_sign_fails_and_names_the_equation(mine: Path, capsys: Printed) -> None:
    right = r"{\partial \mu_a} = e^{-s_a}"
    assert GAUSSIAN.count(right) == 1
    (mine / "gaussian.md").write_text(GAUSSIAN.replace(right, right.replace("= e", "= - e")), encoding="utf-8")
    assert cli.main(["check", "--derivations", "mine"]) == 1
    assert capsys.readouterr().out.endswith(MISTAKE)


def test_the_ridge_holds_in_matrix_form(mine: Path) -> None:
    header = r"---\nsizes: n d\ntensors: {X: [n, d], y: [n], w: [d], \lambda: [positive]}\n---\n".replace(r"\n", "\n")
    (mine / "ridge.md").write_text(header + RIDGE, encoding="utf-8")
    assert cli.main(["check", "--derivations", "mine/ridge.md"]) == 0


def test_the_code_is_held_against_the_page_of_its_layer(mine: Path, capsys: Printed) -> None:
    (mine / "affine.md").write_text(LINEAR, encoding="utf-8")
    assert cli.main(["check", "affine", "--derivations", "mine"]) == 0
    capsys.readouterr()
    exec(compile(PROGRAM, "your-derivation.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == PRINTED


def test_a_page_of_ones_own_is_found_by_its_file_alone(mine: Path, capsys: Printed) -> None:
    (mine / "gaussian.md").write_text(GAUSSIAN, encoding="utf-8")
    assert cli.main(["check", "mine/gaussian.md"]) == 2
    assert "for a page of your own: check --derivations mine/gaussian.md" in capsys.readouterr().err
    (mine / "gaussian.md").unlink()
    assert cli.main(["check", "--derivations", "mine"]) == 2
    assert "there is no page in mine: a page is a file NAME.md" in capsys.readouterr().err


def test_a_file_whose_name_cannot_begin_a_tag_says_how_to_name_it(mine: Path, capsys: Printed) -> None:
    (mine / "Gaussian.md").write_text(GAUSSIAN.replace("gaussian.", "Gaussian."), encoding="utf-8")
    assert cli.main(["check", "--derivations", "mine"]) == 1
    assert "no tag can begin with 'Gaussian': name the file in lower-case letters" in capsys.readouterr().out


def test_a_folder_in_which_a_page_belongs_to_an_op_is_held_against_the_ops(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr(cases, "all_cases", lambda _: [])
    page = GAUSSIAN.replace("sizes:", "op: softmax\noutput: r\ncode: {scores: x}\nsizes:", 1)
    (mine / "gaussian.md").write_text(page, encoding="utf-8")
    assert cli.main(["check", "--derivations", "mine"]) == 1
    printed = capsys.readouterr().out
    assert "differs from its page: softmax" in printed
    assert "there is no page for the op rms_norm" in printed
