"""The command `known-answers`: it writes a set and says so, or refuses."""

from pathlib import Path

from helpers import Printed

from attention_np import cli, known_answers


def test_the_command_writes_a_set_and_says_so(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / "set"
    assert cli.main(["known-answers", str(folder), "--op", "softmax", "--dtype", "float32", "--dtype", "float16"]) == 0
    assert capsys.readouterr().out == f"{folder}: 34 files, described by manifest.json\n"
    assert len(list(known_answers.load(folder, op="softmax"))) == 34


def test_the_command_refuses_a_directory_of_other_things(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    assert cli.main(["known-answers", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("attention-np: cannot write")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert cli.main(["known-answers", str(tmp_path / "set"), "--op", "dotproduct"]) == 2
