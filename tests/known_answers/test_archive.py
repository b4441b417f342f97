"""What is published with a set: a schema, wrong results that are refused, ids that keep their meaning, one archive."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from helpers import Printed

from attention_np import cli, known_answers
from attention_np.known_answers.comparing import compare
from attention_np.known_answers.files import from_bytes
from docs.known_answers import archive, definitions, negative

from . import ids
from .sets import written

SCHEMA = json.loads((archive.HERE / "manifest.schema.json").read_text(encoding="utf-8"))
NAMES = ("plain", "outliers", "kda", "heads", "packed", "kernel-causal-64", "kernel-groups-of-4")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of a few cases."""
    folder = tmp_path_factory.mktemp("published")
    chosen = written(folder, lambda x: x.name in NAMES, ["float32", "bfloat16"], ids.every)
    for name, content in negative.files(known_answers.load(chosen)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_an_id_never_changes_its_meaning_and_every_case_has_one() -> None:
    known, now = ids.stored(), ids.of(ids.every())
    missing = sorted(now.keys() - known.keys())
    assert not missing, f"run python -m tests.known_answers.ids, for {', '.join(missing)}"
    changed = [name for name, told in now.items() if known[name] != told]
    assert not changed, f"{', '.join(changed)} mean something else than before: give them other names"


@pytest.mark.long
def test_the_manifest_and_the_negative_vectors_are_as_the_schema_says(few: Path, published: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install 'attention-np[test-all]'")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    manifest = json.loads((few / "manifest.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, SCHEMA)
    vectors = json.loads((published / "negative.json").read_text(encoding="utf-8"))
    of_vectors = SCHEMA | SCHEMA["$defs"]["negative_vectors"]
    jsonschema.validate(vectors, of_vectors)
    manifest["cases"][0]["tensors"]["output"]["shape"] = [0]
    for wrong, schema in (
        (manifest, SCHEMA),
        ({**manifest, "version": 1}, SCHEMA),
        ({x: y for x, y in vectors.items() if x != "vectors"}, of_vectors),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.long
def test_every_negative_vector_is_refused_for_the_array_that_it_names_and_for_no_other(published: Path) -> None:
    cases = {case.name: case for case in known_answers.load(published / "set")}
    vectors = json.loads((published / "negative.json").read_text(encoding="utf-8"))["vectors"]
    assert {vector["id"].split("/")[0] for vector in vectors} == {*negative.KINDS}
    assert {vector["case"].partition("/")[2] for vector in vectors} == {*negative.OF_CASES}
    for vector in vectors:
        content = (published / vector["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (vector["bytes"], vector["sha256"])
        arrays = from_bytes(content)
        assert arrays.keys() == cases[vector["case"]].answers.keys()
        refused = {name for name, x in arrays.items() if not compare(cases[vector["case"]], name, x).ok}
        assert refused == {vector["array"]}, vector["id"]


@pytest.mark.long
def test_the_command_refuses_a_folder_of_negative_vectors(published: Path, capsys: Printed) -> None:
    for kind in negative.KINDS:
        words = ["verify", str(published / "negative" / kind), "--answers", str(published / "set")]
        assert cli.main(words) == 1, kind
    capsys.readouterr()


@pytest.mark.long
def test_a_definition_says_its_axes_and_its_reference_and_a_workload_where_its_inputs_are(published: Path) -> None:
    found = definitions.files(known_answers.load(published / "set"))
    definition = json.loads(found["definitions/attention/attention_backward_causal_h2_kv2_d8_v8_float32.json"])
    assert definition["inputs"]["query"] == {"shape": ["batch", "heads", "n", "d_k"], "dtype": "float32"}
    assert definition["inputs"]["scale"] == {"shape": None, "dtype": "float32"}
    assert list(definition["outputs"]) == ["d_query", "d_key", "d_value"]
    assert definition["axes"]["heads"] == {"type": "const", "value": 2}
    assert definition["axes"]["n"] == {"type": "var"}
    compile(definition["reference"], "reference", "exec")
    assert "def run(d_output, query, key, value, scale):" in definition["reference"]
    (line,) = found["workloads/attention/attention_backward_causal_h2_kv2_d8_v8_float32.jsonl"].splitlines()
    workload = json.loads(line)
    assert workload["definition"] == definition["name"]
    assert workload["workload"]["axes"] == {"batch": 2, "n": 16, "m": 16}
    assert workload["workload"]["inputs"]["scale"] == {"type": "scalar", "value": 8**-0.5}
    for about in workload["workload"]["inputs"].values():
        assert about["type"] == "scalar" or (published / "set" / about["path"]).is_file()


@pytest.mark.long
def test_an_archive_is_the_same_bytes_whenever_it_is_made(published: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="node tests of ONNX need onnx: pip install 'attention-np[peers]'")
    for name in ("one.zip", "other.zip"):
        archive.zipped(archive.published(published / "set"), tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as made:
        names = set(made.namelist())
        made.extractall(tmp_path / "made")
    assert names >= {"manifest.json", "manifest.schema.json", "negative.json", "README.txt", "LICENSE"}
    assert {Path(name).parts[0] for name in names if "/" in name} == {
        "float32", "bfloat16", "negative", "readers", "definitions", "workloads", "onnx",
    }  # fmt: skip
    told = (tmp_path / "made" / "README.txt").read_text(encoding="utf-8")
    assert all(name.split("/")[0] in told for name in archive.beside(published / "set") if name != "README.txt")
    of_set = [case.name for case in known_answers.load(published / "set")]
    assert [case.name for case in known_answers.load(tmp_path / "made")] == of_set
