"""The command `cost`: its table, its JSON, its refusals."""

import json
from typing import Any

import numpy as np
from helpers import Patch, Printed, each

from attention_np import cli, cost
from attention_np._lib import machine
from attention_np.cost import Sizes


def test_the_table_has_the_lengths_of_the_notes_and_the_one_that_was_asked_for(capsys: Printed) -> None:
    assert cli.main(["cost", "--n", "3000", "--heads", "32", "--d", "64", "--memory", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    plain = {words[0]: words for words in map(str.split, lines) if words[1:2] == ["dot_product"]}
    assert list(plain) == ["128", "256", "512", "1024", "2048", "3000", "4096", "8192"]
    assert [n for n, words in plain.items() if words[-1] == "yes"] == ["128", "256", "512", "1024", "2048", "3000"]
    assert [n for n, words in plain.items() if words[-1] == "no"] == ["8192"]
    assert all(
        words[-1] == "yes" for words in map(str.split, lines) if words[:1] == ["blockwise"] and words[1] != "fits"
    )


def test_a_pass_that_fits_alone_is_told_from_two(capsys: Printed) -> None:
    costs = cost.dot_product(Sizes(n=4096))
    between = (costs.forward_memory + costs.memory) / 2 / 2**30
    assert cli.main(["cost", "--memory", str(between)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("4096"))
    assert line.endswith("forward only")


def test_the_json_has_the_numbers_of_the_table(tmp_path: Any, capsys: Printed) -> None:
    file = tmp_path / "cost.json"
    arguments = ["--heads", "2", "--batch", "3", "--d", "16", "--d-v", "8", "--m", "100", "--dtype", "float64"]
    assert cli.main(["cost", *arguments, "--causal", "--dropout", "--workers", "2", "--json", str(file)]) == 0
    capsys.readouterr()
    content = json.loads(file.read_text(encoding="utf-8"))
    sizes = Sizes(128, 100, 16, 8, 2, 3, np.float64, is_causal=True, dropout=True)
    expected = {"dot_product": cost.dot_product(sizes), "blockwise": cost.blockwise(sizes, workers=2)}
    for row in content["rows"][:2]:
        assert row["n"] == 128
        assert row["forward"] == expected[row["algorithm"]].forward._asdict()
        assert row["backward"] == expected[row["algorithm"]].backward._asdict()
        assert row["memory"] == expected[row["algorithm"]].memory
    assert content["sizes"]["dtype"] == "float64"


def test_memory_that_is_not_known_is_asked_for(monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert cli.main(["cost"]) == 0
    assert "--memory GIB says it" in capsys.readouterr().out


@each(
    ("arguments", "message"),
    [
        (["--n", "0"], "--n: must be a whole number of at least 1, not 0"),
        (["--heads", "many"], "--heads: must be a whole number of at least 1, not many"),
        (["--dtype", "int32"], "--dtype: must be one of real floating-point numbers, not int32"),
        (["--memory", "nan"], "--memory: must be a number of GiB above 0, and at most 17179869184, not nan"),
        (["--memory", "1e300"], "--memory: must be a number of GiB above 0, and at most 17179869184, not 1e300"),
        (["--memory", "inf"], "--memory: must be a number of GiB above 0, and at most 17179869184, not inf"),
        (["--json", "there/is/no/such/folder.json"], "there is no folder"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], message: str, capsys: Printed) -> None:
    assert cli.main(["cost", *arguments]) == 2
    assert message in capsys.readouterr().err
