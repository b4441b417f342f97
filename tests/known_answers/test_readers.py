"""The programs of the page of readers: they read every case, hold a kernel against it, and refuse what is none."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import known_answers
from attention_np.known_answers import files
from docs.known_answers import archive

from .sets import written

pytestmark = pytest.mark.long  # compilers, and programs that are run
PAGE = Path(__file__).parents[2] / "docs" / "readers.md"
SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all"  # what is read beyond an array ends a program
WRONG = re.compile(r"Sanitizer|runtime error|panicked|at .*mjs")
MOST_LINES = 150  # of a reader
BUILT = {  # by the command of the page, with warnings as errors
    "C": ("gcc", f"gcc -std=c11 -Wall -Wextra -Werror {SANITIZED} -O1 check.c kernel.c -o check -lm", "./check"),
    "C++": (
        "g++",
        f"gcc -std=c11 {SANITIZED} -O1 -c kernel.c && "
        f"g++ -std=c++17 -Wall -Wextra -Werror {SANITIZED} -O1 check.cpp kernel.o -o check",
        "./check",
    ),
    "Rust": ("rustc", "rustc --edition 2021 -O -D warnings check.rs", "./check"),
    "JavaScript": ("node", "true", "node check.mjs"),
}
TAKEN = {"query", "key", "value", "mask", "bias", "sink", "d_output"}  # by every one of their kernels
OPTIONS = {"scale", "softcap", "is_causal"}
Run = Callable[[Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All small cases of dot_product, and one of another op."""
    names = {"rows", "linear", "plain", "gain"}
    return written(
        tmp_path_factory.mktemp("every"),
        lambda x: "tile" not in x.tags and (x.op == "dot_product" or x.name in names),
        ["float64", "float32", "float16", "bfloat16"],
    )


