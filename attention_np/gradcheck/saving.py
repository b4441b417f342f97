"""Reports in files, and checks that can be interrupted: a report that also keeps the slopes measured so far.

Files are JSON, which has no NaN and no infinity: NaN becomes null, and the infinities the strings "Infinity" and
"-Infinity". Numbers are written with as many digits as it takes to read the same ones again.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib import json
from attention_np._lib.json import as_finite, as_record, as_shape
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
DTYPES = re.compile(r"(float|complex)[0-9]{2,3}")  # of slopes
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def as_json(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if isinstance(value, np.ndarray):
        wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
        return {"shape": list(value.shape), "values": as_json(wide.tolist())}
    if hasattr(value, "_asdict"):
        return {key: as_json(x) for key, x in value._asdict().items()}
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


def as_number(value: Any) -> float:
    """A number, or what :func:`as_json` writes for one that is not finite."""
    if value is None:
        return math.nan
    return INFINITIES[value] if isinstance(value, str) and value in INFINITIES else as_finite(value)


def as_array(read_item: Callable[[Any], Any], dtype: npt.DTypeLike) -> Callable[[Any], npt.NDArray[Any]]:
    """A reader of the arrays that :func:`as_json` writes, of entries that `read_item` reads."""

    def read_array(value: Any) -> npt.NDArray[Any]:
        parts = as_record(value, {"shape": as_shape, "values": lambda values: values})
        shape = parts["shape"]
        flat = [read_item(x) for x in _flat(parts["values"], shape)]
        array: npt.NDArray[Any] = np.array(flat, dtype).reshape(shape)
        return array

    return read_array


def _flat(values: Any, shape: tuple[int, ...]) -> list[Any]:
    """The entries of nested lists, which must be nested as `shape` says."""
    if not shape:
        return [values]
    if not isinstance(values, list) or len(values) != shape[0]:
        raise ValueError(f"the values are not nested as the shape says, with {shape[0]} along an axis")
    return [x for part in values for x in _flat(part, shape[1:])]


def as_dict(inputs: Sequence[Finding], *, details: bool = False) -> dict[str, Any]:
    """What was found for all inputs in the types of JSON."""
    fields = [{key: value for key, value in vars(one).items() if details or key != "details"} for one in inputs]
    return {"ok": all(one.ok for one in inputs), "inputs": as_json(fields)}


def write(path: str | os.PathLike[str], inputs: Sequence[Finding], details: bool, rest: Mapping[str, Any]) -> None:
    """Save what was found: the file is the old one or the new one, whenever it is looked at."""
    json.write(path, {**HEADER, **as_dict(inputs, details=details), **rest})


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], ...]:
    """The fields of what was found for each input, as :func:`write` saved it; a ValueError if that is something else.

    Nothing in the file is evaluated.
    """
    try:
        return _inputs_of(json.read(path))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a saved gradient report: {error}") from error


def _inputs_of(saved: Any) -> tuple[dict[str, Any], ...]:
    """The inputs of the report that was saved as `saved`; a ValueError if that is none."""
    if not isinstance(saved, dict) or saved.get("format") != HEADER["format"]:
        raise ValueError(f'it has no "format": "{HEADER["format"]}"')
    if saved.get("version") != HEADER["version"]:
        raise ValueError(f"its version is {shortened(saved.get('version'))}, and only {HEADER['version']} can be read")
    report = {key: value for key, value in saved.items() if key != REST}
    inputs: tuple[dict[str, Any], ...] = json.as_record(report, REPORT)["inputs"]
    if not inputs:
        raise ValueError("it reports on no input")
    return inputs


def _input(value: Any) -> dict[str, Any]:
    with_details = {"details": None, **value} if isinstance(value, dict) else value
    return json.as_record(with_details, INPUT)


def _name(value: Any) -> str:
    name = json.as_text(value)
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of more than {LONGEST_NAME} characters")
    return name


def _entry(value: Any) -> Entry:
    return Entry(**json.as_record(value, ENTRY))


def _escape(value: Any) -> Escape:
    escape = Escape(**json.as_record(value, ESCAPE))
    if not 0 < escape.size >= escape.entries:
        raise ValueError(f"{escape.entries} entries cannot have been looked at of {escape.size}")
    return escape


def _details(value: Any) -> Details:
    details = Details(**json.as_record(value, DETAILS))
    if len({array.shape for array in details}) > 1:
        raise ValueError("the arrays have different shapes")
    return details


def _verdict(value: Any) -> int:
    verdict = json.as_whole(value)
    if verdict not in (HOLDS, WRONG, UNDECIDED, UNCHECKED):
        raise ValueError(f"{verdict} is no verdict on an entry")
    return verdict


INDEX = json.as_tuple(json.as_whole)
ENTRY = {
    "index": INDEX,
    "analytic": as_number,
    "numerical": as_number,
    "floor": as_number,
}
ESCAPE = {
    "entries": json.as_whole,
    "size": json.as_whole,
    "directions": json.as_whole,
    "threshold": as_number,
    "norm": as_number,
}
DETAILS = {
    "analytic": as_array(as_number, np.float64),
    "numerical": as_array(as_number, np.float64),
    "floor": as_array(as_number, np.float64),
    "verdict": as_array(_verdict, np.int8),
}
INPUT = {
    "name": _name,
    "method": _name,
    "ok": json.as_flag,
    "max_relative_error": as_number,
    "worst_index": INDEX,
    "analytic": as_number,
    "numerical": as_number,
    "floor": as_number,
    "size": json.as_whole,
    "checked": json.as_whole,
    "wrong": json.as_whole,
    "undecidable": json.as_whole,
    "undecided": json.as_tuple(INDEX),
    "worst": json.as_tuple(_entry),
    "diagnosis": json.is_optional(json.as_text),
    "note": json.is_optional(json.as_text),
    "escape": json.is_optional(_escape),
    "details": json.is_optional(_details),
}
REPORT = {
    "format": json.as_text,
    "version": json.as_whole,
    "ok": json.as_flag,
    "inputs": json.as_tuple(_input),
}


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


def _array(kept: Any, size: int) -> Array:
    """The array that was kept, flat; its dtype is a word from a file, and must be that of a number."""
    dtype, numbers = kept
    if not isinstance(dtype, str) or not DTYPES.fullmatch(dtype):
        raise ValueError("it is of no dtype of numbers")
    if not isinstance(numbers, list) or len(numbers) != size or not all(isinstance(x, str) for x in numbers):
        raise ValueError("there is no number for each entry")
    return np.array([np.dtype(dtype).type(x) for x in numbers])


class Checkpoint:
    """A file that is a saved report and, besides, keeps the slopes that were measured.

    What it holds is looked at before anything is measured. It is written every ten seconds; :meth:`save` writes it at
    the end, and when the check is interrupted.
    """

    def __init__(self, path: str | os.PathLike[str], question: str, sizes: Callable[[str], Sequence[int]]) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise TypeError(f"checkpoint must be a path, not {path!r}") from None
        self.question = question
        self.slopes: dict[str, list[Array]] = {}
        self.findings: Callable[[], Sequence[Finding]] = lambda: ()
        self.saved = time.monotonic()
        try:
            self._read(sizes)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise ValueError(f"checkpoint {self.path}: there is no folder {self.path.parent}") from None

    def _read(self, sizes: Callable[[str], Sequence[int]]) -> None:
        """Take over what the file holds: all of it, or nothing."""
        try:
            saved = json.read(self.path)
            _inputs_of(saved)
            rest = saved[REST]
            question, slopes = rest["question"], rest["slopes"]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ValueError(f"checkpoint {self.path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            what = "a folder, not a file" if self.path.is_dir() else "not the checkpoint of a gradient check"
            raise ValueError(f"checkpoint {self.path} is {what}") from None
        if question != self.question or not isinstance(slopes, dict):
            raise ValueError(
                f"checkpoint {self.path} belongs to another check, with other inputs, outputs, seed or options: "
                "remove it, or name another file"
            )
        self.slopes = {key: self._arrays(key, kept, sizes) for key, kept in slopes.items()}

    def _arrays(self, key: str, kept: Any, sizes: Callable[[str], Sequence[int]]) -> list[Array]:
        try:
            return [_array(x, size) for x, size in zip(kept, sizes(key), strict=True)]
        except (TypeError, ValueError, OverflowError):
            where = legible(key)[:LONGEST_KEY]
            raise ValueError(f"checkpoint {self.path} is damaged at {where}: remove it") from None

    def get(self, key: str, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """The arrays that were kept under `key`, or None."""
        if key not in self.slopes:
            return None
        return [x.reshape(shape) for x, shape in zip(self.slopes[key], shapes, strict=True)]

    def put(self, key: str, arrays: Iterable[Array]) -> None:
        """Keep `arrays` under `key`."""
        self.slopes[key] = list(arrays)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save(self.findings())

    def save(self, inputs: Sequence[Finding]) -> None:
        """Write the file; an older one stays whole until the new one is."""
        slopes = {
            key: [(array.dtype.name, [str(number) for number in array.ravel()]) for array in arrays]
            for key, arrays in self.slopes.items()
        }
        write(self.path, inputs, False, {REST: {"question": self.question, "slopes": slopes}})
        self.saved = time.monotonic()
