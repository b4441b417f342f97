"""The README's examples run, and print what it says they print."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_example_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    shown = 0
    for (language, code), (_, expected) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "python":
            exec(compile(code, str(README), "exec"), names)  # noqa: S102
            assert capsys.readouterr().out == expected
            shown += 1
    assert shown == 2
