"""Files are written whole, the same whenever they are, and over nothing else."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Patch

from attention_np import cli, known_answers
from attention_np.known_answers import files
from attention_np.known_answers.examples import TAGS
from attention_np.known_answers.formats import DTYPES, dtype_of

from .sets import BESIDE, FEW, Sets


def test_the_manifest_describes_every_file(few: Path) -> None:
    manifest = json.loads((few / "manifest.json").read_text(encoding="utf-8"))
    names = {entry["name"] for entry in manifest["cases"]}
    assert len(names) == len(manifest["cases"]) == len(DTYPES) * sum(map(len, FEW.values()))
    assert {entry["file"] for entry in manifest["cases"]} == {
        path.relative_to(few).as_posix() for path in few.rglob("*.safetensors")
    }
    for entry in manifest["cases"]:  # which names and shapes there are is read off the ops, when a set is read
        content = (few / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert entry["description"].endswith(".")
        assert set(entry["tags"]) <= set(manifest["tags"]) <= set(TAGS)
        arrays = files.from_bytes(content)
        assert {name: list(x.shape) for name, x in arrays.items()} == {
            name: tensor["shape"] for name, tensor in entry["tensors"].items()
        }
        answered = {name for name, tensor in entry["tensors"].items() if tensor["role"] == "answer"}
        assert answered == set(entry["largest_bound"])
        assert answered >= {"output"} | BESIDE.get(entry["op"], {"logsumexp"})
        assert all(arrays[name].dtype == dtype_of(entry["dtype"]) for name in answered)


def test_a_set_is_the_same_bytes_whenever_it_is_written(answers: Sets, tmp_path: Path) -> None:
    how = "ops=['softmax'], dtypes=['float32']"
    program = f"import sys; from attention_np import known_answers as k; k.write(sys.argv[1], {how})"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "again")], check=True)
    for path in (tmp_path / "again").rglob("*.safetensors"):
        assert path.read_bytes() == (answers["softmax"] / path.relative_to(tmp_path / "again")).read_bytes()


def test_an_earlier_set_is_replaced_as_a_whole(small: Path) -> None:
    assert known_answers.write(small, ops=["softmax"], dtypes=["float64"]) == 17
    assert sorted(path.name for path in small.iterdir()) == ["float64", "manifest.json"]
    assert not list(small.parent.glob(".*"))


@pytest.mark.parametrize("name", ["notes.txt", "float32/softmax/extra.safetensors"])
def test_a_directory_that_holds_something_else_is_left_alone(small: Path, name: str) -> None:
    (small / name).write_text("mine", encoding="utf-8")
    before = sorted(small.rglob("*"))
    with pytest.raises(FileExistsError, match=r"it holds something else than an earlier set of known answers$"):
        known_answers.write(small, ops=["softmax"], dtypes=["float64"])
    assert sorted(small.rglob("*")) == before


@pytest.mark.parametrize(
    ("holder", "name", "fails"),
    [
        (files, "to_bytes", lambda _, about: "tangents-mask" in about),  # of the cases, one of the last
        (Path, "rename", lambda path, _: path.name == "new"),  # when all are written
    ],
)
def test_a_write_that_fails_leaves_what_was_there(
    small: Path, monkeypatch: Patch, holder: Any, name: str, fails: Callable[..., bool]
) -> None:
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    right = getattr(holder, name)

    def sometimes(*given: Any) -> Any:
        if fails(*given):
            raise OSError("no space")
        return right(*given)

    monkeypatch.setattr(holder, name, sometimes)
    with pytest.raises(OSError, match="no space"):
        known_answers.write(small, ops=["softmax"], dtypes=["float64"])
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before
    assert not list(small.parent.glob(".*"))


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"it is a file$"):
        known_answers.write(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        known_answers.write(tmp_path / "no" / "such")
    with pytest.raises(ValueError, match=r"^there is no op called dotproduct: there are softmax, dot_product"):
        known_answers.write(tmp_path / "set", ops=["dotproduct"])
    with pytest.raises(TypeError, match=r"^dtypes must be a list of names, not the string 'float32'$"):
        known_answers.write(tmp_path / "set", dtypes="float32")


def test_a_directory_without_a_set_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no known answers: there is no manifest\.json$"):
        known_answers.load(tmp_path)


@pytest.mark.parametrize(
    ("module", "words"), [("mpmath", "mpmath"), ("safetensors", "safetensors"), ("ml_dtypes", "bfloat16")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: Patch, module: str, words: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "safetensors.numpy", raising=False)
    with pytest.raises(ImportError, match=rf"{words}.*: pip install 'attention-np\[answers\]'$"):
        known_answers.write(tmp_path / "set")
    assert cli.main(["known-answers", str(tmp_path / "set")]) == 2
    assert not (tmp_path / "set").exists()