@pytest.fixture(scope="module", params=BUILT)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A reader of the page, built."""
    needs, build, start = BUILT[request.param]
    if shutil.which(needs) is None:
        pytest.skip(f"there is no {needs}")
    folder = tmp_path_factory.mktemp("reader")
    for name, text in archive.readers().items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(["/bin/sh", "-c", build], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def run(case: Path) -> subprocess.CompletedProcess[str]:
        quietly = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # what it has at its end goes with it
        words = [*start.split(), str(case)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60, env=quietly)
        assert not WRONG.search(done.stderr), done.stderr
        return done

    return run


def test_a_reader_has_no_more_than_so_many_lines() -> None:
    programs = archive.readers()
    assert programs.keys() == {
        "check.c", "check.cpp", "check.mjs", "check.rs", "kernel.c", "kernel.h", "test_known_answers.py",
    }  # fmt: skip
    assert max(text.count("\n") for text in programs.values()) <= MOST_LINES


@pytest.mark.parametrize("start", ["gcc -O2 check.c", "gcc -O2 -c", "rustc", "node"])
def test_the_line_that_the_page_prints_runs_and_finds_nothing_wrong(start: str, every: Path, tmp_path: Path) -> None:
    (line,) = (x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith(f"{start} "))
    if missing := [x for x in ("gcc", "g++", "rustc", "node") if f"{x} " in line and shutil.which(x) is None]:
        pytest.skip(f"there is no {' '.join(missing)}")
    for name, text in archive.readers().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "answers").symlink_to(every)
    done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout in PAGE.read_text(encoding="utf-8")
    assert done.stdout.count("\n") == 5


def test_every_case_that_a_kernel_knows_is_right_in_every_dtype_and_the_others_are_refused(
    program: Run, every: Path
) -> None:
    right: dict[str, int] = {}
    for case in known_answers.load(every):
        done = program(every / f"{case.name}.safetensors")
        inputs = {name for name in case.inputs if not name.startswith("v_")}
        known = case.op == "dot_product" and inputs <= TAKEN and case.options.keys() <= OPTIONS
        assert done.returncode == (0 if known else 2), (case.name, done.stdout, done.stderr)
        if known:
            arrays = {line.split(":")[0] for line in done.stdout.splitlines()}
            assert arrays == {name for name in case.answers if not name.startswith(("hvp_", "d_d_"))}
            right[case.dtype] = right.get(case.dtype, 0) + 1
        else:
            assert done.stderr.count("\n") == 1
    assert len(right) == 4
    assert min(right.values()) >= 60


@pytest.mark.parametrize("name", ["output", "logsumexp", "d_query", "d_key", "d_value"])
def test_an_answer_that_is_changed_in_one_entry_is_found(program: Run, every: Path, tmp_path: Path, name: str) -> None:
    case = next(x for x in known_answers.load(every, op="dot_product") if x.name == "float32/dot_product/causal")
    answer = case.answers[name].copy()
    answer.flat[-1] += np.float32(3 * case.bounds[name].flat[-1] + 1e-6)
    arrays = {**case.inputs, **case.answers, name: answer, **{f"bound.{x}": b for x, b in case.bounds.items()}}
    (tmp_path / "case").write_bytes(files.to_bytes(arrays, 'changed: Causal. options={"is_causal":true}'))
    done = program(tmp_path / "case")
    assert done.returncode == 1
    assert f"{name}: 1 of {answer.size} entries are wrong" in done.stdout
    assert done.stdout.count(": 0 of") == 4


ANSWERED = {
    "output": (2, 5), "logsumexp": (2, 1), "d_query": (2, 3), "d_key": (4, 3), "d_value": (4, 5),
}  # fmt: skip
SIZES = {"query": (2, 3), "key": (4, 3), "value": (4, 5), "d_output": (2, 5), **ANSWERED} | {
    f"bound.{name}": shape for name, shape in ANSWERED.items()
}
BYTES = sum((8 if name.startswith("bound.") else 4) * n * m for name, (n, m) in SIZES.items())


def entries() -> dict[str, Any]:
    """The header of a case without leading axes."""
    found, start = {}, 0
    for name, shape in SIZES.items():
        code, size = ("F64", 8) if name.startswith("bound.") else ("F32", 4)
        stop = start + size * shape[0] * shape[1]
        found[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    return found


def file_of(header: dict[str, Any], data: bytes = bytes(BYTES), length: int | None = None) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def other(name: str, **fields: Any) -> bytes:
    header = entries()
    header[name] |= fields
    return file_of(header)


HOSTILE = {
    "a shape beyond its bytes": other("query", shape=[1000000, 1000]),
    "a shape of fewer entries": other("output", shape=[1, 5]),
    "a shape whose product overflows": other("query", shape=[2**33, 2**33]),
    "a shape whose product overflows to its bytes": other("query", shape=[2**63 + 6, 4], data_offsets=[0, 96]),
    "a shape without entries": other("query", shape=[0, 3], data_offsets=[0, 0]),
    "many keys without features": other("key", shape=[2**62, 0], data_offsets=[0, 0]),
    "an axis of more than 64 bits": other("query", shape=[2**64 + 2, 3]),
    "a negative axis": other("query", shape=[-2, -3]),
    "an axis that is no number": other("query", shape=["2", 3]),
    "an axis that is not whole": other("query", shape=[2.0, 3]),
    "no shape": file_of({name: dict(list(x.items())[::2]) for name, x in entries().items()}),
    "another dtype": other("query", dtype="F64"),
    "an array of eight bits": other("query", dtype="F8_E4M3", data_offsets=[0, 6]),
    "another dtype of a bound": other("bound.output", dtype="F32"),
    "offsets beyond the file": other("query", data_offsets=[2**40, 2**40 + 24]),
    "offsets the other way round": other("query", data_offsets=[24, 0]),
    "offsets that overflow": other("query", data_offsets=[2**64 - 24, 2**64 - 1]),
    "offsets that are cut": other("query", data_offsets=[0]),
    "data that is cut": file_of(entries(), bytes(BYTES - 1)),
    "no data": file_of(entries(), b""),
    "no header": file_of({}),
    "a header longer than the file": file_of(entries(), length=10**6),
    "a header of all bytes that there are": file_of(entries(), length=2**64 - 1),
    "a header that is cut": file_of(entries(), length=100),
    "seven bytes": bytes(7),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_lies_is_refused(program: Run, tmp_path: Path, request: pytest.FixtureRequest, name: str) -> None:
    if name == "an axis that is not whole" and "JavaScript" in request.node.name:
        pytest.skip("2.0 is 2 in JavaScript")
    (tmp_path / "case").write_bytes(HOSTILE[name])
    done = program(tmp_path / "case")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_file_that_those_are_made_from_is_read(program: Run, tmp_path: Path) -> None:
    (tmp_path / "case").write_bytes(file_of(entries()))
    done = program(tmp_path / "case")  # all numbers are zero: all is right but the logarithm of four
    assert (done.returncode, done.stdout[:22], done.stderr) == (1, "output: 0 of 10 entrie", "")
    assert "logsumexp: 2 of 2 entries are wrong" in done.stdout


@pytest.mark.parametrize("name", ["query", "key", "value", "output", "d_output"])
def test_arrays_that_do_not_fit_together_are_refused(program: Run, tmp_path: Path, name: str) -> None:
    header = entries()
    rows, columns = SIZES[name]
    for shape in ([columns, rows], [rows * columns, 1]):
        header[name]["shape"] = shape
        (tmp_path / "case").write_bytes(file_of(header))
        done = program(tmp_path / "case")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout


def test_a_header_of_any_length_is_no_matter_of_alignment(program: Run, every: Path, tmp_path: Path) -> None:
    case = next(x for x in known_answers.load(every, op="dot_product") if x.name == "float32/dot_product/causal")
    content = (every / f"{case.name}.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    for pad in range(8):
        header = content[8 : 8 + length] + b" " * pad
        (tmp_path / "case").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
        assert program(tmp_path / "case").returncode == 0
