"""Reports in files, as JSON.

That has no NaN and no infinity: NaN becomes null, and the infinities the strings "Infinity" and "-Infinity". Numbers
are written with as many digits as it takes to read the same ones again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, get_type_hints

from attention_np._lib.files import write_whole
from attention_np._lib.json import as_finite, as_flag, as_record, as_text, as_tuple, as_whole, is_optional
from attention_np._lib.json import read as read_json
from attention_np._lib.text import shortened
from attention_np.gradcheck.report.findings import Entry, InputReport
from attention_np.gradcheck.verdict.sampling import Escape

HEADER = {"format": "attention_np gradient report", "version": 2}
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def as_dict(inputs: Sequence[InputReport]) -> dict[str, Any]:
    """What was found for all inputs in the types of JSON."""
    fields = [{key: value for key, value in vars(one).items() if key != "details"} for one in inputs]
    return {"ok": all(one.ok for one in inputs), "inputs": _as_json(fields)}


def _as_json(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _as_json(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [_as_json(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next((name for name, infinity in INFINITIES.items() if value == infinity), None)
    return value


def write(path: str | os.PathLike[str], inputs: Sequence[InputReport]) -> None:
    """Save a report."""
    text = json.dumps({**HEADER, **as_dict(inputs)}, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def read(path: str | os.PathLike[str]) -> tuple[InputReport, ...]:
    """What was found for each input; a ValueError if the file holds something else."""
    try:
        saved = read_json(path)
        if not isinstance(saved, dict) or saved.get("format") != HEADER["format"]:
            raise ValueError(f'it has no "format": "{HEADER["format"]}"')
        if saved.get("version") != HEADER["version"]:
            version = shortened(saved.get("version"))
            raise ValueError(f"its version is {version}, and only {HEADER['version']} can be read")
        inputs: tuple[InputReport, ...] = as_record(saved, REPORT)["inputs"]
        if not inputs:
            raise ValueError("it reports on no input")
        return inputs
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a saved gradient report: {error}") from error


def _reader(kind: Any) -> Callable[[Any], Any]:
    """How an object of a class of findings is read: each of its fields by its type."""

    @cache
    def fields() -> dict[str, Callable[[Any], Any]]:
        return {name: FORMS[hint] for name, hint in get_type_hints(kind).items() if name != "details"}

    return lambda value: kind(**as_record(value, fields()))


def _name(value: Any) -> str:
    name = as_text(value)
    if len(name) > 1000:  # every line of a table is as long as the longest
        raise ValueError("a name of more than 1000 characters")
    return name


def _number(value: Any) -> float:
    """A number, or what :func:`_as_json` writes for one that is not finite."""
    if value is None:
        return math.nan
    return INFINITIES[value] if isinstance(value, str) and value in INFINITIES else as_finite(value)


def _escape(value: Any) -> Escape:
    escape: Escape = _reader(Escape)(value)
    if not 0 < escape.size >= escape.entries:
        raise ValueError(f"{escape.entries} entries cannot have been looked at of {escape.size}")
    return escape


FORMS: dict[Any, Callable[[Any], Any]] = {
    str: _name,
    bool: as_flag,
    int: as_whole,
    float: _number,
    tuple[int, ...]: as_tuple(as_whole),
    tuple[tuple[int, ...], ...]: as_tuple(as_tuple(as_whole)),
    tuple[Entry, ...]: as_tuple(_reader(Entry)),
    str | None: is_optional(as_text),
    Escape | None: is_optional(_escape),
}
REPORT = {"format": as_text, "version": as_whole, "ok": as_flag, "inputs": as_tuple(_reader(InputReport))}
