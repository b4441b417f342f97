"""The programs of the page on other people's code run, and print what it says; its C is compiled."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from attention_np.gradcheck import check_layer

TEXT = (Path(__file__).parents[2] / "docs" / "your-code.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, flags=re.DOTALL)


def compiled(folder):
    """The C of the page, compiled by its command; and what the page makes of it."""
    compiler = shutil.which("cc") or pytest.skip("the C of the page needs a compiler, called cc")
    (code,) = (text for language, text in BLOCKS if language == "c")
    (command,) = re.findall(r"`(cc -D[^`]*)`", TEXT)
    (folder / "rms_norm.c").write_text(code, encoding="utf-8")
    subprocess.run([compiler, *command.split()[1:]], check=True, cwd=folder)
    return run_in(folder, [code for _, code in BLOCKS if "import numpy as np\n" in code or "import ctypes" in code][:2])


def run_in(folder, programs, names=None):
    """The names that programs of the page define, which find the library that they load in a folder."""
    names = {} if names is None else names
    for code in programs:
        exec(code.replace("./rms_norm.so", str(folder / "rms_norm.so")), names)  # noqa: S102
    return names


def test_every_program_prints_what_the_page_shows(tmp_path, capsys):
    compiled(tmp_path)
    capsys.readouterr()
    names = {}
    for (language, code), (_, expected) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "python":
            run_in(tmp_path, [code], names)
            assert capsys.readouterr().out == expected


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
