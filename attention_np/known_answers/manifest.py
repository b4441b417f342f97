"""The manifest of a set of known answers: what it says of each file, and how it is read without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from attention_np.gradcheck import _json
from attention_np.known_answers.examples import OPS, TAGS
from attention_np.known_answers.formats import DTYPES, FORMATS

__all__ = ["MANIFEST", "Entry", "Tensor", "as_json", "is_ours", "read", "resolve"]

MANIFEST = "manifest.json"
FORMAT, VERSION = "attention_np known answers", 1
LARGEST_MANIFEST, LARGEST_FILE = 2**26, 2**26  # bytes
ROLES = ("input", "answer", "bound")

ABOUT = (
    "Each case is a file of the safetensors format: the inputs, d_output among them, the answers, and for each answer "
    "NAME an array bound.NAME of float64.",
    "An entry x is right if |x - answer| <= bound. Where the answer is NaN or infinite, x must be the same.",
    "The inputs are exact in their dtype. The answers are computed from them in 50 decimal digits or more, and rounded "
    "once. d_NAME is the gradient of sum(output * d_output) with respect to the input NAME.",
    "An option that is left out has its default: scale 1 / sqrt(d_k), is_causal false, axis -1.",
    "A mask is true where a query may attend to a key. A query that may attend to nothing has zeros for its output "
    "(before the last projection) and minus infinity for its logsumexp.",
    "logsumexp is that of the scores that softmax is taken of: scaled, with the bias, without what is hidden.",
    "Dropout is not among the cases: whose draws would be the right ones?",
)


class Tensor(NamedTuple):
    """What the manifest says of one array of a file."""

    role: str
    dtype: str
    shape: tuple[int, ...]


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
        "about": list(ABOUT),
        "tags": {tag: meaning for tag, meaning in TAGS.items() if tag in tags},
        "dtypes": {
            name: {"unit_roundoff": form.unit, "unit_roundoff_of_sums": form.accumulation_unit}
            for name, form in FORMATS.items()
            if name in dtypes
        },
        "cases": [
            _json.plain(entry) | {"tensors": {name: _json.plain(tensor) for name, tensor in entry.tensors.items()}}
            for entry in entries
        ],
    }


def read(directory: Path) -> list[Entry]:
    """The entries of the manifest in a directory.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is something else than a manifest of this version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no known answers: there is no {MANIFEST}")
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise ValueError(f"it is larger than {LARGEST_MANIFEST} bytes")
        manifest = _json.read(path)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError(f'it has no "format": "{FORMAT}"')
        if manifest.get("version") != VERSION:
            raise ValueError(f"its version is {manifest.get('version')!r}, and only {VERSION} can be read")
        entries: tuple[Entry, ...] = _json.as_record(manifest, FIELDS)["cases"]
        twice = len(entries) - len({entry.name for entry in entries})
        if twice:
            raise ValueError(f"{twice} names of cases are there twice")
    except ValueError as error:
        raise ValueError(f"{path} is no manifest of known answers: {error}") from None
    return list(entries)


def is_ours(directory: Path) -> bool:
    """Whether a directory holds a set of known answers, and nothing else."""
    try:
        files = {entry.file for entry in read(directory)} | {MANIFEST}
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
        raise ValueError(f"the manifest of {directory} names a file outside of it: {entry.file!r}")
    return path


def _text(value: Any) -> str:
    text = _json.as_text(value)
    if not text.isprintable():  # it is printed, and what it holds may give orders to a terminal
        raise ValueError(f"{_json.shortened(text)} has characters that cannot be printed")
    return text


def _file(value: Any) -> str:
    name = _text(value)
    parts = PurePosixPath(name)
    odd = "\\" in name or ":" in name or "\0" in name
    if odd or parts.is_absolute() or ".." in parts.parts or parts.as_posix() != name:
        raise ValueError(f"{name!r} is no path within the set")
    return name


def _one_of(*names: str) -> Any:
    def read_name(value: Any) -> str:
        if value not in names:
            raise ValueError(f"it must be one of {', '.join(names)}, not {value!r:.40}")
        return str(value)

    return read_name


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is expected")
    return _json.as_record(value, {name: OPTIONS[name] for name in OPTIONS if name in value})


def _axis(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 32:
        raise ValueError("an axis is expected")
    return value


def _size(value: Any) -> int:
    size = _json.as_whole(value)
    if size > LARGEST_FILE:
        raise ValueError(f"a file of more than {LARGEST_FILE} bytes is refused")
    return size


def _mapping(read_item: Any) -> Any:
    def read_all(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("an object is expected")
        for name in value:
            _text(name)
        return _json.as_record(value, dict.fromkeys(value, read_item))

    return read_all


def _tensor(value: Any) -> Tensor:
    return Tensor(**_json.as_record(value, TENSOR))


def _entry(value: Any) -> Entry:
    return Entry(**_json.as_record(value, ENTRY))


def _anything(value: Any) -> Any:
    return value


OPTIONS = {"axis": _axis, "scale": _json.as_number, "is_causal": _json.as_flag, "num_heads": _json.as_whole}
TENSOR = {
    "role": _one_of(*ROLES),
    "dtype": _one_of("BOOL", *(form.code for form in FORMATS.values())),
    "shape": _json.as_tuple(_json.as_whole),
}
ENTRY = {
    "name": _text,
    "op": _one_of(*OPS),
    "dtype": _one_of(*DTYPES),
    "description": _text,
    "tags": _json.as_tuple(_text),
    "options": _options,
    "file": _file,
    "bytes": _size,
    "sha256": _json.as_text,
    "largest_bound": _mapping(_json.as_number),
    "tensors": _mapping(_tensor),
}
FIELDS = {
    "format": _json.as_text,
    "version": _json.as_whole,
    "about": _json.as_tuple(_json.as_text),
    "tags": _anything,
    "dtypes": _anything,
    "cases": _json.as_tuple(_entry),
}
