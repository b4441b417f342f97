"""The readers of known answers that the page shows, in C and in Rust: they read a case, and refuse what is none."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_np import known_answers
from attention_np.known_answers import writing
from attention_np.known_answers.examples import all_examples

from .sets import written

pytestmark = pytest.mark.long  # compilers, and programs that are run
DOCS = Path(__file__).parents[2] / "docs" / "known-answers.md"
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]  # what is read beyond an array ends a program
WRONG = re.compile(r"Sanitizer|runtime error|panicked")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "set"
    read = ("plain", "no-leading-axes", "tile-edges", "tile-edges-causal", "many-keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "all_examples", lambda: [example for example in all_examples() if example.name in read])
        known_answers.write(folder, ops=["dot_product"], dtypes=["float32"])
    return folder


FLAGS = {"gcc": "-std=c11 -O2 -Wall -Wextra -Werror -lm", "rustc": "--edition 2021 -D warnings"}


def source(compiler: str, folder: Path) -> Path:
    """The program of the page in the language of a compiler, as a file; no test where there is none."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    language, name = {"gcc": ("c", "check.c"), "rustc": ("rust", "check.rs")}[compiler]
    found = re.search(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found is not None
    (folder / name).write_text(found[1], encoding="utf-8")
    return folder / name


def compiled(compiler: str, folder: Path) -> Path:
    words = [compiler, str(source(compiler, folder)), "-o", str(folder / "check"), *FLAGS[compiler].split()]
    sanitized = (
        compiler == "gcc" and not subprocess.run([*words, *SANITIZED], capture_output=True, check=False).returncode
    )
    if not sanitized:
        subprocess.run(words, check=True)
    return folder / "check"


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("gcc", tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def in_rust(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("rustc", tmp_path_factory.mktemp("rust"))


def runs(program: Path, path: Path) -> subprocess.CompletedProcess[str]:
    quietly = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # what it has at its end goes with it
    done = subprocess.run([program, path], capture_output=True, text=True, check=False, timeout=60, env=quietly)
    assert not WRONG.search(done.stderr), done.stderr
    return done


@pytest.mark.parametrize("compiler", ["gcc", "rustc"])
def test_the_line_that_the_page_prints_compiles_its_program_and_holds_a_case_against_it(
    compiler: str, answers: Path, tmp_path: Path
) -> None:
    source(compiler, tmp_path)
    (tmp_path / "answers").symlink_to(answers)
    (line,) = re.findall(rf"^{compiler} .*", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^0 of \d+ entries are wrong$", done.stdout, flags=re.MULTILINE)


def test_the_reader_in_c_holds_a_forward_pass_against_a_case(answers: Path, in_c: Path) -> None:
    for case, entries in (("no-leading-axes", 12), ("tile-edges", 33 * 32), ("many-keys", 16)):
        done = runs(in_c, answers / f"float32/dot_product/{case}.safetensors")
        assert (done.returncode, done.stdout) == (0, f"0 of {entries} entries are wrong\n")
    done = runs(in_c, answers / "float32/dot_product/tile-edges-causal.safetensors")
    assert (done.returncode, done.stdout[:2]) == (0, "0 ")
    done = runs(in_c, answers / "manifest.json")
    assert (done.returncode, done.stderr) == (2, "the header is longer than the file\n")
    done = runs(in_c, answers / "float32/dot_product/plain.safetensors")
    assert done.returncode == 2
    assert "has not two axes" in done.stderr


def test_the_reader_in_c_calls_no_case_wrong_and_refuses_what_it_does_not_know(every: Path, in_c: Path) -> None:
    known = {"query", "key", "value", "mask", "bias", "d_output"}
    right = 0
    for case in known_answers.load(every, op="dot_product", dtypes=["float32"]):
        done = runs(in_c, every / f"{case.name}.safetensors")
        inputs = {name for name in case.inputs if not name.startswith("v_")}
        plain = inputs <= known and case.options.keys() <= {"scale", "softcap", "is_causal"}
        two_axes = all(case.inputs[name].ndim == 2 and case.inputs[name].size for name in inputs)
        assert done.returncode == (0 if plain and two_axes else 2), (case.name, done.stdout, done.stderr)
        right += plain and two_axes
    assert right >= 6


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All small cases of dot_product."""
    folder = tmp_path_factory.mktemp("every")
    return written(folder, lambda x: x.op == "dot_product" and "tile" not in x.tags, ["float32"])


def test_the_reader_in_rust_reads_a_case(answers: Path, in_rust: Path) -> None:
    done = runs(in_rust, answers / "float32/dot_product/plain.safetensors")
    case = next(known_answers.load(answers, op="dot_product", dtypes=["float32"]))
    first = re.match(r"query: \[2, 4, 5\], the first (\S+)\n", done.stdout)
    assert first is not None
    assert np.float32(first[1]) == case.inputs["query"][0, 0, 0]
    assert done.stdout.endswith("0 of 24 entries are wrong\n")
    assert runs(in_rust, answers / "manifest.json").returncode == 1


SIZES = {"query": (2, 3), "key": (4, 3), "value": (4, 5), "output": (2, 5), "bound.output": (2, 5)}


def entries() -> dict[str, Any]:
    """The header of a case without leading axes."""
    found, start = {}, 0
    for name, shape in SIZES.items():
        code, size = ("F64", 8) if name.startswith("bound.") else ("F32", 4)
        stop = start + size * shape[0] * shape[1]
        found[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    return found


def file_of(header: dict[str, Any], data: bytes = bytes(272), length: int | None = None) -> bytes:
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
    "another dtype of a bound": other("bound.output", dtype="F32"),
    "offsets beyond the file": other("query", data_offsets=[2**40, 2**40 + 24]),
    "offsets the other way round": other("query", data_offsets=[24, 0]),
    "offsets that overflow": other("query", data_offsets=[2**64 - 24, 2**64 - 1]),
    "offsets that are cut": other("query", data_offsets=[0]),
    "data that is cut": file_of(entries(), bytes(271)),
    "no data": file_of(entries(), b""),
    "no header": file_of({}),
    "a header longer than the file": file_of(entries(), length=10**6),
    "a header of all bytes that there are": file_of(entries(), length=2**64 - 1),
    "a header that is cut": file_of(entries(), length=100),
    "seven bytes": bytes(7),
    "nothing": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_the_reader_in_c_refuses_a_file_that_lies(in_c: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "case").write_bytes(content)
    done = runs(in_c, tmp_path / "case")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", [name for name in HOSTILE if "keys" not in name])  # it does not look at those
def test_the_reader_in_rust_refuses_a_file_that_lies(in_rust: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "case").write_bytes(HOSTILE[name])
    done = runs(in_rust, tmp_path / "case")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "entries are wrong" not in done.stdout


@pytest.mark.parametrize("name", SIZES)
def test_the_reader_in_c_refuses_arrays_that_do_not_fit_together(in_c: Path, tmp_path: Path, name: str) -> None:
    header = entries()
    rows, columns = SIZES[name]
    for shape in ([columns, rows], [rows * columns, 1]):
        header[name]["shape"] = shape
        (tmp_path / "case").write_bytes(file_of(header))
        done = runs(in_c, tmp_path / "case")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_file_that_those_are_made_from_is_read(in_c: Path, in_rust: Path, tmp_path: Path) -> None:
    (tmp_path / "case").write_bytes(file_of(entries()))
    assert runs(in_c, tmp_path / "case").stdout == "0 of 10 entries are wrong\n"
    assert runs(in_rust, tmp_path / "case").stdout.endswith("0 of 10 entries are wrong\n")


def test_a_header_of_any_length_is_no_matter_of_alignment(in_c: Path, tmp_path: Path) -> None:
    for pad in range(8):
        (tmp_path / "case").write_bytes(file_of({"__metadata__": {"about": "x" * pad}} | entries()))
        assert runs(in_c, tmp_path / "case").stdout == "0 of 10 entries are wrong\n"
