"""`python -m attention_np check`: its table, its exit codes, its JSON, its refusals."""

import contextlib
import functools
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Printed, each

import attention_np
from attention_np import cases, cli, dot_product, softmax
from attention_np.cli import verification
from attention_np.derivation import Verification

PAGES = Path(__file__).parents[2] / "derivations"
SOFTMAX_STEP = (
    r"A_{ij} \left( \frac{\partial L}{\partial A_{ij}} - \sum_l A_{il} \frac{\partial L}{\partial A_{il}} \right)"
)


@functools.cache
def checked(*names: str) -> tuple[str, Any]:
    """What a check of these prints, all of which holds, and its report."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["check", *names, "--json", f"{folder}/report.json"]) == 0
        return printed.getvalue(), json.loads(Path(folder, "report.json").read_text(encoding="utf-8"))


WRONG = r"""---
sizes: n
indices: {i: n}
tensors: {x: [n]}
---

$$ y_i = 2 x_i \tag{own.1} $$

$$ y_i = 3 x_i \tag{own.2} $$
"""


def test_the_version_is_that_of_the_package(capsys: Printed) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"attention-np {attention_np.__version__}\n"


def test_check_takes_the_names_of_ops() -> None:
    table, _ = checked("rms-norm", "errata")
    assert "gain" in table
    assert "layer_norm" not in table


def test_check_takes_the_names_of_pages(capsys: Printed) -> None:
    assert cli.main(["check", "positions"]) == 0
    output = capsys.readouterr().out
    assert "positions " in output
    assert "positions.1" not in output
    assert "complex-step" not in output
    assert cli.main(["check", "positions", "--all"]) == 0
    output = capsys.readouterr().out
    assert "positions.1" in output
    assert "softmax.1" not in output


def test_the_json_report_has_a_row_for_each_equation() -> None:
    equations = checked("rms-norm", "errata")[1]["equations"]
    assert {row["page"] for row in equations} == {"rms-norm", "errata"}
    for row in equations:
        assert row.keys() >= {"tag", "page", "line", "verdict", "error", "cited_by"}
        assert row["verdict"] in {"holds", "refuted", "not executed"}
    cited = [place for row in equations for place in row["cited_by"]]
    assert any(place.startswith("attention_np/rms_norm.py:") for place in cited)


def test_check_shows_one_equation_in_numpy_in_numbers_and_in_code(capsys: Printed) -> None:
    assert cli.main(["check", "--show", "(softmax.32)"]) == 0
    formula, printed = capsys.readouterr().out.split("NumPy\n")
    assert r"A \odot \left( G - r \mathbf{1}_m^\top \right)" in formula
    lines, numbers = printed.split("in the worked example\n")
    assert "    dL_dS = A * (G - r[:, None])\n" in lines
    assert "-0.0469, -0.3438,  0.3906" in numbers
    assert "attention_np/softmax.py:" in numbers
    assert "(softmax.23, softmax.32, softmax.37)" in numbers


def test_check_shows_what_is_there(capsys: Printed, tmp_path: Path) -> None:
    assert cli.main(["check", "--show", "softmax.9999"]) == 2
    assert "there is no equation (softmax.9999)" in capsys.readouterr().err
    page = tmp_path / "own.md"
    page.write_text(WRONG, encoding="utf-8")
    assert cli.main(["check", "--show", "own.2", "--derivations", str(page)]) == 1
    assert "(not said in NumPy)" in capsys.readouterr().out


@pytest.fixture
def few_cases(monkeypatch: Patch) -> None:
    found = cases.all_cases
    monkeypatch.setattr(cases, "all_cases", lambda ops: found(ops)[:2])


@pytest.fixture
def no_pages(monkeypatch: Patch) -> None:
    monkeypatch.setattr(verification, "check_pages", lambda *_: Verification([]))


@pytest.mark.usefixtures("few_cases")
def test_a_flipped_sign_in_a_page_fails_naming_the_equation(tmp_path: Path, capsys: Printed) -> None:
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if page.stem == "dot_product":
            assert text.count(SOFTMAX_STEP) == 1
            text = text.replace(SOFTMAX_STEP, SOFTMAX_STEP.replace("-", "+"))
        (tmp_path / page.name).write_text(text, encoding="utf-8")
    assert cli.main(["check", "dot_product", "--derivations", str(tmp_path), "--json", str(tmp_path / "r.json")]) == 1
    rows = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["equations"]
    (wrong,) = [row["tag"] for row in rows if row["verdict"] == "fails"]
    assert f"({wrong})" in capsys.readouterr().out


GRADIENT_LINES = {
    "d_value = ": {"value"},
    "d_dropped = ": {"query", "key", "bias"},
    "d_scaled = ": {"query"},
    "d_key = ": {"key"},
}


@pytest.mark.long  # that the input and the equation are named, tests of less than a whole check say, too
@pytest.mark.parametrize("line", GRADIENT_LINES)
def test_a_flipped_sign_in_the_code_fails_naming_the_input_and_the_equation_that_its_line_cites(
    line: str, tmp_path: Path
) -> None:
    shutil.copytree(PAGES, tmp_path / "derivations")
    package = tmp_path / "attention_np"
    shutil.copytree(PAGES.parent / "attention_np", package)
    module = package / "dot_product.py"
    before, backward = module.read_text(encoding="utf-8").split("def backward(")
    start = backward.index(f"    {line}") + 4 + len(line)
    cited = re.findall(r"dot-product\.\d+", backward[start : backward.index("\n", start)])
    module.write_text(f"{before}def backward({backward[:start]}-{backward[start:]}", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "attention_np", "check", "dot_product"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    for name in ("query", "key", "value", "bias"):
        is_named = f"does not hold: dot_product, {name}, by complex-step" in done.stdout
        assert is_named == (name in GRADIENT_LINES[line])
    assert cited
    assert all(f"({tag})" in done.stdout for tag in cited)


def test_the_json_report_of_an_op_by_the_name_of_its_tags_has_a_row_for_each_case_input_and_method() -> None:
    _, report = checked("rms-norm", "errata")
    assert report["ok"] is True
    names = {case.name for case in cases.all_cases(["rms_norm"])}
    assert {row["case"] for row in report["ops"]} == names | {"page rms-norm"}
    for row in report["ops"]:
        assert row.keys() == {"op", "case", "input", "method", "error", "ok"}
        allowed = {"complex-step": 1e-13, "central": 1e-7, "adjoint": 1e-15, "page": 1e-13}[row["method"]]
        assert row["ok"] is True
        assert row["error"] <= allowed


@pytest.mark.usefixtures("few_cases")
def test_a_wrong_sign_in_backward_fails_naming_the_op_and_the_input(
    monkeypatch: Patch, capsys: Printed, tmp_path: Path
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
    wrong = {"key", "gradient of key", "all, forward mode", "all, double backward"}
    assert {row["input"] for row in rows if not row["ok"]} == wrong


@pytest.mark.usefixtures("few_cases", "no_pages")
def test_a_gradient_that_is_not_finite_fails_and_is_still_valid_json(monkeypatch: Patch, tmp_path: Path) -> None:
    def wrong(_: np.ndarray, cache: softmax.Cache) -> softmax.Gradients:
        return softmax.Gradients(np.full_like(cache.scores, np.nan))

    monkeypatch.setattr(softmax, "backward", wrong)
    assert cli.main(["check", "softmax", "--json", str(tmp_path / "r.json")]) == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert report["ok"] is False


def test_an_op_without_its_page_does_not_hold(tmp_path: Path, capsys: Printed) -> None:
    assert cli.main(["check", "rms_norm", "--derivations", str(tmp_path)]) == 1
    assert "there is no page for the op rms_norm" in capsys.readouterr().out


def test_a_citation_of_no_equation_is_a_problem_in_whatever_module_it_stands(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr(cases, "all_cases", lambda _: [])
    shutil.copy(PAGES / "rms_norm.md", tmp_path)
    (tmp_path / "_inner.py").write_text("x = 1  # (softmax.999)\n", encoding="utf-8")
    monkeypatch.setattr(verification, "PACKAGE", tmp_path)
    assert cli.main(["check", "--derivations", str(tmp_path)]) == 1
    assert "_inner.py:1: cites (softmax.999), which stands in no page" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_one_sentence(capsys: Printed) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full on this system")
    assert cli.main(["check", "notation", "--json", str(full)]) == 2
    assert "cannot write /dev/full" in capsys.readouterr().err


@pytest.mark.usefixtures("few_cases", "no_pages")
@pytest.mark.parametrize("name", ["jacobian", "logsumexp"])
def test_what_softmax_has_besides_is_checked_too(name: str, monkeypatch: Patch, capsys: Printed) -> None:
    right = getattr(softmax, name)
    monkeypatch.setattr(softmax, name, lambda *arrays, **options: -right(*arrays, **options))
    assert cli.main(["check", "softmax"]) == 1
    assert f"does not hold: softmax, scores, by {name}" in capsys.readouterr().out


@pytest.mark.usefixtures("few_cases", "no_pages")
def test_forward_mode_that_is_wrong_for_one_input_names_it(monkeypatch: Patch, capsys: Printed) -> None:
    right = dot_product.jvp

    def wrong(cache: dot_product.Cache, **tangents: np.ndarray) -> np.ndarray:
        key = tangents.pop("key", None)
        return right(cache, **tangents) - right(cache, key=key)

    monkeypatch.setattr(dot_product, "jvp", wrong)
    assert cli.main(["check", "dot_product"]) == 1
    output = capsys.readouterr().out
    assert "does not hold: dot_product, all, forward mode, by adjoint" in output
    assert "forward mode and backward disagree for key\n" in output


@each(
    ("arguments", "message"),
    [
        (["check", "dotproduct"], "no op or page called dotproduct"),
        (["check", "--json", "no/such/folder/report.json"], "no folder"),
        (["check", "--derivations", "no/such/folder"], "no folder or page"),
        (["check", "--what"], "unrecognized arguments"),
        (["verify"], "required: DIR, --answers"),
        (["prove"], "invalid choice"),
        ([], "required"),
    ],
)
def test_unusable_arguments_exit_with_2_and_one_sentence(arguments: list[str], message: str, capsys: Printed) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_a_json_path_that_is_a_folder_is_refused_before_any_work(tmp_path: Path, capsys: Printed) -> None:
    assert cli.main(["check", "--json", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "is a folder" in captured.err
    assert not captured.out


def test_without_rich_the_command_says_what_to_install(monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert cli.main(["check"]) == 2
    assert "check needs rich: pip install 'attention-np[check]'" in capsys.readouterr().err
