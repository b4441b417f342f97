"""Numbers and arrays of reports in the types of JSON, which has no NaN and no infinity.

NaN becomes null, and the infinities the strings "Infinity" and "-Infinity". Numbers are written with as many digits as
it takes to read the same ones again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_np._lib.json import as_finite, as_record, as_shape

__all__ = ["as_array", "as_number", "plain"]

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


def as_number(value: Any) -> float:
    """A number, or what :func:`plain` writes for one that is not finite."""
    if value is None:
        return math.nan
    return INFINITIES[value] if isinstance(value, str) and value in INFINITIES else as_finite(value)


def as_array(read_item: Callable[[Any], Any], dtype: npt.DTypeLike) -> Callable[[Any], npt.NDArray[Any]]:
    """A reader of the arrays that :func:`plain` writes, of entries that `read_item` reads."""

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
