"""Reports in files, and checkpoints, by which a check goes on where it was interrupted.

A report is JSON, which has no NaN and no infinity: NaN becomes null, and the infinities the strings "Infinity" and
"-Infinity". Numbers are written with as many digits as it takes to read the same ones again.

A checkpoint is an archive of NumPy, ``.npz`` without pickle: the report is its header, the slopes measured so far are
its arrays.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from attention_np._lib.json import (
    as_finite,
    as_flag,
    as_record,
    as_shape,
    as_text,
    as_tuple,
    as_whole,
    content_of,
    is_optional,
    parse,
)
from attention_np._lib.text import legible, shortened
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.findings import Details, Entry, Escape, Finding

__all__ = ["Checkpoint", "as_dict", "fingerprint", "read", "write"]

Array = npt.NDArray[Any]

HEADER = {"format": "attention_np gradient report", "version": 1}
REST = "checkpoint"  # the key of what a checkpoint keeps besides, and a report has no use for
LONGEST_NAME = 1000  # characters: every line of a table is as long as the longest
LONGEST_KEY = 100  # characters, of one that is shown
SAVE_EVERY = 10.0  # seconds
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def as_dict(inputs: Sequence[Finding], *, details: bool) -> dict[str, Any]:
    """What was found for all inputs in the types of JSON."""
    fields = [{key: value for key, value in vars(one).items() if details or key != "details"} for one in inputs]
    return {"ok": all(one.ok for one in inputs), "inputs": as_json(fields)}


def as_json(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if isinstance(value, np.ndarray):
        wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
        return {"shape": list(value.shape), "values": as_json(wide.tolist())}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: as_json(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(x) for x in value]
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else _not_finite(number)
    return value


def _not_finite(number: float) -> str | None:
    return None if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def write(path: str | os.PathLike[str], inputs: Sequence[Finding], *, details: bool) -> None:
    """Save a report."""
    text = json.dumps({**HEADER, **as_dict(inputs, details=details)}, allow_nan=False)
    _replace(path, f"{text}\n".encode())


def _replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file: it is the old one or the new one, whenever it is looked at."""
    target = Path(path).resolve()  # of a link, what it points to
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], ...]:
    """The fields of what was found for each input, of a report or a checkpoint; a ValueError if the file is neither.

    Nothing in the file is evaluated.
    """
    try:
        return _inputs_of(_opened(path)[0])
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a saved gradient report: {error}") from error


def _opened(path: str | os.PathLike[str]) -> tuple[Any, list[Array] | None]:
    """The JSON of a file, and its arrays; None if it is no archive."""
    content = content_of(path)
    if not content.startswith(b"PK"):
        return parse(content), None
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > len(content):
                raise ValueError("it is compressed")
            header, *arrays = (np.asarray(archive[f"arr_{k}"]) for k in range(len(archive.files)))
    except Exception as error:  # of zipfile, of NumPy, of the memory that the shape of an array asks for
        raise ValueError(f"no archive of arrays: {error}") from None
    return parse(header.tobytes()), arrays


def _inputs_of(saved: Any) -> tuple[dict[str, Any], ...]:
    """The fields of the inputs of the report that was saved as `saved`; a ValueError if that is none."""
    if not isinstance(saved, dict) or saved.get("format") != HEADER["format"]:
        raise ValueError(f'it has no "format": "{HEADER["format"]}"')
    if saved.get("version") != HEADER["version"]:
        raise ValueError(f"its version is {shortened(saved.get('version'))}, and only {HEADER['version']} can be read")
    report = {key: value for key, value in saved.items() if key != REST}
    inputs: tuple[dict[str, Any], ...] = as_record(report, REPORT)["inputs"]
    if not inputs:
        raise ValueError("it reports on no input")
    return inputs


