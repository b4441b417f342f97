"""Known answers of others: a case is what its op takes, a file is what the manifest says, or they are refused."""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, each, some_of

import attention_np
from attention_np import known_answers
from attention_np.known_answers import files
from attention_np.known_answers.examples import all_examples
from attention_np.known_answers.manifest import LARGEST_MANIFEST
from attention_np.known_answers.signatures import MOST_SCORES, SIGNATURES

GONE = object()  # in a patch of a manifest
NAMES = [f"{bound}{name}" for bound in ("", "bound.") for name in ("output", "logsumexp", "d_scores")]
NAMES += ["scores", "d_output"]  # of the first case
SMALL = [example for example in all_examples() if "tile" not in example.tags]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of softmax in float32."""
    folder = tmp_path_factory.mktemp("answers") / "set"
    known_answers.write(folder, ops=["softmax"], dtypes=["float32"])
    return folder


@pytest.fixture
def small(answers: Path, tmp_path: Path) -> Path:
    """One of its own, and beside it the manifest, which is changed anew for each value of a test."""
    shutil.copy(answers / "manifest.json", tmp_path)
    return Path(shutil.copytree(answers, tmp_path / "small"))


def first_file(folder: Path) -> Path:
    return folder / json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["cases"][0]["file"]


def change_manifest(folder: Path, change: Callable[[Any], None]) -> None:
    manifest = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def replace_first_file(folder: Path, content: bytes) -> None:
    """Another content, of which the manifest is made to say that it is the right one."""

    def change(manifest: Any) -> None:
        entry = manifest["cases"][0]
        (folder / entry["file"]).write_bytes(content)
        entry["bytes"], entry["sha256"] = len(content), hashlib.sha256(content).hexdigest()

    change_manifest(folder, change)


def merge(value: dict[str, Any], patch: dict[str, Any]) -> None:
    """Objects within objects are changed in place, and what is GONE is taken away."""
    for name, new in patch.items():
        if new is GONE:
            del value[name]
        elif isinstance(new, dict) and isinstance(value.get(name), dict):
            merge(value[name], new)
        else:
            value[name] = new


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        list(known_answers.load(folder))
    assert str(caught.value).isprintable()
    assert str(folder) in str(caught.value)
    assert type(caught.value) is ValueError


@each(
    "file",
    [
        "/etc/passwd",
        "../outside.safetensors",
        "float32/../../outside.safetensors",
        "C:\\x",
        "a\\..\\b",
        "",
        "./x",
        "a//b",
    ],
)
def test_a_path_that_leaves_the_set_is_refused(small: Path, file: str) -> None:
    change_manifest(small, lambda manifest: manifest["cases"][0].update(file=file))
    refused(small, "is no path within the set")


NOT_PRINTED = ["\x1b[31m", "\u202e", "a\nb", "\x9b", "\u2066x"]


@each("text", NOT_PRINTED)
@each("field", ["name", "description", "file", "tags", "tensors", "largest_bound"])
def test_a_name_that_would_give_orders_to_a_terminal_is_refused(small: Path, field: str, text: str) -> None:
    def change(manifest: Any) -> None:
        case = manifest["cases"][0]
        item = case[field]
        case[field] = [text] if isinstance(item, list) else {text: 0} if isinstance(item, dict) else text + item

    change_manifest(small, change)
    refused(small, "has characters that cannot be printed")


@each("text", NOT_PRINTED)
def test_a_name_in_a_file_is_printed_with_escapes(answers: Path, small: Path, text: str) -> None:
    arrays = files.from_bytes(first_file(answers).read_bytes())
    replace_first_file(small, files.to_bytes(arrays | {text: arrays["scores"]}, "changed"))
    refused(small, re.escape(f"{ascii(text)[1:-1]} is in one of the two only"))
    code = json.dumps({"scores": {"dtype": text, "shape": [1], "data_offsets": [0, 4]}})
    replace_first_file(small, header(code, b"abcd"))
    refused(small, "it is no safetensors file")


def test_a_link_that_leaves_the_set_is_refused(small: Path) -> None:
    path = first_file(small)
    path.rename(small.parent / "outside")
    path.symlink_to(small.parent / "outside")
    refused(small, "is not the file that the manifest describes: it is outside of the set")


MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"format": "x"}, 'it has no "format"'),
    "another version": ({"version": 1}, "its version is 1, and only 2 can be read"),
    "tags without a reason": ({"tags": {"mask": {"reason": GONE}}}, "tags: mask: reason is missing"),
    "no cases": ({"cases": GONE}, "cases is missing"),
    "cases that are no list": ({"cases": {}}, "cases: a list is expected"),
}


@each(("patch", "message"), MANIFESTS.values())
def test_a_manifest_that_is_none_is_refused(small: Path, patch: dict[str, Any], message: str) -> None:
    change_manifest(small, lambda manifest: merge(manifest, patch))
    refused(small, re.escape(message))


@each(("again", "what"), [({}, "cases"), ({"name": "again"}, "files")])
def test_a_name_and_a_file_stand_for_one_case_alone(small: Path, again: dict[str, str], what: str) -> None:
    change_manifest(small, lambda manifest: manifest["cases"].append(manifest["cases"][0] | again))
    refused(small, f"1 names of {what} are there twice")


@each("text", ["", "[1", "null", "[" * 100_000, '{"version": NaN}', "{}{}", '{"a": 1, "a": 1}'])
def test_a_manifest_that_is_no_json_is_refused(small: Path, text: str) -> None:
    (small / "manifest.json").write_text(text, encoding="utf-8")
    refused(small, "is no manifest of known answers")


def test_a_manifest_of_many_bytes_is_refused_unread(small: Path) -> None:
    os.truncate(small / "manifest.json", 2**40)  # sparse: it takes no space
    refused(small, f"it is larger than {LARGEST_MANIFEST} bytes")


IN_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "other shapes": (
        {name: {"shape": [5] if "logsumexp" in name else [5, 3]} for name in NAMES},
        "scores is of F32 (3, 5), not of F32 (5, 3)",
    ),
    "other dtypes": ({name: {"dtype": "F64"} for name in NAMES}, "scores is of F32 (3, 5), not of F64 (3, 5)"),
    "an array that is not there": (
        {"mask": {"role": "input", "dtype": "BOOL", "shape": [3, 5]}},
        "mask is in one of the two only",
    ),
}


@each(("tensors", "message"), IN_FILES.values())
def test_a_file_that_is_not_what_the_manifest_says_is_refused(
    small: Path, tensors: dict[str, Any], message: str
) -> None:
    dtype = {"dtype": "float64"} if "F64" in message else {}
    change_manifest(small, lambda manifest: merge(manifest["cases"][0], {"tensors": tensors, **dtype}))
    refused(small, re.escape(f"{first_file(small)} is not the file that the manifest describes: {message}"))


def op(name: str, **options: Any) -> dict[str, Any]:
    return {"op": name, "options": options}


def tensor(name: str, **fields: Any) -> dict[str, Any]:
    return {"tensors": {name: fields}}


LIKE_SCORES = {"dtype": "F32", "shape": [3, 5]}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"code": "import os"}, "'code' is unknown"),
    "an unknown op": ({"op": "os.system"}, "op: it must be one of softmax"),
    "an unknown dtype": ({"dtype": "object"}, "dtype: it must be one of float64"),
    "another dtype": ({"dtype": "float16"}, "scores is of F32, and in a case of float16 it must be of F16"),
    "a huge file": ({"bytes": 10**15}, "a file of more than 67108864 bytes is refused"),
    "a negative size": ({"bytes": -1}, "a whole number that is not negative is expected"),
    "a long name": ({"name": "x" * 1001}, "name: a text of more than 1000 characters"),
    "a long path": ({"file": "x/" * 1000 + "x"}, "file: a text of more than 1000 characters"),
    "an unknown option": (op("softmax", out=1), "options: 'out' is unknown"),
    "an option of another type": (op("softmax", axis=[1]), "axis: an axis is expected"),
    "an axis too far": (op("softmax", axis=2), "axis 2 is no axis of scores (scores.shape=(3, 5))"),
    "an axis too far from the end": (op("softmax", axis=-3), "axis -3 is no axis of scores (scores.shape=(3, 5))"),
    "an option of another op": (op("softmax", is_causal=True), "options: 'is_causal' is unknown"),
    "heads, of softmax": (op("softmax", num_heads=1), "options: 'num_heads' is unknown"),
    "a window of three": (
        op("multi_head", num_heads=1, window=[1, 2, 3]),
        "options: window: two numbers are expected, or null, not [1, 2, 3]",
    ),
    "a scaling of no kind": (
        op("rotary", scaling={"kind": "__class__", "factor": 2}),
        "options: scaling: an object is expected, with a kind of linear, dynamic, yarn, llama3, longrope",
    ),
    "a scaling without its factor": (
        op("rotary", scaling={"kind": "yarn", "original_length": 9}),
        "options: scaling: factor is missing",
    ),
    "a norm of no kind": (
        op("multi_head", num_heads=1, qk_norm="l1"),
        "options: qk_norm: rms or l2 is expected, not 'l1'",
    ),
    "options that are no object": ({"options": []}, "options: an object is expected"),
    "a scale that is none": (op("dot_product", scale=None), "options: scale: a number is expected, not None"),
    "a scale too large": (op("dot_product", scale=10**400), "options: scale: a number is too large"),
    "another op": (op("additive"), "query, key, value, w_query, w_key, w_score is missing among the"),
    "another op with options": (op("multi_head"), "options: num_heads is missing"),
    "no scores": ({"tensors": {"scores": GONE}}, "scores is missing among the inputs"),
    "no d_output": ({"tensors": {"d_output": GONE}}, "d_output is missing among the inputs"),
    "no output": ({"tensors": {"output": GONE}}, "output is missing among the answers"),
    "no gradient": ({"tensors": {"d_scores": GONE}}, "d_scores is missing among the answers"),
    "an unknown role": (tensor("scores", role="code"), "tensors: scores: role: it must be one of"),
    "an input too many": (
        tensor("key", role="input", **LIKE_SCORES),
        "key is among the inputs, and the op has none of that name",
    ),
    "an answer too many": (
        tensor("d_mask", role="answer", **LIKE_SCORES),
        "d_mask is among the answers, and the op has none of that name",
    ),
    "no bound": ({"tensors": {"bound.output": GONE}}, "there must be a bound for each answer"),
    "a bound too many": (
        tensor("bound.scores", role="bound", dtype="F64", shape=[3, 5]),
        "there must be a bound for each answer",
    ),
    "a bound of another shape": (tensor("bound.output", shape=[1]), "a bound for each answer, of its shape"),
    "a bound of another dtype": (tensor("bound.output", dtype="F32"), "it must be of F64"),
    "an answer as a bound": (tensor("output", role="bound"), "it must be of F64"),
    "another shape": (tensor("d_output", shape=[1, 5]), "d_output must have the shape (3, 5), not (1, 5)"),
    "no entries": (tensor("scores", shape=[0, 5]), "shape: an array of 0 entries"),
    "many entries": (tensor("scores", shape=[10**15]), "shape: an array of 1000000000000000 e"),
    "entries without end": (tensor("scores", shape=[2**62] * 30), "shape: an array of 8237"),
    "many axes": (tensor("scores", shape=[1] * 33), "shape: an array of more than 32 axes"),
}
TANGENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no tangent": ({"tensors": {"v_scores": GONE}}, "d_d_output, hvp_scores is among the answers"),
    "no product": ({"tensors": {"hvp_scores": GONE}}, "hvp_scores is missing among the answers"),
    "a tangent too many": (
        tensor("v_key", role="input", **LIKE_SCORES),
        "v_key is among the inputs, and the op has none of that name",
    ),
    "another shape of a tangent": (
        tensor("v_scores", shape=[1, 5]),
        "v_scores must have the shape (3, 5), not (1, 5)",
    ),
}


@each(
    ("case", "patch", "message"),
    [*(("/rows", *x) for x in CASES.values()), *(("/tangents-rows", *x) for x in TANGENTS.values())],
)
def test_a_case_that_is_not_one_of_its_op_is_refused_with_the_whole_manifest(
    small: Path, case: str, patch: dict[str, Any], message: str
) -> None:
    def change(manifest: Any) -> None:
        merge(next(x for x in manifest["cases"] if x["name"].endswith(case)), patch)

    change_manifest(small, change)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        known_answers.load(small)  # before the first case is read: whatever the files say
    assert str(caught.value).startswith(f"{small / 'manifest.json'} is no manifest of known answers: cases: ")


def shapes_of_answers(op: str, inputs: dict[str, Array], options: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    with np.errstate(all="ignore"):
        found = known_answers.of_op(getattr(attention_np, op))(inputs, options)
    return {name: np.shape(x) for name, x in found.items() if x is not None}


def does(example: Any, inputs: dict[str, tuple[int, ...]], answers: dict[str, tuple[int, ...]]) -> bool:
    """Whether the op gives answers of these shapes for inputs of those."""
    arrays = {name: np.zeros(shape, example.inputs[name].dtype) for name, shape in inputs.items()}
    try:
        return shapes_of_answers(example.op, arrays, example.options) == answers
    except ValueError:
        return False


def is_said(example: Any, inputs: dict[str, tuple[int, ...]], answers: dict[str, tuple[int, ...]]) -> bool:
    try:
        SIGNATURES[example.op].check(inputs, answers, example.options)
    except ValueError:
        return False
    return True


def changed(shapes: dict[str, tuple[int, ...]], name: str) -> list[dict[str, tuple[int, ...]]]:
    """The shapes with one axis of one array, and of what has its shape, longer, missing or added."""
    shape = shapes[name]
    longer = [
        (*shape[:axis], size, *shape[axis + 1 :])
        for axis in range(len(shape))
        for size in (shape[axis] + 1, 2 * shape[axis])  # which as many heads divide
    ]
    others = [*longer, shape[1:], shape[:-1], (2, *shape), (*shape, 1)]
    together = {name} if name == "output" else {f"{kind}{name}" for kind in ("", "d_", "v_", "hvp_")} & shapes.keys()
    return [shapes | dict.fromkeys(together, other) for other in others if 0 not in other]


@each("example", *some_of(SMALL, 24))
def test_arrays_fit_together_if_the_op_takes_them(example: Any) -> None:
    inputs = {name: x.shape for name, x in example.inputs.items()}
    answers = shapes_of_answers(example.op, example.inputs, example.options)
    assert is_said(example, inputs, answers)
    assert SIGNATURES[example.op].read_options(json.loads(json.dumps(example.options))) == example.options
    for name in (*inputs, *answers):
        for shapes in changed(inputs | answers, name):
            given = {x: shapes[x] for x in inputs}, {x: shapes[x] for x in answers}
            assert is_said(example, *given) == does(example, *given), (name, shapes[name])


@each("heads", [0, 4])
def test_features_that_heads_do_not_divide_are_refused(heads: int) -> None:
    example = next(example for example in all_examples() if example.op == "multi_head")
    inputs = {name: x.shape for name, x in example.inputs.items()}
    answers = shapes_of_answers(example.op, example.inputs, example.options)
    with pytest.raises(ValueError, match=rf"num_heads={heads} must divide the \d+ features of parameters.w_query"):
        SIGNATURES["multi_head"].check(inputs, answers, {"num_heads": heads})


def test_small_files_that_ask_for_scores_without_end_are_refused() -> None:
    long = MOST_SCORES // 2
    inputs = {"query": (long, 1), "key": (3, 1), "value": (3, 1), "d_output": (long, 1)}
    answers = {"output": (long, 1), "logsumexp": (long,)} | {f"d_{x}": inputs[x] for x in ("query", "key", "value")}
    with pytest.raises(ValueError, match=rf"^scores of the shape \({long}, 3\) are more than a case may have$"):
        SIGNATURES["dot_product"].check(inputs, answers, {})


def test_a_file_that_was_changed_or_cut_is_refused(small: Path) -> None:
    path = first_file(small)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused(small, "its SHA-256 is another")
    path.write_bytes(content[:-1])
    refused(small, r"it has \d+ bytes, not \d+")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="lacks a file that its manifest names: float32/softmax/rows"):
        list(known_answers.load(small))


def header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


class Planted:
    """Unpickled, it would leave a trace."""

    def __reduce__(self) -> Any:
        return (os.putenv, ("UNPICKLED", "1"))


def pickled(path: Path) -> bytes:
    np.savez(path, scores=np.array([Planted()], object))
    assert zipfile.is_zipfile(path)
    return path.read_bytes()


def test_a_file_of_pickled_objects_is_refused(small: Path, tmp_path: Path) -> None:
    replace_first_file(small, pickled(tmp_path / "planted.npz"))
    refused(small, "it is no safetensors file")
    assert "UNPICKLED" not in os.environ


@each(
    ("content", "message"),
    [
        (b"", "it is no safetensors file"),
        (b"\xff" * 8, "it is no safetensors file"),
        (header("{}")[:9], "it is no safetensors file"),
        (
            header('{"scores":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}', b"abcd"),
            "no safetensors file",
        ),
        (header('{"scores":{"dtype":"F32","shape":[1],"data_offsets":[0,4000]}}', b"abcd"), "no safetensors file"),
        (header('{"scores":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', b"abcd"), "no safetensors file"),
        (header('{"scores":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}', b"abcd"), "scores is of the type I32"),
        (header('{"scores":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}}', b"abcd"), "numbers other than 0 and 1"),
        (header('{"scores":{"dtype":"O","shape":[1],"data_offsets":[0,4]}}', b"abcd"), "no safetensors file"),
    ],
)
def test_a_file_of_another_kind_is_refused(small: Path, content: bytes, message: str) -> None:
    replace_first_file(small, content)
    refused(small, message)


def test_a_header_of_many_entries_is_refused_unread(small: Path) -> None:
    entry = '"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    replace_first_file(small, header("{" + ",".join(entry.format(k) for k in range(10_000)) + "}"))
    refused(small, "it is no safetensors file of a case: its header is too large$")


@each("number", [np.nan, np.inf, -1.0])
def test_a_bound_that_is_none_is_refused(answers: Path, small: Path, number: float) -> None:
    arrays = files.from_bytes(first_file(answers).read_bytes())
    arrays["bound.output"][0, 0] = number
    replace_first_file(small, files.to_bytes(arrays, "changed"))
    refused(small, "bound.output holds what is no bound")


def test_a_file_that_cannot_be_read_is_refused_by_its_name(small: Path) -> None:
    path = first_file(small)
    path.unlink()
    path.symlink_to(path.name)  # to itself
    refused(small, re.escape(f"{path} is not the file that the manifest describes: "))
    path.unlink()
    path.mkdir()
    refused(small, re.escape(f"{path} is not the file that the manifest describes: it is not a file"))
    path.rmdir()
    os.mkfifo(path)  # whoever opens it waits for ever
    refused(small, re.escape(f"{path} is not the file that the manifest describes: it is not a file"))
    name = "x" * 300
    change_manifest(small, lambda manifest: manifest["cases"][0].update(file=name))
    refused(small, re.escape(f"{small / name} is not the file that the manifest describes: File name too long"))
    change_manifest(small, lambda manifest: manifest["cases"][0].update(file="manifest.json/x"))
    refused(small, "is not the file that the manifest describes: Not a directory")


def test_a_manifest_that_cannot_be_read_is_refused_by_its_name(small: Path) -> None:
    path = small / "manifest.json"
    path.unlink()
    path.symlink_to("manifest.json")
    refused(small, re.escape(f"{path} is no manifest of known answers: "))
    path.unlink()
    os.mkfifo(path)
    refused(small, re.escape(f"{path} is no manifest of known answers: it is not a file"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything can be read here")
def test_a_file_that_may_not_be_read_is_refused_by_its_name(small: Path) -> None:
    first_file(small).chmod(0)
    refused(small, "is not the file that the manifest describes: Permission denied")
