"""Values in the types of JSON, by the standard: it has no NaN and no infinity.

NaN becomes null, and the infinities the strings "Infinity" and "-Infinity". Numbers are written with as many digits as
it takes to read the same ones again. What is read is held against the form that is expected, and never evaluated.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "as_array",
    "as_flag",
    "as_number",
    "as_record",
    "as_text",
    "as_tuple",
    "as_whole",
    "is_optional",
    "plain",
    "read",
    "shortened",
    "write",
]

Item = TypeVar("Item")

AXES = 32  # of an array: what all versions of NumPy can make
DIGITS = 4000  # of a whole number: the time to read one grows with their square
LARGEST = 2**63 - 1  # whole number: as many entries as an array can have
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any) -> Any:
    """`value` in the types of JSON; named tuples become objects."""
    if isinstance(value, np.ndarray):
        wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
        return {"shape": list(value.shape), "values": plain(wide.tolist())}
    if hasattr(value, "_asdict"):
        return {key: plain(x) for key, x in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(x) for x in value]
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else _not_finite(number)
    return value


def _not_finite(number: float) -> str | None:
    return None if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def write(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as JSON: the file is the old one or the new one, whenever it is looked at."""
    text = json.dumps(value, allow_nan=False)
    target = Path(path).resolve()  # of a link, what it points to
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> Any:
    """What the file at `path` holds; a ValueError if that is not JSON."""
    file = Path(path)
    if file.exists() and not file.is_file():
        raise ValueError("it is not a file")  # what has no end cannot be read
    try:
        return json.loads(
            file.read_text(encoding="utf-8"), parse_constant=_refuse, parse_int=_whole, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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


def as_number(value: Any) -> float:
    """A number, or what :func:`plain` writes for one that is not finite."""
    if value is None:
        return math.nan
    if isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
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


def is_optional(read_value: Callable[[Any], Item]) -> Callable[[Any], Item | None]:
    """A reader of null and of what `read_value` reads."""
    return lambda value: None if value is None else read_value(value)


def as_array(read_item: Callable[[Any], Any], dtype: npt.DTypeLike) -> Callable[[Any], npt.NDArray[Any]]:
    """A reader of the arrays that :func:`plain` writes, of entries that `read_item` reads."""

    def read_array(value: Any) -> npt.NDArray[Any]:
        parts = as_record(value, {"shape": as_tuple(as_whole), "values": lambda values: values})
        shape = parts["shape"]
        if len(shape) > AXES:
            raise ValueError(f"an array of more than {AXES} axes")
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


def shortened(value: Any) -> str:
    """`value` as it can stand in a message."""
    try:
        text = repr(value)
    except RecursionError:
        return "what is nested so deeply"
    return text if len(text) <= 40 else f"{text[:40]}..."