@cache
def _fields(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """How each field of a class of findings is read, by its type."""
    return {name: FORMS[hint] for name, hint in get_type_hints(kind).items()}


def _input(value: Any) -> dict[str, Any]:
    return as_record({"details": None, **value} if isinstance(value, dict) else value, _fields(Finding))


def _name(value: Any) -> str:
    name = as_text(value)
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of more than {LONGEST_NAME} characters")
    return name


def _number(value: Any) -> float:
    """A number, or what :func:`as_json` writes for one that is not finite."""
    if value is None:
        return math.nan
    return INFINITIES[value] if isinstance(value, str) and value in INFINITIES else as_finite(value)


def _entry(value: Any) -> Entry:
    return Entry(**as_record(value, _fields(Entry)))


def _escape(value: Any) -> Escape:
    escape = Escape(**as_record(value, _fields(Escape)))
    if not 0 < escape.size >= escape.entries:
        raise ValueError(f"{escape.entries} entries cannot have been looked at of {escape.size}")
    return escape


def _verdict(value: Any) -> int:
    verdict = as_whole(value)
    if verdict not in (HOLDS, WRONG, UNDECIDED, UNCHECKED):
        raise ValueError(f"{verdict} is no verdict on an entry")
    return verdict


def _details(value: Any) -> Details:
    def read_array(part: Any, read_item: Callable[[Any], Any] = _number, dtype: npt.DTypeLike = np.float64) -> Array:
        parts = as_record(part, {"shape": as_shape, "values": lambda values: values})
        flat = [read_item(x) for x in _flat(**parts)]
        array: Array = np.array(flat, dtype).reshape(parts["shape"])
        return array

    forms = dict.fromkeys(Details._fields, read_array) | {"verdict": lambda part: read_array(part, _verdict, np.int8)}
    details = Details(**as_record(value, forms))
    if len({array.shape for array in details}) > 1:
        raise ValueError("the arrays have different shapes")
    return details


def _flat(shape: tuple[int, ...], values: Any) -> list[Any]:
    """The entries of nested lists, which must be nested as `shape` says."""
    if not shape:
        return [values]
    if not isinstance(values, list) or len(values) != shape[0]:
        raise ValueError(f"the values are not nested as the shape says, with {shape[0]} along an axis")
    return [x for part in values for x in _flat(shape[1:], part)]


INDEX = as_tuple(as_whole)
FORMS: dict[Any, Callable[[Any], Any]] = {
    str: _name,
    bool: as_flag,
    int: as_whole,
    float: _number,
    tuple[int, ...]: INDEX,
    tuple[tuple[int, ...], ...]: as_tuple(INDEX),
    tuple[Entry, ...]: as_tuple(_entry),
    str | None: is_optional(as_text),
    Escape | None: is_optional(_escape),
    Details | None: is_optional(_details),
}
REPORT = {"format": as_text, "version": as_whole, "ok": as_flag, "inputs": as_tuple(_input)}


def fingerprint(parts: Iterable[Any]) -> str:
    """A digest by which a checkpoint is known to belong to the same question."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            padded = part.dtype.itemsize > 8  # extended precision holds bytes that mean nothing
            data = repr(part.ravel().tolist()).encode() if padded else part.tobytes()
            digest.update(data + repr((part.shape, part.dtype.str)).encode())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


class Checkpoint:
    """A file that is a saved report and, besides, keeps the slopes that were measured.

    What it holds is looked at before anything is measured. It is written every ten seconds; :meth:`save` writes it at
    the end, and when the check is interrupted.
    """

    def __init__(self, path: str | os.PathLike[str], question: str) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise TypeError(f"checkpoint must be a path, not {path!r}") from None
        self.question = question
        self.slopes: dict[str, list[Array]] = {}
        self.findings: Callable[[], Sequence[Finding]] = lambda: ()
        self.saved = time.monotonic()
        self.is_whole = True
        try:
            self._read()
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise ValueError(f"checkpoint {self.path}: there is no folder {self.path.parent}") from None

    def _read(self) -> None:
        """Take over what the file holds: all of it, or nothing."""
        try:
            saved, arrays = _opened(self.path)
            _inputs_of(saved)
            question, slopes = saved[REST]["question"], saved[REST]["slopes"]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ValueError(f"checkpoint {self.path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            arrays = None
        if arrays is None:
            what = "a folder, not a file" if self.path.is_dir() else "not the checkpoint of a gradient check"
            raise ValueError(f"checkpoint {self.path} is {what}") from None
        if question != self.question or not isinstance(slopes, dict):
            raise ValueError(
                f"checkpoint {self.path} belongs to another check, with other inputs, outputs, seed or options: "
                "remove it, or name another file"
            )
        key = ""
        try:
            for key, places in slopes.items():
                self.slopes[key] = [arrays[as_whole(place)] for place in places]
        except (TypeError, ValueError, IndexError):
            raise self._damaged(key) from None

    def _damaged(self, key: str) -> ValueError:
        self.is_whole = False
        return ValueError(f"checkpoint {self.path} is damaged at {legible(key)[:LONGEST_KEY]}: remove it")

    def get(self, key: str, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """The arrays that were kept under `key`, or None; a ValueError if they have not a number for each entry."""
        if key not in self.slopes:
            return None
        try:
            found = [x.reshape(shape) for x, shape in zip(self.slopes[key], shapes, strict=True)]
        except ValueError:
            raise self._damaged(key) from None
        if any(x.dtype.kind not in "fc" for x in found):
            raise self._damaged(key)
        return found

    def put(self, key: str, arrays: Iterable[Array]) -> None:
        """Keep `arrays` under `key`."""
        self.slopes[key] = list(arrays)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save(self.findings())

    def save(self, inputs: Sequence[Finding]) -> None:
        """Write the file; an older one stays whole until the new one is, and for good if it is found to be damaged."""
        if not self.is_whole:
            return
        numbers = iter(range(sum(map(len, self.slopes.values()))))
        slopes = {key: [next(numbers) for _ in arrays] for key, arrays in self.slopes.items()}
        header = {**HEADER, **as_dict(inputs, details=False), REST: {"question": self.question, "slopes": slopes}}
        text = json.dumps(header, allow_nan=False).encode()
        content = BytesIO()
        np.savez(content, np.frombuffer(text, np.uint8), *chain.from_iterable(self.slopes.values()))
        _replace(self.path, content.getvalue())
        self.saved = time.monotonic()
