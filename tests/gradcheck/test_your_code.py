"""The programs of the page on other people's code run, and print what it says; its C is compiled."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers import each, some_of

from attention_np.gradcheck import check_layer

PAGE = Path(__file__).parents[2] / "docs" / "your-code.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, flags=re.DOTALL)
COMPILER = shutil.which("cc")
MISTAKES = {
    "dweight[a] +=": "dweight[a] =",
    "dx[i * d + a] +=": "dx[a] +=",
    "/ (d * rms[i] * rms[i])": "/ (rms[i] * rms[i])",
    "dot += dy[i * d + a] * weight[a]": "dot += dy[i * d + a]",
}


def program(code, folder):
    """A program of the page, which finds the library that it loads in a folder."""
    return compile(code.replace("./rms_norm.so", str(folder / "rms_norm.so")), str(PAGE), "exec")


def compiled(folder, right="", wrong=""):
    """The C of the page, perhaps with a mistake, compiled by its command; and what the page makes of it."""
    if COMPILER is None:
        pytest.skip("the C of the page needs a compiler, called cc")
    (code,) = (text for language, text in BLOCKS if language == "c")
    assert right in code
    (command,) = re.findall(r"`(cc -D[^`]*)`", TEXT)
    (folder / "rms_norm.c").write_text(code.replace(right, wrong) if right else code, encoding="utf-8")
    subprocess.run([COMPILER, *command.split()[1:]], check=True, cwd=folder)
    names = {}
    for language, text in BLOCKS:
        if language == "python" and ("import numpy" in text or "import ctypes" in text):
            exec(program(text, folder), names)  # noqa: S102
    return names


def test_every_program_prints_what_the_page_shows(tmp_path, capsys):
    compiled(tmp_path)
    capsys.readouterr()
    names = {}
    for (language, code), (_, expected) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "python":
            exec(program(code, tmp_path), names)  # noqa: S102
            assert capsys.readouterr().out == expected


@each("right", *some_of(MISTAKES, 4))
def test_a_mistake_in_the_c_code_is_found(tmp_path_factory, right):
    names = compiled(tmp_path_factory.mktemp("c"), right, MISTAKES[right])
    assert not check_layer((names["rms_norm"], names["rms_norm_backward"]), names["inputs"]).ok


def test_a_buffer_that_is_not_zeroed_is_noticed(tmp_path):
    names, kept = compiled(tmp_path), np.zeros(4)

    def backward(d_y, cache):
        x, weight, rms = cache
        d_x = np.zeros_like(x)
        names["library"].rms_norm_backward(d_x, kept, d_y, x, weight, rms, *x.shape)
        return d_x, kept

    report = check_layer((names["rms_norm"], backward), names["inputs"])
    assert report["x"].ok
    assert "called again" in str(report["weight"].diagnosis)
