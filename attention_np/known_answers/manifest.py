"""The manifest of a set of known answers: what it says of each file, and how it is read without trusting it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from attention_np._lib import json
from attention_np._lib.text import shortened
from attention_np.known_answers.examples import OF_KERNELS, OPS, TAGS, THREADS
from attention_np.known_answers.files import BOOLEAN, refusing
from attention_np.known_answers.formats import FORMATS, OF_CASES, format_of
from attention_np.known_answers.signatures import BOOLEANS, SIGNATURES

MANIFEST = "manifest.json"
FORMAT, VERSION = "attention_np known answers", 2
LICENCE = "BSD-3-Clause"  # that of the project
LARGEST_MANIFEST, LARGEST_FILE = 2**22, 2**26  # bytes; what is read takes up to thirty times those of the manifest
LONGEST_TEXT = 1000  # characters
ROLES = ("input", "answer", "bound")

ABOUT = (
    "Each case is a file of the safetensors format: the inputs, d_output among them, the answers, and for each answer "
    "NAME an array bound.NAME of float64.",
    "An entry x is right if |x - answer| <= bound. Where the answer is NaN or infinite, x must be the same.",
    "The inputs are exact in their dtype. The answers are computed from them in 50 decimal digits or more, and rounded "
    "once. d_NAME is the gradient of sum(output * d_output) with respect to the input NAME.",
    "Where there is a d_final_state, it is that of sum(output * d_output) + sum(final_state * d_final_state).",
    "In some cases each input NAME has a tangent v_NAME, and with g the sum of the products of all v_NAME and d_NAME, "
    "hvp_NAME is the gradient of g with respect to the input NAME, d_d_output that with respect to d_output.",
    "An option that is left out has its default: scale 1 / sqrt(d_k), is_causal false, axis -1.",
    "A mask is true where a query may attend to a key. A query that may attend to nothing has zeros for its output "
    "(before the last projection) and minus infinity for its logsumexp. What an indexer hides is minus infinity.",
    "logsumexp is that of the scores that softmax is taken of: scaled, capped, with bias and sink, without what is "
    "hidden.",
    "slopes, table, embedding and log_f make a bias: -slopes |i - j| (ALiBi), a number for each bucket of j - i (T5; "
    "max_distance 128 and bidirectional true), scale query . embedding[clip(j - i, -w, w) + w] (Shaw), and the sum of "
    "log_f from j + 1 to i (forgetting gates). It is added after the softcap.",
    "With an index, whole numbers from 0 in (n, m), a table is a number for each row that the index says, and an "
    "embedding, (r, d_k) or (heads, r, d_k), is scale query . embedding[index[i, j]], or of key j where of is key. "
    "Several biases add up. A scale among the arrays is that of each query, (..., n, 1), in those products, too.",
    "A sink is one more logit of each query, without a value; it broadcasts to the leading axes of the scores.",
    "window is [left, right]: query i sees keys i - left to i + right, both included.",
    "Dropout is given by what is kept: weights are kept / (1 - dropout_p) times what they were. Where there is a "
    "d_logsumexp, gradients are those of sum(output * d_output) + sum(logsumexp * d_logsumexp).",
    "An array NAME with a NAME_descale is of eight bits and stands for their product, of which d_NAME is the gradient: "
    "along each axis a number of NAME_descale is for as many entries, one after the other, as there are times more.",
)


class Tensor(NamedTuple):
    """What the manifest says of one array of a file."""

    role: str
    dtype: str
    shape: tuple[int, ...]


class Flag(NamedTuple):
    """Why a tag is there, and the threads in which kernels were wrong in what it says."""

    reason: str
    threads: tuple[str, ...] = ()  # such as "pytorch/pytorch#108108": that of a GitHub repository

    def __str__(self) -> str:
        return f"{self.reason} ({', '.join(self.threads)})" if self.threads else self.reason


class Entry(NamedTuple):
    """What the manifest says of one file: a case in one dtype."""

    name: str
    op: str
    dtype: str
    description: str
    tags: tuple[str, ...]
    options: Mapping[str, Any]
    file: str
    bytes: int
    sha256: str
    largest_bound: Mapping[str, float]  # of each answer: the largest of its bounds over its largest magnitude
    tensors: Mapping[str, Tensor]


def as_json(entries: list[Entry]) -> dict[str, Any]:
    """The manifest, in the types of JSON."""
    tags = {tag for entry in entries for tag in entry.tags}
    dtypes = {entry.dtype for entry in entries}
    return {
        "format": FORMAT,
        "version": VERSION,
        "generator": f"attention_np {sys.modules['attention_np'].__version__}",  # which imports this package
        "licence": LICENCE,
        "about": list(ABOUT),
        "tags": {
            tag: {"reason": reason, "threads": list(THREADS.get(tag, ()))}
            for tag, reason in TAGS.items()
            if tag in tags
        },
        "dtypes": {
            name: {"unit_roundoff": FORMATS[form.steps or name].unit, "unit_roundoff_of_sums": form.accumulation_unit}
            | ({"unit_roundoff_of_weights": form.unit} if form.steps else {})
            | ({"unit_roundoff_of_gradients": FORMATS[form.gradients].unit} if form.gradients else {})
            for name, form in FORMATS.items()
            if name in dtypes
        },
        "cases": [
            entry._asdict() | {"tensors": {name: tensor._asdict() for name, tensor in entry.tensors.items()}}
            for entry in entries
        ],
    }


class Manifest(NamedTuple):
    """What is read of a manifest."""

    entries: list[Entry]
    flags: Mapping[str, Flag]  # by the tags that they explain


def read(directory: Path) -> Manifest:
    """The manifest in a directory.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it cannot be read, or is something else than a manifest of this version. Then no case has been looked at.
    """
    path = directory / MANIFEST
    with refusing(f"{path} is no manifest of known answers"):
        try:
            manifest = json.read(path, LARGEST_MANIFEST)
        except FileNotFoundError:
            raise FileNotFoundError(f"{directory} holds no known answers: there is no {MANIFEST}") from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError(f'it has no "format": "{FORMAT}"')
        if manifest.get("version") != VERSION:
            raise ValueError(f"its version is {shortened(manifest.get('version'))}, and only {VERSION} can be read")
        record = json.as_record(manifest, FIELDS)
        entries: tuple[Entry, ...] = record["cases"]
        for what, named in (("cases", {entry.name for entry in entries}), ("files", {entry.file for entry in entries})):
            if twice := len(entries) - len(named):
                raise ValueError(f"{twice} names of {what} are there twice")
    return Manifest(list(entries), record["tags"])


def is_ours(directory: Path) -> bool:
    """Whether a directory holds a set of known answers, and nothing else."""
    try:
        files = {entry.file for entry in read(directory).entries} | {MANIFEST}
    except (OSError, ValueError):
        return False
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    return found <= files and not any(path.is_symlink() for path in directory.rglob("*"))


def resolve(directory: Path, entry: Entry) -> Path:
    """Where the file of an entry is: within the directory.

    Raises
    ------
    ValueError
        If it is not.
    """
    root = directory.resolve()
    path = (root / entry.file).resolve()
    if not path.is_relative_to(root):
        raise ValueError("it is outside of the set")
    return path


def _text(value: Any) -> str:
    text = json.as_text(value)
    if not text.isprintable():  # it is printed, and what it holds may give orders to a terminal
        raise ValueError(f"{shortened(text)} has characters that cannot be printed")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a text of more than {LONGEST_TEXT} characters")
    return text


def _file(value: Any) -> str:
    name = _text(value)
    parts = PurePosixPath(name)
    odd = "\\" in name or ":" in name or "\0" in name
    if odd or parts.is_absolute() or ".." in parts.parts or parts.as_posix() != name:
        raise ValueError(f"{shortened(name)} is no path within the set")
    return name


def _one_of(*names: str) -> Any:
    def read_name(value: Any) -> str:
        if value not in names:
            raise ValueError(f"it must be one of {', '.join(names)}, not {shortened(value)}")
        return str(value)

    return read_name


def _size(value: Any) -> int:
    size = json.as_whole(value)
    if size > LARGEST_FILE:
        raise ValueError(f"a file of more than {LARGEST_FILE} bytes is refused")
    return size


def _mapping(read_item: Any) -> Any:
    def read_all(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("an object is expected")
        for name in value:
            _text(name)
        return json.as_record(value, dict.fromkeys(value, read_item))

    return read_all


def _shape(value: Any) -> tuple[int, ...]:
    shape = json.as_shape(value)
    if not 0 < prod(shape) <= LARGEST_FILE:
        raise ValueError(f"an array of {shortened(prod(shape))} entries: there must be from 1 to {LARGEST_FILE}")
    return shape


def _tensor(value: Any) -> Tensor:
    return Tensor(**json.as_record(value, TENSOR))


def _flag(value: Any) -> Flag:
    return Flag(**json.as_record(value, {"reason": _text, "threads": json.as_tuple(_text)}))


def _entry(value: Any) -> Entry:
    record = json.as_record(value, ENTRY)
    try:
        record["options"] = SIGNATURES[record["op"]].read_options(record["options"])
        entry = Entry(**record)
        _check(entry)
    except ValueError as error:
        raise ValueError(f"{record['name']}: {error}") from None
    return entry


def _check(entry: Entry) -> None:
    """Refuse a case that lacks an array of its op, or has another, or one of another shape or dtype."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {role: {} for role in ROLES}
    for name, tensor in entry.tensors.items():
        shapes[tensor.role][name] = tensor.shape
        formats = [format_of(name, entry.dtype, entry.tensors, x) for x in ((), SIGNATURES[entry.op].in_float32)]
        codes = (
            ["F64"] if tensor.role == "bound" else [BOOLEAN] if name in BOOLEANS else [FORMATS[x].code for x in formats]
        )
        if tensor.dtype not in codes:
            raise ValueError(f"{name} is of {tensor.dtype}, and in a case of {entry.dtype} it must be of {codes[0]}")
    inputs, answers, bounds = (shapes[role] for role in ROLES)
    SIGNATURES[entry.op].check(inputs, answers, entry.options)
    if bounds != {f"bound.{name}": shape for name, shape in answers.items()}:
        raise ValueError("there must be a bound for each answer, of its shape, and no other")


def _anything(value: Any) -> Any:
    return value


TENSOR = {
    "role": _one_of(*ROLES),
    "dtype": _one_of(BOOLEAN, *(form.code for form in FORMATS.values())),
    "shape": _shape,
}
ENTRY = {
    "name": _text,
    "op": _one_of(*OPS, *OF_KERNELS),
    "dtype": _one_of(*OF_CASES),
    "description": _text,
    "tags": json.as_tuple(_text),
    "options": _anything,
    "file": _file,
    "bytes": _size,
    "sha256": json.as_text,
    "largest_bound": _mapping(json.as_finite),
    "tensors": _mapping(_tensor),
}
FIELDS = {
    "format": json.as_text,
    "version": json.as_whole,
    "generator": _text,
    "licence": _text,
    "about": json.as_tuple(json.as_text),
    "tags": _mapping(_flag),
    "dtypes": _anything,
    "cases": json.as_tuple(_entry),
}
