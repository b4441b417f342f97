"""JSON from files of others: read without trust, held against the form that is expected, and never evaluated.

It is JSON by the standard, which has no NaN and no infinity, and in which no name of an object is there twice: readers
differ in which of two they take.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attention_np._lib.text import shortened

Item = TypeVar("Item")

DIGITS = 4000  # of a whole number: the time to read one grows with their square
LARGEST = 2**63 - 1  # whole number: as many entries as an array can have
MOST_AXES = 32  # that all versions of NumPy can make


def content_of(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The bytes of a file, `most` of them at most.

    Raises
    ------
    OSError
        If it is missing or cannot be read.
    ValueError
        If it is longer, or no file: what has no end cannot be read.
    """
    file = Path(path)
    if file.exists() and not file.is_file():
        raise ValueError("it is not a file")
    with file.open("rb") as opened:
        content = opened.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return content


def read(path: str | os.PathLike[str], most: int | None = None) -> Any:
    """What the file at `path`, of `most` bytes at most, holds; a ValueError if that is not JSON."""
    return parse(content_of(path, most))


def parse(content: bytes) -> Any:
    """What `content` says; a ValueError if that is not JSON."""
    try:
        return json.loads(
            content.decode(), parse_constant=_refuse, parse_int=_whole, parse_float=_finite, object_pairs_hook=_object
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = set()
        for name, _ in pairs:
            if name in names:
                raise ValueError(f"{shortened(name)} is there twice")
            names.add(name)
    return members


def _whole(literal: str) -> int:
    if len(literal) > DIGITS:
        raise ValueError("a number is too large")
    return int(literal)


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def as_record(value: Any, fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The fields of an object, each in the form that `fields` gives for it; there must be these and no others."""
    if not isinstance(value, dict):
        raise ValueError(f"an object is expected, with {', '.join(fields)}, not {shortened(value)}")
    for key in value:
        if key not in fields:
            raise ValueError(f"{shortened(key)} is unknown")
    record = {}
    for key, read_field in fields.items():
        if key not in value:
            raise ValueError(f"{key} is missing")
        try:
            record[key] = read_field(value[key])
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return record


def as_text(value: Any) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str):
        raise ValueError(f"a string is expected, not {shortened(value)}")
    return value


def as_flag(value: Any) -> bool:
    """`value`, which must be true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"true or false is expected, not {shortened(value)}")
    return value


def as_whole(value: Any) -> int:
    """`value`, which must be a whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a whole number that is not negative is expected, not {shortened(value)}")
    if value > LARGEST:
        raise ValueError("a number is too large")
    return value


def as_finite(value: Any) -> float:
    """`value`, which must be a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is expected, not {shortened(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number is too large") from None


def as_tuple(read_item: Callable[[Any], Item]) -> Callable[[Any], tuple[Item, ...]]:
    """A reader of lists of what `read_item` reads."""

    def read_all(value: Any) -> tuple[Item, ...]:
        if not isinstance(value, list):
            raise ValueError(f"a list is expected, not {shortened(value)}")
        return tuple(read_item(x) for x in value)

    return read_all


def as_shape(value: Any) -> tuple[int, ...]:
    """`value`, which must be a list of the lengths of the axes of an array."""
    shape = as_tuple(as_whole)(value)
    if len(shape) > MOST_AXES:
        raise ValueError(f"an array of more than {MOST_AXES} axes")
    return shape


def is_optional(read_value: Callable[[Any], Item]) -> Callable[[Any], Item | None]:
    """A reader of null and of what `read_value` reads."""
    return lambda value: None if value is None else read_value(value)
