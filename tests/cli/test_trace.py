"""The command `trace`."""

import subprocess
import sys
from typing import Any

from helpers import Patch, Printed, each

from attention_np import cli, trace

SENTENCE = "The cat sat on the mat"
OPS = {name: getattr(trace, name) for name in ("dot_product", "additive", "multi_head")}


@each(("op", "is_causal"), [("dot_product", True)], long=[("additive", False), ("multi_head", False)])
def test_the_command_prints_the_trace(op: str, is_causal: bool, capsys: Printed) -> None:
    assert cli.main(["trace", SENTENCE, "--op", op, *(["--causal"] if is_causal else [])]) == 0
    printed = capsys.readouterr().out
    assert printed == OPS[op](SENTENCE, is_causal=is_causal).text(80)
    assert ("causal" in printed.split("\n")[0]) == is_causal


def test_the_command_takes_words_without_quotes_and_every_option(monkeypatch: Patch, capsys: Printed) -> None:
    asked: list[Any] = []
    for op in OPS:
        monkeypatch.setattr(trace, op, lambda *given, op=op, **options: asked.append((op, *given, options)) or traced)
    traced = OPS["dot_product"](SENTENCE, is_causal=True)
    assert cli.main(["trace", *SENTENCE.split(), "--op", "multi_head", "--d", "6", "--heads", "3", "--seed", "2"]) == 0
    assert cli.main(["trace", SENTENCE, "--op", "additive", "--hidden", "2"]) == 0
    assert capsys.readouterr().out == 2 * traced.text(80)
    assert asked == [
        ("multi_head", SENTENCE, {"d": 6, "num_heads": 3, "seed": 2, "is_causal": False}),
        ("additive", SENTENCE, {"d": 4, "hidden": 2, "seed": 0, "is_causal": False}),
    ]


@each(
    ("arguments", "reason"),
    [
        (["?!"], "attention-np: the sentence has no words: '?!'\n"),
        (["a b", "--heads", "2"], "attention-np: --heads is an option of multi_head, not of dot_product\n"),
        (["a b", "--op", "multi_head", "--hidden", "2"], "attention-np: --hidden is an option of additive, not of"),
        (["a b", "--op", "multi_head", "--heads", "3"], "attention-np: num_heads=3 must divide d=4\n"),
        (["a b", "--d", "0"], "attention-np: d must be at least 1, not 0\n"),
        (["a b", "--op", "nothing"], "invalid choice: 'nothing'"),
        (["a b", "--op", "softmax", "--causal"], "attention-np: softmax makes no scores, of which is_causal"),
        ([], "the following arguments are required: SENTENCE"),
    ],
)
def test_arguments_that_cannot_be_used_end_the_command_with_2(
    arguments: list[str], reason: str, capsys: Printed
) -> None:
    assert cli.main(["trace", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert not printed.out


def test_a_terminal_without_the_letters_gets_question_marks_and_no_traceback() -> None:
    command = [sys.executable, "-m", "attention_np", "trace", "我爱", "--d", "1"]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert b"    ?   " in done.stdout
