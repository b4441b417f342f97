"""`python -m attention_np check`: its table, its exit codes, its JSON, its refusals."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attention_np import cases, cli, dot_product, softmax


def test_check_holds_and_names_every_input_and_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 0
    table = capsys.readouterr().out
    for word in ("softmax", "dot_product", "additive", "multi_head", "query", "parameters.b_key", "w_score", "bias"):
        assert word in table
    for method in ("complex-step", "central", "adjoint"):
        assert method in table
    assert "all hold" in table


def test_check_takes_the_names_of_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "softmax"]) == 0
    table = capsys.readouterr().out
    assert "scores" in table
    assert "dot_product" not in table


def test_the_json_report_has_a_row_for_each_op_case_input_and_method(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert cli.main(["check", "dot_product", "--json", str(file)]) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["ok"] is True
    assert {row["case"] for row in report["ops"]} == {case.name for case in cases.all_cases(["dot_product"])}
    for row in report["ops"]:
        assert row.keys() == {"op", "case", "input", "method", "error", "ok"}
        allowed = {"complex-step": 1e-13, "central": 1e-7, "adjoint": 1e-15}[row["method"]]
        assert row["ok"] is True
        assert row["error"] <= allowed


def test_a_wrong_sign_in_backward_fails_naming_the_op_and_the_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    right = dot_product.backward

    def wrong(d_output: np.ndarray, cache: dot_product.Cache) -> dot_product.Gradients:
        gradients = right(d_output, cache)
        return gradients._replace(key=-gradients.key)

    monkeypatch.setattr(dot_product, "backward", wrong)
    assert cli.main(["check", "dot_product", "--json", str(tmp_path / "r.json")]) == 1
    output = capsys.readouterr().out
    assert "does not hold: dot_product, key, by complex-step" in output
    rows = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["ops"]
    assert {row["input"] for row in rows if not row["ok"]} == {"key", "all, forward mode"}


def test_a_gradient_that_is_not_finite_fails_and_is_still_valid_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(_: np.ndarray, cache: softmax.Cache) -> softmax.Gradients:
        return softmax.Gradients(np.full_like(cache.scores, np.nan))

    monkeypatch.setattr(softmax, "backward", wrong)
    assert cli.main(["check", "softmax", "--json", str(tmp_path / "r.json")]) == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert report["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "dotproduct"], "no op called dotproduct"),
        (["check", "--json", "no/such/folder/report.json"], "no folder"),
        (["check", "--what"], "unrecognized arguments"),
        (["verify"], "invalid choice"),
        ([], "required"),
    ],
)
def test_unusable_arguments_exit_with_2_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_a_json_path_that_is_a_folder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--json", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "is a folder" in captured.err
    assert not captured.out


def test_without_rich_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert cli.main(["check"]) == 2
    assert "pip install 'attention-np[check]'" in capsys.readouterr().err


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attention_np", "check", "softmax"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert not done.stderr
    assert "all hold" in done.stdout


def test_importing_pulls_in_nothing_but_numpy_and_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules); import attention_np, attention_np.gradcheck; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    extra = {name for name in done.stdout.split() if "cython" not in name}  # compiled parts of NumPy register these
    assert extra == {"numpy", "attention_np"}
